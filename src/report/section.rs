//! Tables of a report as data. Text and page render the same cells, so that neither has a fact that the other lacks.

use super::table::{TextColumn, TextTable};
use super::text::{TextStyle, paragraph};
use chakram_base::setting::SettingKey;
use chakram_base::units::{Bytes, Span};
use std::fmt::{Display, Result, Write as _};

/// Rows of a table on a page, at least.
const PAGE_ROWS: usize = 64;

/// What a report is rendered as. Numbers of rows and lengths of names depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReportMedium {
    /// A text for people.
    Text,
    /// A text with all details.
    Details,
    /// A page.
    Page,
}

impl ReportMedium {
    /// Returns the medium of a text in `style`.
    pub fn of(style: TextStyle) -> Self {
        match style.details {
            true => Self::Details,
            false => Self::Text,
        }
    }

    /// Returns the number of rows of a table of which the text has `rows`.
    pub fn rows(self, rows: usize) -> usize {
        match self {
            Self::Text | Self::Details => rows,
            Self::Page => rows.max(PAGE_ROWS),
        }
    }

    /// The same for a table that is whole with all details.
    pub fn rows_or_all(self, rows: usize) -> usize {
        match self {
            Self::Details => usize::MAX,
            _ => self.rows(rows),
        }
    }

    /// Returns a name inside a sentence, cut to `width` columns in a text without details.
    pub fn clip(self, name: &str, width: usize) -> String {
        let style = TextStyle {
            details: self != Self::Text,
            ..TextStyle::default()
        };
        style.clip(name, width)
    }
}

/// A cell: its text, and the number behind it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SectionCell {
    pub text: String,
    /// The number, by which rows are sorted.
    pub value: Option<String>,
    /// JSON pointer of the number, if the report has it.
    pub pointer: Option<String>,
    /// Whether the text is a name from an input, which a text cuts.
    pub is_name: bool,
}

impl SectionCell {
    /// A name from an input.
    pub fn name(text: impl Into<String>) -> Self {
        Self {
            is_name: true,
            ..Self::from(text.into())
        }
    }

    /// A number as it is shown.
    pub fn number(value: impl Display, shown: impl Display) -> Self {
        Self {
            value: Some(value.to_string()),
            ..Self::from(shown.to_string())
        }
    }

    /// A part of a whole, in percent.
    pub fn share(part: Span, whole: Span) -> Self {
        let shown = super::text::share(part, whole);
        match whole {
            Span::ZERO => shown.into(),
            _ => Self::number(part.0 as f64 / whole.0 as f64, shown),
        }
    }

    /// A count.
    pub fn count(count: u64) -> Self {
        Self::number(count, super::summary::thousands(count))
    }

    /// The number is that of the report at `pointer`.
    pub fn at(self, pointer: impl Into<String>) -> Self {
        Self {
            pointer: Some(pointer.into()),
            ..self
        }
    }

    /// The number is that at `pointer` if there is one.
    pub fn at_some(self, pointer: Option<String>) -> Self {
        Self { pointer, ..self }
    }
}

impl From<String> for SectionCell {
    fn from(text: String) -> Self {
        Self {
            text,
            ..Self::default()
        }
    }
}

impl From<&str> for SectionCell {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

impl From<Span> for SectionCell {
    fn from(span: Span) -> Self {
        Self::number(span.0, span)
    }
}

impl From<Bytes> for SectionCell {
    fn from(bytes: Bytes) -> Self {
        Self::number(bytes.0, bytes)
    }
}

/// A row, and what has to be said of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SectionRow {
    pub cells: Vec<SectionCell>,
    /// A line below it.
    pub note: Option<SectionNote>,
    /// Reason to mark it.
    pub alarm: Option<String>,
}

impl From<Vec<SectionCell>> for SectionRow {
    fn from(cells: Vec<SectionCell>) -> Self {
        Self {
            cells,
            ..Self::default()
        }
    }
}

/// A sentence below a row or a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct SectionNote {
    pub text: String,
    fit: NoteFit,
    /// Whether it is a warning.
    pub warns: bool,
}

/// What a text does with a sentence that is longer than a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum NoteFit {
    #[default]
    Stays,
    IsCut,
    Wraps,
}

