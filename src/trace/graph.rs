//! The compact form of a trace: flat arrays that [`NodeIndex`] indexes.
//!
//! A graph describes work, but not which rank executes it. It refers to peers and groups by *slots*, numbered in order
//! of first use. Each rank's instance of the graph binds each slot to a rank or group. Ranks that differ only in their
//! peers, groups and group names therefore share one graph. Nodes are sorted by id, so nothing depends on the order of
//! records in a file.
//!
//! A node takes 53 bytes (61 with its duration on one NPU class, 62 with the state of one run), and an edge takes 4
//! bytes. Each collective takes another 24 bytes, and each message another 20 bytes. Names take additional memory. If
//! any node uses an optional column, the column takes memory for every node: 8 bytes each for delays and waiting times,
//! 4 bytes each for memory changes, kernel shapes, callers, steps and Python calls. Each distinct memory change takes
//! another 88 bytes, and each distinct kernel shape another 64 bytes.

pub use crate::format::groups::DeclaredGroups;
use crate::format::origin::CallStacks;
pub use crate::format::roles::GroupRoles;
use crate::format::scan::CaptureEnvironment;
pub use crate::format::work_amounts::JobSamplesAndModelFlops;
use crate::format::{CollectiveKind, Dtype, KernelShape, NodeMemoryChanges};
use chakram_base::ids::NodeIndex;
use chakram_base::units::Span;
use serde::{Deserialize, Serialize};
use sparse_columns::OptionalNodeColumns;

pub mod builder;
pub mod captured_timeline;
mod csr;
pub mod cycle;
pub mod dot;
pub mod huge_pages;
mod intern;
pub mod launches;
pub mod neighbourhood;
mod origins;
pub mod raw_trace;
mod read;
mod sparse_columns;
mod visit;

pub use builder::{EnforcedDependencyKinds, GraphBuilder, RankBindingsOfGraphSlots};
pub use captured_timeline::NodeStartEndTimesAndCauses;
pub use csr::Csr;
pub use intern::{DistinctKeyInterner, NodeIdMap, StringArenaInterner, stable_hash};
pub use raw_trace::RawTrace;
pub use read::{ProfilerCostFactsOfTrace, ProfilerOverheadRemovalPolicy};
pub use visit::BidirectionalEdges;

/// Type of a node, which determines how it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum NodeKind {
    /// The node does nothing, and completes as soon as its last dependency does.
    Nothing,
    /// Work on the host.
    Host,
    /// A kernel on the NPU.
    Compute,
    /// A load or store in the NPU's own memory.
    #[serde(rename = "local memory")]
    LocalMemory,
    /// A load or store in memory outside the NPU.
    #[serde(rename = "remote memory")]
    RemoteMemory,
    /// The sending half of a message.
    Send,
    /// The receiving half of a message.
    Receive,
    /// A member's part of a collective.
    Collective,
    /// Communication for which the trace states no operation or no partners.
    Communication,
}

impl NodeKind {
    /// All node types, by number.
    pub const ALL: [Self; 9] = [
        Self::Nothing,
        Self::Host,
        Self::Compute,
        Self::LocalMemory,
        Self::RemoteMemory,
        Self::Send,
        Self::Receive,
        Self::Collective,
        Self::Communication,
    ];
}

/// A lane: a stream or thread that runs one node at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// A host thread, or `None` if the trace names none.
    Host(Option<i64>),
    /// A stream of the NPU.
    Stream(i64),
    /// Lane for kernels without a named stream.
    Compute,
    /// Lane for loads and stores without a named stream.
    Memory,
    /// Lane for collectives of one group slot that name no stream.
    Group(u32),
    /// Lane for sends to one peer slot that name no stream.
    Peer(u32),
    /// No lane: for receives, and for nodes without an operation.
    None,
}

/// Refers to a group by a slot index; a rank's [`RankBindingsOfGraphSlots`] names the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupSlotDimensions {
    /// Mask of the machine's dimensions that the group uses; `None` means all dimensions.
    pub dimensions: Option<u32>,
}

/// A collective node: one member's part of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveNode {
    /// Index of the node in the graph.
    pub node: NodeIndex,
    /// Slot of the group in this graph.
    pub group: u32,
    /// Index of this call among the calls of its group slot, from 0 in program order.
    pub sequence: u32,
    /// Rank of the root, or `u32::MAX` if the group's first member is the root.
    pub root: u32,
    /// Kind of collective.
    pub kind: CollectiveKind,
    /// True if, in the recorded run, this member did not wait for the other members.
    pub eager: bool,
    /// True if the size is unknown; the node then takes its recorded duration.
    pub size_unknown: bool,
}

