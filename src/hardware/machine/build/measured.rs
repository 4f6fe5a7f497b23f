//! The `measured` tables of an NPU class, written by `chakram calibrate --kernels`: times of kernels by name.

use super::LATENCY;
use crate::compute::{MeasuredKernels, MeasuredTimeAtFlopsAndBytes, SameKernelTimesByWorkAmount};
use chakram_base::config::{ConfigError, ConfigField, ConfigTable, quote_and_truncate_for_message};
use chakram_base::dtype::Dtype;
use chakram_base::units::Span;

const KEYS: &[&str] = &["name", "format", "times", "error", "between"];

/// Maximum number of a kernel's FLOPs or bytes: the largest integer in TOML.
const MOST: u64 = i64::MAX as u64;
/// Maximum relative error that a file may state.
const LARGEST_ERROR: f64 = 10.0;

/// Parses the measured kernels in the table of a class.
pub(super) fn parse_measured_kernels(
    class: &ConfigTable<'_>,
) -> Result<MeasuredKernels, ConfigError> {
    let mut all = MeasuredKernels::default();
    let Some(field) = class.get("measured") else {
        return Ok(all);
    };
    for table in field.read_tables(KEYS)? {
        let expected = "the name of a kernel, as in traces";
        let name = table.require_field("name", expected)?.read_text(expected)?;
        let dtype = table.read_optional("format", |field| field.read_choice(&Dtype::ALL))?;
        let expected = "a list of [FLOPs, bytes, time]";
        let field = table.require_field("times", expected)?;
        let times = field.read_array_items(expected)?;
        let times = times
            .iter()
            .map(parse_measured_time)
            .collect::<Result<Vec<_>, _>>()?;
        let error =
            |key| table.read_or_default(key, 0.0, |field| field.read_positive(LARGEST_ERROR));
        let Some(kernel) =
            SameKernelTimesByWorkAmount::new(times, error("error")?, error("between")?)
        else {
            let expected = "at least one time, and at most one for each pair of FLOPs and bytes";
            return Err(field.invalid_value_error(
                "an empty list, or two entries with the same FLOPs and bytes",
                expected,
            ));
        };
        if !all.add_kernel(name.to_owned(), dtype, kernel) {
            let found = format!(
                "a second table for kernel {} in the same format",
                quote_and_truncate_for_message(name)
            );
            return Err(table.invalid_table_error(found, "one table for each name and format"));
        }
    }
    Ok(all)
}

fn parse_measured_time(
    field: &ConfigField<'_>,
) -> Result<MeasuredTimeAtFlopsAndBytes, ConfigError> {
    let expected = "FLOPs, bytes and a time, such as [2048, 512, \"1.5 us\"]";
    let [flops, bytes, time] = field.read_array_of_exact_length("values", expected)?;
    let span: Span = time.read_quantity(LATENCY)?;
    Ok(MeasuredTimeAtFlopsAndBytes {
        flops: flops.read_integer_between(0, MOST)?,
        bytes: bytes.read_integer_between(0, MOST)?,
        seconds: span.as_seconds(),
    })
}
