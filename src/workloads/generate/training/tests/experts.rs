//! Tests experts: their kernels, token exchanges between ranks, gradients and memory.

use super::super::super::WorkloadPattern;
use super::super::super::testing::{EmittedNode, record_every_rank};
use super::super::*;
use super::rejection_message;
use crate::generate::plan::{
    ElementwiseKernels, ExpertExchangeForm, ParallelAxis, RecomputedModule,
};
use crate::model::{
    ActivationFunction, ExpertRoutingCounts, OperatorKind, OutputHead, PositionEncoding,
    TransformerBlock, TransformerModel,
};
use chakram_trace::format::{TensorClass, TrainingPhase};

mod forms;

/// Number of tokens. The next constants are the hidden size, the number of experts, the number of
/// copies per token, and the width of an expert.
const T: u64 = 12;
const H: u64 = 16;
const X: u64 = 4;
const C: u64 = 2;
const F: u64 = 8;

fn model() -> Model {
    let block = TransformerBlock {
        tokens: T,
        hidden: H,
        heads: 4,
        kv_heads: 4,
        head_width: 4,
        ffn: F,
        function: ActivationFunction::Silu,
        gated: true,
        norm_bias: false,
        norm_after: false,
        biases: false,
        causal: true,
        dropout: false,
        rotary: true,
        qk_norm: false,
        experts: Some(ExpertRoutingCounts {
            experts: X,
            chosen: C,
        }),
    };
    let transformer = TransformerModel {
        layers: 2,
        block,
        vocabulary: 40,
        positions: PositionEncoding::Rotary,
        segments: 0,
        embedding_norm: false,
        final_norm: true,
        head: OutputHead::Logits { tied: false },
    };
    Model {
        name: "experts".to_owned(),
        source: String::new(),
        sequence: T,
        layers: transformer.expand_layers(),
    }
}

fn ranks(plan: ParallelismPlan) -> Vec<Vec<EmittedNode>> {
    let pattern = ModelAndParallelismPlan {
        model: model(),
        plan,
    };
    record_every_rank(WorkloadPattern::Training(Box::new(pattern)))
}

fn kernel(nodes: &[EmittedNode], name: &str) -> [u64; 2] {
    let node = nodes.iter().find(|node| node.name == name);
    let kernel = node.and_then(|node| node.kernel);
    let (flops, bytes, _) = kernel.unwrap_or_else(|| panic!("{name} is not there"));
    [flops, bytes]
}

#[test]
fn kernels_of_experts_have_the_sizes_of_their_tensors() {
    let nodes = &ranks(ParallelismPlan::new())[0];
    let up = 2 * F;
    for (name, expected) in [
        // The router multiplies tokens by its weights; all values have 2 B.
        (
            "fwd/experts.dispatch.score",
            [2 * T * H * X, 2 * (T * H + H * X + T * X)],
        ),
        // The kernel reads scores, and writes its result in single precision.
        ("fwd/experts.dispatch.choose", [0, (2 + 4) * T * X]),
        // Each token is read once, and its two copies are written.
        ("fwd/experts.dispatch.permute", [0, 2 * (T * H + C * T * H)]),
        // The product processes 24 copies, and reads the weights of all four experts once.
        (
            "fwd/experts.up",
            [
                2 * C * T * H * up,
                2 * (C * T * H + X * H * up + C * T * up),
            ],
        ),
        (
            "fwd/experts.down",
            [2 * C * T * F * H, 2 * (C * T * F + X * F * H + C * T * H)],
        ),
        ("fwd/experts.combine", [0, 2 * (C * T * H + T * H)]),
        // This kernel reads both factors of a score's gradient (the results and their gradients),
        // and writes the gradient in single precision.
        (
            "bwd/experts.combine.scores",
            [0, 2 * 2 * C * T * H + 4 * C * T],
        ),
        ("bwd/experts.combine.copies", [0, 2 * (T * H + C * T * H)]),
        (
            "bwd/experts.up.dgrad",
            [
                2 * C * T * H * up,
                2 * (C * T * H + X * H * up + C * T * up),
            ],
        ),
        (
            "bwd/experts.up.wgrad",
            [
                2 * C * T * H * up,
                2 * (C * T * H + X * H * up + C * T * up),
            ],
        ),
        ("bwd/experts.dispatch.permute", [0, 2 * (C * T * H + T * H)]),
        // The kernel reads probabilities and their gradients in single precision.
        ("bwd/experts.dispatch.choose", [0, (4 + 4 + 2) * T * X]),
        (
            "bwd/experts.dispatch.score.dgrad",
            [2 * T * H * X, 2 * (T * X + H * X + T * H)],
        ),
        ("bwd/experts.dispatch.sum", [0, 3 * 2 * T * H]),
        (
            "bwd/experts.dispatch.score.wgrad",
            [2 * T * H * X, 2 * (T * H + T * X + H * X)],
        ),
    ] {
        assert_eq!(
            kernel(nodes, &format!("mb0/layer1/{name}")),
            expected,
            "{name}"
        );
    }
    // Each multiplication of the model counts once in the forward pass and twice in the backward pass, with two
    // corrections. The causal mask skips some of them. Flash attention recomputes scores, and so has seven products
    // instead of six.
    let flops: u64 = nodes
        .iter()
        .filter_map(|node| node.kernel)
        .map(|one| one.0)
        .sum();
    let model = model();
    let attention = 2 * 4 * 4 * T * (T + 1) / 2;
    let products = 2 * model.multiplication_count() - 2 * model.causally_skipped_multiplications();
    assert_eq!(flops, 3 * products + 2 * 2 * attention / 2);
}

