//! Tests `chakram diff` from a shell.

use crate::commands::{run_chakram, run_for_output};
use chakram::internals::FrameCursor;
use chakram::internals::proto::attribute_proto::Value as Field;
use chakram::internals::proto::{GlobalMetadata, Node};
use prost::Message;
use serde_json::Value;
use std::path::{Path, PathBuf};

const CASE: &str = "traces/data-parallel-8";
const RANKS: u32 = 8;

/// Returns the nodes of one rank of the case.
fn read_case_nodes(rank: u32) -> Vec<Node> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(CASE);
    let file = chakram::trace::DecompressedTraceFile::open_as_current_schema(
        &path.join(format!("job.{rank}.et")),
    );
    let file = file.expect("the case is there");
    let mut frames = FrameCursor::new(file.as_slice());
    let mut nodes = Vec::new();
    while let Some(record) = frames.next_record().unwrap() {
        if record.number > 0 {
            nodes.push(Node::decode(record.bytes).unwrap());
        }
    }
    nodes
}

/// Writes a job with the case's ranks as `change` modifies them. If `change` returns `false`, the rank is omitted.
fn write_changed_job(folder: &Path, change: impl Fn(u32, &mut Vec<Node>) -> bool) -> PathBuf {
    for rank in 0..RANKS {
        let mut nodes = read_case_nodes(rank);
        if change(rank, &mut nodes) {
            let mut bytes = GlobalMetadata::default().encode_length_delimited_to_vec();
            for node in &nodes {
                bytes.extend(node.encode_length_delimited_to_vec());
            }
            std::fs::write(folder.join(format!("job.{rank}.et")), bytes).unwrap();
        }
    }
    folder.to_owned()
}

/// Runs `chakram diff` on the case and `other`. Returns the exit code, the output and the errors.
fn run_diff_of_case_and_other(other: &Path, more: &[&str]) -> (i32, String, String) {
    let other = other.to_str().unwrap();
    let output = run_chakram(&[&["diff", CASE, other], more].concat());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn diff_with_case_json(other: &Path, more: &[&str]) -> Value {
    let (code, text, error) =
        run_diff_of_case_and_other(other, &[&["--format", "json"], more].concat());
    assert_eq!((code, &*error), (0, ""));
    serde_json::from_str(&text).unwrap()
}

fn attribute_value_mut<'n>(nodes: &'n mut [Node], at: usize, name: &str) -> &'n mut Option<Field> {
    let attr = nodes[at].attr.iter_mut().find(|attr| attr.name == name);
    &mut attr.expect("the case's nodes have it").value
}

/// Returns the index of the first node with this attribute.
fn find_node_with_attribute(nodes: &[Node], name: &str) -> usize {
    let has = |node: &Node| node.attr.iter().any(|attr| attr.name == name);
    nodes.iter().position(has).expect("the case has one")
}

#[test]
fn a_job_and_itself_do_not_differ() {
    let text = run_for_output(&["diff", CASE, CASE, "--fail-on", "any", "--threshold", "0%"]);
    assert!(
        text.contains("8 ranks in both, 8 of them identical"),
        "{text}"
    );
    assert!(text.ends_with("no differences\n"), "{text}");
    // The other job has other node ids, and another order of records.
    let folder = tempfile::tempdir().unwrap();
    let other = write_changed_job(folder.path(), |_, nodes| {
        for node in nodes.iter_mut() {
            node.id = 1000 - node.id;
            for dep in node.data_deps.iter_mut().chain(&mut node.ctrl_deps) {
                *dep = 1000 - *dep;
            }
        }
        nodes.reverse();
        true
    });
    let (code, text, error) = run_diff_of_case_and_other(&other, &["--fail-on", "any"]);
    assert_eq!((code, &*error), (0, ""));
    assert!(text.contains("no differences"), "{text}");
    let found = diff_with_case_json(&other, &[]);
    assert_eq!(found["schema"], "chakram.diff.1");
    assert_eq!(found["ranks"]["compared"].as_array().unwrap().len(), 8);
    assert_eq!(found["differences"].as_array().unwrap().len(), 0);
}

