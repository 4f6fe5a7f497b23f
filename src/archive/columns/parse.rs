//! Splitting of a record into its template and the values of its slots.
//!
//! A *key* is the record with its numbers left out: tags, the pieces of texts between decimal numbers behind their
//! lengths, and messages within messages between their tag and a zero byte, which is no tag. It is as telling as a
//! template and quicker to make; a template is made of it where the key is new. Its first byte says what the record is:
//! a node, metadata, or, not being written in the shortest way, a literal.

use super::byte_numbers::ByteNumbers;
use super::decimals;
use super::template::{CLOSE, LITERAL, OPEN, SLOT, decimal};
use crate::wire::{put_varint, shortest_varint};

/// Path of the column of ids: a message of nodes, no name, field 1.
pub const ID_PATH: [u8; 2] = [MessageKind::Node as u8, 1];

/// Numbers of a text with columns of their own; the others share one.
const MOST_PLACES: u64 = 8;

/// First byte of the key of a record that is kept as it is.
const LITERAL_KEY: u8 = 0;
/// First byte of the key of a line of a text.
const LINE_KEY: u8 = 5;
/// Bytes in front of a line's first number that say what its numbers mean.
const MEANING: usize = 24;
/// Columns at most; further meanings share one.
const MOST_COLUMNS: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageKind {
    Node = 1,
    Metadata = 2,
    Attribute = 3,
    Io = 4,
}

impl MessageKind {
    /// The message in field `field`, if one is looked into.
    fn within(self, field: u64) -> Option<Self> {
        match (self, field) {
            (Self::Node, 8 | 9) => Some(Self::Io),
            (Self::Node, 10) | (Self::Metadata, 2) => Some(Self::Attribute),
            _ => None,
        }
    }

    /// Whether texts in field `field` stay as they are: names of attributes, which tell columns apart, and values and
    /// shapes of tensors, which repeat as a whole and take more as numbers.
    fn keeps_text(self, field: u64) -> bool {
        self == Self::Io || self == Self::Attribute && field == 1
    }

    /// Whether field `field` is a list of varints: the dependencies.
    fn is_list(self, field: u64) -> bool {
        self == Self::Node && matches!(field, 4 | 5)
    }
}

/// Appends the key of `record` to `key` and its values to `slots`. Returns whether it is written in the shortest way;
/// otherwise both hold part of it.
pub fn record(record: &[u8], metadata: bool, key: &mut Vec<u8>, slots: &mut Vec<u64>) -> bool {
    let kind = if metadata {
        MessageKind::Metadata
    } else {
        MessageKind::Node
    };
    key.push(kind as u8);
    message(record, kind, key, slots).is_some()
}

/// Sets `key` to that of `line` of a text, and `slots` to its numbers.
pub fn line(line: &[u8], key: &mut Vec<u8>, slots: &mut Vec<u64>) {
    key.push(LINE_KEY);
    decimals::split(line, key, slots);
}

/// Sets `key` to that of `record` as a literal.
pub fn literal_key(record: &[u8], key: &mut Vec<u8>) {
    key.clear();
    key.push(LITERAL_KEY);
    key.extend_from_slice(record);
}

/// Appends `part` to `key`; half of the parts are one tag, which takes less than a copy.
#[inline]
fn append(part: &[u8], key: &mut Vec<u8>) {
    match *part {
        [tag] => key.push(tag),
        _ => key.extend_from_slice(part),
    }
}

