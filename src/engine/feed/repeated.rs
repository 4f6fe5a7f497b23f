//! Launches a program repeatedly. Each rank starts its next step as soon as it has ended the previous step.

use super::{LaunchFeed, TrainingStepStartAndEnd};
use crate::launch::{
    FeedLaunchAndRankStartRequests, LaunchRankReleaseMode, LaunchRequest, LaunchSerial,
    ProgramLaunchRecord,
};
use chakram_base::ids::Rank;
use chakram_base::units::Time;
use std::collections::BTreeMap;

/// A feed that launches a program repeatedly, for example for training steps.
///
/// A rank begins step k + 1 as soon as it has ended step k, independently of other ranks. No step begins before its
/// earliest start. A step's tag is its index, counting from 0.
#[derive(Debug)]
pub struct RepeatedLaunchFeed {
    program: u32,
    /// Earliest start of each step, in ascending order.
    starts: Vec<Time>,
    /// Launch of each step that has begun on some rank, by step index; [`None`] after all ranks have ended the step.
    steps: Vec<Option<LaunchSerial>>,
    /// Ranks that have ended their previous step and wait for the earliest start of their next one. The key is the
    /// index of the next step.
    early: BTreeMap<u64, Vec<Rank>>,
    times: Vec<TrainingStepStartAndEnd>,
}

impl RepeatedLaunchFeed {
    /// Creates a feed that launches program `program` `times` times, the first time at 0.
    pub fn new(program: u32, times: u32) -> Self {
        Self::at_times(program, vec![Time::ZERO; times as usize])
    }

    /// Creates a feed that launches program `program` once for each instant in `starts`, which may be in any order. A
    /// rank begins a launch at its instant, or after its previous launch if that ends later.
    pub fn at_times(program: u32, mut starts: Vec<Time>) -> Self {
        starts.sort_unstable();
        Self {
            program,
            starts,
            steps: Vec::new(),
            early: BTreeMap::new(),
            times: Vec::new(),
        }
    }

    /// Starts `step` on `rank`. The first rank that starts a step also launches it.
    fn start_step_on_rank(
        &mut self,
        step: u64,
        rank: Rank,
        queue: &mut FeedLaunchAndRankStartRequests,
    ) {
        if step == self.steps.len() as u64 {
            let serial = queue.begin_launch(LaunchRequest {
                program: self.program,
                tag: step,
                release: LaunchRankReleaseMode::ByRank,
                ..LaunchRequest::default()
            });
            self.steps.push(Some(serial));
        }
        if let Some(&Some(serial)) = self.steps.get(step as usize) {
            queue.request_rank_start_now(serial, rank);
        }
    }
}

impl LaunchFeed for RepeatedLaunchFeed {
    fn next_wake_time(&self) -> Option<Time> {
        // The first step does not wait for any rank. For a later step, the feed needs to be woken only if a rank is
        // ready for that step.
        match self.steps.is_empty() {
            true => self.starts.first().copied(),
            false => self
                .early
                .keys()
                .next()
                .map(|&step| self.starts[step as usize]),
        }
    }

    fn on_wake(&mut self, now: Time, queue: &mut FeedLaunchAndRankStartRequests) {
        if self.steps.is_empty() {
            let serial = queue.begin_launch(LaunchRequest {
                program: self.program,
                ..LaunchRequest::default()
            });
            self.steps.push(Some(serial));
        }
        while let Some(entry) = self.early.first_entry()
            && self.starts[*entry.key() as usize] <= now
        {
            let (step, ranks) = entry.remove_entry();
            ranks
                .into_iter()
                .for_each(|rank| self.start_step_on_rank(step, rank, queue));
        }
    }

    fn on_rank_ended(
        &mut self,
        now: Time,
        launch: &ProgramLaunchRecord,
        rank: Rank,
        queue: &mut FeedLaunchAndRankStartRequests,
    ) {
        let step = launch.tag + 1;
        match self.starts.get(step as usize) {
            None => {}
            Some(&start) if start > now => self.early.entry(step).or_default().push(rank),
            Some(_) => self.start_step_on_rank(step, rank, queue),
        }
    }

    fn step_starts_and_ends(&self) -> &[TrainingStepStartAndEnd] {
        &self.times
    }

    fn on_launch_ended(
        &mut self,
        now: Time,
        ended: &ProgramLaunchRecord,
        _queue: &mut FeedLaunchAndRankStartRequests,
    ) {
        self.steps[ended.tag as usize] = None;
        // Every rank executes its steps in order, so the steps also end in order.
        self.times.push(TrainingStepStartAndEnd {
            begin: ended.began.since(Time::ZERO),
            end: now.since(Time::ZERO),
        });
    }
}
