//! Programs of ASTRA-sim's members for one phase, quirks included.
//!
//! Ring, direct and halving-doubling are one state machine: a member has a window of *packets*, a packet is one
//! message with its size and its two partners, and one more comes with each message received. The endpoint processes
//! it, possibly reduces it, and then it is a credit to send. So packet p, counted from 0, is the message of step p;
//! of n steps only the first n packets are ever sent. With a window of W, packet W + r comes with reception r,
//! counted from 0.
//!
//! Packets come in rounds of W that are never reduced and Z that are: all of them in a reduce-scatter, those of every
//! other round in an all-reduce ([`Rounds`]). That gives the expected reductions for Z = n - 1 and W = 1, and
//! surprising ones for windows and for groups.
//!
//! Where quirks are corrected, `direct` starts to gather when everything is reduced and reduces in groups as
//! elsewhere, halving-doubling reduces all L messages of its first half at their own sizes (Z = L), a tree reduces
//! only on its way up, and shares are exact fractions.

use super::Algorithm;
use super::quirks::{Quirk, Quirks};
use crate::collective::{Load, Passing, Seat, Source, Step, Ticket};
use crate::units::Amount;

mod direct;
pub(super) mod halving_doubling;
mod ring;
mod tree;

/// Operation of a phase.
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
    /// Data that a member contributes.
    pub(super) amount: Amount,
    /// Members of a line.
    pub(super) size: u32,
    /// Level whose queues it passes: the dimension, or the innermost for groups.
    pub(super) level: u32,
    /// Queues of the level that it takes.
    pub(super) rotation: Rotation,
    /// Whether it is the phase of a named group.
    pub(super) named: bool,
    /// Index among the collective's phases.
    pub(super) order: u32,
    /// The number of its collective.
    pub(super) collective: u32,
    /// Quirks that apply.
    pub(super) quirks: Quirks,
    /// Custom algorithm that replaces it, if any.
    pub(super) script: Option<u16>,
}

/// Queues of a level that a phase takes in turn.
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

/// Identity of a passage, in 16 bits: the queue, the direction and the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Turn {
    /// Queue of its level.
    pub queue: u16,
    /// Whether it runs towards lower indices.
    pub backward: bool,
    /// Whether it takes the mirrored tree, whose root is the lowest member and not the highest.
    pub mirrored: bool,
}

impl Turn {
    const BACKWARD: u16 = 1 << 15;
    const MIRRORED: u16 = 1 << 14;
    /// Maximum number of queues of a level.
    pub const QUEUES: u32 = 1 << 14;

    #[inline]
    pub fn packed(self) -> u16 {
        self.queue
            | if self.backward { Self::BACKWARD } else { 0 }
            | if self.mirrored { Self::MIRRORED } else { 0 }
    }