/// Bytes that one member of an all-to-all exchanges with each member of its group, in the group's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneMemberAlltoallPeerBytes {
    /// Index of the call in [`Graph::collective_calls`].
    pub call: u32,
    /// Bytes sent to each member; empty if unknown.
    pub send: Vec<u64>,
    /// Bytes received from each member; empty if unknown.
    pub receive: Vec<u64>,
}

/// One half of a message: a send or a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendOrReceiveNode {
    /// Index of the node in the graph.
    pub node: NodeIndex,
    /// Slot, in this graph, of the rank at the other end.
    pub peer: u32,
    /// Tag that distinguishes messages between the same two ranks.
    pub tag: i32,
    /// True if this is the receiving half.
    pub receive: bool,
    /// True if, in the recorded run, this end of the message did not wait for the other end.
    pub eager: bool,
    /// True if the size is unknown; the node then takes its recorded duration.
    pub size_unknown: bool,
}

/// Number of repairs made while the graph was built, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphRepairCounts {
    /// Number of control dependencies that were dropped because their predecessor does not exist.
    pub dangling_control: u64,
    /// Number of control dependencies that were dropped because a node depended on itself.
    pub self_control: u64,
    /// Number of control dependencies that were dropped because they close a cycle together with other dependencies.
    pub cyclic_control: u64,
    /// Number of dependencies that were merged because the trace states them more than once.
    pub duplicates: u64,
    /// Number of communication nodes that the trace marks as host work, but replays treat as communication.
    pub host_communication: u64,
}

/// A dependency graph. All ranks that do the same work share one graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    ids: Vec<u64>,
    name_of: Vec<u32>,
    kinds: Vec<NodeKind>,
    lane_of: Vec<u32>,
    recorded: Vec<Span>,
    sparse: OptionalNodeColumns,
    changes: Vec<NodeMemoryChanges>,
    /// Distinct kernels, as (shape, true for a backward pass).
    kernels: Vec<(KernelShape, bool)>,
    flops: Vec<u64>,
    bytes: Vec<u64>,
    /// One word for each node; its meaning depends on the node's type. For a collective or a message, it is the index
    /// in `calls` or `messages`. For unknown communication: a running index. For a kernel: the number format. For a
    /// load or a store: the direction, whether switches gather or reduce the access, and the memory.
    detail: Vec<u32>,
    successors: Csr,
    in_degree: Vec<u32>,
    names: StringArenaInterner,
    lanes: Vec<Lane>,
    groups: Vec<GroupSlotDimensions>,
    calls: Vec<CollectiveNode>,
    /// Bytes per member for each call that has unequal parts, in ascending order of calls.
    splits: Vec<OneMemberAlltoallPeerBytes>,
    messages: Vec<SendOrReceiveNode>,
    /// Number of nodes whose communication the trace does not specify.
    unknown_communication: u32,
    repairs: GraphRepairCounts,
    captured: Option<Span>,
    kernels_on_cpu: bool,
    dropped_kernels: u64,
    world_size: Option<u32>,
    captured_on: CaptureEnvironment,
    lane_names: Vec<(Lane, String)>,
    /// Names of the memories outside the NPU.
    remote_memories: Vec<String>,
    roles: GroupRoles,
    amounts: Option<JobSamplesAndModelFlops>,
    profiler: ProfilerCostFactsOfTrace,
    /// The distinct step numbers of nodes. A sparse column stores, for each node, the index of its step number in this
    /// list.
    steps: Vec<u64>,
    stacks: CallStacks,
}

/// `detail` of a kernel with an unknown number format.
const NO_DTYPE: u32 = u32::MAX >> 1;
/// Bit in `detail` that marks a kernel with unknown FLOPs.
const FLOPS_UNKNOWN: u32 = 1 << 31;
/// `detail` of a load that switches gather. [`REDUCED`] is the `detail` of a store that switches reduce.
const GATHERED: u32 = 1;
const REDUCED: u32 = 2;
/// `detail` of a store that switches do not reduce.
const STORED: u32 = 3;
/// Number of bits in `detail` that encode the direction and the gathering. The higher bits are the memory's index plus
/// 1, or 0 for an unnamed memory.
const ACCESS_BITS: u32 = 2;
const ACCESS: u32 = (1 << ACCESS_BITS) - 1;

