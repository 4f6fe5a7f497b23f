//! Converts points to jobs. A point's settings give either a job or a rejection with a reason.

use super::setting::{
    SettingKind, Settings, kind_of_setting, parse_tokens_per_sample, replay_settings,
};
use chakram_base::config::{ConfigLiteral, replace_toml_values};
use chakram_base::units::Bytes;
use chakram_engine::{ReplayOptions, UnusableOptionReason};
use chakram_hardware::compute::{KernelDurationSource, set_accelerator_value};
use chakram_hardware::machine::{self, Machine};
use chakram_jobs::{
    FrameworkDurationsAndPlanOptions, JobLoadOptions, ReplaySettings, ReplaySettingsError,
    least_npu_memory, machine_properties_for_plans,
};
use chakram_workloads::generate::plan::{ParallelismPlan, PlanDraft};
use chakram_workloads::generate::{ModelAndParallelismPlan, PatternOptionError};
use chakram_workloads::model::{Model, ModelWithDefinitionProperties, PresetOrModelFileText};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Reason why a point has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointRefusal {
    /// Short form of the reason. Reports use it to count rejected points.
    pub reason: String,
    /// The full reason.
    pub detail: String,
    /// True if the reason is that a replay option has no effect on this machine and work. The option may have an effect
    /// on others.
    pub is_option: bool,
}

impl PointRefusal {
    /// Creates a rejection with the short reason `reason`.
    pub fn new(reason: impl Into<String>, detail: impl ToString) -> Self {
        Self {
            reason: reason.into(),
            // Reports show the full reason in table cells, so it must not have line breaks.
            detail: detail.to_string().replace(['\n', '\r'], " "),
            is_option: false,
        }
    }
}

impl From<PatternOptionError> for PointRefusal {
    fn from(error: PatternOptionError) -> Self {
        let reason = match &error {
            PatternOptionError::Refused { option, .. } => format!("plan.{option}"),
            _ => "size".to_owned(),
        };
        Self::new(reason, error)
    }
}

impl From<ReplaySettingsError> for PointRefusal {
    fn from(error: ReplaySettingsError) -> Self {
        match error {
            ReplaySettingsError::Option(refusal) => refusal.into(),
            // The two options contradict each other only with these values, so other values may be valid.
            ReplaySettingsError::Beside(..)
            | ReplaySettingsError::RateMissing { .. }
            | ReplaySettingsError::OwnRates(_) => Self {
                is_option: true,
                ..Self::new(
                    error
                        .key_of_rejected_option()
                        .display_key_in_files()
                        .to_string(),
                    format!("{error:#}"),
                )
            },
            _ => Self::new(
                error
                    .key_of_rejected_option()
                    .display_key_in_files()
                    .to_string(),
                format!("{error:#}"),
            ),
        }
    }
}

impl From<UnusableOptionReason> for PointRefusal {
    fn from(refusal: UnusableOptionReason) -> Self {
        Self {
            is_option: true,
            // Study files name options by their keys.
            ..Self::new(
                refusal.rejected_key().display_key_in_files().to_string(),
                format!("{refusal:#}"),
            )
        }
    }
}

/// Source of the work that a point replays.
#[derive(Clone, Debug)]
pub enum WorkSource {
    /// A model under a plan.
    Plan(Box<ModelAndParallelismPlan>),
    /// Traces at this path, which are read with these options.
    Traces(PathBuf, Box<JobLoadOptions>),
}

/// A point whose settings were converted to a job on a machine.
#[derive(Clone, Debug)]
pub struct ResolvedPoint {
    /// The model under its plan, or the traces.
    pub work: WorkSource,
    /// Identifies the point's work. Points with equal keys have the same work.
    pub work_key: String,
    /// The machine, scaled to the work's number of ranks if possible.
    pub machine: Arc<Machine>,
    /// Options of the replay.
    pub options: ReplayOptions,
}

