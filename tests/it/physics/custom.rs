//! Tests collectives from scripts, with one trace for each member of the group.
//!
//! On every network, a byte takes 20 ps and a link takes 500 ns.

use super::lines::{
    TestTraceNode, build_collective, build_kernel, build_node, build_receive, build_send,
};
use super::rig::{
    Dim, ReplayOutcomeAndLog, build_job_from_rank_nodes, build_machine_from_dims,
    encode_and_load_rank_traces, encode_trace_file, load_released_traces,
    make_dim_with_fixed_link_speed, make_stepwise_network_options, make_stepwise_options,
    replay_with,
};
use chakram::astra_sim::custom_algorithm::{
    AstraOrRecordedScriptDurations, build_algorithm_from_traces,
};
use chakram::engine::{EnumeratedSetting, NetworkModel, ReplayOptions};
use chakram::machine::{CollectiveAlgorithm, NamedScriptedAlgorithm};
use chakram::topology::DimensionShape;
use chakram::trace::{CollectiveKind as K, Op};
use chakram::workload::{MissingRankPolicy, Workload};

/// Implements `kind` with one trace for each position.
fn build_custom_algorithm(kind: K, positions: &[Vec<TestTraceNode>]) -> NamedScriptedAlgorithm {
    let files: Vec<Vec<u8>> = positions
        .iter()
        .map(|lines| encode_trace_file(lines))
        .collect();
    let scripts =
        build_algorithm_from_traces(&files, AstraOrRecordedScriptDurations::Recorded).unwrap();
    NamedScriptedAlgorithm {
        kind,
        name: "mine".to_owned(),
        buffer: None,
        scripts: scripts.with_matched_labels().unwrap(),
    }
}

fn replay_options_with_custom_algorithm(
    custom: &NamedScriptedAlgorithm,
    options: ReplayOptions,
) -> ReplayOptions {
    ReplayOptions::default_with_changes(|o| {
        *o = options;
        o.custom = vec![custom.clone()];
    })
}

/// Models in which messages follow one another over a link, and in which a send completes when its
/// last byte has left.
fn list_network_models_with_serial_links() -> impl Iterator<Item = NetworkModel> {
    // In the fair-sharing model, messages that a member sends at the same time share a link. In the
    // exclusive model, a transfer occupies its whole route, and the send ends with the transfer.
    let others = [NetworkModel::FairSharing, NetworkModel::Exclusive];
    let models = NetworkModel::CHOICES.iter().map(|(model, ..)| *model);
    models.filter(move |model| !others.contains(model))
}

/// Returns a ring all-reduce among n members. In each of 2(n - 1) rounds, every member sends the next one the `share`
/// bytes that it received in the previous round.
fn build_ring_all_reduce(n: u32, share: u64) -> Vec<Vec<TestTraceNode>> {
    let member = |p: u32| {
        let rounds = (0..2 * (n - 1)).flat_map(|round| {
            // Node ids count from 1: node 2 round + 1 sends, and node 2 round + 2 receives.
            let before: Vec<u64> = (round > 0)
                .then_some(2 * u64::from(round))
                .into_iter()
                .collect();
            let out = build_send((p + 1) % n, share).after(&before);
            [out, build_receive((p + n - 1) % n, share)]
        });
        rounds.collect()
    };
    (0..n).map(member).collect()
}

/// Returns a job in which all `n` ranks run `lines`.
fn build_job_with_same_nodes_on_all_ranks(n: u32, lines: &[TestTraceNode]) -> Workload {
    build_job_from_rank_nodes(&vec![lines.to_vec(); n as usize], &[])
}

/// Returns a ring with one link per member, in one direction.
fn one_directional_ring_dimension(n: u32) -> [Dim; 1] {
    [make_dim_with_fixed_link_speed(
        DimensionShape::FullyConnected,
        n,
        CollectiveAlgorithm::Ring,
    )]
}

