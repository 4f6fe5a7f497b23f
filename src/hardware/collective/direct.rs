//! Direct: every member sends to every other member, nearest index first.
//!
//! A member's port sends one message at a time and receives one at a time. Let s be the time to send S/n, t the time to
//! send the whole buffer S, and α the latency. If all n members start together, a member ends at these times:
//!
//! | primitive | messages of a member | ends after |
//! |---|---|---|
//! | reduce-scatter, all-gather, all-to-all | n−1 of S/n, back to back | α + (n−1)s |
//! | broadcast, reduce | the root to all, or all to the root, of S | α + (n−1)t |
//! | gather, scatter | all to the root, or the root to all, of S/n | α + (n−1)s |
//!
//! ASTRA-sim's congestion-unaware model gives each of the n−1 messages the full bandwidth at the same time, which no
//! port can provide. In chakram's model, the port is the limit, so direct and ring move their bytes equally fast and
//! differ only in latency. The table does not apply to rings and meshes. On these shapes, a member sends one message at
//! a time at the rate of one link, and receives messages from both sides.

use super::line_cost::LineMessageCosts;
use super::{
    CollectiveStage, CollectiveStagePrimitive, MemberLinePosition, SendStepWithConditions,
};
use crate::topology::PathLatencyAndRates;
use chakram_base::units::{Span, UnroundedBufferShare, UnroundedTimeEstimate};

pub(super) fn nth_send(
    stage: &CollectiveStage,
    line: MemberLinePosition,
    i: u32,
) -> Option<SendStepWithConditions> {
    let n = line.size;
    let is_root = line.index == line.root;
    let next = (line.index + 1 + i) % n;
    let part = stage.buffer.one_of_n_equal_parts(n);
    let (count, to, amount) = match stage.primitive {
        CollectiveStagePrimitive::ReduceScatter
        | CollectiveStagePrimitive::AllGather
        | CollectiveStagePrimitive::AllToAll => (n - 1, next, part),
        CollectiveStagePrimitive::Broadcast if is_root => (n - 1, next, stage.buffer),
        CollectiveStagePrimitive::Scatter if is_root => (n - 1, next, part),
        CollectiveStagePrimitive::Reduce if !is_root => (1, line.root, stage.buffer),
        CollectiveStagePrimitive::Gather if !is_root => (1, line.root, part),
        _ => return None,
    };
    (i < count).then_some(SendStepWithConditions {
        to,
        amount,
        after: 0,
        arrived: 0,
        recv_posted: 0,
    })
}

pub(super) fn receive_count(stage: &CollectiveStage, line: MemberLinePosition) -> u32 {
    let is_root = line.index == line.root;
    match stage.primitive {
        CollectiveStagePrimitive::ReduceScatter
        | CollectiveStagePrimitive::AllGather
        | CollectiveStagePrimitive::AllToAll => line.size - 1,
        CollectiveStagePrimitive::Broadcast | CollectiveStagePrimitive::Scatter => {
            u32::from(!is_root)
        }
        CollectiveStagePrimitive::Reduce | CollectiveStagePrimitive::Gather => {
            if is_root {
                line.size - 1
            } else {
                0
            }
        }
        CollectiveStagePrimitive::AllReduce => 0,
    }
}

/// Returns the closed form in the first row of the module's table.
pub(super) fn closed_form(stage: &CollectiveStage, n: u32, path: &PathLatencyAndRates) -> Span {
    let message = stage.one_of_n_equal_parts_per_direction(n);
    path.time_of_first_byte(message)
        + path
            .bandwidth
            .serialization_time(message)
            .times(u64::from(n - 1))
}

/// Returns the unrounded times of the module's table, for [`auto`](super::auto).
pub(super) fn estimate_cost(
    line: &LineMessageCosts<'_>,
    primitive: CollectiveStagePrimitive,
    buffer: UnroundedBufferShare,
) -> UnroundedTimeEstimate {
    use CollectiveStagePrimitive as P;
    let share = buffer.one_of_n_equal_parts(line.member_count());
    let message = match primitive {
        P::Broadcast | P::Reduce => buffer,
        _ => share,
    };
    let (all, far) =
        line.sum_times_and_longest_first_byte_over_distances(message, |way| match primitive {
            P::Broadcast | P::Reduce | P::Gather | P::Scatter => way
                .without_load_of_other_messages()
                .time_under_load(message),
            _ => way.time_under_load(message),
        });
    far + all
}
