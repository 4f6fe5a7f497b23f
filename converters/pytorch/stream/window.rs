//! A window that slides over a text.

use super::located_element::{
    DAMAGED, TRUNCATED, build_invalid_text_error_at_offset, shorten_first_line,
};
use super::utf16::as_utf8;
use chakram_trace::format::TraceError;
use chakram_trace::format::file::DecompressedStream;
use std::io::Read;
use std::path::Path;

/// Size of the window in bytes, small enough for the processor's inner caches.
const WINDOW: usize = 1 << 18;
/// Maximum size of one array element, in bytes. The observer truncates lists after 4,096 values, so
/// its elements are shorter than 2 MiB.
pub(super) const MAX_ELEMENT: usize = 16 << 20;
/// Maximum length, in bytes, of a value outside the array.
pub(super) const MAX_VALUE: usize = 64 << 20;

/// A window over the text, and the next byte to read.
pub(super) struct TextWindow<'s> {
    source: Box<dyn Read + 's>,
    path: &'s Path,
    window: Vec<u8>,
    at: usize,
    end: usize,
    /// Index at which the known-valid UTF-8 after `at` ends.
    valid: usize,
    /// Offset of the window's first byte in the whole text.
    base: u64,
    /// True if the text ends within the window.
    ended: bool,
    /// Text between the last two objects, including the second object's opening brace.
    separator: Vec<u8>,
}

impl<'s> TextWindow<'s> {
    /// Opens a window at the start of `source`; error messages name `path`.
    pub fn new(source: DecompressedStream<'s>, path: &'s Path) -> Result<Self, TraceError> {
        let source =
            as_utf8(source).map_err(|e| TraceError::from_io(path, "read or decompress", e))?;
        let mut this = Self {
            source,
            path,
            window: vec![0; WINDOW],
            at: 0,
            end: 0,
            valid: 0,
            base: 0,
            ended: false,
            separator: Vec::new(),
        };
        this.refill_window(MAX_VALUE)?;
        // Skip a byte order mark.
        if this.remaining_bytes().starts_with(b"\xef\xbb\xbf") {
            this.at += 3;
        }
        Ok(this)
    }

    /// Returns the text from the next byte to the window's end.
    pub fn remaining_bytes(&self) -> &[u8] {
        &self.window[self.at..self.end]
    }

    /// Returns the valid UTF-8 prefix of [`Self::remaining_bytes`].
    pub fn valid_text(&self) -> &str {
        let text = &self.window[self.at..self.valid];
        // SAFETY: `extend_valid_utf8_range` checked that `at..valid` is UTF-8, and moves `valid`
        // whenever `at` passes it.
        unsafe { std::str::from_utf8_unchecked(text) }
    }

    /// Extends the range that is known to be valid UTF-8.
    fn extend_valid_utf8_range(&mut self) {
        let from = self.valid.max(self.at);
        let valid = match std::str::from_utf8(&self.window[from..self.end]) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        self.valid = from + valid;
    }

    /// Returns the offset of the next byte in the whole text.
    pub fn byte_offset(&self) -> u64 {
        self.base + self.at as u64
    }

    /// Returns true if the text ends within the window.
    pub fn has_text_end_in_window(&self) -> bool {
        self.ended
    }

    /// Skips `bytes` bytes.
    pub fn advance_by(&mut self, bytes: usize) {
        self.at += bytes;
        if self.at > self.valid {
            self.extend_valid_utf8_range();
        }
    }

    /// Moves the window's start to the next byte, and fills the window. If the window already begins there, enlarges it
    /// instead. Fails if a value is longer than `longest` bytes.
    pub fn refill_window(&mut self, longest: usize) -> Result<(), TraceError> {
        let held = self.end - self.at;
        if held >= longest {
            let found = format!("a value here is longer than {} MiB", longest >> 20);
            return Err(build_invalid_text_error_at_offset(
                self.byte_offset(),
                found,
                DAMAGED,
            ));
        }
        if self.at == 0 && self.end == self.window.len() {
            self.window.resize(2 * self.end, 0);
        }
        self.window.copy_within(self.at..self.end, 0);
        self.valid -= self.at;
        (self.base, self.at, self.end) = (self.byte_offset(), 0, held);
        while !self.ended && self.end < self.window.len() {
            match self.source.read(&mut self.window[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(read) => self.end += read,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                // An error without an OS code comes from the decompressor, because the compressed
                // data is truncated or corrupt.
                Err(e) if e.raw_os_error().is_none() => {
                    let found = format!("the file cannot be decompressed: {e}");
                    return Err(build_invalid_text_error_at_offset(
                        self.base + self.end as u64,
                        found,
                        TRUNCATED,
                    ));
                }
                Err(e) => return Err(TraceError::from_io(self.path, "read or decompress", e)),
            }
        }
        self.extend_valid_utf8_range();
        Ok(())
    }

    /// Returns the next byte that is not blank, without consuming it.
    pub fn peek_non_blank_byte(&mut self) -> Result<Option<u8>, TraceError> {
        loop {
            match self.remaining_bytes().iter().position(|b| !is_blank(*b)) {
                Some(skip) => {
                    self.advance_by(skip);
                    return Ok(Some(self.window[self.at]));
                }
                None => self.advance_by(self.end - self.at),
            }
            if self.ended {
                return Ok(None);
            }
            self.refill_window(MAX_VALUE)?;
        }
    }

    /// If an object follows, consumes the comma and the blanks before it. Returns true if an object follows.
    #[inline]
    pub fn consume_comma_before_object(&mut self) -> bool {
        let text = &self.window[self.at..self.valid];
        let separator = &self.separator;
        // This separator is usually the same as before the previous object.
        if !separator.is_empty() && text.starts_with(separator) {
            self.at += separator.len() - 1;
            return true;
        }
        let from = |at: usize| text[at..].iter().position(|b| !is_blank(*b));
        let behind = |at: usize, byte: u8| {
            let at = at + from(at)?;
            (text[at] == byte).then_some(at)
        };
        let Some(object) = behind(0, b',').and_then(|comma| behind(comma + 1, b'{')) else {
            return false;
        };
        self.separator = text[..=object].to_vec();
        self.at += object;
        true
    }

    /// Consumes the next non-blank byte, which must be one of `expected`.
    pub fn expect_byte(&mut self, expected: &[u8], what: &str) -> Result<u8, TraceError> {
        match self.peek_non_blank_byte()? {
            Some(byte) if expected.contains(&byte) => {
                self.advance_by(1);
                Ok(byte)
            }
            Some(_) => {
                let found = format!(
                    "found {}, expected {what}",
                    shorten_first_line(self.remaining_bytes())
                );
                Err(build_invalid_text_error_at_offset(
                    self.byte_offset(),
                    found,
                    DAMAGED,
                ))
            }
            None => {
                let found = format!("the text ends, expected {what}");
                Err(build_invalid_text_error_at_offset(
                    self.byte_offset(),
                    found,
                    TRUNCATED,
                ))
            }
        }
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\t' | b'\r')
}
