//! A memory model: one tape that serves all NPUs and winds before each access.

use chakram::extend::{RemoteMemoryAccess, ReplacementMemoryModel, UserRemoteMemoryModel};
use chakram::units::{Bandwidth, Span, Time};

/// The memory's parameters: rate and winding time.
#[derive(Clone, Copy, Debug)]
pub struct TapeMemoryParameters {
    /// Rate of loads and stores.
    pub rate: Bandwidth,
    /// Duration of winding before each access.
    pub wind: Span,
}

/// State of the tape in a run.
#[derive(Debug)]
struct TapeParametersAndFreeTime {
    design: TapeMemoryParameters,
    free: Time,
}

impl ReplacementMemoryModel for TapeMemoryParameters {
    fn create_remote_memory(&self) -> Option<Box<dyn UserRemoteMemoryModel>> {
        Some(Box::new(TapeParametersAndFreeTime {
            design: *self,
            free: Time::ZERO,
        }))
    }
}

impl UserRemoteMemoryModel for TapeParametersAndFreeTime {
    fn begin_access_and_return_end(&mut self, now: Time, access: &RemoteMemoryAccess) -> Time {
        let seconds = access.bytes as f64 / self.design.rate.bytes_per_second();
        self.free = now.max(self.free) + self.design.wind + Span::from_seconds_saturating(seconds);
        self.free
    }
}
