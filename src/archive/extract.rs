//! Extracts workloads from an archive to files.

use super::document::{NonTraceFileRow, TraceSharedByRankRange, WorkloadEntry};
use super::store::Archive;
use super::{ArchiveError, ObjectProgressCallback};
use chakram_base::bounds;
use chakram_base::setting::SettingKey;
use chakram_base::units::{Bytes, format_thousands};
use chakram_trace::files::{CompleteUncommittedFileHandle, OutputsAndProtectedInputs};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// An inclusive range of rank or node numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankOrNodeRange {
    /// First number.
    pub first: u64,
    /// Last number of the range, inclusive.
    pub last: u64,
}

/// Part of a workload to extract; by default the whole workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RanksAndNodesToExtract {
    /// Range of ranks to extract, or `None` for all ranks.
    pub ranks: Option<RankOrNodeRange>,
    /// Nodes of each rank to extract, as indices into the rank's trace (starting at 0), or `None` for all nodes.
    pub nodes: Option<RankOrNodeRange>,
}

impl WorkloadEntry {
    /// Returns each rank of the workload, with the row that describes its trace.
    pub fn ranks_with_trace_rows(&self) -> impl Iterator<Item = (u32, &TraceSharedByRankRange)> {
        self.traces.iter().flat_map(|row| {
            (row.rank..row.rank.saturating_add(row.ranks)).map(move |rank| (rank, row))
        })
    }

    /// Returns the file name of a rank's trace.
    pub fn rank_trace_file_name(&self, rank: u32, row: &TraceSharedByRankRange) -> String {
        format!("{}.{rank}{}", self.prefix, row.ending)
    }

    /// Returns the minimum disk space that the traces of `ranks` need, in bytes: space for all names, and for one file
    /// per distinct trace. Ranks with the same trace share one file under several names.
    fn min_extracted_bytes(&self, ranks: RankOrNodeRange) -> u64 {
        let rows = self.traces.iter().map(|row| {
            // Between the prefix and the ending, a name has at least a dot and a digit.
            let letters = (self.prefix.len() + row.ending.len() + 2) as u64;
            let names = row.count_ranks_within(ranks);
            names.saturating_mul(NAME_BYTES + letters) + INODE_BYTES * names.min(1)
        });
        rows.fold(0, u64::saturating_add)
    }

    /// Returns the file with this name.
    pub fn find_non_trace_file(&self, name: &str) -> Option<&NonTraceFileRow> {
        self.files.iter().find(|row| row.name == name)
    }
}

impl TraceSharedByRankRange {
    /// Returns how many of the row's ranks are in `wanted`.
    fn count_ranks_within(&self, wanted: RankOrNodeRange) -> u64 {
        let first = u64::from(self.rank);
        let last = first + u64::from(self.ranks) - 1;
        let end = last.min(wanted.last).saturating_add(1);
        end.saturating_sub(first.max(wanted.first))
    }
}

/// Minimum size of a file in any file system: one ext4 inode.
const INODE_BYTES: u64 = 256;

/// Size of a folder entry without its name, as in ext4.
const NAME_BYTES: u64 = 8;

/// Checks that writing a file with hash `hash` to `path` would overwrite no other contents; `hash` is `None` if the
/// hash is not known before the file is written.
///
/// # Errors
///
/// Fails if `path` is a file with other contents, because extraction replaces a file only if its contents are the same.
fn check_overwrites_no_other_contents(path: &Path, hash: Option<&str>) -> Result<(), ArchiveError> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        opened => opened.map_err(|error| ArchiveError::io_error(path, "read", error))?,
    };
    let mut hasher = blake3::Hasher::new();
    std::io::copy(&mut file, &mut hasher)
        .map_err(|error| ArchiveError::io_error(path, "read", error))?;
    if hash == Some(&*hasher.finalize().to_hex()) {
        return Ok(());
    }
    Err(ArchiveError::refused_request_error(
        format!(
            "{}: a different file exists, and extraction does not replace it",
            path.display()
        ),
        "another folder, or remove that file",
    ))
}

impl Archive {
    /// Checks that the archive is large enough to hold the traces of `ranks`: in a damaged catalogue, `entry` may claim
    /// any number of ranks.
    ///
    /// # Errors
    ///
    /// Fails if these traces are larger than anything that an archive of this size can unpack to.
    pub(super) fn check_archive_can_hold_ranks(
        &self,
        entry: &WorkloadEntry,
        ranks: Option<RankOrNodeRange>,
    ) -> Result<(), ArchiveError> {
        let ranks = ranks.unwrap_or(RankOrNodeRange {
            first: 0,
            last: u64::MAX,
        });
        let claimed = entry.min_extracted_bytes(ranks);
        bounds::check_stated_unpacked_size(self.total_segment_bytes(), claimed).map_err(|error| {
            let files = entry.traces.iter().map(|row| row.count_ranks_within(ranks));
            let found = format!(
                "workload `{}` states {} files, which take at least {}: {error}",
                chakram_trace::format::escape_and_shorten_name(&entry.name),
                format_thousands(files.sum()),
                Bytes(claimed)
            );
            ArchiveError::broken_archive_error(found).in_file(self.path())
        })
    }

