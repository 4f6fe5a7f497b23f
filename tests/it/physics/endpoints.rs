//! Tests memories as endpoints of the network. Memories are attached to NPUs of any machine, in one or several places.
//! Accesses share links with one another, with messages, and with collectives in closed form.

use super::lines::{TestTraceNode, build_collective, build_kernel, build_receive, build_send};
use super::loads::{self, build_memory_access, build_remote_load};
use super::rig::{
    Dim, ReplayOutcomeAndLog, build_job_from_rank_nodes, build_machine_from_dims,
    build_machine_with_switching_mode, make_dim_with_fixed_link_speed, make_proptest_config,
    replay_with,
};
use chakram::engine::{CompiledReplay, NetworkModel, ReplayOptions};
use chakram::extend::{
    EventScheduler, MemoryLoadStoreTransfer, NetworkBackend, NetworkEvent, OpIndex,
};
use chakram::ids::{EndpointId, Npu};
use chakram::internals::{
    ContentionFreePortBusyTimes, LinkContentionNetwork, OneTransferPerLinkNetwork,
    PortContentionNetwork,
};
use chakram::machine::{CollectiveAlgorithm, Machine};
use chakram::report;
use chakram::topology::{DimensionShape, MemoryAtNpuOrFabric, MemorySiteAndLink, SwitchingMode};
use chakram::trace::{CollectiveKind as K, MemoryLocation};
use chakram::units::{Bandwidth, Span, Time, UnroundedBufferShare};
use chakram::workload::Workload;
use proptest::prelude::*;

const MODELS: [NetworkModel; 5] = [
    NetworkModel::ContentionFree,
    NetworkModel::Ports,
    NetworkModel::Links,
    NetworkModel::Exclusive,
    NetworkModel::FairSharing,
];

/// Returns four NPUs with links of 10 ps per byte and 100 ns between neighbours; `memories` have 5
/// ps per byte and 50 ns.
fn build_four_npu_machine(shape: &str, memories: &[(&str, &str)]) -> Machine {
    let keys = memories.iter().map(|(_, at)| {
        format!(
            "attachment = \"ports\"\nat = \"{at}\"\nbandwidth = \"200 GB/s\"\nlatency = \"50 ns\""
        )
    });
    let keys: Vec<String> = keys.collect();
    let tables = memories.iter().zip(&keys);
    let tables: Vec<_> = tables
        .map(|((table, _), keys)| (*table, &keys[..]))
        .collect();
    loads::build_memory_machine(4, (shape, 200_000_000_000, 100, "ring"), &tables)
}

/// Replays with closed forms and with messages, checks that both results are equal, and returns one of them.
#[track_caller]
fn check_closed_forms_equal_messages(
    workload: &Workload,
    machine: &Machine,
    network: NetworkModel,
) -> ReplayOutcomeAndLog {
    let replay = |stepwise| {
        let options = ReplayOptions::default_with_changes(|o| {
            o.network = Some(network);
            o.stepwise = stepwise;
        });
        let mut replay = replay_with(workload, machine, &options);
        replay.log.events.sort_unstable();
        replay
    };
    let (closed, stepped) = (replay(false), replay(true));
    assert_eq!(closed.log.events, stepped.log.events, "{network}");
    closed
}

/// 40 kB take 200 ns in a memory, and 400 ns on a link. NPU 1 of a line is one link from the memory
/// at NPU 0, and two links from the memory at NPU 3. An access takes 50 + 400 ns, and 100 ns for
/// each link. The memory's own NPU uses no link.
#[test]
fn memory_access_time_grows_with_the_links_to_the_memory() {
    let machine = build_four_npu_machine(
        "mesh",
        &[("remote_memories.near", "0"), ("remote_memories.far", "3")],
    );
    for (place, npu, ns) in [
        ("near", 1, 550),
        ("far", 1, 650),
        ("near", 0, 250),
        ("near", 3, 750),
        ("far", 3, 250),
    ] {
        for store in [false, true] {
            let mut ranks = vec![vec![build_kernel(0)]; 4];
            ranks[npu] = vec![build_memory_access(
                MemoryLocation::Named(place),
                store,
                40_000,
            )];
            for network in MODELS {
                let found = check_closed_forms_equal_messages(
                    &build_job_from_rank_nodes(&ranks, &[]),
                    &machine,
                    network,
                )
                .makespan_ps();
                assert_eq!(found, ns * 1000, "{place} {npu} {store} {network}");
            }
        }
    }
    // Each NPU uses the nearest of several ports: NPU 2 is as far from the port at NPU 3 as NPU 1 is from the port at
    // NPU 0.
    let machine = build_four_npu_machine("mesh", &[("remote_memory", "0,3")]);
    let ranks = vec![vec![build_remote_load(40_000)]; 4];
    let found = check_closed_forms_equal_messages(
        &build_job_from_rank_nodes(&ranks, &[]),
        &machine,
        NetworkModel::ContentionFree,
    );
    assert_eq!(
        found.last_end_of_each_instance(),
        [250_000, 550_000, 550_000, 250_000]
    );
}

