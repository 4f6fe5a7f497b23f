//! Reads a file of keys and values, in JSON or YAML. Parses every value as the expected type; errors name the key and
//! the line.

use super::error::{InputError, MisleadingValidInputNote, did_you_mean, escape_key};
use super::input_entry::{InputEntry, InputValue};
use super::{json, yaml};
use chakram_base::config::quote_and_truncate_for_message;
use chakram_base::setting::SettingKey;
use std::collections::BTreeMap;
use std::fmt::Display;

/// Keys that a file may contain.
pub(super) struct ReadAndIgnoredKeys {
    /// Keys whose values are used.
    pub(super) read: &'static [&'static str],
    /// Keys that are ignored, each with the reason.
    pub(super) ignored: &'static [(&'static str, &'static str)],
}

/// A file with only known keys, each at most once.
pub(super) struct InputDocumentWithUniqueKnownKeys<'f> {
    file: &'f str,
    entries: Vec<InputEntry>,
    notes: Vec<MisleadingValidInputNote>,
}

/// Maximum size of a handwritten file, in bytes.
const MOST_BYTES: usize = 1 << 20;

impl<'f> InputDocumentWithUniqueKnownKeys<'f> {
    /// Parses JSON. If a key is repeated, the last value counts, as in ASTRA-sim.
    pub(super) fn parse_json_keeping_last_duplicate_key(
        text: &str,
        file: &'f str,
        keys: &ReadAndIgnoredKeys,
        lenient: bool,
    ) -> Result<Self, InputError> {
        check_document_byte_limit(text, file, "JSON")?;
        Self::new(json::parse_entries(text, file)?, file, keys, lenient)
    }

    /// Parses YAML. A repeated key is an error.
    pub(super) fn parse_yaml(
        text: &str,
        file: &'f str,
        keys: &ReadAndIgnoredKeys,
        lenient: bool,
    ) -> Result<Self, InputError> {
        check_document_byte_limit(text, file, "YAML")?;
        Self::new(yaml::parse_entries(text, file)?, file, keys, lenient)
    }

    fn new(
        found: Vec<InputEntry>,
        file: &'f str,
        keys: &ReadAndIgnoredKeys,
        lenient: bool,
    ) -> Result<Self, InputError> {
        let mut document = Self {
            file,
            entries: Vec::new(),
            notes: Vec::new(),
        };
        let all = || {
            let ignored = keys.ignored.iter().map(|(name, _)| *name);
            keys.read.iter().copied().chain(ignored)
        };
        let places = found.iter().enumerate();
        let last: BTreeMap<String, (usize, usize)> = places
            .map(|(index, entry)| (entry.key.clone(), (index, entry.line)))
            .collect();
        for (index, entry) in found.into_iter().enumerate() {
            let (last_index, last_line) = last[&entry.key];
            let InputEntry { key, line, .. } = &entry;
            let known = all().any(|name| name == key);
            let ignored = keys.ignored.iter().find(|(name, _)| name == key);
            if !known {
                let hint = did_you_mean(key, all());
                if !lenient {
                    let expected = match &hint[..] {
                        "" => format!(", expected one of {}", all().collect::<Vec<_>>().join(", ")),
                        hint => hint.to_owned(),
                    };
                    let why = format!(
                        "found an unknown key{expected}\n  try: correct or delete it, or pass \
                         {} to have unknown keys ignored",
                        SettingKey::Lenient
                    );
                    return Err(document.error_about(key, *line, why));
                }
                document.add_note_at(key, *line, format!("ignored, because it is unknown{hint}"));
            } else if index != last_index {
                let why = format!("ignored, because line {last_line} repeats the key");
                document.add_note_at(key, *line, why);
            } else if let Some((_, why)) = ignored {
                document.add_note_at(key, *line, format!("has no effect: {why}"));
            } else {
                document.entries.push(entry);
            }
        }
        Ok(document)
    }

    /// Returns the notes that were added while the file was read.
    pub(super) fn into_notes(self) -> Vec<MisleadingValidInputNote> {
        self.notes
    }

    fn find_entry(&self, key: &str) -> Option<&InputEntry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// Returns the value of `key`, or `None` if the key is absent.
    pub(super) fn get(&self, key: &str) -> Option<&InputValue> {
        self.find_entry(key).map(|entry| &entry.value)
    }

