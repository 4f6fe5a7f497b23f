//! Computes the times of collectives and messages: runs all ranks through the job, and lets each meeting end once all
//! its members have arrived.

use super::Options;
use super::cost::{hash_to_random_number, simulated_transfer_duration};
use super::layout::JobGroupsAndCommunications;
use super::program::StepProgram;
use super::simulate::{
    CommunicationAccess, CommunicationWaiterKind, EventRecorder, RankPace, SimulatedRankState,
};

/// One member's part in a meeting (collective or message); times are in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OneMemberCommunicationTimes {
    pub start: u64,
    pub end: u64,
    pub waited: Option<(CommunicationWaiterKind, u64, u64)>,
}

/// A rank's parts in meetings (collectives and messages), by step in program order.
#[derive(Clone, Debug, Default)]
pub(super) struct RankCommunicationHistory {
    pub parts: Vec<OneMemberCommunicationTimes>,
    per_step: usize,
}

impl RankCommunicationHistory {
    fn communication_position(&self, step: u32, m: u32) -> usize {
        step as usize * self.per_step + m as usize
    }

    /// Returns the rank's parts in the collectives and messages of one step.
    pub(super) fn communications_of_step(&self, step: u32) -> &[OneMemberCommunicationTimes] {
        &self.parts[self.communication_position(step, 0)..self.communication_position(step + 1, 0)]
    }
}

/// Looks up a rank's meetings in its history, so that the rank can run again.
pub(super) struct RankCommunicationHistoryReplay<'h>(pub &'h RankCommunicationHistory);

impl CommunicationAccess for RankCommunicationHistoryReplay<'_> {
    fn record_own_meeting_start(&mut self, step: u32, m: u32, start: u64) {
        let known = self.0.parts[self.0.communication_position(step, m)].start;
        assert_eq!(known, start, "a rank does the same when it is asked again");
    }
    fn meeting_end(&self, step: u32, m: u32) -> Option<u64> {
        Some(self.0.parts[self.0.communication_position(step, m)].end)
    }
    fn record_wait(&mut self, _: u32, _: u32, _: CommunicationWaiterKind, _: u64, _: u64) {}
}

/// Number of a rank's events, the start of its first event, and the end of its last event.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RankEventCountsAndLastEnd {
    pub ops: u64,
    pub calls: u64,
    pub kernels: u64,
    pub copies: u64,
    pub last: u64,
    depth: u32,
}

/// Counts a rank's events. A step starts and ends with its outermost operator.
struct EventCountAndStepTimeRecorder<'a>(
    &'a mut RankEventCountsAndLastEnd,
    &'a StepProgram,
    &'a mut Vec<(u64, u64)>,
);

impl EventRecorder for EventCountAndStepTimeRecorder<'_> {
    fn enter_operator(&mut self, _: u32, at: u64) {
        if self.0.depth == 0 {
            self.2.push((at, at));
        }
        self.0.depth += 1;
        self.0.ops += 1;
    }
    fn exit_operator(&mut self, at: u64) {
        self.0.depth -= 1;
        if let (0, Some(step)) = (self.0.depth, self.2.last_mut()) {
            step.1 = at;
        }
        self.0.last = self.0.last.max(at);
    }
    fn record_meeting(&mut self, _: u32, _: Option<u8>, _: u64, _: u64) {
        self.0.ops += 1;
    }
    fn record_call(&mut self, _: super::simulate::RuntimeCall, at: u64, ns: u64, _: u64) {
        self.0.calls += 1;
        self.0.last = self.0.last.max(at + ns);
    }
    fn record_device_work(
        &mut self,
        what: super::simulate::StreamWork,
        _: u32,
        at: u64,
        ns: u64,
        _: u64,
    ) {
        use super::simulate::StreamWork;
        match what {
            StreamWork::Kernel(kernel) if self.1.kernels[kernel as usize].copy.is_some() => {
                self.0.copies += 1;
            }
            StreamWork::Kernel(_) | StreamWork::Collective(_) => self.0.kernels += 1,
            _ => {}
        }
        self.0.last = self.0.last.max(at + ns);
    }
}

/// Result of a simulation: histories, tallies and steps of all ranks.
#[derive(Debug)]
pub(super) struct SimulatedHistoriesAndTallies {
    pub histories: Vec<RankCommunicationHistory>,
    pub tallies: Vec<RankEventCountsAndLastEnd>,
    /// Start and end of each step, for each rank.
    pub steps: Vec<Vec<(u64, u64)>>,
}

/// Number of members that have arrived at a meeting in the current step, and the latest start among them.
#[derive(Clone, Default)]
struct ArrivalCountAndLatestStart {
    arrived: u32,
    last: u64,
}

/// Returns the speed of `rank`.
pub(super) fn pace_of_rank(options: &Options, rank: u32) -> RankPace {
    let found = options.stragglers.iter().rev().find(|(r, _)| *r == rank);
    RankPace {
        seed: options.seed,
        rank,
        straggle: found.map_or(1000, |(_, factor)| *factor),
        skew: options.skew,
    }
}

