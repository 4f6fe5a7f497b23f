//! Points as jobs: what settings come to, or the reason why they come to nothing.

use super::setting::{SettingKind, Settings, kind};
use chakram_base::config::{ConfigLiteral, with_values};
use chakram_engine::{LaunchMode, ReplayOptions};
use chakram_hardware::compute::{
    ComputeModel, HostTiming, RooflineEfficiency, parse_model, parse_scaled, set_accelerator,
};
use chakram_hardware::machine::{self, Machine};
use chakram_hardware::network::NetworkKind;
use chakram_workloads::generate::plan::{CoreGrid, ParallelismPlan, PlanDraft, ResidencyRule};
use chakram_workloads::generate::{GenerateError, TrainingPattern};
use chakram_workloads::model::{Model, ModelDefinition, ModelSource};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Reason why a point has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointRefusal {
    /// Class of the reason, for counts.
    pub reason: String,
    /// The reason.
    pub detail: String,
}

impl PointRefusal {
    /// A refusal for `reason`.
    pub fn new(reason: impl Into<String>, detail: impl ToString) -> Self {
        Self {
            reason: reason.into(),
            // Details stand in cells of tables.
            detail: detail.to_string().replace(['\n', '\r'], " "),
        }
    }
}

impl From<GenerateError> for PointRefusal {
    fn from(error: GenerateError) -> Self {
        let reason = match &error {
            GenerateError::Refused { option, .. } => format!("plan.{option}"),
            _ => "size".to_owned(),
        };
        Self::new(reason, error)
    }
}

/// Source of a point's work.
#[derive(Clone, Debug)]
pub enum WorkSource {
    /// A model under a plan.
    Plan(Box<TrainingPattern>),
    /// Traces at this path.
    Traces(PathBuf),
}

/// A point as a job on a machine.
#[derive(Clone, Debug)]
pub struct ResolvedPoint {
    /// The work.
    pub work: WorkSource,
    /// Key of the point's work: points with equal keys share it.
    pub work_key: String,
    /// The machine.
    pub machine: Arc<Machine>,
    /// Options of the replay.
    pub options: ReplayOptions,
}

impl ResolvedPoint {
    /// Finds what `settings` come to, with machines and models from `parts` where other points had them.
    pub fn new(settings: &Settings, parts: &SharedParts) -> Result<Self, PointRefusal> {
        let text = |key: &str| settings.get(key).map(ConfigLiteral::to_string);
        let (machine, work, work_key) = match text("trace") {
            Some(path) => {
                let machine = parts.machine(settings, 0)?;
                (machine, WorkSource::Traces(path.clone().into()), path)
            }
            None => {
                // An error of the machine comes before one of the plan.
                let pattern = match pattern(settings, parts) {
                    Ok(pattern) => pattern,
                    Err(refusal) => {
                        parts.machine(settings, 0)?;
                        return Err(refusal);
                    }
                };
                let mut pattern = pattern;
                let ranks = pattern.plan.ranks();
                let machine = parts.machine(settings, ranks)?;
                if ranks > u128::from(machine.topology().npus()) {
                    let npus = machine.topology().npus();
                    let detail = format!("{ranks} ranks on the {npus} NPUs of {}", machine.name());
                    return Err(PointRefusal::new("machine", detail));
                }
                let key = place(&mut pattern.plan, &machine, settings)?;
                (machine, WorkSource::Plan(Box::new(pattern)), key)
            }
        };
        let options = options(settings, &machine)?;
        Ok(Self {
            work,
            work_key,
            machine,
            options,
        })
    }

    /// The least memory of an NPU, in bytes.
    pub fn capacity(&self) -> u64 {
        let classes = 0..self.machine.classes().len();
        let memories = classes.map(|class| self.machine.npu_memory(class).0);
        memories.min().unwrap_or(0)
    }
}

/// The settings whose kind `path` knows, with their paths.
fn edits<'s>(
    settings: &'s Settings,
    path: impl Fn(SettingKind<'s>) -> Option<&'s str>,
) -> Vec<(&'s str, &'s ConfigLiteral)> {
    let all = settings.iter();
    all.filter_map(|(key, value)| Some((path(kind(key).ok()?)?, value)))
        .collect()
}

/// The text of `machine` with as many NPUs along its outermost dimension as `ranks` take, if that is scalable.
fn scaled(machine: &Machine, text: &str, ranks: u128) -> Option<String> {
    let (outermost, inner) = machine.topology().dimensions().split_last()?;
    let unit: u128 = inner
        .iter()
        .map(|dimension| u128::from(dimension.size))
        .product();
    let size = ranks.div_ceil(unit.max(1));
    let path = format!("dimension.{}.size", inner.len());
    let name = ConfigLiteral::Text(format!("{}x{size}", machine.name()));
    let size = ConfigLiteral::Whole(i64::try_from(size).ok()?);
    let edits = [("name", &name), (path.as_str(), &size)];
    let scalable = machine.scalable() && outermost.size > 0;
    scalable.then(|| with_values(text, machine.name(), &edits).ok())?
}

