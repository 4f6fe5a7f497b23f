//! Tests laws of reports and networks on random machines and jobs. The attribution of each NPU's time must equal the
//! one that a sweep over an observer's notifications gives. No network model with contention is faster than the model
//! without contention, unless a port serves messages of an operation in another order.
//!
//! `cargo test --release --test it physics::laws -- --ignored` tests ten thousand of each.
//!
//! # The law of contention
//!
//! Suppose that the order of messages at each port and of nodes on each lane is given. Without contention, times are
//! then the least solution of constraints t_i >= t_j + d. A message leaves after its dependencies and after the
//! previous message at its port. It enters after its first byte and after the previous message. Every model with
//! contention keeps all these constraints, and adds others. If messages enter in the same order, each time is therefore
//! at least the time without contention, by induction along the order. This is not true if rates are shared: a stream
//! occupies its receiver's port from the moment when it leaves, and the latency is added afterwards. Messages of
//! different latencies that arrive at the port together without contention may therefore pass it at different times.
//!
//! If the order differs, no bound follows, because ports serve messages first come, first served, which need not be
//! optimal. For example, consider a line of three whose root is at one end. The root sends chunk 0 to its neighbour,
//! which forwards it. The root sends chunk 1 past the neighbour to the other end, which sends it back. Both chunks meet
//! at that end. If the chunk that must travel on waits for the one that has reached its destination, everything ends 10
//! us later, which is a third of the time. The order depends on the time that one segment takes, which one model
//! includes and another does not. These are Graham's anomalies of list schedules (1969): a schedule with less work or
//! less contention may end later.

use super::lines::{TestTraceNode, build_collective, build_kernel, build_receive, build_send};
use super::rig::{
    self, Dim, ReplayOutcomeAndLog, build_job_from_rank_nodes, build_machine_with_choices,
    replay_with,
};
use chakram::engine::{CompiledReplay, NetworkModel, ReplayOptions};
use chakram::extend::{
    ConsecutivePortsOpenedByOperation, EventScheduler, LineSendPattern, MessageProgressNotice,
    NetworkBackend, NetworkEvent, NetworkMessage, OpIndex,
};
use chakram::ids::Npu;
use chakram::internals::{
    ContentionFreePortBusyTimes, FairSharingNetwork, LinkContentionNetwork,
    OneTransferPerLinkNetwork, PortContentionNetwork,
};
use chakram::machine::{
    ChunkCountOrderAndOverlap, CollectiveAlgorithm, DimensionAlgorithmChoice, Machine,
};
use chakram::report;
use chakram::topology::{DimensionShape, SwitchingMode, Topology};
use chakram::trace::{CollectiveKind, Op};
use chakram::units::{Bytes, Span, Time};
use chakram::workload::Workload;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

/// The SplitMix64 generator.
struct SplitMixRandom(u64);

impl SplitMixRandom {
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

    fn choose_one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Returns `count` random members of `0..ranks`, sorted.
    fn choose_members(&mut self, ranks: u32, count: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..ranks).collect();
        while all.len() > count {
            all.remove(self.below(all.len()));
        }
        all
    }
}

/// Returns one to three dimensions with at most 16 NPUs.
fn generate_machine(draw: &mut SplitMixRandom) -> (Vec<Dim>, Machine) {
    let mut dims = Vec::new();
    let mut npus = 1;
    for _ in 0..1 + draw.below(3) {
        let size = 2 + draw.below(4) as u32;
        if npus * size > 16 {
            break;
        }
        npus *= size;
        dims.push(Dim {
            shape: draw.choose_one_of(&DimensionShape::ALL).0,
            size,
            ps_per_byte: draw.choose_one_of(&[4, 10, 20, 50]),
            link_ns: draw.choose_one_of(&[0, 10, 500]),
            algorithm: draw.choose_one_of(&CollectiveAlgorithm::ALL).0,
        });
    }
    let choices = dims
        .iter()
        .map(|dim| DimensionAlgorithmChoice::Named(dim.algorithm));
    let switching = draw.choose_one_of(&[
        SwitchingMode::IDEAL,
        SwitchingMode::CutThrough {
            segment: Bytes(4096),
        },
        SwitchingMode::StoreAndForward,
    ]);
    let machine = build_machine_with_choices(&dims, choices.collect(), switching);
    let pipeline = ChunkCountOrderAndOverlap {
        chunks: NonZeroU32::new(draw.choose_one_of(&[1, 1, 1, 2, 4])),
        ..ChunkCountOrderAndOverlap::default()
    };
    (dims, machine.with_chunking(pipeline))
}

