//! How groups of NPUs are placed on the machine.

use crate::topology::{DimensionShape, PathLatencyAndRates, Topology};
use chakram_base::ids::{MemberIndex, Npu, Position};

/// The phase of a collective along one dimension of the machine.
///
/// Positions of a group are numbered so that a member's index in this phase is `position / stride % size`. Members that
/// differ only in this index form a *line*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseDimensionSizeAndStride {
    /// Index of the machine's dimension that the phase covers and whose algorithm it uses.
    pub dimension: usize,
    /// Number of members in each line of the phase, at least 2.
    pub size: u32,
    /// Distance in positions between neighbours of a line.
    pub stride: u32,
}

impl PhaseDimensionSizeAndStride {
    /// Returns the member's index in the dimension of this phase.
    #[inline]
    pub fn member_index_in_dimension(&self, position: Position) -> u32 {
        position.0 / self.stride % self.size
    }

    /// Returns the position with index `to` in the same line.
    #[inline]
    pub fn position_with_index_in_line(&self, position: Position, to: u32) -> Position {
        Position(
            position.0 - self.member_index_in_dimension(position) * self.stride + to * self.stride,
        )
    }
}

/// Paths between members of one line in a phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathsToNextAndAnyMember {
    /// Path from each member to the next, or `None` if these paths differ.
    pub next: Option<PathLatencyAndRates>,
    /// Path between any two members, or `None` if these paths differ.
    pub any: Option<PathLatencyAndRates>,
}

/// Placement of a group: its phases, innermost dimension first, and the position of each member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPhasesAndMemberPositions {
    /// The phases. A group of one member has no phases. A group that does not fill a sub-grid has a single phase over
    /// all its members in group order.
    pub phases: Vec<PhaseDimensionSizeAndStride>,
    /// The NPU at each position.
    pub npus: Vec<Npu>,
    /// The position of each member, in the order of the group.
    pub position_of: Vec<Position>,
    /// The member at each position: the inverse of `position_of`.
    pub member_at: Vec<MemberIndex>,
    /// True if the members fill a sub-grid of the machine.
    pub regular: bool,
}

impl GroupPhasesAndMemberPositions {
    /// Determines the placement of `npus`, which must be distinct.
    ///
    /// If the NPUs are all combinations of some coordinates in each dimension, the group has one phase for each
    /// dimension in which the NPUs differ. Any other group spans dimensions unevenly and is treated as one line, with
    /// the algorithm of the group's outermost dimension. On tiles, every group has a single phase with the members in
    /// the group's own order, because plans may place stages anywhere, not only in sub-grids.
    pub fn new(npus: &[Npu], topology: &Topology) -> Self {
        if topology.tile_grid().is_some() && npus.len() > 1 {
            return Self::from_line_along_dimension(npus, 0);
        }
        let dimensions = topology.dimensions().len();
        let coordinates: Vec<Vec<u32>> = (0..dimensions)
            .map(|d| {
                let mut found: Vec<_> =
                    npus.iter().map(|&n| topology.coordinate_of(n, d)).collect();
                found.sort_unstable();
                found.dedup();
                found
            })
            .collect();
        let cells: u64 = coordinates
            .iter()
            .fold(1, |product, c| product.saturating_mul(c.len() as u64));
        // The NPUs are distinct, so they fill the grid of their coordinates exactly if the grid has as many points as
        // there are NPUs.
        if cells != npus.len() as u64 {
            let spanned = (0..dimensions).rev().find(|&d| coordinates[d].len() > 1);
            return Self::from_line_along_dimension(npus, spanned.unwrap_or(0));
        }
        let mut phases = Vec::new();
        // The index in the innermost phase varies fastest, as in NPU numbers.
        let mut stride = 1;
        for (dimension, found) in coordinates.iter().enumerate() {
            if found.len() > 1 {
                let size = found.len() as u32;
                phases.push(PhaseDimensionSizeAndStride {
                    dimension,
                    size,
                    stride,
                });
                stride *= size;
            }
        }
        let mut at = vec![Npu(0); npus.len()];
        let mut member_at = vec![MemberIndex(0); npus.len()];
        let position_of = npus
            .iter()
            .enumerate()
            .map(|(member, &npu)| {
                let position = phases.iter().map(|phase| {
                    let coordinate = topology.coordinate_of(npu, phase.dimension);
                    let found = &coordinates[phase.dimension];
                    found.partition_point(|&c| c < coordinate) as u32 * phase.stride
                });
                let position = Position(position.sum());
                at[position.index()] = npu;
                member_at[position.index()] = MemberIndex(member as u32);
                position
            })
            .collect();
        Self {
            phases,
            npus: at,
            position_of,
            member_at,
            regular: true,
        }
    }

