//! The tables of the summary.

use super::{ROWS, View};
use crate::cli::inspect::words::{short, some};
use crate::inspect::{RECEIVED, Row, SENT, Table, Tally};
use crate::report::summary::thousands;
use crate::report::text::{clip, paragraph, share};
use crate::units::{Bytes, Span};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::{Result, Write as _};

const OPERATOR_ROWS: usize = 12;

impl View<'_> {
    fn mean(&self, time: Span) -> Span {
        Span(time.0 / self.ranks.max(1))
    }

    /// Formats the rank with the most time, if ranks differ.
    fn most(&self, row: &Row) -> String {
        if self.ranks < 2 {
            String::new()
        } else if row.least.0 == row.most.0 && u64::from(row.ranks) == self.ranks {
            "all alike".to_owned()
        } else if row.most.0 == Span::ZERO {
            String::new()
        } else {
            format!("{} (rank {})", row.most.0, row.most.1)
        }
    }

    /// Formats the rank with the least time, if ranks differ.
    fn least(&self, row: &Row) -> String {
        match self.ranks - u64::from(row.ranks) {
            _ if self.ranks < 2 => String::new(),
            0 if row.least.0 == row.most.0 => String::new(),
            0 => format!("{} (rank {})", row.least.0, row.least.1),
            missing => format!("none on {}", some(missing, "rank")),
        }
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
            ("least", "most")
        };
        self.heading(&format!(
            "{:<16}{:>11}{:>8}{:>14}{:>8}  {:<22}{most}",
            "TYPES",
            "nodes",
            "no time",
            self.time_heading(),
            "share",
            least
        ))?;
        let total = self.job.types.total();
        for (class, row) in self.job.types.rows() {
            let line = format!(
                "  {:<14}{:>11}{:>8}{:>14}{:>8}  {:<22}{}",
                class.to_string(),
                thousands(row.sum.nodes),
                short(row.sum.untimed),
                self.mean(row.sum.time),
                share(row.sum.time, total.time),
                self.least(row),
                self.most(row)
            );
            writeln!(self.out, "{}", line.trim_end())?;
        }
        let line = format!(
            "  {:<14}{:>11}{:>8}{:>14}",
            "all",
            thousands(total.nodes),
            short(total.untimed),
            self.mean(total.time)
        );
        writeln!(self.out, "{line}")?;
        if total.wait > Span::ZERO {
            let wait = self.mean(total.wait);
            let text = format!("  of it {wait} waiting for other ranks");
            writeln!(self.out, "{text}")?;
        }
        Ok(())
    }

    pub(super) fn lanes(&mut self) -> Result {
        let most = if self.ranks < 2 { "" } else { "most" };
        self.heading(&format!(
            "{:<41}{:>11}{:>14}{:>9}   {most}",
            "LANES",
            "nodes",
            self.time_heading(),
            "share"
        ))?;
        let total = self.job.types.total().time;
        let rows = self.job.lanes.rows();
        let count = rows.len();
        for (lane, row) in rows.take(ROWS) {
            let name = match self.job.lane_names.get(lane) {
                Some((name, false)) => format!("{lane}: {name}"),
                Some((name, true)) => format!("{lane}: {name} (differs)"),
                None => lane.to_string(),
            };
            let line = format!(
                "  {:<39}{:>11}{:>14}{:>9}   {}",
                clip(&name, 38),
                thousands(row.sum.nodes),
                self.mean(row.sum.time),
                share(row.sum.time, total),
                self.most(row)
            );
            writeln!(self.out, "{}", line.trim_end())?;
        }
        self.more(count, ROWS, "--format csv --table lanes")
    }

    pub(super) fn collectives(&mut self) -> Result {
        if self.job.collectives.is_empty() {
            return Ok(());
        }
        let most = if self.ranks < 2 { "" } else { "most" };
        let line = format!(
            "{:<29}{:>9}{:>11}{:>14}{:>14}  {most}",
            "COLLECTIVES", "calls", "bytes", "transfer", "wait"
        );
        self.heading(&line)?;
        let rows = self.job.collectives.by_time();
        for ((group, kind), row) in rows.iter().take(ROWS) {
            let sum = &row.sum;
            let line = format!(
                "  {:<27}{:>9}{:>11}{:>14}{:>14}  {}",
                clip(&format!("{kind}, {group}"), 26),
                thousands(sum.nodes),
                Bytes(sum.bytes / sum.nodes.max(1)),
                self.mean(sum.time - sum.wait),
                self.mean(sum.wait),
                self.most(row)
            );
            writeln!(self.out, "{}", line.trim_end())?;
        }
        self.more(rows.len(), ROWS, "--format csv --table collectives")?;
        let of = if self.ranks < 2 {
            ""
        } else {
            "; times: mean of ranks, most with wait"
        };
        let text =
            format!("calls: nodes of all ranks; bytes: mean of a call, as the file says{of}");
        paragraph(&mut self.out, &text, "  ", 2, anstyle::Style::new())
    }

    pub(super) fn messages(&mut self) -> Result {
        let messages = &self.job.messages;
        if messages.is_empty() {
            return Ok(());
        }
        self.heading(&format!(
            "{:<20}{:>9}{:>11}{:>14}{:>11}{:>14}{:>14}",
            "MESSAGES", "sent", "bytes", "time", "received", "time", "of it wait"
        ))?;
        let mut rows: Vec<_> = messages.iter().collect();
        let bytes = |ends: &[Tally; 2]| ends[SENT].bytes.max(ends[RECEIVED].bytes);
        rows.sort_by_key(|(_, ends)| Reverse(bytes(ends)));
        for ((from, to), ends) in rows.iter().take(ROWS) {
            let (sent, received) = (&ends[SENT], &ends[RECEIVED]);
            writeln!(
                self.out,
                "  {:<18}{:>9}{:>11}{:>14}{:>11}{:>14}{:>14}",
                format!("{from} to {to}"),
                thousands(sent.nodes),
                Bytes(bytes(ends)),
                sent.time,
                thousands(received.nodes),
                received.time,
                received.wait
            )?;
        }
        self.more(rows.len(), ROWS, "--format csv --table messages")
    }

    pub(super) fn operators(&mut self) -> Result {
        self.heading(&format!(
            "{:<33}{:<14}{:>9}{:>11}{:>11}{:>8}{:>7}{:>7}",
            "OPERATORS", "type", "nodes", "total", "mean", "share", "FLOPs", "bytes"
        ))?;
        let table: &Table<_> = &self.job.operators;
        let total = table.total().time;
        let rows = table.by_time();
        for ((name, class), row) in rows.iter().take(OPERATOR_ROWS) {
            let name = if name.is_empty() { "(no name)" } else { name };
            writeln!(
                self.out,
                "  {:<31}{:<14}{:>9}{:>11}{:>11}{:>8}{:>7}{:>7}",
                clip(name, 30),
                class.to_string(),
                thousands(row.sum.nodes),
                brief(row.sum.time),
                brief(row.sum.mean()),
                share(row.sum.time, total),
                tight(row.sum.flops),
                tight(row.sum.bytes)
            )?;
        }
        self.more(rows.len(), OPERATOR_ROWS, "--format csv --table operators")
    }

    pub(super) fn attributes(&mut self) -> Result {
        if self.job.attributes.is_empty() {
            return Ok(());
        }
        self.heading("ATTRIBUTES AND FIELDS, with the nodes that have them")?;
        let mut by_name: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for ((name, kind), nodes) in &self.job.attributes {
            let text = format!("{kind} {}", thousands(*nodes));
            by_name.entry(name).or_default().push(text);
        }
        let mut line = String::new();
        for (name, types) in by_name.iter().take(4 * ROWS) {
            let entry = format!("{} ({})", clip(name, 30), types.join(", "));
            line += &if line.is_empty() {
                entry
            } else {
                format!("; {entry}")
            };
        }
        paragraph(&mut self.out, &line, "  ", 2, anstyle::Style::new())?;
        self.more(by_name.len(), 4 * ROWS, "--format csv --table attributes")
    }
}

/// Formats a time in at most ten columns.
fn brief(time: Span) -> String {
    let text = time.to_string();
    match text.len() <= 10 {
        true => text,
        false => format!("{:.0} s", time.seconds()),
    }
}

/// Formats a count in at most six columns: `1.2G`.
fn tight(count: u64) -> String {
    short(count).replace(' ', "")
}
