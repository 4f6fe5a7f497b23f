//! Pull parser for JSON: the caller asks for the values that it expects. The parser allocates only for strings with
//! escapes, and tracks line and column. Numbers stay text, so none is rounded.

use crate::format::TraceError;
use std::borrow::Cow;

/// Maximum nesting depth of values that the parser skips.
const MAX_DEPTH: usize = 200;

/// A position in a JSON text.
#[derive(Clone, Debug)]
pub(super) struct JsonCursor<'a> {
    text: &'a [u8],
    at: usize,
    /// Offset of the last byte whose position was computed, with its line and column.
    mark: (usize, (usize, usize)),
    /// Id of the current node, for error messages.
    pub node: Option<u64>,
}

/// A scalar value, or the beginning of a container.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum JsonScalarOrContainerStart<'a> {
    Null,
    Bool(bool),
    /// A number, as written in the text.
    Number(&'a str),
    Text(Cow<'a, str>),
    Array,
    Object,
}

type JsonResult<T> = Result<T, TraceError>;

impl<'a> JsonCursor<'a> {
    /// Creates a parser for a text that begins at the line and column `start` of the file.
    pub fn new(text: &'a [u8], start: (usize, usize)) -> Self {
        Self {
            text,
            at: 0,
            mark: (0, start),
            node: None,
        }
    }

    /// Returns the line and column of the next token.
    pub fn line_and_column(&mut self) -> (usize, usize) {
        self.peek_byte();
        let place = self.line_and_column_of(self.at);
        self.mark = (self.at, place);
        place
    }

    /// Returns the line and column of the byte at offset `at`, which must not precede the mark.
    fn line_and_column_of(&self, at: usize) -> (usize, usize) {
        let (from, (line, column)) = self.mark;
        let between = &self.text[from.min(at)..at.min(self.text.len())];
        let last = between.iter().rposition(|&byte| byte == b'\n');
        let lines = between.iter().filter(|&&byte| byte == b'\n').count();
        let rest = &between[last.map_or(0, |last| last + 1)..];
        // Columns count characters, so skip UTF-8's continuation bytes.
        let columns = rest.iter().filter(|&&byte| byte & 0xc0 != 0x80).count();
        match last {
            None => (line, column + columns),
            Some(_) => (line + lines, 1 + columns),
        }
    }

    /// Builds an error at the next token.
    #[cold]
    pub fn error_here(&mut self, found: impl Into<String>) -> TraceError {
        self.peek_byte();
        self.error_at(self.at, found)
    }

    /// Builds an error at the byte offset `at`.
    #[cold]
    pub fn error_at(&self, at: usize, found: impl Into<String>) -> TraceError {
        TraceError::malformed_text_at_line(self.line_and_column_of(at), self.node, found)
    }

    #[cold]
    fn unexpected_token_error(&mut self, expected: &str) -> TraceError {
        let found = match self.peek_byte() {
            None => "the end of the text".to_owned(),
            Some(byte) if byte.is_ascii_graphic() => format!("`{}`", byte as char),
            Some(byte) => format!("the byte {byte:#04x}"),
        };
        self.error_here(format!("found {found}, expected {expected}"))
    }

    /// Skips white space, and returns the next byte without consuming it, or `None` at the end.
    pub fn peek_byte(&mut self) -> Option<u8> {
        while let Some(byte) = self.text.get(self.at) {
            match byte {
                b' ' | b'\t' | b'\n' | b'\r' => self.at += 1,
                byte => return Some(*byte),
            }
        }
        None
    }

    /// Consumes `byte` if it is the next byte.
    pub fn accept_byte(&mut self, byte: u8) -> bool {
        let found = self.peek_byte() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn expect_byte(&mut self, byte: u8, what: &str) -> JsonResult<()> {
        if self.accept_byte(byte) {
            Ok(())
        } else {
            Err(self.unexpected_token_error(what))
        }
    }

    /// Parses an object, and calls `each` with every key; `each` must parse the value.
    pub fn parse_object(
        &mut self,
        mut each: impl FnMut(&mut Self, &str) -> JsonResult<()>,
    ) -> JsonResult<()> {
        self.expect_byte(b'{', "an object")?;
        if self.accept_byte(b'}') {
            return Ok(());
        }
        loop {
            let key = self.parse_key()?;
            each(self, &key)?;
            if self.accept_byte(b'}') {
                return Ok(());
            }
            self.expect_byte(b',', "`,` or `}`")?;
        }
    }

    /// Parses an array, and calls `each` for every value; `each` must parse the value.
    pub fn parse_array(
        &mut self,
        mut each: impl FnMut(&mut Self) -> JsonResult<()>,
    ) -> JsonResult<()> {
        self.expect_byte(b'[', "an array")?;
        if self.accept_byte(b']') {
            return Ok(());
        }
        loop {
            each(self)?;
            if self.accept_byte(b']') {
                return Ok(());
            }
            self.expect_byte(b',', "`,` or `]`")?;
        }
    }

    /// Parses a scalar. If the next value is an object or array, returns only its type and does not enter it.
    pub fn parse_scalar(&mut self) -> JsonResult<JsonScalarOrContainerStart<'a>> {
        Ok(match self.peek_byte() {
            Some(b'{') => JsonScalarOrContainerStart::Object,
            Some(b'[') => JsonScalarOrContainerStart::Array,
            Some(b'"') => JsonScalarOrContainerStart::Text(self.parse_string()?),
            Some(b'-' | b'0'..=b'9') => JsonScalarOrContainerStart::Number(self.parse_number()?),
            Some(b't') => self.parse_word("true", JsonScalarOrContainerStart::Bool(true))?,
            Some(b'f') => self.parse_word("false", JsonScalarOrContainerStart::Bool(false))?,
            Some(b'n') => self.parse_word("null", JsonScalarOrContainerStart::Null)?,
            _ => return Err(self.unexpected_token_error("a value")),
        })
    }

    fn parse_word(
        &mut self,
        word: &str,
        value: JsonScalarOrContainerStart<'a>,
    ) -> JsonResult<JsonScalarOrContainerStart<'a>> {
        if self.text[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            Ok(value)
        } else {
            Err(self.unexpected_token_error("a value"))
        }
    }

    fn parse_number(&mut self) -> JsonResult<&'a str> {
        let start = self.at;
        let rest = &self.text[start..];
        let digits = |from: usize| {
            let rest = rest.get(from..).unwrap_or_default();
            rest.iter().take_while(|b| b.is_ascii_digit()).count()
        };
        let sign = usize::from(rest.first() == Some(&b'-'));
        let whole = digits(sign);
        let mut end = sign + whole;
        let mut sound = whole > 0 && (whole == 1 || rest[sign] != b'0');
        if rest.get(end) == Some(&b'.') {
            let fraction = digits(end + 1);
            sound &= fraction > 0;
            end += 1 + fraction;
        }
        if let Some(b'e' | b'E') = rest.get(end) {
            let sign = usize::from(matches!(rest.get(end + 1), Some(b'+' | b'-')));
            let exponent = digits(end + 1 + sign);
            sound &= exponent > 0;
            end += 1 + sign + exponent;
        }
        if !sound {
            return Err(self.error_here("expected a JSON number"));
        }
        self.at = start + end;
        Ok(std::str::from_utf8(&rest[..end]).expect("digits and signs"))
    }

    /// Parses a string.
    pub fn parse_string(&mut self) -> JsonResult<Cow<'a, str>> {
        self.expect_byte(b'"', "a string")?;
        let start = self.at;
        let plain = |byte: &u8| !matches!(byte, b'"' | b'\\' | 0..0x20);
        let run = |from: &[u8]| from.iter().take_while(|byte| plain(byte)).count();
        self.at += run(&self.text[start..]);
        if self.text.get(self.at) == Some(&b'"') {
            let text = std::str::from_utf8(&self.text[start..self.at])
                .map_err(|_| self.error_at(start, "the string is not UTF-8"))?;
            self.at += 1;
            return Ok(Cow::Borrowed(text));
        }
        let mut text = self.text[start..self.at].to_vec();
        loop {
            match self.text.get(self.at) {
                Some(b'"') => break,
                Some(b'\\') => self.parse_escape(&mut text)?,
                Some(_) if plain(&self.text[self.at]) => {
                    let length = run(&self.text[self.at..]);
                    text.extend_from_slice(&self.text[self.at..self.at + length]);
                    self.at += length;
                }
                Some(byte) => {
                    let found = format!("found the unescaped byte {byte:#04x} in a string");
                    return Err(self.error_at(self.at, found));
                }
                None => return Err(self.error_at(start, "the string has no closing quote")),
            }
        }
        self.at += 1;
        let text = String::from_utf8(text);
        text.map(Cow::Owned)
            .map_err(|_| self.error_at(start, "the string is not UTF-8"))
    }

    fn parse_escape(&mut self, text: &mut Vec<u8>) -> JsonResult<()> {
        let at = self.at;
        let plain = match self.text.get(at + 1) {
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'r') => b'\r',
            Some(b'b') => 8,
            Some(b'f') => 12,
            Some(byte @ (b'"' | b'\\' | b'/')) => *byte,
            Some(b'u') => {
                let found = self.parse_code_point(at);
                let (found, length) =
                    found.ok_or_else(|| self.error_at(at, "the escape is not a character"))?;
                text.extend_from_slice(found.encode_utf8(&mut [0; 4]).as_bytes());
                self.at += length;
                return Ok(());
            }
            _ => return Err(self.error_at(at, "the escape does not exist in JSON")),
        };
        text.push(plain);
        self.at += 2;
        Ok(())
    }

    /// Decodes the escape at `at`, which may be a surrogate pair. Returns the character, and the escape's length in
    /// bytes.
    fn parse_code_point(&self, at: usize) -> Option<(char, usize)> {
        let unit = |at: usize| {
            let escape = self.text.get(at..at + 6)?;
            let digits = escape.strip_prefix(b"\\u")?;
            let digits = std::str::from_utf8(digits).ok()?;
            let sound = digits.bytes().all(|b| b.is_ascii_hexdigit());
            sound.then(|| u32::from_str_radix(digits, 16).ok())?
        };
        let first = unit(at)?;
        if !(0xd800..0xdc00).contains(&first) {
            return Some((char::from_u32(first)?, 6));
        }
        let second = unit(at + 6).filter(|second| (0xdc00..0xe000).contains(second))?;
        let whole = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        Some((char::from_u32(whole)?, 12))
    }

    /// Skips a value of any kind.
    pub fn skip_value(&mut self) -> JsonResult<()> {
        // Closing brackets of the containers that are still open.
        let mut open: Vec<u8> = Vec::new();
        loop {
            match self.parse_scalar()? {
                JsonScalarOrContainerStart::Array | JsonScalarOrContainerStart::Object
                    if open.len() >= MAX_DEPTH =>
                {
                    return Err(self
                        .error_here(format!("the values are nested more than {MAX_DEPTH} deep")));
                }
                JsonScalarOrContainerStart::Array => {
                    self.at += 1;
                    open.push(b']');
                    if self.peek_byte() != Some(b']') {
                        continue;
                    }
                }
                JsonScalarOrContainerStart::Object => {
                    self.at += 1;
                    open.push(b'}');
                    if self.peek_byte() != Some(b'}') {
                        self.parse_key()?;
                        continue;
                    }
                }
                _ => {}
            }
            loop {
                let Some(&close) = open.last() else {
                    return Ok(());
                };
                if self.accept_byte(close) {
                    open.pop();
                    continue;
                }
                self.expect_byte(b',', "`,` or the end of the list or object")?;
                if close == b'}' {
                    self.parse_key()?;
                }
                break;
            }
        }
    }

    /// Parses a key and its colon.
    pub fn parse_key(&mut self) -> JsonResult<Cow<'a, str>> {
        if self.peek_byte() != Some(b'"') {
            return Err(self.unexpected_token_error("a key in quotes"));
        }
        let key = self.parse_string()?;
        self.expect_byte(b':', "`:`")?;
        Ok(key)
    }
}

/// Appends `text` to `out` as a JSON string.
pub(super) fn put_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        let escape = match byte {
            b'"' => &b"\\\""[..],
            b'\\' => b"\\\\",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            b'\t' => b"\\t",
            0..0x20 | 0x7f => &[],
            _ => continue,
        };
        out.extend_from_slice(&text.as_bytes()[from..at]);
        match escape {
            [] => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.extend_from_slice(escape),
        }
        from = at + 1;
    }
    out.extend_from_slice(&text.as_bytes()[from..]);
    out.push(b'"');
}

#[cfg(test)]
mod tests;
