//! Archives of workloads. An archive contains many verified, compressed and immutable workloads, in one file or in a
//! folder.
//!
//! An archive is a sequence of *segments*: one after another in a single file (`.etz`), or as separate files in a
//! folder. A segment contains objects, and lists the workloads that it adds, replaces and drops. An object's name is
//! its BLAKE3 hash, and an archive stores each object once. `docs/reference/archive-format.md` is the specification.

mod add;
mod chunk;
mod columns;
mod document;
mod door;
mod extract;
mod folder;
mod listing;
mod maintain;
mod metadata;
mod segment;
mod segment_file;
mod segments;
mod store;
mod tail;
mod verify;
mod wire;

pub use add::{
    AddedWorkloadSizes, UnsavedBaselineMakespanPrediction, WorkloadToAdd, add_baseline_predictions,
    add_workload,
};
pub use document::{
    MeasuredStepTimeDistribution, NonTraceFileRow, Provenance, RecordedMakespanPrediction,
    TraceSharedByRankRange, WorkloadEntry,
};
pub use door::{find_traces_of_archive_path, find_workload_traces, read_archived_file};
pub use extract::{RankOrNodeRange, RanksAndNodesToExtract};
pub use listing::{ArchiveListingReader, WorkloadListingRow};
pub use maintain::{
    ArchiveGarbageCollectionResult, MergedAndKnownWorkloads, expired_workloads, merge_archives,
    rewrite_archive_without_dropped_workloads,
};
pub use metadata::{
    MetadataQuery, MetadataValue, QueryComparisonOperator, QueryableWorkload, is_date,
};
pub use store::{Archive, create_empty};
pub use tail::{UncommittedArchiveTail, UncommittedTailState};
pub use verify::ArchiveVerificationResult;

use chakram_base::setting::EnumeratedSetting;
use chakram_trace::format::TraceError;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// Extension of single-file archives.
pub const ENDING: &str = ".etz";

/// Function that is called after each object of a workload, for progress displays.
pub type ObjectProgressCallback<'a> = &'a dyn Fn();

/// How strongly a workload is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CompressionLevel {
    /// Traces, as consecutive zstd frames that `zstd -d` can also read.
    Plain,
    /// Columns, compressed with zstd level 3.
    Default,
    /// Columns, compressed with zstd level 19.
    Best,
}

impl EnumeratedSetting for CompressionLevel {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (
            Self::Plain,
            "plain",
            "Whole traces, which `zstd -d` can unpack",
        ),
        (
            Self::Default,
            "default",
            "Columns of times and ids, with fast compression",
        ),
        (Self::Best, "best", "Smallest archive, slow"),
    ];
}

impl CompressionLevel {
    fn zstd_level(self) -> i32 {
        match self {
            Self::Plain | Self::Default => 3,
            Self::Best => 19,
        }
    }
}

/// Error of an operation on an archive.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The archive's bytes were modified, or the file is not an archive.
    #[error("{}{found}", Self::describe_location(.file.as_deref(), *.at))]
    Broken {
        /// Path of the archive, or of the damaged file in the archive's folder.
        file: Option<PathBuf>,
        /// Offset of the damage in the file.
        at: Option<u64>,
        /// Description of the damage, as a part of a sentence.
        found: String,
    },
    /// The archive is valid, but the operation is not possible.
    #[error("{found}\n  try: {hint}")]
    Refused {
        /// Reason why the operation is not possible.
        found: String,
        /// Suggestion for the user.
        hint: String,
    },
    /// An operating system error.
    #[error("{}: cannot {doing} it", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The attempted operation, as the verb after "cannot".
        doing: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file cannot be read or written.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl ArchiveError {
    fn describe_location(file: Option<&Path>, at: Option<u64>) -> String {
        let file = file.map_or("archive".to_owned(), |file| file.display().to_string());
        let at = at.map_or(String::new(), |at| format!(", byte {at}"));
        format!("{file}{at}: ")
    }

    fn broken_archive_error(found: impl Into<String>) -> Self {
        Self::Broken {
            file: None,
            at: None,
            found: found.into(),
        }
    }

    fn refused_request_error(found: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Refused {
            found: found.into(),
            hint: hint.into(),
        }
    }

    fn io_error(file: &Path, doing: &'static str, source: io::Error) -> Self {
        Self::Io {
            file: file.to_owned(),
            doing,
            source,
        }
    }

    fn is_file_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Adds the file `path` to the error, unless the error already names a file.
    fn in_file(mut self, path: &Path) -> Self {
        match &mut self {
            Self::Broken { file, .. } => drop(file.get_or_insert_with(|| path.to_owned())),
            Self::Io { file, .. } if file.as_os_str().is_empty() => *file = path.to_owned(),
            _ => {}
        }
        self
    }

    /// Inserts the subject `name` before the reason of an error about invalid input.
    fn with_subject_if_refused(mut self, name: &str) -> Self {
        if let Self::Refused { found, .. } = &mut self {
            *found = format!(
                "{}: {found}",
                chakram_trace::format::escape_and_shorten_name(name)
            );
        }
        self
    }

    /// Adds the offset `byte` to the error, unless the error already has an offset.
    fn add_offset_if_missing(mut self, byte: u64) -> Self {
        if let Self::Broken { at, .. } = &mut self {
            at.get_or_insert(byte);
        }
        self
    }
}

#[cfg(test)]
mod tests;
