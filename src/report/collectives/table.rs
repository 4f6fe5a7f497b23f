//! Tables of collectives and exposed communication. Groups with the same role share a row.

use super::GroupCollectiveTotals;
use super::{CollectiveRow, LongestAwaitedRank};
use crate::Report;
use crate::csv::{CsvColumn, decimal_cell};
use crate::section::{
    ReportTableSubject, ReportTableWithNotes, ReportTextDetailsOrPage, SectionCellWithValue,
    SectionNote, SectionTableRow,
};
use crate::summary::{format_group_count_and_size, mean_span_from_sum};
use crate::table::{left_aligned_column, right_aligned_column};
use crate::text::format_share;
use chakram_base::ids::Rank;
use chakram_base::units::{Bytes, Span};
use chakram_engine::CommunicationDurationSource;
use chakram_trace::format::CollectiveKind;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Maximum number of rows in the text; JSON and CSV have all rows.
const ROWS: usize = 24;

/// Columns of the CSV table of collectives.
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
    ("bus_bytes_per_s", |_, row| decimal_cell(row.bus, 0)),
    ("role", |_, row| row.role.as_deref().into()),
];

/// Key by which rows are merged: the group's role. Groups without a role are never merged, so their key is the index of
/// their report row.
type GroupRoleMergeKey<'r> = Result<&'r str, usize>;

/// Key of a table row: role (or index of the report row), kind, number of members, and algorithm.
type CollectiveRowKey<'r> = (GroupRoleMergeKey<'r>, CollectiveKind, u32, &'r str);

/// Groups report rows that are shown as one table row. Returns the indices of each group's rows, in order of first
/// occurrence.
pub(crate) fn row_indices_shown_as_one_table_row(rows: &[CollectiveRow]) -> Vec<Vec<usize>> {
    let mut place: BTreeMap<CollectiveRowKey<'_>, usize> = BTreeMap::new();
    let mut all: Vec<Vec<usize>> = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        let whose = row.role.as_deref().ok_or(i);
        let key = (whose, row.kind, row.members, &row.algorithm[..]);
        let at = *place.entry(key).or_insert(all.len());
        match all.get_mut(at) {
            Some(known) => known.push(i),
            None => all.push(vec![i]),
        }
    }
    all
}

/// Note that explains the `bus` column.
const BUS: &str = "bus: bytes that links carry for a member over the transfer, 2(n - 1)/n of an all-reduce's buffer";

/// Returns the table of collectives, if there are any.
pub fn build_collective_sections(
    report: &Report,
    medium: ReportTextDetailsOrPage,
) -> Vec<ReportTableWithNotes> {
    if report.collectives.is_empty() {
        return Vec::new();
    }
    let mut section = ReportTableWithNotes::create_table_with_aligned_columns(
        ReportTableSubject::Collectives,
        [
            left_aligned_column("COLLECTIVES", 34),
            right_aligned_column("calls", 8),
            right_aligned_column("bytes", 11),
            right_aligned_column("transfer", 14),
            right_aligned_column("wait", 14),
            right_aligned_column("bus GB/s", 10),
        ],
    );
    let rows = row_indices_shown_as_one_table_row(&report.collectives);
    let shown = medium.max_rows_shown(ROWS);
    for groups in rows.iter().take(shown) {
        section.push_row(row_of(report, groups));
    }
    section.leave_out(rows.len(), shown, "collectives");
    section.push_note(SectionNote::from_one_line_sentence(format!(
        "bytes: mean buffer of a call; transfer: {}",
        match report.communication.lasts_as {
            CommunicationDurationSource::Model =>
                "from last arrival to end, all calls; wait: mean of members",
            CommunicationDurationSource::Recorded =>
                "longest recorded, all calls; wait: mean of members",
            CommunicationDurationSource::Captured =>
                "longest recorded, all calls; wait: mean, as captured",
        }
    )));
    section.push_note(SectionNote::from_one_line_sentence(BUS));
    if rows.iter().any(|groups| groups.len() > 1) {
        section.push_note(SectionNote::from_one_line_sentence(
            "of several groups: means of one; JSON and CSV have each",
        ));
    }
    vec![section]
}

