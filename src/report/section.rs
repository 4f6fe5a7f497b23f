//! A report's tables as data. The text and the page render the same cells, so they contain the same facts.

use super::table::{TextColumn, TextTable};
use super::text::{TextStyleWidthAndDetail, write_paragraph};
use chakram_base::setting::SettingKey;
use chakram_base::units::{Bytes, Span};
use std::fmt::{Display, Result, Write as _};

/// Maximum number of table rows on a page.
const PAGE_ROWS: usize = 64;

/// Output form of a report. It determines how many rows, and how much of each name, are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReportTextDetailsOrPage {
    /// Text with only the most important rows.
    Text,
    /// Text with all details and rows.
    Details,
    /// An HTML page.
    Page,
}

impl ReportTextDetailsOrPage {
    /// Returns the medium for text with `style`.
    pub fn medium_of_text_style(style: TextStyleWidthAndDetail) -> Self {
        match style.details {
            true => Self::Details,
            false => Self::Text,
        }
    }

    /// Returns the maximum number of rows to show; `rows` is the maximum for a text.
    pub fn max_rows_shown(self, rows: usize) -> usize {
        match self {
            Self::Text | Self::Details => rows,
            Self::Page => rows.max(PAGE_ROWS),
        }
    }

    /// Like [`Self::max_rows_shown`], but without a limit for text with all details.
    pub fn rows_shown_or_all_in_details(self, rows: usize) -> usize {
        match self {
            Self::Details => usize::MAX,
            _ => self.max_rows_shown(rows),
        }
    }

    /// Shortens a name in a sentence to `width` columns, unless all details are shown.
    pub fn clip_name(self, name: &str, width: usize) -> String {
        let style = TextStyleWidthAndDetail {
            details: self != Self::Text,
            ..TextStyleWidthAndDetail::default()
        };
        style.clip_to_width(name, width)
    }
}

/// A cell of a table: the displayed text, and the exact value.
#[derive(Clone, Debug, Default)]
pub(crate) struct SectionCellWithValue {
    pub text: String,
    /// Exact value, by which rows are sorted and compared.
    pub value: Option<String>,
    /// JSON pointer to the value; `None` if the report does not contain the value.
    pub pointer: Option<String>,
    /// True if the text is a name from an input; such names are shortened for display.
    pub is_name: bool,
}

impl SectionCellWithValue {
    /// Creates a cell that shows a name from an input.
    pub fn create_cell_with_input_name(text: impl Into<String>) -> Self {
        Self {
            is_name: true,
            ..Self::from(text.into())
        }
    }

    /// Creates a cell with the exact number `value`, displayed as `shown`.
    pub fn number_cell(value: impl Display, shown: impl Display) -> Self {
        Self {
            value: Some(value.to_string()),
            ..Self::from(shown.to_string())
        }
    }

    /// Creates a cell that shows `part` as a percentage of `whole`.
    pub fn percent_cell(part: Span, whole: Span) -> Self {
        let shown = super::text::format_share(part, whole);
        match whole {
            Span::ZERO => shown.into(),
            _ => Self::number_cell(part.0 as f64 / whole.0 as f64, shown),
        }
    }

    /// Creates a cell with a count, displayed with thousands separators.
    pub fn count_cell(count: u64) -> Self {
        Self::number_cell(count, super::summary::format_thousands(count))
    }

    /// Sets the JSON pointer to the value in the report.
    pub fn with_json_pointer(self, pointer: impl Into<String>) -> Self {
        Self {
            pointer: Some(pointer.into()),
            ..self
        }
    }

    /// Sets the JSON pointer to the value in the report, if there is one.
    pub fn with_optional_json_pointer(self, pointer: Option<String>) -> Self {
        Self { pointer, ..self }
    }
}

impl From<String> for SectionCellWithValue {
    fn from(text: String) -> Self {
        Self {
            text,
            ..Self::default()
        }
    }
}

impl From<&str> for SectionCellWithValue {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

impl From<Span> for SectionCellWithValue {
    fn from(span: Span) -> Self {
        Self::number_cell(span.0, span)
    }
}

impl From<Bytes> for SectionCellWithValue {
    fn from(bytes: Bytes) -> Self {
        Self::number_cell(bytes.0, bytes)
    }
}

/// A row of a table. A note may follow it, and it may be marked for a reason.
#[derive(Clone, Debug, Default)]
pub(crate) struct SectionTableRow {
    pub cells: Vec<SectionCellWithValue>,
    /// Note to show below the row.
    pub note: Option<SectionNote>,
    /// Why the row is marked; `None` if it is not.
    pub alarm: Option<String>,
}

impl From<Vec<SectionCellWithValue>> for SectionTableRow {
    fn from(cells: Vec<SectionCellWithValue>) -> Self {
        Self {
            cells,
            ..Self::default()
        }
    }
}

/// A sentence that is shown below a row or a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct SectionNote {
    pub text: String,
    fit: LongNoteCutOrWrap,
    /// True if the sentence is a warning.
    pub warns: bool,
}

/// How to handle a sentence that is longer than a line of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LongNoteCutOrWrap {
    #[default]
    Stays,
    IsCut,
    Wraps,
}

