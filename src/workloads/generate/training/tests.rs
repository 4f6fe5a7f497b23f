//! Tests properties that all plans have, and dependencies between nodes.

use super::super::testing::{EmittedNode, check_and_record_every_rank, rejection_message};
use super::super::{WorkloadPattern, plan};
use super::*;
use crate::model::{
    ActivationFunction, OutputHead, PositionEncoding, TransformerBlock, TransformerModel,
};

mod activations;
mod context;
mod experts;
mod formats;
mod frozen;
mod hybrid;
mod latent;
mod model_flops;
mod offload;
mod prefetch;
mod unpadded;

/// A causal block with four heads of four columns, rotary positions and a gated MLP.
const ROTARY_BLOCK: TransformerBlock = TransformerBlock {
    tokens: 16,
    hidden: 16,
    heads: 4,
    kv_heads: 4,
    head_width: 4,
    ffn: 8,
    function: ActivationFunction::Silu,
    gated: true,
    norm_bias: false,
    norm_after: false,
    biases: false,
    causal: true,
    dropout: false,
    rotary: true,
    qk_norm: false,
    experts: None,
};

/// Returns a model with two blocks and a vocabulary of 40 tokens. If `tied` is true, the logits use the embedding's
/// weights.
fn build_two_block_model(name: &str, block: TransformerBlock, tied: bool) -> Model {
    let transformer = TransformerModel {
        layers: 2,
        block,
        vocabulary: 40,
        positions: PositionEncoding::Rotary,
        segments: 0,
        embedding_norm: false,
        final_norm: true,
        head: OutputHead::Logits { tied },
    };
    Model {
        name: name.to_owned(),
        source: String::new(),
        sequence: block.tokens,
        layers: transformer.expand_layers(),
    }
}

fn build_gpt2_pattern(plan: ParallelismPlan) -> WorkloadPattern {
    let model = Model::load_named("gpt2-small").unwrap();
    WorkloadPattern::from(ModelAndParallelismPlan { model, plan })
}

fn build_small_plan() -> ParallelismPlan {
    let mut plan = ParallelismPlan::new();
    (plan.data, plan.tensor, plan.pipeline) = (2, 2, 3);
    plan.batch = 12;
    plan
}

fn list_dependency_names<'a>(nodes: &'a [EmittedNode], name: &str) -> Vec<&'a str> {
    let node = nodes
        .iter()
        .find(|node| node.name == name)
        .unwrap_or_else(|| panic!("{name} is not there"));
    node.data
        .iter()
        .map(|id| &nodes[*id as usize - 1].name[..])
        .collect()
}

fn find_kernel_flops_and_bytes(nodes: &[EmittedNode], name: &str) -> [u64; 2] {
    let node = nodes.iter().find(|node| node.name == name);
    let kernel = node.and_then(|node| node.kernel);
    let (flops, bytes, _) = kernel.unwrap_or_else(|| panic!("{name} is not there"));
    [flops, bytes]
}

#[test]
fn ranks_match_the_representative_of_their_stage() {
    let mut plans = vec![build_small_plan(), build_small_plan(), build_small_plan()];
    plans[1].sequence_parallel = true;
    plans[1].zero = ZeroStage::Parameters;
    plans[1].order = [
        plan::ParallelAxis::Pipeline,
        plan::ParallelAxis::Tensor,
        plan::ParallelAxis::Data,
    ];
    plans[1].clip = true;
    plans[2].schedule = PipelineSchedule::Interleaved { chunks: 2 };
    plans[2].scatter_gather = true;
    plans[2].batch = 6 * 2;
    plans[2].ranks = (0..12).rev().collect();
    // 14 layers do not divide evenly among five stages.
    let uneven = || ParallelismPlan {
        pipeline: 5,
        split: plan::SplitUnit::Multiplications,
        ..build_small_plan()
    };
    plans.push(uneven());
    for plan in plans {
        check_and_record_every_rank(build_gpt2_pattern(plan));
    }
}

