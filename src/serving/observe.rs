//! Observers of requests and jobs while a scenario runs.

use chakram_base::units::{Span, Time};
use std::io;

/// A completed request. The time from arrival to its end is the sum of `datapath`, `queue`, `compute` and `preempted`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedRequest {
    /// Number in the order of arrival, from 0.
    pub number: u64,
    /// Index of the request's model.
    pub model: u32,
    /// Arrival of the request.
    pub arrival: Time,
    /// Start of the request's first job.
    pub started: Time,
    /// End of the request's last job.
    pub finished: Time,
    /// Datapath latency.
    pub datapath: Span,
    /// Time in which a job of the request ran.
    pub compute: Span,
    /// Total time from preemptions until the request continued.
    pub preempted: Span,
    /// Time in the queue: all time that the other parts do not include.
    pub queue: Span,
    /// Number of requests that were served together.
    pub together: u32,
    /// Index of the last processor that served the request.
    pub processor: u32,
    /// Tokens of the prompt and of the answer, or 0 if none are stated.
    pub tokens: [u32; 2],
}

/// A job whose times are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedJob {
    /// Number of the job's request, or of the first request of its batch.
    pub request: u64,
    /// Index of the model.
    pub model: u32,
    /// Number of the job.
    pub job: u32,
    /// Index of the processor that runs the job.
    pub processor: u32,
    /// Start and end of the job.
    pub times: (Time, Time),
}

/// Receives requests and jobs as they are served.
pub trait RequestObserver {
    /// Called when a request is complete, in order of completion.
    ///
    /// # Errors
    ///
    /// Fails if the request cannot be written; the run then ends with this error.
    fn completed(&mut self, request: &CompletedRequest) -> io::Result<()>;

    /// Returns true to receive calls of [`Self::served`].
    fn wants_jobs(&self) -> bool {
        false
    }

    /// Called when the times of a job are known, which may be in the future.
    fn served(&mut self, _job: &ServedJob) {}
}

/// Ignores all requests and jobs.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRequestObserver;

impl RequestObserver for NoRequestObserver {
    fn completed(&mut self, _request: &CompletedRequest) -> io::Result<()> {
        Ok(())
    }
}