fn message(bytes: &[u8], kind: MessageKind, key: &mut Vec<u8>, slots: &mut Vec<u64>) -> Option<()> {
    // What lies between these is part of the key and not yet there.
    let (mut literal, mut at) = (0, 0);
    while at < bytes.len() {
        let (tag, length) = shortest_varint(&bytes[at..])?;
        at += length;
        let field = tag >> 3;
        if field == 0 {
            return None;
        }
        match tag & 7 {
            0 => {
                let (value, length) = shortest_varint(&bytes[at..])?;
                slots.push(value);
                append(&bytes[literal..at], key);
                at += length;
                literal = at;
            }
            2 => {
                let (size, length) = shortest_varint(&bytes[at..])?;
                let begin = at + length;
                let end = begin.checked_add(usize::try_from(size).ok()?)?;
                let body = bytes.get(begin..end)?;
                if !kind.keeps_text(field) {
                    append(&bytes[literal..at], key);
                    literal = end;
                    if let Some(inner) = kind.within(field) {
                        message(body, inner, key, slots)?;
                        key.push(0);
                    } else if kind.is_list(field) {
                        let first = slots.len();
                        let mut list = body;
                        while !list.is_empty() {
                            let (value, length) = shortest_varint(list)?;
                            slots.push(value);
                            list = &list[length..];
                        }
                        put_varint(key, (slots.len() - first) as u64);
                    } else {
                        decimals::split(body, key, slots);
                    }
                }
                at = end;
            }
            1 => at += 8,
            5 => at += 4,
            _ => return None,
        }
    }
    // A fixed number may have been cut short.
    key.extend_from_slice(bytes.get(literal..at)?);
    Some(())
}

/// Template of a key, all of whose numbers are slots.
#[derive(Clone, Debug, Default)]
pub struct RecordOutline {
    /// Its ops.
    pub ops: Vec<u8>,
    /// Columns of its slots.
    pub slots: Vec<u32>,
    /// Those of numbers within texts.
    pub decimals: Vec<u32>,
}

/// Outline in the making.
#[derive(Default)]
struct OpWriter {
    out: RecordOutline,
    literal: Vec<u8>,
}

impl OpWriter {
    /// Starts an outline of about `bytes` bytes.
    fn of_about(bytes: usize) -> Self {
        let mut this = Self::default();
        this.out.ops.reserve(bytes);
        this.literal.reserve(bytes);
        this
    }

    fn op(&mut self, op: u64) {
        self.end_literal();
        put_varint(&mut self.out.ops, op);
    }

    fn slot(&mut self, column: u64) {
        self.out.slots.push(column as u32);
        self.op(column << 2 | SLOT);
    }

