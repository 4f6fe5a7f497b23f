//! Tests closed forms with contending operations. When another operation touches a closed form, a simulation replaces
//! it; the result must always equal the result with messages.

use super::lines::{TestTraceNode, build_collective, build_kernel, build_receive, build_send};
use super::rig::{
    Dim, ReplayOutcomeAndLog, build_job_from_rank_nodes, build_machine_from_dims,
    make_dim_with_fixed_link_speed, replay_with,
};
use crate::corpus::is_whole_corpus_requested;
use chakram::engine::{NetworkModel, ReplayOptions};
use chakram::machine::{
    ChunkCountOrderAndOverlap, CollectiveAlgorithm, DimensionVisitOrder, Machine,
};
use chakram::topology::DimensionShape;
use chakram::trace::CollectiveKind as K;
use chakram::workload::Workload;
use std::num::NonZeroU32;

fn make_options_of_network_and_stepwise(network: NetworkModel, stepwise: bool) -> ReplayOptions {
    ReplayOptions::default_with_changes(|o| {
        o.network = Some(network);
        o.stepwise = stepwise;
    })
}

/// Returns the completions and their times in an order that does not depend on the engine.
fn sort_events(replay: &ReplayOutcomeAndLog) -> Vec<(u64, bool, u32, u32)> {
    let mut events = replay.log.events.clone();
    events.sort_unstable();
    events
}

/// Returns a replay with closed forms, after checking that its result equals the result without
/// closed forms.
#[track_caller]
pub fn replay_with_and_without_closed_forms(
    workload: &Workload,
    machine: &Machine,
    network: NetworkModel,
    what: &str,
) -> ReplayOutcomeAndLog {
    let folded = replay_with(
        workload,
        machine,
        &make_options_of_network_and_stepwise(network, false),
    );
    let stepped = replay_with(
        workload,
        machine,
        &make_options_of_network_and_stepwise(network, true),
    );
    let (a, b) = (sort_events(&folded), sort_events(&stepped));
    let differ = a
        .iter()
        .filter(|e| !b.contains(e))
        .chain(b.iter().filter(|e| !a.contains(e)));
    let differ: Vec<_> = differ.take(6).collect();
    assert!(differ.is_empty(), "{network}: {what}: {differ:?}");
    assert_eq!(stepped.outcome.closed + stepped.outcome.unfolded, 0);
    folded
}

/// Returns four members of a switch with 20 ps/B and 500 ns per link. A ring all-reduce of 40,000 B
/// takes 6 steps of 1,000 ns + 10,000 B · 20 ps = 1,200 ns, so 7,200 ns.
fn build_four_npu_switch() -> Machine {
    build_machine_from_dims(&[make_dim_with_fixed_link_speed(
        DimensionShape::Switch,
        4,
        CollectiveAlgorithm::Ring,
    )])
}

fn all_reduce() -> TestTraceNode {
    build_collective(K::AllReduce, 40_000)
}

const ALONE: u64 = 7_200_000;

#[test]
fn a_collective_alone_is_answered_by_closed_form_at_once() {
    for network in [NetworkModel::Ports, NetworkModel::Links] {
        let ranks = vec![vec![all_reduce()]; 4];
        let replay = replay_with_and_without_closed_forms(
            &build_job_from_rank_nodes(&ranks, &[]),
            &build_four_npu_switch(),
            network,
            "alone",
        );
        assert_eq!(replay.last_end_of_each_instance(), [ALONE; 4]);
        let outcome = &replay.outcome;
        assert_eq!(
            (outcome.closed, outcome.unfolded, outcome.messages),
            (1, 0, 0)
        );
    }
}

