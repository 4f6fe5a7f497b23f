//! Studies: settings that all points share, axes that distinguish points, limits, objectives and
//! strategies.
//!
//! ```toml
//! name = "which plan"
//! objective = ["time", "memory"]        # the first is what strategies look for
//! strategy = "branch-and-bound"         # or [[layer]] tables, outermost first
//!
//! [base]
//! machine = "dgx-h100x4"
//! model = "llama3-8b"
//! plan.batch = 64
//!
//! [limits]
//! fits = true
//!
//! [[axis]]
//! plans = 32                            # every data, tensor and pipeline degree of 32 NPUs
//!
//! [[axis]]
//! key = "plan.micro_batch"
//! values = [1, 2, 4]
//! ```

use super::MOST_POINTS;
use super::axis::{JointSettingsAxis, parse_axes};
use super::objective::SweepObjective;
use super::setting::{self, PRICE, Settings};
use chakram_base::config::{ConfigDocument, ConfigError, ConfigField, ConfigTable};
use chakram_hardware::machine::Machine;

mod strategy;

use strategy::parse_axis_layers_with_strategies;
pub use strategy::{AxisSubsetWithSearchStrategy, SearchStrategy};

const ROOT: &[&str] = &[
    "name",
    "seed",
    "objective",
    "strategy",
    "draws",
    "rounds",
    "base",
    "limits",
    "axis",
    "layer",
];
/// Maximum value of `rounds` in a study. The search ends earlier, after the first round without improvement.
const MAX_ROUNDS: u32 = 1000;
/// Replay options that invalidate bounds. With them, a step can be faster than its bound, or ranks can be on other NPUs
/// than the bound assumes.
const UNBOUNDED: [&str; 9] = [
    "collective",
    "comm",
    "custom",
    "fail",
    "jitter",
    "kernel",
    "lower_bound",
    "map",
    "slow",
];
const LIMITS: &[&str] = &["fits", "npus", "cost"];

/// Limits that every point must satisfy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PointLimits {
    /// True if every rank must fit into the memory of its NPU.
    pub fits: bool,
    /// Maximum number of NPUs that the job uses.
    pub npus: Option<u32>,
    /// Maximum price of the job's NPUs per hour, in dollars.
    pub cost: Option<f64>,
}

/// A parsed and checked study.
#[derive(Clone, Debug, PartialEq)]
pub struct Study {
    /// Name of the study in reports.
    pub name: String,
    /// Seed of all random choices.
    pub seed: u64,
    /// Objectives of the study, at least one. Strategies optimise the first one.
    pub objectives: Vec<SweepObjective>,
    /// Settings that all points share.
    pub base: Settings,
    /// Axes along which points differ.
    pub axes: Vec<JointSettingsAxis>,
    /// Layers of axes, at least one. Nested layers are sorted from the outermost to the innermost; other layers are in
    /// the order of their turns.
    pub layers: Vec<AxisSubsetWithSearchStrategy>,
    /// Maximum number of rounds. In a round, each layer takes a turn, while all other axes stay at the best point so
    /// far. `None` if layers are nested.
    pub rounds: Option<u32>,
    /// Limits on memory, NPUs and price.
    pub limits: PointLimits,
}

