//! Issue times of the nodes in progress, for observers that compute durations.
//!
//! A node occupies its lane until it completes, so one time per lane is enough. Receives occupy no lane, so each has
//! its own time. Nodes that do no work end when they begin, so they can share their lane's time. With one time per
//! node, every access would miss the cache.

use chakram_base::ids::NodeIndex;
use chakram_base::units::Time;
use chakram_engine::CompiledReplay;
use chakram_engine::InstanceId;
use chakram_trace::graph::{Graph, NodeKind};

/// Issue times of the nodes in progress on all instances.
#[derive(Debug)]
pub(super) struct InProgressNodeIssueTimes<'a> {
    instances: Vec<GraphWithFirstTimeIndex<'a>>,
    /// For each instance, one time per lane, then one time per message of its graph.
    at: Vec<Time>,
}

#[derive(Clone, Copy, Debug)]
struct GraphWithFirstTimeIndex<'a> {
    graph: &'a Graph,
    /// Where the instance's first time stands in `at`.
    first: usize,
}

impl<'a> InProgressNodeIssueTimes<'a> {
    /// Creates storage for the nodes of `prepared`.
    pub fn new(prepared: &'a CompiledReplay<'_>) -> Self {
        let workload = prepared.workload_with_added_launches();
        let mut times = 0;
        let instances = workload.instances().iter().map(|instance| {
            let graph = workload.graph_of(instance);
            let first = times;
            times += graph.lanes_in_order_of_first_use().len() + graph.messages().len();
            GraphWithFirstTimeIndex { graph, first }
        });
        Self {
            instances: instances.collect(),
            at: vec![Time::ZERO; times],
        }
    }

    /// Returns the graph of an instance.
    #[inline]
    pub fn graph_of(&self, instance: InstanceId) -> &'a Graph {
        self.instances[instance.index()].graph
    }

    #[inline]
    fn slot_of_node(&self, instance: InstanceId, node: NodeIndex, kind: NodeKind) -> usize {
        let GraphWithFirstTimeIndex { graph, first } = self.instances[instance.index()];
        first
            + match kind {
                NodeKind::Receive => {
                    graph.lanes_in_order_of_first_use().len() + graph.message_index(node)
                }
                _ => graph.lane(node) as usize,
            }
    }

    /// Stores `now` as the issue time of `node`.
    #[inline]
    pub fn store_issue_time(
        &mut self,
        now: Time,
        instance: InstanceId,
        node: NodeIndex,
        kind: NodeKind,
    ) {
        let place = self.slot_of_node(instance, node, kind);
        self.at[place] = now;
    }

    /// Returns the issue time of `node`; the node must be in progress.
    #[inline]
    pub fn get(&self, instance: InstanceId, node: NodeIndex, kind: NodeKind) -> Time {
        self.at[self.slot_of_node(instance, node, kind)]
    }
}
