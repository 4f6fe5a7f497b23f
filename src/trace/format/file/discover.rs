//! Finds the trace files of a job.

use super::listing::{FolderTracesAndJobFiles, refuse_capture, several_jobs_error};
use super::names::{ANYTHING, ENDINGS, split_file_name};
use super::{RankFile, no_traces_error};
use crate::format::TraceError;
use crate::format::job::{self, JobTraceManifest};
use chakram_base::setting::SettingKey;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum total size in bytes of a job whose hashes are checked by default. Hashing a larger job would slow down
/// loading noticeably.
const HASHED: u64 = 64 << 20;

/// How thoroughly traces are verified against the job file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceHashVerificationLevel {
    /// No verification; single traces are read even if the job file does not name their ranks.
    Nothing,
    /// Verifies the lengths of traces, and in small jobs also their hashes.
    #[default]
    Lengths,
    /// Verifies lengths and hashes.
    Hashes,
}

/// Traces found by a search, with the job files that list them.
#[derive(Clone, Debug, Default)]
pub struct FoundTraces {
    /// The traces, sorted by rank.
    pub files: Vec<RankFile>,
    /// Job files that list the traces.
    pub jobs: BTreeMap<PathBuf, Arc<JobTraceManifest>>,
    /// BLAKE3 hash, in hexadecimal, of each job file that is in a store.
    pub stored_jobs: BTreeMap<PathBuf, String>,
    /// Path of the trace that is a stream, if any; a stream can be read only once.
    pub stream: Option<PathBuf>,
}

impl FoundTraces {
    /// Adds the results of another search.
    pub fn extend(&mut self, other: Self) {
        self.files.extend(other.files);
        self.files.sort();
        self.files.dedup();
        self.jobs.extend(other.jobs);
        self.stored_jobs.extend(other.stored_jobs);
        self.stream = self.stream.take().or(other.stream);
    }
}

/// Finds trace files, and reads each job file only once.
#[derive(Debug, Default)]
pub struct TraceFinder {
    verify: TraceHashVerificationLevel,
    jobs: BTreeMap<PathBuf, Option<Arc<JobTraceManifest>>>,
    found: FoundTraces,
}

/// Finds the traces that `path` denotes (see [`TraceFinder::add_path`]).
pub fn discover_traces(path: &Path) -> Result<Vec<RankFile>, TraceError> {
    let mut finder = TraceFinder::default();
    finder.add_path(path)?;
    Ok(finder.finish_search().files)
}

/// Returns the path of a stream: standard input (also as `-`) or a pipe. A stream can be read only once. Returns `None`
/// if `path` is a file or folder, or is missing.
fn path_of_stream(path: &Path) -> Option<&Path> {
    if path == Path::new("-") {
        return Some(Path::new("/dev/stdin"));
    }
    // A regular file that is redirected to standard input also counts as a stream, because its path (`/dev/stdin`) is
    // not the name of a trace.
    let is_descriptor = path == Path::new("/dev/stdin") || path.starts_with("/dev/fd");
    let kind = std::fs::metadata(path).ok()?.file_type();
    (is_descriptor || !kind.is_file() && !kind.is_dir()).then_some(path)
}

/// Returns the path of the job file with the prefix `prefix`.
fn append_job_file_ending_to_prefix(folder: &Path, prefix: &str) -> PathBuf {
    folder.join(format!("{prefix}{}", job::ENDING))
}

/// Returns the prefix of the job that a file with this name would belong to.
pub fn job_prefix_of_file(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let (prefix, ..) = split_file_name(name)?;
    Some(path.with_file_name(prefix))
}

impl TraceFinder {
    /// Creates a finder that has found no traces yet.
    pub fn new(verify: TraceHashVerificationLevel) -> Self {
        Self {
            verify,
            ..Self::default()
        }
    }

    /// Returns the traces that were found, sorted by rank and without duplicates.
    pub fn finish_search(self) -> FoundTraces {
        let mut found = self.found;
        found.files.sort();
        // The caller may name a job and also one of its files, so remove duplicates.
        found.files.dedup();
        found
    }

