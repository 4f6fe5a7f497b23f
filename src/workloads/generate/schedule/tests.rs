//! Compares orders of passes with handwritten ones. Compares times and memory peaks with a simulated pipeline.

use super::*;
use chakram_base::units::Span;
use proptest::prelude::*;
use std::collections::BTreeMap;

mod listed;
mod oracle;
mod split;

use oracle::{PipelineTimeAndPeakMicroBatches, simulate_schedule};

/// Formats passes in short form: `3b` is the third micro-batch's forward pass through the second chunk, and `3b'` its
/// backward pass.
fn format_pass_order(
    schedule: PipelineSchedule,
    stage: u32,
    stages: u32,
    micro_batches: u32,
) -> String {
    let short = |pass: PipelinePass| {
        let chunk = char::from(b'a' + pass.chunk as u8);
        let mark = match pass.kind {
            PassKind::Forward => "",
            PassKind::Backward => "'",
            PassKind::InputGradient => "i",
            PassKind::WeightGradient => "w",
        };
        format!("{}{chunk}{mark}", pass.micro_batch + 1)
    };
    let steps = schedule.steps_of_stage(stage, stages, micro_batches);
    let count = steps.len();
    let all: Vec<String> = steps
        .map(|step| {
            let passes: Vec<String> = step.iter_passes().map(short).collect();
            passes.join("|")
        })
        .collect();
    assert_eq!(count, all.len(), "the length is known beforehand");
    all.join(" ")
}

const ONE_F_ONE_B: PipelineSchedule = PipelineSchedule::OneForwardOneBackward;

fn build_interleaved_schedule(chunks: u32) -> PipelineSchedule {
    PipelineSchedule::Interleaved { chunks }
}

fn build_layer_wise_schedule(layers: u32) -> PipelineSchedule {
    PipelineSchedule::LayerWise { layers }
}

/// Simulates a pipeline of equal stages.
fn simulate_equal_stages(
    schedule: PipelineSchedule,
    stages: u32,
    micro_batches: u32,
    forward: u64,
    back: u64,
) -> PipelineTimeAndPeakMicroBatches {
    let stages = vec![(forward, back); stages as usize];
    simulate_schedule(&schedule, &stages, micro_batches)
}

#[test]
fn gpipe_runs_backward_passes_after_all_forward_passes() {
    for stage in 0..2 {
        let order = format_pass_order(PipelineSchedule::GPipe, stage, 2, 3);
        assert_eq!(order, "1a 2a 3a 1a' 2a' 3a'");
    }
}

#[test]
fn one_f_one_b_alternates_after_a_warm_up() {
    // SC'21, figure 4, top: the first of four stages runs three forward passes ahead, and the last
    // stage runs none ahead.
    let of = |stage| format_pass_order(ONE_F_ONE_B, stage, 4, 8);
    let first = "1a 2a 3a 4a 1a' 5a 2a' 6a 3a' 7a 4a' 8a 5a' 6a' 7a' 8a'";
    assert_eq!(of(0), first);
    let third = "1a 2a 1a' 3a 2a' 4a 3a' 5a 4a' 6a 5a' 7a 6a' 8a 7a' 8a'";
    assert_eq!(of(2), third);
    let last = "1a 1a' 2a 2a' 3a 3a' 4a 4a' 5a 5a' 6a 6a' 7a 7a' 8a 8a'";
    assert_eq!(of(3), last);
    // The step has fewer micro-batches than the stage normally runs in its warm-up.
    assert_eq!(format_pass_order(ONE_F_ONE_B, 0, 4, 2), "1a 2a 1a' 2a'");
}

