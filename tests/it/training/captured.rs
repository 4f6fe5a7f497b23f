//! Compares a captured step of PyTorch's `DistributedDataParallel` with the same step as chakram generates it.
//!
//! The model is a GPT of four blocks on four replicas, with two micro-batches, where only the
//! second reduces gradients, in single precision, with gradient clipping and AdamW. `captured.txt`
//! lists the products and reductions of one rank of the capture `pytorch/ddp_gpt`, in the order of
//! launches; all four ranks are equal. If the captures are available, they are compared with this
//! file.
//!
//! These are equal: all matrix products by sizes and FLOPs, all collectives by kind, bytes, members and order, and the
//! products finished when each collective is launched. The differences are listed and asserted here:
//!
//! - The two matrix products in the backward pass of the logits are in reverse order. They are independent, and no
//!   reduction is between them. They come from `mm`, which computes the gradient of its second argument first; all
//!   other products come from `addmm`, which does not.
//!
//! Causal attention is two products in the forward pass and five in the backward pass, as the
//! capture also states.
//!
//! The captured step has no other communication. PyTorch's earlier communication (equal initial replicas, rebuilt
//! buckets) occurs once per run, and the norm for gradient clipping is computed from gradients that every replica has.

use super::replay_job_with_observer;
use crate::convert::rig::ReplayTimesOfAllNodes;
use chakram::generate::{CheckedWorkloadPattern, ModelAndParallelismPlan, ParallelismPlan};
use chakram::machine::Machine;
use chakram::model::{Model, ModelWithDefinitionProperties, OperatorKind};

mod captures;
mod event;
mod generated;

use event::ProductAttentionOrAllReduce;
use generated::{GeneratedNode, GeneratedNodes};

const MODEL: &str = r#"
name = "captured"
source = "the scripts beside the captures"
kind = "transformer"
layers = 4
hidden = 256
heads = 8
vocabulary = 1024
sequence = 64
position_rows = 128
activation = "gelu"
norm = "layernorm"
positions = "learned"
biases = true
head = "logits"
tied = false
"#;

const PLAN: &str = r#"
data = 4
batch = 16
micro_batch = 2
dtype = "fp32"
optimizer = "adam"
mixed = false
clip = true
buckets = "parameters"
bucket = "2 MiB"
"#;

const CAPTURED: &str = include_str!("captured.txt");

/// The bytes of the reductions of the same step in PyTorch 2.3.1 (`pytorch/t231_ddp_gpt`), whose
/// first bucket has 1 MiB.
const OLDER: [u64; 8] = [
    1_048_576, 2_104_320, 2_106_368, 2_107_392, 2_104_320, 2_106_368, 2_107_392, 1_181_696,
];

fn parse_captured_events() -> Vec<ProductAttentionOrAllReduce> {
    CAPTURED
        .lines()
        .map(ProductAttentionOrAllReduce::parse)
        .collect()
}

fn parse_captured_model() -> Model {
    ModelWithDefinitionProperties::parse(MODEL, "model.toml", None)
        .unwrap()
        .model
}

fn build_pattern_from_changed_plan(
    model: Model,
    change: impl Fn(&mut ParallelismPlan),
) -> CheckedWorkloadPattern {
    let mut plan = ParallelismPlan::parse(PLAN, "plan.toml").unwrap();
    change(&mut plan);
    CheckedWorkloadPattern::new(ModelAndParallelismPlan { model, plan }).unwrap()
}

fn list_generated_nodes(job: &CheckedWorkloadPattern, rank: u32) -> Vec<GeneratedNode> {
    let mut nodes = GeneratedNodes::default();
    job.emit_nodes(rank, &mut nodes).unwrap();
    nodes.0
}

fn list_products_attentions_and_all_reduces(
    nodes: &[GeneratedNode],
) -> Vec<ProductAttentionOrAllReduce> {
    nodes.iter().filter_map(|node| node.event.clone()).collect()
}

