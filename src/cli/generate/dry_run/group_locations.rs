//! Locations of a plan's groups along the machine's dimensions.

use chakram_base::ids::Npu;
use chakram_hardware::group::GroupPhasesAndMemberPositions;
use chakram_hardware::machine::Machine;
use chakram_hardware::topology::Topology;
use chakram_workloads::generate::training::PlanSummary;
use std::collections::BTreeMap;

/// Groups of one family with the same extent on the machine.
pub struct SameExtentGroups {
    /// Family of the groups, such as `tensor` or `data`.
    pub family: &'static str,
    /// Number of groups that have this extent.
    pub groups: u32,
    /// Common extent of the groups.
    pub extent: GroupExtentWithoutPosition,
    /// Routes from each member to the next; `None` unless the machine has tiles.
    pub neighbours: Option<NeighbourRouteLinkCounts>,
}

/// Routes from each member of a group to the next and, in a ring, from the last back to the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NeighbourRouteLinkCounts {
    /// Number of counted routes.
    pub ways: u32,
    /// Number of links, summed over all routes.
    pub links: u32,
    /// Number of links on the longest route.
    pub most: u32,
    /// Number of routes between cores of different dies.
    pub between_dies: u32,
}

impl NeighbourRouteLinkCounts {
    /// Adds the routes between neighbouring members of a group. If `closes` is true, also adds the route from the last
    /// member to the first in groups of more than two members.
    fn add_neighbour_routes(&mut self, npus: &[Npu], closes: bool, topology: &Topology) {
        let Some(tiles) = topology.tile_grid() else {
            return;
        };
        let again = npus.iter().take(usize::from(closes && npus.len() > 2));
        let next = npus.iter().skip(1).chain(again);
        for (from, to) in npus.iter().zip(next) {
            let hops = topology.hop_count(*from, *to);
            self.ways += 1;
            self.links += hops;
            self.most = self.most.max(hops);
            self.between_dies += u32::from(tiles.die_of_core(from.0) != tiles.die_of_core(to.0));
        }
    }

    /// Returns the mean number of links per route.
    pub fn mean_hops(&self) -> f64 {
        f64::from(self.links) / f64::from(self.ways.max(1))
    }
}

/// Extent of a group along each dimension. Groups that differ only in position have the same extent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupExtentWithoutPosition {
    /// True if the members form a grid, that is, if every combination of their coordinates is a member. If not, a
    /// collective runs as a single ring over all members.
    pub regular: bool,
    /// Dimensions along which the members' coordinates differ, innermost first.
    pub along: Vec<GroupExtentInOneDimension>,
}

/// Coordinates of a group's members along one dimension.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupExtentInOneDimension {
    /// Index of the dimension; the innermost is 0.
    pub dimension: usize,
    /// Name of the dimension in the machine file.
    pub name: String,
    /// Number of NPUs along the dimension.
    pub size: u32,
    /// Number of distinct coordinates among the members.
    pub members: u32,
    /// Distance between neighbouring members; `None` if it is not constant.
    pub apart: Option<u32>,
}

/// Value of [`SameExtentGroups::family`] for a pipeline, because the ranks of a pipeline do not form a group.
const STAGES: &str = "stages";

/// Locates all groups; if the plan has several stages, also locates the ranks of each pipeline. `npus` contains the NPU
/// of each rank.
pub fn locate_groups(
    summary: &PlanSummary,
    machine: &Machine,
    npus: &[Npu],
) -> Vec<SameExtentGroups> {
    let topology = machine.topology();
    let families = summary
        .groups
        .iter()
        .map(|groups| (groups.family, &groups.all));
    let stages = (summary.stages.len() > 1).then_some((STAGES, &summary.pipelines));
    let mut all = Vec::new();
    for (family, groups) in families.chain(stages) {
        let mut alike: BTreeMap<GroupExtentWithoutPosition, (u32, NeighbourRouteLinkCounts)> =
            BTreeMap::new();
        for members in groups {
            let at: Vec<Npu> = members.iter().map(|rank| npus[*rank as usize]).collect();
            let (count, hops) = alike
                .entry(group_extent_without_position(&at, topology))
                .or_default();
            *count += 1;
            // Do not count a route from the last stage of a pipeline to the first, because no data takes this route.
            hops.add_neighbour_routes(&at, family != STAGES, topology);
        }
        let tiled = topology.tile_grid().is_some();
        all.extend(
            alike
                .into_iter()
                .map(|(extent, (groups, hops))| SameExtentGroups {
                    family,
                    groups,
                    extent,
                    neighbours: tiled.then_some(hops),
                }),
        );
    }
    all
}

