//! Writes traces as JSON Lines.

use crate::format::TraceError;
use crate::format::text::SCHEMA;
use crate::format::text::base64;
use crate::format::text::json::put_string;
use crate::format::text::message::NODE_TYPES;
use crate::format::text::values::{AttributeValueType, read_minimal_varint};
use crate::format::wire::{RawRecord, WireCursor, WireValue, visit_repeated_varints};
use prost::encoding::WireType;
use std::io::Write;

/// Writes records as lines of text.
#[derive(Debug)]
pub struct JsonLineWriter<W> {
    out: W,
    line: Vec<u8>,
}

impl<W: Write> JsonLineWriter<W> {
    /// Creates a writer that writes to `out`.
    pub fn new(out: W) -> Self {
        Self {
            out,
            line: Vec::new(),
        }
    }

    /// Writes a record of the current schema. The caller must write the metadata first.
    ///
    /// Fails if the message is invalid, if a name is not UTF-8, or if writing fails.
    pub fn write_record(&mut self, record: RawRecord<'_>) -> Result<(), TraceError> {
        self.line.clear();
        let put = match record.number {
            0 => put_metadata(&mut self.line, record),
            _ => put_node(&mut self.line, record),
        };
        put.map_err(|e| e.in_record(record.number, record.offset))?;
        self.line.push(b'\n');
        self.out
            .write_all(&self.line)
            .map_err(|source| TraceError::from_io("", "write", source))
    }

    /// Returns the inner writer, which has received all data but has not been flushed.
    pub fn into_inner(self) -> W {
        self.out
    }
}

fn put_metadata(out: &mut Vec<u8>, record: RawRecord<'_>) -> Result<(), TraceError> {
    let mut version: &[u8] = &[];
    let (mut attributes, mut unknown) = (Vec::new(), Vec::new());
    let mut cursor = WireCursor::new(record.bytes, record.offset);
    while !cursor.is_empty() {
        let at = cursor.file_offset();
        match cursor.read_field()? {
            (1, WireValue::Bytes(text, _)) => version = text,
            (2, WireValue::Bytes(attribute, at)) => attributes.push((attribute, at)),
            (1 | 2, _) => return Err(wrong_wire_type_error(at)),
            _ => unknown.extend_from_slice(bytes_between(record, at, cursor.file_offset())),
        }
    }
    out.extend_from_slice(b"{\"schema\":");
    put_string(out, SCHEMA);
    if !version.is_empty() {
        out.extend_from_slice(b",\"version\":");
        put_text(out, version, record.offset)?;
    }
    put_attributes_and_unknown(out, &attributes, &unknown)
}

fn put_node(out: &mut Vec<u8>, record: RawRecord<'_>) -> Result<(), TraceError> {
    let [mut id, mut kind, mut start, mut micros] = [0; 4];
    let mut name: &[u8] = &[];
    let mut ids = [Vec::new(), Vec::new()];
    let mut io: [Option<Vec<u8>>; 2] = [None, None];
    let (mut attributes, mut unknown) = (Vec::new(), Vec::new());
    let mut cursor = WireCursor::new(record.bytes, record.offset);
    while !cursor.is_empty() {
        let at = cursor.file_offset();
        match cursor.read_field()? {
            (1, WireValue::Varint(v)) => id = v,
            (2, WireValue::Bytes(text, _)) => name = text,
            (3, WireValue::Varint(v)) => kind = v,
            (number @ (4 | 5), raw) => visit_repeated_varints(raw, at, |dep| {
                ids[number as usize - 4].push(dep);
                Ok(())
            })?,
            (6, WireValue::Varint(v)) => start = v,
            (7, WireValue::Varint(v)) => micros = v,
            // Inputs and outputs may be split over several fields, which protobuf merges.
            (number @ (8 | 9), WireValue::Bytes(part, _)) => {
                let whole = io[number as usize - 8].get_or_insert_default();
                whole.extend_from_slice(part);
            }
            (10, WireValue::Bytes(attribute, at)) => attributes.push((attribute, at)),
            (1..=10, _) => return Err(wrong_wire_type_error(at)),
            _ => unknown.extend_from_slice(bytes_between(record, at, cursor.file_offset())),
        }
    }
    write!(out, "{{\"id\":{id}").expect("a vector grows as needed");
    if !name.is_empty() {
        out.extend_from_slice(b",\"name\":");
        put_text(out, name, record.offset)?;
    }
    // Protobuf truncates enums to 32 bits, regardless of the varint's length.
    match usize::try_from(kind as i32)
        .ok()
        .and_then(|i| NODE_TYPES.get(i))
    {
        Some(name) => write!(out, ",\"type\":\"{name}\""),
        None => write!(out, ",\"type\":{}", kind as i32),
    }
    .expect("a vector grows as needed");
    for (key, list) in ["ctrl_deps", "data_deps"].iter().zip(&ids) {
        for (i, id) in list.iter().enumerate() {
            match i {
                0 => write!(out, ",\"{key}\":[{id}"),
                _ => write!(out, ",{id}"),
            }
            .expect("a vector grows as needed");
        }
        if !list.is_empty() {
            out.push(b']');
        }
    }
    for (key, value) in [("start_time_micros", start), ("duration_micros", micros)] {
        if value != 0 {
            write!(out, ",\"{key}\":{value}").expect("a vector grows as needed");
        }
    }
    for (key, io) in ["inputs", "outputs"].iter().zip(&io) {
        if let Some(io) = io {
            write!(out, ",\"{key}\":").expect("a vector grows as needed");
            put_inputs_or_outputs(out, io)?;
        }
    }
    put_attributes_and_unknown(out, &attributes, &unknown)
}

