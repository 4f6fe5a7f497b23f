//! Tests communication that is timed as recorded or as captured: for which ranks a rank waits, and
//! when the waits end.

use super::lines::{TestTraceNode, build_collective, build_kernel, build_receive, build_send};
use super::rig::{
    ObserverLog, ReplayOutcomeAndLog, build_job_from_rank_nodes, build_ring_machine,
    encode_and_load_rank_traces, load_released_traces, make_options_with_comm_duration_source,
    replay_with,
};
use super::stuck::replay_and_return_stuck_diagnosis;
use chakram::engine::{CommunicationDurationSource, CompiledReplay};
use chakram::ids::Rank;
use chakram::report;
use chakram::trace::CollectiveKind as K;
use chakram::units::Span;
use chakram::workload::MissingRankPolicy;

fn replay_on_ring(
    ranks: &[Vec<TestTraceNode>],
    comm: CommunicationDurationSource,
) -> ReplayOutcomeAndLog {
    replay_with(
        &build_job_from_rank_nodes(ranks, &[]),
        &build_ring_machine(ranks.len() as u32),
        &make_options_with_comm_duration_source(comm),
    )
}

fn replay_recorded(ranks: &[Vec<TestTraceNode>]) -> ReplayOutcomeAndLog {
    replay_on_ring(ranks, CommunicationDurationSource::Recorded)
}

/// A member that first computes, and then joins the collective.
struct ComputeThenJoinMember {
    start: u64,
    lasts: u64,
    eager: bool,
}

fn build_collective_member(start: u64, lasts: u64) -> ComputeThenJoinMember {
    ComputeThenJoinMember {
        start,
        lasts,
        eager: false,
    }
}

fn build_eager_collective_member(start: u64, lasts: u64) -> ComputeThenJoinMember {
    ComputeThenJoinMember {
        eager: true,
        ..build_collective_member(start, lasts)
    }
}

/// Returns all members of a collective of `kind`, whose root, if any, is rank 1.
fn build_ranks_of_collective(kind: K, of: &[ComputeThenJoinMember]) -> Vec<Vec<TestTraceNode>> {
    let rank = |of: &ComputeThenJoinMember| {
        let bytes = if kind == K::Barrier { 0 } else { 4096 };
        let mut node = build_collective(kind, bytes).after(&[1]).lasts(of.lasts);
        if kind.has_root() {
            node = node.with_collective_root(1);
        }
        // Recorded waits of the capture do not count.
        node = node.waited(77);
        let node = if of.eager {
            node.with_eager_flag()
        } else {
            node
        };
        vec![build_kernel(of.start), node]
    };
    of.iter().map(rank).collect()
}

const WITHOUT_ROOT: [K; 5] = [
    K::AllReduce,
    K::AllGather,
    K::ReduceScatter,
    K::AllToAll,
    K::Barrier,
];
const WITH_ROOT: [K; 4] = [K::Broadcast, K::Scatter, K::Reduce, K::Gather];

/// The members start at 0, 500 and 900 ns, so all parts begin at 900 ns, and end at 900 + 10, 900 +
/// 20 and 900 + 30. Rank 0 waits 900 ns for rank 2, and rank 1 waits 400 ns.
#[test]
fn without_a_root_everyone_waits_for_everyone() {
    for kind in WITHOUT_ROOT {
        let replay = replay_recorded(&build_ranks_of_collective(
            kind,
            &[
                build_collective_member(0, 10),
                build_collective_member(500, 20),
                build_collective_member(900, 30),
            ],
        ));
        assert_eq!(
            replay.last_end_of_each_instance(),
            [910_000, 920_000, 930_000],
            "{kind}"
        );
        let outcome = &replay.outcome;
        assert_eq!(
            (outcome.recorded, outcome.closed, outcome.stepwise),
            (1, 0, 0)
        );
        assert_eq!(outcome.messages, 0);
        let record = replay.log.records[0];
        assert_eq!((record.last_start.0, record.end.0), (900_000, 930_000));
        assert_eq!(record.transfer, Span::from_ns(30));
        assert_eq!(record.waited, Span::from_ns(1300));
        assert_eq!(record.waited_for, Some((Rank(2), Span::from_ns(1300))));
    }
}

