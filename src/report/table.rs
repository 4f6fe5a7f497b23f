//! Text tables: a line of headings, and rows of cells below it. `comfy_table` lays out the tables without lines.
//!
//! Each column of a table has a minimum width. If all rows are [added](TextTable::add_row) before the table is written,
//! each column is as wide as its widest cell. If rows are written one by one, a cell wider than its column's minimum
//! pushes the rest of its row to the right. Names (cells of left-aligned columns) are shortened in the middle, so that
//! no line exceeds the style's width.

use super::text::{MAX_NAME, TABLE_WIDTH, TextStyleWidthAndDetail, cut_middle};
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};
use std::fmt::{Display, Result, Write};
use std::iter::Peekable;
use std::vec::IntoIter;
use textwrap::core::display_width;

/// A column of a text table.
#[derive(Clone, Copy, Debug)]
pub struct TextColumn<'h> {
    heading: &'h str,
    width: usize,
    right: bool,
    gap: usize,
}

/// Creates a left-aligned column with a minimum width.
pub const fn left_aligned_column(heading: &str, width: usize) -> TextColumn<'_> {
    TextColumn {
        heading,
        width,
        right: false,
        gap: 0,
    }
}

/// Creates a right-aligned column with a minimum width.
pub const fn right_aligned_column(heading: &str, width: usize) -> TextColumn<'_> {
    TextColumn {
        right: true,
        ..left_aligned_column(heading, width)
    }
}

impl TextColumn<'_> {
    /// Sets the number of spaces before the column.
    pub const fn with_gap_before(self, gap: usize) -> Self {
        Self { gap, ..self }
    }

    /// Returns the heading.
    pub(crate) const fn heading_text(&self) -> &str {
        self.heading
    }

    /// Returns true if the column is right-aligned, as number columns are.
    pub(crate) const fn is_right_aligned(&self) -> bool {
        self.right
    }

    /// Returns how many spaces must separate a long cell of this column from the next cell. One space is enough for a
    /// column with a minimum width, whose cells are usually shorter.
    const fn min_spaces_before_next_cell(&self) -> usize {
        if self.width > 0 { 1 } else { 2 }
    }

    /// Returns how many spaces precede and follow a cell of this column. `next` is the following column.
    fn spaces_before_and_after_cell(&self, first: bool, next: Option<&Self>) -> (u16, u16) {
        let before = match self.right && !first {
            true => self.gap.max(self.min_spaces_before_next_cell()),
            false => self.gap,
        };
        let after = match next {
            Some(next) if !next.right => {
                self.min_spaces_before_next_cell().saturating_sub(next.gap)
            }
            _ => 0,
        };
        (before as u16, after as u16)
    }
}

/// A line of a table: a row of cells, or free text.
#[derive(Clone, Debug)]
enum RowOrFreeTextLine {
    Row(Vec<String>),
    Text(String),
}

/// A text table: its columns, and the rows added so far.
#[derive(Clone, Debug)]
pub struct TextTable<'h> {
    columns: Vec<TextColumn<'h>>,
    indent: usize,
    width: Option<u16>,
    /// Maximum number of characters per line of a cell.
    longest: usize,
    /// Maximum width of a line of the table.
    limit: usize,
    lines: Vec<RowOrFreeTextLine>,
}

impl<'h> TextTable<'h> {
    /// Creates a table with these columns. Rows are indented by two spaces, but the first heading is
    /// not.
    pub fn new(columns: impl Into<Vec<TextColumn<'h>>>) -> Self {
        Self {
            columns: columns.into(),
            indent: 2,
            width: None,
            longest: MAX_NAME,
            limit: TABLE_WIDTH,
            lines: Vec::new(),
        }
    }

    /// Shortens names so that lines fit the width of `style`. With a style that shows all details, names stay whole.
    pub fn with_shortened_names(self, style: TextStyleWidthAndDetail) -> Self {
        Self {
            longest: style.longest_name(),
            limit: line_width_limit_of_style(style),
            ..self
        }
    }

    /// Sets the number of spaces before each row.
    pub fn with_indent(self, indent: usize) -> Self {
        Self { indent, ..self }
    }

    /// Wraps the text in cells so that no line is wider than `width`.
    pub fn wrap_cells_to_width(self, width: u16) -> Self {
        Self {
            width: Some(width),
            ..self
        }
    }

