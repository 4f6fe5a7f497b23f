//! Tables of measured runs: CSV, each row a model, a plan, a machine and what was measured.

use super::columns::{MACHINE, MODEL, MeasuredUnit, NPUS, OptionSource, plan_option};
use super::{RunColumns, ScoreError};
use chakram_base::config::quoted;
use chakram_hardware::machine::{self, Machine};
use chakram_jobs::machine_facts;
use chakram_workloads::generate::TrainingPattern;
use chakram_workloads::generate::plan::{ParallelismPlan, PlanDraft};
use chakram_workloads::model::{Model, ModelDefinition};
use std::collections::BTreeMap;

/// A run that was measured.
#[derive(Clone, Debug)]
pub struct MeasuredRun {
    /// The table.
    pub file: String,
    /// Line of the table, from 1.
    pub line: u64,
    /// Seconds of a step.
    pub measured: f64,
    /// The model and its plan.
    pub training: TrainingPattern,
    /// The machine, of a size that holds the plan.
    pub machine: Machine,
    /// Options and their values, as the table and the file of columns have them.
    pub options: BTreeMap<String, String>,
    /// Number of its group among those of the table.
    pub group: usize,
    /// Number of its fold.
    pub fold: usize,
}

/// A table of measured runs.
#[derive(Clone, Debug)]
pub struct RunTable {
    /// Its name in errors and reports.
    pub file: String,
    /// The runs, in order.
    pub runs: Vec<MeasuredRun>,
}

/// Numbers distinct texts in order of first use.
#[derive(Default)]
struct KeyNumbers(BTreeMap<String, usize>);

impl KeyNumbers {
    fn of(&mut self, keys: &[String], options: &BTreeMap<String, String>) -> usize {
        let values = keys
            .iter()
            .map(|key| options.get(key).map_or("", String::as_str));
        let text = values.collect::<Vec<_>>().join("\u{1f}");
        let next = self.0.len();
        *self.0.entry(text).or_insert(next)
    }
}

impl RunTable {
    /// Reads the CSV `text`, called `file` in errors, whose columns are what `columns` says.
    ///
    /// # Errors
    ///
    /// If a column is missing, or a row makes no run.
    pub fn parse(text: &str, file: &str, columns: &RunColumns) -> Result<Self, ScoreError> {
        let table = |why: String| ScoreError::Table {
            file: file.to_owned(),
            why,
        };
        // Spreadsheets begin files with a byte order mark.
        let text = text.trim_start_matches('\u{feff}');
        // The reader counts a line late where lines end in two characters.
        let text = text.replace("\r\n", "\n");
        let mut reader = csv::ReaderBuilder::new()
            .trim(csv::Trim::All)
            .from_reader(text.as_bytes());
        let heads = reader
            .headers()
            .map_err(|error| table(error.to_string()))?
            .clone();
        let find = |head: &str| {
            heads.iter().position(|h| h == head).ok_or_else(|| {
                let found: Vec<_> = heads.iter().map(quoted).collect();
                table(format!(
                    "there is no column {}, only {}",
                    quoted(head),
                    found.join(", ")
                ))
            })
        };
        let measured = find(&columns.measured)?;
        let mut sources = Vec::new();
        for (key, source) in &columns.options {
            sources.push(match source {
                OptionSource::Column(head) => (key, Ok(find(head)?)),
                OptionSource::Fixed(value) => (key, Err(value)),
            });
        }
        let mut only = Vec::new();
        for (head, values) in &columns.only {
            only.push((find(head)?, values));
        }
        let mut when = Vec::new();
        for condition in &columns.when {
            when.push((find(&condition.column)?, &condition.values));
        }
        let (mut groups, mut folds) = (KeyNumbers::default(), KeyNumbers::default());
        let mut runs = Vec::new();
        for record in reader.records() {
            let record = record.map_err(|error| table(error.to_string()))?;
            let line = record.position().map_or(0, csv::Position::line);
            let row = |why: String| ScoreError::Row {
                file: file.to_owned(),
                line,
                why,
            };
            let cell = |i: usize| record.get(i).unwrap_or_default();
            if !only
                .iter()
                .all(|(i, values)| values.iter().any(|value| value == cell(*i)))
            {
                continue;
            }
            let mut options = BTreeMap::new();
            for (key, source) in &sources {
                let value = match source {
                    Ok(column) => cell(*column),
                    Err(value) => value.as_str(),
                };
                if !EMPTY.contains(&value) {
                    options.insert((*key).clone(), value.to_owned());
                }
            }
            for (column, values) in &when {
                for (key, value) in values.get(cell(*column)).into_iter().flatten() {
                    if value.is_empty() {
                        options.remove(key);
                    } else {
                        options.insert(key.clone(), value.clone());
                    }
                }
            }
            complete(&mut options).map_err(row)?;
            let number = cell(measured).parse::<f64>().ok();
            let number = number
                .filter(|s| s.is_finite() && *s > 0.0)
                .ok_or_else(|| {
                    row(format!(
                        "{} is {}, expected a number of more than zero",
                        quoted(&columns.measured),
                        quoted(cell(measured))
                    ))
                })?;
            let (training, machine) = resolve(&options, columns).map_err(row)?;
            let seconds = seconds(number, columns.unit, &training, &options).map_err(row)?;
            options.insert(NPUS.to_owned(), training.plan.ranks().to_string());
            runs.push(MeasuredRun {
                file: file.to_owned(),
                line,
                measured: seconds,
                training,
                machine,
                group: groups.of(&columns.groups, &options),
                fold: folds.of(&columns.folds, &options),
                options,
            });
        }
        if runs.is_empty() {
            let picked = if columns.only.is_empty() {
                ""
            } else {
                " that [only] picks"
            };
            return Err(table(format!("there is no run in it{picked}")));
        }
        Ok(Self {
            file: file.to_owned(),
            runs,
        })
    }

