//! Buffers records while they are written. The length of a message is known only when the message
//! ends.

use super::decimals::digit_count;
use crate::wire::ArchiveDecodingError;

/// Writes into a buffer with a margin after the usable part. Copies of a fixed size may run into the margin; later
/// writes overwrite the excess bytes.
#[derive(Debug)]
pub struct PaddedBufferWriter<'b> {
    buffer: &'b mut Vec<u8>,
    at: usize,
}

/// Size of a fixed-size copy, which is faster than an exact one.
const ONCE: usize = 64;
/// Size of a fixed-size copy for short literals. Most literals are this short.
const SHORT: usize = 32;

/// Maximum length of a varint, and of a number in decimal digits.
pub const LONGEST: usize = 10;
pub const DIGITS: usize = 20;

pub const TOO_LARGE: ArchiveDecodingError =
    ArchiveDecodingError("the chunk's records are larger than stated");

/// Spreads `value`, which must be below 2^56, into bytes with seven bits each. Returns these bytes,
/// and how many of them are needed.
#[inline(always)]
fn spread_septets(value: u64) -> (u64, usize) {
    // Three steps split the value into groups of 28 bits, then of 14 bits, then of 7 bits.
    let spread = value & 0x0fff_ffff | (value & 0x00ff_ffff_f000_0000) << 4;
    let spread = spread & 0x0000_3fff_0000_3fff | (spread & 0x0fff_c000_0fff_c000) << 2;
    let spread = spread & 0x007f_007f_007f_007f | (spread & 0x3f80_3f80_3f80_3f80) << 1;
    // n bits take ceil(n / 7) bytes, which equals (9 n + 64) / 64 for 1 to 56 bits.
    let bits = 64 - (value | 1).leading_zeros();
    let length = (9 * bits + 64) / 64;
    // The mask sets the continuation bit in all bytes except the last (highest).
    let more = 0x0080_8080_8080_8080 >> (64 - 8 * length);
    (spread | more, length as usize)
}

impl<'b> PaddedBufferWriter<'b> {
    /// Starts at the beginning of `buffer` and ignores its old contents.
    pub fn new(buffer: &'b mut Vec<u8>) -> Self {
        Self { buffer, at: 0 }
    }

    /// Ensures capacity for `bytes` bytes in total.
    pub fn reserve_bytes(&mut self, bytes: usize) {
        if self.buffer.len() < bytes + ONCE {
            self.buffer.resize(bytes + ONCE, 0);
        }
    }

    /// Returns the remaining capacity, in bytes.
    #[inline]
    pub fn remaining_capacity(&self) -> usize {
        self.buffer.len().saturating_sub(self.at + ONCE)
    }

    /// Returns the bytes written so far.
    pub fn written_bytes(&self) -> &[u8] {
        &self.buffer[..self.at]
    }

    /// Restarts at the beginning of the buffer.
    pub fn restart_at_begin(&mut self) {
        self.at = 0;
    }

    /// Reserves `bytes` bytes for a length, and returns the offset at which the contents begin.
    #[inline(always)]
    pub fn reserve_length_bytes(&mut self, bytes: usize) -> usize {
        self.at += bytes;
        self.at
    }

    /// Writes the length of the contents that begin at `from` into the bytes reserved before them. Moves the contents
    /// if the length needs more or fewer bytes than the `left` bytes that were reserved.
    #[inline(always)]
    pub fn put_length(&mut self, from: usize, left: usize) -> Result<(), ArchiveDecodingError> {
        let (bytes, length) = spread_septets((self.at - from) as u64);
        if length != left {
            let end = self.at - left + length;
            self.buffer.get(..end).ok_or(TOO_LARGE)?;
            self.buffer.copy_within(from..self.at, from - left + length);
            self.at = end;
        }
        let place = self.buffer.get_mut(from - left..).ok_or(TOO_LARGE)?;
        for (byte, group) in place.iter_mut().zip(bytes.to_le_bytes()).take(length) {
            *byte = group;
        }
        Ok(())
    }

    /// Copies `N` bytes to the current position. Returns false, and copies nothing, if fewer than `N` bytes remain in
    /// `from` or in the buffer.
    #[inline(always)]
    fn copy_array<const N: usize>(&mut self, from: &[u8]) -> bool {
        let place = self.buffer.get_mut(self.at..);
        let place = place.and_then(<[u8]>::first_chunk_mut::<N>);
        let (Some(place), Some(from)) = (place, from.first_chunk()) else {
            return false;
        };
        *place = *from;
        true
    }

    /// Writes the first `length` bytes of `from`.
    #[inline(always)]
    pub fn write_literal(
        &mut self,
        from: &[u8],
        length: usize,
    ) -> Result<(), ArchiveDecodingError> {
        let copied = if length <= SHORT {
            self.copy_array::<SHORT>(from)
        } else {
            length <= ONCE && self.copy_array::<ONCE>(from)
        };
        if !copied {
            self.copy_exact(&from[..length])?;
        }
        self.at += length;
        Ok(())
    }

