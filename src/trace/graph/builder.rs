//! Builds a graph from nodes in any order of ids.

use super::origins::NodeOriginColumnsBuilder;
use super::{
    ACCESS_BITS, CollectiveNode, DistinctKeyInterner, FLOPS_UNKNOWN, GATHERED, Graph,
    GroupSlotDimensions, Lane, NO_DTYPE, NodeIdMap, NodeKind, OneMemberAlltoallPeerBytes, REDUCED,
    STORED, SendOrReceiveNode, StringArenaInterner,
};
use crate::format::groups::{DeclaredGroups, parse_group_metadata};
use crate::format::origin::CallStacks;
use crate::format::profiler_cost::ProfilerOverheadFacts;
use crate::format::roles::GroupRoles;
use crate::format::scan::{CaptureEnvironment, NodeView};
use crate::format::work_amounts::JobSamplesAndModelFlops;
use crate::format::write::Sink;
use crate::format::{
    KernelShape, MemoryLocation, NodeMemoryChanges, Op, TraceError, TrainingPhase,
    escape_and_shorten_name,
};
use chakram_base::ids::NodeIndex;
use chakram_base::interrupt;
use chakram_base::setting::{EnumeratedSetting, SettingKey};
use chakram_base::units::Span;
use std::sync::Arc;

mod link;
mod sort;

/// Dependencies that the graph enforces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EnforcedDependencyKinds {
    /// Data and control dependencies. If control dependencies close a cycle, the graph enforces only data dependencies,
    /// and the user gets a warning.
    #[default]
    Auto,
    /// Data and control dependencies.
    Both,
    /// Data dependencies only.
    Data,
}

impl EnumeratedSetting for EnforcedDependencyKinds {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (
            Self::Auto,
            "auto",
            "Data and control; only data, with a warning, if control closes a cycle",
        ),
        (Self::Both, "both", "Data and control"),
        (Self::Data, "data", "Data only"),
    ];
}

/// The peers and groups that one rank binds to a graph's slots, and the rank's group declarations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankBindingsOfGraphSlots {
    /// Rank of each peer slot.
    pub peers: Vec<u32>,
    /// Name of the group that is bound to each group slot; `None` means all ranks.
    pub groups: Vec<Option<String>>,
    /// Groups that the trace declares in metadata nodes.
    pub declared: Arc<DeclaredGroups>,
    /// Coordinates of the rank's core on a machine of tiles, if the trace states them.
    pub core: Option<[u32; 2]>,
}

/// Flag that marks control dependencies in the list of predecessors.
const CONTROL: u32 = 1 << 31;
/// Sentinel for a predecessor that was dropped or is not resolved yet.
const NO_NODE: u32 = u32::MAX;
/// Maximum number of nodes, because the flag [`CONTROL`] takes one bit of a node index's 32-bit word.
const MAX_NODES: usize = (CONTROL - 1) as usize;

/// Number of nodes to read before the builder checks again for an interruption. Reading this many nodes takes a few
/// milliseconds.
const NODES_BETWEEN_CHECKS: usize = 1 << 14;

/// Collects nodes and builds a [`Graph`].
#[derive(Debug)]
pub struct GraphBuilder {
    rank: u32,
    policy: EnforcedDependencyKinds,
    graph: Graph,
    index_of: NodeIdMap,
    names: StringArenaInterner,
    lanes: DistinctKeyInterner<Lane>,
    /// Name and dimension mask of each group slot.
    groups: DistinctKeyInterner<(Option<String>, Option<u32>)>,
    peers: DistinctKeyInterner<u32>,
    declared: DeclaredGroups,
    changes: DistinctKeyInterner<NodeMemoryChanges>,
    /// Names of the memories outside the NPU.
    remote_memories: DistinctKeyInterner<String>,
    /// Distinct kernels, as (shape, true for a backward pass).
    kernels: DistinctKeyInterner<(KernelShape, bool)>,
    /// Predecessors of all nodes; control dependencies have the flag [`CONTROL`]. The predecessors of node i end before
    /// `pred_end[i]`.
    preds: Vec<u32>,
    pred_end: Vec<u32>,
    /// Dependencies on nodes that come later in the file: (index in `preds`, id).
    forward: Vec<(u32, u64)>,
    origins: NodeOriginColumnsBuilder,
}

