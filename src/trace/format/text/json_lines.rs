//! JSON Lines: a trace as text without loss, one record a line.
//!
//! The first line is the metadata record, every other line is a node:
//!
//! ```json
//! {"schema":"chakram.trace.1","version":"0.0.4","attr":[{"name":"pid","uint64_val":7}]}
//! {"id":3,"name":"mm","type":"COMP_NODE","data_deps":[1,2],"duration_micros":5,"attr":[{"name":"num_ops","int64_val":1000}]}
//! ```
//!
//! Keys are the fields of the schema (`proto/et_def.proto`), in the order of their numbers; but for
//! `id` and `type`, what has its default is left out. Lines are what protobuf's own mapping to JSON
//! reads, with these additions, so that nothing is lost:
//!
//! - numbers are numbers, also those of 64 bits. Reals are written with as many digits as tell them
//!   from their neighbours; `"Infinity"`, `"-Infinity"` and `"NaN"` are strings, and a NaN with bits
//!   of its own is `"NaN(0x7ff8000000000001)"`. Bytes are base64.
//! - `unknown` holds the fields of a record that the schema does not have, as they stood (base64).
//! - an attribute, or the arguments or results of a node, that the schema has no exact words for (unknown
//!   fields inside, text that is not UTF-8, values spelled as no known tool does) is `{"raw":"…"}`, the
//!   message as it stood.
//!
//! So a file becomes text and the same file again, byte for byte, if it is canonical: fields in the order
//! of their numbers, lists packed, no defaults. Every other file becomes one with equal records.

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
            node: JsonNode::default(),
            line: 0,
            records: 0,
        }
    }

    /// Treats the next line as a node, because the metadata was read elsewhere.
    pub(in crate::format) fn skip_metadata(&mut self) {
        self.records = self.records.max(1);
    }

    /// Reads the next record into `record`, in the current schema; the first is the metadata. Returns its line,
    /// or `None` at the end, where `record` is empty. Lines without content are skipped.
    ///
    /// Fails on lines that are no object of their kind; the next call continues behind them.
    pub fn next_record(&mut self, record: &mut Vec<u8>) -> Result<Option<usize>, TraceError> {
        record.clear();
        loop {
            self.buffer.clear();
            let read = self.source.read_until(b'\n', &mut self.buffer);
            let read = read.map_err(|source| TraceError::io("", "read", source))?;
            if read == 0 {
                return Ok(None);
            }
            self.line += 1;
            let text = self.buffer.strip_suffix(b"\n").unwrap_or(&self.buffer);
            let mut json = JsonReader::new(text, (self.line, 1));
            if json.peek().is_none() {
                continue;
            }
            self.records += 1;
            if self.records == 1 {
                message::metadata(&mut json, record)?;
            } else {
                self.node.read(&mut json)?;
                self.node.put(record);
            }
            if json.peek().is_some() {
                record.clear();
                return Err(
                    json.error("more behind the end of the object; every line is one object")
                );
            }
            return Ok(Some(self.line));
        }
    }
}
