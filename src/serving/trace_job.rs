//! Opens jobs in traces, which requests launch.

use chakram_jobs::{Job, JobLoadOrWriteError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A job read from traces, which every request launches.
#[derive(Clone, Debug)]
pub struct RequestJobFromTraces {
    path: PathBuf,
    job: Arc<Job>,
}

impl PartialEq for RequestJobFromTraces {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl RequestJobFromTraces {
    /// Opens the job at `path`, in any form that `chakram replay` accepts.
    ///
    /// # Errors
    ///
    /// Fails if there are no traces, or if the traces do not form a job.
    pub fn open_job(path: &Path) -> Result<Self, JobLoadOrWriteError> {
        Ok(Self {
            path: path.to_owned(),
            job: Arc::new(Job::open_job([path])?),
        })
    }

    /// Returns the job that each request launches.
    pub fn job(&self) -> &Job {
        &self.job
    }
}
