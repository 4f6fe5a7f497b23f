//! The allocated memory of one NPU over time.
//!
//! Sums cannot overflow: 2^32 nodes times 5 classes times 2^64 bytes is below 2^127. Results are capped at 2^64 - 1
//! bytes.

use super::{BytesByTensorClass, MemoryPeak, NpuPeakAndFinalMemory};
use chakram_base::ids::NodeIndex;
use chakram_base::units::Time;
use chakram_trace::format::TensorClass;
use std::fmt::Debug;
use std::iter::Sum;
use std::ops::{AddAssign, SubAssign};

/// An integer type for sums of bytes.
pub(super) trait ByteSumInteger:
    Copy + Debug + Default + Ord + AddAssign + SubAssign + Sum
{
    /// Returns true if sums cannot overflow when all allocations and frees sum to `bytes`.
    fn cannot_overflow_with_total(bytes: u128) -> bool;

    fn byte_sum_from_u64(bytes: u64) -> Self;

    /// Returns the sum in bytes, capped at 2^64 - 1.
    fn to_capped_bytes(self) -> u64;
}

impl ByteSumInteger for i128 {
    fn cannot_overflow_with_total(_: u128) -> bool {
        true
    }

    fn byte_sum_from_u64(bytes: u64) -> Self {
        bytes.into()
    }

    fn to_capped_bytes(self) -> u64 {
        u64::try_from(self).unwrap_or(u64::MAX)
    }
}

impl ByteSumInteger for i64 {
    fn cannot_overflow_with_total(bytes: u128) -> bool {
        i64::try_from(bytes).is_ok()
    }

    #[inline]
    fn byte_sum_from_u64(bytes: u64) -> Self {
        bytes as i64
    }

    fn to_capped_bytes(self) -> u64 {
        u64::try_from(self).unwrap_or(u64::MAX)
    }
}

type ByteSumsByTensorClass<S> = [S; TensorClass::COUNT];

/// Allocated bytes of one NPU, and their peak.
#[derive(Clone, Debug, Default)]
pub(super) struct MemoryLedger<S> {
    /// The current instant; all events at earlier times have been recorded.
    now: Time,
    /// Bytes allocated at earlier instants and not freed since. Never negative.
    held: ByteSumsByTensorClass<S>,
    /// Allocations minus frees, at this instant, by nodes that were issued at this instant. The sum `held + fresh` is
    /// never negative.
    fresh: ByteSumsByTensorClass<S>,
    /// Minimum that `fresh` has reached at this instant. If it is negative, its absolute value is the number of bytes
    /// of `held` that these nodes freed.
    low: ByteSumsByTensorClass<S>,
    /// Highest value that `fresh` has reached at this instant, at least 0. `top` holds the bytes by class at this
    /// maximum, and `top_node` is the node that reached it.
    most: S,
    top: ByteSumsByTensorClass<S>,
    top_node: Option<NodeIndex>,
    /// True if a node has allocated or freed memory at this instant.
    changed: bool,
    /// Total bytes at the peak.
    peak_total: S,
    rare: RarelyChangedLedgerFields<S>,
}

/// Ledger fields that rarely change. They are separate so that frequently changed fields share cache lines.
#[derive(Clone, Debug, Default)]
struct RarelyChangedLedgerFields<S> {
    peak: ByteSumsByTensorClass<S>,
    peak_at: Time,
    peak_node: Option<NodeIndex>,
    missing: ByteSumsByTensorClass<S>,
    /// Number of nodes that freed more than was allocated.
    short: u64,
    /// First node that freed more than was allocated.
    first_short: Option<NodeIndex>,
}

fn convert_class_sums_to_capped_bytes<S: ByteSumInteger>(
    sums: &ByteSumsByTensorClass<S>,
) -> BytesByTensorClass {
    sums.map(ByteSumInteger::to_capped_bytes)
}

