//! Tests traces of other tools, if the variable `CHAKRAM_CORPUS` names a folder with
//! `astra-sim/cases.tar.zst` and `captures/gpu/chakra_json/chakra.0.et.zst`.

mod captures;
mod cases;

use crate::harness::replay::NodeEventCounter;
pub use captures::find_expected_refusal;
pub use cases::{build_switch_machine, parse_dimension_sizes, parse_rank_of_trace_file};
use chakram::engine::{CompiledReplay, CompletedReplayTotals, KernelDurationSource, ReplayOptions};
use chakram::ids::Rank;
use chakram::internals::groups;
use chakram::machine::Machine;
use chakram::trace::DecompressedTraceFile;
use chakram::units::Time;
use chakram::workload::{
    EnforcedDependencyKinds, Graph, MissingRankPolicy, Workload, WorkloadBuilder,
};
use std::collections::BTreeMap;
use testkit::corpus::assert_results_match_expected_parts;
pub use testkit::corpus::{
    CaseFiles, corpus_path_or_count_skip, count_test_as_skipped, is_whole_corpus_requested,
    pick_member_of_each_list_by_turn, sample_every_nth, unpack_cases_in_memory,
};

/// Cases that cannot be replayed to the end, each with a part of its error.
const REFUSED: &[(&str, &str)] = &[
    ("u_R8_groups_nofile", "group `1` is not declared"),
    (
        "u_x_cycle",
        "a cycle of dependencies: 2 (comp) → 3 (comp) → 2",
    ),
    ("u_x_dup_id", "node 1: a second node with this id"),
    ("u_x_lonely_recv", "rank 1 node 1 `recv` has no partner"),
    ("u_x_lonely_send", "rank 0 node 1 `send` has no partner"),
    ("u_x_missing_file", "rank 3 of 4 has no trace"),
    (
        "u_x_truncated",
        "record 2, byte 74: the length is 200 bytes, but only 7 are left",
    ),
];

/// Replays a case to the end, or returns the error message.
fn replay_case(case: &CaseFiles) -> Result<CompletedReplayTotals, String> {
    let sizes = parse_dimension_sizes(case);
    let mut builder = WorkloadBuilder::default();
    if let Some(text) = case.get("comm.json") {
        let text = std::str::from_utf8(text).expect("it is text");
        builder.declare_groups(groups::parse_group_file(text).map_err(|e| e.to_string())?);
    }
    for (file, contents) in case {
        let Some(rank) = parse_rank_of_trace_file(file) else {
            continue;
        };
        let (graph, binding) = Graph::read_graph(contents, rank, EnforcedDependencyKinds::Auto)
            .map_err(|e| e.to_string())?;
        let graph = builder.add_or_reuse_equal_graph(graph);
        let added = builder.add_rank(Rank(rank), graph, binding, Time::ZERO);
        added.map_err(|e| e.to_string())?;
    }
    let workload = builder.finish_workload(Some(sizes.iter().product()), MissingRankPolicy::Refuse);
    replay_and_check_event_counts(
        &workload.map_err(|e| e.to_string())?,
        &build_switch_machine(&sizes),
        // The machine has no peaks, so a kernel without a recorded duration would be an error.
        ReplayOptions::default_with_changes(|o| o.compute = KernelDurationSource::RecordedOnly),
    )
}

fn replay_and_check_event_counts(
    workload: &Workload,
    machine: &Machine,
    options: ReplayOptions,
) -> Result<CompletedReplayTotals, String> {
    let prepared = CompiledReplay::new(workload, machine, &options).map_err(|e| e.to_string())?;
    let (outcome, count) = prepared
        .run(NodeEventCounter::default())
        .map_err(|e| e.to_string())?;
    assert_eq!(outcome.nodes, workload.node_count());
    assert_eq!(
        (count.issued, count.completed),
        (outcome.nodes, outcome.nodes)
    );
    Ok(outcome)
}

#[test]
fn every_case_replays_or_is_refused_for_a_reason() {
    let Some(cases) = unpack_cases_in_memory() else {
        return;
    };
    let mut refused = BTreeMap::new();
    for (name, case) in &cases {
        if let Err(why) = replay_case(case) {
            refused.insert(name.clone(), why);
        }
    }
    println!("{} cases, {} refused", cases.len(), refused.len());
    assert_results_match_expected_parts(&refused, REFUSED);
}

#[test]
fn a_captured_trace_loads_and_replays() {
    let Some(path) = corpus_path_or_count_skip("captures/gpu/chakra_json/chakra.0.et.zst") else {
        return;
    };
    let contents =
        DecompressedTraceFile::open_as_current_schema(&path).expect("the corpus is there");
    let contents = contents.as_slice();
    let (graph, binding) = Graph::read_graph(contents, 0, EnforcedDependencyKinds::Auto).unwrap();
    // Control dependencies form cycles in this file, so only data dependencies are enforced.
    assert_eq!((graph.len(), graph.edge_count()), (3664, 181_878));
    assert!(
        graph.repair_counts().cyclic_control > 0,
        "{:?}",
        graph.repair_counts()
    );
    let both = Graph::read_graph(contents, 0, EnforcedDependencyKinds::Both).unwrap_err();
    assert!(both.to_string().contains("cycle"), "{both}");
    let mut builder = WorkloadBuilder::default();
    let graph = builder.add_or_reuse_equal_graph(graph);
    builder
        .add_rank(Rank(0), graph, binding, Time::ZERO)
        .unwrap();
    let workload = builder
        .finish_workload(None, MissingRankPolicy::Mirror)
        .unwrap();
    let machine = Machine::load_preset("dgx-h100").unwrap();
    let with = |compute| {
        let options = ReplayOptions::default_with_changes(|o| {
            o.compute = compute;
            o.missing_ranks = MissingRankPolicy::Mirror;
        });
        replay_and_check_event_counts(&workload, &machine, options).unwrap()
    };
    let recorded = with(KernelDurationSource::default());
    let scaled = with(KernelDurationSource::Scaled(0.5, Default::default()));
    println!("recorded {recorded:?}, at half the time {scaled:?}");
    assert!(recorded.makespan > scaled.makespan);
}
