//! Renders differences between traces as text of at most 100 columns.

use super::JobNamesAndDiffStyle;
use super::words::{self, format_before_and_after, format_ranks};
use crate::diff::fields::StructureTimeOrBytesAspect;
use crate::diff::tally::{
    ChangeOccurrences, ComparedNodeTotals, DiffTally, NodeGroupingProperty,
    NodeOrDependencyChangeKind, SingleNodeAmountChange, TallyLineKey,
};
use crate::diff::{AmountChange, NodeField};
use chakram_base::setting::SettingKey;
use chakram_base::units::format_count_with_noun;
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_report::text::{TextStyleWidthAndDetail, write_paragraph};
use std::cmp::Reverse;
use std::fmt::{Result, Write as _};

/// Renders the differences between two traces or jobs as text.
pub fn render_text(tally: &DiffTally, titles: &JobNamesAndDiffStyle<'_>) -> String {
    let mut out = String::new();
    write_all(&mut out, tally, titles).expect("a string grows as needed");
    out
}

fn write_all(out: &mut String, tally: &DiffTally, titles: &JobNamesAndDiffStyle<'_>) -> Result {
    let [first, second] = titles.names;
    write_line(out, titles, 0, &format!("{first} → {second}"))?;
    let compared = tally.compared.len() + tally.identical.len();
    let same = match tally.identical.len() {
        0 => String::new(),
        _ => format!(", {} of them identical", tally.identical.len()),
    };
    write_line(
        out,
        titles,
        0,
        &format!(
            "{} in both{same}",
            format_count_with_noun(compared as u64, "rank")
        ),
    )?;
    for (list, name) in tally.only.iter().zip(titles.names) {
        if !list.is_empty() {
            write_warning(
                out,
                titles,
                &format!("only in {name}: {}", format_ranks(list)),
            )?;
        }
    }
    for fault in &tally.faults {
        let name = titles.names[usize::from(fault.second)];
        let more = match fault.count {
            1 => String::new(),
            n => format!(" (and {} more)", n - 1),
        };
        let text = format!("rank {} of {name}: {}{more}", fault.rank, fault.text);
        write_warning(out, titles, &text)?;
    }
    let mut aspects = [
        StructureTimeOrBytesAspect::Structure,
        StructureTimeOrBytesAspect::Time,
        StructureTimeOrBytesAspect::Bytes,
    ]
    .into_iter();
    // Totals include changes within the tolerance, which are omitted from the list of single nodes.
    let sums = [tally.total.sum_duration_delay_and_wait(), tally.total.bytes];
    if aspects.all(|aspect| !tally.differs_in_aspect(aspect))
        && sums.iter().all(|s| s.signed_increase() == 0)
    {
        write_line(out, titles, 0, "no differences")?;
    } else {
        write_structural_changes(out, tally, titles)?;
        for aspect in [
            StructureTimeOrBytesAspect::Time,
            StructureTimeOrBytesAspect::Bytes,
        ] {
            write_amount_changes(out, tally, titles, aspect)?;
        }
    }
    Ok(())
}

/// Writes `text` as one line.
pub(in crate::diff) fn write_line(
    out: &mut String,
    titles: &JobNamesAndDiffStyle<'_>,
    indent: usize,
    text: &str,
) -> Result {
    let text = titles.style.clip_line(text, indent);
    writeln!(out, "{:indent$}{text}", "")
}

/// Creates an empty table with columns for the name, the increase, and the values before and after.
pub(in crate::diff) fn create_empty_changes_table(
    style: TextStyleWidthAndDetail,
) -> TextTable<'static> {
    let columns = [
        left_aligned_column("", NAMES),
        right_aligned_column("", 14),
        left_aligned_column("", 0).with_gap_before(3),
    ];
    TextTable::new(columns)
        .with_indent(0)
        .with_shortened_names(style)
}

/// Width of the name column, including indentation.
const NAMES: usize = 44;

/// Adds a row to a table from [`create_empty_changes_table`].
pub(in crate::diff) fn add_change(
    table: &mut TextTable<'_>,
    titles: &JobNamesAndDiffStyle<'_>,
    indent: usize,
    name: &str,
    [more, change]: [&str; 2],
) {
    let name = titles.style.clip_name(name);
    table.add_row(&[&format_args!("{:indent$}{name}", ""), &more, &change]);
}

