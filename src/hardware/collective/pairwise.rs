//! Pairwise: each member exchanges data with one partner at a time, and starts an exchange only after the previous one
//! has ended.
//!
//! In round k = 1 … n−1, a member sends to the member k places ahead and receives from the member k places behind. If n
//! is a power of two, a member instead exchanges with the member whose index is its own XOR k (R. Thakur, R.
//! Rabenseifner and W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005, sections 4.2 and
//! 4.3). Let s be the time to send S/n, where S is the size of the buffer, and α the latency. If all members start
//! together, a member ends at these times:
//!
//! | primitive | messages of a member | ends after |
//! |---|---|---|
//! | reduce-scatter | n−1 of S/n, the receiver's part of the sender's buffer | (n−1)(α + s) |
//! | all-gather | n−1 of S/n, the sender's part | (n−1)(α + s) |
//! | all-to-all | n−1 of S/n, the receiver's part | (n−1)(α + s) |
//!
//! No round needs data of another round, so [`direct`](super::direct) is faster on this network. Rounds prevent a
//! member from receiving from several members at once. A message that arrives early counts only once its receiver has
//! reached the message's round.

use super::line_cost::LineMessageCosts;
use super::{
    CollectiveStage, CollectiveStagePrimitive, MemberLinePosition, SendStepWithConditions,
};
use crate::topology::PathLatencyAndRates;
use chakram_base::units::{Span, UnroundedBufferShare, UnroundedTimeEstimate};

fn round_count(stage: &CollectiveStage, line: MemberLinePosition) -> u32 {
    match stage.primitive {
        CollectiveStagePrimitive::ReduceScatter
        | CollectiveStagePrimitive::AllGather
        | CollectiveStagePrimitive::AllToAll => line.size - 1,
        _ => 0,
    }
}

pub(super) fn nth_send(
    stage: &CollectiveStage,
    line: MemberLinePosition,
    i: u32,
) -> Option<SendStepWithConditions> {
    let (n, k) = (line.size, i + 1);
    (i < round_count(stage, line)).then(|| SendStepWithConditions {
        to: if n.is_power_of_two() {
            line.index ^ k
        } else {
            (line.index + k) % n
        },
        amount: stage.buffer.one_of_n_equal_parts(n),
        after: i,
        arrived: 0,
        recv_posted: i + 1,
    })
}

/// Returns the index of the member that sends to the member at `line` after `before` rounds.
pub(super) fn sending_member_after_rounds(line: MemberLinePosition, before: u32) -> u32 {
    let (n, k) = (line.size, before + 1);
    if n.is_power_of_two() {
        line.index ^ k
    } else {
        (line.index + n - k) % n
    }
}

pub(super) fn receive_count(stage: &CollectiveStage, line: MemberLinePosition) -> u32 {
    round_count(stage, line)
}

/// Returns the closed form, which applies to all rows of the module's table.
pub(super) fn closed_form(stage: &CollectiveStage, n: u32, path: &PathLatencyAndRates) -> Span {
    path.time_message(stage.one_of_n_equal_parts_per_direction(n))
        .times(u64::from(n - 1))
}

/// Returns the unrounded times of the module's table, for [`auto`](super::auto).
pub(super) fn estimate_cost(
    line: &LineMessageCosts<'_>,
    buffer: UnroundedBufferShare,
) -> UnroundedTimeEstimate {
    let share = buffer.one_of_n_equal_parts(line.member_count());
    let rounds = line.sum_times_and_longest_first_byte_over_distances(share, |way| {
        way.time_of_first_byte(share) + way.time_under_load(share)
    });
    rounds.0
}