/// Checks that both are equal, except for the order of the two products of the logits, which have 1024 words.
fn assert_equal_except_logit_product_order(
    generated: &[ProductAttentionOrAllReduce],
    captured: &[ProductAttentionOrAllReduce],
    what: &str,
) {
    assert_eq!(generated.len(), captured.len(), "{what}");
    let mut captured = captured.to_vec();
    // In the backward pass, the logits' products give 1024 x 256 weights from 128 tokens, and 128 x 256 inputs from
    // 1024 words.
    let [weights, inputs] = [
        ProductAttentionOrAllReduce::from_matrix_product_sizes(1024, 128, 256),
        ProductAttentionOrAllReduce::from_matrix_product_sizes(128, 1024, 256),
    ];
    let mut swapped = 0;
    for (i, event) in generated.iter().enumerate() {
        if *event != captured[i] {
            assert_eq!(captured[i..i + 2], [weights.clone(), inputs.clone()], "{i}");
            captured.swap(i, i + 1);
            swapped += 1;
        }
        assert_eq!(*event, captured[i], "{what}: {i}");
    }
    assert_eq!(swapped, 2, "{what}: one pair in each micro-batch");
}

#[test]
fn a_generated_step_multiplies_and_reduces_what_the_captured_one_does() {
    let job = build_pattern_from_changed_plan(parse_captured_model(), |_| {});
    assert_eq!(job.rank_count(), 4);
    for rank in 0..4 {
        let nodes = list_generated_nodes(&job, rank);
        assert_equal_except_logit_product_order(
            &list_products_attentions_and_all_reduces(&nodes),
            &parse_captured_events(),
            &format!("rank {rank}"),
        );
        for node in &nodes {
            match &node.event {
                Some(event) => assert_eq!(node.flops, event.flops(), "{}", node.name),
                None => assert_eq!(node.flops, 0, "{}", node.name),
            }
        }
    }
    // Every weight is in one bucket.
    let reduced = parse_captured_events()
        .into_iter()
        .map(|event| match event {
            ProductAttentionOrAllReduce::Reduction(bytes) => bytes,
            _ => 0,
        });
    assert_eq!(
        reduced.sum::<u64>(),
        4 * parse_captured_model().parameter_count()
    );
}

/// The sums of FLOPs are equal. If a generated step counts all pairs of tokens, it has the additional FLOPs that the
/// model gives for four samples: two products' FLOPs in the forward pass, and 5/2 times as many in the backward pass.
#[test]
fn flops_are_the_captured_ones() {
    let sum = |model| {
        let nodes = list_generated_nodes(&build_pattern_from_changed_plan(model, |_| {}), 0);
        nodes.iter().map(|node| node.flops).sum::<u64>()
    };
    let expected: u64 = parse_captured_events()
        .iter()
        .map(ProductAttentionOrAllReduce::flops)
        .sum();
    let mut both_ways = parse_captured_model();
    for layer in &mut both_ways.layers {
        for operator in &mut layer.operators {
            if let OperatorKind::Attention { causal, .. } = &mut operator.work {
                *causal = false;
            }
        }
    }
    assert_eq!(sum(parse_captured_model()), expected);
    let skipped = parse_captured_model().causally_skipped_multiplications();
    assert_eq!(sum(both_ways), expected + 4 * skipped * (2 + 5));
}

#[test]
fn a_smaller_first_bucket_gives_the_buckets_of_older_versions() {
    let sizes = |first| {
        let job = build_pattern_from_changed_plan(parse_captured_model(), |plan| {
            plan.first_bucket = first
        });
        let bytes = list_products_attentions_and_all_reduces(&list_generated_nodes(&job, 0))
            .into_iter()
            .filter_map(|e| match e {
                ProductAttentionOrAllReduce::Reduction(bytes) => Some(bytes),
                _ => None,
            });
        bytes.collect::<Vec<_>>()
    };
    assert_eq!(sizes(Some(1 << 20)), OLDER);
    // Without a smaller first bucket, all buckets are equal.
    assert_eq!(sizes(None), sizes(Some(2 << 20)));
    assert_ne!(sizes(None), OLDER);
}

