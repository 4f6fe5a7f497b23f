//! Ring: every member sends only to the next member. If the line is a closed ring of NPUs, every member sends half of
//! its data to the next member and half to the previous member.
//!
//! Let s be the time to send S/n at the member's sending rate, where S is the size of the buffer, and α the latency
//! between neighbours. If all n members start together, a member ends at these times:
//!
//! | primitive | messages of a member | ends after |
//! |---|---|---|
//! | reduce-scatter, all-gather | n−1 of S/n, each after the previous one was received | (n−1)(α + s) |
//! | all-to-all | n(n−1)/2 of S/n, each after the previous one was received; a part for distance k is passed on k times | n(n−1)/2 (α + s) |
//! | broadcast, reduce | n of S/n along the chain from or to the root | (n−1)α + (2n−2)s |
//! | gather, scatter | its own part and the parts of members behind it | (n−1)(α + s) |
//!
//! The first two rows equal the times of ASTRA-sim's rings if endpoint delays and the truncation to nanoseconds are
//! left out. Broadcast and reduce are pipelined along the chain in n parts.
//!
//! **Both directions.** If members are spaced evenly around a ring of more than two NPUs
//! ([`GroupPhasesAndMemberPositions::is_evenly_spaced_ring`]), each member has two links, one to the next and one to
//! the previous member, with B/2 each. A stage then consists of two concurrent runs, with half of the buffer each. One
//! run sends to the next member, as described above. The other run goes in the opposite direction, where the member
//! with index i takes the place of the member with index n−1−i. The two runs share neither links nor dependencies. Over
//! one link, half a share takes s/2 · B/(B/2) = s, so the table above stays valid with s at rate B, and an NPU sends at
//! the full rate B. On a mesh, or on a ring that the members do not close in this way, a message from the last member
//! to the first passes all links between them. A second direction would gain nothing, so all data goes in one
//! direction, at B/2.
//!
//! [`GroupPhasesAndMemberPositions::is_evenly_spaced_ring`]:
//! crate::group::GroupPhasesAndMemberPositions::is_evenly_spaced_ring

use super::line_cost::LineMessageCosts;
use super::{
    CollectiveStage, CollectiveStagePrimitive, MemberLinePosition, SendStepWithConditions,
};
use crate::topology::PathLatencyAndRates;
use chakram_base::units::{Span, UnroundedBufferShare, UnroundedTimeEstimate};

impl MemberLinePosition {
    /// Returns the number of hops from the root to this member along the ring, from 0 for the root to n−1.
    fn hops_from_root(self) -> u32 {
        (self.index + self.size - self.root) % self.size
    }

    /// Returns the number of hops along the ring to the root.
    fn hops_to_root(self) -> u32 {
        (self.root + self.size - self.index) % self.size
    }
}

/// Returns the number of messages that each of `n` members sends. With 92,683 members or more, the number exceeds 32
/// bits. That many messages could never be simulated, but the closed form has no such limit.
fn all_to_all_send_count(n: u32) -> u32 {
    u32::try_from(u64::from(n) * u64::from(n - 1) / 2).unwrap_or(u32::MAX)
}

