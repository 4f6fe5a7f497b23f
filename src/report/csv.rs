//! The report's tables as comma-separated values, one table at a time, with a header line.

use super::{Report, collectives, memory, npus, operators};
use crate::trace::escaped;
use crate::units::Span;
use std::fmt::{Result, Write as _};

/// Choice of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CsvTable {
    /// Breakdown of the time of each NPU, the finish of its rank, and that in the capture.
    #[default]
    Npus,
    /// Collectives by group and kind.
    Collectives,
    /// Operators by name.
    Operators,
    /// The memory of NPUs: the peak, by class, when and at which node, and what was freed without being there.
    Memory,
}

/// A field of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CsvCell<'r> {
    /// Nothing.
    Empty,
    /// A text, in quotes where it needs them.
    Text(&'r str),
    /// A whole number.
    Count(u64),
    /// A number with so many digits behind the point.
    Decimal(f64, usize),
}

impl CsvCell<'_> {
    fn write(self, out: &mut String) -> Result {
        match self {
            Self::Empty => Ok(()),
            Self::Text(text) => write!(out, "{}", quoted(text)),
            Self::Count(count) => write!(out, "{count}"),
            Self::Decimal(number, digits) => write!(out, "{number:.digits$}"),
        }
    }
}

impl<'r> From<&'r str> for CsvCell<'r> {
    fn from(text: &'r str) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for CsvCell<'_> {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<u32> for CsvCell<'_> {
    fn from(count: u32) -> Self {
        Self::Count(count.into())
    }
}

/// In picoseconds.
impl From<Span> for CsvCell<'_> {
    fn from(span: Span) -> Self {
        Self::Count(span.0)
    }
}

impl<'r, T: Into<CsvCell<'r>>> From<Option<T>> for CsvCell<'r> {
    fn from(cell: Option<T>) -> Self {
        cell.map_or(Self::Empty, T::into)
    }
}

/// A column of rows `R` of some whole: its name, and its field of a row.
pub type CsvColumn<W, R> = (&'static str, for<'r> fn(&'r W, &'r R) -> CsvCell<'r>);

/// Writes the names of `columns`, those of `front` before them.
pub fn header<W, R>(out: &mut String, front: &str, columns: &[CsvColumn<W, R>]) -> Result {
    for (i, (name, _)) in columns.iter().enumerate() {
        write!(out, "{}{name}", if i == 0 { front } else { "," })?;
    }
    writeln!(out)
}

/// Writes `rows` of `whole`, each with `front` before it.
pub fn rows<'r, W, R: 'r>(
    out: &mut String,
    front: &str,
    columns: &[CsvColumn<W, R>],
    whole: &'r W,
    rows: impl IntoIterator<Item = &'r R>,
) -> Result {
    for row in rows {
        for (i, (_, cell)) in columns.iter().enumerate() {
            out.push_str(if i == 0 { front } else { "," });
            cell(whole, row).write(out)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Renders one table of `report`; times are in whole picoseconds.
pub fn render(report: &Report, table: CsvTable) -> String {
    let mut out = String::new();
    write(&mut out, &[(None, report)], table).expect("a string grows as needed");
    out
}

/// Writes one table of reports with one header, each with the name of its machine in front if it has
/// one.
pub(super) fn write(
    out: &mut String,
    reports: &[(Option<&str>, &Report)],
    table: CsvTable,
) -> Result {
    match table {
        CsvTable::Npus => each(out, reports, npus::CSV, |report| &report.rows),
        CsvTable::Collectives => each(out, reports, collectives::table::CSV, |report| {
            &report.collectives
        }),
        CsvTable::Operators => each(out, reports, operators::table::CSV, |report| {
            &report.operators
        }),
        CsvTable::Memory => each(out, reports, memory::CSV, |report| &report.memory),
    }
}

fn each<R: 'static>(
    out: &mut String,
    reports: &[(Option<&str>, &Report)],
    columns: &[CsvColumn<Report, R>],
    of: fn(&Report) -> &[R],
) -> Result {
    let named = reports.first().is_some_and(|(name, _)| name.is_some());
    header(out, if named { "machine," } else { "" }, columns)?;
    for (name, report) in reports {
        let front = name.map_or_else(String::new, |name| format!("{},", quoted(name)));
        rows(out, &front, columns, report, of(report))?;
    }
    Ok(())
}

/// A number with so many digits behind the point, if it is known.
pub(super) fn decimal<'r>(number: Option<f64>, digits: usize) -> CsvCell<'r> {
    number.map_or(CsvCell::Empty, |number| CsvCell::Decimal(number, digits))
}

/// A field, in quotes where it needs them (RFC 4180).
///
/// Escapes what a terminal or a spreadsheet may take for an order, ends of lines included, so that a row is a line.
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
