//! `halvingDoubling`: members exchange data with partners at changing distances. The distances are 1, 2, 4, … in a
//! reduce-scatter, and n/2, n/4, … in an all-gather; an all-reduce runs both.
//!
//! With n = 2^L members and D bytes, message j of a reduce-scatter has ⌊D/2^(j+1)⌋ bytes, and message j of an
//! all-gather has 2^j D bytes. The second half of an all-reduce continues with 2⌊d/2⌋ bytes, where d is the size of the
//! first half's last message. If d is odd, this size is less than d.
//!
//! An all-gather also supports other numbers of members. With L = ⌊log2 n⌋, a member sends L messages over the
//! distances ⌊n/2⌋, ⌊n/4⌋ and so on. The all-gather terminates if all members pair up at each distance. A member may
//! then lack data from other members. For example, with 6 members and the distances 3 and 1, each member receives the
//! data of only 3 others.

use super::{CollectiveChunkPhase, PhaseOperation};
use chakram_base::units::UnroundedBufferShare;
use chakram_hardware::collective::MemberLinePosition;

/// A message's size, and the distance to the partner that receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HalvingPartnerMessage {
    pub distance: u32,
    pub amount: UnroundedBufferShare,
}

/// Returns true if `members` of an all-gather pair up at each distance, that is, if blocks of twice the distance fill
/// the line.
pub fn can_pair_at_each_distance(members: u32) -> bool {
    let mut distances = std::iter::successors(Some(members / 2), |distance| Some(distance / 2))
        .take_while(|&distance| distance > 0);
    distances.all(|distance| members.is_multiple_of(2 * distance))
}

/// Returns L, the binary logarithm of the number of members, rounded down.
pub(super) fn level_count(position: MemberLinePosition) -> u32 {
    position.size.ilog2()
}

/// Returns the number of messages that a member sends; it receives the same number.
pub(super) fn message_count(phase: &CollectiveChunkPhase, position: MemberLinePosition) -> u32 {
    match phase.part {
        PhaseOperation::AllReduce => 2 * level_count(position),
        _ => level_count(position),
    }
}

/// Returns the `p`-th packet.
pub(super) fn nth_packet(
    phase: &CollectiveChunkPhase,
    position: MemberLinePosition,
    p: u32,
) -> HalvingPartnerMessage {
    let levels = level_count(position);
    let power = |times: u32| 1_u64.checked_shl(times).unwrap_or(u64::MAX);
    // Truncating once at the end gives the same size as truncating after each halving.
    let halved = |times: u32| phase.divide_amount_equally(phase.amount, power(times));
    let doubled = |amount: UnroundedBufferShare, times: u32| {
        CollectiveChunkPhase::multiply_buffer_share(amount, power(times))
    };
    match phase.part {
        PhaseOperation::AllGather => HalvingPartnerMessage {
            distance: (position.size / 2).checked_shr(p).unwrap_or(0),
            amount: doubled(phase.amount, p),
        },
        PhaseOperation::AllReduce if p >= levels => HalvingPartnerMessage {
            distance: 1_u32
                .checked_shl((2 * levels - 1).wrapping_sub(p))
                .unwrap_or(0),
            amount: doubled(halved(levels + 1), p - levels + 1),
        },
        _ => HalvingPartnerMessage {
            distance: 1_u32.checked_shl(p).unwrap_or(0),
            amount: halved(p + 1),
        },
    }
}

/// Returns the partner at `distance`. The partner's index is higher if ⌊index / distance⌋ is even, and lower otherwise.
/// All members of the line pair up at this distance, so the partner is also on the line.
pub(super) fn partner_at_distance(position: MemberLinePosition, distance: u32) -> u32 {
    if (position.index / distance).is_multiple_of(2) {
        position.index + distance
    } else {
        position.index - distance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the partner as ASTRA-sim computes it, on a line that wraps around.
    fn astra_sim_partner_on_wrapping_line(index: u32, size: u32, distance: u32) -> u32 {
        match index / distance % 2 {
            0 => (index + distance) % size,
            _ => (index + size - distance) % size,
        }
    }

    #[test]
    fn members_pair_off_where_partners_are_mutual() {
        let mut beyond_powers = Vec::new();
        for size in 2..=200_u32 {
            let distances = (1..=size.ilog2()).map(|level| size >> level);
            let mutual = distances.into_iter().all(|distance| {
                (0..size).all(|i| {
                    astra_sim_partner_on_wrapping_line(
                        astra_sim_partner_on_wrapping_line(i, size, distance),
                        size,
                        distance,
                    ) == i
                })
            });
            assert_eq!(can_pair_at_each_distance(size), mutual, "{size}");
            if can_pair_at_each_distance(size) && !size.is_power_of_two() && size < 50 {
                beyond_powers.push(size);
            }
            for index in (0..size).filter(|_| mutual) {
                let position = MemberLinePosition {
                    size,
                    index,
                    root: 0,
                    position: index,
                };
                assert_eq!(
                    partner_at_distance(position, size / 2),
                    astra_sim_partner_on_wrapping_line(index, size, size / 2)
                );
            }
        }
        assert_eq!(beyond_powers, [6, 12, 20, 24, 40, 48]);
    }
}
