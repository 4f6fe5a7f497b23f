//! Tests equal ranks that are simulated once for all: the result is the same as if each rank were simulated, with fewer
//! events while the ranks stay together.

use super::lines::{
    TestTraceNode, build_collective, build_kernel, build_node, build_receive, build_send,
};
use super::rig::{ObserverLog, build_job_from_rank_nodes};
use crate::corpus::is_whole_corpus_requested;
use chakram::engine::NetworkModel::{ContentionFree, Exclusive, Links};
use chakram::engine::{
    CompiledReplay, CompletedReplayTotals, EventAndTileGroupCounts, InstanceId, NetworkModel,
    ReplayOptions,
};
use chakram::ids::{NodeIndex, Npu};
use chakram::machine::Machine;
use chakram::report::{CollectiveRecord, Observer};
use chakram::trace::{CollectiveKind as K, MemoryLocation, Op};
use chakram::units::Time;
use chakram::workload::{NodeKind, Workload};

/// A log, and the loop's counters.
#[derive(Default)]
struct ObserverLogWithLoopCounters(ObserverLog, EventAndTileGroupCounts);

impl Observer for ObserverLogWithLoopCounters {
    fn on_issued(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        self.0.on_issued(now, instance, node, kind);
    }
    fn on_completed(&mut self, now: Time, instance: InstanceId, node: NodeIndex, kind: NodeKind) {
        self.0.on_completed(now, instance, node, kind);
    }
    fn on_collective_ended(&mut self, record: &CollectiveRecord) {
        self.0.on_collective_ended(record);
    }
    fn on_event_loop_statistics(&mut self, counts: &EventAndTileGroupCounts) {
        self.1 = counts.clone();
    }
}

/// All results of a replay, in an order that does not depend on the order of notifications within an instant.
#[derive(Debug, PartialEq)]
struct OrderFreeReplayResults {
    outcome: CompletedReplayTotals,
    events: Vec<(u64, bool, u32, u32)>,
    records: Vec<String>,
}

fn replay_with_aggregation(
    workload: &Workload,
    machine: &Machine,
    (network, cores): (NetworkModel, &[u32]),
    aggregate: bool,
) -> (OrderFreeReplayResults, EventAndTileGroupCounts) {
    let options = ReplayOptions::default_with_changes(|o| {
        o.map = Some(cores.iter().copied().map(Npu).collect());
        (o.network, o.aggregate) = (Some(network), aggregate);
    });
    let prepared = CompiledReplay::new(workload, machine, &options).unwrap();
    let (outcome, log) = prepared
        .run(ObserverLogWithLoopCounters::default())
        .unwrap();
    let ObserverLogWithLoopCounters(mut log, counts) = log;
    log.events.sort_unstable();
    let mut records: Vec<String> = log.records.iter().map(|r| format!("{r:?}")).collect();
    records.sort_unstable();
    let answer = OrderFreeReplayResults {
        outcome,
        events: log.events,
        records,
    };
    (answer, counts)
}

/// Runs the job both ways, requires equal results, and returns the loop's counters: first with each
/// rank simulated, then with groups.
fn check_aggregated_replay(
    workload: &Workload,
    machine: &Machine,
    (network, cores): (NetworkModel, &[u32]),
    what: &str,
) -> [EventAndTileGroupCounts; 2] {
    let [(alone, a), (together, b)] =
        [false, true].map(|way| replay_with_aggregation(workload, machine, (network, cores), way));
    assert!(
        alone == together,
        "{what}, {network}: {:?} {:?}\n{:?}\n{:?}",
        alone.outcome,
        together.outcome,
        first_event_difference(&alone.events, &together.events),
        b.split
    );
    assert_eq!((a.groups, a.ranks), (0, 0));
    [a, b]
}

type LogEvent = (u64, bool, u32, u32);

fn first_event_difference(a: &[LogEvent], b: &[LogEvent]) -> Option<(LogEvent, LogEvent)> {
    a.iter()
        .copied()
        .zip(b.iter().copied())
        .find(|(a, b)| a != b)
}

