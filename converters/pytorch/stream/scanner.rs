//! A fast scanner for JSON that has the expected form.
//!
//! The scanner accepts only valid values, and reads them exactly as the general parser does. Any other value ends the
//! scan. The general parser then reads the element again, and reports any damage with its offset.

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Text of a valid JSON value, without surrounding whitespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::pytorch) struct JsonValueText<'a>(&'a str);

impl<'a> JsonValueText<'a> {
    /// Wraps the text of a parsed value.
    pub fn wrap_parsed_raw_value(value: &'a RawValue) -> Self {
        Self(value.get())
    }

    /// Wraps `text`, which the scanner has already validated.
    pub fn from_valid_json(text: &'a str) -> Self {
        Self(text)
    }

    /// Returns the text.
    pub fn as_str(self) -> &'a str {
        self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for JsonValueText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&RawValue>::deserialize(deserializer).map(Self::wrap_parsed_raw_value)
    }
}

/// Eight bytes, each with the value 1.
const ONES: u64 = u64::from_ne_bytes([1; 8]);

/// Maximum nesting of skipped values. The general parser handles deeper nesting.
const DEEPEST: u32 = 32;

/// A position in a text. Methods return `None` if the scan must end.
pub(in crate::pytorch) struct JsonScanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> JsonScanner<'a> {
    /// Starts at the beginning of `text`, which may end anywhere, even inside a value.
    pub fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Returns the number of consumed bytes.
    pub fn consumed_bytes(&self) -> usize {
        self.at
    }

    /// Returns the remaining text.
    #[inline]
    pub fn remaining_text(&self) -> &'a [u8] {
        &self.text.as_bytes()[self.at..]
    }

    /// Skips `bytes` bytes, which must not exceed the remaining text.
    #[inline]
    pub fn advance_by(&mut self, bytes: usize) {
        self.at += bytes;
    }

    /// Reads a string without escapes that begins exactly here, and returns its content.
    #[inline]
    pub fn read_plain_string_here(&mut self) -> Option<&'a str> {
        (*self.text.as_bytes().get(self.at)? == b'"').then_some(())?;
        self.read_plain_string()
    }

    /// Reads any value except `null` that begins exactly here.
    #[inline]
    pub fn read_non_null_value_here(&mut self) -> Option<&'a str> {
        let start = self.at;
        match *self.text.as_bytes().get(start)? {
            b'0'..=b'9' => self.skip_number()?,
            b'"' => self.skip_string()?,
            b' ' | b'\n' | b'\r' | b'\t' | b'n' => return None,
            _ => self.skip_value()?,
        }
        self.text.get(start..self.at)
    }

    /// Returns the next non-blank byte without consuming it.
    #[inline]
    pub fn peek_non_blank_byte(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        loop {
            match *bytes.get(self.at)? {
                b' ' | b'\n' | b'\r' | b'\t' => self.at += 1,
                byte => return Some(byte),
            }
        }
    }

    #[inline]
    fn consume_byte_if_next(&mut self, byte: u8) -> Option<()> {
        (self.peek_non_blank_byte()? == byte).then(|| self.at += 1)
    }

    /// Skips blanks, then reads a string without escapes.
    #[inline(always)]
    pub fn read_plain_string(&mut self) -> Option<&'a str> {
        self.consume_byte_if_next(b'"')?;
        let start = self.at;
        let end = end_of_plain_text(self.text.as_bytes(), start)?;
        self.at = end + 1;
        (self.text.as_bytes()[end] == b'"').then_some(())?;
        self.text.get(start..end)
    }

    /// Consumes `null` if it comes next, and returns true in that case.
    pub fn accept_null(&mut self) -> Option<bool> {
        if self.peek_non_blank_byte()? != b'n' {
            return Some(false);
        }
        self.skip_literal("null").map(|()| true)
    }

    /// Reads any value.
    #[inline]
    pub fn read_value_text(&mut self) -> Option<JsonValueText<'a>> {
        self.peek_non_blank_byte()?;
        let start = self.at;
        self.skip_value()?;
        self.text.get(start..self.at).map(JsonValueText)
    }

    /// Reads any value; `null` becomes `None`.
    #[inline]
    pub fn read_optional(&mut self) -> Option<Option<JsonValueText<'a>>> {
        let value = self.read_value_text()?;
        Some((value.0 != "null").then_some(value))
    }

    /// Skips any value.
    #[inline]
    pub fn skip_value(&mut self) -> Option<()> {
        self.skip_value_up_to_depth(DEEPEST)
    }

    fn skip_value_up_to_depth(&mut self, deeper: u32) -> Option<()> {
        match self.peek_non_blank_byte()? {
            b'"' => self.skip_string(),
            b'[' => {
                if self.skip_list_of_integers_and_strings() {
                    return Some(());
                }
                let deeper = deeper.checked_sub(1)?;
                self.read_list(|scan| scan.skip_value_up_to_depth(deeper))
            }
            b'{' => {
                let deeper = deeper.checked_sub(1)?;
                self.read_object(|scan, _| scan.skip_value_up_to_depth(deeper))
            }
            b't' => self.skip_literal("true"),
            b'f' => self.skip_literal("false"),
            b'n' => self.skip_literal("null"),
            _ => self.skip_number(),
        }
    }

    /// Skips a list of integers and strings, such as the arguments of operators. Lists may be
    /// nested. If the next value has another form, returns `false` and consumes nothing.
    fn skip_list_of_integers_and_strings(&mut self) -> bool {
        let bytes = self.text.as_bytes();
        let (mut at, mut depth) = (self.at, 0);
        // `expected` is true if a value must come next. `optional` is true if the innermost list is still empty, so
        // that it may end instead.
        let (mut expected, mut optional) = (true, false);
        while let Some(&byte) = bytes.get(at) {
            at += 1;
            match byte {
                b'[' if expected && depth < DEEPEST => {
                    depth += 1;
                    optional = true;
                    continue;
                }
                b']' if !expected || optional => {
                    depth -= 1;
                    if depth == 0 {
                        self.at = at;
                        return true;
                    }
                    expected = false;
                }
                b',' if !expected => expected = true,
                b'0'..=b'9' if expected => {
                    let first = at;
                    let Some(end) = digits_end(bytes, at) else {
                        return false;
                    };
                    at = end;
                    if byte == b'0' && at > first {
                        return false;
                    }
                    expected = false;
                }
                b'"' if expected => {
                    let Some(end) = string_end(bytes, at) else {
                        return false;
                    };
                    at = end;
                    expected = false;
                }
                b' ' => continue,
                _ => return false,
            }
            optional = false;
        }
        false
    }

    /// Reads an object. For each key, calls `entry` to read the key's value.
    #[inline]
    pub fn read_object(
        &mut self,
        mut entry: impl FnMut(&mut Self, &'a str) -> Option<()>,
    ) -> Option<()> {
        self.consume_byte_if_next(b'{')?;
        if self.peek_non_blank_byte()? == b'}' {
            self.at += 1;
            return Some(());
        }
        loop {
            let key = self.read_plain_string()?;
            self.consume_byte_if_next(b':')?;
            entry(self, key)?;
            if self.take_comma_or_closing_bracket(b'}')? {
                return Some(());
            }
        }
    }

    /// Reads a list, and calls `element` for each element.
    #[inline]
    pub fn read_list(&mut self, mut element: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.consume_byte_if_next(b'[')?;
        if self.peek_non_blank_byte()? == b']' {
            self.at += 1;
            return Some(());
        }
        loop {
            element(self)?;
            if self.take_comma_or_closing_bracket(b']')? {
                return Some(());
            }
        }
    }

    /// Consumes either a comma or the closing bracket `close`. Returns true if it was the bracket.
    #[inline]
    fn take_comma_or_closing_bracket(&mut self, close: u8) -> Option<bool> {
        let byte = self.peek_non_blank_byte()?;
        self.at += 1;
        match byte {
            b',' => Some(false),
            byte => (byte == close).then_some(true),
        }
    }

    fn skip_literal(&mut self, word: &str) -> Option<()> {
        let found = self.text.as_bytes()[self.at..].starts_with(word.as_bytes());
        found.then(|| self.at += word.len())
    }

    fn skip_string(&mut self) -> Option<()> {
        self.at = string_end(self.text.as_bytes(), self.at + 1)?;
        Some(())
    }

    #[inline]
    fn skip_number(&mut self) -> Option<()> {
        let bytes = self.text.as_bytes();
        let mut at = self.at + usize::from(bytes[self.at] == b'-');
        let integer = at;
        at = digits_end(bytes, at)?;
        // JSON forbids leading zeros.
        if at == integer || bytes[integer] == b'0' && at > integer + 1 {
            return None;
        }
        if bytes[at] == b'.' {
            let fraction = at + 1;
            at = digits_end(bytes, fraction)?;
            (at > fraction).then_some(())?;
        }
        if matches!(bytes[at], b'e' | b'E') {
            let sign = matches!(bytes.get(at + 1)?, b'+' | b'-');
            let exponent = at + 1 + usize::from(sign);
            at = digits_end(bytes, exponent)?;
            (at > exponent).then_some(())?;
        }
        self.at = at;
        Some(())
    }
}

