//! Formats a check's verdict as text, JSON, Markdown and JUnit XML.

use super::{
    NpuTimesByCategory, PredictionComparedWithBaseline, PredictionDistanceFromMeasuredSteps,
};
use chakram_base::units::{Time, format_count_with_noun, format_given_percent_change};
use chakram_report::NpuTimeCategory;
use chakram_report::document::VersionedDocument;
use chakram_report::text::clip_middle;
use chakram_trace::format::{escape_and_shorten_name, escape_control_characters_in_lines};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A prediction that failed.
#[derive(Clone, Debug, Serialize)]
pub struct FailedPredictionWithErrorMessage {
    /// Name of the workload in the archive.
    pub workload: String,
    /// Name of the machine on which the prediction failed.
    pub machine: String,
    /// Message of the error that made the prediction fail.
    pub error: String,
}

/// Results of checking an archive.
#[derive(Clone, Debug, Default)]
pub struct ArchiveCheckResults {
    /// A prediction has moved if its makespan changes by more than this percentage.
    pub threshold: f64,
    /// Predictions that succeeded, compared with their baselines.
    pub checked: Vec<PredictionComparedWithBaseline>,
    /// Predictions that failed.
    pub failed: Vec<FailedPredictionWithErrorMessage>,
    /// Workloads without a baseline.
    pub without: Vec<String>,
    /// Predictions omitted for lack of time.
    pub left_out: Vec<String>,
    /// Features that no selected workload covers.
    pub uncovered: Vec<String>,
}

impl ArchiveCheckResults {
    /// Returns the predictions that differ too much from their baselines.
    pub fn moved_predictions(&self) -> impl Iterator<Item = &PredictionComparedWithBaseline> {
        self.checked.iter().filter(|checked| checked.moved)
    }

    pub(super) fn summary_line(&self) -> String {
        let moved = self.moved_predictions().count();
        let mut text = format!(
            "{} checked, {moved} moved by more than {} %",
            format_count_with_noun(self.checked.len() as u64, "prediction"),
            self.threshold
        );
        if !self.failed.is_empty() {
            let _ = write!(text, ", {} could not be made", self.failed.len());
        }
        text
    }

    /// Describes the workloads and features that the check omits, as lines of text.
    pub(super) fn describe_unchecked_workloads_and_features(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.without.is_empty() {
            lines.push(format!(
                "without a baseline: {}",
                escape_and_shorten_name(&self.without.join(", "))
            ));
        }
        if !self.left_out.is_empty() {
            lines.push(format!(
                "left out by the budget: {}",
                escape_and_shorten_name(&self.left_out.join(", "))
            ));
            let what = match self.uncovered.len() {
                0 => "they cover nothing else".to_owned(),
                n => format!(
                    "{n} features are only there: {}",
                    escape_and_shorten_name(&self.uncovered.join(", "))
                ),
            };
            lines.push(what);
        }
        lines
    }
}

fn format_change_percent(checked: &PredictionComparedWithBaseline) -> String {
    format_given_percent_change(checked.change_percent())
}

pub(super) fn describe_measured_distance(verdict: &PredictionDistanceFromMeasuredSteps) -> String {
    let place = if verdict.is_outside_measured_steps() {
        "outside"
    } else {
        "within"
    };
    format!(
        "{:+.1} % of {} measured, {place} their spread",
        verdict.percent,
        format_count_with_noun(verdict.steps, "step")
    )
}

/// Maximum width, in characters, of the column that names the workload and machine.
const NAME: usize = 64;