impl SectionNote {
    /// A sentence that fits a line.
    pub fn line(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            ..Self::default()
        }
    }

    /// A sentence with a name, cut to a line in a text.
    pub fn cut(text: impl Into<String>) -> Self {
        Self {
            fit: NoteFit::IsCut,
            ..Self::line(text)
        }
    }

    /// A sentence of any length.
    pub fn wrapped(text: impl Into<String>) -> Self {
        Self {
            fit: NoteFit::Wraps,
            ..Self::line(text)
        }
    }

    /// Marks it if `warns`.
    pub fn warning(self, warns: bool) -> Self {
        Self { warns, ..self }
    }
}

/// Subject of a table of a report, which decides its place on a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SectionId {
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

/// A table with its sentences.
#[derive(Clone, Debug)]
pub(crate) struct ReportSection {
    pub id: SectionId,
    pub columns: Vec<TextColumn<'static>>,
    pub rows: Vec<SectionRow>,
    /// Whether all rows of a text have the widths of the widest cells; otherwise each has its own.
    aligned: bool,
    /// A sentence about rows that are left out.
    pub left_out: Option<String>,
    pub notes: Vec<SectionNote>,
}

impl ReportSection {
    /// An empty table, whose rows a text writes one by one.
    pub fn new(id: SectionId, columns: impl Into<Vec<TextColumn<'static>>>) -> Self {
        Self {
            id,
            columns: columns.into(),
            rows: Vec::new(),
            aligned: false,
            left_out: None,
            notes: Vec::new(),
        }
    }

    /// An empty table, whose rows a text aligns.
    pub fn aligned(id: SectionId, columns: impl Into<Vec<TextColumn<'static>>>) -> Self {
        Self {
            aligned: true,
            ..Self::new(id, columns)
        }
    }

    /// Adds a row.
    pub fn row(&mut self, row: impl Into<SectionRow>) {
        self.rows.push(row.into());
    }

    /// Adds a sentence.
    pub fn note(&mut self, note: SectionNote) {
        self.notes.push(note);
    }

    /// Says that of `rows` the first `shown` are there, and that `table` of comma-separated values has all.
    pub fn leave_out(&mut self, rows: usize, shown: usize, table: &str) {
        self.left_out = (rows > shown).then(|| {
            format!(
                "… {} more: {} csv {} {table}",
                super::summary::thousands((rows - shown) as u64),
                SettingKey::Format,
                SettingKey::Table
            )
        });
    }

    /// Writes it for people.
    pub fn write_text(&self, out: &mut String, style: TextStyle) -> Result {
        let mut table = TextTable::new(self.columns.clone()).named(style);
        if !self.aligned {
            table.heading(out, style)?;
        }
        for row in &self.rows {
            let texts = row.cells.iter().map(|cell| match cell.is_name {
                true => style.name(&cell.text),
                false => cell.text.clone(),
            });
            let texts: Vec<String> = texts.collect();
            let cells: Vec<&dyn Display> = texts.iter().map(|text| text as _).collect();
            let mut note = String::new();
            if let Some(of_row) = &row.note {
                of_row.write(&mut note, 4, style)?;
            }
            if self.aligned {
                table.add(&cells);
                table.add_lines(note);
            } else {
                let mark = match row.alarm {
                    Some(_) => style.warning,
                    None => anstyle::Style::new(),
                };
                table.styled_row(out, &cells, mark)?;
                out.push_str(&note);
            }
        }
        if self.aligned {
            write!(out, "\n{}", table.text(style))?;
        }
        if let Some(text) = &self.left_out {
            writeln!(out, "  {text}")?;
        }
        let mut notes = self.notes.iter();
        notes.try_for_each(|note| note.write(out, 2, style))
    }
}

impl SectionNote {
    fn write(&self, out: &mut String, indent: usize, style: TextStyle) -> Result {
        let lead = " ".repeat(indent);
        let mark = match self.warns {
            true => style.warning,
            false => anstyle::Style::new(),
        };
        let text = match self.fit {
            NoteFit::Wraps => return paragraph(out, &self.text, &lead, 4, mark),
            NoteFit::IsCut => style.clip_line(&self.text, indent),
            NoteFit::Stays => self.text.clone(),
        };
        writeln!(out, "{mark}{lead}{text}{mark:#}")
    }
}

/// Runs of neighbouring rows that are alike, each with the index of its first.
pub(crate) fn indexed_runs<T>(rows: &[T], is_alike: impl Fn(&T, &T) -> bool) -> Vec<(usize, &[T])> {
    let mut first = 0;
    let runs = rows.chunk_by(is_alike).map(|run| {
        let at = first;
        first += run.len();
        (at, run)
    });
    runs.collect()
}
