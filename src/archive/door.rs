//! Resolves paths of the form `ARCHIVE::WORKLOAD`, so that commands read traces directly from an
//! archive.

use super::ArchiveError;
use super::store::Archive;
use chakram_trace::format::file::{
    FoundTraces, HashAddressedTraceStore, RankFile, TraceStoredByHash,
};
use chakram_trace::format::job::{ENDING, JobTraceManifest};
use chakram_trace::format::{TraceError, TraceErrorLocation};
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl HashAddressedTraceStore for Archive {
    fn read_by_hash(&self, hash: &[u8; 32]) -> Result<Vec<u8>, TraceError> {
        Ok(Archive::read_object(
            self,
            &blake3::Hash::from_bytes(*hash).to_hex(),
        )?)
    }
}

impl From<ArchiveError> for TraceError {
    fn from(error: ArchiveError) -> Self {
        match error {
            ArchiveError::Trace(error) => error,
            ArchiveError::Io {
                file,
                doing,
                source,
            } => Self::from_io(file, doing, source),
            ArchiveError::Broken { file, at, found } => {
                let place = TraceErrorLocation {
                    file,
                    offset: at.and_then(|at| usize::try_from(at).ok()),
                    ..TraceErrorLocation::default()
                };
                Self::invalid_at(place, found, "chakram archive verify")
            }
            ArchiveError::Refused { found, hint } => {
                Self::invalid_at(TraceErrorLocation::default(), found, hint)
            }
        }
    }
}

/// Splits `ARCHIVE::REST`; returns `None` if `path` has another form, or if a file named `path` exists.
fn split_archive_path(path: &Path) -> Option<(PathBuf, &str)> {
    let (archive, rest) = path.to_str()?.split_once("::")?;
    let named = !archive.is_empty() && !rest.is_empty() && !path.exists();
    named.then(|| (PathBuf::from(archive), rest))
}

/// Finds the traces of `ARCHIVE::WORKLOAD`; returns `None` if `path` is an ordinary path. The traces are read only
/// when they are opened.
pub fn find_traces_of_archive_path(path: &Path) -> Result<Option<FoundTraces>, TraceError> {
    let Some((archive, name)) = split_archive_path(path) else {
        return Ok(None);
    };
    let archive = Arc::new(Archive::open_archive(&archive)?);
    find_workload_traces(&archive, name).map(Some)
}

/// Finds the traces of the workload `name` in an open archive.
pub fn find_workload_traces(archive: &Arc<Archive>, name: &str) -> Result<FoundTraces, TraceError> {
    let entry = archive.find_workload(name)?;
    archive.check_archive_can_hold_ranks(entry, None)?;
    let path = PathBuf::from(format!("{}::{name}", archive.path().display()));
    let store: Arc<dyn HashAddressedTraceStore> = archive.clone();
    let mut found = FoundTraces::default();
    for (rank, row) in entry.ranks_with_trace_rows() {
        let hash = blake3::Hash::from_hex(&row.blake3).expect("hashes were checked");
        found.files.push(RankFile {
            stored: Some(TraceStoredByHash::new(Arc::clone(&store), *hash.as_bytes())),
            ..RankFile::new(rank, path.join(entry.rank_trace_file_name(rank, row)))
        });
    }
    for row in entry.files.iter().filter(|row| row.name.ends_with(ENDING)) {
        let file = path.join(&row.name);
        let text = String::from_utf8(archive.read_object(&row.blake3)?)
            .map_err(|_| TraceError::malformed_at(0, "the text is not UTF-8").in_file(&file))?;
        let job = JobTraceManifest::parse(&text).map_err(|error| error.in_file(&file))?;
        found.jobs.insert(file.clone(), Arc::new(job));
        found.stored_jobs.insert(file, row.blake3.clone());
    }
    Ok(found)
}

/// Reads the file `ARCHIVE::WORKLOAD/FILE`; returns `None` if `path` has another form, or if the workload has no such
/// file.
pub fn read_archived_file(path: &Path) -> Result<Option<Vec<u8>>, ArchiveError> {
    let Some((archive, rest)) = split_archive_path(path) else {
        return Ok(None);
    };
    let archive = Archive::open_archive(&archive)?;
    let workloads = archive.workloads().values();
    let found = workloads.filter_map(|entry| {
        let file = rest.strip_prefix(&entry.name[..])?.strip_prefix('/')?;
        entry.find_non_trace_file(file)
    });
    let row = found.map(|row| row.blake3.clone()).next();
    row.map(|hash| archive.read_object(&hash)).transpose()
}
