//! Tests members that start at different times: no closed form applies, and every member ends when the naive simulation
//! says.

use super::lines::{TestTraceNode, build_collective, build_kernel};
use super::naive;
use super::rig::{
    Dim, ReplayOutcomeAndLog, build_job_from_rank_nodes, build_machine_from_dims,
    make_dim_with_fixed_link_speed, make_proptest_config, make_stepwise_options, replay_and_log,
    replay_with,
};
use chakram::generate::{CheckedWorkloadPattern, CollectivePattern, WorkloadPattern};
use chakram::machine::CollectiveAlgorithm;
use chakram::machine::CollectiveAlgorithm::{Direct, Ring};
use chakram::topology::DimensionShape;
use chakram::trace::CollectiveKind as K;
use chakram::units::Span;
use proptest::prelude::*;

/// Returns a job in which each rank computes for its time in `starts_ns` and then joins the
/// collective.
pub fn build_skewed_ranks(
    kind: K,
    bytes: u64,
    root: u32,
    starts_ns: &[u64],
) -> Vec<Vec<TestTraceNode>> {
    let node = match kind.has_root() {
        true => build_collective(kind, bytes).with_collective_root(root),
        false => build_collective(kind, bytes),
    };
    let rank = |&ns: &u64| vec![build_kernel(ns), node.clone().after(&[1])];
    starts_ns.iter().map(rank).collect()
}

fn replay_skewed_collective(
    dims: &[Dim],
    kind: K,
    bytes: u64,
    root: u32,
    starts_ns: &[u64],
) -> ReplayOutcomeAndLog {
    replay_and_log(
        &build_job_from_rank_nodes(&build_skewed_ranks(kind, bytes, root, starts_ns), &[]),
        &build_machine_from_dims(dims),
    )
}

fn simulate_member_ends_naively(
    dims: &[Dim],
    kind: K,
    bytes: u64,
    root: u32,
    starts_ns: &[u64],
) -> Vec<u64> {
    let starts: Vec<_> = starts_ns.iter().map(|ns| ns * 1000).collect();
    naive::simulate_collective_end_per_npu(dims, kind, bytes, root as usize, &starts)
}

/// A ring all-gathers 4 x 1,000 B at 50 GB/s and 500 ns per link. Half of 1,000 B goes in each
/// direction at 25 GB/s and takes s = 20 ns, so a step takes 520 ns. Rank 2 starts 1,000 ns late;
/// the others wait for it only through the ring. The upward direction has these steps.
///
/// Step 0: the messages of 0, 1 and 3 are received by 1, 2 and 0 at 520 ns, and the message of 2 by
/// 3 at 1,520. Step 1: the messages of 0 and 1 leave at 520 and are received by 1 and 2 at 1,040. 2
/// forwards the data received at 520 when it has sent its own, at 1,020, and 3 receives them at
/// 1,540. 3 sends at 1,520, and 0 receives this at 2,040. Step 2: 0 sends at 2,040 to 1, until
/// 2,560; 1 at 1,040 to 2, until 1,560; 2 at 1,040 to 3, until 1,560; 3 at 1,540 to 0, until 2,060.
/// The last message of 0 has left at 2,060. Members 0 to 3 therefore end at 2,060, 2,560, 1,560 and
/// 1,560.
///
/// In the downward direction, 1 and 3 swap roles, because 2 is opposite to 0: the ends are 2,060, 1,560, 1,560 and
/// 2,560.
#[test]
fn a_late_member_delays_its_followers_in_turn() {
    let dims = [make_dim_with_fixed_link_speed(
        DimensionShape::Ring,
        4,
        Ring,
    )];
    let starts = [0, 0, 1000, 0];
    let replay = replay_skewed_collective(&dims, K::AllGather, 1000, 0, &starts);
    assert_eq!(
        replay.last_end_of_each_instance(),
        [2_060_000, 2_560_000, 1_560_000, 2_560_000]
    );
    assert_eq!(replay.outcome.stepwise, 1);
    // There are 4 members x 3 messages in each of two directions.
    assert_eq!(replay.outcome.messages, 24);
    assert_eq!(
        simulate_member_ends_naively(&dims, K::AllGather, 1000, 0, &starts),
        replay.last_end_of_each_instance()
    );
    let record = replay.log.records[0];
    assert_eq!((record.last_start.0, record.end.0), (1_000_000, 2_560_000));
    // Three members waited for 1,000 ns each.
    assert_eq!(
        (record.waited, record.stepwise),
        (Span::from_ns(3000), true)
    );
}

#[test]
fn generated_skewed_all_reduces_end_as_in_naive_simulation() {
    for (algorithm, _) in CollectiveAlgorithm::ALL {
        let dims = [make_dim_with_fixed_link_speed(
            DimensionShape::Switch,
            5,
            algorithm,
        )];
        for ns in [0, 700] {
            let mut options = CollectivePattern::new(K::AllReduce, 5000, 5);
            options.skew = Span::from_ns(ns);
            options.before = Span::from_ns(100);
            let workload = CheckedWorkloadPattern::new(WorkloadPattern::Collective(options))
                .unwrap()
                .build_workload()
                .unwrap();
            let starts: Vec<_> = (0..5).map(|rank| 100 + rank * ns).collect();
            let want = simulate_member_ends_naively(&dims, K::AllReduce, 5000, 0, &starts);
            let replay = replay_and_log(&workload, &build_machine_from_dims(&dims));
            assert_eq!(replay.last_end_of_each_instance(), want);
            // Members of a tree end one after another, so the tree has no closed form.
            let tree = matches!(
                algorithm,
                CollectiveAlgorithm::MemberMessageTree | CollectiveAlgorithm::DoubleBinaryTree
            );
            // Algorithms that do not support five members fall back to rings, which have a formula for late members.
            let closed = replay.outcome.closed == 1;
            match (ns, algorithm) {
                (0, _) => assert_eq!(closed, !tree),
                (_, Ring) => assert!(closed),
                (_, Direct) => assert!(!closed),
                _ => {}
            }
            assert_eq!(replay.outcome.messages == 0, closed);
            let replay = replay_with(
                &workload,
                &build_machine_from_dims(&dims),
                &make_stepwise_options(),
            );
            assert_eq!(
                (replay.last_end_of_each_instance(), replay.outcome.closed),
                (want, 0)
            );
        }
    }
}

