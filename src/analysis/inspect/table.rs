//! Sums over nodes, with the spread of these sums over ranks.

use chakram_base::units::Span;
use serde::Serialize;
use std::collections::BTreeMap;

/// Sums over nodes with a common property.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeSums {
    /// Number of nodes.
    pub nodes: u64,
    /// Total duration of the nodes, including waiting for other ranks.
    #[serde(rename = "time_ps")]
    pub time: Span,
    /// Total time of waiting for other ranks.
    #[serde(rename = "wait_ps")]
    pub wait: Span,
    /// Total floating-point operations.
    pub flops: u64,
    /// Total bytes moved.
    pub bytes: u64,
    /// Number of nodes that took no time or have no recorded duration.
    #[serde(rename = "nodes_without_time")]
    pub untimed: u64,
}

impl NodeSums {
    /// Adds the sums of `other`.
    pub fn add_sums(&mut self, other: &Self) {
        self.nodes += other.nodes;
        self.time += other.time;
        self.wait += other.wait;
        self.flops = self.flops.saturating_add(other.flops);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.untimed += other.untimed;
    }

    /// Returns the mean duration of a node.
    pub fn mean_duration(&self) -> Span {
        Span(self.time.0 / self.nodes.max(1))
    }
}

/// A sum over ranks, with the minimum and the maximum and the ranks that have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpreadRow {
    /// Sum over ranks.
    pub sum: NodeSums,
    /// Number of ranks that have nodes of this row.
    pub ranks: u32,
    /// Minimum time on a rank that has nodes of this row, and the first rank with this time.
    pub least: (Span, u32),
    /// Maximum time on a rank, and the first rank with this time.
    pub most: (Span, u32),
    /// Minimum number of nodes on a rank that has nodes of this row, and the first rank with this number.
    pub fewest: (u64, u32),
    /// Maximum number of nodes on a rank, and the first rank with this number.
    pub largest: (u64, u32),
}

impl SpreadRow {
    fn new(rank: u32, tally: &NodeSums) -> Self {
        Self {
            sum: *tally,
            ranks: 1,
            least: (tally.time, rank),
            most: (tally.time, rank),
            fewest: (tally.nodes, rank),
            largest: (tally.nodes, rank),
        }
    }

    fn add_rank(&mut self, rank: u32, tally: &NodeSums) {
        self.sum.add_sums(tally);
        self.ranks += 1;
        if tally.time < self.least.0 {
            self.least = (tally.time, rank);
        }
        if tally.time > self.most.0 {
            self.most = (tally.time, rank);
        }
        if tally.nodes < self.fewest.0 {
            self.fewest = (tally.nodes, rank);
        }
        if tally.nodes > self.largest.0 {
            self.largest = (tally.nodes, rank);
        }
    }
}

/// Table of sums over ranks, by a property of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpreadTable<K: Ord>(BTreeMap<K, SpreadRow>);

impl<K: Ord> Default for SpreadTable<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> SpreadTable<K> {
    /// Adds the sums of `rank`.
    pub fn add_rank(&mut self, rank: u32, tallies: impl IntoIterator<Item = (K, NodeSums)>) {
        for (key, tally) in tallies {
            let row = self.0.entry(key);
            row.and_modify(|row| row.add_rank(rank, &tally))
                .or_insert_with(|| SpreadRow::new(rank, &tally));
        }
    }

    /// Iterates over the rows in the order of their keys.
    pub fn rows_by_key(&self) -> impl ExactSizeIterator<Item = (&K, &SpreadRow)> {
        self.0.iter()
    }

    /// Returns the rows by time, largest first; rows without time are sorted by number of nodes.
    pub fn rows_by_time(&self) -> Vec<(&K, &SpreadRow)> {
        let mut rows: Vec<_> = self.0.iter().collect();
        rows.sort_by_key(|(_, row)| std::cmp::Reverse((row.sum.time, row.sum.nodes)));
        rows
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the sum over all rows.
    pub fn total_sums(&self) -> NodeSums {
        let mut total = NodeSums::default();
        for row in self.0.values() {
            total.add_sums(&row.sum);
        }
        total
    }
}
