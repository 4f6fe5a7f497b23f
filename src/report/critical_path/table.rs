//! Tables of the critical path.

use super::CriticalPathSummary;
use crate::Report;
use crate::TimeCategory;
use crate::section::{ReportMedium, ReportSection, SectionCell, SectionId, SectionNote};
use crate::summary::{kind_label, thousands};
use crate::table::{left, right};
use crate::text::share;
use chakram_base::units::{Span, Time};

/// Number of operators named in the line below the table.
const NAMED: usize = 3;

/// Returns the table of the path by category, with the slack next to each category.
pub fn sections(report: &Report, medium: ReportMedium) -> Vec<ReportSection> {
    let path = report.critical_path.as_ref();
    let Some(path) = path.filter(|path| path.segments > 0) else {
        return Vec::new();
    };
    let mut section = ReportSection::new(
        SectionId::CriticalPath,
        [
            left("CRITICAL PATH", 24),
            right("time", 14),
            right("share", 9),
            right("nodes off it", 16),
            right("min slack", 14),
            right("median slack", 15),
        ],
    );
    let makespan = report.outcome.makespan;
    for ((part, name), key) in TimeCategory::ALL.iter().zip(TimeCategory::KEYS) {
        let time = path.parts[*part as usize];
        let name = match part {
            TimeCategory::Communication => "communication",
            TimeCategory::Idle => "launch order, late start",
            _ => name,
        };
        let slack = path.slack.iter().position(|row| row.category == key);
        if time == Span::ZERO && slack.is_none() {
            continue;
        }
        let mut cells = vec![
            name.into(),
            SectionCell::from(time).at(format!("/critical_path/time_ps/{key}")),
            SectionCell::share(time, makespan),
        ];
        if let Some(i) = slack {
            let row = &path.slack[i];
            let at = |field: &str| format!("/critical_path/slack/{i}/{field}");
            cells.extend([
                SectionCell::count(row.nodes).at(at("nodes")),
                SectionCell::from(row.least).at(at("least_ps")),
                SectionCell::from(row.median).at(at("median_ps")),
            ]);
        }
        section.row(cells);
    }
    section.note(SectionNote::wrapped(story(path, makespan, medium)));
    let mut sections = vec![section];
    if medium == ReportMedium::Page {
        sections.extend([pieces(report), operators(path, makespan)]);
        sections.retain(|section| !section.rows.is_empty());
    }
    sections
}

/// Returns the table of the longest parts of the path, if pictures were requested.
fn pieces(report: &Report) -> ReportSection {
    let makespan = report.outcome.makespan;
    let mut section = ReportSection::aligned(
        SectionId::CriticalPath,
        [
            left("LONGEST PIECES", 46),
            left("category", 14),
            right("rank", 6),
            right("start", 12),
            right("time", 12),
            right("share", 8),
        ],
    );
    let pictures = report.pictures.iter();
    let pieces = pictures.flat_map(|pictures| &pictures.longest_on_path);
    for (i, one) in pieces.enumerate() {
        let at = |field: &str| format!("/pictures/longest_on_path/{i}/{field}");
        let named = TimeCategory::ALL.iter().zip(TimeCategory::KEYS);
        let mut named = named.filter(|(_, key)| *key == one.category);
        let category = named.next().map_or("", |((_, name), _)| *name);
        let name = match one.name.as_str() {
            "" => category,
            name => name,
        };
        let rank = one.rank.map_or(0, |rank| rank.0);
        let time = one.to.since(one.from);
        section.row(vec![
            SectionCell::name(name),
            category.into(),
            SectionCell::number(rank, rank).at(at("rank")),
            SectionCell::from(one.from.since(Time::ZERO)).at(at("from_ps")),
            time.into(),
            SectionCell::share(time, makespan),
        ]);
    }
    section
}

/// Returns the table of operators with the longest time on the path.
fn operators(path: &CriticalPathSummary, makespan: Span) -> ReportSection {
    let mut section = ReportSection::aligned(
        SectionId::CriticalPath,
        [
            left("LONGEST ON THE PATH", 46),
            left("kind", 14),
            right("segments", 8),
            right("time", 12),
            right("share", 8),
        ],
    );
    for (i, row) in path.operators.iter().take(OPERATORS).enumerate() {
        let at = |field: &str| format!("/critical_path/operators/{i}/{field}");
        section.row(vec![
            SectionCell::name(&*row.name),
            kind_label(row.kind).into(),
            SectionCell::count(row.calls).at(at("calls")),
            SectionCell::from(row.total).at(at("total_ps")),
            SectionCell::share(row.total, makespan),
        ]);
    }
    section
}

/// Number of operators of the path listed on a page.
const OPERATORS: usize = 20;

/// Describes the path in one sentence, as in `12 segments on 3 ranks, 4 changes of rank; longest: gemm 40.1 %, norm
/// 3.0 %`.
fn story(path: &CriticalPathSummary, makespan: Span, medium: ReportMedium) -> String {
    let longest = path.operators.iter().take(NAMED);
    let longest = longest.map(|row| {
        format!(
            "{} {}",
            medium.clip(&row.name, 60),
            share(row.total, makespan)
        )
    });
    let longest: Vec<_> = longest.collect();
    let count = |number: u64, one: &str| match number {
        1 => format!("1 {one}"),
        _ => format!("{} {one}s", thousands(number)),
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
