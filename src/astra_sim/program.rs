//! Computes which messages each member of a collective sends and receives in one phase, including ASTRA-sim's quirks.
//!
//! One state machine executes the ring, direct and halving-doubling algorithms. A member has a window of *packets*. A
//! packet is one message, with its size and its two partners. Each received message adds a packet. The endpoint
//! processes each packet, and may reduce it. The packet then permits the member to send one message. Packet p (counted
//! from 0) is the message of step p. In a phase of n steps, members send only the first n packets. If the window is W,
//! the received message r (counted from 0) adds packet W + r.
//!
//! Packets come in rounds: W packets that are never reduced, then Z packets that may be reduced. In a reduce-scatter,
//! all Z packets of every round are reduced. In an all-reduce, only every second round's Z packets are reduced
//! ([`NeverReducedThenReduciblePackets`]). With Z = n - 1 and W = 1, this gives the expected reductions. For larger
//! windows and for groups, ASTRA-sim's results are surprising.
//!
//! If quirks are corrected, `direct` starts to gather only after it has reduced all packets. Named groups then reduce
//! like other groups. Halving-doubling then reduces all L messages of its first half, each at its own size (Z = L). A
//! tree then reduces only on the way up, and shares are exact fractions.

use super::AstraAlgorithm;
use super::quirks::{Quirk, QuirkSet};
use chakram_base::ids::Position;
use chakram_base::units::UnroundedBufferShare;
use chakram_hardware::collective::{
    BusTransferTrigger, EndpointBusTransfer, MemberLinePosition, PostedReceiveSenderAndStep,
    SendStepWithConditions, TransferCompletionToken,
};

mod direct;
pub(super) mod halving_doubling;
mod ring;
mod tree;

/// Operation that a phase performs on its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PhaseOperation {
    AllReduce,
    ReduceScatter,
    AllGather,
    AllToAll,
}

/// One phase of a chunk of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveChunkPhase {
    /// Index of the phase in the extent.
    pub(super) phase: u32,
    pub(super) algorithm: AstraAlgorithm,
    pub(super) part: PhaseOperation,
    /// Data that one member has before the phase.
    pub(super) amount: UnroundedBufferShare,
    /// Number of members in a line.
    pub(super) size: u32,
    /// Level whose queues the phase uses: its dimension, or the innermost level for groups.
    pub(super) level: u32,
    /// Queues of the level that the phase uses in rotation.
    pub(super) rotation: PhaseQueueSubset,
    /// True if the phase belongs to a named group.
    pub(super) named: bool,
    /// Index of this phase among the collective's phases.
    pub(super) order: u32,
    /// Index of the collective to which the phase belongs.
    pub(super) collective: u32,
    /// Quirks that apply to the phase.
    pub(super) quirks: QuirkSet,
    /// Index of the custom algorithm that replaces the phase; `None` if there is none.
    pub(super) script: Option<u16>,
}

/// The queues of a level that a phase uses in rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PhaseQueueSubset {
    /// All queues, of which the second half runs in the opposite direction.
    All,
    /// The first half of the queues.
    First,
    /// The second half of the queues, which runs in the opposite direction.
    Second,
    /// Only the first queue.
    None,
}

/// A member's queue, direction and tree in a phase; packed into 16 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MemberQueueDirectionAndTree {
    /// Index of the queue in its level.
    pub queue: u16,
    /// True if the member sends towards lower indices.
    pub backward: bool,
    /// True if the member uses the mirrored tree, whose root is the lowest member instead of the highest.
    pub mirrored: bool,
}

impl MemberQueueDirectionAndTree {
    const BACKWARD: u16 = 1 << 15;
    const MIRRORED: u16 = 1 << 14;
    /// Maximum number of queues in a level.
    pub const QUEUES: u32 = 1 << 14;

    #[inline]
    pub fn to_packed(self) -> u16 {
        self.queue
            | if self.backward { Self::BACKWARD } else { 0 }
            | if self.mirrored { Self::MIRRORED } else { 0 }
    }

    /// Returns the bits of a packed slot that encode the direction and the tree. Members whose steps match each other
    /// must have equal bits.
    #[inline]
    pub fn direction_and_tree_bits(word: u16) -> u16 {
        word & (Self::BACKWARD | Self::MIRRORED)
    }

    #[inline]
    pub fn from_packed(word: u16) -> Self {
        Self {
            queue: word & (Self::MIRRORED - 1),
            backward: word & Self::BACKWARD != 0,
            mirrored: word & Self::MIRRORED != 0,
        }
    }
}

