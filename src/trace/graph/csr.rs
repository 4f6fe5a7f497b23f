//! Adjacency lists in compressed sparse row (CSR) form: two flat arrays.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A sparse matrix in CSR form: row `i` lists the successors of node `i`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Csr {
    start: Vec<u32>,
    list: Vec<u32>,
}

impl Csr {
    /// Creates rows for `count` nodes. `edges` must call its argument with every edge, as (row, entry). `edges` is
    /// called twice, and must yield the edges in the same order. Within a row, the entries keep this order.
    pub fn new(count: usize, mut edges: impl FnMut(&mut dyn FnMut(u32, u32))) -> Self {
        let mut start = vec![0_u32; count + 1];
        edges(&mut |row, _| start[row as usize + 1] += 1);
        for i in 0..count {
            start[i + 1] += start[i];
        }
        // Counting sort: the second pass fills each row from its start.
        let mut next = start.clone();
        let mut list = vec![0_u32; start[count] as usize];
        edges(&mut |row, entry| {
            let place = &mut next[row as usize];
            list[*place as usize] = entry;
            *place += 1;
        });
        Self { start, list }
    }

    /// Creates rows from a list of entries: row `i` is `list[start[i]..start[i + 1]]`.
    pub(super) fn from_parts(start: Vec<u32>, list: Vec<u32>) -> Self {
        Self { start, list }
    }

    /// Returns the reversed edges. Within each row, the entries ascend.
    pub fn reverse_edges(&self) -> Self {
        Self::new(self.row_count(), |each| {
            self.iter_all_edges().for_each(|(from, to)| each(to, from));
        })
    }

    /// Returns row `i`.
    #[inline]
    pub fn row(&self, i: u32) -> &[u32] {
        let i = i as usize;
        &self.list[self.start[i] as usize..self.start[i + 1] as usize]
    }

    /// Returns the number of rows.
    pub fn row_count(&self) -> usize {
        self.start.len().saturating_sub(1)
    }

    /// Returns the number of edges.
    pub fn edge_count(&self) -> usize {
        self.list.len()
    }

    /// Returns true if there is no edge.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the heap memory in bytes.
    pub fn heap_bytes(&self) -> usize {
        (self.start.capacity() + self.list.capacity()) * size_of::<u32>()
    }

    /// Iterates over all edges, row by row.
    pub fn iter_all_edges(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        (0..self.row_count() as u32).flat_map(|i| self.row(i).iter().map(move |&to| (i, to)))
    }

    /// Returns the topological order in which lower indices come first where possible; if indices follow ids, this is
    /// program order. Nodes on a cycle and their successors are omitted.
    pub fn topological_order(&self) -> Vec<u32> {
        let mut waiting = vec![0_u32; self.row_count()];
        for &to in &self.list {
            waiting[to as usize] += 1;
        }
        // A heap picks the lowest ready row, so the result does not depend on the order of edges. With a queue or
        // petgraph's `Topo`, the result would depend on it.
        let first = (0..self.row_count() as u32).filter(|&i| waiting[i as usize] == 0);
        let mut ready: BinaryHeap<Reverse<u32>> = first.map(Reverse).collect();
        let mut order = Vec::with_capacity(self.row_count());
        while let Some(Reverse(node)) = ready.pop() {
            order.push(node);
            for &next in self.row(node) {
                waiting[next as usize] -= 1;
                if waiting[next as usize] == 0 {
                    ready.push(Reverse(next));
                }
            }
        }
        order
    }

    /// Returns one flag per node: true if the node is missing from `order` because it is on a cycle or depends on one.
    pub fn flag_nodes_on_or_behind_cycles(&self, order: &[u32]) -> Vec<bool> {
        let mut stuck = vec![true; self.row_count()];
        order.iter().for_each(|&node| stuck[node as usize] = false);
        stuck
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_csr(count: usize, edges: &[(u32, u32)]) -> Csr {
        Csr::new(count, |each| edges.iter().for_each(|&(a, b)| each(a, b)))
    }

    #[test]
    fn order_is_the_smallest_that_edges_allow() {
        // The edges are 4 → 1 → 0 and 2 → 3. Nodes 2 and 4 have no predecessors. Node 2 has the lower index, so it
        // comes first and makes node 3 ready; node 3 comes before node 4.
        let rows = build_csr(5, &[(4, 1), (1, 0), (2, 3)]);
        assert_eq!(rows.topological_order(), [2, 3, 4, 1, 0]);
        assert_eq!(
            rows.iter_all_edges().collect::<Vec<_>>(),
            [(1, 0), (2, 3), (4, 1)]
        );
    }

    #[test]
    fn topological_order_omits_nodes_on_and_behind_a_cycle() {
        // The edges are 0 → 1 (twice), 1 → 2, 2 → 1 and 2 → 3. The duplicate edge counts twice, as a successor and as a
        // predecessor.
        let rows = build_csr(5, &[(0, 1), (0, 1), (1, 2), (2, 1), (2, 3)]);
        assert_eq!(rows.topological_order(), [0, 4]);
    }
}
