//! Stores the records of a trace in columns. Numbers with the same meaning form one column across all records. The rest
//! of a record is a template, which many records share.
//!
//! A record consists of a template and the values of the template's slots. A template is a list of ops of three kinds:
//! literal bytes; slots (a column's value as a varint, or as decimal digits within a string); and the ends of nested
//! messages, whose lengths follow from their contents. A column contains, from all records, the values with one meaning
//! (`duration_ns`, `parent`, …). It stores by how much they differ from their predictions, in byte planes. A chunk with
//! a base shares its templates, and its values may be predicted from the base's record with the same index.
//! `docs/reference/archive-format.md` describes the format.

use super::wire::{ArchiveDecodingError, ByteStringReader, put_varint};
use byte_numbers::ByteStringInterner;
use parse::RecordOutlineWithSlots;
use predict::{ColumnPredictionInputs, ColumnPredictionRule, SparseRecordColumn};
use record_writer::{PaddedBufferWriter, TOO_LARGE};
use shape::RecordTemplatesAndValueRecordIndices;
use std::sync::Arc;
use structural::StructuralColumnValuesInTemplates;
use template::{ChunkAddedTemplates, TemplateTable};

pub use choose::EncodedColumnsAndPlaneEnds;

mod byte_numbers;
mod choose;
mod decimals;
mod parse;
mod predict;
mod record_writer;
mod relations;
mod shape;
mod structural;
mod template;

/// Templates and columns of a chunk, with the columns' values.
#[derive(Debug, Default)]
pub struct ChunkTemplatesAndColumns {
    templates: TemplateTable,
    /// Encoded templates that the base lacks, each with its length before it; empty for a chunk that was read.
    written: Vec<u8>,
    shape: Arc<RecordTemplatesAndValueRecordIndices>,
    /// Number of columns, including empty ones.
    count: usize,
    /// Values of all columns, column by column.
    values: Vec<u64>,
    /// For each column: the predictor with which it was encoded, if it was written, and the columns that may predict
    /// it. A chunk whose base is this chunk probably needs the same predictors, so the encoder tries only them and
    /// those that use the base.
    chosen: Vec<Option<ColumnPredictionRule>>,
    relations: Vec<Vec<usize>>,
}

/// Kind of the records in columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnRecordKind {
    /// The first records of a trace: its metadata record, then nodes.
    FirstNodes,
    /// Further nodes of a trace.
    Nodes,
    /// Lines of text, including line ends.
    Lines,
}

/// Index of outlines, templates and columns by their contents, so that equal contents are stored
/// only once.
#[derive(Clone, Debug, Default)]
pub struct TemplateAndColumnInterner {
    /// Outlines, by the numbers of their keys.
    outlines: Vec<Arc<RecordOutlineWithSlots>>,
    keys: ByteStringInterner,
    /// Number of each template, by its outline's number and its variant's number.
    templates: ByteStringInterner,
    columns: ByteStringInterner,
    structural: StructuralColumnValuesInTemplates,
}

/// Reusable memory of chunks that were read or written.
#[derive(Debug, Default)]
pub struct ReusableColumnBuffers {
    values: Vec<Vec<u64>>,
    ids: Vec<u64>,
    shapes: Vec<RecordTemplatesAndValueRecordIndices>,
    layers: Vec<ChunkAddedTemplates>,
}

/// How many bytes of records are rebuilt at once. They fit in a processor core's cache.
const PIECE: usize = 1 << 18;
/// Index of the column that contains node ids.
const IDS: usize = 0;

