//! Converts records of schema 0.0.1, whose nodes have fixed fields.

use crate::format::TraceError;
use crate::format::proto::{AttributeProto, BoolList, Node, attribute_proto::Value};
use crate::format::wire::{RawRecord, WireCursor, WireValue};

/// Collective types of the current schema that correspond to the types 1 to 4 of schema 0.0.1.
const COLLECTIVES: [i64; 4] = [0, 6, 2, 7];

/// Maps a node type of schema 0.0.1 to the current schema. Version 0.0.3 inserted METADATA as 1, which raised the
/// numbers of MEM_LOAD and all later types by one.
pub(super) fn current_node_type(old: u64) -> Option<i32> {
    match old {
        0 => Some(0),
        1..=6 => Some(old as i32 + 1),
        _ => None,
    }
}

/// A node's fixed fields, by field number.
#[derive(Default)]
struct NodeFixedFieldValuesByNumber([Option<u64>; 21]);

impl NodeFixedFieldValuesByNumber {
    fn get(&self, number: usize) -> Option<u64> {
        self.0[number]
    }
}

/// Converts a node of schema 0.0.1 to the current schema.
pub(super) fn convert_node(record: RawRecord<'_>) -> Result<Node, TraceError> {
    let mut node = Node::default();
    let mut fixed = NodeFixedFieldValuesByNumber::default();
    let mut dimensions = Vec::new();
    let mut cursor = WireCursor::new(record.bytes, record.offset);
    while !cursor.is_empty() {
        let at = cursor.file_offset();
        match cursor.read_field()? {
            (2, WireValue::Bytes(name, _)) => node.name = super::decode_text(name, at)?,
            (4, WireValue::Varint(id)) => node.data_deps.push(id),
            (14, WireValue::Varint(takes_part)) => dimensions.push(takes_part != 0),
            (number @ (1 | 3 | 5..=13 | 15..=20), WireValue::Varint(value)) => {
                fixed.0[number as usize] = Some(value);
            }
            (1..=20, _) => {
                return Err(TraceError::malformed_at(
                    at,
                    "a field of a 0.0.1 node has the wrong wire type",
                ));
            }
            (number, _) => {
                return Err(TraceError::malformed_at(
                    at,
                    format!("0.0.1 nodes have no field {number}"),
                ));
            }
        }
    }
    node.id = fixed.get(1).unwrap_or(0);
    let kind = fixed.get(3).unwrap_or(0);
    node.r#type = current_node_type(kind).ok_or_else(|| {
        let found = format!("node type {kind} does not exist in 0.0.1, which has 0 to 6");
        TraceError::invalid_node(node.id, found, super::other_generation_hint())
    })?;
    node.duration_micros = fixed.get(7).unwrap_or(0);
    add_attributes(&mut node, &fixed, dimensions)?;
    Ok(node)
}

fn add_attributes(
    node: &mut Node,
    fixed: &NodeFixedFieldValuesByNumber,
    dimensions: Vec<bool>,
) -> Result<(), TraceError> {
    let (memory, collective) = (matches!(node.r#type, 2 | 3), node.r#type == 7);
    let attributes = &mut node.attr;
    let mut push = |name: &str, value: Option<Value>| {
        if value.is_some() {
            attributes.push(AttributeProto {
                name: name.to_owned(),
                value,
                ..AttributeProto::default()
            });
        }
    };
    // Converters of 2023 put a load's tensor into the input fields, and a store's tensor into the output fields.
    let (place, size) = match node.r#type {
        2 if memory && fixed.get(6).is_none() => (8, 9),
        3 if memory && fixed.get(6).is_none() => (10, 11),
        _ => (5, 6),
    };
    push("tensor_loc", fixed.get(place).map(uint32_or_wider_value));
    push("tensor_size", fixed.get(size).map(Value::Uint64Val));
    for (number, name) in [(8, "input_tensor_loc"), (10, "output_tensor_loc")] {
        push(
            name,
            fixed
                .get(number)
                .filter(|_| number != place)
                .map(uint32_or_wider_value),
        );
    }
    for (number, name) in [(9, "input_tensor_size"), (11, "output_tensor_size")] {
        let value = fixed.get(number).filter(|_| number != size);
        push(name, value.map(Value::Uint64Val));
    }
    push("num_ops", fixed.get(12).map(int64_or_wider_value));
    push(
        "comm_type",
        convert_comm_type(node.id, fixed.get(13), collective)?,
    );
    let dimensions = BoolList { values: dimensions };
    let dimensions = (!dimensions.values.is_empty()).then_some(dimensions);
    push("involved_dim", dimensions.map(Value::BoolList));
    push("comm_group", fixed.get(15).map(int32_or_wider_value));
    push("comm_src", fixed.get(16).map(int32_or_wider_value));
    push("comm_dst", fixed.get(17).map(int32_or_wider_value));
    push("comm_size", fixed.get(18).map(int64_or_wider_value));
    push("comm_tag", fixed.get(19).map(int32_or_wider_value));
    push("comm_priority", fixed.get(20).map(int32_or_wider_value));
    Ok(())
}

/// Maps a collective of schema 0.0.1 to the current schema. The number 0 means "no collective", which is an error only
/// in collective nodes.
fn convert_comm_type(
    id: u64,
    old: Option<u64>,
    collective: bool,
) -> Result<Option<Value>, TraceError> {
    let Some(old) = old.filter(|&old| old != 0 || collective) else {
        return Ok(None);
    };
    let found = usize::try_from(old).ok().and_then(|old| old.checked_sub(1));
    match found.and_then(|index| COLLECTIVES.get(index)) {
        Some(&new) => Ok(Some(Value::Int64Val(new))),
        None => Err(TraceError::invalid_node(
            id,
            format!("collective {old} does not exist in 0.0.1, which has 1 to 4"),
            super::other_generation_hint(),
        )),
    }
}

/// Encodes a value in the type that current tools use for its attribute, or in a wider type if the value does not
/// fit.
fn int64_or_wider_value(value: u64) -> Value {
    i64::try_from(value).map_or(Value::Uint64Val(value), Value::Int64Val)
}

fn int32_or_wider_value(value: u64) -> Value {
    i32::try_from(value).map_or_else(|_| int64_or_wider_value(value), Value::Int32Val)
}

fn uint32_or_wider_value(value: u64) -> Value {
    u32::try_from(value).map_or(Value::Uint64Val(value), Value::Uint32Val)
}
