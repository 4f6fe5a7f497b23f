//! Converts attribute values to the type that the reader needs.
//!
//! Tools that write traces disagree on types: `is_cpu_op` may be a bool or an int32, `comm_size` may be signed or
//! unsigned, and a size may be text that ends in `.0`. A reader looks up a value by name and converts it; only a value
//! that cannot be converted is an error. [`REPLAY_ATTRIBUTES`] lists the attributes that replays read.

use super::utf8::as_utf8;
use super::wire::{WireCursor, WireValue, visit_repeated_varints};
use super::{KernelShape, TraceError};

mod fast_path;
mod replayed;
mod shown;

pub use replayed::{
    AttributeReadByReplay, AttributeValueMeaning, REPLAY_ATTRIBUTES, find_replay_attribute,
};
pub(in crate::format) use replayed::{
    NodeAttributesReadByReplays, append_attributes_that_replay_reads,
    store_attribute_if_replays_read_it,
};

/// Field number of the first scalar in an attribute's `oneof`, whose last fields are lists.
const FIRST_VALUE: u32 = 3;
const LAST_VALUE: u32 = 32;

/// An attribute: its name and value, borrowed from the record.
#[derive(Clone, Copy, Debug)]
pub struct AttrView<'a> {
    /// Name of the attribute, as bytes. Readers look up only ASCII names.
    pub name: &'a [u8],
    /// The field number inside the `oneof` and the raw value; `None` if there is no value.
    value: Option<(u32, WireValue<'a>)>,
    /// The whole attribute message, because a list may be split over several fields.
    message: &'a [u8],
    /// Byte offset of the attribute in the file.
    pub offset: usize,
}

/// Maximum number of list entries that error messages show.
const SHOWN_ENTRIES: usize = 8;

/// An attribute value that is a number.
#[derive(Clone, Copy, Debug, PartialEq)]
enum AttrNumber {
    Unsigned(u64),
    Signed(i64),
    Real(f64),
}

impl<'a> AttrView<'a> {
    /// Reads one `AttributeProto` that starts at byte `offset` of the file.
    pub fn scan_attribute(message: &'a [u8], offset: usize) -> Result<Self, TraceError> {
        let mut attr = Self {
            name: &[],
            value: None,
            message,
            offset,
        };
        let mut cursor = WireCursor::new(message, offset);
        while !cursor.is_empty() {
            let at = cursor.file_offset();
            match cursor.read_field()? {
                (1, WireValue::Bytes(name, _)) => attr.name = name,
                (1 | 2, raw) if !matches!(raw, WireValue::Bytes(..)) => {
                    return Err(TraceError::malformed_at(
                        at,
                        "an attribute's name is not text",
                    ));
                }
                (number @ FIRST_VALUE..=LAST_VALUE, raw) => {
                    if !wire_type_fits(number, raw) {
                        return Err(TraceError::malformed_at(
                            at,
                            format!("field {number} of an attribute has the wrong wire type"),
                        ));
                    }
                    attr.value = Some((number, raw));
                }
                _ => {}
            }
        }
        Ok(attr)
    }

    /// Returns true if the attribute has a value; some tools write attributes without a value.
    pub fn is_set(&self) -> bool {
        self.value.is_some()
    }

    /// Returns the attribute's name for error messages.
    fn display_name(&self) -> String {
        String::from_utf8_lossy(self.name).into_owned()
    }

    fn wrong_type_error(&self, wanted: &str) -> TraceError {
        TraceError::malformed_at(
            self.offset,
            format!(
                "attribute `{}` cannot be read as {wanted}",
                self.display_name()
            ),
        )
    }

