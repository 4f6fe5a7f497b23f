//! Digest of a trace: collectives, messages, and other facts on which the ranks must agree.

use super::NONE;
use super::defects::DefectLocationInFile;
use super::dependencies::NodeProgramOrderOrCycle;
use super::node::{NodeValidationRole, TraceReducedForValidation};
use super::wait::OneTraceWaitGraph;
use chakram_trace::format::groups::DeclaredGroups;
use chakram_trace::format::{CollectiveKind, GroupName, Op, escape_and_shorten_name};
use chakram_trace::graph::{DistinctKeyInterner, StringArenaInterner};
use chakram_trace::matching::TraceCallsByGroupSlot;

/// Facts about a node that remain after its record is dropped from memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeIdBytesAndPlace {
    pub id: u64,
    /// Size in bytes, as recorded in the file.
    pub bytes: u64,
    pub record: u32,
    name: u32,
    /// Position of the node in program order. Before the program order is known, this is the node's index in the raw
    /// trace.
    pub place: u32,
}

/// A member's part in a collective.
#[derive(Clone, Copy, Debug)]
pub(super) struct OneMemberCollectiveCallRecord {
    pub node: NodeIdBytesAndPlace,
    pub slot: u32,
    /// Rank of the root, or [`NONE`] for the group's first member.
    pub root: u32,
    pub kind: CollectiveKind,
}

/// A send or receive, which is one end of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct OneSendOrReceiveRecord {
    pub node: NodeIdBytesAndPlace,
    /// The rank at the other end of the message.
    pub peer: u32,
    /// The node's own rank, if recorded; otherwise [`NONE`].
    pub own: u32,
    pub tag: i32,
    pub receive: bool,
}

/// A load whose data switches gather, or a store whose data switches reduce.
#[derive(Clone, Copy, Debug)]
pub(super) struct InSwitchMemoryAccess {
    pub node: NodeIdBytesAndPlace,
    pub store: bool,
}

/// A group, as identified in a trace. The fields are the name (`None` for all ranks), and the mask of participating
/// machine dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct GroupReferenceWithDimensionMask {
    pub name: Option<String>,
    pub dimensions: Option<u32>,
}

/// The facts in a trace on which the ranks must agree.
#[derive(Debug, Default)]
pub(super) struct CommunicationDigest {
    /// True if the digest is complete and sorted in program order.
    pub whole: bool,
    /// Collectives, in program order.
    pub calls: Vec<OneMemberCollectiveCallRecord>,
    pub messages: Vec<OneSendOrReceiveRecord>,
    /// In-switch accesses, in id order.
    pub accesses: Vec<InSwitchMemoryAccess>,
    pub slots: Vec<GroupReferenceWithDimensionMask>,
    /// Calls by slot, which is the index of a group in `slots`.
    pub calls_of: TraceCallsByGroupSlot,
    pub declared: DeclaredGroups,
    /// Graph of the waits between calls and messages. The graph is empty if the digest is incomplete.
    pub waits: OneTraceWaitGraph,
    names: StringArenaInterner,
}

/// Collects a digest from the nodes of a trace, in the order of the raw trace.
#[derive(Debug, Default)]
pub(super) struct CommunicationDigestCollector {
    facts: CommunicationDigest,
    slots: DistinctKeyInterner<GroupReferenceWithDimensionMask>,
    /// Group slot of the previous call. Most calls use the same group as the previous call, and the stored slot saves
    /// them copying the group's name.
    last: Option<u32>,
}

impl CommunicationDigestCollector {
    /// Adds node `i` if it communicates or accesses memory through switches.
    #[inline]
    pub fn add_node(&mut self, raw: &TraceReducedForValidation<'_>, i: u32) {
        if let NodeValidationRole::Call(part)
        | NodeValidationRole::Message(part)
        | NodeValidationRole::Access(part) = raw.nodes[i as usize].view.role
        {
            self.add_digest_of_communication_node(raw, i, part);
        }
    }

    fn add_digest_of_communication_node(
        &mut self,
        raw: &TraceReducedForValidation<'_>,
        i: u32,
        part: u32,
    ) {
        let (name, op) = raw.retained.parts[part as usize];
        let mut kept = |bytes| self.node_id_bytes_and_place(raw, i, name, bytes);
        match op {
            Op::Collective {
                kind,
                bytes,
                group,
                root,
                dimensions,
                ..
            } => {
                let call = OneMemberCollectiveCallRecord {
                    node: kept(bytes),
                    slot: self.group_slot_of(group, dimensions),
                    root: root.unwrap_or(NONE),
                    kind,
                };
                self.facts.calls.push(call);
            }
            Op::Message {
                receive,
                peer,
                tag,
                bytes,
                own,
                ..
            } => {
                let message = OneSendOrReceiveRecord {
                    node: kept(bytes),
                    peer,
                    own: own.unwrap_or(NONE),
                    tag,
                    receive,
                };
                self.facts.messages.push(message);
            }
            Op::Memory { store, bytes, .. } => {
                let node = kept(bytes);
                self.facts
                    .accesses
                    .push(InSwitchMemoryAccess { node, store });
            }
            Op::NoOp | Op::Host | Op::Compute { .. } | Op::Communication { .. } => {}
        }
    }

