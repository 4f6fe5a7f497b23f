//! Serves models whose work is a job read from traces. Each request launches it on the platform's machine.
//!
//! As in a replay with default options, the job's kernels run on the lanes of NPUs, and its messages use the network.
//! If a lane has kernels of several launches, it runs them in launch order. The jobs of several requests in service
//! therefore pass through a pipeline's stages one after another. A job with several ranks runs on the NPUs of its
//! ranks. A job with a single rank runs on the NPU with the same index as the processor.

use super::scenario::{Scenario, ServiceOrderAndSlots};
use super::trace_job::RequestJobFromTraces;
use chakram_base::units::{Span, Time};
use chakram_engine::{
    CompiledReplay, FeedLaunchAndRankStartRequests, LaunchFeed, LaunchRequest, ProgramLaunchRecord,
    ReplayOptions, ReplayRefusal, run_launches,
};
use chakram_hardware::machine::Machine;
use chakram_jobs::Job;

/// A job read from traces, with its times on a machine.
#[derive(Debug)]
pub struct TracedJobLatencyAndInterval<'s> {
    pub job: &'s Job,
    pub machine: &'s Machine,
    /// Time that a launch takes on an idle machine.
    pub latency: Span,
    /// Mean time between the ends of successive launches while as many are in service as the policy allows.
    pub interval: Span,
    /// True if a launch runs on the NPU of its processor.
    anywhere: bool,
}

/// Maximum number of concurrent launches when `interval` is measured. More would not change the result.
const MOST_AT_ONCE: u32 = 6;

impl<'s> TracedJobLatencyAndInterval<'s> {
    /// Replays the job on the idle machine. If the policy allows concurrent launches, also replays a series of
    /// overlapping launches.
    ///
    /// # Errors
    ///
    /// Fails if the machine cannot run the job, or has too few NPUs for the processors.
    pub fn new(
        trace: &'s RequestJobFromTraces,
        machine: &'s Machine,
        scenario: &Scenario,
    ) -> Result<Self, String> {
        let job = trace.job();
        let (ranks, npus) = (
            job.workload().instances().len(),
            machine.topology().npu_count(),
        );
        let processors = scenario.processors;
        if processors > 1 && ranks > 1 {
            return Err(format!(
                "the trace has {ranks} ranks, but the scenario has {processors} processors\n  try: one processor, which is the machine, or a trace of one rank, which goes to any NPU"
            ));
        }
        if processors > npus {
            return Err(format!(
                "the scenario has {processors} processors, but machine {:?} has {npus} NPUs\n  try: at most {npus} processors, or a larger machine",
                machine.name()
            ));
        }
        let text = |refusal: ReplayRefusal| refusal.to_string();
        let program = CompiledReplay::new(
            job.workload(),
            machine,
            &default_replay_options_for_traces(),
        )
        .map_err(text)?;
        program.check_most_kernels_have_durations().map_err(text)?;
        let (outcome, ()) = program.run(()).map_err(|error| error.to_string())?;
        let latency = outcome.makespan;
        let interval = match scenario.policy {
            ServiceOrderAndSlots { slots: Some(1), .. } => latency,
            ServiceOrderAndSlots { slots, .. } => {
                let at_once = slots.map_or(MOST_AT_ONCE, |slots| slots.min(MOST_AT_ONCE));
                let mut feed = FixedConcurrencyFeed::new(at_once);
                let programs = [program];
                let run = run_launches(&programs, &mut [&mut feed], None, &mut ());
                run.map_err(|error| error.to_string())?;
                feed.mean_end_interval()
            }
        };
        Ok(Self {
            job,
            machine,
            latency,
            interval,
            anywhere: processors > 1,
        })
    }

    /// Returns true if a launch runs on its processor's own NPU.
    pub fn launches_on_processors_npu(&self) -> bool {
        self.anywhere
    }
}

/// Returns the default options, which all jobs read from traces use.
pub(super) fn default_replay_options_for_traces() -> ReplayOptions {
    ReplayOptions::default()
}

/// A feed that keeps `at_once` launches of one program in service. Whenever one launch ends, another starts.
struct FixedConcurrencyFeed {
    at_once: u32,
    left: u32,
    ends: Vec<Time>,
}

impl FixedConcurrencyFeed {
    fn new(at_once: u32) -> Self {
        Self {
            at_once,
            left: at_once + 2 * MOST_AT_ONCE,
            ends: Vec::new(),
        }
    }

    fn launch_next(&mut self, queue: &mut FeedLaunchAndRankStartRequests) {
        self.left -= 1;
        queue.begin_launch(LaunchRequest::default());
    }

    /// Returns the mean time between the ends of launches. Ignores the ends that are affected by the first launches.
    fn mean_end_interval(&self) -> Span {
        let last = self.ends.len() - 1;
        let first = last - MOST_AT_ONCE as usize;
        let all = self.ends[last].since(self.ends[first]);
        Span(all.0 / u64::from(MOST_AT_ONCE))
    }
}

impl LaunchFeed for FixedConcurrencyFeed {
    fn next_wake_time(&self) -> Option<Time> {
        self.ends
            .is_empty()
            .then_some(Time::ZERO)
            .filter(|_| self.at_once > 0)
    }

    fn on_wake(&mut self, _now: Time, queue: &mut FeedLaunchAndRankStartRequests) {
        (0..std::mem::take(&mut self.at_once)).for_each(|_| self.launch_next(queue));
    }

    fn on_launch_ended(
        &mut self,
        now: Time,
        _ended: &ProgramLaunchRecord,
        queue: &mut FeedLaunchAndRankStartRequests,
    ) {
        self.ends.push(now);
        if self.left > 0 {
            self.launch_next(queue);
        }
    }
}
