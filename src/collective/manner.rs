//! The manner in which collectives are carried out: what the engine asks while one is in flight.
//!
//! A collective is cut into *chunks*. At each member a chunk passes through the same
//! *stages*, one after another, each along one phase of the group. In a stage the member at a seat
//! runs a program: it has *credits*, takes steps, each of which needs some, and earns one with each
//! message that it has received and dealt with. When all steps are taken and all credits earned, the
//! stage is over for it. Steps and sources are computed when asked for, so schedules are never
//! materialised.

use super::{Course, Seat, Step};
use crate::group::{Extent, Paths, Phase};
use crate::ids::Npu;
use crate::topology::{Path, Topology};
use crate::trace::CollectiveKind;
use crate::units::{Amount, Span, Time};
use std::fmt;

/// A collective to be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The id of the node that asks, of the first member that did.
    pub node: u64,
    /// Which.
    pub kind: CollectiveKind,
    /// `comm_size` as the trace says it.
    pub bytes: u64,
    /// The whole buffer ([`CollectiveKind::buffer`]).
    pub buffer: u64,
    /// The how-manieth of the replay it is, which tells it from others in flight.
    pub number: u32,
}

/// Who takes part, and how the trace names them.
#[derive(Clone, Copy, Debug)]
pub struct Party<'a> {
    /// The NPU of each member, in the group's order.
    pub npus: &'a [Npu],
    /// Whether the trace names a group; if not, all ranks take part, but for those that differ in
    /// dimensions that do not.
    pub named: bool,
}

/// A source of messages that a member begins to listen to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The sender's index in the line.
    pub from: u32,
    /// The sender's step that is the message.
    pub step: u32,
}

/// Where a chunk waits for its turn at an NPU: a queue that admits some at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// The queue's number among those of the NPU.
    pub number: u32,
    /// How many chunks are in a stage at once.
    pub capacity: u32,
}

impl Queue {
    /// Numbers from here on are of queues that come and go with a collective.
    pub const APART: u32 = 1 << 31;

    /// The number of queue `number` of `count` that a collective ([`Request::number`]) has for itself. They
    /// are used again after 2^31, which two in flight then share.
    #[inline]
    pub fn apart(collective: u32, count: u32, number: u32) -> u32 {
        Self::APART | collective.wrapping_mul(count).wrapping_add(number)
    }
}

/// What a member that plays a script is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cue {
    /// It begins.
    Begin,
    /// Part `part` of its script is over: a message it sent has arrived, or a wait has ended.
    Over {
        /// Which part.
        part: u32,
    },
    /// A message has reached it.
    Message {
        /// The sender's position.
        from: u32,
        /// What the sender labelled it with.
        label: u32,
    },
}

/// What a member that plays a script does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Sends a message, which is a part of its script.
    Send {
        /// The receiver's position.
        to: u32,
        /// How much.
        bytes: u64,
        /// By which the receiver knows it.
        label: u32,
        /// Which part.
        part: u32,
    },
    /// Waits.
    Wait {
        /// How long.
        span: Span,
        /// The part that is over then.
        part: u32,
    },
    /// Takes a message that was there before it was listened to: the part is over by an event of its own.
    Take {
        /// Which part.
        part: u32,
    },
    /// Has done all.
    End,
}

/// What a network says of messages while nothing else is under way.
pub struct Quiet<'a> {
    /// What a message between two NPUs takes that meets no other; `None` where the network does not say.
    pub cost: &'a dyn Fn((Npu, Npu), Amount) -> Option<Span>,
    /// Whether messages of other operations may come in between.
    pub shared: bool,
    /// Whether messages along a dimension, among a line of so many members, never hold one another up while
    /// each member sends at most one at a time and receives at most one; the flag says that each goes to
    /// the next member of the line.
    pub apart: &'a dyn Fn(usize, u32, bool) -> bool,
}

/// What an endpoint does with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Nothing: it takes no time and is no event.
    Instant,
    /// It takes as long.
    Delay(Span),
    /// The message passes a bus.
    Bus,
}

/// The caller's name for a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(crate) word: u64,
    pub(crate) detail: u32,
}

/// What passes a bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// How much.
    pub bytes: u32,
    /// From the NPU, not to it.
    pub outward: bool,
    /// It is reduced on the way.
    pub reduces: bool,
    /// It goes back to where it came from.
    pub returns: bool,
    /// Who waits for it.
    pub ticket: Ticket,
}

