//! Tests corrections of ASTRA-sim's quirks. For each quirk, the corrected number is derived by hand, and the quirk on
//! its own affects some systems.

mod alone;
mod bounds;
mod said;

use super::golden::build_config_of_one_collective;
use super::golden::groups::split_collective_between_npu_halves;
use CollectiveOperation::{AllGather, AllReduce, ReduceScatter};
use DimensionTopology::{FullyConnected, Ring, Switch};
use NetworkModel::{Aware, Unaware};
use serde_json::Value;
use std::process::Command;
use testkit::astra_sim::config::{
    CollectiveOperation, DimensionTopology, MemoryServerAssignment, NetworkModel, NodeWork,
    TraceNode, WholeSimulationInput,
};
use testkit::astra_sim::create_random_config;

const MIB: u64 = 1 << 20;

/// Runs the program, checks that it succeeds, and returns its report.
fn run_astra_sim_report(config: &WholeSimulationInput, more: &[&str]) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    config.write_case(folder.path()).expect("it is written");
    let args = config.command_args();
    let output = Command::new(env!("CARGO_BIN_EXE_chakram"))
        .current_dir(folder.path())
        .arg("astra-sim")
        .arg(format!("--network-model={}", args[0]))
        .args(&args[1..])
        .arg("--format=json")
        .args(more)
        .output()
        .expect("the program was built");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{more:?}: {error}");
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

/// Returns the finish time of the last NPU, in ps.
fn simulate_makespan_ps(config: &WholeSimulationInput, quirks: &str) -> u64 {
    let report = run_astra_sim_report(config, &["--quirks", quirks]);
    report["makespan_ps"].as_u64().expect("a number")
}

/// Returns the finish time of the last NPU, which must be a whole number of ns.
fn simulate_makespan_ns(config: &WholeSimulationInput, quirks: &str) -> u64 {
    let ps = simulate_makespan_ps(config, quirks);
    assert_eq!(ps % 1000, 0, "{quirks}");
    ps / 1000
}

/// Sets the time of reductions to zero.
fn with_zero_reduction_time(mut config: WholeSimulationInput) -> WholeSimulationInput {
    config.system.local_mem_bw = 1e9;
    config
}

/// Returns a configuration whose only nodes are messages of 1 MiB from `src` to `dst`.
fn build_message_config(
    network: NetworkModel,
    dims: &[(DimensionTopology, usize, f64, f64)],
    ends: &[(usize, usize)],
) -> WholeSimulationInput {
    let mut config = build_config_of_one_collective(network, dims, AllReduce, &[], MIB);
    config.ranks = vec![Vec::new(); config.npu_count()];
    for (i, &(src, dst)) in ends.iter().enumerate() {
        let (bytes, tag) = (MIB, i as u64);
        let node = |work| TraceNode {
            id: i as u64 + 1,
            deps: Vec::new(),
            cpu: false,
            micros: 0,
            work,
        };
        config.ranks[src].push(node(NodeWork::Send { dst, bytes, tag }));
        config.ranks[dst].push(node(NodeWork::Receive { src, bytes, tag }));
    }
    config
}

