//! Splitting of a record into its template and the values of its slots.
//!
//! A *key* is the record with its varints left out: tags, the bytes of texts behind their lengths, and messages within
//! messages between their tag and a zero byte, which is no tag. It is as telling as a template and quicker to make;
//! a template is made of it where the key is new. Its first byte says what the record is: a node, metadata, or, not
//! being written in the shortest way, a literal.

use super::byte_numbers::ByteNumbers;
use super::template::{CLOSE, LITERAL, OPEN, SLOT, Template};
use crate::archive::wire::{put_varint, shortest_varint};

/// Path of the column of ids: a message of nodes, no name, field 1.
pub const ID_PATH: [u8; 2] = [MessageKind::Node as u8, 1];

/// First byte of the key of a record that is kept as it is.
const LITERAL_KEY: u8 = 0;

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

/// Sets `key` to that of `record` as a literal.
pub fn literal_key(record: &[u8], key: &mut Vec<u8>) {
    key.clear();
    key.push(LITERAL_KEY);
    key.extend_from_slice(record);
}

fn message(
    mut rest: &[u8],
    kind: MessageKind,
    key: &mut Vec<u8>,
    slots: &mut Vec<u64>,
) -> Option<()> {
    while !rest.is_empty() {
        let (tag, length) = shortest_varint(rest)?;
        key.extend_from_slice(&rest[..length]);
        rest = &rest[length..];
        let field = tag >> 3;
        if field == 0 {
            return None;
        }
        match tag & 7 {
            0 => {
                let (value, length) = shortest_varint(rest)?;
                slots.push(value);
                rest = &rest[length..];
            }
            2 => {
                let (size, length) = shortest_varint(rest)?;
                let prefix = &rest[..length];
                let body = rest[length..].get(..usize::try_from(size).ok()?)?;
                rest = &rest[length + body.len()..];
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
                    key.extend_from_slice(prefix);
                    key.extend_from_slice(body);
                }
            }
            fixed @ (1 | 5) => {
                let (bytes, after) = rest.split_at_checked(if fixed == 1 { 8 } else { 4 })?;
                key.extend_from_slice(bytes);
                rest = after;
            }
            _ => return None,
        }
    }
    Some(())
}

/// Ops of a template in the making.
#[derive(Default)]
struct OpWriter {
    out: Vec<u8>,
    literal: Vec<u8>,
}

impl OpWriter {
    fn op(&mut self, op: u64) {
        if !self.literal.is_empty() {
            put_varint(&mut self.out, (self.literal.len() as u64) << 2 | LITERAL);
            self.out.append(&mut self.literal);
        }
        put_varint(&mut self.out, op);
    }

    fn finish(mut self) -> Vec<u8> {
        if !self.literal.is_empty() {
            put_varint(&mut self.out, (self.literal.len() as u64) << 2 | LITERAL);
            self.out.append(&mut self.literal);
        }
        self.out
    }
}

/// Makes a template of `key`; columns that are new join `columns`.
pub fn template(key: &[u8], columns: &mut ByteNumbers) -> Template {
    let mut ops = OpWriter::default();
    let (first, mut rest) = key.split_first().expect("a key has a first byte");
    match *first {
        LITERAL_KEY => ops.literal.extend_from_slice(rest),
        first => {
            let kind = if first == MessageKind::Metadata as u8 {
                MessageKind::Metadata
            } else {
                MessageKind::Node
            };
            ops_of(&mut rest, kind, &mut ops, columns).expect("a key is well formed");
        }
    }
    Template::parse(&ops.finish(), columns.len()).expect("ops are well formed")
}

/// Returns the number of the column of `field`, in an attribute of this name.
fn column(columns: &mut ByteNumbers, kind: MessageKind, field: u64, name: &[u8]) -> u64 {
    let mut path = vec![kind as u8];
    put_varint(&mut path, field);
    path.extend_from_slice(name);
    u64::from(columns.intern(path))
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
            0 => ops.op(column(columns, kind, field, name) << 2 | SLOT),
            2 if kind.within(field).is_some() => {
                ops.op(OPEN);
                ops_of(rest, kind.within(field)?, ops, columns)?;
                ops.op(CLOSE);
            }
            2 if kind.is_list(field) => {
                let (count, length) = shortest_varint(rest)?;
                *rest = &rest[length..];
                let column = column(columns, kind, field, name);
                ops.op(OPEN);
                (0..count).for_each(|_| ops.op(column << 2 | SLOT));
                ops.op(CLOSE);
            }
            2 => {
                let (size, length) = shortest_varint(rest)?;
                let end = length + usize::try_from(size).ok()?;
                if kind == MessageKind::Attribute && field == 1 {
                    name = &rest[length..end];
                }
                ops.literal.extend_from_slice(&rest[..end]);
                *rest = &rest[end..];
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
