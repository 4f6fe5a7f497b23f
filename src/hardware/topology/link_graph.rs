//! Explicit links between NPUs and switches, and routes over them, for networks that dimensions cannot describe.
//!
//! Each link belongs to one dimension. A route consists of legs, each along one dimension, innermost first. If a
//! dimension's network connects NPUs regardless of their coordinates in inner dimensions, the whole route is a single
//! leg. A leg uses as few links as possible. All paths with this number of links are *shortest paths*, and the
//! dimension's [`ShortestPathChoice`] selects among them. Links are directed; a link of a machine file becomes two
//! links, one in each direction.

use super::{DimensionShape, PathLatencyAndRates, SwitchingMode, Topology};
use chakram_base::ids::Npu;
use chakram_base::units::{Bandwidth, Span, SummedSecondsPerByte};
use distances::LinkDistancesByDimension;
use legs::RouteDimensionStrides;
use std::collections::BTreeSet;

mod build;
mod bundles;
mod change;
mod clos;
mod distances;
mod failed;
mod legs;
mod route;

pub use build::{DimensionLinks, InvalidLinkGraphReason};
pub use bundles::BundledRouteFinder;
pub use change::{LinkRateAndLatencyChange, UnmatchedLinkChangeError};
pub use clos::{ChildrenAndUplinksByClosLevel, ClosNetworkRailWiring};

/// Maximum number of NPUs of a link graph. If each NPU forwards messages, the graph stores the distances between all
/// pairs, with 2 bytes each. For this number of NPUs, they take 512 MB.
pub const MOST_NPUS: u32 = 16_384;

/// Maximum number of switches of a link graph.
pub const MOST_SWITCHES: u32 = 8 * MOST_NPUS;

/// Maximum number of links in a graph. Each direction counts as one link.
pub const MOST_LINKS: usize = 1 << 20;

/// Rule that selects one or several of the shortest paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShortestPathChoice {
    /// The first path: at each device, a message takes the link that is on a shortest path and was added first.
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
    /// Time that the first byte takes over the link.
    pub latency: Span,
    /// Index of the machine's dimension to which the link belongs.
    pub dimension: u32,
    /// Length in units, at least 1. If devices forward whole messages, a message takes its serialization time once per
    /// unit ([`Self::bytes_times_length`]). The latency already includes the length.
    pub length: u32,
}

impl DirectedLink {
    /// Returns `bytes` times the link's length: the bytes for which a message occupies the link if devices store and
    /// forward. The formula is Eq. 2 of Agrawal and Xu, "DEAP: Design Space Exploration for DNN Accelerator
    /// Parallelism" (2023): latency = technology factor × size × distance. The technology factor is the inverse of the
    /// link's rate.
    pub fn bytes_times_length(&self, bytes: f64) -> f64 {
        bytes * f64::from(self.length)
    }
}

/// A link, and the fraction of a message that passes it (from 0 to 1).
pub type LinkMessageFraction = (u32, f64);

/// A route between two NPUs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouteLinksAndFractions {
    /// Links, starting at the sender, with the fraction of a message that passes each link.
    pub links: Vec<LinkMessageFraction>,
    /// Sum of the latencies along the slowest path.
    pub latency: Span,
}

/// NPUs and switches (the vertices), and the links between them.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkGraph {
    npus: u32,
    legs: RouteDimensionStrides,
    /// Names of the switches. Their vertex numbers follow the NPUs' numbers.
    switches: Vec<String>,
    links: Vec<DirectedLink>,
    /// True for each failed link, which carries nothing.
    failed: Vec<bool>,
    /// Name of each dimension's explicit links, or `None` if the links are derived from the dimension's shape.
    labels: Vec<Option<String>>,
    /// Route policy of each dimension.
    policies: Vec<ShortestPathChoice>,
    /// Links that lead from each vertex, in the order in which they were added.
    outgoing: Vec<Vec<u32>>,
    distances: LinkDistancesByDimension,
    /// For each link, the bundle of links that always carry equal parts of sprayed messages, or `None`.
    bundles: Vec<Option<u32>>,
}

impl LinkGraph {
    /// Computes distances. If two NPUs have no route to each other, returns this pair.
    fn measure_distances_or_unconnected_pair(mut self) -> Result<Self, (Npu, Npu)> {
        self.measure_distances_and_outgoing_links();
        self.find_unconnected_pair().map_or(Ok(self), Err)
    }

    /// Computes distances and each vertex's outgoing links.
    fn measure_distances_and_outgoing_links(&mut self) {
        let vertices = self.npus as usize + self.switches.len();
        self.outgoing = vec![Vec::new(); vertices];
        let in_service = (0..)
            .zip(&self.links)
            .filter(|(number, _)| !self.failed[*number]);
        for (number, link) in in_service.clone() {
            self.outgoing[link.from as usize].push(number as u32);
        }
        let links = in_service.map(|(_, link)| link);
        self.distances =
            LinkDistancesByDimension::measure((self.npus, vertices), self.labels.len(), links);
    }

    /// Returns two NPUs that a dimension's links should connect, but between which there is no path.
    fn find_unconnected_pair(&self) -> Option<(Npu, Npu)> {
        let mut checked = BTreeSet::new();
        (0..self.npus).find_map(|to| {
            let unreached = (0..self.labels.len()).filter_map(|d| {
                let mut members = self.legs.npus_connected_along_dimension(to, d);
                let first = members.clone().next();
                // If `to` and another NPU of a line share a row, all NPUs of the line that reach one also reach the
                // other.
                if !checked.insert((d, self.distances.row_of(Npu(to), d), first)) {
                    return None;
                }
                members.find(|from| {
                    self.distances
                        .links_to_npu_along_dimension(*from, Npu(to), d)
                        .is_none()
                })
            });
            unreached.min().map(|from| (Npu(from), Npu(to)))
        })
    }

    /// Returns the name of a dimension's explicit links, such as `clos 2x2x4` or `torus:2x4`, or `None` if the links
    /// are derived from the dimension's shape.
    pub fn explicit_links_label(&self, dimension: usize) -> Option<&str> {
        self.labels[dimension].as_deref()
    }

    /// Returns true if devices may forward whole messages: no message is split over paths, and every device is
    /// modelled. Links that are derived from shapes represent devices that are not modelled individually.
    pub fn can_store_and_forward(&self) -> bool {
        let sprayed = self.policies.contains(&ShortestPathChoice::Sprayed);
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