/// A round of packets: first `idle` packets that are never reduced, then `busy` packets that may be reduced.
struct NeverReducedThenReduciblePackets {
    idle: u32,
    busy: u32,
}

impl NeverReducedThenReduciblePackets {
    /// Returns the number of reducible packets after packet `p` in its round, or `None` if packet `p` itself is never
    /// reduced.
    fn reducible_packets_left_in_round(&self, p: u32) -> Option<u32> {
        // Compute in 64 bits, because the sum may overflow 32 bits.
        let round = u64::from(self.idle) + u64::from(self.busy);
        let place = u64::from(p) % round;
        (place >= u64::from(self.idle)).then(|| (round - place - 1) as u32)
    }

    /// Returns true if packet `p` is reduced.
    #[inline]
    fn reduces_packet(&self, part: PhaseOperation, p: u32) -> bool {
        let round = u64::from(self.idle) + u64::from(self.busy);
        let (number, place) = (u64::from(p) / round, u64::from(p) % round);
        place >= u64::from(self.idle)
            && match part {
                PhaseOperation::ReduceScatter => true,
                PhaseOperation::AllReduce => number.is_multiple_of(2),
                PhaseOperation::AllGather | PhaseOperation::AllToAll => false,
            }
    }
}

/// Returns the index `by` places forward along a line of `size` members, or `by` places back if `backward` is true.
#[inline]
fn index_moved_along_line(index: u32, size: u32, by: u32, backward: bool) -> u32 {
    // `by` is smaller than `size`, so one conditional subtraction replaces the remainder.
    let by = if backward { size - by } else { by };
    let to = index + by;
    if to >= size { to - size } else { to }
}

/// Returns the distance along the line from `other` to the member at `position`. If `backward` is true, measures in the
/// opposite direction.
fn distance_along_line(other: u32, position: MemberLinePosition, backward: bool) -> u32 {
    let (from, to) = if backward {
        (position.index, other)
    } else {
        (other, position.index)
    };
    if to >= from {
        to - from
    } else {
        position.size - (from - to)
    }
}

impl CollectiveChunkPhase {
    /// Returns the phase's only assignment (queue and direction). The machine must have one queue per level.
    pub(super) fn only_queue_and_direction(&self) -> MemberQueueDirectionAndTree {
        MemberQueueDirectionAndTree {
            backward: self.rotation == PhaseQueueSubset::Second,
            ..MemberQueueDirectionAndTree::default()
        }
    }

    /// Returns the position in the line of the member that has `index` in its line and `position` in the group.
    pub(super) fn line_position_from_index(
        &self,
        index: u32,
        position: Position,
    ) -> MemberLinePosition {
        MemberLinePosition {
            size: self.size,
            index,
            root: 0,
            position: position.0,
        }
    }

    /// Returns one of `n` equal parts of `amount`. The part is truncated to whole bytes with [`Quirk::Padding`], and
    /// exact otherwise.
    pub(super) fn divide_amount_equally(
        &self,
        amount: UnroundedBufferShare,
        n: u64,
    ) -> UnroundedBufferShare {
        if self.quirks.has_quirk(Quirk::Padding) {
            UnroundedBufferShare::from_bytes(amount.to_bytes() / n)
        } else {
            UnroundedBufferShare {
                bytes: amount.bytes,
                parts: amount.parts.saturating_mul(n),
            }
        }
    }

    /// Returns `amount` multiplied by `n`.
    fn multiply_buffer_share(amount: UnroundedBufferShare, n: u64) -> UnroundedBufferShare {
        if amount.parts.is_multiple_of(n) {
            UnroundedBufferShare {
                bytes: amount.bytes,
                // This multiplication cancels an earlier division exactly, so a reduce-scatter followed by an
                // all-gather restores the amount.
                parts: amount.parts / n,
            }
        } else {
            UnroundedBufferShare {
                bytes: amount.bytes.saturating_mul(n),
                parts: amount.parts,
            }
        }
    }

    /// Returns the data that one member has after the phase.
    pub(super) fn result_size(&self) -> UnroundedBufferShare {
        let n = u64::from(self.size);
        match (self.algorithm, self.part) {
            (AstraAlgorithm::DoubleBinaryTree, _) => self.amount,
            (_, PhaseOperation::AllReduce | PhaseOperation::AllToAll) => self.amount,
            (_, PhaseOperation::ReduceScatter) => self.divide_amount_equally(self.amount, n),
            (_, PhaseOperation::AllGather) => Self::multiply_buffer_share(self.amount, n),
        }
    }

