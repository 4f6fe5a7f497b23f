//! Renders the tables of the summary as text.

use super::{ROWS, SummaryWriter};
use crate::inspect::render::SummaryTableKind;
use crate::inspect::render::labels::format_short_count;
use crate::inspect::{InspectedNodeType, NodeSums, RECEIVED, SENT, SumOverRanksAndExtremeRanksRow};
use chakram_base::units::format_count_with_noun;
use chakram_base::units::{Bytes, Span};
use chakram_report::summary::format_thousands;
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_report::text::{format_share, write_paragraph};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::{Display, Result, Write as _};

const OPERATOR_ROWS: usize = 12;

/// An operator (name and type), with the sums over its nodes.
type OperatorRow<'j> = (
    &'j (String, InspectedNodeType),
    &'j SumOverRanksAndExtremeRanksRow,
);

impl SummaryWriter<'_> {
    fn mean_per_rank(&self, time: Span) -> Span {
        Span(time.0 / self.ranks.max(1))
    }

    /// Formats the longest time and its rank. If all ranks have the same time, says so. For a single rank, returns an
    /// empty string.
    fn describe_longest_rank(&self, row: &SumOverRanksAndExtremeRanksRow) -> String {
        if self.ranks < 2 {
            String::new()
        } else if row.least.0 == row.most.0 && u64::from(row.ranks) == self.ranks {
            "equal on all".to_owned()
        } else if row.most.0 == Span::ZERO {
            String::new()
        } else {
            format!("{} (rank {})", row.most.0, row.most.1)
        }
    }

    /// Formats the shortest time and its rank, or how many ranks have no nodes in this row. If all ranks have the same
    /// time, returns an empty string.
    fn describe_shortest_rank(&self, row: &SumOverRanksAndExtremeRanksRow) -> String {
        match self.ranks - u64::from(row.ranks) {
            _ if self.ranks < 2 => String::new(),
            0 if row.least.0 == row.most.0 => String::new(),
            0 => format!("{} (rank {})", row.least.0, row.least.1),
            missing => format!("none on {}", format_count_with_noun(missing, "rank")),
        }
    }

    fn write_table(&mut self, table: &TextTable<'_>) -> Result {
        write!(self.out, "\n{}", table.to_text(self.style))
    }

    fn time_or_mean_of_ranks_heading(&self) -> &'static str {
        if self.ranks < 2 {
            "time"
        } else {
            "mean of ranks"
        }
    }

    pub(super) fn write_types(&mut self) -> Result {
        let (least, most) = if self.ranks < 2 {
            ("", "")
        } else {
            ("min", "max")
        };
        let table = TextTable::new([
            left_aligned_column("TYPES", 16),
            right_aligned_column("nodes", 11),
            right_aligned_column("no time", 8),
            right_aligned_column(self.time_or_mean_of_ranks_heading(), 14),
            right_aligned_column("share", 8),
            left_aligned_column(least, 22).with_gap_before(2),
            left_aligned_column(most, 0),
        ]);
        table.write_heading(&mut self.out, self.style)?;
        let total = self.job.types.sum_over_all_rows();
        for (class, row) in self.job.types.rows_by_key() {
            let cells: [&dyn Display; 7] = [
                class,
                &format_thousands(row.sum.nodes),
                &format_short_count(row.sum.untimed),
                &self.mean_per_rank(row.sum.time),
                &format_share(row.sum.time, total.time),
                &self.describe_shortest_rank(row),
                &self.describe_longest_rank(row),
            ];
            table.write_row(&mut self.out, &cells)?;
        }
        let (nodes, untimed) = (
            format_thousands(total.nodes),
            format_short_count(total.untimed),
        );
        let time = self.mean_per_rank(total.time);
        table.write_row(&mut self.out, &[&"all", &nodes, &untimed, &time])?;
        if total.wait > Span::ZERO {
            let wait = self.mean_per_rank(total.wait);
            let text = format!("  including {wait} waiting for other ranks");
            writeln!(self.out, "{text}")?;
        }
        Ok(())
    }

    pub(super) fn write_lanes(&mut self) -> Result {
        let most = if self.ranks < 2 { "" } else { "max" };
        let mut table = TextTable::new([
            left_aligned_column("LANES", 41),
            right_aligned_column("nodes", 11),
            right_aligned_column(self.time_or_mean_of_ranks_heading(), 14),
            right_aligned_column("share", 9),
            left_aligned_column(most, 0).with_gap_before(3),
        ]);
        let total = self.job.types.sum_over_all_rows().time;
        let rows = self.job.lanes.rows_by_key();
        let count = rows.len();
        for (lane, row) in rows.take(ROWS) {
            let name = match self.job.lane_names.get(lane) {
                Some((name, false)) => format!("{lane}: {name}"),
                Some((name, true)) => format!("{lane}: {name} (differs)"),
                None => lane.to_string(),
            };
            let cells: [&dyn Display; 5] = [
                &self.style.clip_name(&name),
                &format_thousands(row.sum.nodes),
                &self.mean_per_rank(row.sum.time),
                &format_share(row.sum.time, total),
                &self.describe_longest_rank(row),
            ];
            table.add_row(&cells);
        }
        self.write_table(&table)?;
        self.write_omitted_rows(count, ROWS, SummaryTableKind::Lanes)
    }

    pub(super) fn write_collectives(&mut self) -> Result {
        if self.job.collectives.is_empty() {
            return Ok(());
        }
        let most = if self.ranks < 2 { "" } else { "max" };
        let mut table = TextTable::new([
            left_aligned_column("COLLECTIVES", 29),
            right_aligned_column("calls", 9),
            right_aligned_column("bytes", 11),
            right_aligned_column("transfer", 14),
            right_aligned_column("wait", 14),
            left_aligned_column(most, 0).with_gap_before(2),
        ]);
        let rows = self.job.collectives.rows_by_time();
        for ((group, kind), row) in rows.iter().take(ROWS) {
            let sum = &row.sum;
            let cells: [&dyn Display; 6] = [
                &self.style.clip_name(&format!("{kind}, {group}")),
                &format_thousands(sum.nodes),
                &Bytes(sum.bytes / sum.nodes.max(1)),
                &self.mean_per_rank(sum.time - sum.wait),
                &self.mean_per_rank(sum.wait),
                &self.describe_longest_rank(row),
            ];
            table.add_row(&cells);
        }
        self.write_table(&table)?;
        self.write_omitted_rows(rows.len(), ROWS, SummaryTableKind::Collectives)?;
        let of = if self.ranks < 2 {
            ""
        } else {
            "; times: mean of ranks, max including wait"
        };
        let text = format!("calls: nodes of all ranks; bytes: mean per call, as recorded{of}");
        write_paragraph(&mut self.out, &text, "  ", 2, anstyle::Style::new())
    }

    pub(super) fn write_messages(&mut self) -> Result {
        let messages = &self.job.messages;
        if messages.is_empty() {
            return Ok(());
        }
        let table = TextTable::new([
            left_aligned_column("MESSAGES", 20),
            right_aligned_column("sent", 9),
            right_aligned_column("bytes", 11),
            right_aligned_column("time", 14),
            right_aligned_column("received", 11),
            right_aligned_column("time", 14),
            right_aligned_column("waiting", 14),
        ]);
        table.write_heading(&mut self.out, self.style)?;
        let mut rows: Vec<_> = messages.iter().collect();
        let bytes = |ends: &[NodeSums; 2]| ends[SENT].bytes.max(ends[RECEIVED].bytes);
        rows.sort_by_key(|(_, ends)| Reverse(bytes(ends)));
        for ((from, to), ends) in rows.iter().take(ROWS) {
            let (sent, received) = (&ends[SENT], &ends[RECEIVED]);
            let cells: [&dyn Display; 7] = [
                &format!("{from} to {to}"),
                &format_thousands(sent.nodes),
                &Bytes(bytes(ends)),
                &sent.time,
                &format_thousands(received.nodes),
                &received.time,
                &received.wait,
            ];
            table.write_row(&mut self.out, &cells)?;
        }
        self.write_omitted_rows(rows.len(), ROWS, SummaryTableKind::Messages)
    }

    pub(super) fn write_operators(&mut self) -> Result {
        let rows = self.job.operators.rows_by_time();
        let is_host = |((_, class), _): &OperatorRow<'_>| {
            matches!(
                class,
                InspectedNodeType::Host
                    | InspectedNodeType::Metadata
                    | InspectedNodeType::Unreadable
            )
        };
        let (host, device): (Vec<_>, Vec<_>) = rows.into_iter().partition(is_host);
        if host.is_empty() || device.is_empty() {
            return self.write_operator_table("OPERATORS", &[host, device].concat());
        }
        self.write_operator_table("OPERATORS ON DEVICES", &device)?;
        self.write_operator_table("OPERATORS ON HOSTS", &host)
    }

    /// Writes the operators that take longest, each with its share of the total operator time.
    fn write_operator_table(&mut self, title: &str, rows: &[OperatorRow<'_>]) -> Result {
        let mut table = TextTable::new([
            left_aligned_column(title, 33),
            left_aligned_column("type", 14),
            right_aligned_column("nodes", 9),
            right_aligned_column("total", 11),
            right_aligned_column("mean", 11),
            right_aligned_column("share", 8),
            right_aligned_column("FLOPs", 7),
            right_aligned_column("bytes", 7),
        ]);
        let total = self.job.operators.sum_over_all_rows().time;
        for ((name, class), row) in rows.iter().take(OPERATOR_ROWS) {
            let name = if name.is_empty() { "(no name)" } else { name };
            let cells: [&dyn Display; 8] = [
                &self.style.clip_name(name),
                class,
                &format_thousands(row.sum.nodes),
                &format_time_briefly(row.sum.time),
                &format_time_briefly(row.sum.mean_duration()),
                &format_share(row.sum.time, total),
                &format_compact_count(row.sum.flops),
                &format_compact_count(row.sum.bytes),
            ];
            table.add_row(&cells);
        }
        self.write_table(&table)?;
        self.write_omitted_rows(rows.len(), OPERATOR_ROWS, SummaryTableKind::Operators)
    }

    pub(super) fn write_attributes(&mut self) -> Result {
        if self.job.attributes.is_empty() {
            return Ok(());
        }
        self.write_heading("ATTRIBUTES AND FIELDS (number of nodes that have them)")?;
        let mut by_name: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for ((name, kind), nodes) in &self.job.attributes {
            let text = format!("{kind} {}", format_thousands(*nodes));
            by_name.entry(name).or_default().push(text);
        }
        let mut line = String::new();
        for (name, types) in by_name.iter().take(4 * ROWS) {
            let entry = format!(
                "{} ({})",
                self.style.clip_to_width(name, 30),
                types.join(", ")
            );
            line += &if line.is_empty() {
                entry
            } else {
                format!("; {entry}")
            };
        }
        write_paragraph(&mut self.out, &line, "  ", 2, anstyle::Style::new())?;
        self.write_omitted_rows(by_name.len(), 4 * ROWS, SummaryTableKind::Attributes)
    }
}

/// Formats a time in at most ten columns.
fn format_time_briefly(time: Span) -> String {
    let text = time.to_string();
    if text.len() <= 10 {
        text
    } else {
        format!("{:.0} s", time.as_seconds())
    }
}

/// Formats a count in at most six columns, as in `1.2G`.
fn format_compact_count(count: u64) -> String {
    format_short_count(count).replace(' ', "")
}
