//! Attribute values: their types, and how records and JSON encode them.

use super::base64;
use super::json::{JsonCursor, JsonScalarOrContainerStart, put_string};
use crate::format::TraceError;
use crate::format::wire::{WireCursor, WireValue};
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};

/// Value types, in the order of the schema's fields. Type i (counted from 0) uses field 3 + 2 i for scalars and field 4
/// + 2 i for lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttributeValueType {
    Double,
    Float,
    Int32,
    Int64,
    Uint32,
    Uint64,
    Sint32,
    Sint64,
    Fixed32,
    Fixed64,
    Sfixed32,
    Sfixed64,
    Bool,
    String,
    Bytes,
}

/// All value types, with their names in the schema.
const ALL: [(AttributeValueType, &str); 15] = [
    (AttributeValueType::Double, "double"),
    (AttributeValueType::Float, "float"),
    (AttributeValueType::Int32, "int32"),
    (AttributeValueType::Int64, "int64"),
    (AttributeValueType::Uint32, "uint32"),
    (AttributeValueType::Uint64, "uint64"),
    (AttributeValueType::Sint32, "sint32"),
    (AttributeValueType::Sint64, "sint64"),
    (AttributeValueType::Fixed32, "fixed32"),
    (AttributeValueType::Fixed64, "fixed64"),
    (AttributeValueType::Sfixed32, "sfixed32"),
    (AttributeValueType::Sfixed64, "sfixed64"),
    (AttributeValueType::Bool, "bool"),
    (AttributeValueType::String, "string"),
    (AttributeValueType::Bytes, "bytes"),
];

impl AttributeValueType {
    /// Returns the value type to which an attribute's field `number` belongs, and true if the field is a list.
    pub fn kind_and_list_flag_of_field(number: u32) -> Option<(Self, bool)> {
        let index = usize::try_from(number).ok()?.checked_sub(3)?;
        let (kind, _) = ALL.get(index / 2)?;
        Some((*kind, index % 2 == 1))
    }

    /// Returns the value type for a JSON key, such as `int64_val` or `int64List`, and true if the key is for a list.
    pub fn kind_and_list_flag_of_key(key: &str) -> Option<(Self, bool)> {
        let (name, list) = match key {
            _ if key.ends_with("_val") || key.ends_with("Val") => (&key[..key.len() - 3], false),
            _ if key.ends_with("_list") || key.ends_with("List") => (&key[..key.len() - 4], true),
            _ => return None,
        };
        let name = name.strip_suffix('_').unwrap_or(name);
        let (kind, _) = ALL.iter().find(|(_, known)| *known == name)?;
        Some((*kind, list))
    }

