//! One file that is being written.

use super::target::{Target, folder};
use super::temporary::{Renaming, Temporary};
use crate::trace::TraceError;
use crate::trace::file::Seal;
use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file that is being written. A regular one appears under its name when it is complete, and not if this is
/// dropped. Errors of writing name it.
#[derive(Debug)]
pub struct OutputFile {
    /// As it was asked for.
    path: PathBuf,
    file: File,
    /// Where a regular file is until it gets the name.
    waiting: Option<(Temporary, PathBuf)>,
    bytes: u64,
    hasher: Option<Box<blake3::Hasher>>,
}

impl OutputFile {
    pub(super) fn create(path: &Path, target: &Target) -> Result<Self, TraceError> {
        let (file, waiting) = match target {
            Target::File(to, before) => {
                let (temporary, file) = temporary(path, to, before.as_ref())?;
                (file, Some((temporary, to.clone())))
            }
            other => (other.open(path)?, None),
        };
        Ok(Self {
            path: path.to_owned(),
            file,
            waiting,
            bytes: 0,
            hasher: None,
        })
    }

    /// The same, whose contents are hashed as they are written.
    #[must_use]
    pub fn hashed(mut self) -> Self {
        self.hasher = Some(Box::default());
        self
    }

    /// The name as it was asked for.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends writing and gives the file its name, replacing what was there.
    pub fn commit(self) -> Result<(), TraceError> {
        let mut closed = self.close()?;
        closed.sync()?;
        let _renaming = Renaming::begin();
        closed.rename()?;
        closed.folder().map_or(Ok(()), sync_folder)
    }

    /// Ends writing: everything is with the system, under another name.
    pub(super) fn close(mut self) -> Result<Closed, TraceError> {
        let io = |error| TraceError::io(&self.path, "write", error);
        self.file.flush().map_err(io)?;
        let hash = self
            .hasher
            .take()
            .map(|hasher| *hasher.finalize().as_bytes());
        let (temporary, to) = self.waiting.unzip();
        Ok(Closed {
            path: self.path,
            seal: Seal {
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
            io::Error::new(error.kind(), TraceError::io(&self.path, "write", error))
        };
        let written = match self.file.write(bytes) {
            // Who calls this tries again, and has to see the plain error for that.
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

/// A file beside `to`, with the owner and the permissions of what is there.
fn temporary(
    path: &Path,
    to: &Path,
    before: Option<&Metadata>,
) -> Result<(Temporary, File), TraceError> {
    let io = |error| TraceError::io(path, "create", error);
    let folder = folder(to);
    fs::create_dir_all(folder).map_err(io)?;
    let (temporary, file) = Temporary::create(folder, before.map(mode)).map_err(io)?;
    if let Some(before) = before {
        // Whoever may write the file but does not own it cannot give theirs away.
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
fn mode(metadata: &Metadata) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode()
}

#[cfg(not(unix))]
fn mode(_: &Metadata) -> u32 {
    0
}

/// A file that is complete and waits for its name.
#[derive(Debug)]
pub(super) struct Closed {
    /// The name as it was asked for.
    pub path: PathBuf,
    pub seal: Seal,
    /// The name that a regular file gets.
    to: Option<PathBuf>,
    temporary: Option<Temporary>,
    /// Whether it is another one under a further name.
    is_link: bool,
}

impl Closed {
    /// Has the contents outlive a loss of power.
    pub fn sync(&self) -> Result<(), TraceError> {
        match &self.temporary {
            Some(temporary) if !self.is_link => {
                let synced = File::open(temporary.path()).and_then(|file| file.sync_all());
                synced.map_err(|error| TraceError::io(&self.path, "write", error))
            }
            _ => Ok(()),
        }
    }

    /// The same file once more under the name `path`: a hard link if `link` says so and there can be one, or a
    /// copy. `None` where the first is gone into a device.
    pub fn again(
        &self,
        path: &Path,
        target: &Target,
        link: bool,
    ) -> Result<Option<Self>, TraceError> {
        let io = |doing| move |error| TraceError::io(path, doing, error);
        let Some(first) = &self.temporary else {
            return Ok(None);
        };
        if let (Target::File(to, before), true) = (target, link) {
            let parent = folder(to);
            fs::create_dir_all(parent).map_err(io("create"))?;
            // Names of one file have one set of permissions.
            let alike = before.as_ref().is_none_or(|before| {
                fs::metadata(first.path()).is_ok_and(|m| mode(&m) == mode(before))
            });
            let linked = alike.then(|| Temporary::link(parent, first.path()).ok());
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
        let mut source = File::open(first.path()).map_err(io("copy"))?;
        io::copy(&mut source, &mut copy).map_err(io("write"))?;
        Ok(Some(Self {
            seal: self.seal,
            ..copy.close()?
        }))
    }

    /// Gives the file its name, replacing what was there.
    pub fn rename(&mut self) -> Result<(), TraceError> {
        match (self.temporary.take(), &self.to) {
            (Some(temporary), Some(to)) => {
                let renamed = temporary.rename(to);
                renamed.map_err(|error| TraceError::io(&self.path, "rename into place", error))
            }
            _ => Ok(()),
        }
    }

    /// The folder that has a new name in it.
    pub fn folder(&self) -> Option<&Path> {
        self.to.as_deref().map(folder)
    }
}

/// Has the names in `path` outlive a loss of power, where folders can be synced.
pub(super) fn sync_folder(path: &Path) -> Result<(), TraceError> {
    let synced = File::open(path).and_then(|folder| folder.sync_all());
    match synced {
        // Folders of some systems cannot be synced, which is no fault of theirs.
        #[cfg(unix)]
        Err(error) if error.raw_os_error() == Some(libc::EIO) => {
            Err(TraceError::io(path, "write the folder", error))
        }
        _ => Ok(()),
    }
}
