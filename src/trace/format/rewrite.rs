//! Edits the records of a trace. Content that an edit does not name, including unknown fields, is copied byte for byte.

use crate::format::TraceError;
use crate::format::attr::AttrView;
use crate::format::encoder::{self, ProtobufMessageBuilder};
use crate::format::wire::{RawRecord, WireCursor, WireValue};

/// New value for an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeSetOrRemoval<'e> {
    /// A number. An existing attribute keeps its type, and a new attribute is a `uint64`.
    Count(u64),
    /// A string. An existing attribute keeps its type if it is text or the new text is a number.
    Text(&'e str),
    /// Removes the attribute.
    Remove,
}

/// An edit of one record; `None` leaves a field unchanged. Everything else, including unknown fields, is copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordEdit<'e> {
    /// New id of a node.
    pub id: Option<u64>,
    /// New name of a node.
    pub name: Option<&'e str>,
    /// New control dependencies.
    pub control: Option<&'e [u64]>,
    /// New data dependencies.
    pub data: Option<&'e [u64]>,
    /// New `values` text of the inputs.
    pub values: Option<&'e str>,
    /// Names of attributes, with their new values. An attribute that the record lacks is added at the end.
    pub attributes: &'e [(&'e str, AttributeSetOrRemoval<'e>)],
}

/// Field numbers in the schema's messages.
const ID: u32 = 1;
const NAME: u32 = 2;
const CONTROL: u32 = 4;
const DATA: u32 = 5;
const INPUTS: u32 = 8;
const NODE_ATTRIBUTES: u32 = 10;
const METADATA_ATTRIBUTES: u32 = 2;
const VALUES: u32 = 1;
const ATTRIBUTE_NAME: u32 = 1;
const FIRST_VALUE: u32 = 3;
const LAST_VALUE: u32 = 32;
const UINT64: u32 = 13;
const STRING: u32 = 29;
const BYTES: u32 = 31;

impl RecordEdit<'_> {
    /// Returns true if the edit changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Writes the edited `record` into `out`, which must be empty.
    ///
    /// Fails if the record cannot be split into fields.
    pub fn write_edited(
        &self,
        record: RawRecord<'_>,
        out: &mut ProtobufMessageBuilder,
    ) -> Result<(), TraceError> {
        self.edit_fields(record, out)
            .map_err(|e| e.in_record(record.number, record.offset))
    }

    /// Appends the edited `record` to a file. An empty edit copies the record. `message` is scratch space.
    ///
    /// Fails if the record cannot be split into fields.
    pub fn append_edited_record(
        &self,
        record: RawRecord<'_>,
        message: &mut ProtobufMessageBuilder,
        file: &mut Vec<u8>,
    ) -> Result<(), TraceError> {
        if self.is_empty() {
            encoder::append_frame(file, record.bytes);
            return Ok(());
        }
        message.clear();
        self.write_edited(record, message)?;
        message.append_frame_to(file);
        Ok(())
    }

    fn edit_fields(
        &self,
        record: RawRecord<'_>,
        out: &mut ProtobufMessageBuilder,
    ) -> Result<(), TraceError> {
        let node = record.number > 0;
        let attributes = if node {
            NODE_ATTRIBUTES
        } else {
            METADATA_ATTRIBUTES
        };
        let (mut control, mut data, mut values) = (self.control, self.data, self.values);
        let mut set = vec![false; self.attributes.len()];
        let mut unknown = Vec::new();
        let mut cursor = WireCursor::new(record.bytes, record.offset);
        while !cursor.is_empty() {
            let start = cursor.file_offset() - record.offset;
            let (number, raw) = cursor.read_field()?;
            let whole = &record.bytes[start..cursor.file_offset() - record.offset];
            match (number, raw) {
                (ID, _) if node && self.id.is_some() => {
                    out.append_varint(ID, self.id.unwrap_or_default());
                }
                (NAME, _) if node && self.name.is_some() => {
                    out.append_bytes(NAME, self.name.unwrap_or_default().as_bytes());
                }
                (CONTROL, _) if node && self.control.is_some() => {
                    out.append_packed(CONTROL, control.take().unwrap_or(&[]));
                }
                (DATA, _) if node && self.data.is_some() => {
                    out.append_packed(DATA, data.take().unwrap_or(&[]));
                }
                (INPUTS, WireValue::Bytes(inputs, at)) if node && self.values.is_some() => {
                    let inputs = edit_input_values(inputs, at, values.take())?;
                    out.append_bytes(INPUTS, inputs.as_bytes());
                }
                (_, WireValue::Bytes(message, at)) if number == attributes => {
                    let name = AttrView::scan_attribute(message, at)?.name;
                    let place = self
                        .attributes
                        .iter()
                        .position(|(wanted, _)| wanted.as_bytes() == name);
                    match place {
                        None => out.append_raw(whole),
                        Some(i) => {
                            // If several attributes have the same name, readers use the last, so write the new value
                            // only once.
                            if !std::mem::replace(&mut set[i], true)
                                && let Some(message) =
                                    edit_attribute_value(message, at, self.attributes[i].1)?
                            {
                                out.append_bytes(attributes, message.as_bytes());
                            }
                        }
                    }
                }
                _ if number > attributes => unknown.extend_from_slice(whole),
                _ => out.append_raw(whole),
            }
        }
        out.append_packed(CONTROL, control.unwrap_or(&[]));
        out.append_packed(DATA, data.unwrap_or(&[]));
        if let Some(values) = values {
            out.append_bytes(INPUTS, edit_input_values(&[], 0, Some(values))?.as_bytes());
        }
        for (&(name, value), set) in self.attributes.iter().zip(set) {
            if !set && value != AttributeSetOrRemoval::Remove {
                let mut message = ProtobufMessageBuilder::default();
                message.append_bytes(ATTRIBUTE_NAME, name.as_bytes());
                append_value_in_old_type_if_possible(&mut message, None, value);
                out.append_bytes(attributes, message.as_bytes());
            }
        }
        out.append_raw(&unknown);
        Ok(())
    }
}

