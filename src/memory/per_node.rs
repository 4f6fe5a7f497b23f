//! A channel for each node of consecutive NPUs: accesses of one node queue, those of different nodes do not contend.

use super::pool::PoolChannel;
use crate::ids::Npu;
use crate::units::{Span, Time};

/// The channels of the nodes.
#[derive(Debug)]
pub(super) struct NodeChannels {
    size: u32,
    of: Vec<PoolChannel>,
}

impl NodeChannels {
    /// Creates channels for `npus` NPUs, `size` of which share one.
    pub fn new(npus: u32, size: u32) -> Self {
        let nodes = npus.div_ceil(size) as usize;
        Self {
            size,
            of: std::iter::repeat_with(PoolChannel::default)
                .take(nodes)
                .collect(),
        }
    }

    /// The end of an access that keeps the channel of `npu`'s node for `span`.
    pub fn access(&mut self, now: Time, npu: Npu, span: Span) -> Time {
        self.of[(npu.0 / self.size) as usize].access(now, span)
    }
}
