//! Remote memory that several NPUs share. Plans and machines both use this type.

use crate::units::Bytes;

/// Remote memory whose capacity several neighbouring NPUs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteMemoryCapacityAndSharers {
    /// Total capacity for all NPUs that share the memory.
    pub capacity: Bytes,
    /// Number of NPUs that share the memory, at least 1.
    pub npus: u32,
}

impl RemoteMemoryCapacityAndSharers {
    /// Returns the number of bytes for each rank if the `ranks` of a job share the memory evenly.
    pub fn bytes_per_rank(&self, ranks: u64) -> u64 {
        self.capacity.0 / u64::from(self.npus).min(ranks).max(1)
    }
}
