//! Converts JSON objects to records. Accepts protobuf's JSON mapping with both spellings of keys, and the additions of
//! [`super::json_lines`].

use super::base64;
use super::json::{JsonCursor, JsonScalarOrContainerStart};
use super::values::{append_length_and_bytes, parse_signed_within, parse_unsigned_up_to};
use crate::format::{TraceError, escape_and_shorten_name};
use prost::encoding::{WireType, encode_key, encode_varint};
use std::borrow::Cow;

mod parts;

use parts::{parse_and_append_json_attribute, parse_inputs_or_outputs};

/// The schema's node types, by number.
pub(super) const NODE_TYPES: [&str; 8] = [
    "INVALID_NODE",
    "METADATA_NODE",
    "MEM_LOAD_NODE",
    "MEM_STORE_NODE",
    "COMP_NODE",
    "COMM_SEND_NODE",
    "COMM_RECV_NODE",
    "COMM_COLL_NODE",
];

/// JSON keys that a node may have, for error messages.
const NODE_KEYS: &str = "id, name, type, ctrl_deps, data_deps, start_time_micros, duration_micros, \
                         inputs, outputs, attr, unknown";
/// A node under construction. JSON keys may come in any order, but a record's fields are ordered by number.
#[derive(Debug, Default)]
pub(super) struct JsonNodeBuilder {
    pub id: Option<u64>,
    pub name: String,
    pub kind: i32,
    pub control: Vec<u64>,
    pub data: Vec<u64>,
    pub start: u64,
    pub micros: u64,
    inputs: Option<Vec<u8>>,
    outputs: Option<Vec<u8>>,
    /// Encoded attributes, each preceded by its key and length.
    pub attributes: Vec<u8>,
    unknown: Vec<u8>,
    scratch: Vec<u8>,
}

impl JsonNodeBuilder {
    /// Clears the node, but keeps its memory for the next node.
    pub fn clear(&mut self) {
        let Self {
            name,
            control,
            data,
            attributes,
            unknown,
            ..
        } = self;
        name.clear();
        control.clear();
        data.clear();
        attributes.clear();
        unknown.clear();
        (self.id, self.inputs, self.outputs) = (None, None, None);
        (self.kind, self.start, self.micros) = (0, 0, 0);
    }

    /// Parses an object.
    pub fn parse_object(&mut self, json: &mut JsonCursor<'_>) -> Result<(), TraceError> {
        self.clear();
        json.node = None;
        let mut seen = Vec::new();
        json.parse_object(|json, key| self.parse_field(json, key, &mut seen))?;
        json.node = None;
        Ok(())
    }

    fn parse_field(
        &mut self,
        json: &mut JsonCursor<'_>,
        key: &str,
        seen: &mut Vec<&'static str>,
    ) -> Result<(), TraceError> {
        let known = match key {
            "id" => "id",
            "name" => "name",
            "type" => "type",
            "ctrl_deps" | "ctrlDeps" => "ctrl_deps",
            "data_deps" | "dataDeps" => "data_deps",
            "start_time_micros" | "startTimeMicros" => "start_time_micros",
            "duration_micros" | "durationMicros" => "duration_micros",
            "inputs" => "inputs",
            "outputs" => "outputs",
            "attr" => "attr",
            "unknown" => "unknown",
            _ => {
                return Err(json.error_here(format!(
                    "`{}` is not a field of a node; expected one of {NODE_KEYS}",
                    escape_and_shorten_name(key)
                )));
            }
        };
        // The two spellings of a key (such as `data_deps` and `dataDeps`) are the same key.
        if seen.contains(&known) {
            return Err(json.error_here(format!("a second `{known}`")));
        }
        seen.push(known);
        if accept_null(json)? {
            return Ok(());
        }
        match known {
            "id" => {
                self.id = Some(parse_count(json)?);
                json.node = self.id;
            }
            "name" => self.name.push_str(&parse_string(json)?),
            "type" => self.kind = parse_enum(json, &NODE_TYPES)?,
            "ctrl_deps" => parse_ids(json, &mut self.control)?,
            "data_deps" => parse_ids(json, &mut self.data)?,
            "start_time_micros" => self.start = parse_count(json)?,
            "duration_micros" => self.micros = parse_count(json)?,
            "inputs" => self.inputs = Some(parse_inputs_or_outputs(json)?),
            "outputs" => self.outputs = Some(parse_inputs_or_outputs(json)?),
            "attr" => json.parse_array(|json| {
                parse_and_append_json_attribute(json, 10, &mut self.attributes, &mut self.scratch)
            })?,
            _ => self.unknown = parse_base64(json)?,
        }
        Ok(())
    }

    /// Appends the record to `out`, without a length.
    pub fn append_node_record_without_length(&mut self, out: &mut Vec<u8>) {
        append_varint_field_unless_zero(out, 1, self.id.unwrap_or(0));
        if !self.name.is_empty() {
            put_length_delimited(out, 2, self.name.as_bytes());
        }
        append_varint_field_unless_zero(out, 3, i64::from(self.kind) as u64);
        for (number, list) in [(4, &self.control), (5, &self.data)] {
            if !list.is_empty() {
                self.scratch.clear();
                for id in list {
                    encode_varint(*id, &mut self.scratch);
                }
                put_length_delimited(out, number, &self.scratch);
            }
        }
        append_varint_field_unless_zero(out, 6, self.start);
        append_varint_field_unless_zero(out, 7, self.micros);
        for (number, io) in [(8, &self.inputs), (9, &self.outputs)] {
            if let Some(io) = io {
                put_length_delimited(out, number, io);
            }
        }
        out.extend_from_slice(&self.attributes);
        out.extend_from_slice(&self.unknown);
    }
}

