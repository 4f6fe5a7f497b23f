//! Selects one profiled step of a job. The step's traces are slices, each written only when it is opened.

use super::slice::{AnnotationStepOrIdSelector, JobCommunication, KeptNodesOfRank};
use chakram_base::units::Span;
use chakram_trace::format::TraceError;
use chakram_trace::format::error::TraceErrorLocation;
use chakram_trace::format::file::{
    DecompressedTraceFile, FoundTraces, HashAddressedTraceStore, RankFile, TraceStoredByHash,
};
use chakram_trace::format::groups::DeclaredGroups;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Writes slices of a job's traces on demand. Hashes identify the slices.
struct OnDemandStepSliceWriter {
    parts: BTreeMap<[u8; 32], (TraceFileOrPipeContents, KeptNodesOfRank)>,
    /// Earliest start of the step on any rank.
    start: Span,
}

enum TraceFileOrPipeContents {
    File(RankFile),
    /// Contents read from a pipe, stored because a pipe can be read only once.
    Held(Arc<DecompressedTraceFile>),
}

impl TraceFileOrPipeContents {
    fn run_work_on_contents<T>(
        &self,
        work: impl FnOnce(&[u8]) -> Result<T, TraceError>,
    ) -> Result<T, TraceError> {
        let opened;
        let contents = match self {
            Self::File(file) => {
                opened = DecompressedTraceFile::open_verified(file)?;
                &opened
            }
            Self::Held(contents) => contents,
        };
        work(contents.as_slice()).map_err(|error| contents.locate_error_in_original_file(error))
    }
}

impl HashAddressedTraceStore for OnDemandStepSliceWriter {
    fn read_by_hash(&self, hash: &[u8; 32]) -> Result<Vec<u8>, TraceError> {
        let (source, part) = self.parts.get(hash).expect("names are those of parts");
        let written = source
            .run_work_on_contents(|contents| part.encode_slice_of_trace(contents, self.start))?;
        Ok(written.0)
    }
}

/// Returns the traces of `found`, cut by a [slice](mod@super::slice) to the nodes of the profiled step `step`. `groups`
/// contains the groups that are declared outside the traces. `piped` contains the trace that was already read from a
/// pipe, if there is one.
///
/// # Errors
///
/// Fails if a replay would reject a trace, if a rank lacks the step, or if nodes of the step communicate with nodes
/// outside it.
pub fn slice_traces_to_profiled_step(
    found: &FoundTraces,
    step: u64,
    groups: &DeclaredGroups,
    piped: Option<DecompressedTraceFile>,
) -> Result<FoundTraces, TraceError> {
    let target = AnnotationStepOrIdSelector::Step(step);
    let mut matches = JobCommunication::default();
    let mut parts = BTreeMap::new();
    let mut hashes = Vec::new();
    let mut piped = piped.map(Arc::new);
    for file in &found.files {
        let source = match found.stream.as_ref() == Some(&file.path) {
            false => TraceFileOrPipeContents::File(file.clone()),
            true => {
                let contents = match &piped {
                    Some(contents) => Arc::clone(contents),
                    None => Arc::new(DecompressedTraceFile::open_as_current_schema(&file.path)?),
                };
                piped = Some(Arc::clone(&contents));
                TraceFileOrPipeContents::Held(contents)
            }
        };
        let part = source.run_work_on_contents(|contents| {
            KeptNodesOfRank::select_nodes_and_collect_communication(
                contents,
                file.rank,
                &target,
                groups,
                &mut matches,
            )
        })?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&step.to_le_bytes());
        hasher.update(&file.rank.to_le_bytes());
        hasher.update(file.path.as_os_str().as_encoded_bytes());
        let hash = *hasher.finalize().as_bytes();
        hashes.push(hash);
        parts.insert(hash, (source, part));
    }
    let unmatched = matches.find_kept_with_cut_partners();
    if unmatched.count > 0 {
        return Err(TraceError::invalid_at(
            TraceErrorLocation::default(),
            format!(
                "step {step} separates {} collectives and messages from partners outside the step:\n{unmatched}",
                unmatched.count
            ),
            "cut these with `slice`, or take all steps",
        ));
    }
    let start = parts.values().map(|(_, part)| part.earliest_start()).min();
    let store: Arc<dyn HashAddressedTraceStore> = Arc::new(OnDemandStepSliceWriter {
        parts,
        start: start.unwrap_or_default(),
    });
    let files = found.files.iter().zip(hashes).map(|(file, hash)| RankFile {
        stored: Some(TraceStoredByHash::new(Arc::clone(&store), hash)),
        seal: None,
        ..file.clone()
    });
    Ok(FoundTraces {
        files: files.collect(),
        stream: None,
        ..found.clone()
    })
}
