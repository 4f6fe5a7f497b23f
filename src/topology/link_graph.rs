//! Links between NPUs and switches one by one, and routes over them: what dimensions cannot say.
//!
//! A route has the fewest links. Where several have, they are *shortest paths* of equal length, and [`RoutePolicy`] says
//! which a message takes. Links are directed; a link of a machine file is one in each direction.

use super::{DimensionShape, NetworkPath, SwitchingMode, Topology};
use crate::ids::Npu;
use crate::units::{Bandwidth, InverseRate, Span};
use std::collections::VecDeque;

mod build;

pub use build::{ClosLevels, LinkChange, LinkChangeFault};

/// The most NPUs of a graph of links: distances between all of them are kept.
pub const MOST_NPUS: u32 = 2048;

/// Name of the links of stacked dimensions.
const STACKED: &str = "dimensions";

/// In place of a distance: there is no way.
const NO_WAY: u16 = u16::MAX;

/// Which of the shortest paths a message takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RoutePolicy {
    /// The first: at each device the link that was added first. Dimensions are crossed from the inside, as elsewhere.
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
    name: String,
    npus: u32,
    /// Names of the switches, which are the vertices behind the NPUs.
    switches: Vec<String>,
    links: Vec<DirectedLink>,
    policy: RoutePolicy,
    /// Links that lead from each vertex, in the order in which they were added.
    outgoing: Vec<Vec<u32>>,
    /// By NPU and vertex: links from the vertex to the NPU.
    distances: Vec<u16>,
}

impl LinkGraph {
    /// Works out distances. Fails with two NPUs between which there is no way.
    fn new(
        name: String,
        npus: u32,
        switches: Vec<String>,
        links: Vec<DirectedLink>,
        policy: RoutePolicy,
    ) -> Result<Self, (Npu, Npu)> {
        let vertices = npus as usize + switches.len();
        let mut outgoing = vec![Vec::new(); vertices];
        let mut incoming = vec![Vec::new(); vertices];
        for (number, link) in (0..).zip(&links) {
            outgoing[link.from as usize].push(number);
            incoming[link.to as usize].push(link.from);
        }
        let mut distances = vec![NO_WAY; npus as usize * vertices];
        let mut queue = VecDeque::new();
        for npu in 0..npus {
            let row = &mut distances[npu as usize * vertices..][..vertices];
            row[npu as usize] = 0;
            queue.push_back(npu);
            while let Some(at) = queue.pop_front() {
                let next = row[at as usize] + 1;
                for &from in &incoming[at as usize] {
                    if row[from as usize] == NO_WAY {
                        row[from as usize] = next;
                        queue.push_back(from);
                    }
                }
            }
            if let Some(other) = row[..npus as usize].iter().position(|&far| far == NO_WAY) {
                return Err((Npu(other as u32), Npu(npu)));
            }
        }
        Ok(Self {
            name,
            npus,
            switches,
            links,
            policy,
            outgoing,
            distances,
        })
    }

    /// Name: `clos 2x2x4`, `torus:2x4`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether its links are those of stacked dimensions.
    pub fn is_stacked(&self) -> bool {
        self.name == STACKED
    }

    /// All links.
    pub fn links(&self) -> &[DirectedLink] {
        &self.links
    }

    /// The same with other routes.
    pub fn with_policy(self, policy: RoutePolicy) -> Self {
        Self { policy, ..self }
    }

    /// Which of the shortest paths messages take.
    pub fn policy(&self) -> RoutePolicy {
        self.policy
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

    /// Number of links between two NPUs.
    pub fn hops(&self, a: Npu, b: Npu) -> u32 {
        self.far(a.0, b).into()
    }

    fn far(&self, vertex: u32, to: Npu) -> u16 {
        self.distances[to.index() * self.outgoing.len() + vertex as usize]
    }

    /// Links of `vertex` that lead on to `to` by a shortest path.
    fn onward(&self, vertex: u32, to: Npu) -> impl Iterator<Item = u32> + '_ {
        let far = self.far(vertex, to);
        let links = self.outgoing[vertex as usize].iter().copied();
        links.filter(move |&link| self.far(self.links[link as usize].to, to) + 1 == far)
    }

    /// Returns the way from `a` to `b`; without links if they are one NPU.
    pub fn route(&self, a: Npu, b: Npu) -> LinkRoute {
        if self.policy == RoutePolicy::Sprayed {
            return self.sprayed(a, b);
        }
        let mut route = LinkRoute::default();
        let mut at = a.0;
        while at != b.0 {
            let mut onward = self.onward(at, b);
            let link = match self.policy {
                RoutePolicy::Hashed(seed) => {
                    let all: Vec<_> = onward.collect();
                    let pair = u64::from(a.0) << 32 | u64::from(b.0);
                    let draw = mixed(seed ^ mixed(pair ^ mixed(at.into())));
                    Some(all[(draw % all.len() as u64) as usize])
                }
                _ => onward.next(),
            };
            let link = link.expect("every NPU can be reached");
            route.links.push((link, 1.0));
            let DirectedLink { to, latency, .. } = self.links[link as usize];
            route.latency += latency;
            at = to;
        }
        route
    }

    /// Latency and rate of a message from `a` to `b` that is alone; `None` if they are one NPU. Where devices store and
    /// forward, the message passes one link after another, each as often as it is units long.
    pub fn path(&self, a: Npu, b: Npu, switching: SwitchingMode) -> Option<NetworkPath> {
        let route = self.route(a, b);
        let rate = |&(link, part): &LinkPart| {
            let whole = self.links[link as usize].bandwidth;
            if part < 1.0 {
                Bandwidth::new(whole.bytes_per_second() / part).unwrap_or(whole)
            } else {
                whole
            }
        };
        let rates = route.links.iter().map(rate);
        let bandwidth = rates.reduce(|least, rate| if rate < least { rate } else { least })?;
        let mut others = InverseRate::ZERO;
        if switching == SwitchingMode::StoreAndForward {
            // One unit of the slowest link is left out: it is the serialization at that rate.
            let mut slowest = Some(bandwidth);
            for &(link, _) in &route.links {
                let DirectedLink {
                    bandwidth, length, ..
                } = self.links[link as usize];
                let out = u32::from(slowest == Some(bandwidth));
                if out == 1 {
                    slowest = None;
                }
                others = others.plus(length - out, bandwidth);
            }
        }
        Some(NetworkPath {
            latency: route.latency,
            bandwidth,
            switching,
            others,
        })
    }

    /// The way over all shortest paths: at each vertex, what comes there leaves in equal parts.
    fn sprayed(&self, a: Npu, b: Npu) -> LinkRoute {
        let mut route = LinkRoute::default();
        // Vertices of one distance, with the latency of the slowest path there.
        let mut front = vec![(a.0, 1.0, Span::ZERO)];
        while front[0].0 != b.0 {
            let mut next: Vec<(u32, f64, Span)> = Vec::new();
            for &(at, part, latency) in &front {
                let count = self.onward(at, b).count() as f64;
                for link in self.onward(at, b) {
                    let part = part / count;
                    route.links.push((link, part));
                    let of = self.links[link as usize];
                    let latency = latency + of.latency;
                    match next.iter_mut().find(|(vertex, _, _)| *vertex == of.to) {
                        Some((_, sum, slowest)) => {
                            *sum += part;
                            *slowest = (*slowest).max(latency);
                        }
                        None => next.push((of.to, part, latency)),
                    }
                }
            }
            front = next;
        }
        route.latency = front[0].2;
        route
    }
}

/// Mixes bits (SplitMix64's finalizer).
fn mixed(word: u64) -> u64 {
    let word = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests;
