//! A program several times, each rank again as soon as it has ended.

use super::{Feed, StepTimes};
use crate::launch::{Launch, LaunchQueue, LaunchRecord, LaunchRelease, LaunchSerial};
use chakram_base::ids::Rank;
use chakram_base::units::Time;
use std::collections::BTreeMap;

/// A program several times, each rank again as soon as it has ended: steps of training.
///
/// Step k + 1 of a rank begins when its step k has ended, whatever other ranks do, and not before the instant given for
/// it. The tag of a step is its number from 0.
#[derive(Debug)]
pub struct RepeatedLaunch {
    program: u32,
    /// The earliest beginning of each step, in ascending order.
    starts: Vec<Time>,
    /// Steps that have begun on some rank, by number; those that ended on all are [`None`].
    steps: Vec<Option<LaunchSerial>>,
    /// Ranks that have ended the step before, by the step that they wait for the start of.
    early: BTreeMap<u64, Vec<Rank>>,
    times: Vec<StepTimes>,
}

impl RepeatedLaunch {
    /// Returns a feed that launches the program numbered `program` so many `times`, first at 0.
    pub fn new(program: u32, times: u32) -> Self {
        Self::at(program, vec![Time::ZERO; times as usize])
    }

    /// Returns a feed that launches the program numbered `program` at each of `starts`, in any order, or as soon as a
    /// rank has ended the launch before.
    pub fn at(program: u32, mut starts: Vec<Time>) -> Self {
        starts.sort_unstable();
        Self {
            program,
            starts,
            steps: Vec::new(),
            early: BTreeMap::new(),
            times: Vec::new(),
        }
    }

    /// Lets `rank` begin `step`, which begins by that if the rank is the first.
    fn begin(&mut self, step: u64, rank: Rank, queue: &mut LaunchQueue) {
        if step == self.steps.len() as u64 {
            let serial = queue.launch(Launch {
                program: self.program,
                tag: step,
                release: LaunchRelease::ByRank,
                ..Launch::default()
            });
            self.steps.push(Some(serial));
        }
        if let Some(&Some(serial)) = self.steps.get(step as usize) {
            queue.release(serial, rank);
        }
    }
}

impl Feed for RepeatedLaunch {
    fn wake_at(&self) -> Option<Time> {
        // The first step waits for nobody; of the others those that some rank is ready for.
        match self.steps.is_empty() {
            true => self.starts.first().copied(),
            false => self
                .early
                .keys()
                .next()
                .map(|&step| self.starts[step as usize]),
        }
    }

    fn woken(&mut self, now: Time, queue: &mut LaunchQueue) {
        if self.steps.is_empty() {
            let serial = queue.launch(Launch {
                program: self.program,
                ..Launch::default()
            });
            self.steps.push(Some(serial));
        }
        while let Some(entry) = self.early.first_entry()
            && self.starts[*entry.key() as usize] <= now
        {
            let (step, ranks) = entry.remove_entry();
            ranks
                .into_iter()
                .for_each(|rank| self.begin(step, rank, queue));
        }
    }

    fn rank_ended(
        &mut self,
        now: Time,
        launch: &LaunchRecord,
        rank: Rank,
        queue: &mut LaunchQueue,
    ) {
        let step = launch.tag + 1;
        match self.starts.get(step as usize) {
            None => {}
            Some(&start) if start > now => self.early.entry(step).or_default().push(rank),
            Some(_) => self.begin(step, rank, queue),
        }
    }

    fn steps(&self) -> &[StepTimes] {
        &self.times
    }

    fn launch_ended(&mut self, now: Time, ended: &LaunchRecord, _queue: &mut LaunchQueue) {
        self.steps[ended.tag as usize] = None;
        // A rank begins a step after it has ended the one before, so steps end in order.
        self.times.push(StepTimes {
            begin: ended.began.since(Time::ZERO),
            end: now.since(Time::ZERO),
        });
    }
}
