//! `direct` and `direct<W>`: every member sends to every other member, beginning with its successor on
//! the line.
//!
//! A member sends n-1 messages, or 2(n-1) in an all-reduce. At any time, at most W of its messages are unanswered. The
//! second half of an all-reduce begins when the member has *received* all n-1 messages of the first half and has
//! reduced at least one of them. If [`Quirk::EarlyReduction`](super::super::Quirk::EarlyReduction) is corrected, the
//! second half begins when the member has reduced all n-1 messages, which leads to W + n-1 credits.

use super::{AstraAlgorithm, CollectiveChunkPhase, PhaseOperation, Quirk};
use chakram_hardware::collective::MemberLinePosition;

/// Returns the maximum number of packets that a member has in flight.
pub(super) fn max_packets_in_flight(window: Option<u32>, position: MemberLinePosition) -> u32 {
    window.map_or(position.size - 1, |window| window.min(position.size - 1))
}

/// Returns the number of messages that a member sends; it receives the same number.
pub(super) fn message_count(phase: &CollectiveChunkPhase, position: MemberLinePosition) -> u32 {
    match phase.part {
        PhaseOperation::AllReduce => 2 * (position.size - 1),
        _ => position.size - 1,
    }
}

/// Returns the distance along the line to the partner of step `i`.
pub(super) fn partner_distance(position: MemberLinePosition, i: u32) -> u32 {
    1 + i % (position.size - 1)
}

/// Returns how many credits step `i` needs, and how many messages must arrive (but need not be processed) before it.
pub(super) fn required_credits_and_messages(
    phase: &CollectiveChunkPhase,
    position: MemberLinePosition,
    i: u32,
) -> (u32, u32) {
    let others = position.size - 1;
    match (phase.part, phase.algorithm) {
        (PhaseOperation::AllReduce, AstraAlgorithm::Direct { window: given }) if i >= others => {
            let reduced = max_packets_in_flight(given, position) + others;
            if phase.quirks.has_quirk(Quirk::EarlyReduction) {
                (i + 1, others)
            } else {
                (reduced.max(i + 1), others)
            }
        }
        _ => (i + 1, 0),
    }
}
