//! A collective in flight, with the progress of each chunk at each member if the collective is simulated message by
//! message.
//!
//! Terms: a collective is split into *chunks*. Each chunk passes through *stages*, each in one phase of the group. In a
//! stage, the members on a *line* of the phase run a program of *steps*. A step sends one message and requires
//! *credits*, which a member earns by receiving and processing messages. A stage that uses both directions of a ring
//! has two *strands* per chunk. A *cell* is the state of one chunk (or strand) at one position of the group. A *queue
//! slot* is the backend's index for a chunk's passage through a stage; it also selects the direction or tree.

use super::direction_matching::MessageOrRequestWithSenderStepNumber;
use super::fast_forward::MembersArrivingTogether;
use super::recorded::TotalWaitAndCausingRank;
use super::rehearsal::RehearsedMemberEndsAndLinkUses;
use super::schedule_cache::{ScheduleCache, ScheduleStageRef};
use crate::discipline::RequiredCollectiveBackendTraits;
use crate::ids::{CellIndex, GroupIndex, SharedStage};
use crate::plan::{NONE, PlacedCommunicationGroup};
use chakram_base::ids::{MemberIndex, NodeIndex, Position, Rank, StageIndex};
use chakram_base::units::{Span, Time};
use chakram_hardware::collective::{ChunkStageSequences, CollectiveRequest, MemberLinePosition};
use chakram_hardware::network::ConsecutivePortsOpenedByOperation;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Sentinel stage of a chunk that has not begun its first stage at a member.
pub(super) const OUTSIDE: StageIndex = StageIndex(u16::MAX);

/// State of one collective of one group, from the first arrival to the last completion.
#[derive(Debug)]
pub struct CollectiveRun {
    /// Index of the group among the groups of all launches in flight.
    pub(super) group: GroupIndex,
    /// Index of the group among the groups of all launches. It orders messages at the same instant.
    pub(super) number: u32,
    /// Number of earlier collectives of the same group.
    pub(super) sequence: u32,
    /// The operation and its sizes, as the first member issued them.
    pub(super) request: Option<CollectiveRequest>,
    /// Position of the collective's root.
    pub(super) root: Position,
    pub(super) arrivals: MemberArrivals,
    /// Index of the schedule in [`ScheduleCache`](super::schedule_cache::ScheduleCache).
    pub(super) schedule: u32,
    /// Schedule index of each position, if members run different collectives that exchange equal messages along each
    /// common line. Empty if all members have the same schedule.
    pub(super) own_schedules: Vec<u32>,
    /// Number of chunks in the schedule.
    pub(super) chunks: u32,
    /// Maximum number of strands (concurrent halves of a chunk's stage). It is 2 if a stage uses both directions of a
    /// ring, otherwise 1.
    pub(super) strands: u32,
    /// Number of stages that each chunk passes through.
    pub(super) length: usize,
    pub(super) recorded: RecordedDurationMemberTimes,
    pub(super) answer: RevocableAnalyticalAnswerState,
    /// Number of messages that the network has carried for this collective.
    pub(super) messages: u64,
    /// State of the message-by-message simulation, or `None` before it begins.
    pub(super) progress: Option<MemberChunkProgressTable>,
}

/// Arrivals of a collective's members.
#[derive(Debug, Default)]
pub(super) struct MemberArrivals {
    /// Node of each member, or [`NONE`] before the member arrives and for absent members.
    pub nodes: Vec<u32>,
    /// Arrival time of each member.
    pub starts: Vec<Time>,
    /// How long each member had waited for other members when it arrived; empty if no member had waited.
    pub waits: Vec<Span>,
    /// Number of present members that have arrived.
    pub arrived: u32,
    /// Arrival time of the first member.
    pub first: Time,
    /// Arrival time of the last member.
    pub last: Time,
    /// Members that arrived at this instant.
    pub arrived_now: Vec<MemberIndex>,
    /// Members in the order in which they provably end; empty if they end in the order of their indices.
    pub ends: Vec<MemberIndex>,
}