fn put_attributes_and_unknown(
    out: &mut Vec<u8>,
    attributes: &[(&[u8], usize)],
    unknown: &[u8],
) -> Result<(), TraceError> {
    if !attributes.is_empty() {
        out.extend_from_slice(b",\"attr\":");
        for (i, (attribute, at)) in attributes.iter().enumerate() {
            out.push(if i == 0 { b'[' } else { b',' });
            let start = out.len();
            if !put_attribute(out, attribute, *at)? {
                out.truncate(start);
                put_raw_record(out, "raw", attribute);
            }
        }
        out.push(b']');
    }
    if !unknown.is_empty() {
        out.extend_from_slice(b",\"unknown\":\"");
        base64::append_base64(out, unknown);
        out.push(b'"');
    }
    out.push(b'}');
    Ok(())
}

fn put_raw_record(out: &mut Vec<u8>, key: &str, message: &[u8]) {
    write!(out, "{{\"{key}\":\"").expect("a vector grows as needed");
    base64::append_base64(out, message);
    out.extend_from_slice(b"\"}");
}

/// Appends an attribute. Returns `false` if its encoding is not the one that the schema's writers use.
fn put_attribute(out: &mut Vec<u8>, message: &[u8], offset: usize) -> Result<bool, TraceError> {
    let mut cursor = WireCursor::new(message, offset);
    let mut last = 0;
    out.push(b'{');
    while !cursor.is_empty() {
        let Some(key) = read_minimal_varint(&mut cursor)? else {
            return Ok(false);
        };
        let (number, wire) = ((key >> 3) as u32, key & 7);
        // In the writers' encoding, fields are in ascending order of numbers, and the attribute has a single value in
        // its last field.
        if number <= last || last > 2 || key > u64::from(u32::MAX) {
            return Ok(false);
        }
        out.extend_from_slice(if last == 0 { b"" } else { b"," });
        last = number;
        let text = match number {
            1 => Some("name"),
            2 => Some("doc_string"),
            _ => None,
        };
        if let Some(key) = text {
            let Some(text) = read_length_delimited(&mut cursor, wire)? else {
                return Ok(false);
            };
            let Ok(text) = std::str::from_utf8(text) else {
                return Ok(false);
            };
            if text.is_empty() {
                return Ok(false);
            }
            write!(out, "\"{key}\":").expect("a vector grows as needed");
            put_string(out, text);
            continue;
        }
        let Some((kind, list)) = AttributeValueType::kind_and_list_flag_of_field(number) else {
            return Ok(false);
        };
        let end = if list { "list" } else { "val" };
        write!(out, "\"{}_{end}\":", kind.name()).expect("a vector grows as needed");
        let sound = if list {
            match read_length_delimited(&mut cursor, wire)? {
                Some(list) => put_list(out, kind, list)?,
                None => false,
            }
        } else if wire != kind.wire_type() as u64 {
            false
        } else if wire == WireType::LengthDelimited as u64 {
            read_length_delimited(&mut cursor, wire)?
                .is_some_and(|bytes| kind.put_json(out, WireValue::Bytes(bytes, 0)))
        } else {
            kind.read_next_packed(&mut cursor)?
                .is_some_and(|raw| kind.put_json(out, raw))
        };
        if !sound {
            return Ok(false);
        }
    }
    out.push(b'}');
    Ok(true)
}

