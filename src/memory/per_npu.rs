//! A channel for each NPU: accesses of one NPU queue, those of different NPUs do not contend.

use crate::ids::Npu;
use crate::units::{Span, Time};

/// Time from which each NPU's channel is free.
#[derive(Debug)]
pub(super) struct NpuChannels {
    free: Vec<Time>,
}

impl NpuChannels {
    pub fn new(npus: u32) -> Self {
        Self {
            free: vec![Time::ZERO; npus as usize],
        }
    }

    /// The end of an access that keeps the channel of `npu` for `span`.
    pub fn access(&mut self, now: Time, npu: Npu, span: Span) -> Time {
        let free = &mut self.free[npu.index()];
        *free = now.max(*free) + span;
        *free
    }
}
