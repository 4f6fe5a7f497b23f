//! Tests turns: lanes, collectives of one group, and collectives of several groups.

use super::lines::{TestTraceNode, build_collective, build_kernel, build_receive, build_send};
use super::rig::{
    ObserverLog, build_job_from_rank_nodes, build_machine_from_dims, build_ring_machine,
    make_dim_with_fixed_link_speed, make_proptest_config, make_stepwise_options, replay_and_log,
    replay_with,
};
use chakram::generate::{CheckedWorkloadPattern, CollectivePattern, WorkloadPattern};
use chakram::machine::CollectiveAlgorithm::Ring;
use chakram::topology::DimensionShape;
use chakram::trace::CollectiveKind as K;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Returns a ring whose steps take 500 ns + 20 ns per 1,000 B.
/// The time of a collective of two members with 20,000 B, where reduce-scatter and all-gather send
/// one message of 10,000 B each: T = 2 x (500 + 200) ns.
const T: u64 = 1_400_000;

fn all_reduce() -> TestTraceNode {
    build_collective(K::AllReduce, 20_000)
}

#[test]
fn collectives_of_one_group_take_turns() {
    for chained in [false, true] {
        let options = CollectivePattern {
            count: 3,
            chained,
            ..CollectivePattern::new(K::AllReduce, 20_000, 2)
        };
        let workload = CheckedWorkloadPattern::new(WorkloadPattern::Collective(options))
            .unwrap()
            .build_workload()
            .unwrap();
        for options in [Default::default(), make_stepwise_options()] {
            assert_eq!(
                replay_with(&workload, &build_ring_machine(2), &options).makespan_ps(),
                3 * T
            );
        }
    }
}

/// Groups that share a member overlap on that member: with separate lanes and without contention
/// between operations, no collective waits.
#[test]
fn collectives_of_two_groups_overlap() {
    let (a, b) = (all_reduce().group("a"), all_reduce().group("b"));
    let ranks = [vec![a.clone(), b.clone()], vec![a], vec![b]];
    let groups: [(&str, &[u32]); 2] = [("a", &[0, 1]), ("b", &[0, 2])];
    // In a ring of 3, all members are neighbours.
    let ring =
        build_machine_from_dims(&[
            make_dim_with_fixed_link_speed(DimensionShape::Ring, 3, Ring)
                .with_npu_bandwidth_per_link(),
        ]);
    let replay = replay_and_log(&build_job_from_rank_nodes(&ranks, &groups), &ring);
    assert_eq!(replay.last_end_of_each_instance(), [T, T, T]);
    // On one stream of rank 0 the second collective starts at T. Rank 2's part has arrived by then.
    // Rank 0 therefore begins to gather when its own part has left, at T + 200, and rank 2 begins
    // when this part has arrived, at T + 700. Rank 2 has everything at T + 200 + 700, and rank 0 at
    // T + 700 + 700 ns.
    let one_stream =
        |lines: &Vec<TestTraceNode>| lines.iter().map(|l| l.clone().on_lane(7)).collect();
    let ranks: Vec<Vec<TestTraceNode>> = ranks.iter().map(one_stream).collect();
    let replay = replay_and_log(&build_job_from_rank_nodes(&ranks, &groups), &ring);
    assert_eq!(replay.last_end_of_each_instance(), [2 * T, T, T + 900_000]);
}

/// The first collective in program order waits for a kernel of 10,000 ns. The second is ready at 0
/// and goes first: it ends at T, long before the first starts.
#[test]
fn a_collective_that_is_ready_first_goes_first() {
    let rank = vec![build_kernel(10_000), all_reduce().after(&[1]), all_reduce()];
    let replay = replay_and_log(
        &build_job_from_rank_nodes(&vec![rank; 2], &[]),
        &build_ring_machine(2),
    );
    for rank in 0..2 {
        assert_eq!(
            (replay.node_end_ps(rank, 2), replay.node_end_ps(rank, 3)),
            (10_000_000 + T, T)
        );
    }
}