/// NPUs 1 and 2 load 40 kB from NPU 0 at the same time, over the link from 0 to 1. The first load
/// is in the memory until 200 ns and on the link from 50 until 450 ns, and ends at 550 ns. The
/// second load is in the memory from 200 ns, waits for the link from 250 until 450 ns, is on this
/// link until 850 ns and on the next link from 550 until 950 ns, and ends at 1,050 ns. With
/// `ports`, the ports of NPU 0 and of the receiver give the same times. `exclusive` occupies the
/// memory and the links together, until 550 ns, and then for 50 + 2 × 100 + 400 ns. `fair_sharing`
/// gives each load half of the link, so both have left after 800 ns, and arrive 150 and 250 ns
/// later.
#[test]
fn loads_share_memories_and_links() {
    let machine = build_four_npu_machine("mesh", &[("remote_memory", "0")]);
    let mut ranks = vec![vec![build_kernel(0)]; 4];
    (ranks[1], ranks[2]) = (
        vec![build_remote_load(40_000)],
        vec![build_remote_load(40_000)],
    );
    let workload = build_job_from_rank_nodes(&ranks, &[]);
    for (network, first, second) in [
        (NetworkModel::ContentionFree, 550, 650),
        (NetworkModel::Links, 550, 1050),
        (NetworkModel::Ports, 550, 1050),
        (NetworkModel::Exclusive, 550, 1200),
        (NetworkModel::FairSharing, 950, 1050),
    ] {
        let ends = check_closed_forms_equal_messages(&workload, &machine, network)
            .last_end_of_each_instance();
        assert_eq!(ends[1..3], [first * 1000, second * 1000], "{network}");
    }
}

/// Max-min shares of a link of 100 B/ns and a memory of 200 B/ns. NPU 1 loads 20 kB from NPU 0
/// while NPU 0 sends 40 kB to NPU 1 over the same link, so each gets 50 B/ns. The load has left
/// after 400 ns, and arrives 150 ns later. The remaining 20 kB of the message take 200 ns, and the
/// message arrives at 700 ns. Stores use the other direction of the link, so loads and stores
/// contend only in the memory.
#[test]
fn loads_and_messages_share_links_fairly() {
    let machine = build_four_npu_machine("mesh", &[("remote_memory", "0")]);
    let mut ranks = vec![vec![build_kernel(0)]; 4];
    ranks[0] = vec![build_send(1, 40_000)];
    ranks[1] = vec![
        build_receive(0, 40_000).on_lane(1),
        build_remote_load(20_000).on_lane(2),
    ];
    let found = check_closed_forms_equal_messages(
        &build_job_from_rank_nodes(&ranks, &[]),
        &machine,
        NetworkModel::FairSharing,
    );
    assert_eq!(
        (found.node_end_ps(1, 2), found.node_end_ps(1, 1)),
        (550_000, 700_000)
    );
    ranks[1][1] = build_memory_access(MemoryLocation::Remote, true, 20_000).on_lane(2);
    let found = check_closed_forms_equal_messages(
        &build_job_from_rank_nodes(&ranks, &[]),
        &machine,
        NetworkModel::FairSharing,
    );
    assert_eq!(
        (found.node_end_ps(1, 2), found.node_end_ps(1, 1)),
        (350_000, 500_000)
    );
}

