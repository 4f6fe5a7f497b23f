//! Tests how much memory is allocated, and for how long.

use super::{
    GPT, RankNodeSums, build_gpt_model, build_pattern_of_model_and_plan, build_product_chain_model,
};
use chakram::engine::{CompiledReplay, KernelDurationSource, ReplayOptions, RooflinePeakFraction};
use chakram::generate::{
    AttentionKernel, ModelAndParallelismPlan, ParallelismPlan, PipelineSchedule, RecomputePolicy,
    ZeroStage,
};
use chakram::machine::Machine;
use chakram::model::{LayerRole, TransformerBlock};
use chakram::report::MemoryPeakObserver;
use chakram::trace::TensorClass;

/// As PALM states, stage i of S keeps the activations of S - i micro-batches under 1F1B, and all m of them under GPipe.
#[test]
fn stages_keep_as_many_micro_batches_as_the_schedule_says() {
    let kept = |schedule| {
        let mut plan = ParallelismPlan::new();
        plan.pipeline = 4;
        plan.batch = 8;
        plan.schedule = schedule;
        let job = build_pattern_of_model_and_plan(&build_product_chain_model(6, 10), &plan);
        // Six blocks cannot be divided among four stages.
        assert!(job.unwrap_err().contains("a divisor of the 6 blocks"));
        let job =
            build_pattern_of_model_and_plan(&build_product_chain_model(4, 10), &plan).unwrap();
        let stages = [1, 2].map(|stage| {
            // A product keeps its input, 10 numbers of 2 B.
            RankNodeSums::sum_nodes_of_rank(&job, stage)
                .peak_bytes_of_tensor_class(TensorClass::Activations)
                / 20
        });
        stages.to_vec()
    };
    assert_eq!(kept(PipelineSchedule::OneForwardOneBackward), [3, 2]);
    assert_eq!(kept(PipelineSchedule::GPipe), [8, 8]);
}

/// Returns the activations by stage, in units of one block's activations: first as a replay's memory report gives them,
/// and then as the plan's summary does.
fn activations_kept_in_replay_and_plan(
    blocks: usize,
    schedule: PipelineSchedule,
) -> (Vec<u64>, Vec<u64>) {
    // Eq. 4 of Korthikanti et al., 2022, is s b h (34 + 5 a s / h) on one NPU: 8 x 16 x 34 + 5 x 4
    // x 8 x 8.
    let block = 8 * 16 * 34 + 5 * 4 * 8 * 8;
    let mut model = build_gpt_model();
    model.layers.retain(|layer| layer.role == LayerRole::Block);
    while model.layers.len() < blocks {
        model.layers.push(model.layers[0].clone());
    }
    let mut plan = ParallelismPlan::new();
    (plan.pipeline, plan.batch, plan.schedule) = (4, 8, schedule);
    plan.attention = AttentionKernel::Unfused;
    let workload = build_pattern_of_model_and_plan(&model, &plan)
        .unwrap()
        .build_workload()
        .unwrap();
    let machine = Machine::load_preset("dgx-a100").unwrap();
    let options = ReplayOptions::default_with_changes(|o| {
        o.compute = KernelDurationSource::Roofline(RooflinePeakFraction::default());
    });
    let prepared = CompiledReplay::new(&workload, &machine, &options).unwrap();
    let rows = prepared
        .run(MemoryPeakObserver::new(&prepared))
        .unwrap()
        .1
        .into_rows();
    let units = rows.iter().map(|row| {
        // All other memory is allocated from the start, so the peak is the peak of activations.
        let bytes = row.classes[TensorClass::Activations as usize];
        assert_eq!(bytes % block, 0, "rank {:?}: {bytes}", row.rank);
        assert_eq!(
            (row.left[TensorClass::Activations as usize], &row.missing),
            (0, &None)
        );
        bytes / block
    });
    let said = ModelAndParallelismPlan { model, plan }
        .summarize_plan()
        .unwrap();
    let said = said.stages.iter().map(|stage| {
        assert_eq!(stage.stored.1, block);
        stage.stored.0
    });
    (units.collect(), said.collect())
}

/// Stage i of S = 4 with m = 8 micro-batches keeps S - i of them under 1F1B and all 8 under GPipe.
/// Interleaved with v = 2 chunks, stage i has 2 (S - i - 1) + (v - 1) S forward passes of a chunk,
/// and one more, before the first backward pass (Narayanan et al., 2021, section 2.2): 11, 9, 7, 5.
#[test]
fn replays_hold_as_many_micro_batches_as_the_schedule_says() {
    let interleaved = PipelineSchedule::Interleaved { chunks: 2 };
    for (blocks, schedule, expected) in [
        (4, PipelineSchedule::OneForwardOneBackward, [4, 3, 2, 1]),
        (4, PipelineSchedule::GPipe, [8, 8, 8, 8]),
        (8, interleaved, [11, 9, 7, 5]),
    ] {
        let (held, said) = activations_kept_in_replay_and_plan(blocks, schedule.clone());
        assert_eq!(held, expected, "{schedule:?}");
        assert_eq!(said, expected, "{schedule:?}");
    }
}

