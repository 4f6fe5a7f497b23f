//! Page sections about time: categories, activity of ranks, and the critical path.

use super::format_axis_time;
use super::page::render_figure;
use crate::NpuTimeCategory;
use crate::Report;
use crate::draw::bars::{self, BarPart, BarRow};
use crate::draw::gantt::{self, GanttRow, GanttSpan};
use crate::draw::ribbon::{self, NamedRibbonSection};
use crate::npus::{NpuRow, format_rank_span};
use crate::pictures::PictureSpan;
use crate::summary::format_thousands;
use crate::text::format_share;
use chakram_base::units::Span;

/// Maximum number of ranks in a picture or table.
const ROWS: usize = 64;

/// Colour series of backward passes.
const BACKWARD: usize = 5;

/// Returns the colour series of a category; idle time is grey.
fn colour_series_of_category(part: NpuTimeCategory) -> usize {
    match part {
        NpuTimeCategory::Compute => 0,
        NpuTimeCategory::Communication => 1,
        NpuTimeCategory::Memory => 2,
        NpuTimeCategory::Host => 3,
        NpuTimeCategory::Idle => 4,
        NpuTimeCategory::Bubble => 6,
    }
}

/// Returns the colour series and name of each category, for legends.
fn list_category_colours() -> Vec<(usize, &'static str)> {
    NpuTimeCategory::ALL
        .iter()
        .map(|(part, name)| (colour_series_of_category(*part), *name))
        .collect()
}

/// Returns the parts of a bar, one per category. Each tooltip shows the category's share of `whole`.
fn bar_parts(times: &[Span; NpuTimeCategory::COUNT], whole: Span) -> Vec<BarPart> {
    let named = NpuTimeCategory::ALL
        .iter()
        .zip(NpuTimeCategory::KEYS)
        .zip(times);
    let part = named.map(|(((part, name), key), time)| BarPart {
        series: colour_series_of_category(*part),
        key,
        value: time.0,
        title: format!("{name}: {time}, {}", format_share(*time, whole)),
    });
    part.collect()
}

/// Renders bars of time by category on one axis. The length of a bar is the sum of its times.
pub fn render_time_bars(name: &str, rows: &[(&str, [Span; NpuTimeCategory::COUNT])]) -> String {
    let whole = |times: &[Span; NpuTimeCategory::COUNT]| {
        let sum = times
            .iter()
            .fold(0, |sum: u64, time| sum.saturating_add(time.0));
        Span(sum)
    };
    let bars = rows.iter().map(|(label, times)| BarRow {
        label: (*label).to_owned(),
        parts: bar_parts(times, whole(times)),
    });
    let bars: Vec<_> = bars.collect();
    let most = rows.iter().map(|(_, times)| whole(times).0).max();
    let picture = bars::draw_bars(name, &bars, most.unwrap_or(0), &format_axis_time);
    render_figure(&picture, &list_category_colours(), "")
}

/// Renders bars of time by category: one for the mean over NPUs, and one for each range of adjacent ranks with equal
/// times.
pub fn render_breakdown_section(report: &Report) -> String {
    let makespan = report.outcome.makespan;
    let parts = |times: &[Span; NpuTimeCategory::COUNT]| bar_parts(times, makespan);
    let alike = |a: &NpuRow, b: &NpuRow| a.class == b.class && a.time.parts == b.time.parts;
    let runs: Vec<_> = report.rows.chunk_by(alike).collect();
    let mut rows = vec![BarRow {
        label: "mean".to_owned(),
        parts: parts(&report.mean_parts),
    }];
    for run in runs.iter().take(ROWS) {
        let ranks: Vec<_> = run.iter().map(|row| row.rank).collect();
        let noun = if run.len() == 1 { "rank" } else { "ranks" };
        rows.push(BarRow {
            label: format!("{noun} {}", format_rank_span(&ranks)),
            parts: parts(&run[0].time.parts),
        });
    }
    let left = runs.len().saturating_sub(ROWS);
    let left = if left > 0 {
        format!(" {left} rows more are in the JSON.")
    } else {
        String::new()
    };
    let picture = bars::draw_bars("Time by category", &rows, makespan.0, &format_axis_time);
    let caption = format!("Every instant of a rank belongs to one category.{left}");
    render_figure(&picture, &list_category_colours(), &caption)
}