    /// Adds a row with one cell per element of `cells`. A cell may have several lines.
    pub fn add_row(&mut self, cells: &[&dyn Display]) {
        self.lines.push(RowOrFreeTextLine::Row(
            self.format_and_shorten_row_cells(cells),
        ));
    }

    /// Adds free text below the last row. Allowed only if every cell of the table has a single line.
    pub fn add_free_text(&mut self, text: String) {
        self.lines.push(RowOrFreeTextLine::Text(text));
    }

    /// Renders the headings and all added rows.
    pub fn to_text(&self, style: TextStyleWidthAndDetail) -> String {
        self.render_with_headings(
            Some(self.heading_cells()),
            style,
            line_width_limit_of_style(style),
        )
    }

    /// Renders all added rows, without headings.
    pub fn render_rows(&self) -> String {
        self.render_with_headings(None, TextStyleWidthAndDetail::default(), self.limit)
    }

    fn render_with_headings(
        &self,
        headings: Option<Vec<String>>,
        style: TextStyleWidthAndDetail,
        limit: usize,
    ) -> String {
        let rows = self.lines.iter().filter_map(|line| match line {
            RowOrFreeTextLine::Row(cells) => Some(cells.clone()),
            RowOrFreeTextLine::Text(_) => None,
        });
        let headed = headings.is_some();
        let mut arranged = self.arrange_rows(headings.into_iter().chain(rows).collect(), limit);
        let first = arranged.next_if(|_| headed);
        let mut out = first.map_or_else(String::new, |line| style_line(&line, style.heading));
        for line in &self.lines {
            match line {
                RowOrFreeTextLine::Row(_) => out.extend(arranged.next().map(|line| line + "\n")),
                RowOrFreeTextLine::Text(text) => out += text,
            }
        }
        out.extend(arranged.map(|line| line + "\n"));
        out
    }

    /// Renders the line of headings.
    pub fn render_heading_line(&self, style: TextStyleWidthAndDetail) -> String {
        self.render_row_as_styled_line(self.heading_cells(), style.heading)
    }

    /// Renders an empty line, then the line of headings.
    pub fn render_empty_line_and_headings(&self, style: TextStyleWidthAndDetail) -> String {
        format!("\n{}", self.render_heading_line(style))
    }

    /// Renders one row on one line; cells missing at the end are empty.
    pub fn render_line(&self, cells: &[&dyn Display], style: anstyle::Style) -> String {
        self.render_row_as_styled_line(self.format_and_shorten_row_cells(cells), style)
    }

    /// Writes the line of headings.
    pub fn write_heading(&self, out: &mut dyn Write, style: TextStyleWidthAndDetail) -> Result {
        out.write_str(&self.render_empty_line_and_headings(style))
    }

    /// Writes a row.
    pub fn write_row(&self, out: &mut dyn Write, cells: &[&dyn Display]) -> Result {
        self.write_styled_row(out, cells, anstyle::Style::new())
    }

    /// Writes a row in the text style `style`.
    pub fn write_styled_row(
        &self,
        out: &mut dyn Write,
        cells: &[&dyn Display],
        style: anstyle::Style,
    ) -> Result {
        out.write_str(&self.render_line(cells, style))
    }

    fn heading_cells(&self) -> Vec<String> {
        self.columns.iter().map(|c| c.heading.to_owned()).collect()
    }

    fn format_and_shorten_row_cells(&self, cells: &[&dyn Display]) -> Vec<String> {
        let mut cells: Vec<String> = cells.iter().map(ToString::to_string).collect();
        if self.width.is_none() {
            let longest = self.longest;
            cells
                .iter_mut()
                .for_each(|cell| shorten_cell(cell, longest));
        }
        if let Some(first) = cells.first_mut() {
            first.insert_str(0, &" ".repeat(self.indent));
        }
        cells
    }

    fn render_row_as_styled_line(&self, cells: Vec<String>, style: anstyle::Style) -> String {
        let line = self.arrange_rows(vec![cells], self.limit).next();
        style_line(&line.unwrap_or_default(), style)
    }