impl GraphBuilder {
    /// Creates a builder for the graph of `rank`; ids below `dense_ids` take at most 4 bytes each.
    pub fn new(rank: u32, policy: EnforcedDependencyKinds, dense_ids: u64) -> Self {
        Self {
            rank,
            policy,
            graph: Graph::default(),
            index_of: NodeIdMap::new(dense_ids.max(1024)),
            names: StringArenaInterner::default(),
            lanes: DistinctKeyInterner::default(),
            groups: DistinctKeyInterner::default(),
            peers: DistinctKeyInterner::default(),
            declared: DeclaredGroups::new(),
            changes: DistinctKeyInterner::default(),
            remote_memories: DistinctKeyInterner::default(),
            kernels: DistinctKeyInterner::default(),
            preds: Vec::new(),
            pred_end: Vec::new(),
            forward: Vec::new(),
            origins: NodeOriginColumnsBuilder::default(),
        }
    }

    /// Reserves memory for about `nodes` nodes that have distinct names. The number is only a hint, not a limit.
    pub fn reserve_nodes(&mut self, nodes: u64) {
        // Reserve memory for at most this many nodes. In larger graphs, growing the arrays accounts for little of the
        // total time.
        let nodes = nodes.min(1 << 20) as usize;
        // With this margin, the arrays need not be moved if `nodes` is slightly too low.
        let nodes = nodes + nodes / 16 + 16;
        let graph = &mut self.graph;
        graph.ids.reserve_exact(nodes);
        graph.name_of.reserve_exact(nodes);
        graph.kinds.reserve_exact(nodes);
        graph.lane_of.reserve_exact(nodes);
        graph.recorded.reserve_exact(nodes);
        graph.flops.reserve_exact(nodes);
        graph.bytes.reserve_exact(nodes);
        graph.detail.reserve_exact(nodes);
        self.pred_end.reserve_exact(nodes);
        self.preds.reserve_exact(nodes);
        self.names.reserve_names(nodes);
    }

    fn add_dependency(&mut self, id: u64, mark: u32) {
        match self.index_of.get(id) {
            Some(index) => self.preds.push(index | mark),
            None => {
                self.forward.push((self.preds.len() as u32, id));
                // The placeholder carries the flag until the id is resolved.
                self.preds.push(NO_NODE & !CONTROL | mark);
            }
        }
    }

    /// Adds the node whose dependencies the builder has just visited.
    pub(super) fn add_node_with_visited_dependencies(
        &mut self,
        node: &NodeView<'_>,
    ) -> Result<(), TraceError> {
        let index = self.graph.ids.len();
        if index.is_multiple_of(NODES_BETWEEN_CHECKS) {
            interrupt::fail_if_stopped_or_out_of_memory()?;
        }
        if index >= MAX_NODES || self.preds.len() >= NO_NODE as usize {
            return Err(TraceError::invalid_node(
                node.id,
                "more nodes or dependencies than 32-bit indices can address",
                "split the trace, for example by step",
            ));
        }
        if self
            .index_of
            .insert_if_absent(node.id, index as u32)
            .is_some()
        {
            return Err(TraceError::invalid_node(
                node.id,
                "a second node with this id",
                "give each node of a file its own id; the tool that wrote the file is at fault",
            ));
        }
        if self.names.stage_name_returning_batch_full(node.name) {
            self.intern_node_names(node.id)?;
        }
        if let Some(values) = node.groups {
            let declared: DeclaredGroups = parse_group_metadata(node.id, values)?;
            for (name, ranks) in declared {
                match self.declared.get(&name) {
                    Some(known) if *known != ranks => {
                        return Err(TraceError::invalid_node(
                            node.id,
                            format!(
                                "group `{}` is declared twice, with different ranks",
                                escape_and_shorten_name(&name)
                            ),
                            format!(
                                "delete one of the metadata nodes, or pass the groups with {}",
                                SettingKey::Groups
                            ),
                        ));
                    }
                    _ => self.declared.insert(name, ranks),
                };
            }
        }
        let (kind, lane, flops, bytes, detail) = self.decode_node_fields(node)?;
        let lane = self.lanes.intern_key(lane);
        let graph = &mut self.graph;
        graph.ids.push(node.id);
        graph.kinds.push(kind);
        graph.lane_of.push(lane);
        graph.recorded.push(node.recorded);
        graph.sparse.push_node(index, node, kind);
        self.origins.push_origin(index, &node.origin);
        if !node.memory.is_none() {
            let place = self.changes.intern_key(node.memory) + 1;
            graph.sparse.memory_of.push_value(index, place);
        }
        if let (Some(kernel), NodeKind::Compute) = (node.kernel, kind) {
            let backward = node.labels.phase == Some(TrainingPhase::Backward);
            let place = self.kernels.intern_key((kernel, backward)) + 1;
            graph.sparse.kernel_of.push_value(index, place);
        }
        graph.flops.push(flops);
        graph.bytes.push(bytes);
        graph.detail.push(detail);
        self.pred_end.push(self.preds.len() as u32);
        Ok(())
    }

