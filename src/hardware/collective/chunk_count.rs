//! The number of chunks of a collective where the machine does not state it: the fewest of 1 to [`MOST`] that take at most
//! 0.5 % longer than the best.
//!
//! Each stage of a chunk has a *life*, from its start to its end, and an *interval*, after which the next chunk may
//! follow it into the phase. With the chunks through the phases as in a flow shop, those give the time of the whole:
//!
//! | stage | life | interval |
//! |---|---|---|
//! | with a closed form s | s | max(s / active, s without latencies) |
//! | in a tree | up and down the tree ([`tree`]) | that of [`TreePipeline`] |
//! | from or to a root otherwise | the formula of [`auto`](super::auto), without loads | what the busiest port sends; around a ring both ways, life |
//! | others | the same | life |
//!
//! So chunks one behind the other in one dimension never help where a closed form holds and one is active: they cost the
//! latencies of all stages again. Along several dimensions they keep all of them busy, and in trees all levels.
//!
//! A schedule with closed forms only and one active chunk takes exactly what is estimated. All else is an estimate, of
//! which only the number of chunks depends, never a time.
//!
//! A number is tried only if its lower bound, what the busiest phase has to do and what comes before and after it, is
//! less than the best time so far.

use super::flow_shop::{FlowShopInput, schedule};
use super::line_cost::LineCostModel;
use super::routes::routes;
use super::{
    AlgorithmChoice, ChunkPipeline, ChunkSchedule, CollectiveAlgorithm, CollectivePrimitive,
    StageAssignment, tree,
};
use crate::group::{GroupExtent, SharedPaths};
use crate::topology::{NetworkPath, Topology};
use chakram_base::collective_kind::CollectiveKind;
use chakram_base::ids::Npu;
use chakram_base::units::{BufferShare, InverseRate, Span};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

/// The most chunks that are chosen.
pub const MOST: u32 = 128;

/// Bound on chunks · members · (stages + 1), far below what a replay holds message by message.
const MOST_STATE: u64 = 1 << 26;

/// Relative excess over the best at which fewer chunks are taken.
const MARGIN: f64 = 0.005;

/// Chosen numbers by everything that they follow from, for all groups of one shape.
#[derive(Clone, Debug, Default)]
pub struct ChunkChoices(Arc<Mutex<BTreeMap<ChoiceKey, NonZeroU32>>>);

type ChoiceKey = (CollectiveKind, u64, bool, Vec<PhaseKey>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PhaseKey {
    dimension: usize,
    size: u32,
    both_ways: bool,
    next: Option<[u64; 3]>,
    any: Option<[u64; 3]>,
    /// The members of the line whose distances decide, where paths differ.
    line: Vec<Npu>,
}

/// All of a path that is not the same for the whole machine.
fn path_key(path: NetworkPath) -> [u64; 3] {
    let others = path.others.estimate(BufferShare::whole(1 << 40));
    [
        path.latency.0,
        path.bandwidth.bytes_per_second().to_bits(),
        others.picoseconds().to_bits(),
    ]
}

/// A collective whose chunks are to be counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedCollective<'a> {
    pub of: (CollectiveKind, u64),
    pub extent: &'a GroupExtent,
    pub topology: &'a Topology,
    /// Those of the phases of `extent`.
    pub paths: &'a [SharedPaths],
    pub choices: &'a [AlgorithmChoice],
}

/// Life and interval of a stage.
#[derive(Clone, Copy, Debug, PartialEq)]
struct StageCost {
    life: Span,
    interval: Span,
}

/// Chunks of one size on their way through a tree, or two.
///
/// The busiest port sends ρ messages for each chunk: in a tree of n members min(n−1, 3) for an all-reduce, and otherwise
/// 2, or 1 below four members; in two trees, between which chunks alternate, (1 + that) / 2, and 1. As long as every chunk
/// finds a place (`native.rs`), the next follows after ρt. Where those that wait for data hold all places for longer than
/// the ports are busy, chunks come in waves, each as long as a place is held.
///
/// The factors are fitted to replays of 2 to 64 members, t of all from 0.03 to 10,000 latencies, in 1 to 128 chunks: those that are
/// chosen by them take at most 6 % longer than the best, and mostly less than 1 %.
#[derive(Clone, Copy, Debug)]
struct TreePipeline {
    double: bool,
    /// True for all-reduce, which goes up and down.
    fused: bool,
    members: u32,
    /// Number of a member's chunks at once.
    places: u32,
    /// Time of one chunk alone, in picoseconds.
    life: f64,
    /// Time of one message, in picoseconds.
    message: f64,
}

