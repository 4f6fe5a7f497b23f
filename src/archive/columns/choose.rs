//! Encodes a column: chooses the predictor with the smallest residuals, and writes these residuals in byte planes.

use super::predict::{
    ColumnPredictionInputs, ColumnPredictionRule, SparseRecordColumn, scan_values_with_predictions,
};
use crate::wire::{ArchiveDecodingError, ByteStringReader, put_varint};

/// All predictors that the encoder tries for a column.
pub const ALL: &[ColumnPredictionRule] = &ColumnPredictionRule::ALL;

/// Maximum number of values that the encoder samples to choose a predictor.
const SAMPLE: usize = 1 << 11;

/// Moves the sign of a difference to the lowest bit, so that small differences of either sign become small numbers.
fn encode_zigzag(value: u64) -> u64 {
    value << 1 ^ ((value as i64) >> 63) as u64
}

/// Inverts [`encode_zigzag`].
pub fn decode_zigzag(value: u64) -> u64 {
    value >> 1 ^ (value & 1).wrapping_neg()
}

/// Sets `left` to the residuals: the values minus their predictions by `predictor`.
fn compute_residuals(
    values: &[u64],
    predictor: ColumnPredictionRule,
    view: &ColumnPredictionInputs<'_>,
    left: &mut Vec<u64>,
) {
    left.clear();
    left.reserve(values.len());
    scan_values_with_predictions(predictor, view, |at, predicted| {
        left.push(encode_zigzag(values[at].wrapping_sub(predicted)));
        values[at]
    });
}

/// Returns how many bytes the largest of `values` needs.
fn byte_width_of_largest_value(values: &[u64]) -> usize {
    let all = values.iter().fold(0, |all, value| all | value);
    (64 - all.leading_zeros() as usize).div_ceil(8)
}

/// Approximates 65,536 times the binary logarithm of a positive number; gives the same result on every
/// machine.
fn log2_fixed(n: u64) -> u64 {
    let whole = 63 - u64::from(n.leading_zeros());
    let fraction = if whole >= 16 {
        n >> (whole - 16)
    } else {
        n << (16 - whole)
    };
    (whole << 16) + (fraction & 0xffff)
}

/// Estimates the compressed size of the byte planes of `values` from the entropy of the bytes,
/// in 1/65,536 bit.
fn estimate_cost(values: &[u64]) -> u64 {
    let n = values.len() as u64;
    let planes = (0..byte_width_of_largest_value(values)).map(|plane| {
        let mut counts = [0u32; 256];
        for value in values {
            counts[(value >> (8 * plane)) as usize & 0xff] += 1;
        }
        let present = counts.iter().filter(|count| **count > 0);
        let kept = present.map(|&count| u64::from(count) * log2_fixed(count.into()));
        (n * log2_fixed(n)).saturating_sub(kept.sum())
    });
    planes.sum()
}

/// Encoded columns, and the positions at which their byte planes end.
#[derive(Debug)]
pub struct EncodedColumnsAndPlaneEnds {
    /// The encoded bytes.
    pub bytes: Vec<u8>,
    /// End of each byte plane, in ascending order. The bytes of different planes have different
    /// statistics.
    pub ends: Vec<usize>,
    /// Reusable memory for residuals.
    pub left: Vec<u64>,
}

impl EncodedColumnsAndPlaneEnds {
    /// Starts an empty writer, which reuses the memory of `bytes` and `left`.
    pub fn new(mut bytes: Vec<u8>, left: Vec<u64>) -> Self {
        bytes.clear();
        let ends = Vec::new();
        Self { bytes, ends, left }
    }
}

