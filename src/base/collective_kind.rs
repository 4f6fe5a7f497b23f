//! Collective operations.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum CollectiveKind {
    /// Every member ends with the sum of all buffers.
    AllReduce,
    /// The root ends with the sum of all buffers.
    Reduce,
    /// Every member ends with all shards.
    AllGather,
    /// The root ends with all shards.
    Gather,
    /// Every member ends with its part of the root's buffer.
    Scatter,
    /// Every member ends with the root's buffer.
    Broadcast,
    /// Every member sends a separate part of its buffer to every other member.
    AllToAll,
    /// Every member ends with its part of the sum of all buffers.
    ReduceScatter,
    /// No member continues before all members have arrived.
    Barrier,
}

impl CollectiveKind {
    /// Every collective, with its name and its value of `comm_type` in the schema.
    pub const ALL: [(Self, &'static str, u64); 9] = [
        (Self::AllReduce, "all-reduce", 0),
        (Self::Reduce, "reduce", 1),
        (Self::AllGather, "all-gather", 2),
        (Self::Gather, "gather", 3),
        (Self::Scatter, "scatter", 4),
        (Self::Broadcast, "broadcast", 5),
        (Self::AllToAll, "all-to-all", 6),
        (Self::ReduceScatter, "reduce-scatter", 7),
        (Self::Barrier, "barrier", 9),
    ];

    /// Returns the collective whose `comm_type` in the schema is `value`. The schema's REDUCE_SCATTER_BLOCK (8) is a
    /// reduce-scatter with equal shards, so it maps to [`Self::ReduceScatter`].
    pub fn from_comm_type(value: u64) -> Option<Self> {
        let value = if value == 8 { 7 } else { value };
        let found = Self::ALL.iter().find(|(_, _, number)| *number == value);
        found.map(|(kind, _, _)| *kind)
    }

    /// Returns the schema's value of `comm_type`.
    pub fn comm_type(self) -> u64 {
        Self::ALL[self as usize].2
    }

    /// Returns true if one member has a special role: the root.
    pub fn has_root(self) -> bool {
        matches!(
            self,
            Self::Reduce | Self::Gather | Self::Scatter | Self::Broadcast
        )
    }

    /// Returns the size in bytes of the whole buffer that the members build or share. `comm_size` is the size that the
    /// trace's node states. For an all-gather, this buffer is every member's result; for a gather, it is the root's
    /// result. For all other collectives, the buffer has `comm_size` bytes. Returns `None` if the buffer has 2^63 bytes
    /// or more.
    pub fn buffer_bytes(self, comm_size: u64, members: u32) -> Option<u64> {
        let bytes = match self {
            Self::AllGather | Self::Gather => comm_size.checked_mul(u64::from(members))?,
            Self::Barrier => 0,
            _ => comm_size,
        };
        (bytes <= i64::MAX as u64).then_some(bytes)
    }
}

impl fmt::Display for CollectiveKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_in_the_order_of_their_enums() {
        for (i, (kind, _, number)) in CollectiveKind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, i);
            assert_eq!(CollectiveKind::from_comm_type(*number), Some(*kind));
        }
        assert_eq!(CollectiveKind::from_comm_type(10), None);
    }

    #[test]
    fn sizes_in_traces_are_converted_to_whole_buffers() {
        // 8 shards of 1,000 B are 8,000 B. For a reduce-scatter, the trace already states the size of the whole input.
        assert_eq!(CollectiveKind::AllGather.buffer_bytes(1000, 8), Some(8000));
        assert_eq!(
            CollectiveKind::ReduceScatter.buffer_bytes(1000, 8),
            Some(1000)
        );
        assert_eq!(CollectiveKind::AllGather.buffer_bytes(u64::MAX, 2), None);
    }
}
