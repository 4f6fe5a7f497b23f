//! Tests ports that all operations share, and how a replay chooses its network model.

use super::flows::{
    build_timed_message, replay_flow_arrivals, replay_message_left_and_arrived_times,
};
use super::lines::{build_kernel, build_receive, build_send};
use super::rig::{
    build_job_from_rank_nodes, build_machine_from_dims, make_dim_with_fixed_link_speed,
    make_proptest_config, make_stepwise_network_options, make_stepwise_options, replay_with,
};
use chakram::engine::NetworkModel::{ContentionFree, Links, Ports};
use chakram::engine::{NetworkModel, ReplayOptions};
use chakram::machine::CollectiveAlgorithm::Ring;
use chakram::machine::Machine;
use chakram::topology::DimensionShape;
use proptest::prelude::*;

/// 10,000 B take 200 ns; a switch has 1,000 ns of latency.
#[test]
fn an_incast_enters_one_after_another_and_a_fan_out_leaves_so() {
    let machine = build_machine_from_dims(&[make_dim_with_fixed_link_speed(
        DimensionShape::Switch,
        4,
        Ring,
    )]);
    let incast = [3, 1, 2].map(|from| build_timed_message(0, from, 0, 10_000));
    assert_eq!(
        replay_flow_arrivals(&machine, Ports, &incast),
        [1_600_000, 1_200_000, 1_400_000]
    );
    assert_eq!(
        replay_flow_arrivals(&machine, ContentionFree, &incast),
        [1_200_000; 3]
    );
    let out = [3, 1, 2].map(|to| build_timed_message(0, 0, to, 10_000));
    let expected = [
        [200_000, 1_200_000],
        [400_000, 1_400_000],
        [600_000, 1_600_000],
    ];
    assert_eq!(
        replay_message_left_and_arrived_times(&machine, Ports, &out),
        expected
    );
    // Messages in opposite directions do not contend.
    let both = [
        build_timed_message(0, 0, 1, 10_000),
        build_timed_message(0, 1, 0, 10_000),
    ];
    assert_eq!(replay_flow_arrivals(&machine, Ports, &both), [1_200_000; 2]);
}

/// Messages that cross an NPU within a dimension do not use its ports; the `links` model covers this case.
#[test]
fn messages_passing_an_npu_within_a_dimension_use_no_ports() {
    let machine =
        build_machine_from_dims(&[
            make_dim_with_fixed_link_speed(DimensionShape::Ring, 6, Ring)
                .with_npu_bandwidth_per_link(),
        ]);
    let flows = [
        build_timed_message(0, 0, 3, 10_000),
        build_timed_message(0, 1, 2, 10_000),
        build_timed_message(1, 2, 4, 10_000),
    ];
    let apart = replay_flow_arrivals(&machine, ContentionFree, &flows);
    assert_eq!(replay_flow_arrivals(&machine, Ports, &flows), apart);
}

/// Inner ports have 20 ps/B, outer ports 80: 10,000 B take 200 and 800 ns.
#[test]
fn each_dimension_has_its_port_and_its_rate() {
    let mut outer = make_dim_with_fixed_link_speed(DimensionShape::Switch, 2, Ring);
    outer.ps_per_byte = 80;
    let machine = build_machine_from_dims(&[
        make_dim_with_fixed_link_speed(DimensionShape::Ring, 4, Ring).with_npu_bandwidth_per_link(),
        outer,
    ]);
    // A message from 0 to 5 goes to 1 inside and leaves by NPU 1's outer port; a message from 0 to
    // 4 leaves by NPU 0's.
    let flows = [
        build_timed_message(0, 0, 5, 10_000),
        build_timed_message(0, 0, 4, 10_000),
        build_timed_message(0, 1, 5, 10_000),
    ];
    let found = replay_message_left_and_arrived_times(&machine, Ports, &flows);
    // NPU 1's message occupies its outer port until 800, and enters 5 from 1,000 to 1,800. NPU 0's
    // message reaches this port at 500, occupies it until 1,600, and enters 5 from 1,800 to 2,600.
    // All sends complete after 800, at the outer rate.
    let expected = [
        [800_000, 2_600_000],
        [800_000, 1_800_000],
        [800_000, 1_800_000],
    ];
    assert_eq!(found, expected);
}