    /// Adds the note `why` about `key`, with its line if the file contains it.
    pub(super) fn add_note(&mut self, key: &str, why: impl Into<String>) {
        let line = self.find_entry(key).map(|entry| entry.line);
        self.notes.push(MisleadingValidInputNote {
            file: self.file.to_owned(),
            line,
            key: escape_key(key),
            why: why.into(),
        });
    }

    fn add_note_at(&mut self, key: &str, line: usize, why: String) {
        self.notes.push(MisleadingValidInputNote {
            file: self.file.to_owned(),
            line: Some(line),
            key: escape_key(key),
            why,
        });
    }

    fn error_about(&self, key: &str, line: usize, why: String) -> InputError {
        InputError::Key {
            file: self.file.to_owned(),
            line,
            key: escape_key(key),
            why,
        }
    }

    /// Builds an error that says that `key` has the value `found` although `expected` was required. `hint` is advice,
    /// or empty.
    pub(super) fn invalid_value(
        &self,
        key: &str,
        found: impl Display,
        expected: impl Display,
        hint: &str,
    ) -> InputError {
        let line = self.find_entry(key).map_or(1, |entry| entry.line);
        let hint = match hint {
            "" => String::new(),
            _ => format!("\n  try: {hint}"),
        };
        self.error_about(
            key,
            line,
            format!("found {found}, expected {expected}{hint}"),
        )
    }

    /// Returns the number at `key`, which must be at least `least`, or `None` if the key is absent.
    pub(super) fn read_number_at_least_if_present(
        &self,
        key: &str,
        least: f64,
    ) -> Result<Option<f64>, InputError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let fits = |number: &f64| number.is_finite() && *number >= least;
        let number = value.as_number().filter(fits);
        let expected = format_args!("a number of at least {least}");
        let wrong = || self.invalid_value(key, value.describe_value(), expected, "");
        number.map(Some).ok_or_else(wrong)
    }

    /// Returns the whole number at `key`, or `None` if the key is absent. The number must be from `least` to `most`.
    /// Truncates fractions as ASTRA-sim does, and adds a note.
    pub(super) fn read_truncated_whole_number_in_range(
        &mut self,
        key: &str,
        least: u64,
        most: u64,
    ) -> Result<Option<u64>, InputError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let number = value.as_number().filter(|n| n.is_finite() && *n >= 0.0);
        let whole = number.map(|number| number as u64);
        let Some(whole) = whole.filter(|whole| (least..=most).contains(whole)) else {
            let expected = format_args!("a whole number from {least} to {most}");
            return Err(self.invalid_value(key, value.describe_value(), expected, ""));
        };
        if let Some(number) = number.filter(|number| number.fract() != 0.0) {
            let why = format!("{number} counts as {whole}: the original truncates the number");
            self.add_note(key, why);
        }
        Ok(Some(whole))
    }

    /// Returns the flag at `key`, which is written as 0 or 1, or false if the key is absent.
    pub(super) fn read_zero_or_one(&self, key: &str) -> Result<bool, InputError> {
        match self.get(key) {
            None => Ok(false),
            Some(InputValue::Number(number)) if *number == 0.0 => Ok(false),
            Some(InputValue::Number(number)) if *number == 1.0 => Ok(true),
            Some(value) => Err(self.invalid_value(key, value.describe_value(), "0 or 1", "")),
        }
    }

    /// Returns the value of `key`, which must be a name in `all`, or `None` if the key is absent.
    pub(super) fn read_choice<T: Copy>(
        &self,
        key: &str,
        all: &[(T, &str)],
    ) -> Result<Option<T>, InputError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let text = value.as_text();
        let chosen = all.iter().find(|(_, name)| Some(*name) == text);
        let names = || all.iter().map(|(_, name)| *name);
        let wrong = || {
            let hint = text.map_or(String::new(), |text| did_you_mean(text, names()));
            let names = names().collect::<Vec<_>>().join(", ");
            self.invalid_value(
                key,
                value.describe_value(),
                format_args!("one of {names}{hint}"),
                "",
            )
        };
        chosen.map(|(choice, _)| Some(*choice)).ok_or_else(wrong)
    }

    /// Returns the text at `key`, which must be non-empty and on one line, or `None` if the key is absent.
    pub(super) fn read_text(&self, key: &str) -> Result<Option<&str>, InputError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let fits = |text: &&str| !text.is_empty() && !text.chars().any(char::is_control);
        let text = value.as_text().filter(fits);
        let wrong = || self.invalid_value(key, value.describe_value(), "a text of one line", "");
        text.map(Some).ok_or_else(wrong)
    }

    /// Returns the list at `key`, or `None` if the key is absent.
    pub(super) fn read_list(&self, key: &str) -> Result<Option<&[InputValue]>, InputError> {
        match self.get(key) {
            None => Ok(None),
            Some(InputValue::List(items)) => Ok(Some(items)),
            Some(value) => Err(self.invalid_value(key, value.describe_value(), "a list", "")),
        }
    }
}

