//! Writes a job. The files get their final names only once all of them are complete. The job file gets its final name
//! last.

use super::{JobLoadOrWriteError, machine_reference};
use chakram_trace::files::{
    CompleteUncommittedFileHandle, OutputFile, OutputsAndProtectedInputs,
    join_prefix_middle_and_ending,
};
use chakram_trace::format::file::{MaybeCompressedWriter, job_prefix_of_file};
use chakram_trace::format::groups::DeclaredGroups;
use chakram_trace::format::job::{JobFileRankEntry, JobTraceManifest};
use std::collections::BTreeSet;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Default name of a job in a folder.
const JOB: &str = "job";

/// Returns the prefix of a job's files. If it ends with a separator, the output is a folder, even if the folder does
/// not exist yet.
fn job_prefix(output: &Path) -> Result<PathBuf, JobLoadOrWriteError> {
    let text = output.to_string_lossy();
    let folder = ["/", "/.", "/.."].iter().any(|end| text.ends_with(end));
    match () {
        () if output
            .file_name()
            .is_some_and(|name| name.to_str().is_none()) =>
        {
            Err(JobLoadOrWriteError::Output(
                "-o has a name that is not UTF-8, so the job's file cannot contain it",
            ))
        }
        () if text == "-" => Err(JobLoadOrWriteError::Output(
            "-o - is standard output, but a job consists of several files\n  try: -o PREFIX",
        )),
        () if output.exists() && !output.is_dir() && !output.is_file() => {
            Err(JobLoadOrWriteError::Output(
                "-o is a device or a pipe, but a job consists of several files\n  try: -o PREFIX",
            ))
        }
        () if text.is_empty() => Err(JobLoadOrWriteError::Output(
            "-o has no name\n  try: -o PREFIX",
        )),
        () if folder || output.is_dir() => Ok(output.join(JOB)),
        () => Ok(output.to_owned()),
    }
}

/// Writer of an incomplete trace.
pub type UnfinishedTraceWriter = MaybeCompressedWriter<BufWriter<OutputFile>>;

/// A job that is being written.
#[derive(Debug)]
pub struct JobBeingWritten {
    prefix: PathBuf,
    packed: &'static str,
    /// Output files, and the inputs that they must not replace.
    pub files: OutputsAndProtectedInputs,
    ranks: Vec<JobFileRankEntry>,
    names: Vec<PathBuf>,
}

impl JobBeingWritten {
    /// Starts to write a job at `output`. `packed` is the extension of compressed files, `.zst` or
    /// `.gz`. The extension is empty for uncompressed files.
    pub fn new(
        output: &Path,
        packed: &'static str,
        files: OutputsAndProtectedInputs,
    ) -> Result<Self, JobLoadOrWriteError> {
        Ok(Self {
            prefix: job_prefix(output)?,
            packed,
            files,
            ranks: Vec::new(),
            names: Vec::new(),
        })
    }

    /// Returns the path of a rank's trace.
    pub fn path_of_rank(&self, rank: u32) -> PathBuf {
        join_prefix_middle_and_ending(&self.prefix, rank, &format!(".et{}", self.packed))
    }

    /// Starts to write a rank's trace.
    pub fn start_trace(&mut self, rank: u32) -> Result<UnfinishedTraceWriter, JobLoadOrWriteError> {
        let file = self
            .files
            .create_file(&self.path_of_rank(rank))?
            .with_digest();
        let file = BufWriter::with_capacity(1 << 18, file);
        Ok(MaybeCompressedWriter::new(
            file,
            self.packed.trim_start_matches('.'),
        )?)
    }

    /// Completes a rank's trace.
    pub fn finish_trace(
        &mut self,
        rank: u32,
        trace: UnfinishedTraceWriter,
    ) -> Result<CompleteUncommittedFileHandle, JobLoadOrWriteError> {
        let file = trace.finish()?.into_inner();
        let file = file.map_err(io::IntoInnerError::into_error)?;
        let written = self.files.close_file_and_queue_for_commit(file)?;
        let path = self.path_of_rank(rank);
        self.record_written_trace_of_rank(rank, path, written);
        Ok(written)
    }

    /// Writes a rank's trace that is already complete in memory.
    pub fn write_trace(
        &mut self,
        rank: u32,
        trace: &[u8],
    ) -> Result<CompleteUncommittedFileHandle, JobLoadOrWriteError> {
        let mut file = self.start_trace(rank)?;
        file.write_all(trace)?;
        self.finish_trace(rank, file)
    }

    /// Uses the trace `written` for `rank` as well: as a hard link if `link` is true, otherwise as a copy. Returns
    /// `None` if the trace can be neither linked nor copied; the caller must then write the trace again.
    pub fn share_trace_by_link_or_copy(
        &mut self,
        rank: u32,
        written: CompleteUncommittedFileHandle,
        link: bool,
    ) -> Result<Option<CompleteUncommittedFileHandle>, JobLoadOrWriteError> {
        let path = self.path_of_rank(rank);
        let shared = self.files.duplicate_as(written, &path, link)?;
        if let Some(shared) = shared {
            self.record_written_trace_of_rank(rank, path, shared);
        }
        Ok(shared)
    }

