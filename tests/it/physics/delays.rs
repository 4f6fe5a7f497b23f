//! Tests delays. A delay is host time between the end of a node's dependencies and the moment when the node becomes
//! ready.

use super::lines::{TestTraceNode, build_collective, build_kernel, build_receive, build_send};
use super::rig::{
    ObserverLog, build_job_from_rank_nodes, build_machine_from_dims, build_ring_machine,
    load_released_traces, make_dim_with_fixed_link_speed, make_proptest_config,
    make_stepwise_options, replay_and_log, replay_with,
};
use super::stuck::replay_and_return_stuck_diagnosis;
use chakram::engine::{CompiledReplay, ReplayError, ReplayOptions};
use chakram::machine::CollectiveAlgorithm::{Direct, Ring};
use chakram::report;
use chakram::report::NpuTimeCategory;
use chakram::topology::DimensionShape;
use chakram::trace::CollectiveKind as K;
use chakram::workload::MissingRankPolicy;
use proptest::prelude::*;

/// Rank 0 is released at 100 ns, and has 5 ns of delay before its first kernel, which takes 10 ns.
/// The second kernel waits for the first kernel and for a kernel of 40 ns. It is ready 7 ns after
/// the later of the two ends.
#[test]
fn delays_count_from_the_last_dependency_or_the_release() {
    let lines = [
        build_kernel(10).delayed(5).on_lane(1),
        build_kernel(40).on_lane(2),
        build_kernel(20).delayed(7).after(&[1, 2]).on_lane(1),
    ];
    let builder = load_released_traces([(0, &lines[..])], |_| 100);
    let workload = builder
        .finish_workload(Some(1), MissingRankPolicy::Refuse)
        .unwrap();
    let replay = replay_and_log(&workload, &build_ring_machine(1));
    assert_eq!(
        [replay.node_start_ps(0, 1), replay.node_end_ps(0, 1)],
        [105_000, 115_000]
    );
    // The kernel starts at 100 + 40 + 7, and takes 20 ns.
    assert_eq!(
        [replay.node_start_ps(0, 3), replay.node_end_ps(0, 3)],
        [147_000, 167_000]
    );
}

/// A delayed node does not request a lane yet. So a kernel with a higher id that is ready
/// immediately runs first, and the delayed kernel, ready at 30 ns, runs when the first kernel has
/// ended.
#[test]
fn a_delayed_node_holds_no_place_on_its_lane() {
    let lines = vec![
        build_kernel(10).delayed(30).on_lane(1),
        build_kernel(100).on_lane(1),
    ];
    let replay = replay_and_log(
        &build_job_from_rank_nodes(&[lines], &[]),
        &build_ring_machine(1),
    );
    assert_eq!(
        (replay.node_end_ps(0, 2), replay.node_end_ps(0, 1)),
        (100_000, 110_000)
    );
}

/// A kernel and a delay both end at 500 ns. The nodes after them become ready in the same round,
/// and the node with the lower id goes first, even if it is the delayed node.
#[test]
fn nodes_ready_after_a_delay_at_one_instant_run_in_order_of_ids() {
    for flip in [false, true] {
        let after = || build_kernel(20).after(&[1]).on_lane(2);
        let delayed = || build_kernel(20).delayed(500).on_lane(2);
        let lines = match flip {
            false => vec![build_kernel(500).on_lane(1), after(), delayed()],
            true => vec![build_kernel(500).on_lane(1), delayed(), after()],
        };
        let replay = replay_and_log(
            &build_job_from_rank_nodes(&[lines], &[]),
            &build_ring_machine(1),
        );
        assert_eq!(
            (replay.node_end_ps(0, 2), replay.node_end_ps(0, 3)),
            (520_000, 540_000)
        );
    }
}

/// Members delayed by 0 and 1,000 ns arrive 1,000 ns apart. On a ring of two, a barrier is one
/// message of 500 ns in each direction. Rank 0's message leaves when rank 0 arrives, and rank 1's
/// leaves at 1,000 ns.
#[test]
fn a_delayed_member_arrives_late() {
    let ranks = [
        vec![build_collective(K::Barrier, 0)],
        vec![build_collective(K::Barrier, 0).delayed(1000)],
    ];
    let replay = replay_and_log(
        &build_job_from_rank_nodes(&ranks, &[]),
        &build_ring_machine(2),
    );
    assert_eq!(replay.last_end_of_each_instance(), [1_500_000, 1_000_000]);
    assert_eq!(replay.log.records[0].waited.0, 1_000_000);
}

