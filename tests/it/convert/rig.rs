//! Captures generated jobs, converts the captures, and reads the traces with an independent reader.

use crate::commands;
use chakram::convert::{
    self, ConversionSummary, ConvertOptions as Conversion, OutputsAndProtectedInputs,
};
use chakram::engine::{
    CommunicationDurationSource, CompiledReplay, InstanceId, ReplayOptions as Replaying,
};
use chakram::ids::{NodeIndex, Rank};
use chakram::internals::proto::attribute_proto::Value;
use chakram::internals::proto::{AttributeProto, GlobalMetadata, Node};
use chakram::machine::{
    CollectiveAlgorithm, DimensionAlgorithmChoice, LocalMemory, Machine, NpuClass,
    PeakRatesByFormat,
};
use chakram::report::{CollectiveRecord, Observer};
use chakram::topology::{DimensionShape, Topology, TopologyDimension};
use chakram::trace::{DecompressedTraceFile, TraceError};
use chakram::units::{Bandwidth, Bytes, Span, Time};
use chakram::workload::{
    EnforcedDependencyKinds, Graph, MissingRankPolicy, NodeKind, WorkloadBuilder,
};
use prost::Message;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use testkit::capture::{JobTrueTimes, Options, generate_capture};

/// The capture files of a generated job.
pub struct JobCaptureFiles {
    pub folder: TempDir,
    pub truth: JobTrueTimes,
}

pub fn write_generated_capture(options: &Options) -> JobCaptureFiles {
    let folder = tempfile::tempdir().unwrap();
    let made = generate_capture(options).unwrap();
    made.write_files(folder.path()).unwrap();
    JobCaptureFiles {
        truth: made.compute_truth(),
        folder,
    }
}

/// One rank's trace, in the types generated from the schema.
#[derive(Clone, Debug, PartialEq)]
pub struct SchemaRankTrace {
    pub rank: u32,
    pub metadata: GlobalMetadata,
    pub nodes: Vec<Node>,
}

/// The result of a conversion with the program.
pub struct ConversionResult {
    pub summary: ConversionSummary,
    pub traces: Vec<SchemaRankTrace>,
}

pub fn try_convert(
    paths: &[PathBuf],
    options: &Conversion,
) -> Result<ConversionResult, TraceError> {
    let out = tempfile::tempdir().unwrap();
    let path = |rank: u32| out.path().join(format!("job.{rank}.et"));
    let pairs = convert::find_capture_pairs(paths)?.pairs;
    let mut outputs = OutputsAndProtectedInputs::default();
    let result = convert::convert_capture_pairs(&pairs, options, &path, &mut outputs, &|_, _| {});
    let result = result.and_then(|(summary, _)| outputs.commit_all().map(|()| summary));
    if result.is_err() {
        let left = std::fs::read_dir(out.path()).unwrap().count();
        assert_eq!(left, 0, "nothing appears unless all ranks convert");
    }
    let summary = result?;
    let traces = summary.ranks.iter();
    let traces = traces.map(|of| decode_rank_trace(of.rank, &std::fs::read(&of.path).unwrap()));
    Ok(ConversionResult {
        traces: traces.collect(),
        summary,
    })
}

pub fn convert_folder(folder: &Path) -> ConversionResult {
    try_convert(&[folder.to_owned()], &Conversion::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn decode_rank_trace(rank: u32, mut bytes: &[u8]) -> SchemaRankTrace {
    let metadata = GlobalMetadata::decode_length_delimited(&mut bytes).unwrap();
    let mut nodes = Vec::new();
    while !bytes.is_empty() {
        nodes.push(Node::decode_length_delimited(&mut bytes).unwrap());
    }
    SchemaRankTrace {
        rank,
        metadata,
        nodes,
    }
}

/// Kind of a node, by its number in the schema.
pub const SEND: i32 = 5;
pub const RECEIVE: i32 = 6;
pub const COLLECTIVE: i32 = 7;

/// Returns the value of an attribute of any integer type.
fn find_integer_value(list: &[AttributeProto], name: &str) -> Option<i64> {
    let attribute = list.iter().find(|a| a.name == name)?;
    Some(match attribute.value.as_ref()? {
        Value::Uint64Val(v) => *v as i64,
        Value::Int64Val(v) => *v,
        Value::Uint32Val(v) => i64::from(*v),
        Value::Int32Val(v) => i64::from(*v),
        Value::BoolVal(v) => i64::from(*v),
        other => panic!("{name} is {other:?}"),
    })
}

pub fn find_integer_attribute(node: &Node, name: &str) -> Option<i64> {
    find_integer_value(&node.attr, name)
}

pub fn find_text_attribute<'n>(node: &'n Node, name: &str) -> Option<&'n str> {
    let attribute = node.attr.iter().find(|a| a.name == name)?;
    match attribute.value.as_ref()? {
        Value::StringVal(text) => Some(text),
        _ => None,
    }
}

