//! Stores the files of a job that are in memory: standard input, and the contents of archives.

use super::{PIPE, STANDARD_INPUT, is_standard_input_path};
use crate::pytorch::sniff::{
    CaptureFileKind, find_process_id, kind_of_capture_beginning, read_json_beginning,
};
use crate::pytorch::tar::for_each_tar_file;
use chakram_trace::format::TraceError;
use chakram_trace::format::file::{DecompressedStream, read_bytes_within_memory_limit};
use std::collections::BTreeMap;
use std::io::{Read, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Contents of files that are not on disk; compressed files stay compressed. The file `NAME` in an
/// archive is called `ARCHIVE/NAME`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryOnlyInputFiles(Arc<BTreeMap<PathBuf, Arc<[u8]>>>);

impl MemoryOnlyInputFiles {
    /// Creates the set of files with `piped` as standard input.
    pub fn new(piped: Option<Arc<[u8]>>) -> Self {
        let piped = piped.map(|bytes| (PathBuf::from(PIPE), bytes));
        Self(Arc::new(piped.into_iter().collect()))
    }

    /// Returns the contents of `path`, or `None` if the file is not in memory.
    pub fn get(&self, path: &Path) -> Option<&Arc<[u8]>> {
        self.0.get(path)
    }

    /// Returns the first bytes of a file, decompressed.
    pub fn decompressed_file_beginning(
        &self,
        path: &Path,
    ) -> std::result::Result<Vec<u8>, TraceError> {
        let Some(bytes) = self.get(path) else {
            return read_json_beginning(DecompressedStream::open_path(path)?, path);
        };
        let path = path_for_messages(path);
        let stream = DecompressedStream::from_bytes(bytes)
            .map_err(|source| TraceError::from_io(path, "decompress", source))?;
        read_json_beginning(stream, path)
    }

    /// Returns the kind of a file.
    pub fn detect_file_kind(
        &self,
        path: &Path,
    ) -> std::result::Result<CaptureFileKind, TraceError> {
        Ok(kind_of_capture_beginning(
            &self.decompressed_file_beginning(path)?,
        ))
    }

    /// Returns the id of the process that wrote a file, if its beginning contains the id.
    pub fn read_process_id(&self, path: &Path) -> std::result::Result<Option<u64>, TraceError> {
        Ok(find_process_id(&self.decompressed_file_beginning(path)?))
    }

    /// Reads the captures of the archive `path` into memory. Returns their names and the names of the archive's other
    /// files.
    pub fn unpack_archive(
        &mut self,
        path: &Path,
    ) -> std::result::Result<CaptureAndOtherPathsInArchive, TraceError> {
        let stream = match self.get(path).cloned() {
            Some(bytes) => read_archive(DecompressedStream::from_bytes(&bytes), path),
            None => read_archive(Ok(DecompressedStream::open_path(path)?), path),
        };
        let (captures, others) = stream
            .map_err(|source| TraceError::from_io(path_for_messages(path), "unpack", source))?;
        let names = captures.keys().cloned().collect();
        Arc::make_mut(&mut self.0).extend(captures);
        Ok(CaptureAndOtherPathsInArchive {
            captures: names,
            others,
        })
    }
}

/// Names of the files in an archive.
pub struct CaptureAndOtherPathsInArchive {
    /// Captures, now in memory.
    pub captures: Vec<PathBuf>,
    /// Other files.
    pub others: Vec<PathBuf>,
}

/// Returns the name that messages use for a file.
pub fn path_for_messages(path: &Path) -> &Path {
    match is_standard_input_path(path) {
        true => Path::new(STANDARD_INPUT),
        false => path,
    }
}

/// Contents of captures by name, and names of the other files.
type CaptureContentsAndOtherNames = (BTreeMap<PathBuf, Arc<[u8]>>, Vec<PathBuf>);

fn read_archive(
    stream: Result<DecompressedStream<'_>>,
    path: &Path,
) -> Result<CaptureContentsAndOtherNames> {
    let (mut captures, mut others) = (BTreeMap::new(), Vec::new());
    for_each_tar_file(stream?, |name, file| {
        // The name is used only for messages and to find the rank; no file with this name is
        // opened.
        let name = path.join(name.trim_start_matches(['/', '.']));
        let mut first = Vec::new();
        let size = file.size();
        file.take(PACKED_BEGINNING).read_to_end(&mut first)?;
        let beginning = DecompressedStream::from_bytes(&first);
        let beginning = beginning.map(|stream| read_json_beginning(stream, &name));
        let kind = match beginning {
            Ok(Ok(text)) => kind_of_capture_beginning(&text),
            _ => CaptureFileKind::Other,
        };
        if kind == CaptureFileKind::Other {
            others.push(name);
            return Ok(());
        }
        let rest = size.saturating_sub(first.len() as u64);
        // A header may claim any size, so allocate memory only for bytes that are read.
        first.extend(read_bytes_within_memory_limit(file, rest.min(1 << 26))?);
        captures.insert(name, first.into());
        Ok(())
    })?;
    Ok((captures, others))
}

/// Number of stored bytes inspected at the beginning of a file. They contain the first keys, even if the file is
/// compressed.
const PACKED_BEGINNING: u64 = 1 << 17;
