//! The column file (TOML), which maps the columns of a table of runs to options.
//!
//! ```toml
//! measured = "iteration time (ms)"       # the column of what was measured
//! unit = "ms"                            # its unit: s, ms or us
//! machine = "dgx-a100"                   # or a file, named from here; scaled to the ranks of a run, where it can be
//! groups = ["hidden", "layers", "batch"] # plans are ranked among runs that agree in these
//! folds = ["hidden", "tensor"]           # null models are fitted on runs that differ in these
//!
//! [columns]                              # options that differ, with their columns
//! batch = "global batch"
//!
//! [fixed]                                # options that are the same for all runs
//! recompute = "full"
//!
//! [only]                                 # rows that count: those with one of these values in a column
//! phase = ["pre-training"]
//!
//! [when.System]                          # options of runs with some value in a column, before all others
//! DGX-H100 = { machine = "dgx-h100" }
//!
//! [[where]]                              # options of runs with some values in several columns, before [when]
//! only = { System = ["DGX-H100", "DGX-B200"], Precision = ["FP8"] }
//! set = { scaling = "current" }
//! ```

use super::ScoreError;
use chakram_base::config::{
    ConfigDocument, ConfigField, ConfigTable, did_you_mean, find_most_similar_name,
};
use chakram_workloads::generate::plan::{OPTIONS, PlanOption};
use std::collections::BTreeMap;
use std::path::Path;

/// Model sizes that a run may state besides the model's name.
pub(super) const SIZES: [&str; 7] = [
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "ffn",
    "vocabulary",
    "sequence",
];
/// Key of the option for a model's name.
pub(super) const MODEL: &str = "model";
/// Key of the number of NPUs (optional). It groups runs in the score, and supplies the data-parallel degree if that is
/// missing.
pub(super) const NPUS: &str = "npus";
/// Key of the machine; used in tables whose runs are on different machines.
pub(super) const MACHINE: &str = "machine";

/// Key of the option for the software stack.
pub(super) const STACK: &str = "stack";

const ROOT: &[&str] = &[
    "measured", "unit", "machine", "groups", "folds", "columns", "fixed", "names", "only", "when",
    "where",
];

/// Unit of the measured values in a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum TimeOrThroughputUnit {
    /// A time in units of this many seconds.
    Time(f64),
    /// Tokens per second and NPU.
    Tokens,
    /// TFLOP per second and NPU, counted by the transformer formula of Narayanan et al. (SC'21, section 3.2). The field
    /// is true if the recomputed forward pass counts too.
    Flops(bool),
}

/// Each unit, with its name in column files.
const UNITS: [(TimeOrThroughputUnit, &str); 6] = [
    (TimeOrThroughputUnit::Time(1.0), "s"),
    (TimeOrThroughputUnit::Time(1e-3), "ms"),
    (TimeOrThroughputUnit::Time(1e-6), "us"),
    (TimeOrThroughputUnit::Tokens, "tokens/s/npu"),
    (TimeOrThroughputUnit::Flops(false), "model TFLOP/s/npu"),
    (TimeOrThroughputUnit::Flops(true), "hardware TFLOP/s/npu"),
];

/// Options determined by the value in a column.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OptionsByColumnValue {
    /// Heading of the column in the table.
    pub column: String,
    /// Maps each value of the column to options and their values.
    pub values: BTreeMap<String, BTreeMap<String, String>>,
}

/// Options for rows whose values in several columns are all accepted ones.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OptionsForMatchingRows {
    /// Columns, each with its accepted values. A row must match all of them.
    pub only: Vec<(String, Vec<String>)>,
    /// Options with their values.
    pub options: BTreeMap<String, String>,
}

/// Source of an option's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ColumnOrFixedOptionSource {
    /// The value is in the column with this heading.
    Column(String),
    /// The value is the same for all runs.
    Fixed(String),
}

/// Rules that convert a run table's columns to options.
#[derive(Clone, Debug, PartialEq)]
pub struct RunColumnRules {
    pub(super) measured: String,
    pub(super) unit: TimeOrThroughputUnit,
    pub(super) machine: String,
    pub(super) groups: Vec<String>,
    pub(super) folds: Vec<String>,
    pub(super) options: BTreeMap<String, ColumnOrFixedOptionSource>,
    /// Maps values of the column `model` to names of models.
    pub(super) names: BTreeMap<String, String>,
    /// Columns, each with its accepted values. Rows with other values are skipped.
    pub(super) only: Vec<(String, Vec<String>)>,
    pub(super) when: Vec<OptionsByColumnValue>,
    /// Options that several columns determine together. Later entries override earlier ones and the options in `when`.
    pub(super) matched: Vec<OptionsForMatchingRows>,
}

