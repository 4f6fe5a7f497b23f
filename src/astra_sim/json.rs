//! Reads the keys of a JSON object, with the line of each key. Only this module uses `serde_json` for ASTRA-sim's
//! files.
//!
//! Each value is a slice of the file's text. The slice's offset gives the value's line, so equal keys in different
//! places are not confused. The code does not recurse, so deeply nested input cannot overflow the stack.

use super::error::{InputError, shorten_to_one_line};
use super::input_entry::{InputEntry, InputValue};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::fmt;

/// A key of the outermost object, with its unparsed value.
pub(super) struct RawJsonEntry<'t> {
    pub(super) key: String,
    /// Line of the key, counted from 1.
    pub(super) line: usize,
    /// The value, as a slice of the text.
    pub(super) value: &'t str,
    /// Line at which the value begins, counted from 1.
    pub(super) value_line: usize,
}

/// Returns the keys of the object in `text` in order, including duplicates.
pub(super) fn raw_entries<'t>(
    text: &'t str,
    file: &str,
) -> Result<Vec<RawJsonEntry<'t>>, InputError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let object: RawJsonObjectEntries<'t> =
        serde_json::from_str(text).map_err(|error| syntax_error(file, 1, &error))?;
    let lines = LineIndex::new(text);
    let entry = |(key, value): (&'t RawValue, &'t RawValue)| {
        let line = lines.line_where_slice_begins(key.get());
        Ok(RawJsonEntry {
            key: serde_json::from_str(key.get())
                .map_err(|error| syntax_error(file, line, &error))?,
            line,
            value: value.get(),
            value_line: lines.line_where_slice_begins(value.get()),
        })
    };
    object.0.into_iter().map(entry).collect()
}

/// Returns the keys of the object in `text`, with their values.
pub(super) fn parse_entries(text: &str, file: &str) -> Result<Vec<InputEntry>, InputError> {
    let raw = raw_entries(text, file)?.into_iter();
    let entry = |raw: RawJsonEntry<'_>| {
        Ok(InputEntry {
            value: parse_value(raw.value, file, raw.value_line)?,
            key: raw.key,
            line: raw.line,
        })
    };
    raw.map(entry).collect()
}

/// Converts a parser error about a slice of the text; the slice begins on line `first`.
pub(super) fn syntax_error(file: &str, first: usize, error: &serde_json::Error) -> InputError {
    let why = error.to_string();
    let why = why.rsplit_once(" at line ").map_or(&*why, |(why, _)| why);
    InputError::Syntax {
        file: file.to_owned(),
        line: first + error.line().saturating_sub(1),
        format: "JSON",
        why: shorten_to_one_line(why),
    }
}

/// Parses the value in `raw`, which begins on line `first`.
fn parse_value(raw: &str, file: &str, first: usize) -> Result<InputValue, InputError> {
    let error = |piece: &str, error| {
        let before = &raw[..offset_of(raw, piece)];
        let line = first + before.bytes().filter(|&b| b == b'\n').count();
        syntax_error(file, line, &error)
    };
    match raw.as_bytes().first() {
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(raw).map_err(|e| error(raw, e))?;
            let item = |item: &RawValue| match item.get().as_bytes().first() {
                Some(b'[' | b'{') => Ok(InputValue::Nested),
                _ => parse_scalar(item.get()).map_err(|e| error(item.get(), e)),
            };
            let items = items.into_iter().map(item).collect::<Result<_, _>>()?;
            Ok(InputValue::List(items))
        }
        Some(b'{') => Ok(InputValue::Nested),
        _ => parse_scalar(raw).map_err(|e| error(raw, e)),
    }
}

fn parse_scalar(raw: &str) -> Result<InputValue, serde_json::Error> {
    Ok(match raw.as_bytes().first() {
        Some(b'"') => InputValue::Text(serde_json::from_str(raw)?),
        Some(b'n') => InputValue::Null,
        Some(b't' | b'f') => InputValue::Flag(serde_json::from_str(raw)?),
        _ => InputValue::Number(serde_json::from_str(raw)?),
    })
}

/// An object whose keys and values are slices of the text.
struct RawJsonObjectEntries<'t>(Vec<(&'t RawValue, &'t RawValue)>);

impl<'t> Deserialize<'t> for RawJsonObjectEntries<'t> {
    fn deserialize<D: Deserializer<'t>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(JsonObjectVisitor).map(Self)
    }
}

struct JsonObjectVisitor;

impl<'t> Visitor<'t> for JsonObjectVisitor {
    type Value = Vec<(&'t RawValue, &'t RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from key to value")
    }

    fn visit_map<A: MapAccess<'t>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(entries)
    }
}

/// Returns the offset of `piece` within `text`.
fn offset_of(text: &str, piece: &str) -> usize {
    piece.as_ptr().addr() - text.as_ptr().addr()
}

/// Index of the line ends of a text.
struct LineIndex<'t> {
    text: &'t str,
    ends: Vec<usize>,
}

impl<'t> LineIndex<'t> {
    fn new(text: &'t str) -> Self {
        let ends = text.match_indices('\n').map(|(at, _)| at).collect();
        Self { text, ends }
    }

    /// Returns the line, counted from 1, on which `piece` of the text begins.
    fn line_where_slice_begins(&self, piece: &str) -> usize {
        let at = offset_of(self.text, piece);
        1 + self.ends.partition_point(|&end| end < at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_the_lines_of_their_keys() {
        let text = "{\n  \"a\": {\"b\": 1,\n    \"b\": 2},\n  \"b\"\n  :\n  [1,\n  \"x\", [[]], {}],\n\"\\u0061\": null}";
        let entries = parse_entries(text, "f").unwrap();
        let found: Vec<_> = entries.iter().map(|e| (&*e.key, e.line)).collect();
        assert_eq!(found, [("a", 2), ("b", 4), ("a", 8)]);
        assert_eq!(entries[0].value, InputValue::Nested);
        let list = [
            InputValue::Number(1.0),
            InputValue::Text("x".to_owned()),
            InputValue::Nested,
            InputValue::Nested,
        ];
        assert_eq!(entries[1].value, InputValue::List(list.to_vec()));
        assert_eq!(raw_entries(text, "f").unwrap()[1].value_line, 6);
    }

    #[test]
    fn what_is_not_an_object_is_refused_with_its_line() {
        for (text, line) in [
            ("", 1),
            ("[1]", 1),
            ("{\"a\": 1,}", 1),
            ("{\"a\":\n 1} x", 2),
            ("{\"a\": 1,\n\n \"b\": 1e999}", 3),
            ("{\"a\":\n [1,\n 1e999]}", 3),
            ("{\n\"\\ud800\": 1}", 2),
        ] {
            let error = raw_entries(text, "f").and_then(|_| parse_entries(text, "f"));
            let error = error.map(|_| ()).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("f:{line}: not JSON: ")),
                "{error}"
            );
        }
    }

    #[test]
    fn deep_nesting_is_parsed_without_recursion() {
        let deep = format!("{{\"a\": {}{}}}", "[".repeat(200_000), "]".repeat(200_000));
        assert_eq!(
            parse_entries(&deep, "f").unwrap()[0].value,
            InputValue::List(vec![InputValue::Nested])
        );
    }
}
