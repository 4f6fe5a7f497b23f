//! The compact form of a trace: flat arrays, indexed by [`NodeIndex`].
//!
//! A graph says what ranks of one kind do, not which rank does it. Peers and groups are *slots*,
//! numbered in order of first use; an instance binds them. Ranks that differ only in their peers and
//! groups, and in what these are called, therefore share one graph. Nodes stand in ascending order of their ids, so nothing depends
//! on the order of records in a file.
//!
//! A node takes 53 bytes (61 with its price for one NPU class, 65 with the state of one run), an
//! edge 4, a collective 24 more, a message 20 more, besides names. If any node has a delay, each takes
//! 8 bytes more, and so with waiting; if any changes memory, each takes 4, and every change that differs
//! from the others 80.

use crate::ids::NodeIndex;
pub use crate::trace::groups::Declared as DeclaredGroups;
pub use crate::trace::roles::Roles;
use crate::trace::{CollectiveKind, Dtype, MemoryChanges};
use crate::units::Span;

pub mod around;
pub mod builder;
pub mod cycle;
pub mod dot;
mod et;
mod intern;
pub mod large;
pub mod outline;
pub mod recorded;
mod rows;
mod visit;

pub use builder::{Binding, Dependencies, GraphBuilder};
pub use intern::{IdMap, Interner, Names, fingerprint};
pub use outline::Outline;
pub use recorded::Recorded;
pub use rows::Rows;
pub use visit::BothDirections;

/// What kind of thing a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Passes its dependencies on, in no time.
    Nothing,
    /// Work on the host.
    Host,
    /// A kernel.
    Compute,
    /// A load or store in the NPU's own memory.
    LocalMemory,
    /// A load or store beyond the NPU.
    RemoteMemory,
    /// The sending half of a message.
    Send,
    /// The receiving half of a message.
    Receive,
    /// A member's part of a collective.
    Collective,
}

/// A lane as the graph names it: a stream or thread on which nodes run in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// A host thread, `None` where the trace names none.
    Host(Option<i64>),
    /// A stream of the NPU.
    Stream(i64),
    /// Kernels whose stream the trace does not name.
    Compute,
    /// Loads and stores whose stream the trace does not name.
    Memory,
    /// Collectives of one group slot whose stream the trace does not name.
    Group(u32),
    /// Sends to one peer slot whose stream the trace does not name.
    Peer(u32),
    /// Where nothing has to wait its turn: receives, and nodes that do nothing.
    None,
}

/// A group as a graph refers to it; which group it is, the [`Binding`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupSlot {
    /// Which of the machine's dimensions take part, as a mask; `None` is all of them.
    pub dimensions: Option<u32>,
}

/// A member's part of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The node.
    pub node: NodeIndex,
    /// Which group slot.
    pub group: u32,
    /// The how-manieth call of this slot in program order, from 0.
    pub sequence: u32,
    /// The root's rank, `u32::MAX` for the group's first member.
    pub root: u32,
    /// Which collective.
    pub kind: CollectiveKind,
    /// Whether this member waited for none of the others where it was recorded.
    pub eager: bool,
}

/// One half of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The node.
    pub node: NodeIndex,
    /// Which peer slot is the other end.
    pub peer: u32,
    /// The tag.
    pub tag: i32,
    /// Whether this half receives.
    pub receive: bool,
    /// Whether this half did not wait for the other where it was recorded.
    pub eager: bool,
}

/// What was repaired while the graph was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// Control dependencies on nodes that do not exist, dropped.
    pub dangling_control: u64,
    /// Control dependencies of nodes on themselves, dropped.
    pub self_control: u64,
    /// Control dependencies dropped because together with the others they form a cycle.
    pub cyclic_control: u64,
    /// Dependencies named more than once, merged.
    pub duplicates: u64,
    /// Communication nodes marked as host work that are replayed as communication.
    pub host_communication: u64,
}

