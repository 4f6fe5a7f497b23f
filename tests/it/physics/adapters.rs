//! Tests how activations move from one group of tiles to the next through adapters, with both strategies of PALM's Fig.
//! 11.
//!
//! In strategy 1 (Eq. 7), the source group all-reduces. Then each of its `a` adapters sends all
//! bytes to an adapter of the destination group, and this adapter broadcasts them among its share
//! of the members. In strategy 2 (Eq. 8), each share of the source group reduces to its adapter,
//! the adapters send, and the destination's adapters all-reduce and then broadcast. The groups are
//! two adjacent blocks of 3 x 4 cores, ordered as a ring of neighbours, or these blocks with a
//! thirteenth core. With this core no ring of neighbours exists, because a mesh is bipartite, so
//! its cycles have even lengths.

use super::lines::{TestTraceNode, build_collective, build_receive, build_send};
use super::rig::{replay_with, try_build_rank_job};
use chakram::engine::ReplayOptions;
use chakram::ids::Npu;
use chakram::machine::Machine;
use chakram::trace::CollectiveKind as K;

/// BERT-base's activations of 512 tokens in 16 bits have 512 x 768 x 2 bytes.
const BYTES: u64 = 786_432;

fn build_tile_machine_with_duplex(duplex: &str) -> Machine {
    let text = format!(
        r#"name = "m"
[npu.core]
memory_bandwidth = "1 TB/s"
memory_latency = "0 ns"
memory_capacity = "64 MB"
lanes = 8
host_lanes = 1
peak = {{ fp16 = "16 TFLOP/s" }}
[tiles]
dies = [1, 1]
cores = [8, 4]
link_bandwidth = "1024 GB/s"
link_latency = "1 ns"
duplex = "{duplex}"
"#
    );
    Machine::parse(&text, "m.toml").unwrap()
}

/// Returns a ring of neighbours over 3 x 4 cores. The thirteenth core is next to (2, 0) and follows
/// it.
fn list_cores_in_ring_order(members: u32, x: u32) -> Vec<Npu> {
    let mut ring = vec![
        [0, 0],
        [1, 0],
        [2, 0],
        [2, 1],
        [1, 1],
        [1, 2],
        [2, 2],
        [2, 3],
        [1, 3],
        [0, 3],
        [0, 2],
        [0, 1],
    ];
    if members == 13 {
        ring.insert(3, [3, 0]);
    }
    ring.into_iter().map(|[a, b]| Npu(a + x + b * 8)).collect()
}

/// Phases of a transfer between groups.
#[derive(Clone, Copy, PartialEq)]
enum InterGroupTransferPhase {
    Sum,
    Inter,
    AdapterSum,
    Broadcast,
}
use InterGroupTransferPhase::{AdapterSum, Broadcast, Inter, Sum};

/// Returns the time of a strategy's `phases`, one after another.
fn replay_time_of_group_transfer_phases(
    duplex: &str,
    strategy: u32,
    members: u32,
    adapters: u32,
    phases: &[InterGroupTransferPhase],
) -> u64 {
    // Shares have consecutive members, and equal sizes if possible. The first member of each share is its adapter.
    let first = |share: u32| share * members / adapters;
    let shares: Vec<Vec<u32>> = (0..adapters)
        .map(|share| (first(share)..first(share + 1)).collect())
        .collect();
    let names = [
        "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12",
    ];
    let mut groups: Vec<(String, Vec<u32>)> = vec![
        ("source".to_owned(), (0..members).collect()),
        (
            "adapters".to_owned(),
            shares.iter().map(|share| members + share[0]).collect(),
        ),
    ];
    for (share, name) in shares.iter().zip(names) {
        groups.push((format!("s{name}"), share.clone()));
        groups.push((
            format!("d{name}"),
            share.iter().map(|member| members + member).collect(),
        ));
    }
    let leak = |text: String| -> &'static str { text.leak() };
    let mut ranks: Vec<Vec<TestTraceNode>> = vec![Vec::new(); 2 * members as usize];
    let mut push = |rank: u32, line: TestTraceNode| {
        let lines = &mut ranks[rank as usize];
        let before = lines.len() as u64;
        let after: Vec<u64> = (before > 0).then_some(before).into_iter().collect();
        lines.push(line.after(&after));
    };
    for (index, share) in shares.iter().enumerate() {
        let [s, d] = ["s", "d"].map(|side| leak(format!("{side}{index}")));
        let alone = share.len() == 1;
        for &member in share {
            if phases.contains(&Sum) && strategy == 1 {
                push(
                    member,
                    build_collective(K::AllReduce, BYTES).group("source"),
                );
            } else if phases.contains(&Sum) && !alone {
                push(
                    member,
                    build_collective(K::Reduce, BYTES)
                        .group(s)
                        .with_collective_root(share[0]),
                );
            }
        }
        if phases.contains(&Inter) {
            push(share[0], build_send(members + share[0], BYTES));
            push(members + share[0], build_receive(share[0], BYTES));
        }
        if phases.contains(&AdapterSum) && strategy == 2 && adapters > 1 {
            push(
                members + share[0],
                build_collective(K::AllReduce, BYTES).group("adapters"),
            );
        }
        for member in share
            .iter()
            .map(|member| members + member)
            .filter(|_| !alone)
        {
            if phases.contains(&Broadcast) {
                push(
                    member,
                    build_collective(K::Broadcast, BYTES)
                        .group(d)
                        .with_collective_root(members + share[0]),
                );
            }
        }
    }
    let groups: Vec<(&str, &[u32])> = groups
        .iter()
        .map(|(n, m)| (n.as_str(), m.as_slice()))
        .collect();
    let workload = try_build_rank_job(&ranks, &groups).unwrap();
    let options = ReplayOptions::default_with_changes(|o| {
        o.map = Some(
            [
                list_cores_in_ring_order(members, 0),
                list_cores_in_ring_order(members, 4),
            ]
            .concat(),
        );
    });
    replay_with(&workload, &build_tile_machine_with_duplex(duplex), &options).makespan_ps()
}

