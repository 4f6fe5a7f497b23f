//! Measures the rates and the memory of loading, replay and conversion. To run it:
//! `cargo bench --bench limits`.
//!
//! Each line is the best of five runs. For comparison between machines, two more lines time a copy of the same bytes,
//! and a scan that reads only their frames. If the variable `CHAKRAM_CORPUS` names a folder, the bench also loads
//! `captures/gpu/chakra_json/chakra.0.et.zst` from it.

mod conversion;
mod counting;

use chakram::engine::{CompiledReplay, InstanceId, ReplayOptions};
use chakram::generate::{
    CheckedWorkloadPattern, DataParallelTrainingJobParameters, ParallelKernelChainsPattern,
    WorkloadPattern,
};
use chakram::ids::NodeIndex;
use chakram::internals::FrameCursor;
use chakram::internals::proto::attribute_proto::Value;
use chakram::internals::proto::{AttributeProto, IoInfo, Node};
use chakram::machine::Machine;
use chakram::report::{CollectiveRecord, Observer};
use chakram::trace::{DecompressedTraceFile, TraceWriter};
use chakram::units::Time;
use chakram::workload::{EnforcedDependencyKinds, Graph, NodeKind, Workload};
use counting::{held_and_peak_bytes_since, reset_peak_to_held_bytes};
use prost::Message;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

struct NoopObserver;

impl Observer for NoopObserver {
    fn on_issued(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}
    fn on_completed(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}
    fn on_collective_ended(&mut self, _: &CollectiveRecord) {}
}

const RUNS: usize = 5;

fn measure_best_time<T>(mut run: impl FnMut() -> T) -> Duration {
    let once = |_| {
        let start = Instant::now();
        black_box(run());
        start.elapsed()
    };
    (0..RUNS).map(once).min().expect("there are runs")
}

/// Returns the amount per second, in multiples of `unit`.
fn compute_rate_per_second(amount: f64, time: Duration, unit: f64) -> f64 {
    amount / time.as_secs_f64() / unit
}

/// Creates a data-parallel trace. Its nodes carry the arguments and the provenance of captured nodes, a little more
/// than 300 bytes per node. As in captures, names repeat from step to step, unless `distinct` is `true`.
fn encode_captured_like_trace(nodes: u32, distinct: bool) -> Vec<u8> {
    let job = CheckedWorkloadPattern::new(WorkloadPattern::DataParallel(
        DataParallelTrainingJobParameters::defaults_with_at_least_nodes(8, nodes),
    ));
    let mut writer = TraceWriter::new(Vec::new()).expect("a vector takes it");
    job.expect("the defaults make sense")
        .emit_nodes(0, &mut writer)
        .expect("a vector takes it");
    let plain = writer.into_unflushed_sink();
    let mut frames = FrameCursor::new(&plain);
    let mut file = Vec::new();
    while let Some(record) = frames.next_record().expect("it was just written") {
        if record.number == 0 {
            prost::encoding::encode_varint(record.bytes.len() as u64, &mut file);
            file.extend_from_slice(record.bytes);
            continue;
        }
        let mut node = Node::decode(record.bytes).expect("it was just written");
        if !distinct && let Some((_, rest)) = node.name.split_once('/') {
            node.name = rest.to_owned();
        }
        let io = |first: u64| IoInfo {
            values: format!("[[{first}, {}, 0, 16777216, 2, 'cuda:0']]", first + 1),
            shapes: "[[4096, 4096]]".to_owned(),
            types: "['Tensor(c10::BFloat16)']".to_owned(),
        };
        node.inputs = Some(io(node.id * 2));
        node.outputs = Some(io(node.id * 2 + 2));
        for (name, number) in [
            ("rf_id", node.id),
            ("seq_id", node.id / 2),
            ("fw_parent", 0),
        ] {
            node.attr.push(AttributeProto {
                name: name.to_owned(),
                value: Some(Value::Int64Val(number as i64)),
                ..AttributeProto::default()
            });
        }
        // As in captures, a kernel also depends on the nodes just before it.
        let more = (node.id.saturating_sub(3)..node.id).filter(|id| *id > 0);
        node.data_deps.extend(more);
        node.data_deps.sort_unstable();
        node.data_deps.dedup();
        node.encode_length_delimited(&mut file)
            .expect("a vector takes it");
    }
    file
}

