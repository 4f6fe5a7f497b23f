//! Records in protobuf's JSON mapping: a sequence of objects, on separate lines or not, or an
//! array. If the first object has none of the keys that only nodes have, it is the metadata record.

use super::RecordBuffer;
use super::json::JsonReader;
use super::message::{self, JsonNode};
use crate::format::{TraceError, old_schemas};

/// Parses every object of `text`.
pub(super) fn read(text: &[u8], records: &mut RecordBuffer) -> Result<(), TraceError> {
    let mut json = JsonReader::new(text, (1, 1));
    let mut reading = ObjectReader {
        records,
        node: JsonNode::default(),
        buffer: Vec::new(),
    };
    if json.peek() == Some(b'[') {
        json.array(|json| reading.one(json))?;
        if json.peek().is_some() {
            return Err(json.error("found text after the end of the array"));
        }
        return Ok(());
    }
    while json.peek().is_some() {
        reading.one(&mut json)?;
        // Some writers separate objects by commas without putting them into an array.
        json.accept(b',');
    }
    Ok(())
}

struct ObjectReader<'r> {
    records: &'r mut RecordBuffer,
    node: JsonNode,
    buffer: Vec<u8>,
}

impl ObjectReader<'_> {
    fn one(&mut self, json: &mut JsonReader<'_>) -> Result<(), TraceError> {
        let place = json.place();
        self.buffer.clear();
        if self.records.lines.is_empty() {
            if is_metadata(json.clone())? {
                message::metadata(json, &mut self.buffer)?;
                self.records.push(&self.buffer, place);
                return Ok(());
            }
            self.records.push(&old_schemas::plain_metadata(), (1, 1));
        }
        self.node.read(json)?;
        self.node.put(&mut self.buffer);
        self.records.push(&self.buffer, place);
        Ok(())
    }
}

/// Returns true if the next object has none of the keys that only nodes have.
fn is_metadata(mut json: JsonReader<'_>) -> Result<bool, TraceError> {
    let mut metadata = true;
    json.object(|json, key| {
        metadata &= matches!(key, "schema" | "version" | "attr" | "unknown");
        json.skip()
    })?;
    Ok(metadata)
}
