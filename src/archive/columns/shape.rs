//! The shape of a chunk: the template of each record. The shape says which record each value of a column belongs to.

use super::template::TemplateTable;
use crate::wire::ArchiveDecodingError;
use std::ops::Range;

/// The template of each record, and the record of each value. Ranks with the same sequence of templates share one
/// shape.
#[derive(Debug, Default)]
pub struct RecordTemplatesAndValueRecordIndices {
    sequence: Vec<u32>,
    /// For each column, the index of its first value among all values; the last entry is the number of values.
    starts: Vec<usize>,
    /// Record of each value, column by column.
    records: Vec<u32>,
}

pub const NO_TEMPLATE: ArchiveDecodingError =
    ArchiveDecodingError("a record has a missing template");
pub const TOO_MANY: ArchiveDecodingError =
    ArchiveDecodingError("the chunk has more values than its size allows");

impl RecordTemplatesAndValueRecordIndices {
    /// Returns the template of each record.
    #[inline]
    pub fn template_sequence(&self) -> &[u32] {
        &self.sequence
    }

    /// Returns the template of each record, for modification; the caller must call
    /// [`Self::map_column_values_to_records`] after a change.
    pub fn template_sequence_mut(&mut self) -> &mut Vec<u32> {
        &mut self.sequence
    }

    /// Computes which record each value of `columns` columns belongs to. Fails if the columns have more than `most`
    /// values.
    pub fn map_column_values_to_records(
        &mut self,
        templates: &TemplateTable,
        columns: usize,
        most: usize,
    ) -> Result<(), ArchiveDecodingError> {
        let mut counts = vec![0usize; templates.len()];
        for &number in &self.sequence {
            *counts.get_mut(number as usize).ok_or(NO_TEMPLATE)? += 1;
        }
        self.starts.clear();
        self.starts.resize(columns + 1, 0);
        let mut all = 0usize;
        for (number, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let slots = templates.slot_columns(number);
            all = all.saturating_add(count.saturating_mul(slots.len()));
            for &column in slots {
                // First, count each column's values in the entry after the column's own entry. The
                // prefix sum below then turns the counts into start indices.
                let end = self.starts.get_mut(column as usize + 1);
                *end.ok_or(ArchiveDecodingError("a template names a missing column"))? += count;
            }
        }
        if all > most {
            return Err(TOO_MANY);
        }
        for column in 0..columns {
            self.starts[column + 1] += self.starts[column];
        }
        super::resize_uninitialised(&mut self.records, all);
        let mut next = self.starts.clone();
        for (record, &number) in (0..).zip(&self.sequence) {
            for &column in templates.slot_columns(number as usize) {
                let at = &mut next[column as usize];
                self.records[*at] = record;
                *at += 1;
            }
        }
        Ok(())
    }

    /// Copies `values`, which are in record order, to `out` in column order.
    pub fn copy_values_to_column_order(
        &self,
        templates: &TemplateTable,
        values: &[u64],
        out: &mut Vec<u64>,
    ) {
        let mut next = self.starts.clone();
        super::resize_uninitialised(out, values.len());
        let sequence = self.sequence.iter();
        let columns = sequence.flat_map(|&number| templates.slot_columns(number as usize));
        for (&column, &value) in columns.zip(values) {
            let at = &mut next[column as usize];
            out[*at] = value;
            *at += 1;
        }
    }

    /// Returns the number of values in all columns.
    pub fn value_count(&self) -> usize {
        self.records.len()
    }

    /// Returns the range of a column's values among all values.
    #[inline]
    pub fn value_range_of_column(&self, column: usize) -> Range<usize> {
        match self.starts.get(column..column.saturating_add(2)) {
            Some(&[start, end]) => start..end,
            _ => 0..0,
        }
    }

    /// Returns the record of each value of a column.
    pub fn records_of_column_values(&self, column: usize) -> &[u32] {
        &self.records[self.value_range_of_column(column)]
    }

    /// Returns the start of each column among all values.
    pub fn column_starts(&self) -> &[usize] {
        &self.starts
    }
}
