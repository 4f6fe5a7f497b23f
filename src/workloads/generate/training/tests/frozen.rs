//! Tests frozen weights and adapters: kernels, gradients, state and memory.

use super::super::super::testing::{EmittedNode, check_and_record_every_rank};
use super::super::*;
use super::{ROTARY_BLOCK, build_two_block_model, list_dependency_names, rejection_message};
use crate::generate::plan::{ElementwiseKernels, OperatorNamePattern};
use crate::model::{TotalAndChosenExpertCounts, TransformerBlock};
use chakram_trace::format::TensorClass;

/// Number of tokens; the next constants are the hidden size, the MLP's width, the vocabulary size,
/// and the adapters' rank.
const T: u64 = 8;
const H: u64 = 16;
const F: u64 = 24;
const WORDS: u64 = 40;
const R: u64 = 2;
const LAYERS: u64 = 2;

fn build_two_block_transformer(tied: bool, experts: Option<TotalAndChosenExpertCounts>) -> Model {
    let block = TransformerBlock {
        tokens: T,
        hidden: H,
        ffn: F,
        experts,
        ..ROTARY_BLOCK
    };
    build_two_block_model("frozen", block, tied)
}

fn parse_operator_patterns(all: &[&str]) -> Vec<OperatorNamePattern> {
    all.iter().map(|one| one.parse().unwrap()).collect()
}

fn build_lora_plan(targets: &[&str]) -> ParallelismPlan {
    let mut plan = ParallelismPlan::new();
    (plan.lora, plan.lora_targets) = (Some(R as u32), parse_operator_patterns(targets));
    plan
}

fn build_model_and_plan(plan: &ParallelismPlan) -> ModelAndParallelismPlan {
    let (model, plan) = (build_two_block_transformer(false, None), plan.clone());
    ModelAndParallelismPlan { model, plan }
}

fn compute_plan_summary(plan: &ParallelismPlan) -> PlanSummary {
    build_model_and_plan(plan).summarize_plan().unwrap()
}

fn generate_first_rank_nodes(plan: &ParallelismPlan) -> Vec<EmittedNode> {
    check_and_record_every_rank(build_model_and_plan(plan)).swap_remove(0)
}

/// Returns the names, FLOPs and bytes of layer 1's kernels whose names contain `operator`.
fn list_layer1_kernels_of_operator<'n>(
    nodes: &'n [EmittedNode],
    operator: &str,
) -> Vec<(&'n str, u64, u64)> {
    let prefix = "mb0/layer1/";
    let own = nodes.iter().filter(|node| node.name.starts_with(prefix));
    let own = own.filter(|node| node.name.contains(operator));
    own.filter_map(|node| {
        let (flops, bytes, _) = node.kernel?;
        Some((&node.name[prefix.len()..], flops, bytes))
    })
    .collect()
}

/// Number of weights in all adapters: a block's products have 16 x 48, 16 x 16, 16 x 48 and 24 x 16
/// weights.
const ADAPTERS: u64 = LAYERS * R * ((H + 3 * H) + (H + H) + (H + 2 * F) + (F + H));