/// Returns a node's inputs with new values, or without values.
fn edit_input_values(
    inputs: &[u8],
    at: usize,
    values: Option<&str>,
) -> Result<ProtobufMessageBuilder, TraceError> {
    let mut out = ProtobufMessageBuilder::default();
    if let Some(values) = values {
        out.append_bytes(VALUES, values.as_bytes());
    }
    let mut cursor = WireCursor::new(inputs, at);
    while !cursor.is_empty() {
        let start = cursor.file_offset() - at;
        if cursor.read_field()?.0 != VALUES {
            out.append_raw(&inputs[start..cursor.file_offset() - at]);
        }
    }
    Ok(out)
}

/// Returns an attribute with a new value, or `None` if the attribute is removed.
fn edit_attribute_value(
    message: &[u8],
    at: usize,
    value: AttributeSetOrRemoval<'_>,
) -> Result<Option<ProtobufMessageBuilder>, TraceError> {
    if value == AttributeSetOrRemoval::Remove {
        return Ok(None);
    }
    let mut out = ProtobufMessageBuilder::default();
    let mut kept = None;
    let mut cursor = WireCursor::new(message, at);
    while !cursor.is_empty() {
        let start = cursor.file_offset() - at;
        let (number, _) = cursor.read_field()?;
        match number {
            FIRST_VALUE..=LAST_VALUE => kept = Some(number),
            _ => out.append_raw(&message[start..cursor.file_offset() - at]),
        }
    }
    append_value_in_old_type_if_possible(&mut out, kept, value);
    Ok(Some(out))
}

