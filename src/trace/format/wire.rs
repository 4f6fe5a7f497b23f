//! Zero-copy reader of Protobuf's wire format: varints, fields, and the frames of a trace file.

use super::TraceError;

/// Maximum record size that a frame may state: lengths in this format have 32 bits.
pub(super) const MAX_RECORD: u64 = u32::MAX as u64;
/// Maximum nesting depth of groups (the deprecated wire types 3 and 4).
const MAX_GROUP_DEPTH: usize = 100;

/// A position in a buffer of a file's bytes. `end` is the file offset of the buffer's end, for error messages.
#[derive(Clone, Copy, Debug)]
pub struct WireCursor<'a> {
    rest: &'a [u8],
    end: usize,
}

/// A field's value before it is decoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WireValue<'a> {
    /// Wire type 0: a varint.
    Varint(u64),
    /// Wire type 1: eight bytes.
    Fixed64(u64),
    /// Wire type 2: the bytes, and the file offset of the first byte.
    Bytes(&'a [u8], usize),
    /// Wire types 3 and 4: an old-style group, which is skipped as a whole.
    Group,
    /// Wire type 5: four bytes.
    Fixed32(u32),
}

impl<'a> WireCursor<'a> {
    /// Creates a cursor at the start of `buffer`, which begins at byte `base` of the file.
    pub fn new(buffer: &'a [u8], base: usize) -> Self {
        Self {
            rest: buffer,
            end: base + buffer.len(),
        }
    }

    /// Returns the file offset of the next byte.
    #[inline]
    pub fn file_offset(&self) -> usize {
        self.end - self.rest.len()
    }

