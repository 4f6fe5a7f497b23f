//! Laws of reports and networks, on random machines and jobs: where the time of an NPU goes, against a sweep over what an
//! observer was told; and that no network model with contention is faster than the one without.
//!
//! Ten thousand of each: `cargo test --release --test it physics::laws -- --ignored`.

use super::lines::{Line, call, kernel, receive, send};
use super::rig::{Dim, Replay, job, machine_of, replay_with};
use chakram::engine::{CompiledReplay, NetworkModel, ReplayOptions};
use chakram::machine::{AlgorithmChoice, ChunkPipeline, CollectiveAlgorithm, Machine};
use chakram::report;
use chakram::topology::{DimensionShape, SwitchingMode};
use chakram::trace::{CollectiveKind, Op};
use chakram::units::{Bytes, Span};
use chakram::workload::Workload;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// SplitMix64.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// So many of `0..ranks`, in order.
    fn members(&mut self, ranks: u32, count: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..ranks).collect();
        while all.len() > count {
            all.remove(self.below(all.len()));
        }
        all
    }
}

/// One to three dimensions and at most 16 NPUs.
fn machine(draw: &mut Draw) -> (Vec<Dim>, Machine) {
    let mut dims = Vec::new();
    let mut npus = 1;
    for _ in 0..1 + draw.below(3) {
        let size = 2 + draw.below(4) as u32;
        if npus * size > 16 {
            break;
        }
        npus *= size;
        dims.push(Dim {
            shape: draw.one(&DimensionShape::ALL).0,
            size,
            ps_per_byte: draw.one(&[4, 10, 20, 50]),
            link_ns: draw.one(&[0, 10, 500]),
            algorithm: draw.one(&CollectiveAlgorithm::ALL).0,
        });
    }
    let choices = dims.iter().map(|dim| AlgorithmChoice::Named(dim.algorithm));
    let switching = draw.one(&[
        SwitchingMode::IDEAL,
        SwitchingMode::CutThrough {
            segment: Bytes(4096),
        },
        SwitchingMode::StoreAndForward,
    ]);
    let machine = machine_of(&dims, choices.collect(), switching);
    let pipeline = ChunkPipeline {
        chunks: NonZeroU32::new(draw.one(&[1, 1, 1, 2, 4])),
        ..ChunkPipeline::default()
    };
    (dims, machine.with_pipeline(pipeline))
}

const BYTES: [u64; 5] = [1, 5_000, 40_000, 1_000_000, 8_000_000];

/// The names of groups, which a job declares.
const GROUPS: [&str; 2] = ["1", "2"];

fn called(draw: &mut Draw, group: usize, members: &[u32]) -> Line {
    let kind = draw.one(&CollectiveKind::ALL).0;
    let line = call(kind, draw.one(&BYTES)).group(GROUPS[group]);
    match kind.has_root() {
        true => line.root(draw.one(members)),
        false => line,
    }
}

/// A random job whose nodes follow one another on each rank, but for receives that are posted early.
struct RandomJob {
    ranks: Vec<Vec<Line>>,
    groups: Vec<Vec<u32>>,
}

