//! Checks step times against formulas.

use super::{
    GPT, build_pattern_of_model_and_plan, build_product_chain_model, build_transformer,
    replay_job_with_changed_options, replay_training_job,
};
use chakram::engine::{HostLaunchMode, ReplayOptions};
use chakram::generate::{
    AblationEffect, ContextExchange, Optimizer, ParallelismPlan, PipelineSchedule, ZeroStage,
};
use chakram::machine::Machine;
use chakram::model::{
    LayerOperator, LayerRole, Model, ModelLayer, OperatorKind, OperatorTensorParallelSplit,
    PositionEncoding, TransformerBlock,
};

/// A machine on which a FLOP takes a picosecond, and memory and messages take no time.
pub const IDEAL: &str = r#"
name = "ideal"
[npu.ideal]
memory_bandwidth = "1000000 GB/s"
memory_latency = "0 ns"
memory_capacity = "80 GB"
lanes = 32
host_lanes = 32
[npu.ideal.peak]
bf16 = "1 TFLOP/s"
[[dimension]]
name = "wire"
shape = "switch"
size = 4
bandwidth = "1000000 GB/s"
latency = "0 ns"
algorithm = "ring"
"#;

/// Returns the time in picoseconds that a step of `blocks` blocks takes. Each block takes `2 side^2` in the forward
/// pass and twice that in the backward pass.
fn replay_step_ps(
    blocks: usize,
    side: u64,
    pipeline: u32,
    schedule: PipelineSchedule,
    without: &[AblationEffect],
) -> u64 {
    let mut plan = ParallelismPlan::new();
    plan.pipeline = pipeline;
    plan.schedule = schedule;
    plan.batch = 8;
    plan.optimizer = Optimizer::None;
    plan.without.add_effect(AblationEffect::MemoryBound);
    plan.without
        .add_effect(AblationEffect::PipelineCommunication);
    without
        .iter()
        .for_each(|effect| plan.without.add_effect(*effect));
    let job =
        build_pattern_of_model_and_plan(&build_product_chain_model(blocks, side), &plan).unwrap();
    replay_training_job(&job, &Machine::parse(IDEAL, "ideal").unwrap())
        .makespan
        .0
}

/// PALM's Eq. 1 is (m - 1) max(F + B) + sum(F + B). With p = 4 stages, m = 8 micro-batches, F = 1
/// and B = 2 it gives 7 x 3 + 4 x 3 = 33. With v = 2 chunks a stage's passes take 1/2 and 1, and a
/// bubble takes half of its time: 24 + 9/2 = 28.5. On one stage the step takes 8 x 3 = 24.
#[test]
fn a_pipeline_takes_what_eq_1_says() {
    // F = 2 side^2 ps.
    let unit = 2 * 1000 * 1000;
    let one = || PipelineSchedule::OneForwardOneBackward;
    assert_eq!(replay_step_ps(4, 1000, 4, one(), &[]), 33 * unit);
    assert_eq!(
        replay_step_ps(4, 1000, 4, PipelineSchedule::GPipe, &[]),
        33 * unit
    );
    assert_eq!(replay_step_ps(1, 1000, 1, one(), &[]), 24 * unit);
    // Eight blocks make two per stage, so a chunk has F = 1 in units in which a stage has 2.
    let interleaved = PipelineSchedule::Interleaved { chunks: 2 };
    assert_eq!(replay_step_ps(8, 1000, 4, interleaved, &[]), 57 * unit);
    // Stages that never wait take 8 x 3.
    assert_eq!(
        replay_step_ps(4, 1000, 4, one(), &[AblationEffect::Bubble]),
        24 * unit
    );
}

