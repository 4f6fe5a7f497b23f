//! Computes the times of collectives and messages: runs all ranks through the job, until every meeting has its
//! members.

use super::Options;
use super::cost::{draw, transfer};
use super::layout::Layout;
use super::program::Program;
use super::simulate::{Clock, Meetings, Pace, Recorder, Waiter};

/// One member's part in a meeting; times in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub start: u64,
    pub end: u64,
    pub waited: Option<(Waiter, u64, u64)>,
}

/// A rank's parts in meetings, by step and in program order.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pub parts: Vec<Part>,
    per_step: usize,
}

impl History {
    fn at(&self, step: u32, m: u32) -> usize {
        step as usize * self.per_step + m as usize
    }

    /// Returns the parts of one step.
    pub(super) fn step(&self, step: u32) -> &[Part] {
        &self.parts[self.at(step, 0)..self.at(step + 1, 0)]
    }
}

/// Answers a rank's questions from its history, so that its run can be repeated.
pub(super) struct Again<'h>(pub &'h History);

impl Meetings for Again<'_> {
    fn arrive(&mut self, step: u32, m: u32, start: u64) {
        let known = self.0.parts[self.0.at(step, m)].start;
        assert_eq!(known, start, "a rank does the same when it is asked again");
    }
    fn end(&self, step: u32, m: u32) -> Option<u64> {
        Some(self.0.parts[self.0.at(step, m)].end)
    }
    fn waited(&mut self, _: u32, _: u32, _: Waiter, _: u64, _: u64) {}
}

/// Counts of a rank's events, with the first start and the last end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub ops: u64,
    pub calls: u64,
    pub kernels: u64,
    pub copies: u64,
    pub last: u64,
    depth: u32,
}

/// Counts events. The start and end of a step are those of its outermost operator.
struct Counting<'a>(&'a mut Tally, &'a Program, &'a mut Vec<(u64, u64)>);

impl Recorder for Counting<'_> {
    fn enter(&mut self, _: u32, at: u64) {
        if self.0.depth == 0 {
            self.2.push((at, at));
        }
        self.0.depth += 1;
        self.0.ops += 1;
    }
    fn exit(&mut self, at: u64) {
        self.0.depth -= 1;
        if let (0, Some(step)) = (self.0.depth, self.2.last_mut()) {
            step.1 = at;
        }
        self.0.last = self.0.last.max(at);
    }
    fn meet(&mut self, _: u32, _: Option<u8>, _: u64, _: u64) {
        self.0.ops += 1;
    }
    fn call(&mut self, _: super::simulate::Call, at: u64, ns: u64, _: u64) {
        self.0.calls += 1;
        self.0.last = self.0.last.max(at + ns);
    }
    fn device(&mut self, what: super::simulate::Device, _: u32, at: u64, ns: u64, _: u64) {
        use super::simulate::Device;
        match what {
            Device::Kernel(kernel) if self.1.kernels[kernel as usize].copy.is_some() => {
                self.0.copies += 1;
            }
            Device::Kernel(_) | Device::Collective(_) => self.0.kernels += 1,
            _ => {}
        }
        self.0.last = self.0.last.max(at + ns);
    }
}

/// Result of a simulation: histories, tallies and steps of all ranks.
#[derive(Debug)]
pub(super) struct Outcome {
    pub histories: Vec<History>,
    pub tallies: Vec<Tally>,
    /// Start and end of each step, by rank, then by step.
    pub steps: Vec<Vec<(u64, u64)>>,
}

/// Members of a meeting that have arrived in the current step, and the last start.
#[derive(Clone, Default)]
struct Gathering {
    arrived: u32,
    last: u64,
}

/// Returns the speed of `rank`.
pub(super) fn pace(options: &Options, rank: u32) -> Pace {
    let found = options.stragglers.iter().rev().find(|(r, _)| *r == rank);
    Pace {
        seed: options.seed,
        rank,
        straggle: found.map_or(1000, |(_, factor)| *factor),
        skew: options.skew,
    }
}

/// Returns the simulation of `rank` before the first step.
pub(super) fn clock(options: &Options, rank: u32) -> Clock {
    let late = options.late.iter().rev().find(|(r, _)| *r == rank);
    Clock::new(pace(options, rank), late.map_or(0, |(_, ns)| *ns))
}