    /// Creates a single line of all `npus` in their order, with the algorithm of `dimension`.
    fn from_line_along_dimension(npus: &[Npu], dimension: usize) -> Self {
        let members = 0..npus.len() as u32;
        Self {
            phases: vec![PhaseDimensionSizeAndStride {
                dimension,
                size: npus.len() as u32,
                stride: 1,
            }],
            npus: npus.to_vec(),
            position_of: members.clone().map(Position).collect(),
            member_at: members.map(MemberIndex).collect(),
            regular: false,
        }
    }

    /// Returns the number of members in the group.
    pub fn member_count(&self) -> u32 {
        self.npus.len() as u32
    }

    /// Returns true if the members of a line are spaced evenly around a ring of more than two NPUs. Each member then
    /// has one neighbour on either side, and the route from the last to the first continues around the ring.
    pub fn is_evenly_spaced_ring(
        &self,
        phase: &PhaseDimensionSizeAndStride,
        topology: &Topology,
    ) -> bool {
        let dimension = &topology.dimensions()[phase.dimension];
        if !self.regular || dimension.shape != DimensionShape::Ring || phase.size <= 2 {
            return false;
        }
        let at = |index| {
            let npu = self.npus[phase
                .position_with_index_in_line(Position(0), index)
                .index()];
            topology.coordinate_of(npu, phase.dimension)
        };
        // In a sub-grid, members are in the order of their coordinates, so the first two members determine the spacing.
        let apart = at(1) - at(0);
        apart * phase.size == dimension.size
            && (1..phase.size).all(|index| at(index) - at(index - 1) == apart)
    }

    /// Returns the path from each member to the next in its line, or `None` if these paths differ.
    pub fn common_path_to_neighbour(
        &self,
        phase: &PhaseDimensionSizeAndStride,
        topology: &Topology,
    ) -> Option<PathLatencyAndRates> {
        // Explicit links may all differ, so no common path is assumed.
        if topology.explicit_links().is_some() {
            return None;
        }
        // The lines of a sub-grid are translations of one another, so the first represents all.
        let npu = |index| {
            self.npus[phase
                .position_with_index_in_line(Position(0), index % phase.size)
                .index()]
        };
        let mut paths = (0..phase.size).map(|i| topology.path_between_npus(npu(i), npu(i + 1)));
        let first = paths.next()??;
        paths.all(|path| path == Some(first)).then_some(first)
    }

    /// Returns the paths between members of one line in `phase`.
    pub fn common_paths_to_next_and_any_member(
        &self,
        phase: &PhaseDimensionSizeAndStride,
        topology: &Topology,
    ) -> PathsToNextAndAnyMember {
        PathsToNextAndAnyMember {
            next: self.common_path_to_neighbour(phase, topology),
            any: self.common_path_between_any(phase, topology),
        }
    }