#[test]
fn interleaved_chunks_take_turns_as_in_megatron() {
    // With two stages and four micro-batches, the order of forward passes is 1a 2a 1b 2b 3a 4a 3b
    // 4b, and the order of backward passes is 1b 2b 1a 2a 3b 4b 3a 4a. The first stage runs 2 x 1 +
    // 1 x 2 = 4 forward passes ahead, and the second stage runs 2 ahead.
    let of = |stage| format_pass_order(build_interleaved_schedule(2), stage, 2, 4);
    let first = "1a 2a 1b 2b 3a 1b' 4a 2b' 3b 1a' 4b 2a' 3b' 4b' 3a' 4a'";
    assert_eq!(of(0), first);
    let second = "1a 2a 1b 1b' 2b 2b' 3a 1a' 4a 2a' 3b 3b' 4b 4b' 3a' 4a'";
    assert_eq!(of(1), second);

    // SC'21, figure 4, bottom: the first of four stages runs 2 x 3 + 1 x 4 = 10 forward passes
    // ahead.
    let first = "1a 2a 3a 4a 1b 2b 3b 4b 5a 6a 7a 1b' 8a 2b' 5b 3b' 6b 4b' 7b 1a' 8b 2a' \
                 3a' 4a' 5b' 6b' 7b' 8b' 5a' 6a' 7a' 8a'";
    assert_eq!(
        format_pass_order(build_interleaved_schedule(2), 0, 4, 8),
        first
    );

    // With as many micro-batches as stages, all forward passes come first.
    assert_eq!(
        format_pass_order(build_interleaved_schedule(2), 1, 2, 2),
        "1a 2a 1b 2b 1b' 2b' 1a' 2a'"
    );
}

#[test]
fn layer_wise_runs_all_micro_batches_of_a_layer_before_the_next_layer() {
    let order = format_pass_order(build_layer_wise_schedule(3), 0, 1, 2);
    assert_eq!(order, "1a 2a 1b 2b 1c 2c 1c' 2c' 1b' 2b' 1a' 2a'");
}

#[test]
fn inference_never_goes_back() {
    assert_eq!(
        format_pass_order(PipelineSchedule::Inference, 1, 2, 4),
        "1a 2a 3a 4a"
    );
}

#[test]
fn four_stages_take_33_and_interleaved_28_and_a_half() {
    // PALM's Eq. 1 yields (8 - 1)(1 + 2) + 4 (1 + 2) = 21 + 12 = 33.
    for schedule in [PipelineSchedule::GPipe, ONE_F_ONE_B] {
        assert_eq!(simulate_equal_stages(schedule.clone(), 4, 8, 1, 2).time, 33);
        assert_eq!(schedule.ideal_step_time(&[Span(3); 4], 8), Span(33));
    }
    // Each chunk has half of the layers, so times are in halves of a pass: (2 x 8 - 1)(1 + 2) + 4 (1
    // + 2) = 45 + 12 = 57 halves = 28.5.
    assert_eq!(
        simulate_equal_stages(build_interleaved_schedule(2), 4, 8, 1, 2).time,
        57
    );
    assert_eq!(
        build_interleaved_schedule(2).ideal_step_time(&[Span(3); 4], 8),
        Span(57)
    );
    // A pipeline with one stage has no bubble, so its time is 8 (1 + 2) = 24.
    assert_eq!(simulate_equal_stages(ONE_F_ONE_B, 1, 8, 1, 2).time, 24);
    assert_eq!(ONE_F_ONE_B.ideal_step_time(&[Span(3)], 8), Span(24));
    // The bubbles are 3/8 and 3/16, because the times are 33 / 24 = 1 + 3/8 and 28.5 / 24 = 1 +
    // 3/16 of the computing time.
    assert_eq!(
        ONE_F_ONE_B.bubble_to_compute_ratio(4, 8, false),
        Some(3.0 / 8.0)
    );
    assert_eq!(
        build_interleaved_schedule(2).bubble_to_compute_ratio(4, 8, false),
        Some(3.0 / 16.0)
    );
    // Eight forward passes run through four stages one after another: 8 + 3 = 11.
    assert_eq!(
        simulate_equal_stages(PipelineSchedule::Inference, 4, 8, 1, 0).time,
        11
    );
    assert_eq!(
        PipelineSchedule::Inference.ideal_step_time(&[Span(1); 4], 8),
        Span(11)
    );
}