    /// Sets the recorded end of the rank's last event, relative to the start of the job.
    pub fn set_captured_end_of_last_event(&mut self, at: Span) {
        self.graph.captured = Some(at);
    }

    /// Sets whether the captured kernels are operators that ran on a CPU.
    pub fn set_whether_kernels_ran_on_cpu(&mut self, on_cpu: bool) {
        self.graph.kernels_on_cpu = on_cpu;
    }

    /// Sets the number of ranks in the job, and the device, host and software of the capture.
    pub fn set_world_size_and_capture_environment(
        &mut self,
        world_size: Option<u32>,
        on: CaptureEnvironment,
    ) {
        (self.graph.world_size, self.graph.captured_on) = (world_size, on);
    }

    /// Sets the trace's facts about its profiler.
    pub fn set_capture_profiler_facts(&mut self, said: ProfilerOverheadFacts) {
        self.graph.profiler.said = said;
    }

    /// Sets the number of kernels that the profiler dropped.
    pub fn set_dropped_kernel_count(&mut self, count: u64) {
        self.graph.dropped_kernels = count;
    }

    /// Sets the roles of groups.
    pub fn set_group_roles(&mut self, roles: GroupRoles) {
        self.graph.roles = roles;
    }

    /// Sets the work of the whole job, or `None` if the trace does not state it.
    pub fn set_job_work_amounts(&mut self, amounts: Option<JobSamplesAndModelFlops>) {
        self.graph.amounts = amounts;
    }

    /// Sets the Python calls during which nodes ran.
    pub fn set_call_stacks(&mut self, stacks: CallStacks) {
        self.graph.stacks = stacks;
    }

    /// Sets the name under which users see `lane`.
    pub fn set_lane_name(&mut self, lane: Lane, name: String) {
        self.graph.lane_names.push((lane, name));
    }

    /// Interns the staged names. If the arena is full, the error names the node with id `last`.
    fn intern_node_names(&mut self, last: u64) -> Result<(), TraceError> {
        let settled = self.names.intern_staged_names(&mut self.graph.name_of);
        settled.ok_or_else(|| {
            TraceError::invalid_node(last, "more than 4 GiB of names", "shorten the names")
        })
    }

