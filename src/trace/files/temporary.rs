//! Temporary files that become outputs. Unfinished temporary files are removed, no matter how the program ends.

use crate::format::signal_safe_list::{SignalSafeEntry, SignalSafeList};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

/// Paths of all temporary files, as zero-terminated strings for system calls.
static ALL: SignalSafeList<CString> = SignalSafeList::new();
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Start of the names of temporary files. It is followed by the process's namespace, its process id, a counter and
/// `END`.
const BEGIN: &str = ".chakram-";
const END: &str = ".tmp";

/// A temporary file. It is removed when the value is dropped, unless it was renamed.
#[derive(Debug)]
pub(super) struct TemporaryFile {
    path: PathBuf,
    entry: &'static SignalSafeEntry<CString>,
}

impl std::fmt::Debug for SignalSafeEntry<CString> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.value().fmt(f)
    }
}

impl TemporaryFile {
    /// Creates a file in `folder` whose permissions are at most `mode`.
    pub fn create_in(folder: &Path, mode: Option<u32>) -> io::Result<(Self, File)> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        if let Some(mode) = mode {
            // Users who cannot read the result must not be able to read the temporary file.
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode & 0o700);
        }
        let _ = mode;
        Self::create_with_free_name(folder, |path| options.open(path))
    }

    /// Creates a hard link to `from`, a file in the same folder.
    pub fn create_as_hard_link_to_file(folder: &Path, from: &Path) -> io::Result<Self> {
        Self::create_with_free_name(folder, |path| fs::hard_link(from, path)).map(|(this, ())| this)
    }

    fn create_with_free_name<T>(
        folder: &Path,
        mut make: impl FnMut(&Path) -> io::Result<T>,
    ) -> io::Result<(Self, T)> {
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!(
                "{BEGIN}{}-{}-{number}{END}",
                host_namespace_hash(),
                std::process::id()
            );
            let path = folder.join(name);
            let bytes = path.as_os_str().as_encoded_bytes();
            // Register the path before the file exists, so that a signal in between cannot leave the file behind.
            let entry = ALL.add_entry(CString::new(bytes)?);
            match make(&path) {
                Ok(made) => return Ok((Self { path, entry }, made)),
                Err(error) => {
                    entry.remove();
                    if error.kind() != io::ErrorKind::AlreadyExists {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Returns the current path.
    pub fn temporary_path(&self) -> &Path {
        &self.path
    }

    /// Renames the file to `to`, replacing any existing file.
    pub fn rename_to(self, to: &Path) -> io::Result<()> {
        fs::rename(&self.path, to)?;
        self.entry.remove();
        // Renaming a file to a hard link of itself leaves both names, so remove the old name. In all other cases the
        // old name no longer exists, so ignore the error.
        let _ = fs::remove_file(&self.path);
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        self.entry.remove();
    }
}

/// Removes all temporary files of this process. Safe in signal handlers.
#[cfg(unix)]
pub fn remove_temporaries() {
    for path in ALL.iter() {
        // SAFETY: the name ends with a zero byte, and `unlink` is safe in a signal handler.
        unsafe { libc::unlink(path.as_ptr()) };
    }
}

/// Removes all temporary files of this process.
#[cfg(not(unix))]
pub fn remove_temporaries_of_this_process() {}

/// Returns a hash of the host name and PID namespace, to distinguish processes with equal ids.
fn host_namespace_hash() -> &'static str {
    static NAMESPACE: OnceLock<String> = OnceLock::new();
    NAMESPACE.get_or_init(|| {
        let host = fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
        let ids = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(&host)
            .update(ids.as_os_str().as_encoded_bytes());
        hasher.finalize().to_hex()[..8].to_owned()
    })
}

/// Removes from `folder` the temporary files that killed processes left.
pub(super) fn remove_stale_files(folder: &Path) {
    let Ok(listing) = fs::read_dir(folder) else {
        return;
    };
    for entry in listing.flatten() {
        let name = entry.file_name();
        if name.to_str().is_some_and(is_stale_file_name) {
            // Users cannot remove other users' files, so ignore the error.
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn is_stale_file_name(name: &str) -> bool {
    let id = name
        .strip_prefix(BEGIN)
        .and_then(|rest| rest.strip_suffix(END))
        .and_then(|rest| rest.strip_prefix(host_namespace_hash()))
        .and_then(|rest| rest.strip_prefix('-'))
        .and_then(|rest| rest.split_once('-'))
        .and_then(|(id, _)| id.parse::<u32>().ok());
    id.is_some_and(|id| !is_process_running(id))
}

/// Returns true if there may be a process with this id.
#[cfg(unix)]
fn is_process_running(id: u32) -> bool {
    let Ok(id) = libc::pid_t::try_from(id) else {
        return false;
    };
    // SAFETY: the signal 0 is never delivered.
    let sent = unsafe { libc::kill(id, 0) };
    // Any other error, such as a lack of permission, means that the process exists.
    sent == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

#[cfg(not(unix))]
fn is_process_running(_: u32) -> bool {
    true
}

static RENAMING: AtomicUsize = AtomicUsize::new(0);
static AWAITING: AtomicI32 = AtomicI32::new(0);

/// Guards a section that renames files and must not be interrupted. Signals are deferred until the guard is dropped.
pub(super) struct DeferredSignalsGuard;

impl DeferredSignalsGuard {
    pub fn defer_signals_until_drop() -> Self {
        RENAMING.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for DeferredSignalsGuard {
    fn drop(&mut self) {
        if RENAMING.fetch_sub(1, Ordering::SeqCst) == 1 {
            let signal = AWAITING.swap(0, Ordering::SeqCst);
            #[cfg(unix)]
            if signal != 0 {
                // SAFETY: raising a signal is always safe. The process's handler for this signal deferred it earlier.
                unsafe { libc::raise(signal) };
            }
            let _ = signal;
        }
    }
}

/// Defers `signal`, which would end the program, while files are renamed. The guard raises the signal again afterwards.
/// Returns true if the signal was deferred. Signal handlers call this function.
pub fn defer_signal(signal: i32) -> bool {
    if RENAMING.load(Ordering::SeqCst) == 0 {
        return false;
    }
    AWAITING.store(signal, Ordering::SeqCst);
    // If renaming ended in the meantime, the guard may have missed the signal, so the caller must handle the signal
    // now.
    RENAMING.load(Ordering::SeqCst) > 0 || AWAITING.swap(0, Ordering::SeqCst) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_files_of_dead_processes_are_removed_and_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        // No system has a process id this large.
        let dead = format!("{BEGIN}{}-4194999-0{END}", host_namespace_hash());
        let elsewhere = format!("{BEGIN}00000000-4194999-0{END}");
        let other = ".chakram-notes.tmp".to_owned();
        for name in [&dead, &elsewhere, &other] {
            fs::write(folder.path().join(name), b"x").unwrap();
        }
        let (mine, _) = TemporaryFile::create_in(folder.path(), None).unwrap();
        remove_stale_files(folder.path());
        assert!(mine.temporary_path().exists());
        let left = [&dead, &elsewhere, &other].map(|name| folder.path().join(name).exists());
        assert_eq!(left, [false, true, true]);
        let path = mine.temporary_path().to_owned();
        drop(mine);
        assert!(!path.exists());
    }
}
