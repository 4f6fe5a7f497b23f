//! Tests number formats of products, kernels that are not products, and recomputation of individual
//! operators.

use super::super::super::WorkloadPattern;
use super::super::super::testing::{EmittedNode, check_and_record_every_rank};
use super::super::*;
use crate::generate::plan::{ElementwiseKernels, LossKernel, ScalingRecipe, SplitUnit};

fn generate_model_nodes(model: &str, plan: ParallelismPlan) -> Vec<EmittedNode> {
    let model = Model::load_named(model).unwrap();
    let pattern = WorkloadPattern::from(ModelAndParallelismPlan { model, plan });
    check_and_record_every_rank(pattern).swap_remove(0)
}

fn generate_gpt2_nodes(plan: &ParallelismPlan) -> Vec<EmittedNode> {
    generate_model_nodes("gpt2-small", plan.clone())
}

fn find_kernel_cost_and_dtype(nodes: &[EmittedNode], name: &str) -> (u64, u64, Option<Dtype>) {
    let node = nodes.iter().find(|node| node.name == name);
    let kernel = node.and_then(|node| node.kernel);
    kernel.unwrap_or_else(|| panic!("{name} is not there"))
}

fn count_nodes_by_suffix(nodes: &[EmittedNode], end: &str) -> u64 {
    nodes.iter().filter(|node| node.name.ends_with(end)).count() as u64
}

/// Sizes of gpt2-small's `mlp.up` with 1,024 tokens: a product of 1024 x 768 by 768 x 3072.
const UP: [u64; 3] = [1024, 768, 3072];

#[test]
fn products_of_eight_bits_read_what_was_cast() {
    let mut plan = ParallelismPlan::new();
    let bf16 = generate_gpt2_nodes(&plan);
    plan.linears = Some(Dtype::Fp8);
    let fp8 = generate_gpt2_nodes(&plan);
    let [n, k, m] = UP;
    let up = |phase: &str, suffix: &str| format!("mb0/layer3/{phase}/mlp.up{suffix}");
    // Operands have 1 B per value, and results have 2 B per value.
    let forward = (2 * n * k * m, n * k + k * m + 2 * n * m, Some(Dtype::Fp8));
    assert_eq!(find_kernel_cost_and_dtype(&fp8, &up("fwd", "")), forward);
    // For each element of the input and of the output's gradient, the kernel reads 2 B and writes
    // two copies of 1 B.
    assert_eq!(
        find_kernel_cost_and_dtype(&fp8, &up("fwd", ".quantize")).1,
        4 * n * k
    );
    assert_eq!(
        find_kernel_cost_and_dtype(&fp8, &up("bwd", ".grad.quantize")).1,
        4 * n * m
    );
    // Each of the 12 blocks has four products, whose operands are cast in both directions; the logits keep 16 bits.
    assert_eq!(count_nodes_by_suffix(&fp8, ".quantize"), 2 * 4 * 12);
    let logits = "mb0/head/fwd/logits";
    assert_eq!(
        find_kernel_cost_and_dtype(&fp8, logits),
        find_kernel_cost_and_dtype(&bf16, logits)
    );
    assert_eq!(count_nodes_by_suffix(&fp8, "amax"), 0);
    plan.scaling = ScalingRecipe::Current;
    assert_eq!(
        find_kernel_cost_and_dtype(&generate_gpt2_nodes(&plan), &up("fwd", ".amax")).1,
        2 * n * k
    );
    plan.scaling = ScalingRecipe::Block;
    // Each of two conversions writes one additional byte of scale per 32 values.
    let cast = find_kernel_cost_and_dtype(&generate_gpt2_nodes(&plan), &up("fwd", ".quantize")).1;
    assert_eq!(cast, 4 * n * k + 2 * n * k / 32);
    // The Adam step moves 28 B per weight, and another 4 B to read the weight and write its casts.
    let step = |nodes: &[EmittedNode]| find_kernel_cost_and_dtype(nodes, "optimizer").1;
    assert_eq!(step(&fp8) * 28, step(&bf16) * 32);
}

#[test]
fn formats_change_no_flops() {
    let flops = |nodes: &[EmittedNode]| -> u64 {
        nodes.iter().filter_map(|node| Some(node.kernel?.0)).sum()
    };
    let mut plan = ParallelismPlan::new();
    let bf16 = flops(&generate_gpt2_nodes(&plan));
    for linears in [Dtype::Fp8, Dtype::Fp4, Dtype::Fp16] {
        plan.linears = Some(linears);
        assert_eq!(flops(&generate_gpt2_nodes(&plan)), bf16, "{linears}");
    }
}

