//! Why an input of ASTRA-sim is refused, and what one says that has no effect.

use std::fmt;
use std::io;

/// An input file that was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The text is not in the format of the file.
    #[error("{file}:{line}: not {format}: {why}")]
    Syntax {
        /// What the text is called.
        file: String,
        /// Line, from 1.
        line: usize,
        /// The format it should be in: JSON, YAML or TOML.
        format: &'static str,
        /// What the reader of the format found and expected.
        why: String,
    },
    /// A key is missing, unknown, or has a value that it cannot have.
    #[error("{file}:{line}: key `{key}`: {why}")]
    Key {
        /// What the text is called.
        file: String,
        /// Line, from 1; for a missing key the first.
        line: usize,
        /// The key as the file has it.
        key: String,
        /// What was found, what was expected, and what to try.
        why: String,
    },
    /// A key, or a flag, that does not go with another file.
    #[error("{file}: key `{key}`: {why}")]
    Disagreement {
        /// The file that has the key.
        file: String,
        /// The key.
        key: String,
        /// What was found, what was expected, and what to try.
        why: String,
    },
    /// The file cannot be read.
    #[error("cannot read the {role} file {file}")]
    Read {
        /// What it is for.
        role: &'static str,
        /// Its path as given.
        file: String,
        /// Why not.
        source: io::Error,
    },
}

/// Something in the inputs that was accepted but does not mean what one may think.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// What the text is called; [`Note::COMMAND_LINE`] for a flag.
    pub file: String,
    /// Line, from 1; none for a flag and for what a file does not have.
    pub line: Option<usize>,
    /// The key as the file has it, or the flag.
    pub key: String,
    /// What becomes of it, and why.
    pub why: String,
}

impl Note {
    /// Where flags stand.
    pub const COMMAND_LINE: &'static str = "command line";

    /// A note about what `file` has no line for: a node of a trace.
    pub fn node(file: &str, key: String, why: String) -> Self {
        Self {
            file: file.to_owned(),
            line: None,
            key,
            why,
        }
    }

    /// A note about the flag `flag`, which begins with `--`.
    pub fn flag(flag: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            file: Self::COMMAND_LINE.to_owned(),
            line: None,
            key: flag.into(),
            why: why.into(),
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": `{}`: {}", self.key, self.why)
    }
}

/// `text` in quotes on one line, cut to a length that a message can carry.
pub(super) fn quoted(text: &str) -> String {
    let short: String = text.chars().take(40).collect();
    let more = if short.len() < text.len() { "…" } else { "" };
    format!("{short:?}{more}")
}

/// What the reader of a format says, on one line, cut to a length that a message can carry.
pub(super) fn one_line(why: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut line: String = why.trim().chars().take(300).map(plain).collect();
    if line.len() < why.trim().len() {
        line.push('…');
    }
    line
}

/// A key as messages name it: bare if it looks like one.
pub(super) fn shown(key: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    match !key.is_empty() && key.len() <= 60 && key.chars().all(plain) {
        true => key.to_owned(),
        false => quoted(key),
    }
}

/// `; did you mean …?`, or nothing.
pub(super) fn did_you_mean<'n>(name: &str, all: impl IntoIterator<Item = &'n str>) -> String {
    crate::config::did_you_mean(crate::config::nearest(name, all))
}
