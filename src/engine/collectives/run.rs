//! A collective in flight, message by message: its chunks, and the progress of each at each member.

use super::direction_matching::UnsortedMessage;
use super::fast_forward::ArrivalWave;
use super::recorded::WaitTotals;
use super::rehearsal::CollectiveRehearsal;
use super::schedule_cache::{ScheduleCache, StageRef};
use crate::discipline::CollectiveModel;
use crate::ids::{CellIndex, GroupIndex, SharedStage};
use crate::plan::{GroupPlan, NONE};
use chakram_base::ids::{MemberIndex, NodeIndex, Position, Rank, StageIndex};
use chakram_base::units::{Span, Time};
use chakram_hardware::collective::{ChunkSchedule, CollectiveRequest, LinePosition};
use chakram_hardware::network::PortRange;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Stage of a chunk that has not begun any at a member.
pub(super) const OUTSIDE: StageIndex = StageIndex(u16::MAX);

/// One collective of one group, from its first arrival to its last completion.
#[derive(Debug)]
pub struct CollectiveRun {
    /// Index among the groups of launches in flight.
    pub(super) group: GroupIndex,
    /// Number of the group among those of all launches.
    pub(super) number: u32,
    /// Number of the group's collectives before this one.
    pub(super) sequence: u32,
    /// Collective that is carried out.
    pub(super) request: Option<CollectiveRequest>,
    /// The root's position.
    pub(super) root: Position,
    pub(super) arrivals: MemberArrivals,
    /// Number of its schedule in [`ScheduleCache`](super::schedule_cache::ScheduleCache).
    pub(super) schedule: u32,
    /// Number of each position's schedule, where members carry out different collectives whose messages are the same
    /// along each common line; empty otherwise.
    pub(super) own_schedules: Vec<u32>,
    /// Chunks, as the schedule has them.
    pub(super) chunks: u32,
    /// Strands of a chunk, at most: 2 where a stage goes both ways round a ring.
    pub(super) strands: u32,
    /// Stages that each chunk passes.
    pub(super) length: usize,
    pub(super) recorded: RecordedParts,
    pub(super) answer: ClosedAnswer,
    /// Messages that the network has carried for it.
    pub(super) messages: u64,
    /// State of the stepwise run, once it goes message by message.
    pub(super) progress: Option<StepwiseProgress>,
}

/// Members of a collective that have arrived.
#[derive(Debug, Default)]
pub(super) struct MemberArrivals {
    /// Node of each member, [`NONE`] before it arrives and for absent members.
    pub nodes: Vec<u32>,
    /// Arrival time of each member.
    pub starts: Vec<Time>,
    /// Present members that have arrived.
    pub arrived: u32,
    /// Arrival time of the first member.
    pub first: Time,
    /// Arrival time of the last member.
    pub last: Time,
    /// Members that arrived at this instant.
    pub arrived_now: Vec<MemberIndex>,
    /// Members in the order of their ends, where that is proved; empty where they end in their own order.
    pub ends: Vec<MemberIndex>,
}

/// Parts of the members of a collective that lasts as recorded.
#[derive(Debug, Default)]
pub(super) struct RecordedParts {
    /// Start of each member's part, [`Time::END`] before.
    pub begins: Vec<Time>,
    /// End of the last of those parts.
    pub end: Time,
    /// The longest recorded duration of a member.
    pub transfer: Span,
}

/// Answer of a collective by closed form.
#[derive(Debug, Default)]
pub(super) struct ClosedAnswer {
    /// Number of the closed-form answer that can still be taken back; 0 if there is none.
    pub number: u32,
    /// Settlement of its instant in which that answer was given.
    pub settlement: u32,
    /// Whether it was answered by closed form until other traffic touched its links.
    pub materialized: bool,
    /// Start of the answer.
    pub start: Time,
    /// Whether its links are held until all members have arrived, and when the last of those before did.
    pub is_held: bool,
    pub last_wave: Time,
    /// Whether members arrived at instants of their own, and not all count as arrived at the start.
    pub is_skewed: bool,
    /// The rehearsal that answers it, and the number of members that have been told their end.
    pub rehearsal: Option<Arc<CollectiveRehearsal>>,
    pub told: u32,
}

