//! Processors that say themselves when kernels run, in place of the lanes of an NPU.

use super::launch::LaunchSerial;
use chakram_base::ids::{NodeIndex, Npu};
use chakram_base::units::{Span, Time};

/// Processors of NPUs whose kernels take no lane: arrays of cores, and servers that choose what runs next.
///
/// A model is passive: it is told what is ready and what has ended, and answers with times. Kernels that are ready in
/// one round are submitted by NPU, launch and node.
pub trait ProcessorModel {
    /// Returns whether the kernels of launches of `program` on an NPU are submitted here. Asked when a launch begins.
    fn serves(&self, npu: Npu, program: u32) -> bool;

    /// Takes a kernel whose dependencies are complete. Appends each job whose times are known by that: this one, or
    /// none, if it waits.
    fn submit(&mut self, now: Time, job: &ProcessorJob, started: &mut Vec<JobTimes>);

    /// Tells that a job is at its end, before anything that depends on it is submitted. Appends each job whose times are
    /// known by that.
    fn ended(&mut self, _now: Time, _job: &ProcessorJob, _started: &mut Vec<JobTimes>) {}

    /// Tells that nothing else ends or is submitted at this instant, after something did: whoever chooses among the jobs
    /// that wait knows them all, those that came with the end of another too. Appends each job whose times are known by
    /// that.
    fn settle(&mut self, _now: Time, _started: &mut Vec<JobTimes>) {}
}

/// A kernel of a launch on its way through a processor.
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
    /// The feed's own number of the launch.
    pub tag: u64,
    /// The kernel in the program's graph.
    pub node: NodeIndex,
    /// Duration by the compute model, as the launch changes it.
    pub price: Span,
    /// Name of the job in [`JobTimes`], until it ends.
    pub token: u64,
}

/// Times at which a job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobTimes {
    /// Its name ([`ProcessorJob::token`]).
    pub token: u64,
    /// The beginning, now or later.
    pub start: Time,
    /// The end, not before the start.
    pub end: Time,
}
