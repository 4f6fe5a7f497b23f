//! Sums over nodes, and how they differ among ranks.

use crate::units::Span;
use std::collections::BTreeMap;

/// Sums over some nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many nodes.
    pub nodes: u64,
    /// How long they took together, what they waited for other ranks included.
    pub time: Span,
    /// How long of that they waited for other ranks.
    pub wait: Span,
    /// Their FLOPs.
    pub flops: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Nodes that took no time, or of which the file does not say how long they took.
    pub untimed: u64,
}

impl Tally {
    /// Adds what `other` sums up.
    pub fn add(&mut self, other: &Self) {
        self.nodes += other.nodes;
        self.time += other.time;
        self.wait += other.wait;
        self.flops = self.flops.saturating_add(other.flops);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.untimed += other.untimed;
    }

    /// How long a node took on average.
    pub fn mean(&self) -> Span {
        Span(self.time.0 / self.nodes.max(1))
    }
}

/// A sum over ranks, and the ranks with the least and the most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The sum.
    pub sum: Tally,
    /// Ranks that have such nodes.
    pub ranks: u32,
    /// The least time of one of them, and the first rank with it.
    pub least: (Span, u32),
    /// The most time of one of them, and the first rank with it.
    pub most: (Span, u32),
    /// The fewest nodes of one of them, and the first rank with as many.
    pub fewest: (u64, u32),
    /// The most nodes of one of them, and the first rank with as many.
    pub largest: (u64, u32),
}

impl Row {
    fn new(rank: u32, tally: &Tally) -> Self {
        Self {
            sum: *tally,
            ranks: 1,
            least: (tally.time, rank),
            most: (tally.time, rank),
            fewest: (tally.nodes, rank),
            largest: (tally.nodes, rank),
        }
    }

    fn add(&mut self, rank: u32, tally: &Tally) {
        self.sum.add(tally);
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

/// Sums over ranks by something that nodes have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table<K: Ord>(BTreeMap<K, Row>);

impl<K: Ord> Default for Table<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Table<K> {
    /// Adds what `rank` has.
    pub fn add(&mut self, rank: u32, tallies: impl IntoIterator<Item = (K, Tally)>) {
        for (key, tally) in tallies {
            let row = self.0.entry(key);
            row.and_modify(|row| row.add(rank, &tally))
                .or_insert_with(|| Row::new(rank, &tally));
        }
    }

    /// The rows in the order of their keys.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = (&K, &Row)> {
        self.0.iter()
    }

    /// The rows, those that took most time first, and of those that took none those with most nodes.
    pub fn by_time(&self) -> Vec<(&K, &Row)> {
        let mut rows: Vec<_> = self.0.iter().collect();
        rows.sort_by_key(|(_, row)| std::cmp::Reverse((row.sum.time, row.sum.nodes)));
        rows
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The sum over all rows.
    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        for row in self.0.values() {
            total.add(&row.sum);
        }
        total
    }
}
