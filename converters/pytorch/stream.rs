//! Walks a JSON text that is too large to be held: an object with one huge array, or that array.
//!
//! A window slides over the decompressed text. Every element of the array is parsed from the window in
//! place; one that runs over the window's end is parsed again after the window has moved. So memory
//! is that of the window, which grows only for a single large value, and no byte is looked at
//! twice but a few at the window's ends.

use super::mend::{Layout, mend};
use super::{Repair, RepairKind, number};
use crate::trace::file::Stream;
use crate::trace::{Place, TraceError, shown};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::io::Read;
use std::path::Path;

/// How much text is held at once.
const WINDOW: usize = 1 << 20;
/// The longest element of the array, and the longest value beside it. The observer cuts lists after
/// 4,096 values, which keeps elements below 2 MiB.
const MAX_ELEMENT: usize = 16 << 20;
const MAX_VALUE: usize = 64 << 20;
/// Text that must be at hand, if there is that much, before a value is said to be damaged.
const ENOUGH: usize = 1 << 16;

/// What reads the values of a text.
pub(super) trait Format {
    /// What the text is, for messages.
    const WHAT: &'static str;
    /// The key of the large array.
    const ARRAY: &'static str;
    /// Whether the array may stand alone.
    const BARE: bool;
    /// How names may be told from what follows them when they are not escaped.
    const LAYOUT: Layout;
    /// What is parsed from an element of the array.
    type Element<'de>: Deserialize<'de>;

    /// Takes an element of the array.
    fn element(&mut self, element: Self::Element<'_>, at: At<'_>) -> Result<(), TraceError>;
    /// Takes the value of another key.
    fn value(&mut self, key: &str, value: &RawValue, at: At<'_>) -> Result<(), TraceError>;
    /// Takes note of a name that was repaired in the element that comes next.
    fn repaired(&mut self, repair: Repair);
}

/// An element as it stands in the text.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    /// The text from the element's first byte on.
    pub text: &'a [u8],
    /// Bytes from the start of the whole text.
    pub offset: u64,
}

impl<'a> At<'a> {
    /// The text from the beginning of one value in the element to the end of another.
    pub fn between(&self, first: &RawValue, last: &RawValue) -> &'a str {
        let start = (self.of(first.get()) - self.offset) as usize;
        let end = (self.of(last.get()) - self.offset) as usize + last.get().len();
        let text = self.text.get(start..end).unwrap_or_default();
        // Both ends are those of values that were found to be text.
        std::str::from_utf8(text).unwrap_or_default()
    }

    /// Where `part` of the element stands, in bytes from the start of the whole text.
    pub fn of(&self, part: &str) -> u64 {
        let apart = (part.as_ptr() as usize).wrapping_sub(self.text.as_ptr() as usize);
        let inside = if apart < self.text.len() { apart } else { 0 };
        self.offset + inside as u64
    }

    /// An error about `part` of the element.
    #[cold]
    pub fn refused(&self, part: &str, found: String, hint: &str) -> TraceError {
        refused(self.of(part), found, hint)
    }
}

/// The whole number in `value`, if there is one, which must fit its type.
pub(super) fn integer<T: TryFrom<i128>>(
    value: Option<&RawValue>,
    what: &str,
    at: &At<'_>,
) -> Result<Option<T>, TraceError> {
    let Some(value) = value else { return Ok(None) };
    let number = number::whole(value.get()).and_then(|number| T::try_from(number).ok());
    number.map(Some).ok_or_else(|| {
        let bits = 8 * size_of::<T>();
        let found = format!(
            "`{what}` is {}, expected a whole number of {bits} bits",
            shown(value.get())
        );
        at.refused(value.get(), found, DAMAGED)
    })
}

/// An error at a byte of the text.
#[cold]
pub(super) fn refused(offset: u64, found: String, hint: &str) -> TraceError {
    let place = Place {
        offset: Some(offset as usize),
        ..Place::default()
    };
    TraceError::refused_at(place, found, hint)
}

/// Reads the text in `path`; returns how many bytes it has after decompression.
pub(super) fn read(path: &Path, format: &mut impl Format) -> Result<u64, TraceError> {
    let walked = Walk::new(Stream::open(path)?, path).and_then(|mut walk| walk.run(format));
    walked.map_err(|error| error.in_file(path))
}

/// Reads the text in `bytes`.
pub(super) fn read_bytes(bytes: &[u8], format: &mut impl Format) -> Result<u64, TraceError> {
    let path = Path::new("trace");
    let stream = Stream::of(bytes).map_err(|source| TraceError::io(path, "decompress", source))?;
    Walk::new(stream, path)?.run(format)
}

