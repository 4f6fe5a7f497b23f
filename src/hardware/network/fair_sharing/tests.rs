//! Compares message times with a simulation in small time steps, and with results computed by hand.

use super::super::test_harness::{PendingEvents, simulate_injection_and_delivery_times};
use super::*;
use crate::topology::link_graph::{ChildrenAndUplinksByClosLevel, ShortestPathChoice};
use crate::topology::{DimensionShape, MemoryAtNpuOrFabric, MemorySiteAndLink, TopologyDimension};
use chakram_base::ids::OpIndex;
use chakram_base::units::Bandwidth;
use proptest::prelude::*;

/// Returns 1 GB/s, which is 1,000 ps per byte.
fn one_gigabyte_per_second() -> Bandwidth {
    Bandwidth::new(1e9).unwrap()
}

fn build_topology(shapes: &[(DimensionShape, u32)], latency: Span) -> Topology {
    let dimensions = shapes.iter().map(|&(shape, size)| TopologyDimension {
        name: shape.to_string(),
        shape,
        size,
        bandwidth: one_gigabyte_per_second(),
        latency,
    });
    Topology::new(dimensions.collect()).unwrap()
}

fn simulate_arrival_times(topology: &Topology, messages: &[(u64, u32, u32, u64)]) -> Vec<u64> {
    let mut network = FairSharingNetwork::new(topology).unwrap();
    let all = simulate_injection_and_delivery_times(&mut network, messages);
    all.into_iter().map(|[_, arrived]| arrived).collect()
}

/// The path has two links of 50 ps, so one message alone takes 100 ps + 1,000 B x 1,000 ps/B. Two messages from one NPU
/// share that NPU's link, so both take twice the time. If one message begins when the other is half sent, the later
/// message has the link to itself in the end.
#[test]
fn messages_share_a_link_while_both_are_there() {
    let topology = build_topology(&[(DimensionShape::Switch, 4)], Span(50));
    assert_eq!(
        simulate_arrival_times(&topology, &[(0, 0, 1, 1000)]),
        [1_000_100]
    );
    let both = simulate_arrival_times(&topology, &[(0, 0, 1, 1000), (0, 0, 2, 1000)]);
    assert_eq!(both, [2_000_100, 2_000_100]);
    // From 500,000 ps on each message has half the rate. The first message has 500 B left and ends at 1,500,000 ps. The
    // second message then has 500 B left.
    let late = simulate_arrival_times(&topology, &[(0, 0, 1, 1000), (500_000, 0, 2, 1000)]);
    assert_eq!(late, [1_500_100, 2_000_100]);
    // Two messages to one NPU also share that NPU's link; messages between other NPUs share none.
    let apart = simulate_arrival_times(
        &topology,
        &[(0, 0, 2, 1000), (0, 1, 2, 1000), (0, 2, 3, 1000)],
    );
    assert_eq!(apart, [2_000_100, 2_000_100, 1_000_100]);
}

/// Three messages from NPU 0 each get a third of that NPU's link. The message from NPU 2 gets the rest of the link to
/// NPU 1.
#[test]
fn rates_are_max_min_fair() {
    let topology = build_topology(&[(DimensionShape::Switch, 4)], Span::ZERO);
    let found = simulate_arrival_times(
        &topology,
        &[
            (0, 0, 1, 1000),
            (0, 0, 2, 1000),
            (0, 0, 3, 1000),
            (0, 2, 1, 1000),
        ],
    );
    // Each message from NPU 0 gets a third of that NPU's link. The message from NPU 2 gets 2/3 of the link to NPU 1 and
    // ends after 1,500 ns. The shares of the other three messages do not change.
    assert_eq!(found, [3_000_000, 3_000_000, 3_000_000, 1_500_000]);
}

