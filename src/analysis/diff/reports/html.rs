//! Renders differences between reports as a self-contained HTML page.
//!
//! Each number has its JSON pointer as an attribute, as on a report's page. The pointer refers to the comparison's JSON
//! form.

use super::{
    GroupCollectivesChange, RankFinishTimeChange, ReplayDiff, ReportDiffByMachine,
    TimeContributorChange,
};
use crate::diff::AmountChange;
use crate::diff::render::words::{
    format_bytes, format_count_with_thousands_separators, format_percent_increase, format_signed,
    format_span,
};
use chakram_base::setting::SettingKey;
use chakram_base::units::Span;
use chakram_report::NpuTimeCategory;
use chakram_report::html::page::{
    escape_html, render_list, render_number_absent_from_report, render_number_with_json_pointer,
    render_page_with_tables, render_section_unless_empty, render_table_of_escaped_cells,
};
use chakram_report::html::render_time_bars;

/// Maximum number of rows in a table.
const ROWS: usize = 200;

/// Renders the page; `names` are the names of the two documents.
pub fn render_html(reports: &ReportDiffByMachine, names: [&str; 2]) -> String {
    let title = format!("{} → {}", names[0], names[1]);
    // Show only the last component of a path, because the columns are narrow.
    let short = names.map(|name| name.rsplit('/').next().unwrap_or(name));
    let names = if short[0] == short[1] { names } else { short };
    let mut body = format!("<h1>{}</h1>", escape_html(&title));
    let only = reports.only.iter().zip(names);
    let only = only.filter(|(machines, _)| !machines.is_empty());
    let only = only.map(|(machines, name)| format!("only in {name}: {}", machines.join(", ")));
    let notes = reports.notes.iter().cloned().chain(only);
    body += &render_section_unless_empty("Notes", "notes", &render_list(notes, "warnings"));
    for (at, replay) in reports.replays.iter().enumerate() {
        if reports.replays.len() > 1 {
            body += &format!("<h1>{}</h1>", escape_html(&replay.before_machine));
        }
        body += &render_replay_diff(replay, at, names);
    }
    body += &format!("<footer>chakram {}</footer>", env!("CARGO_PKG_VERSION"));
    render_page_with_tables(&title, &body)
}

type AmountFormat = fn(u128) -> String;

/// Renders a change as table cells: the two values, the difference and the percentage.
fn render_change_cells(pointer: &str, shift: &AmountChange, show: AmountFormat) -> [String; 4] {
    let side = |side: &str, amount: u128| {
        render_number_with_json_pointer(&format!("{pointer}/{side}"), amount, &show(amount))
    };
    let in_percent = shift.percent_increase().zip(format_percent_increase(shift));
    [
        side("before", shift.before),
        side("after", shift.after),
        render_number_absent_from_report(
            shift.signed_increase(),
            &format_signed(shift.signed_increase(), show),
        ),
        in_percent.map_or_else(
            || "-".to_owned(),
            |(value, shown)| render_number_absent_from_report(value, &shown),
        ),
    ]
}

fn render_change_row(
    name: &str,
    pointer: &str,
    shift: &AmountChange,
    show: AmountFormat,
) -> Vec<String> {
    let name = if name.is_empty() { "(no name)" } else { name };
    let cells = render_change_cells(pointer, shift, show);
    std::iter::once(escape_html(name)).chain(cells).collect()
}

/// Renders a table of changes. If it has fewer than `all` rows, a note says how many are omitted.
fn render_changes_table(
    heading: &str,
    names: [&str; 2],
    rows: &[Vec<String>],
    all: usize,
) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let names = names.map(escape_html);
    let heads = [heading, &*names[0], &*names[1], "change", "in percent"];
    let left = match all.saturating_sub(rows.len()) {
        0 => String::new(),
        left => format!(
            "<p class=\"note\">… {} more: {} json</p>",
            format_count_with_thousands_separators(left as u128),
            SettingKey::Format
        ),
    };
    render_table_of_escaped_cells(&heads, rows) + &left
}

