//! JSON Lines: a lossless text form of a trace with one record per line.
//!
//! The first line is the metadata record, and every other line is a node:
//!
//! ```json
//! {"schema":"chakram.trace.1","version":"0.0.4","attr":[{"name":"pid","uint64_val":7}]}
//! {"id":3,"name":"mm","type":"COMP_NODE","data_deps":[1,2],"duration_micros":5,"attr":[{"name":"num_ops","int64_val":1000}]}
//! ```
//!
//! The keys are the schema's fields (`proto/et_def.proto`), in the order of their numbers. A line omits fields with
//! default values, except `id` and `type`. The format is protobuf's JSON mapping with these additions, which make it
//! lossless:
//!
//! - all numbers, even 64-bit ones, are JSON numbers. Reals have as few digits as suffice to identify the value.
//!   `"Infinity"`, `"-Infinity"` and `"NaN"` are strings, and a NaN with a non-default payload is
//!   `"NaN(0x7ff8000000000001)"`. Bytes are base64.
//! - `unknown` contains the fields of a record that the schema does not define, unchanged (base64).
//! - JSON keys cannot express some attributes, inputs and outputs exactly (unknown fields, text that is not UTF-8,
//!   unusual encodings). Such a message is kept unchanged as `{"raw":"…"}`.
//!
//! A canonical file has its fields in the order of their numbers, packed lists and no defaults. A round trip through
//! text therefore preserves such a file byte for byte. For any other file, a round trip yields a file whose records are
//! equal.

use super::json::JsonCursor;
use super::message::{self, JsonNodeBuilder};
use crate::format::TraceError;
use std::io::BufRead;

mod write;

pub use write::JsonLineWriter;

/// The first bytes of a file in this format.
pub(in crate::format) const BEGINNING: &[u8] = b"{\"schema\":\"chakram.trace.";

/// Reads lines of text as records.
#[derive(Debug)]
pub struct JsonLineReader<R> {
    source: R,
    buffer: Vec<u8>,
    node: JsonNodeBuilder,
    /// Number of the last line read.
    line: usize,
    records: usize,
}

impl<R: BufRead> JsonLineReader<R> {
    /// Creates a reader of `source`.
    pub fn new(source: R) -> Self {
        Self {
            source,
            buffer: Vec::new(),
            node: JsonNodeBuilder::default(),
            line: 0,
            records: 0,
        }
    }

    /// Makes the reader expect a node on the next line, because another reader has already read the metadata.
    pub(in crate::format) fn treat_metadata_as_already_read(&mut self) {
        self.records = self.records.max(1);
    }

    /// Reads the next record into `record`, in the current schema; the first record is the metadata. Returns the
    /// record's line number; at the end, returns `None` and leaves `record` empty. Skips blank lines.
    ///
    /// Fails if a line is not a valid record. The next call then continues after this line.
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
            let mut json = JsonCursor::new(text, (self.line, 1));
            if json.peek_byte().is_none() {
                continue;
            }
            self.records += 1;
            if self.records == 1 {
                message::parse_and_append_metadata(&mut json, record)?;
            } else {
                self.node.parse_object(&mut json)?;
                self.node.append_node_record_without_length(record);
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
