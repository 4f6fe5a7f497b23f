//! Bytes over each link, whatever the model of the network.

use super::NetworkMessage;
use crate::ids::Npu;
use crate::topology::Topology;
use crate::topology::link_graph::{LinkGraph, LinkPart};
use crate::units::{Bandwidth, BufferShare, Span};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes that have passed each link of a machine.
#[derive(Clone, Debug)]
pub struct LinkTraffic {
    graph: Arc<LinkGraph>,
    bytes: Vec<f64>,
    ways: BTreeMap<(Npu, Npu), Vec<LinkPart>>,
}

/// Bytes and messages that have passed a link.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkLoad {
    /// Index of its dimension.
    pub dimension: u32,
    /// Whether it leads from an NPU, and not from a switch.
    pub from_npu: bool,
    /// Its beginning, for people.
    pub from: String,
    /// Its end.
    pub to: String,
    /// Bytes, to the nearest.
    pub bytes: u64,
    /// Time that they take at the link's rate.
    pub busy: Span,
    /// The link's rate.
    pub bandwidth: Bandwidth,
}

impl LinkTraffic {
    /// Nothing has passed. `None` if the network has more NPUs than a graph of links may have.
    pub fn new(topology: &Topology) -> Option<Self> {
        let graph = topology.link_graph()?;
        Some(Self {
            bytes: vec![0.0; graph.links().len()],
            graph,
            ways: BTreeMap::new(),
        })
    }

    /// Counts a message.
    pub fn count(&mut self, message: &NetworkMessage) {
        let BufferShare { bytes, parts, .. } = message.amount;
        let bytes = bytes as f64 / parts as f64;
        let (a, b) = message.ends;
        let graph = &self.graph;
        let way = self.ways.entry((a, b));
        for &(link, part) in way.or_insert_with(|| graph.route(a, b).links).iter() {
            self.bytes[link as usize] += part * bytes;
        }
    }

    /// Returns the load of every link, in the order of dimensions.
    pub fn loads(&self) -> Vec<LinkLoad> {
        let links = self.graph.links().iter().zip(&self.bytes);
        let loads = links.map(|(link, &bytes)| LinkLoad {
            dimension: link.dimension,
            from_npu: self.graph.is_npu(link.from),
            from: self.graph.vertex(link.from),
            to: self.graph.vertex(link.to),
            bytes: bytes.round() as u64,
            busy: Span::from_seconds(bytes / link.bandwidth.bytes_per_second()),
            bandwidth: link.bandwidth,
        });
        loads.collect()
    }
}
