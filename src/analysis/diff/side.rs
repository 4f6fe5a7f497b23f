//! One of the two compared traces, with the data needed for matching.

use super::node_labels;
use chakram_trace::graph::{Csr, RawTrace};
use std::sync::OnceLock;

/// One of the two compared traces. Its labels are computed on first use.
pub(super) struct ComparedTrace<'o> {
    pub raw: &'o RawTrace<'o>,
    /// Nodes in topological order. Nodes that are on cycles or depend on them are in `unordered` instead.
    pub order: Vec<u32>,
    /// Nodes that are not in `order`, in ascending order.
    pub unordered: Vec<u32>,
    /// For each node, its successors, each encoded as twice its index, plus one for a control dependency.
    waiting: Csr,
    key: OnceLock<Vec<u64>>,
    kind: OnceLock<Vec<u64>>,
    content: OnceLock<Vec<u64>>,
    /// Id and index of each node, sorted by id.
    by_id: OnceLock<Vec<(u64, u32)>>,
}

/// Direction in which a node's dependencies are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DependencyWalkDirection {
    /// Follows a node's dependencies to its predecessors.
    Predecessors,
    /// Follows dependencies on a node to its successors.
    Successors,
}

impl DependencyWalkDirection {
    pub const BOTH: [Self; 2] = [Self::Predecessors, Self::Successors];
}

impl<'o> ComparedTrace<'o> {
    pub fn new(raw: &'o RawTrace<'o>) -> Self {
        let waiting = Csr::new(raw.nodes.len(), |each| {
            for node in raw.range_of_all_node_indices() {
                for dep in raw.dependencies_of(node) {
                    if let Some(target) = dep.target() {
                        // One word is enough for index and dependency kind, because traces with 2^31 or more
                        // nodes are rejected.
                        each(target, node << 1 | u32::from(dep.control));
                    }
                }
            }
        });
        let ascending = raw.range_of_all_node_indices().all(|node| {
            let mut targets = raw
                .dependencies_of(node)
                .iter()
                .filter_map(|dep| dep.target());
            targets.all(|target| target < node)
        });
        let order = if ascending {
            raw.range_of_all_node_indices().collect()
        } else {
            raw.build_successors(|_, _| true).topological_order()
        };
        let mut placed = vec![order.len() == raw.nodes.len(); raw.nodes.len()];
        order.iter().for_each(|&node| placed[node as usize] = true);
        Self {
            raw,
            unordered: raw
                .range_of_all_node_indices()
                .filter(|&n| !placed[n as usize])
                .collect(),
            order,
            waiting,
            key: OnceLock::new(),
            kind: OnceLock::new(),
            content: OnceLock::new(),
            by_id: OnceLock::new(),
        }
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        self.raw.nodes.len()
    }

    /// Returns the node with this id, if there is one.
    pub fn node_with_id(&self, id: u64) -> Option<u32> {
        let by_id = self.by_id.get_or_init(|| {
            let ids = (0..)
                .zip(&self.raw.nodes)
                .map(|(node, item)| (item.view.id, node));
            let mut by_id: Vec<(u64, u32)> = ids.collect();
            by_id.sort_unstable();
            by_id
        });
        let first = by_id.partition_point(|&(known, _)| known < id);
        by_id
            .get(first)
            .filter(|(known, _)| *known == id)
            .map(|&(_, node)| node)
    }

    /// Returns each node's label, computed from its name, type, lane and peers, but not from times, sizes or other
    /// properties.
    pub fn labels_by_name_lane_and_peers(&self) -> &[u64] {
        self.key.get_or_init(|| {
            node_labels::apply_label_function_to_each_node(
                self.raw,
                node_labels::hash_name_type_lane_and_peers,
            )
        })
    }

    /// Returns each node's label, computed from its name and type.
    pub fn labels_by_name_and_type(&self) -> &[u64] {
        self.kind.get_or_init(|| {
            node_labels::apply_label_function_to_each_node(
                self.raw,
                node_labels::hash_name_and_type,
            )
        })
    }

    /// Returns each node's label, computed from the whole record except id and dependencies.
    pub fn labels_by_record_content(&self) -> &[u64] {
        self.content.get_or_init(|| {
            let nodes = self.raw.nodes.iter();
            nodes.map(node_labels::hash_content).collect()
        })
    }

    /// Iterates over the neighbours of `node` in one direction; the second field is true for a control dependency.
    #[inline]
    pub fn neighbours_of(
        &self,
        node: u32,
        way: DependencyWalkDirection,
    ) -> impl Iterator<Item = (u32, bool)> + '_ {
        let (deps, row) = match way {
            DependencyWalkDirection::Predecessors => (self.raw.dependencies_of(node), &[][..]),
            DependencyWalkDirection::Successors => (&[][..], self.waiting.row(node)),
        };
        let deps = deps
            .iter()
            .filter_map(|dep| Some((dep.target()?, dep.control)));
        deps.chain(row.iter().map(|&entry| (entry >> 1, entry & 1 == 1)))
    }

    /// Returns how many neighbours a node has in one direction.
    pub fn count_neighbours_in_direction(&self, node: u32, way: DependencyWalkDirection) -> usize {
        match way {
            DependencyWalkDirection::Predecessors => self.raw.dependencies_of(node).len(),
            DependencyWalkDirection::Successors => self.waiting.row(node).len(),
        }
    }
}
