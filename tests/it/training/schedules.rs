//! Tests pipelines whose backward passes are split, that run from both ends, or whose order a file gives. Covers
//! makespans that follow from formulas, groups that reduce the gradients of two copies, and memory.

use super::time::{F, IDEAL, SIDE};
use super::{
    GPT, RankNodeSums, build_gpt_model, build_pattern_of_model_and_plan, build_product_chain_model,
    replay_training_job,
};
use chakram::engine::{CompiledReplay, KernelDurationSource, ReplayOptions};
use chakram::generate::{
    AblationEffect, AttentionKernel, ModelAndParallelismPlan, Optimizer, ParallelismPlan,
    PipelineSchedule, StagePassOrders, ZeroStage,
};
use chakram::machine::Machine;
use chakram::model::{
    LayerOperator, LayerRole, Model, ModelLayer, OperatorKind, OperatorTensorParallelSplit,
};
use chakram::trace::TensorClass;
use std::fmt::Write as _;
use std::sync::Arc;

/// Returns a plan in which only products and attention take time.
fn make_pipeline_plan(pipeline: u32, batch: u64, schedule: PipelineSchedule) -> ParallelismPlan {
    let mut plan = ParallelismPlan::new();
    (plan.pipeline, plan.batch, plan.schedule) = (pipeline, batch, schedule);
    plan.optimizer = Optimizer::None;
    plan.attention = AttentionKernel::Unfused;
    plan.without.add_effect(AblationEffect::MemoryBound);
    plan.without
        .add_effect(AblationEffect::PipelineCommunication);
    plan.without.add_effect(AblationEffect::DataCommunication);
    plan
}

fn make_linear_operator(
    name: &str,
    rows: u64,
    inputs: u64,
    outputs: u64,
    cut: OperatorTensorParallelSplit,
) -> LayerOperator {
    let work = OperatorKind::Linear {
        rows,
        inputs,
        outputs,
        bias: false,
        tied: false,
    };
    LayerOperator::new(name, work, cut)
}

/// Returns blocks whose attention takes a fifth of the forward pass: 8 t h^2 = 32 x 10^6 FLOPs of products and 4 t^2 h
/// = 8 x 10^6 of attention for t = 100 tokens of h = 200. In the backward pass, attention takes twice as many FLOPs;
/// matrix products take as many again for the inputs' gradients, and as many again for the weights' gradients. In units
/// of 4 x 10^6 ps, (F, B, W) = (10, 12, 8).
fn build_attention_model(blocks: usize) -> Model {
    let (tokens, width) = (100, 200);
    let attention = OperatorKind::Attention {
        tokens,
        queries: tokens,
        heads: 2,
        kv_heads: 2,
        width: width / 2,
        causal: false,
        dropout: false,
        rotary: false,
        qk_norm: false,
    };
    let split = OperatorTensorParallelSplit::Replicated;
    let operators = vec![
        make_linear_operator("qkv", tokens, width, 3 * width, split),
        LayerOperator::new("attention", attention, split),
        make_linear_operator("out", tokens, width, width, split),
    ];
    let mut model = build_product_chain_model(blocks, 1);
    model.sequence = tokens;
    for layer in &mut model.layers {
        match layer.role {
            LayerRole::Block => layer.operators.clone_from(&operators),
            _ => {
                let norm = OperatorKind::Norm {
                    rows: tokens,
                    width,
                    bias: false,
                };
                layer.operators[0] = LayerOperator::new("norm", norm, split);
            }
        }
    }
    model
}

fn parse_ideal_machine() -> Machine {
    Machine::parse(IDEAL, "ideal").unwrap()
}

