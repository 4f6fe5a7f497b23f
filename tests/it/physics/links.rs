//! Tests links that all operations share. Times are compared with sums by hand, with packets, and
//! with times without contention.

use super::flows::{
    TimedMessageBetweenNpus, any_dim, build_timed_message, message_bytes_strategy,
    replay_flow_arrivals, replay_message_left_and_arrived_times,
};
use super::lines::{build_collective, build_kernel, build_receive, build_send};
use super::rig::{
    Dim, build_job_from_rank_nodes, build_machine_from_dims, build_machine_with_switching_mode,
    make_dim_with_fixed_link_speed, make_proptest_config, make_stepwise_network_options,
    replay_with,
};
use super::trains;
use chakram::engine::NetworkModel::{ContentionFree, Links, Ports};
use chakram::machine::CollectiveAlgorithm;
use chakram::machine::CollectiveAlgorithm::{Direct, Ring};
use chakram::topology::{DimensionShape, SwitchingMode};
use chakram::trace::CollectiveKind as K;
use chakram::units::Bytes;
use proptest::prelude::*;

fn switching_mode_from_segment(segment: Option<u64>) -> SwitchingMode {
    match segment {
        Some(segment) => SwitchingMode::CutThrough {
            segment: Bytes(segment),
        },
        None => SwitchingMode::StoreAndForward,
    }
}

/// Returns a dimension with 20 ps per byte and 500 ns per link, so 10,000 B take 200 ns.
fn link_dimension(shape: DimensionShape, size: u32) -> Dim {
    make_dim_with_fixed_link_speed(shape, size, Ring).with_npu_bandwidth_per_link()
}

/// The message from 0 to 2 reaches 1 at 500 ns. If 1 sends a message at 0, it has left by then. A
/// message that 1 sends at 400 occupies the link until 600, and a message that 1 sends at 550 finds
/// the link occupied until 700.
#[test]
fn messages_through_an_npu_take_turns_on_links_with_its_own_sends() {
    for shape in [DimensionShape::Ring, DimensionShape::Mesh] {
        let machine = build_machine_from_dims(&[link_dimension(shape, 6)]);
        let found = |ns| {
            let flows = [
                build_timed_message(0, 0, 2, 10_000),
                build_timed_message(ns, 1, 2, 10_000),
            ];
            replay_flow_arrivals(&machine, Links, &flows)
        };
        assert_eq!(found(0), [1_200_000, 700_000]);
        assert_eq!(found(400), [1_300_000, 1_100_000]);
        assert_eq!(found(550), [1_200_000, 1_400_000]);
        // With ports, both messages enter at 2: one from 1,000 ns, and the other 500 ns after it
        // begins to leave.
        let flows = [
            build_timed_message(0, 0, 2, 10_000),
            build_timed_message(550, 1, 2, 10_000),
        ];
        assert_eq!(
            replay_flow_arrivals(&machine, Ports, &flows),
            [1_200_000, 1_400_000]
        );
        assert_eq!(
            replay_flow_arrivals(&machine, ContentionFree, &flows),
            [1_200_000, 1_250_000]
        );
    }
}

/// A send completes when the message has passed its first link, even if the message waits later.
#[test]
fn a_send_is_over_when_its_first_link_is_free_of_it() {
    let machine = build_machine_from_dims(&[link_dimension(DimensionShape::Ring, 6)]);
    let flows = [
        build_timed_message(0, 1, 2, 50_000),
        build_timed_message(0, 0, 2, 10_000),
        build_timed_message(0, 0, 5, 10_000),
    ];
    // The message from 1 to 2 occupies its link for 1,000 ns, and 0's message waits there from 500.
    // The downward direction is a separate link.
    let expected = [
        [1_000_000, 1_500_000],
        [200_000, 1_700_000],
        [200_000, 700_000],
    ];
    assert_eq!(
        replay_message_left_and_arrived_times(&machine, Links, &flows),
        expected
    );
}