/// One rank's view of the meetings while some ends are still unknown.
struct Live<'a> {
    history: &'a mut History,
    rank: u32,
    layout: &'a Layout,
    program: &'a Program,
    gatherings: &'a mut [Gathering],
    arrived: &'a mut Vec<u32>,
}

impl Meetings for Live<'_> {
    fn arrive(&mut self, step: u32, m: u32, start: u64) {
        let at = self.history.at(step, m);
        self.history.parts[at] = Part {
            start,
            end: u64::MAX,
            waited: None,
        };
        let global = self
            .layout
            .global(&self.program.meets[m as usize], self.rank);
        let gathering = &mut self.gatherings[global as usize];
        gathering.arrived += 1;
        gathering.last = gathering.last.max(start);
        self.arrived.push(global);
    }
    fn end(&self, step: u32, m: u32) -> Option<u64> {
        let end = self.history.parts[self.history.at(step, m)].end;
        (end != u64::MAX).then_some(end)
    }
    fn waited(&mut self, step: u32, m: u32, by: Waiter, from: u64, until: u64) {
        let at = self.history.at(step, m);
        self.history.parts[at].waited = Some((by, from, until));
    }
}

/// Runs all ranks through the whole job.
pub(super) fn simulate(options: &Options, layout: &Layout, programs: &[Program]) -> Outcome {
    let ranks = options.ranks as usize;
    // In the generated job, either all ranks share one program, or each rank has its own.
    let program = |rank: usize| &programs[rank.min(programs.len() - 1)];
    let mut clocks: Vec<_> = (0..options.ranks)
        .map(|rank| clock(options, rank))
        .collect();
    let mut outcome = Outcome {
        histories: (0..ranks)
            .map(|rank| {
                let per_step = program(rank).meets.len();
                let none = Part {
                    start: 0,
                    end: u64::MAX,
                    waited: None,
                };
                History {
                    parts: vec![none; per_step * options.steps as usize],
                    per_step,
                }
            })
            .collect(),
        tallies: vec![Tally::default(); ranks],
        steps: vec![Vec::new(); ranks],
    };
    // For each meeting, its members; each has the meeting's index in the member's program.
    let mut members: Vec<Vec<(u32, u32)>> = vec![Vec::new(); layout.meetings.len()];
    for rank in 0..options.ranks {
        for (m, meet) in program(rank as usize).meets.iter().enumerate() {
            let global = layout.global(meet, rank);
            members[global as usize].push((rank, m as u32));
        }
    }
    let mut arrived = Vec::new();
    for step in 0..options.steps {
        let mut gatherings = vec![Gathering::default(); layout.meetings.len()];
        let mut ready: Vec<u32> = (0..options.ranks).rev().collect();
        let mut done = vec![false; ranks];
        while let Some(rank) = ready.pop() {
            let rank = rank as usize;
            if done[rank] {
                continue;
            }
            arrived.clear();
            let mut live = Live {
                history: &mut outcome.histories[rank],
                rank: rank as u32,
                layout,
                program: program(rank),
                gatherings: &mut gatherings,
                arrived: &mut arrived,
            };
            let mut counting = Counting(
                &mut outcome.tallies[rank],
                program(rank),
                &mut outcome.steps[rank],
            );
            done[rank] = clocks[rank].run(program(rank), &mut live, &mut counting);
            for global in arrived.drain(..) {
                let who = &members[global as usize];
                let gathering = &gatherings[global as usize];
                if (gathering.arrived as usize) < who.len() {
                    continue;
                }
                let meeting = &layout.meetings[global as usize];
                let count = layout.groups[meeting.group as usize].ranks.len() as u32;
                let bandwidth = options.bandwidth;
                let ns = transfer(meeting.exchange, meeting.bytes, count, bandwidth);
                for (member, m) in who {
                    let key = u64::from(step) << 32 | u64::from(global);
                    let late = draw([options.seed ^ 0xe4d, (*member).into(), key]);
                    let late = late % (u64::from(options.jitter) + 1);
                    let history = &mut outcome.histories[*member as usize];
                    let at = history.at(step, *m);
                    history.parts[at].end = gathering.last + ns + late;
                    outcome.tallies[*member as usize].last = outcome.tallies[*member as usize]
                        .last
                        .max(gathering.last + ns + late);
                    ready.push(*member);
                }
            }
        }
        assert!(done.iter().all(|done| *done), "everybody meets everybody");
    }
    outcome
}
