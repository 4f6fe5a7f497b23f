//! The tables of a report, in order of display.

use super::collectives::table;
use super::section::{ReportTableWithNotes, ReportTextDetailsOrPage};
use super::{
    Report, launched, links, memory, memory_accesses, modules, npus, operators, steps, tiles,
};

/// Returns the tables between the breakdown and the critical path, in groups. The text report shortens the tables of a
/// group together.
pub(crate) fn build_grouped_tables(
    report: &Report,
    medium: ReportTextDetailsOrPage,
) -> impl Iterator<Item = Vec<ReportTableWithNotes>> {
    let all: [fn(&Report, ReportTextDetailsOrPage) -> Vec<ReportTableWithNotes>; 12] = [
        launched::build_launch_starts_and_ends_table,
        steps::build_step_sections,
        npus::build_npu_sections,
        npus::build_finish_against_capture_sections,
        memory::build_memory_sections,
        table::build_collective_sections,
        links::build_link_sections,
        table::build_exposed_sections,
        tiles::build_link_and_port_busy_sections,
        memory_accesses::build_memory_access_sections,
        modules::build_module_sections,
        operators::table::build_operator_sections,
    ];
    all.into_iter()
        .map(move |sections| sections(report, medium))
}
