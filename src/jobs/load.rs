//! Loads a job: finds its files, reads declared groups, and combines the ranks' traces into a workload.

use super::input::{describe_input_with_hash, read_text};
use super::{Job, JobLoadOrWriteError};
use chakram_analysis::edit::{
    AbsentRankModelRule, JobEdit, edit_job, slice_traces_to_profiled_step,
};
use chakram_archive as archive;
use chakram_base::bounds::{self, MemoryLimitError};
use chakram_base::ids::{GraphId, Rank};
use chakram_base::interrupt;
use chakram_base::parallel;
use chakram_base::units::{Span, Time};
use chakram_report::summary::HashedInput;
use chakram_trace::files::{OutputsAndProtectedInputs, file_identity};
use chakram_trace::format::TraceError;
use chakram_trace::format::file::{
    DecompressedTraceFile, ExpectedFileLengthAndHash, FoundTraces, RankFile, TraceFinder,
    TraceHashVerificationLevel, TraceStoredByHash,
};
use chakram_trace::format::groups::{self, DeclaredGroups};
use chakram_trace::graph::{
    EnforcedDependencyKinds, Graph, ProfilerOverheadRemovalPolicy, RankBindingsOfGraphSlots,
};
use chakram_trace::workload::{MissingRankPolicy, Workload, WorkloadBuilder};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Options for loading a job from files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobLoadOptions {
    /// How strictly traces are compared with the job file, `PREFIX.job.json`.
    pub verify: TraceHashVerificationLevel,
    /// A file with process groups that replace the groups in the job file.
    pub groups: Option<PathBuf>,
    /// Dependencies that the replay enforces.
    pub dependencies: EnforcedDependencyKinds,
    /// How ranks without a trace are treated.
    pub absent: MissingRankPolicy,
    /// Number of ranks in the job, if it is higher than the traces show.
    pub ranks: Option<u32>,
    /// Minimum number of ranks with [`MissingRankPolicy::Mirror`]; usually the number of NPUs in the machine. Applies
    /// only if neither `ranks` nor the traces give a number.
    pub mirrored: u32,
    /// Number of the profiled step to read; `None` to read the whole traces.
    pub step: Option<u64>,
    /// Changes to the job after it is read.
    pub edits: Vec<JobEdit>,
    /// Rule that selects which captured ranks the new ranks of an edited job copy.
    pub role_model: AbsentRankModelRule,
    /// Ranks that start later than the others, each with its delay.
    pub delays: Vec<(u32, Span)>,
    /// How the profiler's estimated overhead is treated.
    pub profiler: ProfilerOverheadRemovalPolicy,
    /// True if inputs are hashed, which reads every byte a second time.
    pub hash: bool,
}

/// Function that receives the number of ranks read so far, and the total.
pub type LoadProgressFn<'p> = dyn FnMut(usize, usize) + 'p;

/// Finds the files of a job. If there are several paths, all must belong to one job.
pub fn find_traces<P: AsRef<Path>>(
    paths: impl IntoIterator<Item = P>,
    verify: TraceHashVerificationLevel,
) -> Result<FoundTraces, TraceError> {
    let mut finder = TraceFinder::new(verify);
    let mut stored = FoundTraces::default();
    for path in paths {
        match archive::find_traces_of_archive_path(path.as_ref())? {
            Some(found) => stored.extend(found),
            None => finder.add_path(path.as_ref())?,
        }
    }
    let mut found = finder.finish_search();
    found.extend(stored);
    Ok(found)
}

/// Registers the files in `found` as inputs, so that `outputs` cannot replace them.
pub fn protect_found_files_as_inputs(outputs: &mut OutputsAndProtectedInputs, found: &FoundTraces) {
    let traces = found.files.iter().map(|file| &file.path);
    traces
        .chain(found.jobs.keys())
        .for_each(|path| outputs.register_input(path));
}

/// Returns the groups that job files declare.
pub fn declared_groups(found: &FoundTraces) -> Result<DeclaredGroups, JobLoadOrWriteError> {
    let mut all = DeclaredGroups::new();
    for (path, job) in &found.jobs {
        for (name, ranks) in &job.groups {
            let before = all.insert(name.clone(), ranks.clone());
            if before.is_some_and(|before| before != *ranks) {
                return Err(JobLoadOrWriteError::GroupTwice {
                    file: path.clone(),
                    group: name.clone(),
                });
            }
        }
    }
    Ok(all)
}

/// Returns the groups that the file `path` declares. Without `path`, returns the groups in the job file. If hashes are
/// requested, adds the groups' file to `inputs`.
pub fn groups_from_file_or_job(
    path: Option<&Path>,
    found: &FoundTraces,
    inputs: Option<&mut Vec<HashedInput>>,
) -> Result<DeclaredGroups, JobLoadOrWriteError> {
    let Some(path) = path else {
        return declared_groups(found);
    };
    let text = read_text(path)?;
    if let Some(inputs) = inputs {
        inputs.push(describe_input_with_hash("groups", path, text.as_bytes()));
    }
    Ok(groups::parse_group_file(&text).map_err(|e| e.in_file(path))?)
}