/// A broadcast runs over one switch, and its root sends a message to an NPU outside the group.
///
/// 80,000 B take 1,600 ns, 10,000 B take 200 ns, and two links have 1,000 ns of latency. The root
/// sends its second message when the first has left. A message that another operation sends in the
/// meantime therefore goes first.
#[test]
fn a_message_and_a_collective_contend_for_a_link() {
    let dims = [make_dim_with_fixed_link_speed(
        DimensionShape::Switch,
        4,
        Direct,
    )];
    for (model, sent_ns, all, one) in [
        // The message goes first, and then the broadcast takes 2 x 1,600 ns.
        (Links, 0, 4_400_000, 1_200_000),
        (Ports, 0, 4_400_000, 1_200_000),
        // The message goes between the two messages of the broadcast.
        (Links, 100, 4_400_000, 2_800_000),
        (Ports, 100, 4_400_000, 2_800_000),
        // Nothing contends.
        (ContentionFree, 100, 4_200_000, 1_300_000),
    ] {
        let broadcast = build_collective(K::Broadcast, 80_000)
            .group("three")
            .on_lane(0);
        let mut ranks = vec![vec![broadcast]; 3];
        ranks[0].push(build_send(3, 10_000).delayed(sent_ns).on_lane(1));
        ranks.push(vec![build_receive(0, 10_000)]);
        let workload = build_job_from_rank_nodes(&ranks, &[("three", &[0, 1, 2])]);
        let replay = replay_with(
            &workload,
            &build_machine_from_dims(&dims),
            &make_stepwise_network_options(model),
        );
        assert_eq!(
            (replay.makespan_ps(), replay.node_end_ps(3, 1)),
            (all, one),
            "{model}"
        );
    }
}

/// Two rings of 3 share one member, which has only one upward link.
#[test]
fn two_collectives_contend_for_the_link_of_a_shared_member() {
    // A ring all-gather of 3 x 40,000 B has 2 rounds of 800 + 1,000 ns.
    let shared = |kernel_ns| {
        let gather = |name| build_collective(K::AllGather, 40_000).group(name);
        let first = vec![gather("a").on_lane(0)];
        let second = vec![
            build_kernel(kernel_ns).on_lane(2),
            gather("b").after(&[1]).on_lane(1),
        ];
        let both = vec![
            gather("a").on_lane(0),
            build_kernel(kernel_ns).on_lane(2),
            gather("b").after(&[2]).on_lane(1),
        ];
        let ranks = [first.clone(), first, both, second.clone(), second];
        let workload = build_job_from_rank_nodes(&ranks, &[("a", &[0, 1, 2]), ("b", &[2, 3, 4])]);
        let replay = replay_with(
            &workload,
            &build_machine_from_dims(&[link_dimension(DimensionShape::Switch, 5)]),
            &make_stepwise_network_options(Links),
        );
        [replay.node_end_ps(0, 1), replay.node_end_ps(4, 2)]
    };
    assert_eq!(shared(5000), [3_600_000, 8_600_000]);
    // The second ring begins 400 ns later. Rank 2's upward link is occupied until 800, so its
    // message reaches 3 at 2,600 instead of 2,200. Rank 3 forwards the message to 4, where it
    // arrives at 4,400 instead of 4,000.
    assert_eq!(shared(400), [3_600_000, 4_400_000]);
}

/// The result depends neither on unrelated messages nor on how these change the message ids.
#[test]
fn traffic_elsewhere_changes_nothing() {
    let machine = build_machine_from_dims(&[link_dimension(DimensionShape::Switch, 8)]);
    // Both messages reach 0 at the same time, or 0's downward link 500 ns later. Message 1 is the
    // first.
    let two = [
        build_timed_message(10_000, 2, 0, 20_000),
        build_timed_message(10_000, 1, 0, 10_000),
    ];
    let expected = [11_600_000, 11_200_000];
    assert_eq!(replay_flow_arrivals(&machine, Links, &two), expected);
    // The unrelated messages end earlier, in either order, and then their ids are reused.
    for elsewhere in [[10, 10], [10, 1000], [1000, 10]] {
        let [one, other] = elsewhere;
        let flows = [
            build_timed_message(0, 4, 5, one),
            build_timed_message(0, 6, 7, other),
            two[0],
            two[1],
        ];
        for model in [Links, Ports] {
            let all = replay_flow_arrivals(&machine, model, &flows);
            assert_eq!(all[2..], expected, "{model}");
        }
    }
}

