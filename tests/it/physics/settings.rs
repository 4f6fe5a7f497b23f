//! Tests the law for settings: an edited key of a machine file changes the results of a run, or the report names the
//! key as having no effect, with a reason. A key that the report names this way must change nothing.

use super::lines::{
    TestTraceNode, build_collective, build_kernel, build_node, build_receive, build_send,
    build_shaped_kernel,
};
use super::rig::build_job_from_rank_nodes;
use chakram::engine::{
    CollectiveCurvesOrAlgorithms, CompiledReplay, KernelDurationSource, ReplayOptions,
};
use chakram::generate::{ModelAndParallelismPlan, ParallelismPlan, WorkloadPattern, ZeroStage};
use chakram::ids::Npu;
use chakram::job::{
    EditedMachineFileValue, Job, list_values_changed_from_machine_preset,
    note_settings_without_effect,
};
use chakram::machine::{Machine, PRESETS, read_preset_text};
use chakram::model::{ModelWithDefinitionProperties, PresetOrModelFileText};
use chakram::report::{Report, replay_to_report};
use chakram::trace::{
    CollectiveKind, Dtype, KernelShape, MemoryBoundKernelClass, MemoryLocation, Op,
};
use chakram::workload::Workload;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::thread;
use toml::Value as Toml;

/// Words that some key accepts; each key rejects the words that only other keys accept.
const WORDS: [&str; 31] = [
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
    "pool",
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "die",
    "grid",
];

/// Keys that never affect results, each with the reason.
const LABELS: [(&str, &str); 2] = [
    (
        "dimension/*/name",
        "a name by which reports and messages call the dimension",
    ),
    (
        "dimension/*/scalable",
        "permits names such as `dgx-h100x4`; the machine that is read is the same",
    ),
];

/// Keys for which the presets accept no other value, each with the reason.
const FIXED: [(&str, &str); 1] = [(
    "dimension/*/curve/*/collective",
    "each kind is measured among each number of members, and a second curve of a kind and number is refused",
)];

/// A job with a placement of its ranks.
struct PlacedJob {
    name: &'static str,
    workload: Workload,
    options: ReplayOptions,
    /// The prefix of those key paths for which the job runs; slow or specialized jobs run for few keys.
    keys: &'static str,
}

impl PlacedJob {
    fn new(name: &'static str, workload: Workload, npus: &[u32]) -> Self {
        let options = ReplayOptions::default_with_changes(|options| {
            options.map = Some(npus.iter().map(|&npu| Npu(npu)).collect());
        });
        Self {
            name,
            workload,
            options,
            keys: "",
        }
    }

    /// Restricts the job to keys with this prefix, and changes its options.
    fn restrict_to_keys_and_change_options(
        mut self,
        keys: &'static str,
        change: impl FnOnce(&mut ReplayOptions),
    ) -> Self {
        self.keys = keys;
        change(&mut self.options);
        self
    }

    fn replay_and_note_ineffective_edits(
        &self,
        machine: &Machine,
        edits: &[EditedMachineFileValue],
    ) -> Option<Report> {
        let prepared = CompiledReplay::new(&self.workload, machine, &self.options).ok()?;
        let (mut report, ()) = replay_to_report(&prepared, ()).ok()?;
        let given: Vec<_> = edits
            .iter()
            .map(EditedMachineFileValue::to_setting)
            .collect();
        note_settings_without_effect(&mut report, &prepared, &self.options, &given);
        Some(report)
    }
}

/// Returns the NPUs with coordinates 0 and 1 along each dimension: the smallest set that crosses
/// all dimensions.
fn list_npus_with_coordinates_below_two(machine: &Machine) -> Vec<u32> {
    let topology = machine.topology();
    let inner = |npu: &u32| {
        let dimensions = 0..topology.dimensions().len();
        dimensions
            .map(|d| topology.coordinate_of(Npu(*npu), d))
            .all(|at| at < 2)
    };
    (0..topology.npu_count()).filter(inner).collect()
}

/// Returns the NPUs at most two positions from an edge along each dimension.
fn list_edge_npus(machine: &Machine) -> Vec<u32> {
    let topology = machine.topology();
    let outer = |npu: &u32| {
        let mut dimensions = topology.dimensions().iter().enumerate();
        dimensions.all(|(d, dimension)| {
            let at = topology.coordinate_of(Npu(*npu), d);
            at < 2 || at + 2 >= dimension.size
        })
    };
    (0..topology.npu_count()).filter(outer).take(16).collect()
}

