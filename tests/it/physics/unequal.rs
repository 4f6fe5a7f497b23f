//! Tests all-to-alls with unequal parts against sums by hand, and all-to-alls whose equal parts are given explicitly.

use super::lines::{TestTraceNode, build_collective, build_kernel};
use super::rig::{
    Dim, ReplayOutcomeAndLog, build_job_from_rank_nodes, build_machine_from_dims,
    encode_and_load_rank_traces, make_dim_with_fixed_link_speed, make_stepwise_network_options,
    replay_with,
};
use chakram::engine::{CompiledReplay, NetworkModel, ReplayOptions};
use chakram::machine::CollectiveAlgorithm;
use chakram::topology::DimensionShape;
use chakram::trace::{CollectiveKind, format_size_list};
use chakram::workload::MissingRankPolicy;

const NETWORKS: [NetworkModel; 2] = [NetworkModel::ContentionFree, NetworkModel::Ports];

/// Returns an all-to-all of `bytes` that sends `send` and receives `receive`.
fn make_uneven_all_to_all(bytes: u64, send: &[u64], receive: &[u64]) -> TestTraceNode {
    let text = |list: &[u64]| match list {
        [] => String::new(),
        list => format_size_list(list),
    };
    TestTraceNode {
        splits: [text(send), text(receive)],
        ..build_collective(CollectiveKind::AllToAll, bytes)
    }
}

fn replay_uneven_all_to_all(
    rows: &[Vec<u64>],
    dims: &[Dim],
    options: &ReplayOptions,
) -> ReplayOutcomeAndLog {
    let most = rows.iter().map(|row| row.iter().sum()).max().unwrap_or(0);
    let ranks = rows
        .iter()
        .map(|row| vec![make_uneven_all_to_all(most, row, &[])]);
    let workload = build_job_from_rank_nodes(&ranks.collect::<Vec<_>>(), &[]);
    replay_with(&workload, &build_machine_from_dims(dims), options)
}

/// Returns three fully connected members with α = 500 ns, and 20 ns for 1,000 B.
fn make_three_member_dim(algorithm: CollectiveAlgorithm) -> [Dim; 1] {
    [make_dim_with_fixed_link_speed(
        DimensionShape::FullyConnected,
        3,
        algorithm,
    )]
}

/// Returns the bytes that each of three members sends to the next member and to the one after it.
/// The part for the next member is always 1,000 B, so that no receiver gets two messages at once.
fn sent_bytes_matrix_of_three_members() -> Vec<Vec<u64>> {
    vec![vec![7, 1000, 3000], vec![500, 7, 1000], vec![1000, 0, 7]]
}

/// With direct exchanges, the second message leaves after the first, at 20 ns. The message from 0
/// to 2 takes 60 ns and arrives at 20 + 500 + 60 = 580; the message from 1 to 0 takes 10 ns and
/// arrives at 530. Member 1 gets no second message and ends when the first arrives, at 520.
#[test]
fn direct_exchanges_end_when_the_longest_is_there() {
    for network in NETWORKS {
        let replay = replay_uneven_all_to_all(
            &sent_bytes_matrix_of_three_members(),
            &make_three_member_dim(CollectiveAlgorithm::Direct),
            &make_stepwise_network_options(network),
        );
        assert_eq!(
            replay.last_end_of_each_instance(),
            [530_000, 520_000, 580_000],
            "{network}"
        );
        assert_eq!(replay.outcome.stepwise, 1);
    }
}

/// With pairwise exchanges, all members have received in round 1 by 520, and begin round 2. Member
/// 2 has its 3,000 B at 520 + 500 + 60 = 1,080, and 0 its 500 B at 520 + 500 + 10 = 1,030. In round
/// 2, member 2 sends no message, and member 1 receives none but sends 500 B.
#[test]
fn pairwise_exchanges_go_round_by_round() {
    for network in NETWORKS {
        let replay = replay_uneven_all_to_all(
            &sent_bytes_matrix_of_three_members(),
            &make_three_member_dim(CollectiveAlgorithm::Pairwise),
            &make_stepwise_network_options(network),
        );
        let [first, second, third] = replay.last_end_of_each_instance()[..] else {
            panic!("there are three members");
        };
        assert_eq!((first, third), (1_030_000, 1_080_000), "{network}");
        // Member 1's own message has left by 520 + 10.
        assert_eq!(second, 530_000, "{network}");
    }
}