/// What ranks of one kind do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    ids: Vec<u64>,
    name_of: Vec<u32>,
    kinds: Vec<Kind>,
    lane_of: Vec<u32>,
    recorded: Vec<Span>,
    /// Empty when no node has a delay.
    delays: Vec<Span>,
    /// Empty when no node waited.
    waits: Vec<Span>,
    /// Index into `changes`, plus one; zero where a node changes no memory. Empty when none does.
    memory_of: Vec<u32>,
    changes: Vec<MemoryChanges>,
    flops: Vec<u64>,
    bytes: Vec<u64>,
    /// Index into `calls` or `messages`, the number format of a kernel, or whether it stores and what switches
    /// do on the way of a load or store.
    detail: Vec<u32>,
    successors: Rows,
    in_degree: Vec<u32>,
    names: Names,
    lanes: Vec<Lane>,
    groups: Vec<GroupSlot>,
    calls: Vec<Call>,
    messages: Vec<Message>,
    repairs: Repairs,
    captured: Option<Span>,
    lane_names: Vec<(Lane, String)>,
    roles: Roles,
}

/// `detail` of a kernel whose format the trace does not say.
const NO_DTYPE: u32 = u32::MAX;
/// `detail` of a load that switches gather, and of a store that they reduce.
const GATHERED: u32 = 1;
const REDUCED: u32 = 2;
/// `detail` of any other store.
const STORED: u32 = 3;

impl Graph {
    /// How many nodes there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there is no node.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// How many dependencies there are, after merging.
    pub fn edges(&self) -> usize {
        self.successors.len()
    }

