//! Compares model FLOPs with the FLOPs of all ranks' kernels.

use super::super::*;
use crate::generate::plan::{AblationEffect, ContextExchange, OperatorPatternDegrees};
use crate::generate::sharding::OperatorAxisShardCounts;
use crate::model::OperatorKind;
use chakram_trace::format::work_amounts::CountedAttentionPairs;
use proptest::prelude::*;

fn compute_plan_summary(
    model: &Model,
    plan: &ParallelismPlan,
) -> Result<PlanSummary, PatternOptionError> {
    let (model, plan) = (model.clone(), plan.clone());
    ModelAndParallelismPlan { model, plan }.summarize_plan()
}

/// The model gpt2-small has 12 blocks of 768 columns and a vocabulary of 50,257; it runs with 3 tokens. Products with
/// weights take `s (12 l h² + V h)` multiplications. Both factors of every product have gradients, because the first
/// layer is a table look-up. A causal kernel computes 1 + 2 + 3 of the 9 token pairs, and each pair takes `2 l h`
/// multiplications.
#[test]
fn attention_model_flops_count_the_token_pairs_of_its_kernels() {
    let (s, l, h, v) = (3, 12, 768, 50_257);
    let model = Model::load_with_token_count("gpt2-small", s).unwrap();
    let weights = u128::from(s * (12 * l * h * h + v * h));
    let pair = u128::from(2 * l * h);
    let mut plan = ParallelismPlan::new();
    plan.batch = 4;
    let flash = compute_plan_summary(&model, &plan).unwrap();
    assert_eq!(flash.attention, Some(CountedAttentionPairs::Causal));
    assert_eq!(flash.model_flops, 4 * 6 * (weights + 6 * pair));
    // The kernels execute seven matrix products over token pairs (two forward, five backward), but
    // the model needs only six.
    assert_eq!(flash.flops, flash.model_flops + 4 * 2 * 6 * pair / 2);
    plan.attention = AttentionKernel::Unfused;
    let unfused = compute_plan_summary(&model, &plan).unwrap();
    assert_eq!(unfused.attention, Some(CountedAttentionPairs::Full));
    assert_eq!(unfused.model_flops, 4 * 6 * (weights + 9 * pair));
    assert_eq!(unfused.flops, unfused.model_flops);
    // Korthikanti et al., appendix A: recomputing the products for scores and values adds 2
    // products to attention's 6, but these count only as hardware FLOPs.
    plan.recompute = RecomputePolicy::Selective;
    let selective = compute_plan_summary(&model, &plan).unwrap();
    assert_eq!(selective.model_flops, unfused.model_flops);
    assert_eq!(selective.flops, unfused.flops + 4 * 2 * 9 * pair);
    // If the plan removes logits, neither FLOP count includes them.
    plan.recompute = RecomputePolicy::None;
    plan.without.add_effect(AblationEffect::Logits);
    let headless = compute_plan_summary(&model, &plan).unwrap();
    let logits = 4 * 6 * u128::from(s * v * h);
    assert_eq!(headless.model_flops, unfused.model_flops - logits);
    assert_eq!(headless.flops, headless.model_flops);
}

/// The gradient of the job's input data is not needed, so it is not computed. ResNet-18's first convolution performs 3
/// x 7 x 7 multiplications for each of its 64 x 112 x 112 outputs.
#[test]
fn flops_exclude_gradients_of_the_input_samples() {
    let model = Model::load_named("resnet-18").unwrap();
    let mut plan = ParallelismPlan::new();
    plan.batch = 2;
    let found = compute_plan_summary(&model, &plan).unwrap();
    let first = 64 * 112 * 112 * 3 * 7 * 7;
    let all = u128::from(model.multiplication_count());
    assert_eq!(found.model_flops, 2 * 2 * (3 * all - first));
    assert_eq!(found.flops, found.model_flops);
    assert_eq!(found.attention, None);
}

/// Returns the number of multiplications per sample in the product of attention that a fused kernel repeats in its
/// backward pass.
fn count_attention_multiplications_repeated(model: &Model) -> u128 {
    let operators = model.layers.iter().flat_map(|layer| &layer.operators);
    let of = |work: &OperatorKind| match *work {
        OperatorKind::Attention {
            tokens: s,
            heads,
            width,
            causal,
            ..
        } => heads * width * if causal { s * (s + 1) / 2 } else { s * s },
        _ => 0,
    };
    operators.map(|one| u128::from(of(&one.work))).sum()
}