impl ResolvedPoint {
    /// Converts `settings` to a job on a machine. Takes machines and models that earlier points used from `parts`.
    pub fn new(settings: &Settings, parts: &MachineModelStackCaches) -> Result<Self, PointRefusal> {
        let text = |key: &str| settings.get(key).map(ConfigLiteral::to_string);
        let replay = replay_settings(settings)?;
        let (machine, work, work_key) = match text("trace") {
            Some(path) => {
                let machine = parts.machine_of_settings(settings, &replay, 0)?;
                let loading = replay.job_load_options(machine.max_ranks_without_placement_map());
                let key = format!("{path} as {loading:?}");
                let work = WorkSource::Traces(path.into(), Box::new(loading));
                (machine, work, key)
            }
            None => {
                // If both the machine and the plan are invalid, report the machine's error.
                let mut pattern = match model_and_plan_of_settings(settings, parts) {
                    Ok(pattern) => pattern,
                    Err(refusal) => {
                        parts.machine_of_settings(settings, &replay, 0)?;
                        return Err(refusal);
                    }
                };
                let ranks = pattern.plan.rank_count();
                let mut machine = parts.machine_of_settings(settings, &replay, ranks)?;
                if let Some(capacity) = pattern.plan.capacity {
                    Arc::make_mut(&mut machine).set_npu_memory_capacity(Some(Bytes(capacity)));
                }
                let most = machine.max_ranks_without_placement_map();
                if ranks > u128::from(most) {
                    let name = machine.name();
                    let detail = format!("{ranks} ranks on {name}, which takes {most}");
                    return Err(PointRefusal::new("machine", detail));
                }
                let key = bind_plan_to_machine_and_return_work_key(
                    &mut pattern.plan,
                    &machine,
                    settings,
                )?;
                (machine, WorkSource::Plan(Box::new(pattern)), key)
            }
        };
        let options = replay_options(settings, &replay, &machine)?;
        Ok(Self {
            work,
            work_key,
            machine,
            options,
        })
    }

    /// Returns the memory of the smallest NPU in bytes; `None` if unknown.
    pub fn smallest_npu_memory(&self) -> Option<u64> {
        least_npu_memory(&self.machine)
    }
}

/// Returns the settings that change the machine file. `path` maps their keys to paths in the file.
fn settings_as_file_edits<'s>(
    settings: &'s Settings,
    path: impl Fn(SettingKind<'s>) -> Option<&'s str>,
) -> Vec<(&'s str, &'s ConfigLiteral)> {
    let all = settings.iter();
    all.filter_map(|(key, value)| Some((path(kind_of_setting(key).ok()?)?, value)))
        .collect()
}

/// Returns the machine's text. If the outermost dimension of `machine` is scalable, it is made large enough for
/// `ranks`.
fn enlarge_outermost_dimension_for_ranks(
    machine: &Machine,
    text: &str,
    ranks: u128,
) -> Option<String> {
    let (outermost, inner) = machine.topology().dimensions().split_last()?;
    let size = machine.outermost_size_for(ranks);
    let path = format!("dimension.{}.size", inner.len());
    let name = ConfigLiteral::Text(format!("{}x{size}", machine.name()));
    let size = ConfigLiteral::Whole(i64::try_from(size).ok()?);
    let edits = [("name", &name), (path.as_str(), &size)];
    let scalable = machine.is_scalable() && outermost.size > 0;
    scalable.then(|| replace_toml_values(text, machine.name(), &edits).ok())?
}

/// Caches machines, models and software stacks by the settings that identify them. Each file is read only once.
#[derive(Debug, Default)]
pub struct MachineModelStackCaches {
    machines: Mutex<SharedConfigurationCache<Arc<Machine>>>,
    models: Mutex<SharedConfigurationCache<Model>>,
    stacks: Mutex<SharedConfigurationCache<Arc<FrameworkDurationsAndPlanOptions>>>,
}

type SharedConfigurationCache<T> = BTreeMap<String, Result<T, PointRefusal>>;

