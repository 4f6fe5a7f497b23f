//! Checks that a trace does not free more memory than it allocates.

use super::defects::{DefectLocationInFile, DefectLog};
use super::kind::DefectKind;
use super::node::TraceReducedForValidation;
use chakram_trace::format::TensorClass;

/// Reports each tensor class for which the whole trace frees more bytes than it allocates. The report names the first
/// node in id order at which the bytes freed so far exceed all allocated bytes.
pub(super) fn report_classes_freed_beyond_allocations(
    raw: &TraceReducedForValidation<'_>,
    findings: &mut DefectLog,
) {
    for (i, (_, class)) in TensorClass::ALL.into_iter().enumerate() {
        // Sums stay below 2^96, because a trace has fewer than 2^32 nodes, whose numbers have 64 bits each.
        let changes = raw.memory.iter();
        let allocated: u128 = changes.map(|(_, c)| u128::from(c.allocates[i])).sum();
        let mut freed = 0_u128;
        let mut beyond = None;
        for (node, changes) in &raw.memory {
            freed += u128::from(changes.frees[i]);
            if freed > allocated {
                beyond.get_or_insert(*node);
            }
        }
        if let Some(node) = beyond {
            findings.count_defect_and_store_if_room(DefectKind::Overfreed, || {
                let found = format!(
                    "the trace frees {freed} bytes of {class} in all, and allocates {allocated}"
                );
                (
                    DefectLocationInFile::of_node(&raw.nodes[node as usize]),
                    found,
                )
            });
        }
    }
}
