//! Tests collectives that are replayed in isolation so that later ones reuse the results: times equal those with
//! messages, whatever happens in between.

use super::lines::{
    TestTraceNode, build_collective, build_kernel, build_node, build_receive, build_send,
};
use super::rig::{ObserverLog, build_job_from_rank_nodes};
use super::tile_groups::{Random, build_dies_machine};
use crate::corpus::is_whole_corpus_requested;
use chakram::engine::NetworkModel::Exclusive;
use chakram::engine::{CompiledReplay, CompletedReplayTotals, InstanceId, ReplayOptions};
use chakram::extend::LinkAndPortBusyTimes;
use chakram::ids::{NodeIndex, Npu};
use chakram::machine::Machine;
use chakram::report::{CollectiveRecord, Observer};
use chakram::trace::{CollectiveKind as K, MemoryLocation, Op};
use chakram::units::Time;
use chakram::workload::{NodeKind, Workload};

/// The busy time of each link, as text.
#[derive(Debug, Default, PartialEq)]
struct LinkBusyTimesText(String);

impl Observer for LinkBusyTimesText {
    fn on_issued(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}
    fn on_completed(&mut self, _: Time, _: InstanceId, _: NodeIndex, _: NodeKind) {}
    fn on_collective_ended(&mut self, _: &CollectiveRecord) {}
    fn on_link_and_memory_port_busy_times(&mut self, occupancy: &LinkAndPortBusyTimes) {
        self.0 = format!("{occupancy:?}");
    }
}

/// Replays the workload over exclusive links. Returns the outcome, the events in an order
/// independent of the engine's, and the records of collectives without the method that replayed
/// them.
fn replay_exclusive_links(
    workload: &Workload,
    machine: &Machine,
    cores: &[u32],
    stepwise: bool,
) -> (CompletedReplayTotals, (ObserverLog, LinkBusyTimesText)) {
    let options = ReplayOptions::default_with_changes(|o| {
        o.map = Some(cores.iter().copied().map(Npu).collect());
        (o.network, o.stepwise) = (Some(Exclusive), stepwise);
    });
    let prepared = CompiledReplay::new(workload, machine, &options).unwrap();
    let observers = (ObserverLog::default(), LinkBusyTimesText::default());
    let (outcome, (mut log, busy)) = prepared.run(observers).unwrap();
    log.events.sort_unstable();
    let same = |record: CollectiveRecord| CollectiveRecord {
        stepwise: false,
        materialized: false,
        messages: 0,
        ..record
    };
    log.records = log.records.into_iter().map(same).collect();
    log.records
        .sort_by_key(|record| (record.end, record.last_start, record.group, record.buffer));
    (outcome, (log, busy))
}

/// Returns a job of two stages of eight ranks, in tensor groups of four and replicas of two. The
/// ranks do the same in each of several passes: all-reduces, gathers, all-to-alls and broadcasts,
/// each after kernels during which links become idle. At random times there are also kernels that
/// last longer on some ranks in some passes, loads and stores through ports, and messages between
/// stages.
fn generate_random_two_stage_ranks(random: &mut Random) -> Vec<Vec<TestTraceNode>> {
    let mut ranks = vec![Vec::<TestTraceNode>::new(); 16];
    let (skew, memory) = (random.below(3), random.below(3));
    let plans: [Vec<[u64; 4]>; 2] = std::array::from_fn(|_| {
        let steps = 3 + random.below(5);
        let step = |_| [0; 4].map(|_| random.below(1 << 20));
        (0..steps).map(step).collect()
    });
    let passes = 8 + random.below(8);
    for pass in 0..passes {
        let late = random.below(8);
        for rank in 0..16_u32 {
            let (stage, member) = (rank / 8, rank % 8);
            let lines = &mut ranks[rank as usize];
            if stage > 0 {
                lines.push(build_receive(rank - 8, 600).tag(pass as i32));
            }
            let first = lines.len() as u64;
            for [what, size, after, which] in &plans[stage as usize] {
                let tensor = ["t0", "t1", "t2", "t3"][(rank / 4) as usize];
                let all = ["d0", "d1"][stage as usize];
                // With separate lanes, members may become ready for two collectives in either order.
                let is_wide = which % 4 == 0;
                let of = |kind, bytes| {
                    let (name, lane) = if is_wide { (all, 6) } else { (tensor, 4) };
                    build_collective(kind, bytes).group(name).on_lane(lane)
                };
                let bytes = [1600, 6400][(size % 2) as usize];
                let root = if is_wide { 8 * stage } else { rank / 4 * 4 };
                let wait = if u64::from(member) == late { skew } else { 0 };
                let one = match what % 8 {
                    0 | 1 => of(K::AllReduce, bytes),
                    2 => of(K::AllGather, bytes / 8),
                    3 => of(K::AllToAll, bytes),
                    4 => of(K::Broadcast, bytes).with_collective_root(root),
                    5 if memory > 0 => build_node(Op::Memory {
                        store: size % 2 == 0,
                        place: MemoryLocation::Remote,
                        bytes: 400 + size % 3 * 300,
                        in_switch: false,
                    })
                    .on_lane(7 + i64::from(which % 2 == 0)),
                    _ => build_kernel(1),
                };
                // Nodes run after a kernel of their own; loads and the like may run at any time in the pass.
                let before = lines.len() as u64;
                let begins = if before == first && before > 0 {
                    vec![before]
                } else if after % 3 == 0 && before > first {
                    vec![first + 1 + after % (before - first)]
                } else {
                    Vec::from_iter((before > 0).then_some(before))
                };
                lines.push(
                    build_kernel(20 + size % 40 + 3 * wait)
                        .on_lane(i64::from(which % 2 == 0))
                        .after(&begins),
                );
                lines.push(one.after(&[before + 1]));
            }
            if stage == 0 {
                let last = lines.len() as u64;
                // Messages run at the end of a pass, or at the beginning of every third pass.
                let begins = pass.is_multiple_of(3);
                let after = if begins { first + 1 } else { last };
                lines.push(
                    build_send(rank + 8, 600)
                        .tag(pass as i32)
                        .on_lane(9)
                        .after(&[after]),
                );
            }
        }
    }
    ranks
}

