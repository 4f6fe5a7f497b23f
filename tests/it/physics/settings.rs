//! One law for settings: a key of a machine file that was edited changes the results of a run, or the report names it with a
//! reason; and a key that is named changes nothing.

use super::lines::{Line, call, kernel, line, receive, send};
use super::rig::job;
use chakram::engine::{CompiledReplay, ReplayOptions};
use chakram::generate::{ParallelismPlan, TrainingPattern, WorkloadPattern, ZeroStage};
use chakram::ids::Npu;
use chakram::job::{Job, MachineEdit, edits_of, note_settings};
use chakram::machine::{Machine, PRESETS, preset_text};
use chakram::model::{ModelDefinition, ModelSource};
use chakram::report::{Report, replay};
use chakram::trace::{CollectiveKind, Dtype, MemoryLocation, Op};
use chakram::workload::Workload;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use toml::Value as Toml;

/// Words of choices; those that a key does not take are refused.
const WORDS: [&str; 24] = [
    "ring",
    "direct",
    "halving_doubling",
    "recursive_doubling",
    "tree",
    "double_binary_tree",
    "auto",
    "nccl",
    "switch",
    "fully_connected",
    "mesh",
    "contention_free",
    "ports",
    "links",
    "fair_sharing",
    "delivered",
    "sent",
    "never",
    "receives",
    "messages",
    "passes",
    "store_and_forward",
    "themis",
    "per_npu",
];

/// A job, and where its ranks are.
struct PlacedJob {
    name: &'static str,
    workload: Workload,
    options: ReplayOptions,
}

impl PlacedJob {
    fn new(name: &'static str, workload: Workload, npus: &[u32]) -> Self {
        let options = ReplayOptions::with(|options| {
            options.map = Some(npus.iter().map(|&npu| Npu(npu)).collect());
        });
        Self {
            name,
            workload,
            options,
        }
    }

    fn report(&self, machine: &Machine, edits: &[MachineEdit]) -> Option<Report> {
        let prepared = CompiledReplay::new(&self.workload, machine, &self.options).ok()?;
        let (mut report, ()) = replay(&prepared, ()).ok()?;
        let given: Vec<_> = edits.iter().map(MachineEdit::setting).collect();
        note_settings(&mut report, &prepared, &self.options, &given);
        Some(report)
    }
}

/// The NPUs with coordinates 0 and 1 along each dimension: the least that cross all of them.
fn corners(machine: &Machine) -> Vec<u32> {
    let topology = machine.topology();
    let inner = |npu: &u32| {
        let dimensions = 0..topology.dimensions().len();
        dimensions
            .map(|d| topology.coordinate(Npu(*npu), d))
            .all(|at| at < 2)
    };
    (0..topology.npus()).filter(inner).collect()
}

/// Jobs that between them use what machines have: kernels, loads and stores in every format and size, collectives of every kind
/// and size in every dimension, messages, and steps of training with launches, memory and curves.
fn jobs(machine: &Machine) -> Vec<PlacedJob> {
    let corners = corners(machine);
    let npus = machine.topology().npus().min(8);
    let first: Vec<u32> = (0..npus).collect();
    let across = corners.len() as u32;
    let mut jobs = vec![
        PlacedJob::new("nodes", nodes(across), &corners),
        PlacedJob::new("across", collectives(across, &[1 << 10, 1 << 22]), &corners),
        PlacedJob::new(
            "along",
            collectives(npus, &[1 << 16, 1 << 20, 600_000_000]),
            &first,
        ),
    ];
    if npus == 8 {
        jobs.push(PlacedJob::new("step", step(8, Dtype::Bf16), &first));
        jobs.push(PlacedJob::new(
            "step in fp8",
            step(4, Dtype::Fp8),
            &first[..4],
        ));
    }
    jobs
}

fn load(store: bool, place: MemoryLocation<'static>, bytes: u64) -> Line {
    line(Op::Memory {
        store,
        place,
        bytes,
        in_switch: false,
    })
}

/// Each rank: kernels in every format, bound by FLOPs and by bytes, loads and stores, 40 kernels side by side, and a message
/// to the rank after it and one to the rank half of the job away.
fn nodes(ranks: u32) -> Workload {
    let of_rank = |rank: u32| {
        let mut lines = Vec::new();
        for (flops, bytes) in [(1 << 40, 8), (8, 1 << 32)] {
            lines.extend(Dtype::ALL.map(|(dtype, _)| {
                line(Op::Compute {
                    flops,
                    bytes,
                    dtype: Some(dtype),
                })
            }));
        }
        for bytes in [1 << 10, 1 << 26] {
            lines.push(load(false, MemoryLocation::Local, bytes));
            lines.push(load(true, MemoryLocation::Local, bytes));
            lines.push(load(false, MemoryLocation::Remote, bytes));
            lines.push(load(true, MemoryLocation::Remote, bytes));
        }
        lines.extend((0..40).map(|lane| kernel(1000).on(lane)));
        lines.extend((0..80).map(|lane| line(Op::Host).on(lane).lasts(1000)));
        for bytes in [8, 1 << 24] {
            for distance in [1, ranks / 2] {
                if ranks > distance && distance > 0 {
                    lines.push(send((rank + distance) % ranks, bytes));
                    lines.push(receive((rank + ranks - distance) % ranks, bytes));
                }
            }
        }
        lines
    };
    job(&(0..ranks).map(of_rank).collect::<Vec<_>>(), &[])
}

