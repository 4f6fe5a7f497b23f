//! Tests conservation laws for any model, parallelism, schedule, sharding and recomputation.

use super::{
    GPT, RankNodeSums, build_bert_model, build_gpt_model, build_llama_model,
    build_pattern_of_model_and_plan, replay_training_job,
};
use crate::corpus::is_whole_corpus_requested;
use chakram::generate::{
    AttentionKernel, BucketPolicy, CheckedWorkloadPattern, ContextExchange, ParallelismPlan,
    PipelineSchedule, RecomputePolicy, ZeroStage,
};
use chakram::machine::Machine;
use chakram::model::{LayerOperator, LayerRole, Model, OperatorKind, OperatorTensorParallelSplit};
use chakram::trace::TraceWriter;
use chakram::validate::{
    TraceDefectsAndDigest, ValidateOptions, ValidatedTraceFile, ValidationReport,
};
use chakram::workload::EnforcedDependencyKinds;
use std::collections::BTreeMap;

mod degrees;
mod experts;

const SCHEDULES: [PipelineSchedule; 5] = [
    PipelineSchedule::GPipe,
    PipelineSchedule::OneForwardOneBackward,
    PipelineSchedule::Interleaved { chunks: 2 },
    PipelineSchedule::LayerWise { layers: 1 },
    PipelineSchedule::Inference,
];

/// Returns the FLOPs of an operator under `plan`, computed from the model's multiplications alone. Counts each part on
/// one member of a tensor group.
fn operator_flops_computed_once(
    plan: &ParallelismPlan,
    role: LayerRole,
    operator: &LayerOperator,
    first: bool,
) -> u128 {
    let trains = plan.schedule != PipelineSchedule::Inference;
    let fused = plan.attention == AttentionKernel::Flash;
    let attention = matches!(operator.work, OperatorKind::Attention { .. });
    let mut once = u128::from(operator.work.multiplication_count());
    if fused {
        once -= u128::from(operator.work.causally_skipped_multiplications());
    }
    let product = matches!(
        operator.work,
        OperatorKind::Linear { .. } | OperatorKind::Convolution { .. }
    );
    // The units are half a forward pass. They count the forward pass; the backward pass, which is both gradients, or
    // the scores again and four products of attention, or only the weights' gradient; and recomputation.
    let backward = match (first && product, attention && fused) {
        (true, _) => 2,
        (false, true) => 5,
        (false, false) => 4,
    };
    let again = match plan.recompute {
        RecomputePolicy::Full => role == LayerRole::Block,
        RecomputePolicy::Selective => attention,
        _ => false,
    };
    let halves = match trains {
        true => 2 + backward + if again { 2 } else { 0 },
        false => 2,
    };
    once * halves * u128::from(plan.batch)
}

/// Returns `true` if an operator can be split. In a model without stated splits each product is
/// split by its outputs or its inputs, if either is divisible.
fn can_split_operator_by_tensor_degree(operator: &LayerOperator, plan: &ParallelismPlan) -> bool {
    match operator.work {
        OperatorKind::Linear {
            inputs, outputs, ..
        }
        | OperatorKind::Convolution {
            inputs, outputs, ..
        } => {
            let mut sizes = [inputs, outputs].into_iter();
            sizes.any(|size| size.is_multiple_of(plan.tensor.into()))
        }
        _ => false,
    }
}

/// Returns the FLOPs of all ranks.
fn expected_flops_of_all_ranks(model: &Model, plan: &ParallelismPlan) -> u128 {
    let mut sum = 0;
    let mut all = model.layers.iter().flat_map(|layer| &layer.operators);
    let derived = all.all(|operator| operator.cut == OperatorTensorParallelSplit::Replicated);
    for (i, layer) in model.layers.iter().enumerate() {
        for (k, operator) in layer.operators.iter().enumerate() {
            let once = operator_flops_computed_once(plan, layer.role, operator, i == 0 && k == 0);
            // Operators that are not split run on all members, or on each member for its tokens.
            let rows = match operator.work {
                OperatorKind::Linear { rows, .. } => rows,
                _ => 1,
            };
            let shared = plan.sequence_parallel && rows % u64::from(plan.tensor) == 0;
            let times = match (operator.cut, shared) {
                (OperatorTensorParallelSplit::Replicated, false)
                    if derived && can_split_operator_by_tensor_degree(operator, plan) =>
                {
                    1
                }
                (OperatorTensorParallelSplit::Replicated, false) => u128::from(plan.tensor),
                _ => 1,
            };
            sum += once * times;
        }
    }
    sum
}

