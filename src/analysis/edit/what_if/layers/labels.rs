//! Renumbers the labels of layers in generated jobs. The labels count the layers of the whole model.

use super::super::program::{EditableRankProgram, NewAttributeValueOrRemoval};
use super::copies::{LayerEditor, LayerPositionBeforeAfter, label_of_generated_layer};
use std::collections::BTreeMap;

/// The repeated layers in a job. Each part of the model on a stage has an entry: the labels of its first and last
/// layer, and the number of layers added to it.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct AddedLayerCountByLabelRange(pub BTreeMap<(u32, u32), i64>);

impl AddedLayerCountByLabelRange {
    /// Returns how many layers the edit adds before the layer with the label `label`.
    fn label_shift(&self, label: u32) -> i64 {
        let below = self.0.iter().filter(|((_, last), _)| *last < label);
        below.map(|(_, by)| by).sum()
    }

    /// Renumbers the labels of the layers in one step.
    pub fn relabel_layers_in_step(
        &self,
        program: &mut EditableRankProgram<'_>,
        step: u32,
        editor: &LayerEditor,
        by: i64,
    ) {
        let base = |run: usize| {
            label_of_generated_layer(program, editor.runs_before_edit()[run].layers.first()?)
        };
        let bases: Vec<Option<u32>> = (0..editor.runs_before_edit().len()).map(base).collect();
        // A gather of parameters before all layers belongs to the layer that depends on it.
        let mut fetched: BTreeMap<u32, LayerPositionBeforeAfter> = BTreeMap::new();
        for (&item, moved) in &editor.moves {
            for dep in &program.items[item as usize].deps {
                if !editor.moves.contains_key(&dep.on)
                    && program.facts_of_item(dep.on).layer == program.facts_of_item(item).layer
                {
                    fetched.entry(dep.on).or_insert(*moved);
                }
            }
        }
        for item in program.order.clone() {
            let facts = program.facts_of_item(item);
            let Some(label) = facts.layer.filter(|_| facts.step == Some(step)) else {
                continue;
            };
            let label = i64::from(label);
            let moved = editor.moves.get(&item).or(fetched.get(&item));
            let new = match moved.and_then(|moved| Some((moved, bases[moved.run]?))) {
                Some((moved, base)) => {
                    let backward = editor.runs_before_edit()[moved.run].backward;
                    let more = match backward {
                        true => by - (moved.new - moved.old),
                        false => moved.new - moved.old,
                    };
                    label + more + self.label_shift(base)
                }
                None => label + self.label_shift(label as u32),
            };
            if new == label {
                continue;
            }
            let name = renumber_layer_in_name(program.view_of_item(item).name, new - label);
            let own = &mut program.items[item as usize];
            own.name = name;
            let new = NewAttributeValueOrRemoval::Count(new.max(0) as u64);
            own.changes.insert("layer", new);
        }
    }
}

/// Adds `by` to the layer labels of all nodes.
pub(in super::super) fn shift_layer_labels_of_all_nodes(
    program: &mut EditableRankProgram<'_>,
    by: i64,
) {
    if by == 0 {
        return;
    }
    for item in program.order.clone() {
        let Some(label) = program.facts_of_item(item).layer else {
            continue;
        };
        let name = renumber_layer_in_name(program.view_of_item(item).name, by);
        let own = &mut program.items[item as usize];
        own.name = name;
        let new = (i64::from(label) + by).max(0) as u64;
        own.changes
            .insert("layer", NewAttributeValueOrRemoval::Count(new));
    }
}

/// Renames a node of a generated job (such as `mb0/layer11/fwd/norm1`): adds `by` to the number of its layer.
fn renumber_layer_in_name(name: &str, by: i64) -> Option<String> {
    let (before, after) = match name.strip_prefix("layer") {
        Some(after) => ("layer", after),
        None => {
            let (before, _) = name.split_once("/layer")?;
            name.split_at(before.len() + "/layer".len())
        }
    };
    let end = after.find('/')?;
    let number: i64 = after[..end].parse().ok()?;
    Some(format!("{before}{}{}", number + by, &after[end..]))
}

/// Returns a node's layer label after the edit.
pub(super) fn layer_label_after_edit(program: &EditableRankProgram<'_>, item: u32) -> Option<u32> {
    match program.items[item as usize].changes.get("layer") {
        Some(NewAttributeValueOrRemoval::Count(layer)) => u32::try_from(*layer).ok(),
        _ => program.facts_of_item(item).layer,
    }
}
