//! Finds how much memory whole gradients take between their computation and their reduction.

use super::super::program::{EditableRankProgram, TrainingStepPhase};
use super::super::unedited::ValuesReplacedByEdits;
use chakram_trace::format::Op;
use std::collections::BTreeMap;

/// Returns how many bytes for whole gradients each kernel of a backward pass allocates. A reduction frees all bytes
/// that kernels have allocated since the previous reduction.
pub(super) fn map_kernels_to_whole_gradient_bytes(
    program: &EditableRankProgram<'_>,
) -> BTreeMap<u32, u64> {
    let mut all = BTreeMap::new();
    let mut waiting: Vec<(u32, u64)> = Vec::new();
    for node in program.raw.range_of_all_node_indices() {
        let (view, facts) = (program.view_of_node(node), &program.facts[node as usize]);
        let unedited = ValuesReplacedByEdits::parse(facts.unedited);
        let bytes_of = |wanted: &str| {
            let mut named = view
                .memory
                .nonzero_changes_with_attribute_names()
                .filter(|(name, _)| *name == wanted);
            let now = named.next()?.1;
            Some(unedited.attribute_count_before_edits(wanted).unwrap_or(now))
                .filter(|&bytes| bytes > 0)
        };
        match (view.op, facts.phase) {
            (Op::Compute { .. }, TrainingStepPhase::Backward) => {
                waiting.extend(bytes_of("allocates.temporary").map(|bytes| (node, bytes)));
            }
            (Op::Collective { .. }, TrainingStepPhase::Parameters) => {
                let Some(freed) = bytes_of("frees.temporary") else {
                    continue;
                };
                let mut sum = 0_u64;
                let end = waiting.iter().position(|(_, bytes)| {
                    sum = sum.saturating_add(*bytes);
                    sum >= freed
                });
                if let Some(end) = end.filter(|_| sum == freed) {
                    all.extend(waiting.drain(..=end));
                }
            }
            _ => {}
        }
    }
    all
}