/// The size is 1,000,003 B, in four splits on a ring of 4. With all quirks, there are five chunks of 250,000 B. A
/// message of 62,500 B takes 500 + 1,164.15 ns and a reduction takes 3 · 1,250 ns, so a chunk takes 7·10 + 6·1,664 +
/// 3·3,750 = 21,304 ns. With the correction, there are four chunks of 250,000.75 B with messages of 62,500.1875 B,
/// which take the same whole number of ns.
#[test]
fn padding_quirk_adds_a_chunk_to_cover_size() {
    let dims = [(Ring, 4, 50.0, 500.0)];
    let config = build_config_of_one_collective(Unaware, &dims, AllReduce, &["ring"], 1_000_003);
    assert_eq!(simulate_makespan_ns(&config, "all"), 5 * 21_304);
    assert_eq!(simulate_makespan_ns(&config, "all,-padding"), 4 * 21_304);
    // In picoseconds, a message takes 500,000 + 62,500.1875 B / 53.6870912 B/ns = 1,664,156.9, and
    // a reduction takes 3 · 1,250,003.75 -> 3 · 1,250,004. The sum is 70,000 + 6 · 1,664,157 + 3 ·
    // 3,750,012 = 21,304,978.
    let exact = "all,-padding,-whole-ns";
    assert_eq!(simulate_makespan_ps(&config, exact), 4 * 21_304_978);
    // With 3 B, there are four chunks that are padded to one byte per NPU. With the correction, there are three chunks
    // of 1 B in messages of a quarter byte. Neither kind of message takes a whole ns beyond its latency, so the time is
    // 7·10 + 6·500.
    let config = build_config_of_one_collective(Unaware, &dims, AllReduce, &["ring"], 3);
    assert_eq!(simulate_makespan_ns(&config, "all"), 4 * 3_070);
    assert_eq!(simulate_makespan_ns(&config, "all,-padding"), 3 * 3_070);
    // An all-gather of fewer bytes than splits never ends in the original. With the correction, each chunk takes 4·10 +
    // 3·500 ns.
    let config = build_config_of_one_collective(Unaware, &dims, AllGather, &["ring"], 3);
    assert_eq!(simulate_makespan_ns(&config, "all,-padding"), 3 * 1_540);
}

/// Halving-doubling of 6 B among 8 sends messages of 3, 1.5 and 0.75 B instead of 3, 1 and 0 B. At 53.6870912 B/ns,
/// these messages take 55.879, 27.940 and 13.970 ps, and the same on the way back. Endpoints add 7·10 ns, and latency
/// adds 6·1000 ns.
#[test]
fn message_shares_are_exact_without_rounding_quirks() {
    let dims = [(Switch, 8, 50.0, 500.0)];
    let mut config = with_zero_reduction_time(build_config_of_one_collective(
        Unaware,
        &dims,
        AllReduce,
        &["halvingDoubling"],
        6,
    ));
    config.system.splits = 1;
    let twice = 2 * (56 + 28 + 14);
    assert_eq!(
        simulate_makespan_ps(&config, "all,-padding,-whole-ns"),
        6_070_000 + twice
    );
}

/// Two dimensions have only one algorithm name.
#[test]
fn without_short_list_quirk_last_algorithm_covers_the_other_dimensions() {
    let dims = [(Ring, 4, 50.0, 500.0), (Ring, 2, 25.0, 500.0)];
    let short = build_config_of_one_collective(Unaware, &dims, AllReduce, &["ring"], MIB);
    let long = build_config_of_one_collective(Unaware, &dims, AllReduce, &["ring", "ring"], MIB);
    // Only the inner dimension is used, and each of four chunks takes 7·10 + 6·1,720 + 3·3,930 =
    // 22,180.
    assert_eq!(simulate_makespan_ns(&short, "all"), 88_720);
    assert_eq!(simulate_makespan_ns(&long, "all"), 88_760);
    assert_eq!(simulate_makespan_ns(&short, "all,-short-list"), 88_760);
}

/// 100 MB among 8 at 50 GB/s (of 2^30 B) take s = 12.5e6 / 53.6870912 = 232,830.6 ns for each of 14 messages, so no
/// algorithm ends before 14 s = 3.26 ms. With ports, messages of `direct` leave one after another, and the time is the
/// sum of 10 + 1,000 + 7 s, 10, 1,000 + 7 s, and 10. A ring takes 15·10 + 14 (1,000 + s) with or without ports.
#[test]
fn no_algorithm_is_faster_than_the_ports() {
    let s = 232_830;
    let dims = [(Switch, 8, 50.0, 500.0)];
    let mut direct = with_zero_reduction_time(build_config_of_one_collective(
        Unaware,
        &dims,
        AllReduce,
        &["direct"],
        100_000_000,
    ));
    direct.system.splits = 1;
    let mut ring = with_zero_reduction_time(build_config_of_one_collective(
        Unaware,
        &dims,
        AllReduce,
        &["ring"],
        100_000_000,
    ));
    ring.system.splits = 1;
    assert_eq!(
        simulate_makespan_ns(&direct, "all"),
        3 * 10 + 2 * (1_000 + s)
    );
    assert_eq!(
        simulate_makespan_ns(&direct, "all,-free-ports"),
        3 * 10 + 2_000 + 14 * s
    );
    for quirks in ["all", "all,-free-ports"] {
        assert_eq!(
            simulate_makespan_ns(&ring, quirks),
            15 * 10 + 14 * (1_000 + s)
        );
    }
}

