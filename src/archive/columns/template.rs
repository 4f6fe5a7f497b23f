//! Templates of records in two forms: ops in a chunk, and steps that write a record.

use super::record_writer::{DIGITS, LONGEST, PaddedBufferWriter};
use crate::wire::{ArchiveDecodingError, ByteStringReader, put_varint};
use std::sync::Arc;

/// Templates of a chunk by number: first the templates that it shares with its base, then its own.
/// If all nodes of a trace have distinct names, almost every record has its own template.
#[derive(Clone, Debug, Default)]
pub struct TemplateTable {
    layers: Vec<Arc<ChunkAddedTemplates>>,
}

/// Templates that a chunk adds to its base's templates, stored in a few arrays.
#[derive(Clone, Debug, Default)]
pub struct ChunkAddedTemplates {
    /// Number of the layer's first template in the table.
    first: usize,
    /// Encoded size of all templates of the layer, in bytes.
    bytes: usize,
    steps: Vec<RecordTemplateWritingStep>,
    /// Literals of all steps.
    literals: Vec<u8>,
    /// Column of every template slot; templates come one after another, and slots in record order.
    slots: Vec<u32>,
    ends: Vec<TemplateEndsInSharedArrays>,
}

/// Where a template's range ends in each array of a layer.
#[derive(Clone, Copy, Debug, Default)]
struct TemplateEndsInSharedArrays {
    steps: usize,
    literals: usize,
    slots: usize,
}

/// A template in the form that writes records.
#[derive(Clone, Copy, Debug)]
pub struct TemplateForWritingRecords<'t> {
    steps: &'t [RecordTemplateWritingStep],
    /// Literals of the steps; literals of later templates may follow.
    literals: &'t [u8],
    /// Total length of the literals of all steps.
    length: usize,
}

/// A step in writing a record: a literal and the part that follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RecordTemplateWritingStep {
    /// Length of the literal.
    literal: u32,
    /// Column of the slot, if a slot follows.
    column: u32,
    behind: PartAfterLiteral,
    /// If the slot ends a message, the distance from the message's length byte to the slot;
    /// otherwise 0.
    field: u8,
}

/// Part of a record that follows a literal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartAfterLiteral {
    /// A slot. The slot may also end a message that consists of one literal and the slot, as most attributes do. The
    /// literal before such a slot includes the message's length byte. The writer corrects this byte when the value is
    /// known.
    Slot,
    Nothing,
    Decimal,
    /// A message. The literal ends with a byte that is reserved for the message's length.
    Open,
    Close,
}

/// Kinds of ops, stored in the two low bits of an op.
pub const LITERAL: u64 = 0;
pub const SLOT: u64 = 1;
pub const OPEN: u64 = 2;
pub const CLOSE: u64 = 3;

/// Returns the op of a decimal number in `column`: a `CLOSE` with an argument. A `CLOSE` without an argument ends a
/// message.
pub fn decimal_op(column: u64) -> u64 {
    (column + 1) << 2 | CLOSE
}

/// Maximum nesting depth of messages in a record.
const DEPTH: usize = 16;
const TOO_DEEP: ArchiveDecodingError =
    ArchiveDecodingError("the messages of a template are nested too deep");
const ENDS_TWICE: ArchiveDecodingError = ArchiveDecodingError("a message of a template ends twice");
const NO_COLUMN: ArchiveDecodingError = ArchiveDecodingError("a template names a missing column");
/// Maximum length of the literal in a message that ends with a slot. With a longer literal, the message's length could
/// need two bytes.
const INNER: usize = 0x7f - LONGEST;

impl TemplateTable {
    /// Returns the number of templates in all layers.
    pub fn len(&self) -> usize {
        let last = self.layers.last();
        last.map_or(0, |layer| layer.first + layer.ends.len())
    }

