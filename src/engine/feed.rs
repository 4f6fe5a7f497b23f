//! Feeds: sources that request launches of programs.

use super::launch::{FeedLaunchAndRankStartRequests, LaunchRequest, ProgramLaunchRecord};
use chakram_base::ids::Rank;
use chakram_base::units::{Span, Time};
use serde::{Deserialize, Serialize};

mod repeated;
mod timed;

pub use repeated::RepeatedLaunchFeed;
pub use timed::TimedLaunchFeed;

/// A source of launches of programs. A job is a feed that launches one program at time 0.
///
/// After a round's events, the engine first notifies each feed of the ranks and launches that have ended, in ascending
/// order. It then wakes the feed if the requested time has come. After each notification, the engine carries out the
/// feed's requests before it sends the next one. Feeds are notified in the order in which the caller passed them to the
/// run.
pub trait LaunchFeed {
    /// Returns the instant at which the feed next wants to be woken, or `None` for never. The engine calls this method
    /// before the run and after each notification below. A past instant means "now", so time advances only once the
    /// feed returns a later one.
    fn next_wake_time(&self) -> Option<Time>;

    /// Notifies the feed that the instant returned by [`Self::next_wake_time`] has been reached.
    fn on_wake(&mut self, now: Time, queue: &mut FeedLaunchAndRankStartRequests);

    /// Returns the start and end of each of the feed's launches that have ended, in order. Returns an empty list if the
    /// feed does not keep these times.
    fn step_starts_and_ends(&self) -> &[TrainingStepStartAndEnd] {
        &[]
    }

    /// Notifies the feed that all nodes of one of its launches are complete.
    fn on_launch_ended(
        &mut self,
        _now: Time,
        _ended: &ProgramLaunchRecord,
        _queue: &mut FeedLaunchAndRankStartRequests,
    ) {
    }

    /// Notifies the feed that one rank has completed all its nodes in one of the feed's launches.
    fn on_rank_ended(
        &mut self,
        _now: Time,
        _launch: &ProgramLaunchRecord,
        _rank: Rank,
        _queue: &mut FeedLaunchAndRankStartRequests,
    ) {
    }
}

/// Start and end of a training step, over all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct TrainingStepStartAndEnd {
    /// Time at which the first rank starts the step.
    #[serde(rename = "begin_ps")]
    pub begin: Span,
    /// Time at which the last rank ends the step.
    #[serde(rename = "end_ps")]
    pub end: Span,
}

/// The feed of a job: launches its program once, at time 0.
#[derive(Debug, Default)]
pub struct SingleLaunchFeed {
    /// Index of the program in the run.
    program: u32,
    launched: bool,
}

impl SingleLaunchFeed {
    /// Creates a feed that launches program `program` at time 0.
    pub fn of_program(program: u32) -> Self {
        Self {
            program,
            launched: false,
        }
    }
}

impl LaunchFeed for SingleLaunchFeed {
    fn next_wake_time(&self) -> Option<Time> {
        (!self.launched).then_some(Time::ZERO)
    }

    fn on_wake(&mut self, _now: Time, queue: &mut FeedLaunchAndRankStartRequests) {
        self.launched = true;
        let program = self.program;
        queue.begin_launch(LaunchRequest {
            program,
            ..LaunchRequest::default()
        });
    }
}