    /// Returns true if no bytes are left.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the remaining bytes.
    #[inline]
    pub(super) fn get_unread_bytes_slice(&self) -> &'a [u8] {
        self.rest
    }

    /// Advances until `behind` is all that remains. `behind` must be a suffix of the remaining bytes.
    #[inline]
    pub(super) fn skip_to_remaining_suffix(&mut self, behind: &'a [u8]) {
        debug_assert!(self.rest.ends_with(behind));
        self.rest = behind;
    }

    /// Reads a varint.
    #[inline(always)]
    pub fn read_varint(&mut self) -> Result<u64, TraceError> {
        match self.rest {
            [a, rest @ ..] if *a < 0x80 => {
                self.rest = rest;
                Ok(u64::from(*a))
            }
            [a, b, rest @ ..] if *b < 0x80 => {
                self.rest = rest;
                Ok(u64::from(*a & 0x7f) | u64::from(*b) << 7)
            }
            [a, b, c, rest @ ..] if *c < 0x80 => {
                self.rest = rest;
                Ok(u64::from(*a & 0x7f) | u64::from(*b & 0x7f) << 7 | u64::from(*c) << 14)
            }
            _ => self.read_long_varint(),
        }
    }

    /// Reads a varint of more than three bytes, or a varint near the end of the data.
    #[inline(never)]
    fn read_long_varint(&mut self) -> Result<u64, TraceError> {
        let Some(head) = self.rest.first_chunk::<8>() else {
            return self.read_varint_over_8_bytes_or_at_end();
        };
        let word = u64::from_le_bytes(*head);
        let ends = !word & 0x8080_8080_8080_8080;
        if ends == 0 {
            return self.read_varint_over_8_bytes_or_at_end();
        }
        // The varint ends at the first byte whose top bit is clear.
        let used = ends.trailing_zeros() / 8 + 1;
        self.rest = &self.rest[used as usize..];
        Ok(join_varint_bytes(word & (u64::MAX >> (64 - 8 * used))))
    }

    /// Reads a varint of more than eight bytes, or one near the end of the data.
    fn read_varint_over_8_bytes_or_at_end(&mut self) -> Result<u64, TraceError> {
        if let Some((value, length)) = decode_varint(self.rest) {
            self.rest = &self.rest[length..];
            return Ok(value);
        }
        let what = if self.rest.len() < 10 {
            "the data ends inside a number"
        } else {
            "a number longer than 64 bits"
        };
        Err(TraceError::malformed_at(self.file_offset(), what))
    }

    /// Takes the next `n` bytes.
    #[inline]
    pub fn take_bytes(&mut self, n: u64) -> Result<&'a [u8], TraceError> {
        match usize::try_from(n) {
            Ok(n) if n <= self.rest.len() => {
                let (head, tail) = self.rest.split_at(n);
                self.rest = tail;
                Ok(head)
            }
            _ => Err(self.too_few_bytes_error(n)),
        }
    }

    #[cold]
    fn too_few_bytes_error(&self, n: u64) -> TraceError {
        let found = format!(
            "the length is {n} bytes, but only {} are left",
            self.rest.len()
        );
        TraceError::malformed_at(self.file_offset(), found)
    }

    /// Reads a field: its number and its value.
    #[inline(always)]
    pub fn read_field(&mut self) -> Result<(u32, WireValue<'a>), TraceError> {
        let start = self.file_offset();
        let key = match self.rest {
            // Fields 1 to 15 have one-byte keys.
            [key @ 8..0x80, rest @ ..] => {
                self.rest = rest;
                u32::from(*key)
            }
            _ => self.read_long_key(start)?,
        };
        let number = key >> 3;
        let raw = match key & 7 {
            0 => WireValue::Varint(self.read_varint()?),
            1 => WireValue::Fixed64(self.read_fixed64()?),
            2 => {
                let n = self.read_varint()?;
                let offset = self.file_offset();
                WireValue::Bytes(self.take_bytes(n)?, offset)
            }
            3 => {
                self.skip_group(number)?;
                WireValue::Group
            }
            5 => WireValue::Fixed32(self.read_fixed32()?),
            other => return Err(invalid_wire_type_error(start, number, other)),
        };
        Ok((number, raw))
    }

    /// Reads a key of two or more bytes, which has a field number above 15. Fails on an invalid key.
    fn read_long_key(&mut self, start: usize) -> Result<u32, TraceError> {
        match u32::try_from(self.read_varint()?) {
            Err(_) => Err(TraceError::malformed_at(
                start,
                "a field key longer than 32 bits",
            )),
            Ok(0..8) => Err(TraceError::malformed_at(start, "a field numbered 0")),
            Ok(key) => Ok(key),
        }
    }

    #[inline]
    fn read_fixed64(&mut self) -> Result<u64, TraceError> {
        let bytes = self.take_bytes(8)?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
    }

    #[inline]
    fn read_fixed32(&mut self) -> Result<u32, TraceError> {
        let bytes = self.take_bytes(4)?;
        Ok(u32::from_le_bytes(bytes.try_into().expect("4 bytes")))
    }

    fn skip_group(&mut self, number: u32) -> Result<(), TraceError> {
        let start = self.file_offset();
        // The nesting depth is untrusted input, so open groups are kept in a list, not on the call stack.
        let mut open = vec![number];
        while let Some(&innermost) = open.last() {
            let at = self.file_offset();
            if self.is_empty() {
                return Err(TraceError::malformed_at(start, "the group has no end"));
            }
            let key = self.read_varint()?;
            let inner = u32::try_from(key >> 3)
                .map_err(|_| TraceError::malformed_at(at, "a field key longer than 32 bits"))?;
            match key & 7 {
                0 => {
                    self.read_varint()?;
                }
                1 => {
                    self.take_bytes(8)?;
                }
                2 => {
                    let n = self.read_varint()?;
                    self.take_bytes(n)?;
                }
                3 if open.len() < MAX_GROUP_DEPTH => open.push(inner),
                4 if inner == innermost => {
                    open.pop();
                }
                5 => {
                    self.take_bytes(4)?;
                }
                _ => {
                    return Err(TraceError::malformed_at(
                        at,
                        "the group ends with the key of another field",
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Decodes the varint at the start of `bytes`. Returns the value and its length, or `None` if the varint does not end
/// or exceeds 64 bits.
pub fn decode_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0_u64;
    for (i, &byte) in bytes.iter().take(10).enumerate() {
        if i == 9 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            return Some((value, i + 1));
        }
    }
    None
}

/// Joins the lower seven bits of all eight bytes in three steps: first within pairs of bytes, then within groups of
/// four, then within all eight.
#[inline(always)]
pub(super) fn join_varint_bytes(word: u64) -> u64 {
    let pairs = (word & 0x007f_007f_007f_007f) | (word & 0x7f00_7f00_7f00_7f00) >> 1;
    let fours = (pairs & 0x0000_3fff_0000_3fff) | (pairs & 0x3fff_0000_3fff_0000) >> 2;
    (fours & 0x0fff_ffff) | (fours & 0x0fff_ffff_0000_0000) >> 4
}

#[cold]
fn invalid_wire_type_error(start: usize, number: u32, kind: u32) -> TraceError {
    let found = format!("field {number} has wire type {kind}, which execution traces do not use");
    TraceError::malformed_at(start, found)
}

/// Calls `each` for every value of a repeated varint field, packed or not.
#[inline]
pub fn visit_repeated_varints(
    raw: WireValue<'_>,
    offset: usize,
    mut each: impl FnMut(u64) -> Result<(), TraceError>,
) -> Result<(), TraceError> {
    match raw {
        WireValue::Varint(value) => each(value),
        WireValue::Bytes(packed, at) => {
            let mut cursor = WireCursor::new(packed, at);
            while !cursor.is_empty() {
                each(cursor.read_varint()?)?;
            }
            Ok(())
        }
        _ => Err(TraceError::malformed_at(
            offset,
            "expected a list of numbers",
        )),
    }
}

/// Cursor over the records of a trace file, each of which is `[length][message]`.
#[derive(Clone, Debug)]
pub struct FrameCursor<'a> {
    cursor: WireCursor<'a>,
    next: usize,
}

/// Undecoded record.
#[derive(Clone, Copy, Debug)]
pub struct RawRecord<'a> {
    /// Index of the record in the file; the metadata record has index 0.
    pub number: usize,
    /// File offset of the record's message.
    pub offset: usize,
    /// Bytes of the record's message.
    pub bytes: &'a [u8],
}

impl<'a> FrameCursor<'a> {
    /// Creates a cursor over the decompressed contents of a file.
    pub fn new(contents: &'a [u8]) -> Self {
        Self {
            cursor: WireCursor::new(contents, 0),
            next: 0,
        }
    }

    /// Returns the next record, or `None` at the end of the file.
    #[inline]
    pub fn next_record(&mut self) -> Result<Option<RawRecord<'a>>, TraceError> {
        if self.cursor.is_empty() {
            return Ok(None);
        }
        let number = self.next;
        let start = self.cursor.file_offset();
        match self.read_length_prefixed_message(start) {
            Ok((offset, bytes)) => {
                self.next += 1;
                Ok(Some(RawRecord {
                    number,
                    offset,
                    bytes,
                }))
            }
            Err(error) => Err(broken_frame_error(error, number, start)),
        }
    }

    /// Returns the message that follows the length at `start`, and the message's file offset.
    #[inline]
    fn read_length_prefixed_message(
        &mut self,
        start: usize,
    ) -> Result<(usize, &'a [u8]), TraceError> {
        let length = self.cursor.read_varint()?;
        if length > MAX_RECORD {
            return Err(TraceError::malformed_at(
                start,
                format!("a record of {length} bytes, expected less than 2^32"),
            ));
        }
        let offset = self.cursor.file_offset();
        Ok((offset, self.cursor.take_bytes(length)?))
    }
}

#[cold]
fn broken_frame_error(error: TraceError, number: usize, start: usize) -> TraceError {
    error
        .with_cause("the file is truncated, or is not an execution trace")
        .in_record(number, start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_of_every_length_are_read_and_broken_ones_refused() {
        for shift in 0..64 {
            for value in [1_u64 << shift, (1_u64 << shift) - 1, u64::MAX >> shift] {
                let mut bytes = Vec::new();
                prost::encoding::encode_varint(value, &mut bytes);
                let mut cursor = WireCursor::new(&bytes, 0);
                assert_eq!(cursor.read_varint().unwrap(), value);
                assert!(cursor.is_empty());
                let mut short = WireCursor::new(&bytes[..bytes.len() - 1], 0);
                assert!(short.read_varint().is_err());
            }
        }
        // One invalid varint has ten bytes, with more than 64 bits of payload; the other has eleven bytes.
        let mut long = [0xff_u8; 11];
        assert!(WireCursor::new(&long, 0).read_varint().is_err());
        long[9] = 2;
        assert!(WireCursor::new(&long, 0).read_varint().is_err());
        long[9] = 1;
        assert_eq!(WireCursor::new(&long, 0).read_varint().unwrap(), u64::MAX);
    }

    #[test]
    fn frames_name_the_record_and_the_byte_where_a_file_breaks() {
        // Record 0 has a length of 2 bytes (offsets 1..3). Record 1 states a length of 5 bytes, but only 1 byte is
        // left.
        let file = [2, 10, 0, 5, 8];
        let mut frames = FrameCursor::new(&file);
        let first = frames.next_record().unwrap().unwrap();
        assert_eq!(
            (first.number, first.offset, first.bytes),
            (0, 1, &[10, 0][..])
        );
        let error = frames.next_record().unwrap_err().to_string();
        assert!(error.contains("record 1, byte 4"), "{error}");
        assert!(
            error.contains("the length is 5 bytes, but only 1 are left"),
            "{error}"
        );
    }

    #[test]
    fn groups_are_skipped_whole() {
        // The message contains field 3, a group with a varint (field 1) and a nested group (field 2). Field 4 follows,
        // with the value 7.
        let bytes = [0x1b, 0x08, 0x01, 0x13, 0x14, 0x1c, 0x20, 0x07];
        let mut cursor = WireCursor::new(&bytes, 0);
        assert_eq!(cursor.read_field().unwrap(), (3, WireValue::Group));
        assert_eq!(cursor.read_field().unwrap(), (4, WireValue::Varint(7)));
        assert!(
            WireCursor::new(&[0x1b, 0x08, 0x01], 0)
                .read_field()
                .is_err()
        );
    }
}
