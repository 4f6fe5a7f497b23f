//! Converts arguments to a training request: a model and its plan, with or without a machine.

use super::TrainingArgs;
use crate::flags::flag_of_key;
use chakram_base::config::find_most_similar_name;
use chakram_hardware::machine::Machine;
use chakram_jobs::machine_properties_for_plans;
use chakram_report::stack::SoftwareStackDecisionReport;
use chakram_workloads::generate::plan::{
    CorePlacement, OPTIONS, PlanOption, join_degrees_with_commas,
};
use chakram_workloads::generate::{ModelAndParallelismPlan, ParallelismPlan, PatternOptionError};
use chakram_workloads::model::{Model, ModelError};
use std::error::Error;

/// Key of the sequence length in a report's settings.
pub(super) const TOKENS: &str = "tokens";

/// Key of the software stack in a report's settings.
pub(super) const STACK: &str = "stack";

/// The training run that the arguments describe.
pub struct RequestedTrainingRun {
    /// The model and its plan. The plan uses the memory capacity of the machine's NPUs, unless it
    /// sets a capacity itself.
    pub training: ModelAndParallelismPlan,
    /// Name of the model on the command line.
    pub name: String,
    /// Memory capacity that the plan itself sets, in bytes.
    pub capacity: Option<u64>,
    /// Source of the plan.
    pub origin: PlanFileText,
    /// Plan options that come from the software stack; `None` if the user chose no stack.
    pub stack: Option<SoftwareStackDecisionReport>,
}

/// Text and name of the plan file; `None` if there is no file.
pub struct PlanFileText(pub(super) Option<[String; 2]>);

impl PlanFileText {
    /// If `error` is about a value in the plan file, adds the value's key and line. Otherwise, names options by their
    /// flags.
    pub fn locate_error_in_plan_file(&self, error: PatternOptionError) -> Box<dyn Error> {
        let file = self.0.as_ref();
        match file.and_then(|[text, name]| ParallelismPlan::locate_error(text, name, &error)) {
            Some(error) => error.into(),
            None => replace_plan_keys_by_flags(&error.to_string()).into(),
        }
    }
}

/// Replaces keys of plan options by their flags if the two differ: `pad_heads = true` becomes `--pad-heads true`.
fn replace_plan_keys_by_flags(text: &str) -> String {
    let is_of_key = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(is_of_key) {
        out += &rest[..start];
        let word = &rest[start..];
        let (word, behind) = word.split_at(word.find(|c| !is_of_key(c)).unwrap_or(word.len()));
        rest = behind;
        let has_flag = |option: &PlanOption| option.key == word && !option.value.is_empty();
        if !(word.contains('_') && OPTIONS.iter().any(has_flag)) {
            out += word;
            continue;
        }
        if out.ends_with('`') && rest.starts_with('`') {
            out.pop();
            rest = &rest[1..];
        }
        out += &flag_of_key(word);
        if let Some(value) = rest.strip_prefix(" = ") {
            out.push(' ');
            rest = value;
        }
    }
    out + rest
}

impl TrainingArgs {
    /// Resolves the model and the plan, and binds the plan to `machine` if there is one.
    pub fn resolve_request(
        &self,
        machine: Option<&Machine>,
        patterns: &[String],
    ) -> Result<RequestedTrainingRun, Box<dyn Error>> {
        self.resolve_model_and_plan_without_option(None, machine, patterns)
    }

    /// Resolves the model and the plan without the option `left_out`, which must be `tokens` or a plan option.
    pub(super) fn resolve_model_and_plan_without_option(
        &self,
        left_out: Option<&str>,
        machine: Option<&Machine>,
        patterns: &[String],
    ) -> Result<RequestedTrainingRun, Box<dyn Error>> {
        let name = self.model.as_deref().unwrap_or_default();
        let model = match self.tokens.filter(|_| left_out != Some(TOKENS)) {
            Some(tokens) => Model::load_with_token_count(name, tokens),
            None => Model::load_named(name),
        };
        let model = model.map_err(|error| -> Box<dyn Error> {
            let near = find_most_similar_name(name, patterns.iter().map(String::as_str));
            match (&error, near) {
                (ModelError::Unknown { .. }, Some(near)) => format!(
                    "{error}\n  or the pattern `{near}`, as in `chakram generate {near} --help`"
                )
                .into(),
                _ => error.into(),
            }
        })?;
        let (mut plan, origin) = self.plan.resolve_plan_without_option(left_out)?;
        let stack = self
            .load_software_stack()?
            .filter(|_| left_out != Some(STACK));
        let stack = stack.map(|stack| {
            let mut report = stack.empty_stack_report();
            let is_given = |key: &str| {
                self.plan
                    .flag_or_plan_file_sets_option(&origin, key, left_out)
            };
            stack.set_plan_options(&mut plan, is_given, &mut report);
            report
        });
        let capacity = plan.capacity;
        let on_tiles = machine.is_some() && plan.tiles != CorePlacement::None;
        if self.run.rank_map().is_some() && (on_tiles || !plan.place.is_empty()) {
            return Err("--map and place both place ranks\n  try: one of the two".into());
        }
        if let Some(machine) = machine {
            plan.fill_open_options_from_machine(&machine_properties_for_plans(machine))
                .map_err(|error| origin.locate_error_in_plan_file(error))?;
        }
        let tensor = match plan.stage_tensor.is_empty() {
            true => plan.tensor.to_string(),
            false => join_degrees_with_commas(&plan.stage_tensor),
        };
        let context = match plan.context {
            1 => String::new(),
            shards => format!("cp {shards} x "),
        };
        let name = format!(
            "{}, tp {tensor} x {context}dp {} x pp {}",
            model.name, plan.data, plan.pipeline
        );
        Ok(RequestedTrainingRun {
            training: ModelAndParallelismPlan { model, plan },
            name,
            capacity,
            origin,
            stack,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_flags_only_where_they_differ() {
        for (text, expected) in [
            (
                "`scatter_gather` is true; expected false with tensor = 1, and with sequence_parallel, which",
                "--scatter-gather is true; expected false with tensor = 1, and with --sequence-parallel, which",
            ),
            (
                "`tensor` is 5; expected a divisor of the 12 heads; or pad_heads = true",
                "`tensor` is 5; expected a divisor of the 12 heads; or --pad-heads true",
            ),
            ("`micro_batches` is 3", "`micro_batches` is 3"),
        ] {
            assert_eq!(replace_plan_keys_by_flags(text), expected);
        }
    }
}
