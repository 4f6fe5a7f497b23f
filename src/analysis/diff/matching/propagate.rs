//! Extends pairs to their neighbours: equal neighbours of a pair become pairs.

use super::{NodeMatching, NodePropertiesInLabel};
use crate::diff::side::{ComparedTrace, DependencyWalkDirection};

/// How to treat several equal neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EqualNeighbourPolicy {
    /// Only unique neighbours are paired.
    UniqueOnly,
    /// Equal neighbours form pairs in id order.
    InIdOrder,
}

/// Pairs two neighbours of paired nodes if they have equal labels and the same kind of dependency.
pub(super) fn pair_equally_labelled_neighbours_of_pairs(
    sides: &[ComparedTrace<'_>; 2],
    pairs: &mut NodeMatching,
    label: NodePropertiesInLabel,
    among: EqualNeighbourPolicy,
) {
    // Put the first node in program order on top of the stack, so that it is processed first.
    let mut todo: Vec<u32> = sides[0].order.iter().rev().copied().collect();
    todo.extend(sides[0].unordered.iter().rev());
    let mut around: [Vec<(bool, u64, u32)>; 2] = Default::default();
    let labels = [0, 1].map(|which| label.labels_of_trace(&sides[which]));
    while let Some(first) = todo.pop() {
        if pairs.is_one_trace_fully_matched() {
            return;
        }
        let Some(second) = pairs.partner_of_node(0, first) else {
            continue;
        };
        for way in DependencyWalkDirection::BOTH {
            for (which, node) in [(0, first), (1, second)] {
                around[which].clear();
                let free = sides[which].neighbours_of(node, way);
                let free = free.filter(|&(next, _)| pairs.partner_of_node(which, next).is_none());
                around[which].extend(
                    free.map(|(next, control)| (control, labels[which][next as usize], next)),
                );
                if around[which].is_empty() {
                    break;
                }
            }
            let [a, b] = &mut around;
            if a.is_empty() || b.is_empty() {
                b.clear();
                continue;
            }
            for list in [&mut *a, &mut *b] {
                list.sort_unstable();
                list.dedup();
            }
            for_each_shared_label(a, b, |a, b| {
                if among == EqualNeighbourPolicy::UniqueOnly && (a.len(), b.len()) != (1, 1) {
                    return;
                }
                for (&(.., x), &(.., y)) in a.iter().zip(b) {
                    // A neighbour connected by both a data and a control dependency is listed twice, so it may already
                    // be paired.
                    if pairs.partner_of_node(0, x).is_none()
                        && pairs.partner_of_node(1, y).is_none()
                    {
                        pairs.set_pair(x, y);
                        todo.push(x);
                    }
                }
            });
            b.clear();
        }
    }
}

type LabelledNeighbour = (bool, u64, u32);

/// Calls `each` for each combination of dependency kind and label that occurs in both sorted lists, with the matching
/// entries of both lists.
fn for_each_shared_label(
    a: &[LabelledNeighbour],
    b: &[LabelledNeighbour],
    mut each: impl FnMut(&[LabelledNeighbour], &[LabelledNeighbour]),
) {
    let same = |x: &LabelledNeighbour, y: &LabelledNeighbour| (x.0, x.1) == (y.0, y.1);
    let mut others = b.chunk_by(same).peekable();
    for group in a.chunk_by(same) {
        let key = (group[0].0, group[0].1);
        while others
            .next_if(|other| (other[0].0, other[0].1) < key)
            .is_some()
        {}
        if let Some(other) = others.next_if(|other| (other[0].0, other[0].1) == key) {
            each(group, other);
        }
    }
}
