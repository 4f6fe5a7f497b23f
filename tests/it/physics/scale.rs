//! Tests the scaling law: if latencies and kernel times double and bandwidths halve, everything takes exactly twice as
//! long, provided that all durations are whole picoseconds. The choices of algorithms never change, even with rounding.

use super::lines::{TestTraceNode, build_collective, build_kernel, build_receive, build_send};
use super::rig::{
    Dim, build_job_from_rank_nodes, build_machine_with_choices, make_dim_with_fixed_link_speed,
};
use crate::corpus::sample_every_nth;
use chakram::engine::{CompiledReplay, NetworkModel, ReplayOptions};
use chakram::machine::{
    ChunkCountOrderAndOverlap, CollectiveAlgorithm, DimensionAlgorithmChoice, DimensionVisitOrder,
    Machine, WaitingChunkPriority,
};
use chakram::topology::{DimensionShape, SwitchingMode};
use chakram::trace::CollectiveKind as K;
use chakram::units::Bytes;
use std::num::NonZeroU32;

/// Random numbers from a seed, by splitmix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.roll(of.len() as u64) as usize]
    }
}

/// A machine and a job on all its NPUs, described by numbers that can be scaled.
struct ScalableMachineAndJob {
    dims: Vec<Dim>,
    choices: Vec<DimensionAlgorithmChoice>,
    switching: SwitchingMode,
    pipeline: ChunkCountOrderAndOverlap,
    model: NetworkModel,
    stepwise: bool,
    ranks: Vec<Vec<TestTraceNode>>,
    groups: Vec<(&'static str, Vec<u32>)>,
}

/// All sizes are multiples of this unit, which is divisible by up to 8 members in one or two
/// dimensions, by 4 chunks, and by the 256 grains of unequal chunks. With this unit, every message
/// takes whole picoseconds with every algorithm.
const UNIT: u64 = 840 * 4 * 256;

impl ScalableMachineAndJob {
    fn generate_random(dice: &mut Dice, unit: u64) -> Self {
        let sizes = dice.pick(&[&[2_u32][..], &[3], &[4], &[6], &[2, 2], &[3, 2], &[2, 4]]);
        let shapes = DimensionShape::ALL.map(|(shape, _)| shape);
        let dims = sizes.iter().map(|&size| Dim {
            ps_per_byte: dice.pick(&[1, 2, 3, 5, 20]),
            link_ns: dice.pick(&[0, 0, 1, 7, 500]),
            ..make_dim_with_fixed_link_speed(dice.pick(&shapes), size, CollectiveAlgorithm::Ring)
        });
        let dims: Vec<Dim> = dims.collect();
        let choices = dims.iter().map(|_| match dice.roll(3) {
            0 => DimensionAlgorithmChoice::Named(
                dice.pick(&CollectiveAlgorithm::ALL.map(|(algorithm, _)| algorithm)),
            ),
            _ => DimensionAlgorithmChoice::Auto,
        });
        let count = |dice: &mut Dice, of: &[u32]| NonZeroU32::new(dice.pick(of)).expect("no zero");
        let mut this = Self {
            choices: choices.collect(),
            dims,
            switching: dice.pick(&[
                SwitchingMode::IDEAL,
                SwitchingMode::IDEAL,
                SwitchingMode::StoreAndForward,
            ]),
            pipeline: ChunkCountOrderAndOverlap {
                chunks: Some(count(dice, &[1, 1, 2, 4])),
                active: count(dice, &[1, 2]),
                inter: dice.pick(&DimensionVisitOrder::ALL.map(|(inter, _)| inter)),
                intra: dice.pick(&WaitingChunkPriority::ALL.map(|(intra, _)| intra)),
            },
            model: dice.pick(&[
                NetworkModel::ContentionFree,
                NetworkModel::Ports,
                NetworkModel::Links,
            ]),
            stepwise: dice.roll(4) == 0,
            ranks: Vec::new(),
            groups: Vec::new(),
        };
        let npus: u32 = sizes.iter().product();
        this.ranks = vec![Vec::new(); npus as usize];
        let subset = (0..npus).filter(|_| dice.roll(3) > 0).collect::<Vec<_>>();
        this.groups = vec![("all", (0..npus).collect()), ("some", subset)];
        this.groups.retain(|(_, members)| !members.is_empty());
        for _ in 0..2 + dice.roll(5) {
            this.add_random_operation(dice, unit);
        }
        this
    }

