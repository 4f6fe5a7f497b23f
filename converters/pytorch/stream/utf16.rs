//! Converts UTF-16 text, which some editors and shells write, to UTF-8.

use std::io::{Cursor, Read, Result};

/// Converts `source` to UTF-8 if it is UTF-16, and otherwise returns it unchanged. A byte
/// order mark identifies UTF-16, and so does a zero byte next to the first character. UTF-8
/// JSON contains no zero bytes.
pub(super) fn as_utf8<'s>(mut source: impl Read + 's) -> Result<Box<dyn Read + 's>> {
    let mut mark = Vec::with_capacity(2);
    source.by_ref().take(2).read_to_end(&mut mark)?;
    let (big, first) = match &mark[..] {
        [0xff, 0xfe] => (false, Vec::new()),
        [0xfe, 0xff] => (true, Vec::new()),
        [b'{' | b'[', 0] => (false, mark),
        [0, b'{' | b'['] => (true, mark),
        _ => return Ok(Box::new(Cursor::new(mark).chain(source))),
    };
    Ok(Box::new(Utf16TextDecoder {
        source,
        big,
        units: first,
        text: Vec::new(),
        given: 0,
    }))
}

/// A UTF-16 text, decoded in chunks.
struct Utf16TextDecoder<R> {
    source: R,
    /// True if the text is big-endian.
    big: bool,
    /// Bytes that were read but do not yet make a whole character.
    units: Vec<u8>,
    /// Decoded text, of which the first `given` bytes have been returned.
    text: Vec<u8>,
    given: usize,
}

/// Number of bytes to decode at a time.
const PIECE: u64 = 1 << 16;

impl<R: Read> Utf16TextDecoder<R> {
    /// Decodes the next chunk; returns `false` at the end of the text.
    fn decode_chunk(&mut self) -> Result<bool> {
        let read = self
            .source
            .by_ref()
            .take(PIECE)
            .read_to_end(&mut self.units)?;
        let word = |pair: &[u8]| {
            let pair = [pair[0], pair[1]];
            if self.big {
                u16::from_be_bytes(pair)
            } else {
                u16::from_le_bytes(pair)
            }
        };
        let mut words: Vec<u16> = self.units.chunks_exact(2).map(word).collect();
        // Keep the first half of a surrogate pair until the second half is read.
        if read > 0
            && words
                .last()
                .is_some_and(|word| (0xd800..0xdc00).contains(word))
        {
            words.pop();
        }
        let used = 2 * words.len();
        self.text.clear();
        self.given = 0;
        let mut bytes = [0; 4];
        for found in char::decode_utf16(words) {
            let found = found.unwrap_or(char::REPLACEMENT_CHARACTER);
            self.text
                .extend_from_slice(found.encode_utf8(&mut bytes).as_bytes());
        }
        self.units.drain(..used);
        Ok(read > 0 || !self.text.is_empty())
    }
}

impl<R: Read> Read for Utf16TextDecoder<R> {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        while self.given == self.text.len() {
            if !self.decode_chunk()? {
                return Ok(0);
            }
        }
        let count = into.len().min(self.text.len() - self.given);
        into[..count].copy_from_slice(&self.text[self.given..self.given + count]);
        self.given += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_of_bytes_are_read_and_other_texts_left_alone() {
        let text = "[\"µs – 𝄞\"]";
        let read = |bytes: Vec<u8>| {
            let mut out = String::new();
            let mut reader = as_utf8(Cursor::new(bytes)).expect("it is read");
            reader.read_to_string(&mut out).expect("it is UTF-8");
            out
        };
        let words = || std::iter::once(0xfeff).chain(text.encode_utf16());
        assert_eq!(read(words().flat_map(u16::to_le_bytes).collect()), text);
        assert_eq!(read(words().flat_map(u16::to_be_bytes).collect()), text);
        assert_eq!(read(text.as_bytes().to_vec()), text);
        assert_eq!(read(b"[".to_vec()), "[");
    }
}
