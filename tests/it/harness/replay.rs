//! Uses random bytes as the trace of one rank, or of two identical ranks. The trace is replayed to
//! the end, or gives an error with the reason. No input causes a panic, and the same input gives
//! the same outcome.

use chakram::engine::{
    CommunicationDurationSource, CompiledReplay, CompletedReplayTotals, InstanceId, ReplayError,
    ReplayOptions,
};
use chakram::ids::{NodeIndex, Rank};
use chakram::machine::Machine;
use chakram::report::{CollectiveRecord, Observer};
use chakram::units::Time;
use chakram::workload::{
    EnforcedDependencyKinds, Graph, MissingRankPolicy, NodeKind, Workload, WorkloadBuilder,
};

/// Traces with more nodes are skipped.
const MOST_NODES: usize = 2000;

/// The machine has two by two NPUs with few lanes, and remote memory.
const MACHINE: &str = r#"
name = "small"

[npu.one]
memory_bandwidth = "1 TB/s"
memory_latency = "100 ns"
memory_capacity = "80 GB"
lanes = 2
host_lanes = 1

[npu.one.peak]
fp32 = "10 TFLOP/s"

[[dimension]]
name = "inner"
shape = "ring"
size = 2
bandwidth = "100 GB/s"
latency = "100 ns"
algorithm = "ring"

[[dimension]]
name = "outer"
shape = "switch"
size = 2
bandwidth = "50 GB/s"
latency = "500 ns"
algorithm = "direct"

[remote_memory]
attachment = "pool"
bandwidth = "10 GB/s"
latency = "1 us"
capacity = "1 TB"
"#;

/// Counts issued and completed nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeEventCounter {
    pub issued: u64,
    pub completed: u64,
    pub collectives: u64,
}

impl Observer for NodeEventCounter {
    fn on_issued(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {
        self.issued += 1;
    }
    fn on_completed(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {
        self.completed += 1;
    }
    fn on_collective_ended(&mut self, _: &CollectiveRecord) {
        self.collectives += 1;
    }
}

/// Runs the target on `data`.
pub fn check_bytes_in_replay_modes(data: &[u8]) {
    let machine = Machine::parse(MACHINE, "small.toml").expect("it is right");
    for ranks in 1..=2 {
        let Some(workload) = build_workload_from_bytes(data, ranks) else {
            continue;
        };
        let modes = [
            CommunicationDurationSource::Model,
            CommunicationDurationSource::Recorded,
            CommunicationDurationSource::Captured,
        ];
        let modes = modes.into_iter().flat_map(|comm| {
            let stepwise = [false, true].into_iter();
            let stepwise = stepwise
                .filter(move |&stepwise| comm == CommunicationDurationSource::Model || !stepwise);
            stepwise.map(move |stepwise| (comm, stepwise))
        });
        for (comm, stepwise) in modes {
            let options = ReplayOptions::default_with_changes(|o| {
                o.missing_ranks = MissingRankPolicy::Mirror;
                o.comm = comm;
                o.stepwise = stepwise;
            });
            let first = replay_counting_events(&workload, &machine, &options);
            assert_eq!(first, replay_counting_events(&workload, &machine, &options));
        }
    }
}

fn build_workload_from_bytes(data: &[u8], ranks: u32) -> Option<Workload> {
    let mut builder = WorkloadBuilder::default();
    for rank in 0..ranks {
        let (graph, binding) = Graph::read_graph(data, rank, EnforcedDependencyKinds::Auto).ok()?;
        if graph.len() > MOST_NODES {
            return None;
        }
        let graph = builder.add_or_reuse_equal_graph(graph);
        let added = builder.add_rank(Rank(rank), graph, binding, Time::ZERO);
        added.expect("each rank is added once");
    }
    builder
        .finish_workload(None, MissingRankPolicy::Mirror)
        .ok()
}

fn replay_counting_events(
    workload: &Workload,
    machine: &Machine,
    options: &ReplayOptions,
) -> Option<(CompletedReplayTotals, NodeEventCounter)> {
    let prepared = CompiledReplay::new(workload, machine, options).ok()?;
    match prepared.run(NodeEventCounter::default()) {
        Ok((outcome, count)) => {
            let nodes = workload.node_count();
            let all = (outcome.nodes, count.issued, count.completed);
            assert_eq!(all, (nodes, nodes, nodes));
            let collectives = outcome.closed + outcome.stepwise + outcome.recorded;
            assert_eq!(collectives, count.collectives);
            Some((outcome, count))
        }
        Err(ReplayError::Stuck(stuck)) => {
            assert!(!stuck.waiting.is_empty(), "{stuck}");
            None
        }
        Err(_) => None,
    }
}
