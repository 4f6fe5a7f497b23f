//! One channel for all NPUs, first come, first served.
//!
//! As ASTRA-sim's MEMORY_POOL: four equal accesses at once end after 1, 2, 3 and 4 times their cost.

use crate::units::{Span, Time};

/// Time from which the channel is free.
#[derive(Debug, Default)]
pub(super) struct PoolChannel {
    free: Time,
}

impl PoolChannel {
    /// The end of an access that keeps the channel for `span`.
    pub fn access(&mut self, now: Time, span: Span) -> Time {
        self.free = now.max(self.free) + span;
        self.free
    }
}
