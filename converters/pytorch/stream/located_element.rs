//! Elements with their positions in a text, and errors that state these positions.

use super::JsonValueText;
use crate::pytorch::number;
use chakram_trace::format::{TraceError, TraceErrorLocation, escape_and_shorten_name};

/// Advice for a text that ends too early.
pub(super) const TRUNCATED: &str = "the file seems to be cut short: stop the profiler and the observer before the \
                         process ends, and copy the whole file";
/// Advice for a text that breaks the rules of JSON.
pub(super) const DAMAGED: &str = "the file is not the JSON that PyTorch writes: capture again, or repair it by hand at \
                       this byte of the decompressed text";

/// An element and its offset in the text.
#[derive(Clone, Copy)]
pub(in crate::pytorch) struct ElementTextAndOffset<'a> {
    /// Text from the element's first byte to the end of the window.
    pub text: &'a [u8],
    /// Offset in bytes from the start of the whole text.
    pub offset: u64,
}

impl<'a> ElementTextAndOffset<'a> {
    /// Returns the element's text from the start of the value `first` to the end of the value `last`.
    pub fn text_from_first_through_last_value(
        &self,
        first: JsonValueText<'_>,
        last: JsonValueText<'_>,
    ) -> &'a str {
        let start = self.offset_of(first.as_str()).wrapping_sub(self.offset) as usize;
        let end =
            self.offset_of(last.as_str()).wrapping_sub(self.offset) as usize + last.as_str().len();
        let text = self.text.get(start..end).unwrap_or_default();
        // Both values were parsed from this text, so the range is valid UTF-8.
        std::str::from_utf8(text).unwrap_or_default()
    }

    /// Returns the offset of `part`, a slice of the element, in the whole text.
    pub fn offset_of(&self, part: &str) -> u64 {
        let apart = (part.as_ptr() as usize).wrapping_sub(self.text.as_ptr() as usize);
        let inside = if apart < self.text.len() { apart } else { 0 };
        self.offset.wrapping_add(inside as u64)
    }

    /// Builds the error for an invalid `part` of the element.
    #[cold]
    pub fn error_about(&self, part: &str, found: String, hint: &str) -> TraceError {
        build_invalid_text_error_at_offset(self.offset_of(part), found, hint)
    }
}

/// Parses the integer in `value`, if there is one. Fails if the integer does not fit the type.
pub(in crate::pytorch) fn parse_integer<T: TryFrom<i128>>(
    value: Option<JsonValueText<'_>>,
    what: &str,
    at: &ElementTextAndOffset<'_>,
) -> Result<Option<T>, TraceError> {
    let Some(value) = value else { return Ok(None) };
    let number =
        number::parse_json_integer(value.as_str()).and_then(|number| T::try_from(number).ok());
    number.map(Some).ok_or_else(|| {
        let bits = 8 * size_of::<T>();
        let found = format!(
            "`{what}` is {}, expected a whole number of {bits} bits",
            escape_and_shorten_name(value.as_str())
        );
        at.error_about(value.as_str(), found, DAMAGED)
    })
}

/// Builds the error for invalid text at a byte offset in the whole text.
#[cold]
pub(super) fn build_invalid_text_error_at_offset(
    offset: u64,
    found: String,
    hint: &str,
) -> TraceError {
    let place = TraceErrorLocation {
        offset: Some(offset as usize),
        ..TraceErrorLocation::default()
    };
    TraceError::invalid_at(place, found, hint)
}

/// Builds the error for a value that the parser rejected. The value is at the start of `text`, and `text`
/// begins at `offset` in the whole text.
#[cold]
pub(super) fn explain_parse_error(
    text: &[u8],
    offset: u64,
    error: &serde_json::Error,
) -> TraceError {
    let lines = text.split_inclusive(|b| *b == b'\n');
    let before: usize = lines
        .take(error.line().saturating_sub(1))
        .map(<[u8]>::len)
        .sum();
    let inside = (before + error.column().saturating_sub(1)).min(text.len());
    let message = error.to_string();
    let message = message.split(" at line ").next().unwrap_or(&message);
    if error.is_eof() || text.is_empty() {
        let found = format!("the text ends in the middle of a value: {message}");
        return build_invalid_text_error_at_offset(
            offset.wrapping_add(text.len() as u64),
            found,
            TRUNCATED,
        );
    }
    let found = format!("{message}, found {}", shorten_first_line(&text[inside..]));
    build_invalid_text_error_at_offset(offset.wrapping_add(inside as u64), found, DAMAGED)
}

/// Returns the first line of `text`, shortened for messages.
pub(super) fn shorten_first_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(200)]);
    let line = text.trim_start().lines().next().unwrap_or_default();
    format!("`{}`", escape_and_shorten_name(line))
}
