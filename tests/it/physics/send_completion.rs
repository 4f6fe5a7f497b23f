//! Tests sends that complete when their last byte has left, or when it has arrived, as the machine
//! file states.
//!
//! On every machine here a link takes 20 ps per byte and has a latency of 500 ns, and a switch puts
//! two links between NPUs. The last of 10,000 B therefore leaves after s = 200 ns and arrives after 1,000 + 200 ns.

use super::lines::{TestTraceNode, build_collective, build_kernel, build_receive, build_send};
use super::rig::{
    ReplayOutcomeAndLog, build_job_from_rank_nodes, build_machine_from_dims,
    encode_and_load_rank_traces, encode_trace_file, make_dim_with_fixed_link_speed,
    make_proptest_config, make_stepwise_network_options, make_stepwise_options, replay_and_log,
    replay_with,
};
use chakram::astra_sim::custom_algorithm::{
    AstraOrRecordedScriptDurations, build_algorithm_from_traces,
};
use chakram::engine::{EnumeratedSetting, NetworkModel, ReplayOptions};
use chakram::machine::SendCompletionRule::{Delivered, Injected};
use chakram::machine::{CollectiveAlgorithm, Machine, NamedScriptedAlgorithm};
use chakram::topology::DimensionShape;
use chakram::trace::CollectiveKind as K;
use chakram::workload::{MissingRankPolicy, Workload};
use proptest::prelude::*;

/// Returns the same machine twice: with sends that complete when their last byte has left, and with
/// sends that complete when it has arrived.
fn make_machines_with_both_send_completions(machine: &Machine) -> [Machine; 2] {
    [Injected, Delivered].map(|sends| machine.clone().with_send_completion(sends))
}

fn build_switch_completion_variants(size: u32, algorithm: CollectiveAlgorithm) -> [Machine; 2] {
    make_machines_with_both_send_completions(&build_machine_from_dims(&[
        make_dim_with_fixed_link_speed(DimensionShape::Switch, size, algorithm),
    ]))
}

/// Replays `workload` under `model` for each [`SendCompletionRule`](chakram::machine::SendCompletionRule), in order.
fn replay_with_each_send_completion(
    model: NetworkModel,
    machines: &[Machine; 2],
    workload: &Workload,
) -> [ReplayOutcomeAndLog; 2] {
    [0, 1].map(|i| {
        replay_with(
            workload,
            &machines[i],
            &make_stepwise_network_options(model),
        )
    })
}

/// A kernel after a send, and the send's lane, wait for the message's last byte; the receive's end does not change. If
/// a transfer occupies its links until its end, both kinds of completion coincide.
#[test]
fn what_is_behind_a_send_waits_until_the_message_has_arrived() {
    let ranks = [
        vec![build_send(1, 10_000), build_kernel(300).after(&[1])],
        vec![build_receive(0, 10_000)],
    ];
    let workload = build_job_from_rank_nodes(&ranks, &[]);
    let machines = build_switch_completion_variants(2, CollectiveAlgorithm::Ring);
    for &(model, ..) in NetworkModel::CHOICES {
        let left = match model {
            NetworkModel::Exclusive => 1_200_000,
            _ => 200_000,
        };
        let [injected, delivered] = replay_with_each_send_completion(model, &machines, &workload);
        assert_eq!(
            (injected.node_end_ps(0, 1), injected.node_start_ps(0, 2)),
            (left, left)
        );
        let there = 1_200_000;
        assert_eq!(
            (delivered.node_end_ps(0, 1), delivered.node_start_ps(0, 2)),
            (there, there),
            "{model}"
        );
        assert_eq!(
            (injected.node_end_ps(1, 1), delivered.node_end_ps(1, 1)),
            (there, there)
        );
        // The end is 1,200 + 300 ns, or 300 ns after the last byte has left.
        assert_eq!(delivered.makespan_ps(), 1_500_000);
        assert_eq!(injected.makespan_ps(), there.max(left + 300_000));
    }
}

