//! Waits between the communication nodes of one trace. Other nodes are not stored; waits through them become direct
//! waits.
//!
//! Each node of a trace is represented by the last *vertex* that it depends on: a call, a message, or a join of
//! several vertices. A node that depends on only one vertex is represented by that vertex, so a chain of kernels
//! takes no memory.

use super::NONE;
use super::dependencies::ProgramOrder;
use super::node::{ValidatedNodes, ValidationRole};

/// Dependency graph of the vertices (communication nodes and joins) of a trace.
#[derive(Debug, Default)]
pub(super) struct WaitEdges {
    /// Predecessors of all vertices, concatenated; `end[v]` is the end of vertex v's part.
    end: Vec<u32>,
    before: Vec<u32>,
    /// Vertices of the calls and of the messages, in program order.
    pub calls: Vec<u32>,
    pub messages: Vec<u32>,
}

/// Builds [`WaitEdges`], node by node.
#[derive(Debug)]
pub(super) struct WaitBuilder {
    waits: WaitEdges,
    with_control: bool,
    /// For each node, the vertex that represents it.
    vertex: Vec<u32>,
    /// For each vertex, the last node found to depend on that vertex.
    seen: Vec<u32>,
    scratch: Vec<u32>,
}

impl WaitBuilder {
    /// Creates a builder for a trace of `nodes` nodes.
    pub fn new(nodes: usize, with_control: bool) -> Self {
        Self {
            waits: WaitEdges::default(),
            with_control,
            vertex: vec![NONE; nodes],
            seen: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Adds node `i`; the caller must have added the predecessors first.
    #[inline]
    pub fn add_node(&mut self, raw: &ValidatedNodes<'_>, i: u32) {
        let (call, message) = match raw.nodes[i as usize].view.role {
            ValidationRole::Call(_) => (true, false),
            ValidationRole::Message(_) => (false, true),
            // Before the first communication, no node can depend on communication.
            _ if self.waits.end.is_empty() => return,
            _ => (false, false),
        };
        self.scratch.clear();
        for dep in raw.dependencies_of(i) {
            let target = dep.target().filter(|_| self.with_control || !dep.control);
            let found = target.map_or(NONE, |target| self.vertex[target as usize]);
            // Each predecessor counts once, even if several dependencies lead to it.
            if found != NONE && self.seen[found as usize] != i {
                self.seen[found as usize] = i;
                self.scratch.push(found);
            }
        }
        let waits = &mut self.waits;
        let new = waits.end.len() as u32;
        self.vertex[i as usize] = match (call || message, &self.scratch[..]) {
            (false, []) => return,
            (false, [only]) => *only,
            _ => {
                waits.before.extend_from_slice(&self.scratch);
                waits.end.push(waits.before.len() as u32);
                self.seen.push(NONE);
                new
            }
        };
        if call {
            waits.calls.push(new);
        }
        if message {
            waits.messages.push(new);
        }
    }

    /// Returns the waits. Builds the waits again if the nodes were not added in program order, or if the enforced
    /// dependencies differ from the assumed dependencies.
    pub fn into_edges(
        self,
        raw: &ValidatedNodes<'_>,
        order: &ProgramOrder,
        with_control: bool,
    ) -> WaitEdges {
        let places = match order {
            ProgramOrder::Ids if self.with_control == with_control => return self.waits,
            ProgramOrder::Ids => None,
            ProgramOrder::Places(places) => Some(places),
            ProgramOrder::Cyclic => return WaitEdges::default(),
        };
        let mut walk = Self::new(self.vertex.len(), with_control);
        match places {
            None => raw.node_indices().for_each(|node| walk.add_node(raw, node)),
            Some(places) => {
                let mut nodes = vec![0_u32; places.len()];
                for (node, &place) in (0..).zip(places) {
                    nodes[place as usize] = node;
                }
                nodes.into_iter().for_each(|node| walk.add_node(raw, node));
            }
        }
        walk.waits
    }
}

impl WaitEdges {
    /// Returns the number of vertices.
    pub fn len(&self) -> usize {
        self.end.len()
    }

    /// Returns the predecessors of `vertex`.
    pub fn predecessors_of(&self, vertex: u32) -> &[u32] {
        let v = vertex as usize;
        let from = if v == 0 { 0 } else { self.end[v - 1] };
        &self.before[from as usize..self.end[v] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::super::ValidatedTrace;
    use chakram_trace::format::Op;
    use chakram_trace::format::scan::NodeView;
    use chakram_trace::format::write::{Sink, TraceWriter};
    use chakram_trace::graph::DependencyPolicy;

    /// Builds a trace with the given ids: two receives, a kernel that waits for both receives, a second kernel after
    /// the first, and a send that waits for the second kernel and the first receive.
    fn vertices(ids: [u64; 5]) -> (Vec<u32>, Vec<Vec<u32>>) {
        let message = |receive, tag| Op::Message {
            receive,
            peer: 1,
            tag,
            bytes: 8,
            own: None,
            host: false,
        };
        let kernel = Op::Compute {
            flops: 1,
            bytes: 0,
            dtype: None,
        };
        let [first, second, both, behind, send] = ids;
        let nodes = [
            (first, message(true, 0), vec![]),
            (second, message(true, 1), vec![]),
            (both, kernel, vec![first, second]),
            (behind, kernel, vec![both]),
            (send, message(false, 2), vec![behind, first]),
        ];
        let mut file = TraceWriter::new(Vec::new()).unwrap();
        for (id, op, deps) in nodes {
            file.receive_node(&NodeView::new(id, "n", op), &deps)
                .unwrap();
        }
        let trace = ValidatedTrace::check_trace(&file.into_inner(), DependencyPolicy::Auto, 1);
        let waits = &trace.facts.waits;
        let before = (0..waits.len() as u32).map(|v| waits.predecessors_of(v).to_vec());
        (waits.messages.clone(), before.collect())
    }

    #[test]
    fn a_node_behind_several_joins_them_and_a_chain_takes_no_room() {
        // The vertices are the two receives, their join, and the send.
        let before = vec![vec![], vec![], vec![0, 1], vec![2, 0]];
        assert_eq!(vertices([1, 2, 3, 4, 5]), (vec![0, 1, 3], before));
        // In program order the second receive comes first.
        let before = vec![vec![], vec![], vec![1, 0], vec![2, 1]];
        assert_eq!(vertices([15, 14, 13, 12, 11]), (vec![0, 1, 3], before));
    }
}