/// With adapters, each stage has two kinds of traces, regardless of its number of members: one for adapters, and one
/// for other members.
#[test]
fn each_stage_with_adapters_has_separate_traces_for_adapters_and_others() {
    use plan::AdapterSums;
    for stages in [[4, 4, 4], [2, 4, 2], [4, 2, 4]] {
        for (adapters, sums) in [
            (1, AdapterSums::Source),
            (1, AdapterSums::Destination),
            (2, AdapterSums::Source),
            (2, AdapterSums::Destination),
        ] {
            let plan = ParallelismPlan {
                tensor: 4,
                stage_tensor: stages.to_vec(),
                adapters: Some(adapters),
                adapter_sums: sums,
                ..build_small_plan()
            };
            let pattern = build_gpt2_pattern(plan);
            check_and_record_every_rank(pattern.clone());
            let job = super::super::CheckedWorkloadPattern::new(pattern).unwrap();
            let shapes: Vec<u32> = (0..job.rank_count())
                .map(|rank| job.representative_of_same_shape_ranks(rank))
                .collect();
            let distinct: std::collections::BTreeSet<u32> = shapes.into_iter().collect();
            // If every member is an adapter, there is only one kind of trace.
            let kinds = stages.map(|tensor| if tensor == adapters { 1 } else { 2 });
            let kinds = kinds.into_iter().sum::<usize>();
            assert_eq!(distinct.len(), kinds, "{stages:?} {adapters} {sums:?}");
        }
    }
}

/// The limits on SRAM capacity and access size allow only one tile, so nearly every load and store is split into as
/// many accesses as allowed. An operator then has more than 80 nodes, which is more than with unsplit accesses.
#[test]
fn split_memory_accesses_stay_within_the_node_count_bound() {
    // GPT-2's widest tile has 2 x 3072 + 1 values of 2 B.
    const TILE: u64 = 13_000;
    for (name, samples) in [("gpt2-small", 64), ("resnet-18", 64), ("dlrm", 4096)] {
        let model = Model::load_named(name).unwrap();
        let operators: usize = model.layers.iter().map(|layer| layer.operators.len()).sum();
        for (largest, recompute) in [
            (None, RecomputePolicy::Full),
            (Some(TILE), RecomputePolicy::None),
            (Some(TILE), RecomputePolicy::Full),
        ] {
            let mut plan = ParallelismPlan::new();
            (plan.recompute, plan.largest_access) = (recompute, largest);
            (plan.residency, plan.sram) = (plan::ResidencyRule::Corrected, Some(TILE));
            (plan.batch, plan.micro_batch) = (samples, samples);
            let most = check::max_nodes_per_rank(&model, &plan, 1);
            let model = model.clone();
            let pattern = ModelAndParallelismPlan { model, plan };
            let nodes = check_and_record_every_rank(pattern)[0].len();
            assert!(nodes as u128 <= most, "{name}: {nodes} of {most}");
            let is_cut = nodes > 80 * operators;
            assert_eq!(is_cut, largest.is_some(), "{name}: {nodes} of {operators}");
        }
    }
}

#[test]
fn input_gradient_sums_overlap_weight_gradient_kernels() {
    let mut plan = ParallelismPlan::new();
    plan.tensor = 2;
    let ranks = check_and_record_every_rank(build_gpt2_pattern(plan.clone()));
    let nodes = &ranks[0];
    let up = "mb0/layer3/bwd/mlp.up";
    assert_eq!(
        list_dependency_names(nodes, &format!("{up}.all-reduce")),
        [format!("{up}.dgrad")]
    );
    let before = list_dependency_names(nodes, &format!("{up}.dgrad"));
    assert_eq!(list_dependency_names(nodes, &format!("{up}.wgrad")), before);
    assert_eq!(
        list_dependency_names(nodes, "mb0/layer3/bwd/norm2"),
        [format!("{up}.all-reduce")]
    );
    plan.tensor_overlap = false;
    let ranks = check_and_record_every_rank(build_gpt2_pattern(plan.clone()));
    let nodes = &ranks[0];
    assert_eq!(
        list_dependency_names(nodes, &format!("{up}.all-reduce")),
        [format!("{up}.wgrad")]
    );
    // With sequence parallelism, the input is gathered again while its gradient is computed.
    plan.tensor_overlap = true;
    plan.sequence_parallel = true;
    let ranks = check_and_record_every_rank(build_gpt2_pattern(plan));
    let nodes = &ranks[0];
    assert_eq!(
        list_dependency_names(nodes, &format!("{up}.all-gather")),
        before
    );
    let both = [before[0].to_owned(), format!("{up}.all-gather")];
    assert_eq!(list_dependency_names(nodes, &format!("{up}.wgrad")), both);
    assert_eq!(
        list_dependency_names(nodes, &format!("{up}.reduce-scatter")),
        [format!("{up}.dgrad")]
    );
}

