//! The route of a message from server to server: in dimension order, innermost first, computed on demand.

use crate::network::servers::{IN, OUT, QueueingServerId};
use crate::topology::{DieAndCoreLayout, DimensionShape, Topology};
use chakram_base::ids::{EndpointId, Npu};
use chakram_base::units::{Bandwidth, Span};

/// Index of a server among an NPU's servers along a dimension. With a ring or mesh, `UP` and `DOWN` are the links to
/// the next higher and to the next lower coordinate. With a switch, `UP` is the link to the switch, and `DOWN` is the
/// link from the switch. In a fully connected dimension, `UP` is the egress for all peers, and `DOWN` is the ingress.
pub(super) const UP: usize = OUT;
pub(super) const DOWN: usize = IN;
/// Offset added to a port's side if NPUs are wired to their neighbours. It selects the egress to the lower neighbour
/// and the ingress from the upper one.
pub(super) const DOWNWARDS: usize = 2;

/// Servers included in a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortsOrLinksOnRoute {
    /// Two servers in each crossed dimension: the egress port of the NPU where the message enters the dimension, and
    /// the ingress port of the NPU where it leaves.
    Ports,
    /// Every link is a server; a wire between fully connected NPUs has a server at each end.
    Links,
}

/// A server on a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::network) struct RouteServerAndLinkCountToNext {
    pub place: QueueingServerId,
    /// Number of links from this server to the next. Zero if the next server is the far end of the same link.
    pub links: u32,
    /// True if the next link begins at a device that waits for a segment. False if the next server is the far end of
    /// the same link.
    pub last: bool,
}

/// The part of a route that the message has not passed yet.
#[derive(Clone, Copy, Debug)]
pub(in crate::network) struct RouteCursor {
    reach: PortsOrLinksOnRoute,
    at: Npu,
    to: Npu,
    /// Number of dimensions crossed so far, of which `first` is the first.
    crossed: usize,
    first: usize,
    /// Side of the second of this dimension's two servers, if only the first has been passed; `at` is then already the
    /// NPU after both servers.
    second: Option<u8>,
}

impl RouteCursor {
    /// Creates a cursor at the beginning of a route.
    pub fn new(reach: PortsOrLinksOnRoute, (at, to): (Npu, Npu), topology: &Topology) -> Self {
        Self {
            reach,
            at,
            to,
            crossed: 0,
            // If both orders of dimensions meet faults, the replay was rejected earlier, so any value is valid here.
            first: topology
                .first_dimension_crossed_between(at, to)
                .unwrap_or(0),
            second: None,
        }
    }

    /// Returns the current NPU and the last NPU of the route.
    pub fn current_and_last_npu(&self) -> (Npu, Npu) {
        (self.at, self.to)
    }

    /// Returns the next server, or `None` after the last.
    #[inline]
    pub fn next(&mut self, topology: &Topology) -> Option<RouteServerAndLinkCountToNext> {
        let count = topology.dimensions().len();
        while self.crossed < count {
            let turned = self.first + self.crossed;
            let d = if turned < count {
                turned
            } else {
                turned - count
            };
            let dimension = &topology.dimensions()[d];
            let (shape, size) = (dimension.shape, dimension.size);
            let from = self.at;
            let place = |side, npu| QueueingServerId {
                dimension: d,
                side,
                npu,
            };
            if let Some(side) = self.second.take() {
                self.crossed += 1;
                // With a switch, the second server is the link from the switch. Without one, it is at the end of the
                // route in this dimension.
                let leads_on =
                    shape == DimensionShape::Switch && self.reach == PortsOrLinksOnRoute::Links;
                return Some(RouteServerAndLinkCountToNext {
                    place: place(side.into(), from),
                    links: u32::from(leads_on),
                    last: true,
                });
            }
            let x = topology.coordinate_of(from, d);
            // Compute coordinates on demand, so that a route needs no memory per hop.
            let y = topology.coordinate_of(self.to, d);
            if x != y {
                let up = shape.has_ports() || shape.is_upward(size, x, y);
                let (side, next, links, last) = match (self.reach, shape) {
                    (PortsOrLinksOnRoute::Ports, _) => {
                        let apart = if up { 0 } else { DOWNWARDS };
                        self.second = Some((IN + apart) as u8);
                        (OUT + apart, y, shape.hop_count(size, x, y), false)
                    }
                    (_, DimensionShape::Ring | DimensionShape::Mesh) => {
                        if up {
                            (UP, if x + 1 == size { 0 } else { x + 1 }, 1, true)
                        } else {
                            (DOWN, if x == 0 { size - 1 } else { x - 1 }, 1, true)
                        }
                    }
                    (_, DimensionShape::Switch | DimensionShape::FullyConnected) => {
                        self.second = Some(DOWN as u8);
                        (UP, y, 1, shape == DimensionShape::Switch)
                    }
                };
                self.at = topology.npu_with_changed_coordinate(from, d, next);
                // Both directions of a half-duplex link share one server, at the link's lower end. A ring of two NPUs
                // has only one link, so the upper NPU has no link of its own.
                let from_above = side == DOWN || (size == 2 && x == 1);
                let place = if last && from_above && topology.is_half_duplex() {
                    place(UP, self.at)
                } else {
                    place(side, from)
                };
                return Some(RouteServerAndLinkCountToNext { place, links, last });
            }
            self.crossed += 1;
        }
        None
    }