/// Sets an integer attribute, adding it if it is missing.
pub fn set_integer_attribute(node: &mut Node, name: &str, value: u64) {
    node.attr.retain(|a| a.name != name);
    node.attr.push(AttributeProto {
        name: name.to_owned(),
        value: Some(Value::Uint64Val(value)),
        ..AttributeProto::default()
    });
}

fn read_time_attribute(node: &Node, name: &str) -> u64 {
    find_integer_attribute(node, name)
        .unwrap_or(0)
        .try_into()
        .unwrap()
}

pub fn read_delay_ns(node: &Node) -> u64 {
    read_time_attribute(node, "delay_ns")
}

pub fn read_wait_ns(node: &Node) -> u64 {
    read_time_attribute(node, "wait_ns")
}

/// Returns the duration of a node, in ns.
pub fn read_duration_ns(node: &Node) -> u64 {
    find_integer_attribute(node, "duration_ns").map_or(node.duration_micros * 1000, |ns| ns as u64)
}

pub fn set_duration_ns(node: &mut Node, ns: u64) {
    node.duration_micros = ns / 1000;
    set_integer_attribute(node, "duration_ns", ns);
}

pub fn on_host(node: &Node) -> bool {
    find_integer_attribute(node, "is_cpu_op") == Some(1)
}

pub fn has_eager_attribute(node: &Node) -> bool {
    find_integer_attribute(node, "eager") == Some(1)
}

/// Returns the lane of a node: the thread of a host node, or the stream of another node.
pub fn thread_or_stream_of_node(node: &Node) -> i64 {
    let stream = find_integer_attribute(node, "stream").filter(|_| !on_host(node));
    stream
        .or_else(|| find_integer_attribute(node, "tid"))
        .unwrap_or(-1)
}

/// Returns all dependencies of a node.
pub fn list_node_dependency_ids(node: &Node) -> impl Iterator<Item = u64> + '_ {
    node.data_deps.iter().chain(&node.ctrl_deps).copied()
}

impl SchemaRankTrace {
    pub fn captured_ns(&self) -> u64 {
        find_integer_value(&self.metadata.attr, "captured_ns").unwrap() as u64
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.metadata.encode_length_delimited(&mut bytes).unwrap();
        for node in &self.nodes {
            node.encode_length_delimited(&mut bytes).unwrap();
        }
        bytes
    }
}

/// Start and end of each node of each rank in a replay, in ps.
#[derive(Debug, Default)]
pub struct ReplayTimesOfAllNodes(pub Vec<Vec<(u64, u64)>>);

impl ReplayTimesOfAllNodes {
    fn times_of_node_mut(&mut self, instance: InstanceId, node: NodeIndex) -> &mut (u64, u64) {
        let (i, n) = (instance.index(), node.0 as usize);
        self.0.resize(self.0.len().max(i + 1), Vec::new());
        let list = &mut self.0[i];
        list.resize(list.len().max(n + 1), (u64::MAX, u64::MAX));
        &mut list[n]
    }
}

impl Observer for ReplayTimesOfAllNodes {
    fn on_issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, _: NodeKind) {
        self.times_of_node_mut(instance, node).0 = now.0;
    }
    fn on_completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, _: NodeKind) {
        self.times_of_node_mut(instance, node).1 = now.0;
    }
    fn on_collective_ended(&mut self, _: &CollectiveRecord) {}
}

