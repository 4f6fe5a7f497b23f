//! Adds workloads to an archive.

use super::chunk::WorkloadObjectDeltaEncoder;
use super::document::{
    MeasuredStepTimeDistribution, NonTraceFileRow, Provenance, RecordedMakespanPrediction,
    SegmentWorkloadCatalogueChanges, TraceSharedByRankRange, WorkloadEntry, check_workload_name,
};
use super::metadata::MetadataValue;
use super::segment::SegmentWriter;
use super::store::{Archive, ArchiveWriter, CommitCommandAndWorkloadNames};
use super::{ArchiveError, CompressionLevel, ObjectProgressCallback};
use chakram_base::setting::SettingKey;
use chakram_trace::format::file::{DecompressedTraceFile, FoundTraces};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A workload that will be added to an archive.
#[derive(Clone, Debug)]
pub struct WorkloadToAdd {
    /// Name of the workload.
    pub name: String,
    /// Compression level.
    pub level: CompressionLevel,
    /// Metadata from the user, by key.
    pub metadata: BTreeMap<String, MetadataValue>,
    /// Paths of the sources, as the user gave them.
    pub sources: Vec<String>,
    /// Traces of the workload, and the job files next to the traces.
    pub found: FoundTraces,
    /// Other files of the workload: each file's name in the archive, and its path.
    pub files: Vec<(String, PathBuf)>,
    /// Step times that were measured on a real machine.
    pub measured: Option<MeasuredStepTimeDistribution>,
    /// True if the workload may replace a workload with the same name.
    pub replace: bool,
}

/// A prediction that will be recorded as a baseline.
#[derive(Clone, Debug)]
pub struct UnsavedBaselineMakespanPrediction {
    /// The workload.
    pub workload: String,
    /// The record, whose hashes must be those of `report` and `machine`.
    pub record: RecordedMakespanPrediction,
    /// The report, as JSON.
    pub report: Vec<u8>,
    /// Text of the machine's file.
    pub machine: String,
}

/// Adds predictions to workloads of the archive at `path`, in one commit. If the archive ended in an unfinished tail,
/// moves the tail to a file and returns this file.
pub fn add_baseline_predictions(
    path: &Path,
    drafts: &[UnsavedBaselineMakespanPrediction],
) -> Result<Option<PathBuf>, ArchiveError> {
    let writer = ArchiveWriter::open_for_writing(path)?;
    let before = writer.committed_archive();
    let mut entries: BTreeMap<String, WorkloadEntry> = BTreeMap::new();
    for draft in drafts {
        let entry = entries.entry(draft.workload.clone());
        let entry = match entry {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(place) => place.insert(before.find_workload(&draft.workload)?.clone()),
        };
        entry.baselines.push(draft.record.clone());
    }
    let plan = CommitCommandAndWorkloadNames {
        operation: "baseline",
        workloads: entries.keys().cloned().collect(),
    };
    writer.commit_segment(&plan, &mut |out| {
        let mut packer = ObjectPacker::new(Some(&before), out, CompressionLevel::Default);
        for draft in drafts {
            packer.pack_object_with_hash(&draft.report, &draft.record.report, "report", false)?;
            packer.pack_object_with_hash(
                draft.machine.as_bytes(),
                &draft.record.machine_blake3,
                "machine",
                false,
            )?;
        }
        let mut change = SegmentWorkloadCatalogueChanges::default();
        change.workloads.extend(entries.values().cloned());
        Ok(change)
    })
}

/// Sizes of a workload that was added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddedWorkloadSizes {
    /// Size of the workload's files, in bytes.
    pub bytes: u64,
    /// How many bytes the workload's new objects added to the archive.
    pub packed: u64,
    /// Number of the workload's objects that the archive already had.
    pub known: u64,
    /// File to which an unfinished tail was moved; `None` if there was no tail.
    pub kept_aside: Option<PathBuf>,
}

/// Packs objects into a segment. Each object is packed only once, and not at all if the archive already has it.
pub(super) struct ObjectPacker<'a, 'w> {
    archive: Option<&'a Archive>,
    out: &'a mut SegmentWriter<&'w mut dyn Write>,
    encoder: WorkloadObjectDeltaEncoder,
    pub amounts: AddedWorkloadSizes,
}