/// Returns the ideal machine with two dimensions of two NPUs with these bandwidths, and `latency`
/// nanoseconds in the outer dimension.
fn build_two_by_two_machine(inner: &str, outer: &str, latency: u64) -> Machine {
    let (npu, _) = IDEAL.split_once("[[dimension]]").unwrap();
    let dimension = |name: &str, bandwidth: &str, latency: u64| {
        format!(
            "[[dimension]]\nname = {name:?}\nshape = \"fully_connected\"\nsize = 2\n\
             bandwidth = \"{bandwidth} GB/s\"\nlatency = \"{latency} ns\"\nalgorithm = \"ring\"\n"
        )
    };
    let [inner, outer] = [
        dimension("inner", inner, 0),
        dimension("outer", outer, latency),
    ];
    Machine::parse(&format!("{npu}{inner}{outer}"), "two by two").unwrap()
}

pub const SIDE: u64 = 1000;
/// The picoseconds that a product of 1 row with 1000 x 1000 weights takes.
pub const F: u64 = 2 * SIDE * SIDE;

/// Returns a model that consists only of blocks. The first layer's input has no gradient, so its backward pass is one
/// product.
fn build_block_model(count: usize, of: &[LayerOperator]) -> Model {
    let block = |i: usize| ModelLayer::new(format!("layer{i}"), LayerRole::Block, of.to_vec());
    Model {
        layers: (0..count).map(block).collect(),
        ..build_product_chain_model(0, SIDE)
    }
}

fn make_product_operator(name: &str, cut: OperatorTensorParallelSplit) -> LayerOperator {
    let work = OperatorKind::Linear {
        rows: 1,
        inputs: SIDE,
        outputs: SIDE,
        bias: false,
        tied: false,
    };
    LayerOperator::new(name, work, cut)
}

fn make_plan_without_optimizer() -> ParallelismPlan {
    let mut plan = ParallelismPlan::new();
    plan.optimizer = Optimizer::None;
    plan.bucket = 1;
    plan
}

fn replay_makespan(model: &Model, plan: &ParallelismPlan, machine: &Machine) -> u64 {
    replay_training_job(
        &build_pattern_of_model_and_plan(model, plan).unwrap(),
        machine,
    )
    .makespan
    .0
}

/// There are two replicas of L = 5 blocks, whose 5 forward and 9 backward products take 14 F. A ring of two reduces
/// 10^6 gradients of 2 B in two steps of 10^6 B, which at 1 B/ps is R = F. If the reductions follow the pass, they add
/// 5 R. If they overlap the pass, only the reduction of the first product remains once all gradients are computed. At a
/// third of the rate R = 3 F, so after 5 + 2 products the five reductions follow one another.
#[test]
fn gradients_are_reduced_beside_the_pass_or_behind_it() {
    let model = build_block_model(
        5,
        &[make_product_operator(
            "product",
            OperatorTensorParallelSplit::Replicated,
        )],
    );
    let step = |overlap, rate| {
        let mut plan = make_plan_without_optimizer();
        (plan.data, plan.batch, plan.overlap) = (2, 2, overlap);
        replay_makespan(&model, &plan, &build_two_by_two_machine(rate, "1", 0))
    };
    assert_eq!(step(false, "1000"), (14 + 5) * F);
    assert_eq!(step(true, "1000"), (14 + 1) * F);
    // Each time is rounded to whole picoseconds, and a third is not whole.
    let near = |found: u64, expected: u64| found.abs_diff(expected) < 20;
    assert!(near(step(false, "333.33333333"), (14 + 15) * F));
    assert!(near(step(true, "333.33333333"), (7 + 15) * F));
}

