//! Cost of the profiler in a capture, and replays without it.

use super::rig::{self, Trace, attribute, capture, convert, delay, lasts, on_host, replay};
use super::truth::jobs;
use crate::commands::chakram;
use crate::corpus::corpus;
use chakram::convert::ConvertOptions as Conversion;
use chakram::engine::CommTiming;
use chakram::workload::MissingRankPolicy;
use serde_json::Value;
use std::path::{Path, PathBuf};
use testkit::capture::{Device, Options, Style};

/// Of a node, ns.
fn profiler(node: &chakram::internals::proto::Node) -> u64 {
    attribute(node, "profiler_ns").map_or(0, |ns| ns as u64)
}

/// Time of a record, ns: observer and profiler, and the profiler alone.
const RECORD: [u64; 2] = [12_000, 4_300];

/// No node bears more than it lasts, nor all of a thread more than its records took; kernels bear nothing.
#[test]
fn nodes_bear_what_their_records_took() {
    for (what, options) in jobs() {
        let captured = capture(&options);
        let folder = captured.folder.path();
        for with_host in [true, false] {
            if !with_host {
                for rank in 0..options.ranks {
                    std::fs::remove_file(folder.join(format!("host.{rank}.json"))).unwrap();
                }
            }
            let job = convert(folder);
            for (trace, rank) in job.traces.iter().zip(&job.summary.ranks) {
                let mut sum = 0;
                for node in &trace.nodes {
                    let own = profiler(node);
                    assert!(own <= delay(node) + lasts(node), "{what}: {node:?}");
                    let device = options.device == Device::Cuda && !on_host(node);
                    assert!(own == 0 || !device, "{what}: {node:?}");
                    sum += own;
                }
                let records = rank.operators + rank.annotations;
                let most = records * RECORD[usize::from(!with_host)];
                assert!(sum <= most, "{what} rank {}: {sum} of {most}", trace.rank);
                // Generated operators are short, so a part is more than there is.
                assert!(
                    sum * 4 >= most,
                    "{what} rank {}: {sum} of {most}",
                    trace.rank
                );
                assert_eq!(sum, rank.written.profiler_ns, "{what}");
            }
        }
    }
}

/// A job of one rank and one thread, without a device: its replay is shorter by what its nodes bear, to the ns.
#[test]
fn a_chain_is_shorter_by_its_profiler() {
    let captured = capture(&Options {
        layers: 2,
        ..Options::new(Device::Cpu, Style::Ddp, 1)
    });
    let folder = captured.folder.path();
    let job = convert(folder);
    let [trace] = &job.traces[..] else {
        panic!("one rank");
    };
    let removed: u64 = trace.nodes.iter().map(profiler).sum();
    let prefix = folder.join("job").display().to_string();
    let input = folder.display().to_string();
    let made = chakram(&["convert", "pytorch", &input, "-o", &prefix]);
    assert!(made.status.success(), "{made:?}");
    let report = |args: &[&str]| report(&prefix, args);
    let (whole, without) = (report(&[]), report(&["--without", "profiler"]));
    assert_eq!(
        whole["makespan_ps"],
        report(&["--without", "nothing"])["makespan_ps"]
    );
    let ps = |report: &Value| report["makespan_ps"].as_u64().unwrap();
    assert_eq!(ps(&whole) - ps(&without), removed * 1000);
    assert_eq!(whole["profiler"], Value::Null);
    assert_eq!(without["profiler"], serde_json::json!({"removed": true}));
}

