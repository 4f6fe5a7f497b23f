//! Compares the two trace readers with each other, and tests graphs that are built from files.

pub mod arbitrary;
mod files;
mod graphs;
mod records;
mod sharing;

use chakram_trace::format::proto::{AttributeProto, GlobalMetadata, Node, attribute_proto::Value};
use prost::Message;

/// Builds an attribute.
fn build_attribute(name: &str, value: Value) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        value: Some(value),
        ..AttributeProto::default()
    }
}

/// Builds a kernel that takes 1 us and has these data and control dependencies.
fn build_kernel(id: u64, data: &[u64], control: &[u64]) -> Node {
    Node {
        id,
        name: format!("k{id}"),
        r#type: 4,
        ctrl_deps: control.to_vec(),
        data_deps: data.to_vec(),
        duration_micros: 1,
        ..Node::default()
    }
}

/// Builds a file that consists of the metadata and these records.
fn build_file_from_records<B: AsRef<[u8]>>(records: impl IntoIterator<Item = B>) -> Vec<u8> {
    let metadata = GlobalMetadata {
        version: "0.0.4".to_owned(),
        attr: Vec::new(),
    };
    let mut file = metadata.encode_length_delimited_to_vec();
    for record in records {
        let record = record.as_ref();
        prost::encoding::encode_varint(record.len() as u64, &mut file);
        file.extend_from_slice(record);
    }
    file
}

/// Builds a file with these nodes.
fn build_file_from_nodes(nodes: &[Node]) -> Vec<u8> {
    build_file_from_records(nodes.iter().map(Message::encode_to_vec))
}
