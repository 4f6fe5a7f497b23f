//! Tests experts: their kernels, token exchanges between ranks, gradients and memory.

use super::super::super::testing::{EmittedNode, check_and_record_every_rank};
use super::super::*;
use super::{ROTARY_BLOCK, build_two_block_model, find_kernel_flops_and_bytes, rejection_message};
use crate::generate::plan::{
    ElementwiseKernels, ExpertExchangeForm, ParallelAxis, RecomputedModule,
};
use crate::model::{OperatorKind, TotalAndChosenExpertCounts, TransformerBlock};
use chakram_trace::format::{TensorClass, TrainingPhase};

mod exchanges;
mod forms;
mod state;

/// Number of tokens. The next constants are the hidden size, the number of experts, the number of
/// copies per token, and the width of an expert.
const T: u64 = 12;

const H: u64 = 16;

const X: u64 = 4;

const C: u64 = 2;

const F: u64 = 8;

fn build_expert_model() -> Model {
    let block = TransformerBlock {
        tokens: T,
        hidden: H,
        ffn: F,
        experts: Some(TotalAndChosenExpertCounts {
            experts: X,
            chosen: C,
        }),
        ..ROTARY_BLOCK
    };
    build_two_block_model("experts", block, false)
}

fn generate_all_ranks(plan: ParallelismPlan) -> Vec<Vec<EmittedNode>> {
    let pattern = ModelAndParallelismPlan {
        model: build_expert_model(),
        plan,
    };
    check_and_record_every_rank(pattern)
}

#[test]
fn kernels_of_experts_have_the_sizes_of_their_tensors() {
    let nodes = &generate_all_ranks(ParallelismPlan::new())[0];
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
            find_kernel_flops_and_bytes(nodes, &format!("mb0/layer1/{name}")),
            expected,
            "{name}"
        );
    }
    // Each multiplication of the model counts once in the forward pass and twice in the backward pass, with two
    // corrections. The causal mask skips some of them. Flash attention recomputes scores, so it has seven products
    // instead of six.
    let flops: u64 = nodes
        .iter()
        .filter_map(|node| node.kernel)
        .map(|one| one.0)
        .sum();
    let model = build_expert_model();
    let attention = 2 * 4 * 4 * T * (T + 1) / 2;
    let products = 2 * model.multiplication_count() - 2 * model.causally_skipped_multiplications();
    assert_eq!(flops, 3 * products + 2 * 2 * attention / 2);
}

/// Returns a plan with four replicas, in which two neighbours share the four experts, two on each rank.
fn build_expert_parallel_plan() -> ParallelismPlan {
    let mut plan = ParallelismPlan::new();
    (plan.data, plan.expert, plan.batch) = (4, 2, 8);
    plan
}

fn compute_plan_summary(plan: &ParallelismPlan) -> PlanSummary {
    let (model, plan) = (build_expert_model(), plan.clone());
    ModelAndParallelismPlan { model, plan }
        .summarize_plan()
        .unwrap()
}

/// Number of weights in a layer's experts. The next two constants are the number of weights in the rest of a layer and
/// the number of weights outside the layers.
const OF_EXPERTS: u64 = X * (H * 2 * F + F * H);

const OF_BLOCK: u64 = H * 3 * H + H * H + H * X + 2 * H;

const OF_ENDS: u64 = 2 * 40 * H + H;

/// Returns a plan with `data` replicas of `tensor` members. Each expert has `shards` shards, one per member; `expert`
/// blocks of ranks divide the experts.
fn build_sharded_expert_plan(tensor: u32, data: u32, expert: u32, shards: u32) -> ParallelismPlan {
    let mut plan = ParallelismPlan::new();
    (plan.tensor, plan.data, plan.batch) = (tensor, data, data.into());
    (plan.expert, plan.expert_tensor) = (expert, Some(shards));
    plan.sequence_parallel = true;
    plan
}

