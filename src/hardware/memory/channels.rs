//! Channels: each channel serves one access at a time, in the order of arrival.
//!
//! Channels behave like ASTRA-sim's MEMORY_POOL: if four equal accesses to one channel begin together, they end after
//! 1, 2, 3 and 4 times the duration of one access. Accesses to different channels do not contend. Consecutive NPUs
//! share a channel ([`MemoryAttachment::npus_per_channel`](super::MemoryAttachment::npus_per_channel)).

use chakram_base::ids::Npu;
use chakram_base::units::{Span, Time};

/// State of the channels of one memory.
#[derive(Debug)]
pub(super) struct MemoryChannelFreeTimes {
    /// Number of NPUs that share a channel.
    sharers: u32,
    /// Time at which each channel becomes free. Channels beyond the end of the list are free, because they have never
    /// been used.
    free: Vec<Time>,
}

impl MemoryChannelFreeTimes {
    /// Creates free channels. Each channel is shared by `sharers` NPUs, at least 1.
    pub fn new(sharers: u32) -> Self {
        let free = Vec::new();
        Self { sharers, free }
    }

    /// Returns the time at which an access that occupies the channel of `npu` for `span` ends.
    pub fn reserve_channel(&mut self, now: Time, npu: Npu, span: Span) -> Time {
        let channel = (npu.0 / self.sharers) as usize;
        if channel >= self.free.len() {
            self.free.resize(channel + 1, Time::ZERO);
        }
        let free = &mut self.free[channel];
        *free = now.max(*free) + span;
        *free
    }
}