/// Returns jobs that together use every machine feature: kernels, loads and stores in every format and size,
/// collectives of every kind and size in every dimension, messages, and training steps with launches, memory and
/// curves.
fn build_coverage_jobs(machine: &Machine) -> Vec<PlacedJob> {
    let corners = list_npus_with_coordinates_below_two(machine);
    let npus = machine.topology().npu_count().min(8);
    let first: Vec<u32> = (0..npus).collect();
    let across = corners.len() as u32;
    let mut jobs = vec![
        PlacedJob::new("nodes", build_mixed_node_job(across), &corners),
        PlacedJob::new(
            "across",
            build_collectives_job(across, &[1 << 10, 1 << 22]),
            &corners,
        ),
        PlacedJob::new(
            "along",
            build_collectives_job(npus, &[1 << 16, 1 << 20, 600_000_000]),
            &first,
        ),
    ];
    if npus == 8 {
        jobs.push(PlacedJob::new(
            "step",
            build_training_step(8, Dtype::Bf16),
            &first,
        ));
        jobs.push(PlacedJob::new(
            "step in fp8",
            build_training_step(4, Dtype::Fp8),
            &first[..4],
        ));
    }
    jobs.push(
        PlacedJob::new("shapes", build_kernel_shape_job(), &[0])
            .restrict_to_keys_and_change_options("npu/", |options| {
                options.compute = KernelDurationSource::Curves;
            }),
    );
    jobs.push(
        PlacedJob::new("queue", build_full_launch_queue_job(), &[0])
            .restrict_to_keys_and_change_options("host/", |options| {
                options.compute = KernelDurationSource::Curves;
            }),
    );
    let inner = machine.topology().dimensions()[0].size;
    if inner >= 12 {
        let first: Vec<u32> = (0..12).collect();
        jobs.push(
            PlacedJob::new("unmeasured", build_collectives_job(12, &SIZES), &first)
                .restrict_to_keys_and_change_options("dimension/", |options| {
                    options.collectives = Some(CollectiveCurvesOrAlgorithms::Curves)
                }),
        );
    }
    if let Some(remote) = machine.unnamed_remote_memory() {
        let edges = list_edge_npus(machine);
        let keys = match machine.topology().tile_grid() {
            Some(_) => "tiles/",
            None => "remote_memory/",
        };
        let loads = |sizes: &[u64]| {
            let loads = sizes.iter().flat_map(|&bytes| {
                [false, true].map(|store| make_memory_node(store, MemoryLocation::Remote, bytes))
            });
            loads.collect::<Vec<_>>()
        };
        let ranks = vec![loads(&[1 << 10, 1 << 20]); edges.len()];
        let pooled = PlacedJob::new("pool", build_job_from_rank_nodes(&ranks, &[]), &edges);
        jobs.push(pooled.restrict_to_keys_and_change_options(keys, |_| {}));
        // This load takes more than half of the memory's capacity.
        let full = build_job_from_rank_nodes(&[loads(&[remote.capacity.unwrap().0 / 4 * 3])], &[]);
        jobs.push(
            PlacedJob::new("full pool", full, &[0])
                .restrict_to_keys_and_change_options(keys, |_| {}),
        );
    }
    if machine.dimension_with_npu_limit().is_some() {
        // The job has more ranks than one domain can hold, with the default placement.
        let ranks = machine.topology().npu_count() / 2 + 1;
        let world = build_job_from_rank_nodes(
            &vec![vec![build_collective(CollectiveKind::AllReduce, 1 << 20)]; ranks as usize],
            &[],
        );
        let racks = PlacedJob::new("racks", world, &[]);
        jobs.push(
            racks.restrict_to_keys_and_change_options("dimension/", |options| options.map = None),
        );
    }
    jobs
}

/// Returns kernels of every class that moves bytes, and small and large attention with one query
/// per sequence.
fn build_kernel_shape_job() -> Workload {
    let mut lines = Vec::new();
    for (class, _) in MemoryBoundKernelClass::ALL {
        lines.push(build_shaped_kernel(
            KernelShape::Moving(class),
            1 << 20,
            1 << 30,
        ));
    }
    for batch in [1, 512] {
        let (heads, kv_heads, keys, width) = (32, 8, 2048, 128);
        let shape = KernelShape::Attention {
            batch,
            heads,
            kv_heads,
            queries: 1,
            keys,
            width,
            causal: true,
            backward: false,
        };
        let flops = 4 * batch * heads * keys * width;
        lines.push(build_shaped_kernel(
            shape,
            flops,
            2 * batch * width * (2 * heads + 2 * kv_heads * keys),
        ));
    }
    build_job_from_rank_nodes(&[lines], &[])
}

