//! Uses random bytes as a plan file for one of a few models, which the first byte chooses. The plan
//! is rejected with an error, or has a summary. If the plan is small, the nodes of all ranks are
//! compared with one another and replayed.

use chakram::engine::{
    CompiledReplay, KernelDurationSource, ReplayError, ReplayOptions, RooflinePeakFraction,
};
use chakram::generate::{
    CheckedWorkloadPattern, ModelAndParallelismPlan, ParallelismPlan, PlanSummary, RecomputePolicy,
    WorkloadPattern, ZeroStage,
};
use chakram::machine::Machine;
use chakram::model::{Model, ModelWithDefinitionProperties};
use chakram::trace::{GroupName, NodeView, Op, Sink, TensorClass, TraceError};
use chakram::workload::DeclaredGroups;
use std::collections::BTreeMap;

/// Limits on the operators of all passes of a plan. Above `LITTLE`, its nodes are not checked, and
/// above `MORE`, no pass is visited.
const LITTLE: u128 = 2_000;
const MORE: u128 = 40_000;
/// Maximum number of ranks for which nodes are checked.
const RANKS: u128 = 16;

/// The models are a decoder with grouped heads, a tied head and dropout, an encoder, convolutions,
/// and embedding tables.
const MODELS: [&str; 4] = [
    r#"
name = "decoder"
source = "none"
kind = "transformer"
layers = 4
hidden = 8
heads = 4
kv_heads = 2
ffn = 16
vocabulary = 10
sequence = 4
activation = "swiglu"
norm = "rmsnorm"
positions = "rotary"
biases = false
causal = true
dropout = true
head = "logits"
tied = true
"#,
    r#"
name = "encoder"
source = "none"
kind = "transformer"
layers = 2
hidden = 8
heads = 2
ffn = 32
vocabulary = 6
sequence = 6
activation = "gelu"
norm = "layernorm"
norm_after = true
positions = "learned"
biases = true
causal = false
dropout = false
head = "masked"
"#,
    r#"
name = "images"
source = "none"
kind = "layers"
input = { channels = 3, height = 8, width = 8 }
[[layer]]
name = "stem"
role = "input"
operators = [
  { op = "convolution", name = "conv", outputs = 4, kernel = 3, padding = 1 },
  { op = "pool", kernel = 2, stride = 2 },
]
[[layer]]
name = "block"
role = "block"
repeat = 2
operators = [
  { op = "convolution", name = "conv", outputs = 4, kernel = 3, padding = 1, bias = false },
  { op = "norm" },
  { op = "activation", function = "relu" },
  { op = "residual" },
]
[[layer]]
name = "head"
role = "output"
operators = [{ op = "linear", outputs = 4 }]
"#,
    r#"
name = "tables"
source = "none"
kind = "layers"
input = { columns = 4 }
[[layer]]
name = "features"
role = "input"
operators = [
  { op = "linear", name = "bottom", outputs = 2 },
  { op = "embedding_bag", name = "table0", rows = 9, width = 2 },
  { op = "embedding_bag", name = "table1", rows = 5, width = 2, lookups = 3 },
  { op = "interaction", vectors = 3 },
]
[[layer]]
name = "top"
role = "block"
operators = [{ op = "linear", outputs = 3 }, { op = "activation", function = "relu" }]
"#,
];

/// Returns a switch of `npus` NPUs with a peak for every format.
fn build_switch_machine(npus: u32) -> Machine {
    let text = format!(
        r#"
name = "small"
[npu.one]
memory_bandwidth = "1 TB/s"
memory_latency = "100 ns"
memory_capacity = "80 GB"
lanes = 4
host_lanes = 1
[npu.one.peak]
fp64 = "1 TFLOP/s"
fp32 = "1 TFLOP/s"
tf32 = "1 TFLOP/s"
bf16 = "1 TFLOP/s"
fp16 = "1 TFLOP/s"
fp8 = "1 TFLOP/s"
int8 = "1 TFLOP/s"
[[dimension]]
name = "wire"
shape = "switch"
size = {npus}
bandwidth = "100 GB/s"
latency = "100 ns"
algorithm = "ring"
"#
    );
    Machine::parse(&text, "small").expect("it is a machine")
}

