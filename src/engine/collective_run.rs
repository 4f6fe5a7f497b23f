//! A collective in flight, message by message: its chunks, and how far each is at each member.

use super::as_recorded::Waiting;
use super::plan::{GroupPlan, NONE};
use super::ways::Unsorted;
use crate::collective::{Course, Manner, Request, Seat};
use crate::ids::{NodeIndex, Rank};
use crate::network::Ports;
use crate::units::{Span, Time};
use std::collections::BTreeMap;

/// A chunk has not begun any stage at a member.
pub(super) const OUTSIDE: u16 = u16::MAX;

/// One collective of one group, from its first arrival to its last completion.
#[derive(Debug)]
pub(super) struct Run {
    /// Index among the plan's groups.
    pub group: u32,
    /// The how-manieth collective of the group.
    pub sequence: u32,
    /// What is carried out.
    pub request: Option<Request>,
    /// The root's position.
    pub root: u32,
    /// The node of each member, [`NONE`] before it arrives and for absent members.
    pub nodes: Vec<u32>,
    /// When each member arrived.
    pub starts: Vec<Time>,
    /// Present members that have arrived.
    pub arrived: u32,
    /// When the first member arrived.
    pub first: Time,
    /// When the last member arrived.
    pub last: Time,
    /// Members that arrived at this instant.
    pub fresh: Vec<u32>,
    /// The number of its course.
    pub course: u32,
    /// The number of each position's course, where members carry out different collectives whose messages are
    /// the same; empty where they do not.
    pub own: Vec<u32>,
    /// As its course says.
    pub chunks: u32,
    /// Likewise: in how many strands a chunk is at most.
    pub strands: u32,
    /// How many stages each chunk passes.
    pub length: usize,
    /// Where it lasts as recorded: when each member's part began, [`Time::END`] before.
    pub begins: Vec<Time>,
    /// When the last of them ends.
    pub over: Time,
    /// The longest recorded duration of a member.
    pub transfer: Span,
    /// Which folding answers it, where its links may be asked back; 0 if none does.
    pub folding: u32,
    /// In which settlement of its instant that was.
    pub folded_in: u32,
    /// Set when the run goes message by message.
    pub progress: Option<Progress>,
}

/// How far a chunk is at a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    /// The stage that it is in; the number of stages when it is done, [`OUTSIDE`] before the first.
    pub stage: u16,
    /// Whether it has been admitted to its stage, and, where that has two strands, is not done with it.
    pub begun: bool,
    /// Whether a message whose leaving matters, the last of the stage or any paced one, has yet to
    /// leave.
    pub leaving: bool,
    /// Steps taken in its stage.
    pub taken: u32,
    /// Messages that have arrived and been listened to.
    pub arrived: u32,
    /// Credits, those that steps have used included.
    pub credits: u32,
}

/// How far the chunks of a member are in passing a gate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gate {
    /// The next passage.
    pub next: u32,
    /// Chunks that are inside.
    pub inside: u32,
}

/// How far each chunk is at each position.
#[derive(Debug)]
pub(super) struct Progress {
    pub ports: Ports,
    /// By chunk, strand and position. A second strand is there in stages that have one.
    pub cells: Vec<Cell>,
    /// What tells a passage through a stage from others ([`Manner::turn`]), by cell and stage.
    pub turns: Vec<u16>,
    /// By position and phase, where chunks pass gates.
    pub gates: Vec<Gate>,
    /// Messages that were there before their receiver was in their stage, by cell and stage.
    pub waiting: Vec<u32>,
    /// Messages, and askings for one, that their cell was in the stage for but not yet ready: by cell,
    /// stage, the number of steps it must have taken, and whether it is an asking.
    pub early: BTreeMap<(u32, u16, u32, bool), u32>,
    /// Chunks that are done, by position.
    pub done: Vec<u32>,
    /// Positions of which all chunks are done.
    pub ended: u32,
    /// Messages and askings that came before their receiver was enrolled, by cell, where members may come to
    /// one stage different ways.
    pub unsorted: BTreeMap<u32, Vec<Unsorted>>,
    /// Likewise, the position that was enrolled first.
    pub first: Option<u32>,
    /// Likewise, whether members do come different ways: what one sends may then reach nobody.
    pub mixed: bool,
    /// Positions of a sender and a receiver that does not listen to it, the first of them.
    pub crossing: Option<(u32, u32)>,
}

