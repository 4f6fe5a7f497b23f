//! Parses the models in a scenario's file, and the tables that they name.

use super::*;
use crate::jobs::{ConvolutionTasks, JobBranches, JobLowering, VectorJob};
use crate::tables::{ColumnUnit, TableReader};
use chakram_workloads::model::{ModelError, ModelSource, PRESETS};

/// Keys that a model may have.
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
/// Maximum number of multiplications of a request.
const MOST_WORK: u64 = 1 << 62;

/// Parses a model.
pub(super) fn parse_model(
    table: &ConfigTable<'_>,
    folder: &Path,
) -> Result<ServedModel, ServeError> {
    let name = table.need("name", "the model's name")?.line()?.to_owned();
    let mut given = SOURCES
        .iter()
        .filter_map(|&(key, used)| Some((table.get(key)?, key, used)));
    let expected = || format!("one of {}", SOURCES.map(|(key, _)| key).join(", "));
    let (source, key, used) = given
        .next()
        .ok_or_else(|| table.missing("preset", expected()))?;
    if let Some((second, ..)) = given.next() {
        return Err(second.refuse("a second source of work", expected()).into());
    }
    refuse_unused(table, key, used)?;
    let (work, known_as) = parse_work(table, &source, folder, &name)?;
    let place = ModelPlace {
        work: source.place(),
        deadline: table.get("deadline").map(|field| field.place()),
    };
    let deadline: Option<Span> = table.optional("deadline", |field| field.quantity("10 ms"))?;
    let sparsity = table.or("sparsity", 0.0, |field| match field.positive(1.0)? {
        sparsity if sparsity >= 1.0 => Err(field.refuse(sparsity, "a number below 1")),
        sparsity => Ok(sparsity),
    })?;
    let count = |key| table.optional(key, |field| field.count(1 << 30));
    let tokens = match (count("prompt")?, count("output")?) {
        (None, None) => None,
        (prompt, output) => Some([prompt.unwrap_or(1), output.unwrap_or(1)]),
    };
    if let (Some([prompt, _]), ModelWork::Steps { prefill, .. }) = (tokens, &work)
        && f64::from(prompt) > prefill.last()
    {
        let most = prefill.last();
        let expected = format!("at most {most}, the longest prompt that was measured");
        let field = table.need("prompt", "a number")?;
        return Err(field.refuse(prompt, expected).into());
    }
    Ok(ServedModel {
        class: table.optional("class", |field| field.line().map(str::to_owned))?,
        // With weight zero, a model is not in the random mix, but a file of arrivals may still name it.
        weight: table.or("weight", 1.0, |field| match field.whole() {
            Some(0) => Ok(0.0),
            _ => field.positive(1e9),
        })?,
        level: table.or("priority", 0, |field| field.between(0, 1_000_000))? as u32,
        deadline,
        bytes: table.optional("bytes", |field| field.between(1, 1 << 50))?,
        known_as,
        sparsity,
        tokens,
        work,
        place,
        name,
    })
}

/// Rejects keys that `source` does not use but other sources of work do.
fn refuse_unused(table: &ConfigTable<'_>, source: &str, used: &[&str]) -> Result<(), ConfigError> {
    let others = SOURCES.iter().flat_map(|(_, keys)| keys.iter());
    for key in others.filter(|key| !used.contains(key)) {
        if let Some(field) = table.get(key) {
            let found = format!("a key that has no effect with `{source}`");
            return Err(field.refuse(found, "a model without this key"));
        }
    }
    Ok(())
}