/// NPUs 0, 1 and 2 load 40 kB from NPU 1 at the same time. Their links would carry 100 B/ns, but the memory has only
/// 200 / 3 B/ns for each load, so all loads have left after 600 ns. A store gets the same share, because loads and
/// stores use the same memory.
#[test]
fn simultaneous_accesses_share_a_memory_equally() {
    let machine = build_four_npu_machine("mesh", &[("remote_memory", "1")]);
    for store in [false, true] {
        let one = build_memory_access(MemoryLocation::Remote, store, 40_000);
        let ranks = [
            vec![one],
            vec![build_remote_load(40_000)],
            vec![build_remote_load(40_000)],
        ];
        let mut ranks = ranks.to_vec();
        ranks.push(vec![build_kernel(0)]);
        let found = check_closed_forms_equal_messages(
            &build_job_from_rank_nodes(&ranks, &[]),
            &machine,
            NetworkModel::FairSharing,
        );
        assert_eq!(
            found.last_end_of_each_instance()[..3],
            [750_000, 650_000, 750_000]
        );
    }
}

/// A ring all-reduce of 40 kB runs in both directions, in six steps of 5 kB. Each step takes 50 ns on a link and 100 ns
/// of latency, so the closed form is 900 ns. NPU 1 begins to load 40 kB from NPU 0 at 350 ns, over a link that the
/// all-reduce uses. The load is in the memory until 550 ns and on the link from 400 until 800 ns, so it ends at 900 ns.
/// NPU 0 should send steps to NPU 1 starting at 450 ns. The first of them leaves at 800 ns, and the others follow every
/// 50 ns. The last step has left at 950 ns, when NPU 0 ends, and arrives at 1,050 ns. NPU 1 sends the steps that follow
/// the first of these steps at 950 and 1,000 ns, so NPU 2 ends at 1,150 ns. NPU 2 forwards the first of NPU 1's steps
/// at 1,100 ns, so NPU 3 ends at 1,250 ns.
#[test]
fn a_load_on_a_link_of_a_closed_form_collective_unfolds_it() {
    let machine = build_four_npu_machine("ring", &[("remote_memory", "0")]);
    let reduce = build_collective(K::AllReduce, 40_000).on_lane(1);
    let mut ranks = vec![vec![reduce.clone()]; 4];
    ranks[1] = vec![
        reduce.clone(),
        build_kernel(350).on_lane(2),
        build_remote_load(40_000).on_lane(2).after(&[2]),
    ];
    let found = check_closed_forms_equal_messages(
        &build_job_from_rank_nodes(&ranks, &[]),
        &machine,
        NetworkModel::Links,
    );
    assert_eq!(found.outcome.unfolded, 1);
    assert_eq!(found.node_end_ps(1, 3), 900_000);
    let reduced = [0, 1, 2, 3].map(|rank| found.node_end_ps(rank, 1));
    assert_eq!(reduced, [950_000, 1_050_000, 1_150_000, 1_250_000]);
    // A load by NPU 0 from its own memory uses no link, so the closed form remains valid.
    ranks[0] = std::mem::take(&mut ranks[1]);
    ranks[1] = vec![reduce];
    let found = check_closed_forms_equal_messages(
        &build_job_from_rank_nodes(&ranks, &[]),
        &machine,
        NetworkModel::Links,
    );
    assert_eq!(
        (found.outcome.closed, found.node_end_ps(2, 1)),
        (1, 900_000)
    );
}

/// Returns the bytes, in kB, that cross each link of four NPUs, with the link's dimension and ends. Also returns the
/// rows of dimensions and memories: name, bytes over all links, and bytes per NPU.
fn replay_link_traffic(
    ranks: &[Vec<TestTraceNode>],
    machine: &Machine,
    network: NetworkModel,
) -> (Vec<String>, Vec<String>) {
    let options = ReplayOptions::default_with_changes(|o| {
        o.network = Some(network);
        o.links = true;
    });
    let workload = build_job_from_rank_nodes(ranks, &[]);
    let prepared = CompiledReplay::new(&workload, machine, &options).unwrap();
    let (report, ()) = report::replay_to_report(&prepared, ()).unwrap();
    let links = report.links.unwrap();
    let rows = links.links.iter().map(|row| {
        let (dimension, from, to, bytes) = (&row.dimension, &row.from, &row.to, row.bytes / 1000);
        format!("{dimension}: {from} to {to} {bytes} {}", row.busy.0 / 1000)
    });
    let dimensions = links.dimensions.iter().map(|row| {
        let (name, bytes, own) = (&row.name, row.bytes / 1000, row.bytes_per_npu / 1000);
        format!("{name} {} {bytes} {own}", row.links)
    });
    (rows.collect(), dimensions.collect())
}

