//! Defines short notations for machines and jobs, and a log of a replay's notifications.

use super::lines::TestTraceNode;
use chakram::engine::{
    CommunicationDurationSource, CompiledReplay, CompletedReplayTotals, InstanceId, NetworkModel,
    ReplayOptions,
};
use chakram::ids::{NodeIndex, Rank};
use chakram::machine::{
    ChunkCountOrderAndOverlap, CollectiveAlgorithm, DimensionAlgorithmChoice, DimensionVisitOrder,
    LocalMemory, Machine, NpuClass, PeakRatesByFormat, WaitingChunkPriority,
};
use chakram::report::{CollectiveRecord, Observer};
use chakram::topology::{DimensionShape, SwitchingMode, Topology, TopologyDimension};
use chakram::trace::{AllToAllSplitText, NodeView, Sink, TraceWriter};
use chakram::units::{Bandwidth, Bytes, Span, Time};
use chakram::workload::{
    EnforcedDependencyKinds, Graph, MissingRankPolicy, NodeKind, Workload, WorkloadBuilder,
    WorkloadError,
};
use proptest::test_runner::{Config as ProptestConfig, RngSeed};
use std::num::NonZeroU32;

/// A dimension whose numbers make every time exact. `ps_per_byte` is an NPU's time for a byte over
/// all its links, and divides 10^12.
#[derive(Clone, Copy, Debug)]
pub struct Dim {
    pub shape: DimensionShape,
    pub size: u32,
    pub ps_per_byte: u64,
    pub link_ns: u64,
    pub algorithm: CollectiveAlgorithm,
}

impl Dim {
    /// Returns the number of links that share an NPU's bandwidth: two if it has a neighbour on each
    /// side.
    fn links_per_npu(&self) -> u64 {
        match self.shape {
            DimensionShape::Ring | DimensionShape::Mesh if self.size > 2 => 2,
            _ => 1,
        }
    }

    /// Returns the time that one link takes for a byte.
    pub fn link_ps_per_byte(&self) -> u64 {
        self.ps_per_byte * self.links_per_npu()
    }

    /// Gives each link the bandwidth stated for the NPU.
    pub fn with_npu_bandwidth_per_link(self) -> Self {
        let ps_per_byte = self.ps_per_byte / self.links_per_npu();
        assert_eq!(
            self.ps_per_byte,
            ps_per_byte * self.links_per_npu(),
            "a link's half is whole"
        );
        Self {
            ps_per_byte,
            ..self
        }
    }
}

/// Returns a dimension with 20 ps per byte, which is 50 GB/s, and 500 ns per link.
pub fn make_dim_with_fixed_link_speed(
    shape: DimensionShape,
    size: u32,
    algorithm: CollectiveAlgorithm,
) -> Dim {
    Dim {
        shape,
        size,
        ps_per_byte: 20,
        link_ns: 500,
        algorithm,
    }
}

/// Returns settings for `count` random cases from a fixed seed.
pub fn make_proptest_config(count: u32) -> ProptestConfig {
    ProptestConfig {
        cases: count,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    }
}

/// Returns a machine with these dimensions, whose NPUs have more lanes than any test needs.
pub fn build_machine_from_dims(dims: &[Dim]) -> Machine {
    let named = dims
        .iter()
        .map(|dim| DimensionAlgorithmChoice::Named(dim.algorithm));
    build_machine_with_choices(dims, named.collect(), SwitchingMode::IDEAL)
}

/// Returns a machine of `size` NPUs on a ring.
pub fn build_ring_machine(size: u32) -> Machine {
    build_machine_from_dims(&[make_dim_with_fixed_link_speed(
        DimensionShape::Ring,
        size,
        CollectiveAlgorithm::Ring,
    )])
}

/// Returns a machine with these dimensions and this switching mode.
pub fn build_machine_with_switching_mode(dims: &[Dim], switching: SwitchingMode) -> Machine {
    let named = dims
        .iter()
        .map(|dim| DimensionAlgorithmChoice::Named(dim.algorithm));
    build_machine_with_choices(dims, named.collect(), switching)
}