/// Why something passes a bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passing {
    /// The member begins.
    Beginning,
    /// The reception, counted from 0.
    Reception(u32),
}

/// Schedules what happens on a bus.
pub trait Clock {
    /// Has [`Manner::bus`] called with `event` at `at`.
    fn after(&mut self, at: Time, event: u32);
}

/// Says what people call the algorithms of a collective over an extent, innermost dimension first: `ring 8
/// (nvlink), ring 4 (nodes)`.
pub struct Describer(Box<Describe>);

type Describe = dyn Fn(CollectiveKind, &Extent, &Topology, u64) -> String + Send + Sync;

impl Describer {
    /// What `say` says.
    pub fn new(
        say: impl Fn(CollectiveKind, &Extent, &Topology, u64) -> String + Send + Sync + 'static,
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
        extent: &Extent,
        topology: &Topology,
        bytes: u64,
    ) -> String {
        self.0(kind, extent, topology, bytes)
    }
}

impl fmt::Debug for Describer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Describer")
    }
}

/// How collectives are carried out.
pub trait Manner {
    /// Whether everything happens in the order in which it was scheduled, event by event, as
    /// ASTRA-sim has it: nodes take lanes by their ids, collectives and messages are matched in the
    /// order in which they are issued, a member goes on at once, and a send is complete when its message
    /// has arrived. Otherwise an instant is ordered by content.
    const IN_ORDER: bool;

    /// Where everything happens in order: whether collectives are matched in the order in which members
    /// issue them, and not in that of their programs.
    fn matches_as_issued(&self) -> bool {
        true
    }

    /// Whether members on two courses send one another the same messages all the way. Asked where collectives are
    /// matched as members issue them, which may be different ones.
    fn exchange_alike(
        &self,
        _extent: &Extent,
        _a: &Course<Self::Stage>,
        _b: &Course<Self::Stage>,
    ) -> bool {
        false
    }

    /// What a chunk does along one phase.
    type Stage: Copy + fmt::Debug;

