//! Differences of reports as an HTML page: one self-contained file.
//!
//! As on the page of a report, each number carries its JSON pointer into the JSON form of the same comparison.

use super::{CollectiveChange, ContributionChange, RankShift, ReplayDiff, ReportDiff};
use crate::diff::AmountChange;
use crate::diff::render::words::{bytes, count, percent, signed, span};
use chakram_base::setting::SettingKey;
use chakram_base::units::Span;
use chakram_report::TimeCategory;
use chakram_report::html::page::{list, measure, number, page_with_tables, section, table, text};
use chakram_report::html::time_bars;

/// Maximum number of rows of a table.
const ROWS: usize = 200;

/// Renders `reports`; `names` are the names of the two sides.
pub fn render(reports: &ReportDiff, names: [&str; 2]) -> String {
    let title = format!("{} → {}", names[0], names[1]);
    // Only the last part of a path is shown, because columns are too narrow for more.
    let short = names.map(|name| name.rsplit('/').next().unwrap_or(name));
    let names = if short[0] == short[1] { names } else { short };
    let mut body = format!("<h1>{}</h1>", text(&title));
    let only = reports.only.iter().zip(names);
    let only = only.filter(|(machines, _)| !machines.is_empty());
    let only = only.map(|(machines, name)| format!("only in {name}: {}", machines.join(", ")));
    let notes = reports.notes.iter().cloned().chain(only);
    body += &section("Notes", "notes", &list(notes, "warnings"));
    for (at, replay) in reports.replays.iter().enumerate() {
        if reports.replays.len() > 1 {
            body += &format!("<h1>{}</h1>", text(&replay.before_machine));
        }
        body += &of_replay(replay, at, names);
    }
    body += &format!("<footer>chakram {}</footer>", env!("CARGO_PKG_VERSION"));
    page_with_tables(&title, &body)
}

/// Function that formats an amount.
type AmountFormat = fn(u128) -> String;

/// Returns the cells of a change: both sides, the difference, and the percentage.
fn cells(pointer: &str, shift: &AmountChange, show: AmountFormat) -> [String; 4] {
    let side =
        |side: &str, amount: u128| number(&format!("{pointer}/{side}"), amount, &show(amount));
    let in_percent = shift.percent().zip(percent(shift));
    [
        side("before", shift.before),
        side("after", shift.after),
        measure(shift.more(), &signed(shift.more(), show)),
        in_percent.map_or_else(|| "-".to_owned(), |(value, shown)| measure(value, &shown)),
    ]
}

fn row(name: &str, pointer: &str, shift: &AmountChange, show: AmountFormat) -> Vec<String> {
    let name = if name.is_empty() { "(no name)" } else { name };
    let cells = cells(pointer, shift, show);
    std::iter::once(text(name)).chain(cells).collect()
}

/// Renders a table of changes, and states how many of the `all` rows it omits.
fn changes(heading: &str, names: [&str; 2], rows: &[Vec<String>], all: usize) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let names = names.map(text);
    let heads = [heading, &*names[0], &*names[1], "change", "in percent"];
    let left = match all.saturating_sub(rows.len()) {
        0 => String::new(),
        left => format!(
            "<p class=\"note\">… {} more: {} json</p>",
            count(left as u128),
            SettingKey::Format
        ),
    };
    table(&heads, rows) + &left
}