/// Four concurrent chunks do not get four times the bandwidth of one chunk. In a ring among 8 with
/// 2^24 B, chunks have 2^22 B, and messages of 2^19 B take 9,765 ns on the wire, 500 ns of latency,
/// and 10 ns at the end. All four chunks enter the port at 10 ns, and leave one after another. The
/// first chunk's next message is ready at 10 + 10,275 ns. The port is still sending messages of the
/// other chunks, so the message waits until 10 + 4 · 9,765 ns. From then on, the port is always
/// busy: there are 14 rounds of 4 messages, and the last message adds its latency and its endpoint
/// delay.
#[test]
fn chunks_share_the_port() {
    let dims = [(Ring, 8, 50.0, 500.0)];
    let mut config = with_zero_reduction_time(build_config_of_one_collective(
        Unaware,
        &dims,
        AllReduce,
        &["ring"],
        1 << 24,
    ));
    config.system.active_chunks = 4;
    assert_eq!(simulate_makespan_ns(&config, "all"), 15 * 10 + 14 * 10_265);
    assert_eq!(
        simulate_makespan_ns(&config, "all,-free-ports"),
        10 + 14 * 4 * 9_765 + 500 + 10
    );
}

/// One NPU sends two messages of 1 MiB, or receives two. Each message takes 19,531 ns in the port,
/// and 500 ns of latency.
#[test]
fn messages_of_ranks_share_ports_too() {
    let dims = [(FullyConnected, 4, 50.0, 500.0)];
    let to_one = build_message_config(Unaware, &dims, &[(0, 2), (1, 2)]);
    assert_eq!(simulate_makespan_ns(&to_one, "all"), 20_031);
    // The receiver's port is not limited to one link: with three links, it is three times as fast. So the second
    // message's first byte arrives 2^20 / (3 · 53.6870912) = 6,510 ns after the first message's.
    assert_eq!(
        simulate_makespan_ns(&to_one, "all,-free-ports"),
        20_031 + 6_510
    );
    let shared = "all,-free-ports,-fully-connected-links";
    assert_eq!(simulate_makespan_ns(&to_one, shared), 500 + 2 * 19_531);
    // A rank's sends wait for one another, unless this quirk is corrected.
    let from_one = build_message_config(Unaware, &dims, &[(0, 1), (0, 2)]);
    assert_eq!(simulate_makespan_ns(&from_one, "all"), 2 * 20_031);
    assert_eq!(
        simulate_makespan_ns(&from_one, "all,-one-at-a-time"),
        20_031
    );
    let both = "all,-one-at-a-time,-free-ports,-fully-connected-links";
    assert_eq!(simulate_makespan_ns(&from_one, both), 500 + 2 * 19_531);
}

/// In a reduce-scatter of 8 MiB by `direct` among 8 fully connected NPUs, messages of 2^20 B take
/// 19,531.25 ns on a link, and reductions take 3 · 20,971 ns.
#[test]
fn fully_connected_links_quirk_gives_each_link_the_full_npu_bandwidth() {
    let dims = [(FullyConnected, 8, 50.0, 500.0)];
    let mut config =
        build_config_of_one_collective(Unaware, &dims, ReduceScatter, &["direct"], 8 * MIB);
    config.system.splits = 1;
    let reduction = 3 * 20_971;
    assert_eq!(
        simulate_makespan_ns(&config, "all"),
        2 * 10 + 500 + 19_531 + reduction
    );
    // Each link has a seventh of the bandwidth, so a message takes 7 · 19,531.25 = 136,718.75 ns.
    let links = "all,-fully-connected-links";
    assert_eq!(
        simulate_makespan_ns(&config, links),
        2 * 10 + 500 + 136_718 + reduction
    );
    // If the port is as fast as seven links, a message takes 2,790.18 ns in it and 19,531 ns on the link. The last
    // message leaves after six others.
    let ports = 10 + 6 * 2_790 + 500 + 19_531 + 10 + reduction;
    assert_eq!(simulate_makespan_ns(&config, "all,-free-ports"), ports);
    // If the port is as fast as one link, messages follow one another.
    let both = "all,-free-ports,-fully-connected-links";
    assert_eq!(
        simulate_makespan_ns(&config, both),
        10 + 7 * 19_531 + 500 + 10 + reduction
    );
    // On the aware network, each link also has a seventh of the bandwidth.
    config.network = Aware;
    assert_eq!(
        simulate_makespan_ns(&config, "all"),
        2 * 10 + 500 + 19_531 + reduction
    );
    assert_eq!(
        simulate_makespan_ns(&config, links),
        2 * 10 + 500 + 136_718 + reduction
    );
}

