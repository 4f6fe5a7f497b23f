//! Splits lines into words with columns, so that errors state an exact position. Used by parsers of text formats with
//! one line per layer.

use chakram_trace::format::{TraceError, TraceErrorLocation, escape_and_shorten_name};

/// Returns the words of a line, each with its column, counted from 1.
pub fn split_words_with_columns(line: &str) -> impl Iterator<Item = (usize, &str)> {
    line.split_whitespace()
        .map(move |word| (word.as_ptr() as usize - line.as_ptr() as usize + 1, word))
}

/// Number of words in a layer's line: a name, −1, three stages (each with a time, a collective and a size in bytes),
/// and an update time.
const WORDS: usize = 12;

/// Words of a file that do not change the traces. Each kind of word gives one sentence, which shows the first word and
/// counts the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IgnoredWords(Vec<IgnoredWordKind>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct IgnoredWordKind {
    first: String,
    reason: &'static str,
    more: u64,
}

impl IgnoredWords {
    /// Adds a word in `line`, and the reason why it has no effect.
    pub fn add(&mut self, line: usize, word: &str, reason: &'static str) {
        match self.0.iter_mut().find(|kind| kind.reason == reason) {
            Some(kind) => kind.more += 1,
            None => self.0.push(IgnoredWordKind {
                first: format!("line {line}: `{}`", escape_and_shorten_name(word)),
                reason,
                more: 0,
            }),
        }
    }

    /// Adds all `words` of a line after a complete entry.
    pub fn add_further<'t>(&mut self, line: usize, words: impl Iterator<Item = (usize, &'t str)>) {
        for (_, word) in words {
            self.add(line, word, "it follows the last word of its line");
        }
    }

    /// Iterates over the sentences.
    pub fn to_sentences(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|kind| {
            let more = match kind.more {
                0 => String::new(),
                more => format!(", nor have {more} more such words"),
            };
            format!("{} has no effect{more}: {}", kind.first, kind.reason)
        })
    }
}

/// Returns the words of a layer, and adds to `ignored` those that have no effect. Fails if the line has fewer than
/// [`WORDS`] words.
pub fn split_layer_line_into_words<'t>(
    line: &'t str,
    number_of: usize,
    ignored: &mut IgnoredWords,
) -> Result<Vec<(usize, &'t str)>, TraceError> {
    let words: Vec<(usize, &str)> = split_words_with_columns(line).take(WORDS).collect();
    if words.len() < WORDS {
        return Err(error_at(
            number_of,
            line.len() + 1,
            format!("a layer line of {} words", words.len()),
            "a name, -1, three triples of a time, a collective and its bytes, and an update time",
        ));
    }
    if words[1].1 != "-1" {
        let reason = "layers run in the order of their lines, and the second word should be -1";
        ignored.add(number_of, words[1].1, reason);
    }
    ignored.add_further(number_of, split_words_with_columns(line).skip(WORDS));
    Ok(words)
}

/// Parses a word as a number from 0 to `most`.
pub fn parse_number(
    line: usize,
    word: (usize, &str),
    what: &str,
    most: u64,
) -> Result<u64, TraceError> {
    match word.1.parse() {
        Ok(number) if number <= most => Ok(number),
        _ => Err(error_at(
            line,
            word.0,
            format!("{what} is `{}`", escape_and_shorten_name(word.1)),
            format!("a whole number from 0 to {most}"),
        )),
    }
}

/// Builds the error for an invalid file, at a line and column, both counted from 1.
pub fn error_at(
    line: usize,
    column: usize,
    found: impl Into<String>,
    hint: impl Into<String>,
) -> TraceError {
    let place = TraceErrorLocation {
        line: Some((line, column)),
        ..TraceErrorLocation::default()
    };
    TraceError::invalid_at(place, found, hint)
}
