//! Tests conservation laws for models with experts under plans that use every axis (tensor, expert, expert-tensor,
//! context, pipeline and data) and sharded state.

use super::super::{RankNodeSums, build_experts_model};
use super::{
    build_pattern_of_model_and_plan, check_all_sent_is_received_and_freed,
    check_traces_are_sound_and_replay_ends, format_refusals, operator_flops_computed_once,
};
use crate::corpus::{is_whole_corpus_requested, sample_every_nth};
use chakram::generate::{
    ContextExchange, ParallelismPlan, PipelineSchedule, RecomputePolicy, ZeroStage,
};
use chakram::machine::Machine;
use chakram::model::{LayerOperator, Model, OperatorKind, OperatorTensorParallelSplit};
use chakram::trace::TensorClass;
use std::collections::BTreeMap;

/// The tokens of a sequence; the next constants are the columns of a token, the number of experts, and the experts that
/// each token chooses.
const T: u64 = 8;
const H: u64 = 128;
const E: u64 = 8;
const K: u64 = 2;

fn list_expert_plans() -> Vec<ParallelismPlan> {
    let mut plans = Vec::new();
    let pipelines = [
        (1, PipelineSchedule::OneForwardOneBackward),
        (2, PipelineSchedule::OneForwardOneBackward),
        (2, PipelineSchedule::DualPipe),
    ];
    for (tensor, expert_tensor) in [(1, 1), (2, 1), (2, 2), (4, 2)] {
        for (context, exchange) in [
            (1, ContextExchange::AllGather),
            (2, ContextExchange::AllGather),
            (2, ContextExchange::AllToAll),
            (2, ContextExchange::Ring),
        ] {
            for (pipeline, schedule) in &pipelines {
                for data in [1, 2] {
                    for expert in [1, 2, 4] {
                        for (zero, _) in ZeroStage::ALL {
                            let mut plan = ParallelismPlan::new();
                            (plan.tensor, plan.expert_tensor) = (tensor, Some(expert_tensor));
                            plan.sequence_parallel = tensor > 1;
                            (plan.context, plan.context_exchange) = (context, exchange);
                            (plan.pipeline, plan.schedule) = (*pipeline, schedule.clone());
                            (plan.data, plan.batch) = (data, 4 * u64::from(data));
                            (plan.expert, plan.zero) = (expert, *zero);
                            plan.bucket = 3000;
                            if expert == 4 {
                                plan.recompute = RecomputePolicy::Full;
                            }
                            plans.push(plan);
                        }
                    }
                }
            }
        }
    }
    plans
}

/// Returns the FLOPs of all ranks: with sequence parallelism, every operator is computed once.
fn expected_flops_of_all_ranks(model: &Model, plan: &ParallelismPlan) -> u128 {
    let mut sum = 0;
    for layer in &model.layers {
        for operator in &layer.operators {
            sum += operator_flops_computed_once(plan, layer.role, operator, false);
        }
    }
    sum
}

fn is_expert_operator(operator: &LayerOperator) -> bool {
    matches!(operator.work, OperatorKind::ExpertLinear { .. })
}

/// The number of an operator's weights.
#[derive(Clone, Copy)]
struct OperatorWeightsAndReplicas {
    weights: u64,
    /// The number of ranks with the same shard; they sum its gradients and, with ZeRO, share its state.
    replicas: u64,
    /// The number of members of a tensor group that have the whole operator, which is a norm or a router.
    members: u64,
}

/// Returns the weights of all operators.
fn list_operator_weights(model: &Model, plan: &ParallelismPlan) -> Vec<OperatorWeightsAndReplicas> {
    let ends = match plan.schedule {
        PipelineSchedule::DualPipe => 2,
        _ => 1,
    };
    let [tensor, expert_tensor, expert] =
        [plan.tensor, plan.expert_tensor.unwrap(), plan.expert].map(u64::from);
    let replicas = u64::from(plan.data * plan.context) * ends;
    let operators = model.layers.iter().flat_map(|layer| &layer.operators);
    let of = |operator: &LayerOperator| {
        let is_cut = matches!(
            operator.cut,
            OperatorTensorParallelSplit::ColumnParallel | OperatorTensorParallelSplit::RowParallel
        );
        let (replicas, members) = match (is_expert_operator(operator), is_cut) {
            (true, _) => (replicas * tensor / (expert * expert_tensor), 1),
            (false, true) => (replicas, 1),
            (false, false) => (replicas, tensor),
        };
        OperatorWeightsAndReplicas {
            weights: operator.work.parameter_count(),
            replicas,
            members,
        }
    };
    operators.map(of).collect()
}

