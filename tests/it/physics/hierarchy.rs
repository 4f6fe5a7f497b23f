//! Tests collectives over several dimensions. A collective's time is the sum of its phases, whose buffers shrink from
//! phase to phase.

use super::rig::{
    Dim, build_machine_from_dims, make_dim_with_fixed_link_speed, make_proptest_config,
    make_stepwise_options, replay_and_log, replay_with,
};
use super::{naive, oracle};
use chakram::generate::{CheckedWorkloadPattern, CollectivePattern, WorkloadPattern};
use chakram::machine::CollectiveAlgorithm;
use chakram::machine::CollectiveAlgorithm::{Direct, Ring};
use chakram::topology::DimensionShape;
use chakram::trace::CollectiveKind as K;
use proptest::prelude::*;

fn dim_with_byte_time_and_link_latency(dim: Dim, ps_per_byte: u64, link_ns: u64) -> Dim {
    Dim {
        ps_per_byte,
        link_ns,
        ..dim
    }
}

/// Returns the times by closed form, if any, and with messages.
fn replay_closed_and_stepwise(dims: &[Dim], kind: K, bytes: u64, root: u32) -> [u64; 2] {
    let ranks = dims.iter().map(|dim| dim.size).product();
    let mut options = CollectivePattern::new(kind, bytes, ranks);
    options.root = kind.has_root().then_some(root);
    let workload = CheckedWorkloadPattern::new(WorkloadPattern::Collective(options))
        .unwrap()
        .build_workload()
        .unwrap();
    let machine = build_machine_from_dims(dims);
    [
        replay_and_log(&workload, &machine).makespan_ps(),
        replay_with(&workload, &machine, &make_stepwise_options()).makespan_ps(),
    ]
}

/// The machine has 4 x 2 x 3 NPUs, and the buffer has 240,000 B. Inside is a ring of 4 at 100 GB/s
/// (10 ps/B) and 100 ns. Then 2 NPUs are fully connected at 50 GB/s (20 ps/B) and 500 ns, with the
/// algorithm direct. Outside is a switch of 3 at 25 GB/s (40 ps/B) and 1,000 ns per link, with the
/// algorithm ring.
#[test]
fn collectives_on_three_dimensions_take_the_times_computed_by_hand() {
    let dims = [
        dim_with_byte_time_and_link_latency(
            make_dim_with_fixed_link_speed(DimensionShape::Ring, 4, Ring),
            10,
            100,
        ),
        dim_with_byte_time_and_link_latency(
            make_dim_with_fixed_link_speed(DimensionShape::FullyConnected, 2, Direct),
            20,
            500,
        ),
        dim_with_byte_time_and_link_latency(
            make_dim_with_fixed_link_speed(DimensionShape::Switch, 3, Ring),
            40,
            1000,
        ),
    ];
    let table = [
        // Reduce-scatter: 3 x (100 + 60,000 x 0.01) = 2,100 ns; then with 60,000 B: 500 + 30,000 x
        // 0.02 = 1,100 ns; then with 30,000 B: 2 x (2,000 + 10,000 x 0.04) = 4,800 ns.
        (K::ReduceScatter, 240_000, 8_000_000),
        // The same phases in reverse. The size is that of a shard, 10,000 B.
        (K::AllGather, 10_000, 8_000_000),
        (K::AllReduce, 240_000, 16_000_000),
        // All 240,000 B cross every dimension: 6 x 700 = 4,200; 500 + 2,400 = 2,900; 3 x (2,000 + 80,000 x 0.04) =
        // 15,600 ns.
        (K::AllToAll, 240_000, 22_700_000),
        // From the outermost dimension: 3 shares of 80,000 B in 3,200 ns each, 2 x 2,000, 1 x 3,200
        // = 16,800 ns; 500 + 4,800 = 5,300; 4 shares of 60,000 B in 600 ns, 3 x 100, 2 x 600 =
        // 3,900 ns.
        (K::Broadcast, 240_000, 26_000_000),
        (K::Reduce, 240_000, 26_000_000),
        // There are 24 shards of 10,000 B. Inside, the time is 3 x (100 + 100) = 600 ns; then, with
        // parts of 40,000 B, 500 + 800 = 1,300 ns; then, with parts of 80,000 B, 2 x (2,000 +
        // 3,200) = 10,400 ns.
        (K::Gather, 10_000, 12_300_000),
        (K::Scatter, 240_000, 12_300_000),
        // 3 x 100 + 500 + 2 x 2,000 ns.
        (K::Barrier, 0, 4_800_000),
    ];
    for (kind, bytes, want) in table {
        assert_eq!(
            replay_closed_and_stepwise(&dims, kind, bytes, 17),
            [want, want],
            "{kind}"
        );
        assert_eq!(
            oracle::compute_collective_time(&dims, kind, bytes, 17),
            want,
            "{kind}"
        );
    }
}

fn any_dim() -> impl Strategy<Value = Dim> {
    let shape = prop::sample::select(vec![
        DimensionShape::Ring,
        DimensionShape::FullyConnected,
        DimensionShape::Switch,
    ]);
    let algorithm = prop::sample::select(CollectiveAlgorithm::ALL.map(|(a, _)| a).to_vec());
    let rate = prop::sample::select(vec![1_u64, 2, 5, 20, 1000]);
    (shape, 1_u32..=5, algorithm, rate, 0_u64..=2000).prop_map(
        |(shape, size, algorithm, ps_per_byte, link_ns)| Dim {
            shape,
            size,
            ps_per_byte,
            link_ns,
            algorithm,
        },
    )
}

proptest! {
    #![proptest_config(make_proptest_config(150))]

    /// If members start together, the sum over phases and the simulator of these tests are exact on any stack of
    /// dimensions. All products of dimension sizes divide 60^3 bytes.
    #[test]
    fn simulated_collective_time_is_the_sum_over_phases(
        dims in prop::collection::vec(any_dim(), 1..=3),
        kind in prop::sample::select(K::ALL.map(|(kind, ..)| kind).to_vec()),
        units in 1_u64..4,
        root in any::<u32>(),
    ) {
        let ranks: u32 = dims.iter().map(|dim| dim.size).product();
        let bytes = u64::from(kind != K::Barrier) * units * 216_000;
        let root = root % ranks;
        let want = oracle::compute_collective_time(&dims, kind, bytes, root);
        prop_assert_eq!(replay_closed_and_stepwise(&dims, kind, bytes, root), [want, want]);
        let naive = naive::simulate_collective_end_per_npu(&dims, kind, bytes, root as usize, &vec![0; ranks as usize]);
        prop_assert_eq!(naive.into_iter().max(), Some(want));
    }
}
