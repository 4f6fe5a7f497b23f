//! `ring`: every message goes to the successor on the line.
//!
//! With n members and D bytes: reduce-scatter n-1 messages of ⌊D/n⌋, all-gather n-1 of D, all-reduce
//! 2(n-1) of ⌊D/n⌋, all-to-all n(n-1)/2 of ⌊D/n⌋. The window is one.

use super::{Part, Phase};
use crate::collective::Seat;
use crate::units::Amount;

/// Returns the number of messages that a member sends, and receives.
pub(super) fn steps(phase: &Phase, seat: Seat) -> u32 {
    let n = seat.size;
    match phase.part {
        Part::AllReduce => 2 * (n - 1),
        Part::ReduceScatter | Part::AllGather => n - 1,
        Part::AllToAll => u32::try_from(u64::from(n) * u64::from(n - 1) / 2).unwrap_or(u32::MAX),
    }
}

/// Returns the size of each message, of rings and of direct.
pub(super) fn amount(phase: &Phase) -> Amount {
    match phase.part {
        Part::AllGather => phase.amount,
        _ => phase.part(phase.amount, u64::from(phase.size)),
    }
}
