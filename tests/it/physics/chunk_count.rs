//! If the machine gives no number of chunks, compares the chosen number with every possible number,
//! in replays.

use super::pipeline::build_skewed_collective;
use super::rig::{
    Dim, ONE_CHUNK, build_machine_from_dims, make_dim_with_fixed_link_speed, make_proptest_config,
    replay_and_log,
};
use crate::corpus::sample_every_nth;
use chakram::machine::{
    ChunkCountOrderAndOverlap, CollectiveAlgorithm as A, DimensionAlgorithmChoice,
    DimensionVisitOrder, Machine,
};
use chakram::topology::DimensionShape as S;
use chakram::trace::CollectiveKind as K;
use chakram::workload::Workload;
use proptest::prelude::*;
use std::num::NonZeroU32;

/// All numbers up to 6, and larger numbers in steps of at most a third, which is enough for a
/// regular test run.
const SAMPLE: [u32; 16] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 21, 28, 37, 50, 75, 128];

const UNSTATED: ChunkCountOrderAndOverlap = ChunkCountOrderAndOverlap {
    chunks: None,
    ..ONE_CHUNK
};

fn replay_makespan(machine: &Machine, pipeline: ChunkCountOrderAndOverlap, job: &Workload) -> u64 {
    let machine = machine.clone().with_chunking(pipeline);
    replay_and_log(job, &machine).outcome.makespan.0
}

/// Returns the time with the chosen number divided by the best time with any number in `stated`, and the best number.
fn chosen_time_over_best_and_best_chunk_count(
    stated: impl IntoIterator<Item = u32>,
    machine: &Machine,
    pipeline: ChunkCountOrderAndOverlap,
    job: &Workload,
) -> (f64, u32) {
    let chosen = replay_makespan(machine, pipeline, job);
    let times = stated.into_iter().map(|count| {
        let chunks = NonZeroU32::new(count);
        (
            replay_makespan(
                machine,
                ChunkCountOrderAndOverlap { chunks, ..pipeline },
                job,
            ),
            count,
        )
    });
    let (best, count) = times.min().unwrap();
    (chosen as f64 / best as f64, count)
}

fn makespan_over_best_of_sampled_chunk_counts(
    machine: &Machine,
    pipeline: ChunkCountOrderAndOverlap,
    job: &Workload,
) -> (f64, u32) {
    chosen_time_over_best_and_best_chunk_count(SAMPLE, machine, pipeline, job)
}

fn dimensions_strategy(
    algorithms: &'static [A],
    count: std::ops::RangeInclusive<usize>,
) -> impl Strategy<Value = Vec<Dim>> {
    let one = (
        prop::sample::select(vec![S::Switch, S::FullyConnected, S::Ring]),
        prop::sample::select(algorithms),
        2_u32..5,
        prop::sample::select(vec![2, 5, 20, 100]),
        prop::sample::select(vec![0, 10, 100, 1000]),
    );
    let one = one.prop_map(|(shape, algorithm, size, ps_per_byte, link_ns)| Dim {
        ps_per_byte,
        link_ns,
        ..make_dim_with_fixed_link_speed(shape, size, algorithm)
    });
    prop::collection::vec(one, count)
}

const SIZES: [u64; 6] = [1, 1_000, 100_000, 1_000_000, 30_000_000, 1_000_000_000];

