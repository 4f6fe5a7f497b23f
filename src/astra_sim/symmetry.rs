//! Computes the closed form of a phase that all members begin together on idle links.
//!
//! If a message's time depends only on its step and not on its sender, all members do the same things at the same
//! times. Then a member's message reaches its partner exactly when the member itself receives a message. One member
//! therefore represents all members. In a ring, every step begins after the previous step. With K messages of time c,
//! an endpoint delay e, and reductions of time r after ρ of the messages, the phase takes K(c + e) + e + ρr. If all
//! messages of a member leave over one link, a message waits there for earlier ones, and the wait is the same on every
//! member.

use super::AstraAlgorithm;
use super::program::{CollectiveChunkPhase, MemberQueueDirectionAndTree, PhaseOperation};
use chakram_base::ids::Position;
use chakram_base::units::{Span, UnroundedBufferShare};
use chakram_hardware::collective::{MemberLinePosition, UncontendedMessageCostFunctions};
use chakram_hardware::group::GroupPhasesAndMemberPositions;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Maximum number of members for which message times are compared.
const COMPARED: u32 = 256;

/// A line of members that communicate in a phase. In a symmetric line, one member represents all others.
pub(super) struct PhaseMemberLine<'a> {
    pub stage: &'a CollectiveChunkPhase,
    pub slot: MemberQueueDirectionAndTree,
    pub extent: &'a GroupPhasesAndMemberPositions,
    /// Sizes of the machine's dimensions.
    pub sizes: &'a [u32],
    pub quiet: &'a UncontendedMessageCostFunctions<'a>,
}

/// Event at a member. Simultaneous events are handled in the order of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum MemberCreditOrArrivalEvent {
    Credits(u32),
    Arrival,
    Attended(u32),
}

