//! Feeds: where launches come from.

use super::launch::{Launch, LaunchQueue, LaunchRecord, LaunchRelease, LaunchSerial};
use crate::ids::Rank;
use crate::units::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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

/// Beginning of a step on the first rank, and its end on the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StepTimes {
    /// Beginning on the first rank to begin.
    #[serde(rename = "begin_ps")]
    pub begin: Span,
    /// End on the last rank to end.
    #[serde(rename = "end_ps")]
    pub end: Span,
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

    /// Returns the times of the steps that have ended, in order.
    pub fn steps(&self) -> &[StepTimes] {
        &self.times
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

    fn launch_ended(&mut self, now: Time, ended: &LaunchRecord, _queue: &mut LaunchQueue) {
        self.steps[ended.tag as usize] = None;
        // A rank begins a step after it has ended the one before, so steps end in order.
        self.times.push(StepTimes {
            begin: ended.began.since(Time::ZERO),
            end: now.since(Time::ZERO),
        });
    }
}

/// A program at given instants.
#[derive(Debug)]
pub struct TimedLaunches {
    program: u32,
    /// In ascending order, the next one last.
    times: Vec<Time>,
    /// Number of launches so far, which is the tag of the next.
    launched: u64,
}

impl TimedLaunches {
    /// Returns a feed that launches the program numbered `program` at each of `times`, in any order. The k-th in
    /// time, from 0, has tag k.
    pub fn new(program: u32, mut times: Vec<Time>) -> Self {
        times.sort_unstable_by(|a, b| b.cmp(a));
        Self {
            program,
            times,
            launched: 0,
        }
    }
}

impl Feed for TimedLaunches {
    fn wake_at(&self) -> Option<Time> {
        self.times.last().copied()
    }

    fn woken(&mut self, now: Time, queue: &mut LaunchQueue) {
        while self.times.pop_if(|at| *at <= now).is_some() {
            queue.launch(Launch {
                program: self.program,
                tag: self.launched,
                ..Launch::default()
            });
            self.launched += 1;
        }
    }
}