/// Collectives of every kind over buffers of these sizes, among all ranks, and among the first two and four.
fn collectives(ranks: u32, sizes: &[u64]) -> Workload {
    let names = ["two", "four"];
    let members: Vec<Vec<u32>> = [2, 4].map(|n: u32| (0..n.min(ranks)).collect()).to_vec();
    let groups: Vec<(&str, &[u32])> = names
        .into_iter()
        .zip(members.iter().map(|m| &m[..]))
        .collect();
    let kinds = [
        CollectiveKind::AllReduce,
        CollectiveKind::AllGather,
        CollectiveKind::ReduceScatter,
        CollectiveKind::AllToAll,
    ];
    let of_rank = |rank: u32| {
        let mut lines = Vec::new();
        for kind in kinds {
            for &bytes in sizes {
                lines.push(call(kind, bytes));
                for (name, members) in &groups {
                    if members.contains(&rank) && members.len() > 1 {
                        lines.push(call(kind, bytes).group(name));
                    }
                }
            }
        }
        lines
    };
    job(&(0..ranks).map(of_rank).collect::<Vec<_>>(), &groups)
}

/// A step of a small GPT in two stages of two shards.
fn step(ranks: u32, dtype: Dtype) -> Workload {
    let mut plan = ParallelismPlan::new();
    (plan.tensor, plan.pipeline, plan.data) = (2, 2, ranks / 4);
    plan.batch = u64::from(ranks);
    if plan.data > 1 {
        plan.zero = ZeroStage::Optimizer;
    }
    plan.linears = (dtype != Dtype::Bf16).then_some(dtype);
    let source = ModelSource::find("gpt2-small").unwrap();
    let text = source.text.replace("layers = 12", "layers = 2");
    let model = ModelDefinition::parse(&text, "small.toml", Some(64))
        .unwrap()
        .model;
    let pattern = WorkloadPattern::Training(Box::new(TrainingPattern { model, plan }));
    Job::generate(pattern).unwrap().into_workload()
}

/// What a report says besides names, counts and warnings.
fn results(report: &Report) -> Value {
    let mut value = serde_json::to_value(report).unwrap();
    let document = value.as_object_mut().unwrap();
    for label in ["machine", "network", "warnings", "settings"] {
        document.remove(label);
    }
    for count in [
        "collectives_analytical",
        "collectives_simulated",
        "closed",
        "stepwise",
        "unfolded",
    ] {
        document.remove(count);
    }
    for row in document["collectives"].as_array_mut().unwrap() {
        for label in ["algorithm", "measured", "derived_from"] {
            row.as_object_mut().unwrap().remove(label);
        }
    }
    for rows in ["/npus", "/memory/npus"] {
        let rows = value.pointer_mut(rows).and_then(Value::as_array_mut);
        for row in rows.into_iter().flatten() {
            row.as_object_mut().unwrap().remove("npu");
            row.as_object_mut().unwrap().remove("class");
        }
    }
    value
}

/// The value at each leaf of a document, by path; lists of numbers and quantities are leaves.
fn leaves(value: &Toml, path: &str, found: &mut Vec<String>) {
    let below = |key: &str| match path {
        "" => key.to_owned(),
        path => format!("{path}/{key}"),
    };
    match value {
        Toml::Table(table) => table
            .iter()
            .for_each(|(key, value)| leaves(value, &below(key), found)),
        Toml::Array(items) if items.iter().all(Toml::is_table) => {
            let items = items.iter().enumerate();
            items.for_each(|(i, item)| leaves(item, &below(&i.to_string()), found));
        }
        _ => found.push(path.to_owned()),
    }
}

fn at<'v>(value: &'v mut Toml, path: &str) -> &'v mut Toml {
    path.split('/').fold(value, |value, part| match value {
        Toml::Array(items) => &mut items[part.parse::<usize>().unwrap()],
        value => &mut value[part],
    })
}

/// Other values of a leaf: numbers doubled and halved, flags toggled, words replaced by others.
fn others(value: &Toml) -> Vec<Toml> {
    let times = |factor: f64| scaled(value, factor);
    match value {
        Toml::Boolean(flag) => vec![Toml::Boolean(!flag)],
        Toml::String(text) if !text.starts_with(|c: char| c.is_ascii_digit()) => {
            let words = WORDS.iter().filter(|word| *word != text);
            words.map(|word| Toml::String((*word).to_owned())).collect()
        }
        _ => vec![times(2.0), times(0.5)],
    }
}