/// With the same starts and the root at rank 1, the root waits for all ranks and ends at 900 + 20.
/// Rank 0 waits only for the root, and ends at 500 + 10. Rank 2 arrives after the root and does not
/// wait, so it ends at 900 + 30. Rank 0 waits 500 ns for the root, and the root waits 400 ns for
/// rank 2.
#[test]
fn with_a_root_the_others_wait_for_the_root() {
    for kind in WITH_ROOT {
        let replay = replay_recorded(&build_ranks_of_collective(
            kind,
            &[
                build_collective_member(0, 10),
                build_collective_member(500, 20),
                build_collective_member(900, 30),
            ],
        ));
        assert_eq!(
            replay.last_end_of_each_instance(),
            [510_000, 920_000, 930_000],
            "{kind}"
        );
        let record = replay.log.records[0];
        assert_eq!(record.waited, Span::from_ns(900));
        assert_eq!(record.waited_for, Some((Rank(1), Span::from_ns(500))));
    }
}

/// An eager root ends at 500 + 20, and the other members are unaffected. In one case, the root's
/// own part is the longest, so the collective ends after all other members have arrived and left.
#[test]
fn an_eager_root_leaves_before_the_others_come() {
    for kind in WITH_ROOT {
        for (lasts, end) in [(20, 930_000), (2000, 2_500_000)] {
            let of = [
                build_collective_member(0, 10),
                build_eager_collective_member(500, lasts),
                build_collective_member(900, 30),
            ];
            let replay = replay_recorded(&build_ranks_of_collective(kind, &of));
            let root = (500 + lasts) * 1000;
            assert_eq!(
                replay.last_end_of_each_instance(),
                [510_000, root, 930_000],
                "{kind}"
            );
            let record = replay.log.records[0];
            assert_eq!(
                (record.end.0, record.transfer.0),
                (end, lasts.max(30) * 1000)
            );
            assert_eq!(record.waited_for, Some((Rank(1), Span::from_ns(500))));
        }
    }
}

/// An eager member starts when it arrives, whether it arrives first or last. The other members wait for it as before.
#[test]
fn an_eager_member_waits_for_nobody() {
    for kind in WITHOUT_ROOT {
        let of = [
            build_eager_collective_member(0, 10),
            build_collective_member(500, 20),
            build_eager_collective_member(900, 30),
        ];
        let replay = replay_recorded(&build_ranks_of_collective(kind, &of));
        assert_eq!(
            replay.last_end_of_each_instance(),
            [10_000, 920_000, 930_000],
            "{kind}"
        );
    }
    // If the root is rank 1, rank 0 does not even wait for the root.
    for kind in WITH_ROOT {
        let of = [
            build_eager_collective_member(0, 10),
            build_collective_member(500, 20),
            build_collective_member(900, 30),
        ];
        let replay = replay_recorded(&build_ranks_of_collective(kind, &of));
        assert_eq!(
            replay.last_end_of_each_instance(),
            [10_000, 920_000, 930_000],
            "{kind}"
        );
    }
}

/// All members arrive at the same time, so no member waits.
#[test]
fn members_that_come_together_wait_for_nobody() {
    let replay = replay_recorded(&build_ranks_of_collective(
        K::Reduce,
        &[
            build_collective_member(5, 10),
            build_collective_member(5, 20),
            build_collective_member(5, 0),
        ],
    ));
    assert_eq!(replay.last_end_of_each_instance(), [15_000, 25_000, 5_000]);
    let record = replay.log.records[0];
    assert_eq!((record.waited, record.waited_for), (Span::ZERO, None));
}

