//! Renders the report as text: the ranks, then the defects by kind (errors first), then the verdict.

use super::defects::{Defect, DefectCounts};
use super::kind::{DefectKind, Severity};
use super::{ReportedTrace, ValidationReport};
use chakram_base::units::{counted, thousands};
use std::fmt::{self, Write};

/// Text styles of a report.
#[derive(Clone, Copy, Debug, Default)]
pub struct ValidationStyle {
    /// Errors.
    pub error: anstyle::Style,
    /// Warnings.
    pub warning: anstyle::Style,
    /// Names of kinds.
    pub heading: anstyle::Style,
}

impl ValidationStyle {
    /// Returns the styles for terminals.
    pub fn coloured() -> Self {
        Self {
            error: anstyle::AnsiColor::Red.on_default().bold(),
            warning: anstyle::AnsiColor::Yellow.on_default(),
            heading: anstyle::Style::new().bold(),
        }
    }

    fn of(&self, severity: Severity) -> anstyle::Style {
        match severity {
            Severity::Error => self.error,
            Severity::Warning => self.warning,
            Severity::Note => anstyle::Style::new(),
        }
    }
}

/// Maximum number of ranks for which every rank has its own line. In larger jobs, only ranks with errors or warnings
/// have a line.
const LINES: usize = 16;

/// Renders `report`.
pub fn render(report: &ValidationReport<'_>, style: ValidationStyle) -> String {
    let mut out = String::new();
    write_all(&mut out, report, style).expect("a string grows as needed");
    out
}

fn write_all(
    out: &mut String,
    report: &ValidationReport<'_>,
    style: ValidationStyle,
) -> fmt::Result {
    ranks(out, report)?;
    for kind in DefectKind::all() {
        let count = report.findings.count(kind);
        if count == 0 {
            continue;
        }
        let (heading, word) = (style.heading, style.of(kind.severity()));
        writeln!(
            out,
            "\n{word}{}{word:#} {heading}{kind}{heading:#}: {} x {}",
            kind.severity(),
            thousands(count),
            kind.meaning()
        )?;
        // The text omits the locations and remedies of notes; the JSON form has them.
        if kind.severity() == Severity::Note {
            continue;
        }
        let kept = report.findings.of_kind(kind);
        for defect in kept {
            line(out, defect)?;
        }
        let more = count - kept.len() as u64;
        // The single defect of this kind names all missing ranks.
        if more > 0 && kind != DefectKind::MissingRank {
            writeln!(out, "  … {} more", thousands(more))?;
        }
        writeln!(out, "  try: {}", kind.hint())?;
    }
    let (word, verdict) = if report.is_sound() {
        (anstyle::Style::new(), "sound")
    } else {
        (style.error, "unsound")
    };
    let tally = said(report.findings.tally());
    writeln!(out, "\nverdict: {word}{verdict}{word:#}, {tally}")
}

fn ranks(out: &mut String, report: &ValidationReport<'_>) -> fmt::Result {
    let of = |source: &ReportedTrace<'_>| report.findings.of_rank(source.rank);
    let all = report.sources.len() <= LINES;
    let bad = |source: &&ReportedTrace<'_>| {
        let tally = of(source);
        all || tally.errors + tally.warnings > 0
    };
    for source in report.sources.iter().filter(bad).take(LINES) {
        let (nodes, edges) = (source.trace.nodes(), source.trace.edges());
        let tally = said(of(source));
        writeln!(
            out,
            "rank {}: {}, {}, {tally} ({})",
            source.rank,
            counted(nodes, "node"),
            dependencies(edges),
            source.file
        )?;
    }
    let edges: u64 = report.sources.iter().map(|s| s.trace.edges()).sum();
    writeln!(
        out,
        "total: {}, {}, {}",
        counted(report.sources.len() as u64, "trace"),
        counted(report.nodes(), "node"),
        dependencies(edges)
    )
}

fn dependencies(count: u64) -> String {
    let ending = if count == 1 { "y" } else { "ies" };
    format!("{} dependenc{ending}", thousands(count))
}

fn line(out: &mut String, defect: &Defect) -> fmt::Result {
    out.push_str("  ");
    let site = defect.site.to_string();
    match (defect.rank, site.is_empty()) {
        (Some(rank), true) => write!(out, "rank {rank}: ")?,
        (Some(rank), false) => write!(out, "rank {rank}, {site}: ")?,
        (None, true) => {}
        (None, false) => write!(out, "{site}: ")?,
    }
    writeln!(out, "{}", defect.found)?;
    match &defect.hint {
        Some(hint) => writeln!(out, "    try: {hint}"),
        None => Ok(()),
    }
}

/// Formats counts as `2 errors, 1 warning`, or states that there are no defects.
pub(super) fn said(tally: DefectCounts) -> String {
    let parts = [
        (tally.errors, "error"),
        (tally.warnings, "warning"),
        (tally.notes, "note"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<_> = parts.map(|&(count, word)| counted(count, word)).collect();
    if parts.is_empty() {
        "no defects".to_owned()
    } else {
        parts.join(", ")
    }
}