#[test]
fn a_sprayed_message_has_all_paths_and_a_hashed_one_has_one() {
    let levels = ChildrenAndUplinksByClosLevel {
        children: vec![2, 2],
        uplinks: vec![2],
    };
    let arrive = |policy, messages: &[(u64, u32, u32, u64)]| {
        let graph = LinkGraph::clos(&levels, (one_gigabyte_per_second(), Span::ZERO), policy);
        let topology =
            build_topology(&[(DimensionShape::Switch, 4)], Span::ZERO).with_link_graph(graph);
        simulate_arrival_times(&topology, messages)
    };
    let across = [(0, 0, 2, 1000), (0, 1, 3, 1000)];
    assert_eq!(arrive(ShortestPathChoice::Sprayed, &across), [1_000_000; 2]);
    // Depending on the hash, the two messages share one of two upward links or use both, and likewise with downward
    // links.
    let hashed: Vec<_> = (0..64)
        .map(|seed| arrive(ShortestPathChoice::Hashed(seed), &across))
        .collect();
    assert!(hashed.contains(&vec![1_000_000; 2]));
    assert!(hashed.contains(&vec![2_000_000; 2]));
}

proptest! {
    /// No message is faster than it would be alone, and no link carries more than its rate allows. The order of
    /// submission at one instant has no effect.
    #[test]
    fn no_message_is_faster_than_alone_and_no_link_than_its_rate(
        messages in prop::collection::vec((0_u64..3_000_000, 0_u32..12, 1_u32..12, 1_u64..5000), 1..20)
    ) {
        let topology = build_topology(&[(DimensionShape::Ring, 4), (DimensionShape::Switch, 3)], Span(70));
        let mut messages: Vec<_> = messages
            .into_iter()
            .map(|(at, from, by, bytes)| (at, from, (from + by) % 12, bytes))
            .collect();
        messages.sort_by_key(|message| message.0);
        let found = simulate_arrival_times(&topology, &messages);
        let mut received = [(u64::MAX, 0, 0_u64); 12];
        for (&(at, from, to, bytes), &end) in messages.iter().zip(&found) {
            let path = topology.path_between_npus(Npu(from), Npu(to)).unwrap();
            let alone = path.time_message(UnroundedBufferShare::from_bytes(bytes)).0;
            prop_assert!(end + 2 >= at + alone, "{end} < {at} + {alone}");
            let own = &mut received[to as usize];
            *own = (own.0.min(at), own.1.max(end), own.2 + bytes);
        }
        for (first, last, bytes) in received.into_iter().filter(|own| own.2 > 0) {
            // Links of a ring have 0.5 GB/s in either direction, and the switch has 1 GB/s, so messages share at most
            // 2 GB/s in all.
            prop_assert!(last - first + 20 >= bytes * 500, "{bytes} B in {}", last - first);
        }
    }
}

/// Compares arrivals with a simulation that works with the individual links of all paths and solves all rates after
/// each change.
mod solved_anew {
    use super::*;

    /// A message of the simulation: its links and the part of its bytes on each, its remaining bytes, and its route's
    /// latency.
    struct SimulatedFlow {
        links: Vec<(u32, f64)>,
        left: f64,
        latency: f64,
        rate: f64,
        message: usize,
    }

    /// Raises all rates until links saturate, as the definition of max-min fairness says.
    fn fill_max_min_rates(flows: &mut [SimulatedFlow], capacity: impl Fn(u32) -> f64) {
        let mut open: Vec<usize> = (0..flows.len()).collect();
        flows.iter_mut().for_each(|flow| flow.rate = 0.0);
        while !open.is_empty() {
            let spare = |link: u32, flows: &[SimulatedFlow]| {
                let parts = |flow: &SimulatedFlow| -> f64 {
                    let on = flow.links.iter().filter(|(other, _)| *other == link);
                    on.map(|(_, part)| part).sum()
                };
                let taken: f64 = (0..flows.len())
                    .filter(|flow| !open.contains(flow))
                    .map(|flow| parts(&flows[flow]) * flows[flow].rate)
                    .sum();
                let parts: f64 = open.iter().map(|flow| parts(&flows[*flow])).sum();
                (capacity(link) - taken) / parts
            };
            let limit = |flow: usize, flows: &[SimulatedFlow]| {
                let links = flows[flow].links.iter();
                links
                    .map(|(link, _)| spare(*link, flows))
                    .fold(f64::INFINITY, f64::min)
            };
            let limits: Vec<f64> = open.iter().map(|flow| limit(*flow, flows)).collect();
            let least = limits.iter().copied().fold(f64::INFINITY, f64::min);
            let mut limits = limits.into_iter();
            open.retain(|flow| {
                let is_tight = limits.next().unwrap() <= least * (1.0 + 1e-7);
                if is_tight {
                    flows[*flow].rate = least;
                }
                !is_tight
            });
        }
    }

