//! Converts records of schemas 0.0.2 and 0.0.3, in which inputs and outputs are text and attributes state their type.

use super::{CURRENT, SchemaGeneration, decode_text, other_generation_hint, v001};
use crate::format::TraceError;
use crate::format::proto::{self, AttributeProto, IoInfo, Node, attribute_proto::Value};
use crate::format::wire::{RawRecord, WireCursor, WireValue};
use prost::Message;

/// Collective types of the current schema that correspond to the types of schemas 0.0.2 and 0.0.3: all-reduce,
/// all-to-all, all-gather, reduce-scatter and, since August 2023, broadcast.
const COLLECTIVES: [i64; 5] = [0, 6, 2, 7, 5];

/// Type of an attribute's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OldValueKind {
    Bool,
    Float,
    Uint,
    Int,
    Text,
}

/// Types of the value fields, starting with field 4: first scalars, then lists.
pub(super) type OldValueKindsByField = [OldValueKind];

pub(super) static ATTRIBUTES_002: [OldValueKind; 3] =
    [OldValueKind::Float, OldValueKind::Int, OldValueKind::Text];
pub(super) static ATTRIBUTES_003A: [OldValueKind; 4] = [
    OldValueKind::Bool,
    OldValueKind::Float,
    OldValueKind::Int,
    OldValueKind::Text,
];
pub(super) static ATTRIBUTES_003B: [OldValueKind; 5] = [
    OldValueKind::Bool,
    OldValueKind::Float,
    OldValueKind::Uint,
    OldValueKind::Int,
    OldValueKind::Text,
];

/// Converts a metadata record of schema 0.0.3.
pub(super) fn convert_v003_metadata(
    record: RawRecord<'_>,
    attributes: &OldValueKindsByField,
) -> Result<proto::GlobalMetadata, TraceError> {
    let mut metadata = proto::GlobalMetadata {
        version: CURRENT.to_owned(),
        attr: Vec::new(),
    };
    let mut cursor = WireCursor::new(record.bytes, record.offset);
    while !cursor.is_empty() {
        let at = cursor.file_offset();
        match cursor.read_field()? {
            (1, WireValue::Bytes(message, offset)) => {
                metadata
                    .attr
                    .push(convert_attribute(message, offset, attributes)?);
            }
            (number, _) => return Err(unknown_field_error(at, "metadata", number)),
        }
    }
    Ok(metadata)
}

/// Converts a metadata record from the first days of schema 0.0.4, with attributes in field 1.
pub(super) fn convert_early_v004_metadata(record: RawRecord<'_>) -> Result<Vec<u8>, TraceError> {
    let mut out = proto::GlobalMetadata {
        version: CURRENT.to_owned(),
        attr: Vec::new(),
    }
    .encode_to_vec();
    let mut cursor = WireCursor::new(record.bytes, record.offset);
    while !cursor.is_empty() {
        let at = cursor.file_offset();
        match cursor.read_field()? {
            (1, WireValue::Bytes(attribute, _)) => prost::encoding::bytes::encode(
                2,
                &bytes::Bytes::copy_from_slice(attribute),
                &mut out,
            ),
            (number, _) => return Err(unknown_field_error(at, "metadata", number)),
        }
    }
    Ok(out)
}

fn unknown_field_error(at: usize, what: &str, number: u32) -> TraceError {
    TraceError::malformed_at(
        at,
        format!("{what} has no field {number} in this schema generation"),
    )
}

