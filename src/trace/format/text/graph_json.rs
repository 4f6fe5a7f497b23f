//! Reads graphs that other tools write as one JSON object. Chakra's feeder reads `{"workload_graph": […]}`, and the
//! symbolic tensor graph generator writes `{"nodes": […]}`.
//!
//! Ids, names, types and dependencies become fields, and `runtime` becomes the duration in microseconds. Every other
//! key of a node becomes an attribute. A known key gets the type that other tools use for it, and an unknown key gets
//! the type of its JSON value. Keys outside the nodes become attributes of the metadata record.

use super::EncodedRecordsWithSourceLines;
use super::json::{JsonCursor, JsonScalarOrContainerStart};
use super::message::{self, JsonNodeBuilder, NODE_TYPES, put_length_delimited};
use super::values::{AttributeValueType, parse_signed_within};
use crate::format::{TraceError, escape_and_shorten_name};
use prost::encoding::{WireType, encode_key, encode_varint};
use std::collections::BTreeMap;

/// The generator's node types, with their numbers in the schema.
const TYPES: [(&str, i32); 6] = [
    ("mem_load_node", 2),
    ("mem_store_node", 3),
    ("comp_node", 4),
    ("comm_send_node", 5),
    ("comm_recv_node", 6),
    ("coll_comm_node", 7),
];

/// The schema's collectives, by number.
const COLLECTIVES: [&str; 10] = [
    "ALL_REDUCE",
    "REDUCE",
    "ALL_GATHER",
    "GATHER",
    "SCATTER",
    "BROADCAST",
    "ALL_TO_ALL",
    "REDUCE_SCATTER",
    "REDUCE_SCATTER_BLOCK",
    "BARRIER",
];

/// Known attributes, with the value types that other tools use.
const KNOWN: [(&str, AttributeValueType); 10] = [
    ("num_ops", AttributeValueType::Int64),
    ("tensor_size", AttributeValueType::Uint64),
    ("tensor_loc", AttributeValueType::Uint32),
    ("comm_type", AttributeValueType::Int64),
    ("comm_size", AttributeValueType::Int64),
    ("comm_src", AttributeValueType::Int32),
    ("comm_dst", AttributeValueType::Int32),
    ("comm_tag", AttributeValueType::Int32),
    ("comm_priority", AttributeValueType::Int32),
    ("comm_group", AttributeValueType::Int32),
];

/// Reads `text`, which must be a single object.
pub(super) fn parse_graph(
    text: &[u8],
    records: &mut EncodedRecordsWithSourceLines,
) -> Result<(), TraceError> {
    let mut json = JsonCursor::new(text, (1, 1));
    let mut nodes = EncodedRecordsWithSourceLines::default();
    let mut metadata = Vec::new();
    put_length_delimited(&mut metadata, 1, b"0.0.4");
    let mut seen: BTreeMap<String, ()> = BTreeMap::new();
    json.parse_object(|json, key| {
        if seen.insert(key.to_owned(), ()).is_some() {
            return Err(json.error_here(format!("a second `{}`", escape_and_shorten_name(key))));
        }
        match key {
            "workload_graph" | "nodes" => {
                let mut node = JsonNodeBuilder::default();
                let mut record = Vec::new();
                json.parse_array(|json| {
                    let place = json.line_and_column();
                    parse_node(json, &mut node)?;
                    record.clear();
                    node.append_node_record_without_length(&mut record);
                    nodes.push(&record, place);
                    Ok(())
                })
            }
            _ => parse_and_append_attribute(json, key, 2, &mut metadata),
        }
    })?;
    if json.peek_byte().is_some() {
        return Err(json.error_here("found text after the end of the object"));
    }
    records.push(&metadata, (1, 1));
    records.bytes.append(&mut nodes.bytes);
    records.lines.append(&mut nodes.lines);
    Ok(())
}