    fn as_number(&self) -> Option<AttrNumber> {
        let (number, raw) = self.value?;
        Some(match (number, raw) {
            (3, WireValue::Fixed64(bits)) => AttrNumber::Real(f64::from_bits(bits)),
            (5, WireValue::Fixed32(bits)) => AttrNumber::Real(f64::from(f32::from_bits(bits))),
            // Protobuf sign-extends an int32 to 64 bits, so only the lower 32 bits count.
            (7, WireValue::Varint(v)) => AttrNumber::Signed(i64::from(v as i32)),
            (9, WireValue::Varint(v)) => AttrNumber::Signed(v as i64),
            (11, WireValue::Varint(v)) => AttrNumber::Unsigned(u64::from(v as u32)),
            (13, WireValue::Varint(v)) => AttrNumber::Unsigned(v),
            (15, WireValue::Varint(v)) => {
                AttrNumber::Signed(i64::from(decode_zigzag(u64::from(v as u32)) as i32))
            }
            (17, WireValue::Varint(v)) => AttrNumber::Signed(decode_zigzag(v)),
            (19, WireValue::Fixed32(v)) => AttrNumber::Unsigned(u64::from(v)),
            (21, WireValue::Fixed64(v)) => AttrNumber::Unsigned(v),
            (23, WireValue::Fixed32(v)) => AttrNumber::Signed(i64::from(v as i32)),
            (25, WireValue::Fixed64(v)) => AttrNumber::Signed(v as i64),
            (27, WireValue::Varint(v)) => AttrNumber::Unsigned(u64::from(v != 0)),
            (29 | 31, WireValue::Bytes(text, _)) => {
                let text = std::str::from_utf8(text).ok()?.trim();
                if let Ok(v) = text.parse::<u64>() {
                    AttrNumber::Unsigned(v)
                } else if let Ok(v) = text.parse::<i64>() {
                    AttrNumber::Signed(v)
                } else {
                    match text {
                        "True" | "true" => AttrNumber::Unsigned(1),
                        "False" | "false" => AttrNumber::Unsigned(0),
                        _ => AttrNumber::Real(text.parse().ok()?),
                    }
                }
            }
            _ => return None,
        })
    }

    /// Returns the type and value for error messages, for example `int64 5` or `bool list [1, 0]`.
    pub fn describe_type_and_value(&self) -> String {
        let Some((number, raw)) = self.value else {
            return "no value".to_owned();
        };
        let kind = self.type_name();
        if !number.is_multiple_of(2) {
            return format!("{kind} {}", scalar_text(number, raw));
        }
        let (mut entries, mut count) = (Vec::new(), 0_usize);
        let mut parts = WireCursor::new(self.message, self.offset);
        while let Ok((found, part)) = parts.read_field() {
            let WireValue::Bytes(list, at) = part else {
                continue;
            };
            if found == number {
                count += append_first_entries_and_count_all(number - 1, list, at, &mut entries);
            }
        }
        let more = if count > entries.len() {
            format!(", … {count} in all")
        } else {
            String::new()
        };
        format!("{kind} [{}{more}]", entries.join(", "))
    }

    /// Converts the value to a count. Accepts whole-numbered reals and numeric text; rejects negative values.
    #[inline(always)]
    pub fn as_count(&self) -> Result<u64, TraceError> {
        match self.value {
            // Fields 9 and 13 are int64 and uint64; nearly all counts have one of these types.
            Some((9 | 13, WireValue::Varint(v))) if v <= i64::MAX as u64 => Ok(v),
            _ => self.as_count_of_any_type(),
        }
    }

    fn as_count_of_any_type(&self) -> Result<u64, TraceError> {
        match self.as_number() {
            Some(AttrNumber::Unsigned(v)) => Ok(v),
            Some(AttrNumber::Signed(v)) if v >= 0 => Ok(v as u64),
            // The bound is just below 2^64, so that the cast does not saturate.
            Some(AttrNumber::Real(v)) if v >= 0.0 && v.fract() == 0.0 && v < 1.8e19 => Ok(v as u64),
            _ => Err(self.wrong_type_error("a count")),
        }
    }

    /// Converts the value to a whole number of either sign.
    #[inline(always)]
    pub fn as_i64(&self) -> Result<i64, TraceError> {
        match self.value {
            Some((9, WireValue::Varint(v))) => Ok(v as i64),
            _ => self.as_any_i64(),
        }
    }

    fn as_any_i64(&self) -> Result<i64, TraceError> {
        match self.as_number() {
            Some(AttrNumber::Unsigned(v)) => i64::try_from(v).ok(),
            Some(AttrNumber::Signed(v)) => Some(v),
            Some(AttrNumber::Real(v)) if v.fract() == 0.0 && v.abs() < 9.2e18 => Some(v as i64),
            _ => None,
        }
        .ok_or_else(|| self.wrong_type_error("a whole number"))
    }

    /// Converts the value to a boolean.
    #[inline(always)]
    pub fn as_bool(&self) -> Result<bool, TraceError> {
        match self.value {
            Some((27, WireValue::Varint(v))) => Ok(v != 0),
            _ => self.as_any_bool(),
        }
    }