#[test]
fn megatron_sums_gradients_in_a_kernel_apart_from_the_product() {
    let mut plan = ParallelismPlan::new();
    plan.elementwise = ElementwiseKernels::Megatron;
    plan.batch = 2;
    let all = generate_gpt2_nodes(&plan);
    let up = |suffix: &str| {
        find_kernel_cost_and_dtype(&all, &format!("mb1/layer3/bwd/mlp.up{suffix}")).1
    };
    let [n, k, m] = UP;
    // The product writes 2 B per element. The sum reads the product's bytes, and reads and writes 2
    // B of accumulated gradient per element.
    assert_eq!(up(".wgrad"), 2 * (n * k + n * m + k * m));
    assert_eq!(up(".wgrad.sum"), 6 * k * m);
    assert_eq!(up(".bgrad"), 2 * n * m);
    // A single micro-batch needs no sum.
    plan.batch = 1;
    assert_eq!(
        count_nodes_by_suffix(&generate_gpt2_nodes(&plan), ".wgrad.sum"),
        0
    );
    // Clipping moves the single-precision gradients three times: two reads and one write.
    let step = |plan: &ParallelismPlan| {
        find_kernel_cost_and_dtype(&generate_gpt2_nodes(plan), "optimizer").1
    };
    let before = step(&plan);
    plan.clip = true;
    assert_eq!(step(&plan) * 28, before * 40);
}

#[test]
fn operator_recomputation_repeats_every_other_product() {
    let mut plan = ParallelismPlan::new();
    plan.recompute = RecomputePolicy::Operators;
    let all = generate_model_nodes("llama3-8b", plan.clone());
    let again =
        |name: &str| find_kernel_cost_and_dtype(&all, &format!("mb0/layer3/again/{name}")).0;
    let tokens = 8192;
    // Three products are recomputed: for keys (8 heads of 128 columns), after attention (4,096 by 4,096), and for half
    // of the gate (14,336 columns).
    assert_eq!(again("attention.qkv"), 2 * tokens * 4096 * 1024);
    assert_eq!(again("attention.out"), 2 * tokens * 4096 * 4096);
    assert_eq!(again("mlp.up"), 2 * tokens * 4096 * 14_336);
    assert_eq!(count_nodes_by_suffix(&all, "/again/attention.core"), 0);
    assert_eq!(count_nodes_by_suffix(&all, "/again/mlp.down"), 0);
    assert_eq!(count_nodes_by_suffix(&all, "/again/norm2"), 32);
    let peak = |recompute| {
        let plan = ParallelismPlan {
            recompute,
            ..plan.clone()
        };
        let model = Model::load_named("llama3-8b").unwrap();
        ModelAndParallelismPlan { model, plan }
            .prepare_generator()
            .unwrap()
            .peak_bytes(0)
            .bytes
    };
    let [none, operators, full] = [
        RecomputePolicy::None,
        RecomputePolicy::Operators,
        RecomputePolicy::Full,
    ]
    .map(peak);
    assert!(
        none > operators && operators > full,
        "{none} {operators} {full}"
    );
}

/// The outputs of attention and of the products before it are saved, so the operators that use them keep their inputs.
#[test]
fn outputs_that_the_plan_does_not_name_are_computed_again() {
    let mut plan = ParallelismPlan::new();
    plan.recompute = RecomputePolicy::Operators;
    let kept = |plan: &ParallelismPlan| {
        let model = Model::load_named("llama3-8b").unwrap();
        let plan = plan.clone();
        let summary = ModelAndParallelismPlan { model, plan }
            .summarize_plan()
            .unwrap();
        summary.stages[0].stored.1
    };
    plan.saved = ["attention.qkv", "attention.core"]
        .map(|name| name.parse().unwrap())
        .to_vec();
    let all = generate_model_nodes("llama3-8b", plan.clone());
    let again: Vec<_> = all
        .iter()
        .filter_map(|node| node.name.strip_prefix("mb0/layer3/again/"))
        .collect();
    let expected = [
        "norm1",
        "attention.core.rotary",
        "attention.out",
        "residual1",
        "norm2",
        "mlp.up",
        "mlp.activation",
    ];
    assert_eq!(again, expected);
    let before = kept(&plan);
    // The sum after attention's output product keeps that product's output: 8,192 x 4,096 numbers of 2 B per block.
    plan.saved.push("attention.out".parse().unwrap());
    assert_eq!(kept(&plan) - before, 32 * 2 * 8192 * 4096);
    let all = generate_model_nodes("llama3-8b", plan.clone());
    assert_eq!(count_nodes_by_suffix(&all, "/again/attention.out"), 0);
    plan.saved.push("attention.other".parse().unwrap());
    let model = Model::load_named("llama3-8b").unwrap();
    let refused = ModelAndParallelismPlan { model, plan }.prepare_generator();
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("`saved` is attention.other; expected operators of blocks of llama3-8b"),
        "{refused}"
    );
}