    /// Copies exactly `bytes` to the current position.
    #[inline(never)]
    fn copy_exact(&mut self, bytes: &[u8]) -> Result<(), ArchiveDecodingError> {
        let place = self.buffer.get_mut(self.at..self.at + bytes.len());
        place.ok_or(TOO_LARGE)?.copy_from_slice(bytes);
        Ok(())
    }

    /// Writes a varint. If the varint ends a message, also writes the message's length into the byte that is `length`
    /// bytes before the varint; otherwise, `length` is 0.
    #[inline(always)]
    pub fn write_varint_and_message_length(
        &mut self,
        value: u64,
        length: usize,
    ) -> Result<(), ArchiveDecodingError> {
        let place = self.buffer.get_mut(self.at - length..);
        let place = place.ok_or(TOO_LARGE)?;
        if value >> 56 != 0 || place.len() < length + 8 {
            return self.write_long_varint_and_message_length(value, length);
        }
        let (bytes, own) = spread_septets(value);
        // If no message ends here, the varint overwrites this byte.
        place[0] = (length + own).wrapping_sub(1) as u8;
        place[length..length + 8].copy_from_slice(&bytes.to_le_bytes());
        self.at += own;
        Ok(())
    }

    #[inline(never)]
    fn write_long_varint_and_message_length(
        &mut self,
        value: u64,
        length: usize,
    ) -> Result<(), ArchiveDecodingError> {
        let mut bytes = Vec::with_capacity(LONGEST);
        crate::wire::put_varint(&mut bytes, value);
        self.copy_exact(&bytes)?;
        if length > 0 {
            self.buffer[self.at - length] = (length - 1 + bytes.len()) as u8;
        }
        self.at += bytes.len();
        Ok(())
    }

    /// Writes a number in decimal digits.
    #[inline]
    pub fn write_decimal(&mut self, mut value: u64) -> Result<(), ArchiveDecodingError> {
        let end = self.at + digit_count(value);
        let place = self.buffer.get_mut(self.at..end).ok_or(TOO_LARGE)?;
        for byte in place.iter_mut().rev() {
            *byte = b'0' + (value % 10) as u8;
            value /= 10;
        }
        self.at = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::put_varint;

    /// Creates a buffer of `bytes` bytes that is filled with old data.
    fn create_stale_buffer(bytes: usize) -> Vec<u8> {
        vec![0xff; bytes + ONCE]
    }

    #[test]
    fn varints_and_message_lengths_are_written() {
        let powers = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, u64::MAX >> bit]);
        let values: Vec<u64> = powers.chain([0x0123_4567_89ab_cdef]).collect();
        let (mut expected, mut buffer) = (Vec::new(), create_stale_buffer(4000));
        let mut out = PaddedBufferWriter::new(&mut buffer);
        for &value in &values {
            put_varint(&mut expected, value);
            out.write_varint_and_message_length(value, 0).unwrap();
            // The expected message consists of its length, "ab" and the value.
            let at = expected.len();
            expected.extend_from_slice(b"\0ab");
            put_varint(&mut expected, value);
            expected[at] = (expected.len() - at - 1) as u8;
            out.write_literal(b"\0ab", 3).unwrap();
            out.write_varint_and_message_length(value, 3).unwrap();
        }
        assert_eq!(out.written_bytes(), expected);
    }

    #[test]
    fn nothing_is_written_behind_the_buffer() {
        let literals: Vec<u8> = (0..100).collect();
        for length in [1, 9, 31, 32, 33, 63, 64, 65, 80] {
            let mut buffer = vec![0; 100];
            let mut out = PaddedBufferWriter::new(&mut buffer);
            let written = (0..200).map_while(|_| out.write_literal(&literals, length).ok());
            assert_eq!(written.count(), 100 / length, "{length}");
            let mut numbers =
                (0..100).map_while(|_| out.write_varint_and_message_length(u64::MAX >> 8, 0).ok());
            assert!(numbers.by_ref().count() < 100);
            let digits = (0..100).map_while(|_| out.write_decimal(1024).ok());
            assert!(digits.count() < 100);
        }
        let mut buffer = vec![0; 130];
        let mut out = PaddedBufferWriter::new(&mut buffer);
        let from = out.reserve_length_bytes(1);
        (0..129).for_each(|_| out.write_literal(b"a", 1).unwrap());
        // A two-byte length would move the contents by one byte, for which the buffer has no room.
        assert_eq!(out.put_length(from, 1), Err(TOO_LARGE));
    }

    #[test]
    fn contents_move_if_length_needs_more_or_fewer_bytes() {
        let mut buffer = create_stale_buffer(1000);
        let literals: Vec<u8> = (0..200).collect();
        for (length, left) in [
            (0, 1),
            (0, 2),
            (90, 1),
            (90, 2),
            (127, 1),
            (128, 1),
            (200, 2),
            (200, 3),
        ] {
            let mut out = PaddedBufferWriter::new(&mut buffer);
            out.write_decimal(1024).unwrap();
            let from = out.reserve_length_bytes(left);
            out.write_literal(&literals, length).unwrap();
            out.put_length(from, left).unwrap();
            let mut expected = b"1024".to_vec();
            put_varint(&mut expected, length as u64);
            expected.extend_from_slice(&literals[..length]);
            assert_eq!(out.written_bytes(), expected, "{length} {left}");
        }
    }
}