proptest! {
    #![proptest_config(make_proptest_config(20))]

    /// Collectives run along one or several dimensions, in every order of dimensions.
    #[test]
    fn the_chosen_chunk_count_is_within_two_percent_of_the_best(
        dims in dimensions_strategy(&[A::Ring, A::Direct, A::HalvingDoubling, A::Pairwise], 1..=3),
        inter in prop::sample::select(DimensionVisitOrder::ALL.map(|(inter, _)| inter).to_vec()),
        kind in prop::sample::select(vec![K::AllReduce, K::ReduceScatter, K::AllGather, K::AllToAll]),
        bytes in prop::sample::select(SIZES.to_vec()),
    ) {
        let job = build_skewed_collective(kind, bytes, dims.iter().map(|dim| dim.size).product(), 0);
        let pipeline = ChunkCountOrderAndOverlap { inter, ..UNSTATED };
        let (excess, best) = makespan_over_best_of_sampled_chunk_counts(&build_machine_from_dims(&dims), pipeline, &job);
        prop_assert!(excess <= 1.02, "{excess}, the best has {best}");
    }

    /// Members of trees end one after another, so trees have no closed form.
    #[test]
    fn chosen_chunk_count_of_trees_is_within_two_percent_of_best(
        algorithm in prop::sample::select(vec![A::MemberMessageTree, A::DoubleBinaryTree]),
        size in 2_u32..20,
        kind in prop::sample::select(vec![K::AllReduce, K::Broadcast, K::Reduce]),
        bytes in prop::sample::select(SIZES.to_vec()),
        link_ns in prop::sample::select(vec![0, 10, 500]),
    ) {
        let dims = [Dim { link_ns, ..make_dim_with_fixed_link_speed(S::Switch, size, algorithm) }];
        let job = build_skewed_collective(kind, bytes, size, 0);
        let (excess, best) = makespan_over_best_of_sampled_chunk_counts(&build_machine_from_dims(&dims), UNSTATED, &job);
        prop_assert!(excess <= 1.02, "{excess}, the best has {best}");
    }
}

/// Compares the chosen number with every number from 1 to 128. Numbers between the sampled numbers are no better.
fn assert_chosen_is_near_best_of_128_chunk_counts(cases_of: &[(Vec<Dim>, K, u64)]) {
    for (dims, kind, bytes) in cases_of {
        let job =
            build_skewed_collective(*kind, *bytes, dims.iter().map(|dim| dim.size).product(), 0);
        let (excess, best) = chosen_time_over_best_and_best_chunk_count(
            1..=128,
            &build_machine_from_dims(dims),
            UNSTATED,
            &job,
        );
        assert!(
            excess <= 1.02,
            "{dims:?} {kind} {bytes}: {excess}, the best has {best}"
        );
    }
}

#[test]
fn no_chunk_count_up_to_128_is_better_than_the_chosen() {
    let tree = |algorithm, size| vec![make_dim_with_fixed_link_speed(S::Switch, size, algorithm)];
    assert_chosen_is_near_best_of_128_chunk_counts(&[
        (tree(A::DoubleBinaryTree, 5), K::AllReduce, 1_000_000),
        (tree(A::MemberMessageTree, 6), K::Broadcast, 300_000),
        (
            vec![
                make_dim_with_fixed_link_speed(S::Ring, 4, A::Ring),
                make_dim_with_fixed_link_speed(S::Switch, 2, A::HalvingDoubling),
            ],
            K::AllReduce,
            5_000_000,
        ),
    ]);
}

#[test]
#[ignore = "minutes: cargo test --release --test it physics::chunk_count -- --ignored"]
fn no_chunk_count_is_better_on_machines_of_many_shapes() {
    let mut all = Vec::new();
    for size in [2, 3, 4, 5, 7, 8, 11, 16, 24, 33] {
        for algorithm in [A::MemberMessageTree, A::DoubleBinaryTree] {
            for kind in [K::AllReduce, K::Broadcast, K::Reduce] {
                for bytes in [1_000, 30_000, 200_000, 1_000_000, 7_000_000, 500_000_000] {
                    all.push((
                        vec![make_dim_with_fixed_link_speed(S::Switch, size, algorithm)],
                        kind,
                        bytes,
                    ));
                }
            }
        }
    }
    for (inner, outer) in [
        (A::Ring, A::Ring),
        (A::Ring, A::DoubleBinaryTree),
        (A::Direct, A::MemberMessageTree),
    ] {
        for bytes in [100_000, 3_000_000, 100_000_000] {
            let dims = vec![
                make_dim_with_fixed_link_speed(S::Ring, 4, inner),
                make_dim_with_fixed_link_speed(S::Switch, 6, outer),
            ];
            all.push((dims, K::AllReduce, bytes));
        }
    }
    assert_chosen_is_near_best_of_128_chunk_counts(&all);
}

