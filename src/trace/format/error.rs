//! Errors about reading and writing traces, with their locations.

use chakram_base::interrupt::StopOrMemoryInterruption;
use std::fmt;
use std::path::{Path, PathBuf};

/// Location of an error in a trace file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceErrorLocation {
    /// Path of the file, or `None` if the trace is not from a file.
    pub file: Option<PathBuf>,
    /// Offset in the decompressed file, in bytes.
    pub offset: Option<usize>,
    /// Index of the record; the metadata record has index 0.
    pub record: Option<usize>,
    /// The node's id in the trace file.
    pub node: Option<u64>,
    /// Line and column in a text, counted from 1.
    pub line: Option<(usize, usize)>,
}

impl fmt::Display for TraceErrorLocation {
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
        if let Some((line, column)) = self.line {
            write!(f, ", line {line}, column {column}")?;
        }
        if let Some(node) = self.node {
            write!(f, ", node {node}")?;
        }
        Ok(())
    }
}

/// An error about a trace. It is boxed to take only one word, because every function that reads a field can return it.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct TraceError(Box<TraceErrorKind>);

/// Kind of trace error, with its details.
#[derive(Debug, thiserror::Error)]
pub enum TraceErrorKind {
    /// An operation on a file failed.
    #[error("{}: cannot {doing}", file.display())]
    Io {
        /// Path of the file.
        file: PathBuf,
        /// The operation that failed, worded to follow "cannot": `open` or `read`, for example.
        doing: &'static str,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The bytes break the format.
    #[error("{place}: {found}")]
    Malformed {
        /// Location of the malformed bytes.
        place: TraceErrorLocation,
        /// Clause that states what was found and what was expected.
        found: String,
    },
    /// The bytes are well formed, but their content is invalid.
    #[error("{place}: {found}\n  try: {hint}")]
    Refused {
        /// Location of the invalid content.
        place: TraceErrorLocation,
        /// Clause that states what was found and what was expected.
        found: String,
        /// Suggested remedy.
        hint: String,
    },
    /// Reading was interrupted.
    #[error(transparent)]
    Interrupted(StopOrMemoryInterruption),
}

impl From<StopOrMemoryInterruption> for TraceError {
    fn from(interruption: StopOrMemoryInterruption) -> Self {
        Self(Box::new(TraceErrorKind::Interrupted(interruption)))
    }
}

impl TraceError {
    /// Returns the kind of error with its details.
    pub fn fault(&self) -> &TraceErrorKind {
        &self.0
    }

    /// Builds the error for an operation `doing` that failed on `file`; the operating system returned `source`.
    pub fn from_io(file: impl Into<PathBuf>, doing: &'static str, source: std::io::Error) -> Self {
        Self(Box::new(TraceErrorKind::Io {
            file: file.into(),
            doing,
            source,
        }))
    }

    /// Returns true if the error means that a file does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(&*self.0, TraceErrorKind::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
    }

    pub(super) fn location_mut(&mut self) -> Option<&mut TraceErrorLocation> {
        match &mut *self.0 {
            TraceErrorKind::Io { .. } | TraceErrorKind::Interrupted(_) => None,
            TraceErrorKind::Malformed { place, .. } | TraceErrorKind::Refused { place, .. } => {
                Some(place)
            }
        }
    }

    /// Adds the file name to the error, unless the error already has one.
    #[must_use]
    pub fn in_file(mut self, path: &Path) -> Self {
        match &mut *self.0 {
            // Readers of a stream do not know its name, so they leave the name empty.
            TraceErrorKind::Io { file, .. } if file.as_os_str().is_empty() => {
                *file = path.to_owned()
            }
            TraceErrorKind::Io { .. } | TraceErrorKind::Interrupted(_) => {}
            TraceErrorKind::Malformed { place, .. } | TraceErrorKind::Refused { place, .. } => {
                place.file.get_or_insert_with(|| path.to_owned());
            }
        }
        self
    }

    /// Adds `path` to a write error that has no file name.
    #[must_use]
    pub fn fill_missing_output_path(mut self, path: &Path) -> Self {
        if let TraceErrorKind::Io { file, doing, .. } = &mut *self.0
            && *doing == "write"
            && file.as_os_str().is_empty()
        {
            *file = path.to_owned();
        }
        self
    }