/// Each block has two halves on two members, one split by outputs and one by inputs: f = F / 2 each. 10^3 outputs of 2
/// B are all-reduced in two steps of 10^3 B, which at 1 B/ns take T = 2 f. A block takes 2 f + T in the forward pass.
/// In the backward pass, the second half takes 2 f. The first half takes f for its input's gradient, and then T for the
/// all-reduce and f for its weights' gradient, which overlap or follow each other. The first block's input needs no
/// gradient, so its backward pass takes 3 f.
#[test]
fn sums_of_a_tensor_group_are_formed_beside_a_product_or_behind_it() {
    let halves = [
        make_product_operator("up", OperatorTensorParallelSplit::ColumnParallel),
        make_product_operator("down", OperatorTensorParallelSplit::RowParallel),
    ];
    let (model, count, f) = (build_block_model(4, &halves), 4, F / 2);
    let step = |tensor_overlap, rate| {
        let mut plan = make_plan_without_optimizer();
        (plan.tensor, plan.tensor_overlap) = (2, tensor_overlap);
        replay_makespan(&model, &plan, &build_two_by_two_machine(rate, "1", 0))
    };
    for (rate, sum) in [("1", 2 * f), ("2", f), ("4", f / 2)] {
        let forward = count * (2 * f + sum);
        let beside = (count - 1) * (3 * f + sum.max(f)) + 3 * f;
        assert_eq!(step(true, rate), forward + beside, "{rate} GB/s");
        let behind = (count - 1) * (4 * f + sum) + 3 * f;
        assert_eq!(step(false, rate), forward + behind, "{rate} GB/s");
    }
}

/// With two stages of two members and one sample, everything runs in sequence, and 2 x 10^3 B are sent twice. Sent as a
/// whole, these bytes take M = 2 us at 1 B/ns. In halves they take 1 us, and the halves are gathered at 4 B/ns in 250
/// ns, in both directions.
#[test]
fn scatter_gather_sends_halves_between_stages_and_gathers_them() {
    let halves = [
        make_product_operator("up", OperatorTensorParallelSplit::ColumnParallel),
        make_product_operator("down", OperatorTensorParallelSplit::RowParallel),
    ];
    let model = build_block_model(2, &halves);
    let machine = build_two_by_two_machine("4", "1", 0);
    let step = |scatter_gather, effects: &[AblationEffect]| {
        let mut plan = make_plan_without_optimizer();
        (plan.tensor, plan.pipeline) = (2, 2);
        plan.scatter_gather = scatter_gather;
        effects
            .iter()
            .for_each(|effect| plan.without.add_effect(*effect));
        replay_makespan(&model, &plan, &machine)
    };
    let (whole, half, gather) = (2_000_000, 1_000_000, 250_000);
    let bare = step(false, &[AblationEffect::PipelineCommunication]);
    assert_eq!(step(false, &[]), bare + 2 * whole);
    assert_eq!(step(true, &[]), bare + 2 * (half + gather));
    // The gathers count as communication of the tensor group.
    let silent = step(false, &[AblationEffect::TensorCommunication]);
    let shared = step(true, &[AblationEffect::TensorCommunication]);
    assert_eq!(silent - shared, 2 * (whole - half));
}

/// The norm of all gradients needs an all-reduce of 4 B over a replica's two stages, after the last gradient. It takes
/// two steps of 2 B over 500 ns, which at 1 B/ns take 502 ns each.
#[test]
fn clipping_gradients_adds_an_all_reduce_of_their_norm() {
    let model = build_block_model(
        4,
        &[make_product_operator(
            "product",
            OperatorTensorParallelSplit::Replicated,
        )],
    );
    let machine = build_two_by_two_machine("1", "1", 500);
    let step = |clip| {
        let mut plan = make_plan_without_optimizer();
        (plan.data, plan.pipeline) = (2, 2);
        (plan.batch, plan.overlap, plan.clip) = (4, false, clip);
        plan.without.add_effect(AblationEffect::DataCommunication);
        replay_makespan(&model, &plan, &machine)
    };
    assert_eq!(step(true) - step(false), 2 * 502_000);
}

