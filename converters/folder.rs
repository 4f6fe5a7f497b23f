//! Lists the files of folders.

use chakram_trace::format::TraceError;
use std::path::{Path, PathBuf};

/// Returns the paths directly in `folder`, sorted by name.
///
/// # Errors
///
/// Fails if the folder cannot be listed.
pub(crate) fn list_folder(folder: &Path) -> Result<Vec<PathBuf>, TraceError> {
    let io = |source| TraceError::from_io(folder, "list", source);
    let entries = std::fs::read_dir(folder).map_err(io)?;
    let paths = entries.map(|entry| Ok(entry.map_err(io)?.path()));
    let mut paths: Vec<PathBuf> = paths.collect::<Result<_, TraceError>>()?;
    paths.sort();
    Ok(paths)
}

/// Returns the files in `paths`. Replaces each folder by the files that `own` finds in it.
///
/// # Errors
///
/// Fails if `own` fails, or if `own` finds no files in a folder. The message about an empty folder
/// contains `expected` and `hint`.
pub(crate) fn expand_folders(
    paths: &[PathBuf],
    (expected, hint): (&str, &str),
    own: impl Fn(&Path) -> Result<Vec<PathBuf>, TraceError>,
) -> Result<Vec<PathBuf>, TraceError> {
    let mut found = Vec::new();
    for path in paths {
        if !path.is_dir() {
            found.push(path.clone());
            continue;
        }
        let own = own(path)?;
        if own.is_empty() {
            let what = format!("a folder without {expected}");
            return Err(TraceError::invalid_file(path, what, hint));
        }
        found.extend(own);
    }
    Ok(found)
}
