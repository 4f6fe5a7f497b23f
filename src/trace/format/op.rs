//! The operation of a node, decoded once from the node's type and attributes.

use super::attr::NodeAttributesReadByReplays;
use super::{CollectiveKind, Dtype, TraceError, escape_and_shorten_name};
use chakram_base::units::Span;

/// Name by which a trace refers to a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GroupName<'a> {
    /// The group of all ranks: the attribute is missing, empty or `0`.
    #[default]
    World,
    /// A number, or text that parses as a number.
    Number(u64),
    /// Any other text.
    Text(&'a str),
}

impl<'a> GroupName<'a> {
    /// Returns the group whose name is `text`.
    pub fn from_text(text: &'a str) -> Self {
        match text.parse::<u64>() {
            Ok(number) if !text.starts_with('+') => Self::from_number(number),
            _ if text.is_empty() => Self::World,
            _ => Self::Text(text),
        }
    }

    /// Returns the name that group declarations use, or `None` for the group of all ranks.
    pub fn to_text(self) -> Option<String> {
        match self {
            Self::World => None,
            Self::Number(number) => Some(number.to_string()),
            Self::Text(text) => Some(text.to_owned()),
        }
    }

    /// Returns the group whose number is `number`.
    pub fn from_number(number: u64) -> Self {
        match number {
            0 => Self::World,
            _ => Self::Number(number),
        }
    }
}

/// Memory that a load or store accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLocation<'a> {
    /// Memory of the NPU itself.
    Local,
    /// Unnamed memory outside the NPU.
    Remote,
    /// Memory outside the NPU, by its name in the machine.
    Named(&'a str),
}

/// Operation of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op<'a> {
    /// No operation and no duration: an INVALID or METADATA node.
    NoOp,
    /// Work on the host, which takes its recorded duration.
    Host,
    /// A kernel. Zero FLOPs and zero bytes mean that the trace does not state them.
    Compute {
        /// Number of floating-point operations.
        flops: u64,
        /// Bytes that the kernel reads and writes.
        bytes: u64,
        /// Number format in which the kernel computes, if the trace states it.
        dtype: Option<Dtype>,
    },
    /// Communication for which the trace does not state the operation or the partners. Such a node takes its recorded
    /// duration.
    Communication {
        /// Number of bytes moved; 0 if the trace does not state it.
        bytes: u64,
    },
    /// A load or store.
    Memory {
        /// True if the access is a store.
        store: bool,
        /// Memory that the node accesses.
        place: MemoryLocation<'a>,
        /// Number of bytes.
        bytes: u64,
        /// True if all NPUs access the memory together, and switches on the route combine the accesses. For a load,
        /// switches gather: each NPU receives the bytes that all NPUs load (an all-gather). For a store, switches
        /// reduce: the memory receives the sums of the NPUs' data (a reduce-scatter). Only accesses to remote memory
        /// can be in-switch.
        in_switch: bool,
    },
    /// One half of a message: a send or a receive.
    Message {
        /// True if this rank receives.
        receive: bool,
        /// Rank at the other end of the message.
        peer: u32,
        /// Tag that distinguishes messages between the same two ranks.
        tag: i32,
        /// Number of bytes.
        bytes: u64,
        /// Index of this rank in the group, if the node states it.
        own: Option<u32>,
        /// True if the trace marks the message as host work.
        host: bool,
    },
    /// One member's part of a collective.
    Collective {
        /// Kind of collective.
        kind: CollectiveKind,
        /// Value of the attribute `comm_size`, unchanged.
        bytes: u64,
        /// Group that carries out the collective.
        group: GroupName<'a>,
        /// Rank of the root, for collectives with a root; `None` means that the group's first member is the root.
        root: Option<u32>,
        /// Mask of the machine's dimensions that take part; `None` means all dimensions.
        dimensions: Option<u32>,
        /// True if the trace marks the collective as host work.
        host: bool,
    },
}

impl<'a> NodeAttributesReadByReplays<'a> {
    /// Returns the node's lane: a device node's `stream`, otherwise `tid`, which older converters use for streams and
    /// threads.
    #[inline]
    pub fn lane(&self) -> Option<i64> {
        match self.stream {
            Some(stream) if !self.host => Some(stream),
            _ => self.tid,
        }
    }

    /// Returns the recorded duration; the exact attribute takes precedence over the field in whole microseconds.
    #[inline]
    pub fn recorded_duration(&self, micros: u64) -> Span {
        match self.duration_ns {
            Some(ns) => Span::from_ns(ns),
            None => Span::from_us(micros),
        }
    }

