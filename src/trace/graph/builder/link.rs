//! Converts dependencies into rows: each node's row lists its successors.

use super::{CONTROL, GraphBuilder, NO_NODE, predecessors_of};
use crate::format::{TraceError, escape_and_shorten_name};
use crate::graph::Csr;
use crate::graph::cycle::find_short_cycle;
use chakram_base::ids::NodeIndex;
use chakram_base::setting::SettingKey;

impl GraphBuilder {
    /// Returns the number of control dependencies.
    pub(super) fn control_dependency_count(&self) -> u64 {
        self.preds.iter().filter(|&&p| is_control_pred(p)).count() as u64
    }

    fn node_that_has_dependency(&self, place: u32) -> usize {
        self.pred_end.partition_point(|&end| end <= place)
    }

    /// Resolves dependencies on nodes that come later in the file.
    pub(super) fn resolve_forward_dependencies(&mut self) -> Result<(), TraceError> {
        for (place, id) in std::mem::take(&mut self.forward) {
            let pred = self.preds[place as usize];
            let control = pred & CONTROL != 0;
            self.preds[place as usize] = match self.index_of.get(id) {
                Some(index) => index | (pred & CONTROL),
                // A part of a longer trace may depend on nodes outside this part. A control dependency only states an
                // order, so it can be dropped.
                None if control => {
                    self.graph.repairs.dangling_control += 1;
                    NO_NODE
                }
                None => {
                    let node = self.graph.ids[self.node_that_has_dependency(place)];
                    return Err(TraceError::invalid_node(
                        node,
                        format!("the node depends on the data of node {id}, which does not exist"),
                        "capture or convert the trace again; it is incomplete",
                    ));
                }
            };
        }
        Ok(())
    }

    /// Drops control dependencies of nodes on themselves. Fails if a node has a data dependency on itself.
    pub(super) fn drop_or_reject_self_dependencies(&mut self) -> Result<(), TraceError> {
        let mut start = 0;
        for (node, &end) in self.pred_end.iter().enumerate() {
            for pred in &mut self.preds[start as usize..end as usize] {
                if *pred & !CONTROL == node as u32 {
                    if *pred & CONTROL == 0 {
                        return Err(TraceError::invalid_node(
                            self.graph.ids[node],
                            "the node depends on its own data",
                            "capture or convert the trace again; it is broken",
                        ));
                    }
                    *pred = NO_NODE;
                    self.graph.repairs.self_control += 1;
                }
            }
            start = end;
        }
        Ok(())
    }

    /// Builds the rows of successors, and merges duplicate dependencies. Returns true if every node comes after its
    /// dependencies. In this case, ascending order is program order, and there is no cycle.
    pub(super) fn link_successors(&mut self, with_control: bool) -> bool {
        let n = self.graph.ids.len();
        let mut seen_by = vec![NO_NODE; n];
        let mut in_degree = vec![0_u32; n];
        let mut start = vec![0_u32; n + 1];
        let mut sorted = true;
        let mut duplicates = 0;
        let holds = |pred: u32| pred != NO_NODE && (with_control || pred & CONTROL == 0);
        for (node, degree) in in_degree.iter_mut().enumerate() {
            for &pred in predecessors_of(&self.preds, &self.pred_end, node) {
                if !holds(pred) {
                    continue;
                }
                let from = (pred & !CONTROL) as usize;
                if seen_by[from] == node as u32 {
                    duplicates += 1;
                    continue;
                }
                seen_by[from] = node as u32;
                sorted &= from < node;
                *degree += 1;
                start[from + 1] += 1;
            }
        }
        for i in 0..n {
            start[i + 1] += start[i];
        }
        let mut list = vec![0_u32; start[n] as usize];
        // Fill rows from their start; `next[i]` is the next free entry in row i. If this node is already the last entry
        // in the predecessor's row, the dependency is a duplicate.
        let mut next = seen_by;
        next.copy_from_slice(&start[..n]);
        for node in 0..n {
            for &pred in predecessors_of(&self.preds, &self.pred_end, node) {
                if !holds(pred) {
                    continue;
                }
                let from = (pred & !CONTROL) as usize;
                let place = next[from] as usize;
                if place > start[from] as usize && list[place - 1] == node as u32 {
                    continue;
                }
                list[place] = node as u32;
                next[from] += 1;
            }
        }
        self.graph.repairs.duplicates = duplicates;
        self.graph.in_degree = in_degree;
        self.graph.successors = Csr::from_parts(start, list);
        sorted
    }

    /// Sorts collectives and messages into program order, if program order differs from ascending order. Returns false
    /// if there is no program order because of a cycle.
    pub(super) fn sort_communication_in_program_order(&mut self) -> bool {
        let order = self.graph.successors.topological_order();
        if order.len() < self.graph.ids.len() {
            return false;
        }
        let mut place = vec![0_u32; order.len()];
        for (i, &node) in order.iter().enumerate() {
            place[node as usize] = i as u32;
        }
        self.sort_communication_nodes_by(|node| place[node.index()]);
        true
    }

    /// Sorts collectives and messages in the order of their nodes.
    pub(super) fn sort_communication_by_node(&mut self) {
        self.sort_communication_nodes_by(|node| node.0);
    }

    fn sort_communication_nodes_by(&mut self, key: impl Fn(NodeIndex) -> u32) {
        let graph = &mut self.graph;
        graph.calls.sort_unstable_by_key(|call| key(call.node));
        graph.messages.sort_unstable_by_key(|m| key(m.node));
        for (i, call) in graph.calls.iter().enumerate() {
            graph.detail[call.node.index()] = i as u32;
        }
        for (i, message) in graph.messages.iter().enumerate() {
            graph.detail[message.node.index()] = i as u32;
        }
    }

    /// Builds the error for a dependency cycle, which names the cycle's nodes.
    pub(super) fn cycle_error(&self) -> TraceError {
        const SHOWN: usize = 6;
        let rows = &self.graph.successors;
        let stuck = rows.flag_nodes_on_or_behind_cycles(&rows.topological_order());
        let nodes = find_short_cycle(rows, |node| stuck[node as usize]);
        let (ids, names) = (&self.graph.ids, &self.graph.name_of);
        let mut text = String::from("a cycle of dependencies: ");
        for &node in nodes.iter().take(SHOWN) {
            let name = self.names.get(names[node as usize]);
            text += &format!(
                "{} ({}) → ",
                ids[node as usize],
                escape_and_shorten_name(name)
            );
        }
        if nodes.len() > SHOWN {
            text += &format!("… {} more … → ", nodes.len() - SHOWN);
        }
        let first = nodes.first().map_or(0, |&node| ids[node as usize]);
        text += &first.to_string();
        TraceError::invalid_node(
            first,
            text,
            format!(
                "{} data, which leaves control dependencies out; a cycle of data dependencies \
                 cannot be replayed",
                SettingKey::Dependencies
            ),
        )
    }
}

fn is_control_pred(pred: u32) -> bool {
    pred != NO_NODE && pred & CONTROL != 0
}
