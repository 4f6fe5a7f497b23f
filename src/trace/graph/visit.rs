//! Implements petgraph's traits for rows, so that petgraph's algorithms run on rows without a copy.

use super::Csr;
use petgraph::Direction;
use petgraph::graph::DiGraph;
use petgraph::visit::{
    GraphBase, GraphRef, IntoNeighbors, IntoNeighborsDirected, IntoNodeIdentifiers, Visitable,
};
use std::iter::Copied;
use std::ops::Range;
use std::slice;

/// A set of nodes, with one bit per node.
type NodeSet = <DiGraph<(), (), u32> as Visitable>::Map;

impl GraphBase for Csr {
    type NodeId = u32;
    type EdgeId = ();
}

impl Visitable for Csr {
    type Map = NodeSet;

    fn visit_map(&self) -> NodeSet {
        NodeSet::with_capacity(self.row_count())
    }

    fn reset_map(&self, map: &mut NodeSet) {
        map.clear();
        map.grow(self.row_count());
    }
}

impl<'a> IntoNeighbors for &'a Csr {
    type Neighbors = Copied<slice::Iter<'a, u32>>;

    #[inline]
    fn neighbors(self, node: u32) -> Self::Neighbors {
        self.row(node).iter().copied()
    }
}

impl IntoNodeIdentifiers for &Csr {
    type NodeIdentifiers = Range<u32>;

    fn node_identifiers(self) -> Range<u32> {
        0..self.row_count() as u32
    }
}

/// A view of the edges in both directions, for algorithms that also follow edges backwards.
#[derive(Clone, Copy, Debug)]
pub struct BidirectionalEdges<'a> {
    /// Successors of each node.
    pub forward: &'a Csr,
    /// Predecessors of each node.
    pub backward: &'a Csr,
}

impl GraphBase for BidirectionalEdges<'_> {
    type NodeId = u32;
    type EdgeId = ();
}

impl GraphRef for BidirectionalEdges<'_> {}

impl Visitable for BidirectionalEdges<'_> {
    type Map = NodeSet;

    fn visit_map(&self) -> NodeSet {
        self.forward.visit_map()
    }

    fn reset_map(&self, map: &mut NodeSet) {
        self.forward.reset_map(map);
    }
}

impl<'a> IntoNeighbors for BidirectionalEdges<'a> {
    type Neighbors = Copied<slice::Iter<'a, u32>>;

    #[inline]
    fn neighbors(self, node: u32) -> Self::Neighbors {
        self.forward.neighbors(node)
    }
}

impl IntoNeighborsDirected for BidirectionalEdges<'_> {
    type NeighborsDirected = Self::Neighbors;

    #[inline]
    fn neighbors_directed(self, node: u32, direction: Direction) -> Self::NeighborsDirected {
        match direction {
            Direction::Outgoing => self.forward.neighbors(node),
            Direction::Incoming => self.backward.neighbors(node),
        }
    }
}

impl IntoNodeIdentifiers for BidirectionalEdges<'_> {
    type NodeIdentifiers = Range<u32>;

    fn node_identifiers(self) -> Range<u32> {
        self.forward.node_identifiers()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use petgraph::algo::{has_path_connecting, kosaraju_scc};
    use petgraph::visit::{Dfs, Reversed};

    #[test]
    fn petgraph_algorithms_walk_rows_in_both_directions() {
        // The edges are 0 → 1 → 2 → 1 and 2 → 3; node 4 has no edges.
        let edges = [(0, 1), (1, 2), (2, 1), (2, 3)];
        let forward = Csr::new(5, |each| edges.iter().for_each(|&(a, b)| each(a, b)));
        let backward = forward.reverse_edges();
        let both = BidirectionalEdges {
            forward: &forward,
            backward: &backward,
        };
        let mut knots = kosaraju_scc(both);
        knots.iter_mut().for_each(|knot| knot.sort_unstable());
        knots.sort_unstable();
        assert_eq!(knots, [vec![0], vec![1, 2], vec![3], vec![4]]);
        assert!(has_path_connecting(&forward, 0, 3, None));
        assert!(!has_path_connecting(&forward, 3, 0, None));
        let mut dfs = Dfs::new(Reversed(both), 3);
        let mut found = Vec::new();
        while let Some(node) = dfs.next(Reversed(both)) {
            found.push(node);
        }
        found.sort_unstable();
        assert_eq!(found, [0, 1, 2, 3]);
    }
}
