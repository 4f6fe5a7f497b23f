//! Tests models under plans: conservation laws over a grid of plans, and formulas for time, bytes
//! and memory.

use chakram::engine::{
    CompiledReplay, CompletedReplayTotals, KernelDurationSource, ReplayOptions,
    RooflinePeakFraction,
};
use chakram::generate::{CheckedWorkloadPattern, ModelAndParallelismPlan, ParallelismPlan};
use chakram::machine::Machine;
use chakram::model::{
    ActivationFunction, LayerOperator, LayerRole, Model, ModelLayer, OperatorKind, OutputHead,
    PositionEncoding, TotalAndChosenExpertCounts, TransformerBlock, TransformerModel,
};
use chakram::report::Observer;
use chakram::trace::{NodeView, Op, Sink, TensorClass, TraceError};
use std::collections::BTreeMap;

mod branches;
mod captured;
mod cuts;
mod extremes;
mod grid;
mod memory;
mod placement;
mod program;
mod routed;
mod schedules;
mod shared;
mod stages;
mod time;
mod uneven;
mod volumes;
mod without;

/// Returns a model of four blocks.
fn build_transformer(
    name: &str,
    block: TransformerBlock,
    positions: PositionEncoding,
    tied: bool,
) -> Model {
    let transformer = TransformerModel {
        layers: 4,
        block,
        vocabulary: 32,
        positions,
        segments: 0,
        embedding_norm: block.norm_after,
        final_norm: !block.norm_after,
        head: OutputHead::Logits { tied },
    };
    Model {
        name: name.to_owned(),
        source: String::new(),
        sequence: block.tokens,
        layers: transformer.expand_layers(),
    }
}

const GPT: TransformerBlock = TransformerBlock {
    tokens: 8,
    hidden: 16,
    heads: 4,
    kv_heads: 4,
    head_width: 4,
    ffn: 64,
    function: ActivationFunction::Gelu,
    gated: false,
    norm_bias: true,
    norm_after: false,
    biases: true,
    causal: true,
    dropout: true,
    rotary: false,
    qk_norm: false,
    experts: None,
};

fn build_gpt_model() -> Model {
    build_transformer("gpt", GPT, PositionEncoding::Learned(8), true)
}

/// Returns a model with fewer key heads than query heads, gates, no biases and no shared
/// parameters.
fn build_llama_model() -> Model {
    let block = TransformerBlock {
        kv_heads: 2,
        ffn: 48,
        function: ActivationFunction::Silu,
        gated: true,
        norm_bias: false,
        biases: false,
        dropout: false,
        rotary: true,
        ..GPT
    };
    build_transformer("llama", block, PositionEncoding::Rotary, false)
}

/// Returns a model with four blocks of experts, where each sequence has `tokens` tokens and each
/// token chooses `chosen` of `experts` experts.
fn build_experts_model(tokens: u64, experts: u64, chosen: u64) -> Model {
    let block = TransformerBlock {
        tokens,
        hidden: 128,
        head_width: 32,
        ffn: 16,
        function: ActivationFunction::Silu,
        gated: true,
        norm_bias: false,
        biases: false,
        dropout: false,
        rotary: true,
        experts: Some(TotalAndChosenExpertCounts { experts, chosen }),
        ..GPT
    };
    build_transformer("experts", block, PositionEncoding::Rotary, false)
}

/// Returns a model with norms after the residual sums, and with bidirectional attention.
fn build_bert_model() -> Model {
    let block = TransformerBlock {
        norm_after: true,
        causal: false,
        ..GPT
    };
    build_transformer("bert", block, PositionEncoding::Learned(8), true)
}

fn build_pattern_of_model_and_plan(
    model: &Model,
    plan: &ParallelismPlan,
) -> Result<CheckedWorkloadPattern, String> {
    let training = ModelAndParallelismPlan {
        model: model.clone(),
        plan: plan.clone(),
    };
    CheckedWorkloadPattern::new(training).map_err(|error| error.to_string())
}

fn replay_training_job(job: &CheckedWorkloadPattern, machine: &Machine) -> CompletedReplayTotals {
    replay_job_with_observer(job, machine, ()).0
}

