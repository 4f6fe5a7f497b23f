//! Values of any type, as a file has them: for files that say what to write into other files.

use super::{ConfigError, ConfigField, DeValue};
use std::fmt;

/// A value without the place that it came from.
#[derive(Clone, Debug, PartialEq)]
pub enum ConfigLiteral {
    /// A text.
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
    /// The value as TOML's types have it.
    pub(super) fn toml(&self) -> toml::Value {
        match self {
            Self::Text(text) => toml::Value::String(text.clone()),
            Self::Whole(number) => toml::Value::Integer(*number),
            Self::Number(number) => toml::Value::Float(*number),
            Self::Flag(flag) => toml::Value::Boolean(*flag),
            Self::List(items) => toml::Value::Array(items.iter().map(Self::toml).collect()),
        }
    }

    /// The value as a file of TOML has it, texts in quotes.
    pub fn quoted(&self) -> String {
        self.toml().to_string()
    }

    /// The value of a word on a command line: a number, `true` or `false` where it reads as one, and a text otherwise.
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

    /// The number, if it is one.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Whole(number) => Some(*number as f64),
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }
}

/// As it stands behind an option: texts without quotes, lists with commas.
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
    /// The value, if it is a text, a number, true or false, or a list of such.
    pub fn literal(&self) -> Result<ConfigLiteral, ConfigError> {
        let expected = "a text, a number, true or false, or a list of these";
        Ok(match self.value.get_ref() {
            DeValue::String(text) => ConfigLiteral::Text(text.to_string()),
            DeValue::Boolean(flag) => ConfigLiteral::Flag(*flag),
            DeValue::Integer(number) => {
                let parsed = i64::from_str_radix(number.as_str(), number.radix());
                ConfigLiteral::Whole(
                    parsed.map_err(|_| self.refuse("a number of 20 digits or more", expected))?,
                )
            }
            DeValue::Float(number) => {
                let parsed: Option<f64> = number.as_str().replace('_', "").parse().ok();
                let finite = parsed.filter(|number| number.is_finite());
                ConfigLiteral::Number(finite.ok_or_else(|| self.refuse(number.as_str(), expected))?)
            }
            DeValue::Array(_) => {
                let items = self.items(expected)?;
                let items: Result<_, _> = items.iter().map(Self::literal).collect();
                ConfigLiteral::List(items?)
            }
            DeValue::Datetime(_) => return Err(self.refuse("a date or time", expected)),
            DeValue::Table(_) => return Err(self.refuse("a table", expected)),
        })
    }

    /// The table, if the value is one.
    pub fn if_table(&self) -> Option<super::ConfigTable<'_>> {
        self.table(None).ok()
    }
}
