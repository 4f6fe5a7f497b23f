//! Parses the models in a scenario file, and the tables that they name.

use super::*;
use crate::jobs::{
    ConcurrentOperatorsRule, ConvolutionDivisionIntoVectorProducts, EqualVectorProductTasks,
    OperatorToJobLoweringRules,
};
use crate::tables::{CsvTableRowReader, TimeColumnUnit};
use chakram_workloads::model::{ModelError, PRESETS, PresetOrModelFileText};

/// Keys that every model may have.
pub(super) const KEYS: &[&str] = &[
    "name",
    "class",
    "weight",
    "priority",
    "deadline",
    "bytes",
    "preset",
    "tokens",
    "convolution",
    "attention",
    "branches",
    "merge",
    "tables",
    "sparsity",
    "jobs",
    "latency",
    "distribution",
    "latencies",
    "steps",
    "prompt",
    "output",
    "measured",
    "trace",
];
/// Sources of a model's work, each with the additional keys that it uses.
const SOURCES: [(&str, &[&str]); 7] = [
    (
        "preset",
        &[
            "tokens",
            "convolution",
            "attention",
            "branches",
            "merge",
            "tables",
            "sparsity",
        ],
    ),
    ("jobs", &["sparsity"]),
    ("latency", &["distribution"]),
    ("latencies", &[]),
    ("steps", &["prompt", "output"]),
    ("measured", &[]),
    ("trace", &[]),
];
/// Maximum number of multiplications per request.
const MOST_WORK: u64 = 1 << 62;

/// Parses a model.
pub(super) fn parse_model(
    table: &ConfigTable<'_>,
    folder: &Path,
) -> Result<RequestedModel, ServeError> {
    let name = table
        .require_field("name", "the model's name")?
        .read_one_line_text()?
        .to_owned();
    let mut given = SOURCES
        .iter()
        .filter_map(|&(key, used)| Some((table.get(key)?, key, used)));
    let expected = || format!("one of {}", SOURCES.map(|(key, _)| key).join(", "));
    let (source, key, used) = given
        .next()
        .ok_or_else(|| table.missing_entry_error("preset", expected()))?;
    if let Some((second, ..)) = given.next() {
        return Err(second
            .invalid_value_error("a second source of work", expected())
            .into());
    }
    reject_unused_work_keys(table, key, used)?;
    let (work, known_as) = parse_model_work(table, &source, folder, &name)?;
    let place = ModelWorkAndDeadlineLocations {
        work: source.describe_location(),
        deadline: table.get("deadline").map(|field| field.describe_location()),
    };
    let deadline: Option<Span> =
        table.read_optional("deadline", |field| field.read_quantity("10 ms"))?;
    let sparsity =
        table.read_or_default("sparsity", 0.0, |field| match field.read_positive(1.0)? {
            sparsity if sparsity >= 1.0 => {
                Err(field.invalid_value_error(sparsity, "a number below 1"))
            }
            sparsity => Ok(sparsity),
        })?;
    let count = |key| table.read_optional(key, |field| field.read_count(1 << 30));
    let tokens = match (count("prompt")?, count("output")?) {
        (None, None) => None,
        (prompt, output) => Some([prompt.unwrap_or(1), output.unwrap_or(1)]),
    };
    if let (Some([prompt, _]), RequestWork::Steps { prefill, .. }) = (tokens, &work)
        && f64::from(prompt) > prefill.largest_position()
    {
        let most = prefill.largest_position();
        let expected = format!("at most {most}, the longest prompt that was measured");
        let field = table.require_field("prompt", "a number")?;
        return Err(field.invalid_value_error(prompt, expected).into());
    }
    Ok(RequestedModel {
        class: table.read_optional("class", |field| {
            field.read_one_line_text().map(str::to_owned)
        })?,
        // Random arrivals never use a model with weight zero, but an arrival file may name it.
        weight: table.read_or_default("weight", 1.0, |field| match field.as_whole_number() {
            Some(0) => Ok(0.0),
            _ => field.read_positive(1e9),
        })?,
        level: table.read_or_default("priority", 0, |field| {
            field.read_integer_between(0, 1_000_000)
        })? as u32,
        deadline,
        bytes: table.read_optional("bytes", |field| field.read_integer_between(1, 1 << 50))?,
        known_as,
        sparsity,
        tokens,
        work,
        place,
        name,
    })
}

/// Rejects keys that belong only to sources of work other than `source`.
fn reject_unused_work_keys(
    table: &ConfigTable<'_>,
    source: &str,
    used: &[&str],
) -> Result<(), ConfigError> {
    let others = SOURCES.iter().flat_map(|(_, keys)| keys.iter());
    for key in others.filter(|key| !used.contains(key)) {
        if let Some(field) = table.get(key) {
            let found = format!("a key that has no effect with `{source}`");
            return Err(field.invalid_value_error(found, "a model without this key"));
        }
    }
    Ok(())
}

