//! Tests extreme sizes: for any model and plan, the program either rejects it by name or gives a result in limited
//! time.

use crate::harness::plan_file::{PlanRejectionOrCheckExtent, check_plan_more_if_small};
use chakram::generate::{
    AblationEffect, AttentionKernel, Optimizer, ParallelismPlan, PipelineSchedule, RecomputePolicy,
    ZeroStage,
};
use chakram::model::{
    ActivationFunction, LayerOperator, LayerRole, Model, ModelLayer, OperatorKind,
    OperatorTensorParallelSplit,
};
use chakram::trace::Dtype;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use std::cell::Cell;

/// Returns sizes that are mostly small and sometimes range up to the maximum of a model file.
fn size_strategy() -> impl Strategy<Value = u64> {
    prop_oneof![
        20 => select(vec![1_u64, 2, 4, 8]),
        1 => select(vec![1_000, 1_000_000, 1 << 31, 1_000_000_000_000]),
    ]
}

fn operator_strategy() -> impl Strategy<Value = OperatorKind> {
    let flags = any::<[bool; 2]>();
    prop::array::uniform6(size_strategy()).prop_flat_map(move |[a, b, c, d, e, f]| {
        let sizes = [c, d];
        (0..14_u8, flags).prop_map(move |(which, [yes, also])| match which {
            0 => OperatorKind::Linear {
                rows: a,
                inputs: b,
                outputs: c,
                bias: yes,
                tied: also,
            },
            1 => OperatorKind::Attention {
                tokens: a,
                queries: a,
                heads: b,
                kv_heads: c,
                width: d,
                causal: yes,
                dropout: also,
                rotary: also,
                qk_norm: yes,
            },
            2 => OperatorKind::Norm {
                rows: a,
                width: b,
                bias: yes,
            },
            3 => OperatorKind::Activation {
                function: ActivationFunction::Gelu,
                rows: a,
                width: b,
                gated: yes,
            },
            4 => OperatorKind::Residual {
                rows: a,
                width: b,
                dropout: yes,
            },
            5 => OperatorKind::Embedding {
                vocabulary: a,
                width: b,
                tokens: c,
            },
            6 => OperatorKind::Loss {
                rows: a,
                classes: b,
            },
            7 => OperatorKind::Convolution {
                inputs: a,
                outputs: b,
                size: sizes,
                kernel: [e, e],
                stride: f,
                padding: e,
                groups: a,
                bias: yes,
            },
            8 => OperatorKind::Pool {
                channels: a,
                size: sizes,
                kernel: [e, e],
                stride: f,
                padding: e,
            },
            9 => OperatorKind::EmbeddingBag {
                rows: a,
                width: b,
                lookups: c,
            },
            10 => OperatorKind::ExpertDispatch {
                tokens: a,
                width: b,
                experts: c,
                chosen: d,
                form: chakram::model::ExpertScoringAndGroupRule::default(),
            },
            11 => OperatorKind::ExpertLinear {
                rows: a,
                experts: b,
                inputs: c,
                outputs: d,
                bias: yes,
            },
            12 => OperatorKind::ExpertCombine {
                tokens: a,
                width: b,
                chosen: c,
            },
            _ => OperatorKind::Interaction {
                vectors: a,
                width: b,
            },
        })
    })
}

fn layer_strategy(role: LayerRole) -> impl Strategy<Value = ModelLayer> {
    let cut = select(vec![
        OperatorTensorParallelSplit::Replicated,
        OperatorTensorParallelSplit::ColumnParallel,
        OperatorTensorParallelSplit::RowParallel,
        OperatorTensorParallelSplit::InsideRegion,
    ]);
    vec((operator_strategy(), cut), 1..4).prop_map(move |operators| {
        let operators = (0..).zip(operators);
        let operators =
            operators.map(|(i, (work, cut))| LayerOperator::new(format!("o{i}"), work, cut));
        ModelLayer::new("layer", role, operators.collect())
    })
}

fn model_strategy() -> impl Strategy<Value = Model> {
    let ends = vec(layer_strategy(LayerRole::Input), 0..2);
    let blocks = prop_oneof![
        8 => select(vec![1_usize, 2, 4]),
        1 => Just(2_000),
    ];
    (
        ends,
        layer_strategy(LayerRole::Block),
        blocks,
        layer_strategy(LayerRole::Output),
    )
        .prop_map(|(mut layers, block, blocks, last)| {
            layers.extend(std::iter::repeat_n(block, blocks));
            layers.push(last);
            for (i, layer) in layers.iter_mut().enumerate() {
                layer.name = format!("layer{i}");
            }
            Model {
                name: "extreme".to_owned(),
                source: String::new(),
                sequence: 4,
                layers,
            }
        })
}

fn proptest_small_or_extreme_degree() -> impl Strategy<Value = u32> {
    prop_oneof![
        5 => Just(1_u32),
        3 => select(vec![2_u32, 4]),
        1 => select(vec![0_u32, 1 << 21, 1 << 31, i32::MAX as u32, u32::MAX]),
    ]
}

