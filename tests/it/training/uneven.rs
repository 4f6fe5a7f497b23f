//! Tests stages with different tensor degrees, joined by adapters (PALM, Eq. 7 and 8).

use super::time::{F, IDEAL, SIDE};
use super::{RankNodeSums, build_pattern_of_model_and_plan, replay_training_job};
use chakram::generate::{AdapterSums, Optimizer, ParallelismPlan, PipelineSchedule};
use chakram::machine::Machine;
use chakram::model::{
    LayerOperator, LayerRole, Model, ModelLayer, OperatorKind, OperatorTensorParallelSplit,
};

/// Returns a model of two blocks, each with a product split by outputs and a product split by inputs, whose partial
/// results of 1000 numbers are reduced.
fn build_tensor_parallel_model() -> Model {
    let product = |name: &str, cut: OperatorTensorParallelSplit| {
        let work = OperatorKind::Linear {
            rows: 1,
            inputs: SIDE,
            outputs: SIDE,
            bias: false,
            tied: false,
        };
        LayerOperator::new(name, work, cut)
    };
    let block = |i: usize| {
        let halves = vec![
            product("up", OperatorTensorParallelSplit::ColumnParallel),
            product("down", OperatorTensorParallelSplit::RowParallel),
        ];
        ModelLayer::new(format!("layer{i}"), LayerRole::Block, halves)
    };
    Model {
        name: "halves".to_owned(),
        source: String::new(),
        sequence: 1,
        layers: (0..2).map(block).collect(),
    }
}

fn make_plan_of_unlike_stage_tensor_degrees(
    stages: [u32; 2],
    adapters: u32,
    sums: AdapterSums,
) -> ParallelismPlan {
    let mut plan = ParallelismPlan::new();
    (plan.pipeline, plan.tensor) = (2, stages[0].max(stages[1]));
    plan.stage_tensor = stages.to_vec();
    (plan.adapters, plan.adapter_sums) = (Some(adapters), sums);
    plan.optimizer = Optimizer::None;
    plan
}

/// The test runs inference for one sample. A stage of t members takes 2 F / t, its ring all-reduce of S = 2000 B takes
/// 2 (t - 1) / t S, and a transfer to the next stage takes S, concurrently from each adapter. A broadcast to shares of
/// two takes another S. If the destination reduces, the source's shares of two members reduce in S, which replaces the
/// whole group's all-reduce, and then the receiving adapters all-reduce.
#[test]
fn a_handover_between_unlike_stages_takes_its_phases() {
    const S: u64 = 2000 * 1000;
    // A FLOP takes a picosecond, and a byte takes a nanosecond over an NPU's single link.
    let wire = "size = 4\nbandwidth = \"1000000 GB/s\"";
    assert!(IDEAL.contains(wire));
    let machine = IDEAL.replace(wire, "size = 16\nbandwidth = \"1 GB/s\"");
    let machine = Machine::parse(&machine, "wires").unwrap();
    let took = |stages, adapters, sums| {
        let mut plan = make_plan_of_unlike_stage_tensor_degrees(stages, adapters, sums);
        plan.schedule = PipelineSchedule::Inference;
        replay_training_job(
            &build_pattern_of_model_and_plan(&build_tensor_parallel_model(), &plan).unwrap(),
            &machine,
        )
        .makespan
        .0
    };
    let products = |members: u64| 2 * F / members;
    let sum = |members: u64| 2 * (members - 1) * S / members;
    let source = AdapterSums::Source;
    let stage = |members: u64| products(members) + sum(members);
    assert_eq!(took([4, 2], 2, source), stage(4) + S + stage(2));
    assert_eq!(took([4, 2], 1, source), stage(4) + S + S + stage(2));
    assert_eq!(took([2, 4], 2, source), stage(2) + S + S + stage(4));
    assert_eq!(took([8, 2], 2, source), stage(8) + S + stage(2));
    let destination = AdapterSums::Destination;
    // Shares of two members reduce, and adapters send and all-reduce.
    let (reduce, among_two) = (S, sum(2));
    assert_eq!(
        took([4, 2], 2, destination),
        products(4) + reduce + S + among_two + stage(2)
    );
    // Each member of the source is a share of its own and sends its part, and adapters broadcast their result.
    assert_eq!(
        took([2, 4], 2, destination),
        products(2) + S + among_two + S + stage(4)
    );
}

