//! Positions of NPUs and the paths between them, independent of load and time.
//!
//! A machine's network is a stack of dimensions, innermost first. The innermost coordinate varies fastest: NPU `n` has
//! coordinate `n / stride(d) % size(d)` in dimension `d`. A message crosses every dimension in which its ends differ,
//! innermost first.
//!
//! A dimension's bandwidth B is the bandwidth of one NPU into the dimension, in each direction and over all its links
//! together. A message takes one route, so its rate is the rate of the route's slowest *link*
//! ([`TopologyDimension::link_bandwidth`]):
//!
//! | shape | links of an NPU | rate of each |
//! |---|---|---|
//! | switch | one, to the switch and back | B |
//! | fully connected | not modelled one by one; all share the NPU's bandwidth | B |
//! | ring or mesh of more than 2 | one to each neighbour | B/2 |
//! | ring or mesh of 2 | all to its one neighbour | B |
//!
//! An NPU at either end of a mesh has only one neighbour, and therefore only B/2.

use chakram_base::ids::{MAX_NPUS, Npu};
use chakram_base::units::{Bandwidth, Span, SummedSecondsPerByte, UnroundedBufferShare};
use link_graph::LinkGraph;
use std::fmt;
use std::sync::Arc;

pub mod chip_graph;
mod endpoint;
mod line_pattern;
pub mod link_graph;
mod switching;
pub mod tile_grid;

pub use endpoint::{MemoryAtNpuOrFabric, MemorySiteAndLink};
pub use line_pattern::LineSendPattern;
pub use switching::SwitchingMode;
pub use tile_grid::DieAndCoreLayout;
pub use tile_grid::RouteIntradieInterdieLinkCounts;

/// Wiring of the NPUs along one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DimensionShape {
    /// Each NPU is wired to its two neighbours, with half of its bandwidth to each; messages take the shorter
    /// direction.
    Ring,
    /// A line of NPUs: a ring without the link between its last and its first NPU. Messages go directly towards the
    /// receiver.
    Mesh,
    /// Each NPU is wired to every other NPU. The wires are not modelled separately, so a message may use the NPU's
    /// whole bandwidth.
    FullyConnected,
    /// All NPUs attach to one switch: a message between two NPUs crosses two links.
    Switch,
}

impl DimensionShape {
    /// Every shape with its name in machine files.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Ring, "ring"),
        (Self::Mesh, "mesh"),
        (Self::FullyConnected, "fully_connected"),
        (Self::Switch, "switch"),
    ];

    /// Returns the number of links between coordinates `a` and `b` of a dimension with `size` NPUs.
    #[inline]
    pub fn hop_count(self, size: u32, a: u32, b: u32) -> u32 {
        let apart = a.abs_diff(b);
        match self {
            _ if apart == 0 => 0,
            Self::Ring => apart.min(size - apart),
            Self::Mesh => apart,
            Self::FullyConnected => 1,
            Self::Switch => 2,
        }
    }
}

impl DimensionShape {
    /// Returns true if each NPU has its own port to a switch or fabric, and false if NPUs are wired to their
    /// neighbours.
    #[inline]
    pub fn has_ports(self) -> bool {
        match self {
            Self::FullyConnected | Self::Switch => true,
            Self::Ring | Self::Mesh => false,
        }
    }

    /// Returns true if NPUs are wired to their neighbours in an open line, without a link between the last and the
    /// first.
    #[inline]
    pub fn is_open_line(self) -> bool {
        self == Self::Mesh
    }

    /// Returns true if a message between NPUs that are wired to their neighbours goes towards higher coordinates. On a
    /// ring of `size` NPUs, the message takes the shorter direction, or goes upwards if both are equally long.
    #[inline]
    pub fn is_upward(self, size: u32, from: u32, to: u32) -> bool {
        match self {
            Self::Ring => {
                let up = if to > from {
                    to - from
                } else {
                    size - from + to
                };
                up <= size - up
            }
            _ => to > from,
        }
    }
}

impl fmt::Display for DimensionShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(shape, _)| shape == self);
        f.pad(name.map_or("", |(_, name)| name))
    }
}

