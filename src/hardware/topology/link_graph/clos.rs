//! Clos networks: levels of switches, and the NPUs that they join.

use super::{MOST_NPUS, Topology};

/// Levels of a Clos network of folded trees, lowest first: `children` NPUs or switches below each switch of a level, and
/// `uplinks` links from it to as many switches of the next. It is an extended generalized fat tree (Öhring et al., IPPS 1995),
/// all of whose links have one rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosLevels {
    /// Number of NPUs or switches below a switch, by level.
    pub children: Vec<u32>,
    /// Number of links up from a switch, by level but the highest.
    pub uplinks: Vec<u32>,
}

/// NPUs that a Clos network above other dimensions joins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClosFabric {
    /// NPUs of one rail, which have the same place in the dimensions inside: each rail has a network of its own. From rail
    /// to rail messages go inside.
    #[default]
    RailOnly,
    /// All NPUs, those of one rail below the same switches.
    RailOptimized,
    /// All NPUs, those that lie together inside below the same switches.
    TopOfRack,
}

impl ClosFabric {
    /// All, with their names in machine files.
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::RailOnly, "rail_only"),
        (Self::RailOptimized, "rail_optimized"),
        (Self::TopOfRack, "top_of_rack"),
    ];

    /// Number of NPUs that a network of dimension `d` joins.
    pub fn npus(self, topology: &Topology, d: usize) -> u32 {
        let size = topology.dimensions()[d].size;
        match self {
            Self::RailOnly => size,
            Self::RailOptimized | Self::TopOfRack => topology.strides[d] * size,
        }
    }

    /// NPUs of each network of dimension `d`, in their order below its switches; `lines` are those along the dimension.
    pub(super) fn ends(
        self,
        topology: &Topology,
        d: usize,
        lines: impl Iterator<Item = Vec<u32>>,
    ) -> Vec<Vec<u32>> {
        let (inside, npus) = (topology.strides[d], self.npus(topology, d));
        let parts = (0..topology.npus()).step_by(npus as usize);
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

impl ClosLevels {
    /// Number of NPUs; `None` if there are too many.
    pub fn npus(&self) -> Option<u32> {
        let all = self.children.iter();
        let npus = all
            .copied()
            .try_fold(1_u32, |npus, children| npus.checked_mul(children))?;
        (npus <= MOST_NPUS).then_some(npus)
    }

    /// `2x2x4`.
    pub(super) fn sizes(&self) -> String {
        let sizes: Vec<_> = self.children.iter().map(u32::to_string).collect();
        sizes.join("x")
    }
}