pub(in crate::diff) fn write_section_heading(
    out: &mut String,
    titles: &JobNamesAndDiffStyle<'_>,
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

pub(in crate::diff) fn write_warning(
    out: &mut String,
    titles: &JobNamesAndDiffStyle<'_>,
    text: &str,
) -> Result {
    for (i, text) in text.lines().enumerate() {
        let lead = if i == 0 { "  ! " } else { "    " };
        write_paragraph(out, text.trim_start(), lead, 4, titles.style.warning)?;
    }
    Ok(())
}

fn write_omitted_count(
    out: &mut String,
    titles: &JobNamesAndDiffStyle<'_>,
    indent: usize,
    left: usize,
) -> Result {
    match left {
        0 => Ok(()),
        _ => write_line(
            out,
            titles,
            indent,
            &format!("… and {left} more; {} all has them", SettingKey::Show),
        ),
    }
}

/// A section of the text. The tuple's fields are the verb and the noun of the heading, its details, and a function that
/// selects the changes.
type SectionHeadingAndChangeFilter<'s> = (
    &'s str,
    &'s str,
    &'s str,
    &'s dyn Fn(&NodeOrDependencyChangeKind) -> bool,
);

/// A quantity that is summed over nodes: its name, and a function that returns its values in both traces.
type MeasureNameAndFunction = (&'static str, fn(&ComparedNodeTotals) -> AmountChange);

fn write_structural_changes(
    out: &mut String,
    tally: &DiffTally,
    titles: &JobNamesAndDiffStyle<'_>,
) -> Result {
    let nodes = format_before_and_after(
        &tally.total.nodes,
        words::format_count_with_thousands_separators,
    );
    let edges = AmountChange {
        before: tally.edges[0].into(),
        after: tally.edges[1].into(),
    };
    let edges = format_before_and_after(&edges, words::format_count_with_thousands_separators);
    write_section_heading(
        out,
        titles,
        "STRUCTURE",
        &format!("nodes {nodes}; dependencies {edges}"),
    )?;
    if !tally.differs_in_aspect(StructureTimeOrBytesAspect::Structure) {
        return write_line(out, titles, 2, "the same");
    }
    let field = |change: &NodeOrDependencyChangeKind| match change {
        NodeOrDependencyChangeKind::Field(field)
            if field.aspect_of_field() == StructureTimeOrBytesAspect::Structure =>
        {
            Some(field.to_string())
        }
        _ => None,
    };
    let counts = tally.counts.iter();
    let fields = counts.filter_map(|(change, n)| Some(format!("{} {n}", field(change)?)));
    let fields: Vec<String> = fields.collect();
    let sections: [SectionHeadingAndChangeFilter<'_>; 5] = [
        ("removed", "node", "", &|c| {
            *c == NodeOrDependencyChangeKind::Removed
        }),
        ("added", "node", "", &|c| {
            *c == NodeOrDependencyChangeKind::Added
        }),
        ("changed", "field", &fields.join(", "), &|c| {
            field(c).is_some()
        }),
        ("removed", "dependency", "", &|c| {
            *c == NodeOrDependencyChangeKind::EdgeRemoved
        }),
        ("added", "dependency", "", &|c| {
            *c == NodeOrDependencyChangeKind::EdgeAdded
        }),
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
        let text = format!("{} {how}{which}", format_count_with_noun(all, what));
        write_paragraph(out, &text, "  ", 4, anstyle::Style::new())?;
        lines.sort_by_key(|(_, seen)| Reverse(seen.count));
        let shown = titles.count_lines_to_show(lines.len());
        for (what, seen) in &lines[..shown] {
            write_line(out, titles, 4, &format_change(what, seen, titles))?;
        }
        write_omitted_count(out, titles, 4, lines.len() - shown)?;
    }
    Ok(())
}

/// Maximum width of a node's name, in columns.
const NAME: usize = 28;

/// Formats a node, such as `node 12 → 15 "mm" (compute) in 8 ranks (0-7)`.
fn format_compared_node_and_ranks(
    ids: [Option<u64>; 2],
    name: &str,
    kind: &str,
    found: &[u32],
    titles: &JobNamesAndDiffStyle<'_>,
) -> String {
    let node = match ids {
        [Some(before), Some(after)] if before != after => format!("{before} → {after}"),
        [before, after] => before.or(after).unwrap_or(0).to_string(),
    };
    let name = titles.style.clip_to_width(name, NAME);
    format!("node {node} \"{name}\" ({kind}) in {}", format_ranks(found))
}

/// Formats a line, such as `node 12 "mm" (compute) in rank 0: lane 7 → 8, 3 such`.
fn format_change(
    what: &TallyLineKey,
    seen: &ChangeOccurrences,
    titles: &JobNamesAndDiffStyle<'_>,
) -> String {
    let mut text =
        format_compared_node_and_ranks(seen.ids, &what.name, &what.kind, &seen.ranks, titles);
    match &what.change {
        NodeOrDependencyChangeKind::Removed | NodeOrDependencyChangeKind::Added => {}
        NodeOrDependencyChangeKind::Field(field) => {
            text += &format!(": {field} {} → {}", what.before, what.after)
        }
        NodeOrDependencyChangeKind::EdgeRemoved => text += &format!(": {}", what.before),
        NodeOrDependencyChangeKind::EdgeAdded => text += &format!(": {}", what.after),
    }
    match seen.count {
        1 => text,
        count => format!("{text}, {count} such"),
    }
}

fn write_amount_changes(
    out: &mut String,
    tally: &DiffTally,
    titles: &JobNamesAndDiffStyle<'_>,
    aspect: StructureTimeOrBytesAspect,
) -> Result {
    let measures: &[MeasureNameAndFunction] = match aspect {
        StructureTimeOrBytesAspect::Time => &[
            ("durations", |a| a.duration),
            ("delays", |a| a.delay),
            ("waiting", |a| a.wait),
        ],
        _ => &[("bytes", |a| a.bytes), ("FLOPs", |a| a.flops)],
    };
    let show = |measure: &str| match (aspect, measure) {
        (StructureTimeOrBytesAspect::Time, _) => words::format_span,
        (_, "bytes") => words::format_bytes,
        _ => words::format_count_with_thousands_separators,
    };
    let head = if aspect == StructureTimeOrBytesAspect::Time {
        "TIME"
    } else {
        "BYTES"
    };
    let whole = match aspect {
        StructureTimeOrBytesAspect::Time => format_before_and_after(
            &tally.total.sum_duration_delay_and_wait(),
            words::format_span,
        ),
        _ => format_before_and_after(&tally.total.bytes, words::format_bytes),
    };
    write_section_heading(out, titles, head, &whole)?;
    let moved = tally
        .by
        .values()
        .any(|a| measures.iter().any(|(_, of)| of(a).signed_increase() != 0));
    if !moved && !tally.differs_in_aspect(aspect) {
        return Ok(());
    }
    for (name, of) in measures {
        for (by, title) in [
            (NodeGroupingProperty::Type, "type"),
            (NodeGroupingProperty::Operator, "operator"),
            (NodeGroupingProperty::Group, "group"),
        ] {
            let mut rows: Vec<_> = tally.by.iter().filter(|((b, _), _)| *b == by).collect();
            rows.retain(|(_, amounts)| of(amounts).signed_increase() != 0);
            if rows.is_empty() {
                continue;
            }
            rows.sort_by_key(|(_, amounts)| Reverse(of(amounts).signed_increase().unsigned_abs()));
            write_line(out, titles, 2, &format!("{name} by {title}"))?;
            let shown = titles.count_lines_to_show(rows.len());
            let mut table = create_empty_changes_table(titles.style);
            for ((_, label), amounts) in &rows[..shown] {
                let shift = of(amounts);
                let signed = words::format_signed(shift.signed_increase(), show(name));
                let text = format_before_and_after(&shift, show(name));
                add_change(&mut table, titles, 4, label, [&signed, &text]);
            }
            out.push_str(&table.render_rows());
            write_omitted_count(out, titles, 4, rows.len() - shown)?;
        }
    }
    let singles: Vec<_> = tally
        .largest
        .iter()
        .filter(|s| s.field.aspect_of_field() == aspect)
        .collect();
    if !singles.is_empty() {
        write_line(out, titles, 2, "largest changes of single nodes")?;
        let shown = titles.count_lines_to_show(singles.len());
        for single in &singles[..shown] {
            write_line(
                out,
                titles,
                4,
                &format_single_node_amount_change(single, titles),
            )?;
        }
    }
    Ok(())
}

fn format_single_node_amount_change(
    single: &SingleNodeAmountChange,
    titles: &JobNamesAndDiffStyle<'_>,
) -> String {
    let SingleNodeAmountChange {
        name, kind, field, ..
    } = single;
    let shift = AmountChange {
        before: single.before.into(),
        after: single.after.into(),
    };
    let show = match field {
        NodeField::Bytes => words::format_bytes,
        NodeField::Duration | NodeField::Delay | NodeField::Wait | NodeField::Profiler => {
            words::format_span
        }
        _ => words::format_count_with_thousands_separators,
    };
    let more = words::format_signed(shift.signed_increase(), show);
    let place =
        format_compared_node_and_ranks(single.ids.map(Some), name, kind, &single.ranks, titles);
    format!(
        "{place}: {field} {more}, {}",
        format_before_and_after(&shift, show)
    )
}
