//! A buffer that is written from its end, so that the length of a message is known where it is written.

use super::decimals::digits;
use crate::archive::wire::WireError;

/// Writer of a buffer from its end. In front of what is asked for lies a margin, into which copies of a fixed size may
/// reach; what they leave there, or in front of what was written, is overwritten.
#[derive(Debug)]
pub struct BackwardWriter<'b> {
    buffer: &'b mut [u8],
    at: usize,
}

/// Bytes that are copied at once, which takes less than finding out how many there are.
pub const ONCE: usize = 64;

const TOO_LARGE: WireError = WireError("its records are larger than it says");

impl<'b> BackwardWriter<'b> {
    /// Starts at the end of `bytes` bytes in `buffer`, whose contents do not matter.
    pub fn new(buffer: &'b mut Vec<u8>, bytes: usize) -> Self {
        super::resize(buffer, bytes + ONCE);
        Self {
            at: buffer.len(),
            buffer,
        }
    }

    /// Returns the position of what was written last.
    #[inline]
    pub fn at(&self) -> usize {
        self.at
    }

    /// Returns the `N` bytes in front of what was written.
    #[inline(always)]
    fn place<const N: usize>(&mut self) -> Result<&mut [u8; N], WireError> {
        let place = self.buffer.get_mut(..self.at);
        let place = place.and_then(<[u8]>::last_chunk_mut);
        place.ok_or(TOO_LARGE)
    }

    /// Writes `length` bytes of `all` that end at `end`.
    #[inline(always)]
    pub fn literal(&mut self, all: &[u8], end: usize, length: usize) -> Result<(), WireError> {
        if length > ONCE {
            return self.long_literal(&all[end - length..end]);
        }
        // What is copied too much lies in front of the literal.
        let whole = all[..end].last_chunk::<ONCE>();
        *self.place()? = *whole.expect("as much lies before any literal");
        self.at -= length;
        Ok(())
    }

    #[inline(never)]
    fn long_literal(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        let from = self.at.checked_sub(bytes.len()).ok_or(TOO_LARGE)?;
        self.buffer[from..self.at].copy_from_slice(bytes);
        self.at = from;
        Ok(())
    }

    /// Replaces the byte `offset` bytes behind the one in front of what was written last.
    #[inline(always)]
    pub fn patch(&mut self, offset: usize, byte: u8) -> Result<(), WireError> {
        let place = self.at.wrapping_sub(1).wrapping_add(offset);
        *self.buffer.get_mut(place).ok_or(TOO_LARGE)? = byte;
        Ok(())
    }

    /// Writes a varint.
    #[inline(always)]
    pub fn varint(&mut self, value: u64) -> Result<(), WireError> {
        if value >> 56 != 0 {
            return self.long_varint(value);
        }
        // Groups of seven bits move to bytes of their own: of 28, then of 14, then of 7.
        let spread = value & 0x0fff_ffff | (value & 0x00ff_ffff_f000_0000) << 4;
        let spread = spread & 0x0000_3fff_0000_3fff | (spread & 0x0fff_c000_0fff_c000) << 2;
        let spread = spread & 0x007f_007f_007f_007f | (spread & 0x3f80_3f80_3f80_3f80) << 1;
        // n bits take (9 n + 64) / 64 bytes, which is exact up to 56 bits.
        let bits = 64 - (value | 1).leading_zeros();
        let length = (9 * bits + 64) / 64;
        let unused = 64 - 8 * length;
        // All bytes but the last, which is the highest, say that another follows.
        let more = 0x0080_8080_8080_8080 >> unused;
        *self.place()? = ((spread | more) << unused).to_le_bytes();
        self.at -= length as usize;
        Ok(())
    }

    #[inline(never)]
    fn long_varint(&mut self, value: u64) -> Result<(), WireError> {
        let mut bytes = Vec::with_capacity(10);
        crate::archive::wire::put_varint(&mut bytes, value);
        self.long_literal(&bytes)
    }

    /// Writes a number in decimal digits.
    #[inline]
    pub fn decimal(&mut self, mut value: u64) -> Result<(), WireError> {
        let from = self.at.checked_sub(digits(value)).ok_or(TOO_LARGE)?;
        for byte in self.buffer[from..self.at].iter_mut().rev() {
            *byte = b'0' + (value % 10) as u8;
            value /= 10;
        }
        self.at = from;
        Ok(())
    }

    /// Returns what was written, which must be as much as was asked for.
    pub fn finish(self) -> Result<&'b [u8], WireError> {
        match self.at {
            ONCE => Ok(&self.buffer[ONCE..]),
            ..ONCE => Err(TOO_LARGE),
            _ => Err(WireError("its records are smaller than it says")),
        }
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
        let mut buffer = vec![0xff; 7];
        let mut out = BackwardWriter::new(&mut buffer, expected.len());
        for &value in values.iter().rev() {
            out.varint(value).unwrap();
        }
        assert_eq!(out.finish().unwrap(), expected);
    }

    #[test]
    fn what_is_larger_or_smaller_than_was_said_is_refused() {
        let mut buffer = Vec::new();
        // Three bytes have no room for a number of four, which is known in the end.
        let mut out = BackwardWriter::new(&mut buffer, 3);
        out.varint(1 << 21).unwrap();
        assert_eq!(out.finish(), Err(TOO_LARGE));
        let mut out = BackwardWriter::new(&mut buffer, 3);
        out.varint(1 << 20).unwrap();
        assert_eq!(out.finish().unwrap(), [0x80, 0x80, 0x40]);
        let out = BackwardWriter::new(&mut buffer, 1);
        assert!(out.finish().is_err());
        // Nothing is ever written in front of the buffer.
        let literals: Vec<u8> = (0..100).collect();
        for length in [0, 1, 31, 32, 63, 64, 65, 80] {
            let mut out = BackwardWriter::new(&mut buffer, 100);
            let written = (0..200).map_while(|_| out.literal(&literals, 90, length).ok());
            let written = written.count();
            assert_eq!(written == 200, length == 0, "{length}");
            assert!(length == 0 || out.decimal(u64::MAX).is_err() || out.finish().is_err());
        }
        let mut out = BackwardWriter::new(&mut buffer, 4);
        out.decimal(1024).unwrap();
        assert_eq!(out.finish().unwrap(), b"1024");
    }

    #[test]
    fn literals_are_copied_whole_and_lengths_put_right() {
        let literals: Vec<u8> = (0..200).collect();
        let mut buffer = Vec::new();
        let mut out = BackwardWriter::new(&mut buffer, 140);
        out.literal(&literals, 190, 90).unwrap();
        out.literal(&literals, 100, 32).unwrap();
        out.literal(&literals, 80, 18).unwrap();
        out.patch(4, 0xee).unwrap();
        // In front of what was written anything may stand.
        out.patch(0, 0xee).unwrap();
        let mut expected = [&literals[62..80], &literals[68..100], &literals[100..190]].concat();
        expected[3] = 0xee;
        assert_eq!(out.finish().unwrap(), expected);
    }
}
