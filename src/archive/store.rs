//! The committed state of an archive on disk. An archive is a file of segments, or a folder with a manifest and one
//! file per segment.

use super::document::{SCHEMA, SegmentWorkloadCatalogueChanges, WorkloadEntry};
use super::segment::{ArchiveFileSegment, RandomAccessSegmentFile};
use super::segments::find_segments_and_tail;
use super::tail::UncommittedArchiveTail;
use super::{ArchiveError, folder};
use objects::ObjectIndexAndChunkCache;
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

mod objects;
mod writer;

pub use writer::{ArchiveWriter, CommitCommandAndWorkloadNames, create_empty};

/// An archive open for reading, in the state that was committed when it was opened.
#[derive(Debug)]
pub struct Archive {
    path: PathBuf,
    is_folder: bool,
    segments: Vec<ArchiveFileSegment>,
    /// Bytes after the last segment, or `None`.
    tail: Option<UncommittedArchiveTail>,
    workloads: BTreeMap<String, WorkloadEntry>,
    cache: ObjectIndexAndChunkCache,
}

impl Archive {
    /// Opens the archive `path`, which is a file or a folder.
    ///
    /// # Errors
    ///
    /// Fails if `path` is not an archive, or if the archive's catalogue is damaged.
    pub fn open_archive(path: &Path) -> Result<Self, ArchiveError> {
        let (segments, tail) = find_segments_of_file_or_folder(path)?;
        let mut workloads = BTreeMap::new();
        for segment in &segments {
            let change = segment.parse_catalogue(&segment.read_catalogue_text()?)?;
            let name = |entry: &WorkloadEntry| entry.name.clone();
            apply_catalogue_change(
                &mut workloads,
                change,
                WorkloadEntry::check_names_ranks_and_hashes,
                name,
            )
            .map_err(|error| error.in_file(&segment.file.path))?;
        }
        Ok(Self {
            path: path.to_owned(),
            is_folder: path.is_dir(),
            segments,
            tail,
            workloads,
            cache: ObjectIndexAndChunkCache::default(),
        })
    }

    /// Returns the path from which the archive was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the bytes after the last committed segment, or `None`.
    pub fn uncommitted_tail(&self) -> Option<&UncommittedArchiveTail> {
        self.tail.as_ref()
    }

    /// Returns the archive's workloads, sorted by name.
    pub fn workloads(&self) -> &BTreeMap<String, WorkloadEntry> {
        &self.workloads
    }

    /// Returns the archive's segments, in order.
    pub(super) fn segments(&self) -> &[ArchiveFileSegment] {
        &self.segments
    }

    /// Returns the total size of the archive's segments, in bytes.
    pub fn total_segment_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.end.length).sum()
    }

    /// Returns the workload `name`.
    pub fn find_workload(&self, name: &str) -> Result<&WorkloadEntry, ArchiveError> {
        self.workloads.get(name).ok_or_else(|| {
            let near = self.workloads.keys().find(|known| known.contains(name));
            let near = near.or_else(|| self.workloads.keys().next());
            let hint = near.map_or("chakram archive list".to_owned(), |near| {
                chakram_trace::format::escape_and_shorten_name(near)
            });
            let tail = self.tail.as_ref().map(|tail| format!("; {tail}"));
            let found = format!(
                "{}: the archive has no workload `{}`{}",
                self.path.display(),
                chakram_trace::format::escape_and_shorten_name(name),
                tail.unwrap_or_default()
            );
            ArchiveError::refused_request_error(found, hint)
        })
    }
}

/// Finds the segments of the archive `path` (a file or a folder), and the tail after them.
pub(super) fn find_segments_of_file_or_folder(
    path: &Path,
) -> Result<(Vec<ArchiveFileSegment>, Option<UncommittedArchiveTail>), ArchiveError> {
    if path.is_dir() {
        return folder::open_segments_and_uncommitted_pack(path);
    }
    let (found, tail) = find_segments_and_tail(RandomAccessSegmentFile::open_file(path)?)?;
    if found.is_empty() {
        return Err(ArchiveError::refused_request_error(
            format!(
                "{}: this is not an archive, or no part of it is complete",
                path.display()
            ),
            "chakram archive create",
        ));
    }
    Ok((found, tail))
}

/// Applies a segment's changes to the workloads of the earlier segments.
pub(super) fn apply_catalogue_change<N: Ord + Borrow<str>, W>(
    workloads: &mut BTreeMap<N, W>,
    change: SegmentWorkloadCatalogueChanges<W>,
    check: impl Fn(&W) -> Result<(), ArchiveError>,
    name: impl Fn(&W) -> N,
) -> Result<(), ArchiveError> {
    if change.schema != SCHEMA {
        let found = format!(
            "the schema is `{}`, expected {SCHEMA}",
            chakram_trace::format::escape_and_shorten_name(&change.schema)
        );
        return Err(ArchiveError::broken_archive_error(found));
    }
    for name in &change.dropped {
        workloads.remove(&name[..]);
    }
    change.workloads.iter().try_for_each(check)?;
    let entries = change.workloads.into_iter();
    let named = entries.map(|entry| (name(&entry), entry));
    if workloads.is_empty() {
        // Collecting all workloads at once is faster than inserting them one by one.
        *workloads = named.collect();
    } else {
        workloads.extend(named);
    }
    Ok(())
}
