//! Computes a lower bound on a step's time, and how much memory the step needs. No replay is needed.
//!
//! The bound is the longest path through a relaxed step. This step contains one rank per stage of the first replica,
//! and follows these rules:
//!
//! - a kernel takes exactly its duration on the machine, and starts when its dependencies have
//!   ended, even if another kernel is on its lane;
//! - a message arrives no earlier than its uncontended time after the earliest start of its send;
//! - a collective does not wait for its other members. It takes at least as long as a member needs to receive its bytes
//!   through all ports of the group's dimensions. If the measured time is shorter, that time is the minimum instead;
//! - all other nodes take no time.
//!
//! Each rule removes a constraint of the replay or shortens a time, so no replay is faster than the relaxed step. The
//! kernels on a lane run one at a time, so the total duration of any lane's kernels is a lower bound too. In
//! all-gather, reduce-scatter and all-to-all with a buffer B, each of n members lacks (n - 1)/n B and must receive it.
//! In an all-reduce, a member must receive B, or 2 (n - 1)/n B if all algorithms of the group's dimensions consist of a
//! reduce-scatter and an all-gather. Members of generated steps exchange equal parts. In captured steps, the parts may
//! be unequal, so they have no bound.
//!
//! # Steps with many micro-batches
//!
//! In a pipeline, all passes of a rank form one chain, and passes of the same direction and chunk are equal. Each
//! micro-batch after the first therefore adds a constant amount to a rank's own path and to the sums over its lanes. In
//! interleaved schedules, every `pipeline` micro-batches add a constant amount; in general, every period of the
//! schedule does. [`bound_step_quickly`] simulates two and three of these periods, and extrapolates to the whole step.
//! A stage begins at the earliest time by which the first micro-batch can have passed all earlier stages. If parameters
//! are gathered in advance (ZeRO 3, or overlap with the forward pass), the bound uses only the sums over lanes.

use super::point::{PointRefusal, ResolvedPoint};
use chakram_base::ids::Npu;
use chakram_base::units::UnroundedBufferShare;
use chakram_engine::CollectiveCurvesOrAlgorithms;
use chakram_hardware::collective::{
    CollectiveAlgorithm, DimensionAlgorithmChoice, find_fastest_time_protocol,
    find_measured_time_collective,
};
use chakram_hardware::compute::{KernelDurationWithBasis, KernelTraceFacts};
use chakram_hardware::group::GroupPhasesAndMemberPositions;
use chakram_hardware::machine::Machine;
use chakram_trace::format::groups::DeclaredGroups;
use chakram_trace::format::scan::NodeView;
use chakram_trace::format::write::Sink;
use chakram_trace::format::{CollectiveKind, Op, TraceError};
use chakram_workloads::generate::plan::{
    AblationEffect, AllRankCoordinatesAndGroups, RankMemoryCapacity, RankPeakOwnAndRemoteBytes,
    TensorDataStageCoordinates, ZeroStage,
};
use chakram_workloads::generate::{CheckedWorkloadPattern, ModelAndParallelismPlan};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bounds on a point's time and memory, computed without a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PointTimeAndMemoryBounds {
    /// Lower bound on the time of a step, in picoseconds.
    pub time_ps: u64,
    /// Most bytes in use at once on an NPU. This is a lower bound unless `is_whole` is true.
    pub memory_bytes: u64,
    /// True if all micro-batches were simulated.
    pub is_whole: bool,
}

/// Returns the bound of a step from a simulation of all micro-batches.
pub fn bound_step_over_all_micro_batches(
    point: &ResolvedPoint,
    pattern: &ModelAndParallelismPlan,
) -> Result<BoundsAndMemoryFit, PointRefusal> {
    let stages = simulate_relaxed_stages(point, pattern)?;
    let time = stages
        .iter()
        .map(|stage| stage.finish.max(stage.busiest_lane_time()))
        .max();
    let bound = PointTimeAndMemoryBounds {
        time_ps: time.unwrap_or(0),
        memory_bytes: max_memory_of_stages(&stages),
        is_whole: true,
    };
    Ok((bound, fits_memory(point, pattern, &stages)))
}

