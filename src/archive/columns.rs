//! Columns of a trace: records without their numbers, which repeat, and the numbers by what they mean.
//!
//! A record is a template and the values of its slots. A template is a list of ops: literal bytes, a slot (a value of
//! a column as a varint, or in decimal digits within a text), and the ends of a nested message, whose length follows
//! from what is in it. Columns hold the values of one meaning (`duration_ns`, `parent`, …) over all records, as
//! differences to a prediction, in planes of bytes.
//! Of a chunk with a base, templates are shared and values may be predicted by those of the same record of the base.
//! `docs/reference/archive-format.md` has the format.

use super::wire::{WireError, WireReader, put_varint};
use byte_numbers::ByteNumbers;
use predict::{ColumnSlice, ColumnView, Predictor};
use template::TemplateTable;

mod byte_numbers;
mod choose;
mod decimals;
mod parse;
mod predict;
mod template;

/// Templates and columns of a chunk, and the values in them.
#[derive(Debug, Default)]
pub struct TraceColumns {
    templates: TemplateTable,
    /// Template of each record.
    sequence: Vec<u32>,
    columns: Vec<Column>,
}

/// Records that columns are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// The first records of a trace: its metadata, and nodes.
    FirstNodes,
    /// Further nodes of a trace.
    Nodes,
    /// Lines of a text, their ends included.
    Lines,
}

/// Values of one meaning, in the order of records.
#[derive(Clone, Debug, Default)]
struct Column {
    /// Record of each value.
    records: Vec<u32>,
    values: Vec<u64>,
}

impl Column {
    fn pair(&self) -> ColumnSlice<'_> {
        (&self.records, &self.values)
    }
}

/// Templates and columns by their contents, to find those of further records.
#[derive(Clone, Debug, Default)]
pub struct TemplateIndex {
    templates: ByteNumbers,
    columns: ByteNumbers,
}

/// Number of the column of nodes' ids.
const IDS: usize = 0;

impl TraceColumns {
    /// Splits `records`, those of traces without their length prefixes. `index` gets the templates that are new.
    pub fn split(
        records: &[&[u8]],
        kind: RecordKind,
        base: Option<&Self>,
        index: &mut TemplateIndex,
    ) -> Self {
        let mut this = Self {
            templates: base.map_or_else(TemplateTable::default, |base| base.templates.clone()),
            ..Self::default()
        };
        index.columns.intern(parse::ID_PATH.to_vec());
        let (mut key, mut slots) = (Vec::new(), Vec::new());
        for (number, record) in records.iter().enumerate() {
            key.clear();
            slots.clear();
            let metadata = kind == RecordKind::FirstNodes && number == 0;
            if kind == RecordKind::Lines {
                parse::line(record, &mut key, &mut slots);
            } else if !parse::record(record, metadata, &mut key, &mut slots) {
                parse::literal_key(record, &mut key);
                slots.clear();
            }
            let known = index.templates.get(&key);
            let template = known.unwrap_or_else(|| {
                let template = parse::template(&key, &mut index.columns);
                let pushed = this.templates.push(&template, index.columns.len());
                pushed.expect("ops are well formed");
                let number = this.templates.len() as u32 - 1;
                index.templates.insert(&key, number);
                number
            });
            this.sequence.push(template);
            this.columns
                .resize_with(this.columns.len().max(index.columns.len()), Column::default);
            let columns = this.templates.slots(template as usize);
            for (column, value) in columns.iter().zip(&slots) {
                let column = &mut this.columns[*column as usize];
                column.records.push(number as u32);
                column.values.push(*value);
            }
        }
        this
    }

    /// Returns how many records have the template of the same record of `base`.
    pub fn alike(&self, base: &Self) -> usize {
        let pairs = self.sequence.iter().zip(&base.sequence);
        pairs.filter(|(a, b)| a == b).count()
    }

    /// Encodes the columns; the templates of `base` are left out.
    pub fn encode(&self, base: Option<&Self>) -> Vec<u8> {
        let mut out = Vec::new();
        let known = base.map_or(0, |base| base.templates.len());
        put_varint(&mut out, self.sequence.len() as u64);
        put_varint(&mut out, self.columns.len() as u64);
        put_varint(&mut out, (self.templates.len() - known) as u64);
        for number in known..self.templates.len() {
            let template = self.templates.encoded(number);
            put_varint(&mut out, template.len() as u64);
            out.extend_from_slice(template);
        }
        let sequence = self.sequence_column();
        let base_sequence = base.map(Self::sequence_column);
        let view = ColumnView {
            records: &sequence.records,
            base: base_sequence.as_ref().map(Column::pair),
            ..ColumnView::default()
        };
        choose::encode(
            &sequence.values,
            &view,
            &[Predictor::Zero, Predictor::Base],
            &mut out,
        );
        let ids = self.ids();
        let quotients: Vec<Option<usize>> = (0..self.columns.len())
            .map(|c| self.quotient_of(c))
            .collect();
        // A quotient comes after what it is predicted by.
        let whole = (0..self.columns.len()).filter(|&number| quotients[number].is_none());
        let parts = (0..self.columns.len()).filter(|&number| quotients[number].is_some());
        for number in whole.chain(parts) {
            let column = &self.columns[number];
            if column.values.is_empty() {
                continue;
            }
            let other = quotients[number].map(|other| (other as u32, &self.columns[other]));
            let view = self.view(number, column, base, &ids, other);
            put_varint(&mut out, number as u64);
            choose::encode(&column.values, &view, choose::ALL, &mut out);
        }
        out
    }

