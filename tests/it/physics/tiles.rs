//! Tests machines of tiles: the micro-benchmarks of PALM's own simulator, and faults.
//!
//! The machine has one die of 4 x 4 cores, links of 1024 GB/s and 1 ns, and four memory ports of 256 GB/s. A MB is 10^6
//! bytes, and a byte takes 1/1.024 ps. The golden values are in picoseconds, from runs of PALM's public code, each with
//! its arithmetic next to it.

use super::lines::{TestTraceNode, build_collective, build_node, build_receive, build_send};
use super::rig::{ReplayOutcomeAndLog, build_job_from_rank_nodes, replay_with};
use chakram::engine::NetworkModel::{ContentionFree, Exclusive, Links, Ports};
use chakram::engine::{CompiledReplay, NetworkModel, ReplayOptions};
use chakram::ids::Npu;
use chakram::machine::Machine;
use chakram::trace::{CollectiveKind as K, MemoryLocation, Op};

const MB: u64 = 1_000_000;
/// The time of a MB over a link: 10^6 / 1024e9 s.
const T: f64 = 976_562.5;

const DIE: &str = r#"name = "die"
[npu.core]
memory_bandwidth = "1 TB/s"
memory_latency = "0 ns"
memory_capacity = "64 MB"
lanes = 64
host_lanes = 1
peak = { fp16 = "16 TFLOP/s" }
[tiles]
dies = [1, 1]
cores = [4, 4]
link_bandwidth = "1024 GB/s"
link_latency = "1 ns"

[tiles.dram]
left = "1-2"
right = "1-2"
bandwidth = "256 GB/s"
latency = "DRAM ns"
capacity = "64 GB"
"#;

/// Returns the die, with additional lines for its table and for the machine.
fn parse_die_machine(tiles: &str, rest: &str, dram_ns: u64) -> Machine {
    let text = DIE.replace("DRAM ns", &format!("{dram_ns} ns"));
    let text = text.replace("\n\n", &format!("\n{tiles}\n"));
    Machine::parse(&format!("{text}{rest}\n"), "die.toml").unwrap()
}

fn store_and_forward(rest: &str) -> String {
    format!("{rest}\n[network]\nswitching = \"store_and_forward\"\n")
}

/// Replays `ranks` with rank r on core `cores[r]`; the group "g" has the members `group`, in this order.
fn replay_ranks_on_given_cores(
    machine: &Machine,
    ranks: &[Vec<TestTraceNode>],
    group: &[u32],
    cores: &[u32],
    network: NetworkModel,
) -> ReplayOutcomeAndLog {
    let workload = if group.is_empty() {
        build_job_from_rank_nodes(ranks, &[])
    } else {
        build_job_from_rank_nodes(ranks, &[("g", group)])
    };
    let options = ReplayOptions::default_with_changes(|o| {
        o.map = Some(cores.iter().copied().map(Npu).collect());
        o.network = Some(network);
    });
    replay_with(&workload, machine, &options)
}

/// Returns `count` concurrent collectives, each on its own lane, of `bytes` among the ranks in the
/// order `group`.
fn concurrent_collectives_on_own_lanes(
    kind: K,
    count: u64,
    bytes: u64,
    group: &[u32],
) -> (Vec<Vec<TestTraceNode>>, Vec<u32>) {
    let lines: Vec<TestTraceNode> = (0..count)
        .map(|lane| {
            build_collective(kind, bytes)
                .group("g")
                .on_lane(lane as i64)
        })
        .collect();
    (vec![lines; group.len()], group.to_vec())
}

fn assert_near_golden(found: u64, golden: f64) {
    // 10^-9 ms is a picosecond.
    assert!(
        (found as f64 - golden).abs() <= 1.0,
        "{found} against {golden}"
    );
}

fn make_remote_memory_node(store: bool, bytes: u64) -> TestTraceNode {
    build_node(Op::Memory {
        store,
        place: MemoryLocation::Remote,
        bytes,
        in_switch: false,
    })
}