/// Returns the bytes of a length-delimited field. Returns `None` for other wire types, or if the length is not
/// minimally encoded.
fn read_length_delimited<'a>(
    cursor: &mut WireCursor<'a>,
    wire: u64,
) -> Result<Option<&'a [u8]>, TraceError> {
    if wire != WireType::LengthDelimited as u64 {
        return Ok(None);
    }
    match read_minimal_varint(cursor)? {
        Some(length) => Ok(Some(cursor.take_bytes(length)?)),
        None => Ok(None),
    }
}

fn put_list(
    out: &mut Vec<u8>,
    kind: AttributeValueType,
    message: &[u8],
) -> Result<bool, TraceError> {
    const VALUES: u64 = 1 << 3 | 2;
    out.extend_from_slice(b"{\"values\":[");
    let mut cursor = WireCursor::new(message, 0);
    let apart = kind.wire_type() == WireType::LengthDelimited;
    let mut first = true;
    while !cursor.is_empty() {
        if read_minimal_varint(&mut cursor)? != Some(VALUES) || !(first || apart) {
            return Ok(false);
        }
        let Some(values) = read_length_delimited(&mut cursor, VALUES & 7)? else {
            return Ok(false);
        };
        if apart {
            out.extend_from_slice(if first { b"" } else { b"," });
            first = false;
            if !kind.put_json(out, WireValue::Bytes(values, 0)) {
                return Ok(false);
            }
            continue;
        }
        let mut values = WireCursor::new(values, 0);
        if values.is_empty() {
            return Ok(false);
        }
        while !values.is_empty() {
            out.extend_from_slice(if first { b"" } else { b"," });
            first = false;
            match kind.read_next_packed(&mut values)? {
                Some(raw) if kind.put_json(out, raw) => {}
                _ => return Ok(false),
            }
        }
    }
    out.extend_from_slice(b"]}");
    Ok(true)
}

/// Appends a node's inputs or outputs. If their encoding is not canonical, appends the raw bytes.
fn put_inputs_or_outputs(out: &mut Vec<u8>, message: &[u8]) -> Result<(), TraceError> {
    let start = out.len();
    let mut cursor = WireCursor::new(message, 0);
    let mut last = 0;
    out.push(b'{');
    while !cursor.is_empty() {
        let key = read_minimal_varint(&mut cursor)?;
        let text = match key {
            Some(key) if key > last => read_length_delimited(&mut cursor, key & 7)?,
            _ => None,
        };
        let text = text.filter(|text| !text.is_empty());
        let (Some(key), Some(text)) = (key, text.and_then(|t| std::str::from_utf8(t).ok())) else {
            out.truncate(start);
            put_raw_record(out, "raw", message);
            return Ok(());
        };
        let names = ["values", "shapes", "types"];
        let Some(name) = (key >> 3)
            .checked_sub(1)
            .and_then(|i| names.get(i as usize))
        else {
            out.truncate(start);
            put_raw_record(out, "raw", message);
            return Ok(());
        };
        let comma = if last == 0 { "" } else { "," };
        last = key;
        write!(out, "{comma}\"{name}\":").expect("a vector grows as needed");
        put_string(out, text);
    }
    out.push(b'}');
    Ok(())
}

fn bytes_between<'a>(record: RawRecord<'a>, from: usize, to: usize) -> &'a [u8] {
    &record.bytes[from - record.offset..to - record.offset]
}

fn wrong_wire_type_error(at: usize) -> TraceError {
    TraceError::malformed_at(at, "a field has the wrong wire type")
}

fn put_text(out: &mut Vec<u8>, text: &[u8], offset: usize) -> Result<(), TraceError> {
    let text = std::str::from_utf8(text)
        .map_err(|_| TraceError::malformed_at(offset, "a name that is not UTF-8"))?;
    put_string(out, text);
    Ok(())
}
