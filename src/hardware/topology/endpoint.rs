//! Endpoints: NPUs and the memories that lie at the network, in one id space, and the paths between them.
//!
//! NPU n is endpoint n, and memories follow in the order in which the machine lists them. A memory joins the network over one
//! link: its own to an NPU, or beyond the fabric of a dimension the port of the NPU at the other end.

use super::link_graph::{DirectedLink, LinkGraph, LinkRoute};
use super::{NetworkPath, SwitchingMode, Topology};
use chakram_base::ids::{EndpointId, Npu};
use chakram_base::units::{Bandwidth, InverseRate, Span};

/// Location of a memory at the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemorySite {
    /// At an NPU, over a link of its own. Other NPUs reach it over the links of the network.
    Npu(Npu),
    /// Beyond the fabric of a dimension, which every NPU reaches through its own port there.
    Fabric(usize),
}

/// A memory at the network, with the link over which it joins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryEndpoint {
    /// Location.
    pub site: MemorySite,
    /// Rate of the link, which is that of the memory if the link is its own.
    pub bandwidth: Bandwidth,
    /// Time of the first byte.
    pub latency: Span,
}

impl Topology {
    /// The same with `memories` as endpoints behind the NPUs.
    pub fn with_memories(self, memories: Vec<MemoryEndpoint>) -> Self {
        Self { memories, ..self }
    }

    /// The memory that an endpoint is; `None` if it is an NPU.
    #[inline]
    pub fn memory(&self, endpoint: EndpointId) -> Option<&MemoryEndpoint> {
        let index = endpoint.0.checked_sub(self.npus)?;
        self.memories.get(index as usize)
    }

    /// Rate and latency of the link of the memory with this number.
    pub fn memory_link(&self, number: u32) -> (Bandwidth, Span) {
        let memory = &self.memories[number as usize];
        (memory.bandwidth, memory.latency)
    }

    /// Whether an endpoint is a memory at an NPU, with a link of its own.
    pub fn has_own_link(&self, endpoint: EndpointId) -> bool {
        let site = self.memory(endpoint).map(|memory| memory.site);
        matches!(site, Some(MemorySite::Npu(_)))
    }

    /// The NPUs at which two endpoints lie, one of which is an NPU. A memory beyond a fabric lies at the other one.
    pub fn seats(&self, (from, to): (EndpointId, EndpointId)) -> (Npu, Npu) {
        let seat = |one: EndpointId, other: EndpointId| match self.memory(one).map(|m| m.site) {
            None => Npu(one.0),
            Some(MemorySite::Npu(npu)) => npu,
            Some(MemorySite::Fabric(_)) => Npu(other.0),
        };
        (seat(from, to), seat(to, from))
    }

    /// The way between two endpoints, one of which is an NPU: that of a message between the NPUs at which they lie, and the
    /// memory's link as one link more. `None` if they are the same NPU.
    pub fn path_between(&self, ends: (EndpointId, EndpointId)) -> Option<NetworkPath> {
        let (a, b) = self.seats(ends);
        let memories = [ends.0, ends.1].into_iter();
        let memories = memories.filter_map(|endpoint| self.memory(endpoint));
        memories.fold(self.path(a, b), |way, memory| {
            Some(memory.beyond(way, self.switching))
        })
    }

    /// The links of a graph of this topology, and behind them those of the memories, in their order. That of a memory beyond a
    /// fabric is none: bytes pass the port of the NPU.
    pub fn links_with_memories(&self, graph: &LinkGraph) -> Vec<DirectedLink> {
        let memories = self.memories.iter().map(|memory| {
            let seat = match memory.site {
                MemorySite::Npu(npu) => npu.0,
                MemorySite::Fabric(_) => 0,
            };
            DirectedLink {
                from: seat,
                to: seat,
                bandwidth: memory.bandwidth,
                latency: memory.latency,
                dimension: self.dimensions.len() as u32,
                length: 1,
            }
        });
        graph.links().iter().copied().chain(memories).collect()
    }