/// The numbers in `value` times `factor`.
fn scaled(value: &Toml, factor: f64) -> Toml {
    match value {
        Toml::Integer(number) => Toml::Integer(((*number as f64 * factor) as i64).max(1)),
        Toml::Float(number) => Toml::Float(number * factor),
        Toml::String(text) => {
            let end = text
                .find(|c: char| !c.is_ascii_digit() && c != '.')
                .unwrap_or(text.len());
            let Ok(number) = text[..end].parse::<f64>() else {
                return value.clone();
            };
            Toml::String(format!("{}{}", number * factor, &text[end..]))
        }
        Toml::Array(items) => Toml::Array(items.iter().map(|item| scaled(item, factor)).collect()),
        other => other.clone(),
    }
}

/// A path without names and numbers of classes, dimensions and rows: the same key of all machines.
fn general(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').collect();
    let is_class = |i: usize| i == 1 && (parts[0] == "npu" || parts[0] == "assign");
    let parts = parts
        .iter()
        .enumerate()
        .map(|(i, part)| match part.parse::<usize>() {
            _ if is_class(i) => "*",
            Ok(_) => "*",
            Err(_) => part,
        });
    parts.collect::<Vec<_>>().join("/")
}

/// Keys by whether they changed a result of some job.
#[derive(Debug, Default)]
struct Tried {
    keys: BTreeMap<String, bool>,
    refused: BTreeSet<String>,
    runs: u64,
}

/// The most tables of one kind, such as curves, whose keys are tried.
const MAX_ALIKE: usize = 2;

/// Tries every `stride`-th key of the machine called `name`, of tables of one kind in the first of them.
fn try_keys(name: &str, stride: usize, tried: &mut Tried) {
    let text = preset_text(name).unwrap();
    let original = Machine::parse(&text, name).unwrap();
    let root: Toml = Toml::Table(text.parse().unwrap());
    let mut paths = Vec::new();
    leaves(&root, "", &mut paths);
    let mut alike: BTreeMap<String, usize> = BTreeMap::new();
    paths.retain(|path| {
        let count = alike.entry(general(path)).or_default();
        *count += 1;
        *count <= MAX_ALIKE
    });
    let jobs = jobs(&original);
    let before = jobs.iter().map(|job| job.report(&original, &[]));
    let before: Vec<_> = before.map(|report| Some(results(&report?))).collect();
    for path in paths.iter().step_by(stride) {
        if path == "name" || path == "description" {
            continue;
        }
        let key = general(path);
        let value = at(&mut root.clone(), path).clone();
        for other in others(&value) {
            if other == value {
                continue;
            }
            let mut edited = root.clone();
            *at(&mut edited, path) = other.clone();
            let text = toml::to_string(&edited).unwrap();
            let Ok(machine) = Machine::parse(&text, name) else {
                tried.refused.insert(key.clone());
                continue;
            };
            let edits = edits_of(&text, name);
            // A dimension that is renamed is another; otherwise there is one edit.
            assert_eq!(edits.len(), 1, "{name}: {path} = {other}: {edits:?}");
            for (job, before) in jobs.iter().zip(&before) {
                let acts = tried.keys.entry(key.clone()).or_default();
                let after = job.report(&machine, &edits);
                tried.runs += 1;
                let of = format!("{name}, {}: {path} = {other}", job.name);
                match (&after, before) {
                    (Some(after), Some(before)) => {
                        let is_same = results(after) == *before;
                        let named = &after.settings.without_effect;
                        assert_eq!(is_same, named.len() == 1, "{of}: {named:?}");
                        assert!(after.settings.unchecked.is_empty(), "{of}");
                        let has_reason = named.iter().all(|one| !one.reason.is_empty());
                        assert!(has_reason, "{of}: {named:?}");
                        *acts |= !is_same;
                    }
                    // A job that only one of the two can run.
                    (None, Some(_)) | (Some(_), None) => *acts = true,
                    (None, None) => {}
                }
            }
        }
    }
}

#[test]
fn an_edited_key_acts_or_is_named() {
    let mut tried = Tried::default();
    try_keys("dgx-h100x2", 9, &mut tried);
    try_keys("hiermem", 7, &mut tried);
    assert!(tried.runs > 50, "{}", tried.runs);
}

/// Every key of every preset, some minutes: `cargo test --release --test it -- --ignored every_key`.
#[test]
#[ignore = "takes minutes"]
fn every_key_of_every_preset_acts_or_is_named() {
    let mut tried = Tried::default();
    for preset in PRESETS {
        // Two of the outermost dimension, where that is one.
        let two = format!("{}x2", preset.name);
        let name = match preset_text(&two) {
            Ok(_) => two,
            Err(_) => preset.name.to_owned(),
        };
        try_keys(&name, 1, &mut tried);
        eprintln!("{name}: {} runs so far", tried.runs);
    }
    let dead: Vec<&String> = (tried.keys.iter())
        .filter_map(|(key, acts)| (!acts).then_some(key))
        .collect();
    let refused: Vec<&String> = tried
        .refused
        .iter()
        .filter(|key| !tried.keys.contains_key(*key))
        .collect();
    eprintln!("never accepted: {refused:#?}");
    assert!(dead.is_empty(), "keys that change nothing: {dead:#?}");
}