impl ClosedAnswer {
    /// Whether the member at a position has ended by a rehearsal.
    pub fn has_told(&self, position: Position) -> bool {
        let ends = self.rehearsal.iter().flat_map(|rehearsal| &rehearsal.ends);
        ends.take(self.told as usize)
            .any(|&(_, told)| told == position)
    }
}

impl MemberArrivals {
    /// Members that have arrived and are settled, all at `start` or each when it arrived.
    pub fn waves(&self, skewed: bool, start: Time) -> Vec<ArrivalWave> {
        let members = (0..)
            .map(MemberIndex)
            .zip(self.nodes.iter().zip(&self.starts));
        let present = members.filter(|(_, (node, _))| **node != NONE);
        let mut arrivals: Vec<(Time, MemberIndex)> = present
            .map(|(member, (_, at))| (if skewed { *at } else { start }, member))
            .filter(|(_, member)| !skewed || !self.arrived_now.contains(member))
            .collect();
        arrivals.sort_unstable();
        let waves = arrivals.chunk_by(|a, b| a.0 == b.0);
        let members =
            |wave: &[(Time, MemberIndex)]| wave.iter().map(|&(_, member)| member).collect();
        waves.map(|wave| (wave[0].0, members(wave))).collect()
    }
}

/// Progress of a chunk at a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkProgress {
    /// Stage that it is in; the number of stages when it is done, [`OUTSIDE`] before the first.
    pub stage: StageIndex,
    /// Whether it has been admitted to its stage, and, where that has two strands, has not ended it.
    pub begun: bool,
    /// Whether a message whose departure matters, the last of the stage or any paced one, has yet to leave.
    pub leaving: bool,
    /// Steps taken in its stage.
    pub taken: u32,
    /// Messages that have arrived and whose receive was posted.
    pub arrived: u32,
    /// Credits earned, those that steps have used included.
    pub credits: u32,
}

/// Place of a cell: its stage, its queue slot, and its position on the line; no position where its member has no part in the stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct CellPlace {
    pub stage: StageRef,
    pub queue_slot: u16,
    pub line: Option<LinePosition>,
}

/// Place of a cell whose member has a part in the stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinePlace {
    pub stage: StageRef,
    pub queue_slot: u16,
    pub line: LinePosition,
}

/// Admission of a member's chunks to a phase.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AdmissionProgress {
    /// Index of the next passage.
    pub next: u32,
    /// Chunks inside.
    pub inside: u32,
}

/// Progress of each chunk at each position.
#[derive(Debug)]
pub(super) struct StepwiseProgress {
    pub ports: PortRange,
    /// By chunk, strand and position. The second strand is in use in stages that have one.
    pub cells: Vec<ChunkProgress>,
    /// Queue, direction and tree of each passage through a stage ([`IssueDiscipline::queue_slot`](chakram_hardware::collective::IssueDiscipline::queue_slot)), by cell and
    /// stage.
    pub queue_slots: Vec<u16>,
    /// By position and phase, where chunks are admitted in a fixed order.
    pub admission: Vec<AdmissionProgress>,
    /// Messages that arrived before their receiver was in their stage, by cell and stage as members know it.
    pub waiting: Vec<u32>,
    /// Messages and rendezvous requests that came in their stage but before their step: by cell, stage, number of
    /// steps that the cell has to have taken, and whether it is a request.
    pub early: BTreeMap<(CellIndex, SharedStage, u32, bool), u32>,
    /// Chunks that are done, by position.
    pub done: Vec<u32>,
    /// Positions of which all chunks are done.
    pub ended: u32,
    /// Messages and requests that came before their receiver was enrolled, by cell, where members may run one stage
    /// in different directions.
    pub unsorted: BTreeMap<CellIndex, Vec<UnsortedMessage>>,
    /// In that case, the position that was enrolled first.
    pub first: Option<Position>,
    /// In that case, whether members do run different directions: a message may then have no receiver.
    pub mixed: bool,
    /// Positions of a sender and a receiver that never receives from it, the first such pair.
    pub crossing: Option<(Position, Position)>,
}

/// A collective as its first member finds it.
pub(super) struct RunStart {
    pub group: GroupIndex,
    /// The group's number among all of the replay.
    pub number: u32,
    /// Number of the group's collectives before this one.
    pub sequence: u32,
    pub request: CollectiveRequest,
    pub root: Position,
    pub members: usize,
    /// Number of its schedule.
    pub schedule: u32,
}

