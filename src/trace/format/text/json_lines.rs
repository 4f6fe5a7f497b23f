//! JSON Lines: a lossless text form of a trace, one record per line.
//!
//! The first line is the metadata record, and every other line is a node:
//!
//! ```json
//! {"schema":"chakram.trace.1","version":"0.0.4","attr":[{"name":"pid","uint64_val":7}]}
//! {"id":3,"name":"mm","type":"COMP_NODE","data_deps":[1,2],"duration_micros":5,"attr":[{"name":"num_ops","int64_val":1000}]}
//! ```
//!
//! Keys are the fields of the schema (`proto/et_def.proto`), in the order of their numbers. Fields with default values
//! are omitted, except `id` and `type`. Lines follow protobuf's JSON mapping, with these additions, which prevent a
//! loss of content:
//!
//! - all numbers are JSON numbers, including 64-bit numbers. Reals have the fewest digits that identify the value;
//!   `"Infinity"`, `"-Infinity"` and `"NaN"` are strings, and a NaN with a non-default payload is
//!   `"NaN(0x7ff8000000000001)"`. Bytes are base64.
//! - `unknown` has the fields of a record that are not in the schema, unchanged (base64).
//! - an attribute, or the inputs or outputs of a node, that JSON keys cannot express exactly (unknown fields, text that
//!   is not UTF-8, unusual encodings) becomes `{"raw":"…"}` with the unchanged message.
//!
//! Therefore, a canonical file (fields in the order of their numbers, lists packed, no defaults) is unchanged, byte for
//! byte, by a round trip through text. A round trip of any other file gives a file with equal records.

use super::json::JsonReader;
use super::message::{self, JsonNode};
use crate::format::TraceError;
use std::io::BufRead;

mod write;

pub use write::JsonLineWriter;

/// Beginning of the first line of a file in this format.
pub(in crate::format) const BEGINNING: &[u8] = b"{\"schema\":\"chakram.trace.";

/// Reads lines as records.
#[derive(Debug)]
pub struct JsonLineReader<R> {
    source: R,
    buffer: Vec<u8>,
    node: JsonNode,
    /// Number of the line that was read last.
    line: usize,
    records: usize,
}

impl<R: BufRead> JsonLineReader<R> {
    /// Creates a reader of `source`.
    pub fn new(source: R) -> Self {
        Self {
            source,
            buffer: Vec::new(),
            node: JsonNode::default(),
            line: 0,
            records: 0,
        }
    }

    /// Makes the reader expect a node as the next line, because another reader has read the metadata.
    pub(in crate::format) fn skip_metadata(&mut self) {
        self.records = self.records.max(1);
    }

    /// Reads the next record into `record`, in the current schema; the first record is the metadata. Returns the
    /// record's line, or `None` at the end, where `record` is empty. Lines without content are skipped.
    ///
    /// Fails on lines that are not a valid record; the next call continues after the line.
    pub fn next_record(&mut self, record: &mut Vec<u8>) -> Result<Option<usize>, TraceError> {
        record.clear();
        loop {
            self.buffer.clear();
            let read = self.source.read_until(b'\n', &mut self.buffer);
            let read = read.map_err(|source| TraceError::from_io("", "read", source))?;
            if read == 0 {
                return Ok(None);
            }
            self.line += 1;
            let text = self.buffer.strip_suffix(b"\n").unwrap_or(&self.buffer);
            let mut json = JsonReader::new(text, (self.line, 1));
            if json.peek_byte().is_none() {
                continue;
            }
            self.records += 1;
            if self.records == 1 {
                message::append_metadata(&mut json, record)?;
            } else {
                self.node.parse_object(&mut json)?;
                self.node.append_record(record);
            }
            if json.peek_byte().is_some() {
                record.clear();
                return Err(json.error_here(
                    "found text after the end of the object, expected one object per line",
                ));
            }
            return Ok(Some(self.line));
        }
    }
}
