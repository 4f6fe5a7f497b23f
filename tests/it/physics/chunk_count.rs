//! The number of chunks that is chosen where a machine states none, against replays of every number that could be stated.

use super::pipeline::job;
use super::rig::{Dim, ONE_CHUNK, cases, dim, machine, replay};
use chakram::machine::{ChunkPipeline, CollectiveAlgorithm as A, InterDimensionPolicy, Machine};
use chakram::topology::DimensionShape as S;
use chakram::trace::CollectiveKind as K;
use chakram::workload::Workload;
use proptest::prelude::*;
use std::num::NonZeroU32;

/// Every number up to 6, and beyond with steps of at most a third.
const STATED: [u32; 16] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 21, 28, 37, 50, 75, 128];

const UNSTATED: ChunkPipeline = ChunkPipeline {
    chunks: None,
    ..ONE_CHUNK
};

fn makespan(machine: &Machine, pipeline: ChunkPipeline, job: &Workload) -> u64 {
    let machine = machine.clone().with_pipeline(pipeline);
    replay(job, &machine).outcome.makespan.0
}

/// Time with the chosen number over the least with a stated one, and the stated number.
fn excess(machine: &Machine, pipeline: ChunkPipeline, job: &Workload) -> (f64, u32) {
    let chosen = makespan(machine, pipeline, job);
    let stated = STATED.map(|chunks| {
        let chunks = NonZeroU32::new(chunks);
        let time = makespan(machine, ChunkPipeline { chunks, ..pipeline }, job);
        (time, chunks.map_or(0, NonZeroU32::get))
    });
    let (best, chunks) = stated.into_iter().min().unwrap();
    (chosen as f64 / best as f64, chunks)
}

fn dims(
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
        ..dim(shape, size, algorithm)
    });
    prop::collection::vec(one, count)
}

const SIZES: [u64; 6] = [1, 1_000, 100_000, 1_000_000, 30_000_000, 1_000_000_000];

proptest! {
    #![proptest_config(cases(20))]

    /// Along one dimension and several, in every order of dimensions.
    #[test]
    fn what_is_chosen_takes_at_most_two_percent_longer_than_any_other_number(
        dims in dims(&[A::Ring, A::Direct, A::HalvingDoubling, A::Pairwise], 1..=3),
        inter in prop::sample::select(InterDimensionPolicy::ALL.map(|(inter, _)| inter).to_vec()),
        kind in prop::sample::select(vec![K::AllReduce, K::ReduceScatter, K::AllGather, K::AllToAll]),
        bytes in prop::sample::select(SIZES.to_vec()),
    ) {
        let job = job(kind, bytes, dims.iter().map(|dim| dim.size).product(), 0);
        let pipeline = ChunkPipeline { inter, ..UNSTATED };
        let (excess, best) = excess(&machine(&dims), pipeline, &job);
        prop_assert!(excess <= 1.02, "{excess}, the best has {best}");
    }

    /// Members of trees end one after another, so the time of a tree is an estimate.
    #[test]
    fn trees_are_pipelined(
        algorithm in prop::sample::select(vec![A::Tree, A::DoubleBinaryTree]),
        size in 2_u32..20,
        kind in prop::sample::select(vec![K::AllReduce, K::Broadcast, K::Reduce]),
        bytes in prop::sample::select(SIZES.to_vec()),
        link_ns in prop::sample::select(vec![0, 10, 500]),
    ) {
        let dims = [Dim { link_ns, ..dim(S::Switch, size, algorithm) }];
        let job = job(kind, bytes, size, 0);
        let (excess, best) = excess(&machine(&dims), UNSTATED, &job);
        prop_assert!(excess <= 1.05, "{excess}, the best has {best}");
    }
}

/// Around a ring of 8 chunks one behind the other only add latency: 14 steps of 1 MB / 8 at 50 GB/s and 500 ns are 14 x 3 us.
#[test]
fn one_dimension_takes_one_chunk() {
    let machine = Machine::load("Ring(8):50GB/s:500ns").unwrap();
    let job = job(K::AllReduce, 1_000_000, 8, 0);
    assert_eq!(replay(&job, &machine).outcome.makespan.0, 42_000_000);
    let (_, best) = excess(&machine, UNSTATED, &job);
    assert_eq!(best, 1);
}

/// The ports of two trees carry 2 S up and down, in so many chunks that latency hides: 1 GB among 128 at 50 GB/s takes a
/// little more than 40 ms, as around a ring. One chunk goes over 7 levels both ways, twice at all but the last: 26 x 20 ms.
#[test]
fn a_double_tree_is_about_as_fast_as_a_ring() {
    let job = job(K::AllReduce, 1_000_000_000, 128, 0);
    let of = |algorithm, pipeline| {
        let machine = machine(&[dim(S::Switch, 128, algorithm)]);
        makespan(&machine, pipeline, &job) as f64 / 1e9
    };
    let (tree, ring) = (of(A::DoubleBinaryTree, UNSTATED), of(A::Ring, UNSTATED));
    assert!(tree < 1.15 * ring && ring < 1.15 * tree, "{tree} {ring} ms");
    let whole = of(A::DoubleBinaryTree, ONE_CHUNK);
    assert!((520.0..521.0).contains(&whole), "{whole} ms");
}
