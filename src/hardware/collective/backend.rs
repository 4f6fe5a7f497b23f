//! The interface between the engine and an implementation of collectives.
//!
//! A collective is split into *chunks*. At each member, a chunk passes through the same *stages*, one after another;
//! each stage works in one phase of the group. In a stage, each member of a line runs a program. It starts with some
//! *credits*, and earns one for each message that it has received and processed. Each step requires a number of
//! credits. A member finishes the stage when it has taken all steps and earned all credits. Steps and sources are
//! computed on demand, so message schedules are never materialised.

use super::{ChunkStageSequences, MemberLinePosition, SendStepWithConditions};
use crate::group::{
    GroupPhasesAndMemberPositions, PathsToNextAndAnyMember, PhaseDimensionSizeAndStride,
};
use crate::topology::{LineSendPattern, PathLatencyAndRates, Topology};
use chakram_base::collective_kind::CollectiveKind;
use chakram_base::ids::{Npu, Position, StageIndex};
use chakram_base::units::{Span, Time, UnroundedBufferShare};
use std::fmt;
use std::ops::Range;

/// A change in the order in which members act at one instant, when they receive the messages in one range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberOrderChangeForMessages {
    /// Index of the stage in which the messages are sent.
    pub stage: StageIndex,
    /// Indices of the messages in the stage.
    pub messages: Range<u32>,
}

/// Properties of a collective, from the member that issued it first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveRequest {
    /// Node id of the collective at the member that issued it first.
    pub node: u64,
    /// Kind of the collective, for example all-reduce.
    pub kind: CollectiveKind,
    /// Payload bytes, equal to `comm_size` in the trace.
    pub bytes: u64,
    /// Size of the whole buffer in bytes ([`CollectiveKind::buffer_bytes`]).
    pub buffer: u64,
    /// Index of the table that states the bytes exchanged by each pair of members. `None` if all pairs exchange the
    /// same number of bytes.
    pub splits: Option<u32>,
    /// Sequence number, unique among the replay's collectives in flight.
    pub number: u32,
}

/// The members of a collective's group, and whether the trace names the group.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveMemberNpus<'a> {
    /// The NPU of each member, in the group's order.
    pub npus: &'a [Npu],
    /// True if the trace names a group. Otherwise all ranks take part, except along dimensions that the collective
    /// excludes.
    pub named: bool,
}

/// A message for which a member posts a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostedReceiveSenderAndStep {
    /// The sender's index in the line.
    pub from: u32,
    /// Index of the step in which the sender sends the message.
    pub step: u32,
}

/// Queue in which an NPU's chunks wait for a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkQueueIndexAndCapacity {
    /// Index of the queue among the NPU's queues.
    pub number: u32,
    /// Maximum number of chunks that the queue admits at the same time.
    pub capacity: u32,
}

impl ChunkQueueIndexAndCapacity {
    /// First index of private queues, which exist only while one collective is in flight.
    pub const APART: u32 = 1 << 31;

    /// Returns the index of private queue `number` of a collective that has `count` private queues. `collective` is the
    /// collective's sequence number ([`CollectiveRequest::number`]). Indices wrap around after 2^31 queues. Two
    /// collectives in flight share a queue only if their indices are 2^31 apart.
    #[inline]
    pub fn private_queue_index(collective: u32, count: u32, number: u32) -> u32 {
        Self::APART | collective.wrapping_mul(count).wrapping_add(number)
    }
}

/// Event delivered to a member that executes a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptMemberEvent {
    /// The member begins to execute its script.
    Begin,
    /// Operation `part` of the member's script has completed: a sent message has arrived, or a wait is over.
    OpCompleted {
        /// Index of the operation in the script.
        part: u32,
    },
    /// A message has arrived.
    Message {
        /// The sender's position.
        from: u32,
        /// Label that the sender gave the message.
        label: u32,
    },
}

/// A member that executes a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScriptExecutingMemberId {
    /// Index that distinguishes the collective from others in flight.
    pub run: u32,
    /// The member's position.
    pub position: Position,
}

