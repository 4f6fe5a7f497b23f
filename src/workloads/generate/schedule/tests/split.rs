//! Compares schedules that split or overlap passes with formulas and with published makespans.

use super::*;

/// Durations of four kinds of passes: forward, input gradients, weight gradients, and a forward
/// pass that overlaps a whole backward pass.
type PassKindDurations = [u64; 4];

/// Result of a simulated pipeline.
struct SimulatedPipelineResult {
    time: u64,
    /// Idle time of each stage before the last stage ends.
    idle: Vec<u64>,
    /// Idle time of each stage between its first and its last pass.
    idle_within: Vec<u64>,
    /// For each stage, the maximum number of forward passes whose weight gradients are incomplete.
    peaks: Vec<u64>,
}

/// Returns the parts of the model on each stage, in order of chunks.
fn list_model_parts_by_stage(schedule: &PipelineSchedule, stages: u32) -> Vec<Vec<u32>> {
    let of = |stage: u32| match schedule {
        PipelineSchedule::ZeroBubbleV | PipelineSchedule::DualPipeV => {
            vec![stage, 2 * stages - stage - 1]
        }
        PipelineSchedule::DualPipe => vec![stage, stages - stage - 1],
        PipelineSchedule::InterleavedPairs { chunks } => {
            (0..*chunks).map(|chunk| chunk * stages + stage).collect()
        }
        _ => vec![stage],
    };
    (0..stages).map(of).collect()
}

/// Simulates `schedule` on equal stages. `times` are the durations of one micro-batch's passes, each through all chunks
/// of a stage. With `split`, an unsplit backward pass sends its input gradients before it computes weight gradients.
fn simulate_equal_stages_by_pass_times(
    schedule: &PipelineSchedule,
    stages: u32,
    count: u32,
    times: PassKindDurations,
    split: bool,
) -> SimulatedPipelineResult {
    let places = list_model_parts_by_stage(schedule, stages);
    let parts = 1 + places.iter().flatten().max().unwrap();
    // In schedules with two directions, each micro-batch passes through only half of the chunks.
    let share = u64::from(parts / stages);
    let [forward, input, weight, pair] = times.map(|time| time / share);
    // Time at which each result was sent, by (micro-batch, part, backward).
    let mut over: BTreeMap<(u32, u32, bool), u64> = BTreeMap::new();
    let orders: Vec<Vec<PassOrOverlappingPair>> = (0..stages)
        .map(|stage| schedule.steps_of_stage(stage, stages, count).collect())
        .collect();
    let all = stages as usize;
    let (mut next, mut free, mut busy) = (vec![0; all], vec![0; all], vec![0; all]);
    let (mut begins, mut held, mut peaks) = (vec![None; all], vec![0_u64; all], vec![0; all]);
    loop {
        let before = next.clone();
        for stage in 0..all {
            while let Some(step) = orders[stage].get(next[stage]) {
                let needed: Option<Vec<u64>> = step
                    .iter_passes()
                    .filter_map(|pass| {
                        let part = places[stage][pass.chunk as usize];
                        let key = match pass.kind {
                            PassKind::Forward if part > 0 => (pass.micro_batch, part - 1, false),
                            PassKind::Backward | PassKind::InputGradient if part + 1 < parts => {
                                (pass.micro_batch, part + 1, true)
                            }
                            _ => return None,
                        };
                        Some(over.get(&key).copied())
                    })
                    .collect();
                let Some(needed) = needed else { break };
                let begin = needed.into_iter().max().unwrap_or(0).max(free[stage]);
                begins[stage].get_or_insert(begin);
                let lasts = match (step.beside, step.pass.kind) {
                    (Some(_), _) => pair,
                    (None, PassKind::Forward) => forward,
                    (None, PassKind::Backward) => input + weight,
                    (None, PassKind::InputGradient) => input,
                    (None, PassKind::WeightGradient) => weight,
                };
                free[stage] = begin + lasts;
                busy[stage] += lasts;
                for pass in step.iter_passes() {
                    let part = places[stage][pass.chunk as usize];
                    let own = (pass.micro_batch, part, false);
                    match pass.kind {
                        PassKind::Forward => {
                            let known = over.insert(own, free[stage]);
                            assert_eq!(known, None, "{pass:?} on stage {stage} twice");
                            held[stage] += 1;
                        }
                        PassKind::Backward | PassKind::InputGradient => {
                            assert!(
                                over.contains_key(&own),
                                "{pass:?} on stage {stage} too early"
                            );
                            let early = split && pass.kind == PassKind::Backward;
                            let sent = free[stage] - if early { weight } else { 0 };
                            let known = over.insert((pass.micro_batch, part, true), sent);
                            assert_eq!(known, None, "{pass:?} on stage {stage} twice");
                        }
                        PassKind::WeightGradient => {
                            assert!(over.contains_key(&(pass.micro_batch, part, true)));
                        }
                    }
                    // Count the forward pass of a pair first, because its activations are stored before the backward
                    // pass frees others.
                    peaks[stage] = peaks[stage].max(held[stage]);
                    if pass.kind.computes_weight_gradients() {
                        held[stage] -= 1;
                    }
                }
                next[stage] += 1;
            }
        }
        if next == before {
            break;
        }
    }
    for stage in 0..all {
        assert_eq!(
            next[stage],
            orders[stage].len(),
            "stage {stage} of {schedule:?} is stuck"
        );
        assert_eq!(held[stage], 0, "stage {stage} of {schedule:?} still holds");
    }
    // The map has one key per result, so this number of keys proves that no pass is missing.
    assert_eq!(over.len() as u32, 2 * count * parts);
    let time = free.iter().copied().max().unwrap();
    let within = |stage: usize| free[stage] - begins[stage].unwrap_or(0) - busy[stage];
    SimulatedPipelineResult {
        time,
        idle: busy.iter().map(|busy| time - busy).collect(),
        idle_within: (0..all).map(within).collect(),
        peaks,
    }
}

