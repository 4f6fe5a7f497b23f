//! The `measured` tables of an NPU class: times of kernels by name, which `chakram calibrate --kernels` writes.

use super::LATENCY;
use crate::compute::{MeasuredKernel, MeasuredKernels, MeasuredTime};
use chakram_base::config::{ConfigError, ConfigField, ConfigTable, quoted};
use chakram_base::dtype::Dtype;
use chakram_base::units::Span;

const KEYS: &[&str] = &["name", "format", "times", "error", "between"];

/// Maximum FLOPs and bytes of a kernel: the largest integer in TOML.
const MOST: u64 = i64::MAX as u64;
/// Maximum relative error.
const LARGEST_ERROR: f64 = 10.0;

/// Parses the measured kernels in the table of a class.
pub(super) fn measured(class: &ConfigTable<'_>) -> Result<MeasuredKernels, ConfigError> {
    let mut all = MeasuredKernels::default();
    let Some(field) = class.get("measured") else {
        return Ok(all);
    };
    for table in field.tables(KEYS)? {
        let expected = "the name of a kernel, as in traces";
        let name = table.need("name", expected)?.text(expected)?;
        let dtype = table.optional("format", |field| field.choice(&Dtype::ALL))?;
        let expected = "a list of [FLOPs, bytes, time]";
        let field = table.need("times", expected)?;
        let times = field.items(expected)?;
        let times = times.iter().map(time).collect::<Result<Vec<_>, _>>()?;
        let error = |key| table.or(key, 0.0, |field| field.positive(LARGEST_ERROR));
        let Some(kernel) = MeasuredKernel::new(times, error("error")?, error("between")?) else {
            let expected = "at least one time, and at most one for each pair of FLOPs and bytes";
            return Err(field.refuse(
                "an empty list, or two entries with the same FLOPs and bytes",
                expected,
            ));
        };
        if !all.add(name.to_owned(), dtype, kernel) {
            let found = format!(
                "a second table for kernel {} in the same format",
                quoted(name)
            );
            return Err(table.refuse(found, "one table for each name and format"));
        }
    }
    Ok(all)
}

fn time(field: &ConfigField<'_>) -> Result<MeasuredTime, ConfigError> {
    let expected = "FLOPs, bytes and a time, such as [2048, 512, \"1.5 us\"]";
    let [flops, bytes, time] = field.array("values", expected)?;
    let span: Span = time.quantity(LATENCY)?;
    Ok(MeasuredTime {
        flops: flops.between(0, MOST)?,
        bytes: bytes.between(0, MOST)?,
        seconds: span.seconds(),
    })
}