    /// Returns true if the remaining route crosses dimension `d`.
    pub fn crosses_dimension(&self, topology: &Topology, d: usize) -> bool {
        topology.coordinate_of(self.at, d) != topology.coordinate_of(self.to, d)
    }
}

/// Returns the servers on the route between two endpoints. At most one of the endpoints may be a memory. The memory's
/// link is the first or the last server of the route.
#[inline]
pub(in crate::network) fn iter_servers_between<'t>(
    reach: PortsOrLinksOnRoute,
    ends: (EndpointId, EndpointId),
    topology: &'t Topology,
) -> impl Iterator<Item = RouteServerAndLinkCountToNext> + use<'t> {
    let memory = QueueingServerId::of_memory_at_either_end(topology, ends).map(|place| {
        RouteServerAndLinkCountToNext {
            place,
            links: 1,
            last: true,
        }
    });
    let (loaded, stored) = match topology.memory_at(ends.0) {
        Some(_) => (memory, None),
        None => (None, memory),
    };
    let mut way = RouteCursor::new(reach, topology.npus_of_endpoints(ends), topology);
    let way = std::iter::from_fn(move || way.next(topology));
    loaded.into_iter().chain(way).chain(stored)
}

/// Returns the coordinate at the lower end of a link between neighbours.
#[inline]
fn lower_end_coordinate_of_link(place: QueueingServerId, topology: &Topology) -> u32 {
    let x = topology.coordinate_of(place.npu, place.dimension);
    match (place.side, x) {
        (DOWN, 0) => topology.dimensions()[place.dimension].size - 1,
        (DOWN, _) => x - 1,
        _ => x,
    }
}

/// Returns the bandwidth and the latency of the link after a server.
#[inline]
pub(in crate::network) fn link_rate_and_latency_after_server(
    place: QueueingServerId,
    topology: &Topology,
) -> (Bandwidth, Span) {
    let d = place.dimension;
    let Some(dimension) = topology.dimensions().get(d) else {
        return topology.memory_link_rate_and_latency(place.npu.0);
    };
    match topology.tile_grid() {
        Some(_) => topology.link_rate_and_latency(d, lower_end_coordinate_of_link(place, topology)),
        None => (topology.link_bandwidth(d), dimension.latency),
    }
}

/// Returns true if the link connects two dies of a machine of tiles.
#[inline]
pub(super) fn is_link_between_dies(place: QueueingServerId, topology: &Topology) -> bool {
    let lies = |tiles: &DieAndCoreLayout| {
        tiles.is_link_between_dies(
            place.dimension,
            lower_end_coordinate_of_link(place, topology),
        )
    };
    topology.tile_grid().is_some_and(lies)
}