/// Returns the makespan, and the longest idle time of any stage.
fn simulate_makespan_and_idle(
    schedule: PipelineSchedule,
    stages: u32,
    count: u32,
    times: PassKindDurations,
    split: bool,
) -> [u64; 2] {
    let played = simulate_equal_stages_by_pass_times(&schedule, stages, count, times, split);
    [played.time, played.idle.into_iter().max().unwrap()]
}

/// Compares with the makespans that Qi et al. (2024) published, and with DeepSeek's eight phases,
/// simulated as lists. 1F1B takes 8 (10 + 12 + 8) + 3 (10 + 12 + 8) = 330, or 306 if stages send
/// input gradients before they compute weight gradients. ZB-H1 takes 240 + 3 (10 + 12 - 8) = 282.
#[test]
fn published_makespans_come_out() {
    let times = [10, 12, 8, 30];
    assert_eq!(
        simulate_makespan_and_idle(ONE_F_ONE_B, 4, 8, times, false),
        [330, 90]
    );
    assert_eq!(
        simulate_makespan_and_idle(ONE_F_ONE_B, 4, 8, times, true),
        [306, 66]
    );
    let h1 = || PipelineSchedule::ZeroBubbleH1;
    assert_eq!(
        simulate_makespan_and_idle(h1(), 4, 8, times, false),
        [282, 42]
    );
    let dual = |stages, count, times| {
        simulate_makespan_and_idle(PipelineSchedule::DualPipe, stages, count, times, false)
    };
    assert_eq!(dual(8, 20, [1, 1, 1, 3]), [66, 6]);
    assert_eq!(dual(8, 20, [10, 10, 10, 30]), [660, 60]);
    assert_eq!(dual(8, 20, [10, 10, 10, 26]), [604, 48]);
    assert_eq!(dual(4, 8, [10, 10, 10, 26]), [244, 16]);
    assert_eq!(dual(16, 32, [10, 10, 10, 26]), [1012, 112]);
}