/// Renders a verdict as a table, followed by the causes of changes.
pub fn render_verdict_table_with_causes(outcome: &ArchiveCheckResults) -> String {
    let mut out = String::new();
    let name = |checked: &PredictionComparedWithBaseline| {
        clip_middle(
            &format!("{} on {}", checked.workload, checked.machine),
            NAME,
        )
    };
    let shown: Vec<&PredictionComparedWithBaseline> = outcome
        .checked
        .iter()
        .filter(|c| c.moved || c.measured.is_some())
        .collect();
    let width = shown
        .iter()
        .map(|checked| name(checked).chars().count())
        .max()
        .unwrap_or(0);
    for checked in shown {
        let (before, after) = (Time(checked.before_ps), Time(checked.after_ps));
        let verdict = if checked.moved { "MOVED" } else { "same " };
        let _ = writeln!(
            out,
            "{verdict} {:<width$}  {:>9}  {before} → {after}",
            name(checked),
            format_change_percent(checked)
        );
        if let Some(measured) = &checked.measured {
            let _ = writeln!(
                out,
                "      measured: {}",
                describe_measured_distance(measured)
            );
        }
        for cause in &checked.causes {
            let _ = writeln!(
                out,
                "      {}",
                escape_control_characters_in_lines(&cause.to_string())
            );
        }
    }
    for failed in &outcome.failed {
        let _ = writeln!(
            out,
            "FAILED {} on {}: {}",
            escape_and_shorten_name(&failed.workload),
            escape_and_shorten_name(&failed.machine),
            escape_control_characters_in_lines(&failed.error)
        );
    }
    for line in outcome.describe_unchecked_workloads_and_features() {
        let _ = writeln!(out, "{line}");
    }
    let _ = writeln!(out, "{}", outcome.summary_line());
    out
}

/// The JSON document of a check.
#[derive(Serialize)]
struct CheckDocument<'a> {
    threshold_percent: f64,
    predictions: Vec<PredictionRow<'a>>,
    failed: &'a [FailedPredictionWithErrorMessage],
    without_baseline: &'a [String],
    left_out: &'a [String],
    uncovered: &'a [String],
}

#[derive(Serialize)]
struct PredictionRow<'a> {
    workload: &'a str,
    machine: &'a str,
    before_ps: u64,
    after_ps: u64,
    change_percent: f64,
    moved: bool,
    causes: Vec<String>,
    /// Mean time in each category; `None` if the prediction did not move.
    #[serde(skip_serializing_if = "Option::is_none")]
    mean_ps: Option<NpuMeanTimesBeforeAfter>,
    baselines: Vec<RecordedBaselineWithReasonRow<'a>>,
    measured: Option<PredictionVersusMeasuredRow>,
}

/// Mean time in each category over NPUs.
#[derive(Serialize)]
struct NpuMeanTimesBeforeAfter {
    before: BTreeMap<&'static str, u64>,
    after: BTreeMap<&'static str, u64>,
}

/// A row of the JSON document for one baseline.
#[derive(Serialize)]
struct RecordedBaselineWithReasonRow<'a> {
    makespan_ps: u64,
    tool_version: &'a str,
    options: &'a [String],
    reason: &'a str,
}

#[derive(Serialize)]
struct PredictionVersusMeasuredRow {
    steps: u64,
    median_ps: u64,
    difference_percent: f64,
    /// Difference in standard deviations; `None` if all steps took the same time.
    deviations: Option<f64>,
    outside: bool,
}

/// Renders a verdict as one JSON document.
pub fn verdict_json(outcome: &ArchiveCheckResults) -> String {
    let checked = outcome.checked.iter().map(|checked| PredictionRow {
        workload: &checked.workload,
        machine: &checked.machine,
        before_ps: checked.before_ps,
        after_ps: checked.after_ps,
        change_percent: checked.change_percent(),
        moved: checked.moved,
        causes: checked.causes.iter().map(ToString::to_string).collect(),
        mean_ps: checked.means.map(|[before, after]| {
            let keyed = |times: NpuTimesByCategory| {
                let keyed = NpuTimeCategory::ALL.iter().zip(NpuTimeCategory::KEYS);
                keyed
                    .map(|((part, _), key)| (key, times[*part as usize].0))
                    .collect()
            };
            NpuMeanTimesBeforeAfter {
                before: keyed(before),
                after: keyed(after),
            }
        }),
        baselines: (checked.baselines.iter())
            .map(|record| RecordedBaselineWithReasonRow {
                makespan_ps: record.makespan_ps,
                tool_version: &record.tool_version,
                options: &record.arguments,
                reason: &record.reason,
            })
            .collect(),
        measured: checked
            .measured
            .map(|measured| PredictionVersusMeasuredRow {
                steps: measured.steps,
                median_ps: measured.median_ps,
                difference_percent: measured.percent,
                deviations: Some(measured.deviations).filter(|deviations| deviations.is_finite()),
                outside: measured.is_outside_measured_steps(),
            }),
    });
    let document = CheckDocument {
        threshold_percent: outcome.threshold,
        predictions: checked.collect(),
        failed: &outcome.failed,
        without_baseline: &outcome.without,
        left_out: &outcome.left_out,
        uncovered: &outcome.uncovered,
    };
    VersionedDocument::new("chakram.check.1", document).to_json_text()
}

