//! Times of loads and stores, and contention among them.
//!
//! [`LocalMemory`] is an NPU's own memory. Remote memory is outside the NPUs, which reach it in one of two ways.
//! *Channels* serve one access at a time, first come, first served ([`MemoryAttachment::PerNpu`],
//! [`MemoryAttachment::Pool`], [`MemoryAttachment::PerNode`]). *Pools that are networks* consist of links that
//! concurrent accesses share. They have the designs in Fig. 5 of Won et al., "ASTRA-sim2.0" (ISPASS 2023); each has its
//! own file, and defines its links and an access's path over them (`memory/pool_layout.rs`). All designs share
//! bandwidth in the same way (`memory/fair_sharing.rs`).
//!
//! Memory may also be attached to the network; the network then has [endpoints](MemorySiteAndLink) in addition to the
//! NPUs. Accesses travel over the network's links to *ports* at NPUs ([`NpusWithMemoryPorts`]), for example at the
//! edges of dies. The network determines the time of the whole access. For channels and pools, the last stage before
//! the NPU may be the NPU's port into a dimension ([`MemoryNetworkAttachment`]). If the network model has contention,
//! loads and stores compete with messages at this port, chunk by chunk (`memory/chunked_access.rs`). With any other
//! network model, the port is one more stage of the access.

use crate::topology::{MemoryAtNpuOrFabric, MemorySiteAndLink, Topology};
use chakram_base::ids::Npu;
use chakram_base::shared_memory::RemoteMemoryCapacityAndSharers;
use chakram_base::units::{Bandwidth, Bytes, Span, Time};
use serde::Serialize;
use std::fmt;

mod channel_stream;
mod channels;
mod chunked_access;
mod fair_sharing;
mod hierarchical;
mod local;
mod memory_ports;
mod mesh;
mod network_attachment;
mod pool_layout;
mod remote;
mod ring;
mod switch;

pub use chunked_access::ChunkArrivalAtNpuPort;
pub use hierarchical::HierarchicalPool;
pub use memory_ports::NpusWithMemoryPorts;
pub use mesh::MeshPool;
pub use network_attachment::{MOST_CHUNKS, MemoryNetworkAttachment};
pub use remote::{RemoteMemorySimulation, UserRemoteMemoryModel};
pub use ring::RingPool;
pub use switch::MultiLevelSwitchPool;

/// A load or store of remote memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteMemoryAccess {
    /// NPU that issues the access.
    pub npu: Npu,
    /// Bytes that the memory reads or writes for the access.
    pub bytes: u64,
    /// True for a store, false for a load.
    pub store: bool,
    /// True if all NPUs issue the same access and the switches combine them. The switches gather the bytes of loads, so
    /// that each NPU ends with all NPUs' bytes; the switches reduce stores.
    pub in_switch: bool,
    /// Number by which the caller identifies the access.
    pub token: u64,
}

/// The end of an access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryAccessEnd {
    /// Number by which the caller identifies the access.
    pub token: u64,
    /// Arrival time of the access's last byte, at or after the current time.
    pub at: Time,
}

/// A level of identical switches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MemoryPoolSwitchLevel {
    /// Number of NPUs, or of switches one level below, that one switch connects; at least 1.
    pub fan_in: u32,
    /// Bandwidth of a switch's link to the next level, in bytes per second.
    #[serde(rename = "bandwidth_bytes_per_s")]
    pub bandwidth: Bandwidth,
}

/// The memory of one NPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalMemory {
    /// Bandwidth of reads and writes together, in bytes per second.
    pub bandwidth: Bandwidth,
    /// Time until the first byte arrives, or `None` if unknown. Loads and stores are possible only if this latency is
    /// known.
    pub latency: Option<Span>,
    /// Capacity, or `None` if unknown. Loads or stores of more bytes than the capacity are an error.
    pub capacity: Option<Bytes>,
}

