//! Tests the step times of training on clusters of A100s: compares what `chakram generate` predicts from a model and a
//! plan with measurements. The measurements are in the subfolder `validation` of the folder that `CHAKRAM_CORPUS`
//! names; without this variable these tests report that they are skipped.
//!
//! One constant is free: the fraction of its peak that a kernel reaches. This fraction is the same for arithmetic and
//! memory, and for all kernels, models and plans. It was fitted to the row [`ANCHOR`] alone. All other numbers come
//! from the machine (`chakram machine show selene`) and the plan.
//!
//! Printing the table of all rows, with the errors without each effect, takes minutes:
//!
//! ```text
//! CHAKRAM_CORPUS=… cargo test --release --test it training_times -- --ignored --nocapture
//! ```

mod rows;
mod table;

use super::commands::run_chakram;
use super::corpus::sample_every_nth;
use rows::{MeasuredTrainingRun, read_measured_rows};
use serde_json::Value;

/// The fraction of the peak that kernels reach.
const EFFICIENCY: &str = "0.673";
/// The row to which the efficiency was fitted.
const ANCHOR: &str = "SC'21 18.4B";

/// The errors of predictions in per cent of the measured time: not goals, but the results with one constant. The small
/// jobs come first and run every time.
const ERRORS: [(&str, f64); 18] = [
    ("SC'21 1.7B", 2.3),
    ("SC'21 3.6B", 1.5),
    ("SC'21 7.5B", 1.2),
    ("SC'21 18.4B", 0.0),
    ("seqsel 22B full", 1.0),
    ("seqsel 22B selective", -4.0),
    ("SC'21 39.1B", 4.4),
    ("SC'21 76.1B", -3.4),
    ("SC'21 145.6B", 0.8),
    ("SC'21 310.1B", -1.5),
    ("SC'21 529.6B", 0.0),
    ("SC'21 1008.0B", 4.5),
    ("seqsel 175B full", 1.6),
    ("seqsel 175B selective", -2.2),
    ("seqsel 530B full", 7.0),
    ("seqsel 530B selective", 2.5),
    ("seqsel 1T full", 10.9),
    ("seqsel 1T selective", 9.6),
];
/// The number of small jobs among [`ERRORS`].
const SMALL: usize = 6;
/// How far an error may change, in percentage points, before a text that quotes it is wrong; less than any effect
/// contributes.
const MOVES: f64 = 0.8;

/// The effects: for each, a row whose prediction must fall without the effect, and by how much it must fall at least,
/// in per cent of the measured time.
const EFFECTS: [(&str, &str, f64); 6] = [
    ("memory-bound", "SC'21 1.7B", 25.0),
    ("recompute", "SC'21 7.5B", 25.0),
    ("recompute", "seqsel 22B selective", 5.0),
    ("tensor-communication", "SC'21 7.5B", 9.5),
    ("logits", "SC'21 1.7B", 4.5),
    ("optimizer", "seqsel 22B full", 3.5),
];

/// Returns how many seconds a step of `row` takes with `more` options.
fn predict_step_seconds(row: &MeasuredTrainingRun, more: &[&str]) -> f64 {
    let nodes = format!("selenex{}", row.npus.div_ceil(8));
    predict_step_seconds_on_machine(&nodes, row, more)
}

fn predict_step_seconds_on_machine(machine: &str, row: &MeasuredTrainingRun, more: &[&str]) -> f64 {
    let mut args = vec!["generate"];
    args.extend(row.plan.iter().map(String::as_str));
    args.extend(["--machine", machine, "--format", "json"]);
    args.extend(["--compute", "roofline", "--efficiency", EFFICIENCY]);
    args.extend(more);
    let output = run_chakram(&args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "chakram {}: {error}",
        args.join(" ")
    );
    let report: Value = serde_json::from_slice(&output.stdout).expect("reports are JSON");
    report["makespan_ps"].as_u64().expect("it is a number") as f64 / 1e12
}

/// Returns the error of the prediction in per cent.
fn compute_error_percent(row: &MeasuredTrainingRun, seconds: f64) -> f64 {
    100.0 * (seconds / row.measured - 1.0)
}

/// Returns the row of this name.
fn find_row_by_name<'r>(rows: &'r [MeasuredTrainingRun], name: &str) -> &'r MeasuredTrainingRun {
    let found = rows.iter().find(|row| row.name == name);
    found.unwrap_or_else(|| panic!("there is no row {name}"))
}

/// Checks that the error of a row equals its value in [`ERRORS`].
fn assert_row_error_equals_listed(name: &str, off: f64) {
    let expected = ERRORS.iter().find(|(row, _)| *row == name);
    let (_, expected) = expected.unwrap_or_else(|| panic!("{name} has no error yet"));
    assert!(
        (off - expected).abs() < MOVES,
        "{name}: {off:+.2} %, not {expected:+.1} %"
    );
}

#[test]
fn anchor_row_is_predicted_within_a_fifth_of_a_percent() {
    let Some(rows) = read_measured_rows() else {
        return;
    };
    let row = find_row_by_name(&rows, ANCHOR);
    let off = compute_error_percent(row, predict_step_seconds(row, &[]));
    assert!(off.abs() < 0.2, "{off:.2} %");
}

#[test]
fn small_rows_have_their_listed_prediction_errors() {
    let Some(rows) = read_measured_rows() else {
        return;
    };
    for (name, _) in sample_every_nth(2, &ERRORS[..SMALL]) {
        let row = find_row_by_name(&rows, name);
        assert_row_error_equals_listed(
            name,
            compute_error_percent(row, predict_step_seconds(row, &[])),
        );
    }
}

#[test]
fn leaving_out_an_effect_changes_predictions_of_small_runs() {
    let Some(rows) = read_measured_rows() else {
        return;
    };
    for (effect, name, worth) in sample_every_nth(2, EFFECTS) {
        let row = find_row_by_name(&rows, name);
        let [all, less] = [&[][..], &["--without", effect]]
            .map(|more| compute_error_percent(row, predict_step_seconds(row, more)));
        assert!(
            all - less > worth,
            "{name} without {effect}: {all:.1} % to {less:.1} %"
        );
    }
}
