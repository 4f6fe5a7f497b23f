//! Reads and hashes a job's input files, and names the job.

use super::machine_reference;
use chakram_report::summary::HashedInput;
use chakram_trace::format::TraceError;
use chakram_trace::format::file::{self, FoundTraces, RankFile};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Name of a machine file in the folder of the traces.
pub const CASE_MACHINE: &str = "machine.toml";

/// Describes an input file, with the hash of its bytes.
pub fn describe_input_with_hash(role: &'static str, path: &Path, bytes: &[u8]) -> HashedInput {
    HashedInput {
        role: role.into(),
        name: path.display().to_string(),
        blake3: blake3::hash(bytes).to_hex().to_string(),
    }
}

/// Reads a text file. The name `-` means standard input.
pub fn read_text(path: &Path) -> Result<String, TraceError> {
    let read = || {
        if path == Path::new("-") {
            return file::read_text(std::io::stdin().lock(), 0);
        }
        let file = File::open(path)?;
        file::read_text(&file, file.metadata()?.len())
    };
    read().map_err(|source| TraceError::from_io(path.to_owned(), "read", source))
}

/// Returns a readable name for the job: the folder, file or prefix that the user gave. For several paths, returns the
/// first rank's file, so that the name does not depend on their order.
pub fn job_name_from_paths(paths: &[PathBuf], files: &[RankFile]) -> String {
    let path = match (paths, files) {
        // Canonicalize the path, because `.` is not a readable name.
        ([only], _) => only.canonicalize().unwrap_or_else(|_| only.clone()),
        (_, [first, ..]) => first.path.clone(),
        _ => PathBuf::new(),
    };
    let name = path.file_name().and_then(|name| name.to_str());
    name.unwrap_or("job").to_owned()
}

/// Returns the machine file next to the traces. If there is none, returns the machine that the job file names.
pub fn find_machine_beside_traces_or_in_job(
    paths: &[PathBuf],
    found: &FoundTraces,
) -> Option<String> {
    if let Some(path) = paths.first()
        && let Ok(Some(_)) = chakram_archive::read_archived_file(&path.join(CASE_MACHINE))
    {
        return Some(path.join(CASE_MACHINE).display().to_string());
    }
    let folder = paths.first().map(|path| {
        if path.is_dir() {
            path.as_path()
        } else {
            path.parent().unwrap_or(Path::new(""))
        }
    });
    let file = folder.unwrap_or(Path::new("")).join(CASE_MACHINE);
    if file.is_file() {
        return Some(file.display().to_string());
    }
    found.jobs.iter().find_map(|(path, job)| {
        let machine = job.machine.as_deref()?;
        Some(machine_reference::resolve_machine_file_beside_job(
            machine, path,
        ))
    })
}