    /// Adds the runs of another table, whose groups and folds are its own.
    pub fn append(&mut self, other: Self) {
        let after = |number: fn(&MeasuredRun) -> usize| {
            self.runs
                .iter()
                .map(number)
                .max()
                .map_or(0, |most| most + 1)
        };
        let (groups, folds) = (after(|run| run.group), after(|run| run.fold));
        self.file = format!("{}, {}", self.file, other.file);
        self.runs
            .extend(other.runs.into_iter().map(|run| MeasuredRun {
                group: run.group + groups,
                fold: run.fold + folds,
                ..run
            }));
    }
}

/// Cells that state nothing.
const EMPTY: [&str; 3] = ["", "n/a", "-"];

/// Adds what follows from `options`: the data-parallel degree from the number of NPUs, and the schedule from that of
/// chunks, of which one is none.
fn complete(options: &mut BTreeMap<String, String>) -> Result<(), String> {
    let number = |key: &str| -> Result<u64, String> {
        let Some(text) = options.get(key) else {
            return Ok(1);
        };
        let wrong = || format!("`{key}` is {}, expected a whole number", quoted(text));
        text.parse::<u64>().map_err(|_| wrong())
    };
    let (npus, chunks) = (number(NPUS)?, number("chunks")?);
    let degrees = ["tensor", "context", "pipeline"];
    let replica = degrees.iter().try_fold(1, |all: u64, key| {
        Ok::<_, String>(all.saturating_mul(number(key)?))
    })?;
    if options.contains_key(NPUS) && !options.contains_key("data") {
        let data = npus
            .checked_div(replica)
            .filter(|data| data * replica == npus);
        let data = data.ok_or_else(|| {
            let degrees = degrees.join(" x ");
            format!("`{NPUS}` is {npus}, expected a multiple of {degrees} = {replica}")
        })?;
        options.insert("data".to_owned(), data.to_string());
    }
    if chunks == 1 {
        options.remove("chunks");
    } else {
        let schedule = options.entry("schedule".to_owned());
        schedule.or_insert_with(|| "interleaved".to_owned());
    }
    Ok(())
}

/// Seconds of a step of which `number` was measured.
fn seconds(
    number: f64,
    unit: MeasuredUnit,
    training: &TrainingPattern,
    options: &BTreeMap<String, String>,
) -> Result<f64, String> {
    let (plan, model) = (&training.plan, &training.model);
    let samples = plan.batch as f64;
    let each_second = plan.ranks() as f64 * number;
    let flops = |again: bool| -> Result<f64, String> {
        let size = |key: &str| -> Result<f64, String> {
            let needed = || format!("there is no `{key}`, from which FLOPs are found");
            options
                .get(key)
                .and_then(|text| text.parse().ok())
                .ok_or_else(needed)
        };
        let [l, h, v] = [size("layers")?, size("hidden")?, size("vocabulary")?];
        let s = model.sequence as f64;
        // Equation 3, and without the forward pass that is done again, which the logits do not have.
        let (blocks, logits) = if again { (96.0, 16.0) } else { (72.0, 12.0) };
        let each = 1.0 + s / (6.0 * h) + v / (logits * l * h);
        Ok(blocks * s * l * h * h * each)
    };
    match unit {
        MeasuredUnit::Time(unit) => Ok(number * unit),
        MeasuredUnit::Tokens => Ok(samples * model.sequence as f64 / each_second),
        MeasuredUnit::Flops(again) => Ok(samples * flops(again)? / (each_second * 1e12)),
    }
}

