//! Tests what `bandwidth` means, with laws over machines and messages, and with sums by hand.

use super::flows::{
    any_dim, build_timed_message, message_bytes_strategy, replay_flow_arrivals,
    replay_message_left_and_arrived_times,
};
use super::lines::{build_collective, build_kernel, build_receive, build_send};
use super::naive;
use super::rig::{
    Dim, build_job_from_rank_nodes, build_machine_from_dims, make_dim_with_fixed_link_speed,
    make_proptest_config, make_stepwise_network_options, replay_with,
};
use super::wires::{BusyTimeTotalsByWire, PortOrLinkWireKind, compute_uncontended_times};
use chakram::engine::NetworkModel;
use chakram::engine::NetworkModel::{ContentionFree, Links, Ports};
use chakram::machine::{CollectiveAlgorithm, Machine};
use chakram::topology::DimensionShape;
use chakram::trace::CollectiveKind as K;
use proptest::prelude::*;

const ALL: [NetworkModel; 3] = [ContentionFree, Ports, Links];

/// Returns up to three dimensions of any shape.
fn dimensions_strategy() -> impl Strategy<Value = Vec<Dim>> {
    prop::collection::vec(any_dim(5), 1..=3)
}

fn count_npus(dims: &[Dim]) -> u32 {
    dims.iter().map(|dim| dim.size).product()
}

proptest! {
    #![proptest_config(make_proptest_config(200))]

    /// A single message leaves and arrives as fast as the slowest link allows, in every model.
    #[test]
    fn one_message_takes_the_same_in_all_models(
        dims in dimensions_strategy(), size in message_bytes_strategy(), pick in any::<(u32, u32)>(),
    ) {
        let n = count_npus(&dims);
        let (from, apart) = (pick.0 % n, 1 + pick.1 % (n - 1));
        let to = (from + apart) % n;
        let machine = build_machine_from_dims(&dims);
        for model in ALL {
            let found = replay_message_left_and_arrived_times(&machine, model, &[build_timed_message(0, from, to, size)]);
            prop_assert_eq!(found, [compute_uncontended_times(&dims, from, to, size)], "{}", model);
        }
    }

    /// No port and no link of a path carries more than its rate.
    #[test]
    fn no_port_or_link_carries_more_than_its_rate(
        dims in dimensions_strategy(),
        drawn in prop::collection::vec((0..2000_u64, any::<u32>(), any::<u32>(), message_bytes_strategy()), 1..40),
        few in any::<bool>(),
    ) {
        let n = count_npus(&dims);
        // Messages go to any NPU, or from all NPUs to one.
        let flows = drawn.into_iter().filter_map(|(ns, a, b, bytes)| {
            let (from, to) = (a % n, if few { n - 1 } else { b % n });
            (from != to).then_some(build_timed_message(ns, from, to, bytes))
        });
        let flows: Vec<_> = flows.collect();
        let machine = build_machine_from_dims(&dims);
        for (model, wiring) in [(Ports, PortOrLinkWireKind::Ports), (Links, PortOrLinkWireKind::Links)] {
            let mut busy = BusyTimeTotalsByWire::default();
            for flow in &flows {
                busy.add_transfer(wiring, &dims, (flow.from, flow.to), (flow.bytes, 1));
            }
            let found = replay_flow_arrivals(&machine, model, &flows).into_iter().max();
            prop_assert!(found.unwrap_or(0) >= busy.max_busy_time_ps(), "{model}: {found:?} < {}", busy.max_busy_time_ps());
        }
    }
}

/// Returns up to two dimensions with any algorithms.
fn algorithm_dimensions_strategy() -> impl Strategy<Value = Vec<Dim>> {
    let algorithm = prop::sample::select(CollectiveAlgorithm::ALL.map(|(a, _)| a).to_vec());
    let one = (any_dim(6), algorithm);
    prop::collection::vec(
        one.prop_map(|(dim, algorithm)| Dim { algorithm, ..dim }),
        1..=2,
    )
}

