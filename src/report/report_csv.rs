//! Renders tables of a report as CSV, one table per call, with a header line.

use super::csv::{CsvColumn, CsvRows};
use super::{
    Report, collectives, cost, links, memory, modules, npus, operators, sensitivity, settings,
    steps, unknown,
};

/// The table to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReportCsvTable {
    /// Time of each NPU by category, and the end of its rank in the replay and in the capture.
    #[default]
    Npus,
    /// Collectives by group and kind.
    Collectives,
    /// Operators by name.
    Operators,
    /// Profiled steps of a captured job, with their time by category.
    Steps,
    /// Modules of a captured program, by path.
    Modules,
    /// Memory of NPUs: the peak in total and by tensor class, when and at which node it was reached, and bytes that
    /// were freed but never allocated.
    Memory,
    /// Bytes on links, and how long the links were busy.
    Links,
    /// Facts missing from the traces, and how the affected nodes were timed instead.
    Unknown,
    /// User settings that have no effect, each with the reason.
    Settings,
    /// The speedups that shorten the makespan most.
    Sensitivities,
    /// One row: tokens per second, cost, and the time and cost of processing a given number of tokens.
    Cost,
}

/// Renders one table of `report`, with times in integer picoseconds.
pub fn render_report_table(report: &Report, table: ReportCsvTable) -> String {
    render_table_of_reports(&[(None, report)], table)
}

/// Renders one table with the rows of several reports under a single header. If a report has a machine name, each of
/// its rows begins with that name.
pub(super) fn render_table_of_reports(
    reports: &[(Option<&str>, &Report)],
    table: ReportCsvTable,
) -> String {
    match table {
        ReportCsvTable::Npus => {
            let bounded = reports.iter().any(|(_, report)| report.lower_bound);
            let bound = bounded.then_some(npus::LOWER_BOUND);
            let columns: Vec<_> = npus::CSV.iter().copied().chain(bound).collect();
            render_report_rows(reports, &columns, |report| &report.rows)
        }
        ReportCsvTable::Collectives => {
            render_report_rows(reports, collectives::table::CSV, |report| {
                &report.collectives
            })
        }
        ReportCsvTable::Operators => {
            render_report_rows(reports, operators::table::CSV, |report| &report.operators)
        }
        ReportCsvTable::Steps => render_report_rows(reports, steps::CSV, |report| &report.steps),
        ReportCsvTable::Modules => {
            render_report_rows(reports, modules::CSV, |report| &report.modules)
        }
        ReportCsvTable::Memory => render_report_rows(reports, memory::CSV, |report| &report.memory),
        ReportCsvTable::Links => render_report_rows(reports, links::CSV, |report| {
            report.links.as_ref().map_or(&[], |links| &links.links[..])
        }),
        ReportCsvTable::Unknown => {
            render_report_rows(reports, unknown::CSV, |report| &report.unknown)
        }
        ReportCsvTable::Settings => render_report_rows(reports, settings::CSV, |report| {
            &report.settings.without_effect
        }),
        ReportCsvTable::Sensitivities => render_report_rows(reports, sensitivity::CSV, |report| {
            (report.sensitivities.as_ref()).map_or(&[], |found| &found.rows[..])
        }),
        ReportCsvTable::Cost => render_report_rows(reports, cost::CSV, std::slice::from_ref),
    }
}

fn render_report_rows<R: 'static>(
    reports: &[(Option<&str>, &Report)],
    columns: &[CsvColumn<Report, R>],
    of: fn(&Report) -> &[R],
) -> String {
    let named = reports.first().and_then(|(name, _)| *name);
    let mut rows = CsvRows::without_header();
    rows.add_header(named.map(|_| "machine"), columns);
    for (name, report) in reports {
        rows.add_rows(*name, columns, report, of(report));
    }
    rows.into_text()
}
