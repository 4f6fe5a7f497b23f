//! Tests that sends are eager: a send completes when its last byte has left, and a receive
//! completes when the last byte has arrived.

use super::lines::{build_kernel, build_receive, build_send};
use super::rig::{
    build_job_from_rank_nodes, build_machine_from_dims, make_dim_with_fixed_link_speed,
    replay_and_log,
};
use chakram::generate::{CheckedWorkloadPattern, P2pPattern, TrafficPattern, WorkloadPattern};
use chakram::machine::CollectiveAlgorithm::Ring;
use chakram::topology::DimensionShape;

/// Returns a ring of `n` NPUs with 20 ps per byte and 500 ns per link.
fn build_ring_machine_of_size(n: u32) -> chakram::machine::Machine {
    build_machine_from_dims(&[
        make_dim_with_fixed_link_speed(DimensionShape::Ring, n, Ring).with_npu_bandwidth_per_link(),
    ])
}

fn replay_traffic_ends(traffic: TrafficPattern, bytes: u64, ranks: u32, count: u32) -> Vec<u64> {
    let options = P2pPattern {
        count,
        ..P2pPattern::new(traffic, bytes, ranks)
    };
    let workload = CheckedWorkloadPattern::new(WorkloadPattern::P2p(options))
        .unwrap()
        .build_workload()
        .unwrap();
    replay_and_log(&workload, &build_ring_machine_of_size(ranks)).last_end_of_each_instance()
}

/// For 10,000 B, s = 200 ns. There are two links from 0 to 2, so the latency is 1,000 ns.
#[test]
fn a_send_is_over_at_injection_and_a_receive_when_all_is_there_and_wanted() {
    // The receiver posts at 0, just before the message has arrived, or at 3,000 ns, long after all
    // bytes have arrived.
    for (posted_ns, ends) in [(0, 1_200_000), (1199, 1_200_000), (3000, 3_000_000)] {
        let ranks = [
            vec![build_send(2, 10_000)],
            vec![build_kernel(0)],
            vec![
                build_kernel(posted_ns),
                build_receive(0, 10_000).after(&[1]),
            ],
        ];
        let replay = replay_and_log(
            &build_job_from_rank_nodes(&ranks, &[]),
            &build_ring_machine_of_size(8),
        );
        assert_eq!(replay.node_end_ps(0, 1), 200_000);
        assert_eq!(replay.node_end_ps(2, 2), ends);
        assert_eq!((replay.makespan_ps(), replay.outcome.messages), (ends, 1));
    }
}

/// Two sends to one peer take turns on their lane. Two sends to two peers are separate operations, and do not contend.
/// Each leaves in 200 ns. Rank 1 is one link away, and rank 2 is two links away.
#[test]
fn sends_to_one_peer_take_turns_and_sends_to_two_peers_do_not_contend() {
    let to = |peers: [u32; 2]| {
        let sends = [
            build_send(peers[0], 10_000).tag(1),
            build_send(peers[1], 10_000).tag(2),
        ];
        let receives = |rank| {
            let tagged = peers.iter().zip(1..).filter(move |(p, _)| **p == rank);
            let mut lines: Vec<_> = tagged
                .map(|(_, t)| build_receive(0, 10_000).tag(t))
                .collect();
            lines.push(build_kernel(0));
            lines
        };
        let ranks = [sends.to_vec(), receives(1), receives(2)];
        let replay = replay_and_log(
            &build_job_from_rank_nodes(&ranks, &[]),
            &build_ring_machine_of_size(8),
        );
        [
            replay.node_end_ps(0, 1),
            replay.node_end_ps(0, 2),
            replay.last_end_of_each_instance()[1],
            replay.last_end_of_each_instance()[2],
        ]
    };
    // The sends leave at 200 and 400 ns, and the second arrives at 200 + 500 + 200 ns.
    assert_eq!(to([1, 1]), [200_000, 400_000, 900_000, 0]);
    // The messages arrive at 500 + 200 and at 1,000 + 200 ns.
    assert_eq!(to([1, 2]), [200_000, 200_000, 700_000, 1_200_000]);
}