/// The messages of two senders contend at their receiver. The messages enter one after the other under `ports` and
/// `links`, and at half the rate under `fair_sharing`. A send waits for the end of its own message, even if others
/// delay it.
#[test]
fn a_send_that_is_complete_on_delivery_feels_contention_on_the_way() {
    let of = |tag| vec![build_send(2, 10_000).tag(tag), build_kernel(1).after(&[1])];
    let receiver = vec![
        build_receive(0, 10_000).tag(1),
        build_receive(1, 10_000).tag(2),
    ];
    let workload = build_job_from_rank_nodes(&[of(1), of(2), receiver], &[]);
    let machines = build_switch_completion_variants(4, CollectiveAlgorithm::Ring);
    for (model, left, there) in [
        // The operations do not contend: 200 ns, and 1,000 + 200 ns.
        (NetworkModel::ContentionFree, [200, 200], [1200, 1200]),
        // The second message waits for 200 ns at the receiver, but has left as early as the first.
        (NetworkModel::Ports, [200, 200], [1200, 1400]),
        (NetworkModel::Links, [200, 200], [1200, 1400]),
        // Each message gets half of the receiver's link, so it takes 400 ns and arrives 1,000 ns
        // later.
        (NetworkModel::FairSharing, [400, 400], [1400, 1400]),
        // Each message occupies all links of its path for 1,200 ns, and the receiver's link serves one message after
        // the other.
        (NetworkModel::Exclusive, [1200, 2400], [1200, 2400]),
    ] {
        let [injected, delivered] = replay_with_each_send_completion(model, &machines, &workload);
        let ends =
            |replay: &ReplayOutcomeAndLog| [0, 1].map(|rank| replay.node_end_ps(rank, 1) / 1000);
        assert_eq!(
            (ends(&injected), ends(&delivered)),
            (left, there),
            "{model}"
        );
        // The messages arrive at the same times in both cases.
        let received =
            |replay: &ReplayOutcomeAndLog| [1, 2].map(|node| replay.node_end_ps(2, node) / 1000);
        assert_eq!(
            (received(&injected), received(&delivered)),
            (there, there),
            "{model}"
        );
    }
}

/// A lane carries one send at a time, so a second send begins when the first has completed.
#[test]
fn a_send_holds_its_lane_until_it_is_complete() {
    let ranks = [
        vec![build_send(1, 10_000).tag(1), build_send(1, 10_000).tag(2)],
        vec![
            build_receive(0, 10_000).tag(1),
            build_receive(0, 10_000).tag(2),
        ],
    ];
    let [injected, delivered] = build_switch_completion_variants(2, CollectiveAlgorithm::Ring)
        .map(|machine| replay_and_log(&build_job_from_rank_nodes(&ranks, &[]), &machine));
    // The injected send ends after 200 + 1,200 ns, and the delivered send after 1,200 + 1,200 ns.
    assert_eq!(
        (injected.node_start_ps(0, 2), injected.makespan_ps()),
        (200_000, 1_400_000)
    );
    assert_eq!(
        (delivered.node_start_ps(0, 2), delivered.makespan_ps()),
        (1_200_000, 2_400_000)
    );
}

/// Delivery neither waits until the receive is posted nor needs a trace of the receiver.
#[test]
fn nobody_has_to_receive_for_a_send_to_be_complete() {
    let [_, machine] = build_switch_completion_variants(4, CollectiveAlgorithm::Ring);
    let ranks = [
        vec![build_send(1, 10_000)],
        vec![build_kernel(3000), build_receive(0, 10_000).after(&[1])],
    ];
    let late = replay_and_log(&build_job_from_rank_nodes(&ranks, &[]), &machine);
    assert_eq!(
        (late.node_end_ps(0, 1), late.node_end_ps(1, 2)),
        (1_200_000, 3_000_000)
    );
    let lines: &[TestTraceNode] = &[build_send(3, 10_000), build_kernel(300).after(&[1])];
    let alone = encode_and_load_rank_traces([(0, lines)])
        .finish_workload(Some(4), MissingRankPolicy::Mirror);
    let alone = replay_and_log(&alone.unwrap(), &machine);
    assert_eq!(
        (alone.node_end_ps(0, 1), alone.makespan_ps()),
        (1_200_000, 1_500_000)
    );
}

/// A Clos network of two levels has four links of 1 us, and 1 MB at 1 GB/s takes 1 ms.
#[test]
fn sends_across_a_clos_network_are_complete_four_links_later() {
    let file = r#"
name = "clos"
[npu.one]
memory_bandwidth = "1 TB/s"
memory_latency = "0 ns"
memory_capacity = "80 GB"
lanes = 2
host_lanes = 1
peak = { bf16 = "1 TFLOP/s" }
[[dimension]]
name = "fabric"
shape = "clos"
levels = "2x2"
size = 4
bandwidth = "1 GB/s"
latency = "1 us"
algorithm = "ring"
[network]
send_completion = "WHEN"
"#;
    let ends = ["injected", "delivered"].map(|when| {
        let machine = Machine::parse(&file.replace("WHEN", when), "clos.toml").unwrap();
        let mut ranks = vec![vec![build_kernel(0)]; 4];
        ranks[0] = vec![build_send(3, 1_000_000), build_kernel(0).after(&[1])];
        ranks[3] = vec![build_receive(0, 1_000_000)];
        let replay = replay_and_log(&build_job_from_rank_nodes(&ranks, &[]), &machine);
        assert_eq!(replay.node_end_ps(3, 1), 1_004_000_000);
        replay.node_end_ps(0, 2)
    });
    assert_eq!(ends, [1_000_000_000, 1_004_000_000]);
}