/// Checks one plan, and returns the error if the plan is rejected.
fn check_plan_conserves_work(
    model: &Model,
    plan: &ParallelismPlan,
    machine: &Machine,
) -> Result<(), String> {
    let job = build_pattern_of_model_and_plan(model, plan)?;
    let about = format!("{}: {plan:?}", model.name);
    let ranks: Vec<RankNodeSums> = (0..job.rank_count())
        .map(|rank| RankNodeSums::sum_nodes_of_rank(&job, rank))
        .collect();
    let all: u128 = ranks.iter().map(|sums| sums.flops).sum();
    assert_eq!(all, expected_flops_of_all_ranks(model, plan), "{about}");
    check_all_sent_is_received_and_freed(&ranks, &about);
    check_traces_are_sound_and_replay_ends(&job, machine, &about);
    Ok(())
}

/// Checks that everything sent is received once, and everything allocated is freed.
fn check_all_sent_is_received_and_freed(ranks: &[RankNodeSums], about: &str) {
    let mut messages: BTreeMap<(u32, u32, i32), [Vec<u64>; 2]> = BTreeMap::new();
    for sums in ranks {
        for (key, ends) in &sums.messages {
            let both = messages.entry(*key).or_default();
            for (to, from) in both.iter_mut().zip(ends) {
                to.extend(from);
            }
        }
        // Activations and temporary memory are freed, and weights stay.
        assert_eq!(sums.used[3..], [0, 0], "{about}, rank {}", sums.rank);
    }
    for (key, [sent, received]) in &messages {
        assert_eq!((sent.len(), sent), (1, received), "{about}: {key:?}");
    }
}

/// Checks that written traces are sound, and that their replay ends.
fn check_traces_are_sound_and_replay_ends(
    job: &CheckedWorkloadPattern,
    machine: &Machine,
    about: &str,
) {
    let mut traces = Vec::new();
    let mut nodes = 0;
    for rank in 0..job.rank_count() {
        let mut writer = TraceWriter::new(Vec::new()).unwrap();
        job.emit_nodes(rank, &mut writer).unwrap();
        let trace = TraceDefectsAndDigest::check_trace(
            &writer.into_unflushed_sink(),
            EnforcedDependencyKinds::Both,
            3,
        );
        nodes += job.node_count(rank);
        traces.push((rank, trace));
    }
    let sources = traces.iter().map(|(rank, trace)| ValidatedTraceFile {
        rank: *rank,
        file: String::new(),
        trace,
    });
    let options = ValidateOptions::default_options_changed_by(|o| {
        o.declared = job.declared_groups();
        o.ranks = Some(job.rank_count());
        o.show = 3;
    });
    let report = ValidationReport::new(sources.collect(), &options, true);
    assert!(
        report.has_no_errors_or_strict_warnings(),
        "{about}: {:?}",
        report.findings
    );
    assert_eq!(replay_training_job(job, machine).nodes, nodes, "{about}");
}

fn list_grid_plans() -> Vec<ParallelismPlan> {
    let mut plans = Vec::new();
    for schedule in SCHEDULES {
        for (data, tensor, pipeline) in [
            (1, 1, 1),
            (2, 1, 1),
            (1, 2, 1),
            (1, 1, 2),
            (2, 2, 1),
            (2, 1, 2),
            (1, 4, 2),
            (2, 2, 2),
        ] {
            for zero in ZeroStage::ALL {
                for recompute in [
                    RecomputePolicy::None,
                    RecomputePolicy::Selective,
                    RecomputePolicy::Full,
                ] {
                    for sequence_parallel in [false, true] {
                        let mut plan = ParallelismPlan::new();
                        plan.schedule = schedule.clone();
                        (plan.data, plan.tensor, plan.pipeline) = (data, tensor, pipeline);
                        plan.zero = zero.0;
                        plan.recompute = recompute;
                        plan.sequence_parallel = sequence_parallel;
                        plan.batch = 4 * u64::from(data);
                        // The plan has several buckets, and one micro-batch of two samples.
                        plan.bucket = 3000;
                        if recompute == RecomputePolicy::Selective {
                            plan.attention = AttentionKernel::Unfused;
                        }
                        plans.push(plan);
                    }
                }
            }
        }
    }
    plans
}

