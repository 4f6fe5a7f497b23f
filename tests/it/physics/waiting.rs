//! Tests the time spent waiting for messages, as distinct from their transfer, and a pipeline's bubble, against sums by
//! hand. Random jobs are in `laws`.

use super::lines::{TestTraceNode, build_collective, build_kernel, build_receive, build_send};
use super::rig::{
    build_machine_from_dims, encode_and_load_rank_traces, make_dim_with_fixed_link_speed,
    make_options_with_comm_duration_source,
};
use chakram::engine::{CommunicationDurationSource, CompiledReplay, ReplayOptions};
use chakram::machine::CollectiveAlgorithm;
use chakram::report::{self, Report};
use chakram::topology::DimensionShape;
use chakram::trace::CollectiveKind;
use chakram::units::Span;
use chakram::workload::{GroupRoles, MissingRankPolicy};

/// Returns a report of a job on four NPUs behind a switch: 20 ps per byte and 1 us for two links.
/// Group 1 has the role `role`.
fn replay_switch_report(
    ranks: &[Vec<TestTraceNode>],
    role: Option<&str>,
    options: &ReplayOptions,
) -> Report {
    let mut builder = encode_and_load_rank_traces((0..).zip(ranks.iter().map(Vec::as_slice)));
    builder.declare_groups([("1".to_owned(), vec![0, 1])].into());
    if let Some(role) = role {
        let mut roles = GroupRoles::default();
        roles.add_role(1, role);
        builder.declare_group_roles(&roles);
    }
    let ranks = ranks.len() as u32;
    let workload = builder.finish_workload(Some(ranks), MissingRankPolicy::Refuse);
    let machine = build_machine_from_dims(&[make_dim_with_fixed_link_speed(
        DimensionShape::Switch,
        4,
        CollectiveAlgorithm::Ring,
    )]);
    let workload = workload.unwrap();
    let prepared = CompiledReplay::new(&workload, &machine, options).unwrap();
    report::replay_to_report(&prepared, ()).unwrap().0
}

/// Returns the times of compute, communication, bubble and the rest, in nanoseconds.
fn list_time_parts_ns(report: &Report, rank: usize) -> [u64; 4] {
    let parts = report.rows[rank].time.parts.map(|part| part.0 / 1000);
    [parts[0], parts[1], parts[2], parts[3..].iter().sum()]
}

/// Rank 0 computes for 100 us and sends 50 kB, which leave in 1 us and arrive in 2 us. Rank 1 posts
/// its receive at once and computes for 30 us concurrently, so 70 us of waiting and 2 us of
/// transfer are exposed.
#[test]
fn a_receive_waits_until_its_send_is_issued() {
    let ranks = [
        vec![build_kernel(100_000), build_send(1, 50_000).after(&[1])],
        vec![build_receive(0, 50_000), build_kernel(30_000)],
    ];
    // A group of all ranks is not a pipeline stage.
    for role in [None, Some("pipeline"), Some("tensor")] {
        let found = replay_switch_report(&ranks, role, &ReplayOptions::default());
        assert_eq!(found.outcome.makespan, Span::from_ns(102_000));
        assert_eq!(list_time_parts_ns(&found, 0), [100_000, 1_000, 0, 1_000]);
        assert_eq!(
            list_time_parts_ns(&found, 1),
            [30_000, 2_000, 70_000, 0],
            "{role:?}"
        );
        let charged = found.messages_charged;
        let ns = |span: Span| span.0 / 1000;
        // The transfer time of a send counts for the sender.
        assert_eq!(
            [ns(charged.waiting), ns(charged.transferring)],
            [100_000, 3_000]
        );
        assert_eq!(
            [ns(charged.exposed_waiting), ns(charged.bubble)],
            [70_000, 70_000]
        );
    }
}

/// Two of three ranks form a tensor group. Messages between these two are not between stages;
/// messages to the third rank are. If a pipeline group is declared, only its members are stages.
#[test]
fn roles_say_which_waiting_is_a_bubble() {
    let ranks = |peer: u32| {
        let mut ranks = vec![vec![build_kernel(0)]; 3];
        ranks[0] = vec![build_kernel(100_000), build_send(peer, 50_000).after(&[1])];
        ranks[peer as usize] = vec![build_receive(0, 50_000)];
        // Group 1 contains ranks 0 and 1.
        for rank in [0, 1] {
            let last = ranks[rank].len() as u64;
            let barrier = build_collective(CollectiveKind::Barrier, 0).group("1");
            ranks[rank].push(barrier.after(&[last]));
        }
        ranks
    };
    for (role, peer, bubble) in [
        (None, 1, 100_000),
        (Some("tensor"), 1, 0),
        (Some("tensor"), 2, 100_000),
        (Some("pp"), 1, 100_000),
        (Some("pp"), 2, 0),
    ] {
        let found = replay_switch_report(&ranks(peer), role, &ReplayOptions::default());
        let [_, _, found, _] = list_time_parts_ns(&found, peer as usize);
        assert_eq!(found, bubble, "{role:?} {peer}");
    }
}

