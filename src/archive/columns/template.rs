//! Template of records: ops, and records written from them, last byte first.

use crate::archive::wire::{WireError, WireReader, varint_length};

/// Template: its encoding, and its ops.
#[derive(Debug)]
pub struct Template {
    /// Ops as they stand in a chunk.
    pub encoded: Vec<u8>,
    /// Columns of its slots, in the order of the record.
    pub slots: Vec<u32>,
    ops: Vec<TemplateOp>,
}

/// Part of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TemplateOp {
    /// Bytes of the encoding from here to there, as they are.
    Literal(u32, u32),
    /// The next value of this column, as a varint.
    Slot(u32),
    /// The length of what lies between this and its `Close`, as a varint.
    Open,
    /// The end of a message within the record.
    Close,
}

/// Low bits of an op.
pub const LITERAL: u64 = 0;
pub const SLOT: u64 = 1;
pub const OPEN: u64 = 2;
pub const CLOSE: u64 = 3;

/// Messages within messages of a record, at most.
const DEPTH: usize = 16;

impl Template {
    /// Parses the ops of a template; columns are below `columns`.
    pub fn parse(encoded: &[u8], columns: usize) -> Result<Self, WireError> {
        let mut input = WireReader::new(encoded);
        let (mut ops, mut slots) = (Vec::new(), Vec::new());
        let (mut at, mut depth) = (0, 0usize);
        while !input.is_at_end() {
            let op = input.varint()?;
            at += varint_length(op);
            let argument = op >> 2;
            ops.push(match op & 3 {
                LITERAL => {
                    let length = usize::try_from(argument).unwrap_or(usize::MAX);
                    input.take(length)?;
                    let from = at as u32;
                    at += length;
                    TemplateOp::Literal(from, at as u32)
                }
                SLOT => {
                    let column = usize::try_from(argument).ok().filter(|&c| c < columns);
                    let column =
                        column.ok_or(WireError("a template has a column that is not there"))?;
                    slots.push(column as u32);
                    TemplateOp::Slot(column as u32)
                }
                OPEN => {
                    depth += 1;
                    TemplateOp::Open
                }
                _ => {
                    depth = depth
                        .checked_sub(1)
                        .ok_or(WireError("a message of a template ends twice"))?;
                    TemplateOp::Close
                }
            });
            if depth > DEPTH {
                return Err(WireError("messages of a template lie too deep"));
            }
        }
        if depth > 0 {
            return Err(WireError("a message of a template does not end"));
        }
        Ok(Self {
            encoded: encoded.to_vec(),
            slots,
            ops,
        })
    }

    /// Writes a record with its length prefix; `value` gives the value of each slot, last first.
    pub fn write(
        &self,
        out: &mut BackwardWriter,
        mut value: impl FnMut(u32) -> u64,
    ) -> Result<(), WireError> {
        let end = out.at;
        let mut ends = [0; DEPTH];
        let mut depth = 0;
        for op in self.ops.iter().rev() {
            match *op {
                TemplateOp::Literal(from, to) => {
                    out.bytes(&self.encoded, from as usize, to as usize)?
                }
                TemplateOp::Slot(column) => out.varint(value(column))?,
                TemplateOp::Close => {
                    ends[depth] = out.at;
                    depth += 1;
                }
                TemplateOp::Open => {
                    depth -= 1;
                    out.varint((ends[depth] - out.at) as u64)?;
                }
            }
        }
        out.varint((end - out.at) as u64)
    }
}

/// Writes a buffer from its end, so that the length of a message is known where it is written.
#[derive(Debug)]
pub struct BackwardWriter {
    buffer: Vec<u8>,
    at: usize,
}

const TOO_LARGE: WireError = WireError("its records are larger than it says");

impl BackwardWriter {
    /// Starts at the end of `bytes` bytes.
    pub fn new(bytes: usize) -> Self {
        Self {
            buffer: vec![0; bytes],
            at: bytes,
        }
    }

    /// Writes the bytes `from..to` of `encoded`.
    #[inline]
    fn bytes(&mut self, encoded: &[u8], from: usize, to: usize) -> Result<(), WireError> {
        /// Bytes that are copied at once, which takes less than finding out how many there are.
        const ONCE: usize = 16;
        let start = self.at.checked_sub(to - from).ok_or(TOO_LARGE)?;
        let whole = encoded[..to].last_chunk::<ONCE>();
        match (whole, self.buffer[..self.at].last_chunk_mut::<ONCE>()) {
            // What is copied too much lies before the literal, where the rest of the record will be written.
            (Some(whole), Some(place)) if to - from <= ONCE => *place = *whole,
            _ => self.buffer[start..self.at].copy_from_slice(&encoded[from..to]),
        }
        self.at = start;
        Ok(())
    }

    #[inline]
    fn varint(&mut self, mut value: u64) -> Result<(), WireError> {
        if value < 0x80 {
            self.at = self.at.checked_sub(1).ok_or(TOO_LARGE)?;
            self.buffer[self.at] = value as u8;
            return Ok(());
        }
        let from = self.at.checked_sub(varint_length(value)).ok_or(TOO_LARGE)?;
        let place = &mut self.buffer[from..self.at];
        let last = place.len() - 1;
        for byte in &mut place[..last] {
            *byte = value as u8 | 0x80;
            value >>= 7;
        }
        place[last] = value as u8;
        self.at = from;
        Ok(())
    }

    /// Returns the buffer, which must be full.
    pub fn finish(self) -> Result<Vec<u8>, WireError> {
        if self.at == 0 {
            return Ok(self.buffer);
        }
        Err(WireError("its records are smaller than it says"))
    }
}
