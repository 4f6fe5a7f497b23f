//! Segments of a file, found from its end.

use super::ArchiveError;
use super::segment::{END_BYTES, MAGIC, Segment, SegmentEnd, SegmentFile, VERSION};
use super::tail::ArchiveTail;
use std::collections::BTreeSet;
use std::fs::TryLockError;
use std::sync::Arc;

/// Finds the segments of a file, first to last, and the tail behind them.
pub fn segments(file: SegmentFile) -> Result<(Vec<Segment>, Option<ArchiveTail>), ArchiveError> {
    let file = Arc::new(file);
    let (found, tail) = committed_segments(&file)?;
    if tail == 0 {
        return Ok((found, None));
    }
    // A writer holds the lock until its segment is committed.
    let lock = file.try_lock_shared();
    let (found, bytes) = match lock {
        // What was found before the lock was taken may be committed by now.
        Ok(_) => committed_segments(&file)?,
        Err(_) => (found, tail),
    };
    if bytes == 0 {
        return Ok((found, None));
    }
    let at = found.iter().map(|segment| segment.end.length).sum();
    let is_locked = matches!(lock, Err(TryLockError::WouldBlock));
    match ArchiveTail::find(&file, at, bytes) {
        Ok(tail) => Ok((found, Some(ArchiveTail { is_locked, ..tail }))),
        // A writer that failed removes it while it is read.
        Err(_) if is_locked => Ok((found, None)),
        Err(error) => Err(error),
    }
}

/// Finds the segments of a file, first to last, and the number of bytes behind them.
///
/// The last segment is the last from which ends lead back to byte 0: a tail may hold an end that is none of this
/// archive, of another archive that is kept in it.
fn committed_segments(file: &Arc<SegmentFile>) -> Result<(Vec<Segment>, u64), ArchiveError> {
    let length = file.length()?;
    let mut failed = BTreeSet::new();
    let mut first_error = None;
    let mut before = length;
    loop {
        let end = last_end(file, before)?;
        if end == 0 {
            return first_error.map_or(Ok((Vec::new(), length)), Err);
        }
        match chain(file, end, &mut failed) {
            Ok(found) => return Ok((found, length - end)),
            // Of bytes that are all committed, a segment is damaged.
            Err(error) if end == length => return Err(error),
            Err(error) => drop(first_error.get_or_insert(error)),
        }
        before = end - 1;
    }
}

/// Follows the ends of segments from byte `end` back to byte 0. Places from which none leads there join `failed`.
fn chain(
    file: &Arc<SegmentFile>,
    end: u64,
    failed: &mut BTreeSet<u64>,
) -> Result<Vec<Segment>, ArchiveError> {
    let mut found: Vec<Segment> = Vec::new();
    let mut end = end;
    while end > 0 {
        let bytes = end
            .checked_sub(END_BYTES)
            .filter(|_| !failed.contains(&end))
            .map(|at| file.read(at, END_BYTES))
            .transpose()?;
        let parsed = bytes.as_deref().and_then(SegmentEnd::parse);
        let problem = match parsed {
            Some(Ok(parsed)) if parsed.length <= end => {
                end -= parsed.length;
                found.push(Segment {
                    file: Arc::clone(file),
                    start: end,
                    end: parsed,
                });
                continue;
            }
            Some(Err(version)) => format!(
                "it has version {version} of the format, and 1 to {VERSION} are known here\n  try: a newer chakram"
            ),
            _ => format!("byte {end}: no segment ends here, though another begins"),
        };
        failed.insert(end);
        failed.extend(
            found
                .iter()
                .map(|segment| segment.start + segment.end.length),
        );
        return Err(ArchiveError::broken(problem).in_file(&file.path));
    }
    found.reverse();
    Ok(found)
}

/// Returns where the last end within the first `length` bytes ends; 0 if there is none.
fn last_end(file: &SegmentFile, length: u64) -> Result<u64, ArchiveError> {
    /// Bytes that are searched at once, at most.
    const WINDOW: u64 = 1 << 20;
    let mut to = length;
    // Of a sound file this is the end alone.
    let mut window = END_BYTES;
    loop {
        let from = to.saturating_sub(window);
        let bytes = file.read(from, to - from)?;
        let ends = bytes
            .windows(END_BYTES as usize)
            .rposition(|window| window.starts_with(&MAGIC) && SegmentEnd::parse(window).is_some());
        if let Some(at) = ends {
            return Ok(from + at as u64 + END_BYTES);
        }
        if from == 0 {
            return Ok(0);
        }
        // An end may lie across the border.
        to = from + END_BYTES - 1;
        window = (window * 16).min(WINDOW);
    }
}
