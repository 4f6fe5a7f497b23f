//! Rewriting of traces without losing fields that this version does not know.
//!
//! An untouched record is copied as it came. A record that is encoded anew keeps its unknown fields: those of
//! the node itself follow its known fields, and a part (inputs or outputs, an attribute) that holds any is kept
//! as it came. An [`RecordEdit`] changes parts of a record. A canonical file, with fields in the order of their
//! numbers, packed lists and no defaults, is encoded to the same bytes.

use super::TraceError;
use super::proto::{self, AttributeProto, IoInfo};
use super::wire::{FrameCursor, RawRecord, WireCursor, WireValue};
use prost::Message;
use prost::bytes::{Bytes, BytesMut};

mod edit;

pub use edit::{AttributeEdit, RecordEdit};

/// Treatment of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewriteMode {
    /// Copied byte for byte.
    Copy,
    /// Decoded and encoded again.
    Encode,
}

/// Rewrites the (decompressed) `contents` of a trace file.
///
/// Fails on records that are truncated or, with [`RewriteMode::Encode`], not valid messages.
pub fn rewrite(contents: &[u8], mode: RewriteMode) -> Result<Bytes, TraceError> {
    let mut out = BytesMut::with_capacity(contents.len());
    let mut frames = FrameCursor::new(contents);
    while let Some(record) = frames.next_record()? {
        match mode {
            RewriteMode::Copy => put(&mut out, record.bytes),
            RewriteMode::Encode => {
                let encoded =
                    encode(record).map_err(|e| e.in_record(record.number, record.offset))?;
                put(&mut out, &encoded);
            }
        }
    }
    Ok(out.freeze())
}

fn put(out: &mut BytesMut, message: &[u8]) {
    prost::encoding::encode_varint(message.len() as u64, out);
    out.extend_from_slice(message);
}

/// Top-level content of a message: its repeated or nested parts, and unknown fields.
#[derive(Default)]
struct MessageParts<'a> {
    attributes: Vec<&'a [u8]>,
    /// Repetitions of one nested message merge, which equals concatenating their bytes.
    inputs: Vec<u8>,
    outputs: Vec<u8>,
    unknown: Vec<u8>,
}

fn encode(record: RawRecord<'_>) -> Result<Vec<u8>, TraceError> {
    let invalid = |e: prost::DecodeError| TraceError::malformed(record.offset, e.to_string());
    let mut out = Vec::with_capacity(record.bytes.len());
    if record.number == 0 {
        let mut metadata = proto::GlobalMetadata::decode(record.bytes).map_err(invalid)?;
        let parts = split(record, 2, |_| None)?;
        let attributes = std::mem::take(&mut metadata.attr);
        metadata.encode(&mut out).expect("a vector grows as needed");
        put_attributes(&mut out, 2, &attributes, &parts.attributes)?;
        out.extend_from_slice(&parts.unknown);
        return Ok(out);
    }
    let mut node = proto::Node::decode(record.bytes).map_err(invalid)?;
    let parts = split(record, 10, |number| match number {
        8 => Some(IoField::Inputs),
        9 => Some(IoField::Outputs),
        _ => None,
    })?;
    let attributes = std::mem::take(&mut node.attr);
    let (inputs, outputs) = (node.inputs.take(), node.outputs.take());
    node.encode(&mut out).expect("a vector grows as needed");
    put_io(&mut out, 8, inputs, &parts.inputs)?;
    put_io(&mut out, 9, outputs, &parts.outputs)?;
    put_attributes(&mut out, 10, &attributes, &parts.attributes)?;
    out.extend_from_slice(&parts.unknown);
    Ok(out)
}

enum IoField {
    Inputs,
    Outputs,
}

/// Splits a message whose attributes, its last known field, have the number `attributes`.
fn split<'a>(
    record: RawRecord<'a>,
    attributes: u32,
    io: impl Fn(u32) -> Option<IoField>,
) -> Result<MessageParts<'a>, TraceError> {
    let mut parts = MessageParts::default();
    let mut cursor = WireCursor::new(record.bytes, record.offset);
    while !cursor.is_empty() {
        let start = cursor.offset() - record.offset;
        let (number, raw) = cursor.field()?;
        let end = cursor.offset() - record.offset;
        match (raw, io(number)) {
            (WireValue::Bytes(part, _), _) if number == attributes => parts.attributes.push(part),
            (WireValue::Bytes(part, _), Some(IoField::Inputs)) => {
                parts.inputs.extend_from_slice(part)
            }
            (WireValue::Bytes(part, _), Some(IoField::Outputs)) => {
                parts.outputs.extend_from_slice(part)
            }
            // Known fields have no gaps, so whatever is beyond the last is unknown.
            _ if number > attributes => {
                parts.unknown.extend_from_slice(&record.bytes[start..end]);
            }
            _ => {}
        }
    }
    Ok(parts)
}

