//! Matches changed nodes that keep their place in the graph, by comparing neighbours.

use super::NodeMatching;
use crate::diff::side::{ComparedTrace, DependencyWalkDirection};
use chakram_trace::format::Op;

/// Maximum number of neighbours followed from a node, and of candidates compared with it.
const NEAR: usize = 64;
/// Maximum number of nodes that are checked as candidates for each partner of a followed neighbour.
const THROUGH: usize = 1024;
/// Maximum number of candidates for each partner of a followed neighbour.
const CANDIDATES: usize = 16;
/// Maximum number of retries per node; each time a neighbour gets a partner, the node is retried.
const TRIES: u8 = 8;
/// Maximum number of neighbours that are compared for one node, summed over its candidates.
const WORK: usize = 1 << 16;

/// Of the neighbours with a known partner, counts how many agree between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NeighbourAgreement {
    /// Number of neighbours with a known partner: the larger of the two nodes' counts.
    known: usize,
    /// Number of neighbours of one node that are paired with neighbours of the other node.
    common: usize,
}

impl NeighbourAgreement {
    /// Returns true if the neighbours allow a pair: at least one agrees, or none has a known partner.
    pub fn is_plausible(self) -> bool {
        self.known == 0 || self.common > 0
    }

    /// Returns true if at least half of the counted neighbours agree.
    fn has_at_least_half_agreement(self) -> bool {
        self.common > 0 && 2 * self.common >= self.known
    }
}

/// Counts the pairs among the neighbours of `first` and `second`.
pub(super) fn count_agreeing_neighbours(
    sides: &[ComparedTrace<'_>; 2],
    pairs: &NodeMatching,
    first: u32,
    second: u32,
) -> NeighbourAgreement {
    let mut sum = NeighbourAgreement {
        known: 0,
        common: 0,
    };
    for way in DependencyWalkDirection::BOTH {
        let known = |which: usize, node| -> Vec<(u32, bool)> {
            let next = sides[which].neighbours_of(node, way);
            let mut known: Vec<_> = next
                .filter_map(|(next, control)| {
                    let partner = pairs.partner_of_node(which, next)?;
                    Some((if which == 0 { partner } else { next }, control))
                })
                .collect();
            known.sort_unstable();
            known
        };
        let [a, b] = [known(0, first), known(1, second)];
        let mut others = b.iter().peekable();
        let mut common = 0;
        for entry in &a {
            while others.next_if(|other| *other < entry).is_some() {}
            common += usize::from(others.next_if(|other| *other == entry).is_some());
        }
        sum.common += common;
        sum.known += a.len().max(b.len());
    }
    sum
}

/// Scores the similarity of two nodes with different labels: 2 points for equal names, plus 1 for equal
/// types.
fn score_name_and_type_likeness(sides: &[ComparedTrace<'_>; 2], first: u32, second: u32) -> u8 {
    let view = |which: usize, node: u32| &sides[which].raw.nodes[node as usize].view;
    let (a, b) = (view(0, first), view(1, second));
    let what = std::mem::discriminant::<Op<'_>>;
    2 * u8::from(a.name == b.name) + u8::from(what(&a.op) == what(&b.op))
}

/// Pairs nodes that have most of their neighbours in common. If each trace then has exactly one unmatched node, and
/// both are isolated and similar, pairs these two.
pub(super) fn pair_nodes_by_common_neighbours(
    sides: &[ComparedTrace<'_>; 2],
    pairs: &mut NodeMatching,
) {
    // From an unmatched node, go to its neighbours' partners, and from these to their unmatched neighbours.
    let mut waiting: Vec<u32> = pairs.unmatched_nodes(0).collect();
    waiting.reverse();
    let mut tries = vec![0_u8; sides[0].len()];
    while let Some(node) = waiting.pop() {
        if pairs.partner_of_node(0, node).is_some() || pairs.is_one_trace_fully_matched() {
            continue;
        }
        let Some(found) = find_best_partner(sides, pairs, node) else {
            continue;
        };
        pairs.set_pair(node, found);
        for way in DependencyWalkDirection::BOTH {
            for (next, _) in sides[0].neighbours_of(node, way).take(NEAR) {
                let tried = &mut tries[next as usize];
                if pairs.partner_of_node(0, next).is_none() && *tried < TRIES {
                    *tried += 1;
                    waiting.push(next);
                }
            }
        }
    }
    let mut left = pairs.unmatched_nodes(0);
    let mut others = pairs.unmatched_nodes(1);
    let last = (left.next(), left.next(), others.next(), others.next());
    drop((left, others));
    if let (Some(a), None, Some(b), None) = last {
        let unknown = count_agreeing_neighbours(sides, pairs, a, b).known == 0;
        let nobody = [(0, a), (1, b)].iter().all(|&(which, node)| {
            DependencyWalkDirection::BOTH
                .iter()
                .all(|&way| sides[which].count_neighbours_in_direction(node, way) == 0)
        });
        // Isolated nodes have no neighbours that could contradict the pair, so one common property is enough.
        if unknown && nobody && score_name_and_type_likeness(sides, a, b) > 0 {
            pairs.set_pair(a, b);
        }
    }
}

/// Returns the unmatched node of the second trace that is most similar to `node` and shares the most neighbours with
/// it. Returns `None` if no candidate has half of the neighbours in common.
fn find_best_partner(
    sides: &[ComparedTrace<'_>; 2],
    pairs: &NodeMatching,
    node: u32,
) -> Option<u32> {
    let mut candidates: Vec<u32> = Vec::new();
    for way in DependencyWalkDirection::BOTH {
        let back = match way {
            DependencyWalkDirection::Predecessors => DependencyWalkDirection::Successors,
            DependencyWalkDirection::Successors => DependencyWalkDirection::Predecessors,
        };
        for (next, control) in sides[0].neighbours_of(node, way).take(NEAR) {
            let Some(partner) = pairs.partner_of_node(0, next) else {
                continue;
            };
            let free = sides[1].neighbours_of(partner, back).take(THROUGH);
            let free = free.filter(|&(x, c)| c == control && pairs.partner_of_node(1, x).is_none());
            candidates.extend(free.map(|(x, _)| x).take(CANDIDATES));
        }
    }
    candidates.sort_unstable();
    candidates.dedup();
    candidates.truncate(NEAR);
    // Always compare the first candidate, even if it has very many neighbours.
    let size = |which: usize, node: u32| -> usize {
        let degrees = DependencyWalkDirection::BOTH
            .map(|way| sides[which].count_neighbours_in_direction(node, way));
        degrees.iter().sum()
    };
    let mut spent = 0;
    let affordable = candidates.into_iter().take_while(|&other| {
        let before = spent;
        spent += size(0, node) + size(1, other);
        before == 0 || spent <= WORK
    });
    let scored = affordable.filter_map(|other| {
        let agreement = count_agreeing_neighbours(sides, pairs, node, other);
        let like = score_name_and_type_likeness(sides, node, other);
        // If several candidates tie, choose the lowest index, so that the result is deterministic.
        (agreement.has_at_least_half_agreement() && like > 0).then_some((
            like,
            agreement.common,
            u32::MAX - other,
        ))
    });
    scored.max().map(|(.., other)| u32::MAX - other)
}
