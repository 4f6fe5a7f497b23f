//! Finds, opens and decompresses trace files.

use super::{OriginalRecordLocations, TraceError, members, old_schemas, text, trace_format};
use decompress::{CompressionFormat, CountingReader, KnownOrCountedCompressedSize};
use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;

mod compress;
mod decompress;
mod digest;
mod discover;
mod listing;
mod mapped;
mod named;
mod names;
mod stored;

pub use super::digest::ExpectedFileLengthAndHash;
pub(super) use super::read_all::append_all_bytes;
pub use super::read_all::{read_bytes_within_memory_limit, read_text};
pub use compress::{GzipWriter, MaybeCompressedWriter};
pub use decompress::{decompress_as_far_as_possible, decompress_bytes};
pub use discover::{
    FoundTraces, TraceFinder, TraceHashVerificationLevel, discover_traces, job_prefix_of_file,
};
use mapped::MappedFile;
pub use mapped::mapped_file_name_at;
pub use named::PrefixedTraceFiles;
pub use names::parse_file_rank;
pub use stored::{HashAddressedTraceStore, TraceStoredByHash};

/// Minimum size in bytes for mapping a file into memory. Smaller files are read instead.
const MAP_FROM: u64 = 1 << 18;

/// The contents of an opened trace file. If the file is compressed (gzip or zstd, which the first bytes show), the
/// contents are already decompressed.
#[derive(Debug)]
pub struct DecompressedTraceFile {
    storage: MappedOrBufferedContents,
    path: PathBuf,
    /// Original locations of the records, if the trace was upgraded or read from text.
    origins: Option<OriginalRecordLocations>,
    /// True if the file represents several ranks, but these contents are one rank's trace.
    is_of_member: bool,
}

#[derive(Debug)]
enum MappedOrBufferedContents {
    Mapped(MappedFile),
    Read(Vec<u8>),
}

/// One rank's trace file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RankFile {
    /// The rank that the file's name or the job file states.
    pub rank: u32,
    /// Path of the file.
    pub path: PathBuf,
    /// Length and hash of the file, if a job file states them.
    pub seal: Option<ExpectedFileLengthAndHash>,
    /// Reference to the trace in a store, or `None` if it is in a file at `path`.
    pub stored: Option<TraceStoredByHash>,
}

impl RankFile {
    /// Creates a file without length and hash.
    pub fn new(rank: u32, path: PathBuf) -> Self {
        Self {
            rank,
            path,
            seal: None,
            stored: None,
        }
    }
}

impl DecompressedTraceFile {
    /// Opens the trace at `path`, which may have any format (see [`format`]), and converts its contents to the current
    /// schema. The file is closed on return, so many opened traces do not exhaust the file descriptors.
    pub fn open_as_current_schema(path: &Path) -> Result<Self, TraceError> {
        Self::decompress_file_without_converting(path)?.into_current_schema()
    }

    /// Opens a rank's trace, like [`Self::open_as_current_schema`]. If the file represents several ranks, converts it
    /// to the trace of this rank.
    ///
    /// Fails if the file's length or hash differs from that in the job file.
    pub fn open_verified(file: &RankFile) -> Result<Self, TraceError> {
        if let Some(stored) = &file.stored {
            let this = Self {
                storage: MappedOrBufferedContents::Read(stored.read_bytes()?),
                path: file.path.clone(),
                origins: None,
                is_of_member: false,
            };
            return this
                .decompress()?
                .into_current_schema()?
                .extract_trace_of_rank(file.rank);
        }
        let Some(seal) = &file.seal else {
            return Self::open_as_current_schema(&file.path)?.extract_trace_of_rank(file.rank);
        };
        let packed = Self::open_without_decompressing(&file.path).map_err(|error| {
            if error.is_missing() {
                ExpectedFileLengthAndHash::mismatch_with_job_file_error(
                    file,
                    "the file does not exist, but the job's file names it".to_owned(),
                )
            } else {
                error
            }
        })?;
        // Digests cover the stored (compressed) bytes, so check before decompressing.
        seal.check_contents(file, packed.as_slice())?;
        packed
            .decompress()?
            .into_current_schema()?
            .extract_trace_of_rank(file.rank)
    }

