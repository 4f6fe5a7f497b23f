//! Feeds: where launches come from.

use super::launch::{Launch, LaunchQueue, LaunchRecord};
use chakram_base::ids::Rank;
use chakram_base::units::{Span, Time};
use serde::{Deserialize, Serialize};

mod repeated;
mod timed;

pub use repeated::RepeatedLaunch;
pub use timed::TimedLaunches;

/// A source of launches. A job is one with a single launch at 0.
///
/// A feed is told what happens when the events of a round are over: first which of its ranks and launches ended, in the
/// order of their numbers, then that it is woken. What it asks for happens at once, before it is told anything else.
/// Feeds are told in the order in which they were given.
pub trait Feed {
    /// Returns the instant at which it wants to be woken next, `None` for never. Asked before the run and after each of
    /// the calls below. An instant that has passed means now, so a feed has to answer with a later one in the end.
    fn wake_at(&self) -> Option<Time>;

    /// Wakes it: [`Self::wake_at`] is now.
    fn woken(&mut self, now: Time, queue: &mut LaunchQueue);

    /// Returns the times of its launches that ended, in order, if it keeps them for reports.
    fn steps(&self) -> &[StepTimes] {
        &[]
    }

    /// Tells it that all nodes of one of its launches are complete.
    fn launch_ended(&mut self, _now: Time, _ended: &LaunchRecord, _queue: &mut LaunchQueue) {}

    /// Tells it that all nodes of a rank of one of its launches are complete.
    fn rank_ended(
        &mut self,
        _now: Time,
        _launch: &LaunchRecord,
        _rank: Rank,
        _queue: &mut LaunchQueue,
    ) {
    }
}

/// Beginning of a step on the first rank, and its end on the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct StepTimes {
    /// Beginning on the first rank to begin.
    #[serde(rename = "begin_ps")]
    pub begin: Span,
    /// End on the last rank to end.
    #[serde(rename = "end_ps")]
    pub end: Span,
}

/// The feed of a job: its program once, at the start.
#[derive(Debug, Default)]
pub struct SingleLaunch {
    /// Index of the program among those of the run.
    program: u32,
    launched: bool,
}

impl SingleLaunch {
    /// Returns a feed that launches the program numbered `program` at 0.
    pub fn of(program: u32) -> Self {
        Self {
            program,
            launched: false,
        }
    }
}

impl Feed for SingleLaunch {
    fn wake_at(&self) -> Option<Time> {
        (!self.launched).then_some(Time::ZERO)
    }

    fn woken(&mut self, _now: Time, queue: &mut LaunchQueue) {
        self.launched = true;
        let program = self.program;
        queue.launch(Launch {
            program,
            ..Launch::default()
        });
    }
}
