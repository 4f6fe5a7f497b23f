//! An output file gets its final name only after all its data is written.

use super::target::{FileSpecialOrDescriptorTarget, parent_folder};
use super::temporary::{DeferredSignalsGuard, TemporaryFile};
use crate::format::TraceError;
use crate::format::file::ExpectedFileLengthAndHash;
use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// An output file; a regular file gets its final name when it is committed. If the value is dropped before the commit,
/// the temporary file is removed. Write errors name the output file.
#[derive(Debug)]
pub struct OutputFile {
    /// Path as the caller requested it.
    path: PathBuf,
    file: File,
    /// Temporary file and final path of a regular file.
    waiting: Option<(TemporaryFile, PathBuf)>,
    bytes: u64,
    hasher: Option<Box<blake3::Hasher>>,
}

impl OutputFile {
    pub(super) fn create(
        path: &Path,
        target: &FileSpecialOrDescriptorTarget,
    ) -> Result<Self, TraceError> {
        let (file, waiting) = match target {
            FileSpecialOrDescriptorTarget::File(to, before) => {
                let (temporary, file) = create_temporary(path, to, before.as_ref())?;
                (file, Some((temporary, to.clone())))
            }
            other => (other.open_directly(path)?, None),
        };
        Ok(Self {
            path: path.to_owned(),
            file,
            waiting,
            bytes: 0,
            hasher: None,
        })
    }

    /// Hashes the contents as they are written.
    #[must_use]
    pub fn with_digest(mut self) -> Self {
        self.hasher = Some(Box::default());
        self
    }

    /// Renames the incomplete file to its final path, replacing any existing file. Later writes are visible under the
    /// final name, and dropping this value does not remove the file.
    pub fn publish_early(&mut self) -> Result<(), TraceError> {
        let Some((temporary, to)) = self.waiting.take() else {
            return Ok(());
        };
        let _renaming = DeferredSignalsGuard::defer_signals_until_drop();
        let renamed = temporary.rename_to(&to);
        renamed.map_err(|error| TraceError::from_io(&self.path, "rename into place", error))
    }

    /// Finishes writing and renames the file to its final path, replacing any existing file.
    pub fn commit(self) -> Result<(), TraceError> {
        let mut closed = self.close()?;
        closed.sync_contents()?;
        let _renaming = DeferredSignalsGuard::defer_signals_until_drop();
        closed.rename_into_place()?;
        closed.parent_folder().map_or(Ok(()), sync_folder)
    }

    /// Finishes writing: passes all data to the operating system while the file keeps its temporary name.
    pub(super) fn close(mut self) -> Result<UncommittedOutputFile, TraceError> {
        let io = |error| TraceError::from_io(&self.path, "write", error);
        self.file.flush().map_err(io)?;
        let hash = self
            .hasher
            .take()
            .map(|hasher| *hasher.finalize().as_bytes());
        let (temporary, to) = self.waiting.unzip();
        Ok(UncommittedOutputFile {
            path: self.path,
            seal: ExpectedFileLengthAndHash {
                bytes: self.bytes,
                blake3: hash,
            },
            to,
            temporary,
            is_link: false,
        })
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let named = |error: io::Error| {
            io::Error::new(
                error.kind(),
                TraceError::from_io(&self.path, "write", error),
            )
        };
        let written = match self.file.write(bytes) {
            // Return this error unwrapped, because callers retry only if they recognise `Interrupted`.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            written => written.map_err(named)?,
        };
        self.bytes += written as u64;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&bytes[..written]);
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Creates `folder` unless it already exists. The parent of `folder` must exist, so that a mistyped path does not
/// create several folders.
fn create_folder_in_existing_parent(folder: &Path) -> io::Result<()> {
    if folder.as_os_str().is_empty() || folder.is_dir() {
        return Ok(());
    }
    match fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let parent = folder.parent().unwrap_or(folder).display();
            Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!(
                    "the folder {parent} does not exist\n  try: mkdir -p {}, or another path",
                    folder.display()
                ),
            ))
        }
        created => created,
    }
}

