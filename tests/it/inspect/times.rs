//! Tests that the times of nodes equal the times in a replay as captured, to the picosecond.

use super::{build_attribute, encode_trace_file, inspect_json, integer_field, rows_of_json_list};
use chakram::engine::{CommunicationDurationSource, CompiledReplay, ReplayOptions};
use chakram::ids::Rank;
use chakram::inspect::{InspectedRankTrace, NodeStartTimesSource};
use chakram::internals::proto::Node;
use chakram::internals::proto::attribute_proto::Value as Attribute;
use chakram::machine::Machine;
use chakram::report::{NodeSpanRecorder, replay_to_report};
use chakram::trace::{DecompressedTraceFile, discover_traces};
use chakram::units::{Span, Time};
use chakram::workload::{EnforcedDependencyKinds, Graph, MissingRankPolicy, WorkloadBuilder};
use proptest::prelude::*;
use std::path::Path;

/// Returns the start and end of every node of every rank in a replay as captured, in the order of
/// ids; `None` if the replay rejects the traces.
fn replay_node_starts_and_ends_as_captured(
    ranks: &[&[u8]],
    machine: &Machine,
) -> Option<Vec<Vec<(Time, Time)>>> {
    let mut builder = WorkloadBuilder::default();
    for (contents, rank) in ranks.iter().zip(0..) {
        let (graph, binding) =
            Graph::read_graph(contents, rank, EnforcedDependencyKinds::Auto).ok()?;
        let graph = builder.add_or_reuse_equal_graph(graph);
        builder
            .add_rank(Rank(rank), graph, binding, Time::ZERO)
            .ok()?;
    }
    let workload = builder
        .finish_workload(Some(ranks.len() as u32), MissingRankPolicy::Refuse)
        .ok()?;
    let options = ReplayOptions::default_with_changes(|o| {
        o.comm = CommunicationDurationSource::Captured;
    });
    let prepared = CompiledReplay::new(&workload, machine, &options).ok()?;
    let (_, spans) = replay_to_report(&prepared, NodeSpanRecorder::new(&prepared)).ok()?;
    let of = |instance| {
        let mut nodes = spans.spans_of_instance(instance).to_vec();
        nodes.sort_by_key(|span| span.node);
        nodes.iter().map(|span| (span.start, span.end)).collect()
    };
    Some((0..ranks.len()).map(of).collect())
}

fn inspected_node_times(contents: &[u8], rank: u32) -> Vec<(Time, Time)> {
    let trace = InspectedRankTrace::read_trace(rank, contents, |e| e).unwrap();
    let run = &trace.times.run;
    run.start
        .iter()
        .copied()
        .zip(run.end.iter().copied())
        .collect()
}

#[test]
fn inspected_times_of_a_converted_trace_equal_capture_and_replay() {
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/ddp-resnet18");
    let files = discover_traces(&case).unwrap();
    let contents: Vec<DecompressedTraceFile> = files
        .iter()
        .map(|file| DecompressedTraceFile::open_as_current_schema(&file.path).unwrap())
        .collect();
    let contents: Vec<&[u8]> = contents
        .iter()
        .map(DecompressedTraceFile::as_slice)
        .collect();
    let machine = Machine::load_by_name(case.join("machine.toml").to_str().unwrap()).unwrap();
    let expected = replay_node_starts_and_ends_as_captured(&contents, &machine).unwrap();
    for (rank, expected) in (0..).zip(expected) {
        let found = inspected_node_times(contents[rank as usize], rank);
        assert_eq!(found.len(), 2658);
        let moved = (0..found.len()).find(|&i| found[i] != expected[i]);
        assert_eq!(moved, None, "rank {rank}");
        let trace = InspectedRankTrace::read_trace(rank, contents[rank as usize], |e| e).unwrap();
        assert_eq!(trace.times.basis, NodeStartTimesSource::Kept);
        let (_, end) = trace.times.first_start_and_last_end();
        assert_eq!(Some(Span(end.0)), trace.raw.metadata.captured);
    }
}

/// A node: its type, its delay, wait and duration, its lane, and two numbers that choose its dependencies.
type RandomNodeFields = (u8, [u64; 3], u8, u16, u16);

fn build_random_node(
    id: u64,
    (kind, [delay, wait, ns], lane, data, control): RandomNodeFields,
) -> Node {
    let all = |bits: u16| {
        (1..id)
            .filter(|other| bits >> (other % 16) & 1 == 1)
            .collect()
    };
    let mut attr = vec![
        build_attribute("duration_ns", Attribute::Uint64Val(ns)),
        build_attribute("delay_ns", Attribute::Uint64Val(delay)),
        build_attribute("wait_ns", Attribute::Uint64Val(wait)),
    ];
    if lane < 3 {
        let name = if kind == 1 { "tid" } else { "stream" };
        attr.push(build_attribute(name, Attribute::Int64Val(i64::from(lane))));
    }
    if kind == 1 {
        attr.push(build_attribute("is_cpu_op", Attribute::BoolVal(true)));
    }
    if kind == 2 {
        attr.push(build_attribute("comm_type", Attribute::Int64Val(0)));
        attr.push(build_attribute("comm_size", Attribute::Int64Val(8)));
    }
    Node {
        id,
        name: format!("n{id}"),
        r#type: match kind {
            2 => 7,
            3 => 1,
            _ => 4,
        },
        data_deps: all(data & 0x1111),
        ctrl_deps: all(control & 0x0842),
        attr,
        ..Node::default()
    }
}

