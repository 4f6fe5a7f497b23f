//! The experts that a rank has under expert parallelism of degree `e`: `x / e` of a layer's `x`
//! experts.
//!
//! The ranks of a stage form a grid `tensor x context x data` for attention, and a grid `expert_tensor x expert x
//! replicas` for experts, as with Megatron-LM's option `--expert-tensor-parallel-size`. In a tensor group,
//! `expert_tensor` neighbours form a block that shards each expert, and `expert` such blocks divide a layer's experts.
//! Replicas have the same shard of the same experts, and sum its gradients. With sequence parallelism, each member of a
//! tensor group sends copies of its own tokens, and the members that shard an expert gather these copies.
//!
//! With balanced routing, a rank with `t` tokens and `c` copies per token sends `t c` copies and receives as many. Its
//! own experts process the received copies. Expert parallelism therefore divides the weights among ranks, but does not
//! change a rank's number of rows. With skewed routing, every rank is given the row count of the fullest rank
//! ([`routing`](crate::generate::plan)).

use crate::generate::plan::{
    ExpertExchangeForm, ExpertProducts, ParallelismPlan, RecomputePolicy, fullest_rank_load_ratio,
    mean_ranks_per_token,
};
use crate::generate::{PatternOptionError, refused_option_value_error};
use crate::model::{LayerOperator, Model, OperatorKind};
use std::borrow::Cow;

/// Returns `model` with only the experts of one rank.
pub(super) fn shard_experts<'m>(model: Cow<'m, Model>, plan: &ParallelismPlan) -> Cow<'m, Model> {
    if plan.expert == 1 && plan.capacity_factor.is_none() {
        return model;
    }
    let mut model = model.into_owned();
    for layer in &mut model.layers {
        let load = fullest_expert_rank_load_ratio(&layer.operators, plan);
        let among: Vec<bool> = (0..layer.operators.len())
            .map(|i| layer.is_operator_among_experts(i))
            .collect();
        for (operator, _) in layer
            .operators
            .iter_mut()
            .zip(among)
            .filter(|(_, among)| *among)
        {
            match &mut operator.work {
                OperatorKind::ExpertLinear { rows, experts, .. } => {
                    *experts = expert_count_with_redundant_copies(*experts, plan)
                        .div_ceil(plan.expert.into());
                    *rows = scale_rows(*rows, load);
                }
                OperatorKind::Activation { rows, .. } => *rows = scale_rows(*rows, load),
                _ => {}
            }
        }
    }
    Cow::Owned(model)
}

/// Number of experts in a layer with `experts` distinct experts, including redundant copies.
fn expert_count_with_redundant_copies(experts: u64, plan: &ParallelismPlan) -> u64 {
    experts.saturating_add(plan.redundant_experts.into())
}

/// Returns the number of token copies on the fullest rank, divided by the mean over ranks.
fn fullest_rank_load_ratio_of_plan(plan: &ParallelismPlan, of: [u64; 3]) -> f64 {
    fullest_rank_load_ratio(
        plan.routing,
        &plan.expert_counts,
        plan.capacity_factor,
        plan.redundant_experts.into(),
        of,
    )
}

fn scale_rows(rows: u64, factor: f64) -> u64 {
    let scaled = scale_count(rows.into(), factor);
    match factor == 1.0 {
        true => rows,
        false => u64::try_from(scaled).unwrap_or(u64::MAX).max(1),
    }
}

/// Returns `count` times `factor`, rounded to an integer. For a balanced load, keeps the exact integer, because floats
/// cannot represent every integer.
pub(super) fn scale_count(count: u128, factor: f64) -> u128 {
    match factor == 1.0 {
        true => count,
        false => (count as f64 * factor + 0.5) as u128,
    }
}

/// Returns the number of experts in a layer and the number of experts per token; `None` if the layer has no experts.
fn experts_and_experts_per_token(operators: &[LayerOperator]) -> Option<[u64; 2]> {
    operators.iter().find_map(|one| match one.work {
        OperatorKind::ExpertDispatch {
            experts, chosen, ..
        } => Some([experts, chosen]),
        _ => None,
    })
}

/// Returns true if some layer of `model` has experts.
pub(super) fn has_expert_layers(model: &Model) -> bool {
    let mut layers = model.equal_layer_runs();
    layers.any(|run| experts_and_experts_per_token(&run[0].operators).is_some())
}

/// Returns the number of expert rows on the fullest rank, divided by the mean over ranks.
fn fullest_expert_rank_load_ratio(operators: &[LayerOperator], plan: &ParallelismPlan) -> f64 {
    experts_and_experts_per_token(operators).map_or(1.0, |[experts, chosen]| {
        let of = [experts, chosen, plan.expert.into()];
        fullest_rank_load_ratio_of_plan(plan, of)
    })
}

/// Loads, as numbers of token copies divided by the number that a rank's experts would process if all loads were equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RelativeExpertExchangeLoads {
    /// Copies that the experts on the fullest rank process.
    pub experts: f64,
    /// Number of experts on a rank.
    pub local_experts: u64,
    /// Copies that a rank sends to other ranks.
    pub sent: f64,
    /// Copies that a rank sends to other nodes, which pass them on to their ranks.
    pub over_nodes: f64,
}

