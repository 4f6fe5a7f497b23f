//! The lanes on which a rank's nodes ran.

use super::class::InspectedNodeType;
use chakram_trace::format::{GroupName, Op};
use chakram_trace::graph::captured_timeline::NONE;
use chakram_trace::graph::{DistinctKeyInterner, Lane, RawTrace};
use std::collections::BTreeMap;
use std::fmt;

/// A group as a node records it: the name, and the mask of participating dimensions (`None` if all dimensions
/// participate).
pub type GroupNameAndDimensionMask<'a> = (GroupName<'a>, Option<u32>);

/// Returns the name of a group, as shown to users.
pub fn group_label(group: GroupName<'_>) -> String {
    match group {
        GroupName::World => "all ranks".to_owned(),
        GroupName::Number(number) => number.to_string(),
        GroupName::Text(text) => text.to_owned(),
    }
}

/// A lane. Tables show lanes in the order of these variants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LaneKey {
    /// A host thread.
    Host(Option<i64>),
    /// Kernels without a recorded stream.
    Compute,
    /// A stream of the NPU.
    Stream(i64),
    /// Loads and stores without a recorded stream.
    Memory,
    /// Collectives without a recorded stream, by group.
    Group(String),
    /// Sends without a recorded stream, by receiving rank.
    Peer(u32),
    /// No lane: receives and empty nodes occupy none.
    None,
}

impl fmt::Display for LaneKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Host(None) => "host".to_owned(),
            Self::Host(Some(thread)) => format!("host {thread}"),
            Self::Compute => "compute".to_owned(),
            Self::Stream(stream) => format!("stream {stream}"),
            Self::Memory => "memory".to_owned(),
            Self::Group(group) => format!("collectives of {group}"),
            Self::Peer(peer) => format!("sends to rank {peer}"),
            Self::None => "no lane".to_owned(),
        };
        f.pad(&text)
    }
}

/// A rank's lanes, assigned to nodes by the rules of replays.
#[derive(Debug)]
pub struct NodeLaneTable<'a> {
    /// Index of each node's lane in `keys`.
    of: Vec<u32>,
    /// The lanes, in order of first use. The value of a lane is the index in `groups` for a group, and the rank for a
    /// peer.
    keys: Vec<Lane>,
    /// Groups, in order of first use.
    groups: Vec<GroupNameAndDimensionMask<'a>>,
    names: BTreeMap<(bool, i64), String>,
}

impl<'a> NodeLaneTable<'a> {
    /// Assigns the nodes of `raw` to lanes.
    pub fn new(raw: &RawTrace<'a>) -> Self {
        let mut lanes = DistinctKeyInterner::default();
        let mut groups = DistinctKeyInterner::default();
        let mut of = Vec::with_capacity(raw.nodes.len());
        for item in &raw.nodes {
            let view = &item.view;
            let stream = |other: Lane| view.lane.map_or(other, Lane::Stream);
            let lane = match view.op {
                Op::NoOp => Lane::None,
                Op::Host => Lane::Host(view.lane),
                Op::Compute { .. } | Op::Communication { .. } => stream(Lane::Compute),
                Op::Memory { .. } => stream(Lane::Memory),
                // As in a replay, a posted receive occupies no lane.
                Op::Message { receive: true, .. } => Lane::None,
                Op::Message { peer, .. } => stream(Lane::Peer(peer)),
                Op::Collective {
                    group, dimensions, ..
                } => stream(Lane::Group(groups.intern_key((group, dimensions)))),
            };
            of.push(lanes.intern_key(lane));
        }
        let named = raw.metadata.lanes.iter();
        Self {
            of,
            keys: lanes.into_keys(),
            groups: groups.into_keys(),
            names: named
                .map(|(host, number, name)| ((*host, *number), name.clone()))
                .collect(),
        }
    }

    /// Returns the number of lanes in use, counting [`LaneKey::None`] as one lane.
    pub fn lane_count(&self) -> usize {
        self.keys.len()
    }

    /// Returns the index of the node's lane.
    pub fn lane_of_node(&self, node: u32) -> u32 {
        self.of[node as usize]
    }

    /// Returns the lane that a node has to itself while it runs; [`NONE`] if there is no such lane.
    pub fn find_lane_node_has_to_itself(&self, node: u32) -> u32 {
        let lane = self.lane_of_node(node);
        match self.keys[lane as usize] {
            Lane::None => NONE,
            _ => lane,
        }
    }

    /// Returns the lane with this index, as shown in tables.
    pub fn lane_key_of_index(&self, lane: u32) -> LaneKey {
        match self.keys[lane as usize] {
            Lane::Host(thread) => LaneKey::Host(thread),
            Lane::Stream(stream) => LaneKey::Stream(stream),
            Lane::Compute => LaneKey::Compute,
            Lane::Memory => LaneKey::Memory,
            Lane::Group(group) => LaneKey::Group(group_label(self.groups[group as usize].0)),
            Lane::Peer(peer) => LaneKey::Peer(peer),
            Lane::None => LaneKey::None,
        }
    }

    /// Returns the name that the file gives to a lane, if any.
    pub fn lane_name(&self, lane: u32) -> Option<&str> {
        let key = match self.keys[lane as usize] {
            Lane::Host(Some(thread)) => (true, thread),
            Lane::Stream(stream) => (false, stream),
            _ => return None,
        };
        self.names.get(&key).map(|name| &name[..])
    }

    /// Returns true if a node of this type starts only after all other events at the same time, as a collective does.
    pub fn class_starts_after_same_time_events(class: InspectedNodeType) -> bool {
        matches!(class, InspectedNodeType::Collective(_))
    }
}
