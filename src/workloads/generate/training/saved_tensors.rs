//! Recomputation by tensor: the plan names the operators whose outputs the forward pass saves (`saved`), as JAX's
//! rematerialization policies do (`jax.checkpoint_policies.save_only_these_names`). The backward pass of a block first
//! recomputes the other outputs from the block's input and the saved outputs.
//!
//! | operator | recomputed | kept of its input |
//! |---|---|---|
//! | named | only kernels before attention (norms of heads, rotary positions, repeated heads) | if the operator before it is named, or if it is the block's first |
//! | others before the block's last matrix product | all | the same |
//! | the last product, and operators after it | | the same |
//!
//! The last product is not recomputed, because no gradient needs its output. If a product before a residual sum has a
//! saved output, this output is kept for the sum, which otherwise keeps none of its inputs.

use super::cost::{KernelCostSizesAndOptions, OperatorKernels};
use super::operator_recompute::RecomputedOperatorPart;
use crate::generate::plan::{OperatorNamePattern, ParallelismPlan};
use crate::generate::{PatternOptionError, refused_option_value_error};
use crate::model::{LayerOperator, LayerRole, Model, OperatorInputSource, OutputSavedOrRecomputed};
use std::collections::BTreeSet;

/// Marks the operators of `model` whose outputs `plan` saves, if the plan names such operators.
pub(super) fn mark_operators_saved_by_plan(
    model: &mut Model,
    plan: &ParallelismPlan,
) -> Result<(), PatternOptionError> {
    if plan.saved.is_empty() {
        return Ok(());
    }
    let mut unused: Vec<&OperatorNamePattern> = plan.saved.iter().collect();
    let blocks = model.layers.iter_mut();
    for layer in blocks.filter(|layer| layer.role == LayerRole::Block) {
        for operator in &mut layer.operators {
            let is_match =
                |one: &OperatorNamePattern| one.matches_operator(&layer.name, &operator.name);
            unused.retain(|one| !is_match(one));
            operator.saved = match plan.saved.iter().any(is_match) {
                true => OutputSavedOrRecomputed::Yes,
                false => OutputSavedOrRecomputed::No,
            };
        }
    }
    let Some(first) = unused.first() else {
        return Ok(());
    };
    let blocks = model.layers.iter();
    let blocks = blocks.filter(|layer| layer.role == LayerRole::Block);
    let names = blocks.flat_map(|layer| layer.operators.iter().map(|one| &one.name[..]));
    let names: Vec<&str> = names.collect::<BTreeSet<_>>().into_iter().collect();
    let expected = format!(
        "operators of blocks of {}: {}",
        model.name,
        names.join(", ")
    );
    Err(refused_option_value_error("saved", first, expected))
}

/// Returns the part of operator `i` in `operators` that is recomputed, if the plan names saved outputs.
pub(super) fn recomputed_part_if_saved_outputs_are_named(
    operators: &[LayerOperator],
    i: usize,
    kernels: &OperatorKernels,
    sizes: &KernelCostSizesAndOptions,
) -> RecomputedOperatorPart {
    let spec = operators[i].work.to_axes_and_tensors();
    let is_saved = |i: usize| operators[i].saved == OutputSavedOrRecomputed::Yes;
    let is_product = |one: &LayerOperator| {
        let spec = one.work.to_axes_and_tensors();
        spec.sums_over_input_columns()
    };
    let last = operators.iter().rposition(is_product);
    let mut again = match last.is_some_and(|last| i < last) {
        true => kernels.forward.clone(),
        false => Vec::new(),
    };
    if is_saved(i) {
        let before = [".norm", ".rotary", ".repeat"];
        again.retain(|kernel| {
            spec.is_attention() && before.iter().any(|name| kernel.suffix.starts_with(name))
        });
    }
    let before = i.checked_sub(1);
    let keeps_input = before.is_none_or(is_saved);
    let is_sum = spec.role == OperatorInputSource::Join;
    let kept_of_sum = match before.filter(|_| is_sum && keeps_input) {
        Some(before) => operators[before].work.output_elements(),
        None => 0,
    };
    RecomputedOperatorPart {
        kernels: again,
        dropped: match keeps_input {
            true => 0,
            false => kernels.keeps.saturating_add(kernels.scores),
        },
        kept: kept_of_sum.saturating_mul(sizes.samples.saturating_mul(sizes.number)),
    }
}