fn parse_node(json: &mut JsonCursor<'_>, node: &mut JsonNodeBuilder) -> Result<(), TraceError> {
    node.clear();
    json.node = None;
    let mut start = json.clone();
    let mut attributes = Vec::new();
    let mut exact = None;
    let mut seen: BTreeMap<String, ()> = BTreeMap::new();
    json.parse_object(|json, key| {
        if seen.insert(key.to_owned(), ()).is_some() {
            return Err(json.error_here(format!("a second `{}`", escape_and_shorten_name(key))));
        }
        match key {
            "Id" | "id" => {
                node.id = Some(message::parse_count(json)?);
                json.node = node.id;
            }
            "Name" | "name" => node.name.push_str(&message::parse_string(json)?),
            "NodeType" | "node_type" | "type" => node.kind = parse_node_type(json)?,
            "ctrlDeps" | "ctrl_deps" => message::parse_ids(json, &mut node.control)?,
            "dataDeps" | "data_deps" => message::parse_ids(json, &mut node.data)?,
            "runtime" | "duration_micros" => {
                (node.micros, exact) = parse_duration_in_us_and_ns(json)?
            }
            "comm_type" if json.peek_byte() == Some(b'"') => {
                let mut at = json.clone();
                let name = message::parse_string(json)?;
                let number = COLLECTIVES.iter().position(|known| *known == name);
                let number = number.ok_or_else(|| {
                    at.error_here(format!("expected one of {}", COLLECTIVES.join(", ")))
                })?;
                append_number_attribute(
                    &mut attributes,
                    key,
                    AttributeValueType::Int64,
                    number as u64,
                );
            }
            _ => parse_and_append_attribute(json, key, 10, &mut attributes)?,
        }
        Ok(())
    })?;
    if node.id.is_none() {
        return Err(start.error_here("a node without an id"));
    }
    if let Some(ns) = exact {
        append_number_attribute(
            &mut attributes,
            "duration_ns",
            AttributeValueType::Int64,
            ns,
        );
    }
    node.attributes.append(&mut attributes);
    json.node = None;
    Ok(())
}

fn parse_node_type(json: &mut JsonCursor<'_>) -> Result<i32, TraceError> {
    let mut at = json.clone();
    let found = match json.parse_scalar()? {
        JsonScalarOrContainerStart::Text(name) => {
            let ours = NODE_TYPES.iter().position(|known| *known == name);
            let theirs = TYPES.iter().find(|(known, _)| *known == name);
            ours.map(|i| i as i32).or(theirs.map(|(_, number)| *number))
        }
        number => parse_signed_within(&number, 0, 7).map(|number| number as i32),
    };
    found.ok_or_else(|| {
        let names = TYPES.map(|(name, _)| name).join(", ");
        at.error_here(format!(
            "expected a node type: a number from 0 to 7, {}, or {names}",
            NODE_TYPES.join(", ")
        ))
    })
}

/// Reads a duration in whole microseconds. If the duration has a fraction, it is also read in nanoseconds.
fn parse_duration_in_us_and_ns(
    json: &mut JsonCursor<'_>,
) -> Result<(u64, Option<u64>), TraceError> {
    let mut at = json.clone();
    let scalar = json.parse_scalar()?;
    if let Some(micros) = super::values::parse_unsigned_up_to(&scalar, u64::MAX) {
        return Ok((micros, None));
    }
    let micros: Option<f64> = match &scalar {
        JsonScalarOrContainerStart::Number(text) => text.parse().ok(),
        _ => None,
    };
    // The limit keeps the product below 2^53 nanoseconds, where an `f64` is exact.
    match micros.filter(|micros| (0.0..9e12).contains(micros)) {
        Some(micros) => Ok((micros as u64, Some((micros * 1000.0).round() as u64))),
        None => Err(at.error_here("expected a duration in microseconds")),
    }
}