/// Returns a machine of dies of cores. Links have 1000 GB/s and 1 ns, links between dies have a quarter of that rate,
/// and edge memory is at the left of row 0 and the right of row 1 of each die.
pub fn build_dies_machine(shape: &str, dies: [u32; 2], cores: [u32; 2], lanes: u32) -> Machine {
    let borders = if dies == [1, 1] {
        ""
    } else {
        "die_bandwidth = \"250 GB/s\"\ndie_latency = \"3 ns\""
    };
    let text = format!(
        r#"name = "m"
[npu.core]
memory_bandwidth = "1 TB/s"
memory_latency = "0 ns"
memory_capacity = "64 MB"
lanes = {lanes}
host_lanes = 1
peak = {{ fp16 = "16 TFLOP/s" }}
[tiles]
dies = {dies:?}
cores = {cores:?}
shape = "{shape}"
link_bandwidth = "1000 GB/s"
link_latency = "1 ns"
{borders}
[tiles.dram]
left = "0"
right = "1"
bandwidth = "250 GB/s"
latency = "10 ns"
capacity = "64 GB"
"#
    );
    Machine::parse(&text, "m.toml").unwrap()
}

/// Random numbers from a linear congruential generator.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

const NAMES: [&str; 16] = [
    "g0", "g1", "g2", "g3", "g4", "g5", "g6", "g7", "g8", "g9", "g10", "g11", "g12", "g13", "g14",
    "g15",
];

