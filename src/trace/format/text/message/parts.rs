//! Parses attributes, inputs and outputs.

use super::{accept_null, parse_base64, parse_string, put_length_delimited};
use crate::format::text::json::JsonCursor;
use crate::format::text::values::{AttributeValueType, append_length_and_bytes};
use crate::format::{TraceError, escape_and_shorten_name};
use prost::encoding::{WireType, encode_key, encode_varint};

/// JSON keys that an attribute may have, for error messages.
const ATTRIBUTE_KEYS: &str = "name, doc_string, raw and the values from double_val to bytes_list";

/// Parses an attribute, and appends it as field `number`.
pub(super) fn parse_and_append_json_attribute(
    json: &mut JsonCursor<'_>,
    number: u32,
    out: &mut Vec<u8>,
    scratch: &mut Vec<u8>,
) -> Result<(), TraceError> {
    let (mut name, mut doc) = (String::new(), String::new());
    let mut raw = None;
    let mut has_value = false;
    scratch.clear();
    json.parse_object(|json, key| {
        if accept_null(json)? {
            return Ok(());
        }
        match key {
            "name" => name = parse_string(json)?.into_owned(),
            "doc_string" | "docString" => doc = parse_string(json)?.into_owned(),
            "raw" => raw = Some(parse_base64(json)?),
            _ => {
                let Some((kind, list)) = AttributeValueType::kind_and_list_flag_of_key(key) else {
                    return Err(json.error_here(format!(
                        "`{}` is not a field of an attribute; expected one of {ATTRIBUTE_KEYS}",
                        escape_and_shorten_name(key)
                    )));
                };
                if std::mem::replace(&mut has_value, true) {
                    return Err(json.error_here("found a second value of one attribute"));
                }
                append_value(json, kind, list, scratch)?;
            }
        }
        Ok(())
    })?;
    if let Some(raw) = raw {
        if has_value || !name.is_empty() || !doc.is_empty() {
            return Err(json
                .error_here("found other fields in an attribute with `raw`, which must be alone"));
        }
        put_length_delimited(out, number, &raw);
        return Ok(());
    }
    let part = |text: &str| match text.len() {
        0 => 0,
        length => 1 + prost::encoding::encoded_len_varint(length as u64) + length,
    };
    let length = part(&name) + part(&doc) + scratch.len();
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(length as u64, out);
    for (number, text) in [(1, &name), (2, &doc)] {
        if !text.is_empty() {
            put_length_delimited(out, number, text.as_bytes());
        }
    }
    out.extend_from_slice(scratch);
    Ok(())
}

/// Parses an attribute's value, and appends it with its key.
fn append_value(
    json: &mut JsonCursor<'_>,
    kind: AttributeValueType,
    list: bool,
    out: &mut Vec<u8>,
) -> Result<(), TraceError> {
    if !list {
        kind.append_field_key(out, kind.scalar_field_number());
        return kind.parse_and_append_value(json, out);
    }
    let mut values = Vec::new();
    let apart = kind.wire_type() == WireType::LengthDelimited;
    let mut read = |json: &mut JsonCursor<'_>| {
        json.parse_array(|json| {
            if apart {
                kind.append_field_key(&mut values, 1);
            }
            kind.parse_and_append_value(json, &mut values)
        })
    };
    match json.peek_byte() {
        Some(b'[') => read(json)?,
        _ => json.parse_object(|json, key| match key {
            "values" => read(json),
            _ => Err(json.error_here(format!(
                "`{}` is not a field of a list; expected values",
                escape_and_shorten_name(key)
            ))),
        })?,
    }
    encode_key(
        kind.scalar_field_number() + 1,
        WireType::LengthDelimited,
        out,
    );
    if apart || values.is_empty() {
        append_length_and_bytes(out, &values);
    } else {
        let mut packed = Vec::with_capacity(values.len() + 6);
        put_length_delimited(&mut packed, 1, &values);
        append_length_and_bytes(out, &packed);
    }
    Ok(())
}

/// Parses a node's inputs or outputs.
pub(super) fn parse_inputs_or_outputs(json: &mut JsonCursor<'_>) -> Result<Vec<u8>, TraceError> {
    let mut texts: [Option<String>; 3] = Default::default();
    let mut raw = None;
    json.parse_object(|json, key| {
        let index = match key {
            "values" => 0,
            "shapes" => 1,
            "types" => 2,
            "raw" => {
                raw = Some(parse_base64(json)?);
                return Ok(());
            }
            _ => {
                return Err(json.error_here(format!(
                    "`{}` is not a field of arguments; expected one of values, shapes, types",
                    escape_and_shorten_name(key)
                )));
            }
        };
        if !accept_null(json)?
            && texts[index]
                .replace(parse_string(json)?.into_owned())
                .is_some()
        {
            return Err(json.error_here(format!("a second `{key}`")));
        }
        Ok(())
    })?;
    if let Some(raw) = raw {
        return if texts.iter().all(Option::is_none) {
            Ok(raw)
        } else {
            Err(json.error_here("found other fields in arguments with `raw`, which must be alone"))
        };
    }
    let mut out = Vec::new();
    for (number, text) in (1..).zip(&texts) {
        if let Some(text) = text.as_ref().filter(|text| !text.is_empty()) {
            put_length_delimited(&mut out, number, text.as_bytes());
        }
    }
    Ok(out)
}
