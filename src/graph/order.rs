//! Program order: the order in which a rank's nodes would run one at a time.

use crate::ids::NodeIndex;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Edges as compressed rows: the successors of node `i` are `list[start[i]..start[i + 1]]`.
pub(super) struct Successors<'a> {
    pub start: &'a [u32],
    pub list: &'a [NodeIndex],
}

impl Successors<'_> {
    fn of(&self, node: u32) -> &[NodeIndex] {
        let i = node as usize;
        &self.list[self.start[i] as usize..self.start[i + 1] as usize]
    }
}

/// The smallest order, by index, in which every node comes after those it waits for; `None` when
/// there is a cycle.
pub(super) fn program_order(
    successors: &Successors<'_>,
    in_degree: &[u32],
) -> Option<Vec<NodeIndex>> {
    let mut waiting = in_degree.to_vec();
    let mut ready: BinaryHeap<Reverse<u32>> = (0..in_degree.len() as u32)
        .filter(|&i| in_degree[i as usize] == 0)
        .map(Reverse)
        .collect();
    let mut order = Vec::with_capacity(in_degree.len());
    while let Some(Reverse(node)) = ready.pop() {
        order.push(NodeIndex(node));
        for next in successors.of(node) {
            waiting[next.index()] -= 1;
            if waiting[next.index()] == 0 {
                ready.push(Reverse(next.0));
            }
        }
    }
    (order.len() == in_degree.len()).then_some(order)
}

/// The nodes on a short cycle, each before the next; none when there is no cycle.
pub(super) fn cycle(successors: &Successors<'_>, count: usize) -> Vec<NodeIndex> {
    let edges = (0..count as u32).flat_map(|i| successors.of(i).iter().map(move |n| (i, n.0)));
    let cycle = super::cycle::short_cycle(count, edges).unwrap_or_default();
    cycle.into_iter().map(NodeIndex).collect()
}