/// How NPUs are attached to remote memory.
#[derive(Clone, Debug, PartialEq)]
pub enum MemoryAttachment {
    /// Every NPU has its own channel.
    PerNpu,
    /// All NPUs share one channel, first come, first served.
    Pool,
    /// Each group of this many consecutive NPUs (at least 1) shares one channel.
    PerNode(u32),
    /// Memories with their own switches, which connect to the switches of the nodes.
    Hierarchical(HierarchicalPool),
    /// Memories behind levels of switches.
    Switch(MultiLevelSwitchPool),
    /// Memories and NPUs on a ring.
    Ring(RingPool),
    /// Memories and NPUs on a mesh of two dimensions.
    Mesh(MeshPool),
    /// Ports at NPUs, reached over the links of the network.
    Ports(NpusWithMemoryPorts),
}

impl MemoryAttachment {
    /// The attachments that machine files can name.
    pub const NAMES: [&str; 7] = [
        "per_npu",
        "pool",
        "hierarchical",
        "switch",
        "ring",
        "mesh",
        "ports",
    ];

    /// Returns the attachment's name in machine files. One kind of pool, which only importers create, has no name in
    /// machine files.
    pub fn name_in_file(&self) -> &'static str {
        match self {
            Self::PerNpu => "per_npu",
            Self::Pool => "pool",
            Self::PerNode(_) => "per_node",
            Self::Hierarchical(_) => "hierarchical",
            Self::Switch(_) => "switch",
            Self::Ring(_) => "ring",
            Self::Mesh(_) => "mesh",
            Self::Ports(_) => "ports",
        }
    }

    /// Returns true if a machine with `npus` NPUs can have this attachment.
    pub fn fits_npus(&self, npus: u32) -> bool {
        match self {
            Self::PerNpu | Self::Pool => true,
            Self::PerNode(size) => *size > 0,
            Self::Hierarchical(design) => design.fits_npus(npus),
            Self::Switch(design) => design.fits_npus(npus),
            Self::Ring(design) => design.fits_npus(npus),
            Self::Mesh(design) => design.fits_npus(npus),
            Self::Ports(ports) => ports.port_count() > 0,
        }
    }

    /// Returns the number of NPUs, out of `npus` on the machine, that share a channel, or `None` if the attachment is
    /// not a channel.
    pub fn npus_per_channel(&self, npus: u32) -> Option<u32> {
        match self {
            Self::PerNpu => Some(1),
            Self::Pool => Some(npus),
            Self::PerNode(size) => Some(*size),
            _ => None,
        }
    }

    /// Returns true if a channel serves accesses one at a time.
    pub fn serves_accesses_one_at_a_time(&self) -> bool {
        self.npus_per_channel(1).is_some()
    }

    /// Returns true if each NPU reaches the memory through its own port, which may also serve a dimension of the
    /// network.
    pub fn has_own_port_per_npu(&self) -> bool {
        !matches!(self, Self::Ring(_) | Self::Mesh(_) | Self::Ports(_))
    }

    /// Returns the bandwidth of an NPU's port in a pool that is a network, or `None` for other attachments.
    fn port_bandwidth(&self) -> Option<Bandwidth> {
        Some(match self.pool_design()? {
            NetworkPoolDesign::Hierarchical(design) => design.in_node_bandwidth,
            NetworkPoolDesign::Switch(design) => design.npu_bandwidth,
            NetworkPoolDesign::Ring(design) => design.npu_bandwidth,
            NetworkPoolDesign::Mesh(design) => design.npu_bandwidth,
        })
    }

    /// Returns the design of a pool that is a network, or `None` for other attachments.
    pub fn pool_design(&self) -> Option<NetworkPoolDesign<'_>> {
        Some(match self {
            Self::Hierarchical(design) => NetworkPoolDesign::Hierarchical(design),
            Self::Switch(design) => NetworkPoolDesign::Switch(design),
            Self::Ring(design) => NetworkPoolDesign::Ring(design),
            Self::Mesh(design) => NetworkPoolDesign::Mesh(design),
            Self::PerNpu | Self::Pool | Self::PerNode(_) | Self::Ports(_) => return None,
        })
    }

    /// Returns true if bytes pass through switches, which can gather loads and reduce stores.
    pub fn has_switches(&self) -> bool {
        matches!(self, Self::Hierarchical(_) | Self::Switch(_))
    }
}

