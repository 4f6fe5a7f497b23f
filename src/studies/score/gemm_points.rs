//! Parses tables (CSV) of measured matrix multiplications (GEMMs). Each row has a number format, a
//! GEMM's rows, columns and summed size, and its time.

use super::ScoreError;
use chakram_base::config::{quote_and_truncate_for_message, require_distinct_headings};
use chakram_base::units::Bandwidth;
use chakram_hardware::compute::{GemmTimeCurve, MeasuredGemms};
use chakram_trace::format::Dtype;
use std::collections::BTreeMap;

/// Possible headings of the format column.
const FORMATS: [&str; 3] = ["format", "dtype", "gemm_dtype"];
const TIMES: [(&str, f64); 3] = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
/// Number of folds in the cross-validation. Each fold is predicted from the others.
const FOLDS: usize = 5;

/// Mean time that each shape (rows, columns, summed size) takes in one number format.
pub type MeanGemmTimeByShape = BTreeMap<[u64; 3], f64>;

/// Parses a table of GEMMs. Averages the times of repeated shapes.
///
/// # Errors
///
/// Fails if a column is missing, or if a row is not a GEMM.
pub fn parse_mean_gemm_times(
    text: &str,
    file: &str,
) -> Result<Vec<(Dtype, MeanGemmTimeByShape)>, ScoreError> {
    let table = |why: String| ScoreError::Table {
        file: file.to_owned(),
        why,
    };
    let text = text.trim_start_matches('\u{feff}').replace("\r\n", "\n");
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .from_reader(text.as_bytes());
    let heads = reader
        .headers()
        .map_err(|error| table(error.to_string()))?
        .clone();
    require_distinct_headings(heads.iter()).map_err(table)?;
    let find = |name: &str| heads.iter().position(|head| head == name);
    let missing = |what: &str| {
        let found: Vec<_> = heads.iter().map(quote_and_truncate_for_message).collect();
        table(format!(
            "there is no column {what}, only {}\n  try: format, m, n, k and us",
            found.join(", ")
        ))
    };
    let format = FORMATS.into_iter().find_map(find);
    let format = format.ok_or_else(|| missing("format"))?;
    let mut sizes = [0; 3];
    for (column, name) in sizes.iter_mut().zip(["m", "n", "k"]) {
        *column = find(name).ok_or_else(|| missing(name))?;
    }
    let time = TIMES
        .iter()
        .find_map(|(name, unit)| Some((find(name)?, *unit)));
    let (time, unit) = time.ok_or_else(|| missing("us, ms or s"))?;
    let mut sums: BTreeMap<usize, BTreeMap<[u64; 3], (f64, f64)>> = BTreeMap::new();
    for record in reader.records() {
        let record = record.map_err(|error| table(error.to_string()))?;
        let cell = |column: usize| record.get(column).unwrap_or_default();
        let row = |column: usize, expected: &str| ScoreError::Row {
            file: file.to_owned(),
            line: record.position().map_or(0, csv::Position::line),
            why: format!(
                "{} is {}; expected {expected}",
                quote_and_truncate_for_message(heads.get(column).unwrap_or_default()),
                quote_and_truncate_for_message(cell(column))
            ),
        };
        let dtype = Dtype::from_name(cell(format));
        let dtype = dtype.ok_or_else(|| row(format, "a number format such as bf16"))?;
        let mut shape = [0; 3];
        for (size, &column) in shape.iter_mut().zip(&sizes) {
            let number = cell(column).parse().ok().filter(|size| *size > 0);
            *size = number.ok_or_else(|| row(column, "a size of a product, above zero"))?;
        }
        let seconds = cell(time).parse::<f64>().ok();
        let seconds = seconds.filter(|one| one.is_finite() && *one > 0.0);
        let seconds = seconds.ok_or_else(|| row(time, "a time above zero"))? * unit;
        let (sum, count) = sums
            .entry(dtype as usize)
            .or_default()
            .entry(shape)
            .or_default();
        *sum += seconds;
        *count += 1.0;
    }
    if sums.is_empty() {
        return Err(table("the table has no GEMM".to_owned()));
    }
    let mean = |(shape, (sum, count)): ([u64; 3], (f64, f64))| (shape, sum / count);
    let one = |(dtype, shapes): (usize, BTreeMap<_, _>)| {
        let (dtype, _) = Dtype::ALL[dtype];
        (dtype, shapes.into_iter().map(mean).collect())
    };
    Ok(sums.into_iter().map(one).collect())
}

