//! Templates of records: ops as they stand in a chunk, and the steps by which a record is written.

use super::record_writer::{DIGITS, LONGEST, RecordWriter};
use crate::archive::wire::{WireError, WireReader, put_varint};
use std::sync::Arc;

/// Templates of a chunk, by number: those of its base first, which are shared, and its own. A trace of distinct names has
/// a template for nearly every record.
#[derive(Clone, Debug, Default)]
pub struct TemplateTable {
    layers: Vec<Arc<TemplateLayer>>,
}

/// Templates that a chunk added to those of its base. All lie in a few arrays.
#[derive(Clone, Debug, Default)]
struct TemplateLayer {
    /// Number of the first.
    first: usize,
    /// Ops of all templates, as they stand in a chunk.
    encoded: Vec<u8>,
    steps: Vec<TemplateStep>,
    /// Literals of all steps.
    literals: Vec<u8>,
    /// Columns of slots, in the order of the record.
    slots: Vec<u32>,
    ends: Vec<TemplateEnd>,
    parsed: ParsedTemplate,
}

/// Template that is about to join; its memory is that of the one before it.
#[derive(Clone, Debug, Default)]
struct ParsedTemplate {
    parts: Vec<RecordPart>,
    /// Literals of all parts.
    literals: Vec<u8>,
    /// Messages that have not ended, by the part that begins them.
    open: Vec<usize>,
}

/// Ends of a template in the arrays of its layer.
#[derive(Clone, Copy, Debug, Default)]
struct TemplateEnd {
    encoded: usize,
    steps: usize,
    literals: usize,
    slots: usize,
}

/// Part of a record, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordPart {
    /// These many bytes as they are.
    Literal(usize),
    /// The next value of this column, as a varint.
    Slot(u32),
    /// The next value of this column, in decimal digits.
    Decimal(u32),
    /// The length of what lies between this and its `Close`, as a varint.
    Open,
    /// The end of a message within the record.
    Close,
}

/// Part of a record as it is written: a literal, and what stands behind it.
#[derive(Clone, Copy, Debug)]
struct TemplateStep {
    /// Bytes of the literal.
    literal: u32,
    /// Column of a slot.
    column: u32,
    behind: BehindLiteral,
    /// Bytes from the length of a field that a slot ends to the slot; 0 if it ends none.
    field: u8,
}

/// Part that follows a literal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BehindLiteral {
    /// A slot, which may end a message of nothing else but a literal, as most attributes are. The literal then holds the
    /// message's length, one byte, which is put right when the value is known.
    Slot,
    Nothing,
    Decimal,
    Open,
    Close,
}

/// Low bits of an op.
pub const LITERAL: u64 = 0;
pub const SLOT: u64 = 1;
pub const OPEN: u64 = 2;
pub const CLOSE: u64 = 3;

/// Returns the op of a decimal number in `column`: a close, which has no argument, with one.
pub fn decimal(column: u64) -> u64 {
    (column + 1) << 2 | CLOSE
}

/// Messages within messages of a record, at most.
const DEPTH: usize = 16;
/// Bytes of a literal in a message with a slot, at most, so that the length of both takes one byte.
const INNER: usize = 0x7f - LONGEST;

impl TemplateTable {
    /// Returns the number of templates.
    pub fn len(&self) -> usize {
        let last = self.layers.last();
        last.map_or(0, |layer| layer.first + layer.ends.len())
    }

    /// Starts templates of its own behind those that it has.
    pub fn begin_layer(&mut self) {
        self.layers.push(Arc::new(TemplateLayer {
            first: self.len(),
            ..TemplateLayer::default()
        }));
    }

    /// Returns the layer of template `number`, and its number there.
    #[inline]
    fn layer(&self, number: usize) -> (&TemplateLayer, usize) {
        let mut layers = self.layers.iter().rev();
        let layer = layers.find(|layer| layer.first <= number);
        let layer = layer.expect("the first layer begins with 0");
        (layer, number - layer.first)
    }

