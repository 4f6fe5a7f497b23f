//! The critical path for people.

use super::CriticalPathSummary;
use crate::Report;
use crate::TimeCategory;
use crate::summary::thousands;
use crate::table::{TextTable, left, right};
use crate::text::{TextStyle, paragraph, share};
use chakram_base::units::Span;

/// Operators that the line below the table names.
const NAMED: usize = 3;

/// Writes the path by category, and the slack beside it.
pub fn table(out: &mut String, report: &Report, style: TextStyle) -> std::fmt::Result {
    let Some(path) = report
        .critical_path
        .as_ref()
        .filter(|path| path.segments > 0)
    else {
        return Ok(());
    };
    let table = TextTable::new([
        left("CRITICAL PATH", 24),
        right("time", 14),
        right("share", 9),
        right("nodes off it", 16),
        right("min slack", 14),
        right("median slack", 15),
    ])
    .named(style);
    table.heading(out, style)?;
    let makespan = report.outcome.makespan;
    for ((part, name), key) in TimeCategory::ALL.iter().zip(TimeCategory::KEYS) {
        let time = path.parts[*part as usize];
        let name = match part {
            TimeCategory::Communication => "communication",
            TimeCategory::Idle => "launch order, late start",
            _ => name,
        };
        let slack = path.slack.iter().find(|row| row.category == key);
        if time == Span::ZERO && slack.is_none() {
            continue;
        }
        let cells = slack.map(|row| {
            let nodes = thousands(row.nodes);
            [nodes, row.least.to_string(), row.median.to_string()]
        });
        let [nodes, least, median] = cells.unwrap_or_default();
        let of = share(time, makespan);
        table.row(out, &[&name, &time, &of, &nodes, &least, &median])?;
    }
    paragraph(
        out,
        &story(path, makespan, style),
        "  ",
        4,
        TextStyle::default().heading,
    )
}

/// `12 segments, 4 changes from rank to rank; longest: gemm 40.1 %, norm 3.0 %; slack: …`.
fn story(path: &CriticalPathSummary, makespan: Span, style: TextStyle) -> String {
    let longest = path.operators.iter().take(NAMED);
    let longest = longest.map(|row| {
        format!(
            "{} {}",
            style.clip(&row.name, 60),
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
