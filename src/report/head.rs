//! The head of a report: sentences about the whole replay, which text and page share.

use super::Report;
use super::cost;
use super::summary::{counted, percent_more, thousands};
use super::throughput;
use chakram_base::units::percent_change;

/// Form of a line of the head in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadStyle {
    /// The label and the text as a heading, followed by the rest on the same line.
    Heading,
    /// On one line.
    Line,
    /// On several lines, wrapped at spaces.
    Wrapped,
    /// As a warning on one line.
    Warning,
    /// As a warning, wrapped at spaces.
    WrappedWarning,
}

/// A line of the head.
#[derive(Clone, Debug)]
pub(crate) struct HeadLine {
    /// Label of the line, which states the subject; empty if the line continues the previous one.
    pub lead: &'static str,
    pub text: String,
    /// Text after the heading, on the same line.
    pub rest: String,
    pub style: HeadStyle,
}

impl HeadLine {
    fn new(lead: &'static str, text: impl Into<String>, style: HeadStyle) -> Self {
        Self {
            lead,
            text: text.into(),
            rest: String::new(),
            style,
        }
    }

    /// Returns whether the line is a warning.
    pub fn warns(&self) -> bool {
        matches!(self.style, HeadStyle::Warning | HeadStyle::WrappedWarning)
    }
}

/// Formats the size of a replay without its title, as in `8 of 8 ranks, 1,024 nodes, all completed, on dgx-h100 (8
/// NPUs)`.
pub(crate) fn scope(report: &Report) -> String {
    format!(
        "{} of {}, {}, all completed, on {} ({})",
        report.rows.len(),
        counted(report.ranks.into(), "rank"),
        counted(report.outcome.nodes, "node"),
        report.machine.name,
        counted(report.machine.npus.into(), "NPU")
    )
}

/// Returns the lines of the head; `basis` describes the basis of times.
pub(crate) fn lines(report: &Report, basis: &str) -> Vec<HeadLine> {
    use HeadStyle::{Heading, Line, Warning, Wrapped, WrappedWarning};
    let outcome = &report.outcome;
    let mut lines = Vec::new();
    let mut put = |lead, text: String, style| lines.push(HeadLine::new(lead, text, style));
    if let Some(whole) = &report.extrapolation {
        // If the replay covers only a part of a step, the line about the whole step comes first.
        put("STEP", whole.line(), Heading);
    }
    put("MAKESPAN", outcome.makespan.to_string(), Heading);
    if let Some(edits) = &report.edits {
        for (lead, text, style) in edits.lines(outcome.makespan) {
            put(lead, text, style);
        }
    }
    if let Some((captured, slowest)) = report.last_captured() {
        let more = match percent_more(outcome.makespan, captured) {
            Some(percent) => format!("; replay {}", percent_change(percent)),
            None => String::new(),
        };
        let text = format!("{captured} (slowest rank {slowest}){more}");
        put("captured", text, Line);
    }
    if let Some(interval) = &report.interval {
        put("PREDICTED", interval.text(outcome.makespan), Wrapped);
    }
    if let Some(stack) = &report.stack {
        put("stack", stack.to_line(), Wrapped);
    }
    if let Some((heading, text)) = report.host_bound() {
        put(heading, text, WrappedWarning);
    }
    for (lead, text) in report.profiler_lines() {
        put(lead, text, Line);
    }
    if let Some(on) = &report.captured_on {
        put("captured", format!("on {}", on.line()), Wrapped);
    }
    if let Some(line) = report.unknown_line() {
        put("unknown", line, WrappedWarning);
    }
    if outcome.recorded > 0 {
        let recorded = counted(outcome.recorded, "collective");
        let how = report.communication.lasts_as;
        put("", format!("{recorded}, as {how}"), Line);
    }
    let collectives = outcome.closed + outcome.stepwise;
    if collectives + outcome.messages > 0 {
        let text = format!(
            "{} ({} analytical, {} simulated), {}",
            counted(collectives, "collective"),
            thousands(outcome.closed),
            thousands(outcome.stepwise),
            counted(outcome.messages, "message")
        );
        put("", text, Line);
    }
    if let Some(aggregation) = &report.aggregation {
        for line in aggregation.lines() {
            put("", line, Line);
        }
    }
    for rates in throughput::lines(report) {
        put("", rates, Line);
    }
    for line in cost::lines(report) {
        put("", line, Wrapped);
    }
    if let Some(energy) = &report.kernel_energy {
        put("", energy.line(), Line);
    }
    if !report.fits() {
        let text = format!(
            "{} of {} more than the NPU's capacity",
            thousands(report.too_large() as u64),
            match report.rows.len() {
                1 => "1 rank needs".to_owned(),
                n => format!("{} ranks need", thousands(n as u64)),
            }
        );
        put("OUT OF MEMORY", text, Warning);
    }
    let makespan = lines.iter_mut().find(|line| line.lead == "MAKESPAN");
    if let Some(makespan) = makespan {
        makespan.rest = format!("{basis}{}", report.bound_text());
    }
    lines
}
