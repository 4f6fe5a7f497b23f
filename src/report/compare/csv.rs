//! The comparison as comma-separated values: a row per machine.

use super::{Column, Comparison};
use crate::engine::ReplayError;
use crate::report::breakdown::Part;
use crate::report::csv::{self, Table, quoted};
use crate::report::memory::fullest;
use crate::report::operators::Rows;
use std::fmt::Write as _;

/// Renders the comparison, or a table of all reports with the machine in front.
pub fn render(comparison: &Comparison<'_>, table: Option<Table>, operators: Rows) -> String {
    let mut out = String::new();
    let reports = comparison.reports();
    let reports = reports.map(|(column, report)| (Some(&*column.name), report));
    let written = match table {
        None => compare(&mut out, comparison),
        Some(table) => csv::write(&mut out, reports, table, operators),
    };
    written.expect("a string grows as needed");
    out
}

/// How a replay ended, for programs.
pub(super) fn status(column: &Column<'_>) -> &'static str {
    match &column.result {
        Ok(_) => "completed",
        Err(ReplayError::Refused(_)) => "refused",
        Err(ReplayError::Stuck(_)) => "stuck",
        Err(ReplayError::TooLong) => "too long",
    }
}

fn compare(out: &mut String, comparison: &Comparison<'_>) -> std::fmt::Result {
    // Columns that only some jobs have.
    let remembers = comparison.remembers();
    let (memory, empty) = match remembers {
        true => (",peak_memory_bytes,memory_capacity_bytes", 15),
        false => ("", 13),
    };
    writeln!(
        out,
        "machine,npus,status,makespan_ps,against,speed,change_percent,captured_ps,\
         difference_percent,compute_ps,communication_ps,memory_ps,host_ps,idle_ps,communicating_ps,\
         exposed_waiting_ps{memory}"
    )?;
    let against = comparison.reference().map(|(column, _)| &*column.name);
    for column in &comparison.columns {
        let npus = column.machine.topology().npus();
        write!(out, "{},{npus},{}", quoted(&column.name), status(column))?;
        let Ok(report) = &column.result else {
            writeln!(out, "{}", ",".repeat(empty))?;
            continue;
        };
        let change = comparison.against(report);
        let known = |field: Option<String>| field.unwrap_or_default();
        let captured = report.captured().map(|(captured, _)| captured);
        let difference = report.difference();
        write!(
            out,
            ",{},{},{},{},{},{}",
            report.outcome.makespan.0,
            quoted(against.unwrap_or_default()),
            known(change.speed().map(|speed| format!("{speed:.6}"))),
            known(change.percent().map(|percent| format!("{percent:.4}"))),
            known(captured.map(|captured| captured.0.to_string())),
            known(difference.map(|percent| format!("{percent:.4}"))),
        )?;
        for (part, _) in &Part::ALL {
            let mean = report.mean(|time| time.parts[*part as usize]);
            write!(out, ",{}", mean.0)?;
        }
        let communicating = report.mean(|time| time.communicating).0;
        let waiting = report.exposed_waiting().0;
        write!(out, ",{communicating},{waiting}")?;
        if let Some(row) = fullest(&report.memory) {
            write!(out, ",{},{}", row.peak.0, row.capacity.0)?;
        }
        writeln!(out)?;
    }
    Ok(())
}
