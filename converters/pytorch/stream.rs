//! Streaming reader for JSON that is too large to fit in memory: an object with one huge array, or the array alone.
//!
//! A window slides over the decompressed text. Every element of the array is parsed in place. If an element extends
//! beyond the window, the window moves and the element is parsed again. The window's size therefore bounds the memory,
//! and only a few bytes at the ends of windows are read twice. The window grows only if a single value is too large for
//! it.

#[cfg(test)]
pub(super) mod damage;
mod layouts;
mod located_element;
mod scanner;
mod utf16;
mod window;

use super::name_repair::{KeysAroundName, repair_json_element_name};
use super::token_repair::{RepairedJsonValue, repair_tokens};
use super::{JsonRepairKind, SingleJsonRepairWithOffset, number};
use chakram_trace::format::TraceError;
use chakram_trace::format::file::DecompressedStream;
pub(super) use layouts::{ElementLayouts, SKIPPED};
use located_element::{
    DAMAGED, build_invalid_text_error_at_offset, explain_parse_error, shorten_first_line,
};
pub(super) use located_element::{ElementTextAndOffset, parse_integer};
pub(super) use scanner::{JsonScanner, JsonValueText, SeenKeys};
use serde::Deserialize;
use std::path::Path;
use window::{MAX_ELEMENT, MAX_VALUE, TextWindow};

/// Advice for files that consist of several JSON texts.
const SPLIT: &str =
    "split the file at this byte of the decompressed text, and pass one or all of the parts";

/// Number of bytes that the window must contain before a value is reported as damaged. At the end of the text, fewer
/// suffice.
const ENOUGH: usize = 1 << 16;

/// Receives the values of a text.
pub(super) trait JsonElementReceiver {
    /// Kind of file for error messages, such as "host trace".
    const WHAT: &'static str;
    /// Key of the large array.
    const ARRAY: &'static str;
    /// True if the text may be the array itself, without an object around it.
    const BARE: bool;
    /// Layout used to detect and repair unescaped names.
    const LAYOUT: KeysAroundName;
    /// Parsed form of an element of the array.
    type Element<'de>: Default + Deserialize<'de>;

    /// Reads the element at the start of `text` into `element`, and returns its length. Returns
    /// `None` if only the general parser can read the element.
    fn scan_element_and_return_length<'de>(
        &mut self,
        text: &'de str,
        element: &mut Self::Element<'de>,
    ) -> Option<usize>;
    /// Receives an element of the array.
    fn handle_array_element(
        &mut self,
        element: &Self::Element<'_>,
        at: ElementTextAndOffset<'_>,
    ) -> Result<(), TraceError>;
    /// Receives the value of a key other than [`Self::ARRAY`].
    fn handle_non_array_key_value(
        &mut self,
        key: &str,
        value: JsonValueText<'_>,
        at: ElementTextAndOffset<'_>,
    ) -> Result<(), TraceError>;
    /// Records the repair of a name in the next element.
    fn record_repair(&mut self, repair: SingleJsonRepairWithOffset);
}

/// Reads the file at `path`. Returns the length of the decompressed text in bytes.
pub(super) fn read_json_file_elements(
    path: &Path,
    format: &mut impl JsonElementReceiver,
) -> Result<u64, TraceError> {
    let walked = TextWindow::new(DecompressedStream::open_path(path)?, path)
        .and_then(|window| JsonWalker(window).walk_json_document(format));
    walked.map_err(|error| error.in_file(path))
}

/// Reads the text in `bytes`; returns its length.
pub(super) fn read_bytes(
    bytes: &[u8],
    format: &mut impl JsonElementReceiver,
) -> Result<u64, TraceError> {
    let path = Path::new("trace");
    let stream = DecompressedStream::from_bytes(bytes)
        .map_err(|source| TraceError::from_io(path, "decompress", source))?;
    JsonWalker(TextWindow::new(stream, path)?).walk_json_document(format)
}