/// Rank 0 sends a message of 5,000 B to rank 2 at 2,300 ns. Rank 0 sends 10,000 B of the all-reduce from 2,400 to 2,600
/// ns (step 2). So the message leaves just before this step, from 2,300 to 2,400, and the step leaves right after the
/// message. At rank 2's port, step 1 enters from 2,200 to 2,400, step 2 from 3,400 to 3,600, and the message from 3,300
/// to 3,400. No step is late, but only a simulation shows this. A message at 2,350 ns occupies the port until 2,450. So
/// step 2 of rank 0 is 50 ns late, and so is everything after it around the ring. Rank 2 receives the message from
/// 3,350 to 3,450, so its step 2 is 50 ns late. Rank 0's delay propagates around the ring: to step 3 of rank 1, step 4
/// of rank 2, and step 5 of rank 3. Rank 2's delay propagates from its own step 3 to step 4 of rank 3 and step 5 of
/// rank 0. A member ends when it receives its predecessor's step 5. Two of these steps are late: rank 3's, from the
/// first delay, and rank 0's, from the second delay. So ranks 0 and 1 end late.
#[test]
fn a_message_unfolds_a_collective_whose_ports_it_uses() {
    for network in [NetworkModel::Ports, NetworkModel::Links] {
        let run = |ns| {
            let mut ranks = vec![vec![all_reduce()]; 4];
            ranks[0].extend([
                build_kernel(ns).on_lane(1),
                build_send(2, 5000).after(&[2]).on_lane(2),
            ]);
            ranks[2].push(build_receive(0, 5000));
            replay_with_and_without_closed_forms(
                &build_job_from_rank_nodes(&ranks, &[]),
                &build_four_npu_switch(),
                network,
                "touched",
            )
        };
        let early = run(2300);
        assert_eq!((early.outcome.closed, early.outcome.unfolded), (0, 1));
        let end = |replay: &ReplayOutcomeAndLog| -> Vec<_> {
            (0..4).map(|r| replay.node_end_ps(r, 1)).collect()
        };
        assert_eq!(end(&early), [ALONE; 4]);
        assert_eq!(
            end(&run(2350)),
            [ALONE + 50_000, ALONE + 50_000, ALONE, ALONE]
        );
        // A message after the end changes nothing.
        let late = run(7200);
        assert_eq!((late.outcome.closed, late.outcome.unfolded), (1, 0));
    }
}

/// Rank 0 also joins a collective with no other member. This collective ends immediately, and rank 0 sends 5,000 B to
/// rank 2 at the same instant. The first step of the all-reduce has already taken the port. So the message follows from
/// 200 to 300 ns, reaches rank 2 between two steps by 1,300 ns, and delays no step.
#[test]
fn a_message_sent_after_a_settlement_leaves_behind_the_first_step() {
    for network in [NetworkModel::Ports, NetworkModel::Links] {
        let mut ranks = vec![vec![all_reduce()]; 4];
        let alone = build_collective(K::AllReduce, 8).group("alone").on_lane(1);
        ranks[0].extend([alone, build_send(2, 5000).after(&[2]).on_lane(2)]);
        ranks[2].push(build_receive(0, 5000));
        let replay = replay_with_and_without_closed_forms(
            &build_job_from_rank_nodes(&ranks, &[("alone", &[0])]),
            &build_four_npu_switch(),
            network,
            "behind",
        );
        let ends = [replay.node_end_ps(0, 3), replay.node_end_ps(2, 2)];
        assert_eq!(ends, [300_000, 1_300_000]);
        assert_eq!((0..4).map(|r| replay.node_end_ps(r, 1)).max(), Some(ALONE));
    }
}

