//! Reads the node types of a trace; ASTRA-sim prints them in some lines of its log.

use chakram_trace::format::TraceError;
use chakram_trace::format::wire::{FrameCursor, WireCursor, WireValue};
use std::collections::BTreeMap;

/// Types of a rank's nodes, by node id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTypesById(BTreeMap<u64, u32>);

impl NodeTypesById {
    /// Reads the node types from the contents of a rank's file. If several records have the same id, the
    /// last record counts. Reading stops at a truncated record.
    ///
    /// # Errors
    ///
    /// Fails if a record is malformed.
    pub fn read_types(contents: &[u8]) -> Result<Self, TraceError> {
        let mut types = BTreeMap::new();
        let mut frames = FrameCursor::new(contents);
        frames.next_record()?;
        while let Ok(Some(record)) = frames.next_record() {
            let (mut id, mut kind) = (0, 0);
            let mut cursor = WireCursor::new(record.bytes, record.offset);
            while !cursor.is_empty() {
                match cursor.read_field()? {
                    (1, WireValue::Varint(v)) => id = v,
                    (3, WireValue::Varint(v)) => kind = v as u32,
                    _ => {}
                }
            }
            types.insert(id, kind);
        }
        Ok(Self(types))
    }

    /// Returns the type of a node, or 0 for an unknown id.
    pub fn type_of_node(&self, id: u64) -> u32 {
        self.0.get(&id).copied().unwrap_or(0)
    }
}
