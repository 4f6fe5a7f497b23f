//! Matches the nodes of two traces.
//!
//! Evidence is used from strong to weak, in these steps: nodes whose surroundings are equal (all transitive
//! predecessors and successors); nodes whose transitive predecessors or successors are equal; nodes with an equal
//! vicinity of a few steps; neighbours of pairs; nodes that an alignment in program order places next to each other;
//! and finally nodes of different content with the same neighbours. No step is repeated, and every step except sorting
//! takes linear time, so traces with nothing in common take no longer than similar traces.
//!
//! Large traces that are nearly identical are mostly paired by ids first, which visits each node once.

mod align;
mod color_refinement;
mod equal_labels;
mod propagate;
mod residual;
pub(super) mod same_ids;

use super::side::{ComparedTrace, EdgeDirection};
use super::{labels, node_labels};
use chakram_base::interrupt::inherit_token;
use color_refinement::ColorRefinement;
use equal_labels::pair_unique_labels;

/// For each node, the matching node of the other trace.
#[derive(Clone, Debug)]
pub struct NodeMatching {
    partner: [Vec<u32>; 2],
    free: usize,
}

/// Sentinel for an absent partner.
const NOBODY: u32 = u32::MAX;

/// Label of each node of both traces.
pub(super) type NodeHashes = [Vec<u64>; 2];

impl NodeMatching {
    pub(super) fn new(counts: [usize; 2]) -> Self {
        Self {
            partner: counts.map(|count| vec![NOBODY; count]),
            free: counts[0].min(counts[1]),
        }
    }

    /// Returns the partner of a node of the first trace (0) or the second (1).
    #[inline]
    pub fn partner_of_node(&self, which: usize, node: u32) -> Option<u32> {
        let partner = self.partner[which][node as usize];
        (partner != NOBODY).then_some(partner)
    }

    /// Iterates over the nodes of a trace that have no partner, ascending.
    pub fn unmatched_nodes(&self, which: usize) -> impl Iterator<Item = u32> + '_ {
        let partners = self.partner[which].iter().enumerate();
        partners.filter_map(|(node, &partner)| (partner == NOBODY).then_some(node as u32))
    }

    /// Returns the number of nodes of a trace.
    pub(super) fn node_count(&self, which: usize) -> u32 {
        self.partner[which].len() as u32
    }

    pub(super) fn set_pair(&mut self, first: u32, second: u32) {
        debug_assert!(
            self.partner_of_node(0, first).is_none() && self.partner_of_node(1, second).is_none()
        );
        self.partner[0][first as usize] = second;
        self.partner[1][second as usize] = first;
        self.free -= 1;
    }

    /// Returns whether all nodes of at least one trace are paired, so that no further pair is possible.
    pub(super) fn is_complete(&self) -> bool {
        self.free == 0
    }
}

/// If each trace has at least this number of nodes, the two traces are processed in parallel.
pub(super) const MANY: usize = 1 << 14;

/// Runs two functions, in parallel if `much` is true, and returns both results.
pub(super) fn run_both<T: Send>(
    much: bool,
    first: impl FnOnce() -> T,
    second: impl FnOnce() -> T + Send,
) -> [T; 2] {
    if !much {
        return [first(), second()];
    }
    std::thread::scope(|scope| {
        let second = scope.spawn(inherit_token(second));
        let first = first();
        let second = second.join();
        [
            first,
            second.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        ]
    })
}