/// Action of a member that executes a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptAction {
    /// Sends a message, as one operation of the script.
    Send {
        /// The receiver's position.
        to: u32,
        /// Size of the message in bytes.
        bytes: u64,
        /// Label by which the receiver matches the message.
        label: u32,
        /// Index of the send in the script.
        part: u32,
    },
    /// Waits for a fixed time.
    Wait {
        /// Duration of the wait.
        span: Span,
        /// Index of the wait in the script.
        part: u32,
    },
    /// Receives a message that arrived before the receive started. A separate event completes the receive.
    TakeArrived {
        /// Index of the receive in the script.
        part: u32,
    },
    /// The script has ended.
    End,
}

/// Costs of messages on a network without other traffic.
pub struct UncontendedMessageCostFunctions<'a> {
    /// Time of a message between two NPUs without contention, or `None` if the model does not know it.
    pub cost: &'a dyn Fn((Npu, Npu), UnroundedBufferShare) -> Option<Span>,
    /// True if other operations may send messages at the same time.
    pub shared: bool,
    /// How long a message occupies its link, if each sender sends all its messages over one link. `None` otherwise.
    pub link_time: &'a dyn Fn(UnroundedBufferShare) -> Option<Span>,
    /// Function of a dimension, the number of members in a line, and a message pattern. Returns true if messages in
    /// this pattern delay one another only by `link_time`. Each member of the line sends and receives at most one
    /// message at a time, except with [`LineSendPattern::Staggered`].
    pub conflict_free: &'a dyn Fn(usize, u32, LineSendPattern) -> bool,
}

/// How an endpoint processes a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointDelayOrBusProcessing {
    /// No processing, which takes no time and causes no event.
    Instant,
    /// A fixed delay per message.
    Delay(Span),
    /// The message crosses the endpoint's bus.
    Bus,
}

/// Identifies a completed transfer to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferCompletionToken {
    /// Key by which the caller finds its own record of the transfer.
    pub word: u64,
    /// An additional number that only the caller interprets.
    pub detail: u32,
}

/// A transfer over an endpoint's bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointBusTransfer {
    /// Size of the transfer in bytes.
    pub bytes: u32,
    /// True if the transfer leaves the NPU, false if it enters.
    pub outward: bool,
    /// True if the bytes are reduced on the way.
    pub reduces: bool,
    /// True if the bytes return to their source.
    pub returns: bool,
    /// Token returned to the caller on completion.
    pub ticket: TransferCompletionToken,
}

/// Reason for a bus transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusTransferTrigger {
    /// The start of the member's stage.
    Start,
    /// The receipt of a message. The stage's receives are counted from 0.
    Reception(u32),
}

/// The agenda that receives a bus's events.
pub trait BusEventScheduler {
    /// Schedules a call of [`CollectiveEndpointModel::return_completed_transfer_and_pause_bus`] with `event` at time `at`.
    fn schedule_bus_event(&mut self, at: Time, event: u32);
}

/// Formats the algorithms of a collective over an extent, innermost dimension first: `ring 8 (nvlink), ring 4 (nodes)`.
pub struct CollectiveAlgorithmsFormatter(Box<FormatCollectiveAlgorithmsFn>);

type FormatCollectiveAlgorithmsFn =
    dyn Fn(CollectiveKind, &GroupPhasesAndMemberPositions, &Topology, u64) -> String + Send + Sync;

impl CollectiveAlgorithmsFormatter {
    /// Creates a describer that formats with `say`.
    pub fn new(
        say: impl Fn(CollectiveKind, &GroupPhasesAndMemberPositions, &Topology, u64) -> String
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self(Box::new(say))
    }

    /// Joins descriptions of phases with commas. Without phases, returns `nothing to do`.
    pub fn join_phase_descriptions(phases: impl Iterator<Item = String>) -> String {
        let phases: Vec<_> = phases.collect();
        match phases.len() {
            0 => "nothing to do".to_owned(),
            _ => phases.join(", "),
        }
    }

    /// Describes the algorithms of a collective with a buffer of `bytes`.
    pub fn describe_collective(
        &self,
        kind: CollectiveKind,
        extent: &GroupPhasesAndMemberPositions,
        topology: &Topology,
        bytes: u64,
    ) -> String {
        self.0(kind, extent, topology, bytes)
    }
}

