//! Writes an archive, and admits only one writer at a time. A commit appends a segment, or replaces all segments by one
//! segment.

use super::Archive;
use crate::document::{SCHEMA, SegmentWorkloadCatalogueChanges, SegmentWriteIntent};
use crate::segment_file::{
    SegmentObjectsWriteCallback, write_one_segment_archive_file, write_segment_without_footer,
};
use crate::tail::UncommittedArchiveTail;
use crate::{ArchiveError, folder};
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A commit's command, and the workloads that it changes.
#[derive(Clone, Debug)]
pub struct CommitCommandAndWorkloadNames {
    /// Command that makes the commit: `add`, `baseline`, `gc` or `merge`.
    pub operation: &'static str,
    /// Names of the workloads that the commit adds or replaces.
    pub workloads: Vec<String>,
}

impl CommitCommandAndWorkloadNames {
    fn to_segment_plan(&self) -> SegmentWriteIntent {
        SegmentWriteIntent {
            schema: SCHEMA.to_owned(),
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            operation: self.operation.to_owned(),
            workloads: self.workloads.clone(),
        }
    }
}

/// An archive open for writing; its lock excludes other writers.
#[derive(Debug)]
pub struct ArchiveWriter {
    archive: Arc<Archive>,
    /// The locked file: the archive itself, or the lock file in a folder.
    lock: File,
}

impl ArchiveWriter {
    /// Waits for other writers of the archive `path`, and opens the archive.
    ///
    /// # Errors
    ///
    /// Fails if the archive does not exist, or if it has a damaged tail, because writing would remove this tail.
    pub fn open_for_writing(path: &Path) -> Result<Self, ArchiveError> {
        let is_folder = path.is_dir();
        let target = if is_folder {
            path.join(folder::LOCK)
        } else {
            path.to_owned()
        };
        loop {
            let lock = OpenOptions::new().read(true).write(true).open(&target);
            let lock = lock.map_err(|error| match error.kind() {
                io::ErrorKind::NotFound if !path.exists() => ArchiveError::refused_request_error(
                    format!("{}: no archive has this name", path.display()),
                    format!("chakram archive create {}", path.display()),
                ),
                _ => ArchiveError::io_error(&target, "open for writing", error),
            })?;
            lock.lock()
                .map_err(|error| ArchiveError::io_error(&target, "lock", error))?;
            // The previous holder of the lock may have replaced the file, in which case the locked file is no longer
            // the archive.
            let same = chakram_trace::files::file_identity(&target) == file_identity(&lock);
            if same {
                let archive = Arc::new(Archive::open_archive(path)?);
                archive
                    .tail
                    .iter()
                    .try_for_each(UncommittedArchiveTail::check_tail_is_not_damaged)?;
                return Ok(Self { archive, lock });
            }
        }
    }

    /// Returns the archive in its committed state.
    pub fn committed_archive(&self) -> Arc<Archive> {
        Arc::clone(&self.archive)
    }

    /// Adds a segment. A failure leaves the archive unchanged. If an unfinished tail is in the way, moves it to another
    /// file and returns that file.
    pub fn commit_segment(
        mut self,
        plan: &CommitCommandAndWorkloadNames,
        body: &mut SegmentObjectsWriteCallback<'_>,
    ) -> Result<Option<PathBuf>, ArchiveError> {
        let aside = self.copy_unfinished_tail_to_new_file()?;
        let path = self.archive.path.clone();
        let result = if self.archive.is_folder {
            folder::add_pack(&path, plan.to_segment_plan(), body)
        } else {
            let end = self.archive.total_segment_bytes();
            let result = self.append_segment(end, plan, body);
            if result.is_err() {
                let _ = self.lock.set_len(end);
            }
            result
        };
        self.restore_tail_on_error(result, aside)
    }

    /// Copies an unfinished tail to a new file, and returns the file.
    fn copy_unfinished_tail_to_new_file(&self) -> Result<Option<PathBuf>, ArchiveError> {
        let tail = self.archive.tail.as_ref();
        tail.map(|tail| tail.copy_to_new_file(&self.archive.path))
            .transpose()
    }

