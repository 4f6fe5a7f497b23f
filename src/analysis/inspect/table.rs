//! Sums over nodes, and how these vary between ranks.

use chakram_base::units::Span;
use serde::Serialize;
use std::collections::BTreeMap;

/// Sums over nodes that share a property.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeSums {
    /// Number of nodes.
    pub nodes: u64,
    /// Sum of the nodes' durations, including waiting for other ranks.
    #[serde(rename = "time_ps")]
    pub time: Span,
    /// Sum of the times for which the nodes waited for other ranks.
    #[serde(rename = "wait_ps")]
    pub wait: Span,
    /// Sum of the nodes' FLOPs.
    pub flops: u64,
    /// Sum of the bytes that the nodes move, send or reduce.
    pub bytes: u64,
    /// Number of nodes whose duration is zero or not recorded.
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

    /// Returns the mean duration of the nodes, in whole picoseconds.
    pub fn mean_duration(&self) -> Span {
        Span(self.time.0 / self.nodes.max(1))
    }
}

/// A sum over ranks, and the ranks with the smallest and the largest value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SumOverRanksAndExtremeRanksRow {
    /// Sum over ranks.
    pub sum: NodeSums,
    /// Number of ranks with such nodes.
    pub ranks: u32,
    /// Shortest time on a rank with such nodes, and the first rank with this time.
    pub least: (Span, u32),
    /// Longest time on a rank, and the first rank with this time.
    pub most: (Span, u32),
    /// Smallest number of nodes on a rank with such nodes, and the first rank with this number.
    pub fewest: (u64, u32),
    /// Largest number of nodes on a rank, and the first rank with this number.
    pub largest: (u64, u32),
}

impl SumOverRanksAndExtremeRanksRow {
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

/// Sums over ranks, by a property of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankSumsAndExtremesByKey<K: Ord>(BTreeMap<K, SumOverRanksAndExtremeRanksRow>);

impl<K: Ord> Default for RankSumsAndExtremesByKey<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> RankSumsAndExtremesByKey<K> {
    /// Adds the sums of one rank to the table.
    pub fn add_rank(&mut self, rank: u32, tallies: impl IntoIterator<Item = (K, NodeSums)>) {
        for (key, tally) in tallies {
            let row = self.0.entry(key);
            row.and_modify(|row| row.add_rank(rank, &tally))
                .or_insert_with(|| SumOverRanksAndExtremeRanksRow::new(rank, &tally));
        }
    }

    /// Iterates over the rows, sorted by key.
    pub fn rows_by_key(
        &self,
    ) -> impl ExactSizeIterator<Item = (&K, &SumOverRanksAndExtremeRanksRow)> {
        self.0.iter()
    }

    /// Returns the rows sorted by time, longest first. Rows without time are sorted by number of nodes.
    pub fn rows_by_time(&self) -> Vec<(&K, &SumOverRanksAndExtremeRanksRow)> {
        let mut rows: Vec<_> = self.0.iter().collect();
        rows.sort_by_key(|(_, row)| std::cmp::Reverse((row.sum.time, row.sum.nodes)));
        rows
    }

    /// Returns true if the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the sums over all rows.
    pub fn sum_over_all_rows(&self) -> NodeSums {
        let mut total = NodeSums::default();
        for row in self.0.values() {
            total.add_sums(&row.sum);
        }
        total
    }
}
