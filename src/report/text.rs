//! The report for people: at most 100 columns.

use super::breakdown::Part;
use super::collectives::table;
use super::memory;
use super::operators::Operator;
use super::summary::{NpuRow, Report, kind_label, percent_more, thousands};
use crate::ids::Rank;
use crate::trace::{escaped, family};
use crate::units::Span;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Rows of the tables of NPUs and operators; JSON and CSV have all.
const NPU_ROWS: usize = 16;
const OPERATOR_ROWS: usize = 10;
/// The widest line.
pub const WIDTH: usize = 100;

/// How headings and warnings stand out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// Heading.
    pub heading: anstyle::Style,
    /// Warning.
    pub warning: anstyle::Style,
}

impl Style {
    /// For terminals.
    pub fn coloured() -> Self {
        Self {
            heading: anstyle::Style::new().bold(),
            warning: anstyle::AnsiColor::Yellow.on_default(),
        }
    }
}

/// Renders `report` of a replay described by `title` and `basis`.
pub fn render(report: &Report, title: &str, basis: &str, style: Style) -> String {
    let mut out = String::new();
    write_all(&mut out, report, title, basis, style).expect("a string grows as needed");
    out
}

fn write_all(
    out: &mut String,
    report: &Report,
    title: &str,
    basis: &str,
    style: Style,
) -> std::fmt::Result {
    let outcome = &report.outcome;
    let h = style.heading;
    let present = report.rows.len();
    let head = format!(
        "{title}: {present} of {} ranks, {} nodes, all completed, on {} ({} NPUs)",
        report.ranks,
        thousands(outcome.nodes),
        report.machine,
        report.npus
    );
    writeln!(out, "{}", clip(&head, WIDTH))?;
    writeln!(out, "{h}MAKESPAN  {}{h:#}   {basis}", outcome.makespan)?;
    if let Some((captured, slowest)) = report.captured() {
        let more = match percent_more(outcome.makespan, captured) {
            Some(percent) => format!("; this replay {percent:+.2} %"),
            None => String::new(),
        };
        writeln!(out, "captured  {captured} (slowest rank {slowest}){more}")?;
    }
    if outcome.recorded > 0 {
        let recorded = thousands(outcome.recorded);
        writeln!(out, "          {recorded} collectives, as {}", report.comm)?;
    }
    let collectives = outcome.closed + outcome.stepwise;
    if collectives + outcome.messages > 0 {
        writeln!(
            out,
            "          {} collectives, {} by closed form and {} in messages; {} messages in all",
            thousands(collectives),
            thousands(outcome.closed),
            thousands(outcome.stepwise),
            thousands(outcome.messages)
        )?;
    }
    if !report.fits() {
        let w = style.warning;
        let large = thousands(report.too_large() as u64);
        writeln!(
            out,
            "{w}DOES NOT FIT  {large} of {present} ranks need more memory than their NPUs have{w:#}"
        )?;
    }
    parts(out, report, style)?;
    npus(out, report, style)?;
    finishes(out, report, style)?;
    memory::table(out, report, style)?;
    table::collectives(out, report, style)?;
    table::exposed(out, report, style)?;
    operators(out, report, style)?;
    let warnings = report.warnings();
    if !warnings.is_empty() {
        writeln!(out, "\n{h}WARNINGS{h:#}")?;
        for warning in warnings {
            wrapped(out, &warning, style.warning)?;
        }
    }
    Ok(())
}

fn parts(out: &mut String, report: &Report, style: Style) -> std::fmt::Result {
    let h = style.heading;
    let makespan = report.outcome.makespan;
    writeln!(
        out,
        "\n{h}{:<24}{:>14}{:>9}   {:<24}most{h:#}",
        "WHERE IT GOES", "mean of NPUs", "share", "least"
    )?;
    for (part, name) in &Part::ALL {
        let mean = report.mean(|time| time.parts[*part as usize]);
        let Some((least, most)) = report.extremes(*part) else {
            continue;
        };
        let time = |row: &NpuRow| row.time.parts[*part as usize];
        if time(most) == Span::ZERO {
            continue;
        }
        let bound = |row| format!("{} (rank {})", time(row), row.rank);
        let bounds = match time(least) == time(most) {
            true => "the same on all".to_owned(),
            false => format!("{:<24}{}", bound(least), bound(most)),
        };
        writeln!(
            out,
            "  {name:<22}{mean:>14}{:>9}   {bounds}",
            share(mean, makespan)
        )?;
    }
    writeln!(out, "  {:<22}{makespan:>14}{:>9}", "makespan", "100.0 %")?;
    let under_way = report.mean(|time| time.communicating);
    let exposed = report.mean(|time| time.parts[Part::Communication as usize]);
    if under_way > Span::ZERO {
        writeln!(
            out,
            "  communication was under way for {under_way} (mean), {} of it hidden behind compute",
            share(under_way - exposed, under_way)
        )?;
    }
    Ok(())
}

fn npus(out: &mut String, report: &Report, style: Style) -> std::fmt::Result {
    let h = style.heading;
    writeln!(
        out,
        "\n{h}{:<14}{:<12}{:>14}{:>16}{:>14}{:>14}{:>14}{h:#}",
        "RANKS", "NPU class", "compute", "exposed comm", "memory", "host", "idle"
    )?;
    // Neighbours that are alike share a line.
    let parts = |row: &NpuRow| (row.time.parts, row.time.communicating);
    let alike = |a: &NpuRow, b: &NpuRow| a.class == b.class && parts(a) == parts(b);
    let runs: Vec<_> = report.rows.chunk_by(alike).collect();
    for run in runs.iter().take(NPU_ROWS) {
        let (first, ranks) = (&run[0], ranks_of(run));
        let [compute, communication, memory, host, idle] = first.time.parts;
        writeln!(
            out,
            "  {ranks:<12}{:<12}{compute:>14}{communication:>16}{memory:>14}{host:>14}{idle:>14}",
            clip(&first.class, 11)
        )?;
    }
    more(out, runs.len(), NPU_ROWS, "npus")
}

