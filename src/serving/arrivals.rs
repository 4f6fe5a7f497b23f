//! Yields request arrivals in time order, drawn at random or read from a file.

use super::error::ServeError;
use super::random::{RandomPurpose, RandomStream};
use super::scenario::{ArrivalPattern, ArrivalRateInRequestsOrBytes, RequestWork, Scenario};
use super::tables::{CsvTableRowReader, TimeColumnUnit};
use chakram_base::config::{did_you_mean, find_most_similar_name, quote_and_truncate_for_message};
use chakram_base::units::{Span, Time};
use chakram_trace::format::file::DecompressedStream;
use serde::Deserialize;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Arrival of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestArrival {
    pub at: Time,
    /// Index of the model.
    pub model: u32,
    /// Number of prompt tokens and of answer tokens; 0 if unknown.
    pub tokens: [u32; 2],
}

/// Draws each request's model at random, with probabilities proportional to the models' weights.
#[derive(Debug)]
pub struct RequestModelSampler {
    sums: Vec<f64>,
    random: RandomStream,
}

impl RequestModelSampler {
    pub fn new(scenario: &Scenario) -> Self {
        let mut sum = 0.0;
        let sums = scenario.models.iter().map(|model| {
            sum += model.weight;
            sum
        });
        Self {
            sums: sums.collect(),
            random: RandomStream::new(scenario.seed, RandomPurpose::Mix),
        }
    }

    /// Returns the model of the next request.
    pub fn next(&mut self) -> u32 {
        match self.sums.len() {
            1 => 0,
            _ => self.random.pick_weighted_index(&self.sums) as u32,
        }
    }
}

/// Yields arrivals that do not depend on earlier answers, in time order.
pub struct OpenLoopArrivalSource<'s> {
    scenario: &'s Scenario,
    mix: RequestModelSampler,
    gaps: RandomStream,
    /// Number of requests that arrived so far.
    count: u64,
    last: Time,
    file: Option<FileArrivalSource<'s>>,
}

impl<'s> OpenLoopArrivalSource<'s> {
    pub fn new(scenario: &'s Scenario) -> Result<Self, ServeError> {
        let file = match &scenario.stream {
            ArrivalPattern::File { .. } => Some(FileArrivalSource::open_file(scenario)?),
            _ => None,
        };
        Ok(Self {
            scenario,
            mix: RequestModelSampler::new(scenario),
            gaps: RandomStream::new(scenario.seed, RandomPurpose::Gaps),
            count: 0,
            last: Time::ZERO,
            file,
        })
    }

    /// Returns the next arrival; `None` after the last arrival.
    pub fn next(&mut self) -> Result<Option<RequestArrival>, ServeError> {
        let stop = &self.scenario.stop;
        if stop.requests.is_some_and(|most| self.count >= most) {
            return Ok(None);
        }
        let arrival = match &self.scenario.stream {
            ArrivalPattern::Poisson(rate) => Some(self.draw_arrival_after_gap(*rate, true)),
            ArrivalPattern::Periodic(rate) => Some(self.draw_arrival_after_gap(*rate, false)),
            ArrivalPattern::Bursts { burst, every } => {
                let number = self.count / u64::from(*burst);
                Some(RequestArrival {
                    at: Time::ZERO + every.times(number),
                    model: self.mix.next(),
                    tokens: [0, 0],
                })
            }
            ArrivalPattern::Closed { .. } => None,
            ArrivalPattern::File { .. } => match &mut self.file {
                Some(file) => file.next(&mut self.mix)?,
                None => None,
            },
        };
        let within = |arrival: &RequestArrival| {
            stop.duration
                .is_none_or(|duration| arrival.at < Time::ZERO + duration)
        };
        let arrival = arrival.filter(within);
        if let Some(arrival) = &arrival {
            self.count += 1;
            self.last = arrival.at;
        }
        Ok(arrival)
    }

    /// Returns an arrival that is one gap later than the previous one. If the rate is in requests, the mean gap is its
    /// inverse. If the rate is a bandwidth, the mean gap is the time to transfer the previous request's bytes at that
    /// bandwidth.
    fn draw_arrival_after_gap(
        &mut self,
        rate: ArrivalRateInRequestsOrBytes,
        random: bool,
    ) -> RequestArrival {
        let model = self.mix.next();
        let mean = match rate {
            ArrivalRateInRequestsOrBytes::Requests(rate) => 1.0 / rate,
            ArrivalRateInRequestsOrBytes::Bytes(bandwidth) => {
                let bytes = self.scenario.models[model as usize].bytes.unwrap_or(0);
                bytes as f64 / bandwidth.bytes_per_second()
            }
        };
        let gap = if random {
            self.gaps.next_exponential(mean)
        } else {
            mean
        };
        // With equal intervals, the first request arrives at 0.
        let first = !random && self.count == 0;
        let gap = if first { 0.0 } else { gap };
        RequestArrival {
            at: self.last + Span::from_seconds_saturating(gap),
            model,
            tokens: [0, 0],
        }
    }
}