/// Messages with the same tag match in program order, even if they become ready in another order.
#[test]
fn the_kth_send_meets_the_kth_receive() {
    let ranks = [
        // The first send waits for a kernel of 5,000 ns, and the second waits for no node.
        vec![
            build_kernel(5000),
            build_send(1, 10_000).after(&[1]).on_lane(1),
            build_send(1, 10_000).on_lane(2),
        ],
        vec![build_receive(0, 10_000), build_receive(0, 10_000)],
    ];
    let replay = replay_and_log(
        &build_job_from_rank_nodes(&ranks, &[]),
        &build_ring_machine_of_size(8),
    );
    // 5,000 + 500 + 200 and 500 + 200 ns.
    assert_eq!(
        (replay.node_end_ps(1, 1), replay.node_end_ps(1, 2)),
        (5_700_000, 700_000)
    );
}

/// On a ring of 4, the short path from 0 to 3 is one link. One direction takes 500 + 200 ns, and 3 rounds need 6
/// transfers. Rank 3's last send completes 500 ns before the message is received.
#[test]
fn a_ping_pong_takes_two_ways_a_round() {
    let ends = replay_traffic_ends(TrafficPattern::PingPong, 10_000, 4, 3);
    assert_eq!(ends, [4_200_000, 0, 0, 3_700_000]);
}

/// All ranks send and receive at the same time, so a round takes 500 + 200 ns for any number of
/// ranks.
#[test]
fn each_round_of_a_ring_shift_takes_one_message_time_for_any_number_of_ranks() {
    for ranks in [2, 5, 8] {
        let ends = replay_traffic_ends(TrafficPattern::Ring, 10_000, ranks, 3);
        assert_eq!(ends, vec![2_100_000; ranks as usize]);
    }
    // 3 positions apart on a ring of 8 means 3 links, which take 1,500 + 200 ns.
    let ends = replay_traffic_ends(TrafficPattern::Stride(3), 10_000, 8, 1);
    assert_eq!(ends, vec![1_700_000; 8]);
    // 6 positions ahead are 2 positions in the other direction.
    let ends = replay_traffic_ends(TrafficPattern::Stride(6), 10_000, 8, 1);
    assert_eq!(ends, vec![1_200_000; 8]);
}

/// Seven senders each send to rank 0 of 8 in two rounds. Without contention between operations,
/// each sender behaves as if alone. The second message of each sender leaves at 200 ns, and arrives
/// after k links of 500 ns and its own 200 ns. Rank 4 is 4 links away, so the second message of
/// rank 4 arrives at 2,000 + 2 x 200 ns. Senders end when both messages have left, at 400 ns.
#[test]
fn without_contention_between_operations_incast_senders_act_as_if_alone() {
    let mut want = vec![400_000; 8];
    want[0] = 2_400_000;
    assert_eq!(
        replay_traffic_ends(TrafficPattern::Incast, 10_000, 8, 2),
        want
    );
}

/// A message crosses dimensions one after another. Latencies add up, and the slowest rate
/// determines the serialization. From NPU 0 = (0, 0) to NPU 7 = (3, 1), the message crosses one
/// ring link of 500 ns and two switch links of 1,000 ns. 10,000 B at 40 ps/B take 400 ns.
#[test]
fn a_message_across_dimensions_adds_latencies_at_the_slowest_rate() {
    let mut outer = make_dim_with_fixed_link_speed(DimensionShape::Switch, 2, Ring);
    (outer.ps_per_byte, outer.link_ns) = (40, 1000);
    let dims = [
        make_dim_with_fixed_link_speed(DimensionShape::Ring, 4, Ring),
        outer,
    ];
    let mut ranks = vec![vec![build_kernel(0)]; 8];
    ranks[0] = vec![build_send(7, 10_000)];
    ranks[7] = vec![build_receive(0, 10_000)];
    let replay = replay_and_log(
        &build_job_from_rank_nodes(&ranks, &[]),
        &build_machine_from_dims(&dims),
    );
    assert_eq!(
        (replay.node_end_ps(0, 1), replay.node_end_ps(7, 1)),
        (400_000, 2_900_000)
    );
}