const BYTES: [u64; 5] = [1, 5_000, 40_000, 1_000_000, 8_000_000];

/// Names of the groups that a job declares.
const GROUPS: [&str; 2] = ["1", "2"];

fn generate_collective_call(
    draw: &mut SplitMixRandom,
    group: usize,
    members: &[u32],
) -> TestTraceNode {
    let kind = draw.choose_one_of(&CollectiveKind::ALL).0;
    let line = build_collective(kind, draw.choose_one_of(&BYTES)).group(GROUPS[group]);
    match kind.has_root() {
        true => line.with_collective_root(draw.choose_one_of(members)),
        false => line,
    }
}

/// A random job whose nodes run one after another on each rank, except for receives that are posted early.
struct RandomJob {
    ranks: Vec<Vec<TestTraceNode>>,
    groups: Vec<Vec<u32>>,
}

impl RandomJob {
    fn new(draw: &mut SplitMixRandom, ranks: u32, steps: usize) -> Self {
        let groups = (0..2)
            .map(|_| {
                let count = 2 + draw.below(ranks as usize - 1);
                draw.choose_members(ranks, count)
            })
            .collect();
        let mut job = Self {
            ranks: vec![Vec::new(); ranks as usize],
            groups,
        };
        // The last node of each rank's chain, and receives on which no node depends so far.
        let mut last: Vec<Vec<u64>> = vec![Vec::new(); ranks as usize];
        for _ in 0..steps {
            let mut add = |rank: u32, line: TestTraceNode, early: bool| {
                let lines = &mut job.ranks[rank as usize];
                let before = &mut last[rank as usize];
                let id = lines.len() as u64 + 1;
                if early {
                    // A receive has the same dependencies as its predecessor, and the second node
                    // after it waits for it.
                    lines.push(line.after(&before[..before.len().min(1)]));
                    before.push(id);
                } else {
                    lines.push(line.after(before));
                    *before = vec![id];
                }
            };
            match draw.below(4) {
                0 => {
                    let ns = draw.choose_one_of(&[100, 5_000, 90_000]);
                    add(draw.below(ranks as usize) as u32, build_kernel(ns), false);
                }
                1 => {
                    let group = draw.below(2);
                    let members = job.groups[group].clone();
                    let line = generate_collective_call(draw, group, &members);
                    for rank in members {
                        add(rank, line.clone(), false);
                    }
                }
                _ => {
                    let ends = draw.choose_members(ranks, 2);
                    let [from, to] = match draw.below(2) {
                        0 => [ends[0], ends[1]],
                        _ => [ends[1], ends[0]],
                    };
                    let bytes = draw.choose_one_of(&BYTES);
                    let early = draw.below(3) == 0;
                    add(to, build_receive(from, bytes), early);
                    add(from, build_send(to, bytes), false);
                }
            }
        }
        job
    }

    fn build_workload(&self) -> Workload {
        let groups = GROUPS.iter().zip(&self.groups);
        let groups: Vec<_> = groups
            .map(|(name, members)| (*name, &members[..]))
            .collect();
        build_job_from_rank_nodes(&self.ranks, &groups)
    }
}

