//! Loads and stores at memory ports that lie at cores of the network, such as the edge DRAM of a wafer.

use crate::ids::Npu;
use crate::topology::{NetworkPath, SwitchingMode, Topology};
use crate::units::{Bandwidth, BufferShare, InverseRate, Span};

/// A load or store of a core at a port.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EdgeAccess {
    /// The core that loads or stores.
    pub npu: Npu,
    /// Number of the port.
    pub port: u32,
    /// The core at which the port lies.
    pub at: Npu,
    /// True for a store.
    pub store: bool,
    /// Bytes moved.
    pub amount: BufferShare,
    /// Rate of the memory behind the port.
    pub bandwidth: Bandwidth,
    /// Time of the memory's first byte.
    pub latency: Span,
}

impl EdgeAccess {
    /// Ends of the way of the bytes, sender first; equal if the port lies at the core itself.
    pub fn ends(&self) -> (Npu, Npu) {
        if self.store {
            (self.npu, self.at)
        } else {
            (self.at, self.npu)
        }
    }

    /// Uncontended time: that of a message over the links of the way and the port as one link more. With cut-through it
    /// is the latencies of the memory and of all hops, and bytes ÷ the least of all bandwidths; with store-and-forward
    /// the memory's latency + bytes ÷ bandwidth, and on top the same of each hop.
    pub fn span(&self, topology: &Topology) -> Span {
        let port = NetworkPath {
            latency: self.latency,
            bandwidth: self.bandwidth,
            switching: topology.switching(),
            others: InverseRate::ZERO,
        };
        let (a, b) = self.ends();
        let whole = match topology.path(a, b) {
            None => port,
            Some(way) => {
                let (slowest, other) = if port.bandwidth < way.bandwidth {
                    (port.bandwidth, way.bandwidth)
                } else {
                    (way.bandwidth, port.bandwidth)
                };
                let others = if topology.switching() == SwitchingMode::IDEAL {
                    InverseRate::ZERO
                } else {
                    way.others.plus(1, other)
                };
                NetworkPath {
                    latency: port.latency + way.latency,
                    bandwidth: slowest,
                    others,
                    ..way
                }
            }
        };
        whole.time(self.amount)
    }
}