    /// Returns a node's type, lane, FLOPs, bytes and `detail` word. For a collective or a message, also appends an
    /// entry to its list.
    fn decode_node_fields(
        &mut self,
        node: &NodeView<'_>,
    ) -> Result<(NodeKind, Lane, u64, u64, u32), TraceError> {
        let index = NodeIndex(self.graph.ids.len() as u32);
        let stream = |other: Lane| node.lane.map_or(other, Lane::Stream);
        Ok(match node.op {
            Op::NoOp => (NodeKind::Nothing, Lane::None, 0, 0, 0),
            Op::Host => (NodeKind::Host, Lane::Host(node.lane), 0, 0, 0),
            Op::Communication { bytes } => {
                let detail = self.graph.unknown_communication;
                self.graph.unknown_communication += 1;
                (
                    NodeKind::Communication,
                    stream(Lane::Compute),
                    0,
                    bytes,
                    detail,
                )
            }
            Op::Compute {
                flops,
                bytes,
                dtype,
            } => {
                let dtype = dtype.map_or(NO_DTYPE, |d| d as u32);
                let detail = match node.flops_unknown {
                    true => dtype | FLOPS_UNKNOWN,
                    false => dtype,
                };
                (
                    NodeKind::Compute,
                    stream(Lane::Compute),
                    flops,
                    bytes,
                    detail,
                )
            }
            Op::Memory {
                store,
                place,
                bytes,
                in_switch,
            } => {
                let kind = match place {
                    MemoryLocation::Local => NodeKind::LocalMemory,
                    MemoryLocation::Remote | MemoryLocation::Named(_) => NodeKind::RemoteMemory,
                };
                let memory = match place {
                    MemoryLocation::Named(name) => {
                        self.remote_memories.intern_key(name.to_owned()) + 1
                    }
                    MemoryLocation::Local | MemoryLocation::Remote => 0,
                };
                let detail = match (in_switch, store) {
                    (false, false) => 0,
                    (false, true) => STORED,
                    (true, false) => GATHERED,
                    (true, true) => REDUCED,
                };
                let detail = detail | memory << ACCESS_BITS;
                (kind, stream(Lane::Memory), 0, bytes, detail)
            }
            Op::Message {
                receive,
                peer,
                tag,
                bytes,
                own,
                host,
            } => {
                self.check_message_ends(node.id, peer, own)?;
                self.graph.repairs.host_communication += u64::from(host);
                let peer = self.peers.intern_key(peer);
                let detail = self.graph.messages.len() as u32;
                self.graph.messages.push(SendOrReceiveNode {
                    node: index,
                    peer,
                    tag,
                    receive,
                    eager: node.eager,
                    size_unknown: node.size_unknown,
                });
                // Only the sender drives the link, so a posted receive uses none of its NPU's engines. A receive
                // therefore occupies no lane and cannot block a later send in program order.
                let (kind, lane) = if receive {
                    (NodeKind::Receive, Lane::None)
                } else {
                    (NodeKind::Send, stream(Lane::Peer(peer)))
                };
                (kind, lane, 0, bytes, detail)
            }
            Op::Collective {
                kind,
                bytes,
                group,
                root,
                dimensions,
                host,
            } => {
                self.graph.repairs.host_communication += u64::from(host);
                let name = group.to_text();
                let slot = self.groups.intern_key((name, dimensions));
                let detail = self.graph.calls.len() as u32;
                if !node.splits.is_empty() {
                    let (send, receive) = node.splits.parse(node.id)?;
                    self.graph.splits.push(OneMemberAlltoallPeerBytes {
                        call: detail,
                        send,
                        receive,
                    });
                }
                self.graph.calls.push(CollectiveNode {
                    node: index,
                    group: slot,
                    sequence: 0,
                    root: root.unwrap_or(u32::MAX),
                    kind,
                    eager: node.eager,
                    size_unknown: node.size_unknown,
                });
                (
                    NodeKind::Collective,
                    stream(Lane::Group(slot)),
                    0,
                    bytes,
                    detail,
                )
            }
        })
    }

    fn check_message_ends(&self, id: u64, peer: u32, own: Option<u32>) -> Result<(), TraceError> {
        match own {
            Some(own) if own != self.rank => Err(TraceError::invalid_node(
                id,
                format!(
                    "the message's own end is rank {own}, but this is the trace of rank {}",
                    self.rank
                ),
                "check that the files' numbers are the job's ranks",
            )),
            _ if peer == self.rank => Err(TraceError::invalid_node(
                id,
                format!("rank {peer} sends to itself"),
                "write a copy within an NPU as a memory node; a message needs two ranks",
            )),
            _ => Ok(()),
        }
    }

