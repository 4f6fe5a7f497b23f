//! Converts attribute values of any type to text.

use super::{AttrView, FIRST_VALUE, LAST_VALUE, decode_zigzag};
use crate::format::TraceError;
use crate::format::wire::{WireCursor, WireValue};

/// The schema's names of the scalar types, in field order.
const TYPES: [&str; 15] = [
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32",
    "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes",
];
/// The names of the corresponding list types.
const LISTS: [&str; 15] = [
    "double list",
    "float list",
    "int32 list",
    "int64 list",
    "uint32 list",
    "uint64 list",
    "sint32 list",
    "sint64 list",
    "fixed32 list",
    "fixed64 list",
    "sfixed32 list",
    "sfixed64 list",
    "bool list",
    "string list",
    "bytes list",
];
/// Maximum number of bytes shown for a `bytes` value.
const MOST_BYTES: usize = 32;

impl<'a> AttrView<'a> {
    /// Returns the schema's name for the value's type, or `none` if the attribute has no value.
    pub fn type_name(&self) -> &'static str {
        match self.value {
            None => "none",
            Some((number, _)) => {
                let i = (number - FIRST_VALUE) as usize;
                if i.is_multiple_of(2) {
                    TYPES[i / 2]
                } else {
                    LISTS[i / 2]
                }
            }
        }
    }

    /// Returns the value as text. Numbers and text are unchanged, lists are in brackets, and bytes are hexadecimal.
    ///
    /// Fails on a malformed list.
    pub fn value_text(&self) -> Result<String, TraceError> {
        let Some((number, raw)) = self.value else {
            return Ok(String::new());
        };
        if number.is_multiple_of(2) {
            return self.list_text(number);
        }
        Ok(format_scalar(number, raw))
    }

    fn list_text(&self, wanted: u32) -> Result<String, TraceError> {
        let mut texts: Vec<String> = Vec::new();
        let mut parts = WireCursor::new(self.message, self.offset);
        while !parts.is_empty() {
            let (number, raw) = parts.read_field()?;
            match raw {
                WireValue::Bytes(list, at) if number == wanted => {
                    let mut list = WireCursor::new(list, at);
                    while !list.is_empty() {
                        if let (1, raw) = list.read_field()? {
                            append_list_entries(wanted - 1, raw, &mut texts)?;
                        }
                    }
                }
                // If a value of another type comes between parts of the list, it replaces the earlier parts, because a
                // `oneof` keeps only its last value.
                _ if (FIRST_VALUE..=LAST_VALUE).contains(&number) => texts.clear(),
                _ => {}
            }
        }
        Ok(format!("[{}]", texts.join(", ")))
    }
}