impl ChunkTemplatesAndColumns {
    /// Splits `records` into columns; records of traces have no length prefix. New templates are added to
    /// `index`.
    pub fn split_records(
        records: &[&[u8]],
        kind: ColumnRecordKind,
        base: Option<&Self>,
        index: &mut TemplateAndColumnInterner,
        buffers: &mut ReusableColumnBuffers,
    ) -> Self {
        let mut templates = base.map_or_else(TemplateTable::default, |b| b.templates.clone());
        templates.begin_layer(buffers.layers.pop().unwrap_or_default());
        index.columns.intern_bytes(&parse::ID_PATH);
        let mut sequence = Vec::with_capacity(records.len());
        let mut values = buffers.values.pop().unwrap_or_default();
        values.clear();
        let (mut key, mut written) = (Vec::new(), Vec::new());
        for (number, record) in records.iter().enumerate() {
            key.clear();
            let before = values.len();
            let metadata = kind == ColumnRecordKind::FirstNodes && number == 0;
            if kind == ColumnRecordKind::Lines {
                parse::split_line_into_key_and_numbers(record, &mut key, &mut values);
            } else if !parse::split_record_into_key_and_slots(
                record,
                metadata,
                &mut key,
                &mut values,
            ) {
                parse::set_key_to_whole_record(record, &mut key);
                values.truncate(before);
            }
            let known = index.keys.find_number_of_bytes(&key);
            sequence.push(known.unwrap_or_else(|| {
                let outline = parse::build_outline_from_key(&key, &mut index.columns);
                index.outlines.push(Arc::new(outline));
                index.keys.intern_bytes(&key)
            }));
        }
        let count = index.columns.len();
        if base.is_none() && kind != ColumnRecordKind::Lines {
            index.structural = StructuralColumnValuesInTemplates::find_structural_columns(
                &index.outlines,
                count,
                &sequence,
                &values,
            );
        }
        // The loop converts outlines to templates, and drops values that are fixed in a template.
        let mut fixed = Vec::new();
        let (mut from, mut kept) = (0, 0);
        for number in &mut sequence {
            let outline = &index.outlines[*number as usize];
            let own = &values[from..from + outline.slots.len()];
            let variant = index.structural.fixed_values_and_variant_of_record(
                &outline.slots,
                own,
                &mut fixed,
            );
            for at in (0..fixed.len()).filter(|&at| fixed[at].is_none()) {
                values[kept] = values[from + at];
                kept += 1;
            }
            from += fixed.len();
            key.clear();
            key.extend_from_slice(&number.to_le_bytes());
            key.extend_from_slice(&variant.to_le_bytes());
            let known = index.templates.find_number_of_bytes(&key);
            *number = known.unwrap_or_else(|| {
                let ops = outline.encode_ops_replacing_fixed_slots(&fixed);
                let pushed = templates.push_encoded_template(&ops, count);
                pushed.expect("ops are well formed");
                put_varint(&mut written, ops.len() as u64);
                written.extend_from_slice(&ops);
                index.templates.intern_bytes(&key)
            });
        }
        let shape = base.map(|base| &base.shape);
        let shape = match shape.filter(|shape| shape.template_sequence() == sequence) {
            Some(shape) => Arc::clone(shape),
            None => {
                let mut own = buffers.shapes.pop().unwrap_or_default();
                *own.template_sequence_mut() = sequence;
                own.map_column_values_to_records(&templates, count, usize::MAX)
                    .expect("columns of slots are there");
                Arc::new(own)
            }
        };
        let mut own = buffers.values.pop().unwrap_or_default();
        shape.copy_values_to_column_order(&templates, &values[..kept], &mut own);
        buffers.values.push(values);
        Self {
            templates,
            written,
            shape,
            count,
            values: own,
            chosen: Vec::new(),
            relations: Vec::new(),
        }
    }

    /// Returns how many records share a template with the record of `base` at the same index.
    pub fn count_same_index_same_template_records(&self, base: &Self) -> usize {
        let pairs = self
            .shape
            .template_sequence()
            .iter()
            .zip(base.shape.template_sequence());
        pairs.filter(|(a, b)| a == b).count()
    }