impl TreePipeline {
    /// Part of ρt after which a chunk follows in two trees while there are places: in the first few chunks not every port
    /// is as busy as the busiest.
    const FILLING: f64 = 0.85;
    /// Part of the life of a chunk for which a member holds its place in an all-reduce, which queues lengthen from three
    /// members on.
    const HELD_BOTH_WAYS: f64 = 1.2;
    /// The same in two trees that go one way, which members are at different depths of.
    const HELD_ONE_WAY: f64 = 0.4;

    /// Average time between `chunks`.
    fn interval(&self, chunks: u32) -> f64 {
        let single = match self.fused {
            true => (self.members - 1).min(3),
            false => 1 + u32::from(self.members > 3),
        };
        let messages = match (self.double, self.fused) {
            (false, _) => f64::from(single),
            (true, true) => f64::from(1 + single) / 2.0,
            (true, false) => 1.0,
        };
        let busy = messages * self.message;
        let held = match self.fused {
            true if self.members == 2 => self.life,
            true => Self::HELD_BOTH_WAYS * self.life,
            false if self.double && self.members > 2 => Self::HELD_ONE_WAY * self.life,
            false => 0.0,
        };
        if chunks <= self.places {
            return match self.double && self.fused && self.members > 2 {
                true => Self::FILLING * busy,
                false => busy,
            };
        }
        if held <= f64::from(self.places) * busy {
            return busy;
        }
        let others = chunks - 1;
        let (waves, rest) = (others / self.places, others % self.places);
        (f64::from(waves) * held + f64::from(rest) * busy) / f64::from(others)
    }
}

impl ChunkChoices {
    /// The machine's chunking with the number of chunks that it states, or else the chosen one.
    pub(super) fn resolve(
        &self,
        collective: &CountedCollective<'_>,
        pipeline: ChunkPipeline,
    ) -> ChunkPipeline {
        let chunks = pipeline.chunks.unwrap_or_else(|| {
            if collective.is_trivial(pipeline) {
                return NonZeroU32::MIN;
            }
            let key = collective.key();
            // A number once written is right, whatever became of its writer.
            let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let found = known().get(&key).copied();
            found.unwrap_or_else(|| {
                let chosen = collective.choose(pipeline);
                known().insert(key, chosen);
                chosen
            })
        });
        ChunkPipeline {
            chunks: Some(chunks),
            ..pipeline
        }
    }
}