fn node_fields_strategy() -> impl Strategy<Value = Vec<RandomNodeFields>> {
    let times = [0_u64..3, 0_u64..2, 0_u64..3];
    prop::collection::vec((0_u8..4, times, 0_u8..4, any::<u16>(), any::<u16>()), 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// The nodes are host nodes, kernels, collectives of one rank, and markers, on lanes with and without names. The
    /// nodes' times are so short that many events fall at the same instant. Their order must equal the engine's order.
    #[test]
    fn inspected_times_of_any_trace_equal_its_replay(lines in node_fields_strategy(), reversed in any::<bool>()) {
        let mut nodes: Vec<Node> = (1..).zip(lines).map(|(id, line)| build_random_node(id, line)).collect();
        if reversed {
            // The ids are in reverse program order.
            let last = nodes.len() as u64 + 1;
            for node in &mut nodes {
                node.id = last - node.id;
                node.data_deps.iter_mut().chain(&mut node.ctrl_deps).for_each(|id| *id = last - *id);
            }
        }
        let contents = encode_trace_file(Vec::new(), &nodes);
        let machine = Machine::parse(&format_machine_with_many_lanes(), "wide.toml").unwrap();
        if let Some(expected) = replay_node_starts_and_ends_as_captured(&[&contents], &machine) {
            prop_assert_eq!(&inspected_node_times(&contents, 0), &expected[0]);
        }
    }
}

/// Returns a machine of one NPU with more lanes than any of these traces needs.
fn format_machine_with_many_lanes() -> String {
    "name = \"wide\"\n[npu.one]\nmemory_bandwidth = \"1 TB/s\"\nmemory_latency = \"1 ns\"\n\
     memory_capacity = \"1 GB\"\nlanes = 64\nhost_lanes = 64\n[npu.one.peak]\nfp32 = \"1 TFLOP/s\"\n\
     [[dimension]]\nname = \"d\"\nshape = \"ring\"\nsize = 2\nbandwidth = \"1 GB/s\"\n\
     latency = \"1 ns\"\nalgorithm = \"ring\"\n"
        .to_owned()
}

#[test]
fn a_collective_of_no_time_ends_after_all_else_of_its_instant() {
    // At time 0, collective 1 and kernels 2 and then 3 take no time. Kernel 5 waits for kernel 3. Kernel 4 waits for
    // the collective, which ends only after all other events of the instant. So kernel 5 gets the lane first, for 5 ns,
    // although kernel 4 would be ready a round earlier. Collective 6 takes a nanosecond, because a job without any
    // recorded time is an error.
    let mut nodes: Vec<Node> = [
        (2, 0, 0),
        (0, 0, 1),
        (0, 0, 1),
        (0, 5, 2),
        (0, 5, 2),
        (2, 1, 0),
    ]
    .into_iter()
    .zip(1..)
    .map(|((kind, ns, lane), id)| build_random_node(id, (kind, [0, 0, ns], lane, 0, 0)))
    .collect();
    for (node, open_dependency_count_of_node) in [(3, 2), (4, 1), (5, 3)] {
        nodes[node - 1].data_deps = vec![open_dependency_count_of_node];
    }
    let contents = encode_trace_file(Vec::new(), &nodes);
    let found = inspected_node_times(&contents, 0);
    assert_eq!((found[3].0, found[4].0), (Time(5_000), Time::ZERO));
    let machine = Machine::parse(&format_machine_with_many_lanes(), "wide.toml").unwrap();
    assert_eq!(
        replay_node_starts_and_ends_as_captured(&[&contents], &machine).unwrap()[0],
        found
    );
}

#[test]
fn recorded_start_times_in_a_trace_are_used() {
    // Three kernels take 10, 5 and 2 us. They started at 1,000, 1,012 and 1,030 us, which are 0, 12 and 30 us after the
    // first. The third waits for the first, but the second ran on their lane before the third, and ended at 17 us. So
    // the path, from its end, has 2 us of work after a delay of 13 us, 5 us after a delay of 2 us, and 10 us: 32 us in
    // total.
    let folder = tempfile::tempdir().unwrap();
    let started = |id, micros, start, data: &[u64]| Node {
        start_time_micros: start,
        ..super::build_kernel_node(id, "k", micros, data)
    };
    let nodes = [
        started(1, 10, 1000, &[]),
        started(2, 5, 1012, &[]),
        started(3, 2, 1030, &[1]),
    ];
    super::write_rank_trace(folder.path(), 0, Vec::new(), &nodes);
    let path = folder.path().to_str().unwrap();
    let document = inspect_json(&[path]);
    let rank = &rows_of_json_list(&document, "ranks")[0];
    assert_eq!(
        (rank["times"].as_str(), integer_field(rank, "end_ps")),
        (Some("given"), 32_000_000)
    );
    let list = inspect_json(&[path, "--list"]);
    let starts: Vec<u64> = rows_of_json_list(&list, "nodes")
        .iter()
        .map(|row| integer_field(row, "start_ps"))
        .collect();
    assert_eq!(starts, [0, 12_000_000, 30_000_000]);
    let document = inspect_json(&[path, "--critical-path", "--list"]);
    let path = &rows_of_json_list(&document, "paths")[0];
    let parts: Vec<(u64, u64, u64)> = rows_of_json_list(path, "nodes")
        .iter()
        .map(|n| {
            (
                integer_field(n, "id"),
                integer_field(n, "delay_ps"),
                integer_field(n, "work_ps"),
            )
        })
        .collect();
    let us = 1_000_000;
    assert_eq!(
        parts,
        [(1, 0, 10 * us), (2, 2 * us, 5 * us), (3, 13 * us, 2 * us)]
    );
}
