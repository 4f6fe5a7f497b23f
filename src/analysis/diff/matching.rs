//! Finds which nodes of two traces correspond.
//!
//! Each step uses weaker evidence than the previous one. The steps match, in this order:
//!
//! 1. Nodes whose transitive predecessors and transitive successors are equal.
//! 2. Nodes whose transitive predecessors or transitive successors are equal.
//! 3. Nodes with equal neighbourhoods within a few edges.
//! 4. Neighbours of matched nodes.
//! 5. Nodes at the same position in an alignment in program order.
//! 6. Nodes that differ in content but have the same neighbours.
//!
//! A step is repeated only if it made progress, and every step except sorting takes linear time. Traces with nothing in
//! common therefore take no longer than similar ones.
//!
//! Most nodes of large, nearly identical traces are matched by id first, in one pass over the nodes.

mod align;
mod color_refinement;
mod equal_labels;
mod propagate;
mod residual;
pub(super) mod same_ids;

use super::side::{ComparedTrace, DependencyWalkDirection};
use super::{labels, node_labels};
use chakram_base::interrupt::wrap_with_current_token;
use color_refinement::ColorRefinement;
use equal_labels::pair_unique_labels;

/// For each node of either trace, the partner in the other trace.
#[derive(Clone, Debug)]
pub struct NodeMatching {
    partner: [Vec<u32>; 2],
    free: usize,
}

/// Marks a node without a partner.
const NOBODY: u32 = u32::MAX;

/// For each trace, the labels of its nodes.
pub(super) type NodeLabelsByTrace = [Vec<u64>; 2];

impl NodeMatching {
    pub(super) fn new(counts: [usize; 2]) -> Self {
        Self {
            partner: counts.map(|count| vec![NOBODY; count]),
            free: counts[0].min(counts[1]),
        }
    }

    /// Returns the partner of `node`, which belongs to the first trace if `which` is 0, and to the second if it is 1.
    #[inline]
    pub fn partner_of_node(&self, which: usize, node: u32) -> Option<u32> {
        let partner = self.partner[which][node as usize];
        (partner != NOBODY).then_some(partner)
    }

    /// Iterates over the nodes of a trace that have no partner, in ascending order.
    pub fn unmatched_nodes(&self, which: usize) -> impl Iterator<Item = u32> + '_ {
        let partners = self.partner[which].iter().enumerate();
        partners.filter_map(|(node, &partner)| (partner == NOBODY).then_some(node as u32))
    }

    /// Returns the number of nodes in a trace.
    pub(super) fn node_count_of_trace(&self, which: usize) -> u32 {
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

    /// Returns true if all nodes of one trace have partners, so that no further pair is possible.
    pub(super) fn is_one_trace_fully_matched(&self) -> bool {
        self.free == 0
    }
}

/// Minimum number of nodes per trace for which the two traces are processed in parallel.
pub(super) const MANY: usize = 1 << 14;

/// Runs two functions, in parallel if `much` is true, and returns both results.
pub(super) fn run_both_in_parallel_if_much<T: Send>(
    much: bool,
    first: impl FnOnce() -> T,
    second: impl FnOnce() -> T + Send,
) -> [T; 2] {
    if !much {
        return [first(), second()];
    }
    std::thread::scope(|scope| {
        let second = scope.spawn(wrap_with_current_token(second));
        let first = first();
        let second = second.join();
        [
            first,
            second.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        ]
    })
}