fn options_for_network(model: NetworkModel) -> ReplayOptions {
    ReplayOptions::default_with_changes(|o| o.network = Some(model))
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

/// A message's identity: its sender, the index of its operation among the sender's operations, its turn at its
/// receiver, and the number of earlier messages with the same values.
type MessageKeyBySenderOperationAndTurn = (Npu, u32, (u32, u64), u32);

/// A side of a port: the NPU, the dimension, the side of the NPU, and `true` for the sending direction.
type NpuDimensionPortSide = (Npu, usize, u32, bool);

/// For each port, the order of each operation's messages.
type MessageOrderByPort =
    BTreeMap<NpuDimensionPortSide, BTreeSet<Vec<MessageKeyBySenderOperationAndTurn>>>;

/// A network that records the ports that each message passes.
struct PortRecordingNetwork<'a, N> {
    network: N,
    topology: &'a Topology,
    /// The operation that opened each range of ports.
    opened: BTreeMap<u32, u32>,
    operations: u32,
    next_port: u32,
    /// The last operation of each sender, and its index among the sender's operations.
    last: BTreeMap<Npu, (u32, u32)>,
    counts: BTreeMap<(Npu, u32, Npu, (u32, u64)), u32>,
    /// For each op, the message in flight, its receiver and its operation.
    in_flight: BTreeMap<OpIndex, (MessageKeyBySenderOperationAndTurn, Npu, u32)>,
    passed: BTreeMap<(NpuDimensionPortSide, u32), Vec<MessageKeyBySenderOperationAndTurn>>,
}

impl<'a, N> PortRecordingNetwork<'a, N> {
    fn new(network: N, topology: &'a Topology) -> Self {
        Self {
            network,
            topology,
            opened: BTreeMap::new(),
            operations: 0,
            next_port: 0,
            last: BTreeMap::new(),
            counts: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            passed: BTreeMap::new(),
        }
    }

    fn message_order_by_port(self) -> MessageOrderByPort {
        let mut order = MessageOrderByPort::new();
        for ((side, _), messages) in self.passed {
            order.entry(side).or_default().insert(messages);
        }
        order
    }
}

impl<N: NetworkBackend> NetworkBackend for &mut PortRecordingNetwork<'_, N> {
    const NAME: &'static str = N::NAME;
    const SHARED: bool = N::SHARED;

    fn open_ports(&mut self, count: u32) -> ConsecutivePortsOpenedByOperation {
        self.operations += 1;
        let range = match N::SHARED {
            // Operations share all ports. Separate port ranges only identify the operation here.
            true => ConsecutivePortsOpenedByOperation::new(self.next_port, count),
            false => self.network.open_ports(count),
        };
        self.next_port += count + 1;
        let first = range.placeholder_port_for_portless_models().0;
        let ports = (first..=first + count).take(count.max(1) as usize);
        self.opened
            .extend(ports.map(|port| (port, self.operations)));
        range
    }

    fn close_ports(&mut self, ports: ConsecutivePortsOpenedByOperation) {
        if !N::SHARED {
            self.network.close_ports(ports);
        }
    }

    fn submit_message(
        &mut self,
        now: Time,
        message: &NetworkMessage,
        agenda: &mut impl EventScheduler,
    ) {
        let (from, to) = message.ends;
        let operation = self.opened[&message.from.0];
        let last = self.last.entry(from).or_default();
        if last.0 != operation {
            *last = (operation, last.1 + 1);
        }
        let number = last.1;
        let turn = (message.turn.strand, message.turn.step);
        let count = self.counts.entry((from, number, to, turn)).or_default();
        let name = (from, number, turn, *count);
        *count += 1;
        let [(dimension, side), _] = self.topology.first_and_last_port(from, to);
        let left = ((from, dimension, side, true), operation);
        self.passed.entry(left).or_default().push(name);
        self.in_flight.insert(message.op, (name, to, operation));
        self.network.submit_message(now, message, agenda);
    }

    fn is_send_pattern_conflict_free(
        &self,
        dimension: usize,
        members: u32,
        pattern: LineSendPattern,
    ) -> bool {
        self.network
            .is_send_pattern_conflict_free(dimension, members, pattern)
    }

    fn handle_event(
        &mut self,
        now: Time,
        event: NetworkEvent,
        agenda: &mut impl EventScheduler,
        notices: &mut Vec<MessageProgressNotice>,
    ) {
        let before = notices.len();
        self.network.handle_event(now, event, agenda, notices);
        for notice in &notices[before..] {
            if let MessageProgressNotice::Delivered(op) = notice
                && let Some((name, to, operation)) = self.in_flight.remove(op)
            {
                let [_, (dimension, side)] = self.topology.first_and_last_port(name.0, to);
                let entered = ((to, dimension, side, false), operation);
                self.passed.entry(entered).or_default().push(name);
            }
        }
    }
}

