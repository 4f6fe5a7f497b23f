//! Reads requests from a plain or compressed file: CSV with a header line, or one JSON object per
//! line.
//!
//! - Azure's traces have the columns `TIMESTAMP` (a date and a time of day, or seconds),
//!   `ContextTokens` and `GeneratedTokens`.
//! - BurstGPT's traces have the columns `Timestamp` in seconds, `Request tokens` and
//!   `Response tokens`. `Response tokens` is 0 if a request failed.
//! - Other tables have the columns `arrival_s` (or `_ms`, `_us`, `_ns`, `_ps`), `input_toks` or
//!   `prompt_tokens`, and `output_toks` or `output_tokens`.
//! - Any table may also have the columns `priority` (the lowest number is the most urgent), and
//!   `prefix` with `prefix_toks`. Requests with the same `prefix` number share their first
//!   `prefix_toks` tokens.
//! - Mooncake's traces have objects with `timestamp` in milliseconds, `input_length`, `output_length` and `hash_ids`,
//!   which has one number for each 512 tokens of the prompt. If two requests share a number in `hash_ids`, their tokens
//!   are the same in that block and in all earlier blocks.

use super::super::error::ServeError;
use super::super::tables::{CsvTableRowReader, TimeColumnUnit};
use super::incoming::{IncomingRequest, PromptTokensSharedWithOthers};
use super::token_content::{RequestContentTokenStream, TokenSequencePiece};
use super::workload::MOST_LENGTH;
use chakram_base::config::quote_and_truncate_for_message;
use chakram_base::units::{Span, Time};
use chakram_trace::format::file::DecompressedStream;
use serde::Deserialize;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Number of tokens per block in Mooncake's traces.
const TRACE_BLOCK: u32 = 512;

/// Maximum length of a line in a JSON request file, in bytes.
const LONGEST_LINE: u64 = 16 << 20;

/// A request file, which is read one request at a time.
pub struct FileRequestSource {
    rows: RequestFileReader,
    name: String,
    /// The column and the value that select the rows to read; `None` if all rows are read.
    only: Option<(String, String)>,
    speed: f64,
    /// Time of the first request, in seconds. Dates in the file are relative to this time. `None` before the first
    /// request is read, and for files without dates.
    first: Option<f64>,
    last: Time,
    /// Number of requests read so far. It identifies the tokens that a request does not share with others.
    count: u64,
    /// Number of requests read so far whose answers have no tokens. Each is served as an answer of one token.
    empty_answers: u64,
}

enum RequestFileReader {
    Table {
        reader: Box<CsvTableRowReader>,
        at: usize,
        unit: ArrivalColumnUnit,
        tokens: [usize; 2],
        priority: Option<usize>,
        prefix: Option<[usize; 2]>,
    },
    Objects {
        lines: BufReader<DecompressedStream<'static>>,
        line: u64,
        text: String,
    },
}

/// Unit of the column that contains arrival times.
#[derive(Clone, Copy)]
enum ArrivalColumnUnit {
    Column(TimeColumnUnit),
    /// Dates, or numbers of seconds; both are converted to times relative to the first row.
    Date,
}

/// One line of a JSON request file. All other fields are ignored.
#[derive(Deserialize)]
struct RequestJsonLine {
    timestamp: f64,
    input_length: f64,
    output_length: f64,
    #[serde(default)]
    hash_ids: Vec<u64>,
    #[serde(default)]
    priority: Option<f64>,
}

const ARRIVALS: &[&str] = &[
    "arrival_s",
    "arrival_ms",
    "arrival_us",
    "arrival_ns",
    "arrival_ps",
];
const DATES: &[&str] = &["TIMESTAMP", "Timestamp"];
const INPUTS: &[&str] = &[
    "input_toks",
    "prompt_tokens",
    "ContextTokens",
    "Request tokens",
];
const OUTPUTS: &[&str] = &[
    "output_toks",
    "output_tokens",
    "GeneratedTokens",
    FAILED_AT_ZERO,
];
/// The column of BurstGPT's traces in which 0 means that a request failed (Wang et al., BurstGPT, 2024).
const FAILED_AT_ZERO: &str = "Response tokens";