proptest! {
    #![proptest_config(make_proptest_config(400))]

    /// The same law applies to collectives with any algorithm and with concurrent messages. Without contention, it
    /// applies to the bytes that an NPU sends and receives for the collective. Without other traffic, the collective
    /// takes exactly the time of its ports.
    #[test]
    fn no_collective_is_faster_than_its_ports_and_links_allow(
        dims in algorithm_dimensions_strategy(),
        kind in prop::sample::select(K::ALL.map(|(kind, ..)| kind).to_vec()),
        units in 1_u64..40,
        root in any::<u32>(),
        drawn in prop::collection::vec((any::<u32>(), any::<u32>(), message_bytes_strategy()), 0..8),
        alone in any::<bool>(),
    ) {
        let n = count_npus(&dims);
        let beside = drawn.into_iter().map(|(a, b, bytes)| (a % n, b % n, bytes));
        let beside: Vec<_> = beside.filter(|(a, b, _)| a != b && !alone).collect();
        let bytes = u64::from(kind != K::Barrier) * units * 3600;
        let root = root % n;
        let node = if kind.has_root() { build_collective(kind, bytes).with_collective_root(root) } else { build_collective(kind, bytes) };
        let mut ranks = vec![vec![node.on_lane(100)]; n as usize];
        for (tag, &(a, b, bytes)) in (0..).zip(&beside) {
            ranks[a as usize].push(build_send(b, bytes).tag(tag).on_lane(tag.into()));
            ranks[b as usize].push(build_receive(a, bytes).tag(tag).on_lane(tag.into()));
        }
        let workload = build_job_from_rank_nodes(&ranks, &[]);
        let machine = build_machine_from_dims(&dims);
        let mut before = 0;
        for (model, wiring) in [
            (ContentionFree, PortOrLinkWireKind::Ports),
            (Ports, PortOrLinkWireKind::Ports),
            (Links, PortOrLinkWireKind::Links),
        ] {
            let mut busy = BusyTimeTotalsByWire::default();
            for (from, to, bytes) in naive::list_collective_messages(&dims, kind, bytes, root as usize) {
                busy.add_transfer(wiring, &dims, (from, to), bytes);
            }
            for &(from, to, bytes) in beside.iter().filter(|_| model != ContentionFree) {
                busy.add_transfer(wiring, &dims, (from, to), (bytes, 1));
            }
            let ps = replay_with(&workload, &machine, &make_stepwise_network_options(model)).makespan_ps();
            prop_assert!(ps >= busy.max_busy_time_ps(), "{model}: {ps} < {}", busy.max_busy_time_ps());
            if model == Ports && beside.is_empty() {
                prop_assert_eq!(ps, before, "ports");
            }
            before = ps;
        }
    }
}

/// A ring of 8 has 100 GB/s per NPU, so 50 GB/s per link, and 500 ns of latency. Seven members send
/// 1 MB each to member 0. The messages of members 4 to 7 arrive in the upward direction, so 4 MB
/// over one link take 80 us.
#[test]
fn a_reduction_to_one_member_of_a_ring_comes_over_two_links() {
    let ring = Dim {
        ps_per_byte: 10,
        ..make_dim_with_fixed_link_speed(DimensionShape::Ring, 8, CollectiveAlgorithm::Direct)
    };
    let machine = build_machine_from_dims(&[ring]);
    let workload =
        build_job_from_rank_nodes(&vec![vec![build_collective(K::Reduce, 1_000_000)]; 8], &[]);
    for model in ALL {
        let replay = replay_with(&workload, &machine, &make_stepwise_network_options(model));
        assert_eq!(replay.makespan_ps(), 80_500_000, "{model}");
    }
}

/// Ranks 1, 2 and 3 of a ring of 4 with links of 50 GB/s send 1 MB to rank 0. Rank 1's message goes down. The messages
/// of ranks 2 and 3 go up over one link, which takes 40 us for both, plus 1 us of latency after the first has begun.
/// Without contention, rank 2's message takes two links and 20 us.
#[test]
fn an_incast_on_a_ring_comes_over_two_links() {
    let machine = Machine::load_preset("tpu-v4").unwrap();
    let flows = [1, 2, 3].map(|from| build_timed_message(0, from, 0, 1_000_000));
    for (model, ps) in [
        (ContentionFree, 22_000_000),
        (Ports, 41_000_000),
        (Links, 41_000_000),
    ] {
        let found = replay_flow_arrivals(&machine, model, &flows)
            .into_iter()
            .max();
        assert_eq!(found, Some(ps), "{model}");
    }
}

