//! Counts the bytes that ranks send to each other.

use super::TrafficMatrix;
use crate::CollectiveRecord;
use chakram_base::ids::Rank;
use chakram_engine::CompiledReplay;
use chakram_engine::ReplayGroupId;
use chakram_trace::format::CollectiveKind;
use std::collections::BTreeMap;

/// Maximum number of rows, and of columns, in the matrix.
const CELLS: u32 = 64;

/// Sums the bytes between ranks during a replay.
#[derive(Debug)]
pub struct RankPairTrafficCounter {
    ranks_per_cell: u32,
    bytes: Vec<Vec<u64>>,
    /// Bytes in the collectives' buffers, by group and kind.
    buffers: BTreeMap<(ReplayGroupId, CollectiveKind), u64>,
}

impl RankPairTrafficCounter {
    pub fn new(ranks: u32) -> Self {
        let ranks_per_cell = ranks.div_ceil(CELLS).max(1);
        let cells = ranks.div_ceil(ranks_per_cell) as usize;
        Self {
            ranks_per_cell,
            bytes: vec![vec![0; cells]; cells],
            buffers: BTreeMap::new(),
        }
    }

    fn cell_index_of_rank(&self, rank: Rank) -> usize {
        (rank.0 / self.ranks_per_cell) as usize
    }

    /// Adds a message of `bytes` from one rank to another.
    pub fn count_message(&mut self, from: Rank, to: Rank, bytes: u64) {
        let (from, to) = (self.cell_index_of_rank(from), self.cell_index_of_rank(to));
        let sum = &mut self.bytes[from][to];
        *sum = sum.saturating_add(bytes);
    }

    /// Adds a completed collective.
    pub fn count_collective(&mut self, record: &CollectiveRecord) {
        let sum = self.buffers.entry((record.group, record.kind)).or_default();
        *sum = sum.saturating_add(record.buffer);
    }

    /// Returns the matrix of bytes over all messages and collectives.
    pub fn into_matrix(mut self, prepared: &CompiledReplay<'_>) -> TrafficMatrix {
        let groups: Vec<_> = prepared.group_views().collect();
        for ((group, kind), buffers) in std::mem::take(&mut self.buffers) {
            let members = groups[group.index()].members;
            // Each of n members must send 1/n of the buffer to every other member. In an all-reduce, each member must
            // also send its reduced part to every other member.
            let times = match kind {
                CollectiveKind::AllReduce => 2,
                CollectiveKind::AllGather
                | CollectiveKind::ReduceScatter
                | CollectiveKind::AllToAll => 1,
                _ => continue,
            };
            let of_pair = u128::from(buffers) * times / members.len().max(1) as u128;
            let mut in_cell: BTreeMap<usize, u64> = BTreeMap::new();
            for &member in members {
                *in_cell.entry(self.cell_index_of_rank(member)).or_default() += 1;
            }
            for (&from, &senders) in &in_cell {
                for (&to, &receivers) in &in_cell {
                    let own = if from == to { 1 } else { 0 };
                    let pairs = u128::from(senders * (receivers - own));
                    let bytes = u64::try_from(of_pair * pairs).unwrap_or(u64::MAX);
                    let sum = &mut self.bytes[from][to];
                    *sum = sum.saturating_add(bytes);
                }
            }
        }
        TrafficMatrix {
            ranks_per_cell: self.ranks_per_cell,
            bytes: self.bytes,
        }
    }
}