/// Returns a kernel that runs longer than the host needs to launch a queue full of kernels, and then 1,500 short
/// kernels on the same stream.
fn build_full_launch_queue_job() -> Workload {
    let copy = |bytes| {
        build_shaped_kernel(KernelShape::Moving(MemoryBoundKernelClass::Copy), 0, bytes).on_lane(0)
    };
    let mut lines = vec![copy(1 << 40)];
    lines.extend((0..1500).map(|_| copy(1 << 10)));
    build_job_from_rank_nodes(&[lines], &[])
}

/// Buffer sizes for collectives among more members than were measured; at each size another protocol is the fastest.
const SIZES: [u64; 4] = [1 << 10, 1 << 16, 1 << 20, 1 << 28];

fn make_memory_node(store: bool, place: MemoryLocation<'static>, bytes: u64) -> TestTraceNode {
    build_node(Op::Memory {
        store,
        place,
        bytes,
        in_switch: false,
    })
}

/// Returns a job with these nodes on each rank: kernels in every format, bound by FLOPs and by
/// bytes; loads and stores; 40 concurrent kernels; a message to the next rank, and a message to the
/// rank half of the job away.
fn build_mixed_node_job(ranks: u32) -> Workload {
    let of_rank = |rank: u32| {
        let mut lines = Vec::new();
        for (flops, bytes) in [(1 << 40, 8), (8, 1 << 32)] {
            lines.extend(Dtype::ALL.map(|(dtype, _)| {
                build_node(Op::Compute {
                    flops,
                    bytes,
                    dtype: Some(dtype),
                })
            }));
        }
        for bytes in [1 << 10, 1 << 26] {
            lines.push(make_memory_node(false, MemoryLocation::Local, bytes));
            lines.push(make_memory_node(true, MemoryLocation::Local, bytes));
            lines.push(make_memory_node(false, MemoryLocation::Remote, bytes));
            lines.push(make_memory_node(true, MemoryLocation::Remote, bytes));
        }
        lines.extend((0..40).map(|lane| build_kernel(1000).on_lane(lane)));
        lines.extend((0..80).map(|lane| build_node(Op::Host).on_lane(lane).lasts(1000)));
        for bytes in [8, 1 << 24] {
            for distance in [1, ranks / 2] {
                if ranks > distance && distance > 0 {
                    lines.push(build_send((rank + distance) % ranks, bytes));
                    lines.push(build_receive((rank + ranks - distance) % ranks, bytes));
                }
            }
        }
        lines
    };
    build_job_from_rank_nodes(&(0..ranks).map(of_rank).collect::<Vec<_>>(), &[])
}

/// Returns collectives of every kind with these buffer sizes, among all ranks, the first two ranks
/// and the first four ranks.
fn build_collectives_job(ranks: u32, sizes: &[u64]) -> Workload {
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
                lines.push(build_collective(kind, bytes));
                for (name, members) in &groups {
                    if members.contains(&rank) && members.len() > 1 {
                        lines.push(build_collective(kind, bytes).group(name));
                    }
                }
            }
        }
        lines
    };
    build_job_from_rank_nodes(&(0..ranks).map(of_rank).collect::<Vec<_>>(), &groups)
}

/// Returns a step of a small GPT in two stages of two shards.
fn build_training_step(ranks: u32, dtype: Dtype) -> Workload {
    let mut plan = ParallelismPlan::new();
    (plan.tensor, plan.pipeline, plan.data) = (2, 2, ranks / 4);
    plan.batch = u64::from(ranks);
    if plan.data > 1 {
        plan.zero = ZeroStage::Optimizer;
    }
    plan.linears = (dtype != Dtype::Bf16).then_some(dtype);
    let source = PresetOrModelFileText::find_source("gpt2-small").unwrap();
    let text = source.text.replace("layers = 12", "layers = 2");
    let model = ModelWithDefinitionProperties::parse(&text, "small.toml", Some(64))
        .unwrap()
        .model;
    let pattern = WorkloadPattern::from(ModelAndParallelismPlan { model, plan });
    Job::generate_job(pattern).unwrap().into_workload()
}

