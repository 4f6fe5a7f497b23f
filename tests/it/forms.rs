//! Tests, from a shell, traces in forms other than the current `.et`: `chakram convert trace`, and commands that read
//! these forms.

use super::commands::{answer, chakram, code};
use chakram::trace::DecompressedTraceFile;
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use testkit::wire::{WireMessage, encode_file};

fn job(folder: &Path) -> String {
    let prefix = folder.join("job").display().to_string();
    answer(&[
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

fn at(folder: &Path, name: &str) -> String {
    folder.join(name).display().to_string()
}

#[test]
fn text_and_back_is_the_same_file_and_the_same_replay() {
    let folder = tempfile::tempdir().expect("there is room");
    let folder = folder.path();
    let prefix = job(folder);
    let text = at(folder, "text/t.jsonl.zst");
    let said = answer(&["convert", "trace", &prefix, "-o", &text]);
    assert!(
        said.contains("job.0.et (et): ") && said.contains(" nodes to "),
        "{said}"
    );
    let back = at(folder, "back/b.et");
    answer(&["convert", "trace", &at(folder, "text"), "-o", &back]);
    for rank in 0..2 {
        let before = std::fs::read(at(folder, &format!("job.{rank}.et"))).unwrap();
        assert!(std::fs::read(at(folder, &format!("back/b.{rank}.et"))).unwrap() == before);
    }
    let replay = |job: &str| {
        let args = [
            "replay", job, "-m", "dgx-h100", "--format", "csv", "--absent", "mirror",
        ];
        answer(&args)
    };
    assert_eq!(replay(&prefix), replay(&at(folder, "text")));
}

#[test]
fn one_file_goes_through_pipes() {
    let folder = tempfile::tempdir().expect("there is room");
    let folder = folder.path();
    job(folder);
    let whole = std::fs::read(at(folder, "job.0.et")).unwrap();
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
    std::fs::write(at(folder, "x"), &text).unwrap();
    answer(&[
        "convert",
        "trace",
        &at(folder, "x"),
        "-o",
        &at(folder, "y.et.gz"),
    ]);
    let back = DecompressedTraceFile::open_current_schema(&folder.join("y.et.gz")).unwrap();
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
        node.with_numbers(4, parents)
            .with_number(7, 10)
            .with_number(12, 0)
    };
    std::fs::write(
        at(folder, "old.0.et"),
        encode_file([node(1, &[]), node(2, &[1])]),
    )
    .unwrap();
    let graph = r#"{"workload_graph": [
        {"Id": 1, "Name": "op", "NodeType": 4, "data_deps": [], "runtime": 10},
        {"Id": 2, "Name": "op", "NodeType": 4, "data_deps": [1], "runtime": 10}]}"#;
    std::fs::write(at(folder, "pasted.0.json"), graph).unwrap();
    std::fs::write(at(folder, "pasted.groups.json"), "{}").unwrap();
    for job in ["old", "pasted", "pasted.0.json"] {
        let args = [
            "replay",
            &at(folder, job),
            "-m",
            "dgx-h100",
            "--format",
            "json",
        ];
        let report: Value = serde_json::from_str(&answer(&args)).unwrap();
        assert_eq!(report["makespan_ps"], 20_000_000, "{job}");
    }
    // Errors name the record of an old file, or the line of a text.
    let bad = node(3, &[9]).with_number(20, 0);
    std::fs::write(
        at(folder, "old.0.et"),
        encode_file([node(1, &[]), bad.with_number(3, 6).with_number(13, 1)]),
    )
    .unwrap();
    let error = chakram(&["replay", &at(folder, "old"), "-m", "dgx-h100"]).stderr;
    let error = String::from_utf8(error).unwrap();
    assert!(error.contains("old.0.et, record 1, byte "), "{error}");
    std::fs::write(
        at(folder, "pasted.0.json"),
        graph.replace("\"NodeType\": 4", "\"NodeType\": 5"),
    )
    .unwrap();
    let error = chakram(&["replay", &at(folder, "pasted"), "-m", "dgx-h100"]).stderr;
    let error = String::from_utf8(error).unwrap();
    assert!(
        error.contains("pasted.0.json, line 2, column 9, node 1: a send without"),
        "{error}"
    );
}