impl<'a, 'w> ObjectPacker<'a, 'w> {
    /// Creates a packer that skips objects already in `archive`.
    pub fn new(
        archive: Option<&'a Archive>,
        out: &'a mut SegmentWriter<&'w mut dyn Write>,
        level: CompressionLevel,
    ) -> Self {
        Self {
            archive,
            out,
            encoder: WorkloadObjectDeltaEncoder::new(level),
            amounts: AddedWorkloadSizes::default(),
        }
    }

    /// Packs `bytes`, and returns their hash.
    pub fn pack_object_and_return_hash(
        &mut self,
        bytes: &[u8],
        family: &str,
        is_trace: bool,
    ) -> Result<String, ArchiveError> {
        let hash = blake3::hash(bytes).to_hex().to_string();
        self.pack_object_with_hash(bytes, &hash, family, is_trace)?;
        Ok(hash)
    }

    /// Packs bytes whose hash the caller has already computed.
    pub fn pack_object_with_hash(
        &mut self,
        bytes: &[u8],
        hash: &str,
        family: &str,
        is_trace: bool,
    ) -> Result<(), ArchiveError> {
        self.amounts.bytes += bytes.len() as u64;
        let there = self
            .archive
            .map_or(Ok(false), |archive| archive.has_object(hash))?;
        if there || self.out.has_object(hash) {
            self.amounts.known += 1;
            return Ok(());
        }
        let io = |error| ArchiveError::io_error(Path::new(""), "write", error);
        let chunks = self
            .encoder
            .encode_object(bytes, self.out.object_count(), family, is_trace)
            .map_err(io)?;
        self.amounts.packed += chunks
            .iter()
            .map(|chunk| chunk.frame.len() as u64)
            .sum::<u64>();
        self.out
            .write_object_chunks(hash.to_owned(), bytes.len() as u64, chunks)
            .map_err(io)
    }
}

