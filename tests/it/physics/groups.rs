//! Tests that a group's members determine the dimensions of its collectives.
//!
//! The tests use a 4 x 3 machine. Inside is a ring of 4 (10 ps/B and 100 ns per link, algorithm
//! ring), and outside is a switch of 3 (40 ps/B and 1,000 ns per link, algorithm direct). NPU n is
//! at (n mod 4, n / 4).

use super::lines::{TestTraceNode, build_collective, build_kernel};
use super::rig::{
    Dim, ReplayOutcomeAndLog, build_job_from_rank_nodes, build_machine_from_dims,
    make_dim_with_fixed_link_speed, replay_and_log,
};
use chakram::machine::CollectiveAlgorithm::{Direct, Ring};
use chakram::topology::DimensionShape;
use chakram::trace::CollectiveKind as K;

pub fn four_by_three_dimensions() -> [Dim; 2] {
    let [mut inner, mut outer] = [
        make_dim_with_fixed_link_speed(DimensionShape::Ring, 4, Ring),
        make_dim_with_fixed_link_speed(DimensionShape::Switch, 3, Direct),
    ];
    (inner.ps_per_byte, inner.link_ns) = (10, 100);
    (outer.ps_per_byte, outer.link_ns) = (40, 1000);
    [inner.with_npu_bandwidth_per_link(), outer]
}

/// Returns the lines of 12 ranks, and the members. The ranks in `members` run `node` as the group
/// "g".
pub fn build_group_ranks(
    members: &[u32],
    node: &TestTraceNode,
) -> (Vec<Vec<TestTraceNode>>, Vec<u32>) {
    let mut ranks = vec![vec![build_kernel(0)]; 12];
    for &member in members {
        ranks[member as usize] = vec![node.clone().group("g")];
    }
    (ranks, members.to_vec())
}

fn replay_on_group(members: &[u32], node: TestTraceNode) -> ReplayOutcomeAndLog {
    let (ranks, members) = build_group_ranks(members, &node);
    replay_and_log(
        &build_job_from_rank_nodes(&ranks, &[("g", &members)]),
        &build_machine_from_dims(&four_by_three_dimensions()),
    )
}

/// The group has columns 1 and 3 of rows 0 and 2. Inside, 2 members are two links apart, and one
/// message of 60,000 B takes 200 + 600 ns. Outside, there are 2 members, and one message of 30,000
/// B takes 2,000 + 1,200 ns. An all-reduce does both twice, which takes 2 x (800 + 3,200) ns. The
/// order of members in the group does not matter.
#[test]
fn a_sub_grid_uses_both_dimensions() {
    for members in [[1, 3, 9, 11], [11, 1, 9, 3]] {
        let replay = replay_on_group(&members, build_collective(K::AllReduce, 120_000));
        assert_eq!(
            (replay.makespan_ps(), replay.outcome.closed),
            (8_000_000, 1)
        );
    }
}

/// Row 1 is a ring of 4, with 6 steps of 100 + 150 ns, and with half of 30,000 B in each direction.
/// The switch connects column 2. A reduce-scatter and an all-gather of 2 messages of 40,000 B each
/// take 2 x (2,000 + 2 x 1,600) ns.
#[test]
fn a_group_in_one_dimension_uses_that_one() {
    assert_eq!(
        replay_on_group(&[4, 5, 6, 7], build_collective(K::AllReduce, 120_000)).makespan_ps(),
        1_500_000
    );
    assert_eq!(
        replay_on_group(&[2, 6, 10], build_collective(K::AllReduce, 120_000)).makespan_ps(),
        10_400_000
    );
}

/// The group has three members of the ring of four: 0 to 1 and 1 to 2 are one link apart, and 2 to 0 are two links
/// apart. A reduce-scatter of 120,000 B takes two steps of 40,000 B in 400 ns. In the first step, 1 and 2 have received
/// at 500 ns, and 0 at 600 ns. In the second step, 0 to 1 leaves at 600 and arrives at 1,100; 1 to 2 leaves at 500 and
/// arrives at 1,000; 2 to 0 leaves at 500 and arrives at 1,100. All second messages have left by 1,000.
#[test]
fn a_group_of_part_of_a_ring_closes_over_several_links() {
    let replay = replay_on_group(&[0, 1, 2], build_collective(K::ReduceScatter, 120_000));
    assert_eq!(
        replay.last_end_of_each_instance()[..3],
        [1_100_000, 1_100_000, 1_000_000]
    );
    assert_eq!(replay.outcome.stepwise, 1);
}

