//! The length and hash that a job file states for a file.

/// Length and hash of a file, as a job file states them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExpectedFileLengthAndHash {
    /// Length of the file in bytes.
    pub bytes: u64,
    /// BLAKE3 hash of the bytes, if the hash must be checked.
    pub blake3: Option<[u8; 32]>,
}