    /// Returns the column whose values are about a thousand times those of column `number`, if there is one.
    fn quotient_of(&self, number: usize) -> Option<usize> {
        if number == IDS {
            return None;
        }
        let column = &self.columns[number];
        let mut others = self.columns.iter().enumerate();
        let found = others.find(|(_, other)| choose::is_thousandth(column.pair(), other.pair()))?;
        // Of a thousandth of a thousandth the first would have to wait for the second.
        let last = |other: &Column| {
            let mut all = self.columns.iter();
            !all.any(|third| choose::is_thousandth(other.pair(), third.pair()))
        };
        last(found.1).then_some(found.0)
    }

    fn view<'v>(
        &'v self,
        number: usize,
        column: &'v Column,
        base: Option<&'v Self>,
        ids: &'v [u64],
        other: Option<(u32, &'v Column)>,
    ) -> ColumnView<'v> {
        ColumnView {
            records: &column.records,
            // Ids are what others are predicted by, so they come first and by themselves.
            ids: if number == IDS { &[] } else { ids },
            sequence: &self.sequence,
            templates: self.templates.len(),
            base: base
                .and_then(|base| base.columns.get(number))
                .map(Column::pair),
            other: other.map(|(number, column)| (number, column.pair())),
        }
    }

    /// Decodes what [`Self::encode`] wrote of a chunk of `bytes` bytes.
    pub fn decode(encoded: &[u8], base: Option<&Self>, bytes: usize) -> Result<Self, WireError> {
        let mut input = WireReader::new(encoded);
        // Every record takes a byte of the chunk at least, and every slot another.
        let records = input.count(bytes)?;
        // Columns are those of the base, that of ids, and such as new templates name, which take a byte there each.
        let known = base.map_or(0, |base| base.columns.len());
        let columns = input.count(known + 1 + encoded.len().max(bytes))?;
        let new = input.count(encoded.len())?;
        let mut templates = base.map_or_else(TemplateTable::default, |base| base.templates.clone());
        for _ in 0..new {
            let length = input.count(encoded.len())?;
            templates.push(input.take(length)?, columns)?;
        }
        let mut this = Self {
            templates,
            ..Self::default()
        };
        let base_sequence = base.map(Self::sequence_column);
        let numbers: Vec<u32> = (0..records as u32).collect();
        let view = ColumnView {
            records: &numbers,
            base: base_sequence.as_ref().map(Column::pair),
            ..ColumnView::default()
        };
        let sequence = choose::decode(&mut input, records, |_| None, &view)?;
        this.sequence.reserve_exact(records);
        let mut slots = vec![0usize; columns];
        let mut all = 0;
        for number in sequence {
            let template = usize::try_from(number)
                .ok()
                .filter(|&n| n < this.templates.len());
            let template =
                template.ok_or(WireError("a record has a template that is not there"))?;
            let own = this.templates.slots(template);
            own.iter().try_for_each(|&column| {
                *slots
                    .get_mut(column as usize)
                    .ok_or(WireError("a template has a column that is not there"))? += 1;
                Ok(())
            })?;
            all += own.len();
            if all > bytes {
                return Err(WireError("it has more values than its size allows"));
            }
            this.sequence.push(number as u32);
        }
        let room = |&count: &usize| Column {
            records: Vec::with_capacity(count),
            values: Vec::new(),
        };
        this.columns = slots.iter().map(room).collect();
        for (record, template) in (0..).zip(&this.sequence) {
            for &column in this.templates.slots(*template as usize) {
                this.columns[column as usize].records.push(record);
            }
        }
        let mut ids = vec![0; records];
        for _ in 0..slots.iter().filter(|count| **count > 0).count() {
            let number = input.count(columns)?;
            let column = this
                .columns
                .get(number)
                .filter(|column| column.values.is_empty());
            let column = column.ok_or(WireError("a column is there twice"))?;
            let others = |other: usize| this.columns.get(other).map(Column::pair);
            let view = this.view(number, column, base, &ids, None);
            let values = choose::decode(&mut input, column.records.len(), others, &view)?;
            this.columns[number].values = values;
            if number == IDS {
                ids = this.ids();
            }
        }
        if this
            .columns
            .iter()
            .any(|column| column.values.len() != column.records.len())
        {
            return Err(WireError("a column is missing"));
        }
        input.end()?;
        Ok(this)
    }

    /// Returns the records, `bytes` bytes in all; `framed` with their length prefixes.
    pub fn join(&self, bytes: usize, framed: bool) -> Result<Vec<u8>, WireError> {
        let mut out = template::BackwardWriter::new(bytes);
        let values = self.columns.iter().map(|column| column.values.iter());
        let mut values: Vec<_> = values.collect();
        for &number in self.sequence.iter().rev() {
            let end = out.at();
            self.templates.write(number as usize, &mut out, |column| {
                let last = values[column as usize].next_back();
                *last.expect("a column has a value for every slot")
            })?;
            if framed {
                out.varint((end - out.at()) as u64)?;
            }
        }
        out.finish()
    }

    fn sequence_column(&self) -> Column {
        Column {
            records: (0..self.sequence.len() as u32).collect(),
            values: self.sequence.iter().map(|&t| u64::from(t)).collect(),
        }
    }

    /// Id of each record, 0 where it has none.
    fn ids(&self) -> Vec<u64> {
        let mut ids = vec![0; self.sequence.len()];
        if let Some(column) = self.columns.get(IDS) {
            for (record, id) in column.records.iter().zip(&column.values) {
                ids[*record as usize] = *id;
            }
        }
        ids
    }
}