/// Applies `work` to both traces, in parallel if they have many nodes.
pub(super) fn compute_both_sides<T: Send>(
    sides: &[ComparedTrace<'_>; 2],
    work: impl Fn(&ComparedTrace<'_>) -> T + Sync,
) -> [T; 2] {
    let [a, b] = sides;
    let many = a.len().min(b.len()) >= MANY;
    run_both(many, || work(a), || work(b))
}

/// Matches the nodes of the two traces. Nearly identical traces of at least `many` nodes are matched by ids first.
pub(super) fn match_nodes(sides: &[ComparedTrace<'_>; 2], many: usize) -> NodeMatching {
    let mut pairs = NodeMatching::new([sides[0].len(), sides[1].len()]);
    if sides[0].len().min(sides[1].len()) >= many && same_ids::pair_same_ids(sides, &mut pairs) {
        pair_by_neighbours(sides, &mut pairs);
    }
    pair_by_refinement(sides, &mut pairs, LabelKind::Key, labels::hash_component);
    for base in [LabelKind::Content, LabelKind::Key, LabelKind::Kind] {
        pair_by_surroundings(sides, &mut pairs, base);
    }
    if !pairs.is_complete() {
        pair_unique_labels(
            &mut pairs,
            &compute_both_sides(sides, |side| {
                node_labels::compute_labels(side.raw, node_labels::hash_name)
            }),
        );
    }
    pair_by_neighbours(sides, &mut pairs);
    pairs
}

/// Kind of node label; each compared trace caches the labels of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LabelKind {
    /// Whole record, except id and dependencies.
    Content,
    /// Name, type, lane and peers.
    Key,
    /// Name and type.
    Kind,
}

impl LabelKind {
    pub fn labels_of_trace<'s>(self, side: &'s ComparedTrace<'_>) -> &'s [u64] {
        match self {
            Self::Content => side.labels_by_content(),
            Self::Key => side.labels_by_key(),
            Self::Kind => side.labels_by_kind(),
        }
    }
}

/// Pairs nodes with the same surroundings: first all transitive neighbours are compared, then a wide vicinity, then a
/// narrow one. `base` is the label of a node itself. Callers first use labels of whole records, because only these
/// labels distinguish a node from a new node with the same work that an edit inserted before it.
fn pair_by_surroundings(sides: &[ComparedTrace<'_>; 2], pairs: &mut NodeMatching, base: LabelKind) {
    pair_by_refinement(sides, pairs, base, |side, base| {
        labels::hash_ancestry(side, base, EdgeDirection::Predecessors)
    });
    pair_by_refinement(sides, pairs, base, |side, base| {
        labels::hash_ancestry(side, base, EdgeDirection::Successors)
    });
    // The widest vicinity is used first, because it is the strongest evidence.
    for steps in [3, 1, 0] {
        if !pairs.is_complete() {
            let labels = compute_both_sides(sides, |side| {
                labels::hash_vicinity(side, base.labels_of_trace(side), steps)
            });
            pair_unique_labels(pairs, &labels);
        }
    }
}

/// Pairs nodes with equal `label`. If several nodes have the same label, finer labels decide.
fn pair_by_refinement(
    sides: &[ComparedTrace<'_>; 2],
    pairs: &mut NodeMatching,
    base: LabelKind,
    label: fn(&ComparedTrace<'_>, &[u64]) -> Vec<u64>,
) {
    if pairs.is_complete() {
        return;
    }
    let labels = compute_both_sides(sides, |side| label(side, base.labels_of_trace(side)));
    let Some(mut classes) = ColorRefinement::new(sides, pairs, &labels) else {
        return;
    };
    let finer: [fn(&ComparedTrace<'_>) -> Vec<u64>; 6] = [
        |side| labels::hash_component(side, side.labels_by_content()),
        |side| labels::hash_ancestry(side, side.labels_by_content(), EdgeDirection::Predecessors),
        |side| labels::hash_ancestry(side, side.labels_by_content(), EdgeDirection::Successors),
        |side| labels::hash_vicinity(side, side.labels_by_content(), 1),
        |side| labels::hash_vicinity(side, side.labels_by_key(), 2),
        |side| side.labels_by_content().to_vec(),
    ];
    for finer in finer {
        if classes.is_tied() {
            classes.split_by_labels(&compute_both_sides(sides, finer));
        }
    }
    classes.pair_in_order();
}

/// Pairs neighbours of pairs, and nodes between pairs in program order.
fn pair_by_neighbours(sides: &[ComparedTrace<'_>; 2], pairs: &mut NodeMatching) {
    use propagate::{AmbiguityPolicy, pair_neighbours};
    const ROUNDS: usize = 3;
    for _ in 0..ROUNDS {
        if pairs.is_complete() {
            return;
        }
        let before = pairs.free;
        // Unambiguous neighbours are paired first. The other neighbours are then paired by the alignment.
        pair_neighbours(sides, pairs, LabelKind::Key, AmbiguityPolicy::UniqueOnly);
        align::pair_by_lane_alignment(sides, pairs);
        pair_neighbours(sides, pairs, LabelKind::Content, AmbiguityPolicy::InIdOrder);
        pair_neighbours(sides, pairs, LabelKind::Key, AmbiguityPolicy::InIdOrder);
        pair_neighbours(sides, pairs, LabelKind::Kind, AmbiguityPolicy::InIdOrder);
        residual::pair_most_similar(sides, pairs);
        // Without progress, another round would give the same result.
        if pairs.free == before {
            return;
        }
    }
}
