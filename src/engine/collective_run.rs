//! A collective in flight, message by message: its chunks, and how far each is at each member.

use super::as_recorded::Waiting;
use super::plan::{GroupPlan, NONE};
use crate::collective::{Manner, Request, Seat};
use crate::ids::{NodeIndex, Rank};
use crate::network::Ports;
use crate::units::{Span, Time};
use std::collections::BTreeMap;

/// A chunk has not begun any stage at a member.
pub(super) const OUTSIDE: u16 = u16::MAX;

/// One collective of one group, from its first arrival to its last completion.
#[derive(Debug)]
pub(super) struct Run<S> {
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
    /// The stages of every chunk.
    pub stages: Vec<S>,
    pub chunks: u32,
    /// Where it lasts as recorded: when each member's part began, [`Time::END`] before.
    pub begins: Vec<Time>,
    /// When the last of them ends.
    pub over: Time,
    /// The longest recorded duration of a member.
    pub transfer: Span,
    /// Set when the run goes message by message.
    pub progress: Option<Progress>,
}

/// How far a chunk is at a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    /// The stage that it is in; the number of stages when it is done, [`OUTSIDE`] before the first.
    pub stage: u16,
    /// Whether it has been admitted to its stage.
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

/// How far each chunk is at each position.
#[derive(Debug)]
pub(super) struct Progress {
    pub ports: Ports,
    /// By chunk and then position.
    pub cells: Vec<Cell>,
    /// What tells a passage through a stage from others ([`Manner::turn`]), by cell and stage.
    pub turns: Vec<u16>,
    /// Messages that were there before their receiver was in their stage, by cell and stage.
    pub waiting: Vec<u32>,
    /// Messages, and askings for one, that their cell was in the stage for but not yet ready: by cell,
    /// stage, the number of steps it must have taken, and whether it is an asking.
    pub early: BTreeMap<(u32, u16, u32, bool), u32>,
    /// Chunks that are done, by position.
    pub done: Vec<u32>,
    /// Positions of which all chunks are done.
    pub ended: u32,
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

impl<S> Default for Run<S> {
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
            stages: Vec::new(),
            chunks: 0,
            begins: Vec::new(),
            over: Time::ZERO,
            transfer: Span::ZERO,
            progress: None,
        }
    }
}

impl<S: Copy> Run<S> {
    /// Makes a used run ready for another collective.
    pub fn reset<M: Manner<Stage = S>>(
        &mut self,
        group: u32,
        sequence: u32,
        request: Request,
        root: u32,
        plan: &GroupPlan,
        manner: &M,
    ) {
        let members = plan.members.len();
        (self.group, self.sequence) = (group, sequence);
        (self.request, self.root) = (Some(request), root);
        self.nodes.clear();
        self.nodes.resize(members, NONE);
        self.starts.clear();
        self.starts.resize(members, Time::ZERO);
        self.arrived = 0;
        self.fresh.clear();
        self.progress = None;
        self.begins.clear();
        (self.over, self.transfer) = (Time::ZERO, Span::ZERO);
        self.chunks = manner.stages(&request, &plan.extent, &mut self.stages);
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

    /// Begins to go message by message through `ports`.
    pub fn begin(&mut self, ports: Ports) {
        let members = self.nodes.len();
        let cells = members * self.chunks as usize;
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
            turns: vec![0; cells * self.stages.len()],
            waiting: vec![0; cells * self.stages.len()],
            early: BTreeMap::new(),
            done: vec![0; members],
            ended: 0,
        });
    }

    /// The position of a cell.
    #[inline]
    pub fn position(&self, cell: u32) -> u32 {
        match self.chunks {
            1 => cell,
            _ => cell % self.nodes.len() as u32,
        }
    }

    /// The stage in which a cell is, its turn in it and the seat there; no seat where its member has no
    /// part, nothing when it is done or outside.
    #[inline]
    pub fn place<M: Manner<Stage = S>>(
        &self,
        cell: u32,
        plan: &GroupPlan,
        manner: &M,
    ) -> Option<(S, u16, Option<Seat>)> {
        let progress = self.progress.as_ref()?;
        let number = progress.cells[cell as usize].stage;
        let stage = *self.stages.get(number as usize)?;
        let turn = progress.turns[cell as usize * self.stages.len() + number as usize];
        let seat = manner.seat(&plan.extent, &stage, self.position(cell), self.root);
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