/// All parts are empty, for any size of the buffer.
#[test]
fn all_to_all_with_empty_parts_takes_no_time() {
    let ranks = vec![vec![make_uneven_all_to_all(9000, &[0; 3], &[])]; 3];
    for (algorithm, _) in CollectiveAlgorithm::ALL {
        let workload = build_job_from_rank_nodes(&ranks, &[]);
        let replay = replay_with(
            &workload,
            &build_machine_from_dims(&make_three_member_dim(algorithm)),
            &ReplayOptions::default(),
        );
        assert_eq!(replay.makespan_ps(), 0, "{algorithm}");
    }
}

/// Only member 0 of four sends, in the order 1, 2, 3: 1,000, 2,000 and 3,000 B have left by 20, 60
/// and 120 ns.
#[test]
fn one_member_may_send_to_all_and_receive_nothing() {
    let rows = [
        vec![0, 1000, 2000, 3000],
        vec![0; 4],
        vec![0; 4],
        vec![0; 4],
    ];
    let dims = [make_dim_with_fixed_link_speed(
        DimensionShape::FullyConnected,
        4,
        CollectiveAlgorithm::Direct,
    )];
    for network in NETWORKS {
        let replay =
            replay_uneven_all_to_all(&rows, &dims, &make_stepwise_network_options(network));
        assert_eq!(
            replay.last_end_of_each_instance()[1..],
            [520_000, 560_000, 620_000],
            "{network}"
        );
        assert!(
            replay.last_end_of_each_instance()[0] <= 120_000,
            "{network}"
        );
    }
}

/// The machine has 2 × 2 NPUs with rank = x + 2 y and direct exchanges in both dimensions. The only
/// data are 1,000 B from 0 to 3. The bytes go along x to 1, where they arrive at 520, and then
/// along y to 3, where they arrive at 1,040.
#[test]
fn uneven_all_to_all_crosses_one_dimension_after_another() {
    let mut rows = vec![vec![0; 4]; 4];
    rows[0][3] = 1000;
    let dims = [make_dim_with_fixed_link_speed(
        DimensionShape::FullyConnected,
        2,
        CollectiveAlgorithm::Direct,
    ); 2];
    for network in NETWORKS {
        let replay =
            replay_uneven_all_to_all(&rows, &dims, &make_stepwise_network_options(network));
        assert_eq!(
            replay.last_end_of_each_instance()[3],
            1_040_000,
            "{network}"
        );
    }
}

/// Equal parts given explicitly take exactly the same times as implicit ones, with messages and by closed form, for
/// every algorithm.
#[test]
fn equal_parts_are_an_all_to_all_like_any_other() {
    for (algorithm, _) in CollectiveAlgorithm::ALL {
        for n in [2, 3, 4, 7] {
            let dims = [
                make_dim_with_fixed_link_speed(DimensionShape::Ring, n, algorithm),
                make_dim_with_fixed_link_speed(DimensionShape::Switch, 2, algorithm),
            ];
            let all = 2 * n as usize;
            let (part, machine) = (12_345, build_machine_from_dims(&dims));
            let said = vec![
                vec![make_uneven_all_to_all(
                    part * all as u64,
                    &vec![part; all],
                    &[]
                )];
                all
            ];
            let plain = vec![
                vec![build_collective(
                    CollectiveKind::AllToAll,
                    part * all as u64
                )];
                all
            ];
            for options in [
                ReplayOptions::default(),
                make_stepwise_network_options(NetworkModel::ContentionFree),
                make_stepwise_network_options(NetworkModel::Ports),
            ] {
                let run = |ranks: &[Vec<TestTraceNode>]| {
                    replay_with(&build_job_from_rank_nodes(ranks, &[]), &machine, &options)
                };
                assert_eq!(run(&said), run(&plain), "{algorithm}, {n}");
            }
        }
    }
}

