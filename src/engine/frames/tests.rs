//! Tests that the memory of a run is bounded by the number of launches in flight, not by the number of all launches.

use crate::host_launches::ResolvedReplayDurationSources;
use crate::run_programs::{RunProgramsAndFeeds, create_native_backend};
use crate::{CompiledReplay, Engine, ReplayOptions, TimedLaunchFeed};
use chakram_base::ids::Rank;
use chakram_base::units::{Span, Time};
use chakram_hardware::collective::ChunkCountChoiceCache;
use chakram_hardware::machine::Machine;
use chakram_hardware::network::ContentionFreePortBusyTimes;
use chakram_trace::format::Op;
use chakram_trace::format::scan::NodeView;
use chakram_trace::format::write::{Sink, TraceWriter};
use chakram_trace::graph::{EnforcedDependencyKinds, Graph};
use chakram_trace::workload::{MissingRankPolicy, Workload, WorkloadBuilder};

/// Returns a workload of one rank with one kernel of `ns` nanoseconds.
fn build_single_kernel_workload(ns: u64) -> Workload {
    let mut writer = TraceWriter::new(Vec::new()).unwrap();
    let op = Op::Compute {
        flops: 0,
        bytes: 0,
        dtype: None,
    };
    let node = NodeView {
        recorded: Span::from_ns(ns),
        ..NodeView::new(1, "kernel", op)
    };
    writer.receive_node(&node, &[]).unwrap();
    let (graph, binding) = Graph::read_graph(
        &writer.into_unflushed_sink(),
        0,
        EnforcedDependencyKinds::Both,
    )
    .unwrap();
    let mut builder = WorkloadBuilder::default();
    let graph = builder.add_or_reuse_equal_graph(graph);
    builder
        .add_rank(Rank(0), graph, binding, Time::ZERO)
        .unwrap();
    builder
        .finish_workload(Some(1), MissingRankPolicy::Refuse)
        .unwrap()
}

/// 20,000 launches of 1 us each begin at random times, on average 1.11 us apart. By Lindley's recursion, a launch at
/// time a ends at max(a, previous end) + 1 us. At time a, this launch and all earlier launches that end after a are in
/// flight. The number of run states must equal the maximum number of launches in flight. All other state of a launch
/// exists once per run state, so it is bounded too.
#[test]
fn there_are_as_many_run_states_as_launches_in_flight_at_once() {
    let (mut at, mut state) = (0_u64, 1_u64);
    let times: Vec<u64> = (0..20_000)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            at += (state >> 33) % 2_220_000;
            at
        })
        .collect();
    let (mut ends, mut over, mut most) = (Vec::new(), 0, 0);
    for &at in &times {
        let before = ends.last().copied().unwrap_or(0);
        ends.push(at.max(before) + 1_000_000);
        while ends[over] <= at {
            over += 1;
        }
        most = most.max(ends.len() - over);
    }
    assert!((10..2000).contains(&most), "{most}");
    let (workload, machine) = (
        build_single_kernel_workload(1000),
        Machine::load_by_name("dgx-h100").unwrap(),
    );
    let program = CompiledReplay::new(&workload, &machine, &ReplayOptions::default()).unwrap();
    let mut feed = TimedLaunchFeed::new(0, times.into_iter().map(Time).collect());
    let source = RunProgramsAndFeeds {
        programs: std::slice::from_ref(&program),
        feeds: vec![&mut feed],
        processors: None,
        many: true,
    };
    let (mut backend, observer) = (
        create_native_backend(
            &machine,
            &[],
            std::iter::empty(),
            &ResolvedReplayDurationSources::default(),
            &ChunkCountChoiceCache::default(),
        ),
        &mut (),
    );
    let network = ContentionFreePortBusyTimes::new(machine.topology());
    let mut engine = Engine::new(source, observer, network, &mut backend);
    engine.run_events().unwrap();
    let outcome = engine.build_outcome();
    assert_eq!(outcome.nodes, 20_000);
    assert_eq!(outcome.makespan.0, ends[ends.len() - 1]);
    assert_eq!(engine.launches.frames.len(), most);
    assert_eq!(engine.flow.running_rank_instances().len(), most);
    assert_eq!(engine.flow.nodes_held(), most);
}