/// Returns a report's results, without names, counts and warnings.
fn extract_report_results(report: &Report) -> Value {
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

/// Collects the value at each leaf of a document, by path. Lists of numbers and quantities count as
/// leaves.
fn collect_leaf_values_by_path(value: &Toml, path: &str, found: &mut Vec<String>) {
    let below = |key: &str| match path {
        "" => key.to_owned(),
        path => format!("{path}/{key}"),
    };
    match value {
        Toml::Table(table) => table
            .iter()
            .for_each(|(key, value)| collect_leaf_values_by_path(value, &below(key), found)),
        Toml::Array(items) if items.iter().all(Toml::is_table) => {
            let items = items.iter().enumerate();
            items.for_each(|(i, item)| {
                collect_leaf_values_by_path(item, &below(&i.to_string()), found)
            });
        }
        _ => found.push(path.to_owned()),
    }
}

fn find_value_at_path<'v>(value: &'v mut Toml, path: &str) -> &'v mut Toml {
    path.split('/').fold(value, |value, part| match value {
        Toml::Array(items) => &mut items[part.parse::<usize>().unwrap()],
        value => &mut value[part],
    })
}

/// Returns other values for a leaf: doubled and halved numbers, toggled flags, and other words.
fn list_other_values(value: &Toml) -> Vec<Toml> {
    let times = |factor: f64| scale_numbers_in_value(value, factor);
    match value {
        Toml::Boolean(flag) => vec![Toml::Boolean(!flag)],
        Toml::String(text) if !text.starts_with(|c: char| c.is_ascii_digit()) => {
            let words = WORDS.iter().filter(|word| *word != text);
            words.map(|word| Toml::String((*word).to_owned())).collect()
        }
        _ => vec![times(2.0), times(0.5)],
    }
}

/// Returns the numbers in `value` times `factor`.
fn scale_numbers_in_value(value: &Toml, factor: f64) -> Toml {
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
        Toml::Array(items) => Toml::Array(
            items
                .iter()
                .map(|item| scale_numbers_in_value(item, factor))
                .collect(),
        ),
        other => other.clone(),
    }
}

