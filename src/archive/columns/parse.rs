//! Splits a record into its template and the values of its slots.
//!
//! A *key* is the record without its numbers. It has three kinds of items: tags; strings, split at decimal numbers,
//! with the length of each part; and nested messages, each between its tag and a zero byte, which is never a valid tag.
//! A key identifies the template and is cheaper to compute, so the encoder builds a template only for a new key. The
//! first byte of a key is the kind of the record: a node, metadata, or a literal for records that are not encoded
//! minimally.

use super::byte_numbers::ByteStringInterner;
use super::decimals;
use super::template::{CLOSE, LITERAL, OPEN, SLOT, decimal_op};
use crate::wire::{decode_minimal_varint, put_varint};

/// Path of the id column: a node message, no attribute name, and field 1.
pub const ID_PATH: [u8; 2] = [ProtobufMessageKind::Node as u8, 1];

/// Maximum count of numbers per string that get their own columns; further numbers share one column.
const MOST_PLACES: u64 = 8;

/// First byte of a record's key if the record is stored unchanged.
const LITERAL_KEY: u8 = 0;
/// First byte of a text line's key.
const LINE_KEY: u8 = 5;
/// Maximum number of bytes, counted from the start of a line to its first number, that identify what the line's numbers
/// mean.
const MEANING: usize = 24;
/// Maximum number of columns with a meaning of their own; further meanings share one column.
const MOST_COLUMNS: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProtobufMessageKind {
    Node = 1,
    Metadata = 2,
    Attribute = 3,
    Io = 4,
}

impl ProtobufMessageKind {
    /// Returns the kind of the message in field `field`, or `None` if the field is not parsed as a
    /// message.
    fn of_field(self, field: u64) -> Option<Self> {
        match (self, field) {
            (Self::Node, 8 | 9) => Some(Self::Io),
            (Self::Node, 10) | (Self::Metadata, 2) => Some(Self::Attribute),
            _ => None,
        }
    }

    /// Returns true if strings in field `field` are stored whole, not split at numbers. Attribute names are stored
    /// whole because they identify columns; tensor values and shapes are stored whole because whole strings repeat, and
    /// separate numbers would take more space.
    fn keeps_text_unsplit(self, field: u64) -> bool {
        self == Self::Io || self == Self::Attribute && field == 1
    }

    /// Returns true if field `field` is a list of varints (dependencies).
    fn is_varint_list_field(self, field: u64) -> bool {
        self == Self::Node && matches!(field, 4 | 5)
    }
}

/// Appends the key of `record` to `key`, and the record's values to `slots`. Returns true if the record is encoded
/// minimally. Otherwise `key` and `slots` contain only a part of the record.
pub fn split_record_into_key_and_slots(
    record: &[u8],
    metadata: bool,
    key: &mut Vec<u8>,
    slots: &mut Vec<u64>,
) -> bool {
    let kind = if metadata {
        ProtobufMessageKind::Metadata
    } else {
        ProtobufMessageKind::Node
    };
    key.push(kind as u8);
    split_message_into_key_and_slots(record, kind, key, slots).is_some()
}

/// Appends the key of the text line `line` to `key`, and the line's numbers to `slots`.
pub fn split_line_into_key_and_numbers(line: &[u8], key: &mut Vec<u8>, slots: &mut Vec<u64>) {
    key.push(LINE_KEY);
    decimals::split_text_into_key_and_numbers(line, key, slots);
}

/// Sets `key` to the literal key of `record`, which contains all bytes of the record.
pub fn set_key_to_whole_record(record: &[u8], key: &mut Vec<u8>) {
    key.clear();
    key.push(LITERAL_KEY);
    key.extend_from_slice(record);
}

/// Appends `part` to `key`. Half of the parts are single tags, and pushing one byte is faster than copying a slice.
#[inline]
fn append_key_part(part: &[u8], key: &mut Vec<u8>) {
    match *part {
        [tag] => key.push(tag),
        _ => key.extend_from_slice(part),
    }
}

