//! The congestion-aware network with cut-through switching, in any number of dimensions. Each link carries one message
//! at a time. This network replaces the store-and-forward network if
//! [`Quirk::StoreAndForward`](super::Quirk::StoreAndForward) is corrected.
//!
//! Messages cross the dimensions in order, innermost first. On a ring, a message takes the shorter direction through
//! each NPU in between, or the upward direction if both are equally short. Two fully connected NPUs have a link in each
//! direction. In a dimension with a switch, each NPU has one link to the switch and one link from it. Latencies add up,
//! and the slowest link determines the rate.

use super::congestion_unaware::uncontended_rate;
use super::cut_through::{
    CutThroughNetwork, LinkOrPortHop, LinkOrPortRouting, MessageNpuAndRoutingState,
};
use super::network_file;
use super::quirks::QuirkSet;
use chakram_hardware::topology::DimensionShape;

/// The cut-through network whose servers are links.
pub type LinkCutThroughNetwork = CutThroughNetwork<LinkRouting>;

/// One dimension of the cut-through network, with derived values.
#[derive(Clone, Copy, Debug)]
struct CutThroughLinkDimension {
    shape: DimensionShape,
    size: u32,
    /// Difference between the NPU numbers of neighbours in this dimension: the product of the inner dimensions' sizes.
    stride: u32,
    latency: f64,
    bytes_per_ns: f64,
    /// Index of the NPU's first link along this dimension.
    first: u32,
}

impl CutThroughLinkDimension {
    fn coordinate_of(&self, npu: u32) -> u32 {
        npu / self.stride % self.size
    }

    /// Returns the number of link indices reserved for an NPU: two on a ring or a switch, otherwise one per NPU in the
    /// dimension.
    fn links_per_npu(&self) -> u32 {
        match self.shape {
            DimensionShape::Ring | DimensionShape::Mesh | DimensionShape::Switch => 2,
            DimensionShape::FullyConnected => self.size,
        }
    }

    /// Returns the next coordinate on the ring on the way from `x` to `y`, and true if the direction is upward.
    fn next_ring_coordinate(&self, x: u32, y: u32) -> (u32, bool) {
        let n = self.size;
        let up = if y >= x { y - x } else { n - x + y };
        if up <= n - up {
            (if x + 1 == n { 0 } else { x + 1 }, true)
        } else {
            (if x == 0 { n - 1 } else { x - 1 }, false)
        }
    }
}

/// Routes messages over links. In state 0, the message is at an NPU. In state d + 1, the message is at the switch of
/// dimension d, and its coordinate in that dimension already equals the receiver's.
#[derive(Debug)]
pub struct LinkRouting {
    levels: Vec<CutThroughLinkDimension>,
    servers: u32,
}

impl LinkCutThroughNetwork {
    /// Creates the network that `file` describes.
    pub fn new(file: &network_file::AstraNetworkFile, quirks: QuirkSet) -> Self {
        let (mut stride, mut first) = (1, 0);
        let levels = file.dimensions.iter().map(|dimension| {
            let level = CutThroughLinkDimension {
                shape: dimension.shape,
                size: dimension.npus,
                stride,
                latency: dimension.latency,
                bytes_per_ns: uncontended_rate(dimension, quirks),
                first,
            };
            stride *= dimension.npus;
            first += level.links_per_npu();
            level
        });
        let levels = levels.collect();
        let way = LinkRouting {
            levels,
            servers: first,
        };
        Self::from_routing(way, file.npu_count(), quirks)
    }
}

impl LinkOrPortRouting for LinkRouting {
    const NAME: &'static str = "links";

    fn next_hop(&self, at: MessageNpuAndRoutingState, to: u32) -> Option<LinkOrPortHop> {
        let leg = |level: &CutThroughLinkDimension, link, npu, state| LinkOrPortHop {
            server: (at.npu, level.first + link),
            occupied_rate: level.bytes_per_ns,
            rate: level.bytes_per_ns,
            latency: level.latency,
            to: MessageNpuAndRoutingState { npu, state },
        };
        if let Some(dimension) = at.state.checked_sub(1) {
            return Some(leg(&self.levels[dimension as usize], 1, at.npu, 0));
        }
        let mut levels = self.levels.iter().zip(1..);
        let (level, number) =
            levels.find(|(l, _)| l.coordinate_of(at.npu) != l.coordinate_of(to))?;
        let (x, y) = (level.coordinate_of(at.npu), level.coordinate_of(to));
        let moved = |next: u32| at.npu - x * level.stride + next * level.stride;
        Some(match level.shape {
            DimensionShape::Switch => leg(level, 0, moved(y), number),
            DimensionShape::FullyConnected => leg(level, y, moved(y), 0),
            DimensionShape::Ring => {
                let (next, up) = level.next_ring_coordinate(x, y);
                leg(level, u32::from(!up), moved(next), 0)
            }
            DimensionShape::Mesh => unreachable!("network files have none"),
        })
    }

    fn servers_per_npu(&self) -> u32 {
        self.servers
    }
}