/// A send of 7 us that is replayed as recorded and needs its receiver waits 40 us for it. An eager send does not wait,
/// and neither does its receive.
#[test]
fn a_send_as_recorded_waits_for_its_receiver() {
    for (eager, parts_of_sender) in [
        (false, [0, 7_000, 40_000, 0]),
        (true, [0, 7_000, 0, 40_000]),
    ] {
        let sent = build_send(1, 50_000).lasts(7_000);
        let sent = if eager { sent.with_eager_flag() } else { sent };
        let ranks = [
            vec![sent],
            vec![
                build_kernel(40_000).lasts(40_000),
                build_receive(0, 50_000).lasts(7_000).after(&[1]),
            ],
        ];
        let found = replay_switch_report(
            &ranks,
            None,
            &make_options_with_comm_duration_source(CommunicationDurationSource::Recorded),
        );
        assert_eq!(found.outcome.makespan, Span::from_ns(47_000));
        assert_eq!(list_time_parts_ns(&found, 0), parts_of_sender, "{eager}");
        assert_eq!(
            list_time_parts_ns(&found, 1),
            [40_000, 7_000, 0, 0],
            "{eager}"
        );
    }
}

/// A report from a version that did not know bubbles lacks their keys. It can be read, and its bubble is zero.
#[test]
fn reports_without_a_bubble_are_read() {
    let ranks = [
        vec![build_kernel(100_000), build_send(1, 50_000).after(&[1])],
        vec![build_receive(0, 50_000)],
    ];
    let found = replay_switch_report(&ranks, None, &ReplayOptions::default());
    let mut json = serde_json::to_value(&found).unwrap();
    let parsed = |json: &serde_json::Value| serde_json::from_value::<Report>(json.clone()).unwrap();
    assert_eq!(parsed(&json), found);
    let without = |object: &mut serde_json::Value, key: &str| {
        object.as_object_mut().unwrap().remove(key).unwrap();
    };
    without(&mut json["mean_ps"], "bubble");
    without(&mut json["messages_charged"], "bubble_ps");
    for row in json["npus"].as_array_mut().unwrap() {
        without(&mut row["time_ps"], "bubble");
    }
    without(&mut json["critical_path"]["time_ps"], "bubble");
    assert_eq!(list_time_parts_ns(&parsed(&json), 1), [0, 2_000, 0, 0]);
}

/// Rank 0 is ready for an all-reduce after 10 us, rank 1 after 500 us, so rank 0 waits for 490 us. This is also true if
/// the all-reduce is on the kernels' lane, where it does not take the lane before rank 1 is ready, and if the transfer
/// is as recorded.
#[test]
fn a_ready_member_waits_for_the_last_one_on_any_lane() {
    for comm in [
        CommunicationDurationSource::Model,
        CommunicationDurationSource::Recorded,
    ] {
        let waits = [1, 2].map(|lane| {
            let rank = |ns| {
                let reduce = build_collective(CollectiveKind::AllReduce, 1 << 20);
                let reduce = reduce.on_lane(lane).after(&[1]).lasts(35_000);
                vec![build_kernel(ns).on_lane(1), reduce]
            };
            let options = make_options_with_comm_duration_source(comm);
            let ranks = [rank(10_000), rank(500_000)];
            let found = replay_switch_report(&ranks, None, &options);
            let row = &found.collectives[0];
            assert_eq!(
                row.tally.waited,
                Span::from_ns(490_000),
                "{comm:?}, lane {lane}"
            );
            assert_eq!(row.charged.exposed_waiting, Span::from_ns(490_000));
            let [compute, communication, ..] = list_time_parts_ns(&found, 0);
            assert_eq!(compute, 10_000);
            assert!(communication >= 490_000 + 10_000, "{communication}");
            row.latest
        });
        assert_eq!(waits[0], waits[1], "{comm:?}");
    }
}

/// While rank 0 waits for rank 1's kernel of 500 us, its lane runs another kernel for 300 us. Rank 0 can only wait for
/// the other 200 us. If that kernel is still running when rank 1 is ready, rank 1 waits for rank 0.
#[test]
fn a_member_whose_lane_is_occupied_does_not_wait_for_others() {
    for (other, waited, latest) in [(300_000, 200_000, 1), (700_000, 200_000, 0)] {
        let reduce = |on: &[u64]| {
            build_collective(CollectiveKind::AllReduce, 1 << 20)
                .on_lane(1)
                .after(on)
        };
        let ranks = [
            vec![build_kernel(other).on_lane(1), reduce(&[])],
            vec![build_kernel(500_000).on_lane(1), reduce(&[1])],
        ];
        let found = replay_switch_report(&ranks, None, &ReplayOptions::default());
        let row = &found.collectives[0];
        assert_eq!(row.tally.waited, Span::from_ns(waited), "{other}");
        let late = row.latest.as_ref().map(|late| late.rank.0);
        assert_eq!(late, Some(latest), "{other}");
    }
}
