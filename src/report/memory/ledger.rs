//! The memory of one NPU over time.
//!
//! Sums are exact: 2^32 nodes times 5 classes times 2^64 bytes stay below 2^127. What is told of them is
//! 2^64 - 1 bytes at most.

use super::BytesByClass;
use crate::ids::NodeIndex;
use crate::trace::TensorClass;
use crate::units::Time;

type ClassSums = [i128; TensorClass::COUNT];

/// Bytes allocated, and their peak.
#[derive(Clone, Debug, Default)]
pub(super) struct MemoryLedger {
    /// The instant that is under way.
    now: Time,
    /// Bytes held of earlier instants: never negative.
    held: ClassSums,
    /// Bytes that nodes issued at this instant have added to that, less what they freed of it. With
    /// `held` never negative.
    fresh: ClassSums,
    /// The least that `fresh` was: so much of `held` is freed already.
    low: ClassSums,
    /// The most that `fresh` was in all, and the node that brought it there.
    top: Option<(NodeIndex, ClassSums)>,
    /// Whether anything changed at this instant.
    changed: bool,
    peak: ClassSums,
    peak_at: Time,
    peak_node: Option<NodeIndex>,
    missing: ClassSums,
    /// Number of nodes that freed more than was there, and the first of them.
    short: u64,
    first_short: Option<NodeIndex>,
}

/// The most that was allocated at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryPeak {
    /// In all.
    pub bytes: u64,
    /// By class.
    pub classes: BytesByClass,
    /// Instant when it was first reached.
    pub at: Time,
    /// The node that brought it about.
    pub node: Option<NodeIndex>,
}

fn told(sums: &ClassSums) -> BytesByClass {
    sums.map(|sum| u64::try_from(sum).unwrap_or(u64::MAX))
}

fn total(sums: &ClassSums) -> i128 {
    sums.iter().sum()
}

fn plus(a: &ClassSums, b: &ClassSums) -> ClassSums {
    std::array::from_fn(|i| a[i] + b[i])
}

impl MemoryLedger {
    /// The instant that is under way.
    #[inline]
    pub fn now(&self) -> Time {
        self.now
    }

    /// `node` is issued.
    pub fn allocate(&mut self, node: NodeIndex, bytes: &BytesByClass) {
        for (sum, bytes) in self.fresh.iter_mut().zip(bytes) {
            *sum += i128::from(*bytes);
            self.changed |= *bytes > 0;
        }
        let most = self.top.as_ref().map_or(0, |(_, top)| total(top));
        if total(&self.fresh) > most {
            self.top = Some((node, self.fresh));
        }
    }

    /// `node` is complete, which was issued at this instant if it is `fresh`.
    pub fn free(&mut self, node: NodeIndex, bytes: &BytesByClass, fresh: bool) {
        let mut short = false;
        for (i, bytes) in bytes.iter().enumerate() {
            let wanted = i128::from(*bytes);
            let (there, from) = if fresh {
                (self.held[i] + self.fresh[i], &mut self.fresh[i])
            } else {
                (self.held[i] + self.low[i], &mut self.held[i])
            };
            let freed = wanted.min(there);
            *from -= freed;
            self.low[i] = self.low[i].min(self.fresh[i]);
            self.missing[i] += wanted - freed;
            self.changed |= freed > 0;
            short |= freed < wanted;
        }
        if short {
            self.short += 1;
            self.first_short.get_or_insert(node);
        }
    }

    /// The instant is over, and `now` begins. Returns the one that is over, and what is held after it, if
    /// anything changed at it.
    pub fn begin(&mut self, now: Time) -> Option<(Time, BytesByClass)> {
        if let Some((node, top)) = self.top.take() {
            let most = plus(&self.held, &top);
            if total(&most) > total(&self.peak) {
                (self.peak, self.peak_at, self.peak_node) = (most, self.now, Some(node));
            }
        }
        self.held = plus(&self.held, &self.fresh);
        (self.fresh, self.low) = Default::default();
        let over = self.changed.then(|| (self.now, told(&self.held)));
        (self.now, self.changed) = (now, false);
        over
    }

    /// The last instant is over.
    pub fn end(&mut self) -> Option<(Time, BytesByClass)> {
        self.begin(Time::END)
    }

    /// Returns the bytes held at the end.
    pub fn settled(&self) -> BytesByClass {
        told(&self.held)
    }

    /// The most that was allocated at once, at instants that are over.
    pub fn peak(&self) -> MemoryPeak {
        MemoryPeak {
            bytes: u64::try_from(total(&self.peak)).unwrap_or(u64::MAX),
            classes: told(&self.peak),
            at: self.peak_at,
            node: self.peak_node,
        }
    }