    #[inline]
    pub(super) fn initial_credits(
        &self,
        slot: MemberQueueDirectionAndTree,
        position: MemberLinePosition,
    ) -> u32 {
        match self.algorithm {
            AstraAlgorithm::Ring | AstraAlgorithm::HalvingDoubling => 1,
            AstraAlgorithm::Direct { window } => direct::max_packets_in_flight(window, position),
            AstraAlgorithm::DoubleBinaryTree => {
                tree::TreeRole::role_of_member(slot, position).initial_credits()
            }
        }
    }

    #[inline]
    pub(super) fn receive_count(
        &self,
        slot: MemberQueueDirectionAndTree,
        position: MemberLinePosition,
    ) -> u32 {
        match self.algorithm {
            AstraAlgorithm::Ring => ring::message_count(self, position),
            AstraAlgorithm::Direct { .. } => direct::message_count(self, position),
            AstraAlgorithm::HalvingDoubling => halving_doubling::message_count(self, position),
            AstraAlgorithm::DoubleBinaryTree => {
                tree::TreeRole::role_of_member(slot, position).receive_count()
            }
        }
    }

    #[inline]
    pub(super) fn nth_send(
        &self,
        slot: MemberQueueDirectionAndTree,
        position: MemberLinePosition,
        i: u32,
    ) -> Option<SendStepWithConditions> {
        let after = i + 1;
        let (to, amount, after, arrived) = match self.algorithm {
            AstraAlgorithm::Ring => {
                let to = index_moved_along_line(position.index, position.size, 1, slot.backward);
                (i < ring::message_count(self, position))
                    .then(|| (to, ring::message_size(self), after, 0))?
            }
            AstraAlgorithm::Direct { .. } => {
                let to = index_moved_along_line(
                    position.index,
                    position.size,
                    direct::partner_distance(position, i),
                    slot.backward,
                );
                let (after, arrived) = direct::required_credits_and_messages(self, position, i);
                (i < direct::message_count(self, position))
                    .then(|| (to, ring::message_size(self), after, arrived))?
            }
            AstraAlgorithm::HalvingDoubling => {
                if i >= halving_doubling::message_count(self, position) {
                    return None;
                }
                let packet = halving_doubling::nth_packet(self, position, i);
                (
                    halving_doubling::partner_at_distance(position, packet.distance),
                    packet.amount,
                    after,
                    0,
                )
            }
            AstraAlgorithm::DoubleBinaryTree => {
                let step = tree::TreeRole::role_of_member(slot, position).nth_send(i)?;
                return Some(SendStepWithConditions {
                    to: step.to,
                    amount: self.amount,
                    after: step.after,
                    arrived: 0,
                    recv_posted: step.recv_posted,
                });
            }
        };
        // Step i of a member corresponds to step i of its partner.
        Some(SendStepWithConditions {
            to,
            amount,
            after,
            arrived,
            recv_posted: i + 1,
        })
    }

    /// Returns the `k`-th source from which a member receives after it has taken `taken` steps.
    pub(super) fn nth_receive_source_after_steps(
        &self,
        slot: MemberQueueDirectionAndTree,
        position: MemberLinePosition,
        taken: u32,
        k: u32,
    ) -> Option<PostedReceiveSenderAndStep> {
        if self.algorithm == AstraAlgorithm::DoubleBinaryTree {
            return tree::TreeRole::role_of_member(slot, position)
                .nth_receive_source_after_steps(slot, position, taken, k);
        }
        // A receive is posted together with the send of the same step.
        let step = taken.checked_sub(1).filter(|_| k == 0)?;
        let from = match self.algorithm {
            AstraAlgorithm::Direct { .. } => {
                let distance = direct::partner_distance(position, step);
                index_moved_along_line(position.index, position.size, distance, !slot.backward)
            }
            AstraAlgorithm::HalvingDoubling => {
                let packet = halving_doubling::nth_packet(self, position, step);
                halving_doubling::partner_at_distance(position, packet.distance)
            }
            _ => index_moved_along_line(position.index, position.size, 1, !slot.backward),
        };
        Some(PostedReceiveSenderAndStep { from, step })
    }