#[test]
fn updated_parameters_are_gathered_beside_the_next_forward_pass() {
    let mut plan = ParallelismPlan::new();
    (plan.data, plan.zero, plan.steps, plan.batch) = (2, ZeroStage::Optimizer, 2, 4);
    plan.bucket = 1;
    let gathers = |nodes: &[EmittedNode]| {
        let names = nodes.iter().map(|node| node.name.clone());
        names
            .filter(|name| name.ends_with("/parameters/all-gather"))
            .collect::<Vec<_>>()
    };
    let after = check_and_record_every_rank(build_gpt2_pattern(plan.clone()));
    plan.gather_overlap = true;
    let beside = check_and_record_every_rank(build_gpt2_pattern(plan));
    let nodes = &beside[0];
    assert_eq!(gathers(nodes), gathers(&after[0]));
    // In the first micro-batch, each layer waits for its own gather, and the gathers wait only for the
    // optimizer.
    let of = |layer: &str| {
        gathers(nodes)
            .into_iter()
            .filter(move |name| name.starts_with(layer))
            .collect::<Vec<_>>()
    };
    for (step, before) in [("step0", "resident"), ("step1", "step0/optimizer")] {
        for layer in ["layer3", "layer4"] {
            let own = of(&format!("{step}/{layer}/"));
            assert!(!own.is_empty());
            assert!(
                own.iter()
                    .all(|gather| list_dependency_names(nodes, gather) == [before])
            );
            let first = list_dependency_names(nodes, &format!("{step}/mb0/{layer}/fwd/norm1"));
            assert_eq!(first[..own.len()], own, "{first:?}");
            assert_eq!(first.len(), own.len() + 1, "and for the layer before");
            assert_eq!(
                list_dependency_names(nodes, &format!("{step}/mb1/{layer}/fwd/norm1")).len(),
                1
            );
        }
    }
    assert_eq!(nodes.last().unwrap().name, "step1/optimizer");
}

/// With buckets of one byte, each gradient has its own bucket.
#[test]
fn a_bucket_can_end_within_an_operator() {
    let mut plan = ParallelismPlan::new();
    (plan.data, plan.pipeline, plan.batch) = (2, 2, 4);
    (plan.buckets, plan.bucket) = (BucketPolicy::Parameters, 1);
    let reductions = |plan: &ParallelismPlan, rank: usize, of: &str| {
        let ranks = check_and_record_every_rank(build_gpt2_pattern(plan.clone()));
        let nodes = &ranks[rank];
        let name = format!("mb1/{of}/gradients/all-reduce");
        let found = nodes.iter().filter(|node| node.name == name);
        let named = |id: &u64| nodes[*id as usize - 1].name.clone();
        let found = found.map(|node| (node.data.iter().map(named).collect(), node.op.clone()));
        found.collect::<Vec<(Vec<String>, String)>>()
    };
    let bytes = |op: &str| {
        let (_, size) = op.split_once("bytes: ").unwrap();
        size.split_once(',').unwrap().0.parse().unwrap()
    };
    // One node computes the gradients of both a bias (768 weights) and a matrix (3072 x 768
    // weights), with 2 B per weight.
    let found = reductions(&plan, 2, "layer9/mlp.down");
    let sizes: Vec<u64> = found.iter().map(|(_, op)| bytes(op)).collect();
    assert_eq!(sizes, [2 * 768, 2 * 3072 * 768]);
    for (after, _) in &found {
        assert_eq!(after, &["mb1/layer9/bwd/mlp.down.wgrad"]);
    }
    // The last stage has a copy of the first stage's embedding table (50257 words).
    for (rank, of, finder) in [
        (2, "head/logits", "logits.wgrad"),
        (0, "embedding/tokens", "tokens"),
    ] {
        let found = reductions(&plan, rank, of);
        let layer = of.split_once('/').unwrap().0;
        assert_eq!(found.len(), 1, "{of}");
        assert_eq!(found[0].0, [format!("mb1/{layer}/bwd/{finder}")]);
        assert_eq!(bytes(&found[0].1), 2 * 50257 * 768, "{of}");
    }
    // Without the norm's kernel, the norm's gradients are complete when the previous node ends.
    plan.without.add_effect(AblationEffect::MemoryBound);
    for (after, _) in reductions(&plan, 2, "layer9/norm2") {
        assert_eq!(after, ["mb1/layer9/bwd/mlp.up.wgrad"]);
    }
}