/// Maximum number of cached entries per kind.
const KEPT: usize = 256;

/// Returns the entry for `key` in `parts`. If the entry is missing, `make` creates it.
fn get_or_create_cached_part<T: Clone>(
    parts: &Mutex<SharedConfigurationCache<T>>,
    key: String,
    make: impl FnOnce() -> Result<T, PointRefusal>,
) -> Result<T, PointRefusal> {
    let lock = || parts.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = lock().get(&key) {
        return known.clone();
    }
    // Create the entry without holding the lock, so that other threads do not wait. Two threads may then create the
    // same entry, which is harmless.
    let made = make();
    let mut table = lock();
    if table.len() >= KEPT {
        table.clear();
    }
    table.insert(key, made.clone());
    made
}

impl MachineModelStackCaches {
    /// Returns the machine that `settings` select. A scalable machine has at least `ranks` NPUs.
    fn machine_of_settings(
        &self,
        settings: &Settings,
        replay: &ReplaySettings,
        ranks: u128,
    ) -> Result<Arc<Machine>, PointRefusal> {
        let name = settings.get("machine").map(ConfigLiteral::to_string);
        let name = replay.machine_name_with_rates(&name.unwrap_or_default())?;
        let mut edits = settings_as_file_edits(settings, |kind| match kind {
            SettingKind::Machine(path) => Some(path),
            _ => None,
        });
        edits.extend(
            replay
                .machine_value_changes()
                .iter()
                .map(|set| (&*set.path, &set.value)),
        );
        let stack = self.software_stack_of_settings(settings)?;
        let named = settings.get("stack");
        let key = format!("{name}|{ranks}|{}|{edits:?}|{named:?}", replay.fill_domains);
        get_or_create_cached_part(&self.machines, key, || {
            let refuse = |error: &dyn ToString| PointRefusal::new("machine", error.to_string());
            let source = machine::find_machine_text(&name).map_err(|e| refuse(&e))?;
            let mut text = source.text.into_owned();
            let mut original = None;
            if !edits.is_empty() {
                // The file may be incomplete without its edits, so ignore errors.
                original = Machine::parse(&text, &source.file).ok();
                text = replace_toml_values(&text, &source.file, &edits).map_err(|e| refuse(&e))?;
            }
            let parse = |text: &str| -> Result<Machine, PointRefusal> {
                let parsed = match &original {
                    None => Machine::parse(text, &source.file),
                    Some(original) => {
                        Machine::parse_edited_text_of_machine(text, &source.file, original)
                    }
                };
                Ok(replay.fill_all_racks_if_requested(parsed.map_err(|e| refuse(&e))?)?)
            };
            let mut machine = parse(&text)?;
            if ranks > u128::from(machine.max_ranks_without_placement_map())
                && let Some(scaled) = enlarge_outermost_dimension_for_ranks(&machine, &text, ranks)
            {
                machine = parse(&scaled)?;
            }
            if let Some(stack) = &stack {
                machine = stack
                    .apply_durations_to_machine(&machine)
                    .map_err(|error| PointRefusal::new("stack", error))?
                    .0;
            }
            Ok(Arc::new(machine))
        })
    }

    /// Returns the software stack that `settings` select, if there is one.
    fn software_stack_of_settings(
        &self,
        settings: &Settings,
    ) -> Result<Option<Arc<FrameworkDurationsAndPlanOptions>>, PointRefusal> {
        let name = settings.get("stack").map(ConfigLiteral::to_string);
        let load = |name: String| {
            let stack = get_or_create_cached_part(&self.stacks, name.clone(), || {
                let stack = FrameworkDurationsAndPlanOptions::load_by_name(&name)
                    .map_err(|e| PointRefusal::new("stack", e))?;
                Ok(Arc::new(stack))
            });
            stack.map(Some)
        };
        name.map_or(Ok(None), load)
    }