impl FileRequestSource {
    /// Opens the file at `path`. Arrivals are `speed` times as fast as in the file. If a table's name ends in
    /// `:COLUMN=VALUE`, only rows with this value in this column are read.
    pub fn open_file(path: &Path, speed: f64) -> Result<Self, ServeError> {
        let (path, only) = split_row_filter_off_path(path);
        let file = path.display().to_string();
        let name = file.strip_suffix(".gz").unwrap_or(&file);
        let name = name.strip_suffix(".zst").unwrap_or(name);
        let rows = if name.ends_with(".jsonl") {
            let stream =
                DecompressedStream::open_path(&path).map_err(|error| ServeError::Read {
                    file: file.clone(),
                    source: std::io::Error::other(error.to_string()),
                })?;
            RequestFileReader::Objects {
                lines: BufReader::new(stream),
                line: 0,
                text: String::new(),
            }
        } else {
            refuse_json_text(&path)?;
            let mut reader = CsvTableRowReader::open_table(&path)?;
            if let Some((column, value)) = &only {
                reader.skip_rows_unless_column_equals(column, value)?;
            }
            let headings = reader.column_names().join(", ");
            let missing = |what: &str, names: &[&str]| {
                let found = format!("the columns {headings}");
                let expected = format!("{what}: one of {}", names.join(", "));
                ServeError::invalid_row(&file, 1, found, expected)
            };
            let (at, unit) = match (
                reader.find_first_column(ARRIVALS),
                reader.find_first_column(DATES),
            ) {
                (Some(at), _) => {
                    let unit = TimeColumnUnit::from_column_name(&reader.column_names()[at]);
                    (
                        at,
                        ArrivalColumnUnit::Column(unit.unwrap_or(TimeColumnUnit::MICROSECONDS)),
                    )
                }
                (None, Some(at)) => (at, ArrivalColumnUnit::Date),
                (None, None) => {
                    let all: Vec<&str> = ARRIVALS.iter().chain(&DATES[..1]).copied().collect();
                    return Err(missing("arrivals", &all));
                }
            };
            let tokens = [
                reader
                    .find_first_column(INPUTS)
                    .ok_or_else(|| missing("tokens of the prompt", INPUTS))?,
                reader
                    .find_first_column(OUTPUTS)
                    .ok_or_else(|| missing("tokens of the answer", OUTPUTS))?,
            ];
            let prefix = match [
                reader.find_first_column(&["prefix"]),
                reader.find_first_column(&["prefix_toks"]),
            ] {
                [Some(prefix), Some(tokens)] => Some([prefix, tokens]),
                [None, None] => None,
                _ => {
                    return Err(missing(
                        "both columns of prefixes, or neither",
                        &["prefix", "prefix_toks"],
                    ));
                }
            };
            RequestFileReader::Table {
                priority: reader.find_first_column(&["priority"]),
                prefix,
                reader: Box::new(reader),
                at,
                unit,
                tokens,
            }
        };
        Ok(Self {
            rows,
            name: file,
            only,
            speed,
            first: None,
            last: Time::ZERO,
            count: 0,
            empty_answers: 0,
        })
    }

    /// Returns the number of requests read so far whose answers have no tokens in the file.
    pub fn empty_answer_count(&self) -> u64 {
        self.empty_answers
    }

    /// Returns the next request, or `None` at the end of the file. A file without requests is an error.
    pub fn next(&mut self) -> Result<Option<IncomingRequest>, ServeError> {
        let Some(row) = self.read_row()? else {
            return match self.count {
                0 => Err(self.no_requests_error()),
                _ => Ok(None),
            };
        };
        let refuse = |found: String, expected: &str| {
            ServeError::invalid_row(&self.name, row.line, found, expected)
        };
        let at = Time::ZERO + row.arrival.scale_by(1.0 / self.speed);
        if at < self.last {
            let found = format!(
                "an arrival at {}, before the arrival of the previous row",
                row.arrival
            );
            return Err(refuse(found, "arrivals in order of time"));
        }
        let length = |count: f64| {
            let whole = count.fract() == 0.0 && (0.0..=f64::from(MOST_LENGTH)).contains(&count);
            let expected = format!("a whole number of tokens, at most {MOST_LENGTH}");
            let found = format!("{count} tokens");
            whole
                .then_some(count as u32)
                .ok_or_else(|| refuse(found, &expected))
        };
        let at_least_one = |count: f64, what: &str| match length(count)? {
            0 => Err(refuse(
                format!("0 tokens in the {what}"),
                "at least 1 token",
            )),
            tokens => Ok(tokens),
        };
        let prompt = at_least_one(row.tokens[0], "prompt")?;
        let is_failed = row.tokens[1] == 0.0 && self.marks_failed_requests();
        let output = match is_failed {
            // The trace does not state the answer that the request would have had.
            true => 1,
            false => at_least_one(row.tokens[1], "answer")?,
        };
        let number = |value: f64, what: &str| {
            let whole = value.fract() == 0.0 && (0.0..=f64::from(1 << 30)).contains(&value);
            let expected = format!("{what}, a whole number from 0 to 2^30");
            whole
                .then_some(value as u32)
                .ok_or_else(|| refuse(value.to_string(), &expected))
        };
        let priority = row
            .priority
            .map(|value| number(value, "a priority"))
            .transpose()?;
        let shared = match row.prefix {
            Some([prefix, tokens]) if tokens > 0.0 => {
                let stream = RequestContentTokenStream::from_prefix_number(
                    number(prefix, "the number of a prefix")?.into(),
                );
                Some((stream, length(tokens)?.min(prompt)))
            }
            _ => None,
        };
        self.last = at;
        self.count += 1;
        self.empty_answers += u64::from(is_failed);
        Ok(Some(IncomingRequest {
            at,
            class: 0,
            prompt,
            output,
            content: match row.hashes.is_empty() {
                true => PromptTokensSharedWithOthers::Behind(shared),
                false => PromptTokensSharedWithOthers::OwnEnd(prompt_pieces_from_hashes(
                    &row.hashes,
                    prompt,
                    self.count,
                )),
            },
            conversation: None,
            priority: priority.map(|priority| priority as i32),
        }))
    }