    /// Every node in ascending order of its id.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = NodeIndex> + use<> {
        (0..self.ids.len() as u32).map(NodeIndex)
    }

    /// The node's id in the file.
    pub fn id(&self, node: NodeIndex) -> u64 {
        self.ids[node.index()]
    }

    /// The node's name.
    pub fn name(&self, node: NodeIndex) -> &str {
        self.names.get(self.name_of[node.index()])
    }

    /// The number of the node's name among [`Graph::names`].
    #[inline]
    pub fn name_index(&self, node: NodeIndex) -> u32 {
        self.name_of[node.index()]
    }

    /// The distinct names.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// What kind of thing the node does.
    #[inline]
    pub fn kind(&self, node: NodeIndex) -> Kind {
        self.kinds[node.index()]
    }

    /// The node's lane, an index into [`Graph::lanes`].
    #[inline]
    pub fn lane(&self, node: NodeIndex) -> u32 {
        self.lane_of[node.index()]
    }

    /// The lanes, in order of first use.
    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// How long the node took where it was recorded; zero when unknown.
    #[inline]
    pub fn recorded(&self, node: NodeIndex) -> Span {
        self.recorded[node.index()]
    }

    /// Time of the host from the completion of all that the node waits for, or from the release of
    /// the rank if that is nothing, until it is ready.
    #[inline]
    pub fn delay(&self, node: NodeIndex) -> Span {
        let delay = self.delays.get(node.index());
        delay.copied().unwrap_or(Span::ZERO)
    }

    /// Whether any node has a delay.
    pub fn has_delays(&self) -> bool {
        !self.delays.is_empty()
    }

    /// How long a communication node waited for its peers where it was recorded, before and on top
    /// of [`Self::recorded`].
    #[inline]
    pub fn wait(&self, node: NodeIndex) -> Span {
        let wait = self.waits.get(node.index());
        wait.copied().unwrap_or(Span::ZERO)
    }

    /// What the node allocates and frees in the memory of its NPU; `None` if that is nothing.
    #[inline]
    pub fn memory(&self, node: NodeIndex) -> Option<&MemoryChanges> {
        let place = self.memory_of.get(node.index())?.checked_sub(1)?;
        Some(&self.changes[place as usize])
    }

    /// The changes of memory that differ, in order of first use; none when no node changes any.
    pub fn memory_changes(&self) -> &[MemoryChanges] {
        &self.changes
    }

    /// When the rank's last event ended where it was recorded, counted from the start of the job, if
    /// the trace says.
    pub fn captured(&self) -> Option<Span> {
        self.captured
    }

    /// What the trace calls a lane, if it does.
    pub fn lane_name(&self, lane: Lane) -> Option<&str> {
        let named = self.lane_names.iter().find(|(named, _)| *named == lane);
        named.map(|(_, name)| &name[..])
    }

    /// Operations of a kernel; zero when unknown.
    #[inline]
    pub fn flops(&self, node: NodeIndex) -> u64 {
        self.flops[node.index()]
    }

    /// Bytes of a kernel, load, store, message or collective, as the file says them.
    #[inline]
    pub fn bytes(&self, node: NodeIndex) -> u64 {
        self.bytes[node.index()]
    }

    /// The format a kernel computes in, if known.
    pub fn dtype(&self, node: NodeIndex) -> Option<Dtype> {
        let detail = self.detail[node.index()];
        match self.kinds[node.index()] {
            Kind::Compute if detail != NO_DTYPE => Some(Dtype::ALL[detail as usize].0),
            _ => None,
        }
    }

    /// Whether the node stores, if it is a load that switches gather or a store that they reduce.
    #[inline]
    pub fn in_switch(&self, node: NodeIndex) -> Option<bool> {
        match (self.kinds[node.index()], self.detail[node.index()]) {
            (Kind::RemoteMemory, GATHERED) => Some(false),
            (Kind::RemoteMemory, REDUCED) => Some(true),
            _ => None,
        }
    }

    /// Whether the node is a store, in the NPU's own memory or beyond it.
    #[inline]
    pub fn stores(&self, node: NodeIndex) -> bool {
        let detail = self.detail[node.index()];
        match self.kinds[node.index()] {
            Kind::LocalMemory | Kind::RemoteMemory => matches!(detail, REDUCED | STORED),
            _ => false,
        }
    }

    /// The nodes that wait for `node`.
    #[inline]
    pub fn successors(&self, node: NodeIndex) -> impl ExactSizeIterator<Item = NodeIndex> + '_ {
        self.successors.row(node.0).iter().copied().map(NodeIndex)
    }

    /// The successors of all nodes by index, which algorithms of petgraph walk.
    pub fn rows(&self) -> &Rows {
        &self.successors
    }

    /// For each node, how many nodes it waits for.
    pub fn in_degrees(&self) -> &[u32] {
        &self.in_degree
    }

    /// The part that a collective node plays.
    #[inline]
    pub fn call(&self, node: NodeIndex) -> &Call {
        debug_assert_eq!(
            self.kind(node),
            Kind::Collective,
            "only collectives have calls"
        );
        &self.calls[self.detail[node.index()] as usize]
    }

    /// The index of a collective node among [`Graph::calls`].
    #[inline]
    pub fn call_index(&self, node: NodeIndex) -> usize {
        debug_assert_eq!(
            self.kind(node),
            Kind::Collective,
            "only collectives have calls"
        );
        self.detail[node.index()] as usize
    }

    /// The index of a message node among [`Graph::messages`].
    #[inline]
    pub fn message_index(&self, node: NodeIndex) -> usize {
        debug_assert!(matches!(self.kind(node), Kind::Send | Kind::Receive));
        self.detail[node.index()] as usize
    }

    /// All collective calls, in program order.
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// All halves of messages, in program order.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The groups that the nodes refer to; an instance binds them.
    pub fn group_slots(&self) -> &[GroupSlot] {
        &self.groups
    }

    /// What groups are for, as the trace says.
    pub fn roles(&self) -> &Roles {
        &self.roles
    }

    /// What was repaired while the graph was built.
    pub fn repairs(&self) -> Repairs {
        self.repairs
    }

    /// A number that equal graphs share and different ones almost never do.
    pub fn fingerprint(&self) -> u64 {
        fingerprint(&(
            &self.ids,
            &self.name_of,
            &self.recorded,
            (&self.delays, &self.waits, self.captured),
            (&self.memory_of, &self.changes),
            &self.flops,
            &self.bytes,
            &self.in_degree,
        ))
    }

    /// Bytes held on the heap, without names.
    pub fn heap_bytes(&self) -> usize {
        fn size<T>(v: &Vec<T>) -> usize {
            v.capacity() * size_of::<T>()
        }
        size(&self.ids)
            + size(&self.name_of)
            + size(&self.kinds)
            + size(&self.lane_of)
            + size(&self.recorded)
            + size(&self.delays)
            + size(&self.waits)
            + size(&self.memory_of)
            + size(&self.changes)
            + size(&self.flops)
            + size(&self.bytes)
            + size(&self.detail)
            + self.successors.heap_bytes()
            + size(&self.in_degree)
            + size(&self.calls)
            + size(&self.messages)
    }
}