    /// Where a group lies.
    fn extent(&self, party: Party<'_>, topology: &Topology) -> Extent;

    /// The paths along `phase` that messages have in common, if anybody asks.
    fn paths(&self, extent: &Extent, phase: &Phase, topology: &Topology) -> Paths;

    /// The one path that every message of a stage takes; `None` when they differ.
    fn path(&self, stage: &Self::Stage, paths: &Paths) -> Option<Path>;

    /// What decides, beside the group, its root, the kind and the bytes, how a request is carried out.
    fn variant(&self, request: &Request) -> u64;

    /// How the chunks of a collective travel. `paths` are those of [`Self::paths`].
    fn course(&self, request: &Request, extent: &Extent, paths: &[Paths]) -> Course<Self::Stage>;

    /// Whether a stage is carried out twice at once, each time with half of everything: as it is, and by seats that
    /// are [`Seat::reversed`]. Each is a *strand* of the chunk.
    fn goes_both_ways(&self, _: &Self::Stage) -> bool {
        false
    }

    /// The phase of the extent along which `stage` goes.
    fn phase(&self, stage: &Self::Stage) -> usize;

    /// The seat of the member at `position`, `None` when it has no part in `stage`.
    fn seat(&self, extent: &Extent, stage: &Self::Stage, position: u32, root: u32) -> Option<Seat>;

    /// What tells this passage of `npu` through `stage` from others: asked once for each chunk and
    /// stage when the collective is issued, and handed back with every question.
    fn turn(&mut self, npu: Npu, stage: &Self::Stage) -> u16;

    /// A member of a collective comes to it; `named` says that its trace names the group. Told where everything
    /// happens in order.
    fn joins(&mut self, _npu: Npu, _named: bool, _request: &Request, _extent: &Extent) {}

    /// A ready node of `npu` would not be looked at before another ends, and none is under way. Told where
    /// everything happens in order.
    fn sleeps(&mut self, _npu: Npu) {}

    /// Whether members may come to one stage by turns that do not go together, so that messages are matched by
    /// their senders.
    fn varies(&self) -> bool {
        false
    }

    /// The part of a turn in which those that go together are equal.
    fn way(&self, _turn: u16) -> u16 {
        0
    }

    /// Steps that the member in `seat` has taken when it listens to the message from index `from` that the
    /// sender, whose turn goes another way, takes for the one listened to after `heard` steps. `None` where it
    /// listens to no such message.
    fn hears(
        &self,
        _stage: &Self::Stage,
        _turn: u16,
        _seat: Seat,
        _from: u32,
        heard: u32,
    ) -> Option<u32> {
        Some(heard)
    }

    /// The step of the member in `seat` for which index `to`, whose turn goes another way, asks as the
    /// sender's step `step`. `None` where there is no such step.
    fn answers(
        &self,
        _stage: &Self::Stage,
        _turn: u16,
        _seat: Seat,
        _to: u32,
        step: u32,
    ) -> Option<u32> {
        Some(step)
    }

    /// The queue in which a chunk waits before `stage`, `None` where none waits.
    fn queue(&self, stage: &Self::Stage, turn: u16) -> Option<Queue>;

    /// Credits of the member in `seat` as it begins.
    fn credits(&self, stage: &Self::Stage, turn: u16, seat: Seat) -> u32;

    /// How many messages the member in `seat` receives.
    fn receives(&self, stage: &Self::Stage, turn: u16, seat: Seat) -> u32;

    /// The `i`-th message that the member in `seat` sends, `None` after the last.
    fn step(&self, stage: &Self::Stage, turn: u16, seat: Seat, i: u32) -> Option<Step>;

    /// The `k`-th source that the member in `seat` begins to listen to when it has taken `taken` steps.
    /// Asked only where messages must be asked for.
    fn source(
        &self,
        stage: &Self::Stage,
        turn: u16,
        seat: Seat,
        taken: u32,
        k: u32,
    ) -> Option<Source>;

    /// Whether members play `stage` from scripts of their own, not by steps.
    fn is_scripted(&self, stage: &Self::Stage) -> bool;

    /// Has the member at a position of a run play on, and puts what it does into `acts`. The number of the
    /// run tells collectives in flight apart; `root` is the root's position.
    fn play(
        &mut self,
        stage: &Self::Stage,
        extent: &Extent,
        player: (u32, u32),
        root: u32,
        cue: Cue,
        acts: &mut Vec<Act>,
    );

    /// What an endpoint does before it can send first, and after each reception.
    fn endpoint(&self, stage: &Self::Stage) -> Endpoint;

    /// What passes the bus of an endpoint of [`Endpoint::Bus`]: as the member begins (credit `p` of
    /// those that it begins with), or with reception `r`.
    fn load(&self, stage: &Self::Stage, turn: u16, seat: Seat, of: Passing, ticket: Ticket)
    -> Load;

    /// A load passes the bus of `npu`, which schedules what happens on it.
    fn carry(&mut self, now: Time, npu: Npu, load: Load, clock: &mut impl Clock);

    /// Something happened on the bus of `npu`. If a load is through, its ticket is returned, and the bus
    /// rests until what follows from that is done and [`Self::bus_resumes`].
    fn bus(&mut self, now: Time, npu: Npu, event: u32, clock: &mut impl Clock) -> Option<Ticket>;

    /// The bus of `npu` goes on after the event with which a load was through.
    fn bus_resumes(&mut self, now: Time, npu: Npu, event: u32, clock: &mut impl Clock);

    /// How long the member in `seat` reduces what its `r`-th reception brought, `None` if it does not.
    fn reduction(&self, stage: &Self::Stage, turn: u16, seat: Seat, r: u32) -> Option<Span>;

    /// Whether a member's messages of this stage wait for one another at its port, so that a group of n
    /// need not hold n² of them.
    fn is_paced(&self, stage: &Self::Stage) -> bool;

    /// The size of the message that asks for another one; `None` where none need be asked for.
    fn asking(&self) -> Option<u64>;

    /// Says how collectives are carried out, for people.
    fn describer(&self) -> Describer;

    /// How long a collective takes whose members all begin together, while nothing else is under way;
    /// `None` where that is not proved, and where not all members end together. `paths` are those of
    /// [`Self::paths`].
    fn closed_form(
        &self,
        course: &Course<Self::Stage>,
        extent: &Extent,
        paths: &[Paths],
        quiet: &Quiet<'_>,
    ) -> Option<Span>;
}
