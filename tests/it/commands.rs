//! The program as a shell sees it: exit codes, the order of files, and what goes where.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn chakram(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_chakram"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(args)
        .output()
        .expect("the program was built")
}

fn code(args: &[&str]) -> i32 {
    let output = chakram(args);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let code = output.status.code().expect("it ends by itself");
    assert_eq!(code == 0, error.is_empty(), "{args:?}: {error}");
    code
}

#[test]
fn exit_codes_tell_done_from_stuck_from_bad_input() {
    assert_eq!(code(&["replay", "traces/data-parallel-8"]), 0);
    assert_eq!(code(&["replay", "traces/deadlock-2"]), 1);
    for bad in [
        &["replay", "no/such/folder"][..],
        &["replay", "traces/data-parallel-8", "--machine", "dgx"],
        &[
            "replay",
            "traces/data-parallel-8",
            "--machine",
            "README.md/x",
        ],
        &["replay", "traces/data-parallel-8", "--map", "0-3"],
        &["replay", "traces/data-parallel-8", "--delay", "9=1ms"],
        &["replay", "traces/data-parallel-8", "--table", "npus"],
        &["replay", "traces/data-parallel-8", "--ranks", "4"],
        &[
            "replay",
            "traces/data-parallel-8/job.3.et",
            "--machine",
            "dgx-h100",
        ],
        &[
            "generate",
            "collective",
            "broadcast",
            "--ranks",
            "4",
            "-m",
            "w-2d",
        ],
        &["generate", "chain", "--ranks", "1", "--nodes", "1"],
        &["nonsense"],
    ] {
        assert_eq!(code(bad), 2, "{bad:?}");
    }
}

#[test]
fn files_in_any_order_give_the_same_bytes() {
    let files: Vec<String> = (0..8)
        .map(|rank| format!("traces/data-parallel-8/job.{rank}.et"))
        .collect();
    for format in ["text", "json", "csv"] {
        let answers: Vec<_> = [0, 3, 5]
            .map(|first| {
                let mut args = vec!["replay"];
                args.extend(files.iter().cycle().skip(first).take(8).map(String::as_str));
                args.extend(["--format", format]);
                chakram(&args)
            })
            .into_iter()
            .map(|output| {
                assert!(output.status.success());
                output.stdout
            })
            .collect();
        assert!(
            answers.windows(2).all(|pair| pair[0] == pair[1]),
            "{format}"
        );
    }
}

#[test]
fn json_carries_versions_options_and_hashes() {
    let output = chakram(&["replay", "traces/data-parallel-8", "--format", "json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(report["schema"], "chakram.report.1");
    assert_eq!(report["tool_version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(report["options"]["compute"], "recorded");
    let inputs = report["inputs"].as_array().expect("a list");
    assert_eq!(inputs.len(), 9, "eight traces and a machine");
    for input in inputs {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(input["name"].as_str().expect("text"));
        let hash = blake3::hash(&std::fs::read(path).expect("inputs are files"));
        assert_eq!(input["blake3"], hash.to_hex().as_str());
    }
    for npu in report["npus"].as_array().expect("a list") {
        let parts = npu["time_ps"].as_object().expect("an object");
        let sum: u64 = parts
            .values()
            .map(|part| part.as_u64().expect("whole"))
            .sum();
        assert_eq!(report["makespan_ps"], sum, "the parts sum to the makespan");
    }
}

#[test]
fn generated_files_replay_as_without_files() {
    let folder = tempfile::tempdir().expect("there is room");
    let prefix = folder.path().join("job");
    let prefix = prefix.to_str().expect("a plain name");
    let pattern = ["collective", "all-gather", "--size", "1MB", "--ranks", "6"];
    let group = ["--group", "4,1,2", "--count", "2", "--skew", "3us"];
    let options: Vec<&str> = pattern.into_iter().chain(group).collect();
    let direct = [
        &["generate"][..],
        &options,
        &["-m", "w-2d", "--format", "csv"],
    ]
    .concat();
    let write = [&["generate"][..], &options, &["-o", prefix]].concat();
    assert!(chakram(&write).status.success());
    let groups = format!("{prefix}.groups.json");
    let read = [
        "replay", prefix, "--groups", &groups, "-m", "w-2d", "--format", "csv",
    ];
    let (direct, read) = (chakram(&direct), chakram(&read));
    assert!(direct.status.success() && read.status.success(), "{read:?}");
    assert_eq!(direct.stdout, read.stdout);
}