    fn group_slot_of(&mut self, group: GroupName<'_>, dimensions: Option<u32>) -> u32 {
        let known = self.last.map(|slot| &self.slots.keys()[slot as usize]);
        let same = known.is_some_and(|known| {
            let named = match (&known.name, group) {
                (None, GroupName::World) => true,
                (Some(name), GroupName::Text(text)) => name == text,
                _ => false,
            };
            named && known.dimensions == dimensions
        });
        if let Some(last) = self.last.filter(|_| same) {
            return last;
        }
        let name = group.to_text();
        let slot = self
            .slots
            .intern_key(GroupReferenceWithDimensionMask { name, dimensions });
        self.last = Some(slot);
        slot
    }

    fn node_id_bytes_and_place(
        &mut self,
        raw: &TraceReducedForValidation<'_>,
        i: u32,
        name: &str,
        bytes: u64,
    ) -> NodeIdBytesAndPlace {
        /// Maximum number of bytes stored for a name; messages show fewer.
        const KEPT: usize = 256;
        let item = &raw.nodes[i as usize];
        let mut ends = (0..=name.len().min(KEPT)).rev();
        let end = ends.find(|&end| name.is_char_boundary(end));
        let name = &name[..end.unwrap_or(0)];
        NodeIdBytesAndPlace {
            id: item.view.id,
            bytes,
            record: u32::try_from(item.record.number).unwrap_or(u32::MAX),
            // If the name table is full, further names are omitted.
            name: self.facts.names.intern_name(name).unwrap_or(NONE),
            place: i,
        }
    }

    /// Returns the declared groups. The caller adds the groups of metadata nodes.
    pub fn declared_groups_mut(&mut self) -> &mut DeclaredGroups {
        &mut self.facts.declared
    }

    /// Returns the digest in program order. If `missing` is true, the trace lacks some parts, so the digest is marked
    /// as incomplete.
    pub fn into_digest(
        mut self,
        order: &NodeProgramOrderOrCycle,
        missing: bool,
    ) -> CommunicationDigest {
        let facts = &mut self.facts;
        facts.whole = !missing && !matches!(order, NodeProgramOrderOrCycle::Cyclic);
        if let NodeProgramOrderOrCycle::Places(places) = order {
            let nodes = facts.calls.iter_mut().map(|call| &mut call.node);
            for node in nodes.chain(facts.messages.iter_mut().map(|m| &mut m.node)) {
                node.place = places[node.place as usize];
            }
            facts.calls.sort_unstable_by_key(|call| call.node.place);
            facts.messages.sort_unstable_by_key(|m| m.node.place);
        }
        facts.slots = self.slots.into_keys();
        let calls = facts.calls.iter().map(|call| call.slot).zip(0..);
        facts.calls_of = TraceCallsByGroupSlot::new(facts.slots.len(), calls);
        facts.names.free_hash_table();
        self.facts
    }
}

impl CommunicationDigest {
    /// Returns the location of a node in the trace.
    pub fn location_of_node(&self, node: &NodeIdBytesAndPlace) -> DefectLocationInFile {
        DefectLocationInFile {
            node: Some(node.id),
            name: match node.name {
                NONE => String::new(),
                name => escape_and_shorten_name(self.names.get(name)),
            },
            record: Some(node.record as usize),
            offset: None,
        }
    }

    /// Describes the first message or collective after `place` in program order or, if `place` is `None`, the first one
    /// in the trace.
    pub fn describe_next_communication(&self, place: Option<u32>) -> String {
        let behind = |node: &NodeIdBytesAndPlace| place.is_some_and(|place| node.place <= place);
        let call = self.calls.partition_point(|call| behind(&call.node));
        let message = self.messages.partition_point(|m| behind(&m.node));
        match (self.calls.get(call), self.messages.get(message)) {
            (Some(call), None) => self.call_text(call),
            (Some(call), Some(message)) if call.node.place < message.node.place => {
                self.call_text(call)
            }
            (_, Some(message)) => self.describe_send_or_receive(message),
            (None, None) => "no further communication".to_owned(),
        }
    }

    /// Formats a call, as in ``node 17 `x` (record 18), all-reduce of 8 bytes``.
    pub fn call_text(&self, call: &OneMemberCollectiveCallRecord) -> String {
        let root = if call.kind.has_root() && call.root != NONE {
            format!(" rooted at rank {}", call.root)
        } else {
            String::new()
        };
        let (site, bytes) = (self.location_of_node(&call.node), call.node.bytes);
        format!("{site}, {} of {bytes} bytes{root}", call.kind)
    }

    /// Formats a message, as in ``node 17 `x` (record 18), send of 8 bytes to rank 3 with tag 0``.
    pub fn describe_send_or_receive(&self, message: &OneSendOrReceiveRecord) -> String {
        let (what, end) = if message.receive {
            ("receive", "from")
        } else {
            ("send", "to")
        };
        format!(
            "{}, {what} of {} bytes {end} rank {} with tag {}",
            self.location_of_node(&message.node),
            message.node.bytes,
            message.peer,
            message.tag
        )
    }
}
