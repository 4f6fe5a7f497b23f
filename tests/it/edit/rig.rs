//! Reads traces with the types generated from the schema, and runs the program on traces.

use crate::commands::run_chakram;
use crate::corpus::corpus_path_or_count_skip;
use chakram::internals::proto::attribute_proto::Value;
use chakram::internals::proto::{AttributeProto, GlobalMetadata, Node};
use chakram::trace::{DecompressedTraceFile, discover_traces};
use prost::Message;
use std::path::{Path, PathBuf};

pub fn build_attribute(name: &str, value: Value) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        value: Some(value),
        ..AttributeProto::default()
    }
}

pub fn build_count_attribute(name: &str, value: u64) -> AttributeProto {
    build_attribute(name, Value::Uint64Val(value))
}

pub fn build_text_attribute(name: &str, value: &str) -> AttributeProto {
    build_attribute(name, Value::StringVal(value.to_owned()))
}

/// Returns the value of an attribute of any integer type.
pub fn find_integer_attribute_value(node: &Node, name: &str) -> Option<i64> {
    let attribute = node.attr.iter().find(|a| a.name == name)?;
    Some(match attribute.value.as_ref()? {
        Value::Uint64Val(v) => *v as i64,
        Value::Int64Val(v) => *v,
        Value::Uint32Val(v) => i64::from(*v),
        Value::Int32Val(v) => i64::from(*v),
        Value::BoolVal(v) => i64::from(*v),
        other => panic!("{name} is {other:?}"),
    })
}

pub fn encode_trace_file(nodes: &[Node]) -> Vec<u8> {
    let mut file = GlobalMetadata::default().encode_length_delimited_to_vec();
    for node in nodes {
        file.extend(node.encode_length_delimited_to_vec());
    }
    file
}

pub fn decode_trace_nodes(mut bytes: &[u8]) -> Vec<Node> {
    GlobalMetadata::decode_length_delimited(&mut bytes).unwrap();
    let mut nodes = Vec::new();
    while !bytes.is_empty() {
        nodes.push(Node::decode_length_delimited(&mut bytes).unwrap());
    }
    nodes
}

/// Returns the trace bytes of a job, by rank.
pub fn read_job_traces(path: &Path) -> Vec<Vec<u8>> {
    let files = discover_traces(path).unwrap_or_else(|e| panic!("{e}"));
    let open = |path: &PathBuf| {
        DecompressedTraceFile::open_as_current_schema(path)
            .unwrap()
            .as_slice()
            .to_vec()
    };
    files.iter().map(|file| open(&file.path)).collect()
}

/// Runs the program, checks that it succeeds, and returns its output.
pub fn run_chakram_ok(args: &[&str]) -> String {
    let output = run_chakram(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the program, checks that it fails, and returns its error message.
pub fn expect_chakram_error(args: &[&str]) -> String {
    let output = run_chakram(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Returns a replay's report without the fields that identify the job.
pub fn replay_report_json_without_job_identity(
    traces: &str,
    machine: &str,
    more: &[&str],
) -> serde_json::Value {
    let mut args = vec!["replay", traces, "--machine", machine, "--format", "json"];
    args.extend_from_slice(more);
    let mut report: serde_json::Value = serde_json::from_str(&run_chakram_ok(&args)).unwrap();
    let object = report.as_object_mut().unwrap();
    for name in ["inputs", "options", "title", "job"] {
        object.remove(name);
    }
    report
}

/// Returns a folder under `traces/`.
pub fn case_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("traces")
        .join(name)
}

/// Returns the captures of the corpus, each with its name; empty if there is no corpus.
pub fn list_corpus_captures() -> Vec<(String, PathBuf)> {
    let Some(folder) = corpus_path_or_count_skip("captures/pytorch") else {
        return Vec::new();
    };
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .expect("the corpus has captures")
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.path()))
        .collect();
    found.sort();
    found
}
