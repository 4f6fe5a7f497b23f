//! Matches large, nearly identical traces by id.
//!
//! Equal ids alone prove nothing, because tools may renumber nodes. But if nearly all nodes have byte-identical
//! records, and neighbours with the same ids, no tool has renumbered them. Two nodes with the same id are paired on two
//! conditions: their records are identical, and their neighbours have the same ids and identical records. The pairs are
//! used only if they contain at least nine tenths of the nodes. If equal nodes in such traces have swapped ids, the
//! reported differences are still true, as with any matching.

use super::NodeMatching;
use crate::diff::side::{ComparedTrace, DependencyWalkDirection};
use std::cmp::Ordering;

/// Marks a node that has no identical node with the same id.
const NOBODY: u32 = u32::MAX;

/// Pairs nodes with the same id, if nearly all nodes are identical. Returns true if nodes were paired.
pub fn pair_same_ids_if_nearly_all_identical(
    sides: &[ComparedTrace<'_>; 2],
    pairs: &mut NodeMatching,
) -> bool {
    let twin = find_twins_with_same_id_and_record(sides);
    let sure = |node: &u32| {
        let other = twin[*node as usize];
        other != NOBODY
            && DependencyWalkDirection::BOTH
                .iter()
                .all(|&way| have_same_neighbours(sides, &twin, [*node, other], way))
    };
    let found: Vec<u32> = sides[0]
        .raw
        .range_of_all_node_indices()
        .filter(sure)
        .collect();
    if found.len() * 10 < sides[0].len().max(sides[1].len()) * 9 {
        return false;
    }
    for node in found {
        pairs.set_pair(node, twin[node as usize]);
    }
    true
}

/// For each node of the first trace, returns the node of the second trace with the same id and an identical record. An
/// id that occurs more than once in a trace matches no node.
fn find_twins_with_same_id_and_record(sides: &[ComparedTrace<'_>; 2]) -> Vec<u32> {
    let [a, b] = [0, 1].map(|which: usize| &sides[which].raw.nodes[..]);
    let alone = |nodes: &[chakram_trace::graph::raw_trace::RawTraceNode<'_>], i: usize| {
        let id = nodes[i].view.id;
        let same = |other: Option<&chakram_trace::graph::raw_trace::RawTraceNode<'_>>| {
            other.is_some_and(|item| item.view.id == id)
        };
        !same(nodes.get(i + 1)) && !same(i.checked_sub(1).and_then(|i| nodes.get(i)))
    };
    let mut twin = vec![NOBODY; a.len()];
    let (mut i, mut j) = (0, 0);
    while i < a.len() && j < b.len() {
        match a[i].view.id.cmp(&b[j].view.id) {
            Ordering::Less => i += 1,
            Ordering::Greater => j += 1,
            Ordering::Equal => {
                if alone(a, i) && alone(b, j) && a[i].record.bytes == b[j].record.bytes {
                    twin[i] = j as u32;
                }
                (i, j) = (i + 1, j + 1);
            }
        }
    }
    twin
}

/// Returns true if two nodes have the same neighbours in the same order, and each neighbour has an identical
/// counterpart with the same id.
fn have_same_neighbours(
    sides: &[ComparedTrace<'_>; 2],
    twin: &[u32],
    [a, b]: [u32; 2],
    way: DependencyWalkDirection,
) -> bool {
    let mine = sides[0].neighbours_of(a, way);
    let mut others = sides[1].neighbours_of(b, way);
    let all = mine.into_iter().all(|(next, control)| {
        let other = twin[next as usize];
        other != NOBODY && others.next() == Some((other, control))
    });
    all && others.next().is_none()
}
