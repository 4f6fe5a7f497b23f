//! Reads a case from its files.

use super::algorithms::NativeAlgorithmWithOneRingFlag;
use super::config::{
    CollectiveOperation, CustomAlgorithm, DimensionTopology, LogGpBusParameters, MemoryConfig,
    MemoryServerAssignment, NetworkDimension, NetworkModel, PriorityPolicy, SystemConfig,
    WholeSimulationInput,
};
use super::trace;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Kinds of collectives, each with its key in system files.
pub const KEYS: [(CollectiveOperation, &str); 4] = [
    (CollectiveOperation::AllReduce, "all-reduce-implementation"),
    (CollectiveOperation::AllGather, "all-gather-implementation"),
    (
        CollectiveOperation::ReduceScatter,
        "reduce-scatter-implementation",
    ),
    (CollectiveOperation::AllToAll, "all-to-all-implementation"),
];

/// Function that returns the contents of the file at a path, or `None` if there is no such file.
pub type FileLoader<'f> = dyn Fn(&str) -> Option<Vec<u8>> + 'f;

/// Loads a case from a folder.
pub fn load_case(folder: &Path) -> WholeSimulationInput {
    parse_case_files(&|file| std::fs::read(folder.join(file)).ok())
}

/// Parses a case from its files.
pub fn parse_case_files(files: &FileLoader<'_>) -> WholeSimulationInput {
    let text = |file: &str| -> Option<String> { String::from_utf8(files(file)?).ok() };
    let json = |file: &str| -> Option<Value> { serde_json::from_str(&text(file)?).ok() };
    let args = text("args.txt").unwrap_or_default();
    let arg = |name: &str| {
        let mut words = args.split_whitespace();
        words.find_map(|w| w.strip_prefix("--")?.strip_prefix(name)?.strip_prefix('='))
    };
    let dims = parse_network_dimensions(&text("network.yml").expect("a network"));
    let npus: usize = dims.iter().map(|d| d.n).product();
    let groups = match arg("comm-group-configuration") {
        Some(file) if !file.contains("empty") => parse_groups(&json(file).expect("groups")),
        _ => BTreeMap::new(),
    };
    let traces = |prefix: &str, n: usize| -> CustomAlgorithm {
        let file = |rank| files(&format!("{prefix}.{rank}.et")).unwrap_or_default();
        (0..n).map(|rank| trace::read_nodes(&file(rank))).collect()
    };
    let number = |name: &str, default: f64| match arg(name) {
        Some(text) => text.parse().expect("a number"),
        None => default,
    };
    WholeSimulationInput {
        network: match args.starts_with("aware") {
            true => NetworkModel::Aware,
            false => NetworkModel::Unaware,
        },
        dims,
        system: parse_system(&json("system.json").expect("a system"), &|p| {
            traces(p, npus)
        }),
        memory: parse_memory(&json("memory.json").expect("a memory")),
        groups,
        rendezvous: arg("rendezvous-protocol").is_some_and(|v| v == "true" || v == "1"),
        injection_scale: number("injection-scale", 1.0),
        queues_per_dim: number("num-queues-per-dim", 1.0) as usize,
        ranks: traces("wl/wl", npus),
    }
}

fn parse_network_dimensions(text: &str) -> Vec<NetworkDimension> {
    let list = |key: &str| -> Vec<String> {
        let line = text.lines().find_map(|l| l.strip_prefix(key));
        let line = line
            .and_then(|l| l.split(['[', ']']).nth(1))
            .expect("a list");
        line.split(',').map(|word| word.trim().to_owned()).collect()
    };
    let (sizes, bws, lats) = (list("npus_count:"), list("bandwidth:"), list("latency:"));
    let shape = |name: &String| match name.as_str() {
        "Ring" => DimensionTopology::Ring,
        "Switch" => DimensionTopology::Switch,
        _ => DimensionTopology::FullyConnected,
    };
    let dim = |(i, name): (usize, &String)| NetworkDimension {
        shape: shape(name),
        n: sizes[i].parse().expect("a size"),
        bw: bws[i].parse().expect("a bandwidth"),
        lat: lats[i].parse().expect("a latency"),
    };
    list("topology:").iter().enumerate().map(dim).collect()
}

fn parse_groups(json: &Value) -> BTreeMap<u64, Vec<usize>> {
    let member = |npu: &Value| npu.as_u64().expect("a rank") as usize;
    let group = |(name, list): (&String, &Value)| {
        let list = list.as_array().expect("members").iter().map(member);
        (name.parse().expect("a number"), list.collect())
    };
    json.as_object()
        .expect("groups")
        .iter()
        .map(group)
        .collect()
}

fn parse_system(json: &Value, traces: &dyn Fn(&str) -> CustomAlgorithm) -> SystemConfig {
    let float = |key: &str| json[key].as_f64().unwrap_or(0.0);
    let flag = |key: &str| float(key) != 0.0;
    let whole = |key: &str| float(key) as u64;
    let names = |key: &str| -> Option<Vec<String>> {
        let name = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        Some(json.get(key)?.as_array()?.iter().map(name).collect())
    };
    let algorithm =
        |name: &String| NativeAlgorithmWithOneRingFlag::parse(name).expect("an algorithm");
    let native = |&(kind, key): &(CollectiveOperation, &str)| {
        Some((kind, names(key)?.iter().map(algorithm).collect()))
    };
    let custom = |&(kind, key): &(CollectiveOperation, &str)| {
        let prefix = names(&format!("{key}-custom"))?;
        Some((kind, traces(&prefix[0])))
    };
    SystemConfig {
        policy: match json["scheduling-policy"].as_str() {
            Some("FIFO") => PriorityPolicy::Fifo,
            Some("EXPLICIT") => PriorityPolicy::Explicit,
            _ => PriorityPolicy::Lifo,
        },
        local_bw_aware: json["collective-optimization"] == "localBWAware",
        endpoint_delay: json["endpoint-delay"].as_u64(),
        active_chunks: json["active-chunks-per-dimension"].as_u64().unwrap_or(1),
        splits: whole("preferred-dataset-splits"),
        algorithms: KEYS.iter().filter_map(native).collect(),
        custom: KEYS.iter().filter_map(custom).collect(),
        custom_nodes: BTreeMap::new(),
        local_mem_bw: float("local-mem-bw"),
        peak_perf: float("peak-perf"),
        roofline: flag("roofline-enabled"),
        replay_only: flag("replay-only"),
        bus: flag("model-shared-bus").then(|| LogGpBusParameters {
            l: whole("L"),
            o: whole("o"),
            g: whole("g"),
            gap_per_byte: float("G"),
        }),
        reduction_delay: json["local-reduction-delay"].as_u64().unwrap_or(1),
    }
}

fn parse_memory(json: &Value) -> MemoryConfig {
    let whole = |key: &str| json[key].as_f64().unwrap_or(0.0) as u64;
    MemoryConfig {
        attachment: match json["memory-type"].as_str() {
            Some("PER_NPU_MEMORY_EXPANSION") => MemoryServerAssignment::PerNpu,
            Some("MEMORY_POOL") => MemoryServerAssignment::Pool,
            Some("PER_NODE_MEMORY_EXPANSION") => {
                MemoryServerAssignment::PerNode(whole("num-npus-per-node") as usize)
            }
            _ => MemoryServerAssignment::None,
        },
        latency: whole("remote-mem-latency"),
        bw: whole("remote-mem-bw"),
    }
}