    /// Returns the arrival times in picoseconds.
    fn reference_arrival_times_of_messages(
        topology: &Topology,
        messages: &[(u64, u32, u32, u64)],
    ) -> Vec<f64> {
        let graph = topology.explicit_or_built_link_graph().unwrap();
        let capacity = |link: u32| {
            graph.all_links()[link as usize]
                .bandwidth
                .bytes_per_second()
        };
        let (mut now, mut next) = (0.0, 0);
        let mut flows: Vec<SimulatedFlow> = Vec::new();
        let mut ends = vec![0.0; messages.len()];
        while next < messages.len() || !flows.is_empty() {
            fill_max_min_rates(&mut flows, capacity);
            let departure = flows.iter().map(|flow| now + flow.left / flow.rate * 1e12);
            let departure = departure.fold(f64::INFINITY, f64::min);
            let submission = messages
                .get(next)
                .map_or(f64::INFINITY, |message| message.0 as f64);
            let then = departure.min(submission);
            for flow in &mut flows {
                flow.left -= flow.rate * (then - now) / 1e12;
            }
            now = then;
            flows.retain(|flow| {
                // Times are rounded to picoseconds; in one picosecond, 1 GB/s moves 0.001 bytes.
                let stays = flow.left > 2e-3;
                if !stays {
                    ends[flow.message] = now + flow.latency;
                }
                stays
            });
            while next < messages.len() && messages[next].0 as f64 <= now {
                let (_, from, to, bytes) = messages[next];
                let route = graph.route_between(Npu(from), Npu(to));
                flows.push(SimulatedFlow {
                    links: route.links,
                    left: bytes as f64,
                    latency: route.latency.0 as f64,
                    rate: 0.0,
                    message: next,
                });
                next += 1;
            }
        }
        ends
    }

    fn build_clos_topology(levels: (&[u32], &[u32]), policy: ShortestPathChoice) -> Topology {
        let levels = ChildrenAndUplinksByClosLevel {
            children: levels.0.to_vec(),
            uplinks: levels.1.to_vec(),
        };
        let graph = LinkGraph::clos(&levels, (one_gigabyte_per_second(), Span(700)), policy);
        build_topology(&[(DimensionShape::Switch, 16)], Span::ZERO).with_link_graph(graph)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// In half of the cases, messages have equal sizes and regular times, so they leave and begin at the same
        /// instant.
        #[test]
        fn messages_arrive_as_if_rates_were_solved_anew(
            network in 0_usize..6,
            regular: bool,
            messages in prop::collection::vec((0_u64..6_000_000, 0_u32..16, 1_u32..16, 1_u64..4000), 1..24),
        ) {
            let topology = match network {
                0 => build_clos_topology((&[4, 4], &[2]), ShortestPathChoice::Sprayed),
                1 => build_clos_topology((&[4, 4], &[4]), ShortestPathChoice::Sprayed),
                2 => build_clos_topology((&[2, 2, 4], &[1, 2]), ShortestPathChoice::Sprayed),
                3 => build_clos_topology((&[2, 4, 2], &[2, 3]), ShortestPathChoice::First),
                4 => build_clos_topology((&[2, 2, 4], &[2, 2]), ShortestPathChoice::Hashed(7)),
                _ => build_topology(&[(DimensionShape::Ring, 4), (DimensionShape::Switch, 4)], Span(70)),
            };
            let mut messages: Vec<_> = messages
                .into_iter()
                .map(|(at, from, by, bytes)| match regular {
                    true => (at / 500_000 * 500_000, from, (from + by) % 16, bytes.div_ceil(2000) * 1000),
                    false => (at, from, (from + by) % 16, bytes),
                })
                .collect();
            messages.sort_by_key(|message| message.0);
            let found = simulate_arrival_times(&topology, &messages);
            let expected = reference_arrival_times_of_messages(&topology, &messages);
            for (found, expected) in found.iter().zip(&expected) {
                prop_assert!((*found as f64 - expected).abs() <= 40.0, "{found} {expected} {messages:?}");
            }
        }
    }