/// Returns a 2 x 2 grid of lines with the algorithm direct.
fn direct_grid_dimensions() -> [Dim; 2] {
    [make_dim_with_fixed_link_speed(DimensionShape::Ring, 2, CollectiveAlgorithm::Direct); 2]
}

/// 6 rounds of 500 ns and 1,000 B take 3.12 us, as with the machine's own ring, for equal and for different start
/// times.
#[test]
fn a_scripted_ring_takes_as_long_as_the_ring_of_the_machine() {
    let own = build_custom_algorithm(K::AllReduce, &build_ring_all_reduce(4, 1000));
    let machine = build_machine_from_dims(&one_directional_ring_dimension(4));
    for model in list_network_models_with_serial_links() {
        let workload =
            build_job_with_same_nodes_on_all_ranks(4, &[build_collective(K::AllReduce, 4000)]);
        let scripted = replay_with(
            &workload,
            &machine,
            &replay_options_with_custom_algorithm(&own, make_stepwise_network_options(model)),
        );
        assert_eq!(
            scripted.last_end_of_each_instance(),
            [3_120_000; 4],
            "{model}"
        );
        assert_eq!(scripted.outcome.messages, 24);
        let lines = [build_collective(K::AllReduce, 4000)];
        let ranks: Vec<_> = (0..4).map(|rank| (rank, &lines[..])).collect();
        let skewed = load_released_traces(ranks, |rank| [0, 700, 10_000, 30][rank as usize]);
        let skewed = skewed
            .finish_workload(Some(4), MissingRankPolicy::Refuse)
            .unwrap();
        for workload in [workload, skewed] {
            let scripted = replay_with(
                &workload,
                &machine,
                &replay_options_with_custom_algorithm(&own, make_stepwise_network_options(model)),
            );
            let builtin = replay_with(&workload, &machine, &make_stepwise_network_options(model));
            assert_eq!(
                scripted.last_end_of_each_instance(),
                builtin.last_end_of_each_instance(),
                "{model}"
            );
            assert_eq!(scripted.log.records, builtin.log.records, "{model}");
        }
    }
}

/// A script never has a closed form, and is used only if the kind and the number of members match.
#[test]
fn a_script_is_used_only_for_its_kind_and_number_of_members() {
    let own = build_custom_algorithm(K::AllReduce, &build_ring_all_reduce(4, 50));
    let machine = build_machine_from_dims(&one_directional_ring_dimension(8));
    let lines = vec![build_collective(K::AllReduce, 4000).group("half")];
    let groups: [(&str, &[u32]); 1] = [("half", &[0, 1, 2, 3])];
    let mut ranks = vec![lines; 4];
    ranks.resize(8, Vec::new());
    let replay = replay_with(
        &build_job_from_rank_nodes(&ranks, &groups),
        &machine,
        &replay_options_with_custom_algorithm(&own, ReplayOptions::default()),
    );
    // No closed form is proved for scripts.
    assert_eq!((replay.outcome.closed, replay.outcome.stepwise), (0, 1));
    for other in [
        build_collective(K::AllReduce, 4000),
        build_collective(K::AllGather, 4000),
    ] {
        let workload = build_job_with_same_nodes_on_all_ranks(8, &[other]);
        let plain = replay_with(&workload, &machine, &ReplayOptions::default());
        assert_eq!(
            replay_with(
                &workload,
                &machine,
                &replay_options_with_custom_algorithm(&own, ReplayOptions::default())
            ),
            plain
        );
        assert_eq!(plain.outcome.closed, 1);
    }
}