    /// Returns the column with this index, or `None`.
    fn column_at(&self, number: usize) -> Option<SparseRecordColumn<'_>> {
        (number < self.count).then(|| {
            let range = self.shape.value_range_of_column(number);
            (
                self.shape.records_of_column_values(number),
                &self.values[range],
            )
        })
    }

    fn all_columns(&self) -> impl Iterator<Item = SparseRecordColumn<'_>> {
        (0..self.count).filter_map(|number| self.column_at(number))
    }

    /// Encodes the columns, and the templates that `base` does not have, into `bytes`. Drops the previous contents of
    /// `bytes` and reuses its memory.
    pub fn encode_columns(
        &mut self,
        base: Option<&Self>,
        bytes: Vec<u8>,
        buffers: &mut ReusableColumnBuffers,
    ) -> EncodedColumnsAndPlaneEnds {
        let left = buffers.values.pop().unwrap_or_default();
        let mut writer = EncodedColumnsAndPlaneEnds::new(bytes, left);
        let out = &mut writer.bytes;
        let sequence = self.shape.template_sequence();
        let known = base.map_or(0, |base| base.templates.len());
        put_varint(out, sequence.len() as u64);
        put_varint(out, self.count as u64);
        put_varint(out, (self.templates.len() - known) as u64);
        out.extend_from_slice(&self.written);
        let base_sequence = base.map(|base| base.shape.template_sequence());
        encode_template_sequence(sequence, base_sequence, &mut writer);
        self.fill_record_ids(&mut buffers.ids);
        let (mut others, known) = match base {
            Some(base) => (base.relations.clone(), &base.chosen[..]),
            None => (
                relations::find_predicting_columns(self.all_columns(), sequence.len()),
                &[][..],
            ),
        };
        others.resize_with(self.count, Vec::new);
        let mut chosen = vec![None; self.count];
        // A column must be written after the columns that predict it, so columns that no other column predicts come
        // first.
        let first = (0..self.count).filter(|&number| others[number].is_empty());
        let then = (0..self.count).filter(|&number| !others[number].is_empty());
        for number in first.chain(then) {
            let (records, values) = self.column_at(number).unwrap_or_default();
            if values.is_empty() {
                continue;
            }
            let other = |at: usize| {
                let other = *others[number].get(at)?;
                Some((other as u32, self.column_at(other)?))
            };
            let view = ColumnPredictionInputs {
                records,
                others: [other(0), other(1)],
                ..self
                    .shape
                    .column_prediction_inputs(number, &self.templates, base, &buffers.ids)
            };
            put_varint(&mut writer.bytes, number as u64);
            let likely = known.get(number).copied().flatten();
            let likely = likely.map(|known| {
                [
                    known,
                    ColumnPredictionRule::Base,
                    ColumnPredictionRule::BaseShifted,
                ]
            });
            let candidates = likely.as_ref().map_or(choose::ALL, |likely| &likely[..]);
            chosen[number] = Some(choose::encode_with_best_predictor(
                values,
                &view,
                candidates,
                &mut writer,
            ));
        }
        (self.chosen, self.relations) = (chosen, others);
        buffers.values.push(std::mem::take(&mut writer.left));
        writer
    }

    /// Decodes the output of [`Self::encode_columns`] for a chunk of `bytes` bytes.
    pub fn decode_columns(
        encoded: &[u8],
        base: Option<&Self>,
        bytes: usize,
        buffers: &mut ReusableColumnBuffers,
    ) -> Result<Self, ArchiveDecodingError> {
        let mut input = ByteStringReader::new(encoded);
        // Every record and slot takes at least a byte of the chunk, so these limits reject corrupt input.
        let records = input.read_count(bytes)?;
        let known = base.map_or(0, |base| base.count);
        let count = input.read_count(known + 1 + encoded.len())?;
        let new = input.read_count(encoded.len())?;
        let mut templates = base.map_or_else(TemplateTable::default, |b| b.templates.clone());
        templates.begin_layer(buffers.layers.pop().unwrap_or_default());
        for _ in 0..new {
            let length = input.read_count(encoded.len())?;
            templates.push_encoded_template(input.take_bytes(length)?, count)?;
        }
        // Each column is in the base, is the id column, or occurs in a new template. A new template
        // has at least one op per new column, so the size of the new templates limits the number of
        // columns.
        if count > known + 1 + templates.encoded_size_of_last_layer() {
            return Err(ArchiveDecodingError(
                "the chunk has more columns than its templates name",
            ));
        }
        let base_shape = base.map(|base| &base.shape);
        let mut own = buffers.shapes.pop().unwrap_or_default();
        let base_sequence = base_shape.map(|shape| shape.template_sequence());
        let same = decode_template_sequence(
            &mut input,
            records,
            base_sequence,
            own.template_sequence_mut(),
        )?;
        let shape = match base_shape.filter(|_| same && count >= known) {
            Some(shape) => {
                buffers.shapes.push(own);
                Arc::clone(shape)
            }
            None => {
                own.map_column_values_to_records(&templates, count, bytes)?;
                Arc::new(own)
            }
        };
        let all = shape.value_count();
        if all > bytes {
            return Err(shape::TOO_MANY);
        }
        let mut values = buffers.values.pop().unwrap_or_default();
        // Every column is decoded below, which overwrites all old values.
        resize_uninitialised(&mut values, all);
        buffers.ids.clear();
        buffers.ids.resize(records, 0);
        let full = (0..count).filter(|&number| !shape.value_range_of_column(number).is_empty());
        let mut missing: Vec<bool> = vec![false; count];
        let mut left = 0;
        for number in full {
            missing[number] = true;
            left += 1;
        }
        for _ in 0..left {
            let number = input.read_count(count)?;
            let there = missing.get_mut(number).filter(|missing| **missing);
            *there.ok_or(ArchiveDecodingError("a column occurs twice"))? = false;
            let range = shape.value_range_of_column(number);
            let (before, rest) = values.split_at_mut(range.start);
            let (own, after) = rest.split_at_mut(range.len());
            let (before, after) = (&*before, &*after);
            let others = |other: usize| {
                let there = missing.get(other).is_some_and(|missing| !missing);
                let other_range = shape.value_range_of_column(other);
                let values = match other_range.start.checked_sub(range.end) {
                    Some(from) => &after[from..][..other_range.len()],
                    None if other_range.end <= range.start => &before[other_range],
                    None => return None,
                };
                there.then(|| (shape.records_of_column_values(other), values))
            };
            let view = shape.column_prediction_inputs(number, &templates, base, &buffers.ids);
            choose::decode_column(&mut input, own, others, &view)?;
            if number == IDS {
                let records = shape.records_of_column_values(IDS).iter();
                for (record, id) in records.zip(&*own) {
                    buffers.ids[*record as usize] = *id;
                }
            }
        }
        input.expect_end()?;
        Ok(Self {
            templates,
            written: Vec::new(),
            shape,
            count,
            values,
            chosen: Vec::new(),
            relations: Vec::new(),
        })
    }

    /// Returns the columns' memory to `buffers` for reuse.
    pub fn recycle_into(self, buffers: &mut ReusableColumnBuffers) {
        buffers.values.push(self.values);
        buffers.shapes.extend(Arc::into_inner(self.shape));
        buffers
            .layers
            .extend(self.templates.into_own_templates_unless_shared());
    }

    /// Rebuilds the records (`bytes` bytes in total) from templates and columns, and passes them to `out`, a few at a
    /// time. If `framed` is true, each record is preceded by its length.
    pub fn rebuild_records<E: From<ArchiveDecodingError>>(
        &self,
        bytes: usize,
        framed: bool,
        buffer: &mut Vec<u8>,
        out: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut left = bytes;
        let mut give = |written: &[u8]| {
            left = left.checked_sub(written.len()).ok_or(TOO_LARGE)?;
            out(written).map(|()| left)
        };
        let mut writer = PaddedBufferWriter::new(buffer);
        writer.reserve_bytes(PIECE);
        let mut next = self.shape.column_starts().to_vec();
        for &number in self.shape.template_sequence() {
            let template = self.templates.get(number as usize);
            let most = template.max_record_bytes();
            if writer.remaining_capacity() < most {
                let left = give(writer.written_bytes())?;
                writer.restart_at_begin();
                writer.reserve_bytes(most.min(left));
            }
            let value = |column| {
                let at = &mut next[column as usize];
                *at += 1;
                self.values[*at - 1]
            };
            template.write_record(framed, &mut writer, value)?;
        }
        match give(writer.written_bytes())? {
            0 => Ok(()),
            _ => Err(ArchiveDecodingError("the chunk's records are smaller than stated").into()),
        }
    }

    /// Sets `ids` to the id of each record; a record without an id gets 0.
    fn fill_record_ids(&self, ids: &mut Vec<u64>) {
        ids.clear();
        ids.resize(self.shape.template_sequence().len(), 0);
        if let Some((records, values)) = self.column_at(IDS) {
            for (record, id) in records.iter().zip(values) {
                ids[*record as usize] = *id;
            }
        }
    }
}