    /// Starts a layer for the chunk's own templates, and reuses the memory of `layer`.
    pub fn begin_layer(&mut self, mut layer: ChunkAddedTemplates) {
        layer.first = self.len();
        layer.bytes = 0;
        layer.steps.clear();
        layer.literals.clear();
        layer.slots.clear();
        layer.ends.clear();
        self.layers.push(Arc::new(layer));
    }

    /// Returns the memory of the chunk's own templates, unless another table shares that memory.
    pub fn into_own_templates_unless_shared(mut self) -> Option<ChunkAddedTemplates> {
        self.layers.pop().and_then(Arc::into_inner)
    }

    /// Returns the layer (one chunk's part of the table) that holds template `number`, and two ends within this layer:
    /// where the previous template ends (0 for the first template) and where template `number` ends.
    #[inline]
    fn layer_and_ends_of_template(
        &self,
        number: usize,
    ) -> (&ChunkAddedTemplates, [TemplateEndsInSharedArrays; 2]) {
        let mut layers = self.layers.iter().rev();
        let layer = layers.find(|layer| layer.first <= number);
        let layer = layer.expect("the first layer begins with 0");
        let number = number - layer.first;
        let before = number.checked_sub(1).map(|before| layer.ends[before]);
        (layer, [before.unwrap_or_default(), layer.ends[number]])
    }

    /// Returns the encoded size of the last layer's templates, in bytes.
    pub fn encoded_size_of_last_layer(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.bytes)
    }

    /// Returns the column of each slot of template `number`, in record order.
    #[inline]
    pub fn slot_columns(&self, number: usize) -> &[u32] {
        let (layer, [from, to]) = self.layer_and_ends_of_template(number);
        &layer.slots[from.slots..to.slots]
    }

    /// Returns template `number`.
    #[inline]
    pub fn get(&self, number: usize) -> TemplateForWritingRecords<'_> {
        let (layer, [from, to]) = self.layer_and_ends_of_template(number);
        TemplateForWritingRecords {
            steps: &layer.steps[from.steps..to.steps],
            literals: &layer.literals[from.literals..],
            length: to.literals - from.literals,
        }
    }

    /// Adds a template to the last layer. `encoded` holds the template's ops, whose column indices must all be below
    /// `columns`.
    pub fn push_encoded_template(
        &mut self,
        encoded: &[u8],
        columns: usize,
    ) -> Result<(), ArchiveDecodingError> {
        let layer = self.layers.last_mut().expect("a layer was begun");
        Arc::make_mut(layer).decode_and_push_template(encoded, columns)
    }
}

impl ChunkAddedTemplates {
    fn decode_and_push_template(
        &mut self,
        encoded: &[u8],
        columns: usize,
    ) -> Result<(), ArchiveDecodingError> {
        let mut input = ByteStringReader::new(encoded);
        // `literal` counts the literal bytes since the last step. `open` has an entry for each open message: the index
        // after the message's first step, and the offset among the literals where its contents begin.
        let mut literal = 0;
        let mut open = [(0, 0); DEPTH];
        let mut depth = 0usize;
        while !input.is_at_end() {
            let op = input.read_varint()?;
            let argument = op >> 2;
            match op & 3 {
                LITERAL => {
                    let length = usize::try_from(argument).unwrap_or(usize::MAX);
                    self.literals.extend_from_slice(input.take_bytes(length)?);
                    literal += length;
                }
                OPEN => {
                    self.literals.push(0);
                    self.add_step(&mut literal, 1, PartAfterLiteral::Open, 0);
                    *open.get_mut(depth).ok_or(TOO_DEEP)? = (self.steps.len(), self.literals.len());
                    depth += 1;
                }
                CLOSE if argument == 0 => {
                    depth = depth.checked_sub(1).ok_or(ENDS_TWICE)?;
                    let (steps, contents) = open[depth];
                    self.close_message(steps, contents, &mut literal);
                }
                kind => {
                    let (number, behind) = match kind {
                        SLOT => (argument, PartAfterLiteral::Slot),
                        _ => (argument - 1, PartAfterLiteral::Decimal),
                    };
                    let column = usize::try_from(number).ok().filter(|&c| c < columns);
                    let column = column.ok_or(NO_COLUMN)? as u32;
                    self.slots.push(column);
                    self.add_step(&mut literal, 0, behind, column);
                }
            }
        }
        if depth > 0 {
            return Err(ArchiveDecodingError("a message of a template does not end"));
        }
        if literal > 0 {
            self.add_step(&mut literal, 0, PartAfterLiteral::Nothing, 0);
        }
        self.bytes += encoded.len();
        self.ends.push(TemplateEndsInSharedArrays {
            steps: self.steps.len(),
            literals: self.literals.len(),
            slots: self.slots.len(),
        });
        Ok(())
    }