/// Options that plans without a tensor group may not have.
const OF_TENSOR_GROUPS: [&str; 3] = ["pad_heads", "scatter_gather", "sequence_parallel"];

/// The model and plan of `options`, and the machine at the size of the plan.
fn resolve(
    options: &BTreeMap<String, String>,
    columns: &RunColumns,
) -> Result<(TrainingPattern, Machine), String> {
    let model = model(options, columns)?;
    let mut draft = PlanDraft::new(ParallelismPlan::new());
    // A table's words on all runs say nothing of those without a tensor group.
    let alone = options.get("tensor").is_none_or(|tensor| tensor == "1");
    let idle = |key: &str| alone && OF_TENSOR_GROUPS.contains(&key);
    for (key, value) in options {
        let Some(option) = plan_option(key).filter(|option| !idle(option.key)) else {
            continue;
        };
        let words: Vec<String> = if option.is_list {
            value.split(',').map(str::to_owned).collect()
        } else {
            vec![value.clone()]
        };
        let set = (option.set)(&mut draft, &words);
        set.map_err(|why| format!("`{key}` is {}: {why}", quoted(value)))?;
    }
    let mut plan = draft.finish().map_err(|error| error.to_string())?;
    let ranks = u32::try_from(plan.ranks()).map_err(|_| "too many ranks".to_owned())?;
    if let Some(npus) = options.get(NPUS).filter(|npus| **npus != ranks.to_string()) {
        return Err(format!(
            "the plan is of {ranks} ranks (tensor x context x data x pipeline), but `{NPUS}` is {}",
            quoted(npus)
        ));
    }
    let machine = options.get(MACHINE).unwrap_or(&columns.machine);
    let machine = machine::for_ranks(machine, ranks).map_err(|error| error.to_string())?;
    plan.bind(&machine_facts(&machine))
        .map_err(|error| error.to_string())?;
    Ok((TrainingPattern { model, plan }, machine))
}

/// The model by its name, or of GPT's kind with the sizes that the run states.
fn model(options: &BTreeMap<String, String>, columns: &RunColumns) -> Result<Model, String> {
    let size = |key: &str| -> Result<Option<u64>, String> {
        let number = |text: &String| {
            let wrong = || format!("`{key}` is {}, expected a whole number", quoted(text));
            text.parse::<u64>().map_err(|_| wrong())
        };
        options.get(key).map(number).transpose()
    };
    if let Some(name) = options.get(MODEL) {
        let name = columns.names.get(name).unwrap_or(name);
        let model = match size("sequence")? {
            Some(tokens) => Model::with_sequence(name, tokens),
            None => Model::named(name),
        };
        return model.map_err(|error| error.to_string());
    }
    let need = |key: &str| {
        size(key)?
            .ok_or_else(|| format!("there is neither `{MODEL}` nor `{key}`, one of its sizes"))
    };
    let [layers, hidden, heads, sequence] = [
        need("layers")?,
        need("hidden")?,
        need("heads")?,
        need("sequence")?,
    ];
    let vocabulary = need("vocabulary")?;
    let ffn = size("ffn")?.unwrap_or(hidden.saturating_mul(4));
    let kv_heads = size("kv_heads")?.unwrap_or(heads);
    let text = format!(
        "name = \"gpt-{layers}x{hidden}\"\nsource = \"a measured run\"\nkind = \"transformer\"\n\
         layers = {layers}\nhidden = {hidden}\nheads = {heads}\nkv_heads = {kv_heads}\nffn = {ffn}\n\
         vocabulary = {vocabulary}\nsequence = {sequence}\nactivation = \"gelu\"\nnorm = \"layernorm\"\n\
         positions = \"learned\"\nbiases = true\ncausal = true\ndropout = true\nhead = \"logits\"\ntied = true\n"
    );
    let definition = ModelDefinition::parse(&text, "the model of the run", None);
    Ok(definition.map_err(|error| error.to_string())?.model)
}
