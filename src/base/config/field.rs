//! One value of a configuration document. A value is read as an expected type, and errors state its key and line.

use super::nearest::{did_you_mean, nearest};
use super::{ConfigDocument, ConfigError, ConfigTable, DeValue, Spanned, line_of};
use crate::units::QuantityError;
use std::fmt::Display;
use std::ops::Range;
use std::str::FromStr;

/// A value of a document.
pub struct ConfigField<'d> {
    pub(super) document: &'d ConfigDocument<'d>,
    pub(super) key: String,
    pub(super) at: usize,
    pub(super) value: &'d Spanned<DeValue<'d>>,
}

/// Returns `text` in quotes on one line, truncated to fit in messages.
pub fn quoted(text: &str) -> String {
    let short: String = text.chars().take(40).collect();
    let more = if short.len() < text.len() { "…" } else { "" };
    format!("{:?}{more}", short)
}

impl<'d> ConfigField<'d> {
    /// Builds an error about this value.
    pub fn refuse(&self, found: impl Display, expected: impl Display) -> ConfigError {
        let why = format!("found {found}, expected {expected}");
        self.document.refuse(&self.key, self.at, why)
    }

    /// Returns the file, line and key of this value, for later errors about it.
    pub fn place(&self) -> String {
        let line = line_of(self.document.text, self.at);
        format!("{}:{line}: key `{}`", self.document.file, self.key)
    }

    /// Builds the error about a value of the wrong type.
    fn mismatch(&self, expected: impl Display) -> ConfigError {
        let found = match self.value.get_ref() {
            DeValue::String(text) => quoted(text),
            DeValue::Integer(number) => format!("the number {}", short(&number.to_string())),
            DeValue::Float(number) => format!("the number {}", short(number.as_str())),
            DeValue::Boolean(flag) => format!("{flag}"),
            DeValue::Datetime(_) => "a date or time".to_owned(),
            DeValue::Array(_) => "an array".to_owned(),
            DeValue::Table(_) => "a table".to_owned(),
        };
        self.refuse(found, expected)
    }

    /// Returns the byte range of the value in the text.
    pub fn span(&self) -> Range<usize> {
        self.value.span()
    }

