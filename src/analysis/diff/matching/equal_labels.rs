//! Finds nodes of the two traces that have equal labels.

use super::{NodeLabelsByTrace, NodeMatching};

/// Pairs nodes that have a unique label in each of the two traces.
pub(super) fn pair_unique_labels(pairs: &mut NodeMatching, labels: &NodeLabelsByTrace) {
    for_each_equal_label(pairs, labels, |pairs, nodes, first| {
        if let ([a, b], 1) = (nodes, first) {
            let second = pairs.node_count_of_trace(0);
            pairs.set_pair(a.1, b.1 - second);
        }
    });
}

/// Approximate set of labels: a Bloom filter with one hash function. It rejects most labels that only one trace has, so
/// that they need not be sorted.
struct LabelBloomFilter {
    words: Vec<u64>,
    /// Binary logarithm of the set's size in bits.
    bits: u32,
}

impl LabelBloomFilter {
    /// Limits the set to 2 MB.
    const MOST_BITS: u32 = 24;

    fn from_labels(nodes: impl Iterator<Item = u32>, labels: &[u64]) -> Self {
        // Below the size limit, the filter has at least eight bits per label, so it wrongly accepts at most about one
        // in eight labels outside the set.
        let bits = (8 * labels.len()).next_power_of_two().ilog2();
        let bits = bits.clamp(6, Self::MOST_BITS);
        let mut marks = Self {
            words: vec![0; 1 << (bits - 6)],
            bits,
        };
        for node in nodes {
            let (word, bit) = marks.bit_position(labels[node as usize]);
            marks.words[word] |= bit;
        }
        marks
    }

    fn bit_position(&self, label: u64) -> (usize, u64) {
        let hash = label.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - self.bits);
        ((hash >> 6) as usize, 1 << (hash & 63))
    }

    fn may_contain_label(&self, label: u64) -> bool {
        let (word, bit) = self.bit_position(label);
        self.words[word] & bit != 0
    }
}

/// Calls `each` once for each label that unmatched nodes of both traces have. `each` receives the nodes with this
/// label, with those of the first trace first, and how many belong to the first trace.
pub(super) fn for_each_equal_label(
    pairs: &mut NodeMatching,
    labels: &NodeLabelsByTrace,
    mut each: impl FnMut(&mut NodeMatching, &[(u64, u32)], usize),
) {
    let offset = pairs.node_count_of_trace(0);
    let marks = [0, 1]
        .map(|which| LabelBloomFilter::from_labels(pairs.unmatched_nodes(which), &labels[which]));
    let mut free: Vec<(u64, u32)> = Vec::new();
    for (which, labels) in labels.iter().enumerate() {
        let shift = if which == 0 { 0 } else { offset };
        let nodes = pairs
            .unmatched_nodes(which)
            .map(|node| (labels[node as usize], node + shift));
        free.extend(nodes.filter(|&(label, _)| marks[1 - which].may_contain_label(label)));
    }
    free.sort_unstable();
    for alike in free.chunk_by(|a, b| a.0 == b.0) {
        let first = alike.partition_point(|&(_, node)| node < offset);
        if first > 0 && first < alike.len() {
            each(pairs, alike, first);
        }
    }
}
