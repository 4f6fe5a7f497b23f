//! Compares makespans after changes to kernels, collectives, ranks and machine keys with sums by hand, and with jobs
//! and machines that have the changed values from the start.

use crate::commands::run_chakram;
use serde_json::Value;

fn run_for_json(words: &[&str]) -> Value {
    let output = run_chakram(&[words, &["--format", "json"]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {error}");
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

fn read_makespan_ps(report: &Value) -> u64 {
    report["makespan_ps"].as_u64().expect("a time")
}

/// Each of 2 independent ranks runs three kernels of 7 us, one after another.
const CHAIN: &str = "generate chain --ranks 2 --nodes 3 --duration 7us --machine dgx-h100";

fn run_chain_job(more: &[&str]) -> Value {
    let words: Vec<&str> = CHAIN.split(' ').collect();
    run_for_json(&[&words, more].concat())
}

#[test]
fn kernel_durations_follow_the_kernel_and_slow_options() {
    let us = 1_000_000;
    assert_eq!(read_makespan_ps(&run_chain_job(&[])), 21 * us);
    for (words, expected) in [
        (&["--kernel", "*=2"][..], 42 * us),
        (&["--kernel", "*=0.5x"], 21 * us / 2),
        (&["--kernel", "*=1us"], 3 * us),
        // Each change applies to the result of the previous one: 7 us are halved, then multiplied by 3.
        (&["--kernel", "*=0.5", "--kernel", "*=3"], 63 * us / 2),
        // The other rank ends after 21 us.
        (&["--slow", "1=1.5"], 63 * us / 2),
        (&["--slow", "1=0.5"], 21 * us),
    ] {
        let report = run_chain_job(words);
        assert_eq!(read_makespan_ps(&report), expected, "{words:?}");
        assert_eq!(report["edits"]["unedited_makespan_ps"], 21 * us);
        let row = &report["edits"]["rows"][0];
        let nodes = if words[0] == "--slow" { 3 } else { 6 };
        assert_eq!(
            (row["matched"].as_u64(), row["changed"].as_u64()),
            (Some(nodes), Some(nodes))
        );
    }
    // A slow rank takes as long as a rank with slower kernels.
    let slow = run_chain_job(&["--slow", "0=1.25", "--slow", "1=1.25"]);
    assert_eq!(
        read_makespan_ps(&slow),
        read_makespan_ps(&run_chain_job(&["--kernel", "*=1.25"]))
    );
}

/// Kernels of 7 us become up to a tenth longer or shorter, so a chain of three takes 18.9 to 23.1 us. The same seed
/// always gives the same time.
#[test]
fn jitter_is_drawn_by_its_seed() {
    let draw = |words: &str| read_makespan_ps(&run_chain_job(&["--jitter", words]));
    let (first, again, other) = (draw("10%"), draw("0.1,seed=0"), draw("10%,seed=1"));
    assert_eq!(first, again);
    assert_ne!(first, other);
    for time in [first, other] {
        assert!(
            (18_900_000..=23_100_000).contains(&time) && time != 21_000_000,
            "{time}"
        );
    }
    assert_eq!(draw("0"), 21_000_000);
}

/// Four NPUs of an NVLink node all-reduce 100 MB.
const REDUCE: &str = "generate collective all-reduce --ranks 4 --size 100MB --machine dgx-h100";

#[test]
fn collective_durations_follow_the_collective_option() {
    let words: Vec<&str> = REDUCE.split(' ').collect();
    let with = |more: &[&str]| run_for_json(&[&words, more].concat());
    let plain = read_makespan_ps(&with(&[]));
    assert!(plain > 0);
    let factor = |text: &str| read_makespan_ps(&with(&["--collective", text]));
    assert_eq!(factor("all-reduce=1"), plain);
    assert_eq!(factor("all_reduce=2"), 2 * plain);
    assert_eq!(factor("*=5ms"), 5_000_000_000);
    // If several changes match, the last one applies.
    let twice = with(&["--collective", "*=5ms", "--collective", "all-reduce=2"]);
    assert_eq!(read_makespan_ps(&twice), 2 * plain);
    let none = run_chakram(&[&words[..], &["--collective", "all-gather=2"]].concat());
    assert_eq!(none.status.code(), Some(2));
    let error = String::from_utf8(none.stderr).expect("it is text");
    let found = "--collective all-gather=2 matches none of the collectives";
    assert!(error.contains(found), "{error}");
}

/// The name of a kernel does not help if the rank is wrong.
#[test]
fn slow_ranks_without_a_trace_are_named() {
    let slow = run_chakram(&[
        "replay",
        "traces/ddp-resnet18",
        "-m",
        "dgx-h100",
        "--slow",
        "0=2",
        "--slow",
        "9=2",
    ]);
    assert_eq!(slow.status.code(), Some(2));
    let error = String::from_utf8(slow.stderr).expect("it is text");
    for part in ["--slow 9=2: rank 9 has no trace", "ranks 0 to 1"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

/// A machine with a changed key equals a machine whose file has this value from the start.
#[test]
fn setting_a_machine_key_equals_changing_the_machine_file() {
    let folder = tempfile::tempdir().expect("there is room");
    let file = folder.path().join("slow.toml");
    let shown = run_chakram(&["machine", "show", "dgx-h100"]);
    let text = String::from_utf8(shown.stdout).expect("it is text");
    let halved = text.replacen("450 GB/s", "225 GB/s", 1);
    assert_ne!(text, halved);
    std::fs::write(&file, halved).expect("there is room");
    let words: Vec<&str> = REDUCE.split(' ').collect();
    let (job, machine) = words.split_at(words.len() - 2);
    let of_file = run_for_json(&[job, &["--machine", &file.display().to_string()]].concat());
    let key = "machine.dimension.nvlink.bandwidth=225 GB/s";
    let set = run_for_json(&[job, machine, &["--set", key]].concat());
    assert_eq!(read_makespan_ps(&set), read_makespan_ps(&of_file));
    let plain = run_for_json(&[job, machine].concat());
    assert_eq!(set["edits"]["unedited_makespan_ps"], plain["makespan_ps"]);
    assert_eq!(set["edits"]["rows"][0]["notes"][0], "was \"450 GB/s\"");
    // The report names a changed key that the job does not use.
    let idle = run_for_json(
        &[
            job,
            machine,
            &["--set", "machine.npu.h100.peak.fp64=1 TFLOP/s"],
        ]
        .concat(),
    );
    let named = idle["settings"]["without_effect"]
        .as_array()
        .expect("a list");
    assert!(
        named
            .iter()
            .any(|one| one["key"] == "machine.npu.h100.peak.fp64"),
        "{named:?}"
    );
}

/// Kernels are selected by name, operator, module and class. Each kind of pattern is compared with
/// sums over the capture's own table.
#[test]
fn kernel_patterns_select_the_kernels_that_report_tables_count() {
    let job = ["replay", "traces/ddp-resnet18", "--machine", "dgx-h100"];
    let plain = run_for_json(&job);
    let operators = plain["operators"].as_array().expect("a list").iter();
    let kernels = operators.filter(|row| row["kind"] == "compute");
    let (mut all, mut convolutions) = (0, 0);
    for row in kernels {
        let calls = row["calls"].as_u64().expect("a count");
        all += calls;
        if row["name"]
            .as_str()
            .is_some_and(|name| name.contains("convolution"))
        {
            convolutions += calls;
        }
    }
    assert!(convolutions > 0 && convolutions < all);
    let matched = |pattern: &str| {
        let changed = run_for_json(&[&job[..], &["--kernel", &format!("{pattern}=0.9")]].concat());
        changed["edits"]["rows"][0]["matched"]
            .as_u64()
            .expect("a count")
    };
    assert_eq!(matched("*"), all);
    assert_eq!(matched("*convolution*"), convolutions);
    assert_eq!(matched("name:*convolution*"), convolutions);
}
