//! The table of attributes that replays read: their names, contents, decoding and encoding.
//!
//! To add an attribute, add a field to [`NodeAttributesReadByReplays`], a row to the table and a line to
//! [`append_attributes_that_replay_reads`]. The attribute's meaning is defined where a node's operation or view is
//! built.

use super::AttrView;
use crate::format::encoder::ProtobufMessageBuilder;
use crate::format::op::{GroupName, MemoryLocation, Op};
use crate::format::origin::NodeCallerStepAndStack;
use crate::format::scan::NodeView;
use crate::format::split_sizes::AllToAllSplitText;
use crate::format::tensors::{self, NodeMemoryChanges, TensorClass};
use crate::format::write::{AttributeValue, append_named_attribute};
use crate::format::{Dtype, KernelShape, TraceError, TrainingPhase};
use chakram_base::units::Span;

/// An attribute that replays read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttributeReadByReplay {
    /// The attribute's name in traces.
    pub name: &'static str,
    /// Kind of value.
    pub content: AttributeValueMeaning,
}

/// Kind of value that an attribute has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeValueMeaning {
    /// A count, a duration or a boolean.
    Number,
    /// The rank at one end of a message.
    MessageEnd,
    /// A list of booleans.
    Mask,
    /// A group's name or number.
    Group,
    /// The name of a memory.
    MemoryName,
    /// The name of a number format.
    Dtype,
    /// The name of a phase.
    Phase,
    /// Text in a notation that replays validate, so it cannot contain private information.
    Notation,
}

/// A node's attributes that replays read. An absent attribute has its default value.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::format) struct NodeAttributesReadByReplays<'a> {
    pub host: bool,
    pub flops: u64,
    pub flops_unknown: bool,
    pub tensor_size: u64,
    pub tensor_loc: u64,
    pub in_switch: Option<&'a str>,
    pub remote_memory: Option<&'a str>,
    pub dtype: Option<Dtype>,
    pub kernel: Option<KernelShape>,
    pub phase: Option<TrainingPhase>,
    pub stream: Option<i64>,
    pub tid: Option<i64>,
    pub duration_ns: Option<u64>,
    pub delay_ns: u64,
    pub wait_ns: u64,
    pub profiler_ns: u64,
    pub eager: bool,
    pub comm_type: Option<u64>,
    pub comm_size: Option<u64>,
    pub size_unknown: bool,
    pub comm_unknown: bool,
    pub comm_src: Option<u64>,
    pub comm_dst: Option<u64>,
    pub comm_tag: i64,
    pub comm_root: Option<u64>,
    pub dimensions: Option<u32>,
    pub group: GroupName<'a>,
    pub splits: AllToAllSplitText<'a>,
    pub memory: NodeMemoryChanges,
    pub origin: NodeCallerStepAndStack,
}

/// Generates the rows of the table, and the function that stores an attribute's value.
macro_rules! replay_attributes {
    (|$attr:ident, $attributes:ident| $($name:literal $content:ident $store:expr;)*) => {
        const ROWS: &[AttributeReadByReplay] = &[$(AttributeReadByReplay {
            name: match str::from_utf8($name) {
                Ok(name) => name,
                Err(_) => panic!("names are ASCII"),
            },
            content: AttributeValueMeaning::$content,
        }),*];

        /// Stores the attribute's value if replays read the attribute. Inlining is forced, because the compiler's
        /// choice depends on the rest of the binary. Without inlining, loading takes 10 % longer.
        #[inline(always)]
        pub(in crate::format) fn store_attribute_if_replays_read_it<'a>(
            $attr: AttrView<'a>,
            $attributes: &mut NodeAttributesReadByReplays<'a>,
        ) -> Result<(), TraceError> {
            match $attr.name {
                $($name => $store,)*
                // Replays do not need the attributes of this arm, so the table omits them.
                b"parent" | b"launch" | b"step" | b"stack" => $attributes.origin.read_attribute(&$attr),
                // The first two letters suffice to skip nearly all attributes that this match ignores.
                [b'a', b'l', ..] | [b'f', b'r', ..] => $attributes.memory.read_attribute(&$attr)?,
                _ => {}
            }
            Ok(())
        }
    };
}