impl Default for CollectiveRun {
    fn default() -> Self {
        Self {
            group: GroupIndex(0),
            number: 0,
            sequence: 0,
            request: None,
            root: Position(0),
            arrivals: MemberArrivals::default(),
            schedule: 0,
            own_schedules: Vec::new(),
            chunks: 0,
            strands: 1,
            length: 0,
            recorded: RecordedParts::default(),
            answer: ClosedAnswer::default(),
            messages: 0,
            progress: None,
        }
    }
}

impl CollectiveRun {
    /// Node of each member, [`NONE`] before it arrives and for absent members.
    pub fn nodes(&self) -> &[u32] {
        &self.arrivals.nodes
    }

    /// Number of the group's collectives before this one.
    pub fn sequence(&self) -> u32 {
        self.sequence
    }

    /// Resets a used run for another collective.
    pub(super) fn reset<S: Copy>(&mut self, of: RunStart, schedule: &ChunkSchedule<S>) {
        (self.group, self.number, self.sequence) = (of.group, of.number, of.sequence);
        (self.request, self.root) = (Some(of.request), of.root);
        // Lists keep their allocations: the loop allocates nothing once it is warm.
        self.arrivals.nodes.clear();
        self.arrivals.nodes.resize(of.members, NONE);
        self.arrivals.starts.clear();
        self.arrivals.starts.resize(of.members, Time::ZERO);
        self.arrivals.arrived = 0;
        self.arrivals.arrived_now.clear();
        self.arrivals.ends.clear();
        self.own_schedules.clear();
        self.progress = None;
        self.answer = ClosedAnswer::default();
        self.messages = 0;
        self.recorded.begins.clear();
        (self.recorded.end, self.recorded.transfer) = (Time::ZERO, Span::ZERO);
        self.schedule = of.schedule;
        (self.chunks, self.length) = (schedule.chunks(), schedule.length());
        self.strands = schedule.strands();
    }

    /// Records the arrival of `member` with its node.
    pub(super) fn arrive(&mut self, now: Time, member: MemberIndex, node: NodeIndex) {
        if self.arrivals.arrived == 0 {
            self.arrivals.first = now;
        }
        self.arrivals.last = now;
        self.arrivals.arrived += 1;
        self.arrivals.nodes[member.index()] = node.0;
        self.arrivals.starts[member.index()] = now;
    }

    /// Returns the rank with a trace that started last; of several the lowest.
    pub(super) fn last_to_start(&self, plan: &GroupPlan) -> Rank {
        let late = self
            .arrivals
            .starts
            .iter()
            .zip(&self.arrivals.nodes)
            .zip(&plan.members)
            .filter(|((start, node), _)| **start == self.arrivals.last && **node != NONE);
        // The lowest rank, so that the order of arrivals within the instant does not matter.
        let ranks = late.map(|(_, rank)| *rank).min();
        ranks.expect("somebody started last")
    }

    /// Returns the total time that members waited for the last to start, and that rank with its share.
    pub(super) fn waiting(&self, plan: &GroupPlan) -> WaitTotals {
        let present = self
            .arrivals
            .nodes
            .iter()
            .zip(&self.arrivals.starts)
            .filter(|(n, _)| **n != NONE);
        let waited = present
            .map(|(_, start)| self.arrivals.last.since(*start))
            .sum();
        let late =
            (self.arrivals.first < self.arrivals.last).then(|| (self.last_to_start(plan), waited));
        (waited, late)
    }

    /// Begins to run message by message through `ports`, with `phases` phases at each member to which chunks are
    /// admitted in a fixed order.
    pub(super) fn begin(&mut self, ports: PortRange, phases: usize) {
        let members = self.arrivals.nodes.len();
        // Bounded by `too_large` before.
        let cells = members * self.chunks as usize * self.strands as usize;
        let outside = ChunkProgress {
            stage: OUTSIDE,
            begun: false,
            leaving: false,
            taken: 0,
            arrived: 0,
            credits: 0,
        };
        self.progress = Some(StepwiseProgress {
            ports,
            cells: vec![outside; cells],
            queue_slots: vec![0; cells * self.length],
            waiting: vec![0; cells * self.length],
            admission: vec![AdmissionProgress::default(); members * phases],
            early: BTreeMap::new(),
            done: vec![0; members],
            ended: 0,
            unsorted: BTreeMap::new(),
            first: None,
            mixed: false,
            crossing: None,
        });
    }