/// Escapes text for a cell of a Markdown table.
fn escape_cell(text: &str) -> String {
    escape_and_shorten_name(text)
        .replace('|', "\\|")
        .replace('<', "&lt;")
}

/// Renders a verdict as Markdown for GitHub's job summaries.
pub fn verdict_markdown(outcome: &ArchiveCheckResults) -> String {
    let mut out = format!("### {}\n", outcome.summary_line());
    if outcome.moved_predictions().next().is_some() {
        out +=
            "\n| workload | machine | before | after | change | why |\n|---|---|--:|--:|--:|---|\n";
    }
    for checked in outcome.moved_predictions() {
        let causes: Vec<String> = checked
            .causes
            .iter()
            .map(|cause| escape_cell(&cause.to_string()))
            .collect();
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} |",
            escape_cell(&checked.workload),
            escape_cell(&checked.machine),
            Time(checked.before_ps),
            Time(checked.after_ps),
            format_change_percent(checked),
            causes.join("<br>")
        );
    }
    let measured: Vec<_> = outcome
        .checked
        .iter()
        .filter_map(|c| Some((c, c.measured.as_ref()?)))
        .collect();
    if !measured.is_empty() {
        out += "\n| workload | machine | beside measured steps |\n|---|---|---|\n";
    }
    for (checked, verdict) in measured {
        let _ = writeln!(
            out,
            "| {} | {} | {} |",
            escape_cell(&checked.workload),
            escape_cell(&checked.machine),
            describe_measured_distance(verdict)
        );
    }
    for failed in &outcome.failed {
        let _ = writeln!(
            out,
            "\n- {} on {} could not be predicted: {}",
            escape_cell(&failed.workload),
            escape_cell(&failed.machine),
            escape_cell(&failed.error)
        );
    }
    for line in outcome.describe_unchecked_workloads_and_features() {
        let _ = writeln!(out, "\n{}", escape_cell(&line));
    }
    out
}

/// Escapes text for an XML attribute or element.
fn escape_xml(text: &str) -> String {
    let text = escape_and_shorten_name(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

/// Renders a verdict as JUnit XML, with one test case per prediction.
pub fn verdict_junit(outcome: &ArchiveCheckResults) -> String {
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let all = outcome.checked.len() + outcome.failed.len() + outcome.left_out.len();
    let _ = writeln!(
        out,
        "<testsuite name=\"chakram archive check\" tests=\"{all}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\">",
        outcome.moved_predictions().count(),
        outcome.failed.len(),
        outcome.left_out.len()
    );
    for checked in &outcome.checked {
        let _ = write!(
            out,
            "  <testcase classname=\"{}\" name=\"{}\"",
            escape_xml(&checked.machine),
            escape_xml(&checked.workload)
        );
        if checked.moved {
            let causes: Vec<String> = checked
                .causes
                .iter()
                .map(|cause| escape_xml(&cause.to_string()))
                .collect();
            let _ = writeln!(
                out,
                "><failure message=\"{}\">{}</failure></testcase>",
                format_change_percent(checked),
                causes.join("\n")
            );
        } else {
            out += "/>\n";
        }
    }
    for failed in &outcome.failed {
        let _ = writeln!(
            out,
            "  <testcase classname=\"{}\" name=\"{}\"><error>{}</error></testcase>",
            escape_xml(&failed.machine),
            escape_xml(&failed.workload),
            escape_xml(&failed.error)
        );
    }
    for name in &outcome.left_out {
        let _ = writeln!(
            out,
            "  <testcase classname=\"budget\" name=\"{}\"><skipped/></testcase>",
            escape_xml(name)
        );
    }
    out + "</testsuite>\n"
}
