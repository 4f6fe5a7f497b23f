//! Issue times of nodes under way, for observers that need durations.
//!
//! A node holds its lane until it is complete, so a time for each lane is enough; receives, which hold none, have
//! one each. Nodes that do nothing end as they begin and may share theirs. Nothing is kept per node, whose memory
//! would have to be fetched anew each time.

use chakram_base::ids::NodeIndex;
use chakram_base::units::Time;
use chakram_engine::CompiledReplay;
use chakram_engine::InstanceId;
use chakram_trace::graph::{Graph, NodeKind};

/// The instant at which each node under way was issued.
#[derive(Debug)]
pub(super) struct IssueTimes<'a> {
    instances: Vec<TimedInstance<'a>>,
    /// Of each instance, for each lane and then for each message of its graph.
    at: Vec<Time>,
}

#[derive(Clone, Copy, Debug)]
struct TimedInstance<'a> {
    graph: &'a Graph,
    /// Index of its first time.
    first: usize,
}

impl<'a> IssueTimes<'a> {
    /// Room for all nodes of `prepared`.
    pub fn new(prepared: &'a CompiledReplay<'_>) -> Self {
        let workload = prepared.workload();
        let mut times = 0;
        let instances = workload.instances().iter().map(|instance| {
            let graph = workload.graph(instance);
            let first = times;
            times += graph.lanes().len() + graph.messages().len();
            TimedInstance { graph, first }
        });
        Self {
            instances: instances.collect(),
            at: vec![Time::ZERO; times],
        }
    }

    /// The graph of an instance.
    #[inline]
    pub fn graph(&self, instance: InstanceId) -> &'a Graph {
        self.instances[instance.index()].graph
    }

    #[inline]
    fn place(&self, instance: InstanceId, node: NodeIndex, kind: NodeKind) -> usize {
        let TimedInstance { graph, first } = self.instances[instance.index()];
        first
            + match kind {
                NodeKind::Receive => graph.lanes().len() + graph.message_index(node),
                _ => graph.lane(node) as usize,
            }
    }

    /// `node` is issued `now`.
    #[inline]
    pub fn set(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        let place = self.place(instance, node, kind);
        self.at[place] = now;
    }

    /// Returns the issue time of `node`, which is under way.
    #[inline]
    pub fn get(&self, instance: InstanceId, node: NodeIndex, kind: NodeKind) -> Time {
        self.at[self.place(instance, node, kind)]
    }
}