impl CountedCollective<'_> {
    /// Returns true if one chunk is the best without any trial: along one dimension, by an algorithm with a closed form. On
    /// tiles, where the ways of a group's members cross one another, nothing is known of others.
    fn is_trivial(&self, pipeline: ChunkPipeline) -> bool {
        if self.topology.tiles().is_some() {
            return true;
        }
        let [phase] = &self.extent.phases[..] else {
            return self.extent.phases.is_empty();
        };
        let named = !matches!(self.choices[phase.dimension], AlgorithmChoice::Auto);
        named && pipeline.active.get() == 1 && {
            let one = self.routes(pipeline, 1);
            let mut all = one.stages().iter();
            all.all(|assignment| assignment.closed_form(self.extent, self.paths).is_some())
        }
    }

    fn key(&self) -> ChoiceKey {
        let phases = self.extent.phases.iter().zip(self.paths);
        let phases = phases.map(|(phase, paths)| {
            let line = 0..phase.size;
            let alike = paths.next.is_some() && paths.any.is_some();
            PhaseKey {
                dimension: phase.dimension,
                size: phase.size,
                both_ways: self.extent.closes_ring(phase, self.topology),
                next: paths.next.map(path_key),
                any: paths.any.map(path_key),
                line: line
                    .filter(|_| !alike)
                    .map(|at| self.extent.npus[(at * phase.stride) as usize])
                    .collect(),
            }
        });
        (self.of.0, self.of.1, self.extent.regular, phases.collect())
    }

    fn routes(&self, pipeline: ChunkPipeline, chunks: u32) -> ChunkSchedule<StageAssignment> {
        let pipeline = ChunkPipeline {
            chunks: NonZeroU32::new(chunks),
            ..pipeline
        };
        routes(
            self.of,
            (self.extent, self.topology),
            self.choices,
            pipeline,
        )
    }

    fn choose(&self, pipeline: ChunkPipeline) -> NonZeroU32 {
        let one = self.routes(pipeline, 1);
        let members = u64::from(self.extent.size()).saturating_mul(one.length() as u64 + 1);
        let most = u64::from(MOST)
            .min(self.of.1)
            .min(MOST_STATE / members.max(1));
        let costs = |chunks| {
            let plan = self.routes(pipeline, chunks);
            let of = |assignment| self.cost(assignment, pipeline.active.get(), plan.chunks());
            let costs: Vec<StageCost> = plan.stages().iter().map(of).collect();
            (plan, costs)
        };
        let mut bounds: Vec<(Span, u32)> = (1..=most.max(1) as u32)
            .map(|chunks| {
                let (plan, costs) = costs(chunks);
                (self.bound(&plan, &costs), chunks)
            })
            .collect();
        let end = |chunks| {
            let (plan, costs) = costs(chunks);
            self.end(&plan, &costs, pipeline)
        };
        let mut known: Vec<Option<Span>> = vec![None; bounds.len() + 1];
        let exceeds = |span: Span, best: Span| span.0 as f64 > best.0 as f64 * (1.0 + MARGIN);
        let mut best = Span(u64::MAX);
        bounds.sort_unstable();
        for &(bound, chunks) in &bounds {
            if bound >= best {
                break;
            }
            let time = end(chunks);
            known[chunks as usize] = Some(time);
            best = best.min(time);
        }
        bounds.sort_unstable_by_key(|&(_, chunks)| chunks);
        let fewest = bounds.iter().find(|&&(bound, chunks)| {
            !exceeds(bound, best)
                && !exceeds(known[chunks as usize].unwrap_or_else(|| end(chunks)), best)
        });
        fewest.map_or(NonZeroU32::MIN, |&(_, chunks)| {
            NonZeroU32::new(chunks).unwrap_or(NonZeroU32::MIN)
        })
    }

    /// Life and interval of a stage of one of `chunks`.
    fn cost(&self, assignment: &StageAssignment, active: u32, chunks: u32) -> StageCost {
        let StageAssignment {
            stage, algorithm, ..
        } = assignment;
        let phase = &self.extent.phases[stage.phase];
        let n = phase.size;
        let span = |picoseconds: f64| Span(picoseconds.round() as u64);
        if let Some(path) = assignment.path(&self.paths[stage.phase])
            && let Some(life) = algorithm.closed_form(stage, n, &path)
        {
            let interval = match active {
                1 => life,
                _ => {
                    let prompt = NetworkPath {
                        latency: Span::ZERO,
                        others: InverseRate::ZERO,
                        ..path
                    };
                    let busy = algorithm.closed_form(stage, n, &prompt).unwrap_or(life);
                    busy.max(Span(life.0 / u64::from(active)))
                }
            };
            return StageCost { life, interval };
        }
        let line = LineCostModel::new(self.extent, phase, self.topology).without_load();
        if matches!(
            algorithm,
            CollectiveAlgorithm::Tree | CollectiveAlgorithm::DoubleBinaryTree
        ) {
            let (life, message) = tree::life(&line, stage.primitive, stage.buffer);
            let levels = n.next_power_of_two().ilog2();
            let trees = TreePipeline {
                double: *algorithm == CollectiveAlgorithm::DoubleBinaryTree,
                fused: stage.primitive == CollectivePrimitive::AllReduce,
                members: n,
                places: active.max(4 * levels),
                life: life.picoseconds(),
                message: message.picoseconds(),
            };
            return StageCost {
                life: span(life.picoseconds()),
                interval: span(trees.interval(chunks).min(trees.life)),
            };
        }
        let Some(life) = algorithm.cost(&line, stage.primitive, stage.buffer) else {
            // Nobody has said what it costs.
            let link = self.topology.dimensions()[phase.dimension].link();
            let latency = self.topology.dimensions()[phase.dimension].latency;
            let (message, count) = algorithm.serial_messages(stage, n);
            let life = (link.serialization(message) + latency).times(count.into());
            let interval = life;
            return StageCost { life, interval };
        };
        let life = span(life.picoseconds());
        // Without a root all do the same at once; a line that is no sub-grid has longer ways that set the pace; around a ring, those that are near the root one way are far from it the
        // other way.
        if stage.bidirectional || !stage.primitive.has_root() || !self.extent.regular {
            return StageCost {
                life,
                interval: life,
            };
        }
        let port = line.way(1).alone();
        let (amount, count) = match (stage.primitive, algorithm) {
            (CollectivePrimitive::Broadcast | CollectivePrimitive::Reduce, _) => match algorithm {
                CollectiveAlgorithm::Ring => (stage.buffer, 1),
                CollectiveAlgorithm::Direct => (stage.buffer, n - 1),
                _ => (stage.buffer, n.next_power_of_two().ilog2()),
            },
            _ => (stage.part(n), n - 1),
        };
        let busy = port.passes(amount).times(count.into());
        StageCost {
            life,
            interval: span(busy.picoseconds()).min(life),
        }
    }

    /// Time of the collective: each stage is passed at its interval, and its life goes on beside the next chunk.
    fn end(
        &self,
        plan: &ChunkSchedule<StageAssignment>,
        costs: &[StageCost],
        pipeline: ChunkPipeline,
    ) -> Span {
        let stages = || plan.stages().iter().zip(costs);
        let phases = self.extent.phases.len() as u32;
        let overlaps = costs.iter().any(|cost| cost.interval < cost.life);
        let parts = 1 + usize::from(overlaps);
        let mut spans = Vec::with_capacity(parts * costs.len());
        let (mut queue_of, mut back) = (Vec::new(), Vec::new());
        for (assignment, cost) in stages() {
            let phase = assignment.stage.phase as u32;
            let rests = [(cost.interval, phase), (cost.life - cost.interval, phases)];
            for &(span, queue) in &rests[..parts] {
                spans.push(span);
                queue_of.push(queue);
                back.push(assignment.stage.primitive == CollectivePrimitive::AllGather);
            }
        }
        // A phase is passed one by one, and all may be in the rest of their lives.
        let mut capacity = vec![1; phases as usize];
        capacity.push(u32::MAX);
        let routes = (0..plan.chunks()).map(|chunk| plan.route(chunk) as u32);
        let length = parts * plan.length();
        let plan = ChunkSchedule::routed(vec![(); spans.len()], length, routes.collect());
        let stages = FlowShopInput {
            spans: &spans,
            queue_of: &queue_of,
            capacity: &capacity,
            back: &back,
            intra: pipeline.intra,
        };
        schedule(&plan, stages).end
    }

    /// A lower bound of [`Self::end`]: what the chunks take in one phase, with the least that comes before and after it.
    fn bound(&self, plan: &ChunkSchedule<StageAssignment>, costs: &[StageCost]) -> Span {
        let length = plan.length();
        let sum = |all: &[StageCost]| all.iter().fold(Span::ZERO, |sum, cost| sum + cost.life);
        let routes = plan.stages().len() / length.max(1);
        let mut chunks = vec![0_u64; routes];
        for chunk in 0..plan.chunks() {
            chunks[plan.route(chunk)] += 1;
        }
        let phase = |number: usize| {
            let mut busy = Span::ZERO;
            let (mut before, mut after) = (Span(u64::MAX), Span(u64::MAX));
            for (route, &count) in chunks.iter().enumerate() {
                let range = route * length..(route + 1) * length;
                let (stages, costs) = (&plan.stages()[range.clone()], &costs[range]);
                let visits = |assignment: &StageAssignment| assignment.stage.phase == number;
                for (_, cost) in stages.iter().zip(costs).filter(|(stage, _)| visits(stage)) {
                    busy += cost.interval.times(count);
                }
                let first = stages.iter().position(visits);
                let last = stages.iter().rposition(visits);
                if let (Some(first), Some(last), true) = (first, last, count > 0) {
                    before = before.min(sum(&costs[..first]));
                    let rest = costs[last].life - costs[last].interval;
                    after = after.min(rest + sum(&costs[last + 1..]));
                } else if count > 0 {
                    (before, after) = (Span::ZERO, Span::ZERO);
                }
            }
            match busy {
                Span::ZERO => Span::ZERO,
                _ => before + busy + after,
            }
        };
        (0..self.extent.phases.len())
            .map(phase)
            .max()
            .unwrap_or(Span::ZERO)
    }
}
