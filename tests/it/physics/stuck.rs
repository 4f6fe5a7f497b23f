//! Tests replays that get stuck: the waiting nodes, their reasons, and the cycle.

use super::lines::{TestTraceNode, build_collective, build_kernel, build_receive, build_send};
use super::rig::{ObserverLog, build_job_from_rank_nodes, build_ring_machine};
use chakram::engine::{CompiledReplay, ReplayError, ReplayOptions, Stuck};
use chakram::trace::CollectiveKind as K;

/// Replays the ranks on a ring, and returns why the replay is stuck.
pub fn replay_and_return_stuck_diagnosis(
    ranks: &[Vec<TestTraceNode>],
    options: &ReplayOptions,
) -> Stuck {
    let workload = build_job_from_rank_nodes(ranks, &[]);
    let machine = build_ring_machine(ranks.len() as u32);
    let prepared = CompiledReplay::new(&workload, &machine, options).unwrap();
    match prepared.run(ObserverLog::default()) {
        Err(ReplayError::Stuck(stuck)) => *stuck,
        other => panic!("expected to be stuck: {other:?}"),
    }
}

/// Ranks, each with node ids.
type RankNodeIdPairs = Vec<(u32, u64)>;

/// Returns the waiting nodes and the nodes of the cycle.
fn list_waiting_and_cycle_nodes(stuck: &Stuck) -> (RankNodeIdPairs, RankNodeIdPairs) {
    let waiting = stuck.waiting.iter().map(|w| (w.node.rank.0, w.node.id));
    let cycle = stuck.cycle.iter().map(|node| (node.rank.0, node.id));
    (waiting.collect(), cycle.collect())
}

#[test]
fn two_ranks_that_receive_before_they_send_are_stuck() {
    let rank = |peer| {
        vec![
            build_kernel(10),
            build_receive(peer, 64),
            build_send(peer, 64).after(&[2]),
        ]
    };
    let stuck = replay_and_return_stuck_diagnosis(&[rank(1), rank(0)], &ReplayOptions::default());
    assert_eq!((stuck.completed, stuck.total), (2, 6));
    // Each receive waits for the other rank's send, and each send waits for its own rank's receive.
    let circle = vec![(0, 2), (1, 3), (1, 2), (0, 3)];
    assert_eq!(
        list_waiting_and_cycle_nodes(&stuck),
        (vec![(0, 2), (1, 2)], circle)
    );
    for (waiting, [own, peer]) in stuck.waiting.iter().zip([[0, 1], [1, 0]]) {
        assert_eq!(waiting.node.rank.0, own);
        let expected = format!(
            "64 bytes from rank {peer} with tag 0, rank {peer} node 3 `n3` waits for 1 dependency"
        );
        assert_eq!(waiting.why, expected);
    }
    let text = stuck.to_string();
    assert!(
        text.starts_with("the replay deadlocked: 2 of 6 nodes completed\n"),
        "{text}"
    );
    let circle = "deadlock cycle: rank 0 node 2 `n2` → rank 1 node 3 `n3` → rank 1 node 2 `n2` → \
                  rank 0 node 3 `n3` → rank 0 node 2 `n2`";
    assert!(text.contains(circle), "{text}");
}

/// Each of three ranks waits for the next, and a fourth rank waits for the first.
#[test]
fn a_circle_of_three_ranks_and_one_that_waits_for_it_are_stuck() {
    let rank = |from, to| vec![build_receive(from, 8), build_send(to, 8).after(&[1])];
    let mut ranks = [
        rank(1, 2),
        rank(2, 0),
        rank(0, 1),
        vec![build_receive(0, 8)],
    ]
    .to_vec();
    ranks[0].push(build_send(3, 8).after(&[1]));
    let (waiting, cycle) = list_waiting_and_cycle_nodes(&replay_and_return_stuck_diagnosis(
        &ranks,
        &ReplayOptions::default(),
    ));
    assert_eq!(waiting, [(0, 1), (1, 1), (2, 1), (3, 1)]);
    assert_eq!(cycle, [(0, 1), (1, 2), (1, 1), (2, 2), (2, 1), (0, 2)]);
}

/// This is the job of the next test with the barrier on a kernel's stream. No node occupies the lane in the meantime,
/// and the member that is not ready is still named.
#[test]
fn a_member_missing_at_a_barrier_on_a_stream_is_named() {
    let barrier = || build_collective(K::Barrier, 0).on_lane(0);
    let ranks = [
        vec![
            build_kernel(1).on_lane(0),
            build_receive(1, 8),
            barrier().after(&[2]),
        ],
        vec![
            build_kernel(1).on_lane(0),
            barrier(),
            build_send(0, 8).after(&[2]),
        ],
    ];
    let stuck = replay_and_return_stuck_diagnosis(&ranks, &ReplayOptions::default());
    let circle = vec![(0, 2), (1, 3), (1, 2), (0, 3)];
    assert_eq!(
        list_waiting_and_cycle_nodes(&stuck),
        (vec![(0, 2), (1, 2)], circle)
    );
    let why = &stuck.waiting[1].why;
    assert!(why.contains("1 of 2 members of its group"), "{why}");
    assert!(
        why.contains("rank 0 node 3 `n3` waits for 1 dependency"),
        "{why}"
    );
}

/// A barrier follows one side of a message whose other side waits for the barrier.
#[test]
fn a_member_waiting_for_a_message_sent_after_the_collective_is_stuck() {
    let ranks = [
        vec![
            build_receive(1, 8),
            build_collective(K::Barrier, 0).after(&[1]),
        ],
        vec![
            build_collective(K::Barrier, 0),
            build_send(0, 8).after(&[1]),
        ],
    ];
    let stuck = replay_and_return_stuck_diagnosis(&ranks, &ReplayOptions::default());
    let circle = vec![(0, 1), (1, 2), (1, 1), (0, 2)];
    assert_eq!(
        list_waiting_and_cycle_nodes(&stuck),
        (vec![(0, 1), (1, 1)], circle)
    );
    assert!(stuck.waiting[1].why.contains("barrier"), "{stuck}");
    assert!(
        stuck.waiting[1]
            .why
            .contains("rank 0 node 2 `n2` waits for 1 dependency")
    );
}
