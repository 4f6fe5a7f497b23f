//! Table of NPUs: its rows, and its columns in text and CSV.

use super::NpuTimeCategory;
use super::Report;
use super::breakdown::NpuTime;
use super::csv::{CsvColumn, decimal_cell};
use super::section::{
    ReportTableSubject, ReportTableWithNotes, ReportTextDetailsOrPage, SectionCellWithValue,
    SectionNote, SectionTableRow, group_adjacent_rows,
};
use super::table::{left_aligned_column, right_aligned_column};
use super::text::format_share;
use chakram_base::ids::{Npu, Rank};
use chakram_base::units::{Span, format_given_percent_change};
use serde::{Deserialize, Serialize};

/// Maximum number of rows in a text report; JSON and CSV contain all rows.
const ROWS: usize = 16;

/// Time of one NPU, divided by category.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct NpuRow {
    /// Rank that runs on the NPU.
    pub rank: Rank,
    /// Index of the NPU.
    pub npu: Npu,
    /// Name of the NPU's class.
    pub class: String,
    /// Breakdown of the NPU's time, and completion time of its last node.
    #[serde(flatten)]
    pub time: NpuTime,
    /// Time from the start of the job to the end of the rank's last captured event, if recorded in the trace.
    #[serde(rename = "captured_ps")]
    pub captured: Option<Span>,
    /// Difference between the replayed and the captured end, as a percentage of the captured end. Positive if the
    /// replayed end is later.
    #[serde(rename = "difference_percent")]
    pub difference: Option<f64>,
}

/// Columns of the CSV table of NPUs.
pub(super) const CSV: &[CsvColumn<Report, NpuRow>] = &[
    ("rank", |_, row| row.rank.0.into()),
    ("npu", |_, row| row.npu.0.into()),
    ("class", |_, row| row.class.as_str().into()),
    ("compute_ps", |_, row| row.time.parts[0].into()),
    ("communication_ps", |_, row| row.time.parts[1].into()),
    ("memory_ps", |_, row| {
        time_in_category(row, NpuTimeCategory::Memory).into()
    }),
    ("host_ps", |_, row| {
        time_in_category(row, NpuTimeCategory::Host).into()
    }),
    ("idle_ps", |_, row| {
        time_in_category(row, NpuTimeCategory::Idle).into()
    }),
    ("makespan_ps", |report, _| report.outcome.makespan.into()),
    ("communicating_ps", |_, row| row.time.communicating.into()),
    ("finish_ps", |_, row| row.time.finish.into()),
    ("captured_ps", |_, row| row.captured.into()),
    ("difference_percent", |_, row| {
        decimal_cell(row.difference, 4)
    }),
    ("bubble_ps", |_, row| {
        time_in_category(row, NpuTimeCategory::Bubble).into()
    }),
    ("remote_memory_ps", |_, row| row.time.remote_memory.into()),
];

/// Column that shows whether a report's makespan is only a lower bound. The table has this column only if at least one
/// report's makespan is a lower bound.
pub(super) const LOWER_BOUND: CsvColumn<Report, NpuRow> = ("lower_bound", |report, _| {
    u64::from(report.lower_bound).into()
});

fn time_in_category(row: &NpuRow, part: NpuTimeCategory) -> Span {
    row.time.parts[part as usize]
}