    /// Returns the bytes of the templates of the last layer, as they stand in its chunk.
    pub fn own_bytes(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.encoded.len())
    }

    /// Returns the encoding of template `number`.
    pub fn encoded(&self, number: usize) -> &[u8] {
        let (layer, number) = self.layer(number);
        let [from, to] = layer.range(number);
        &layer.encoded[from.encoded..to.encoded]
    }

    /// Returns the columns of the slots of template `number`, in the order of the record.
    #[inline]
    pub fn slots(&self, number: usize) -> &[u32] {
        let (layer, number) = self.layer(number);
        let [from, to] = layer.range(number);
        &layer.slots[from.slots..to.slots]
    }

    /// Adds the template of these ops to the last layer; columns are below `columns`.
    pub fn push(&mut self, encoded: &[u8], columns: usize) -> Result<(), WireError> {
        if self.layers.is_empty() {
            self.begin_layer();
        }
        let layer = self.layers.last_mut().expect("there is one");
        Arc::make_mut(layer).push(encoded, columns)
    }

    /// Writes a record of template `number`, `framed` behind its length; `value` gives the value of each slot in turn.
    #[inline]
    pub fn write(
        &self,
        number: usize,
        framed: bool,
        out: &mut RecordWriter<'_>,
        value: impl FnMut(u32) -> u64,
    ) -> Result<(), WireError> {
        let (layer, number) = self.layer(number);
        layer.write(number, framed, out, value)
    }

    /// Returns the bytes that a record of template `number` takes at most while it is written.
    #[inline]
    pub fn most(&self, number: usize) -> usize {
        let (layer, number) = self.layer(number);
        let [from, to] = layer.range(number);
        // Behind each literal stands a number at most, and before all of them a length.
        to.literals - from.literals + (to.steps - from.steps + 1) * DIGITS
    }
}

impl TemplateLayer {
    /// Returns where template `number` begins, and where it ends.
    #[inline]
    fn range(&self, number: usize) -> [TemplateEnd; 2] {
        let before = number.checked_sub(1).map(|before| self.ends[before]);
        [before.unwrap_or_default(), self.ends[number]]
    }

    fn push(&mut self, encoded: &[u8], columns: usize) -> Result<(), WireError> {
        let mut parsed = std::mem::take(&mut self.parsed);
        parsed.read(encoded, columns)?;
        self.compile(&parsed);
        let slots = parsed.parts.iter().filter_map(|part| match *part {
            RecordPart::Slot(column) | RecordPart::Decimal(column) => Some(column),
            _ => None,
        });
        self.slots.extend(slots);
        self.parsed = parsed;
        self.encoded.extend_from_slice(encoded);
        self.ends.push(TemplateEnd {
            encoded: self.encoded.len(),
            steps: self.steps.len(),
            literals: self.literals.len(),
            slots: self.slots.len(),
        });
        Ok(())
    }

    /// Adds the steps of a template.
    fn compile(&mut self, parsed: &ParsedTemplate) {
        use RecordPart::{Close, Decimal, Literal, Open, Slot};
        let mut parts = &parsed.parts[..];
        let mut literals = &parsed.literals[..];
        let mut take = |literal: usize| literals.split_off(..literal).expect("its parts say so");
        while !parts.is_empty() {
            let start = self.literals.len();
            if let [Literal(literal), behind @ ..] = parts {
                self.literals.extend_from_slice(take(*literal));
                parts = behind;
            }
            let (behind, column, field, rest) = match parts {
                [Open, Slot(column), Close, rest @ ..] => {
                    (BehindLiteral::Slot, *column, Some(0), rest)
                }
                [Open, Literal(inner), Slot(column), Close, rest @ ..] if *inner <= INNER => {
                    (BehindLiteral::Slot, *column, Some(*inner), rest)
                }
                [Slot(column), rest @ ..] => (BehindLiteral::Slot, *column, None, rest),
                [Decimal(column), rest @ ..] => (BehindLiteral::Decimal, *column, None, rest),
                [Open, rest @ ..] => (BehindLiteral::Open, 0, None, rest),
                [Close, rest @ ..] => (BehindLiteral::Close, 0, None, rest),
                rest => (BehindLiteral::Nothing, 0, None, rest),
            };
            parts = rest;
            if let Some(inner) = field {
                self.literals.push(0);
                self.literals.extend_from_slice(take(inner));
            }
            self.steps.push(TemplateStep {
                literal: (self.literals.len() - start) as u32,
                column,
                behind,
                field: field.map_or(0, |inner| inner as u8 + 1),
            });
        }
    }