    pub fn name(self) -> &'static str {
        ALL[self as usize].1
    }

    /// Returns the field number of this type's scalars.
    pub fn scalar_field_number(self) -> u32 {
        3 + 2 * self as u32
    }

    pub fn wire_type(self) -> WireType {
        match self {
            Self::Double | Self::Fixed64 | Self::Sfixed64 => WireType::SixtyFourBit,
            Self::Float | Self::Fixed32 | Self::Sfixed32 => WireType::ThirtyTwoBit,
            Self::String | Self::Bytes => WireType::LengthDelimited,
            _ => WireType::Varint,
        }
    }

    /// Reads the next value of a packed list. Returns `None` if a varint is not minimally encoded.
    pub fn read_next_packed<'a>(
        self,
        cursor: &mut WireCursor<'a>,
    ) -> Result<Option<WireValue<'a>>, TraceError> {
        let fixed = |bytes: &[u8]| bytes.try_into().expect("as many as were asked for");
        Ok(match self.wire_type() {
            WireType::SixtyFourBit => {
                let bytes = cursor.take_bytes(8)?;
                let bytes: [u8; 8] = bytes.try_into().expect("eight were asked for");
                Some(WireValue::Fixed64(u64::from_le_bytes(bytes)))
            }
            WireType::ThirtyTwoBit => Some(WireValue::Fixed32(u32::from_le_bytes(fixed(
                cursor.take_bytes(4)?,
            )))),
            _ => read_minimal_varint(cursor)?.map(WireValue::Varint),
        })
    }

    /// Appends a value as JSON. Returns `false` if its encoding is not the one that the schema's writers use.
    pub fn put_json(self, out: &mut Vec<u8>, raw: WireValue<'_>) -> bool {
        use std::io::Write;
        let written = match (self, raw) {
            (Self::Double, WireValue::Fixed64(bits)) => put_double(out, bits),
            (Self::Float, WireValue::Fixed32(bits)) => put_float(out, bits),
            // Writers sign-extend an int32 to 64 bits. A value in any other encoding is kept as raw bytes.
            (Self::Int32, WireValue::Varint(v)) if v as i64 == i64::from(v as i32) => {
                write!(out, "{}", v as i32)
            }
            (Self::Int64, WireValue::Varint(v)) => write!(out, "{}", v as i64),
            (Self::Uint32, WireValue::Varint(v)) if v <= u64::from(u32::MAX) => write!(out, "{v}"),
            (Self::Uint64, WireValue::Varint(v)) => write!(out, "{v}"),
            (Self::Sint32, WireValue::Varint(v)) if v <= u64::from(u32::MAX) => {
                write!(out, "{}", decode_zigzag(v))
            }
            (Self::Sint64, WireValue::Varint(v)) => write!(out, "{}", decode_zigzag(v)),
            (Self::Fixed32, WireValue::Fixed32(v)) => write!(out, "{v}"),
            (Self::Fixed64, WireValue::Fixed64(v)) => write!(out, "{v}"),
            (Self::Sfixed32, WireValue::Fixed32(v)) => write!(out, "{}", v as i32),
            (Self::Sfixed64, WireValue::Fixed64(v)) => write!(out, "{}", v as i64),
            (Self::Bool, WireValue::Varint(v)) if v <= 1 => write!(out, "{}", v == 1),
            (Self::String, WireValue::Bytes(text, _)) => match std::str::from_utf8(text) {
                Ok(text) => {
                    put_string(out, text);
                    Ok(())
                }
                Err(_) => return false,
            },
            (Self::Bytes, WireValue::Bytes(bytes, _)) => {
                out.push(b'"');
                base64::append_base64(out, bytes);
                out.push(b'"');
                Ok(())
            }
            _ => return false,
        };
        written.expect("a vector grows as needed");
        true
    }

    /// Parses a value, and appends it to `out` without a key.
    pub fn parse_and_append_value(
        self,
        json: &mut JsonCursor<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), TraceError> {
        let at = json.clone();
        let scalar = json.parse_scalar()?;
        let known = match self {
            Self::Int32 => parse_signed_within(&scalar, i32::MIN.into(), i32::MAX.into())
                .map(|v| encode_varint(v as u64, out)),
            Self::Int64 => parse_signed_within(&scalar, i64::MIN, i64::MAX)
                .map(|v| encode_varint(v as u64, out)),
            Self::Uint32 => {
                parse_unsigned_up_to(&scalar, u32::MAX.into()).map(|v| encode_varint(v, out))
            }
            Self::Uint64 => parse_unsigned_up_to(&scalar, u64::MAX).map(|v| encode_varint(v, out)),
            Self::Sint32 => parse_signed_within(&scalar, i32::MIN.into(), i32::MAX.into())
                .map(|v| encode_varint(encode_zigzag(v), out)),
            Self::Sint64 => parse_signed_within(&scalar, i64::MIN, i64::MAX)
                .map(|v| encode_varint(encode_zigzag(v), out)),
            Self::Fixed32 => parse_unsigned_up_to(&scalar, u32::MAX.into())
                .map(|v| out.extend_from_slice(&(v as u32).to_le_bytes())),
            Self::Fixed64 => parse_unsigned_up_to(&scalar, u64::MAX)
                .map(|v| out.extend_from_slice(&v.to_le_bytes())),
            Self::Sfixed32 => parse_signed_within(&scalar, i32::MIN.into(), i32::MAX.into())
                .map(|v| out.extend_from_slice(&(v as i32).to_le_bytes())),
            Self::Sfixed64 => parse_signed_within(&scalar, i64::MIN, i64::MAX)
                .map(|v| out.extend_from_slice(&v.to_le_bytes())),
            Self::Double => parse_double(&scalar).map(|v| out.extend_from_slice(&v.to_le_bytes())),
            Self::Float => parse_float(&scalar).map(|v| out.extend_from_slice(&v.to_le_bytes())),
            Self::Bool => match scalar {
                JsonScalarOrContainerStart::Bool(v) => {
                    encode_varint(u64::from(v), out);
                    Some(())
                }
                _ => None,
            },
            Self::String => match &scalar {
                JsonScalarOrContainerStart::Text(text) => {
                    append_length_and_bytes(out, text.as_bytes());
                    Some(())
                }
                _ => None,
            },
            Self::Bytes => match &scalar {
                JsonScalarOrContainerStart::Text(text) => {
                    base64::decode_base64(text).map(|bytes| append_length_and_bytes(out, &bytes))
                }
                _ => None,
            },
        };
        let mut at = at;
        known.ok_or_else(|| at.error_here(format!("expected a value of type {}", self.name())))
    }

    /// Appends the key for field `number`, with this type's wire type.
    pub fn append_field_key(self, out: &mut Vec<u8>, number: u32) {
        encode_key(number, self.wire_type(), out);
    }
}

