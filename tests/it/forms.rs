//! Tests, from a shell, traces in forms other than the current `.et`: `chakram convert trace`, and commands that read
//! these forms.

use super::commands::{run_chakram, run_for_exit_code, run_for_output};
use chakram::trace::DecompressedTraceFile;
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use testkit::wire::{WireMessage, encode_file};

fn generate_data_parallel_job(folder: &Path) -> String {
    let prefix = folder.join("job").display().to_string();
    run_for_output(&[
        "generate",
        "data-parallel",
        "--ranks",
        "2",
        "-m",
        "dgx-h100",
        "-o",
        &prefix,
    ]);
    prefix
}

fn join_path(folder: &Path, name: &str) -> String {
    folder.join(name).display().to_string()
}

#[test]
fn text_and_back_is_the_same_file_and_the_same_replay() {
    let folder = tempfile::tempdir().expect("there is room");
    let folder = folder.path();
    let prefix = generate_data_parallel_job(folder);
    let text = join_path(folder, "text/t.jsonl.zst");
    let said = run_for_output(&["convert", "trace", &prefix, "-o", &text]);
    assert!(
        said.contains("job.0.et (et): ") && said.contains(" nodes to "),
        "{said}"
    );
    let back = join_path(folder, "back/b.et");
    run_for_output(&["convert", "trace", &join_path(folder, "text"), "-o", &back]);
    for rank in 0..2 {
        let before = std::fs::read(join_path(folder, &format!("job.{rank}.et"))).unwrap();
        assert!(std::fs::read(join_path(folder, &format!("back/b.{rank}.et"))).unwrap() == before);
    }
    let replay = |job: &str| {
        let args = [
            "replay", job, "-m", "dgx-h100", "--format", "csv", "--absent", "mirror",
        ];
        run_for_output(&args)
    };
    assert_eq!(replay(&prefix), replay(&join_path(folder, "text")));
}

#[test]
fn a_single_trace_is_converted_through_pipes() {
    let folder = tempfile::tempdir().expect("there is room");
    let folder = folder.path();
    generate_data_parallel_job(folder);
    let whole = std::fs::read(join_path(folder, "job.0.et")).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_chakram"))
        .args(["convert", "trace", "-", "-o", "-", "--to", "jsonl"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program was built");
    child.stdin.take().unwrap().write_all(&whole).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("standard input (et): "), "{said}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("{\"schema\":\"chakram.trace.1\""),
        "{text}"
    );
    std::fs::write(join_path(folder, "x"), &text).unwrap();
    run_for_output(&[
        "convert",
        "trace",
        &join_path(folder, "x"),
        "-o",
        &join_path(folder, "y.et.gz"),
    ]);
    let back = DecompressedTraceFile::open_as_current_schema(&folder.join("y.et.gz")).unwrap();
    assert!(back.as_slice() == whole);
}

#[test]
fn old_and_pasted_traces_replay_without_being_converted() {
    let folder = tempfile::tempdir().expect("there is room");
    let folder = folder.path();
    let node = |id: u64, parents: &[u64]| {
        let node = WireMessage::default()
            .with_number(1, id)
            .with_bytes(2, "op")
            .with_number(3, 3);
        node.with_repeated_number(4, parents)
            .with_number(7, 10)
            .with_number(12, 0)
    };
    std::fs::write(
        join_path(folder, "old.0.et"),
        encode_file([node(1, &[]), node(2, &[1])]),
    )
    .unwrap();
    let graph = r#"{"workload_graph": [
        {"Id": 1, "Name": "op", "NodeType": 4, "data_deps": [], "runtime": 10},
        {"Id": 2, "Name": "op", "NodeType": 4, "data_deps": [1], "runtime": 10}]}"#;
    std::fs::write(join_path(folder, "pasted.0.json"), graph).unwrap();
    std::fs::write(join_path(folder, "pasted.groups.json"), "{}").unwrap();
    for job in ["old", "pasted", "pasted.0.json"] {
        let args = [
            "replay",
            &join_path(folder, job),
            "-m",
            "dgx-h100",
            "--format",
            "json",
        ];
        let report: Value = serde_json::from_str(&run_for_output(&args)).unwrap();
        assert_eq!(report["makespan_ps"], 20_000_000, "{job}");
    }
    // Errors name the record of an old file, or the line of a text.
    let bad = node(3, &[9]).with_number(20, 0);
    std::fs::write(
        join_path(folder, "old.0.et"),
        encode_file([node(1, &[]), bad.with_number(3, 6).with_number(13, 1)]),
    )
    .unwrap();
    let error = run_chakram(&["replay", &join_path(folder, "old"), "-m", "dgx-h100"]).stderr;
    let error = String::from_utf8(error).unwrap();
    assert!(error.contains("old.0.et, record 1, byte "), "{error}");
    std::fs::write(
        join_path(folder, "pasted.0.json"),
        graph.replace("\"NodeType\": 4", "\"NodeType\": 5"),
    )
    .unwrap();
    let error = run_chakram(&["replay", &join_path(folder, "pasted"), "-m", "dgx-h100"]).stderr;
    let error = String::from_utf8(error).unwrap();
    assert!(
        error.contains("pasted.0.json, line 2, column 9, node 1: a send without"),
        "{error}"
    );
}

