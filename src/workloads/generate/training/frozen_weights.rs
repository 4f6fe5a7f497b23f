//! Weights that training does not change, and their low-rank adapters (Hu et al., "LoRA: Low-Rank
//! Adaptation of Large Language Models", 2021, section 4).
//!
//! Frozen weights have neither gradients nor optimizer state. Gradients of activations still pass
//! through frozen layers, down to the first block. If a product of `n x k` by `k x m` has an
//! adapter of rank `r`, it also computes `(x A) B` and adds the result, where `A` is `k x r` and
//! `B` is `r x m`:
//!
//! | | kernels | FLOPs | kept |
//! |---|---|---|---|
//! | forward | `lora.a`, `lora.b`, and `lora.sum` of both results | `2 n r (k + m)` | `x`, and `x A` of `n r` numbers |
//! | backward | `lora.b.dgrad`, `lora.a.dgrad`, and `lora.sum` of both gradients of `x` | `2 n r (k + m)` | |
//! | | `lora.b.wgrad`, `lora.a.wgrad` | `2 n r (k + m)` | |
//!
//! With `elementwise` megatron and eager, a separate kernel `lora.scale` scales the adapter's result and its gradient,
//! as in Megatron-Bridge and PEFT; otherwise, the kernel that adds the result also scales it. Adapters' products use
//! the plan's number format, even if `linears` sets another.
//!
//! If a tensor group shards the product by outputs, the group shards `B`, and every member has `A`. If it shards the
//! product by inputs, it shards `A`, and every member has `B`. Products are linear, so the frozen product's sums over
//! the group include the adapter's part without further communication. Each member computes only a part of the gradient
//! of the matrix that all members have, so the group sums this gradient once per step.

use crate::generate::plan::{OperatorNamePattern, ParallelismPlan};
use crate::generate::{PatternOptionError, refused_option_value_error};
use crate::model::{
    LayerOperator, LayerRole, Model, ModelLayer, OperatorKind, TrainedOperatorWeights,
};
use std::collections::BTreeSet;

/// Records in each operator of `model` the weights that `plan` trains.
pub(super) fn freeze_weights(
    model: &mut Model,
    plan: &ParallelismPlan,
) -> Result<(), PatternOptionError> {
    if !plan.has_frozen_weights() {
        return Ok(());
    }
    let mut unused: Vec<&OperatorNamePattern> =
        plan.lora_targets.iter().chain(&plan.frozen).collect();
    for layer in &mut model.layers {
        for operator in &mut layer.operators {
            let can_match = match plan.lora {
                Some(_) => can_have_adapter(&operator.work),
                None => operator.parameter_count() > 0,
            };
            let mut is_named = |patterns: &[OperatorNamePattern]| {
                let is_match = |one: &OperatorNamePattern| {
                    can_match && one.matches_operator(&layer.name, &operator.name)
                };
                unused.retain(|one| !is_match(one));
                patterns.iter().any(is_match)
            };
            let Some(rank) = plan.lora else {
                if is_named(&plan.frozen) {
                    operator.training = TrainedOperatorWeights::Frozen;
                }
                continue;
            };
            let is_target = match plan.lora_targets.is_empty() {
                true => layer.role == LayerRole::Block && can_have_adapter(&operator.work),
                false => is_named(&plan.lora_targets),
            };
            operator.training = match is_target {
                true => TrainedOperatorWeights::Adapter { rank },
                false => TrainedOperatorWeights::Frozen,
            };
        }
    }
    let (key, has_lora) = match plan.lora {
        Some(_) => ("lora_targets", true),
        None => ("frozen", false),
    };
    if let Some(first) = unused.first() {
        let all = model.layers.iter().flat_map(|layer| &layer.operators);
        let named = all.filter(|one| match has_lora {
            true => can_have_adapter(&one.work),
            false => one.parameter_count() > 0,
        });
        let names: BTreeSet<&str> = named.map(|one| &one.name[..]).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let expected = format!("operators of {}: {}", model.name, names.join(", "));
        return Err(refused_option_value_error(key, first, expected));
    }
    if count_trained_weights(model) == 0 {
        let (key, found, expected) = match (plan.lora, plan.frozen.first()) {
            (None, Some(first)) => ("frozen", first.to_string(), "some trained weights"),
            (rank, _) => {
                let rank = rank.unwrap_or(0).to_string();
                (
                    "lora",
                    rank,
                    "none for a model whose blocks have no products",
                )
            }
        };
        return Err(refused_option_value_error(key, found, expected));
    }
    check_tied_weights_frozen_alike(model)
}

/// Number of trained weights in `model`, including adapters.
pub(super) fn count_trained_weights(model: &Model) -> u64 {
    let of_layer = |layer: &ModelLayer| {
        let operators = layer.operators.iter();
        operators.fold(0, |sum: u64, one| {
            sum.saturating_add(count_trained_weights_of_operator(one))
        })
    };
    let runs = model.equal_layer_runs();
    runs.fold(0, |sum: u64, run| {
        sum.saturating_add(of_layer(&run[0]).saturating_mul(run.len() as u64))
    })
}

fn count_trained_weights_of_operator(operator: &LayerOperator) -> u64 {
    match adapter_products(operator.training, &operator.work) {
        Some(products) => products.iter().fold(0, |sum, product| {
            product.parameter_count().saturating_add(sum)
        }),
        None if operator.training == TrainedOperatorWeights::All => operator.parameter_count(),
        None => 0,
    }
}

fn can_have_adapter(work: &OperatorKind) -> bool {
    matches!(
        work,
        OperatorKind::Linear { tied: false, .. } | OperatorKind::ExpertLinear { .. }
    )
}

/// Rejects a table and a matrix product that share weights if one is frozen and the other is trained.
fn check_tied_weights_frozen_alike(model: &Model) -> Result<(), PatternOptionError> {
    let mut operators = model.layers.iter().flat_map(|layer| &layer.operators);
    let tied = operators
        .clone()
        .find(|one| one.work.to_axes_and_tensors().tied_weight_count().is_some());
    let table = operators.find(|one| matches!(one.work, OperatorKind::Embedding { .. }));
    match (tied, table) {
        (Some(tied), Some(table)) if tied.training != table.training => {
            let frozen = if tied.training == TrainedOperatorWeights::Frozen {
                tied
            } else {
                table
            };
            let expected = format!(
                "both or none of {} and {}, which share one matrix",
                table.name, tied.name
            );
            Err(refused_option_value_error("frozen", &frozen.name, expected))
        }
        _ => Ok(()),
    }
}

/// Returns the two matrix products of the adapter of `work`, or `None` if it has no adapter.
pub(super) fn adapter_products(
    training: TrainedOperatorWeights,
    work: &OperatorKind,
) -> Option<[OperatorKind; 2]> {
    let TrainedOperatorWeights::Adapter { rank } = training else {
        return None;
    };
    let mut products = [work.clone(), work.clone()];
    for (i, product) in products.iter_mut().enumerate() {
        let (OperatorKind::Linear {
            inputs,
            outputs,
            bias,
            ..
        }
        | OperatorKind::ExpertLinear {
            inputs,
            outputs,
            bias,
            ..
        }) = product
        else {
            return None;
        };
        *bias = false;
        *(if i == 0 { outputs } else { inputs }) = rank.into();
    }
    Some(products)
}