    /// Returns true if members of `other` exchange the same messages along the same lines: the same number, of equal
    /// sizes, with the same partners.
    pub(super) fn has_same_exchanges(&self, other: &Self) -> bool {
        let position = MemberLinePosition {
            size: self.size,
            index: 0,
            root: 0,
            position: 0,
        };
        let slot = MemberQueueDirectionAndTree::default();
        let backward = |of: &Self| of.rotation == PhaseQueueSubset::Second;
        let count = self.receive_count(slot, position);
        if self.script.is_some()
            || other.script.is_some()
            || (self.size, backward(self)) != (other.size, backward(other))
            || count != other.receive_count(slot, position)
        {
            return false;
        }
        // A ring's messages all have the same size, so one comparison suffices. With other algorithms, members have at
        // most two messages each in this case.
        if (self.algorithm, other.algorithm) == (AstraAlgorithm::Ring, AstraAlgorithm::Ring) {
            return ring::message_size(self) == ring::message_size(other);
        }
        let message = |of: &Self, i| {
            let step = of.nth_send(slot, position, i);
            step.map(|step| (step.to, step.amount, step.recv_posted))
        };
        (0..count).all(|i| message(self, i) == message(other, i))
    }

    /// Implements `CollectiveBackend::steps_before_posting_receive`. Members in opposite directions of a ring of three
    /// or more never receive from each other. In `direct`, a member receives one message per round from every other
    /// member. The sender's distance in the receiver's direction gives the step within the round. A member in one tree
    /// receives only from its neighbours in that tree.
    pub(super) fn steps_before_nth_receive_from_member(
        &self,
        slot: MemberQueueDirectionAndTree,
        position: MemberLinePosition,
        from: u32,
        heard: u32,
    ) -> Option<u32> {
        match self.algorithm {
            AstraAlgorithm::Ring => {
                (index_moved_along_line(position.index, position.size, 1, !slot.backward) == from)
                    .then_some(heard)
            }
            AstraAlgorithm::Direct { .. } => {
                let others = position.size - 1;
                let round = heard.checked_sub(1)? / others;
                Some(round * others + distance_along_line(from, position, slot.backward))
            }
            AstraAlgorithm::HalvingDoubling => Some(heard),
            AstraAlgorithm::DoubleBinaryTree => {
                // A tree node can receive from its two children from the start, and from its parent once it has sent
                // its message up. Each source is written as (steps taken, index).
                let sources = [(0, 0), (0, 1), (1, 0)].into_iter();
                let mut sources = sources.filter_map(|(taken, k)| {
                    let source = self.nth_receive_source_after_steps(slot, position, taken, k)?;
                    (source.from == from).then_some(taken)
                });
                sources.next()
            }
        }
    }

    /// Implements `CollectiveBackend::translate_requested_step_to_sender`.
    pub(super) fn own_step_that_receiver_requests(
        &self,
        slot: MemberQueueDirectionAndTree,
        position: MemberLinePosition,
        to: u32,
        step: u32,
    ) -> Option<u32> {
        match self.algorithm {
            AstraAlgorithm::Ring => {
                (index_moved_along_line(position.index, position.size, 1, slot.backward) == to)
                    .then_some(step)
            }
            AstraAlgorithm::Direct { .. } => {
                let others = position.size - 1;
                let distance = distance_along_line(to, position, !slot.backward);
                Some(step / others * others + distance - 1)
            }
            AstraAlgorithm::HalvingDoubling => Some(step),
            AstraAlgorithm::DoubleBinaryTree => {
                let role = tree::TreeRole::role_of_member(slot, position);
                (0..3).find(|&i| role.nth_send(i).is_some_and(|message| message.to == to))
            }
        }
    }

    /// Returns the numbers of `idle` and `busy` packets in each of the member's rounds.
    #[inline]
    fn idle_and_busy_packets_per_round(
        &self,
        position: MemberLinePosition,
    ) -> NeverReducedThenReduciblePackets {
        let (idle, busy) = match self.algorithm {
            AstraAlgorithm::Direct { window } => {
                let idle = direct::max_packets_in_flight(window, position);
                if self.named && self.quirks.has_quirk(Quirk::GroupReductions) {
                    (idle, idle.saturating_mul(position.size - 1))
                } else {
                    (idle, idle)
                }
            }
            AstraAlgorithm::HalvingDoubling => {
                let levels = halving_doubling::level_count(position);
                if self.quirks.has_quirk(Quirk::HalvingDoublingReductions) {
                    (1, levels - 1)
                } else {
                    (1, levels)
                }
            }
            AstraAlgorithm::Ring | AstraAlgorithm::DoubleBinaryTree => (1, position.size - 1),
        };
        NeverReducedThenReduciblePackets { idle, busy }
    }