    /// Converts the contents of a file that represents several ranks to the trace of `rank`.
    fn extract_trace_of_rank(mut self, rank: u32) -> Result<Self, TraceError> {
        let own = members::extract_rank_trace(self.as_slice(), rank)
            .map_err(|e| self.locate_error_in_original_file(e))?;
        if let Some(bytes) = own {
            self.storage = MappedOrBufferedContents::Read(bytes);
            self.is_of_member = true;
        }
        Ok(self)
    }

    /// Returns true if the file also represents other ranks.
    pub fn represents_several_ranks(&self) -> bool {
        self.is_of_member
    }

    /// Converts the contents to the current schema.
    fn into_current_schema(mut self) -> Result<Self, TraceError> {
        if is_all_zero(self.as_slice()) {
            return Err(TraceError::all_zero_file(self.as_slice().len()).in_file(&self.path));
        }
        let upgraded = match trace_format::detect_text_format(self.as_slice()) {
            None => old_schemas::upgrade_contents(self.as_slice(), None)
                .map(|upgraded| upgraded.map(|upgraded| (upgraded.bytes, upgraded.origins))),
            Some(form) => form.and_then(|form| {
                let read = text::parse_text_trace(self.as_slice(), form)?;
                Ok(Some((read.bytes, read.origins)))
            }),
        };
        if let Some((bytes, origins)) = upgraded.map_err(|e| e.in_file(&self.path))? {
            self.storage = MappedOrBufferedContents::Read(bytes);
            self.origins = Some(origins);
        }
        Ok(self)
    }

    /// Opens a file with any content, and decompresses it without converting it.
    pub fn decompress_file_without_converting(path: &Path) -> Result<Self, TraceError> {
        Self::open_without_decompressing(path)?.decompress()
    }

    fn decompress(mut self) -> Result<Self, TraceError> {
        if let Some(result) = decompress_bytes(self.as_slice()) {
            let io = |source| TraceError::from_io(self.path.clone(), "decompress", source);
            self.storage = MappedOrBufferedContents::Read(result.map_err(io)?);
        }
        Ok(self)
    }

    /// Opens `path` without decompressing it.
    pub fn open_without_decompressing(path: &Path) -> Result<Self, TraceError> {
        let io = |doing| move |source| TraceError::from_io(path.to_owned(), doing, source);
        let file = File::open(path).map_err(io("open"))?;
        let size = file.metadata().map_err(io("read the size"))?.len();
        let held = if size >= MAP_FROM {
            MappedOrBufferedContents::Mapped(MappedFile::new(&file, path).map_err(io("map"))?)
        } else {
            MappedOrBufferedContents::Read(
                read_bytes_within_memory_limit(&file, size).map_err(io("read"))?,
            )
        };
        Ok(Self {
            storage: held,
            path: path.to_owned(),
            origins: None,
            is_of_member: false,
        })
    }

    /// Adds the file's name to an error in these contents. If the trace was upgraded or read from text, also translates
    /// the location to the record, byte or line of the original file.
    #[must_use]
    pub fn locate_error_in_original_file(&self, error: TraceError) -> TraceError {
        let error = error.in_file(&self.path);
        match &self.origins {
            Some(origins) => error.relocate_to_origin(origins),
            None => error,
        }
    }

    /// Reads a trace from a pipe to its end, like [`Self::open_as_current_schema`].
    pub fn from_pipe(pipe: impl Read) -> Result<Self, TraceError> {
        let path = Path::new("standard input");
        let io = |source| TraceError::from_io(path, "read", source);
        let mut bytes = read_bytes_within_memory_limit(pipe, 0).map_err(io)?;
        if let Some(result) = decompress_bytes(&bytes) {
            bytes = result.map_err(|source| TraceError::from_io(path, "decompress", source))?;
        }
        let held = MappedOrBufferedContents::Read(bytes);
        let this = Self {
            storage: held,
            path: path.to_owned(),
            origins: None,
            is_of_member: false,
        };
        this.into_current_schema()
    }

    /// Returns the decompressed bytes.
    pub fn as_slice(&self) -> &[u8] {
        match &self.storage {
            MappedOrBufferedContents::Mapped(map) => map.as_bytes(),
            MappedOrBufferedContents::Read(bytes) => bytes,
        }
    }
}