impl Study {
    /// Parses a study. Error messages call the study's file `file`.
    ///
    /// # Errors
    ///
    /// Fails if the text is not TOML, or if a key is missing, unknown, or contradicts another.
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        let document = ConfigDocument::parse(text, file)?;
        let root = document.root_table_with_allowed_keys(ROOT)?;
        let base = match root.get("base") {
            Some(field) => parse_base(&field)?,
            None => {
                return Err(
                    root.missing_entry_error("base", "a table with the settings of all points")
                );
            }
        };
        let field = root.require_field("axis", "a table [[axis]] for each axis")?;
        let axes = parse_axes(&field)?;
        for (axis, table) in axes.iter().zip(field.read_tables(JointSettingsAxis::KEYS)?) {
            if let Some(key) = axis.keys.iter().find(|key| base.contains_key(*key)) {
                let found = format!("{key}, which [base] sets to {}", base[key]);
                return Err(table.invalid_table_error(found, "each key in one place"));
            }
        }
        let objectives =
            root.read_or_default("objective", vec![SweepObjective::Time], parse_objectives)?;
        let study = Self {
            name: root
                .require_field("name", "the study's name")?
                .read_one_line_text()?
                .to_owned(),
            seed: root.read_or_default("seed", 0, |field| {
                field.read_integer_between(0, i64::MAX as u64)
            })?,
            objectives,
            limits: root.read_or_default("limits", PointLimits::default(), parse_limits)?,
            layers: parse_axis_layers_with_strategies(&root, &axes)?,
            rounds: root.read_optional("rounds", |field| field.read_count(MAX_ROUNDS))?,
            base,
            axes,
        };
        study.check_consistency(&root)?;
        Ok(study)
    }

    /// Rejects studies with contradictory keys.
    fn check_consistency(&self, root: &ConfigTable<'_>) -> Result<(), ConfigError> {
        let sets = |key: &str| {
            self.base.contains_key(key)
                || self
                    .axes
                    .iter()
                    .any(|axis| axis.keys.iter().any(|k| k == key))
        };
        let base = root.require_field("base", "")?.read_table(None)?;
        if !sets("machine") {
            return Err(base
                .missing_entry_error("machine", "a preset or a machine file, here or in an axis"));
        }
        match (sets("model"), sets("trace")) {
            (false, false) => {
                return Err(
                    base.missing_entry_error("model", "a model, or a trace, here or in an axis")
                );
            }
            (true, true) => {
                return Err(base.invalid_table_error("a model and a trace", "one of the two"));
            }
            (false, true) => {
                let mut all = self.keys_set_by_base_or_axes();
                if let Some(key) = all.find(|key| {
                    key.starts_with("plan.") || key.starts_with("model.") || *key == "stack"
                }) {
                    let found = format!("{key} with a trace");
                    return Err(
                        base.invalid_table_error(found, "a model, because plans distribute models")
                    );
                }
            }
            (true, false) => {
                let mut all = self.keys_set_by_base_or_axes();
                if let Some(key) = all.find(|key| setting::changes_how_traces_are_read(key)) {
                    return Err(base.invalid_table_error(
                        format_args!("{key} with a model"),
                        "a trace, because this key describes the files or ranks of a trace",
                    ));
                }
            }
        }
        if sets("map")
            && let Some(key) = self
                .keys_set_by_base_or_axes()
                .find(|key| matches!(*key, "plan.place" | "plan.tiles"))
        {
            return Err(base.invalid_table_error(
                format_args!("map and {key}, which both place ranks"),
                "one of the two",
            ));
        }
        let all_mapped = self.values_of_key("compute").count() > 0
            && self
                .values_of_key("compute")
                .all(|value| value.starts_with("loopnest:"));
        for objective in &self.objectives {
            for key in objective.required_settings(all_mapped) {
                let is_priced = *key == PRICE && self.has_priced_machine();
                if !sets(key) && !is_priced {
                    let field = root.require_field("objective", "")?;
                    let found = format!("{} without {key}", objective.column_name());
                    return Err(field.invalid_value_error(
                        found,
                        format_args!("`{key}` in [base] or in an axis"),
                    ));
                }
            }
        }
        // Check only studies of models, because kernels of captured jobs may lack mappings.
        if all_mapped && sets("model") && sets("power.busy") {
            return Err(base.invalid_table_error(
                "power.busy with kernels by loop nests, whose mappings state their energy",
                "only power.idle",
            ));
        }
        if self.limits.cost.is_some() && !sets(PRICE) {
            let field = root.require_field("limits", "")?;
            return Err(field.invalid_value_error(
                "cost without price.npu",
                "`price.npu` in [base] or in an axis",
            ));
        }
        if let (Some(most), Some(limits)) = (self.limits.npus, root.get("limits")) {
            let plans = self.axes.iter().filter_map(|axis| axis.plans);
            if let Some(least) = plans.min().filter(|npus| *npus > most) {
                let found = format!("npus = {most}, and an axis whose plans all have {least} NPUs");
                return Err(limits.invalid_value_error(found, format_args!("{least} or more")));
            }
        }
        if let (Some(field), 1) = (root.get("rounds"), self.layers.len()) {
            return Err(field.invalid_value_error(
                "several rounds of one layer, where a second round finds nothing new",
                "two or more tables [[layer]]",
            ));
        }
        let last = self.layers.len() - 1;
        for (i, layer) in self.layers.iter().enumerate() {
            let field = |key: &str| root.get("layer").or_else(|| root.get(key));
            let refuse = |found: &str, expected: &str| match field("strategy") {
                Some(field) => field.invalid_value_error(found, expected),
                None => root.invalid_table_error(found, expected),
            };
            if layer.strategy == SearchStrategy::BranchAndBound {
                if i < last && self.rounds.is_none() {
                    return Err(refuse(
                        "branch-and-bound in a layer other than the last",
                        "branch-and-bound only in the last layer, whose points are replayed",
                    ));
                }
                if !self.objectives[0].is_bounded_by_time() {
                    return Err(refuse(
                        &format!("branch-and-bound for {}", self.objectives[0].column_name()),
                        "an objective that follows from the time: time, tokens_per_s, tokens_per_s_per_npu or cost",
                    ));
                }
                if let Some(key) = UNBOUNDED.iter().find(|key| sets(key)) {
                    return Err(refuse(
                        &format!("branch-and-bound with {key}, which bounds do not include"),
                        "another strategy",
                    ));
                }
                if !sets("model") {
                    return Err(refuse(
                        "branch-and-bound with a trace",
                        "a model, because bounds exist only for plans",
                    ));
                }
            }
        }
        if let Some(points) = self.point_count().filter(|points| *points > MOST_POINTS) {
            return Err(too_many_points_error(root, points));
        }
        Ok(())
    }

    /// Returns every key that the base settings or an axis set.
    fn keys_set_by_base_or_axes(&self) -> impl Iterator<Item = &str> {
        let axes = self.axes.iter().flat_map(|axis| &axis.keys);
        axes.chain(self.base.keys()).map(String::as_str)
    }

    /// Returns every value that the study gives `key`, as text.
    fn values_of_key<'a>(&'a self, key: &'a str) -> impl Iterator<Item = String> + 'a {
        let axes = self.axes.iter().flat_map(move |axis| {
            let index = axis.keys.iter().position(|own| own == key);
            index
                .into_iter()
                .flat_map(|index| axis.values.iter().map(move |all| all[index].to_string()))
        });
        self.base
            .get(key)
            .map(ToString::to_string)
            .into_iter()
            .chain(axes)
    }

    /// Returns true if one of the study's machines has its own price.
    fn has_priced_machine(&self) -> bool {
        let price = |name: String| Machine::load_by_name(&name).ok()?.price_per_npu_hour();
        self.values_of_key("machine.price_per_npu_hour").count() > 0
            || self
                .values_of_key("machine")
                .any(|name| price(name).is_some())
    }

    /// Returns the number of points; `None` if they cannot be listed in advance.
    pub fn point_count(&self) -> Option<u64> {
        if self.rounds.is_some() {
            return None;
        }
        let mut all = 1_u64;
        for layer in &self.layers {
            let size = self.combination_count_of_layer(layer);
            all = all.saturating_mul(match layer.strategy {
                SearchStrategy::Random(draws) => draws.min(size),
                SearchStrategy::Grid | SearchStrategy::BranchAndBound => size,
                SearchStrategy::Coordinate => return None,
            });
        }
        Some(all)
    }

    /// Returns the number of combinations of a layer's axes.
    pub fn combination_count_of_layer(&self, layer: &AxisSubsetWithSearchStrategy) -> u64 {
        let sizes = layer
            .axes
            .iter()
            .map(|axis| self.axes[*axis].values.len() as u64);
        sizes.fold(1, u64::saturating_mul)
    }

    /// Returns combination number `index` of a layer's axes. The last axis varies fastest.
    pub fn layer_settings_at_index(
        &self,
        layer: &AxisSubsetWithSearchStrategy,
        mut index: u64,
    ) -> Settings {
        let mut settings = Settings::new();
        for axis in layer.axes.iter().rev() {
            let axis = &self.axes[*axis];
            let count = axis.values.len() as u64;
            let values = &axis.values[(index % count) as usize];
            settings.extend(axis.keys.iter().cloned().zip(values.iter().cloned()));
            index /= count;
        }
        settings
    }

    /// Returns the base settings and the settings of `point`.
    pub fn merge_with_base_settings(&self, point: &Settings) -> Settings {
        let mut whole = self.base.clone();
        whole.extend(
            point
                .iter()
                .map(|(key, value)| (key.clone(), value.clone())),
        );
        whole
    }
}