/// Rank 2 has no trace. Its sends follow from the other ranks' receives, and it sends nothing to 1. The size of its
/// part for itself is unknown.
#[test]
fn the_receivers_know_what_an_absent_rank_sent() {
    let rows = sent_bytes_matrix_of_three_members();
    let columns = |to: usize| rows.iter().map(|row| row[to]).collect::<Vec<u64>>();
    let lines = [0, 1].map(|rank| [make_uneven_all_to_all(4007, &rows[rank], &columns(rank))]);
    let present = [(0, &lines[0][..]), (1, &lines[1][..])];
    let workload = encode_and_load_rank_traces(present)
        .finish_workload(Some(3), MissingRankPolicy::Mirror)
        .unwrap();
    let machine = build_machine_from_dims(&make_three_member_dim(CollectiveAlgorithm::Direct));
    for network in NETWORKS {
        let replay = replay_with(&workload, &machine, &make_stepwise_network_options(network));
        assert_eq!(
            replay.last_end_of_each_instance(),
            [530_000, 520_000],
            "{network}"
        );
    }
    // Only rank 0 is present, so the two absent ranks are assumed to exchange equal parts: 4,007 B
    // ÷ 3 = 1,335 B, which take 26.7 ns. Rank 1's part for 0 leaves after this part, and arrives
    // 500 + 10 later.
    let workload = encode_and_load_rank_traces([(0, &lines[0][..])])
        .finish_workload(Some(3), MissingRankPolicy::Mirror)
        .unwrap();
    let replay = replay_with(
        &workload,
        &machine,
        &make_stepwise_network_options(NetworkModel::Ports),
    );
    assert_eq!(replay.last_end_of_each_instance(), [536_700]);
}

/// If parts differ from call to call, each call has its own schedule.
#[test]
fn each_uneven_all_to_all_has_its_own_sizes() {
    let dims = make_three_member_dim(CollectiveAlgorithm::Direct);
    let twice = |factor: u64| {
        let rows: Vec<Vec<u64>> = sent_bytes_matrix_of_three_members()
            .iter()
            .map(|row| row.iter().map(|part| part * factor).collect())
            .collect();
        let ranks = (0..3).map(|rank| {
            let second = make_uneven_all_to_all(8014, &rows[rank], &[]).after(&[2]);
            vec![
                make_uneven_all_to_all(8014, &sent_bytes_of_rank(rank), &[]),
                build_kernel(2000).after(&[1]),
                second,
            ]
        });
        let workload = build_job_from_rank_nodes(&ranks.collect::<Vec<_>>(), &[]);
        replay_with(
            &workload,
            &build_machine_from_dims(&dims),
            &make_stepwise_network_options(NetworkModel::Ports),
        )
    };
    // The second call begins at 2,530, 2,520 and 2,580. Rank 0's part for 2 leaves after its part
    // for 1, at 2,550, or at 2,570 if all parts are doubled. This part is the last to arrive, 500 +
    // 60, or 500 + 120, later.
    assert_eq!(
        (twice(1).makespan_ps(), twice(2).makespan_ps()),
        (3_110_000, 3_190_000)
    );
}

fn sent_bytes_of_rank(rank: usize) -> Vec<u64> {
    sent_bytes_matrix_of_three_members()[rank].clone()
}

#[test]
fn size_lists_that_do_not_match_the_members_are_refused() {
    let ranks = vec![vec![make_uneven_all_to_all(9, &[4, 5], &[])]; 3];
    let machine = build_machine_from_dims(&make_three_member_dim(CollectiveAlgorithm::Direct));
    let workload = build_job_from_rank_nodes(&ranks, &[]);
    let refusal = CompiledReplay::new(&workload, &machine, &ReplayOptions::default());
    let text = format!("{:?}", refusal.expect_err("three members"));
    assert!(
        text.contains("`send_bytes` of 2 members") && text.contains("has 3"),
        "{text}"
    );
}