#[test]
fn stages_wait_for_their_messages_if_asked() {
    let mut plan = ParallelismPlan::new();
    (plan.pipeline, plan.batch) = (2, 4);
    for overlap in [true, false] {
        plan.pipeline_overlap = overlap;
        let all = generate_gpt2_nodes(&plan);
        let sent = |id: &u64| all[*id as usize - 1].name == "mb0/chunk0/fwd/send";
        let waits = all.iter().any(|node| node.data.iter().any(sent));
        assert_eq!(waits, !overlap);
    }
}

#[test]
fn embedding_and_head_can_count_as_layers() {
    let mut plan = ParallelismPlan::new();
    plan.split = SplitUnit::Layers;
    (plan.pipeline, plan.batch) = (7, 7);
    let prepare = |plan: &ParallelismPlan| {
        let model = Model::load_named("gpt2-small").unwrap();
        let plan = plan.clone();
        ModelAndParallelismPlan { model, plan }.prepare_generator()
    };
    // 14 layers, including the embedding and the head, are distributed over 7 stages.
    let prepared = prepare(&plan).unwrap();
    let layers: Vec<_> = (0..7).map(|part| prepared.layers_of_part(part)).collect();
    let expected: Vec<_> = (0..7).map(|part| 2 * part..2 * part + 2).collect();
    assert_eq!(layers, expected);
    (plan.pipeline, plan.batch) = (3, 3);
    let refused = prepare(&plan).unwrap_err().to_string();
    assert!(refused.contains("14 layers"), "{refused}");
}

/// Number of elements in llama3-8b's queries and keys: 8,192 tokens, with 32 and 8 heads of 128
/// columns.
const TURNED: u64 = 8192 * (32 + 8) * 128;

#[test]
fn rotary_positions_of_queries_and_keys_take_one_kernel_or_three() {
    let mut plan = ParallelismPlan::new();
    let core = |nodes: &[EmittedNode], phase: &str, suffix: &str| {
        find_kernel_cost_and_dtype(nodes, &format!("mb0/layer3/{phase}/attention.core{suffix}")).1
    };
    let fused = generate_model_nodes("llama3-8b", plan.clone());
    // In each direction, the kernel reads and writes 2 B per element.
    for phase in ["fwd", "bwd"] {
        assert_eq!(core(&fused, phase, ".rotary"), 4 * TURNED);
    }
    assert_eq!(count_nodes_by_suffix(&fused, ".repeat"), 0);
    // GPT-2 has a learned position table instead of rotary positions.
    assert_eq!(
        count_nodes_by_suffix(&generate_gpt2_nodes(&plan), ".rotary"),
        0
    );
    plan.elementwise = ElementwiseKernels::Eager;
    let eager = generate_model_nodes("llama3-8b", plan.clone());
    // Three kernels convert from 2 B to 4 B, multiply values of 4 B in place, and convert back to 2
    // B: 6 + 8 + 6 B.
    for (suffix, each) in [("single", 6), ("turn", 8), ("half", 6)] {
        let suffix = format!(".rotary.{suffix}");
        assert_eq!(core(&eager, "fwd", &suffix), each * TURNED);
        assert_eq!(core(&eager, "bwd", &suffix), each * TURNED);
    }
    // For keys, and again for values, the kernel reads 8 heads and writes 32 heads.
    assert_eq!(core(&eager, "fwd", ".repeat"), 2 * 2 * TURNED);
    // Attention's inputs are recomputed, but attention itself is not.
    plan.recompute = RecomputePolicy::Operators;
    let again = generate_model_nodes("llama3-8b", plan);
    assert_eq!(
        count_nodes_by_suffix(&again, "/again/attention.core.rotary.turn"),
        32
    );
    assert_eq!(
        count_nodes_by_suffix(&again, "/again/attention.core.repeat"),
        32
    );
    assert_eq!(count_nodes_by_suffix(&again, "/again/attention.core"), 0);
}