/// A ring on a line of four takes 6 steps of 2 MB; in each step, the slowest message travels back over three links: 6
/// (2 T + 3 ns).
#[test]
fn rings_take_what_they_take_in_the_paper_s_simulator() {
    let die = parse_die_machine("", "", 1000);
    let line = [0, 1, 2, 3];
    for (kind, steps, bytes) in [
        (K::AllReduce, 6.0, 8 * MB),
        (K::ReduceScatter, 3.0, 8 * MB),
        // The trace gives the size of one member's shard.
        (K::AllGather, 3.0, 2 * MB),
    ] {
        let (ranks, group) = concurrent_collectives_on_own_lanes(kind, 1, bytes, &line);
        let found = replay_ranks_on_given_cores(&die, &ranks, &group, &line, Exclusive);
        assert_near_golden(found.makespan_ps(), steps * (2.0 * T + 3000.0));
    }
    let (ranks, group) = concurrent_collectives_on_own_lanes(K::AllReduce, 1, 8 * MB, &line);
    let found = replay_ranks_on_given_cores(&die, &ranks, &group, &line, Exclusive);
    assert_near_golden(found.makespan_ps(), 11_736_750.0);
    // In the order 0, 2, 1, 3, two transfers share a link in each step: 6 (4 T + 2 + 2 ns).
    let (ranks, group) =
        concurrent_collectives_on_own_lanes(K::AllReduce, 1, 8 * MB, &[0, 2, 1, 3]);
    assert_near_golden(
        replay_ranks_on_given_cores(&die, &ranks, &group, &line, Exclusive).makespan_ps(),
        23_461_500.0,
    );
    // Each of `count` concurrent all-reduces takes exactly `count` times the time of a single one.
    for (count, golden) in [(2, 23_473_500.0), (3, 35_210_250.0), (5, 58_683_750.0)] {
        let (ranks, group) =
            concurrent_collectives_on_own_lanes(K::AllReduce, count, 8 * MB, &line);
        assert_near_golden(
            replay_ranks_on_given_cores(&die, &ranks, &group, &line, Exclusive).makespan_ps(),
            golden,
        );
    }
}

/// By Eq. 3, in each of 6 steps, the message back crosses three links one after another: 3 (2 T + 1 ns).
#[test]
fn store_and_forward_takes_the_links_one_after_another() {
    let die = parse_die_machine("", &store_and_forward(""), 1000);
    let line = [0, 1, 2, 3];
    let (ranks, group) = concurrent_collectives_on_own_lanes(K::AllReduce, 1, 8 * MB, &line);
    assert_near_golden(
        replay_ranks_on_given_cores(&die, &ranks, &group, &line, Exclusive).makespan_ps(),
        18.0 * (2.0 * T + 1000.0),
    );
    // The path from one corner to the opposite corner has 6 links.
    let ranks = [vec![build_send(1, MB)], vec![build_receive(0, MB)]];
    assert_near_golden(
        replay_ranks_on_given_cores(&die, &ranks, &[], &[0, 15], Exclusive).makespan_ps(),
        6.0 * (T + 1000.0),
    );
    // A load by (1, 0) at its port at (0, 1) occupies the memory, then each of two links.
    let ranks = [vec![make_remote_memory_node(false, MB)]];
    let memory = 1_000_000.0 + 4.0 * T;
    assert_near_golden(
        replay_ranks_on_given_cores(&die, &ranks, &[], &[1], Exclusive).makespan_ps(),
        memory + 2.0 * (T + 1000.0),
    );
}