/// Returns the traces in `found`. If `step` is given, they contain only the profiled step with this number. `piped` is
/// the content of a trace from a pipe, or `None` if the traces are files.
pub fn restrict_to_step(
    found: FoundTraces,
    step: Option<u64>,
    piped: Option<DecompressedTraceFile>,
) -> Result<FoundTraces, JobLoadOrWriteError> {
    match step {
        Some(step) => Ok(slice_traces_to_profiled_step(
            &found,
            step,
            &declared_groups(&found)?,
            piped,
        )?),
        None => Ok(found),
    }
}

/// Loads the job in `found` under the name `name`.
pub fn load_found_traces(
    found: &FoundTraces,
    name: String,
    options: &JobLoadOptions,
    progress: &mut LoadProgressFn<'_>,
) -> Result<Job, JobLoadOrWriteError> {
    let mut builder = WorkloadBuilder::default();
    let mut inputs = Vec::new();
    let groups = options.groups.as_deref();
    let groups = groups_from_file_or_job(groups, found, options.hash.then_some(&mut inputs))?;
    let sliced = options
        .step
        .map(|step| slice_traces_to_profiled_step(found, step, &groups, None));
    let sliced = sliced.transpose()?;
    let found = sliced.as_ref().unwrap_or(found);
    let edited = match &options.edits[..] {
        [] => None,
        edits => Some(edit_job(found, edits, &groups, options.role_model)?),
    };
    let completed = edited.as_ref().map_or(0, |edited| edited.completed);
    let (found, groups, edits) = match edited {
        Some(edited) => (&edited.found.clone(), edited.groups, edited.rows),
        None => (found, groups, Vec::new()),
    };
    builder.declare_groups(groups);
    let read = |contents: &[u8], file: &RankFile| {
        Graph::read_with_or_without_profiler_cost(
            contents,
            file.rank,
            options.dependencies,
            options.profiler,
        )
        .map_err(|e| e.in_file(&file.path))
    };
    let release = |rank: u32| {
        let delays = options.delays.iter();
        let release = delays.filter(|(delayed, _)| *delayed == rank);
        release.fold(Time::ZERO, |at, (_, span)| at + *span)
    };
    let hashed = options.hash.then_some(&mut inputs);
    let read = (read, |read| read);
    read_traces(&found.files, &mut builder, release, hashed, read, progress)?;
    let known = |rank: u32| found.files.iter().any(|file| file.rank == rank);
    if let Some(&(rank, _)) = options.delays.iter().find(|(rank, _)| !known(*rank)) {
        let ranks = || found.files.iter().map(|file| file.rank);
        let known = (ranks().min().unwrap_or(0), ranks().max().unwrap_or(0));
        return Err(JobLoadOrWriteError::NobodyToDelay { rank, known });
    }
    for (path, job) in &found.jobs {
        builder.declare_group_roles(&job.roles);
        match found.stored_jobs.get(path) {
            _ if !options.hash => {}
            Some(hash) => inputs.push(HashedInput {
                role: "job".into(),
                name: path.display().to_string(),
                blake3: hash.clone(),
            }),
            None => inputs.push(describe_input_with_hash(
                "job",
                path,
                read_text(path)?.as_bytes(),
            )),
        }
    }
    let ranks = match (options.ranks, options.absent) {
        (None, MissingRankPolicy::Mirror) => {
            let stated = builder.stated_rank_count();
            stated.or_else(|| Some(builder.min_rank_count().max(options.mirrored)))
        }
        (ranks, _) => ranks,
    };
    let workload = builder.finish_workload(ranks, options.absent)?;
    check_replay_state_fits_memory(&workload)?;
    let mut graphs = workload.distinct_graphs().iter();
    if options.profiler == ProfilerOverheadRemovalPolicy::Remove
        && !graphs.any(|graph| graph.facts_about_profiler().removed)
    {
        return Err(JobLoadOrWriteError::NoProfilerCost);
    }
    Ok(Job {
        name: match options.step {
            Some(step) => format!("{name}, step {step}"),
            None => name,
        },
        workload,
        absent: options.absent,
        inputs,
        edits,
        completed,
    })
}

/// Checks that a run's state fits into memory. The state has 4 bytes per node and rank. Even small files may need a
/// large state, because many ranks can share one file.
///
/// # Errors
///
/// Fails if the state does not fit.
pub fn check_replay_state_fits_memory(workload: &Workload) -> Result<(), MemoryLimitError> {
    let graphs = workload.distinct_graphs();
    let nodes = workload.instances().iter();
    let nodes = nodes.map(|instance| graphs[instance.graph.index()].len() as u64);
    let nodes = nodes.fold(0, u64::saturating_add);
    bounds::check_items_fit_memory(
        format!("a replay of {nodes} nodes"),
        nodes,
        4,
        "fewer ranks",
    )
}