    /// Adds the traces that `path` denotes: a folder with one job, a single file (only this one), a job file, or the
    /// common prefix of a job's files.
    ///
    /// If the folder contains a job file, the job file determines which files to read, with their lengths and hashes.
    /// Otherwise the files' names determine the traces. If files with several endings exist, the first ending in the
    /// order `.et`, `.eg` (the ending of 2023), `.jsonl`, `.json` takes precedence. Every trace file may be compressed.
    ///
    /// A stream (`-` for standard input, a named pipe, a shell's `<(…)`) is the trace of rank 0.
    ///
    /// Fails if there is no trace, if a folder contains several jobs, or if a rank has two files.
    pub fn add_path(&mut self, path: &Path) -> Result<(), TraceError> {
        if let Some(stream) = path_of_stream(path) {
            if self.found.stream.is_some() {
                return Err(no_traces_error(
                    path,
                    "this is a second stream, but every stream is the trace of rank 0",
                ));
            }
            self.found.stream = Some(stream.to_owned());
            self.found.files.push(RankFile::new(0, stream.to_owned()));
            return Ok(());
        }
        let name = path.file_name().and_then(|name| name.to_str());
        if path.is_file() {
            return match name.and_then(|name| name.strip_suffix(job::ENDING)) {
                Some(prefix) if !prefix.is_empty() => {
                    let job = self
                        .read_job_file(path)?
                        .ok_or_else(|| no_traces_error(path, "the job's file was removed"))?;
                    self.add_all_ranks_of_manifest(path, &job)
                }
                _ => self.add_file(path),
            };
        }
        if path.is_dir() {
            return self.add_only_job_of_folder(path);
        }
        let folder = folder_of(path);
        let prefix = name.unwrap_or_default();
        if let Some(job) = self.read_job_file(&append_job_file_ending_to_prefix(folder, prefix))? {
            return self.add_all_ranks_of_manifest(
                &append_job_file_ending_to_prefix(folder, prefix),
                &job,
            );
        }
        let listing = FolderTracesAndJobFiles::list_folder(folder, Some(prefix))?;
        if !listing.has_traces() {
            return Err(missing_path_error(path, folder, prefix));
        }
        let files = listing.traces_of_only_job(path, folder)?;
        self.found.files.extend(files);
        Ok(())
    }

    /// Reads the job file `path`. Returns `None` if the file does not exist.
    fn read_job_file(&mut self, path: &Path) -> Result<Option<Arc<JobTraceManifest>>, TraceError> {
        if let Some(known) = self.jobs.get(path) {
            return Ok(known.clone());
        }
        let job = if path.is_file() {
            match JobTraceManifest::read_file(path) {
                Ok(job) => Some(Arc::new(job)),
                // Without verification, an unreadable job file is not an error, because file names determine the job.
                Err(_) if self.verify == TraceHashVerificationLevel::Nothing => None,
                Err(error) => return Err(error),
            }
        } else {
            None
        };
        self.jobs.insert(path.to_owned(), job.clone());
        Ok(job)
    }

    /// Adds every rank of a job.
    fn add_all_ranks_of_manifest(
        &mut self,
        path: &Path,
        job: &Arc<JobTraceManifest>,
    ) -> Result<(), TraceError> {
        if job.ranks.is_empty() {
            return Err(no_traces_error(path, "the job's file names no rank"));
        }
        let lengths = job.ranks.iter().map(|row| row.seal.bytes);
        // The lengths are untrusted input, so their sum may overflow.
        let all = lengths.fold(0_u64, u64::saturating_add);
        let folder = folder_of(path);
        for row in &job.ranks {
            let mut seal = row.seal;
            if self.verify == TraceHashVerificationLevel::Lengths && all > HASHED {
                seal.blake3 = None;
            }
            let seal = (self.verify != TraceHashVerificationLevel::Nothing).then_some(seal);
            let file = RankFile {
                rank: row.rank,
                path: folder.join(&row.file),
                seal,
                stored: None,
            };
            self.found.files.push(file);
        }
        self.found.jobs.insert(path.to_owned(), job.clone());
        Ok(())
    }