/// Start and end times of members' parts, in a collective with a recorded duration.
#[derive(Debug, Default)]
pub(super) struct RecordedDurationMemberTimes {
    /// Start of each member's part, or [`Time::END`] until the start is known.
    pub begins: Vec<Time>,
    /// End of the last member's part.
    pub end: Time,
    /// Longest recorded duration among the members.
    pub transfer: Span,
}

/// State of a collective's analytical answer, which other traffic may withdraw.
#[derive(Debug, Default)]
pub(super) struct RevocableAnalyticalAnswerState {
    /// Number of the analytical answer while other traffic can withdraw it; otherwise 0.
    pub number: u32,
    /// How often the current instant had been settled before the answer was computed.
    pub settlement: u32,
    /// True if an analytical answer was withdrawn because other traffic used its links.
    pub materialized: bool,
    /// Time at which the answer starts, which may be in the past.
    pub start: Time,
    /// True if the collective's links are reserved until all members have arrived.
    pub is_held: bool,
    /// Time of the latest arrival so far, kept while the collective's links are reserved.
    pub last_wave: Time,
    /// True if the answer depends on the members' different arrival times. Otherwise all members count as having
    /// arrived at `start`.
    pub is_skewed: bool,
    /// The rehearsal from which the answer comes. `told` is the number of members that have been notified of their end.
    pub rehearsal: Option<Arc<RehearsedMemberEndsAndLinkUses>>,
    pub told: u32,
}

impl RevocableAnalyticalAnswerState {
    /// Returns true if the member at `position` has already been notified of the end that the rehearsal gave it.
    pub fn was_member_notified_of_end(&self, position: Position) -> bool {
        let ends = self.rehearsal.iter().flat_map(|rehearsal| &rehearsal.ends);
        ends.take(self.told as usize)
            .any(|&(_, told)| told == position)
    }
}

impl MemberArrivals {
    /// Returns how long a member had waited for other members when it arrived.
    pub fn wait_before_arrival(&self, member: usize) -> Span {
        self.waits.get(member).copied().unwrap_or(Span::ZERO)
    }

    /// Returns the members that have arrived, grouped by arrival time if `skewed` is true. Otherwise returns all of
    /// these members as one group, which arrives at `start`.
    pub fn group_arrivals_by_time(
        &self,
        skewed: bool,
        start: Time,
    ) -> Vec<MembersArrivingTogether> {
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

/// ProgressDisplay of a chunk at a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct OneChunkProgressAtMember {
    /// Current stage. [`OUTSIDE`] before the first stage; the number of stages after the last one.
    pub stage: StageIndex,
    /// True after the chunk has been admitted to its stage. In a stage with two strands, true only until this strand
    /// ends.
    pub begun: bool,
    /// True if the chunk waits for a message to leave. That is the last message of the stage, or every message if
    /// messages are paced.
    pub leaving: bool,
    /// Number of steps that the chunk has taken in the current stage.
    pub taken: u32,
    /// Number of the stage's messages that have arrived and for which a receive was posted.
    pub arrived: u32,
    /// Number of credits that the chunk has earned so far, including those already spent.
    pub credits: u32,
}

/// Where a chunk is at one member: the chunk's stage and queue slot, and the member's position on its line. The
/// position is `None` if the member does not take part in the stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkStageQueueSlotAndLinePosition {
    pub stage: ScheduleStageRef,
    pub queue_slot: u16,
    pub line: Option<MemberLinePosition>,
}

/// Where a chunk is, at a member that takes part in the chunk's stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct ParticipantChunkStageAndPosition {
    pub stage: ScheduleStageRef,
    pub queue_slot: u16,
    pub line: MemberLinePosition,
}

/// How far one phase has admitted one member's chunks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MemberPhaseAdmissionProgress {
    /// Index of the next passage in the phase's admission order.
    pub next: u32,
    /// Number of the member's chunks that are in the phase.
    pub inside: u32,
}