fn sum_classes<S: ByteSumInteger>(sums: &ByteSumsByTensorClass<S>) -> S {
    sums.iter().copied().sum()
}

fn add_class_sums<S: ByteSumInteger>(
    sums: &mut ByteSumsByTensorClass<S>,
    others: &ByteSumsByTensorClass<S>,
) {
    for (sum, other) in sums.iter_mut().zip(others) {
        *sum += *other;
    }
}

impl<S: ByteSumInteger> MemoryLedger<S> {
    /// Returns the instant whose events are being recorded.
    #[inline]
    pub fn current_instant(&self) -> Time {
        self.now
    }

    /// Records the allocations of `node` when it is issued.
    #[inline]
    pub fn allocate_bytes(&mut self, node: NodeIndex, bytes: &BytesByTensorClass) {
        let mut all = 0;
        for (sum, bytes) in self.fresh.iter_mut().zip(bytes) {
            *sum += S::byte_sum_from_u64(*bytes);
            all |= bytes;
        }
        self.changed |= all > 0;
        let now = sum_classes(&self.fresh);
        if now > self.most {
            (self.most, self.top, self.top_node) = (now, self.fresh, Some(node));
        }
    }

    /// Records the frees of `node` when it completes; `fresh` is true if the node was also issued at this
    /// instant.
    #[inline]
    pub fn record_frees_of_completed_node(
        &mut self,
        node: NodeIndex,
        bytes: &BytesByTensorClass,
        fresh: bool,
    ) {
        let mut short = false;
        for (i, bytes) in bytes.iter().enumerate() {
            if *bytes == 0 {
                continue;
            }
            let wanted = S::byte_sum_from_u64(*bytes);
            let mut freed = self.held[i];
            let from = if fresh {
                freed += self.fresh[i];
                &mut self.fresh[i]
            } else {
                freed += self.low[i];
                &mut self.held[i]
            };
            if freed < wanted {
                self.rare.missing[i] += wanted;
                self.rare.missing[i] -= freed;
                short = true;
            } else {
                freed = wanted;
            }
            *from -= freed;
            self.low[i] = self.low[i].min(self.fresh[i]);
            self.changed |= freed > S::default();
        }
        if short {
            self.rare.short += 1;
            self.rare.first_short.get_or_insert(node);
        }
    }

    /// Ends the current instant and begins the instant `now`. If memory changed during the old instant, returns the old
    /// instant and the bytes allocated at its end.
    #[inline]
    pub fn begin_instant(&mut self, now: Time) -> Option<(Time, BytesByTensorClass)> {
        let over = std::mem::replace(&mut self.now, now);
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        if self.most > S::default() {
            let mut most = sum_classes(&self.held);
            most += self.most;
            if most > self.peak_total {
                self.peak_total = most;
                self.rare.peak = self.held;
                add_class_sums(&mut self.rare.peak, &self.top);
                (self.rare.peak_at, self.rare.peak_node) = (over, self.top_node);
            }
            self.most = S::default();
        }
        add_class_sums(&mut self.held, &self.fresh);
        (self.fresh, self.low) = Default::default();
        Some((over, convert_class_sums_to_capped_bytes(&self.held)))
    }

    /// Ends the last instant; returns the same result as [`Self::begin_instant`].
    pub fn end_last_instant(&mut self) -> Option<(Time, BytesByTensorClass)> {
        self.begin_instant(Time::END)
    }

