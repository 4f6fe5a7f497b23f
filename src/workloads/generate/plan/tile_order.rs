//! Placement on tiled accelerators: the order in which ranks are assigned to the cores of a grid of
//! dies.
//!
//! Stages take consecutive cores in this order. Within a stage, the members of a tensor group are
//! consecutive, or the replicas of one member are consecutive ([`TensorNeighbours`]).

use super::{
    AllRankCoordinatesAndGroups, CorePlacement, ParallelismPlan, TensorDataStageCoordinates,
    TensorNeighbours, TileOrder,
};
use crate::generate::{PatternOptionError, refused_option_value_error};
use std::collections::BTreeSet;

/// Grid of a tiled machine's cores. It is plain data, so that placement does not depend on the machine's type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TiledMachineCoreGrid {
    /// Number of dies along x and along y.
    pub dies: [u32; 2],
    /// Number of cores on a die along x and along y.
    pub cores: [u32; 2],
    /// Coordinates of faulty cores, which receive no rank.
    pub faulty: BTreeSet<[u32; 2]>,
}

impl TiledMachineCoreGrid {
    /// Returns the coordinates of all working cores, sorted by `order`.
    pub fn list_cores_in_order(&self, order: TileOrder) -> Vec<[u32; 2]> {
        let [width, height] = [0, 1].map(|d| self.dies[d] * self.cores[d]);
        let whole = ([0, 0], [width, height]);
        let all: Vec<[u32; 2]> = match order {
            TileOrder::Line => walk_rows(whole, false).collect(),
            TileOrder::Serpentine => {
                let dies = walk_rows(([0, 0], self.dies), true);
                dies.flat_map(|die| self.cores_of_die_in_serpentine_order(die))
                    .collect()
            }
            TileOrder::Spiral => {
                let dies = walk_spiral(self.dies).into_iter();
                dies.flat_map(|die| self.cores_of_die_in_serpentine_order(die))
                    .collect()
            }
        };
        let runs = |core: &[u32; 2]| !self.faulty.contains(core);
        all.into_iter().filter(runs).collect()
    }

    /// Returns a die's cores in serpentine order.
    fn cores_of_die_in_serpentine_order(
        &self,
        die: [u32; 2],
    ) -> impl Iterator<Item = [u32; 2]> + use<> {
        let corner = [0, 1].map(|d| die[d] * self.cores[d]);
        walk_rows((corner, self.cores), true)
    }
}

/// Returns the coordinates of a rectangle row by row. If `turns` is true, every second row runs backward.
fn walk_rows((corner, size): ([u32; 2], [u32; 2]), turns: bool) -> impl Iterator<Item = [u32; 2]> {
    (0..size[1]).flat_map(move |y| {
        (0..size[0]).map(move |x| {
            let x = if turns && y % 2 == 1 {
                size[0] - 1 - x
            } else {
                x
            };
            [corner[0] + x, corner[1] + y]
        })
    })
}

/// Returns the coordinates of a rectangle in an inward spiral, which starts along the first row, to the right.
fn walk_spiral(size: [u32; 2]) -> Vec<[u32; 2]> {
    let count = size[0] as usize * size[1] as usize;
    let [mut least, mut end] = [[0, 0], size];
    let mut places = Vec::with_capacity(count);
    while places.len() < count {
        places.extend((least[0]..end[0]).map(|x| [x, least[1]]));
        places.extend((least[1] + 1..end[1]).map(|y| [end[0] - 1, y]));
        // Walk back only if there are several rows (or several columns, below), because the same cores would otherwise
        // be visited again.
        if end[1] - least[1] > 1 {
            places.extend((least[0]..end[0] - 1).rev().map(|x| [x, end[1] - 1]));
        }
        if end[0] - least[0] > 1 {
            places.extend((least[1] + 1..end[1] - 1).rev().map(|y| [least[0], y]));
        }
        (least, end) = ([least[0] + 1, least[1] + 1], [end[0] - 1, end[1] - 1]);
    }
    places
}

impl ParallelismPlan {
    /// Assigns a core of the machine to every position, if the plan names an order of tiles.
    ///
    /// # Errors
    ///
    /// Fails if there are more ranks than cores, if a core does not exist, or if the machine has no
    /// tiles (`None`).
    pub fn place_on_tiles(
        &mut self,
        grid: Option<&TiledMachineCoreGrid>,
    ) -> Result<(), PatternOptionError> {
        let ranks = self.rank_count();
        let order = match &self.tiles {
            CorePlacement::None => return Ok(()),
            CorePlacement::Order(order) => Some(*order),
            CorePlacement::Cores(_) => None,
        };
        let Some(grid) = grid else {
            let expected = "a machine of tiles, such as wafer-5x4";
            return Err(refused_option_value_error("place", &self.tiles, expected));
        };
        match (order, &self.tiles) {
            (Some(order), _) => {
                let cores = grid.list_cores_in_order(order);
                if ranks > cores.len() as u128 {
                    let expected = format!(
                        "at most the {} cores of the machine that are not faulty, which has {}",
                        cores.len(),
                        cores.len() + grid.faulty.len()
                    );
                    return Err(refused_option_value_error(
                        "data x tensor x pipeline",
                        ranks,
                        expected,
                    ));
                }
                let positions = AllRankCoordinatesAndGroups::new(self);
                let index = |rank: u32| {
                    let TensorDataStageCoordinates {
                        tensor,
                        data,
                        stage,
                    } = positions.coordinates_of_rank(rank);
                    let own = match self.tensor_neighbours {
                        TensorNeighbours::Near => {
                            data * positions.tensor_degree_of_stage(stage) + tensor
                        }
                        TensorNeighbours::Opposite => {
                            tensor * self.weight_replicas_per_stage() + data
                        }
                    };
                    self.weight_replicas_per_stage() * positions.replica_ranks_before_stage(stage)
                        + own
                };
                let placed = (0..ranks as u32).map(|rank| cores[index(rank) as usize]);
                self.tiles = CorePlacement::Cores(placed.collect());
            }
            (None, CorePlacement::Cores(cores)) => {
                let size = [0, 1].map(|d| grid.dies[d] * grid.cores[d]);
                let beyond = |core: &&[u32; 2]| (0..2).any(|d| core[d] >= size[d]);
                if let Some([x, y]) = cores.iter().find(beyond) {
                    let expected = format!("cores from 0:0 to {}:{}", size[0] - 1, size[1] - 1);
                    return Err(refused_option_value_error(
                        "place",
                        format_args!("core {x}:{y}"),
                        expected,
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Rejects a list of explicit cores that does not have one core per rank.
    pub(in crate::generate) fn check_core_for_each_rank(&self) -> Result<(), PatternOptionError> {
        let CorePlacement::Cores(cores) = &self.tiles else {
            return match &self.tiles {
                CorePlacement::None => Ok(()),
                order => Err(refused_option_value_error(
                    "place",
                    order,
                    "a machine, which says which cores there are",
                )),
            };
        };
        let ranks = self.rank_count();
        if cores.len() as u128 != ranks {
            let expected = format!("{ranks} of them, one for each rank");
            return Err(refused_option_value_error(
                "place",
                format_args!("{} cores", cores.len()),
                expected,
            ));
        }
        let mut seen = BTreeSet::new();
        match cores.iter().find(|core| !seen.insert(**core)) {
            Some([x, y]) => Err(refused_option_value_error(
                "place",
                format_args!("core {x}:{y} twice"),
                "each core once",
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