/// Returns a machine with these dimensions that chooses algorithms in other ways; collectives have one chunk.
pub fn build_machine_with_choices(
    dims: &[Dim],
    choices: Vec<DimensionAlgorithmChoice>,
    switching: SwitchingMode,
) -> Machine {
    let dimensions = dims.iter().enumerate().map(|(i, dim)| TopologyDimension {
        name: format!("d{i}"),
        shape: dim.shape,
        size: dim.size,
        bandwidth: Bandwidth::new(1e12 / dim.ps_per_byte as f64).unwrap(),
        latency: Span::from_ns(dim.link_ns),
    });
    let class = NpuClass {
        name: "npu".to_owned(),
        peaks: PeakRatesByFormat::default(),
        curves: Default::default(),
        memory: Some(LocalMemory {
            bandwidth: Bandwidth::new(1e12).unwrap(),
            latency: Some(Span::ZERO),
            capacity: Some(Bytes(1 << 40)),
        }),
        lanes: 1024,
        host_lanes: 1024,
        slowdown: 1.0,
    };
    let topology = Topology::new(dimensions.collect()).unwrap();
    let topology = topology.with_switching(switching);
    let machine =
        Machine::create_with_one_npu_class("rig".to_owned(), topology, choices, class, None)
            .unwrap();
    machine.with_chunking(ONE_CHUNK)
}

/// Collectives in one chunk, even if several chunks would be faster.
pub const ONE_CHUNK: ChunkCountOrderAndOverlap = ChunkCountOrderAndOverlap {
    chunks: Some(NonZeroU32::MIN),
    active: NonZeroU32::MIN,
    inter: DimensionVisitOrder::Ascending,
    intra: WaitingChunkPriority::Fifo,
};

/// Returns the traces of these ranks, written in the file format and read back.
pub fn encode_and_load_rank_traces<'l>(
    ranks: impl IntoIterator<Item = (u32, &'l [TestTraceNode])>,
) -> WorkloadBuilder {
    load_released_traces(ranks, |_| 0)
}

/// Returns the bytes of a trace file with these nodes.
pub fn encode_trace_file(lines: &[TestTraceNode]) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new()).unwrap();
    for (id, line) in (1..).zip(lines) {
        let name = line.name.map_or_else(|| format!("n{id}"), str::to_owned);
        let node = NodeView {
            kernel: line.shape,
            lane: line.lane,
            recorded: Span::from_ns(line.ns),
            delay: Span::from_ns(line.delay_ns),
            wait: Span::from_ns(line.wait_ns),
            eager: line.eager,
            memory: line.memory,
            splits: AllToAllSplitText {
                send: &line.splits[0],
                receive: &line.splits[1],
            },
            ..NodeView::new(id, &name, line.op)
        };
        writer.receive_node(&node, &line.after).unwrap();
    }
    writer.into_unflushed_sink()
}

/// Returns the traces of these ranks, with each rank released at the given time in nanoseconds.
pub fn load_released_traces<'l>(
    ranks: impl IntoIterator<Item = (u32, &'l [TestTraceNode])>,
    at_ns: impl Fn(u32) -> u64,
) -> WorkloadBuilder {
    let mut builder = WorkloadBuilder::default();
    for (rank, lines) in ranks {
        let (graph, binding) = Graph::read_graph(
            &encode_trace_file(lines),
            rank,
            EnforcedDependencyKinds::Both,
        )
        .unwrap();
        let graph = builder.add_or_reuse_equal_graph(graph);
        builder
            .add_rank(Rank(rank), graph, binding, Time(at_ns(rank) * 1000))
            .unwrap();
    }
    builder
}

/// Returns a job in which rank r runs `ranks[r]`, with these declared groups.
pub fn try_build_rank_job(
    ranks: &[Vec<TestTraceNode>],
    groups: &[(&str, &[u32])],
) -> Result<Workload, WorkloadError> {
    let mut builder = encode_and_load_rank_traces((0..).zip(ranks.iter().map(Vec::as_slice)));
    let declared = groups.iter().map(|(n, m)| ((*n).to_owned(), m.to_vec()));
    builder.declare_groups(declared.collect());
    builder.finish_workload(Some(ranks.len() as u32), MissingRankPolicy::Refuse)
}

