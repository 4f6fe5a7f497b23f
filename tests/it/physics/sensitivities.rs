//! Compares the makespan's slopes, and the ranges in which they are valid, with finite differences: replays of random
//! jobs with changed times.

use super::lines::{TestTraceNode, build_collective, build_kernel, build_receive, build_send};
use super::rig::build_job_from_rank_nodes;
use super::tile_groups::Random;
use crate::commands::run_chakram;
use crate::corpus::is_whole_corpus_requested;
use chakram::engine::{
    CollectiveDurationChange, CompiledReplay, DurationAdjustment, HostDurationSource,
    KernelDurationChange, ReplayOptions,
};
use chakram::internals::{NamedMachineText, find_sensitivities};
use chakram::machine::Machine;
use chakram::report::sensitivity::{MakespanSensitivityRow, SensitivityReplayInputs};
use chakram::trace::{CollectiveKind as K, KernelShape, MemoryBoundKernelClass};
use chakram::workload::Workload;

const RANKS: u32 = 4;

/// Returns ranks that compute on two lanes in any order that their dependencies allow, take part in an all-reduce, and
/// send to the next rank.
fn build_random_ranks(random: &mut Random) -> Vec<Vec<TestTraceNode>> {
    let steps = 6 + random.below(8);
    let shared: Vec<[u64; 2]> = (0..steps)
        .map(|_| [random.below(5), random.below(3)])
        .collect();
    let mut ranks = vec![Vec::<TestTraceNode>::new(); RANKS as usize];
    for (rank, lines) in (0_u32..).zip(&mut ranks) {
        for (step, &[what, size]) in (0_i32..).zip(&shared) {
            let depends = |lines: &Vec<TestTraceNode>, random: &mut Random| {
                let count = lines.len() as u64;
                let mut on: Vec<u64> = (0..2)
                    .filter(|_| count > 0)
                    .map(|_| 1 + random.below(count))
                    .collect();
                on.sort_unstable();
                on.dedup();
                on
            };
            for _ in 0..1 + random.below(3) {
                let class = MemoryBoundKernelClass::ALL[random.below(4) as usize].0;
                let mut one = build_kernel(20 + random.below(2000)).on_lane(random.below(2) as i64);
                one.shape = Some(KernelShape::Moving(class));
                one.delay_ns = random.below(4) * 25;
                let on = depends(lines, random);
                lines.push(one.after(&on));
            }
            let on = depends(lines, random);
            match what {
                0 => lines.push(
                    build_collective(K::AllReduce, 40_000 << size)
                        .on_lane(5)
                        .after(&on),
                ),
                1 => lines.push(
                    build_collective(K::AllGather, 20_000 << size)
                        .on_lane(5)
                        .after(&on),
                ),
                2 => {
                    lines.push(
                        build_send((rank + 1) % RANKS, 10_000 << size)
                            .tag(step)
                            .on_lane(6)
                            .after(&on),
                    );
                    lines.push(build_receive((rank + RANKS - 1) % RANKS, 10_000 << size).tag(step));
                }
                _ => {}
            }
        }
    }
    ranks
}

/// Returns the makespan of a replay that multiplies the times of the row by `factor`.
fn replay_makespan_with_scaled_times(
    workload: &Workload,
    machine: &Machine,
    row: &MakespanSensitivityRow,
    factor: f64,
) -> f64 {
    let time = DurationAdjustment::Factor(factor);
    let options =
        ReplayOptions::default_with_changes(|options| match row.setting.split_once(" = ") {
            Some(("kernel", pattern)) => options
                .changes
                .kernels
                .push(KernelDurationChange::of_pattern(pattern, time)),
            Some(("collective", kind)) => {
                options
                    .changes
                    .collectives
                    .push(CollectiveDurationChange::of_kind_or_name(kind, time));
            }
            _ => options.host = HostDurationSource::Scaled(factor),
        });
    let prepared = CompiledReplay::new(workload, machine, &options).unwrap();
    let (outcome, ()) = prepared.run(()).unwrap();
    outcome.makespan.0 as f64
}

