//! Turns each row of a table of measured runs into a scenario. Names in braces in the scenario's text are replaced by
//! values.

use super::{METRICS, MeasuredServingRow, ServingTimeStatistic, UnpredictableServingRow};
use crate::error::ServeError;
use chakram_base::config::{
    ConfigDocument, ConfigField, ConfigTable, did_you_mean, find_most_similar_name,
    quote_and_truncate_for_message, require_distinct_headings,
};
use chakram_trace::format::file::DecompressedStream;
use std::collections::BTreeMap;
use std::path::Path;

const ROOT: &[&str] = &[
    "machine",
    "groups",
    "folds",
    "client",
    "client_groups",
    "scenario",
    "measured",
    "only",
    "names",
    "when",
];

/// Values as text, by name.
type TextValuesByName = BTreeMap<String, String>;

/// A file that defines how rows are turned into scenarios.
#[derive(Clone, Debug)]
pub(super) struct RowScenarioTemplate {
    machine: Option<String>,
    groups: Vec<String>,
    folds: Vec<String>,
    fits_client: bool,
    client_groups: Vec<String>,
    scenario: String,
    /// Metrics, each with the name of its column and the seconds in the column's unit.
    measured: Vec<(ServingTimeStatistic, String, f64)>,
    only: Vec<(String, Vec<String>)>,
    names: BTreeMap<String, TextValuesByName>,
    /// Lists of columns, and the names that each of their values defines. If a list has several columns, their values
    /// are joined by spaces.
    when: Vec<(Vec<String>, BTreeMap<String, TextValuesByName>)>,
}

fn parse_text_list(field: &ConfigField<'_>) -> Result<Vec<String>, ServeError> {
    let expected = "a list of texts in quotes";
    let items = field.read_array_items(expected)?;
    let each = items
        .iter()
        .map(|item| Ok(item.read_text(expected)?.to_owned()));
    each.collect()
}

fn parse_text_values_by_name(field: &ConfigField<'_>) -> Result<TextValuesByName, ServeError> {
    let table = field.read_table(None)?;
    let entries = table.fields().map(|(key, value)| {
        Ok((
            key.to_owned(),
            value.read_text("a text in quotes")?.to_owned(),
        ))
    });
    entries.collect()
}

/// Returns the tables inside the table `name` of `root`, in the order of the file.
fn list_inner_tables<'d>(
    root: &ConfigTable<'d>,
    name: &str,
) -> Result<Vec<(&'d str, ConfigField<'d>)>, ServeError> {
    match root.get(name) {
        None => Ok(Vec::new()),
        Some(field) => Ok(field.read_table(None)?.fields().collect()),
    }
}

/// Returns the unit of a column, in seconds. The end of the column's name gives the unit.
fn column_unit_seconds(column: &str) -> Option<f64> {
    let units = [("_us", 1e-6), ("_ms", 1e-3), ("_s", 1.0)];
    let found = units.iter().find(|(end, _)| column.ends_with(end));
    found.map(|(_, seconds)| *seconds)
}

