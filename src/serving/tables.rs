//! Reads tables of measurements: CSV with a header line and arbitrary columns, plain or compressed.

use super::error::ServeError;
use chakram_base::config::{
    did_you_mean, find_most_similar_name, quote_and_truncate_for_message, require_distinct_headings,
};
use chakram_base::units::Span;
use chakram_trace::format::file::DecompressedStream;
use std::path::Path;

/// A table whose rows are read one by one.
pub struct CsvTableRowReader {
    file: String,
    headings: Vec<String>,
    rows: csv::Reader<DecompressedStream<'static>>,
    record: csv::StringRecord,
    /// Pairs (column, value); rows with another value in the column are skipped.
    filters: Vec<(usize, String)>,
}

/// Unit of a column, stated by the suffix of its name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeColumnUnit {
    seconds: f64,
}

impl TimeColumnUnit {
    /// Returns the unit in a column name's suffix; `None` if there is none.
    pub fn from_column_name(name: &str) -> Option<Self> {
        let lower = name.to_lowercase();
        let units = [
            ("_ps", 1e-12),
            ("_ns", 1e-9),
            ("_us", 1e-6),
            ("_ms", 1e-3),
            ("_s", 1.0),
        ];
        let found = units.iter().find(|(end, _)| lower.ends_with(end));
        found.map(|(_, seconds)| Self { seconds: *seconds })
    }

    /// Microseconds.
    pub const MICROSECONDS: Self = Self { seconds: 1e-6 };

    /// Converts a value in this unit to a duration.
    pub fn to_span(self, value: f64) -> Span {
        Span::from_seconds_saturating(value * self.seconds)
    }
}

impl CsvTableRowReader {
    /// Opens the table at `path`.
    pub fn open_table(path: &Path) -> Result<Self, ServeError> {
        let file = path.display().to_string();
        let stream = DecompressedStream::open_path(path).map_err(|error| ServeError::Read {
            file: file.clone(),
            source: std::io::Error::other(error.to_string()),
        })?;
        let mut rows = csv::ReaderBuilder::new()
            .trim(csv::Trim::All)
            .from_reader(stream);
        let headings = rows.headers().map_err(|error| csv_error(&file, &error))?;
        require_distinct_headings(headings.iter()).map_err(|why| ServeError::Row {
            file: file.clone(),
            line: 1,
            why,
        })?;
        let headings: Vec<String> = headings.iter().map(str::to_owned).collect();
        Ok(Self {
            file,
            headings,
            rows,
            record: csv::StringRecord::new(),
            filters: Vec::new(),
        })
    }

    /// Returns the name of the file, for error messages.
    pub fn file_name(&self) -> &str {
        &self.file
    }

    /// Returns the names of the columns.
    pub fn column_names(&self) -> &[String] {
        &self.headings
    }

    /// Skips all rows whose value in the column `name` is not `value`.
    pub fn skip_rows_unless_column_equals(
        &mut self,
        name: &str,
        value: &str,
    ) -> Result<(), ServeError> {
        let column = self.column_index(name)?;
        self.filters.push((column, value.to_owned()));
        Ok(())
    }

    /// Tries `names` in order, and returns the index of the first column found; `None` if there is none.
    pub fn find_first_column(&self, names: &[&str]) -> Option<usize> {
        let place = |name: &&str| {
            self.headings
                .iter()
                .position(|h| h.eq_ignore_ascii_case(name))
        };
        names.iter().find_map(place)
    }

    /// Returns the index of the column `name`; fails if there is none.
    pub fn column_index(&self, name: &str) -> Result<usize, ServeError> {
        self.find_first_column(&[name]).ok_or_else(|| {
            let all = self.headings.iter().map(String::as_str);
            let closest = find_most_similar_name(name, all.clone());
            ServeError::invalid_row(
                &self.file,
                1,
                format_args!("no column {}", quote_and_truncate_for_message(name)),
                format_args!(
                    "one of {}{}",
                    all.collect::<Vec<_>>().join(", "),
                    did_you_mean(closest)
                ),
            )
        })
    }

    /// Moves to the next row that matches the filters; returns false at the end of the table.
    pub fn advance_to_next_matching_row(&mut self) -> Result<bool, ServeError> {
        loop {
            let more = self.rows.read_record(&mut self.record);
            if !more.map_err(|error| csv_error(&self.file, &error))? {
                return Ok(false);
            }
            let mut filters = self.filters.iter();
            if filters.all(|(column, value)| self.record.get(*column) == Some(value)) {
                return Ok(true);
            }
        }
    }

    /// Returns the line of the current row, counted from 1.
    pub fn line_number(&self) -> u64 {
        self.record.position().map_or(0, csv::Position::line)
    }

    /// Returns the text of one cell of the current row.
    pub fn cell_text(&self, column: usize) -> &str {
        self.record.get(column).unwrap_or_default()
    }

