//! Graphs of links: of stacked dimensions, of Clos networks, and of chips.

use super::super::chip_graph::ChipGraph;
use super::{DimensionShape, DirectedLink, LinkGraph, MOST_NPUS, RoutePolicy, STACKED, Topology};
use crate::ids::Npu;
use crate::units::{Bandwidth, Span};

/// Levels of a Clos network of folded trees, lowest first: `children` NPUs or switches below each switch of a level, and
/// `uplinks` links from it to as many switches of the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosLevels {
    /// Number of NPUs or switches below a switch, by level.
    pub children: Vec<u32>,
    /// Number of links up from a switch, by level but the highest.
    pub uplinks: Vec<u32>,
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
    fn sizes(&self) -> String {
        let sizes: Vec<_> = self.children.iter().map(u32::to_string).collect();
        sizes.join("x")
    }
}

/// A change of links: those of an NPU along a dimension, or those between two NPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkChange {
    /// Ends that are NPUs: of links that have one of them at one end, or one at either.
    pub npus: Vec<Npu>,
    /// Whether both ends are among them.
    pub between: bool,
    /// Only those of this dimension.
    pub dimension: Option<u32>,
    /// New rate.
    pub bandwidth: Option<Bandwidth>,
    /// New latency.
    pub latency: Option<Span>,
}

/// A change that touches no link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkChangeFault {
    /// Index of the change.
    pub change: usize,
}

/// Links while they are added.
struct GraphBuilder {
    npus: u32,
    switches: Vec<String>,
    links: Vec<DirectedLink>,
}

impl GraphBuilder {
    fn new(npus: u32) -> Self {
        Self {
            npus,
            switches: Vec::new(),
            links: Vec::new(),
        }
    }

    fn switch(&mut self, name: String) -> u32 {
        self.switches.push(name);
        self.npus + self.switches.len() as u32 - 1
    }

    fn link(&mut self, from: u32, to: u32, rate: (Bandwidth, Span), dimension: usize) {
        self.long(from, to, rate, (dimension, 1));
    }

    fn long(
        &mut self,
        from: u32,
        to: u32,
        rate: (Bandwidth, Span),
        (dimension, length): (usize, u32),
    ) {
        self.links.push(DirectedLink {
            length,
            from,
            to,
            bandwidth: rate.0,
            latency: rate.1,
            dimension: dimension as u32,
        });
    }

    fn both(&mut self, a: u32, b: u32, rate: (Bandwidth, Span), dimension: usize) {
        self.link(a, b, rate, dimension);
        self.link(b, a, rate, dimension);
    }

    fn build(self, name: String, policy: RoutePolicy) -> Result<LinkGraph, (Npu, Npu)> {
        LinkGraph::new(name, self.npus, self.switches, self.links, policy)
    }
}

impl LinkGraph {
    /// The links of stacked dimensions: those of rings and meshes, and for each line of NPUs along a switched or fully
    /// connected dimension a switch. `None` if there are more than [`MOST_NPUS`].
    pub fn stacked(topology: &Topology) -> Option<Self> {
        let npus = topology.npus();
        if npus > MOST_NPUS {
            return None;
        }
        let mut builder = GraphBuilder::new(npus);
        for (d, dimension) in topology.dimensions().iter().enumerate() {
            let (size, rate) = (dimension.size, (topology.link(d), dimension.latency));
            let ends = (0..npus).map(Npu);
            for first in ends.filter(|npu| topology.coordinate(*npu, d) == 0) {
                let at = |x: u32| topology.moved(first, d, x % size).0;
                match dimension.shape {
                    _ if size == 1 => {}
                    DimensionShape::Ring | DimensionShape::Mesh => {
                        let closes = dimension.shape == DimensionShape::Ring && size > 2;
                        let wires = if closes { size } else { size - 1 };
                        // Upwards first, so that a message whose ways are equally long goes up.
                        (0..wires).for_each(|x| builder.link(at(x), at(x + 1), rate, d));
                        (0..wires).for_each(|x| builder.link(at(x + 1), at(x), rate, d));
                    }
                    DimensionShape::Switch => {
                        let hub = builder.switch(format!("{} switch at {first}", dimension.name));
                        (0..size).for_each(|x| builder.both(at(x), hub, rate, d));
                    }
                    DimensionShape::FullyConnected => {
                        // Wires are not told apart: what an NPU sends, and what it receives. One latency between them.
                        let hub = builder.switch(format!("{} wires at {first}", dimension.name));
                        (0..size).for_each(|x| builder.link(at(x), hub, rate, d));
                        let arriving = (rate.0, Span::ZERO);
                        (0..size).for_each(|x| builder.link(hub, at(x), arriving, d));
                    }
                }
            }
        }
        builder.build(STACKED.to_owned(), RoutePolicy::First).ok()
    }