/// One level of the network: a dimension of the topology.
#[derive(Clone, Debug, PartialEq)]
pub struct TopologyDimension {
    /// Name in reports, for example `nvlink`.
    pub name: String,
    /// Wiring between the dimension's NPUs.
    pub shape: DimensionShape,
    /// Number of NPUs along the dimension, at least 1.
    pub size: u32,
    /// Bandwidth of one NPU into the dimension, in each direction and over all its links together.
    pub bandwidth: Bandwidth,
    /// Time that the first byte takes over one link.
    pub latency: Span,
}

impl TopologyDimension {
    /// Returns the rate of one link, which is also the rate of a message in this dimension.
    pub fn link_bandwidth(&self) -> Bandwidth {
        if self.shape.has_ports() || self.size <= 2 {
            self.bandwidth
        } else {
            self.bandwidth.halve()
        }
    }
}

/// Latency and rates of the route between two NPUs, over all its links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathLatencyAndRates {
    /// Sum of the latencies of all links crossed.
    pub latency: Span,
    /// Bandwidth of the slowest link crossed.
    pub bandwidth: Bandwidth,
    /// Forwarding mode of the devices between links.
    pub switching: SwitchingMode,
    /// Sum of the inverse rates of the links at which a device waits for a segment, except one of the slowest links.
    /// The sum is zero with ideal cut-through.
    pub others: SummedSecondsPerByte,
}

impl PathLatencyAndRates {
    /// Returns the time of the first byte, from when the sender starts to send a message of `amount` until the message
    /// begins to arrive. From then on, the message arrives at the rate of the slowest link. The time is Σα + Σγ, where
    /// α are the latencies of all links and γ are the serializations of one segment on all links except the slowest.
    /// (The slowest link's segment is already part of the arrival.)
    #[inline]
    pub fn time_of_first_byte(&self, amount: UnroundedBufferShare) -> Span {
        if self.others == SummedSecondsPerByte::ZERO {
            return self.latency;
        }
        self.latency
            + self
                .others
                .serialization_time(self.switching.first_segment(amount))
    }

    /// Returns the uncontended time of a message of `amount`: [`Self::time_of_first_byte`] + amount / bandwidth.
    #[inline]
    pub fn time_message(&self, amount: UnroundedBufferShare) -> Span {
        self.time_of_first_byte(amount) + self.bandwidth.serialization_time(amount)
    }
}

/// The dimensions of a machine, innermost first.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    dimensions: Vec<TopologyDimension>,
    /// Rate of a link, by dimension.
    links: Vec<Bandwidth>,
    strides: Vec<u32>,
    npus: u32,
    switching: SwitchingMode,
    /// Explicit links, or `None` if the dimensions alone describe the network.
    graph: Option<Arc<LinkGraph>>,
    /// Dies and cores of a tiled accelerator with two dimensions, or `None` for other machines.
    tiles: Option<Box<DieAndCoreLayout>>,
    /// Memories attached to the network. The endpoint numbers of memories follow the NPUs' numbers.
    memories: Vec<MemorySiteAndLink>,
}

impl Topology {
    /// Maximum number of NPUs of a machine.
    pub const MAX_NPUS: u32 = MAX_NPUS;

    /// Stacks `dimensions`, innermost first, with ideal cut-through between links. Returns `None` if there is no
    /// dimension, if a dimension has no NPU, or if there would be more than [`Self::MAX_NPUS`] NPUs.
    pub fn new(dimensions: Vec<TopologyDimension>) -> Option<Self> {
        let mut strides = Vec::with_capacity(dimensions.len());
        let mut npus = 1_u32;
        for dimension in &dimensions {
            strides.push(npus);
            npus = npus.checked_mul(dimension.size)?;
            // Check the size after each dimension, so that every stride also fits into 32 bits.
            if npus == 0 || npus > Self::MAX_NPUS {
                return None;
            }
        }
        (!dimensions.is_empty()).then_some(Self {
            links: dimensions
                .iter()
                .map(TopologyDimension::link_bandwidth)
                .collect(),
            dimensions,
            strides,
            npus,
            switching: SwitchingMode::IDEAL,
            graph: None,
            tiles: None,
            memories: Vec::new(),
        })
    }

