//! The node fields that are compared.

mod compare;

pub(super) use compare::compare_nodes;

use super::value::NodeFieldValue;
use chakram_trace::format::{GroupName, MemoryLocation, Op, escape_and_shorten_name};
use std::fmt;

/// A field of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeField {
    /// Type of the node (compute, memory, message and so on).
    Type,
    /// Name of the node.
    Name,
    /// Stream or thread number.
    Lane,
    /// True if the node is host work.
    Host,
    /// The rank at the other end of a message.
    Peer,
    /// The node's own rank, which some sends and receives record.
    Own,
    /// Tag of a message.
    Tag,
    /// Group of a collective.
    Group,
    /// Root of a collective.
    Root,
    /// Mask of the machine dimensions that the collective uses.
    Dimensions,
    /// Number format in which the node's elements are stored.
    Dtype,
    /// True if switches gather or reduce the data.
    InSwitch,
    /// True if the captured node ended without waiting for its peers.
    Eager,
    /// Bytes that the node moves in memory or communicates.
    Bytes,
    /// Number of floating-point operations.
    Flops,
    /// Recorded duration.
    Duration,
    /// Host time (launch overhead) before the node.
    Delay,
    /// Recorded time that the node spent waiting for its peers.
    Wait,
    /// Estimated time that the profiler added to the node.
    Profiler,
    /// Recorded duration in whole microseconds. Compared only if the more precise durations agree.
    Micros,
    /// Recorded start time.
    Start,
    /// Part of the inputs or outputs: values, shapes or types.
    Io(&'static str),
    /// An attribute that is not decoded into any other field.
    Attribute(String),
    /// A field that the format does not define, identified by its number.
    Unknown(u32),
}

/// Aspect of a job that a difference affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StructureTimeOrBytesAspect {
    /// Nodes, dependencies, and properties of nodes except times and sizes.
    Structure,
    /// Durations, delays and start times.
    Time,
    /// Bytes and floating-point operations.
    Bytes,
}

/// A node's field with different values in the two traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFieldChange {
    /// The field that differs.
    pub field: NodeField,
    /// Value in the first trace.
    pub before: NodeFieldValue,
    /// Value in the second trace.
    pub after: NodeFieldValue,
}

impl NodeField {
    /// Returns the aspect of the job that a change of this field affects.
    pub fn aspect_of_field(&self) -> StructureTimeOrBytesAspect {
        match self {
            Self::Duration
            | Self::Delay
            | Self::Wait
            | Self::Profiler
            | Self::Micros
            | Self::Start => StructureTimeOrBytesAspect::Time,
            Self::Bytes | Self::Flops => StructureTimeOrBytesAspect::Bytes,
            _ => StructureTimeOrBytesAspect::Structure,
        }
    }

    /// Returns the field's unit for machine-readable output, or an empty string if it has none.
    pub fn name_of_unit(&self) -> &'static str {
        match self {
            Self::Duration | Self::Delay | Self::Wait | Self::Profiler => "ps",
            Self::Micros | Self::Start => "us",
            Self::Bytes => "bytes",
            Self::Flops => "flops",
            _ => "",
        }
    }
}

impl fmt::Display for NodeField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Type => "type",
            Self::Name => "name",
            Self::Lane => "lane",
            Self::Host => "host",
            Self::Peer => "peer",
            Self::Own => "own rank",
            Self::Tag => "tag",
            Self::Group => "group",
            Self::Root => "root",
            Self::Dimensions => "dimensions",
            Self::Dtype => "dtype",
            Self::InSwitch => "in_switch",
            Self::Eager => "eager",
            Self::Bytes => "bytes",
            Self::Flops => "FLOPs",
            Self::Duration => "duration",
            Self::Delay => "delay",
            Self::Wait => "wait",
            Self::Profiler => "profiler",
            Self::Micros => "duration_micros",
            Self::Start => "start_time_micros",
            Self::Io(which) => which,
            Self::Attribute(name) => {
                return write!(f, "attribute {}", escape_and_shorten_name(name));
            }
            Self::Unknown(number) => return write!(f, "field {number}"),
        })
    }
}

/// Returns the name of the node's type, as shown to users.
pub(super) fn type_name(op: &Op<'_>) -> String {
    match *op {
        Op::NoOp => "nothing".to_owned(),
        Op::Host => "host".to_owned(),
        Op::Compute { .. } => "compute".to_owned(),
        Op::Communication { .. } => "communication".to_owned(),
        Op::Memory { store, place, .. } => {
            let what = if store { "store" } else { "load" };
            match place {
                MemoryLocation::Local => format!("local {what}"),
                MemoryLocation::Remote => format!("remote {what}"),
                MemoryLocation::Named(name) => {
                    format!("remote {what} of {}", escape_and_shorten_name(name))
                }
            }
        }
        Op::Message { receive: true, .. } => "receive".to_owned(),
        Op::Message { .. } => "send".to_owned(),
        Op::Collective { kind, .. } => kind.to_string(),
    }
}

/// Returns the name of the group, as shown to users.
pub(super) fn group_name(group: GroupName<'_>) -> String {
    match group {
        GroupName::World => "all ranks".to_owned(),
        GroupName::Number(number) => format!("group {number}"),
        GroupName::Text(text) => escape_and_shorten_name(text),
    }
}

/// Returns the bytes that a node moves; `None` if the trace has no byte count.
pub(super) fn bytes_moved_by_op(op: &Op<'_>) -> Option<u64> {
    match *op {
        Op::NoOp | Op::Host => None,
        Op::Compute { bytes, .. }
        | Op::Memory { bytes, .. }
        | Op::Message { bytes, .. }
        | Op::Communication { bytes }
        | Op::Collective { bytes, .. } => Some(bytes),
    }
}