    /// Returns true if the file has the columns of BurstGPT's traces, whose failed requests have answers of 0 tokens.
    fn marks_failed_requests(&self) -> bool {
        match &self.rows {
            RequestFileReader::Table { reader, tokens, .. } => {
                reader.column_names()[tokens[1]] == FAILED_AT_ZERO
            }
            RequestFileReader::Objects { .. } => false,
        }
    }

    fn no_requests_error(&self) -> ServeError {
        let of = self.only.as_ref().map_or(String::new(), |(column, value)| {
            format!(
                " with {} in column `{column}`",
                quote_and_truncate_for_message(value)
            )
        });
        ServeError::Table {
            file: self.name.clone(),
            why: format!("found no request{of}, expected at least one"),
        }
    }

    fn read_row(&mut self) -> Result<Option<UnconvertedRequestFileRow>, ServeError> {
        match &mut self.rows {
            RequestFileReader::Table {
                reader,
                at,
                unit,
                tokens,
                priority,
                prefix,
            } => {
                if !reader.advance_to_next_matching_row()? {
                    return Ok(None);
                }
                let arrival = match unit {
                    ArrivalColumnUnit::Column(unit) => unit.to_span(reader.number_in_column(*at)?),
                    ArrivalColumnUnit::Date => {
                        let text = reader.cell_text(*at);
                        let expected = "a date such as 2023-11-16 18:17:03.979, or seconds";
                        let instant = parse_date_or_seconds(text).ok_or_else(|| {
                            reader.invalid_row_error(quote_and_truncate_for_message(text), expected)
                        })?;
                        let first = *self.first.get_or_insert(instant);
                        if instant < first {
                            return Err(reader.invalid_row_error(
                                quote_and_truncate_for_message(text),
                                "arrivals in order of time",
                            ));
                        }
                        Span::from_seconds_saturating(instant - first)
                    }
                };
                let both = |columns: [usize; 2]| -> Result<[f64; 2], ServeError> {
                    Ok([
                        reader.number_in_column(columns[0])?,
                        reader.number_in_column(columns[1])?,
                    ])
                };
                Ok(Some(UnconvertedRequestFileRow {
                    arrival,
                    tokens: both(*tokens)?,
                    hashes: Vec::new(),
                    priority: priority
                        .map(|column| reader.number_in_column(column))
                        .transpose()?,
                    prefix: prefix.map(both).transpose()?,
                    line: reader.line_number(),
                }))
            }
            RequestFileReader::Objects { lines, line, text } => {
                loop {
                    text.clear();
                    *line += 1;
                    let mut bounded = (&mut *lines).take(LONGEST_LINE);
                    let read = bounded.read_line(text).map_err(|source| ServeError::Read {
                        file: self.name.clone(),
                        source,
                    })?;
                    if read == 0 {
                        return Ok(None);
                    }
                    if !text.trim().is_empty() {
                        break;
                    }
                }
                let expected = "an object with `timestamp` in milliseconds, `input_length` and `output_length`";
                let object: RequestJsonLine = serde_json::from_str(text)
                    .map_err(|error| ServeError::invalid_row(&self.name, *line, error, expected))?;
                if object.timestamp < 0.0 {
                    return Err(ServeError::invalid_row(
                        &self.name,
                        *line,
                        object.timestamp,
                        "milliseconds from 0",
                    ));
                }
                Ok(Some(UnconvertedRequestFileRow {
                    arrival: Span::from_seconds_saturating(object.timestamp * 1e-3),
                    tokens: [object.input_length, object.output_length],
                    hashes: object.hash_ids,
                    priority: object.priority,
                    prefix: None,
                    line: *line,
                }))
            }
        }
    }
}

/// Values of one row, before conversion.
struct UnconvertedRequestFileRow {
    arrival: Span,
    tokens: [f64; 2],
    hashes: Vec<u64>,
    priority: Option<f64>,
    prefix: Option<[f64; 2]>,
    line: u64,
}