impl PhaseMemberLine<'_> {
    /// Returns the duration of the phase, or `None` if this duration is not proven to be the same for all members.
    pub fn duration_if_same_for_all_members(
        &self,
        endpoint: Span,
        reduction: impl Fn(UnroundedBufferShare) -> Span,
    ) -> Option<Span> {
        match self.stage.algorithm {
            // Members of a tree have different roles, so none of them can stand for the others.
            AstraAlgorithm::DoubleBinaryTree => None,
            AstraAlgorithm::Ring => self.ring_duration(endpoint, reduction),
            _ if self.are_message_times_equal() => {
                self.simulate_phase_of_one_member(endpoint, reduction, |_, _| ())
            }
            _ => None,
        }
    }

    /// Returns the times at which a member's delays end, in ascending order, each with the number of messages that have
    /// arrived by then. [`Self::duration_if_same_for_all_members`] must return a duration for the phase.
    pub fn delay_ends_and_arrival_counts_of_member(
        &self,
        endpoint: Span,
        reduction: impl Fn(UnroundedBufferShare) -> Span,
    ) -> Option<Vec<(Span, u32)>> {
        let mut delays = Vec::new();
        if self.stage.algorithm != AstraAlgorithm::Ring {
            self.simulate_phase_of_one_member(endpoint, reduction, |at, arrived| {
                delays.push((at, arrived))
            })?;
            return Some(delays);
        }
        let (cost, once, reduced) = (
            self.time_of_member_nth_message(0, 0)?,
            self.reduction_time(reduction),
            self.count_messages_reduced_on_arrival(),
        );
        let mut now = endpoint;
        delays.push((now, 0));
        for message in 0..self
            .stage
            .receive_count(self.slot, self.line_position_from_index(0))
        {
            now += cost + endpoint;
            delays.push((now, message + 1));
            if message < reduced {
                now += once;
                delays.push((now, message + 1));
            }
        }
        Some(delays)
    }

    /// Returns how many of a ring's messages the members reduce on arrival.
    fn count_messages_reduced_on_arrival(&self) -> u32 {
        match self.stage.part {
            PhaseOperation::AllReduce | PhaseOperation::ReduceScatter => self.stage.size - 1,
            PhaseOperation::AllGather | PhaseOperation::AllToAll => 0,
        }
    }

    /// Returns the time that a reduction takes in a ring.
    fn reduction_time(&self, reduction: impl Fn(UnroundedBufferShare) -> Span) -> Span {
        let amount = self.stage.reduced_amount_of_received_message(
            self.slot,
            self.line_position_from_index(0),
            0,
        );
        amount.map_or(Span::ZERO, reduction)
    }

    fn line_position_from_index(&self, index: u32) -> MemberLinePosition {
        self.stage.line_position_from_index(index, Position(index))
    }

    fn time_of_member_nth_message(&self, index: u32, step: u32) -> Option<Span> {
        let phase = &self.extent.phases[self.stage.phase as usize];
        let step = self
            .stage
            .nth_send(self.slot, self.line_position_from_index(index), step)?;
        let npu = |index| {
            self.extent.npus[phase
                .position_with_index_in_line(Position(0), index)
                .index()]
        };
        (self.quiet.cost)((npu(index), npu(step.to)), step.amount)
    }

    /// Returns true if the line is a whole dimension of the machine.
    fn is_whole_dimension(&self) -> bool {
        let phase = &self.extent.phases[self.stage.phase as usize];
        self.extent.regular && self.sizes.get(phase.dimension) == Some(&phase.size)
    }

    /// Returns true if messages from every sender take the same time, as they do along a whole dimension of the
    /// machine. All lines of a sub-grid have equal costs, so the first line represents them.
    fn are_message_times_equal(&self) -> bool {
        if self.is_whole_dimension() {
            return true;
        }
        if self.stage.size > COMPARED {
            return false;
        }
        let steps = self
            .stage
            .receive_count(self.slot, self.line_position_from_index(0));
        (0..steps.min(self.stage.size)).all(|step| {
            let first = self.time_of_member_nth_message(0, step);
            (1..self.stage.size).all(|index| self.time_of_member_nth_message(index, step) == first)
        })
    }

    fn ring_duration(
        &self,
        endpoint: Span,
        reduction: impl Fn(UnroundedBufferShare) -> Span,
    ) -> Option<Span> {
        let (size, position) = (self.stage.size, self.line_position_from_index(0));
        let cost = self.time_of_member_nth_message(0, 0)?;
        let same = self.is_whole_dimension()
            || (1..size).all(|index| self.time_of_member_nth_message(index, 0) == Some(cost));
        let messages = u64::from(self.stage.receive_count(self.slot, position));
        let (once, reduced) = (
            self.reduction_time(reduction),
            u64::from(self.count_messages_reduced_on_arrival()),
        );
        same.then(|| (cost + endpoint).times(messages) + endpoint + once.times(reduced))
    }

    fn simulate_phase_of_one_member(
        &self,
        endpoint: Span,
        reduction: impl Fn(UnroundedBufferShare) -> Span,
        mut on_delay: impl FnMut(Span, u32),
    ) -> Option<Span> {
        let position = self.line_position_from_index(0);
        let start = self.stage.initial_credits(self.slot, position);
        let all = start + self.stage.receive_count(self.slot, position);
        let (mut taken, mut arrived, mut credits, mut number) = (0, 0, 0, 0_u32);
        // Time until which the member's link is busy; zero unless the member sends all its messages over one link.
        let mut taken_until = Span::ZERO;
        let mut due = BinaryHeap::new();
        let mut push = |due: &mut BinaryHeap<_>, at: Span, what: MemberCreditOrArrivalEvent| {
            // As in ASTRA-sim, events at the same time are handled in the order in which they were scheduled.
            number += 1;
            due.push(Reverse((at, number, what)));
        };
        // The member represents all members, so when its message arrives at a partner, it receives the corresponding
        // message itself.
        push(
            &mut due,
            endpoint,
            MemberCreditOrArrivalEvent::Credits(start),
        );
        while let Some(Reverse((now, _, what))) = due.pop() {
            if what != MemberCreditOrArrivalEvent::Arrival {
                on_delay(now, arrived);
            }
            match what {
                MemberCreditOrArrivalEvent::Arrival => {
                    arrived += 1;
                    push(
                        &mut due,
                        now + endpoint,
                        MemberCreditOrArrivalEvent::Attended(arrived - 1),
                    );
                    continue;
                }
                MemberCreditOrArrivalEvent::Attended(r) => {
                    match self
                        .stage
                        .reduced_amount_of_received_message(self.slot, position, r)
                    {
                        Some(amount) => {
                            push(
                                &mut due,
                                now + reduction(amount),
                                MemberCreditOrArrivalEvent::Credits(1),
                            );
                            continue;
                        }
                        None => credits += 1,
                    }
                }
                MemberCreditOrArrivalEvent::Credits(more) => credits += more,
            }
            while let Some(step) = self.stage.nth_send(self.slot, position, taken) {
                if step.after > credits || step.arrived > arrived {
                    break;
                }
                let cost = self.time_of_member_nth_message(0, taken)?;
                let leaves = now.max(taken_until);
                taken_until = leaves + (self.quiet.link_time)(step.amount).unwrap_or(Span::ZERO);
                push(&mut due, leaves + cost, MemberCreditOrArrivalEvent::Arrival);
                taken += 1;
            }
            // All received messages have been processed. Sends that are still in flight do not delay the member.
            if credits == all {
                return Some(now);
            }
        }
        None
    }
}