    /// Returns the topology with explicit links, which messages use instead of the dimensions. Both must have the same
    /// number of NPUs.
    pub fn with_link_graph(self, graph: LinkGraph) -> Self {
        Self {
            graph: Some(Arc::new(graph)),
            ..self
        }
    }

    /// Returns the explicit links, if any.
    pub fn explicit_links(&self) -> Option<&Arc<LinkGraph>> {
        self.graph.as_ref()
    }

    /// Returns all links individually: the explicit links, or else links built from the dimensions. Returns `None` if
    /// there are more NPUs than [`link_graph::MOST_NPUS`].
    pub fn explicit_or_built_link_graph(&self) -> Option<Arc<LinkGraph>> {
        match &self.graph {
            Some(graph) => Some(Arc::clone(graph)),
            None => LinkGraph::from_topology(self).map(Arc::new),
        }
    }

    /// Creates a topology whose NPUs are the cores of `tiles`, wired as `shape` along x and y. Links on each die have
    /// rate `inside` and latency `latency`. Returns `None` if a size is zero, or if there would be more than
    /// [`Self::MAX_NPUS`] NPUs.
    pub fn from_tile_grid(
        tiles: DieAndCoreLayout,
        shape: DimensionShape,
        inside: Bandwidth,
        latency: Span,
    ) -> Option<Self> {
        let dimension = |d: usize, name: &str| {
            let size = tiles.dies[d].checked_mul(tiles.cores[d])?;
            let links = if size > 2 { 2.0 } else { 1.0 };
            Some(TopologyDimension {
                name: name.to_owned(),
                shape,
                size,
                bandwidth: Bandwidth::new(inside.bytes_per_second() * links)?,
                latency,
            })
        };
        let plain = Self::new(vec![dimension(0, "x")?, dimension(1, "y")?])?;
        Some(Self {
            tiles: Some(Box::new(tiles)),
            ..plain
        })
    }

    /// Returns the dies and cores of a tiled accelerator, or `None` for other machines.
    #[inline]
    pub fn tile_grid(&self) -> Option<&DieAndCoreLayout> {
        self.tiles.as_deref()
    }

    /// Returns true if both directions between neighbours share one link.
    #[inline]
    pub fn is_half_duplex(&self) -> bool {
        self.tile_grid().is_some_and(|tiles| tiles.half_duplex)
    }

    /// Returns the dimension that messages from `a` to `b` cross first. This is the innermost dimension in which `a`
    /// and `b` differ, except on tiles with faulty links.
    ///
    /// # Errors
    ///
    /// Fails if every route to `b` crosses a faulty link. The error is the first faulty link, as (core at its lower
    /// end, dimension).
    #[inline]
    pub fn first_dimension_crossed_between(&self, a: Npu, b: Npu) -> Result<usize, (u32, usize)> {
        match self.tile_grid() {
            Some(tiles) => tiles.first_dimension_avoiding_faults(
                &self.dimensions,
                [
                    tiles.coordinates_of_core(a.0),
                    tiles.coordinates_of_core(b.0),
                ],
            ),
            None => Ok(0),
        }
    }

    /// Returns the number of links that a message from `a` to `b` crosses.
    pub fn hop_count(&self, a: Npu, b: Npu) -> u32 {
        let dimensions = self.dimensions.iter().enumerate();
        let hops = dimensions.map(|(d, dimension)| {
            let [from, to] = [a, b].map(|npu| self.coordinate_of(npu, d));
            dimension.shape.hop_count(dimension.size, from, to)
        });
        hops.sum()
    }

    /// Returns the rate and latency of the link between neighbours at coordinates `lower` and `lower + 1` along
    /// `dimension`. Without tiles, all links of a dimension are equal, so `lower` is ignored.
    #[inline]
    pub fn link_rate_and_latency(&self, dimension: usize, lower: u32) -> (Bandwidth, Span) {
        match self.tile_grid() {
            Some(tiles) if tiles.is_link_between_dies(dimension, lower) => {
                (tiles.borders.bandwidth, tiles.borders.latency)
            }
            _ => (self.links[dimension], self.dimensions[dimension].latency),
        }
    }

