//! Chooses a collective's number of chunks if the machine does not set it: the smallest sufficient number from 1 to
//! [`MOST`]. A number is sufficient if the collective takes at most 0.5 % longer with it than with the best number.
//!
//! In a pipeline of chunks, each stage of a chunk has a *life* and an *interval*. The life runs from the stage's start
//! to its end. The next chunk may enter the phase once the interval has passed. A flow shop model of chunks and phases
//! computes the total time from lives and intervals:
//!
//! | stage | life | interval |
//! |---|---|---|
//! | with a closed form s | s | max(s / active, s without latencies) |
//! | in a tree | one chunk, simulated ([`StageMessagePrograms`]) | (all chunks − life) / (chunks − 1), both simulated |
//! | otherwise, with a root | formula of [`auto`](super::auto), no loads | busiest port's time; ring both ways: life |
//! | all others | the same | life |
//!
//! Along one dimension, several chunks never help if a closed form exists and one chunk is active at a time: each
//! additional chunk would only repeat the latencies of all stages. Along several dimensions, several chunks keep all
//! dimensions busy; in trees, they keep all levels busy.
//!
//! The estimate is exact for a schedule that has only closed forms and one active chunk, and for a single tree stage.
//! Estimates for all other schedules only select the number of chunks and never enter a result.
//!
//! A number of chunks is tried only if its lower bound is below the best time so far. The bound is the time that the
//! busiest phase works, plus the shortest time before and after it. If trees are simulated message by message, the
//! search first grows the number of chunks by an eighth at each step. It tries the numbers around the best one last.
//! The search ends when all trials together exceed both of two message counts: [`MOST_MESSAGES`], and the count for
//! [`MOST_TRIALS`] trials with the maximum number of chunks. For trees of 2 to 31 members, a collective with the chosen
//! number takes at most 1.5 % longer than with the best number from 1 to 128. This holds if sending the whole buffer
//! takes 0.3 to 20,000 times the latency.
//!
//! # Free algorithms
//!
//! If the machine leaves a dimension's algorithm open (`auto`), trees are tried too, each with its own best number of
//! chunks. In such a trial, a tree or a double tree replaces the algorithm that is fastest with one chunk. An
//! all-reduce tries trees in the outermost dimension, and a broadcast or reduce tries trees in every dimension. A tree
//! is kept if it makes the collective end earlier.

use super::flow_shop::{FlowShopInput, simulate_flow_shop};
use super::line_cost::LineMessageCosts;
use super::routes::build_collective_chunk_schedule;
use super::stage_flow::StageMessagePrograms;
use super::{
    ChunkCountOrderAndOverlap, ChunkStageSequences, CollectiveAlgorithm, CollectiveStagePrimitive,
    DimensionAlgorithmChoice, StageWithAlgorithm,
};
use crate::group::{GroupPhasesAndMemberPositions, PathsToNextAndAnyMember};
use crate::topology::{PathLatencyAndRates, Topology};
use chakram_base::collective_kind::CollectiveKind;
use chakram_base::ids::Npu;
use chakram_base::units::{Span, SummedSecondsPerByte, UnroundedBufferShare};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of chunks that can be chosen.
pub const MOST: u32 = 128;

/// Upper bound on the product chunks · members · (stages + 1). A message-by-message replay could handle a far larger
/// product.
const MOST_STATE: u64 = 1 << 26;

/// The choice is the smallest number of chunks that takes at most this fraction longer than the best number.
const MARGIN: f64 = 0.005;

/// Upper bound on the messages in all trials of a tree collective; the bound is higher if [`MOST_TRIALS`] trials with
/// the most chunks need more.
const MOST_MESSAGES: u64 = 1 << 18;
const MOST_TRIALS: u64 = 3;

/// Caches the chosen number of chunks for each key. A key contains everything that affects a choice, so all groups of
/// one shape share an entry.
#[derive(Clone, Debug, Default)]
pub struct ChunkCountChoiceCache(
    Arc<Mutex<BTreeMap<ChunkCountChoiceKey, ChosenChunkCountAndAlgorithms>>>,
);

