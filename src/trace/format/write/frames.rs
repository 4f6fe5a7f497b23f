//! Writes encoded records to a file.

use crate::format::TraceError;
use std::io::Write;

/// Writes encoded records, each preceded by its length.
#[derive(Debug)]
pub struct LengthPrefixedRecordWriter<W> {
    out: W,
    length: Vec<u8>,
}

impl<W: Write> LengthPrefixedRecordWriter<W> {
    /// Creates a writer that writes to `out`.
    pub fn new(out: W) -> Self {
        Self {
            out,
            length: Vec::new(),
        }
    }

    /// Writes a record's message. The caller must write the metadata first.
    pub fn write_record(&mut self, message: &[u8]) -> Result<(), TraceError> {
        self.write_length_prefixed_message(message)
            .map_err(|source| TraceError::from_io("", "write", source))
    }

    pub(super) fn write_length_prefixed_message(&mut self, message: &[u8]) -> std::io::Result<()> {
        self.length.clear();
        prost::encoding::encode_varint(message.len() as u64, &mut self.length);
        self.out.write_all(&self.length)?;
        self.out.write_all(message)
    }

    /// Returns the inner writer, which has received all data but has not been flushed.
    pub fn into_inner(self) -> W {
        self.out
    }
}
