//! Devices as a grid of parts: which part each has, and who differs in some axes only.
//!
//! PALM's rule: with degrees `[8, 2]` on devices 0 to 15, the groups along the first are {0, 2, .., 14} and
//! {1, 3, .., 15}, those along the last {0, 1}, {2, 3} and so on.

use super::Axis;

/// Axes with their parts, the slowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grid([(Axis, u32); 4]);

impl Grid {
    pub(super) fn new(axes: [(Axis, u32); 4]) -> Self {
        Self(axes)
    }

    /// How far apart neighbours along `axis` are, and how many parts it has.
    fn stride(&self, axis: Axis) -> (u32, u32) {
        let mut stride = 1;
        for &(one, parts) in self.0.iter().rev() {
            if one == axis {
                return (stride, parts);
            }
            stride *= parts;
        }
        unreachable!("a grid has every axis")
    }

    /// The part along `axis` of the device at `position`.
    pub(super) fn part(&self, position: u32, axis: Axis) -> u32 {
        let (stride, parts) = self.stride(axis);
        position / stride % parts
    }

    /// Positions that differ in `over` only, group by group.
    pub(super) fn groups(&self, over: &[Axis]) -> Vec<Vec<u32>> {
        let count: u32 = self.0.iter().map(|&(_, parts)| parts).product();
        let size: u32 = over.iter().map(|&axis| self.stride(axis).1).product();
        // Whoever has the first part along every axis begins a group; the group's number is its rank among those.
        let mut groups: Vec<Vec<u32>> = Vec::with_capacity((count / size) as usize);
        let mut group_of = vec![0_u32; count as usize];
        for position in 0..count {
            let first = over.iter().fold(position, |first, &axis| {
                first - self.part(position, axis) * self.stride(axis).0
            });
            if first == position {
                group_of[position as usize] = groups.len() as u32;
                groups.push(Vec::with_capacity(size as usize));
            }
            groups[group_of[first as usize] as usize].push(position);
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_axes_are_strided_and_the_last_is_contiguous() {
        // PALM's `split`, section IV-B.
        let grid = Grid::new([(Axis::B, 8), (Axis::N, 2), (Axis::M, 1), (Axis::K, 1)]);
        let even: Vec<u32> = (0..8).map(|i| 2 * i).collect();
        let odd: Vec<u32> = (0..8).map(|i| 2 * i + 1).collect();
        assert_eq!(grid.groups(&[Axis::B]), [even, odd]);
        let pairs: Vec<[u32; 2]> = (0..8).map(|i| [2 * i, 2 * i + 1]).collect();
        assert_eq!(grid.groups(&[Axis::N]), pairs);
        assert_eq!(grid.groups(&[]).len(), 16);
        assert_eq!(
            grid.groups(&[Axis::B, Axis::N]),
            [(0..16).collect::<Vec<_>>()]
        );
    }

    #[test]
    fn two_axes_form_a_group_around_one_between_them() {
        // Positions are 4 b + 2 n + m: b and m differ, n does not.
        let grid = Grid::new([(Axis::B, 2), (Axis::N, 2), (Axis::M, 2), (Axis::K, 1)]);
        let groups = grid.groups(&[Axis::B, Axis::M]);
        assert_eq!(groups, [[0, 1, 4, 5], [2, 3, 6, 7]]);
        assert_eq!(grid.part(6, Axis::B), 1);
        assert_eq!(grid.part(6, Axis::N), 1);
        assert_eq!(grid.part(6, Axis::M), 0);
    }
}