/// Rank 0's stream runs the collective and then a kernel. The group shares the lane with other
/// work. So the collective first waits until all members are ready, without occupying the lane, and
/// the kernel of 50 ns runs first. An eager member takes the lane immediately, and the kernel waits
/// for it.
#[test]
fn eager_members_take_their_lane_immediately() {
    let rank = |is_eager: bool| {
        let node = build_collective(K::AllReduce, 8).on_lane(1).lasts(10);
        let node = if is_eager {
            node.with_eager_flag()
        } else {
            node
        };
        vec![node, build_kernel(50).on_lane(1)]
    };
    let late = vec![
        build_collective(K::AllReduce, 8)
            .on_lane(1)
            .lasts(10)
            .delayed(900),
    ];
    let replay = replay_recorded(&[rank(false), late.clone()]);
    assert_eq!(
        (replay.node_end_ps(0, 2), replay.node_end_ps(0, 1)),
        (50_000, 910_000)
    );
    let replay = replay_recorded(&[rank(true), late]);
    assert_eq!(
        (replay.node_end_ps(0, 1), replay.node_end_ps(0, 2)),
        (10_000, 60_000)
    );
    assert_eq!(replay.node_end_ps(1, 1), 910_000);
}

/// An eager rank runs two successive all-reduces. The other rank is ready for the second all-reduce
/// first. Turns count for the eager rank too, so both collectives complete.
#[test]
fn eager_members_are_matched_to_successive_collectives_in_order() {
    let node = |ns| build_collective(K::AllReduce, 8).lasts(ns);
    let ranks = [
        vec![
            node(10).with_eager_flag().delayed(300),
            node(20).with_eager_flag(),
        ],
        vec![node(10).delayed(700), node(20).delayed(100)],
    ];
    let replay = replay_recorded(&ranks);
    // Rank 0's first lane runs both: the second collective from 0 to 20 ns, and the first from 300
    // to 310 ns.
    assert_eq!(
        (replay.node_end_ps(0, 1), replay.node_end_ps(0, 2)),
        (310_000, 20_000)
    );
    // Both ranks are ready for the second collective at 100 ns, so it may overtake, and ends at 100
    // + 20. The first collective ends at 700 + 10.
    assert_eq!(
        (replay.node_end_ps(1, 1), replay.node_end_ps(1, 2)),
        (710_000, 120_000)
    );
}

/// Rank 0 of 3 has no trace. If rank 0 is the root, it arrives with the last of the other ranks, at
/// 900 ns, so both wait until then. If rank 1 is the root, rank 1 waits for rank 2.
#[test]
fn ranks_without_trace_arrive_with_last_present_rank() {
    let rank = |root, ns, lasts| {
        vec![
            build_kernel(ns),
            build_collective(K::Broadcast, 64)
                .with_collective_root(root)
                .lasts(lasts)
                .after(&[1]),
        ]
    };
    let ends = |root| {
        let (first, second) = (rank(root, 100, 10), rank(root, 900, 30));
        let builder = encode_and_load_rank_traces([(1, &first[..]), (2, &second[..])]);
        let workload = builder
            .finish_workload(Some(3), MissingRankPolicy::Mirror)
            .unwrap();
        replay_with(
            &workload,
            &build_ring_machine(3),
            &make_options_with_comm_duration_source(CommunicationDurationSource::Recorded),
        )
        .last_end_of_each_instance()
    };
    assert_eq!(ends(0), [910_000, 930_000]);
    assert_eq!(ends(1), [910_000, 930_000]);
    assert_eq!(ends(2), [910_000, 930_000]);
}