impl RowScenarioTemplate {
    /// Parses the file. Error messages call the text `file`.
    pub fn parse(text: &str, file: &str) -> Result<Self, ServeError> {
        let document = ConfigDocument::parse(text, file)?;
        let root = document.root_table_with_allowed_keys(ROOT)?;
        let list = |key: &str| {
            root.get(key)
                .map_or(Ok(Vec::new()), |field| parse_text_list(&field))
        };
        let mut measured = Vec::new();
        let columns = root.require_field("measured", "the columns of measured times")?;
        for (name, field) in columns.read_table(None)?.fields() {
            let Some(metric) = METRICS.iter().find(|metric| metric.name == name) else {
                let names = METRICS.iter().map(|metric| metric.name);
                let hint = did_you_mean(find_most_similar_name(name, names.clone()));
                let all = names.collect::<Vec<_>>().join(", ");
                return Err(field
                    .invalid_value_error(
                        quote_and_truncate_for_message(name),
                        format_args!("one of {all}{hint}"),
                    )
                    .into());
            };
            let column = field.read_one_line_text()?;
            let Some(seconds) = column_unit_seconds(column) else {
                return Err(field
                    .invalid_value_error(
                        quote_and_truncate_for_message(column),
                        "a column whose name ends in _us, _ms or _s",
                    )
                    .into());
            };
            measured.push((*metric, column.to_owned(), seconds));
        }
        if measured.is_empty() {
            return Err(root
                .missing_entry_error("measured", "at least one metric")
                .into());
        }
        let mut only = Vec::new();
        for (column, field) in list_inner_tables(&root, "only")? {
            only.push((column.to_owned(), parse_text_list(&field)?));
        }
        let mut names = BTreeMap::new();
        for (column, field) in list_inner_tables(&root, "names")? {
            names.insert(column.to_owned(), parse_text_values_by_name(&field)?);
        }
        let mut when = Vec::new();
        for (column, field) in list_inner_tables(&root, "when")? {
            let mut values = BTreeMap::new();
            for (value, field) in field.read_table(None)?.fields() {
                values.insert(value.to_owned(), parse_text_values_by_name(&field)?);
            }
            let columns = column.split_ascii_whitespace().map(str::to_owned);
            when.push((columns.collect(), values));
        }
        let scenario = root.require_field("scenario", "the text of a scenario")?;
        Ok(Self {
            machine: root.read_optional("machine", |field| {
                Ok(field.read_one_line_text()?.to_owned())
            })?,
            groups: list("groups")?,
            folds: list("folds")?,
            fits_client: root
                .read_optional("client", |field| field.read_choice(&[((), "other-folds")]))?
                .is_some(),
            client_groups: match root.get("client_groups") {
                Some(field) if root.get("client").is_none() => {
                    return Err(field
                        .invalid_value_error(field.raw_text(), "no such key without `client`")
                        .into());
                }
                _ => list("client_groups")?,
            },
            scenario: scenario.read_text("the text of a scenario")?.to_owned(),
            measured,
            only,
            names,
            when,
        })
    }

    /// Returns the metrics in the order of the file.
    pub fn list_metrics(&self) -> Vec<ServingTimeStatistic> {
        self.measured.iter().map(|(metric, ..)| *metric).collect()
    }

    /// Returns true if the client's time is to be estimated from rows in other folds.
    pub fn estimates_client_time(&self) -> bool {
        self.fits_client
    }