#[test]
fn the_same_change_in_several_ranks_is_told_once() {
    let folder = tempfile::tempdir().unwrap();
    let other = write_changed_job(folder.path(), |rank, nodes| {
        let at = find_node_with_attribute(nodes, "comm_size");
        // All ranks except 2 have 1,000 bytes more, rank 2 has another name, and rank 7 is missing.
        match rank {
            2 => nodes[at].name = "other".to_owned(),
            _ => match attribute_value_mut(nodes, at, "comm_size") {
                Some(Field::Int64Val(bytes)) => *bytes += 1000,
                Some(Field::Uint64Val(bytes)) => *bytes += 1000,
                value => panic!("{value:?}"),
            },
        }
        rank != 7
    });
    let found = diff_with_case_json(&other, &[]);
    assert_eq!(found["ranks"]["only_before"], serde_json::json!([7]));
    let lines = found["differences"].as_array().unwrap();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(lines[0]["field"], "name");
    assert_eq!(lines[0]["after"], "other");
    assert_eq!(lines[0]["ranks"], serde_json::json!([2]));
    let largest = found["largest"].as_array().unwrap();
    assert_eq!(largest.len(), 1, "{largest:?}");
    assert_eq!(largest[0]["ranks"], serde_json::json!([0, 1, 3, 4, 5, 6]));
    let bytes = &largest[0];
    assert_eq!(
        bytes["after"].as_u64().unwrap() - bytes["before"].as_u64().unwrap(),
        1000
    );
    // Six ranks have 1,000 bytes more each, and the seventh common rank does not.
    assert_eq!(found["total"]["bytes"]["change"], 6000);
    assert_eq!(found["counts"]["bytes"], 6);
    assert_eq!(
        found["differs"],
        serde_json::json!({"structure": true, "time": false, "bytes": true})
    );

    let (code, text, _) = run_diff_of_case_and_other(&other, &[]);
    assert_eq!(code, 0);
    for expected in [
        "only in traces/data-parallel-8: rank 7",
        "6 ranks (0-1, 3-6)",
        "name 1",
    ] {
        assert!(text.contains(expected), "{expected}:\n{text}");
    }
    // Lines in a pipe do not break.
    let whole = "in 6 ranks (0-1, 3-6): bytes +1000 B, 100.7 MB → 100.7 MB (+0.00 %)\n";
    assert!(text.contains(whole), "{text}");
    for threads in ["1", "3"] {
        assert_eq!(
            run_diff_of_case_and_other(&other, &["--threads", threads]).1,
            text
        );
    }
    let (_, table, _) = run_diff_of_case_and_other(&other, &["--format", "csv"]);
    let rows: Vec<_> = table.lines().collect();
    assert_eq!(rows.len(), 3, "{table}");
    assert!(
        rows[1].starts_with("structure,field changed,name,"),
        "{table}"
    );
    assert!(rows[2].starts_with("bytes,field changed,bytes,"), "{table}");
    assert!(rows[2].ends_with(",\"0-1, 3-6\""), "{table}");
}

#[test]
fn differences_above_the_threshold_set_the_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    // Every duration of rank 0 is 3 % longer, rounded down to ns.
    let other = write_changed_job(folder.path(), |rank, nodes| {
        for node in nodes.iter_mut().filter(|_| rank == 0) {
            for attr in node
                .attr
                .iter_mut()
                .filter(|attr| attr.name == "duration_ns")
            {
                match &mut attr.value {
                    Some(Field::Int64Val(ns)) => *ns += *ns * 3 / 100,
                    Some(Field::Uint64Val(ns)) => *ns += *ns * 3 / 100,
                    value => panic!("{value:?}"),
                }
            }
        }
        true
    });
    let code = |more: &[&str]| {
        let (code, _, error) = run_diff_of_case_and_other(&other, more);
        assert_eq!(code == 0, error.is_empty(), "{error}");
        assert!(code != 3 || error.contains("exceeded: time"), "{error}");
        code
    };
    assert_eq!(code(&[]), 0);
    assert_eq!(code(&["--fail-on", "structure,bytes"]), 0);
    assert_eq!(code(&["--fail-on", "bytes,time"]), 3);
    assert_eq!(code(&["--fail-on", "any"]), 3);
    assert_eq!(code(&["--fail-on", "any", "--tolerance", "3%"]), 0);
    assert_eq!(code(&["--fail-on", "any", "--tolerance", "2.9%"]), 3);
    assert_eq!(code(&["--fail-on", "time", "--tolerance", "10s"]), 0);
    // The tolerance does not apply to totals: compared nodes differ by at most 3 %, but the total
    // grew.
    assert_eq!(code(&["--threshold", "3%"]), 0);
    assert_eq!(code(&["--threshold", "0.1%", "--tolerance", "10s"]), 3);
}

#[test]
fn bad_input_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("a.json");
    let wrong = folder.path().join("b.json");
    std::fs::write(&wrong, "{\"schema\": \"chakram.report.9\"}").unwrap();
    let run = run_for_output(&["replay", CASE, "--format", "json"]);
    std::fs::write(&report, run).unwrap();
    let (report, wrong) = (report.to_str().unwrap(), wrong.to_str().unwrap());
    for (args, expected) in [
        (&["diff", CASE, "no/such/job"][..], "no/such"),
        (&["diff", CASE, report], "reports with reports"),
        (&["diff", report, wrong], "chakram.report.9"),
        (&["diff", "-", "-"], "standard input can be only one"),
        (
            &["diff", report, report, "--tolerance", "1%"],
            "--tolerance is for the nodes",
        ),
        (
            &["diff", report, report, "--threads", "2"],
            "--threads is for the ranks",
        ),
        (
            &["diff", report, report, "--format", "csv"],
            "--format csv is for traces",
        ),
        (
            &["diff", CASE, CASE, "--threshold", "1"],
            "expected percent",
        ),
        (
            &["diff", CASE, CASE, "--show", "few"],
            "neither a number of lines",
        ),
    ] {
        let output = run_chakram(args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}

#[test]
fn trace_faults_are_reported_before_differences() {
    let folder = tempfile::tempdir().unwrap();
    let other = write_changed_job(folder.path(), |_, nodes| {
        nodes[1].id = nodes[0].id;
        true
    });
    let path = other.join("job.0.et");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.truncate(bytes.len() - 3);
    std::fs::write(&path, bytes).unwrap();
    let (code, text, error) = run_diff_of_case_and_other(&other, &["--salvage"]);
    assert_eq!((code, &*error), (0, ""));
    let fault = text.find("  ! rank 0 of ").expect("it is told");
    assert!(fault < text.find("STRUCTURE").unwrap(), "{text}");
    let found = diff_with_case_json(&other, &["--salvage"]);
    assert_eq!(found["faults"][0]["rank"], 0);
    assert_eq!(found["faults"][0]["of"], "after");
    let first = found["faults"][0]["first"].as_str().unwrap();
    assert!(first.contains("bytes are lost"), "{first}");
}