/// ProgressDisplay of each chunk at each position.
#[derive(Debug)]
pub(super) struct MemberChunkProgressTable {
    pub ports: ConsecutivePortsOpenedByOperation,
    /// ProgressDisplay of each chunk at each member, indexed by chunk, strand (ring direction) and position. Only
    /// stages with two strands use the cells of the second strand.
    pub cells: Vec<OneChunkProgressAtMember>,
    /// Queue slot of each chunk's passage through a stage, indexed by cell and stage. The backend assigns the slots
    /// ([`CollectiveMatchingRules::queue_slot`](chakram_hardware::collective::CollectiveMatchingRules::queue_slot)).
    pub queue_slots: Vec<u16>,
    /// Admission progress by position and phase, if chunks are admitted in a fixed order.
    pub admission: Vec<MemberPhaseAdmissionProgress>,
    /// Number of messages that arrived before their receiver entered the stage, indexed by cell and shared stage index.
    pub waiting: Vec<u32>,
    /// Messages and rendezvous requests that arrived after their stage had begun, but before their step was due. A key
    /// consists of the cell (a chunk at a member), the stage, the number of steps that the cell must have taken, and a
    /// flag that is true for requests.
    pub early: BTreeMap<(CellIndex, SharedStage, u32, bool), u32>,
    /// Number of completed chunks at each position.
    pub done: Vec<u32>,
    /// Number of positions whose chunks are all complete.
    pub ended: u32,
    /// Messages and requests that arrived before their receiver started the collective, keyed by the receiving cell (a
    /// chunk at a member). Used only if members may run the same stage in different directions.
    pub unsorted: BTreeMap<CellIndex, Vec<MessageOrRequestWithSenderStepNumber>>,
    /// The first position that was enrolled. Recorded only if members may run the same stage in different directions.
    pub first: Option<Position>,
    /// True if two members run the same stage in different directions. Some messages may then have no receiver.
    pub mixed: bool,
    /// Sender and receiver of the first message that is never received.
    pub crossing: Option<(Position, Position)>,
}

/// Properties of a collective that are known when the first member arrives.
pub(super) struct CollectiveAtFirstArrival {
    pub group: GroupIndex,
    /// Index of the group among the groups of all launches.
    pub number: u32,
    /// Number of earlier collectives of the same group.
    pub sequence: u32,
    pub request: CollectiveRequest,
    pub root: Position,
    pub members: usize,
    /// Index of the schedule in the cache.
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
            recorded: RecordedDurationMemberTimes::default(),
            answer: RevocableAnalyticalAnswerState::default(),
            messages: 0,
            progress: None,
        }
    }
}

impl CollectiveRun {
    /// Returns the node of each member, or [`NONE`] before the member arrives and for absent members.
    pub fn nodes_of_members(&self) -> &[u32] {
        &self.arrivals.nodes
    }

    /// Returns the number of earlier collectives of the group.
    pub fn sequence_number(&self) -> u32 {
        self.sequence
    }

    /// Resets the state of an ended collective, so that another collective can use it.
    pub(super) fn reset_for_next_collective<S: Copy>(
        &mut self,
        of: CollectiveAtFirstArrival,
        schedule: &ChunkStageSequences<S>,
    ) {
        (self.group, self.number, self.sequence) = (of.group, of.number, of.sequence);
        (self.request, self.root) = (Some(of.request), of.root);
        // Clearing a list keeps its allocation, so the loop allocates nothing after its warm-up.
        self.arrivals.nodes.clear();
        self.arrivals.nodes.resize(of.members, NONE);
        self.arrivals.starts.clear();
        self.arrivals.starts.resize(of.members, Time::ZERO);
        self.arrivals.waits.clear();
        self.arrivals.arrived = 0;
        self.arrivals.arrived_now.clear();
        self.arrivals.ends.clear();
        self.own_schedules.clear();
        self.progress = None;
        self.answer = RevocableAnalyticalAnswerState::default();
        self.messages = 0;
        self.recorded.begins.clear();
        (self.recorded.end, self.recorded.transfer) = (Time::ZERO, Span::ZERO);
        self.schedule = of.schedule;
        (self.chunks, self.length) = (schedule.chunk_count(), schedule.stages_per_chunk());
        self.strands = schedule.strand_count();
    }

