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
        let Self { temporary, path } = self;
        match temporary.persist(&path) {
            Ok(_) => Ok(()),
            Err(e) => Err(TraceError::io(path, "rename into place", e.error)),
        }
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
