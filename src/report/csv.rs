//! CSV files with a header line.

use chakram_base::units::Span;
use chakram_trace::format::escape_control_characters;
use std::borrow::Cow;
use std::fmt::{self, Display, Formatter, Write as _};

/// A field of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CsvCell<'r> {
    /// Writes nothing.
    Empty,
    /// A string; written in quotes if it contains commas, quotes or line ends.
    Text(&'r str),
    /// An integer.
    Count(u64),
    /// A number, and its number of decimals.
    Decimal(f64, usize),
}

impl Display for CsvCell<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Empty => Ok(()),
            Self::Text(text) => f.write_str(text),
            Self::Count(count) => write!(f, "{count}"),
            Self::Decimal(number, digits) => write!(f, "{number:.digits$}"),
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

/// Converts a time to an integer of picoseconds.
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

/// A column of a CSV table: its name, and a function that returns its field in a row `R`. The function is also passed
/// `W`, the value that contains the rows, such as a report.
pub type CsvColumn<W, R> = (&'static str, for<'r> fn(&'r W, &'r R) -> CsvCell<'r>);

/// Returns the text of a cell, changed so that spreadsheets do not treat it as a formula. Puts an apostrophe before a
/// cell that begins with `=`, `+`, `-`, `@`, a tab or a carriage return, unless the cell is a number (OWASP, CSV
/// injection).
pub fn neutralize_formulas(cell: &str) -> Cow<'_, str> {
    let is_formula = cell.starts_with(['=', '+', '-', '@', '\t', '\r']);
    match is_formula && cell.parse::<f64>().is_err() {
        true => Cow::Owned(format!("'{cell}")),
        false => Cow::Borrowed(cell),
    }
}

/// CSV rows (RFC 4180), written with the `csv` package.
///
/// Characters that a terminal or a spreadsheet could interpret as a command are escaped. Line ends are escaped too, so
/// each row is one line.
pub struct CsvRows {
    writer: csv::Writer<Vec<u8>>,
    cell: String,
}

impl CsvRows {
    /// Creates rows below `header`, the column names separated by commas.
    pub fn new(header: &str) -> Self {
        let mut rows = Self::without_header();
        rows.add_row_of_cells(header.split(','));
        rows
    }

    /// Creates rows without a header.
    pub fn without_header() -> Self {
        Self {
            writer: csv::WriterBuilder::new()
                .flexible(true)
                .from_writer(Vec::new()),
            cell: String::new(),
        }
    }

    /// Adds a row with one field per element of `cells`.
    pub fn add_row(&mut self, cells: &[&dyn Display]) {
        self.add_row_of_cells(cells);
    }

    /// Adds a row with one field per item of `cells`.
    pub fn add_row_of_cells<C: Display>(&mut self, cells: impl IntoIterator<Item = C>) {
        for cell in cells {
            self.cell.clear();
            write!(self.cell, "{cell}").expect("a string grows as needed");
            let written =
                self.writer
                    .write_field(&*escape_control_characters(&neutralize_formulas(
                        &self.cell,
                    )));
            written.expect("memory takes what is written");
        }
        let ended = self.writer.write_record(None::<&[u8]>);
        ended.expect("memory takes what is written");
    }

    /// Returns the size of the rows added so far, in bytes.
    pub fn byte_count(&mut self) -> usize {
        self.writer.flush().expect("memory takes what is written");
        self.writer.get_ref().len()
    }

    /// Returns the rows as text.
    pub fn into_text(self) -> String {
        let bytes = self.writer.into_inner();
        let bytes = bytes.expect("memory takes what is written");
        String::from_utf8(bytes).expect("cells and commas are UTF-8")
    }

    /// Adds a header with the names of `columns`. `front`, if given, is the first column.
    pub(super) fn add_header<W, R>(&mut self, front: Option<&str>, columns: &[CsvColumn<W, R>]) {
        self.add_row_of_cells(
            front
                .into_iter()
                .chain(columns.iter().map(|(name, _)| *name)),
        );
    }

    /// Adds one CSV row for each of `rows`, which belong to `whole`. `front`, if given, is the first field of each row.
    pub(super) fn add_rows<'r, W, R: 'r>(
        &mut self,
        front: Option<&'r str>,
        columns: &[CsvColumn<W, R>],
        whole: &'r W,
        rows: impl IntoIterator<Item = &'r R>,
    ) {
        for row in rows {
            let cells = columns.iter().map(|(_, cell)| cell(whole, row));
            self.add_row_of_cells(front.map(CsvCell::Text).into_iter().chain(cells));
        }
    }
}

/// Formats a number with `digits` decimals. An unknown number becomes an empty field.
pub(super) fn decimal_cell<'r>(number: Option<f64>, digits: usize) -> CsvCell<'r> {
    number.map_or(CsvCell::Empty, |number| CsvCell::Decimal(number, digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formula_like_names_are_neutralised_but_numbers_are_not() {
        let mut rows = CsvRows::without_header();
        rows.add_row_of_cells([
            "=1+1",
            "+x",
            "-x",
            "@x",
            "-1.5e3",
            "+2",
            "-2+cmd|' /C calc'!A0",
            "a=b",
            "",
        ]);
        let expected = "'=1+1,'+x,'-x,'@x,-1.5e3,+2,'-2+cmd|' /C calc'!A0,a=b,\n";
        assert_eq!(rows.into_text(), expected);
        assert_eq!(
            [neutralize_formulas("\tx"), neutralize_formulas("\rx")],
            ["'\tx", "'\rx"]
        );
    }

    #[test]
    fn fields_are_quoted_where_they_must_be_and_rows_are_lines() {
        let mut rows = CsvRows::new("name,count");
        rows.add_row(&[&"mm", &1]);
        rows.add_row(&[&"f(a, b)", &CsvCell::Empty]);
        assert_eq!(rows.byte_count(), 11 + 5 + 11);
        rows.add_row(&[&"say \"hi\"", &CsvCell::Decimal(0.5, 2)]);
        rows.add_row(&[&"two\nlines", &""]);
        assert_eq!(
            rows.into_text(),
            "name,count\nmm,1\n\"f(a, b)\",\n\"say \"\"hi\"\"\",0.50\ntwo\\u{a}lines,\n"
        );
    }
}