#[test]
fn a_tensor_group_gathers_copies_and_scatters_their_results() {
    let mut plan = ParallelismPlan::new();
    (plan.tensor, plan.sequence_parallel) = (2, true);
    let nodes = &ranks(plan)[0];
    let data = |name: &str| super::data(nodes, &format!("mb0/layer1/{name}"));
    // Each member of the group routes its own tokens. Each member has some columns of every expert. For these, it
    // gathers the copies of all members. Afterwards, it receives only the results of its own copies.
    assert_eq!(
        kernel(nodes, "mb0/layer1/fwd/experts.dispatch.score")[0],
        T * H * X
    );
    assert_eq!(
        kernel(nodes, "mb0/layer1/fwd/experts.up")[0],
        2 * C * T * H * F
    );
    assert_eq!(
        data("fwd/experts.up"),
        ["mb0/layer1/fwd/experts.up.all-gather"]
    );
    assert_eq!(
        data("fwd/experts.up.all-gather"),
        ["mb0/layer1/fwd/experts.dispatch.permute"]
    );
    assert_eq!(
        data("fwd/experts.combine"),
        ["mb0/layer1/fwd/experts.down.reduce-scatter"]
    );
    // The gathered copies are saved, so the backward pass gathers only the gradient of the result.
    let gathers = nodes
        .iter()
        .filter(|node| node.name.contains("layer1/bwd/experts"));
    let gathers = gathers.filter(|node| node.name.ends_with("all-gather"));
    let gathers: Vec<_> = gathers.map(|node| &node.name[..]).collect();
    assert_eq!(gathers, ["mb0/layer1/bwd/experts.down.all-gather"]);
}

/// Returns a plan with four replicas, in which two neighbours share the four experts, two on each rank.
fn shared() -> ParallelismPlan {
    let mut plan = ParallelismPlan::new();
    (plan.data, plan.expert, plan.batch) = (4, 2, 8);
    plan
}

fn summary(plan: &ParallelismPlan) -> PlanSummary {
    let (model, plan) = (model(), plan.clone());
    ModelAndParallelismPlan { model, plan }
        .summarize_plan()
        .unwrap()
}

/// Number of weights in a layer's experts. The next two constants count the weights in the rest of a layer and the
/// weights outside the layers.
const OF_EXPERTS: u64 = X * (H * 2 * F + F * H);
const OF_BLOCK: u64 = H * 3 * H + H * H + H * X + 2 * H;
const OF_ENDS: u64 = 2 * 40 * H + H;

#[test]
fn neighbouring_replicas_have_experts_between_them() {
    let mut plan = shared();
    (plan.tensor, plan.clip) = (2, true);
    let groups = summary(&plan).groups;
    let of = |family: &str| {
        let found = groups.iter().find(|one| one.family == family);
        found.map(|one| one.all.clone()).unwrap_or_default()
    };
    // Ranks 0 and 1 are one tensor group, and ranks 2 and 3 are the next replica.
    let pairs = [[0, 2], [1, 3], [4, 6], [5, 7]];
    assert_eq!(of("expert"), pairs);
    assert_eq!(of("expert-data"), [[0, 4], [1, 5], [2, 6], [3, 7]]);
    assert_eq!(of("data"), [[0, 2, 4, 6], [1, 3, 5, 7]]);
    // Each of the four replicas has different experts.
    plan.expert = 4;
    let groups = summary(&plan).groups;
    assert!(groups.iter().all(|one| one.family != "expert-data"));
}

