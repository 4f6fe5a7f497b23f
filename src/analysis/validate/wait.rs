//! Waits between the communication nodes of one trace. Nodes that do not communicate are not stored: a wait through
//! such nodes becomes a direct wait.
//!
//! Each node is represented by the last *vertex* on which it depends: a call, a message, or a join of several vertices.
//! If a node depends on only one vertex, that vertex represents it, so a chain of kernels needs no vertices.

use super::NONE;
use super::dependencies::NodeProgramOrderOrCycle;
use super::node::{NodeValidationRole, TraceReducedForValidation};

/// Graph of a trace's vertices (communication nodes and joins).
#[derive(Debug, Default)]
pub(super) struct OneTraceWaitGraph {
    /// The predecessors of all vertices are concatenated in `before`; `end[v]` is one past the index of vertex v's last
    /// predecessor.
    end: Vec<u32>,
    before: Vec<u32>,
    /// The vertices of calls, in program order.
    pub calls: Vec<u32>,
    pub messages: Vec<u32>,
}

/// Builds [`OneTraceWaitGraph`] node by node.
#[derive(Debug)]
pub(super) struct OneTraceWaitGraphBuilder {
    waits: OneTraceWaitGraph,
    with_control: bool,
    /// For each node, the vertex that represents it; [`NONE`] if the node depends on no communication.
    vertex: Vec<u32>,
    /// For each vertex, the last node that was found to depend on it.
    seen: Vec<u32>,
    scratch: Vec<u32>,
}

impl OneTraceWaitGraphBuilder {
    /// Creates a builder for a trace of `nodes` nodes.
    pub fn new(nodes: usize, with_control: bool) -> Self {
        Self {
            waits: OneTraceWaitGraph::default(),
            with_control,
            vertex: vec![NONE; nodes],
            seen: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Adds node `i`. All predecessors of node `i` must already have been added.
    #[inline]
    pub fn add_node(&mut self, raw: &TraceReducedForValidation<'_>, i: u32) {
        let (call, message) = match raw.nodes[i as usize].view.role {
            NodeValidationRole::Call(_) => (true, false),
            NodeValidationRole::Message(_) => (false, true),
            // Before the first communication node, no node can depend on communication.
            _ if self.waits.end.is_empty() => return,
            _ => (false, false),
        };
        self.scratch.clear();
        for dep in raw.dependencies_of(i) {
            let target = dep.target().filter(|_| self.with_control || !dep.control);
            let found = target.map_or(NONE, |target| self.vertex[target as usize]);
            // Count each predecessor once, even if several dependencies lead to it.
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

    /// Returns the collected waits. They are built again if nodes were not added in program order, or if the enforced
    /// dependencies are not those assumed at first.
    pub fn into_trace_wait_graph(
        self,
        raw: &TraceReducedForValidation<'_>,
        order: &NodeProgramOrderOrCycle,
        with_control: bool,
    ) -> OneTraceWaitGraph {
        let places = match order {
            NodeProgramOrderOrCycle::Ids if self.with_control == with_control => {
                return self.waits;
            }
            NodeProgramOrderOrCycle::Ids => None,
            NodeProgramOrderOrCycle::Places(places) => Some(places),
            NodeProgramOrderOrCycle::Cyclic => return OneTraceWaitGraph::default(),
        };
        let mut walk = Self::new(self.vertex.len(), with_control);
        match places {
            None => raw
                .range_of_all_node_indices()
                .for_each(|node| walk.add_node(raw, node)),
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

impl OneTraceWaitGraph {
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
    use super::super::TraceDefectsAndDigest;
    use chakram_trace::format::Op;
    use chakram_trace::format::scan::NodeView;
    use chakram_trace::format::write::{Sink, TraceWriter};
    use chakram_trace::graph::EnforcedDependencyKinds;

    /// Builds a trace with the given ids: two receives; a kernel that depends on both; a second kernel that depends on
    /// the first; and a send that depends on the second kernel and on the first receive.
    fn build_trace_and_list_wait_vertices(ids: [u64; 5]) -> (Vec<u32>, Vec<Vec<u32>>) {
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
        let trace = TraceDefectsAndDigest::check_trace(
            &file.into_unflushed_sink(),
            EnforcedDependencyKinds::Auto,
            1,
        );
        let waits = &trace.facts.waits;
        let before = (0..waits.len() as u32).map(|v| waits.predecessors_of(v).to_vec());
        (waits.messages.clone(), before.collect())
    }

    #[test]
    fn node_after_several_adds_a_join_vertex_and_a_chain_adds_none() {
        // The vertices are the two receives, their join, and the send.
        let before = vec![vec![], vec![], vec![0, 1], vec![2, 0]];
        assert_eq!(
            build_trace_and_list_wait_vertices([1, 2, 3, 4, 5]),
            (vec![0, 1, 3], before)
        );
        // In program order, the second receive comes first.
        let before = vec![vec![], vec![], vec![1, 0], vec![2, 1]];
        assert_eq!(
            build_trace_and_list_wait_vertices([15, 14, 13, 12, 11]),
            (vec![0, 1, 3], before)
        );
    }
}