impl RandomJob {
    fn new(draw: &mut Draw, ranks: u32, steps: usize) -> Self {
        let groups = (0..2)
            .map(|_| {
                let count = 2 + draw.below(ranks as usize - 1);
                draw.members(ranks, count)
            })
            .collect();
        let mut job = Self {
            ranks: vec![Vec::new(); ranks as usize],
            groups,
        };
        // The last node of each rank's chain, and receives that nothing waits for yet.
        let mut last: Vec<Vec<u64>> = vec![Vec::new(); ranks as usize];
        for _ in 0..steps {
            let mut add = |rank: u32, line: Line, early: bool| {
                let lines = &mut job.ranks[rank as usize];
                let before = &mut last[rank as usize];
                let id = lines.len() as u64 + 1;
                if early {
                    // It is posted with what it follows, and what comes next but one waits for it.
                    lines.push(line.after(&before[..before.len().min(1)]));
                    before.push(id);
                } else {
                    lines.push(line.after(before));
                    *before = vec![id];
                }
            };
            match draw.below(4) {
                0 => {
                    let ns = draw.one(&[100, 5_000, 90_000]);
                    add(draw.below(ranks as usize) as u32, kernel(ns), false);
                }
                1 => {
                    let group = draw.below(2);
                    let members = job.groups[group].clone();
                    let line = called(draw, group, &members);
                    for rank in members {
                        add(rank, line.clone(), false);
                    }
                }
                _ => {
                    let ends = draw.members(ranks, 2);
                    let [from, to] = match draw.below(2) {
                        0 => [ends[0], ends[1]],
                        _ => [ends[1], ends[0]],
                    };
                    let bytes = draw.one(&BYTES);
                    let early = draw.below(3) == 0;
                    add(to, receive(from, bytes), early);
                    add(from, send(to, bytes), false);
                }
            }
        }
        job
    }

    fn workload(&self) -> Workload {
        let groups = GROUPS.iter().zip(&self.groups);
        let groups: Vec<_> = groups
            .map(|(name, members)| (*name, &members[..]))
            .collect();
        job(&self.ranks, &groups)
    }
}

fn over(model: NetworkModel) -> ReplayOptions {
    ReplayOptions::with(|o| o.network = Some(model))
}

const CONTENDED: [NetworkModel; 4] = [
    NetworkModel::Ports,
    NetworkModel::Links,
    NetworkModel::FairSharing,
    NetworkModel::Exclusive,
];

const MODELS: [NetworkModel; 5] = [
    NetworkModel::ContentionFree,
    CONTENDED[0],
    CONTENDED[1],
    CONTENDED[2],
    CONTENDED[3],
];

/// Least makespan under a contended model that the law allows beside `free` ps without contention. Times of rates that are
/// shared are rounded once for each change of rates, to the picosecond. Queues serve what comes first, which is not always
/// best: where messages of several chunks or operations meet, a queue more may lead to a better order, and so may shares in
/// place of a queue. Then the order that a model happens to take decides, and a third is the most that was ever found.
fn least(free: u64, found: &Replay, may_reorder: bool) -> u64 {
    let rounding = 8 + found.outcome.messages * 2;
    let least = if may_reorder { free / 4 * 3 } else { free };
    least.saturating_sub(rounding)
}

/// Compares every model with the one that has no contention.
fn check_models(
    (seed, alone): (u64, bool),
    machine: &Machine,
    workload: &Workload,
    told: &str,
) -> Vec<String> {
    let chunks = machine.pipeline().chunks.map_or(1, NonZeroU32::get);
    let topology = machine.topology();
    let ideal = topology.switching() == SwitchingMode::IDEAL;
    let mut shapes = topology.dimensions().iter().map(|of| of.shape);
    let meets = shapes.any(|shape| shape == DimensionShape::Mesh);
    let free = replay_with(workload, machine, &over(NetworkModel::ContentionFree));
    let stepwise = ReplayOptions::with(|o| {
        o.network = Some(NetworkModel::ContentionFree);
        o.stepwise = true;
    });
    let steps = replay_with(workload, machine, &stepwise);
    let mut broken = Vec::new();
    if steps.ps() != free.ps() {
        broken.push(format!(
            "{seed}: {} ps stepwise, {} ps: {told}",
            steps.ps(),
            free.ps()
        ));
    }
    for model in CONTENDED {
        let found = replay_with(workload, machine, &over(model));
        let message = alone && free.log.records.is_empty();
        // On a mesh, messages of a group also meet on links between other members.
        let in_order = match model {
            NetworkModel::Ports => true,
            NetworkModel::FairSharing => false,
            _ => !meets,
        };
        let may_reorder = !in_order || chunks > 1 || !(alone || ideal);
        if found.ps() < least(free.ps(), &found, may_reorder && !message) {
            broken.push(format!(
                "{seed}: {model} {} ps, contention-free {} ps: {told}",
                found.ps(),
                free.ps()
            ));
        }
    }
    broken
}