/// Sets the length of `list` to `count`, with arbitrary contents. Old contents are kept, because zeroing old memory
/// takes time (new memory that is zeroed costs nothing).
fn resize_uninitialised<T: Clone + Default>(list: &mut Vec<T>, count: usize) {
    if list.capacity() < count {
        *list = vec![T::default(); count];
    } else {
        list.resize(count, T::default());
    }
}

impl RecordTemplatesAndValueRecordIndices {
    /// Returns the inputs from which column `number` is predicted.
    fn column_prediction_inputs<'v>(
        &'v self,
        number: usize,
        templates: &TemplateTable,
        base: Option<&'v ChunkTemplatesAndColumns>,
        ids: &'v [u64],
    ) -> ColumnPredictionInputs<'v> {
        ColumnPredictionInputs {
            records: self.records_of_column_values(number),
            // Ids predict other columns, so the decoder reads the id column first. No ids are known by then, so ids do
            // not predict ids.
            ids: if number == IDS { &[] } else { ids },
            sequence: self.template_sequence(),
            templates: templates.len(),
            base: base.and_then(|base| base.column_at(number)),
            others: [None; 2],
        }
    }
}

/// Appends the templates of all records, predicted from the base's templates.
fn encode_template_sequence(
    sequence: &[u32],
    base: Option<&[u32]>,
    out: &mut EncodedColumnsAndPlaneEnds,
) {
    if base == Some(sequence) {
        // If the templates are those of the base, in the same order, the predictor's number alone describes them.
        return out.bytes.extend([ColumnPredictionRule::Base as u8, 0]);
    }
    let most = sequence.len().max(base.map_or(0, <[u32]>::len));
    let numbers: Vec<u32> = (0..most as u32).collect();
    let wide = |sequence: &[u32]| -> Vec<u64> { sequence.iter().map(|&t| t.into()).collect() };
    let base = base.map(wide);
    let view = ColumnPredictionInputs {
        records: &numbers[..sequence.len()],
        base: base
            .as_ref()
            .map(|base| (&numbers[..base.len()], &base[..])),
        ..ColumnPredictionInputs::default()
    };
    let predictors = &[ColumnPredictionRule::Zero, ColumnPredictionRule::Base];
    choose::encode_with_best_predictor(&wide(sequence), &view, predictors, out);
}

