//! The congestion-unaware network with ports: while a message occupies a port, other messages wait for it. In each
//! dimension, an NPU sends through one port and receives through another; each port passes one message at a time.
//! Replaces the original network if [`Quirk::FreePorts`] is corrected.
//!
//! Latencies and bandwidths are as in [`CongestionUnawareModel`](super::CongestionUnawareModel). With
//! [`Quirk::FirstDimension`], a message goes from the sender's port directly to the receiver's port, in the lowest
//! dimension where the two NPUs differ. If this quirk is corrected, a message crosses each dimension in which sender
//! and receiver differ, through the ports of the NPUs in between. With [`Quirk::FullyConnectedLinks`], a fully
//! connected NPU's port passes n - 1 messages in the time that a single message takes. Each single message still takes
//! the same time.

use super::cut_through::{
    CutThroughNetwork, LinkOrPortHop, LinkOrPortRouting, MessageNpuAndRoutingState,
};
use super::network_file;
use super::quirks::{Quirk, QuirkSet};
use chakram_hardware::topology::DimensionShape;

/// The cut-through network whose servers are ports.
pub type PortCutThroughNetwork = CutThroughNetwork<PortRouting>;

/// One dimension of the network of ports, with derived values.
#[derive(Clone, Copy, Debug)]
struct CutThroughPortDimension {
    shape: DimensionShape,
    size: u32,
    /// Difference between the NPU numbers of neighbours in this dimension: the product of the inner dimensions' sizes.
    stride: u32,
    latency: f64,
    /// Rate of a port and rate of a single message, in bytes per ns.
    port: f64,
    rate: f64,
}

impl CutThroughPortDimension {
    fn coordinate_of(&self, npu: u32) -> u32 {
        npu / self.stride % self.size
    }
}

/// Routes messages through ports. In state 2d, the message has not yet left an NPU along dimension d or a later
/// dimension. In state 2d + 1, the message has not yet entered the next NPU along dimension d.
#[derive(Debug)]
pub struct PortRouting {
    levels: Vec<CutThroughPortDimension>,
    only_first: bool,
}

impl PortCutThroughNetwork {
    /// Creates the network that `file` describes.
    pub fn new(file: &network_file::AstraNetworkFile, quirks: QuirkSet) -> Self {
        let mut stride = 1;
        let levels = file.dimensions.iter().map(|dimension| {
            let rate = quirks.bytes_per_ns(dimension.bandwidth);
            let links = quirks.has_quirk(Quirk::FullyConnectedLinks)
                && dimension.shape == DimensionShape::FullyConnected;
            let level = CutThroughPortDimension {
                shape: dimension.shape,
                size: dimension.npus,
                stride,
                latency: dimension.latency,
                port: if links {
                    rate * f64::from(dimension.npus - 1)
                } else {
                    rate
                },
                rate,
            };
            stride *= dimension.npus;
            level
        });
        let levels: Vec<CutThroughPortDimension> = levels.collect();
        let only_first = quirks.has_quirk(Quirk::FirstDimension);
        Self::from_routing(PortRouting { levels, only_first }, file.npu_count(), quirks)
    }
}

impl LinkOrPortRouting for PortRouting {
    const NAME: &'static str = "ports";

    fn next_hop(&self, at: MessageNpuAndRoutingState, to: u32) -> Option<LinkOrPortHop> {
        let (npu, enters) = (at.npu, at.state % 2 == 1);
        let from = (at.state / 2) as usize;
        let differ =
            |level: &&CutThroughPortDimension| level.coordinate_of(npu) != level.coordinate_of(to);
        let dimension = if enters {
            from
        } else {
            from + self.levels[from..]
                .iter()
                .position(|level| differ(&level))?
        };
        let level = &self.levels[dimension];
        let state = 2 * dimension as u32;
        if enters {
            return Some(LinkOrPortHop {
                server: (npu, state + 1),
                occupied_rate: level.port,
                rate: level.rate,
                latency: 0.0,
                to: MessageNpuAndRoutingState {
                    npu,
                    state: state + 2,
                },
            });
        }
        let (x, y) = (level.coordinate_of(npu), level.coordinate_of(to));
        let next = if self.only_first {
            to
        } else {
            npu - x * level.stride + y * level.stride
        };
        Some(LinkOrPortHop {
            server: (npu, state),
            occupied_rate: level.port,
            rate: level.rate,
            latency: f64::from(level.shape.hop_count(level.size, x, y)) * level.latency,
            to: MessageNpuAndRoutingState {
                npu: next,
                state: state + 1,
            },
        })
    }

    fn servers_per_npu(&self) -> u32 {
        2 * self.levels.len() as u32
    }
}
