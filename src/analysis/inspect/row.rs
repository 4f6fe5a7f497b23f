//! List rows, one per node.

use super::class::InspectedNodeType;
use super::lanes::{LaneKey, group_label};
use super::trace::InspectedRankTrace;
use chakram_base::units::{Span, Time};
use chakram_trace::format::Op;

/// A node as a row of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow<'a> {
    /// Rank of the node's trace.
    pub rank: u32,
    /// Id of the node in its file.
    pub id: u64,
    /// Start and end of the node; `None` if the node is on a cycle of dependencies or depends on one.
    pub ran: Option<(Time, Time)>,
    /// Duration of the node, including waiting for other ranks.
    pub length: Span,
    /// Part of the duration during which the node waited for other ranks.
    pub wait: Span,
    /// Time from the end of the node's last dependency until the node was ready.
    pub delay: Span,
    /// Type of the node.
    pub class: InspectedNodeType,
    /// The node's lane.
    pub lane: LaneKey,
    /// Name of the node in its file.
    pub name: &'a str,
    /// Name of a collective's group.
    pub group: Option<String>,
    /// For a message, the other rank and the tag.
    pub peer: Option<(u32, i32)>,
    /// FLOPs of a kernel.
    pub flops: u64,
    /// Bytes that the node moves, sends or reduces.
    pub bytes: u64,
}

impl<'a> InspectedRankTrace<'a> {
    /// Returns the row of `node`.
    pub fn row_of_node(&self, node: u32) -> NodeRow<'a> {
        let view = &self.raw.nodes[node as usize].view;
        let run = &self.times.run;
        let (flops, bytes) = self.flops_and_bytes_of_node(node);
        NodeRow {
            rank: self.rank,
            id: view.id,
            ran: run
                .has_node_run(node)
                .then(|| (run.start[node as usize], run.end[node as usize])),
            length: self.duration_of_node(node),
            wait: self.node_wait_for_other_ranks(node),
            delay: view.delay,
            class: self.classes[node as usize],
            lane: self.lanes.lane_key_of_index(self.lanes.lane_of_node(node)),
            name: view.name,
            group: match view.op {
                Op::Collective { group, .. } => Some(group_label(group)),
                _ => None,
            },
            peer: match view.op {
                Op::Message { peer, tag, .. } => Some((peer, tag)),
                _ => None,
            },
            flops,
            bytes,
        }
    }

    /// Returns the indices of the `selected` nodes, sorted by start and then by id. Nodes without times come last.
    pub fn order_by_start(&self, selected: Option<&[bool]>) -> Vec<u32> {
        let chosen = |node: &u32| selected.is_none_or(|chosen| chosen[*node as usize]);
        let mut nodes: Vec<u32> = self
            .raw
            .range_of_all_node_indices()
            .filter(chosen)
            .collect();
        nodes.sort_by_key(|&node| (self.times.run.start[node as usize], node));
        nodes
    }
}
