//! Templates of records: ops, and records written from them, last byte first.

use super::decimals::digits;
use crate::archive::wire::{WireError, WireReader, varint_length};

/// Templates of a chunk, by number: those of its base first, and its own. All lie in a few arrays, since a trace of
/// distinct names has a template for nearly every record.
#[derive(Clone, Debug, Default)]
pub struct TemplateTable {
    /// Ops of all templates, as they stand in a chunk.
    encoded: Vec<u8>,
    ops: Vec<TemplateOp>,
    /// Columns of slots, in the order of the record.
    slots: Vec<u32>,
    ends: Vec<TemplateEnd>,
}

/// Ends of a template in the arrays of its table.
#[derive(Clone, Copy, Debug, Default)]
struct TemplateEnd {
    encoded: usize,
    ops: usize,
    slots: usize,
}

/// Part of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TemplateOp {
    /// Bytes of the template's encoding from here to there, as they are.
    Literal(u32, u32),
    /// The next value of this column, as a varint.
    Slot(u32),
    /// The next value of this column, in decimal digits.
    Decimal(u32),
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

/// Returns the op of a decimal number in `column`: a close, which has no argument, with one.
pub fn decimal(column: u64) -> u64 {
    (column + 1) << 2 | CLOSE
}

/// Messages within messages of a record, at most.
const DEPTH: usize = 16;

impl TemplateTable {
    /// Returns the number of templates.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns where template `number` begins, and where it ends.
    fn range(&self, number: usize) -> [TemplateEnd; 2] {
        let before = number.checked_sub(1).map(|before| self.ends[before]);
        [before.unwrap_or_default(), self.ends[number]]
    }

    /// Returns the encoding of template `number`.
    pub fn encoded(&self, number: usize) -> &[u8] {
        let [from, to] = self.range(number);
        &self.encoded[from.encoded..to.encoded]
    }

    /// Returns the columns of the slots of template `number`, in the order of the record.
    #[inline]
    pub fn slots(&self, number: usize) -> &[u32] {
        let [from, to] = self.range(number);
        &self.slots[from.slots..to.slots]
    }

    /// Adds the template of these ops; columns are below `columns`.
    pub fn push(&mut self, encoded: &[u8], columns: usize) -> Result<(), WireError> {
        let mut input = WireReader::new(encoded);
        let (mut at, mut depth) = (0, 0usize);
        while !input.is_at_end() {
            let op = input.varint()?;
            at += varint_length(op);
            let argument = op >> 2;
            let op = match op & 3 {
                LITERAL => {
                    let length = usize::try_from(argument).unwrap_or(usize::MAX);
                    input.take(length)?;
                    let from = at as u32;
                    at += length;
                    TemplateOp::Literal(from, at as u32)
                }
                SLOT => TemplateOp::Slot(self.slot(argument, columns)?),
                CLOSE if argument > 0 => TemplateOp::Decimal(self.slot(argument - 1, columns)?),
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
            };
            self.ops.push(op);
            if depth > DEPTH {
                return Err(WireError("messages of a template lie too deep"));
            }
        }
        if depth > 0 {
            return Err(WireError("a message of a template does not end"));
        }
        self.encoded.extend_from_slice(encoded);
        self.ends.push(TemplateEnd {
            encoded: self.encoded.len(),
            ops: self.ops.len(),
            slots: self.slots.len(),
        });
        Ok(())
    }

    /// Adds a slot of `column`, which must be below `columns`.
    fn slot(&mut self, column: u64, columns: usize) -> Result<u32, WireError> {
        let column = usize::try_from(column).ok().filter(|&c| c < columns);
        let column = column.ok_or(WireError("a template has a column that is not there"))? as u32;
        self.slots.push(column);
        Ok(column)
    }

    /// Writes a record of template `number`; `value` gives the value of each slot, last first.
    #[inline]
    pub fn write(
        &self,
        number: usize,
        out: &mut BackwardWriter,
        mut value: impl FnMut(u32) -> u64,
    ) -> Result<(), WireError> {
        let [from, to] = self.range(number);
        let encoded = &self.encoded[from.encoded..to.encoded];
        let mut ends = [0; DEPTH];
        let mut depth = 0;
        for op in self.ops[from.ops..to.ops].iter().rev() {
            match *op {
                TemplateOp::Literal(from, to) => out.bytes(encoded, from as usize, to as usize)?,
                TemplateOp::Slot(column) => out.varint(value(column))?,
                TemplateOp::Decimal(column) => out.decimal(value(column))?,
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
        Ok(())
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

    /// Returns the position of what was written last.
    pub fn at(&self) -> usize {
        self.at
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

    /// Writes a varint.
    #[inline]
    pub fn varint(&mut self, mut value: u64) -> Result<(), WireError> {
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

    #[inline]
    fn decimal(&mut self, mut value: u64) -> Result<(), WireError> {
        let from = self.at.checked_sub(digits(value)).ok_or(TOO_LARGE)?;
        for byte in self.buffer[from..self.at].iter_mut().rev() {
            *byte = b'0' + (value % 10) as u8;
            value /= 10;
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::wire::put_varint;

    #[test]
    fn numbers_written_backward_are_varints() {
        let powers = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, u64::MAX >> bit]);
        let values: Vec<u64> = powers.chain([0x0123_4567_89ab_cdef]).collect();
        let mut expected = Vec::new();
        values
            .iter()
            .for_each(|&value| put_varint(&mut expected, value));
        let mut out = BackwardWriter::new(expected.len());
        for &value in values.iter().rev() {
            out.varint(value).unwrap();
        }
        assert_eq!(out.finish().unwrap(), expected);
        // A buffer of three bytes has no room for eight at once, and none for a number of four.
        let mut small = BackwardWriter::new(3);
        assert_eq!(small.varint(1 << 21), Err(TOO_LARGE));
        small.varint(1 << 20).unwrap();
        assert_eq!(small.finish().unwrap(), [0x80, 0x80, 0x40]);
    }
}
