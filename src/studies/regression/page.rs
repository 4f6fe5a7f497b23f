//! The HTML page of a check: a single file that needs neither network nor scripts. For each moved prediction, it shows
//! both times, the causes, and earlier baselines.
//!
//! If the check's JSON also contains a number, an attribute gives its JSON pointer, as on a report's page.

use super::verdict::describe_measured_distance;
use super::{ArchiveCheckResults, PredictionComparedWithBaseline};
use chakram_archive::RecordedMakespanPrediction;
use chakram_base::units::{Span, Time, format_count_with_noun, format_given_percent_change};
use chakram_report::NpuTimeCategory;
use chakram_report::html::page::{
    escape_html, render_number_with_json_pointer, render_page, render_section_unless_empty,
    render_table_of_escaped_cells,
};
use chakram_report::html::render_time_bars;

/// Renders the HTML page of a check against the archive `name`.
pub fn render_check_page(outcome: &ArchiveCheckResults, name: &str) -> String {
    let mut body = format!(
        "<h1>{}</h1><p class=\"sub\">{}</p>",
        escape_html(name),
        escape_html(&outcome.summary_line())
    );
    let moved = (outcome.checked.iter().enumerate()).filter(|(_, checked)| checked.moved);
    for (at, checked) in moved {
        let heading = format!(
            "{} on {}: {}",
            checked.workload,
            checked.machine,
            format_given_percent_change(checked.change_percent())
        );
        body += &render_section_unless_empty(
            &escape_html(&heading),
            &format!("moved-{at}"),
            &render_moved_prediction(checked, at),
        );
    }
    let measured: Vec<Vec<String>> = (outcome.checked.iter())
        .filter_map(|checked| Some((checked, checked.measured.as_ref()?)))
        .map(|(checked, verdict)| {
            let name = format!("{} on {}", checked.workload, checked.machine);
            vec![
                escape_html(&name),
                escape_html(&describe_measured_distance(verdict)),
            ]
        })
        .collect();
    if !measured.is_empty() {
        let rows =
            render_table_of_escaped_cells(&["prediction", "beside measured steps"], &measured);
        body += &render_section_unless_empty("Measured steps", "measured", &rows);
    }
    let failed: Vec<Vec<String>> = (outcome.failed.iter())
        .map(|failed| {
            let name = format!("{} on {}", failed.workload, failed.machine);
            vec![escape_html(&name), escape_html(&failed.error)]
        })
        .collect();
    if !failed.is_empty() {
        let rows =
            render_table_of_escaped_cells(&["prediction", "why it could not be made"], &failed);
        body += &render_section_unless_empty("Failed", "failed", &rows);
    }
    let gaps: String = (outcome.describe_unchecked_workloads_and_features().iter())
        .map(|line| format!("<li>{}</li>", escape_html(line)))
        .collect();
    if !gaps.is_empty() {
        body += &render_section_unless_empty("Not checked", "gaps", &format!("<ul>{gaps}</ul>"));
    }
    body += &format!("<footer>chakram {}</footer>", env!("CARGO_PKG_VERSION"));
    render_page(name, &body)
}

/// Renders a moved prediction, at index `at` of the check.
fn render_moved_prediction(checked: &PredictionComparedWithBaseline, at: usize) -> String {
    let pointer = |field: &str| format!("/predictions/{at}/{field}");
    let time = |field: &str, ps: u64| {
        render_number_with_json_pointer(&pointer(field), ps, &Time(ps).to_string())
    };
    let mut body = format!(
        "<p class=\"sub\">{} → {}</p>",
        time("before_ps", checked.before_ps),
        time("after_ps", checked.after_ps)
    );
    let causes: String = (checked.causes.iter())
        .map(|cause| format!("<li>{}</li>", escape_html(&cause.to_string())))
        .collect();
    if !causes.is_empty() {
        body += &format!("<ul>{causes}</ul>");
    }
    if let Some(means) = checked.means {
        let rows = [("baseline", means[0]), ("now", means[1])];
        body += &render_time_bars("Time by category, before and now", &rows);
        let cell = |side: &str, key: &str, span: Span| {
            let path = pointer(&format!("mean_ps/{side}/{key}"));
            render_number_with_json_pointer(&path, span.0, &span.to_string())
        };
        let rows = NpuTimeCategory::ALL.iter().zip(NpuTimeCategory::KEYS);
        let rows = rows.map(|((part, name), key)| {
            let [before, after] = means.map(|times| times[*part as usize]);
            vec![
                escape_html(name),
                cell("before", key, before),
                cell("after", key, after),
                escape_html(&format_signed_time_difference(before, after)),
            ]
        });
        let rows: Vec<_> = rows.collect();
        body +=
            &render_table_of_escaped_cells(&["mean of NPUs", "baseline", "now", "change"], &rows);
    }
    body + &render_baselines_table(checked, at)
}

/// Formats the difference between two times with its sign.
fn format_signed_time_difference(before: Span, after: Span) -> String {
    let sign = if after < before { "-" } else { "+" };
    format!("{sign}{}", Span(before.0.abs_diff(after.0)))
}

/// Renders the baselines of a prediction, from oldest to newest. The prediction is compared with the newest one.
fn render_baselines_table(checked: &PredictionComparedWithBaseline, at: usize) -> String {
    let rows = checked.baselines.iter().enumerate().map(|(i, record)| {
        let before = i.checked_sub(1).map(|before| &checked.baselines[before]);
        let pointer = format!("/predictions/{at}/baselines/{i}/makespan_ps");
        let makespan = Time(record.makespan_ps).to_string();
        vec![
            escape_html(&record.reason),
            render_number_with_json_pointer(&pointer, record.makespan_ps, &makespan),
            escape_html(&record.tool_version),
            escape_html(&record.arguments.join(" ")),
            escape_html(&before.map_or(String::new(), |before| {
                describe_baseline_changes(before, record)
            })),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let heads = [
        &*format_count_with_noun(rows.len() as u64, "baseline"),
        "makespan",
        "chakram",
        "options",
        "changed since the one before",
    ];
    render_table_of_escaped_cells(&heads, &rows)
}

/// Formats the differences between two baselines that a workload has on the same machine.
pub(super) fn describe_baseline_changes(
    before: &RecordedMakespanPrediction,
    after: &RecordedMakespanPrediction,
) -> String {
    let parts = [
        (before.contents != after.contents, "traces or files"),
        (before.machine_blake3 != after.machine_blake3, "machine"),
        (before.tool_version != after.tool_version, "version"),
        (before.arguments != after.arguments, "options"),
    ];
    let changed: Vec<_> = (parts.iter())
        .filter_map(|(changed, what)| changed.then_some(*what))
        .collect();
    match changed.is_empty() {
        true => "nothing".to_owned(),
        false => changed.join(", "),
    }
}