fn replay_job_with_observer<O: Observer>(
    job: &CheckedWorkloadPattern,
    machine: &Machine,
    observer: O,
) -> (CompletedReplayTotals, O) {
    replay_job_with_changed_options(job, machine, observer, |_| ())
}

/// Replays with kernels by the roofline, and with the options that `change` sets.
fn replay_job_with_changed_options<O: Observer>(
    job: &CheckedWorkloadPattern,
    machine: &Machine,
    observer: O,
    change: impl Fn(&mut ReplayOptions),
) -> (CompletedReplayTotals, O) {
    let workload = job.build_workload().unwrap();
    let options = ReplayOptions::default_with_changes(|o| {
        o.compute = KernelDurationSource::Roofline(RooflinePeakFraction::default());
        change(o);
    });
    let prepared = CompiledReplay::new(&workload, machine, &options).unwrap();
    prepared.run(observer).unwrap()
}

/// Totals over a rank's nodes.
#[derive(Default)]
struct RankNodeSums {
    rank: u32,
    flops: u128,
    /// The bytes of messages by (source, destination, tag): first the sent bytes, then the received
    /// bytes.
    messages: BTreeMap<(u32, u32, i32), [Vec<u64>; 2]>,
    /// The `comm_size` of collectives, by name.
    collectives: Vec<(String, chakram::trace::CollectiveKind, u64)>,
    used: [u64; TensorClass::COUNT],
    peak: [u64; TensorClass::COUNT],
}

impl RankNodeSums {
    fn sum_nodes_of_rank(job: &CheckedWorkloadPattern, rank: u32) -> Self {
        let mut sums = Self {
            rank,
            ..Self::default()
        };
        job.emit_nodes(rank, &mut sums).unwrap();
        sums
    }

    fn peak_bytes_of_tensor_class(&self, class: TensorClass) -> u64 {
        self.peak[class as usize]
    }
}

impl Sink for RankNodeSums {
    fn receive_node(&mut self, node: &NodeView<'_>, _: &[u64]) -> Result<(), TraceError> {
        match node.op {
            Op::Compute { flops, .. } => self.flops += u128::from(flops),
            Op::Message {
                receive,
                peer,
                tag,
                bytes,
                ..
            } => {
                let key = match receive {
                    false => (self.rank, peer, tag),
                    true => (peer, self.rank, tag),
                };
                self.messages.entry(key).or_default()[usize::from(receive)].push(bytes);
            }
            Op::Collective { kind, bytes, .. } => {
                self.collectives.push((node.name.to_owned(), kind, bytes));
            }
            _ => {}
        }
        for class in 0..TensorClass::COUNT {
            self.used[class] += node.memory.allocates[class];
            self.peak[class] = self.peak[class].max(self.used[class]);
            // Panics if more is freed than was allocated.
            self.used[class] -= node.memory.frees[class];
        }
        Ok(())
    }
}

/// Returns a model of blocks of one square matrix product each, between two layers that take no time without kernels
/// that only move bytes.
fn build_product_chain_model(blocks: usize, side: u64) -> Model {
    let norm = |name: &str, role| {
        let work = OperatorKind::Norm {
            rows: 1,
            width: side,
            bias: false,
        };
        ModelLayer::new(
            name,
            role,
            vec![LayerOperator::new(
                "norm",
                work,
                chakram::model::OperatorTensorParallelSplit::Replicated,
            )],
        )
    };
    let product = OperatorKind::Linear {
        rows: 1,
        inputs: side,
        outputs: side,
        bias: false,
        tied: false,
    };
    let product = LayerOperator::new(
        "product",
        product,
        chakram::model::OperatorTensorParallelSplit::Replicated,
    );
    let block =
        |i: usize| ModelLayer::new(format!("layer{i}"), LayerRole::Block, vec![product.clone()]);
    let mut layers = vec![norm("in", LayerRole::Input)];
    layers.extend((0..blocks).map(block));
    layers.push(norm("out", LayerRole::Output));
    Model {
        name: "products".to_owned(),
        source: String::new(),
        sequence: 1,
        layers,
    }
}
