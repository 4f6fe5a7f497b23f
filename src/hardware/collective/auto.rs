//! `auto`: of all algorithms that carry a primitive, the one that takes least by its formula.
//!
//! The formulas are those in the tables of the algorithms' files, extended by the cost of distance. A *line* has n
//! members; α(k) is the time of the first byte of a message and t(x, k) the serialization of x bytes between members
//! k places apart, the worse of the first and the last member's route. With S the buffer and h = ⌈log2 n⌉:
//!
//! | algorithm | primitive | takes |
//! |---|---|---|
//! | ring | reduce-scatter, all-gather, gather, scatter | (n−1)(α(1) + t(S/n, 1)) |
//! | | all-to-all | n(n−1)/2 (α(1) + t(S/n, 1)) |
//! | | broadcast, reduce | (n−1)α(1) + (2n−2) t(S/n, 1) |
//! | direct | reduce-scatter, all-gather, all-to-all | max α(k) + Σ_k c(k) t(S/n, k) |
//! | | broadcast, reduce | max α(k) + Σ_k t(S, k) |
//! | | gather, scatter | max α(k) + Σ_k t(S/n, k) |
//! | pairwise | reduce-scatter, all-gather, all-to-all | Σ_k (α(k) + c(k) t(S/n, k)) |
//! | halving_doubling, recursive_doubling | reduce-scatter, all-gather | Σ_j (α(2^j) + c(2^j) t(S/2^(j+1), 2^j)) |
//! | | broadcast, reduce | Σ_j (α(2^j) + t(S, 2^j)) |
//! | | gather, scatter | Σ_j (α(2^j) + t(min(2^j, n−2^j) S/n, 2^j)) |
//! | recursive_doubling | all-reduce | Σ_j (α(2^j) + c(2^j) t(S, 2^j)) |
//! | tree, double_binary_tree | broadcast, reduce | Σ_j (α(2^j) + 2t(S, 2^j)) − t(S, 2^(h−1)) |
//! | | all-reduce | twice that |
//!
//! where k runs from 1 to n−1 and j from 0 to h−1. Where a ring goes both ways round (`ring.rs`), its messages are
//! half as large. Where a closed form is proved, the formula is the closed form, but that it is not rounded.
//!
//! **The load c(k).** In a dimension whose NPUs are wired to their neighbours, a message over k places
//! occupies k wires. If every member sends to the one k places ahead, then on a ring every wire of the
//! shorter way carries c = min(k, n−k) messages at once; on an open line the k messages across the end
//! come back the other way, over n−k places, and c is the same. If members exchange with the one whose
//! index differs in the bit of weight k, the wire in the middle of each block of 2k carries k each way,
//! and k ≤ n/2. So c(k) = min(k, n−k), and a ring keeps to itself what halving and doubling over n/2
//! places pays n/2 times. Where every two NPUs have a way of their own, fully connected or through a
//! switch, c = 1. Where a root sends or collects, its own port lets one message through at a time, and in
//! the trees the ways of one level do not overlap: c = 1. The contention-free network does not slow
//! messages that share a wire, so there a choice may be slower than another; it is made for networks as
//! they are.
//!
//! An all-reduce takes one stage in the outermost dimension if the best fused algorithm takes less than the
//! best reduce-scatter and the best all-gather together.
//!
//! **Ties.** Formulas are not rounded to picoseconds ([`TimeEstimate`]), so that rounding never decides. Of algorithms
//! that take equally long, to within [`TimeEstimate::MARGIN`], the first in [`CollectiveAlgorithm::ALL`] is chosen, and
//! two stages rather than one. So a machine whose latencies are twice as long and whose bandwidths are half as wide
//! chooses the same.

use super::{CollectiveAlgorithm, CollectivePrimitive};
use crate::group::{GroupExtent, GroupPhase};
use crate::topology::{DimensionShape, NetworkPath, Topology};
use chakram_base::ids::Position;
use chakram_base::units::{BufferShare, TimeEstimate};

/// Cost model of the lines of a phase, by the distance between members.
#[derive(Clone, Copy, Debug)]
pub struct LineCostModel<'a> {
    extent: &'a GroupExtent,
    phase: &'a GroupPhase,
    topology: &'a Topology,
    /// The path between any two members, where it is one by the shape alone.
    flat: Option<NetworkPath>,
    /// True if NPUs are wired to their neighbours, so that routes overlap.
    wired: bool,
    /// True if a ring is driven in both directions.
    pub(super) round: bool,
}

/// Path and link load of a message over a given distance.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadedPath {
    path: NetworkPath,
    load: u64,
}

impl LoadedPath {
    pub(super) fn passes(self, amount: BufferShare) -> TimeEstimate {
        self.path.bandwidth.estimate(amount).times(self.load)
    }

