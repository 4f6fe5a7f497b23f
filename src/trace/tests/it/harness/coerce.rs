//! Converts attribute values for the oracle, and shares no code with the fast reader.

use chakram_trace::format::proto::attribute_proto::Value;
use chakram_trace::format::{Dtype, GroupName};

/// A number from a value of any type.
enum Number {
    Whole(i128),
    Real(f64),
}

fn decode_text_value(value: &Value) -> Option<Option<&str>> {
    match value {
        Value::StringVal(text) => Some(Some(text)),
        Value::BytesVal(bytes) => std::str::from_utf8(bytes).ok().map(Some),
        _ => Some(None),
    }
}

/// Returns the text of a text value, or `None` for values of other types.
pub fn text_if_value_is_text(value: &Value) -> Option<&str> {
    decode_text_value(value).flatten()
}

fn coerce_to_number(value: &Value) -> Option<Number> {
    Some(Number::Whole(match *value {
        Value::DoubleVal(v) => return Some(Number::Real(v)),
        Value::FloatVal(v) => return Some(Number::Real(f64::from(v))),
        Value::Int32Val(v) | Value::Sint32Val(v) | Value::Sfixed32Val(v) => v.into(),
        Value::Int64Val(v) | Value::Sint64Val(v) | Value::Sfixed64Val(v) => v.into(),
        Value::Uint32Val(v) | Value::Fixed32Val(v) => v.into(),
        Value::Uint64Val(v) | Value::Fixed64Val(v) => v.into(),
        Value::BoolVal(v) => v.into(),
        _ => {
            let text = decode_text_value(value)??.trim();
            match (text, text.parse::<i128>()) {
                ("True" | "true", _) => 1,
                ("False" | "false", _) => 0,
                (_, Ok(number)) => number,
                _ => return text.parse().ok().map(Number::Real),
            }
        }
    }))
}

/// Converts a value to a count. Like all conversions in this module, returns `None` if `value`
/// cannot be converted.
pub fn coerce_to_count(value: &Value) -> Option<u64> {
    match coerce_to_number(value)? {
        Number::Whole(v) => u64::try_from(v).ok(),
        // The largest accepted number is slightly below 2^64.
        Number::Real(v) => (v.trunc() == v && (0.0..1.8e19).contains(&v)).then_some(v as u64),
    }
}

/// Converts a value to a whole number of either sign.
pub fn coerce_to_integer(value: &Value) -> Option<i64> {
    match coerce_to_number(value)? {
        Number::Whole(v) => i64::try_from(v).ok(),
        Number::Real(v) => (v.trunc() == v && v.abs() < 9.2e18).then_some(v as i64),
    }
}

/// Converts a value to a boolean.
pub fn coerce_to_bool(value: &Value) -> Option<bool> {
    match coerce_to_number(value)? {
        Number::Whole(v) => (i128::from(i64::MIN)..1 << 64)
            .contains(&v)
            .then_some(v != 0),
        Number::Real(_) => None,
    }
}

/// Converts a value to a number format. The inner value is `None` if the format's name is unknown.
pub fn parse_dtype_from_value(value: &Value) -> Option<Option<Dtype>> {
    Some(decode_text_value(value)?.and_then(Dtype::from_name))
}

/// Converts a value to the name of a group.
pub fn coerce_to_group_name(value: &Value) -> Option<GroupName<'_>> {
    let number = |number| match number {
        0 => GroupName::World,
        number => GroupName::Number(number),
    };
    match decode_text_value(value)? {
        None => coerce_to_count(value).map(number),
        Some("") => Some(GroupName::World),
        Some(text) if text.bytes().all(|b| b.is_ascii_digit()) => {
            Some(text.parse().map_or(GroupName::Text(text), number))
        }
        Some(text) => Some(GroupName::Text(text)),
    }
}

/// Converts a list to a mask. The inner value is `None` if every entry is set.
pub fn coerce_list_to_bit_mask(value: &Value) -> Option<Option<u32>> {
    let entries: Vec<bool> = match value {
        Value::BoolList(list) => list.values.clone(),
        Value::Int32List(list) => list.values.iter().map(|v| *v != 0).collect(),
        Value::Int64List(list) => list.values.iter().map(|v| *v != 0).collect(),
        Value::Uint32List(list) => list.values.iter().map(|v| *v != 0).collect(),
        Value::Uint64List(list) => list.values.iter().map(|v| *v != 0).collect(),
        _ => return None,
    };
    if entries.len() > 32 {
        return None;
    }
    let bits = entries
        .iter()
        .rev()
        .fold(0_u32, |mask, &set| mask << 1 | u32::from(set));
    Some((!entries.iter().all(|&set| set)).then_some(bits))
}
