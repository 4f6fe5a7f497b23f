//! Counts the bytes that messages and memory accesses send over each link, under any network model.

use super::ReroutedUnsentAndResentBytes;
use crate::topology::Topology;
use crate::topology::link_graph::{DirectedLink, LinkGraph, LinkMessageFraction};
use chakram_base::ids::EndpointId;
use chakram_base::units::{Bandwidth, Span, UnroundedBufferShare};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes that have passed each link of a machine.
#[derive(Clone, Debug)]
pub struct LinkTrafficBytes<'a> {
    topology: &'a Topology,
    graph: Arc<LinkGraph>,
    /// Links of the graph, followed by the links of memories.
    links: Vec<DirectedLink>,
    bytes: Vec<f64>,
    ways: BTreeMap<(EndpointId, EndpointId), Vec<LinkMessageFraction>>,
}

/// Identifies the dimension or the memory of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DimensionOrMemoryOfLink {
    /// A link of the dimension with this index.
    Dimension(u32),
    /// The link between an NPU and its memory, which loads and stores share.
    Memory(EndpointId),
}

/// Bytes that have passed a link.
#[derive(Clone, Debug, PartialEq)]
pub struct BytesOverOneLink {
    /// Dimension or memory of the link.
    pub place: DimensionOrMemoryOfLink,
    /// True if the link starts at an NPU, false if it starts at a switch.
    pub from_npu: bool,
    /// Name of the vertex at the link's start.
    pub from: String,
    /// Name of the vertex at the link's end.
    pub to: String,
    /// Bytes that have passed the link, rounded to the nearest byte.
    pub bytes: u64,
    /// Serialization time of these bytes at the link's rate.
    pub busy: Span,
    /// The link's rate.
    pub bandwidth: Bandwidth,
}

impl<'a> LinkTrafficBytes<'a> {
    /// Creates the counters, all zero. Returns `None` if the topology has more NPUs than a link graph supports.
    pub fn new(topology: &'a Topology) -> Option<Self> {
        let graph = topology.explicit_or_built_link_graph()?;
        let links = topology.list_links_with_memory_links(&graph);
        Some(Self {
            bytes: vec![0.0; links.len()],
            topology,
            graph,
            links,
            ways: BTreeMap::new(),
        })
    }

    /// Counts bytes between two endpoints on all links of their route. At most one of the endpoints may be a memory.
    pub fn count_transfer(&mut self, ends: (EndpointId, EndpointId), amount: UnroundedBufferShare) {
        let UnroundedBufferShare { bytes, parts, .. } = amount;
        self.add_bytes_along_route(ends, bytes as f64 / parts as f64);
    }

    fn add_bytes_along_route(&mut self, ends: (EndpointId, EndpointId), bytes: f64) {
        let (topology, graph) = (self.topology, &self.graph);
        let way = self.ways.entry(ends);
        let way = way.or_insert_with(|| {
            let route = topology.route_between(graph, ends);
            route.map_or_else(Vec::new, |route| route.links)
        });
        for &(link, part) in way.iter() {
            self.bytes[link as usize] += part * bytes;
        }
    }

    /// Moves the bytes `moved` from their former routes to routes over `graph`, which leaves out the failed links.
    pub fn reroute_bytes_around_failed_links(
        &mut self,
        graph: Arc<LinkGraph>,
        moved: &[ReroutedUnsentAndResentBytes],
    ) {
        for bytes in moved {
            self.add_bytes_along_route(bytes.ends, -bytes.unsent);
        }
        self.graph = graph;
        self.ways.clear();
        for bytes in moved {
            self.add_bytes_along_route(bytes.ends, bytes.unsent + bytes.again);
        }
    }

    /// Returns the load of every link: first the links of each dimension in order, then the links of memories at NPUs.
    pub fn collect_link_loads(&self) -> Vec<BytesOverOneLink> {
        let (dimensions, npus) = (self.graph.all_links().len(), self.topology.npu_count());
        let links = self.links.iter().zip(&self.bytes).enumerate();
        let loads = links.filter_map(|(number, (link, &bytes))| {
            let memory = number.checked_sub(dimensions);
            let memory = memory.map(|memory| EndpointId(npus + memory as u32));
            if memory.is_some_and(|memory| !self.topology.is_memory_with_own_link(memory)) {
                return None;
            }
            let from = self.graph.vertex_name(link.from);
            Some(BytesOverOneLink {
                place: memory.map_or(
                    DimensionOrMemoryOfLink::Dimension(link.dimension),
                    DimensionOrMemoryOfLink::Memory,
                ),
                from_npu: memory.is_none() && self.graph.is_npu(link.from),
                to: self.graph.vertex_name(link.to),
                from: memory.map_or(from, |_| "memory".to_owned()),
                bytes: bytes.round() as u64,
                busy: Span::from_seconds_saturating(bytes / link.bandwidth.bytes_per_second()),
                bandwidth: link.bandwidth,
            })
        });
        loads.collect()
    }
}