fn dims_text(dims: &[Dim]) -> String {
    let text = dims.iter().map(|d| {
        let (rate, latency) = (d.ps_per_byte, d.link_ns);
        format!(
            "{} {} {rate} ps/B {latency} ns {}",
            d.shape, d.size, d.algorithm
        )
    });
    text.collect::<Vec<_>>().join(", ")
}

/// One collective of any group, or one message.
fn single(seed: u64) -> Vec<String> {
    let mut draw = Draw(seed);
    let (dims, machine) = machine(&mut draw);
    let npus = machine.topology().npus();
    let count = 2 + draw.below(npus as usize - 1);
    let members = draw.members(npus, count);
    let mut ranks = vec![vec![kernel(0)]; npus as usize];
    if draw.below(5) == 0 {
        let bytes = draw.one(&BYTES);
        ranks[members[0] as usize] = vec![send(members[1], bytes)];
        ranks[members[1] as usize] = vec![receive(members[0], bytes)];
    } else {
        let line = called(&mut draw, 0, &members);
        for &member in &members {
            ranks[member as usize] = vec![line.clone()];
        }
    }
    let workload = job(&ranks, &[(GROUPS[0], &members)]);
    let op = ranks[members[0] as usize][0].op;
    let told = format!(
        "{op:?} of {members:?} on {}; {}, {}",
        dims_text(&dims),
        machine.pipeline(),
        machine.topology().switching()
    );
    check_models((seed, true), &machine, &workload, &told)
}

/// A job of several operations, in the same order under every model.
fn ordered(seed: u64) -> Vec<String> {
    let mut draw = Draw(seed);
    let (dims, machine) = machine(&mut draw);
    let steps = 2 + draw.below(12);
    let job = RandomJob::new(&mut draw, machine.topology().npus(), steps);
    let told = format!(
        "{}; {}, {}",
        dims_text(&dims),
        machine.pipeline(),
        machine.topology().switching()
    );
    check_models((seed, false), &machine, &job.workload(), &told)
}

/// Parts of an NPU's time: compute, transfer, waiting of collectives, waiting of messages, other.
type Parts = [u64; 5];

/// A rank and one of its nodes.
type RankNode = (u32, u32);

/// Where the time of each rank goes, from issue and end of its nodes alone.
fn swept(job: &RandomJob, replay: &Replay) -> Vec<Parts> {
    let events = &replay.log.events;
    let mut times: BTreeMap<(u32, u32), [u64; 2]> = BTreeMap::new();
    for &(at, completed, rank, node) in events {
        times.entry((rank, node)).or_default()[usize::from(completed)] = at;
    }
    // The k-th send from one rank to another meets the k-th receive, the k-th call of a group those of its members.
    let mut begins: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    let mut halves: BTreeMap<(u32, u32), [Vec<RankNode>; 2]> = BTreeMap::new();
    let mut calls: BTreeMap<(String, usize), Vec<(u32, u32)>> = BTreeMap::new();
    for (rank, lines) in (0..).zip(&job.ranks) {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for (node, line) in (0..).zip(lines) {
            match line.op {
                Op::Message { receive, peer, .. } => {
                    let ends = if receive { (peer, rank) } else { (rank, peer) };
                    halves.entry(ends).or_default()[usize::from(receive)].push((rank, node));
                }
                Op::Collective { group, .. } => {
                    let name = format!("{group:?}");
                    let count = counts.entry(name.clone()).or_default();
                    calls.entry((name, *count)).or_default().push((rank, node));
                    *count += 1;
                }
                _ => {}
            }
        }
    }
    for [sends, receives] in halves.values() {
        for (send, receive) in sends.iter().zip(receives) {
            begins.insert(*send, times[send][0]);
            begins.insert(*receive, times[send][0].max(times[receive][0]));
        }
    }
    for members in calls.values() {
        let last = members.iter().map(|node| times[node][0]).max().unwrap();
        begins.extend(members.iter().map(|node| (*node, last)));
    }
    let order: BTreeMap<(u32, u32), usize> = events
        .iter()
        .filter(|event| !event.1)
        .enumerate()
        .map(|(place, event)| ((event.2, event.3), place))
        .collect();
    let end = replay.ps();
    let parts = (0..).zip(&job.ranks).map(|(rank, lines)| {
        let nodes: Vec<u32> = (0..lines.len() as u32).collect();
        let mut cuts: Vec<u64> = nodes
            .iter()
            .flat_map(|&node| times[&(rank, node)])
            .collect();
        cuts.extend(
            nodes
                .iter()
                .filter_map(|&node| begins.get(&(rank, node)).copied()),
        );
        cuts.extend([0, end]);
        cuts.sort_unstable();
        cuts.dedup();
        let mut parts = Parts::default();
        for cut in cuts.windows(2) {
            let at = cut[0];
            let active = nodes.iter().filter(|&&node| {
                let [from, to] = times[&(rank, node)];
                from <= at && at < to
            });
            let active: Vec<u32> = active.copied().collect();
            let computes = |node: &u32| matches!(lines[*node as usize].op, Op::Compute { .. });
            let comm = active
                .iter()
                .filter(|node| begins.contains_key(&(rank, **node)));
            let first = comm.min_by_key(|node| {
                let waits = at < begins[&(rank, **node)];
                (waits, order[&(rank, **node)])
            });
            let part = match first {
                _ if active.iter().any(computes) => 0,
                None => 4,
                Some(node) if at >= begins[&(rank, *node)] => 1,
                Some(node) if matches!(lines[*node as usize].op, Op::Message { .. }) => 3,
                Some(_) => 2,
            };
            parts[part] += cut[1] - cut[0];
        }
        parts
    });
    parts.collect()
}

