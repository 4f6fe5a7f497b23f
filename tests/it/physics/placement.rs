//! Tests that a map from ranks to NPUs moves groups and messages to other dimensions.

use super::groups::{build_group_ranks, four_by_three_dimensions};
use super::lines::{build_collective, build_kernel, build_receive, build_send};
use super::rig::{build_job_from_rank_nodes, build_machine_from_dims, replay_with};
use chakram::engine::{CompiledReplay, ReplayOptions};
use chakram::ids::Npu;
use chakram::trace::CollectiveKind as K;

fn make_placement_options(npus: impl IntoIterator<Item = u32>) -> ReplayOptions {
    ReplayOptions::default_with_changes(|o| {
        o.map = Some(npus.into_iter().map(Npu).collect());
    })
}

/// Returns a placement in which the ranks fill columns of three: rank 3 x + y sits at (x, y), on
/// NPU x + 4 y.
fn make_transposed_placement() -> ReplayOptions {
    make_placement_options([0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11])
}

/// Ranks 0, 1 and 2 are in a row, three NPUs of a ring of 4. Mapped to NPUs 0, 4 and 8, they are a
/// column.
#[test]
fn a_map_moves_a_group_to_another_dimension() {
    let (ranks, members) =
        build_group_ranks(&[0, 1, 2], &build_collective(K::ReduceScatter, 120_000));
    let workload = build_job_from_rank_nodes(&ranks, &[("g", &members)]);
    let machine = build_machine_from_dims(&four_by_three_dimensions());
    // As in `groups`, two steps over a ring with a gap end at 1,100 ns.
    assert_eq!(
        replay_with(&workload, &machine, &ReplayOptions::default()).makespan_ps(),
        1_100_000
    );
    // On the switch, the steps take 2,000 ns plus two messages of 40,000 B at 40 ps/B, 3,200 ns.
    assert_eq!(
        replay_with(&workload, &machine, &make_transposed_placement()).makespan_ps(),
        5_200_000
    );
    // A reversed row is still a row: the long path is between other ranks, so the time is the same.
    let reversed = make_placement_options((0..12).rev());
    assert_eq!(
        replay_with(&workload, &machine, &reversed).makespan_ps(),
        1_100_000
    );
}

/// The group of all ranks is a grid in every placement and takes 2 x (3 x (100 + 150)) + 2 x
/// (2,000 + 2 x 400) ns.
#[test]
fn a_map_does_not_change_the_time_of_a_world_collective() {
    let workload = build_job_from_rank_nodes(
        &vec![vec![build_collective(K::AllReduce, 120_000)]; 12],
        &[],
    );
    for options in [
        ReplayOptions::default(),
        make_transposed_placement(),
        make_placement_options((0..12).rev()),
    ] {
        let replay = replay_with(
            &workload,
            &build_machine_from_dims(&four_by_three_dimensions()),
            &options,
        );
        assert_eq!(
            (replay.makespan_ps(), replay.outcome.closed),
            (7_100_000, 1)
        );
    }
}

/// 10,000 B from rank 0 to rank 1 cross one ring link at 10 ps/B, or two links of the switch at 40
/// ps/B.
#[test]
fn a_map_moves_messages() {
    let mut ranks = vec![vec![build_kernel(0)]; 12];
    ranks[0] = vec![build_send(1, 10_000)];
    ranks[1] = vec![build_receive(0, 10_000)];
    let (workload, machine) = (
        build_job_from_rank_nodes(&ranks, &[]),
        build_machine_from_dims(&four_by_three_dimensions()),
    );
    // The ring takes 100 + 100 ns, and the switch 2,000 + 400 ns.
    for (options, ps) in [
        (ReplayOptions::default(), 200_000),
        (make_transposed_placement(), 2_400_000),
    ] {
        assert_eq!(replay_with(&workload, &machine, &options).makespan_ps(), ps);
    }
}

/// Two ranks may be placed anywhere on a larger machine: (3, 2) and (0, 2) are one link apart.
#[test]
fn a_small_job_is_placed_on_a_large_machine() {
    let workload = build_job_from_rank_nodes(
        &[vec![build_send(1, 10_000)], vec![build_receive(0, 10_000)]],
        &[],
    );
    let machine = build_machine_from_dims(&four_by_three_dimensions());
    assert_eq!(
        replay_with(&workload, &machine, &make_placement_options([11, 8])).makespan_ps(),
        200_000
    );
}

#[test]
fn maps_that_place_nobody_or_two_on_one_are_refused() {
    let workload = build_job_from_rank_nodes(&[vec![build_kernel(1)], vec![build_kernel(1)]], &[]);
    let machine = build_machine_from_dims(&four_by_three_dimensions());
    let why = |npus: &[u32]| {
        let options = make_placement_options(npus.iter().copied());
        CompiledReplay::new(&workload, &machine, &options)
            .unwrap_err()
            .to_string()
    };
    assert!(why(&[0]).contains("places 1 ranks, but the job has 2"));
    assert!(why(&[3, 3]).contains("ranks 0 and 1 on NPU 3"));
    assert!(why(&[3, 12]).contains("rank 1 on NPU 12, but the machine has 12 NPUs"));
}