fn of_replay(replay: &ReplayDiff, at: usize, names: [&str; 2]) -> String {
    let pointer = |rest: &str| format!("/replays/{at}/{rest}");
    let [before, after, more, in_percent] = cells(&pointer("makespan_ps"), &replay.makespan, span);
    let tile = |name: &str, value: &str, beside: &str| {
        format!(
            "<div class=\"tile\"><span>{}</span><b>{value}</b><small>{beside}</small></div>",
            text(name)
        )
    };
    let makespan = |side: usize, value: &str, machine: &str| {
        tile(&format!("Makespan, {}", names[side]), value, &text(machine))
    };
    let tiles = [
        makespan(0, &before, &replay.before_machine),
        makespan(1, &after, &replay.after_machine),
        tile("Change", &more, &in_percent),
    ];
    let mut out = format!("<div class=\"tiles\">{}</div>", tiles.concat());
    out += &list(replay.notes.iter().cloned(), "warnings");
    out += &section(
        "Where the time goes",
        "breakdown",
        &breakdown(replay, &pointer, names),
    );
    out += &section(
        "Operators and groups",
        "operators",
        &behind(replay, &pointer, names),
    );
    out += &section(
        "Collectives",
        "collectives",
        &collectives(replay, &pointer, names),
    );
    let ranks = replay.ranks.iter().take(ROWS).enumerate();
    let ranks = ranks.map(|(i, RankShift { rank, finish })| {
        let pointer = pointer(&format!("ranks/{i}/finish_ps"));
        row(&format!("rank {rank}"), &pointer, finish, span)
    });
    let ranks: Vec<_> = ranks.collect();
    out + &section(
        "Ranks",
        "ranks",
        &changes("finish", names, &ranks, replay.ranks.len()),
    )
}

/// Renders the parts of an NPU's mean time in both reports.
fn breakdown(replay: &ReplayDiff, pointer: &dyn Fn(&str) -> String, names: [&str; 2]) -> String {
    let means = |side: fn(&AmountChange) -> u128| {
        TimeCategory::KEYS.map(|key| {
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
        row(part.name, &pointer, &part.mean, span)
    });
    let parts: Vec<_> = parts.collect();
    time_bars("Time by category in both", &bars)
        + &changes("mean of NPUs", names, &parts, parts.len())
        + "<p class=\"note\">The changes of the parts sum to that of the makespan.</p>"
}

/// Renders the operators and groups that contribute to each part.
fn behind(replay: &ReplayDiff, pointer: &dyn Fn(&str) -> String, names: [&str; 2]) -> String {
    let mut out = String::new();
    for (i, part) in replay.parts.iter().enumerate() {
        let rows = part.behind.iter().take(ROWS).enumerate();
        let rows = rows.map(|(k, ContributionChange { what, shift })| {
            let pointer = pointer(&format!("parts/{i}/behind/{k}/mean_ps"));
            row(what, &pointer, shift, span)
        });
        let rows: Vec<_> = rows.collect();
        let heading = format!("{}, mean of NPUs", part.name);
        out += &changes(&heading, names, &rows, part.behind.len());
        if part.rest != 0 && !rows.is_empty() {
            let rest = signed(part.rest, span);
            out += &format!("<p class=\"note\">overlap with other work: {rest}</p>");
        }
    }
    out
}

/// Renders the collectives that changed, with the quantity that changed.
fn collectives(replay: &ReplayDiff, pointer: &dyn Fn(&str) -> String, names: [&str; 2]) -> String {
    type Amount = fn(&CollectiveChange) -> &AmountChange;
    let amounts: [(&str, &str, Amount, AmountFormat); 4] = [
        (
            "transfer of all calls",
            "transfer_ps",
            |of| &of.transfer,
            span,
        ),
        (
            "wait of all members",
            "waited_ps_sum_over_members",
            |of| &of.waited,
            span,
        ),
        (
            "bytes of all calls",
            "buffer_bytes_sum",
            |of| &of.bytes,
            bytes,
        ),
        ("calls", "calls", |of| &of.calls, count),
    ];
    let tables = amounts.map(|(name, field, amount, show)| {
        let rows = replay.collectives.iter().enumerate();
        let moved = rows.filter(|(_, of)| amount(of).more() != 0);
        let rows = moved.map(|(i, of)| {
            let pointer = pointer(&format!("collectives/{i}/{field}"));
            row(&of.what, &pointer, amount(of), show)
        });
        let mut rows: Vec<_> = rows.collect();
        let all = rows.len();
        rows.truncate(ROWS);
        changes(name, names, &rows, all)
    });
    tables.concat()
}