impl ReplayTimesOfAllNodes {
    /// Returns the end of the last node of each rank, in ns.
    pub fn last_node_end_of_each_rank_ns(&self) -> Vec<u64> {
        let ends = self.0.iter().map(|l| l.iter().map(|n| n.1).max().unwrap());
        ends.map(|ps| ps / 1000).collect()
    }
}

/// Returns a switch with more lanes than any test needs.
fn build_switch_machine(ranks: u32) -> Machine {
    let class = NpuClass {
        name: "npu".to_owned(),
        peaks: PeakRatesByFormat::default(),
        curves: Default::default(),
        memory: Some(LocalMemory {
            bandwidth: Bandwidth::new(1e12).unwrap(),
            latency: Some(Span::ZERO),
            capacity: Some(Bytes(1 << 40)),
        }),
        lanes: 1 << 12,
        host_lanes: 1 << 12,
        slowdown: 1.0,
    };
    let dimension = TopologyDimension {
        name: "d".to_owned(),
        shape: DimensionShape::Switch,
        size: ranks.max(2),
        bandwidth: Bandwidth::new(50e9).unwrap(),
        latency: Span::from_ns(500),
    };
    let topology = Topology::new(vec![dimension]).unwrap();
    Machine::create_with_one_npu_class(
        "rig".to_owned(),
        topology,
        vec![DimensionAlgorithmChoice::Named(CollectiveAlgorithm::Ring)],
        class,
        None,
    )
    .unwrap()
}

/// Replays traces. Rank r starts at `late(r)` ns.
pub fn replay_traces(
    traces: &[SchemaRankTrace],
    comm: CommunicationDurationSource,
    late: impl Fn(u32) -> u64,
    absent: MissingRankPolicy,
) -> ReplayTimesOfAllNodes {
    let mut builder = WorkloadBuilder::default();
    for trace in traces {
        let (graph, binding) =
            Graph::read_graph(&trace.bytes(), trace.rank, EnforcedDependencyKinds::Both).unwrap();
        let graph = builder.add_or_reuse_equal_graph(graph);
        let at = Time(late(trace.rank) * 1000);
        builder
            .add_rank(Rank(trace.rank), graph, binding, at)
            .unwrap();
    }
    let ranks = builder.min_rank_count();
    let workload = builder.finish_workload(Some(ranks), absent).unwrap();
    let options = Replaying::default_with_changes(|o| {
        o.comm = comm;
        o.missing_ranks = absent;
    });
    let machine = build_switch_machine(ranks);
    let prepared = CompiledReplay::new(&workload, &machine, &options).unwrap();
    prepared
        .run(ReplayTimesOfAllNodes::default())
        .unwrap_or_else(|e| panic!("{e}"))
        .1
}

/// Returns the JSON of a file, which may be compressed.
pub fn read_json_file(path: &Path) -> Option<serde_json::Value> {
    serde_json::from_slice(
        DecompressedTraceFile::decompress_file_without_converting(path)
            .unwrap()
            .as_slice(),
    )
    .ok()
}

/// Runs the program, checks that it succeeds, and returns its output.
pub fn run_program(args: &[&str]) -> String {
    let output = commands::run_chakram(args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {error}");
    String::from_utf8(output.stdout).expect("it is text")
}

/// Converts `capture` with the program, and returns the folder with the traces.
pub fn convert_files(capture: &Path) -> TempDir {
    let out = tempfile::tempdir().expect("there is room");
    let prefix = out.path().join("job").display().to_string();
    let capture = capture.display().to_string();
    run_program(&["convert", "pytorch", &capture, "-o", &prefix]);
    out
}

/// Returns the report of a replay of the traces in `job`.
pub fn replay_files(job: &Path, options: &[&str]) -> serde_json::Value {
    let job = job.display().to_string();
    let replay = ["replay", &job, "--format", "json"];
    serde_json::from_str(&run_program(&[&replay[..], options].concat())).expect("it is JSON")
}
