//! Finds structural columns: columns with few distinct values, such as types, lanes and flags. The rest of a record
//! nearly always determines them. Templates contain these values, so fewer values remain in the records.

use super::parse::RecordOutlineWithSlots;
use std::sync::Arc;

/// Structural columns, each with the values that templates contain. A record with any other value stores the value in
/// the column.
#[derive(Clone, Debug, Default)]
pub struct StructuralColumnValuesInTemplates {
    /// Values of each column; empty for a column that is not structural.
    values: Vec<Vec<u64>>,
}

/// Maximum number of distinct values in a structural column, which lets an index fit in three bits.
const FEW: usize = 7;
/// Minimum average number of times that each distinct value of a structural column occurs.
const OFTEN: usize = 32;

impl StructuralColumnValuesInTemplates {
    /// Finds the structural columns of records. The inputs are each record's outline number and all values.
    pub fn find_structural_columns(
        outlines: &[Arc<RecordOutlineWithSlots>],
        columns: usize,
        sequence: &[u32],
        values: &[u64],
    ) -> Self {
        let mut found = vec![Vec::new(); columns];
        // Numbers in texts are excluded, because some belong to group names, which differ between ranks.
        let texts = outlines.iter().flat_map(|outline| &outline.decimals);
        texts.for_each(|&column| found[column as usize] = vec![0; FEW + 1]);
        let mut counts = vec![0usize; columns];
        let mut starts = vec![0];
        starts.extend(outlines.iter().scan(0, |all, outline| {
            *all += outline.slots.len();
            Some(*all)
        }));
        // For each slot of an outline, `seen` is a bit set of the values that the slot takes.
        let mut seen = vec![0u8; starts[outlines.len()]];
        let mut rest = values;
        for &number in sequence {
            let number = number as usize;
            let slots = &outlines[number].slots;
            let own = rest.split_off(..slots.len()).unwrap_or_default();
            let seen = &mut seen[starts[number]..];
            for ((&column, value), seen) in slots.iter().zip(own).zip(seen) {
                let found: &mut Vec<u64> = &mut found[column as usize];
                if found.len() > FEW {
                    continue;
                }
                counts[column as usize] += 1;
                let place = found.iter().position(|known| known == value);
                *seen |= 1 << place.unwrap_or(found.len());
                if place.is_none() {
                    found.push(*value);
                }
            }
        }
        let (mut pairs, mut told) = (vec![0; columns], vec![0; columns]);
        let slots = outlines.iter().flat_map(|outline| &outline.slots);
        for (&column, seen) in slots.zip(seen) {
            pairs[column as usize] += seen.count_ones();
            told[column as usize] += u32::from(seen > 0);
        }
        for (column, values) in found.iter_mut().enumerate() {
            let often = counts[column] >= OFTEN * values.len();
            // Every additional value of an outline costs a template, so a column is worthwhile only if the outline
            // nearly fixes its value.
            if values.len() > FEW || !often || 4 * pairs[column] > 5 * told[column] {
                values.clear();
            }
        }
        Self { values: found }
    }

    /// Sets `fixed` to the values that a record's template contains. A slot whose value is stored
    /// in a column gets `None`. Returns a number that distinguishes the template from others with
    /// the same outline.
    pub fn fixed_values_and_variant_of_record(
        &self,
        slots: &[u32],
        values: &[u64],
        fixed: &mut Vec<Option<u64>>,
    ) -> u64 {
        let mut variant = 1;
        fixed.clear();
        fixed.extend(slots.iter().zip(values).map(|(&column, &value)| {
            let known = self
                .values
                .get(column as usize)
                .map_or(&[][..], Vec::as_slice);
            if known.is_empty() || variant >> 60 != 0 {
                return None;
            }
            let place = known.iter().position(|known| *known == value);
            variant = variant << 3 | place.map_or(0, |place| place as u64 + 1);
            place.map(|_| value)
        }));
        variant
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_outlines_tell_are_structural() {
        // The records have two outlines with three columns: a type that follows from the outline; a number from 0 to 2
        // that does not; and a time.
        let outline = || {
            Arc::new(RecordOutlineWithSlots {
                ops: Vec::new(),
                slots: vec![0, 1, 2],
                decimals: Vec::new(),
            })
        };
        let outlines = [outline(), outline()];
        let sequence: Vec<u32> = (0..300).map(|at| at % 2).collect();
        let record = |at: u64| [4 + at % 2, at % 3, 1000 + at];
        let values: Vec<u64> = (0..300).flat_map(record).collect();
        let found = StructuralColumnValuesInTemplates::find_structural_columns(
            &outlines, 3, &sequence, &values,
        );
        assert_eq!(found.values, [vec![4, 5], vec![], vec![]]);
        let mut fixed = Vec::new();
        let one = found.fixed_values_and_variant_of_record(&[0, 1, 2], &[5, 1, 7], &mut fixed);
        assert_eq!(fixed, [Some(5), None, None]);
        // A value that no template contains is stored in the column.
        let other = found.fixed_values_and_variant_of_record(&[0, 1, 2], &[6, 1, 7], &mut fixed);
        assert_eq!(fixed, [None; 3]);
        assert_ne!(one, other);
        // Numbers in texts are never structural.
        let text = RecordOutlineWithSlots {
            decimals: vec![0],
            ..RecordOutlineWithSlots::default()
        };
        let texts = [&outlines[..], &[Arc::new(text)]].concat();
        let found = StructuralColumnValuesInTemplates::find_structural_columns(
            &texts, 3, &sequence, &values,
        );
        assert!(found.values.iter().all(Vec::is_empty));
        // A column with only a few records is never structural.
        let found = StructuralColumnValuesInTemplates::find_structural_columns(
            &outlines,
            3,
            &sequence[..60],
            &values[..180],
        );
        assert!(found.values.iter().all(Vec::is_empty));
    }
}
