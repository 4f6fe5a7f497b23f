//! Tests traces that are not in the form of a current `.et`: files of 2023, text, and damaged files.

mod damaged;
pub mod lines;
mod old;
mod pasted;

use chakram_trace::format::proto::{GlobalMetadata, Node};
use chakram_trace::format::wire::FrameCursor;
use prost::Message;

/// Decodes a file's metadata record and nodes with the generated types.
pub fn decode_trace(contents: &[u8]) -> (GlobalMetadata, Vec<Node>) {
    let mut frames = FrameCursor::new(contents);
    let mut metadata = GlobalMetadata::default();
    let mut nodes = Vec::new();
    while let Some(record) = frames.next_record().expect("it is whole") {
        match record.number {
            0 => metadata = GlobalMetadata::decode(record.bytes).expect("it is metadata"),
            _ => nodes.push(Node::decode(record.bytes).expect("it is a node")),
        }
    }
    (metadata, nodes)
}
