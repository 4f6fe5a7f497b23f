//! Renders a validation report as text: the ranks, the defects by kind (errors first), and the verdict.

use super::defects::{Defect, DefectCountsBySeverity};
use super::kind::{DefectKind, Severity};
use super::{ValidatedTraceFile, ValidationReport};
use chakram_base::units::{format_count_with_noun, format_thousands};
use std::fmt::{self, Write};

/// Text styles of a validation report.
#[derive(Clone, Copy, Debug, Default)]
pub struct ValidationTextStyles {
    /// Style of the words for errors.
    pub error: anstyle::Style,
    /// Style of the word for warnings.
    pub warning: anstyle::Style,
    /// Style of headings, which name kinds of defects.
    pub heading: anstyle::Style,
}

impl ValidationTextStyles {
    /// Returns the styles for a terminal with colours.
    pub fn create_coloured_styles() -> Self {
        Self {
            error: anstyle::AnsiColor::Red.on_default().bold(),
            warning: anstyle::AnsiColor::Yellow.on_default(),
            heading: anstyle::Style::new().bold(),
        }
    }

    fn style_of_severity(&self, severity: Severity) -> anstyle::Style {
        match severity {
            Severity::Error => self.error,
            Severity::Warning => self.warning,
            Severity::Note => anstyle::Style::new(),
        }
    }
}

/// Maximum number of ranks for which every rank has a line. In a larger job, only ranks with errors or warnings have a
/// line.
const LINES: usize = 16;

/// Renders `report` as text.
pub fn render_text(report: &ValidationReport<'_>, style: ValidationTextStyles) -> String {
    let mut out = String::new();
    write_validation_report(&mut out, report, style).expect("a string grows as needed");
    out
}

fn write_validation_report(
    out: &mut String,
    report: &ValidationReport<'_>,
    style: ValidationTextStyles,
) -> fmt::Result {
    write_rank_summary_lines(out, report)?;
    for kind in DefectKind::iter_all() {
        let count = report.findings.count_of_kind(kind);
        if count == 0 {
            continue;
        }
        let (heading, word) = (style.heading, style.style_of_severity(kind.severity()));
        writeln!(
            out,
            "\n{word}{}{word:#} {heading}{kind}{heading:#}: {} x {}",
            kind.severity(),
            format_thousands(count),
            kind.explain_meaning()
        )?;
        // Omit the locations and remedies of notes, which appear only in the JSON report.
        if kind.severity() == Severity::Note {
            continue;
        }
        let kept = report.findings.first_defects_of_kind(kind);
        for defect in kept {
            write_defect(out, defect)?;
        }
        let more = count - kept.len() as u64;
        // The only stored defect of this kind names all missing ranks, so the line needs no count.
        if more > 0 && kind != DefectKind::MissingRank {
            writeln!(out, "  … {} more", format_thousands(more))?;
        }
        writeln!(out, "  try: {}", kind.hint())?;
    }
    let (word, verdict) = if report.has_no_errors_or_strict_warnings() {
        (anstyle::Style::new(), "sound")
    } else {
        (style.error, "unsound")
    };
    let tally = format_defect_counts(report.findings.count_by_severity());
    writeln!(out, "\nverdict: {word}{verdict}{word:#}, {tally}")
}

fn write_rank_summary_lines(out: &mut String, report: &ValidationReport<'_>) -> fmt::Result {
    let of = |source: &ValidatedTraceFile<'_>| {
        report
            .findings
            .count_defects_of_rank_by_severity(source.rank)
    };
    let all = report.sources.len() <= LINES;
    let bad = |source: &&ValidatedTraceFile<'_>| {
        let tally = of(source);
        all || tally.errors + tally.warnings > 0
    };
    for source in report.sources.iter().filter(bad).take(LINES) {
        let (nodes, edges) = (source.trace.node_count(), source.trace.edge_count());
        let tally = format_defect_counts(of(source));
        writeln!(
            out,
            "rank {}: {}, {}, {tally} ({})",
            source.rank,
            format_count_with_noun(nodes, "node"),
            format_dependency_count(edges),
            source.file
        )?;
    }
    let edges: u64 = report.sources.iter().map(|s| s.trace.edge_count()).sum();
    writeln!(
        out,
        "total: {}, {}, {}",
        format_count_with_noun(report.sources.len() as u64, "trace"),
        format_count_with_noun(report.node_count(), "node"),
        format_dependency_count(edges)
    )
}

fn format_dependency_count(count: u64) -> String {
    let ending = if count == 1 { "y" } else { "ies" };
    format!("{} dependenc{ending}", format_thousands(count))
}

fn write_defect(out: &mut String, defect: &Defect) -> fmt::Result {
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

/// Formats numbers of defects as `2 errors, 1 warning`, or says that there are none.
pub(super) fn format_defect_counts(tally: DefectCountsBySeverity) -> String {
    let parts = [
        (tally.errors, "error"),
        (tally.warnings, "warning"),
        (tally.notes, "note"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<_> = parts
        .map(|&(count, word)| format_count_with_noun(count, word))
        .collect();
    if parts.is_empty() {
        "no defects".to_owned()
    } else {
        parts.join(", ")
    }
}