/// Appends the length of `bytes`, and then the bytes.
pub(super) fn append_length_and_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Reads a varint. Returns `None` if it takes more bytes than necessary.
pub(super) fn read_minimal_varint(cursor: &mut WireCursor<'_>) -> Result<Option<u64>, TraceError> {
    let start = cursor.file_offset();
    let value = cursor.read_varint()?;
    Ok((cursor.file_offset() - start == encoded_len_varint(value)).then_some(value))
}

fn encode_zigzag(v: i64) -> u64 {
    ((v << 1) ^ (v >> 63)) as u64
}

fn decode_zigzag(v: u64) -> i64 {
    (v >> 1) as i64 ^ -((v & 1) as i64)
}

/// Returns the text of a number, which may be quoted.
fn text_of_possibly_quoted_number<'s>(
    scalar: &'s JsonScalarOrContainerStart<'_>,
) -> Option<&'s str> {
    match scalar {
        JsonScalarOrContainerStart::Number(text) => Some(text),
        JsonScalarOrContainerStart::Text(text) => Some(text),
        _ => None,
    }
}

/// Parses a whole number that is written as a real, such as `5.0` or `1e3`. The value must be exact (up to 2^53).
fn parse_exact_whole(text: &str) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let value: f64 = text.parse().ok()?;
    (value.fract() == 0.0 && value.abs() <= EXACT).then_some(value as i64)
}

pub(super) fn parse_signed_within(
    scalar: &JsonScalarOrContainerStart<'_>,
    least: i64,
    most: i64,
) -> Option<i64> {
    let text = text_of_possibly_quoted_number(scalar)?;
    let value = text.parse().ok().or_else(|| parse_exact_whole(text))?;
    (least..=most).contains(&value).then_some(value)
}

pub(super) fn parse_unsigned_up_to(
    scalar: &JsonScalarOrContainerStart<'_>,
    most: u64,
) -> Option<u64> {
    let text = text_of_possibly_quoted_number(scalar)?;
    let value = text.parse().ok();
    let value = value.or_else(|| u64::try_from(parse_exact_whole(text)?).ok())?;
    (value <= most).then_some(value)
}

/// Bits of the canonical NaN of type double. The writer writes canonical NaNs as `NaN`, and all other NaNs with their
/// bits.
const NAN: u64 = 0x7ff8_0000_0000_0000;
const NAN_32: u32 = 0x7fc0_0000;

fn put_double(out: &mut Vec<u8>, bits: u64) -> std::io::Result<()> {
    use std::io::Write;
    let value = f64::from_bits(bits);
    match () {
        () if bits == NAN => write!(out, "\"NaN\""),
        () if value.is_nan() => write!(out, "\"NaN({bits:#x})\""),
        () if value.is_infinite() && value > 0.0 => write!(out, "\"Infinity\""),
        () if value.is_infinite() => write!(out, "\"-Infinity\""),
        () => write!(out, "{value:?}"),
    }
}

fn put_float(out: &mut Vec<u8>, bits: u32) -> std::io::Result<()> {
    use std::io::Write;
    let value = f32::from_bits(bits);
    match () {
        () if bits == NAN_32 => write!(out, "\"NaN\""),
        () if value.is_nan() => write!(out, "\"NaN({bits:#x})\""),
        () if value.is_infinite() && value > 0.0 => write!(out, "\"Infinity\""),
        () if value.is_infinite() => write!(out, "\"-Infinity\""),
        () => write!(out, "{value:?}"),
    }
}

/// Returns the bits that `NaN(0x…)` states.
fn parse_nan_bits(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("NaN(0x")?.strip_suffix(')')?;
    let plain = digits.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(digits, 16).ok())?
}

fn parse_double(scalar: &JsonScalarOrContainerStart<'_>) -> Option<f64> {
    match text_of_possibly_quoted_number(scalar)? {
        "NaN" => Some(f64::from_bits(NAN)),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        text => match parse_nan_bits(text) {
            Some(bits) => Some(f64::from_bits(bits)).filter(|v| v.is_nan()),
            // Rust's parser also accepts `inf` and similar words, which JSON does not allow as numbers, so only
            // finite values pass.
            None => text.parse().ok().filter(|v: &f64| v.is_finite()),
        },
    }
}

fn parse_float(scalar: &JsonScalarOrContainerStart<'_>) -> Option<f32> {
    match text_of_possibly_quoted_number(scalar)? {
        "NaN" => Some(f32::from_bits(NAN_32)),
        "Infinity" => Some(f32::INFINITY),
        "-Infinity" => Some(f32::NEG_INFINITY),
        text => match parse_nan_bits(text) {
            Some(bits) => {
                let bits = u32::try_from(bits).ok()?;
                Some(f32::from_bits(bits)).filter(|v| v.is_nan())
            }
            None => text.parse().ok().filter(|v: &f32| v.is_finite()),
        },
    }
}

#[cfg(test)]
mod tests;