/// Parses the work of a model, and the name under which platforms list the model.
fn parse_work(
    table: &ConfigTable<'_>,
    source: &ConfigField<'_>,
    folder: &Path,
    name: &str,
) -> Result<(ModelWork, String), ServeError> {
    let known = |work| Ok((work, name.to_owned()));
    if table.get("preset").is_some() {
        return parse_preset(table, source, folder);
    }
    if table.get("jobs").is_some() {
        return known(ModelWork::Vectors(parse_jobs(source)?));
    }
    if table.get("latency").is_some() {
        let names = [(false, "constant"), (true, "exponential")];
        let exponential = table.or("distribution", false, |field| field.choice(&names))?;
        let mean = source.quantity("10 ms")?;
        return known(ModelWork::Latency { mean, exponential });
    }
    if table.get("latencies").is_some() {
        return known(parse_latencies(source, folder)?);
    }
    if table.get("steps").is_some() {
        return known(parse_steps(source, folder)?);
    }
    if table.get("trace").is_some() {
        let given = source.line()?;
        let path = folder.join(given);
        let job = TraceJob::open(&path).map_err(|error| ServeError::Trace {
            place: Box::new(source.refuse(quoted(given), "traces that can be replayed")),
            source: Box::new(error),
        })?;
        return known(ModelWork::Trace(job));
    }
    if !source.flag()? {
        return Err(source
            .refuse("false", "true, or another source of work")
            .into());
    }
    known(ModelWork::Platform)
}

fn parse_preset(
    table: &ConfigTable<'_>,
    source: &ConfigField<'_>,
    folder: &Path,
) -> Result<(ModelWork, String), ServeError> {
    let given = source.line()?;
    let is_file = given.contains('/') || given.ends_with(".toml");
    let path = if is_file {
        folder.join(given).display().to_string()
    } else {
        given.to_owned()
    };
    let tokens = table.optional("tokens", |field| field.between(1, 1_000_000_000))?;
    let found = ModelSource::find(&path).and_then(|source| source.definition(tokens));
    let model = match found {
        Ok(found) => found.model,
        Err(ModelError::Unknown { .. }) => {
            let names = PRESETS.iter().map(|preset| preset.name);
            return Err(unknown_name(source, given, "a model", names).into());
        }
        Err(error) => {
            let place = source.refuse(quoted(given), "a model that can be read");
            return Err(ServeError::Model {
                place: Box::new(place),
                source: Box::new(error),
            });
        }
    };
    let attention = [(false, "layer"), (true, "heads")];
    let lowering = JobLowering {
        convolution: table.or("convolution", ConvolutionTasks::default(), |field| {
            field.choice(&ConvolutionTasks::ALL)
        })?,
        heads: table.or("attention", false, |field| field.choice(&attention))?,
        branches: table.or("branches", JobBranches::default(), |field| {
            field.choice(&JobBranches::ALL)
        })?,
        merge: table.or("merge", 0, |field| field.between(1, 1 << 40))?,
        tables: table.or("tables", false, |field| field.flag())?,
    };
    let graph = JobGraph::of_model(&model, lowering);
    check_work(source, &graph)?;
    let known_as = if is_file {
        model.name
    } else {
        given.to_owned()
    };
    Ok((ModelWork::Vectors(graph), known_as))
}

fn check_work(source: &ConfigField<'_>, graph: &JobGraph) -> Result<(), ConfigError> {
    if graph.jobs().is_empty() {
        return Err(source.refuse("no vector products", "one job at least"));
    }
    if graph.multiplications() > MOST_WORK {
        return Err(source.refuse(
            format_args!("{} multiplications", graph.multiplications()),
            format_args!("at most {MOST_WORK}"),
        ));
    }
    Ok(())
}

fn parse_jobs(source: &ConfigField<'_>) -> Result<JobGraph, ConfigError> {
    let mut graph = JobGraph::default();
    let entries = source.items("tables such as { tasks = 4, length = 5 }")?;
    for (number, entry) in (0_u32..).zip(&entries) {
        let table = entry.table(Some(&["tasks", "length", "after"]))?;
        let size = |key: &str| {
            let expected = "a whole number, 1 or more";
            table.need(key, expected)?.between(1, 1 << 40)
        };
        let job = VectorJob {
            tasks: size("tasks")?,
            length: size("length")?,
        };
        let mut after = Vec::new();
        match table.get("after") {
            None => after.extend(number.checked_sub(1)),
            Some(field) => {
                for item in field.items("numbers of earlier jobs, from 0")? {
                    let most = number.checked_sub(1);
                    let most =
                        most.ok_or_else(|| item.refuse("a dependency of the first job", "none"))?;
                    after.push(item.between(0, most.into())? as u32);
                }
                after.sort_unstable();
                after.dedup();
            }
        }
        graph.add(job, &after);
    }
    graph.set_layers(entries.len() as u32);
    check_work(source, &graph)?;
    Ok(graph)
}

