//! Launches a program at given instants.

use super::LaunchFeed;
use crate::launch::{FeedLaunchAndRankStartRequests, LaunchRequest};
use chakram_base::units::Time;

/// A feed that launches a program at given instants.
#[derive(Debug)]
pub struct TimedLaunchFeed {
    program: u32,
    /// Remaining instants in descending order, so that the next instant can be popped from the end.
    times: Vec<Time>,
    /// Number of launches so far; this number becomes the tag of the next launch.
    launched: u64,
}

impl TimedLaunchFeed {
    /// Creates a feed that launches program `program` at each of `times`, which may be in any order. Launches get the
    /// tags 0, 1, 2, ... in the order of time.
    pub fn new(program: u32, mut times: Vec<Time>) -> Self {
        times.sort_unstable_by(|a, b| b.cmp(a));
        Self {
            program,
            times,
            launched: 0,
        }
    }
}

impl LaunchFeed for TimedLaunchFeed {
    fn next_wake_time(&self) -> Option<Time> {
        self.times.last().copied()
    }

    fn on_wake(&mut self, now: Time, queue: &mut FeedLaunchAndRankStartRequests) {
        while self.times.pop_if(|at| *at <= now).is_some() {
            queue.begin_launch(LaunchRequest {
                program: self.program,
                tag: self.launched,
                ..LaunchRequest::default()
            });
            self.launched += 1;
        }
    }
}