    /// A Clos network: an extended generalized fat tree (Öhring et al., IPPS 1995), in which a switch of level l has
    /// `children[l]` below it and `uplinks[l]` above it, all by links of one rate.
    pub fn clos(levels: &ClosLevels, rate: (Bandwidth, Span), policy: RoutePolicy) -> Option<Self> {
        let npus = levels.npus().filter(|&npus| npus > 0)?;
        let mut builder = GraphBuilder::new(npus);
        // Vertices of the level below, by subtree and place in it: one vertex of each NPU.
        let mut below: Vec<Vec<u32>> = (0..npus).map(|npu| vec![npu]).collect();
        for (level, &children) in levels.children.iter().enumerate() {
            // Each vertex below has so many links up; NPUs have one.
            let uplinks = match level {
                0 => 1,
                _ => *levels.uplinks.get(level - 1)?,
            };
            let subtrees = below.len() / children as usize;
            let mut above = Vec::with_capacity(subtrees);
            for subtree in 0..subtrees {
                let parts = &below[subtree * children as usize..][..children as usize];
                let places = parts[0].len() as u32;
                let count = places.checked_mul(uplinks).filter(|n| *n <= MOST_NPUS)?;
                let switches: Vec<u32> = (0..count)
                    .map(|place| {
                        let (number, tier) = (subtree as u32 * count + place, level + 1);
                        builder.switch(format!("switch {number} of level {tier}"))
                    })
                    .collect();
                for part in parts {
                    for (place, &vertex) in (0..).zip(part) {
                        for up in 0..uplinks {
                            let switch = switches[(place * uplinks + up) as usize];
                            builder.both(vertex, switch, rate, 0);
                        }
                    }
                }
                above.push(switches);
            }
            below = above;
        }
        let name = format!("clos {}", levels.sizes());
        builder.build(name, policy).ok()
    }

    /// The links of a graph of chips, which are the NPUs; a link takes `rate`'s latency for each unit of its distance.
    /// `None` if there are more than [`MOST_NPUS`].
    pub fn of_chips(
        chips: &ChipGraph,
        rate: (Bandwidth, Span),
        policy: RoutePolicy,
    ) -> Option<Self> {
        if chips.chips() > MOST_NPUS {
            return None;
        }
        let mut builder = GraphBuilder::new(chips.chips());
        for from in 0..chips.chips() {
            for &(to, distance) in chips.neighbours(from) {
                let latency = rate.1.times(distance.into());
                builder.long(from, to, (rate.0, latency), (0, distance));
            }
        }
        builder.build(chips.name().to_owned(), policy).ok()
    }

    /// The same with some links changed, in turn.
    ///
    /// # Errors
    ///
    /// The first change that touches no link.
    pub fn with_changes(mut self, changes: &[LinkChange]) -> Result<Self, LinkChangeFault> {
        for (number, change) in changes.iter().enumerate() {
            let mut any = false;
            for link in &mut self.links {
                let named = [link.from, link.to].map(|end| change.npus.contains(&Npu(end)));
                let ends = if change.between {
                    named == [true, true]
                } else {
                    named.contains(&true)
                };
                if ends && change.dimension.is_none_or(|d| d == link.dimension) {
                    link.bandwidth = change.bandwidth.unwrap_or(link.bandwidth);
                    link.latency = change.latency.unwrap_or(link.latency);
                    any = true;
                }
            }
            if !any {
                return Err(LinkChangeFault { change: number });
            }
        }
        Ok(self)
    }
}
