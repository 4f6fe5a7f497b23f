//! Defines the JSON documents in an archive, which describe the workloads and objects of segments.

use super::metadata::MetadataValue;
use super::{ArchiveError, CompressionLevel};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Schema name in every document.
pub const SCHEMA: &str = "chakram.archive.1";

/// Changes that a segment makes to the archive's workloads. This document is in the segment's
/// `CKCT` frame.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentWorkloadCatalogueChanges<W = WorkloadEntry> {
    /// Schema of this document.
    pub schema: String,
    /// Workloads that the segment adds, or replaces by name.
    pub workloads: Vec<W>,
    /// Names of removed workloads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<String>,
}

impl Default for SegmentWorkloadCatalogueChanges {
    fn default() -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            workloads: Vec::new(),
            dropped: Vec::new(),
        }
    }
}

/// Plan of a segment. This document is in the `CKST` frame at the segment's start.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentWriteIntent {
    /// Schema of the documents.
    pub schema: String,
    /// Version of the program that writes the segment.
    pub tool_version: String,
    /// Command that writes the segment: `add`, `merge`, `gc` or `baseline`.
    pub operation: String,
    /// Workloads that the segment adds or replaces.
    pub workloads: Vec<String>,
}

/// Index of a segment's objects. This document is in the segment's `CKIX` frame.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentObjectIndex {
    /// Objects of the segment, in order.
    pub objects: Vec<ObjectHashAndChunkListRow>,
}

/// An object of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectHashAndChunkListRow {
    /// BLAKE3 hash of the object's contents, in hexadecimal.
    pub blake3: String,
    /// Size of the object, in bytes.
    pub bytes: u64,
    /// Chunks of the object, in order.
    pub chunks: Vec<ChunkFrameAndBaseRow>,
}

/// A chunk of an object. The fields are, in order:
///
/// - offset of the chunk's zstd frame from the start of the segment;
/// - length of the frame;
/// - coding (0 plain, 1 bytes, 2 columns, 3 lines);
/// - size of the frame's unpacked contents, in bytes;
/// - how many of the object's bytes the chunk holds;
/// - number of records in the chunk;
/// - object and chunk of the chunk's base, both -1 if the chunk has no base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkFrameAndBaseRow(
    pub u64,
    pub u64,
    pub u8,
    pub u64,
    pub u64,
    pub u64,
    pub i64,
    pub i64,
);

impl ChunkFrameAndBaseRow {
    /// Returns the two indices that identify the chunk's base: the index of its object, and that of its chunk.
    pub fn base_object_and_chunk_indices(&self) -> Option<(usize, usize)> {
        let number = |number: i64| usize::try_from(number).ok();
        Some((number(self.6)?, number(self.7)?))
    }
}

/// A workload: a job's traces and other files, and facts about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadEntry {
    /// Name of the workload in the archive.
    pub name: String,
    /// Compression level.
    pub level: CompressionLevel,
    /// Metadata given by users.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, MetadataValue>,
    /// Origin of the workload.
    pub provenance: Provenance,
    /// Prefix of the traces' names, `PREFIX` in `PREFIX.RANK.et`.
    pub prefix: String,
    /// Traces, sorted by rank.
    pub traces: Vec<TraceSharedByRankRange>,
    /// Other files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<NonTraceFileRow>,
    /// Recorded predictions, the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub baselines: Vec<RecordedMakespanPrediction>,
    /// Measured step times of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<MeasuredStepTimeDistribution>,
}

/// Origin of a workload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Version of the program that added the workload.
    pub tool_version: String,
    /// Paths that the user gave to the program.
    pub sources: Vec<String>,
    /// Archive that the workload was merged from, and the version of the program that had added it there; empty if it
    /// was added directly.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub merged_from: Vec<String>,
}

/// A trace, and the ranks that share it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceSharedByRankRange {
    /// First rank.
    pub rank: u32,
    /// Number of consecutive ranks.
    pub ranks: u32,
    /// Rest of the file's name after `PREFIX.RANK`, such as `.et` or `.jsonl.gz`.
    pub ending: String,
    /// Hash of the object.
    pub blake3: String,
    /// Size of the object, in bytes.
    pub bytes: u64,
}

/// A file other than a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NonTraceFileRow {
    /// Path of the file, relative to the folder of the traces.
    pub name: String,
    /// Hash of the object.
    pub blake3: String,
    /// Size of the object, in bytes.
    pub bytes: u64,
}

/// A recorded prediction for a workload on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedMakespanPrediction {
    /// The machine: a preset's name, or a file of the workload.
    pub machine: String,
    /// Hash of the object that holds the machine file's text.
    pub machine_blake3: String,
    /// Size of the machine file's text, in bytes.
    pub machine_bytes: u64,
    /// Options of the replay, as given on the command line.
    pub arguments: Vec<String>,
    /// Hash of all traces and files that were replayed ([`WorkloadEntry::contents_hash`]).
    pub contents: String,
    /// How long the replay took, in milliseconds, rounded up. Later checks use it to plan their work.
    pub replay_ms: u64,
    /// Features of the job that the prediction exercises: operators, groups, size, schema, machine.
    pub features: Vec<String>,
    /// Version of the program that made the prediction.
    pub tool_version: String,
    /// Predicted makespan in picoseconds.
    pub makespan_ps: u64,
    /// Hash of the object that holds the report, as JSON.
    pub report: String,
    /// Size of the report, in bytes.
    pub report_bytes: u64,
    /// Reason that the user gave for recording the prediction.
    pub reason: String,
}

