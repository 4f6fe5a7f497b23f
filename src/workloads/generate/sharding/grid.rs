//! Grid of devices. It determines each device's shard along every axis, and the groups of devices that differ only
//! along some axes.
//!
//! With PALM's degrees `[8, 2]` on devices 0 to 15, the groups along the first axis are {0, 2, ..,
//! 14} and {1, 3, .., 15}, and the groups along the last axis are {0, 1}, {2, 3} and so on.

use super::OperatorShardAxis;
use super::layout::{EqualSizedMemberGroups, MemberNumberDigit};

/// Axes, each with its number of shards. The index along the first axis changes slowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OperatorShardGrid([(OperatorShardAxis, u32); 4]);

impl OperatorShardGrid {
    pub(super) fn new(axes: [(OperatorShardAxis, u32); 4]) -> Self {
        Self(axes)
    }

    /// Returns the digit of a position that is the index of the shard along `axis`.
    pub(super) fn position_digit_for_operator_axis(
        &self,
        axis: OperatorShardAxis,
    ) -> MemberNumberDigit {
        let mut stride = 1;
        for &(one, parts) in self.0.iter().rev() {
            if one == axis {
                return MemberNumberDigit::new(parts, stride);
            }
            stride *= parts;
        }
        unreachable!("a grid has every axis")
    }

    /// Returns the groups of positions that differ only along the axes `over`.
    pub(super) fn groups_along_axes(&self, over: &[OperatorShardAxis]) -> EqualSizedMemberGroups {
        let count = self.0.iter().map(|&(_, parts)| parts).product();
        let digits: Vec<MemberNumberDigit> = over
            .iter()
            .map(|&axis| self.position_digit_for_operator_axis(axis))
            .collect();
        EqualSizedMemberGroups::from_members_differing_in_digits(&digits, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list_members_of_each_group(
        grid: &OperatorShardGrid,
        over: &[OperatorShardAxis],
    ) -> Vec<Vec<u32>> {
        let groups = grid.groups_along_axes(over);
        (0..groups.group_count())
            .map(|g| groups.members_of(g))
            .collect()
    }

    #[test]
    fn leading_axes_are_strided_and_the_last_is_contiguous() {
        // Example of `split` from PALM, section IV-B.
        let grid = OperatorShardGrid::new([
            (OperatorShardAxis::B, 8),
            (OperatorShardAxis::N, 2),
            (OperatorShardAxis::M, 1),
            (OperatorShardAxis::K, 1),
        ]);
        let even: Vec<u32> = (0..8).map(|i| 2 * i).collect();
        let odd: Vec<u32> = (0..8).map(|i| 2 * i + 1).collect();
        assert_eq!(
            list_members_of_each_group(&grid, &[OperatorShardAxis::B]),
            [even, odd]
        );
        let pairs: Vec<[u32; 2]> = (0..8).map(|i| [2 * i, 2 * i + 1]).collect();
        assert_eq!(
            list_members_of_each_group(&grid, &[OperatorShardAxis::N]),
            pairs
        );
        assert_eq!(list_members_of_each_group(&grid, &[]).len(), 16);
        assert_eq!(
            list_members_of_each_group(&grid, &[OperatorShardAxis::B, OperatorShardAxis::N]),
            [(0..16).collect::<Vec<_>>()]
        );
    }

    #[test]
    fn two_axes_form_a_group_around_one_between_them() {
        // A position is 4 b + 2 n + m. Members of a group differ in b and m, but not in n.
        let grid = OperatorShardGrid::new([
            (OperatorShardAxis::B, 2),
            (OperatorShardAxis::N, 2),
            (OperatorShardAxis::M, 2),
            (OperatorShardAxis::K, 1),
        ]);
        let groups =
            list_members_of_each_group(&grid, &[OperatorShardAxis::B, OperatorShardAxis::M]);
        assert_eq!(groups, [[0, 1, 4, 5], [2, 3, 6, 7]]);
        assert_eq!(
            grid.position_digit_for_operator_axis(OperatorShardAxis::B)
                .shard_of_member(6),
            1
        );
        assert_eq!(
            grid.position_digit_for_operator_axis(OperatorShardAxis::N)
                .shard_of_member(6),
            1
        );
        assert_eq!(
            grid.position_digit_for_operator_axis(OperatorShardAxis::M)
                .shard_of_member(6),
            0
        );
    }
}