/// Returns the number of rows compared with replays, and the number of rows for which the graph alone finds the correct
/// range.
fn check_and_count_sensitivity_rows(seeds: std::ops::Range<u64>) -> [u64; 2] {
    let machine = Machine::load_preset("dgx-h100").unwrap();
    let [mut rows, mut by_graph] = [0; 2];
    for seed in seeds {
        let random = &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let workload = build_job_from_rank_nodes(&build_random_ranks(random), &[]);
        let options = ReplayOptions::default();
        let run = SensitivityReplayInputs {
            workload: &workload,
            machine: &machine,
            options: &options,
        };
        let makespan = run.replay_makespan_on(&machine).unwrap().0 as f64;
        let [confirmed, graph] =
            [true, false].map(|replays| run.find_sensitivities(replays).unwrap());
        assert!(
            confirmed.notes.is_empty(),
            "seed {seed}: {:?}",
            confirmed.notes
        );
        for row in &confirmed.rows {
            if !row.replayed {
                continue;
            }
            let line = |factor: f64| makespan - row.slope_ps as f64 * (1.0 - factor);
            let tolerance = confirmed.path_nodes as f64;
            // One finite difference is at a random point in the range, and another at its end.
            let inside = row.holds_to + (1.0 - row.holds_to) * random.below(1000) as f64 / 1000.0;
            for factor in [inside, row.holds_to] {
                let found = replay_makespan_with_scaled_times(&workload, &machine, row, factor);
                assert!(
                    (found - line(factor)).abs() <= tolerance,
                    "seed {seed} at {factor}: {found} for {} of {row:?}, {tolerance} nodes",
                    line(factor)
                );
            }
            rows += 1;
            let of_graph = graph
                .rows
                .iter()
                .find(|other| other.what == row.what)
                .unwrap();
            assert_eq!(of_graph.slope_ps, row.slope_ps);
            let end =
                replay_makespan_with_scaled_times(&workload, &machine, row, of_graph.holds_to);
            by_graph += u64::from((end - line(of_graph.holds_to)).abs() <= tolerance);
        }
    }
    [rows, by_graph]
}

/// Returns a network on which messages and collectives take these multiples of the times per byte and per link of 50
/// GB/s and 700 ns.
fn network_text_with_scaled_times(shape: &str, per_byte: f64, per_link: f64) -> String {
    format!(
        "name = \"four\"\n[[dimension]]\nname = \"net\"\nshape = \"{shape}\"\nsize = {RANKS}\nalgorithm = \"ring\"\n\
         bandwidth = \"{} GB/s\"\nlatency = \"{} ns\"\n",
        // The arithmetic operations must have this order: at ties, the last bit of a rate decides how every step of a
        // collective is rounded.
        50.0 * (1.0 / per_byte),
        700.0 * per_link
    )
}

/// Returns the number of machine-key rows compared with replays on machines that this test writes, and the number of
/// rows that are still valid when the time falls by a tenth.
fn check_and_count_machine_rate_rows(seeds: std::ops::Range<u64>) -> [u64; 2] {
    let [mut rows, mut wide] = [0; 2];
    for seed in seeds {
        let random = &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let workload = build_job_from_rank_nodes(&build_random_ranks(random), &[]);
        let shape = ["ring", "switch", "fully_connected"][random.below(3) as usize];
        let options = ReplayOptions::default();
        let makespan_with = |per_byte: f64, per_link: f64| {
            let text = network_text_with_scaled_times(shape, per_byte, per_link);
            let machine = Machine::parse(&text, "four").unwrap();
            let prepared = CompiledReplay::new(&workload, &machine, &options).unwrap();
            prepared.run(()).unwrap().0.makespan.0 as f64
        };
        let text = network_text_with_scaled_times(shape, 1.0, 1.0);
        let machine = Machine::parse(&text, "four").unwrap();
        let run = SensitivityReplayInputs {
            workload: &workload,
            machine: &machine,
            options: &options,
        };
        let text = NamedMachineText {
            text: &text,
            file: "four",
        };
        let found = find_sensitivities(&run, text).unwrap();
        let makespan = makespan_with(1.0, 1.0);
        for row in &found.rows {
            let Some(key) = row.what.strip_prefix("machine.") else {
                continue;
            };
            let inside = row.holds_to + (1.0 - row.holds_to) * random.below(1000) as f64 / 1000.0;
            for factor in [inside, row.holds_to] {
                // A latency is a whole number of picoseconds.
                let factor = match key.ends_with("latency") {
                    true => (700_000.0 * factor).round() / 700_000.0,
                    false => factor,
                };
                let end = match key {
                    "dimension.net.bandwidth" => makespan_with(factor, 1.0),
                    "dimension.net.latency" => makespan_with(1.0, factor),
                    other => panic!("seed {seed}: {other} is no key of this machine"),
                };
                let line = makespan - row.slope_ps as f64 * (1.0 - factor);
                assert!(
                    (end - line).abs() <= found.path_nodes as f64,
                    "seed {seed} on {shape} at {factor}: {end} for {line} of {row:?}, {} nodes",
                    found.path_nodes
                );
            }
            rows += 1;
            wide += u64::from(row.holds_to <= 0.9);
        }
    }
    [rows, wide]
}