/// Returns the order of messages at ports under `model` with simulated messages, and the makespan.
fn replay_message_order_and_makespan(
    workload: &Workload,
    machine: &Machine,
    model: NetworkModel,
) -> (MessageOrderByPort, u64) {
    fn replay_recording_message_order_at_ports<N: NetworkBackend>(
        prepared: &CompiledReplay<'_>,
        topology: &Topology,
        network: N,
    ) -> (MessageOrderByPort, u64) {
        let mut noted = PortRecordingNetwork::new(network, topology);
        let outcome = prepared.run_on_network(&mut (), &mut noted).unwrap();
        (noted.message_order_by_port(), outcome.makespan.0)
    }
    let of = CompiledReplay::new(
        workload,
        machine,
        &rig::make_stepwise_network_options(model),
    )
    .unwrap();
    let t = machine.topology();
    match model {
        NetworkModel::ContentionFree => {
            replay_recording_message_order_at_ports(&of, t, ContentionFreePortBusyTimes::new(t))
        }
        NetworkModel::Ports => {
            replay_recording_message_order_at_ports(&of, t, PortContentionNetwork::new(t))
        }
        NetworkModel::Links => {
            replay_recording_message_order_at_ports(&of, t, LinkContentionNetwork::new(t))
        }
        NetworkModel::Exclusive => {
            replay_recording_message_order_at_ports(&of, t, OneTransferPerLinkNetwork::new(t))
        }
        NetworkModel::FairSharing => {
            replay_recording_message_order_at_ports(&of, t, FairSharingNetwork::new(t).unwrap())
        }
    }
}

/// Returns the least makespan that the law allows under a model with contention, where `free` is the makespan without
/// contention in ps. Shared rates are rounded to the picosecond whenever rates change. If messages of several chunks or
/// operations meet, ports may serve them in another order and end earlier. In 10,000 single operations and 10,000 jobs,
/// they end earlier by at most a third.
fn least_makespan_allowed_with_contention(
    free: u64,
    found: &ReplayOutcomeAndLog,
    may_reorder: bool,
) -> u64 {
    let rounding = 8 + found.outcome.messages * 2;
    let least = if may_reorder { free / 4 * 3 } else { free };
    least.saturating_sub(rounding)
}

/// Compares every network model with the contention-free model.
fn check_models(
    (seed, alone): (u64, bool),
    machine: &Machine,
    workload: &Workload,
    told: &str,
) -> Vec<String> {
    let chunks = machine
        .chunking_settings()
        .chunks
        .map_or(1, NonZeroU32::get);
    let topology = machine.topology();
    let ideal = topology.switching_mode() == SwitchingMode::IDEAL;
    let mut shapes = topology.dimensions().iter().map(|of| of.shape);
    let meets = shapes.any(|shape| shape == DimensionShape::Mesh);
    let free = replay_with(
        workload,
        machine,
        &options_for_network(NetworkModel::ContentionFree),
    );
    let stepwise = ReplayOptions::default_with_changes(|o| {
        o.network = Some(NetworkModel::ContentionFree);
        o.stepwise = true;
    });
    let steps = replay_with(workload, machine, &stepwise);
    let mut broken = Vec::new();
    if steps.makespan_ps() != free.makespan_ps() {
        broken.push(format!(
            "{seed}: {} ps stepwise, {} ps: {told}",
            steps.makespan_ps(),
            free.makespan_ps()
        ));
    }
    for model in CONTENDED {
        let found = replay_with(workload, machine, &options_for_network(model));
        let message = alone && free.log.records.is_empty();
        // On a mesh, messages of a group also contend on links between other members.
        let in_order = match model {
            NetworkModel::Ports => true,
            NetworkModel::FairSharing => false,
            _ => !meets,
        };
        let may_reorder = !in_order || chunks > 1 || !(alone || ideal);
        let is_faster = found.makespan_ps()
            < least_makespan_allowed_with_contention(free.makespan_ps(), &found, false);
        // Streams that share a port occupy it when they leave, whatever their paths' latency.
        let explained = || {
            // With ideal switching, a message does not identify its chunk, so swapped chunks are
            // not detected.
            if model == NetworkModel::FairSharing || chunks > 1 && ideal {
                return true;
            }
            let (own, again) = replay_message_order_and_makespan(workload, machine, model);
            let (other, _) =
                replay_message_order_and_makespan(workload, machine, NetworkModel::ContentionFree);
            assert_eq!(again, found.makespan_ps(), "{model}: {told}");
            own != other
        };
        if found.makespan_ps()
            < least_makespan_allowed_with_contention(
                free.makespan_ps(),
                &found,
                may_reorder && !message,
            )
            || is_faster && !explained()
        {
            broken.push(format!(
                "{seed}: {model} {} ps, contention-free {} ps: {told}",
                found.makespan_ps(),
                free.makespan_ps()
            ));
        }
    }
    broken
}

