//! Renders the comparison as an HTML page: the machines side by side, the changes, and each machine's report with its
//! warnings.

use super::text::{
    WHY, build_rows_with_cell_per_machine, explain_differences_from_first_machine,
    explain_exposed_communication_and_bubble, failure_lines, format_captured_end_and_slowest_rank,
    format_scope, machine_lines, warning_lines,
};
use super::{ComparedMachineResult, MachineComparison};
use crate::Report;
use crate::html::page::{
    escape_html, render_list, render_number_with_json_pointer, render_page_with_tables,
    render_section_unless_empty, render_table_of_escaped_cells,
};
use crate::html::{chapters_with_content, render_head_facts_and_warnings, render_time_bars};
use chakram_base::units::Span;

/// Renders `comparison`. `basis` describes how durations were determined; `notes` are additional sentences.
pub fn render_html(comparison: &MachineComparison<'_>, basis: &str, notes: &[String]) -> String {
    let mut body = format!(
        "<h1>{}</h1><p class=\"sub\">{}</p><p class=\"sub\">{}</p>",
        escape_html(comparison.title),
        escape_html(&format_scope(comparison)),
        escape_html(basis)
    );
    if let Some(line) = format_captured_end_and_slowest_rank(comparison) {
        body += &format!("<p class=\"sub\">{}</p>", escape_html(&line));
    }
    let columns = || comparison.columns.iter().enumerate();
    let tiles: String = columns()
        .map(|(at, column)| render_machine_tile(comparison, at, column))
        .collect();
    body += &format!("<div class=\"tiles\">{tiles}</div>");
    let warnings = notes.iter().cloned().chain(warning_lines(comparison));
    body +=
        &render_section_unless_empty("Warnings", "warnings", &render_list(warnings, "warnings"));
    let failures = failure_lines(comparison).into_iter();
    body += &render_section_unless_empty(
        "Not completed",
        "failed",
        &render_list(failures, "warnings"),
    );
    let bars = comparison
        .replayed_columns()
        .map(|(column, report)| (&*column.name, report.mean_parts));
    let bars: Vec<_> = bars.collect();
    let names = comparison
        .columns
        .iter()
        .map(|column| escape_html(&column.name));
    let heads: Vec<String> = std::iter::once("mean of NPUs".to_owned())
        .chain(names)
        .collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let rows = build_rows_with_cell_per_machine(comparison)
        .into_iter()
        .map(|(name, cells)| {
            let name = name.replace("  ", "\u{2003}");
            std::iter::once(name)
                .chain(cells)
                .map(|cell| escape_html(&cell))
                .collect()
        });
    let side_by_side = render_time_bars("Time by category on each machine", &bars)
        + &render_table_of_escaped_cells(&heads, &rows.collect::<Vec<_>>())
        + &render_table_notes(&explain_exposed_communication_and_bubble(comparison));
    body += &render_section_unless_empty("Where the time goes", "breakdown", &side_by_side);
    let reasons = explain_differences_from_first_machine(comparison).into_iter();
    let reasons: String = reasons
        .map(|(indent, line)| format!("<p class=\"why i{indent}\">{}</p>", escape_html(&line)))
        .collect();
    if !reasons.is_empty() {
        let reasons = format!("<p class=\"note\">{}</p>{reasons}", escape_html(WHY));
        body += &render_section_unless_empty("Why", "why", &reasons);
    }
    let machines: String = machine_lines(comparison)
        .map(|(name, parts)| {
            format!(
                "<dt>{}</dt><dd>{}</dd>",
                escape_html(name),
                escape_html(&parts)
            )
        })
        .collect();
    let machines = format!("<dl class=\"facts\">{machines}</dl>");
    body += &render_section_unless_empty("Machines", "machines", &machines);
    for (at, column) in columns() {
        if let Ok(report) = &column.result {
            body += &render_machine_report(at, &column.name, report, basis);
        }
    }
    render_page_with_tables(comparison.title, &body)
}

fn render_table_notes(sentences: &[&str]) -> String {
    let notes = sentences.iter();
    let notes = notes.map(|words| format!("<p class=\"note\">{}</p>", escape_html(words)));
    notes.collect()
}

/// Returns a box with the makespan and its interval on one machine.
fn render_machine_tile(
    comparison: &MachineComparison<'_>,
    at: usize,
    column: &ComparedMachineResult<'_>,
) -> String {
    let span = |field: &str, span: Span| {
        render_number_with_json_pointer(
            &format!("/machines/{at}/{field}"),
            span.0,
            &span.to_string(),
        )
    };
    let (value, beside) = match &column.result {
        Err(_) => ("-".to_owned(), "not completed".to_owned()),
        Ok(report) => {
            let mut beside = Vec::new();
            if let Some(interval) = &report.interval {
                let (low, high) = (
                    span("interval/low_ps", interval.low),
                    span("interval/high_ps", interval.high),
                );
                beside.push(format!("90 %: {low} to {high}"));
            }
            if report.is_lower_bound() {
                beside.push("a lower bound".to_owned());
            }
            if !report.fits_memory() {
                beside.push("<span class=\"warn\">out of memory</span>".to_owned());
            }
            let speed = comparison.compare_makespan_with(report).speedup();
            let is_first = comparison
                .reference_machine()
                .is_some_and(|(first, _)| std::ptr::eq(first, column));
            beside.extend(
                speed
                    .filter(|_| !is_first)
                    .map(|speed| format!("{speed:.2}x")),
            );
            (
                span("makespan_ps", report.outcome.makespan),
                beside.join("; "),
            )
        }
    };
    format!(
        "<div class=\"tile\"><span>{}</span><b>{value}</b><small>{beside}</small></div>",
        escape_html(&column.name)
    )
}

/// Returns the whole report of one machine. Warnings come first, and only the first chapter is expanded.
fn render_machine_report(at: usize, name: &str, report: &Report, basis: &str) -> String {
    let mut all = render_head_facts_and_warnings(report, basis);
    for (i, (heading, _, chapter)) in chapters_with_content(report).enumerate() {
        let open = if i == 0 { " open" } else { "" };
        all += &format!("<details{open}><summary>{heading}</summary>{chapter}</details>");
    }
    // In the comparison's JSON document, this report is at `/machines/{at}`, so all JSON pointers get this
    // prefix.
    let all = all.replace("data-path=\"/", &format!("data-path=\"/machines/{at}/"));
    render_section_unless_empty(
        &escape_html(&format!("On {name}")),
        &format!("machine-{at}"),
        &all,
    )
}