    /// When messages of a permutation replace one another at once, they keep their rates; a different receiver changes
    /// the rates.
    #[test]
    fn rates_stay_if_messages_replace_each_other() {
        let topology = build_clos_topology((&[4, 4], &[2]), ShortestPathChoice::Sprayed);
        let graph = topology.explicit_or_built_link_graph().unwrap();
        let mut routes = BundledRouteFinder::new(&graph);
        let mut links = |from: u32, to: u32| {
            let mut route = RouteLinksAndFractions::default();
            routes.find_route(&graph, (Npu(from), Npu(to)), &mut route);
            route.links
        };
        let stream = |links: &[LinkMessageFraction]| TransferWithUnsentBytes {
            op: OpIndex(0),
            order: 0,
            tells: false,
            ends: (EndpointId(0), EndpointId(0)),
            sequence: 0,
            begun: Time::ZERO,
            size: 1.0,
            route: links.to_vec(),
            active: (0, links.len() as u32),
            latency: Span::ZERO,
            left: 1.0,
            settled: Time::ZERO,
            rate: 0.0,
            leaves: Time::END,
            is_fixed: false,
        };
        // Four NPUs below a switch with two upward links send to another switch at half their rate.
        let mut all: Vec<_> = (0..4)
            .map(|npu| Some(stream(&links(npu, npu + 4))))
            .collect();
        let mut rates = MaxMinRates::new(graph.all_links());
        rates.solve_rates(&mut all, Time::ZERO);
        assert!(all.iter().flatten().all(|stream| stream.rate == 0.5e9));
        rates.remove_stream(&links(0, 4), 0.5e9);
        assert_eq!(
            rates.add_stream_at_lowest_link_level(&links(0, 5)),
            Some(0.5e9)
        );
        assert!(rates.confirm_rates());
        // If one message goes to the same switch instead, it leaves part of the upward links to the other three.
        rates.remove_stream(&links(1, 5), 0.5e9);
        rates.add_stream_at_lowest_link_level(&links(1, 2));
        assert!(!rates.confirm_rates());
    }
}

/// Tests graphs whose devices store and forward messages.
mod stored {
    use super::*;
    use crate::topology::SwitchingMode;
    use crate::topology::chip_graph::ChipGraph;

    /// Returns a path 0 - 1 - 2 - 3 with 1,000 ps per byte and 50 ps of latency per unit of length. The middle link is
    /// two units long.
    fn build_path_topology() -> Topology {
        let links = vec![
            vec![(1, 1)],
            vec![(0, 1), (2, 2)],
            vec![(1, 2), (3, 1)],
            vec![(2, 1)],
        ];
        let chips = ChipGraph::new("path".to_owned(), 1, links).unwrap();
        let rate = (one_gigabyte_per_second(), Span(50));
        let graph = LinkGraph::of_chips(&chips, rate, ShortestPathChoice::First);
        build_topology(&[(DimensionShape::Switch, 4)], Span(50))
            .with_link_graph(graph)
            .with_switching(SwitchingMode::StoreAndForward)
    }

    /// 1,000 B cross four units: 4 x (1,000,000 + 50) ps.
    #[test]
    fn store_and_forward_message_takes_each_link_in_turn() {
        assert_eq!(
            simulate_arrival_times(&build_path_topology(), &[(0, 0, 3, 1000)]),
            [4_000_200]
        );
        let topology = build_path_topology();
        let network = FairSharingNetwork::new(&topology).unwrap();
        let ends = (Npu(0), Npu(3));
        let alone = network.uncontended_time(ends, UnroundedBufferShare::from_bytes(1000));
        assert_eq!(alone, Some(Span(4_000_200)));
        let time = build_path_topology()
            .path_between_npus(Npu(0), Npu(3))
            .unwrap();
        assert_eq!(
            time.time_message(UnroundedBufferShare::from_bytes(1000)),
            Span(4_000_200)
        );
    }

