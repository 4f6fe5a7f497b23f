//! Merges archives, and removes expired workloads and unused objects.

use super::add::{ObjectPacker, pack_workload_from_archive};
use super::document::{SegmentWorkloadCatalogueChanges, WorkloadEntry};
use super::metadata::{MetadataValue, is_date};
use super::store::{Archive, ArchiveWriter, CommitCommandAndWorkloadNames};
use super::tail::UncommittedArchiveTail;
use super::{ArchiveError, ObjectProgressCallback};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Result of a merge: which workloads were added, and which were already known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergedAndKnownWorkloads {
    /// Names of added workloads.
    pub added: Vec<String>,
    /// Names of workloads that the archive already had with the same contents.
    pub known: Vec<String>,
    /// File to which an unfinished tail was moved, or `None`.
    pub kept_aside: Option<PathBuf>,
}

/// Adds the workloads of `sources` to the archive `into` in one commit. Workloads with the same name must have the
/// same contents.
pub fn merge_archives(
    into: &Path,
    sources: &[Archive],
    done: ObjectProgressCallback<'_>,
) -> Result<MergedAndKnownWorkloads, ArchiveError> {
    let writer = ArchiveWriter::open_for_writing(into)?;
    let before = writer.committed_archive();
    let mut result = MergedAndKnownWorkloads::default();
    let mut wanted: Vec<(&Archive, &WorkloadEntry)> = Vec::new();
    let mut joining: BTreeMap<&str, &WorkloadEntry> = BTreeMap::new();
    for source in sources {
        // Without this check, a merge would silently omit the contents of a damaged tail.
        source
            .uncommitted_tail()
            .map_or(Ok(()), UncommittedArchiveTail::check_tail_is_not_damaged)?;
        for (name, entry) in source.workloads() {
            let there = before.workloads().get(name);
            match there.or(joining.get(&name[..]).copied()) {
                None => {
                    joining.insert(name, entry);
                    result.added.push(name.clone());
                    wanted.push((source, entry));
                }
                Some(own) if equal_apart_from_provenance(own, entry) => {
                    result.known.push(name.clone());
                    entry
                        .hashes_and_sizes_of_needed_objects()
                        .for_each(|_| done());
                }
                Some(_) => {
                    let found = format!(
                        "{}: workload `{name}` differs from the one in {}",
                        source.path().display(),
                        into.display()
                    );
                    return Err(ArchiveError::refused_request_error(
                        found,
                        "extract the workload, and add it under another name",
                    ));
                }
            }
        }
    }
    if wanted.is_empty() {
        return Ok(result);
    }
    let plan = CommitCommandAndWorkloadNames {
        operation: "merge",
        workloads: result.added.clone(),
    };
    result.kept_aside = writer.commit_segment(&plan, &mut |out| {
        let mut change = SegmentWorkloadCatalogueChanges::default();
        for (source, entry) in &wanted {
            let mut packer = ObjectPacker::new(Some(&before), out, entry.level);
            pack_workload_from_archive(source, entry, &mut packer, done)?;
            let mut entry = (*entry).clone();
            entry
                .provenance
                .merged_from
                .push(source.path().display().to_string());
            change.workloads.push(entry);
        }
        Ok(change)
    })?;
    Ok(result)
}

/// Returns whether two workloads are equal except for their provenance.
fn equal_apart_from_provenance(a: &WorkloadEntry, b: &WorkloadEntry) -> bool {
    let plain = |entry: &WorkloadEntry| WorkloadEntry {
        provenance: super::document::Provenance::default(),
        level: a.level,
        ..entry.clone()
    };
    plain(a) == plain(b)
}

/// Result of a garbage collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArchiveGarbageCollectionResult {
    /// Names of workloads that were dropped because their retention expired.
    pub dropped: Vec<String>,
    /// Size of the archive before the collection, in bytes.
    pub before: u64,
    /// Size of the archive after the collection, in bytes.
    pub after: u64,
    /// File to which an unfinished tail was moved, or `None`.
    pub kept_aside: Option<PathBuf>,
}

/// Returns the workloads whose retention ended before the day `as_of`.
pub fn expired_workloads(archive: &Archive, as_of: &str) -> Result<Vec<String>, ArchiveError> {
    if !is_date(as_of) {
        return Err(ArchiveError::refused_request_error(
            format!(
                "`{}` is not a date",
                chakram_trace::format::escape_and_shorten_name(as_of)
            ),
            "YYYY-MM-DD",
        ));
    }
    let over = |entry: &WorkloadEntry| match entry.metadata.get("retention") {
        Some(MetadataValue::Date(last)) => &last[..] < as_of,
        _ => false,
    };
    let names = archive.workloads().values().filter(|entry| over(entry));
    Ok(names.map(|entry| entry.name.clone()).collect())
}

/// Rewrites the archive `path` as one segment, without the workloads `dropped` and without unused objects.
pub fn rewrite_archive_without_dropped_workloads(
    path: &Path,
    dropped: &dyn Fn(&Archive) -> Result<Vec<String>, ArchiveError>,
    done: ObjectProgressCallback<'_>,
) -> Result<ArchiveGarbageCollectionResult, ArchiveError> {
    let writer = ArchiveWriter::open_for_writing(path)?;
    let before = writer.committed_archive();
    let dropped = dropped(&before)?;
    let kept: Vec<&WorkloadEntry> = before
        .workloads()
        .values()
        .filter(|entry| !dropped.contains(&entry.name))
        .collect();
    let plan = CommitCommandAndWorkloadNames {
        operation: "gc",
        workloads: Vec::new(),
    };
    let kept_aside = writer.replace_all_segments_by_one(&plan, &mut |out| {
        let mut change = SegmentWorkloadCatalogueChanges::default();
        for entry in &kept {
            let mut packer = ObjectPacker::new(None, out, entry.level);
            pack_workload_from_archive(&before, entry, &mut packer, done)?;
            change.workloads.push((*entry).clone());
        }
        Ok(change)
    })?;
    Ok(ArchiveGarbageCollectionResult {
        dropped,
        before: before.total_segment_bytes()
            + before.uncommitted_tail().map_or(0, |tail| tail.bytes),
        after: Archive::open_archive(path)?.total_segment_bytes(),
        kept_aside,
    })
}