/// With ZeRO 3, fewer ranks gather experts' weights than other weights.
#[test]
fn parameters_of_experts_are_gathered_among_their_replicas() {
    let mut plan = shared();
    plan.zero = ZeroStage::Parameters;
    let nodes = &ranks(plan.clone())[1];
    let gathered = |name: &str| {
        let node = nodes.iter().find(|node| node.name == name);
        let node = node.unwrap_or_else(|| panic!("{name} is not there"));
        let bytes = node.op.split("bytes: ").nth(1).unwrap();
        let bytes: u64 = bytes.split(',').next().unwrap().parse().unwrap();
        (
            bytes,
            node.memory.allocates[TensorClass::Temporary as usize],
        )
    };
    let own = OF_EXPERTS / 2;
    for pass in ["fwd", "bwd"] {
        // Four replicas share a block, and two replicas share two experts of a layer.
        let name = format!("mb0/layer1/{pass}/gather");
        assert_eq!(gathered(&name), (2 * OF_BLOCK / 4, 2 * OF_BLOCK));
        let name = format!("mb0/layer1/{pass}/experts/gather");
        assert_eq!(gathered(&name), (2 * own / 2, 2 * own));
    }
    let after = super::data(nodes, "mb0/layer1/fwd/norm1");
    assert!(
        after.contains(&"mb0/layer1/fwd/experts/gather"),
        "{after:?}"
    );
    let stage = &summary(&plan).stages[0];
    let [common, experts] = [2 * OF_BLOCK + OF_ENDS, 2 * own];
    for (class, bytes) in [
        (TensorClass::Weights, 2),
        (TensorClass::Gradients, 2),
        (TensorClass::Optimizer, 12),
    ] {
        let expected = bytes * common / 4 + bytes * experts / 2;
        assert_eq!(stage.memory[class as usize], expected, "{class:?}");
    }
    let scattered = stage.communication.iter();
    let mut scattered: Vec<_> = scattered
        .filter(|one| one.kind == "reduce-scatter")
        .map(|one| (one.family, one.bytes))
        .collect();
    scattered.sort_unstable();
    // Two micro-batches.
    let twice = |weights: u64| u128::from(2 * 2 * weights);
    assert_eq!(
        scattered,
        [("data", twice(common)), ("expert-data", twice(experts))]
    );
    // If no other rank has the same experts, their weights are not gathered.
    plan.expert = 4;
    let nodes = &ranks(plan)[0];
    assert!(
        nodes
            .iter()
            .all(|node| !node.name.contains("experts/gather"))
    );
    let changes = |class: usize| {
        let of = |node: &EmittedNode| {
            i128::from(node.memory.allocates[class]) - i128::from(node.memory.frees[class])
        };
        nodes.iter().map(of).sum::<i128>()
    };
    assert_eq!(changes(TensorClass::Temporary as usize), 0);
}

/// Returns a plan with `data` replicas of `tensor` members. Each expert has `shards` shards, one per member; `expert`
/// blocks of ranks divide the experts.
fn spread(tensor: u32, data: u32, expert: u32, shards: u32) -> ParallelismPlan {
    let mut plan = ParallelismPlan::new();
    (plan.tensor, plan.data, plan.batch) = (tensor, data, data.into());
    (plan.expert, plan.expert_tensor) = (expert, Some(shards));
    plan.sequence_parallel = true;
    plan
}

#[test]
fn members_of_tensor_groups_have_experts_between_them() {
    let of = |plan: &ParallelismPlan, family: &str| {
        let groups = summary(plan).groups;
        let found = groups.into_iter().find(|one| one.family == family);
        found.map(|one| one.all).unwrap_or_default()
    };
    // Rank `2 replica + member` has whole experts, and four neighbouring ranks together have all of them. Ranks with a
    // distance of 4 therefore have the same experts.
    let plan = spread(2, 4, 4, 1);
    assert_eq!(of(&plan, "expert"), [[0, 1, 2, 3], [4, 5, 6, 7]]);
    assert_eq!(of(&plan, "expert-data"), [[0, 4], [1, 5], [2, 6], [3, 7]]);
    assert_eq!(of(&plan, "data"), [[0, 2, 4, 6], [1, 3, 5, 7]]);
    assert_eq!(of(&plan, "tensor"), [[0, 1], [2, 3], [4, 5], [6, 7]]);
    assert!(of(&plan, "expert-tensor").is_empty());
    // Two of the four members shard an expert: rank `4 replica + member` has shard `rank % 2` of
    // the experts in block `rank / 2`. Two neighbouring blocks together have all experts.
    let plan = spread(4, 2, 2, 2);
    assert_eq!(of(&plan, "expert"), [[0, 2], [1, 3], [4, 6], [5, 7]]);
    assert_eq!(of(&plan, "expert-data"), [[0, 4], [1, 5], [2, 6], [3, 7]]);
    let pairs = [[0, 1], [2, 3], [4, 5], [6, 7]];
    assert_eq!(of(&plan, "expert-tensor"), pairs);
    // For any rank order, the world size is expert_tensor x expert x expert-data x pipeline. The
    // second stage has its own groups.
    let mut plan = spread(4, 2, 4, 1);
    (plan.pipeline, plan.order) = (
        2,
        [
            ParallelAxis::Pipeline,
            ParallelAxis::Tensor,
            ParallelAxis::Data,
        ],
    );
    // The groups contain the ranks `8 replica + 2 member + stage`.
    let groups = [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]];
    assert_eq!(of(&plan, "expert"), groups);
    let pairs: Vec<[u32; 2]> = (0..8).map(|rank| [rank, rank + 8]).collect();
    assert_eq!(of(&plan, "expert-data"), pairs);
    // By default, experts have the same tensor degree as all other weights.
    let mut usual = shared();
    usual.tensor = 2;
    let mut same = usual.clone();
    same.expert_tensor = Some(2);
    assert_eq!(summary(&usual), summary(&same));
}