    /// Sorts, links and checks the nodes, and returns the graph with the rank's binding.
    ///
    /// Fails if a data dependency is on a missing node or on the node itself, or if dependencies form a cycle.
    pub fn finish_graph(mut self) -> Result<(Graph, RankBindingsOfGraphSlots), TraceError> {
        self.intern_node_names(self.graph.ids.last().copied().unwrap_or(0))?;
        let nodes = self.graph.ids.len();
        for column in self.graph.sparse.all_columns_mut() {
            column.extend_to(nodes);
        }
        for column in self.origins.columns_mut() {
            column.extend_to(nodes);
        }
        self.resolve_forward_dependencies()?;
        self.sort_by_id();
        self.graph
            .resolve_callers_steps_and_stacks(&self.origins, &self.index_of);
        self.drop_or_reject_self_dependencies()?;
        let with_control = self.policy != EnforcedDependencyKinds::Data;
        // In nearly all traces, the order of ids already respects all dependencies. `link_successors` detects this at
        // no extra cost.
        if !self.link_successors(with_control) && !self.sort_communication_in_program_order() {
            if self.policy != EnforcedDependencyKinds::Auto || self.control_dependency_count() == 0
            {
                return Err(self.cycle_error());
            }
            self.graph.repairs.cyclic_control = self.control_dependency_count();
            if !self.link_successors(false) && !self.sort_communication_in_program_order() {
                return Err(self.cycle_error());
            }
        }
        // Calls are now in program order, so counting the calls of each slot yields their sequence numbers.
        let mut next = vec![0_u32; self.groups.keys().len()];
        for call in &mut self.graph.calls {
            let counter = &mut next[call.group as usize];
            call.sequence = *counter;
            *counter += 1;
        }
        let mut graph = self.graph;
        self.names.free_hash_table();
        graph.names = self.names;
        graph.lanes = self.lanes.into_keys();
        let slots = self.groups.into_keys().into_iter();
        let (groups, slots) = slots
            .map(|(name, dimensions)| (name, GroupSlotDimensions { dimensions }))
            .unzip();
        graph.groups = slots;
        graph.changes = self.changes.into_keys();
        graph.remote_memories = self.remote_memories.into_keys();
        graph.kernels = self.kernels.into_keys();
        graph.release_spare_memory();
        let binding = RankBindingsOfGraphSlots {
            peers: self.peers.into_keys(),
            groups,
            declared: Arc::new(self.declared),
            core: None,
        };
        Ok((graph, binding))
    }
}

#[inline]
fn predecessors_of<'a>(preds: &'a [u32], ends: &[u32], node: usize) -> &'a [u32] {
    let start = if node == 0 { 0 } else { ends[node - 1] };
    &preds[start as usize..ends[node] as usize]
}

impl crate::format::scan::DependencyVisitor for GraphBuilder {
    #[inline]
    fn visit_data_dependency(&mut self, id: u64) -> Result<(), TraceError> {
        self.add_dependency(id, 0);
        Ok(())
    }

    #[inline]
    fn visit_control_dependency(&mut self, id: u64) -> Result<(), TraceError> {
        self.add_dependency(id, CONTROL);
        Ok(())
    }
}

impl Sink for GraphBuilder {
    fn receive_node(&mut self, node: &NodeView<'_>, data: &[u64]) -> Result<(), TraceError> {
        for &id in data {
            self.add_dependency(id, 0);
        }
        self.add_node_with_visited_dependencies(node)
    }
}

impl Graph {
    /// Releases the spare capacity of the arrays.
    fn release_spare_memory(&mut self) {
        self.ids.shrink_to_fit();
        self.name_of.shrink_to_fit();
        self.kinds.shrink_to_fit();
        self.lane_of.shrink_to_fit();
        self.recorded.shrink_to_fit();
        for column in self.sparse.all_columns_mut() {
            column.release_spare();
        }
        self.kernels.shrink_to_fit();
        self.changes.shrink_to_fit();
        self.flops.shrink_to_fit();
        self.bytes.shrink_to_fit();
        self.detail.shrink_to_fit();
        self.calls.shrink_to_fit();
        self.splits.shrink_to_fit();
        self.messages.shrink_to_fit();
    }
}
