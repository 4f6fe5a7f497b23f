//! The `npu` tables of a software stack: kernel curves and launch times by NPU class.

use super::{curves, host};
use crate::compute::KernelTimeCurves;
use crate::machine::class_prices::ClassStackCurvesAndHost;
use chakram_base::config::{ConfigError, ConfigField};

const KEYS: &[&str] = &["gemm", "attention", "moving", "host"];

/// Reads a table for each class of NPU, in the order of the file.
pub(in crate::machine) fn parse_software_stack_curves_by_npu_class(
    field: &ConfigField<'_>,
) -> Result<Vec<ClassStackCurvesAndHost>, ConfigError> {
    let mut classes = Vec::new();
    for (name, field) in field.read_table(None)?.fields() {
        let table = field.read_table(Some(KEYS))?;
        if !KEYS.iter().any(|key| table.get(key).is_some()) {
            let expected = format!("at least one of {}", KEYS.join(", "));
            return Err(table.invalid_table_error("nothing", expected));
        }
        let mut kernels = KernelTimeCurves::default();
        curves::add_kernel_curves(&table, &mut kernels)?;
        classes.push(ClassStackCurvesAndHost {
            name: name.to_owned(),
            kernels,
            host: host::parse_host(&table)?,
        });
    }
    Ok(classes)
}