/// An arrival file: CSV with a header line, or one JSON object per line.
///
/// A CSV file has the column `arrival_s` (or `_ms`, `_us`, `_ns`, `_ps`). Optional columns are
/// `model`, `input_toks` (number of prompt tokens) and `output_toks` (number of answer tokens). A
/// JSON object has `timestamp` in milliseconds, `input_length` and `output_length`.
struct FileArrivalSource<'s> {
    scenario: &'s Scenario,
    path: &'s Path,
    rows: ArrivalFileReader,
    repeat: u32,
    speed: f64,
    /// Time at which the file's current repetition starts; it is added to the times in the file.
    offset: Time,
    last: Time,
    /// Line number of the previous arrival.
    last_line: u64,
}

enum ArrivalFileReader {
    Table {
        reader: Box<CsvTableRowReader>,
        at: (usize, TimeColumnUnit),
        model: Option<usize>,
        tokens: [Option<usize>; 2],
    },
    Objects {
        lines: BufReader<DecompressedStream<'static>>,
        line: u64,
        text: String,
    },
}

/// One line of a JSON arrival file. All other fields are ignored.
#[derive(Deserialize)]
struct ArrivalJsonLine {
    timestamp: f64,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    input_length: f64,
    #[serde(default)]
    output_length: f64,
}

/// Values of one row of an arrival file, before conversion.
struct UnconvertedArrivalFileRow {
    at: Span,
    model: Option<String>,
    tokens: [f64; 2],
    line: u64,
}

/// Maximum length of a line in a JSON arrival file, in bytes.
const LONGEST_LINE: u64 = 16 << 20;

impl<'s> FileArrivalSource<'s> {
    fn open_file(scenario: &'s Scenario) -> Result<Self, ServeError> {
        let ArrivalPattern::File {
            path,
            repeat,
            speed,
        } = &scenario.stream
        else {
            return Err(ServeError::Unfit("the stream is not a file".to_owned()));
        };
        Ok(Self {
            scenario,
            path,
            rows: ArrivalFileReader::open_rows(path)?,
            repeat: *repeat,
            speed: *speed,
            offset: Time::ZERO,
            last: Time::ZERO,
            last_line: 0,
        })
    }

    fn invalid_row(
        &self,
        line: u64,
        found: impl std::fmt::Display,
        expected: impl std::fmt::Display,
    ) -> ServeError {
        ServeError::invalid_row(&self.path.display().to_string(), line, found, expected)
    }

    fn next(
        &mut self,
        mix: &mut RequestModelSampler,
    ) -> Result<Option<RequestArrival>, ServeError> {
        let row = match self.rows.next(self.path)? {
            Some(row) => row,
            None if self.repeat > 1 && self.last_line > 0 => {
                // The next repetition begins when this repetition's last arrival occurs.
                self.repeat -= 1;
                self.offset = self.last;
                self.rows = ArrivalFileReader::open_rows(self.path)?;
                match self.rows.next(self.path)? {
                    Some(row) => row,
                    None => return Ok(None),
                }
            }
            None => return Ok(None),
        };
        let at = self.offset + row.at.scale_by(1.0 / self.speed);
        if at < self.last {
            let found = format!(
                "an arrival at {}, before the arrival of line {}",
                row.at, self.last_line
            );
            return Err(self.invalid_row(row.line, found, "arrivals in order of time"));
        }
        let model = match &row.model {
            None => mix.next(),
            Some(name) => {
                let models = &self.scenario.models;
                let found = models.iter().position(|model| model.name == *name);
                match found {
                    Some(model) => model as u32,
                    None => {
                        let all = models.iter().map(|model| model.name.as_str());
                        let closest = find_most_similar_name(name, all.clone());
                        let expected = format!(
                            "a model of the scenario, one of {}{}",
                            all.collect::<Vec<_>>().join(", "),
                            did_you_mean(closest)
                        );
                        return Err(self.invalid_row(
                            row.line,
                            format_args!("model {}", quote_and_truncate_for_message(name)),
                            expected,
                        ));
                    }
                }
            }
        };
        let mut tokens = [0_u32; 2];
        for (to, count) in tokens.iter_mut().zip(row.tokens) {
            if count.fract() != 0.0 || count > f64::from(1 << 30) {
                let expected = "a whole number of tokens, at most 2^30";
                return Err(self.invalid_row(row.line, format_args!("{count} tokens"), expected));
            }
            *to = count as u32;
        }
        if let RequestWork::Steps { prefill, .. } = &self.scenario.models[model as usize].work {
            let most = prefill.largest_position();
            if f64::from(tokens[0]) > most {
                let found = format!("a prompt of {} tokens", tokens[0]);
                let expected = format!("at most {most}, the longest that was measured");
                return Err(self.invalid_row(row.line, found, expected));
            }
        }
        (self.last, self.last_line) = (at, row.line);
        Ok(Some(RequestArrival { at, model, tokens }))
    }
}