/// Returns the table of each NPU's time by category.
pub(super) fn build_npu_sections(
    report: &Report,
    medium: ReportTextDetailsOrPage,
) -> Vec<ReportTableWithNotes> {
    // Only pipelines have a bubble, so the column is omitted for other jobs.
    let has_bubble = |row: &NpuRow| time_in_category(row, NpuTimeCategory::Bubble) > Span::ZERO;
    let bubble = report.rows.iter().any(has_bubble);
    let width = if bubble { 12 } else { 14 };
    let mut headings = vec![
        left_aligned_column("RANKS", 14),
        left_aligned_column("NPU class", 12),
        right_aligned_column("compute", width),
        right_aligned_column("exposed comm", width + 2),
    ];
    headings.extend(bubble.then(|| right_aligned_column("bubble", width)));
    headings.extend(["memory", "host", "idle"].map(|name| right_aligned_column(name, width)));
    let mut section = ReportTableWithNotes::create_table_with_aligned_columns(
        ReportTableSubject::Ranks,
        headings,
    );
    // Adjacent NPUs with equal times share a line.
    let parts = |row: &NpuRow| (row.time.parts, row.time.communicating);
    let runs = group_adjacent_rows(&report.rows, |a, b| {
        a.class == b.class && parts(a) == parts(b)
    });
    let shown = medium.max_rows_shown(ROWS);
    for (at, run) in runs.iter().take(shown) {
        let first = &run[0];
        let mut cells = vec![
            format_ranks_of_adjacent_rows(run).into(),
            SectionCellWithValue::create_cell_with_input_name(&*first.class),
        ];
        let parts = NpuTimeCategory::ALL.iter().zip(NpuTimeCategory::KEYS);
        let parts = parts.filter(|((part, _), _)| bubble || *part != NpuTimeCategory::Bubble);
        cells.extend(parts.map(|((part, _), key)| {
            let time = first.time.parts[*part as usize];
            SectionCellWithValue::from(time).with_json_pointer(format!("/npus/{at}/time_ps/{key}"))
        }));
        section.push_row(cells);
    }
    section.leave_out(runs.len(), shown, "npus");
    vec![section]
}

/// Returns the table of the mean time per NPU by category.
pub(super) fn build_mean_npu_time_breakdown_sections(report: &Report) -> Vec<ReportTableWithNotes> {
    let makespan = report.outcome.makespan;
    let mut section = ReportTableWithNotes::new(
        ReportTableSubject::Breakdown,
        [
            left_aligned_column("TIME BREAKDOWN", 24),
            right_aligned_column("mean of NPUs", 14),
            right_aligned_column("share", 9),
            left_aligned_column("min", 24).with_gap_before(3),
            left_aligned_column("max", 0),
        ],
    );
    for ((part, name), key) in NpuTimeCategory::ALL.iter().zip(NpuTimeCategory::KEYS) {
        let mean = report.mean_parts[*part as usize];
        let Some((min, max)) = report.rows_with_extreme_time(*part) else {
            continue;
        };
        let time = |row: &NpuRow| row.time.parts[*part as usize];
        if time(max) == Span::ZERO {
            continue;
        }
        let bound = |row: &NpuRow| {
            let same = |other: &NpuRow| std::ptr::eq(other, row);
            let at = report.rows.iter().position(same);
            let shown = format!("{} (rank {})", time(row), row.rank);
            let at = at.map(|at| format!("/npus/{at}/time_ps/{key}"));
            SectionCellWithValue::number_cell(time(row).0, shown).with_optional_json_pointer(at)
        };
        let is_memory = *part == NpuTimeCategory::Memory && mean > Span::ZERO;
        let is_all_remote = is_memory && mean == report.mean_remote_memory;
        let name = if is_all_remote {
            "memory, all remote"
        } else {
            *name
        };
        let mut cells = vec![
            name.into(),
            SectionCellWithValue::from(mean).with_json_pointer(format!("/mean_ps/{key}")),
            SectionCellWithValue::percent_cell(mean, makespan),
        ];
        match time(min) == time(max) {
            true => cells.push("equal on all NPUs".into()),
            false => cells.extend([bound(min), bound(max)]),
        }
        section.push_row(cells);
        if *part == NpuTimeCategory::Memory {
            section
                .rows
                .extend(rows_of_remote_and_local_memory_time(report));
        }
    }
    section.push_row(vec![
        "makespan".into(),
        SectionCellWithValue::from(makespan).with_json_pointer("/makespan_ps"),
        "100.0 %".into(),
    ]);
    let under_way = report.mean_communicating;
    if under_way > Span::ZERO {
        section.push_note(SectionNote::from_one_line_sentence(format!(
            "communication active for {under_way} (mean), {} of it overlapped with compute",
            format_share(report.mean_hidden_communication_time(), under_way)
        )));
        let meant = [
            (NpuTimeCategory::Communication, NpuTimeCategory::EXPOSED),
            (NpuTimeCategory::Bubble, NpuTimeCategory::BUBBLE),
        ];
        let shown = meant
            .iter()
            .filter(|(part, _)| report.mean_parts[*part as usize] > Span::ZERO);
        let shown: Vec<_> = shown.map(|(_, words)| *words).collect();
        if !shown.is_empty() {
            section.push_note(SectionNote::from_one_line_sentence(shown.join("; ")));
        }
    }
    vec![section]
}