/// From corner to corner, the time is T and 6 ns. Of two sends that share one link, the second
/// begins when the first has ended.
#[test]
fn transfers_hold_their_whole_way() {
    let die = parse_die_machine("", "", 1000);
    let corner = [vec![build_send(1, MB)], vec![build_receive(0, MB)]];
    assert_near_golden(
        replay_ranks_on_given_cores(&die, &corner, &[], &[0, 15], Exclusive).makespan_ps(),
        982_562.5,
    );
    // 0 sends to 2, and 1 to 3, so they share the link from 1 to 2: twice T + 2 ns.
    let two = [
        vec![build_send(1, MB)],
        vec![build_receive(0, MB)],
        vec![build_send(3, MB)],
        vec![build_receive(2, MB)],
    ];
    assert_near_golden(
        replay_ranks_on_given_cores(&die, &two, &[], &[0, 2, 1, 3], Exclusive).makespan_ps(),
        2.0 * (T + 2000.0),
    );
    // With cut-through links, contention takes only one T, and then the second message crosses the
    // rest of its path.
    let links = replay_ranks_on_given_cores(&die, &two, &[], &[0, 2, 1, 3], Links).makespan_ps();
    assert_near_golden(links, 2.0 * T + 1000.0);
    assert_near_golden(
        replay_ranks_on_given_cores(&die, &two, &[], &[0, 2, 1, 3], ContentionFree).makespan_ps(),
        T + 2000.0,
    );
    // Messages in opposite directions share links only if links are half duplex.
    let back = [
        vec![build_send(1, MB), build_receive(1, MB)],
        vec![build_receive(0, MB), build_send(0, MB)],
    ];
    assert_near_golden(
        replay_ranks_on_given_cores(&die, &back, &[], &[0, 3], Exclusive).makespan_ps(),
        T + 3000.0,
    );
    let half = parse_die_machine("duplex = \"half\"", "", 1000);
    for network in [Exclusive, Links] {
        let ps =
            replay_ranks_on_given_cores(&half, &back, &[], &[0, 3], network).makespan_ps() as f64;
        assert!(ps >= 2.0 * T, "{network}: {ps}");
    }
    assert_near_golden(
        replay_ranks_on_given_cores(&half, &back, &[], &[0, 3], Exclusive).makespan_ps(),
        2.0 * (T + 3000.0),
    );
}

/// 16 cores load 1 MB each, four at each port, one after another, over 1, 0, 2 and 1 links: 4 (1
/// us + 4 T) + 4 ns. The public code takes 1 us for the latency of DRAM, although its configuration
/// states 1 ns; with 1 ns the result is 3 x 999 ns + ... less.
#[test]
fn loads_hold_their_way_and_their_port() {
    let us = parse_die_machine("", "", 1000);
    let all: Vec<u32> = (0..16).collect();
    let ranks = vec![vec![make_remote_memory_node(false, MB)]; 16];
    assert_near_golden(
        replay_ranks_on_given_cores(&us, &ranks, &[], &all, Exclusive).makespan_ps(),
        19_629_000.0,
    );
    assert_near_golden(
        replay_ranks_on_given_cores(&us, &ranks, &[], &all, ContentionFree).makespan_ps(),
        1_000_000.0 + 4.0 * T + 2000.0,
    );
    // Stores take as long, in the other direction.
    let ranks = vec![vec![make_remote_memory_node(true, MB)]; 16];
    assert_near_golden(
        replay_ranks_on_given_cores(&us, &ranks, &[], &all, Exclusive).makespan_ps(),
        19_629_000.0,
    );
    let one = [vec![make_remote_memory_node(false, MB)]];
    let ns = parse_die_machine("", "", 1);
    assert_near_golden(
        replay_ranks_on_given_cores(&us, &one, &[], &[0], Exclusive).makespan_ps(),
        4_907_250.0,
    );
    assert_near_golden(
        replay_ranks_on_given_cores(&ns, &one, &[], &[0], Exclusive).makespan_ps(),
        3_908_250.0,
    );
    // Each hop from the port adds 1 ns, at (0, 1), (0, 0) and (1, 0).
    for (core, hops) in [(4, 0), (0, 1), (1, 2)] {
        for network in [Exclusive, Links, ContentionFree] {
            let ps = replay_ranks_on_given_cores(&ns, &one, &[], &[core], network).makespan_ps();
            assert_near_golden(ps, 4.0 * T + 1000.0 * (1.0 + f64::from(hops)));
        }
    }
}

