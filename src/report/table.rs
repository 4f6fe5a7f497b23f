//! Tables for people: headings, and rows of cells in columns under them, arranged by `comfy_table` without lines.
//!
//! Columns have a least width. In a table whose rows are [added](TextTable::add) they are as wide as their widest cell; of
//! rows that are written one by one, a longer cell moves the rest of its own.

use super::text::{MAX_NAME, TextStyle, shortened};
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};
use std::fmt::{Display, Result, Write};
use std::iter::Peekable;
use std::vec::IntoIter;

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct TextColumn<'h> {
    heading: &'h str,
    width: usize,
    right: bool,
    gap: usize,
}

/// Returns a column of at least `width` whose cells begin at its left side.
pub const fn left(heading: &str, width: usize) -> TextColumn<'_> {
    TextColumn {
        heading,
        width,
        right: false,
        gap: 0,
    }
}

/// Returns a column of at least `width` whose cells end at its right side.
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

    /// Spaces between long cells of this column and of its neighbours: a width has room for more.
    const fn separation(&self) -> usize {
        if self.width > 0 { 1 } else { 2 }
    }

    /// Spaces before and after cells in front of the column `next`.
    fn padding(&self, first: bool, next: Option<&Self>) -> (u16, u16) {
        let before = match self.right && !first {
            true => self.gap.max(self.separation()),
            false => self.gap,
        };
        let after = match next {
            Some(next) if !next.right => self.separation().saturating_sub(next.gap),
            _ => 0,
        };
        (before as u16, after as u16)
    }
}

/// A line of a table.
#[derive(Clone, Debug)]
enum TableLine {
    Row(Vec<String>),
    Text(String),
}

/// Columns, and rows that were added.
#[derive(Clone, Debug)]
pub struct TextTable<'h> {
    columns: Vec<TextColumn<'h>>,
    indent: usize,
    width: Option<u16>,
    /// Characters of a line of a cell, at most.
    longest: usize,
    lines: Vec<TableLine>,
}

impl<'h> TextTable<'h> {
    /// A table of `columns`, whose rows are indented by two under the heading of the first.
    pub fn new(columns: impl Into<Vec<TextColumn<'h>>>) -> Self {
        Self {
            columns: columns.into(),
            indent: 2,
            width: None,
            longest: MAX_NAME,
            lines: Vec::new(),
        }
    }

    /// Has whole names where `style` has all details.
    pub fn named(self, style: TextStyle) -> Self {
        Self {
            longest: style.longest_name(),
            ..self
        }
    }

    /// Sets how far rows are indented.
    pub fn indented(self, indent: usize) -> Self {
        Self { indent, ..self }
    }

    /// Wraps cells so that no line is wider than `width`.
    pub fn within(self, width: u16) -> Self {
        Self {
            width: Some(width),
            ..self
        }
    }

    /// Adds a row. A cell may have several lines.
    pub fn add(&mut self, cells: &[&dyn Display]) {
        self.lines.push(TableLine::Row(self.cells(cells)));
    }

    /// Adds lines of their own below the last row, in a table whose cells have one line each.
    pub fn add_lines(&mut self, text: String) {
        self.lines.push(TableLine::Text(text));
    }

    /// Returns the headings and the rows that were added.
    pub fn text(&self, style: TextStyle) -> String {
        self.whole(Some(self.heading_cells()), style)
    }

    /// Returns the rows that were added, of a table without headings.
    pub fn rows(&self) -> String {
        self.whole(None, TextStyle::default())
    }

    fn whole(&self, headings: Option<Vec<String>>, style: TextStyle) -> String {
        let rows = self.lines.iter().filter_map(|line| match line {
            TableLine::Row(cells) => Some(cells.clone()),
            TableLine::Text(_) => None,
        });
        let headed = headings.is_some();
        let mut arranged = self.arranged(headings.into_iter().chain(rows));
        let first = arranged.next_if(|_| headed);
        let mut out = first.map_or_else(String::new, |line| styled(&line, style.heading));
        for line in &self.lines {
            match line {
                TableLine::Row(_) => out.extend(arranged.next().map(|line| line + "\n")),
                TableLine::Text(text) => out += text,
            }
        }
        out.extend(arranged.map(|line| line + "\n"));
        out
    }

