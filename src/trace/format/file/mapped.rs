//! Maps files into memory, and finds the mapped file at a memory address.

use crate::format::escape::escape_control_characters;
use crate::format::signal_safe_list::{SignalSafeEntry, SignalSafeList};
use std::ffi::{CStr, CString};
use std::fmt;
use std::fs::File;
use std::path::Path;

struct MappedFileAddressRange {
    start: usize,
    end: usize,
    name: CString,
}

static ALL: SignalSafeList<MappedFileAddressRange> = SignalSafeList::new();

/// Memory-mapped file.
pub(super) struct MappedFile {
    map: memmap2::Mmap,
    entry: &'static SignalSafeEntry<MappedFileAddressRange>,
}

impl MappedFile {
    /// Maps `file` into memory; messages call the file `path`.
    pub fn new(file: &File, path: &Path) -> std::io::Result<Self> {
        // SAFETY: the map is read-only and private. If another process truncates the file, a read raises a signal.
        // The signal handler gets the file's name from `mapped_file_name_at`.
        let map = unsafe { memmap2::Mmap::map(file) }?;
        let start = map.as_ptr() as usize;
        let name = escape_control_characters(&path.display().to_string()).into_owned();
        let entry = ALL.add_entry(MappedFileAddressRange {
            start,
            end: start + map.len(),
            name: CString::new(name).unwrap_or_default(),
        });
        Ok(Self { map, entry })
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.map
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        self.entry.remove();
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mapped").field(&self.map).finish()
    }
}

/// Returns the name of the mapped file that contains `address`. The function takes no lock, so signal handlers may call
/// it.
pub fn mapped_file_name_at(address: usize) -> Option<&'static CStr> {
    let mut all = ALL.iter();
    let found = all.find(|place| (place.start..place.end).contains(&address));
    found.map(|place| place.name.as_c_str())
}
