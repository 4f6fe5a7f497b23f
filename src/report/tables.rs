//! The tables of a report, in order.

use super::collectives::table;
use super::section::{ReportMedium, ReportSection};
use super::{
    Report, launched, links, memory, memory_accesses, modules, npus, operators, steps, tiles,
};

/// Returns the tables between the breakdown and the critical path, in groups that a text shortens together.
pub(crate) fn groups(
    report: &Report,
    medium: ReportMedium,
) -> impl Iterator<Item = Vec<ReportSection>> {
    let all: [fn(&Report, ReportMedium) -> Vec<ReportSection>; 12] = [
        launched::sections,
        steps::sections,
        npus::sections,
        npus::finishes,
        memory::sections,
        table::sections,
        links::sections,
        table::exposed,
        tiles::sections,
        memory_accesses::sections,
        modules::sections,
        operators::table::sections,
    ];
    all.into_iter()
        .map(move |sections| sections(report, medium))
}
