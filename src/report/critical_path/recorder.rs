//! Records each node's start and end, its position in the completion order, and the nodes that released it.

use super::relations::{InstanceNodeId, NONE, NodeNumbersAndPartners};
use crate::{CollectiveRecord, Observer};
use chakram_base::ids::NodeIndex;
use chakram_base::units::Time;
use chakram_engine::CompiledReplay;
use chakram_engine::InstanceId;
use chakram_trace::graph::{NodeKind, huge_pages};

/// Start and end time of a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeStartAndEnd {
    pub start: Time,
    pub end: Time,
}

/// Numbers of the nodes that released a node; [`NONE`] if there is no such node.
#[derive(Clone, Copy, Debug)]
pub struct LastDependencyAndLanePredecessor {
    /// The dependency that was the last to complete.
    pub cause: u32,
    /// The previous node on the same lane.
    pub before: u32,
}

/// Records the start and end of every node, the start of every collective, and the nodes that released each node.
#[derive(Debug)]
pub struct RunRecorder<'a> {
    pub(super) relations: NodeNumbersAndPartners<'a>,
    /// Start and end of each node, indexed by node number.
    pub(super) times: Vec<NodeStartAndEnd>,
    /// Nodes that released each node; the index is the node number.
    pub(super) freed_by: Vec<LastDependencyAndLanePredecessor>,
    /// Time at which the last member of a node's collective arrives. The index is the number of the collective node
    /// among all instances. Until that member arrives, the value is the start of the node itself.
    pub(super) began: Vec<Time>,
    /// Nodes in order of completion.
    pub(super) completed: Vec<InstanceNodeId>,
    /// For each lane, the number of the node that completed last. Nodes of a lane run one at a time, so they complete
    /// in order.
    last_on_lane: Vec<u32>,
}

impl<'a> RunRecorder<'a> {
    /// Creates an observer of all instances of `prepared`; `None` if the run has too many nodes for a critical path.
    pub fn new(prepared: &'a CompiledReplay<'a>) -> Option<Self> {
        if prepared.workload_with_added_launches().node_count() > super::MOST_NODES {
            return None;
        }
        let relations = NodeNumbersAndPartners::new(prepared);
        let nodes = relations.nodes;
        let never = NodeStartAndEnd {
            start: Time::ZERO,
            end: Time::ZERO,
        };
        let nobody = LastDependencyAndLanePredecessor {
            cause: NONE,
            before: NONE,
        };
        Some(Self {
            times: huge_pages::allocate_filled(nodes, never),
            freed_by: huge_pages::allocate_filled(nodes, nobody),
            began: vec![Time::ZERO; relations.member_calls],
            completed: huge_pages::huge_page_vec(nodes),
            last_on_lane: vec![NONE; relations.lanes],
            relations,
        })
    }
}

impl Observer for RunRecorder<'_> {
    #[inline]
    fn on_issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        let instance = &self.relations.instances[instance.index()];
        self.times[instance.node_number(node)].start = now;
        if kind == NodeKind::Collective {
            self.began[instance.collective_index_among_all_instances(node)] = now;
        }
    }

    #[inline]
    fn on_completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, _: NodeKind) {
        self.completed.push(InstanceNodeId { instance, node });
        let instance = &self.relations.instances[instance.index()];
        let number = instance.node_number(node);
        self.times[number].end = now;
        for next in instance.graph.successors(node) {
            self.freed_by[instance.node_number(next)].cause = number as u32;
        }
        if let Some(lane) = instance.lane_index_among_all_instances(node) {
            let last = &mut self.last_on_lane[lane];
            self.freed_by[number].before = std::mem::replace(last, number as u32);
        }
    }

    #[inline]
    fn on_transfer_began(&mut self, now: Time, instance: InstanceId, node: NodeIndex) {
        let instance = &self.relations.instances[instance.index()];
        if instance.graph.kind(node) == NodeKind::Collective {
            self.began[instance.collective_index_among_all_instances(node)] = now;
        }
    }

    fn on_collective_ended(&mut self, _: &CollectiveRecord) {}
}
