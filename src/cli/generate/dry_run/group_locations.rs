//! Locations of groups on a machine's dimensions.

use chakram_base::ids::Npu;
use chakram_hardware::group::GroupExtent;
use chakram_hardware::machine::Machine;
use chakram_hardware::topology::Topology;
use chakram_workloads::generate::training::PlanSummary;
use std::collections::BTreeMap;

/// Groups of a family that lie alike.
pub struct GroupLocation {
    /// Their family.
    pub family: &'static str,
    /// Number of groups.
    pub groups: u32,
    /// Their extent.
    pub extent: SharedExtent,
    /// Ways from members to the next, on a machine of tiles.
    pub neighbours: Option<NeighbourHops>,
}

/// Links from each member of groups to the next, and of a ring from the last to the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NeighbourHops {
    /// Number of such ways.
    pub ways: u32,
    /// Links of all of them.
    pub links: u32,
    /// Those of the longest.
    pub most: u32,
    /// Ways that leave a die.
    pub between_dies: u32,
}

impl NeighbourHops {
    /// Counts the ways of a group; `closes` if its last member has the first behind it.
    fn count(&mut self, npus: &[Npu], closes: bool, topology: &Topology) {
        let Some(tiles) = topology.tiles() else {
            return;
        };
        let again = npus.iter().take(usize::from(closes && npus.len() > 2));
        let next = npus.iter().skip(1).chain(again);
        for (from, to) in npus.iter().zip(next) {
            let hops = topology.hops(*from, *to);
            self.ways += 1;
            self.links += hops;
            self.most = self.most.max(hops);
            self.between_dies += u32::from(tiles.die(from.0) != tiles.die(to.0));
        }
    }

    /// Links of a way.
    pub fn mean(&self) -> f64 {
        f64::from(self.links) / f64::from(self.ways.max(1))
    }
}

/// Extent that groups which lie alike share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedExtent {
    /// Whether members are all combinations of some coordinates; else a collective among them is one line over all.
    pub regular: bool,
    /// The dimensions in which members differ, innermost first.
    pub along: Vec<DimensionMembers>,
}

/// Members along a dimension.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DimensionMembers {
    /// Its index, innermost 0.
    pub dimension: usize,
    /// Its name on the machine.
    pub name: String,
    /// NPUs of it.
    pub size: u32,
    /// Number of its coordinates that members have.
    pub members: u32,
    /// Distance between neighbours, if it is the same for all.
    pub apart: Option<u32>,
}

/// The family of the ranks of a pipeline.
const STAGES: &str = "stages";

/// Locates all groups, and the ranks of each pipeline if there are stages. `npus` are those of the ranks.
pub fn locate_groups(summary: &PlanSummary, machine: &Machine, npus: &[Npu]) -> Vec<GroupLocation> {
    let topology = machine.topology();
    let families = summary
        .groups
        .iter()
        .map(|groups| (groups.family, &groups.all));
    let stages = (summary.stages.len() > 1).then_some((STAGES, &summary.pipelines));
    let mut all = Vec::new();
    for (family, groups) in families.chain(stages) {
        let mut alike: BTreeMap<SharedExtent, (u32, NeighbourHops)> = BTreeMap::new();
        for members in groups {
            let at: Vec<Npu> = members.iter().map(|rank| npus[*rank as usize]).collect();
            let (count, hops) = alike.entry(extent(&at, topology)).or_default();
            *count += 1;
            // A pipeline ends with its last stage.
            hops.count(&at, family != STAGES, topology);
        }
        let tiled = topology.tiles().is_some();
        all.extend(
            alike
                .into_iter()
                .map(|(extent, (groups, hops))| GroupLocation {
                    family,
                    groups,
                    extent,
                    neighbours: tiled.then_some(hops),
                }),
        );
    }
    all
}

fn extent(npus: &[Npu], topology: &Topology) -> SharedExtent {
    let dimensions = topology.dimensions().iter().enumerate();
    let along = dimensions.filter_map(|(dimension, of)| {
        let mut found: Vec<u32> = npus
            .iter()
            .map(|&npu| topology.coordinate(npu, dimension))
            .collect();
        found.sort_unstable();
        found.dedup();
        let mut gaps = found.windows(2).map(|pair| pair[1] - pair[0]);
        let first = gaps.next()?;
        Some(DimensionMembers {
            dimension,
            name: of.name.clone(),
            size: of.size,
            members: found.len() as u32,
            apart: gaps.all(|gap| gap == first).then_some(first),
        })
    });
    SharedExtent {
        along: along.collect(),
        regular: GroupExtent::new(npus, topology).regular,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn along(dimension: usize, size: u32, members: u32, apart: Option<u32>) -> DimensionMembers {
        let name = ["nvlink", "infiniband"][dimension].to_owned();
        DimensionMembers {
            dimension,
            name,
            size,
            members,
            apart,
        }
    }

    /// On the wafer, of dies of 4 x 4: (0,0), (1,0), (1,1), (0,1) are a ring of neighbours; in the order 0, 2, 1, 3 ways
    /// are 2, 1, 2 and 1 links long. From (3,0) to (4,0) is another die.
    #[test]
    fn neighbours_on_tiles_are_links_apart() {
        let machine = Machine::preset("wafer-5x4").unwrap();
        let count = |npus: &[u32], closes| {
            let npus: Vec<_> = npus.iter().copied().map(Npu).collect();
            let mut hops = NeighbourHops::default();
            hops.count(&npus, closes, machine.topology());
            (hops.ways, hops.links, hops.most, hops.between_dies)
        };
        assert_eq!(count(&[0, 1, 21, 20], true), (4, 4, 1, 0));
        assert_eq!(count(&[0, 21, 1, 20], true), (4, 6, 2, 0));
        assert_eq!(count(&[3, 4], true), (1, 1, 1, 1));
        assert_eq!(count(&[0, 1, 21, 20], false), (3, 3, 1, 0));
    }

    /// Nodes of 8: NPU n is number n % 8 of node n / 8.
    #[test]
    fn members_are_found_along_each_dimension() {
        let machine = Machine::preset("dgx-a100x4").unwrap();
        let at = |npus: &[u32]| {
            let npus: Vec<_> = npus.iter().copied().map(Npu).collect();
            let found = extent(&npus, machine.topology());
            (found.regular, found.along)
        };
        assert_eq!(at(&[0, 1, 2, 3]), (true, vec![along(0, 8, 4, Some(1))]));
        assert_eq!(at(&[0, 4, 1, 2]), (true, vec![along(0, 8, 4, None)]));
        // Numbers 0 and 4 of nodes 0 and 2.
        let both = vec![along(0, 8, 2, Some(4)), along(1, 4, 2, Some(2))];
        assert_eq!(at(&[0, 4, 16, 20]), (true, both.clone()));
        // Three of those four are no grid.
        assert_eq!(at(&[0, 4, 16]), (false, both));
        assert_eq!(at(&[9]), (true, vec![]));
    }
}