impl Graph {
    /// Returns the number of nodes.
    #[inline]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns true if there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Returns the number of dependencies; duplicates count once.
    pub fn edge_count(&self) -> usize {
        self.successors.edge_count()
    }

    /// Iterates over the nodes in ascending order of ids.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = NodeIndex> + use<> {
        (0..self.ids.len() as u32).map(NodeIndex)
    }

    /// Returns the node's id in the file.
    pub fn id(&self, node: NodeIndex) -> u64 {
        self.ids[node.index()]
    }

    /// Returns the node's name.
    pub fn name(&self, node: NodeIndex) -> &str {
        self.names.get(self.name_of[node.index()])
    }

    /// Returns the index of the node's name in [`Graph::names`].
    #[inline]
    pub fn name_index(&self, node: NodeIndex) -> u32 {
        self.name_of[node.index()]
    }

    /// Returns the distinct names.
    pub fn names(&self) -> &StringArenaInterner {
        &self.names
    }

    /// Returns the node's type.
    #[inline]
    pub fn kind(&self, node: NodeIndex) -> NodeKind {
        self.kinds[node.index()]
    }

    /// Returns the node's lane, an index into [`Graph::lanes_in_order_of_first_use`].
    #[inline]
    pub fn lane(&self, node: NodeIndex) -> u32 {
        self.lane_of[node.index()]
    }

    /// Returns the lanes, in order of first use.
    pub fn lanes_in_order_of_first_use(&self) -> &[Lane] {
        &self.lanes
    }

    /// Returns the node's recorded duration, or zero if unknown.
    #[inline]
    pub fn recorded_duration(&self, node: NodeIndex) -> Span {
        self.recorded[node.index()]
    }

    /// Returns the bytes that the node allocates and frees, or `None` if it changes no memory.
    #[inline]
    pub fn memory_changes_of(&self, node: NodeIndex) -> Option<&NodeMemoryChanges> {
        let place = self.sparse.memory_of.get(node).checked_sub(1)?;
        Some(&self.changes[place as usize])
    }

    /// Returns the distinct memory changes of all nodes, in order of first use.
    pub fn distinct_memory_changes(&self) -> &[NodeMemoryChanges] {
        &self.changes
    }

    /// Returns the recorded end of the rank's last event, relative to the start of the job, if the trace states it.
    pub fn captured_end(&self) -> Option<Span> {
        self.captured
    }

    /// Returns true if the kernels are operators that were captured on a CPU.
    pub fn were_kernels_captured_on_cpu(&self) -> bool {
        self.kernels_on_cpu
    }

    /// Returns the number of ranks in the job, if the trace states it.
    pub fn world_size(&self) -> Option<u32> {
        self.world_size
    }

    /// Returns the device, host and software of the job's capture.
    pub fn capture_environment(&self) -> &CaptureEnvironment {
        &self.captured_on
    }

    /// Returns the lane's name in the trace, or `None` if the lane has no name.
    pub fn lane_name(&self, lane: Lane) -> Option<&str> {
        let named = self.lane_names.iter().find(|(named, _)| *named == lane);
        named.map(|(_, name)| &name[..])
    }

    /// Returns a kernel's number of floating-point operations, or zero if it is unknown.
    #[inline]
    pub fn flops(&self, node: NodeIndex) -> u64 {
        self.flops[node.index()]
    }

    /// Returns the number of bytes that the file states for a kernel, load, store, message or collective.
    #[inline]
    pub fn stated_bytes_of_node(&self, node: NodeIndex) -> u64 {
        self.bytes[node.index()]
    }

    /// Returns a kernel's class and shape, or `None` if they are unknown.
    #[inline]
    pub fn kernel(&self, node: NodeIndex) -> Option<KernelShape> {
        let place = self.sparse.kernel_of.get(node).checked_sub(1)?;
        Some(self.kernels[place as usize].0)
    }

    /// Returns true if the node is a kernel of the backward pass whose class and shape are known.
    pub fn is_backward_kernel(&self, node: NodeIndex) -> bool {
        let place = self.sparse.kernel_of.get(node).checked_sub(1);
        place.is_some_and(|place| self.kernels[place as usize].1)
    }

    /// Iterates over the distinct unbatched matrix products. Each item is (rows, columns, summed-over size) with its
    /// number of kernels. Forward and backward kernels are counted separately.
    pub fn count_distinct_gemms(&self) -> impl Iterator<Item = ([u64; 3], u64)> + '_ {
        let mut counts = vec![0; self.kernels.len()];
        for place in self
            .sparse
            .kernel_of
            .iter_stored_values()
            .filter(|place| **place > 0)
        {
            counts[*place as usize - 1] += 1;
        }
        let kernels = self.kernels.iter().zip(counts);
        kernels.filter_map(|((shape, _), count)| match *shape {
            KernelShape::Gemm { batch: 1, m, n, k } => Some(([m, n, k], count)),
            _ => None,
        })
    }

    /// Returns true if kernels have classes and shapes but no durations, as in a generated graph.
    pub fn has_kernel_shapes_but_no_durations(&self) -> bool {
        let timed =
            |(kind, span): (&NodeKind, &Span)| *kind == NodeKind::Compute && *span > Span::ZERO;
        let mut kernels = self.kinds.iter().zip(&self.recorded);
        !self.kernels.is_empty() && self.captured.is_none() && !kernels.any(timed)
    }

    /// Returns the number format in which a kernel computes, or `None` if unknown.
    pub fn dtype(&self, node: NodeIndex) -> Option<Dtype> {
        let detail = self.detail[node.index()] & !FLOPS_UNKNOWN;
        match self.kinds[node.index()] {
            NodeKind::Compute if detail != NO_DTYPE => Some(Dtype::ALL[detail as usize].0),
            _ => None,
        }
    }

    /// Returns true if the node is a kernel whose FLOPs are unknown.
    #[inline]
    pub fn flops_unknown(&self, node: NodeIndex) -> bool {
        let detail = self.detail[node.index()];
        self.kinds[node.index()] == NodeKind::Compute && detail & FLOPS_UNKNOWN != 0
    }

    /// Returns `Some(false)` for a load that switches gather, `Some(true)` for a store that switches reduce, and `None`
    /// for all other nodes.
    #[inline]
    pub fn in_switch(&self, node: NodeIndex) -> Option<bool> {
        match (self.kinds[node.index()], self.detail[node.index()] & ACCESS) {
            (NodeKind::RemoteMemory, GATHERED) => Some(false),
            (NodeKind::RemoteMemory, REDUCED) => Some(true),
            _ => None,
        }
    }

    /// Returns true if the node is a store, to local or remote memory.
    #[inline]
    pub fn is_store_node(&self, node: NodeIndex) -> bool {
        let detail = self.detail[node.index()];
        match self.kinds[node.index()] {
            NodeKind::LocalMemory | NodeKind::RemoteMemory => {
                matches!(detail & ACCESS, REDUCED | STORED)
            }
            _ => false,
        }
    }

    /// Returns the names of the remote memories that loads and stores access.
    pub fn remote_memories(&self) -> &[String] {
        &self.remote_memories
    }

    /// Returns the memory that a remote load or store accesses, as an index into [`Self::remote_memories`].
    #[inline]
    pub fn remote_memory(&self, node: NodeIndex) -> Option<u32> {
        match self.kinds[node.index()] {
            NodeKind::RemoteMemory => (self.detail[node.index()] >> ACCESS_BITS).checked_sub(1),
            _ => None,
        }
    }

    /// Iterates over the nodes that depend on `node`.
    #[inline]
    pub fn successors(&self, node: NodeIndex) -> impl ExactSizeIterator<Item = NodeIndex> + '_ {
        self.successors.row(node.0).iter().copied().map(NodeIndex)
    }

    /// Returns the successors of all nodes, in the form that petgraph's algorithms accept.
    pub fn successor_rows(&self) -> &Csr {
        &self.successors
    }

    /// Returns each node's number of dependencies.
    pub fn in_degrees(&self) -> &[u32] {
        &self.in_degree
    }

    /// Returns a collective node's entry in [`Self::collective_calls`].
    #[inline]
    pub fn collective_of(&self, node: NodeIndex) -> &CollectiveNode {
        debug_assert_eq!(
            self.kind(node),
            NodeKind::Collective,
            "only collectives have calls"
        );
        &self.calls[self.detail[node.index()] as usize]
    }

    /// Returns a collective node's index in [`Graph::collective_calls`].
    #[inline]
    pub fn index_of_collective_call(&self, node: NodeIndex) -> usize {
        debug_assert_eq!(
            self.kind(node),
            NodeKind::Collective,
            "only collectives have calls"
        );
        self.detail[node.index()] as usize
    }

    /// Returns a message node's index in [`Graph::messages`].
    #[inline]
    pub fn message_index(&self, node: NodeIndex) -> usize {
        debug_assert!(matches!(
            self.kind(node),
            NodeKind::Send | NodeKind::Receive
        ));
        self.detail[node.index()] as usize
    }

    /// Returns the total number of calls, messages and nodes with unknown communication.
    pub fn communication_count(&self) -> usize {
        self.calls.len() + self.messages.len() + self.unknown_communication as usize
    }

    /// Returns a communicating node's index among all communicating nodes of the graph, which are ordered as calls,
    /// messages, then unknown communication.
    #[inline]
    pub fn communication_index(&self, node: NodeIndex) -> usize {
        let detail = self.detail[node.index()] as usize;
        match self.kind(node) {
            NodeKind::Collective => detail,
            NodeKind::Communication => self.calls.len() + self.messages.len() + detail,
            _ => self.calls.len() + self.message_index(node),
        }
    }

    /// Returns the number of kernels that were launched during the capture but dropped by the profiler.
    pub fn dropped_kernels(&self) -> u64 {
        self.dropped_kernels
    }

    /// Returns true if the size of a message or collective is unknown. The node then takes its recorded duration.
    #[inline]
    pub fn size_unknown(&self, node: NodeIndex) -> bool {
        match self.kind(node) {
            NodeKind::Collective => self.collective_of(node).size_unknown,
            NodeKind::Send | NodeKind::Receive => {
                self.messages[self.message_index(node)].size_unknown
            }
            _ => false,
        }
    }

    /// Returns the collective calls in program order.
    pub fn collective_calls(&self) -> &[CollectiveNode] {
        &self.calls
    }

    /// Returns true if every call in the trace has equal parts.
    pub fn has_only_equal_splits(&self) -> bool {
        self.splits.is_empty()
    }

    /// Returns the bytes that a call exchanges with each member, if the trace states unequal parts.
    pub fn splits_of_call(&self, call: u32) -> Option<&OneMemberAlltoallPeerBytes> {
        let found = self
            .splits
            .binary_search_by_key(&call, |splits| splits.call);
        found.ok().map(|found| &self.splits[found])
    }

    /// Returns the halves of messages in program order.
    pub fn messages(&self) -> &[SendOrReceiveNode] {
        &self.messages
    }

    /// Returns the group slots that nodes use; an instance binds the slots to groups.
    pub fn group_slots(&self) -> &[GroupSlotDimensions] {
        &self.groups
    }

    /// Returns the roles of groups that the trace states.
    pub fn group_roles(&self) -> &GroupRoles {
        &self.roles
    }

    /// Returns the work of the whole job, if the trace states it.
    pub fn job_samples_and_flops(&self) -> Option<JobSamplesAndModelFlops> {
        self.amounts
    }

    /// Returns the trace's facts about its profiler, and whether the profiler's cost was subtracted from the graph's
    /// times.
    pub fn facts_about_profiler(&self) -> ProfilerCostFactsOfTrace {
        self.profiler
    }

    /// Returns the number of repairs made while the graph was built.
    pub fn repair_counts(&self) -> GraphRepairCounts {
        self.repairs
    }

    /// Returns a hash of the graph. Equal graphs have equal hashes, and different graphs rarely do.
    pub fn fingerprint(&self) -> u64 {
        stable_hash(&(
            &self.ids,
            &self.name_of,
            &self.recorded,
            (&self.sparse, &self.changes, &self.kernels),
            (self.captured, self.kernels_on_cpu),
            &self.flops,
            &self.bytes,
            &self.in_degree,
        ))
    }

    /// Returns how many bytes the graph occupies on the heap, without names.
    pub fn heap_bytes(&self) -> usize {
        fn vec_heap_bytes<T>(v: &Vec<T>) -> usize {
            v.capacity() * size_of::<T>()
        }
        vec_heap_bytes(&self.ids)
            + vec_heap_bytes(&self.name_of)
            + vec_heap_bytes(&self.kinds)
            + vec_heap_bytes(&self.lane_of)
            + vec_heap_bytes(&self.recorded)
            + self.sparse.heap_bytes()
            + vec_heap_bytes(&self.changes)
            + vec_heap_bytes(&self.kernels)
            + vec_heap_bytes(&self.flops)
            + vec_heap_bytes(&self.bytes)
            + vec_heap_bytes(&self.detail)
            + self.successors.heap_bytes()
            + vec_heap_bytes(&self.in_degree)
            + vec_heap_bytes(&self.calls)
            + vec_heap_bytes(&self.messages)
    }
}