/// Creates a temporary file in the folder of `to`; if `to` exists, the new file gets its owner and permissions.
fn create_temporary(
    path: &Path,
    to: &Path,
    before: Option<&Metadata>,
) -> Result<(TemporaryFile, File), TraceError> {
    let io = |error| TraceError::from_io(path, "create", error);
    let folder = parent_folder(to);
    create_folder_in_existing_parent(folder).map_err(io)?;
    let (temporary, file) =
        TemporaryFile::create_in(folder, before.map(permission_bits)).map_err(io)?;
    if let Some(before) = before {
        // An unprivileged user cannot change the temporary file's owner, so ignore this failure.
        #[cfg(unix)]
        {
            use std::os::unix::fs::{MetadataExt, fchown};
            let _ = fchown(&file, Some(before.uid()), Some(before.gid()));
        }
        file.set_permissions(before.permissions()).map_err(io)?;
    }
    Ok((temporary, file))
}

#[cfg(unix)]
fn permission_bits(metadata: &Metadata) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode()
}

#[cfg(not(unix))]
fn permission_bits(_: &Metadata) -> u32 {
    0
}

/// A complete file that still has its temporary name.
#[derive(Debug)]
pub(super) struct UncommittedOutputFile {
    /// Path as the caller requested it.
    pub path: PathBuf,
    pub seal: ExpectedFileLengthAndHash,
    /// Final path of a regular file.
    to: Option<PathBuf>,
    temporary: Option<TemporaryFile>,
    /// True if the file is a hard link to another output.
    is_link: bool,
}

impl UncommittedOutputFile {
    /// Makes the contents durable: syncs them to disk.
    pub fn sync_contents(&self) -> Result<(), TraceError> {
        match &self.temporary {
            Some(temporary) if !self.is_link => {
                let synced =
                    File::open(temporary.temporary_path()).and_then(|file| file.sync_all());
                synced.map_err(|error| TraceError::from_io(&self.path, "write", error))
            }
            _ => Ok(()),
        }
    }

    /// Duplicates the file as `path`: as a hard link if `link` is true and the system supports hard links, otherwise as
    /// a copy. Returns `None` if the file was written to a device.
    pub fn duplicate_as(
        &self,
        path: &Path,
        target: &FileSpecialOrDescriptorTarget,
        link: bool,
    ) -> Result<Option<Self>, TraceError> {
        let io = |doing| move |error| TraceError::from_io(path, doing, error);
        let Some(first) = &self.temporary else {
            return Ok(None);
        };
        if let (FileSpecialOrDescriptorTarget::File(to, before), true) = (target, link) {
            let parent = parent_folder(to);
            create_folder_in_existing_parent(parent).map_err(io("create"))?;
            // Hard links share permissions, so a link is possible only if the two outputs need equal permissions.
            let alike = before.as_ref().is_none_or(|before| {
                fs::metadata(first.temporary_path())
                    .is_ok_and(|m| permission_bits(&m) == permission_bits(before))
            });
            let linked = alike.then(|| {
                TemporaryFile::create_as_hard_link_to_file(parent, first.temporary_path()).ok()
            });
            if let Some(temporary) = linked.flatten() {
                return Ok(Some(Self {
                    path: path.to_owned(),
                    seal: self.seal,
                    to: Some(to.clone()),
                    temporary: Some(temporary),
                    is_link: true,
                }));
            }
        }
        let mut copy = OutputFile::create(path, target)?;
        let mut source = File::open(first.temporary_path()).map_err(io("copy"))?;
        io::copy(&mut source, &mut copy).map_err(io("write"))?;
        Ok(Some(Self {
            seal: self.seal,
            ..copy.close()?
        }))
    }

    /// Renames the file to its final path, replacing any existing file.
    pub fn rename_into_place(&mut self) -> Result<(), TraceError> {
        match (self.temporary.take(), &self.to) {
            (Some(temporary), Some(to)) => {
                let renamed = temporary.rename_to(to);
                renamed.map_err(|error| TraceError::from_io(&self.path, "rename into place", error))
            }
            _ => Ok(()),
        }
    }

    /// Returns the folder of the final path.
    pub fn parent_folder(&self) -> Option<&Path> {
        self.to.as_deref().map(parent_folder)
    }
}

/// Makes the file names in the folder `path` durable (synced to disk), if the file system can sync folders.
pub(super) fn sync_folder(path: &Path) -> Result<(), TraceError> {
    let synced = File::open(path).and_then(|folder| folder.sync_all());
    match synced {
        // Some file systems cannot sync folders, so ignore this failure.
        #[cfg(unix)]
        Err(error) if error.raw_os_error() == Some(libc::EIO) => {
            Err(TraceError::from_io(path, "write the folder", error))
        }
        _ => Ok(()),
    }
}
