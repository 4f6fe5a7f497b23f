//! Text for users: prose of at most 100 columns, and tables that fit the terminal.

use chakram_base::units::{Span, format_percent_of, format_thousands};
use chakram_trace::format::escape_control_characters;
use std::borrow::Cow;
use std::fmt::Write as _;
use textwrap::core::display_width;

/// Maximum width of a line of prose.
pub const WIDTH: usize = 100;

/// Maximum width of a table's lines in files and pipes.
pub const TABLE_WIDTH: usize = 120;

/// Layout of text: styles of headings and warnings, width, and level of detail.
#[derive(Clone, Copy, Debug)]
pub struct TextStyleWidthAndDetail {
    /// Style of headings.
    pub heading: anstyle::Style,
    /// Style of warnings.
    pub warning: anstyle::Style,
    /// True if the text shows all rows and whole names.
    pub details: bool,
    /// Maximum width of a line. Longer names are shortened in the middle, unless all details are printed.
    pub width: usize,
}

impl Default for TextStyleWidthAndDetail {
    fn default() -> Self {
        Self {
            heading: anstyle::Style::new(),
            warning: anstyle::Style::new(),
            details: false,
            width: TABLE_WIDTH,
        }
    }
}

impl TextStyleWidthAndDetail {
    /// Returns the style for a terminal with colours.
    pub fn new_for_colour_terminal() -> Self {
        Self {
            heading: anstyle::Style::new().bold(),
            warning: anstyle::AnsiColor::Yellow.on_default(),
            ..Self::default()
        }
    }

    /// Returns `text` for display. Shortens it to `width` columns unless all details are printed.
    pub fn clip_to_width(&self, text: &str, width: usize) -> String {
        match self.details {
            true => self.clip_name(text),
            false => clip_middle(text, width),
        }
    }

    /// Returns `text` as its own line, indented by `indent` columns. It is shortened to fit the line.
    pub fn clip_line(&self, text: &str, indent: usize) -> String {
        self.clip_to_width(text, self.width.saturating_sub(indent).max(1))
    }

    /// Returns a name for a table cell. The table later shortens it to the available width.
    pub fn clip_name(&self, text: &str) -> String {
        clip_middle(text, self.longest_name())
    }

    /// Returns the maximum length of a name in a table with this style, in characters.
    pub(super) fn longest_name(&self) -> usize {
        match self.details {
            true => WHOLE_NAME,
            false => MAX_NAME,
        }
    }
}

/// Formats `part / whole` as a percentage, as in `31.1 %`.
pub fn format_share(part: Span, whole: Span) -> String {
    if whole == Span::ZERO {
        return "-".to_owned();
    }
    format_percent_of(part.0 as f64, whole.0 as f64)
}

/// Returns `text` shortened in the middle to at most `width` columns. Control characters become spaces.
pub fn clip_middle(text: &str, width: usize) -> String {
    cut_middle(&escape_control_characters(text), width).into_owned()
}

/// Returns `text` shortened to at most `width` columns. The middle is removed, because kernel names differ at their
/// beginning and end.
pub(super) fn cut_middle(text: &str, width: usize) -> Cow<'_, str> {
    // A character never has more columns than bytes, so a text of at most `width` bytes always fits.
    if text.len() <= width || display_width(text) <= width {
        return Cow::Borrowed(text);
    }
    let tail = width.saturating_sub(1) / 2;
    let head = width.saturating_sub(1) - tail;
    let columns = |c: char| display_width(c.encode_utf8(&mut [0; 4]));
    let mut used = 0;
    let fits = |c: &char, used: &mut usize, most: usize| {
        *used += columns(*c);
        *used <= most
    };
    let first: String = text
        .chars()
        .take_while(|c| fits(c, &mut used, head))
        .collect();
    used = 0;
    let last = text.chars().rev().take_while(|c| fits(c, &mut used, tail));
    let last: String = last.collect::<Vec<_>>().into_iter().rev().collect();
    Cow::Owned(format!("{first}…{last}"))
}

/// Maximum length of a name in a table, in characters. Inputs may contain names of any length, and the table layout
/// counts columns in 16 bits.
pub(super) const MAX_NAME: usize = 240;

/// Maximum length of a name in a table with all details, in characters. No compiler generates longer names, but inputs
/// may contain names of any length.
const WHOLE_NAME: usize = 1 << 14;

/// Writes `text` after `lead`, wrapped at spaces. All lines except the first are indented.
pub fn write_paragraph(
    out: &mut String,
    text: &str,
    lead: &str,
    indent: usize,
    style: anstyle::Style,
) -> std::fmt::Result {
    let next = " ".repeat(indent);
    let options = textwrap::Options::new(WIDTH)
        .initial_indent(lead)
        .subsequent_indent(&next)
        .break_words(false)
        .wrap_algorithm(textwrap::WrapAlgorithm::FirstFit)
        .word_separator(textwrap::WordSeparator::AsciiSpace)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    // Keep a number and its percent sign together.
    let words: Vec<_> = text
        .split(' ')
        .map(|word| cut_middle(word, MAX_NAME))
        .collect();
    let text = words.join(" ").replace(" %", "\u{a0}%");
    for line in textwrap::wrap(&text, options) {
        let line = line.trim_end().replace('\u{a0}', " ");
        writeln!(out, "{style}{line}{style:#}")?;
    }
    Ok(())
}
/// Formats a rate with few digits, such as a number of tokens per second.
pub(crate) fn format_few_digits(rate: f64) -> String {
    match rate {
        100.0.. => format_thousands(rate.round() as u64),
        1.0.. => format!("{rate:.1}"),
        _ => format!("{rate:.3}"),
    }
}