impl fmt::Debug for CollectiveAlgorithmsFormatter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Describer")
    }
}

/// The engine's interface to an implementation of collectives.
pub trait CollectiveBackend {
    /// The work that a chunk does in one phase.
    type Stage: Copy + fmt::Debug;

    /// Locates a group's members on the machine, and splits the group into phases.
    fn place_group(
        &self,
        party: CollectiveMemberNpus<'_>,
        topology: &Topology,
    ) -> GroupPhasesAndMemberPositions;

    /// Returns the paths of messages in `phase`, if they are equal for all members. Called once for each group.
    fn common_paths_of_phase(
        &self,
        extent: &GroupPhasesAndMemberPositions,
        phase: &PhaseDimensionSizeAndStride,
        topology: &Topology,
    ) -> PathsToNextAndAnyMember;

    /// Returns the path that all messages of a stage share, or `None` if their paths differ.
    fn path_shared_by_stage_messages(
        &self,
        stage: &Self::Stage,
        paths: &PathsToNextAndAnyMember,
    ) -> Option<PathLatencyAndRates>;

    /// Returns a key for everything that affects a request's execution, except its group, root, kind and bytes.
    /// Requests with equal keys, groups, roots, kinds and bytes share a cached schedule.
    fn cache_key_apart_from_group_kind_bytes(&self, request: &CollectiveRequest) -> u64;

    /// Returns the schedule of a collective's chunks. `paths` are the results of [`Self::common_paths_of_phase`].
    fn chunk_schedule(
        &self,
        request: &CollectiveRequest,
        extent: &GroupPhasesAndMemberPositions,
        paths: &[PathsToNextAndAnyMember],
    ) -> ChunkStageSequences<Self::Stage>;

    /// Returns true if a stage runs as two concurrent *strands*, each with half of the buffer. One strand uses the
    /// members' positions, and the other strand uses the [`MemberLinePosition::reversed`] positions.
    fn is_split_into_two_strands(&self, _: &Self::Stage) -> bool {
        false
    }

    /// Returns the phase of `stage`, as an index into the phases of the extent.
    fn phase_index(&self, stage: &Self::Stage) -> usize;

    /// Returns the line position of the member at `position`, or `None` if the member takes no part in `stage`.
    fn line_position(
        &self,
        extent: &GroupPhasesAndMemberPositions,
        stage: &Self::Stage,
        position: Position,
        root: Position,
    ) -> Option<MemberLinePosition>;

    /// Returns the number of messages that the member at `line` receives.
    fn receive_count(&self, stage: &Self::Stage, queue_slot: u16, line: MemberLinePosition) -> u32;

    /// Returns the `i`-th message that the member at `line` sends, or `None` after the last.
    fn nth_send(
        &self,
        stage: &Self::Stage,
        queue_slot: u16,
        line: MemberLinePosition,
        i: u32,
    ) -> Option<SendStepWithConditions>;

    /// Returns true if a member sends this stage's messages one at a time, and waits for its port to be free before
    /// each message. A group of n members then needs no state for n² messages.
    fn sends_one_message_at_a_time(&self, stage: &Self::Stage) -> bool;

    /// Returns a formatter that names the algorithms in reports.
    fn describer(&self) -> CollectiveAlgorithmsFormatter;

    /// Returns the duration of a collective if all members begin together and nothing else is in flight. Returns `None`
    /// if no closed form is proven exact, or if members end at different times. `paths` are the results of
    /// [`Self::common_paths_of_phase`].
    fn closed_form(
        &self,
        chunk_schedule: &ChunkStageSequences<Self::Stage>,
        extent: &GroupPhasesAndMemberPositions,
        paths: &[PathsToNextAndAnyMember],
        quiet: &UncontendedMessageCostFunctions<'_>,
    ) -> Option<Span>;

    /// Returns the time at which each position ends if members begin at different times, on a network without
    /// contention or other traffic. `begins` is the time at which each position begins. Returns `None` if no formula is
    /// proven exact.
    fn end_times_of_late_members(
        &self,
        _chunk_schedule: &ChunkStageSequences<Self::Stage>,
        _extent: &GroupPhasesAndMemberPositions,
        _paths: &[PathsToNextAndAnyMember],
        _begins: &[Span],
    ) -> Option<Vec<Span>> {
        None
    }
}

