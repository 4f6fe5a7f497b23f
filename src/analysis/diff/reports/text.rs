//! Renders differences between reports as text of at most 100 columns.

use super::{RankFinishTimeChange, ReplayDiff, ReportDiffByMachine, TimePartChange};
use crate::diff::AmountChange;
use crate::diff::render::JobNamesAndDiffStyle;
use crate::diff::render::text::{
    add_change, create_empty_changes_table, write_line, write_section_heading, write_warning,
};
use crate::diff::render::words::{
    format_before_and_after, format_bytes, format_count_with_thousands_separators, format_signed,
    format_span,
};
use chakram_report::table::TextTable;
use std::fmt::Result;

/// Renders the comparison of two reports as text.
pub fn render_report_diff_as_text(
    reports: &ReportDiffByMachine,
    titles: &JobNamesAndDiffStyle<'_>,
) -> String {
    let mut out = String::new();
    write_all(&mut out, reports, titles).expect("a string grows as needed");
    out
}

fn write_all(
    out: &mut String,
    reports: &ReportDiffByMachine,
    titles: &JobNamesAndDiffStyle<'_>,
) -> Result {
    let [first, second] = titles.names;
    write_line(out, titles, 0, &format!("{first} → {second}"))?;
    for note in &reports.notes {
        write_warning(out, titles, note)?;
    }
    for (list, name) in reports.only.iter().zip(titles.names) {
        if !list.is_empty() {
            write_warning(out, titles, &format!("only in {name}: {}", list.join(", ")))?;
        }
    }
    for replay in &reports.replays {
        write_replay_diff(out, replay, titles)?;
    }
    Ok(())
}

fn add_time_change_row(
    table: &mut TextTable<'_>,
    titles: &JobNamesAndDiffStyle<'_>,
    indent: usize,
    what: &str,
    shift: &AmountChange,
) {
    let cells = [
        &*format_signed(shift.signed_increase(), format_span),
        &*format_before_and_after(shift, format_span),
    ];
    add_change(table, titles, indent, what, cells);
}

fn write_replay_diff(
    out: &mut String,
    replay: &ReplayDiff,
    titles: &JobNamesAndDiffStyle<'_>,
) -> Result {
    let makespan = format_before_and_after(&replay.makespan, format_span);
    let on = if replay.before_machine == replay.after_machine {
        format!("{makespan} on {}", replay.before_machine)
    } else {
        makespan
    };
    write_section_heading(out, titles, "MAKESPAN", &on)?;
    for note in &replay.notes {
        write_warning(out, titles, note)?;
    }
    let moved = |part: &&TimePartChange| {
        part.sum.signed_increase() != 0 || part.mean.signed_increase() != 0
    };
    if replay.parts.iter().filter(moved).count() == 0 && replay.ranks.is_empty() {
        return write_line(out, titles, 2, "no difference in any part");
    }
    write_section_heading(
        out,
        titles,
        "BREAKDOWN",
        "means of NPUs: the changes of the parts sum to that of the makespan",
    )?;
    let mut table = create_empty_changes_table(titles.style);
    for part in replay.parts.iter().filter(moved) {
        add_time_change_row(&mut table, titles, 2, part.name, &part.mean);
        let shown = titles.count_lines_to_show(part.behind.len());
        for behind in &part.behind[..shown] {
            let name = if behind.what.is_empty() {
                "(no name)"
            } else {
                &behind.what
            };
            add_time_change_row(&mut table, titles, 4, name, &behind.shift);
        }
        let others: i128 = part.behind[shown..]
            .iter()
            .map(|m| m.shift.signed_increase())
            .sum();
        let left = part.behind.len() - shown;
        for (what, more) in [
            (format!("{left} others"), others),
            ("overlap with other work".to_owned(), part.rest),
        ] {
            if more != 0 {
                add_change(
                    &mut table,
                    titles,
                    4,
                    &what,
                    [&format_signed(more, format_span), ""],
                );
            }
        }
    }
    out.push_str(&table.render_rows());
    if !replay.collectives.is_empty() {
        write_section_heading(
            out,
            titles,
            "COLLECTIVES",
            "transfer time of all calls, overlapped or exposed",
        )?;
        let mut table = create_empty_changes_table(titles.style);
        for collective in
            &replay.collectives[..titles.count_lines_to_show(replay.collectives.len())]
        {
            add_time_change_row(
                &mut table,
                titles,
                2,
                &collective.what,
                &collective.transfer,
            );
            for (what, shift, show) in [
                (
                    "calls",
                    collective.calls,
                    format_count_with_thousands_separators as fn(u128) -> String,
                ),
                ("bytes", collective.bytes, format_bytes),
                ("waited, all members", collective.waited, format_span),
            ] {
                if shift.signed_increase() != 0 {
                    let mut text = String::new();
                    write_line(
                        &mut text,
                        titles,
                        4,
                        &format!("{what}: {}", format_before_and_after(&shift, show)),
                    )?;
                    table.add_free_text(text);
                }
            }
        }
        out.push_str(&table.render_rows());
    }
    if !replay.ranks.is_empty() {
        write_section_heading(
            out,
            titles,
            "RANKS",
            "finish time of each; the largest change first",
        )?;
        let mut table = create_empty_changes_table(titles.style);
        for RankFinishTimeChange { rank, finish } in
            &replay.ranks[..titles.count_lines_to_show(replay.ranks.len())]
        {
            add_time_change_row(&mut table, titles, 2, &format!("rank {rank}"), finish);
        }
        out.push_str(&table.render_rows());
    }
    Ok(())
}