const ALL: [InterGroupTransferPhase; 4] = [Sum, Inter, AdapterSum, Broadcast];

/// Eq. 7 and 8 assume one adapter: each phase starts when the previous phase has ended everywhere.
/// With several adapters, one share may start its broadcast before the last share has its bytes,
/// and messages contend. The sum is then only a bound.
#[test]
fn a_handover_takes_the_sum_of_its_phases() {
    for duplex in ["full", "half"] {
        for (strategy, members, adapters) in [
            (1, 12, 1),
            (2, 12, 1),
            (1, 13, 1),
            (2, 13, 1),
            (1, 12, 3),
            (2, 12, 3),
        ] {
            let one = |phase| {
                replay_time_of_group_transfer_phases(duplex, strategy, members, adapters, &[phase])
            };
            let sum: u64 = ALL.map(one).iter().sum();
            let all =
                replay_time_of_group_transfer_phases(duplex, strategy, members, adapters, &ALL);
            // Members of a ring of neighbours end a reduction together. In other groups, some begin the next phase
            // earlier.
            if adapters == 1 && members == 12 {
                assert_eq!(all, sum, "{duplex} {strategy} {members}");
            } else {
                let least = if adapters == 1 { 0.97 } else { 0.5 };
                let inside = all <= sum && all as f64 >= least * sum as f64;
                assert!(
                    inside,
                    "{duplex} {strategy} {members} {adapters}: {all} {sum}"
                );
            }
        }
    }
}

/// In the paper, strategy 1 is faster if the source is a ring of neighbours, and strategy 2 if it
/// is not. With full-duplex links, the second claim is false: a thirteenth core adds two links to
/// one step, and the all-reduce takes 2.5 % longer. If both directions share a link, messages in
/// opposite directions contend, the all-reduce takes twice the time, and strategy 2 is faster.
/// Strategy 2 is best with six adapters, where the all-reduce of the adapters and the work of the
/// shares take about the same time.
#[test]
fn the_faster_adapter_strategy_depends_on_ring_and_duplex() {
    let counts = [1, 2, 3, 4, 6, 12];
    let best = |duplex: &str, strategy: u32, members: u32| {
        let times = counts.map(|adapters| {
            (
                replay_time_of_group_transfer_phases(duplex, strategy, members, adapters, &ALL),
                adapters,
            )
        });
        times.into_iter().min().unwrap()
    };
    let [first, second] = [1, 2].map(|strategy| best("full", strategy, 12));
    assert!(first.0 < second.0, "{first:?} {second:?}");
    assert_eq!(
        best("half", 1, 12),
        first,
        "a ring of neighbours goes one way round"
    );
    // With shares of three members, more adapters make the broadcast shorter, until their messages
    // share links.
    assert_eq!(first.1, 4);
    let [first, second] = [1, 2].map(|strategy| best("full", strategy, 13));
    assert!(first.0 < second.0, "{first:?} {second:?}");
    let [first, second] = [1, 2].map(|strategy| best("half", strategy, 13));
    assert!(second.0 < first.0, "{first:?} {second:?}");
    assert_eq!(second.1, 6);
    let sum = |duplex, members| {
        replay_time_of_group_transfer_phases(duplex, 1, members, 1, &[Sum]) as f64
    };
    let near =
        |found: f64, ratio: f64| assert!((found / ratio - 1.0).abs() < 0.02, "{found} {ratio}");
    near(sum("full", 13) / sum("full", 12), 1.025);
    near(sum("half", 13) / sum("half", 12), 2.03);
    // The paper reports 3.08 and 1.23, for sizes, rings and trees that it does not publish.
    near(second.0 as f64, 4.655e6);
}

/// Tests the numbers in the table of `docs/validation.md`, which gives the time of a transfer in microseconds for each
/// number of adapters. In a ring, strategy 1 becomes faster with more adapters, until shares have three members.
/// Strategy 2 is faster with thirteen cores and half-duplex links. It is best with six adapters, and gets worse with
/// more, because the all-reduce among adapters grows, as the paper says about its Fig. 12.
#[test]
fn times_by_the_number_of_adapters_are_those_of_the_table() {
    let counts = [1, 2, 3, 4, 6, 12];
    let row = |duplex: &str, strategy: u32, members: u32| {
        let times = counts.map(|adapters| {
            replay_time_of_group_transfer_phases(duplex, strategy, members, adapters, &ALL)
        });
        let cells = times.map(|ps| format!("{:.2}", ps as f64 / 1e6));
        let name = if members == 12 { "ring of 12" } else { "13" };
        format!(
            "| {name}, {duplex} duplex | {strategy} | {} |",
            cells.join(" | ")
        )
    };
    let rows = [("full", 12), ("full", 13), ("half", 12), ("half", 13)];
    let rows = rows.map(|(duplex, members)| [1, 2].map(|strategy| row(duplex, strategy, members)));
    let table = rows.concat().join("\n");
    let docs = include_str!("../../../docs/validation/tiles.md");
    assert!(docs.contains(&table), "the table is\n{table}");
}
