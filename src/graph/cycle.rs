//! Finding a short cycle to show, without recursion.

use petgraph::algo::kosaraju_scc;
use petgraph::graph::{DiGraph, NodeIndex};
use std::collections::VecDeque;

/// A short cycle among `count` vertices with these edges, as vertices in edge order, starting with
/// the smallest; `None` when there is no cycle.
///
/// The cycle is the shortest through the smallest vertex of the smallest knot (strongly connected
/// component), which is found in linear time; the shortest of all would take quadratic time.
pub fn short_cycle(count: usize, edges: impl IntoIterator<Item = (u32, u32)>) -> Option<Vec<u32>> {
    let mut graph = DiGraph::<(), (), u32>::with_capacity(count, 0);
    for _ in 0..count {
        graph.add_node(());
    }
    for (from, to) in edges {
        if from == to {
            return Some(vec![from]);
        }
        graph.add_edge(NodeIndex::from(from), NodeIndex::from(to), ());
    }
    let knots = kosaraju_scc(&graph);
    let knot = knots
        .iter()
        .filter(|knot| knot.len() > 1)
        .min_by_key(|knot| (knot.len(), knot.iter().min().copied()))?;
    let start = *knot.iter().min()?;
    let mut inside = vec![false; count];
    for vertex in knot {
        inside[vertex.index()] = true;
    }
    let mut reached_from: Vec<Option<NodeIndex>> = vec![None; count];
    let mut queue = VecDeque::from([start]);
    while let Some(vertex) = queue.pop_front() {
        let mut next: Vec<_> = graph
            .neighbors(vertex)
            .filter(|n| inside[n.index()])
            .collect();
        next.sort_unstable();
        for neighbour in next {
            if neighbour == start {
                let mut cycle = vec![vertex.index() as u32];
                let mut at = vertex;
                while let Some(before) = reached_from[at.index()] {
                    cycle.push(before.index() as u32);
                    at = before;
                }
                cycle.reverse();
                return Some(cycle);
            }
            if reached_from[neighbour.index()].is_none() {
                reached_from[neighbour.index()] = Some(vertex);
                queue.push_back(neighbour);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cycle_is_short_and_in_edge_order() {
        // 0 → 1 → 2 → 3 → 1 with the shortcut 2 → 1, and a tail.
        let edges = [(0, 1), (1, 2), (2, 3), (3, 1), (2, 1), (3, 4)];
        assert_eq!(short_cycle(5, edges), Some(vec![1, 2]));
        assert_eq!(short_cycle(3, [(0, 1), (1, 2), (0, 2)]), None);
        assert_eq!(short_cycle(2, [(0, 1), (1, 1)]), Some(vec![1]));
    }

    #[test]
    fn a_cycle_through_a_million_vertices_does_not_exhaust_the_stack() {
        let n = 1_000_000;
        let cycle = short_cycle(n as usize, (0..n).map(|i| (i, (i + 1) % n))).unwrap();
        assert_eq!(cycle.len(), n as usize);
    }
}
