//! Observers of requests and jobs while a scenario runs.

use chakram_base::units::{Span, Time};
use std::io;

/// A request that was served. Its times from arrival to the end are the sum of `datapath`, `queue`, `compute` and
/// `preempted`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedRequest {
    /// Number by arrival, from 0.
    pub number: u64,
    /// Index of its model.
    pub model: u32,
    /// Arrival.
    pub arrival: Time,
    /// Start of its first job.
    pub started: Time,
    /// End of its last job.
    pub finished: Time,
    /// Datapath latency.
    pub datapath: Span,
    /// Time in which a job of it ran.
    pub compute: Span,
    /// Time from being put back to going on.
    pub preempted: Span,
    /// All other time.
    pub queue: Span,
    /// Number of requests that were served together.
    pub together: u32,
    /// The processor that served it last.
    pub processor: u32,
    /// Tokens of the prompt and of the answer; 0 where none are stated.
    pub tokens: [u32; 2],
}

/// A job whose times are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedJob {
    /// Number of its request, or of the first of its batch.
    pub request: u64,
    /// Index of the model.
    pub model: u32,
    /// Number of the job.
    pub job: u32,
    /// The processor.
    pub processor: u32,
    /// Start and end.
    pub times: (Time, Time),
}

/// Sees requests and jobs as they are served.
pub trait RequestObserver {
    /// A request is complete; called in order of completion.
    ///
    /// # Errors
    ///
    /// If it cannot be written; the run ends with this error.
    fn completed(&mut self, request: &CompletedRequest) -> io::Result<()>;

    /// Returns whether [`Self::served`] should be called.
    fn wants_jobs(&self) -> bool {
        false
    }

    /// A job has its times, which may lie ahead.
    fn served(&mut self, _job: &ServedJob) {}
}

/// Looks at nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRequestObserver;

impl RequestObserver for NoRequestObserver {
    fn completed(&mut self, _request: &CompletedRequest) -> io::Result<()> {
        Ok(())
    }
}