/// Korthikanti et al., 2022, give the bytes of a block with h columns, a heads and s tokens, split among t members, for
/// b samples. Eq. 2 is s b h (10 + 24/t + 5 a s / (h t)). Eq. 4, with sequence parallelism, is s b h / t (34 + 5 a s /
/// h). Eq. 6, without scores, is 34 s b h / t. Eq. 5, with everything recomputed, is 2 s b h, which is split over the
/// members here.
#[test]
fn a_block_keeps_what_korthikanti_counts() {
    let TransformerBlock {
        tokens: s,
        hidden: h,
        heads: a,
        ..
    } = GPT;
    let b = 3;
    let kept = |t: u32, sequence_parallel, recompute| {
        let mut plan = ParallelismPlan::new();
        plan.tensor = t;
        plan.sequence_parallel = sequence_parallel;
        plan.attention = AttentionKernel::Unfused;
        plan.recompute = recompute;
        plan.batch = b;
        plan.micro_batch = b;
        let mut model = build_gpt_model();
        let sum = |model: &chakram::model::Model| {
            let job = build_pattern_of_model_and_plan(model, &plan).unwrap();
            RankNodeSums::sum_nodes_of_rank(&job, 0)
                .peak_bytes_of_tensor_class(TensorClass::Activations)
        };
        let four = sum(&model);
        model.layers.remove(1);
        // The difference is the memory of one more block, at the time when everything is kept.
        four - sum(&model)
    };
    for t in [1, 2, 4] {
        let n = u64::from(t);
        let scores = 5 * a * s * s * b / n;
        let whole = s * b * h * 10 + s * b * h * 24 / n + scores;
        assert_eq!(
            kept(t, false, RecomputePolicy::None),
            whole,
            "eq. 2, t = {t}"
        );
        let selective = whole - scores;
        assert_eq!(
            kept(t, false, RecomputePolicy::Selective),
            selective,
            "t = {t}"
        );
        assert_eq!(
            kept(t, false, RecomputePolicy::Full),
            2 * s * b * h,
            "t = {t}"
        );
        if t > 1 {
            let shared = s * b * h * 34 / n;
            assert_eq!(
                kept(t, true, RecomputePolicy::None),
                shared + scores,
                "eq. 4, t = {t}"
            );
            assert_eq!(
                kept(t, true, RecomputePolicy::Selective),
                shared,
                "eq. 6, t = {t}"
            );
            assert_eq!(
                kept(t, true, RecomputePolicy::Full),
                2 * s * b * h / n,
                "eq. 5, t = {t}"
            );
        }
    }
}

/// Recomputation as needed recomputes just enough to fit.
#[test]
fn recomputation_as_needed_is_the_least_that_fits() {
    let peak = |recompute, capacity| {
        let mut plan = ParallelismPlan::new();
        plan.attention = AttentionKernel::Unfused;
        plan.recompute = recompute;
        plan.capacity = capacity;
        plan.batch = 4;
        plan.micro_batch = 4;
        let job = build_pattern_of_model_and_plan(&build_gpt_model(), &plan)?;
        Ok::<_, String>(
            RankNodeSums::sum_nodes_of_rank(&job, 0)
                .peak
                .iter()
                .sum::<u64>(),
        )
    };
    let [none, selective, full] = [
        RecomputePolicy::None,
        RecomputePolicy::Selective,
        RecomputePolicy::Full,
    ]
    .map(|r| peak(r, None).unwrap());
    assert!(
        none > selective && selective > full,
        "{none} {selective} {full}"
    );
    for (capacity, expected) in [(none, none), (none - 1, selective), (selective - 1, full)] {
        assert_eq!(
            peak(RecomputePolicy::AsNeeded, Some(capacity)),
            Ok(expected)
        );
    }
    let error = peak(RecomputePolicy::AsNeeded, Some(full / 2)).unwrap_err();
    assert!(error.contains("B of memory"), "{error}");
    let error = peak(RecomputePolicy::AsNeeded, None).unwrap_err();
    assert!(error.contains("beside a capacity"), "{error}");
}

/// Gathered parameters exist for the current layer and for layers gathered ahead. A layer's
/// gradients exist until they are reduced.
#[test]
fn gathered_parameters_are_few_at_a_time() {
    let peak = |prefetch, reshard| {
        let mut plan = ParallelismPlan::new();
        plan.data = 2;
        plan.batch = 2;
        plan.zero = ZeroStage::Parameters;
        plan.prefetch = prefetch;
        plan.reshard = reshard;
        // There is a bucket for each layer.
        plan.bucket = 1;
        let job =
            build_pattern_of_model_and_plan(&build_product_chain_model(8, 10), &plan).unwrap();
        // A layer has 10 x 10 weights of 2 B and as many gradients, and each of the norms at both ends has 10.
        RankNodeSums::sum_nodes_of_rank(&job, 0).peak_bytes_of_tensor_class(TensorClass::Temporary)
    };
    assert_eq!(
        [peak(0, true), peak(1, true), peak(3, true)],
        [400, 600, 1000]
    );
    // When the backward pass reaches the first products, all gradients are allocated except those of the norm that it
    // reaches last.
    assert_eq!(peak(0, false), 8 * 200 + 20 + 200);
}