    /// [`NetworkPath::first_byte`], not rounded.
    pub(super) fn first_byte(self, amount: BufferShare) -> TimeEstimate {
        let segment = self.path.switching.segment(amount);
        TimeEstimate::from(self.path.latency) + self.path.others.estimate(segment)
    }

    /// The same path without load from other messages.
    pub(super) fn alone(self) -> Self {
        Self { load: 1, ..self }
    }
}

impl<'a> LineCostModel<'a> {
    /// The lines of `phase`, for which the first speaks.
    pub fn new(extent: &'a GroupExtent, phase: &'a GroupPhase, topology: &'a Topology) -> Self {
        let shape = topology.dimensions()[phase.dimension].shape;
        let apart = matches!(
            shape,
            DimensionShape::FullyConnected | DimensionShape::Switch
        );
        let mut line = Self {
            extent,
            phase,
            topology,
            flat: None,
            wired: !apart,
            round: extent.closes_ring(phase, topology),
        };
        // All paths within such a dimension are equal, so one look-up serves all distances.
        if apart && extent.regular {
            line.flat = Some(line.path(0, 1));
        }
        line
    }

    /// Number of members of the line.
    pub(super) fn size(&self) -> u32 {
        self.phase.size
    }

    fn path(&self, a: u32, b: u32) -> NetworkPath {
        let npu = |index| self.extent.npus[self.phase.position(Position(0), index).index()];
        let path = self.topology.path(npu(a), npu(b));
        path.expect("members sit on NPUs of their own")
    }

    /// Between members `k` places apart: the worse of the ways from the first member and the last.
    pub(super) fn way(&self, k: u32) -> LoadedPath {
        let path = self.flat.unwrap_or_else(|| {
            let (a, b) = (self.path(0, k), self.path(self.size() - 1, k - 1));
            NetworkPath {
                // The worse of both routes in each respect; devices are those of the one with the longer latency.
                latency: a.latency.max(b.latency),
                others: if a.latency < b.latency {
                    b.others
                } else {
                    a.others
                },
                bandwidth: if a.bandwidth < b.bandwidth {
                    a.bandwidth
                } else {
                    b.bandwidth
                },
                ..a
            }
        });
        let load = if self.wired {
            u64::from(k.min(self.size() - k))
        } else {
            1
        };
        LoadedPath { path, load }
    }

    /// Between members whose indices differ in the bit of weight `k`, and along the ways of trees.
    fn exchange(&self, k: u32) -> LoadedPath {
        let path = self.flat.unwrap_or_else(|| self.path(0, k));
        let load = self.way(k).load;
        LoadedPath { path, load }
    }

    /// The sum of `time` over all distances, and the longest time of a first byte of `message`.
    pub(super) fn over_all(
        &self,
        message: BufferShare,
        time: impl Fn(LoadedPath) -> TimeEstimate,
    ) -> (TimeEstimate, TimeEstimate) {
        let others = self.size() - 1;
        match self.flat {
            Some(_) => {
                let way = self.way(1);
                (time(way).times(u64::from(others)), way.first_byte(message))
            }
            None => (1..=others).map(|k| self.way(k)).fold(
                (TimeEstimate::ZERO, TimeEstimate::ZERO),
                |(sum, far), way| (sum + time(way), far.max(way.first_byte(message))),
            ),
        }
    }

    /// Exchanges at distances 1, 2, 4, … up to the last below the size, of `amount(j, distance)`.
    pub(super) fn doubling(&self, time: impl Fn(LoadedPath, u32) -> TimeEstimate) -> TimeEstimate {
        let levels = self.size().next_power_of_two().ilog2();
        let spans = (0..levels).map(|j| time(self.exchange(1 << j), j));
        spans.fold(TimeEstimate::ZERO, |sum, span| sum + span)
    }

    /// Returns the fastest algorithm for `primitive`, and its time.
    pub fn choose(
        &self,
        primitive: CollectivePrimitive,
        buffer: BufferShare,
    ) -> (CollectiveAlgorithm, TimeEstimate) {
        let all =
            CollectiveAlgorithm::ALL.map(|(a, _)| Some((a, a.cost(self, primitive, buffer)?)));
        let best = TimeEstimate::first_of_least(all.into_iter().flatten());
        best.expect("every primitive is carried by one, of any size")
    }

    /// Returns true if an all-reduce of `buffer` is faster as one fused stage than as reduce-scatter and all-gather.
    pub fn prefers_fused_all_reduce(&self, buffer: BufferShare) -> bool {
        let of = |primitive| self.choose(primitive, buffer).1;
        let two = of(CollectivePrimitive::ReduceScatter) + of(CollectivePrimitive::AllGather);
        of(CollectivePrimitive::AllReduce).is_less(two)
    }
}

#[cfg(test)]
mod tests;
