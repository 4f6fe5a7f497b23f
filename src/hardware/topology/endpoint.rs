//! Endpoints of the network (NPUs and memories, numbered together), and the paths between them.
//!
//! NPU n is endpoint n, and the memories follow in the order in which the machine lists them. One link connects a
//! memory to the network. A memory at an NPU has its own link. A memory beyond the fabric (the switch) of a dimension
//! has no link of its own; an access uses the accessing NPU's port.

use super::link_graph::{DirectedLink, LinkGraph, RouteLinksAndFractions};
use super::{PathLatencyAndRates, SwitchingMode, Topology};
use chakram_base::ids::{EndpointId, Npu};
use chakram_base::units::{Bandwidth, Span, SummedSecondsPerByte};

/// Location of a memory in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryAtNpuOrFabric {
    /// At an NPU, with its own link. Other NPUs reach it over the links of the network.
    Npu(Npu),
    /// Beyond the fabric of this dimension. Every NPU reaches it through its own port into the dimension.
    Fabric(usize),
}

/// A memory in the network, and the link that connects it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemorySiteAndLink {
    /// Location of the memory in the network.
    pub site: MemoryAtNpuOrFabric,
    /// Rate of the memory's own link, or of the NPU's port if it has none.
    pub bandwidth: Bandwidth,
    /// Time from the start of sending to the arrival of the first byte.
    pub latency: Span,
}

impl Topology {
    /// Returns the topology with `memories` as endpoints after the NPUs.
    pub fn with_memories(self, memories: Vec<MemorySiteAndLink>) -> Self {
        Self { memories, ..self }
    }

    /// Returns the memory at an endpoint, or `None` if the endpoint is an NPU.
    #[inline]
    pub fn memory_at(&self, endpoint: EndpointId) -> Option<&MemorySiteAndLink> {
        let index = endpoint.0.checked_sub(self.npus)?;
        self.memories.get(index as usize)
    }

    /// Returns the rate and latency of the link that connects memory `number`.
    pub fn memory_link_rate_and_latency(&self, number: u32) -> (Bandwidth, Span) {
        let memory = &self.memories[number as usize];
        (memory.bandwidth, memory.latency)
    }

    /// Returns true if an endpoint is a memory at an NPU, with its own link.
    pub fn is_memory_with_own_link(&self, endpoint: EndpointId) -> bool {
        let site = self.memory_at(endpoint).map(|memory| memory.site);
        matches!(site, Some(MemoryAtNpuOrFabric::Npu(_)))
    }

    /// Returns the NPUs of two endpoints, one of which must be an NPU. A memory beyond a fabric counts as located at
    /// the NPU of the other endpoint.
    pub fn npus_of_endpoints(&self, (from, to): (EndpointId, EndpointId)) -> (Npu, Npu) {
        let seat = |one: EndpointId, other: EndpointId| match self.memory_at(one).map(|m| m.site) {
            None => Npu(one.0),
            Some(MemoryAtNpuOrFabric::Npu(npu)) => npu,
            Some(MemoryAtNpuOrFabric::Fabric(_)) => Npu(other.0),
        };
        (seat(from, to), seat(to, from))
    }

    /// At least one of the two endpoints must be an NPU. Returns the path of a message between the endpoints' NPUs,
    /// plus the memory's link. Returns `None` if both endpoints are the same NPU.
    pub fn path_between(&self, ends: (EndpointId, EndpointId)) -> Option<PathLatencyAndRates> {
        let (a, b) = self.npus_of_endpoints(ends);
        let memories = [ends.0, ends.1].into_iter();
        let memories = memories.filter_map(|endpoint| self.memory_at(endpoint));
        memories.fold(self.path_between_npus(a, b), |way, memory| {
            Some(memory.extend_path(way, self.switching))
        })
    }

