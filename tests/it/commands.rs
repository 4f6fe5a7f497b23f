//! Tests the program from a shell: exit codes, the order of files, and outputs.

use chakram::trace::{
    AttributeValue as Field, CollectiveKind, DecompressedTraceFile, GroupName, NodeView, Op, Sink,
    TraceWriter,
};
use chakram::units::Span;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

pub fn run_chakram(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_chakram"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(args)
        .output()
        .expect("the program was built")
}

pub fn run_for_exit_code(args: &[&str]) -> i32 {
    let output = run_chakram(args);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let code = output.status.code().expect("it ends by itself");
    assert_eq!(code == 0, error.is_empty(), "{args:?}: {error}");
    code
}

/// Launches a job repeatedly, and two jobs on one machine. Also tests rejected options, and the JSON in both cases.
#[test]
fn jobs_are_launched_several_times_and_beside_one_another() {
    let trace = "traces/tight-2";
    for (bad, expected) in [
        (&["--repeat", "0"][..], "0 is not in 1..=1000000"),
        (&["--with", trace], "--on"),
        (
            &["--with", trace, "--on", "0-1"],
            "NPU 0 has ranks of two jobs",
        ),
        (&["--with", trace, "--on", "2-3"], "NPU 2"),
        (
            &["--repeat", "2", "--html", "x.html"],
            "--html shows one launch",
        ),
        (&["--starts", "Cargo.toml"], "Cargo.toml:1: "),
        (&["--starts", "no-such-file"], "no-such-file: cannot "),
        (
            &["--machine", "dgx-h100", "--with", trace, "--on", "4-6"],
            "--with tight-2: the map places 3 ranks, but the job has 2",
        ),
        (
            &[
                "--repeat",
                "2",
                "--machine",
                "dgx-a100",
                "--machine",
                "dgx-h100",
            ],
            "are for one machine",
        ),
    ] {
        let output = run_chakram(&[&["replay", trace][..], bad].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{bad:?}: {error}");
        assert!(error.contains(expected), "{bad:?}: {error}");
    }
    let json = |args: &[&str]| -> Value {
        let output = run_chakram(&[&["replay", trace, "--format", "json"][..], args].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {error}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let once = json(&["--machine", "dgx-h100"]);
    let twice = json(&["--machine", "dgx-h100", "--repeat", "2"]);
    let beside = ["--machine", "dgx-h100", "--with", trace, "--on", "6-7"];
    let beside = json(&beside);
    assert_eq!(twice["options"]["repeat"], 2);
    assert_eq!(twice["launches"][0]["end_ps"], once["makespan_ps"]);
    assert_eq!(twice["launches"][1]["end_ps"], twice["makespan_ps"]);
    for count in ["nodes", "messages", "collectives_analytical"] {
        let [once, twice] = [&once, &twice].map(|report| report[count].as_u64().unwrap());
        assert_eq!(twice, 2 * once, "{count}");
    }
    // The jobs share no links, so each job gets the same result as when it runs alone. The second job differs only in
    // its NPUs.
    let other = &beside["with"][0];
    assert_eq!(other["job"], "tight-2");
    for key in [
        "nodes",
        "messages",
        "makespan_ps",
        "mean_ps",
        "collectives",
        "operators",
    ] {
        assert_eq!(beside[key], once[key], "{key}");
        assert_eq!(other["report"][key], once[key], "{key}");
    }
    assert_eq!(other["report"]["npus"][1]["npu"], 7);
}

/// A report overwrites neither the traces of a second job nor the file of start times.
#[test]
fn replay_reports_do_not_overwrite_inputs_of_launches() {
    let folder = tempfile::tempdir().expect("a folder");
    for rank in 0..2 {
        let name = format!("job.{rank}.jsonl");
        let from = Path::new("traces/tight-2").join(&name);
        std::fs::copy(from, folder.path().join(name)).expect("it is copied");
    }
    let starts = folder.path().join("starts");
    std::fs::write(&starts, "0\n").expect("it is written");
    let inside = |name: &str| folder.path().join(name).display().to_string();
    for (option, read) in [
        (["--with", &inside("job"), "--on", "6-7"], "job.1.jsonl"),
        (["--starts", &inside("starts"), "--deps", "both"], "starts"),
    ] {
        let read = inside(read);
        let before = std::fs::read(&read).expect("it is there");
        let job = [
            "replay",
            "traces/tight-2",
            "--machine",
            "dgx-h100",
            "-o",
            &read,
        ];
        let output = run_chakram(&[&job[..], &option].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("this command reads the file"), "{error}");
        assert_eq!(std::fs::read(&read).expect("it is there"), before);
    }
}

/// There are two pairs of neighbours in a ring: one pair reduces 1 MB and the other 64 MB. In a ring of two, each
/// member sends half of its buffer twice over one link, which is the whole buffer in total. Each link counts once, and
/// its load is relative to the time until the longer reduction ends.
#[test]
fn links_of_several_jobs_are_counted_together_and_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = |name: &str| folder.path().join(name).display().to_string();
    for (name, size) in [("short", "1MB"), ("long", "64MB")] {
        let args = [
            "generate",
            "collective",
            "all-reduce",
            "--ranks",
            "2",
            "--size",
            size,
        ];
        assert_eq!(
            run_for_exit_code(&[&args[..], &["-o", &prefix(name)]].concat()),
            0
        );
    }
    let (short, long) = (prefix("short"), prefix("long"));
    let output = run_chakram(&[
        "replay",
        &short,
        "--machine",
        "tpu-v4",
        "--network",
        "links",
        "--with",
        &long,
        "--on",
        "2-3",
        "--links",
        "--format",
        "json",
    ]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let other = &report["with"][0]["report"];
    assert!(other["links"].is_null(), "counted twice");
    let until = other["makespan_ps"].as_u64().unwrap();
    assert!(until > report["makespan_ps"].as_u64().unwrap());
    assert_eq!(report["links"]["until_ps"], until);
    let rows = report["links"]["links"].as_array().unwrap();
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap();
    let mut bytes: Vec<u64> = rows.iter().map(|row| number(row, "bytes")).collect();
    bytes.sort_unstable();
    assert_eq!(bytes, [1_000_000, 1_000_000, 64_000_000, 64_000_000]);
    assert!(rows.iter().all(|row| number(row, "busy_ps") <= until));
}

#[test]
fn exit_codes_tell_done_from_stuck_from_bad_input() {
    assert_eq!(run_for_exit_code(&["replay", "traces/data-parallel-8"]), 0);
    assert_eq!(run_for_exit_code(&["replay", "traces/deadlock-2"]), 1);
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
        // Generated collectives have no recorded duration, and messages cannot reproduce one.
        &["replay", "traces/data-parallel-8", "--comm", "recorded"],
        &["replay", "traces/data-parallel-8", "--comm", "captured"],
        &[
            "replay",
            "traces/data-parallel-8",
            "--comm",
            "recorded",
            "--stepwise",
        ],
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
        assert_eq!(run_for_exit_code(bad), 2, "{bad:?}");
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
                run_chakram(&args)
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
    let output = run_chakram(&["replay", "traces/data-parallel-8", "--format", "json"]);
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
    assert!(run_chakram(&write).status.success());
    let groups = format!("{prefix}.groups.json");
    let read = [
        "replay", prefix, "--groups", &groups, "-m", "w-2d", "--format", "csv",
    ];
    let (direct, read) = (run_chakram(&direct), run_chakram(&read));
    assert!(direct.status.success() && read.status.success(), "{read:?}");
    assert_eq!(direct.stdout, read.stdout);
}

/// Writes traces of two ranks with captures that ended at 100 and 160 us. Rank 0 computes for 50
/// us. Rank 1 computes for 90 us, starting at 10 us. Then both all-reduce for 20 us, after rank 0
/// has waited for 30 us.
pub fn write_two_rank_capture(folder: &Path, captured: bool) -> String {
    let us = Span::from_us;
    for (rank, end, delay, compute, wait) in [(0, 100, 0, 50, 30), (1, 160, 10, 90, 0)] {
        let captured_ns = [("captured_ns", Field::Uint(end * 1000))];
        let attributes = if captured { &captured_ns[..] } else { &[] };
        let mut writer =
            TraceWriter::start_with_metadata(Vec::new(), attributes).expect("it is a vector");
        let kernel = Op::Compute {
            flops: 0,
            bytes: 0,
            dtype: None,
        };
        let call = Op::Collective {
            kind: CollectiveKind::AllReduce,
            bytes: 1_000_000,
            group: GroupName::World,
            root: None,
            dimensions: None,
            host: false,
        };
        let kernel = NodeView {
            recorded: us(compute),
            delay: us(delay),
            ..NodeView::new(1, "mm", kernel)
        };
        let call = NodeView {
            recorded: us(20),
            wait: us(wait),
            ..NodeView::new(2, "all_reduce", call)
        };
        writer.receive_node(&kernel, &[]).expect("it is a vector");
        writer.receive_node(&call, &[1]).expect("it is a vector");
        let file = folder.join(format!("job.{rank}.et"));
        std::fs::write(file, writer.into_unflushed_sink()).expect("there is room");
    }
    folder
        .join("job")
        .to_str()
        .expect("a plain name")
        .to_owned()
}

/// Returns `true` if a line of `text` consists of these words.
pub fn has_line_of_words(text: &str, line: &str) -> bool {
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    text.lines().any(|found| words(found) == words(line))
}

pub fn run_for_output(args: &[&str]) -> String {
    let output = run_chakram(args);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("reports are text")
}

/// As recorded, both ranks begin the transfer at 10 + 90 us, and end at 120 us. This is 20 % later
/// than rank 0's capture, and 25 % earlier than rank 1's. Rank 0 waits for 50 us of the makespan of
/// 120 us. As captured, rank 0 ends at 50 + 30 + 20 us, exactly when its capture ended.
#[test]
fn a_replay_is_held_against_its_capture() {
    let folder = tempfile::tempdir().expect("there is room");
    let prefix = write_two_rank_capture(folder.path(), true);
    let replay = |comm: &str, more: &[&str]| {
        let args = ["replay", &prefix, "-m", "dgx-h100", "--comm", comm];
        run_for_output(&[&args[..], more].concat())
    };
    let text = replay("recorded", &[]);
    for line in [
        "MAKESPAN  120.000 us  kernels as recorded, communication as recorded",
        "captured  160.000 us (slowest rank 1); replay -25.00 %",
        "1 collective, as recorded",
        "host  5.000 us  4.2 %  0 (rank 0)  10.000 us (rank 1)",
        "REPLAY AGAINST CAPTURE  finish  captured  difference",
        "0  120.000 us  100.000 us  +20.00 %",
        "1  120.000 us  160.000 us  -25.00 %",
        // 1 MB in 20 us is 50 GB/s. Between two members, half of the data is sent twice, which is
        // also 50 GB/s.
        "all-reduce, all 2 ranks  1  1.0 MB  20.000 us  25.000 us  50.0",
        "as recorded; 100.0 % of the wait is for rank 1",
        "bytes: mean buffer of a call; transfer: longest recorded, all calls; wait: mean of members",
    ] {
        assert!(has_line_of_words(&text, line), "{line:?} in\n{text}");
    }
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );

    let text = replay("captured", &[]);
    for line in [
        "captured  160.000 us (slowest rank 1); replay -25.00 %",
        "0  100.000 us  100.000 us  +0.00 %",
        "all-reduce, all 2 ranks  1  1.0 MB  20.000 us  15.000 us  50.0",
        "as captured",
    ] {
        assert!(has_line_of_words(&text, line), "{line:?} in\n{text}");
    }

    let csv = replay("recorded", &["--format", "csv", "--table", "ranks"]);
    let columns = |line: &str| {
        line.split(',')
            .skip(10)
            .take(3)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let rows: Vec<_> = csv.lines().map(columns).collect();
    assert_eq!(rows[0], ["finish_ps", "captured_ps", "difference_percent"]);
    assert_eq!(rows[1], ["120000000", "100000000", "20.0000"]);
    assert_eq!(rows[2], ["120000000", "160000000", "-25.0000"]);

    let json = replay("recorded", &["--format", "json"]);
    let report: Value = serde_json::from_str(&json).expect("it is JSON");
    assert_eq!(report["options"]["comm"], "recorded");
    assert_eq!(report["captured_ps"], 160_000_000);
    assert_eq!(report["collectives_recorded"], 1);
    assert_eq!(report["communication"]["recorded"], 2);
    assert_eq!(report["npus"][1]["finish_ps"], 120_000_000);
    assert_eq!(report["npus"][1]["captured_ps"], 160_000_000);
    assert_eq!(report["npus"][1]["difference_percent"], -25.0);
    assert_eq!(report["collectives"][0]["algorithm"], "as recorded");

    // A capture without an end time is replayed without these comparisons.
    let folder = tempfile::tempdir().expect("there is room");
    let prefix = write_two_rank_capture(folder.path(), false);
    let text = run_for_output(&["replay", &prefix, "-m", "dgx-h100"]);
    assert!(!text.contains("capture"), "{text}");
    let csv = run_for_output(&["replay", &prefix, "-m", "dgx-h100", "--format", "csv"]);
    assert!(
        csv.lines().skip(1).all(|line| line.ends_with(",,,0,0")),
        "{csv}"
    );
}

#[test]
fn conversions_write_where_they_are_told() {
    let folder = tempfile::tempdir().expect("there is room");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let captures = "traces/ddp-resnet18/capture";
    let pattern = format!("{captures}/*.json.zst");
    // The outputs are a prefix, an existing folder, a new folder (marked by a separator at the
    // end), and compressed traces.
    let plain = at("run");
    run_for_output(&["convert", "pytorch", captures, "-o", &plain]);
    let there = folder.path().display().to_string();
    run_for_output(&["convert", "pytorch", &pattern, "-o", &there]);
    let new = at("new/");
    let json = run_for_output(&[
        "convert", "pytorch", captures, "-o", &new, "-z", "gz", "--format", "json",
    ]);
    let read = |name: &str| {
        DecompressedTraceFile::open_as_current_schema(&folder.path().join(name))
            .expect("it was written")
    };
    for rank in 0..2 {
        let first = read(&format!("run.{rank}.et"));
        for other in [format!("job.{rank}.et"), format!("new/job.{rank}.et.gz")] {
            assert!(read(&other).as_slice() == first.as_slice(), "{other}");
        }
    }
    let summary: Value = serde_json::from_str(&json).expect("it is JSON");
    assert_eq!(summary["schema"], "chakram.conversion.1");
    assert_eq!(summary["collectives"]["all-reduce"], 3);
    assert_eq!(summary["ranks"][1]["linked"], 2656);
}

/// An NPU with 32 lanes has 40 streams, so 8 streams share a lane.
#[test]
fn lanes_that_are_shared_are_said() {
    let folder = tempfile::tempdir().expect("there is room");
    let mut writer = TraceWriter::new(Vec::new()).expect("it is a vector");
    for stream in 0..40 {
        let work = Op::Compute {
            flops: 0,
            bytes: 0,
            dtype: None,
        };
        let node = NodeView {
            lane: Some(stream),
            recorded: Span::from_us(1),
            ..NodeView::new(stream as u64 + 1, "kernel", work)
        };
        writer.receive_node(&node, &[]).expect("it is a vector");
    }
    let file = folder.path().join("job.0.et");
    std::fs::write(&file, writer.into_unflushed_sink()).expect("there is room");
    let file = file.display().to_string();
    let text = run_for_output(&["replay", &file, "-m", "dgx-h100", "--ranks", "1"]);
    assert!(
        text.contains("8 lanes of the traces share a lane"),
        "{text}"
    );
    let roomy = "traces/ddp-resnet18/machine.toml";
    let text = run_for_output(&["replay", &file, "-m", roomy, "--ranks", "1"]);
    assert!(!text.contains("share a lane"), "{text}");
}