/// Only the activation runs again, and its result of T C F numbers is not saved for the next product.
#[test]
fn a_recomputed_activation_is_not_saved() {
    let with = |modules: &[RecomputedModule]| {
        let mut plan = build_expert_parallel_plan();
        modules
            .iter()
            .for_each(|one| plan.recompute_modules.add_module(*one));
        plan
    };
    let again = |plan: &ParallelismPlan| -> Vec<String> {
        let nodes = &generate_all_ranks(plan.clone())[0];
        let names = nodes
            .iter()
            .filter_map(|node| node.name.split_once("mb0/layer0/again/"));
        names.map(|(_, name)| name.to_owned()).collect()
    };
    let kept = |plan: &ParallelismPlan| compute_plan_summary(plan).stages[0].stored.1;
    let none = build_expert_parallel_plan();
    assert_eq!(again(&none), Vec::<String>::new());
    let activation = with(&[RecomputedModule::ExpertActivation]);
    assert_eq!(again(&activation), ["experts.activation"]);
    // Each of two layers saves T C F fewer numbers of two bytes.
    assert_eq!(kept(&none) - kept(&activation), 2 * 2 * T * C * F);
    let norms = with(&[RecomputedModule::Norms]);
    assert_eq!(again(&norms), ["norm2", "norm1"]);
    assert!(kept(&norms) < kept(&none));
    // All operators of the experts run again, including the exchange of tokens.
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
    // The FLOPs grow by those of the products that run again.
    assert_eq!(
        compute_plan_summary(&activation).model_flops,
        compute_plan_summary(&none).model_flops
    );
    assert!(compute_plan_summary(&experts).flops > compute_plan_summary(&none).flops);
    let refusal = |plan| {
        let model = build_expert_model();
        rejection_message(ModelAndParallelismPlan { model, plan })
    };
    for (modules, expected) in [
        (
            &[RecomputedModule::Mlp][..],
            "expected modules of experts: layernorm, moe-act, moe",
        ),
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
fn degrees_that_do_not_share_out_experts_are_refused() {
    let refused = |change: fn(&mut ParallelismPlan), why: &str| {
        let mut plan = build_expert_parallel_plan();
        change(&mut plan);
        let pattern = ModelAndParallelismPlan {
            model: build_expert_model(),
            plan,
        };
        let found = rejection_message(pattern);
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
        let mut plan = build_expert_parallel_plan();
        whole(&mut plan);
        plan.expert_tensor = Some(degree);
        let pattern = ModelAndParallelismPlan {
            model: build_expert_model(),
            plan,
        };
        let found = rejection_message(pattern);
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
        let mut plan = build_expert_parallel_plan();
        (plan.expert_exchange, plan.expert_node) = (ExpertExchangeForm::Nodes, Some(nodes));
        let pattern = ModelAndParallelismPlan {
            model: build_expert_model(),
            plan,
        };
        let found = rejection_message(pattern);
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
        plan: build_expert_parallel_plan(),
    };
    let found = rejection_message(pattern);
    assert!(
        found.contains("`expert` is 2; expected 1 for gpt2-small, which has no experts"),
        "{found}"
    );
}

/// Query and key heads are normalized before rotary positions. All members of a tensor group
/// contribute to the gradients of the same gains.
#[test]
fn heads_are_scaled_by_gains_that_a_tensor_group_shares() {
    let mut model = build_expert_model();
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
        check_and_record_every_rank(pattern).swap_remove(0)
    };
    let alone = nodes(1, |_| ());
    // Queries and keys each have four heads with 4 columns. Each value is read and written with 2
    // B; the backward kernel also reads a second value.
    let heads = T * (4 + 4) * 4;
    let core = |pass: &str| format!("mb0/layer0/{pass}/attention.core");
    assert_eq!(
        find_kernel_flops_and_bytes(&alone, &(core("fwd") + ".norm")),
        [0, 2 * 2 * heads]
    );
    assert_eq!(
        find_kernel_flops_and_bytes(&alone, &(core("bwd") + ".norm")),
        [0, 3 * 2 * heads]
    );
    let before = super::list_dependency_names(&alone, &(core("fwd") + ".rotary"));
    assert_eq!(before, [core("fwd") + ".norm"]);
    let before = super::list_dependency_names(&alone, &(core("bwd") + ".norm"));
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