/// Rank 0 is ready for the second collective at 0 and for the first at 10,000 ns. Rank 1 is ready for the first at
/// 1,000 and for the second at 2,000 ns. The second cannot go first while rank 1 is not ready for it; the first gets
/// its turn when rank 1 is ready for it. Rank 1's part has arrived by 10,000 ns. Rank 0 therefore begins to gather when
/// its own part has left, at 10,200, and rank 1 begins when this part has arrived, at 10,700. Rank 1 has everything at
/// 10,200 + 700, and rank 0 at 10,700 + 700 ns.
///
/// Then the second collective runs: rank 1 sends at 10,900, until 11,100, and rank 0 at 11,400,
/// until 11,600, exactly when the other part has entered. Rank 1 has rank 0's part at 12,100, and
/// gathers until 12,300; rank 0 has this data at 12,800. Rank 0 gathers from 11,600, and rank 1 has
/// its data at 12,300.
#[test]
fn program_order_holds_until_all_are_ready() {
    let ranks = [
        vec![build_kernel(10_000), all_reduce().after(&[1]), all_reduce()],
        vec![
            build_kernel(1000),
            all_reduce().after(&[1]),
            build_kernel(1000).after(&[1]),
            all_reduce().after(&[3]),
        ],
    ];
    let replay = replay_and_log(
        &build_job_from_rank_nodes(&ranks, &[]),
        &build_ring_machine(2),
    );
    assert_eq!(
        (replay.node_end_ps(0, 2), replay.node_end_ps(1, 2)),
        (11_400_000, 10_900_000)
    );
    assert_eq!(
        (replay.node_end_ps(0, 3), replay.node_end_ps(1, 4)),
        (12_800_000, 12_300_000)
    );
}

/// Rank 1 is ready for the second collective at 500 ns, before the first. All members are then
/// ready, so the second goes first, on both ranks at 500 ns.
#[test]
fn a_collective_that_all_are_ready_for_overtakes_earlier_ones() {
    let ranks = [
        vec![build_kernel(10_000), all_reduce().after(&[1]), all_reduce()],
        vec![
            build_kernel(1000),
            all_reduce().after(&[1]),
            build_kernel(500).on_lane(1),
            all_reduce().after(&[3]),
        ],
    ];
    let replay = replay_and_log(
        &build_job_from_rank_nodes(&ranks, &[]),
        &build_ring_machine(2),
    );
    let ends = (replay.node_end_ps(0, 3), replay.node_end_ps(1, 4));
    assert_eq!(ends, (500_000 + T, 500_000 + T));
}

/// Two collectives have different dependencies on each rank: on rank 0 the second is ready first,
/// but on rank 1 it waits for the first. The first collective must therefore go first.
#[test]
fn a_collective_never_overtakes_one_it_depends_on_at_another_rank() {
    let ranks = [
        vec![build_kernel(10_000), all_reduce().after(&[1]), all_reduce()],
        vec![all_reduce(), all_reduce().after(&[1])],
    ];
    let workload = build_job_from_rank_nodes(&ranks, &[]);
    let machine = build_ring_machine(2);
    let prepared = chakram::engine::CompiledReplay::new(&workload, &machine, &Default::default());
    let result = prepared.unwrap().run(ObserverLog::default());
    assert!(result.is_ok(), "{}", result.unwrap_err());
}

/// On three ranks, the second collective is ready first on rank 0. On rank 2 it waits for a message that rank 1 sends
/// after the first. No single rank's trace shows that the first must go first.
#[test]
fn a_collective_never_overtakes_one_it_depends_on_through_messages() {
    let ranks = [
        vec![build_kernel(10_000), all_reduce().after(&[1]), all_reduce()],
        vec![all_reduce(), all_reduce(), build_send(2, 8).after(&[1])],
        vec![all_reduce(), build_receive(1, 8), all_reduce().after(&[2])],
    ];
    assert_eq!(
        replay_and_log(
            &build_job_from_rank_nodes(&ranks, &[]),
            &build_ring_machine(3)
        )
        .outcome
        .nodes,
        9
    );
}

