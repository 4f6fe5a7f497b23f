//! Builds link graphs dimension by dimension: from shapes, Clos networks, and graphs of chips.

use super::super::chip_graph::ChipGraph;
use super::distances::LinkDistancesByDimension;
use super::legs::RouteDimensionStrides;
use super::{
    ChildrenAndUplinksByClosLevel, ClosNetworkRailWiring, DimensionShape, DirectedLink, LinkGraph,
    MOST_LINKS, MOST_NPUS, MOST_SWITCHES, ShortestPathChoice, Topology,
};
use chakram_base::ids::Npu;
use chakram_base::units::{Bandwidth, Span};

/// Links of a dimension.
#[derive(Clone, Debug, PartialEq)]
pub enum DimensionLinks {
    /// Links that are derived from the shape. A ring or mesh has its own links, and a switched or fully connected
    /// dimension has one switch for each line of NPUs.
    OfShape,
    /// Clos networks.
    Clos {
        /// Levels of the Clos network.
        levels: ChildrenAndUplinksByClosLevel,
        /// Rule for the NPUs that each network connects.
        fabric: ClosNetworkRailWiring,
        /// Rule that selects among shortest paths.
        routes: ShortestPathChoice,
    },
    /// Graphs of chips, one per line of NPUs. The latency of a link is the dimension's latency times the link's length.
    Chips {
        /// The graph of each line.
        chips: ChipGraph,
        /// Rule that selects among shortest paths.
        routes: ShortestPathChoice,
    },
}

/// Reason why links are invalid: there are too many, or they do not connect all NPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidLinkGraphReason {
    /// There are more than [`MOST_NPUS`] NPUs.
    Npus,
    /// The dimension has more than [`MOST_LINKS`] links or more than [`MOST_SWITCHES`] switches, or its links are for a
    /// different number of NPUs.
    Links(usize),
    /// No route connects these two NPUs.
    Apart(Npu, Npu),
}

/// A link graph under construction, with the properties of the links added next.
pub(super) struct GraphBuilder {
    npus: u32,
    switches: Vec<String>,
    links: Vec<DirectedLink>,
    /// Rate and latency of the links that are added next.
    rate: (Bandwidth, Span),
    dimension: u32,
    /// For each link, its bundle ([`LinkGraph::bundles`]).
    bundles: Vec<Option<u32>>,
}

impl GraphBuilder {
    pub fn add_switch(&mut self, name: String) -> u32 {
        self.switches.push(name);
        self.npus + self.switches.len() as u32 - 1
    }

    /// Returns true if `switches` more switches and `links` more links fit the limits. Each direction of a link counts
    /// as one.
    pub fn has_room(&self, switches: u64, links: u64) -> bool {
        self.switches.len() as u64 + switches <= u64::from(MOST_SWITCHES)
            && self.links.len() as u64 + links <= MOST_LINKS as u64
    }

    fn add_link(&mut self, from: u32, to: u32) {
        self.add_long_link(from, to, 1);
    }

    fn add_long_link(&mut self, from: u32, to: u32, length: u32) {
        self.links.push(DirectedLink {
            length,
            from,
            to,
            bandwidth: self.rate.0,
            latency: self.rate.1.times(length.into()),
            dimension: self.dimension,
        });
        self.bundles.push(None);
    }

    /// Puts the links from index `first` on into two bundles: every second link goes into the upward bundle, and the
    /// others into the downward bundle.
    fn bundle_links_by_direction(&mut self, first: usize) {
        let up = first as u32;
        for (place, bundle) in self.bundles[first..].iter_mut().enumerate() {
            *bundle = Some(up + (place % 2) as u32);
        }
    }

    pub fn add_links_both_ways(&mut self, a: u32, b: u32) {
        self.add_link(a, b);
        self.add_link(b, a);
    }

