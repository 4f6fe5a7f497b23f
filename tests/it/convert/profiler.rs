//! Tests the profiler's cost in a capture, and replays without this cost.

use super::rig::{
    self, SchemaRankTrace, convert_folder, find_integer_attribute, on_host, read_delay_ns,
    read_duration_ns, replay_traces, write_generated_capture,
};
use super::truth::list_generated_jobs;
use crate::commands::run_chakram;
use crate::corpus::corpus_path_or_count_skip;
use chakram::convert::ConvertOptions as Conversion;
use chakram::engine::CommunicationDurationSource;
use chakram::workload::MissingRankPolicy;
use serde_json::Value;
use std::path::{Path, PathBuf};
use testkit::capture::{Device, JobParallelism, Options};

/// Returns the profiler time that a node is charged, in ns.
fn profiler_ns_of_node(node: &chakram::internals::proto::Node) -> u64 {
    find_integer_attribute(node, "profiler_ns").map_or(0, |ns| ns as u64)
}

/// No node is charged more than its duration, and no thread is charged more than its records took.
/// Kernels are charged nothing.
#[test]
fn nodes_are_charged_at_most_their_records_profiler_time() {
    for (what, options) in list_generated_jobs(1) {
        let captured = write_generated_capture(&options);
        let folder = captured.folder.path();
        for add_launches_by_host in [true, false] {
            if !add_launches_by_host {
                for rank in 0..options.ranks {
                    std::fs::remove_file(folder.join(format!("host.{rank}.json"))).unwrap();
                }
            }
            let job = convert_folder(folder);
            for (trace, rank) in job.traces.iter().zip(&job.summary.ranks) {
                let mut sum = 0;
                for node in &trace.nodes {
                    let own = profiler_ns_of_node(node);
                    assert!(
                        own <= read_delay_ns(node) + read_duration_ns(node),
                        "{what}: {node:?}"
                    );
                    let device = options.device == Device::Cuda && !on_host(node);
                    assert!(own == 0 || !device, "{what}: {node:?}");
                    sum += own;
                }
                let records = rank.operators + rank.annotations;
                let most = records * rank.written.profiler_record_ns;
                assert!(sum <= most, "{what} rank {}: {sum} of {most}", trace.rank);
                assert!(sum > 0, "{what} rank {}", trace.rank);
                assert_eq!(sum, rank.written.profiler_ns, "{what}");
            }
        }
    }
}

/// For a job of one rank and one thread without a device, the replay is shorter by exactly the time
/// that is charged to the nodes.
#[test]
fn replay_of_a_chain_shortens_by_its_charged_profiler_time() {
    let captured = write_generated_capture(&Options {
        layers: 2,
        ..Options::new(Device::Cpu, JobParallelism::Ddp, 1)
    });
    let folder = captured.folder.path();
    let job = convert_folder(folder);
    let [trace] = &job.traces[..] else {
        panic!("one rank");
    };
    let removed: u64 = trace.nodes.iter().map(profiler_ns_of_node).sum();
    let prefix = folder.join("job").display().to_string();
    let input = folder.display().to_string();
    let made = run_chakram(&["convert", "pytorch", &input, "-o", &prefix]);
    assert!(made.status.success(), "{made:?}");
    let report = |args: &[&str]| run_replay_report(&prefix, args);
    let (whole, without) = (report(&[]), report(&["--without", "profiler"]));
    assert_eq!(
        whole["makespan_ps"],
        report(&["--without", "nothing"])["makespan_ps"]
    );
    let ps = |report: &Value| report["makespan_ps"].as_u64().unwrap();
    assert_eq!(ps(&whole) - ps(&without), removed * 1000);
    // Both reports give both times.
    for (report, removed) in [(&whole, false), (&without, true)] {
        let profiler = &report["profiler"];
        assert_eq!(profiler["removed"], removed);
        assert_eq!(profiler["makespan_with_ps"], whole["makespan_ps"]);
        assert_eq!(profiler["without"]["makespan_ps"], without["makespan_ps"]);
        let ends = ["low_ps", "high_ps"].map(|end| profiler["without"][end].as_u64());
        assert!(ends[0] < Some(ps(&without)) && ends[1] > Some(ps(&without)));
    }
}