    /// Adds one file, with its digest from the job file in the same folder.
    fn add_file(&mut self, path: &Path) -> Result<(), TraceError> {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let Some((prefix, rank, ending)) = split_file_name(name) else {
            return Err(no_traces_error(
                path,
                "the name does not have the form `PREFIX.RANK.et`",
            ));
        };
        if ENDINGS[ending] == ANYTHING {
            refuse_capture(path)?;
        }
        let mut file = RankFile::new(rank, path.to_owned());
        let beside = append_job_file_ending_to_prefix(folder_of(path), prefix);
        if let Some(job) = self.read_job_file(&beside)? {
            match job.trace_of_rank(rank) {
                // The digest belongs to the file that the job file lists, not to the same trace in another format.
                Some(row)
                    if row.file == name && self.verify != TraceHashVerificationLevel::Nothing =>
                {
                    file.seal = Some(row.seal);
                }
                None if self.verify != TraceHashVerificationLevel::Nothing => {
                    return Err(file_not_part_of_job_error(path, &beside, rank));
                }
                _ => {}
            }
            self.found.jobs.insert(beside, job);
        }
        self.found.files.push(file);
        Ok(())
    }

    /// Adds the only job of a folder.
    fn add_only_job_of_folder(&mut self, folder: &Path) -> Result<(), TraceError> {
        let listing = FolderTracesAndJobFiles::list_folder(folder, None)?;
        let prefixes = listing.prefixes();
        if prefixes.len() > 1 {
            return Err(several_jobs_error(folder, &prefixes));
        }
        if let Some(prefix) = listing.jobs.first() {
            let path = append_job_file_ending_to_prefix(folder, prefix);
            if let Some(job) = self.read_job_file(&path)? {
                return self.add_all_ranks_of_manifest(&path, &job);
            }
        }
        let files = listing.traces_of_only_job(folder, folder)?;
        self.found.files.extend(files);
        Ok(())
    }
}

/// Returns the folder that contains `path`.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn file_not_part_of_job_error(path: &Path, job: &Path, rank: u32) -> TraceError {
    TraceError::invalid_file(
        path,
        format!(
            "the file is not part of the job in its folder: {} does not name rank {rank}, so the trace may be of an earlier job",
            job.display()
        ),
        format!(
            "the prefix of the job to read only its ranks, or {} to read this file too",
            SettingKey::NoVerify
        ),
    )
}

/// Builds the error for a path that is not a folder, a file or a prefix. The error suggests the most similar name, if
/// any.
fn missing_path_error(path: &Path, folder: &Path, name: &str) -> TraceError {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let found = entry.file_name().into_string().ok()?;
        Some(match split_file_name(&found) {
            // A requested name without a rank was probably meant as a prefix.
            Some((prefix, rank, _)) if !name.contains(&format!(".{rank}.")) => prefix.to_owned(),
            Some(_) => found,
            None if is_folder => found,
            None => found.strip_suffix(job::ENDING)?.to_owned(),
        })
    });
    let distance = |found: &String| match found.strip_prefix(name) {
        // The most similar names differ only by an added ending, as do `job.0.et` and `job.0.et.zst`.
        Some(ending) if ending.starts_with('.') => 0,
        _ => strsim::damerau_levenshtein(name, found),
    };
    let near = names.map(|found| (distance(&found), found)).min();
    let most = 3.min(name.chars().count() / 2);
    match near.filter(|(edits, _)| *edits <= most) {
        Some((_, near)) => {
            let found = match folder {
                here if here == Path::new(".") => near,
                _ => folder.join(near).display().to_string(),
            };
            TraceError::invalid_file(path, "no such file, folder or prefix of a job", found)
        }
        None => no_traces_error(path, "no file is named `PREFIX.RANK.et`"),
    }
}
