//! The report for people: at most 100 columns.

use super::breakdown::TimeCategory;
use super::collectives::table;
use super::npus::{self, NpuRow};
use super::summary::{Report, percent_more, thousands};
use super::table::{TextTable, left, right};
use super::{memory, operators};
use crate::trace::escaped;
use crate::units::Span;
use std::fmt::Write as _;

/// The widest line.
pub const WIDTH: usize = 100;

/// Styles of headings and warnings.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextStyle {
    /// Heading.
    pub heading: anstyle::Style,
    /// Warning.
    pub warning: anstyle::Style,
}

impl TextStyle {
    /// For terminals.
    pub fn coloured() -> Self {
        Self {
            heading: anstyle::Style::new().bold(),
            warning: anstyle::AnsiColor::Yellow.on_default(),
        }
    }
}

/// Renders `report` of a replay described by `title` and `basis`.
pub fn render(report: &Report, title: &str, basis: &str, style: TextStyle) -> String {
    let mut out = String::new();
    write_all(&mut out, report, title, basis, style).expect("a string grows as needed");
    out
}

fn write_all(
    out: &mut String,
    report: &Report,
    title: &str,
    basis: &str,
    style: TextStyle,
) -> std::fmt::Result {
    let outcome = &report.outcome;
    let h = style.heading;
    let present = report.rows.len();
    let head = format!(
        "{title}: {present} of {} ranks, {} nodes, all completed, on {} ({} NPUs)",
        report.ranks,
        thousands(outcome.nodes),
        report.machine.name,
        report.machine.npus
    );
    writeln!(out, "{}", clip(&head, WIDTH))?;
    writeln!(out, "{h}MAKESPAN  {}{h:#}   {basis}", outcome.makespan)?;
    if let Some((captured, slowest)) = report.last_captured() {
        let more = match percent_more(outcome.makespan, captured) {
            Some(percent) => format!("; this replay {percent:+.2} %"),
            None => String::new(),
        };
        writeln!(out, "captured  {captured} (slowest rank {slowest}){more}")?;
    }
    if let Some((heading, text)) = report.host_bound() {
        let lead = format!("{heading}  ");
        paragraph(out, &text, &lead, 10, style.warning)?;
    }
    if outcome.recorded > 0 {
        let recorded = thousands(outcome.recorded);
        let how = report.communication.lasts_as;
        writeln!(out, "          {recorded} collectives, as {how}")?;
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
    npus::table(out, report, style)?;
    npus::finishes(out, report, style)?;
    memory::table(out, report, style)?;
    table::collectives(out, report, style)?;
    table::exposed(out, report, style)?;
    operators::table::table(out, report, style)?;
    if !report.warnings.is_empty() {
        writeln!(out, "\n{h}WARNINGS{h:#}")?;
        for warning in &report.warnings {
            wrapped(out, warning, style.warning)?;
        }
    }
    Ok(())
}

fn parts(out: &mut String, report: &Report, style: TextStyle) -> std::fmt::Result {
    let makespan = report.outcome.makespan;
    let table = TextTable::new([
        left("WHERE IT GOES", 24),
        right("mean of NPUs", 14),
        right("share", 9),
        left("least", 24).after(3),
        left("most", 0),
    ]);
    table.heading(out, style)?;
    for (part, name) in &TimeCategory::ALL {
        let mean = report.mean_parts[*part as usize];
        let Some((least, most)) = report.extremes(*part) else {
            continue;
        };
        let time = |row: &NpuRow| row.time.parts[*part as usize];
        if time(most) == Span::ZERO {
            continue;
        }
        let bound = |row| format!("{} (rank {})", time(row), row.rank);
        let (least, most) = if time(least) == time(most) {
            ("the same on all".to_owned(), String::new())
        } else {
            (bound(least), bound(most))
        };
        table.row(out, &[name, &mean, &share(mean, makespan), &least, &most])?;
    }
    table.row(out, &[&"makespan", &makespan, &"100.0 %"])?;
    let under_way = report.mean_communicating;
    let exposed = report.mean_parts[TimeCategory::Communication as usize];
    if under_way > Span::ZERO {
        writeln!(
            out,
            "  communication was under way for {under_way} (mean), {} of it hidden behind compute",
            share(under_way - exposed, under_way)
        )?;
    }
    Ok(())
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