/// The parts of every NPU against the sweep.
fn attributed(seed: u64) -> Vec<String> {
    let mut draw = Draw(seed);
    let (_, machine) = machine(&mut draw);
    let steps = 2 + draw.below(14);
    let job = RandomJob::new(&mut draw, machine.topology().npus(), steps);
    let workload = job.workload();
    let options = over(draw.one(&MODELS));
    let swept = swept(&job, &replay_with(&workload, &machine, &options));
    let prepared = CompiledReplay::new(&workload, &machine, &options).unwrap();
    let (report, ()) = report::replay(&prepared, ()).unwrap();
    let mut broken = Vec::new();
    for (row, expected) in report.rows.iter().zip(&swept) {
        let [compute, communication, bubble, memory, host, idle] =
            row.time.parts.map(|part| part.0);
        let [computes, transfers, waits, stalls, other] = *expected;
        let found = [compute, communication, bubble, memory + host + idle];
        // No group has a role, so every message is between stages.
        if found != [computes, transfers + waits, stalls, other] {
            broken.push(format!(
                "{seed}: rank {} {found:?}, swept {expected:?}",
                row.rank
            ));
        }
        if row.time.parts.iter().copied().sum::<Span>() != report.outcome.makespan {
            broken.push(format!("{seed}: rank {} does not sum up", row.rank));
        }
    }
    let sum = |part: usize| swept.iter().map(|parts| parts[part]).sum::<u64>();
    let rows = report.collectives.iter().map(|row| row.charged);
    let charged = rows.chain([report.messages_charged]);
    let [mut waiting, mut transfer, mut bubble] = [0; 3];
    for all in charged {
        waiting += all.exposed_waiting.0;
        transfer += all.exposed_transferring.0;
        bubble += all.bubble.0;
    }
    let expected = [sum(2) + sum(3), sum(1), sum(3)];
    if [waiting, transfer, bubble] != expected {
        broken.push(format!(
            "{seed}: charged {waiting} {transfer} {bubble}, swept {expected:?}"
        ));
    }
    broken
}

