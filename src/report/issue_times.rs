//! Issue times of nodes in progress, for observers that need durations.
//!
//! A node occupies its lane until it completes, so one time per lane suffices. Receives occupy no lane, so one time
//! is stored for each receive. Nodes that do no work end when they begin and may share a lane's time. Storing one
//! time per node would miss the cache on every access.

use chakram_base::ids::NodeIndex;
use chakram_base::units::Time;
use chakram_engine::CompiledReplay;
use chakram_engine::InstanceId;
use chakram_trace::graph::{Graph, NodeKind};

/// The issue time of each node in progress.
#[derive(Debug)]
pub(super) struct IssueTimes<'a> {
    instances: Vec<TimedInstance<'a>>,
    /// For each rank instance: one time per lane, then one time per message of the graph.
    at: Vec<Time>,
}

#[derive(Clone, Copy, Debug)]
struct TimedInstance<'a> {
    graph: &'a Graph,
    /// Index in `at` of the instance's first time.
    first: usize,
}

impl<'a> IssueTimes<'a> {
    /// Creates storage for the nodes in progress of `prepared`.
    pub fn new(prepared: &'a CompiledReplay<'_>) -> Self {
        let workload = prepared.workload();
        let mut times = 0;
        let instances = workload.instances().iter().map(|instance| {
            let graph = workload.graph_of(instance);
            let first = times;
            times += graph.lanes().len() + graph.messages().len();
            TimedInstance { graph, first }
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
        let TimedInstance { graph, first } = self.instances[instance.index()];
        first
            + match kind {
                NodeKind::Receive => graph.lanes().len() + graph.message_index(node),
                _ => graph.lane(node) as usize,
            }
    }

    /// Records that `node` is issued at `now`.
    #[inline]
    pub fn set_issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        let place = self.slot_of_node(instance, node, kind);
        self.at[place] = now;
    }

    /// Returns the issue time of `node`, which must be in progress.
    #[inline]
    pub fn get(&self, instance: InstanceId, node: NodeIndex, kind: NodeKind) -> Time {
        self.at[self.slot_of_node(instance, node, kind)]
    }
}