#[test]
fn max_stored_passes_equal_simulated_peaks() {
    let stored = |schedule: PipelineSchedule, count: u32| -> Vec<u64> {
        let held: Vec<u64> = (0..4)
            .map(|i| schedule.max_passes_with_stored_activations(i, 4, count))
            .collect();
        assert_eq!(
            simulate_equal_stages(schedule.clone(), 4, count, 1, 2).peaks,
            held
        );
        held
    };
    // Stage i of S stores S - i passes, but never more than the number of micro-batches.
    assert_eq!(stored(ONE_F_ONE_B, 8), [4, 3, 2, 1]);
    assert_eq!(stored(ONE_F_ONE_B, 2), [2, 2, 2, 1]);
    assert_eq!(stored(PipelineSchedule::GPipe, 8), [8; 4]);
    // Stage i stores 2 (3 - i) + 4 + 1 passes, each through half of the stage's layers. The first
    // stage stores the activations of 11 / 2 = 4 (1 + 3/8) micro-batches. Korthikanti et al.
    // ("Reducing activation recomputation", 2022, section 4.2.3) give this factor as 1 + (S - 1)/(S
    // v).
    assert_eq!(stored(build_interleaved_schedule(2), 8), [11, 9, 7, 5]);
    assert_eq!(stored(build_interleaved_schedule(2), 4), [8; 4]);
    assert_eq!(stored(build_layer_wise_schedule(3), 2), [6; 4]);
    let kept = |stage| PipelineSchedule::Inference.max_passes_with_stored_activations(stage, 4, 8);
    assert_eq!([kept(0), kept(3)], [0, 0]);
}

#[test]
fn equal_stages_take_as_long_as_the_formula_says() {
    let mut played = 0;
    for stages in 1..=6 {
        for count in 1..=12 {
            let mut all = vec![
                PipelineSchedule::GPipe,
                ONE_F_ONE_B,
                PipelineSchedule::Inference,
            ];
            all.extend((1..=4).map(build_layer_wise_schedule));
            if count % stages == 0 {
                all.extend((2..=4).map(build_interleaved_schedule));
            }
            for (schedule, (forward, back)) in all
                .into_iter()
                .flat_map(|one| [(1, 2), (3, 1), (1, 1)].map(|times| (one.clone(), times)))
            {
                let both = if schedule.has_training() {
                    forward + back
                } else {
                    forward
                };
                let case = format!("{schedule:?}, {stages} stages, {count}, {forward}, {back}");
                let found = simulate_equal_stages(schedule.clone(), stages, count, forward, back);
                let ideal = schedule.ideal_step_time(&vec![Span(both); stages as usize], count);
                assert_eq!(found.time, ideal.0, "{case}");
                // The bubble is idle time divided by computing time.
                let busy = (u64::from(count * schedule.chunk_count()) * both) as f64;
                let bubble = (found.time as f64 - busy) / busy;
                let formula = schedule
                    .bubble_to_compute_ratio(stages, count, false)
                    .unwrap();
                assert!(
                    (bubble - formula).abs() < 1e-12,
                    "{case}: {bubble} {formula}"
                );
                let stored =
                    |stage| schedule.max_passes_with_stored_activations(stage, stages, count);
                let stored: Vec<u64> = (0..stages).map(stored).collect();
                assert_eq!(found.peaks, stored, "{case}");
                played += 1;
            }
        }
    }
    // 72 pipelines run 7 schedules each. The 12 + 6 + 4 + 3 + 2 + 2 = 29 pipelines that can
    // interleave run three more schedules.
    assert_eq!(played, 3 * (72 * 7 + 29 * 3));
}