impl InputValue {
    /// Returns the value if it is a number, otherwise `None`.
    pub(super) fn as_number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// Returns the value if it is text, otherwise `None`.
    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Formats the value for messages.
    pub(super) fn describe_value(&self) -> String {
        match self {
            Self::Null => "nothing".to_owned(),
            Self::Flag(flag) => flag.to_string(),
            Self::Number(number) => format!("the number {number:?}"),
            Self::Text(text) => quote_and_truncate_for_message(text),
            Self::List(_) => "a list".to_owned(),
            Self::Nested => "an object or a list of lists".to_owned(),
        }
    }
}

fn check_document_byte_limit(
    text: &str,
    file: &str,
    format: &'static str,
) -> Result<(), InputError> {
    match text.len() {
        0..=MOST_BYTES => Ok(()),
        bytes => Err(InputError::Syntax {
            file: file.to_owned(),
            line: 1,
            format,
            why: format!("found {bytes} bytes, expected at most {MOST_BYTES}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: ReadAndIgnoredKeys = ReadAndIgnoredKeys {
        read: &["delay", "size"],
        ignored: &[("boost", "nothing reads it")],
    };

    fn format_notes(document: InputDocumentWithUniqueKnownKeys<'_>) -> Vec<String> {
        let notes = document.into_notes();
        notes
            .iter()
            .map(MisleadingValidInputNote::to_string)
            .collect()
    }

    #[test]
    fn unknown_keys_are_errors_unless_lenient() {
        let text = "{\"size\": 1,\n\"dealy\": 2}";
        let error = InputDocumentWithUniqueKnownKeys::parse_json_keeping_last_duplicate_key(
            text, "f", &KEYS, false,
        )
        .map(|_| ())
        .unwrap_err()
        .to_string();
        assert!(
            error.starts_with("f:2: key `dealy`: found an unknown key"),
            "{error}"
        );
        assert!(error.contains("did you mean `delay`?"), "{error}");
        let document = InputDocumentWithUniqueKnownKeys::parse_json_keeping_last_duplicate_key(
            text, "f", &KEYS, true,
        )
        .unwrap();
        let noted = "f:2: `dealy`: ignored, because it is unknown; did you mean `delay`?";
        assert_eq!(format_notes(document), [noted]);
    }

    #[test]
    fn the_last_value_of_a_repeated_json_key_counts() {
        let text = "{\"size\": 1,\n\"boost\": 0,\n\"size\": 2.5, \"size\": 3.5}";
        let mut document = InputDocumentWithUniqueKnownKeys::parse_json_keeping_last_duplicate_key(
            text, "f", &KEYS, false,
        )
        .unwrap();
        assert_eq!(
            document
                .read_truncated_whole_number_in_range("size", 0, 9)
                .unwrap(),
            Some(3)
        );
        assert_eq!(
            format_notes(document),
            [
                "f:1: `size`: ignored, because line 3 repeats the key",
                "f:2: `boost`: has no effect: nothing reads it",
                "f:3: `size`: ignored, because line 3 repeats the key",
                "f:3: `size`: 3.5 counts as 3: the original truncates the number",
            ]
        );
        assert!(
            InputDocumentWithUniqueKnownKeys::parse_yaml("size: 1\nsize: 2", "f", &KEYS, true)
                .is_err()
        );
    }

    #[test]
    fn values_of_wrong_type_or_range_are_refused() {
        for value in ["-1", "10", "1e300", "\"1\"", "null", "true", "[1]", "{}"] {
            let text = format!("{{\"size\": {value}}}");
            let mut document =
                InputDocumentWithUniqueKnownKeys::parse_json_keeping_last_duplicate_key(
                    &text, "f", &KEYS, false,
                )
                .unwrap();
            let error = document
                .read_truncated_whole_number_in_range("size", 1, 9)
                .unwrap_err()
                .to_string();
            let expected = "expected a whole number from 1 to 9";
            assert!(error.contains(expected), "{error}");
            assert!(document.read_zero_or_one("size").is_err(), "{text}");
            assert!(
                document.read_choice("size", &[((), "one")]).is_err(),
                "{text}"
            );
        }
    }
}