#[test]
fn an_adapter_adds_two_products_and_their_gradients() {
    let nodes = generate_first_rank_nodes(&build_lora_plan(&["attention.out"]));
    // `x` and `small` are numbers of elements: 8 rows with 16 columns, and 8 rows with R columns.
    let (x, small) = (T * H, T * R);
    let (whole, thin) = (2 * T * H * H, 2 * T * H * R);
    let product = |flops, numbers| (flops, 2 * numbers);
    let expected = [
        ("fwd/attention.out", product(whole, x + H * H + x)),
        ("fwd/attention.out.lora.a", product(thin, x + H * R + small)),
        ("fwd/attention.out.lora.b", product(thin, small + R * H + x)),
        ("fwd/attention.out.lora.sum", (0, 2 * 3 * x)),
        ("bwd/attention.out.dgrad", product(whole, x + H * H + x)),
        (
            "bwd/attention.out.lora.b.dgrad",
            product(thin, x + R * H + small),
        ),
        (
            "bwd/attention.out.lora.a.dgrad",
            product(thin, small + H * R + x),
        ),
        ("bwd/attention.out.lora.sum", (0, 2 * 3 * x)),
        (
            "bwd/attention.out.lora.b.wgrad",
            product(thin, small + x + R * H),
        ),
        (
            "bwd/attention.out.lora.a.wgrad",
            product(thin, x + small + H * R),
        ),
    ];
    let found = list_layer1_kernels_of_operator(&nodes, "attention.out");
    let expected: Vec<_> = expected
        .into_iter()
        .map(|(name, (flops, bytes))| (name, flops, bytes))
        .collect();
    assert_eq!(found, expected);
    // Other products compute no weight gradients, and the table has no gradient either.
    let others = nodes.iter().filter(|node| {
        node.name.ends_with(".wgrad") && !node.name.contains(".lora.")
            || node.name.contains("/bwd/tokens")
    });
    assert_eq!(others.count(), 0);
    // Gradients of activations still reach the first block.
    assert!(nodes.iter().any(|node| node.name == "mb0/layer0/bwd/norm1"));
    // PEFT and Megatron-Bridge scale the adapter's result and its gradient in separate kernels.
    let mut plan = build_lora_plan(&["attention.out"]);
    for (elementwise, scales) in [
        (ElementwiseKernels::Fused, 0),
        (ElementwiseKernels::Compiled, 0),
        (ElementwiseKernels::Eager, 2),
        (ElementwiseKernels::Megatron, 2),
    ] {
        plan.elementwise = elementwise;
        let nodes = generate_first_rank_nodes(&plan);
        let all = list_layer1_kernels_of_operator(&nodes, "attention.out.lora.scale");
        assert_eq!(all.len(), scales, "{elementwise}");
        assert!(
            all.iter()
                .all(|(_, flops, bytes)| (*flops, *bytes) == (0, 2 * 2 * x))
        );
    }
}

/// A frozen weight takes 2 B. An adapter's weight takes 16 B, like any trained weight, and only adapters' gradients are
/// reduced.
#[test]
fn frozen_weights_have_no_state() {
    let base = build_two_block_transformer(false, None).parameter_count();
    let mut plan = build_lora_plan(&[]);
    (plan.data, plan.batch) = (2, 2);
    for (zero, [weights, gradients, state]) in [
        (ZeroStage::None, [base + ADAPTERS, ADAPTERS, ADAPTERS]),
        (
            ZeroStage::Optimizer,
            [base + ADAPTERS, ADAPTERS, ADAPTERS / 2],
        ),
        (
            ZeroStage::Gradients,
            [base + ADAPTERS, ADAPTERS / 2, ADAPTERS / 2],
        ),
        (
            ZeroStage::Parameters,
            [base / 2 + ADAPTERS / 2, ADAPTERS / 2, ADAPTERS / 2],
        ),
    ] {
        plan.zero = zero;
        let summary = compute_plan_summary(&plan);
        assert_eq!(summary.parameters, base);
        assert_eq!(summary.trained_parameters, ADAPTERS);
        let stage = &summary.stages[0];
        assert_eq!(
            (stage.parameters, stage.trained_parameters),
            (base + ADAPTERS, ADAPTERS)
        );
        let of = |class| stage.memory[class as usize];
        assert_eq!(of(TensorClass::Weights), 2 * weights, "{zero}");
        assert_eq!(of(TensorClass::Gradients), 2 * gradients, "{zero}");
        assert_eq!(of(TensorClass::Optimizer), 12 * state, "{zero}");
        let reduced = stage.communication.iter();
        let reduced =
            reduced.filter(|one| ["all-reduce", "reduce-scatter"].contains(&&one.kind[..]));
        assert_eq!(
            reduced.map(|one| one.bytes).sum::<u128>(),
            u128::from(2 * ADAPTERS)
        );
        let nodes = generate_first_rank_nodes(&plan);
        let step = nodes.iter().find(|node| node.name == "optimizer").unwrap();
        // Adam reads a gradient and writes a weight, 2 B each, and reads and writes 12 B of state.
        let stepped = if zero == ZeroStage::None {
            ADAPTERS
        } else {
            ADAPTERS / 2
        };
        assert_eq!(step.kernel.unwrap().1, 28 * stepped, "{zero}");
    }
}