/// Returns start times that often coincide: few values, some of them multiples of a step.
fn start_times_strategy(n: usize) -> impl Strategy<Value = Vec<u64>> {
    let late = prop_oneof![0_u64..5, Just(520_u64), Just(1040), 0_u64..5000];
    prop::collection::vec(late, n)
}

fn any_dimension_shape() -> impl Strategy<Value = DimensionShape> {
    prop::sample::select(vec![
        DimensionShape::Ring,
        DimensionShape::FullyConnected,
        DimensionShape::Switch,
    ])
}

fn any_collective_kind() -> impl Strategy<Value = K> {
    prop::sample::select(K::ALL.map(|(kind, ..)| kind).to_vec())
}

proptest! {
    #![proptest_config(make_proptest_config(400))]

    #[test]
    fn every_member_of_a_ring_ends_as_its_recurrence_says(
        (n, starts) in (2_usize..=9).prop_flat_map(|n| (Just(n), start_times_strategy(n))),
        shape in any_dimension_shape(),
        kind in any_collective_kind(),
        root in 0_u32..9,
        share in prop::sample::select(vec![0_u64, 1000, 25_000]),
    ) {
        let dims = [make_dim_with_fixed_link_speed(shape, n as u32, Ring)];
        let bytes = if kind == K::Barrier { 0 } else { share * n as u64 };
        let root = root % n as u32;
        let replay = replay_skewed_collective(&dims, kind, bytes, root, &starts);
        prop_assert_eq!(replay.last_end_of_each_instance(), simulate_member_ends_naively(&dims, kind, bytes, root, &starts));
    }

    #[test]
    fn every_member_of_a_direct_exchange_ends_as_its_ports_allow(
        (n, starts) in (2_usize..=9).prop_flat_map(|n| (Just(n), start_times_strategy(n))),
        shape in any_dimension_shape(),
        kind in any_collective_kind(),
        root in 0_u32..9,
        share in prop::sample::select(vec![0_u64, 1000, 25_000]),
    ) {
        let dims = [make_dim_with_fixed_link_speed(shape, n as u32, Direct)];
        let bytes = if kind == K::Barrier { 0 } else { share * n as u64 };
        let root = root % n as u32;
        let replay = replay_skewed_collective(&dims, kind, bytes, root, &starts);
        prop_assert_eq!(replay.last_end_of_each_instance(), simulate_member_ends_naively(&dims, kind, bytes, root, &starts));
    }

    #[test]
    fn every_member_of_any_algorithm_ends_as_its_partners_allow(
        (n, starts) in (2_usize..=17).prop_flat_map(|n| (Just(n), start_times_strategy(n))),
        shape in any_dimension_shape(),
        algorithm in 2..CollectiveAlgorithm::ALL.len(),
        kind in any_collective_kind(),
        root in 0_u32..17,
        share in prop::sample::select(vec![0_u64, 1000, 25_000]),
    ) {
        let dims = [make_dim_with_fixed_link_speed(shape, n as u32, CollectiveAlgorithm::ALL[algorithm].0)];
        // Each n-th part is a multiple of 64, so repeated halves take whole picoseconds.
        let bytes = if kind == K::Barrier { 0 } else { 64 * share * n as u64 };
        let root = root % n as u32;
        let replay = replay_skewed_collective(&dims, kind, bytes, root, &starts);
        prop_assert_eq!(replay.last_end_of_each_instance(), simulate_member_ends_naively(&dims, kind, bytes, root, &starts));
    }

    #[test]
    fn members_over_two_dimensions_end_as_in_naive_simulation(
        starts in start_times_strategy(12),
        shapes in (any_dimension_shape(), any_dimension_shape()),
        algorithms in (0..CollectiveAlgorithm::ALL.len(), 0..CollectiveAlgorithm::ALL.len()),
        kind in any_collective_kind(),
        root in 0_u32..12,
    ) {
        let algorithm = |i: usize| CollectiveAlgorithm::ALL[i].0;
        let inner = make_dim_with_fixed_link_speed(shapes.0, 4, algorithm(algorithms.0));
        let mut outer = make_dim_with_fixed_link_speed(shapes.1, 3, algorithm(algorithms.1));
        outer.ps_per_byte = 50;
        let bytes = if kind == K::Barrier { 0 } else { 12_000 };
        let replay = replay_skewed_collective(&[inner, outer], kind, bytes, root, &starts);
        prop_assert_eq!(replay.last_end_of_each_instance(), simulate_member_ends_naively(&[inner, outer], kind, bytes, root, &starts));
    }
}
