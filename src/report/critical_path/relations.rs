//! Properties of a run's nodes that do not change: their numbers, their lanes, and the other nodes in the same
//! communication.

use chakram_base::ids::NodeIndex;
use chakram_engine::InstanceId;
use chakram_engine::{CommunicationDurationSource, CompiledReplay};
use chakram_trace::graph::{Graph, NodeKind, huge_pages};

/// Marks a missing node or call.
pub const NONE: u32 = u32::MAX;

/// Converts a node number to an index; `None` for [`NONE`].
#[inline]
pub fn node_index_unless_none(number: u32) -> Option<usize> {
    (number != NONE).then_some(number as usize)
}

/// A node of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceNodeId {
    pub instance: InstanceId,
    pub node: NodeIndex,
}

/// A rank's nodes in a run. Ranks with equal traces share one graph.
#[derive(Debug)]
pub struct RankGraphWithNumberOffsets<'a> {
    pub graph: &'a Graph,
    /// Number of the instance's first node.
    pub first: u32,
    /// Index of the instance's first collective node among the collective nodes of all instances.
    first_call: u32,
    /// For each lane of the graph, the lane's index among the lanes of all instances. The entry that stands for no lane
    /// is [`NONE`].
    lanes: Vec<u32>,
}

impl RankGraphWithNumberOffsets<'_> {
    #[inline]
    pub fn node_number(&self, node: NodeIndex) -> usize {
        self.first as usize + node.index()
    }

    /// Returns the index of a node's lane among the lanes of all instances; `None` if the node has no lane.
    #[inline]
    pub fn lane_index_among_all_instances(&self, node: NodeIndex) -> Option<usize> {
        node_index_unless_none(self.lanes[self.graph.lane(node) as usize])
    }

    /// Returns the index of a collective node among the collective nodes of all instances.
    #[inline]
    pub fn collective_index_among_all_instances(&self, node: NodeIndex) -> usize {
        self.first_call as usize + self.graph.index_of_collective_call(node)
    }
}

/// Numbers the nodes of all instances. Links nodes on different ranks if they belong to the same collective or message.
#[derive(Debug)]
pub struct NodeNumbersAndPartners<'a> {
    pub prepared: &'a CompiledReplay<'a>,
    pub comm: CommunicationDurationSource,
    pub instances: Vec<RankGraphWithNumberOffsets<'a>>,
    /// Number of nodes, summed over instances.
    pub nodes: usize,
    /// Number of collective nodes; each member of a collective has one.
    pub member_calls: usize,
    /// Number of lanes, summed over instances.
    pub lanes: usize,
    /// For a collective node, the index of its call. For a message node, the number of the node at the other end.
    pub peer: Vec<u32>,
    /// The members of call `i` are at `first_member[i]..first_member[i + 1]`.
    first_member: Vec<u32>,
    members: Vec<u32>,
}

impl<'a> NodeNumbersAndPartners<'a> {
    pub fn new(prepared: &'a CompiledReplay<'a>) -> Self {
        let workload = prepared.workload_with_added_launches();
        let mut instances = Vec::with_capacity(workload.instances().len());
        let [mut nodes, mut member_calls, mut lanes] = [0_usize; 3];
        for (i, instance) in (0..).zip(workload.instances()) {
            let graph = workload.graph_of(instance);
            let own = prepared.npu_lanes_of_graph_lanes(InstanceId(i));
            let count = own.flatten().max().map_or(0, |lane| lane as usize + 1);
            let own = prepared.npu_lanes_of_graph_lanes(InstanceId(i));
            instances.push(RankGraphWithNumberOffsets {
                graph,
                first: nodes as u32,
                first_call: member_calls as u32,
                lanes: own
                    .map(|lane| lane.map_or(NONE, |lane| lanes as u32 + lane))
                    .collect(),
            });
            nodes += graph.len();
            member_calls += graph.collective_calls().len();
            lanes += count;
        }
        let mut this = Self {
            prepared,
            comm: prepared.comm_duration_source(),
            instances,
            nodes,
            member_calls,
            lanes,
            peer: huge_pages::allocate_filled(nodes, NONE),
            first_member: Vec::new(),
            members: vec![0; member_calls],
        };
        this.find_members_of_collective_calls();
        this.match_sends_with_receives();
        this
    }

    /// Finds the members of each collective.
    fn find_members_of_collective_calls(&mut self) {
        let mut first_call = Vec::new();
        let mut count = 0;
        for calls in self.prepared.collective_counts_by_group() {
            first_call.push(count as u32);
            count += calls;
        }
        self.first_member = vec![0; count + 1];
        for (i, instance) in (0..).zip(&self.instances) {
            for call in instance.graph.collective_calls() {
                let (group, sequence) = self
                    .prepared
                    .group_and_index_of_collective(InstanceId(i), call.node);
                let number = first_call[group.index()] + sequence;
                self.peer[instance.node_number(call.node)] = number;
                self.first_member[number as usize] += 1;
            }
        }
        // Counting sort: at first, a call's entry is the end of its range of members. Each inserted member decrements
        // the entry, so in the end the entry is the start of the range. Members are inserted in reverse order, so in
        // the end they are sorted by instance.
        let mut sum = 0;
        for members in &mut self.first_member {
            sum += *members;
            *members = sum;
        }
        for instance in self.instances.iter().rev() {
            for call in instance.graph.collective_calls().iter().rev() {
                let member = instance.node_number(call.node);
                let place = &mut self.first_member[self.peer[member] as usize];
                *place -= 1;
                self.members[*place as usize] = member as u32;
            }
        }
    }

    /// Finds the send and the receive of each message.
    fn match_sends_with_receives(&mut self) {
        let mut halves: Vec<u32> = Vec::new();
        for (i, instance) in (0..).zip(&self.instances) {
            for message in instance.graph.messages() {
                let Some(pair) = self
                    .prepared
                    .match_number_of_message(InstanceId(i), message.node)
                else {
                    continue;
                };
                let number = instance.node_number(message.node);
                if halves.len() <= pair as usize {
                    halves.resize(pair as usize + 1, NONE);
                }
                let other = std::mem::replace(&mut halves[pair as usize], number as u32);
                if other != NONE {
                    self.peer[number] = other;
                    self.peer[other as usize] = number as u32;
                }
            }
        }
    }

    /// Returns the number of collective calls; a call consists of one node per member.
    pub fn call_count(&self) -> usize {
        self.first_member.len() - 1
    }

    /// Returns the collective nodes of all members of node `number`'s call, sorted by instance.
    pub fn call_members(&self, number: usize) -> impl Iterator<Item = usize> + '_ {
        let call = self.peer[number] as usize;
        let [from, to] = [call, call + 1].map(|i| self.first_member[i] as usize);
        self.members[from..to].iter().map(|&member| member as usize)
    }

    /// Returns the node with this number, found by searching the instances.
    pub fn node_at_number(&self, number: usize) -> InstanceNodeId {
        let number = number as u32;
        let instance = self.instances.partition_point(|one| one.first <= number) - 1;
        InstanceNodeId {
            instance: InstanceId(instance as u32),
            node: NodeIndex(number - self.instances[instance].first),
        }
    }

    pub fn number_of_node(&self, of: InstanceNodeId) -> usize {
        self.instances[of.instance.index()].node_number(of.node)
    }

    pub fn graph_of(&self, instance: InstanceId) -> &'a Graph {
        self.instances[instance.index()].graph
    }

    pub fn kind_of(&self, of: InstanceNodeId) -> NodeKind {
        self.graph_of(of.instance).kind(of.node)
    }
}