/// Combines the report rows at `indices` (all rows of one role, or a single row) into one table row.
fn row_of(report: &Report, indices: &[usize]) -> SectionTableRow {
    let groups = || indices.iter().map(|&i| &report.collectives[i]);
    let (row, count) = (&report.collectives[indices[0]], indices.len());
    let mut sum = GroupCollectiveTotals::default();
    let mut late: BTreeMap<Rank, Span> = BTreeMap::new();
    let mut present = 0;
    for group in groups() {
        sum.calls += group.tally.calls;
        sum.buffers.sum = sum.buffers.sum.saturating_add(group.tally.buffers.sum);
        sum.transfer += group.tally.transfer;
        sum.waited += group.tally.waited;
        present += group.present as usize;
        if let Some(LongestAwaitedRank { rank, waited }) = group.latest {
            *late.entry(rank).or_default() += waited;
        }
    }
    let what = row.role.as_ref().unwrap_or(&row.group);
    let bus = sum.bus_bandwidth(row.kind, row.members);
    // Only a row for a single group gets a JSON pointer, because the report has no sums over several groups.
    let at = |field: &str| (count == 1).then(|| format!("/collectives/{}/{field}", indices[0]));
    let cells = vec![
        SectionCellWithValue::create_cell_with_input_name(format!("{}, {what}", row.kind)),
        SectionCellWithValue::count_cell((sum.calls + count as u64 / 2) / count as u64)
            .with_optional_json_pointer(at("calls")),
        Bytes(sum.buffers.sum / sum.calls.max(1)).into(),
        SectionCellWithValue::from(mean_span_from_sum(sum.transfer, count))
            .with_optional_json_pointer(at("transfer_ps")),
        Span(sum.waited.0 / present.max(1) as u64).into(),
        match (bus, row.bus.filter(|_| count == 1)) {
            (None, _) => "-".into(),
            (Some(bus), None) => {
                SectionCellWithValue::number_cell(bus, format!("{:.1}", bus / 1e9))
            }
            (Some(_), Some(own)) => {
                SectionCellWithValue::number_cell(own, format!("{:.1}", own / 1e9))
                    .with_optional_json_pointer(at("bus_bytes_per_s"))
            }
        },
    ];
    let mut how = match row.role {
        Some(_) => format!(
            "{}: {}",
            format_group_count_and_size(count, row.members),
            row.algorithm
        ),
        None => row.algorithm.clone(),
    };
    let slowest = groups().rev().max_by_key(|group| group.tally.transfer);
    if let Some(slowest) =
        slowest.filter(|group| group.tally.transfer > mean_span_from_sum(sum.transfer, count))
    {
        how += &format!("; slowest: {}, {}", slowest.group, slowest.tally.transfer);
    }
    let latest = late
        .into_iter()
        .max_by_key(|(rank, waited)| (*waited, Reverse(*rank)));
    if let Some((rank, waited)) = latest {
        how += &format!(
            "; {} of the wait is for rank {rank}",
            format_share(waited, sum.waited)
        );
    }
    SectionTableRow {
        cells,
        note: Some(SectionNote::from_text_that_report_wraps(how)),
        alarm: None,
    }
}

/// Returns the table of exposed communication, if there is any.
pub fn build_exposed_sections(
    report: &Report,
    medium: ReportTextDetailsOrPage,
) -> Vec<ReportTableWithNotes> {
    if report.exposed.is_empty() {
        return Vec::new();
    }
    let mut sums: BTreeMap<(GroupRoleMergeKey<'_>, u32), (usize, Span)> = BTreeMap::new();
    for (i, row) in report.exposed.iter().enumerate() {
        let whose = row.role.as_deref().ok_or(i);
        let (groups, sum) = sums.entry((whose, row.members)).or_default();
        *groups += 1;
        *sum += row.exposed;
    }
    let rows = sums.into_iter().map(|((whose, members), (groups, sum))| {
        let what = match whose {
            Ok(role) => format!("{role}, {}", format_group_count_and_size(groups, members)),
            Err(i) => report.exposed[i].what.clone(),
        };
        (what, sum)
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by_key(|(_, sum)| Reverse(*sum));
    let npus = report.rows.len().max(1) as u64;
    let mut section = ReportTableWithNotes::create_table_with_aligned_columns(
        ReportTableSubject::Exposed,
        [
            left_aligned_column("EXPOSED COMMUNICATION", 60),
            right_aligned_column("mean of NPUs", 16),
            right_aligned_column("share", 9),
        ],
    );
    let shown = medium.max_rows_shown(ROWS);
    for (what, sum) in rows.iter().take(shown) {
        let mean = Span(sum.0 / npus);
        let share = SectionCellWithValue::percent_cell(mean, report.outcome.makespan);
        section.push_row(vec![
            SectionCellWithValue::create_cell_with_input_name(what),
            mean.into(),
            share,
        ]);
    }
    section.leave_out(rows.len(), shown, "collectives");
    vec![section]
}