#[test]
fn members_send_copies_of_their_own_tokens_to_whole_experts() {
    // Each of the two members has 6 tokens (12 copies), and one whole expert out of four.
    let nodes = &ranks(spread(2, 2, 4, 1))[1];
    let data = |name: &str| super::data(nodes, &format!("mb0/layer1/{name}"));
    let (copies, up) = (C * T / 2, 2 * F);
    for (name, expected) in [
        (
            "fwd/experts.up",
            [2 * copies * H * up, 2 * (copies * H + H * up + copies * up)],
        ),
        (
            "fwd/experts.down",
            [2 * copies * F * H, 2 * (copies * F + F * H + copies * H)],
        ),
        ("fwd/experts.combine", [0, 2 * (copies * H + T / 2 * H)]),
    ] {
        assert_eq!(
            kernel(nodes, &format!("mb0/layer1/{name}")),
            expected,
            "{name}"
        );
    }
    for (name, after) in [
        ("fwd/experts.up", "fwd/experts.dispatch.all-to-all"),
        ("fwd/experts.combine.all-to-all", "fwd/experts.down"),
        ("bwd/experts.down.dgrad", "bwd/experts.combine.all-to-all"),
    ] {
        assert_eq!(data(name), [format!("mb0/layer1/{after}")], "{name}");
    }
    let exchanges = nodes.iter().filter(|node| node.op.contains("AllToAll"));
    let exchanges: Vec<_> = exchanges.collect();
    // In each of the two layers, the forward and the backward pass each have two exchanges among all four ranks, with 2
    // B per value.
    assert_eq!(exchanges.len(), 2 * 4);
    for node in exchanges {
        assert!(
            node.op.contains(&format!("bytes: {},", copies * H * 2)),
            "{}",
            node.op
        );
        assert!(node.op.contains("group: World"), "{}", node.op);
    }
    // However the experts are distributed, the FLOPs of all ranks add up to the model's FLOPs.
    let mut cut = spread(2, 2, 2, 2);
    assert_eq!(summary(&cut).flops, summary(&spread(2, 2, 4, 1)).flops);
    cut.expert_tensor = None;
    assert_eq!(summary(&cut).flops, summary(&spread(2, 2, 1, 1)).flops);
}

#[test]
fn members_that_cut_an_expert_gather_their_copies() {
    // Each of the four members has 3 tokens, hence 6 copies. A pair of members multiplies its 12
    // copies by its halves of two experts (out of four).
    let nodes = &ranks(spread(4, 1, 2, 2))[0];
    let data = |name: &str| super::data(nodes, &format!("mb0/layer1/{name}"));
    let (copies, up) = (C * T / 2, F);
    assert_eq!(
        kernel(nodes, "mb0/layer1/fwd/experts.up"),
        [
            2 * copies * H * up,
            2 * (copies * H + 2 * H * up + copies * up)
        ]
    );
    for (name, after) in [
        ("fwd/experts.up.all-gather", "fwd/experts.dispatch.sort"),
        ("fwd/experts.up", "fwd/experts.up.all-gather"),
        (
            "fwd/experts.combine.sort",
            "fwd/experts.down.reduce-scatter",
        ),
    ] {
        assert_eq!(data(name), [format!("mb0/layer1/{after}")], "{name}");
    }
    let gather = nodes
        .iter()
        .find(|node| node.name == "mb0/layer1/fwd/experts.up.all-gather");
    let gather = &gather.unwrap().op;
    assert!(
        gather.contains(&format!("bytes: {},", copies / 2 * H * 2)),
        "{gather}"
    );
}

