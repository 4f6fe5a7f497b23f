//! Tables for people: a heading, and rows of cells in columns under it.

mod fitted;

pub use fitted::FittedTable;

use super::text::TextStyle;
use std::fmt::{Display, Result, Write};

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct TextColumn<'h> {
    heading: &'h str,
    width: usize,
    right: bool,
    gap: usize,
}

/// Returns a column whose cells begin at its left side.
pub const fn left(heading: &str, width: usize) -> TextColumn<'_> {
    TextColumn {
        heading,
        width,
        right: false,
        gap: 0,
    }
}

/// Returns a column whose cells end at its right side.
pub const fn right(heading: &str, width: usize) -> TextColumn<'_> {
    TextColumn {
        right: true,
        ..left(heading, width)
    }
}

impl TextColumn<'_> {
    /// Sets so many spaces before the column.
    pub const fn after(self, gap: usize) -> Self {
        Self { gap, ..self }
    }

    fn put(&self, line: &mut String, cell: &str, indent: usize) {
        line.extend(std::iter::repeat_n(' ', self.gap + indent));
        let width = self.width.saturating_sub(indent);
        let room = " ".repeat(width.saturating_sub(cell.chars().count()));
        let (before, behind) = if self.right {
            (room.as_str(), "")
        } else {
            ("", room.as_str())
        };
        line.extend([before, cell, behind]);
    }
}

/// Columns, and how far rows are indented under the heading of the first.
#[derive(Clone, Debug)]
pub struct TextTable<'h> {
    columns: Vec<TextColumn<'h>>,
    indent: usize,
}

impl<'h> TextTable<'h> {
    /// A table of `columns`, whose rows are indented by two.
    pub fn new(columns: impl Into<Vec<TextColumn<'h>>>) -> Self {
        Self {
            columns: columns.into(),
            indent: 2,
        }
    }

    /// Sets how far rows are indented.
    pub fn indented(self, indent: usize) -> Self {
        Self { indent, ..self }
    }

    /// Returns the line of headings.
    pub fn first_line(&self, style: TextStyle) -> String {
        let mut line = String::new();
        for column in &self.columns {
            column.put(&mut line, column.heading, 0);
        }
        let h = style.heading;
        format!("{h}{}{h:#}\n", line.trim_end())
    }

    /// Returns the line of headings, after an empty one.
    pub fn headings(&self, style: TextStyle) -> String {
        format!("\n{}", self.first_line(style))
    }

    /// Returns the line of a row; cells that are not there at its end are empty.
    pub fn line(&self, cells: &[&dyn Display], style: anstyle::Style) -> String {
        let mut line = String::new();
        let mut indent = self.indent;
        for (column, cell) in self.columns.iter().zip(cells) {
            column.put(&mut line, &cell.to_string(), std::mem::take(&mut indent));
        }
        format!("{style}{}{style:#}\n", line.trim_end())
    }

    /// Writes the headings.
    pub fn heading(&self, out: &mut dyn Write, style: TextStyle) -> Result {
        out.write_str(&self.headings(style))
    }

    /// Writes a row.
    pub fn row(&self, out: &mut dyn Write, cells: &[&dyn Display]) -> Result {
        self.styled_row(out, cells, anstyle::Style::new())
    }

    /// Writes a row that stands out.
    pub fn styled_row(
        &self,
        out: &mut dyn Write,
        cells: &[&dyn Display],
        style: anstyle::Style,
    ) -> Result {
        out.write_str(&self.line(cells, style))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stand_under_their_headings() {
        let columns = [left("NAME", 8), right("time", 6), left("most", 6).after(2)];
        let table = TextTable::new(columns);
        let mut out = String::new();
        table.heading(&mut out, TextStyle::default()).unwrap();
        table.row(&mut out, &[&"mm", &7, &"x"]).unwrap();
        table.row(&mut out, &[&"all", &12]).unwrap();
        table.indented(0).row(&mut out, &[&"a", &1]).unwrap();
        assert_eq!(
            out,
            "\nNAME      time  most\n  mm         7  x\n  all       12\na            1\n"
        );
    }
}
