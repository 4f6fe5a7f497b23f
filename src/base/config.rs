//! Configuration files in TOML. Every value keeps its key and line, so that errors can name both. The interface
//! contains no type of the `toml` package.
//!
//! Every text yields either values or an error; no text causes a panic. A caller opens a table with a list of allowed
//! keys, and any other key causes an error at once.

use crate::units::QuantityError;
use std::fmt::Display;
use std::str::FromStr;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

mod edit;
mod field;
mod file;
mod literal;
mod nearest;

pub use edit::{
    TomlEditError, TomlValueChangedByEdit, changed_values, list_toml_number_like_values_with_paths,
    replace_toml_values, toml_value_at,
};
pub use field::{ConfigField, quote_and_truncate_for_message, require_distinct_headings};
pub use file::{STANDARD_INPUT, read_file_or_standard_input};
pub use literal::ConfigLiteral;
pub use nearest::{did_you_mean, find_most_similar_name};

/// Error in the text of a configuration file. Every message states the file and line, the value found and the values
/// allowed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The text is not TOML.
    #[error("{file}:{line}: not TOML: {why}")]
    Syntax {
        /// Name of the text in error messages, usually its path.
        file: String,
        /// Line number of the error; lines count from 1.
        line: usize,
        /// Description of the syntax found and the syntax expected, from the TOML parser.
        why: String,
    },
    /// A key is missing, unknown, or has an invalid value.
    #[error("{file}:{line}: key `{key}`: {why}")]
    Key {
        /// Name of the text in error messages, usually its path.
        file: String,
        /// Line number (from 1) of the key, or of the key's table if the key is missing.
        line: usize,
        /// The key's path from the root of the file, for example `dimension[1].bandwidth`.
        key: String,
        /// Clause that states the value found and the allowed values.
        why: String,
    },
}

/// A parsed TOML text.
pub struct ConfigDocument<'d> {
    file: &'d str,
    text: &'d str,
    root: Spanned<DeTable<'d>>,
}

/// A table of a document, opened with its list of allowed keys.
pub struct ConfigTable<'d> {
    document: &'d ConfigDocument<'d>,
    key: String,
    at: usize,
    entries: &'d DeTable<'d>,
}

impl<'d> ConfigDocument<'d> {
    /// Parses `text`. Error messages refer to the text as `file`.
    pub fn parse(text: &'d str, file: &'d str) -> Result<Self, ConfigError> {
        match DeTable::parse(text) {
            Ok(root) => Ok(Self { file, text, root }),
            Err(error) => Err(ConfigError::Syntax {
                file: file.to_owned(),
                line: line_number_at_byte(text, error.span().map_or(0, |span| span.start)),
                why: error.message().replace('\n', ", "),
            }),
        }
    }

    /// Returns the root table; its keys must be in `allowed`.
    pub fn root_table_with_allowed_keys(
        &'d self,
        allowed: &[&str],
    ) -> Result<ConfigTable<'d>, ConfigError> {
        ConfigTable::build_table_checking_keys(
            self,
            String::new(),
            0,
            self.root.get_ref(),
            Some(allowed),
        )
    }

    /// Returns the root table without checking its keys.
    pub fn unchecked_root(&'d self) -> ConfigTable<'d> {
        ConfigTable {
            document: self,
            key: String::new(),
            at: 0,
            entries: self.root.get_ref(),
        }
    }

    fn error_at(&self, key: &str, at: usize, why: String) -> ConfigError {
        ConfigError::Key {
            file: self.file.to_owned(),
            line: line_number_at_byte(self.text, at),
            key: key.to_owned(),
            why,
        }
    }
}

/// Returns the line number, starting at 1, of the byte at offset `at`.
fn line_number_at_byte(text: &str, at: usize) -> usize {
    // Lines are counted only for errors, so that valid texts need no scan.
    let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
    1 + before.iter().filter(|&&byte| byte == b'\n').count()
}

impl<'d> ConfigTable<'d> {
    fn build_table_checking_keys(
        document: &'d ConfigDocument<'d>,
        key: String,
        at: usize,
        entries: &'d DeTable<'d>,
        allowed: Option<&[&str]>,
    ) -> Result<Self, ConfigError> {
        let table = Self {
            document,
            key,
            at,
            entries,
        };
        if let Some(allowed) = allowed {
            let known = |name: &str| allowed.contains(&name);
            // Reject unknown keys first, because a misspelled optional key would otherwise be ignored silently.
            if let Some((name, _)) = entries.iter().find(|(name, _)| !known(name.get_ref())) {
                let closest = find_most_similar_name(name.get_ref(), allowed.iter().copied());
                let why = format!(
                    "found an unknown key, expected one of {}{}",
                    allowed.join(", "),
                    did_you_mean(closest)
                );
                let key = table.full_key(name.get_ref());
                return Err(document.error_at(&key, name.span().start, why));
            }
        }
        Ok(table)
    }

