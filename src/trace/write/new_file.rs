//! Files that appear only when they are complete.

use crate::trace::TraceError;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A file that appears under its name only when it is complete.
#[derive(Debug)]
pub struct NewFile {
    temporary: tempfile::NamedTempFile,
    path: PathBuf,
}

impl NewFile {
    /// Starts a file that will be called `path`, in the same folder.
    pub fn create(path: &Path) -> Result<Self, TraceError> {
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let io = |source| TraceError::io(path.to_owned(), "create", source);
        std::fs::create_dir_all(folder).map_err(io)?;
        let mut builder = tempfile::Builder::new();
        // The default of temporary files, 0600, would hide the result from everybody else.
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            builder.permissions(std::fs::Permissions::from_mode(0o644));
        }
        let temporary = builder.tempfile_in(folder).map_err(io)?;
        Ok(Self {
            temporary,
            path: path.to_owned(),
        })
    }

    /// Gives the file its name, replacing what was there.
    pub fn commit(self) -> Result<(), TraceError> {
        self.close().commit()
    }

    /// Ends writing; the file still waits for its name. So any number of files can wait.
    pub fn close(self) -> ClosedFile {
        ClosedFile {
            temporary: self.temporary.into_temp_path(),
            path: self.path,
        }
    }
}

/// A file that is complete and waits for its name.
#[derive(Debug)]
pub struct ClosedFile {
    temporary: tempfile::TempPath,
    path: PathBuf,
}

impl ClosedFile {
    /// The same file once more, which will be called `path`, in the same folder: a hard link, or a copy
    /// where there are none.
    pub fn again(&self, path: &Path) -> Result<Self, TraceError> {
        let io = |source| TraceError::io(path.to_owned(), "create", source);
        let folder = self.temporary.parent().unwrap_or(Path::new("."));
        let from: &Path = &self.temporary;
        let linked = tempfile::Builder::new().make_in(folder, |to| {
            std::fs::hard_link(from, to).or_else(|error| match error.kind() {
                std::io::ErrorKind::AlreadyExists => Err(error),
                _ => std::fs::copy(from, to).map(drop),
            })
        });
        Ok(Self {
            temporary: linked.map_err(io)?.into_temp_path(),
            path: path.to_owned(),
        })
    }

    /// Gives the file its name, replacing what was there.
    pub fn commit(self) -> Result<(), TraceError> {
        let Self { temporary, path } = self;
        let persisted = temporary.persist(&path);
        persisted.map_err(|e| TraceError::io(path, "rename into place", e.error))
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.temporary.write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        self.temporary.flush()
    }
}