fn split_message_into_key_and_slots(
    bytes: &[u8],
    kind: ProtobufMessageKind,
    key: &mut Vec<u8>,
    slots: &mut Vec<u64>,
) -> Option<()> {
    // Bytes between `literal` and `at` belong to the key, but have not been appended yet.
    let (mut literal, mut at) = (0, 0);
    while at < bytes.len() {
        let (tag, length) = decode_minimal_varint(&bytes[at..])?;
        at += length;
        let field = tag >> 3;
        if field == 0 {
            return None;
        }
        match tag & 7 {
            0 => {
                let (value, length) = decode_minimal_varint(&bytes[at..])?;
                slots.push(value);
                append_key_part(&bytes[literal..at], key);
                at += length;
                literal = at;
            }
            2 => {
                let (size, length) = decode_minimal_varint(&bytes[at..])?;
                let begin = at + length;
                let end = begin.checked_add(usize::try_from(size).ok()?)?;
                let body = bytes.get(begin..end)?;
                if !kind.keeps_text_unsplit(field) {
                    append_key_part(&bytes[literal..at], key);
                    literal = end;
                    if let Some(inner) = kind.of_field(field) {
                        split_message_into_key_and_slots(body, inner, key, slots)?;
                        key.push(0);
                    } else if kind.is_varint_list_field(field) {
                        let first = slots.len();
                        let mut list = body;
                        while !list.is_empty() {
                            let (value, length) = decode_minimal_varint(list)?;
                            slots.push(value);
                            list = &list[length..];
                        }
                        put_varint(key, (slots.len() - first) as u64);
                    } else {
                        decimals::split_text_into_key_and_numbers(body, key, slots);
                    }
                }
                at = end;
            }
            1 => at += 8,
            5 => at += 4,
            _ => return None,
        }
    }
    // If a fixed-size number is truncated, `at` is after the end of the record.
    key.extend_from_slice(bytes.get(literal..at)?);
    Some(())
}

/// A record's key as a template, with a slot (a gap) for every number.
#[derive(Clone, Debug, Default)]
pub struct RecordOutlineWithSlots {
    /// Ops of the template.
    pub ops: Vec<u8>,
    /// Column of each slot.
    pub slots: Vec<u32>,
    /// Indices of the columns for decimal numbers that occur inside texts.
    pub decimals: Vec<u32>,
}

/// An outline under construction.
#[derive(Default)]
struct RecordOutlineBuilder {
    out: RecordOutlineWithSlots,
    literal: Vec<u8>,
}

impl RecordOutlineBuilder {
    /// Creates a writer with capacity for about `bytes` bytes.
    fn with_capacity_for(bytes: usize) -> Self {
        let mut this = Self::default();
        this.out.ops.reserve(bytes);
        this.literal.reserve(bytes);
        this
    }

    fn push_op(&mut self, op: u64) {
        self.end_literal();
        put_varint(&mut self.out.ops, op);
    }

    fn push_slot_of_column(&mut self, column: u64) {
        self.out.slots.push(column as u32);
        self.push_op(column << 2 | SLOT);
    }

    fn push_decimal_slot_of_column(&mut self, column: u64) {
        self.out.slots.push(column as u32);
        self.out.decimals.push(column as u32);
        self.push_op(decimal_op(column));
    }

    fn end_literal(&mut self) {
        if !self.literal.is_empty() {
            put_varint(
                &mut self.out.ops,
                (self.literal.len() as u64) << 2 | LITERAL,
            );
            self.out.ops.append(&mut self.literal);
        }
    }

    fn into_outline(mut self) -> RecordOutlineWithSlots {
        self.end_literal();
        self.out
    }
}

impl RecordOutlineWithSlots {
    /// Returns the ops of the outline. Slots that have a value in `fixed` are replaced by that
    /// value.
    pub fn encode_ops_replacing_fixed_slots(&self, fixed: &[Option<u64>]) -> Vec<u8> {
        let mut ops = RecordOutlineBuilder::with_capacity_for(self.ops.len());
        let (mut rest, mut fixed) = (&self.ops[..], fixed.iter());
        while let Some((op, length)) = decode_minimal_varint(rest) {
            rest = &rest[length..];
            match op & 3 {
                LITERAL => {
                    let (literal, behind) = rest.split_at((op >> 2) as usize);
                    ops.literal.extend_from_slice(literal);
                    rest = behind;
                }
                OPEN | CLOSE if op < 4 => ops.push_op(op),
                _ => match fixed.next() {
                    Some(&Some(value)) => put_varint(&mut ops.literal, value),
                    _ => ops.push_op(op),
                },
            }
        }
        ops.into_outline().ops
    }
}

/// Returns the outline that `key` describes, and adds its new columns to `columns`.
pub fn build_outline_from_key(
    key: &[u8],
    columns: &mut ByteStringInterner,
) -> RecordOutlineWithSlots {
    let mut ops = RecordOutlineBuilder::with_capacity_for(key.len() + key.len() / 4);
    let (first, mut rest) = key.split_first().expect("a key has a first byte");
    match *first {
        LITERAL_KEY => ops.literal.extend_from_slice(rest),
        LINE_KEY => append_text_ops(&mut rest, &mut ops, columns, |first| {
            let meaning = &first[first.len().saturating_sub(MEANING)..];
            [&[LINE_KEY], meaning].concat()
        })
        .expect("a key is well formed"),
        first => {
            let kind = if first == ProtobufMessageKind::Metadata as u8 {
                ProtobufMessageKind::Metadata
            } else {
                ProtobufMessageKind::Node
            };
            append_outline_of_protobuf_message(&mut rest, kind, &mut ops, columns)
                .expect("a key is well formed");
        }
    }
    ops.into_outline()
}

