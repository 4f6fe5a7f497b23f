//! Renders the comparison as CSV: one row per machine.

use super::{ComparedMachineResult, MachineComparison};
use crate::NpuTimeCategory;
use crate::Report;
use crate::cost;
use crate::csv::{CsvCell, CsvColumn, CsvRows, decimal_cell};
use crate::memory::find_rank_with_highest_filled_share;
use crate::report_csv::{ReportCsvTable, render_table_of_reports};
use chakram_engine::ReplayError;

/// Renders the comparison. With `table`, renders that table of every report instead, with the machine's name in the
/// first column.
pub fn render_csv(comparison: &MachineComparison<'_>, table: Option<ReportCsvTable>) -> String {
    match table {
        None => {
            let mut reports = comparison.replayed_columns();
            let is_priced =
                reports.any(|(_, report)| report.cost.is_some() || report.run.is_some());
            let columns = machine_columns(comparison.has_memory_rows(), is_priced);
            let mut rows = CsvRows::without_header();
            rows.add_header(None, &columns);
            rows.add_rows(None, &columns, comparison, &comparison.columns);
            rows.into_text()
        }
        Some(table) => {
            let reports = comparison.replayed_columns();
            let reports = reports.map(|(column, report)| (Some(&*column.name), report));
            render_table_of_reports(&reports.collect::<Vec<_>>(), table)
        }
    }
}

/// Returns the status of a replay as a machine-readable word.
pub(super) fn status_word(column: &ComparedMachineResult<'_>) -> &'static str {
    match &column.result {
        Ok(_) => "completed",
        Err(ReplayError::Refused(_)) => "refused",
        Err(ReplayError::Stuck(_)) => "deadlocked",
        Err(ReplayError::TooLong) => "too long",
        Err(ReplayError::Interrupted(_)) => "interrupted",
    }
}

type ComparisonColumn<'a> = CsvColumn<MachineComparison<'a>, ComparedMachineResult<'a>>;

/// Returns the columns for a machine; `remembers` adds memory columns, and `is_priced` adds cost columns.
fn machine_columns<'a>(remembers: bool, is_priced: bool) -> Vec<ComparisonColumn<'a>> {
    let mut columns: Vec<ComparisonColumn<'a>> = vec![
        ("machine", |_, column| column.name.as_str().into()),
        ("npus", |_, column| {
            column.machine.topology().npu_count().into()
        }),
        ("status", |_, column| status_word(column).into()),
        ("makespan_ps", |_, column| {
            report_field(column, |report| report.outcome.makespan.into())
        }),
        ("baseline", |comparison, column| {
            let against = comparison.reference_machine();
            let name = against.map(|(first, _)| first.name.as_str());
            report_field(column, |_| name.into())
        }),
        ("speedup", |comparison, column| {
            report_field(column, |report| {
                decimal_cell(comparison.compare_makespan_with(report).speedup(), 6)
            })
        }),
        ("change_percent", |comparison, column| {
            report_field(column, |report| {
                decimal_cell(
                    comparison.compare_makespan_with(report).percent_increase(),
                    4,
                )
            })
        }),
        ("captured_ps", |_, column| {
            report_field(column, |report| report.captured.into())
        }),
        ("difference_percent", |_, column| {
            report_field(column, |report| {
                decimal_cell(report.captured_difference_percent(), 4)
            })
        }),
        ("compute_ps", |_, column| {
            category_cell(column, NpuTimeCategory::Compute)
        }),
        ("communication_ps", |_, column| {
            category_cell(column, NpuTimeCategory::Communication)
        }),
        ("memory_ps", |_, column| {
            category_cell(column, NpuTimeCategory::Memory)
        }),
        ("host_ps", |_, column| {
            category_cell(column, NpuTimeCategory::Host)
        }),
        ("idle_ps", |_, column| {
            category_cell(column, NpuTimeCategory::Idle)
        }),
        ("communicating_ps", |_, column| {
            report_field(column, |report| report.mean_communicating.into())
        }),
        ("exposed_waiting_ps", |_, column| {
            report_field(column, |report| {
                report.mean_exposed_waiting_with_bubble().into()
            })
        }),
        ("bubble_ps", |_, column| {
            category_cell(column, NpuTimeCategory::Bubble)
        }),
    ];
    let memory: [ComparisonColumn<'a>; 2] = [
        ("peak_memory_bytes", |_, column| {
            report_field(column, |report| {
                find_rank_with_highest_filled_share(&report.memory)
                    .map(|row| row.peak.0)
                    .into()
            })
        }),
        ("memory_capacity_bytes", |_, column| {
            report_field(column, |report| {
                find_rank_with_highest_filled_share(&report.memory)
                    .and_then(|row| row.capacity)
                    .map(|bytes| bytes.0)
                    .into()
            })
        }),
    ];
    let costs: [ComparisonColumn<'a>; 9] = [
        ("tokens_per_s", |_, column| {
            report_field(column, |report| cost::CSV[0].1(report, report))
        }),
        ("dollars_per_npu_hour", |_, column| {
            report_field(column, |report| cost::CSV[1].1(report, report))
        }),
        ("dollars", |_, column| {
            report_field(column, |report| cost::CSV[2].1(report, report))
        }),
        ("dollars_per_million_tokens", |_, column| {
            report_field(column, |report| cost::CSV[3].1(report, report))
        }),
        ("run_tokens", |_, column| {
            report_field(column, |report| cost::CSV[4].1(report, report))
        }),
        ("run_days", |_, column| {
            report_field(column, |report| cost::CSV[5].1(report, report))
        }),
        ("run_npu_hours", |_, column| {
            report_field(column, |report| cost::CSV[6].1(report, report))
        }),
        ("run_dollars", |_, column| {
            report_field(column, |report| cost::CSV[7].1(report, report))
        }),
        ("run_kernel_energy_j", |_, column| {
            report_field(column, |report| cost::CSV[8].1(report, report))
        }),
    ];
    if remembers {
        columns.extend(memory);
    }
    if is_priced {
        columns.extend(costs);
    }
    columns
}

/// Returns the value of a report's field. The value is empty if there is no report.
fn report_field<'r>(
    column: &'r ComparedMachineResult<'_>,
    field: impl FnOnce(&'r Report) -> CsvCell<'r>,
) -> CsvCell<'r> {
    column.result.as_ref().map_or(CsvCell::Empty, field)
}

fn category_cell<'r>(column: &'r ComparedMachineResult<'_>, part: NpuTimeCategory) -> CsvCell<'r> {
    report_field(column, |report| report.mean_parts[part as usize].into())
}
