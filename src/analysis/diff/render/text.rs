//! Renders differences of traces as text of at most 100 columns.

use super::DiffRenderOptions;
use super::words::{self, from_to, ranks};
use crate::diff::fields::DiffAspect;
use crate::diff::tally::{
    ChangeKey, ChangeKind, ChangeOccurrences, DiffTally, GroupBy, NodeChange, NodeTotals,
};
use crate::diff::{AmountChange, NodeField};
use chakram_base::setting::SettingKey;
use chakram_base::units::counted;
use chakram_report::table::{TextTable, left, right};
use chakram_report::text::{TextStyle, paragraph};
use std::cmp::Reverse;
use std::fmt::{Result, Write as _};

/// Renders `tally`.
pub fn render(tally: &DiffTally, titles: &DiffRenderOptions<'_>) -> String {
    let mut out = String::new();
    write_all(&mut out, tally, titles).expect("a string grows as needed");
    out
}

fn write_all(out: &mut String, tally: &DiffTally, titles: &DiffRenderOptions<'_>) -> Result {
    let [first, second] = titles.names;
    line(out, titles, 0, &format!("{first} → {second}"))?;
    let compared = tally.compared.len() + tally.identical.len();
    let same = match tally.identical.len() {
        0 => String::new(),
        _ => format!(", {} of them identical", tally.identical.len()),
    };
    line(
        out,
        titles,
        0,
        &format!("{} in both{same}", counted(compared as u64, "rank")),
    )?;
    for (list, name) in tally.only.iter().zip(titles.names) {
        if !list.is_empty() {
            warning(out, titles, &format!("only in {name}: {}", ranks(list)))?;
        }
    }
    for fault in &tally.faults {
        let name = titles.names[usize::from(fault.second)];
        let more = match fault.count {
            1 => String::new(),
            n => format!(" (and {} more)", n - 1),
        };
        let text = format!("rank {} of {name}: {}{more}", fault.rank, fault.text);
        warning(out, titles, &text)?;
    }
    let mut aspects = [DiffAspect::Structure, DiffAspect::Time, DiffAspect::Bytes].into_iter();
    // The totals also include changes of single nodes that are below the tolerance and therefore not listed.
    let sums = [tally.total.time(), tally.total.bytes];
    if aspects.all(|aspect| !tally.differs(aspect)) && sums.iter().all(|s| s.more() == 0) {
        line(out, titles, 0, "no differences")?;
    } else {
        structure(out, tally, titles)?;
        for aspect in [DiffAspect::Time, DiffAspect::Bytes] {
            amounts(out, tally, titles, aspect)?;
        }
    }
    Ok(())
}

/// Writes a line of `text`.
pub(in crate::diff) fn line(
    out: &mut String,
    titles: &DiffRenderOptions<'_>,
    indent: usize,
    text: &str,
) -> Result {
    let text = titles.style.clip_line(text, indent);
    writeln!(out, "{:indent$}{text}", "")
}

/// Returns an empty table with columns for names, changes, and values before and after.
pub(in crate::diff) fn changes(style: TextStyle) -> TextTable<'static> {
    let columns = [left("", NAMES), right("", 14), left("", 0).after(3)];
    TextTable::new(columns).indented(0).named(style)
}

/// Width of the names in a table of changes, with their indentation.
const NAMES: usize = 44;

/// Adds a row to a table from [`changes`].
pub(in crate::diff) fn add_change(
    table: &mut TextTable<'_>,
    titles: &DiffRenderOptions<'_>,
    indent: usize,
    name: &str,
    [more, change]: [&str; 2],
) {
    let name = titles.style.name(name);
    table.add(&[&format_args!("{:indent$}{name}", ""), &more, &change]);
}

pub(in crate::diff) fn heading(
    out: &mut String,
    titles: &DiffRenderOptions<'_>,
    head: &str,
    text: &str,
) -> Result {
    let h = titles.style.heading;
    let text = titles.style.clip_line(text, head.len() + 2);
    writeln!(
        out,
        "\n{h}{head}{h:#}{}{text}",
        if text.is_empty() { "" } else { "  " }
    )
}