/// Returns the loads of `model`'s first layer with experts.
pub(super) fn expert_loads_of_first_expert_layer(
    model: &Model,
    plan: &ParallelismPlan,
) -> RelativeExpertExchangeLoads {
    let mut loads = RelativeExpertExchangeLoads {
        experts: 1.0,
        local_experts: 0,
        sent: 1.0,
        over_nodes: 0.0,
    };
    let mut layers = model.equal_layer_runs().map(|run| &run[0]);
    let dispatch = layers.find_map(|layer| {
        let mut operators = layer.operators.iter();
        operators.find_map(|one| match one.work {
            OperatorKind::ExpertDispatch {
                experts,
                chosen,
                form,
                ..
            } => Some(([experts, chosen], [form.groups, form.chosen_groups])),
            _ => None,
        })
    });
    let Some(([experts, chosen], groups)) = dispatch else {
        return loads;
    };
    let load = |ranks: u32| {
        let of = [experts, chosen, ranks.into()];
        fullest_rank_load_ratio_of_plan(plan, of)
    };
    let distinct = |ranks: u32| {
        let of = [
            expert_count_with_redundant_copies(experts, plan),
            chosen,
            ranks.into(),
        ];
        mean_ranks_per_token(of, groups) / chosen.max(1) as f64
    };
    loads.experts = load(plan.expert);
    loads.local_experts =
        expert_count_with_redundant_copies(experts, plan).div_ceil(plan.expert.into());
    loads.sent = match plan.expert_exchange {
        ExpertExchangeForm::Ranks | ExpertExchangeForm::Nodes => {
            loads.experts * distinct(plan.expert)
        }
        ExpertExchangeForm::Copies | ExpertExchangeForm::AllGather => loads.experts,
    };
    if let Some(size) = plan.expert_node {
        let nodes = plan.expert / size.max(1);
        loads.over_nodes = load(nodes) * distinct(nodes);
    }
    loads
}

/// Returns true if the host must know the number of tokens that each expert receives: to launch one kernel per expert,
/// or to size the buffers of an all-to-all. With a capacity factor, these numbers are known in advance. Fused kernels
/// read the numbers from the device's memory.
pub(super) fn needs_expert_counts_on_host(plan: &ParallelismPlan) -> bool {
    let sizes_buffers = plan.expert > 1 && plan.expert_exchange != ExpertExchangeForm::AllGather;
    plan.capacity_factor.is_none()
        && match plan.expert_products {
            ExpertProducts::OneByOne => true,
            ExpertProducts::Grouped => sizes_buffers,
            ExpertProducts::Fused => false,
        }
}

/// Rejects degrees that do not divide the experts of `model`, and options that expert parallelism
/// does not support.
pub(super) fn check_expert_degrees(
    model: &Model,
    plan: &ParallelismPlan,
) -> Result<(), PatternOptionError> {
    let operators = model.equal_layer_runs().flat_map(|run| &run[0].operators);
    let own = operators.map(|one| (one, one.work.to_axes_and_tensors().expert_weights()));
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
                "redundant_experts",
                plan.redundant_experts.to_string(),
                plan.redundant_experts > 0,
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
            return Err(refused_option_value_error(key, found, expected));
        }
        if plan.expert > 1 {
            let expected = format!("1 for {}, which has no experts", model.name);
            return Err(refused_option_value_error("expert", plan.expert, expected));
        }
        if let Some(degree) = plan.expert_tensor {
            let expected = format!("none for {}, which has no experts", model.name);
            return Err(refused_option_value_error(
                "expert_tensor",
                degree,
                expected,
            ));
        }
        return Ok(());
    }
    if plan.recompute == RecomputePolicy::Operators {
        let expected = "none, selective or full for a model with experts";
        return Err(refused_option_value_error(
            "recompute",
            plan.recompute,
            expected,
        ));
    }
    let counts = plan.expert_counts.len() as u64;
    let mut layers = model
        .equal_layer_runs()
        .filter_map(|run| experts_and_experts_per_token(&run[0].operators));
    if let Some([experts, _]) = layers.find(|[experts, _]| counts > 0 && counts != *experts) {
        let expected = format!(
            "one number of tokens for each of the {experts} experts of {}",
            model.name
        );
        return Err(refused_option_value_error(
            "expert_counts",
            format!("{counts} counts"),
            expected,
        ));
    }
    let tokens = model.sequence / u64::from(plan.context.max(1));
    if plan.tensor_groups_split_experts_or_their_tokens()
        && !tokens.is_multiple_of(plan.tensor.into())
    {
        let expected = format!(
            "tensor: the {tokens} tokens of a rank's sequences are no multiple of tensor = {}",
            plan.tensor
        );
        return Err(refused_option_value_error(
            "expert_tensor",
            plan.tensor_degree_of_experts(),
            expected,
        ));
    }
    let is_even = |experts: u64| {
        expert_count_with_redundant_copies(experts, plan).is_multiple_of(plan.expert.into())
    };
    match own.find(|(_, experts)| !is_even(*experts)) {
        Some((operator, experts)) => {
            let redundant = match plan.redundant_experts {
                0 => String::new(),
                copies => format!(" and {copies} redundant experts"),
            };
            let expected = format!(
                "a divisor of the {experts} experts of {}{redundant}",
                operator.name
            );
            Err(refused_option_value_error("expert", plan.expert, expected))
        }
        None => Ok(()),
    }
}