/// Returns the number of collectives answered without messages, and the number of such answers withdrawn.
fn compare_jobs_and_count_rehearsals(seeds: std::ops::Range<u64>) -> [u64; 2] {
    let tensor = [0, 4, 8, 12].map(|first| (first..first + 4).collect::<Vec<u32>>());
    let stage = [0, 8].map(|first| (first..first + 8).collect::<Vec<u32>>());
    let names = ["t0", "t1", "t2", "t3", "d0", "d1"];
    let members = tensor.iter().chain(&stage);
    let groups: Vec<(&str, &[u32])> = names.iter().copied().zip(members.map(|m| &m[..])).collect();
    let mut all = [0; 2];
    for seed in seeds {
        let random = &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let workload = build_job_from_rank_nodes(&generate_random_two_stage_ranks(random), &groups);
        let shape = ["mesh", "torus"][random.below(2) as usize];
        let dies = [[1, 1], [2, 2]][random.below(2) as usize];
        let machine = build_dies_machine(shape, dies, [8 / dies[0], 4 / dies[1]], 16);
        let mut order: Vec<u32> = (0..32).collect();
        if random.below(4) == 0 {
            for i in (1..order.len()).rev() {
                order.swap(i, random.below(i as u64 + 1) as usize);
            }
        }
        order.truncate(16);
        let [(answered, a), (stepwise, b)] = [false, true]
            .map(|stepwise| replay_exclusive_links(&workload, &machine, &order, stepwise));
        let what = format!("seed {seed}, {shape} of {dies:?} dies: {answered:?} {stepwise:?}");
        assert_eq!(answered.makespan, stepwise.makespan, "{what}");
        let ([a, b], [busy, busy_stepwise]) = ([a.0, b.0], [a.1, b.1]);
        assert_eq!(busy, busy_stepwise, "{what}");
        let differ = a.events.iter().zip(&b.events).find(|(a, b)| a != b);
        assert!(a.events == b.events, "{what}: {differ:?}");
        assert!(a.records == b.records, "{what}");
        assert_eq!(stepwise.closed, 0);
        all[0] += answered.closed;
        all[1] += answered.unfolded;
    }
    all
}

#[test]
fn rehearsed_collectives_end_as_with_every_message_simulated() {
    let seeds = if is_whole_corpus_requested() { 120 } else { 30 };
    let [answered, taken_back] = compare_jobs_and_count_rehearsals(0..seeds);
    // With this seed, a collective is withdrawn after another one has reserved a link that the first had finished
    // using.
    compare_jobs_and_count_rehearsals(1595..1596);
    // Both cases occur: answers that remain valid, and answers that other traffic invalidates.
    assert!(
        answered > 2000 * seeds / 120 && taken_back > 200 * seeds / 120,
        "{answered} {taken_back}"
    );
}

#[test]
#[ignore = "long: 20,000 random jobs"]
fn rehearsals_of_many_random_jobs_match_every_message_simulated() {
    compare_jobs_and_count_rehearsals(1000..21_000);
}

/// Checks the links of a line of four with five all-reduces, each after kernels during which all links become idle. The
/// fourth member sends to the first over three links of 1 ns, so a ring of six steps of 400 B at 1000 GB/s has no
/// closed form. Each link is busy for as long as it is with simulated messages.
#[test]
fn links_are_as_busy_as_message_by_message() {
    let line = build_dies_machine("mesh", [1, 1], [4, 2], 8);
    let mut lines: Vec<TestTraceNode> = Vec::new();
    for round in 0..5 {
        lines.push(build_kernel(20).after(&[2 * round]).on_lane(1));
        lines.push(build_collective(K::AllReduce, 1600).after(&[2 * round + 1]));
    }
    lines[0].after.clear();
    let workload = build_job_from_rank_nodes(&vec![lines; 4], &[]);
    let [(answered, (_, busy)), (stepwise, (_, expected))] = [false, true]
        .map(|stepwise| replay_exclusive_links(&workload, &line, &[0, 1, 2, 3], stepwise));
    assert_eq!(busy, expected);
    assert_eq!(answered.makespan, stepwise.makespan);
    // The first run shows that the collective repeats. At the end of the second run, its arrival pattern is replayed in
    // isolation; later runs reuse this result and reserve their links until the last member arrives.
    assert_eq!((answered.stepwise, answered.closed), (2, 3));
    assert_eq!(
        (answered.messages, stepwise.messages),
        (2 * 6 * 4, 5 * 6 * 4),
        "a rehearsal is no traffic"
    );
}