#[test]
fn slopes_of_rates_are_finite_differences_inside_their_ranges() {
    let jobs = if is_whole_corpus_requested() {
        1000
    } else {
        25
    };
    let [rows, wide] = check_and_count_machine_rate_rows(0..jobs);
    println!("{rows} rows of rates and latencies of {jobs} jobs, {wide} straight for a tenth less");
    assert!(rows >= jobs && 2 * wide >= rows, "{rows} {wide}");
}

#[test]
fn slopes_are_finite_differences_inside_their_ranges() {
    let jobs = if is_whole_corpus_requested() {
        1000
    } else {
        25
    };
    let [rows, by_graph] = check_and_count_sensitivity_rows(0..jobs);
    println!("{rows} rows of {jobs} jobs; the graph alone is right about the range of {by_graph}");
    // In many of these jobs the order on lanes changes, and only replays reveal this.
    assert!(
        rows >= 5 * jobs && 2 * by_graph >= rows,
        "{rows} {by_graph}"
    );
}

/// Kernels of 30 and 20 ns run concurrently with a chain of 40 ns. The two kernels take 50 ns together, 10 ns more than
/// the chain. If the first kernel takes no time, the chain determines the end; the slope of 30 is valid down to a
/// factor of 1 - 10 / 30.
#[test]
fn a_sensitivity_holds_until_another_path_becomes_critical() {
    let of = |class: MemoryBoundKernelClass, ns| TestTraceNode {
        shape: Some(KernelShape::Moving(class)),
        ..build_kernel(ns)
    };
    let lines = vec![
        of(MemoryBoundKernelClass::Softmax, 30).on_lane(0),
        of(MemoryBoundKernelClass::Copy, 20).on_lane(0).after(&[1]),
        of(MemoryBoundKernelClass::Optimizer, 40).on_lane(1),
    ];
    let workload = build_job_from_rank_nodes(&[lines], &[]);
    let machine = Machine::load_preset("dgx-h100").unwrap();
    let run = SensitivityReplayInputs {
        workload: &workload,
        machine: &machine,
        options: &ReplayOptions::default(),
    };
    for replays in [false, true] {
        let found = run.find_sensitivities(replays).unwrap();
        let row = found
            .rows
            .iter()
            .find(|row| row.what == "kernels class:softmax")
            .unwrap();
        assert_eq!(
            (row.slope_ps, row.none.0, row.tenth_less.0),
            (30_000, 40_000, 47_000)
        );
        assert!((row.holds_to - 2.0 / 3.0).abs() < 0.005, "{row:?}");
        // The concurrent chain has no slope.
        assert!(!found.rows.iter().any(|row| row.what.contains("optimizer")));
    }
}

/// The rates of links on which collectives were measured are no rates of the machine, so no row is about them.
#[test]
fn links_of_measurements_have_no_sensitivities() {
    let output = run_chakram(&[
        "generate",
        "gpt2-small",
        "--tokens",
        "8",
        "--data",
        "2",
        "--batch",
        "2",
        "--machine",
        "dgx-a100",
        "--sensitivities",
        "--format",
        "json",
    ]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["sensitivities"]["rows"].as_array().unwrap();
    let settings: Vec<&str> = rows
        .iter()
        .filter_map(|row| row["setting"].as_str())
        .collect();
    assert!(
        settings.contains(&"machine.dimension.nvlink.bandwidth"),
        "{settings:?}"
    );
    let measured = settings.iter().find(|setting| setting.contains("measured"));
    assert_eq!(measured, None);
}
