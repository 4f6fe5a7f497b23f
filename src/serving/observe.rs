//! Observers that receive requests and jobs while a scenario runs.

use chakram_base::units::{Span, Time};
use std::io;

/// A completed request. The time from arrival to end is the sum of `datapath`, `queue`,
/// `compute` and `preempted`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedRequest {
    /// Index of the request in order of arrival, counting from 0.
    pub number: u64,
    /// Index of the request's model.
    pub model: u32,
    /// Time at which the request arrived.
    pub arrival: Time,
    /// Time at which the request's first job started.
    pub started: Time,
    /// Time at which the request's last job ended.
    pub finished: Time,
    /// Time from the request's arrival until the datapath latency ends.
    pub datapath: Span,
    /// Total time in which at least one job of the request ran.
    pub compute: Span,
    /// Total time that the request spent preempted, from each preemption until it continued.
    pub preempted: Span,
    /// Time in the queue: the remainder of the time from arrival to end.
    pub queue: Span,
    /// Number of requests in the request's batch.
    pub together: u32,
    /// Index of the processor on which the request ran last.
    pub processor: u32,
    /// Number of prompt tokens and number of answer tokens; 0 if unknown.
    pub tokens: [u32; 2],
}

/// A job with its start and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedJob {
    /// Number of the request to which the job belongs. For a batch, the number of its first request.
    pub request: u64,
    /// Index of the model.
    pub model: u32,
    /// Index of the job in its request.
    pub job: u32,
    /// Index of the processor on which the job runs.
    pub processor: u32,
    /// Start and end of the job.
    pub times: (Time, Time),
}

/// Receives requests and jobs as they are served.
pub trait RequestObserver {
    /// Receives each completed request, in order of completion.
    ///
    /// # Errors
    ///
    /// Fails if the request cannot be written. The run then ends with this error.
    fn on_completed(&mut self, request: &CompletedRequest) -> io::Result<()>;

    /// Returns true if [`Self::on_job_served`] should be called.
    fn wants_jobs(&self) -> bool {
        false
    }

    /// Receives each job as soon as its start and end are known. These times may be in the future.
    fn on_job_served(&mut self, _job: &ServedJob) {}
}

/// Ignores all requests and jobs.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRequestObserver;

impl RequestObserver for NoRequestObserver {
    fn on_completed(&mut self, _request: &CompletedRequest) -> io::Result<()> {
        Ok(())
    }
}