    /// Returns the topology with the forwarding mode changed to `switching`.
    pub fn with_switching(self, switching: SwitchingMode) -> Self {
        Self { switching, ..self }
    }

    /// Returns the forwarding mode of devices between links.
    pub fn switching_mode(&self) -> SwitchingMode {
        self.switching
    }

    /// Returns the number of NPUs in the machine.
    pub fn npu_count(&self) -> u32 {
        self.npus
    }

    /// Returns the dimensions, innermost first.
    pub fn dimensions(&self) -> &[TopologyDimension] {
        &self.dimensions
    }

    /// Returns the rate of one link along dimension `d`.
    #[inline]
    pub fn link_bandwidth(&self, d: usize) -> Bandwidth {
        self.links[d]
    }

    /// Returns the sides on which a message leaves `a` and enters `b`. The message leaves `a` along the first dimension
    /// that it crosses, and enters `b` along the last. Side 1 means downwards if NPUs are wired to their neighbours; in
    /// all other cases the side is 0.
    #[inline]
    pub fn sides_at_route_ends(&self, a: Npu, b: Npu) -> [u32; 2] {
        self.first_and_last_port(a, b).map(|(_, side)| side)
    }

    /// Returns the ports through which a message leaves `a` and enters `b`, each as (dimension, side). The message
    /// leaves `a` along the first dimension that it crosses, and enters `b` along the last.
    #[inline]
    pub fn first_and_last_port(&self, a: Npu, b: Npu) -> [(usize, u32); 2] {
        let mut ports: Option<[(usize, u32); 2]> = None;
        let count = self.dimensions.len();
        let first = self.first_dimension_crossed_between(a, b).unwrap_or(0);
        for d in (0..count).map(|i| (first + i) % count) {
            let dimension = &self.dimensions[d];
            let (from, to) = (self.coordinate_of(a, d), self.coordinate_of(b, d));
            if from != to {
                let (shape, size) = (dimension.shape, dimension.size);
                let down = !shape.has_ports() && !shape.is_upward(size, from, to);
                let own = (d, u32::from(down));
                // The output port is on the first dimension that the message crosses, and the input port is on the
                // last.
                let out = ports.map_or(own, |[out, _]| out);
                ports = Some([out, own]);
            }
        }
        ports.unwrap_or_default()
    }

    /// Returns the coordinate of `npu` in dimension `d`.
    #[inline]
    pub fn coordinate_of(&self, npu: Npu, d: usize) -> u32 {
        npu.0 / self.strides[d] % self.dimensions[d].size
    }

    /// Returns the NPU whose coordinates are those of `npu`, except for `to` in dimension `d`.
    #[inline]
    pub fn npu_with_changed_coordinate(&self, npu: Npu, d: usize, to: u32) -> Npu {
        let stride = self.strides[d];
        Npu(npu.0 - self.coordinate_of(npu, d) * stride + to * stride)
    }

    /// Returns the path from `a` to `b` in dimension order. Latencies add up, and the rate is that of the slowest link.
    /// Returns `None` if both are the same NPU.
    #[inline]
    pub fn path_between_npus(&self, a: Npu, b: Npu) -> Option<PathLatencyAndRates> {
        if let Some(graph) = &self.graph {
            return graph.path_latency_and_rates(a, b, self.switching);
        }
        if let Some(tiles) = self.tile_grid() {
            let ends = [
                tiles.coordinates_of_core(a.0),
                tiles.coordinates_of_core(b.0),
            ];
            return tiles.path_latency_and_rates(
                &self.dimensions,
                self.links[0],
                self.switching,
                ends,
            );
        }
        let path = self.ideal_path(a, b)?;
        if self.switching == SwitchingMode::IDEAL {
            return Some(path);
        }
        // Comparing floats exactly is safe, because path.bandwidth is one of the compared rates.
        let mut slowest = Some(path.bandwidth);
        let dimensions = self.dimensions.iter().enumerate();
        let others = dimensions.fold(SummedSecondsPerByte::ZERO, |others, (d, dimension)| {
            let (from, to) = (self.coordinate_of(a, d), self.coordinate_of(b, d));
            let mut links = dimension.shape.hop_count(dimension.size, from, to);
            let rate = self.links[d];
            // Skip one of the slowest links: its segment is already part of the serialization.
            if links > 0 && slowest == Some(rate) {
                slowest = None;
                links -= 1;
            }
            others.add_links(links, rate)
        });
        Some(PathLatencyAndRates {
            switching: self.switching,
            others,
            ..path
        })
    }

