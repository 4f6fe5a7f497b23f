//! Edits a generated job before it is written or replayed, as `chakram edit` edits files.

use super::files::trace_metadata;
use chakram_analysis::edit::{AbsentRankModelRule, EditedJob, JobEdit, edit_job};
use chakram_base::bounds;
use chakram_jobs::{
    Job, JobBeingWritten, JobLoadOptions, load_found_traces, parse_edit_or_edits_file,
};
use chakram_trace::files::{CompleteUncommittedFileHandle, OutputsAndProtectedInputs};
use chakram_trace::format::TraceError;
use chakram_trace::format::file::{
    DecompressedTraceFile, FoundTraces, HashAddressedTraceStore, RankFile, TraceStoredByHash,
};
use chakram_trace::format::job::JobTraceManifest;
use chakram_trace::format::write::{AttributeValue, TraceWriter};
use chakram_workloads::generate::CheckedWorkloadPattern;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Edits that do the same as a plan option, each with the name of that option.
const PLAN_OPTIONS: &[(&str, &str)] = &[
    ("batch", "--micro-batch, with --batch"),
    ("sequence", "--tokens"),
    ("accumulate", "--batch"),
    ("microbatches", "--micro-batch"),
    ("data", "--data"),
    ("pipeline", "--pipeline, with the layers of the model"),
    ("ranks", "--data, --tensor and --pipeline"),
    ("bucket", "--bucket"),
    ("reshard", "--reshard"),
    ("overlap", "--overlap"),
    ("schedule", "--schedule"),
];

/// Minimum size of a node in a trace, in bytes.
const NODE_BYTES: u64 = 64;

/// Parses edits. Rejects an edit if a plan option can do the same.
pub fn parse_edits_rejecting_plan_options(words: &[String]) -> Result<Vec<JobEdit>, String> {
    let mut edits = Vec::new();
    for word in words {
        let found =
            parse_edit_or_edits_file(word).map_err(|why| format!("--edit {word}: {why}"))?;
        for edit in found {
            let text = edit.to_string();
            let name = text.split('=').next().unwrap_or_default();
            if let Some((_, option)) = PLAN_OPTIONS.iter().find(|(known, _)| *known == name) {
                return Err(format!(
                    "--edit {text}: a generated job needs an option of the plan instead of this edit\n  try: {option}"
                ));
            }
            edits.push(edit);
        }
    }
    Ok(edits)
}

/// Traces of a generated job in memory, by hash.
struct InMemoryGeneratedTracesByHash(BTreeMap<[u8; 32], Vec<u8>>);

impl HashAddressedTraceStore for InMemoryGeneratedTracesByHash {
    fn read_by_hash(&self, hash: &[u8; 32]) -> Result<Vec<u8>, TraceError> {
        Ok(self.0.get(hash).cloned().unwrap_or_default())
    }
}

