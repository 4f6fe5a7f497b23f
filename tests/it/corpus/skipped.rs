//! Tests that need the corpus and have none: counted, and named when the test process ends.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

static SKIPPED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A file or folder of the corpus. Without a corpus `None`, and the calling test counts as skipped.
pub fn corpus(part: impl AsRef<Path>) -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("CHAKRAM_CORPUS") {
        return Some(Path::new(&folder).join(part));
    }
    // The test harness names threads after tests, and ends the process by `exit`.
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let mut skipped = SKIPPED.lock().unwrap();
    if skipped.is_empty() {
        // SAFETY: `report` is a plain function that unwinds nowhere.
        unsafe { libc::atexit(report) };
    }
    if !skipped.contains(&test) {
        skipped.push(test);
    }
    None
}

extern "C" fn report() {
    if let Ok(mut skipped) = SKIPPED.lock() {
        skipped.sort();
        eprintln!(
            "\nSKIPPED: {} tests, in whole or in part: CHAKRAM_CORPUS names no folder with captures and reference \
             answers\n  {}\n",
            skipped.len(),
            skipped.join("\n  ")
        );
    }
}
