//! Links between NPUs and switches one by one, and routes over them: what dimensions cannot say.
//!
//! Links belong to dimensions. A route goes leg by leg, each along one dimension, innermost first; where the network of a
//! dimension joins NPUs whatever their place in the dimensions inside it, one leg is the whole way. A leg has the fewest
//! links. Where several ways have, they are *shortest paths* of equal length, and the [`RoutePolicy`] of the dimension says
//! which a message takes. Links are directed; a link of a machine file is one in each direction.

use super::{DimensionShape, NetworkPath, SwitchingMode, Topology};
use chakram_base::ids::Npu;
use chakram_base::units::{Bandwidth, InverseRate, Span};
use legs::RouteLegs;
use std::collections::VecDeque;

mod build;
mod change;
mod clos;
mod failed;
mod legs;
mod route;

pub use build::{DimensionLinks, LinkGraphFault};
pub use change::{LinkChange, LinkChangeFault};
pub use clos::{ClosFabric, ClosLevels};

/// The most NPUs of a graph of links: distances between all of them are kept.
pub const MOST_NPUS: u32 = 2048;

/// The most switches of a graph of links.
pub const MOST_SWITCHES: u32 = 8 * MOST_NPUS;

/// The most links of a graph, in one direction each.
pub const MOST_LINKS: usize = 1 << 20;

/// In place of a distance: there is no way.
const NO_WAY: u16 = u16::MAX;

/// Which of the shortest paths a message takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RoutePolicy {
    /// The first: at each device the link that was added first.
    #[default]
    First,
    /// One for each pair of NPUs, drawn at each device by a hash of the pair and this seed.
    Hashed(u64),
    /// All: at each device equal parts over all links that lead on.
    Sprayed,
}

/// A link in one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DirectedLink {
    /// Vertex that it leads from: an NPU by its number, or a switch.
    pub from: u32,
    /// Vertex that it leads to.
    pub to: u32,
    /// Its rate.
    pub bandwidth: Bandwidth,
    /// Time of the first byte over it.
    pub latency: Span,
    /// Dimension of the machine that it belongs to.
    pub dimension: u32,
    /// Its length in units, from 1. Devices that forward whole messages take the time of a unit for each
    /// ([`Self::stored`]); the latency has it already.
    pub length: u32,
}

impl DirectedLink {
    /// Bytes that the link is busy with for a message of `bytes` where devices store and forward: for each unit of length
    /// the whole message. This is Eq. 2 of Agrawal and Xu, "DEAP: Design Space Exploration for DNN Accelerator Parallelism"
    /// (2023): latency = technology factor × size × distance, the factor being the inverse of the link's rate.
    pub fn stored(&self, bytes: f64) -> f64 {
        bytes * f64::from(self.length)
    }
}

/// Part of a message that passes a link: between 0 and 1.
pub type LinkPart = (u32, f64);

/// A way between two NPUs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkRoute {
    /// Links with the part of a message that passes each, nearest to the sender first.
    pub links: Vec<LinkPart>,
    /// Latency of all links of the slowest path.
    pub latency: Span,
}

/// NPUs, switches and links.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkGraph {
    npus: u32,
    legs: RouteLegs,
    /// Names of the switches, which are the vertices behind the NPUs.
    switches: Vec<String>,
    links: Vec<DirectedLink>,
    /// Whether each link has failed and carries nothing.
    failed: Vec<bool>,
    /// Links of each dimension that are not those of its shape, by name.
    labels: Vec<Option<String>>,
    /// By dimension.
    policies: Vec<RoutePolicy>,
    /// Links that lead from each vertex, in the order in which they were added.
    outgoing: Vec<Vec<u32>>,
    /// By NPU and vertex: links from the vertex to the NPU along the one dimension in which a leg leads there.
    distances: Vec<u16>,
}

impl LinkGraph {
    /// Works out distances. Fails with two NPUs between which there is no way.
    fn connected(mut self) -> Result<Self, (Npu, Npu)> {
        let mut cut_off = None;
        self.measure_distances(|from, to| {
            cut_off.get_or_insert((from, to));
        });
        cut_off.map_or(Ok(self), Err)
    }

    /// Works out the links that lead from each vertex, and distances. Calls `cut_off` with NPUs that no leg joins as it should.
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
            // NPUs that a dimension further inside has reached are those that a leg along it leads to.
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
                    .first(*other, npu)
                    .is_some_and(|leg| leg.end == npu)
            };
            let apart = (0..npus).find(|other| far(other) == NO_WAY && is_leg(other));
            if let Some(other) = apart {
                cut_off(Npu(other), Npu(npu));
            }
        }
    }

    /// Links of a dimension by name, if they are not those of its shape: `clos 2x2x4`, `torus:2x4`.
    pub fn label(&self, dimension: usize) -> Option<&str> {
        self.labels[dimension].as_deref()
    }

    /// Whether devices may forward whole messages: each is on one way, and every device is there. Those of a dimension's
    /// shape stand for what is not told apart.
    pub fn may_store(&self) -> bool {
        let sprayed = self.policies.contains(&RoutePolicy::Sprayed);
        !sprayed && self.labels.iter().all(Option::is_some)
    }

    /// All links.
    pub fn links(&self) -> &[DirectedLink] {
        &self.links
    }

    /// Name of a vertex, for people.
    pub fn vertex(&self, vertex: u32) -> String {
        match vertex.checked_sub(self.npus) {
            None => format!("NPU {vertex}"),
            Some(switch) => self.switches[switch as usize].clone(),
        }
    }

    /// Whether a vertex is an NPU, and not a switch.
    pub fn is_npu(&self, vertex: u32) -> bool {
        vertex < self.npus
    }
}

#[cfg(test)]
mod tests;
