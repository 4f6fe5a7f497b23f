//! Tables whose columns are as wide as their cells need: `comfy_table` without lines, two spaces between columns.
//!
//! A [`TextTable`](super::TextTable) has fixed columns instead, since its rows are printed as they come, with other
//! lines between them.

use super::TextColumn;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use std::fmt::Display;

/// Rows of a table, and the columns that they fill.
pub struct FittedTable(Table);

impl FittedTable {
    /// Starts a table with the headings and sides of `columns`; their widths do not count.
    pub fn new(columns: &[TextColumn<'_>]) -> Self {
        let mut table = Table::new();
        table
            .load_preset(presets::NOTHING)
            .set_header(columns.iter().map(|c| c.heading));
        for (column, of) in table.column_iter_mut().zip(columns) {
            column.set_padding((0, 2));
            column.set_cell_alignment(match of.right {
                true => CellAlignment::Right,
                false => CellAlignment::Left,
            });
        }
        Self(table)
    }

    /// Wraps cells so that no line is wider than `width`.
    #[must_use]
    pub fn within(mut self, width: u16) -> Self {
        // The padding behind the last column is cut off.
        self.0
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(width + 2);
        self
    }

    /// Adds a row. A cell may have several lines.
    pub fn row(&mut self, cells: &[&dyn Display]) {
        self.0.add_row(cells.iter().map(ToString::to_string));
    }

    /// Returns the table, headings first.
    pub fn text(&self) -> String {
        let lines = self.0.lines();
        lines.map(|line| format!("{}\n", line.trim_end())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{left, right};
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let mut table = FittedTable::new(&[left("NAME", 0), right("N", 0), left("WHAT", 0)]);
        table.row(&[&"mm", &1234, &"a b"]);
        table.row(&[&"convolution", &7, &"two\nlines"]);
        let text = "NAME            N  WHAT\nmm           1234  a b\nconvolution     7  two\n                   lines\n";
        assert_eq!(table.text(), text);
        let mut table = FittedTable::new(&[left("NAME", 0), left("WHAT", 0)]).within(20);
        table.row(&[&"mm", &"words that are wrapped"]);
        assert!(table.text().lines().count() > 2);
        assert!(table.text().lines().all(|line| line.chars().count() <= 20));
    }
}
