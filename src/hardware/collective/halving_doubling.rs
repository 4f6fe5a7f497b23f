//! Halving and doubling: exchanges with partners at distances 1, 2, 4, … among 2^L members.
//!
//! In a reduce-scatter, a member exchanges half of its data with the member whose index differs in the lowest bit, then
//! half of the rest with the member whose index differs in the next bit, and so on: S/2, S/4, … S/n. In exchange i, a
//! member keeps the parts whose indices agree with its own index in bit i. Each member therefore ends with the part
//! that has its own index. An all-gather runs in reverse: distance n/2 with S/n, then n/4 with 2S/n, down to distance 1
//! with S/2. The largest messages thus go to the nearest partners. The reduce-scatter is vector halving with distance
//! doubling, and the all-gather is vector doubling with distance halving (R. Rabenseifner, "Optimization of Collective
//! Reduction Operations", ICCS 2004). R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective
//! Communication Operations in MPICH" (2005), section 4, send the same messages in the reverse order of distances.
//!
//! Let s be the time to send S/n, where S is the size of the buffer, and α the latency. If all members start together,
//! a member ends at these times:
//!
//! | primitive | messages of a member | ends after |
//! |---|---|---|
//! | reduce-scatter | log2 n: S/2, S/4, … S/n, each after the previous one was received | α log2 n + (n−1)s |
//! | all-gather | log2 n: S/n, 2S/n, … S/2, each after the previous one was received | α log2 n + (n−1)s |
//! | broadcast, reduce, gather, scatter | a binomial tree ([`binomial`]) | see there |
//!
//! If partners start at different times, messages could arrive out of order, and the receiver would mistake an early
//! message for a different one. Message i therefore counts only after its receiver has taken step i.

use super::line_cost::LineMessageCosts;
use super::{
    CollectiveStage, CollectiveStagePrimitive, MemberLinePosition, SendStepWithConditions, binomial,
};
use crate::topology::PathLatencyAndRates;
use chakram_base::units::{Span, UnroundedBufferShare, UnroundedTimeEstimate};

/// Returns exchange `i`, with the member at `distance`.
pub(super) fn nth_exchange(
    line: MemberLinePosition,
    i: u32,
    distance: u32,
    amount: UnroundedBufferShare,
) -> SendStepWithConditions {
    SendStepWithConditions {
        to: line.index ^ distance,
        amount,
        after: i,
        arrived: 0,
        recv_posted: i + 1,
    }
}

/// Returns the number of exchanges: log2 n, or 0 if n is not a power of two.
pub(super) fn exchange_count(line: MemberLinePosition) -> u32 {
    if line.size.is_power_of_two() {
        line.size.ilog2()
    } else {
        0
    }
}

pub(super) fn nth_send(
    stage: &CollectiveStage,
    line: MemberLinePosition,
    i: u32,
) -> Option<SendStepWithConditions> {
    // An all-gather visits the distances of a reduce-scatter in reverse.
    let half = match stage.primitive {
        CollectiveStagePrimitive::ReduceScatter | CollectiveStagePrimitive::AllGather
            if i >= exchange_count(line) =>
        {
            return None;
        }
        CollectiveStagePrimitive::ReduceScatter => i,
        CollectiveStagePrimitive::AllGather => exchange_count(line) - 1 - i,
        CollectiveStagePrimitive::AllReduce | CollectiveStagePrimitive::AllToAll => return None,
        _ => return binomial::nth_send(stage, line, i),
    };
    Some(nth_exchange(
        line,
        i,
        1 << half,
        stage.buffer.one_of_n_equal_parts(2 << half),
    ))
}

pub(super) fn receive_count(stage: &CollectiveStage, line: MemberLinePosition) -> u32 {
    match stage.primitive {
        CollectiveStagePrimitive::ReduceScatter | CollectiveStagePrimitive::AllGather => {
            exchange_count(line)
        }
        CollectiveStagePrimitive::AllReduce | CollectiveStagePrimitive::AllToAll => 0,
        _ => binomial::receive_count(stage, line),
    }
}

/// Returns the closed forms in the first two rows of the module's table. Each exchange has half the size of the
/// previous one. Times are rounded separately, because the network rounds the time of each message.
pub(super) fn closed_form(stage: &CollectiveStage, n: u32, path: &PathLatencyAndRates) -> Span {
    let halves = (0..n.ilog2()).map(|i| stage.buffer.one_of_n_equal_parts(2 << i));
    let spans = halves.map(|half| path.time_message(half));
    spans.fold(Span::ZERO, |sum, span| sum + span)
}

/// Returns the unrounded times of the module's table and of [`binomial`] trees, for [`auto`](super::auto).
pub(super) fn estimate_cost(
    line: &LineMessageCosts<'_>,
    primitive: CollectiveStagePrimitive,
    buffer: UnroundedBufferShare,
) -> UnroundedTimeEstimate {
    use CollectiveStagePrimitive as P;
    let n = line.member_count();
    match primitive {
        P::Broadcast | P::Reduce => line.sum_over_doublings(|way, _| {
            way.time_of_first_byte(buffer)
                + way.without_load_of_other_messages().time_under_load(buffer)
        }),
        P::Gather | P::Scatter => line.sum_over_doublings(|way, j| {
            let part = buffer.k_of_n_equal_parts((1 << j).min(n - (1 << j)), n);
            way.time_of_first_byte(part)
                + way.without_load_of_other_messages().time_under_load(part)
        }),
        _ => line.sum_over_doublings(|way, j| {
            let part = buffer.one_of_n_equal_parts(2 << j);
            way.time_of_first_byte(part) + way.time_under_load(part)
        }),
    }
}
