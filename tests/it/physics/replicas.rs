//! Tests ranks that represent equal ranks: the report equals that of a replay of all ranks.

use super::lines::{TestTraceNode, build_collective, build_kernel, build_receive, build_send};
use super::rig::{
    ObserverLog, build_job_from_rank_nodes, build_machine_from_dims, load_released_traces,
    make_dim_with_fixed_link_speed,
};
use super::tile_groups::Random;
use crate::corpus::is_whole_corpus_requested;
use chakram::engine::{CollectiveCurvesOrAlgorithms, CompiledReplay, NetworkModel, ReplayOptions};
use chakram::ids::{Npu, Rank};
use chakram::machine::{CollectiveAlgorithm, Machine};
use chakram::report::{self, Report};
use chakram::topology::DimensionShape;
use chakram::trace::CollectiveKind as K;
use chakram::units::Span;
use chakram::workload::{MissingRankPolicy, Workload};

/// A job of replicas of a pipeline of stages, each of several ranks.
struct PipelineReplicasTestJob {
    lines: Vec<Vec<TestTraceNode>>,
    groups: Vec<(&'static str, Vec<u32>)>,
}

/// Returns a random job: in each micro-batch a rank receives from the previous stage, computes, reduces over its tensor
/// group and sends to the next stage; at the end it reduces over its replicas, over parts of them, or over all ranks.
fn draw_random_pipeline_replica_job(random: &mut Random) -> PipelineReplicasTestJob {
    let stages = 1 + random.below(3) as u32;
    let tensor = 1 << random.below(2);
    let count = 4 << random.below(2);
    let stride = match random.below(3) {
        0 => [1, tensor, tensor * stages],
        1 => [stages, 1, stages * tensor],
        _ => [1, tensor * count, tensor],
    };
    let rank = |at: [u32; 3]| at.iter().zip(stride).map(|(at, of)| at * of).sum::<u32>();
    let mut groups: Vec<(&'static str, Vec<u32>)> = Vec::new();
    let mut lines = vec![Vec::<TestTraceNode>::new(); (stages * tensor * count) as usize];
    let mut declare = |members: Vec<u32>| -> &'static str {
        let name = &*format!("g{}", groups.len()).leak();
        groups.push((name, members));
        name
    };
    let shard = [count, count / 2][random.below(2) as usize];
    let (whole, micro_batches) = (random.below(3) == 0, 1 + random.below(3));
    for stage in 0..stages {
        let work: Vec<[u64; 3]> = (0..1 + random.below(4))
            .map(|_| [(); 3].map(|()| random.below(1 << 20)))
            .collect();
        let of_tensor: Vec<&str> = (0..count)
            .map(|replica| declare((0..tensor).map(|t| rank([t, stage, replica])).collect()))
            .collect();
        let mut of_data: Vec<&str> = Vec::new();
        let mut across: Vec<&str> = Vec::new();
        for t in 0..tensor {
            for part in 0..count / shard {
                let members = part * shard..(part + 1) * shard;
                of_data.push(declare(members.map(|r| rank([t, stage, r])).collect()));
            }
            for at in 0..shard {
                let members = (0..count / shard).map(|part| part * shard + at);
                across.push(declare(members.map(|r| rank([t, stage, r])).collect()));
            }
        }
        for replica in 0..count {
            for t in 0..tensor {
                let own = &mut lines[rank([t, stage, replica]) as usize];
                for tag in 0..micro_batches as i32 {
                    if stage > 0 {
                        let from = rank([t, stage - 1, replica]);
                        own.push(build_receive(from, 3000).tag(tag));
                    }
                    for [what, size, lane] in &work {
                        let last = own.len() as u64;
                        let on = (lane % 2) as i64;
                        let next = match what % 4 {
                            0 => build_kernel(100 + size % 900).on_lane(on),
                            1 => build_kernel(10).on_lane(on).delayed(size % 300),
                            2 => {
                                let kind = [K::AllReduce, K::AllGather][(size % 2) as usize];
                                let group = of_tensor[replica as usize];
                                build_collective(kind, 800 + 16 * (size % 300))
                                    .group(group)
                                    .on_lane(4)
                            }
                            _ => build_kernel(50).on_lane(3),
                        };
                        let after: Vec<u64> = (last > 0).then_some(last).into_iter().collect();
                        own.push(next.after(&after));
                    }
                    if stage + 1 < stages {
                        let last = own.len() as u64;
                        let to = rank([t, stage + 1, replica]);
                        own.push(build_send(to, 3000).tag(tag).on_lane(8).after(&[last]));
                    }
                }
                let part = replica / shard + t * (count / shard);
                let at = replica % shard + t * shard;
                let ends = [
                    Some(build_collective(K::ReduceScatter, 6400).group(of_data[part as usize])),
                    (shard < count)
                        .then(|| build_collective(K::AllReduce, 1600).group(across[at as usize])),
                    whole.then(|| build_collective(K::AllReduce, 640)),
                ];
                for end in ends.into_iter().flatten() {
                    let last = own.len() as u64;
                    own.push(end.on_lane(5).after(&[last]));
                    own.push(build_kernel(70).on_lane(0).after(&[last + 1]));
                }
            }
        }
    }
    PipelineReplicasTestJob { lines, groups }
}

/// Returns a machine of two or three dimensions for `ranks` ranks, with some NPUs to spare.
fn generate_random_machine(random: &mut Random, ranks: u32) -> Machine {
    let shapes = [
        DimensionShape::Ring,
        DimensionShape::Switch,
        DimensionShape::FullyConnected,
    ];
    let mut shape = || shapes[random.below(3) as usize];
    let algorithm = [CollectiveAlgorithm::Ring, CollectiveAlgorithm::Direct];
    let inner = 4.min(ranks);
    build_machine_from_dims(&[
        make_dim_with_fixed_link_speed(shape(), inner, algorithm[0]),
        make_dim_with_fixed_link_speed(shape(), ranks.div_ceil(inner), algorithm[1]),
    ])
}

/// Leaves out those parts of a report that need every rank, because a folded replay cannot produce them.
fn drop_report_parts_needing_every_rank(report: Report) -> Report {
    Report {
        critical_path: None,
        interval: None,
        cost: None,
        ..report
    }
}

/// Returns the completions in a log, each with its time, instance and node, in ascending order.
fn list_completions(log: &ObserverLog) -> Vec<(u64, u32, u32)> {
    let ended = log.events.iter().filter(|(_, is_end, ..)| *is_end);
    let mut ended: Vec<_> = ended.map(|&(at, _, rank, node)| (at, rank, node)).collect();
    ended.sort_unstable();
    ended
}

/// Compares the folded replay of a random job with the replay of all ranks. Returns true if the job was folded.
fn compare_folded_replay(seed: u64) -> bool {
    let random = &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let PipelineReplicasTestJob { mut lines, groups } = draw_random_pipeline_replica_job(random);
    let ranks = lines.len() as u32;
    let machine = generate_random_machine(random, ranks);
    let mut options =
        ReplayOptions::default_with_changes(|o| o.network = Some(NetworkModel::ContentionFree));
    let odd = random.below(ranks.into()) as u32;
    let mut late = 0;
    match random.below(6) {
        0 => options.changes.slow = vec![(Rank(odd), 1.5)],
        1 => late = 200,
        2 => {
            let last = lines[odd as usize].len() as u64;
            lines[odd as usize].push(build_kernel(40).on_lane(0).after(&[last]));
        }
        3 => {
            let mut order: Vec<u32> = (0..ranks).collect();
            let (a, b) = (random.below(ranks.into()), random.below(ranks.into()));
            order.swap(a as usize, b as usize);
            options.map = Some(order.into_iter().map(Npu).collect());
        }
        _ => {}
    }
    let workload: Workload = {
        let all = (0..).zip(lines.iter().map(Vec::as_slice));
        let mut builder = load_released_traces(all, |rank| if rank == odd { late } else { 0 });
        let declared = groups.iter();
        let declared = declared.map(|(name, members)| ((*name).to_owned(), members.clone()));
        builder.declare_groups(declared.collect());
        builder
            .finish_workload(Some(ranks), MissingRankPolicy::Refuse)
            .unwrap()
    };
    let prepared = CompiledReplay::new(&workload, &machine, &options).unwrap();
    let Some(folded) = report::replay_folded(&prepared).unwrap() else {
        return false;
    };
    let (whole, ()) = report::replay_to_report(&prepared, ()).unwrap();
    assert_eq!(
        drop_report_parts_needing_every_rank(folded),
        drop_report_parts_needing_every_rank(whole),
        "seed {seed}"
    );
    // Every message of every rank is simulated in the main loop.
    options.stepwise = true;
    let [quick, stepped] = [
        prepared,
        CompiledReplay::new(&workload, &machine, &options).unwrap(),
    ]
    .map(|replay| replay.run(ObserverLog::default()).unwrap().1);
    assert_eq!(
        list_completions(&quick),
        list_completions(&stepped),
        "seed {seed}"
    );
    true
}

#[test]
fn a_representative_gives_the_report_of_all_ranks() {
    let seeds = if is_whole_corpus_requested() {
        600
    } else {
        150
    };
    let folded = (0..seeds)
        .filter(|&seed| compare_folded_replay(seed))
        .count() as u64;
    assert!(folded > seeds / 3, "{folded} of {seeds} were folded");
}

#[test]
#[ignore = "long: 20,000 random jobs"]
fn a_representative_gives_the_report_of_all_ranks_at_length() {
    let folded = (1000..21_000)
        .filter(|&seed| compare_folded_replay(seed))
        .count();
    assert!(folded > 7000, "{folded}");
}

/// Eight ranks compute for 100 ns and reduce 8,000 B over all ranks; rank 5 computes for 200 ns. A ring of eight with
/// 20 ps/B and 500 ns per link has half of the bandwidth to each side and takes 14 steps. The steps all begin when the
/// last member arrives only if the answer is analytical. Here the members arrive at different times, so the reduction
/// is simulated for each rank, and no rank may represent another.
#[test]
fn ranks_that_wait_in_a_simulated_collective_are_replayed_one_by_one() {
    let ring = build_machine_from_dims(&[make_dim_with_fixed_link_speed(
        DimensionShape::Ring,
        8,
        CollectiveAlgorithm::Ring,
    )]);
    let lines = |ns| {
        vec![
            build_kernel(ns).on_lane(0),
            build_collective(K::AllReduce, 8000).on_lane(1).after(&[1]),
        ]
    };
    let is_folded = |late: u64| {
        let mut ranks = vec![lines(100); 8];
        ranks[5] = lines(late);
        let workload = build_job_from_rank_nodes(&ranks, &[]);
        let options =
            ReplayOptions::default_with_changes(|o| o.network = Some(NetworkModel::ContentionFree));
        let prepared = CompiledReplay::new(&workload, &ring, &options).unwrap();
        report::replay_folded(&prepared).unwrap().is_some()
    };
    assert!(is_folded(100));
    assert!(!is_folded(200));
}

/// Two groups of eight ranks are on two nodes. Each rank computes for 100 us and then reduces 1 MB
/// over its group, which takes a measured time. Rank 3 computes for 150 us, so the seven other
/// members of its group wait for 50 us each: 350 us together. The ranks have three classes: rank 3,
/// the ranks that wait for it, and the ranks of the other group.
#[test]
fn a_representative_waits_for_the_ranks_that_it_represents() {
    let nodes = Machine::load_preset("dgx-h100x2").unwrap();
    let lines = |group| {
        vec![
            build_kernel(100_000).on_lane(0),
            build_collective(K::AllReduce, 1 << 20)
                .group(group)
                .on_lane(1)
                .after(&[1]),
        ]
    };
    let ranks: Vec<_> = (0..16).map(|rank| lines(["a", "b"][rank / 8])).collect();
    let groups: [(&str, &[u32]); 2] = [
        ("a", &[0, 1, 2, 3, 4, 5, 6, 7]),
        ("b", &[8, 9, 10, 11, 12, 13, 14, 15]),
    ];
    let workload = build_job_from_rank_nodes(&ranks, &groups);
    let options = ReplayOptions::default_with_changes(|o| {
        o.network = Some(NetworkModel::ContentionFree);
        o.collectives = Some(CollectiveCurvesOrAlgorithms::Curves);
        o.changes.slow = vec![(Rank(3), 1.5)];
    });
    let prepared = CompiledReplay::new(&workload, &nodes, &options).unwrap();
    let folded = report::replay_folded(&prepared)
        .unwrap()
        .expect("16 ranks have 3 classes");
    let late = &folded.collectives[0];
    assert_eq!(late.tally.waited, Span::from_us(350));
    assert_eq!(late.latest.map(|latest| latest.rank), Some(Rank(3)));
    let (whole, ()) = report::replay_to_report(&prepared, ()).unwrap();
    assert_eq!(
        drop_report_parts_needing_every_rank(folded),
        drop_report_parts_needing_every_rank(whole)
    );
}

/// Four rings of eight ranks, which compute and reduce over their ring. Rank 5 is slow, so the members of its ring end
/// at different times, and each of them is replayed. In the other rings, all ranks do the same work at the same time,
/// so one rank represents the other 23.
#[test]
fn a_slow_rank_keeps_the_members_that_end_at_different_times() {
    use DimensionShape::{FullyConnected, Ring};
    let dims = [
        make_dim_with_fixed_link_speed(FullyConnected, 4, CollectiveAlgorithm::Direct),
        make_dim_with_fixed_link_speed(Ring, 8, CollectiveAlgorithm::Ring),
    ];
    let rings: Vec<Vec<u32>> = (0..4)
        .map(|first| (0..8).map(|i| first + 4 * i).collect())
        .collect();
    let names = ["a", "b", "c", "d"];
    let lines = |rank: usize| {
        let sum = build_collective(K::AllReduce, 8000).group(names[rank % 4]);
        vec![build_kernel(100).on_lane(0), sum.on_lane(1).after(&[1])]
    };
    let ranks: Vec<_> = (0..32).map(lines).collect();
    let groups: Vec<_> = names
        .iter()
        .copied()
        .zip(rings.iter().map(Vec::as_slice))
        .collect();
    let (workload, machine) = (
        build_job_from_rank_nodes(&ranks, &groups),
        build_machine_from_dims(&dims),
    );
    let replayed = |slow: Vec<(Rank, f64)>| {
        let options = ReplayOptions::default_with_changes(|o| {
            o.network = Some(NetworkModel::ContentionFree);
            o.changes.slow = slow;
        });
        let prepared = CompiledReplay::new(&workload, &machine, &options).unwrap();
        let (whole, ()) = report::replay_to_report(&prepared, ()).unwrap();
        let folded = report::replay_folded(&prepared).unwrap().unwrap();
        assert_eq!(
            drop_report_parts_needing_every_rank(folded),
            drop_report_parts_needing_every_rank(whole)
        );
        let count = prepared.fold_and_replay_with_retries(|folded| {
            folded.part.run(())?;
            Ok(folded.part.workload_with_added_launches().instances().len())
        });
        count.unwrap().unwrap()
    };
    assert_eq!(replayed(Vec::new()), 1);
    assert_eq!(replayed(vec![(Rank(5), 1.5)]), 8 + 1);
}