/// A bound, and true if the step fits into the machine's memory.
pub type BoundsAndMemoryFit = (PointTimeAndMemoryBounds, bool);

fn max_memory_of_stages(stages: &[RelaxedStepTimesOfStageRank]) -> u64 {
    let peaks = stages.iter().map(|stage| stage.peak.bytes);
    peaks.max().unwrap_or(0)
}

/// Returns true if the ranks of all stages fit into the machine's memories.
fn fits_memory(
    point: &ResolvedPoint,
    pattern: &ModelAndParallelismPlan,
    stages: &[RelaxedStepTimesOfStageRank],
) -> bool {
    let plan = &pattern.plan;
    // Treat an unknown capacity as unlimited here, because points that have both an unknown capacity and a memory limit
    // were already rejected.
    let memory = RankMemoryCapacity::new(point.smallest_npu_memory().unwrap_or(u64::MAX), plan);
    memory.can_fit_peaks(
        (0..)
            .zip(stages)
            .map(|(i, stage)| (stage.peak, plan.rank_count_of_stage(i))),
    )
}

/// Returns a bound. Its cost does not depend on the number of micro-batches.
pub fn bound_step_quickly(
    point: &ResolvedPoint,
    pattern: &ModelAndParallelismPlan,
) -> Result<BoundsAndMemoryFit, PointRefusal> {
    let plan = &pattern.plan;
    let per_micro_batch = plan.micro_batch.saturating_mul(plan.data.into()).max(1);
    let all = plan.batch / per_micro_batch;
    let Some((unit, least)) = plan.schedule.repeat_period_and_minimum(plan.pipeline) else {
        return bound_step_over_all_micro_batches(point, pattern);
    };
    let unit = u64::from(unit);
    let few = (2 * unit).max(least.into());
    let more = few + unit;
    // With only a few micro-batches, simulate all of them. Extrapolation does not work for several steps either, so
    // simulate these whole.
    if all <= more || plan.steps > 1 {
        return bound_step_over_all_micro_batches(point, pattern);
    }
    let with = |count: u64| {
        let mut fewer = pattern.clone();
        fewer.plan.batch = count * per_micro_batch;
        simulate_relaxed_stages(point, &fewer)
    };
    let (short, long) = (with(few)?, with(more)?);
    // Extrapolate from `few` and `more` micro-batches to `all`.
    let grown = |few_ps: u64, more_ps: u64| {
        let each =
            u128::from(more_ps.saturating_sub(few_ps)) * u128::from(all - few) / u128::from(unit);
        few_ps.saturating_add(u64::try_from(each).unwrap_or(u64::MAX))
    };
    let gathers = plan.zero == ZeroStage::Parameters || plan.gather_overlap;
    let waits = !plan.without.has_effect(AblationEffect::Bubble);
    let stages = short.iter().zip(&long).map(|(short, long)| {
        let lanes = short
            .lanes
            .iter()
            .map(|(lane, sum)| grown(*sum, long.lanes.get(lane).copied().unwrap_or(0)));
        let lanes = lanes.max().unwrap_or(0);
        let own = if gathers {
            0
        } else {
            grown(short.own, long.own)
        };
        let begin = if waits { short.begin } else { 0 };
        lanes.max(own.saturating_add(begin))
    });
    let bound = PointTimeAndMemoryBounds {
        time_ps: stages.max().unwrap_or(0),
        // All micro-batches together need at least as much memory as these.
        memory_bytes: max_memory_of_stages(&long),
        is_whole: false,
    };
    Ok((bound, fits_memory(point, pattern, &long)))
}