/// Loads `file`, and returns how long that took.
fn measure_trace_load_time(label: &str, file: &[u8]) -> Duration {
    let read = || {
        Graph::read_graph(file, 0, EnforcedDependencyKinds::Auto)
            .expect("it is a trace")
            .0
    };
    let graph = read();
    let mut copy = vec![0_u8; file.len()];
    let copying = measure_best_time(|| {
        copy.copy_from_slice(black_box(file));
        copy[copy.len() / 2]
    });
    let scanning = measure_best_time(|| {
        let mut frames = FrameCursor::new(file);
        let next = || frames.next_record().expect("it is a trace");
        std::iter::from_fn(next).count()
    });
    let time = measure_best_time(read);
    let (nodes, edges) = (graph.len() as f64, graph.edge_count() as f64);
    let repaired = graph.repair_counts();
    println!(
        "{label:28}{:>9}{:>8.0}{:>7.1}{:>9.2}{:>10.2}{:>10.1}{:>9.1}{:>9.0}",
        graph.len(),
        file.len() as f64 / nodes,
        edges / nodes,
        compute_rate_per_second(file.len() as f64, time, 1e9),
        compute_rate_per_second(nodes, time, 1e6),
        compute_rate_per_second(edges + repaired.duplicates as f64, time, 1e6),
        time.as_secs_f64() / copying.as_secs_f64(),
        time.as_secs_f64() / scanning.as_secs_f64(),
    );
    time
}

fn build_workload_from_pattern(pattern: WorkloadPattern) -> Workload {
    let job = CheckedWorkloadPattern::new(pattern).expect("the options make sense");
    job.build_workload().expect("a job is a workload")
}

/// Replays `workload`, and returns how long the replay took, without the preparation.
fn measure_replay_time(label: &str, workload: &Workload) -> Duration {
    let machine = Machine::load_preset("dgx-h100").expect("it is a preset");
    let options = ReplayOptions::default();
    let prepare = || CompiledReplay::new(workload, &machine, &options).expect("it fits");
    let preparing = measure_best_time(prepare);
    let prepared = prepare();
    let time = measure_best_time(|| prepared.run(NoopObserver).map(|(outcome, _)| outcome));
    let nodes = workload.node_count() as f64;
    println!(
        "{label:28}{:>9}{:>9.2}{:>12.2}",
        workload.node_count(),
        compute_rate_per_second(nodes, time, 1e6),
        compute_rate_per_second(nodes, preparing + time, 1e6),
    );
    time
}

/// Measures the memory that one rank of `pattern` needs, from the creation of its graph to the end of its replay.
fn measure_rank_memory(label: &str, pattern: WorkloadPattern) {
    let machine = Machine::load_preset("dgx-h100").expect("it is a preset");
    let before = reset_peak_to_held_bytes();
    let workload = build_workload_from_pattern(pattern);
    let (graph_held, building) = held_and_peak_bytes_since(before);
    let graph = &workload.distinct_graphs()[0];
    let (nodes, edges) = (graph.len() as f64, graph.edge_count() as f64);
    let names: usize = (0..graph.names().len() as u32)
        .map(|i| graph.names().get(i).len() + 4)
        .sum();
    reset_peak_to_held_bytes();
    let prepared =
        CompiledReplay::new(&workload, &machine, &ReplayOptions::default()).expect("it fits");
    let run = prepared.run(NoopObserver).expect("it ends");
    let (_, running) = held_and_peak_bytes_since(before);
    black_box(run);
    let per_node = |bytes: f64| (bytes - 4.0 * edges) / nodes;
    println!(
        "{label:28}{:>9}{:>7.1}{:>10.1}{:>10.1}{:>10.1}{:>10.1}{:>10.1}",
        graph.len(),
        edges / nodes,
        per_node(graph.heap_bytes() as f64),
        names as f64 / nodes,
        per_node(graph_held),
        per_node(building),
        per_node(running),
    );
}