/// What the op of a message in flight needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// A step of a collective, between two cells.
    Step {
        run: u32,
        from: u32,
        to: u32,
        stage: u16,
        /// Steps that the receiver must have taken to listen.
        heard: u32,
    },
    /// A member asks another for the message that is step `step` of its stage.
    Asking {
        run: u32,
        from: u32,
        to: u32,
        stage: u16,
        step: u32,
    },
    /// A message that is a part of the script of its sender's cell.
    Scripted {
        run: u32,
        from: u32,
        to: u32,
        part: u32,
        /// By which the receiver knows it.
        label: u32,
    },
    /// A message between two ranks. `sender` is [`NONE`] when it has no trace.
    Send {
        pair: u32,
        sender: u32,
        node: u32,
        ports: Ports,
    },
    /// The receiver of a message between two ranks asks for it: its instance and node.
    AskingRank { pair: u32, receiver: u32, node: u32 },
}

/// Ops of messages in flight, in slots that are used again.
#[derive(Debug, Default)]
pub(super) struct Ops {
    slots: Vec<Op>,
    /// By slot, the how-manieth to be handed over its message was, where messages meet.
    handed: Vec<u64>,
    count: u64,
    free: Vec<u32>,
    inserted: u64,
}

impl Ops {
    #[inline]
    pub fn insert(&mut self, op: Op) -> u32 {
        self.inserted += 1;
        self.reserve(op)
    }

    /// As [`Self::insert`], for what is no message.
    #[inline]
    pub fn reserve(&mut self, op: Op) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = op;
                slot
            }
            None => {
                self.slots.push(op);
                self.slots.len() as u32 - 1
            }
        }
    }

    /// The message of `op` is handed over.
    #[inline]
    pub fn hand_over(&mut self, op: u32) {
        if self.handed.len() < self.slots.len() {
            self.handed.resize(self.slots.len(), 0);
        }
        self.count += 1;
        self.handed[op as usize] = self.count;
    }

    /// The how-manieth to be handed over the message of `op` was.
    #[inline]
    pub fn handed(&self, op: u32) -> u64 {
        self.handed[op as usize]
    }

    /// How many ops there have been.
    pub fn inserted(&self) -> u64 {
        self.inserted
    }

    #[inline]
    pub fn get(&self, op: u32) -> Op {
        self.slots[op as usize]
    }

    #[inline]
    pub fn remove(&mut self, op: u32) -> Op {
        self.free.push(op);
        self.slots[op as usize]
    }
}

impl Default for Run {
    fn default() -> Self {
        Self {
            group: 0,
            sequence: 0,
            request: None,
            root: 0,
            nodes: Vec::new(),
            starts: Vec::new(),
            arrived: 0,
            first: Time::ZERO,
            last: Time::ZERO,
            fresh: Vec::new(),
            course: 0,
            own: Vec::new(),
            chunks: 0,
            strands: 1,
            length: 0,
            begins: Vec::new(),
            over: Time::ZERO,
            transfer: Span::ZERO,
            folding: 0,
            folded_in: 0,
            progress: None,
        }
    }
}

impl Run {
    /// Makes a used run ready for another collective.
    pub fn reset<S: Copy>(
        &mut self,
        (group, sequence): (u32, u32),
        (request, root): (Request, u32),
        members: usize,
        (number, course): (u32, &Course<S>),
    ) {
        (self.group, self.sequence) = (group, sequence);
        (self.request, self.root) = (Some(request), root);
        self.nodes.clear();
        self.nodes.resize(members, NONE);
        self.starts.clear();
        self.starts.resize(members, Time::ZERO);
        self.arrived = 0;
        self.fresh.clear();
        self.own.clear();
        self.progress = None;
        self.folding = 0;
        self.begins.clear();
        (self.over, self.transfer) = (Time::ZERO, Span::ZERO);
        self.course = number;
        (self.chunks, self.length) = (course.chunks(), course.length());
        self.strands = course.strands();
    }

    /// Member `member` arrives with its node.
    pub fn arrive(&mut self, now: Time, member: u32, node: NodeIndex) {
        if self.arrived == 0 {
            self.first = now;
        }
        self.last = now;
        self.arrived += 1;
        self.nodes[member as usize] = node.0;
        self.starts[member as usize] = now;
    }

    /// The rank with a trace that started last; of several the lowest.
    pub fn last_to_start(&self, plan: &GroupPlan) -> Rank {
        let late = self.starts.iter().zip(&self.nodes).zip(&plan.members);
        let late = late.filter(|((start, node), _)| **start == self.last && **node != NONE);
        let ranks = late.map(|(_, rank)| *rank).min();
        ranks.expect("somebody started last")
    }