    fn as_any_bool(&self) -> Result<bool, TraceError> {
        match self.as_number() {
            Some(AttrNumber::Unsigned(v)) => Ok(v != 0),
            Some(AttrNumber::Signed(v)) => Ok(v != 0),
            _ => Err(self.wrong_type_error("a boolean")),
        }
    }

    /// Returns the value if it is text.
    pub fn as_str(&self) -> Result<Option<&'a str>, TraceError> {
        match self.value {
            Some((29 | 31, WireValue::Bytes(bytes, _))) => match as_utf8(bytes) {
                None => Err(self.wrong_type_error("text: it is not UTF-8")),
                text => Ok(text),
            },
            _ => Ok(None),
        }
    }

    /// Returns the text; fails on other types.
    pub fn require_text(&self) -> Result<&'a str, TraceError> {
        self.as_str()?.ok_or_else(|| self.wrong_type_error("text"))
    }

    /// Parses the value as the class and shape of a kernel.
    #[inline(never)]
    pub fn as_kernel_shape(&self) -> Result<KernelShape, TraceError> {
        let shape = self.require_text()?.parse();
        shape.map_err(|_| self.wrong_type_error("the class and shape of a kernel"))
    }

    /// Returns the value if it is a list of texts.
    pub fn as_texts(&self) -> Result<Option<Vec<&'a str>>, TraceError> {
        const TEXTS: u32 = 30;
        let Some((TEXTS, _)) = self.value else {
            return Ok(None);
        };
        let mut texts = Vec::new();
        let mut parts = WireCursor::new(self.message, self.offset);
        while !parts.is_empty() {
            let (number, raw) = parts.read_field()?;
            match raw {
                WireValue::Bytes(list, at) if number == TEXTS => {
                    let mut list = WireCursor::new(list, at);
                    while !list.is_empty() {
                        if let (1, WireValue::Bytes(text, _)) = list.read_field()? {
                            let text = std::str::from_utf8(text);
                            texts.push(
                                text.map_err(|_| self.wrong_type_error("text: it is not UTF-8"))?,
                            );
                        }
                    }
                }
                // If a value of another type comes between parts of the list, it replaces the earlier parts, because a
                // `oneof` keeps only its last value.
                _ if (FIRST_VALUE..=LAST_VALUE).contains(&number) => texts.clear(),
                _ => {}
            }
        }
        Ok(Some(texts))
    }

    /// Returns the value if it is a list of int64; otherwise returns an empty list.
    pub fn as_ints(&self) -> Result<Vec<i64>, TraceError> {
        const INTS: u32 = 10;
        let mut numbers = Vec::new();
        let Some((INTS, _)) = self.value else {
            return Ok(numbers);
        };
        let mut parts = WireCursor::new(self.message, self.offset);
        while !parts.is_empty() {
            let (number, raw) = parts.read_field()?;
            match raw {
                WireValue::Bytes(list, at) if number == INTS => {
                    let mut list = WireCursor::new(list, at);
                    while !list.is_empty() {
                        let offset = list.file_offset();
                        if let (1, raw) = list.read_field()? {
                            visit_repeated_varints(raw, offset, |value| {
                                numbers.push(value.cast_signed());
                                Ok(())
                            })?;
                        }
                    }
                }
                // If a value of another type comes between parts of the list, it replaces the earlier parts, because a
                // `oneof` keeps only its last value.
                _ if (FIRST_VALUE..=LAST_VALUE).contains(&number) => numbers.clear(),
                _ => {}
            }
        }
        Ok(numbers)
    }

    /// Converts a list of booleans or whole numbers to a mask; bit `i` of the mask is entry `i` of the list. Returns
    /// `None` if every entry is set, because such a list means "all", whatever its length.
    pub fn list_as_bit_mask(&self) -> Result<Option<u32>, TraceError> {
        // The fields 8, 10, 12, 14 and 28 are the lists of int32, int64, uint32, uint64 and bool.
        let Some((wanted @ (8 | 10 | 12 | 14 | 28), _)) = self.value else {
            return Err(self.wrong_type_error("a list of booleans"));
        };
        let mut mask = 0_u32;
        let mut length = 0_u32;
        let mut parts = WireCursor::new(self.message, self.offset);
        while !parts.is_empty() {
            let (number, raw) = parts.read_field()?;
            let list = match raw {
                WireValue::Bytes(list, at) if number == wanted => WireCursor::new(list, at),
                _ => {
                    // If a value of another type comes between parts of the list, it replaces the earlier parts,
                    // because a `oneof` keeps only its last value.
                    if (FIRST_VALUE..=LAST_VALUE).contains(&number) {
                        (mask, length) = (0, 0);
                    }
                    continue;
                }
            };
            let mut cursor = list;
            while !cursor.is_empty() {
                let offset = cursor.file_offset();
                if let (1, raw) = cursor.read_field()? {
                    visit_repeated_varints(raw, offset, |value| {
                        // 32-bit numbers use only the lower 32 bits of their varint.
                        let value = match number {
                            8 | 12 => u64::from(value as u32),
                            _ => value,
                        };
                        if value != 0 && length < 32 {
                            mask |= 1 << length;
                        }
                        length = length.saturating_add(1);
                        Ok(())
                    })?;
                }
            }
        }
        if length > 32 {
            return Err(self.wrong_type_error("a list of at most 32 booleans"));
        }
        // An empty list means "all" too.
        let all = mask.count_ones() == length;
        Ok((!all).then_some(mask))
    }
}