/// A reduction waits for all nodes that computed gradients since the previous reduction, even in the middle of a layer,
/// and only the optimizer step waits for it.
#[test]
fn a_reduction_waits_for_what_found_its_gradients() {
    let nodes = list_generated_nodes(
        &build_pattern_from_changed_plan(parse_captured_model(), |_| {}),
        0,
    );
    let finds = |name: &str| {
        let Some((_, what)) = name.split_once("/bwd/") else {
            return false;
        };
        what.ends_with(".wgrad")
            || what.starts_with("norm")
            || ["tokens", "positions"].contains(&what)
    };
    let mut found = Vec::new();
    let mut reductions = Vec::new();
    for node in &nodes {
        if matches!(node.event, Some(ProductAttentionOrAllReduce::Reduction(_))) {
            assert_eq!(node.data, found, "{}", node.name);
            assert!(!found.is_empty());
            found.clear();
            reductions.push(node.id);
        } else if node.name.starts_with("mb1/") && finds(&node.name) {
            found.push(node.id);
        }
        let waits = node.data.iter().any(|id| reductions.contains(id));
        assert_eq!(waits, node.name == "optimizer", "{}", node.name);
    }
    assert!(found.is_empty());
    let step = nodes.iter().find(|node| node.name == "optimizer").unwrap();
    assert!(reductions.iter().all(|id| step.data.contains(id)));
    // Four of seven buckets end inside a layer: those after `mlp.down` and `mlp.up`.
    let inside = reductions.iter().filter(|id| {
        let name = &nodes[**id as usize - 1].name;
        name.contains("/mlp.")
    });
    assert_eq!((inside.count(), reductions.len()), (4, 7));
}

/// If messages are almost free, each reduction starts after the same products as when the captured reduction was
/// launched.
#[test]
fn reductions_start_where_the_captured_ones_do() {
    let job = build_pattern_from_changed_plan(parse_captured_model(), |_| {});
    let machine = r#"
name = "wide"
[npu.npu]
memory_bandwidth = "1000 GB/s"
memory_latency = "0 ns"
memory_capacity = "80 GB"
lanes = 8
host_lanes = 8
[npu.npu.peak]
fp32 = "1 TFLOP/s"
[[dimension]]
name = "wire"
shape = "switch"
size = 4
bandwidth = "1000000 GB/s"
latency = "0 ns"
algorithm = "ring"
"#;
    let machine = Machine::parse(machine, "wide").unwrap();
    let log = replay_job_with_observer(&job, &machine, ReplayTimesOfAllNodes::default()).1;
    let captured = parse_captured_events();
    for rank in 0..4 {
        let nodes = list_generated_nodes(&job, rank);
        let ran = &log.0[rank as usize];
        let done = |at: u64| {
            let ended = nodes.iter().filter(|node| node.flops > 0);
            ended
                .filter(|node| ran[node.id as usize - 1].1 <= at)
                .count()
        };
        let is_reduction = |event: &&ProductAttentionOrAllReduce| {
            matches!(event, ProductAttentionOrAllReduce::Reduction(_))
        };
        let mut launched = captured.iter().enumerate().filter(|(_, e)| is_reduction(e));
        for node in &nodes {
            if node
                .event
                .as_ref()
                .is_some_and(|event| is_reduction(&event))
            {
                let (at, event) = launched.next().unwrap();
                assert_eq!(node.event.as_ref(), Some(event));
                let before = captured[..at].iter().filter(|e| !is_reduction(e)).count();
                assert_eq!(done(ran[node.id as usize - 1].0), before, "{}", node.name);
            }
        }
        assert!(launched.next().is_none());
    }
}