/// Returns the plan option with this key; dashes and underscores are equivalent.
pub(super) fn plan_option(key: &str) -> Option<&'static PlanOption> {
    OPTIONS
        .iter()
        .find(|option| option.key == key && !option.value.is_empty())
}

/// Prefix of options that set values in the machine file.
pub(super) const MACHINE_VALUE: &str = "machine.";

fn is_known_key(key: &str) -> bool {
    key.len() > MACHINE_VALUE.len() && key.starts_with(MACHINE_VALUE)
        || [MODEL, NPUS, MACHINE, STACK].contains(&key)
        || SIZES.contains(&key)
        || plan_option(key).is_some()
}

/// Replaces dashes in an option's name with underscores. Paths in the machine file keep their spelling.
fn option_key_with_underscores(name: &str) -> String {
    match name.starts_with(MACHINE_VALUE) {
        true => name.to_owned(),
        false => name.replace('-', "_"),
    }
}

/// Returns the key of the option `name`. An unknown name is an error at `field`.
fn require_known_option_key(name: &str, field: &ConfigField<'_>) -> Result<String, ScoreError> {
    let key = option_key_with_underscores(name);
    if is_known_key(&key) {
        return Ok(key);
    }
    let plan = OPTIONS.iter().map(|option| option.key);
    let near = find_most_similar_name(&key, plan.chain(SIZES).chain([MODEL, NPUS, MACHINE, STACK]));
    let expected = format!(
        "an option of `chakram generate`, or one of {MODEL}, {NPUS}, {MACHINE}, {STACK}, machine.PATH, {}{}",
        SIZES.join(", "),
        did_you_mean(near)
    );
    Err(field
        .invalid_value_error("an unknown option", expected)
        .into())
}

/// Parses the table `only`, which lists the values that a row may have in each column.
fn parse_accepted_values(root: &ConfigTable<'_>) -> Result<Vec<(String, Vec<String>)>, ScoreError> {
    let Some(field) = root.get("only") else {
        return Ok(Vec::new());
    };
    let expected = "a list of the column's values, in quotes";
    let mut only = Vec::new();
    for (column, field) in field.read_table(None)?.fields() {
        let items = field.read_array_items(expected)?;
        let values = items
            .iter()
            .map(|item| Ok(item.read_text(expected)?.to_owned()));
        only.push((
            column.to_owned(),
            values.collect::<Result<_, ScoreError>>()?,
        ));
    }
    Ok(only)
}

/// Parses the table `when`, which maps column values to options.
fn parse_conditional_options(
    root: &ConfigTable<'_>,
) -> Result<Vec<OptionsByColumnValue>, ScoreError> {
    let Some(field) = root.get("when") else {
        return Ok(Vec::new());
    };
    let mut when = Vec::new();
    for (column, field) in field.read_table(None)?.fields() {
        let mut values = BTreeMap::new();
        for (value, field) in field.read_table(None)?.fields() {
            values.insert(value.to_owned(), read_table_of_option_values(&field)?);
        }
        let column = column.to_owned();
        when.push(OptionsByColumnValue { column, values });
    }
    Ok(when)
}

/// Reads a table of options with their values.
fn read_table_of_option_values(
    field: &ConfigField<'_>,
) -> Result<BTreeMap<String, String>, ScoreError> {
    let mut options = BTreeMap::new();
    for (name, field) in field.read_table(None)?.fields() {
        let text = field.read_text("text in quotes")?.to_owned();
        options.insert(require_known_option_key(name, &field)?, text);
    }
    Ok(options)
}

/// Parses the options that several columns' values determine together.
fn parse_options_for_matching_rows(
    root: &ConfigTable<'_>,
) -> Result<Vec<OptionsForMatchingRows>, ScoreError> {
    let Some(field) = root.get("where") else {
        return Ok(Vec::new());
    };
    let items = field.read_array_items("tables [[where]]")?;
    let matched = items.iter().map(|item| {
        let table = item.read_table(Some(&["only", "set"]))?;
        let set = table.require_field("set", "options, such as { scaling = \"current\" }")?;
        table.require_field("only", "columns, each with a list of values")?;
        Ok(OptionsForMatchingRows {
            only: parse_accepted_values(&table)?,
            options: read_table_of_option_values(&set)?,
        })
    });
    matched.collect()
}