/// For each token, a step performs two multiplications with each frozen weight, and three with each adapter weight.
#[test]
fn model_flops_count_no_gradients_of_frozen_weights() {
    let all = compute_plan_summary(&ParallelismPlan::new());
    let own = compute_plan_summary(&build_lora_plan(&[]));
    // The weights in the blocks' products and in the logits need no gradients.
    let products = LAYERS * (H * 3 * H + H * H + 3 * H * F) + H * WORDS;
    let expected = all.model_flops - u128::from(2 * T * products) + u128::from(6 * T * ADAPTERS);
    assert_eq!(own.model_flops, expected);
    // Flash attention executes more than the model FLOPs, because it recomputes scores.
    assert_eq!(own.flops - own.model_flops, all.flops - all.model_flops);
}

/// A frozen product saves nothing; an adapter saves its input and the result of its first product.
#[test]
fn activations_are_kept_for_adapters() {
    let kept = |plan: &ParallelismPlan| compute_plan_summary(plan).stages[0].stored.1;
    let all = kept(&ParallelismPlan::new());
    // The inputs of the products and of the logits are no longer saved.
    let inputs = 2 * T * (LAYERS * (H + H + H + F) + H);
    let one = kept(&build_lora_plan(&["mlp.down"]));
    assert_eq!(one, all - inputs + 2 * T * LAYERS * (F + R));
    let every = kept(&build_lora_plan(&[]));
    assert_eq!(every, all - 2 * T * H + 2 * T * LAYERS * 4 * R);
    // Frozen embeddings, heads and norms save the same number of bytes as trained ones, except that the frozen logits
    // do not save their input.
    let mut plan = ParallelismPlan::new();
    plan.frozen = parse_operator_patterns(&["tokens", "logits", "norm*"]);
    assert_eq!(kept(&plan), all - 2 * T * H);
    // All allocated memory was freed.
    let used: Vec<i128> = (3..TensorClass::COUNT)
        .map(|class| {
            let nodes = generate_first_rank_nodes(&build_lora_plan(&[]));
            let changes = nodes.iter().map(|node| {
                i128::from(node.memory.allocates[class]) - i128::from(node.memory.frees[class])
            });
            changes.sum()
        })
        .collect();
    assert!(used.iter().all(|bytes| *bytes == 0), "{used:?}");
}

/// If a product is split by outputs, each member holds the adapter's whole first matrix. If it is split by inputs, each
/// member holds the adapter's whole second matrix. The tensor group sums the gradients of these matrices.
#[test]
fn tensor_groups_share_adapters_like_their_products() {
    for sequence_parallel in [false, true] {
        let mut plan = build_lora_plan(&["attention.*"]);
        (plan.tensor, plan.sequence_parallel) = (2, sequence_parallel);
        let summary = compute_plan_summary(&plan);
        let whole = LAYERS * (H * R + R * H);
        let shared = LAYERS * (R * 3 * H + H * R) / 2;
        assert_eq!(summary.stages[0].trained_parameters, whole + shared);
        let nodes = generate_first_rank_nodes(&plan);
        let sums: Vec<_> = nodes
            .iter()
            .filter(|node| node.name == "norms/all-reduce")
            .collect();
        assert_eq!(sums.len(), 1);
        assert!(
            sums[0].op.contains(&format!("bytes: {},", 2 * whole)),
            "{}",
            sums[0].op
        );
        // Only adapters need the input again, so only products with adapters gather it.
        let again = nodes.iter().filter(|node| {
            node.name.starts_with("mb0/layer1/bwd/") && node.name.ends_with("all-gather")
        });
        let again: Vec<&str> = again.map(|node| &node.name[..]).collect();
        let expected: &[&str] = match sequence_parallel {
            true => &[
                "mb0/layer1/bwd/mlp.down.all-gather",
                "mb0/layer1/bwd/attention.out.all-gather",
                "mb0/layer1/bwd/attention.qkv.all-gather",
            ],
            false => &[],
        };
        assert_eq!(again, expected);
        assert_eq!(
            list_dependency_names(&nodes, "mb0/layer1/bwd/attention.qkv.lora.a.wgrad"),
            ["mb0/layer1/bwd/attention.qkv.lora.b.wgrad"]
        );
    }
}