/// On a line with its memory at NPU 0, NPU 2 loads 10 kB over two links, and NPU 1 stores 30 kB over one link. NPU 0
/// loads 50 kB over no link, and sends 20 kB to NPU 1. The memory's link carries the 90 kB of loads and stores in 450
/// ns, and other links have 100 B/ns. NPU 3 loads 20 kB from its own memory. The bytes per NPU are a quarter of the 70
/// kB over all links, of the shared memory's 90 kB, and of the 20 kB from an NPU's own memory.
#[test]
fn loads_and_stores_are_counted_on_links() {
    let machine = build_four_npu_machine(
        "mesh",
        &[("remote_memories.far", "3"), ("remote_memory", "0")],
    );
    let ranks = [
        vec![
            build_remote_load(50_000).on_lane(1),
            build_send(1, 20_000).on_lane(2),
        ],
        vec![
            build_receive(0, 20_000).on_lane(1),
            build_memory_access(MemoryLocation::Remote, true, 30_000).on_lane(2),
        ],
        vec![build_remote_load(10_000)],
        vec![build_memory_access(
            MemoryLocation::Named("far"),
            false,
            20_000,
        )],
    ];
    for network in MODELS {
        let (links, rows) = replay_link_traffic(&ranks, &machine, network);
        assert_eq!(
            links,
            [
                "d: NPU 0 to NPU 1 30 300",
                "d: NPU 1 to NPU 2 10 100",
                "d: NPU 1 to NPU 0 30 300",
                "remote: memory to NPU 0 90 450",
                "remote far: memory to NPU 3 20 100",
            ],
            "{network}"
        );
        let expected = ["d 6 70 17", "remote 1 90 22", "remote far 1 20 5"];
        assert_eq!(rows, expected, "{network}");
    }
}

/// There is a pool behind a switch. NPU 1 loads 10 kB over the link from the switch, and NPU 2
/// stores 30 kB over the link to the switch. The memory has no link of its own.
#[test]
fn loads_through_a_dimension_are_counted_on_its_links() {
    let pool = "attachment = \"pool\"\nbandwidth = \"100 GB/s\"\nlatency = \"0\"\nthrough = \"d\"\nchunk = \"1 kB\"";
    let dimension = ("switch", 200_000_000_000, 100, "ring");
    let machine = loads::build_memory_machine(4, dimension, &[("remote_memory", pool)]);
    let mut ranks = vec![vec![build_kernel(1)]; 4];
    ranks[1] = vec![build_remote_load(10_000)];
    ranks[2] = vec![build_memory_access(MemoryLocation::Remote, true, 30_000)];
    for network in MODELS {
        let (links, rows) = replay_link_traffic(&ranks, &machine, network);
        assert_eq!(
            links,
            [
                "d: d switch at 0 to NPU 1 10 50",
                "d: NPU 2 to d switch at 0 30 150",
            ],
            "{network}"
        );
        assert_eq!(rows, ["d 8 40 7"], "{network}");
    }
}

/// Accepts no events, because the end of an access is known at its beginning.
struct EventRejectingScheduler;

impl EventScheduler for EventRejectingScheduler {
    fn schedule_event(&mut self, _: Time, event: NetworkEvent) {
        panic!("{event:?}");
    }
}

/// Returns the dimensions of a random network.
fn dimensions_strategy() -> impl Strategy<Value = Vec<Dim>> {
    let shape = prop::sample::select(DimensionShape::ALL.map(|(shape, _)| shape).to_vec());
    let one = (shape, 1_u32..6, 1_u64..8, 0_u64..900);
    let one = one.prop_map(|(shape, size, rate, link_ns)| Dim {
        ps_per_byte: 4 * rate,
        link_ns,
        ..make_dim_with_fixed_link_speed(shape, size, CollectiveAlgorithm::Ring)
    });
    prop::collection::vec(one, 1..4)
}