/// Converts a node of `generation` (0.0.2 or 0.0.3) to the current schema.
pub(super) fn convert_v002_or_v003_node(
    record: RawRecord<'_>,
    generation: SchemaGeneration,
    attributes: &OldValueKindsByField,
) -> Result<Node, TraceError> {
    let mut node = Node::default();
    let mut kind = 0;
    let mut texts: [Option<String>; 6] = Default::default();
    let mut found = Vec::new();
    let mut cursor = WireCursor::new(record.bytes, record.offset);
    while !cursor.is_empty() {
        let at = cursor.file_offset();
        match cursor.read_field()? {
            (1, WireValue::Varint(id)) => node.id = id,
            (2, WireValue::Bytes(name, _)) => node.name = decode_text(name, at)?,
            (3, WireValue::Varint(value)) => kind = value,
            (4, WireValue::Varint(id)) => node.data_deps.push(id),
            (number @ 5..=10, WireValue::Bytes(bytes, _)) => {
                texts[number as usize - 5] = Some(decode_text(bytes, at)?);
            }
            (11, WireValue::Bytes(message, offset)) => {
                found.push(convert_attribute(message, offset, attributes)?);
            }
            (number, _) => return Err(unknown_field_error(at, "a node", number)),
        }
    }
    node.r#type = match generation {
        SchemaGeneration::V002 => v001::current_node_type(kind),
        // Schema 0.0.3 has METADATA as type 1, as in the current schema.
        _ => i32::try_from(kind).ok().filter(|kind| *kind <= 7),
    }
    .ok_or_else(|| {
        let found = format!("node type {kind} does not exist in {generation}");
        TraceError::invalid_node(node.id, found, other_generation_hint())
    })?;
    let [values, shapes, types, out_values, out_shapes, out_types] = texts;
    node.inputs = build_io_info(values, shapes, types);
    node.outputs = build_io_info(out_values, out_shapes, out_types);
    for attribute in found {
        apply_attribute(&mut node, attribute)?;
    }
    Ok(node)
}

fn build_io_info(
    values: Option<String>,
    shapes: Option<String>,
    types: Option<String>,
) -> Option<IoInfo> {
    let any = values.is_some() || shapes.is_some() || types.is_some();
    any.then(|| IoInfo {
        values: values.unwrap_or_default(),
        shapes: shapes.unwrap_or_default(),
        types: types.unwrap_or_default(),
    })
}

/// Adds an attribute to `node` under its current name, or sets the field that replaced it.
fn apply_attribute(node: &mut Node, mut attribute: AttributeProto) -> Result<(), TraceError> {
    let number = match attribute.value {
        Some(Value::Int64Val(value)) => u64::try_from(value).ok(),
        Some(Value::Uint64Val(value)) => Some(value),
        _ => None,
    };
    match (attribute.name.as_str(), number) {
        ("runtime", Some(micros)) => {
            node.duration_micros = micros;
            return Ok(());
        }
        ("is_host_op", _) => attribute.name = "is_cpu_op".to_owned(),
        ("comm_type", Some(old)) => {
            let new = usize::try_from(old).ok().and_then(|i| COLLECTIVES.get(i));
            match new {
                Some(&new) => attribute.value = Some(Value::Int64Val(new)),
                None if node.r#type == 7 => {
                    return Err(TraceError::invalid_node(
                        node.id,
                        format!(
                            "collective {old} does not exist in 0.0.2 and 0.0.3, which have 0 to 4"
                        ),
                        other_generation_hint(),
                    ));
                }
                // Sends and receives have no collective type, so drop the attribute.
                None => {}
            }
        }
        _ => {}
    }
    node.attr.push(attribute);
    Ok(())
}

/// Collects the value of an attribute while the attribute's fields are read.
#[derive(Default)]
struct OneAttributeValueCollector {
    number: Option<u64>,
    real: Option<f32>,
    bytes: Option<Vec<u8>>,
    numbers: Vec<u64>,
    reals: Vec<f32>,
    chunks: Vec<Vec<u8>>,
}

