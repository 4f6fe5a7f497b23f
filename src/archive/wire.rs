//! Reads and writes varints, which must use the shortest encoding; also reads encoded data with limits on counts.

use chakram_trace::format::wire::decode_varint;

pub use chakram_trace::format::encoder::{put_varint, varint_length};

/// Error for invalid encoded data, with a description of the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ArchiveDecodingError(pub &'static str);

/// Reads a byte string from front to back.
#[derive(Debug)]
pub struct ByteStringReader<'a> {
    rest: &'a [u8],
}

/// Reads a minimally encoded varint from the front of `bytes`; returns its value and its length.
#[inline(always)]
pub fn decode_minimal_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    match *bytes {
        [value @ ..0x80, ..] => Some((value.into(), 1)),
        [low, high @ 1..0x80, ..] => Some((u64::from(low & 0x7f) | u64::from(high) << 7, 2)),
        _ => decode_long_varint_if_minimal(bytes),
    }
}

#[cold]
fn decode_long_varint_if_minimal(bytes: &[u8]) -> Option<(u64, usize)> {
    let is_shortest = |&(_, length): &(u64, usize)| length == 1 || bytes[length - 1] != 0;
    decode_varint(bytes).filter(is_shortest)
}

impl<'a> ByteStringReader<'a> {
    /// Starts at the beginning of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Reads a varint.
    pub fn read_varint(&mut self) -> Result<u64, ArchiveDecodingError> {
        let (value, length) = decode_minimal_varint(self.rest)
            .ok_or(ArchiveDecodingError("a number is malformed"))?;
        self.rest = &self.rest[length..];
        Ok(value)
    }

    /// Reads a count, which must not exceed `most`.
    pub fn read_count(&mut self, most: usize) -> Result<usize, ArchiveDecodingError> {
        let value = usize::try_from(self.read_varint()?).ok();
        value
            .filter(|&value| value <= most)
            .ok_or(ArchiveDecodingError(
                "a count is larger than the data allows",
            ))
    }

    /// Takes the next `n` bytes.
    pub fn take_bytes(&mut self, n: usize) -> Result<&'a [u8], ArchiveDecodingError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(n)
            .ok_or(ArchiveDecodingError("the data ends too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    /// Fails unless all bytes were read.
    pub fn expect_end(&self) -> Result<(), ArchiveDecodingError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(ArchiveDecodingError("there is more data than stated"))
    }

    /// Returns whether all bytes were read.
    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_shortest_form_of_a_number_is_read() {
        for value in [0, 1, 127, 128, 300, 1 << 35, u64::MAX] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            assert_eq!(decode_minimal_varint(&bytes), Some((value, bytes.len())));
            assert_eq!(varint_length(value), bytes.len());
            // A truncated varint has no end.
            assert_eq!(decode_minimal_varint(&bytes[..bytes.len() - 1]), None);
        }
        // These encodings are invalid: 0 with a second group of zeros, 2^64 in ten groups, and any number in eleven
        // groups.
        assert_eq!(decode_minimal_varint(&[0x80, 0]), None);
        assert_eq!(
            decode_minimal_varint(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2]),
            None
        );
        assert_eq!(decode_minimal_varint(&[0x80; 11]), None);
    }
}
