//! Tests ranks without a trace: an absent member arrives with the last present member.

use super::lines::{TestTraceNode, build_collective, build_kernel, build_receive, build_send};
use super::naive;
use super::rig::{
    ReplayOutcomeAndLog, build_machine_from_dims, encode_and_load_rank_traces,
    make_dim_with_fixed_link_speed, replay_and_log,
};
use chakram::machine::CollectiveAlgorithm::{Direct, Ring};
use chakram::topology::DimensionShape;
use chakram::trace::CollectiveKind as K;
use chakram::workload::{MissingRankPolicy, WorkloadError};

/// Returns a job of `ranks` ranks on a ring or a switch of this size; only the ranks in `present` have traces.
fn replay_mirroring_missing_ranks(
    ranks: u32,
    present: &[(u32, Vec<TestTraceNode>)],
    shape: DimensionShape,
) -> ReplayOutcomeAndLog {
    let builder =
        encode_and_load_rank_traces(present.iter().map(|(rank, lines)| (*rank, &lines[..])));
    let workload = builder
        .finish_workload(Some(ranks), MissingRankPolicy::Mirror)
        .unwrap();
    let algorithm = if shape == DimensionShape::Ring {
        Ring
    } else {
        Direct
    };
    replay_and_log(
        &workload,
        &build_machine_from_dims(&[make_dim_with_fixed_link_speed(shape, ranks, algorithm)]),
    )
}

/// One rank of 8 is present, and arrives after 300 ns. An all-reduce of 80,000 B takes 14 steps of
/// 500 + 200 ns, as if all eight ranks had arrived at 300 ns.
#[test]
fn one_traced_rank_of_eight_takes_as_long_as_all_eight() {
    let lines = vec![
        build_kernel(300),
        build_collective(K::AllReduce, 80_000).after(&[1]),
    ];
    for rank in [0, 5] {
        let replay =
            replay_mirroring_missing_ranks(8, &[(rank, lines.clone())], DimensionShape::Ring);
        assert_eq!(
            (replay.makespan_ps(), replay.outcome.nodes),
            (10_100_000, 2)
        );
        assert_eq!(replay.outcome.closed, 1);
    }
}

/// Two ranks of 6 are present, and arrive at 100 and 900 ns. The other ranks arrive at 900 ns.
#[test]
fn ranks_without_traces_join_with_the_last_traced_rank() {
    let member = |ns| {
        vec![
            build_kernel(ns),
            build_collective(K::AllGather, 1000).after(&[1]),
        ]
    };
    let replay = replay_mirroring_missing_ranks(
        6,
        &[(1, member(900)), (4, member(100))],
        DimensionShape::Ring,
    );
    let starts = [900, 900, 900, 900, 100, 900].map(|ns| ns * 1000);
    let dims = [make_dim_with_fixed_link_speed(
        DimensionShape::Ring,
        6,
        Ring,
    )];
    let want = naive::simulate_collective_end_per_npu(&dims, K::AllGather, 1000, 0, &starts);
    assert_eq!(replay.last_end_of_each_instance(), [want[1], want[4]]);
}

/// In a broadcast from rank 0 of 4, only rank 1 is present, and receives first: 80,000 B take 1,600
/// ns and two switch links of 500 ns.
#[test]
fn a_root_without_a_trace_sends_when_its_first_receiver_arrives() {
    let replay = replay_mirroring_missing_ranks(
        4,
        &[(1, vec![build_collective(K::Broadcast, 80_000)])],
        DimensionShape::Switch,
    );
    assert_eq!(replay.last_end_of_each_instance(), [2_600_000]);
}

/// An absent sender sends when its receiver is ready, at 300 ns. The receive ends one link and 200
/// ns later.
#[test]
fn a_missing_sender_sends_when_its_receiver_is_ready() {
    let lines = vec![build_kernel(300), build_receive(1, 10_000).after(&[1])];
    let replay = replay_mirroring_missing_ranks(2, &[(0, lines)], DimensionShape::Ring);
    assert_eq!(replay.makespan_ps(), 1_000_000);
}

#[test]
fn without_mirror_a_missing_rank_is_named() {
    let lines = [build_collective(K::AllReduce, 1000)];
    let builder = encode_and_load_rank_traces([(0, &lines[..]), (2, &lines[..])]);
    let error = builder
        .finish_workload(Some(4), MissingRankPolicy::Refuse)
        .unwrap_err();
    assert!(matches!(&error, WorkloadError::Missing { missing, ranks: 4 } if missing.len() == 2));
    let text = error.to_string();
    assert!(text.contains("ranks 1, 3 of 4 have no trace"), "{text}");
    assert!(text.contains("`missing_ranks` mirror"), "{text}");
}

/// After the last present member ends, the rest of a collective, or of a message to an absent rank, belongs to no node,
/// so the makespan is the time when the last node completes.
#[test]
fn the_makespan_ends_with_the_last_node_of_a_traced_rank() {
    let replay = replay_mirroring_missing_ranks(
        4,
        &[(1, vec![build_collective(K::Broadcast, 80_000)])],
        DimensionShape::Switch,
    );
    assert_eq!(replay.makespan_ps(), 2_600_000);
    // 10,000 B leave in 200 ns.
    let replay = replay_mirroring_missing_ranks(
        2,
        &[(0, vec![build_send(1, 10_000)])],
        DimensionShape::Ring,
    );
    assert_eq!(
        (replay.last_end_of_each_instance(), replay.makespan_ps()),
        (vec![200_000], 200_000)
    );
}
