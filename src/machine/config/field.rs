//! One value of a machine file: read as what it should be, or refused by key and line.

use super::{DeValue, Document, Spanned, Table};
use crate::machine::MachineError;
use crate::units::QuantityError;
use std::fmt::Display;
use std::ops::Range;
use std::str::FromStr;

/// A value of a document.
pub(in crate::machine) struct Field<'d> {
    pub(super) document: &'d Document<'d>,
    pub(super) key: String,
    pub(super) at: usize,
    pub(super) value: &'d Spanned<DeValue<'d>>,
}

/// `text` in quotes on one line, cut to a length that a message can carry.
pub(in crate::machine) fn quoted(text: &str) -> String {
    let short: String = text.chars().take(40).collect();
    let more = if short.len() < text.len() { "…" } else { "" };
    format!("{:?}{more}", short)
}

impl<'d> Field<'d> {
    /// An error: this value is `found` where `expected` should be.
    pub(in crate::machine) fn refuse(
        &self,
        found: impl Display,
        expected: impl Display,
    ) -> MachineError {
        let why = format!("found {found}, expected {expected}");
        self.document.refuse(&self.key, self.at, why)
    }

    /// An error: this value is of the wrong type.
    fn mismatch(&self, expected: impl Display) -> MachineError {
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

    /// The bytes of the text that the value takes.
    pub(in crate::machine) fn span(&self) -> Range<usize> {
        self.value.span()
    }

    /// A text of one line, not empty, of at most 200 characters.
    pub(in crate::machine) fn line(&self) -> Result<&'d str, MachineError> {
        let text = self.text("a text in quotes")?;
        let blank = text.trim().is_empty();
        if blank || text.chars().any(char::is_control) || text.chars().count() > 200 {
            return Err(self.refuse(quoted(text), "one line of 1 to 200 characters"));
        }
        Ok(text)
    }

    /// A text; `expected` says of what.
    pub(in crate::machine) fn text(&self, expected: impl Display) -> Result<&'d str, MachineError> {
        match self.value.get_ref() {
            DeValue::String(text) => Ok(text),
            _ => Err(self.mismatch(expected)),
        }
    }

    /// `true` or `false`.
    pub(in crate::machine) fn flag(&self) -> Result<bool, MachineError> {
        match self.value.get_ref() {
            DeValue::Boolean(flag) => Ok(*flag),
            _ => Err(self.mismatch("true or false")),
        }
    }

    /// A whole number from 1 to `most`.
    pub(in crate::machine) fn count(&self, most: u32) -> Result<u32, MachineError> {
        let number = match self.value.get_ref() {
            DeValue::Integer(n) => u32::from_str_radix(n.as_str(), n.radix()).ok(),
            _ => None,
        };
        let number = number.filter(|n| (1..=most).contains(n));
        number.ok_or_else(|| self.mismatch(format_args!("a whole number from 1 to {most}")))
    }

    /// A quantity with its unit, in quotes; `example` is one.
    pub(in crate::machine) fn quantity<T>(&self, example: &str) -> Result<T, MachineError>
    where
        T: FromStr<Err = QuantityError>,
    {
        let text = self.text(format_args!("a quantity in quotes such as {example:?}"))?;
        let wrong = |error: QuantityError| {
            let why = error.to_string().replace(char::is_control, " ");
            self.document.refuse(&self.key, self.at, why)
        };
        text.parse().map_err(wrong)
    }

    /// One of the names in `all`.
    pub(in crate::machine) fn choice<T: Copy>(&self, all: &[(T, &str)]) -> Result<T, MachineError> {
        let names: Vec<_> = all.iter().map(|(_, name)| *name).collect();
        let expected = format!("one of {}", names.join(", "));
        let text = self.text(&expected)?;
        let chosen = all.iter().find(|(_, name)| *name == text);
        chosen
            .map(|(value, _)| *value)
            .ok_or_else(|| self.mismatch(&expected))
    }

    /// A table that may have the keys `allowed`, or any.
    pub(in crate::machine) fn table(
        &self,
        allowed: Option<&[&str]>,
    ) -> Result<Table<'d>, MachineError> {
        match self.value.get_ref() {
            DeValue::Table(entries) => {
                Table::open(self.document, self.key.clone(), self.at, entries, allowed)
            }
            _ => Err(self.mismatch("a table")),
        }
    }

    /// Tables that may each have the keys `allowed`.
    pub(in crate::machine) fn tables(
        &self,
        allowed: &[&str],
    ) -> Result<Vec<Table<'d>>, MachineError> {
        let DeValue::Array(items) = self.value.get_ref() else {
            return Err(self.mismatch(format_args!("tables, each under [[{}]]", self.key)));
        };
        let open = |(index, value): (usize, &'d Spanned<DeValue<'d>>)| {
            let item = Self {
                document: self.document,
                key: format!("{}[{index}]", self.key),
                at: value.span().start,
                value,
            };
            item.table(Some(allowed))
        };
        items.iter().enumerate().map(open).collect()
    }
}

/// Long numbers, cut.
fn short(number: &str) -> &str {
    number.get(..24).unwrap_or(number)
}