/// Position 0 computes for 3 us and sends. Position 1 then computes for 5 us and sends back. The
/// last byte has left after 3 + 0.52 + 5 + 0.02 us, and arrives 0.5 us later.
#[test]
fn compute_lasts_as_recorded_and_a_send_until_it_has_left() {
    let scripts = [
        vec![
            build_kernel(3000),
            build_send(1, 1000).after(&[1]),
            build_receive(1, 1000),
        ],
        vec![
            build_receive(0, 1000),
            build_kernel(5000).after(&[1]),
            build_send(0, 1000).after(&[2]),
        ],
    ];
    let own = build_custom_algorithm(K::Barrier, &scripts);
    let workload = build_job_with_same_nodes_on_all_ranks(2, &[build_collective(K::Barrier, 0)]);
    for model in list_network_models_with_serial_links() {
        let replay = replay_with(
            &workload,
            &build_machine_from_dims(&one_directional_ring_dimension(2)),
            &replay_options_with_custom_algorithm(&own, make_stepwise_network_options(model)),
        );
        assert_eq!(
            replay.last_end_of_each_instance(),
            [9_040_000, 8_540_000],
            "{model}"
        );
    }
}

/// Returns an algorithm in which position 0 sends to position 1 after 1 us. Positions 2 and 3 wait
/// for 3 and 7 us in a node that does nothing.
fn build_algorithm_with_uneven_durations() -> [Vec<TestTraceNode>; 4] {
    [
        vec![build_kernel(1000), build_send(1, 1000).after(&[1])],
        vec![build_receive(0, 1000)],
        vec![build_kernel(3000), build_node(Op::NoOp).after(&[1])],
        vec![build_kernel(7000)],
    ]
}

#[test]
fn scripts_belong_to_members_in_the_order_of_the_group() {
    let groups: [(&str, &[u32]); 1] = [("back", &[3, 2, 1, 0])];
    let lines = vec![vec![build_collective(K::AllToAll, 64).group("back")]; 4];
    let workload = build_job_from_rank_nodes(&lines, &groups);
    let own = build_custom_algorithm(K::AllToAll, &build_algorithm_with_uneven_durations());
    for model in list_network_models_with_serial_links() {
        let replay = replay_with(
            &workload,
            &build_machine_from_dims(&one_directional_ring_dimension(4)),
            &replay_options_with_custom_algorithm(&own, make_stepwise_network_options(model)),
        );
        // Rank 3 runs the first script, with 1 us and 1,000 B. Rank 2 has all bytes 0.5 us later.
        assert_eq!(
            replay.last_end_of_each_instance(),
            [7_000_000, 3_000_000, 1_520_000, 1_020_000],
            "{model}"
        );
    }
}

#[test]
fn where_there_is_a_root_positions_count_from_it() {
    let own = build_custom_algorithm(K::Broadcast, &build_algorithm_with_uneven_durations());
    let groups: [(&str, &[u32]); 1] = [("back", &[3, 2, 1, 0])];
    let run = |call: TestTraceNode| {
        let workload = build_job_from_rank_nodes(&vec![vec![call]; 4], &groups);
        let replay = replay_with(
            &workload,
            &build_machine_from_dims(&one_directional_ring_dimension(4)),
            &replay_options_with_custom_algorithm(&own, make_stepwise_options()),
        );
        replay.last_end_of_each_instance()
    };
    // The root sends to the next rank, from 2 to 3. In reverse order, the root sends from 2 to 1.
    let ends = run(build_collective(K::Broadcast, 64).with_collective_root(2));
    assert_eq!(ends, [3_000_000, 7_000_000, 1_020_000, 1_520_000]);
    let ends = run(build_collective(K::Broadcast, 64)
        .with_collective_root(2)
        .group("back"));
    assert_eq!(ends, [3_000_000, 1_520_000, 1_020_000, 7_000_000]);
}