/// NPUs 5 = (1, 1), 0 = (0, 0) and 1 = (1, 0) fill no sub-grid. So they are one line in the group's
/// order that uses the switch's algorithm, direct, over the real paths. 5 to 0 crosses a ring link
/// and two switch links, with 2,100 ns at 40 ps/B. 0 to 1 crosses one ring link, with 100 ns at 10
/// ps/B. 1 to 5 crosses two switch links, with 2,000 ns at 40 ps/B. A reduce-scatter of 120,000 B
/// sends 40,000 B to each member, which takes 1,600 ns at 40 ps/B, and 400 ns at 10 ps/B.
///
/// 5 sends to 0 (leaves 0 to 1,600, first byte 2,100), then to 1 (1,600 to 3,200, first byte
/// 3,600). 0 sends to 1 (0 to 400, first byte 100), then to 5 (400 to 2,000, first byte 2,500).
/// 1 sends to 5 (0 to 1,600, first byte 2,000), then to 0 (1,600 to 2,000, first byte 1,700).
/// 5 receives from 2,000 to 3,600 and to 5,200. 0 receives from 1,700 to 2,100, and from 2,100 to
/// 3,700. 1 receives from 100 to 500 and from 3,600 to 5,200.
#[test]
fn an_irregular_group_is_one_line_over_real_paths() {
    let replay = replay_on_group(&[5, 0, 1], build_collective(K::ReduceScatter, 120_000));
    let ends = replay.last_end_of_each_instance();
    assert_eq!(
        (ends[5], ends[0], ends[1]),
        (5_200_000, 3_700_000, 5_200_000)
    );
    assert_eq!(replay.outcome.messages, 6);
}

/// Rank 0, the second member of this line, broadcasts 120,000 B. The first message goes to 1 in
/// 100 + 1,200 ns. The second goes to 5, leaves from 1,200 to 6,000 ns, and arrives 2,100 ns later.
#[test]
fn a_root_inside_an_irregular_group_starts_at_its_place() {
    let replay = replay_on_group(
        &[5, 0, 1],
        build_collective(K::Broadcast, 120_000).with_collective_root(0),
    );
    let ends = replay.last_end_of_each_instance();
    assert_eq!(
        (ends[0], ends[1], ends[5]),
        (6_000_000, 1_300_000, 8_100_000)
    );
}

#[test]
fn a_group_of_one_takes_no_time() {
    for (kind, ..) in K::ALL {
        let bytes = u64::from(kind != K::Barrier) * 1000;
        let replay = replay_on_group(&[7], build_collective(kind, bytes).with_collective_root(7));
        assert_eq!(
            (replay.makespan_ps(), replay.outcome.messages),
            (0, 0),
            "{kind}"
        );
        assert_eq!(replay.outcome.nodes, 12);
    }
}

/// With mask 01, every row is a separate ring: 6 x (100 + 150) ns. With mask 10, every column is
/// separate: 2 x (2,000 + 2 x 1,600) ns. With both, rows come first, and then columns with the
/// remaining 30,000 B: 1,500 + 2 x (2,000 + 2 x 400) ns.
#[test]
fn a_mask_of_dimensions_cuts_the_group_into_rows_or_columns() {
    for (mask, lines, ps) in [
        (0b01, 3, 1_500_000),
        (0b10, 4, 10_400_000),
        (0b11, 1, 7_100_000),
    ] {
        let node = build_collective(K::AllReduce, 120_000).with_collective_dimensions(mask);
        let replay = replay_and_log(
            &build_job_from_rank_nodes(&vec![vec![node]; 12], &[]),
            &build_machine_from_dims(&four_by_three_dimensions()),
        );
        assert_eq!(
            (replay.makespan_ps(), replay.outcome.closed),
            (ps, lines),
            "{mask:b}"
        );
    }
}

/// With a mask, the group of columns 1 and 3 of rows 0 and 2 runs only along rows: 2 x (200 + 600)
/// ns.
#[test]
fn a_mask_cuts_a_group_too() {
    let replay = replay_on_group(
        &[1, 3, 9, 11],
        build_collective(K::AllReduce, 120_000).with_collective_dimensions(0b01),
    );
    assert_eq!(
        (replay.makespan_ps(), replay.outcome.closed),
        (1_600_000, 2)
    );
}

/// A mask has 32 bits, so further dimensions never take part. Of 36 dimensions, 31 and 35 have two
/// NPUs. One collective crosses dimension 31, and another crosses no dimension.
#[test]
fn dimensions_that_no_mask_can_name_stay_out() {
    let dims: Vec<Dim> = (0..36)
        .map(|d| {
            make_dim_with_fixed_link_speed(
                DimensionShape::Ring,
                if d == 31 || d == 35 { 2 } else { 1 },
                Ring,
            )
        })
        .collect();
    let crossing = build_collective(K::AllReduce, 1000).with_collective_dimensions(1 << 31);
    let alone = build_collective(K::AllReduce, 1000).with_collective_dimensions(1);
    let ranks = vec![vec![crossing, alone.after(&[1])]; 4];
    // Two members: 2 steps of 500 ns + 500 B x 20 ps.
    assert_eq!(
        replay_and_log(
            &build_job_from_rank_nodes(&ranks, &[]),
            &build_machine_from_dims(&dims)
        )
        .makespan_ps(),
        2 * 510_000
    );
}