/// 1F1B takes (8 + 3)(10 + 12 + 8) = 330. If gradients of inputs are sent before gradients of weights are computed, the
/// step takes 8 x 30 + 3 (10 + 12) = 306. If gradients of weights fill the bubble, it takes 240 + 3 (10 + 12 - 8) = 282
/// (ZB-H1; Qi et al., 2024).
#[test]
fn gradients_of_weights_fill_the_bubble() {
    let unit = 4_000_000;
    let step = |schedule, split_backward| {
        let plan = ParallelismPlan {
            split_backward,
            ..make_pipeline_plan(4, 8, schedule)
        };
        replay_training_job(
            &build_pattern_of_model_and_plan(&build_attention_model(4), &plan).unwrap(),
            &parse_ideal_machine(),
        )
        .makespan
        .0
    };
    let one = || PipelineSchedule::OneForwardOneBackward;
    assert_eq!(step(one(), false), 330 * unit);
    assert_eq!(step(one(), true), 306 * unit);
    assert_eq!(step(PipelineSchedule::ZeroBubbleH1, false), 282 * unit);
}

/// The passes of matrix products take F = B = W, and two overlapped passes take as long as one after the other.
/// DeepSeek's 8 stages with 20 micro-batches take 20 x 3 + (8 / 2 - 1)(3 + 2 - 3) = 66.
#[test]
fn bidirectional_pipeline_schedules_take_the_published_step_times() {
    let step = |blocks, stages, batch, schedule| {
        let plan = make_pipeline_plan(stages, batch, schedule);
        let machine = IDEAL.replace("size = 4", "size = 8");
        let machine = Machine::parse(&machine, "ideal").unwrap();
        let job = build_pattern_of_model_and_plan(&build_product_chain_model(blocks, SIDE), &plan)
            .unwrap();
        replay_training_job(&job, &machine).makespan.0
    };
    // With (F, B, W) = (10, 10, 10), the step takes 660.
    assert_eq!(step(8, 8, 20, PipelineSchedule::DualPipe), 66 * F);
    // A V of 8 parts on 4 stages takes the time of 20 micro-batches through two parts each, plus (4 - 1)(3 + 2 - 3).
    assert_eq!(step(8, 4, 20, PipelineSchedule::DualPipeV), (120 + 6) * F);
    // ZB-V takes the time of 6 x 20 passes, plus the time until the first pass reaches the last stage.
    assert_eq!(step(8, 4, 20, PipelineSchedule::ZeroBubbleV), (120 + 3) * F);
}

/// Each block has eight units of products, and two units of an all-reduce between two members: four replicated
/// products, one split by outputs and one by inputs. The table of their kernels gives 10 units for the gradients of
/// weights, so (F, B + W, W) = (10, 20, 10). Overlapped, a forward and a backward pass take the time of both passes'
/// products, 8 + 8 + 10 = 26, and hide the all-reduces.
#[test]
fn overlapped_passes_hide_the_communication_of_each_other() {
    let unit = 1_000_000;
    assert_eq!(dual_pipe_makespan_with_hidden_all_reduces(4, 8), 244 * unit);
    assert_eq!(
        dual_pipe_makespan_with_hidden_all_reduces(8, 20),
        604 * unit
    );
    assert_eq!(
        dual_pipe_makespan_with_hidden_all_reduces(16, 32),
        1012 * unit
    );
}