/// The lines of each rank, and the declared groups with their names.
type RankLinesAndGroups = (Vec<Vec<TestTraceNode>>, Vec<(&'static str, Vec<u32>)>);

/// Returns the lines and the groups of stages of eight ranks in tensor groups and replicas. The ranks do random work on
/// random lanes and after random nodes: kernels, all-reduces over the tensor group, the replicas and all ranks, loads
/// and stores, and messages to and from the neighbouring stages.
fn generate_random_pipeline_ranks(random: &mut Random) -> RankLinesAndGroups {
    const MEMBERS: u32 = 8;
    let count = 1 + random.below(3) as u32;
    let tensor = 1 << random.below(4);
    let mut groups: Vec<(&'static str, Vec<u32>)> = Vec::new();
    for stage in 0..count {
        for replica in 0..MEMBERS / tensor {
            let first = stage * MEMBERS + replica * tensor;
            groups.push((NAMES[groups.len() % 16], (first..first + tensor).collect()));
        }
    }
    // There are not enough names for many groups of one rank, which therefore have no collectives.
    let has_groups = groups.len() <= 16;
    let mut ranks = vec![Vec::<TestTraceNode>::new(); (count * MEMBERS) as usize];
    let passes = 1 + random.below(3);
    let lanes = 1 + random.below(3) as i64;
    for pass in 0..passes {
        for stage in 0..count {
            let steps = 1 + random.below(5);
            let plan: Vec<[u64; 4]> = (0..steps)
                .map(|_| [0; 4].map(|_| random.below(1 << 20)))
                .collect();
            for member in 0..MEMBERS {
                let rank = stage * MEMBERS + member;
                let lines = &mut ranks[rank as usize];
                let tag = pass as i32;
                if stage > 0 {
                    lines.push(build_receive(rank - MEMBERS, 1000 + 500 * pass).tag(tag));
                }
                for [what, size, lane, after] in &plan {
                    let on = (lane % lanes as u64) as i64;
                    let one = match what % 6 {
                        0 | 1 => build_kernel(100 + size % 900).on_lane(on),
                        2 if has_groups && tensor > 1 => {
                            let group = (stage * (MEMBERS / tensor) + member / tensor) as usize;
                            build_collective(K::AllReduce, 800 + size % 3000)
                                .group(groups[group].0)
                                .on_lane(4)
                        }
                        3 => build_node(Op::Memory {
                            store: size % 2 == 0,
                            place: MemoryLocation::Remote,
                            bytes: 500 + size % 1500,
                            in_switch: false,
                        })
                        .on_lane(5 + on),
                        4 if lanes == 1 => build_kernel(50).on_lane(on).delayed(size % 300),
                        _ => build_kernel(200).on_lane(on),
                    };
                    let before = lines.len() as u64;
                    // The node follows the last node, an earlier node, or a received message.
                    let after = if before == 0 {
                        Vec::new()
                    } else if after % 3 == 0 {
                        vec![1 + after % before]
                    } else {
                        vec![before]
                    };
                    lines.push(one.after(&after));
                }
                if stage + 1 < count {
                    let last = lines.len() as u64;
                    let sent = build_send(rank + MEMBERS, 1000 + 500 * pass)
                        .tag(tag)
                        .on_lane(8 + alternating_lane_of_pass(pass));
                    lines.push(sent.after(&[last]));
                }
            }
        }
    }
    // At the end, the replicas of all stages may share an all-reduce.
    if random.below(2) == 0 {
        for lines in &mut ranks {
            let last = lines.len() as u64;
            lines.push(
                build_collective(K::AllReduce, 4000)
                    .on_lane(4)
                    .after(&[last]),
            );
        }
    }
    (ranks, groups)
}

fn alternating_lane_of_pass(pass: u64) -> i64 {
    (pass % 2) as i64
}

/// Tests random stages at random positions of meshes and tori, with three network models. Returns
/// the number of groups, the number of groups that stayed together, and the number of rejoined
/// parts.
fn check_random_stages_and_count_groups(seeds: std::ops::Range<u64>) -> [u64; 3] {
    let mut all = [0; 3];
    for seed in seeds {
        let random = &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (ranks, groups) = generate_random_pipeline_ranks(random);
        let declared: Vec<(&str, &[u32])> = groups.iter().map(|(n, m)| (*n, &m[..])).collect();
        let workload = build_job_from_rank_nodes(&ranks, &declared);
        let shape = ["mesh", "torus"][random.below(2) as usize];
        let dies = [[1, 1], [2, 2]][random.below(2) as usize];
        let cores = [8 / dies[0], 4 / dies[1]];
        let lanes = 3 + random.below(12) as u32;
        let machine = build_dies_machine(shape, dies, cores, lanes);
        let mut order: Vec<u32> = (0..32).collect();
        if random.below(2) == 0 {
            for i in (1..order.len()).rev() {
                order.swap(i, random.below(i as u64 + 1) as usize);
            }
        }
        order.truncate(ranks.len());
        for network in [Exclusive, Links, ContentionFree] {
            let what = format!("seed {seed}, {shape} of {dies:?}");
            let counts = check_aggregated_replay(&workload, &machine, (network, &order), &what);
            all[0] += u64::from(counts[1].groups);
            all[1] += u64::from(counts[1].together);
            all[2] += counts[1].rejoined;
        }
    }
    all
}

#[test]
fn one_rank_for_all_gives_the_answer_of_each_by_itself() {
    let seeds = if is_whole_corpus_requested() { 150 } else { 50 };
    let [groups, together, rejoined] = check_random_stages_and_count_groups(0..seeds);
    // With this seed, a sum and a kernel wait for the same lane, and each rank runs them in its own order.
    check_random_stages_and_count_groups(1592..1593);
    // All cases occur: groups that stay together, that split, and that are rejoined.
    assert!(0 < together && together < groups, "{together} of {groups}");
    assert!(rejoined > 100 * seeds / 150, "{rejoined}");
}

#[test]
#[ignore = "long: 20,000 random jobs over three networks"]
fn aggregated_replay_equals_single_ranks_in_many_random_jobs() {
    check_random_stages_and_count_groups(1000..21_000);
}

/// Sixteen cores in a closed row form a ring of neighbours. All are equal, so one of them runs 20 kernels in each of
/// four rounds with a sum after each round: 84 nodes instead of 1,344. If a sum has a closed form, its end takes one
/// event in addition to the node's own.
#[test]
fn sixteen_that_stay_together_take_a_tenth_of_the_events() {
    let torus = build_dies_machine("torus", [1, 1], [16, 2], 8);
    let build_rounds = |rounds| {
        let mut lines = Vec::new();
        for _ in 0..rounds {
            for _ in 0..20 {
                let last = lines.len() as u64;
                let after: Vec<u64> = (last > 0).then_some(last).into_iter().collect();
                lines.push(build_kernel(100).after(&after));
            }
            let last = lines.len() as u64;
            lines.push(
                build_collective(K::AllReduce, 160_000)
                    .on_lane(1)
                    .after(&[last]),
            );
        }
        build_job_from_rank_nodes(&vec![lines; 16], &[])
    };
    let workload = build_rounds(4);
    let row: Vec<u32> = (0..16).collect();
    let [alone, together] =
        check_aggregated_replay(&workload, &torus, (ContentionFree, &row), "a ring");
    assert_eq!(
        (together.groups, together.ranks, together.together),
        (1, 16, 1)
    );
    assert!(
        10 * together.events <= alone.events,
        "{together:?} {alone:?}"
    );
    // With exclusive links, only the first sum and the rehearsal of the second still simulate all members' messages:
    // each has 30 steps of 16 messages. Each other sum takes one event.
    let workload = build_rounds(160);
    let [alone, together] =
        check_aggregated_replay(&workload, &torus, (Exclusive, &row), "a ring, exclusive");
    assert_eq!(together.together, 1);
    assert!(
        10 * together.events <= alone.events,
        "{together:?} {alone:?}"
    );
}

/// On a line of four the path from the last core back to the first has three links, so the first
/// core ends the sum last. The group splits there, and the kernels before the sum run once for all.
#[test]
fn a_group_on_a_line_splits_at_a_sum_that_ends_unequally() {
    let line = build_dies_machine("mesh", [1, 1], [4, 2], 8);
    let lines = vec![
        build_kernel(100),
        build_collective(K::AllReduce, 4000).on_lane(1).after(&[1]),
        build_kernel(50).after(&[2]),
    ];
    let workload = build_job_from_rank_nodes(&vec![lines; 4], &[]);
    let [_, together] =
        check_aggregated_replay(&workload, &line, (Exclusive, &[0, 1, 2, 3]), "a line");
    assert_eq!((together.groups, together.together), (1, 0));
    let split = together.split.expect("it was split");
    assert_eq!(split.node, "n2");
    assert_ne!(split.ahead, split.behind);
}

/// A load on which some cores wait longer splits a group, and a sum around a ring of neighbours
/// joins it again. The last core to arrive sends its first part to the next core at once, which
/// forwards it, and so on around the ring, so all cores end at the same time. The ports are at
/// (0, 0) and (3, 1), and two cores of the row load at each port. Kernels before the load run once
/// for all, kernels between the load and the sum run twice, and kernels after the sum run once
/// again.
#[test]
fn a_sum_around_a_ring_rejoins_a_split_group() {
    let ring = build_dies_machine("torus", [1, 1], [4, 2], 8);
    let load = build_node(Op::Memory {
        store: false,
        place: MemoryLocation::Remote,
        bytes: 1000,
        in_switch: false,
    });
    let mut lines = vec![build_kernel(100)];
    for round in 0..3 {
        let first = lines.len() as u64;
        lines.push(load.clone().after(&[first]).on_lane(1));
        lines.push(build_kernel(50).after(&[first + 1]));
        lines.push(
            build_collective(K::AllReduce, 16_000)
                .on_lane(2)
                .after(&[first + 2]),
        );
        for behind in 0..round + 5 {
            lines.push(build_kernel(70).after(&[first + 3 + behind]));
        }
    }
    let workload = build_job_from_rank_nodes(&vec![lines; 4], &[]);
    let [_, together] =
        check_aggregated_replay(&workload, &ring, (Exclusive, &[0, 1, 2, 3]), "a ring");
    assert_eq!((together.groups, together.together), (1, 0));
    assert_eq!(together.rejoined, 3, "{together:?}");
    // On a line the path back is longer, so the cores end at different times and are not rejoined.
    let line = build_dies_machine("mesh", [1, 1], [4, 2], 8);
    let [_, apart] =
        check_aggregated_replay(&workload, &line, (Exclusive, &[0, 1, 2, 3]), "a line");
    assert_eq!(apart.together, 0);
}

/// Two ranks have completed equally many nodes, but not the same ones: when a sum ends for both, each rank has received
/// from a different sender. Their states differ, so they are not joined.
#[test]
fn ranks_with_equally_many_but_different_nodes_are_not_joined() {
    let ring = build_dies_machine("torus", [1, 1], [4, 2], 8);
    let receiver = vec![
        build_receive(2, 1000),
        build_receive(3, 1000),
        build_kernel(50).on_lane(1).after(&[1]),
        build_kernel(70).on_lane(2).after(&[2]),
        build_collective(K::AllReduce, 400_000)
            .group("pair")
            .on_lane(3),
        build_kernel(90).on_lane(4).after(&[3, 4, 5]),
    ];
    // Rank 2 sends to rank 0 at once and to rank 1 after the sum, rank 3 in the reverse order.
    let sender = |first: u32, second: u32| {
        vec![
            build_send(first, 1000).on_lane(1),
            build_kernel(5000),
            build_send(second, 1000).on_lane(2).after(&[2]),
        ]
    };
    let ranks = [receiver.clone(), receiver, sender(0, 1), sender(1, 0)];
    let workload = build_job_from_rank_nodes(&ranks, &[("pair", &[0, 1])]);
    for network in [ContentionFree, Exclusive] {
        let [_, counts] =
            check_aggregated_replay(&workload, &ring, (network, &[0, 1, 4, 5]), "a pair");
        // The two senders stay together.
        let found = (counts.groups, counts.together, counts.rejoined);
        assert_eq!(found, (2, 1, 0), "{counts:?}");
    }
}

/// Two ranks have ended the same nodes, but began other nodes in different orders. Each replies first to the sender
/// that it heard from first, on one lane, and these replies of 1 us are in flight when a sum ends for both.
#[test]
fn ranks_that_began_nodes_in_other_orders_are_not_joined() {
    let ring = build_dies_machine("torus", [1, 1], [4, 2], 8);
    let answering = vec![
        build_receive(2, 1000),
        build_receive(3, 1000),
        build_send(2, 1_000_000).on_lane(1).after(&[1]),
        build_send(3, 1_000_000).on_lane(1).after(&[2]),
        build_collective(K::AllReduce, 400_000)
            .group("pair")
            .on_lane(3),
        build_kernel(90).on_lane(4).after(&[3, 5]),
    ];
    let asking = |first: u32, second: u32| {
        vec![
            build_send(first, 1000).on_lane(1),
            build_kernel(100),
            build_send(second, 1000).on_lane(2).after(&[2]),
            build_receive(first, 1_000_000),
            build_receive(second, 1_000_000),
        ]
    };
    let ranks = [answering.clone(), answering, asking(0, 1), asking(1, 0)];
    let workload = build_job_from_rank_nodes(&ranks, &[("pair", &[0, 1])]);
    for network in [ContentionFree, Exclusive] {
        let [_, counts] =
            check_aggregated_replay(&workload, &ring, (network, &[0, 1, 4, 5]), "a pair");
        assert!(
            counts.groups > counts.together && counts.rejoined == 0,
            "{counts:?}"
        );
    }
}

/// A sum that shares its lane with kernels starts when the last member is ready, while a round is still posting its
/// nodes. If no other node requests the lane in that round, one rank still runs for all. A kernel that requests the
/// lane splits the group.
#[test]
fn sums_on_a_shared_lane_split_groups_only_if_kernels_contend_for_it() {
    let ring = build_dies_machine("torus", [1, 1], [4, 2], 8);
    let turns = |beside: bool| {
        let mut lines = vec![
            build_kernel(100).on_lane(0),
            build_kernel(30).on_lane(1).after(&[1]),
        ];
        lines.push(
            build_collective(K::AllReduce, 16_000)
                .on_lane(0)
                .after(&[2]),
        );
        if beside {
            lines.push(build_kernel(40).on_lane(0).after(&[2]));
        }
        lines.push(build_kernel(20).on_lane(1).after(&[3]));
        build_job_from_rank_nodes(&vec![lines; 4], &[])
    };
    let row = [0, 1, 2, 3];
    for network in [ContentionFree, Exclusive] {
        let [_, counts] =
            check_aggregated_replay(&turns(false), &ring, (network, &row), "a sum alone");
        assert_eq!((counts.groups, counts.together), (1, 1), "{counts:?}");
        let [_, counts] =
            check_aggregated_replay(&turns(true), &ring, (network, &row), "a sum and a kernel");
        assert_eq!((counts.groups, counts.together), (1, 0), "{counts:?}");
    }
}

/// Loads of four cores at one port end one after another; at separate ports they end together.
#[test]
fn loads_at_one_port_split_a_group_of_cores() {
    let tiles = build_dies_machine("mesh", [1, 1], [4, 2], 8);
    let load = build_node(Op::Memory {
        store: false,
        place: MemoryLocation::Remote,
        bytes: 1000,
        in_switch: false,
    });
    let lines = vec![
        build_kernel(100),
        load.after(&[1]).on_lane(1),
        build_kernel(50).after(&[2]),
    ];
    // The ports are at (0, 0) and (3, 1), with two cores or one core at each.
    let four = build_job_from_rank_nodes(&vec![lines.clone(); 4], &[]);
    let [_, counts] =
        check_aggregated_replay(&four, &tiles, (Exclusive, &[0, 1, 2, 3]), "two at a port");
    assert_eq!(counts.together, 0);
    let two = build_job_from_rank_nodes(&vec![lines; 2], &[]);
    let [_, counts] =
        check_aggregated_replay(&two, &tiles, (Exclusive, &[0, 7]), "one at each port");
    assert_eq!(counts.together, 1);
}