fn describe_dimensions(dims: &[Dim]) -> String {
    let text = dims.iter().map(|d| {
        let (rate, latency) = (d.ps_per_byte, d.link_ns);
        format!(
            "{} {} {rate} ps/B {latency} ns {}",
            d.shape, d.size, d.algorithm
        )
    });
    text.collect::<Vec<_>>().join(", ")
}

/// Returns one collective of any group, or one message.
fn check_single_operation(seed: u64) -> Vec<String> {
    let mut draw = SplitMixRandom(seed);
    let (dims, machine) = generate_machine(&mut draw);
    let npus = machine.topology().npu_count();
    let count = 2 + draw.below(npus as usize - 1);
    let members = draw.choose_members(npus, count);
    let mut ranks = vec![vec![build_kernel(0)]; npus as usize];
    if draw.below(5) == 0 {
        let bytes = draw.choose_one_of(&BYTES);
        ranks[members[0] as usize] = vec![build_send(members[1], bytes)];
        ranks[members[1] as usize] = vec![build_receive(members[0], bytes)];
    } else {
        let line = generate_collective_call(&mut draw, 0, &members);
        for &member in &members {
            ranks[member as usize] = vec![line.clone()];
        }
    }
    let workload = build_job_from_rank_nodes(&ranks, &[(GROUPS[0], &members)]);
    let op = ranks[members[0] as usize][0].op;
    let told = format!(
        "{op:?} of {members:?} on {}; {}, {}",
        describe_dimensions(&dims),
        machine.chunking_settings(),
        machine.topology().switching_mode()
    );
    check_models((seed, true), &machine, &workload, &told)
}

/// Returns a job of several operations, in the same order under every model.
fn check_ordered_job_under_all_models(seed: u64) -> Vec<String> {
    let mut draw = SplitMixRandom(seed);
    let (dims, machine) = generate_machine(&mut draw);
    let steps = 2 + draw.below(12);
    let job = RandomJob::new(&mut draw, machine.topology().npu_count(), steps);
    let told = format!(
        "{}; {}, {}",
        describe_dimensions(&dims),
        machine.chunking_settings(),
        machine.topology().switching_mode()
    );
    check_models((seed, false), &machine, &job.build_workload(), &told)
}

/// Parts of an NPU's time: compute, transfer, waiting in collectives, waiting for messages, and
/// other time.
type NpuTimeParts = [u64; 5];

/// A rank and the index of one of its nodes.
type RankNode = (u32, u32);

