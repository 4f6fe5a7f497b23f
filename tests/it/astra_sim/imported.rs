//! Imports machines with `chakram machine import`, and compares them with ASTRA-sim's own models on the same inputs.

use super::product::{self, run_on_all_cores};
use crate::commands::run_chakram;
use crate::corpus::unpack_cases_in_memory;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Runs the program in `folder`.
fn run_chakram_in_folder(folder: &Path, words: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_chakram"));
    let output = program.current_dir(folder).args(words).output();
    output.expect("the program was built")
}

/// Returns the makespan of a replay of the traces `prefix` on `machine.toml`, in picoseconds.
fn replay_makespan(folder: &Path, prefix: &str) -> u64 {
    let words = ["replay", prefix, "-m", "machine.toml", "--format", "json"];
    let output = run_chakram_in_folder(folder, &words);
    let error = String::from_utf8_lossy(&output.stderr);
    let report: Result<Value, _> = serde_json::from_slice(&output.stdout);
    let report = report.unwrap_or_else(|_| panic!("{}: {error}", folder.display()));
    report["makespan_ps"].as_u64().expect("it completed")
}

/// Returns the time of the last completion in ASTRA-sim's own models, in picoseconds.
fn simulate_original_makespan(folder: &Path, args: &[String], quirks: &str) -> u64 {
    let quirks = format!("--quirks={quirks}");
    let ran = product::run_chakram_astra_sim(folder, args, &[&quirks]);
    let last = ran.finish.values().map(|(finish, _)| finish * 1000).max();
    last.unwrap_or_else(|| panic!("{}: {}", folder.display(), ran.error))
}

const FILES: [&str; 5] = [
    "unaware",
    "--workload-configuration=all_reduce",
    "--system-configuration=s.json",
    "--network-configuration=n.yml",
    "--remote-memory-configuration=memory.json",
];

/// Eight NPUs all-reduce 2^20 bytes. The machine file expresses the whole configuration, so
/// `chakram astra-sim` gives the same time with all its quirks. At 0.3125 x 2^30 bytes/s, 2^17
/// bytes take 390,625 ns, a whole number.
#[test]
fn imported_collectives_take_astra_sim_time_if_fully_expressed() {
    for (network, algorithms, expected) in [
        // A ring has 14 steps of 2^17 bytes, each with 500 ns of latency.
        (
            "topology: [Ring]\nnpus_count: [8]\nbandwidth: [0.3125]\nlatency: [500]\n",
            r#"["ring"]"#,
            14 * (390_625 + 500),
        ),
        // The fully connected dimension has a scatter and a gather of 2^18 bytes over each link,
        // with 100 ns each. Between the two are two steps of 2^17 bytes through a switch, each over
        // two links of 200 ns.
        (
            "topology: [FullyConnected, Switch]\nnpus_count: [4, 2]\nbandwidth: [0.3125, 0.3125]\nlatency: [100, 200]\n",
            r#"["direct", "ring"]"#,
            2 * (781_250 + 100) + 2 * (390_625 + 400),
        ),
        // Halving-doubling through a switch sends 2^19, 2^18 and 2^17 bytes, and the same on the way back, with 200 ns
        // each.
        (
            "topology: [Switch]\nnpus_count: [8]\nbandwidth: [0.3125]\nlatency: [100]\n",
            r#"["halvingDoubling"]"#,
            2 * (7 * 390_625 + 3 * 200),
        ),
    ] {
        let folder = tempfile::tempdir().expect("there is room");
        for entry in std::fs::read_dir("traces/astra-sim-8").expect("it is there") {
            let path = entry.expect("it can be listed").path();
            let copy = folder.path().join(path.file_name().expect("a name"));
            std::fs::copy(&path, copy).expect("there is room");
        }
        let system = format!(
            r#"{{"preferred-dataset-splits": 1, "endpoint-delay": 0, "collective-optimization": "localBWAware",
                "all-reduce-implementation": {algorithms}}}"#
        );
        std::fs::write(folder.path().join("s.json"), system).expect("there is room");
        std::fs::write(folder.path().join("n.yml"), network).expect("there is room");
        let output = run_chakram_in_folder(
            folder.path(),
            &[
                "machine",
                "import",
                "s.json",
                "n.yml",
                "memory.json",
                "-o",
                "machine.toml",
            ],
        );
        assert!(output.status.success(), "{output:?}");
        let ours = replay_makespan(folder.path(), "all_reduce");
        // A bandwidth divided by three gives times that are not whole ns.
        assert_eq!((ours + 500) / 1000, expected, "{network}");
        let theirs = simulate_original_makespan(folder.path(), &FILES.map(str::to_owned), "all");
        assert_eq!(theirs, expected * 1000, "{network}");
        let checked = run_chakram_in_folder(folder.path(), &["machine", "check", "machine.toml"]);
        assert!(checked.status.success(), "{checked:?}");
    }
}

