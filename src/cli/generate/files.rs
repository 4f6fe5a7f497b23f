//! Writes the traces of all ranks as a job.

use crate::progress::{NodeCountingSink, ProgressDisplay};
use crate::{terminal, traces};
use chakram_jobs::JobBeingWritten;
use chakram_report::summary::format_count_with_noun;
use chakram_trace::files::{CompleteUncommittedFileHandle, OutputsAndProtectedInputs};
use chakram_trace::format::job::JobTraceManifest;
use chakram_trace::format::members::{MEMBERS, SharedTraceRankSubstitutions};
use chakram_trace::format::roles;
use chakram_trace::format::scan::CORE;
use chakram_trace::format::work_amounts;
use chakram_trace::format::write::{AttributeValue, TraceWriter};
use chakram_workloads::generate::CheckedWorkloadPattern;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::rc::Rc;

/// Total number of nodes above which a note warns, before writing, that the files will be large.
const MANY: u64 = 20_000_000;

/// Rules for which ranks share a file.
#[derive(Clone, Copy, Debug)]
pub struct RankFileSharingRules {
    /// True if identical ranks share one file through hard links. If `link` is false, or if the file system has no hard
    /// links, each rank gets a copy of the file.
    pub link: bool,
    /// True if ranks that differ only in peers, groups and cores also share a file.
    pub members: bool,
}

/// Returns the metadata for the trace of `rank`: facts about the whole job, and the core of the
/// rank.
pub(super) fn trace_metadata(
    job: &CheckedWorkloadPattern,
    rank: u32,
) -> Vec<(&'static str, String)> {
    let roles = job.group_roles().to_string();
    let mut metadata = Vec::new();
    if !roles.is_empty() {
        metadata.push((roles::ATTRIBUTE, roles));
    }
    if let Some(amounts) = job.job_samples_and_model_flops() {
        metadata.push((work_amounts::ATTRIBUTE, amounts.to_string()));
    }
    if let Some([x, y]) = job.core_coordinates_of_rank(rank) {
        metadata.push((CORE, format!("{x},{y}")));
    }
    metadata
}

/// Writes the traces of all ranks. Returns a sentence that names the files. `machine` is the name of the machine for
/// which the job is generated.
pub fn write_traces(
    job: &CheckedWorkloadPattern,
    output: &Path,
    outputs: OutputsAndProtectedInputs,
    sharing: RankFileSharingRules,
    machine: Option<&str>,
) -> Result<String, Box<dyn Error>> {
    let link = sharing.link;
    let mut outputs = JobBeingWritten::new(output, "", outputs)?;
    let mut written: BTreeMap<(bool, u32), CompleteUncommittedFileHandle> = BTreeMap::new();
    // The ranks that share one trace, which can be looked up by any of these ranks.
    let mut members: BTreeMap<u32, Rc<SharedTraceRankSubstitutions>> = BTreeMap::new();
    if sharing.members {
        for of in job.find_equal_rank_ranges()?.into_iter().map(Rc::new) {
            members.extend(of.ranks.iter().map(|&rank| (rank, Rc::clone(&of))));
        }
    }
    let class_of = |rank: u32| match members.get(&rank) {
        Some(of) => (true, of.ranks[0]),
        None => (false, job.representative_of_identical_ranks(rank)),
    };
    // If files can be shared, generate each class of identical ranks only once.
    let classes: BTreeMap<_, u32> = (0..job.rank_count()).map(|r| (class_of(r), r)).collect();
    let nodes = classes.values().map(|rank| job.node_count(*rank)).sum();
    job.check_largest_trace_fits_memory()?;
    if nodes > MANY {
        terminal::print_note(format_args!(
            "writing {}, which takes a while and gigabytes; Ctrl-C leaves no file",
            format_count_with_noun(nodes, "node")
        ))?;
    }
    // Creating a hard link takes almost no time, but copying a file does, so progress also counts the nodes of copies.
    let all = match link {
        true => nodes,
        false => (0..job.rank_count()).map(|rank| job.node_count(rank)).sum(),
    };
    let progress = ProgressDisplay::start_counting("writing", "nodes", all);
    for rank in 0..job.rank_count() {
        let class = class_of(rank);
        if let Some(&known) = written.get(&class)
            && outputs
                .share_trace_by_link_or_copy(rank, known, link)?
                .is_some()
        {
            if !link {
                progress.count_more(job.node_count(rank));
            }
            continue;
        }
        let target = outputs.path_of_rank(rank);
        let metadata = trace_metadata(job, rank);
        let metadata = metadata
            .iter()
            .map(|(name, text)| (*name, AttributeValue::Text(text)));
        let shared = members.get(&rank).filter(|of| of.ranks[0] == rank);
        let shared = shared.map(|of| of.to_text());
        let shared = shared
            .as_deref()
            .map(|text| (MEMBERS, AttributeValue::Text(text)));
        let metadata: Vec<_> = metadata.chain(shared).collect();
        let mut writer = TraceWriter::start_with_metadata(outputs.start_trace(rank)?, &metadata)?;
        let nodes = job.emit_nodes(rank, &mut NodeCountingSink(&progress, &mut writer));
        nodes.map_err(|error| error.fill_missing_output_path(&target))?;
        let done = outputs.finish_trace(rank, writer.into_unflushed_sink())?;
        // If the file could not be shared, later ranks of the class have written their own files.
        // Keep the file of the first rank.
        written.entry(class).or_insert(done);
    }
    let groups = job.declared_groups();
    if !groups.is_empty() {
        outputs.write_groups(&groups)?;
    }
    traces::name_job_traces_and_note_others(&outputs.commit_job(JobTraceManifest {
        groups,
        roles: job.group_roles(),
        machine: machine.map(str::to_owned),
        ..JobTraceManifest::default()
    })?)
}
