//! Processor models, which determine when kernels run and replace the lanes of an NPU.

use super::launch::LaunchSerial;
use chakram_base::ids::{NodeIndex, Npu};
use chakram_base::units::{Span, Time};

/// Model of processors whose kernels use no lanes, such as core arrays and servers with their own scheduling.
///
/// A model is passive: the loop notifies it of ready and ended kernels, and it answers with times.
/// Kernels that become ready in one round are submitted in the order of NPU, launch and node.
pub trait ProcessorModel {
    /// Returns true if this model serves the kernels of launches of `program` on an NPU. Called
    /// when a launch begins.
    fn serves(&self, npu: Npu, program: u32) -> bool;

    /// Submits a kernel whose dependencies are complete. Appends every job whose times are now
    /// known; no job if this kernel must wait.
    fn submit(&mut self, now: Time, job: &ProcessorJob, started: &mut Vec<JobTimes>);

    /// Notifies the model that a job has ended, before the job's successors are submitted. Appends
    /// every job whose times are now known.
    fn ended(&mut self, _now: Time, _job: &ProcessorJob, _started: &mut Vec<JobTimes>) {}

    /// Notifies the model that no more jobs end or are submitted at this instant; called only after
    /// some did. A model that chooses among waiting jobs then knows all waiting jobs. Appends every
    /// job whose times are now known.
    fn settle(&mut self, _now: Time, _started: &mut Vec<JobTimes>) {}
}

/// A kernel of a launch in a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessorJob {
    /// The NPU.
    pub npu: Npu,
    /// Number of the launch.
    pub launch: LaunchSerial,
    /// Index of its feed.
    pub feed: u32,
    /// Index of its program.
    pub program: u32,
    /// The number that the feed chose for the launch.
    pub tag: u64,
    /// The kernel's index in the program's graph.
    pub node: NodeIndex,
    /// Duration by the compute model, changed by the launch's
    /// [`LaunchPrices`](super::LaunchPrices).
    pub price: Span,
    /// Identifies the job in [`JobTimes`] until it ends.
    pub token: u64,
}

/// Times at which a job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobTimes {
    /// The job ([`ProcessorJob::token`]).
    pub token: u64,
    /// Start, not before now.
    pub start: Time,
    /// End, not before the start.
    pub end: Time,
}
