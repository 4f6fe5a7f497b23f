//! Compares each combination of a collective and an algorithm, on one dimension, with its closed form.

use super::oracle;
use super::rig::{
    build_machine_from_dims, make_dim_with_fixed_link_speed, make_stepwise_options, replay_and_log,
    replay_with,
};
use chakram::generate::{CheckedWorkloadPattern, CollectivePattern, WorkloadPattern};
use chakram::machine::CollectiveAlgorithm;
use chakram::topology::DimensionShape;
use chakram::trace::CollectiveKind;
use chakram::workload::Workload;

const SHAPES: [DimensionShape; 3] = [
    DimensionShape::Ring,
    DimensionShape::FullyConnected,
    DimensionShape::Switch,
];

fn build_collective_job(kind: CollectiveKind, bytes: u64, ranks: u32, root: u32) -> Workload {
    let mut options = CollectivePattern::new(kind, bytes, ranks);
    options.root = kind.has_root().then_some(root);
    let job = CheckedWorkloadPattern::new(WorkloadPattern::Collective(options)).unwrap();
    job.build_workload().unwrap()
}

/// Returns the times in picoseconds, first with closed forms allowed, and then with messages.
fn replay_closed_and_stepwise(
    shape: DimensionShape,
    algorithm: CollectiveAlgorithm,
    kind: CollectiveKind,
    bytes: u64,
    n: u32,
    root: u32,
) -> (u64, u64) {
    let machine = build_machine_from_dims(&[make_dim_with_fixed_link_speed(shape, n, algorithm)]);
    let workload = build_collective_job(kind, bytes, n, root);
    let stepped = replay_with(&workload, &machine, &make_stepwise_options());
    assert_eq!((stepped.outcome.closed, stepped.outcome.stepwise), (0, 1));
    (
        replay_and_log(&workload, &machine).makespan_ps(),
        stepped.makespan_ps(),
    )
}

#[test]
fn every_collective_takes_what_its_closed_form_says() {
    for shape in SHAPES {
        for (algorithm, _) in CollectiveAlgorithm::ALL {
            for (kind, ..) in CollectiveKind::ALL {
                for n in 2..=17 {
                    let dim = make_dim_with_fixed_link_speed(shape, n, algorithm);
                    let bytes = match kind {
                        CollectiveKind::Barrier => 0,
                        // Most n do not divide this size. The size is odd, so that no share takes
                        // half a picosecond.
                        _ => 1_000_003,
                    };
                    let root = n * 2 / 3;
                    let want = oracle::compute_collective_time(&[dim], kind, bytes, root);
                    let found = replay_closed_and_stepwise(shape, algorithm, kind, bytes, n, root);
                    assert_eq!(found, (want, want), "{kind} of {n}, {algorithm} on {shape}");
                }
            }
        }
    }
}

