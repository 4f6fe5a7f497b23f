//! `ring`: every message goes to the successor on the line.
//!
//! With n members and D bytes, a reduce-scatter sends n-1 messages of ⌊D/n⌋ bytes, and an all-gather sends n-1 messages
//! of D bytes. An all-reduce sends 2(n-1) messages, and an all-to-all sends n(n-1)/2 messages, all of ⌊D/n⌋ bytes. A
//! member has one packet in flight (window 1).

use super::{CollectiveChunkPhase, PhaseOperation};
use chakram_base::units::UnroundedBufferShare;
use chakram_hardware::collective::MemberLinePosition;

/// Returns the number of messages that a member sends; it receives the same number.
pub(super) fn message_count(phase: &CollectiveChunkPhase, position: MemberLinePosition) -> u32 {
    let n = position.size;
    match phase.part {
        PhaseOperation::AllReduce => 2 * (n - 1),
        PhaseOperation::ReduceScatter | PhaseOperation::AllGather => n - 1,
        PhaseOperation::AllToAll => {
            u32::try_from(u64::from(n) * u64::from(n - 1) / 2).unwrap_or(u32::MAX)
        }
    }
}

/// Returns the size of each message in the ring and direct algorithms.
pub(super) fn message_size(phase: &CollectiveChunkPhase) -> UnroundedBufferShare {
    match phase.part {
        PhaseOperation::AllGather => phase.amount,
        _ => phase.divide_amount_equally(phase.amount, u64::from(phase.size)),
    }
}