/// The keys of an object that have been read so far. The element's reader assigns a small number to
/// each key.
#[derive(Default)]
pub(in crate::pytorch) struct SeenKeys(u32);

impl SeenKeys {
    /// Records a key; returns `None` if it is a duplicate, which the general parser reports.
    #[inline]
    pub fn record_key_if_new(&mut self, key: u32) -> Option<()> {
        let new = self.0 & 1 << key == 0;
        self.0 |= 1 << key;
        new.then_some(())
    }
}

/// Returns the offset just after the string whose content begins at `at`.
#[inline]
fn string_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at = end_of_plain_text(bytes, at)?;
        match bytes[at] {
            b'"' => return Some(at + 1),
            b'\\' => {}
            _ => return None,
        }
        at += match bytes.get(at + 1)? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => 2,
            b'u' => {
                let digits = bytes.get(at + 2..at + 6)?;
                digits.iter().all(u8::is_ascii_hexdigit).then_some(6)?
            }
            _ => return None,
        };
    }
}

/// Returns the offset of the first byte at or after `at` that is not a digit. Returns `None` if the text ends first,
/// because more digits may follow in the next window.
#[inline]
fn digits_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    while let Some(word) = eight_bytes_at(bytes, at) {
        let found = mark_first_non_digit(word);
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    let length = bytes.get(at..)?.iter().position(|b| !b.is_ascii_digit())?;
    Some(at + length)
}