/// The machine file chooses the model, and options override it.
#[test]
fn the_machine_file_selects_the_network_model_unless_overridden() {
    let file = super::doubling::MACHINE;
    let incast = [
        vec![build_receive(1, 20_000), build_receive(2, 20_000)],
        vec![build_send(0, 20_000)],
        vec![build_send(0, 20_000)],
    ];
    let ps = |network: &str, options: &ReplayOptions| {
        let machine = Machine::parse(&format!("{file}{network}"), "m.toml").unwrap();
        replay_with(&build_job_from_rank_nodes(&incast, &[]), &machine, options).makespan_ps()
    };
    // The ring inside takes 400 + 200 ns. The switch outside takes 3,000 + 800 ns, from 2. The two messages do not
    // contend.
    assert_eq!(ps("", &make_stepwise_options()), 3_800_000);
    let stored = "[network]\nswitching = \"store_and_forward\"\n";
    // A switch that stores whole messages adds 800 ns.
    assert_eq!(ps(stored, &make_stepwise_options()), 4_600_000);
    let by = "[network]\nmodel = \"links\"\nsegment = \"1 kB\"\n";
    // A segment of 1,000 B adds 40 ns, and a segment of 2,000 B adds 80 ns.
    assert_eq!(ps(by, &make_stepwise_options()), 3_840_000);
    assert_eq!(
        ps(
            &by.replace("1 kB", "2 kB"),
            &make_stepwise_network_options(Ports)
        ),
        3_880_000
    );
    let machine = |model: &str| {
        let text =
            format!("{file}[network]\nmodel = \"{model}\"\n").replacen("size = 2", "size = 6", 1);
        Machine::parse(&text, "m.toml").unwrap()
    };
    // All messages go upwards on a ring of 6 with links of 50 GB/s. 0 → 2 and 1 → 3 share a link,
    // where 80,000 B take 1,600 ns. 3 → 5 and 4 → 5 share another link and the lower port of 5,
    // where 60,000 B take 1,200 ns.
    let ranks = [
        vec![build_send(2, 80_000)],
        vec![build_send(3, 80_000)],
        vec![build_receive(0, 80_000)],
        vec![build_receive(1, 80_000), build_send(5, 60_000)],
        vec![build_send(5, 60_000)],
        vec![build_receive(3, 60_000), build_receive(4, 60_000)],
    ];
    let ps = |model: &str, network: Option<NetworkModel>| {
        let options = ReplayOptions::default_with_changes(|o| {
            o.network = network;
        });
        replay_with(
            &build_job_from_rank_nodes(&ranks, &[]),
            &machine(model),
            &options,
        )
        .makespan_ps()
    };
    // Without contention, the time is two links and 1,600 ns. The message from 4 enters 5 from 400
    // to 1,600, and then the message from 3 until 2,800. The message from 1 occupies the link to 2
    // until 1,600, and then the message from 0 until 3,200, which arrives 400 ns later.
    let [free, ports, links] = [2_400_000, 2_800_000, 3_600_000];
    for (own, other, expected) in [
        ("contention_free", None, free),
        ("ports", None, ports),
        ("links", None, links),
        ("ports", Some(Links), links),
        ("links", Some(Ports), ports),
        ("ports", Some(ContentionFree), free),
    ] {
        assert_eq!(ps(own, other), expected, "{own} {other:?}");
    }
}

proptest! {
    #![proptest_config(make_proptest_config(200))]

    /// A port is never idle while a message waits: if all messages of an incast arrive before the first has entered,
    /// the last has entered when all bytes have passed.
    #[test]
    fn a_port_is_never_idle_while_something_waits(sizes in prop::collection::vec(60_000..1_000_000_u64, 2..12)) {
        let machine = build_machine_from_dims(&[make_dim_with_fixed_link_speed(DimensionShape::Switch, 12, Ring)]);
        let flows: Vec<_> = (1..).zip(&sizes).map(|(from, &bytes)| build_timed_message(0, from, 0, bytes)).collect();
        let mut found = replay_flow_arrivals(&machine, Ports, &flows);
        // In the order of senders, each message starts when the message before it ends.
        let mut end = 1_000_000;
        for (found, bytes) in found.iter().zip(&sizes) {
            end += bytes * 20;
            prop_assert_eq!(*found, end);
        }
        // For a switch, the `links` model gives the same times.
        found.sort_unstable();
        let mut links = replay_flow_arrivals(&machine, Links, &flows);
        links.sort_unstable();
        prop_assert_eq!(found, links);
    }
}

/// Rank 0 sends an empty message and then 5,000 B to rank 2, at the same time. The first arrives
/// after 1,000 ns, and the second takes 100 ns more. Both messages reach rank 2's port at the same instant, and enter
/// in the order in which they left, whatever ranks 1 and 3 did before.
#[test]
fn messages_of_one_sender_enter_in_the_order_in_which_they_left() {
    let switch = build_machine_from_dims(&[make_dim_with_fixed_link_speed(
        DimensionShape::Switch,
        4,
        Ring,
    )]);
    for network in [Ports, Links] {
        for others in 0..4 {
            let begins = build_kernel(10_000);
            let to = |tag, bytes| {
                build_send(2, bytes)
                    .tag(tag)
                    .after(&[1])
                    .on_lane(tag.into())
            };
            let from = |tag, bytes| build_receive(0, bytes).tag(tag);
            let other = |tag: i32| build_send(3, 100).tag(tag).on_lane(tag.into());
            let ranks = [
                vec![begins, to(1, 0), to(2, 5000)],
                (0..others).map(other).collect(),
                vec![from(1, 0), from(2, 5000)],
                (0..others)
                    .map(|tag| build_receive(1, 100).tag(tag))
                    .collect(),
            ];
            let replay = replay_with(
                &build_job_from_rank_nodes(&ranks, &[]),
                &switch,
                &make_stepwise_network_options(network),
            );
            let ends = [replay.node_end_ps(2, 1), replay.node_end_ps(2, 2)];
            assert_eq!(ends, [11_000_000, 11_100_000], "{network} {others}");
        }
    }
}
