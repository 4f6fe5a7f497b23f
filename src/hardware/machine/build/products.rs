//! The `product` tables of an NPU class, written by `chakram calibrate --gemm`: measured GEMMs.

use super::npu_rates::KernelMeasurementNpuRates;
use super::{LATENCY, curves};
use crate::compute::{KernelTimeCurves, MeasuredGemms};
use crate::machine::NpuClass;
use chakram_base::config::{ConfigError, ConfigField, ConfigTable, quote_and_truncate_for_message};
use chakram_base::dtype::Dtype;
use chakram_base::units::Span;

const KEYS: &[&str] = &["format", "shapes", "error"];

/// Adds the measured GEMMs in a class's table to `curves`, which are the class's curves.
///
/// The GEMMs were measured one after another in short runs. Their times are therefore compared with a curve for NPUs
/// with the rates `measured_at`, without the slowdown under continuous load. For an edited file, this curve uses the
/// constants of `before`, the class before the edit.
pub(super) fn add_measured_gemms(
    class: &ConfigTable<'_>,
    curves: &mut KernelTimeCurves,
    measured_at: &KernelMeasurementNpuRates,
    before: Option<&NpuClass>,
) -> Result<(), ConfigError> {
    let Some(field) = class.get("product") else {
        return Ok(());
    };
    for table in field.read_tables(KEYS)? {
        let format = table.require_field("format", "a number format")?;
        let dtype: Dtype = format.read_choice(&Dtype::ALL)?;
        let curve = match before {
            Some(before) => before.curves.gemm[dtype as usize],
            None => curves.gemm[dtype as usize],
        };
        let (Some(curve), Some(peak)) = (curve, measured_at.peaks.peak_rate_if_supported(dtype))
        else {
            let expected = "a format with a peak and a curve in the table `gemm`, which the measured shapes correct";
            return Err(format.invalid_value_error(
                quote_and_truncate_for_message(&dtype.to_string()),
                expected,
            ));
        };
        let curve = curves::derive_gemm_curve_without_slowdown(class, curve)?;
        let expected = "a list of [rows, columns, summed over, time]";
        let field = table.require_field("shapes", expected)?;
        let mut shapes = Vec::new();
        for item in field.read_array_items(expected)? {
            let (sizes, seconds) = parse_gemm_sizes_and_time(&item)?;
            let [m, n, k] = sizes;
            let element = dtype.element_bytes();
            let alone = curve.estimate_gemm_with_intermediate_values(
                [1, m, n, k],
                element,
                peak.per_second(),
                measured_at.memory,
            );
            shapes.push((sizes, seconds, alone));
        }
        let error = table
            .require_field("error", "a relative error")?
            .read_positive(10.0)?;
        let Some(measured) = MeasuredGemms::new(&shapes, error) else {
            return Err(field.invalid_value_error("no shape", expected));
        };
        if curves.products[dtype as usize].replace(measured).is_some() {
            let found = format!(
                "a second table for format {}",
                quote_and_truncate_for_message(&dtype.to_string())
            );
            return Err(table.invalid_table_error(found, "one table for each format"));
        }
    }
    Ok(())
}

fn parse_gemm_sizes_and_time(field: &ConfigField<'_>) -> Result<([u64; 3], f64), ConfigError> {
    let expected = "three sizes and a time, such as [4096, 1024, 512, \"25 us\"]";
    let [m, n, k, time] = field.read_array_of_exact_length("values", expected)?;
    let span: Span = time.read_quantity(LATENCY)?;
    if span == Span::ZERO {
        return Err(time.invalid_value_error("no time", "more than zero"));
    }
    let size = |field: &ConfigField<'_>| field.read_count(u32::MAX).map(u64::from);
    Ok(([size(&m)?, size(&n)?, size(&k)?], span.as_seconds()))
}