fn run_replay_report(prefix: &str, args: &[&str]) -> Value {
    let fixed = [
        "replay", prefix, "-m", "dgx-a100", "--comm", "recorded", "--format", "json",
    ];
    let output = run_chakram(&[&fixed[..], args].concat());
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

/// The cost of a record is measured on views. Views without nested calls last 2 us. In views with a nested call, 1 us
/// passes between the start of the outer call and the start of the nested call. So one profiler record takes 240 % of 3
/// us.
#[test]
fn profiler_record_cost_is_measured_on_view_operators() {
    let mut events = Vec::new();
    let mut add = |name: &str, start: u64, lasts: u64| {
        events.push(
            serde_json::json!({"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1,
            "ts": 1_700_000_000_000_000_u64 + start, "dur": lasts}),
        );
    };
    for i in 0..40 {
        add("aten::t", i * 100, 10);
        add("aten::transpose", i * 100 + 1, 2);
        // A short operator is not a view.
        add("aten::mm", i * 100 + 20, 50);
        add("aten::zero_", i * 100 + 80, 1);
    }
    let record = |events: &[Value]| {
        let folder = tempfile::tempdir().expect("there is room");
        let trace = serde_json::json!({"traceEvents": events});
        let path = folder.path().join("kineto.0.json");
        std::fs::write(&path, trace.to_string()).expect("there is room");
        let job = convert_folder(folder.path());
        job.summary.ranks[0].written.profiler_record_ns
    };
    assert_eq!(record(&events), 7_200);
    // 31 samples are too few to derive the cost.
    events.truncate(31 * 4);
    assert_eq!(record(&events), 3_500);
}

/// The capture includes steps without a profiler. By default, the replay omits the profiler's cost,
/// and reports show both times.
#[test]
fn step_times_without_a_profiler_stand_beside_the_replay() {
    let captured = write_generated_capture(&Options {
        layers: 1,
        steps: 2,
        ..Options::new(Device::Cpu, JobParallelism::Functional, 2)
    });
    let folder = captured.folder.path();
    let prefix = folder.join("job").display().to_string();
    let input = folder.display().to_string();
    let convert = || run_chakram(&["convert", "pytorch", &input, "-o", &prefix]);
    assert!(convert().status.success());
    let captured = run_replay_report(&prefix, &["--without", "nothing"]);
    let captured = captured["makespan_ps"].as_u64().expect("a time") / 1000;
    // A step without a profiler takes two fifths of the capture, which has two steps. The slower
    // rank determines each step: the median is `step`, the shortest step takes 4/5 of it, and the
    // longest takes 9/5 of it.
    let step = captured * 2 / 5;
    let fifth = |of: u64| step * of / 5;
    for (rank, steps) in [
        (0, format!("[{step}, {}, {}]", fifth(3), fifth(2))),
        (1, format!("[{}, {}, {}]", fifth(1), fifth(4), fifth(9))),
    ] {
        let text = format!("{{\"unprofiled_ns\": {steps}, \"captured_steps\": 2}}");
        std::fs::write(folder.join(format!("steps.{rank}.json")), text).unwrap();
    }
    let made = convert();
    let text = String::from_utf8_lossy(&made.stdout).into_owned();
    assert!(made.status.success(), "{made:?}");
    assert!(
        text.contains("2 steps captured; without a profiler a step took "),
        "{text}"
    );
    let (default, kept) = (
        run_replay_report(&prefix, &[]),
        run_replay_report(&prefix, &["--without", "nothing"]),
    );
    assert!(default["makespan_ps"].as_u64() < kept["makespan_ps"].as_u64());
    let profiler = &default["profiler"];
    assert_eq!(profiler["removed"], true);
    assert_eq!(profiler["makespan_with_ps"], kept["makespan_ps"]);
    assert_eq!(profiler["steps"], 2);
    assert_eq!(profiler["measured_step_ps"].as_u64(), Some(step * 1000));
    assert_eq!(profiler["cost_basis"], "measured_steps");
    // A fifth of the capture is the profiler's cost. It is divided by the number of records on the thread with the most
    // records.
    let records = profiler["record_ns"].as_u64().expect("a cost");
    assert!(records > 0 && records < captured / 5, "{records}");
    // The interval runs from 4/5 to 9/5 of the makespan, widened by 3 % on both sides.
    let without = default["makespan_ps"].as_u64().expect("a time") as f64;
    for (end, factor) in [("low_ps", 0.8 * 0.97), ("high_ps", 1.8 * 1.03)] {
        let end = profiler["without"][end].as_u64().expect("a time") as f64;
        assert!((end / (without * factor) - 1.0).abs() < 1e-4, "{end}");
    }
    assert_eq!(kept["profiler"]["removed"], false);
    let shown = run_chakram(&["replay", &prefix, "-m", "dgx-a100", "--comm", "recorded"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    for part in [
        "profiler  with it ",
        "a record, by steps that were measured without it; the replay leaves the overhead out",
        "a step without a profiler; replay ",
    ] {
        assert!(shown.contains(part), "no {part:?} in: {shown}");
    }
    // A replay as captured keeps the profiler's cost, whether or not the capture has unprofiled
    // steps.
    let captured = run_chakram(&["replay", &prefix, "-m", "dgx-a100", "--comm", "captured"]);
    let captured = String::from_utf8_lossy(&captured.stdout).into_owned();
    assert!(captured.contains("replay +0.00 %"), "{captured}");
}

#[test]
fn traces_without_profiler_overhead_estimates_are_refused() {
    let output = run_chakram(&["replay", "traces/tight-2", "--without", "profiler"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains("no node states the overhead of the profiler\n  try: "),
        "{error}"
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("steps.0.json");
    std::fs::write(&path, "{\"unprofiled_ns\": [1.5]}").unwrap();
    std::fs::write(folder.path().join("kineto.0.json"), "{\"traceEvents\": []}").unwrap();
    let input = folder.path().display().to_string();
    let output = run_chakram(&["convert", "pytorch", &input, "-o", &format!("{input}/job")]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains("steps.0.json: the step times cannot be read"),
        "{error}"
    );
}

/// Returns the job's step time in ms, first from a replay of the capture without the profiler, and then as measured.
/// The machine has no influence, because all times are recorded times.
fn replayed_and_measured_step_ms(
    side: &Path,
    what_if: impl Fn(&mut Vec<SchemaRankTrace>) -> u64,
) -> (f64, f64) {
    let timing = rig::read_json_file(&side.join("timing.json")).expect("it is JSON");
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
            let own = profiler_ns_of_node(node);
            let before = own.min(read_delay_ns(node));
            let (left, rest) = (
                read_delay_ns(node) - before,
                read_duration_ns(node) - (own - before),
            );
            if own > 0 {
                rig::set_integer_attribute(node, "delay_ns", left);
                rig::set_duration_ns(node, rest);
            }
        }
    }
    let late = what_if(&mut job.traces);
    let ends = replay_traces(
        &job.traces,
        CommunicationDurationSource::Recorded,
        |rank| if rank == 1 { late } else { 0 },
        MissingRankPolicy::Refuse,
    );
    let end = ends
        .last_node_end_of_each_rank_ns()
        .into_iter()
        .max()
        .expect("ranks") as f64;
    (
        end / 1e6 / count,
        timing["median_ms"].as_f64().expect("a median"),
    )
}

/// Pairs on which the estimates were fitted; the other pairs test them.
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

/// Error of a predicted step without the profiler, and true if its interval contains the measured
/// step.
struct StepPredictionErrorAndIntervalHit {
    error: f64,
    is_within: bool,
}

/// Predicts the step of one side of a pair from its capture, with or without its process's unprofiled steps, and
/// compares the prediction with the median of other processes.
fn step_prediction_error(
    side: &Path,
    with_steps: bool,
    kineto: &str,
) -> StepPredictionErrorAndIntervalHit {
    let timing = rig::read_json_file(&side.join("timing.json")).expect("it is JSON");
    let steps = timing["profiled_step_ms"].as_array().expect("steps").len();
    let folder = tempfile::tempdir().expect("there is room");
    for rank in 0..2 {
        let parts: &[&str] = match kineto {
            "kineto" => &["host", "kineto"],
            _ => &["kineto"],
        };
        for part in parts {
            let from = if *part == "host" { "host" } else { kineto };
            let from = side.join(format!("{from}.{rank}.json.zst"));
            let to = folder.path().join(format!("{part}.{rank}.json.zst"));
            if from.is_file() {
                std::fs::copy(from, to).expect("there is room");
            }
        }
        let plain = &timing["capture_run"]["plain"]["rank_ms"][rank];
        if let (true, Some(plain)) = (with_steps, plain.as_array()) {
            let ns = plain
                .iter()
                .map(|ms| (ms.as_f64().expect("a time") * 1e6) as u64);
            let ns: Vec<u64> = ns.collect();
            let text = serde_json::json!({"unprofiled_ns": ns, "captured_steps": steps});
            let to = folder.path().join(format!("steps.{rank}.json"));
            std::fs::write(to, text.to_string()).expect("there is room");
        }
    }
    let job = rig::convert_files(folder.path());
    let report = rig::replay_files(job.path(), &["-m", "dgx-a100", "--comm", "recorded"]);
    let without = &report["profiler"]["without"];
    let ms = |key: &str| without[key].as_u64().expect("a time") as f64 / 1e9 / steps as f64;
    let measured = timing["median_ms"].as_f64().expect("a median");
    let (low, high) = (ms("low_ps"), ms("high_ps"));
    println!(
        "{} {kineto}{}: {:.1} ms ({low:.1} to {high:.1}), measured {measured:.1}, {:+.1} %",
        side.display(),
        if with_steps { " and steps" } else { "" },
        ms("makespan_ps"),
        (ms("makespan_ps") / measured - 1.0) * 100.0
    );
    StepPredictionErrorAndIntervalHit {
        error: (ms("makespan_ps") / measured - 1.0).abs(),
        is_within: (low..=high).contains(&measured),
    }
}

/// Run it with `cargo test --test it -- --ignored unprofiled_steps_are_those_that_were_measured`.
#[test]
#[ignore = "takes a minute; docs/validation/tests.md has the command"]
fn unprofiled_steps_are_those_that_were_measured() {
    let Some(pairs) = corpus_path_or_count_skip("captures/interventions") else {
        return;
    };
    let (mut within, mut count) = (0, 0);
    let mut errors = |pairs_of: &[&str], sides: &[&str], with_steps: bool, kineto: &str| {
        let mut errors = Vec::new();
        for pair in pairs_of {
            for side in sides {
                let side = pairs.join(pair).join(side);
                let predicted = step_prediction_error(&side, with_steps, kineto);
                errors.push(predicted.error);
                within += u32::from(predicted.is_within);
                count += 1;
            }
        }
        mean(&errors)
    };
    let both = ["A", "B"];
    let fitted = errors(&FITTED, &both, false, "kineto");
    let held_out = errors(&HELD_OUT, &both, false, "kineto");
    let with_steps = errors(&[&FITTED[..], &HELD_OUT].concat(), &both, true, "kineto");
    let alone = errors(&HELD_OUT, &["A"], false, "kineto_only");
    let percent = [fitted, held_out, with_steps, alone].map(|error| error * 100.0);
    println!(
        "fitted on: {:.1} %, held out: {:.1} %, by measured steps: {:.1} %, Kineto alone: {:.1} %",
        percent[0], percent[1], percent[2], percent[3]
    );
    println!("{within} of {count} steps lie in their interval");
    assert!(fitted <= 0.035, "{fitted}");
    assert!(held_out <= 0.05, "{held_out}");
    assert!(with_steps <= 0.03, "{with_steps}");
    assert!(alone <= 0.08, "{alone}");
    assert!(within * 100 >= count * 85, "{within} of {count}");
}

/// Predicts the effect of an intervention, which replay options can express, from the capture taken before it.
///
/// Run it with
/// `cargo test --test it -- --ignored interventions_are_predicted_without_the_profiler`.
#[test]
#[ignore = "takes a minute; docs/validation/tests.md has the command"]
fn interventions_are_predicted_without_the_profiler() {
    let Some(pairs) = corpus_path_or_count_skip("captures/interventions") else {
        return;
    };
    // With `--compute scaled:F`, the kernels of a CPU capture are its operators.
    let scaled = |factor: u64| {
        move |traces: &mut Vec<SchemaRankTrace>| {
            for node in traces.iter_mut().flat_map(|trace| &mut trace.nodes) {
                let kernel = find_integer_attribute(node, "num_ops").is_some() && !on_host(node);
                if kernel && find_integer_attribute(node, "comm_size").is_none() {
                    let ns = read_duration_ns(node) * factor;
                    rig::set_duration_ns(node, ns);
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
            "infer_batch_x4" => replayed_and_measured_step_ms(&side, scaled(4)),
            // With `--delay 1=100ms`, rank 1 is delayed by 50 ms in each of two steps, and the
            // other ranks wait.
            "ddp_sleep50" => replayed_and_measured_step_ms(&side, |_| 100_000_000),
            _ => replayed_and_measured_step_ms(&side, scaled(2)),
        };
        let timing =
            rig::read_json_file(&pairs.join(pair).join("B/timing.json")).expect("it is JSON");
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