fn put_field(out: &mut Vec<u8>, number: u32, message: &[u8]) {
    prost::encoding::encode_key(number, prost::encoding::WireType::LengthDelimited, out);
    prost::encoding::encode_varint(message.len() as u64, out);
    out.extend_from_slice(message);
}

fn put_io(
    out: &mut Vec<u8>,
    number: u32,
    known: Option<IoInfo>,
    raw: &[u8],
) -> Result<(), TraceError> {
    if let Some(known) = known {
        if holds_unknown(raw, |field| field <= 3)? {
            put_field(out, number, raw);
        } else {
            put_field(out, number, &known.encode_to_vec());
        }
    }
    Ok(())
}

fn put_attributes(
    out: &mut Vec<u8>,
    number: u32,
    known: &[AttributeProto],
    raw: &[&[u8]],
) -> Result<(), TraceError> {
    debug_assert_eq!(known.len(), raw.len(), "both readers see every attribute");
    for (attribute, raw) in known.iter().zip(raw) {
        if attribute_holds_unknown(raw)? {
            put_field(out, number, raw);
        } else {
            put_field(out, number, &attribute.encode_to_vec());
        }
    }
    Ok(())
}

fn holds_unknown(message: &[u8], known: impl Fn(u32) -> bool) -> Result<bool, TraceError> {
    let mut cursor = WireCursor::new(message, 0);
    while !cursor.is_empty() {
        if !known(cursor.field()?.0) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn attribute_holds_unknown(message: &[u8]) -> Result<bool, TraceError> {
    let mut cursor = WireCursor::new(message, 0);
    while !cursor.is_empty() {
        match cursor.field()? {
            (33.., _) => return Ok(true),
            // Lists have even field numbers and are messages with the one field `values`.
            (number @ 4..=32, WireValue::Bytes(list, _))
                if number.is_multiple_of(2) && holds_unknown(list, |field| field == 1)? =>
            {
                return Ok(true);
            }
            _ => {}
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::super::proto::{BoolList, attribute_proto::Value};
    use super::*;

    fn file(node: &[u8]) -> Vec<u8> {
        let mut out = BytesMut::new();
        put(
            &mut out,
            &proto::GlobalMetadata {
                version: "0.0.4".into(),
                attr: vec![],
            }
            .encode_to_vec(),
        );
        put(&mut out, node);
        out.to_vec()
    }

    fn sample() -> proto::Node {
        proto::Node {
            id: 300,
            name: "mm".into(),
            r#type: 4,
            ctrl_deps: vec![1],
            data_deps: vec![2, 300_000],
            duration_micros: 5,
            inputs: Some(IoInfo::default()),
            outputs: Some(IoInfo {
                values: "[1]".into(),
                ..IoInfo::default()
            }),
            attr: vec![
                AttributeProto {
                    name: "comm_type".into(),
                    value: Some(Value::Int64Val(0)),
                    ..AttributeProto::default()
                },
                AttributeProto {
                    name: "involved_dim".into(),
                    value: Some(Value::BoolList(BoolList {
                        values: vec![true, false],
                    })),
                    ..AttributeProto::default()
                },
            ],
            ..proto::Node::default()
        }
    }

    #[test]
    fn canonical_files_come_back_byte_for_byte() {
        let before = file(&sample().encode_to_vec());
        assert_eq!(rewrite(&before, RewriteMode::Copy).unwrap(), before);
        assert_eq!(rewrite(&before, RewriteMode::Encode).unwrap(), before);
    }

    #[test]
    fn unknown_fields_survive_at_every_level() {
        let mut node = sample();
        let attribute = node.attr.pop().unwrap();
        let mut bytes = node.encode_to_vec();
        // Unknown field 40 (varint 9) inside an attribute's list, inside its oneof's message.
        let mut list = BoolList { values: vec![true] }.encode_to_vec();
        list.extend([0xc0, 0x02, 9]);
        let mut odd = AttributeProto {
            value: None,
            ..attribute.clone()
        }
        .encode_to_vec();
        put_field(&mut odd, 28, &list);
        put_field(&mut bytes, 10, &odd);
        // And one in the node itself.
        bytes.extend([0xc0, 0x02, 7]);
        let before = file(&bytes);
        let after = rewrite(&before, RewriteMode::Encode).unwrap();
        assert_eq!(after, before, "nothing but unknown fields was unusual");
    }

    #[test]
    fn unusual_encodings_become_canonical_with_equal_nodes() {
        // Unpacked dependencies and fields out of order.
        let node = sample();
        let mut bytes = Vec::new();
        prost::encoding::string::encode(2, &node.name, &mut bytes);
        for dep in &node.data_deps {
            prost::encoding::uint64::encode(5, dep, &mut bytes);
        }
        let rest = proto::Node {
            name: String::new(),
            data_deps: vec![],
            ..node.clone()
        };
        bytes.extend(rest.encode_to_vec());
        let after = rewrite(&file(&bytes), RewriteMode::Encode).unwrap();
        assert_eq!(after, file(&node.encode_to_vec()));
    }
}