pub fn build_job_from_rank_nodes(
    ranks: &[Vec<TestTraceNode>],
    groups: &[(&str, &[u32])],
) -> Workload {
    try_build_rank_job(ranks, groups).unwrap()
}

/// All notifications of an observer, in order.
#[derive(Debug, Default, PartialEq)]
pub struct ObserverLog {
    /// The time in picoseconds, `true` for a completion, the instance, and the node.
    pub events: Vec<(u64, bool, u32, u32)>,
    pub records: Vec<CollectiveRecord>,
}

impl Observer for ObserverLog {
    fn on_issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, _: NodeKind) {
        self.events.push((now.0, false, instance.0, node.0));
    }
    fn on_completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, _: NodeKind) {
        self.events.push((now.0, true, instance.0, node.0));
    }
    fn on_collective_ended(&mut self, record: &CollectiveRecord) {
        self.records.push(*record);
    }
}

/// The outcome and the log of a replay.
#[derive(Debug, PartialEq)]
pub struct ReplayOutcomeAndLog {
    pub outcome: CompletedReplayTotals,
    pub log: ObserverLog,
}

pub fn replay_with(
    workload: &Workload,
    machine: &Machine,
    options: &ReplayOptions,
) -> ReplayOutcomeAndLog {
    let prepared = CompiledReplay::new(workload, machine, options).unwrap();
    let (outcome, log) = prepared.run(ObserverLog::default()).unwrap();
    ReplayOutcomeAndLog { outcome, log }
}

pub fn replay_and_log(workload: &Workload, machine: &Machine) -> ReplayOutcomeAndLog {
    replay_with(workload, machine, &ReplayOptions::default())
}

/// Returns the options with this way of timing communication.
pub fn make_options_with_comm_duration_source(comm: CommunicationDurationSource) -> ReplayOptions {
    ReplayOptions::default_with_changes(|o| {
        o.comm = comm;
    })
}

/// Returns the options with this network model, without closed forms.
pub fn make_stepwise_network_options(model: NetworkModel) -> ReplayOptions {
    ReplayOptions::default_with_changes(|o| {
        *o = make_stepwise_options();
        o.network = Some(model);
    })
}

/// Returns the options without closed forms.
pub fn make_stepwise_options() -> ReplayOptions {
    ReplayOptions::default_with_changes(|o| {
        o.stepwise = true;
    })
}

impl ReplayOutcomeAndLog {
    /// Returns the makespan in picoseconds.
    pub fn makespan_ps(&self) -> u64 {
        self.outcome.makespan.0
    }

    /// Returns the completion of node `id` of instance `instance`, in picoseconds.
    pub fn node_end_ps(&self, instance: u32, id: u32) -> u64 {
        let mut events = self.log.events.iter();
        let wanted = |e: &&(u64, bool, u32, u32)| (e.1, e.2, e.3) == (true, instance, id - 1);
        events.find(wanted).expect("every node completes").0
    }

    /// Returns the issue of node `id` of instance `instance`, in picoseconds.
    pub fn node_start_ps(&self, instance: u32, id: u32) -> u64 {
        let mut events = self.log.events.iter();
        let wanted = |e: &&(u64, bool, u32, u32)| (e.1, e.2, e.3) == (false, instance, id - 1);
        events.find(wanted).expect("every node is issued").0
    }

    /// Returns the completion of each instance's last node, in picoseconds.
    pub fn last_end_of_each_instance(&self) -> Vec<u64> {
        let mut ends = Vec::new();
        for &(at, completed, instance, _) in &self.log.events {
            ends.resize(ends.len().max(instance as usize + 1), 0);
            if completed {
                ends[instance as usize] = at;
            }
        }
        ends
    }
}