fn read_option_keys(root: &ConfigTable<'_>, name: &str) -> Result<Vec<String>, ScoreError> {
    let Some(field) = root.get(name) else {
        return Ok(Vec::new());
    };
    let expected = "a list of options";
    let items = field.read_array_items(expected)?;
    let text = |item: &ConfigField<'_>| require_known_option_key(item.read_text(expected)?, item);
    items.iter().map(text).collect()
}

impl RunColumnRules {
    /// Parses a file that describes a table's columns. Error messages call the file `file`.
    ///
    /// # Errors
    ///
    /// Fails if the text is not TOML, or if a key is missing or unknown.
    pub fn parse(text: &str, file: &str) -> Result<Self, ScoreError> {
        let document = ConfigDocument::parse(text, file)?;
        let root = document.root_table_with_allowed_keys(ROOT)?;
        let measured = root.require_field("measured", "the column of what was measured")?;
        let mut options = BTreeMap::new();
        for (table, column) in [("columns", true), ("fixed", false)] {
            let Some(field) = root.get(table) else {
                continue;
            };
            for (name, field) in field.read_table(None)?.fields() {
                let value = field.read_text("text in quotes")?.to_owned();
                let key = require_known_option_key(name, &field)?;
                let source = if column {
                    ColumnOrFixedOptionSource::Column(value)
                } else {
                    ColumnOrFixedOptionSource::Fixed(value)
                };
                if options.insert(key, source).is_some() {
                    let expected = "each option once, in [columns] or in [fixed]";
                    return Err(field.invalid_value_error("a second value", expected).into());
                }
            }
        }
        let mut names = BTreeMap::new();
        if let Some(field) = root.get("names") {
            for (name, field) in field.read_table(None)?.fields() {
                names.insert(name.to_owned(), field.read_one_line_text()?.to_owned());
            }
        }
        let mut columns = Self {
            measured: measured.read_one_line_text()?.to_owned(),
            unit: root.read_choice("unit", &UNITS)?,
            machine: root
                .require_field("machine", "a preset or a machine file")?
                .read_one_line_text()?
                .to_owned(),
            groups: read_option_keys(&root, "groups")?,
            folds: read_option_keys(&root, "folds")?,
            options,
            names,
            only: parse_accepted_values(&root)?,
            when: parse_conditional_options(&root)?,
            matched: parse_options_for_matching_rows(&root)?,
        };
        columns.resolve_names_in_folder(file);
        Ok(columns)
    }

    /// Replaces the name of a machine, stack or model with a path if the folder of `file` contains such a file.
    fn resolve_names_in_folder(&mut self, file: &str) {
        let Some(folder) = Path::new(file).parent() else {
            return;
        };
        let find = |machine: &mut String| {
            let beside = folder.join(&*machine);
            if machine.ends_with(".toml") && beside.is_file() {
                *machine = beside.display().to_string();
            }
        };
        find(&mut self.machine);
        self.names.values_mut().for_each(find);
        for key in [MACHINE, STACK] {
            if let Some(ColumnOrFixedOptionSource::Fixed(file)) = self.options.get_mut(key) {
                find(file);
            }
            for condition in &mut self.when {
                let options = condition.values.values_mut();
                options
                    .filter_map(|options| options.get_mut(key))
                    .for_each(find);
            }
            let options = self.matched.iter_mut().map(|one| &mut one.options);
            options
                .filter_map(|options| options.get_mut(key))
                .for_each(find);
        }
    }

    /// Sets option `key` to `value` for all runs.
    ///
    /// # Errors
    ///
    /// Fails if there is no such option.
    pub fn override_option_for_all_runs(&mut self, key: &str, value: &str) -> Result<(), String> {
        let key = option_key_with_underscores(key);
        if !is_known_key(&key) {
            return Err(format!("there is no option `{key}`"));
        }
        for condition in &mut self.when {
            for options in condition.values.values_mut() {
                options.remove(&key);
            }
        }
        for matched in &mut self.matched {
            matched.options.remove(&key);
        }
        self.options
            .insert(key, ColumnOrFixedOptionSource::Fixed(value.to_owned()));
        Ok(())
    }

    /// Returns the machine of runs that do not name one.
    pub fn default_machine(&self) -> &str {
        match self.options.get(MACHINE) {
            Some(ColumnOrFixedOptionSource::Fixed(machine)) => machine,
            _ => &self.machine,
        }
    }

    /// Replays all runs on `machine`. The runs then ignore machine names in the table.
    pub fn override_machine_for_all_runs(&mut self, machine: &str) {
        // The option `machine` overrides the machine in the file of columns.
        let _ = self.override_option_for_all_runs(MACHINE, machine);
    }
}