/// Two collectives run at the same time: either each has its own ports, or the second waits 20 ns for the first. Then
/// three collectives follow one another, in one run that is reused.
#[test]
fn several_scripted_collectives_run_at_the_same_time() {
    let one = [vec![build_send(1, 1000)], vec![build_receive(0, 1000)]];
    let own = build_custom_algorithm(K::AllGather, &one);
    let at_once = build_job_with_same_nodes_on_all_ranks(
        2,
        &[
            build_collective(K::AllGather, 8).on_lane(1),
            build_collective(K::AllGather, 8).on_lane(2),
        ],
    );
    let in_a_row =
        [&[][..], &[1], &[2]].map(|after| build_collective(K::AllGather, 8).after(after));
    let in_a_row = build_job_with_same_nodes_on_all_ranks(2, &in_a_row);
    for model in list_network_models_with_serial_links() {
        let run = |workload| {
            let machine = build_machine_from_dims(&one_directional_ring_dimension(2));
            replay_with(
                workload,
                &machine,
                &replay_options_with_custom_algorithm(&own, make_stepwise_network_options(model)),
            )
        };
        let both = run(&at_once);
        let second = if model == NetworkModel::ContentionFree {
            0
        } else {
            20_000
        };
        let ends = |replay: &ReplayOutcomeAndLog, rank| {
            [replay.node_end_ps(rank, 1), replay.node_end_ps(rank, 2)]
        };
        assert_eq!(ends(&both, 0), [20_000, 20_000 + second], "{model}");
        assert_eq!(ends(&both, 1), [520_000, 520_000 + second], "{model}");
        // Rank 0 is ahead, and sends at 0, 20 and 40 ns.
        assert_eq!(
            run(&in_a_row).last_end_of_each_instance(),
            [60_000, 560_000],
            "{model}"
        );
    }
}

/// Only rank 2 of 4 has a trace, and starts after 300 ns. The other ranks start with it.
#[test]
fn ranks_without_traces_run_their_scripts_too() {
    let own = build_custom_algorithm(K::AllReduce, &build_ring_all_reduce(4, 1000));
    let lines = [
        build_kernel(300),
        build_collective(K::AllReduce, 8).after(&[1]),
    ];
    let workload = encode_and_load_rank_traces([(2, &lines[..])])
        .finish_workload(Some(4), MissingRankPolicy::Mirror)
        .unwrap();
    for model in list_network_models_with_serial_links() {
        let replay = replay_with(
            &workload,
            &build_machine_from_dims(&one_directional_ring_dimension(4)),
            &replay_options_with_custom_algorithm(&own, make_stepwise_network_options(model)),
        );
        assert_eq!(replay.makespan_ps(), 3_420_000, "{model}");
    }
}

/// If a message arrives before its receiver begins, it is received when the receiver begins. A
/// receiver waits for a late sender's message.
#[test]
fn early_messages_wait_for_members_that_begin_late() {
    let scripts = [
        vec![build_send(1, 1000)],
        vec![build_receive(0, 1000), build_kernel(1000).after(&[1])],
    ];
    let own = build_custom_algorithm(K::Barrier, &scripts);
    let lines = [build_collective(K::Barrier, 0)];
    for model in list_network_models_with_serial_links() {
        let run = |late: u32| {
            let builder =
                load_released_traces([(0, &lines[..]), (1, &lines[..])], |rank| {
                    match rank == late {
                        true => 10_000,
                        false => 0,
                    }
                });
            let workload = builder
                .finish_workload(Some(2), MissingRankPolicy::Refuse)
                .unwrap();
            replay_with(
                &workload,
                &build_machine_from_dims(&one_directional_ring_dimension(2)),
                &replay_options_with_custom_algorithm(&own, make_stepwise_network_options(model)),
            )
            .last_end_of_each_instance()
        };
        assert_eq!(run(1), [20_000, 11_000_000], "{model}");
        assert_eq!(run(0), [10_020_000, 11_520_000], "{model}");
    }
}

#[test]
fn message_sizes_come_from_scripts_and_not_from_the_collective() {
    let own = build_custom_algorithm(K::AllReduce, &build_ring_all_reduce(4, 1000));
    for bytes in [8, 1 << 30] {
        let workload =
            build_job_with_same_nodes_on_all_ranks(4, &[build_collective(K::AllReduce, bytes)]);
        let options = replay_options_with_custom_algorithm(&own, ReplayOptions::default());
        assert_eq!(
            replay_with(
                &workload,
                &build_machine_from_dims(&one_directional_ring_dimension(4)),
                &options
            )
            .makespan_ps(),
            3_120_000
        );
    }
}

