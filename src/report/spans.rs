//! Records each node's start and end for processing after the replay.

use super::{CollectiveRecord, Observer};
use chakram_base::ids::NodeIndex;
use chakram_base::units::Time;
use chakram_engine::CompiledReplay;
use chakram_engine::InstanceId;
use chakram_trace::graph::NodeKind;

/// A node's issue and completion time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSpan {
    /// The node.
    pub node: NodeIndex,
    /// Issue time.
    pub start: Time,
    /// Completion time.
    pub end: Time,
}

/// Records each node's issue and completion time.
#[derive(Debug)]
pub struct NodeSpanRecorder {
    /// For each instance, the issue time of each node.
    started: Vec<Vec<Time>>,
    completed: Vec<Vec<NodeSpan>>,
}

impl NodeSpanRecorder {
    /// Creates an observer of all instances of `prepared`.
    pub fn new(prepared: &CompiledReplay<'_>) -> Self {
        let workload = prepared.workload_with_added_launches();
        let nodes = workload
            .instances()
            .iter()
            .map(|i| workload.graph_of(i).len());
        Self {
            started: nodes.clone().map(|n| vec![Time::ZERO; n]).collect(),
            completed: nodes.map(Vec::with_capacity).collect(),
        }
    }

    /// Returns the completed nodes of an instance, in order of completion.
    pub fn spans_of_instance(&self, instance: usize) -> &[NodeSpan] {
        &self.completed[instance]
    }
}

impl Observer for NodeSpanRecorder {
    #[inline]
    fn on_issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, _: NodeKind) {
        self.started[instance.index()][node.index()] = now;
    }

    #[inline]
    fn on_completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, _: NodeKind) {
        let start = self.started[instance.index()][node.index()];
        let span = NodeSpan {
            node,
            start,
            end: now,
        };
        self.completed[instance.index()].push(span);
    }

    #[inline]
    fn on_collective_ended(&mut self, _: &CollectiveRecord) {}
}
