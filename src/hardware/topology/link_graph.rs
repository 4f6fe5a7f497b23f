//! Explicit links between NPUs and switches, and routes over them, for networks that dimensions cannot describe.
//!
//! Links belong to dimensions. A route consists of legs, each along one dimension, innermost first. If the network of a
//! dimension connects NPUs regardless of their coordinates in inner dimensions, the whole route is a single leg. A leg
//! uses the smallest possible number of links. All paths with this number of links are *shortest paths*, and the
//! dimension's [`RoutePolicy`] selects among them. Links are directed; a link of a machine file becomes two links, one
//! in each direction.

use super::{DimensionShape, NetworkPath, SwitchingMode, Topology};
use chakram_base::ids::Npu;
use chakram_base::units::{Bandwidth, InverseRate, Span};
use legs::RouteLegDimensions;
use std::collections::VecDeque;

mod build;
mod change;
mod clos;
mod failed;
mod legs;
mod route;

pub use build::{DimensionLinks, LinkGraphFault};
pub use change::{LinkChange, LinkChangeFault};
pub use clos::{ClosLevels, ClosNpuGrouping};

/// Maximum number of NPUs of a link graph, because the graph stores distances between all pairs.
pub const MOST_NPUS: u32 = 2048;

/// Maximum number of switches of a link graph.
pub const MOST_SWITCHES: u32 = 8 * MOST_NPUS;

/// Maximum number of links of a graph. Each direction of a link counts as one link.
pub const MOST_LINKS: usize = 1 << 20;

/// Distance that marks an unreachable vertex.
const NO_WAY: u16 = u16::MAX;

/// Rule that selects one or several of the shortest paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RoutePolicy {
    /// The first path: among the links on shortest paths, a message takes, at each device, the link that was added
    /// first.
    #[default]
    First,
    /// All messages between two NPUs take the same path, chosen at each device by a hash of the pair and this seed.
    Hashed(u64),
    /// Each message takes all paths: each device sends equal parts over all its links on shortest paths.
    Sprayed,
}

/// A link in one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DirectedLink {
    /// Vertex at which the link starts: an NPU by its number, or a switch.
    pub from: u32,
    /// Vertex at which the link ends: an NPU by its number, or a switch.
    pub to: u32,
    /// Rate of the link.
    pub bandwidth: Bandwidth,
    /// Time of the first byte over the link.
    pub latency: Span,
    /// Index of the machine's dimension to which the link belongs.
    pub dimension: u32,
    /// Length in units, from 1. If devices forward whole messages, a message takes its serialization time once for each
    /// unit of length ([`Self::stored_bytes`]). The latency already includes the length.
    pub length: u32,
}

impl DirectedLink {
    /// Returns the bytes for which a message of `bytes` occupies the link if devices store and forward: `bytes` times
    /// the link's length. The formula is Eq. 2 of Agrawal and Xu, "DEAP: Design Space Exploration for DNN Accelerator
    /// Parallelism" (2023): latency = technology factor × size × distance. The technology factor is the inverse of the
    /// link's rate.
    pub fn stored_bytes(&self, bytes: f64) -> f64 {
        bytes * f64::from(self.length)
    }
}

/// A link and the fraction of a message that passes it, between 0 and 1.
pub type LinkFraction = (u32, f64);

/// A route between two NPUs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkRoute {
    /// Links, starting at the sender, with the fraction of a message that passes each link.
    pub links: Vec<LinkFraction>,
    /// Sum of the latencies along the slowest path.
    pub latency: Span,
}