/// Outcome of checking a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanRejectionOrCheckExtent {
    /// The plan was rejected.
    Refused,
    /// The plan has too many nodes for any check.
    Long,
    /// Only the plan's summary was checked.
    Summed,
    /// All ranks were compared with one another.
    Held,
}

/// Runs the target on `data`.
pub fn check_plan_file_bytes(data: &[u8]) {
    let Some((first, text)) = data.split_first() else {
        return;
    };
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    let plan = match ParallelismPlan::parse(text, "fuzz.toml") {
        Ok(plan) => plan,
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains("fuzz.toml"), "{error}");
            return;
        }
    };
    let model = MODELS[usize::from(*first) % MODELS.len()];
    let model =
        ModelWithDefinitionProperties::parse(model, "model.toml", None).expect("it is a model");
    check_plan_more_if_small(&model.model, &plan);
}

/// Checks `plan`, with more checks if it is small.
pub fn check_plan_more_if_small(
    model: &Model,
    plan: &ParallelismPlan,
) -> PlanRejectionOrCheckExtent {
    let operators = model
        .layers
        .iter()
        .map(|layer| layer.operators.len() as u128);
    let passes = u128::from(plan.micro_batches()) * u128::from(plan.steps);
    let work = operators.sum::<u128>() * passes;
    let training = || {
        Box::new(ModelAndParallelismPlan {
            model: model.clone(),
            plan: plan.clone(),
        })
    };
    // The as-needed policy visits all passes to determine the recomputation.
    if work > MORE && plan.recompute == RecomputePolicy::AsNeeded {
        return PlanRejectionOrCheckExtent::Long;
    }
    let job = match CheckedWorkloadPattern::new(WorkloadPattern::Training(training())) {
        Ok(job) => job,
        Err(why) => {
            let why = why.to_string();
            assert!((10..400).contains(&why.len()), "{why}");
            return PlanRejectionOrCheckExtent::Refused;
        }
    };
    if work > MORE {
        return PlanRejectionOrCheckExtent::Long;
    }
    let summary = training()
        .summarize_plan()
        .expect("what is a job has a summary");
    assert_eq!(summary.stages.len(), plan.pipeline as usize);
    // The bubble of these schedules has a formula, except for some schedules with split backward
    // passes.
    assert!(
        summary
            .bubble
            .is_none_or(|bubble| bubble.is_finite() && bubble >= 0.0)
    );
    for stage in &summary.stages {
        assert!(
            stage.peak
                >= stage
                    .memory
                    .iter()
                    .fold(0, |sum, one| one.saturating_add(sum))
        );
    }
    if work > LITTLE || plan.rank_count() > RANKS {
        return PlanRejectionOrCheckExtent::Summed;
    }
    compare_and_replay_job_ranks(&job, plan, &summary);
    PlanRejectionOrCheckExtent::Held
}

/// Sums over the work of all ranks.
#[derive(Default)]
struct AllRankWorkSums {
    flops: u128,
    nodes: u64,
    /// Bytes that were sent and bytes that were received, by (source, destination, tag).
    messages: BTreeMap<(u32, u32, i32), [Vec<u64>; 2]>,
    /// Collectives of each group, by rank.
    collectives: BTreeMap<String, BTreeMap<u32, Vec<String>>>,
}

/// Receives one rank's nodes in order.
struct RankNodeSummingSink<'a> {
    all: &'a mut AllRankWorkSums,
    groups: &'a DeclaredGroups,
    ranks: u32,
    rank: u32,
    last: u64,
    used: [u128; TensorClass::COUNT],
}

