//! Writes measured GEMMs into `product` tables of a machine's NPU class.

use super::append_machine_section;
use crate::terminal::plain_style;
use chakram_base::config;
use chakram_base::units::format_percent;
use chakram_hardware::machine::Machine;
use chakram_report::summary::{format_count_with_noun, format_thousands};
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_studies::score::{gemm_errors_without_and_with_other_points, parse_mean_gemm_times};
use std::error::Error;
use std::fmt::{Display, Write as _};
use std::path::Path;

/// Adds the GEMMs from the table at `path` to `text`, the contents of `machine`'s file. Returns the new contents and a
/// summary of the GEMMs.
///
/// # Errors
///
/// Fails if the table cannot be read, if the machine has several NPU classes, or if it has no curve for
/// a number format.
pub(super) fn add_measured_gemms_to_machine_text(
    text: &str,
    machine: &Machine,
    path: &Path,
) -> Result<(String, String), Box<dyn Error>> {
    let file = path.display().to_string();
    let read = config::read_file_or_standard_input(path)
        .map_err(|error| format!("cannot read {file}: {error}"))?;
    let found = parse_mean_gemm_times(&read, &file)?;
    let [class] = machine.npu_classes() else {
        return Err(format!(
            "machine `{}` has {} classes of NPU, but a table of GEMMs is for one\n  try: a machine of the class that was measured",
            machine.name(),
            machine.npu_classes().len()
        )
        .into());
    };
    let shapes: usize = found.iter().map(|(_, points)| points.len()).sum();
    let mut section = format!(
        "{}: {} shapes.\n",
        file.replace(char::is_control, " "),
        format_thousands(shapes as u64)
    );
    let mut table = TextTable::new([
        left_aligned_column("GEMMS", 8),
        right_aligned_column("shapes", 8),
        right_aligned_column("by the curve", 14),
        right_aligned_column("left out", 10),
    ]);
    let class_name = super::quote_toml(&class.name);
    for (dtype, points) in &found {
        let curve = class.curves.gemm[*dtype as usize].as_ref();
        let rates = (class.peaks.peak_rate_if_supported(*dtype)).zip(class.memory_bandwidth());
        let (Some(curve), Some((peak, memory))) = (curve, rates) else {
            return Err(format!(
                "{file} has GEMMs of {dtype}, but class `{}` of machine `{}` has no curve for {dtype} to correct\n  \
                 try: a table [[npu.{}.gemm]] in the machine file, or rows of other formats",
                class.name,
                machine.name(),
                class.name
            )
            .into());
        };
        let sizes = [dtype.element_bytes(), peak.per_second()];
        let [alone, error] =
            gemm_errors_without_and_with_other_points(points, curve, sizes, memory);
        // Writing to a string does not fail.
        let _ = write!(
            section,
            "\n[[npu.{class_name}.product]]      # measured\nformat = \"{dtype}\"\nerror = {:.4}\nshapes = [\n",
            error.clamp(1e-4, 10.0)
        );
        for ([m, n, k], seconds) in points {
            let micros = seconds * 1e6;
            let _ = writeln!(section, "    [{m}, {n}, {k}, \"{micros:.6} us\"],");
        }
        section += "]\n";
        let cells = [
            dtype.to_string(),
            format_thousands(points.len() as u64),
            format_percent(alone),
            format_percent(error),
        ];
        table.add_row(&cells.each_ref().map(|cell| cell as &dyn Display));
    }
    let summary = format!(
        "{}\n{}left out: mean error of a fifth of the shapes by the others\n",
        format_count_with_noun(shapes as u64, "GEMM"),
        table.to_text(plain_style())
    );
    Ok((append_machine_section(text, "GEMMs", &section), summary))
}
