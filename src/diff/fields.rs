//! What a node says, field by field.

mod compare;

pub(super) use compare::compare;

use super::value::Value;
use crate::trace::{GroupName, MemoryPlace, Op, shown};
use std::fmt;

/// A field of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// What it does.
    Type,
    /// Its name.
    Name,
    /// Its stream or thread.
    Lane,
    /// Whether it is the host's work.
    Host,
    /// The rank at the other end of a message.
    Peer,
    /// The rank's own number, on a message.
    Own,
    /// A message's tag.
    Tag,
    /// Among whom a collective is.
    Group,
    /// A collective's root.
    Root,
    /// The machine's dimensions that take part.
    Dimensions,
    /// The number format.
    Dtype,
    /// Whether switches gather or reduce.
    InSwitch,
    /// Whether it waited for nobody.
    Eager,
    /// How many bytes.
    Bytes,
    /// How many operations.
    Flops,
    /// How long it took where it was recorded.
    Duration,
    /// Host time before it.
    Delay,
    /// How long it waited for its peers.
    Wait,
    /// The duration in whole microseconds, where a finer one is the same.
    Micros,
    /// When it started.
    Start,
    /// What goes in or comes out: values, shapes or types.
    Io(&'static str),
    /// An attribute that nothing above is read from.
    Attribute(String),
    /// A field that this version does not know, by its number.
    Unknown(u32),
}

/// What a difference is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aspect {
    /// Nodes, dependencies, and what nodes say of themselves.
    Structure,
    /// How long something takes.
    Time,
    /// How many bytes and operations.
    Bytes,
}

/// A field that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldChange {
    /// Which.
    pub field: Field,
    /// In the first trace.
    pub before: Value,
    /// In the second.
    pub after: Value,
}

impl Field {
    /// What the field is of.
    pub fn aspect(&self) -> Aspect {
        match self {
            Self::Duration | Self::Delay | Self::Wait | Self::Micros | Self::Start => Aspect::Time,
            Self::Bytes | Self::Flops => Aspect::Bytes,
            _ => Aspect::Structure,
        }
    }

    /// What its numbers count, for programs; empty if it has none.
    pub fn unit(&self) -> &'static str {
        match self {
            Self::Duration | Self::Delay | Self::Wait => "ps",
            Self::Micros | Self::Start => "us",
            Self::Bytes => "bytes",
            Self::Flops => "flops",
            _ => "",
        }
    }
}

impl fmt::Display for Field {
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
            Self::Micros => "duration_micros",
            Self::Start => "start_time_micros",
            Self::Io(which) => which,
            Self::Attribute(name) => return write!(f, "attribute {}", shown(name)),
            Self::Unknown(number) => return write!(f, "field {number}"),
        })
    }
}

/// What kind of thing a node does, for people.
pub(super) fn type_name(op: &Op<'_>) -> String {
    match *op {
        Op::Nothing => "nothing".to_owned(),
        Op::Host => "host".to_owned(),
        Op::Compute { .. } => "compute".to_owned(),
        Op::Memory { store, place, .. } => {
            let what = if store { "store" } else { "load" };
            match place {
                MemoryPlace::Local => format!("local {what}"),
                MemoryPlace::Remote => format!("remote {what}"),
            }
        }
        Op::Message { receive: true, .. } => "receive".to_owned(),
        Op::Message { .. } => "send".to_owned(),
        Op::Collective { kind, .. } => kind.to_string(),
    }
}

/// A group for people.
pub(super) fn group_name(group: GroupName<'_>) -> String {
    match group {
        GroupName::World => "all ranks".to_owned(),
        GroupName::Number(number) => format!("group {number}"),
        GroupName::Text(text) => shown(text),
    }
}

/// The bytes that a node moves, if it says.
pub(super) fn bytes_of(op: &Op<'_>) -> Option<u64> {
    match *op {
        Op::Nothing | Op::Host => None,
        Op::Compute { bytes, .. }
        | Op::Memory { bytes, .. }
        | Op::Message { bytes, .. }
        | Op::Collective { bytes, .. } => Some(bytes),
    }
}