/// Returns a path without names and without indices of classes, dimensions and rows, so that the
/// same key has the same path on all machines.
fn generalize_key_path(path: &str) -> String {
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

/// Keys, each with `true` if it changed a result of some job.
#[derive(Debug, Default)]
struct TriedKeyEffects {
    keys: BTreeMap<String, bool>,
    refused: BTreeSet<String>,
    runs: u64,
}

/// The maximum number of similar tables, such as curves, whose keys are tried.
const MAX_ALIKE: usize = 2;

/// Tries every `stride`-th key whose path contains these parts, in the machine `text`, called `name`. If several tables
/// are similar, only the first ones are tried.
fn try_edits_of_machine_keys(
    (name, text): (&str, &str),
    parts: [&str; 2],
    stride: usize,
) -> TriedKeyEffects {
    let mut tried = TriedKeyEffects::default();
    let original = Machine::parse(text, name).unwrap();
    let root: Toml = Toml::Table(text.parse().unwrap());
    let mut paths = Vec::new();
    collect_leaf_values_by_path(&root, "", &mut paths);
    let mut alike: BTreeMap<String, usize> = BTreeMap::new();
    paths.retain(|path| {
        let count = alike.entry(generalize_key_path(path)).or_default();
        *count += 1;
        let is_named = path == "name" || path == "description";
        *count <= MAX_ALIKE
            && !is_named
            && parts
                .iter()
                .all(|part| generalize_key_path(path).contains(part))
    });
    if paths.is_empty() {
        return tried;
    }
    let jobs = build_coverage_jobs(&original);
    let before = jobs
        .iter()
        .map(|job| job.replay_and_note_ineffective_edits(&original, &[]));
    let before: Vec<_> = before
        .map(|report| Some(extract_report_results(&report?)))
        .collect();
    for path in paths.iter().step_by(stride) {
        let key = generalize_key_path(path);
        let value = find_value_at_path(&mut root.clone(), path).clone();
        let is_label = LABELS.iter().any(|(label, _)| *label == key);
        let most = if is_label { 1 } else { usize::MAX };
        for other in list_other_values(&value).into_iter().take(most) {
            if other == value {
                continue;
            }
            let mut edited = root.clone();
            *find_value_at_path(&mut edited, path) = other.clone();
            let text = toml::to_string(&edited).unwrap();
            let Ok(machine) = Machine::parse(&text, name) else {
                tried.refused.insert(key.clone());
                continue;
            };
            let edits = list_values_changed_from_machine_preset(&machine, &text, name, None);
            // Any change of one key is exactly one edit.
            assert_eq!(edits.len(), 1, "{name}: {path} = {other}: {edits:?}");
            let of_key = jobs.iter().zip(&before);
            for (job, before) in of_key.filter(|(job, _)| path.starts_with(job.keys)) {
                let acts = tried.keys.entry(key.clone()).or_default();
                let after = job.replay_and_note_ineffective_edits(&machine, &edits);
                tried.runs += 1;
                let of = format!("{name}, {}: {path} = {other}", job.name);
                match (&after, before) {
                    (Some(after), Some(before)) => {
                        let is_same = extract_report_results(after) == *before;
                        let named = &after.settings.without_effect;
                        assert_eq!(is_same, named.len() == 1, "{of}: {named:?}");
                        assert!(after.settings.unchecked.is_empty(), "{of}");
                        let has_reason = named.iter().all(|one| !one.reason.is_empty());
                        assert!(has_reason, "{of}: {named:?}");
                        *acts |= !is_same;
                    }
                    // The job can run on only one of the two machines.
                    (None, Some(_)) | (Some(_), None) => *acts = true,
                    (None, None) => {}
                }
            }
        }
    }
    tried
}

impl TriedKeyEffects {
    fn merge_effects(&mut self, other: Self) {
        for (key, acts) in other.keys {
            *self.keys.entry(key).or_default() |= acts;
        }
        self.refused.extend(other.refused);
        self.runs += other.runs;
    }
}

#[test]
fn an_edited_machine_key_changes_results_or_is_reported() {
    let mut tried = TriedKeyEffects::default();
    for (name, stride) in [("dgx-h100x2", 9), ("hiermem", 7)] {
        tried.merge_effects(try_edits_of_machine_keys(
            (name, &read_preset_text(name).unwrap()),
            ["", ""],
            stride,
        ));
    }
    assert!(tried.runs > 50, "{}", tried.runs);
}

/// Returns the machines whose keys are tried, each with a text that key paths must contain. The machines are all
/// presets, with the outermost dimension doubled where the name allows it, and a wafer that states the default of
/// `dram/around`, for this key alone.
fn list_tried_machines() -> Vec<(String, String, &'static str)> {
    let mut machines: Vec<_> = (PRESETS.iter())
        .map(|preset| {
            let two = format!("{}x2", preset.name);
            match read_preset_text(&two) {
                Ok(text) => (two, text.into_owned(), ""),
                Err(_) => (
                    preset.name.to_owned(),
                    read_preset_text(preset.name).unwrap().into_owned(),
                    "",
                ),
            }
        })
        .collect();
    let wafer = read_preset_text("wafer-5x4").unwrap();
    let around = wafer.replacen("\nleft =", "\naround = \"die\"\nleft =", 1);
    machines.push(("wafer-5x4".to_owned(), around, "dram/around"));
    machines
}

/// Tries every key of every preset, which takes some minutes. To run it:
/// `cargo test --release --test it -- --ignored every_key`. `CHAKRAM_KEYS` restricts the test to
/// paths that contain its value, such as `host/queue`.
#[test]
#[ignore = "takes minutes"]
fn every_key_of_every_preset_changes_results_or_is_reported() {
    let part = std::env::var("CHAKRAM_KEYS").unwrap_or_default();
    let tried = Mutex::new(TriedKeyEffects::default());
    let left = Mutex::new(list_tried_machines().into_iter());
    let work = || {
        loop {
            let next = left.lock().unwrap().next();
            let Some((name, text, own)) = next else { break };
            let found = try_edits_of_machine_keys((&name, &text), [&part, own], 1);
            eprintln!("{name}: {} keys, {} runs", found.keys.len(), found.runs);
            tried.lock().unwrap().merge_effects(found);
        }
    };
    thread::scope(|scope| {
        let workers = thread::available_parallelism().map_or(1, usize::from);
        (0..workers).for_each(|_| drop(scope.spawn(work)));
    });
    let tried = tried.into_inner().unwrap();
    eprintln!("{} keys, {} runs", tried.keys.len(), tried.runs);
    assert!(tried.runs > 0, "no key has {part:?}");
    for (label, reason) in LABELS {
        let acts = tried.keys.get(label);
        assert_ne!(acts, Some(&true), "{label} is no label: {reason}");
    }
    for (fixed, reason) in FIXED {
        assert!(
            !tried.keys.contains_key(fixed),
            "{fixed} is taken: {reason}"
        );
    }
    let is_label = |key: &str| LABELS.iter().any(|(label, _)| *label == key);
    let dead: Vec<&String> = (tried.keys.iter())
        .filter_map(|(key, acts)| (!acts && !is_label(key)).then_some(key))
        .collect();
    assert!(dead.is_empty(), "keys that change nothing: {dead:#?}");
    let is_fixed = |key: &str| FIXED.iter().any(|(fixed, _)| *fixed == key);
    let refused = tried.refused.iter();
    let refused: Vec<_> = refused
        .filter(|key| !tried.keys.contains_key(*key) && !is_fixed(key))
        .collect();
    assert!(
        refused.is_empty(),
        "keys of which no other value is accepted: {refused:#?}"
    );
}