fn convert_attribute(
    message: &[u8],
    offset: usize,
    fields: &OldValueKindsByField,
) -> Result<AttributeProto, TraceError> {
    let mut attribute = AttributeProto::default();
    let mut values = OneAttributeValueCollector::default();
    let mut kind = None;
    let mut cursor = WireCursor::new(message, offset);
    while !cursor.is_empty() {
        let at = cursor.file_offset();
        let (number, raw) = cursor.read_field()?;
        match (number, raw) {
            (1, WireValue::Bytes(name, _)) => attribute.name = decode_text(name, at)?,
            // The type in field 2 is redundant, because the value's field number implies the type.
            (2, WireValue::Varint(_)) => {}
            (3, WireValue::Bytes(doc, _)) => attribute.doc_string = decode_text(doc, at)?,
            _ => {
                let index = number as usize;
                let index = index.checked_sub(4).filter(|i| *i < 2 * fields.len());
                let index = index.ok_or_else(|| unknown_field_error(at, "an attribute", number))?;
                let (list, index) = (index >= fields.len(), index % fields.len());
                if kind.is_some_and(|kind| kind != (list, fields[index])) {
                    return Err(TraceError::malformed_at(at, "an attribute has two values"));
                }
                kind = Some((list, fields[index]));
                values.apply_value(list, fields[index], raw, at)?;
            }
        }
    }
    attribute.value = kind.map(|(list, kind)| values.into_current_schema_value(list, kind));
    Ok(attribute)
}

impl OneAttributeValueCollector {
    fn apply_value(
        &mut self,
        list: bool,
        kind: OldValueKind,
        raw: WireValue<'_>,
        at: usize,
    ) -> Result<(), TraceError> {
        match (kind, raw) {
            (
                OldValueKind::Bool | OldValueKind::Uint | OldValueKind::Int,
                WireValue::Varint(value),
            ) if list => {
                self.numbers.push(value);
            }
            (
                OldValueKind::Bool | OldValueKind::Uint | OldValueKind::Int,
                WireValue::Varint(value),
            ) => self.number = Some(value),
            (OldValueKind::Float, WireValue::Fixed32(bits)) if list => {
                self.reals.push(f32::from_bits(bits))
            }
            (OldValueKind::Float, WireValue::Fixed32(bits)) => {
                self.real = Some(f32::from_bits(bits))
            }
            (OldValueKind::Text, WireValue::Bytes(bytes, _)) if list => {
                self.chunks.push(bytes.to_vec())
            }
            (OldValueKind::Text, WireValue::Bytes(bytes, _)) => self.bytes = Some(bytes.to_vec()),
            _ => {
                return Err(TraceError::malformed_at(
                    at,
                    "an attribute's value has the wrong wire type",
                ));
            }
        }
        Ok(())
    }

    /// Returns the value in the current schema's form. Text that is not UTF-8 becomes bytes.
    fn into_current_schema_value(self, list: bool, kind: OldValueKind) -> Value {
        let number = self.number.unwrap_or(0);
        let numbers = self.numbers;
        match (kind, list) {
            (OldValueKind::Bool, false) => Value::BoolVal(number != 0),
            (OldValueKind::Uint, false) => Value::Uint64Val(number),
            (OldValueKind::Int, false) => Value::Int64Val(number as i64),
            (OldValueKind::Float, false) => Value::FloatVal(self.real.unwrap_or(0.0)),
            (OldValueKind::Text, false) => {
                match String::from_utf8(self.bytes.unwrap_or_default()) {
                    Ok(text) => Value::StringVal(text),
                    Err(e) => Value::BytesVal(e.into_bytes().into()),
                }
            }
            (OldValueKind::Bool, true) => Value::BoolList(proto::BoolList {
                values: numbers.into_iter().map(|v| v != 0).collect(),
            }),
            (OldValueKind::Uint, true) => Value::Uint64List(proto::Uint64List { values: numbers }),
            (OldValueKind::Int, true) => Value::Int64List(proto::Int64List {
                values: numbers.into_iter().map(|v| v as i64).collect(),
            }),
            (OldValueKind::Float, true) => {
                Value::FloatList(proto::FloatList { values: self.reals })
            }
            (OldValueKind::Text, true) => {
                let texts = self.chunks.iter().map(|c| String::from_utf8(c.clone()));
                match texts.collect::<Result<Vec<_>, _>>() {
                    Ok(values) => Value::StringList(proto::StringList { values }),
                    Err(_) => Value::BytesList(proto::BytesList {
                        values: self.chunks.into_iter().map(Into::into).collect(),
                    }),
                }
            }
        }
    }
}
