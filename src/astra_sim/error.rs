//! Errors and notes about ASTRA-sim's inputs.

use std::fmt;
use std::io;

/// Error about an input file or a flag.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The file's text is not valid JSON, YAML or TOML, whichever is expected.
    #[error("{file}:{line}: not {format}: {why}")]
    Syntax {
        /// Name of the file.
        file: String,
        /// Line, counted from 1.
        line: usize,
        /// Expected format: JSON, YAML or TOML.
        format: &'static str,
        /// Message from the format's parser.
        why: String,
    },
    /// A key is missing, unknown, or has an invalid value.
    #[error("{file}:{line}: key `{key}`: {why}")]
    Key {
        /// Name of the file.
        file: String,
        /// Line, counted from 1; 1 if the key is missing.
        line: usize,
        /// The key as spelled in the file.
        key: String,
        /// The value found and the value expected, with advice.
        why: String,
    },
    /// A key or a flag contradicts another file.
    #[error("{file}: key `{key}`: {why}")]
    Disagreement {
        /// The file that contains the key.
        file: String,
        /// The key as spelled in the file, or the flag.
        key: String,
        /// The value found and the value expected, with advice.
        why: String,
    },
    /// The file cannot be read.
    #[error("cannot read the {role} file {file}")]
    Read {
        /// Role of the file.
        role: &'static str,
        /// Path of the file as given.
        file: String,
        /// Reason given by the operating system.
        source: io::Error,
    },
}

/// Note about a valid input that a reader may misunderstand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MisleadingValidInputNote {
    /// Name of the file, or [`MisleadingValidInputNote::COMMAND_LINE`] for a flag.
    pub file: String,
    /// Line, counted from 1; `None` for a flag, and for a key that is missing from the file.
    pub line: Option<usize>,
    /// The key as spelled in the file, or the flag.
    pub key: String,
    /// How the input is treated, and why.
    pub why: String,
}

impl MisleadingValidInputNote {
    /// Stands in for the file name in notes about flags.
    pub const COMMAND_LINE: &'static str = "command line";

    /// Creates a note about an item that has no line in `file`, such as a node of a trace.
    pub fn about_item_without_line(file: &str, key: String, why: String) -> Self {
        Self {
            file: file.to_owned(),
            line: None,
            key,
            why,
        }
    }

    /// Creates a note about `flag`, a word of the command line.
    pub fn about_flag(flag: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            file: Self::COMMAND_LINE.to_owned(),
            line: None,
            key: flag.into(),
            why: why.into(),
        }
    }
}

impl fmt::Display for MisleadingValidInputNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": `{}`: {}", self.key, self.why)
    }
}

/// Converts the message of a format's parser to one short line.
pub(super) fn shorten_to_one_line(why: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut line: String = why.trim().chars().take(300).map(plain).collect();
    if line.len() < why.trim().len() {
        line.push('…');
    }
    line
}

/// Formats a key for messages, in quotes unless it looks like a key.
pub(super) fn escape_key(key: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !key.is_empty() && key.len() <= 60 && key.chars().all(plain) {
        key.to_owned()
    } else {
        chakram_base::config::quote_and_truncate_for_message(key)
    }
}

/// Returns `; did you mean …?` with the most similar name, or an empty string if no name is
/// similar.
pub(super) fn did_you_mean<'n>(name: &str, all: impl IntoIterator<Item = &'n str>) -> String {
    chakram_base::config::did_you_mean(chakram_base::config::find_most_similar_name(name, all))
}