pub(super) fn nth_send(
    stage: &CollectiveStage,
    line: MemberLinePosition,
    i: u32,
) -> Option<SendStepWithConditions> {
    let n = line.size;
    // Number of messages, and the number of messages that must be received before the first is sent.
    let (count, first_after) = match stage.primitive {
        CollectiveStagePrimitive::ReduceScatter | CollectiveStagePrimitive::AllGather => (n - 1, 0),
        CollectiveStagePrimitive::AllToAll => (all_to_all_send_count(n), 0),
        CollectiveStagePrimitive::Broadcast => match line.hops_from_root() {
            0 => return nth_send_to_next_member(stage, line, i, n, None),
            last if last == n - 1 => (0, 0),
            _ => (n, 1),
        },
        CollectiveStagePrimitive::Reduce => match line.hops_to_root() {
            0 => (0, 0),
            last if last == n - 1 => return nth_send_to_next_member(stage, line, i, n, None),
            _ => (n, 1),
        },
        // A member sends its own part first, then the parts of the members behind it.
        CollectiveStagePrimitive::Gather => match line.hops_to_root() {
            0 => (0, 0),
            hops => (n - hops, 0),
        },
        // A member sends the farthest part first, and each member keeps the last part that it
        // receives.
        CollectiveStagePrimitive::Scatter => match line.hops_from_root() {
            0 => return nth_send_to_next_member(stage, line, i, n - 1, None),
            hops => (n - 1 - hops, 1),
        },
        CollectiveStagePrimitive::AllReduce => return None,
    };
    nth_send_to_next_member(stage, line, i, count, Some(first_after))
}

/// Returns the `i`-th of `count` messages to the next member. Message i waits until `first_after + i` messages have
/// been received; if `first_after` is `None`, it does not wait.
fn nth_send_to_next_member(
    stage: &CollectiveStage,
    line: MemberLinePosition,
    i: u32,
    count: u32,
    first_after: Option<u32>,
) -> Option<SendStepWithConditions> {
    (i < count).then(|| SendStepWithConditions {
        to: (line.index + 1) % line.size,
        amount: stage.one_of_n_equal_parts_per_direction(line.size),
        after: first_after.map_or(0, |first| first + i),
        arrived: 0,
        recv_posted: 0,
    })
}

pub(super) fn receive_count(stage: &CollectiveStage, line: MemberLinePosition) -> u32 {
    let n = line.size;
    match stage.primitive {
        CollectiveStagePrimitive::ReduceScatter | CollectiveStagePrimitive::AllGather => n - 1,
        CollectiveStagePrimitive::AllToAll => all_to_all_send_count(n),
        CollectiveStagePrimitive::Broadcast => match line.hops_from_root() {
            0 => 0,
            _ => n,
        },
        CollectiveStagePrimitive::Reduce => match line.hops_to_root() {
            last if last == n - 1 => 0,
            _ => n,
        },
        CollectiveStagePrimitive::Gather => n - 1 - line.hops_to_root(),
        CollectiveStagePrimitive::Scatter => match line.hops_from_root() {
            0 => 0,
            hops => n - hops,
        },
        CollectiveStagePrimitive::AllReduce => 0,
    }
}

/// Returns the closed form in the first two rows of the module's table, or `None` for other primitives.
pub(super) fn closed_form(stage: &CollectiveStage, n: u32, path: &PathLatencyAndRates) -> Span {
    let (others, round) = (
        u64::from(n - 1),
        path.time_message(stage.one_of_n_equal_parts_per_direction(n)),
    );
    match stage.primitive {
        CollectiveStagePrimitive::AllToAll => round.times(u64::from(n) * others / 2),
        _ => round.times(others),
    }
}

/// Returns the unrounded times of the module's table, for [`auto`](super::auto).
pub(super) fn estimate_cost(
    line: &LineMessageCosts<'_>,
    primitive: CollectiveStagePrimitive,
    buffer: UnroundedBufferShare,
) -> UnroundedTimeEstimate {
    let n = line.member_count();
    let share = buffer
        .one_of_n_equal_parts(n)
        .one_of_n_equal_parts(1 + u32::from(line.round));
    let way = line.path_at_distance(1).without_load_of_other_messages();
    let (hop, s) = (way.time_of_first_byte(share), way.time_under_load(share));
    let n = u64::from(n);
    match primitive {
        CollectiveStagePrimitive::AllToAll => (hop + s).times(n * (n - 1) / 2),
        CollectiveStagePrimitive::Broadcast | CollectiveStagePrimitive::Reduce => {
            hop.times(n - 1) + s.times(2 * n - 2)
        }
        _ => (hop + s).times(n - 1),
    }
}