impl SectionNote {
    /// Creates a sentence that fits on one line.
    pub fn from_one_line_sentence(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            ..Self::default()
        }
    }

    /// Creates a sentence that contains a name; the text report shortens it to one line.
    pub fn from_text_cut_to_one_line(text: impl Into<String>) -> Self {
        Self {
            fit: LongNoteCutOrWrap::IsCut,
            ..Self::from_one_line_sentence(text)
        }
    }

    /// Creates a sentence of any length; the text report wraps it.
    pub fn from_text_that_report_wraps(text: impl Into<String>) -> Self {
        Self {
            fit: LongNoteCutOrWrap::Wraps,
            ..Self::from_one_line_sentence(text)
        }
    }

    /// Marks the sentence as a warning if `warns` is true.
    pub fn mark_warning_if(self, warns: bool) -> Self {
        Self { warns, ..self }
    }
}

/// Subject of a table. The subject determines the table's chapter on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReportTableSubject {
    Breakdown,
    Launches,
    Steps,
    Ranks,
    Finishes,
    Memory,
    Collectives,
    Dimensions,
    Links,
    Exposed,
    Tiles,
    MemoryAccesses,
    Modules,
    Operators,
    CriticalPath,
    Sensitivities,
}

/// A table with its notes.
#[derive(Clone, Debug)]
pub(crate) struct ReportTableWithNotes {
    pub id: ReportTableSubject,
    pub columns: Vec<TextColumn<'static>>,
    pub rows: Vec<SectionTableRow>,
    /// True if the text report makes each column as wide as its widest cell. If false, a wide cell pushes the rest of
    /// its row to the right.
    aligned: bool,
    /// Sentence that states how many rows were omitted.
    pub left_out: Option<String>,
    pub notes: Vec<SectionNote>,
}

impl ReportTableWithNotes {
    /// Creates an empty table without aligned columns. In the text report, a wide cell pushes the rest of its row to
    /// the right.
    pub fn new(id: ReportTableSubject, columns: impl Into<Vec<TextColumn<'static>>>) -> Self {
        Self {
            id,
            columns: columns.into(),
            rows: Vec::new(),
            aligned: false,
            left_out: None,
            notes: Vec::new(),
        }
    }

    /// Creates an empty table with aligned columns. In the text report, each column is as wide as its widest cell.
    pub fn create_table_with_aligned_columns(
        id: ReportTableSubject,
        columns: impl Into<Vec<TextColumn<'static>>>,
    ) -> Self {
        Self {
            aligned: true,
            ..Self::new(id, columns)
        }
    }

    /// Adds a row.
    pub fn push_row(&mut self, row: impl Into<SectionTableRow>) {
        self.rows.push(row.into());
    }

    /// Adds a sentence below the table.
    pub fn push_note(&mut self, note: SectionNote) {
        self.notes.push(note);
    }

    /// Adds a note that the table shows only the first `shown` of `rows` rows, and that the CSV table `table` has them
    /// all. Adds nothing if all rows are shown.
    pub fn leave_out(&mut self, rows: usize, shown: usize, table: &str) {
        self.left_out = (rows > shown).then(|| {
            format!(
                "… {} more: {} csv {} {table}",
                super::summary::format_thousands((rows - shown) as u64),
                SettingKey::Format,
                SettingKey::Table
            )
        });
    }

    /// Writes the table and its notes as text.
    pub fn write_text(&self, out: &mut String, style: TextStyleWidthAndDetail) -> Result {
        let mut table = TextTable::new(self.columns.clone()).with_shortened_names(style);
        if !self.aligned {
            table.write_heading(out, style)?;
        }
        for row in &self.rows {
            let texts = row.cells.iter().map(|cell| match cell.is_name {
                true => style.clip_name(&cell.text),
                false => cell.text.clone(),
            });
            let texts: Vec<String> = texts.collect();
            let cells: Vec<&dyn Display> = texts.iter().map(|text| text as _).collect();
            let mut note = String::new();
            if let Some(of_row) = &row.note {
                of_row.write_text(&mut note, 4, style)?;
            }
            if self.aligned {
                table.add_row(&cells);
                table.add_free_text(note);
            } else {
                let mark = match row.alarm {
                    Some(_) => style.warning,
                    None => anstyle::Style::new(),
                };
                table.write_styled_row(out, &cells, mark)?;
                out.push_str(&note);
            }
        }
        if self.aligned {
            write!(out, "\n{}", table.to_text(style))?;
        }
        if let Some(text) = &self.left_out {
            writeln!(out, "  {text}")?;
        }
        let mut notes = self.notes.iter();
        notes.try_for_each(|note| note.write_text(out, 2, style))
    }
}

impl SectionNote {
    fn write_text(
        &self,
        out: &mut String,
        indent: usize,
        style: TextStyleWidthAndDetail,
    ) -> Result {
        let lead = " ".repeat(indent);
        let mark = match self.warns {
            true => style.warning,
            false => anstyle::Style::new(),
        };
        let text = match self.fit {
            LongNoteCutOrWrap::Wraps => return write_paragraph(out, &self.text, &lead, 4, mark),
            LongNoteCutOrWrap::IsCut => style.clip_line(&self.text, indent),
            LongNoteCutOrWrap::Stays => self.text.clone(),
        };
        writeln!(out, "{mark}{lead}{text}{mark:#}")
    }
}

/// Groups adjacent rows that `is_alike` considers identical. Returns each group with the index of its first row.
pub(crate) fn group_adjacent_rows<T>(
    rows: &[T],
    is_alike: impl Fn(&T, &T) -> bool,
) -> Vec<(usize, &[T])> {
    let mut first = 0;
    let runs = rows.chunk_by(is_alike).map(|run| {
        let at = first;
        first += run.len();
        (at, run)
    });
    runs.collect()
}