impl ArrivalFileReader {
    fn open_rows(path: &Path) -> Result<Self, ServeError> {
        let file = path.display().to_string();
        let name = file.strip_suffix(".gz").unwrap_or(&file);
        let name = name.strip_suffix(".zst").unwrap_or(name);
        if name.ends_with(".jsonl") {
            let stream = DecompressedStream::open_path(path).map_err(|error| ServeError::Read {
                file: file.clone(),
                source: std::io::Error::other(error.to_string()),
            })?;
            return Ok(Self::Objects {
                lines: BufReader::new(stream),
                line: 0,
                text: String::new(),
            });
        }
        let reader = CsvTableRowReader::open_table(path)?;
        let units = [
            "arrival_s",
            "arrival_ms",
            "arrival_us",
            "arrival_ns",
            "arrival_ps",
        ];
        let Some(at) = reader.find_first_column(&units) else {
            let found = format!("the columns {}", reader.column_names().join(", "));
            return Err(ServeError::invalid_row(
                &file,
                1,
                found,
                format_args!("one of {}", units.join(", ")),
            ));
        };
        let unit = TimeColumnUnit::from_column_name(&reader.column_names()[at])
            .unwrap_or(TimeColumnUnit::MICROSECONDS);
        Ok(Self::Table {
            at: (at, unit),
            model: reader.find_first_column(&["model"]),
            tokens: [
                reader.find_first_column(&["input_toks", "prompt_tokens", "ContextTokens"]),
                reader.find_first_column(&["output_toks", "output_tokens", "GeneratedTokens"]),
            ],
            reader: Box::new(reader),
        })
    }

    fn next(&mut self, path: &Path) -> Result<Option<UnconvertedArrivalFileRow>, ServeError> {
        match self {
            Self::Table {
                reader,
                at: (column, unit),
                model,
                tokens,
            } => {
                if !reader.advance_to_next_matching_row()? {
                    return Ok(None);
                }
                let count = |column: &Option<usize>| match column {
                    Some(column) => reader.number_in_column(*column),
                    None => Ok(0.0),
                };
                Ok(Some(UnconvertedArrivalFileRow {
                    at: unit.to_span(reader.number_in_column(*column)?),
                    model: model.map(|column| reader.cell_text(column).to_owned()),
                    tokens: [count(&tokens[0])?, count(&tokens[1])?],
                    line: reader.line_number(),
                }))
            }
            Self::Objects { lines, line, text } => {
                let file = path.display().to_string();
                loop {
                    text.clear();
                    *line += 1;
                    let mut bounded = std::io::Read::take(&mut *lines, LONGEST_LINE);
                    let read = bounded.read_line(text).map_err(|source| ServeError::Read {
                        file: file.clone(),
                        source,
                    })?;
                    if read == 0 {
                        return Ok(None);
                    }
                    if !text.trim().is_empty() {
                        break;
                    }
                }
                let object: ArrivalJsonLine = serde_json::from_str(text).map_err(|error| {
                    ServeError::invalid_row(
                        &file,
                        *line,
                        error,
                        "an object with a `timestamp` in milliseconds",
                    )
                })?;
                let numbers = [object.timestamp, object.input_length, object.output_length];
                if numbers.iter().any(|n| !n.is_finite() || *n < 0.0) {
                    return Err(ServeError::invalid_row(
                        &file,
                        *line,
                        "a negative number",
                        "numbers from 0",
                    ));
                }
                Ok(Some(UnconvertedArrivalFileRow {
                    at: Span::from_seconds_saturating(object.timestamp * 1e-3),
                    model: object.model,
                    tokens: [object.input_length, object.output_length],
                    line: *line,
                }))
            }
        }
    }
}