    /// The links between two endpoints, numbered as [`Self::links_with_memories`] has them: those of a message between the NPUs
    /// at which they lie, and of a memory its own, which loads and stores share. A memory beyond a fabric is reached over all links
    /// that the NPU has there, in equal parts. `None` if links of `graph` failed and leave no way.
    pub fn route_between(
        &self,
        graph: &LinkGraph,
        ends: (EndpointId, EndpointId),
    ) -> Option<LinkRoute> {
        let (a, b) = self.seats(ends);
        let mut route = graph.find_route(a, b)?;
        let is_load = self.memory(ends.0).is_some();
        let memory = if is_load { ends.0 } else { ends.1 };
        let Some(at) = self.memory(memory) else {
            return Some(route);
        };
        route.latency += at.latency;
        let own: Vec<u32> = match at.site {
            MemorySite::Npu(_) => vec![graph.links().len() as u32 + memory.0 - self.npus],
            MemorySite::Fabric(dimension) => {
                let links = (0..).zip(graph.links());
                let joins = |&(number, link): &(u32, &DirectedLink)| {
                    let npu = if is_load { link.to } else { link.from };
                    (npu, link.dimension as usize) == (a.0, dimension) && graph.carries(number)
                };
                let of_npu = links.filter(joins);
                of_npu.map(|(number, _)| number).collect()
            }
        };
        if own.is_empty() {
            return None;
        }
        let part = 1.0 / own.len() as f64;
        let own = own.into_iter().map(|link| (link, part));
        if is_load {
            route.links.splice(..0, own);
        } else {
            route.links.extend(own);
        }
        Some(route)
    }
}

impl MemoryEndpoint {
    /// The way to the memory, whose last link begins where `way` ends.
    fn beyond(&self, way: Option<NetworkPath>, switching: SwitchingMode) -> NetworkPath {
        let Some(way) = way else {
            return NetworkPath {
                latency: self.latency,
                bandwidth: self.bandwidth,
                switching,
                others: InverseRate::ZERO,
            };
        };
        let (slowest, other) = if self.bandwidth < way.bandwidth {
            (self.bandwidth, way.bandwidth)
        } else {
            (way.bandwidth, self.bandwidth)
        };
        NetworkPath {
            latency: self.latency + way.latency,
            bandwidth: slowest,
            others: match switching {
                SwitchingMode::IDEAL => InverseRate::ZERO,
                _ => way.others.plus(1, other),
            },
            ..way
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DimensionShape, TopologyDimension};
    use super::*;
    use chakram_base::units::BufferShare;

    /// Four NPUs in a line, links of 100 GB/s and 50 ns; memories of 40 GB/s and 300 ns at NPU 3, and beyond the ports of
    /// the switch of two around it, at 200 GB/s and 500 ns.
    fn line(switching: SwitchingMode) -> Topology {
        let rate = |gb: f64| Bandwidth::new(gb * 1e9).unwrap();
        let dimension = |shape, size, gb, ns| TopologyDimension {
            name: String::new(),
            shape,
            size,
            bandwidth: rate(gb),
            latency: Span::from_ns(ns),
        };
        let dimensions = vec![
            dimension(DimensionShape::Mesh, 4, 200.0, 50),
            dimension(DimensionShape::Switch, 2, 200.0, 500),
        ];
        let memory = |site, gb, ns| MemoryEndpoint {
            site,
            bandwidth: rate(gb),
            latency: Span::from_ns(ns),
        };
        let plain = Topology::new(dimensions).unwrap();
        plain.with_switching(switching).with_memories(vec![
            memory(MemorySite::Npu(Npu(3)), 40.0, 300),
            memory(MemorySite::Fabric(1), 200.0, 500),
        ])
    }

    #[test]
    fn a_memory_is_one_link_more() {
        let time = |switching, ends: (u32, u32)| {
            let ends = (EndpointId(ends.0), EndpointId(ends.1));
            let path = line(switching).path_between(ends).unwrap();
            path.time(BufferShare::whole(4000)).0
        };
        // Endpoints 0 to 7 are NPUs, 8 and 9 memories. From memory 8 to NPU 1: 300 + 2 x 50 ns of latency; 4,000 B take
        // 100 ns at 40 GB/s, either way.
        assert_eq!(time(SwitchingMode::IDEAL, (8, 1)), 500_000);
        assert_eq!(time(SwitchingMode::IDEAL, (1, 8)), 500_000);
        // Stored and forwarded, 40 ns more on each of the two links.
        assert_eq!(time(SwitchingMode::StoreAndForward, (8, 1)), 580_000);
        // To NPU 3, at which it lies: its own link.
        assert_eq!(time(SwitchingMode::StoreAndForward, (8, 3)), 400_000);
        // From beyond the switch every NPU has its port: 500 ns and 20 ns.
        for npu in [0, 7] {
            assert_eq!(time(SwitchingMode::IDEAL, (npu, 9)), 520_000);
        }
        // Between NPUs as everywhere.
        let t = line(SwitchingMode::IDEAL);
        let ends = (EndpointId(0), EndpointId(2));
        assert_eq!(t.path_between(ends), t.path(Npu(0), Npu(2)));
        assert_eq!(t.path_between((EndpointId(5), EndpointId(5))), None);
    }
}