fn generate_in_memory(
    job: &CheckedWorkloadPattern,
    name: &str,
) -> Result<FoundTraces, Box<dyn Error>> {
    let class_of = |rank: u32| job.representative_of_identical_ranks(rank);
    let classes: BTreeMap<u32, u32> = (0..job.rank_count())
        .map(|rank| (class_of(rank), rank))
        .collect();
    let nodes: u64 = classes.values().map(|&rank| job.node_count(rank)).sum();
    bounds::check_items_fit_memory(
        format!("an edited job of {nodes} nodes"),
        nodes,
        NODE_BYTES,
        "fewer layers or ranks",
    )?;
    let mut store = BTreeMap::new();
    let mut hashes: BTreeMap<u32, [u8; 32]> = BTreeMap::new();
    let mut ranks = Vec::new();
    for rank in 0..job.rank_count() {
        let hash = match hashes.get(&class_of(rank)) {
            Some(hash) => *hash,
            None => {
                let metadata = trace_metadata(job, rank);
                let metadata: Vec<_> = metadata
                    .iter()
                    .map(|(name, text)| (*name, AttributeValue::Text(text)))
                    .collect();
                let mut writer = TraceWriter::start_with_metadata(Vec::new(), &metadata)?;
                job.emit_nodes(rank, &mut writer)?;
                let trace = writer.into_unflushed_sink();
                let hash = *blake3::hash(&trace).as_bytes();
                store.entry(hash).or_insert(trace);
                hashes.insert(class_of(rank), hash);
                hash
            }
        };
        ranks.push((rank, hash));
    }
    let store: Arc<dyn HashAddressedTraceStore> = Arc::new(InMemoryGeneratedTracesByHash(store));
    let files = ranks.into_iter().map(|(rank, hash)| RankFile {
        stored: Some(TraceStoredByHash::new(Arc::clone(&store), hash)),
        ..RankFile::new(rank, PathBuf::from(format!("{name}.{rank}.et")))
    });
    let about = JobTraceManifest {
        groups: job.declared_groups(),
        roles: job.group_roles(),
        ..JobTraceManifest::default()
    };
    Ok(FoundTraces {
        files: files.collect(),
        jobs: BTreeMap::from([(PathBuf::from(format!("{name}.job.json")), Arc::new(about))]),
        ..FoundTraces::default()
    })
}

/// A generated job, and the edits to apply to it.
pub struct GeneratedJobAndEdits {
    found: FoundTraces,
    edits: Vec<JobEdit>,
    name: String,
}

impl GeneratedJobAndEdits {
    /// Generates the traces of `job`, and names the job `name`.
    pub fn new(
        job: &CheckedWorkloadPattern,
        name: &str,
        edits: Vec<JobEdit>,
    ) -> Result<Self, Box<dyn Error>> {
        Ok(Self {
            found: generate_in_memory(job, name)?,
            edits,
            name: name.to_owned(),
        })
    }

    /// Edits the job and writes it. Returns a sentence that names the files, and the edited job.
    pub fn write_edited(
        &self,
        job: &CheckedWorkloadPattern,
        prefix: &Path,
        outputs: OutputsAndProtectedInputs,
        link: bool,
        machine: Option<&str>,
    ) -> Result<(String, EditedJob), Box<dyn Error>> {
        let edited = edit_job(
            &self.found,
            &self.edits,
            &job.declared_groups(),
            AbsentRankModelRule::Nearest,
        )?;
        let mut outputs = JobBeingWritten::new(prefix, "", outputs)?;
        let mut written: BTreeMap<[u8; 32], CompleteUncommittedFileHandle> = BTreeMap::new();
        for file in &edited.found.files {
            let contents = DecompressedTraceFile::open_verified(file)?;
            let hash = *blake3::hash(contents.as_slice()).as_bytes();
            if let Some(&known) = written.get(&hash)
                && outputs
                    .share_trace_by_link_or_copy(file.rank, known, link)?
                    .is_some()
            {
                continue;
            }
            let done = outputs.write_trace(file.rank, contents.as_slice())?;
            written.entry(hash).or_insert(done);
        }
        if !edited.groups.is_empty() {
            outputs.write_groups(&edited.groups)?;
        }
        let names = crate::traces::name_job_traces_and_note_others(&outputs.commit_job(
            JobTraceManifest {
                groups: edited.groups.clone(),
                roles: job.group_roles(),
                machine: machine.map(str::to_owned),
                ..JobTraceManifest::default()
            },
        )?)?;
        Ok((names, edited))
    }

    /// Edits the job and loads it for a replay, without writing files.
    pub fn load_edited(&self) -> Result<Job, Box<dyn Error>> {
        let options = JobLoadOptions {
            edits: self.edits.clone(),
            ..JobLoadOptions::default()
        };
        Ok(load_found_traces(
            &self.found,
            self.name.clone(),
            &options,
            &mut |_, _| {},
        )?)
    }
}
