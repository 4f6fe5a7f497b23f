//! Writes node tables as CSV.

use super::{NodeColumnValues, NodeTable};
use crate::csv::{CsvCell, CsvRows};
use std::io::{self, Write};

/// Number of rows that are formatted per write.
const ROWS_AT_ONCE: usize = 1 << 14;

impl NodeColumnValues<'_> {
    /// Returns the field of a row, or an empty field if the value is unknown.
    fn cell_text(&self, row: usize) -> CsvCell<'_> {
        match self {
            Self::U32(numbers) => numbers[row].into(),
            Self::U64(numbers) => numbers[row].into(),
            Self::PartialU32(column) => column.get(row).into(),
            Self::PartialU64(column) => column.get(row).into(),
            Self::Text(column) => column.get(row).into(),
        }
    }
}

impl NodeTable {
    /// Writes the table as CSV with a header line and times in picoseconds.
    ///
    /// # Errors
    ///
    /// Fails if writing to `out` fails.
    pub fn write_csv(&self, out: &mut dyn Write) -> io::Result<()> {
        let columns = self.list_columns();
        let mut rows = CsvRows::new(&Self::COLUMNS.join(","));
        for row in 0..self.len() {
            rows.add_row_of_cells(columns.iter().map(|column| column.cell_text(row)));
            if row % ROWS_AT_ONCE == ROWS_AT_ONCE - 1 {
                let full = std::mem::replace(&mut rows, CsvRows::without_header());
                out.write_all(full.into_text().as_bytes())?;
            }
        }
        out.write_all(rows.into_text().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::build_example_table;

    #[test]
    fn cells_are_quoted_and_unknown_ones_empty() {
        let mut text = Vec::new();
        build_example_table().write_csv(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let mut lines = text.lines();
        assert_eq!(
            lines.next(),
            Some(
                "rank,node,name,class,start_ps,end_ps,lane,waited_for,waited_rank,waited_node,partner_rank,partner_node"
            )
        );
        assert_eq!(
            lines.next(),
            Some("0,0,\"a, b\",compute,0,18446744073709551615,compute,release,,,,")
        );
        // The number 8589934592 is 1 << 33. An apostrophe precedes a name that looks like a formula.
        assert_eq!(
            lines.next(),
            Some("1,8589934592,'=c,compute,1,18446744073709551615,compute,lane,1,7,,")
        );
        assert_eq!(lines.count(), 8);
    }
}