/// Reads the value of key `name`, and appends it to a record: the attribute goes into field `number`.
fn parse_and_append_attribute(
    json: &mut JsonCursor<'_>,
    name: &str,
    number: u32,
    out: &mut Vec<u8>,
) -> Result<(), TraceError> {
    let mut value = Vec::new();
    let known = KNOWN.iter().find(|(known, _)| *known == name);
    match (json.peek_byte(), known) {
        (Some(b'['), _) => parse_and_append_uniform_list(json, &mut value)?,
        (Some(b'n'), _) => {
            json.parse_scalar()?;
        }
        (Some(b'0'..=b'9' | b'-'), Some((_, kind))) if matches_kind(json.clone(), *kind) => {
            kind.append_field_key(&mut value, kind.scalar_field_number());
            kind.parse_and_append_value(json, &mut value)?;
        }
        _ => {
            let kind = kind_of_next_scalar(json)?;
            kind.append_field_key(&mut value, kind.scalar_field_number());
            kind.parse_and_append_value(json, &mut value)?;
        }
    }
    append_attribute_as_protobuf_message(out, number, name, &value);
    Ok(())
}

fn matches_kind(mut json: JsonCursor<'_>, kind: AttributeValueType) -> bool {
    kind.parse_and_append_value(&mut json, &mut Vec::new())
        .is_ok()
}

/// Returns the attribute type that fits the next scalar.
fn kind_of_next_scalar(json: &JsonCursor<'_>) -> Result<AttributeValueType, TraceError> {
    let mut ahead = json.clone();
    Ok(match ahead.parse_scalar()? {
        JsonScalarOrContainerStart::Bool(_) => AttributeValueType::Bool,
        JsonScalarOrContainerStart::Text(_) => AttributeValueType::String,
        JsonScalarOrContainerStart::Number(text) if text.parse::<i64>().is_ok() => {
            AttributeValueType::Int64
        }
        JsonScalarOrContainerStart::Number(text) if text.parse::<u64>().is_ok() => {
            AttributeValueType::Uint64
        }
        JsonScalarOrContainerStart::Number(_) => AttributeValueType::Double,
        _ => {
            return Err(json.clone().error_here(
                "expected a number, text, a boolean or a list of these as the attribute's value",
            ));
        }
    })
}

/// Reads a list whose values all have the first value's type.
fn parse_and_append_uniform_list(
    json: &mut JsonCursor<'_>,
    out: &mut Vec<u8>,
) -> Result<(), TraceError> {
    let mut first = None;
    let mut values = Vec::new();
    json.parse_array(|json| {
        let kind = match first {
            Some(kind) => kind,
            None => *first.insert(kind_of_next_scalar(json)?),
        };
        if kind == AttributeValueType::String {
            kind.append_field_key(&mut values, 1);
        }
        kind.parse_and_append_value(json, &mut values)
    })?;
    // The type of an empty list is unknown, so any type is valid.
    let kind = first.unwrap_or(AttributeValueType::Int64);
    encode_key(
        kind.scalar_field_number() + 1,
        WireType::LengthDelimited,
        out,
    );
    let mut packed = Vec::new();
    if kind != AttributeValueType::String && !values.is_empty() {
        put_length_delimited(&mut packed, 1, &values);
        std::mem::swap(&mut packed, &mut values);
    }
    super::values::append_length_and_bytes(out, &values);
    Ok(())
}

fn append_number_attribute(out: &mut Vec<u8>, name: &str, kind: AttributeValueType, number: u64) {
    let mut value = Vec::new();
    kind.append_field_key(&mut value, kind.scalar_field_number());
    encode_varint(number, &mut value);
    append_attribute_as_protobuf_message(out, 10, name, &value);
}

fn append_attribute_as_protobuf_message(out: &mut Vec<u8>, number: u32, name: &str, value: &[u8]) {
    let mut message = Vec::new();
    if !name.is_empty() {
        put_length_delimited(&mut message, 1, name.as_bytes());
    }
    message.extend_from_slice(value);
    put_length_delimited(out, number, &message);
}