/// Parses the object of a metadata record, and appends the record to `out`.
pub(super) fn parse_and_append_metadata(
    json: &mut JsonCursor<'_>,
    out: &mut Vec<u8>,
) -> Result<(), TraceError> {
    let (mut version, mut attributes, mut unknown) = (String::new(), Vec::new(), Vec::new());
    let mut seen: Vec<String> = Vec::new();
    json.parse_object(|json, key| {
        if seen.iter().any(|known| known == key) {
            return Err(json.error_here(format!("a second `{}`", escape_and_shorten_name(key))));
        }
        seen.push(key.to_owned());
        if accept_null(json)? {
            return Ok(());
        }
        match key {
            "schema" => parse_and_check_schema_name(json)?,
            "version" => version.push_str(&parse_string(json)?),
            "attr" => json.parse_array(|json| parse_and_append_json_attribute(json, 2, &mut attributes, &mut Vec::new()))?,
            "unknown" => unknown = parse_base64(json)?,
            _ => {
                return Err(json.error_here(format!(
                    "`{}` is not a field of a metadata record; expected one of version, attr, unknown",
                    escape_and_shorten_name(key)
                )));
            }
        }
        Ok(())
    })?;
    if !version.is_empty() {
        put_length_delimited(out, 1, version.as_bytes());
    }
    out.extend_from_slice(&attributes);
    out.extend_from_slice(&unknown);
    Ok(())
}

/// Parses the format's name, which must be [`SCHEMA`](super::SCHEMA).
fn parse_and_check_schema_name(json: &mut JsonCursor<'_>) -> Result<(), TraceError> {
    let mut at = json.clone();
    let found = parse_string(json)?;
    if found == super::SCHEMA {
        Ok(())
    } else {
        Err(at.error_here(format!(
            "the schema is `{}`, expected `{}`",
            escape_and_shorten_name(&found),
            super::SCHEMA
        )))
    }
}

/// Consumes the next value and returns true if it is null, which means that the value is absent.
fn accept_null(json: &mut JsonCursor<'_>) -> Result<bool, TraceError> {
    match json.peek_byte() {
        Some(b'n') => Ok(json.parse_scalar()? == JsonScalarOrContainerStart::Null),
        _ => Ok(false),
    }
}

/// Parses a count.
pub(super) fn parse_count(json: &mut JsonCursor<'_>) -> Result<u64, TraceError> {
    let mut at = json.clone();
    let scalar = json.parse_scalar()?;
    parse_unsigned_up_to(&scalar, u64::MAX)
        .ok_or_else(|| at.error_here("expected a number from 0 to 2^64 - 1"))
}

/// Parses a string.
pub(super) fn parse_string<'a>(json: &mut JsonCursor<'a>) -> Result<Cow<'a, str>, TraceError> {
    let mut at = json.clone();
    match json.parse_scalar()? {
        JsonScalarOrContainerStart::Text(text) => Ok(text),
        _ => Err(at.error_here("expected a string")),
    }
}

/// Parses a list of ids.
pub(super) fn parse_ids(json: &mut JsonCursor<'_>, into: &mut Vec<u64>) -> Result<(), TraceError> {
    json.parse_array(|json| {
        into.push(parse_count(json)?);
        Ok(())
    })
}

/// Parses an enum value from its name or number.
fn parse_enum(json: &mut JsonCursor<'_>, names: &[&str]) -> Result<i32, TraceError> {
    let mut at = json.clone();
    let scalar = json.parse_scalar()?;
    let named = match &scalar {
        JsonScalarOrContainerStart::Text(text) => names.iter().position(|name| name == text),
        _ => None,
    };
    match named {
        Some(index) => Ok(index as i32),
        None => match scalar {
            JsonScalarOrContainerStart::Number(_) => {
                parse_signed_within(&scalar, i32::MIN.into(), i32::MAX.into())
            }
            _ => None,
        }
        .map(|value| value as i32)
        .ok_or_else(|| at.error_here(format!("expected one of {}", names.join(", ")))),
    }
}

/// Parses bytes in base64.
fn parse_base64(json: &mut JsonCursor<'_>) -> Result<Vec<u8>, TraceError> {
    let mut at = json.clone();
    let found = parse_string(json)?;
    base64::decode_base64(&found).ok_or_else(|| at.error_here("expected base64"))
}

fn append_varint_field_unless_zero(out: &mut Vec<u8>, number: u32, value: u64) {
    if value != 0 {
        encode_key(number, WireType::Varint, out);
        encode_varint(value, out);
    }
}

/// Appends a length-delimited field.
pub(super) fn put_length_delimited(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    encode_key(number, WireType::LengthDelimited, out);
    append_length_and_bytes(out, bytes);
}