/// The message from 0 to 3 crosses a ring of 2 at 50 GB/s and a switch of 2 at 25 GB/s. It takes 19,531.25 or 39,062.5
/// ns, plus a latency of 500 ns, or of 500 ns plus twice 500 ns.
#[test]
fn all_dimensions_delay_a_message_only_if_corrected() {
    let dims = [(Ring, 2, 50.0, 500.0), (Switch, 2, 25.0, 500.0)];
    let config = build_message_config(Unaware, &dims, &[(0, 3)]);
    assert_eq!(simulate_makespan_ns(&config, "all"), 20_031);
    assert_eq!(
        simulate_makespan_ns(&config, "all,-first-dimension"),
        40_562
    );
    // The ports on the path make no difference, because there is no other message.
    assert_eq!(
        simulate_makespan_ns(&config, "all,-first-dimension,-free-ports"),
        40_562
    );
    // The message from 2 to 3 needs NPU 2's ring port. The message from 0 does not use this port,
    // because its path is 0 -> 1 -> 3 and changes dimension at 1. The two messages enter 3 from
    // different dimensions: one from the ring, and one from the switch.
    let two = build_message_config(Unaware, &dims, &[(0, 3), (2, 3)]);
    assert_eq!(
        simulate_makespan_ns(&two, "all,-first-dimension,-free-ports"),
        40_562
    );
    // The message from 1 to 3 needs NPU 1's port into the switch, and gets it first, for 39,062 ns.
    // The message from 0 reaches this port at 500 ns and waits, so the time is 39,062 + 39,062 +
    // 1,000.
    let two = build_message_config(Unaware, &dims, &[(0, 3), (1, 3)]);
    let both = simulate_makespan_ns(&two, "all,-first-dimension,-free-ports");
    assert_eq!(both, 2 * 39_062 + 1_000);
}