/// n is 8, and 80,000 B are sent at 50 GB/s with 500 ns per link. A share has 10,000 B, so s = 200
/// ns. The whole buffer takes t = 1,600 ns. A ring's link has 25 GB/s, so a share and the buffer
/// take 400 and 3,200 ns. The ring algorithm sends half of a share in each direction.
#[test]
fn collective_times_of_eight_members_match_hand_computation() {
    use CollectiveAlgorithm::{
        Direct, DoubleBinaryTree, HalvingDoubling as Halving, MemberMessageTree, Pairwise,
        RecursiveDoubling as Doubling, Ring,
    };
    use CollectiveKind as K;
    let table = [
        // 2 x 7 steps of 500 + 200 ns.
        (DimensionShape::Ring, Ring, K::AllReduce, 80_000, 9_800_000),
        // 2 x 7 steps of 1,000 + 200 ns: one link to the switch and one from it.
        (
            DimensionShape::Switch,
            Ring,
            K::AllReduce,
            80_000,
            16_800_000,
        ),
        // 7 steps of 700 ns; an all-gather's size is the size of a shard.
        (DimensionShape::Ring, Ring, K::AllGather, 10_000, 4_900_000),
        // 8 x 7 / 2 = 28 steps of 700 ns.
        (DimensionShape::Ring, Ring, K::AllToAll, 80_000, 19_600_000),
        // 8 shares leave the root in 1,600 ns, 7 links take 500 ns each, and 6 members forward in 200 ns each.
        (DimensionShape::Ring, Ring, K::Broadcast, 80_000, 6_300_000),
        (DimensionShape::Ring, Ring, K::Reduce, 80_000, 6_300_000),
        // 7 shares leave or arrive one after another; the last crosses 7 links: 7 x 700 ns.
        (DimensionShape::Ring, Ring, K::Gather, 10_000, 4_900_000),
        (DimensionShape::Ring, Ring, K::Scatter, 80_000, 4_900_000),
        // 7 links of 500 ns.
        (DimensionShape::Ring, Ring, K::Barrier, 0, 3_500_000),
        // 2 x (500 + 7 x 200) ns.
        (
            DimensionShape::FullyConnected,
            Direct,
            K::AllReduce,
            80_000,
            3_800_000,
        ),
        // 1,000 + 7 x 200 ns.
        (
            DimensionShape::Switch,
            Direct,
            K::AllToAll,
            80_000,
            2_400_000,
        ),
        // 500 + 7 x 1,600 ns.
        (
            DimensionShape::FullyConnected,
            Direct,
            K::Broadcast,
            80_000,
            11_700_000,
        ),
        (
            DimensionShape::FullyConnected,
            Direct,
            K::Reduce,
            80_000,
            11_700_000,
        ),
        // 500 + 7 x 200 ns.
        (
            DimensionShape::FullyConnected,
            Direct,
            K::Gather,
            10_000,
            1_900_000,
        ),
        (
            DimensionShape::FullyConnected,
            Direct,
            K::Scatter,
            80_000,
            1_900_000,
        ),
        // The first bytes from the members that are 1 … 4 positions earlier arrive at 0 + 500, 400 + 1,000, 800 + 1,500
        // and 1,200 + 2,000 ns. Each message is received before the next arrives, until 3,600. The first bytes from the
        // members that are 5 … 7 positions earlier arrive on the other side at 1,600 + 1,500, 2,000 + 1,000 and 2,400 +
        // 500 ns, and are received from 2,900 until 4,100.
        (DimensionShape::Ring, Direct, K::AllToAll, 80_000, 4_100_000),
        // The k-th copy arrives at 3,200 k + 500 min(k, 8 - k) ns, which is at most 7 x 3,200 +
        // 500.
        (
            DimensionShape::Ring,
            Direct,
            K::Broadcast,
            80_000,
            22_900_000,
        ),
        // First bytes arrive at 500, 1,000, 1,500 and 2,000 ns from one side, and at the first three times from the
        // other side. Each takes 400 ns to receive, which ends before the next arrives.
        (DimensionShape::Ring, Direct, K::Gather, 10_000, 2_400_000),
        // Only the opposite member's notification counts: 4 x 500 ns.
        (DimensionShape::Ring, Direct, K::Barrier, 0, 2_000_000),
        // 1,000 + 800, 1,000 + 400, 1,000 + 200 ns, and the same back.
        (
            DimensionShape::Switch,
            Halving,
            K::AllReduce,
            80_000,
            8_800_000,
        ),
        // 500 + 1,600, 1,000 + 800, 2,000 + 400 ns.
        (
            DimensionShape::Ring,
            Halving,
            K::ReduceScatter,
            80_000,
            6_300_000,
        ),
        // 1, 2 and 4 links.
        (DimensionShape::Ring, Halving, K::Barrier, 0, 3_500_000),
        // There are 3 rounds of (500 + 1,600) ns. In each, the last notified member notifies the
        // next.
        (
            DimensionShape::FullyConnected,
            Halving,
            K::Broadcast,
            80_000,
            6_300_000,
        ),
        (
            DimensionShape::FullyConnected,
            Halving,
            K::Reduce,
            80_000,
            6_300_000,
        ),
        // 4, 2 and 1 shares: 3 x 500 + 7 x 200 ns.
        (
            DimensionShape::FullyConnected,
            Halving,
            K::Scatter,
            80_000,
            2_900_000,
        ),
        // 3 x (1,000 + 1,600) ns.
        (
            DimensionShape::Switch,
            Doubling,
            K::AllReduce,
            80_000,
            7_800_000,
        ),
        // 1, 2 and 4 links: 3,500 + 3 x 3,200 ns.
        (
            DimensionShape::Ring,
            Doubling,
            K::AllReduce,
            80_000,
            13_100_000,
        ),
        // 7 x (500 + 200) ns.
        (
            DimensionShape::FullyConnected,
            Pairwise,
            K::AllToAll,
            80_000,
            4_900_000,
        ),
        // The ring replaces halving-doubling here.
        (
            DimensionShape::FullyConnected,
            Halving,
            K::AllToAll,
            80_000,
            4_900_000,
        ),
        // Up the tree, two leaves send one after the other, which takes 500 + 2 x 1,600 ns. The next level takes as
        // long. From the top to the root, a message takes 500 + 1,600 ns. The sum is 9,500 ns. Down the tree, the times
        // are 500 + 1,600, and then twice 500 + 2 x 1,600 ns.
        (
            DimensionShape::FullyConnected,
            MemberMessageTree,
            K::AllReduce,
            80_000,
            19_000_000,
        ),
        (
            DimensionShape::FullyConnected,
            MemberMessageTree,
            K::Reduce,
            80_000,
            9_500_000,
        ),
        (
            DimensionShape::FullyConnected,
            DoubleBinaryTree,
            K::Broadcast,
            80_000,
            9_500_000,
        ),
        // The levels are 1 and 2 links below the top, and the top is 4 links from the root: 3,500 + 5 x 3,200 ns.
        (
            DimensionShape::Ring,
            MemberMessageTree,
            K::Broadcast,
            80_000,
            19_500_000,
        ),
        // A gather uses the ring instead.
        (
            DimensionShape::Ring,
            MemberMessageTree,
            K::Gather,
            10_000,
            4_900_000,
        ),
    ];
    for (shape, algorithm, kind, bytes, want) in table {
        let found = replay_closed_and_stepwise(shape, algorithm, kind, bytes, 8, 0);
        assert_eq!(found, (want, want), "{kind}, {algorithm} on {shape}");
    }
}

