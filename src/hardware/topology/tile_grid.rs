//! Grids of dies. Each die is a grid of cores. The types here describe properties that the x and y dimensions have only
//! on tiles.
//!
//! Cores are the NPUs, and there are no other devices. Each dimension of tiles spans all dies. A link between
//! neighbours is either *inside* a die or crosses the *border* between two dies. Links inside a die have the rate and
//! latency of their dimension. Links across borders have the rate and latency of [`DieBorderLinks`]. On a torus, the
//! link that closes a row or column crosses a border if that row or column spans several dies. If links are *half
//! duplex*, both directions share one link.
//!
//! Messages travel along x first, then along y (XY routing). If a link of this route is faulty, they travel along y
//! first. If both routes have a faulty link, there is none. A faulty core runs nothing, but it forwards messages.

use super::{DimensionShape, PathLatencyAndRates, SwitchingMode, TopologyDimension};
use chakram_base::units::{Bandwidth, Span, SummedSecondsPerByte};
use std::collections::BTreeSet;

/// The links between dies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DieBorderLinks {
    /// Rate of one link.
    pub bandwidth: Bandwidth,
    /// Time that the first byte takes over one link.
    pub latency: Span,
}

/// Dies and cores of a machine whose topology has the dimensions x and y.
#[derive(Clone, Debug, PartialEq)]
pub struct DieAndCoreLayout {
    /// Number of dies along x and along y.
    pub dies: [u32; 2],
    /// Number of cores in a die along x and along y.
    pub cores: [u32; 2],
    /// Rate and latency of links between dies.
    pub borders: DieBorderLinks,
    /// True if both directions of a link share its rate.
    pub half_duplex: bool,
    /// Time from the last arrival at a barrier until all cores continue, if barriers use dedicated wires. `None` if
    /// barriers are messages.
    pub barrier: Option<Span>,
    /// Indices of the cores that run no nodes.
    pub faulty_cores: BTreeSet<u32>,
    /// Links that carry nothing in either direction, as (core at the lower end, dimension).
    pub faulty_links: BTreeSet<(u32, usize)>,
}

/// Number of links on a route, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteIntradieInterdieLinkCounts {
    /// Number of links inside dies.
    pub inside: u32,
    /// Number of links between dies.
    pub borders: u32,
}

impl DieAndCoreLayout {
    /// Returns the number of cores along `dimension`, over all dies.
    pub fn cores_along_dimension(&self, dimension: usize) -> u32 {
        self.dies[dimension] * self.cores[dimension]
    }

    /// Returns the index of the core at coordinates `at`, x first.
    pub fn core_at(&self, at: [u32; 2]) -> u32 {
        at[0] + at[1] * self.cores_along_dimension(0)
    }

    /// Returns the coordinates of a core, x first.
    pub fn coordinates_of_core(&self, core: u32) -> [u32; 2] {
        [
            core % self.cores_along_dimension(0),
            core / self.cores_along_dimension(0),
        ]
    }

    /// Returns the coordinates of a core's die, x first.
    pub fn die_of_core(&self, core: u32) -> [u32; 2] {
        let at = self.coordinates_of_core(core);
        [at[0] / self.cores[0], at[1] / self.cores[1]]
    }

    /// Returns true if the link between coordinates `lower` and `lower + 1` along `dimension` connects two dies.
    #[inline]
    pub fn is_link_between_dies(&self, dimension: usize, lower: u32) -> bool {
        self.dies[dimension] > 1 && (lower + 1).is_multiple_of(self.cores[dimension])
    }

    /// Counts the links by class from coordinate `from` to `to` along `dimension`, which is wired as `shape`.
    #[inline]
    pub(super) fn count_crossed_links(
        &self,
        dimension: usize,
        shape: DimensionShape,
        from: u32,
        to: u32,
    ) -> RouteIntradieInterdieLinkCounts {
        let size = self.cores_along_dimension(dimension);
        let hops = shape.hop_count(size, from, to);
        if self.dies[dimension] == 1 {
            return RouteIntradieInterdieLinkCounts {
                inside: hops,
                borders: 0,
            };
        }
        // Count links upwards from the lower end. After the last coordinate, the route continues around the ring.
        let lower = if shape.is_upward(size, from, to) {
            from
        } else {
            to
        };
        let cores = self.cores[dimension];
        let borders = (lower + hops) / cores - lower / cores;
        RouteIntradieInterdieLinkCounts {
            inside: hops - borders,
            borders,
        }
    }

