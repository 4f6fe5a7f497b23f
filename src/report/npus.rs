//! The table of NPUs: its rows, and its columns for people and for spreadsheets.

use super::Report;
use super::TimeCategory;
use super::breakdown::NpuTime;
use super::csv::{CsvColumn, decimal};
use super::table::{TextTable, left, right};
use super::text::{TextStyle, more};
use chakram_base::ids::{Npu, Rank};
use chakram_base::units::{Span, percent_change};
use serde::{Deserialize, Serialize};
use std::fmt::{Display, Write as _};

/// Rows for people; JSON and CSV have all.
const ROWS: usize = 16;

/// The time of one NPU by what it went into.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct NpuRow {
    /// The rank on it.
    pub rank: Rank,
    /// The NPU.
    pub npu: Npu,
    /// Its class.
    pub class: String,
    /// Breakdown of its time, and its finish.
    #[serde(flatten)]
    pub time: NpuTime,
    /// End of its last event in the capture, from the start of the job, if the trace says.
    #[serde(rename = "captured_ps")]
    pub captured: Option<Span>,
    /// By how much it finished later than in the capture, in percent of that.
    #[serde(rename = "difference_percent")]
    pub difference: Option<f64>,
}

/// The columns of the table.
pub(super) const CSV: &[CsvColumn<Report, NpuRow>] = &[
    ("rank", |_, row| row.rank.0.into()),
    ("npu", |_, row| row.npu.0.into()),
    ("class", |_, row| row.class.as_str().into()),
    ("compute_ps", |_, row| row.time.parts[0].into()),
    ("communication_ps", |_, row| row.time.parts[1].into()),
    ("memory_ps", |_, row| part(row, TimeCategory::Memory).into()),
    ("host_ps", |_, row| part(row, TimeCategory::Host).into()),
    ("idle_ps", |_, row| part(row, TimeCategory::Idle).into()),
    ("makespan_ps", |report, _| report.outcome.makespan.into()),
    ("communicating_ps", |_, row| row.time.communicating.into()),
    ("finish_ps", |_, row| row.time.finish.into()),
    ("captured_ps", |_, row| row.captured.into()),
    ("difference_percent", |_, row| decimal(row.difference, 4)),
    ("bubble_ps", |_, row| part(row, TimeCategory::Bubble).into()),
];

/// A column of tables in which some makespan is a lower bound: whether that of the row's report is.
pub(super) const LOWER_BOUND: CsvColumn<Report, NpuRow> = ("lower_bound", |report, _| {
    u64::from(report.lower_bound).into()
});

fn part(row: &NpuRow, part: TimeCategory) -> Span {
    row.time.parts[part as usize]
}

/// Writes where the time of each goes.
pub(super) fn table(out: &mut String, report: &Report, style: TextStyle) -> std::fmt::Result {
    // Only pipelines have a bubble.
    let has_bubble = |row: &NpuRow| part(row, TimeCategory::Bubble) > Span::ZERO;
    let bubble = report.rows.iter().any(has_bubble);
    let width = if bubble { 12 } else { 14 };
    let mut headings = vec![
        left("RANKS", 14),
        left("NPU class", 12),
        right("compute", width),
        right("exposed comm", width + 2),
    ];
    headings.extend(bubble.then(|| right("bubble", width)));
    headings.extend(["memory", "host", "idle"].map(|name| right(name, width)));
    let mut table = TextTable::new(headings).named(style);
    // Neighbours that are alike share a line.
    let parts = |row: &NpuRow| (row.time.parts, row.time.communicating);
    let alike = |a: &NpuRow, b: &NpuRow| a.class == b.class && parts(a) == parts(b);
    let runs: Vec<_> = report.rows.chunk_by(alike).collect();
    for run in runs.iter().take(ROWS) {
        let (first, ranks) = (&run[0], ranks_of(run));
        let class = style.name(&first.class);
        let mut cells: Vec<&dyn Display> = vec![&ranks, &class];
        let parts = TimeCategory::ALL.iter().zip(&first.time.parts);
        let shown = parts.filter(|((part, _), _)| bubble || *part != TimeCategory::Bubble);
        cells.extend(shown.map(|(_, time)| time as &dyn Display));
        table.add(&cells);
    }
    write!(out, "\n{}", table.text(style))?;
    more(out, runs.len(), ROWS, "npus")
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

/// Writes when each rank finished, beside the capture, if any trace says when that ended.
pub(super) fn finishes(out: &mut String, report: &Report, style: TextStyle) -> std::fmt::Result {
    if report.rows.iter().all(|row| row.captured.is_none()) {
        return Ok(());
    }
    let table = TextTable::new([
        left("REPLAY AGAINST CAPTURE", 26),
        right("finish", 14),
        right("captured", 16),
        right("difference", 14),
    ])
    .named(style);
    table.heading(out, style)?;
    let times = |row: &NpuRow| (row.time.finish, row.captured);
    let alike = |a: &NpuRow, b: &NpuRow| times(a) == times(b);
    let runs: Vec<_> = report.rows.chunk_by(alike).collect();
    for run in runs.iter().take(ROWS) {
        let row = &run[0];
        let unknown = || "-".to_owned();
        let captured = row.captured.map_or_else(unknown, |span| span.to_string());
        let difference = row.difference.map_or_else(unknown, percent_change);
        table.row(
            out,
            &[&ranks_of(run), &row.time.finish, &captured, &difference],
        )?;
    }
    more(out, runs.len(), ROWS, "npus")
}
