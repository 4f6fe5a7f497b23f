//! Chips and the links between them, as an arbitrary graph: tori, meshes, random graphs, and graphs from files.
//!
//! A link joins two chips in both directions and has a length, in whole units. The *hops* between two chips are the
//! smallest number of links between them. The *distance* is the smallest sum of link lengths.

use std::collections::{BTreeSet, VecDeque};

mod file;
mod shapes;
mod technology;

pub use technology::{LinkRateByLinkCount, RateInterpolationByLinkCount};

/// Maximum number of chips in a graph. It is limited because the time to compute a summary grows with its square.
pub const MOST_CHIPS: u32 = 4096;

/// Maximum length of a link, in units.
pub const MOST_DISTANCE: u32 = 1 << 20;

/// A connected graph of chips.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChipGraph {
    name: String,
    /// Number of dimensions in the header of the graph's file.
    dimensions: u32,
    /// For each chip, the linked chips in ascending order, with the lengths of the links.
    links: Vec<Vec<(u32, u32)>>,
}

/// An invalid graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChipGraphError {
    /// No shape has this name or size.
    #[error(
        "{found:?} is not a topology; expected torus:2x4, torus:2x2x2, mesh:2x4 or ring:8, of at most {MOST_CHIPS} chips"
    )]
    Shape {
        /// The text that names no graph.
        found: String,
    },
    /// A line of a file is invalid.
    #[error("{file}:{line}: found {found}, expected {expected}")]
    Line {
        /// Name of the topology file.
        file: String,
        /// Line number, counting from 1.
        line: usize,
        /// The invalid entry in the line.
        found: String,
        /// Description of the expected entry.
        expected: String,
    },
    /// A link exists in one direction only, or its ends state different distances.
    #[error(
        "chip {from} is linked to chip {to} at distance {there}, but chip {to} {back}; expected the same link in both directions"
    )]
    OneWay {
        /// Chip at one end of the link.
        from: u32,
        /// Chip at the other end of the link.
        to: u32,
        /// Length of the link as stated at chip `from`.
        there: u32,
        /// Clause that describes the link as stated at chip `to`.
        back: String,
    },
    /// Some chips of the graph cannot reach one another.
    #[error("chip {chip} cannot be reached from chip 0; expected a connected topology")]
    Disconnected {
        /// The lowest-numbered chip that chip 0 cannot reach.
        chip: u32,
    },
}

/// Statistics of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct ChipGraphSummary {
    /// Number of links.
    pub links: u64,
    /// The smallest and the largest number of links per chip.
    pub degrees: (u32, u32),
    /// The largest number of hops between two chips.
    pub diameter: u32,
    /// Mean hops over all pairs of different chips, or 0 for one chip.
    pub mean_hops: f64,
    /// Mean distance over all pairs of different chips, or 0 for one chip.
    pub mean_distance: f64,
}

impl ChipGraph {
    /// Creates a graph, after checking that links go both ways and that all chips reach one another.
    ///
    /// # Errors
    ///
    /// Fails if a link goes only one way, or if a chip cannot be reached. The error names the first link or chip that
    /// violates a condition.
    pub fn new(
        name: String,
        dimensions: u32,
        mut links: Vec<Vec<(u32, u32)>>,
    ) -> Result<Self, ChipGraphError> {
        for of in &mut links {
            of.sort_unstable();
        }
        for (from, of) in (0..).zip(&links) {
            for &(to, there) in of {
                let back = links[to as usize].iter().find(|(chip, _)| *chip == from);
                let said = match back {
                    Some((_, back)) if *back == there => continue,
                    Some((_, back)) => format!("states distance {back}"),
                    None => format!("has no link to chip {from}"),
                };
                return Err(ChipGraphError::OneWay {
                    from,
                    to,
                    there,
                    back: said,
                });
            }
        }
        let graph = Self {
            name,
            dimensions,
            links,
        };
        let unreached = graph.hops_from(0).iter().position(Option::is_none);
        match unreached {
            Some(chip) => Err(ChipGraphError::Disconnected { chip: chip as u32 }),
            None => Ok(graph),
        }
    }

    /// Returns the name of the graph, such as `torus:2x4`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of chips in the graph.
    pub fn chip_count(&self) -> u32 {
        self.links.len() as u32
    }

    /// Returns the chips that `chip` is linked to, with the links' lengths.
    pub fn neighbours_of(&self, chip: u32) -> &[(u32, u32)] {
        &self.links[chip as usize]
    }

    /// Returns the largest number of links per chip.
    pub fn max_links_per_chip(&self) -> u32 {
        let links = self.links.iter().map(|of| of.len() as u32);
        links.max().unwrap_or(0)
    }

    /// Lists each link once, with its length unless it is 1: `0-1,1-2:3`.
    pub fn format_link_list(&self) -> String {
        let links = (0..self.chip_count()).flat_map(|from| {
            let later = self
                .neighbours_of(from)
                .iter()
                .filter(move |(to, _)| *to > from);
            later.map(move |(to, distance)| match distance {
                1 => format!("{from}-{to}"),
                _ => format!("{from}-{to}:{distance}"),
            })
        });
        links.collect::<Vec<_>>().join(",")
    }

    /// Returns the hops from `chip` to each chip, or `None` for chips that cannot be reached.
    pub fn hops_from(&self, chip: u32) -> Vec<Option<u32>> {
        let mut hops = vec![None; self.links.len()];
        hops[chip as usize] = Some(0);
        let mut queue = VecDeque::from([(chip, 0)]);
        while let Some((at, far)) = queue.pop_front() {
            for &(next, _) in self.neighbours_of(at) {
                if hops[next as usize].is_none() {
                    hops[next as usize] = Some(far + 1);
                    queue.push_back((next, far + 1));
                }
            }
        }
        hops
    }

    /// Returns the distances from `chip` to each chip.
    pub fn shortest_link_length_sums_from_chip(&self, chip: u32) -> Vec<u64> {
        let mut distances = vec![u64::MAX; self.links.len()];
        distances[chip as usize] = 0;
        let mut queue = BTreeSet::from([(0, chip)]);
        while let Some((far, at)) = queue.pop_first() {
            for &(next, length) in self.neighbours_of(at) {
                let new = far + u64::from(length);
                let old = &mut distances[next as usize];
                if new < *old {
                    queue.remove(&(*old, next));
                    *old = new;
                    queue.insert((new, next));
                }
            }
        }
        distances
    }

    /// Computes statistics over all links and all pairs of chips.
    pub fn summarize(&self) -> ChipGraphSummary {
        let degree = |of: &Vec<(u32, u32)>| of.len() as u32;
        let degrees = self.links.iter().map(degree);
        let (mut diameter, mut hops, mut distance) = (0, 0_u64, 0_u64);
        for chip in 0..self.chip_count() {
            for far in self.hops_from(chip).into_iter().flatten() {
                diameter = diameter.max(far);
                hops += u64::from(far);
            }
            distance += self
                .shortest_link_length_sums_from_chip(chip)
                .iter()
                .sum::<u64>();
        }
        let n = u64::from(self.chip_count());
        let pairs = (n * n.saturating_sub(1)).max(1) as f64;
        ChipGraphSummary {
            links: self.links.iter().map(|of| of.len() as u64).sum::<u64>() / 2,
            degrees: (
                degrees.clone().min().unwrap_or(0),
                degrees.max().unwrap_or(0),
            ),
            diameter,
            mean_hops: hops as f64 / pairs,
            mean_distance: distance as f64 / pairs,
        }
    }
}

#[cfg(test)]
mod tests;
