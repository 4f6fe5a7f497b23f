//! Matching of nearly identical large traces by ids.
//!
//! Ids alone are not evidence: tools renumber them freely. But if nearly all nodes have identical records, byte for
//! byte, and the same neighbours by the same ids, no tool has renumbered them. Two nodes with one id are paired if
//! their records and their neighbours' records are identical, and they have the same neighbours on both sides; this
//! applies only if it is true for nine of ten nodes. If a few equal nodes of such traces changed places, the reported
//! differences are still true, as with any matching.

use super::NodeMatching;
use crate::diff::side::{ComparedTrace, EdgeDirection};
use std::cmp::Ordering;

/// Absent node with the same id.
const NOBODY: u32 = u32::MAX;

/// Pairs nodes with the same id, if nearly all are identical. Returns whether they were paired.
pub fn pair(sides: &[ComparedTrace<'_>; 2], pairs: &mut NodeMatching) -> bool {
    let twin = same_records(sides);
    let sure = |node: &u32| {
        let other = twin[*node as usize];
        other != NOBODY
            && EdgeDirection::BOTH
                .iter()
                .all(|&way| agree(sides, &twin, [*node, other], way))
    };
    let found: Vec<u32> = sides[0].raw.all().filter(sure).collect();
    if found.len() * 10 < sides[0].len().max(sides[1].len()) * 9 {
        return false;
    }
    for node in found {
        pairs.set(node, twin[node as usize]);
    }
    true
}

/// Returns for each node of the first trace the node of the second with the same id and record. An id shared by several
/// nodes matches none.
fn same_records(sides: &[ComparedTrace<'_>; 2]) -> Vec<u32> {
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

/// Returns whether two nodes have the same neighbours in the same order, all of them matched.
fn agree(
    sides: &[ComparedTrace<'_>; 2],
    twin: &[u32],
    [a, b]: [u32; 2],
    way: EdgeDirection,
) -> bool {
    let mine = sides[0].neighbours(a, way);
    let mut others = sides[1].neighbours(b, way);
    let all = mine.into_iter().all(|(next, control)| {
        let other = twin[next as usize];
        other != NOBODY && others.next() == Some((other, control))
    });
    all && others.next().is_none()
}