replay_attributes! { |attr, to|
    b"is_cpu_op" Number to.host = attr.as_bool()?;
    b"num_ops" Number to.flops = attr.as_count()?;
    b"num_ops_unknown" Number to.flops_unknown = attr.as_bool()?;
    b"tensor_size" Number to.tensor_size = attr.as_count()?;
    b"tensor_loc" Number to.tensor_loc = attr.as_count()?;
    b"in_switch" Notation to.in_switch = Some(attr.require_text()?);
    b"remote_memory" MemoryName to.remote_memory = Some(attr.require_text()?);
    b"dtype" Dtype to.dtype = attr.as_str()?.and_then(Dtype::from_name);
    b"kernel_shape" Notation to.kernel = Some(attr.as_kernel_shape()?);
    b"phase" Phase to.phase = attr.as_str()?.and_then(TrainingPhase::from_name);
    b"stream" Number to.stream = Some(attr.as_i64()?);
    b"tid" Number to.tid = Some(attr.as_i64()?);
    b"duration_ns" Number to.duration_ns = Some(attr.as_count()?);
    b"delay_ns" Number to.delay_ns = attr.as_count()?;
    b"wait_ns" Number to.wait_ns = attr.as_count()?;
    b"profiler_ns" Number to.profiler_ns = attr.as_count()?;
    b"eager" Number to.eager = attr.as_bool()?;
    b"comm_type" Number to.comm_type = Some(attr.as_count()?);
    b"comm_size" Number to.comm_size = Some(attr.as_count()?);
    b"comm_size_unknown" Number to.size_unknown = attr.as_bool()?;
    b"comm_unknown" Number to.comm_unknown = attr.as_bool()?;
    b"comm_src" MessageEnd to.comm_src = Some(attr.as_count()?);
    b"comm_dst" MessageEnd to.comm_dst = Some(attr.as_count()?);
    b"comm_tag" Number to.comm_tag = attr.as_i64()?;
    b"comm_root" Number to.comm_root = Some(attr.as_count()?);
    b"involved_dim" Mask to.dimensions = attr.list_as_bit_mask()?;
    b"involve_dims" Mask to.dimensions = attr.list_as_bit_mask()?;
    b"pg_name" Group to.group = read_group_name(&attr)?;
    b"comm_group" Group to.group = read_group_name(&attr)?;
    b"send_bytes" Notation to.splits.send = attr.require_text()?;
    b"receive_bytes" Notation to.splits.receive = attr.require_text()?;
}

#[inline(always)]
fn read_group_name<'a>(attr: &AttrView<'a>) -> Result<GroupName<'a>, TraceError> {
    Ok(match attr.as_str()? {
        Some(text) => GroupName::from_text(text),
        None => GroupName::from_number(attr.as_count()?),
    })
}

/// Number of attributes that replays read: one per row of the table, two memory changes per tensor class, and the
/// allocation in remote memory.
const COUNT: usize = ROWS.len() + 2 * TensorClass::COUNT + 1;

/// All attributes that replays read.
pub const REPLAY_ATTRIBUTES: [AttributeReadByReplay; COUNT] = {
    let mut all = [ROWS[0]; COUNT];
    all.split_at_mut(ROWS.len()).0.copy_from_slice(ROWS);
    let changes = tensors::ATTRIBUTES.as_flattened();
    let mut i = 0;
    while i < changes.len() {
        all[ROWS.len() + i] = AttributeReadByReplay {
            name: changes[i],
            content: AttributeValueMeaning::Number,
        };
        i += 1;
    }
    all[COUNT - 1] = AttributeReadByReplay {
        name: tensors::REMOTE_ATTRIBUTE,
        content: AttributeValueMeaning::Number,
    };
    all
};