/// Returns the makespan of DualPipe with these blocks, one on each of `stages` stages.
fn dual_pipe_makespan_with_hidden_all_reduces(stages: u32, batch: u64) -> u64 {
    let blocks = stages as usize;
    // The table gives the time of each operator.
    let whole =
        |name| make_linear_operator(name, 1, 1000, 1000, OperatorTensorParallelSplit::Replicated);
    let mut operators: Vec<_> = ["a", "b", "c", "d"].map(whole).to_vec();
    operators.push(make_linear_operator(
        "up",
        1,
        1000,
        1000,
        OperatorTensorParallelSplit::ColumnParallel,
    ));
    operators.push(make_linear_operator(
        "down",
        1,
        1000,
        1000,
        OperatorTensorParallelSplit::RowParallel,
    ));
    let block =
        |i: usize| ModelLayer::new(format!("layer{i}"), LayerRole::Block, operators.clone());
    let mut model = build_product_chain_model(0, 1000);
    model.layers.splice(1..1, (0..blocks).map(block));

    let mut plan = make_pipeline_plan(stages, batch, PipelineSchedule::DualPipe);
    plan.tensor = 2;
    plan.tensor_overlap = false;
    let job = build_pattern_of_model_and_plan(&model, &plan).unwrap();
    // An all-reduce of 1000 numbers of 2 B takes two steps of 1000 B at 1 B/ns.
    let (npu, _) = IDEAL.split_once("[[dimension]]").unwrap();
    let mut machine = npu.to_owned();
    for (name, size, rate) in [("inner", 2, "1"), ("outer", stages, "1000000")] {
        write!(
            machine,
            "[[dimension]]\nname = {name:?}\nshape = \"fully_connected\"\nsize = {size}\nbandwidth = \"{rate} GB/s\"\n\
             latency = \"0 ns\"\nalgorithm = \"ring\"\n"
        )
        .unwrap();
    }
    let mut tables = String::new();
    let mut known = ComputeKernelSet::default();
    job.emit_nodes(0, &mut known).unwrap();
    for stage in 1..stages {
        job.emit_nodes(2 * stage, &mut known).unwrap();
    }
    for (name, flops, bytes) in known.0 {
        let is_large = name.contains("up") || name.contains("down");
        let nanoseconds = match (is_large, name.contains(".wgrad")) {
            (true, true) => 2500,
            (true, false) => 2000,
            (false, true) => 1250,
            (false, false) => 1000,
        };
        writeln!(
            tables,
            "[[npu.ideal.measured]]\nname = {name:?}\nformat = \"bf16\"\ntimes = [[{flops}, {bytes}, \"{nanoseconds} ns\"]]"
        )
        .unwrap();
    }
    let machine = machine.replace(
        "[[dimension]]\nname = \"inner\"",
        &format!("{tables}[[dimension]]\nname = \"inner\""),
    );
    let machine = Machine::parse(&machine, "measured").unwrap();
    let workload = job.build_workload().unwrap();
    let options = ReplayOptions::default_with_changes(|o| o.compute = KernelDurationSource::Curves);
    let prepared = CompiledReplay::new(&workload, &machine, &options).unwrap();
    prepared.run(()).unwrap().0.makespan.0
}

/// The names, FLOPs and bytes of compute kernels.
#[derive(Default)]
struct ComputeKernelSet(std::collections::BTreeSet<(String, u64, u64)>);

impl chakram::trace::Sink for ComputeKernelSet {
    fn receive_node(
        &mut self,
        node: &chakram::trace::NodeView<'_>,
        _: &[u64],
    ) -> Result<(), chakram::trace::TraceError> {
        if let chakram::trace::Op::Compute { flops, bytes, .. } = node.op
            && flops > 0
        {
            self.0.insert((node.name.to_owned(), flops, bytes));
        }
        Ok(())
    }
}