/// The chosen number of chunks, and the algorithms of the machine's dimensions if they were chosen together with it.
#[derive(Clone, Debug)]
pub(super) struct ChosenChunkCountAndAlgorithms {
    chunks: NonZeroU32,
    algorithms: Option<Arc<[DimensionAlgorithmChoice]>>,
}

/// How a collective is divided into chunks, and its algorithms if they were chosen together with the number of chunks.
#[derive(Clone, Debug)]
pub(super) struct ChunkingAndChosenAlgorithms {
    pub pipeline: ChunkCountOrderAndOverlap,
    algorithms: Option<Arc<[DimensionAlgorithmChoice]>>,
}

impl ChunkingAndChosenAlgorithms {
    /// Returns the chosen algorithms, or the machine's algorithms if none were chosen.
    pub fn algorithms_or<'s>(
        &'s self,
        machine: &'s [DimensionAlgorithmChoice],
    ) -> &'s [DimensionAlgorithmChoice] {
        self.algorithms.as_deref().unwrap_or(machine)
    }
}

impl From<ChunkCountOrderAndOverlap> for ChunkingAndChosenAlgorithms {
    fn from(pipeline: ChunkCountOrderAndOverlap) -> Self {
        Self {
            pipeline,
            algorithms: None,
        }
    }
}

type ChunkCountChoiceKey = (CollectiveKind, u64, bool, Vec<PhaseExtentAndPathsKey>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PhaseExtentAndPathsKey {
    dimension: usize,
    size: u32,
    both_ways: bool,
    next: Option<[u64; 3]>,
    any: Option<[u64; 3]>,
    /// The members of the line; empty if all paths are equal, because distances then do not matter.
    line: Vec<Npu>,
}

/// Returns a key that is equal for two paths of one machine only if the paths are equal.
fn path_key(path: PathLatencyAndRates) -> [u64; 3] {
    let others = path
        .others
        .estimate_serialization(UnroundedBufferShare::from_bytes(1 << 40));
    [
        path.latency.0,
        path.bandwidth.bytes_per_second().to_bits(),
        others.as_unrounded_picoseconds().to_bits(),
    ]
}

/// Properties of a collective that affect its number of chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkCountSearchInputs<'a> {
    pub of: (CollectiveKind, u64),
    pub extent: &'a GroupPhasesAndMemberPositions,
    pub topology: &'a Topology,
    /// For each phase of `extent`, the paths between members, if all members have the same paths.
    pub paths: &'a [PathsToNextAndAnyMember],
    pub choices: &'a [DimensionAlgorithmChoice],
}

/// Returns the maximum number of chunks that a member of a tree with `size` members may process at the same time: at
/// least four per level.
pub(super) fn max_chunks_in_flight_in_tree(active: u32, size: u32) -> u32 {
    active.max(4 * size.next_power_of_two().ilog2())
}

/// Returns true if a stage uses one tree or two trees.
pub(super) fn uses_tree_algorithm(assignment: &StageWithAlgorithm) -> bool {
    matches!(
        assignment.algorithm,
        CollectiveAlgorithm::MemberMessageTree | CollectiveAlgorithm::DoubleBinaryTree
    )
}

/// Life and interval of a stage (see the module documentation).
#[derive(Clone, Copy, Debug, PartialEq)]
struct StageLifeAndInterval {
    life: Span,
    interval: Span,
}