/// Messages of 1 MiB take 19,531.25 ns on a link, and 500 ns of latency.
#[test]
fn messages_cut_through() {
    let through = "all,-store-and-forward";
    // The messages cross three hops of a ring, or two hops through a switch.
    let ring = build_message_config(Aware, &[(Ring, 16, 50.0, 500.0)], &[(1, 4)]);
    assert_eq!(
        (
            simulate_makespan_ns(&ring, "all"),
            simulate_makespan_ns(&ring, through)
        ),
        (60_093, 21_031)
    );
    let switch = build_message_config(Aware, &[(Switch, 16, 50.0, 500.0)], &[(1, 4)]);
    assert_eq!(
        (
            simulate_makespan_ns(&switch, "all"),
            simulate_makespan_ns(&switch, through)
        ),
        (40_062, 20_531)
    );
    // On link 1 -> 2, the message from 1 is first. The message from 0 arrives after 500 ns, and
    // starts at 19,531 ns.
    let shared = build_message_config(Aware, &[(Ring, 16, 50.0, 500.0)], &[(0, 2), (1, 2)]);
    assert_eq!(simulate_makespan_ns(&shared, through), 2 * 19_531 + 500);
    // In a ring of 8 through a switch with 100 MB as above, each step takes 232,830 + 500 twice
    // (store and forward), or 232,830 + 1,000.
    let dims = [(Switch, 8, 50.0, 500.0)];
    let mut all = with_zero_reduction_time(build_config_of_one_collective(
        Aware,
        &dims,
        AllReduce,
        &["ring"],
        100_000_000,
    ));
    all.system.splits = 1;
    assert_eq!(
        simulate_makespan_ns(&all, "all"),
        15 * 10 + 14 * 2 * (500 + 232_830)
    );
    assert_eq!(
        simulate_makespan_ns(&all, through),
        15 * 10 + 14 * (1_000 + 232_830)
    );
    // Over several dimensions, the latency is 50 + 500 + 2 · 2,000 ns, and the rate is the slowest
    // of 200, 100 and 50 GB/s.
    let dims = [
        (Ring, 2, 200.0, 50.0),
        (FullyConnected, 8, 100.0, 500.0),
        (Switch, 4, 50.0, 2000.0),
    ];
    let stack = build_message_config(Aware, &dims, &[(0, 63)]);
    assert_eq!(simulate_makespan_ns(&stack, through), 4_550 + 19_531);
    // A fast switch after a slow ring forwards at the ring's 50 GB/s, and 500 + 2 · 500 ns later.
    let dims_back = [(Ring, 2, 50.0, 500.0), (Switch, 2, 200.0, 500.0)];
    let slow_first = build_message_config(Aware, &dims_back, &[(0, 3)]);
    assert_eq!(simulate_makespan_ns(&slow_first, through), 1_500 + 19_531);
    let slow_first = build_message_config(Unaware, &dims_back, &[(0, 3)]);
    let ports = simulate_makespan_ns(&slow_first, "all,-first-dimension,-free-ports");
    assert_eq!(ports, 1_500 + 19_531);
    // The message from 0 to 15 crosses the ring, and then the link from NPU 1 to 15, which NPU 1's
    // own message occupies for 9,765 ns.
    let two = build_message_config(Aware, &dims, &[(0, 15), (1, 15)]);
    assert_eq!(simulate_makespan_ns(&two, through), 2 * 9_765 + 500);
}

/// The groups are halves of a ring of 4 on a switch of 2, with `direct` in the ring.
#[test]
fn groups_go_through_the_dimensions_they_span() {
    let dims = [(Ring, 4, 50.0, 500.0), (Switch, 2, 50.0, 500.0)];
    let names = ["direct", "halvingDoubling"];
    let mut config = build_config_of_one_collective(Unaware, &dims, AllReduce, &names, MIB);
    split_collective_between_npu_halves(&mut config);
    // With a ring, a chunk takes 7·10 + 6·1,720 + 3·3,930. With `direct` along the ring, a chunk takes 3·10 + 2·1,720 +
    // 3,930 + 500, because the farthest peer is one hop of 500 ns farther. There are four chunks in each case.
    assert_eq!(simulate_makespan_ns(&config, "all"), 88_720);
    assert_eq!(
        simulate_makespan_ns(&config, "all,-group-ring,-group-reductions"),
        31_600
    );
    // The group of 0, 1, 4 and 5 spans both dimensions. Each chunk is scattered along the ring, where two NPUs are
    // members: 2·10 + 500 + 2,441 + 7,863 for 2^17 B. Then the chunk is reduced over the switch with two messages of
    // 2^16 B: 3·10 + 2·(1,000 + 1,220), without a reduction, because halvingDoubling counts one too few. Finally, the
    // chunk is gathered: 2·10 + 500 + 2,441. The ring has one queue, so 10,824 + 2,961 count four times.
    let mut config = build_config_of_one_collective(Unaware, &dims, AllReduce, &names, MIB);
    config.groups = [(1, vec![0, 1, 4, 5]), (2, vec![2, 3, 6, 7])].into();
    for (group, members) in &config.groups {
        for &npu in members {
            if let NodeWork::Collective { group: of, .. } = &mut config.ranks[npu][0].work {
                *of = *group;
            }
        }
    }
    assert_eq!(
        simulate_makespan_ns(&config, "all,-group-ring"),
        4 * (10_824 + 2_961)
    );
    // A group that is not a sub-grid is treated as a line along the outermost dimension. The line's
    // halvingDoubling needs a power of two, so three members use a ring 1 -> 4 -> 6 -> 1. Only 4 ->
    // 6 stays in one dimension, over two hops. Messages have 87,381 B, so the time is 5·10 +
    // 4·(1,000 + 1,627) + 2·(3·1,747).
    let mut config = build_config_of_one_collective(Unaware, &dims, AllReduce, &names, MIB);
    config.groups = [(1, vec![1, 4, 6])].into();
    for (npu, rank) in config.ranks.iter_mut().enumerate() {
        match &mut rank[0].work {
            NodeWork::Collective { group, .. } if [1, 4, 6].contains(&npu) => *group = 1,
            work => *work = NodeWork::Compute { ops: 1, bytes: 1 },
        }
    }
    let ring = simulate_makespan_ns(&config, "all,-group-ring");
    assert_eq!(ring, simulate_makespan_ns(&config, "all"));
}