#[test]
fn whole_experts_are_kept_stepped_and_summed_by_ranks_that_have_the_same() {
    // A member has half of attention, embedding and logits, but all weights of norms and router.
    let halves = H * 3 * H / 2 + H * H / 2;
    let common = 40 * H + H + 2 * (halves + H * X + 2 * H);
    // Four replicas with two members each are on eight ranks. Four ranks together have all experts, so each expert is
    // on two of the eight.
    let own = 2 * OF_EXPERTS / 4;
    let mut plan = spread(2, 4, 4, 1);
    for (zero, [by, of_experts]) in [(ZeroStage::None, [1, 1]), (ZeroStage::Optimizer, [4, 2])] {
        plan.zero = zero;
        let stage = &summary(&plan).stages[0];
        assert_eq!(stage.parameters, common + own);
        assert_eq!(
            stage.memory[TensorClass::Weights as usize],
            2 * (common + own)
        );
        let kept = 12 * common.div_ceil(by) + 12 * own / of_experts;
        assert_eq!(
            stage.memory[TensorClass::Optimizer as usize],
            kept,
            "{zero}"
        );
    }
    plan.zero = ZeroStage::None;
    let sums = |plan: &ParallelismPlan| -> Vec<(&'static str, u128)> {
        let all = &summary(plan).stages[0].communication;
        let sums = all
            .iter()
            .filter(|one| one.phase == Some(TrainingPhase::Synchronize));
        sums.map(|one| (one.family, one.bytes)).collect()
    };
    let bytes = |weights: u64| u128::from(2 * weights);
    // Each member computes the gradients of norms and router only from its own tokens, so these must be summed; its
    // experts' gradients are complete.
    let of_tokens = H + 2 * (H * X + 2 * H);
    assert_eq!(
        sums(&plan),
        [
            ("data", bytes(common)),
            ("expert-data", bytes(own)),
            ("tensor", bytes(of_tokens))
        ]
    );
    // Both members have all experts, and so sum their gradients, although no other replica has a copy of the other
    // weights.
    let alone = spread(2, 1, 1, 1);
    assert_eq!(
        sums(&alone),
        [
            ("expert-data", bytes(2 * OF_EXPERTS)),
            ("tensor", bytes(of_tokens))
        ]
    );
    // Each member has one half of the experts, so no sum of experts' gradients is needed.
    let parted = spread(2, 1, 2, 1);
    assert_eq!(sums(&parted), [("tensor", bytes(of_tokens))]);
}

#[test]
fn copies_of_tokens_go_to_their_experts_and_back() {
    let nodes = &ranks(shared())[2];
    let data = |name: &str| super::data(nodes, &format!("mb0/layer1/{name}"));
    let at = |name: &str| vec![format!("mb0/layer1/{name}")];
    for (name, after) in [
        (
            "fwd/experts.dispatch.all-to-all",
            "fwd/experts.dispatch.counts",
        ),
        (
            "fwd/experts.dispatch.counts",
            "fwd/experts.dispatch.permute",
        ),
        (
            "fwd/experts.dispatch.sort",
            "fwd/experts.dispatch.all-to-all",
        ),
        ("fwd/experts.up", "fwd/experts.dispatch.sort"),
        ("fwd/experts.combine.sort", "fwd/experts.down"),
        ("fwd/experts.combine.all-to-all", "fwd/experts.combine.sort"),
        ("fwd/experts.combine", "fwd/experts.combine.all-to-all"),
        (
            "bwd/experts.combine.all-to-all",
            "bwd/experts.combine.copies",
        ),
        ("bwd/experts.combine.sort", "bwd/experts.combine.all-to-all"),
        ("bwd/experts.down.dgrad", "bwd/experts.combine.sort"),
        ("bwd/experts.dispatch.sort", "bwd/experts.up.wgrad"),
        (
            "bwd/experts.dispatch.all-to-all",
            "bwd/experts.dispatch.sort",
        ),
        (
            "bwd/experts.dispatch.permute",
            "bwd/experts.dispatch.all-to-all",
        ),
    ] {
        assert_eq!(data(name), at(after), "{name}");
    }
    // Two copies of 12 tokens, with 2 B per value, are exchanged in the group of two, not among all
    // four ranks.
    let exchanges = nodes.iter().filter(|node| node.op.contains("AllToAll"));
    let exchanges: Vec<_> = exchanges.collect();
    // In each of two layers and two micro-batches, the forward and the backward pass each have two exchanges.
    assert_eq!(exchanges.len(), 2 * 2 * 4);
    for node in exchanges {
        assert!(
            node.op.contains(&format!("bytes: {},", C * T * H * 2)),
            "{}",
            node.op
        );
        assert!(node.op.contains("group: Number("), "{}", node.op);
        assert_eq!(node.lane, Some(EXPERT_LANE));
    }
    // The kernel has as many rows as without expert parallelism, but reads only half of the experts' weights.
    let up = 2 * F;
    let expected = [
        2 * C * T * H * up,
        2 * (C * T * H + X / 2 * H * up + C * T * up),
    ];
    assert_eq!(kernel(nodes, "mb0/layer1/fwd/experts.up"), expected);
    let mut silent = shared();
    silent
        .without
        .add_effect(AblationEffect::ExpertCommunication);
    assert!(
        ranks(silent)[0]
            .iter()
            .all(|node| !node.op.contains("AllToAll"))
    );
}

#[test]
fn full_recomputation_exchanges_tokens_again() {
    let mut plan = shared();
    plan.recompute = RecomputePolicy::Full;
    let nodes = &ranks(plan)[0];
    let exchanges = nodes.iter().filter(|node| node.op.contains("AllToAll"));
    assert_eq!(exchanges.count(), 2 * 2 * 6);
    let again = super::data(nodes, "mb1/layer0/again/experts.up");
    assert_eq!(again, ["mb1/layer0/again/experts.dispatch.sort"]);
}

