//! Tests latent attention, attention windows and shared experts under plans.

use super::*;
use crate::model::ModelWithDefinitionProperties;

/// Number of tokens. The next constants are the hidden size, the number of heads, the latent size
/// of queries, and the latent size of keys and values. The last three constants are the number of
/// plain columns, of rotary columns, and of value columns per head.
const T: u64 = 16;
const H: u64 = 32;
const A: u64 = 4;
const Q: u64 = 12;
const C: u64 = 8;
const N: u64 = 4;
const R: u64 = 2;
const V: u64 = 6;
/// Number of experts. The next constants are the number of chosen experts, and the widths of an
/// expert, of the shared experts and of the dense layer.
const X: u64 = 8;
const K: u64 = 2;
const F: u64 = 10;
const S: u64 = 12;
const D: u64 = 24;

fn parse_latent_model() -> Model {
    let text = format!(
        "name = \"latent\"\nsource = \"s\"\nkind = \"transformer\"\nlayers = 4\nhidden = {H}\nheads = {A}\nquery_rank = {Q}\n\
         kv_rank = {C}\nplain_width = {N}\nturned_width = {R}\nvalue_width = {V}\nffn = {F}\nexperts = {X}\nexperts_per_token = {K}\n\
         shared_ffn = {S}\nscores = \"sigmoid\"\ncorrection_bias = true\ngroups = 4\ngroups_per_token = 2\ndense_layers = 1\ndense_ffn = {D}\n\
         window = 4\nfull_every = 2\nvocabulary = 40\nsequence = {T}\nactivation = \"swiglu\"\nnorm = \"rmsnorm\"\npositions = \"rotary\"\n\
         biases = false\ntied = false\n"
    );
    ModelWithDefinitionProperties::parse(&text, "latent.toml", None)
        .unwrap()
        .model
}

fn generate_all_ranks(plan: ParallelismPlan) -> Vec<Vec<EmittedNode>> {
    let model = parse_latent_model();
    check_and_record_every_rank(ModelAndParallelismPlan { model, plan })
}

fn sum_kernel_flops(ranks: &[Vec<EmittedNode>]) -> u64 {
    let kernels = ranks.iter().flatten().filter_map(|node| node.kernel);
    kernels.map(|(flops, _, _)| flops).sum()
}

#[test]
fn kernels_of_latent_attention_have_the_sizes_of_their_tensors() {
    let nodes = &generate_all_ranks(ParallelismPlan::new())[0];
    let kernel = |name: &str| {
        let node = nodes
            .iter()
            .find(|node| node.name == format!("mb0/layer1/{name}"));
        let (flops, bytes, _) = node
            .unwrap_or_else(|| panic!("{name} is not there"))
            .kernel
            .unwrap();
        [flops, bytes]
    };
    let product = |k: u64, n: u64| [2 * T * k * n, 2 * (T * k + k * n + T * n)];
    assert_eq!(kernel("fwd/attention.down"), product(H, Q + C + R));
    assert_eq!(kernel("fwd/attention.norm"), [0, 2 * 2 * T * (Q + C)]);
    assert_eq!(kernel("fwd/attention.up"), product(Q, A * (N + R)));
    assert_eq!(kernel("fwd/attention.up.kv"), product(C, A * (N + V)));
    for (name, k, n) in [
        ("attention.up", Q, A * (N + R)),
        ("attention.up.kv", C, A * (N + V)),
    ] {
        assert_eq!(kernel(&format!("bwd/{name}.dgrad")), product(k, n));
        assert_eq!(kernel(&format!("bwd/{name}.wgrad")), product(k, n));
    }
    // In layer 1, a token attends to itself and to all earlier tokens: T (T + 1) / 2 pairs. In
    // layer 0, a token attends to at most 4 tokens: 4 x 5 / 2 + (T - 4) 4 pairs.
    let moved = 2 * (T * A * (N + R + V) + T * A * (N + R + V)) + 4 * T * A;
    let pairs = T * (T + 1) / 2;
    assert_eq!(
        kernel("fwd/attention.core"),
        [2 * pairs * A * (N + R + V), moved]
    );
    let back = 2 * (2 * T * A * (N + R + V) + 2 * T * A * (N + R + V)) + 4 * T * A;
    let products = 3 * (N + R) + 2 * V;
    assert_eq!(
        kernel("bwd/attention.core"),
        [2 * pairs * A * products, back]
    );
    let windowed = nodes
        .iter()
        .find(|node| node.name == "mb0/layer0/fwd/attention.core")
        .unwrap();
    let pairs = 4 * 5 / 2 + (T - 4) * 4;
    assert_eq!(windowed.kernel.unwrap().0, 2 * pairs * A * (N + R + V));
    // Each query head has its own rotary columns, but all key heads share one set of them.
    assert_eq!(
        kernel("fwd/attention.core.rotary"),
        [0, 2 * 2 * T * R * (A + 1)]
    );
    // Kernels on scores compute logistic functions, add biases, choose groups, and choose the
    // highest scores.
    for (name, each) in [
        ("sigmoid", 2 + 4),
        ("bias", 8),
        ("groups", 8),
        ("highest", 4),
    ] {
        assert_eq!(
            kernel(&format!("fwd/experts.dispatch.{name}")),
            [0, each * T * X]
        );
    }
    assert_eq!(kernel("fwd/shared.up"), product(H, 2 * S));
    assert_eq!(kernel("fwd/shared.down"), product(S, H));
    let dense = nodes
        .iter()
        .find(|node| node.name == "mb0/layer0/fwd/mlp.up")
        .unwrap();
    assert_eq!(dense.kernel.unwrap().0, 2 * T * H * 2 * D);
}

