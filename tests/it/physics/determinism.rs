//! Tests that the same input gives the same output, and that unrelated work changes nothing.

use super::lines::{TestTraceNode, build_collective, build_kernel, build_receive, build_send};
use super::rig::{
    Dim, ObserverLog, build_job_from_rank_nodes, build_machine_from_dims,
    make_dim_with_fixed_link_speed, make_proptest_config, make_stepwise_options, replay_and_log,
    replay_with,
};
use chakram::engine::ReplayOptions;
use chakram::generate::{
    CheckedWorkloadPattern, DataParallelTrainingJobParameters, P2pPattern,
    ParallelKernelChainsPattern, TrafficPattern, WorkloadPattern,
};
use chakram::machine::CollectiveAlgorithm;
use chakram::machine::CollectiveAlgorithm::{Direct, Ring};
use chakram::topology::DimensionShape;
use chakram::trace::CollectiveKind as K;
use proptest::prelude::*;

#[test]
fn the_same_workload_gives_the_same_events_in_the_same_order() {
    let mut traffic = P2pPattern::new(TrafficPattern::Random(7), 10_000, 8);
    traffic.count = 20;
    let mut chains = ParallelKernelChainsPattern::new(8, 60);
    chains.chains = 6;
    let patterns = [
        WorkloadPattern::P2p(traffic),
        WorkloadPattern::Chain(chains),
        WorkloadPattern::DataParallel(DataParallelTrainingJobParameters::new(8)),
    ];
    let dims = [
        make_dim_with_fixed_link_speed(DimensionShape::Ring, 4, Direct),
        make_dim_with_fixed_link_speed(DimensionShape::Switch, 2, Ring),
    ];
    for pattern in patterns {
        let once = || {
            let job = CheckedWorkloadPattern::new(pattern.clone()).unwrap();
            replay_and_log(
                &job.build_workload().unwrap(),
                &build_machine_from_dims(&dims),
            )
        };
        let first = once();
        // Every node is issued once and completed once.
        assert_eq!(first.log.events.len() as u64, 2 * first.outcome.nodes);
        assert_eq!(first, once());
    }
}

/// Returns the events of instances with an index less than `n`.
fn events_of_first_instances(log: &ObserverLog, n: u32) -> Vec<(u64, bool, u32, u32)> {
    let mut events = log.events.clone();
    events.retain(|event| event.2 < n);
    events
}

const N: usize = 5;

/// Returns a job in which ranks 0 to 4 run two all-reduces in their row, and ranks 5 to 9, in the
/// other row, run `others`.
fn build_two_row_job(late: &[u64], others: &[Vec<TestTraceNode>]) -> Vec<Vec<TestTraceNode>> {
    let member = |&ns: &u64| {
        let first = build_collective(K::AllReduce, 5000).group("row");
        let second = build_collective(K::AllToAll, 5000).group("row");
        vec![build_kernel(ns), first.after(&[1]), second.after(&[2])]
    };
    late.iter()
        .map(member)
        .chain(others.iter().cloned())
        .collect()
}

fn replay_first_row_events(
    dims: &[Dim],
    late: &[u64],
    others: &[Vec<TestTraceNode>],
) -> Vec<(u64, bool, u32, u32)> {
    let groups: [(&str, &[u32]); 2] = [("row", &[0, 1, 2, 3, 4]), ("other", &[5, 6, 7, 8, 9])];
    let workload = build_job_from_rank_nodes(&build_two_row_job(late, others), &groups);
    events_of_first_instances(
        &replay_and_log(&workload, &build_machine_from_dims(dims)).log,
        N as u32,
    )
}

/// Returns messages back and forth between pairs of the other row, and collectives of the whole
/// row.
fn build_second_row_messages_and_collectives(
    delays: &[u64],
    rounds: u64,
) -> Vec<Vec<TestTraceNode>> {
    let rank = |r: usize| {
        let mut lines = vec![build_kernel(delays[r])];
        // The pairs are 5-6 and 7-8, and 9 has no partner.
        let peer = [6, 5, 8, 7, 9][r];
        for round in 0..rounds {
            let last = lines.len() as u64;
            if peer != 9 {
                let tag = round as i32;
                lines.push(build_send(peer, 1000 * (round + 1)).tag(tag).after(&[last]));
                lines.push(
                    build_receive(peer, 1000 * (round + 1))
                        .tag(tag)
                        .after(&[last]),
                );
            }
            let last = lines.len() as u64;
            lines.push(
                build_collective(K::AllToAll, 5000)
                    .group("other")
                    .after(&[last]),
            );
        }
        lines
    };
    (0..N).map(rank).collect()
}