    /// Returns the number of nodes that freed more than was there, the first of them, and what was not there.
    pub fn missing(&self) -> Option<(u64, NodeIndex, BytesByClass)> {
        Some((self.short, self.first_short?, told(&self.missing)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: [NodeIndex; 4] = [NodeIndex(0), NodeIndex(1), NodeIndex(2), NodeIndex(3)];

    /// So many activations.
    fn bytes(count: u64) -> BytesByClass {
        [0, 0, 0, count, 0]
    }

    #[test]
    fn what_is_freed_goes_before_what_is_allocated_at_the_same_instant() {
        // 8 from instant 0 on; at 5 the loop issues a node of 6 before it completes the one of 8: at no
        // time are there 14.
        let mut ledger = MemoryLedger::default();
        ledger.allocate(NODES[0], &bytes(8));
        assert_eq!(ledger.begin(Time(5)), Some((Time(0), bytes(8))));
        ledger.allocate(NODES[1], &bytes(6));
        ledger.free(NODES[0], &bytes(8), false);
        assert_eq!(ledger.end(), Some((Time(5), bytes(6))));
        let peak = ledger.peak();
        assert_eq!(
            (peak.bytes, peak.at, peak.node),
            (8, Time(0), Some(NODES[0]))
        );
        assert_eq!((ledger.settled(), ledger.missing()), (bytes(6), None));
    }

    #[test]
    fn nodes_without_duration_free_after_they_allocate() {
        // 8 are held. At 5 a chain of three nodes of 4 that take no time; 8 + 4 at most, three times.
        let mut ledger = MemoryLedger::default();
        ledger.allocate(NODES[0], &bytes(8));
        ledger.begin(Time(5));
        for node in &NODES[1..] {
            ledger.allocate(*node, &bytes(4));
            ledger.free(*node, &bytes(4), true);
        }
        assert_eq!(ledger.end(), Some((Time(5), bytes(8))));
        let peak = ledger.peak();
        assert_eq!(
            (peak.bytes, peak.at, peak.node),
            (12, Time(5), Some(NODES[1]))
        );
        assert_eq!(ledger.settled(), bytes(8));
    }

    #[test]
    fn of_equal_peaks_the_first_is_told() {
        // 8 activations at 1; they go at 5, where 8 weights come; at 9 these go too, and of two nodes that take no
        // time each has 8.
        let mut ledger = MemoryLedger::default();
        ledger.begin(Time(1));
        ledger.allocate(NODES[0], &bytes(8));
        ledger.begin(Time(5));
        ledger.free(NODES[0], &bytes(8), false);
        ledger.allocate(NODES[1], &[8, 0, 0, 0, 0]);
        ledger.begin(Time(9));
        ledger.free(NODES[1], &[8, 0, 0, 0, 0], false);
        for node in &NODES[2..] {
            ledger.allocate(*node, &bytes(8));
            ledger.free(*node, &bytes(8), true);
        }
        ledger.end();
        let first = MemoryPeak {
            bytes: 8,
            classes: bytes(8),
            at: Time(1),
            node: Some(NODES[0]),
        };
        assert_eq!(ledger.peak(), first);
        // One byte more is another peak.
        ledger.allocate(NODES[3], &bytes(9));
        ledger.end();
        assert_eq!(
            (ledger.peak().bytes, ledger.peak().node),
            (9, Some(NODES[3]))
        );
    }

    #[test]
    fn nodes_that_allocate_nothing_bring_no_peak() {
        // Nothing is there at any time, whatever is issued; and at 5 the same 4 as before.
        let mut ledger = MemoryLedger::default();
        ledger.allocate(NODES[0], &bytes(0));
        ledger.begin(Time(3));
        assert_eq!(ledger.peak().node, None);
        ledger.allocate(NODES[1], &bytes(4));
        ledger.begin(Time(5));
        ledger.allocate(NODES[2], &bytes(0));
        ledger.end();
        let peak = ledger.peak();
        assert_eq!((peak.at, peak.node), (Time(3), Some(NODES[1])));
    }

    #[test]
    fn what_is_not_there_is_missing_once() {
        // 8 are held; at 5 a node without duration frees 6 of them, one that ends frees 5: 3 are missing.
        // An allocation at that instant is not the one that the node that ends can mean.
        let mut ledger = MemoryLedger::default();
        ledger.allocate(NODES[0], &bytes(8));
        ledger.begin(Time(5));
        ledger.free(NODES[1], &bytes(6), true);
        ledger.allocate(NODES[2], &bytes(7));
        ledger.free(NODES[3], &bytes(5), false);
        ledger.end();
        assert_eq!(ledger.missing(), Some((1, NODES[3], bytes(3))));
        // 8 - 6 - 2 + 7.
        assert_eq!(ledger.settled(), bytes(7));
        assert_eq!(ledger.peak().bytes, 8);
    }

    #[test]
    fn sums_beyond_64_bits_are_exact() {
        let mut ledger = MemoryLedger::default();
        ledger.allocate(NODES[0], &bytes(u64::MAX));
        ledger.allocate(NODES[1], &bytes(u64::MAX));
        ledger.begin(Time(1));
        assert_eq!(
            (ledger.settled(), ledger.peak().bytes),
            (bytes(u64::MAX), u64::MAX)
        );
        ledger.free(NODES[0], &bytes(u64::MAX), false);
        ledger.free(NODES[1], &bytes(u64::MAX - 1), false);
        ledger.end();
        assert_eq!((ledger.settled(), ledger.missing()), (bytes(1), None));
    }
}