/// Ranks 0 and 2 begin an all-reduce of 5,000 B at 1,200 ns, when their second step of the large
/// all-reduce is ready to send. This step leaves first. The small all-reduce's message follows from
/// 1,400 to 1,450 ns, and arrives by 2,450. The next message leaves after the third step of the
/// large all-reduce, until 2,650, and arrives by 3,650. The large all-reduce is not delayed.
#[test]
fn a_collective_begun_later_sends_behind_steps_already_ready() {
    for network in [NetworkModel::Ports, NetworkModel::Links] {
        for small in ["a", "z"] {
            let mut ranks = vec![vec![all_reduce().group("m")]; 4];
            for rank in [0, 2] {
                let begins = build_collective(K::AllReduce, 5000)
                    .group(small)
                    .after(&[2])
                    .on_lane(2);
                ranks[rank].extend([build_kernel(1200).on_lane(1), begins]);
            }
            let groups: [(&str, &[u32]); 2] = [(small, &[0, 2]), ("m", &[0, 1, 2, 3])];
            let mut groups = groups;
            groups.sort_unstable();
            let replay = replay_with_and_without_closed_forms(
                &build_job_from_rank_nodes(&ranks, &groups),
                &build_four_npu_switch(),
                network,
                small,
            );
            assert_eq!(replay.outcome.unfolded, 1);
            assert_eq!(
                [replay.node_end_ps(0, 3), replay.node_end_ps(2, 3)],
                [3_650_000; 2]
            );
            assert_eq!((0..4).map(|r| replay.node_end_ps(r, 1)).max(), Some(ALONE));
        }
    }
}

/// Rows of a grid have their own links, so each row has a closed form. The columns do not contend
/// with the rows either.
#[test]
fn collectives_of_groups_that_share_no_link_keep_closed_forms() {
    let grid = build_machine_from_dims(&[
        make_dim_with_fixed_link_speed(DimensionShape::Ring, 4, CollectiveAlgorithm::Ring),
        make_dim_with_fixed_link_speed(DimensionShape::Switch, 2, CollectiveAlgorithm::Direct),
    ]);
    let rank = |r: u32| {
        let row = ["a", "b"][r as usize / 4];
        let column = ["c", "d", "e", "f"][r as usize % 4];
        let on = |name, lane| all_reduce().group(name).on_lane(lane);
        vec![on(row, 1), on(column, 2)]
    };
    let ranks: Vec<_> = (0..8).map(rank).collect();
    let groups: [(&str, &[u32]); 6] = [
        ("a", &[0, 1, 2, 3]),
        ("b", &[4, 5, 6, 7]),
        ("c", &[0, 4]),
        ("d", &[1, 5]),
        ("e", &[2, 6]),
        ("f", &[3, 7]),
    ];
    let workload = build_job_from_rank_nodes(&ranks, &groups);
    for network in [NetworkModel::Ports, NetworkModel::Links] {
        let outcome =
            replay_with_and_without_closed_forms(&workload, &grid, network, "apart").outcome;
        assert_eq!(
            (outcome.closed, outcome.unfolded, outcome.stepwise),
            (6, 0, 0)
        );
    }
    // Half a ring has no closed form: the path from its last member to its first uses the other members' links.
    let half =
        build_job_from_rank_nodes(&vec![vec![all_reduce().group("h")]; 2], &[("h", &[0, 1])]);
    let ring = build_machine_from_dims(&[make_dim_with_fixed_link_speed(
        DimensionShape::Ring,
        4,
        CollectiveAlgorithm::Ring,
    )]);
    let outcome =
        replay_with_and_without_closed_forms(&half, &ring, NetworkModel::Links, "half").outcome;
    assert_eq!((outcome.closed, outcome.stepwise), (0, 1));
}

/// A simple random-number generator.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % n
    }
    fn pick_one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// Returns a job with collectives of rows, of columns and of all NPUs, and messages between any two