/// Returns one rank's trace: `calls` all-reduces among kernels, where each node depends on up to two earlier nodes.
fn rank_trace_strategy(calls: usize) -> impl Strategy<Value = Vec<TestTraceNode>> {
    let kernels = prop::collection::vec((0_u64..3, 0_i64..3), calls + 1);
    let behind = prop::collection::vec((any::<[prop::sample::Index; 2]>(), 0_usize..3), 2 * calls);
    let lanes = prop::collection::vec(prop::option::of(0_i64..3), calls);
    (kernels, behind, lanes).prop_map(move |(kernels, behind, lanes)| {
        let mut lines = vec![build_kernel(kernels[calls].0 * 700)];
        for i in 0..2 * calls {
            let (nodes, count) = &behind[i];
            let ids: BTreeSet<u64> = nodes[..*count]
                .iter()
                .map(|node| node.index(lines.len()) as u64 + 1)
                .collect();
            let ids: Vec<_> = ids.into_iter().collect();
            let line = match i % 2 {
                0 => build_kernel(kernels[i / 2].0 * 700).on_lane(kernels[i / 2].1),
                _ => TestTraceNode {
                    lane: lanes[i / 2],
                    ..all_reduce()
                },
            };
            lines.push(line.after(&ids));
        }
        lines
    })
}

proptest! {
    #![proptest_config(make_proptest_config(300))]

    /// If a group's collectives can complete in program order, they also complete when they take turns, for any
    /// dependencies, even if they occupy lanes.
    #[test]
    fn collectives_that_complete_in_program_order_never_get_stuck(
        ranks in (1_usize..6).prop_flat_map(|calls| prop::collection::vec(rank_trace_strategy(calls), 3)),
    ) {
        let nodes: usize = ranks.iter().map(Vec::len).sum();
        let replay = replay_and_log(&build_job_from_rank_nodes(&ranks, &[]), &build_ring_machine(3));
        prop_assert_eq!(replay.outcome.nodes, nodes as u64);
    }
}

/// Two groups of the same two ranks share a lane and are ready in opposite orders. No rank may hold
/// the lane for the collective that the other rank has queued, so the collectives run one after the
/// other.
#[test]
fn groups_that_share_a_lane_go_in_one_order_everywhere() {
    let groups: &[(&str, &[u32])] = &[("a", &[0, 1]), ("b", &[0, 1])];
    let [a, b] = ["a", "b"].map(|g| all_reduce().group(g));
    // Both are on one named stream and ready at 0.
    let [on_a, on_b] = [a.clone().on_lane(0), b.clone().on_lane(0)];
    let ranks = [vec![on_a.clone(), on_b.clone()], vec![on_b, on_a]];
    assert_eq!(
        replay_and_log(
            &build_job_from_rank_nodes(&ranks, groups),
            &build_ring_machine(2)
        )
        .makespan_ps(),
        2 * T
    );
    // On separate lanes, they are ready 1 us apart, and in reverse order on the other rank. Each
    // starts when its second member is ready, after 2 us, and they overlap.
    let rank = |first: &TestTraceNode, second: &TestTraceNode| {
        vec![
            build_kernel(1000).on_lane(1),
            first.clone().after(&[1]),
            build_kernel(2000).on_lane(2),
            second.clone().after(&[3]),
        ]
    };
    let ranks = [rank(&a, &b), rank(&b, &a)];
    let machine = build_ring_machine(2);
    assert_eq!(
        replay_and_log(&build_job_from_rank_nodes(&ranks, groups), &machine).makespan_ps(),
        2_000_000 + T
    );
}