fn group_extent_without_position(npus: &[Npu], topology: &Topology) -> GroupExtentWithoutPosition {
    let dimensions = topology.dimensions().iter().enumerate();
    let along = dimensions.filter_map(|(dimension, of)| {
        let mut found: Vec<u32> = npus
            .iter()
            .map(|&npu| topology.coordinate_of(npu, dimension))
            .collect();
        found.sort_unstable();
        found.dedup();
        let mut gaps = found.windows(2).map(|pair| pair[1] - pair[0]);
        let first = gaps.next()?;
        Some(GroupExtentInOneDimension {
            dimension,
            name: of.name.clone(),
            size: of.size,
            members: found.len() as u32,
            apart: gaps.all(|gap| gap == first).then_some(first),
        })
    });
    GroupExtentWithoutPosition {
        along: along.collect(),
        regular: GroupPhasesAndMemberPositions::new(npus, topology).regular,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_extent_in_dimension(
        dimension: usize,
        size: u32,
        members: u32,
        apart: Option<u32>,
    ) -> GroupExtentInOneDimension {
        let name = ["nvlink", "infiniband"][dimension].to_owned();
        GroupExtentInOneDimension {
            dimension,
            name,
            size,
            members,
            apart,
        }
    }

    /// On a wafer with dies of 4 x 4 tiles, the tiles (0,0), (1,0), (1,1), (0,1) form a ring of
    /// neighbours. If the order is 0, 2, 1, 3, the routes between neighbours have 2, 1, 2 and 1 links. The tiles (3,0)
    /// and (4,0) are on different dies.
    #[test]
    fn routes_between_tile_neighbours_are_counted_in_links() {
        let machine = Machine::load_preset("wafer-5x4").unwrap();
        let count = |npus: &[u32], closes| {
            let npus: Vec<_> = npus.iter().copied().map(Npu).collect();
            let mut hops = NeighbourRouteLinkCounts::default();
            hops.add_neighbour_routes(&npus, closes, machine.topology());
            (hops.ways, hops.links, hops.most, hops.between_dies)
        };
        assert_eq!(count(&[0, 1, 21, 20], true), (4, 4, 1, 0));
        assert_eq!(count(&[0, 21, 1, 20], true), (4, 6, 2, 0));
        assert_eq!(count(&[3, 4], true), (1, 1, 1, 1));
        assert_eq!(count(&[0, 1, 21, 20], false), (3, 3, 1, 0));
    }

    /// With 8 NPUs per node, NPU n has index n % 8 in node n / 8.
    #[test]
    fn group_members_are_found_along_each_machine_dimension() {
        let machine = Machine::load_preset("dgx-a100x4").unwrap();
        let at = |npus: &[u32]| {
            let npus: Vec<_> = npus.iter().copied().map(Npu).collect();
            let found = group_extent_without_position(&npus, machine.topology());
            (found.regular, found.along)
        };
        assert_eq!(
            at(&[0, 1, 2, 3]),
            (true, vec![build_extent_in_dimension(0, 8, 4, Some(1))])
        );
        assert_eq!(
            at(&[0, 4, 1, 2]),
            (true, vec![build_extent_in_dimension(0, 8, 4, None)])
        );
        // The members have indices 0 and 4 in nodes 0 and 2.
        let both = vec![
            build_extent_in_dimension(0, 8, 2, Some(4)),
            build_extent_in_dimension(1, 4, 2, Some(2)),
        ];
        assert_eq!(at(&[0, 4, 16, 20]), (true, both.clone()));
        // NPUs 0, 4 and 16 lack the fourth corner, NPU 20, so they do not form a grid.
        assert_eq!(at(&[0, 4, 16]), (false, both));
        assert_eq!(at(&[9]), (true, vec![]));
    }
}
