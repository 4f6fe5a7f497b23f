//! One value of a configuration document, with methods that read it as an expected type. Errors state the value's key
//! and line.

use super::nearest::{did_you_mean, find_most_similar_name};
use super::{ConfigDocument, ConfigError, ConfigTable, DeValue, Spanned, line_number_at_byte};
use crate::units::QuantityError;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;
use std::str::FromStr;

/// A value of a document, with its key and its place in the text.
pub struct ConfigField<'d> {
    pub(super) document: &'d ConfigDocument<'d>,
    pub(super) key: String,
    pub(super) at: usize,
    pub(super) value: &'d Spanned<DeValue<'d>>,
}

/// Returns `text` in quotes on one line, truncated to fit in messages.
pub fn quote_and_truncate_for_message(text: &str) -> String {
    let short: String = text.chars().take(40).collect();
    let more = if short.len() < text.len() { "…" } else { "" };
    format!("{:?}{more}", short)
}

/// Checks that no two columns of a table have the same heading, because a heading must say which column is meant.
/// Columns without a heading cannot be meant, so there may be several.
///
/// # Errors
///
/// Fails at the first heading that repeats another, and says which columns have it.
pub fn require_distinct_headings<'h>(
    headings: impl Iterator<Item = &'h str>,
) -> Result<(), String> {
    let mut columns: BTreeMap<&str, usize> = BTreeMap::new();
    for (column, heading) in (1..).zip(headings) {
        if let Some(first) = columns
            .insert(heading, column)
            .filter(|_| !heading.is_empty())
        {
            return Err(format!(
                "columns {first} and {column} have the same heading {}\n  try: another heading for one of them",
                quote_and_truncate_for_message(heading)
            ));
        }
    }
    Ok(())
}

impl<'d> ConfigField<'d> {
    /// Builds an error that states this value and the expected one.
    pub fn invalid_value_error(&self, found: impl Display, expected: impl Display) -> ConfigError {
        let why = format!("found {found}, expected {expected}");
        self.document.error_at(&self.key, self.at, why)
    }

    /// Returns the file, line and key of this value, for errors that are found later.
    pub fn describe_location(&self) -> String {
        let line = line_number_at_byte(self.document.text, self.at);
        format!("{}:{line}: key `{}`", self.document.file, self.key)
    }

    /// Builds the error about a value of the wrong type.
    fn type_mismatch_error(&self, expected: impl Display) -> ConfigError {
        let found = match self.value.get_ref() {
            DeValue::String(text) => quote_and_truncate_for_message(text),
            DeValue::Integer(number) => {
                format!(
                    "the number {}",
                    truncate_long_number_text(&number.to_string())
                )
            }
            DeValue::Float(number) => {
                format!("the number {}", truncate_long_number_text(number.as_str()))
            }
            DeValue::Boolean(flag) => format!("{flag}"),
            DeValue::Datetime(_) => "a date or time".to_owned(),
            DeValue::Array(_) => "an array".to_owned(),
            DeValue::Table(_) => "a table".to_owned(),
        };
        self.invalid_value_error(found, expected)
    }

    /// Returns the byte range of the value in the text.
    pub fn byte_range(&self) -> Range<usize> {
        self.value.span()
    }

