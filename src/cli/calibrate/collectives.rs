//! Writes collectives measured with nccl-tests into `measured_collective` tables of a machine.

use super::{append_machine_section, quote_toml};
use crate::terminal::plain_style;
use chakram_base::config;
use chakram_base::units::format_percent;
use chakram_hardware::collective::CollectiveCurve;
use chakram_hardware::machine::Machine;
use chakram_report::summary::format_count_with_noun;
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_studies::score::{mean_leave_one_out_prediction_error, parse_nccl_log};
use std::error::Error;
use std::fmt::{Display, Write as _};
use std::path::PathBuf;

/// Adds the collectives from the logs at `paths` to `text`, the contents of `machine`'s file.
/// Returns the new contents and a summary of the collectives.
///
/// # Errors
///
/// Fails if a log cannot be read, if two logs have the same kind and the same number of members, or if a log has more
/// members than a dimension.
pub(super) fn add_collective_logs(
    text: &str,
    machine: &Machine,
    paths: &[PathBuf],
) -> Result<(String, String), Box<dyn Error>> {
    let mut curves: Vec<(CollectiveCurve, String)> = Vec::new();
    for path in paths {
        let file = path.display().to_string();
        let read = config::read_file_or_standard_input(path)
            .map_err(|error| format!("cannot read {file}: {error}"))?;
        let curve = parse_nccl_log(&read, &file)?;
        let alike = |(other, _): &&(CollectiveCurve, String)| {
            (other.kind, other.members) == (curve.kind, curve.members)
        };
        if let Some((_, other)) = curves.iter().find(alike) {
            return Err(format!(
                "{file} and {other} both have {} among {} members; expected one file for each kind and number",
                curve.kind, curve.members
            )
            .into());
        }
        curves.push((curve, file));
    }
    let mut section = String::from("logs of nccl-tests.\n");
    let mut table = TextTable::new([
        left_aligned_column("COLLECTIVES", 18),
        right_aligned_column("members", 9),
        right_aligned_column("sizes", 7),
        right_aligned_column("left out", 10),
    ]);
    for (curve, file) in &curves {
        let dimensions = machine.topology().dimensions();
        let fits = dimensions.iter().find(|one| one.size >= curve.members);
        let Some(dimension) = fits else {
            return Err(format!(
                "{file} has {} members, but no dimension of machine `{}` has this number of NPUs\n  try: a machine of that size",
                curve.members,
                machine.name()
            )
            .into());
        };
        // Writing to a string does not fail.
        let _ = write!(
            section,
            "\n[[measured_collective]]      # measured: {}\ndimension = {}\ncollective = \"{}\"\nmembers = {}\n\
             measured_at = {{ bandwidth = \"{} GB/s\", latency = \"{} ns\" }}\npoints = [\n",
            file.replace(char::is_control, " "),
            quote_toml(&dimension.name),
            curve.kind,
            curve.members,
            dimension.bandwidth.bytes_per_second() / 1e9,
            dimension.latency.0 as f64 / 1e3,
        );
        for (bytes, seconds) in &curve.points {
            let _ = writeln!(section, "    [{bytes}, \"{:.6} us\"],", seconds * 1e6);
        }
        section += "]\n";
        let cells = [
            curve.kind.to_string(),
            curve.members.to_string(),
            curve.points.len().to_string(),
            mean_leave_one_out_prediction_error(curve).map_or("-".to_owned(), format_percent),
        ];
        table.add_row(&cells.each_ref().map(|cell| cell as &dyn Display));
    }
    let summary = format!(
        "{}\n{}left out: mean error of a size by the others\n",
        format_count_with_noun(curves.len() as u64, "collective"),
        table.to_text(plain_style())
    );
    Ok((
        append_machine_section(text, "Collectives", &section),
        summary,
    ))
}