/// Only the activation runs again, and its result of T C F numbers is not saved for the next product.
#[test]
fn a_recomputed_activation_is_not_saved() {
    let with = |modules: &[RecomputedModule]| {
        let mut plan = shared();
        modules
            .iter()
            .for_each(|one| plan.recompute_modules.add_module(*one));
        plan
    };
    let again = |plan: &ParallelismPlan| -> Vec<String> {
        let nodes = &ranks(plan.clone())[0];
        let names = nodes
            .iter()
            .filter_map(|node| node.name.split_once("mb0/layer0/again/"));
        names.map(|(_, name)| name.to_owned()).collect()
    };
    let kept = |plan: &ParallelismPlan| summary(plan).stages[0].stored.1;
    let none = shared();
    assert_eq!(again(&none), Vec::<String>::new());
    let activation = with(&[RecomputedModule::ExpertActivation]);
    assert_eq!(again(&activation), ["experts.activation"]);
    // Each of two layers saves T C F numbers of two bytes less.
    assert_eq!(kept(&none) - kept(&activation), 2 * 2 * T * C * F);
    let norms = with(&[RecomputedModule::Norms]);
    assert_eq!(again(&norms), ["norm2", "norm1"]);
    assert!(kept(&norms) < kept(&none));
    // The whole part with experts runs again, with the exchange of tokens.
    let experts = with(&[RecomputedModule::Experts]);
    let names = again(&experts);
    assert!(
        names
            .iter()
            .filter(|name| name.ends_with(".all-to-all"))
            .count()
            == 2,
        "{names:?}"
    );
    assert!(
        names.iter().any(|name| name.starts_with("experts.down")),
        "{names:?}"
    );
    assert!(
        names.iter().all(|name| name.starts_with("experts.")),
        "{names:?}"
    );
    assert!(kept(&experts) < kept(&activation));
    // FLOPs grow by the products that run again.
    assert_eq!(summary(&activation).model_flops, summary(&none).model_flops);
    assert!(summary(&experts).flops > summary(&none).flops);
    let refusal = |plan| {
        let model = model();
        rejection_message(WorkloadPattern::Training(Box::new(
            ModelAndParallelismPlan { model, plan },
        )))
    };
    for (modules, expected) in [
        (&[RecomputedModule::Mlp][..], "expected modules of experts"),
        (&[RecomputedModule::LatentUp], "expected modules of experts"),
        (
            &[
                RecomputedModule::Experts,
                RecomputedModule::ExpertActivation,
            ],
            "expected moe alone",
        ),
    ] {
        let error = refusal(with(modules));
        assert!(error.contains(expected), "{error}");
    }
    let mut full = with(&[RecomputedModule::Norms]);
    full.recompute = RecomputePolicy::Full;
    assert!(refusal(full).contains("recompute = none or selective"));
}

#[test]
fn ranks_keep_and_step_their_own_experts() {
    let own = OF_EXPERTS / 2;
    let all = OF_ENDS + 2 * (OF_BLOCK + OF_EXPERTS);
    assert_eq!(model().parameter_count(), all);
    let common = OF_ENDS + 2 * OF_BLOCK;
    for (zero, replicas) in [(ZeroStage::None, [1, 1]), (ZeroStage::Optimizer, [4, 2])] {
        let mut plan = shared();
        plan.zero = zero;
        let summary = summary(&plan);
        let stage = &summary.stages[0];
        assert_eq!(summary.parameters, all);
        assert_eq!(stage.parameters, common + 2 * own);
        // The optimizer has 12 B of state per parameter. Each of four replicas has a quarter of it for common
        // parameters, and each of two replicas half of it for experts.
        let [by, of_experts] = replicas;
        let kept = 12 * common / by + 12 * 2 * own / of_experts;
        assert_eq!(stage.memory[TensorClass::Optimizer as usize], kept);
        assert_eq!(
            stage.memory[TensorClass::Weights as usize],
            2 * (common + 2 * own)
        );
        // Adam moves 28 B per parameter.
        let nodes = &ranks(plan)[0];
        let moved = 28 * (common / by + 2 * own / of_experts);
        assert_eq!(kernel(nodes, "optimizer")[1], moved, "{zero}");
    }
    // However the experts are distributed, the FLOPs of all ranks add up to the model's FLOPs.
    let mut alone = shared();
    alone.expert = 1;
    assert_eq!(summary(&alone).flops, summary(&shared()).flops);
}

