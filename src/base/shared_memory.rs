//! Memory that NPUs share, which plans and machines both know.

use crate::units::Bytes;

/// Remote memory of which NPUs next to one another use one capacity together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedMemory {
    /// Bytes of all of them.
    pub capacity: Bytes,
    /// Number of NPUs; at least 1.
    pub npus: u32,
}

impl SharedMemory {
    /// Bytes for each of a job's `ranks` if they divide it evenly.
    pub fn share(&self, ranks: u64) -> u64 {
        self.capacity.0 / u64::from(self.npus).min(ranks).max(1)
    }
}
