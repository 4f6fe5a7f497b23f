//! Text for people: at most 100 columns.

use super::summary::thousands;
use chakram_base::setting::SettingKey;
use chakram_base::units::{Span, percent_of};
use chakram_trace::format::escaped;
use std::borrow::Cow;
use std::fmt::Write as _;

/// The widest line.
pub const WIDTH: usize = 100;

/// Styles of headings and warnings.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextStyle {
    /// Heading.
    pub heading: anstyle::Style,
    /// Warning.
    pub warning: anstyle::Style,
    /// Whether all rows are printed, however many lines that takes.
    pub details: bool,
    /// Whether long names are cut, so that lines stay within [`WIDTH`]; whoever reads a pipe or file gets them whole.
    pub narrow: bool,
}

impl TextStyle {
    /// For terminals.
    pub fn coloured() -> Self {
        Self {
            heading: anstyle::Style::new().bold(),
            warning: anstyle::AnsiColor::Yellow.on_default(),
            details: false,
            narrow: true,
        }
    }

    /// Returns `text` for people, cut to `width` columns where long names are, and whole with details.
    pub fn clip(&self, text: &str, width: usize) -> String {
        match self.narrow && !self.details {
            true => clip(text, width),
            false => clip(text, self.longest_name()),
        }
    }

    /// Characters of a name in a table, at most.
    pub(super) fn longest_name(&self) -> usize {
        match self.details {
            true => WHOLE_NAME,
            false => MAX_NAME,
        }
    }
}

pub(super) fn more(out: &mut String, rows: usize, shown: usize, table: &str) -> std::fmt::Result {
    if rows > shown {
        writeln!(
            out,
            "  … {} more: {} csv {} {table}",
            thousands((rows - shown) as u64),
            SettingKey::Format,
            SettingKey::Table
        )?;
    }
    Ok(())
}

/// `31.1 %`.
pub fn share(part: Span, whole: Span) -> String {
    if whole == Span::ZERO {
        return "-".to_owned();
    }
    percent_of(part.0 as f64, whole.0 as f64)
}

/// `text` in at most `width` columns; control characters are shown as spaces.
pub fn clip(text: &str, width: usize) -> String {
    let text = escaped(text);
    if text.chars().count() <= width {
        return text.into_owned();
    }
    let mut short: String = text.chars().take(width - 1).collect();
    short.push('…');
    short
}

/// Characters of a name in a text, at most. Inputs have names of any length, and what arranges cells counts columns in 16
/// bits.
pub(super) const MAX_NAME: usize = 240;

/// Where all details are asked for. Longer than any that a compiler makes; other formats have names of any length.
const WHOLE_NAME: usize = 1 << 14;

/// Returns `text`, cut to `most` characters.
pub(super) fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
    }
}

/// `text` after `lead`, broken at spaces; further lines are indented.
pub fn paragraph(
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
    // A number stays with its percent sign.
    let words: Vec<_> = text
        .split(' ')
        .map(|word| shortened(word, MAX_NAME))
        .collect();
    let text = words.join(" ").replace(" %", "\u{a0}%");
    for line in textwrap::wrap(&text, options) {
        let line = line.trim_end().replace('\u{a0}', " ");
        writeln!(out, "{style}{line}{style:#}")?;
    }
    Ok(())
}