/// Behaviour of members' endpoints apart from sending and receiving: delays, buses, reductions, rendezvous, scripts,
/// and queues of waiting chunks.
pub trait CollectiveEndpointModel: CollectiveBackend {
    /// Returns the queue in which a chunk waits before `stage`, or `None` if chunks do not wait.
    fn find_queue_where_chunks_await_stage(
        &self,
        stage: &Self::Stage,
        queue_slot: u16,
    ) -> Option<ChunkQueueIndexAndCapacity>;

    /// Returns the initial number of credits of the member at `line`.
    fn initial_credits_of_member(
        &self,
        stage: &Self::Stage,
        queue_slot: u16,
        line: MemberLinePosition,
    ) -> u32;

    /// Returns true if members execute `stage` from scripts instead of steps.
    fn is_scripted(&self, stage: &Self::Stage) -> bool;

    /// Delivers the event `cue` to a member that runs a script, and appends the script's next actions to `acts`. `root`
    /// is the root's position.
    fn advance_script(
        &mut self,
        stage: &Self::Stage,
        extent: &GroupPhasesAndMemberPositions,
        player: ScriptExecutingMemberId,
        root: Position,
        cue: ScriptMemberEvent,
        acts: &mut Vec<ScriptAction>,
    );

    /// Returns the processing that an endpoint does before its first send and after each receive.
    fn endpoint_processing_per_message(&self, stage: &Self::Stage) -> EndpointDelayOrBusProcessing;

    /// Returns an endpoint's bus transfer at the start of a stage, or after a message is received. Called only for
    /// endpoints with [`EndpointDelayOrBusProcessing::Bus`].
    fn bus_transfer(
        &self,
        stage: &Self::Stage,
        queue_slot: u16,
        line: MemberLinePosition,
        of: BusTransferTrigger,
        ticket: TransferCompletionToken,
    ) -> EndpointBusTransfer;

    /// Submits a transfer to the bus of `npu`. The bus schedules its events with `clock`.
    fn submit_npu_bus_transfer(
        &mut self,
        now: Time,
        npu: Npu,
        load: EndpointBusTransfer,
        clock: &mut impl BusEventScheduler,
    );

    /// Handles an event on the bus of `npu`. If a transfer completes, returns its token and pauses the bus. The caller
    /// handles the consequences, then calls [`Self::resume_npu_bus_after_transfer`].
    fn return_completed_transfer_and_pause_bus(
        &mut self,
        now: Time,
        npu: Npu,
        event: u32,
        clock: &mut impl BusEventScheduler,
    ) -> Option<TransferCompletionToken>;

    /// Resumes the bus of `npu` after the event that completed a transfer.
    fn resume_npu_bus_after_transfer(
        &mut self,
        now: Time,
        npu: Npu,
        event: u32,
        clock: &mut impl BusEventScheduler,
    );

    /// Returns the time that the member at `line` needs to reduce its `r`-th received message, or `None` if it does not
    /// reduce it.
    fn reduction_time_of_received_message(
        &self,
        stage: &Self::Stage,
        queue_slot: u16,
        line: MemberLinePosition,
        r: u32,
    ) -> Option<Span>;

    /// Returns the size, in bytes, of the request to send that precedes each message, or `None` if messages need no
    /// such request.
    fn rts_bytes(&self) -> Option<u64>;
}

/// Events at the same instant are sorted by their content, so an unrelated event never changes the order of the others.
#[derive(Debug)]
pub enum SortEventsByContentMarker {}

/// Events are handled strictly in the order in which they were scheduled, as in ASTRA-sim. Nodes take lanes in the
/// order of their ids, and collectives and messages are matched in issue order. A member proceeds without waiting for
/// other events at the same instant, and a send completes when its message has arrived.
#[derive(Debug)]
pub enum SortEventsByInsertionMarker {}

/// Rules for matching collectives, even when members issue them in different orders.
pub trait CollectiveMatchingRules: CollectiveBackend {
    /// The order of events at an instant: [`SortEventsByContentMarker`] or [`SortEventsByInsertionMarker`].
    type Order;