    /// Adds the record's index and byte offset to the error, unless the error already has them.
    #[must_use]
    #[cold]
    pub fn in_record(mut self, record: usize, offset: usize) -> Self {
        if let Some(place) = self.location_mut() {
            place.record.get_or_insert(record);
            place.offset.get_or_insert(offset);
        }
        self
    }

    /// Makes an error's location relative to the whole file: sets the record, and adds `by` bytes to the offset.
    #[must_use]
    pub fn set_record_and_shift_offset(mut self, record: usize, by: usize) -> Self {
        if let Some(place) = self.location_mut() {
            place.record = Some(record);
            place.offset = place.offset.map(|offset| offset + by);
        }
        self
    }

    /// Returns the byte offset of the error, or `None` if unknown.
    pub fn byte_offset(&self) -> Option<usize> {
        match &*self.0 {
            TraceErrorKind::Io { .. } | TraceErrorKind::Interrupted(_) => None,
            TraceErrorKind::Malformed { place, .. } | TraceErrorKind::Refused { place, .. } => {
                place.offset
            }
        }
    }

    /// Returns the description of the error without its location.
    pub fn describe_finding(&self) -> String {
        match &*self.0 {
            TraceErrorKind::Io { source, .. } => source.to_string(),
            TraceErrorKind::Interrupted(interruption) => interruption.to_string(),
            TraceErrorKind::Malformed { found, .. } | TraceErrorKind::Refused { found, .. } => {
                found.clone()
            }
        }
    }

    /// Appends a probable cause to an error for malformed bytes.
    #[must_use]
    pub fn with_cause(mut self, cause: &str) -> Self {
        if let TraceErrorKind::Malformed { found, .. } = &mut *self.0 {
            found.push_str(": ");
            found.push_str(cause);
        }
        self
    }

    /// Builds the error for a file without records.
    #[cold]
    pub fn empty_file() -> Self {
        Self::malformed_at(0, "the file is empty")
    }

    /// Builds the error for a file that consists only of zero bytes.
    #[cold]
    pub fn all_zero_file(bytes: usize) -> Self {
        let found = format!(
            "{bytes} bytes, all of them zero: the file was never written to its end, or is not an execution trace"
        );
        Self::malformed_at(0, found)
    }

    /// Builds the error for malformed bytes at `offset`.
    #[cold]
    pub fn malformed_at(offset: usize, found: impl Into<String>) -> Self {
        Self(Box::new(TraceErrorKind::Malformed {
            place: TraceErrorLocation {
                offset: Some(offset),
                ..TraceErrorLocation::default()
            },
            found: found.into(),
        }))
    }

    /// Builds the error for malformed text at this line and column, with the node if it is known.
    #[cold]
    pub fn malformed_text_at_line(
        line: (usize, usize),
        node: Option<u64>,
        found: impl Into<String>,
    ) -> Self {
        Self(Box::new(TraceErrorKind::Malformed {
            place: TraceErrorLocation {
                line: Some(line),
                node,
                ..TraceErrorLocation::default()
            },
            found: found.into(),
        }))
    }

    /// Builds the error for an invalid node.
    #[cold]
    pub fn invalid_node(node: u64, found: impl Into<String>, hint: impl Into<String>) -> Self {
        let place = TraceErrorLocation {
            node: Some(node),
            ..TraceErrorLocation::default()
        };
        Self::invalid_at(place, found, hint)
    }

    /// Builds the error for a file that is invalid by itself or together with other files.
    #[cold]
    pub fn invalid_file(
        file: impl Into<PathBuf>,
        found: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        let place = TraceErrorLocation {
            file: Some(file.into()),
            ..TraceErrorLocation::default()
        };
        Self::invalid_at(place, found, hint)
    }

    /// Builds the error for invalid content at `place`.
    pub fn invalid_at(
        place: TraceErrorLocation,
        found: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self(Box::new(TraceErrorKind::Refused {
            place,
            found: found.into(),
            hint: hint.into(),
        }))
    }
}
