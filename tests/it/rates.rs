//! Compares samples and tokens per second, and how much of the peak is used, with their formulas. Includes jobs read
//! back from disk, and parts of jobs, whose rates are unknown.

use super::commands::run_for_output;
use serde_json::Value;

const MODEL: [&str; 10] = [
    "generate",
    "gpt2-small",
    "--pipeline",
    "2",
    "--data",
    "2",
    "--batch",
    "8",
    "--steps",
    "2",
];

fn run_for_json(args: &[&str]) -> Value {
    let text = run_for_output(&[args, &["--format", "json"]].concat());
    serde_json::from_str(&text).expect("it is JSON")
}

#[test]
fn rates_are_amounts_over_the_makespan() {
    let report = run_for_json(&[&MODEL[..], &["-m", "dgx-h100"]].concat());
    let plan = run_for_json(&[&MODEL[..], &["--dry-run"]].concat());
    let rates = &report["throughput"];
    let seconds = report["makespan_ps"].as_f64().unwrap() / 1e12;
    // The job has two steps of 8 samples of 1,024 tokens, on 4 NPUs.
    assert_eq!(
        (&rates["samples"], &rates["tokens"]),
        (&16.into(), &16_384.into())
    );
    let near = |key: &str, expected: f64| {
        let found = rates[key]
            .as_f64()
            .unwrap_or_else(|| panic!("{key} of {rates}"));
        assert!(
            (found / expected - 1.0).abs() < 1e-9,
            "{key}: {found}, expected {expected}"
        );
    };
    near("samples_per_s", 16.0 / seconds);
    near("tokens_per_s", 16_384.0 / seconds);
    near("tokens_per_s_per_npu", 16_384.0 / seconds / 4.0);
    let model = plan["model_flops"].as_f64().expect("the plan counts them");
    near("model_flops", model);
    // All kernels that execute FLOPs have one format, whose dense peak is 989.4 TFLOP/s.
    near("mfu", model / (seconds * 4.0 * 989.4e12));
    near(
        "hfu",
        plan["flops"].as_f64().unwrap() / (seconds * 4.0 * 989.4e12),
    );
    near("flops", plan["flops"].as_f64().unwrap());
}

/// Kernels execute the FLOPs that the model needs, and also recompute the scores of fused attention
/// in the backward pass: twelve blocks with causal pairs of 1,024 tokens, 2 x 768 FLOPs for each
/// pair.
#[test]
fn utilization_of_the_model_is_within_that_of_the_hardware() {
    let pairs = 16.0 * 1024.0 * 1025.0 / 2.0;
    for (attention, counted, again) in [
        ("flash", "causal", 12.0 * 2.0 * 768.0 * pairs),
        ("unfused", "full", 0.0),
    ] {
        let job = [&MODEL[..], &["--attention", attention, "-m", "dgx-h100"]].concat();
        let rates = run_for_json(&job)["throughput"].clone();
        let [model, flops, mfu, hfu] = ["model_flops", "flops", "mfu", "hfu"].map(|key| {
            rates[key]
                .as_f64()
                .unwrap_or_else(|| panic!("{key} of {rates}"))
        });
        assert!((flops / (model + again) - 1.0).abs() < 1e-12, "{rates}");
        assert!((hfu / mfu / (flops / model) - 1.0).abs() < 1e-12, "{rates}");
        assert_eq!(rates["attention"], counted);
        let text = run_for_output(&job);
        assert!(
            text.contains(&format!("over peak ({counted} attention)")),
            "{text}"
        );
        assert!(!text.contains("above HFU"), "{text}");
    }
}

/// A warning says so if a trace states ten times as many model FLOPs as its kernels execute.
#[test]
fn more_model_flops_than_kernels_carry_out_are_a_warning() {
    let folder = tempfile::tempdir().expect("there is room");
    let prefix = folder.path().join("job");
    let prefix = prefix.to_str().expect("the name is text");
    run_for_output(&[&MODEL[..], &["-m", "dgx-h100", "-o", prefix]].concat());
    for rank in 0..4 {
        let path = format!("{prefix}.{rank}.et");
        let mut bytes = std::fs::read(&path).expect("the trace is there");
        let name = b"model_flops ";
        let at = bytes.windows(name.len()).position(|found| found == name);
        bytes[at.expect("it states them") + name.len()] = b'9';
        std::fs::write(&path, bytes).expect("there is room");
    }
    let text = run_for_output(&["replay", prefix, "-m", "dgx-h100", "--no-verify"]);
    assert!(text.contains("is above HFU: the job states 9."), "{text}");
}

#[test]
fn jobs_that_come_back_from_disk_have_the_same_rates() {
    let folder = tempfile::tempdir().expect("there is room");
    let prefix = folder.path().join("job");
    let prefix = prefix.to_str().expect("the name is text");
    let direct = run_for_json(&[&MODEL[..], &["-m", "dgx-h100", "-o", prefix]].concat());
    let job = ["replay", prefix, "-m", "dgx-h100"];
    let back = run_for_json(&job);
    assert_eq!(back["throughput"], direct["throughput"]);
    assert_ne!(back["throughput"], Value::Null);
    let part = folder.path().join("part");
    let part = part.to_str().expect("the name is text");
    run_for_output(&[
        "slice",
        prefix,
        "--from",
        "1",
        "--to",
        "40",
        "--unmatched",
        "cut",
        "-o",
        part,
    ]);
    let part = run_for_json(&["replay", part, "-m", "dgx-h100", "--compute", "roofline"]);
    assert_eq!(part["throughput"], Value::Null);
}