    fn decimal(&mut self, column: u64) {
        self.out.slots.push(column as u32);
        self.out.decimals.push(column as u32);
        self.op(decimal(column));
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

    fn finish(mut self) -> RecordOutline {
        self.end_literal();
        self.out
    }
}

impl RecordOutline {
    /// Returns its ops with the values that slots have in `fixed` in their place.
    pub fn fix(&self, fixed: &[Option<u64>]) -> Vec<u8> {
        let mut ops = OpWriter::of_about(self.ops.len());
        let (mut rest, mut fixed) = (&self.ops[..], fixed.iter());
        while let Some((op, length)) = shortest_varint(rest) {
            rest = &rest[length..];
            match op & 3 {
                LITERAL => {
                    let (literal, behind) = rest.split_at((op >> 2) as usize);
                    ops.literal.extend_from_slice(literal);
                    rest = behind;
                }
                OPEN | CLOSE if op < 4 => ops.op(op),
                _ => match fixed.next() {
                    Some(&Some(value)) => put_varint(&mut ops.literal, value),
                    _ => ops.op(op),
                },
            }
        }
        ops.finish().ops
    }
}

/// Returns the outline of `key`; columns that are new join `columns`.
pub fn outline(key: &[u8], columns: &mut ByteNumbers) -> RecordOutline {
    let mut ops = OpWriter::of_about(key.len() + key.len() / 4);
    let (first, mut rest) = key.split_first().expect("a key has a first byte");
    match *first {
        LITERAL_KEY => ops.literal.extend_from_slice(rest),
        LINE_KEY => text_of(&mut rest, &mut ops, columns, |first| {
            let meaning = &first[first.len().saturating_sub(MEANING)..];
            [&[LINE_KEY], meaning].concat()
        })
        .expect("a key is well formed"),
        first => {
            let kind = if first == MessageKind::Metadata as u8 {
                MessageKind::Metadata
            } else {
                MessageKind::Node
            };
            ops_of(&mut rest, kind, &mut ops, columns).expect("a key is well formed");
        }
    }
    ops.finish()
}

/// Returns the path of the column of `field`, in an attribute of this name.
fn path(kind: MessageKind, field: u64, name: &[u8]) -> Vec<u8> {
    let mut path = vec![kind as u8];
    put_varint(&mut path, field);
    path.extend_from_slice(name);
    path
}

/// Returns the number of the column of a path.
fn column(columns: &mut ByteNumbers, path: Vec<u8>) -> u64 {
    let known = columns.get(&path);
    let number = known.unwrap_or_else(|| {
        let room = columns.len() < MOST_COLUMNS;
        columns.intern(if room { &path } else { &[] })
    });
    number.into()
}

/// Appends the ops of a text: its pieces, and its numbers. `path` gives the path of its columns from its first piece.
fn text_of(
    rest: &mut &[u8],
    ops: &mut OpWriter,
    columns: &mut ByteNumbers,
    path: impl FnOnce(&[u8]) -> Vec<u8>,
) -> Option<()> {
    let (numbers, length) = shortest_varint(rest)?;
    *rest = &rest[length..];
    let first = text(rest)?;
    ops.literal.extend_from_slice(first);
    let path = path(first);
    for number in 0..numbers {
        // Numbers at one place of a text mean one thing; far behind, places mean little.
        let place = number.min(MOST_PLACES) as u8;
        ops.decimal(column(columns, [&path[..], &[place]].concat()));
        ops.literal.extend_from_slice(text(rest)?);
    }
    Some(())
}

/// Takes the text behind its length from the beginning of `rest`.
fn text<'r>(rest: &mut &'r [u8]) -> Option<&'r [u8]> {
    let (size, length) = shortest_varint(rest)?;
    let (text, after) = rest[length..].split_at_checked(usize::try_from(size).ok()?)?;
    *rest = after;
    Some(text)
}

/// Appends the ops of the message at the beginning of `rest`, which ends with it or with a zero.
fn ops_of(
    rest: &mut &[u8],
    kind: MessageKind,
    ops: &mut OpWriter,
    columns: &mut ByteNumbers,
) -> Option<()> {
    let mut name: &[u8] = &[];
    while let Some(&first) = rest.first() {
        if first == 0 {
            *rest = &rest[1..];
            break;
        }
        let (tag, length) = shortest_varint(rest)?;
        ops.literal.extend_from_slice(&rest[..length]);
        *rest = &rest[length..];
        let field = tag >> 3;
        match tag & 7 {
            0 => ops.slot(column(columns, path(kind, field, name))),
            2 if kind.within(field).is_some() => {
                ops.op(OPEN);
                ops_of(rest, kind.within(field)?, ops, columns)?;
                ops.op(CLOSE);
            }
            2 if kind.is_list(field) => {
                let (count, length) = shortest_varint(rest)?;
                *rest = &rest[length..];
                let column = column(columns, path(kind, field, name));
                ops.op(OPEN);
                (0..count).for_each(|_| ops.slot(column));
                ops.op(CLOSE);
            }
            2 if kind.keeps_text(field) => {
                let before = *rest;
                name = text(rest)?;
                ops.literal
                    .extend_from_slice(&before[..before.len() - rest.len()]);
            }
            2 => {
                if rest.first() == Some(&0) {
                    // Without a number the text is as it stands, its length before it.
                    *rest = &rest[1..];
                    let before = *rest;
                    text(rest)?;
                    ops.literal
                        .extend_from_slice(&before[..before.len() - rest.len()]);
                } else {
                    ops.op(OPEN);
                    text_of(rest, ops, columns, |_| path(kind, field, name))?;
                    ops.op(CLOSE);
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