/// Returns the ends of both halves of a message from rank 0 to rank 1. The send is ready at `sent`, and the receive at
/// `posted`. The sender's half takes 10 ns, and the receiver's 25 ns.
fn replay_and_get_ends_of_message_halves(sent: u64, posted: u64, is_eager: bool) -> [u64; 2] {
    let half = build_send(1, 64).after(&[1]).lasts(10).waited(3);
    let half = if is_eager {
        half.with_eager_flag()
    } else {
        half
    };
    // A receive cannot end before its dependencies, even if the trace marks it as eager.
    let other = build_receive(0, 64).after(&[1]).lasts(25).with_eager_flag();
    let replay = replay_recorded(&[
        vec![build_kernel(sent), half],
        vec![build_kernel(posted), other],
    ]);
    assert_eq!(replay.outcome.messages, 0);
    [replay.node_end_ps(0, 2), replay.node_end_ps(1, 2)]
}

#[test]
fn both_halves_of_a_message_begin_at_the_later_start() {
    // Both halves begin at the later start, 400 ns.
    assert_eq!(
        replay_and_get_ends_of_message_halves(100, 400, false),
        [410_000, 425_000]
    );
    assert_eq!(
        replay_and_get_ends_of_message_halves(400, 100, false),
        [410_000, 425_000]
    );
    assert_eq!(
        replay_and_get_ends_of_message_halves(400, 400, false),
        [410_000, 425_000]
    );
}

#[test]
fn an_eager_send_ends_whether_or_not_it_is_received() {
    assert_eq!(
        replay_and_get_ends_of_message_halves(100, 400, true),
        [110_000, 425_000]
    );
    assert_eq!(
        replay_and_get_ends_of_message_halves(400, 100, true),
        [410_000, 425_000]
    );
}

/// The peer of these messages has no trace, so its half starts together with the half that has a trace.
#[test]
fn messages_whose_peer_has_no_trace_last_as_recorded() {
    let lines = [
        build_kernel(300),
        build_send(1, 64).after(&[1]).lasts(10),
        build_receive(1, 64).after(&[1]).lasts(25),
    ];
    for comm in [
        CommunicationDurationSource::Recorded,
        CommunicationDurationSource::Captured,
    ] {
        let builder = encode_and_load_rank_traces([(0, &lines[..])]);
        let workload = builder
            .finish_workload(Some(2), MissingRankPolicy::Mirror)
            .unwrap();
        let replay = replay_with(
            &workload,
            &build_ring_machine(2),
            &make_options_with_comm_duration_source(comm),
        );
        assert_eq!(
            (replay.node_end_ps(0, 2), replay.node_end_ps(0, 3)),
            (310_000, 325_000)
        );
    }
}

/// Each part ends at its own start + wait + duration, independent of the other parts: 0 + 900 + 10,
/// 500 + 400 + 20, and 700 + 0 + 30, although this part starts last. The waits add up to 1,300 ns.
#[test]
fn as_captured_nobody_waits_for_another_rank() {
    for kind in [K::AllReduce, K::Broadcast] {
        let mut ranks = build_ranks_of_collective(
            kind,
            &[
                build_collective_member(0, 10),
                build_collective_member(500, 20),
                build_eager_collective_member(700, 30),
            ],
        );
        for (rank, ns) in ranks.iter_mut().zip([900, 400, 0]) {
            rank[1].wait_ns = ns;
        }
        let replay = replay_on_ring(&ranks, CommunicationDurationSource::Captured);
        assert_eq!(
            replay.last_end_of_each_instance(),
            [910_000, 920_000, 730_000]
        );
        let record = replay.log.records[0];
        assert_eq!((record.last_start.0, record.end.0), (700_000, 920_000));
        assert_eq!(record.waited, Span::from_ns(1300));
        assert_eq!(
            (record.waited_for, record.transfer),
            (None, Span::from_ns(30))
        );
        assert_eq!((replay.outcome.recorded, replay.outcome.messages), (1, 0));
    }
    // A receive ends before its message is sent, as captures can record if clocks differ.
    let ranks = [
        vec![
            build_kernel(800),
            build_send(1, 64).after(&[1]).lasts(10).waited(5),
        ],
        vec![build_receive(0, 64).lasts(20).waited(100)],
    ];
    let replay = replay_on_ring(&ranks, CommunicationDurationSource::Captured);
    assert_eq!(
        (replay.node_end_ps(0, 2), replay.node_end_ps(1, 1)),
        (815_000, 120_000)
    );
}

