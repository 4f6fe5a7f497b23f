//! Finds a short cycle for error messages, without recursion.

use super::Csr;
use super::visit::BidirectionalEdges;
use petgraph::algo::kosaraju_scc;
use petgraph::visit::NodeFiltered;
use std::collections::VecDeque;

/// Returns the nodes of a short cycle in `rows`, in edge order from the smallest node. The list is empty if there is no
/// cycle. `stuck` must be true for every node on a cycle.
///
/// The result is the shortest cycle through the smallest node of the smallest strongly connected component. This cycle
/// can be found in linear time, whereas the shortest of all cycles would take quadratic time.
pub fn find_short_cycle(rows: &Csr, stuck: impl Fn(u32) -> bool) -> Vec<u32> {
    let count = rows.row_count();
    let mut to_self = (0..count as u32).filter(|&node| stuck(node));
    if let Some(node) = to_self.find(|&node| rows.row(node).contains(&node)) {
        return vec![node];
    }
    let both = BidirectionalEdges {
        forward: rows,
        backward: &rows.reverse_edges(),
    };
    // The search uses Kosaraju's algorithm, because petgraph's version of Tarjan's algorithm is recursive and overflows
    // the stack on long chains.
    let knots = kosaraju_scc(&NodeFiltered::from_fn(both, stuck));
    let knot = knots
        .iter()
        .filter(|knot| knot.len() > 1)
        .min_by_key(|knot| (knot.len(), knot.iter().min().copied()));
    let Some((knot, &start)) = knot.and_then(|knot| Some((knot, knot.iter().min()?))) else {
        return Vec::new();
    };
    let mut inside = vec![false; count];
    for &node in knot {
        inside[node as usize] = true;
    }
    // The breadth-first search is implemented here because petgraph's search does not record predecessors. petgraph's
    // A* does not help either, because the layout of a heap decides its ties.
    let mut reached_from: Vec<Option<u32>> = vec![None; count];
    let mut queue = VecDeque::from([start]);
    while let Some(node) = queue.pop_front() {
        let row = rows.row(node).iter().copied();
        let mut next: Vec<_> = row.filter(|&other| inside[other as usize]).collect();
        next.sort_unstable();
        for other in next {
            if other == start {
                let mut cycle = vec![node];
                let mut at = node;
                while let Some(before) = reached_from[at as usize] {
                    cycle.push(before);
                    at = before;
                }
                cycle.reverse();
                return cycle;
            }
            if reached_from[other as usize].is_none() {
                reached_from[other as usize] = Some(node);
                queue.push_back(other);
            }
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_short_cycle_of_edges(count: usize, edges: &[(u32, u32)]) -> Vec<u32> {
        let rows = Csr::new(count, |each| edges.iter().for_each(|&(a, b)| each(a, b)));
        let stuck = rows.flag_nodes_on_or_behind_cycles(&rows.topological_order());
        find_short_cycle(&rows, |node| stuck[node as usize])
    }

    #[test]
    fn the_cycle_is_short_and_in_edge_order() {
        // The edges are 0 → 1 → 2 → 3 → 1, the shortcut 2 → 1, and the tail 3 → 4.
        let edges = [(0, 1), (1, 2), (2, 3), (3, 1), (2, 1), (3, 4)];
        assert_eq!(find_short_cycle_of_edges(5, &edges), [1, 2]);
        assert!(find_short_cycle_of_edges(3, &[(0, 1), (1, 2), (0, 2)]).is_empty());
        assert_eq!(find_short_cycle_of_edges(2, &[(0, 1), (1, 1)]), [1]);
    }

    #[test]
    fn a_long_cycle_does_not_exhaust_the_stack() {
        let n = 100_000;
        let edges: Vec<_> = (0..n).map(|i| (i, (i + 1) % n)).collect();
        assert_eq!(
            find_short_cycle_of_edges(n as usize, &edges).len(),
            n as usize
        );
    }
}
