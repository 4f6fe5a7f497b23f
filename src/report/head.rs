//! The head of a report: sentences about the whole replay, for both the text and the page.

use super::Report;
use super::cost;
use super::summary::{format_count_with_noun, format_thousands, percent_more};
use super::throughput;
use chakram_base::units::format_given_percent_change;

/// Layout of a head line in the text report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadingOrWarningLineLayout {
    /// The label and the text form a heading; `rest` continues the same line.
    Heading,
    /// A single line.
    Line,
    /// Several lines, broken at spaces.
    Wrapped,
    /// A warning on a single line.
    Warning,
    /// A warning on several lines, broken at spaces.
    WrappedWarning,
}

/// A line at the head of a report.
#[derive(Clone, Debug)]
pub(crate) struct HeadLine {
    /// Label that names the line's subject. Empty if the line continues the previous one.
    pub lead: &'static str,
    pub text: String,
    /// Text that follows the heading on the same line.
    pub rest: String,
    pub style: HeadingOrWarningLineLayout,
}

impl HeadLine {
    fn new(lead: &'static str, text: impl Into<String>, style: HeadingOrWarningLineLayout) -> Self {
        Self {
            lead,
            text: text.into(),
            rest: String::new(),
            style,
        }
    }

    /// Returns true if the line is a warning.
    pub fn is_warning(&self) -> bool {
        matches!(
            self.style,
            HeadingOrWarningLineLayout::Warning | HeadingOrWarningLineLayout::WrappedWarning
        )
    }
}

/// Formats the scope of a replay, as in `8 of 8 ranks, 1,024 nodes, all completed, on dgx-h100 (8 NPUs)`.
pub(crate) fn format_scope(report: &Report) -> String {
    format!(
        "{} of {}, {}, all completed, on {} ({})",
        report.rows.len(),
        format_count_with_noun(report.ranks.into(), "rank"),
        format_count_with_noun(report.outcome.nodes, "node"),
        report.machine.name,
        format_count_with_noun(report.machine.npus.into(), "NPU")
    )
}

/// Returns the lines of the head; `basis` describes how durations were determined.
pub(crate) fn build_head_lines(report: &Report, basis: &str) -> Vec<HeadLine> {
    use HeadingOrWarningLineLayout::{Heading, Line, Warning, Wrapped, WrappedWarning};
    let outcome = &report.outcome;
    let mut lines = Vec::new();
    let mut put = |lead, text: String, style| lines.push(HeadLine::new(lead, text, style));
    if let Some(whole) = &report.extrapolation {
        // If only part of a step was replayed, put the line about the whole step first.
        put("STEP", whole.describe_extrapolation(), Heading);
    }
    put("MAKESPAN", outcome.makespan.to_string(), Heading);
    if let Some(edits) = &report.edits {
        for (lead, text, style) in edits.describe_head_lines(outcome.makespan) {
            put(lead, text, style);
        }
    }
    if let Some((captured, slowest)) = report.last_captured_end_and_rank() {
        let more = match percent_more(outcome.makespan, captured) {
            Some(percent) => format!("; replay {}", format_given_percent_change(percent)),
            None => String::new(),
        };
        let text = format!("{captured} (slowest rank {slowest}){more}");
        put("captured", text, Line);
    }
    if let Some(interval) = &report.interval {
        put(
            "PREDICTED",
            interval.format_interval_and_method_shares(outcome.makespan),
            Wrapped,
        );
    }
    if let Some(stack) = &report.stack {
        put("stack", stack.to_line(), Wrapped);
    }
    if let Some((heading, text)) = report.describe_machine_dependence() {
        put(heading, text, WrappedWarning);
    }
    for (lead, text) in report.list_captured_profiler_overhead_lines() {
        put(lead, text, Line);
    }
    if let Some(on) = &report.captured_on {
        put("captured", format!("on {}", on.describe_capture()), Wrapped);
    }
    if let Some(line) = report.unknown_facts_line() {
        put("unknown", line, WrappedWarning);
    }
    if outcome.recorded > 0 {
        let recorded = format_count_with_noun(outcome.recorded, "collective");
        let how = report.communication.lasts_as;
        put("", format!("{recorded}, as {how}"), Line);
    }
    let collectives = outcome.closed + outcome.stepwise;
    if collectives + outcome.messages > 0 {
        let text = format!(
            "{} ({} analytical, {} simulated), {}",
            format_count_with_noun(collectives, "collective"),
            format_thousands(outcome.closed),
            format_thousands(outcome.stepwise),
            format_count_with_noun(outcome.messages, "message")
        );
        put("", text, Line);
    }
    if let Some(aggregation) = &report.aggregation {
        for line in aggregation.describe_in_lines() {
            put("", line, Line);
        }
    }
    for rates in throughput::describe_throughput(report) {
        put("", rates, Line);
    }
    for line in cost::describe_cost_lines(report) {
        put("", line, Wrapped);
    }
    if let Some(energy) = &report.kernel_energy {
        put("", energy.describe_energy(), Line);
    }
    if !report.fits_memory() {
        let text = format!(
            "{} of {} more than the NPU's capacity",
            format_thousands(report.count_ranks_out_of_memory() as u64),
            match report.rows.len() {
                1 => "1 rank needs".to_owned(),
                n => format!("{} ranks need", format_thousands(n as u64)),
            }
        );
        put("OUT OF MEMORY", text, Warning);
    }
    let makespan = lines.iter_mut().find(|line| line.lead == "MAKESPAN");
    if let Some(makespan) = makespan {
        makespan.rest = format!("{basis}{}", report.lower_bound_remark());
    }
    lines
}
