//! Parses records in protobuf's JSON mapping: objects in sequence (on separate lines or not) or in an array. If the
//! first object has none of the keys that only nodes have, it is the metadata record.

use super::EncodedRecordsWithSourceLines;
use super::json::JsonCursor;
use super::message::{self, JsonNodeBuilder};
use crate::format::{TraceError, old_schemas};

/// Parses every object in `text`.
pub(super) fn parse_objects(
    text: &[u8],
    records: &mut EncodedRecordsWithSourceLines,
) -> Result<(), TraceError> {
    let mut json = JsonCursor::new(text, (1, 1));
    let mut reading = ProtoJsonReader {
        records,
        node: JsonNodeBuilder::default(),
        buffer: Vec::new(),
    };
    if json.peek_byte() == Some(b'[') {
        json.parse_array(|json| reading.parse_record(json))?;
        if json.peek_byte().is_some() {
            return Err(json.error_here("found text after the end of the array"));
        }
        return Ok(());
    }
    while json.peek_byte().is_some() {
        reading.parse_record(&mut json)?;
        // Some writers separate objects by commas, but omit the brackets around them.
        json.accept_byte(b',');
    }
    Ok(())
}

struct ProtoJsonReader<'r> {
    records: &'r mut EncodedRecordsWithSourceLines,
    node: JsonNodeBuilder,
    buffer: Vec<u8>,
}

impl ProtoJsonReader<'_> {
    fn parse_record(&mut self, json: &mut JsonCursor<'_>) -> Result<(), TraceError> {
        let place = json.line_and_column();
        self.buffer.clear();
        if self.records.lines.is_empty() {
            if is_metadata(json.clone())? {
                message::parse_and_append_metadata(json, &mut self.buffer)?;
                self.records.push(&self.buffer, place);
                return Ok(());
            }
            self.records
                .push(&old_schemas::default_metadata_record(), (1, 1));
        }
        self.node.parse_object(json)?;
        self.node
            .append_node_record_without_length(&mut self.buffer);
        self.records.push(&self.buffer, place);
        Ok(())
    }
}

/// Returns true if the next object has none of the keys that only nodes have.
fn is_metadata(mut json: JsonCursor<'_>) -> Result<bool, TraceError> {
    let mut metadata = true;
    json.parse_object(|json, key| {
        metadata &= matches!(key, "schema" | "version" | "attr" | "unknown");
        json.skip_value()
    })?;
    Ok(metadata)
}