fn preset_model_strategy() -> impl Strategy<Value = Model> {
    const SEQUENCES: [&str; 5] = [
        "gpt2-small",
        "bert-base",
        "llama3-8b",
        "mixtral-8x7b",
        "qwen3-30b-a3b",
    ];
    let with = |(name, tokens)| Model::load_with_token_count(name, tokens).unwrap();
    let sequences = (prop::sample::select(&SEQUENCES[..]), 1_u64..40).prop_map(with);
    const OTHERS: [&str; 5] = ["vit-b-16", "resnet-18", "alexnet", "lenet-5", "dlrm"];
    let named = |name| Model::load_named(name).unwrap();
    prop_oneof![2 => sequences, 1 => prop::sample::select(&OTHERS[..]).prop_map(named)]
}

fn plan_strategy() -> impl Strategy<Value = ParallelismPlan> {
    let degrees = (
        prop::sample::select(&[1_u32, 1, 2, 4][..]),
        prop::sample::select(&[1_u32, 2][..]),
        prop::sample::select(&[1_u32, 1, 2, 3][..]),
        prop::sample::select(&[1_u32, 1, 2][..]),
        prop::sample::select(&[1_u32, 1, 2, 4][..]),
    );
    let policies = (
        any::<bool>(),
        prop::sample::select(
            &[
                RecomputePolicy::None,
                RecomputePolicy::None,
                RecomputePolicy::Selective,
                RecomputePolicy::Full,
                RecomputePolicy::Operators,
            ][..],
        ),
        prop::sample::select(
            &[
                PipelineSchedule::OneForwardOneBackward,
                PipelineSchedule::GPipe,
                PipelineSchedule::Inference,
            ][..],
        ),
        any::<[bool; 5]>(),
        1_u64..3,
        1_u32..3,
    );
    (degrees, policies).prop_map(|(degrees, policies)| {
        let (tensor, data, pipeline, context, expert) = degrees;
        let (fused, recompute, schedule, options, micro_batch, steps) = policies;
        let [sequence, pads, ulysses, headless, by_samples] = options;
        let mut plan = ParallelismPlan::new();
        (plan.tensor, plan.data, plan.pipeline) = (tensor, data, pipeline);
        (plan.context, plan.expert, plan.steps) = (context, expert, steps);
        (plan.recompute, plan.schedule, plan.micro_batch) = (recompute, schedule, micro_batch);
        plan.batch = micro_batch * u64::from(data) * 4;
        plan.sequence_parallel = sequence && tensor > 1;
        plan.pad_heads = pads && tensor > 1;
        if ulysses && context > 1 {
            plan.context_exchange = ContextExchange::AllToAll;
        }
        if !fused {
            plan.attention = AttentionKernel::Unfused;
        }
        if headless {
            plan.without.add_effect(AblationEffect::Logits);
        }
        if by_samples && recompute != RecomputePolicy::Operators {
            plan.micro_batch *= u64::from(tensor);
            plan.batch *= u64::from(tensor);
            // Operators are sharded by rows or by samples.
            let [b, m] = if headless { [1, tensor] } else { [tensor, 1] };
            let degrees = OperatorAxisShardCounts { b, m, n: 1, k: 1 };
            plan.operators = vec![OperatorPatternDegrees {
                name: "*".to_owned(),
                degrees,
            }];
        }
        plan
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, max_global_rejects: 1 << 16, ..ProptestConfig::default() })]

    /// Hardware FLOPs are never below model FLOPs. The two are equal if nothing is recomputed, padded, or replicated in
    /// a tensor group.
    #[test]
    fn hardware_flops_are_never_below_model_flops(model in preset_model_strategy(), plan in plan_strategy()) {
        let found = compute_plan_summary(&model, &plan);
        prop_assume!(found.is_ok());
        let found = found.unwrap();
        prop_assert!(found.flops >= found.model_flops, "{} below {}", found.flops, found.model_flops);
        let alone = plan.tensor == 1 && found.recompute == RecomputePolicy::None;
        let fused = plan.attention == AttentionKernel::Flash && plan.has_training();
        let again = match fused {
            true => 2 * u128::from(plan.batch * u64::from(plan.steps)) * count_attention_multiplications_repeated(&model),
            false => 0,
        };
        if alone {
            prop_assert_eq!(found.flops, found.model_flops + again);
        }
    }
}