/// The design of a pool that is a network: concurrent accesses share its links.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
pub enum NetworkPoolDesign<'a> {
    /// Memories with their own switches, which connect to the switches of the nodes.
    Hierarchical(&'a HierarchicalPool),
    /// Memories behind levels of switches.
    Switch(&'a MultiLevelSwitchPool),
    /// Memories and NPUs on a ring.
    Ring(&'a RingPool),
    /// Memories and NPUs on a mesh of two dimensions.
    Mesh(&'a MeshPool),
}

impl NetworkPoolDesign<'_> {
    /// Returns the links of the pool for `npus` NPUs. Each memory has bandwidth `memory`.
    fn build_layout(self, memory: Bandwidth, npus: u32) -> pool_layout::NpuPathsOverPoolServers {
        match self {
            Self::Hierarchical(design) => design.build_layout(memory, npus),
            Self::Switch(design) => design.build_layout(memory, npus),
            Self::Ring(design) => design.build_layout(memory, npus),
            Self::Mesh(design) => design.build_layout(memory, npus),
        }
    }
}

/// Memory outside the NPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct RemoteMemory {
    /// How NPUs are attached to this memory.
    pub attachment: MemoryAttachment,
    /// Bandwidth of one channel, or of one memory in a pool that is a network, in bytes per second.
    pub bandwidth: Bandwidth,
    /// Time from the start of an access until its first byte arrives.
    pub latency: Span,
    /// Capacity, or `None` if unknown. Loads or stores of more bytes than the capacity are an error.
    pub capacity: Option<Bytes>,
    /// True if a channel's transfer time (bytes / bandwidth) is truncated to whole nanoseconds, as in ASTRA-sim.
    pub whole_ns: bool,
    /// Network ports that the memory's bytes pass through, or `None`. The bandwidth of these ports must equal the
    /// bandwidth of the NPUs' ports in the pool's design.
    pub through: Option<MemoryNetworkAttachment>,
}

/// Remote memory that traces address by name.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedRemoteMemory {
    /// Name in machine files, and in the attribute `remote_memory` of loads and stores.
    pub name: String,
    /// Attachment, rates and capacity of the memory.
    pub memory: RemoteMemory,
}

impl RemoteMemory {
    /// Returns the memory's capacity, and the number of NPUs that share it on a machine of `npus` NPUs. If each NPU has
    /// its own channel, it has the whole capacity for itself. Returns `None` for ports and for unknown capacity.
    pub fn capacity_and_sharing_npu_count(
        &self,
        npus: u32,
    ) -> Option<RemoteMemoryCapacityAndSharers> {
        let is_port = matches!(self.attachment, MemoryAttachment::Ports(_));
        let capacity = self.capacity.filter(|_| !is_port)?;
        Some(RemoteMemoryCapacityAndSharers {
            capacity,
            npus: self
                .attachment
                .npus_per_channel(npus)
                .unwrap_or(npus)
                .max(1),
        })
    }

    /// Returns the NPUs at which the memory has ports (empty for other attachments).
    pub fn list_npus_with_ports(&self) -> &[Npu] {
        match &self.attachment {
            MemoryAttachment::Ports(ports) => ports.npu_of_each_port(),
            _ => &[],
        }
    }