/// Reader that decompresses a file incrementally, for files that do not fit in memory. The reader detects the format
/// (plain, gzip or zstd) from the first bytes.
pub struct DecompressedStream<'s>(Box<dyn Read + 's>);

impl DecompressedStream<'static> {
    /// Opens `path`; the file stays open while the reader exists.
    pub fn open_path(path: &Path) -> Result<Self, TraceError> {
        let io = |doing| move |source| TraceError::from_io(path.to_owned(), doing, source);
        let file = File::open(path).map_err(io("open"))?;
        let metadata = file.metadata().map_err(io("read the size"))?;
        // A named pipe has no known size, so count its bytes while reading.
        if metadata.is_file() {
            Self::new(file, KnownOrCountedCompressedSize::Known(metadata.len()))
        } else {
            Self::from_reader(file)
        }
        .map_err(io("read"))
    }
}

impl<'s> DecompressedStream<'s> {
    /// Reads from bytes in memory.
    pub fn from_bytes(bytes: &'s [u8]) -> std::io::Result<Self> {
        Self::new(
            bytes,
            KnownOrCountedCompressedSize::Known(bytes.len() as u64),
        )
    }

    /// Reads from a source of unknown length.
    pub fn from_reader(source: impl Read + 's) -> std::io::Result<Self> {
        let read = Rc::new(Cell::new(0));
        let source = CountingReader(source, Rc::clone(&read));
        Self::new(source, KnownOrCountedCompressedSize::SoFar(read))
    }

    fn new(source: impl Read + 's, packed: KnownOrCountedCompressedSize) -> std::io::Result<Self> {
        let mut source = std::io::BufReader::with_capacity(1 << 17, source);
        let first = std::io::BufRead::fill_buf(&mut source)?;
        Ok(Self(match CompressionFormat::detect_format(first) {
            Some(packing) => packing.decompress(source, packed)?,
            None => Box::new(source),
        }))
    }
}

impl Read for DecompressedStream<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(into)
    }
}

/// Returns true if the contents consist of zero bytes only. A parser would accept such a file as empty records, but the
/// usual cause is a crash before the data was written.
fn is_all_zero(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| *byte == 0)
}

/// Reads a text file (plain, gzip or zstd), passes it to `parse`, and adds the file's name to errors of `parse`.
pub fn parse_text<T>(
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, TraceError>,
) -> Result<T, TraceError> {
    let text = read_text(DecompressedStream::open_path(path)?, 0);
    let text = text.map_err(|source| TraceError::from_io(path, "read", source))?;
    parse(&text).map_err(|error| error.in_file(path))
}

/// Builds the error for a path without traces.
fn no_traces_error(path: &Path, why: &str) -> TraceError {
    let form = "a folder, a file, or the prefix of files named PREFIX.0.et, PREFIX.1.et, … (or .jsonl, .json)";
    let folders = subfolders_with_traces(path);
    let (found, hint) = match &folders[..] {
        [] if !path.exists() => (
            format!("no such file or folder; {why}"),
            format!("give {form}"),
        ),
        [] => (format!("no usable traces: {why}"), format!("give {form}")),
        [first, ..] => (
            format!(
                "the folder has no traces, but {} of its subfolders have some",
                folders.len()
            ),
            format!("one of the subfolders, such as {}", first.display()),
        ),
    };
    TraceError::invalid_file(path, found, hint)
}

/// Returns the folders in `path` that contain traces, but checks only the first thousand folders in order of name.
fn subfolders_with_traces(path: &Path) -> Vec<PathBuf> {
    let entries = |path: &Path| -> Vec<PathBuf> {
        let read = std::fs::read_dir(path).into_iter().flatten().flatten();
        let mut paths: Vec<_> = read.map(|entry| entry.path()).take(1000).collect();
        paths.sort();
        paths
    };
    let is_trace = |file: &PathBuf| {
        let name = file
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.ends_with(".et") || name.contains(".et."))
    };
    let folders = entries(path).into_iter().filter(|entry| entry.is_dir());
    folders
        .filter(|folder| entries(folder).iter().any(is_trace))
        .collect()
}