    proptest! {
        /// Messages on a chain of links share a link, at equal rates, only while both are on it. A simple simulation in
        /// small time steps, without settlements, must give the same times to within one time step per hop.
        #[test]
        fn each_link_of_a_chain_is_shared_equally_by_the_messages_on_it(
            messages in prop::collection::vec((0_u64..3000, 0_u32..4, 1_u32..4, 1_u64..2000), 1..8)
        ) {
            let messages: Vec<_> = messages
                .into_iter()
                .map(|(at, from, by, bytes)| (at * 1000, from, (from + by) % 4, bytes))
                .collect();
            let mut sorted = messages;
            sorted.sort_by_key(|message| message.0);
            let found = simulate_arrival_times(&build_path_topology(), &sorted);
            let step = 2000.0;
            // For each message: its vertex, the bytes that remain on its link, and the time at which it is ready at the
            // vertex.
            let mut state: Vec<_> = sorted.iter().map(|&(at, from, _, _)| (from, None, at as f64)).collect();
            let mut ends = vec![0.0; sorted.len()];
            let mut now = 0.0;
            while state.iter().zip(&sorted).any(|(state, message)| state.0 != message.2) {
                let link = |i: usize| {
                    let (at, to) = (state[i].0, sorted[i].2);
                    (at, to > at)
                };
                let open = |i: usize| state[i].0 != sorted[i].2 && state[i].2 <= now;
                let shares: Vec<f64> = (0..sorted.len())
                    .map(|i| (0..sorted.len()).filter(|j| open(*j) && link(*j) == link(i)).count() as f64)
                    .collect();
                let is_open: Vec<bool> = (0..sorted.len()).map(open).collect();
                now += step;
                for i in (0..sorted.len()).filter(|i| is_open[*i]) {
                    let (at, to) = (state[i].0, sorted[i].2);
                    let next = if to > at { at + 1 } else { at - 1 };
                    let units = if at.min(next) == 1 { 2.0 } else { 1.0 };
                    let left = state[i].1.unwrap_or(sorted[i].3 as f64 * units) - step / 1000.0 / shares[i];
                    if left > 0.0 {
                        state[i].1 = Some(left);
                    } else {
                        state[i] = (next, None, now + 50.0 * units);
                        ends[i] = state[i].2;
                    }
                }
            }
            // In the time-step simulation, each hop of a message may end one step late, and delay messages that share
            // its link.
            let slack = step * 3.0 * (sorted.len() as f64 + 2.0);
            for (found, plain) in found.iter().zip(&ends) {
                prop_assert!((*found as f64 - plain).abs() <= slack, "{found} {plain} {sorted:?}");
            }
        }
    }
}

/// Tests flows between 16 hosts over links of 100 Gbit/s and 1 us. Expected times were computed by a packet simulator
/// (csg-htsim) with two protocols: NDP sprays packets over all paths, and RoCE hashes each flow to one path. Sizes are
/// whole packets of 4,096 B.
mod packets {
    use super::*;

    const PERMUTATION: [u32; 16] = [5, 12, 15, 11, 0, 4, 3, 9, 1, 2, 8, 13, 10, 14, 6, 7];

    /// In this and the next two functions, the sizes 1,000,000 B, 2,000,000 B and 125,000 B are rounded up to whole
    /// packets.
    fn list_incast_flows() -> Vec<(u64, u32, u32, u64)> {
        (1..16).map(|from| (0, from, 0, 245 * 4096)).collect()
    }

    fn list_permutation_flows() -> Vec<(u64, u32, u32, u64)> {
        let ends = (0..).zip(PERMUTATION);
        ends.map(|(from, to)| (0, from, to, 489 * 4096)).collect()
    }

    fn list_all_to_all_flows() -> Vec<(u64, u32, u32, u64)> {
        let pairs = (0..16).flat_map(|a| (0..16).map(move |b| (a, b)));
        let pairs = pairs.filter(|(a, b)| a != b);
        pairs.map(|(a, b)| (0, a, b, 31 * 4096)).collect()
    }

    /// Returns the arrival time of the last flow, in us.
    fn simulate_last_arrival(
        levels: (&[u32], &[u32]),
        policy: ShortestPathChoice,
        flows: &[(u64, u32, u32, u64)],
    ) -> f64 {
        let levels = ChildrenAndUplinksByClosLevel {
            children: levels.0.to_vec(),
            uplinks: levels.1.to_vec(),
        };
        let rate = (Bandwidth::new(12.5e9).unwrap(), Span::from_ns(1000));
        let graph = LinkGraph::clos(&levels, rate, policy);
        let topology =
            build_topology(&[(DimensionShape::Switch, 16)], Span::ZERO).with_link_graph(graph);
        let ends = simulate_arrival_times(&topology, flows).into_iter();
        ends.max().unwrap() as f64 / 1e6
    }

