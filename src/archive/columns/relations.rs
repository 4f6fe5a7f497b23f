//! Finds relations between the columns of a chunk, so that the encoder can predict one column from others. It searches
//! a sample of the chunk's records.

use super::predict::{SparseColumnValueIterator, SparseRecordColumn};

/// Number of sampled records. They are spread over the chunk, because the first records of a trace differ from later
/// ones.
const SAMPLE: usize = 512;
/// Number of sampled records checked first. A relation that fits none of these records is dropped.
const GLANCE: usize = 16;
/// Smallest value at which predicting a column as the sum of two others is worthwhile.
const LARGE: u64 = 1 << 8;

/// Returns, for each column, the columns that probably predict its values: either one column with values about 1000
/// times as large, or two columns whose values add up to the column's values. Columns that predict others are not
/// predicted themselves, and neither is the first column (ids).
pub fn find_predicting_columns<'c>(
    columns: impl Iterator<Item = SparseRecordColumn<'c>>,
    records: usize,
) -> Vec<Vec<usize>> {
    let sample: Vec<Vec<u64>> = columns
        .map(|column| sample_column(column, records))
        .collect();
    let is_large = |number: usize| sample[number].iter().any(|value| *value >= LARGE);
    let large: Vec<usize> = (0..sample.len()).filter(|&n| is_large(n)).collect();
    let mut found = vec![Vec::new(); sample.len()];
    let mut taken = vec![false; sample.len()];
    for number in 1..sample.len() {
        if taken[number] {
            continue;
        }
        let own = SampledNonzeroValuesWithPositions::new(&sample[number]);
        let free = |other: &usize| *other != number && found[*other].is_empty();
        let others: Vec<usize> = large.iter().copied().filter(free).collect();
        let whole = others
            .iter()
            .find(|&&other| own.mostly_match_prediction(|at| sample[other][at] / 1000));
        let pairs = others.iter().enumerate().flat_map(|(at, &one)| {
            let behind = others[at + 1..].iter();
            behind.map(move |&other| [one, other])
        });
        let mut pairs = pairs.filter(|_| large.binary_search(&number).is_ok());
        let chosen = match whole {
            Some(&whole) => vec![whole],
            None => pairs
                .find(|&[one, other]| {
                    own.mostly_match_prediction(|at| {
                        sample[one][at].wrapping_add(sample[other][at])
                    })
                })
                .map_or_else(Vec::new, |pair| pair.to_vec()),
        };
        chosen.iter().for_each(|&other| taken[other] = true);
        found[number] = chosen;
    }
    found
}

/// Returns the first value of a column in each sampled record, or 0 if a record has no value.
fn sample_column(column: SparseRecordColumn<'_>, records: usize) -> Vec<u64> {
    let step = records.div_ceil(SAMPLE).max(1);
    let mut cursor = SparseColumnValueIterator::new(Some(column));
    let wanted = (0..records as u32).step_by(step);
    wanted
        .map(|r| cursor.next_value_in_record(r).unwrap_or(0))
        .collect()
}

/// Nonzero values in the sample of a column, with their positions.
#[derive(Debug)]
struct SampledNonzeroValuesWithPositions {
    all: Vec<(usize, u64)>,
    /// A few nonzero values for quick checks; empty if there are too few values to be significant.
    few: Vec<(usize, u64)>,
}

impl SampledNonzeroValuesWithPositions {
    fn new(sample: &[u64]) -> Self {
        let all = sample.iter().copied().enumerate();
        let present = |(_, value): &(usize, u64)| *value > 0;
        let few = all.clone().step_by(SAMPLE / GLANCE).filter(present);
        let few = Some(few.collect::<Vec<_>>()).filter(|few| few.len() > GLANCE / 2);
        Self {
            all: all.filter(present).collect(),
            few: few.unwrap_or_default(),
        }
    }

    /// Returns true if most values equal their prediction.
    fn mostly_match_prediction(&self, predicted: impl Fn(usize) -> u64) -> bool {
        let same = |&&(at, value): &&(usize, u64)| predicted(at) == value;
        // This quick check rejects most pairs of columns.
        (self.few.is_empty() || self.few.iter().any(|value| same(&value)))
            && 2 * self.all.iter().filter(same).count() > self.all.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_thousandths_are_found() {
        // The columns are, in order: ids; a duration in nanoseconds; a delay in nanoseconds, in every third record;
        // the duration in microseconds; the sum of duration and delay, except in the first records; unrelated values.
        let records: Vec<u32> = (0..4000).collect();
        let thirds: Vec<u32> = (0..4000).step_by(3).collect();
        let mixed = |i: u32, n: u64| u64::from(i).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> n;
        let ids: Vec<u64> = (0..4000).collect();
        let duration: Vec<u64> = records.iter().map(|&i| 5000 + mixed(i, 48)).collect();
        let delay: Vec<u64> = thirds.iter().map(|&i| 700 + mixed(i + 9000, 50)).collect();
        let micros: Vec<u64> = duration.iter().map(|d| d / 1000).collect();
        let both = |i: &u32| {
            let at = *i as usize;
            let delay = at.is_multiple_of(3).then(|| delay[at / 3]);
            if at < 300 {
                12_000
            } else {
                duration[at] + delay.unwrap_or(0)
            }
        };
        let both: Vec<u64> = records.iter().map(both).collect();
        let other: Vec<u64> = records.iter().map(|&i| mixed(i + 70_000, 45)).collect();
        let columns = [
            (&records[..], &ids[..]),
            (&records, &both),
            (&records, &micros),
            (&records, &duration),
            (&thirds, &delay),
            (&records, &other),
        ];
        let found = find_predicting_columns(columns.into_iter(), 4000);
        let none: Vec<usize> = Vec::new();
        assert_eq!(
            found,
            [
                none.clone(),
                vec![3, 4],
                vec![3],
                none.clone(),
                none.clone(),
                none
            ]
        );
    }
}