/// Each expert has its own adapter.
#[test]
fn experts_have_adapters() {
    let routing = TotalAndChosenExpertCounts {
        experts: 4,
        chosen: 2,
    };
    let mut plan = build_lora_plan(&["experts.*"]);
    (plan.data, plan.batch, plan.expert) = (2, 2, 2);
    let model = build_two_block_transformer(false, Some(routing));
    let pattern = ModelAndParallelismPlan { model, plan };
    let stage = pattern
        .clone()
        .summarize_plan()
        .unwrap()
        .stages
        .swap_remove(0);
    // Each rank has two of the four experts, whose products have 16 x 48 and 24 x 16 weights.
    let own = LAYERS * 2 * R * ((H + 2 * F) + (F + H));
    assert_eq!(stage.trained_parameters, own);
    let nodes = check_and_record_every_rank(pattern).swap_remove(0);
    let first = list_layer1_kernels_of_operator(&nodes, "fwd/experts.up.lora.a");
    // 8 tokens have 2 copies each, and an adapter has two matrices.
    assert_eq!(
        first,
        [(
            "fwd/experts.up.lora.a",
            2 * 2 * T * H * R,
            2 * (2 * T * H + 2 * H * R + 2 * T * R)
        )]
    );
    // No other rank has the same experts, and no other weights are trained.
    assert!(nodes.iter().all(|node| !node.name.contains("/gradients/")));
}

#[test]
fn adapter_step_runs_in_a_pipeline_with_split_backward_passes() {
    let mut plan = build_lora_plan(&[]);
    (plan.pipeline, plan.batch, plan.split_backward) = (2, 4, true);
    let nodes = generate_first_rank_nodes(&plan);
    let late = nodes
        .iter()
        .filter(|node| node.name.ends_with("lora.a.wgrad"));
    // Each stage has one layer with four products, and there are four micro-batches.
    assert_eq!(late.count(), 16);
}

#[test]
fn settings_that_freeze_nothing_or_everything_are_refused() {
    let refused = |tied: bool, change: fn(&mut ParallelismPlan), why: &str| {
        let mut plan = ParallelismPlan::new();
        change(&mut plan);
        let model = build_two_block_transformer(tied, None);
        let pattern = ModelAndParallelismPlan { model, plan };
        let found = rejection_message(pattern);
        assert!(found.contains(why), "{found}");
    };
    refused(
        false,
        |plan| plan.lora = Some(0),
        "`lora` is 0; expected 1 or more",
    );
    refused(
        false,
        |plan| *plan = build_lora_plan(&["mlp.middle"]),
        "`lora_targets` is mlp.middle; expected operators of frozen: attention.out, attention.qkv, logits, mlp.down, mlp.up",
    );
    refused(
        false,
        |plan| *plan = build_lora_plan(&["norm1"]),
        "`lora_targets` is norm1; expected operators of frozen: attention.out",
    );
    refused(
        false,
        |plan| plan.lora_targets = parse_operator_patterns(&["mlp.up"]),
        "`lora_targets` is mlp.up; expected nothing without lora",
    );
    refused(
        false,
        |plan| (*plan, plan.frozen) = (build_lora_plan(&[]), parse_operator_patterns(&["tokens"])),
        "`frozen` is tokens; expected nothing beside lora",
    );
    refused(
        false,
        |plan| plan.frozen = parse_operator_patterns(&["*"]),
        "expected some trained weights",
    );
    refused(
        true,
        |plan| plan.frozen = parse_operator_patterns(&["tokens"]),
        "`frozen` is tokens; expected both or none of tokens and logits",
    );
    refused(
        false,
        |plan| {
            *plan = build_lora_plan(&[]);
            plan.schedule = PipelineSchedule::Inference;
        },
        "expected no adapters and no frozen weights with schedule = inference",
    );
    refused(
        false,
        |plan| {
            *plan = build_lora_plan(&[]);
            plan.recompute = RecomputePolicy::Operators;
        },
        "expected recompute = none, selective or full beside it",
    );
}