/// In a custom algorithm position 0 sends twice, the second time when the first send has completed,
/// and the receiver waits for both. The algorithm takes 200 + 1,200 ns, or 1,200 + 1,200 ns.
#[test]
fn sends_of_custom_algorithms_follow_the_send_completion() {
    let scripts = [
        vec![
            build_send(1, 10_000).tag(1),
            build_send(1, 10_000).tag(2).after(&[1]).on_lane(1),
        ],
        vec![
            build_receive(0, 10_000).tag(1),
            build_receive(0, 10_000).tag(2).on_lane(1),
        ],
    ];
    let files: Vec<Vec<u8>> = scripts
        .iter()
        .map(|lines| encode_trace_file(lines))
        .collect();
    let custom = NamedScriptedAlgorithm {
        kind: K::Broadcast,
        name: "twice".to_owned(),
        buffer: None,
        scripts: build_algorithm_from_traces(&files, AstraOrRecordedScriptDurations::Recorded)
            .unwrap()
            .with_matched_labels()
            .unwrap(),
    };
    let workload =
        build_job_from_rank_nodes(&vec![vec![build_collective(K::Broadcast, 20_000)]; 2], &[]);
    for model in [
        NetworkModel::ContentionFree,
        NetworkModel::Ports,
        NetworkModel::Links,
        NetworkModel::FairSharing,
    ] {
        let ends = build_switch_completion_variants(2, CollectiveAlgorithm::Ring).map(|machine| {
            let options = ReplayOptions::default_with_changes(|o| {
                *o = make_stepwise_network_options(model);
                o.custom = vec![custom.clone()];
            });
            replay_with(&workload, &machine, &options).last_end_of_each_instance()
        });
        // The sender's part ends with its second send.
        assert_eq!(ends[0], [400_000, 1_400_000], "{model}");
        assert_eq!(ends[1], [2_400_000, 2_400_000], "{model}");
    }
}

/// An algorithm's steps wait only for received messages, so a member's part never waits for other members to receive.
#[test]
fn collectives_take_as_long_with_either_send_completion() {
    for (algorithm, _) in CollectiveAlgorithm::ALL {
        for kind in [K::AllReduce, K::AllToAll, K::Broadcast, K::Gather] {
            let workload =
                build_job_from_rank_nodes(&vec![vec![build_collective(kind, 40_000)]; 4], &[]);
            for options in [ReplayOptions::default(), make_stepwise_options()] {
                let [injected, delivered] = build_switch_completion_variants(4, algorithm)
                    .map(|machine| replay_with(&workload, &machine, &options));
                assert_eq!(injected, delivered, "{algorithm} {kind}");
            }
        }
    }
}

proptest! {
    #![proptest_config(make_proptest_config(64))]

    /// Some collectives use closed forms, which later sends may invalidate at any moment, and others use messages. No
    /// send completes before it has left, and chains of sends never end earlier.
    #[test]
    fn completing_sends_on_delivery_never_ends_chains_earlier(
        starts in prop::collection::vec(0_u64..4000, 4),
        bytes in 1_u64..20_000,
        model in prop::sample::select(vec![NetworkModel::Ports, NetworkModel::Links]),
    ) {
        let ranks: Vec<_> = (0..4_u32).map(|rank| {
            let chain = build_kernel(starts[rank as usize]).on_lane(1);
            let out = build_send((rank + 1) % 4, bytes).after(&[1]).on_lane(2);
            let more = build_send((rank + 2) % 4, bytes).after(&[2]).tag(1).on_lane(2);
            let into = build_receive((rank + 3) % 4, bytes);
            let last = build_receive((rank + 2) % 4, bytes).tag(1);
            vec![chain, out, more, into, last, build_collective(K::AllReduce, 40_000)]
        }).collect();
        let workload = build_job_from_rank_nodes(&ranks, &[]);
        let [_, machine] = build_switch_completion_variants(4, CollectiveAlgorithm::Ring);
        let closed = ReplayOptions::default_with_changes(|o| o.network = Some(model));
        let closed = replay_with(&workload, &machine, &closed);
        let stepped = replay_with(&workload, &machine, &make_stepwise_network_options(model));
        prop_assert_eq!(&closed.log.events, &stepped.log.events);
        for rank in 0..4 {
            // The send completes together with the receive at the other end, or before it, because
            // the receive is posted at 0.
            prop_assert_eq!(closed.node_end_ps(rank, 2), closed.node_end_ps((rank + 1) % 4, 4));
            prop_assert_eq!(closed.node_end_ps(rank, 3), closed.node_end_ps((rank + 2) % 4, 5));
            prop_assert_eq!(closed.node_start_ps(rank, 3), closed.node_end_ps(rank, 2));
        }
    }
}