/// The collectives are on a kernel's lane. Modelled collectives wait for all members before they
/// take the lane, but captured collectives do not wait.
#[test]
fn captured_collectives_take_a_lane_without_waiting_for_members() {
    let rank = |ns| {
        vec![
            build_kernel(ns).on_lane(1),
            build_collective(K::AllReduce, 8)
                .on_lane(1)
                .after(&[1])
                .lasts(10),
        ]
    };
    let replay = replay_on_ring(
        &[rank(100), rank(600)],
        CommunicationDurationSource::Captured,
    );
    assert_eq!(replay.last_end_of_each_instance(), [110_000, 610_000]);
}

const MS: u64 = 1_000_000;

/// Rank 0 reaches an all-reduce `slack` before rank 1. If rank 0 is released 10 ms late, it arrives 10 ms - slack after
/// rank 1, if this is positive. The all-reduce and all later work then end that much later on both ranks.
#[test]
fn a_late_rank_shifts_its_peers_by_what_its_slack_does_not_take_up() {
    let late = 10 * MS;
    for slack in [0, 3 * MS, 10 * MS, 25 * MS] {
        // Rank 0 computes for 1 ms, and rank 1 for 1 ms plus the slack. Then both all-reduce with 2
        // ms of transfer, and rank 1 computes for another 5 ms.
        let node = || {
            build_collective(K::AllReduce, 1 << 20)
                .after(&[1])
                .lasts(2 * MS)
        };
        let first = [build_kernel(MS), node()];
        let second = [
            build_kernel(MS + slack),
            node(),
            build_kernel(5 * MS).after(&[2]),
        ];
        let ends = |late: u64| {
            let at = |rank| if rank == 0 { late } else { 0 };
            let builder = load_released_traces([(0, &first[..]), (1, &second[..])], at);
            let workload = builder
                .finish_workload(None, MissingRankPolicy::Refuse)
                .unwrap();
            replay_with(
                &workload,
                &build_ring_machine(2),
                &make_options_with_comm_duration_source(CommunicationDurationSource::Recorded),
            )
            .last_end_of_each_instance()
        };
        let before = (1 + 2) * MS + slack;
        assert_eq!(ends(0), [before * 1000, (before + 5 * MS) * 1000]);
        let shift = late.saturating_sub(slack);
        let after = before + shift;
        assert_eq!(
            ends(late),
            [after * 1000, (after + 5 * MS) * 1000],
            "{slack}"
        );
    }
}

/// Two ranks both send first, with recorded times. So neither send can end before its receive is
/// posted.
#[test]
fn sends_that_wait_for_each_other_are_named() {
    let rank = |peer| {
        vec![
            build_send(peer, 64).lasts(5),
            build_receive(peer, 64).after(&[1]).lasts(5),
        ]
    };
    let ranks = [rank(1), rank(0)];
    let recorded = make_options_with_comm_duration_source(CommunicationDurationSource::Recorded);
    let stuck = replay_and_return_stuck_diagnosis(&ranks, &recorded);
    let circle = stuck.cycle.iter().map(|node| (node.rank.0, node.id));
    assert_eq!(circle.collect::<Vec<_>>(), [(0, 1), (1, 2), (1, 1), (0, 2)]);
    let why = "rank 1 to receive 64 bytes with tag 0, rank 1 node 2 `n2` waits for 1 dependency";
    assert_eq!(stuck.waiting[0].why, why);
    // Eager sends complete, and so do all nodes as captured: 5 + 5 ns.
    let eager: Vec<_> = ranks
        .iter()
        .map(|lines| vec![lines[0].clone().with_eager_flag(), lines[1].clone()])
        .collect();
    assert_eq!(
        replay_recorded(&eager).last_end_of_each_instance(),
        [10_000, 10_000]
    );
    assert_eq!(
        replay_on_ring(&ranks, CommunicationDurationSource::Captured).last_end_of_each_instance(),
        [10_000, 10_000]
    );
}

