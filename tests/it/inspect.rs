//! Tests the inspection of traces: tables against plain parsers and sums by hand, times against replays as captured,
//! filters against a test of every node, and broken files.

mod broken;
mod filters;
mod small;
mod times;
mod whole;

use chakram::internals::proto::attribute_proto::Value as Attribute;
use chakram::internals::proto::{AttributeProto, GlobalMetadata, Node};
use chakram::trace::DecompressedTraceFile;
use prost::Message;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// Runs `chakram inspect`, and returns its output.
pub fn run_inspect(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_chakram"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .arg("inspect")
        .args(args)
        .output()
        .expect("the program was built")
}

/// Runs the program, checks that it succeeds without warnings, and returns its standard output.
pub fn run_inspect_ok(args: &[&str]) -> String {
    let output = run_inspect(args);
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    String::from_utf8(output.stdout).expect("it is text")
}

/// Returns the JSON that `chakram inspect` prints.
pub fn inspect_json(args: &[&str]) -> Value {
    let text = run_inspect_ok(&[args, &["--format", "json"]].concat());
    let document: Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(document["schema"], "chakram.inspection.1");
    assert_eq!(document["tool_version"], env!("CARGO_PKG_VERSION"));
    document
}

/// Returns the rows of a list in a JSON document.
pub fn rows_of_json_list<'v>(document: &'v Value, list: &str) -> &'v Vec<Value> {
    document[list].as_array().expect("a list")
}

/// Returns the only row of a list with this value of the field.
pub fn find_only_row<'v>(document: &'v Value, list: &str, field: &str, is: &str) -> &'v Value {
    let found: Vec<_> = rows_of_json_list(document, list)
        .iter()
        .filter(|row| row[field] == is)
        .collect();
    assert_eq!(found.len(), 1, "{list} with {field} {is} in {document:#}");
    found[0]
}

/// Returns the integer in a field.
pub fn integer_field(row: &Value, field: &str) -> u64 {
    row[field]
        .as_u64()
        .unwrap_or_else(|| panic!("{field} of {row:#}"))
}

/// Returns the records of a file under `traces/`, in the types generated from the schema.
pub fn read_trace_records(file: &str) -> (GlobalMetadata, Vec<Node>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("traces")
        .join(file);
    let contents = DecompressedTraceFile::open_as_current_schema(&path).expect("it is there");
    let mut rest = contents.as_slice();
    let metadata = GlobalMetadata::decode_length_delimited(&mut rest).expect("it is sound");
    let mut nodes = Vec::new();
    while !rest.is_empty() {
        nodes.push(Node::decode_length_delimited(&mut rest).expect("it is sound"));
    }
    (metadata, nodes)
}

/// Returns the value of an attribute.
pub fn attribute_value<'n>(node: &'n Node, name: &str) -> Option<&'n Attribute> {
    let found = node.attr.iter().find(|attr| attr.name == name);
    found.and_then(|attr| attr.value.as_ref())
}

/// Returns the value of an attribute of any integer type.
pub fn integer_attribute(node: &Node, name: &str) -> Option<u64> {
    match attribute_value(node, name)? {
        Attribute::Int64Val(v) => Some(*v as u64),
        Attribute::Uint64Val(v) => Some(*v),
        Attribute::Int32Val(v) => Some(*v as u64),
        Attribute::BoolVal(v) => Some(u64::from(*v)),
        _ => None,
    }
}

/// Builds an attribute.
pub fn build_attribute(name: &str, value: Attribute) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        value: Some(value),
        ..AttributeProto::default()
    }
}

/// Returns a kernel of `micros` microseconds with data dependencies on `data`.
pub fn build_kernel_node(id: u64, name: &str, micros: u64, data: &[u64]) -> Node {
    Node {
        id,
        name: name.to_owned(),
        r#type: 4,
        duration_micros: micros,
        data_deps: data.to_vec(),
        ..Node::default()
    }
}

/// Writes a trace file of these nodes into `folder`.
pub fn write_rank_trace(folder: &Path, rank: u32, metadata: Vec<AttributeProto>, nodes: &[Node]) {
    std::fs::write(
        folder.join(format!("job.{rank}.et")),
        encode_trace_file(metadata, nodes),
    )
    .expect("there is room");
}

/// Returns the bytes of a trace file of these nodes.
pub fn encode_trace_file(attr: Vec<AttributeProto>, nodes: &[Node]) -> Vec<u8> {
    let metadata = GlobalMetadata {
        version: "0.0.4".to_owned(),
        attr,
    };
    let mut file = metadata.encode_length_delimited_to_vec();
    for node in nodes {
        file.extend(node.encode_length_delimited_to_vec());
    }
    file
}
