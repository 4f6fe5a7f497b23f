//! Tests that need what is not there, the corpus or a browser: counted, and named when the test process ends.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Missing data, and the test that needs it.
static SKIPPED: Mutex<Vec<(&str, String)>> = Mutex::new(Vec::new());

/// A file or folder of the corpus. Without a corpus `None`, and the calling test counts as skipped.
pub fn corpus(part: impl AsRef<Path>) -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("CHAKRAM_CORPUS") {
        return Some(Path::new(&folder).join(part));
    }
    skipped("CHAKRAM_CORPUS names no folder with captures and reference answers");
    None
}

/// Of what there is too much of for every build, one of each `n`; with the variable `CHAKRAM_WHOLE_CORPUS` all of it.
pub fn one_of_each<T>(n: usize, all: Vec<T>) -> Vec<T> {
    let whole = std::env::var_os("CHAKRAM_WHOLE_CORPUS").is_some();
    all.into_iter().step_by(if whole { 1 } else { n }).collect()
}

/// The calling test counts as skipped, because of what is `missing`.
pub fn skipped(missing: &'static str) {
    // The test harness names threads after tests, and ends the process by `exit`.
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let mut skipped = SKIPPED.lock().unwrap();
    if skipped.is_empty() {
        // SAFETY: `report` is a plain function that unwinds nowhere.
        unsafe { libc::atexit(report) };
    }
    if !skipped.contains(&(missing, test.clone())) {
        skipped.push((missing, test));
    }
}

extern "C" fn report() {
    if let Ok(mut skipped) = SKIPPED.lock() {
        skipped.sort();
        for of_one in skipped.chunk_by(|a, b| a.0 == b.0) {
            let tests: Vec<_> = of_one.iter().map(|(_, test)| &test[..]).collect();
            eprintln!(
                "\nSKIPPED: {} tests, in whole or in part: {}\n  {}\n",
                tests.len(),
                of_one[0].0,
                tests.join("\n  ")
            );
        }
    }
}
