//! Experts of a rank, with expert parallelism of degree `e`: each rank has `x / e` of a layer's `x`
//! experts.
//!
//! The ranks of a stage form a grid `tensor x context x data` for attention, and a grid
//! `expert_tensor x expert x replicas` for experts, as with Megatron-LM's option
//! `--expert-tensor-parallel-size`. A block of `expert_tensor` neighbours in a tensor group shards
//! each expert, and `expert` such blocks divide a layer's experts. The `replicas` that have the
//! same shard of the same experts sum the gradients of this shard. With sequence parallelism, each
//! member of a tensor group sends copies of its own tokens, and the members that shard an expert
//! gather these copies.
//!
//! If routing is balanced, a rank with `t` tokens and `c` copies per token sends `t c` copies and
//! receives the same number. The rank's own experts process the received copies. Therefore expert
//! parallelism divides the weights among ranks, but does not change the number of rows of a rank.
//! If routing is skewed, every rank has the row count of the fullest rank
//! ([`routing`](crate::generate::plan)).

use crate::generate::plan::{
    ExpertExchangeForm, ParallelismPlan, RecomputePolicy, distinct_ranks, fullest_rank_load,
};
use crate::generate::{GenerateError, option_refused};
use crate::model::{LayerOperator, Model, OperatorKind};
use std::borrow::Cow;

/// Returns `model` with only the experts of one rank.
pub(super) fn shard_experts<'m>(model: Cow<'m, Model>, plan: &ParallelismPlan) -> Cow<'m, Model> {
    if plan.expert == 1 && plan.capacity_factor.is_none() {
        return model;
    }
    let mut model = model.into_owned();
    for layer in &mut model.layers {
        let load = expert_load(&layer.operators, plan);
        let among: Vec<bool> = (0..layer.operators.len())
            .map(|i| layer.stands_among_experts(i))
            .collect();
        for (operator, _) in layer
            .operators
            .iter_mut()
            .zip(among)
            .filter(|(_, among)| *among)
        {
            match &mut operator.work {
                OperatorKind::ExpertLinear { rows, experts, .. } => {
                    *experts = experts.div_ceil(plan.expert.into());
                    *rows = scale_rows(*rows, load);
                }
                OperatorKind::Activation { rows, .. } => *rows = scale_rows(*rows, load),
                _ => {}
            }
        }
    }
    Cow::Owned(model)
}

fn scale_rows(rows: u64, factor: f64) -> u64 {
    // For a balanced load, keep the exact integer, because a float does not have enough digits for
    // every integer.
    match factor == 1.0 {
        true => rows,
        false => ((rows as f64 * factor + 0.5) as u64).max(1),
    }
}

/// Returns the number of experts in a layer, and the number of experts that each token chooses;
/// `None` if the layer has no experts.
fn routing_sizes(operators: &[LayerOperator]) -> Option<[u64; 2]> {
    operators.iter().find_map(|one| match one.work {
        OperatorKind::ExpertDispatch {
            experts, chosen, ..
        } => Some([experts, chosen]),
        _ => None,
    })
}

/// Returns the number of rows on the rank with the most rows of experts, divided by the mean over
/// ranks.
fn expert_load(operators: &[LayerOperator], plan: &ParallelismPlan) -> f64 {
    routing_sizes(operators).map_or(1.0, |[experts, chosen]| {
        let of = [experts, chosen, plan.expert.into()];
        fullest_rank_load(plan.routing, &plan.expert_counts, plan.capacity_factor, of)
    })
}

/// Returns two ratios for the first layer of `model` with experts. The first ratio is the layer's
/// load: the number of rows on the fullest rank, divided by the mean over ranks. The second ratio
/// is the number of token copies that ranks send, divided by the number that experts process.
pub(super) fn exchange_loads(model: &Model, plan: &ParallelismPlan) -> [f64; 2] {
    let mut layers = model.equal_layer_runs().map(|run| &run[0]);
    let Some(layer) = layers.find(|layer| routing_sizes(&layer.operators).is_some()) else {
        return [1.0; 2];
    };
    let sent = match (plan.expert_exchange, routing_sizes(&layer.operators)) {
        (ExpertExchangeForm::Ranks, Some([experts, chosen])) => {
            distinct_ranks([experts, chosen, plan.expert.into()]) / chosen.max(1) as f64
        }
        _ => 1.0,
    };
    [expert_load(&layer.operators, plan), sent]
}

/// Rejects degrees that do not divide the experts of `model`, and options that expert parallelism
/// does not support.
pub(super) fn check_expert_degrees(
    model: &Model,
    plan: &ParallelismPlan,
) -> Result<(), GenerateError> {
    let operators = model.equal_layer_runs().flat_map(|run| &run[0].operators);
    let own = operators.map(|one| (one, one.work.to_spec().expert_weights()));
    let mut own = own.filter(|(_, experts)| *experts > 0).peekable();
    if own.peek().is_none() {
        let usual = ParallelismPlan::new();
        let settings = [
            (
                "expert_products",
                plan.expert_products.to_string(),
                plan.expert_products != usual.expert_products,
            ),
            (
                "routing",
                plan.routing.to_string(),
                plan.routing != usual.routing,
            ),
            (
                "expert_counts",
                format!("{} counts", plan.expert_counts.len()),
                !plan.expert_counts.is_empty(),
            ),
            (
                "capacity_factor",
                plan.capacity_factor
                    .map_or_else(String::new, |factor| factor.to_string()),
                plan.capacity_factor.is_some(),
            ),
        ];
        if let Some((key, found, _)) = settings.into_iter().find(|(_, _, set)| *set) {
            let expected = format!("no such option for {}, which has no experts", model.name);
            return Err(option_refused(key, found, expected));
        }
        if plan.expert > 1 {
            let expected = format!("1 for {}, which has no experts", model.name);
            return Err(option_refused("expert", plan.expert, expected));
        }
        if let Some(degree) = plan.expert_tensor {
            let expected = format!("none for {}, which has no experts", model.name);
            return Err(option_refused("expert_tensor", degree, expected));
        }
        return Ok(());
    }
    if plan.recompute == RecomputePolicy::Operators {
        let expected = "none, selective or full for a model with experts";
        return Err(option_refused("recompute", plan.recompute, expected));
    }
    let counts = plan.expert_counts.len() as u64;
    let mut layers = model
        .equal_layer_runs()
        .filter_map(|run| routing_sizes(&run[0].operators));
    if let Some([experts, _]) = layers.find(|[experts, _]| counts > 0 && counts != *experts) {
        let expected = format!(
            "one number of tokens for each of the {experts} experts of {}",
            model.name
        );
        return Err(option_refused(
            "expert_counts",
            format!("{counts} counts"),
            expected,
        ));
    }
    let tokens = model.sequence / u64::from(plan.context.max(1));
    if plan.shares_out_experts() && !tokens.is_multiple_of(plan.tensor.into()) {
        let expected = format!(
            "tensor: the {tokens} tokens of a rank's sequences are no multiple of tensor = {}",
            plan.tensor
        );
        return Err(option_refused(
            "expert_tensor",
            plan.tensor_of_experts(),
            expected,
        ));
    }
    match own.find(|(_, experts)| !experts.is_multiple_of(plan.expert.into())) {
        Some((operator, experts)) => {
            let expected = format!("a divisor of the {experts} experts of {}", operator.name);
            Err(option_refused("expert", plan.expert, expected))
        }
        None => Ok(()),
    }
}
