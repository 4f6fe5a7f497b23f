//! Sets new values of transfers and kernels, and stores their unedited values.

use super::super::program::{EditableRankProgram, NewAttributeValueOrRemoval, UNEDITED};
use super::super::unedited::ValuesReplacedByEdits;
use super::BatchSequenceHiddenFactors;
use std::collections::BTreeMap;

/// Multiplies the bytes and recorded time of a message or collective by `growth`. `parts` lists the parts of the
/// transfer's temporary memory that grow by other factors, each as (attribute, bytes, factor).
pub(super) fn scale_communication_bytes_and_time(
    program: &mut EditableRankProgram<'_>,
    item: u32,
    bytes: u64,
    growth: f64,
    parts: &[(&str, u64, f64)],
    by: BatchSequenceHiddenFactors,
) {
    let node = program.items[item as usize].node;
    let unedited = ValuesReplacedByEdits::parse(program.facts[node as usize].unedited);
    let view = *program.view_of_node(node);
    let old = |name: &str, now: u64| unedited.attribute_count_before_edits(name).unwrap_or(now);
    let times = |value: u64| (value as f64 * growth).round() as u64;
    let mut new = vec![(
        "comm_size",
        NewAttributeValueOrRemoval::Count(times(old("comm_size", bytes))),
    )];
    let mut sides = Vec::new();
    // Decoding cannot fail, because the record was decoded before.
    let _ = crate::edit::for_each_attribute(program.raw.nodes[node as usize].record, |attr| {
        for name in ["in_bytes", "out_bytes"] {
            if attr.name == name.as_bytes() {
                sides.push((name, attr.as_count()?));
            }
        }
        Ok(())
    });
    for (name, bytes) in sides {
        new.push((
            name,
            NewAttributeValueOrRemoval::Count(times(old(name, bytes))),
        ));
    }
    for (name, now) in view
        .memory
        .nonzero_changes_with_attribute_names()
        .filter(|(name, _)| name.ends_with(".temporary"))
    {
        let all = old(name, now);
        let part = parts.iter().find(|(part, ..)| *part == name);
        let grown = part.map_or(times(all), |&(_, part, own)| {
            times(all - part) + (part as f64 * own).round() as u64
        });
        new.push((name, NewAttributeValueOrRemoval::Count(grown)));
    }
    let ns = old("duration_ns", view.recorded.0 / 1000);
    if ns > 0 {
        new.push(("duration_ns", NewAttributeValueOrRemoval::Count(times(ns))));
    }
    change_attributes_keeping_unedited(program, item, new, by == BatchSequenceHiddenFactors::NONE);
}

/// Changes attributes of a node, and stores the unedited values in another attribute. If `restores` is true (all edits
/// cancel each other), restores the values before all edits instead.
pub(super) fn change_attributes_keeping_unedited(
    program: &mut EditableRankProgram<'_>,
    item: u32,
    new: Vec<(&'static str, NewAttributeValueOrRemoval)>,
    restores: bool,
) {
    let node = program.items[item as usize].node;
    let kept = program.facts[node as usize].unedited;
    let mut changes = BTreeMap::new();
    if restores {
        for (name, value) in ValuesReplacedByEdits::parse(kept).iter_names_and_original_values() {
            if let Some((known, _)) = new.iter().find(|(known, _)| *known == name) {
                changes.insert(*known, value);
            }
        }
        if kept.is_some() {
            changes.insert(UNEDITED, NewAttributeValueOrRemoval::Removed);
        }
    } else {
        let mut text = kept.unwrap_or_default().to_owned();
        if kept.is_none() {
            let mut values: BTreeMap<&str, String> = BTreeMap::new();
            // Decoding cannot fail, because the record was decoded before.
            let _ =
                crate::edit::for_each_attribute(program.raw.nodes[node as usize].record, |attr| {
                    if let Some((name, _)) =
                        new.iter().find(|(name, _)| name.as_bytes() == attr.name)
                    {
                        let count = attr.as_count().map(|count| count.to_string());
                        let text = attr.as_str().ok().flatten().map(str::to_owned);
                        values.insert(name, text.or(count.ok()).unwrap_or_default());
                    }
                    Ok(())
                });
            let of = |name: &str| values.get(name).map_or("-", |value| value.as_str());
            let parts = new.iter().map(|(name, _)| format!("{name}={}", of(name)));
            text = parts.collect::<Vec<_>>().join(";");
        }
        changes.extend(new);
        changes.insert(UNEDITED, NewAttributeValueOrRemoval::Text(text));
    }
    program.items[item as usize].changes.extend(changes);
}