#[test]
fn a_trace_of_unclear_format_generation_needs_an_option() {
    let folder = tempfile::tempdir().expect("there is room");
    let folder = folder.path();
    let node = |id: u64| {
        WireMessage::default()
            .with_number(1, id)
            .with_bytes(2, "op")
            .with_number(3, 3)
    };
    let (old, new) = (
        join_path(folder, "old.0.et"),
        join_path(folder, "new.0.jsonl"),
    );
    std::fs::write(&old, encode_file([node(1), node(2)])).unwrap();
    let args = ["convert", "trace", &old, "-o", &new];
    assert_eq!(run_for_exit_code(&args), 2);
    let said = run_for_output(&[&args[..], &["--generation", "0.0.2"]].concat());
    assert!(said.contains("(et of 0.0.2): 2 nodes"), "{said}");
    let text = std::fs::read_to_string(&new).unwrap();
    assert!(text.contains("\"type\":\"COMP_NODE\""), "{text}");
    assert_eq!(
        run_for_exit_code(&[&args[..], &["--generation", "0.0.3"]].concat()),
        2
    );
}

#[test]
fn damage_is_refused_and_salvaged_when_asked() {
    let folder = tempfile::tempdir().expect("there is room");
    let folder = folder.path();
    generate_data_parallel_job(folder);
    let whole = std::fs::read(join_path(folder, "job.0.et")).unwrap();
    let cut = join_path(folder, "cut.0.et");
    std::fs::write(&cut, &whole[..whole.len() - 5]).unwrap();
    let out = join_path(folder, "out.0.et");
    let args = ["convert", "trace", &cut, "-o", &out];
    let refused = run_chakram(&args);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        error.contains("cut.0.et, record ") && error.contains("--salvage"),
        "{error}"
    );
    assert!(!Path::new(&out).exists());
    let said = run_for_output(&[&args[..], &["--salvage"]].concat());
    assert!(
        said.contains("lost: ") && said.contains("in 1 places"),
        "{said}"
    );
    let json = run_for_output(&[&args[..], &["--salvage", "--format", "json"]].concat());
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["schema"], "chakram.converted_traces.1");
    let salvage = &json["traces"][0]["salvage"];
    assert_eq!(salvage["lost"][0]["to_byte"], whole.len() - 5);
    assert_eq!(
        run_for_exit_code(&["replay", &out, "-m", "dgx-h100", "--absent", "mirror"]),
        0
    );
    // The stream is truncated.
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&whole).unwrap();
    let packed = gzip.finish().unwrap();
    std::fs::write(&cut, &packed[..packed.len() - 12]).unwrap();
    assert_eq!(run_for_exit_code(&args), 2);
    let said = run_for_output(&[&args[..], &["--salvage"]].concat());
    assert!(
        said.contains("the compressed data are damaged or cut short"),
        "{said}"
    );
}

#[test]
fn trace_conversions_with_invalid_arguments_are_refused() {
    let folder = tempfile::tempdir().expect("there is room");
    let folder = folder.path();
    let prefix = generate_data_parallel_job(folder);
    let out = |name: &str| join_path(folder, name);
    std::fs::write(out("groups.json"), "{\"1\": [0]}").unwrap();
    std::fs::write(out("empty.0.et"), "").unwrap();
    for args in [
        &["convert", "trace", &prefix, "-o", "-", "--to", "et"][..],
        &["convert", "trace", &prefix, "-o", &out("x")],
        &["convert", "trace", &out("groups.json"), "-o", &out("x.et")],
        &["convert", "trace", &out("empty.0.et"), "-o", &out("x.et")],
        &[
            "convert",
            "trace",
            &out("job.0.et"),
            "-o",
            &out("x.et"),
            "--keep-dangling",
        ],
    ] {
        assert_eq!(run_for_exit_code(args), 2, "{args:?}");
    }
    assert!(!Path::new(&out("x.et")).exists());
}

/// Commands read files in parallel. The reported error is always the first error in rank order,
/// even if another thread finds an error earlier.
#[test]
fn of_several_damaged_files_the_first_is_named() {
    let folder = tempfile::tempdir().expect("there is room");
    let prefix = join_path(folder.path(), "job");
    let words = "generate data-parallel --ranks 8 --no-links -m dgx-h100 -o";
    let words: Vec<&str> = words.split(' ').collect();
    run_for_output(&[&words[..], &[&prefix]].concat());
    // The later files fail at their beginning, and the first file fails near its end.
    for (rank, kept) in [(2, 0.9), (3, 0.01), (6, 0.01), (7, 0.5)] {
        let file = format!("{prefix}.{rank}.et");
        let contents = std::fs::read(&file).expect("it was written");
        let kept = (contents.len() as f64 * kept) as usize;
        std::fs::write(&file, &contents[..kept]).expect("it can be written");
    }
    for _ in 0..8 {
        let output = run_chakram(&["replay", &prefix, "-m", "dgx-h100", "--no-verify"]);
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("job.2.et"), "{error}");
    }
}