    /// Records that `member`, with its node, arrived at `now`, and has waited for other members since `waits_since`.
    pub(super) fn record_arrival(
        &mut self,
        now: Time,
        waits_since: Time,
        member: MemberIndex,
        node: NodeIndex,
    ) {
        if waits_since < now {
            self.arrivals
                .waits
                .resize(self.arrivals.nodes.len(), Span::ZERO);
            self.arrivals.waits[member.index()] = now.since(waits_since);
        }
        if self.arrivals.arrived == 0 {
            self.arrivals.first = now;
        }
        self.arrivals.last = now;
        self.arrivals.arrived += 1;
        self.arrivals.nodes[member.index()] = node.0;
        self.arrivals.starts[member.index()] = now;
    }

    /// Returns the rank that started last among the members with a trace. With ties, returns the rank that had waited
    /// the shortest time before it started, and then the lowest.
    pub(super) fn last_rank_to_start(&self, plan: &PlacedCommunicationGroup) -> Rank {
        let members = self.arrivals.starts.iter().zip(&self.arrivals.nodes);
        let late = members
            .zip(&plan.members)
            .enumerate()
            .filter(|(_, ((start, node), _))| **start == self.arrivals.last && **node != NONE);
        // Take the lowest rank, so that the order of arrivals within the instant does not affect the result.
        let ranks =
            late.map(|(member, (_, rank))| (self.arrivals.wait_before_arrival(member), *rank));
        ranks.min().expect("somebody started last").1
    }

    /// Returns how long the members waited in total for the last member, that member's rank, and the waiting time that
    /// this rank caused. In a folded replay, the total includes represented members.
    pub(super) fn sum_waiting_and_find_causing_rank(
        &self,
        plan: &PlacedCommunicationGroup,
    ) -> TotalWaitAndCausingRank {
        let count = |member: usize| plan.represents.get(member).copied().unwrap_or(1);
        let arrivals = self.arrivals.nodes.iter().zip(&self.arrivals.starts);
        let present = arrivals.enumerate().filter(|(_, (node, _))| **node != NONE);
        let waited = present
            .map(|(member, (_, start))| {
                let waited =
                    self.arrivals.last.since(*start) + self.arrivals.wait_before_arrival(member);
                Span(waited.0 * u64::from(count(member)))
            })
            .sum();
        let late = (waited > Span::ZERO).then(|| (self.last_rank_to_start(plan), waited));
        (waited, late)
    }

    /// Begins the message-by-message simulation, which sends through `ports`. `phases` is the number of phases that
    /// admit chunks in a fixed order.
    pub(super) fn begin_simulation(
        &mut self,
        ports: ConsecutivePortsOpenedByOperation,
        phases: usize,
    ) {
        let members = self.arrivals.nodes.len();
        // The multiplication cannot overflow, because `check_simulation_size` has already bounded the number of
        // cells (chunks at members).
        let cells = members * self.chunks as usize * self.strands as usize;
        let outside = OneChunkProgressAtMember {
            stage: OUTSIDE,
            begun: false,
            leaving: false,
            taken: 0,
            arrived: 0,
            credits: 0,
        };
        self.progress = Some(MemberChunkProgressTable {
            ports,
            cells: vec![outside; cells],
            queue_slots: vec![0; cells * self.length],
            waiting: vec![0; cells * self.length],
            admission: vec![MemberPhaseAdmissionProgress::default(); members * phases],
            early: BTreeMap::new(),
            done: vec![0; members],
            ended: 0,
            unsorted: BTreeMap::new(),
            first: None,
            mixed: false,
            crossing: None,
        });
    }

    /// Returns the index of the schedule that the member at a position follows.
    #[inline]
    pub(super) fn schedule_index_of_member_at(&self, position: Position) -> u32 {
        if self.own_schedules.is_empty() {
            self.schedule
        } else {
            self.own_schedules[position.index()]
        }
    }