/// Four members of a ring of 8 form a ring of their own. The last link back takes three hops, so members wait for
/// different lengths of time, whether their line is the group's own or along the dimension.
#[test]
fn a_ring_of_half_a_dimension_is_slower_than_one_of_single_hops() {
    let mut config = build_config_of_one_collective(
        Unaware,
        &[(Ring, 8, 50.0, 500.0)],
        AllReduce,
        &["ring"],
        MIB,
    );
    split_collective_between_npu_halves(&mut config);
    let line = simulate_makespan_ns(&config, "all");
    assert_eq!(simulate_makespan_ns(&config, "all,-group-ring"), line);
    // If all members of a ring are one hop apart, a chunk takes 7·10 + 6·1,720 + 3·3,930. The ring
    // of this test takes longer.
    assert!(line > 88_720, "{line}");
}

/// In a group of 4, the ring has seven endpoint delays in each of four chunks; each delay is 123 ns or 10 ns.
#[test]
fn corrected_groups_use_the_configured_endpoint_delay() {
    let dims = [(Ring, 4, 50.0, 500.0), (Switch, 2, 50.0, 500.0)];
    let mut config =
        build_config_of_one_collective(Unaware, &dims, AllReduce, &["ring", "ring"], MIB);
    split_collective_between_npu_halves(&mut config);
    config.system.endpoint_delay = Some(123);
    assert_eq!(simulate_makespan_ns(&config, "all"), 88_720);
    assert_eq!(
        simulate_makespan_ns(&config, "all,-group-endpoint"),
        88_720 + 4 * 7 * 113
    );
}

/// A chunk takes 3·10 + 2·1,720 + 3,930, and another 3,930 if the second half is also reduced.
#[test]
fn groups_reduce_both_halves_with_the_quirk_and_one_without() {
    let dims = [(FullyConnected, 8, 50.0, 500.0)];
    let mut config = build_config_of_one_collective(Unaware, &dims, AllReduce, &["direct"], MIB);
    split_collective_between_npu_halves(&mut config);
    assert_eq!(simulate_makespan_ns(&config, "all"), 4 * 11_330);
    assert_eq!(
        simulate_makespan_ns(&config, "all,-group-reductions"),
        4 * 7_400
    );
}

/// The trace has two all-reduces of 88,720 ns without dependencies between them, and a load of 100
/// ns + 1 MiB / 25 GB/s.
#[test]
fn independent_collectives_and_loads_overlap() {
    let dims = [(Ring, 4, 50.0, 500.0)];
    let mut config = build_config_of_one_collective(Unaware, &dims, AllReduce, &["ring"], MIB);
    (config.memory.latency, config.memory.bw) = (100, 25);
    config.memory.attachment = MemoryServerAssignment::PerNpu;
    let load = NodeWork::Memory {
        store: false,
        bytes: MIB,
    };
    for rank in &mut config.ranks {
        let again = rank[0].clone();
        rank.push(TraceNode { id: 2, ..again });
        let again = rank[0].clone();
        let work = load.clone();
        rank.push(TraceNode {
            id: 3,
            work,
            ..again
        });
        let again = rank[2].clone();
        rank.push(TraceNode { id: 4, ..again });
    }
    // Loads still run one at a time.
    assert_eq!(
        simulate_makespan_ns(&config, "all"),
        2 * 88_720 + 2 * 42_043
    );
    assert_eq!(simulate_makespan_ns(&config, "all,-one-at-a-time"), 88_720);
    // All-reduces that share a port slow each other down, but still finish earlier than if they ran one after the
    // other.
    let shared = simulate_makespan_ns(&config, "all,-one-at-a-time,-free-ports");
    assert!((88_721..2 * 88_720).contains(&shared), "{shared}");
}