/// A ring sends over both links of its members. Eight members with 100 GB/s and 500 ns of latency reduce 8 MB in 14
/// steps. In each step, a member sends 0.5 MB in each direction over links of 50 GB/s. Four members spread evenly over
/// 8 also have two links each, of 1,000 ns. Three adjacent members of 8, and 8 members on a line, send 1 MB in one
/// direction.
#[test]
fn rings_go_both_ways_where_members_lie_around_a_ring() {
    let of = |shape, members: &'static [u32], bytes| {
        let ring = Dim {
            ps_per_byte: 10,
            ..make_dim_with_fixed_link_speed(shape, 8, CollectiveAlgorithm::Ring)
        };
        let mut ranks = vec![vec![build_kernel(0)]; 8];
        for &member in members {
            ranks[member as usize] = vec![build_collective(K::ReduceScatter, bytes).group("g")];
        }
        let workload = build_job_from_rank_nodes(&ranks, &[("g", members)]);
        let machine = build_machine_from_dims(&[ring]);
        ALL.map(|model| {
            replay_with(&workload, &machine, &make_stepwise_network_options(model)).makespan_ps()
        })
    };
    let all = &[0, 1, 2, 3, 4, 5, 6, 7];
    assert_eq!(
        of(DimensionShape::Ring, all, 8_000_000),
        [7 * 10_500_000; 3]
    );
    assert_eq!(
        of(DimensionShape::Ring, &[1, 3, 5, 7], 4_000_000),
        [3 * 11_000_000; 3]
    );
    // Member 2 sends to 0 over two links down in 1,000 ns, and all members wait for this message once.
    assert_eq!(
        of(DimensionShape::Ring, &[0, 1, 2], 3_000_000),
        [41_500_000; 3]
    );
    // Member 7 sends to 0 over seven links down. First member 7's data make a full round, and then member 0's data.
    let line = of(DimensionShape::Mesh, all, 8_000_000);
    assert_eq!(line, [line[0]; 3]);
    assert!(
        (7 * 20_500_000..7 * 24_000_000).contains(&line[0]),
        "{line:?}"
    );
}

/// The two dimensions have 400 GB/s inside and 16 GB/s outside, without latency.
const STEEP: &str = r#"name = "steep"
[npu.a]
memory_bandwidth = "1000 GB/s"
memory_latency = "0 ns"
memory_capacity = "40 GB"
lanes = 2
host_lanes = 1
[npu.a.peak]
fp32 = "1 TFLOP/s"
[[dimension]]
name = "inner"
shape = "switch"
size = 2
bandwidth = "400 GB/s"
latency = "0 ns"
algorithm = "direct"
[[dimension]]
name = "outer"
shape = "switch"
size = 2
bandwidth = "16 GB/s"
latency = "0 ns"
algorithm = "direct"
"#;

/// The message from NPU 0 to NPU 3 crosses both dimensions. The last byte of 800 kB leaves after 50
/// us at 16 GB/s, and not after the 2 us of the inner port. Then the sender computes for 40 us.
#[test]
fn a_send_ends_when_its_last_byte_has_left_at_the_slowest_rate() {
    let machine = Machine::parse(STEEP, "steep.toml").unwrap();
    let ranks = [
        vec![build_send(3, 800_000), build_kernel(40_000).after(&[1])],
        vec![build_kernel(0)],
        vec![build_kernel(0)],
        vec![build_receive(0, 800_000)],
    ];
    for model in ALL {
        let replay = replay_with(
            &build_job_from_rank_nodes(&ranks, &[]),
            &machine,
            &make_stepwise_network_options(model),
        );
        assert_eq!(
            (replay.node_end_ps(0, 1), replay.makespan_ps()),
            (50_000_000, 90_000_000),
            "{model}"
        );
    }
}

/// NPU a of node 0 sends 100 MB to each of the 8 NPUs of node a + 1. A message first goes to the NPU in its own node
/// that has the receiver's index, and leaves through that NPU's NIC of 50 GB/s. So 8 x 100 MB pass each NIC, which
/// takes 16 ms. The NIC's own NPU begins immediately. Messages that come through NVLink, in 0.22 ms each, keep the NIC
/// busy without gaps. Two links add 1.35 us. Each NIC receives one message, and an NPU sends 7 x 100 MB over NVLink in
/// 1.56 ms.
#[test]
fn what_leaves_a_node_passes_its_nics() {
    let machine = Machine::load_preset("dgx-h100x9").unwrap();
    let pairs = (0..8)
        .flat_map(|a| (0..8).map(move |b| build_timed_message(0, a, 8 * (a + 1) + b, 100_000_000)));
    let flows: Vec<_> = pairs.collect();
    for model in [Ports, Links] {
        let found = replay_flow_arrivals(&machine, model, &flows)
            .into_iter()
            .max();
        assert_eq!(found, Some(16_002_700_000), "{model}");
    }
}