/// A trace's content, and its hash if hashes were requested.
struct TraceContentWithHash<R> {
    read: R,
    hash: Option<HashedInput>,
    is_of_member: bool,
}

/// Number of files that each thread reads before the loader adds them to the workload. The number is large enough that
/// threads rarely wait for each other.
const FILES_OF_THREAD: usize = 16;

/// Reads `files` with `read` on all processors, and adds them to `builder`. Reads a file with several names (hard
/// links) only once, unless its content depends on the rank. Calls `graph_of` for the files in their order. If hashes
/// are requested, adds the files to `inputs`.
pub fn read_traces<R: Send>(
    files: &[RankFile],
    builder: &mut WorkloadBuilder,
    release: impl Fn(u32) -> Time,
    mut inputs: Option<&mut Vec<HashedInput>>,
    (read, mut graph_of): (
        impl Fn(&[u8], &RankFile) -> Result<R, TraceError> + Sync,
        impl FnMut(R) -> (Graph, RankBindingsOfGraphSlots),
    ),
    progress: &mut LoadProgressFn<'_>,
) -> Result<(), JobLoadOrWriteError> {
    let is_hashed = inputs.is_some();
    let read = |file: &RankFile| -> Result<TraceContentWithHash<R>, JobLoadOrWriteError> {
        interrupt::fail_if_stopped_or_out_of_memory()?;
        let contents = DecompressedTraceFile::open_verified(file)?;
        let read = read(contents.as_slice(), file)
            .map_err(|e| contents.locate_error_in_original_file(e))?;
        let hash =
            is_hashed.then(|| describe_input_with_hash("trace", &file.path, contents.as_slice()));
        Ok(TraceContentWithHash {
            read,
            hash,
            is_of_member: contents.represents_several_ranks(),
        })
    };
    let threads = parallel::processor_count();
    let mut linked = FilesByInode::default();
    let mut done = 0;
    let total = files.len();
    for files in files.chunks(FILES_OF_THREAD * threads) {
        let keys = files.iter().map(|file| {
            let stored = file.stored.as_ref().map(TraceStoredByHash::identity);
            let key = stored.or_else(|| file_identity(&file.path));
            key.map(|key| (key, file.seal))
        });
        let keys: Vec<Option<InodeAndExpectedDigest>> = keys.collect();
        let mut seen = BTreeSet::new();
        let is_new = |key: &Option<InodeAndExpectedDigest>| {
            key.is_none_or(|key| !linked.0.contains_key(&key) && seen.insert(key))
        };
        let new: Vec<bool> = keys.iter().map(is_new).collect();
        let new_files: Vec<&RankFile> = (files.iter().zip(&new))
            .filter_map(|(file, is_new)| is_new.then_some(file))
            .collect();
        let traces = parallel::map_in_order(threads, &new_files, |file| read(file))?;
        let mut traces = traces.into_iter();
        for ((file, key), is_new) in files.iter().zip(keys).zip(new) {
            let known = key.and_then(|key| linked.0.get(&key));
            let (graph, binding) = match known {
                // All ranks with this file get the same content, because the content does not depend on the rank.
                Some((graph, binding, index)) if binding.peers.is_empty() => {
                    if let (Some(inputs), Some(index)) = (&mut inputs, index) {
                        let known: &HashedInput = &inputs[*index];
                        let again = HashedInput {
                            name: file.path.display().to_string(),
                            ..known.clone()
                        };
                        inputs.push(again);
                    }
                    (*graph, binding.clone())
                }
                _ => {
                    let trace = match is_new.then(|| traces.next()).flatten() {
                        Some(trace) => trace,
                        None => read(file)?,
                    };
                    let index = inputs.as_mut().zip(trace.hash).map(|(inputs, hash)| {
                        inputs.push(hash);
                        inputs.len() - 1
                    });
                    let (graph, binding) = graph_of(trace.read);
                    let graph = builder.add_or_reuse_equal_graph(graph);
                    if let Some(key) = key.filter(|_| !trace.is_of_member) {
                        linked.0.insert(key, (graph, binding.clone(), index));
                    }
                    (graph, binding)
                }
            };
            builder.add_rank(Rank(file.rank), graph, binding, release(file.rank))?;
            done += 1;
            progress(done, total);
        }
    }
    Ok(())
}

/// Files that were already read, keyed by device and inode, because a file can have several names.
#[derive(Default)]
struct FilesByInode(
    BTreeMap<InodeAndExpectedDigest, (GraphId, RankBindingsOfGraphSlots, Option<usize>)>,
);

/// Device and inode of a file, and its expected digest.
type InodeAndExpectedDigest = ((u64, u64), Option<ExpectedFileLengthAndHash>);
