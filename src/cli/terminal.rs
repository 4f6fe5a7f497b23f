//! Writes to terminals: escapes control characters, and names the target in write errors.

use chakram_report::table::TextTable;
use chakram_report::text::{TABLE_WIDTH, TextStyleWidthAndDetail};
use chakram_trace::format::{
    TraceError, escape_control_characters_in_lines, escape_harmful_characters_in_json,
};
use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt::{Arguments, Display};
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicI8, Ordering};
use std::time::Instant;

/// A writer of bytes to standard output. Its errors name standard output as the target.
pub struct StandardOutputWithNamedErrors(io::Stdout);

/// Returns a writer of binary data to standard output.
pub fn open_binary_standard_output() -> StandardOutputWithNamedErrors {
    StandardOutputWithNamedErrors(io::stdout())
}

impl StandardOutputWithNamedErrors {
    fn name_stdout_in_error(error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::Interrupted => error,
            kind => io::Error::new(kind, TraceError::from_io("standard output", "write", error)),
        }
    }
}

impl Write for StandardOutputWithNamedErrors {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(Self::name_stdout_in_error)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(Self::name_stdout_in_error)
    }
}

/// Rule for escaping the characters that a terminal would interpret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EscapeStyle {
    /// Escapes all control characters: `\u{1b}`.
    All,
    /// Escapes all control characters except those that change colours.
    AllButColours,
    /// Escapes all control characters as JSON does, because in JSON they occur only in strings.
    Json,
}

/// Writer that escapes the control characters in text as `\u{1b}`, except line ends and tabs. If colours are on, keeps
/// the sequences that change colours.
pub struct EscapingWriter<W: Write> {
    out: W,
    escapes: EscapeStyle,
    /// Bytes of an incomplete UTF-8 character.
    begun: Vec<u8>,
}

impl EscapingWriter<io::BufWriter<StandardOutputWithNamedErrors>> {
    /// Creates a writer to standard output, which keeps colour changes on a terminal.
    pub fn standard_output() -> Self {
        let escapes = if io::stdout().is_terminal() {
            EscapeStyle::AllButColours
        } else {
            EscapeStyle::All
        };
        Self::new(io::BufWriter::new(open_binary_standard_output()), escapes)
    }
}

impl<'w> EscapingWriter<&'w mut dyn Write> {
    /// Creates a writer that writes a JSON document to `out`.
    pub fn new_for_json(out: &'w mut dyn Write) -> Self {
        Self::new(out, EscapeStyle::Json)
    }
}

impl<W: Write> EscapingWriter<W> {
    /// Creates a writer that writes to `out` and escapes characters by the given rule.
    pub fn new(out: W, escapes: EscapeStyle) -> Self {
        Self {
            out,
            escapes,
            begun: Vec::new(),
        }
    }

    /// Returns the inner writer.
    pub fn into_inner(self) -> W {
        self.out
    }

    fn write_text(&mut self, text: &str) -> io::Result<()> {
        self.out
            .write_all(escape_controls(text, self.escapes).as_bytes())
    }
}