    /// Writes the traces of `part` and the other files of `entry` into `folder`. Writes either all files or none, and
    /// returns the files that it wrote. If `part` selects only some ranks or nodes, leaves out the job file, because it
    /// describes the whole job.
    pub fn extract_workload(
        &self,
        entry: &WorkloadEntry,
        folder: &Path,
        part: RanksAndNodesToExtract,
        done: ObjectProgressCallback<'_>,
    ) -> Result<Vec<PathBuf>, ArchiveError> {
        let wanted = |rank: u32| {
            let rank = u64::from(rank);
            part.ranks
                .is_none_or(|ranks| (ranks.first..=ranks.last).contains(&rank))
        };
        self.check_archive_can_hold_ranks(entry, part.ranks)?;
        let traces = entry
            .ranks_with_trace_rows()
            .filter(|(rank, _)| wanted(*rank));
        let traces = traces.map(|(rank, row)| {
            (
                entry.rank_trace_file_name(rank, row),
                &row.blake3,
                part.nodes,
            )
        });
        let is_job =
            |row: &&NonTraceFileRow| row.name.ends_with(chakram_trace::format::job::ENDING);
        let whole = part == RanksAndNodesToExtract::default();
        let files = entry.files.iter().filter(|row| whole || !is_job(row));
        let files = files.map(|row| (row.name.clone(), &row.blake3, None));
        // The job file refers to the traces, so it comes last.
        let mut all: Vec<(String, &String, Option<RankOrNodeRange>)> =
            traces.chain(files).collect();
        all.sort_by_key(|(name, _, _)| name.ends_with(chakram_trace::format::job::ENDING));
        let mut outputs = OutputsAndProtectedInputs::default();
        let mut written = Vec::new();
        let mut before: Option<(&String, CompleteUncommittedFileHandle)> = None;
        for (path_text, hash, nodes) in all {
            let path = folder.join(&path_text);
            check_overwrites_no_other_contents(&path, nodes.is_none().then_some(&**hash))?;
            // Ranks with the same trace share one file under several names, as in the source.
            let same = before.filter(|(own, _)| *own == hash);
            let same = same.map(|(_, handle)| outputs.duplicate_as(handle, &path, true));
            if let Some(handle) = same.transpose()?.flatten() {
                before = Some((hash, handle));
                written.push(path);
                done();
                continue;
            }
            let mut file = outputs.create_file(&path)?;
            let io = |error| ArchiveError::io_error(&path, "write", error);
            let mut write = |part: &[u8]| file.write_all(part).map_err(io);
            match nodes {
                None => self.stream_object_verifying_hash(hash, &mut write)?,
                Some(nodes) => self
                    .copy_metadata_and_selected_nodes(hash, nodes, &mut write)
                    .map_err(|error| error.with_subject_if_refused(&path_text))?,
            }
            before = Some((hash, outputs.close_file_and_queue_for_commit(file)?));
            written.push(path);
            done();
        }
        outputs.commit_all()?;
        Ok(written)
    }

    /// Passes a trace's metadata and the selected nodes to `out`, each with a length prefix.
    fn copy_metadata_and_selected_nodes(
        &self,
        hash: &str,
        nodes: RankOrNodeRange,
        out: &mut dyn FnMut(&[u8]) -> Result<(), ArchiveError>,
    ) -> Result<(), ArchiveError> {
        let Some(all) = self.object_node_count(hash)? else {
            let found =
                "the trace's records are unknown, because the archive stores it as plain bytes";
            return Err(ArchiveError::refused_request_error(
                found,
                format!("without {}", SettingKey::Nodes),
            ));
        };
        if nodes.first >= all {
            let found = format!("the trace has {all} nodes, but none in this range");
            let hint = format!("{} 0-{}", SettingKey::Nodes, all.saturating_sub(1));
            return Err(ArchiveError::refused_request_error(found, hint));
        }
        // The metadata is the record before the nodes.
        self.copy_selected_records(hash, 0..1, out)?;
        self.copy_selected_records(hash, nodes.first + 1..nodes.last.min(all - 1) + 2, out)
    }
}