/// A member sends along different dimensions at the same time, and along one dimension in turn. In a grid of two by
/// two, position 0 sends 1,000 B to every other position, and the message across both dimensions comes last. Sends to 1
/// and 3 leave through the same port.
#[test]
fn each_dimension_has_its_port() {
    let scripts = [
        vec![
            build_send(1, 1000),
            build_send(2, 1000),
            build_send(3, 1000),
        ],
        vec![build_receive(0, 1000)],
        vec![build_receive(0, 1000)],
        vec![build_receive(0, 1000)],
    ];
    let own = build_custom_algorithm(K::AllToAll, &scripts);
    let workload = build_job_with_same_nodes_on_all_ranks(4, &[build_collective(K::AllToAll, 64)]);
    for model in [NetworkModel::ContentionFree, NetworkModel::Ports] {
        let replay = replay_with(
            &workload,
            &build_machine_from_dims(&direct_grid_dimensions()),
            &replay_options_with_custom_algorithm(&own, make_stepwise_network_options(model)),
        );
        // The message to 3 leaves at 20 ns, crosses two links of 500 ns, and takes 20 ns for its bytes.
        assert_eq!(
            replay.last_end_of_each_instance(),
            [40_000, 520_000, 520_000, 1_040_000],
            "{model}"
        );
    }
}

/// On a ring, position 0 sends to both sides at the same time. If all positions are fully connected, it sends to one
/// after the other. 1,000 B take 20 ns.
#[test]
fn each_side_of_a_ring_has_its_port() {
    let scripts = [
        vec![build_send(1, 1000), build_send(2, 1000)],
        vec![build_receive(0, 1000)],
        vec![build_receive(0, 1000)],
    ];
    let own = build_custom_algorithm(K::AllToAll, &scripts);
    let workload = build_job_with_same_nodes_on_all_ranks(3, &[build_collective(K::AllToAll, 64)]);
    let ring = [
        make_dim_with_fixed_link_speed(DimensionShape::Ring, 3, CollectiveAlgorithm::Ring)
            .with_npu_bandwidth_per_link(),
    ];
    for (dims, second) in [(ring, 0), (one_directional_ring_dimension(3), 20_000)] {
        for model in list_network_models_with_serial_links() {
            let replay = replay_with(
                &workload,
                &build_machine_from_dims(&dims),
                &replay_options_with_custom_algorithm(&own, make_stepwise_network_options(model)),
            );
            let ends = [20_000 + second, 520_000, 520_000 + second];
            assert_eq!(replay.last_end_of_each_instance(), ends, "{model}");
        }
    }
}

/// Two receives of one tag and size become ready in reverse program order. Each still gets the
/// message of the send at the same position in program order.
#[test]
fn the_first_receive_takes_the_first_send() {
    let scripts = [
        // The second send leaves 5 us after the first.
        vec![
            build_send(1, 1000),
            build_kernel(5000).after(&[1]),
            build_send(1, 1000).after(&[2]),
        ],
        // The first receive is ready at 9 us, and the second at 0. A kernel follows the second
        // receive.
        vec![
            build_kernel(9000),
            build_receive(0, 1000).after(&[1]),
            build_receive(0, 1000),
            build_kernel(5000).after(&[3]),
        ],
    ];
    let own = build_custom_algorithm(K::Barrier, &scripts);
    let workload = build_job_with_same_nodes_on_all_ranks(2, &[build_collective(K::Barrier, 0)]);
    for model in list_network_models_with_serial_links() {
        let replay = replay_with(
            &workload,
            &build_machine_from_dims(&one_directional_ring_dimension(2)),
            &replay_options_with_custom_algorithm(&own, make_stepwise_network_options(model)),
        );
        // The second message begins to leave at 5.02 us, and arrives at 5.54 us. Then the kernel runs.
        assert_eq!(
            replay.last_end_of_each_instance(),
            [5_040_000, 10_540_000],
            "{model}"
        );
    }
}