/// Runs `work` for both traces, in parallel if they have many nodes, and returns both results.
pub(super) fn run_on_both_traces<T: Send>(
    sides: &[ComparedTrace<'_>; 2],
    work: impl Fn(&ComparedTrace<'_>) -> T + Sync,
) -> [T; 2] {
    let [a, b] = sides;
    let many = a.len().min(b.len()) >= MANY;
    run_both_in_parallel_if_much(many, || work(a), || work(b))
}

/// Matches the nodes of two traces. If the traces have at least `many` nodes and are nearly identical, most nodes are
/// matched by id first.
pub(super) fn match_nodes(sides: &[ComparedTrace<'_>; 2], many: usize) -> NodeMatching {
    let mut pairs = NodeMatching::new([sides[0].len(), sides[1].len()]);
    if sides[0].len().min(sides[1].len()) >= many
        && same_ids::pair_same_ids_if_nearly_all_identical(sides, &mut pairs)
    {
        pair_by_neighbours(sides, &mut pairs);
    }
    pair_by_refinement(
        sides,
        &mut pairs,
        NodePropertiesInLabel::Key,
        labels::hash_connected_component,
    );
    for base in [
        NodePropertiesInLabel::Content,
        NodePropertiesInLabel::Key,
        NodePropertiesInLabel::Kind,
    ] {
        pair_by_surroundings(sides, &mut pairs, base);
    }
    if !pairs.is_one_trace_fully_matched() {
        pair_unique_labels(
            &mut pairs,
            &run_on_both_traces(sides, |side| {
                node_labels::apply_label_function_to_each_node(side.raw, node_labels::hash_name)
            }),
        );
    }
    pair_by_neighbours(sides, &mut pairs);
    pairs
}

/// The part of a node that determines its label. A compared trace stores one label per node for each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodePropertiesInLabel {
    /// The whole record, except id and dependencies.
    Content,
    /// Name, type, lane and peers of the node.
    Key,
    /// Name and type of the node.
    Kind,
}

impl NodePropertiesInLabel {
    pub fn labels_of_trace<'s>(self, side: &'s ComparedTrace<'_>) -> &'s [u64] {
        match self {
            Self::Content => side.labels_by_record_content(),
            Self::Key => side.labels_by_name_lane_and_peers(),
            Self::Kind => side.labels_by_name_and_type(),
        }
    }
}

/// Pairs nodes with equal surroundings: first those with equal transitive neighbours, then those with equal
/// neighbourhoods of decreasing size. `base` selects the part of a node that gives its own label, to which the labels
/// of its surroundings are added. Callers must begin with labels of whole records. An edit may have inserted a new node
/// before an old node with the same work, and only labels of whole records distinguish the two.
fn pair_by_surroundings(
    sides: &[ComparedTrace<'_>; 2],
    pairs: &mut NodeMatching,
    base: NodePropertiesInLabel,
) {
    pair_by_refinement(sides, pairs, base, |side, base| {
        labels::hash_transitive_neighbours(side, base, DependencyWalkDirection::Predecessors)
    });
    pair_by_refinement(sides, pairs, base, |side, base| {
        labels::hash_transitive_neighbours(side, base, DependencyWalkDirection::Successors)
    });
    // Begin with the widest neighbourhood, because it is the strongest evidence.
    for steps in [3, 1, 0] {
        if !pairs.is_one_trace_fully_matched() {
            let labels = run_on_both_traces(sides, |side| {
                labels::hash_vicinity(side, base.labels_of_trace(side), steps)
            });
            pair_unique_labels(pairs, &labels);
        }
    }
}

/// Pairs nodes with equal `label`. If several nodes have the same label, increasingly fine labels distinguish them.
fn pair_by_refinement(
    sides: &[ComparedTrace<'_>; 2],
    pairs: &mut NodeMatching,
    base: NodePropertiesInLabel,
    label: fn(&ComparedTrace<'_>, &[u64]) -> Vec<u64>,
) {
    if pairs.is_one_trace_fully_matched() {
        return;
    }
    let labels = run_on_both_traces(sides, |side| label(side, base.labels_of_trace(side)));
    let Some(mut classes) = ColorRefinement::new(sides, pairs, &labels) else {
        return;
    };
    let finer: [fn(&ComparedTrace<'_>) -> Vec<u64>; 6] = [
        |side| labels::hash_connected_component(side, side.labels_by_record_content()),
        |side| {
            labels::hash_transitive_neighbours(
                side,
                side.labels_by_record_content(),
                DependencyWalkDirection::Predecessors,
            )
        },
        |side| {
            labels::hash_transitive_neighbours(
                side,
                side.labels_by_record_content(),
                DependencyWalkDirection::Successors,
            )
        },
        |side| labels::hash_vicinity(side, side.labels_by_record_content(), 1),
        |side| labels::hash_vicinity(side, side.labels_by_name_lane_and_peers(), 2),
        |side| side.labels_by_record_content().to_vec(),
    ];
    for finer in finer {
        if classes.has_tied_class() {
            classes.split_by_labels(&run_on_both_traces(sides, finer));
        }
    }
    classes.pair_class_members_in_order();
}

/// Pairs neighbours of paired nodes, and nodes at the same position between paired nodes in program order.
fn pair_by_neighbours(sides: &[ComparedTrace<'_>; 2], pairs: &mut NodeMatching) {
    use propagate::{EqualNeighbourPolicy, pair_equally_labelled_neighbours_of_pairs};
    const ROUNDS: usize = 3;
    for _ in 0..ROUNDS {
        if pairs.is_one_trace_fully_matched() {
            return;
        }
        let before = pairs.free;
        // First pair neighbours that are unambiguous. After that, the alignment uses the new pairs as anchors to pair
        // other nodes.
        pair_equally_labelled_neighbours_of_pairs(
            sides,
            pairs,
            NodePropertiesInLabel::Key,
            EqualNeighbourPolicy::UniqueOnly,
        );
        align::pair_by_lane_alignment(sides, pairs);
        pair_equally_labelled_neighbours_of_pairs(
            sides,
            pairs,
            NodePropertiesInLabel::Content,
            EqualNeighbourPolicy::InIdOrder,
        );
        pair_equally_labelled_neighbours_of_pairs(
            sides,
            pairs,
            NodePropertiesInLabel::Key,
            EqualNeighbourPolicy::InIdOrder,
        );
        pair_equally_labelled_neighbours_of_pairs(
            sides,
            pairs,
            NodePropertiesInLabel::Kind,
            EqualNeighbourPolicy::InIdOrder,
        );
        residual::pair_nodes_by_common_neighbours(sides, pairs);
        // If no pair was added, another round would change nothing.
        if pairs.free == before {
            return;
        }
    }
}
