//! Verifies an archive: compares all bytes with the archive's checksums, and every object with its
//! hash.

use super::store::Archive;
use super::tail::{UncommittedArchiveTail, UncommittedTailState};
use super::{ArchiveError, ObjectProgressCallback, segment};
use std::collections::BTreeMap;

/// Result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArchiveVerificationResult {
    /// Number of segments checked.
    pub segments: u64,
    /// Number of objects read.
    pub objects: u64,
    /// Total unpacked size of the objects read, in bytes.
    pub bytes: u64,
    /// Descriptions of the damage.
    pub faults: Vec<String>,
    /// Workloads that can no longer be extracted completely.
    pub lost: Vec<String>,
    /// Bytes after the last committed segment, or `None`.
    pub tail: Option<UncommittedArchiveTail>,
}

impl ArchiveVerificationResult {
    /// Returns whether all committed data is intact.
    pub fn is_sound(&self) -> bool {
        let is_damaged = self
            .tail
            .as_ref()
            .is_some_and(UncommittedArchiveTail::is_damaged);
        self.faults.is_empty() && self.lost.is_empty() && !is_damaged
    }

    /// Returns true if a command was interrupted before its commit.
    pub fn has_unfinished_tail(&self) -> bool {
        let tail = self.tail.as_ref();
        tail.is_some_and(|tail| tail.tail_state() == UncommittedTailState::Unfinished)
    }
}

/// Maximum number of faults that are listed.
const FAULTS: usize = 20;

impl Archive {
    /// Reads all bytes, and compares them with the archive's checksums.
    ///
    /// # Errors
    ///
    /// The result describes damage to the archive's contents. Fails only if the archive cannot be read at all.
    pub fn verify_all(
        &self,
        done: ObjectProgressCallback<'_>,
    ) -> Result<ArchiveVerificationResult, ArchiveError> {
        let mut verdict = ArchiveVerificationResult {
            tail: self.uncommitted_tail().cloned(),
            ..ArchiveVerificationResult::default()
        };
        let mut whole = BTreeMap::new();
        for segment in self.segments() {
            verdict.segments += 1;
            if let Err(error) = check_segment_digest(segment) {
                verdict.faults.push(error.to_string());
            }
        }
        let counts = match self.object_count_per_segment() {
            Ok(counts) => counts,
            Err(error) => {
                verdict.faults.push(error.to_string());
                verdict.lost = self.workloads().keys().cloned().collect();
                return Ok(verdict);
            }
        };
        for (number, objects) in counts.into_iter().enumerate() {
            for at in 0..objects {
                let mut bytes = 0;
                let result = self.stream_verified_object_at_location((number, at), &mut |part| {
                    bytes += part.len() as u64;
                    Ok(())
                });
                verdict.objects += 1;
                verdict.bytes += bytes;
                done();
                match result {
                    Ok(()) => drop(whole.insert(self.object_hash_at((number, at))?, bytes)),
                    Err(error) => verdict.faults.push(error.to_string()),
                }
            }
        }
        for (name, entry) in self.workloads() {
            let sound = entry
                .hashes_and_sizes_of_needed_objects()
                .all(|(hash, bytes)| whole.get(hash) == Some(&bytes));
            if !sound {
                verdict.lost.push(name.clone());
            }
        }
        if verdict.faults.len() > FAULTS {
            let more = verdict.faults.len() - FAULTS;
            verdict.faults.truncate(FAULTS);
            verdict.faults.push(format!("and {more} more"));
        }
        Ok(verdict)
    }
}

/// Compares the bytes of a segment with the hash in the segment's end.
fn check_segment_digest(segment: &segment::ArchiveFileSegment) -> Result<(), ArchiveError> {
    const PART: u64 = 1 << 20;
    let mut hasher = blake3::Hasher::new();
    let (mut at, end) = (
        segment.start,
        segment.start + segment.end.length - segment::END_BYTES,
    );
    let mut part = Vec::new();
    while at < end {
        let length = PART.min(end - at);
        segment.file.read_into(at, length, &mut part)?;
        hasher.update(&part);
        at += length;
    }
    if *hasher.finalize().as_bytes() == segment.end.digest {
        return Ok(());
    }
    let found = format!(
        "the segment of bytes {} to {end} has changed since it was written",
        segment.start
    );
    Err(ArchiveError::broken_archive_error(found).in_file(&segment.file.path))
}