/// Returns a rank's reductions, each with its group, its bytes, and a flag per node id that is true if it waits for the
/// node.
fn reductions(nodes: &[EmittedNode]) -> Vec<(String, u64, Vec<bool>)> {
    let mut found = Vec::new();
    for node in nodes
        .iter()
        .filter(|node| node.name.contains("/gradients/"))
    {
        let word = |key: &str| {
            let rest = node.op.split(&format!("{key}: ")).nth(1).unwrap();
            rest.split([',', ' ']).next().unwrap().to_owned()
        };
        let mut before = vec![false; nodes.len() + 1];
        let mut open = node.data.clone();
        while let Some(id) = open.pop() {
            if !std::mem::replace(&mut before[id as usize], true) {
                open.extend(&nodes[id as usize - 1].data);
            }
        }
        found.push((word("group"), word("bytes").parse().unwrap(), before));
    }
    found
}

#[test]
fn gradients_of_experts_are_summed_by_those_that_have_them() {
    for by in [BucketPolicy::Layers, BucketPolicy::Parameters] {
        for bucket in [1, 1_500, 1 << 30] {
            let mut plan = shared();
            (plan.buckets, plan.bucket) = (by, bucket);
            let nodes = &ranks(plan)[0];
            let all = reductions(nodes);
            let bytes = |of_all: bool| {
                let own = all
                    .iter()
                    .filter(|(group, _, _)| (group == "World") == of_all);
                own.map(|one| one.1).sum::<u64>()
            };
            assert_eq!(bytes(true), 2 * (OF_ENDS + 2 * OF_BLOCK), "{by} {bucket}");
            assert_eq!(bytes(false), 2 * 2 * OF_EXPERTS / 2, "{by} {bucket}");
            // In the last micro-batch, the last sum of each kind of gradients waits for all of that kind.
            for (of_all, names) in [
                (
                    true,
                    &["attention.qkv.wgrad", "experts.dispatch.score.wgrad"][..],
                ),
                (false, &["experts.up.wgrad", "experts.down.wgrad"]),
            ] {
                let mut reached = vec![false; nodes.len() + 1];
                for (group, _, before) in &all {
                    if (group == "World") == of_all {
                        for (one, other) in reached.iter_mut().zip(before) {
                            *one |= other;
                        }
                    }
                }
                for (layer, name) in [0, 1]
                    .iter()
                    .flat_map(|l| names.iter().map(move |n| (l, n)))
                {
                    let name = format!("mb1/layer{layer}/bwd/{name}");
                    let id = nodes.iter().position(|node| node.name == name).unwrap() + 1;
                    assert!(reached[id], "{by} {bucket} {name}");
                }
            }
        }
    }
    // If each expert is on only one rank, no sum of experts' gradients is needed.
    let mut plan = shared();
    plan.expert = 4;
    let nodes = &ranks(plan.clone())[0];
    assert!(
        reductions(nodes)
            .iter()
            .all(|(group, _, _)| group == "World")
    );
    // The norm over all gradients includes all experts' gradients.
    plan.clip = true;
    let nodes = &ranks(plan)[0];
    assert_eq!(
        nodes
            .iter()
            .filter(|node| node.name == "norm/experts/all-reduce")
            .count(),
        1
    );
}

#[test]
fn updated_experts_are_gathered_from_those_that_have_them() {
    for zero in [ZeroStage::Optimizer, ZeroStage::Gradients] {
        let mut plan = shared();
        plan.zero = zero;
        let nodes = &ranks(plan)[0];
        let gathered = |group: &str| {
            let own = nodes
                .iter()
                .filter(|node| node.name.ends_with("parameters/all-gather"));
            let own = own.filter(|node| node.op.contains(&format!("group: {group}")));
            let bytes = |node: &EmittedNode| {
                let rest = node.op.split("bytes: ").nth(1).unwrap();
                rest.split(',').next().unwrap().parse::<u64>().unwrap()
            };
            own.map(bytes).sum::<u64>()
        };
        // One bucket has a quarter of the common parameters, and another has half of the rank's experts.
        assert_eq!(
            gathered("World"),
            (2 * (OF_ENDS + 2 * OF_BLOCK)).div_ceil(4)
        );
        assert_eq!(gathered("Number"), 2 * OF_EXPERTS / 2);
    }
}