    /// Reads the rows of the table at `runs`. Rows that cannot be turned into a scenario are returned separately. `by`
    /// names an additional column to read.
    pub fn read_rows(
        &self,
        runs: &Path,
        by: Option<&str>,
    ) -> Result<(Vec<MeasuredServingRow>, Vec<UnpredictableServingRow>), ServeError> {
        let file = runs.display().to_string();
        let of_table = |why: String| ServeError::Table {
            file: file.clone(),
            why,
        };
        let stream =
            DecompressedStream::open_path(runs).map_err(|error| of_table(error.to_string()))?;
        let mut reader = csv::ReaderBuilder::new()
            .trim(csv::Trim::All)
            .from_reader(stream);
        let headings = reader.headers();
        let headings = headings
            .map_err(|error| of_table(error.to_string()))?
            .clone();
        require_distinct_headings(headings.iter()).map_err(of_table)?;
        let measured = self.measured.iter().map(|(_, column, _)| column);
        let needed = measured
            .chain(&self.groups)
            .chain(&self.client_groups)
            .chain(&self.folds)
            .chain(self.only.iter().map(|(column, _)| column))
            .chain(self.when.iter().flat_map(|(columns, _)| columns))
            .chain(self.names.keys())
            .map(String::as_str);
        for column in needed.chain(by) {
            if !headings.iter().any(|heading| heading == column) {
                let hint = did_you_mean(find_most_similar_name(column, headings.iter()));
                return Err(of_table(format!(
                    "found no column {}, expected one{hint}",
                    quote_and_truncate_for_message(column)
                )));
            }
        }
        // A scenario resolves relative paths from its own folder, so the table's folder must be an absolute path here.
        let folder = runs.parent().unwrap_or(Path::new(""));
        let folder = std::path::absolute(Path::new(".").join(folder)).map_or_else(
            |_| folder.display().to_string(),
            |path| path.display().to_string(),
        );
        let (mut rows, mut refused) = (Vec::new(), Vec::new());
        let [mut groups, mut folds, mut clients] = std::array::from_fn(|_| BTreeMap::new());
        for record in reader.records() {
            let record = record.map_err(|error| of_table(error.to_string()))?;
            let line = record.position().map_or(0, csv::Position::line);
            let cells = headings.iter().zip(record.iter());
            let cells: BTreeMap<&str, &str> = cells.collect();
            let text = |column: &str| cells.get(column).copied().unwrap_or_default();
            let counts = |(column, values): &(String, Vec<String>)| {
                values.iter().any(|value| value == text(column))
            };
            if !self.only.iter().all(counts) {
                continue;
            }
            let number = |columns: &[String], numbers: &mut BTreeMap<Vec<String>, usize>| {
                // A model is one fold by its name, even if the table lists it under several.
                let key = columns.iter().map(|column| {
                    let value = text(column);
                    let names = self.names.get(column);
                    let named = names.and_then(|names| names.get(value));
                    named.map_or(value, String::as_str).to_owned()
                });
                let next = numbers.len();
                *numbers.entry(key.collect()).or_insert(next)
            };
            let row = self
                .read_row(line, &cells, &folder)
                .map(|row| MeasuredServingRow {
                    group: number(&self.groups, &mut groups),
                    fold: number(&self.folds, &mut folds),
                    client_group: number(&self.client_groups, &mut clients),
                    part: by.map(|column| text(column).to_owned()).unwrap_or_default(),
                    ..row
                });
            match row {
                Ok(row) => rows.push(row),
                Err(why) => refused.push(UnpredictableServingRow { line, why }),
            }
        }
        Ok((rows, refused))
    }

    /// Reads the current row and makes its scenario; `folder` is the table's folder.
    fn read_row(
        &self,
        line: u64,
        cells: &BTreeMap<&str, &str>,
        folder: &str,
    ) -> Result<MeasuredServingRow, String> {
        let mut values: BTreeMap<&str, &str> = cells.clone();
        values.insert("folder", folder);
        for (column, names) in &self.names {
            let known = cells
                .get(column.as_str())
                .and_then(|value| names.get(*value));
            if let Some(known) = known {
                values.insert(column, known);
            }
        }
        for (columns, choices) in &self.when {
            let cells = columns.iter().map(|column| cells.get(column.as_str()));
            let cells: Vec<&str> = cells
                .map(|cell| cell.copied().unwrap_or_default())
                .collect();
            for (name, text) in choices.get(&cells.join(" ")).into_iter().flatten() {
                values.insert(name, text);
            }
        }
        let measured = self.measured.iter().map(|(_, column, unit)| {
            let text = cells.get(column.as_str()).copied().unwrap_or_default();
            if text.is_empty() {
                return Ok(None);
            }
            let number = text
                .parse::<f64>()
                .ok()
                .filter(|n| *n > 0.0 && n.is_finite());
            let number = number.ok_or_else(|| {
                format!(
                    "{column}: found {}, expected a time above 0",
                    quote_and_truncate_for_message(text)
                )
            })?;
            Ok(Some(number * unit))
        });
        Ok(MeasuredServingRow {
            line,
            measured: measured.collect::<Result<_, String>>()?,
            scenario: fill_placeholders(&self.scenario, &values)?,
            machine: self
                .machine
                .as_ref()
                .map(|text| fill_placeholders(text, &values))
                .transpose()?,
            group: 0,
            fold: 0,
            client_group: 0,
            part: String::new(),
        })
    }
}