/// Each core has its own DRAM instead of ports at the edge. 16 cores load 1 MB each concurrently,
/// over no link, in 1 ns and 10^6 B / 256 GB/s = 4 T, which is the time of a single core. A
/// concurrent message between two of them takes its T and 1 ns.
#[test]
fn dram_of_every_core_takes_no_links() {
    let at_edges = ["left", "right"];
    let text = DIE.replace("[tiles.dram]", "[remote_memory]\nattachment = \"per_npu\"");
    let kept = text
        .lines()
        .filter(|line| !at_edges.iter().any(|edge| line.starts_with(edge)));
    let text = kept.collect::<Vec<_>>().join("\n");
    let text = text.replace("latency = \"DRAM ns\"", "latency = \"1 ns\"");
    let machine = Machine::parse(&text, "die.toml").unwrap();
    for network in [Exclusive, Links, ContentionFree] {
        for count in [1, 16] {
            let all: Vec<u32> = (0..count).collect();
            let ranks = vec![vec![make_remote_memory_node(false, MB)]; count as usize];
            assert_near_golden(
                replay_ranks_on_given_cores(&machine, &ranks, &[], &all, network).makespan_ps(),
                4.0 * T + 1000.0,
            );
        }
        let pair = [
            vec![
                make_remote_memory_node(false, MB),
                build_send(1, MB).on_lane(1),
            ],
            vec![
                make_remote_memory_node(false, MB),
                build_receive(0, MB).on_lane(1),
            ],
        ];
        assert_near_golden(
            replay_ranks_on_given_cores(&machine, &pair, &[], &[0, 1], network).makespan_ps(),
            4.0 * T + 1000.0,
        );
    }
}

/// A load that crosses a link delays a message on that link; with `links`, it does so only while the load's bytes pass.
#[test]
fn loads_and_messages_share_links() {
    let die = parse_die_machine("", "", 1);
    // (1, 1) loads over the link from (0, 1), and (0, 1) sends to (2, 1) over the same link.
    let ranks = [
        vec![make_remote_memory_node(false, MB)],
        vec![build_send(2, MB)],
        vec![build_receive(1, MB)],
    ];
    let found = replay_ranks_on_given_cores(&die, &ranks, &[], &[5, 4, 6], Exclusive);
    let access = 4.0 * T + 2000.0;
    assert_near_golden(found.node_end_ps(0, 1), access);
    assert_near_golden(found.node_end_ps(2, 1), access + T + 2000.0);
    // The load's bytes occupy the link from 1 ns, for T.
    let found = replay_ranks_on_given_cores(&die, &ranks, &[], &[5, 4, 6], Links);
    assert_near_golden(found.node_end_ps(2, 1), 1000.0 + T + T + 2000.0);
}

#[test]
fn runs_that_faulty_cores_links_or_ports_forbid_are_refused_by_name() {
    let refused = |machine: &Machine, ranks: &[Vec<TestTraceNode>], cores: &[u32], network| {
        let workload = build_job_from_rank_nodes(ranks, &[]);
        let options = ReplayOptions::default_with_changes(|o| {
            o.map = Some(cores.iter().copied().map(Npu).collect());
            o.network = network;
        });
        let error = CompiledReplay::new(&workload, machine, &options).unwrap_err();
        error.to_string()
    };
    let broken = parse_die_machine(
        "faulty_cores = [[1, 2]]\nfaulty_links = [[1, 0, 2, 0], [0, 1, 0, 2]]",
        "",
        1,
    );
    let pair = [vec![build_send(1, MB)], vec![build_receive(0, MB)]];
    let text = refused(&broken, &pair, &[9, 0], None);
    assert!(text.contains("rank 0 is placed on core (1, 2)"), "{text}");
    let text = refused(&broken, &pair, &[0, 3], None);
    assert!(
        text.contains("no route from core (0, 0) to core (3, 0)"),
        "{text}"
    );
    assert!(
        text.contains("the link between cores (1, 0) and (2, 0) is faulty"),
        "{text}"
    );
    // Both paths are blocked: along x by one fault, along y by the other.
    let text = refused(&broken, &pair, &[0, 10], None);
    assert!(text.contains("no route"), "{text}");
    let together = vec![vec![build_collective(K::AllReduce, MB)]; 2];
    let text = refused(&broken, &together, &[0, 3], None);
    assert!(text.contains("no route"), "{text}");
    let text = refused(&parse_die_machine("", "", 1), &pair, &[0, 1], Some(Ports));
    assert!(text.contains("take `network` exclusive"), "{text}");
    // If the path in the other order of dimensions is free, the message takes it: (0, 0) to (3, 1) through (0, 1).
    assert_near_golden(
        replay_ranks_on_given_cores(&broken, &pair, &[], &[0, 7], Exclusive).makespan_ps(),
        T + 4000.0,
    );
    assert_near_golden(
        replay_ranks_on_given_cores(&broken, &pair, &[], &[0, 7], Links).makespan_ps(),
        T + 4000.0,
    );
}