/// Formats a scalar for error messages. Field `number` determines its type.
fn scalar_text(number: u32, raw: WireValue<'_>) -> String {
    let found = AttrView {
        name: &[],
        value: Some((number, raw)),
        message: &[],
        offset: 0,
    };
    match raw {
        WireValue::Bytes(bytes, _) => match std::str::from_utf8(bytes) {
            Ok(text) => format!("\"{}\"", super::escape_and_shorten_name(text)),
            Err(_) => format!("{} bytes that are not text", bytes.len()),
        },
        _ => match found.as_number() {
            Some(AttrNumber::Unsigned(value)) => value.to_string(),
            Some(AttrNumber::Signed(value)) => value.to_string(),
            Some(AttrNumber::Real(value)) => value.to_string(),
            None => "something unreadable".to_owned(),
        },
    }
}

/// Appends the first entries of a list (packed or not) as text; their type is that of the scalar field `number`.
/// Returns the total number of entries.
fn append_first_entries_and_count_all(
    number: u32,
    list: &[u8],
    at: usize,
    into: &mut Vec<String>,
) -> usize {
    let mut count = 0;
    let mut take = |raw| {
        if into.len() < SHOWN_ENTRIES {
            into.push(scalar_text(number, raw));
        }
        count += 1;
    };
    let mut list = WireCursor::new(list, at);
    while let Ok((1, raw)) = list.read_field() {
        let WireValue::Bytes(packed, _) = raw else {
            take(raw);
            continue;
        };
        match number {
            3 | 21 | 25 => {
                for bytes in packed.as_chunks::<8>().0 {
                    take(WireValue::Fixed64(u64::from_le_bytes(*bytes)));
                }
            }
            5 | 19 | 23 => {
                for bytes in packed.as_chunks::<4>().0 {
                    take(WireValue::Fixed32(u32::from_le_bytes(*bytes)));
                }
            }
            29 | 31 => take(raw),
            _ => {
                let mut packed = WireCursor::new(packed, at);
                while let Ok(value) = packed.read_varint() {
                    take(WireValue::Varint(value));
                }
            }
        }
    }
    count
}

#[inline]
fn decode_zigzag(v: u64) -> i64 {
    (v >> 1) as i64 ^ -((v & 1) as i64)
}

/// Returns the wire type of field `number` of the `oneof`.
const fn wire_type(number: u32) -> u32 {
    match number {
        3 | 21 | 25 => 1,
        5 | 19 | 23 => 5,
        29 | 31 => 2,
        _ if number & 1 == 0 => 2,
        _ => 0,
    }
}

/// Returns true if `raw` has the wire type of field `number` of the `oneof`.
#[inline]
fn wire_type_fits(number: u32, raw: WireValue<'_>) -> bool {
    let found = match raw {
        WireValue::Varint(_) => 0,
        WireValue::Fixed64(_) => 1,
        WireValue::Bytes(..) => 2,
        WireValue::Group => return false,
        WireValue::Fixed32(_) => 5,
    };
    wire_type(number) == found
}

#[cfg(test)]
mod tests {
    use super::super::proto::{AttributeProto, BoolList, attribute_proto::Value};
    use super::*;
    use prost::Message;