/// Path that one rank per stage takes through the relaxed step.
#[derive(Clone, Debug, Default)]
struct RelaxedStepTimesOfStageRank {
    /// End time of the last node, in picoseconds.
    finish: u64,
    /// End time, in picoseconds, that the last node would have if no node waited for a message.
    own: u64,
    /// End time of the stage's first receive in picoseconds, or 0 if there is none.
    begin: u64,
    /// Total duration of the nodes on each lane, in picoseconds.
    lanes: BTreeMap<i64, u64>,
    /// Maximum number of bytes in use at once, if nodes run in id order.
    peak: RankPeakOwnAndRemoteBytes,
}

impl RelaxedStepTimesOfStageRank {
    fn busiest_lane_time(&self) -> u64 {
        self.lanes.values().copied().max().unwrap_or(0)
    }
}

/// The send or the receive of a message between stages.
#[derive(Clone, Copy, Debug)]
struct StageMessageHalf {
    node: u32,
    receives: bool,
    peer: u32,
    tag: i32,
    bytes: u64,
}

/// Records a rank's nodes as the generator emits them.
struct EmittedRankNodeRecorder<'p> {
    prices: NpuNodeDurationCache<'p>,
    /// Duration of each node, in picoseconds.
    lasts: Vec<u64>,
    /// `after[starts[i]..starts[i + 1]]` are the dependencies of node i.
    starts: Vec<u32>,
    after: Vec<u32>,
    messages: Vec<StageMessageHalf>,
    lanes: BTreeMap<i64, u64>,
    peak: RankPeakOwnAndRemoteBytes,
}

impl Sink for EmittedRankNodeRecorder<'_> {
    fn receive_node(&mut self, node: &NodeView<'_>, data: &[u64]) -> Result<(), TraceError> {
        let last = self.prices.node_time(node);
        if let Some(lane) = node.lane {
            let sum = self.lanes.entry(lane).or_default();
            *sum = sum.saturating_add(last);
        }
        if let Op::Message {
            receive,
            peer,
            tag,
            bytes,
            ..
        } = node.op
        {
            self.messages.push(StageMessageHalf {
                node: self.lasts.len() as u32,
                receives: receive,
                peer,
                tag,
                bytes,
            });
        }
        self.lasts.push(last);
        // Ids count from 1 without gaps, so a node's index is its id minus 1.
        self.after.extend(data.iter().map(|id| *id as u32 - 1));
        self.starts.push(self.after.len() as u32);
        self.peak.add_node(node);
        Ok(())
    }
}

/// Cache of node durations on one NPU.
struct NpuNodeDurationCache<'p> {
    point: &'p ResolvedPoint,
    class: usize,
    groups: &'p DeclaredGroups,
    ranks: u32,
    kernels: BTreeMap<KernelDurationKey, u64>,
    collectives: BTreeMap<(Option<String>, CollectiveKind, u64), u64>,
}

/// Key of a kernel's duration: name (if kernels were measured by name), class, shape, format, FLOPs, whether the FLOPs
/// are unknown, and bytes.
type KernelDurationKey = (
    Option<String>,
    Option<chakram_trace::format::KernelShape>,
    Option<chakram_trace::format::Dtype>,
    (u64, bool),
    u64,
);