#[test]
fn interleaving_wants_a_multiple_of_the_stages() {
    let refusal = |chunks, stages, count| {
        let schedule = build_interleaved_schedule(chunks);
        schedule
            .check_stage_and_micro_batch_counts(stages, count)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refusal(2, 4, 6),
        "`micro_batches` is 6; expected a multiple of the 4 stages, because interleaved chunks \
         change after that many micro-batches: 4 or 8"
    );
    assert!(refusal(2, 4, 3).ends_with("after that many micro-batches: 4"));
    assert_eq!(refusal(1, 4, 8), "`chunks` is 1; expected 2 or more");
    let refusal = |schedule: PipelineSchedule, stages, count| {
        let error = schedule
            .check_stage_and_micro_batch_counts(stages, count)
            .unwrap_err();
        error.to_string()
    };
    assert_eq!(
        refusal(ONE_F_ONE_B, 0, 8),
        "`stages` is 0; expected 1 or more"
    );
    assert_eq!(
        refusal(ONE_F_ONE_B, 4, 0),
        "`micro_batches` is 0; expected 1 or more"
    );
    assert_eq!(
        refusal(build_layer_wise_schedule(0), 4, 8),
        "`layers` is 0; expected 1 or more"
    );
    assert_eq!(
        refusal(build_layer_wise_schedule(u32::MAX), 4, u32::MAX),
        "passes of a stage would be 36893488130239234050, but a trace can have at most 4294967295; try fewer \
         micro-batches"
    );
}

fn any_schedule() -> impl Strategy<Value = PipelineSchedule> {
    prop_oneof![
        Just(PipelineSchedule::GPipe),
        Just(ONE_F_ONE_B),
        (2_u32..5).prop_map(build_interleaved_schedule),
        (1_u32..5).prop_map(build_layer_wise_schedule),
        Just(PipelineSchedule::Inference),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn makespan_of_unequal_stages_is_within_bounds(
        schedule in any_schedule(),
        stages in proptest::collection::vec((1_u64..10, 1_u64..10), 1..7),
        rounds in 1_u32..5,
        over in 0_u32..6,
    ) {
        let count = stages.len() as u32;
        let micro_batches = match schedule {
            PipelineSchedule::Interleaved { .. } => rounds * count,
            _ => rounds + over,
        };
        let found = simulate_schedule(&schedule, &stages, micro_batches).time;
        let both = |&(forward, back): &(u64, u64)| forward + if schedule.has_training() { back } else { 0 };
        let passes = u64::from(micro_batches * schedule.chunk_count());
        let slowest = stages.iter().map(both).max().unwrap();
        let through: u64 = stages.iter().map(both).sum();
        prop_assert!(found >= passes * slowest);
        prop_assert!(found >= through);
        let spans: Vec<Span> = stages.iter().map(|stage| Span(both(stage))).collect();
        let ideal = schedule.ideal_step_time(&spans, micro_batches).0;
        let slowest_forward = stages.iter().map(|stage| stage.0).max().unwrap();
        let slowest_back = stages.iter().map(|stage| stage.1).max().unwrap();
        match schedule {
            PipelineSchedule::Inference => prop_assert_eq!(found, ideal),
            PipelineSchedule::GPipe => {
                let each = slowest_forward + slowest_back;
                prop_assert_eq!(found, (passes - 1) * each + through);
                prop_assert!(found >= ideal);
            }
            _ => {}
        }
    }

    #[test]
    fn predecessors_and_successors_of_passes_are_inverse(
        schedule in any_schedule(),
        stages in 1_u32..6,
        rounds in 1_u32..4,
    ) {
        // Every pass depends on exactly one other pass, and at most one other pass needs its result. The exceptions are
        // the forward passes of the first layers and the backward passes of the last layers.
        let micro_batches = rounds * stages;
        let mut ends = 0;
        for stage in 0..stages {
            for pass in schedule.passes_of_stage(stage, stages, micro_batches) {
                match schedule.predecessor_of(pass, stage, stages) {
                    Some((other, needed)) => {
                        prop_assert_eq!(needed.kind, pass.kind);
                        prop_assert_eq!(needed.micro_batch, pass.micro_batch);
                        let back = schedule.stage_and_pass_using_result(needed, other, stages);
                        prop_assert_eq!(back, Some((stage, pass)));
                    }
                    None => ends += 1,
                }
            }
        }
        let ways = if schedule.has_training() { 2 } else { 1 };
        prop_assert_eq!(ends, ways * micro_batches);
    }
}