    /// Adds the links between a line of NPUs, along a dimension with this name and shape.
    fn link_dimension_line_by_shape(
        &mut self,
        ends: &[u32],
        (name, shape): (&str, DimensionShape),
    ) {
        let (size, first) = (ends.len(), ends[0]);
        let at = |x: usize| ends[x % size];
        match shape {
            _ if size == 1 => {}
            DimensionShape::Ring | DimensionShape::Mesh => {
                let closes = shape == DimensionShape::Ring && size > 2;
                let wires = if closes { size } else { size - 1 };
                // Add upward links first, so that a message takes the upward path if two paths are equally long.
                (0..wires).for_each(|x| self.add_link(at(x), at(x + 1)));
                (0..wires).for_each(|x| self.add_link(at(x + 1), at(x)));
            }
            DimensionShape::Switch => {
                let hub = self.add_switch(format!("{name} switch at {first}"));
                (0..size).for_each(|x| self.add_links_both_ways(at(x), hub));
            }
            DimensionShape::FullyConnected => {
                // Wires are not modelled individually. A virtual switch replaces them and limits only the total rate at
                // which an NPU sends and receives. A message incurs the latency once.
                let hub = self.add_switch(format!("{name} wires at {first}"));
                (0..size).for_each(|x| self.add_link(at(x), hub));
                let latency = std::mem::replace(&mut self.rate.1, Span::ZERO);
                (0..size).for_each(|x| self.add_link(hub, at(x)));
                self.rate.1 = latency;
            }
        }
    }

    /// Adds the links of a chip graph.
    fn add_chip_links(&mut self, ends: &[u32], chips: &ChipGraph) {
        for from in 0..chips.chip_count() {
            for &(to, distance) in chips.neighbours_of(from) {
                self.add_long_link(ends[from as usize], ends[to as usize], distance);
            }
        }
    }
}

impl ChildrenAndUplinksByClosLevel {
    /// Adds the network that connects `ends`, with `of` appended to the names of its switches. Returns `None` if the
    /// network has too many switches or links, or if the number of `ends` is not [`Self::npus`].
    fn add_to_graph(&self, builder: &mut GraphBuilder, ends: &[u32], of: &str) -> Option<()> {
        self.npu_count()
            .filter(|npus| *npus as usize == ends.len())?;
        // Vertices of the level below, grouped by subtree. Initially, each NPU is a subtree.
        let mut below: Vec<Vec<u32>> = ends.iter().map(|npu| vec![*npu]).collect();
        for (level, &children) in self.children.iter().enumerate() {
            // Number of uplinks of each vertex below; an NPU has one.
            let uplinks = match level {
                0 => 1,
                _ => *self.uplinks.get(level - 1)?,
            };
            let subtrees = below.len() / children as usize;
            let count = u64::from(uplinks) * below.first()?.len() as u64;
            let switches = count * subtrees as u64;
            if !builder.has_room(switches, 2 * switches * u64::from(children)) {
                return None;
            }
            let count = count as u32;
            let mut above = Vec::with_capacity(subtrees);
            for subtree in 0..subtrees {
                let parts = &below[subtree * children as usize..][..children as usize];
                let switches: Vec<u32> = (0..count)
                    .map(|place| {
                        let (number, tier) = (subtree as u32 * count + place, level + 1);
                        builder.add_switch(format!("switch {number} of level {tier}{of}"))
                    })
                    .collect();
                for part in parts {
                    // A sprayed message leaves a subtree in equal parts over all upward links, and enters it in equal
                    // parts over all downward links.
                    let first = builder.links.len();
                    for (place, &vertex) in (0..).zip(part) {
                        for up in 0..uplinks {
                            let switch = switches[(place * uplinks + up) as usize];
                            builder.add_links_both_ways(vertex, switch);
                        }
                    }
                    builder.bundle_links_by_direction(first);
                }
                above.push(switches);
            }
            below = above;
        }
        Some(())
    }
}

