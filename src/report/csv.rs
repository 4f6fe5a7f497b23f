//! The report's tables as comma-separated values, one table at a time, with a header line.

use super::operators::Rows;
use super::summary::{Report, kind_label};
use crate::trace::escaped;
use std::fmt::Write as _;

/// Which table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Table {
    /// Where the time of each NPU goes, when its rank finished, and when it did in the capture.
    #[default]
    Npus,
    /// Collectives by group and kind.
    Collectives,
    /// Operators by name, over all micro-batches or of each.
    Operators,
    /// The memory of NPUs: the peak, by class, when and at which node, and what was freed without being there.
    Memory,
}

/// Renders one table of `report`, that of operators with these rows; times are in whole picoseconds.
pub fn render(report: &Report, table: Table, operators: Rows) -> String {
    let mut out = String::new();
    write(&mut out, [(None, report)].into_iter(), table, operators)
        .expect("a string grows as needed");
    out
}

/// Writes one table of reports with one header, each with the name of its machine in front if it has
/// one.
pub(super) fn write<'a>(
    out: &mut String,
    reports: impl Iterator<Item = (Option<&'a str>, &'a Report)>,
    table: Table,
    operators: Rows,
) -> std::fmt::Result {
    type Write = fn(&mut String, &str, &Report, Rows) -> std::fmt::Result;
    let (header, write): (_, Write) = match table {
        Table::Npus => (NPUS, |out, front, report, _| npus(out, front, report)),
        Table::Collectives => (COLLECTIVES, |out, front, report, _| {
            collectives(out, front, report)
        }),
        Table::Operators => (OPERATORS, self::operators),
        Table::Memory => (MEMORY, |out, front, report, _| memory(out, front, report)),
    };
    let mut reports = reports.peekable();
    let named = reports.peek().is_some_and(|(name, _)| name.is_some());
    writeln!(out, "{}{header}", if named { "machine," } else { "" })?;
    for (name, report) in reports {
        let front = name.map_or_else(String::new, |name| format!("{},", quoted(name)));
        write(out, &front, report, operators)?;
    }
    Ok(())
}

const NPUS: &str = "rank,npu,class,compute_ps,communication_ps,memory_ps,host_ps,idle_ps,\
                    makespan_ps,communicating_ps,finish_ps,captured_ps,difference_percent";
const COLLECTIVES: &str = "group,members,kind,algorithm,calls,buffer_bytes_sum,transfer_ps,\
                           waited_ps_sum,bus_bytes_per_s,role";
const OPERATORS: &str = "name,kind,calls,total_ps";
const MEMORY: &str = "rank,npu,capacity_bytes,peak_bytes,weights_bytes,gradients_bytes,optimizer_bytes,\
                      activations_bytes,temporary_bytes,peak_ps,node,name,left_bytes,missing_bytes";

fn npus(out: &mut String, front: &str, report: &Report) -> std::fmt::Result {
    for row in &report.rows {
        write!(
            out,
            "{front}{},{},{}",
            row.rank,
            row.npu,
            quoted(&row.class)
        )?;
        for part in row.time.parts {
            write!(out, ",{}", part.0)?;
        }
        let communicating = row.time.communicating.0;
        let makespan = report.outcome.makespan.0;
        write!(out, ",{makespan},{communicating},{}", row.time.finish.0)?;
        let captured = row.captured.map(|captured| captured.0.to_string());
        let difference = row.difference().map(|percent| format!("{percent:.4}"));
        let known = |field: Option<String>| field.unwrap_or_default();
        writeln!(out, ",{},{}", known(captured), known(difference))?;
    }
    Ok(())
}

fn collectives(out: &mut String, front: &str, report: &Report) -> std::fmt::Result {
    for row in &report.collectives {
        let tally = &row.tally;
        let bus = tally.bus_bandwidth(row.kind, row.members);
        writeln!(
            out,
            "{front}{},{},{},{},{},{},{},{},{},{}",
            quoted(&row.group),
            row.members,
            row.kind,
            quoted(&row.algorithm),
            tally.calls,
            tally.bytes,
            tally.transfer.0,
            tally.waited.0,
            bus.map_or_else(String::new, |bus| format!("{bus:.0}")),
            quoted(row.role.as_deref().unwrap_or_default())
        )?;
    }
    Ok(())
}

fn operators(out: &mut String, front: &str, report: &Report, rows: Rows) -> std::fmt::Result {
    for operator in &*rows.of(&report.operators) {
        writeln!(
            out,
            "{front}{},{},{},{}",
            quoted(&operator.name),
            kind_label(operator.kind),
            operator.calls,
            operator.total.0
        )?;
    }
    Ok(())
}

fn memory(out: &mut String, front: &str, report: &Report) -> std::fmt::Result {
    let sum = |classes: &[u64]| classes.iter().fold(0, |sum: u64, b| sum.saturating_add(*b));
    for row in &report.memory {
        let (capacity, peak) = (row.capacity.0, row.peak.0);
        write!(out, "{front}{},{},{capacity},{peak}", row.rank, row.npu)?;
        for bytes in row.classes {
            write!(out, ",{bytes}")?;
        }
        let node = row.node.as_ref();
        let (id, name) = node.map_or_else(Default::default, |(id, name)| {
            (id.to_string(), quoted(name))
        });
        let missing = row
            .missing
            .as_ref()
            .map_or(0, |missing| sum(&missing.classes));
        writeln!(
            out,
            ",{},{id},{name},{},{missing}",
            row.at.0,
            sum(&row.left)
        )?;
    }
    Ok(())
}

/// A field, in quotes where it needs them (RFC 4180).
///
/// What a terminal or a spreadsheet may take for an order is escaped, ends of lines included, so that a row is a line.
pub fn quoted(text: &str) -> String {
    let text = escaped(text);
    if text.contains([',', '"']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        assert_eq!(quoted("mm"), "mm");
        assert_eq!(quoted("f(a, b)"), "\"f(a, b)\"");
        assert_eq!(quoted("say \"hi\""), "\"say \"\"hi\"\"\"");
    }
}
