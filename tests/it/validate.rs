//! Tests `chakram validate`: every injected defect is found at its place, every job that a replay
//! rejects is unsound, and traces of other tools have exactly their known defects.

mod broken;
mod chance;
mod inject;
mod known;
mod program;

use chakram::validate::{DefectKind, DefectLog};

/// Returns all defects in short form, for assertion messages.
fn told(findings: &DefectLog) -> String {
    let kinds = DefectKind::iter_all().filter(|&kind| findings.count_of_kind(kind) > 0);
    let lines = kinds.map(|kind| {
        let first = findings.first_defects_of_kind(kind).first();
        let first = first.map(|d| format!("{:?} {}: {}", d.rank, d.site, d.found));
        format!("{kind} x {}: {first:?}\n", findings.count_of_kind(kind))
    });
    lines.collect()
}