    /// Returns `aside` if `result` is a success. Otherwise restores the tail and returns the error.
    fn restore_tail_on_error(
        &mut self,
        result: Result<(), ArchiveError>,
        aside: Option<PathBuf>,
    ) -> Result<Option<PathBuf>, ArchiveError> {
        if let (Err(_), Some(aside)) = (&result, &aside) {
            let mut put_back = || {
                let mut file = File::open(aside)?;
                let tail = self.archive.tail.as_ref();
                match tail.filter(|_| self.archive.is_folder) {
                    Some(tail) => drop(io::copy(&mut file, &mut File::create(&tail.file)?)?),
                    None => {
                        self.lock.set_len(self.archive.total_segment_bytes())?;
                        self.lock.seek(SeekFrom::End(0))?;
                        io::copy(&mut file, &mut self.lock)?;
                        self.lock.sync_data()?;
                    }
                }
                std::fs::remove_file(aside)
            };
            // If restoring fails, the copy of the tail remains.
            let _: io::Result<()> = put_back();
        }
        result.map_err(|error| error.in_file(&self.archive.path))?;
        Ok(aside)
    }

    fn append_segment(
        &mut self,
        end: u64,
        plan: &CommitCommandAndWorkloadNames,
        body: &mut SegmentObjectsWriteCallback<'_>,
    ) -> Result<(), ArchiveError> {
        let path = self.archive.path.clone();
        let io = |error| ArchiveError::io_error(&path, "write", error);
        let file = &mut self.lock;
        file.set_len(end).map_err(io)?;
        file.seek(SeekFrom::Start(end)).map_err(io)?;
        let mut out = BufWriter::with_capacity(1 << 18, &mut *file);
        let tail = write_segment_without_footer(&mut out, plan.to_segment_plan(), body, &path)?;
        out.flush().map_err(io)?;
        drop(out);
        // Sync first, because the segment's end must not reach the disk before the data that it refers to.
        file.sync_data().map_err(io)?;
        file.write_all(&tail).map_err(io)?;
        file.sync_data().map_err(io)
    }

    /// Replaces all segments by one segment. If there is an unfinished tail, moves it to another file and returns that
    /// file, as [`Self::commit_segment`] does.
    pub fn replace_all_segments_by_one(
        self,
        plan: &CommitCommandAndWorkloadNames,
        body: &mut SegmentObjectsWriteCallback<'_>,
    ) -> Result<Option<PathBuf>, ArchiveError> {
        let aside = self.copy_unfinished_tail_to_new_file()?;
        let path = &self.archive.path;
        let result = match self.archive.is_folder {
            true => folder::replace_all_packs_by_one(path, plan.to_segment_plan(), body),
            false => write_one_segment_archive_file(path, plan.to_segment_plan(), body),
        };
        match (&result, &aside) {
            // The commit failed, so the archive still has its tail; the copy is not needed.
            (Err(_), Some(aside)) if !self.archive.is_folder => {
                let _ = std::fs::remove_file(aside);
            }
            _ => {}
        }
        result.map(|()| aside)
    }
}

/// Creates an empty archive, which is a file or a folder.
///
/// # Errors
///
/// Fails if `path` already exists.
pub fn create_empty(path: &Path, is_folder: bool) -> Result<(), ArchiveError> {
    if path.exists() {
        return Err(ArchiveError::refused_request_error(
            format!("{}: the archive already exists", path.display()),
            "another name, or chakram archive add",
        ));
    }
    let plan = CommitCommandAndWorkloadNames {
        operation: "create",
        workloads: Vec::new(),
    };
    if is_folder {
        return folder::create_empty(path);
    }
    write_one_segment_archive_file(path, plan.to_segment_plan(), &mut |_| {
        Ok(SegmentWorkloadCatalogueChanges::default())
    })
}

#[cfg(unix)]
fn file_identity(file: &File) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let metadata = file.metadata().ok()?;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
fn file_identity(_: &File) -> Option<(u64, u64)> {
    None
}
