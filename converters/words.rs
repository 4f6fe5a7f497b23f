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

/// Returns the words of a layer. Fails if the line has fewer than [`WORDS`] words.
pub fn split_layer_line_into_words(
    line: &str,
    number_of: usize,
) -> Result<Vec<(usize, &str)>, TraceError> {
    let words: Vec<(usize, &str)> = split_words_with_columns(line).take(WORDS).collect();
    if words.len() < WORDS {
        return Err(error_at(
            number_of,
            line.len() + 1,
            format!("a layer line of {} words", words.len()),
            "a name, -1, three triples of a time, a collective and its bytes, and an update time",
        ));
    }
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