/// Fig. 6 shows a ring all-reduce on 4 and on 16 cores, within 5 % of an ideal ring: 2 (P - 1) / P
/// of the bytes at a link's rate. Sixteen cores have a cycle of neighbours, so each step crosses
/// one link; on the line of four, the message back crosses three.
#[test]
fn ring_all_reduces_of_fig_6_take_within_5_percent_of_the_ideal_time() {
    let die = parse_die_machine("", "", 1);
    let cycle = [0, 1, 2, 3, 7, 6, 5, 9, 10, 11, 15, 14, 13, 12, 8, 4];
    for megabytes in [1_u64, 8, 64, 512] {
        for cores in [&[0, 1, 2, 3][..], &[0, 1, 5, 4], &cycle] {
            let group: Vec<u32> = (0..cores.len() as u32).collect();
            let (ranks, group) =
                concurrent_collectives_on_own_lanes(K::AllReduce, 1, megabytes * MB, &group);
            let found = replay_ranks_on_given_cores(&die, &ranks, &group, cores, Exclusive)
                .makespan_ps() as f64;
            let size = cores.len() as f64;
            let bytes = 2.0 * (size - 1.0) / size * megabytes as f64 * T;
            assert!(
                found >= bytes && found <= 1.05 * bytes,
                "{cores:?} {megabytes}: {found}"
            );
        }
    }
}

/// Fig. 7 compares all-reduces, all-to-alls, loads and stores of four concurrent cores with the same operations without
/// contention. A single all-reduce has no contention, but waits for 8 ns. Each of its six steps lasts the time of the
/// message back over three links, while without contention six successive steps cross at most 3 + 1 + 1 + 1 + 3 + 1
/// links. More tasks increase the error of the model without contention, and above 8 MB the error does not depend on
/// the size. The paper states 30 % for five tasks of 8 MB and at most 50 %. Its mix is not published, so the test does
/// not assert those numbers.
#[test]
fn stacked_tasks_of_fig_7_miss_contention() {
    let die = parse_die_machine("", "", 1);
    let line = [0, 1, 2, 3];
    let task = |index: u64, bytes: u64| {
        let on = index as i64;
        match index {
            0 | 4 => build_collective(K::AllReduce, bytes).group("g").on_lane(on),
            1 => build_collective(K::AllToAll, bytes).group("g").on_lane(on),
            2 => make_remote_memory_node(false, bytes).on_lane(on),
            _ => make_remote_memory_node(true, bytes).on_lane(on),
        }
    };
    let missed = |count: u64, bytes: u64| {
        let lines: Vec<TestTraceNode> = (0..count).map(|index| task(index, bytes)).collect();
        let ranks = vec![lines; 4];
        let time = |network| {
            replay_ranks_on_given_cores(&die, &ranks, &line, &line, network).makespan_ps() as f64
        };
        1.0 - time(ContentionFree) / time(Exclusive)
    };
    for bytes in [MB, 8 * MB, 64 * MB] {
        let shares: Vec<f64> = (1..=5).map(|count| missed(count, bytes)).collect();
        let steps = 1.5 * (bytes / MB) as f64 * T;
        let waits = 8000.0 / (steps + 18_000.0);
        assert!((shares[0] - waits).abs() < 1e-5, "{shares:?} {waits}");
        assert!(shares[1] > 0.1 && shares[4] > 0.3, "{shares:?}");
    }
    let [small, large] = [8, 64].map(|size| missed(5, size * MB));
    assert!((small - large).abs() < 0.01, "{small} {large}");
}