/// NPUs and switches (the vertices), and the links between them.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkGraph {
    npus: u32,
    legs: RouteLegDimensions,
    /// Names of the switches. The vertex numbers of switches follow the NPUs' numbers.
    switches: Vec<String>,
    links: Vec<DirectedLink>,
    /// True for each link that has failed, and therefore carries nothing.
    failed: Vec<bool>,
    /// Name of each dimension's explicit links, or `None` if the links follow from the dimension's
    /// shape.
    labels: Vec<Option<String>>,
    /// Route policy of each dimension.
    policies: Vec<RoutePolicy>,
    /// Links that lead from each vertex, in the order in which they were added.
    outgoing: Vec<Vec<u32>>,
    /// For each NPU and each vertex, the number of links from the vertex to the NPU, along the dimension of the leg
    /// that ends at the NPU.
    distances: Vec<u16>,
}

impl LinkGraph {
    /// Computes distances. If two NPUs have no route to each other, returns such a pair.
    fn compute_distances(mut self) -> Result<Self, (Npu, Npu)> {
        let mut cut_off = None;
        self.measure_distances(|from, to| {
            cut_off.get_or_insert((from, to));
        });
        cut_off.map_or(Ok(self), Err)
    }

    /// Computes distances, and the links that lead from each vertex. If a leg should connect two NPUs but no path
    /// exists, calls `cut_off` with these NPUs.
    fn measure_distances(&mut self, mut cut_off: impl FnMut(Npu, Npu)) {
        let (npus, vertices) = (self.npus, self.npus as usize + self.switches.len());
        self.outgoing = vec![Vec::new(); vertices];
        let mut incoming = vec![Vec::new(); vertices];
        for (number, link) in (0..).zip(&self.links) {
            if self.failed[number as usize] {
                continue;
            }
            self.outgoing[link.from as usize].push(number);
            incoming[link.to as usize].push((link.from, link.dimension));
        }
        self.distances = vec![NO_WAY; npus as usize * vertices];
        let mut queue = VecDeque::new();
        for npu in 0..npus {
            let row = &mut self.distances[npu as usize * vertices..][..vertices];
            row[npu as usize] = 0;
            // A leg along this dimension ends at an NPU that legs along the inner dimensions have reached.
            for dimension in 0..self.labels.len() as u32 {
                queue.push_back(npu);
                while let Some(at) = queue.pop_front() {
                    let next = row[at as usize] + 1;
                    for &(from, of) in &incoming[at as usize] {
                        if of == dimension && row[from as usize] == NO_WAY {
                            row[from as usize] = next;
                            queue.push_back(from);
                        }
                    }
                }
            }
            let far = |other: &u32| row[*other as usize];
            let is_leg = |other: &u32| {
                self.legs
                    .first_leg(*other, npu)
                    .is_some_and(|leg| leg.end == npu)
            };
            let apart = (0..npus).find(|other| far(other) == NO_WAY && is_leg(other));
            if let Some(other) = apart {
                cut_off(Npu(other), Npu(npu));
            }
        }
    }

    /// Returns the name of a dimension's explicit links, such as `clos 2x2x4` or `torus:2x4`, or
    /// `None` if the links follow from the dimension's shape.
    pub fn dimension_label(&self, dimension: usize) -> Option<&str> {
        self.labels[dimension].as_deref()
    }

    /// Returns true if devices may forward whole messages: no message is split over paths, and every device is
    /// modelled. Links that follow from a shape represent devices that are not modelled individually.
    pub fn can_store_and_forward(&self) -> bool {
        let sprayed = self.policies.contains(&RoutePolicy::Sprayed);
        !sprayed && self.labels.iter().all(Option::is_some)
    }

    /// Returns all links.
    pub fn all_links(&self) -> &[DirectedLink] {
        &self.links
    }

    /// Returns the name of a vertex, for messages and reports.
    pub fn vertex_name(&self, vertex: u32) -> String {
        match vertex.checked_sub(self.npus) {
            None => format!("NPU {vertex}"),
            Some(switch) => self.switches[switch as usize].clone(),
        }
    }

    /// Returns true if a vertex is an NPU and not a switch.
    pub fn is_npu(&self, vertex: u32) -> bool {
        vertex < self.npus
    }
}

#[cfg(test)]
mod tests;