impl NpuNodeDurationCache<'_> {
    fn npu_of_rank(&self, rank: u32) -> Npu {
        self.point.machine.npu_of_rank(rank, self.ranks)
    }

    fn node_time(&mut self, node: &NodeView<'_>) -> u64 {
        match node.op {
            Op::Compute {
                flops,
                bytes,
                dtype,
            } => {
                let (class, options) = (
                    &self.point.machine.npu_classes()[self.class],
                    &self.point.options,
                );
                let by_name = !class.curves.measured.is_empty();
                let name = by_name.then(|| node.name.to_owned());
                let work = (flops, node.flops_unknown);
                let key = (name, node.kernel, dtype, work, bytes);
                *self.kernels.entry(key).or_insert_with(|| {
                    let kernel = KernelTraceFacts {
                        name: node.name,
                        recorded: node.recorded,
                        captured: false,
                        flops,
                        flops_unknown: node.flops_unknown,
                        bytes,
                        dtype,
                        shape: node.kernel,
                    };
                    let memory = class.memory_bandwidth();
                    let price = options
                        .compute
                        .keep_recorded_if_other_npu_maker(&class.name)
                        .price_kernel(&kernel, &class.peaks, memory, &class.curves);
                    match price {
                        KernelDurationWithBasis::Curve { span, .. } => {
                            apply_smallest_correction(&self.point.machine, span.0)
                        }
                        other => other.duration().0,
                    }
                })
            }
            Op::Collective {
                kind, bytes, group, ..
            } => {
                let name = group.to_text();
                let key = (name, kind, bytes);
                if let Some(known) = self.collectives.get(&key) {
                    return *known;
                }
                let members: Vec<Npu> = match &key.0 {
                    None => (0..self.ranks).map(|rank| self.npu_of_rank(rank)).collect(),
                    Some(name) => self.groups.get(name).map_or(Vec::new(), |ranks| {
                        ranks.iter().map(|r| self.npu_of_rank(*r)).collect()
                    }),
                };
                let last = least_collective_time(self.point, kind, bytes, &members);
                self.collectives.insert(key, last);
                last
            }
            _ => 0,
        }
    }
}

/// Returns a lower bound on a member's time in a collective: the time of the bytes that it must receive. If a measured
/// time applies and is shorter, it is the bound.
fn least_collective_time(
    point: &ResolvedPoint,
    kind: CollectiveKind,
    comm_size: u64,
    members: &[Npu],
) -> u64 {
    let wire = collective_receive_time_bound(point, kind, comm_size, members);
    let (machine, options) = (&point.machine, &point.options);
    let by_curves = options.compute.prefers_curves() && machine.has_kernel_curves();
    let buffer = kind.buffer_bytes(comm_size, members.len() as u32);
    let measured = options
        .collectives
        .map(|how| how == CollectiveCurvesOrAlgorithms::Curves);
    let Some(buffer) = buffer.filter(|_| measured.unwrap_or(by_curves)) else {
        return wire;
    };
    let extent = GroupPhasesAndMemberPositions::new(members, machine.topology());
    let of = (kind, buffer);
    let lie = (&extent, machine.topology());
    let measured = find_measured_time_collective(machine.collective_curves(), of, lie);
    let span =
        measured.or_else(|| find_fastest_time_protocol(machine.collective_protocols(), of, lie));
    span.map_or(wire, |span| {
        wire.min(apply_smallest_correction(machine, span.0))
    })
}

/// Applies the machine's smallest correction to a kernel time from the curves. The workload decides which correction
/// applies, so the smallest one yields a lower bound.
fn apply_smallest_correction(machine: &Machine, ps: u64) -> u64 {
    let factors = machine
        .kernel_time_corrections()
        .iter()
        .map(|one| one.factor);
    let least = factors.fold(1.0, f64::min);
    if least < 1.0 {
        // Subtract one picosecond, so that rounding cannot lift the bound above the replay's time.
        ((ps as f64 * least) as u64).saturating_sub(1)
    } else {
        ps
    }
}

