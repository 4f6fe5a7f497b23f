//! Traces that are in a store instead of separate files.

use crate::format::TraceError;
use std::fmt;
use std::sync::Arc;

/// A store of traces, which are addressed by their hashes.
pub trait HashAddressedTraceStore: Send + Sync {
    /// Reads the bytes whose BLAKE3 hash is `hash`, and verifies the hash.
    fn read_by_hash(&self, hash: &[u8; 32]) -> Result<Vec<u8>, TraceError>;
}

/// A trace in a store, such as an archive. Two stored traces are equal if their bytes are equal.
#[derive(Clone)]
pub struct TraceStoredByHash {
    store: Arc<dyn HashAddressedTraceStore>,
    hash: [u8; 32],
}

impl TraceStoredByHash {
    /// Creates a reference to the trace in `store` whose hash is `hash`.
    pub fn new(store: Arc<dyn HashAddressedTraceStore>, hash: [u8; 32]) -> Self {
        Self { store, hash }
    }

    /// Reads the trace's bytes from the store.
    pub fn read_bytes(&self) -> Result<Vec<u8>, TraceError> {
        self.store.read_by_hash(&self.hash)
    }

    /// Returns two numbers that identify the trace, as the device and inode identify a file.
    pub fn identity(&self) -> (u64, u64) {
        let half =
            |at: usize| u64::from_le_bytes(self.hash[at..at + 8].try_into().expect("8 bytes"));
        (half(0), half(8))
    }
}

impl fmt::Debug for TraceStoredByHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceStoredByHash({:x?})", self.identity())
    }
}

impl PartialEq for TraceStoredByHash {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl Eq for TraceStoredByHash {}

impl PartialOrd for TraceStoredByHash {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TraceStoredByHash {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.hash.cmp(&other.hash)
    }
}