/// Parses a model's work, and the name under which platforms list the model.
fn parse_model_work(
    table: &ConfigTable<'_>,
    source: &ConfigField<'_>,
    folder: &Path,
    name: &str,
) -> Result<(RequestWork, String), ServeError> {
    let known = |work| Ok((work, name.to_owned()));
    if table.get("preset").is_some() {
        return parse_preset_work(table, source, folder);
    }
    if table.get("jobs").is_some() {
        return known(RequestWork::Vectors(parse_job_graph(source)?));
    }
    if table.get("latency").is_some() {
        let names = [(false, "constant"), (true, "exponential")];
        let exponential =
            table.read_or_default("distribution", false, |field| field.read_choice(&names))?;
        let mean = source.read_quantity("10 ms")?;
        return known(RequestWork::Latency { mean, exponential });
    }
    if table.get("latencies").is_some() {
        return known(parse_work_from_latency_table(source, folder)?);
    }
    if table.get("steps").is_some() {
        return known(parse_step_time_work(source, folder)?);
    }
    if table.get("trace").is_some() {
        let given = source.read_one_line_text()?;
        let path = folder.join(given);
        let job = RequestJobFromTraces::open_job(&path).map_err(|error| ServeError::Trace {
            place: Box::new(source.invalid_value_error(
                quote_and_truncate_for_message(given),
                "traces that can be replayed",
            )),
            source: Box::new(error),
        })?;
        return known(RequestWork::Trace(job));
    }
    if !source.read_flag()? {
        return Err(source
            .invalid_value_error("false", "true, or another source of work")
            .into());
    }
    known(RequestWork::Platform)
}

fn parse_preset_work(
    table: &ConfigTable<'_>,
    source: &ConfigField<'_>,
    folder: &Path,
) -> Result<(RequestWork, String), ServeError> {
    let given = source.read_one_line_text()?;
    let is_file = given.contains('/') || given.ends_with(".toml");
    let path = if is_file {
        folder.join(given).display().to_string()
    } else {
        given.to_owned()
    };
    let tokens = table.read_optional("tokens", |field| {
        field.read_integer_between(1, 1_000_000_000)
    })?;
    let found = PresetOrModelFileText::find_source(&path)
        .and_then(|source| source.parse_definition(tokens));
    let model = match found {
        Ok(found) => found.model,
        Err(ModelError::Unknown { .. }) => {
            let names = PRESETS.iter().map(|preset| preset.name);
            return Err(unknown_name_error(source, given, "a model", names).into());
        }
        Err(error) => {
            let place = source.invalid_value_error(
                quote_and_truncate_for_message(given),
                "a model that can be read",
            );
            return Err(ServeError::Model {
                place: Box::new(place),
                source: Box::new(error),
            });
        }
    };
    let attention = [(false, "layer"), (true, "heads")];
    let lowering = OperatorToJobLoweringRules {
        convolution: table.read_or_default(
            "convolution",
            ConvolutionDivisionIntoVectorProducts::default(),
            |field| field.read_choice(&ConvolutionDivisionIntoVectorProducts::ALL),
        )?,
        heads: table.read_or_default("attention", false, |field| field.read_choice(&attention))?,
        branches: table.read_or_default(
            "branches",
            ConcurrentOperatorsRule::default(),
            |field| field.read_choice(&ConcurrentOperatorsRule::ALL),
        )?,
        merge: table.read_or_default("merge", 0, |field| field.read_integer_between(1, 1 << 40))?,
        tables: table.read_or_default("tables", false, |field| field.read_flag())?,
    };
    let graph = GraphOfVectorProductJobs::of_model(&model, lowering);
    check_vector_job_work(source, &graph)?;
    let known_as = if is_file {
        model.name
    } else {
        given.to_owned()
    };
    Ok((RequestWork::Vectors(graph), known_as))
}

fn check_vector_job_work(
    source: &ConfigField<'_>,
    graph: &GraphOfVectorProductJobs,
) -> Result<(), ConfigError> {
    if graph.jobs().is_empty() {
        return Err(source.invalid_value_error("no vector products", "one job at least"));
    }
    if graph.multiplication_count() > MOST_WORK {
        return Err(source.invalid_value_error(
            format_args!("{} multiplications", graph.multiplication_count()),
            format_args!("at most {MOST_WORK}"),
        ));
    }
    Ok(())
}

fn parse_job_graph(source: &ConfigField<'_>) -> Result<GraphOfVectorProductJobs, ConfigError> {
    let mut graph = GraphOfVectorProductJobs::default();
    let entries = source.read_array_items("tables such as { tasks = 4, length = 5 }")?;
    for (number, entry) in (0_u32..).zip(&entries) {
        let table = entry.read_table(Some(&["tasks", "length", "after"]))?;
        let size = |key: &str| {
            let expected = "a whole number, 1 or more";
            table
                .require_field(key, expected)?
                .read_integer_between(1, 1 << 40)
        };
        let job = EqualVectorProductTasks {
            tasks: size("tasks")?,
            length: size("length")?,
        };
        let mut after = Vec::new();
        match table.get("after") {
            None => after.extend(number.checked_sub(1)),
            Some(field) => {
                for item in field.read_array_items("numbers of earlier jobs, from 0")? {
                    let most = number.checked_sub(1);
                    let most = most.ok_or_else(|| {
                        item.invalid_value_error("a dependency of the first job", "none")
                    })?;
                    after.push(item.read_integer_between(0, most.into())? as u32);
                }
                after.sort_unstable();
                after.dedup();
            }
        }
        graph.add_job(job, &after);
    }
    graph.set_layer_count(entries.len() as u32);
    check_vector_job_work(source, &graph)?;
    Ok(graph)
}