/// Walks through the text.
struct JsonWalker<'s>(TextWindow<'s>);

impl JsonWalker<'_> {
    fn walk_json_document<F: JsonElementReceiver>(
        &mut self,
        format: &mut F,
    ) -> Result<u64, TraceError> {
        let (expected, what): (&[u8], _) = if F::BARE {
            (b"{[", "`{` or `[`")
        } else {
            (b"{", "`{`")
        };
        let what = format!("{what} at the start of a {}", F::WHAT);
        if self.0.expect_byte(expected, &what)? == b'[' {
            self.walk_array(format)?;
        } else {
            self.walk_object(format)?;
        }
        if self.0.peek_non_blank_byte()?.is_some() {
            let (found, hint) = match self.0.remaining_bytes().first() {
                Some(b'{') => ("a second JSON text begins here".to_owned(), SPLIT),
                _ => (
                    format!(
                        "found {} after the end of the JSON text",
                        shorten_first_line(self.0.remaining_bytes())
                    ),
                    DAMAGED,
                ),
            };
            return Err(build_invalid_text_error_at_offset(
                self.0.byte_offset(),
                found,
                hint,
            ));
        }
        Ok(self.0.byte_offset())
    }

    fn walk_object<F: JsonElementReceiver>(&mut self, format: &mut F) -> Result<(), TraceError> {
        let mut seen = false;
        let mut first = true;
        loop {
            let expected = if first { "a key or `}`" } else { "a key" };
            match self.0.peek_non_blank_byte()? {
                Some(b'}') if first => self.0.advance_by(1),
                Some(b'"') => {
                    let mut key = String::new();
                    self.parse_value_outside_array(format, |_, text, _| {
                        key = number::unquote_json_value(text.as_str()).into_owned();
                        Ok(())
                    })?;
                    self.0.expect_byte(b":", "`:` after a key")?;
                    if key == F::ARRAY {
                        let twice = format!("a second `{key}`, expected one");
                        if seen {
                            return Err(build_invalid_text_error_at_offset(
                                self.0.byte_offset(),
                                twice,
                                DAMAGED,
                            ));
                        }
                        seen = true;
                        self.0.expect_byte(b"[", &format!("the array `{key}`"))?;
                        self.walk_array(format)?;
                    } else {
                        self.parse_value_outside_array(format, |format, value, at| {
                            format.handle_non_array_key_value(&key, value, at)
                        })?;
                    }
                    first = false;
                    if self.0.expect_byte(b",}", "`,` or `}` after a value")? == b','
                        && !self.accept_bracket_after_comma(b'}', format)?
                    {
                        continue;
                    }
                }
                _ => {
                    self.0.expect_byte(b"\"", expected)?;
                }
            }
            break;
        }
        if !seen {
            let found = format!("the file has no `{}`, so it is not a {}", F::ARRAY, F::WHAT);
            let hint = "pass the file that torch.profiler wrote";
            return Err(build_invalid_text_error_at_offset(
                self.0.byte_offset(),
                found,
                hint,
            ));
        }
        Ok(())
    }

    fn walk_array<F: JsonElementReceiver>(&mut self, format: &mut F) -> Result<(), TraceError> {
        if self.0.peek_non_blank_byte()? == Some(b']') {
            self.0.advance_by(1);
            return Ok(());
        }
        self.0.peek_non_blank_byte()?;
        for record in 0.. {
            let offset = self.0.byte_offset();
            self.hand_next_element_to_receiver(format)
                .map_err(|error| error.in_record(record, offset as usize))?;
            if self.0.consume_comma_before_object() {
                continue;
            }
            if self.0.expect_byte(b",]", "`,` or `]` after an element")? == b']'
                || self.accept_bracket_after_comma(b']', format)?
            {
                break;
            }
            self.0.peek_non_blank_byte()?;
        }
        Ok(())
    }

    /// Accepts a closing bracket after a comma, because some scripts put a comma at the end of every line.
    fn accept_bracket_after_comma(
        &mut self,
        close: u8,
        format: &mut impl JsonElementReceiver,
    ) -> Result<bool, TraceError> {
        let ends = self.0.peek_non_blank_byte()? == Some(close);
        if ends {
            format.record_repair(SingleJsonRepairWithOffset {
                offset: self.0.byte_offset(),
                what: JsonRepairKind::Comma,
                text: char::from(close).to_string(),
            });
            self.0.advance_by(1);
        }
        Ok(ends)
    }

    fn hand_next_element_to_receiver<F: JsonElementReceiver>(
        &mut self,
        format: &mut F,
    ) -> Result<(), TraceError> {
        loop {
            let offset = self.0.byte_offset();
            let text = self.0.remaining_bytes();
            if let Some(used) = self.scan_and_receive_next_element(format)? {
                self.0.advance_by(used);
                return Ok(());
            }
            let parsed = match parse_value_in_window::<F::Element<'_>>(&self.0) {
                Ok((element, used)) => {
                    format.handle_array_element(&element, ElementTextAndOffset { text, offset })?;
                    Ok(used)
                }
                Err(error) => Err(error),
            };
            let error = match parsed {
                Ok(used) => {
                    self.0.advance_by(used);
                    return Ok(());
                }
                Err(error) => error,
            };
            // If the window ends within a JSON token, the parser may report an error other than an
            // early end.
            if !self.0.has_text_end_in_window() && (error.is_eof() || text.len() < ENOUGH) {
                self.0.refill_window(MAX_ELEMENT)?;
                continue;
            }
            let Some(mended) = repair_json_element_name(text, &F::LAYOUT) else {
                let Some(mended) = repair_tokens(text) else {
                    return Err(explain_parse_error(text, offset, &error));
                };
                let (element, _) = parse_first_value_of_bytes::<F::Element<'_>>(&mended.text)
                    .map_err(|error| explain_parse_error(&mended.text, offset, &error))?;
                format.record_repair(describe_token_repair(&mended, offset));
                let text = &mended.text;
                format.handle_array_element(&element, ElementTextAndOffset { text, offset })?;
                self.0.advance_by(mended.length);
                return Ok(());
            };
            let before = mended.text.len();
            // Offset at which the element must start to keep the original offsets of the bytes after the repaired name.
            let behind = (offset + mended.resume as u64).wrapping_sub(before as u64);
            // Try a prefix that is long enough for most elements, then longer prefixes.
            let mut stretch = 1 << 13;
            loop {
                let whole = stretch >= text.len() - mended.resume;
                let rest = &text[mended.resume..];
                let mut mended_text = mended.text.clone();
                mended_text.extend_from_slice(if whole { rest } else { &rest[..stretch] });
                match parse_first_value_of_bytes::<F::Element<'_>>(&mended_text) {
                    Ok((element, used)) => {
                        format.record_repair(SingleJsonRepairWithOffset {
                            offset: offset + mended.name_at as u64,
                            what: JsonRepairKind::Name,
                            text: mended.name,
                        });
                        let text = &mended_text;
                        format.handle_array_element(
                            &element,
                            ElementTextAndOffset {
                                text,
                                offset: behind,
                            },
                        )?;
                        // Convert the length to that of the original text, in which the name is unescaped and therefore
                        // shorter.
                        self.0.advance_by(used - before + mended.resume);
                        return Ok(());
                    }
                    Err(error) if error.is_eof() && !whole => stretch *= 4,
                    Err(error) if error.is_eof() && !self.0.has_text_end_in_window() => {
                        self.0.refill_window(MAX_ELEMENT)?;
                        break;
                    }
                    Err(error) => return Err(explain_parse_error(&mended_text, behind, &error)),
                }
            }
        }
    }

    /// Consumes the element at the window's next byte, and returns its length. Returns `None` if the scanner
    /// cannot read the element.
    #[inline]
    fn scan_and_receive_next_element<F: JsonElementReceiver>(
        &self,
        format: &mut F,
    ) -> Result<Option<usize>, TraceError> {
        let mut element = F::Element::default();
        let used = format.scan_element_and_return_length(self.0.valid_text(), &mut element);
        if used.is_some() {
            let (text, offset) = (self.0.remaining_bytes(), self.0.byte_offset());
            format.handle_array_element(&element, ElementTextAndOffset { text, offset })?;
        }
        Ok(used)
    }

    /// Parses a value outside the array.
    fn parse_value_outside_array<F: JsonElementReceiver>(
        &mut self,
        format: &mut F,
        take: impl FnOnce(&mut F, JsonValueText<'_>, ElementTextAndOffset<'_>) -> Result<(), TraceError>,
    ) -> Result<(), TraceError> {
        self.0.peek_non_blank_byte()?;
        loop {
            let offset = self.0.byte_offset();
            let text = self.0.remaining_bytes();
            match parse_value_in_window::<JsonValueText<'_>>(&self.0) {
                // A number at the end of the window may continue beyond the window.
                Ok((_, used)) if used == text.len() && !self.0.has_text_end_in_window() => {}
                Ok((value, used)) => {
                    take(format, value, ElementTextAndOffset { text, offset })?;
                    self.0.advance_by(used);
                    return Ok(());
                }
                Err(error)
                    if !self.0.has_text_end_in_window()
                        && (error.is_eof() || text.len() < ENOUGH) => {}
                Err(error) => {
                    let mended = repair_tokens(text);
                    let mended = mended.ok_or_else(|| explain_parse_error(text, offset, &error))?;
                    let (value, _) = parse_first_value_of_bytes::<JsonValueText<'_>>(&mended.text)
                        .map_err(|error| explain_parse_error(&mended.text, offset, &error))?;
                    format.record_repair(describe_token_repair(&mended, offset));
                    let text = &mended.text;
                    take(format, value, ElementTextAndOffset { text, offset })?;
                    self.0.advance_by(mended.length);
                    return Ok(());
                }
            }
            self.0.refill_window(MAX_VALUE)?;
        }
    }
}