/// Ranks are numbered along tensor groups, then replicas of a stage, then stages. With two replicas
/// in stages of four and of two, ranks 0 to 7 are in the first stage, and ranks 8 to 11 in the
/// second.
#[test]
fn ranks_of_uneven_stages_are_numbered_stage_by_stage() {
    let mut plan = make_plan_of_unlike_stage_tensor_degrees([4, 2], 2, AdapterSums::Source);
    (plan.data, plan.batch) = (2, 2);
    let groups = build_pattern_of_model_and_plan(&build_tensor_parallel_model(), &plan)
        .unwrap()
        .declared_groups();
    let found: Vec<&[u32]> = groups.values().map(|ranks| &ranks[..]).collect();
    let tensor: [&[u32]; 4] = [&[0, 1, 2, 3], &[4, 5, 6, 7], &[8, 9], &[10, 11]];
    let data: [&[u32]; 6] = [&[0, 4], &[1, 5], &[2, 6], &[3, 7], &[8, 10], &[9, 11]];
    for group in tensor.iter().chain(&data) {
        assert!(found.contains(group), "{group:?} of {found:?}");
    }
}

/// For all tensor degrees of the stages, a training step has the model's FLOPs, and each message is received as it was
/// sent. The number of transfers in each direction is adapters x replicas x micro-batches.
#[test]
fn unlike_stages_have_the_flops_of_the_model_and_matching_messages() {
    for (stages, adapters) in [([4, 2], 2), ([2, 4], 2), ([8, 2], 1), ([1, 4], 1)] {
        for sums in [AdapterSums::Source, AdapterSums::Destination] {
            let mut plan = make_plan_of_unlike_stage_tensor_degrees(stages, adapters, sums);
            (plan.data, plan.batch) = (2, 6);
            let job =
                build_pattern_of_model_and_plan(&build_tensor_parallel_model(), &plan).unwrap();
            assert_eq!(job.rank_count(), 2 * (stages[0] + stages[1]));
            let mut flops = 0;
            let mut messages = std::collections::BTreeMap::new();
            for rank in 0..job.rank_count() {
                let own = RankNodeSums::sum_nodes_of_rank(&job, rank);
                flops += own.flops;
                for (key, [sent, received]) in own.messages {
                    let entry: &mut [Vec<u64>; 2] = messages.entry(key).or_default();
                    entry[0].extend(sent);
                    entry[1].extend(received);
                }
            }
            // Each of six samples has four products in the forward pass and twice as many in the backward pass, except
            // that the first product's input needs no gradient.
            assert_eq!(flops, 6 * (4 + 8 - 1) * u128::from(F), "{stages:?}");
            let handovers = 2 * 2 * 3 * adapters as usize;
            assert_eq!(messages.len(), handovers, "{stages:?}");
            for [sent, received] in messages.values() {
                assert_eq!((sent, sent), (received, &vec![2000]), "{stages:?}");
            }
        }
    }
}

/// Stages that adapters cannot join, and options that need equal groups, are errors.
#[test]
fn uneven_stages_with_unsupported_options_are_refused() {
    let refused = |change: &dyn Fn(&mut ParallelismPlan), says: &str| {
        let mut plan = make_plan_of_unlike_stage_tensor_degrees([4, 2], 2, AdapterSums::Source);
        change(&mut plan);
        let error = build_pattern_of_model_and_plan(&build_tensor_parallel_model(), &plan)
            .map(drop)
            .unwrap_err();
        assert!(error.contains(says), "{error}");
    };
    refused(&|plan| plan.adapters = None, "adapters beside");
    refused(&|plan| plan.adapters = Some(4), "of that of each stage");
    refused(&|plan| plan.stage_tensor = vec![4], "one for each stage");
    refused(&|plan| plan.stage_tensor = vec![4, 0], "1 or more");
    refused(&|plan| plan.tensor = 8, "the largest of the stages'");
    refused(&|plan| plan.scatter_gather = true, "scatter_gather");
    refused(&|plan| plan.ranks = (0..6).collect(), "ranks");
    refused(&|plan| plan.stage_tensor = vec![4, 3], "divisor");
}
