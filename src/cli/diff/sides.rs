//! The two traces of a rank: whole files or, with `--salvage`, the intact parts of damaged files.

use chakram_analysis::diff::tally::FileFaultSummary;
use chakram_trace::format::error::TraceErrorKind;
use chakram_trace::format::file::{DecompressedTraceFile, RankFile, decompress_as_far_as_possible};
use chakram_trace::format::salvage::{self, SalvageReport};
use chakram_trace::format::{TraceError, TraceErrorLocation};
use chakram_trace::graph::RawTrace;
use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};

/// Traces that are damaged or cannot be read, each with its first error and the number of further ones.
#[derive(Debug)]
pub struct UnreadableTraces {
    files: Vec<(TraceError, usize)>,
    /// Suggested next step, possibly empty.
    hint: &'static str,
}

impl UnreadableTraces {
    /// Returns the values of all `results`, or an error that lists the files of all failed results.
    pub fn values_or_unreadable_error<T>(
        results: impl IntoIterator<Item = Result<T, Self>>,
    ) -> Result<Vec<T>, Self> {
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        for result in results {
            match result {
                Ok(one) => good.push(one),
                Err(Self { files, .. }) => bad.extend(files),
            }
        }
        if bad.is_empty() {
            Ok(good)
        } else {
            Err(Self::from(bad))
        }
    }

    /// Suggests `--salvage`, unless all files are missing.
    pub fn with_salvage_hint(mut self) -> Self {
        let missing = |error: &TraceError| match error.fault() {
            TraceErrorKind::Io { source, .. } => source.kind() == std::io::ErrorKind::NotFound,
            _ => false,
        };
        if !self.files.iter().all(|(error, _)| missing(error)) {
            self.hint =
                "\n  try: --salvage, which compares the intact records and lists the losses";
        }
        self
    }
}

impl From<TraceError> for UnreadableTraces {
    fn from(error: TraceError) -> Self {
        vec![(error, 0)].into()
    }
}

impl From<Vec<(TraceError, usize)>> for UnreadableTraces {
    fn from(files: Vec<(TraceError, usize)>) -> Self {
        Self { files, hint: "" }
    }
}

/// Maximum number of files in the message.
const NAMED: usize = 8;

impl fmt::Display for UnreadableTraces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (error, more)) in self.files.iter().take(NAMED).enumerate() {
            let line = if i > 0 { "\n" } else { "" };
            write!(f, "{line}{error}")?;
            let mut cause = error.source();
            while let Some(inner) = cause {
                write!(f, ": {inner}")?;
                cause = inner.source();
            }
            if *more > 0 {
                write!(f, " (and {more} more)")?;
            }
        }
        if self.files.len() > NAMED {
            write!(f, "\n… and {} more files", self.files.len() - NAMED)?;
        }
        f.write_str(self.hint)
    }
}

impl Error for UnreadableTraces {}

/// The trace of a rank in one of the two jobs, whole or salvaged.
#[derive(Debug)]
pub enum WholeOrSalvagedTrace {
    /// A whole file.
    File(DecompressedTraceFile),
    /// The intact part of a damaged file.
    Salvaged {
        /// Path of the damaged file.
        path: PathBuf,
        /// A valid trace file that contains the intact records.
        bytes: Vec<u8>,
        /// Report on the lost records.
        report: Box<SalvageReport>,
        /// Error that occurred while the file was decompressed, if any.
        wrong: Option<String>,
    },
}

impl WholeOrSalvagedTrace {
    /// Opens `file`. If the file is damaged and `salvage` is true, recovers the intact part.
    pub fn open_file(file: &RankFile, salvage: bool) -> Result<Self, UnreadableTraces> {
        let path = &file.path;
        let contents = match DecompressedTraceFile::open_verified(file) {
            Ok(contents) => contents,
            Err(_) if salvage => return Self::salvage_file(path).map_err(UnreadableTraces::from),
            Err(error) => return Err(error.into()),
        };
        if salvage {
            let raw = RawTrace::read_trace(contents.as_slice());
            if has_damage_fault(&raw) {
                return Self::salvage_file(path).map_err(UnreadableTraces::from);
            }
        }
        Ok(Self::File(contents))
    }