/// NPU 1 is ready for the second collective before the first. If collectives are issued one at a time, NPU 1 issues the
/// second first, and disagrees with the other NPUs. With the correction, collectives are matched in the order of the
/// traces.
#[test]
fn overlapping_collectives_are_matched_in_program_order() {
    let dims = [(Ring, 2, 50.0, 500.0)];
    let mut config = build_config_of_one_collective(Unaware, &dims, AllReduce, &["ring"], MIB);
    let list = config.system.algorithms[&AllReduce].clone();
    config.system.algorithms.insert(AllGather, list);
    for (npu, rank) in config.ranks.iter_mut().enumerate() {
        let first = rank.remove(0);
        let node = |id, deps: &[u64], cpu, micros, work| TraceNode {
            id,
            deps: deps.to_vec(),
            cpu,
            micros,
            work,
        };
        let late = if npu == 1 { 900 } else { 1 };
        let idle = NodeWork::Compute { ops: 0, bytes: 0 };
        let mut gather = first.work.clone();
        if let NodeWork::Collective { kind, .. } = &mut gather {
            *kind = AllGather;
        }
        *rank = vec![
            node(1, &[], true, late, idle.clone()),
            node(2, &[1], false, 0, first.work),
            node(3, &[], false, 500, idle),
            node(4, &[3], false, 0, gather),
        ];
    }
    let ran = super::product::run_config_with_closed_forms(&config);
    assert_eq!(ran.code, Some(2), "{}", ran.error);
    // The gather ends long before NPU 1 issues the all-reduce at 900 us. The all-reduce has four
    // chunks of 3·10 + 2·(500 + 2,441) + 7,863 for two messages of 2^17 B and one reduction.
    assert_eq!(
        simulate_makespan_ns(&config, "all,-one-at-a-time"),
        900_000 + 4 * 13_775
    );
}

/// Four chunks have three phases: reduce-scatter outwards, 4·10 + 3·(1,720 + 3,930) = 16,990;
/// all-reduce, 3·10 + 2·1,720 + 1,965 = 5,435; all-gather back, 4·10 + 3·1,720 = 5,200. With one
/// queue for both directions, the time is 4·(16,990 + 5,200). With a queue for each direction,
/// every phase except the slowest is hidden for all chunks except one.
#[test]
fn corrected_phases_have_a_queue_for_each_direction() {
    let dims = [(Ring, 4, 50.0, 500.0), (Ring, 2, 25.0, 500.0)];
    let config = build_config_of_one_collective(Unaware, &dims, AllReduce, &["ring", "ring"], MIB);
    assert_eq!(simulate_makespan_ns(&config, "all"), 88_760);
    let own = 4 * 16_990 + 5_435 + 5_200;
    assert_eq!(simulate_makespan_ns(&config, "all,-shared-queue"), own);
}

/// 2^20 B take 20,971.52 ns at 50 · 10^9 B/s, and 19,531.25 ns at 50 · 2^30 B/s.
#[test]
fn gib_and_whole_ns_quirks_change_units_and_rounding() {
    let config = build_message_config(Unaware, &[(Ring, 4, 50.0, 500.0)], &[(0, 1)]);
    assert_eq!(simulate_makespan_ps(&config, "all"), 20_031_000);
    assert_eq!(simulate_makespan_ps(&config, "all,-gib"), 21_471_000);
    assert_eq!(simulate_makespan_ps(&config, "all,-whole-ns"), 20_031_250);
    assert_eq!(
        simulate_makespan_ps(&config, "all,-whole-ns,-gib"),
        21_471_520
    );
    // A kernel of 1,002 FLOPs takes 0.501 ns at 2 TFLOPS. A load of 1,001 B at 3 GB/s takes 333.667
    // ns, after 7 ns.
    let mut config =
        build_config_of_one_collective(Unaware, &[(Ring, 2, 1.0, 1.0)], AllReduce, &["ring"], MIB);
    (config.system.roofline, config.system.peak_perf) = (true, 2.0);
    (config.memory.latency, config.memory.bw) = (7, 3);
    config.memory.attachment = MemoryServerAssignment::PerNpu;
    for rank in &mut config.ranks {
        let compute = NodeWork::Compute {
            ops: 1_002,
            bytes: 1,
        };
        let load = NodeWork::Memory {
            store: false,
            bytes: 1_001,
        };
        rank[0].work = compute;
        let deps = vec![1];
        rank.push(TraceNode {
            id: 2,
            deps,
            work: load,
            ..rank[0].clone()
        });
    }
    config.system.local_mem_bw = 1e6;
    assert_eq!(simulate_makespan_ps(&config, "all"), 340_000);
    assert_eq!(
        simulate_makespan_ps(&config, "all,-whole-ns"),
        501 + 340_667
    );
}