fn report(prefix: &str, args: &[&str]) -> Value {
    let fixed = [
        "replay", prefix, "-m", "dgx-a100", "--comm", "recorded", "--format", "json",
    ];
    let output = chakram(&[&fixed[..], args].concat());
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

/// A capture that carries steps without a profiler: that is left out by default, and reports show both.
#[test]
fn measured_steps_stand_beside_the_replay() {
    let captured = capture(&Options {
        layers: 1,
        steps: 2,
        ..Options::new(Device::Cpu, Style::Functional, 2)
    });
    let folder = captured.folder.path();
    // Of each step the slower rank: 5, 4, 9 ms; the median is 5.
    for (rank, steps) in [
        (0, "[5000000, 3000000, 2000000]"),
        (1, "[1000000, 4000000, 9000000]"),
    ] {
        let text = format!("{{\"unprofiled_ns\": {steps}, \"captured_steps\": 2}}");
        std::fs::write(folder.join(format!("steps.{rank}.json")), text).unwrap();
    }
    let prefix = folder.join("job").display().to_string();
    let input = folder.display().to_string();
    let made = chakram(&["convert", "pytorch", &input, "-o", &prefix]);
    let text = String::from_utf8_lossy(&made.stdout).into_owned();
    assert!(made.status.success(), "{made:?}");
    assert!(
        text.contains("2 steps captured; without a profiler a step took 5.000 ms"),
        "{text}"
    );
    let (default, kept) = (
        report(&prefix, &[]),
        report(&prefix, &["--without", "nothing"]),
    );
    assert!(default["makespan_ps"].as_u64() < kept["makespan_ps"].as_u64());
    let profiler = &default["profiler"];
    assert_eq!(profiler["removed"], true);
    assert_eq!(profiler["makespan_with_ps"], kept["makespan_ps"]);
    assert_eq!(profiler["steps"], 2);
    assert_eq!(profiler["measured_step_ps"].as_u64(), Some(5_000_000_000));
    assert_eq!(kept["profiler"]["removed"], false);
    let shown = chakram(&["replay", &prefix, "-m", "dgx-a100", "--comm", "recorded"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    for part in [
        "profiler  its estimated cost is left out; with it ",
        "measured  5.000 ms a step without a profiler; replay ",
    ] {
        assert!(shown.contains(part), "no {part:?} in: {shown}");
    }
    // A replay as captured is one, whatever it carries.
    let captured = chakram(&["replay", &prefix, "-m", "dgx-a100", "--comm", "captured"]);
    let captured = String::from_utf8_lossy(&captured.stdout).into_owned();
    assert!(captured.contains("replay +0.00 %"), "{captured}");
}

#[test]
fn traces_without_estimates_are_refused() {
    let output = chakram(&["replay", "traces/tight-2", "--without", "profiler"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains("no node says what the profiler that captured it added\n  try: "),
        "{error}"
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("steps.0.json");
    std::fs::write(&path, "{\"unprofiled_ns\": [1.5]}").unwrap();
    std::fs::write(folder.path().join("kineto.0.json"), "{\"traceEvents\": []}").unwrap();
    let input = folder.path().display().to_string();
    let output = chakram(&["convert", "pytorch", &input, "-o", &format!("{input}/job")]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("steps.0.json: no times of steps"), "{error}");
}

/// The job's own step, ms: as a replay of its capture without the profiler, and as measured. The machine counts for
/// nothing: all is as recorded.
fn steps(side: &Path, what_if: impl Fn(&mut Vec<Trace>) -> u64) -> (f64, f64) {
    let timing = rig::json(&side.join("timing.json")).expect("it is JSON");
    let count = timing["profiled_step_ms"].as_array().expect("steps").len() as f64;
    let ranks = (0..)
        .map(|rank| ["host", "kineto"].map(|part| side.join(format!("{part}.{rank}.json.zst"))));
    let files: Vec<PathBuf> = ranks
        .take_while(|files| files[0].is_file())
        .flatten()
        .collect();
    let mut job =
        rig::try_convert(&files, &Conversion::default()).unwrap_or_else(|e| panic!("{e}"));
    for trace in &mut job.traces {
        for node in &mut trace.nodes {
            let own = profiler(node);
            let before = own.min(delay(node));
            let (left, rest) = (delay(node) - before, lasts(node) - (own - before));
            if own > 0 {
                rig::set(node, "delay_ns", left);
                rig::set_lasts(node, rest);
            }
        }
    }
    let late = what_if(&mut job.traces);
    let ends = replay(
        &job.traces,
        CommTiming::Recorded,
        |rank| if rank == 1 { late } else { 0 },
        MissingRankPolicy::Refuse,
    );
    let end = ends.ends().into_iter().max().expect("ranks") as f64;
    (
        end / 1e6 / count,
        timing["median_ms"].as_f64().expect("a median"),
    )
}

/// Pairs whose first side was fitted on, and the others.
const FITTED: [&str; 4] = [
    "ddp_accum_2",
    "ddp_bucket_1_25",
    "fsdp_batch_x2",
    "pp_microbatches_4_8",
];
const HELD_OUT: [&str; 3] = ["ddp_batch_x2", "ddp_sleep50", "infer_batch_x4"];

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// `cargo test --test it -- --ignored unprofiled_steps_are_those_that_were_measured`
#[test]
#[ignore = "takes a minute; docs/validation.md has the command"]
fn unprofiled_steps_are_those_that_were_measured() {
    let Some(pairs) = corpus("captures/interventions") else {
        return;
    };
    let error = |pair: &str, side: &str| {
        let (own, measured) = steps(&pairs.join(pair).join(side), |_| 0);
        let error = own / measured - 1.0;
        println!(
            "{pair} {side}: {own:.1} ms, measured {measured:.1}, {:+.1} %",
            error * 100.0
        );
        error.abs()
    };
    let errors = |pairs: &[&str]| -> Vec<f64> {
        let sides = pairs
            .iter()
            .flat_map(|pair| ["A", "B"].map(|side| error(pair, side)));
        sides.collect()
    };
    let (fitted, held_out) = (mean(&errors(&FITTED)), mean(&errors(&HELD_OUT)));
    println!(
        "fitted on: {:.1} %, held out: {:.1} %",
        fitted * 100.0,
        held_out * 100.0
    );
    assert!(held_out <= 0.05, "{held_out}");
    assert!(fitted <= 0.055, "{fitted}");
}

/// Changes that options of a replay express, predicted from the side before them.
///
/// `cargo test --test it -- --ignored interventions_are_predicted_without_the_profiler`
#[test]
#[ignore = "takes a minute; docs/validation.md has the command"]
fn interventions_are_predicted_without_the_profiler() {
    let Some(pairs) = corpus("captures/interventions") else {
        return;
    };
    // `--compute scaled:F`: kernels of a CPU capture are operators.
    let scaled = |factor: u64| {
        move |traces: &mut Vec<Trace>| {
            for node in traces.iter_mut().flat_map(|trace| &mut trace.nodes) {
                let kernel = attribute(node, "num_ops").is_some() && !on_host(node);
                if kernel && attribute(node, "comm_size").is_none() {
                    let ns = lasts(node) * factor;
                    rig::set_lasts(node, ns);
                }
            }
            0
        }
    };
    let mut errors = Vec::new();
    for pair in [
        "ddp_batch_x2",
        "fsdp_batch_x2",
        "infer_batch_x4",
        "ddp_sleep50",
    ] {
        let side = pairs.join(pair).join("A");
        let (own, _) = match pair {
            "infer_batch_x4" => steps(&side, scaled(4)),
            // `--delay 1=100ms`: 50 ms in each of two steps, for which the others wait.
            "ddp_sleep50" => steps(&side, |_| 100_000_000),
            _ => steps(&side, scaled(2)),
        };
        let timing = rig::json(&pairs.join(pair).join("B/timing.json")).expect("it is JSON");
        let measured = timing["median_ms"].as_f64().expect("a median");
        let error = own / measured - 1.0;
        println!(
            "{pair}: {own:.1} ms, measured {measured:.1}, {:+.1} %",
            error * 100.0
        );
        errors.push(error.abs());
    }
    errors.sort_by(f64::total_cmp);
    let median = f64::midpoint(errors[1], errors[2]);
    assert!(median <= 0.03, "{errors:?}");
}