/// Returns rows that divide the mean NPU's memory time into remote and local accesses. Empty if there is only one kind.
fn rows_of_remote_and_local_memory_time(report: &Report) -> Vec<SectionTableRow> {
    let remote = report.mean_remote_memory;
    let local = report.mean_parts[NpuTimeCategory::Memory as usize].0 - remote.0;
    let row = |name: &str, mean: SectionCellWithValue, time: Span| {
        SectionTableRow::from(vec![
            name.into(),
            mean,
            SectionCellWithValue::percent_cell(time, report.outcome.makespan),
        ])
    };
    let mut rows = Vec::new();
    if remote > Span::ZERO && local > 0 {
        let mean = SectionCellWithValue::from(remote).with_json_pointer("/mean_remote_memory_ps");
        rows.push(row("  remote memory", mean, remote));
        rows.push(row("  local memory", Span(local).into(), Span(local)));
    }
    rows
}

/// Formats the ranks of adjacent rows as `3` or `0-7`. If some ranks in between have no trace, formats them as `0 … 12
/// (4)`.
fn format_ranks_of_adjacent_rows(run: &[NpuRow]) -> String {
    let ranks: Vec<_> = run.iter().map(|row| row.rank).collect();
    format_rank_span(&ranks)
}

pub(super) fn format_rank_span(run: &[Rank]) -> String {
    let (first, last) = (run[0], run[run.len() - 1]);
    match run.len() {
        1 => first.to_string(),
        n if last.0 - first.0 == n as u32 - 1 => format!("{first}-{last}"),
        n => format!("{first} … {last} ({n})"),
    }
}

/// Returns the table of finish times in the replay and in the capture. Empty if no trace records its end.
pub(super) fn build_finish_against_capture_sections(
    report: &Report,
    medium: ReportTextDetailsOrPage,
) -> Vec<ReportTableWithNotes> {
    if report.rows.iter().all(|row| row.captured.is_none()) {
        return Vec::new();
    }
    let mut section = ReportTableWithNotes::new(
        ReportTableSubject::Finishes,
        [
            left_aligned_column("REPLAY AGAINST CAPTURE", 26),
            right_aligned_column("finish", 14),
            right_aligned_column("captured", 16),
            right_aligned_column("difference", 14),
        ],
    );
    let times = |row: &NpuRow| (row.time.finish, row.captured);
    let runs = group_adjacent_rows(&report.rows, |a, b| times(a) == times(b));
    let shown = medium.max_rows_shown(ROWS);
    for (i, run) in runs.iter().take(shown) {
        let row = &run[0];
        let at = |field: &str| format!("/npus/{i}/{field}");
        let unknown = || SectionCellWithValue::from("-");
        let captured = |span| SectionCellWithValue::from(span).with_json_pointer(at("captured_ps"));
        let difference = |percent: f64| {
            SectionCellWithValue::number_cell(percent, format_given_percent_change(percent))
                .with_json_pointer(at("difference_percent"))
        };
        section.push_row(vec![
            format_ranks_of_adjacent_rows(run).into(),
            SectionCellWithValue::from(row.time.finish).with_json_pointer(at("finish_ps")),
            row.captured.map_or_else(unknown, captured),
            row.difference.map_or_else(unknown, difference),
        ]);
    }
    section.leave_out(runs.len(), shown, "npus");
    vec![section]
}
