//! Clos networks: levels of switches, and the NPUs that each network connects.

use super::{MOST_NPUS, Topology};

/// Levels of a folded Clos network, lowest first. A switch has `children` NPUs or switches below it, and `uplinks`
/// links to different switches of the next level. Such a network is an extended generalized fat tree (Öhring et al.,
/// IPPS 1995) in which all links have the same rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildrenAndUplinksByClosLevel {
    /// For each level, the number of NPUs or switches below a switch.
    pub children: Vec<u32>,
    /// For each level except the highest, the number of uplinks per switch.
    pub uplinks: Vec<u32>,
}

/// Rule for the NPUs that each Clos network connects, if the machine has inner dimensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClosNetworkRailWiring {
    /// Each rail has its own network of switches. A rail is the set of NPUs with equal coordinates in the inner
    /// dimensions. Messages between rails travel over the inner dimensions.
    #[default]
    RailOnly,
    /// One network connects all NPUs, and the NPUs of one rail are below the same switches.
    RailOptimized,
    /// One network connects all NPUs, and NPUs in the same inner dimensions are below the same switches.
    TopOfRack,
}

impl ClosNetworkRailWiring {
    /// Every variant with its name in machine files.
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::RailOnly, "rail_only"),
        (Self::RailOptimized, "rail_optimized"),
        (Self::TopOfRack, "top_of_rack"),
    ];

    /// Returns how many NPUs each network of dimension `d` connects.
    pub fn npus_per_network(self, topology: &Topology, d: usize) -> u32 {
        let size = topology.dimensions()[d].size;
        match self {
            Self::RailOnly => size,
            Self::RailOptimized | Self::TopOfRack => topology.strides[d] * size,
        }
    }

    /// Returns the NPUs of each network of dimension `d`, in the order in which its switches connect them. `lines` are
    /// the lines along the dimension.
    pub(super) fn list_npus_per_network_of_dimension(
        self,
        topology: &Topology,
        d: usize,
        lines: impl Iterator<Item = Vec<u32>>,
    ) -> Vec<Vec<u32>> {
        let (inside, npus) = (topology.strides[d], self.npus_per_network(topology, d));
        let parts = (0..topology.npu_count()).step_by(npus as usize);
        match self {
            Self::RailOnly => lines.collect(),
            Self::TopOfRack => parts.map(|first| (first..first + npus).collect()).collect(),
            Self::RailOptimized => {
                let rail = |first: u32| (first..).step_by(inside as usize);
                let along = (npus / inside) as usize;
                let rails =
                    |first| (first..first + inside).flat_map(move |npu| rail(npu).take(along));
                parts.map(|first| rails(first).collect()).collect()
            }
        }
    }
}

impl ChildrenAndUplinksByClosLevel {
    /// Returns the number of NPUs, or `None` if there are too many.
    pub fn npu_count(&self) -> Option<u32> {
        let all = self.children.iter();
        let npus = all
            .copied()
            .try_fold(1_u32, |npus, children| npus.checked_mul(children))?;
        (npus <= MOST_NPUS).then_some(npus)
    }

    /// Formats the levels: `2x2x4`.
    pub(super) fn format_sizes(&self) -> String {
        let sizes: Vec<_> = self.children.iter().map(u32::to_string).collect();
        sizes.join("x")
    }
}