    /// Records `written` as the trace of `rank`.
    pub fn record_written_trace_of_rank(
        &mut self,
        rank: u32,
        path: PathBuf,
        written: CompleteUncommittedFileHandle,
    ) {
        let file = path.file_name().unwrap_or_default();
        self.ranks.push(JobFileRankEntry {
            rank,
            file: file.to_string_lossy().into_owned(),
            seal: written.seal,
        });
        self.names.push(path);
    }

    /// Writes the groups to a separate file, for tools that cannot read job files. Returns the file's path.
    pub fn write_groups(
        &mut self,
        declared: &DeclaredGroups,
    ) -> Result<PathBuf, JobLoadOrWriteError> {
        let path = join_prefix_middle_and_ending(&self.prefix, "groups", ".json");
        let mut file = BufWriter::new(self.files.create_file(&path)?);
        serde_json::to_writer_pretty(&mut file, declared).map_err(io::Error::from)?;
        file.write_all(b"\n")?;
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        self.files.close_file_and_queue_for_commit(file)?;
        Ok(path)
    }

    /// Writes the job file from `about` and the ranks. Then gives all files of the job their final
    /// names.
    pub fn commit_job(mut self, about: JobTraceManifest) -> Result<SavedJob, JobLoadOrWriteError> {
        // Callers may add ranks in any order, but the job file lists them by rank.
        self.ranks.sort_by_key(|row| row.rank);
        let path = join_prefix_middle_and_ending(&self.prefix, "job", ".json");
        let job = JobTraceManifest {
            ranks: self.ranks,
            ..about
        };
        write_job_file(&mut self.files, &path, &job)?;
        self.files.commit_all()?;
        // List other traces only after the commit: until then, the job's own files have temporary names.
        Ok(SavedJob {
            others: list_stale_traces(&self.prefix, &job)?,
            traces: self.names,
            prefix: self.prefix,
        })
    }
}

/// A job that has been written.
#[derive(Debug)]
pub struct SavedJob {
    /// Prefix of the job's file names.
    pub prefix: PathBuf,
    /// The job's traces, in the order in which they were written.
    pub traces: Vec<PathBuf>,
    /// Traces with the job's prefix that do not belong to the job, sorted by path.
    pub others: Vec<PathBuf>,
}

/// Writes a job file. The path of a machine file becomes relative to the job file's folder.
pub fn write_job_file(
    files: &mut OutputsAndProtectedInputs,
    path: &Path,
    job: &JobTraceManifest,
) -> Result<(), JobLoadOrWriteError> {
    let machine = job.machine.as_deref();
    let job = JobTraceManifest {
        machine: machine
            .map(|machine| machine_reference::machine_reference_for_job_file(machine, path)),
        ..job.clone()
    };
    let mut file = files.create_file(path)?;
    file.write_all(job.to_text().as_bytes())?;
    files.close_file_and_queue_for_commit(file)?;
    Ok(())
}

/// If the job file in `path`'s folder lists `path`, replaces the digest there with the digest of the new content,
/// `written`.
pub fn update_trace_digest_in_job_file(
    files: &mut OutputsAndProtectedInputs,
    path: &Path,
    written: CompleteUncommittedFileHandle,
) -> Result<(), JobLoadOrWriteError> {
    let Some(prefix) = job_prefix_of_file(path) else {
        return Ok(());
    };
    let beside = join_prefix_middle_and_ending(&prefix, "job", ".json");
    if !beside.is_file() {
        return Ok(());
    }
    let mut job = JobTraceManifest::read_file(&beside)?;
    let named =
        |row: &&mut JobFileRankEntry| path.file_name().is_some_and(|name| *name == *row.file);
    if let Some(row) = job.ranks.iter_mut().find(named) {
        row.seal = written.seal;
        let machine = job.machine.as_deref();
        job.machine = machine
            .map(|machine| machine_reference::resolve_machine_file_beside_job(machine, &beside));
        write_job_file(files, &beside, &job)?;
    }
    Ok(())
}

/// Returns the traces that have a job's prefix but do not belong to the job.
pub fn list_stale_traces(prefix: &Path, job: &JobTraceManifest) -> io::Result<Vec<PathBuf>> {
    let folder = match prefix.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let named: BTreeSet<&str> = job.ranks.iter().map(|row| &row.file[..]).collect();
    let mut others = Vec::new();
    for entry in std::fs::read_dir(folder)?.flatten() {
        let name = entry.file_name();
        let path = prefix.with_file_name(&name);
        let is_trace = job_prefix_of_file(&path).as_deref() == Some(prefix);
        if is_trace && !named.contains(name.to_string_lossy().as_ref()) {
            others.push(path);
        }
    }
    others.sort();
    Ok(others)
}
