//! Sorts nodes by id.

use super::{CONTROL, GraphBuilder, NO_NODE, predecessors_of};
use crate::graph::Lane;
use chakram_base::ids::NodeIndex;

impl GraphBuilder {
    /// Sorts the nodes in ascending order of their ids.
    pub(super) fn sort_by_id(&mut self) {
        let graph = &mut self.graph;
        if graph.ids.is_sorted() {
            return;
        }
        let n = graph.ids.len();
        let mut order: Vec<u32> = (0..n as u32).collect();
        order.sort_unstable_by_key(|&i| graph.ids[i as usize]);
        let mut place = vec![0_u32; n];
        for (new, &old) in order.iter().enumerate() {
            place[old as usize] = new as u32;
        }
        fn permute_values<T: Copy>(values: &mut Vec<T>, order: &[u32]) {
            *values = order.iter().map(|&i| values[i as usize]).collect();
        }
        for column in graph.sparse.all_columns_mut() {
            column.permute_by(&order);
        }
        for column in self.origins.columns_mut() {
            column.permute_by(&order);
        }
        self.index_of.replace_node_indices(&place);
        permute_values(&mut graph.ids, &order);
        permute_values(&mut graph.name_of, &order);
        permute_values(&mut graph.kinds, &order);
        permute_values(&mut graph.lane_of, &order);
        permute_values(&mut graph.recorded, &order);
        permute_values(&mut graph.flops, &order);
        permute_values(&mut graph.bytes, &order);
        permute_values(&mut graph.detail, &order);
        for call in &mut graph.calls {
            call.node = NodeIndex(place[call.node.index()]);
        }
        for message in &mut graph.messages {
            message.node = NodeIndex(place[message.node.index()]);
        }
        let mut preds = Vec::with_capacity(self.preds.len());
        let mut pred_end = Vec::with_capacity(n);
        for &old in &order {
            for &pred in predecessors_of(&self.preds, &self.pred_end, old as usize) {
                preds.push(match pred {
                    NO_NODE => NO_NODE,
                    pred => place[(pred & !CONTROL) as usize] | (pred & CONTROL),
                });
            }
            pred_end.push(preds.len() as u32);
        }
        self.preds = preds;
        self.pred_end = pred_end;
        self.sort_communication_by_node();
        self.renumber_by_use();
    }

    /// Renumbers names, slots, memory changes and lanes in the order in which the sorted nodes first use them. The
    /// order of records therefore does not affect the graph.
    fn renumber_by_use(&mut self) {
        let graph = &mut self.graph;
        self.names
            .renumber_names_by_use_order(graph.name_of.iter_mut());
        let groups = std::mem::take(&mut self.groups);
        for call in &mut graph.calls {
            let slot = groups.keys()[call.group as usize].clone();
            call.group = self.groups.intern_key(slot);
        }
        let peers = std::mem::take(&mut self.peers);
        for message in &mut graph.messages {
            message.peer = self.peers.intern_key(peers.keys()[message.peer as usize]);
        }
        let changes = std::mem::take(&mut self.changes);
        for place in graph
            .sparse
            .memory_of
            .iter_mut()
            .filter(|place| **place > 0)
        {
            *place = self.changes.intern_key(changes.keys()[*place as usize - 1]) + 1;
        }
        let kernels = std::mem::take(&mut self.kernels);
        for place in graph
            .sparse
            .kernel_of
            .iter_mut()
            .filter(|place| **place > 0)
        {
            *place = self.kernels.intern_key(kernels.keys()[*place as usize - 1]) + 1;
        }
        let lanes = std::mem::take(&mut self.lanes);
        for (lane, &detail) in graph.lane_of.iter_mut().zip(&graph.detail) {
            *lane = self.lanes.intern_key(match lanes.keys()[*lane as usize] {
                Lane::Group(_) => Lane::Group(graph.calls[detail as usize].group),
                Lane::Peer(_) => Lane::Peer(graph.messages[detail as usize].peer),
                other => other,
            });
        }
    }
}