/// Appends `value`; keeps the old value's type if that type can represent `value`.
fn append_value_in_old_type_if_possible(
    out: &mut ProtobufMessageBuilder,
    kept: Option<u32>,
    value: AttributeSetOrRemoval<'_>,
) {
    let count = match value {
        AttributeSetOrRemoval::Remove => return,
        AttributeSetOrRemoval::Count(count) => count,
        AttributeSetOrRemoval::Text(text) => match (kept, text.parse()) {
            (Some(number), Ok(count)) if number != STRING && number != BYTES => count,
            (kept, _) => {
                let number = kept.filter(|&number| number == BYTES).unwrap_or(STRING);
                return out.append_bytes(number, text.as_bytes());
            }
        },
    };
    // The number fits in both an int32 and a uint32.
    let narrow = u32::try_from(count).ok().filter(|&n| n <= i32::MAX as u32);
    let signed = count <= i64::MAX as u64;
    match (kept.unwrap_or(UINT64), narrow) {
        // A double stores whole numbers exactly up to 2^53, and a float up to 2^24.
        (number @ 3, _) if count <= 1 << 53 => out.append_fixed64(number, (count as f64).to_bits()),
        (number @ 5, _) if count <= 1 << 24 => out.append_fixed32(number, (count as f32).to_bits()),
        (number @ (7 | 11), Some(_)) => out.append_varint(number, count),
        (number @ 9, _) if signed => out.append_varint(number, count),
        // Zigzag encoding doubles a non-negative number.
        (number @ 15, Some(_)) => out.append_varint(number, count << 1),
        (number @ 17, _) if signed => out.append_varint(number, count << 1),
        (number @ (19 | 23), Some(narrow)) => out.append_fixed32(number, narrow),
        (number @ 21, _) => out.append_fixed64(number, count),
        (number @ 25, _) if signed => out.append_fixed64(number, count),
        (number @ (STRING | BYTES), _) => out.append_bytes(number, count.to_string().as_bytes()),
        _ => out.append_varint(UINT64, count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::proto::attribute_proto::Value;
    use crate::format::proto::{AttributeProto, IoInfo, Node};
    use prost::Message;

    fn build_attribute(name: &str, value: Value) -> AttributeProto {
        AttributeProto {
            name: name.to_owned(),
            doc_string: "kept".to_owned(),
            value: Some(value),
        }
    }

    fn apply_record_edit(bytes: &[u8], edit: RecordEdit<'_>) -> Vec<u8> {
        let record = RawRecord {
            number: 1,
            offset: 0,
            bytes,
        };
        let mut out = ProtobufMessageBuilder::default();
        edit.write_edited(record, &mut out).unwrap();
        out.as_bytes().to_vec()
    }

    #[test]
    fn record_fields_not_edited_stay_byte_for_byte() {
        // The record has fields out of order, unpacked dependencies, and an unknown field (40, a varint of 7).
        let node = Node {
            id: 9,
            name: "mm".to_owned(),
            attr: vec![build_attribute("x", Value::Int32Val(3))],
            ..Node::default()
        };
        let mut bytes = Vec::new();
        prost::encoding::uint64::encode(5, &77, &mut bytes);
        bytes.extend(node.encode_to_vec());
        bytes.extend([0xc0, 0x02, 7]);
        assert_eq!(apply_record_edit(&bytes, RecordEdit::default()), bytes);
        let after = apply_record_edit(
            &bytes,
            RecordEdit {
                data: Some(&[1, 2]),
                attributes: &[("y", AttributeSetOrRemoval::Count(5))],
                ..RecordEdit::default()
            },
        );
        assert!(after.ends_with(&[0xc0, 0x02, 7]));
        let after = Node::decode(&after[..]).unwrap();
        assert_eq!(after.data_deps, [1, 2]);
        assert_eq!(after.attr[0], node.attr[0]);
        assert_eq!(after.attr[1].value, Some(Value::Uint64Val(5)));
    }

    #[test]
    fn numbers_keep_their_types_where_these_have_room() {
        for (before, count, after) in [
            (Value::Int32Val(1), 6, Value::Int32Val(6)),
            (Value::Int32Val(1), 1 << 40, Value::Uint64Val(1 << 40)),
            (Value::Int64Val(1), 6, Value::Int64Val(6)),
            (Value::Sint32Val(-1), 6, Value::Sint32Val(6)),
            (Value::Sint64Val(-1), 6, Value::Sint64Val(6)),
            (Value::Fixed32Val(1), 6, Value::Fixed32Val(6)),
            (Value::Sfixed64Val(1), 6, Value::Sfixed64Val(6)),
            (Value::DoubleVal(1.0), 6, Value::DoubleVal(6.0)),
            (
                Value::StringVal("1".into()),
                6,
                Value::StringVal("6".into()),
            ),
            (Value::BoolVal(true), 6, Value::Uint64Val(6)),
        ] {
            let node = Node {
                attr: vec![
                    build_attribute("n", before.clone()),
                    build_attribute("m", Value::BoolVal(true)),
                    build_attribute("n", before),
                ],
                ..Node::default()
            };
            let set = RecordEdit {
                attributes: &[("n", AttributeSetOrRemoval::Count(count))],
                ..RecordEdit::default()
            };
            let edited = Node::decode(&apply_record_edit(&node.encode_to_vec(), set)[..]).unwrap();
            let expected = [build_attribute("n", after), node.attr[1].clone()];
            assert_eq!(edited.attr, expected);
        }
    }

    #[test]
    fn texts_and_inputs_are_edited_and_attributes_removed() {
        let node = Node {
            inputs: Some(IoInfo {
                values: "old".into(),
                shapes: "[]".into(),
                types: String::new(),
            }),
            attr: vec![
                build_attribute("pg_name", Value::Int32Val(1)),
                build_attribute("gone", Value::StringVal("x".into())),
            ],
            ctrl_deps: vec![4],
            ..Node::default()
        };
        let edit = RecordEdit {
            control: Some(&[]),
            values: Some("new"),
            attributes: &[
                ("gone", AttributeSetOrRemoval::Remove),
                ("pg_name", AttributeSetOrRemoval::Text("12")),
            ],
            ..RecordEdit::default()
        };
        let after = Node::decode(&apply_record_edit(&node.encode_to_vec(), edit)[..]).unwrap();
        let inputs = after.inputs.unwrap();
        assert_eq!((&*inputs.values, &*inputs.shapes), ("new", "[]"));
        assert_eq!(
            after.attr,
            [build_attribute("pg_name", Value::Int32Val(12))]
        );
        assert!(after.ctrl_deps.is_empty());
        let text = RecordEdit {
            attributes: &[("pg_name", AttributeSetOrRemoval::Text("tp"))],
            ..RecordEdit::default()
        };
        let after = Node::decode(&apply_record_edit(&node.encode_to_vec(), text)[..]).unwrap();
        let expected = build_attribute("pg_name", Value::StringVal("tp".into()));
        assert_eq!(after.attr[0], expected);
    }
}