fn build_idle_traces_of_second_row() -> Vec<Vec<TestTraceNode>> {
    vec![vec![build_kernel(0)]; N]
}

proptest! {
    #![proptest_config(make_proptest_config(300))]

    /// Contract 2 of the engine: an unrelated event never reorders other events. Many starts
    /// coincide. On a ring, the first bytes of different senders reach a port at the same instant.
    #[test]
    fn unrelated_events_do_not_reorder_other_events(
        late in prop::collection::vec(prop_oneof![Just(0_u64), Just(520), 0_u64..3000], N),
        delays in prop::collection::vec(0_u64..3000, N),
        rounds in 1_u64..5,
        shape in prop::sample::select(vec![DimensionShape::Ring, DimensionShape::Switch]),
        algorithm in prop::sample::select(CollectiveAlgorithm::ALL.map(|(a, _)| a).to_vec()),
    ) {
        let dims = [make_dim_with_fixed_link_speed(shape, N as u32, algorithm), make_dim_with_fixed_link_speed(DimensionShape::FullyConnected, 2, Ring)];
        let alone = replay_first_row_events(&dims, &late, &build_idle_traces_of_second_row());
        prop_assert_eq!(replay_first_row_events(&dims, &late, &build_second_row_messages_and_collectives(&delays, rounds)), alone);
    }
}

/// Between two fully connected ranks, a direct barrier takes one link of 500 ns. At 500 ns, a
/// kernel also ends, and a kernel that takes no time follows it. The node after the barrier (4) and
/// the node after the kernels (5) share a lane, and are both ready at 500 ns in the same round. So
/// the node with the lower id goes first, whether the barrier ran with messages or by closed form.
#[test]
fn a_closed_form_in_place_of_messages_reorders_nothing() {
    let rank = vec![
        build_collective(K::Barrier, 0),
        build_kernel(500).on_lane(1),
        build_kernel(0).on_lane(1).after(&[2]),
        build_kernel(20).on_lane(2).after(&[1]),
        build_kernel(10).on_lane(2).after(&[3]),
    ];
    let workload = build_job_from_rank_nodes(&vec![rank; 2], &[]);
    let machine = build_machine_from_dims(&[make_dim_with_fixed_link_speed(
        DimensionShape::FullyConnected,
        2,
        Direct,
    )]);
    for options in [ReplayOptions::default(), make_stepwise_options()] {
        let replay = replay_with(&workload, &machine, &options);
        assert_eq!(
            (replay.node_end_ps(0, 4), replay.node_end_ps(0, 5)),
            (520_000, 530_000)
        );
    }
}

/// Returns a kernel, or a collective of all ranks, that depends on some earlier nodes. There are few distinct times, so
/// that many events fall at the same instant.
fn kernel_or_collective_strategy(before: u64) -> impl Strategy<Value = TestTraceNode> {
    let kernel = (
        prop::sample::select(vec![0_u64, 20, 500, 520, 1040]),
        0_i64..3,
    )
        .prop_map(|(ns, lane)| build_kernel(ns).on_lane(lane));
    let kinds = vec![K::Barrier, K::AllReduce, K::AllGather, K::AllToAll];
    let call = (
        prop::sample::select(kinds),
        prop::sample::select(vec![0_u64, 3000]),
    )
        .prop_map(|(kind, bytes)| {
            build_collective(kind, if kind == K::Barrier { 0 } else { bytes })
        });
    let after = prop::collection::btree_set(1..=before.max(1), 0..3);
    (prop_oneof![kernel, call], after).prop_map(move |(line, after)| {
        let after: Vec<_> = after.into_iter().filter(|&id| id <= before).collect();
        line.after(&after)
    })
}

proptest! {
    #![proptest_config(make_proptest_config(300))]

    #[test]
    fn closed_forms_and_messages_agree_on_every_node(
        lines in (0_u64..14).prop_flat_map(|n| (0..=n).map(kernel_or_collective_strategy).collect::<Vec<_>>()),
        algorithm in prop::sample::select(vec![Ring, Direct]),
    ) {
        let workload = build_job_from_rank_nodes(&vec![lines.clone(); 4], &[]);
        let machine = build_machine_from_dims(&[make_dim_with_fixed_link_speed(DimensionShape::FullyConnected, 4, algorithm)]);
        let [closed, stepped] =
            [ReplayOptions::default(), make_stepwise_options()].map(|o| replay_with(&workload, &machine, &o));
        for id in 1..=lines.len() as u32 {
            prop_assert_eq!(closed.node_end_ps(1, id), stepped.node_end_ps(1, id), "node {}", id);
        }
    }
}
