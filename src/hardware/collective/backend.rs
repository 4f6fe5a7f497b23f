//! The interface between the engine and a way of carrying out collectives.
//!
//! A collective is split into *chunks*. At each member a chunk passes through the same *stages*, one after another,
//! each along one phase of the group. In a stage each member of a line runs a program: it has *credits*, takes steps
//! that require some, and earns one with each message that it has received and processed. When all steps are taken
//! and all credits earned, the stage is over for the member. Steps and sources are computed on demand, so message
//! schedules are never materialised.

use super::{ChunkSchedule, LinePosition, SendStep};
use crate::group::{GroupExtent, GroupPhase, SharedPaths};
use crate::topology::{LinePattern, NetworkPath, Topology};
use chakram_base::collective_kind::CollectiveKind;
use chakram_base::ids::{Npu, Position, StageIndex};
use chakram_base::units::{BufferShare, Span, Time};
use std::fmt;
use std::ops::Range;

/// A change of the order in which members do the same at one instant, by messages that each of them receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderChange {
    /// The stage.
    pub stage: StageIndex,
    /// Numbers of the messages in the stage.
    pub messages: Range<u32>,
}

/// A collective to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveRequest {
    /// Node id of the collective at the first member that issued it.
    pub node: u64,
    /// Kind of collective.
    pub kind: CollectiveKind,
    /// `comm_size` of the trace, in bytes.
    pub bytes: u64,
    /// The whole buffer ([`CollectiveKind::buffer`]).
    pub buffer: u64,
    /// Number of the bytes that pairs of members exchange, where they are not equal; `None` otherwise.
    pub splits: Option<u32>,
    /// Sequence number in the replay, which distinguishes collectives in flight.
    pub number: u32,
}

/// Members of a collective, and the way in which the trace names them.
#[derive(Clone, Copy, Debug)]
pub struct GroupMembers<'a> {
    /// The NPU of each member, in the group's order.
    pub npus: &'a [Npu],
    /// True if the trace names a group; otherwise all ranks take part, except those that differ in dimensions that do
    /// not.
    pub named: bool,
}

/// A source of messages that a member begins to listen to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveSource {
    /// The sender's index in the line.
    pub from: u32,
    /// The sender's step that is the message.
    pub step: u32,
}

/// Queue in which chunks wait at an NPU; it admits several at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkQueueSpec {
    /// The queue's number among those of the NPU.
    pub number: u32,
    /// Number of chunks admitted to a stage at once.
    pub capacity: u32,
}

impl ChunkQueueSpec {
    /// Numbers from here on are of queues that come and go with a collective.
    pub const APART: u32 = 1 << 31;

    /// The number of queue `number` of `count` that a collective ([`CollectiveRequest::number`]) has for itself. They
    /// are used again after 2^31, which two in flight then share.
    #[inline]
    pub fn apart(collective: u32, count: u32, number: u32) -> u32 {
        Self::APART | collective.wrapping_mul(count).wrapping_add(number)
    }
}

/// Event delivered to a member that executes a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptEvent {
    /// The member begins.
    Begin,
    /// Part `part` of its script is over: a message it sent has arrived, or a wait has ended.
    OpCompleted {
        /// Number of the part.
        part: u32,
    },
    /// A message has reached it.
    Message {
        /// The sender's position.
        from: u32,
        /// Label that the sender gave the message.
        label: u32,
    },
}

/// A member that executes a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScriptPlayer {
    /// Number of the collective, which distinguishes those in flight.
    pub run: u32,
    /// The member's position.
    pub position: Position,
}

/// Action of a member that executes a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptAction {
    /// Sends a message, which is a part of its script.
    Send {
        /// The receiver's position.
        to: u32,
        /// Size of the message in bytes.
        bytes: u64,
        /// Label by which the receiver matches the message.
        label: u32,
        /// Number of the part.
        part: u32,
    },
    /// Waits.
    Wait {
        /// Duration of the wait.
        span: Span,
        /// The part that is over then.
        part: u32,
    },
    /// Takes a message that was there before it was listened to: the part is over by an event of its own.
    TakeArrived {
        /// Number of the part.
        part: u32,
    },
    /// Has done all.
    End,
}

