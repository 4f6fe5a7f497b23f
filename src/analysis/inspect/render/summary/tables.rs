//! Renders the tables of the summary.

use super::{ROWS, SummaryWriter};
use crate::inspect::render::InspectTable;
use crate::inspect::render::labels::short;
use crate::inspect::{NodeClass, NodeSums, RECEIVED, SENT, SpreadRow};
use chakram_base::units::counted;
use chakram_base::units::{Bytes, Span};
use chakram_report::summary::thousands;
use chakram_report::table::{TextTable, left, right};
use chakram_report::text::{paragraph, share};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::{Display, Result, Write as _};

const OPERATOR_ROWS: usize = 12;

/// An operator by name and class, and the sums over its nodes.
type OperatorRow<'j> = (&'j (String, NodeClass), &'j SpreadRow);

impl SummaryWriter<'_> {
    fn mean(&self, time: Span) -> Span {
        Span(time.0 / self.ranks.max(1))
    }

    /// Formats the rank with the most time, if ranks differ.
    fn most(&self, row: &SpreadRow) -> String {
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

    /// Formats the rank with the least time, if ranks differ.
    fn least(&self, row: &SpreadRow) -> String {
        match self.ranks - u64::from(row.ranks) {
            _ if self.ranks < 2 => String::new(),
            0 if row.least.0 == row.most.0 => String::new(),
            0 => format!("{} (rank {})", row.least.0, row.least.1),
            missing => format!("none on {}", counted(missing, "rank")),
        }
    }

    fn table(&mut self, table: &TextTable<'_>) -> Result {
        write!(self.out, "\n{}", table.text(self.style))
    }

    fn time_heading(&self) -> &'static str {
        if self.ranks < 2 {
            "time"
        } else {
            "mean of ranks"
        }
    }

    pub(super) fn types(&mut self) -> Result {
        let (least, most) = if self.ranks < 2 {
            ("", "")
        } else {
            ("min", "max")
        };
        let table = TextTable::new([
            left("TYPES", 16),
            right("nodes", 11),
            right("no time", 8),
            right(self.time_heading(), 14),
            right("share", 8),
            left(least, 22).after(2),
            left(most, 0),
        ]);
        table.heading(&mut self.out, self.style)?;
        let total = self.job.types.total();
        for (class, row) in self.job.types.rows() {
            let cells: [&dyn Display; 7] = [
                class,
                &thousands(row.sum.nodes),
                &short(row.sum.untimed),
                &self.mean(row.sum.time),
                &share(row.sum.time, total.time),
                &self.least(row),
                &self.most(row),
            ];
            table.row(&mut self.out, &cells)?;
        }
        let (nodes, untimed) = (thousands(total.nodes), short(total.untimed));
        let time = self.mean(total.time);
        table.row(&mut self.out, &[&"all", &nodes, &untimed, &time])?;
        if total.wait > Span::ZERO {
            let wait = self.mean(total.wait);
            let text = format!("  including {wait} waiting for other ranks");
            writeln!(self.out, "{text}")?;
        }
        Ok(())
    }

    pub(super) fn lanes(&mut self) -> Result {
        let most = if self.ranks < 2 { "" } else { "max" };
        let mut table = TextTable::new([
            left("LANES", 41),
            right("nodes", 11),
            right(self.time_heading(), 14),
            right("share", 9),
            left(most, 0).after(3),
        ]);
        let total = self.job.types.total().time;
        let rows = self.job.lanes.rows();
        let count = rows.len();
        for (lane, row) in rows.take(ROWS) {
            let name = match self.job.lane_names.get(lane) {
                Some((name, false)) => format!("{lane}: {name}"),
                Some((name, true)) => format!("{lane}: {name} (differs)"),
                None => lane.to_string(),
            };
            let cells: [&dyn Display; 5] = [
                &self.style.name(&name),
                &thousands(row.sum.nodes),
                &self.mean(row.sum.time),
                &share(row.sum.time, total),
                &self.most(row),
            ];
            table.add(&cells);
        }
        self.table(&table)?;
        self.more_rows(count, ROWS, InspectTable::Lanes)
    }

    pub(super) fn collectives(&mut self) -> Result {
        if self.job.collectives.is_empty() {
            return Ok(());
        }
        let most = if self.ranks < 2 { "" } else { "max" };
        let mut table = TextTable::new([
            left("COLLECTIVES", 29),
            right("calls", 9),
            right("bytes", 11),
            right("transfer", 14),
            right("wait", 14),
            left(most, 0).after(2),
        ]);
        let rows = self.job.collectives.by_time();
        for ((group, kind), row) in rows.iter().take(ROWS) {
            let sum = &row.sum;
            let cells: [&dyn Display; 6] = [
                &self.style.name(&format!("{kind}, {group}")),
                &thousands(sum.nodes),
                &Bytes(sum.bytes / sum.nodes.max(1)),
                &self.mean(sum.time - sum.wait),
                &self.mean(sum.wait),
                &self.most(row),
            ];
            table.add(&cells);
        }
        self.table(&table)?;
        self.more_rows(rows.len(), ROWS, InspectTable::Collectives)?;
        let of = if self.ranks < 2 {
            ""
        } else {
            "; times: mean of ranks, max including wait"
        };
        let text = format!("calls: nodes of all ranks; bytes: mean per call, as recorded{of}");
        paragraph(&mut self.out, &text, "  ", 2, anstyle::Style::new())
    }

    pub(super) fn messages(&mut self) -> Result {
        let messages = &self.job.messages;
        if messages.is_empty() {
            return Ok(());
        }
        let table = TextTable::new([
            left("MESSAGES", 20),
            right("sent", 9),
            right("bytes", 11),
            right("time", 14),
            right("received", 11),
            right("time", 14),
            right("waiting", 14),
        ]);
        table.heading(&mut self.out, self.style)?;
        let mut rows: Vec<_> = messages.iter().collect();
        let bytes = |ends: &[NodeSums; 2]| ends[SENT].bytes.max(ends[RECEIVED].bytes);
        rows.sort_by_key(|(_, ends)| Reverse(bytes(ends)));
        for ((from, to), ends) in rows.iter().take(ROWS) {
            let (sent, received) = (&ends[SENT], &ends[RECEIVED]);
            let cells: [&dyn Display; 7] = [
                &format!("{from} to {to}"),
                &thousands(sent.nodes),
                &Bytes(bytes(ends)),
                &sent.time,
                &thousands(received.nodes),
                &received.time,
                &received.wait,
            ];
            table.row(&mut self.out, &cells)?;
        }
        self.more_rows(rows.len(), ROWS, InspectTable::Messages)
    }

    pub(super) fn operators(&mut self) -> Result {
        let rows = self.job.operators.by_time();
        let is_host = |((_, class), _): &OperatorRow<'_>| {
            matches!(
                class,
                NodeClass::Host | NodeClass::Metadata | NodeClass::Unreadable
            )
        };
        let (host, device): (Vec<_>, Vec<_>) = rows.into_iter().partition(is_host);
        if host.is_empty() || device.is_empty() {
            return self.operators_of("OPERATORS", &[host, device].concat());
        }
        self.operators_of("OPERATORS ON DEVICES", &device)?;
        self.operators_of("OPERATORS ON HOSTS", &host)
    }

    /// Writes the operators with the most time, with their shares of the total time of operators.
    fn operators_of(&mut self, title: &str, rows: &[OperatorRow<'_>]) -> Result {
        let mut table = TextTable::new([
            left(title, 33),
            left("type", 14),
            right("nodes", 9),
            right("total", 11),
            right("mean", 11),
            right("share", 8),
            right("FLOPs", 7),
            right("bytes", 7),
        ]);
        let total = self.job.operators.total().time;
        for ((name, class), row) in rows.iter().take(OPERATOR_ROWS) {
            let name = if name.is_empty() { "(no name)" } else { name };
            let cells: [&dyn Display; 8] = [
                &self.style.name(name),
                class,
                &thousands(row.sum.nodes),
                &brief(row.sum.time),
                &brief(row.sum.mean()),
                &share(row.sum.time, total),
                &tight(row.sum.flops),
                &tight(row.sum.bytes),
            ];
            table.add(&cells);
        }
        self.table(&table)?;
        self.more_rows(rows.len(), OPERATOR_ROWS, InspectTable::Operators)
    }

    pub(super) fn attributes(&mut self) -> Result {
        if self.job.attributes.is_empty() {
            return Ok(());
        }
        self.heading("ATTRIBUTES AND FIELDS (number of nodes that have them)")?;
        let mut by_name: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for ((name, kind), nodes) in &self.job.attributes {
            let text = format!("{kind} {}", thousands(*nodes));
            by_name.entry(name).or_default().push(text);
        }
        let mut line = String::new();
        for (name, types) in by_name.iter().take(4 * ROWS) {
            let entry = format!("{} ({})", self.style.clip(name, 30), types.join(", "));
            line += &if line.is_empty() {
                entry
            } else {
                format!("; {entry}")
            };
        }
        paragraph(&mut self.out, &line, "  ", 2, anstyle::Style::new())?;
        self.more_rows(by_name.len(), 4 * ROWS, InspectTable::Attributes)
    }
}

/// Formats a time in at most ten columns.
fn brief(time: Span) -> String {
    let text = time.to_string();
    if text.len() <= 10 {
        text
    } else {
        format!("{:.0} s", time.seconds())
    }
}

/// Formats a count in at most six columns, such as `1.2G`.
fn tight(count: u64) -> String {
    short(count).replace(' ', "")
}