/// Two ranks that share the tokens of each sequence do the same work as one rank, with either exchange. The Llama
/// model's two key-value heads cannot also be split over a tensor group.
#[test]
fn ranks_that_share_a_sequence_do_the_work_of_one_rank() {
    let few = list_grid_plans()
        .into_iter()
        .filter(|plan| match plan.schedule {
            PipelineSchedule::OneForwardOneBackward => {
                let sharded = matches!(plan.zero, ZeroStage::None | ZeroStage::Parameters);
                sharded && plan.recompute != RecomputePolicy::Selective
            }
            PipelineSchedule::Inference => {
                plan.zero == ZeroStage::None && plan.recompute == RecomputePolicy::None
            }
            _ => false,
        });
    let few: Vec<ParallelismPlan> = few.collect();
    for (model, kv_heads) in [(build_gpt_model(), 4), (build_llama_model(), 2)] {
        for (context_exchange, _) in ContextExchange::ALL {
            let shared = few.iter().map(|plan| ParallelismPlan {
                context: 2,
                context_exchange: *context_exchange,
                ..plan.clone()
            });
            let shared: Vec<ParallelismPlan> = shared.collect();
            let heads = |plan: &&ParallelismPlan| kv_heads % (2 * plan.tensor) != 0;
            let undivided = shared.iter().filter(heads).count();
            let (done, refused) = check_plans_and_count_refusals(&model, &shared);
            let of_context = refused.iter().filter(|(why, _)| why.contains("`context`"));
            let of_context: usize = of_context.map(|(_, count)| count).sum();
            println!(
                "{}, {context_exchange}: {done} done\n{}",
                model.name,
                format_refusals(&refused)
            );
            assert!(done > 10, "{done}");
            match context_exchange {
                ContextExchange::AllGather | ContextExchange::Ring => assert_eq!(of_context, 0),
                ContextExchange::AllToAll => assert!((1..=undivided).contains(&of_context)),
            }
            let mut reasons = refused.keys();
            assert!(reasons.all(|why| !why.contains("no replicas")));
        }
    }
}

/// Split and delayed backward passes, schedules that start from both ends, and overlapped passes do the same work as
/// other plans.
#[test]
fn split_backward_passes_do_the_same_work() {
    let split = [
        (PipelineSchedule::OneForwardOneBackward, true),
        (PipelineSchedule::Interleaved { chunks: 2 }, true),
        (PipelineSchedule::ZeroBubbleH1, false),
        (PipelineSchedule::ZeroBubbleV, false),
        (PipelineSchedule::DualPipe, false),
        (PipelineSchedule::DualPipeV, false),
    ];
    for model in [build_gpt_model(), build_llama_model()] {
        let mut all = Vec::new();
        for (schedule, split_backward) in &split {
            for (data, tensor) in [(1, 1), (2, 1), (2, 2)] {
                for (zero, _) in ZeroStage::ALL {
                    for (recompute, overlap) in [
                        (RecomputePolicy::None, true),
                        (RecomputePolicy::Selective, false),
                        (RecomputePolicy::Full, true),
                    ] {
                        let mut plan = ParallelismPlan::new();
                        (plan.schedule, plan.split_backward) = (schedule.clone(), *split_backward);
                        (plan.data, plan.tensor, plan.pipeline) = (data, tensor, 2);
                        (plan.zero, plan.recompute, plan.overlap) = (*zero, recompute, overlap);
                        plan.sequence_parallel = tensor > 1 && overlap;
                        (plan.batch, plan.bucket) = (4 * u64::from(data), 3000);
                        if recompute == RecomputePolicy::Selective {
                            plan.attention = AttentionKernel::Unfused;
                        }
                        all.push(plan);
                    }
                }
            }
        }
        let (done, refused) = check_plans_and_count_refusals(&model, &all);
        println!("{}: {done} done\n{}", model.name, format_refusals(&refused));
        // Without replicas ZeRO is possible only with DualPipe, which has two copies; ZeRO 3 is
        // never possible.
        let expected = 5 * (3 + 2 * 12) + 3 * 9;
        assert_eq!(done, expected, "{}", format_refusals(&refused));
    }
}