    /// Returns the memory's endpoints in the network: one for each port, or a single endpoint beyond the switch of a
    /// dimension. The list is empty if the memory is not attached to the network.
    pub fn list_memory_endpoints_in_network(&self) -> Vec<MemorySiteAndLink> {
        let port = |npu| MemorySiteAndLink {
            site: MemoryAtNpuOrFabric::Npu(npu),
            bandwidth: self.bandwidth,
            latency: self.latency,
        };
        match (&self.attachment, &self.through) {
            (MemoryAttachment::Ports(ports), _) => {
                ports.npu_of_each_port().iter().copied().map(port).collect()
            }
            (_, Some(through)) => vec![through.memory_endpoint()],
            (_, None) => Vec::new(),
        }
    }

    /// Returns true if a machine with this network can have this memory.
    pub fn fits_topology(&self, topology: &Topology) -> bool {
        let through = |through: &MemoryNetworkAttachment| {
            let port = self.attachment.port_bandwidth();
            // The network's ports serve as the NPUs' ports of the pool, so both bandwidths must be equal.
            let same = port.is_none_or(|port| port == through.port_bandwidth());
            self.attachment.has_own_port_per_npu()
                && same
                && through.matches_dimension_rates_of_topology(topology)
        };
        self.attachment.fits_npus(topology.npu_count()) && self.through.as_ref().is_none_or(through)
    }

    /// Returns the number of chunks in an access of `bytes`, on a machine with `npus` NPUs. Returns `None` if accesses
    /// do not share ports with messages.
    pub fn chunk_count(&self, bytes: u64, npus: u32) -> Option<u64> {
        let through = self.through.as_ref()?;
        let chunk_bytes = match &self.attachment {
            MemoryAttachment::Hierarchical(design) => design.bytes_per_access_in_chunk_round(npus),
            MemoryAttachment::Switch(design) => design.bytes_per_access_and_round(npus),
            // For channels, the network attachment states the chunk size. Ring and mesh have no network ports, so they
            // never reach this arm.
            _ => through.chunk_size().0 as f64,
        };
        Some(chunked_access::chunk_count(bytes as f64, chunk_bytes))
    }
}

/// Summary for reports: `4 groups of 100 GB/s behind 16 switches, 256 GB/s for each NPU`.
impl fmt::Display for RemoteMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gb = |rate: Bandwidth| rate.bytes_per_second() / 1e9;
        let one = gb(self.bandwidth);
        match &self.attachment {
            MemoryAttachment::PerNpu => write!(f, "{one} GB/s for each NPU"),
            MemoryAttachment::Pool => write!(f, "{one} GB/s for all NPUs"),
            MemoryAttachment::PerNode(size) => write!(f, "{one} GB/s for each {size} NPUs"),
            MemoryAttachment::Hierarchical(design) => {
                let (groups, switches) = (design.groups, design.out_switches);
                let port = gb(design.in_node_bandwidth);
                write!(
                    f,
                    "{groups} groups of {one} GB/s behind {switches} switches, "
                )?;
                write!(f, "{port} GB/s for each NPU")
            }
            MemoryAttachment::Switch(design) => {
                let (groups, port) = (design.groups, gb(design.npu_bandwidth));
                let levels = design.levels.len();
                write!(
                    f,
                    "{groups} of {one} GB/s behind {levels} levels of switches, "
                )?;
                write!(f, "{port} GB/s for each NPU")
            }
            MemoryAttachment::Ring(design) => {
                let (groups, link) = (design.groups, gb(design.link_bandwidth));
                write!(f, "{groups} of {one} GB/s on a ring of {link} GB/s")
            }
            MemoryAttachment::Mesh(design) => {
                let (columns, rows) = (design.columns, design.rows);
                let link = gb(design.link_bandwidth);
                write!(
                    f,
                    "{columns} x {rows} of {one} GB/s on a mesh of {link} GB/s"
                )
            }
            MemoryAttachment::Ports(ports) => {
                write!(f, "{} ports of {one} GB/s at NPUs", ports.port_count())
            }
        }?;
        match &self.through {
            Some(through) => write!(f, " through {}", through.dimension_name()),
            None => Ok(()),
        }
    }
}