    /// Returns the value as it is written in the text.
    pub fn raw_text(&self) -> &'d str {
        self.document
            .text
            .get(self.byte_range())
            .unwrap_or_default()
    }

    /// Reads a one-line string of 1 to 200 characters.
    pub fn read_one_line_text(&self) -> Result<&'d str, ConfigError> {
        let text = self.read_text("text in quotes")?;
        let blank = text.trim().is_empty();
        if blank || text.chars().any(char::is_control) || text.chars().count() > 200 {
            return Err(self.invalid_value_error(
                quote_and_truncate_for_message(text),
                "one line of 1 to 200 characters",
            ));
        }
        Ok(text)
    }

    /// Reads a string. If the value has another type, the error states `expected`.
    pub fn read_text(&self, expected: impl Display) -> Result<&'d str, ConfigError> {
        match self.value.get_ref() {
            DeValue::String(text) => Ok(text),
            _ => Err(self.type_mismatch_error(expected)),
        }
    }

    /// Reads `true` or `false`.
    pub fn read_flag(&self) -> Result<bool, ConfigError> {
        match self.value.get_ref() {
            DeValue::Boolean(flag) => Ok(*flag),
            _ => Err(self.type_mismatch_error("true or false")),
        }
    }

    /// Reads a whole number from 1 to `most`.
    pub fn read_count(&self, most: u32) -> Result<u32, ConfigError> {
        let expected = format_args!("a whole number from 1 to {most}");
        let number = self
            .as_whole_number()
            .and_then(|n| u32::try_from(n).ok())
            .filter(|n| (1..=most).contains(n));
        number.ok_or_else(|| self.type_mismatch_error(expected))
    }

    /// Reads a whole number from `least` to `most`.
    pub fn read_integer_between(&self, least: u64, most: u64) -> Result<u64, ConfigError> {
        let expected = format_args!("a whole number from {least} to {most}");
        let number = self
            .as_whole_number()
            .filter(|n| (least..=most).contains(n));
        number.ok_or_else(|| self.type_mismatch_error(expected))
    }

    /// Reads a number greater than 0 and at most `most`.
    pub fn read_positive(&self, most: f64) -> Result<f64, ConfigError> {
        let number = match self.value.get_ref() {
            DeValue::Integer(_) => self.as_whole_number().map(|n| n as f64),
            DeValue::Float(number) => number.as_str().replace('_', "").parse().ok(),
            _ => None,
        };
        let number = number.filter(|n: &f64| *n > 0.0 && *n <= most);
        number.ok_or_else(|| {
            self.type_mismatch_error(format_args!("a number above 0 and at most {most}"))
        })
    }

    /// Returns the value if it is a whole number and not negative, otherwise `None`.
    pub fn as_whole_number(&self) -> Option<u64> {
        match self.value.get_ref() {
            DeValue::Integer(n) => u64::from_str_radix(n.as_str(), n.radix()).ok(),
            _ => None,
        }
    }

    /// Reads the values of an array. If the value is not an array, the error states `expected`.
    pub fn read_array_items(&self, expected: impl Display) -> Result<Vec<Self>, ConfigError> {
        match self.value.get_ref() {
            DeValue::Array(items) => Ok(items
                .iter()
                .enumerate()
                .map(|item| self.wrap_item(item))
                .collect()),
            _ => Err(self.type_mismatch_error(expected)),
        }
    }

    /// Reads an array of exactly `N` values. Error messages refer to the values as `what` and also state `expected`.
    pub fn read_array_of_exact_length<const N: usize>(
        &self,
        what: &str,
        expected: impl Display,
    ) -> Result<[Self; N], ConfigError> {
        let items = self.read_array_items(&expected)?;
        let count = items.len();
        let array = items.try_into();
        array.map_err(|_| self.invalid_value_error(format_args!("{count} {what}"), expected))
    }

    /// Returns an array's value as a field with its own key.
    fn wrap_item(&self, (index, value): (usize, &'d Spanned<DeValue<'d>>)) -> Self {
        Self {
            document: self.document,
            key: format!("{}[{index}]", self.key),
            at: value.span().start,
            value,
        }
    }

    /// Reads a quantity with its unit, written in quotes. Errors show `example` as a valid quantity.
    pub fn read_quantity<T>(&self, example: &str) -> Result<T, ConfigError>
    where
        T: FromStr<Err = QuantityError>,
    {
        let text = self.read_text(format_args!("a quantity in quotes such as {example:?}"))?;
        let wrong = |error: QuantityError| {
            // Replace control characters, so that the message stays on one line.
            let why = error.to_string().replace(char::is_control, " ");
            self.document.error_at(&self.key, self.at, why)
        };
        text.parse().map_err(wrong)
    }

    /// Reads a string that must be one of the names in `all`.
    pub fn read_choice<T: Copy>(&self, all: &[(T, &str)]) -> Result<T, ConfigError> {
        let names: Vec<_> = all.iter().map(|(_, name)| *name).collect();
        let expected = format!("one of {}", names.join(", "));
        let text = self.read_text(&expected)?;
        let chosen = all.iter().find(|(_, name)| *name == text);
        chosen.map(|(value, _)| *value).ok_or_else(|| {
            let hint = did_you_mean(find_most_similar_name(text, names));
            self.type_mismatch_error(format_args!("{expected}{hint}"))
        })
    }

    /// Reads a table whose keys must be in `allowed`. `None` allows all keys.
    pub fn read_table(&self, allowed: Option<&[&str]>) -> Result<ConfigTable<'d>, ConfigError> {
        match self.value.get_ref() {
            DeValue::Table(entries) => ConfigTable::build_table_checking_keys(
                self.document,
                self.key.clone(),
                self.at,
                entries,
                allowed,
            ),
            _ => Err(self.type_mismatch_error("a table")),
        }
    }

    /// Reads an array of tables. The keys of each table must be in `allowed`.
    pub fn read_tables(&self, allowed: &[&str]) -> Result<Vec<ConfigTable<'d>>, ConfigError> {
        let DeValue::Array(items) = self.value.get_ref() else {
            return Err(
                self.type_mismatch_error(format_args!("tables, each under [[{}]]", self.key))
            );
        };
        let items = items.iter().enumerate();
        items
            .map(|item| self.wrap_item(item).read_table(Some(allowed)))
            .collect()
    }
}

/// Truncates the text of a long number, so that it fits in messages.
fn truncate_long_number_text(number: &str) -> &str {
    number.get(..24).unwrap_or(number)
}
