//! Program order: the order in which a rank would run its nodes one at a time.

use crate::ids::NodeIndex;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// View of edges in CSR form: the successors of node `i` are `list[start[i]..start[i + 1]]`.
pub(super) struct Successors<'a> {
    pub start: &'a [u32],
    pub list: &'a [NodeIndex],
}

impl Successors<'_> {
    pub fn of(&self, node: u32) -> &[NodeIndex] {
        let i = node as usize;
        &self.list[self.start[i] as usize..self.start[i + 1] as usize]
    }
}

/// Returns the smallest topological order, by index. `waiting` is the number of predecessors of each node,
/// `row` its successors. Nodes on a cycle, and those behind one, are missing.
pub(super) fn program_order<R: Iterator<Item = u32>>(
    mut waiting: Vec<u32>,
    row: impl Fn(u32) -> R,
) -> Vec<u32> {
    let first = (0..waiting.len() as u32).filter(|&i| waiting[i as usize] == 0);
    // With a heap the order does not depend on that of the edges, as it would with a queue.
    let mut ready: BinaryHeap<Reverse<u32>> = first.map(Reverse).collect();
    let mut order = Vec::with_capacity(waiting.len());
    while let Some(Reverse(node)) = ready.pop() {
        order.push(node);
        for next in row(node) {
            waiting[next as usize] -= 1;
            if waiting[next as usize] == 0 {
                ready.push(Reverse(next));
            }
        }
    }
    order
}

/// Returns the nodes of a short cycle, each before the next; none if there is no cycle.
pub(super) fn cycle(successors: &Successors<'_>, count: usize) -> Vec<NodeIndex> {
    let edges = (0..count as u32).flat_map(|i| successors.of(i).iter().map(move |n| (i, n.0)));
    let cycle = super::cycle::short_cycle(count, edges).unwrap_or_default();
    cycle.into_iter().map(NodeIndex).collect()
}
