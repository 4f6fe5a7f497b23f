//! Tests that a report is a single value: JSON and text show the same facts, and writing and reading it back gives the
//! same bytes.

use super::commands::run_for_output;
use chakram::report::json::{ReportOrComparisonJson, write_indented_json};
use chakram::report::report_csv::ReportCsvTable;
use chakram::report::text::TextStyleWidthAndDetail;
use chakram::report::{Report, compare, report_csv, report_text};
use std::path::Path;

/// Replays of single machines, each with its options.
const SINGLE: [&[&str]; 6] = [
    &["traces/data-parallel-8"],
    &[
        "traces/data-parallel-8",
        "--compute",
        "roofline",
        "--stepwise",
    ],
    &["traces/ddp-resnet18"],
    &["traces/ddp-resnet18", "--comm", "recorded"],
    &["traces/prefetch-4"],
    &["traces/tight-2"],
];

fn run_replay(asked: &[&str], format: &[&str]) -> String {
    run_for_output(&[&["replay"], asked, format].concat())
}

fn parse_report_and_check_rewrite_is_equal(text: &str) -> ReportOrComparisonJson {
    let document =
        ReportOrComparisonJson::parse_report_or_comparison(text).expect("it is a document");
    let mut again = Vec::new();
    write_indented_json(&mut again, &document).expect("it is a vector");
    assert_eq!(String::from_utf8(again).expect("it is text"), text);
    document
}

fn parse_report_of_one_machine(text: &str) -> Report {
    match parse_report_and_check_rewrite_is_equal(text) {
        ReportOrComparisonJson::Report(report) => *report,
        ReportOrComparisonJson::Comparison(_) => panic!("it is of one machine"),
    }
}

#[test]
fn reports_read_back_say_the_same() {
    for asked in SINGLE {
        let report = parse_report_of_one_machine(&run_replay(asked, &["--format", "json"]));
        for (table, name) in [
            (ReportCsvTable::Npus, "npus"),
            (ReportCsvTable::Collectives, "collectives"),
            (ReportCsvTable::Operators, "operators"),
            (ReportCsvTable::Memory, "memory"),
        ] {
            let direct = run_replay(asked, &["--format", "csv", "--table", name]);
            assert_eq!(
                report_csv::render_report_table(&report, table),
                direct,
                "{asked:?}"
            );
        }
        let direct = run_replay(asked, &[]);
        let read = report_text::render_text(
            &report,
            "title",
            "basis",
            TextStyleWidthAndDetail::default(),
        );
        // The library's errors name settings by key, and the program's errors by flag.
        let read = ["details", "format", "table"]
            .iter()
            .fold(read, |text, key| {
                text.replace(&format!("`{key}`"), &format!("--{key}"))
            });
        // Returns everything except the title and the line that states its basis.
        let tables = |text: &str| text.split_once("\n\n").map(|(_, tables)| tables.to_owned());
        assert_eq!(tables(&read), tables(&direct), "{asked:?}");
    }
}

#[test]
fn all_cases_read_back_are_the_same_bytes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces");
    let mut found = 0;
    for case in std::fs::read_dir(root).expect("there are cases") {
        let case = case.expect("it is there").path();
        let name = format!("traces/{}", case.file_name().unwrap().display());
        if case.join("machine.toml").is_file() && name != "traces/deadlock-2" {
            found += 1;
            parse_report_of_one_machine(&run_replay(
                &[&name, "--all-operators"],
                &["--format", "json"],
            ));
        }
    }
    assert!(found >= 5, "{found} cases");
}

#[test]
fn comparisons_read_back_are_the_same_bytes() {
    let machines = ["-m", "dgx-a100", "-m", "w-2d", "-m", "gb200-nvl72"];
    let asked = [
        &["traces/data-parallel-8", "--compute", "roofline"],
        &machines[..],
    ]
    .concat();
    let text = run_replay(&asked, &["--format", "json"]);
    let ReportOrComparisonJson::Comparison(comparison) =
        parse_report_and_check_rewrite_is_equal(&text)
    else {
        panic!("it is of several machines");
    };
    assert_eq!(comparison.machines.len(), 3);
    assert!(
        comparison
            .machines
            .iter()
            .all(|machine| machine.completed_report().is_some())
    );
    assert!(matches!(
        comparison.machines[0],
        compare::MachineResult::Completed(_)
    ));
}