/// Appends a list's entries (packed or not) as text; their type is that of the scalar field `number`.
fn append_list_entries(
    number: u32,
    raw: WireValue<'_>,
    texts: &mut Vec<String>,
) -> Result<(), TraceError> {
    let WireValue::Bytes(packed, at) = raw else {
        texts.push(format_scalar(number, raw));
        return Ok(());
    };
    if number >= 29 {
        texts.push(format_scalar(number, raw));
        return Ok(());
    }
    let mut cursor = WireCursor::new(packed, at);
    while !cursor.is_empty() {
        let raw = match number {
            3 | 21 | 25 => {
                let bytes = cursor.take_bytes(8)?;
                WireValue::Fixed64(u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
            }
            5 | 19 | 23 => {
                let bytes = cursor.take_bytes(4)?;
                WireValue::Fixed32(u32::from_le_bytes(bytes.try_into().expect("4 bytes")))
            }
            _ => WireValue::Varint(cursor.read_varint()?),
        };
        texts.push(format_scalar(number, raw));
    }
    Ok(())
}

/// Formats a value whose type is that of the scalar field `number`.
fn format_scalar(number: u32, raw: WireValue<'_>) -> String {
    match (number, raw) {
        (3, WireValue::Fixed64(bits)) => f64::from_bits(bits).to_string(),
        (5, WireValue::Fixed32(bits)) => f32::from_bits(bits).to_string(),
        (7, WireValue::Varint(v)) => (v as i32).to_string(),
        (9, WireValue::Varint(v)) => (v as i64).to_string(),
        (11, WireValue::Varint(v)) => (v as u32).to_string(),
        (15, WireValue::Varint(v)) => (decode_zigzag(u64::from(v as u32)) as i32).to_string(),
        (17, WireValue::Varint(v)) => decode_zigzag(v).to_string(),
        (23, WireValue::Fixed32(v)) => (v as i32).to_string(),
        (25, WireValue::Fixed64(v)) => (v as i64).to_string(),
        (27, WireValue::Varint(v)) => (v != 0).to_string(),
        (29, WireValue::Bytes(text, _)) => String::from_utf8_lossy(text).into_owned(),
        (_, WireValue::Varint(v) | WireValue::Fixed64(v)) => v.to_string(),
        (_, WireValue::Fixed32(v)) => v.to_string(),
        (_, WireValue::Bytes(bytes, _)) => {
            let hex: String = bytes
                .iter()
                .take(MOST_BYTES)
                .map(|b| format!("{b:02x}"))
                .collect();
            match bytes.len().saturating_sub(MOST_BYTES) {
                0 => hex,
                more => format!("{hex}… {more} more bytes"),
            }
        }
        (_, WireValue::Group) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::proto::{self, AttributeProto, attribute_proto::Value};
    use prost::Message;

    #[test]
    fn values_of_every_type_are_text() {
        let bools = proto::BoolList {
            values: vec![true, false],
        };
        let doubles = proto::DoubleList {
            values: vec![0.5, -2.0],
        };
        let fixed = proto::Sfixed32List {
            values: vec![-1, 7],
        };
        let signed = proto::Sint64List {
            values: vec![-3, 300],
        };
        let strings = proto::StringList {
            values: vec!["a".into(), "é".into()],
        };
        for (value, name, text) in [
            (Value::DoubleVal(1.5), "double", "1.5"),
            (Value::FloatVal(-0.25), "float", "-0.25"),
            (Value::Int32Val(-5), "int32", "-5"),
            (Value::Int64Val(-6), "int64", "-6"),
            (Value::Uint32Val(7), "uint32", "7"),
            (Value::Uint64Val(u64::MAX), "uint64", "18446744073709551615"),
            (Value::Sint32Val(-8), "sint32", "-8"),
            (Value::Sint64Val(-9), "sint64", "-9"),
            (Value::Fixed32Val(10), "fixed32", "10"),
            (Value::Fixed64Val(11), "fixed64", "11"),
            (Value::Sfixed32Val(-12), "sfixed32", "-12"),
            (Value::Sfixed64Val(-13), "sfixed64", "-13"),
            (Value::BoolVal(true), "bool", "true"),
            (Value::StringVal("x y".into()), "string", "x y"),
            (Value::BytesVal(vec![0, 255].into()), "bytes", "00ff"),
            (Value::BoolList(bools), "bool list", "[true, false]"),
            (Value::DoubleList(doubles), "double list", "[0.5, -2]"),
            (Value::Sfixed32List(fixed), "sfixed32 list", "[-1, 7]"),
            (Value::Sint64List(signed), "sint64 list", "[-3, 300]"),
            (Value::StringList(strings), "string list", "[a, é]"),
        ] {
            let message = AttributeProto {
                name: "x".into(),
                value: Some(value),
                ..AttributeProto::default()
            };
            let message = message.encode_to_vec();
            let attr = AttrView::scan_attribute(&message, 0).unwrap();
            assert_eq!(attr.type_name(), name);
            assert_eq!(attr.value_text().unwrap(), text, "{name}");
        }
        let unset = AttributeProto {
            name: "x".into(),
            ..AttributeProto::default()
        };
        let unset = unset.encode_to_vec();
        let unset = AttrView::scan_attribute(&unset, 0).unwrap();
        assert_eq!(
            (unset.type_name(), unset.value_text().unwrap()),
            ("none", String::new())
        );
    }
}