/// The ranks of neighbouring rows: `3`, `0-7`, or `0 … 12 (4)` where some between have no trace.
fn ranks_of(run: &[NpuRow]) -> String {
    let ranks: Vec<_> = run.iter().map(|row| row.rank).collect();
    span_of(&ranks)
}

pub(super) fn span_of(run: &[Rank]) -> String {
    let (first, last) = (run[0], run[run.len() - 1]);
    match run.len() {
        1 => first.to_string(),
        n if last.0 - first.0 == n as u32 - 1 => format!("{first}-{last}"),
        n => format!("{first} … {last} ({n})"),
    }
}

/// When each rank finished, beside the capture, if any trace says when that ended.
fn finishes(out: &mut String, report: &Report, style: Style) -> std::fmt::Result {
    let h = style.heading;
    if report.rows.iter().all(|row| row.captured.is_none()) {
        return Ok(());
    }
    writeln!(
        out,
        "\n{h}{:<26}{:>14}{:>16}{:>14}{h:#}",
        "RANKS AND THEIR CAPTURES", "finish", "captured", "difference"
    )?;
    let times = |row: &NpuRow| (row.time.finish, row.captured);
    let alike = |a: &NpuRow, b: &NpuRow| times(a) == times(b);
    let runs: Vec<_> = report.rows.chunk_by(alike).collect();
    for run in runs.iter().take(NPU_ROWS) {
        let row = &run[0];
        let captured = row.captured.map(|captured| captured.to_string());
        let difference = row.difference().map(|percent| format!("{percent:+.2} %"));
        writeln!(
            out,
            "  {:<24}{:>14}{:>16}{:>14}",
            ranks_of(run),
            row.time.finish,
            captured.as_deref().unwrap_or("-"),
            difference.as_deref().unwrap_or("-")
        )?;
    }
    more(out, runs.len(), NPU_ROWS, "npus")
}

fn operators(out: &mut String, report: &Report, style: Style) -> std::fmt::Result {
    let h = style.heading;
    let all: Span = report.operators.iter().map(|o| o.total).sum();
    writeln!(
        out,
        "\n{h}{:<46}{:<14}{:>8}{:>12}{:>12}{:>8}{h:#}",
        "SLOWEST OPERATORS", "kind", "calls", "total", "mean", "share"
    )?;
    let families = families(&report.operators);
    for operator in families.iter().take(OPERATOR_ROWS) {
        let mean = Span(operator.total.0 / operator.calls.max(1));
        let name = match operator.name.as_str() {
            "" => "(no name)",
            name => name,
        };
        writeln!(
            out,
            "  {:<44}{:<14}{:>8}{:>12}{mean:>12}{:>8}",
            clip(name, 43),
            kind_label(operator.kind),
            thousands(operator.calls),
            operator.total,
            share(operator.total, all)
        )?;
    }
    more(out, families.len(), OPERATOR_ROWS, "operators")
}

/// Operators whose names differ only in numbers of steps or layers, together: `step*/layer*/norm`.
pub(super) fn families(operators: &[Operator]) -> Vec<Operator> {
    let mut by_family: BTreeMap<(String, u8), Operator> = BTreeMap::new();
    for operator in operators {
        let mut name = String::new();
        family(&operator.name, &mut name);
        let entry = by_family.entry((name.clone(), operator.kind as u8));
        let sum = entry.or_insert_with(|| Operator {
            name,
            kind: operator.kind,
            calls: 0,
            total: Span::ZERO,
        });
        sum.calls += operator.calls;
        sum.total += operator.total;
    }
    let mut families: Vec<_> = by_family.into_values().collect();
    families.sort_by_key(|family| std::cmp::Reverse(family.total));
    families
}

pub(super) fn more(out: &mut String, rows: usize, shown: usize, table: &str) -> std::fmt::Result {
    if rows > shown {
        writeln!(
            out,
            "  … {} more: --format csv --table {table}",
            thousands((rows - shown) as u64)
        )?;
    }
    Ok(())
}

/// `31.1 %`.
pub fn share(part: Span, whole: Span) -> String {
    if whole == Span::ZERO {
        return "-".to_owned();
    }
    format!("{:.1} %", 100.0 * part.0 as f64 / whole.0 as f64)
}

/// `text` in at most `width` columns; control characters are shown as spaces.
pub fn clip(text: &str, width: usize) -> String {
    let text = escaped(text);
    if text.chars().count() <= width {
        return text.into_owned();
    }
    let mut short: String = text.chars().take(width - 1).collect();
    short.push('…');
    short
}

/// A warning, indented and broken at spaces.
fn wrapped(out: &mut String, text: &str, style: anstyle::Style) -> std::fmt::Result {
    paragraph(out, text, "  ! ", 4, style)
}

/// `text` after `lead`, broken at spaces; further lines are indented.
pub fn paragraph(
    out: &mut String,
    text: &str,
    lead: &str,
    indent: usize,
    style: anstyle::Style,
) -> std::fmt::Result {
    let mut line = String::from(lead);
    let mut used = lead.chars().count();
    for word in text.split(' ') {
        let length = word.chars().count();
        if used + length > WIDTH {
            writeln!(out, "{style}{}{style:#}", line.trim_end())?;
            line = " ".repeat(indent);
            used = indent;
        }
        line.push_str(word);
        line.push(' ');
        used += length + 1;
    }
    writeln!(out, "{style}{}{style:#}", line.trim_end())
}
