//! Tests the times of generated models: hosts that launch kernels, and the default kernel times by
//! curves.

use super::scores::{COLUMNS, run_score};
use crate::commands::run_chakram;
use serde_json::Value;

/// A host that takes no time changes nothing, and a host slower than its kernels determines the
/// step.
#[test]
fn hosts_that_are_slower_than_kernels_set_the_time() {
    let csv = "width,tp,seconds\n256,1,1\n";
    let seconds = |more: &[&str]| {
        let (good, text) = run_score(csv, COLUMNS, &[&["--format", "json"], more].concat());
        assert!(good, "{text}");
        let found: Value = serde_json::from_str(&text).expect("it is JSON");
        found["runs"][0]["predicted_s"]
            .as_f64()
            .expect("it is a number")
    };
    let [eager, none, graph] = [
        &["--launch", "eager"][..],
        &["--launch", "none"],
        &["--launch", "graph"],
    ]
    .map(seconds);
    assert!(eager > 3.0 * none, "{eager} s against {none} s");
    assert!(
        graph >= none && graph < none + 1e-3,
        "{graph} s against {none} s"
    );
}

/// Returns the makespan in a JSON report, and `true` if the report has an interval.
fn run_for_makespan_and_interval_flag(arguments: &[&str]) -> (u64, bool) {
    let output = run_chakram(&[arguments, &["--format", "json"]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    let makespan = report["makespan_ps"].as_u64().expect("it is a number");
    (makespan, report.get("interval").is_some())
}

/// Two hosts reach a collective with times that vary by `jitter`. On average, the last host is `jitter / sqrt(pi)`
/// after the mean. Divided by the makespan, this adds another component to the interval's variance, once per
/// collective.
#[test]
fn jitter_of_hosts_widens_the_interval_and_moves_nothing() {
    let folder = tempfile::tempdir().expect("there is room");
    let preset = include_str!("../../../src/hardware/machine/presets/dgx-a100.toml");
    let jitter = "jitter = \"36 us\"";
    assert!(preset.contains(jitter), "the preset states another one");
    let report = |stated: &str| -> Value {
        let machine = folder.path().join("machine.toml");
        std::fs::write(&machine, preset.replace(jitter, stated)).expect("there is room");
        let machine = machine.to_str().expect("a plain name");
        let model = ["generate", "gpt2-small", "--tensor", "2", "--batch", "1"];
        let output =
            run_chakram(&[&model[..], &["--machine", machine, "--format", "json"]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        serde_json::from_slice(&output.stdout).expect("it is JSON")
    };
    let [none, some] = ["", "jitter = \"5 us\""].map(report);
    assert_eq!(none["makespan_ps"], some["makespan_ps"]);
    let variance = |report: &Value| {
        let end = |key: &str| report["interval"][key].as_f64().expect("a number").ln();
        ((end("high_ps") - end("low_ps")) / (2.0 * 1.645)).powi(2)
    };
    let rows = some["collectives"].as_array().expect("a list");
    let calls = |row: &Value| {
        assert_eq!(row["members"], 2);
        row["calls"].as_f64().expect("a number")
    };
    let calls: f64 = rows.iter().map(calls).sum();
    assert!(calls > 40.0, "{calls}");
    let seconds = some["makespan_ps"].as_f64().expect("a number") / 1e12;
    let late = 5e-6 * calls / std::f64::consts::PI.sqrt() / seconds;
    let found = variance(&some) - variance(&none);
    assert!((found / (late * late) - 1.0).abs() < 1e-6, "{found} {late}");
}

/// The error of a curve for one size counts 0.55 times for a step with many sizes, but wholly if the curve is that of
/// other makers' NPUs. If `p` is the matrix multiplications' part of the time, the variance for the error `e` of a size
/// is v + (0.55 p e)^2, and that of a carried-over curve v + (p e)^2.
#[test]
fn errors_of_carried_over_curves_do_not_average_out() {
    let folder = tempfile::tempdir().expect("there is room");
    let preset = include_str!("../../../src/hardware/machine/presets/dgx-a100.toml");
    let own = "reduction = \"2.1 us\"      # fitted\nerror = 0.08";
    assert!(preset.contains(own), "the preset states other keys");
    let variance = |keys: &str| {
        let machine = folder.path().join("machine.toml");
        let text = preset.replace(own, &format!("reduction = \"2.1 us\"\n{keys}"));
        std::fs::write(&machine, text).expect("there is room");
        let machine = machine.to_str().expect("a plain name");
        let model = [
            "generate",
            "gpt2-small",
            "--micro-batch",
            "8",
            "--batch",
            "8",
        ];
        let output =
            run_chakram(&[&model[..], &["--machine", machine, "--format", "json"]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        let report: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
        let end = |key: &str| report["interval"][key].as_f64().expect("a number").ln();
        ((end("high_ps") - end("low_ps")) / (2.0 * 1.645)).powi(2)
    };
    let small = variance("error = 0.08");
    let large = variance("error = 0.4");
    let square_of_part =
        (large - small) / (0.55_f64.powi(2) * (0.4_f64.powi(2) - 0.08_f64.powi(2)));
    assert!(square_of_part > 0.01, "{square_of_part}");
    let carried = variance("error = 0.08\ncarried_over = true");
    let expected = small + square_of_part * 0.08_f64.powi(2) * (1.0 - 0.55_f64.powi(2));
    assert!(
        (carried / expected - 1.0).abs() < 1e-6,
        "{carried} {expected}"
    );
}

/// Stragglers lengthen jobs on more than one node. Stragglers make one step in twenty longer by more
/// than 0.05 (logarithm), in addition to errors of kernel times.
#[test]
fn intervals_across_nodes_reach_further_up() {
    for (machine, data, upwards) in [("dgx-a100x2", "8", 0.0), ("dgx-a100x2", "16", 0.05)] {
        let model = ["generate", "gpt2-small", "--data", data, "--batch", "16"];
        let output =
            run_chakram(&[&model[..], &["--machine", machine, "--format", "json"]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        let report: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
        let number = |value: &Value| value.as_f64().expect("a number").ln();
        let predicted = number(&report["makespan_ps"]);
        let below = predicted - number(&report["interval"]["low_ps"]);
        let above = number(&report["interval"]["high_ps"]) - predicted;
        // The upper end combines both independent errors.
        let expected = (below * below + upwards * upwards).sqrt();
        assert!(
            below > 0.05 && (above - expected).abs() < 1e-9,
            "{data}: {below} {above}"
        );
    }
}

/// No measured step confirms the list of the experts' kernels, so the upper end of their interval reaches 0.44 further
/// up, on top of the errors of kernel times. Without curves, no list of kernels is measured.
#[test]
fn intervals_of_models_with_experts_reach_further_up() {
    for (model, compute, upwards) in [
        ("gpt2-small", "curves", None),
        ("gpt-oss-20b", "curves", Some(0.44)),
        ("gpt-oss-20b", "roofline", None),
    ] {
        let words = [
            "generate", model, "--tokens", "64", "--data", "8", "--batch", "8",
        ];
        let timed = [
            "--machine",
            "dgx-a100",
            "--compute",
            compute,
            "--format",
            "json",
        ];
        let output = run_chakram(&[&words[..], &timed].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        let report: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
        let interval = &report["interval"];
        let flag = interval["unlisted_kernels"].as_bool();
        assert_eq!(flag, upwards.map(|_| true), "{model} {compute}");
        if compute == "roofline" {
            continue;
        }
        let number = |value: &Value| value.as_f64().expect("a number").ln();
        let predicted = number(&report["makespan_ps"]);
        let below = predicted - number(&interval["low_ps"]);
        let above = number(&interval["high_ps"]) - predicted;
        let expected = below.hypot(upwards.unwrap_or(0.0));
        assert!((above - expected).abs() < 1e-6, "{model}: {below} {above}");
    }
}

/// By default curves give the times of a model's kernels, its host launches them, and collectives use measurements,
/// both in a direct replay and in a replay from files. With an efficiency, or on machines without curves, the result is
/// the roofline model's.
#[test]
fn generated_models_are_priced_by_curves_where_there_are_any() {
    let model = ["generate", "gpt2-small", "--tensor", "2", "--batch", "1"];
    let on = |machine: &str, more: &[&str]| {
        run_for_makespan_and_interval_flag(&[&model[..], &["--machine", machine], more].concat())
    };
    let (by_default, interval) = on("dgx-a100", &[]);
    assert!(interval);
    let all = [
        "--compute",
        "curves",
        "--launch",
        "eager",
        "--collectives",
        "curves",
    ];
    assert_eq!(by_default, on("dgx-a100", &all).0);
    for (flag, value) in [("--launch", "none"), ("--collectives", "algorithms")] {
        assert_ne!(
            by_default,
            on("dgx-a100", &[flag, value]).0,
            "{flag} {value}"
        );
    }
    let (roofline, interval) = on("dgx-a100", &["--compute", "roofline"]);
    // Kernel times without any measurement have the widest interval.
    assert!(interval && roofline < by_default);
    assert_eq!(roofline, on("dgx-a100", &["--efficiency", "1"]).0);
    assert_eq!(on("mi300x", &[]), on("mi300x", &["--compute", "roofline"]));
    let folder = tempfile::tempdir().expect("there is room");
    let prefix = folder.path().join("job");
    let prefix = prefix.to_str().expect("a plain name");
    let output = run_chakram(&[&model[..], &["-o", prefix]].concat());
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(
        by_default,
        run_for_makespan_and_interval_flag(&["replay", prefix, "--machine", "dgx-a100"]).0
    );
}

/// On a machine without curves all kernels use the roofline model, with peaks that no measurement confirms. The upper
/// end rises by 0.37 in the logarithm, times the kernels' share. 90 % correspond to 1.645 standard deviations on each
/// side.
#[test]
fn a_roofline_at_the_peaks_has_an_interval_that_reaches_far_up() {
    let folder = tempfile::tempdir().expect("there is room");
    let machine = folder.path().join("eight.toml");
    let text = r#"
name = "eight chips"
[npu.chip]
memory_bandwidth = "1600 GB/s"
memory_latency = "500 ns"
memory_capacity = "32 GB"
lanes = 8
host_lanes = 8
peak = { bf16 = "918 TFLOP/s" }
[[dimension]]
name = "ici"
shape = "ring"
size = 8
bandwidth = "400 GB/s"
latency = "1 us"
algorithm = "ring"
"#;
    std::fs::write(&machine, text).expect("there is room");
    let machine = machine.display().to_string();
    let model = [
        "generate",
        "gpt2-small",
        "--data",
        "8",
        "--batch",
        "8",
        "--machine",
        &machine,
    ];
    let report = |more: &[&str]| -> Value {
        let output = run_chakram(&[&model[..], more, &["--format", "json"]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        serde_json::from_slice(&output.stdout).expect("it is JSON")
    };
    let ends = |report: &Value| {
        let predicted = report["makespan_ps"].as_f64().expect("a number");
        ["low_ps", "high_ps"]
            .map(|end| (report["interval"][end].as_f64().expect("a number") / predicted).ln())
    };
    let peaks = report(&[]);
    let [low, high] = ends(&peaks);
    let known = [
        "kernels_by_roofline_ps",
        "recorded_ps",
        "network_ps",
        "host_ps",
        "memory_ps",
    ];
    let part = |key: &str| peaks["interval"][key].as_f64().expect("a number");
    let all: f64 = known.iter().map(|key| part(key)).sum();
    let expected = 0.37 * part("kernels_by_roofline_ps") / all;
    assert!(
        (high + low - expected).abs() < 1e-6,
        "{low} {high} {expected}"
    );
    // An efficiency given by the user counts as exact.
    let [low, high] = ends(&report(&["--efficiency", "0.67"]));
    assert!((high + low).abs() < 1e-6, "{low} {high}");
}
