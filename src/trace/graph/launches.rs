//! Adds a host to graphs without host work. The host launches the nodes one by one.
//!
//! ```text
//! launch 1 ─► launch 2 ─► launch 3 ─► …        on the host's lane, each as long as it costs
//!    ▼            ▼           ▼   ▲
//! node 1       node 2      node 3 └── node 3 - depth, where the queue would be full otherwise
//! ```

use super::{Csr, Graph, Lane, NodeKind};
use chakram_base::ids::NodeIndex;
use chakram_base::units::Span;

/// The host's launch of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLaunchDurationAndBlocking {
    /// Host time that the launch takes.
    pub cost: Span,
    /// True if the host waits until the node is complete.
    pub waits: bool,
}

/// Name of the added launch nodes.
const LAUNCH: &str = "launch";

impl Graph {
    /// Returns true if the graph has host nodes or delays.
    pub fn has_host_nodes_or_delays(&self) -> bool {
        self.kinds.contains(&NodeKind::Host) || self.has_delays()
    }

    /// Adds launch nodes to the graph and returns it. They have the highest indices and run in program order. `launch`
    /// returns a node's launch, or `None` if nothing launches the node. The host is at most `depth` launches (at least
    /// one) ahead of its device.
    pub fn with_launch_nodes(
        &self,
        launch: impl Fn(NodeIndex) -> Option<HostLaunchDurationAndBlocking>,
        depth: usize,
    ) -> Self {
        let mut graph = self.clone();
        let in_order = self.successors.iter_all_edges().all(|(from, to)| from < to);
        let order: Vec<u32> = if in_order {
            (0..self.len() as u32).collect()
        } else {
            self.successors.topological_order()
        };
        let launched: Vec<(u32, HostLaunchDurationAndBlocking)> = order
            .into_iter()
            .filter_map(|node| Some((node, launch(NodeIndex(node))?)))
            .collect();
        let first = self.len() as u32;
        let all = first as usize + launched.len();
        let next_id = self.ids.last().map_or(0, |last| last + 1);
        let name = graph.names.push_new_name(LAUNCH);
        let lane = graph.lanes.len() as u32;
        graph.lanes.push(Lane::Host(None));
        for (id, (_, launch)) in (next_id..).zip(&launched) {
            graph.ids.push(id);
            graph.name_of.push(name);
            graph.kinds.push(NodeKind::Host);
            graph.lane_of.push(lane);
            graph.recorded.push(launch.cost);
        }
        for values in [&mut graph.flops, &mut graph.bytes] {
            values.resize(all, 0);
        }
        graph.detail.resize(all, 0);
        for column in graph.sparse.all_columns_mut() {
            column.extend_to(all);
        }
        graph.successors = Csr::new(all, |edge| {
            self.successors
                .iter_all_edges()
                .for_each(|(from, to)| edge(from, to));
            for (i, (node, launch)) in launched.iter().enumerate() {
                let own = first + i as u32;
                edge(own, *node);
                if i + 1 < launched.len() {
                    edge(own, own + 1);
                    if launch.waits {
                        edge(*node, own + 1);
                    }
                }
                if i + depth.max(1) < launched.len() {
                    edge(*node, own + depth.max(1) as u32);
                }
            }
        });
        graph.in_degree = vec![0; all];
        for (_, to) in graph.successors.iter_all_edges() {
            graph.in_degree[to as usize] += 1;
        }
        graph
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::write::Sink;
    use crate::format::{NodeView, Op};
    use crate::graph::{EnforcedDependencyKinds, GraphBuilder};

    /// Returns a chain of three kernels.
    fn build_kernel_chain() -> Graph {
        let mut builder = GraphBuilder::new(0, EnforcedDependencyKinds::Both, 4);
        for id in 1..=3 {
            let op = Op::Compute {
                flops: 0,
                bytes: 0,
                dtype: None,
            };
            let before: Vec<u64> = (1..id).rev().take(1).collect();
            builder
                .receive_node(&NodeView::new(id, "kernel", op), &before)
                .unwrap();
        }
        builder.finish_graph().unwrap().0
    }

    #[test]
    fn every_kernel_waits_for_its_launch_and_each_launch_for_the_one_before() {
        let cost = Span(7);
        let graph = build_kernel_chain().with_launch_nodes(
            |_| Some(HostLaunchDurationAndBlocking { cost, waits: false }),
            9,
        );
        let edges: Vec<_> = graph.successor_rows().iter_all_edges().collect();
        // Nodes 0 to 2 are the kernels, and nodes 3 to 5 are their launches.
        assert_eq!(
            edges,
            [(0, 1), (1, 2), (3, 0), (3, 4), (4, 1), (4, 5), (5, 2)]
        );
        assert_eq!(graph.in_degrees(), [1, 2, 2, 0, 1, 1]);
        let launches: Vec<_> = graph.nodes().skip(3).collect();
        for node in launches {
            assert_eq!(graph.kind(node), NodeKind::Host);
            assert_eq!(
                (graph.name(node), graph.recorded_duration(node)),
                ("launch", cost)
            );
        }
        assert_eq!(
            graph.nodes().map(|n| graph.id(n)).collect::<Vec<_>>(),
            [1, 2, 3, 4, 5, 6]
        );
    }

    #[test]
    fn hosts_wait_for_nodes_and_for_room_in_the_queue() {
        let cost = Span(7);
        let first_waits = |node: NodeIndex| {
            let waits = node.0 == 0;
            (node.0 != 1).then_some(HostLaunchDurationAndBlocking { cost, waits })
        };
        // Node 1 has no launch. Node 3 launches node 0, and node 4 launches node 2.
        let graph = build_kernel_chain().with_launch_nodes(first_waits, 9);
        let edges: Vec<_> = graph.successor_rows().iter_all_edges().collect();
        assert_eq!(edges, [(0, 1), (0, 4), (1, 2), (3, 0), (3, 4), (4, 2)]);
        // With at most one launch ahead, the second launch waits for the end of the first node.
        let graph = build_kernel_chain().with_launch_nodes(
            |_| Some(HostLaunchDurationAndBlocking { cost, waits: false }),
            1,
        );
        let edges: Vec<_> = graph
            .successor_rows()
            .iter_all_edges()
            .filter(|(from, to)| from < &3 && to >= &3)
            .collect();
        assert_eq!(edges, [(0, 4), (1, 5)]);
    }
}