/// If the messages of an algorithm never share a link, it takes as long as without contention.
#[test]
fn collectives_without_shared_links_take_as_long_as_uncontended() {
    let rings = [
        DimensionShape::Ring,
        DimensionShape::Mesh,
        DimensionShape::Switch,
        DimensionShape::FullyConnected,
    ]
    .map(|s| (s, Ring));
    let direct = [
        (DimensionShape::Switch, Direct),
        (DimensionShape::FullyConnected, Direct),
    ];
    for (shape, algorithm) in rings.into_iter().chain(direct) {
        let dims = [
            make_dim_with_fixed_link_speed(shape, 5, algorithm),
            make_dim_with_fixed_link_speed(DimensionShape::Ring, 3, Ring),
        ];
        for kind in [K::AllReduce, K::AllToAll, K::AllGather, K::Barrier] {
            let ranks = vec![vec![build_collective(kind, 75_000)]; 15];
            for switching in [
                SwitchingMode::IDEAL,
                switching_mode_from_segment(Some(1000)),
                switching_mode_from_segment(None),
            ] {
                let machine = build_machine_with_switching_mode(&dims, switching);
                let ps = |model| {
                    replay_with(
                        &build_job_from_rank_nodes(&ranks, &[]),
                        &machine,
                        &make_stepwise_network_options(model),
                    )
                    .makespan_ps()
                };
                let free = ps(ContentionFree);
                assert_eq!(
                    [ps(Ports), ps(Links)],
                    [free; 2],
                    "{shape} {algorithm} {kind}"
                );
            }
        }
    }
}

/// With the algorithm direct on a ring of 4, a message two positions up shares a link with the neighbour's message.
///
/// In an all-to-all of 4 x 10,000 B, messages of 200 ns each go to +1, then to +2, and then to +3, which is one
/// position down. The message to +2 leaves from 200 to 400 ns, and reaches the neighbour at 700. The neighbour's upward
/// link is free by then, so the message arrives from 1,200 to 1,400. The message that goes down arrives at 1,100.
#[test]
fn direct_messages_on_a_ring_contend_where_routes_share_links() {
    let machine =
        build_machine_from_dims(&[
            make_dim_with_fixed_link_speed(DimensionShape::Ring, 4, Direct)
                .with_npu_bandwidth_per_link(),
        ]);
    let ranks = vec![vec![build_collective(K::AllToAll, 40_000)]; 4];
    let ps = |model| {
        replay_with(
            &build_job_from_rank_nodes(&ranks, &[]),
            &machine,
            &make_stepwise_network_options(model),
        )
        .makespan_ps()
    };
    assert_eq!(ps(Links), 1_400_000);
    // With 50,000 B, a message takes 1,000 ns. The message to +2 leaves from 1,000 to 2,000, and
    // reaches the neighbour at 1,500. The neighbour sends its own message to +2 until 2,000, so the
    // first message leaves the neighbour by 3,000, and arrives at 3,500.
    let ranks = vec![vec![build_collective(K::AllToAll, 200_000)]; 4];
    let ps = |model| {
        replay_with(
            &build_job_from_rank_nodes(&ranks, &[]),
            &machine,
            &make_stepwise_network_options(model),
        )
        .makespan_ps()
    };
    assert_eq!(ps(Links), 3_500_000);
}

fn optional_segment_bytes_strategy() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![Just(Some(0)), (1..100_000_u64).prop_map(Some), Just(None)]
}

/// Returns a stack of up to three dimensions with at most 64 NPUs.
fn dimensions_strategy() -> impl Strategy<Value = Vec<Dim>> {
    prop::collection::vec(any_dim(4), 1..=3)
}

fn count_npus(dims: &[Dim]) -> u32 {
    dims.iter().map(|dim| dim.size).product()
}

/// Returns the NPU to which `npu` sends in a permutation along dimension `d` in which no two messages share a link.
fn permutation_peer_along_dimension(dims: &[Dim], d: usize, by: u32, npu: u32) -> Option<u32> {
    let stride: u32 = dims[..d].iter().map(|dim| dim.size).product();
    let (n, x) = (dims[d].size, npu / stride % dims[d].size);
    let to = match dims[d].shape {
        // All NPUs send up, or all send down.
        DimensionShape::Ring => [x + 1, x + n - 1][by as usize % 2] % n,
        // Two neighbours exchange messages.
        DimensionShape::Mesh => Some((x + by % 2) ^ 1)
            .and_then(|y| y.checked_sub(by % 2))
            .filter(|&y| y < n)?,
        DimensionShape::Switch | DimensionShape::FullyConnected => (x + 1 + by % (n - 1)) % n,
    };
    Some(npu - x * stride + to * stride)
}