/// Returns the path of the column for `field`, in an attribute with this name.
fn build_column_path_of_field(kind: ProtobufMessageKind, field: u64, name: &[u8]) -> Vec<u8> {
    let mut path = vec![kind as u8];
    put_varint(&mut path, field);
    path.extend_from_slice(name);
    path
}

/// Returns the index of the column with this path; a new path gets a new column.
fn find_or_add_column(columns: &mut ByteStringInterner, path: Vec<u8>) -> u64 {
    let known = columns.find_number_of_bytes(&path);
    let number = known.unwrap_or_else(|| {
        let room = columns.len() < MOST_COLUMNS;
        columns.intern_bytes(if room { &path } else { &[] })
    });
    number.into()
}

/// Appends the ops of a text: its parts and its numbers. `path` computes the path of the text's columns from the text's
/// first part.
fn append_text_ops(
    rest: &mut &[u8],
    ops: &mut RecordOutlineBuilder,
    columns: &mut ByteStringInterner,
    path: impl FnOnce(&[u8]) -> Vec<u8>,
) -> Option<()> {
    let (numbers, length) = decode_minimal_varint(rest)?;
    *rest = &rest[length..];
    let first = take_text(rest)?;
    ops.literal.extend_from_slice(first);
    let path = path(first);
    for number in 0..numbers {
        // Numbers at the same position in a text have the same meaning, unless they are far from the start.
        let place = number.min(MOST_PLACES) as u8;
        ops.push_decimal_slot_of_column(find_or_add_column(
            columns,
            [&path[..], &[place]].concat(),
        ));
        ops.literal.extend_from_slice(take_text(rest)?);
    }
    Some(())
}

/// Takes a length-prefixed text from the front of `rest`.
fn take_text<'r>(rest: &mut &'r [u8]) -> Option<&'r [u8]> {
    let (size, length) = decode_minimal_varint(rest)?;
    let (text, after) = rest[length..].split_at_checked(usize::try_from(size).ok()?)?;
    *rest = after;
    Some(text)
}

/// Appends the ops of the message at the front of `rest`; the message ends where `rest` ends, or at a zero byte.
fn append_outline_of_protobuf_message(
    rest: &mut &[u8],
    kind: ProtobufMessageKind,
    ops: &mut RecordOutlineBuilder,
    columns: &mut ByteStringInterner,
) -> Option<()> {
    let mut name: &[u8] = &[];
    while let Some(&first) = rest.first() {
        if first == 0 {
            *rest = &rest[1..];
            break;
        }
        let (tag, length) = decode_minimal_varint(rest)?;
        ops.literal.extend_from_slice(&rest[..length]);
        *rest = &rest[length..];
        let field = tag >> 3;
        match tag & 7 {
            0 => ops.push_slot_of_column(find_or_add_column(
                columns,
                build_column_path_of_field(kind, field, name),
            )),
            2 if kind.of_field(field).is_some() => {
                ops.push_op(OPEN);
                append_outline_of_protobuf_message(rest, kind.of_field(field)?, ops, columns)?;
                ops.push_op(CLOSE);
            }
            2 if kind.is_varint_list_field(field) => {
                let (count, length) = decode_minimal_varint(rest)?;
                *rest = &rest[length..];
                let column =
                    find_or_add_column(columns, build_column_path_of_field(kind, field, name));
                ops.push_op(OPEN);
                (0..count).for_each(|_| ops.push_slot_of_column(column));
                ops.push_op(CLOSE);
            }
            2 if kind.keeps_text_unsplit(field) => {
                let before = *rest;
                name = take_text(rest)?;
                ops.literal
                    .extend_from_slice(&before[..before.len() - rest.len()]);
            }
            2 => {
                if rest.first() == Some(&0) {
                    // A text without numbers and the text's length together make one literal.
                    *rest = &rest[1..];
                    let before = *rest;
                    take_text(rest)?;
                    ops.literal
                        .extend_from_slice(&before[..before.len() - rest.len()]);
                } else {
                    ops.push_op(OPEN);
                    append_text_ops(rest, ops, columns, |_| {
                        build_column_path_of_field(kind, field, name)
                    })?;
                    ops.push_op(CLOSE);
                }
            }
            fixed => {
                let (bytes, after) = rest.split_at_checked(if fixed == 1 { 8 } else { 4 })?;
                ops.literal.extend_from_slice(bytes);
                *rest = after;
            }
        }
    }
    Some(())
}
