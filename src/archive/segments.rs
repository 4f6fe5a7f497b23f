//! Finds the segments of a file, starting from its end.

use super::ArchiveError;
use super::segment::{
    ArchiveFileSegment, END_BYTES, MAGIC, RandomAccessSegmentFile, SegmentFooter, VERSION,
};
use super::tail::UncommittedArchiveTail;
use std::collections::BTreeSet;
use std::fs::TryLockError;
use std::sync::Arc;

/// Finds the segments of a file in order, and the tail after them.
pub fn find_segments_and_tail(
    file: RandomAccessSegmentFile,
) -> Result<(Vec<ArchiveFileSegment>, Option<UncommittedArchiveTail>), ArchiveError> {
    let file = Arc::new(file);
    let (found, tail) = find_chained_segments_and_tail_bytes(&file)?;
    if tail == 0 {
        return Ok((found, None));
    }
    // A writer keeps the lock until it has committed its segment, so the tail of a locked archive
    // may still grow.
    let lock = file.try_open_with_shared_lock();
    let (found, bytes) = match lock {
        // Search again: bytes that looked like a tail before this function acquired the lock may have been committed
        // since.
        Ok(_) => find_chained_segments_and_tail_bytes(&file)?,
        Err(_) => (found, tail),
    };
    if bytes == 0 {
        return Ok((found, None));
    }
    let at = found.iter().map(|segment| segment.end.length).sum();
    let is_locked = matches!(lock, Err(TryLockError::WouldBlock));
    match UncommittedArchiveTail::examine_tail(&file, at, bytes) {
        Ok(tail) => Ok((found, Some(UncommittedArchiveTail { is_locked, ..tail }))),
        // Ignore the error: a failing writer may remove the tail while this function reads it.
        Err(_) if is_locked => Ok((found, None)),
        Err(error) => Err(error),
    }
}

/// Finds the segments of a file in order, and returns how many bytes follow them.
///
/// A segment end counts as the last one only if a chain of segment ends leads from it back to byte 0, because a tail
/// may contain another archive with its own segment ends.
fn find_chained_segments_and_tail_bytes(
    file: &Arc<RandomAccessSegmentFile>,
) -> Result<(Vec<ArchiveFileSegment>, u64), ArchiveError> {
    let length = file.file_length()?;
    let mut failed = BTreeSet::new();
    let mut first_error = None;
    let mut before = length;
    loop {
        let end = find_last_segment_end(file, before)?;
        if end == 0 {
            return first_error.map_or(Ok((Vec::new(), length)), Err);
        }
        match follow_segment_chain_from_end(file, end, &mut failed) {
            Ok(found) => return Ok((found, length - end)),
            // The file ends with a segment's end, so there is no tail; a segment must be damaged.
            Err(error) if end == length => return Err(error),
            Err(error) => drop(first_error.get_or_insert(error)),
        }
        before = end - 1;
    }
}

/// Follows the chain of segment ends from byte `end` back to byte 0. If the chain does not lead there, adds its offsets
/// to `failed` and fails.
fn follow_segment_chain_from_end(
    file: &Arc<RandomAccessSegmentFile>,
    end: u64,
    failed: &mut BTreeSet<u64>,
) -> Result<Vec<ArchiveFileSegment>, ArchiveError> {
    let mut found: Vec<ArchiveFileSegment> = Vec::new();
    let mut end = end;
    while end > 0 {
        let bytes = end
            .checked_sub(END_BYTES)
            .filter(|_| !failed.contains(&end))
            .map(|at| file.read_exact_at(at, END_BYTES))
            .transpose()?;
        let parsed = bytes.as_deref().and_then(SegmentFooter::parse);
        let problem = match parsed {
            Some(Ok(parsed)) if parsed.length <= end => {
                end -= parsed.length;
                found.push(ArchiveFileSegment {
                    file: Arc::clone(file),
                    start: end,
                    end: parsed,
                });
                continue;
            }
            Some(Err(version)) => format!(
                "the archive has version {version} of the format, expected 1 to {VERSION}\n  try: a newer chakram"
            ),
            _ => format!("byte {end}: no segment ends here, although another one begins"),
        };
        failed.insert(end);
        failed.extend(
            found
                .iter()
                .map(|segment| segment.start + segment.end.length),
        );
        return Err(ArchiveError::broken_archive_error(problem).in_file(&file.path));
    }
    found.reverse();
    Ok(found)
}

/// Returns the offset just after the last segment end within the first `length` bytes, or 0 if they include no segment
/// end.
fn find_last_segment_end(file: &RandomAccessSegmentFile, length: u64) -> Result<u64, ArchiveError> {
    /// Maximum number of bytes that are searched at once.
    const WINDOW: u64 = 1 << 20;
    let mut to = length;
    // In an intact file without a tail, this first window contains exactly the last segment's end.
    let mut window = END_BYTES;
    loop {
        let from = to.saturating_sub(window);
        let bytes = file.read_exact_at(from, to - from)?;
        let ends = bytes.windows(END_BYTES as usize).rposition(|window| {
            window.starts_with(&MAGIC) && SegmentFooter::parse(window).is_some()
        });
        if let Some(at) = ends {
            return Ok(from + at as u64 + END_BYTES);
        }
        if from == 0 {
            return Ok(0);
        }
        // Successive windows overlap, because a segment end may span two of them.
        to = from + END_BYTES - 1;
        window = (window * 16).min(WINDOW);
    }
}