/// An order that a file gives results in the same job as the schedule's name.
#[test]
fn listed_pass_orders_give_the_same_job_as_the_named_schedule() {
    let one = PipelineSchedule::OneForwardOneBackward;
    let lines = one.to_lines(4, 8);
    let orders = StagePassOrders::parse_stage_lines(&lines).unwrap();
    let listed = PipelineSchedule::Listed(Arc::new(orders));
    let step = |schedule| {
        let job = build_pattern_of_model_and_plan(
            &build_attention_model(4),
            &make_pipeline_plan(4, 8, schedule),
        )
        .unwrap();
        replay_training_job(&job, &parse_ideal_machine()).makespan.0
    };
    assert_eq!(step(listed), step(one));
    // The order is a V whose first and last parts are on the first stage, and gradients of weights belong to a whole
    // backward pass.
    let v = "0F0,0F1,3F0,3B0,3F1,3B1,0B0,0B1\n1F0,1F1,2F0,2F1,2B0,2B1,1B0,1B1";
    let text = format!(
        "pipeline = 2\nbatch = 2\npass_orders = [{:?}, {:?}]\n",
        v.lines().next().unwrap(),
        v.lines().nth(1).unwrap()
    );
    let parsed = ParallelismPlan::parse(&text, "plan.toml").unwrap();
    let orders = StagePassOrders::parse(v).unwrap();
    assert_eq!(parsed.schedule, PipelineSchedule::Listed(Arc::new(orders)));
    let mut plan = make_pipeline_plan(2, 2, parsed.schedule);
    plan.without = parsed.without;
    let job = build_pattern_of_model_and_plan(&build_product_chain_model(4, 10), &plan).unwrap();
    // Parts 1 and 2 are neighbours on one stage, so there is no message between them.
    let messages = RankNodeSums::sum_nodes_of_rank(&job, 0).messages;
    assert_eq!(messages.len(), 8);
    replay_training_job(&job, &parse_ideal_machine());
    for (text, expected) in [
        (
            "schedule = \"gpipe\"\npass_orders = [\"0F0\"]",
            "p.toml:1: key `schedule`: found both this key and `pass_orders`",
        ),
        (
            "pass_orders = [\"0F0\", \"1F0,1X0\"]",
            "p.toml:1: key `pass_orders[1]`: found \"1X0\" as step 2",
        ),
        (
            "pass_orders = []",
            "p.toml:1: key `pass_orders`: found no passes",
        ),
        ("pass_orders = 3", "p.toml:1: key `pass_orders`: found"),
    ] {
        let error = ParallelismPlan::parse(text, "p.toml")
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

/// Four stages have parts from both ends. In both replicas, ranks 0 and 3 therefore reduce the gradients of the same
/// two products, and so do ranks 1 and 2. With ZeRO, each of the four keeps a quarter of the optimizer's state.
#[test]
fn dual_pipe_gradients_are_reduced_over_both_copies_of_each_stage() {
    let mut plan = make_pipeline_plan(4, 16, PipelineSchedule::DualPipe);
    (plan.data, plan.zero, plan.optimizer) = (2, ZeroStage::Optimizer, Optimizer::Adam);
    plan.without = ParallelismPlan::new().without;
    let model = build_product_chain_model(4, 10);
    let job = build_pattern_of_model_and_plan(&model, &plan).unwrap();
    let groups = job.declared_groups();
    let mut all: Vec<_> = groups.values().cloned().collect();
    all.sort();
    assert_eq!(all, [vec![0, 1, 6, 7], vec![2, 3, 4, 5]]);
    let summary = ModelAndParallelismPlan { model, plan }
        .summarize_plan()
        .unwrap();
    // Two products have 100 weights each, and the two outer stages also have a norm of 10 at each
    // end: 220.
    let parameters: Vec<u64> = summary
        .stages
        .iter()
        .map(|stage| stage.parameters)
        .collect();
    assert_eq!(parameters, [220, 200, 200, 220]);
    // Adam keeps 12 B in fp32 for each parameter in a rank's quarter.
    let state = summary.stages[1].memory[TensorClass::Optimizer as usize];
    assert_eq!(state, 12 * 200 / 4);
    // Each rank reduces each of its two parts once.
    let sums = RankNodeSums::sum_nodes_of_rank(&job, 0);
    let reductions = sums
        .collectives
        .iter()
        .filter(|(name, _, _)| name.contains("reduce-scatter"));
    let bytes: u64 = reductions.map(|(_, _, bytes)| bytes).sum();
    assert_eq!(bytes, 220 * 2);
    replay_training_job(
        &job,
        &Machine::parse(&IDEAL.replace("size = 4", "size = 8"), "ideal").unwrap(),
    );
}

/// Korthikanti et al. count 34 s b h + 5 a s^2 b for a block. Qi et al. (2024, section 2.3) keep 32
/// s b h of it for gradients of weights: the inputs of four products, (2 + 2 + 2 + 8) s b h, and
/// gradients of their outputs, (6 + 2 + 8 + 2) s b h.
#[test]
fn split_backward_keeps_only_the_bytes_that_weight_gradients_need() {
    let mut model = build_gpt_model();
    model.layers.retain(|layer| layer.role == LayerRole::Block);
    model.layers.truncate(1);
    let mut plan = ParallelismPlan::new();
    plan.attention = AttentionKernel::Unfused;
    let held = |lines: &str| {
        let orders = StagePassOrders::parse(lines).unwrap();
        let mut plan = plan.clone();
        plan.batch = orders.micro_batches().into();
        plan.schedule = PipelineSchedule::Listed(Arc::new(orders));
        let job = build_pattern_of_model_and_plan(&model, &plan).unwrap();
        RankNodeSums::sum_nodes_of_rank(&job, 0)
            .peak_bytes_of_tensor_class(TensorClass::Activations)
    };
    let (s, h, a) = (GPT.tokens, GPT.hidden, GPT.heads);
    let whole = 34 * s * h + 5 * a * s * s;
    assert_eq!(held("0F0,0B0"), whole);
    assert_eq!(held("0F0,0B0,0F1,0B1"), whole);
    // The first micro-batch keeps only its part for the weights' gradients, while the second keeps everything.
    assert_eq!(held("0F0,0I0,0F1,0W0,0I1,0W1"), whole + 32 * s * h);
    assert_eq!(
        held("0F0,0I0,0F1,0I1,0F2,0W0,0W1,0I2,0W2"),
        whole + 2 * 32 * s * h
    );
    // The first operators of the backward pass free a mask of s h and allocate a gradient of 2 s h.
    assert_eq!(held("0F0,0I0,0W0,0F1,0I1,0W1"), whole + s * h);
}

/// A plan's summary gives a schedule's activations in blocks. Each stage has one block; with DualPipe, it has two, and
/// half of the micro-batches pass through each. 1F1B keeps S - i micro-batches, ZB-H1 keeps S on every stage, and
/// DualPipe keeps at most S + 1.
#[test]
fn plan_summaries_state_the_activations_that_schedules_keep() {
    let said = |blocks, schedule| {
        let mut plan = make_pipeline_plan(4, 8, schedule);
        plan.without = ParallelismPlan::new().without;
        let summary = ModelAndParallelismPlan {
            model: build_product_chain_model(blocks, 10),
            plan,
        }
        .summarize_plan()
        .unwrap();
        let stages = summary.stages.iter().map(|stage| {
            let found = stage.memory[TensorClass::Activations as usize];
            // A matrix product keeps its input, 10 numbers of 2 B, and so does each norm at the ends.
            (stage.stored.0, found / 20)
        });
        stages.collect::<Vec<_>>()
    };
    let counts = |all: &[(u64, u64)]| all.iter().map(|one| one.0).collect::<Vec<_>>();
    assert_eq!(
        counts(&said(4, PipelineSchedule::OneForwardOneBackward)),
        [4, 3, 2, 1]
    );
    assert_eq!(counts(&said(4, PipelineSchedule::ZeroBubbleH1)), [4; 4]);
    assert_eq!(counts(&said(8, PipelineSchedule::ZeroBubbleV)), [8; 4]);
    assert_eq!(counts(&said(4, PipelineSchedule::DualPipe)), [5, 5, 5, 5]);
    assert_eq!(counts(&said(8, PipelineSchedule::DualPipeV)), [9; 4]);
    // On the inner stages of 1F1B, the matrix products alone account for the stated amount.
    let found = said(4, PipelineSchedule::OneForwardOneBackward);
    assert_eq!([found[1].1, found[2].1], [3, 2]);
}