/// Appends `values`, encoded with the predictor among `candidates` that has the smallest estimated size. Returns this
/// predictor.
pub fn encode_with_best_predictor(
    values: &[u64],
    view: &ColumnPredictionInputs<'_>,
    candidates: &[ColumnPredictionRule],
    writer: &mut EncodedColumnsAndPlaneEnds,
) -> ColumnPredictionRule {
    let sample = &values[..values.len().min(SAMPLE)];
    let sampled = ColumnPredictionInputs {
        records: &view.records[..sample.len()],
        ..*view
    };
    let usable = candidates
        .iter()
        .filter(|predictor| predictor.are_required_inputs_available(view));
    let (out, left) = (&mut writer.bytes, &mut writer.left);
    let best = usable.min_by_key(|&&predictor| {
        compute_residuals(sample, predictor, &sampled, left);
        estimate_cost(left)
    });
    let best = *best.unwrap_or(&ColumnPredictionRule::Zero);
    compute_residuals(values, best, view, left);
    out.push(best as u8);
    for (other, _) in view.others.iter().take(best.other_column_count()).flatten() {
        put_varint(out, (*other).into());
    }
    let width = byte_width_of_largest_value(left);
    out.push(width as u8);
    for plane in 0..width {
        writer.ends.push(out.len());
        out.extend(left.iter().map(|value| (value >> (8 * plane)) as u8));
    }
    writer.ends.push(out.len());
    best
}

/// Reads a column into `values`, one value per record of `view`; `others` returns columns that were
/// already read. Returns true if every value equals its prediction from the base.
pub fn decode_column<'v>(
    input: &mut ByteStringReader<'_>,
    values: &mut [u64],
    others: impl Fn(usize) -> Option<SparseRecordColumn<'v>>,
    view: &ColumnPredictionInputs<'v>,
) -> Result<bool, ArchiveDecodingError> {
    let number = usize::from(input.take_bytes(1)?[0]);
    let predictor = ColumnPredictionRule::ALL.get(number).copied();
    let predictor = predictor.ok_or(ArchiveDecodingError("a column has an unknown predictor"))?;
    let mut view = *view;
    for place in view.others.iter_mut().take(predictor.other_column_count()) {
        let number = input.read_count(u32::MAX as usize)?;
        let other = others(number);
        let other = other.ok_or(ArchiveDecodingError(
            "a column is predicted by a missing column",
        ))?;
        *place = Some((number as u32, other));
    }
    if !predictor.are_required_inputs_available(&view) {
        return Err(ArchiveDecodingError(
            "a column is predicted by a missing base",
        ));
    }
    let width = usize::from(input.take_bytes(1)?[0]);
    if width > 8 {
        return Err(ArchiveDecodingError("a column is wider than 8 bytes"));
    }
    let planes = input.take_bytes(
        width
            .checked_mul(values.len())
            .ok_or(ArchiveDecodingError("the column ends too early"))?,
    )?;
    match width {
        0 => restore_values_from_residual_planes::<0>(predictor, &view, planes, values),
        1 => restore_values_from_residual_planes::<1>(predictor, &view, planes, values),
        2 => restore_values_from_residual_planes::<2>(predictor, &view, planes, values),
        3 => restore_values_from_residual_planes::<3>(predictor, &view, planes, values),
        4 => restore_values_from_residual_planes::<4>(predictor, &view, planes, values),
        5 => restore_values_from_residual_planes::<5>(predictor, &view, planes, values),
        6 => restore_values_from_residual_planes::<6>(predictor, &view, planes, values),
        7 => restore_values_from_residual_planes::<7>(predictor, &view, planes, values),
        _ => restore_values_from_residual_planes::<8>(predictor, &view, planes, values),
    }
    Ok(width == 0 && predictor == ColumnPredictionRule::Base)
}

/// Sets each value to its prediction plus its residual, which is stored in `W` byte planes.
fn restore_values_from_residual_planes<const W: usize>(
    predictor: ColumnPredictionRule,
    view: &ColumnPredictionInputs<'_>,
    planes: &[u8],
    values: &mut [u64],
) {
    let count = view.records.len();
    let values = &mut values[..count];
    let planes: [&[u8]; W] = std::array::from_fn(|plane| &planes[plane * count..][..count]);
    scan_values_with_predictions(predictor, view, |at, predicted| {
        let bytes = planes.iter().enumerate();
        let left = bytes.fold(0, |all, (plane, bytes)| {
            all | u64::from(bytes[at]) << (8 * plane)
        });
        values[at] = predicted.wrapping_add(decode_zigzag(left));
        values[at]
    });
}