    #[inline]
    fn ideal_path(&self, a: Npu, b: Npu) -> Option<PathLatencyAndRates> {
        let mut path: Option<PathLatencyAndRates> = None;
        for (d, dimension) in self.dimensions.iter().enumerate() {
            let (from, to) = (self.coordinate_of(a, d), self.coordinate_of(b, d));
            if from == to {
                continue;
            }
            let hops = dimension.shape.hop_count(dimension.size, from, to);
            let latency = dimension.latency.times(u64::from(hops));
            let rate = self.links[d];
            path = Some(match path {
                None => PathLatencyAndRates {
                    latency,
                    bandwidth: rate,
                    switching: SwitchingMode::IDEAL,
                    others: SummedSecondsPerByte::ZERO,
                },
                Some(inner) => PathLatencyAndRates {
                    latency: inner.latency + latency,
                    bandwidth: if rate < inner.bandwidth {
                        rate
                    } else {
                        inner.bandwidth
                    },
                    ..inner
                },
            });
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a topology of three dimensions, whose links have 200, 100 and 150 GB/s.
    fn build_three_dimension_topology() -> Topology {
        let dimension = |shape, size, gb: f64, ns| TopologyDimension {
            name: String::new(),
            shape,
            size,
            bandwidth: Bandwidth::new(gb * 1e9).unwrap(),
            latency: Span::from_ns(ns),
        };
        Topology::new(vec![
            dimension(DimensionShape::Ring, 4, 400.0, 50),
            dimension(DimensionShape::FullyConnected, 2, 100.0, 500),
            dimension(DimensionShape::Switch, 4, 150.0, 2000),
        ])
        .unwrap()
    }

    #[test]
    fn rings_go_the_shorter_way() {
        for (a, b, hops) in [(0, 1, 1), (0, 4, 4), (0, 5, 3), (7, 0, 1), (3, 3, 0)] {
            assert_eq!(DimensionShape::Ring.hop_count(8, a, b), hops);
        }
    }

    #[test]
    fn paths_add_latencies_and_take_the_slowest_rate() {
        let t = build_three_dimension_topology();
        assert_eq!(t.npu_count(), 32);
        // The route from NPU 0 = (0,0,0) to NPU 3 = (3,0,0) has one hop, in the shorter direction.
        let p = t.path_between_npus(Npu(0), Npu(3)).unwrap();
        assert_eq!(
            (p.latency, p.bandwidth),
            (Span::from_ns(50), Bandwidth::new(200e9).unwrap())
        );
        // The route to NPU 30 = (2, 1, 3) has 2 ring links, 1 fully connected link and 2 switch links: 100 + 500 +
        // 4,000 ns, at 100 GB/s.
        assert_eq!(t.coordinate_of(Npu(30), 0), 2);
        assert_eq!(t.coordinate_of(Npu(30), 2), 3);
        let p = t.path_between_npus(Npu(0), Npu(30)).unwrap();
        assert_eq!(
            (p.latency, p.bandwidth),
            (Span::from_ns(4600), Bandwidth::new(100e9).unwrap())
        );
        assert!(t.path_between_npus(Npu(5), Npu(5)).is_none());
    }

    #[test]
    fn links_of_a_ring_are_half_of_its_bandwidth() {
        for (shape, _) in DimensionShape::ALL {
            for size in 1..5 {
                let mut dimension = build_three_dimension_topology().dimensions()[0].clone();
                (dimension.shape, dimension.size) = (shape, size);
                let wired = matches!(shape, DimensionShape::Ring | DimensionShape::Mesh);
                let gb = if wired && size > 2 { 200e9 } else { 400e9 };
                assert_eq!(dimension.link_bandwidth(), Bandwidth::new(gb).unwrap());
            }
        }
    }

    /// Checks messages from and to NPU 0, up and down in the inner dimensions. Ports into the switch have no sides.
    #[test]
    fn sides_at_route_ends_follow_the_direction_in_each_dimension() {
        let t = build_three_dimension_topology();
        for (a, b, sides) in [
            (0, 1, [0, 0]),
            (0, 2, [0, 0]),
            (0, 3, [1, 1]),
            (0, 11, [1, 0]),
            (8, 0, [0, 0]),
            (5, 5, [0, 0]),
        ] {
            assert_eq!(t.sides_at_route_ends(Npu(a), Npu(b)), sides, "{a} {b}");
        }
    }

    #[test]
    fn meshes_have_no_way_round() {
        for (a, b, hops) in [(0, 1, 1), (0, 7, 7), (6, 2, 4), (3, 3, 0)] {
            assert_eq!(DimensionShape::Mesh.hop_count(8, a, b), hops);
        }
    }

    #[test]
    fn moving_along_a_dimension_changes_only_that_coordinate() {
        let t = build_three_dimension_topology();
        // NPU 30 = (2, 1, 3); (1, 1, 3) is 29, (2, 0, 3) is 26, (2, 1, 0) is 6.
        for (d, to, npu) in [(0, 1, 29), (1, 0, 26), (2, 0, 6), (2, 3, 30)] {
            assert_eq!(t.npu_with_changed_coordinate(Npu(30), d, to), Npu(npu));
        }
    }

    /// From NPU 0 to (2, 1, 3), links take 5, 5, 10, 6.67 and 6.67 ps/B. The third link is the slowest.
    #[test]
    fn devices_wait_for_a_segment_or_for_all() {
        let time = |switching, bytes| {
            let t = build_three_dimension_topology().with_switching(switching);
            let p = t.path_between_npus(Npu(0), Npu(30)).unwrap();
            (
                p.time_of_first_byte(UnroundedBufferShare::from_bytes(bytes)),
                p.time_message(UnroundedBufferShare::from_bytes(bytes)),
            )
        };
        // The latency is 4,600 ns; at 10 ps/B, 3,000 B take 30 ns.
        let ns = Span::from_ns;
        assert_eq!(time(SwitchingMode::IDEAL, 3000), (ns(4600), ns(4630)));
        // On the other links, 300 B take 300 x (5 + 5 + 20/3 + 20/3) = 7,000 ps, and 3,000 B take 70,000 ps.
        let segment = chakram_base::units::Bytes(300);
        let by = SwitchingMode::CutThrough { segment };
        assert_eq!(time(by, 3000), (ns(4607), ns(4637)));
        assert_eq!(
            time(SwitchingMode::StoreAndForward, 3000),
            (ns(4670), ns(4700))
        );
        // A message that is shorter than a segment counts as one segment. A message of 30 B takes 700 ps on the other
        // links, and 300 ps on the slowest link.
        assert_eq!(time(by, 30), (Span(4_600_700), ns(4601)));
        // The route has a single link, so no device waits for a segment.
        let t = build_three_dimension_topology().with_switching(SwitchingMode::StoreAndForward);
        let p = t.path_between_npus(Npu(0), Npu(1)).unwrap();
        assert_eq!(
            p.time_of_first_byte(UnroundedBufferShare::from_bytes(3000)),
            ns(50)
        );
    }

    #[test]
    fn topologies_without_dimensions_or_with_impossible_sizes_are_refused() {
        assert!(Topology::new(Vec::new()).is_none());
        let mut dims = build_three_dimension_topology().dimensions().to_vec();
        dims[1].size = 0;
        assert!(Topology::new(dims.clone()).is_none());
        dims[1].size = u32::MAX;
        assert!(Topology::new(dims).is_none());
    }
}