    /// Returns the value as written in the text.
    pub fn raw(&self) -> &'d str {
        self.document.text.get(self.span()).unwrap_or_default()
    }

    /// Reads a string of one line with 1 to 200 characters.
    pub fn line(&self) -> Result<&'d str, ConfigError> {
        let text = self.text("text in quotes")?;
        let blank = text.trim().is_empty();
        if blank || text.chars().any(char::is_control) || text.chars().count() > 200 {
            return Err(self.refuse(quoted(text), "one line of 1 to 200 characters"));
        }
        Ok(text)
    }

    /// Reads a string. If the value has another type, the error describes the expected string by `expected`.
    pub fn text(&self, expected: impl Display) -> Result<&'d str, ConfigError> {
        match self.value.get_ref() {
            DeValue::String(text) => Ok(text),
            _ => Err(self.mismatch(expected)),
        }
    }

    /// Reads `true` or `false`.
    pub fn flag(&self) -> Result<bool, ConfigError> {
        match self.value.get_ref() {
            DeValue::Boolean(flag) => Ok(*flag),
            _ => Err(self.mismatch("true or false")),
        }
    }

    /// Reads a whole number from 1 to `most`.
    pub fn count(&self, most: u32) -> Result<u32, ConfigError> {
        let expected = format_args!("a whole number from 1 to {most}");
        let number = self
            .whole()
            .and_then(|n| u32::try_from(n).ok())
            .filter(|n| (1..=most).contains(n));
        number.ok_or_else(|| self.mismatch(expected))
    }

    /// Reads a whole number from `least` to `most`.
    pub fn between(&self, least: u64, most: u64) -> Result<u64, ConfigError> {
        let expected = format_args!("a whole number from {least} to {most}");
        let number = self.whole().filter(|n| (least..=most).contains(n));
        number.ok_or_else(|| self.mismatch(expected))
    }

    /// Reads a number greater than 0 and at most `most`.
    pub fn positive(&self, most: f64) -> Result<f64, ConfigError> {
        let number = match self.value.get_ref() {
            DeValue::Integer(_) => self.whole().map(|n| n as f64),
            DeValue::Float(number) => number.as_str().replace('_', "").parse().ok(),
            _ => None,
        };
        let number = number.filter(|n: &f64| *n > 0.0 && *n <= most);
        number.ok_or_else(|| self.mismatch(format_args!("a number above 0 and at most {most}")))
    }

    /// Returns the value if it is a non-negative whole number, and `None` otherwise.
    pub fn whole(&self) -> Option<u64> {
        match self.value.get_ref() {
            DeValue::Integer(n) => u64::from_str_radix(n.as_str(), n.radix()).ok(),
            _ => None,
        }
    }

    /// Reads the values of an array. Errors describe them by `expected`.
    pub fn items(&self, expected: impl Display) -> Result<Vec<Self>, ConfigError> {
        match self.value.get_ref() {
            DeValue::Array(items) => Ok(items
                .iter()
                .enumerate()
                .map(|item| self.item(item))
                .collect()),
            _ => Err(self.mismatch(expected)),
        }
    }

    /// Reads an array of exactly `N` values. Errors call the values `what` and describe them by `expected`.
    pub fn array<const N: usize>(
        &self,
        what: &str,
        expected: impl Display,
    ) -> Result<[Self; N], ConfigError> {
        let items = self.items(&expected)?;
        let count = items.len();
        let array = items.try_into();
        array.map_err(|_| self.refuse(format_args!("{count} {what}"), expected))
    }

    /// Returns one value of an array as a field with its own key.
    fn item(&self, (index, value): (usize, &'d Spanned<DeValue<'d>>)) -> Self {
        Self {
            document: self.document,
            key: format!("{}[{index}]", self.key),
            at: value.span().start,
            value,
        }
    }

    /// Reads a quantity with its unit, written in quotes. Errors show `example` as a valid quantity.
    pub fn quantity<T>(&self, example: &str) -> Result<T, ConfigError>
    where
        T: FromStr<Err = QuantityError>,
    {
        let text = self.text(format_args!("a quantity in quotes such as {example:?}"))?;
        let wrong = |error: QuantityError| {
            // Messages stay on one line, even if the file contains control characters.
            let why = error.to_string().replace(char::is_control, " ");
            self.document.refuse(&self.key, self.at, why)
        };
        text.parse().map_err(wrong)
    }

    /// Reads a string that must be one of the names in `all`.
    pub fn choice<T: Copy>(&self, all: &[(T, &str)]) -> Result<T, ConfigError> {
        let names: Vec<_> = all.iter().map(|(_, name)| *name).collect();
        let expected = format!("one of {}", names.join(", "));
        let text = self.text(&expected)?;
        let chosen = all.iter().find(|(_, name)| *name == text);
        chosen.map(|(value, _)| *value).ok_or_else(|| {
            let hint = did_you_mean(nearest(text, names));
            self.mismatch(format_args!("{expected}{hint}"))
        })
    }

    /// Reads a table whose keys must be in `allowed`. `None` allows all keys.
    pub fn table(&self, allowed: Option<&[&str]>) -> Result<ConfigTable<'d>, ConfigError> {
        match self.value.get_ref() {
            DeValue::Table(entries) => {
                ConfigTable::open(self.document, self.key.clone(), self.at, entries, allowed)
            }
            _ => Err(self.mismatch("a table")),
        }
    }

    /// Reads an array of tables. The keys of each table must be in `allowed`.
    pub fn tables(&self, allowed: &[&str]) -> Result<Vec<ConfigTable<'d>>, ConfigError> {
        let DeValue::Array(items) = self.value.get_ref() else {
            return Err(self.mismatch(format_args!("tables, each under [[{}]]", self.key)));
        };
        let items = items.iter().enumerate();
        items
            .map(|item| self.item(item).table(Some(allowed)))
            .collect()
    }
}

/// Cuts the text of a long number, so that it fits in messages.
fn short(number: &str) -> &str {
    number.get(..24).unwrap_or(number)
}
