//! Among all algorithms that support a primitive, `auto` selects the one with the shortest time by the formulas below.
//!
//! Each algorithm's file has a table of its formulas; here, they also include the cost of the distance between members.
//! A *line* has n members. For members k places apart, α(k) is the time until a message's first byte arrives, and t(x,
//! k) is the serialization time of x bytes. Both α and t use the slower of the first member's and the last member's
//! routes. S is the size of the buffer, and h = ⌈log2 n⌉:
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
//! where k runs from 1 to n−1 and j from 0 to h−1. If a ring is used in both directions (`ring.rs`), messages have half
//! the size. If a closed form is proven exact, the formula gives the same time, without rounding.
//!
//! **The load c(k).** In a dimension whose NPUs are wired to their neighbours, a message over k places occupies k
//! wires. If every member of a ring sends to the member k places ahead, every wire of the shorter direction carries c =
//! min(k, n−k) messages at once. On an open line, the k messages of the last k members go in the other direction, over
//! n−k places, so c is the same. Instead, members may exchange data in pairs whose indices differ in the bit of weight
//! k. The wire in the middle of each block of 2k then carries k messages in each direction. Since k ≤ n/2, c(k) is
//! again min(k, n−k). With halving and doubling, a message over n/2 places therefore takes n/2 times the time of a
//! message to a neighbour. The ring algorithm sends only to neighbours. If every pair of NPUs has its own path (fully
//! connected, or through a switch), c = 1. If a root sends or collects, the root's port passes one message at a time,
//! so c = 1. In trees, the messages of one level use disjoint routes, so again c = 1. The formulas are meant for
//! networks with contention. On the contention-free network, messages that share a wire do not slow one another, so
//! another algorithm may be faster.
//!
//! An all-reduce takes one stage in the outermost dimension if the best fused algorithm is faster than the best
//! reduce-scatter followed by the best all-gather.
//!
//! **Ties.** Formulas are not rounded to picoseconds ([`UnroundedTimeEstimate`]), so rounding never decides between
//! algorithms. Among algorithms whose times agree to within [`UnroundedTimeEstimate::MARGIN`], the first in
//! [`CollectiveAlgorithm::ALL`] is chosen, and two stages are preferred to one. A machine with twice the latencies and
//! half the bandwidths therefore gets the same algorithms.

use super::line_cost::LineMessageCosts;
use super::{CollectiveAlgorithm, CollectiveStagePrimitive};
use chakram_base::units::{UnroundedBufferShare, UnroundedTimeEstimate};

impl LineMessageCosts<'_> {
    /// Returns the fastest algorithm for `primitive`, and its time.
    pub fn choose_fastest(
        &self,
        primitive: CollectiveStagePrimitive,
        buffer: UnroundedBufferShare,
    ) -> (CollectiveAlgorithm, UnroundedTimeEstimate) {
        let all = CollectiveAlgorithm::ALL
            .map(|(a, _)| Some((a, a.estimate_cost(self, primitive, buffer)?)));
        let best = UnroundedTimeEstimate::first_near_minimum(all.into_iter().flatten());
        best.expect("every primitive is carried by one, of any size")
    }

    /// Returns true if an all-reduce of `buffer` is faster as one fused stage than as a reduce-scatter and an
    /// all-gather.
    pub fn prefers_fused_all_reduce(&self, buffer: UnroundedBufferShare) -> bool {
        let of = |primitive| self.choose_fastest(primitive, buffer).1;
        let two =
            of(CollectiveStagePrimitive::ReduceScatter) + of(CollectiveStagePrimitive::AllGather);
        of(CollectiveStagePrimitive::AllReduce).is_less_beyond_margin(two)
    }
}

#[cfg(test)]
mod tests;