    /// Returns the number of the schedule of the member at a position.
    #[inline]
    pub(super) fn schedule_at(&self, position: Position) -> u32 {
        if self.own_schedules.is_empty() {
            self.schedule
        } else {
            self.own_schedules[position.index()]
        }
    }

    /// Returns the cell of a chunk at a position; where chunks have strands, that of the first strand.
    #[inline]
    pub(super) fn cell(&self, chunk: u32, position: Position) -> CellIndex {
        CellIndex(chunk * self.strands * self.arrivals.nodes.len() as u32 + position.0)
    }

    /// Returns the cell of the other strand.
    #[inline]
    pub(super) fn other_strand(&self, cell: CellIndex) -> CellIndex {
        let members = self.arrivals.nodes.len() as u32;
        match self.strand(cell) {
            0 => CellIndex(cell.0 + members),
            _ => CellIndex(cell.0 - members),
        }
    }

    /// Returns the strand of a cell.
    #[inline]
    pub(super) fn strand(&self, cell: CellIndex) -> u32 {
        match self.strands {
            // One strand is the common case, and spares the division.
            1 => 0,
            strands => cell.0 / self.arrivals.nodes.len() as u32 % strands,
        }
    }

    /// Returns the chunk of a cell.
    #[inline]
    pub(super) fn chunk(&self, cell: CellIndex) -> u32 {
        match self.chunks {
            1 => 0,
            _ => cell.0 / (self.arrivals.nodes.len() as u32 * self.strands),
        }
    }

    /// Returns the chunk of a cell, or any other if all chunks have one schedule.
    #[inline]
    pub(super) fn chunk_in<S: Copy>(&self, schedule: &ChunkSchedule<S>, cell: CellIndex) -> u32 {
        if schedule.is_uniform() {
            0
        } else {
            self.chunk(cell)
        }
    }

    /// Returns the position of a cell.
    #[inline]
    pub(super) fn position(&self, cell: CellIndex) -> Position {
        match self.chunks * self.strands {
            1 => Position(cell.0),
            _ => Position(cell.0 % self.arrivals.nodes.len() as u32),
        }
    }

    /// Returns the place of a cell, `None` when it is done or outside.
    // Always inline: values that are written to memory piece by piece and read as a whole stall the processor.
    #[inline(always)]
    pub(super) fn place<M: CollectiveModel>(
        &self,
        cell: CellIndex,
        schedules: &ScheduleCache<M::Stage>,
        plan: &GroupPlan,
        backend: &M,
    ) -> Option<CellPlace> {
        let progress = self.progress.as_ref()?;
        let position = self.position(cell);
        let number = progress.cells[cell.index()].stage;
        let own = self.schedule_at(position);
        let schedule = schedules.get(own);
        let index = schedule.stage_index(self.chunk_in(schedule, cell), number)?;
        let stage = StageRef {
            schedule: own,
            index: index as u32,
        };
        let queue_slot = progress.queue_slots[cell.index() * self.length + number.index()];
        let of = &schedule.stages()[index];
        let line = backend.line_position(&plan.extent, of, position, self.root);
        let line = match self.strand(cell) {
            0 => line,
            _ => line.map(LinePosition::reversed),
        };
        Some(CellPlace {
            stage,
            queue_slot,
            line,
        })
    }
}

impl StepwiseProgress {
    /// Defers a message or request until `cell` has taken `taken` steps.
    pub(super) fn defer(
        &mut self,
        cell: CellIndex,
        stage: SharedStage,
        taken: u32,
        is_request: bool,
    ) {
        *self
            .early
            .entry((cell, stage, taken, is_request))
            .or_insert(0) += 1;
    }

    /// Removes the messages or requests deferred until `cell` had taken `taken` steps, and returns their number.
    #[inline]
    pub(super) fn take_deferred(
        &mut self,
        cell: CellIndex,
        stage: SharedStage,
        taken: u32,
        is_request: bool,
    ) -> u32 {
        if self.early.is_empty() {
            0
        } else {
            self.early
                .remove(&(cell, stage, taken, is_request))
                .unwrap_or(0)
        }
    }
}
