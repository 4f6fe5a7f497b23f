//! The programs by which ASTRA-sim's members carry out their part of one phase, quirks included.
//!
//! Ring, direct and halving-doubling are one machine: a member has a window of *packets*, a packet is
//! one message with its size and its two partners, and one more comes with each message received. It
//! is dealt with by the endpoint, perhaps reduced, and then it is a credit to send. So packet p, counted
//! from 0, is the message of step p; of n steps only the first n packets are ever sent. With a window of
//! W, packet W + r comes with reception r, counted from 0.
//!
//! Packets come in rounds of W that are never reduced and Z that are: all of them in a reduce-scatter,
//! those of every other round in an all-reduce ([`Rounds`]). That gives the expected reductions for
//! Z = n - 1 and W = 1, and surprising ones for windows and for groups.

use super::Algorithm;
use crate::collective::{Load, Passing, Seat, Source, Step, Ticket};
use crate::units::Amount;

mod direct;
mod halving_doubling;
mod ring;
mod tree;

/// What is done along a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    AllReduce,
    ReduceScatter,
    AllGather,
    AllToAll,
}

/// One phase of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Index of the phase in the extent.
    pub(super) phase: u32,
    pub(super) algorithm: Algorithm,
    pub(super) part: Part,
    /// Bytes that a member brings.
    pub(super) bytes: u64,
    /// Members of a line.
    pub(super) size: u32,
    /// The level whose queues it passes: the dimension, or the innermost for groups.
    pub(super) level: u32,
    /// Which of the level's queues.
    pub(super) rotation: Rotation,
    /// Whether it is the phase of a named group, whose endpoints take a constant 10 ns.
    pub(super) fast: bool,
    /// The custom algorithm that stands for it all, if one does.
    pub(super) script: Option<u16>,
}

/// Which queues of a level a phase takes in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rotation {
    /// All; those of the second half go the other way round.
    All,
    /// Those of the first half.
    First,
    /// Those of the second half, the other way round.
    Second,
    /// The first one, always.
    None,
}

/// What tells a passage from others, in 16 bits: the queue, the direction and the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Turn {
    /// The queue of its level.
    pub queue: u16,
    /// Towards lower indices.
    pub backward: bool,
    /// The tree whose root is the lowest, not the highest.
    pub mirrored: bool,
}

impl Turn {
    const BACKWARD: u16 = 1 << 15;
    const MIRRORED: u16 = 1 << 14;
    /// The most queues that a level can have.
    pub const QUEUES: u32 = 1 << 14;

    #[inline]
    pub fn packed(self) -> u16 {
        self.queue
            | if self.backward { Self::BACKWARD } else { 0 }
            | if self.mirrored { Self::MIRRORED } else { 0 }
    }

    #[inline]
    pub fn unpacked(word: u16) -> Self {
        Self {
            queue: word & (Self::MIRRORED - 1),
            backward: word & Self::BACKWARD != 0,
            mirrored: word & Self::MIRRORED != 0,
        }
    }
}

/// Rounds of packets: `idle` that are not reduced, then `busy` that may be.
struct Rounds {
    idle: u32,
    busy: u32,
}

impl Rounds {
    /// Whether packet `p` may be reduced, and how many more after it may.
    fn left(&self, p: u32) -> Option<u32> {
        let round = u64::from(self.idle) + u64::from(self.busy);
        let place = u64::from(p) % round;
        (place >= u64::from(self.idle)).then(|| (round - place - 1) as u32)
    }

    /// Whether packet `p` is reduced.
    #[inline]
    fn reduces(&self, part: Part, p: u32) -> bool {
        let round = u64::from(self.idle) + u64::from(self.busy);
        let (number, place) = (u64::from(p) / round, u64::from(p) % round);
        place >= u64::from(self.idle)
            && match part {
                Part::ReduceScatter => true,
                Part::AllReduce => number.is_multiple_of(2),
                Part::AllGather | Part::AllToAll => false,
            }
    }
}

/// The place `by` further along a line of `size`, or back.
#[inline]
fn along(index: u32, size: u32, by: u32, backward: bool) -> u32 {
    let by = if backward { size - by } else { by };
    let to = index + by;
    if to >= size { to - size } else { to }
}

impl Phase {
    /// Bytes that a member has after the phase.
    pub(super) fn result(&self) -> u64 {
        let n = u64::from(self.size);
        match (self.algorithm, self.part) {
            (Algorithm::DoubleBinaryTree, _) => self.bytes,
            (_, Part::AllReduce | Part::AllToAll) => self.bytes,
            (_, Part::ReduceScatter) => self.bytes / n,
            (_, Part::AllGather) => self.bytes.saturating_mul(n),
        }
    }

    #[inline]
    pub(super) fn credits(&self, turn: Turn, seat: Seat) -> u32 {
        match self.algorithm {
            Algorithm::Ring | Algorithm::HalvingDoubling => 1,
            Algorithm::Direct { window } => direct::window(window, seat),
            Algorithm::DoubleBinaryTree => tree::Role::of(turn, seat).credits(),
        }
    }

    #[inline]
    pub(super) fn receives(&self, turn: Turn, seat: Seat) -> u32 {
        match self.algorithm {
            Algorithm::Ring => ring::steps(self, seat),
            Algorithm::Direct { .. } => direct::steps(self, seat),
            Algorithm::HalvingDoubling => halving_doubling::steps(self, seat),
            Algorithm::DoubleBinaryTree => tree::Role::of(turn, seat).receives(),
        }
    }

