//! What a load or a store costs, and which of them wait for one another.

use crate::ids::Npu;
use crate::units::{Amount, Bandwidth, Bytes, Span, Time};

mod local;
mod per_node;
mod per_npu;
mod pool;

/// The memory of one NPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalMemory {
    /// Bytes per second, reads and writes together.
    pub bandwidth: Bandwidth,
    /// Time of the first byte.
    pub latency: Span,
    /// What it holds; a node that moves more at once is refused.
    pub capacity: Bytes,
}

/// How NPUs reach the memory beyond their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// Every NPU has a channel of its own.
    PerNpu,
    /// One channel for all, first come, first served.
    Pool,
    /// One channel for each so many NPUs that are neighbours by number; at least 1.
    PerNode(u32),
}

impl Attachment {
    /// The attachments that machine files can name.
    pub const ALL: [(Self, &'static str); 2] = [(Self::PerNpu, "per_npu"), (Self::Pool, "pool")];
}

/// Memory beyond the NPUs' own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RemoteMemory {
    /// How it is reached.
    pub attachment: Attachment,
    /// Bytes per second of one channel.
    pub bandwidth: Bandwidth,
    /// Time of the first byte.
    pub latency: Span,
    /// What it holds; a node that moves more at once is refused.
    pub capacity: Bytes,
    /// Whether bytes / bandwidth is cut off to whole nanoseconds, as ASTRA-sim has it.
    pub whole_ns: bool,
}

/// The remote memory of a running machine: its channels, as busy-until calendars.
#[derive(Debug)]
pub struct RemoteAccess {
    memory: RemoteMemory,
    channels: Channels,
}

#[derive(Debug)]
enum Channels {
    PerNpu(per_npu::Channels),
    Pool(pool::Channel),
    PerNode(per_node::Channels),
}

impl RemoteAccess {
    /// All channels free.
    pub fn new(memory: RemoteMemory, npus: u32) -> Self {
        let channels = match memory.attachment {
            Attachment::PerNpu => Channels::PerNpu(per_npu::Channels::new(npus)),
            Attachment::Pool => Channels::Pool(pool::Channel::default()),
            Attachment::PerNode(size) => Channels::PerNode(per_node::Channels::new(npus, size)),
        };
        Self { memory, channels }
    }

    /// When a load or store of `bytes` that `npu` issues `now` ends. Accesses are served in the
    /// order of these calls; one keeps its channel for latency + bytes / bandwidth.
    pub fn access(&mut self, now: Time, npu: Npu, bytes: u64) -> Time {
        let bandwidth = self.memory.bandwidth;
        let transfer = match self.memory.whole_ns {
            true => Span::from_ns((bytes as f64 / (bandwidth.bytes_per_second() / 1e9)) as u64),
            false => bandwidth.serialization(Amount::whole(bytes)),
        };
        let span = self.memory.latency + transfer;
        match &mut self.channels {
            Channels::PerNpu(channels) => channels.access(now, npu, span),
            Channels::Pool(channel) => channel.access(now, span),
            Channels::PerNode(channels) => channels.access(now, npu, span),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(attachment: Attachment) -> Vec<Time> {
        let memory = RemoteMemory {
            attachment,
            bandwidth: Bandwidth::new(25e9).unwrap(),
            latency: Span::from_ns(100),
            capacity: Bytes(1 << 40),
            whole_ns: false,
        };
        let mut remote = RemoteAccess::new(memory, 4);
        (0..4)
            .map(|npu| remote.access(Time::ZERO, Npu(npu), 1 << 20))
            .collect()
    }

    #[test]
    fn a_pool_serves_one_after_another_and_channels_of_their_own_at_once() {
        // 1 MiB / 25 GB/s = 41.943,04 us, + 0.1 us = 42,043,040 ps.
        let one = 42_043_040;
        assert_eq!(ends(Attachment::PerNpu), vec![Time(one); 4]);
        let expected: Vec<_> = (1..=4).map(|i| Time(one * i)).collect();
        assert_eq!(ends(Attachment::Pool), expected);
        // NPUs 0 and 1 share a channel, and 2 and 3 do.
        let two = [one, 2 * one, one, 2 * one].map(Time);
        assert_eq!(ends(Attachment::PerNode(2)), two);
    }
}