/// Returns the eight bytes at `at`.
#[inline]
pub(super) fn eight_bytes_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*bytes))
}

/// Sets the top bit in the first byte of `word` that is not a digit. Higher bytes of the result are
/// undefined.
#[inline]
fn mark_first_non_digit(word: u64) -> u64 {
    // Digits become 0 to 9. The addition sets the top bit of each byte that is not a digit, unless the bit is
    // already set.
    let word = word ^ (ONES * u64::from(b'0'));
    (word.wrapping_add(ONES * (0x80 - 10)) | word) & (ONES << 7)
}

/// Returns the offset of the first byte at or after `at` that ends the plain part of a string. Such a byte is a quote,
/// a backslash, or a control character (invalid in strings).
#[inline]
fn end_of_plain_text(bytes: &[u8], mut at: usize) -> Option<usize> {
    while let Some(word) = eight_bytes_at(bytes, at) {
        let found = mark_first_quote_backslash_or_control(word);
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    let ends = |b: &u8| matches!(b, b'"' | b'\\' | ..b' ');
    Some(at + bytes.get(at..)?.iter().position(ends)?)
}

/// Sets the top bit in the first byte of `word` that is a quote, a backslash or a control character. Higher bytes of
/// the result are undefined.
#[inline]
fn mark_first_quote_backslash_or_control(word: u64) -> u64 {
    // A borrow affects only the bytes after the first match.
    let zero = |word: u64| word.wrapping_sub(ONES) & !word;
    let control = word.wrapping_sub(ONES * 0x20) & !word;
    let quote = zero(word ^ (ONES * u64::from(b'"')));
    let backslash = zero(word ^ (ONES * u64::from(b'\\')));
    (control | quote | backslash) & (ONES << 7)
}

#[cfg(test)]
mod tests {
    use super::super::damage::build_pseudo_random_generator;
    use super::*;

    #[test]
    fn plain_parts_end_at_the_first_special_byte() {
        for special in 0..=255_u8 {
            for place in 0..20 {
                let mut bytes = [b'a'; 24];
                // All bytes of multi-byte characters are larger than any ASCII byte.
                bytes[place / 2] = 0xc3;
                bytes[place] = special;
                bytes[22] = b'"';
                let ends = matches!(special, b'"' | b'\\') || special < b' ';
                let expected = if ends { place } else { 22 };
                assert_eq!(
                    end_of_plain_text(&bytes, 0),
                    Some(expected),
                    "{special} at {place}"
                );
            }
        }
        assert_eq!(end_of_plain_text(b"no end at all", 0), None);
    }

    /// The general parser defines which values are valid.
    #[test]
    fn legal_values_are_those_of_the_general_parser() {
        let parts = [
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            " ",
            "\n",
            "\"",
            "\"a\"",
            "\"\\n\"",
            "\"\\u00e9\"",
            "\\",
            "\\u12",
            "é",
            "\u{1}",
            "0",
            "01",
            "12",
            "-",
            "-3",
            ".",
            "4.5",
            "1e5",
            "2E-7",
            "e",
            "+",
            "true",
            "false",
            "null",
            "nul",
            "NaN",
            "{\"k\": 1}",
            "[1, 2]",
            "{}",
            "[]",
            "[[3], 4,[5 ,[0]] ]",
            "[\"\",[\"a b\", 2]]",
        ];
        let mut below = build_pseudo_random_generator(7);
        let (mut legal, mut scanned) = (0, 0);
        for _ in 0..200_000 {
            // Put the values into a list, because a number at the end of the text might be
            // incomplete.
            let mut text = String::from("[");
            for _ in 0..=below(6) {
                text.push_str(parts[below(parts.len())]);
            }
            text.push(']');
            let mut scan = JsonScanner::new(&text);
            let found = scan
                .read_value_text()
                .map(|value| (value.as_str(), scan.consumed_bytes()));
            let mut values = serde_json::Deserializer::from_str(&text).into_iter::<&RawValue>();
            let expected = values.next().and_then(Result::ok);
            let expected = expected.map(|value| (value.get(), values.byte_offset()));
            legal += usize::from(expected.is_some());
            scanned += usize::from(found.is_some());
            // If the scanner rejects a valid text, the text must contain escapes, which only the general parser reads.
            if found.is_some() {
                assert_eq!(found, expected, "{text}");
            } else if expected.is_some() {
                assert!(text.contains('\\'), "{text}");
            }
        }
        assert!(
            legal > 10_000 && scanned > legal * 9 / 10,
            "{scanned} of {legal}"
        );
    }
}