/// For chunks of 2^18 B among 8, halving-doubling reduces 2^16 and 2^15 B and, if corrected, also
/// 2^17 B.
#[test]
fn halving_doubling_reduces_the_largest_part_only_if_corrected() {
    let dims = [(Switch, 8, 50.0, 500.0)];
    let config =
        build_config_of_one_collective(Unaware, &dims, AllReduce, &["halvingDoubling"], MIB);
    assert_eq!(simulate_makespan_ns(&config, "all"), 82_028);
    // 2^17 B take 2,621.44 ns at 50 GB/s, three times over.
    let corrected = "all,-halving-doubling-reductions";
    assert_eq!(
        simulate_makespan_ns(&config, corrected),
        82_028 + 4 * 3 * 2_621
    );
    // The same is true in a reduce-scatter alone, and with simulated messages.
    let config =
        build_config_of_one_collective(Unaware, &dims, ReduceScatter, &["halvingDoubling"], MIB);
    assert_eq!(simulate_makespan_ns(&config, "all"), 52_824);
    assert_eq!(
        simulate_makespan_ns(&config, corrected),
        52_824 + 4 * 3 * 2_621
    );
}

/// With `direct` on a ring of 8, messages of 2^15 B take 610 ns and up to four hops of 500 ns, and
/// reductions take 1,965 ns. The last message arrives at 10 + 2,610 ns, the endpoint takes 10 ns
/// more, and the reduction ends at 4,595 ns. The farthest reply arrives 2,610 ns later, and its
/// endpoint takes 10 ns.
#[test]
fn direct_gathers_when_all_is_reduced() {
    let dims = [(Ring, 8, 50.0, 500.0)];
    let config = build_config_of_one_collective(Unaware, &dims, AllReduce, &["direct"], MIB);
    assert_eq!(simulate_makespan_ns(&config, "all"), 24_860);
    assert_eq!(
        simulate_makespan_ns(&config, "all,-early-reduction"),
        4 * (4_595 + 2_620)
    );
    // With a window of 2, no member gathers earlier either.
    let config = build_config_of_one_collective(Unaware, &dims, AllReduce, &["direct2"], MIB);
    let windowed = simulate_makespan_ns(&config, "all,-early-reduction");
    assert!(
        windowed >= simulate_makespan_ns(&config, "all"),
        "{windowed}"
    );
}

/// A tree of 4 goes up from a leaf over an inner member to the root, and down again. A message of
/// 2^18 B takes 1,000 + 4,882 ns, an endpoint delay takes 10 ns, and a reduction takes 3 · 5,242
/// ns. There are four messages and three reductions: at the inner member, the root, and the inner
/// member again.
#[test]
fn trees_reduce_on_the_way_up() {
    let dims = [(Switch, 4, 50.0, 500.0)];
    let mut config =
        build_config_of_one_collective(Unaware, &dims, AllReduce, &["doubleBinaryTree"], MIB / 4);
    config.system.splits = 1;
    let way = 4 * 5_882 + 5 * 10;
    assert_eq!(simulate_makespan_ns(&config, "all"), way + 3 * 15_726);
    assert_eq!(
        simulate_makespan_ns(&config, "all,-tree-reductions"),
        way + 2 * 15_726
    );
}