/// `auto` chooses a tree with a suitable number of chunks if this is faster than any other
/// algorithm. No single algorithm with a chosen number of chunks is more than 2 % faster. Among 32
/// members, a double tree moves 2 MB up and down faster than a ring, whose 62 steps of 1 us add 62
/// us. If the number of members is not a power of two, the formula for binomial trees is only a
/// bound.
#[test]
fn auto_chooses_chunked_trees_where_they_are_fastest() {
    let mut trees = 0;
    let mut calls = Vec::new();
    for size in [32, 8] {
        for kind in [K::AllReduce, K::Broadcast, K::Reduce] {
            calls.extend([2_000_000, 10_000].map(|bytes| (size, kind, bytes)));
        }
    }
    for (size, kind, bytes) in sample_every_nth(5, calls) {
        let job = build_skewed_collective(kind, bytes, size, 0);
        let of = |choice| {
            let machine = build_machine_from_dims(&[make_dim_with_fixed_link_speed(
                S::Switch,
                size,
                A::Ring,
            )]);
            let machine = machine.with_dimension_algorithm(0, choice).unwrap();
            replay_makespan(&machine, UNSTATED, &job)
        };
        let found = of(DimensionAlgorithmChoice::Auto);
        let named = A::ALL.map(|(algorithm, _)| of(DimensionAlgorithmChoice::Named(algorithm)));
        let best = named.into_iter().min().unwrap();
        assert!(
            found * 100 <= best * 102,
            "{kind} {bytes} {size}: {found} and {best}"
        );
        let [ring, double] = [A::Ring, A::DoubleBinaryTree]
            .map(|algorithm| of(DimensionAlgorithmChoice::Named(algorithm)));
        trees += u32::from(found == double && double < ring);
    }
    assert!(trees >= 1, "{trees}");
}

/// On a ring of 8, chunks that follow one another only add latency: 14 steps of 1 MB / 8 at 50 GB/s
/// and 500 ns are 14 x 3 us.
#[test]
fn one_dimension_takes_one_chunk() {
    let machine = Machine::load_by_name("Ring(8):50GB/s:500ns").unwrap();
    let job = build_skewed_collective(K::AllReduce, 1_000_000, 8, 0);
    assert_eq!(
        replay_and_log(&job, &machine).outcome.makespan.0,
        42_000_000
    );
    let (_, best) = makespan_over_best_of_sampled_chunk_counts(&machine, UNSTATED, &job);
    assert_eq!(best, 1);
}

/// The ports of two trees carry 2 S up and down, in enough chunks to hide latency. So 1 GB among
/// 128 at 50 GB/s takes a little more than 40 ms, as on a ring. A single chunk crosses 7 levels in
/// each direction, twice at all levels except the last: 26 x 20 ms.
#[test]
fn a_double_tree_is_about_as_fast_as_a_ring() {
    let job = build_skewed_collective(K::AllReduce, 1_000_000_000, 128, 0);
    let of = |algorithm, pipeline| {
        let machine =
            build_machine_from_dims(&[make_dim_with_fixed_link_speed(S::Switch, 128, algorithm)]);
        replay_makespan(&machine, pipeline, &job) as f64 / 1e9
    };
    let (tree, ring) = (of(A::DoubleBinaryTree, UNSTATED), of(A::Ring, UNSTATED));
    assert!(tree < 1.15 * ring && ring < 1.15 * tree, "{tree} {ring} ms");
    let whole = of(A::DoubleBinaryTree, ONE_CHUNK);
    assert!((520.0..521.0).contains(&whole), "{whole} ms");
}