/// Substrings of the notes about collectives that run differently from ASTRA-sim's, whatever the inputs.
const OTHERWISE: [&str; 7] = [
    "-implementation`: ",
    "-custom`: ",
    "`collective-optimization`: an",
    "`model-shared-bus`: ",
    "each way round at once",
    "`replay-only`",
    "`per-node",
];

/// Apart from the effects that the notes name (endpoint delays, reductions and quirks), every collective in the
/// original's own cases takes as long as in ASTRA-sim's models.
#[test]
fn collectives_without_notes_take_as_long_as_in_astra_sim() {
    let Some(cases) = unpack_cases_in_memory() else {
        return;
    };
    let [equal, noted] = [const { AtomicU32::new(0) }; 2];
    let faults = Mutex::new(Vec::new());
    run_on_all_cores(cases.iter(), |(name, case)| {
        let text = |file: &str| String::from_utf8(case[file].clone()).expect("it is text");
        let expected: Value = serde_json::from_slice(&case["expect.json"]).expect("it is JSON");
        let args: Vec<String> = text("args.txt")
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        let kinds = ["_ar_", "_ag_", "_rs_", "_a2a_"];
        let is_collective = kinds.iter().any(|kind| name.contains(kind));
        let ranks = case.keys().filter(|file| file.ends_with(".et")).count();
        if !name.starts_with("u_") || !is_collective || expected["status"] != "ok" {
            return;
        }
        // Other flags have no equivalent in the machine file.
        if args.len() > 5 || ranks > 32 {
            return;
        }
        let folder = tempfile::tempdir().expect("there is room");
        for (file, bytes) in case {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("there is room");
            std::fs::write(path, bytes).expect("there is room");
        }
        let output = run_chakram_in_folder(
            folder.path(),
            &[
                "machine",
                "import",
                "network.yml",
                "system.json",
                "memory.json",
                "-o",
                "machine.toml",
            ],
        );
        let notes = String::from_utf8_lossy(&output.stderr);
        if OTHERWISE.iter().any(|part| notes.contains(part)) {
            noted.fetch_add(1, Relaxed);
            return;
        }
        let mut system: Value = serde_json::from_str(&text("system.json")).expect("it is JSON");
        let keys = system.as_object_mut().expect("it is an object");
        if notes.contains("`endpoint-delay`") {
            keys.insert("endpoint-delay".to_owned(), 0.into());
        }
        if notes.contains("`local-mem-bw`") {
            keys.remove("local-mem-bw");
        }
        let path = folder.path().join("system.json");
        std::fs::write(path, system.to_string()).expect("there is room");
        let list = notes
            .split("`quirks`: ")
            .nth(1)
            .and_then(|text| text.split(';').next());
        let list = list.expect("some quirks always matter").split(", ");
        let quirks = list.fold("all".to_owned(), |all, one| format!("{all},-{one}"));
        let ours = replay_makespan(folder.path(), "wl/wl");
        let theirs = simulate_original_makespan(folder.path(), &args, &quirks);
        // `chakram astra-sim` prints whole ns, but times at fractional bandwidths are not whole ns.
        match ours.abs_diff(theirs) < 1000 {
            true => drop(equal.fetch_add(1, Relaxed)),
            false => {
                let fault = format!("{name}: {ours} for {theirs}, {quirks}");
                faults.lock().expect("nobody panics").push(fault);
            }
        }
    });
    let faults = faults.into_inner().expect("nobody panics");
    println!("{equal:?} are equal, {noted:?} are said to differ");
    assert!(
        faults.is_empty(),
        "{} differ:\n{}",
        faults.len(),
        faults.join("\n")
    );
    assert!(equal.into_inner() > 60, "too few cases");
}

#[test]
fn machine_import_refuses_wrong_or_repeated_files() {
    let refused = |words: &[&str]| {
        let output = run_chakram(words);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let network = "traces/astra-sim-8/network.yml";
    let error = refused(&["machine", "import", "traces/astra-sim-8/system.json"]);
    assert!(error.contains("needs ASTRA-sim's network file"), "{error}");
    let error = refused(&["machine", "import", network, network]);
    assert!(error.contains("expected one file of each"), "{error}");
    let error = refused(&["machine", "import", "traces/tp-mlp/machine.toml"]);
    assert!(
        error.contains("this is not an input file of ASTRA-sim"),
        "{error}"
    );
}