impl Sink for RankNodeSummingSink<'_> {
    fn receive_node(&mut self, node: &NodeView<'_>, data: &[u64]) -> Result<(), TraceError> {
        assert_eq!(node.id, self.last + 1, "ids ascend");
        self.last = node.id;
        assert!(data.is_sorted_by(|a, b| a < b), "{node:?}: {data:?}");
        assert!(data.iter().all(|id| *id < node.id), "{node:?}: {data:?}");
        assert!(!node.name.is_empty());
        match node.op {
            Op::Compute { flops, .. } => self.all.flops += u128::from(flops),
            Op::Message {
                receive,
                peer,
                tag,
                bytes,
                own,
                ..
            } => {
                assert!(own == Some(self.rank) && peer < self.ranks && peer != self.rank);
                let key = match receive {
                    false => (self.rank, peer, tag),
                    true => (peer, self.rank, tag),
                };
                let ends = self.all.messages.entry(key).or_default();
                ends[usize::from(receive)].push(bytes);
            }
            Op::Collective {
                kind, bytes, group, ..
            } => {
                let name = match group {
                    GroupName::World => String::new(),
                    GroupName::Number(number) => number.to_string(),
                    GroupName::Text(text) => panic!("{text}"),
                };
                let member = |members: &Vec<u32>| members.contains(&self.rank);
                assert!(name.is_empty() || self.groups.get(&name).is_some_and(member));
                let of_group = self.all.collectives.entry(name).or_default();
                let own = of_group.entry(self.rank).or_default();
                own.push(format!("{kind} {bytes}"));
            }
            _ => {}
        }
        for class in 0..TensorClass::COUNT {
            self.used[class] += u128::from(node.memory.allocates[class]);
            let left = self.used[class].checked_sub(node.memory.frees[class].into());
            self.used[class] = left.unwrap_or_else(|| panic!("{node:?} frees what is not there"));
        }
        Ok(())
    }
}

/// Compares the ranks of `job` with one another, and replays them.
fn compare_and_replay_job_ranks(
    job: &CheckedWorkloadPattern,
    plan: &ParallelismPlan,
    summary: &PlanSummary,
) {
    let groups = job.declared_groups();
    let mut all = AllRankWorkSums::default();
    for rank in 0..job.rank_count() {
        let mut one = RankNodeSummingSink {
            all: &mut all,
            groups: &groups,
            ranks: job.rank_count(),
            rank,
            last: 0,
            used: [0; TensorClass::COUNT],
        };
        job.emit_nodes(rank, &mut one).expect("it takes every node");
        assert_eq!(one.last, job.node_count(rank));
        // A pass frees its temporary memory, so only kept memory remains.
        assert_eq!(one.used[3..], [0, 0], "rank {rank}");
        let keeps =
            plan.has_training() || plan.zero == ZeroStage::Parameters || one.used[1..3] == [0, 0];
        assert!(keeps, "rank {rank}: {:?}", one.used);
        all.nodes += job.node_count(rank);
    }
    assert_eq!(all.flops, summary.flops);
    for (key, [sent, received]) in &all.messages {
        assert_eq!((sent.len(), sent), (1, received), "{key:?}");
    }
    for (group, ranks) in &all.collectives {
        let members = groups.get(group).cloned();
        let mut members = members.unwrap_or_else(|| (0..job.rank_count()).collect());
        members.sort_unstable();
        assert!(ranks.keys().eq(&members), "group {group:?}: {members:?}");
        let mut each = ranks.values();
        let first = each.next().expect("there is a member");
        assert!(each.all(|calls| calls == first), "group {group:?}");
    }
    let workload = job.build_workload().expect("a job is a workload");
    let machine = build_switch_machine(job.rank_count());
    let options = ReplayOptions::default_with_changes(|o| {
        o.compute = KernelDurationSource::Roofline(RooflinePeakFraction::default());
    });
    let prepared = CompiledReplay::new(&workload, &machine, &options).expect("it can be replayed");
    match prepared.run(()) {
        Ok((outcome, ())) => assert_eq!(outcome.nodes, all.nodes),
        // Sizes may be so large that simulated time overflows.
        Err(ReplayError::TooLong) => {}
        Err(why) => panic!("{why}"),
    }
}
