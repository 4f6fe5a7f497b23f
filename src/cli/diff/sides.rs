//! The two traces of a rank: whole ones, or with `--salvage` what is sound of damaged ones.

use chakram_analysis::diff::tally::FileFault;
use chakram_trace::format::error::TraceFault;
use chakram_trace::format::file::{RankFile, TraceContents, decompressed_partly};
use chakram_trace::format::salvage::{self, SalvageReport};
use chakram_trace::format::{TraceError, TraceLocation};
use chakram_trace::graph::RawTrace;
use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};

/// Traces that cannot be compared because they are damaged or cannot be read at all, with what is wrong first in each
/// and how much more there is.
#[derive(Debug)]
pub struct UnreadableTraces {
    files: Vec<(TraceError, usize)>,
    /// Suggestion, if there is one.
    hint: &'static str,
}

impl UnreadableTraces {
    /// All that are among `results`, or what the others are.
    pub fn gather<T>(results: impl IntoIterator<Item = Result<T, Self>>) -> Result<Vec<T>, Self> {
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

    /// The same, with what to try where nothing was salvaged.
    pub fn hinting(mut self) -> Self {
        let missing = |error: &TraceError| match error.fault() {
            TraceFault::Io { source, .. } => source.kind() == std::io::ErrorKind::NotFound,
            _ => false,
        };
        if !self.files.iter().all(|(error, _)| missing(error)) {
            self.hint = "\n  try: --salvage, which compares what is sound and says what is lost";
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

/// Files that are named one by one.
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

/// One of the two traces.
#[derive(Debug)]
pub enum DiffSide {
    /// A file.
    File(TraceContents),
    /// The sound part of one.
    Salvaged {
        /// The file.
        path: PathBuf,
        /// The contents of a whole file.
        bytes: Vec<u8>,
        /// Losses.
        report: Box<SalvageReport>,
        /// Defect of its compression.
        wrong: Option<String>,
    },
}

impl DiffSide {
    /// Opens `file`; what is damaged is salvaged if that is asked for.
    pub fn open(file: &RankFile, salvage: bool) -> Result<Self, UnreadableTraces> {
        let path = &file.path;
        let contents = match TraceContents::open_verified(file) {
            Ok(contents) => contents,
            Err(_) if salvage => return Self::salvaged(path).map_err(UnreadableTraces::from),
            Err(error) => return Err(error.into()),
        };
        if salvage {
            let raw = RawTrace::read(contents.as_slice());
            if is_damaged(&raw) {
                return Self::salvaged(path).map_err(UnreadableTraces::from);
            }
        }
        Ok(Self::File(contents))
    }

    fn salvaged(path: &Path) -> Result<Self, TraceError> {
        let packed = TraceContents::open_compressed(path)?;
        let unpacked = decompressed_partly(packed.as_slice());
        let (contents, wrong) = match &unpacked {
            Some((bytes, wrong)) => (&bytes[..], wrong.as_ref().map(ToString::to_string)),
            None => (packed.as_slice(), None),
        };
        let salvaged = salvage::salvage(contents, salvage::SalvageOptions::default());
        let (bytes, report) = salvaged.map_err(|error| error.in_file(path))?;
        Ok(Self::Salvaged {
            path: path.to_owned(),
            bytes,
            report: Box::new(report),
            wrong,
        })
    }

    /// The bytes of a file of the current schema.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::File(contents) => contents.as_slice(),
            Self::Salvaged { bytes, .. } => bytes,
        }
    }

    /// An error about the bytes as one about the file.
    pub fn with_source(&self, error: TraceError) -> TraceError {
        match self {
            Self::File(contents) => contents.with_source(error),
            Self::Salvaged { path, .. } => error.in_file(path),
        }
    }

    /// Fails if `trace`, which was read from this, is damaged.
    pub fn check(&self, trace: &mut RawTrace<'_>) -> Result<(), UnreadableTraces> {
        if matches!(self, Self::Salvaged { .. }) || !is_damaged(trace) {
            return Ok(());
        }
        let faults = std::mem::take(&mut trace.faults);
        let mut damage = faults.into_iter().filter(|fault| is_damage(&fault.error));
        let first = damage.next().expect("it is damaged").error;
        Err(vec![(self.with_source(first), damage.count())].into())
    }

    /// Returns the losses of a salvaged file.
    pub fn lost(&self, rank: u32, second: bool) -> Option<FileFault> {
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
            let place = TraceLocation {
                file: Some(path.clone()),
                offset: lost.line.is_none().then_some(lost.bytes.start),
                record: Some(lost.record),
                line: lost.line.map(|line| (line, 1)),
                ..TraceLocation::default()
            };
            let bytes = lost.bytes.len();
            format!("{place}: {bytes} bytes are lost: {}", lost.why)
        }));
        said.extend(report.repaired.iter().map(|(record, offset)| {
            format!("{file}, record {record}, byte {offset}: its length was damaged; it is kept")
        }));
        said.extend(report.duplicate_ids.iter().map(|(record, id)| {
            format!("{file}, record {record}: left out, for an earlier one has the id {id}")
        }));
        let count = said.len();
        let text = said.into_iter().next()?;
        Some(FileFault {
            rank,
            second,
            count,
            text,
        })
    }
}

/// Whether this breaks the format; what is well formed and makes no sense can still be compared.
fn is_damage(error: &TraceError) -> bool {
    !matches!(error.fault(), TraceFault::Refused { .. })
}

fn is_damaged(trace: &RawTrace<'_>) -> bool {
    trace.faults.iter().any(|fault| is_damage(&fault.error))
}
