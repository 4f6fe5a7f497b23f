//! Tests memory in the program's output: texts, tables, exit codes and timelines.

use crate::commands::{has_line_of_words, run_chakram, run_for_exit_code, run_for_output};
use serde_json::Value;

const CASE: &str = "traces/tight-2";

fn run_chakram_json(args: &[&str]) -> Value {
    serde_json::from_str(&run_for_output(args)).unwrap()
}

#[test]
fn running_out_of_memory_is_reported_and_exits_with_3_if_required() {
    assert_eq!(run_for_exit_code(&["replay", CASE]), 0);
    let required = run_chakram(&["replay", CASE, "--fit", "require"]);
    assert_eq!(required.status.code(), Some(3));
    let error = String::from_utf8(required.stderr).unwrap();
    let wanted = "error: on tight-2: out of memory: rank 0 allocates 17.0 GB of its NPU's 16.0 GB";
    assert!(
        error.starts_with(wanted) && error.lines().count() == 1,
        "{error}"
    );
    let text = String::from_utf8(required.stdout).unwrap();
    // Both give the same report.
    assert_eq!(text, run_for_output(&["replay", CASE]));
    for line in [
        "OUT OF MEMORY  1 of 2 ranks need more than the NPU's capacity",
        "0  17.0 GB  16.0 GB  106.2 %  4.0 GB  4.0 GB  2.0 GB  6.0 GB  1.0 GB",
        "at 60.000 us, when `backward of micro-batch 0` was issued (node 7)",
        "1  14.0 GB  16.0 GB  87.5 %  4.0 GB  4.0 GB  2.0 GB  3.0 GB  1.0 GB",
        "at 30.000 us, when `backward of micro-batch 0` was issued (node 4)",
    ] {
        assert!(has_line_of_words(&text, line), "{line:?} in\n{text}");
    }
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let warning = "! out of memory: rank 0 allocates 17.0 GB of its NPU's 16.0 GB, at 60.000 us, \
                   when `backward of micro-batch 0` was issued (node 7): activations 6.0 GB, weights 4.0 GB, \
                   gradients 4.0 GB, optimizer 2.0 GB, temporary 1.0 GB";
    assert!(joined.contains(warning), "{text}");

    // NPUs of 80 GB have enough memory. For traces without memory changes, `--fit require` is an error.
    assert_eq!(
        run_for_exit_code(&["replay", CASE, "-m", "dgx-h100", "--fit", "require"]),
        0
    );
    let silent = run_chakram(&["replay", "traces/data-parallel-8", "--fit", "require"]);
    assert_eq!(silent.status.code(), Some(2));
    let error = String::from_utf8(silent.stderr).unwrap();
    assert!(error.contains("no node states its allocations"), "{error}");
}

#[test]
fn json_and_csv_reports_give_every_memory_number() {
    let report = run_chakram_json(&["replay", CASE, "--format", "json"]);
    let memory = &report["memory"];
    assert_eq!(memory["fits"], false);
    let row = &memory["npus"][0];
    assert_eq!(row["peak_bytes"], 17_000_000_000_u64);
    assert_eq!(row["peak_bytes_by_class"]["activations"], 6_000_000_000_u64);
    assert_eq!(row["peak_ps"], 60_000_000);
    assert_eq!(row["peak_node"]["id"], 7);
    // Weights and optimizer state.
    assert_eq!(row["unfreed_bytes_by_class"]["weights"], 4_000_000_000_u64);
    assert_eq!(row["unfreed_bytes_by_class"]["activations"], 0);
    assert_eq!(row["overfreed"], Value::Null);
    let table = run_for_output(&["replay", CASE, "--format", "csv", "--table", "memory"]);
    let second = table.lines().nth(2).unwrap();
    assert_eq!(
        second,
        "1,1,16000000000,14000000000,4000000000,4000000000,2000000000,3000000000,1000000000,30000000,4,\
         backward of micro-batch 0,6000000000,0,0"
    );
    let silent = run_chakram_json(&["replay", "traces/data-parallel-8", "--format", "json"]);
    assert_eq!(silent.get("memory"), None);
}

/// On NPUs of 80 GB, the highest memory use is 17 / 80 = 21.2 %.
#[test]
fn several_machines_are_compared_by_their_fullest_memory() {
    let machine = format!("{CASE}/machine.toml");
    let args = ["replay", CASE, "-m", &machine, "-m", "dgx-h100"];
    let text = run_for_output(&args);
    let row = "peak memory  17.0 GB 106.2 %  17.0 GB 21.2 %";
    assert!(has_line_of_words(&text, row), "{text}");
    assert!(
        text.contains("tight-2: out of memory: rank 0 allocates"),
        "{text}"
    );
    let required = [&args[..], &["--fit", "require"]].concat();
    assert_eq!(run_chakram(&required).status.code(), Some(3));
    let csv = run_for_output(&[&args[..], &["--format", "csv"]].concat());
    let ends = [
        "peak_memory_bytes,memory_capacity_bytes",
        ",17000000000,16000000000",
        ",17000000000,80000000000",
    ];
    for (line, end) in csv.lines().zip(ends) {
        assert!(line.ends_with(end), "{csv}");
    }
}

/// Tests the memory counters of rank 1 after each change, in GB.
#[test]
fn timeline_memory_counters_have_each_change() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.json");
    run_for_output(&["replay", CASE, "--timeline", path.to_str().unwrap()]);
    let picture: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let events = picture["traceEvents"].as_array().unwrap().iter();
    let counters = events.filter(|event| event["ph"] == "C" && event["pid"] == 1);
    let found: Vec<_> = counters
        .filter(|event| event["name"] == "memory")
        .map(|event| {
            let args = &event["args"];
            let gb = |class: &str| args[class].as_u64().unwrap() / 1_000_000_000;
            assert_eq!((gb("weights"), gb("optimizer")), (4, 2));
            let at = event["ts"].as_f64().unwrap();
            (at, gb("gradients"), gb("activations"), gb("temporary"))
        })
        .collect();
    let wanted = [
        (0.0, 0, 0, 0),
        (20.0, 0, 3, 1),
        (30.0, 4, 3, 1),
        (50.0, 4, 3, 1),
        (60.0, 4, 3, 1),
        (80.0, 4, 0, 0),
        (85.0, 0, 0, 0),
    ];
    assert_eq!(found, wanted);
}

/// Each rank has ten nodes. Each of its two micro-batches has a forward kernel, a backward kernel, a send and a
/// receive; the other two nodes belong to no micro-batch.
#[test]
fn nodes_are_found_by_their_labels() {
    let count = |labels: &[&str]| {
        let labels = labels.iter().flat_map(|label| ["--label", label]);
        let args: Vec<_> = ["inspect", CASE, "--list", "--format", "json"]
            .into_iter()
            .chain(labels)
            .collect();
        run_chakram_json(&args)["selected"].as_u64().unwrap()
    };
    assert_eq!(count(&["phase=backward"]), 4);
    assert_eq!(count(&["phase=forward", "phase=backward"]), 8);
    assert_eq!(
        count(&["phase=forward", "phase=backward", "micro_batch=1"]),
        4
    );
    assert_eq!(count(&["stage=1"]), 10);
    assert_eq!(count(&["micro_batch=0", "stage=1"]), 4);
    assert_eq!(count(&["phase=sideways"]), 0);
    assert_eq!(count(&["frees.gradients=4000000000"]), 2);
    assert_eq!(run_for_exit_code(&["inspect", CASE, "--label", "phase"]), 2);
}