fn render_replay_diff(replay: &ReplayDiff, at: usize, names: [&str; 2]) -> String {
    let pointer = |rest: &str| format!("/replays/{at}/{rest}");
    let [before, after, more, in_percent] =
        render_change_cells(&pointer("makespan_ps"), &replay.makespan, format_span);
    let tile = |name: &str, value: &str, beside: &str| {
        format!(
            "<div class=\"tile\"><span>{}</span><b>{value}</b><small>{beside}</small></div>",
            escape_html(name)
        )
    };
    let makespan = |side: usize, value: &str, machine: &str| {
        tile(
            &format!("Makespan, {}", names[side]),
            value,
            &escape_html(machine),
        )
    };
    let tiles = [
        makespan(0, &before, &replay.before_machine),
        makespan(1, &after, &replay.after_machine),
        tile("Change", &more, &in_percent),
    ];
    let mut out = format!("<div class=\"tiles\">{}</div>", tiles.concat());
    out += &render_list(replay.notes.iter().cloned(), "warnings");
    out += &render_section_unless_empty(
        "Where the time goes",
        "breakdown",
        &render_breakdown_table(replay, &pointer, names),
    );
    out += &render_section_unless_empty(
        "Operators and groups",
        "operators",
        &render_contributions_table(replay, &pointer, names),
    );
    out += &render_section_unless_empty(
        "Collectives",
        "collectives",
        &render_collectives_table(replay, &pointer, names),
    );
    let ranks = replay.ranks.iter().take(ROWS).enumerate();
    let ranks = ranks.map(|(i, RankFinishTimeChange { rank, finish })| {
        let pointer = pointer(&format!("ranks/{i}/finish_ps"));
        render_change_row(&format!("rank {rank}"), &pointer, finish, format_span)
    });
    let ranks: Vec<_> = ranks.collect();
    out + &render_section_unless_empty(
        "Ranks",
        "ranks",
        &render_changes_table("finish", names, &ranks, replay.ranks.len()),
    )
}

/// Renders the table that compares the parts of the time (means over NPUs).
fn render_breakdown_table(
    replay: &ReplayDiff,
    pointer: &dyn Fn(&str) -> String,
    names: [&str; 2],
) -> String {
    let means = |side: fn(&AmountChange) -> u128| {
        NpuTimeCategory::KEYS.map(|key| {
            let part = replay.parts.iter().find(|part| part.name == key);
            let amount = part.map_or(0, |part| side(&part.mean));
            Span(u64::try_from(amount).unwrap_or(u64::MAX))
        })
    };
    let bars = [
        (names[0], means(|shift| shift.before)),
        (names[1], means(|shift| shift.after)),
    ];
    let parts = replay.parts.iter().enumerate().map(|(i, part)| {
        let pointer = pointer(&format!("parts/{i}/mean_ps"));
        render_change_row(part.name, &pointer, &part.mean, format_span)
    });
    let parts: Vec<_> = parts.collect();
    render_time_bars("Time by category in both", &bars)
        + &render_changes_table("mean of NPUs", names, &parts, parts.len())
        + "<p class=\"note\">The changes of the parts sum to that of the makespan.</p>"
}

/// Renders the table of operators and groups that contribute to each part.
fn render_contributions_table(
    replay: &ReplayDiff,
    pointer: &dyn Fn(&str) -> String,
    names: [&str; 2],
) -> String {
    let mut out = String::new();
    for (i, part) in replay.parts.iter().enumerate() {
        let rows = part.behind.iter().take(ROWS).enumerate();
        let rows = rows.map(|(k, TimeContributorChange { what, shift })| {
            let pointer = pointer(&format!("parts/{i}/behind/{k}/mean_ps"));
            render_change_row(what, &pointer, shift, format_span)
        });
        let rows: Vec<_> = rows.collect();
        let heading = format!("{}, mean of NPUs", part.name);
        out += &render_changes_table(&heading, names, &rows, part.behind.len());
        if part.rest != 0 && !rows.is_empty() {
            let rest = format_signed(part.rest, format_span);
            out += &format!("<p class=\"note\">overlap with other work: {rest}</p>");
        }
    }
    out
}

/// Renders the collectives that changed, one table per quantity.
fn render_collectives_table(
    replay: &ReplayDiff,
    pointer: &dyn Fn(&str) -> String,
    names: [&str; 2],
) -> String {
    type Amount = fn(&GroupCollectivesChange) -> &AmountChange;
    let amounts: [(&str, &str, Amount, AmountFormat); 4] = [
        (
            "transfer of all calls",
            "transfer_ps",
            |of| &of.transfer,
            format_span,
        ),
        (
            "wait of all members",
            "waited_ps_sum_over_members",
            |of| &of.waited,
            format_span,
        ),
        (
            "bytes of all calls",
            "buffer_bytes_sum",
            |of| &of.bytes,
            format_bytes,
        ),
        (
            "calls",
            "calls",
            |of| &of.calls,
            format_count_with_thousands_separators,
        ),
    ];
    let tables = amounts.map(|(name, field, amount, show)| {
        let rows = replay.collectives.iter().enumerate();
        let moved = rows.filter(|(_, of)| amount(of).signed_increase() != 0);
        let rows = moved.map(|(i, of)| {
            let pointer = pointer(&format!("collectives/{i}/{field}"));
            render_change_row(&of.what, &pointer, amount(of), show)
        });
        let mut rows: Vec<_> = rows.collect();
        let all = rows.len();
        rows.truncate(ROWS);
        render_changes_table(name, names, &rows, all)
    });
    tables.concat()
}
