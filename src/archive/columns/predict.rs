//! Predicts the values of a column. The encoder and the decoder make the same predictions.

/// A column: its values, and the index of the record that holds each value.
pub type SparseRecordColumn<'v> = (&'v [u32], &'v [u64]);

/// Inputs from which a column is predicted.
#[derive(Clone, Copy, Debug, Default)]
pub struct ColumnPredictionInputs<'v> {
    /// Record index of each value, ascending.
    pub records: &'v [u32],
    /// Id of each record.
    pub ids: &'v [u64],
    /// Template of each record.
    pub sequence: &'v [u32],
    /// Number of templates.
    pub templates: usize,
    /// The same column in the base chunk.
    pub base: Option<SparseRecordColumn<'v>>,
    /// Index and contents of each other column that may predict this column.
    pub others: [Option<(u32, SparseRecordColumn<'v>)>; 2],
}

impl<'v> ColumnPredictionInputs<'v> {
    /// Returns the base's values if the base has its values in the same records as the column.
    fn base_values_if_in_same_records(&self) -> Option<&'v [u64]> {
        let (records, values) = self.base?;
        // Ranks with equal templates share the list of records, so comparing pointers usually suffices.
        let same = std::ptr::eq(records, self.records) || records == self.records;
        same.then(|| &values[..records.len()])
    }
}

impl<'v> ColumnPredictionInputs<'v> {
    /// Returns cursors over the two columns that predict this column.
    fn other_column_cursors(&self) -> [SparseColumnValueIterator<'v>; 2] {
        self.others
            .map(|other| SparseColumnValueIterator::new(other.map(|(_, column)| column)))
    }
}

/// Rule that predicts a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnPredictionRule {
    /// Zero.
    Zero = 0,
    /// The previous value, or 0 for the first value.
    Previous = 1,
    /// The id of the value's record.
    Id = 2,
    /// The previous value plus the difference between the records' ids.
    PreviousById = 3,
    /// The previous value in a record with the same template, or 0 if there is none.
    Template = 4,
    /// The value in the base's record with the same index. If the base's record has no value, predicts the previous
    /// value.
    Base = 5,
    /// The prediction of `Base`, plus the difference between the previous value and its counterpart in the base.
    BaseShifted = 6,
    /// A thousandth of another column's value in the same record, rounded down, or 0 if the record
    /// has no such value.
    Thousandth = 7,
    /// The sum of the values of two other columns in the same record; a missing value counts as 0.
    Sum = 8,
}

impl ColumnPredictionRule {
    /// All rules that predict column values, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Zero,
        Self::Previous,
        Self::Id,
        Self::PreviousById,
        Self::Template,
        Self::Base,
        Self::BaseShifted,
        Self::Thousandth,
        Self::Sum,
    ];

    /// Returns the number of other columns that the predictor uses.
    pub fn other_column_count(self) -> usize {
        match self {
            Self::Thousandth => 1,
            Self::Sum => 2,
            _ => 0,
        }
    }

    /// Returns true if `view` has the inputs that the predictor needs.
    pub fn are_required_inputs_available(self, view: &ColumnPredictionInputs<'_>) -> bool {
        match self {
            Self::Zero | Self::Previous => true,
            Self::Id | Self::PreviousById | Self::Template => !view.ids.is_empty(),
            Self::Base | Self::BaseShifted => view.base.is_some(),
            Self::Thousandth => matches!(view.others, [Some(_), None]),
            Self::Sum => matches!(view.others, [Some(_), Some(_)]),
        }
    }
}

/// Iterates over the values of a column in record order.
pub struct SparseColumnValueIterator<'v> {
    column: SparseRecordColumn<'v>,
    at: usize,
}

impl<'v> SparseColumnValueIterator<'v> {
    /// Creates a cursor at the first value.
    pub fn new(column: Option<SparseRecordColumn<'v>>) -> Self {
        Self {
            column: column.unwrap_or_default(),
            at: 0,
        }
    }

    /// Returns the next value, if it belongs to `record`. Each value is returned only once.
    #[inline]
    pub fn next_value_in_record(&mut self, record: u32) -> Option<u64> {
        let (records, values) = self.column;
        while *records.get(self.at)? < record {
            self.at += 1;
        }
        (records[self.at] == record).then(|| {
            self.at += 1;
            values[self.at - 1]
        })
    }
}

/// Iterates over the column: calls `value` with each value's index and prediction, and `value` returns the actual
/// value.
#[inline(always)]
pub fn scan_values_with_predictions(
    predictor: ColumnPredictionRule,
    view: &ColumnPredictionInputs<'_>,
    mut value: impl FnMut(usize, u64) -> u64,
) {
    let records = view.records;
    let mut previous = 0u64;
    match predictor {
        ColumnPredictionRule::Zero => (0..records.len()).for_each(|at| {
            value(at, 0);
        }),
        ColumnPredictionRule::Previous => {
            (0..records.len()).for_each(|at| previous = value(at, previous))
        }
        ColumnPredictionRule::Id => records.iter().enumerate().for_each(|(at, &record)| {
            value(at, view.ids[record as usize]);
        }),
        ColumnPredictionRule::PreviousById => {
            let mut before = 0;
            for (at, &record) in records.iter().enumerate() {
                let id = view.ids[record as usize];
                previous = value(at, previous.wrapping_add(id.wrapping_sub(before)));
                before = id;
            }
        }
        ColumnPredictionRule::Template => {
            let mut last = vec![0; view.templates];
            for (at, &record) in records.iter().enumerate() {
                let last = &mut last[view.sequence[record as usize] as usize];
                *last = value(at, *last);
            }
        }
        ColumnPredictionRule::Base => {
            if let Some(base) = view.base_values_if_in_same_records() {
                base.iter().enumerate().for_each(|(at, &own)| {
                    value(at, own);
                });
                return;
            }
            let mut base = SparseColumnValueIterator::new(view.base);
            for (at, &record) in records.iter().enumerate() {
                previous = value(at, base.next_value_in_record(record).unwrap_or(previous));
            }
        }
        ColumnPredictionRule::BaseShifted => {
            let mut shift = 0u64;
            if let Some(base) = view.base_values_if_in_same_records() {
                for (at, &own) in base.iter().enumerate() {
                    shift = value(at, own.wrapping_add(shift)).wrapping_sub(own);
                }
                return;
            }
            let mut base = SparseColumnValueIterator::new(view.base);
            for (at, &record) in records.iter().enumerate() {
                match base.next_value_in_record(record) {
                    Some(own) => {
                        previous = value(at, own.wrapping_add(shift));
                        shift = previous.wrapping_sub(own);
                    }
                    None => previous = value(at, previous),
                }
            }
        }
        ColumnPredictionRule::Thousandth => {
            let [mut whole, _] = view.other_column_cursors();
            for (at, &record) in records.iter().enumerate() {
                value(
                    at,
                    whole
                        .next_value_in_record(record)
                        .map_or(0, |whole| whole / 1000),
                );
            }
        }
        ColumnPredictionRule::Sum => {
            let [mut one, mut other] = view.other_column_cursors();
            for (at, &record) in records.iter().enumerate() {
                let one = one.next_value_in_record(record).unwrap_or(0);
                value(
                    at,
                    one.wrapping_add(other.next_value_in_record(record).unwrap_or(0)),
                );
            }
        }
    }
}