/// Machines and models that points were found to have, by the settings that make them. Files are read once.
#[derive(Debug, Default)]
pub struct SharedParts {
    machines: Mutex<PartTable<Arc<Machine>>>,
    models: Mutex<PartTable<Model>>,
}

type PartTable<T> = BTreeMap<String, Result<T, PointRefusal>>;

/// Number of machines and of models that are kept.
const KEPT: usize = 256;

/// The part of `parts` for `key`, or else the one that `make` makes.
fn shared<T: Clone>(
    parts: &Mutex<PartTable<T>>,
    key: String,
    make: impl FnOnce() -> Result<T, PointRefusal>,
) -> Result<T, PointRefusal> {
    let lock = || parts.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = lock().get(&key) {
        return known.clone();
    }
    let made = make();
    let mut table = lock();
    if table.len() >= KEPT {
        table.clear();
    }
    table.insert(key, made.clone());
    made
}

impl SharedParts {
    /// The machine of `settings`, with at least `ranks` NPUs if it can have as many.
    fn machine(&self, settings: &Settings, ranks: u128) -> Result<Arc<Machine>, PointRefusal> {
        let name = settings.get("machine").map(ConfigLiteral::to_string);
        let name = name.unwrap_or_default();
        let edits = edits(settings, |kind| match kind {
            SettingKind::Machine(path) => Some(path),
            _ => None,
        });
        let key = format!("{name}|{ranks}|{edits:?}");
        shared(&self.machines, key, || {
            let refuse = |error: &dyn ToString| PointRefusal::new("machine", error.to_string());
            let source = machine::source(&name).map_err(|e| refuse(&e))?;
            let mut text = source.text.into_owned();
            if !edits.is_empty() {
                text = with_values(&text, &source.file, &edits).map_err(|e| refuse(&e))?;
            }
            let parse = |text: &str| Machine::parse(text, &source.file).map_err(|e| refuse(&e));
            let mut machine = parse(&text)?;
            if ranks > u128::from(machine.topology().npus())
                && let Some(scaled) = scaled(&machine, &text, ranks)
            {
                machine = parse(&scaled)?;
            }
            Ok(Arc::new(machine))
        })
    }

    /// The model of `settings`.
    fn model(&self, settings: &Settings) -> Result<Model, PointRefusal> {
        let refuse = |error: &dyn ToString| PointRefusal::new("model", error.to_string());
        let name = settings.get("model").map(ConfigLiteral::to_string);
        let name = name.unwrap_or_default();
        let edits = edits(settings, |kind| match kind {
            SettingKind::Model(path) => Some(path),
            _ => None,
        });
        let tokens = settings
            .get("tokens")
            .map(|tokens| tokens.to_string().parse::<u64>());
        let tokens = tokens.transpose().map_err(|e| refuse(&e))?;
        shared(&self.models, format!("{name}|{tokens:?}|{edits:?}"), || {
            let source = ModelSource::find(&name).map_err(|e| refuse(&e))?;
            let mut text = source.text.into_owned();
            if !edits.is_empty() {
                text = with_values(&text, &source.file, &edits).map_err(|e| refuse(&e))?;
            }
            let found = ModelDefinition::parse(&text, &source.file, tokens);
            Ok(found.map_err(|e| refuse(&e))?.model)
        })
    }
}

