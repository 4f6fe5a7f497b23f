//! Recursive doubling: exchanges of the whole buffer with partners at distances 1, 2, 4, … of 2^L members.
//!
//! After exchange i a member has the sum over the 2^(i+1) members whose indices differ from its own in the
//! lowest i+1 bits (R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication
//! Operations in MPICH", 2005, section 4.5: the choice for short messages). With t = time of the
//! buffer S and α = latency, all starting together:
//!
//! | primitive | messages of a member | ends after |
//! |---|---|---|
//! | all-reduce | log2 n of S, each when the one before was received | (α + t) log2 n |
//! | all others | those of [`halving_doubling`] | see there |

use super::halving_doubling::{self, exchange, exchanges};
use super::{CollectivePrimitive, CollectiveStage, LinePosition, SendStep};

pub(super) fn step(stage: &CollectiveStage, line: LinePosition, i: u32) -> Option<SendStep> {
    match stage.primitive {
        CollectivePrimitive::AllReduce => {
            (i < exchanges(line)).then(|| exchange(line, i, 1 << i, stage.buffer))
        }
        _ => halving_doubling::step(stage, line, i),
    }
}

pub(super) fn receives(stage: &CollectiveStage, line: LinePosition) -> u32 {
    match stage.primitive {
        CollectivePrimitive::AllReduce => exchanges(line),
        _ => halving_doubling::receives(stage, line),
    }
}