    /// Returns true if collectives are matched in issue order, false if in program order. Called only in
    /// [`SortEventsByInsertionMarker`].
    fn matches_collectives_in_issue_order(&self) -> bool {
        true
    }

    /// Returns true if members of one line exchange the same messages in both stages. Called only if collectives are
    /// matched in issue order, because members may then issue different collectives.
    fn stages_exchange_same_messages(&self, _a: &Self::Stage, _b: &Self::Stage) -> bool {
        false
    }

    /// Returns a number that identifies one chunk's pass through `stage` on `npu`. The engine requests it once for each
    /// chunk and stage when the collective is issued, and passes it to every later call.
    fn assign_queue_slot_to_chunk_pass(&mut self, npu: Npu, stage: &Self::Stage) -> u16;

    /// Returns the successive changes that turn the order in which members begin the collective of `chunk_schedule`
    /// into the order in which they end it, if all end at the same instant. The collective must have a closed form.
    /// Returns `None` if the order is not proven; a caller that needs the order then simulates the collective message
    /// by message. Called only in [`SortEventsByInsertionMarker`].
    fn list_member_order_changes_begin_to_end(
        &self,
        _chunk_schedule: &ChunkStageSequences<Self::Stage>,
        _extent: &GroupPhasesAndMemberPositions,
        _quiet: &UncontendedMessageCostFunctions<'_>,
    ) -> Option<Vec<MemberOrderChangeForMessages>> {
        None
    }

    /// Reorders `members` from the order in which they send `messages` of `stage` to the order in which they receive
    /// them. Called only for changes that [`Self::list_member_order_changes_begin_to_end`] returned.
    fn reorder_members_to_receive_order(
        &self,
        _stage: &Self::Stage,
        _messages: Range<u32>,
        _extent: &GroupPhasesAndMemberPositions,
        _members: &mut Vec<Position>,
    ) {
    }

    /// Notifies the backend that a member joins a collective; `named` is true if the member's trace names the group.
    /// Called only in [`SortEventsByInsertionMarker`].
    fn on_join(
        &mut self,
        _now: Time,
        _npu: Npu,
        _named: bool,
        _request: &CollectiveRequest,
        _extent: &GroupPhasesAndMemberPositions,
    ) {
    }

    /// Notifies the backend that a ready node of `npu` would never start in ASTRA-sim, because no running node remains
    /// to wake it. Called only in [`SortEventsByInsertionMarker`].
    fn on_node_never_started_in_astra_sim(&mut self, _npu: Npu) {}

    /// Returns true if members may enter a stage in different directions or trees. Messages are then matched by sender.
    fn matches_by_sender(&self) -> bool {
        false
    }

    /// Returns the class of a chunk with this queue slot: its ring direction or tree. A message matches only if sender
    /// and receiver have equal classes.
    fn direction_or_tree_of_slot(&self, _queue_slot: u16) -> u16 {
        0
    }

    /// Returns the number of steps after which the member at `line` posts the receive for a message from index `from`.
    /// The sender uses a different direction or tree, and expects the receive after `recv_posted` steps. Returns `None`
    /// if the member posts no receive for this message.
    fn steps_before_posting_receive(
        &self,
        _stage: &Self::Stage,
        _queue_slot: u16,
        _line: MemberLinePosition,
        _from: u32,
        recv_posted: u32,
    ) -> Option<u32> {
        Some(recv_posted)
    }

    /// Translates the step that a receiver requests into a step of the member at `line`. The receiver, at index `to`,
    /// uses a different ring direction or tree, and requests step `step`. Returns `None` if no step of the member sends
    /// the requested message.
    fn translate_requested_step_to_sender(
        &self,
        _stage: &Self::Stage,
        _queue_slot: u16,
        _line: MemberLinePosition,
        _to: u32,
        step: u32,
    ) -> Option<u32> {
        Some(step)
    }

    /// Returns the `k`-th source for which the member at `line` posts a receive after `taken` steps. Called only if
    /// each message follows a request to send.
    fn kth_source_to_post_receive_for(
        &self,
        stage: &Self::Stage,
        queue_slot: u16,
        line: MemberLinePosition,
        taken: u32,
        k: u32,
    ) -> Option<PostedReceiveSenderAndStep>;
}