    /// Returns the path between two cores, whose coordinates along both dimensions are `ends`, or `None` if both are
    /// the same core.
    #[inline]
    pub(super) fn path_latency_and_rates(
        &self,
        dimensions: &[TopologyDimension],
        inside: Bandwidth,
        switching: SwitchingMode,
        ends: [[u32; 2]; 2],
    ) -> Option<PathLatencyAndRates> {
        let [from, to] = ends;
        let mut all = RouteIntradieInterdieLinkCounts::default();
        for (d, dimension) in dimensions.iter().enumerate() {
            let count = self.count_crossed_links(d, dimension.shape, from[d], to[d]);
            all.inside += count.inside;
            all.borders += count.borders;
        }
        let mut bandwidth = match (all.inside, all.borders) {
            (0, 0) => return None,
            (0, _) => self.borders.bandwidth,
            _ => inside,
        };
        if all.borders > 0 && self.borders.bandwidth < bandwidth {
            bandwidth = self.borders.bandwidth;
        }
        let latency = dimensions[0].latency.times(u64::from(all.inside))
            + self.borders.latency.times(u64::from(all.borders));
        let others = if switching == SwitchingMode::IDEAL {
            SummedSecondsPerByte::ZERO
        } else {
            // Skip one of the slowest links: its segment is already part of the serialization.
            let in_slowest = bandwidth == inside && all.inside > 0;
            self.sum_inverse_link_rates(
                inside,
                RouteIntradieInterdieLinkCounts {
                    inside: all.inside - u32::from(in_slowest),
                    borders: all.borders - u32::from(!in_slowest),
                },
            )
        };
        Some(PathLatencyAndRates {
            latency,
            bandwidth,
            switching,
            others,
        })
    }

    /// Returns the sum of the inverse rates of `count` links.
    #[inline]
    pub fn sum_inverse_link_rates(
        &self,
        inside: Bandwidth,
        count: RouteIntradieInterdieLinkCounts,
    ) -> SummedSecondsPerByte {
        SummedSecondsPerByte::ZERO
            .add_links(count.inside, inside)
            .add_links(count.borders, self.borders.bandwidth)
    }

    /// Returns the first faulty link on the route that crosses dimension `first` before the other dimension, as (core
    /// at its lower end, dimension), or `None`.
    fn find_fault_on_route(
        &self,
        dimensions: &[TopologyDimension],
        ends: [[u32; 2]; 2],
        first: usize,
    ) -> Option<(u32, usize)> {
        let [mut at, to] = ends;
        for d in [first, 1 - first] {
            let (size, shape) = (self.cores_along_dimension(d), dimensions[d].shape);
            while at[d] != to[d] {
                let before = at;
                let up = shape.is_upward(size, at[d], to[d]);
                at[d] = if up {
                    (at[d] + 1) % size
                } else {
                    (at[d] + size - 1) % size
                };
                let link = (self.core_at(if up { before } else { at }), d);
                if self.faulty_links.contains(&link) {
                    return Some(link);
                }
            }
        }
        None
    }

    /// Returns the dimension along which messages between two cores travel first.
    ///
    /// # Errors
    ///
    /// Fails if every route has a faulty link. The error is the first faulty link, as (core at the link's lower end,
    /// dimension).
    pub(super) fn first_dimension_avoiding_faults(
        &self,
        dimensions: &[TopologyDimension],
        ends: [[u32; 2]; 2],
    ) -> Result<usize, (u32, usize)> {
        if self.faulty_links.is_empty() {
            return Ok(0);
        }
        match self.find_fault_on_route(dimensions, ends, 0) {
            None => Ok(0),
            Some(link) => match self.find_fault_on_route(dimensions, ends, 1) {
                None => Ok(1),
                Some(_) => Err(link),
            },
        }
    }

    /// Formats a link: `between cores (3, 0) and (4, 0)`.
    pub fn link_name(&self, (lower, dimension): (u32, usize)) -> String {
        let at = self.coordinates_of_core(lower);
        let mut beyond = at;
        beyond[dimension] = (at[dimension] + 1) % self.cores_along_dimension(dimension);
        format!(
            "between cores {} and {}",
            format_coordinates(at),
            format_coordinates(beyond)
        )
    }
}

/// Formats coordinates: `(3, 0)`.
pub fn format_coordinates([x, y]: [u32; 2]) -> String {
    format!("({x}, {y})")
}

#[cfg(test)]
mod tests;