impl ChunkCountChoiceCache {
    /// Returns the machine's chunking. If the machine states no number of chunks, chooses one.
    pub(super) fn resolve_chunks(
        &self,
        collective: &ChunkCountSearchInputs<'_>,
        pipeline: ChunkCountOrderAndOverlap,
    ) -> ChunkingAndChosenAlgorithms {
        if pipeline.chunks.is_some() {
            return pipeline.into();
        }
        let with = |chunks| ChunkCountOrderAndOverlap {
            chunks: Some(chunks),
            ..pipeline
        };
        if collective.needs_no_chunk_count_trial(pipeline) {
            return with(NonZeroU32::MIN).into();
        }
        let key = collective.choice_key();
        // Entries are never modified after insertion, so a poisoned lock does no harm.
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known().get(&key).cloned();
        let choice = found.unwrap_or_else(|| {
            let chosen = collective.choose_fastest_count_and_algorithms(pipeline);
            known().insert(key, chosen.clone());
            chosen
        });
        ChunkingAndChosenAlgorithms {
            pipeline: with(choice.chunks),
            algorithms: choice.algorithms,
        }
    }
}

/// Estimated time of the collective for each number of chunks tried so far.
type TriedChunkCountTimes = BTreeMap<u32, Span>;

/// Returns the numbers of chunks up to `most`, each about an eighth larger than the previous one.
fn candidate_counts(most: u32) -> impl Iterator<Item = u32> {
    let next = move |&at: &u32| (at < most).then(|| most.min(at + (at / 8).max(1)));
    std::iter::successors(Some(1), next)
}