/// Properties of a network while nothing else is in flight.
pub struct UncontendedCost<'a> {
    /// Time of a message between two NPUs without contention; `None` if the model does not say.
    pub cost: &'a dyn Fn((Npu, Npu), BufferShare) -> Option<Span>,
    /// True if messages of other operations may interleave.
    pub shared: bool,
    /// Time for which a message takes the link over which its sender's others leave, too; `None` if nothing of that kind is.
    pub link_time: &'a dyn Fn(BufferShare) -> Option<Span>,
    /// Returns true if messages along a dimension, among a line of that many members, never delay one another but for that,
    /// sent in this pattern. Each member sends at most one and receives at most one at a time, unless they are staggered.
    pub conflict_free: &'a dyn Fn(usize, u32, LinePattern) -> bool,
}

/// Processing of a message at an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointCost {
    /// Nothing: it takes no time and is no event.
    Instant,
    /// A fixed delay per message.
    Delay(Span),
    /// The message passes a bus.
    Bus,
}

/// The caller's name for a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionToken {
    /// What the caller looks it up by.
    pub word: u64,
    /// What the caller tells apart besides.
    pub detail: u32,
}

/// A transfer over the bus of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusTransfer {
    /// Size in bytes.
    pub bytes: u32,
    /// From the NPU, not to it.
    pub outward: bool,
    /// True if it is reduced on the way.
    pub reduces: bool,
    /// True if it returns to its source.
    pub returns: bool,
    /// Token returned to the caller on completion.
    pub ticket: CompletionToken,
}

/// Cause of a bus transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferCause {
    /// The member begins.
    Start,
    /// The reception, counted from 0.
    Reception(u32),
}

/// Scheduler of bus events.
pub trait BusScheduler {
    /// Has [`EndpointModel::handle_bus_event`] called with `event` at `at`.
    fn after(&mut self, at: Time, event: u32);
}

/// Formats the algorithms of a collective over an extent, innermost dimension first: `ring 8 (nvlink), ring 4
/// (nodes)`.
pub struct AlgorithmDescriber(Box<DescribeFn>);

type DescribeFn = dyn Fn(CollectiveKind, &GroupExtent, &Topology, u64) -> String + Send + Sync;

impl AlgorithmDescriber {
    /// Creates a describer from the function `say`.
    pub fn new(
        say: impl Fn(CollectiveKind, &GroupExtent, &Topology, u64) -> String + Send + Sync + 'static,
    ) -> Self {
        Self(Box::new(say))
    }

    /// The phases, or that there are none.
    pub fn list(phases: impl Iterator<Item = String>) -> String {
        let phases: Vec<_> = phases.collect();
        match phases.len() {
            0 => "nothing to do".to_owned(),
            _ => phases.join(", "),
        }
    }

    /// The algorithms of a collective with a buffer of `bytes`.
    pub fn say(
        &self,
        kind: CollectiveKind,
        extent: &GroupExtent,
        topology: &Topology,
        bytes: u64,
    ) -> String {
        self.0(kind, extent, topology, bytes)
    }
}

impl fmt::Debug for AlgorithmDescriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Describer")
    }
}

/// A way of carrying out collectives; the engine's interface to it.
pub trait CollectiveBackend {
    /// The work of a chunk along one phase.
    type Stage: Copy + fmt::Debug;