/// Returns two mean relative errors over `points`. The first error is that of the curve (the model of kernel times)
/// alone, the second that of the curve corrected by other points. There are five folds; a fold's points are corrected
/// by the points of the other folds. A point that others do not surround is not corrected.
pub fn gemm_errors_without_and_with_other_points(
    points: &MeanGemmTimeByShape,
    curve: &GemmTimeCurve,
    [element, peak]: [f64; 2],
    memory: Bandwidth,
) -> [f64; 2] {
    let alone = |&[m, n, k]: &[u64; 3]| {
        curve.estimate_gemm_with_intermediate_values([1, m, n, k], element, peak, memory)
    };
    let shapes: Vec<_> = points
        .iter()
        .map(|(shape, &seconds)| (*shape, seconds, alone(shape)))
        .collect();
    let (mut alone, mut with) = (0.0, 0.0);
    for fold in 0..FOLDS {
        let kept = shapes.iter().enumerate().filter(|(i, _)| i % FOLDS != fold);
        let kept: Vec<_> = kept.map(|(_, one)| *one).collect();
        let table = MeasuredGemms::new(&kept, 0.0);
        for (shape, seconds, estimate) in shapes.iter().skip(fold).step_by(FOLDS) {
            let factor = table
                .as_ref()
                .and_then(|table| table.interpolate_factor(*shape, estimate));
            let off = |factor: f64| (factor * estimate.seconds / seconds - 1.0).abs();
            alone += off(1.0);
            with += off(factor.unwrap_or(1.0));
        }
    }
    [alone, with].map(|sum| sum / shapes.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_one_shape_are_averaged() {
        let text = "gemm_dtype,m,n,k,ms\nbfloat16,8,16,32,0.002\nbf16,8,16,32,0.004\nfp8,1,1,1,1\n";
        let found = parse_mean_gemm_times(text, "t.csv").unwrap();
        assert_eq!(found.len(), 2);
        let (dtype, points) = &found[0];
        // The mean of both times is (2 + 4) / 2 us.
        assert_eq!(*dtype, Dtype::Bf16);
        assert!((points[&[8, 16, 32]] / 3e-6 - 1.0).abs() < 1e-12);
        for (text, expected) in [
            ("m,n,k,us\n", "there is no column format"),
            ("format,m,n,k\n", "there is no column us, ms or s"),
            ("format,m,n,k,us\n", "the table has no GEMM"),
            (
                "format,m,n,us,k,us\n",
                "t.csv: columns 4 and 6 have the same heading \"us\"\n  try: another heading",
            ),
            (
                "format,m,n,k,us\nint3,1,1,1,1\n",
                "t.csv:2: \"format\" is \"int3\"",
            ),
            ("format,m,n,k,us\nbf16,0,1,1,1\n", "t.csv:2: \"m\" is \"0\""),
            (
                "format,m,n,k,us\nbf16,1,1,1,nan\n",
                "t.csv:2: \"us\" is \"nan\"",
            ),
        ] {
            let error = parse_mean_gemm_times(text, "t.csv")
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn what_is_left_out_is_predicted_by_its_neighbours() {
        // Here, all points take twice the time that the curve predicts. The other points therefore predict each one
        // exactly. The exceptions are the corners of the box, for which the curve alone predicts half of the time.
        let curve = GemmTimeCurve {
            start: 1e-6,
            efficiency: 1.0,
            multiprocessors: 100.0,
            operands: 1e12,
            results: 1e12,
            memory: 1.0,
            reduction: 1e-6,
            error: 0.1,
            is_carried_over: false,
            throttling: None,
        };
        let memory = Bandwidth::new(1e12).unwrap();
        let mut points = MeanGemmTimeByShape::new();
        for i in 0..50_u64 {
            let shape = [64 << (i % 5), 64 << (i / 5 % 5), 128 << (i / 25)];
            let [m, n, k] = shape;
            points.insert(
                shape,
                2.0 * curve.predict_seconds([1, m, n, k], 2.0, 1e14, memory),
            );
        }
        let [alone, with] =
            gemm_errors_without_and_with_other_points(&points, &curve, [2.0, 1e14], memory);
        assert!((alone - 0.5).abs() < 1e-12, "{alone}");
        assert!(with < 0.25, "{with}");
    }
}
