//! Configuration values whose type is not known in advance. For example, a sweep file holds such values, because it
//! sets values in other files.

use super::{ConfigError, ConfigField, DeValue};
use std::fmt;

/// A value without its key and line.
#[derive(Clone, Debug, PartialEq)]
pub enum ConfigLiteral {
    /// A string.
    Text(String),
    /// A whole number.
    Whole(i64),
    /// A number with a fraction.
    Number(f64),
    /// `true` or `false`.
    Flag(bool),
    /// A list.
    List(Vec<ConfigLiteral>),
}

impl ConfigLiteral {
    pub(super) fn to_toml(&self) -> toml::Value {
        match self {
            Self::Text(text) => toml::Value::String(text.clone()),
            Self::Whole(number) => toml::Value::Integer(*number),
            Self::Number(number) => toml::Value::Float(*number),
            Self::Flag(flag) => toml::Value::Boolean(*flag),
            Self::List(items) => toml::Value::Array(items.iter().map(Self::to_toml).collect()),
        }
    }

    /// Returns the value as TOML text, with strings in quotes.
    pub fn to_toml_text(&self) -> String {
        self.to_toml().to_string()
    }

    /// Parses a word of a command line as a number, or as `true` or `false`. Any word that is neither a number nor a
    /// boolean is a string.
    pub fn from_word(word: &str) -> Self {
        if let Ok(number) = word.parse() {
            return Self::Whole(number);
        }
        match (word, word.parse::<f64>()) {
            ("true" | "false", _) => Self::Flag(word == "true"),
            (_, Ok(number)) if number.is_finite() => Self::Number(number),
            _ => Self::Text(word.to_owned()),
        }
    }

    /// Returns the value if it is a number, otherwise `None`.
    pub fn as_number(&self) -> Option<f64> {
        match self {
            Self::Whole(number) => Some(*number as f64),
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }
}

/// Prints the value as it is written on the command line: strings without quotes, and lists with commas.
impl fmt::Display for ConfigLiteral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Whole(number) => write!(f, "{number}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    let comma = if i > 0 { "," } else { "" };
                    write!(f, "{comma}{item}")?;
                }
                Ok(())
            }
        }
    }
}

impl ConfigField<'_> {
    /// Reads a string, a number, a boolean, or a list of these.
    pub fn read_literal(&self) -> Result<ConfigLiteral, ConfigError> {
        let expected = "a text, a number, true or false, or a list of these";
        Ok(match self.value.get_ref() {
            DeValue::String(text) => ConfigLiteral::Text(text.to_string()),
            DeValue::Boolean(flag) => ConfigLiteral::Flag(*flag),
            DeValue::Integer(number) => {
                let parsed = i64::from_str_radix(number.as_str(), number.radix());
                ConfigLiteral::Whole(parsed.map_err(|_| {
                    self.invalid_value_error("a number of 20 digits or more", expected)
                })?)
            }
            DeValue::Float(number) => {
                let parsed: Option<f64> = number.as_str().replace('_', "").parse().ok();
                let finite = parsed.filter(|number| number.is_finite());
                ConfigLiteral::Number(
                    finite.ok_or_else(|| self.invalid_value_error(number.as_str(), expected))?,
                )
            }
            DeValue::Array(_) => {
                let items = self.read_array_items(expected)?;
                let items: Result<_, _> = items.iter().map(Self::read_literal).collect();
                ConfigLiteral::List(items?)
            }
            DeValue::Datetime(_) => {
                return Err(self.invalid_value_error("a date or time", expected));
            }
            DeValue::Table(_) => return Err(self.invalid_value_error("a table", expected)),
        })
    }

    /// Returns the table if the value is a table, otherwise `None`.
    pub fn as_table_or_none(&self) -> Option<super::ConfigTable<'_>> {
        self.read_table(None).ok()
    }
}