/// Returns a lower bound on the time of a collective that consists of messages: the bytes that a member must receive,
/// divided by the rate of the member's ports.
fn collective_receive_time_bound(
    point: &ResolvedPoint,
    kind: CollectiveKind,
    comm_size: u64,
    members: &[Npu],
) -> u64 {
    let n = members.len() as u32;
    let Some(buffer) = kind.buffer_bytes(comm_size, n).filter(|_| n > 1) else {
        return 0;
    };
    let topology = point.machine.topology();
    let spanned = (0..topology.dimensions().len()).filter(|d| {
        let first = topology.coordinate_of(members[0], *d);
        members
            .iter()
            .any(|npu| topology.coordinate_of(*npu, *d) != first)
    });
    let spanned: Vec<usize> = spanned.collect();
    let rate: f64 = spanned
        .iter()
        .map(|d| max_receive_rate(&point.machine, members, *d))
        .sum();
    let shares = f64::from(n - 1) / f64::from(n);
    let in_shares = |d: &usize| {
        matches!(
            point.machine.collective_algorithms()[*d],
            DimensionAlgorithmChoice::Named(
                CollectiveAlgorithm::Ring | CollectiveAlgorithm::Direct
            ) | DimensionAlgorithmChoice::Nccl
        )
    };
    let times = match kind {
        CollectiveKind::AllReduce if spanned.iter().all(in_shares) => 2.0 * shares,
        CollectiveKind::AllReduce => 1.0,
        CollectiveKind::AllGather | CollectiveKind::ReduceScatter | CollectiveKind::AllToAll => {
            shares
        }
        _ => 0.0,
    };
    // Round down with a margin, because sizes need not be multiples of the number of members.
    let ps = times * buffer as f64 / rate * 1e12 * (1.0 - 1e-9) - f64::from(n);
    if ps > 0.0 { ps as u64 } else { 0 }
}

/// Returns the highest receive rate of any of `members` along a dimension, in bytes per second. If link rates differ, a
/// member's rate is the sum over its incoming links.
fn max_receive_rate(machine: &Machine, members: &[Npu], dimension: usize) -> f64 {
    let topology = machine.topology();
    let Some(graph) = topology.explicit_links() else {
        return topology.dimensions()[dimension]
            .bandwidth
            .bytes_per_second();
    };
    let mut rates: BTreeMap<u32, f64> = members.iter().map(|npu| (npu.0, 0.0)).collect();
    let links = graph.all_links().iter();
    for link in links.filter(|link| link.dimension as usize == dimension) {
        if let Some(rate) = rates.get_mut(&link.to) {
            *rate += link.bandwidth.bytes_per_second();
        }
    }
    rates.into_values().fold(0.0, f64::max)
}

/// Simulates the relaxed step of the first replica.
fn simulate_relaxed_stages(
    point: &ResolvedPoint,
    pattern: &ModelAndParallelismPlan,
) -> Result<Vec<RelaxedStepTimesOfStageRank>, PointRefusal> {
    let job = CheckedWorkloadPattern::new(pattern.clone())?;
    let groups = job.declared_groups();
    let mut placed = pattern.plan.clone();
    if !placed.place.is_empty() {
        placed.ranks = placed.ranks_by_order_position()?;
    }
    let placement = AllRankCoordinatesAndGroups::new(&placed);
    let ranks: Vec<u32> = (0..pattern.plan.pipeline)
        .map(|stage| {
            placement.rank_at(TensorDataStageCoordinates {
                tensor: 0,
                data: 0,
                stage,
            })
        })
        .collect();
    let mut nodes = Vec::with_capacity(ranks.len());
    for rank in &ranks {
        let mut sink = EmittedRankNodeRecorder {
            prices: NpuNodeDurationCache {
                point,
                class: point
                    .machine
                    .class_of_npu(point.machine.npu_of_rank(*rank, job.rank_count())),
                groups: &groups,
                ranks: job.rank_count(),
                kernels: BTreeMap::new(),
                collectives: BTreeMap::new(),
            },
            lasts: Vec::new(),
            starts: vec![0],
            after: Vec::new(),
            messages: Vec::new(),
            lanes: BTreeMap::new(),
            peak: RankPeakOwnAndRemoteBytes::default(),
        };
        let walked = job.emit_nodes(*rank, &mut sink);
        walked.map_err(|e| PointRefusal::new("size", e))?;
        nodes.push(sink);
    }
    Ok(simulate_ranks_to_path_times(point, &ranks, &nodes))
}