    #[inline]
    fn write(
        &self,
        number: usize,
        framed: bool,
        out: &mut RecordWriter<'_>,
        mut value: impl FnMut(u32) -> u64,
    ) -> Result<(), WireError> {
        let [from, to] = self.range(number);
        let mut literals = &self.literals[from.literals..];
        let mut open = [0; DEPTH];
        let mut depth = 0;
        let steps = &self.steps[from.steps..to.steps];
        // Most records take as many bytes for their length as their literals and as many numbers of a byte would.
        let left = if to.literals - from.literals + steps.len() < 0x80 {
            1
        } else {
            2
        };
        let begin = if framed { out.open(left) } else { 0 };
        for step in steps {
            let literal = step.literal as usize;
            out.literal(literals, literal)?;
            literals = &literals[literal..];
            match step.behind {
                BehindLiteral::Slot => out.varint(value(step.column), step.field.into())?,
                BehindLiteral::Nothing => {}
                BehindLiteral::Decimal => out.decimal(value(step.column))?,
                BehindLiteral::Open => {
                    open[depth] = out.open(1);
                    depth += 1;
                }
                BehindLiteral::Close => {
                    depth -= 1;
                    out.close(open[depth], 1)?;
                }
            }
        }
        if framed {
            out.close(begin, left)?;
        }
        Ok(())
    }
}

impl ParsedTemplate {
    /// Parses the ops of a template; columns are below `columns`, and messages end. Literals are put behind one another, and
    /// what holds nothing else is one.
    fn read(&mut self, encoded: &[u8], columns: usize) -> Result<(), WireError> {
        let column = |number: u64| {
            let column = usize::try_from(number).ok().filter(|&c| c < columns);
            let column = column.ok_or(WireError("a template has a column that is not there"));
            column.map(|column| column as u32)
        };
        let mut input = WireReader::new(encoded);
        let Self {
            parts: all,
            literals,
            open,
        } = self;
        all.clear();
        literals.clear();
        open.clear();
        while !input.is_at_end() {
            let op = input.varint()?;
            let argument = op >> 2;
            match op & 3 {
                LITERAL => {
                    let length = usize::try_from(argument).unwrap_or(usize::MAX);
                    literals.extend_from_slice(input.take(length)?);
                    push_literal(all, length);
                }
                SLOT => all.push(RecordPart::Slot(column(argument)?)),
                CLOSE if argument > 0 => all.push(RecordPart::Decimal(column(argument - 1)?)),
                OPEN => {
                    open.push(all.len());
                    all.push(RecordPart::Open);
                }
                _ => {
                    let begin = open.pop();
                    let begin = begin.ok_or(WireError("a message of a template ends twice"))?;
                    let length = match all[begin + 1..] {
                        [] => Some(0),
                        [RecordPart::Literal(length)] => Some(length),
                        _ => None,
                    };
                    let Some(length) = length else {
                        all.push(RecordPart::Close);
                        continue;
                    };
                    // A message that is always the same is a literal, its length included.
                    let before = literals.len();
                    put_varint(literals, length as u64);
                    let prefix = literals.len() - before;
                    literals[before - length..].rotate_right(prefix);
                    all.truncate(begin);
                    push_literal(all, prefix + length);
                }
            }
            if open.len() > DEPTH {
                return Err(WireError("messages of a template lie too deep"));
            }
        }
        if !open.is_empty() {
            return Err(WireError("a message of a template does not end"));
        }
        Ok(())
    }
}

/// Adds a literal to that before it, if there is one.
fn push_literal(parts: &mut Vec<RecordPart>, length: usize) {
    match parts.last_mut() {
        Some(RecordPart::Literal(before)) => *before += length,
        _ => parts.push(RecordPart::Literal(length)),
    }
}
