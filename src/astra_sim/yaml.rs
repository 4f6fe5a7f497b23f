//! Reads the keys of a YAML mapping, with the line of each key. Only this module uses `serde_saphyr`.
//!
//! The reader rejects aliases and merged keys, so the result is never longer than the text.

use super::error::{InputError, shorten_to_one_line};
use super::input_entry::{InputEntry, InputValue};
use chakram_trace::format::escape_and_shorten_name;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use serde_saphyr::{Budget, Error, Options, Spanned, UserMessageFormatter};
use std::fmt;

/// Returns the keys of the mapping in `text` in order; each key occurs once.
pub(super) fn parse_entries(text: &str, file: &str) -> Result<Vec<InputEntry>, InputError> {
    let mapping: YamlMapping = serde_saphyr::from_str_with_options(text, parser_options())
        .map_err(|error| {
            let line = error.location().map_or(1, |at| line_of_location(&at));
            let why = describe_parser_error(error.without_snippet());
            InputError::Syntax {
                file: file.to_owned(),
                line,
                format: "YAML",
                why: shorten_to_one_line(&why),
            }
        })?;
    Ok(mapping.0)
}

/// Returns parser limits that suffice for any ASTRA-sim file, but reject documents that expand beyond their text.
fn parser_options() -> Options {
    let mut budget = Budget::default();
    budget.max_aliases = 0;
    budget.max_anchors = 0;
    budget.max_depth = 16;
    budget.flow_nesting_limit = 16;
    budget.max_documents = 1;
    budget.max_nodes = 2_000_000;
    budget.max_events = 4_000_000;
    budget.max_buffered_comment_events = 10_000;
    let mut options = Options::default();
    options.budget = Some(budget);
    options.duplicate_keys = DuplicateKeyPolicy::Error;
    options.merge_keys = MergeKeyPolicy::Error;
    options.emit_comments = false;
    options.with_snippet = false;
    options
}

/// Returns the parser's error in words for users of the file, not for callers of the parser.
fn describe_parser_error(error: &Error) -> String {
    match error {
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the key `{}` occurs twice", escape_and_shorten_name(key))
        }
        other => other.render_with_formatter(&UserMessageFormatter),
    }
}

fn line_of_location(at: &serde_saphyr::Location) -> usize {
    usize::try_from(at.line()).unwrap_or(usize::MAX).max(1)
}

struct YamlMapping(Vec<InputEntry>);

impl<'de> Deserialize<'de> for YamlMapping {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(YamlMappingVisitor).map(Self)
    }
}

struct YamlMappingVisitor;

impl<'de> Visitor<'de> for YamlMappingVisitor {
    type Value = Vec<InputEntry>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping from key to value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = map.next_entry::<Spanned<String>, InputValue>()? {
            entries.push(InputEntry {
                line: line_of_location(&key.referenced),
                key: key.value,
                value,
            });
        }
        Ok(entries)
    }
}

impl<'de> Deserialize<'de> for InputValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(YamlValueVisitor)
    }
}

struct YamlValueVisitor;

impl<'de> Visitor<'de> for YamlValueVisitor {
    type Value = InputValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a scalar or a list")
    }

    fn visit_bool<E>(self, flag: bool) -> Result<InputValue, E> {
        Ok(InputValue::Flag(flag))
    }
    fn visit_i64<E>(self, number: i64) -> Result<InputValue, E> {
        Ok(InputValue::Number(number as f64))
    }
    fn visit_u64<E>(self, number: u64) -> Result<InputValue, E> {
        Ok(InputValue::Number(number as f64))
    }
    fn visit_i128<E>(self, number: i128) -> Result<InputValue, E> {
        Ok(InputValue::Number(number as f64))
    }
    fn visit_u128<E>(self, number: u128) -> Result<InputValue, E> {
        Ok(InputValue::Number(number as f64))
    }
    fn visit_f64<E>(self, number: f64) -> Result<InputValue, E> {
        Ok(InputValue::Number(number))
    }
    fn visit_str<E>(self, text: &str) -> Result<InputValue, E> {
        Ok(InputValue::Text(text.to_owned()))
    }
    fn visit_unit<E>(self) -> Result<InputValue, E> {
        Ok(InputValue::Null)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<InputValue, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(InputValue::List(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<InputValue, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(InputValue::Nested)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_the_lines_of_their_keys() {
        let text = "# a comment\ntopology: [ Ring, 'x' ]  # more\n\nn:\n  - 2\n  - 2.5\n1: {a: b}\n'y': ~\n";
        let entries = parse_entries(text, "f").unwrap();
        let found: Vec<_> = entries.iter().map(|e| (&*e.key, e.line)).collect();
        assert_eq!(found, [("topology", 2), ("n", 4), ("1", 7), ("y", 8)]);
        let text = |text: &str| InputValue::Text(text.to_owned());
        assert_eq!(
            entries[0].value,
            InputValue::List(vec![text("Ring"), text("x")])
        );
        let numbers = vec![InputValue::Number(2.0), InputValue::Number(2.5)];
        assert_eq!(entries[1].value, InputValue::List(numbers));
        assert_eq!(entries[2].value, InputValue::Nested);
        assert_eq!(entries[3].value, InputValue::Null);
    }

    #[test]
    fn expanding_or_contradictory_yaml_is_refused_with_its_line() {
        for (text, line) in [
            ("- 1", 1),
            ("a: 1\na: 2", 2),
            ("a: &x 1\nb: *x", 1),
            ("a: 1\n<<: {b: 2}", 2),
            ("a: 1\nb: [1", 2),
        ] {
            let error = parse_entries(text, "f")
                .map(|_| ())
                .unwrap_err()
                .to_string();
            assert!(
                error.starts_with(&format!("f:{line}: not YAML: ")),
                "{text:?}: {error}"
            );
            assert!(!error.contains('\n'), "{error}");
            // The parser's texts for developers name its options and types.
            assert!(
                !error.contains("Options") && !error.contains("Policy"),
                "{error}"
            );
        }
        let twice = parse_entries("a: 1\na: 2", "f")
            .map(|_| ())
            .unwrap_err()
            .to_string();
        assert!(
            twice.starts_with("f:2: not YAML: the key `a` occurs twice"),
            "{twice}"
        );
        assert!(parse_entries("", "f").unwrap().is_empty());
        let deep = format!("a: {}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(parse_entries(&deep, "f").is_err());
    }
}
