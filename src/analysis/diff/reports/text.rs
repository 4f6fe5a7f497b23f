//! Renders differences of reports as text of at most 100 columns.

use super::{RankShift, ReplayDiff, ReportDiff, TimePartChange};
use crate::diff::AmountChange;
use crate::diff::render::DiffRenderOptions;
use crate::diff::render::text::{add_change, changes, heading, line, warning};
use crate::diff::render::words::{bytes, count, from_to, signed, span};
use chakram_report::table::TextTable;
use std::fmt::Result;

/// Renders `reports`.
pub fn render(reports: &ReportDiff, titles: &DiffRenderOptions<'_>) -> String {
    let mut out = String::new();
    write_all(&mut out, reports, titles).expect("a string grows as needed");
    out
}

fn write_all(out: &mut String, reports: &ReportDiff, titles: &DiffRenderOptions<'_>) -> Result {
    let [first, second] = titles.names;
    line(out, titles, 0, &format!("{first} → {second}"))?;
    for note in &reports.notes {
        warning(out, titles, note)?;
    }
    for (list, name) in reports.only.iter().zip(titles.names) {
        if !list.is_empty() {
            warning(out, titles, &format!("only in {name}: {}", list.join(", ")))?;
        }
    }
    for replay in &reports.replays {
        of_replay(out, replay, titles)?;
    }
    Ok(())
}

fn row(
    table: &mut TextTable<'_>,
    titles: &DiffRenderOptions<'_>,
    indent: usize,
    what: &str,
    shift: &AmountChange,
) {
    let cells = [&*signed(shift.more(), span), &*from_to(shift, span)];
    add_change(table, titles, indent, what, cells);
}

fn of_replay(out: &mut String, replay: &ReplayDiff, titles: &DiffRenderOptions<'_>) -> Result {
    let makespan = from_to(&replay.makespan, span);
    let on = if replay.before_machine == replay.after_machine {
        format!("{makespan} on {}", replay.before_machine)
    } else {
        makespan
    };
    heading(out, titles, "MAKESPAN", &on)?;
    for note in &replay.notes {
        warning(out, titles, note)?;
    }
    let moved = |part: &&TimePartChange| part.sum.more() != 0 || part.mean.more() != 0;
    if replay.parts.iter().filter(moved).count() == 0 && replay.ranks.is_empty() {
        return line(out, titles, 2, "no difference in any part");
    }
    heading(
        out,
        titles,
        "BREAKDOWN",
        "means of NPUs: the changes of the parts sum to that of the makespan",
    )?;
    let mut table = changes(titles.style);
    for part in replay.parts.iter().filter(moved) {
        row(&mut table, titles, 2, part.name, &part.mean);
        let shown = titles.lines_shown(part.behind.len());
        for behind in &part.behind[..shown] {
            let name = if behind.what.is_empty() {
                "(no name)"
            } else {
                &behind.what
            };
            row(&mut table, titles, 4, name, &behind.shift);
        }
        let others: i128 = part.behind[shown..].iter().map(|m| m.shift.more()).sum();
        let left = part.behind.len() - shown;
        for (what, more) in [
            (format!("{left} others"), others),
            ("overlap with other work".to_owned(), part.rest),
        ] {
            if more != 0 {
                add_change(&mut table, titles, 4, &what, [&signed(more, span), ""]);
            }
        }
    }
    out.push_str(&table.rows());
    if !replay.collectives.is_empty() {
        heading(
            out,
            titles,
            "COLLECTIVES",
            "transfer time of all calls, overlapped or exposed",
        )?;
        let mut table = changes(titles.style);
        for collective in &replay.collectives[..titles.lines_shown(replay.collectives.len())] {
            row(
                &mut table,
                titles,
                2,
                &collective.what,
                &collective.transfer,
            );
            for (what, shift, show) in [
                ("calls", collective.calls, count as fn(u128) -> String),
                ("bytes", collective.bytes, bytes),
                ("waited, all members", collective.waited, span),
            ] {
                if shift.more() != 0 {
                    let mut text = String::new();
                    line(
                        &mut text,
                        titles,
                        4,
                        &format!("{what}: {}", from_to(&shift, show)),
                    )?;
                    table.add_lines(text);
                }
            }
        }
        out.push_str(&table.rows());
    }
    if !replay.ranks.is_empty() {
        heading(
            out,
            titles,
            "RANKS",
            "finish time of each; the largest change first",
        )?;
        let mut table = changes(titles.style);
        for RankShift { rank, finish } in &replay.ranks[..titles.lines_shown(replay.ranks.len())] {
            row(&mut table, titles, 2, &format!("rank {rank}"), finish);
        }
        out.push_str(&table.rows());
    }
    Ok(())
}