    /// Returns the bus transfer that a packet causes. Packets that are not reduced leave the NPU, and all others enter
    /// it. A packet that enters the NPU also leaves it again, unless it is one of the last `idle` packets of its round.
    pub(super) fn bus_transfer_caused_by_packet(
        &self,
        slot: MemberQueueDirectionAndTree,
        position: MemberLinePosition,
        of: BusTransferTrigger,
        ticket: TransferCompletionToken,
    ) -> EndpointBusTransfer {
        let load = |amount: UnroundedBufferShare, outward, reduces, returns| EndpointBusTransfer {
            // The check of collectives has already rejected larger transfers.
            bytes: u32::try_from(amount.to_bytes()).unwrap_or(u32::MAX),
            outward,
            reduces,
            returns,
            ticket,
        };
        if self.algorithm == AstraAlgorithm::DoubleBinaryTree {
            let role = tree::TreeRole::role_of_member(slot, position);
            return match of {
                BusTransferTrigger::Start => load(self.amount, true, false, false),
                BusTransferTrigger::Reception(r) => {
                    // A member with two children returns the result over the bus only once, after the second child's
                    // message.
                    let first_child = r == 0 && role.receive_count() > 1;
                    let returns = role.reduces_data() && !first_child;
                    load(
                        self.amount,
                        false,
                        self.reduces_tree_reception(role, r),
                        returns,
                    )
                }
            };
        }
        let rounds = self.idle_and_busy_packets_per_round(position);
        // A member's initial packets come first in a round, so index 0 represents them.
        let p = match of {
            BusTransferTrigger::Start => 0,
            BusTransferTrigger::Reception(r) => rounds.idle + r,
        };
        let amount = match (self.algorithm, of) {
            (AstraAlgorithm::HalvingDoubling, BusTransferTrigger::Reception(r)) => {
                self.halving_reception_size(position, r)
            }
            (AstraAlgorithm::HalvingDoubling, _) => {
                halving_doubling::nth_packet(self, position, p).amount
            }
            _ => ring::message_size(self),
        };
        match rounds.reducible_packets_left_in_round(p) {
            None => load(amount, true, false, false),
            Some(left) => {
                let reduces = rounds.reduces_packet(self.part, p);
                load(amount, false, reduces, left + 1 > rounds.idle)
            }
        }
    }

    /// Returns the size that halving-doubling uses for received message `r`, which is normally that message's size.
    /// With [`Quirk::HalvingDoublingReductions`], it uses the next message's size, which is half of the received size
    /// in a reduce-scatter.
    #[inline]
    fn halving_reception_size(&self, position: MemberLinePosition, r: u32) -> UnroundedBufferShare {
        let ahead = u32::from(self.quirks.has_quirk(Quirk::HalvingDoublingReductions));
        halving_doubling::nth_packet(self, position, r + ahead).amount
    }

    /// Returns true if a member of a tree reduces the message `r` that it receives. The third message that an inner
    /// member receives comes from its parent.
    #[inline]
    fn reduces_tree_reception(&self, role: tree::TreeRole, r: u32) -> bool {
        role.reduces_data() && (r < 2 || self.quirks.has_quirk(Quirk::TreeReductions))
    }

    /// Returns the data that a member reduces when it receives message `r`, or `None` if it does not reduce the
    /// message.
    #[inline]
    pub(super) fn reduced_amount_of_received_message(
        &self,
        slot: MemberQueueDirectionAndTree,
        position: MemberLinePosition,
        r: u32,
    ) -> Option<UnroundedBufferShare> {
        let rounds = self.idle_and_busy_packets_per_round(position);
        let reduces = || rounds.reduces_packet(self.part, rounds.idle + r);
        match self.algorithm {
            AstraAlgorithm::Ring | AstraAlgorithm::Direct { .. } => {
                reduces().then(|| ring::message_size(self))
            }
            AstraAlgorithm::HalvingDoubling => {
                reduces().then(|| self.halving_reception_size(position, r))
            }
            AstraAlgorithm::DoubleBinaryTree => {
                let reduces =
                    self.reduces_tree_reception(tree::TreeRole::role_of_member(slot, position), r);
                reduces.then_some(self.amount)
            }
        }
    }
}