#[test]
fn operator_recomputation_repeats_all_eight_bit_products() {
    let mut plan = ParallelismPlan::new();
    plan.recompute = RecomputePolicy::Operators;
    plan.linears = Some(Dtype::Fp8);
    let all = generate_model_nodes("llama3-8b", plan);
    let again =
        |name: &str| find_kernel_cost_and_dtype(&all, &format!("mb0/layer3/again/{name}")).0;
    let tokens = 8192;
    // The products for queries, keys and values (48 heads of 128 columns) and both halves of the gate are recomputed.
    // The block's last product is not, because no gradient needs its output.
    assert_eq!(again("attention.qkv"), 2 * tokens * 4096 * 48 * 128);
    assert_eq!(again("attention.out"), 2 * tokens * 4096 * 4096);
    assert_eq!(again("mlp.up"), 2 * tokens * 4096 * 2 * 14_336);
    assert_eq!(count_nodes_by_suffix(&all, "/again/mlp.down"), 0);
}

#[test]
fn a_fused_loss_reads_logits_twice() {
    let mut plan = ParallelismPlan::new();
    let loss = |plan: &ParallelismPlan, phase: &str| {
        find_kernel_cost_and_dtype(
            &generate_gpt2_nodes(plan),
            &format!("mb0/head/{phase}/loss"),
        )
        .1 / 1024
    };
    let words = loss(&plan, "fwd") / 38;
    // Per logit, the forward loss moves 2 + 36 B (36 B of these in single precision), and the
    // backward loss moves 2 + 12 B.
    assert_eq!(words, 50_257);
    assert_eq!(loss(&plan, "bwd"), 14 * words);
    plan.loss = LossKernel::Fused;
    // The forward pass reads the logits twice and writes them once; the backward pass reads and
    // writes them once.
    assert_eq!(
        [loss(&plan, "fwd"), loss(&plan, "bwd")],
        [6 * words, 4 * words]
    );
}

#[test]
fn pytorch_steps_and_clips_operation_by_operation() {
    let step = |plan: &ParallelismPlan| {
        find_kernel_cost_and_dtype(&generate_gpt2_nodes(plan), "optimizer").1
    };
    let mut plan = ParallelismPlan::new();
    let before = step(&plan);
    plan.elementwise = ElementwiseKernels::Compiled;
    // The unfused step moves 80 B per parameter, 52 B more than the fused kernel; clipping moves another 12 B for norm
    // and scaling.
    assert_eq!(step(&plan) * 28, before * 80);
    plan.clip = true;
    assert_eq!(step(&plan) * 28, before * 92);
}

#[test]
fn pytorch_copies_what_it_gathers_and_reduces() {
    let mut plan = ParallelismPlan::new();
    (plan.data, plan.batch, plan.zero) = (2, 2, ZeroStage::Parameters);
    plan.gradients = Some(Dtype::Fp32);
    let copies = |plan: &ParallelismPlan| {
        let all = generate_gpt2_nodes(plan);
        let of = |end: &str| -> Vec<u64> {
            let ends = all.iter().filter(|node| node.name.ends_with(end));
            ends.map(|node| node.kernel.unwrap().1).collect()
        };
        [of("/unpack"), of("/gradients/pack")]
    };
    assert!(copies(&plan).iter().all(Vec::is_empty));
    plan.elementwise = ElementwiseKernels::Compiled;
    let [unpacked, packed] = copies(&plan);
    // The parameters of 14 layers are gathered twice, so they are copied 28 times. Gradients are reduced once, in 7
    // buckets.
    assert_eq!([unpacked.len(), packed.len()], [28, 7]);
    // A block with 768 columns has 12 x 768^2 weights in products, 9 x 768 weights in their biases, and 4 x 768 weights
    // in two norms. Parameters are read and written with 2 B; gradients are read with 2 B but written with 4 B.
    let block = 12 * 768 * 768 + 13 * 768;
    assert_eq!(unpacked[5], 4 * block);
    let [gathered, reduced] = [&unpacked, &packed].map(|copies| copies.iter().sum::<u64>());
    assert_eq!(8 * reduced, 6 * gathered);
    // If every replica has all parameters, no parameters are copied.
    plan.zero = ZeroStage::Gradients;
    assert!(copies(&plan).iter().all(Vec::is_empty));
}