    /// Returns the path between any two members of a line, or `None` if these paths differ.
    pub fn common_path_between_any(
        &self,
        phase: &PhaseDimensionSizeAndStride,
        topology: &Topology,
    ) -> Option<PathLatencyAndRates> {
        let shape = topology.dimensions()[phase.dimension].shape;
        match shape {
            DimensionShape::FullyConnected | DimensionShape::Switch if self.regular => {
                self.common_path_to_neighbour(phase, topology)
            }
            // With two members, the neighbour is the only peer.
            _ if phase.size == 2 => self.common_path_to_neighbour(phase, topology),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::TopologyDimension;
    use chakram_base::units::{Bandwidth, Span};

    fn build_topology_from_shapes(shapes: &[(DimensionShape, u32)]) -> Topology {
        let dimensions = shapes.iter().map(|&(shape, size)| TopologyDimension {
            name: String::new(),
            shape,
            size,
            bandwidth: Bandwidth::new(1e9).unwrap(),
            latency: Span::from_ns(10),
        });
        Topology::new(dimensions.collect()).unwrap()
    }

    fn npus_from_numbers(numbers: &[u32]) -> Vec<Npu> {
        numbers.iter().copied().map(Npu).collect()
    }

    #[test]
    fn sub_grids_become_phases() {
        let t =
            build_topology_from_shapes(&[(DimensionShape::Ring, 4), (DimensionShape::Switch, 3)]);
        // The coordinates are {1, 3} x {0, 2}, so the group has NPUs 1, 3, 9 and 11; they are given in a different
        // order.
        let e = GroupPhasesAndMemberPositions::new(&npus_from_numbers(&[11, 1, 9, 3]), &t);
        let phase = |dimension, stride| PhaseDimensionSizeAndStride {
            dimension,
            size: 2,
            stride,
        };
        assert!(e.regular);
        assert_eq!(e.phases, [phase(0, 1), phase(1, 2)]);
        assert_eq!(e.npus, npus_from_numbers(&[1, 3, 9, 11]));
        assert_eq!(e.position_of, [3, 0, 2, 1].map(Position));
        assert_eq!(
            e.phases[1].position_with_index_in_line(Position(1), 1),
            Position(3)
        );
        assert_eq!(e.phases[0].member_index_in_dimension(Position(3)), 1);
    }

    #[test]
    fn groups_that_are_no_sub_grid_are_one_line() {
        let t =
            build_topology_from_shapes(&[(DimensionShape::Ring, 4), (DimensionShape::Switch, 3)]);
        let e = GroupPhasesAndMemberPositions::new(&npus_from_numbers(&[5, 0, 1]), &t);
        assert!(!e.regular);
        let line = PhaseDimensionSizeAndStride {
            dimension: 1,
            size: 3,
            stride: 1,
        };
        assert_eq!(
            (e.phases, e.npus),
            (vec![line], npus_from_numbers(&[5, 0, 1]))
        );
    }

    #[test]
    fn a_group_of_one_has_no_phases() {
        let t = build_topology_from_shapes(&[(DimensionShape::Ring, 4)]);
        let e = GroupPhasesAndMemberPositions::new(&npus_from_numbers(&[2]), &t);
        assert!(e.phases.is_empty() && e.regular);
    }

    #[test]
    fn members_lie_evenly_around_a_ring_or_not() {
        let t = build_topology_from_shapes(&[
            (DimensionShape::Ring, 6),
            (DimensionShape::Mesh, 3),
            (DimensionShape::Ring, 2),
        ]);
        for (members, round) in [
            (&[0, 1, 2, 3, 4, 5][..], true),
            (&[6, 8, 10], true),
            (&[1, 3, 5], true),
            (&[0, 1, 2], false),
            (&[0, 2, 3], false),
            (&[0, 3], false),
            (&[0, 6, 12], false),
            (&[0, 18], false),
        ] {
            let e = GroupPhasesAndMemberPositions::new(&npus_from_numbers(members), &t);
            assert_eq!(
                e.is_evenly_spaced_ring(&e.phases[0], &t),
                round,
                "{members:?}"
            );
        }
    }

    #[test]
    fn a_ring_with_a_longer_way_home_has_no_common_path() {
        let t = build_topology_from_shapes(&[(DimensionShape::Ring, 8)]);
        let path = |members: &[u32]| {
            let e = GroupPhasesAndMemberPositions::new(&npus_from_numbers(members), &t);
            e.common_path_to_neighbour(&e.phases[0], &t)
                .map(|p| p.latency)
        };
        // If all NPUs of the ring are members, neighbours are one hop apart. If every other NPU is a member, neighbours
        // are two hops apart. If NPUs 0, 1 and 2 are members, neighbours are 1, 1 and 2 hops apart.
        assert_eq!(path(&[0, 1, 2, 3, 4, 5, 6, 7]), Some(Span::from_ns(10)));
        assert_eq!(path(&[0, 2, 4, 6]), Some(Span::from_ns(20)));
        assert_eq!(path(&[0, 1, 2]), None);
    }
}