    /// Returns the key of entry `name`, including the keys of all tables around it.
    fn full_key(&self, name: &str) -> String {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        // Quote or truncate long or unusual keys. Otherwise, a malicious key could add lines to a message or make it
        // very long.
        let name = if !name.is_empty() && name.len() <= 40 && name.chars().all(plain) {
            name.to_owned()
        } else {
            quote_and_truncate_for_message(name)
        };
        if self.key.is_empty() {
            name
        } else {
            format!("{}.{name}", self.key)
        }
    }

    /// Returns the entry `name`, or `None` if there is no such entry.
    pub fn get(&self, name: &str) -> Option<ConfigField<'d>> {
        let (key, value) = self.entries.get_key_value(name)?;
        Some(self.wrap_field(key, value))
    }

    /// Returns the required entry `name`. If the entry is missing, the error states `expected`.
    pub fn require_field(
        &self,
        name: &str,
        expected: impl Display,
    ) -> Result<ConfigField<'d>, ConfigError> {
        self.get(name)
            .ok_or_else(|| self.missing_entry_error(name, expected))
    }

    /// Reads the entry `name` with `read`, or returns `None` if the entry is missing.
    pub fn read_optional<T>(
        &self,
        name: &str,
        read: impl FnOnce(&ConfigField<'d>) -> Result<T, ConfigError>,
    ) -> Result<Option<T>, ConfigError> {
        self.get(name).map(|field| read(&field)).transpose()
    }

    /// Reads the entry `name` with `read`, or returns `default` if the entry is missing.
    pub fn read_or_default<T>(
        &self,
        name: &str,
        default: T,
        read: impl FnOnce(&ConfigField<'d>) -> Result<T, ConfigError>,
    ) -> Result<T, ConfigError> {
        self.get(name).map_or(Ok(default), |field| read(&field))
    }

    /// Builds the error about the missing entry `name`.
    pub fn missing_entry_error(&self, name: &str, expected: impl Display) -> ConfigError {
        let why = format!("found nothing, expected {expected}");
        self.document.error_at(&self.full_key(name), self.at, why)
    }

    /// Reads the quantity at `name`. Errors show `example` as a valid quantity.
    pub fn read_quantity<T>(&self, name: &str, example: &str) -> Result<T, ConfigError>
    where
        T: FromStr<Err = QuantityError>,
    {
        self.require_field(
            name,
            format_args!("a quantity in quotes such as {example:?}"),
        )?
        .read_quantity(example)
    }

    /// Reads the whole number from 1 to `most` at `name`.
    pub fn read_count(&self, name: &str, most: u32) -> Result<u32, ConfigError> {
        self.require_field(name, format_args!("a whole number from 1 to {most}"))?
            .read_count(most)
    }

    /// Reads the value at `name`, which must be one of the names in `all`.
    pub fn read_choice<T: Copy>(&self, name: &str, all: &[(T, &str)]) -> Result<T, ConfigError> {
        let names: Vec<_> = all.iter().map(|(_, name)| *name).collect();
        self.require_field(name, format_args!("one of {}", names.join(", ")))?
            .read_choice(all)
    }

    /// Iterates over all entries with their names, in file order.
    pub fn fields(&self) -> impl Iterator<Item = (&'d str, ConfigField<'d>)> + '_ {
        let entries = self.entries.iter();
        entries.map(|(key, value)| (key.get_ref().as_ref(), self.wrap_field(key, value)))
    }

    /// Builds an error about the whole table, not about one of its entries.
    pub fn invalid_table_error(&self, found: impl Display, expected: impl Display) -> ConfigError {
        let why = format!("found {found}, expected {expected}");
        self.document.error_at(&self.key, self.at, why)
    }

    fn wrap_field(
        &self,
        key: &'d Spanned<std::borrow::Cow<'d, str>>,
        value: &'d Spanned<DeValue<'d>>,
    ) -> ConfigField<'d> {
        ConfigField {
            document: self.document,
            key: self.full_key(key.get_ref()),
            at: key.span().start,
            value,
        }
    }
}
