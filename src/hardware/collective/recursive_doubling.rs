//! Recursive doubling: exchanges of the whole buffer among 2^L members, with partners at distances 1, 2, 4, ….
//!
//! After exchange i a member has the sum over the 2^(i+1) members whose indices differ from its own in the lowest i+1
//! bits (R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005,
//! section 4.5: the choice for short messages). Let t be the time to send the buffer of size S, and α the latency. If
//! all members start together, a member ends at these times:
//!
//! | primitive | messages of a member | ends after |
//! |---|---|---|
//! | all-reduce | log2 n of S, each after the previous one was received | (α + t) log2 n |
//! | all others | as in [`halving_doubling`] | see there |

use super::halving_doubling::{self, exchange_count, nth_exchange};
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
    match stage.primitive {
        CollectiveStagePrimitive::AllReduce => {
            (i < exchange_count(line)).then(|| nth_exchange(line, i, 1 << i, stage.buffer))
        }
        _ => halving_doubling::nth_send(stage, line, i),
    }
}

pub(super) fn receive_count(stage: &CollectiveStage, line: MemberLinePosition) -> u32 {
    match stage.primitive {
        CollectiveStagePrimitive::AllReduce => exchange_count(line),
        _ => halving_doubling::receive_count(stage, line),
    }
}

/// For an all-reduce, returns the closed form in the first row of the module's table; for other primitives, the closed
/// form of [`halving_doubling`].
pub(super) fn closed_form(stage: &CollectiveStage, n: u32, path: &PathLatencyAndRates) -> Span {
    match stage.primitive {
        CollectiveStagePrimitive::AllReduce => {
            path.time_message(stage.buffer).times(u64::from(n.ilog2()))
        }
        _ => halving_doubling::closed_form(stage, n, path),
    }
}

/// Returns the unrounded times of the module's table, for [`auto`](super::auto).
pub(super) fn estimate_cost(
    line: &LineMessageCosts<'_>,
    primitive: CollectiveStagePrimitive,
    buffer: UnroundedBufferShare,
) -> UnroundedTimeEstimate {
    match primitive {
        CollectiveStagePrimitive::AllReduce => line.sum_over_doublings(|way, _| {
            way.time_of_first_byte(buffer) + way.time_under_load(buffer)
        }),
        _ => halving_doubling::estimate_cost(line, primitive, buffer),
    }
}
