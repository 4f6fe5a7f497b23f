//! Templates of records: ops as they stand in a chunk, and the steps by which a record is written, last byte first.

use super::backward_writer::{BackwardWriter, ONCE};
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

/// Part of a record as it is written: a literal, and what stands behind it, which is written first.
#[derive(Clone, Copy, Debug)]
struct TemplateStep {
    behind: BehindLiteral,
    /// Bytes of a field in front of its value.
    inner: u8,
    /// Place of a field's length, from the byte in front of the literal.
    patch: u16,
    /// Column of a slot.
    column: u32,
    /// Bytes of the literal, and their end in the literals of the layer.
    length: u32,
    end: u32,
}

/// Field that follows a literal.
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
const INNER: usize = 0x7f - 10;
/// Bytes of the literal in front of such a message, at most, so that its place is known in 16 bits.
const OUTER: usize = 1 << 14;

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
            // So that as much as is copied at once lies before the end of any literal.
            literals: vec![0; ONCE],
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

    /// Writes a record of template `number`; `value` gives the value of each slot, last first.
    #[inline]
    pub fn write(
        &self,
        number: usize,
        out: &mut BackwardWriter<'_>,
        value: impl FnMut(u32) -> u64,
    ) -> Result<(), WireError> {
        let (layer, number) = self.layer(number);
        layer.write(number, out, value)
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
            slots: self.slots.len(),
        });
        Ok(())
    }

    /// Adds the steps of a template, last first.
    fn compile(&mut self, parsed: &ParsedTemplate) {
        use RecordPart::{Close, Decimal, Literal, Open, Slot};
        let mut parts = &parsed.parts[..];
        let mut rest = &parsed.literals[..];
        let mut take = |length: usize| {
            let (before, taken) = rest.split_at(rest.len() - length);
            rest = before;
            taken
        };
        while let Some((last, before)) = parts.split_last() {
            let (behind, column, inner, before) = match (*last, before) {
                (Close, [.., Literal(outer), Open, Slot(_)]) if *outer > OUTER => {
                    (BehindLiteral::Close, 0, None, before)
                }
                (Close, [before @ .., Open, Slot(column)]) => {
                    (BehindLiteral::Slot, *column, Some(0), before)
                }
                (Close, [.., Literal(outer), Open, Literal(_), Slot(_)]) if *outer > OUTER => {
                    (BehindLiteral::Close, 0, None, before)
                }
                (Close, [before @ .., Open, Literal(inner), Slot(column)]) if *inner <= INNER => {
                    (BehindLiteral::Slot, *column, Some(*inner), before)
                }
                (Literal(_), _) => (BehindLiteral::Nothing, 0, None, parts),
                (Slot(column), _) => (BehindLiteral::Slot, column, None, before),
                (Decimal(column), _) => (BehindLiteral::Decimal, column, None, before),
                (Open, _) => (BehindLiteral::Open, 0, None, before),
                (Close, _) => (BehindLiteral::Close, 0, None, before),
            };
            let start = self.literals.len();
            let within = inner.map(&mut take);
            parts = match before {
                [before @ .., Literal(length)] => {
                    self.literals.extend_from_slice(take(*length));
                    before
                }
                _ => before,
            };
            // Without a length what is put right is the byte in front of the literal, which is written later.
            let patch = within.map_or(0, |_| self.literals.len() - start + 1);
            if let Some(within) = within {
                self.literals.push(0);
                self.literals.extend_from_slice(within);
            }
            self.steps.push(TemplateStep {
                behind,
                inner: inner.unwrap_or(0) as u8,
                patch: patch as u16,
                column,
                length: (self.literals.len() - start) as u32,
                end: self.literals.len() as u32,
            });
        }
    }

    #[inline]
    fn write(
        &self,
        number: usize,
        out: &mut BackwardWriter<'_>,
        mut value: impl FnMut(u32) -> u64,
    ) -> Result<(), WireError> {
        let [from, to] = self.range(number);
        let mut ends = [0; DEPTH];
        let mut depth = 0;
        for step in &self.steps[from.steps..to.steps] {
            let end = out.at();
            if step.behind == BehindLiteral::Slot {
                out.varint(value(step.column))?;
                let bytes = end - out.at() + usize::from(step.inner);
                out.literal(&self.literals, step.end as usize, step.length as usize)?;
                out.patch(step.patch.into(), bytes as u8)?;
                continue;
            }
            match step.behind {
                BehindLiteral::Slot | BehindLiteral::Nothing => {}
                BehindLiteral::Decimal => out.decimal(value(step.column))?,
                BehindLiteral::Close => {
                    ends[depth] = end;
                    depth += 1;
                }
                BehindLiteral::Open => {
                    depth -= 1;
                    out.varint((ends[depth] - end) as u64)?;
                }
            }
            out.literal(&self.literals, step.end as usize, step.length as usize)?;
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
