//! Records in protobuf's mapping to JSON: one object after another, on lines or not, or in an array. The first
//! is the metadata record if it has none of a node's keys.

use super::Records;
use super::json::Json;
use super::message::{self, Node};
use crate::trace::{TraceError, older};

/// Parses every object of `text`.
pub(super) fn read(text: &[u8], records: &mut Records) -> Result<(), TraceError> {
    let mut json = Json::new(text, (1, 1));
    let mut reading = Reading {
        records,
        node: Node::default(),
        buffer: Vec::new(),
    };
    if json.peek() == Some(b'[') {
        json.array(|json| reading.one(json))?;
        if json.peek().is_some() {
            return Err(json.wrong("more behind the end of the array"));
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

struct Reading<'r> {
    records: &'r mut Records,
    node: Node,
    buffer: Vec<u8>,
}

impl Reading<'_> {
    fn one(&mut self, json: &mut Json<'_>) -> Result<(), TraceError> {
        let place = json.place();
        self.buffer.clear();
        if self.records.lines.is_empty() {
            if is_metadata(json.clone())? {
                message::metadata(json, &mut self.buffer)?;
                self.records.push(&self.buffer, place);
                return Ok(());
            }
            self.records.push(&older::plain_metadata(), (1, 1));
        }
        self.node.read(json)?;
        self.node.put(&mut self.buffer);
        self.records.push(&self.buffer, place);
        Ok(())
    }
}

/// Returns whether the object that comes next has no key of a node's own.
fn is_metadata(mut json: Json<'_>) -> Result<bool, TraceError> {
    let mut metadata = true;
    json.object(|json, key| {
        metadata &= matches!(key, "schema" | "version" | "attr" | "unknown");
        json.skip()
    })?;
    Ok(metadata)
}
