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
//! | norms of heads, rotary positions, heads that are repeated | all | queries and keys behind norms are not |
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
use crate::model::{ChainRole, LayerOperator, OperatorAxis, OperatorKind, OperatorSpec};

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
    let spec = |i: Option<usize>| i.and_then(|i| operators.get(i)).map(|one| one.work.spec());
    let behind_attention = spec(i.checked_sub(1)).is_some_and(|before| before.attends());
    let own = work.spec();
    let kept = kernels.keeps.saturating_add(kernels.scores);
    let all = || kernels.forward.clone();
    let unsaved = sizes.quantizes();
    let is_gated = |spec: &OperatorSpec| spec.inputs.len() > 1;
    let (kernels, dropped) = if own.is_linear() {
        let outputs = own.extent('n');
        // Columns that are found again.
        let columns = match spec(Some(i + 1)) {
            _ if behind_attention => outputs,
            Some(behind) if unsaved && (behind.attends() || behind.is_elementwise()) => outputs,
            Some(behind) if behind.attends() => {
                let [heads, kv_heads] = ['n', 'g'].map(|letter| behind.extent(letter));
                let each = heads.saturating_add(kv_heads.saturating_mul(2));
                (u128::from(outputs) * u128::from(kv_heads) / u128::from(each.max(1))) as u64
            }
            Some(behind) if behind.is_elementwise() && is_gated(&behind) => outputs / 2,
            _ => 0,
        };
        let mut part = work.clone();
        let mut sizes_of = part.sizes_mut().into_iter();
        let size = sizes_of.find(|(axis, _)| *axis == OperatorAxis::N);
        size.into_iter().for_each(|(_, size)| *size = columns);
        let again = match columns {
            0 => Vec::new(),
            _ => sizes.kernels(part)?.forward,
        };
        (again, if behind_attention { 0 } else { kept })
    } else if own.attends() {
        let before = [".norm", ".rotary", ".repeat"];
        let mut again = all();
        again.retain(|kernel| before.iter().any(|name| kernel.suffix.starts_with(name)));
        // Queries and keys are kept as they come out of their products, and not once more behind their norms.
        let behind_norms = match own.weights.is_empty() {
            true => 0,
            false => own.volume("mnw").saturating_add(own.volume("tgw")),
        };
        let each = u128::from(sizes.samples) * u128::from(sizes.number);
        (again, behind_norms.saturating_mul(each) as u64)
    } else if own.is_elementwise() && !own.weights.is_empty() {
        // A norm, of which the first has the block's input.
        (all(), if i == 0 { 0 } else { kept })
    } else if own.is_elementwise() {
        let part = match (unsaved, is_gated(&own)) {
            (true, _) => kept,
            (false, true) => kept / 2,
            (false, false) => 0,
        };
        (all(), part)
    } else if own.role == ChainRole::Join && i + 1 < operators.len() {
        (all(), kept)
    } else {
        (Vec::new(), 0)
    };
    Ok(RecomputedPart { kernels, dropped })
}