    /// Adds a random operation to its ranks in program order, so the job cannot get stuck.
    fn add_random_operation(&mut self, dice: &mut Dice, unit: u64) {
        let ranks = self.ranks.len() as u64;
        let bytes = unit * dice.pick(&[1, 1, 2, 3, 7]);
        match dice.roll(4) {
            0 => {
                let ns = dice.pick(&[0, 1, 590, 1180, 7000]);
                let line = build_kernel(ns).on_lane(dice.pick(&[0, 1]));
                let rank = roll_rank(ranks, dice);
                self.add_node_after_earlier_node(dice, rank, line);
            }
            1 => {
                let (from, to) = (roll_rank(ranks, dice), roll_rank(ranks, dice));
                if from != to {
                    self.add_node_after_earlier_node(dice, from, build_send(to as u32, bytes));
                    self.add_node_after_earlier_node(dice, to, build_receive(from as u32, bytes));
                }
            }
            _ => {
                let kind = dice.pick(&K::ALL.map(|(kind, ..)| kind));
                let (members, name) = match dice.roll(3) {
                    0 => (self.groups[0].1.clone(), None),
                    _ => {
                        let (name, members) =
                            self.groups[dice.roll(self.groups.len() as u64) as usize].clone();
                        (members, Some(name))
                    }
                };
                let mut line = build_collective(kind, if kind == K::Barrier { 0 } else { bytes });
                if kind.has_root() {
                    line = line.with_collective_root(dice.pick(&members));
                }
                if let Some(name) = name {
                    line = line.group(name);
                }
                for rank in members {
                    self.add_node_after_earlier_node(dice, rank as usize, line.clone());
                }
            }
        }
    }

    fn add_node_after_earlier_node(&mut self, dice: &mut Dice, rank: usize, line: TestTraceNode) {
        let before = self.ranks[rank].len() as u64;
        let after = match before {
            0 => Vec::new(),
            _ if dice.roll(3) == 0 => vec![1 + dice.roll(before)],
            _ => vec![before],
        };
        self.ranks[rank].push(line.after(&after));
    }

    fn build_machine_with_times_multiplied(&self, factor: u64) -> Machine {
        let dims = self.dims.iter().map(|dim| Dim {
            ps_per_byte: dim.ps_per_byte * factor,
            link_ns: dim.link_ns * factor,
            ..*dim
        });
        let dims: Vec<Dim> = dims.collect();
        build_machine_with_choices(&dims, self.choices.clone(), self.switching)
            .with_chunking(self.pipeline)
    }

    /// Returns the makespan with all times multiplied by `factor`, and the algorithms that its
    /// groups would use for collectives of 1,001 bytes.
    fn makespan_and_chosen_algorithms(&self, factor: u64) -> (u64, Vec<String>) {
        let longer = |line: &TestTraceNode| TestTraceNode {
            ns: line.ns * factor,
            ..line.clone()
        };
        let ranks: Vec<Vec<TestTraceNode>> = self
            .ranks
            .iter()
            .map(|r| r.iter().map(longer).collect())
            .collect();
        let groups: Vec<_> = self
            .groups
            .iter()
            .map(|(name, members)| (*name, &members[..]))
            .collect();
        let workload = build_job_from_rank_nodes(&ranks, &groups);
        let machine = self.build_machine_with_times_multiplied(factor);
        let options = ReplayOptions::default_with_changes(|o| {
            o.network = Some(self.model);
            o.stepwise = self.stepwise;
        });
        let prepared = CompiledReplay::new(&workload, &machine, &options).expect("it is sound");
        let sizes = [1001];
        let said = prepared.group_views().flat_map(|group| {
            let kinds = K::ALL.map(|(kind, ..)| {
                sizes.map(|bytes| prepared.describe_algorithms_of_collective(kind, &group, bytes))
            });
            kinds.into_iter().flatten().collect::<Vec<_>>()
        });
        let said = said.collect();
        let (outcome, ()) = prepared.run(()).expect("it is sound");
        (outcome.makespan.0, said)
    }
}

fn roll_rank(ranks: u64, dice: &mut Dice) -> usize {
    dice.roll(ranks) as usize
}

#[test]
fn doubling_all_times_of_machine_and_job_doubles_the_makespan() {
    for seed in sample_every_nth(5, 0..10_000) {
        let case = ScalableMachineAndJob::generate_random(&mut Dice(seed << 20), UNIT);
        let (once, said) = case.makespan_and_chosen_algorithms(1);
        let (twice, said_twice) = case.makespan_and_chosen_algorithms(2);
        let of = |why: &str| format!("seed {seed}, {why}: {:?} {:?}", case.dims, case.pipeline);
        assert_eq!(twice, 2 * once, "{}", of("makespans"));
        assert_eq!(said_twice, said, "{}", of("algorithms"));
    }
}

/// The time of one segment at each device is also a whole number of picoseconds.
#[test]
fn doubled_times_double_makespan_with_segments() {
    for seed in 0..300 {
        let mut case = ScalableMachineAndJob::generate_random(&mut Dice(seed << 21 | 1), UNIT);
        case.switching = SwitchingMode::CutThrough { segment: Bytes(64) };
        let (once, said) = case.makespan_and_chosen_algorithms(1);
        assert_eq!(
            case.makespan_and_chosen_algorithms(2),
            (2 * once, said),
            "seed {seed}"
        );
    }
}
