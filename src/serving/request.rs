//! Stores the state of a request from its arrival to its end.

use chakram_base::units::Time;

/// A request in the system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestInServingSystem {
    pub number: u64,
    pub model: u32,
    pub arrival: Time,
    /// Time at which the request's datapath latency ends.
    pub ready: Time,
    pub tokens: [u32; 2],
}