impl<W: Write> Write for EscapingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut joined = std::mem::take(&mut self.begun);
        let all = if joined.is_empty() {
            bytes
        } else {
            joined.extend_from_slice(bytes);
            &joined
        };
        for chunk in all.utf8_chunks() {
            self.write_text(chunk.valid())?;
            let end = chunk.invalid().as_ptr_range().end == all.as_ptr_range().end;
            match chunk.invalid() {
                [] => {}
                // The last one to three bytes may begin a character that the next write completes.
                begun
                    if end
                        && begun.len() < 4
                        && std::str::from_utf8(begun).is_err_and(|e| e.error_len().is_none()) =>
                {
                    self.begun = begun.to_vec();
                }
                _ => self.out.write_all("\u{fffd}".as_bytes())?,
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn escape_controls(text: &str, escapes: EscapeStyle) -> Cow<'_, str> {
    match escapes {
        EscapeStyle::All => escape_control_characters_in_lines(text),
        EscapeStyle::Json => escape_harmful_characters_in_json(text),
        EscapeStyle::AllButColours => {
            let mut out = String::new();
            let mut from = 0;
            for (at, _) in text.match_indices("\u{1b}[") {
                if let Some(length) = length_of_color_escape(&text[at..]) {
                    out += &escape_control_characters_in_lines(&text[from..at]);
                    out += &text[at..at + length];
                    from = at + length;
                }
            }
            match from {
                0 => escape_control_characters_in_lines(text),
                _ => (out + &escape_control_characters_in_lines(&text[from..])).into(),
            }
        }
    }
}

/// Returns the length of the colour change at the start of `text`, or `None` if there is none.
fn length_of_color_escape(text: &str) -> Option<usize> {
    let numbers = text.strip_prefix("\u{1b}[")?;
    let end = numbers.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    numbers[end..].starts_with('m').then_some(end + 3)
}

thread_local! {
    /// Lines meant for standard error, captured here while a command runs inside another program.
    static CAPTURED: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Runs `work`, and captures the lines that it would print to standard error. Returns the result of `work` and the
/// captured lines.
pub fn capture_stderr<R>(work: impl FnOnce() -> R) -> (R, Vec<String>) {
    let before = CAPTURED.replace(Some(Vec::new()));
    let result = work();
    let lines = CAPTURED.replace(before);
    (result, lines.unwrap_or_default())
}

/// Prints a line to standard error; inside another program, captures it instead.
pub fn print_or_capture_stderr_line(words: Arguments<'_>) -> io::Result<()> {
    let text = words.to_string();
    let is_captured = CAPTURED.with_borrow_mut(|lines| {
        lines
            .as_mut()
            .map(|lines| lines.push(text.clone()))
            .is_some()
    });
    if is_captured {
        return Ok(());
    }
    writeln!(
        anstream::stderr(),
        "{}",
        escape_control_characters_in_lines(&text)
    )
}

/// Returns `text` as one word of a shell command, quoted if necessary.
pub fn quote_shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:@=".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Minimum width of text, in columns, even on narrower terminals.
const MIN_COLUMNS: usize = 60;

/// Returns the width of text in columns: `COLUMNS` if it is set; otherwise, the terminal's width if
/// the text goes to a terminal; otherwise, [`TABLE_WIDTH`].
pub fn terminal_columns_or_table_width(is_standard_output: bool) -> usize {
    let asked = std::env::var("COLUMNS").ok();
    let asked = asked.and_then(|columns| columns.parse().ok());
    let of_terminal = || {
        let stdout = io::stdout();
        let is_seen = is_standard_output && stdout.is_terminal();
        let size = is_seen.then(|| terminal_size::terminal_size_of(stdout));
        size.flatten().map(|(width, _)| width.0.into())
    };
    let columns: usize = asked.or_else(of_terminal).unwrap_or(TABLE_WIDTH);
    columns.max(MIN_COLUMNS)
}

/// Returns the text style for standard output, or the style for a file.
pub fn text_style(is_standard_output: bool) -> TextStyleWidthAndDetail {
    let style = match is_standard_output && io::stdout().is_terminal() {
        true => TextStyleWidthAndDetail::new_for_colour_terminal(),
        false => TextStyleWidthAndDetail::default(),
    };
    TextStyleWidthAndDetail {
        width: terminal_columns_or_table_width(is_standard_output),
        ..style
    }
}

/// Returns the style for tables on standard output, without colours.
pub fn plain_style() -> TextStyleWidthAndDetail {
    TextStyleWidthAndDetail {
        width: terminal_columns_or_table_width(true),
        ..TextStyleWidthAndDetail::default()
    }
}

/// Prints the line of a table's headings, without colours.
pub fn print_plain_table_heading(table: &TextTable<'_>, out: &mut dyn Write) -> io::Result<()> {
    let heading = table.render_heading_line(TextStyleWidthAndDetail::default());
    out.write_all(heading.as_bytes())
}

/// Prints a row of a table, without colours.
pub fn print_table_row(
    table: &TextTable<'_>,
    cells: &[&dyn Display],
    out: &mut dyn Write,
) -> io::Result<()> {
    let row = table.render_line(cells, anstyle::Style::new());
    out.write_all(row.as_bytes())
}

/// How much text besides errors goes to standard error: none if negative, notes and warnings if 0, and details too if
/// positive.
static VERBOSITY: AtomicI8 = AtomicI8::new(0);

/// Sets how much text besides errors goes to standard error.
pub fn set_verbosity(quiet: bool, verbose: bool) {
    VERBOSITY.store(i8::from(verbose) - i8::from(quiet), Ordering::Relaxed);
}

/// Returns true if progress may be drawn.
pub fn shows_progress() -> bool {
    let is_captured = CAPTURED.with_borrow(Option::is_some);
    !is_captured && !is_quiet() && io::stderr().is_terminal()
}

/// Returns true if only errors are printed.
pub fn is_quiet() -> bool {
    VERBOSITY.load(Ordering::Relaxed) < 0
}

/// Prints a note to standard error, unless only errors are printed.
pub fn print_note(words: Arguments<'_>) -> io::Result<()> {
    match is_quiet() {
        true => Ok(()),
        false => print_or_capture_stderr_line(format_args!("note: {words}")),
    }
}

/// Prints a warning to standard error, unless only errors are printed.
pub fn print_warning_unless_quiet(words: Arguments<'_>) -> io::Result<()> {
    match is_quiet() {
        true => Ok(()),
        false => print_or_capture_stderr_line(format_args!("warning: {words}")),
    }
}

/// If the user asked for details, prints a detail of the run with the time since `start`.
pub fn print_detail_with_elapsed_time(start: Instant, words: Arguments<'_>) -> io::Result<()> {
    match VERBOSITY.load(Ordering::Relaxed) > 0 {
        true => print_or_capture_stderr_line(format_args!(
            "{words} in {:.3} s",
            start.elapsed().as_secs_f64()
        )),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escape_and_join_pieces(pieces: &[&[u8]], coloured: bool) -> String {
        let escapes = if coloured {
            EscapeStyle::AllButColours
        } else {
            EscapeStyle::All
        };
        let mut text = EscapingWriter::new(Vec::new(), escapes);
        for piece in pieces {
            text.write_all(piece).unwrap();
        }
        String::from_utf8(text.into_inner()).unwrap()
    }

    #[test]
    fn control_sequences_do_not_reach_the_terminal() {
        assert_eq!(escape_and_join_pieces(&[b"a\tb\n"], false), "a\tb\n");
        assert_eq!(
            escape_and_join_pieces(&[b"\x1b[1mb\x1b[0m"], false),
            "\\u{1b}[1mb\\u{1b}[0m"
        );
        assert_eq!(
            escape_and_join_pieces(&[b"\x1b[1mb\x1b[0m\x1b[2J\x07"], true),
            "\x1b[1mb\x1b[0m\\u{1b}[2J\\u{7}"
        );
        assert_eq!(
            escape_and_join_pieces(&["a\u{202e}b".as_bytes()], true),
            "a\\u{202e}b"
        );
        // The input contains a character that two writes share, an incomplete character, and invalid bytes.
        assert_eq!(
            escape_and_join_pieces(
                &["ü\u{202e}".as_bytes().split_at(3).0, &[0x80, 0xae]],
                false
            ),
            "ü\\u{202e}"
        );
        assert_eq!(escape_and_join_pieces(&[b"a\xffb"], false), "a\u{fffd}b");
    }
}
