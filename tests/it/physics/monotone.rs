//! Tests that better hardware never makes a single collective slower.

use super::rig::{Dim, build_machine_from_dims, make_proptest_config, replay_and_log};
use chakram::generate::{CheckedWorkloadPattern, CollectivePattern, WorkloadPattern};
use chakram::machine::CollectiveAlgorithm;
use chakram::topology::DimensionShape;
use chakram::trace::CollectiveKind as K;
use proptest::prelude::*;

fn any_dim() -> impl Strategy<Value = Dim> {
    let shape = prop::sample::select(vec![
        DimensionShape::Ring,
        DimensionShape::FullyConnected,
        DimensionShape::Switch,
    ]);
    let algorithm = prop::sample::select(CollectiveAlgorithm::ALL.map(|(a, _)| a).to_vec());
    (shape, 1_u32..=6, algorithm, 1_u64..1000, 0_u64..3000).prop_map(
        |(shape, size, algorithm, ps_per_byte, link_ns)| Dim {
            shape,
            size,
            ps_per_byte,
            link_ns,
            algorithm,
        },
    )
}

fn replay_collective_time(dims: &[Dim], kind: K, bytes: u64) -> u64 {
    let ranks = dims.iter().map(|dim| dim.size).product();
    let bytes = if kind == K::Barrier { 0 } else { bytes };
    let options = CollectivePattern::new(kind, bytes, ranks);
    let workload = CheckedWorkloadPattern::new(WorkloadPattern::Collective(options))
        .unwrap()
        .build_workload()
        .unwrap();
    replay_and_log(&workload, &build_machine_from_dims(dims)).makespan_ps()
}

proptest! {
    #![proptest_config(make_proptest_config(250))]

    #[test]
    fn more_bandwidth_or_less_latency_is_never_slower(
        dims in prop::collection::vec(any_dim(), 1..=3),
        which in any::<prop::sample::Index>(),
        kind in prop::sample::select(K::ALL.map(|(kind, ..)| kind).to_vec()),
        bytes in 0_u64..10_000_000,
        factor in 2_u64..5,
    ) {
        let base = replay_collective_time(&dims, kind, bytes);
        let which = which.index(dims.len());
        // The first machine is slower by the factor, so that the faster machine is the base.
        let mut narrow = dims.clone();
        narrow[which].ps_per_byte *= factor;
        prop_assert!(replay_collective_time(&narrow, kind, bytes) >= base);
        let mut far = dims.clone();
        far[which].link_ns *= factor;
        prop_assert!(replay_collective_time(&far, kind, bytes) >= base);
        // If both numbers become slower, the result is bounded: apart from rounding, no collective slows down by more
        // than the factor. Rounding adds at most half a picosecond, times the factor, in each of fewer than 1,000
        // successive messages.
        let mut both = dims.clone();
        for dim in &mut both {
            (dim.ps_per_byte, dim.link_ns) = (dim.ps_per_byte * factor, dim.link_ns * factor);
        }
        let slow = replay_collective_time(&both, kind, bytes);
        prop_assert!(slow.abs_diff(base * factor) <= 1000 * factor, "{slow} {base}");
    }

    /// A larger buffer never takes less time.
    #[test]
    fn more_bytes_are_never_faster(
        dims in prop::collection::vec(any_dim(), 1..=3),
        kind in prop::sample::select(K::ALL.map(|(kind, ..)| kind).to_vec()),
        bytes in 0_u64..10_000_000,
        more in 0_u64..1_000_000,
    ) {
        prop_assert!(replay_collective_time(&dims, kind, bytes + more) >= replay_collective_time(&dims, kind, bytes));
    }
}