    /// Returns the placement of a group on the machine.
    fn extent(&self, party: GroupMembers<'_>, topology: &Topology) -> GroupExtent;

    /// Paths along `phase` that messages share; computed once per group.
    fn paths(&self, extent: &GroupExtent, phase: &GroupPhase, topology: &Topology) -> SharedPaths;

    /// The path that all messages of a stage share, `None` if they differ.
    fn path(&self, stage: &Self::Stage, paths: &SharedPaths) -> Option<NetworkPath>;

    /// Key of everything besides the group, its root, the kind and the bytes that affects execution of a request;
    /// equal keys share a cached schedule.
    fn variant(&self, request: &CollectiveRequest) -> u64;

    /// Returns the schedule of a collective's chunks. `paths` are those of [`Self::paths`].
    fn chunk_schedule(
        &self,
        request: &CollectiveRequest,
        extent: &GroupExtent,
        paths: &[SharedPaths],
    ) -> ChunkSchedule<Self::Stage>;

    /// Returns true if a stage runs twice concurrently, each time with half of the buffer: once as it is, once from
    /// [`LinePosition::reversed`] positions. Each run is a *strand* of the chunk.
    fn is_bidirectional(&self, _: &Self::Stage) -> bool {
        false
    }

    /// The phase of the extent along which `stage` goes.
    fn phase(&self, stage: &Self::Stage) -> usize;

    /// Returns the position of the member at `position`, `None` if it takes no part in `stage`.
    fn line_position(
        &self,
        extent: &GroupExtent,
        stage: &Self::Stage,
        position: Position,
        root: Position,
    ) -> Option<LinePosition>;

    /// Number of messages that the member at `line` receives.
    fn receives(&self, stage: &Self::Stage, queue_slot: u16, line: LinePosition) -> u32;

    /// The `i`-th message that the member at `line` sends, `None` after the last.
    fn step(
        &self,
        stage: &Self::Stage,
        queue_slot: u16,
        line: LinePosition,
        i: u32,
    ) -> Option<SendStep>;

    /// Returns true if a member's messages of this stage serialize at its port, so that a group of n need not hold n²
    /// of them.
    fn is_paced(&self, stage: &Self::Stage) -> bool;

    /// Returns a formatter of algorithms, for people.
    fn describer(&self) -> AlgorithmDescriber;

    /// Duration of a collective whose members all begin together while nothing else is in flight; `None` if no closed
    /// form is proved, or if members end at different times. `paths` are those of [`Self::paths`].
    fn closed_form(
        &self,
        chunk_schedule: &ChunkSchedule<Self::Stage>,
        extent: &GroupExtent,
        paths: &[SharedPaths],
        quiet: &UncontendedCost<'_>,
    ) -> Option<Span>;
}

/// Duties of the endpoints of members beside sending and receiving: delays, buses, reductions, rendezvous, scripts, and
/// queues in which chunks wait.
pub trait EndpointModel: CollectiveBackend {
    /// The queue in which a chunk waits before `stage`, `None` where none waits.
    fn queue(&self, stage: &Self::Stage, queue_slot: u16) -> Option<ChunkQueueSpec>;

    /// Credits of the member at `line` as it begins.
    fn credits(&self, stage: &Self::Stage, queue_slot: u16, line: LinePosition) -> u32;

    /// Returns true if members execute `stage` from scripts instead of steps.
    fn is_scripted(&self, stage: &Self::Stage) -> bool;

    /// Delivers `cue` to a scripted member, and appends its actions to `acts`; `root` is the root's position.
    fn advance_script(
        &mut self,
        stage: &Self::Stage,
        extent: &GroupExtent,
        player: ScriptPlayer,
        root: Position,
        cue: ScriptEvent,
        acts: &mut Vec<ScriptAction>,
    );

    /// Returns the processing at an endpoint before its first send and after each reception.
    fn endpoint(&self, stage: &Self::Stage) -> EndpointCost;

    /// Returns the bus transfer of an endpoint with [`EndpointCost::Bus`]: as the member begins (credit `p` of its
    /// initial credits), or for reception `r`.
    fn bus_transfer(
        &self,
        stage: &Self::Stage,
        queue_slot: u16,
        line: LinePosition,
        of: TransferCause,
        ticket: CompletionToken,
    ) -> BusTransfer;

    /// Submits a transfer to the bus of `npu`, which schedules its events on `clock`.
    fn submit_transfer(
        &mut self,
        now: Time,
        npu: Npu,
        load: BusTransfer,
        clock: &mut impl BusScheduler,
    );

    /// Handles an event on the bus of `npu`. On completion of a transfer its token is returned, and the bus pauses
    /// until the consequences are handled and [`Self::resume_bus`] is called.
    fn handle_bus_event(
        &mut self,
        now: Time,
        npu: Npu,
        event: u32,
        clock: &mut impl BusScheduler,
    ) -> Option<CompletionToken>;

    /// Resumes the bus of `npu` after the event that completed a transfer.
    fn resume_bus(&mut self, now: Time, npu: Npu, event: u32, clock: &mut impl BusScheduler);

    /// Time that the member at `line` spends on the reduction of its `r`-th reception; `None` if it does not reduce.
    fn reduction(
        &self,
        stage: &Self::Stage,
        queue_slot: u16,
        line: LinePosition,
        r: u32,
    ) -> Option<Span>;

