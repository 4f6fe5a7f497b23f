//! Tests the table of quirks, its notes, and the rejection of wrong names.

use crate::commands::{run_chakram, run_for_exit_code};
use serde_json::Value;

const FILES: [&str; 5] = [
    "astra-sim",
    "--workload-configuration=traces/astra-sim-8/all_reduce",
    "--system-configuration=traces/astra-sim-8/system.json",
    "--network-configuration=traces/astra-sim-8/network.yml",
    "--remote-memory-configuration=traces/astra-sim-8/memory.json",
];

fn run_case_for_output(more: &[&str]) -> String {
    let output = run_chakram(&[&FILES, more].concat());
    assert_eq!(output.status.code(), Some(0), "{more:?}");
    String::from_utf8(output.stdout).expect("it is text")
}

/// A chunk of 2^18 B takes 15·10 ns, 14 messages of 2^15 B after 500 ns each, and 7 reductions of
/// 2^15 B, three times each at 50 GB/s. With all quirks, these take 500 + 610 and 3 · 655 ns; with
/// a GB of 10^9, 500 + 655 ns; in ps, 1,110.352 and 1,966.08. There are four chunks.
#[test]
fn the_quirk_table_as_text_has_the_expected_times() {
    let chunk = |message: u64, reduction: u64| 4 * (150_000 + 14 * message + 7 * reduction);
    let table = run_case_for_output(&["--explain-quirks"]);
    let cycles = |ps: u64| format!("{}.{:03}", ps / 1000, ps % 1000);
    let before = chunk(1_110_000, 1_965_000);
    for (name, after) in [
        ("(nothing)", before),
        ("padding", before),
        ("free-ports", before),
        ("gib", chunk(1_155_000, 1_965_000)),
        ("whole-ns", chunk(1_110_352, 1_966_080)),
        ("(everything)", chunk(1_155_360, 1_966_080)),
    ] {
        let line = table.lines().find(|line| line.starts_with(name));
        let line = line.expect("a line of each");
        let fields: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(fields[1], cycles(after), "{line}");
        if name != "(nothing)" {
            assert_eq!(fields[2], cycles(after - before), "{line}");
        }
    }
    assert_eq!(table, include_str!("table.txt"));
}

#[test]
fn the_quirk_table_as_json_has_a_row_per_quirk() {
    let text = run_case_for_output(&["--explain-quirks", "--format=json"]);
    let table: Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(table["schema"], "chakram.quirks.1");
    let replays = table["replays"].as_array().expect("a list");
    // The table has a row without corrections, a row for each of sixteen quirks, and a row with all
    // quirks corrected.
    assert_eq!(replays.len(), 18);
    assert_eq!(replays[0]["quirks"], "all");
    assert_eq!(replays[0]["makespan_ps"], 117_780_000);
    assert_eq!(replays[17]["quirks"], "none");
    let row = |name: &str| {
        let found = replays.iter().find(|row| row["corrected"] == name);
        found.expect("a row of each")
    };
    assert_eq!(row("store-and-forward")["status"], "does not apply");
    assert_eq!(row("gib")["change_ps"], 2_520_000);
    assert_eq!(row("gib")["quirks"], "all,-gib");
    // Each row equals the replay with these quirks.
    for (quirks, name) in [("all,-whole-ns", "whole-ns"), ("none", "everything")] {
        let text = run_case_for_output(&["--quirks", quirks, "--format=json"]);
        let report: Value = serde_json::from_str(&text).expect("it is JSON");
        assert_eq!(report["makespan_ps"], row(name)["makespan_ps"]);
        assert_eq!(report["options"]["quirks"], quirks);
    }
    let csv = run_case_for_output(&["--explain-quirks", "--format=csv"]);
    assert_eq!(csv.lines().count(), 19);
    assert!(
        csv.contains("\ngib,completed,120300000,2520000,2.139582\n"),
        "{csv}"
    );
}

#[test]
fn all_quirks_are_the_default() {
    assert_eq!(
        run_case_for_output(&[]),
        run_case_for_output(&["--quirks=all"])
    );
    assert_ne!(
        run_case_for_output(&[]),
        run_case_for_output(&["--quirks=none"])
    );
    for format in ["--format=csv", "--format=json"] {
        assert_eq!(
            run_case_for_output(&[format]),
            run_case_for_output(&[format, "--quirks=all"])
        );
    }
}

#[test]
fn quirks_that_do_not_apply_are_noted() {
    let note = |more: &[&str]| {
        let output = run_chakram(&[&FILES, more].concat());
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stderr).expect("it is text")
    };
    assert_eq!(note(&["--quirks=all,-free-ports"]), "");
    let said = note(&["--quirks=all,-store-and-forward"]);
    assert!(
        said.contains("store-and-forward does not apply to the unaware network"),
        "{said}"
    );
    let said = note(&["--quirks=none", "--network-model=aware"]);
    assert!(
        said.contains("free-ports does not apply to the aware network"),
        "{said}"
    );
    assert!(said.contains("first-dimension does not apply"), "{said}");
}

#[test]
fn unknown_quirks_are_refused() {
    let args = [&FILES[..], &["--quirks=all,-pading"]].concat();
    assert_eq!(run_for_exit_code(&args), 2);
    let error = String::from_utf8(run_chakram(&args).stderr).expect("it is text");
    assert!(error.contains("did you mean `padding`?"), "{error}");
    assert!(
        error.contains("halving-doubling-reductions, early-reduction"),
        "{error}"
    );
    for wrong in ["--quirks=padding", "--quirks=all,padding", "--quirks="] {
        assert_eq!(
            run_for_exit_code(&[&FILES[..], &[wrong]].concat()),
            2,
            "{wrong}"
        );
    }
    let help = String::from_utf8(run_chakram(&["astra-sim", "--help"]).stdout).expect("it is text");
    let said = help.lines().find(|line| line.starts_with("  free-ports "));
    assert!(
        said.is_some_and(|line| line.contains(" each message has")),
        "{help}"
    );
}
