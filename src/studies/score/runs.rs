//! Parses tables (CSV) of measured runs. Each row has a model, a plan, a machine and a measurement.

use super::columns::{
    ColumnOrFixedOptionSource, MACHINE, MACHINE_VALUE, MODEL, NPUS, STACK, TimeOrThroughputUnit,
    plan_option,
};
use super::{RunColumnRules, ScoreError};
use chakram_base::config::{
    ConfigLiteral, quote_and_truncate_for_message, require_distinct_headings,
};
use chakram_hardware::machine::{self, Machine};
use chakram_jobs::{FrameworkDurationsAndPlanOptions, machine_properties_for_plans};
use chakram_report::stack::SoftwareStackDecision;
use chakram_workloads::generate::ModelAndParallelismPlan;
use chakram_workloads::generate::plan::{ParallelismPlan, PlanDraft, SplitUnit};
use chakram_workloads::model::{
    LayerRole, Model, ModelWithDefinitionProperties, PresetOrModelFileText,
    TokenAndLayerCountOverrides,
};
use serde::Serialize;
use std::collections::BTreeMap;

/// A measured run with its plan and machine.
#[derive(Clone, Debug)]
pub struct MeasuredRun {
    /// Name of the table that contains the run.
    pub file: String,
    /// Line number in the table's file, counting from 1.
    pub line: u64,
    /// Measured time of a step, in seconds.
    pub measured: f64,
    /// The run's model and plan.
    pub training: ModelAndParallelismPlan,
    /// The machine, scaled to the plan's number of ranks.
    pub machine: Machine,
    /// Options and their values, from the table and the column file.
    pub options: BTreeMap<String, String>,
    /// Notes on options that have no effect on this run, and on values that were assumed because the table lacks them.
    pub notes: Vec<String>,
    /// Index of the run's group within the table.
    pub group: usize,
    /// Index of the run's fold in the cross-validation.
    pub fold: usize,
}

/// A table of measured runs.
#[derive(Clone, Debug)]
pub struct RunTable {
    /// Name of the table in errors and reports.
    pub file: String,
    /// The runs, in the table's order.
    pub runs: Vec<MeasuredRun>,
    /// Invalid rows, each with the reason.
    pub refused: Vec<RefusedRun>,
}

/// A row that cannot be predicted, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusedRun {
    /// Name of the table that has the row.
    pub file: String,
    /// Line of the row in the table, counting from 1.
    pub line: u64,
    /// The value found, and the value expected.
    pub why: String,
}

impl std::fmt::Display for RefusedRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.why)
    }
}

/// Numbers distinct strings from 0, in the order of their first use.
#[derive(Default)]
struct DistinctStringNumbering(BTreeMap<String, usize>);

impl DistinctStringNumbering {
    fn intern_joined_option_values(
        &mut self,
        keys: &[String],
        options: &BTreeMap<String, String>,
    ) -> usize {
        let values = keys
            .iter()
            .map(|key| options.get(key).map_or("", String::as_str));
        let text = values.collect::<Vec<_>>().join("\u{1f}");
        let next = self.0.len();
        *self.0.entry(text).or_insert(next)
    }
}