#[test]
fn the_generation_is_asked_for_where_nothing_tells_it() {
    let folder = tempfile::tempdir().expect("there is room");
    let folder = folder.path();
    let node = |id: u64| {
        WireMessage::default()
            .with_number(1, id)
            .with_bytes(2, "op")
            .with_number(3, 3)
    };
    let (old, new) = (at(folder, "old.0.et"), at(folder, "new.0.jsonl"));
    std::fs::write(&old, encode_file([node(1), node(2)])).unwrap();
    let args = ["convert", "trace", &old, "-o", &new];
    assert_eq!(code(&args), 2);
    let said = answer(&[&args[..], &["--generation", "0.0.2"]].concat());
    assert!(said.contains("(et of 0.0.2): 2 nodes"), "{said}");
    let text = std::fs::read_to_string(&new).unwrap();
    assert!(text.contains("\"type\":\"COMP_NODE\""), "{text}");
    assert_eq!(code(&[&args[..], &["--generation", "0.0.3"]].concat()), 2);
}

#[test]
fn damage_is_refused_and_salvaged_when_asked() {
    let folder = tempfile::tempdir().expect("there is room");
    let folder = folder.path();
    job(folder);
    let whole = std::fs::read(at(folder, "job.0.et")).unwrap();
    let cut = at(folder, "cut.0.et");
    std::fs::write(&cut, &whole[..whole.len() - 5]).unwrap();
    let out = at(folder, "out.0.et");
    let args = ["convert", "trace", &cut, "-o", &out];
    let refused = chakram(&args);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        error.contains("cut.0.et, record ") && error.contains("--salvage"),
        "{error}"
    );
    assert!(!Path::new(&out).exists());
    let said = answer(&[&args[..], &["--salvage"]].concat());
    assert!(
        said.contains("lost: ") && said.contains("in 1 places"),
        "{said}"
    );
    let json = answer(&[&args[..], &["--salvage", "--format", "json"]].concat());
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["schema"], "chakram.converted_traces.1");
    let salvage = &json["traces"][0]["salvage"];
    assert_eq!(salvage["lost"][0]["to_byte"], whole.len() - 5);
    assert_eq!(
        code(&["replay", &out, "-m", "dgx-h100", "--absent", "mirror"]),
        0
    );
    // The stream is truncated.
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&whole).unwrap();
    let packed = gzip.finish().unwrap();
    std::fs::write(&cut, &packed[..packed.len() - 12]).unwrap();
    assert_eq!(code(&args), 2);
    let said = answer(&[&args[..], &["--salvage"]].concat());
    assert!(
        said.contains("the compressed data are damaged or cut short"),
        "{said}"
    );
}

#[test]
fn usage_that_makes_no_sense_is_refused() {
    let folder = tempfile::tempdir().expect("there is room");
    let folder = folder.path();
    let prefix = job(folder);
    let out = |name: &str| at(folder, name);
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
        assert_eq!(code(args), 2, "{args:?}");
    }
    assert!(!Path::new(&out("x.et")).exists());
}

/// Commands read files in parallel. The reported error is always the first error in rank order,
/// even if another thread finds an error earlier.
#[test]
fn of_several_damaged_files_the_first_is_named() {
    let folder = tempfile::tempdir().expect("there is room");
    let prefix = at(folder.path(), "job");
    let words = "generate data-parallel --ranks 8 --no-links -m dgx-h100 -o";
    let words: Vec<&str> = words.split(' ').collect();
    answer(&[&words[..], &[&prefix]].concat());
    // The later files fail at their beginning, and the first file fails near its end.
    for (rank, kept) in [(2, 0.9), (3, 0.01), (6, 0.01), (7, 0.5)] {
        let file = format!("{prefix}.{rank}.et");
        let contents = std::fs::read(&file).expect("it was written");
        let kept = (contents.len() as f64 * kept) as usize;
        std::fs::write(&file, &contents[..kept]).expect("it can be written");
    }
    for _ in 0..8 {
        let output = chakram(&["replay", &prefix, "-m", "dgx-h100", "--no-verify"]);
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("job.2.et"), "{error}");
    }
}
