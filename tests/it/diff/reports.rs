//! Tests the difference between two reports: its parts add up to the change of the makespan, and
//! agree with the reports.

use crate::commands::{run_chakram, run_for_output};
use serde_json::Value;
use std::path::Path;

const CASE: &str = "traces/data-parallel-8";

fn replay_case_to_file(folder: &Path, name: &str, more: &[&str]) -> (String, Value) {
    let text = run_for_output(&[&["replay", CASE, "--format", "json"], more].concat());
    let path = folder.join(name);
    std::fs::write(&path, &text).unwrap();
    (
        path.to_str().unwrap().to_owned(),
        serde_json::from_str(&text).unwrap(),
    )
}

fn diff_json(a: &str, b: &str) -> Value {
    serde_json::from_str(&run_for_output(&["diff", a, b, "--format", "json"])).unwrap()
}

fn integer_from_json(value: &Value) -> i128 {
    value.as_i64().expect("a whole number").into()
}

#[test]
fn parts_sum_to_the_change_of_the_makespan() {
    let folder = tempfile::tempdir().unwrap();
    let machines = ["dgx-a100", "mi300x", "dgx-h100"];
    let reports = machines.map(|machine| {
        let options = ["-m", machine, "--compute", "roofline"];
        replay_case_to_file(folder.path(), &format!("{machine}.json"), &options)
    });
    for (a, before) in &reports {
        for (b, after) in &reports {
            let found = diff_json(a, b);
            let replay = &found["replays"][0];
            let more = integer_from_json(&after["makespan_ps"])
                - integer_from_json(&before["makespan_ps"]);
            assert_eq!(integer_from_json(&replay["makespan_ps"]["change"]), more);
            let parts = replay["parts"].as_array().unwrap();
            assert_eq!(parts.len(), 6);
            let sum = |which: &str| -> i128 {
                parts
                    .iter()
                    .map(|part| integer_from_json(&part[which]["change"]))
                    .sum()
            };
            assert_eq!(sum("mean_ps"), more, "{a} {b}");
            assert_eq!(sum("sum_over_npus_ps"), 8 * more, "{a} {b}");
            for part in parts {
                // The report rounds each mean separately.
                let name = part["part"].as_str().unwrap();
                for (side, report) in [("before", before), ("after", after)] {
                    let mean = integer_from_json(&report["mean_ps"][name]);
                    assert!(
                        (integer_from_json(&part["mean_ps"][side]) - mean).abs() <= 1,
                        "{name}"
                    );
                }
                let behind = part["behind"].as_array().unwrap().iter();
                let behind: i128 = behind
                    .map(|moved| integer_from_json(&moved["mean_ps"]["change"]))
                    .sum();
                let change = integer_from_json(&part["mean_ps"]["change"]);
                assert_eq!(behind + integer_from_json(&part["rest_ps"]), change);
                // The groups divide the exposed communication, so their parts add up to it.
                if name == "communication" {
                    assert!(integer_from_json(&part["rest_ps"]).abs() <= 4, "{part}");
                }
            }
            let sizes = parts
                .iter()
                .map(|part| integer_from_json(&part["mean_ps"]["change"]).abs());
            assert!(sizes.rev().is_sorted(), "what moved most is first");
            assert_eq!(found["differs"]["time"], a != b);
            assert_eq!(found["differs"]["bytes"], false);
            assert_eq!(found["differs"]["structure"], false);
        }
    }
    let [(a, _), (b, _), _] = &reports;
    let text = run_for_output(&["diff", a, b]);
    for expected in ["MAKESPAN", "another machine", "compute", "communication"] {
        assert!(text.contains(expected), "{expected}:\n{text}");
    }
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    assert!(run_for_output(&["diff", a, a]).contains("no difference in any part"));
    let output = run_chakram(&["diff", a, b, "--threshold", "1%"]);
    assert_eq!(output.status.code(), Some(3));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("the makespan changed by"), "{error}");
    assert_eq!(
        run_chakram(&["diff", a, b, "--fail-on", "structure,bytes"])
            .status
            .code(),
        Some(0)
    );
    assert_eq!(
        run_chakram(&["diff", a, b, "--fail-on", "time"])
            .status
            .code(),
        Some(3)
    );
}

#[test]
fn reports_of_several_machines_are_diffed_machine_by_machine() {
    let folder = tempfile::tempdir().unwrap();
    let two = |name, last| {
        replay_case_to_file(
            folder.path(),
            name,
            &["-m", "dgx-a100", "-m", last, "--compute", "roofline"],
        )
        .0
    };
    let (a, b) = (two("a.json", "mi300x"), two("b.json", "dgx-h100"));
    let found = diff_json(&a, &b);
    assert_eq!(found["replays"].as_array().unwrap().len(), 1);
    assert_eq!(found["replays"][0]["makespan_ps"]["change"], 0);
    let only = ["only_before", "only_after"].map(|key| found[key].as_array().unwrap().len());
    assert_eq!(only, [1, 1]);
    assert_eq!(found["differs"]["structure"], true);
}

#[test]
fn different_inputs_and_options_of_reports_are_noted() {
    let folder = tempfile::tempdir().unwrap();
    let (a, _) = replay_case_to_file(folder.path(), "a.json", &["-m", "dgx-a100"]);
    let (b, _) = replay_case_to_file(
        folder.path(),
        "b.json",
        &["-m", "dgx-a100", "--compute", "scaled:2"],
    );
    let found = diff_json(&a, &b);
    let notes = found["notes"].as_array().unwrap();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert_eq!(notes[0], "option compute: \"recorded\" → \"scaled:2\"");
    let (c, _) = replay_case_to_file(folder.path(), "c.json", &["-m", "mi300x"]);
    let notes = diff_json(&a, &c)["notes"].clone();
    assert_eq!(notes, serde_json::json!(["the input machine differs"]));
}

#[test]
fn a_report_that_was_changed_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (a, mut report) = replay_case_to_file(folder.path(), "a.json", &[]);
    report["makespan_ps"] = 1.into();
    let b = folder.path().join("b.json");
    std::fs::write(&b, report.to_string()).unwrap();
    let output = run_chakram(&["diff", &a, b.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("the parts of rank 0 sum to"), "{error}");
}

/// Reports name every setting of the replay, so a diff names those that differ.
#[test]
fn settings_that_differ_are_named() {
    let run = |arguments: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_chakram"))
            .args(arguments)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{error}");
        String::from_utf8(output.stdout).unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let replay = [
        "replay",
        "traces/ddp-resnet18",
        "-m",
        "dgx-h100",
        "--format",
        "json",
    ];
    let settings = [
        ("jitter", "5%", "\"5%\""),
        ("slow", "1=1.5", "[\"1=1.5\"]"),
        ("delays", "0=50ms", "[\"0=50ms\"]"),
        ("without", "profiler", "\"profiler\""),
    ];
    let (one, other) = (at("one.json"), at("other.json"));
    run(&[&replay[..], &["-o", &one]].concat());
    for (key, value, named) in settings {
        let flag = format!("--{}", key.trim_end_matches('s'));
        run(&[&replay[..], &[&flag, value, "-o", &other]].concat());
        let text = run(&["diff", &one, &other]);
        assert!(
            text.contains(&format!("option {key}: nothing → {named}")),
            "{text}"
        );
    }
    let set = ["--set", "machine.host.launch=30us", "-m", "dgx-a100"];
    let text = run(&[&replay[..], &set].concat());
    let comparison: Value = serde_json::from_str(&text).unwrap();
    let options = &comparison["options"];
    assert_eq!(options["set"][0], "machine.host.launch=30us", "{options}");
}