    /// Returns the cell of a chunk at a position, in the first strand.
    #[inline]
    pub(super) fn cell_of_chunk(&self, chunk: u32, position: Position) -> CellIndex {
        CellIndex(chunk * self.strands * self.arrivals.nodes.len() as u32 + position.0)
    }

    /// Returns the cell of the same chunk and position in the other strand.
    #[inline]
    pub(super) fn cell_in_other_strand(&self, cell: CellIndex) -> CellIndex {
        let members = self.arrivals.nodes.len() as u32;
        match self.strand_of_cell(cell) {
            0 => CellIndex(cell.0 + members),
            _ => CellIndex(cell.0 - members),
        }
    }

    /// Returns the strand (half of a chunk's stage, in one ring direction) to which a cell belongs.
    #[inline]
    pub(super) fn strand_of_cell(&self, cell: CellIndex) -> u32 {
        match self.strands {
            // Most often there is one strand; avoid the division then.
            1 => 0,
            strands => cell.0 / self.arrivals.nodes.len() as u32 % strands,
        }
    }

    /// Returns the chunk of a cell.
    #[inline]
    pub(super) fn chunk_of_cell(&self, cell: CellIndex) -> u32 {
        match self.chunks {
            1 => 0,
            _ => cell.0 / (self.arrivals.nodes.len() as u32 * self.strands),
        }
    }

    /// Returns the chunk of a cell. Skips a division and returns 0 if all chunks have the same stages.
    #[inline]
    pub(super) fn chunk_of_cell_or_zero_if_uniform<S: Copy>(
        &self,
        schedule: &ChunkStageSequences<S>,
        cell: CellIndex,
    ) -> u32 {
        if schedule.is_uniform() {
            0
        } else {
            self.chunk_of_cell(cell)
        }
    }

    /// Returns the position of a cell.
    #[inline]
    pub(super) fn position_of_cell(&self, cell: CellIndex) -> Position {
        match self.chunks * self.strands {
            1 => Position(cell.0),
            _ => Position(cell.0 % self.arrivals.nodes.len() as u32),
        }
    }

    /// Returns where a cell is, or `None` if the chunk has not begun its first stage or has ended its last one.
    // Always inlined. If the struct were returned through memory, the processor would stall, because it cannot forward
    // several small stores to one large load.
    #[inline(always)]
    pub(super) fn stage_of_cell<M: RequiredCollectiveBackendTraits>(
        &self,
        cell: CellIndex,
        schedules: &ScheduleCache<M::Stage>,
        plan: &PlacedCommunicationGroup,
        backend: &M,
    ) -> Option<ChunkStageQueueSlotAndLinePosition> {
        let progress = self.progress.as_ref()?;
        let position = self.position_of_cell(cell);
        let number = progress.cells[cell.index()].stage;
        let own = self.schedule_index_of_member_at(position);
        let schedule = schedules.schedule_by_number(own);
        let index = schedule.stage_index(
            self.chunk_of_cell_or_zero_if_uniform(schedule, cell),
            number,
        )?;
        let stage = ScheduleStageRef {
            schedule: own,
            index: index as u32,
        };
        let queue_slot = progress.queue_slots[cell.index() * self.length + number.index()];
        let of = &schedule.stages_of_all_routes()[index];
        let line = backend.line_position(&plan.extent, of, position, self.root);
        let line = match self.strand_of_cell(cell) {
            0 => line,
            _ => line.map(MemberLinePosition::reversed),
        };
        Some(ChunkStageQueueSlotAndLinePosition {
            stage,
            queue_slot,
            line,
        })
    }
}

impl MemberChunkProgressTable {
    /// Stores a message or request until `cell` has taken `taken` steps in its stage.
    pub(super) fn defer_message(
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

    /// Removes the messages or requests that wait until `cell` has taken `taken` steps, and returns how many they are.
    #[inline]
    pub(super) fn take_deferred_count(
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