    fn scan_encoded_value_and_read<T>(value: Value, read: impl FnOnce(AttrView<'_>) -> T) -> T {
        let message = AttributeProto {
            name: "x".into(),
            value: Some(value),
            ..AttributeProto::default()
        }
        .encode_to_vec();
        read(AttrView::scan_attribute(&message, 0).unwrap())
    }

    #[test]
    fn lists_of_texts_are_read_whole() {
        use super::super::proto::StringList;
        let values = vec!["w".to_owned(), String::new(), "é".to_owned()];
        let list = Value::StringList(StringList { values });
        let texts = scan_encoded_value_and_read(list, |a| {
            let texts = a.as_texts().unwrap().unwrap();
            texts.into_iter().map(str::to_owned).collect::<Vec<_>>()
        });
        assert_eq!(texts, ["w", "", "é"]);
        assert!(scan_encoded_value_and_read(
            Value::StringVal("w".into()),
            |a| a.as_texts().unwrap().is_none()
        ));
        // A list may be split over two fields, so readers must merge the fields.
        let part = |value: &str| {
            let values = vec![value.to_owned()];
            AttributeProto {
                name: "x".into(),
                value: Some(Value::StringList(StringList { values })),
                ..AttributeProto::default()
            }
            .encode_to_vec()
        };
        let message = [part("a"), part("b")].concat();
        let texts = AttrView::scan_attribute(&message, 0)
            .unwrap()
            .as_texts()
            .unwrap();
        assert_eq!(texts, Some(vec!["a", "b"]));
    }

    #[test]
    fn every_numeric_type_reads_as_a_count() {
        for value in [
            Value::DoubleVal(5.0),
            Value::FloatVal(5.0),
            Value::Int32Val(5),
            Value::Int64Val(5),
            Value::Uint32Val(5),
            Value::Uint64Val(5),
            Value::Sint32Val(5),
            Value::Sint64Val(5),
            Value::Fixed32Val(5),
            Value::Fixed64Val(5),
            Value::Sfixed32Val(5),
            Value::Sfixed64Val(5),
            Value::StringVal("5".into()),
            Value::StringVal("5.0".into()),
        ] {
            let label = format!("{value:?}");
            assert_eq!(
                scan_encoded_value_and_read(value, |a| a.as_count().unwrap()),
                5,
                "{label}"
            );
        }
        for value in [
            Value::Int32Val(-5),
            Value::Int64Val(-5),
            Value::Sint32Val(-5),
            Value::Sint64Val(-5),
            Value::Sfixed32Val(-5),
            Value::Sfixed64Val(-5),
            Value::DoubleVal(-5.0),
        ] {
            let label = format!("{value:?}");
            assert!(
                scan_encoded_value_and_read(value.clone(), |a| a.as_count().is_err()),
                "{label}"
            );
            assert_eq!(
                scan_encoded_value_and_read(value, |a| a.as_i64().unwrap()),
                -5,
                "{label}"
            );
        }
        assert!(scan_encoded_value_and_read(Value::DoubleVal(5.5), |a| a
            .as_count()
            .is_err()));
        assert!(scan_encoded_value_and_read(
            Value::StringVal("five".into()),
            |a| a.as_count().is_err()
        ));
    }

    #[test]
    fn booleans_come_as_bool_int_or_text() {
        assert!(scan_encoded_value_and_read(Value::BoolVal(true), |a| a
            .as_bool()
            .unwrap()));
        assert!(!scan_encoded_value_and_read(Value::Int32Val(0), |a| a
            .as_bool()
            .unwrap()));
        assert!(scan_encoded_value_and_read(
            Value::StringVal("True".into()),
            |a| a.as_bool().unwrap()
        ));
    }

    #[test]
    fn boolean_list_reads_as_bit_mask_or_none_if_all_true() {
        let list = BoolList {
            values: vec![true, false, true],
        };
        let mask =
            scan_encoded_value_and_read(Value::BoolList(list), |a| a.list_as_bit_mask().unwrap());
        assert_eq!(mask, Some(0b101));
        let all = BoolList {
            values: vec![true; 4],
        };
        assert_eq!(
            scan_encoded_value_and_read(Value::BoolList(all), |a| a.list_as_bit_mask().unwrap()),
            None
        );
        let long = BoolList {
            values: vec![true; 33],
        };
        assert!(scan_encoded_value_and_read(Value::BoolList(long), |a| a
            .list_as_bit_mask()
            .is_err()));
    }
}