proptest! {
    #![proptest_config(make_proptest_config(300))]

    /// A single message leaves and arrives at the same picosecond under every model.
    #[test]
    fn a_single_message_takes_the_same_time_in_all_models(
        dims in dimensions_strategy(), segment in optional_segment_bytes_strategy(), bytes in message_bytes_strategy(), pick in any::<(u32, u32)>(),
    ) {
        let n = count_npus(&dims);
        let (from, apart) = (pick.0 % n, 1 + pick.1 % (n - 1));
        let flows = [build_timed_message(0, from, (from + apart) % n, bytes)];
        let machine = build_machine_with_switching_mode(&dims, switching_mode_from_segment(segment));
        let found = [ContentionFree, Ports, Links].map(|model| replay_message_left_and_arrived_times(&machine, model, &flows));
        prop_assert_eq!(&found[0], &found[1]);
        prop_assert_eq!(&found[0], &found[2]);
    }

    /// Messages that do not contend leave and arrive at the same picosecond under every model, too.
    #[test]
    fn messages_without_shared_links_take_the_same_time_in_all_models(
        dims in dimensions_strategy(), segment in optional_segment_bytes_strategy(), pick in any::<(usize, u32)>(),
        sizes in prop::collection::vec(message_bytes_strategy(), 64),
    ) {
        let d = pick.0 % dims.len();
        let pairs = (0..count_npus(&dims)).filter_map(|npu| Some((npu, permutation_peer_along_dimension(&dims, d, pick.1, npu)?)));
        let flows: Vec<_> = pairs.zip(&sizes).map(|((from, to), &b)| build_timed_message(0, from, to, b)).collect();
        let machine = build_machine_with_switching_mode(&dims, switching_mode_from_segment(segment));
        let found = [ContentionFree, Ports, Links].map(|model| replay_message_left_and_arrived_times(&machine, model, &flows));
        prop_assert_eq!(&found[0], &found[1]);
        prop_assert_eq!(&found[0], &found[2]);
    }
}

/// Pattern of the messages on a machine.
#[derive(Clone, Copy, Debug)]
enum MessageTrafficPattern {
    /// Each NPU sends to one other NPU, and receives from one other.
    Permutation,
    /// Most messages go to one NPU.
    Incast,
    /// Messages are between random pairs.
    Any,
}

#[derive(Clone, Debug)]
struct RandomFlowTraffic {
    dims: Vec<Dim>,
    segment: Option<u64>,
    flows: Vec<TimedMessageBetweenNpus>,
}

/// Returns traffic over these shapes.
fn traffic_strategy(
    shapes: &'static [&'static [DimensionShape]],
) -> impl Strategy<Value = RandomFlowTraffic> {
    let pattern = prop::sample::select(vec![
        MessageTrafficPattern::Permutation,
        MessageTrafficPattern::Incast,
        MessageTrafficPattern::Any,
    ]);
    let drawn = prop::collection::vec(
        (
            0..3000_u64,
            any::<u32>(),
            any::<u32>(),
            message_bytes_strategy(),
        ),
        1..40,
    );
    let dims = prop::collection::vec(any_dim(5), 3);
    let segment = prop_oneof![4 => (4096..100_000_u64).prop_map(Some), 1 => Just(None)];
    (
        prop::sample::select(shapes),
        dims,
        segment,
        pattern,
        drawn,
        any::<bool>(),
    )
        .prop_map(|(shapes, dims, segment, pattern, drawn, together)| {
            let mut dims = dims[..shapes.len()].to_vec();
            for (dim, &shape) in dims.iter_mut().zip(shapes) {
                dim.shape = shape;
            }
            // A train that crosses a fast dimension between two slower ones spreads out, so no middle dimension here is
            // that fast.
            if let [a, b, c] = &mut dims[..] {
                b.ps_per_byte = b
                    .ps_per_byte
                    .max(a.link_ps_per_byte().min(c.link_ps_per_byte()));
            }
            let n = count_npus(&dims);
            let faster_after = dims
                .windows(2)
                .any(|w| w[1].link_ps_per_byte() < w[0].link_ps_per_byte());
            let shift = 1 + drawn[0].1 % (n - 1);
            let flows = (0..n).zip(drawn).filter_map(|(i, (ns, a, b, bytes))| {
                let (from, to) = match pattern {
                    MessageTrafficPattern::Permutation => (i, (i + shift) % n),
                    MessageTrafficPattern::Incast => (a % n, if b % 4 > 0 { 0 } else { b % n }),
                    MessageTrafficPattern::Any => (a % n, b % n),
                };
                // If later links are faster, a train equals its packets only if its segments are whole.
                let bytes = match segment {
                    Some(s) if faster_after && bytes > s => bytes / s * s,
                    _ => bytes,
                };
                let ns = if together { 0 } else { ns };
                (from != to).then_some(build_timed_message(ns, from, to, bytes))
            });
            RandomFlowTraffic {
                flows: flows.collect(),
                dims,
                segment,
            }
        })
}