fn print_time_growth(label: &str, small: Duration, large: Duration) {
    let ratio = large.as_secs_f64() / small.as_secs_f64();
    println!("{label:28}{ratio:>9.1} times the time for 10 times the nodes");
}

fn main() {
    // `cargo bench --bench limits -- load` runs only the part with this name.
    let asked: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let wanted = |part: &str| asked.is_empty() || asked.iter().any(|a| a == part);
    if wanted("load") {
        measure_all_trace_loads();
    }
    if wanted("replay") {
        measure_all_replays();
    }
    if wanted("convert") {
        conversion::measure_all_conversions();
    }
    if wanted("memory") {
        println!("\nbytes per node beside 4 per edge, 1 rank; names are part of what is held");
        println!(
            "                                nodes  edges     graph     names      held  building   running"
        );
        measure_rank_memory("chain", build_chain_pattern(1, 1_000_000));
        measure_rank_memory("data parallel", build_data_parallel_pattern(1, 1_000_000));
    }
}

fn build_chain_pattern(ranks: u32, nodes: u32) -> WorkloadPattern {
    WorkloadPattern::Chain(ParallelKernelChainsPattern::new(ranks, nodes))
}

fn build_data_parallel_pattern(ranks: u32, nodes: u32) -> WorkloadPattern {
    WorkloadPattern::DataParallel(
        DataParallelTrainingJobParameters::defaults_with_at_least_nodes(ranks, nodes),
    )
}

fn measure_all_trace_loads() {
    println!(
        "load                            nodes  B/node  edges     GB/s   Mnodes/s  Medges/s    /copy  /frames"
    );
    let small = measure_trace_load_time(
        "data parallel, captured",
        &encode_captured_like_trace(100_000, false),
    );
    let large = measure_trace_load_time(
        "data parallel, captured",
        &encode_captured_like_trace(1_000_000, false),
    );
    print_time_growth("  growth", small, large);
    let small = measure_trace_load_time(
        "  all names distinct",
        &encode_captured_like_trace(100_000, true),
    );
    let large = measure_trace_load_time(
        "  all names distinct",
        &encode_captured_like_trace(1_000_000, true),
    );
    print_time_growth("  growth", small, large);
    if let Some(corpus) = std::env::var_os("CHAKRAM_CORPUS") {
        let file = Path::new(&corpus).join("captures/gpu/chakra_json/chakra.0.et.zst");
        measure_trace_load_time(
            "PyTorch, chakra.0.et",
            DecompressedTraceFile::open_as_current_schema(&file)
                .expect("it is there")
                .as_slice(),
        );
    }
}

fn measure_all_replays() {
    println!("\nreplay, 8 ranks                 nodes  Mnodes/s  and prepare");
    let small = measure_replay_time(
        "chain",
        &build_workload_from_pattern(build_chain_pattern(8, 100_000)),
    );
    let large = measure_replay_time(
        "chain",
        &build_workload_from_pattern(build_chain_pattern(8, 1_000_000)),
    );
    print_time_growth("  growth", small, large);
    let small = measure_replay_time(
        "data parallel",
        &build_workload_from_pattern(build_data_parallel_pattern(8, 100_000)),
    );
    let large = measure_replay_time(
        "data parallel",
        &build_workload_from_pattern(build_data_parallel_pattern(8, 1_000_000)),
    );
    print_time_growth("  growth", small, large);
}
