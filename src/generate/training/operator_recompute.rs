//! Recomputation operator by operator, as torchtitan's `op` policy chooses (`torchtitan/distributed/activation_checkpoint.py`):
//! outputs of attention and of matrix products are saved, of products every second one is not, and all else is done again.
//!
//! Frameworks have a product for each of queries, keys and values, and for each half of a gate, so that of a block with a
//! gated perceptron the products of keys, of attention's output and of the second half of the gate are done again:
//!
//! | operator | done again | kept of its input |
//! |---|---|---|
//! | first norm | all | all: the block's input |
//! | product of queries, keys and values | that of keys | |
//! | rotary positions, heads that are repeated | all | |
//! | attention | | all, and its own output |
//! | product behind attention | all | all: attention's output |
//! | residual sum, norm before the perceptron | all | |
//! | product into the perceptron | half of a gate | |
//! | activation | all | half of a gate, all without one |
//! | product out of the perceptron, last sum | | |
//!
//! It is done at the beginning of the block's backward pass. The policy counts `aten.mm`; products of 8 bits are
//! `aten._scaled_mm`, which is not among the operators whose outputs are saved, so all of them are done again whose outputs
//! the backward pass needs: all but the last.

use super::super::GenerateError;
use super::cost::{CostParameters, LoweredKernel, OperatorKernels};
use crate::model::{LayerOperator, OperatorKind};

/// Part of an operator that is done again.
#[derive(Clone, Debug, Default)]
pub(super) struct RecomputedPart {
    /// Kernels.
    pub kernels: Vec<LoweredKernel>,
    /// Bytes that are not kept over the forward pass.
    pub dropped: u64,
}

/// The part of operator `i` of `operators`, of which a member has `work` with `kernels`, that is done again.
pub(super) fn recomputed(
    operators: &[LayerOperator],
    i: usize,
    work: &OperatorKind,
    kernels: &OperatorKernels,
    sizes: &CostParameters,
) -> Result<RecomputedPart, GenerateError> {
    let kind = |i: Option<usize>| i.and_then(|i| operators.get(i)).map(|one| &one.work);
    let (before, behind) = (kind(i.checked_sub(1)), kind(Some(i + 1)));
    let is_attention =
        |kind: Option<&OperatorKind>| matches!(kind, Some(OperatorKind::Attention { .. }));
    let kept = kernels.keeps.saturating_add(kernels.scores);
    let all = || kernels.forward.clone();
    let unsaved = sizes.quantizes();
    let (kernels, dropped) = match work {
        OperatorKind::Norm { .. } => (all(), if i == 0 { 0 } else { kept }),
        OperatorKind::Linear { outputs, .. } => {
            // Columns that are found again.
            let columns = match behind {
                _ if is_attention(before) => *outputs,
                Some(OperatorKind::Attention { .. } | OperatorKind::Activation { .. })
                    if unsaved =>
                {
                    *outputs
                }
                Some(OperatorKind::Attention {
                    heads, kv_heads, ..
                }) => {
                    let each = heads.saturating_add(kv_heads.saturating_mul(2));
                    (u128::from(*outputs) * u128::from(*kv_heads) / u128::from(each.max(1))) as u64
                }
                Some(OperatorKind::Activation { gated: true, .. }) => outputs / 2,
                _ => 0,
            };
            let mut part = work.clone();
            if let OperatorKind::Linear { outputs, .. } = &mut part {
                *outputs = columns;
            }
            let again = match columns {
                0 => Vec::new(),
                _ => sizes.kernels(part)?.forward,
            };
            (again, if is_attention(before) { 0 } else { kept })
        }
        OperatorKind::Activation { .. } if unsaved => (all(), kept),
        OperatorKind::Activation { gated, .. } => (all(), if *gated { kept / 2 } else { 0 }),
        OperatorKind::Attention { .. } => {
            let before = [".rotary", ".repeat"];
            let mut again = all();
            again.retain(|kernel| before.iter().any(|name| kernel.suffix.starts_with(name)));
            (again, 0)
        }
        OperatorKind::Residual { .. } if i + 1 < operators.len() => (all(), kept),
        _ => (Vec::new(), 0),
    };
    Ok(RecomputedPart { kernels, dropped })
}