/// Returns the clock of `rank` before the first step.
pub(super) fn create_rank_clock_before_first_step(
    options: &Options,
    rank: u32,
) -> SimulatedRankState {
    let late = options.late.iter().rev().find(|(r, _)| *r == rank);
    SimulatedRankState::new(pace_of_rank(options, rank), late.map_or(0, |(_, ns)| *ns))
}

/// One rank's view of its meetings (collectives and messages) while the ends of some are unknown.
struct LiveRankCommunicationAccess<'a> {
    history: &'a mut RankCommunicationHistory,
    rank: u32,
    layout: &'a JobGroupsAndCommunications,
    program: &'a StepProgram,
    gatherings: &'a mut [ArrivalCountAndLatestStart],
    arrived: &'a mut Vec<u32>,
}

impl CommunicationAccess for LiveRankCommunicationAccess<'_> {
    fn record_own_meeting_start(&mut self, step: u32, m: u32, start: u64) {
        let at = self.history.communication_position(step, m);
        self.history.parts[at] = OneMemberCommunicationTimes {
            start,
            end: u64::MAX,
            waited: None,
        };
        let global = self
            .layout
            .global_communication_index(&self.program.meets[m as usize], self.rank);
        let gathering = &mut self.gatherings[global as usize];
        gathering.arrived += 1;
        gathering.last = gathering.last.max(start);
        self.arrived.push(global);
    }
    fn meeting_end(&self, step: u32, m: u32) -> Option<u64> {
        let end = self.history.parts[self.history.communication_position(step, m)].end;
        (end != u64::MAX).then_some(end)
    }
    fn record_wait(
        &mut self,
        step: u32,
        m: u32,
        by: CommunicationWaiterKind,
        from: u64,
        until: u64,
    ) {
        let at = self.history.communication_position(step, m);
        self.history.parts[at].waited = Some((by, from, until));
    }
}

/// Runs all ranks through the whole job, and returns their histories.
pub(super) fn simulate_job(
    options: &Options,
    layout: &JobGroupsAndCommunications,
    programs: &[StepProgram],
) -> SimulatedHistoriesAndTallies {
    let ranks = options.ranks as usize;
    // In the generated job, either all ranks run the same program, or each rank has its own.
    let program = |rank: usize| &programs[rank.min(programs.len() - 1)];
    let mut clocks: Vec<_> = (0..options.ranks)
        .map(|rank| create_rank_clock_before_first_step(options, rank))
        .collect();
    let mut outcome = SimulatedHistoriesAndTallies {
        histories: (0..ranks)
            .map(|rank| {
                let per_step = program(rank).meets.len();
                let none = OneMemberCommunicationTimes {
                    start: 0,
                    end: u64::MAX,
                    waited: None,
                };
                RankCommunicationHistory {
                    parts: vec![none; per_step * options.steps as usize],
                    per_step,
                }
            })
            .collect(),
        tallies: vec![RankEventCountsAndLastEnd::default(); ranks],
        steps: vec![Vec::new(); ranks],
    };
    // Members of each meeting: each entry gives a member's rank, and the meeting's index in that rank's program.
    let mut members: Vec<Vec<(u32, u32)>> = vec![Vec::new(); layout.meetings.len()];
    for rank in 0..options.ranks {
        for (m, meet) in program(rank as usize).meets.iter().enumerate() {
            let global = layout.global_communication_index(meet, rank);
            members[global as usize].push((rank, m as u32));
        }
    }
    let mut arrived = Vec::new();
    for step in 0..options.steps {
        let mut gatherings = vec![ArrivalCountAndLatestStart::default(); layout.meetings.len()];
        let mut ready: Vec<u32> = (0..options.ranks).rev().collect();
        let mut done = vec![false; ranks];
        while let Some(rank) = ready.pop() {
            let rank = rank as usize;
            if done[rank] {
                continue;
            }
            arrived.clear();
            let mut live = LiveRankCommunicationAccess {
                history: &mut outcome.histories[rank],
                rank: rank as u32,
                layout,
                program: program(rank),
                gatherings: &mut gatherings,
                arrived: &mut arrived,
            };
            let mut counting = EventCountAndStepTimeRecorder(
                &mut outcome.tallies[rank],
                program(rank),
                &mut outcome.steps[rank],
            );
            done[rank] = clocks[rank].run_until_step_end_or_unknown_meeting(
                program(rank),
                &mut live,
                &mut counting,
            );
            for global in arrived.drain(..) {
                let who = &members[global as usize];
                let gathering = &gatherings[global as usize];
                if (gathering.arrived as usize) < who.len() {
                    continue;
                }
                let meeting = &layout.meetings[global as usize];
                let count = layout.groups[meeting.group as usize].ranks.len() as u32;
                let bandwidth = options.bandwidth;
                let ns =
                    simulated_transfer_duration(meeting.exchange, meeting.bytes, count, bandwidth);
                for (member, m) in who {
                    let key = u64::from(step) << 32 | u64::from(global);
                    let late = hash_to_random_number([options.seed ^ 0xe4d, (*member).into(), key]);
                    let late = late % (u64::from(options.jitter) + 1);
                    let history = &mut outcome.histories[*member as usize];
                    let at = history.communication_position(step, *m);
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