/// NPUs, at times that often coincide.
fn generate_random_job(dice: &mut Dice) -> (Workload, Machine) {
    let shapes = [
        DimensionShape::Ring,
        DimensionShape::Switch,
        DimensionShape::FullyConnected,
        DimensionShape::Mesh,
    ];
    let dims: Vec<Dim> = (0..1 + dice.below(3))
        .map(|_| Dim {
            ps_per_byte: dice.pick_one_of(&[1, 10, 20]),
            link_ns: dice.pick_one_of(&[0, 100, 500]),
            ..make_dim_with_fixed_link_speed(
                dice.pick_one_of(&shapes),
                2 + dice.below(3) as u32,
                dice.pick_one_of(&[CollectiveAlgorithm::Ring, CollectiveAlgorithm::Direct]),
            )
        })
        .collect();
    let npus: u32 = dims.iter().map(|d| d.size).product();
    let pipeline = ChunkCountOrderAndOverlap {
        chunks: NonZeroU32::new(dice.pick_one_of(&[1, 1, 3])),
        inter: dice.pick_one_of(&DimensionVisitOrder::ALL).0,
        ..ChunkCountOrderAndOverlap::default()
    };
    let machine = build_machine_from_dims(&dims).with_chunking(pipeline);
    let inner = dims[0].size;
    let names = [
        "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p",
    ];
    let rows: Vec<Vec<u32>> = (0..npus / inner)
        .map(|row| (row * inner..(row + 1) * inner).collect())
        .collect();
    let mut ranks = vec![Vec::new(); npus as usize];
    for lane in 0..1 + dice.below(4) as i64 {
        let bytes = 240 * (1 + dice.below(20)) * u64::from(npus);
        let kind = dice.pick_one_of(&[K::AllReduce, K::ReduceScatter, K::AllToAll, K::Broadcast]);
        let (apart, at) = (dice.below(4) == 0, 100 * dice.below(30));
        let whole = rows.len() > 16 || dice.below(2) == 0;
        for (rank, lines) in (0_u32..).zip(&mut ranks) {
            let at = if apart { at + 50 * u64::from(rank) } else { at };
            lines.push(build_kernel(at).on_lane(20 + lane));
            let after = [lines.len() as u64];
            let call = build_collective(kind, bytes)
                .after(&after)
                .on_lane(40 + lane);
            lines.push(match whole {
                true => call,
                false => {
                    let row = rank / inner;
                    call.group(names[row as usize])
                        .with_collective_root(row * inner)
                }
            });
        }
    }
    for tag in 0..dice.below(5) {
        let (from, to) = (
            dice.below(npus.into()) as u32,
            dice.below(npus.into()) as u32,
        );
        if from == to {
            continue;
        }
        let (at, bytes) = (100 * dice.below(60), 1 + dice.below(20_000));
        let lines = &mut ranks[from as usize];
        lines.push(build_kernel(at).on_lane(60 + tag as i64));
        let after = [lines.len() as u64];
        lines.push(
            build_send(to, bytes)
                .tag(tag as i32)
                .after(&after)
                .on_lane(80 + tag as i64),
        );
        ranks[to as usize].push(build_receive(from, bytes).tag(tag as i32));
    }
    let groups: Vec<(&str, &[u32])> = match rows.len() {
        0..=16 => names
            .iter()
            .copied()
            .zip(rows.iter().map(Vec::as_slice))
            .collect(),
        _ => Vec::new(),
    };
    (build_job_from_rank_nodes(&ranks, &groups), machine)
}

#[test]
fn closed_forms_change_no_result_of_random_jobs() {
    let mut dice = Dice(7);
    let (mut closed, mut unfolded, mut stepwise) = (0, 0, 0);
    let cases = if is_whole_corpus_requested() {
        400
    } else {
        100
    };
    for case in 0..cases {
        let (workload, machine) = generate_random_job(&mut dice);
        for network in [
            NetworkModel::ContentionFree,
            NetworkModel::Ports,
            NetworkModel::Links,
        ] {
            let outcome = replay_with_and_without_closed_forms(
                &workload,
                &machine,
                network,
                &case.to_string(),
            )
            .outcome;
            if network != NetworkModel::ContentionFree {
                closed += outcome.closed;
                unfolded += outcome.unfolded;
                stepwise += outcome.stepwise;
            }
        }
    }
    // Both outcomes occur often.
    assert!(
        closed > cases / 4 && unfolded > cases / 4,
        "{closed} closed, {unfolded} unfolded, {stepwise} stepwise"
    );
}