    /// Returns the links of a graph of this topology, followed by the memories' links in the order of the memories. A
    /// memory beyond a fabric has only a placeholder in the list, because its bytes pass through the NPU's port.
    pub fn list_links_with_memory_links(&self, graph: &LinkGraph) -> Vec<DirectedLink> {
        let memories = self.memories.iter().map(|memory| {
            let seat = match memory.site {
                MemoryAtNpuOrFabric::Npu(npu) => npu.0,
                MemoryAtNpuOrFabric::Fabric(_) => 0,
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
        graph.all_links().iter().copied().chain(memories).collect()
    }

    /// Returns the links between two endpoints, numbered as in [`Self::list_links_with_memory_links`]. The route
    /// consists of the links that a message between the endpoints' NPUs crosses, plus a memory's own link, which loads
    /// and stores share. Bytes to or from a memory beyond a fabric use, in equal parts, all the NPU's links into that
    /// dimension. Returns `None` if failed links of `graph` leave no route.
    pub fn route_between(
        &self,
        graph: &LinkGraph,
        ends: (EndpointId, EndpointId),
    ) -> Option<RouteLinksAndFractions> {
        let (a, b) = self.npus_of_endpoints(ends);
        let mut route = graph.find_route_around_failures(a, b)?;
        let is_load = self.memory_at(ends.0).is_some();
        let memory = if is_load { ends.0 } else { ends.1 };
        let Some(at) = self.memory_at(memory) else {
            return Some(route);
        };
        route.latency += at.latency;
        let own: Vec<u32> = match at.site {
            MemoryAtNpuOrFabric::Npu(_) => {
                vec![graph.all_links().len() as u32 + memory.0 - self.npus]
            }
            MemoryAtNpuOrFabric::Fabric(dimension) => {
                let links = (0..).zip(graph.all_links());
                let joins = |&(number, link): &(u32, &DirectedLink)| {
                    let npu = if is_load { link.to } else { link.from };
                    (npu, link.dimension as usize) == (a.0, dimension)
                        && graph.is_link_in_service(number)
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

impl MemorySiteAndLink {
    /// Appends the memory's link to the path `way`.
    fn extend_path(
        &self,
        way: Option<PathLatencyAndRates>,
        switching: SwitchingMode,
    ) -> PathLatencyAndRates {
        let Some(way) = way else {
            return PathLatencyAndRates {
                latency: self.latency,
                bandwidth: self.bandwidth,
                switching,
                others: SummedSecondsPerByte::ZERO,
            };
        };
        let (slowest, other) = if self.bandwidth < way.bandwidth {
            (self.bandwidth, way.bandwidth)
        } else {
            (way.bandwidth, self.bandwidth)
        };
        PathLatencyAndRates {
            latency: self.latency + way.latency,
            bandwidth: slowest,
            others: match switching {
                SwitchingMode::IDEAL => SummedSecondsPerByte::ZERO,
                _ => way.others.add_links(1, other),
            },
            ..way
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DimensionShape, TopologyDimension};
    use super::*;
    use chakram_base::units::UnroundedBufferShare;

    /// Returns a topology of four NPUs in a line, with links of 100 GB/s and 50 ns. NPU 3 has a memory of 40 GB/s and
    /// 300 ns. The outer dimension is a switch of two, and a memory of 200 GB/s and 500 ns is beyond its ports.
    fn build_line_topology(switching: SwitchingMode) -> Topology {
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
        let memory = |site, gb, ns| MemorySiteAndLink {
            site,
            bandwidth: rate(gb),
            latency: Span::from_ns(ns),
        };
        let plain = Topology::new(dimensions).unwrap();
        plain.with_switching(switching).with_memories(vec![
            memory(MemoryAtNpuOrFabric::Npu(Npu(3)), 40.0, 300),
            memory(MemoryAtNpuOrFabric::Fabric(1), 200.0, 500),
        ])
    }

    #[test]
    fn a_memory_is_one_link_more() {
        let time = |switching, ends: (u32, u32)| {
            let ends = (EndpointId(ends.0), EndpointId(ends.1));
            let path = build_line_topology(switching).path_between(ends).unwrap();
            path.time_message(UnroundedBufferShare::from_bytes(4000)).0
        };
        // Endpoints 0 to 7 are NPUs, and endpoints 8 and 9 are memories. From memory 8 to NPU 1, the latency is 300 + 2
        // x 50 ns, and 4,000 B take 100 ns at 40 GB/s, in either direction.
        assert_eq!(time(SwitchingMode::IDEAL, (8, 1)), 500_000);
        assert_eq!(time(SwitchingMode::IDEAL, (1, 8)), 500_000);
        // Store-and-forward adds 40 ns on each of the two links.
        assert_eq!(time(SwitchingMode::StoreAndForward, (8, 1)), 580_000);
        // Data from memory 8 to NPU 3, where the memory is located, crosses only the memory's own link.
        assert_eq!(time(SwitchingMode::StoreAndForward, (8, 3)), 400_000);
        // From the memory beyond the switch, data goes through each NPU's own port: 500 ns of latency, and 20 ns for
        // 4,000 B.
        for npu in [0, 7] {
            assert_eq!(time(SwitchingMode::IDEAL, (npu, 9)), 520_000);
        }
        // Memories do not affect the paths between NPUs.
        let t = build_line_topology(SwitchingMode::IDEAL);
        let ends = (EndpointId(0), EndpointId(2));
        assert_eq!(t.path_between(ends), t.path_between_npus(Npu(0), Npu(2)));
        assert_eq!(t.path_between((EndpointId(5), EndpointId(5))), None);
    }
}