#[test]
fn degrees_that_do_not_share_out_experts_are_refused() {
    let refused = |change: fn(&mut ParallelismPlan), why: &str| {
        let mut plan = shared();
        change(&mut plan);
        let pattern = ModelAndParallelismPlan {
            model: model(),
            plan,
        };
        let found = rejection_message(WorkloadPattern::Training(Box::new(pattern)));
        assert!(found.contains(why), "{found}");
    };
    refused(
        |plan| plan.expert = 3,
        "`expert` is 3; expected a divisor of data",
    );
    refused(|plan| plan.expert = 0, "`expert` is 0");
    refused(
        |plan| (plan.tensor, plan.expert, plan.sequence_parallel) = (2, 8, true),
        "`expert` is 8; expected a divisor of data x context x tensor / expert_tensor",
    );
    let whole = |plan: &mut ParallelismPlan| {
        (plan.tensor, plan.expert_tensor, plan.sequence_parallel) = (2, Some(1), true);
    };
    refused(
        |plan| (plan.tensor, plan.expert_tensor) = (2, Some(1)),
        "`expert_tensor` is 1; expected tensor, or sequence_parallel beside",
    );
    for (degree, why) in [(0, "is 0"), (3, "is 3; expected a divisor of tensor")] {
        let mut plan = shared();
        whole(&mut plan);
        plan.expert_tensor = Some(degree);
        let pattern = ModelAndParallelismPlan {
            model: model(),
            plan,
        };
        let found = rejection_message(WorkloadPattern::Training(Box::new(pattern)));
        assert!(found.contains(&format!("`expert_tensor` {why}")), "{found}");
    }
    refused(
        |plan| plan.expert_exchange = ExpertExchangeForm::Nodes,
        "`expert_exchange` is nodes; expected expert_node beside it",
    );
    refused(
        |plan| plan.expert_node = Some(2),
        "expected expert_exchange = nodes beside it",
    );
    for nodes in [0, 1, 2, 3] {
        let mut plan = shared();
        (plan.expert_exchange, plan.expert_node) = (ExpertExchangeForm::Nodes, Some(nodes));
        let pattern = ModelAndParallelismPlan {
            model: model(),
            plan,
        };
        let found = rejection_message(WorkloadPattern::Training(Box::new(pattern)));
        let why = format!("`expert_node` is {nodes}; expected a divisor of expert, above 1");
        assert!(found.contains(&why), "{found}");
    }
    refused(
        |plan| (plan.data, plan.expert, plan.batch) = (8, 8, 8),
        "`expert` is 8; expected a divisor of the 4 experts of experts.up",
    );
    refused(
        |plan| plan.recompute = RecomputePolicy::Operators,
        "none, selective or full for a model with experts",
    );
    let pattern = ModelAndParallelismPlan {
        model: Model::load_named("gpt2-small").unwrap(),
        plan: shared(),
    };
    let found = rejection_message(WorkloadPattern::Training(Box::new(pattern)));
    assert!(
        found.contains("`expert` is 2; expected 1 for gpt2-small, which has no experts"),
        "{found}"
    );
}

/// Query and key heads are normalized before rotary positions. All members of a tensor group
/// contribute to the gradients of the same gains.
#[test]
fn heads_are_scaled_by_gains_that_a_tensor_group_shares() {
    let mut model = model();
    for layer in &mut model.layers {
        for operator in &mut layer.operators {
            if let OperatorKind::Attention { qk_norm, .. } = &mut operator.work {
                *qk_norm = true;
            }
        }
    }
    let nodes = |tensor: u32, change: fn(&mut ParallelismPlan)| {
        let mut plan = ParallelismPlan::new();
        plan.tensor = tensor;
        change(&mut plan);
        let model = model.clone();
        let pattern = ModelAndParallelismPlan { model, plan };
        record_every_rank(WorkloadPattern::Training(Box::new(pattern))).swap_remove(0)
    };
    let alone = nodes(1, |_| ());
    // Queries and keys each have four heads with 4 columns. Each value is read and written with 2
    // B; the backward kernel also reads a second value.
    let heads = T * (4 + 4) * 4;
    let core = |pass: &str| format!("mb0/layer0/{pass}/attention.core");
    assert_eq!(kernel(&alone, &(core("fwd") + ".norm")), [0, 2 * 2 * heads]);
    assert_eq!(kernel(&alone, &(core("bwd") + ".norm")), [0, 3 * 2 * heads]);
    let before = super::data(&alone, &(core("fwd") + ".rotary"));
    assert_eq!(before, [core("fwd") + ".norm"]);
    let before = super::data(&alone, &(core("bwd") + ".norm"));
    assert_eq!(before, [core("bwd") + ".rotary"]);
    // Each of the two layers has two gains with 4 weights, one for queries and one for keys.
    let pair = nodes(2, |_| ());
    let sum = pair.iter().find(|node| node.name == "norms/all-reduce");
    let op = &sum.unwrap().op;
    assert!(op.contains(&format!("bytes: {},", 2 * 2 * 2 * 4)), "{op}");
    assert!(alone.iter().all(|node| node.name != "norms/all-reduce"));
    let eager = nodes(1, |plan| plan.elementwise = ElementwiseKernels::Eager);
    let bytes = |pass: &str| {
        let own = eager
            .iter()
            .filter(|node| node.name.starts_with(&(core(pass) + ".norm")));
        own.map(|node| node.kernel.unwrap().1).sum::<u64>()
    };
    // The kernels move as many bytes per element as those of RMSNorm: 4 d + 28 and 6 d + 48.
    assert_eq!(
        [bytes("fwd"), bytes("bwd")],
        [(4 * 2 + 28) * heads, (6 * 2 + 48) * heads]
    );
}