/// Returns the colour series of an interval. Backward passes have a series of their own; every other interval has the
/// series of its category.
fn colour_series_of_span(span: &PictureSpan) -> usize {
    let backward = span.name.ends_with("bwd") || span.name.ends_with("recompute");
    let mut keyed = NpuTimeCategory::ALL.iter().zip(NpuTimeCategory::KEYS);
    let category = keyed.find(|(_, key)| *key == span.category);
    match category.map_or(NpuTimeCategory::Idle, |((part, _), _)| *part) {
        NpuTimeCategory::Compute if backward => BACKWARD,
        other => colour_series_of_category(other),
    }
}

fn to_gantt_span(one: &PictureSpan) -> GanttSpan {
    let name = if one.name.is_empty() {
        &one.category
    } else {
        &one.name
    };
    let start = Span(one.from.0);
    GanttSpan {
        from: one.from.0,
        to: one.to.0,
        series: colour_series_of_span(one),
        title: format!(
            "{name}, {}: {} from {start}",
            one.category,
            one.to.since(one.from)
        ),
    }
}

/// Returns the legend of the colour series that occur in `spans`.
fn legend_of_spans<'s>(
    spans: impl IntoIterator<Item = &'s PictureSpan>,
) -> Vec<(usize, &'static str)> {
    let mut used = [false; 8];
    spans
        .into_iter()
        .for_each(|one| used[colour_series_of_span(one)] = true);
    let mut legend = list_category_colours();
    if used[BACKWARD] {
        legend[0].1 = "compute, forward and other";
        legend.insert(1, (BACKWARD, "compute, backward"));
    }
    legend.retain(|(series, _)| used[*series]);
    legend
}

/// Renders the section with the activity of ranks over time.
pub fn render_timeline_section(report: &Report) -> String {
    let Some(pictures) = &report.pictures else {
        return String::new();
    };
    let rows = pictures.ranks.iter().map(|rank| GanttRow {
        label: match rank.alike {
            0 => format!("rank {}", rank.rank),
            more => format!("rank {} (+{more})", rank.rank),
        },
        spans: rank.spans.iter().map(to_gantt_span).collect(),
    });
    let rows: Vec<_> = rows.collect();
    let legend = legend_of_spans(pictures.ranks.iter().flat_map(|rank| &rank.spans));
    let shown: usize = pictures
        .ranks
        .iter()
        .map(|rank| 1 + rank.alike as usize)
        .sum();
    let of = match (rows.len(), report.rows.len()) {
        (drawn, all) if drawn == all => String::new(),
        (drawn, all) if shown == all => format!(
            " {drawn} of {} ranks are drawn, one for all that do the same at the same times.",
            format_thousands(all as u64)
        ),
        (drawn, all) => format!(
            " {drawn} of {} ranks are drawn, which stand for {}: those first that are out of memory, that have the least or \
             most time in a category, and that others wait for.",
            format_thousands(all as u64),
            format_thousands(shown as u64)
        ),
    };
    let watched = pictures.watched.map(u64::from);
    let watched = watched.filter(|&watched| watched < report.rows.len() as u64);
    let watched = watched.map_or_else(String::new, |watched| {
        format!(
            " {} were watched; other ranks are assumed to behave like watched ranks with the same graph and the same time in each category.",
            format_thousands(watched)
        )
    });
    let picture = gantt::draw_gantt(
        "Activity by rank",
        &rows,
        report.outcome.makespan.0,
        &format_axis_time,
    );
    let caption = format!("What each rank does; blank is idle.{of}{watched}");
    format!(
        "<h3>Activity by rank</h3>{}",
        render_figure(&picture, &legend, &caption)
    )
}

/// Renders the section with the critical path as a ribbon chart over time.
pub fn render_critical_path_section(report: &Report) -> String {
    let pictures = report.pictures.as_ref();
    let Some(pictures) = pictures.filter(|pictures| !pictures.critical_path.is_empty()) else {
        return String::new();
    };
    let same = |a: &PictureSpan, b: &PictureSpan| a.rank == b.rank;
    let stretches = pictures.critical_path.chunk_by(same);
    let stretches = stretches.map(|spans| NamedRibbonSection {
        place: spans[0]
            .rank
            .map_or_else(String::new, |rank| format!("rank {rank}")),
        spans: spans.iter().map(to_gantt_span).collect(),
    });
    let stretches: Vec<_> = stretches.collect();
    let end = report.outcome.makespan.0;
    let picture =
        ribbon::draw_ribbon_of_named_stretches("Critical path", &stretches, end, &format_axis_time);
    let caption = "The chain of nodes, each of which set the next one free; lines are changes from rank to rank.";
    render_figure(&picture, &legend_of_spans(&pictures.critical_path), caption)
}