/// Returns the attribute called `name` if replays read it, otherwise `None`.
pub fn find_replay_attribute(name: &str) -> Option<&'static AttributeReadByReplay> {
    /// One mask for each letter: bit `n` is set if a name of `n` bytes begins with the letter.
    const LENGTHS: [u32; 26] = {
        let mut lengths = [0; 26];
        let mut i = 0;
        while i < COUNT {
            let name = REPLAY_ATTRIBUTES[i].name.as_bytes();
            lengths[(name[0] - b'a') as usize] |= 1 << name.len();
            i += 1;
        }
        lengths
    };
    static ALL: [AttributeReadByReplay; COUNT] = REPLAY_ATTRIBUTES;
    // The first letter and the length exclude most names without comparing text.
    let letter = name.as_bytes().first()?.wrapping_sub(b'a');
    let lengths = LENGTHS.get(usize::from(letter))?;
    let possible = name.len() < 32 && lengths >> name.len() & 1 == 1;
    ALL.iter().find(|known| possible && known.name == name)
}

/// Appends to `put` the attributes of `node` that a replay reads.
pub(in crate::format) fn append_attributes_that_replay_reads(
    put: &mut ProtobufMessageBuilder,
    node: &NodeView<'_>,
) {
    let host = match node.op {
        Op::Host => true,
        Op::Message { host, .. } | Op::Collective { host, .. } => host,
        _ => false,
    };
    if node.op != Op::NoOp {
        append_named_attribute(put, "is_cpu_op", AttributeValue::Bool(host));
    }
    if let Some(lane) = node.lane {
        let name = if host { "tid" } else { "stream" };
        append_named_attribute(put, name, AttributeValue::Int(lane));
    }
    // The schema has a separate field for durations of whole microseconds, so only other durations become attributes. A
    // span counts picoseconds.
    if !node.recorded.0.is_multiple_of(1_000_000) {
        append_named_attribute(
            put,
            "duration_ns",
            AttributeValue::Uint(node.recorded.0 / 1000),
        );
    }
    for (name, span) in [
        ("delay_ns", node.delay),
        ("wait_ns", node.wait),
        ("profiler_ns", node.profiler),
    ] {
        if span > Span::ZERO {
            append_named_attribute(put, name, AttributeValue::Uint(span.0 / 1000));
        }
    }
    if node.eager {
        append_named_attribute(put, "eager", AttributeValue::Bool(true));
    }
    if node.size_unknown {
        append_named_attribute(put, "comm_size_unknown", AttributeValue::Bool(true));
    }
    if node.flops_unknown {
        append_named_attribute(put, "num_ops_unknown", AttributeValue::Bool(true));
    }
    match node.op {
        Op::NoOp | Op::Host => {}
        Op::Compute {
            flops,
            bytes,
            dtype,
        } => {
            append_named_attribute(put, "num_ops", AttributeValue::Int(flops as i64));
            append_named_attribute(put, "tensor_size", AttributeValue::Uint(bytes));
            if let Some(dtype) = dtype {
                append_named_attribute(
                    put,
                    "dtype",
                    AttributeValue::Text(Dtype::ALL[dtype as usize].1),
                );
            }
            if let Some(kernel) = node.kernel {
                append_named_attribute(
                    put,
                    "kernel_shape",
                    AttributeValue::Text(&kernel.to_string()),
                );
            }
        }
        Op::Communication { bytes } => {
            append_named_attribute(put, "comm_unknown", AttributeValue::Bool(true));
            if bytes > 0 {
                append_named_attribute(put, "tensor_size", AttributeValue::Uint(bytes));
            }
        }
        Op::Memory {
            store,
            place,
            bytes,
            in_switch,
        } => {
            append_named_attribute(put, "tensor_size", AttributeValue::Uint(bytes));
            let number = match place {
                MemoryLocation::Local => 1,
                MemoryLocation::Remote | MemoryLocation::Named(_) => 2,
            };
            append_named_attribute(put, "tensor_loc", AttributeValue::Uint32(number));
            if let MemoryLocation::Named(name) = place {
                append_named_attribute(put, "remote_memory", AttributeValue::Text(name));
            }
            if in_switch {
                let text = NodeAttributesReadByReplays::in_switch_value_for_access(store);
                append_named_attribute(put, "in_switch", AttributeValue::Text(text));
            }
        }
        Op::Message {
            receive,
            peer,
            tag,
            bytes,
            own,
            ..
        } => {
            let (far, near) = if receive {
                ("comm_src", "comm_dst")
            } else {
                ("comm_dst", "comm_src")
            };
            append_named_attribute(put, far, AttributeValue::Int32(peer as i32));
            if let Some(own) = own {
                append_named_attribute(put, near, AttributeValue::Int32(own as i32));
            }
            append_named_attribute(put, "comm_tag", AttributeValue::Int32(tag));
            append_named_attribute(put, "comm_size", AttributeValue::Int(bytes as i64));
        }
        Op::Collective {
            kind,
            bytes,
            group,
            root,
            dimensions,
            ..
        } => {
            append_named_attribute(
                put,
                "comm_type",
                AttributeValue::Int(kind.comm_type() as i64),
            );
            append_named_attribute(put, "comm_size", AttributeValue::Int(bytes as i64));
            match group {
                GroupName::World => {}
                GroupName::Number(n) => {
                    append_named_attribute(put, "pg_name", AttributeValue::Text(&n.to_string()))
                }
                GroupName::Text(text) => {
                    append_named_attribute(put, "pg_name", AttributeValue::Text(text))
                }
            }
            if let Some(root) = root {
                append_named_attribute(put, "comm_root", AttributeValue::Int32(root as i32));
            }
            if let Some(mask) = dimensions {
                // A list that contains only ones means "all", so a mask of consecutive ones needs a final zero. Lists
                // have at most 32 entries.
                let highest = 32 - mask.leading_zeros();
                let ones = mask.trailing_ones() == highest && highest < 32;
                let values = (0..highest + u32::from(ones)).map(|i| mask >> i & 1 == 1);
                let values: Vec<bool> = values.collect();
                append_named_attribute(put, "involved_dim", AttributeValue::Bools(&values));
            }
        }
    }
    let splits = &node.splits;
    for (name, list) in [
        ("send_bytes", splits.send),
        ("receive_bytes", splits.receive),
    ] {
        if !list.is_empty() {
            append_named_attribute(put, name, AttributeValue::Text(list));
        }
    }
    if !node.memory.is_none() {
        for (name, bytes) in node.memory.nonzero_changes_with_attribute_names() {
            append_named_attribute(put, name, AttributeValue::Uint(bytes));
        }
    }
    let labels = &node.labels;
    if let Some(phase) = labels.phase {
        append_named_attribute(put, "phase", AttributeValue::Text(&phase.to_string()));
    }
    for (name, number) in [
        ("stage", labels.stage),
        ("micro_batch", labels.micro_batch),
        ("layer", labels.layer),
    ] {
        if let Some(number) = number {
            append_named_attribute(put, name, AttributeValue::Uint32(number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::proto::{AttributeProto, StringList, attribute_proto::Value};
    use crate::format::scan;
    use prost::Message;

    fn encode_and_read_attribute(name: &str, value: Value) -> Result<(), TraceError> {
        let message = AttributeProto {
            name: name.to_owned(),
            value: Some(value),
            ..AttributeProto::default()
        };
        scan::read_and_store_attribute(
            &message.encode_to_vec(),
            0,
            &mut NodeAttributesReadByReplays::default(),
        )
    }

    #[test]
    fn attributes_that_replays_read_are_found_and_stored() {
        for attribute in &REPLAY_ATTRIBUTES {
            let name = attribute.name;
            assert_eq!(find_replay_attribute(name), Some(attribute));
            // No attribute accepts a list of texts, so storing one fails. Only number formats and phases with such a
            // value count as unknown.
            let taken = encode_and_read_attribute(name, Value::StringList(StringList::default()));
            let unknown = ["dtype", "phase"].contains(&name);
            assert!(taken.is_err() || unknown, "{name}");
        }
        for other in ["", "rf_id", "stream_", "Stream", "é", &"p".repeat(40)] {
            assert_eq!(find_replay_attribute(other), None, "{other}");
        }
        assert!(encode_and_read_attribute("rf_id", Value::Int64Val(1)).is_ok());
    }
}