/// Returns a name without its digits. File names of one family differ only in their digits.
pub(super) fn remove_all_digits(name: &str) -> String {
    name.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// Adds `draft` to the archive at `path`.
pub fn add_workload(
    path: &Path,
    draft: &WorkloadToAdd,
    done: ObjectProgressCallback<'_>,
) -> Result<AddedWorkloadSizes, ArchiveError> {
    check_workload_name(&draft.name)?;
    let writer = ArchiveWriter::open_for_writing(path)?;
    let before = writer.committed_archive();
    if before.workloads().contains_key(&draft.name) && !draft.replace {
        return Err(ArchiveError::refused_request_error(
            format!(
                "{}: the archive already has a workload `{}`",
                path.display(),
                draft.name
            ),
            format!("another {}, or {}", SettingKey::Name, SettingKey::Replace),
        ));
    }
    let plan = CommitCommandAndWorkloadNames {
        operation: "add",
        workloads: vec![draft.name.clone()],
    };
    let mut amounts = AddedWorkloadSizes::default();
    let kept_aside = writer.commit_segment(&plan, &mut |out| {
        let mut packer = ObjectPacker::new(Some(&before), out, draft.level);
        let mut entry = pack_workload(draft, &mut packer, done)?;
        // A replaced workload keeps its predictions, so that later checks compare the new one with them.
        if let Some(own) = before.workloads().get(&draft.name) {
            entry.baselines.clone_from(&own.baselines);
            entry.measured = entry.measured.or_else(|| own.measured.clone());
        }
        amounts = packer.amounts;
        let mut change = SegmentWorkloadCatalogueChanges::default();
        change.workloads.push(entry);
        Ok(change)
    })?;
    Ok(AddedWorkloadSizes {
        kept_aside,
        ..amounts
    })
}

/// Splits the name of a trace file into prefix and ending.
fn split_trace_name_around_rank(
    file: &chakram_trace::format::file::RankFile,
) -> Result<(String, String), ArchiveError> {
    let name = file.path.file_name().and_then(|name| name.to_str());
    let rank = format!(".{}.", file.rank);
    let split = name.and_then(|name| {
        name.rsplit_once(&rank)
            .map(|(prefix, end)| (prefix.to_owned(), format!(".{end}")))
    });
    split
        .filter(|(prefix, _)| !prefix.is_empty())
        .ok_or_else(|| {
            ArchiveError::refused_request_error(
                format!(
                    "{}: a trace in an archive is named PREFIX.RANK.et",
                    file.path.display()
                ),
                "another name for the file",
            )
        })
}

fn pack_workload(
    draft: &WorkloadToAdd,
    packer: &mut ObjectPacker<'_, '_>,
    done: ObjectProgressCallback<'_>,
) -> Result<WorkloadEntry, ArchiveError> {
    let mut prefix: Option<String> = None;
    let mut traces: Vec<TraceSharedByRankRange> = Vec::new();
    let mut linked: Option<((u64, u64), String, u64)> = None;
    for file in &draft.found.files {
        let (own, ending) = split_trace_name_around_rank(file)?;
        let other = prefix.get_or_insert_with(|| own.clone());
        if *other != own {
            let found = format!(
                "{}: the file names of a workload's traces need one prefix, but other traces begin with `{other}`",
                file.path.display()
            );
            return Err(ArchiveError::refused_request_error(
                found,
                "the traces of one job",
            ));
        }
        // In generated jobs, many ranks share one file under several names. A file with several names is read only
        // once.
        let identity = chakram_trace::files::file_identity(&file.path);
        let same = linked.as_ref().filter(|(of, _, _)| Some(*of) == identity);
        let (hash, bytes) = match same {
            Some((_, hash, bytes)) => (hash.clone(), *bytes),
            None => {
                let contents = DecompressedTraceFile::open_without_decompressing(&file.path)?;
                let bytes = contents.as_slice();
                if let Some(seal) = &file.seal {
                    seal.check_contents(file, bytes)?;
                }
                let hash = packer.pack_object_and_return_hash(bytes, "trace", true)?;
                let length = bytes.len() as u64;
                if let Some(identity) = identity {
                    linked = Some((identity, hash.clone(), length));
                }
                (hash, length)
            }
        };
        done();
        match traces.last_mut() {
            Some(last)
                if last.blake3 == hash
                    && last.ending == ending
                    && last.rank + last.ranks == file.rank =>
            {
                last.ranks += 1;
            }
            _ => traces.push(TraceSharedByRankRange {
                rank: file.rank,
                ranks: 1,
                ending,
                blake3: hash,
                bytes,
            }),
        }
    }
    let mut files = Vec::new();
    let jobs = draft
        .found
        .jobs
        .keys()
        .map(|path| (file_name_of_path(path), path));
    let others = draft.files.iter().map(|(name, path)| (name.clone(), path));
    for (name, path) in jobs.chain(others) {
        let contents = DecompressedTraceFile::open_without_decompressing(path)?;
        let bytes = contents.as_slice();
        files.push(NonTraceFileRow {
            blake3: packer.pack_object_and_return_hash(bytes, &remove_all_digits(&name), false)?,
            name,
            bytes: bytes.len() as u64,
        });
        done();
    }
    let entry = WorkloadEntry {
        name: draft.name.clone(),
        level: draft.level,
        metadata: draft.metadata.clone(),
        provenance: Provenance {
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            sources: draft.sources.clone(),
            merged_from: Vec::new(),
        },
        prefix: prefix.unwrap_or_else(|| "job".to_owned()),
        traces,
        files,
        baselines: Vec::new(),
        measured: draft.measured.clone(),
    };
    entry.check_names_ranks_and_hashes()?;
    Ok(entry)
}

fn file_name_of_path(path: &Path) -> String {
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_default()
}

/// Packs all objects of workload `entry` in the archive `from`.
pub(super) fn pack_workload_from_archive(
    from: &Archive,
    entry: &WorkloadEntry,
    packer: &mut ObjectPacker<'_, '_>,
    done: ObjectProgressCallback<'_>,
) -> Result<(), ArchiveError> {
    let traces = entry
        .traces
        .iter()
        .map(|row| (&row.blake3, "trace".to_owned(), true));
    let files = entry
        .files
        .iter()
        .map(|row| (&row.blake3, remove_all_digits(&row.name), false));
    let baselines = entry.baselines.iter().flat_map(|row| {
        [
            (&row.report, "report".to_owned(), false),
            (&row.machine_blake3, "machine".to_owned(), false),
        ]
    });
    for (hash, family, is_trace) in traces.chain(files).chain(baselines) {
        let bytes = from.read_object(hash)?;
        packer.pack_object_with_hash(&bytes, hash, &family, is_trace)?;
        done();
    }
    Ok(())
}
