//! Tests `chakram validate`: it finds every injected defect at its place, finds every job unsound that a replay
//! rejects, and finds exactly the known defects in other tools' traces.

mod broken;
mod chance;
mod inject;
mod known;
mod program;

use chakram::validate::{DefectKind, DefectLog};

/// Returns all defects in short form, for assertion messages.
fn format_defects(findings: &DefectLog) -> String {
    let kinds = DefectKind::iter_all().filter(|&kind| findings.count_of_kind(kind) > 0);
    let lines = kinds.map(|kind| {
        let first = findings.first_defects_of_kind(kind).first();
        let first = first.map(|d| format!("{:?} {}: {}", d.rank, d.site, d.found));
        format!("{kind} x {}: {first:?}\n", findings.count_of_kind(kind))
    });
    lines.collect()
}