/// A window over the text, and the next byte to look at.
struct Walk<'s> {
    source: Stream<'s>,
    path: &'s Path,
    window: Vec<u8>,
    at: usize,
    end: usize,
    /// Where in the text the window begins.
    base: u64,
    /// Whether the text ends with the window.
    ended: bool,
}

const TRUNCATED: &str = "the file seems to be cut short: stop the profiler and the observer before the \
                         process ends, and copy the whole file";
const DAMAGED: &str = "the file is not the JSON that PyTorch writes: capture again, or repair it by hand at \
                       this byte of the decompressed text";

impl<'s> Walk<'s> {
    fn new(source: Stream<'s>, path: &'s Path) -> Result<Self, TraceError> {
        let mut this = Self {
            source,
            path,
            window: vec![0; WINDOW],
            at: 0,
            end: 0,
            base: 0,
            ended: false,
        };
        this.more(MAX_VALUE)?;
        // A byte order mark.
        if this.rest().starts_with(b"\xef\xbb\xbf") {
            this.at += 3;
        }
        Ok(this)
    }

    fn rest(&self) -> &[u8] {
        &self.window[self.at..self.end]
    }

    fn offset(&self) -> u64 {
        self.base + self.at as u64
    }

    /// Moves the window so that it begins at the next byte, and fills it. It grows if that byte was
    /// its first one already.
    fn more(&mut self, longest: usize) -> Result<(), TraceError> {
        let held = self.end - self.at;
        if held >= longest {
            let found = format!("a value here is longer than {} MiB", longest >> 20);
            return Err(refused(self.offset(), found, DAMAGED));
        }
        if self.at == 0 && self.end == self.window.len() {
            self.window.resize(2 * self.end, 0);
        }
        self.window.copy_within(self.at..self.end, 0);
        (self.base, self.at, self.end) = (self.offset(), 0, held);
        while !self.ended && self.end < self.window.len() {
            match self.source.read(&mut self.window[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(read) => self.end += read,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(TraceError::io(self.path, "read or decompress", e)),
            }
        }
        Ok(())
    }

    /// The next byte that is not blank, which stays the next one.
    fn peek(&mut self) -> Result<Option<u8>, TraceError> {
        loop {
            let blank = |b: &u8| matches!(b, b' ' | b'\n' | b'\t' | b'\r');
            match self.rest().iter().position(|b| !blank(b)) {
                Some(skip) => {
                    self.at += skip;
                    return Ok(Some(self.window[self.at]));
                }
                None => self.at = self.end,
            }
            if self.ended {
                return Ok(None);
            }
            self.more(MAX_VALUE)?;
        }
    }

    /// Takes the next byte that is not blank if it is one of `expected`.
    fn take(&mut self, expected: &[u8], what: &str) -> Result<u8, TraceError> {
        match self.peek()? {
            Some(byte) if expected.contains(&byte) => {
                self.at += 1;
                Ok(byte)
            }
            Some(_) => {
                let found = format!("found {}, expected {what}", excerpt(self.rest()));
                Err(refused(self.offset(), found, DAMAGED))
            }
            None => {
                let found = format!("the text ends, expected {what}");
                Err(refused(self.offset(), found, TRUNCATED))
            }
        }
    }

    fn run<F: Format>(&mut self, format: &mut F) -> Result<u64, TraceError> {
        let (expected, what): (&[u8], _) = if F::BARE {
            (b"{[", "`{` or `[`")
        } else {
            (b"{", "`{`")
        };
        let what = format!("{what} at the start of a {}", F::WHAT);
        if self.take(expected, &what)? == b'[' {
            self.array(format)?;
        } else {
            self.object(format)?;
        }
        if self.peek()?.is_some() {
            let found = format!("found {} after the end", excerpt(self.rest()));
            return Err(refused(self.offset(), found, DAMAGED));
        }
        Ok(self.offset())
    }

    fn object<F: Format>(&mut self, format: &mut F) -> Result<(), TraceError> {
        let mut seen = false;
        let mut first = true;
        loop {
            let expected = if first { "a key or `}`" } else { "a key" };
            match self.peek()? {
                Some(b'}') if first => self.at += 1,
                Some(b'"') => {
                    let mut key = String::new();
                    self.small(|text, _| {
                        key = number::text(text.get()).into_owned();
                        Ok(())
                    })?;
                    self.take(b":", "`:` after a key")?;
                    if key == F::ARRAY {
                        let twice = format!("a second `{key}`, expected one");
                        if seen {
                            return Err(refused(self.offset(), twice, DAMAGED));
                        }
                        seen = true;
                        self.take(b"[", &format!("the array `{key}`"))?;
                        self.array(format)?;
                    } else {
                        self.small(|value, at| format.value(&key, value, at))?;
                    }
                    first = false;
                    if self.take(b",}", "`,` or `}` after a value")? == b',' {
                        continue;
                    }
                }
                _ => {
                    self.take(b"\"", expected)?;
                }
            }
            break;
        }
        if !seen {
            let found = format!("no `{}` in it, so this is no {}", F::ARRAY, F::WHAT);
            let hint = "pass the file that torch.profiler wrote";
            return Err(refused(self.offset(), found, hint));
        }
        Ok(())
    }

    fn array<F: Format>(&mut self, format: &mut F) -> Result<(), TraceError> {
        if self.peek()? == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        for record in 0.. {
            self.peek()?;
            let offset = self.offset();
            self.element(format)
                .map_err(|error| error.in_record(record, offset as usize))?;
            if self.take(b",]", "`,` or `]` after an element")? == b']' {
                break;
            }
        }
        Ok(())
    }

    fn element<F: Format>(&mut self, format: &mut F) -> Result<(), TraceError> {
        loop {
            let offset = self.offset();
            let text = self.rest();
            let parsed = match parse::<F::Element<'_>>(text) {
                Ok((element, used)) => {
                    format.element(element, At { text, offset })?;
                    Ok(used)
                }
                Err(error) => Err(error),
            };
            let error = match parsed {
                Ok(used) => {
                    self.at += used;
                    return Ok(());
                }
                Err(error) => error,
            };
            if !self.ended && (error.is_eof() || text.len() < ENOUGH) {
                self.more(MAX_ELEMENT)?;
                continue;
            }
            let Some(mended) = mend(text, &F::LAYOUT) else {
                return Err(explain(text, offset, &error));
            };
            let before = mended.text.len();
            // A stretch that is long enough for most elements, then longer ones.
            let mut stretch = 1 << 13;
            loop {
                let whole = stretch >= text.len() - mended.resume;
                let rest = &text[mended.resume..];
                let mut mended_text = mended.text.clone();
                mended_text.extend_from_slice(if whole { rest } else { &rest[..stretch] });
                match parse::<F::Element<'_>>(&mended_text) {
                    Ok((element, used)) => {
                        format.repaired(Repair {
                            offset: offset + mended.name_at as u64,
                            what: RepairKind::Name,
                            text: mended.name,
                        });
                        let text = &mended_text;
                        format.element(element, At { text, offset })?;
                        self.at += used - before + mended.resume;
                        return Ok(());
                    }
                    Err(error) if error.is_eof() && !whole => stretch *= 4,
                    Err(error) if error.is_eof() && !self.ended => {
                        self.more(MAX_ELEMENT)?;
                        break;
                    }
                    Err(error) => {
                        let shift = offset + mended.resume as u64 - before as u64;
                        return Err(explain(&mended_text, shift, &error));
                    }
                }
            }
        }
    }

    /// Parses a value beside the array.
    fn small(
        &mut self,
        take: impl FnOnce(&RawValue, At<'_>) -> Result<(), TraceError>,
    ) -> Result<(), TraceError> {
        self.peek()?;
        loop {
            let offset = self.offset();
            let text = self.rest();
            match parse::<&RawValue>(text) {
                // A number at the window's end may go on behind it.
                Ok((_, used)) if used == text.len() && !self.ended => {}
                Ok((value, used)) => {
                    take(value, At { text, offset })?;
                    self.at += used;
                    return Ok(());
                }
                Err(error) if error.is_eof() && !self.ended => {}
                Err(error) => return Err(explain(text, offset, &error)),
            }
            self.more(MAX_VALUE)?;
        }
    }
}

/// Parses the value at the start of `text`; returns it and its length.
fn parse<'de, T: Deserialize<'de>>(text: &'de [u8]) -> Result<(T, usize), serde_json::Error> {
    let mut values = serde_json::Deserializer::from_slice(text).into_iter::<T>();
    match values.next() {
        Some(Ok(value)) => Ok((value, values.byte_offset())),
        Some(Err(error)) => Err(error),
        None => Err(serde::de::Error::custom("the text ends, expected a value")),
    }
}

/// What is wrong with the value at the start of `text`, which stands at `offset`.
#[cold]
fn explain(text: &[u8], offset: u64, error: &serde_json::Error) -> TraceError {
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
        return refused(offset + text.len() as u64, found, TRUNCATED);
    }
    let found = format!("{message}, found {}", excerpt(&text[inside..]));
    refused(offset + inside as u64, found, DAMAGED)
}

fn excerpt(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(200)]);
    let line = text.trim_start().lines().next().unwrap_or_default();
    format!("`{}`", shown(line))
}