/// Ranks 1 and 2 of a broadcast from rank 0 wait only for rank 0. Rank 0 waits for a message that
/// rank 1 sends after its part.
#[test]
fn a_stuck_member_names_only_the_ranks_that_it_waits_for() {
    let node = || {
        build_collective(K::Broadcast, 8)
            .with_collective_root(0)
            .lasts(5)
    };
    let ranks = [
        vec![build_receive(1, 8).lasts(1), node().after(&[1])],
        vec![node(), build_send(0, 8).after(&[1]).lasts(1)],
        vec![build_kernel(1), node().after(&[1])],
    ];
    let recorded = make_options_with_comm_duration_source(CommunicationDurationSource::Recorded);
    let stuck = replay_and_return_stuck_diagnosis(&ranks, &recorded);
    let circle = stuck.cycle.iter().map(|node| (node.rank.0, node.id));
    assert_eq!(circle.collect::<Vec<_>>(), [(0, 1), (1, 2), (1, 1), (0, 2)]);
    let why = &stuck.waiting[1].why;
    assert!(why.starts_with("1 of 3 members of its group"), "{why}");
    assert!(
        why.contains("rank 0 node 2 `n2` waits for 1 dependency"),
        "{why}"
    );
}

/// Communication without any recorded duration cannot be replayed as recorded. If a part of it was recorded, the replay
/// runs with a warning.
#[test]
fn communication_without_any_recorded_duration_is_refused() {
    let machine = build_ring_machine(2);
    let rank = |peer: u32, ns| {
        let message = if peer == 1 {
            build_send(1, 8)
        } else {
            build_receive(0, 8)
        };
        vec![
            build_kernel(10),
            build_collective(K::AllReduce, 64).after(&[1]),
            message.lasts(ns),
        ]
    };
    for comm in [
        CommunicationDurationSource::Recorded,
        CommunicationDurationSource::Captured,
    ] {
        let workload = build_job_from_rank_nodes(&[rank(1, 0), rank(0, 0)], &[]);
        let refusal = CompiledReplay::new(
            &workload,
            &machine,
            &make_options_with_comm_duration_source(comm),
        )
        .unwrap_err();
        assert!(refusal.found.contains(&format!("as {comm}")), "{refusal}");
        assert!(
            refusal.found.contains("none of the 4 communication nodes"),
            "{refusal}"
        );
        assert!(refusal.hint.contains("`comm` model"), "{refusal}");
        CompiledReplay::new(
            &workload,
            &machine,
            &make_options_with_comm_duration_source(CommunicationDurationSource::Model),
        )
        .unwrap();

        let workload = build_job_from_rank_nodes(&[rank(1, 5), rank(0, 5)], &[]);
        let prepared = CompiledReplay::new(
            &workload,
            &machine,
            &make_options_with_comm_duration_source(comm),
        )
        .unwrap();
        let basis = prepared.duration_source_counts();
        assert_eq!((basis.as_recorded, basis.unrecorded), (2, 2));
        let (report, _) = report::replay_to_report(&prepared, None::<ObserverLog>).unwrap();
        let warnings = report.warnings;
        let wanted = "2 communication nodes take no time: the trace has no duration for them";
        assert!(warnings.contains(&wanted.to_owned()), "{warnings:?}");

        // The job has no communication.
        let workload = build_job_from_rank_nodes(&vec![vec![build_kernel(10)]; 2], &[]);
        CompiledReplay::new(
            &workload,
            &machine,
            &make_options_with_comm_duration_source(comm),
        )
        .unwrap();
    }
}
