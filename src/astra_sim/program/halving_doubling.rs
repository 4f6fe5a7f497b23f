//! `halvingDoubling`: partners at distances 1, 2, 4, … in a reduce-scatter, n/2, n/4, … in an
//! all-gather, and first the one and then the other in an all-reduce.
//!
//! With n = 2^L members and D bytes, message j of a reduce-scatter has ⌊D/2^(j+1)⌋ bytes and message j of
//! an all-gather 2^j D. An all-reduce turns at 2⌊d/2⌋ where d is the size of its last message out, which
//! is less if d is odd.

use super::{Part, Phase};
use crate::collective::Seat;
use crate::units::Amount;

/// A message: how far away its partner is, and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub distance: u32,
    pub amount: Amount,
}

/// L, the logarithm of the number of members.
pub(super) fn levels(seat: Seat) -> u32 {
    seat.size.ilog2()
}

/// Messages that a member sends, and receives.
pub(super) fn steps(phase: &Phase, seat: Seat) -> u32 {
    match phase.part {
        Part::AllReduce => 2 * levels(seat),
        _ => levels(seat),
    }
}

/// The `p`-th packet.
pub(super) fn packet(phase: &Phase, seat: Seat, p: u32) -> Packet {
    let levels = levels(seat);
    let power = |times: u32| 1_u64.checked_shl(times).unwrap_or(u64::MAX);
    // A size that is halved again and again is cut off each time, which is the same as once.
    let halved = |times: u32| phase.part(phase.amount, power(times));
    let doubled = |amount: Amount, times: u32| Phase::times(amount, power(times));
    match phase.part {
        Part::AllGather => Packet {
            distance: (seat.size / 2).checked_shr(p).unwrap_or(0),
            amount: doubled(phase.amount, p),
        },
        Part::AllReduce if p >= levels => Packet {
            distance: 1_u32
                .checked_shl((2 * levels - 1).wrapping_sub(p))
                .unwrap_or(0),
            amount: doubled(halved(levels + 1), p - levels + 1),
        },
        _ => Packet {
            distance: 1_u32.checked_shl(p).unwrap_or(0),
            amount: halved(p + 1),
        },
    }
}

/// Who sits `distance` away: forth for even multiples of it, back for odd ones.
pub(super) fn partner(seat: Seat, distance: u32) -> u32 {
    seat.index ^ distance
}