/// Returns the sums over all ranks after checking FLOPs, exchanged bytes and state.
fn check_flops_exchanged_bytes_and_state(
    model: &Model,
    plan: &ParallelismPlan,
) -> Result<Vec<RankNodeSums>, String> {
    let job = build_pattern_of_model_and_plan(model, plan)?;
    let about = format!("{plan:?}");
    let ranks: Vec<RankNodeSums> = (0..job.rank_count())
        .map(|rank| RankNodeSums::sum_nodes_of_rank(&job, rank))
        .collect();
    let all: u128 = ranks.iter().map(|sums| sums.flops).sum();
    assert_eq!(all, expected_flops_of_all_ranks(model, plan), "{about}");

    // Every token is sent to K experts and back, forward and backward, and twice forward with
    // recomputation.
    let of_experts = |sums: &RankNodeSums| -> u64 {
        let exchanges = sums.collectives.iter();
        let exchanges = exchanges.filter(|(name, ..)| {
            name.contains("experts.dispatch.all") || name.contains("experts.combine.all")
        });
        exchanges.map(|(.., bytes)| bytes).sum()
    };
    let times = match (plan.expert, plan.recompute) {
        (1, _) => 0,
        (_, RecomputePolicy::Full) => 6,
        _ => 4,
    };
    let blocks = 4;
    assert_eq!(
        ranks.iter().map(of_experts).sum::<u64>(),
        plan.batch * T * K * H * 2 * blocks * times,
        "{about}"
    );

    // Each rank has weights of 2 B and Adam's 12 B. They are either whole or split into one part for each rank with the
    // same weights. The smallest part of a rank's weights is rounded up.
    let [parts, states]: [u64; 2] = [ZeroStage::Parameters, ZeroStage::Optimizer].map(|from| {
        let each = list_operator_weights(model, plan).into_iter();
        let each = each.map(|of| {
            let copies = if plan.zero >= from { 1 } else { of.replicas };
            of.weights * of.members * copies
        });
        each.sum()
    });
    let rounding = 24 * u64::from(job.rank_count());
    for (class, expected) in [
        (TensorClass::Weights, 2 * parts),
        (TensorClass::Optimizer, 12 * states),
    ] {
        let found: u64 = ranks.iter().map(|sums| sums.used[class as usize]).sum();
        let more = found.checked_sub(expected);
        assert!(
            more.is_some_and(|more| more <= rounding),
            "{about}: {found} B, expected {expected} B of {class:?}"
        );
    }

    // Every weight's gradient of 2 B is summed over the ranks that have the weight, either once or after each of four
    // micro-batches.
    let reduced = |sums: &RankNodeSums| -> u64 {
        let own = sums.collectives.iter();
        let own = own.filter(|(name, ..)| name.contains("/gradients/"));
        own.map(|(.., bytes)| bytes).sum()
    };
    let passes = match plan.zero {
        ZeroStage::Gradients | ZeroStage::Parameters => 4,
        _ => 1,
    };
    let each = list_operator_weights(model, plan).into_iter();
    let each = each.filter(|of| of.replicas > 1);
    let expected: u64 = each.map(|of| of.weights * of.members * of.replicas).sum();
    // With DualPipe, each of two copies handles half of the micro-batches.
    let passes = match plan.schedule {
        PipelineSchedule::DualPipe => passes / 2 + passes % 2,
        _ => passes,
    };
    assert_eq!(
        ranks.iter().map(reduced).sum::<u64>(),
        2 * expected * passes,
        "{about}"
    );
    check_all_sent_is_received_and_freed(&ranks, &about);
    Ok(ranks)
}

#[test]
fn experts_do_the_same_work_under_plans_with_every_axis() {
    let model = build_experts_model(T, E, K);
    let machine = Machine::load_preset("dgx-a100x2").unwrap();
    let mut refused: BTreeMap<String, usize> = BTreeMap::new();
    let mut done = 0;
    // By default one in 19 plans, in which every axis takes each of its values, and of these one in ten is replayed.
    for plan in sample_every_nth(19, list_expert_plans()) {
        match check_flops_exchanged_bytes_and_state(&model, &plan) {
            Ok(_) => {
                done += 1;
                if done % 10 == 0 && plan.rank_count() <= 16 {
                    check_traces_are_sound_and_replay_ends(
                        &build_pattern_of_model_and_plan(&model, &plan).unwrap(),
                        &machine,
                        &format!("{plan:?}"),
                    );
                }
            }
            Err(why) => *refused.entry(why).or_default() += 1,
        }
    }
    let expected = if is_whole_corpus_requested() {
        DONE
    } else {
        DONE / 22
    };
    assert!(
        done >= expected,
        "{done} done\n{}",
        format_refusals(&refused)
    );
    let known = [
        "`context` is 2; expected a number that times tensor",
        "`expert` is",
        "`expert_tensor` is",
        "`zero` is",
    ];
    for why in refused.keys() {
        assert!(known.iter().any(|known| why.starts_with(known)), "{why}");
    }
}

/// The number of accepted plans.
const DONE: usize = 688;
