//! Summarizes the files of a job.

use super::filter::NodeFilter;
use super::parallel::for_each_in_order;
use super::summary::{JobInspectionSummary, RankInspectionSummary};
use super::trace::InspectedRankTrace;
use chakram_trace::format::TraceError;
use chakram_trace::format::file::{DecompressedTraceFile, RankFile};

/// Summarizes the nodes in `files` that match `filter`, with up to `threads` threads. `files` must be sorted by rank.
///
/// If no file can be read, fails with the first error.
pub fn inspect_job(
    files: &[RankFile],
    filter: &NodeFilter,
    threads: usize,
) -> Result<JobInspectionSummary, TraceError> {
    inspect_job_with_progress(files, filter, threads, &|| ())
}

/// Like [`inspect_job`], but also calls `read` after each file.
pub fn inspect_job_with_progress(
    files: &[RankFile],
    filter: &NodeFilter,
    threads: usize,
    read: &(dyn Fn() + Sync),
) -> Result<JobInspectionSummary, TraceError> {
    let mut job = JobInspectionSummary::default();
    let mut first = None;
    let take = |file: &RankFile, summary: Result<RankInspectionSummary, TraceError>| {
        match summary {
            Ok(summary) => job.add_rank(summary),
            Err(error) => {
                let text = format_error_on_one_line(&error);
                job.unreadable.push((file.rank, file.path.clone(), text));
                first.get_or_insert(error);
            }
        }
        Ok::<_, TraceError>(())
    };
    let work = |file: &RankFile| {
        let found = inspect_rank(file, filter);
        read();
        found
    };
    for_each_in_order(files, threads, work, take)?;
    match first {
        Some(error) if job.ranks.is_empty() => Err(error),
        _ => Ok(job),
    }
}

fn inspect_rank(file: &RankFile, filter: &NodeFilter) -> Result<RankInspectionSummary, TraceError> {
    let contents = DecompressedTraceFile::open_verified(file)?;
    let length = contents.as_slice().len() as u64;
    let size = std::fs::metadata(&file.path).map_or(length, |m| m.len());
    if filter.is_empty() {
        return RankInspectionSummary::inspect_contents(file.rank, &file.path, size, &contents);
    }
    let trace = InspectedRankTrace::read_trace(file.rank, contents.as_slice(), |e| {
        contents.locate_error_in_original_file(e)
    })?;
    let sizes = (size, length);
    Ok(RankInspectionSummary::new(
        &trace, filter, &file.path, sizes,
    ))
}

/// Formats an error and its cause on one line. The remedy is omitted, because it applies only to replays.
pub(super) fn format_error_on_one_line(error: &TraceError) -> String {
    let text = error.to_string();
    let mut line = text.lines().next().unwrap_or_default().to_owned();
    if let Some(cause) = std::error::Error::source(error) {
        line += &format!(": {cause}");
    }
    line
}