    /// Returns the line of headings.
    pub fn first_line(&self, style: TextStyle) -> String {
        self.alone(self.heading_cells(), style.heading)
    }

    /// Returns the line of headings, after an empty one.
    pub fn headings(&self, style: TextStyle) -> String {
        format!("\n{}", self.first_line(style))
    }

    /// Returns the line of a row; cells that are not there at its end are empty.
    pub fn line(&self, cells: &[&dyn Display], style: anstyle::Style) -> String {
        self.alone(self.cells(cells), style)
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

    fn heading_cells(&self) -> Vec<String> {
        self.columns.iter().map(|c| c.heading.to_owned()).collect()
    }

    fn cells(&self, cells: &[&dyn Display]) -> Vec<String> {
        let mut cells: Vec<String> = cells.iter().map(ToString::to_string).collect();
        if self.width.is_none() {
            let longest = self.longest;
            cells.iter_mut().for_each(|cell| shorten(cell, longest));
        }
        if let Some(first) = cells.first_mut() {
            first.insert_str(0, &" ".repeat(self.indent));
        }
        cells
    }

    fn alone(&self, cells: Vec<String>, style: anstyle::Style) -> String {
        let line = self.arranged(std::iter::once(cells)).next();
        styled(&line.unwrap_or_default(), style)
    }

    /// Returns the lines of `rows`, without spaces at their ends.
    fn arranged(&self, rows: impl Iterator<Item = Vec<String>>) -> Peekable<IntoIter<String>> {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_content_arrangement(match self.width {
            Some(_) => ContentArrangement::Dynamic,
            None => ContentArrangement::Disabled,
        });
        if let Some(width) = self.width {
            table.set_width(width);
        }
        rows.for_each(|cells| {
            table.add_row(cells);
        });
        for (i, column) in table.column_iter_mut().enumerate() {
            let of = &self.columns[i];
            column.set_padding(of.padding(i == 0, self.columns.get(i + 1)));
            let least = Width::Fixed((of.gap + of.width) as u16);
            column.set_constraint(ColumnConstraint::LowerBoundary(least));
            column.set_cell_alignment(match of.right {
                true => CellAlignment::Right,
                false => CellAlignment::Left,
            });
        }
        let lines = table.lines().map(|line| line.trim_end().to_owned());
        lines.collect::<Vec<_>>().into_iter().peekable()
    }
}

/// Cuts each line of a cell that is longer than `most`.
fn shorten(cell: &mut String, most: usize) {
    if cell.len() > most {
        let lines: Vec<_> = cell.split('\n').map(|line| shortened(line, most)).collect();
        *cell = lines.join("\n");
    }
}

fn styled(line: &str, style: anstyle::Style) -> String {
    format!("{style}{line}{style:#}\n")
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

    /// The widest cell of the first column has 13 letters behind its indentation of 2; the second has 6 columns, one of
    /// them on either side of its cells.
    #[test]
    fn added_rows_widen_their_columns() {
        let mut table = TextTable::new([left("NAME", 8), right("time", 6), left("most", 0)]);
        table.add(&[&"mm", &7, &"x"]);
        table.add_lines("    of two\n".to_owned());
        table.add(&[&"a_longer_name", &12, &"y"]);
        assert_eq!(
            table.text(TextStyle::default()),
            "NAME            time most\n  mm               7 x\n    of two\n  a_longer_name   12 y\n"
        );
    }

    #[test]
    fn columns_without_a_width_are_two_spaces_apart() {
        let columns = [
            left("NAME", 0),
            right("N", 0),
            right("M", 0),
            left("WHAT", 0),
        ];
        let mut table = TextTable::new(columns).indented(0);
        table.add(&[&"mm", &1234, &1, &"a b"]);
        table.add(&[&"convolution", &7, &22, &"two\nlines"]);
        let text = "NAME            N   M  WHAT\n\
                    mm           1234   1  a b\n\
                    convolution     7  22  two\n                       lines\n";
        assert_eq!(table.text(TextStyle::default()), text);
        let mut table = TextTable::new([left("NAME", 0), left("WHAT", 0)]).within(20);
        table.add(&[&"mm", &"words that are wrapped"]);
        let text = table.text(TextStyle::default());
        assert!(text.lines().count() > 2);
        assert!(text.lines().all(|line| line.chars().count() <= 20));
    }
}