/// Buckets of parameters contain the same gradients as buckets of layers, for every sharding and schedule.
#[test]
fn parameter_buckets_hold_the_same_gradients_as_layer_buckets() {
    let machine = Machine::load_preset("dgx-a100x2").unwrap();
    let reduced = |plan: &ParallelismPlan| {
        check_plan_conserves_work(&build_gpt_model(), plan, &machine).unwrap();
        let job = build_pattern_of_model_and_plan(&build_gpt_model(), plan).unwrap();
        let of_rank = |rank| {
            let (mut count, mut bytes) = (0, 0);
            for (name, _, size) in RankNodeSums::sum_nodes_of_rank(&job, rank).collectives {
                if name.contains("/gradients/") {
                    (count, bytes) = (count + 1, bytes + size);
                }
            }
            (count, bytes)
        };
        (0..job.rank_count())
            .map(of_rank)
            .collect::<Vec<(usize, u64)>>()
    };
    for schedule in [&SCHEDULES[1], &SCHEDULES[2]] {
        for zero in ZeroStage::ALL {
            for (overlap, tensor) in [(true, 1), (false, 1), (true, 2)] {
                let mut plan = ParallelismPlan::new();
                (plan.data, plan.tensor, plan.pipeline) = (2, tensor, 2);
                (plan.zero, plan.overlap, plan.schedule) = (zero.0, overlap, schedule.clone());
                plan.batch = 8;
                plan.bucket = 600;
                let layers = reduced(&plan);
                plan.buckets = BucketPolicy::Parameters;
                plan.first_bucket = Some(100);
                let parameters = reduced(&plan);
                for ((few, whole), (many, sum)) in layers.into_iter().zip(parameters) {
                    assert!(few < many, "{plan:?}");
                    assert_eq!(sum, whole, "{plan:?}");
                }
            }
        }
    }
}

/// Checks `plans`, by default one in five, and counts why plans are rejected.
fn check_plans_and_count_refusals(
    model: &Model,
    plans: &[ParallelismPlan],
) -> (usize, BTreeMap<String, usize>) {
    let machine = Machine::load_preset("dgx-a100x2").unwrap();
    let mut refused = BTreeMap::new();
    let mut done = 0;
    for plan in plans {
        let found = match is_whole_corpus_requested() || done % 5 == 0 {
            true => check_plan_conserves_work(model, plan, &machine),
            false => build_pattern_of_model_and_plan(model, plan).map(drop),
        };
        match found {
            Ok(()) => done += 1,
            Err(why) => *refused.entry(why).or_default() += 1,
        }
    }
    (done, refused)
}

fn format_refusals(refused: &BTreeMap<String, usize>) -> String {
    let lines = refused
        .iter()
        .map(|(why, count)| format!("{count} x {why}\n"));
    lines.collect()
}

#[test]
fn a_gpt_does_the_same_work_under_every_plan() {
    let (done, refused) = check_plans_and_count_refusals(&build_gpt_model(), &list_grid_plans());
    assert_eq!(
        (done, format_refusals(&refused).trim()),
        (DONE, REFUSED.trim())
    );
}