pub(in crate::diff) fn warning(
    out: &mut String,
    titles: &DiffRenderOptions<'_>,
    text: &str,
) -> Result {
    for (i, text) in text.lines().enumerate() {
        let lead = if i == 0 { "  ! " } else { "    " };
        paragraph(out, text.trim_start(), lead, 4, titles.style.warning)?;
    }
    Ok(())
}

fn more(out: &mut String, titles: &DiffRenderOptions<'_>, indent: usize, left: usize) -> Result {
    match left {
        0 => Ok(()),
        _ => line(
            out,
            titles,
            indent,
            &format!("… and {left} more; {} all has them", SettingKey::Show),
        ),
    }
}

/// Section: verb and noun of the heading, details, and a predicate that selects the changes.
type DiffSection<'s> = (&'s str, &'s str, &'s str, &'s dyn Fn(&ChangeKind) -> bool);

/// A quantity that is summed over nodes: its name, and a function that returns its change.
type NamedMeasure = (&'static str, fn(&NodeTotals) -> AmountChange);

fn structure(out: &mut String, tally: &DiffTally, titles: &DiffRenderOptions<'_>) -> Result {
    let nodes = from_to(&tally.total.nodes, words::count);
    let edges = AmountChange {
        before: tally.edges[0].into(),
        after: tally.edges[1].into(),
    };
    let edges = from_to(&edges, words::count);
    heading(
        out,
        titles,
        "STRUCTURE",
        &format!("nodes {nodes}; dependencies {edges}"),
    )?;
    if !tally.differs(DiffAspect::Structure) {
        return line(out, titles, 2, "the same");
    }
    let field = |change: &ChangeKind| match change {
        ChangeKind::Field(field) if field.aspect() == DiffAspect::Structure => {
            Some(field.to_string())
        }
        _ => None,
    };
    let counts = tally.counts.iter();
    let fields = counts.filter_map(|(change, n)| Some(format!("{} {n}", field(change)?)));
    let fields: Vec<String> = fields.collect();
    let sections: [DiffSection<'_>; 5] = [
        ("removed", "node", "", &|c| *c == ChangeKind::Removed),
        ("added", "node", "", &|c| *c == ChangeKind::Added),
        ("changed", "field", &fields.join(", "), &|c| {
            field(c).is_some()
        }),
        ("removed", "dependency", "", &|c| {
            *c == ChangeKind::EdgeRemoved
        }),
        ("added", "dependency", "", &|c| *c == ChangeKind::EdgeAdded),
    ];
    for (how, what, which, holds) in sections {
        let mut lines: Vec<_> = tally
            .lines
            .iter()
            .filter(|(w, _)| holds(&w.change))
            .collect();
        if lines.is_empty() {
            continue;
        }
        let all: u64 = lines.iter().map(|(_, seen)| seen.count).sum();
        let which = if which.is_empty() {
            String::new()
        } else {
            format!(": {which}")
        };
        let text = format!("{} {how}{which}", counted(all, what));
        paragraph(out, &text, "  ", 4, anstyle::Style::new())?;
        lines.sort_by_key(|(_, seen)| Reverse(seen.count));
        let shown = titles.lines_shown(lines.len());
        for (what, seen) in &lines[..shown] {
            line(out, titles, 4, &one(what, seen, titles))?;
        }
        more(out, titles, 4, lines.len() - shown)?;
    }
    Ok(())
}

/// Width of the name of a node, in columns.
const NAME: usize = 28;

/// Formats a node, such as `node 12 → 15 "mm" (compute) in 8 ranks (0-7)`.
fn place(
    ids: [Option<u64>; 2],
    name: &str,
    kind: &str,
    found: &[u32],
    titles: &DiffRenderOptions<'_>,
) -> String {
    let node = match ids {
        [Some(before), Some(after)] if before != after => format!("{before} → {after}"),
        [before, after] => before.or(after).unwrap_or(0).to_string(),
    };
    let name = titles.style.clip(name, NAME);
    format!("node {node} \"{name}\" ({kind}) in {}", ranks(found))
}

/// Formats a line, such as `node 12 "mm" (compute) in rank 0: lane 7 → 8, 3 such`.
fn one(what: &ChangeKey, seen: &ChangeOccurrences, titles: &DiffRenderOptions<'_>) -> String {
    let mut text = place(seen.ids, &what.name, &what.kind, &seen.ranks, titles);
    match &what.change {
        ChangeKind::Removed | ChangeKind::Added => {}
        ChangeKind::Field(field) => text += &format!(": {field} {} → {}", what.before, what.after),
        ChangeKind::EdgeRemoved => text += &format!(": {}", what.before),
        ChangeKind::EdgeAdded => text += &format!(": {}", what.after),
    }
    match seen.count {
        1 => text,
        count => format!("{text}, {count} such"),
    }
}

fn amounts(
    out: &mut String,
    tally: &DiffTally,
    titles: &DiffRenderOptions<'_>,
    aspect: DiffAspect,
) -> Result {
    let measures: &[NamedMeasure] = match aspect {
        DiffAspect::Time => &[
            ("durations", |a| a.duration),
            ("delays", |a| a.delay),
            ("waiting", |a| a.wait),
        ],
        _ => &[("bytes", |a| a.bytes), ("FLOPs", |a| a.flops)],
    };
    let show = |measure: &str| match (aspect, measure) {
        (DiffAspect::Time, _) => words::span,
        (_, "bytes") => words::bytes,
        _ => words::count,
    };
    let head = if aspect == DiffAspect::Time {
        "TIME"
    } else {
        "BYTES"
    };
    let whole = match aspect {
        DiffAspect::Time => from_to(&tally.total.time(), words::span),
        _ => from_to(&tally.total.bytes, words::bytes),
    };
    heading(out, titles, head, &whole)?;
    let moved = tally
        .by
        .values()
        .any(|a| measures.iter().any(|(_, of)| of(a).more() != 0));
    if !moved && !tally.differs(aspect) {
        return Ok(());
    }
    for (name, of) in measures {
        for (by, title) in [
            (GroupBy::Type, "type"),
            (GroupBy::Operator, "operator"),
            (GroupBy::Group, "group"),
        ] {
            let mut rows: Vec<_> = tally.by.iter().filter(|((b, _), _)| *b == by).collect();
            rows.retain(|(_, amounts)| of(amounts).more() != 0);
            if rows.is_empty() {
                continue;
            }
            rows.sort_by_key(|(_, amounts)| Reverse(of(amounts).more().unsigned_abs()));
            line(out, titles, 2, &format!("{name} by {title}"))?;
            let shown = titles.lines_shown(rows.len());
            let mut table = changes(titles.style);
            for ((_, label), amounts) in &rows[..shown] {
                let shift = of(amounts);
                let signed = words::signed(shift.more(), show(name));
                let text = from_to(&shift, show(name));
                add_change(&mut table, titles, 4, label, [&signed, &text]);
            }
            out.push_str(&table.rows());
            more(out, titles, 4, rows.len() - shown)?;
        }
    }
    let singles: Vec<_> = tally
        .largest
        .iter()
        .filter(|s| s.field.aspect() == aspect)
        .collect();
    if !singles.is_empty() {
        line(out, titles, 2, "largest changes of single nodes")?;
        let shown = titles.lines_shown(singles.len());
        for single in &singles[..shown] {
            line(out, titles, 4, &of_single(single, titles))?;
        }
    }
    Ok(())
}

fn of_single(single: &NodeChange, titles: &DiffRenderOptions<'_>) -> String {
    let NodeChange {
        name, kind, field, ..
    } = single;
    let shift = AmountChange {
        before: single.before.into(),
        after: single.after.into(),
    };
    let show = match field {
        NodeField::Bytes => words::bytes,
        NodeField::Duration | NodeField::Delay | NodeField::Wait | NodeField::Profiler => {
            words::span
        }
        _ => words::count,
    };
    let more = words::signed(shift.more(), show);
    let place = place(single.ids.map(Some), name, kind, &single.ranks, titles);
    format!("{place}: {field} {more}, {}", from_to(&shift, show))
}