#[test]
fn idle_time_is_what_formulas_say() {
    let thirds = |times: PassKindDurations| PassDurations {
        forward: Span(times[0]),
        input: Span(times[1]),
        weight: Span(times[2]),
        pair: Span(times[3]),
    };
    let mut compared = 0;
    for stages in [2, 4, 6, 8] {
        for count in (2 * stages..4 * stages).step_by(2) {
            for times in [
                [2, 2, 2, 6],
                [20, 22, 18, 56],
                [20, 24, 16, 52],
                [20, 20, 20, 50],
            ] {
                let all = [
                    (ONE_F_ONE_B, false),
                    (ONE_F_ONE_B, true),
                    (PipelineSchedule::ZeroBubbleH1, false),
                    (PipelineSchedule::DualPipe, false),
                    (PipelineSchedule::DualPipeV, false),
                ];
                for (schedule, split) in all {
                    let is_dual = schedule.chunk_count() == 2;
                    // If passes overlap, the formula is exact only if input gradients and weight gradients take equal
                    // times.
                    if is_dual && times[1] != times[2] {
                        continue;
                    }
                    let found =
                        simulate_equal_stages_by_pass_times(&schedule, stages, count, times, split);
                    let formula = schedule
                        .stage_idle_time(stages, split, thirds(times))
                        .unwrap();
                    let most = found.idle.iter().copied().max();
                    let case = format!("{schedule:?} {stages} {count} {times:?} {split}");
                    assert_eq!(most, Some(formula.0), "{case}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 200);
    // With equal passes, the bubble is (4 - 1) (1 + 1 - 1) / (3 x 8) for ZB-H1, and (8 / 2 - 1) (3 + 1 - 2) / (3 x 20)
    // for DualPipe.
    let h1 = PipelineSchedule::ZeroBubbleH1.bubble_to_compute_ratio(4, 8, false);
    assert_eq!(h1, Some(3.0 / 24.0));
    let dual = PipelineSchedule::DualPipe.bubble_to_compute_ratio(8, 20, false);
    assert_eq!(dual, Some(6.0 / 60.0));
}

/// With equal passes, no stage waits between its first and its last pass.
#[test]
fn zb_v_with_equal_passes_has_no_idle_time_within_a_stage() {
    for stages in 2..9 {
        for count in 2 * stages..4 * stages {
            let found = simulate_equal_stages_by_pass_times(
                &PipelineSchedule::ZeroBubbleV,
                stages,
                count,
                [2, 2, 2, 6],
                false,
            );
            assert!(
                found.idle_within.iter().all(|idle| *idle == 0),
                "{stages} {count}: {:?}",
                found.idle_within
            );
            // The last stage begins after S - 1 passes, each through half of the stage's layers.
            assert_eq!(found.time, u64::from(6 * count + stages - 1));
        }
    }
}

/// Compares the number of stored activations with the tables of Qi et al. and DeepSeek-AI; the unit
/// is one pass through a chunk. In ZB-H1, a stage stores S micro-batches; in ZB-V, it stores two
/// halves of each of S micro-batches. In DualPipe, a stage stores at most S + 1 micro-batches; in
/// DualPipeV, it stores at most 2 S + 1 halves.
#[test]
fn stored_activations_match_published_tables() {
    for stages in [2, 4, 6, 8] {
        for count in (2 * stages..4 * stages).step_by(2) {
            let s = u64::from(stages);
            for (schedule, most) in [
                (PipelineSchedule::ZeroBubbleH1, s),
                (PipelineSchedule::ZeroBubbleV, 2 * s),
                (PipelineSchedule::DualPipe, s + 1),
                (PipelineSchedule::DualPipeV, 2 * s + 1),
            ] {
                let found = simulate_equal_stages_by_pass_times(
                    &schedule,
                    stages,
                    count,
                    [2, 2, 2, 6],
                    false,
                );
                let stored: Vec<u64> = (0..stages)
                    .map(|stage| schedule.max_passes_with_stored_activations(stage, stages, count))
                    .collect();
                assert_eq!(found.peaks, stored, "{schedule:?} {stages} {count}");
                let largest = stored.iter().copied().max();
                assert_eq!(
                    largest,
                    Some(most),
                    "{schedule:?} {stages} {count}: {stored:?}"
                );
            }
        }
    }
}

/// Even with too few micro-batches to fill the pipeline, every pass occurs once.
#[test]
fn every_pass_occurs_once_even_with_few_micro_batches() {
    for stages in 1..6 {
        for count in 1..2 * stages {
            for schedule in [
                PipelineSchedule::ZeroBubbleH1,
                PipelineSchedule::ZeroBubbleV,
            ] {
                simulate_equal_stages_by_pass_times(&schedule, stages, count, [2, 2, 2, 6], false);
            }
        }
    }
}

#[test]
fn dual_pipe_requires_even_stage_and_micro_batch_counts() {
    let refusal = |schedule: PipelineSchedule, stages, count| {
        schedule
            .check_stage_and_micro_batch_counts(stages, count)
            .unwrap_err()
            .to_string()
    };
    let dual = || PipelineSchedule::DualPipe;
    assert!(refusal(dual(), 3, 8).starts_with("`pipeline` is 3; expected an even number"));
    assert!(
        refusal(dual(), 4, 6)
            .starts_with("`micro_batches` is 6; expected an even number, 8 or more")
    );
    assert!(
        refusal(dual(), 4, 9)
            .starts_with("`micro_batches` is 9; expected an even number, 8 or more")
    );
    let v = refusal(PipelineSchedule::DualPipeV, 4, 7);
    assert!(
        v.starts_with("`micro_batches` is 7; expected 8 or more"),
        "{v}"
    );
}

#[test]
fn successors_invert_predecessors_in_split_schedules() {
    for schedule in [
        PipelineSchedule::ZeroBubbleH1,
        PipelineSchedule::ZeroBubbleV,
        PipelineSchedule::DualPipe,
        PipelineSchedule::DualPipeV,
    ] {
        let (stages, count) = (4, 8);
        let mut ends = 0;
        for stage in 0..stages {
            for pass in schedule.passes_of_stage(stage, stages, count) {
                match schedule.predecessor_of(pass, stage, stages) {
                    Some((other, needed)) => {
                        let back = schedule.stage_and_pass_using_result(needed, other, stages);
                        assert_eq!(back, Some((stage, pass)), "{schedule:?}");
                    }
                    None if pass.kind != PassKind::WeightGradient => ends += 1,
                    None => {}
                }
            }
        }
        // Each micro-batch passes through the whole pipeline once forward and once backward.
        assert_eq!(ends, 2 * count, "{schedule:?}");
    }
}

/// On the last stage, each of the v m - K pairs takes FB instead of F + B, where K = (v - 1) S + 1 is the length of
/// this stage's warm-up.
#[test]
fn pairs_shorten_interleaved_steps_by_what_they_hide() {
    for (stages, chunks, count) in [
        (1, 1, 4),
        (1, 2, 4),
        (2, 2, 4),
        (4, 2, 8),
        (4, 2, 16),
        (4, 3, 16),
        (8, 2, 32),
    ] {
        let schedule = PipelineSchedule::InterleavedPairs { chunks };
        let passes = u64::from(chunks * count);
        let warm_up = u64::from((chunks - 1) * stages + 1);
        for (forward, input, weight, pair) in [(1, 1, 1, 3), (10, 12, 8, 30), (10, 12, 8, 26)] {
            let times = [forward, input, weight, pair].map(|time| time * u64::from(chunks));
            let found = simulate_equal_stages_by_pass_times(&schedule, stages, count, times, false);
            let whole = forward + input + weight;
            let others = u64::from(stages - 1);
            let time = (others + warm_up) * whole + (passes - warm_up) * pair;
            assert_eq!(found.time, time, "{stages} {chunks} {count} {pair}");
            for stage in 0..stages {
                let stored = schedule.max_passes_with_stored_activations(stage, stages, count);
                assert_eq!(found.peaks[stage as usize], stored);
            }
        }
    }
    let order = format_pass_order(PipelineSchedule::InterleavedPairs { chunks: 2 }, 1, 2, 4);
    assert_eq!(
        order,
        "1a 2a 1b 2b|1b' 3a|2b' 4a|1a' 3b|2a' 4b|3b' 4b' 3a' 4a'"
    );
    // With as many micro-batches as stages, all forward passes come first.
    let lines = PipelineSchedule::InterleavedPairs { chunks: 2 }.to_lines(2, 2);
    assert_eq!(lines[0], "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1");
}