/// Reads the template of each of `count` records into `sequence`. Returns true if they are exactly those of the base.
fn decode_template_sequence(
    input: &mut ByteStringReader<'_>,
    count: usize,
    base: Option<&[u32]>,
    sequence: &mut Vec<u32>,
) -> Result<bool, ArchiveDecodingError> {
    let predictor = input.take_bytes(1)?[0];
    let base = match (predictor, base) {
        (0, _) => &[][..],
        (5, Some(base)) => base,
        _ => {
            return Err(ArchiveDecodingError(
                "the templates name a predictor that is not allowed there",
            ));
        }
    };
    let width = usize::from(input.take_bytes(1)?[0]);
    let planes = width.checked_mul(count).filter(|_| width <= 8);
    let planes =
        input.take_bytes(planes.ok_or(ArchiveDecodingError("a column is wider than 8 bytes"))?)?;
    sequence.clear();
    if predictor == 5 && width == 0 && base.len() == count {
        return Ok(true);
    }
    let mut last = 0u64;
    for record in 0..count {
        let left = (0..width).fold(0, |all, plane| {
            all | u64::from(planes[plane * count + record]) << (8 * plane)
        });
        // Without a base, the prediction is 0. After the base's last record, the prediction is the
        // previous value.
        let predicted = match (predictor, base.get(record)) {
            (0, _) => 0,
            (_, Some(&own)) => own.into(),
            (_, None) => last,
        };
        last = predicted.wrapping_add(choose::decode_zigzag(left));
        let number = u32::try_from(last);
        sequence.push(number.map_err(|_| shape::NO_TEMPLATE)?);
    }
    Ok(false)
}