fn amount_strategy() -> impl Strategy<Value = u64> {
    prop_oneof![
        15 => select(vec![1_u64, 2, 4]),
        1 => select(vec![1 << 20, u64::from(u32::MAX), 1 << 40, i64::MAX as u64, u64::MAX]),
    ]
}

fn build_proptest_plan_strategy() -> impl Strategy<Value = ParallelismPlan> {
    let degrees = prop::array::uniform3(proptest_small_or_extreme_degree());
    let amounts = prop::array::uniform4(amount_strategy());
    let schedules = select(vec![
        PipelineSchedule::GPipe,
        PipelineSchedule::OneForwardOneBackward,
        PipelineSchedule::OneForwardOneBackward,
        PipelineSchedule::Interleaved { chunks: 2 },
        PipelineSchedule::Interleaved { chunks: u32::MAX },
        PipelineSchedule::LayerWise { layers: 1 },
        PipelineSchedule::Inference,
        PipelineSchedule::ZeroBubbleH1,
        PipelineSchedule::ZeroBubbleV,
        PipelineSchedule::DualPipe,
        PipelineSchedule::DualPipeV,
    ]);
    let words = (
        select(ZeroStage::ALL),
        select(RecomputePolicy::ALL),
        select(Optimizer::ALL),
        select(AttentionKernel::ALL),
        select(Dtype::ALL.to_vec()),
        prop_oneof![3 => Just(0_u16), 1 => any::<u16>()],
        prop_oneof![3 => Just(1_u32), 1 => proptest_small_or_extreme_degree()],
    );
    (degrees, amounts, schedules, words, any::<[bool; 9]>()).prop_map(
        |(degrees, amounts, schedule, words, flags)| {
            let mut plan = ParallelismPlan::new();
            [plan.data, plan.tensor, plan.pipeline] = degrees;
            let [samples, count, bucket, steps] = amounts;
            plan.micro_batch = samples;
            let batch = samples.saturating_mul(plan.data.into());
            plan.batch = batch.saturating_mul(count);
            plan.bucket = bucket;
            plan.steps = u32::try_from(steps).unwrap_or(u32::MAX);
            plan.schedule = schedule;
            let (zero, recompute, optimizer, attention, dtype, without, expert) = words;
            plan.expert = expert;
            (plan.optimizer, plan.attention) = (optimizer.0, attention.0);
            plan.dtype = dtype.0;
            plan.capacity = Some(u64::MAX);
            let [sequence, scatter, ..] = flags;
            // Half of the combinations that are always rejected are skipped.
            if plan.data != 1 || flags[2] {
                plan.zero = zero.0;
            }
            if plan.has_training() || flags[2] {
                plan.recompute = recompute.0;
            }
            if plan.tensor != 1 || flags[2] {
                plan.sequence_parallel = sequence && flags[2];
                plan.scatter_gather = scatter && !flags[2];
            }
            [plan.accumulate, plan.reshard, plan.clip] = [flags[3], flags[4], flags[5]];
            [plan.overlap, plan.tensor_overlap, plan.mixed] = [flags[6], flags[7], flags[8]];
            plan.prefetch = u32::try_from(bucket).unwrap_or(u32::MAX);
            for (i, (effect, _)) in AblationEffect::ALL.iter().enumerate() {
                if without & (1 << i) != 0 {
                    plan.without.add_effect(*effect);
                }
            }
            plan
        },
    )
}

#[test]
fn random_models_and_plans_are_refused_or_build_a_job() {
    check_random_models_and_plans(250);
}

#[test]
#[ignore = "a minute: cargo test --test it extremes -- --ignored"]
fn thousands_of_models_and_plans_are_refused_or_build_a_job() {
    check_random_models_and_plans(6_000);
}

fn check_random_models_and_plans(cases: u32) {
    let config = Config {
        cases,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..Config::default()
    };
    let ends = [const { Cell::new(0_u32) }; 4];
    let mut runner = TestRunner::new(config);
    let all = runner.run(
        &(model_strategy(), build_proptest_plan_strategy()),
        |(model, plan)| {
            let end = &ends[check_plan_more_if_small(&model, &plan) as usize];
            end.set(end.get() + 1);
            Ok(())
        },
    );
    all.unwrap();
    let [refused, long, summed, held] = ends.map(Cell::into_inner);
    println!("{refused} refused, {long} long, {summed} summed, {held} held");
    for (count, word) in [
        (refused, PlanRejectionOrCheckExtent::Refused),
        (long, PlanRejectionOrCheckExtent::Long),
        (summed, PlanRejectionOrCheckExtent::Summed),
        (held, PlanRejectionOrCheckExtent::Held),
    ] {
        assert!(count > cases / 100, "{count} {word:?}");
    }
}
