//! Chips and the links between them, as any graph: tori, meshes, random ones, and those of files.
//!
//! A link joins two chips in both directions and has a distance, a whole number of unit lengths. Of two chips the *hops*
//! are the fewest links between them, and the *distance* the least sum of distances.

use std::collections::{BTreeSet, VecDeque};

mod file;
mod shapes;
mod technology;

pub use technology::{LinkInterpolation, LinkTechnology};

/// The most chips of a graph: all pairs of chips are looked at.
pub const MOST_CHIPS: u32 = 4096;

/// The most unit lengths of a link.
pub const MOST_DISTANCE: u32 = 1 << 20;

/// A connected graph of chips.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChipGraph {
    name: String,
    /// Number of dimensions that its file states.
    dimensions: u32,
    /// Of each chip the chips that it is linked to, with the distances, by their numbers.
    links: Vec<Vec<(u32, u32)>>,
}

/// A graph that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChipGraphError {
    /// No shape is called so, or has such a size.
    #[error(
        "{found:?} is no topology; expected torus:2x4, torus:2x2x2, mesh:2x4 or ring:8, of at most {MOST_CHIPS} chips"
    )]
    Shape {
        /// Found entry.
        found: String,
    },
    /// A line of a file is none.
    #[error("{file}:{line}: found {found}, expected {expected}")]
    Line {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Found entry.
        found: String,
        /// Expected entry.
        expected: String,
    },
    /// A link is there in one direction, or its two ends disagree.
    #[error(
        "chip {from} is linked to chip {to} at distance {there}, but chip {to} {back}; links go both ways"
    )]
    OneWay {
        /// A chip.
        from: u32,
        /// The other.
        to: u32,
        /// The distance that the first states.
        there: u32,
        /// Entry of the other chip.
        back: String,
    },
    /// Chips cannot reach one another.
    #[error("chip {chip} cannot be reached from chip 0; a topology is connected")]
    Disconnected {
        /// The first such chip.
        chip: u32,
    },
}

/// Numbers of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct ChipGraphSummary {
    /// Number of links.
    pub links: u64,
    /// The fewest and the most links of a chip.
    pub degrees: (u32, u32),
    /// The most hops between two chips.
    pub diameter: u32,
    /// Mean hops of all pairs of different chips; 0 for one chip.
    pub mean_hops: f64,
    /// Mean distance of all pairs of different chips; 0 for one chip.
    pub mean_distance: f64,
}

impl ChipGraph {
    /// Checks that links go both ways and that all chips reach one another.
    ///
    /// # Errors
    ///
    /// The first link or chip that does not.
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
                    Some((_, back)) => format!("has it at distance {back}"),
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

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of chips.
    pub fn chips(&self) -> u32 {
        self.links.len() as u32
    }

    /// The chips that `chip` is linked to, with the distances.
    pub fn neighbours(&self, chip: u32) -> &[(u32, u32)] {
        &self.links[chip as usize]
    }

    /// The most links of a chip.
    pub fn most_links(&self) -> u32 {
        let links = self.links.iter().map(|of| of.len() as u32);
        links.max().unwrap_or(0)
    }

    /// Its links, each once, with their distances where these are not 1: `0-1,1-2:3`.
    pub fn link_list(&self) -> String {
        let links = (0..self.chips()).flat_map(|from| {
            let later = self
                .neighbours(from)
                .iter()
                .filter(move |(to, _)| *to > from);
            later.map(move |(to, distance)| match distance {
                1 => format!("{from}-{to}"),
                _ => format!("{from}-{to}:{distance}"),
            })
        });
        links.collect::<Vec<_>>().join(",")
    }

    /// Hops from `chip` to each chip that it reaches.
    pub fn hops_from(&self, chip: u32) -> Vec<Option<u32>> {
        let mut hops = vec![None; self.links.len()];
        hops[chip as usize] = Some(0);
        let mut queue = VecDeque::from([(chip, 0)]);
        while let Some((at, far)) = queue.pop_front() {
            for &(next, _) in self.neighbours(at) {
                if hops[next as usize].is_none() {
                    hops[next as usize] = Some(far + 1);
                    queue.push_back((next, far + 1));
                }
            }
        }
        hops
    }

    /// Distances from `chip` to each chip.
    pub fn distances_from(&self, chip: u32) -> Vec<u64> {
        let mut distances = vec![u64::MAX; self.links.len()];
        distances[chip as usize] = 0;
        let mut queue = BTreeSet::from([(0, chip)]);
        while let Some((far, at)) = queue.pop_first() {
            for &(next, length) in self.neighbours(at) {
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

    /// Counts links, and looks at all pairs of chips.
    pub fn summary(&self) -> ChipGraphSummary {
        let degree = |of: &Vec<(u32, u32)>| of.len() as u32;
        let degrees = self.links.iter().map(degree);
        let (mut diameter, mut hops, mut distance) = (0, 0_u64, 0_u64);
        for chip in 0..self.chips() {
            for far in self.hops_from(chip).into_iter().flatten() {
                diameter = diameter.max(far);
                hops += u64::from(far);
            }
            distance += self.distances_from(chip).iter().sum::<u64>();
        }
        let n = u64::from(self.chips());
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