#[test]
fn closed_forms_answer_where_all_paths_are_alike_and_send_no_message() {
    for shape in SHAPES {
        for (algorithm, _) in CollectiveAlgorithm::ALL {
            for (kind, ..) in CollectiveKind::ALL {
                let dim = make_dim_with_fixed_link_speed(shape, 6, algorithm);
                let machine = build_machine_from_dims(&[dim]);
                let bytes = u64::from(kind != CollectiveKind::Barrier) * 6000;
                let outcome =
                    replay_and_log(&build_collective_job(kind, bytes, 6, 0), &machine).outcome;
                // In a ring, only neighbours are one link apart; other members are two or three links apart. A root's
                // port is a separate limit, and members of a tree end one after another.
                let mut stages = oracle::list_collective_phases(&[dim], kind, bytes).into_iter();
                let alike = stages.all(|(_, how, ..)| match how {
                    CollectiveAlgorithm::Ring => true,
                    CollectiveAlgorithm::MemberMessageTree
                    | CollectiveAlgorithm::DoubleBinaryTree => false,
                    _ => shape != DimensionShape::Ring,
                });
                let closed = alike && !kind.has_root();
                let expected = (u64::from(closed), u64::from(!closed));
                assert_eq!(
                    (outcome.closed, outcome.stepwise),
                    expected,
                    "{kind} {shape}"
                );
                assert_eq!(outcome.messages == 0, closed);
            }
        }
    }
}