    /// Decodes the operation of a node of type `kind` with these attributes.
    #[inline]
    pub fn decode_op(&self, id: u64, kind: u64) -> Result<Op<'a>, TraceError> {
        if let Some(found) = self.in_switch.filter(|_| !matches!(kind, 2 | 3)) {
            return Err(TraceError::invalid_node(
                id,
                format!(
                    "`in_switch` is \"{}\" on a node of type {kind}, expected it only on loads (2) and stores (3)",
                    escape_and_shorten_name(found)
                ),
                "remove the attribute; collectives among NPUs are separate nodes",
            ));
        }
        if let Some(found) = self.remote_memory.filter(|_| !matches!(kind, 2 | 3)) {
            return Err(TraceError::invalid_node(
                id,
                format!(
                    "`remote_memory` is \"{}\" on a node of type {kind}, expected it only on loads (2) and stores (3)",
                    escape_and_shorten_name(found)
                ),
                "remove the attribute, which names the memory that a load or store accesses",
            ));
        }
        match kind {
            0 | 1 => Ok(Op::NoOp),
            2 | 3 => self.decode_memory_access(id, kind == 3),
            4 if self.host => Ok(Op::Host),
            4 if self.comm_unknown => Ok(Op::Communication {
                bytes: self.tensor_size,
            }),
            4 => Ok(Op::Compute {
                flops: self.flops,
                bytes: self.tensor_size,
                dtype: self.dtype,
            }),
            5 | 6 if self.is_host_op_of_communication() => Ok(Op::Host),
            5 | 6 => self.decode_send_or_receive_op(id, kind == 6),
            7 if self.is_host_op_of_communication() => Ok(Op::Host),
            7 => self.decode_collective(id),
            8..=10 => Err(TraceError::invalid_node(
                id,
                format!(
                    "node type {kind} is a {} node of newer schemas, for which there is no time model",
                    ["storage", "batch", "checkpoint"][kind as usize - 8]
                ),
                "leave such nodes out of the capture, or write them as host work",
            )),
            other => Err(TraceError::invalid_node(
                id,
                format!("node type {other} does not exist, expected 0 to 10"),
                "check whether an older tool (before October 2023) wrote the file, because its \
                 numbers of node types differ",
            )),
        }
    }

    /// Returns true if a communication node is only the host operator that launched the actual communication. Old
    /// converters mark both nodes as communication, but only the host's node has no size.
    fn is_host_op_of_communication(&self) -> bool {
        self.host && self.comm_size.is_none()
    }

    fn decode_memory_access(&self, id: u64, store: bool) -> Result<Op<'a>, TraceError> {
        let place = match self.tensor_loc {
            // An absent `tensor_loc` reads as 0, which means remote memory.
            0 | 2 => match self.remote_memory {
                None => MemoryLocation::Remote,
                Some("") => {
                    return Err(TraceError::invalid_node(
                        id,
                        "`remote_memory` is empty, expected the name of a memory",
                        "name one of the machine's [remote_memories.NAME], or remove the attribute",
                    ));
                }
                Some(name) => MemoryLocation::Named(name),
            },
            1 if self.remote_memory.is_some() => {
                return Err(TraceError::invalid_node(
                    id,
                    "`remote_memory` is set on an access of local memory (`tensor_loc` 1)",
                    "set `tensor_loc` to 2 for remote memory, or remove the attribute",
                ));
            }
            1 => MemoryLocation::Local,
            other => {
                return Err(TraceError::invalid_node(
                    id,
                    format!("`tensor_loc` is {other}, expected 1 or 2"),
                    "1 for local memory, or 2 (or no attribute) for remote memory",
                ));
            }
        };
        let in_switch = match self.in_switch {
            None => false,
            Some(_) if place == MemoryLocation::Local => {
                return Err(TraceError::invalid_node(
                    id,
                    "`in_switch` is set on an access of local memory, which has no switch",
                    "set `tensor_loc` to 2 for remote memory, or remove the attribute",
                ));
            }
            Some(found) if found == Self::in_switch_value_for_access(store) => true,
            Some(found) => {
                let expected = Self::in_switch_value_for_access(store);
                let what = if store { "store" } else { "load" };
                return Err(TraceError::invalid_node(
                    id,
                    format!(
                        "`in_switch` is \"{}\" on a {what}",
                        escape_and_shorten_name(found)
                    ),
                    format!("{expected:?}, the only value for a {what}"),
                ));
            }
        };
        Ok(Op::Memory {
            store,
            place,
            bytes: self.tensor_size,
            in_switch,
        })
    }

    /// Returns the value of the attribute `in_switch` for a load or a store.
    pub fn in_switch_value_for_access(store: bool) -> &'static str {
        if store {
            "reduce_scatter"
        } else {
            "all_gather"
        }
    }

    fn decode_send_or_receive_op(&self, id: u64, receive: bool) -> Result<Op<'a>, TraceError> {
        let (what, far, near, needed) = if receive {
            ("receive", self.comm_src, self.comm_dst, "comm_src")
        } else {
            ("send", self.comm_dst, self.comm_src, "comm_dst")
        };
        let Some(far) = far else {
            return Err(TraceError::invalid_node(
                id,
                format!("a {what} without `{needed}`, so the other rank is unknown"),
                "convert the capture again; traces that Chakra's Python converter made from PyTorch lack the attribute",
            ));
        };
        let Some(bytes) = self.comm_size else {
            return Err(self.missing_size_error(id, what));
        };
        Ok(Op::Message {
            receive,
            peer: check_rank(id, needed, far)?,
            tag: i32::try_from(self.comm_tag).map_err(|_| {
                TraceError::invalid_node(
                    id,
                    format!(
                        "`comm_tag` is {}, expected a number of 32 bits",
                        self.comm_tag
                    ),
                    "a tag below 2^31",
                )
            })?,
            bytes: self.check_comm_size(id, bytes)?,
            own: near
                .map(|own| check_rank(id, "comm_src or comm_dst", own))
                .transpose()?,
            host: self.host,
        })
    }

    fn decode_collective(&self, id: u64) -> Result<Op<'a>, TraceError> {
        let Some(number) = self.comm_type else {
            return Err(TraceError::invalid_node(
                id,
                "a collective without `comm_type`",
                "write the attribute; proto/README.md lists its values",
            ));
        };
        let kind = CollectiveKind::from_comm_type(number).ok_or_else(|| {
            TraceError::invalid_node(
                id,
                format!("`comm_type` is {number}, expected a collective from 0 to 9"),
                "check whether an older tool wrote the file, because its numbers of collectives differ",
            )
        })?;
        let bytes = match (self.comm_size, kind) {
            (Some(bytes), _) => self.check_comm_size(id, bytes)?,
            (None, CollectiveKind::Barrier) => 0,
            (None, _) => return Err(self.missing_size_error(id, "collective")),
        };
        if !self.splits.is_empty() && kind != CollectiveKind::AllToAll {
            return Err(TraceError::invalid_node(
                id,
                format!("`send_bytes` or `receive_bytes` is set on a collective of kind {kind}"),
                "remove the attributes; only members of an all-to-all exchange unequal parts",
            ));
        }
        Ok(Op::Collective {
            kind,
            bytes,
            group: self.group,
            root: self
                .comm_root
                .map(|root| check_rank(id, "comm_root", root))
                .transpose()?,
            dimensions: self.dimensions,
            host: self.host,
        })
    }

    fn missing_size_error(&self, id: u64, what: &str) -> TraceError {
        TraceError::invalid_node(
            id,
            format!("a {what} without `comm_size`"),
            "write the attribute; without a size the cost is unknown",
        )
    }

    fn check_comm_size(&self, id: u64, bytes: u64) -> Result<u64, TraceError> {
        if bytes > i64::MAX as u64 {
            return Err(TraceError::invalid_node(
                id,
                format!("`comm_size` is {bytes}, expected less than 2^63"),
                "a size in bytes; a negative number was probably written as unsigned",
            ));
        }
        Ok(bytes)
    }
}

