//! Compares operators summed over micro-batches, which are the default rows of reports, with the full list in every
//! format.

use crate::commands::{run_chakram, run_for_output};
use serde_json::Value;
use std::collections::BTreeMap;

/// A step has 8 micro-batches over 2 stages of 2 members.
const JOB: [&str; 11] = [
    "generate",
    "gpt2-small",
    "--tensor",
    "2",
    "--pipeline",
    "2",
    "--batch",
    "8",
    "--machine",
    "dgx-h100",
    "--format",
];

fn replay_generated_job(more: &[&str]) -> String {
    run_for_output(&[&JOB[..], more].concat())
}

/// Number of calls, and picoseconds, by name and kind.
type CallsAndTimeByOperator = BTreeMap<(String, String), (u64, u64)>;

fn add_operator_call_sum(
    sums: &mut CallsAndTimeByOperator,
    name: &str,
    kind: &str,
    calls: u64,
    ps: u64,
) {
    let sum = sums.entry((name.to_owned(), kind.to_owned())).or_default();
    sum.0 += calls;
    sum.1 += ps;
}

/// Returns the sums of a report's rows, and the number of rows.
fn sum_json_rows_by_operator(report: &Value) -> (CallsAndTimeByOperator, usize) {
    let rows = report["operators"].as_array().unwrap();
    let mut sums = CallsAndTimeByOperator::new();
    for row in rows {
        let text = |key: &str| row[key].as_str().unwrap();
        let number = |key: &str| row[key].as_u64().unwrap();
        add_operator_call_sum(
            &mut sums,
            text("name"),
            text("kind"),
            number("calls"),
            number("total_ps"),
        );
    }
    (sums, rows.len())
}

fn sum_csv_rows_by_operator(table: &str) -> CallsAndTimeByOperator {
    let mut sums = CallsAndTimeByOperator::new();
    for line in table.lines().skip(1) {
        // No operator name contains a comma.
        let fields: Vec<&str> = line.split(',').collect();
        let [name, kind, calls, ps, ..] = fields[..] else {
            panic!("{line}");
        };
        add_operator_call_sum(
            &mut sums,
            name,
            kind,
            calls.parse().unwrap(),
            ps.parse().unwrap(),
        );
    }
    sums
}

/// Returns the rows of all micro-batches, added up independently of the product. A prefix `mb` with
/// a number before the first `/` is dropped.
fn sum_micro_batches_by_operator(all: &CallsAndTimeByOperator) -> CallsAndTimeByOperator {
    let mut sums = CallsAndTimeByOperator::new();
    for ((name, kind), (calls, ps)) in all {
        let name = match name.split_once('/') {
            Some((first, rest)) if first.starts_with("mb") => format!("mb*/{rest}"),
            _ => name.clone(),
        };
        add_operator_call_sum(&mut sums, &name, kind, *calls, *ps);
    }
    sums
}

#[test]
fn operator_rows_are_the_sums_of_the_list_of_all_operators() {
    let text = replay_generated_job(&["json", "--all-operators"]);
    let all: Value = serde_json::from_str(&text).unwrap();
    // Writing rows one by one gives the same text as writing all rows at once.
    assert_eq!(text, format!("{all:#}\n"));
    let few: Value = serde_json::from_str(&replay_generated_job(&["json"])).unwrap();
    let ((every, count), (rows, row_count)) = (
        sum_json_rows_by_operator(&all),
        sum_json_rows_by_operator(&few),
    );
    assert_eq!(
        (every.len(), rows.len()),
        (count, row_count),
        "one row each"
    );
    assert_eq!(sum_micro_batches_by_operator(&every), rows);
    // There are 8 micro-batches, and almost no operator is outside a micro-batch.
    assert!(
        7 * row_count < count && count <= 8 * row_count,
        "{row_count} of {count}"
    );
    // The operators' FLOPs add up to the FLOPs behind the rates, which are counted node by node.
    for report in [&all, &few] {
        let rows = report["operators"].as_array().unwrap().iter();
        let flops: u64 = rows.filter_map(|row| row["flops"].as_u64()).sum();
        let counted = report["throughput"]["flops"].as_f64().unwrap();
        assert!(
            counted > 0.0 && (flops as f64 / counted - 1.0).abs() < 1e-12,
            "{flops} of {counted}"
        );
    }
    // The longest row is first, and everything else is equal.
    let times = few["operators"].as_array().unwrap().iter();
    assert!(
        times
            .map(|row| row["total_ps"].as_u64())
            .is_sorted_by(|a, b| a >= b)
    );
    assert_eq!(all["options"]["all_operators"], true);
    let rest = |report: &Value| {
        let mut rest = report.as_object().unwrap().clone();
        rest.remove("operators");
        rest["options"]
            .as_object_mut()
            .unwrap()
            .remove("all_operators");
        rest
    };
    assert_eq!(rest(&all), rest(&few));
    // The table has the same rows.
    let table = ["csv", "--table", "operators"];
    assert_eq!(
        sum_csv_rows_by_operator(&replay_generated_job(&table)),
        rows
    );
    assert_eq!(
        sum_csv_rows_by_operator(&replay_generated_job(
            &[&table[..], &["--all-operators"]].concat()
        )),
        every
    );
}

#[test]
fn reports_with_summed_and_all_operators_do_not_differ() {
    let folder = tempfile::tempdir().unwrap();
    let paths = [
        ("a.json", &["json"][..]),
        ("b.json", &["json", "--all-operators"]),
    ];
    let paths = paths.map(|(name, more)| {
        let path = folder.path().join(name);
        std::fs::write(&path, replay_generated_job(more)).unwrap();
        path.to_str().unwrap().to_owned()
    });
    run_for_output(&[
        "diff",
        &*paths[0],
        &*paths[1],
        "--fail-on",
        "any",
        "--threshold",
        "0%",
    ]);
}

#[test]
fn machine_comparisons_have_the_same_operator_rows_as_replays() {
    let folder = tempfile::tempdir().unwrap();
    let job = folder.path().join("job");
    let job = job.to_str().unwrap();
    run_for_output(&[
        "generate",
        "gpt2-small",
        "--pipeline",
        "2",
        "--batch",
        "4",
        "-o",
        job,
    ]);
    let machines = [
        "-m",
        "dgx-h100",
        "-m",
        "mi300x",
        "--compute",
        "roofline",
        "--format",
    ];
    let several = |more: &[&str]| run_for_output(&[&["replay", job], &machines[..], more].concat());
    for more in [&["json"][..], &["json", "--all-operators"]] {
        let text = several(more);
        let report: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(text, format!("{report:#}\n"));
        let one = run_for_output(
            &[
                &[
                    "replay",
                    job,
                    "-m",
                    "mi300x",
                    "--compute",
                    "roofline",
                    "--format",
                ],
                more,
            ]
            .concat(),
        );
        let one: Value = serde_json::from_str(&one).unwrap();
        assert_eq!(
            sum_json_rows_by_operator(&report["machines"][1]),
            sum_json_rows_by_operator(&one)
        );
    }
    let table = several(&["csv", "--table", "operators"]);
    assert!(
        table.contains("MI300X") || table.contains("mi300x"),
        "{table}"
    );
    assert!(
        table.contains(",mb*/") && !table.contains(",mb0/"),
        "{table}"
    );
}

#[test]
fn all_operators_is_refused_without_an_operator_list() {
    for more in [&["text"][..], &["csv"], &["csv", "--table", "npus"]] {
        let output = run_chakram(&[&JOB[..], more, &["--all-operators"]].concat());
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains("--all-operators needs"), "{error}");
    }
}
