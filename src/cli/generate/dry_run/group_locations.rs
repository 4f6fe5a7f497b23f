//! Locations of groups on a machine's dimensions.

use crate::generate::training::PlanSummary;
use crate::group::GroupExtent;
use crate::ids::Npu;
use crate::machine::Machine;
use crate::topology::Topology;
use std::collections::BTreeMap;

/// Groups of a family that lie alike.
pub struct GroupLocation {
    /// Their family.
    pub family: &'static str,
    /// Number of groups.
    pub groups: u32,
    /// Their extent.
    pub extent: SharedExtent,
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

/// Locates all groups, and the ranks of each pipeline if there are stages. `npus` are those of the ranks.
pub fn locate_groups(summary: &PlanSummary, machine: &Machine, npus: &[Npu]) -> Vec<GroupLocation> {
    let topology = machine.topology();
    let families = summary
        .groups
        .iter()
        .map(|groups| (groups.family, &groups.all));
    let stages = (summary.stages.len() > 1).then_some(("stages", &summary.pipelines));
    let mut all = Vec::new();
    for (family, groups) in families.chain(stages) {
        let mut alike: BTreeMap<SharedExtent, u32> = BTreeMap::new();
        for members in groups {
            let at: Vec<Npu> = members.iter().map(|rank| npus[*rank as usize]).collect();
            *alike.entry(extent(&at, topology)).or_default() += 1;
        }
        all.extend(alike.into_iter().map(|(extent, groups)| GroupLocation {
            family,
            groups,
            extent,
        }));
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
