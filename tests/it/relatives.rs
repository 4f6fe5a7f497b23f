//! Tests machines written by `chakram machine new`.

use crate::commands::run_chakram;
use serde_json::Value;

fn run_machine_new(words: &[&str]) -> (String, String) {
    let output = run_chakram(&[&["machine", "new", "x", "--from"], words].concat());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words:?}: {error}");
    (String::from_utf8(output.stdout).expect("it is text"), error)
}

/// Returns the report of a step on a machine.
fn report_training_step(machine: &str, more: &[&str]) -> Value {
    let job = [
        "generate",
        "gpt3-1.3b",
        "--tensor",
        "4",
        "--data",
        "2",
        "--batch",
        "4",
        "--format",
        "json",
        "--machine",
        machine,
    ];
    let output = run_chakram(&[&job[..], more].concat());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

/// With equal rates, the interval also equals that of the known machine.
#[test]
fn a_new_machine_without_numbers_predicts_exactly_as_its_base_machine() {
    let folder = tempfile::tempdir().expect("there is room");
    for (from, preset) in [
        ("h100", "dgx-h100"),
        ("gb200-nvl72", "gb200-nvl72"),
        ("mi300x", "mi300x"),
        ("dgx-a100x4", "dgx-a100x4"),
    ] {
        let path = folder.path().join("x.toml");
        std::fs::write(&path, run_machine_new(&[from]).0).expect("there is room");
        let path = path.to_str().expect("UTF-8");
        let checked = run_chakram(&["machine", "check", path]);
        assert!(checked.status.success(), "{checked:?}");
        let [ours, theirs] = [path, preset].map(|machine| report_training_step(machine, &[]));
        for field in ["/makespan_ps", "/interval", "/mean_ps", "/collectives"] {
            assert_eq!(ours.pointer(field), theirs.pointer(field), "{from} {field}");
        }
    }
}

/// With twice the bandwidths and peaks, the step is shorter and its interval is wider in
/// proportion.
#[test]
fn new_machine_numbers_change_the_step_and_widen_its_interval() {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("twice.toml");
    let path = path.to_str().expect("UTF-8");
    let (_, notes) = run_machine_new(&[
        "dgx-h100",
        "--peak",
        "bf16=1978.8TFLOPs",
        "--bandwidth",
        "6.7TB/s",
        "--memory",
        "160GB",
        "--link",
        "1.8TB/s",
        "--price",
        "$4",
        "-o",
        path,
    ]);
    assert!(
        notes.contains("peaks of fp64, fp32, tf32, fp16, fp8, int8 are those of dgx-h100"),
        "{notes}"
    );
    let [ours, theirs] = [path, "dgx-h100"].map(|machine| report_training_step(machine, &[]));
    let time = |report: &Value, path: &str| {
        report
            .pointer(path)
            .and_then(Value::as_f64)
            .unwrap_or_else(|| panic!("{path}"))
    };
    assert!(time(&ours, "/makespan_ps") < time(&theirs, "/makespan_ps"));
    let width =
        |report: &Value| time(report, "/interval/high_ps") / time(report, "/interval/low_ps");
    assert!(width(&ours) > width(&theirs));
    assert_eq!(ours["cost"]["dollars_per_npu_hour"], 4.0);
    let warnings = ours["warnings"].to_string();
    assert!(
        warnings.contains("no kernel was measured on machine `x`: its curves come from dgx-h100"),
        "{warnings}"
    );
    assert!(
        !theirs["warnings"]
            .to_string()
            .contains("measured on machine")
    );
    assert_eq!(
        ours["memory"]["npus"][0]["capacity_bytes"],
        160_000_000_000_u64
    );
}

#[test]
fn wrong_keys_and_units_are_answered_with_what_was_meant() {
    for (words, part) in [
        (&["h100", "--memroy", "141GB"][..], "--memory"),
        (&["h100", "--memory", "141GBs"], "one of B, kB, MB, GB"),
        (&["h100", "--bandwidth", "4.8TB"], "TB/s"),
        (&["h100", "--peak", "989TFLOP/s"], "such as bf16=989TFLOP/s"),
        (
            &["h100", "--peak", "bf61=989TFLOP/s"],
            "did you mean `bf16`?",
        ),
        (
            &["h100", "--peak", "bf16=1TFLOP/s,bf16=2TFLOP/s"],
            "given twice",
        ),
        (&["h10", "--memory", "1GB"], "no machine is called"),
        (
            &["tpu-v4", "--multiprocessors", "3"],
            "no curve of matrix multiplications",
        ),
        (&["h100", "--npus-per-node", "0"], "0 is not in 1"),
    ] {
        let output = run_chakram(&[&["machine", "new", "x", "--from"], words].concat());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(error.contains(part), "{words:?}: {error}");
    }
    let output = run_chakram(&["machine", "new", "two words", "--from", "h100"]);
    assert_eq!(output.status.code(), Some(2));
}
