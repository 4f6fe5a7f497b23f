//! Collectives and exposed communication, for people. Groups that are for one thing share a row.

use super::CollectiveTally;
use super::{CollectiveRow, LatestRank};
use crate::Report;
use crate::csv::{CsvColumn, decimal};
use crate::summary::{groups_of, mean, thousands};
use crate::table::{TextTable, left, right};
use crate::text::{TextStyle, more, paragraph, share};
use chakram_base::ids::Rank;
use chakram_base::units::{Bytes, Span};
use chakram_engine::CommTiming;
use chakram_trace::format::CollectiveKind;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::{Display, Result, Write as _};

/// Rows; JSON and CSV have all.
const ROWS: usize = 24;

/// The columns of the table.
pub const CSV: &[CsvColumn<Report, CollectiveRow>] = &[
    ("group", |_, row| row.group.as_str().into()),
    ("members", |_, row| row.members.into()),
    ("kind", |_, row| {
        CollectiveKind::ALL[row.kind as usize].1.into()
    }),
    ("algorithm", |_, row| row.algorithm.as_str().into()),
    ("calls", |_, row| row.tally.calls.into()),
    ("buffer_bytes_sum", |_, row| row.tally.buffers.sum.into()),
    ("transfer_ps", |_, row| row.tally.transfer.into()),
    ("waited_ps_sum", |_, row| row.tally.waited.into()),
    ("bus_bytes_per_s", |_, row| decimal(row.bus, 0)),
    ("role", |_, row| row.role.as_deref().into()),
];

/// A role, or else the index of a row.
type RowOwner<'r> = std::result::Result<&'r str, usize>;

/// Key that tells rows apart: whose they are, then what they do, among how many, and how.
type CollectiveRowKey<'r> = (RowOwner<'r>, CollectiveKind, u32, &'r str);

/// Rows that are one, in the order of the first of each.
fn together(rows: &[CollectiveRow]) -> Vec<Vec<&CollectiveRow>> {
    let mut place: BTreeMap<CollectiveRowKey<'_>, usize> = BTreeMap::new();
    let mut all: Vec<Vec<&CollectiveRow>> = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        let whose = row.role.as_deref().ok_or(i);
        let key = (whose, row.kind, row.members, &row.algorithm[..]);
        let at = *place.entry(key).or_insert(all.len());
        match all.get_mut(at) {
            Some(known) => known.push(row),
            None => all.push(vec![row]),
        }
    }
    all
}

/// Meaning of the last column.
const BUS: &str = "bus: bytes that links carry for a member over the transfer, 2(n - 1)/n of an all-reduce's buffer";

/// Writes the table of collectives, if there are any.
pub fn collectives(out: &mut String, report: &Report, style: TextStyle) -> Result {
    if report.collectives.is_empty() {
        return Ok(());
    }
    let mut table = TextTable::new([
        left("COLLECTIVES", 34),
        right("calls", 8),
        right("bytes", 11),
        right("transfer", 14),
        right("wait", 14),
        right("bus GB/s", 10),
    ])
    .named(style);
    let rows = together(&report.collectives);
    for groups in rows.iter().take(ROWS) {
        add(&mut table, groups, style)?;
    }
    write!(out, "\n{}", table.text(style))?;
    more(out, rows.len(), ROWS, "collectives")?;
    writeln!(
        out,
        "  bytes: mean buffer of a call; transfer: {}\n  {BUS}",
        match report.communication.lasts_as {
            CommTiming::Model => "from last arrival to end, all calls; wait: mean of members",
            CommTiming::Recorded => "longest recorded, all calls; wait: mean of members",
            CommTiming::Captured => "longest recorded, all calls; wait: mean, as captured",
        }
    )?;
    if rows.iter().any(|groups| groups.len() > 1) {
        writeln!(
            out,
            "  of several groups: means of one; JSON and CSV have each"
        )
    } else {
        Ok(())
    }
}

/// Adds the row of `groups`, which are for one thing, or one.
fn add(table: &mut TextTable<'_>, groups: &[&CollectiveRow], style: TextStyle) -> Result {
    let (row, count) = (groups[0], groups.len());
    let mut sum = CollectiveTally::default();
    let mut late: BTreeMap<Rank, Span> = BTreeMap::new();
    let mut present = 0;
    for group in groups {
        sum.calls += group.tally.calls;
        sum.buffers.sum = sum.buffers.sum.saturating_add(group.tally.buffers.sum);
        sum.transfer += group.tally.transfer;
        sum.waited += group.tally.waited;
        present += group.present as usize;
        if let Some(LatestRank { rank, waited }) = group.latest {
            *late.entry(rank).or_default() += waited;
        }
    }
    let what = row.role.as_ref().unwrap_or(&row.group);
    let bus = match sum.bus_bandwidth(row.kind, row.members) {
        Some(bus) => format!("{:.1}", bus / 1e9),
        None => "-".to_owned(),
    };
    let cells: [&dyn Display; 6] = [
        &style.name(&format!("{}, {what}", row.kind)),
        &thousands((sum.calls + count as u64 / 2) / count as u64),
        &Bytes(sum.buffers.sum / sum.calls.max(1)),
        &mean(sum.transfer, count),
        &Span(sum.waited.0 / present.max(1) as u64),
        &bus,
    ];
    table.add(&cells);
    let mut how = match row.role {
        Some(_) => format!("{}: {}", groups_of(count, row.members), row.algorithm),
        None => row.algorithm.clone(),
    };
    let slowest = groups.iter().rev().max_by_key(|group| group.tally.transfer);
    if let Some(slowest) = slowest.filter(|group| group.tally.transfer > mean(sum.transfer, count))
    {
        how += &format!("; slowest: {}, {}", slowest.group, slowest.tally.transfer);
    }
    let latest = late
        .into_iter()
        .max_by_key(|(rank, waited)| (*waited, Reverse(*rank)));
    if let Some((rank, waited)) = latest {
        how += &format!(
            "; {} of the wait is for rank {rank}",
            share(waited, sum.waited)
        );
    }
    let mut lines = String::new();
    paragraph(&mut lines, &how, "    ", 4, TextStyle::default().warning)?;
    table.add_lines(lines);
    Ok(())
}

/// Writes the table of exposed communication, if there is any.
pub fn exposed(out: &mut String, report: &Report, style: TextStyle) -> Result {
    if report.exposed.is_empty() {
        return Ok(());
    }
    let mut sums: BTreeMap<(RowOwner<'_>, u32), (usize, Span)> = BTreeMap::new();
    for (i, row) in report.exposed.iter().enumerate() {
        let whose = row.role.as_deref().ok_or(i);
        let (groups, sum) = sums.entry((whose, row.members)).or_default();
        *groups += 1;
        *sum += row.exposed;
    }
    let rows = sums.into_iter().map(|((whose, members), (groups, sum))| {
        let what = match whose {
            Ok(role) => format!("{role}, {}", groups_of(groups, members)),
            Err(i) => report.exposed[i].what.clone(),
        };
        (what, sum)
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by_key(|(_, sum)| Reverse(*sum));
    let npus = report.rows.len().max(1) as u64;
    let mut table = TextTable::new([
        left("EXPOSED COMMUNICATION", 60),
        right("mean of NPUs", 16),
        right("share", 9),
    ])
    .named(style);
    for (what, sum) in rows.iter().take(ROWS) {
        let mean = Span(sum.0 / npus);
        let share = share(mean, report.outcome.makespan);
        table.add(&[&style.name(what), &mean, &share]);
    }
    write!(out, "\n{}", table.text(style))?;
    more(out, rows.len(), ROWS, "collectives")
}