impl LinkGraph {
    /// Builds links for the dimensions of `topology`, with the dimensions' rates and latencies. `links` has one entry
    /// per dimension.
    ///
    /// # Errors
    ///
    /// Fails if there are too many NPUs, switches or links, or if some NPUs are not connected.
    pub fn new(
        topology: &Topology,
        links: &[DimensionLinks],
    ) -> Result<Self, InvalidLinkGraphReason> {
        let npus = topology.npu_count();
        if npus > MOST_NPUS {
            return Err(InvalidLinkGraphReason::Npus);
        }
        let innermost = &topology.dimensions()[0];
        let mut builder = GraphBuilder {
            npus,
            switches: Vec::new(),
            links: Vec::new(),
            rate: (innermost.bandwidth, innermost.latency),
            dimension: 0,
            bundles: Vec::new(),
        };
        let (mut labels, mut policies) = (Vec::new(), Vec::new());
        for (d, (dimension, links)) in topology.dimensions().iter().zip(links).enumerate() {
            builder.dimension = d as u32;
            builder.rate = (dimension.bandwidth, dimension.latency);
            let lines = (0..npus).filter(|npu| topology.coordinate_of(Npu(*npu), d) == 0);
            let lines = lines.map(|first| {
                let places = 0..dimension.size;
                let ends = places.map(|x| topology.npu_with_changed_coordinate(Npu(first), d, x).0);
                ends.collect::<Vec<_>>()
            });
            let (label, policy) = match links {
                DimensionLinks::OfShape => {
                    // A shape divides an NPU's bandwidth among its links. Each explicit link has the whole stated
                    // bandwidth.
                    builder.rate.0 = topology.link_bandwidth(d);
                    let of = (dimension.name.as_str(), dimension.shape);
                    lines.for_each(|ends| builder.link_dimension_line_by_shape(&ends, of));
                    (None, ShortestPathChoice::First)
                }
                DimensionLinks::Clos {
                    levels,
                    fabric,
                    routes,
                } => {
                    let fabrics = fabric.list_npus_per_network_of_dimension(topology, d, lines);
                    for ends in &fabrics {
                        let alone = fabrics.len() == 1;
                        let name = if alone {
                            String::new()
                        } else {
                            format!(" at {}", ends[0])
                        };
                        let added = levels.add_to_graph(&mut builder, ends, &name);
                        added.ok_or(InvalidLinkGraphReason::Links(d))?;
                    }
                    (Some(format!("clos {}", levels.format_sizes())), *routes)
                }
                DimensionLinks::Chips { chips, routes } => {
                    let each =
                        (0..chips.chip_count()).map(|chip| chips.neighbours_of(chip).len() as u64);
                    let all = each.sum::<u64>() * u64::from(npus / dimension.size);
                    if chips.chip_count() != dimension.size || !builder.has_room(0, all) {
                        return Err(InvalidLinkGraphReason::Links(d));
                    }
                    lines.for_each(|ends| builder.add_chip_links(&ends, chips));
                    (Some(chips.name().to_owned()), *routes)
                }
            };
            labels.push(label);
            policies.push(policy);
        }
        let joins_inner = |d: usize| match &links[d] {
            DimensionLinks::Clos { fabric, .. } => *fabric != ClosNetworkRailWiring::RailOnly,
            _ => false,
        };
        let graph = Self {
            npus,
            legs: RouteDimensionStrides::new(topology, joins_inner),
            switches: builder.switches,
            failed: vec![false; builder.links.len()],
            links: builder.links,
            labels,
            policies,
            outgoing: Vec::new(),
            distances: LinkDistancesByDimension::default(),
            bundles: builder.bundles,
        };
        graph
            .measure_distances_or_unconnected_pair()
            .map_err(|(from, to)| InvalidLinkGraphReason::Apart(from, to))
    }

    /// Builds the links of stacked dimensions from the dimensions' shapes. Returns `None` if there are more than
    /// [`MOST_NPUS`] NPUs.
    pub fn from_topology(topology: &Topology) -> Option<Self> {
        let links = vec![DimensionLinks::OfShape; topology.dimensions().len()];
        Self::new(topology, &links).ok()
    }
}