/// Distribution of measured step times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredStepTimeDistribution {
    /// Number of measured steps.
    pub steps: u64,
    /// Median in picoseconds.
    pub median_ps: u64,
    /// Median absolute deviation from the median, in picoseconds.
    pub mad_ps: u64,
}

impl WorkloadEntry {
    /// Returns the workload's number of ranks.
    pub fn rank_count(&self) -> u64 {
        self.traces.iter().map(|row| u64::from(row.ranks)).sum()
    }

    /// Returns the total size of the workload's traces as separate files, in bytes.
    pub fn trace_bytes(&self) -> u64 {
        let bytes = self
            .traces
            .iter()
            .map(|row| row.bytes.saturating_mul(row.ranks.into()));
        bytes.fold(0, u64::saturating_add)
    }

    /// Returns the hashes and sizes of the objects that the workload needs.
    pub fn hashes_and_sizes_of_needed_objects(&self) -> impl Iterator<Item = (&str, u64)> {
        let traces = self.traces.iter().map(|row| (&row.blake3[..], row.bytes));
        let files = self.files.iter().map(|row| (&row.blake3[..], row.bytes));
        let reports = self.baselines.iter();
        let reports = reports.map(|row| (&row.report[..], row.report_bytes));
        let machines = self.baselines.iter();
        let machines = machines.map(|row| (&row.machine_blake3[..], row.machine_bytes));
        traces.chain(files).chain(reports).chain(machines)
    }

    /// Returns a BLAKE3 hash, in hexadecimal, over the names and hashes of the workload's traces and files.
    pub fn contents_hash(&self) -> String {
        let text = serde_json::to_vec(&(&self.prefix, &self.traces, &self.files));
        let text = text.expect("names and numbers are JSON");
        blake3::hash(&text).to_hex().to_string()
    }

    /// Returns the latest prediction for each machine, sorted by machine.
    pub fn latest_prediction_by_machine(&self) -> Vec<&RecordedMakespanPrediction> {
        let latest = self.baselines.iter().map(|row| (&row.machine, row));
        latest.collect::<BTreeMap<_, _>>().into_values().collect()
    }

    /// Fails if a name leads out of the folder, a rank occurs twice, or a hash is malformed.
    pub fn check_names_ranks_and_hashes(&self) -> Result<(), ArchiveError> {
        let wrong = |found: String| {
            Err(ArchiveError::broken_archive_error(format!(
                "workload `{}`: {found}",
                chakram_trace::format::escape_and_shorten_name(&self.name)
            )))
        };
        check_workload_name(&self.name)
            .or_else(|_| wrong("the workload's name is invalid".to_owned()))?;
        if !is_file_name(&self.prefix) {
            return wrong("the workload's traces have no file name".to_owned());
        }
        let mut next = 0u64;
        for row in &self.traces {
            let ending = row.ending.strip_prefix('.').is_some_and(is_file_name);
            if !ending || row.ranks == 0 || u64::from(row.rank) < next {
                return wrong(format!(
                    "the workload's entry for rank {} is invalid",
                    row.rank
                ));
            }
            next = u64::from(row.rank) + u64::from(row.ranks);
        }
        if next > u64::from(u32::MAX) {
            return wrong("the workload has too many ranks".to_owned());
        }
        let mut names: Vec<&str> = self.files.iter().map(|row| &row.name[..]).collect();
        names.sort_unstable();
        let twice = names.windows(2).any(|pair| pair[0] == pair[1]);
        if twice || !names.iter().all(|name| name.split('/').all(is_file_name)) {
            return wrong("the workload's files have invalid names".to_owned());
        }
        if self
            .hashes_and_sizes_of_needed_objects()
            .any(|(hash, _)| blake3::Hash::from_hex(hash).is_err())
        {
            return wrong("one of the workload's objects has no BLAKE3 hash".to_owned());
        }
        Ok(())
    }
}

/// Returns true if `name` is a valid file name that names no folder.
fn is_file_name(name: &str) -> bool {
    let special = name.is_empty() || name == "." || name == "..";
    !special && !name.contains(['/', '\\']) && !name.chars().any(char::is_control)
}

/// Fails if `name` is not a valid workload name: parts separated by slashes, none of them `.` or
/// `..`.
pub fn check_workload_name(name: &str) -> Result<(), ArchiveError> {
    if name.split('/').all(is_file_name) && !name.contains("::") && name.len() <= 255 {
        return Ok(());
    }
    Err(ArchiveError::refused_request_error(
        format!(
            "`{}` is not a name of a workload",
            chakram_trace::format::escape_and_shorten_name(name)
        ),
        "letters, digits and dashes, with slashes between parts: llama3/step-7",
    ))
}