/// Returns the pieces of a prompt. `hashes` has one hash per block of 512 tokens. Two requests share a whole block if
/// they have the same hash for it. Tokens after the last whole block belong to this request alone.
fn prompt_pieces_from_hashes(hashes: &[u64], prompt: u32, number: u64) -> Vec<TokenSequencePiece> {
    let whole = (prompt / TRACE_BLOCK) as usize;
    let known = hashes.iter().take(whole);
    let mut pieces: Vec<TokenSequencePiece> = known
        .map(|hash| TokenSequencePiece {
            stream: RequestContentTokenStream::from_trace_block_hash(*hash),
            from: 0,
            tokens: TRACE_BLOCK,
        })
        .collect();
    let rest = prompt - pieces.len() as u32 * TRACE_BLOCK;
    pieces.push(TokenSequencePiece {
        stream: RequestContentTokenStream::from_trace_remainder(number),
        from: 0,
        tokens: rest,
    });
    pieces
}

/// Rejects a file that begins like JSON, such as a file of conversations. If each line were a request, its name would
/// end in `.jsonl`.
fn refuse_json_text(path: &Path) -> Result<(), ServeError> {
    let mut first = [0; 1];
    let begins = DecompressedStream::open_path(path).is_ok_and(|mut stream| {
        stream.read_exact(&mut first).is_ok() && matches!(first[0], b'[' | b'{')
    });
    match begins {
        true => Err(ServeError::Unfit(
            "the file of requests is JSON, expected CSV, or lines of JSON in a file whose name ends in .jsonl; texts, such as \
             those of ShareGPT, have no numbers of tokens\n  try: a CSV with the columns arrival_s, input_toks and output_toks"
                .to_owned(),
        )),
        false => Ok(()),
    }
}

/// Splits `:COLUMN=VALUE` off the name of a file.
fn split_row_filter_off_path(path: &Path) -> (PathBuf, Option<(String, String)>) {
    let text = path.display().to_string();
    let filter = text.rsplit_once(':').and_then(|(file, filter)| {
        let (column, value) = filter.split_once('=')?;
        Some((file.to_owned(), (column.to_owned(), value.to_owned())))
    });
    match filter {
        Some((file, filter)) => (PathBuf::from(file), Some(filter)),
        None => (path.to_owned(), None),
    }
}

/// Parses a date with a time of day as seconds since the year 2000, or a number of seconds.
fn parse_date_or_seconds(text: &str) -> Option<f64> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        return (0.0..1e7).contains(&seconds).then_some(seconds);
    }
    let (date, time) = text.split_once([' ', 'T'])?;
    let time = time.trim_end_matches('Z');
    let time = time.split_once('+').map_or(time, |(time, _)| time);
    let mut parts = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let mut parts = time.splitn(3, ':');
    let (hour, minute) = (
        parts.next()?.parse::<i64>().ok()?,
        parts.next()?.parse::<i64>().ok()?,
    );
    let second = parts.next()?.parse::<f64>().ok()?;
    let in_range = (2000..2200).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0.0..61.0).contains(&second);
    if !in_range {
        return None;
    }
    // Here, years begin in March, so that a leap day is the last day of its year.
    let (y, m) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1;
    let since_2000 = days - (365 * 1999 + 1999 / 4 - 1999 / 100 + 1999 / 400 + 306);
    let seconds = since_2000 * 86_400 + hour * 3600 + minute * 60;
    Some(seconds as f64 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsed_dates_differ_by_the_seconds_between_them() {
        let between = |a: &str, b: &str| {
            let (a, b) = (
                parse_date_or_seconds(a).unwrap(),
                parse_date_or_seconds(b).unwrap(),
            );
            b - a
        };
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-3, "{found}");
        near(
            between("2023-11-16 18:17:03.9799600", "2023-11-16 18:17:04.0319600"),
            0.052,
        );
        near(
            between("2024-02-28 23:59:59", "2024-03-01T00:00:01Z"),
            86_402.0,
        );
        near(between("0", "12.5"), 12.5);
        for text in ["", "x", "2023-13-01 00:00:00", "2023-11-16 25:00:00", "-1"] {
            assert_eq!(parse_date_or_seconds(text), None, "{text}");
        }
    }

    #[test]
    fn prompts_split_into_whole_512_token_blocks_and_an_unshared_rest() {
        // 1,100 tokens fill two whole blocks of 512 tokens. The other 76 are not shared, although the trace states
        // three hashes.
        let pieces = prompt_pieces_from_hashes(&[7, 8, 9], 1100, 1);
        assert_eq!(
            pieces.iter().map(|piece| piece.tokens).collect::<Vec<_>>(),
            [512, 512, 76]
        );
        assert_eq!(
            pieces[0].stream,
            RequestContentTokenStream::from_trace_block_hash(7)
        );
    }
}