/// Opens a table that a model names, with the selected rows and the named columns.
fn table_of<'d>(
    source: &ConfigField<'d>,
    keys: &[&str],
    folder: &Path,
) -> Result<(TableReader, ConfigTable<'d>), ServeError> {
    let mut allowed = vec!["file", "where"];
    allowed.extend(keys);
    let table = source.table(Some(&allowed))?;
    let path = folder.join(table.need("file", "the path of a table")?.line()?);
    let mut reader = TableReader::open(&path)?;
    if let Some(field) = table.get("where") {
        for (column, value) in field.table(None)?.fields() {
            reader.filter(column, value.text("text in quotes")?)?;
        }
    }
    Ok((reader, table))
}

/// Returns the column that the key `key` names, with its unit.
fn time_column(
    table: &ConfigTable<'_>,
    reader: &TableReader,
    key: &str,
) -> Result<(usize, ColumnUnit), ServeError> {
    let field = table.need(key, "the name of a column of times such as \"total_ms\"")?;
    let name = field.line()?;
    let unit = ColumnUnit::of(name).ok_or_else(|| {
        field.refuse(
            quoted(name),
            "a column whose name ends in _ps, _ns, _us, _ms or _s",
        )
    })?;
    Ok((reader.column(name)?, unit))
}

/// Returns the column that the key `key` names; `None` if the model does not have the key.
fn number_column(
    table: &ConfigTable<'_>,
    reader: &TableReader,
    key: &str,
) -> Result<Option<usize>, ServeError> {
    match table.get(key) {
        Some(field) => Ok(Some(reader.column(field.line()?)?)),
        None => Ok(None),
    }
}

fn parse_latencies(source: &ConfigField<'_>, folder: &Path) -> Result<ModelWork, ServeError> {
    let (mut reader, table) = table_of(source, &["latency", "batch"], folder)?;
    let (latency, unit) = time_column(&table, &reader, "latency")?;
    let batch = number_column(&table, &reader, "batch")?;
    let mut rows = Vec::new();
    while reader.advance()? {
        let span = unit.span(reader.number(latency)?);
        let batch = batch.map_or(Ok(1.0), |column| reader.number(column))?;
        rows.push((batch, span));
    }
    if rows.is_empty() {
        return Err(source
            .refuse("no row of the table", "one at least that `where` keeps")
            .into());
    }
    Ok(match batch {
        None => ModelWork::Drawn(rows.into_iter().map(|(_, span)| span).collect()),
        Some(_) => ModelWork::ByBatch(LatencyCurve::of_means(rows).unwrap_or_default()),
    })
}

fn parse_steps(source: &ConfigField<'_>, folder: &Path) -> Result<ModelWork, ServeError> {
    let keys = ["tokens", "batch", "prefill", "step"];
    let (mut reader, table) = table_of(source, &keys, folder)?;
    let tokens = number_column(&table, &reader, "tokens")?
        .ok_or_else(|| table.missing("tokens", "the column of the tokens of a prompt"))?;
    let batch = number_column(&table, &reader, "batch")?;
    let (prefill, prefill_unit) = time_column(&table, &reader, "prefill")?;
    let (step, step_unit) = time_column(&table, &reader, "step")?;
    let (mut prompts, mut later) = (Vec::new(), Vec::new());
    while reader.advance()? {
        let together = batch.map_or(Ok(1.0), |column| reader.number(column))?;
        let all = reader.number(tokens)? * together;
        prompts.push((all, prefill_unit.span(reader.number(prefill)?)));
        later.push((together, step_unit.span(reader.number(step)?)));
    }
    match (
        LatencyCurve::of_means(prompts),
        LatencyCurve::of_means(later),
    ) {
        (Some(prefill), Some(step)) => Ok(ModelWork::Steps { prefill, step }),
        _ => Err(source
            .refuse("no row of the table", "one at least that `where` keeps")
            .into()),
    }
}