impl RunTable {
    /// Parses the CSV `text`; `columns` maps its columns to options. Error messages call the table `file`.
    ///
    /// # Errors
    ///
    /// Fails if a column is missing, or if there are no rows. An invalid row is not an error; `refused` lists it.
    pub fn parse(text: &str, file: &str, columns: &RunColumnRules) -> Result<Self, ScoreError> {
        let table = |why: String| ScoreError::Table {
            file: file.to_owned(),
            why,
        };
        // Remove the byte order mark that spreadsheets write.
        let text = text.trim_start_matches('\u{feff}');
        // Replace CR LF with LF; otherwise, the CSV reader would report line numbers that are one too high.
        let text = text.replace("\r\n", "\n");
        let mut reader = csv::ReaderBuilder::new()
            .trim(csv::Trim::All)
            .from_reader(text.as_bytes());
        let heads = reader
            .headers()
            .map_err(|error| table(error.to_string()))?
            .clone();
        require_distinct_headings(heads.iter()).map_err(table)?;
        let find = |head: &str| {
            heads.iter().position(|h| h == head).ok_or_else(|| {
                let found: Vec<_> = heads.iter().map(quote_and_truncate_for_message).collect();
                table(format!(
                    "there is no column {}, only {}",
                    quote_and_truncate_for_message(head),
                    found.join(", ")
                ))
            })
        };
        let measured = find(&columns.measured)?;
        let mut sources = Vec::new();
        for (key, source) in &columns.options {
            sources.push(match source {
                ColumnOrFixedOptionSource::Column(head) => (key, Ok(find(head)?)),
                ColumnOrFixedOptionSource::Fixed(value) => (key, Err(value)),
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
        let mut matched = Vec::new();
        for one in &columns.matched {
            let only = one.only.iter();
            let only = only.map(|(head, values)| Ok((find(head)?, values)));
            matched.push((only.collect::<Result<Vec<_>, ScoreError>>()?, &one.options));
        }
        let (mut groups, mut folds) = (
            DistinctStringNumbering::default(),
            DistinctStringNumbering::default(),
        );
        let (mut runs, mut refused) = (Vec::new(), Vec::new());
        for record in reader.records() {
            let record = record.map_err(|error| table(error.to_string()))?;
            let line = record.position().map_or(0, csv::Position::line);
            let cell = |i: usize| record.get(i).unwrap_or_default();
            let matches = |only: &[(usize, &Vec<String>)]| {
                let mut conditions = only.iter();
                conditions.all(|(i, values)| values.iter().any(|value| value == cell(*i)))
            };
            if !matches(&only) {
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
            let of_column = when
                .iter()
                .filter_map(|(column, values)| values.get(cell(*column)));
            let of_columns = matched
                .iter()
                .filter(|(only, _)| matches(only))
                .map(|(_, options)| *options);
            for (key, value) in of_column.chain(of_columns).flatten() {
                if value.is_empty() {
                    options.remove(key);
                } else {
                    options.insert(key.clone(), value.clone());
                }
            }
            let made = create_run(options, columns, cell(measured));
            match made {
                Ok(made) => runs.push(MeasuredRun {
                    file: file.to_owned(),
                    line,
                    group: groups.intern_joined_option_values(&columns.groups, &made.options),
                    fold: folds.intern_joined_option_values(&columns.folds, &made.options),
                    ..made
                }),
                Err(why) => refused.push(RefusedRun {
                    file: file.to_owned(),
                    line,
                    why,
                }),
            }
        }
        let refused_only = runs.is_empty() && !refused.is_empty();
        if runs.is_empty() && !refused_only {
            let picked = if columns.only.is_empty() {
                ""
            } else {
                " that [only] picks"
            };
            return Err(table(format!("the table has no run{picked}")));
        }
        Ok(Self {
            file: file.to_owned(),
            runs,
            refused,
        })
    }

    /// Returns the table if all its rows are valid.
    ///
    /// # Errors
    ///
    /// Fails at the first invalid row.
    pub fn require_all_valid(self) -> Result<Self, ScoreError> {
        match self.refused.into_iter().next() {
            None => Ok(Self {
                refused: Vec::new(),
                ..self
            }),
            Some(RefusedRun { file, line, why }) => Err(ScoreError::Row { file, line, why }),
        }
    }

    /// Keeps only the runs that have a prediction, and returns their predictions. Moves all others to `refused`, with
    /// the reason that `why` returns.
    pub fn keep_predicted_runs<T>(
        &mut self,
        answers: Vec<Result<T, ScoreError>>,
        why: impl Fn(ScoreError) -> String,
    ) -> Vec<T> {
        let mut predicted = Vec::new();
        let runs = std::mem::take(&mut self.runs);
        for (run, answer) in runs.into_iter().zip(answers) {
            match answer {
                Ok(answer) => {
                    predicted.push(answer);
                    self.runs.push(run);
                }
                Err(error) => {
                    let place = format!("{}:{}: ", run.file, run.line);
                    let why = why(error);
                    let why = why.strip_prefix(&place).unwrap_or(&why).to_owned();
                    let (file, line) = (run.file, run.line);
                    self.refused.push(RefusedRun { file, line, why });
                }
            }
        }
        self.refused
            .sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
        predicted
    }

    /// Adds another table's runs. The tables' groups and folds remain separate.
    pub fn append_table(&mut self, other: Self) {
        let after = |number: fn(&MeasuredRun) -> usize| {
            self.runs
                .iter()
                .map(number)
                .max()
                .map_or(0, |most| most + 1)
        };
        let (groups, folds) = (after(|run| run.group), after(|run| run.fold));
        self.file = format!("{}, {}", self.file, other.file);
        self.refused.extend(other.refused);
        self.runs
            .extend(other.runs.into_iter().map(|run| MeasuredRun {
                group: run.group + groups,
                fold: run.fold + folds,
                ..run
            }));
    }
}

/// Creates the run of a row from its `options` and its `measured` value.
fn create_run(
    mut options: BTreeMap<String, String>,
    columns: &RunColumnRules,
    measured: &str,
) -> Result<MeasuredRun, String> {
    derive_missing_options(&mut options)?;
    let number = measured.parse::<f64>().ok();
    let number = number
        .filter(|s| s.is_finite() && *s > 0.0)
        .ok_or_else(|| {
            format!(
                "{} is {}, expected a number of more than zero",
                quote_and_truncate_for_message(&columns.measured),
                quote_and_truncate_for_message(measured)
            )
        })?;
    let mut notes = Vec::new();
    let (training, machine) = resolve_run_to_plan_and_machine(&options, columns, &mut notes)?;
    let measured = convert_measurement_to_step_seconds(number, columns.unit, &training, &options)?;
    options.insert(NPUS.to_owned(), training.plan.rank_count().to_string());
    Ok(MeasuredRun {
        file: String::new(),
        line: 0,
        measured,
        training,
        machine,
        options,
        notes,
        group: 0,
        fold: 0,
    })
}

/// Contents of cells without a value.
const EMPTY: [&str; 3] = ["", "n/a", "-"];

/// Adds missing options: computes the data-parallel degree from the number of NPUs, and sets the interleaved schedule
/// if there are several chunks.
fn derive_missing_options(options: &mut BTreeMap<String, String>) -> Result<(), String> {
    let number = |key: &str| -> Result<u64, String> {
        let Some(text) = options.get(key) else {
            return Ok(1);
        };
        let wrong = || {
            format!(
                "`{key}` is {}, expected a whole number",
                quote_and_truncate_for_message(text)
            )
        };
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

/// Converts the measured `number` from its unit to the duration of a step in seconds.
fn convert_measurement_to_step_seconds(
    number: f64,
    unit: TimeOrThroughputUnit,
    training: &ModelAndParallelismPlan,
    options: &BTreeMap<String, String>,
) -> Result<f64, String> {
    let (plan, model) = (&training.plan, &training.model);
    let samples = plan.batch as f64;
    let each_second = plan.rank_count() as f64 * number;
    let flops = |again: bool| -> Result<f64, String> {
        let size = |key: &str| -> Result<f64, String> {
            let needed = || format!("the table has no `{key}`, which the FLOPs need");
            options
                .get(key)
                .and_then(|text| text.parse().ok())
                .ok_or_else(needed)
        };
        let [l, h, v] = [size("layers")?, size("hidden")?, size("vocabulary")?];
        let s = model.sequence as f64;
        // Equation 3 of Narayanan et al. (SC'21), with and without the recomputed forward pass;
        // logits are not recomputed.
        let (blocks, logits) = if again { (96.0, 16.0) } else { (72.0, 12.0) };
        let each = 1.0 + s / (6.0 * h) + v / (logits * l * h);
        Ok(blocks * s * l * h * h * each)
    };
    match unit {
        TimeOrThroughputUnit::Time(unit) => Ok(number * unit),
        TimeOrThroughputUnit::Tokens => Ok(samples * model.sequence as f64 / each_second),
        TimeOrThroughputUnit::Flops(again) => Ok(samples * flops(again)? / (each_second * 1e12)),
    }
}

/// Options that are invalid for plans without a tensor group.
const OF_TENSOR_GROUPS: [&str; 3] = ["pad_heads", "scatter_gather", "sequence_parallel"];

/// Returns the reason why option `key` has no effect on a run with `options`; `None` if it has an effect. A table may
/// set an option for all runs, even if the option does not affect runs without a tensor group or with a single replica.
fn reason_without_effect(key: &str, options: &BTreeMap<String, String>) -> Option<&'static str> {
    let is_one = |key: &str| options.get(key).is_none_or(|degree| degree == "1");
    if OF_TENSOR_GROUPS.contains(&key) && is_one("tensor") {
        return Some("no effect without tensor parallelism");
    }
    if ["zero", "shard"].contains(&key) && is_one("data") && is_one("context") {
        return Some("no effect with one replica");
    }
    None
}

/// If stages cannot have equal numbers of blocks and the run states no split, adds a split that gives stages roughly
/// equal multiplications.
fn derive_uneven_stage_split(
    model: &Model,
    plan: &mut ParallelismPlan,
    options: &BTreeMap<String, String>,
    notes: &mut Vec<String>,
) {
    let blocks = model.layers.iter();
    let blocks = blocks
        .filter(|layer| layer.role == LayerRole::Block)
        .count() as u64;
    let parts = u64::from(plan.pipeline) * u64::from(plan.schedule.chunk_count());
    let stated = ["split", "stages"]
        .iter()
        .any(|key| options.contains_key(*key));
    if !stated && parts > 1 && parts <= blocks && !blocks.is_multiple_of(parts) {
        plan.split = SplitUnit::Multiplications;
        notes.push(format!(
            "{blocks} blocks in {parts} parts of a pipeline, which have about equally many multiplications"
        ));
    }
}

/// Returns the model and plan that `options` describe, and the machine scaled to the plan's number
/// of ranks.
fn resolve_run_to_plan_and_machine(
    options: &BTreeMap<String, String>,
    columns: &RunColumnRules,
    notes: &mut Vec<String>,
) -> Result<(ModelAndParallelismPlan, Machine), String> {
    let model = resolve_model(options, columns)?;
    let mut draft = PlanDraft::new(ParallelismPlan::new());
    for (key, value) in options {
        let Some(option) = plan_option(key) else {
            continue;
        };
        if let Some(why) = reason_without_effect(key, options) {
            if value != "false" && value != "0" {
                notes.push(format!(
                    "`{key}` is {}, which has {why}",
                    quote_and_truncate_for_message(value)
                ));
            }
            continue;
        }
        let words: Vec<String> = if option.is_list {
            value.split(',').map(str::to_owned).collect()
        } else {
            vec![value.clone()]
        };
        let set = (option.set)(&mut draft, &words);
        set.map_err(|why| {
            format!(
                "`{key}` is {}: {why}",
                quote_and_truncate_for_message(value)
            )
        })?;
    }
    let mut plan = draft.finish_plan().map_err(|error| error.to_string())?;
    let stack = options
        .get(STACK)
        .map(|name| FrameworkDurationsAndPlanOptions::load_by_name(name));
    let stack = stack.transpose().map_err(|error| error.to_string())?;
    let machine = options.get(MACHINE).unwrap_or(&columns.machine);
    if let Some(stack) = &stack {
        let mut report = stack.empty_stack_report();
        stack.set_plan_options(&mut plan, |key| options.contains_key(key), &mut report);
        let misfits = (report.left.iter()).filter(|left| !options.contains_key(&left.part));
        notes.extend(misfits.map(|left| inapplicable_stack_option_note(stack, left)));
    }
    derive_uneven_stage_split(&model, &mut plan, options, notes);
    let ranks = u32::try_from(plan.rank_count()).map_err(|_| "too many ranks".to_owned())?;
    if let Some(npus) = options.get(NPUS).filter(|npus| **npus != ranks.to_string()) {
        return Err(format!(
            "the plan has {ranks} ranks (tensor x context x data x pipeline), but `{NPUS}` is {}",
            quote_and_truncate_for_message(npus)
        ));
    }
    let values = options.iter().filter_map(|(key, value)| {
        let path = key.strip_prefix(MACHINE_VALUE)?;
        Some((path, ConfigLiteral::from_word(value)))
    });
    let values: Vec<_> = values.collect();
    let values: Vec<_> = values.iter().map(|(path, value)| (*path, value)).collect();
    let machine = machine::load_for_ranks_replacing_values(machine, ranks, &values);
    let mut machine = machine.map_err(|error| error.to_string())?;
    if let Some(stack) = &stack {
        let (priced, report) = stack
            .apply_durations_to_machine(&machine)
            .map_err(|error| error.to_string())?;
        notes.extend(
            report
                .left
                .iter()
                .map(|left| inapplicable_stack_option_note(stack, left)),
        );
        machine = priced;
    }
    plan.fill_open_options_from_machine(&machine_properties_for_plans(&machine))
        .map_err(|error| error.to_string())?;
    Ok((ModelAndParallelismPlan { model, plan }, machine))
}

/// Returns the note about an option of `stack` that does not apply to the run.
fn inapplicable_stack_option_note(
    stack: &FrameworkDurationsAndPlanOptions,
    left: &SoftwareStackDecision,
) -> String {
    format!(
        "stack {}: no {} {}",
        stack.stack_name(),
        left.part,
        left.value
    )
}

/// Sizes that the name of a model fixes. A run may repeat these sizes but not change them.
const OF_MODEL: [&str; 5] = ["hidden", "heads", "kv_heads", "ffn", "vocabulary"];

/// Returns the named model with the run's layers and tokens. Without a name, returns a GPT model with the run's sizes.
fn resolve_model(
    options: &BTreeMap<String, String>,
    columns: &RunColumnRules,
) -> Result<Model, String> {
    let size = |key: &str| -> Result<Option<u64>, String> {
        let number = |text: &String| {
            let wrong = || {
                format!(
                    "`{key}` is {}, expected a whole number",
                    quote_and_truncate_for_message(text)
                )
            };
            text.parse::<u64>().map_err(|_| wrong())
        };
        options.get(key).map(number).transpose()
    };
    if let Some(name) = options.get(MODEL) {
        let name = columns.names.get(name).unwrap_or(name);
        let source = PresetOrModelFileText::find_source(name).map_err(|error| error.to_string())?;
        let sizes = TokenAndLayerCountOverrides {
            tokens: size("sequence")?,
            layers: size("layers")?,
        };
        for key in OF_MODEL {
            let Some(asked) = size(key)? else { continue };
            let own = source
                .size_stated_for_key(key)
                .map_err(|error| error.to_string())?;
            if own != Some(asked) {
                let own = own.map_or("none".to_owned(), |own| own.to_string());
                return Err(format!(
                    "`{key}` is {asked}, but model {} has {own}; expected the model's size, or no `{MODEL}`",
                    quote_and_truncate_for_message(name)
                ));
            }
        }
        let definition = source.parse_definition_with_sizes(sizes);
        return Ok(definition.map_err(|error| error.to_string())?.model);
    }
    let need = |key: &str| {
        size(key)?.ok_or_else(|| {
            format!("the table has neither `{MODEL}` nor `{key}`, a size of the model")
        })
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
    let definition = ModelWithDefinitionProperties::parse(&text, "the model of the run", None);
    Ok(definition.map_err(|error| error.to_string())?.model)
}
