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

use super::line_cost::LineCostModel;
use super::{CollectiveAlgorithm, CollectivePrimitive};
use chakram_base::units::{BufferShare, TimeEstimate};

impl LineCostModel<'_> {
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
