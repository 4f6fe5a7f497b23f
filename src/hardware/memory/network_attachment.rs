//! The network stage of a remote access: the NPU's own port, between a switch and the NPU.

use crate::topology::{MemoryAtNpuOrFabric, MemorySiteAndLink, Topology};
use chakram_base::units::{Bandwidth, Bytes, Span};

/// Maximum number of chunks per access. The limit bounds the cost of a replay, because each chunk takes one or two
/// events.
pub const MOST_CHUNKS: u64 = 1 << 20;

/// Attachment to the network: the dimension whose ports carry remote loads and stores.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryNetworkAttachment {
    dimension: usize,
    name: String,
    bandwidth: Bandwidth,
    latency: Span,
    chunk: Bytes,
}

impl MemoryNetworkAttachment {
    /// Creates an attachment to the dimension with index `dimension`. Returns `None` if it does not exist, or if NPUs
    /// have no port of their own into it. `chunk` is the number of bytes that a channel sends at once, at least 1;
    /// pools define their own chunks.
    pub fn new(topology: &Topology, dimension: usize, chunk: Bytes) -> Option<Self> {
        let of = topology.dimensions().get(dimension)?;
        (of.shape.has_ports() && chunk.0 > 0).then(|| Self {
            dimension,
            name: of.name.clone(),
            bandwidth: of.bandwidth,
            latency: of.latency,
            chunk,
        })
    }

    /// Returns true if `topology` has the attachment's dimension, with the same bandwidth and latency.
    pub fn matches_dimension_rates_of_topology(&self, topology: &Topology) -> bool {
        let same = Self::new(topology, self.dimension, self.chunk);
        same.as_ref() == Some(self)
    }

    /// Returns the memory's endpoint, which is beyond the switch of the dimension.
    pub fn memory_endpoint(&self) -> MemorySiteAndLink {
        MemorySiteAndLink {
            site: MemoryAtNpuOrFabric::Fabric(self.dimension),
            bandwidth: self.bandwidth,
            latency: self.latency,
        }
    }

    /// Returns the name of the dimension for reports.
    pub fn dimension_name(&self) -> &str {
        &self.name
    }

    /// Returns the bandwidth of a port in each direction.
    pub fn port_bandwidth(&self) -> Bandwidth {
        self.bandwidth
    }

    /// Returns the latency of one link, between the switch and the NPU.
    pub fn link_latency(&self) -> Span {
        self.latency
    }

    /// Returns the number of bytes that a channel sends as one chunk.
    pub fn chunk_size(&self) -> Bytes {
        self.chunk
    }
}
