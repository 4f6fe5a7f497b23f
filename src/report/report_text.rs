//! Renders a report as text.

use super::head::{self, HeadLine, HeadingOrWarningLineLayout};
use super::section::ReportTextDetailsOrPage;
use super::text::{TextStyleWidthAndDetail, write_paragraph};
use super::{Report, critical_path, npus, sensitivity, tables};
use chakram_base::setting::SettingKey;
use std::fmt::Write as _;

/// Maximum number of lines in a report without details. A report with many warnings may be longer.
const LINES: usize = 58;

/// Renders `report`. `title` names the replay, and `basis` describes how durations were determined.
pub fn render_text(
    report: &Report,
    title: &str,
    basis: &str,
    style: TextStyleWidthAndDetail,
) -> String {
    let mut out = String::new();
    write_report(&mut out, report, title, basis, style).expect("a string grows as needed");
    out
}

fn write_report(
    out: &mut String,
    report: &Report,
    title: &str,
    basis: &str,
    style: TextStyleWidthAndDetail,
) -> std::fmt::Result {
    let h = style.heading;
    let head = format!("{title}: {}", head::format_scope(report));
    writeln!(out, "{}", style.clip_line(&head, 0))?;
    for line in head::build_head_lines(report, basis) {
        write_head_line(out, &line, style)?;
    }
    report.settings.write_notes(out, style)?;
    let medium = ReportTextDetailsOrPage::medium_of_text_style(style);
    for section in npus::build_mean_npu_time_breakdown_sections(report) {
        section.write_text(out, style)?;
    }
    let mut sections = Vec::new();
    for group in tables::build_grouped_tables(report, medium) {
        let mut text = String::new();
        for section in group {
            section.write_text(&mut text, style)?;
        }
        sections.push(text);
    }
    let mut end = String::new();
    let path = critical_path::build_path_sections(report, medium).into_iter();
    for section in path.chain(sensitivity::build_sensitivity_sections(report, medium)) {
        section.write_text(&mut end, style)?;
    }
    if !report.warnings.is_empty() {
        writeln!(end, "\n{h}WARNINGS{h:#}")?;
        for warning in &report.warnings {
            write_wrapped_warning(&mut end, warning, style.warning)?;
        }
    }
    if !style.details {
        let taken = out.lines().count() + end.lines().count();
        shorten_sections(&mut sections, LINES.saturating_sub(taken));
    }
    sections.iter().for_each(|section| out.push_str(section));
    out.push_str(&end);
    Ok(())
}

/// Shortens the longest `sections` until they have at most `lines` lines in total. Each section keeps at least four
/// lines. A shortened section ends with a note about the omitted lines.
fn shorten_sections(sections: &mut [String], lines: usize) {
    let counts: Vec<_> = sections
        .iter()
        .map(|section| section.lines().count())
        .collect();
    let fits = |most: &usize| counts.iter().map(|count| count.min(most)).sum::<usize>() <= lines;
    let longest = counts.iter().copied().max().unwrap_or(0);
    let most = (4..=longest).rev().find(fits).unwrap_or(4);
    for (section, count) in sections.iter_mut().zip(counts) {
        if count > most {
            let mut short: String = section.split_inclusive('\n').take(most - 1).collect();
            let left = count - (most - 1);
            writeln!(short, "  … {left} more lines: {}", SettingKey::Details)
                .expect("a string grows as needed");
            *section = short;
        }
    }
}

/// Writes one line of the head; the label is at least ten columns wide.
fn write_head_line(
    out: &mut String,
    line: &HeadLine,
    style: TextStyleWidthAndDetail,
) -> std::fmt::Result {
    let lead = match line.lead.len() {
        0..10 => format!("{:<10}", line.lead),
        _ => format!("{}  ", line.lead),
    };
    let mark = match line.style {
        HeadingOrWarningLineLayout::Heading => style.heading,
        HeadingOrWarningLineLayout::Line | HeadingOrWarningLineLayout::Wrapped => {
            anstyle::Style::new()
        }
        HeadingOrWarningLineLayout::Warning | HeadingOrWarningLineLayout::WrappedWarning => {
            style.warning
        }
    };
    let HeadLine { text, rest, .. } = line;
    match line.style {
        HeadingOrWarningLineLayout::Wrapped | HeadingOrWarningLineLayout::WrappedWarning => {
            write_paragraph(out, text, &lead, 10, mark)
        }
        _ if rest.is_empty() => writeln!(out, "{mark}{lead}{text}{mark:#}"),
        _ => writeln!(out, "{mark}{lead}{text}{mark:#}   {rest}"),
    }
}

/// Writes a warning, wrapped at spaces and indented.
fn write_wrapped_warning(out: &mut String, text: &str, style: anstyle::Style) -> std::fmt::Result {
    write_paragraph(out, text, "  ! ", 4, style)
}