    /// Returns the part of a queue slot that is equal for members which exchange messages in step.
    #[inline]
    pub fn way(word: u16) -> u16 {
        word & (Self::BACKWARD | Self::MIRRORED)
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
    /// Returns the number of packets of the round after packet `p` that may be reduced, if `p` may be.
    fn left(&self, p: u32) -> Option<u32> {
        // In 64 bits, because the sum may exceed 32.
        let round = u64::from(self.idle) + u64::from(self.busy);
        let place = u64::from(p) % round;
        (place >= u64::from(self.idle)).then(|| (round - place - 1) as u32)
    }

    /// Returns whether packet `p` is reduced.
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

/// Returns the index `by` further along a line of `size`, or back.
#[inline]
fn along(index: u32, size: u32, by: u32, backward: bool) -> u32 {
    // `by` is below `size`, so one conditional subtraction replaces the remainder.
    let by = if backward { size - by } else { by };
    let to = index + by;
    if to >= size { to - size } else { to }
}

/// Returns the distance from `other` to the member in `seat`, or back from there.
fn apart(other: u32, seat: Seat, backward: bool) -> u32 {
    let (from, to) = match backward {
        false => (other, seat.index),
        true => (seat.index, other),
    };
    if to >= from {
        to - from
    } else {
        seat.size - (from - to)
    }
}

impl Phase {
    /// Returns one of `n` equal parts: in whole bytes, truncated, with [`Quirk::Padding`], and exact without.
    pub(super) fn part(&self, amount: Amount, n: u64) -> Amount {
        match self.quirks.has(Quirk::Padding) {
            true => Amount::whole(amount.bytes() / n),
            false => Amount {
                bytes: amount.bytes,
                parts: amount.parts.saturating_mul(n),
            },
        }
    }

    /// Returns `amount` multiplied by `n`.
    fn times(amount: Amount, n: u64) -> Amount {
        match amount.parts.is_multiple_of(n) {
            true => Amount {
                bytes: amount.bytes,
                // Cancels an earlier division exactly, so that a reduce-scatter and an all-gather restore the amount.
                parts: amount.parts / n,
            },
            false => Amount {
                bytes: amount.bytes.saturating_mul(n),
                parts: amount.parts,
            },
        }
    }

    /// Returns the data of a member after the phase.
    pub(super) fn result(&self) -> Amount {
        let n = u64::from(self.size);
        match (self.algorithm, self.part) {
            (Algorithm::DoubleBinaryTree, _) => self.amount,
            (_, Part::AllReduce | Part::AllToAll) => self.amount,
            (_, Part::ReduceScatter) => self.part(self.amount, n),
            (_, Part::AllGather) => Self::times(self.amount, n),
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
        let after = i + 1;
        let (to, amount, after, arrived) = match self.algorithm {
            Algorithm::Ring => {
                let to = along(seat.index, seat.size, 1, turn.backward);
                (i < ring::steps(self, seat)).then(|| (to, ring::amount(self), after, 0))?
            }
            Algorithm::Direct { .. } => {
                let to = along(
                    seat.index,
                    seat.size,
                    direct::distance(seat, i),
                    turn.backward,
                );
                let (after, arrived) = direct::after(self, seat, i);
                (i < direct::steps(self, seat)).then(|| (to, ring::amount(self), after, arrived))?
            }
            Algorithm::HalvingDoubling => {
                if i >= halving_doubling::steps(self, seat) {
                    return None;
                }
                let packet = halving_doubling::packet(self, seat, i);
                (
                    halving_doubling::partner(seat, packet.distance),
                    packet.amount,
                    after,
                    0,
                )
            }
            Algorithm::DoubleBinaryTree => {
                let step = tree::Role::of(turn, seat).step(i)?;
                return Some(Step {
                    to: step.to,
                    amount: self.amount,
                    after: step.after,
                    arrived: 0,
                    heard: step.heard,
                });
            }
        };
        // Step i of a member is matched by its partner's own step i.
        Some(Step {
            to,
            amount,
            after,
            arrived,
            heard: i + 1,
        })
    }

    /// Returns the `k`-th source from which a member receives after `taken` steps.
    pub(super) fn source(&self, turn: Turn, seat: Seat, taken: u32, k: u32) -> Option<Source> {
        if self.algorithm == Algorithm::DoubleBinaryTree {
            return tree::Role::of(turn, seat).source(turn, seat, taken, k);
        }
        // Receives are posted one by one, each with the send of the same step.
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

    /// Returns whether members of `other`, along the same lines, exchange the same messages: as many with the same
    /// partners, of the same sizes.
    pub(super) fn exchanges_as(&self, other: &Self) -> bool {
        let seat = Seat {
            size: self.size,
            index: 0,
            root: 0,
        };
        let turn = Turn::default();
        let backward = |of: &Self| of.rotation == Rotation::Second;
        let count = self.receives(turn, seat);
        if self.script.is_some()
            || other.script.is_some()
            || (self.size, backward(self)) != (other.size, backward(other))
            || count != other.receives(turn, seat)
        {
            return false;
        }
        // The messages of a ring are alike; all others have at most two for each member.
        if (self.algorithm, other.algorithm) == (Algorithm::Ring, Algorithm::Ring) {
            return ring::amount(self) == ring::amount(other);
        }
        let message = |of: &Self, i| {
            let step = of.step(turn, seat, i);
            step.map(|step| (step.to, step.amount, step.heard))
        };
        (0..count).all(|i| message(self, i) == message(other, i))
    }

    /// Implements [`Manner::hears`](crate::collective::Manner::hears). Members that go opposite ways round a ring of
    /// three or more never receive from each other. All members of `direct` exchange in every round, each at a
    /// distance along its own direction. Members in different trees receive from their own relatives only.
    pub(super) fn hears(&self, turn: Turn, seat: Seat, from: u32, heard: u32) -> Option<u32> {
        match self.algorithm {
            Algorithm::Ring => {
                (along(seat.index, seat.size, 1, !turn.backward) == from).then_some(heard)
            }
            Algorithm::Direct { .. } => {
                let others = seat.size - 1;
                let round = heard.checked_sub(1)? / others;
                Some(round * others + apart(from, seat, turn.backward))
            }
            Algorithm::HalvingDoubling => Some(heard),
            Algorithm::DoubleBinaryTree => {
                // Steps taken and index of each source: two children at the start, the parent after the message up.
                let sources = [(0, 0), (0, 1), (1, 0)].into_iter();
                let mut sources = sources.filter_map(|(taken, k)| {
                    let source = self.source(turn, seat, taken, k)?;
                    (source.from == from).then_some(taken)
                });
                sources.next()
            }
        }
    }

    /// Implements [`Manner::answers`](crate::collective::Manner::answers).
    pub(super) fn answers(&self, turn: Turn, seat: Seat, to: u32, step: u32) -> Option<u32> {
        match self.algorithm {
            Algorithm::Ring => {
                (along(seat.index, seat.size, 1, turn.backward) == to).then_some(step)
            }
            Algorithm::Direct { .. } => {
                let others = seat.size - 1;
                let distance = apart(to, seat, !turn.backward);
                Some(step / others * others + distance - 1)
            }
            Algorithm::HalvingDoubling => Some(step),
            Algorithm::DoubleBinaryTree => {
                let role = tree::Role::of(turn, seat);
                (0..3).find(|&i| role.step(i).is_some_and(|message| message.to == to))
            }
        }
    }

    /// Returns the rounds of its packets.
    #[inline]
    fn rounds(&self, seat: Seat) -> Rounds {
        let (idle, busy) = match self.algorithm {
            Algorithm::Direct { window } => {
                let idle = direct::window(window, seat);
                match self.named && self.quirks.has(Quirk::GroupReductions) {
                    true => (idle, idle.saturating_mul(seat.size - 1)),
                    false => (idle, idle),
                }
            }
            Algorithm::HalvingDoubling => {
                let levels = halving_doubling::levels(seat);
                match self.quirks.has(Quirk::HalvingDoublingReductions) {
                    true => (1, levels - 1),
                    false => (1, levels),
                }
            }
            Algorithm::Ring | Algorithm::DoubleBinaryTree => (1, seat.size - 1),
        };
        Rounds { idle, busy }
    }

    /// Returns the bus transfer of a packet: those that are not reduced leave the NPU, the others come to it, and all
    /// but the last window of those of a round go back.
    pub(super) fn load(&self, turn: Turn, seat: Seat, of: Passing, ticket: Ticket) -> Load {
        let load = |amount: Amount, outward, reduces, returns| Load {
            // Larger ones are refused before.
            bytes: u32::try_from(amount.bytes()).unwrap_or(u32::MAX),
            outward,
            reduces,
            returns,
            ticket,
        };
        if self.algorithm == Algorithm::DoubleBinaryTree {
            let role = tree::Role::of(turn, seat);
            return match of {
                Passing::Beginning => load(self.amount, true, false, false),
                Passing::Reception(r) => {
                    // The result of two children returns once, after the second.
                    let first_child = r == 0 && role.receives() > 1;
                    let returns = role.reduces() && !first_child;
                    load(self.amount, false, self.tree_reduces(role, r), returns)
                }
            };
        }
        let rounds = self.rounds(seat);
        // All packets that a member begins with are the first of a round.
        let p = match of {
            Passing::Beginning => 0,
            Passing::Reception(r) => rounds.idle + r,
        };
        let amount = match (self.algorithm, of) {
            (Algorithm::HalvingDoubling, Passing::Reception(r)) => self.halved_reception(seat, r),
            (Algorithm::HalvingDoubling, _) => halving_doubling::packet(self, seat, p).amount,
            _ => ring::amount(self),
        };
        match rounds.left(p) {
            None => load(amount, true, false, false),
            Some(left) => {
                let reduces = rounds.reduces(self.part, p);
                load(amount, false, reduces, left + 1 > rounds.idle)
            }
        }
    }

    /// Returns the size at which reception `r` of halving-doubling is processed: that of the next message, half of
    /// the received size in a reduce-scatter, with [`Quirk::HalvingDoublingReductions`]; its own without.
    #[inline]
    fn halved_reception(&self, seat: Seat, r: u32) -> Amount {
        let ahead = u32::from(self.quirks.has(Quirk::HalvingDoublingReductions));
        halving_doubling::packet(self, seat, r + ahead).amount
    }

    /// Returns whether a member of a tree reduces its reception `r`; the third of an inner one comes from above.
    #[inline]
    fn tree_reduces(&self, role: tree::Role, r: u32) -> bool {
        role.reduces() && (r < 2 || self.quirks.has(Quirk::TreeReductions))
    }

    /// Returns the data that a member reduces at reception `r`, if any.
    #[inline]
    pub(super) fn reduced(&self, turn: Turn, seat: Seat, r: u32) -> Option<Amount> {
        let rounds = self.rounds(seat);
        let reduces = || rounds.reduces(self.part, rounds.idle + r);
        match self.algorithm {
            Algorithm::Ring | Algorithm::Direct { .. } => reduces().then(|| ring::amount(self)),
            Algorithm::HalvingDoubling => reduces().then(|| self.halved_reception(seat, r)),
            Algorithm::DoubleBinaryTree => {
                let reduces = self.tree_reduces(tree::Role::of(turn, seat), r);
                reduces.then_some(self.amount)
            }
        }
    }
}