#[track_caller]
fn hold(law: fn(u64) -> Vec<String>, seeds: std::ops::Range<u64>) {
    let count = seeds.end - seeds.start;
    let broken: Vec<String> = seeds.flat_map(law).collect();
    let shown = broken
        .iter()
        .take(12)
        .cloned()
        .collect::<Vec<_>>()
        .join("\n");
    assert!(
        broken.is_empty(),
        "{} of {count} cases:\n{shown}",
        broken.len()
    );
}

/// 5 kB over two links of 6 ps/B: 30 ns, 24.576 for a segment of 4,096 B at the device between them, and 20 of latency.
#[test]
fn a_message_waits_for_its_segment_in_every_model() {
    let ring = Dim {
        shape: DimensionShape::Ring,
        size: 4,
        ps_per_byte: 3,
        link_ns: 10,
        algorithm: CollectiveAlgorithm::Ring,
    };
    let segment = SwitchingMode::CutThrough {
        segment: Bytes(4096),
    };
    let machine = machine_of(
        &[ring],
        vec![AlgorithmChoice::Named(ring.algorithm)],
        segment,
    );
    let mut ranks = vec![vec![kernel(0)]; 4];
    ranks[1] = vec![send(3, 5_000)];
    ranks[3] = vec![receive(1, 5_000)];
    for model in MODELS {
        let found = replay_with(&job(&ranks, &[]), &machine, &over(model)).ps();
        assert_eq!(found, 5_000 * 6 + 4_096 * 6 + 20_000, "{model}");
    }
}

/// Reduces and gathers of groups that are no sub-grid, which took one port over all dimensions: 1,140 us, 2,160 and 100.1
/// against 640, 1,280 to 1,522 and 60.6 to 71.1 of the other models.
#[test]
fn groups_that_are_no_sub_grid_have_a_port_in_each_dimension() {
    let of = |shape, size, ps_per_byte, link_ns, algorithm| Dim {
        shape,
        size,
        ps_per_byte,
        link_ns,
        algorithm,
    };
    use CollectiveAlgorithm::{Direct, DoubleBinaryTree, Pairwise};
    use DimensionShape::{FullyConnected, Mesh, Switch};
    // 8 MB over links of 80 ps/B take 640 us: one after another from two sides, while others come along the other dimension.
    for (dims, kind, bytes, members, root) in [
        (
            [
                of(Mesh, 4, 40, 500, DoubleBinaryTree),
                of(Mesh, 2, 20, 0, Direct),
            ],
            CollectiveKind::Reduce,
            4_000_000,
            &[0, 2, 3, 4][..],
            0,
        ),
        (
            [
                of(FullyConnected, 2, 50, 0, Pairwise),
                of(Switch, 3, 40, 0, Pairwise),
            ],
            CollectiveKind::Gather,
            8_000_000,
            &[0, 2, 3, 4, 5],
            3,
        ),
    ] {
        let machine = super::rig::machine(&dims);
        let npus = machine.topology().npus();
        let mut ranks = vec![vec![kernel(0)]; npus as usize];
        for &member in members {
            ranks[member as usize] = vec![call(kind, bytes).group("1").root(root)];
        }
        let workload = job(&ranks, &[("1", members)]);
        let broken = check_models((0, true), &machine, &workload, "");
        assert!(broken.is_empty(), "{broken:?}");
    }
}

#[test]
fn single_operations_are_never_faster_with_contention() {
    hold(single, 0..300);
}

#[test]
fn ordered_jobs_are_never_faster_with_contention() {
    hold(ordered, 0..100);
}

#[test]
fn time_goes_where_a_sweep_over_the_nodes_finds_it() {
    hold(attributed, 0..300);
}

#[test]
#[ignore = "minutes: cargo test --release --test it physics::laws -- --ignored"]
fn ten_thousand_single_operations() {
    hold(single, 0..10_000);
}

#[test]
#[ignore = "minutes: cargo test --release --test it physics::laws -- --ignored"]
fn ten_thousand_ordered_jobs() {
    hold(ordered, 0..10_000);
}

#[test]
#[ignore = "minutes: cargo test --release --test it physics::laws -- --ignored"]
fn ten_thousand_attributions() {
    hold(attributed, 0..10_000);
}