fn check_rank(id: u64, attribute: &str, value: u64) -> Result<u32, TraceError> {
    u32::try_from(value).map_err(|_| {
        TraceError::invalid_node(
            id,
            format!("`{attribute}` is {value}, expected a rank of 32 bits"),
            "a rank; ranks count from 0",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the operation of a node of type `kind` with the given `in_switch`; the node accesses the memory
    /// `tensor_loc`.
    fn decode_memory_op(
        kind: u64,
        tensor_loc: u64,
        in_switch: &'static str,
    ) -> Result<Op<'static>, String> {
        let facts = NodeAttributesReadByReplays {
            tensor_loc,
            in_switch: Some(in_switch),
            ..NodeAttributesReadByReplays::default()
        };
        facts.decode_op(5, kind).map_err(|error| error.to_string())
    }

    #[test]
    fn switches_gather_loads_and_reduce_stores_beyond_the_npu() {
        let memory = |store| Op::Memory {
            store,
            place: MemoryLocation::Remote,
            bytes: 0,
            in_switch: true,
        };
        assert_eq!(decode_memory_op(2, 2, "all_gather"), Ok(memory(false)));
        assert_eq!(decode_memory_op(3, 0, "reduce_scatter"), Ok(memory(true)));
        for (kind, place, text, expected) in [
            (
                2,
                2,
                "reduce_scatter",
                "\"all_gather\", the only value for a load",
            ),
            (
                3,
                2,
                "all_gather",
                "\"reduce_scatter\", the only value for a store",
            ),
            (2, 2, "\u{1b}x", "`in_switch` is \"\\u{1b}x\""),
            (2, 1, "all_gather", "local memory"),
            (
                4,
                2,
                "all_gather",
                "node of type 4, expected it only on loads (2) and stores (3)",
            ),
            (7, 2, "reduce_scatter", "node of type 7"),
            (0, 2, "", "node of type 0"),
        ] {
            let error = decode_memory_op(kind, place, text).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(error.contains("`in_switch`"), "{error}");
        }
    }

    #[test]
    fn types_of_newer_and_of_no_schemas_are_told_apart() {
        let why = |kind| {
            NodeAttributesReadByReplays::default()
                .decode_op(5, kind)
                .unwrap_err()
                .to_string()
        };
        for (kind, what) in [
            (8, "a storage node"),
            (9, "a batch node"),
            (10, "a checkpoint node"),
        ] {
            assert!(why(kind).contains(what), "{}", why(kind));
        }
        assert!(
            why(11).contains("node type 11 does not exist"),
            "{}",
            why(11)
        );
    }
}