    fn get_or_load_workload_model(&self, settings: &Settings) -> Result<Model, PointRefusal> {
        let refuse = |error: &dyn ToString| PointRefusal::new("model", error.to_string());
        let name = settings.get("model").map(ConfigLiteral::to_string);
        let name = name.unwrap_or_default();
        let edits = settings_as_file_edits(settings, |kind| match kind {
            SettingKind::Model(path) => Some(path),
            _ => None,
        });
        let tokens = settings.get("tokens").map(parse_tokens_per_sample);
        let tokens = tokens.transpose();
        let tokens = tokens.map_err(|why| PointRefusal::new("tokens", why))?;
        get_or_create_cached_part(&self.models, format!("{name}|{tokens:?}|{edits:?}"), || {
            let source = PresetOrModelFileText::find_source(&name).map_err(|e| refuse(&e))?;
            let mut text = source.text.into_owned();
            if !edits.is_empty() {
                text = replace_toml_values(&text, &source.file, &edits).map_err(|e| refuse(&e))?;
            }
            let found = ModelWithDefinitionProperties::parse(&text, &source.file, tokens);
            Ok(found.map_err(|e| refuse(&e))?.model)
        })
    }
}

fn model_and_plan_of_settings(
    settings: &Settings,
    parts: &MachineModelStackCaches,
) -> Result<ModelAndParallelismPlan, PointRefusal> {
    let model = parts.get_or_load_workload_model(settings)?;
    let mut draft = PlanDraft::new(ParallelismPlan::new());
    for (key, value) in settings {
        let Ok(SettingKind::Plan(option)) = kind_of_setting(key) else {
            continue;
        };
        let text = value.to_string();
        let words: Vec<String> = match option.is_list {
            true => text.split(',').map(str::to_owned).collect(),
            false => vec![text],
        };
        let set = (option.set)(&mut draft, &words);
        set.map_err(|why| PointRefusal::new(key, format!("`{key}` is {value}: {why}")))?;
    }
    let mut plan = draft.finish_plan()?;
    if let Some(stack) = parts.software_stack_of_settings(settings)? {
        let is_given = |key: &str| settings.contains_key(&format!("plan.{key}"));
        stack.set_plan_options(&mut plan, is_given, &mut stack.empty_stack_report());
    }
    Ok(ModelAndParallelismPlan { model, plan })
}

/// Binds a plan to its machine. Returns the work key of the bound plan.
fn bind_plan_to_machine_and_return_work_key(
    plan: &mut ParallelismPlan,
    machine: &Machine,
    settings: &Settings,
) -> Result<String, PointRefusal> {
    let takes = |key: &str| {
        ["model", "stack", "tokens"].contains(&key)
            || key.starts_with("model.")
            || key.starts_with("plan.")
    };
    let own: Settings = (settings.iter())
        .filter(|(key, _)| takes(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let taken = plan.fill_open_options_from_machine(&machine_properties_for_plans(machine))?;
    Ok(format!(
        "{} on {taken:?}",
        super::setting::format_settings(&own)
    ))
}

/// Returns the options of the point's replay. Rejects options without effect on `machine`.
fn replay_options(
    settings: &Settings,
    replay: &ReplaySettings,
    machine: &Machine,
) -> Result<ReplayOptions, PointRefusal> {
    let mut options = replay.replay_options(None)?;
    for (key, value) in settings {
        let Ok(SettingKind::Accelerator(name)) = kind_of_setting(key) else {
            continue;
        };
        let wrong = |why: String| PointRefusal::new(key, format!("`{key}` is {value}: {why}"));
        let KernelDurationSource::LoopNest(model) = &mut options.compute else {
            let why = "`compute` is no accelerator such as loopnest:gemmini-16";
            return Err(wrong(why.to_owned()));
        };
        set_accelerator_value(model, name, &value.to_string()).map_err(wrong)?;
    }
    options.check_options_do_not_conflict()?;
    options.check_machine_supports_options(machine)?;
    Ok(options)
}