#[test]
fn plan_degrees_that_do_not_divide_the_model_are_refused() {
    let why = |change: fn(&mut ParallelismPlan)| {
        let mut plan = ParallelismPlan::new();
        change(&mut plan);
        rejection_message(build_gpt2_pattern(plan))
    };
    for (change, expected) in [
        (
            (|p| p.tensor = 8) as fn(&mut ParallelismPlan),
            "`tensor` is 8; expected a divisor of the 12 heads of attention.core",
        ),
        (
            |p| p.pipeline = 5,
            "`pipeline` is 5; expected a divisor of the 12 blocks of gpt2-small; or split = multiplications; \
             or `[[stage]]` with the layers of each stage, which are 14, of which 0 is before and 13 is \
             after the 12 blocks",
        ),
        (
            |p| (p.pipeline, p.split) = (15, plan::SplitUnit::Multiplications),
            "`pipeline` is 15; expected a number that times 1 chunks is at most all 14 layers, with split = \
             multiplications",
        ),
        (
            |p| p.data = 2,
            "`batch` is 1; expected a multiple of data x micro_batch, 2 x 1 = 2",
        ),
        (
            |p| p.sequence_parallel = true,
            "`sequence_parallel` is true; expected false with tensor = 1",
        ),
        (
            |p| p.zero = ZeroStage::Optimizer,
            "`zero` is 1; expected 0 with data = 1",
        ),
        (
            |p| p.recompute = RecomputePolicy::Selective,
            "`recompute` is selective; expected none, full or as-needed",
        ),
        (
            |p| p.order = [plan::ParallelAxis::Data; 3],
            "`order` is dp,dp,dp; expected tp, dp and pp in some order; tp",
        ),
        (
            |p| p.ranks = vec![1],
            "`ranks` is a list of 1; expected each rank from 0 to 0 once",
        ),
        (
            |p| p.dtype = Dtype::Fp4,
            "`dtype` is fp4; expected a format of whole bytes",
        ),
        (|p| p.bucket = 0, "`bucket` is 0 B"),
        (|p| p.first_bucket = Some(0), "`first_bucket` is 0 B"),
        (
            |p| p.stages = vec![[0, 3], [4, 13]],
            "`stage` is 2; expected 1",
        ),
        (
            |p| p.stages = vec![[0, 12]],
            "`stage` is 13 layers; expected all layers of gpt2-small, 14, of which 0 is before and 13 is \
             after the 12 blocks; no stage has layer 13",
        ),
        // If stages cover only the blocks, this error comes first, even if other options are invalid too.
        (
            |p| {
                p.stages = vec![[0, 11]];
                p.bucket = 0;
            },
            "`stage` is 12 layers; expected all layers of gpt2-small, 14, of which 0",
        ),
        (
            |p| p.stages = vec![[0, 3], [5, 14]],
            "`stage` is 2; expected 1",
        ),
        (
            |p| {
                p.pipeline = 2;
                p.stages = vec![[0, 3], [5, 14]];
            },
            "`stage` is 5-14; expected at index 1 a range that begins with layer 4 and ends before layer 14; \
             no stage has layer 4",
        ),
        (
            |p| {
                p.pipeline = 2;
                p.stages = vec![[0, 3], [7, 12]];
            },
            "`stage` is 10 layers; expected all layers of gpt2-small, 14, of which 0 is before and 13 is after the \
             12 blocks; no stage has layer 4-6, 13",
        ),
        (
            |p| {
                p.pipeline = 2;
                p.schedule = PipelineSchedule::LayerWise { layers: 1 }
            },
            "expected 1 with schedule = layer-wise",
        ),
    ] {
        let found = why(change);
        assert!(found.contains(expected), "{found}\n{expected}");
    }
}