/// Opens the table that `source` names, and keeps only the rows that `where` selects. `keys` are allowed in addition to
/// `file` and `where`.
fn open_table_with_row_filters<'d>(
    source: &ConfigField<'d>,
    keys: &[&str],
    folder: &Path,
) -> Result<(CsvTableRowReader, ConfigTable<'d>), ServeError> {
    let mut allowed = vec!["file", "where"];
    allowed.extend(keys);
    let table = source.read_table(Some(&allowed))?;
    let path = folder.join(
        table
            .require_field("file", "the path of a table")?
            .read_one_line_text()?,
    );
    let mut reader = CsvTableRowReader::open_table(&path)?;
    if let Some(field) = table.get("where") {
        for (column, value) in field.read_table(None)?.fields() {
            reader.skip_rows_unless_column_equals(column, value.read_text("text in quotes")?)?;
        }
    }
    Ok((reader, table))
}

/// Returns the index and unit of the column that the key `key` refers to.
fn find_time_column(
    table: &ConfigTable<'_>,
    reader: &CsvTableRowReader,
    key: &str,
) -> Result<(usize, TimeColumnUnit), ServeError> {
    let field = table.require_field(key, "the name of a column of times such as \"total_ms\"")?;
    let name = field.read_one_line_text()?;
    let unit = TimeColumnUnit::from_column_name(name).ok_or_else(|| {
        field.invalid_value_error(
            quote_and_truncate_for_message(name),
            "a column whose name ends in _ps, _ns, _us, _ms or _s",
        )
    })?;
    Ok((reader.column_index(name)?, unit))
}

/// Returns the index of the column that the key `key` refers to; `None` if the model lacks the key.
fn find_column_index_for_key(
    table: &ConfigTable<'_>,
    reader: &CsvTableRowReader,
    key: &str,
) -> Result<Option<usize>, ServeError> {
    match table.get(key) {
        Some(field) => Ok(Some(reader.column_index(field.read_one_line_text()?)?)),
        None => Ok(None),
    }
}

fn parse_work_from_latency_table(
    source: &ConfigField<'_>,
    folder: &Path,
) -> Result<RequestWork, ServeError> {
    let (mut reader, table) = open_table_with_row_filters(source, &["latency", "batch"], folder)?;
    let (latency, unit) = find_time_column(&table, &reader, "latency")?;
    let batch = find_column_index_for_key(&table, &reader, "batch")?;
    let mut rows = Vec::new();
    while reader.advance_to_next_matching_row()? {
        let span = unit.to_span(reader.number_in_column(latency)?);
        let batch = batch.map_or(Ok(1.0), |column| reader.number_in_column(column))?;
        rows.push((batch, span));
    }
    if rows.is_empty() {
        return Err(source
            .invalid_value_error("no row of the table", "one at least that `where` keeps")
            .into());
    }
    Ok(match batch {
        None => RequestWork::Drawn(rows.into_iter().map(|(_, span)| span).collect()),
        Some(_) => RequestWork::ByBatch(
            InterpolatedDurationCurve::from_averaged_measurements(rows).unwrap_or_default(),
        ),
    })
}

fn parse_step_time_work(
    source: &ConfigField<'_>,
    folder: &Path,
) -> Result<RequestWork, ServeError> {
    let keys = ["tokens", "batch", "prefill", "step"];
    let (mut reader, table) = open_table_with_row_filters(source, &keys, folder)?;
    let tokens = find_column_index_for_key(&table, &reader, "tokens")?.ok_or_else(|| {
        table.missing_entry_error("tokens", "the column of the tokens of a prompt")
    })?;
    let batch = find_column_index_for_key(&table, &reader, "batch")?;
    let (prefill, prefill_unit) = find_time_column(&table, &reader, "prefill")?;
    let (step, step_unit) = find_time_column(&table, &reader, "step")?;
    let (mut prompts, mut later) = (Vec::new(), Vec::new());
    while reader.advance_to_next_matching_row()? {
        let together = batch.map_or(Ok(1.0), |column| reader.number_in_column(column))?;
        let all = reader.number_in_column(tokens)? * together;
        prompts.push((all, prefill_unit.to_span(reader.number_in_column(prefill)?)));
        later.push((together, step_unit.to_span(reader.number_in_column(step)?)));
    }
    match (
        InterpolatedDurationCurve::from_averaged_measurements(prompts),
        InterpolatedDurationCurve::from_averaged_measurements(later),
    ) {
        (Some(prefill), Some(step)) => Ok(RequestWork::Steps { prefill, step }),
        _ => Err(source
            .invalid_value_error("no row of the table", "one at least that `where` keeps")
            .into()),
    }
}