fn too_many_points_error(root: &ConfigTable<'_>, points: u64) -> ConfigError {
    root.invalid_table_error(
        format_args!("{points} points"),
        format_args!("at most {MOST_POINTS}; or strategy = \"random\", or \"coordinate\""),
    )
}

/// Parses the table of base settings. The names of nested tables become parts of the keys.
fn parse_base(field: &ConfigField<'_>) -> Result<Settings, ConfigError> {
    fn flatten_table_into_settings(
        table: &ConfigTable<'_>,
        prefix: &str,
        into: &mut Settings,
    ) -> Result<(), ConfigError> {
        for (name, field) in table.fields() {
            let key = if prefix.is_empty() {
                name.to_owned()
            } else {
                format!("{prefix}.{name}")
            };
            match field.as_table_or_none() {
                Some(inner) => flatten_table_into_settings(&inner, &key, into)?,
                None => {
                    setting::reject_unknown_key(&key, &field)?;
                    into.insert(key.replace('-', "_"), field.read_literal()?);
                }
            }
        }
        Ok(())
    }
    let mut settings = Settings::new();
    flatten_table_into_settings(&field.read_table(None)?, "", &mut settings)?;
    Ok(settings)
}

fn parse_objectives(field: &ConfigField<'_>) -> Result<Vec<SweepObjective>, ConfigError> {
    let names = SweepObjective::ALL.map(|one| (one, one.column_name()));
    let all = match field.read_array_items("") {
        Ok(items) => items
            .iter()
            .map(|item| item.read_choice(&names))
            .collect::<Result<Vec<_>, _>>()?,
        Err(_) => vec![field.read_choice(&names)?],
    };
    let twice = (1..).zip(&all).any(|(i, one)| all[i..].contains(one));
    if all.is_empty() || all.len() > 3 || twice {
        return Err(field.invalid_value_error("this list", "one to three objectives, each once"));
    }
    Ok(all)
}

fn parse_limits(field: &ConfigField<'_>) -> Result<PointLimits, ConfigError> {
    let table = field.read_table(Some(LIMITS))?;
    Ok(PointLimits {
        fits: table.read_or_default("fits", false, |field| field.read_flag())?,
        npus: table.read_optional("npus", |field| {
            field.read_count(chakram_base::ids::MAX_NPUS)
        })?,
        cost: table.read_optional("cost", |field| field.read_positive(1e15))?,
    })
}

#[cfg(test)]
mod tests;