    /// Returns the totals over all ended instants.
    pub fn collect_totals(&self) -> NpuPeakAndFinalMemory {
        let rare = &self.rare;
        NpuPeakAndFinalMemory {
            peak: MemoryPeak {
                bytes: self.peak_total.to_capped_bytes(),
                classes: convert_class_sums_to_capped_bytes(&rare.peak),
                at: rare.peak_at,
                node: rare.peak_node,
            },
            settled: convert_class_sums_to_capped_bytes(&self.held),
            missing: rare.first_short.map(|first| {
                (
                    rare.short,
                    first,
                    convert_class_sums_to_capped_bytes(&rare.missing),
                )
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: [NodeIndex; 4] = [NodeIndex(0), NodeIndex(1), NodeIndex(2), NodeIndex(3)];

    /// Returns `count` bytes of activations.
    fn wrap_count_as_activation_bytes(count: u64) -> BytesByTensorClass {
        [0, 0, 0, count, 0]
    }

    #[test]
    fn what_is_freed_goes_before_what_is_allocated_at_the_same_instant() {
        // From time 0, 8 bytes are allocated. At time 5, the loop first issues a node that allocates 6 bytes, and then
        // completes the node that frees the 8 bytes. The bytes are freed before the allocation, so the peak is 8, not
        // 14.
        let mut ledger = MemoryLedger::<i64>::default();
        ledger.allocate_bytes(NODES[0], &wrap_count_as_activation_bytes(8));
        assert_eq!(
            ledger.begin_instant(Time(5)),
            Some((Time(0), wrap_count_as_activation_bytes(8)))
        );
        ledger.allocate_bytes(NODES[1], &wrap_count_as_activation_bytes(6));
        ledger.record_frees_of_completed_node(NODES[0], &wrap_count_as_activation_bytes(8), false);
        assert_eq!(
            ledger.end_last_instant(),
            Some((Time(5), wrap_count_as_activation_bytes(6)))
        );
        let peak = ledger.collect_totals().peak;
        assert_eq!(
            (peak.bytes, peak.at, peak.node),
            (8, Time(0), Some(NODES[0]))
        );
        assert_eq!(
            (
                ledger.collect_totals().settled,
                ledger.collect_totals().missing
            ),
            (wrap_count_as_activation_bytes(6), None)
        );
    }

    #[test]
    fn nodes_without_duration_free_after_they_allocate() {
        // At time 0, 8 bytes are allocated. At time 5, three nodes that take no time run one after another; each
        // allocates and frees 4 bytes. The total of 8 + 4 bytes is therefore reached three times.
        let mut ledger = MemoryLedger::<i64>::default();
        ledger.allocate_bytes(NODES[0], &wrap_count_as_activation_bytes(8));
        ledger.begin_instant(Time(5));
        for node in &NODES[1..] {
            ledger.allocate_bytes(*node, &wrap_count_as_activation_bytes(4));
            ledger.record_frees_of_completed_node(*node, &wrap_count_as_activation_bytes(4), true);
        }
        assert_eq!(
            ledger.end_last_instant(),
            Some((Time(5), wrap_count_as_activation_bytes(8)))
        );
        let peak = ledger.collect_totals().peak;
        assert_eq!(
            (peak.bytes, peak.at, peak.node),
            (12, Time(5), Some(NODES[1]))
        );
        assert_eq!(
            ledger.collect_totals().settled,
            wrap_count_as_activation_bytes(8)
        );
    }

    #[test]
    fn first_of_equal_memory_peaks_is_reported() {
        // At time 1, 8 bytes of activations are allocated. At time 5, they are freed, and 8 bytes of weights are
        // allocated. At time 9, the weights are freed, and two nodes that take no time allocate 8 bytes each.
        let mut ledger = MemoryLedger::<i64>::default();
        ledger.begin_instant(Time(1));
        ledger.allocate_bytes(NODES[0], &wrap_count_as_activation_bytes(8));
        ledger.begin_instant(Time(5));
        ledger.record_frees_of_completed_node(NODES[0], &wrap_count_as_activation_bytes(8), false);
        ledger.allocate_bytes(NODES[1], &[8, 0, 0, 0, 0]);
        ledger.begin_instant(Time(9));
        ledger.record_frees_of_completed_node(NODES[1], &[8, 0, 0, 0, 0], false);
        for node in &NODES[2..] {
            ledger.allocate_bytes(*node, &wrap_count_as_activation_bytes(8));
            ledger.record_frees_of_completed_node(*node, &wrap_count_as_activation_bytes(8), true);
        }
        ledger.end_last_instant();
        let first = MemoryPeak {
            bytes: 8,
            classes: wrap_count_as_activation_bytes(8),
            at: Time(1),
            node: Some(NODES[0]),
        };
        assert_eq!(ledger.collect_totals().peak, first);
        // An allocation of 9 bytes is a new peak.
        ledger.allocate_bytes(NODES[3], &wrap_count_as_activation_bytes(9));
        ledger.end_last_instant();
        assert_eq!(
            (
                ledger.collect_totals().peak.bytes,
                ledger.collect_totals().peak.node
            ),
            (9, Some(NODES[3]))
        );
    }

    #[test]
    fn nodes_that_allocate_nothing_bring_no_peak() {
        // Nodes that allocate 0 bytes do not change the peak: the 4 bytes allocated at time 3.
        let mut ledger = MemoryLedger::<i64>::default();
        ledger.allocate_bytes(NODES[0], &wrap_count_as_activation_bytes(0));
        ledger.begin_instant(Time(3));
        assert_eq!(ledger.collect_totals().peak.node, None);
        ledger.allocate_bytes(NODES[1], &wrap_count_as_activation_bytes(4));
        ledger.begin_instant(Time(5));
        ledger.allocate_bytes(NODES[2], &wrap_count_as_activation_bytes(0));
        ledger.end_last_instant();
        let peak = ledger.collect_totals().peak;
        assert_eq!((peak.at, peak.node), (Time(3), Some(NODES[1])));
    }

    #[test]
    fn frees_beyond_held_bytes_are_counted_as_missing() {
        // At time 0, 8 bytes are allocated. At time 5, a node without duration frees 6 of the 8 bytes. Another node
        // completes and frees 5 bytes, so 3 bytes are missing. It cannot free bytes that were allocated at the same
        // instant.
        let mut ledger = MemoryLedger::<i64>::default();
        ledger.allocate_bytes(NODES[0], &wrap_count_as_activation_bytes(8));
        ledger.begin_instant(Time(5));
        ledger.record_frees_of_completed_node(NODES[1], &wrap_count_as_activation_bytes(6), true);
        ledger.allocate_bytes(NODES[2], &wrap_count_as_activation_bytes(7));
        ledger.record_frees_of_completed_node(NODES[3], &wrap_count_as_activation_bytes(5), false);
        ledger.end_last_instant();
        assert_eq!(
            ledger.collect_totals().missing,
            Some((1, NODES[3], wrap_count_as_activation_bytes(3)))
        );
        // The remaining memory is 8 - 6 - 2 + 7 bytes.
        assert_eq!(
            ledger.collect_totals().settled,
            wrap_count_as_activation_bytes(7)
        );
        assert_eq!(ledger.collect_totals().peak.bytes, 8);
    }

    #[test]
    fn sums_beyond_64_bits_are_exact() {
        let mut ledger = MemoryLedger::<i128>::default();
        ledger.allocate_bytes(NODES[0], &wrap_count_as_activation_bytes(u64::MAX));
        ledger.allocate_bytes(NODES[1], &wrap_count_as_activation_bytes(u64::MAX));
        ledger.begin_instant(Time(1));
        assert_eq!(
            (
                ledger.collect_totals().settled,
                ledger.collect_totals().peak.bytes
            ),
            (wrap_count_as_activation_bytes(u64::MAX), u64::MAX)
        );
        ledger.record_frees_of_completed_node(
            NODES[0],
            &wrap_count_as_activation_bytes(u64::MAX),
            false,
        );
        ledger.record_frees_of_completed_node(
            NODES[1],
            &wrap_count_as_activation_bytes(u64::MAX - 1),
            false,
        );
        ledger.end_last_instant();
        assert_eq!(
            (
                ledger.collect_totals().settled,
                ledger.collect_totals().missing
            ),
            (wrap_count_as_activation_bytes(1), None)
        );
    }
}