/// For all degrees, all ranks together execute as many FLOPs as a single rank. Doubling the samples doubles the FLOPs.
#[test]
fn all_degrees_keep_total_flops_of_latent_attention_and_experts() {
    let with = |change: &dyn Fn(&mut ParallelismPlan)| {
        let mut plan = ParallelismPlan::new();
        plan.batch = 4;
        change(&mut plan);
        let trains = plan.has_training();
        let nodes = generate_all_ranks(plan);
        for rank in &nodes {
            let (mut allocated, mut freed) = (0, 0);
            for node in rank {
                let activations = chakram_trace::format::TensorClass::Activations as usize;
                allocated += node.memory.allocates[activations];
                freed += node.memory.frees[activations];
            }
            assert_eq!(allocated, freed);
            assert!(allocated > 0 || !trains);
        }
        sum_kernel_flops(&nodes)
    };
    let one = with(&|_| ());
    for data in [2, 4] {
        assert_eq!(with(&|plan| plan.data = data), one);
        assert_eq!(with(&|plan| (plan.data, plan.expert) = (data, data)), one);
    }
    assert_eq!(
        with(&|plan| (plan.tensor, plan.sequence_parallel) = (2, true)),
        one
    );
    let all = |plan: &mut ParallelismPlan| {
        (plan.tensor, plan.sequence_parallel, plan.data) = (2, true, 2);
        (plan.expert, plan.expert_tensor) = (4, Some(1));
    };
    assert_eq!(with(&all), one);
    for context_exchange in [
        plan::ContextExchange::AllGather,
        plan::ContextExchange::AllToAll,
    ] {
        let shared = |plan: &mut ParallelismPlan| {
            (plan.context, plan.context_exchange) = (2, context_exchange);
        };
        let windows = with(&shared);
        assert_eq!(windows, one);
    }
    for schedule in [PipelineSchedule::ZeroBubbleH1, PipelineSchedule::DualPipe] {
        let piped = |plan: &mut ParallelismPlan| {
            (plan.pipeline, plan.schedule) = (2, schedule.clone());
            (plan.data, plan.expert, plan.batch) = (2, 2, 8);
        };
        assert_eq!(with(&piped), 2 * one);
    }
}

/// Each member of a tensor group has some of the heads and some of the shared experts' columns, but the whole latent
/// vectors.
#[test]
fn heads_are_cut_and_latent_vectors_whole() {
    let mut plan = ParallelismPlan::new();
    plan.tensor = 2;
    let ranks = generate_all_ranks(plan);
    let found = |name: &str| {
        let node = ranks[1]
            .iter()
            .find(|node| node.name == format!("mb0/layer1/fwd/{name}"));
        node.unwrap().kernel.unwrap().0
    };
    assert_eq!(found("attention.down"), 2 * T * H * (Q + C + R));
    assert_eq!(found("attention.up"), 2 * T * Q * A * (N + R) / 2);
    assert_eq!(found("attention.up.kv"), 2 * T * C * A * (N + V) / 2);
    assert_eq!(found("attention.out"), 2 * T * A * V * H / 2);
    assert_eq!(found("shared.up"), 2 * T * H * 2 * S / 2);
    let mut plan = ParallelismPlan::new();
    plan.tensor = 8;
    let model = parse_latent_model();
    let why = rejection_message(ModelAndParallelismPlan { model, plan });
    assert!(why.contains("`tensor` is 8"), "{why}");
}