/// Returns all servers that `npu` uses to send or receive along dimension `d`.
pub(super) fn servers_of_npu(
    reach: PortsOrLinksOnRoute,
    topology: &Topology,
    npu: Npu,
    d: usize,
) -> impl Iterator<Item = QueueingServerId> {
    let dimension = &topology.dimensions()[d];
    let (size, x) = (dimension.size, topology.coordinate_of(npu, d));
    let place = |side, npu| QueueingServerId {
        dimension: d,
        side,
        npu,
    };
    // Links that lead to this NPU are servers of its neighbours.
    let neighbour = |side, beside: Option<u32>| {
        beside.map(|c| place(side, topology.npu_with_changed_coordinate(npu, d, c)))
    };
    let others = match dimension.shape {
        DimensionShape::Switch | DimensionShape::FullyConnected => [None; 2],
        _ if reach == PortsOrLinksOnRoute::Ports => {
            [OUT, IN].map(|side| Some(place(side + DOWNWARDS, npu)))
        }
        DimensionShape::Ring => [
            neighbour(UP, Some((x + size - 1) % size)),
            neighbour(DOWN, Some((x + 1) % size)),
        ],
        DimensionShape::Mesh => [
            neighbour(UP, x.checked_sub(1)),
            neighbour(DOWN, Some(x + 1).filter(|&c| c < size)),
        ],
    };
    let own = [UP, DOWN].map(|side| Some(place(side, npu)));
    own.into_iter().chain(others).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::TopologyDimension;

    fn build_topology_from_shapes_and_sizes(shapes: &[(DimensionShape, u32)]) -> Topology {
        let dimensions = shapes.iter().map(|&(shape, size)| TopologyDimension {
            name: String::new(),
            shape,
            size,
            bandwidth: Bandwidth::new(1e9).unwrap(),
            latency: Span::ZERO,
        });
        Topology::new(dimensions.collect()).unwrap()
    }

    /// Returns the servers on the route between two NPUs, as (dimension, side, NPU).
    fn list_route_servers(topology: &Topology, a: u32, b: u32) -> Vec<(usize, usize, u32)> {
        let mut route = RouteCursor::new(PortsOrLinksOnRoute::Links, (Npu(a), Npu(b)), topology);
        let stops = std::iter::from_fn(|| route.next(topology));
        let place = |stop: RouteServerAndLinkCountToNext| {
            (stop.place.dimension, stop.place.side, stop.place.npu.0)
        };
        stops.map(place).collect()
    }

    #[test]
    fn rings_take_the_shorter_way_and_go_up_where_both_are_equal() {
        let t = build_topology_from_shapes_and_sizes(&[(DimensionShape::Ring, 6)]);
        assert_eq!(
            list_route_servers(&t, 4, 1),
            [(0, UP, 4), (0, UP, 5), (0, UP, 0)]
        );
        assert_eq!(
            list_route_servers(&t, 1, 4),
            [(0, UP, 1), (0, UP, 2), (0, UP, 3)]
        );
        assert_eq!(list_route_servers(&t, 1, 5), [(0, DOWN, 1), (0, DOWN, 0)]);
        let t = build_topology_from_shapes_and_sizes(&[(DimensionShape::Ring, 2)]);
        assert_eq!(
            (list_route_servers(&t, 0, 1), list_route_servers(&t, 1, 0)),
            (vec![(0, UP, 0)], vec![(0, UP, 1)])
        );
    }

    #[test]
    fn meshes_go_straight() {
        let t = build_topology_from_shapes_and_sizes(&[(DimensionShape::Mesh, 4)]);
        assert_eq!(
            list_route_servers(&t, 3, 0),
            [(0, DOWN, 3), (0, DOWN, 2), (0, DOWN, 1)]
        );
        assert_eq!(list_route_servers(&t, 0, 2), [(0, UP, 0), (0, UP, 1)]);
    }

    /// Tests the route between NPUs 12 and 11. Only in dimensions where NPUs are wired to neighbours does a port have a
    /// separate side for each direction.
    #[test]
    fn only_dimensions_wired_to_neighbours_have_a_port_side_per_direction() {
        let t = build_topology_from_shapes_and_sizes(&[
            (DimensionShape::Switch, 3),
            (DimensionShape::Mesh, 4),
            (DimensionShape::FullyConnected, 2),
        ]);
        let ports = |a, b| -> Vec<_> {
            let mut route = RouteCursor::new(PortsOrLinksOnRoute::Ports, (Npu(a), Npu(b)), &t);
            let stops = std::iter::from_fn(|| route.next(&t));
            let place = |s: RouteServerAndLinkCountToNext| {
                (s.place.dimension, s.place.side, s.place.npu.0, s.links)
            };
            stops.map(place).collect()
        };
        let outer = [(2, OUT, 23, 1), (2, IN, 11, 0)];
        let up = [
            (0, OUT, 12, 2),
            (0, IN, 14, 0),
            (1, OUT, 14, 3),
            (1, IN, 23, 0),
        ];
        assert_eq!(ports(12, 11), [&up[..], &outer].concat());
        let down = [(1, OUT + DOWNWARDS, 9, 3), (1, IN + DOWNWARDS, 0, 0)];
        assert_eq!(ports(9, 0), down);
    }

    /// The route from NPU 12 = (0, 0, 1) to NPU 11 = (2, 3, 0) passes NPUs 14 = (2, 0, 1) and 23 = (2, 3, 1).
    #[test]
    fn dimensions_are_crossed_from_the_inside() {
        let t = build_topology_from_shapes_and_sizes(&[
            (DimensionShape::Switch, 3),
            (DimensionShape::Mesh, 4),
            (DimensionShape::FullyConnected, 2),
        ]);
        let way = list_route_servers(&t, 12, 11);
        let ring = [(1, UP, 14), (1, UP, 17), (1, UP, 20)];
        let expected = [
            &[(0, UP, 12), (0, DOWN, 14)][..],
            &ring,
            &[(2, UP, 23), (2, DOWN, 11)],
        ];
        assert_eq!(way, expected.concat());
    }

    #[test]
    fn an_npu_s_links_are_its_own_and_those_that_lead_to_it() {
        let named = |t: &Topology, npu, d| -> Vec<_> {
            servers_of_npu(PortsOrLinksOnRoute::Links, t, Npu(npu), d)
                .map(|p| (p.side, p.npu.0))
                .collect()
        };
        let t = build_topology_from_shapes_and_sizes(&[
            (DimensionShape::Ring, 4),
            (DimensionShape::Mesh, 3),
            (DimensionShape::Switch, 2),
        ]);
        assert_eq!(named(&t, 0, 0), [(UP, 0), (DOWN, 0), (UP, 3), (DOWN, 1)]);
        assert_eq!(named(&t, 0, 1), [(UP, 0), (DOWN, 0), (DOWN, 4)]);
        assert_eq!(named(&t, 8, 1), [(UP, 8), (DOWN, 8), (UP, 4)]);
        assert_eq!(named(&t, 12, 2), [(UP, 12), (DOWN, 12)]);
    }
}
