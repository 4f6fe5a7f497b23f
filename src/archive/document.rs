//! Documents of an archive: what its segments say of workloads and objects, as JSON.

use super::metadata::MetadataValue;
use super::{ArchiveError, CompressionLevel};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Schema of the documents.
pub const SCHEMA: &str = "chakram.archive.1";

/// Changes of a segment: the document of its `CKCT` frame.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogueChange<W = WorkloadEntry> {
    /// Schema of this document.
    pub schema: String,
    /// Workloads that are new, or replace those of their name.
    pub workloads: Vec<W>,
    /// Names of workloads that are no longer there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<String>,
}

impl Default for CatalogueChange {
    fn default() -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            workloads: Vec::new(),
            dropped: Vec::new(),
        }
    }
}

/// Plan of a segment, written before anything else: the document of its `CKST` frame.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentStart {
    /// Schema of the documents.
    pub schema: String,
    /// Version of the program that writes it.
    pub tool_version: String,
    /// Command that writes it: `add`, `merge`, `gc`, `baseline`.
    pub operation: String,
    /// Workloads that it adds or replaces.
    pub workloads: Vec<String>,
}

/// Objects of a segment: the document of its `CKIX` frame.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectIndex {
    /// Its objects, in order.
    pub objects: Vec<ObjectRow>,
}

/// Object of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectRow {
    /// BLAKE3 hash of its bytes, in hexadecimal.
    pub blake3: String,
    /// Its bytes.
    pub bytes: u64,
    /// Its chunks, in order.
    pub chunks: Vec<ChunkRow>,
}

/// Chunk of an object: offset and length of its zstd frame from the start of the segment, its coding (0 plain, 1 bytes,
/// 2 columns), the bytes that the frame unpacks to, the bytes of the object in it, the records in it, and the object
/// and chunk that it is based on, or -1 twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkRow(
    pub u64,
    pub u64,
    pub u8,
    pub u64,
    pub u64,
    pub u64,
    pub i64,
    pub i64,
);

impl ChunkRow {
    /// Returns the object and chunk that it is based on, by their numbers.
    pub fn base(&self) -> Option<(usize, usize)> {
        let number = |number: i64| usize::try_from(number).ok();
        Some((number(self.6)?, number(self.7)?))
    }
}

/// Workload: a job's traces, the files beside them, and what is known of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadEntry {
    /// Its name in the archive.
    pub name: String,
    /// Compression level.
    pub level: CompressionLevel,
    /// Metadata given by people.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, MetadataValue>,
    /// Provenance.
    pub provenance: Provenance,
    /// Begin of its traces' names: `PREFIX` of `PREFIX.RANK.et`.
    pub prefix: String,
    /// Traces, by rank ascending.
    pub traces: Vec<TraceRow>,
    /// Other files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileRow>,
    /// Recorded predictions, the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub baselines: Vec<BaselineRecord>,
    /// Measured step times of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<MeasuredTimes>,
}

/// Provenance of a workload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// Version of the program that added it.
    pub tool_version: String,
    /// Paths that were added, as they were given.
    pub sources: Vec<String>,
    /// Archive and tool version from which it was merged, if it was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub merged_from: Vec<String>,
}

/// Ranks that have the same trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceRow {
    /// First rank.
    pub rank: u32,
    /// Number of ranks from there on.
    pub ranks: u32,
    /// End of the file's name behind `PREFIX.RANK`: `.et`, `.jsonl.gz`.
    pub ending: String,
    /// The object.
    pub blake3: String,
    /// Bytes of the object.
    pub bytes: u64,
}

/// File beside the traces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRow {
    /// Its path, relative to the folder of the traces.
    pub name: String,
    /// The object.
    pub blake3: String,
    /// Bytes of the object.
    pub bytes: u64,
}

/// Prediction for a workload on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BaselineRecord {
    /// Machine: a preset, or a file of the workload.
    pub machine: String,
    /// Text of the machine's file, an object.
    pub machine_blake3: String,
    /// Bytes of that.
    pub machine_bytes: u64,
    /// Options of the replay, as on the command line.
    pub arguments: Vec<String>,
    /// Hash of the traces and files that were replayed ([`WorkloadEntry::contents_hash`]).
    pub contents: String,
    /// Milliseconds that the replay took, rounded up, by which later checks are planned.
    pub replay_ms: u64,
    /// Features that it covers: operators, groups, size, schema, machine.
    pub features: Vec<String>,
    /// Version of the program that predicted.
    pub tool_version: String,
    /// Predicted makespan in picoseconds.
    pub makespan_ps: u64,
    /// The report, as JSON.
    pub report: String,
    /// Bytes of the report.
    pub report_bytes: u64,
    /// Reason for recording it.
    pub reason: String,
}