    /// Size in bytes of the request to send that precedes a message; `None` if messages need none.
    fn rts_bytes(&self) -> Option<u64>;
}

/// Events of an instant are ordered by content, so that an unrelated event reorders nothing.
#[derive(Debug)]
pub enum ContentOrder {}

/// Events are handled strictly in the order in which they were scheduled, as in ASTRA-sim: nodes take lanes by their
/// ids, collectives and messages are matched in the order in which they are issued, a member proceeds at once, and a
/// send is complete when its message has arrived.
#[derive(Debug)]
pub enum InsertionOrder {}

/// The order in which members issue collectives, and what follows from it where each issues by itself.
pub trait IssueDiscipline: CollectiveBackend {
    /// The order of events at an instant: [`ContentOrder`] or [`InsertionOrder`].
    type Order;

    /// Returns true if collectives are matched in the order in which members issue them, false if in program order.
    /// Only called in [`InsertionOrder`].
    fn matches_in_issue_order(&self) -> bool {
        true
    }

    /// Returns true if members of one line exchange the same messages in one stage and in the other. Called where
    /// collectives are matched in issue order, since members may then issue different ones.
    fn exchanges_same_messages(&self, _a: &Self::Stage, _b: &Self::Stage) -> bool {
        false
    }

    /// Returns a number that distinguishes this passage of `npu` through `stage` from others: requested once for each
    /// chunk and stage when the collective is issued, and passed back with every later call.
    fn queue_slot(&mut self, npu: Npu, stage: &Self::Stage) -> u16;

    /// Returns the changes that one after another bring members from the order in which they begin a collective of
    /// `chunk_schedule`, which has a closed form, into that in which they end it at one instant; `None` where that is not proved, and
    /// whoever is interested in the order has it carried out message by message. Only called in [`InsertionOrder`].
    fn order_of_ends(
        &self,
        _chunk_schedule: &ChunkSchedule<Self::Stage>,
        _extent: &GroupExtent,
        _quiet: &UncontendedCost<'_>,
    ) -> Option<Vec<OrderChange>> {
        None
    }

    /// Brings `members` from the order in which they send messages of `stage` into that in which these arrive. Only called for
    /// changes of [`Self::order_of_ends`].
    fn follow_order(
        &self,
        _stage: &Self::Stage,
        _messages: Range<u32>,
        _extent: &GroupExtent,
        _members: &mut Vec<Position>,
    ) {
    }

    /// Notifies that a member joins a collective; `named` is true if its trace names the group. Only called in
    /// [`InsertionOrder`].
    fn on_join(
        &mut self,
        _now: Time,
        _npu: Npu,
        _named: bool,
        _request: &CollectiveRequest,
        _extent: &GroupExtent,
    ) {
    }

    /// Notifies that a ready node of `npu` would never start in ASTRA-sim, since no running node is left to wake it.
    /// Only called in [`InsertionOrder`].
    fn on_idle(&mut self, _npu: Npu) {}

    /// Returns true if members may reach a stage in different directions or trees, so that messages are matched by
    /// sender.
    fn matches_by_sender(&self) -> bool {
        false
    }

    /// The direction around a ring, or the tree, that a queue slot selects; messages of members with equal ones
    /// correspond.
    fn slot_class(&self, _queue_slot: u16) -> u16 {
        0
    }

    /// Number of steps after which the member at `line` posts the receive for a message from index `from` whose
    /// sender, in another direction or tree, expects it after `recv_posted` steps. `None` if it posts no such receive.
    fn steps_before_receive(
        &self,
        _stage: &Self::Stage,
        _queue_slot: u16,
        _line: LinePosition,
        _from: u32,
        recv_posted: u32,
    ) -> Option<u32> {
        Some(recv_posted)
    }

    /// Step of the member at `line` that index `to`, in another direction or tree, requests as the sender's step
    /// `step`. `None` if there is no such step.
    fn requested_step(
        &self,
        _stage: &Self::Stage,
        _queue_slot: u16,
        _line: LinePosition,
        _to: u32,
        step: u32,
    ) -> Option<u32> {
        Some(step)
    }

    /// Returns the `k`-th source for which the member at `line` posts a receive once it has taken `taken` steps. Only
    /// called where messages follow a request to send.
    fn source(
        &self,
        stage: &Self::Stage,
        queue_slot: u16,
        line: LinePosition,
        taken: u32,
        k: u32,
    ) -> Option<ReceiveSource>;
}