    /// Lays out `rows`, and returns their lines without trailing spaces.
    fn arrange_rows(&self, mut rows: Vec<Vec<String>>, limit: usize) -> Peekable<IntoIter<String>> {
        let least = match self.width {
            Some(_) => self.columns.iter().map(|of| of.gap + of.width).collect(),
            None => self.shrink_columns(&mut rows, limit),
        };
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_content_arrangement(match self.width {
            Some(_) => ContentArrangement::Dynamic,
            None => ContentArrangement::Disabled,
        });
        if let Some(width) = self.width {
            table.set_width(width);
        }
        for cells in rows {
            table.add_row(cells);
        }
        for (i, column) in table.column_iter_mut().enumerate() {
            let of = &self.columns[i];
            column.set_padding(of.spaces_before_and_after_cell(i == 0, self.columns.get(i + 1)));
            let least = Width::Fixed(least[i] as u16);
            column.set_constraint(ColumnConstraint::LowerBoundary(least));
            column.set_cell_alignment(match of.right {
                true => CellAlignment::Right,
                false => CellAlignment::Left,
            });
        }
        let lines = table.lines().map(|line| line.trim_end().to_owned());
        lines.collect::<Vec<_>>().into_iter().peekable()
    }

    /// Shortens cells of left-aligned columns, beginning with the widest column, until no line is wider than `limit`.
    /// Returns the minimum width of each column, including the spaces around its cells.
    fn shrink_columns(&self, rows: &mut [Vec<String>], limit: usize) -> Vec<usize> {
        let mut least: Vec<_> = self.columns.iter().map(|of| of.gap + of.width).collect();
        let mut cells = vec![0; self.columns.len()];
        for row in rows.iter() {
            for (width, cell) in cells.iter_mut().zip(row) {
                *width = cell.split('\n').map(display_width).fold(*width, usize::max);
            }
        }
        let padding = |i: usize| {
            let (before, after) =
                self.columns[i].spaces_before_and_after_cell(i == 0, self.columns.get(i + 1));
            usize::from(before + after)
        };
        // Trailing spaces do not count towards a line's width.
        let last = cells.iter().rposition(|width| *width > 0).unwrap_or(0);
        let width = |i: usize, cells: &[usize], least: &[usize]| match i == last {
            true if !self.columns[i].right => cells[i] + padding(i),
            _ => (cells[i] + padding(i)).max(least[i]),
        };
        let total = |cells: &[usize], least: &[usize]| -> usize {
            (0..=last).map(|i| width(i, cells, least)).sum()
        };
        if total(&cells, &least) <= limit {
            return least;
        }
        let cut: Vec<_> = (0..=last).filter(|&i| !self.columns[i].right).collect();
        let natural = cells.clone();
        while total(&cells, &least) > limit {
            let widest = cut.iter().copied().max_by_key(|&i| cells[i]);
            let Some(i) = widest.filter(|&i| cells[i] > MIN_NAME) else {
                break;
            };
            let excess = total(&cells, &least) - limit;
            let next = cut.iter().filter(|&&other| other != i).map(|&i| cells[i]);
            let next = next.max().unwrap_or(0).min(cells[i] - 1);
            cells[i] = cells[i].saturating_sub(excess).max(next).max(MIN_NAME);
            least[i] = least[i].min(cells[i] + padding(i));
        }
        // If lines are still too long, the screen is too narrow for the minimum widths, so drop them.
        if total(&cells, &least) > limit {
            least.fill(0);
        }
        for row in rows {
            for (i, cell) in row.iter_mut().enumerate() {
                if cells[i] < natural[i] {
                    shorten_cell(cell, cells[i]);
                }
            }
        }
        least
    }
}

/// Names are not shortened below this width.
const MIN_NAME: usize = 16;

fn line_width_limit_of_style(style: TextStyleWidthAndDetail) -> usize {
    match style.details {
        true => usize::MAX,
        false => style.width,
    }
}

/// Shortens each line of a cell to at most `most` columns.
fn shorten_cell(cell: &mut String, most: usize) {
    if cell.len() > most {
        let lines: Vec<_> = cell
            .split('\n')
            .map(|line| cut_middle(line, most))
            .collect();
        *cell = lines.join("\n");
    }
}