    /// Adds a step. The step's literal consists of the `literal` bytes so far and `more` further
    /// bytes.
    fn add_step(
        &mut self,
        literal: &mut usize,
        more: usize,
        behind: PartAfterLiteral,
        column: u32,
    ) {
        self.steps.push(RecordTemplateWritingStep {
            literal: (std::mem::take(literal) + more) as u32,
            column,
            behind,
            field: 0,
        });
    }

    /// Ends a message. The message's contents begin after `steps` steps, at offset `contents` among
    /// the literals.
    fn close_message(&mut self, steps: usize, contents: usize, literal: &mut usize) {
        match self.steps[steps - 1..] {
            // A message without slots is constant, so it becomes a literal, including its length.
            [open] => {
                self.steps.pop();
                if *literal < 0x80 {
                    self.literals[contents - 1] = *literal as u8;
                } else {
                    let mut length = Vec::with_capacity(LONGEST);
                    put_varint(&mut length, *literal as u64);
                    *literal += length.len() - 1;
                    self.literals.splice(contents - 1..contents, length);
                }
                *literal += open.literal as usize;
            }
            [open, ref mut slot]
                if slot.behind == PartAfterLiteral::Slot
                    && *literal == 0
                    && slot.field == 0
                    && slot.literal as usize <= INNER =>
            {
                slot.field = slot.literal as u8 + 1;
                slot.literal += open.literal;
                self.steps.remove(steps - 1);
            }
            _ => self.add_step(literal, 0, PartAfterLiteral::Close, 0),
        }
    }
}

impl TemplateForWritingRecords<'_> {
    /// Returns the maximum number of bytes that a record occupies while it is being written.
    #[inline]
    pub fn max_record_bytes(&self) -> usize {
        // At most one number follows each literal. The record's own length comes before all
        // literals.
        self.length + (self.steps.len() + 1) * DIGITS
    }

    /// Writes a record, preceded by its length if `framed` is true; `value` returns the slots' values, one per call.
    #[inline]
    pub fn write_record(
        &self,
        framed: bool,
        out: &mut PaddedBufferWriter<'_>,
        mut value: impl FnMut(u32) -> u64,
    ) -> Result<(), ArchiveDecodingError> {
        let mut literals = self.literals;
        let mut open = [0; DEPTH];
        let mut depth = 0;
        // Reserve as many bytes for the length as it needs if every number takes one byte; this is usually right.
        let left = 1 + usize::from(self.length + self.steps.len() >= 0x80);
        let begin = if framed {
            out.reserve_length_bytes(left)
        } else {
            0
        };
        for step in self.steps {
            let literal = step.literal as usize;
            out.write_literal(literals, literal)?;
            literals = &literals[literal..];
            match step.behind {
                PartAfterLiteral::Slot => {
                    out.write_varint_and_message_length(value(step.column), step.field.into())?
                }
                PartAfterLiteral::Nothing => {}
                PartAfterLiteral::Decimal => out.write_decimal(value(step.column))?,
                PartAfterLiteral::Open => {
                    open[depth] = out.reserve_length_bytes(0);
                    depth += 1;
                }
                PartAfterLiteral::Close => {
                    depth -= 1;
                    out.put_length(open[depth], 1)?;
                }
            }
        }
        if framed {
            out.put_length(begin, left)?;
        }
        Ok(())
    }
}
