//! Classifies output paths: files, devices, pipes, sockets and descriptors.

use crate::format::TraceError;
use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

/// Returns a file's device and inode numbers, which are the same under all of its names.
#[cfg(unix)]
pub fn file_identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path)
        .ok()
        .map(|metadata| identity_from_metadata(&metadata))
}

#[cfg(unix)]
fn identity_from_metadata(metadata: &Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

/// Returns `None`, because files have no identity on this system.
#[cfg(not(unix))]
pub fn file_identity(_: &Path) -> Option<(u64, u64)> {
    None
}

/// What an output path refers to.
#[derive(Debug)]
pub(super) enum FileSpecialOrDescriptorTarget {
    /// A regular file: its path with links resolved, and its metadata if it exists.
    File(PathBuf, Option<Metadata>),
    /// A device, pipe or socket; true if it accepts more than one output.
    Special(bool),
    /// An open file descriptor of this process.
    Descriptor(i32),
}

impl FileSpecialOrDescriptorTarget {
    /// Finds out what `path` refers to.
    pub fn resolve_target(path: &Path) -> Result<Self, TraceError> {
        if path.file_name().is_none() {
            let found = "the path does not end in a file name".to_owned();
            return Err(TraceError::invalid_file(
                path,
                found,
                "a name in that folder",
            ));
        }
        if let Some(number) = parse_descriptor(path) {
            return Ok(Self::Descriptor(number));
        }
        let there = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self::File(resolve_link_chain(path)?, None));
            }
            Err(error) => return Err(TraceError::from_io(path, "inspect", error)),
        };
        if there.is_dir() {
            let found = "this is a folder, but the output is a file".to_owned();
            return Err(TraceError::invalid_file(
                path,
                found,
                "a name in that folder",
            ));
        }
        if !there.is_file() {
            return Ok(Self::Special(accepts_several_outputs(&there)));
        }
        let real = fs::canonicalize(path)
            .map_err(|error| TraceError::from_io(path, "follow links of", error))?;
        Ok(Self::File(real, Some(there)))
    }

    /// Opens a target that is written directly, without a temporary file.
    pub fn open_directly(&self, path: &Path) -> Result<File, TraceError> {
        let opened = match self {
            Self::Descriptor(number) => duplicate_descriptor(*number),
            _ => fs::OpenOptions::new().write(true).open(path),
        };
        let opened = opened.or_else(|error| connect_socket(path, error));
        opened.map_err(|error| TraceError::from_io(path, "open", error))
    }
}

/// Follows a chain of symbolic links to a file that does not exist yet. Returns `path` itself if it is not a link.
fn resolve_link_chain(path: &Path) -> Result<PathBuf, TraceError> {
    const MOST: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..MOST {
        match fs::read_link(&path) {
            Ok(to) => path = parent_folder(&path).join(to),
            Err(_) => return Ok(path),
        }
    }
    Err(TraceError::invalid_file(
        &path,
        "the symbolic links form a cycle".to_owned(),
        "another path",
    ))
}

/// Returns the folder that contains the file `path`.
pub(super) fn parent_folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(unix)]
fn accepts_several_outputs(metadata: &Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    // Terminals and /dev/null accept any number of outputs. If several outputs went to one pipe or socket, they would
    // be mixed.
    metadata.file_type().is_char_device()
}

#[cfg(not(unix))]
fn accepts_several_outputs(_: &Metadata) -> bool {
    true
}

/// Returns the descriptor that `path` refers to. The program's caller opened the file behind the descriptor, and may
/// write more to it. The program therefore writes to descriptors directly, even if they refer to regular files.
fn parse_descriptor(path: &Path) -> Option<i32> {
    let path = path.to_str()?;
    match path {
        "/dev/stdout" => Some(1),
        "/dev/stderr" => Some(2),
        _ => {
            let folders = ["/dev/fd/", "/proc/self/fd/"];
            let number = folders.iter().find_map(|start| path.strip_prefix(start))?;
            number.parse().ok()
        }
    }
}

#[cfg(unix)]
fn duplicate_descriptor(number: i32) -> io::Result<File> {
    use std::os::fd::FromRawFd;
    // SAFETY: if the number is not an open descriptor, the call only returns an error.
    match unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the descriptor is new and has no other owner.
        new => Ok(unsafe { File::from_raw_fd(new) }),
    }
}

#[cfg(not(unix))]
fn duplicate_descriptor(_: i32) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Connects to a socket, because sockets cannot be opened like files.
#[cfg(unix)]
fn connect_socket(path: &Path, error: io::Error) -> io::Result<File> {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    match error.raw_os_error() {
        Some(libc::ENXIO) => UnixStream::connect(path)
            .map(|stream| File::from(OwnedFd::from(stream)))
            .map_err(|_| error),
        _ => Err(error),
    }
}

#[cfg(not(unix))]
fn connect_socket(_: &Path, error: io::Error) -> io::Result<File> {
    Err(error)
}