    /// How long its members waited for the last to start, and for whom.
    pub fn waiting(&self, plan: &GroupPlan) -> Waiting {
        let present = self.nodes.iter().zip(&self.starts);
        let present = present.filter(|(n, _)| **n != NONE);
        let waited = present.map(|(_, start)| self.last.since(*start)).sum();
        let late = (self.first < self.last).then(|| (self.last_to_start(plan), waited));
        (waited, late)
    }

    /// Begins to go message by message through `ports`, and through `gates` at each member.
    pub fn begin(&mut self, ports: Ports, gates: usize) {
        let members = self.nodes.len();
        let cells = members * self.chunks as usize * self.strands as usize;
        let outside = Cell {
            stage: OUTSIDE,
            begun: false,
            leaving: false,
            taken: 0,
            arrived: 0,
            credits: 0,
        };
        self.progress = Some(Progress {
            ports,
            cells: vec![outside; cells],
            turns: vec![0; cells * self.length],
            waiting: vec![0; cells * self.length],
            gates: vec![Gate::default(); members * gates],
            early: BTreeMap::new(),
            done: vec![0; members],
            ended: 0,
            unsorted: BTreeMap::new(),
            first: None,
            mixed: false,
            crossing: None,
        });
    }

    /// The number of the course of the member at a position.
    #[inline]
    pub fn course_at(&self, position: u32) -> u32 {
        match self.own.is_empty() {
            true => self.course,
            false => self.own[position as usize],
        }
    }

    /// The cell of a chunk at a position; where a chunk is in strands, that of the first.
    #[inline]
    pub fn cell(&self, chunk: u32, position: u32) -> u32 {
        chunk * self.strands * self.nodes.len() as u32 + position
    }

    /// The cell of the other strand.
    #[inline]
    pub fn other_strand(&self, cell: u32) -> u32 {
        let members = self.nodes.len() as u32;
        match self.strand(cell) {
            0 => cell + members,
            _ => cell - members,
        }
    }

    /// The strand of a cell.
    #[inline]
    pub fn strand(&self, cell: u32) -> u32 {
        match self.strands {
            1 => 0,
            strands => cell / self.nodes.len() as u32 % strands,
        }
    }

    /// The chunk of a cell.
    #[inline]
    pub fn chunk(&self, cell: u32) -> u32 {
        match self.chunks {
            1 => 0,
            _ => cell / (self.nodes.len() as u32 * self.strands),
        }
    }

    /// The chunk of a cell, or any other if all go alike.
    #[inline]
    pub fn chunk_in<S: Copy>(&self, course: &Course<S>, cell: u32) -> u32 {
        if course.is_alike() {
            0
        } else {
            self.chunk(cell)
        }
    }

    /// The position of a cell.
    #[inline]
    pub fn position(&self, cell: u32) -> u32 {
        match self.chunks * self.strands {
            1 => cell,
            _ => cell % self.nodes.len() as u32,
        }
    }

    /// The stage in which a cell is, its turn in it and the seat there; no seat where its member has no
    /// part, nothing when it is done or outside.
    #[inline]
    pub fn place<M: Manner>(
        &self,
        cell: u32,
        course: &Course<M::Stage>,
        plan: &GroupPlan,
        manner: &M,
    ) -> Option<(M::Stage, u16, Option<Seat>)> {
        let progress = self.progress.as_ref()?;
        let number = progress.cells[cell as usize].stage;
        let stage = *course.stage(self.chunk_in(course, cell), number)?;
        let turn = progress.turns[cell as usize * self.length + number as usize];
        let seat = manner.seat(&plan.extent, &stage, self.position(cell), self.root);
        let seat = match self.strand(cell) {
            0 => seat,
            _ => seat.map(Seat::reversed),
        };
        Some((stage, turn, seat))
    }
}

impl Progress {
    /// Remembers a message or an asking that `cell` is not ready for.
    pub fn keep(&mut self, cell: u32, stage: u16, taken: u32, asking: bool) {
        *self.early.entry((cell, stage, taken, asking)).or_insert(0) += 1;
    }

    /// How many messages or askings were kept for `cell` until it had taken `taken` steps.
    #[inline]
    pub fn kept(&mut self, cell: u32, stage: u16, taken: u32, asking: bool) -> u32 {
        match self.early.is_empty() {
            true => 0,
            false => self
                .early
                .remove(&(cell, stage, taken, asking))
                .unwrap_or(0),
        }
    }
}
