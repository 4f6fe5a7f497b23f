//! Processor models, which replace the lanes of an NPU and decide when kernels run.

use super::launch::LaunchSerial;
use chakram_base::ids::{NodeIndex, Npu};
use chakram_base::units::{Span, Time};

/// Model of processors whose kernels use no lanes, such as arrays of cores or servers that schedule their own work.
///
/// A model is passive: the loop notifies it of ready and ended kernels, and it returns times. If several kernels become
/// ready in the same round, the loop submits them in the order of NPU, launch and node.
pub trait SelfSchedulingProcessorModel {
    /// Returns true if this model serves the kernels that `program`'s launches run on an NPU. Called when a launch
    /// begins.
    fn serves_program(&self, npu: Npu, program: u32) -> bool;

    /// Submits a kernel whose dependencies are complete. Appends the times of every job whose times are now known, or
    /// nothing if this kernel must wait.
    fn submit_job(
        &mut self,
        now: Time,
        job: &ProcessorKernelJob,
        started: &mut Vec<ProcessorJobStartAndEnd>,
    );

    /// Notifies the model that a job has ended, before its successors are submitted. Appends the times of every job
    /// whose times are now known.
    fn on_job_ended(
        &mut self,
        _now: Time,
        _job: &ProcessorKernelJob,
        _started: &mut Vec<ProcessorJobStartAndEnd>,
    ) {
    }

    /// Notifies the model that no more jobs end or are submitted at this instant. Called only at instants at which jobs
    /// ended or were submitted. A model that chooses among waiting jobs thus sees all of them. Appends the times of
    /// every job whose times are now known.
    fn settle_instant(&mut self, _now: Time, _started: &mut Vec<ProcessorJobStartAndEnd>) {}
}

/// A kernel of a launch that a processor model serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessorKernelJob {
    /// NPU on which the kernel runs.
    pub npu: Npu,
    /// Index of the kernel's launch within the run.
    pub launch: LaunchSerial,
    /// Index of the feed that requested the launch.
    pub feed: u32,
    /// Index of the program that the launch executes.
    pub program: u32,
    /// The tag that the feed chose for the launch.
    pub tag: u64,
    /// The kernel's index in the program's graph.
    pub node: NodeIndex,
    /// Duration from the compute model, after the launch's
    /// [`LaunchKernelDurationSource`](super::LaunchKernelDurationSource) has changed it.
    pub price: Span,
    /// Identifies the job in [`ProcessorJobStartAndEnd`] until the job ends.
    pub token: u64,
}

/// Start and end of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessorJobStartAndEnd {
    /// Identifies the job ([`ProcessorKernelJob::token`]).
    pub token: u64,
    /// Start time, at or after the current time.
    pub start: Time,
    /// End time, at or after the start.
    pub end: Time,
}
