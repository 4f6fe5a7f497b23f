//! Gives transformations access to individual traces of a job, or to one trace from a pipe.

use super::JobLoadOrWriteError;
use super::load::{find_traces, restrict_to_step};
use super::machine_reference;
use chakram_trace::format::TraceError;
use chakram_trace::format::file::{
    DecompressedTraceFile, FoundTraces, RankFile, TraceHashVerificationLevel,
};
use chakram_trace::format::groups::DeclaredGroups;
use chakram_trace::format::job::JobTraceManifest;
use std::io::Read;
use std::path::PathBuf;

/// A job's traces in files, or one trace from a pipe.
#[derive(Debug)]
pub struct JobTraceFilesOrPipe {
    /// Trace files by rank, and the job files that list them.
    pub found: FoundTraces,
    piped: Option<DecompressedTraceFile>,
}

/// A trace that has been opened.
#[derive(Debug)]
pub enum OpenedFileOrPipeTrace<'t> {
    /// Contents of the opened file.
    File(DecompressedTraceFile),
    /// Contents of the pipe. They were read when the job was opened, because a pipe can be read only once.
    Pipe(&'t DecompressedTraceFile),
}

impl OpenedFileOrPipeTrace<'_> {
    fn trace_contents(&self) -> &DecompressedTraceFile {
        match self {
            Self::File(contents) => contents,
            Self::Pipe(contents) => contents,
        }
    }

    /// Returns the bytes of the trace.
    pub fn as_slice(&self) -> &[u8] {
        self.trace_contents().as_slice()
    }

    /// Adds the file's or pipe's name to an error about its bytes.
    pub fn locate_error(&self, error: TraceError) -> TraceError {
        self.trace_contents().locate_error_in_original_file(error)
    }
}

impl JobTraceFilesOrPipe {
    /// Finds the trace files at `paths`.
    pub fn find_traces(
        paths: &[PathBuf],
        verify: TraceHashVerificationLevel,
    ) -> Result<Self, TraceError> {
        let found = find_traces(paths, verify)?;
        let stream = found.stream.as_deref();
        let piped = stream
            .map(DecompressedTraceFile::open_as_current_schema)
            .transpose()?;
        Ok(Self { found, piped })
    }

    /// If `step` is not `None`, keeps only this profiled step of the traces.
    pub fn select_step(self, step: Option<u64>) -> Result<Self, JobLoadOrWriteError> {
        if step.is_none() {
            return Ok(self);
        }
        Ok(Self {
            found: restrict_to_step(self.found, step, self.piped)?,
            piped: None,
        })
    }

    /// Reads a trace from `pipe` as rank 0. Error messages call the pipe `name`.
    pub fn from_pipe(pipe: impl Read, name: &str) -> Result<Self, TraceError> {
        Ok(Self {
            found: FoundTraces {
                files: vec![RankFile::new(0, PathBuf::from(name))],
                stream: Some(PathBuf::from(name)),
                ..FoundTraces::default()
            },
            piped: Some(DecompressedTraceFile::from_pipe(pipe)?),
        })
    }

    /// Returns the files in ascending order of ranks.
    pub fn rank_files(&self) -> &[RankFile] {
        &self.found.files
    }

    /// Returns the declarations of the job file, with its groups replaced by `groups`. Leaves out the job file's ranks.
    pub fn job_declarations_with_groups(&self, groups: DeclaredGroups) -> JobTraceManifest {
        merge_job_file_declarations(&self.found, groups)
    }

    /// Opens one of the files. For a pipe, returns the contents read earlier.
    pub fn open_file(
        &self,
        file: &RankFile,
    ) -> Result<OpenedFileOrPipeTrace<'_>, JobLoadOrWriteError> {
        Ok(match &self.piped {
            Some(contents) if self.found.stream.as_ref() == Some(&file.path) => {
                OpenedFileOrPipeTrace::Pipe(contents)
            }
            _ => OpenedFileOrPipeTrace::File(DecompressedTraceFile::open_verified(file)?),
        })
    }
}

/// Merges the declarations of the job files in `found`. `groups` replaces their groups, and the ranks are left out.
pub fn merge_job_file_declarations(
    found: &FoundTraces,
    groups: DeclaredGroups,
) -> JobTraceManifest {
    let mut about = JobTraceManifest {
        groups,
        ..JobTraceManifest::default()
    };
    for (path, job) in &found.jobs {
        // The result has the machine of the first job and the roles of all jobs.
        about.roles.add_missing_roles_from(&job.roles);
        about.machine = about.machine.or_else(|| {
            let machine = job.machine.as_deref()?;
            Some(machine_reference::resolve_machine_file_beside_job(
                machine, path,
            ))
        });
    }
    about
}
