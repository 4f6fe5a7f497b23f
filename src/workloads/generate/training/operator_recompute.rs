//! Recomputation of individual operators, with the choices of torchtitan's `op` policy
//! (`torchtitan/distributed/activation_checkpoint.py`). The policy saves the outputs of attention
//! and of every second matrix product, and recomputes all other outputs.
//!
//! Frameworks have separate products for queries, keys, values, and the two halves of a gate. In a block with a gated
//! MLP, the policy therefore recomputes three matrix products: the key projection, the output projection after
//! attention, and the second half of the gate:
//!
//! | operator | recomputed | kept of its input |
//! |---|---|---|
//! | first norm | all | all: the block's input |
//! | product of queries, keys and values | the product of keys | |
//! | norms of heads, rotary positions, repeated heads | all | not the queries and keys after norms |
//! | attention | | all, and its own output |
//! | product after attention | all | all: attention's output |
//! | residual sum, norm before the MLP | all | |
//! | product into the MLP | half of a gate | |
//! | activation | all | half of a gate, or everything without a gate |
//! | product out of the MLP, last sum | | |
//!
//! The recomputation runs before the block's backward pass. The policy saves only outputs of `aten.mm`, but an 8-bit
//! product is an `aten._scaled_mm`. 8-bit models therefore recompute every product except the last, because the
//! backward pass needs the outputs of all others.

use super::super::PatternOptionError;
use super::cost::{KernelCostSizesAndOptions, LoweredKernel, OperatorKernels};
use crate::model::{
    LayerOperator, OperatorAxesAndTensorsSpec, OperatorInputSource, OperatorKind, OperatorShardAxis,
};

/// The part of an operator that the backward pass runs again.
#[derive(Clone, Debug, Default)]
pub(super) struct RecomputedOperatorPart {
    /// Kernels that the backward pass runs again.
    pub kernels: Vec<LoweredKernel>,
    /// Bytes freed after the forward pass, because the backward pass recomputes them.
    pub dropped: u64,
    /// Additional bytes that the operator keeps, because the plan saves its input.
    pub kept: u64,
}

/// Returns the part of operator `i` in `operators` that is recomputed. `work` is a member's shard
/// of the operator, and `kernels` are the shard's kernels.
pub(super) fn recomputed_operator_part(
    operators: &[LayerOperator],
    i: usize,
    work: &OperatorKind,
    kernels: &OperatorKernels,
    sizes: &KernelCostSizesAndOptions,
) -> Result<RecomputedOperatorPart, PatternOptionError> {
    let spec = |i: Option<usize>| {
        i.and_then(|i| operators.get(i))
            .map(|one| one.work.to_axes_and_tensors())
    };
    let behind_attention = spec(i.checked_sub(1)).is_some_and(|before| before.is_attention());
    let own = work.to_axes_and_tensors();
    let kept = kernels.keeps.saturating_add(kernels.scores);
    let all = || kernels.forward.clone();
    let unsaved = sizes.casts_operands();
    let is_gated = |spec: &OperatorAxesAndTensorsSpec| spec.inputs.len() > 1;
    let (kernels, dropped) = if own.is_matrix_product_without_windows() {
        let outputs = own.extent_of_axis('n');
        // Number of output columns that are recomputed.
        let columns = match spec(Some(i + 1)) {
            _ if behind_attention => outputs,
            Some(behind)
                if unsaved
                    && (behind.is_attention() || behind.is_norm_or_activation_on_chain()) =>
            {
                outputs
            }
            Some(behind) if behind.is_attention() => {
                let [heads, kv_heads] = ['n', 'g'].map(|letter| behind.extent_of_axis(letter));
                let each = heads.saturating_add(kv_heads.saturating_mul(2));
                (u128::from(outputs) * u128::from(kv_heads) / u128::from(each.max(1))) as u64
            }
            Some(behind) if behind.is_norm_or_activation_on_chain() && is_gated(&behind) => {
                outputs / 2
            }
            _ => 0,
        };
        let mut part = work.clone();
        let mut sizes_of = part.divisible_sizes_mut().into_iter();
        let size = sizes_of.find(|(axis, _)| *axis == OperatorShardAxis::N);
        size.into_iter().for_each(|(_, size)| *size = columns);
        let again = match columns {
            0 => Vec::new(),
            _ => sizes.kernels_of_operator(part)?.forward,
        };
        (again, if behind_attention { 0 } else { kept })
    } else if own.is_attention() {
        let before = [".norm", ".rotary", ".repeat"];
        let mut again = all();
        again.retain(|kernel| before.iter().any(|name| kernel.suffix.starts_with(name)));
        // Queries and keys are saved only once: after their matrix products, not again after their
        // norms.
        let behind_norms = match own.weights.is_empty() {
            true => 0,
            false => own
                .tensor_element_count("mnw")
                .saturating_add(own.tensor_element_count("tgw")),
        };
        let each = u128::from(sizes.samples) * u128::from(sizes.number);
        (again, behind_norms.saturating_mul(each) as u64)
    } else if own.is_norm_or_activation_on_chain() && !own.weights.is_empty() {
        // The backward pass recomputes a norm from its input. Only the first norm's input is saved, because it is also
        // the block's input.
        (all(), if i == 0 { 0 } else { kept })
    } else if own.is_norm_or_activation_on_chain() {
        let part = match (unsaved, is_gated(&own)) {
            (true, _) => kept,
            (false, true) => kept / 2,
            (false, false) => 0,
        };
        (all(), part)
    } else if own.role == OperatorInputSource::Join && i + 1 < operators.len() {
        (all(), kept)
    } else {
        (Vec::new(), 0)
    };
    Ok(RecomputedOperatorPart {
        kernels,
        dropped,
        kept: 0,
    })
}