fn pattern(settings: &Settings, parts: &SharedParts) -> Result<TrainingPattern, PointRefusal> {
    let model = parts.model(settings)?;
    let mut draft = PlanDraft::new(ParallelismPlan::new());
    for (key, value) in settings {
        let Ok(SettingKind::Plan(option)) = kind(key) else {
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
    let plan = draft.finish()?;
    Ok(TrainingPattern { model, plan })
}

/// Sets what a plan takes from its machine, and returns the key of its work.
fn place(
    plan: &mut ParallelismPlan,
    machine: &Machine,
    settings: &Settings,
) -> Result<String, PointRefusal> {
    let takes = |key: &str| {
        key == "model" || key == "tokens" || key.starts_with("model.") || key.starts_with("plan.")
    };
    let own: Settings = (settings.iter())
        .filter(|(key, _)| takes(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let mut key = super::setting::line(&own);
    let classes = machine.classes().iter();
    if plan.residency != ResidencyRule::None && plan.sram.is_none() {
        plan.sram = classes.map(|class| class.memory.capacity.0).min();
        key += &format!(" with {} B of SRAM", plan.sram.unwrap_or(0));
    }
    let holds = machine.remote().map(|memory| memory.capacity.0);
    if let (Some(most), None, false) = (
        holds,
        plan.largest_access,
        plan.residency == ResidencyRule::None,
    ) {
        plan.largest_access = holds;
        key += &format!(" by {most} B");
    }
    let least = (0..machine.classes().len())
        .map(|class| machine.npu_memory(class).0)
        .min();
    if plan.capacity.is_none() {
        plan.capacity = least;
        if plan.recompute == chakram_workloads::generate::plan::RecomputePolicy::AsNeeded {
            key += &format!(" in {} B", least.unwrap_or(0));
        }
    }
    if !plan.place.is_empty() {
        let dimensions = machine.topology().dimensions().iter();
        let dimensions: Vec<_> = dimensions.map(|d| (&d.name[..], d.size)).collect();
        plan.place_on(&dimensions)?;
        key += &format!(" on {dimensions:?}");
    }
    if let Some(tiles) = machine.topology().tiles() {
        let grid = CoreGrid {
            dies: tiles.dies,
            cores: tiles.cores,
            faulty: tiles
                .faulty_cores
                .iter()
                .map(|core| tiles.place(*core))
                .collect(),
        };
        plan.place_on_tiles(Some(&grid))?;
        key += &format!(" on {:?} x {:?} {:?}", grid.dies, grid.cores, grid.faulty);
    }
    Ok(key)
}

fn options(settings: &Settings, machine: &Machine) -> Result<ReplayOptions, PointRefusal> {
    let text = |key: &str| settings.get(key).map(ConfigLiteral::to_string);
    let wrong = |key: &str, why: String| {
        PointRefusal::new(key, format!("`{key}` is {}: {why}", settings[key]))
    };
    let compute = text("compute").map(|text| parse_model(&text));
    let compute = compute
        .transpose()
        .map_err(|why| wrong("compute", why))?
        .unwrap_or_default();
    let mut compute = compute;
    for (key, value) in settings {
        let Ok(SettingKind::Accelerator(name)) = kind(key) else {
            continue;
        };
        let ComputeModel::LoopNest(model) = &mut compute else {
            let why = "`compute` is no accelerator such as loopnest:gemmini-16";
            return Err(wrong(key, why.to_owned()));
        };
        set_accelerator(model, name, &value.to_string()).map_err(|why| wrong(key, why))?;
    }
    let efficiency = match settings.get("efficiency") {
        Some(value) => {
            let fraction = value.number().and_then(RooflineEfficiency::new);
            let why = || "expected a part of the peak, above 0 and at most 1".to_owned();
            Some(fraction.ok_or_else(|| wrong("efficiency", why()))?)
        }
        None => None,
    };
    if matches!(compute, ComputeModel::LoopNest(_)) && efficiency.is_some() {
        return Err(wrong("efficiency", "it is for the roofline".to_owned()));
    }
    let curves = compute == ComputeModel::Curves;
    if curves && (!machine.has_curves() || efficiency.is_some()) {
        let why = if efficiency.is_some() {
            "`efficiency` is for the roofline"
        } else {
            "the machine has no curves"
        };
        return Err(wrong("compute", why.to_owned()));
    }
    let choice = |key: &str, all: &[&str]| -> Result<Option<usize>, PointRefusal> {
        let Some(text) = text(key) else {
            return Ok(None);
        };
        let found = all.iter().position(|name| *name == text);
        found
            .map(Some)
            .ok_or_else(|| wrong(key, format!("expected one of {}", all.join(", "))))
    };
    let launch = match choice("launch", &["none", "eager", "graph"])? {
        Some(0) => LaunchMode::None,
        Some(1) => LaunchMode::Eager,
        Some(_) => LaunchMode::Graph,
        None => LaunchMode::Auto,
    };
    let launches = matches!(launch, LaunchMode::Eager | LaunchMode::Graph);
    if launches && machine.host().is_none() {
        let why = "the machine does not say what launches cost";
        return Err(wrong("launch", why.to_owned()));
    }
    let measured = choice("collectives", &["algorithms", "curves"])?;
    let host = match text("host").as_deref() {
        None | Some("recorded") => HostTiming::Recorded,
        Some(other) => {
            let factor = parse_scaled(other, "expected recorded or scaled:F");
            HostTiming::Scaled(factor.map_err(|why| wrong("host", why))?)
        }
    };
    let names = NetworkKind::ALL.map(|(_, name)| name);
    let network = choice("network", &names)?.map(|index| NetworkKind::ALL[index].0);
    Ok(ReplayOptions::with(|options| {
        options.compute = compute.at(efficiency.unwrap_or_default());
        options.host = host;
        options.launch = launch;
        options.network = network;
        options.measured_collectives = measured.map(|index| index == 1);
    }))
}
