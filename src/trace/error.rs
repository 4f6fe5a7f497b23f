//! What can be wrong with a trace, and where.

use std::fmt;
use std::path::{Path, PathBuf};

/// Where in a file something was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The file, if it came from one.
    pub file: Option<PathBuf>,
    /// Bytes from the start of the (decompressed) file.
    pub offset: Option<usize>,
    /// Records from the start, the metadata record being 0.
    pub record: Option<usize>,
    /// The node's id in the file.
    pub node: Option<u64>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{}", file.display())?,
            None => f.write_str("trace")?,
        }
        if let Some(record) = self.record {
            write!(f, ", record {record}")?;
        }
        if let Some(offset) = self.offset {
            write!(f, ", byte {offset}")?;
        }
        if let Some(node) = self.node {
            write!(f, ", node {node}")?;
        }
        Ok(())
    }
}

/// A trace that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The operating system refused.
    #[error("{}: cannot {doing}", file.display())]
    Io {
        /// Which file.
        file: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The bytes are not what the format says.
    #[error("{place}: {found}")]
    Malformed {
        /// Where.
        place: Place,
        /// What was found and what was expected.
        found: String,
    },
    /// The bytes are well formed, but what they say makes no sense.
    #[error("{place}: {found}\n  try: {hint}")]
    Refused {
        /// Where.
        place: Place,
        /// What was found and what was expected.
        found: String,
        /// What to try.
        hint: String,
    },
}

impl TraceError {
    /// The same error, said to be in `file`.
    #[must_use]
    pub fn in_file(mut self, path: &Path) -> Self {
        match &mut self {
            Self::Io { .. } => {}
            Self::Malformed { place, .. } | Self::Refused { place, .. } => {
                place.file.get_or_insert_with(|| path.to_owned());
            }
        }
        self
    }

    /// The same error, said to be in record number `record`, which starts at byte `offset`.
    #[must_use]
    pub fn in_record(mut self, record: usize, offset: usize) -> Self {
        match &mut self {
            Self::Io { .. } => {}
            Self::Malformed { place, .. } | Self::Refused { place, .. } => {
                place.record.get_or_insert(record);
                place.offset.get_or_insert(offset);
            }
        }
        self
    }

    /// Bytes that break the format, found at `offset`.
    #[cold]
    pub(crate) fn malformed(offset: usize, found: impl Into<String>) -> Self {
        Self::Malformed {
            place: Place {
                offset: Some(offset),
                ..Place::default()
            },
            found: found.into(),
        }
    }

    /// A node that makes no sense.
    #[cold]
    pub(crate) fn refused(node: u64, found: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Refused {
            place: Place {
                node: Some(node),
                ..Place::default()
            },
            found: found.into(),
            hint: hint.into(),
        }
    }
}
