//! The report's tables as comma-separated values, one table at a time, with a header line.

use super::csv::{CsvColumn, CsvRows};
use super::{
    Report, collectives, cost, links, memory, modules, npus, operators, sensitivity, settings,
    steps, unknown,
};

/// Choice of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CsvTable {
    /// Breakdown of the time of each NPU, the finish of its rank, and that in the capture.
    #[default]
    Npus,
    /// Collectives by group and kind.
    Collectives,
    /// Operators by name.
    Operators,
    /// Profiled steps of a captured job, and where their time went.
    Steps,
    /// Modules of a captured program, by their path.
    Modules,
    /// The memory of NPUs: the peak, by class, when and at which node, and what was freed without being there.
    Memory,
    /// Bytes over links.
    Links,
    /// Facts that the traces leave unsaid, and how their nodes were timed.
    Unknown,
    /// Settings that were given and change nothing, with the reason.
    Settings,
    /// What would help most.
    Sensitivities,
    /// Tokens per second, money, and a run of a stated number of tokens, in one row.
    Cost,
}

/// Renders one table of `report`; times are in whole picoseconds.
pub fn render(report: &Report, table: CsvTable) -> String {
    of_reports(&[(None, report)], table)
}

/// Renders one table of reports with one header, each with the name of its machine in front if it has one.
pub(super) fn of_reports(reports: &[(Option<&str>, &Report)], table: CsvTable) -> String {
    match table {
        CsvTable::Npus => {
            let bounded = reports.iter().any(|(_, report)| report.lower_bound);
            let bound = bounded.then_some(npus::LOWER_BOUND);
            let columns: Vec<_> = npus::CSV.iter().copied().chain(bound).collect();
            each(reports, &columns, |report| &report.rows)
        }
        CsvTable::Collectives => each(reports, collectives::table::CSV, |report| {
            &report.collectives
        }),
        CsvTable::Operators => each(reports, operators::table::CSV, |report| &report.operators),
        CsvTable::Steps => each(reports, steps::CSV, |report| &report.steps),
        CsvTable::Modules => each(reports, modules::CSV, |report| &report.modules),
        CsvTable::Memory => each(reports, memory::CSV, |report| &report.memory),
        CsvTable::Links => each(reports, links::CSV, |report| {
            report.links.as_ref().map_or(&[], |links| &links.links[..])
        }),
        CsvTable::Unknown => each(reports, unknown::CSV, |report| &report.unknown),
        CsvTable::Settings => each(reports, settings::CSV, |report| {
            &report.settings.without_effect
        }),
        CsvTable::Sensitivities => each(reports, sensitivity::CSV, |report| {
            (report.sensitivities.as_ref()).map_or(&[], |found| &found.rows[..])
        }),
        CsvTable::Cost => each(reports, cost::CSV, std::slice::from_ref),
    }
}

fn each<R: 'static>(
    reports: &[(Option<&str>, &Report)],
    columns: &[CsvColumn<Report, R>],
    of: fn(&Report) -> &[R],
) -> String {
    let named = reports.first().and_then(|(name, _)| *name);
    let mut rows = CsvRows::empty();
    rows.header(named.map(|_| "machine"), columns);
    for (name, report) in reports {
        rows.columns(*name, columns, report, of(report));
    }
    rows.text()
}