/// A delay takes 100 ns, and a kernel on another lane covers 60 ns of it. Then a kernel takes 50
/// ns, and a delay of 25 ns precedes a node that does nothing. So compute (110 ns) and host (65 ns)
/// add up to the makespan.
#[test]
fn delays_are_time_of_the_host() {
    let nothing = super::lines::build_node(chakram::trace::Op::NoOp);
    let lines = vec![
        build_kernel(60).on_lane(1),
        build_kernel(50).on_lane(2).delayed(100),
        nothing.after(&[2]).delayed(25),
    ];
    let (workload, machine) = (
        build_job_from_rank_nodes(&[lines], &[]),
        build_ring_machine(1),
    );
    let prepared = CompiledReplay::new(&workload, &machine, &ReplayOptions::default()).unwrap();
    let (report, _) = report::replay_to_report(&prepared, None::<ObserverLog>).unwrap();
    let time = &report.rows[0].time;
    assert_eq!(report.outcome.makespan.0, 175_000);
    assert_eq!(time.parts[NpuTimeCategory::Compute as usize].0, 110_000);
    assert_eq!(time.parts[NpuTimeCategory::Host as usize].0, 65_000);
    assert_eq!(time.parts[NpuTimeCategory::Idle as usize].0, 0);
    assert_eq!(time.finish, report.outcome.makespan);
}

/// Two ranks receive before they send, each after a delay. When no event is left, the delays are
/// over, and the reported cycle is the same as without delays.
#[test]
fn delays_do_not_hide_what_a_stuck_replay_waits_for() {
    let rank = |peer, ns| {
        vec![
            build_receive(peer, 64).delayed(ns),
            build_send(peer, 64).after(&[1]).delayed(50),
        ]
    };
    let ranks = [rank(1, 10), rank(0, 90)];
    let stuck = replay_and_return_stuck_diagnosis(&ranks, &ReplayOptions::default());
    let circle = stuck.cycle.iter().map(|node| (node.rank.0, node.id));
    assert_eq!(circle.collect::<Vec<_>>(), [(0, 1), (1, 2), (1, 1), (0, 2)]);
    let why: Vec<_> = stuck.waiting.iter().map(|w| w.why.as_str()).collect();
    let waits = |peer| {
        format!(
            "64 bytes from rank {peer} with tag 0, rank {peer} node 2 `n2` waits for 1 dependency"
        )
    };
    assert_eq!(why, [waits(1), waits(0)]);
}

/// Time is limited to 213 days, even with delays.
#[test]
fn absurd_delays_are_an_error() {
    let workload = build_job_from_rank_nodes(&[vec![build_kernel(1).delayed(u64::MAX)]], &[]);
    let machine = build_ring_machine(1);
    let prepared = CompiledReplay::new(&workload, &machine, &ReplayOptions::default()).unwrap();
    let end = prepared
        .run(ObserverLog::default())
        .map(|(outcome, _)| outcome);
    assert_eq!(end, Err(ReplayError::TooLong));
}

/// Returns kernels and collectives that depend on some earlier nodes. Their delays take few distinct values, so that
/// many events fall at the same instant.
fn delayed_node_strategy(before: u64) -> impl Strategy<Value = TestTraceNode> {
    let times = || prop::sample::select(vec![0_u64, 20, 500, 520, 1040]);
    let after = prop::collection::btree_set(1..=before.max(1), 0..3);
    (times(), times(), 0_i64..3, 0_u32..3, after).prop_map(move |(ns, delay, lane, what, after)| {
        let line = match what {
            0 => build_collective(K::AllGather, 3000),
            _ => build_kernel(ns).on_lane(lane),
        };
        let after: Vec<_> = after.into_iter().filter(|&id| id <= before).collect();
        line.after(&after).delayed(delay)
    })
}

proptest! {
    #![proptest_config(make_proptest_config(300))]

    #[test]
    fn replays_with_delays_repeat_exactly_and_match_message_replays(
        lines in (0_u64..14).prop_flat_map(|n| (0..=n).map(delayed_node_strategy).collect::<Vec<_>>()),
        algorithm in prop::sample::select(vec![Ring, Direct]),
    ) {
        let workload = build_job_from_rank_nodes(&vec![lines.clone(); 3], &[]);
        let machine = build_machine_from_dims(&[make_dim_with_fixed_link_speed(DimensionShape::FullyConnected, 3, algorithm)]);
        let first = replay_and_log(&workload, &machine);
        prop_assert_eq!(&first, &replay_and_log(&workload, &machine));
        let stepped = replay_with(&workload, &machine, &make_stepwise_options());
        for id in 1..=lines.len() as u32 {
            prop_assert_eq!(first.node_end_ps(1, id), stepped.node_end_ps(1, id), "node {}", id);
        }
    }
}