/// Describes the repair of the value that begins at `offset`.
fn describe_token_repair(mended: &RepairedJsonValue, offset: u64) -> SingleJsonRepairWithOffset {
    SingleJsonRepairWithOffset {
        offset: offset + mended.first_at as u64,
        what: mended.what,
        text: mended.token.to_owned(),
    }
}

/// Parses the value at the start of the window's remaining text. Returns the value and the length of its text.
///
/// If the text is valid UTF-8, its strings need not be validated again.
fn parse_value_in_window<'de, T: Deserialize<'de>>(
    window: &'de TextWindow<'_>,
) -> Result<(T, usize), serde_json::Error> {
    let (valid, text) = (window.valid_text(), window.remaining_bytes());
    match parse_first_value(serde_json::Deserializer::from_str(valid).into_iter()) {
        // The text contains invalid UTF-8, so leave it to the general path, which repairs or reports it.
        Err(error) if error.is_eof() && valid.len() < text.len() => {
            parse_first_value_of_bytes(text)
        }
        parsed => parsed,
    }
}

/// Parses the value at the start of `text`. Returns the value and the length of its text.
fn parse_first_value_of_bytes<'de, T: Deserialize<'de>>(
    text: &'de [u8],
) -> Result<(T, usize), serde_json::Error> {
    parse_first_value(serde_json::Deserializer::from_slice(text).into_iter())
}

fn parse_first_value<'de, R: serde_json::de::Read<'de>, T: Deserialize<'de>>(
    mut values: serde_json::StreamDeserializer<'de, R, T>,
) -> Result<(T, usize), serde_json::Error> {
    match values.next() {
        Some(Ok(value)) => Ok((value, values.byte_offset())),
        Some(Err(error)) => Err(error),
        None => Err(serde::de::Error::custom("the text ends, expected a value")),
    }
}
