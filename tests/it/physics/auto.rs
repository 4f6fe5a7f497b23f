//! Compares `auto` with the named algorithms, in replays and in the report.

use super::lines::{TestTraceNode, build_collective};
use super::rig::{
    Dim, build_job_from_rank_nodes, build_machine_from_dims, build_machine_with_choices,
    make_dim_with_fixed_link_speed, make_stepwise_options, replay_and_log, replay_with,
};
use chakram::engine::ReplayOptions;
use chakram::machine::{CollectiveAlgorithm, DimensionAlgorithmChoice, Machine};
use chakram::report;
use chakram::topology::{DimensionShape, SwitchingMode};
use chakram::trace::CollectiveKind as K;
use chakram::workload::Workload;

/// Returns a job in which every rank runs `lines`.
fn build_job_where_all_ranks_run(ranks: u32, lines: &[TestTraceNode]) -> Workload {
    build_job_from_rank_nodes(&vec![lines.to_vec(); ranks as usize], &[])
}

fn build_auto_machine(dims: &[Dim]) -> Machine {
    build_machine_with_choices(
        dims,
        vec![DimensionAlgorithmChoice::Auto; dims.len()],
        SwitchingMode::IDEAL,
    )
}

fn has_ring_dimension(dims: &[Dim]) -> bool {
    dims.iter().any(|dim| dim.shape == DimensionShape::Ring)
}

/// If every two NPUs have a direct path, `auto` is not slower than any single algorithm in all
/// dimensions. On a ring of n, up to n/2 messages share a wire. `auto` accounts for this, but the
/// contention-free network does not, so there `auto` may be slower than the best algorithm by this
/// factor.
#[test]
fn auto_is_not_much_slower_than_any_single_algorithm() {
    let slow = |dim: Dim| Dim {
        ps_per_byte: 40,
        link_ns: 2000,
        ..dim
    };
    let ring = CollectiveAlgorithm::Ring;
    let machines = [
        vec![make_dim_with_fixed_link_speed(
            DimensionShape::Switch,
            8,
            ring,
        )],
        vec![make_dim_with_fixed_link_speed(
            DimensionShape::FullyConnected,
            6,
            ring,
        )],
        vec![make_dim_with_fixed_link_speed(
            DimensionShape::Ring,
            8,
            ring,
        )],
        vec![
            make_dim_with_fixed_link_speed(DimensionShape::FullyConnected, 4, ring),
            slow(make_dim_with_fixed_link_speed(
                DimensionShape::Switch,
                8,
                ring,
            )),
        ],
        vec![
            make_dim_with_fixed_link_speed(DimensionShape::Ring, 4, ring),
            slow(make_dim_with_fixed_link_speed(
                DimensionShape::Switch,
                3,
                ring,
            )),
        ],
    ];
    for dims in machines {
        let ranks = dims.iter().map(|dim| dim.size).product();
        for (kind, ..) in K::ALL {
            for bytes in [96, 960_000, 96_000_000] {
                let bytes = if kind == K::Barrier { 0 } else { bytes };
                let workload =
                    build_job_where_all_ranks_run(ranks, &[build_collective(kind, bytes)]);
                let found = replay_and_log(&workload, &build_auto_machine(&dims)).makespan_ps();
                let stepped = replay_with(
                    &workload,
                    &build_auto_machine(&dims),
                    &make_stepwise_options(),
                )
                .makespan_ps();
                assert_eq!(found, stepped, "{kind} of {bytes} B");
                let named = CollectiveAlgorithm::ALL.map(|(algorithm, _)| {
                    let choices = vec![DimensionAlgorithmChoice::Named(algorithm); dims.len()];
                    replay_and_log(
                        &workload,
                        &build_machine_with_choices(&dims, choices, SwitchingMode::IDEAL),
                    )
                    .makespan_ps()
                });
                let best = named.into_iter().min().unwrap();
                // The rings have 4 and 8 NPUs.
                let factor = if has_ring_dimension(&dims) {
                    dims[0].size / 2
                } else {
                    1
                };
                let most = best * u64::from(factor);
                assert!(found <= most, "{kind} of {bytes} B: {found} and {best}");
            }
        }
    }
}

/// One group has all-gathers of 9 B and of 90 MB among 8 in a ring. The small one crosses 4 links and takes the time of
/// 7 bytes with `direct`, and it crosses 7 links with `ring`. The large one takes the time of 32 times 11.25 MB with
/// `direct`, and of 7 times 11.25 MB with `ring`. If the machine names an algorithm, the report names it too.
#[test]
fn the_report_names_the_algorithm_each_collective_used() {
    let dims = [make_dim_with_fixed_link_speed(
        DimensionShape::Ring,
        8,
        CollectiveAlgorithm::HalvingDoubling,
    )];
    let said = |workload: &Workload, machine: &Machine| {
        let prepared =
            chakram::engine::CompiledReplay::new(workload, machine, &ReplayOptions::default())
                .unwrap();
        let (report, ()) = report::replay_to_report(&prepared, ()).unwrap();
        let rows = report.collectives.into_iter();
        rows.map(|row| row.algorithm).collect::<Vec<_>>()
    };
    let small = build_collective(K::AllGather, 9);
    let large = build_collective(K::AllGather, 11_250_000);
    let both = build_job_where_all_ranks_run(8, &[small.clone(), large.clone().after(&[1])]);
    assert_eq!(
        said(&both, &build_auto_machine(&dims)),
        ["auto: direct 8 (d0) at 72 B; auto: ring 8 (d0) at 90.0 MB"]
    );
    assert_eq!(
        said(&both, &build_machine_from_dims(&dims)),
        ["halving_doubling 8 (d0)"]
    );
    let one = build_job_where_all_ranks_run(8, &[large]);
    assert_eq!(
        said(&one, &build_auto_machine(&dims)),
        ["auto: ring 8 (d0)"]
    );
    // Among 6 members, a ring is used instead.
    let dims = [make_dim_with_fixed_link_speed(
        DimensionShape::Ring,
        6,
        CollectiveAlgorithm::HalvingDoubling,
    )];
    assert_eq!(
        said(
            &build_job_where_all_ranks_run(6, &[small]),
            &build_machine_from_dims(&dims)
        ),
        ["ring 6 (d0)"]
    );
}

/// On a ring of 8 with 16 B, halving-doubling would take two stages of 3,500 ns and 0.56 ns,
/// recursive doubling takes one stage, and direct takes two stages of 2,000 ns and more.
#[test]
fn a_small_all_reduce_is_one_stage() {
    let dims = [make_dim_with_fixed_link_speed(
        DimensionShape::Ring,
        8,
        CollectiveAlgorithm::Ring,
    )];
    let replay = replay_and_log(
        &build_job_where_all_ranks_run(8, &[build_collective(K::AllReduce, 16)]),
        &build_auto_machine(&dims),
    );
    // The time is 500 + 1,000 + 2,000 ns, plus 0.64 ns for 3 times 16 B.
    assert_eq!(replay.makespan_ps(), 3_501_920);
}
