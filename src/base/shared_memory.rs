//! Memory shared by NPUs, a type of plans and machines.

use crate::units::Bytes;

/// Remote memory whose capacity several neighbouring NPUs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedMemory {
    /// Bytes of all these NPUs together.
    pub capacity: Bytes,
    /// Number of NPUs that share it, at least 1.
    pub npus: u32,
}

impl SharedMemory {
    /// Returns the bytes of each rank, if a job's `ranks` share it evenly.
    pub fn share(&self, ranks: u64) -> u64 {
        self.capacity.0 / u64::from(self.npus).min(ranks).max(1)
    }
}