/// Two replicas run inference and shard L = 6 layers, each with 10^6 parameters of 2 B. At 1 B/ps, gathering the other
/// half takes G = F / 2. On demand each layer takes G + F. If one layer is gathered ahead, the replay waits only for
/// the first gather. With G = 3 F, gathers follow one another without gaps, and only the last product remains.
#[test]
fn parameters_are_gathered_ahead_or_on_demand() {
    let model = build_block_model(
        6,
        &[make_product_operator(
            "product",
            OperatorTensorParallelSplit::Replicated,
        )],
    );
    let ask = |prefetch, rate| {
        let mut plan = make_plan_without_optimizer();
        (plan.data, plan.batch, plan.zero) = (2, 2, ZeroStage::Parameters);
        plan.schedule = PipelineSchedule::Inference;
        plan.prefetch = prefetch;
        replay_makespan(&model, &plan, &build_two_by_two_machine(rate, "1", 0))
    };
    let half = F / 2;
    assert_eq!(ask(0, "1000"), 6 * (half + F));
    assert_eq!(ask(1, "1000"), half + 6 * F);
    assert_eq!(ask(5, "1000"), half + 6 * F);
    assert_eq!(ask(0, "500"), 6 * (F + F));
    assert_eq!(ask(1, "500"), F + 6 * F);
    assert_eq!(ask(1, "250"), 6 * 2 * F + F);
}

/// Attention of a rank to the 256 keys of another of four ranks has 4 x 256 x 256 x 16 FLOPs without a mask, and takes
/// 4.2 us. Keys and values are 2 x 256 x 16 numbers of 2 B, and take 1.6 us at 10 GB/s. A ring step sends keys while
/// this kernel runs, so messages add no time, even if the host waits for each receive. At 0.1 GB/s, the messages take
/// longer than attention.
#[test]
fn ring_attention_hides_its_messages_behind_kernels() {
    let block = TransformerBlock {
        tokens: 1024,
        causal: false,
        dropout: false,
        ..GPT
    };
    let model = build_transformer("long", block, PositionEncoding::Rotary, false);
    let makespan = |exchange, silent: bool, rate: &str, launch| {
        let mut plan = ParallelismPlan::new();
        (plan.context, plan.context_exchange) = (4, exchange);
        plan.without.add_effect(AblationEffect::DataCommunication);
        plan.without.add_effect(AblationEffect::MemoryBound);
        if silent {
            plan.without
                .add_effect(AblationEffect::ContextCommunication);
        }
        let wire = "bandwidth = \"1000000 GB/s\"\nlatency";
        let text = IDEAL.replace(wire, &format!("bandwidth = \"{rate}\"\nlatency"));
        assert!(text.contains(rate));
        let host = "[host]\nlaunch = \"1 ns\"\ncollective = \"1 ns\"\nmessage = \"1 ns\"\n\
                    step = \"1 ns\"\nqueue = 1024\nwaits = \"receives\"\n";
        let machine = Machine::parse(&(text + host), "ideal").unwrap();
        let job = build_pattern_of_model_and_plan(&model, &plan).unwrap();
        let launches = |options: &mut ReplayOptions| options.launch = launch;
        replay_job_with_changed_options(&job, &machine, (), launches)
            .0
            .makespan
            .0
    };
    let ring = ContextExchange::Ring;
    for launch in [HostLaunchMode::None, HostLaunchMode::Eager] {
        let alone = makespan(ring, true, "10 GB/s", launch);
        let hidden = makespan(ring, false, "10 GB/s", launch);
        // With a host, launching a message takes 1 ns, for 3 + 6 sends and receives in each of 4 layers.
        let launches = if launch == HostLaunchMode::Eager {
            4 * 9 * 2 * 1000
        } else {
            0
        };
        assert!(
            (alone..=alone + launches).contains(&hidden),
            "{launch:?}: {hidden} {alone}"
        );
        assert!(makespan(ring, false, "0.1 GB/s", launch) > 2 * alone);
        // Gathering keys before attention starts is exposed.
        let gathered = makespan(ContextExchange::AllGather, false, "10 GB/s", launch);
        let without = makespan(ContextExchange::AllGather, true, "10 GB/s", launch);
        // Each of 4 layers has 2 gathers and a reduce-scatter of 3 x 16,384 B.
        assert!(
            gathered >= without + 4 * 3 * 4_915_200,
            "{gathered} {without}"
        );
    }
}