/// Replaces each expression in braces in `text` with its value. Keeps braces around other text, as in an inline table.
fn fill_placeholders(text: &str, values: &BTreeMap<&str, &str>) -> Result<String, String> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some(open) = rest.find('{') {
        let (before, after) = rest.split_at(open);
        filled += before;
        let Some(close) = after.find('}') else {
            filled += after;
            return Ok(filled);
        };
        let inside = &after[1..close];
        if inside.contains(['=', '{']) {
            filled.push('{');
            rest = &after[1..];
        } else {
            filled += &evaluate_expression(inside, values)?;
            rest = &after[close + 1..];
        }
    }
    Ok(filled + rest)
}

/// Returns the value of a name, or of a sum of products and quotients of names and numbers.
fn evaluate_expression(expression: &str, values: &BTreeMap<&str, &str>) -> Result<String, String> {
    let (expression, is_whole) = match expression.split_once('|') {
        Some((before, "whole" | " whole")) => (before, true),
        Some(_) => {
            return Err(format!(
                "{}: expected `| whole` at the end",
                quote_and_truncate_for_message(expression)
            ));
        }
        None => (expression, false),
    };
    let find = |name: &str| {
        let value = values.get(name).copied().filter(|value| !value.is_empty());
        value.ok_or_else(|| {
            format!(
                "{} has no value, and the scenario needs one",
                quote_and_truncate_for_message(name)
            )
        })
    };
    let words: Vec<&str> = expression.split_ascii_whitespace().collect();
    if let ([name], false) = (words.as_slice(), is_whole) {
        return find(name).map(str::to_owned);
    }
    let number = |word: &str| {
        let text = match word.parse::<f64>() {
            Ok(number) => return Ok(number),
            Err(_) => find(word)?,
        };
        let number = text.parse::<f64>();
        number.map_err(|_| {
            format!(
                "{}: found {}, expected a number",
                quote_and_truncate_for_message(word),
                quote_and_truncate_for_message(text)
            )
        })
    };
    let mut words = words.into_iter();
    // The sum of all terms before the last `+`, and the product or quotient after it.
    let (mut sum, mut value) = (0.0, number(words.next().unwrap_or_default())?);
    while let Some(operator) = words.next() {
        let operand = number(words.next().unwrap_or_default())?;
        match operator {
            "*" => value *= operand,
            "/" => value /= operand,
            "+" => (sum, value) = (sum + value, operand),
            _ => {
                return Err(format!(
                    "{}: found {}, expected +, * or /",
                    quote_and_truncate_for_message(expression),
                    quote_and_truncate_for_message(operator)
                ));
            }
        }
    }
    value += sum;
    if !value.is_finite() {
        return Err(format!(
            "{}: the result is not finite",
            quote_and_truncate_for_message(expression)
        ));
    }
    Ok(match is_whole {
        true => format!("{:.0}", value.round()),
        false => format!("{value}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_braces_stand_for_values() {
        let values = BTreeMap::from([("isl", "1024"), ("model", "llama3-8b"), ("none", "")]);
        let text = "a = \"{model}\"\nb = \"{isl * 0.8 | whole}..{isl}\"\nc = { x = \"{model}\" }\nd = {isl / 4}\ne = {2 * isl + isl / 4 + 1 | whole}\n";
        assert_eq!(
            fill_placeholders(text, &values).unwrap(),
            "a = \"llama3-8b\"\nb = \"819..1024\"\nc = { x = \"llama3-8b\" }\nd = 256\ne = 2305\n"
        );
        for (text, why) in [
            ("{none}", "has no value"),
            ("{mdel}", "has no value"),
            ("{model * 2}", "expected a number"),
            ("{isl - 2}", "expected +, * or /"),
            ("{isl / 0}", "not finite"),
            ("{isl | up}", "expected `| whole`"),
        ] {
            let error = fill_placeholders(text, &values).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