proptest! {
    #![proptest_config(make_proptest_config(400))]

    /// Under every model, the time of a single access is a sum over its path: the latencies of all links and of the
    /// memory, one segment on each link except the slowest, and all bytes at the slowest rate. If devices store whole
    /// segments, each link rounds the time separately.
    #[test]
    fn a_single_memory_access_takes_the_time_of_its_path(
        dims in dimensions_strategy(),
        (npu, at) in (0_u32..216, 0_u32..216),
        (rate, ns) in (1_u64..40, 0_u64..900),
        bytes in 1_u64..100_000,
        store: bool,
        stored_and_forwarded: bool,
    ) {
        let mode = if stored_and_forwarded {
            SwitchingMode::StoreAndForward
        } else {
            SwitchingMode::IDEAL
        };
        let machine = build_machine_with_switching_mode(&dims, mode);
        let npus = machine.topology().npu_count();
        let topology = machine.topology().clone().with_memories(vec![MemorySiteAndLink {
            site: MemoryAtNpuOrFabric::Npu(Npu(at % npus)),
            bandwidth: Bandwidth::new(1e12 / rate as f64).unwrap(),
            latency: Span::from_ns(ns),
        }]);
        let (one, memory) = (EndpointId(npu % npus), EndpointId(npus));
        let ends = if store { (one, memory) } else { (memory, one) };
        let path = topology.path_between(ends).unwrap();
        let transfer = MemoryLoadStoreTransfer { op: OpIndex(0), ends, path, amount: UnroundedBufferShare::from_bytes(bytes) };
        let alone = path.time_message(transfer.amount);
        let now = Time(1_000_000);
        let taken = [
            ContentionFreePortBusyTimes::new(&topology).serve_access(now, &transfer, &mut EventRejectingScheduler),
            PortContentionNetwork::new(&topology).serve_access(now, &transfer, &mut EventRejectingScheduler),
            LinkContentionNetwork::new(&topology).serve_access(now, &transfer, &mut EventRejectingScheduler),
            OneTransferPerLinkNetwork::new(&topology).serve_access(now, &transfer, &mut EventRejectingScheduler),
        ];
        let off = taken.map(|end| end.unwrap().since(now).0.abs_diff(alone.0));
        prop_assert!(off.into_iter().all(|off| off <= 20), "{off:?} {alone}");
    }
}

proptest! {
    #![proptest_config(make_proptest_config(60))]

    /// With any concurrent loads and stores, closed forms give the same result as messages.
    #[test]
    fn closed_forms_beside_loads_give_the_same_result_as_messages(
        shape in prop::sample::select(vec!["ring", "mesh", "switch", "fully_connected"]),
        at in prop::sample::select(vec!["0", "1,2", "0-3"]),
        loads in prop::collection::vec((0_u32..4, 0_u64..4_000, 1_u64..60_000, any::<bool>()), 0..6),
        calls in prop::collection::vec((0_u64..1_000, 1_u64..60_000), 1..3),
    ) {
        let machine = build_four_npu_machine(shape, &[("remote_memory", at)]);
        let mut ranks: Vec<Vec<TestTraceNode>> = vec![Vec::new(); 4];
        for lines in &mut ranks {
            for &(ns, bytes) in &calls {
                lines.push(build_kernel(ns).on_lane(0));
                lines.push(build_collective(K::AllReduce, bytes).on_lane(0));
            }
        }
        for &(rank, ns, bytes, store) in &loads {
            let lines = &mut ranks[rank as usize];
            let (lane, before) = (lines.len() as i64, lines.len() as u64 + 1);
            lines.push(build_kernel(ns).on_lane(lane));
            lines.push(build_memory_access(MemoryLocation::Remote, store, bytes).on_lane(lane).after(&[before]));
        }
        let workload = build_job_from_rank_nodes(&ranks, &[]);
        for network in MODELS {
            check_closed_forms_equal_messages(&workload, &machine, network);
        }
    }
}

/// Memories are separate endpoints, so adding memories does not change results that do not use
/// them.
#[test]
fn endpoint_ids_of_npus_equal_their_numbers() {
    let machine = build_machine_from_dims(&[make_dim_with_fixed_link_speed(
        DimensionShape::Ring,
        4,
        CollectiveAlgorithm::Ring,
    )]);
    let topology = machine.topology();
    assert_eq!(
        topology.npus_of_endpoints((Npu(3).into(), Npu(1).into())),
        (Npu(3), Npu(1))
    );
    assert!(topology.memory_at(EndpointId(3)).is_none());
    assert!(topology.memory_at(EndpointId(4)).is_none());
}