    #[inline]
    pub(super) fn step(&self, turn: Turn, seat: Seat, i: u32) -> Option<Step> {
        let (to, bytes, arrived) = match self.algorithm {
            Algorithm::Ring => {
                let to = along(seat.index, seat.size, 1, turn.backward);
                (i < ring::steps(self, seat)).then(|| (to, ring::bytes(self), 0))?
            }
            Algorithm::Direct { .. } => {
                let to = along(
                    seat.index,
                    seat.size,
                    direct::distance(seat, i),
                    turn.backward,
                );
                let arrived = direct::arrived(self, seat, i);
                (i < direct::steps(self, seat)).then(|| (to, ring::bytes(self), arrived))?
            }
            Algorithm::HalvingDoubling => {
                if i >= halving_doubling::steps(self, seat) {
                    return None;
                }
                let packet = halving_doubling::packet(self, seat, i);
                (
                    halving_doubling::partner(seat, packet.distance),
                    packet.bytes,
                    0,
                )
            }
            Algorithm::DoubleBinaryTree => {
                let step = tree::Role::of(turn, seat).step(i)?;
                return Some(Step {
                    to: step.to,
                    amount: Amount::whole(self.bytes),
                    after: step.after,
                    arrived: 0,
                    heard: step.heard,
                });
            }
        };
        // Step i of one is what its partner listens to with its own step i.
        Some(Step {
            to,
            amount: Amount::whole(bytes),
            after: i + 1,
            arrived,
            heard: i + 1,
        })
    }

    /// The `k`-th source to which a member listens from when it has taken `taken` steps.
    pub(super) fn source(&self, turn: Turn, seat: Seat, taken: u32, k: u32) -> Option<Source> {
        if self.algorithm == Algorithm::DoubleBinaryTree {
            return tree::Role::of(turn, seat).source(turn, seat, taken, k);
        }
        let step = taken.checked_sub(1).filter(|_| k == 0)?;
        let from = match self.algorithm {
            Algorithm::Direct { .. } => {
                let distance = direct::distance(seat, step);
                along(seat.index, seat.size, distance, !turn.backward)
            }
            Algorithm::HalvingDoubling => {
                let packet = halving_doubling::packet(self, seat, step);
                halving_doubling::partner(seat, packet.distance)
            }
            _ => along(seat.index, seat.size, 1, !turn.backward),
        };
        Some(Source { from, step })
    }

    /// The rounds of its packets.
    #[inline]
    fn rounds(&self, seat: Seat) -> Rounds {
        let (idle, busy) = match self.algorithm {
            Algorithm::Direct { window } => {
                let idle = direct::window(window, seat);
                match self.fast {
                    true => (idle, idle.saturating_mul(seat.size - 1)),
                    false => (idle, idle),
                }
            }
            Algorithm::HalvingDoubling => (1, halving_doubling::levels(seat) - 1),
            Algorithm::Ring | Algorithm::DoubleBinaryTree => (1, seat.size - 1),
        };
        Rounds { idle, busy }
    }

    /// What passes the bus: packets that are not reduced leave the NPU, the others come to it, and all but
    /// the last window of those of a round go back.
    pub(super) fn load(&self, turn: Turn, seat: Seat, of: Passing, ticket: Ticket) -> Load {
        let load = |bytes: u64, outward, reduces, returns| Load {
            // Larger ones are refused before.
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            outward,
            reduces,
            returns,
            ticket,
        };
        if self.algorithm == Algorithm::DoubleBinaryTree {
            let reduces = tree::Role::of(turn, seat).reduces();
            return match of {
                Passing::Beginning => load(self.bytes, true, false, false),
                Passing::Reception(r) => {
                    let first_child = r == 0 && tree::Role::of(turn, seat).receives() > 1;
                    load(self.bytes, false, reduces, reduces && !first_child)
                }
            };
        }
        let rounds = self.rounds(seat);
        // All packets that a member begins with are the first of a round.
        let p = match of {
            Passing::Beginning => 0,
            Passing::Reception(r) => rounds.idle + r,
        };
        let bytes = match self.algorithm {
            Algorithm::HalvingDoubling => halving_doubling::packet(self, seat, p).bytes,
            _ => ring::bytes(self),
        };
        match rounds.left(p) {
            None => load(bytes, true, false, false),
            Some(left) => {
                let reduces = rounds.reduces(self.part, p);
                load(bytes, false, reduces, left + 1 > rounds.idle)
            }
        }
    }

    /// The bytes that reception `r` has a member reduce.
    #[inline]
    pub(super) fn reduced(&self, turn: Turn, seat: Seat, r: u32) -> Option<u64> {
        let rounds = self.rounds(seat);
        let reduces = || rounds.reduces(self.part, rounds.idle + r);
        match self.algorithm {
            Algorithm::Ring | Algorithm::Direct { .. } => reduces().then(|| ring::bytes(self)),
            // The size is that of the next message: half of what came in a reduce-scatter.
            Algorithm::HalvingDoubling => {
                reduces().then(|| halving_doubling::packet(self, seat, 1 + r).bytes)
            }
            Algorithm::DoubleBinaryTree => {
                let reduces = tree::Role::of(turn, seat).reduces();
                reduces.then_some(self.bytes)
            }
        }
    }
}
