//! `chakram validate`: every defect that is put into a sound job is found where it is, whatever a replay refuses
//! is unsound, and traces of other tools are what they are known to be.

mod broken;
mod chance;
mod inject;
mod known;
mod program;

use chakram::validate::{DefectKind, DefectLog};

/// All defects in short, for messages.
fn told(findings: &DefectLog) -> String {
    let kinds = DefectKind::all().filter(|&kind| findings.count(kind) > 0);
    let lines = kinds.map(|kind| {
        let first = findings.of_kind(kind).first();
        let first = first.map(|d| format!("{:?} {}: {}", d.rank, d.site, d.found));
        format!("{kind} x {}: {first:?}\n", findings.count(kind))
    });
    lines.collect()
}