/// Simulates all ranks at once: each advances until it needs a message that has not been sent yet.
fn simulate_ranks_to_path_times(
    point: &ResolvedPoint,
    ranks: &[u32],
    nodes: &[EmittedRankNodeRecorder<'_>],
) -> Vec<RelaxedStepTimesOfStageRank> {
    let topology = point.machine.topology();
    let all_ranks = nodes.first().map_or(0, |rank| rank.prices.ranks);
    let npu = |rank| point.machine.npu_of_rank(rank, all_ranks);
    let mut ends: Vec<[Vec<u64>; 2]> = nodes
        .iter()
        .map(|rank| [vec![0; rank.lasts.len()], vec![0; rank.lasts.len()]])
        .collect();
    let mut paths: Vec<RelaxedStepTimesOfStageRank> = (nodes.iter())
        .map(|rank| RelaxedStepTimesOfStageRank {
            lanes: rank.lanes.clone(),
            peak: rank.peak,
            ..RelaxedStepTimesOfStageRank::default()
        })
        .collect();
    // For each rank, the index of the next node and the index of the next message.
    let mut at = vec![(0_usize, 0_usize); nodes.len()];
    let mut sent: BTreeMap<(u32, u32, i32), Vec<u64>> = BTreeMap::new();
    // If no rank can advance, receives no longer wait for their messages. This can only lower the result, so it is
    // still a lower bound.
    let mut stuck = false;
    loop {
        let mut moved = false;
        for (i, rank) in nodes.iter().enumerate() {
            let (mut node, mut message) = at[i];
            while node < rank.lasts.len() {
                let half = rank
                    .messages
                    .get(message)
                    .filter(|half| half.node as usize == node);
                let mut arrives = 0;
                if let Some(half) = half.filter(|half| half.receives && ranks.contains(&half.peer))
                {
                    let key = (half.peer, ranks[i], half.tag);
                    match sent.get_mut(&key).filter(|times| !times.is_empty()) {
                        Some(times) => arrives = times.remove(0),
                        None if stuck => {}
                        None => break,
                    }
                }
                let before =
                    &rank.after[rank.starts[node] as usize..rank.starts[node + 1] as usize];
                let [all, own] = &mut ends[i];
                let latest =
                    |ends: &[u64]| before.iter().map(|n| ends[*n as usize]).max().unwrap_or(0);
                let (begin, own_begin) = (latest(all), latest(own));
                all[node] = begin.saturating_add(rank.lasts[node]).max(arrives);
                own[node] = own_begin.saturating_add(rank.lasts[node]);
                let path = &mut paths[i];
                path.finish = path.finish.max(all[node]);
                path.own = path.own.max(own[node]);
                if let Some(half) = half {
                    message += 1;
                    if half.receives {
                        // The first stage receives inputs only for its later chunks. Record no first receive for it,
                        // because it starts without waiting for another stage.
                        if path.begin == 0 && i > 0 {
                            path.begin = all[node];
                        }
                    } else if let Some(way) =
                        topology.path_between_npus(npu(ranks[i]), npu(half.peer))
                    {
                        // A send starts no earlier than its dependencies end, so this is a lower bound on the arrival
                        // time.
                        let time = way
                            .time_message(UnroundedBufferShare::from_bytes(half.bytes))
                            .0;
                        let key = (ranks[i], half.peer, half.tag);
                        sent.entry(key)
                            .or_default()
                            .push(begin.saturating_add(time));
                    }
                }
                node += 1;
                moved = true;
            }
            at[i] = (node, message);
        }
        let done = nodes
            .iter()
            .zip(&at)
            .all(|(rank, (node, _))| *node == rank.lasts.len());
        if done {
            return paths;
        }
        stuck = !moved;
    }
}

#[cfg(test)]
mod tests;
