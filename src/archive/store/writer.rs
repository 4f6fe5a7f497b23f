//! Writers of an archive, one at a time: a segment is appended, or all are replaced by one.

use super::Archive;
use crate::document::{CatalogueChange, SCHEMA, SegmentStart};
use crate::segment_file::{SegmentBody, write_file, write_segment};
use crate::{ArchiveError, folder};
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

/// Stage of a commit.
#[derive(Clone, Debug)]
pub struct CommitPlan {
    /// The command: `add`, `baseline`, `gc`, `merge`.
    pub operation: &'static str,
    /// Names of the workloads that it adds or replaces.
    pub workloads: Vec<String>,
}

impl CommitPlan {
    fn start(&self) -> SegmentStart {
        SegmentStart {
            schema: SCHEMA.to_owned(),
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            operation: self.operation.to_owned(),
            workloads: self.workloads.clone(),
        }
    }
}

/// Archive that is open for writing; no other process writes it meanwhile.
#[derive(Debug)]
pub struct ArchiveWriter {
    archive: Arc<Archive>,
    /// The file, or the lock of a folder, which is locked.
    lock: File,
}

impl ArchiveWriter {
    /// Waits until nobody writes the archive `path`, and opens it.
    pub fn open(path: &Path) -> Result<Self, ArchiveError> {
        let is_folder = path.is_dir();
        let target = if is_folder {
            path.join(folder::LOCK)
        } else {
            path.to_owned()
        };
        let io = |error| ArchiveError::io(&target, "open for writing", error);
        loop {
            let lock = OpenOptions::new()
                .read(true)
                .write(true)
                .open(&target)
                .map_err(io)?;
            lock.lock()
                .map_err(|error| ArchiveError::io(&target, "lock", error))?;
            // Whoever held the lock may have put another file in its place.
            let same = chakram_trace::files::identity(&target) == file_identity(&lock);
            if same {
                let archive = Arc::new(Archive::open(path)?);
                return Ok(Self { archive, lock });
            }
        }
    }

    /// Returns what is committed.
    pub fn archive(&self) -> Arc<Archive> {
        Arc::clone(&self.archive)
    }

    /// Adds a segment. Nothing changes unless this succeeds.
    pub fn commit(
        mut self,
        plan: &CommitPlan,
        body: &mut SegmentBody<'_>,
    ) -> Result<(), ArchiveError> {
        if self.archive.is_folder {
            return folder::add(self.archive.path(), plan.start(), body);
        }
        let path = self.archive.path.clone();
        let end = self.archive.stored_bytes();
        let result = self.append(end, plan, body);
        if result.is_err() {
            // What was there is as it was, without a tail that would have to be looked past.
            let _ = self.lock.set_len(end);
        }
        result.map_err(|error| error.in_file(&path))
    }

    fn append(
        &mut self,
        end: u64,
        plan: &CommitPlan,
        body: &mut SegmentBody<'_>,
    ) -> Result<(), ArchiveError> {
        let path = self.archive.path.clone();
        let io = |error| ArchiveError::io(&path, "write", error);
        let file = &mut self.lock;
        file.set_len(end).map_err(io)?;
        file.seek(SeekFrom::Start(end)).map_err(io)?;
        let mut out = BufWriter::with_capacity(1 << 18, &mut *file);
        let tail = write_segment(&mut out, plan.start(), body, &path)?;
        out.flush().map_err(io)?;
        drop(out);
        // The end may only be there when all that it speaks of is.
        file.sync_data().map_err(io)?;
        file.write_all(&tail).map_err(io)?;
        file.sync_data().map_err(io)
    }

    /// Replaces all segments by one.
    pub fn rewrite(
        self,
        plan: &CommitPlan,
        body: &mut SegmentBody<'_>,
    ) -> Result<(), ArchiveError> {
        if self.archive.is_folder {
            return folder::replace(self.archive.path(), plan.start(), body);
        }
        write_file(&self.archive.path, plan.start(), body)
    }
}

/// Creates an empty archive: a file, or a folder.
///
/// # Errors
///
/// Fails if something is there already.
pub fn create(path: &Path, is_folder: bool) -> Result<(), ArchiveError> {
    if path.exists() {
        return Err(ArchiveError::refused(
            format!("{}: it is there already", path.display()),
            "another name, or chakram archive add",
        ));
    }
    let plan = CommitPlan {
        operation: "create",
        workloads: Vec::new(),
    };
    if is_folder {
        return folder::create(path);
    }
    write_file(path, plan.start(), &mut |_| Ok(CatalogueChange::default()))
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