    /// Returns the number in a cell of the current row, which must be finite and not negative.
    pub fn number_in_column(&self, column: usize) -> Result<f64, ServeError> {
        let text = self.cell_text(column);
        let number = text.parse::<f64>().ok();
        let number = number.filter(|n| n.is_finite() && *n >= 0.0);
        number.ok_or_else(|| {
            let name = &self.headings[column];
            self.invalid_row_error(
                format_args!(
                    "{} in column `{name}`",
                    quote_and_truncate_for_message(text)
                ),
                "a number of 0 or more",
            )
        })
    }

    /// Builds an error that names the table and the current line.
    pub fn invalid_row_error(
        &self,
        found: impl std::fmt::Display,
        expected: impl std::fmt::Display,
    ) -> ServeError {
        ServeError::invalid_row(&self.file, self.line_number(), found, expected)
    }
}

fn csv_error(file: &str, error: &csv::Error) -> ServeError {
    let line = error.position().map_or(1, csv::Position::line);
    let why = match error.kind() {
        csv::ErrorKind::UnequalLengths {
            expected_len, len, ..
        } => format!("found {len} columns, expected {expected_len} as in the line of headings"),
        csv::ErrorKind::Utf8 { .. } => "found bytes that are not text, expected UTF-8".to_owned(),
        _ => error.to_string(),
    };
    ServeError::Row {
        file: file.to_owned(),
        line,
        why,
    }
}

/// A curve of durations over positions (batch sizes or numbers of tokens), interpolated linearly.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InterpolatedDurationCurve {
    /// Points (position, mean duration), sorted by position.
    points: Vec<(f64, Span)>,
}

impl InterpolatedDurationCurve {
    /// Creates a curve from measurements, averaging durations at equal positions. `None` if there
    /// are no measurements.
    pub fn from_averaged_measurements(mut measured: Vec<(f64, Span)>) -> Option<Self> {
        measured.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut points: Vec<(f64, Span)> = Vec::new();
        let mut rest = measured.as_slice();
        while let Some(&(x, _)) = rest.first() {
            let here = rest.partition_point(|(other, _)| *other <= x);
            let sum: u128 = rest[..here]
                .iter()
                .map(|(_, span)| u128::from(span.0))
                .sum();
            points.push((x, Span((sum / here as u128) as u64)));
            rest = &rest[here..];
        }
        (!points.is_empty()).then_some(Self { points })
    }

    /// Returns the largest measured position.
    pub fn largest_position(&self) -> f64 {
        self.points.last().map_or(0.0, |(x, _)| *x)
    }

    /// Returns the duration at position `x`. Between two positions, it is interpolated linearly. Before the first
    /// position, it is constant. After the last position, it continues along the line through the last two positions.
    pub fn duration_at(&self, x: f64) -> Span {
        let behind = self.points.partition_point(|(place, _)| *place < x);
        let (Some(first), Some(last)) = (self.points.first(), self.points.last()) else {
            return Span::ZERO;
        };
        let [(x0, y0), (x1, y1)] = match behind {
            0 => return first.1,
            n if n < self.points.len() => [self.points[n - 1], self.points[n]],
            n if n >= 2 => [self.points[n - 2], self.points[n - 1]],
            _ => return last.1,
        };
        let (y0, y1) = (y0.0 as f64, y1.0 as f64);
        Span((y0 + (y1 - y0) * ((x - x0) / (x1 - x0))).round() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_linear_between_means() {
        let us = Span::from_us;
        let curve = InterpolatedDurationCurve::from_averaged_measurements(vec![
            (4.0, us(40)),
            (1.0, us(8)),
            (1.0, us(12)),
        ])
        .unwrap();
        // The mean is 10 us at position 1, and 10 + 30 / 3 us at position 2. After position 4, the
        // durations continue along the same line.
        assert_eq!(
            [0.5, 1.0, 2.0, 4.0, 5.0].map(|x| curve.duration_at(x)),
            [10, 10, 20, 40, 50].map(us)
        );
        let one =
            InterpolatedDurationCurve::from_averaged_measurements(vec![(2.0, us(7))]).unwrap();
        assert_eq!([1.0, 9.0].map(|x| one.duration_at(x)), [us(7); 2]);
        assert_eq!(
            InterpolatedDurationCurve::from_averaged_measurements(Vec::new()),
            None
        );
    }

    #[test]
    fn time_unit_is_read_from_column_name_suffix() {
        assert_eq!(
            TimeColumnUnit::from_column_name("prompt_ms")
                .unwrap()
                .to_span(1.5),
            Span::from_us(1500)
        );
        assert_eq!(
            TimeColumnUnit::from_column_name("arrival_ns")
                .unwrap()
                .to_span(3.0),
            Span::from_ns(3)
        );
        assert_eq!(TimeColumnUnit::from_column_name("arrival"), None);
    }
}
