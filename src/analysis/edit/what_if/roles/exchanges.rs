//! Checks that the sends, receives and collectives of a completed job match.

use super::RankTraces;
use chakram_trace::format::groups::{DeclaredGroups, parse_group_metadata};
use chakram_trace::format::scan;
use chakram_trace::format::wire::FrameCursor;
use chakram_trace::format::{Op, TraceError, escape_and_shorten_name};
use std::collections::BTreeMap;

/// Fails if a send has no receive, a receive has no send, or the members of a group make different numbers of calls.
pub(super) fn check_communication_matches(
    traces: &RankTraces,
    declared: &DeclaredGroups,
    world: u32,
) -> Result<(), TraceError> {
    let mut messages: BTreeMap<(u32, u32, i32), i64> = BTreeMap::new();
    let mut calls: BTreeMap<(String, Vec<u32>), BTreeMap<u32, u64>> = BTreeMap::new();
    for (rank, trace) in traces {
        let mut own = DeclaredGroups::new();
        let mut found: BTreeMap<String, u64> = BTreeMap::new();
        let mut frames = FrameCursor::new(trace);
        while let Some(record) = frames.next_record()? {
            if record.number == 0 {
                continue;
            }
            let view = scan::scan_node(record, &mut scan::DependencySkippingVisitor)?;
            if let Some(values) = view.groups {
                own.extend(parse_group_metadata(view.id, values)?);
            }
            match view.op {
                Op::Message {
                    receive: true,
                    peer,
                    tag,
                    ..
                } => *messages.entry((peer, *rank, tag)).or_default() -= 1,
                Op::Message {
                    receive: false,
                    peer,
                    tag,
                    ..
                } => *messages.entry((*rank, peer, tag)).or_default() += 1,
                Op::Collective { group, .. } => {
                    *found
                        .entry(group.to_text().unwrap_or_default())
                        .or_default() += 1
                }
                _ => {}
            }
        }
        for (name, count) in found {
            let members = declared
                .get(&name)
                .or(own.get(&name))
                .filter(|members| !members.is_empty());
            let members = members.cloned().unwrap_or_else(|| (0..world).collect());
            calls
                .entry((name, members))
                .or_default()
                .insert(*rank, count);
        }
    }
    let unequal = |found: String| {
        crate::edit::what_if::refuse_edit(
            format!(
                "the sends, receives and collectives of the completed job do not match: {found}"
            ),
            "capture more ranks; some role has no captured rank",
        )
    };
    if let Some(((from, to, _), left)) = messages.iter().find(|(_, left)| **left != 0) {
        let (more, less) = if *left > 0 {
            ("sends", "receives")
        } else {
            ("receives", "sends")
        };
        let (a, b) = if *left > 0 { (from, to) } else { (to, from) };
        return Err(unequal(format!(
            "rank {a} {more} {} messages more than rank {b} {less}",
            left.unsigned_abs()
        )));
    }
    for ((name, members), counts) in &calls {
        let first = counts.values().next();
        let odd = members.iter().find(|member| counts.get(member) != first);
        if let Some(odd) = odd {
            return Err(unequal(format!(
                "rank {odd} calls collectives of group `{}` {} times, other members {} times",
                escape_and_shorten_name(name),
                counts.get(odd).copied().unwrap_or(0),
                first.copied().unwrap_or(0)
            )));
        }
    }
    Ok(())
}