/// The number of accepted plans out of 960: 5 schedules x 8 parallelisms x 4 levels of ZeRO x 3 recomputation modes,
/// with and without sequence parallelism.
const DONE: usize = 333;
const REFUSED: &str = "
45 x `pipeline` is 2; expected 1 with schedule = layer-wise, which has every layer on all ranks
18 x `recompute` is full; expected none with schedule = inference, which saves no activations
18 x `recompute` is selective; expected none with schedule = inference, which saves no activations
240 x `sequence_parallel` is true; expected false with tensor = 1: it shards tokens over a tensor group
18 x `zero` is 1; expected 0 or 3 with schedule = inference, which has neither gradients nor optimizer
90 x `zero` is 1; expected 0 with data = 1: there are no replicas to shard over
18 x `zero` is 2; expected 0 or 3 with schedule = inference, which has neither gradients nor optimizer
90 x `zero` is 2; expected 0 with data = 1: there are no replicas to shard over
90 x `zero` is 3; expected 0 with data = 1: there are no replicas to shard over
";

#[test]
fn llama_and_bert_do_the_same_work_under_every_plan() {
    let all = list_grid_plans();
    let some: Vec<ParallelismPlan> = all
        .into_iter()
        .filter(|plan| {
            let schedule = matches!(
                plan.schedule,
                PipelineSchedule::GPipe | PipelineSchedule::OneForwardOneBackward
            );
            schedule && matches!(plan.zero, ZeroStage::None | ZeroStage::Parameters)
        })
        .collect();
    let mut told = String::new();
    for model in [build_llama_model(), build_bert_model()] {
        let (done, refused) = check_plans_and_count_refusals(&model, &some);
        told += &format!("{}: {done} done\n{}", model.name, format_refusals(&refused));
    }
    let few: Vec<ParallelismPlan> = some
        .into_iter()
        .filter(|plan| plan.recompute != RecomputePolicy::Selective && plan.zero == ZeroStage::None)
        .collect();
    for name in ["vgg-11", "resnet-18", "dlrm", "vit-b-16"] {
        let (done, refused) =
            check_plans_and_count_refusals(&Model::load_named(name).unwrap(), &few);
        told += &format!("{name}: {done} done\n{}", format_refusals(&refused));
    }
    assert_eq!(told.trim(), OTHERS.trim());
}

const OTHERS: &str = "
llama: 96 done
48 x `sequence_parallel` is true; expected false with tensor = 1: it shards tokens over a tensor group
12 x `tensor` is 4; expected a divisor of the 2 heads of keys and values of attention.core; or pad_heads = true
36 x `zero` is 3; expected 0 with data = 1: there are no replicas to shard over
bert: 108 done
48 x `sequence_parallel` is true; expected false with tensor = 1: it shards tokens over a tensor group
36 x `zero` is 3; expected 0 with data = 1: there are no replicas to shard over
vgg-11: 32 done
16 x `sequence_parallel` is true; expected false with tensor = 1: it shards tokens over a tensor group
12 x `sequence_parallel` is true; expected false: the 1 tokens of a sample are no multiple of tensor = 2
4 x `sequence_parallel` is true; expected false: the 1 tokens of a sample are no multiple of tensor = 4
resnet-18: 32 done
16 x `sequence_parallel` is true; expected false with tensor = 1: it shards tokens over a tensor group
12 x `sequence_parallel` is true; expected false: the 1 tokens of a sample are no multiple of tensor = 2
4 x `sequence_parallel` is true; expected false: the 1 tokens of a sample are no multiple of tensor = 4
dlrm: 16 done
24 x `pipeline` is 2; expected a divisor of the 3 blocks of dlrm; or split = multiplications; or `[[stage]]` with the layers of each stage, which are 5, of which 0 is before and 4 is after the 3 blocks
16 x `sequence_parallel` is true; expected false with tensor = 1: it shards tokens over a tensor group
8 x `sequence_parallel` is true; expected false: the 1 tokens of a sample are no multiple of tensor = 2
vit-b-16: 32 done
16 x `sequence_parallel` is true; expected false with tensor = 1: it shards tokens over a tensor group
12 x `sequence_parallel` is true; expected false: the 197 tokens of a sample are no multiple of tensor = 2
4 x `sequence_parallel` is true; expected false: the 197 tokens of a sample are no multiple of tensor = 4
";