    /// A fat tree of four pods with 2 x 2 hosts each; every level has as many upward as downward links.
    const FAT_TREE: (&[u32], &[u32]) = (&[2, 2, 4], &[2, 2]);
    const LEAF_SPINE: (&[u32], &[u32]) = (&[4, 4], &[2]);

    #[test]
    fn sprayed_flows_end_within_an_eighth_of_packet_simulation() {
        for (levels, flows, packets) in [
            (FAT_TREE, list_incast_flows(), 1237.27),
            (FAT_TREE, list_permutation_flows(), 183.26),
            (FAT_TREE, list_all_to_all_flows(), 175.57),
            (LEAF_SPINE, list_incast_flows(), 1234.0),
            (LEAF_SPINE, list_permutation_flows(), 343.0),
            (LEAF_SPINE, list_all_to_all_flows(), 279.0),
        ] {
            let found = simulate_last_arrival(levels, ShortestPathChoice::Sprayed, &flows);
            let off = found / packets - 1.0;
            assert!(off.abs() < 0.12, "{found} us, packets {packets} us: {off}");
        }
    }

    #[test]
    fn some_hash_seeds_give_faster_and_some_slower_flows_than_packet_simulation() {
        for (levels, flows, packets) in [
            (FAT_TREE, list_permutation_flows(), 475.63),
            (FAT_TREE, list_all_to_all_flows(), 232.65),
            (LEAF_SPINE, list_permutation_flows(), 505.0),
            (LEAF_SPINE, list_all_to_all_flows(), 313.0),
        ] {
            let all = (0..40).map(|seed| {
                simulate_last_arrival(levels, ShortestPathChoice::Hashed(seed), &flows)
            });
            let (least, most) = all.fold((f64::MAX, 0.0_f64), |(least, most), found| {
                (least.min(found), most.max(found))
            });
            // No policy can be faster than spraying: even flows that share no links take the same time as sprayed
            // flows.
            assert!(
                least >= simulate_last_arrival(levels, ShortestPathChoice::Sprayed, &flows) * 0.999
            );
            assert!(
                least <= packets && packets <= most,
                "{least} to {most} us, packets {packets} us"
            );
        }
    }
}

proptest! {
    /// A load or store that is alone takes the time of its path: the latencies of all links and of the memory, plus the
    /// time for its bytes at the lowest rate. The times may differ by one rounding per link.
    /// `tests/it/physics/endpoints.rs` checks the model `links` in the same way.
    #[test]
    fn lone_memory_access_takes_the_time_of_its_path(
        shapes in prop::collection::vec((prop::sample::select(DimensionShape::ALL.map(|(shape, _)| shape).to_vec()), 1_u32..5), 1..4),
        (npu, at) in (0_u32..64, 0_u32..64),
        (rate, latency) in (1_u64..40, 0_u64..900),
        bytes in 1_u64..100_000,
        store: bool,
    ) {
        let topology = build_topology(&shapes, Span(70));
        let npus = topology.npu_count();
        let topology = topology.with_memories(vec![MemorySiteAndLink {
            site: MemoryAtNpuOrFabric::Npu(Npu(at % npus)),
            bandwidth: Bandwidth::new(1e8 * rate as f64).unwrap(),
            latency: Span(latency),
        }]);
        let (one, memory) = (EndpointId(npu % npus), EndpointId(npus));
        let ends = if store { (one, memory) } else { (memory, one) };
        let path = topology.path_between(ends).unwrap();
        let transfer = MemoryLoadStoreTransfer { op: OpIndex(0), ends, path, amount: UnroundedBufferShare::from_bytes(bytes) };
        let mut network = FairSharingNetwork::new(&topology).unwrap();
        let (mut pending, mut found) = (PendingEvents::default(), [[0; 2]]);
        let end = network.serve_access(Time(500), &transfer, &mut pending);
        prop_assert_eq!(end, None);
        pending.run_until_and_record_ends(&mut network, Time::END, &mut found);
        let alone = 500 + path.time_message(transfer.amount).0;
        prop_assert!(found[0][1].abs_diff(alone) <= 1, "{:?} {}", found, alone);
    }
}