impl ChunkCountSearchInputs<'_> {
    /// Returns true if one chunk is chosen without any trial: along one dimension, with an algorithm that has a closed
    /// form. Also returns true on tiles, where members' routes cross, so the time of several chunks cannot be
    /// predicted.
    fn needs_no_chunk_count_trial(&self, pipeline: ChunkCountOrderAndOverlap) -> bool {
        if self.topology.tile_grid().is_some() {
            return true;
        }
        let [phase] = &self.extent.phases[..] else {
            return self.extent.phases.is_empty();
        };
        let named = !matches!(
            self.choices[phase.dimension],
            DimensionAlgorithmChoice::Auto
        );
        named && pipeline.active.get() == 1 && {
            let one = self.route_chunks(pipeline, 1);
            let mut all = one.stages_of_all_routes().iter();
            all.all(|assignment| assignment.closed_form(self.extent, self.paths).is_some())
        }
    }

    fn choice_key(&self) -> ChunkCountChoiceKey {
        let phases = self.extent.phases.iter().zip(self.paths);
        let phases = phases.map(|(phase, paths)| {
            let line = 0..phase.size;
            let alike = paths.next.is_some() && paths.any.is_some();
            PhaseExtentAndPathsKey {
                dimension: phase.dimension,
                size: phase.size,
                both_ways: self.extent.is_evenly_spaced_ring(phase, self.topology),
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

    fn route_chunks(
        &self,
        pipeline: ChunkCountOrderAndOverlap,
        chunks: u32,
    ) -> ChunkStageSequences<StageWithAlgorithm> {
        let pipeline = ChunkCountOrderAndOverlap {
            chunks: NonZeroU32::new(chunks),
            ..pipeline
        };
        build_collective_chunk_schedule(
            self.of,
            (self.extent, self.topology),
            self.choices,
            pipeline,
        )
    }

    /// Returns the number of chunks and the algorithms that make the collective fastest.
    fn choose_fastest_count_and_algorithms(
        &self,
        pipeline: ChunkCountOrderAndOverlap,
    ) -> ChosenChunkCountAndAlgorithms {
        let (mut chunks, mut best) = self.choose_count(pipeline);
        let mut algorithms = self.choices.to_vec();
        let phases = self.extent.phases.iter();
        let last = phases.len().saturating_sub(1);
        let carries = |&(at, _): &(usize, _)| match self.of.0 {
            CollectiveKind::AllReduce => at == last,
            CollectiveKind::Broadcast | CollectiveKind::Reduce => true,
            _ => false,
        };
        let mut chosen = None;
        for (_, phase) in phases.enumerate().filter(carries) {
            if algorithms[phase.dimension] != DimensionAlgorithmChoice::Auto {
                continue;
            }
            for tree in [
                CollectiveAlgorithm::DoubleBinaryTree,
                CollectiveAlgorithm::MemberMessageTree,
            ] {
                let mut choices = algorithms.clone();
                choices[phase.dimension] = DimensionAlgorithmChoice::Named(tree);
                let other = ChunkCountSearchInputs {
                    choices: &choices,
                    ..*self
                };
                let (count, time) = other.choose_count(pipeline);
                if time < best {
                    (chunks, best) = (count, time);
                    chosen = Some(choices);
                }
            }
            algorithms = chosen.clone().unwrap_or(algorithms);
        }
        ChosenChunkCountAndAlgorithms {
            chunks,
            algorithms: chosen.map(Arc::from),
        }
    }

    /// Returns the best number of chunks and the time estimated for it.
    fn choose_count(&self, pipeline: ChunkCountOrderAndOverlap) -> (NonZeroU32, Span) {
        let one = self.route_chunks(pipeline, 1);
        let members =
            u64::from(self.extent.member_count()).saturating_mul(one.stages_per_chunk() as u64 + 1);
        let most = u64::from(MOST)
            .min(self.of.1)
            .min(MOST_STATE / members.max(1))
            .max(1);
        let flows = one
            .stages_of_all_routes()
            .iter()
            .filter(|stage| uses_tree_algorithm(stage));
        let messages: u64 = flows
            .map(|stage| self.build_tree_stage_programs(stage).messages_per_chunk())
            .sum();
        let costs = |chunks, exact| {
            let plan = self.route_chunks(pipeline, chunks);
            let of = |stage| {
                self.estimate_stage_life_and_interval(
                    stage,
                    pipeline.active.get(),
                    (plan.chunk_count(), exact),
                )
            };
            let costs: Vec<StageLifeAndInterval> =
                plan.stages_of_all_routes().iter().map(of).collect();
            (plan, costs)
        };
        // Without trees, a trial is cheap, so every number of chunks is tried.
        let numbers: Vec<u32> = match messages {
            0 => (1..=most as u32).collect(),
            _ => candidate_counts(most as u32).collect(),
        };
        let bounds = numbers.iter().map(|&chunks| {
            let (plan, costs) = costs(chunks, false);
            (self.lower_bound(&plan, &costs), chunks)
        });
        let mut bounds: Vec<(Span, u32)> = bounds.collect();
        let end = |chunks| {
            let (plan, costs) = costs(chunks, true);
            self.estimate_collective_time(&plan, &costs, pipeline)
        };
        let mut known = TriedChunkCountTimes::new();
        let mut left = MOST_MESSAGES.max(MOST_TRIALS * most * messages);
        let mut try_out = |known: &mut TriedChunkCountTimes, chunks: u32| {
            let cost = messages * u64::from(chunks);
            if known.contains_key(&chunks) || cost > left {
                return;
            }
            left -= cost;
            known.insert(chunks, end(chunks));
        };
        let best_of = |known: &TriedChunkCountTimes| {
            known.iter().map(|(&chunks, &time)| (time, chunks)).min()
        };
        // Try numbers in ascending order of bounds: when a bound reaches the best time, no later number can be better.
        bounds.sort_unstable();
        for &(bound, chunks) in &bounds {
            if best_of(&known).is_some_and(|(best, _)| bound >= best) {
                break;
            }
            try_out(&mut known, chunks);
        }
        // With trees, only the coarse numbers have been tried so far, so try numbers around the best.
        for round in 0..3 {
            let Some((_, best)) = best_of(&known).filter(|_| messages > 0) else {
                break;
            };
            let [below, above] = match round {
                // Try the geometric means of the best number and its neighbours.
                0 | 1 => [
                    numbers.iter().rev().find(|&&other| other < best),
                    numbers.iter().find(|&&other| other > best),
                ]
                .map(|other| other.map_or(best, |&other| (best * other).isqrt())),
                _ => [best - 1, best + 1],
            };
            for chunks in [below, above] {
                if (1..=most as u32).contains(&chunks) {
                    try_out(&mut known, chunks);
                }
            }
        }
        let (best, _) = best_of(&known).unwrap_or_default();
        let exceeds = |span: Span| span.0 as f64 > best.0 as f64 * (1.0 + MARGIN);
        bounds.sort_unstable_by_key(|&(_, chunks)| chunks);
        // The search may have skipped smaller numbers within the margin, so also try these.
        for &(bound, chunks) in bounds.iter().filter(|_| messages == 0) {
            let is_enough = known.get(&chunks).is_some_and(|&time| !exceeds(time));
            if is_enough {
                break;
            }
            if !exceeds(bound) {
                try_out(&mut known, chunks);
            }
        }
        let fewest = known.iter().find(|&(_, &time)| !exceeds(time));
        let (chunks, time) = fewest.map_or((1, best), |(&chunks, &time)| (chunks, time));
        (NonZeroU32::new(chunks).unwrap_or(NonZeroU32::MIN), time)
    }

    /// Builds the message programs of one chunk in a tree stage.
    fn build_tree_stage_programs(&self, assignment: &StageWithAlgorithm) -> StageMessagePrograms {
        let phase = &self.extent.phases[assignment.stage.phase];
        let line = LineMessageCosts::new(self.extent, phase, self.topology);
        StageMessagePrograms::new(&line, assignment.algorithm, &assignment.stage)
    }

    /// Returns the life and the interval of a stage if the collective has `chunks` chunks. For trees, the result is
    /// only a lower bound if `exact` is false.
    fn estimate_stage_life_and_interval(
        &self,
        assignment: &StageWithAlgorithm,
        active: u32,
        (chunks, exact): (u32, bool),
    ) -> StageLifeAndInterval {
        let StageWithAlgorithm {
            stage, algorithm, ..
        } = assignment;
        let phase = &self.extent.phases[stage.phase];
        let n = phase.size;
        let span = |picoseconds: f64| Span(picoseconds.round() as u64);
        if let Some(path) = assignment.uniform_path(&self.paths[stage.phase])
            && let Some(life) = algorithm.closed_form(stage, n, &path)
        {
            let interval = match active {
                1 => life,
                _ => {
                    let prompt = PathLatencyAndRates {
                        latency: Span::ZERO,
                        others: SummedSecondsPerByte::ZERO,
                        ..path
                    };
                    let busy = algorithm.closed_form(stage, n, &prompt).unwrap_or(life);
                    busy.max(Span(life.0 / u64::from(active)))
                }
            };
            return StageLifeAndInterval { life, interval };
        }
        if uses_tree_algorithm(assignment) {
            let flow = self.build_tree_stage_programs(assignment);
            let life = flow.simulate_end(1, 1);
            let all = match (exact, chunks) {
                (_, 1) => life,
                (true, _) => flow.simulate_end(chunks, max_chunks_in_flight_in_tree(active, n)),
                (false, _) => flow.busiest_port_time(chunks),
            };
            let rest = Span(all.0.saturating_sub(life.0));
            let interval = Span(rest.0.div_ceil(u64::from(chunks.max(2) - 1)));
            return StageLifeAndInterval {
                life,
                interval: interval.min(life),
            };
        }
        let line = LineMessageCosts::new(self.extent, phase, self.topology).to_model_without_load();
        let Some(life) = algorithm.estimate_cost(&line, stage.primitive, stage.buffer) else {
            // The algorithm has no formula, so approximate its time by a series of equal messages.
            let link = self.topology.dimensions()[phase.dimension].link_bandwidth();
            let latency = self.topology.dimensions()[phase.dimension].latency;
            let (message, count) = algorithm.approximate_serial_messages(stage, n);
            let life = (link.serialization_time(message) + latency).times(count.into());
            let interval = life;
            return StageLifeAndInterval { life, interval };
        };
        let life = span(life.as_unrounded_picoseconds());
        // The interval equals the life in three cases. Without a root, all members are busy for the whole stage. If the
        // group is not a sub-grid, routes are longer and determine the interval. In a ring used in both directions, a
        // member near the root in one direction is far from it in the other.
        if stage.bidirectional || !stage.primitive.has_root() || !self.extent.regular {
            return StageLifeAndInterval {
                life,
                interval: life,
            };
        }
        let port = line.path_at_distance(1).without_load_of_other_messages();
        let (amount, count) = match (stage.primitive, algorithm) {
            (CollectiveStagePrimitive::Broadcast | CollectiveStagePrimitive::Reduce, _) => {
                match algorithm {
                    CollectiveAlgorithm::Ring => (stage.buffer, 1),
                    CollectiveAlgorithm::Direct => (stage.buffer, n - 1),
                    _ => (stage.buffer, n.next_power_of_two().ilog2()),
                }
            }
            _ => (stage.one_of_n_equal_parts_per_direction(n), n - 1),
        };
        let busy = port.time_under_load(amount).times(count.into());
        StageLifeAndInterval {
            life,
            interval: span(busy.as_unrounded_picoseconds()).min(life),
        }
    }

    /// Returns the estimated time of the collective. The next chunk may enter a stage after the previous chunk's
    /// interval, even while the previous chunk's life continues.
    fn estimate_collective_time(
        &self,
        plan: &ChunkStageSequences<StageWithAlgorithm>,
        costs: &[StageLifeAndInterval],
        pipeline: ChunkCountOrderAndOverlap,
    ) -> Span {
        // With a single stage, each chunk starts one interval after the previous chunk.
        if let [only] = costs {
            let before = u64::from(plan.chunk_count().saturating_sub(1));
            return only.interval.times(before) + only.life;
        }
        let stages = || plan.stages_of_all_routes().iter().zip(costs);
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
                back.push(assignment.stage.primitive == CollectiveStagePrimitive::AllGather);
            }
        }
        // Each phase admits one chunk at a time. A chunk may remain after its interval, so the phase may hold any
        // number of chunks.
        let mut capacity = vec![1; phases as usize];
        capacity.push(u32::MAX);
        let routes = (0..plan.chunk_count()).map(|chunk| plan.route_index_of_chunk(chunk) as u32);
        let length = parts * plan.stages_per_chunk();
        let plan = ChunkStageSequences::from_stages_and_chunk_route_indices(
            vec![(); spans.len()],
            length,
            routes.collect(),
        );
        let stages = FlowShopInput {
            spans: &spans,
            queue_of: &queue_of,
            capacity: &capacity,
            back: &back,
            intra: pipeline.intra,
        };
        simulate_flow_shop(&plan, stages).end
    }

    /// Returns a lower bound of [`Self::estimate_collective_time`]: the time that all chunks spend in one phase, plus
    /// the shortest time before and after that phase.
    fn lower_bound(
        &self,
        plan: &ChunkStageSequences<StageWithAlgorithm>,
        costs: &[StageLifeAndInterval],
    ) -> Span {
        let length = plan.stages_per_chunk();
        let sum =
            |all: &[StageLifeAndInterval]| all.iter().fold(Span::ZERO, |sum, cost| sum + cost.life);
        let routes = plan.stages_of_all_routes().len() / length.max(1);
        let mut chunks = vec![0_u64; routes];
        for chunk in 0..plan.chunk_count() {
            chunks[plan.route_index_of_chunk(chunk)] += 1;
        }
        let phase = |number: usize| {
            let mut busy = Span::ZERO;
            let (mut before, mut after) = (Span(u64::MAX), Span(u64::MAX));
            for (route, &count) in chunks.iter().enumerate() {
                let range = route * length..(route + 1) * length;
                let (stages, costs) = (&plan.stages_of_all_routes()[range.clone()], &costs[range]);
                let visits = |assignment: &StageWithAlgorithm| assignment.stage.phase == number;
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
