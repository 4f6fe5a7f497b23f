//! Tables about the critical path.

use super::CriticalPathSummary;
use crate::NpuTimeCategory;
use crate::Report;
use crate::section::{
    ReportTableSubject, ReportTableWithNotes, ReportTextDetailsOrPage, SectionCellWithValue,
    SectionNote,
};
use crate::summary::{format_thousands, node_kind_label};
use crate::table::{left_aligned_column, right_aligned_column};
use crate::text::format_share;
use chakram_base::units::{Span, Time};

/// Number of operators named in the sentence below the table.
const NAMED: usize = 3;

/// Returns a table of the path's time and the slack, by category.
pub fn build_path_sections(
    report: &Report,
    medium: ReportTextDetailsOrPage,
) -> Vec<ReportTableWithNotes> {
    let path = report.critical_path.as_ref();
    let Some(path) = path.filter(|path| path.segments > 0) else {
        return Vec::new();
    };
    let mut section = ReportTableWithNotes::new(
        ReportTableSubject::CriticalPath,
        [
            left_aligned_column("CRITICAL PATH", 24),
            right_aligned_column("time", 14),
            right_aligned_column("share", 9),
            right_aligned_column("nodes off it", 16),
            right_aligned_column("min slack", 14),
            right_aligned_column("median slack", 15),
        ],
    );
    let makespan = report.outcome.makespan;
    for ((part, name), key) in NpuTimeCategory::ALL.iter().zip(NpuTimeCategory::KEYS) {
        let time = path.parts[*part as usize];
        let name = match part {
            NpuTimeCategory::Communication => "communication",
            NpuTimeCategory::Idle => "launch order, late start",
            _ => name,
        };
        let slack = path.slack.iter().position(|row| row.category == key);
        if time == Span::ZERO && slack.is_none() {
            continue;
        }
        let mut cells = vec![
            name.into(),
            SectionCellWithValue::from(time)
                .with_json_pointer(format!("/critical_path/time_ps/{key}")),
            SectionCellWithValue::percent_cell(time, makespan),
        ];
        if let Some(i) = slack {
            let row = &path.slack[i];
            let at = |field: &str| format!("/critical_path/slack/{i}/{field}");
            cells.extend([
                SectionCellWithValue::count_cell(row.nodes).with_json_pointer(at("nodes")),
                SectionCellWithValue::from(row.least).with_json_pointer(at("least_ps")),
                SectionCellWithValue::from(row.median).with_json_pointer(at("median_ps")),
            ]);
        }
        section.push_row(cells);
    }
    section.push_note(SectionNote::from_text_that_report_wraps(describe_path(
        path, makespan, medium,
    )));
    let mut sections = vec![section];
    if medium == ReportTextDetailsOrPage::Page {
        sections.extend([
            build_longest_segments_section(report),
            build_operators_section(path, makespan),
        ]);
        sections.retain(|section| !section.rows.is_empty());
    }
    sections
}

/// Returns the table of the path's longest segments. They come from the pictures, so without pictures the table is
/// empty.
fn build_longest_segments_section(report: &Report) -> ReportTableWithNotes {
    let makespan = report.outcome.makespan;
    let mut section = ReportTableWithNotes::create_table_with_aligned_columns(
        ReportTableSubject::CriticalPath,
        [
            left_aligned_column("LONGEST PIECES", 46),
            left_aligned_column("category", 14),
            right_aligned_column("rank", 6),
            right_aligned_column("start", 12),
            right_aligned_column("time", 12),
            right_aligned_column("share", 8),
        ],
    );
    let pictures = report.pictures.iter();
    let pieces = pictures.flat_map(|pictures| &pictures.longest_on_path);
    for (i, one) in pieces.enumerate() {
        let at = |field: &str| format!("/pictures/longest_on_path/{i}/{field}");
        let named = NpuTimeCategory::ALL.iter().zip(NpuTimeCategory::KEYS);
        let mut named = named.filter(|(_, key)| *key == one.category);
        let category = named.next().map_or("", |((_, name), _)| *name);
        let name = match one.name.as_str() {
            "" => category,
            name => name,
        };
        let rank = one.rank.map_or(0, |rank| rank.0);
        let time = one.to.since(one.from);
        section.push_row(vec![
            SectionCellWithValue::create_cell_with_input_name(name),
            category.into(),
            SectionCellWithValue::number_cell(rank, rank).with_json_pointer(at("rank")),
            SectionCellWithValue::from(one.from.since(Time::ZERO)).with_json_pointer(at("from_ps")),
            time.into(),
            SectionCellWithValue::percent_cell(time, makespan),
        ]);
    }
    section
}

/// Returns the table of the operators that take the most time on the path.
fn build_operators_section(path: &CriticalPathSummary, makespan: Span) -> ReportTableWithNotes {
    let mut section = ReportTableWithNotes::create_table_with_aligned_columns(
        ReportTableSubject::CriticalPath,
        [
            left_aligned_column("LONGEST ON THE PATH", 46),
            left_aligned_column("kind", 14),
            right_aligned_column("segments", 8),
            right_aligned_column("time", 12),
            right_aligned_column("share", 8),
        ],
    );
    for (i, row) in path.operators.iter().take(OPERATORS).enumerate() {
        let at = |field: &str| format!("/critical_path/operators/{i}/{field}");
        section.push_row(vec![
            SectionCellWithValue::create_cell_with_input_name(&*row.name),
            node_kind_label(row.kind).into(),
            SectionCellWithValue::count_cell(row.calls).with_json_pointer(at("calls")),
            SectionCellWithValue::from(row.total).with_json_pointer(at("total_ps")),
            SectionCellWithValue::percent_cell(row.total, makespan),
        ]);
    }
    section
}

/// Maximum number of the path's operators in a page's table.
const OPERATORS: usize = 20;

/// Describes the path in one sentence, as in `12 segments on 3 ranks, 4 changes of rank; longest: gemm 40.1 %, norm
/// 3.0 %`.
fn describe_path(
    path: &CriticalPathSummary,
    makespan: Span,
    medium: ReportTextDetailsOrPage,
) -> String {
    let longest = path.operators.iter().take(NAMED);
    let longest = longest.map(|row| {
        format!(
            "{} {}",
            medium.clip_name(&row.name, 60),
            format_share(row.total, makespan)
        )
    });
    let longest: Vec<_> = longest.collect();
    let count = |number: u64, one: &str| match number {
        1 => format!("1 {one}"),
        _ => format!("{} {one}s", format_thousands(number)),
    };
    format!(
        "{}, {} from rank to rank; longest: {}{}",
        count(path.segments, "segment"),
        count(path.rank_changes, "change"),
        longest.join(", "),
        match path.slack.is_empty() {
            true => "",
            false => "; slack: delay of a node that leaves the end where it is",
        }
    )
}