const SHAPES: &[&[DimensionShape]] = &[
    &[DimensionShape::Ring, DimensionShape::Ring],
    &[DimensionShape::Ring, DimensionShape::Ring],
    &[DimensionShape::Mesh, DimensionShape::Mesh],
    &[DimensionShape::FullyConnected, DimensionShape::Switch],
    &[
        DimensionShape::Ring,
        DimensionShape::FullyConnected,
        DimensionShape::Switch,
    ],
];

proptest! {
    #![proptest_config(make_proptest_config(400))]

    /// Single packets arrive at the same times as trains.
    ///
    /// A train keeps its segments without gaps, so it is ready at max(head, tail - (s - γ)). The train has N packets of
    /// γ each. The first packet arrives at the head, and the last at the tail. The last packet may be that late because
    /// N - 1 = (s - γ)/γ packets go before it. The packets are therefore ready at the same moment as the train, and
    /// everything after that is equal. If the last packet is shorter, both still agree as long as no link is faster
    /// than an earlier one, because then the head determines the time. If there are segments, messages therefore
    /// consist of whole segments here, and the allowed difference is 0.
    #[test]
    fn message_trains_arrive_when_single_packets_would(traffic in traffic_strategy(SHAPES)) {
        let RandomFlowTraffic { dims, segment, flows } = &traffic;
        let machine = build_machine_with_switching_mode(dims, switching_mode_from_segment(*segment));
        let expected = trains::compute_arrival_times(dims, *segment, flows);
        prop_assert_eq!(replay_flow_arrivals(&machine, Links, flows), expected);
    }

    /// For single messages of any size, a train may wait for a short last packet as long as for a
    /// full packet, once on each link that is faster than an earlier link.
    #[test]
    fn a_short_last_packet_costs_at_most_a_segment_on_each_link(traffic in traffic_strategy(SHAPES), odd in message_bytes_strategy()) {
        let RandomFlowTraffic { dims, segment, .. } = &traffic;
        let machine = build_machine_with_switching_mode(dims, switching_mode_from_segment(*segment));
        let flows = [build_timed_message(0, 0, count_npus(dims) - 1, odd)];
        let trains = replay_flow_arrivals(&machine, Links, &flows)[0];
        let packets = trains::compute_arrival_times(dims, *segment, &flows)[0];
        let segment = segment.map_or(odd, |segment| segment.min(odd));
        let most = trains::total_packet_time_on_path(dims, 0, count_npus(dims) - 1, segment);
        prop_assert!((packets..=packets + most).contains(&trains), "{trains} for {packets}, {most}");
    }
}

/// Every collective completes on any stack of dimensions, with simulated messages.
#[test]
fn every_algorithm_ends_on_every_shape() {
    for (shape, _) in DimensionShape::ALL {
        for (algorithm, _) in CollectiveAlgorithm::ALL {
            let dims = [
                make_dim_with_fixed_link_speed(shape, 4, algorithm),
                make_dim_with_fixed_link_speed(DimensionShape::Mesh, 3, algorithm),
            ];
            for (kind, ..) in K::ALL {
                let ranks = vec![vec![build_collective(kind, 60_000)]; 12];
                for model in [Ports, Links] {
                    let replay = replay_with(
                        &build_job_from_rank_nodes(&ranks, &[]),
                        &build_machine_from_dims(&dims),
                        &make_stepwise_network_options(model),
                    );
                    assert_eq!(
                        replay.outcome.stepwise, 1,
                        "{shape} {algorithm} {kind} {model}"
                    );
                }
            }
        }
    }
}