/// Distribution of measured step times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredTimes {
    /// Number of steps that were measured.
    pub steps: u64,
    /// Their median in picoseconds.
    pub median_ps: u64,
    /// Median of the absolute deviations from it in picoseconds.
    pub mad_ps: u64,
}

impl WorkloadEntry {
    /// Returns the number of its ranks.
    pub fn ranks(&self) -> u64 {
        self.traces.iter().map(|row| u64::from(row.ranks)).sum()
    }

    /// Returns the bytes of its traces, as files.
    pub fn trace_bytes(&self) -> u64 {
        let bytes = self
            .traces
            .iter()
            .map(|row| row.bytes.saturating_mul(row.ranks.into()));
        bytes.fold(0, u64::saturating_add)
    }

    /// Returns the objects that it needs, with their lengths.
    pub fn objects(&self) -> impl Iterator<Item = (&str, u64)> {
        let traces = self.traces.iter().map(|row| (&row.blake3[..], row.bytes));
        let files = self.files.iter().map(|row| (&row.blake3[..], row.bytes));
        let reports = self.baselines.iter();
        let reports = reports.map(|row| (&row.report[..], row.report_bytes));
        let machines = self.baselines.iter();
        let machines = machines.map(|row| (&row.machine_blake3[..], row.machine_bytes));
        traces.chain(files).chain(reports).chain(machines)
    }

    /// Returns the BLAKE3 hash of the names and hashes of its traces and files, in hexadecimal.
    pub fn contents_hash(&self) -> String {
        let text = serde_json::to_vec(&(&self.prefix, &self.traces, &self.files));
        let text = text.expect("names and numbers are JSON");
        blake3::hash(&text).to_hex().to_string()
    }

    /// Returns the latest prediction on each machine, in the order of machines.
    pub fn latest_baselines(&self) -> Vec<&BaselineRecord> {
        let latest = self.baselines.iter().map(|row| (&row.machine, row));
        latest.collect::<BTreeMap<_, _>>().into_values().collect()
    }

    /// Fails if a name in it would lead out of a folder, ranks are there twice, or a hash is none.
    pub fn check(&self) -> Result<(), ArchiveError> {
        let wrong = |found: String| {
            Err(ArchiveError::broken(format!(
                "workload `{}`: {found}",
                chakram_trace::format::escape(&self.name)
            )))
        };
        check_name(&self.name).or_else(|_| wrong("its name is none".to_owned()))?;
        if !is_file_name(&self.prefix) {
            return wrong("its traces have no file name".to_owned());
        }
        let mut next = 0u64;
        for row in &self.traces {
            let ending = row.ending.strip_prefix('.').is_some_and(is_file_name);
            if !ending || row.ranks == 0 || u64::from(row.rank) < next {
                return wrong(format!("its traces of rank {} make no sense", row.rank));
            }
            next = u64::from(row.rank) + u64::from(row.ranks);
        }
        if next > u64::from(u32::MAX) {
            return wrong("its ranks are too many".to_owned());
        }
        let mut names: Vec<&str> = self.files.iter().map(|row| &row.name[..]).collect();
        names.sort_unstable();
        let twice = names.windows(2).any(|pair| pair[0] == pair[1]);
        if twice || !names.iter().all(|name| name.split('/').all(is_file_name)) {
            return wrong("its files have names that make no sense".to_owned());
        }
        if self
            .objects()
            .any(|(hash, _)| blake3::Hash::from_hex(hash).is_err())
        {
            return wrong("one of its objects has no BLAKE3 hash".to_owned());
        }
        Ok(())
    }
}

/// Whether `name` names a file of a folder.
fn is_file_name(name: &str) -> bool {
    let special = name.is_empty() || name == "." || name == "..";
    !special && !name.contains(['/', '\\']) && !name.chars().any(char::is_control)
}

/// Fails if `name` is no name of a workload: parts of names with slashes between them, none of them `.` or `..`.
pub fn check_name(name: &str) -> Result<(), ArchiveError> {
    if name.split('/').all(is_file_name) && !name.contains("::") && name.len() <= 255 {
        return Ok(());
    }
    Err(ArchiveError::refused(
        format!(
            "`{}` is no name of a workload",
            chakram_trace::format::escape(name)
        ),
        "letters, digits and dashes, with slashes between parts: llama3/step-7",
    ))
}