/// Returns the attribution of each rank's time, computed only from the issue and the end of its
/// nodes.
fn sum_time_parts_by_sweep(job: &RandomJob, replay: &ReplayOutcomeAndLog) -> Vec<NpuTimeParts> {
    let events = &replay.log.events;
    let mut times: BTreeMap<(u32, u32), [u64; 2]> = BTreeMap::new();
    for &(at, completed, rank, node) in events {
        times.entry((rank, node)).or_default()[usize::from(completed)] = at;
    }
    // The k-th send from one rank to another matches the k-th receive, and the k-th call of a group
    // matches the members' k-th calls.
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
    let end = replay.makespan_ps();
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
        let mut parts = NpuTimeParts::default();
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

/// Compares the parts of every NPU's time with the sweep.
fn compare_time_parts_with_sweep(seed: u64) -> Vec<String> {
    let mut draw = SplitMixRandom(seed);
    let (_, machine) = generate_machine(&mut draw);
    let steps = 2 + draw.below(14);
    let job = RandomJob::new(&mut draw, machine.topology().npu_count(), steps);
    let workload = job.build_workload();
    let options = options_for_network(draw.choose_one_of(&MODELS));
    let swept = sum_time_parts_by_sweep(&job, &replay_with(&workload, &machine, &options));
    let prepared = CompiledReplay::new(&workload, &machine, &options).unwrap();
    let (report, ()) = report::replay_to_report(&prepared, ()).unwrap();
    let mut broken = Vec::new();
    for (row, expected) in report.rows.iter().zip(&swept) {
        let [compute, communication, bubble, memory, host, idle] =
            row.time.parts.map(|part| part.0);
        let [computes, transfers, waits, stalls, other] = *expected;
        let found = [compute, communication, bubble, memory + host + idle];
        // Groups have no role, so every message counts as one between pipeline stages.
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
fn assert_law_holds_for_seeds(law: fn(u64) -> Vec<String>, seeds: std::ops::Range<u64>) {
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

/// 5 kB over two links of 6 ps/B take 30 ns for the bytes, 24.576 ns for a segment of 4,096 B at
/// the device between the links, and 20 ns of latency.
#[test]
fn a_cut_through_message_waits_one_segment_per_device_in_every_model() {
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
    let machine = build_machine_with_choices(
        &[ring],
        vec![DimensionAlgorithmChoice::Named(ring.algorithm)],
        segment,
    );
    let mut ranks = vec![vec![build_kernel(0)]; 4];
    ranks[1] = vec![build_send(3, 5_000)];
    ranks[3] = vec![build_receive(1, 5_000)];
    for model in MODELS {
        let found = replay_with(
            &build_job_from_rank_nodes(&ranks, &[]),
            &machine,
            &options_for_network(model),
        )
        .makespan_ps();
        assert_eq!(found, 5_000 * 6 + 4_096 * 6 + 20_000, "{model}");
    }
}

/// Tests reduces and gathers of groups that do not form sub-grids. A bug once gave such groups a single port for all
/// dimensions: 1,140, 2,160 and 100.1 us, while the other models gave 640, 1,280 to 1,522, and 60.6 to 71.1 us.
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
    // 8 MB over links of 80 ps/B take 640 us: messages from two sides follow one another, while
    // other messages arrive along the other dimension.
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
        let machine = rig::build_machine_from_dims(&dims);
        let npus = machine.topology().npu_count();
        let mut ranks = vec![vec![build_kernel(0)]; npus as usize];
        for &member in members {
            ranks[member as usize] = vec![
                build_collective(kind, bytes)
                    .group("1")
                    .with_collective_root(root),
            ];
        }
        let workload = build_job_from_rank_nodes(&ranks, &[("1", members)]);
        let broken = check_models((0, true), &machine, &workload, "");
        assert!(broken.is_empty(), "{broken:?}");
    }
}

#[test]
fn single_operations_are_never_faster_with_contention() {
    assert_law_holds_for_seeds(check_single_operation, 0..300);
}

#[test]
fn ordered_jobs_are_never_faster_with_contention() {
    assert_law_holds_for_seeds(check_ordered_job_under_all_models, 0..100);
}

#[test]
fn reported_time_parts_equal_those_of_a_sweep_over_the_nodes() {
    assert_law_holds_for_seeds(compare_time_parts_with_sweep, 0..300);
}

#[test]
#[ignore = "minutes: cargo test --release --test it physics::laws -- --ignored"]
fn ten_thousand_single_operations_are_never_faster_with_contention() {
    assert_law_holds_for_seeds(check_single_operation, 0..10_000);
}

#[test]
#[ignore = "minutes: cargo test --release --test it physics::laws -- --ignored"]
fn ten_thousand_ordered_jobs_are_never_faster_with_contention() {
    assert_law_holds_for_seeds(check_ordered_job_under_all_models, 0..10_000);
}

#[test]
#[ignore = "minutes: cargo test --release --test it physics::laws -- --ignored"]
fn ten_thousand_attributions_equal_a_sweep_over_the_nodes() {
    assert_law_holds_for_seeds(compare_time_parts_with_sweep, 0..10_000);
}