fn style_line(line: &str, style: anstyle::Style) -> String {
    format!("{style}{line}{style:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stand_under_their_headings() {
        let columns = [
            left_aligned_column("NAME", 8),
            right_aligned_column("time", 6),
            left_aligned_column("most", 6).with_gap_before(2),
        ];
        let table = TextTable::new(columns);
        let mut out = String::new();
        table
            .write_heading(&mut out, TextStyleWidthAndDetail::default())
            .unwrap();
        table.write_row(&mut out, &[&"mm", &7, &"x"]).unwrap();
        table.write_row(&mut out, &[&"all", &12]).unwrap();
        table
            .with_indent(0)
            .write_row(&mut out, &[&"a", &1])
            .unwrap();
        assert_eq!(
            out,
            "\nNAME      time  most\n  mm         7  x\n  all       12\na            1\n"
        );
    }

    /// The widest cell of the first column has 13 letters, and rows are indented by 2. The second column is 6
    /// characters wide, including one space on each side of its cells.
    #[test]
    fn added_rows_widen_their_columns() {
        let mut table = TextTable::new([
            left_aligned_column("NAME", 8),
            right_aligned_column("time", 6),
            left_aligned_column("most", 0),
        ]);
        table.add_row(&[&"mm", &7, &"x"]);
        table.add_free_text("    of two\n".to_owned());
        table.add_row(&[&"a_longer_name", &12, &"y"]);
        assert_eq!(
            table.to_text(TextStyleWidthAndDetail::default()),
            "NAME            time most\n  mm               7 x\n    of two\n  a_longer_name   12 y\n"
        );
    }

    /// The numbers take 1 + 6 of the 120 columns, and 2 spaces precede the second name, so 111 columns remain for the
    /// names. The shorter name keeps its full length.
    #[test]
    fn names_are_cut_in_the_middle_so_that_lines_fit() {
        let name = format!("begin{}end", "x".repeat(200));
        let cells = |style| {
            let mut table = TextTable::new([
                left_aligned_column("NAME", 8),
                right_aligned_column("time", 6),
                left_aligned_column("LANE", 0),
            ]);
            table.add_row(&[&name, &7, &"stream 7"]);
            table.to_text(style)
        };
        let text = cells(TextStyleWidthAndDetail::default());
        let widths: Vec<_> = text.lines().map(|line| line.chars().count()).collect();
        assert_eq!(widths[1], 120, "{text}");
        let row = text.lines().next_back().unwrap();
        assert!(
            row.starts_with("  beginxxx") && row.contains("xxxend "),
            "{row}"
        );
        assert!(row.ends_with(" 7 stream 7"), "{row}");
        let narrow = TextStyleWidthAndDetail {
            width: 60,
            ..TextStyleWidthAndDetail::default()
        };
        assert!(cells(narrow).lines().all(|line| line.chars().count() <= 60));
        let details = TextStyleWidthAndDetail {
            details: true,
            ..TextStyleWidthAndDetail::default()
        };
        assert!(cells(details).contains(&name));
        // If rows are written one by one, names are shortened too.
        let mut out = String::new();
        let table = TextTable::new([
            right_aligned_column("time", 6),
            left_aligned_column("NAME", 8),
        ])
        .with_shortened_names(narrow);
        table.write_row(&mut out, &[&7, &name]).unwrap();
        assert_eq!(out.trim_end().chars().count(), 60, "{out}");
    }

    #[test]
    fn columns_without_a_width_are_two_spaces_apart() {
        let columns = [
            left_aligned_column("NAME", 0),
            right_aligned_column("N", 0),
            right_aligned_column("M", 0),
            left_aligned_column("WHAT", 0),
        ];
        let mut table = TextTable::new(columns).with_indent(0);
        table.add_row(&[&"mm", &1234, &1, &"a b"]);
        table.add_row(&[&"convolution", &7, &22, &"two\nlines"]);
        let text = "NAME            N   M  WHAT\n\
                    mm           1234   1  a b\n\
                    convolution     7  22  two\n                       lines\n";
        assert_eq!(table.to_text(TextStyleWidthAndDetail::default()), text);
        let mut table = TextTable::new([
            left_aligned_column("NAME", 0),
            left_aligned_column("WHAT", 0),
        ])
        .wrap_cells_to_width(20);
        table.add_row(&[&"mm", &"words that are wrapped"]);
        let text = table.to_text(TextStyleWidthAndDetail::default());
        assert!(text.lines().count() > 2);
        assert!(text.lines().all(|line| line.chars().count() <= 20));
    }
}