    fn salvage_file(path: &Path) -> Result<Self, TraceError> {
        let packed = DecompressedTraceFile::open_without_decompressing(path)?;
        let unpacked = decompress_as_far_as_possible(packed.as_slice());
        let (contents, wrong) = match &unpacked {
            Some((bytes, wrong)) => (&bytes[..], wrong.as_ref().map(ToString::to_string)),
            None => (packed.as_slice(), None),
        };
        let salvaged = salvage::salvage_trace(
            contents,
            salvage::SalvageSchemaAndDanglingOptions::default(),
        );
        let (bytes, report) = salvaged.map_err(|error| error.in_file(path))?;
        Ok(Self::Salvaged {
            path: path.to_owned(),
            bytes,
            report: Box::new(report),
            wrong,
        })
    }

    /// Returns the bytes as a trace file of the current schema.
    pub fn bytes_in_current_trace_schema(&self) -> &[u8] {
        match self {
            Self::File(contents) => contents.as_slice(),
            Self::Salvaged { bytes, .. } => bytes,
        }
    }

    /// Adds the name of the file to an error about its bytes.
    pub fn add_file_name_to_error(&self, error: TraceError) -> TraceError {
        match self {
            Self::File(contents) => contents.locate_error_in_original_file(error),
            Self::Salvaged { path, .. } => error.in_file(path),
        }
    }

    /// Fails if `trace`, which was read from this file, is damaged.
    pub fn fail_if_trace_damaged(&self, trace: &mut RawTrace<'_>) -> Result<(), UnreadableTraces> {
        if matches!(self, Self::Salvaged { .. }) || !has_damage_fault(trace) {
            return Ok(());
        }
        let faults = std::mem::take(&mut trace.faults);
        let mut damage = faults
            .into_iter()
            .filter(|fault| is_damage_error(&fault.error));
        let first = damage.next().expect("it is damaged").error;
        Err(vec![(self.add_file_name_to_error(first), damage.count())].into())
    }

    /// Returns the losses of a salvaged file as a fault of `rank`.
    pub fn salvage_losses_as_fault(&self, rank: u32, second: bool) -> Option<FileFaultSummary> {
        let Self::Salvaged {
            path,
            report,
            wrong,
            ..
        } = self
        else {
            return None;
        };
        let mut said = Vec::new();
        let file = path.display();
        said.extend(wrong.as_ref().map(|wrong| format!("{file}: {wrong}")));
        let metadata = report.metadata_lost && report.lost.is_empty();
        said.extend(metadata.then(|| format!("{file}: the metadata record is lost")));
        said.extend(report.lost.iter().map(|lost| {
            let place = TraceErrorLocation {
                file: Some(path.clone()),
                offset: lost.line.is_none().then_some(lost.bytes.start),
                record: Some(lost.record),
                line: lost.line.map(|line| (line, 1)),
                ..TraceErrorLocation::default()
            };
            let bytes = lost.bytes.len();
            format!("{place}: {bytes} bytes are lost: {}", lost.why)
        }));
        said.extend(report.repaired.iter().map(|(record, offset)| {
            format!("{file}, record {record}, byte {offset}: the record's length was damaged; the record is kept")
        }));
        said.extend(report.duplicate_ids.iter().map(|(record, id)| {
            format!("{file}, record {record}: left out, because an earlier record has the id {id}")
        }));
        let count = said.len();
        let text = said.into_iter().next()?;
        Some(FileFaultSummary {
            rank,
            second,
            count,
            text,
        })
    }
}

/// Returns true if the error means that the file is damaged. A well-formed record with invalid content is not damage,
/// because it can still be compared.
fn is_damage_error(error: &TraceError) -> bool {
    !matches!(error.fault(), TraceErrorKind::Refused { .. })
}

fn has_damage_fault(trace: &RawTrace<'_>) -> bool {
    trace
        .faults
        .iter()
        .any(|fault| is_damage_error(&fault.error))
}
