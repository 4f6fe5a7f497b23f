//! Reads a job, including its machine, from ASTRA-sim's inputs.

use super::JobLoadOrWriteError;
use super::custom::parse_algorithm_from_file_contents;
use super::input::describe_input_with_hash;
use super::load::{LoadProgressFn, read_traces};
use chakram_astra_sim::custom_algorithm::AstraOrRecordedScriptDurations;
use chakram_astra_sim::{
    self as astra_sim, AnalyticalCongestionModel, AstraCollectiveBackend, AstraFlags, AstraInputs,
    AstraRankGraphAndBinding, AstraTraceGraphReader, CongestionAwareModel, CongestionUnawareModel,
    LinkCutThroughNetwork, MisleadingValidInputNote, NodeTypesById, PortCutThroughNetwork, Quirk,
    RankTensors, RankWorkKindsAndKernelTime,
};
use chakram_base::ids::Npu;
use chakram_base::units::Time;
use chakram_engine::{
    CompiledReplay, CompletedReplayTotals, KernelDurationSource, ReplayError, ReplayOptions,
    ReplayRefusal,
};
use chakram_hardware::collective::ScriptedAlgorithm;
use chakram_hardware::machine::Machine;
use chakram_hardware::network::NetworkBackend;
use chakram_report::summary::HashedInput;
use chakram_report::{self as report, Observer, Report};
use chakram_trace::format::TraceError;
use chakram_trace::format::file::{DecompressedTraceFile, PrefixedTraceFiles, RankFile, read_text};
use chakram_trace::workload::{MissingRankPolicy, Workload, WorkloadBuilder};
use std::path::{Path, PathBuf};

/// A job from ASTRA-sim's inputs: the inputs, the traces, and notes about the inputs.
#[derive(Debug)]
pub struct AstraSimJob {
    /// The inputs without the traces.
    pub inputs: AstraInputs,
    /// Implementation of collectives, with ASTRA-sim's algorithms.
    pub collectives: AstraCollectiveBackend,
    /// Traces of all ranks.
    pub workload: Workload,
    /// Number of lanes that an NPU needs for the job.
    pub lanes: u32,
    /// True if sends may lack a matching receive, and receives a matching send.
    pub lenient: bool,
    /// Work of each instance, as far as it is known without a replay.
    pub work: Vec<RankWorkKindsAndKernelTime>,
    /// Tensors of each instance, if the inputs request memory tracking.
    pub tensors: Option<Vec<RankTensors>>,
    /// Node types of each instance, if the inputs request node logs.
    pub types: Option<Vec<NodeTypesById>>,
    /// Notes about the inputs for the user.
    pub notes: Vec<MisleadingValidInputNote>,
    /// The input files with hashes, if hashes were requested.
    pub files: Vec<HashedInput>,
}

impl AstraSimJob {
    /// Reads all files that `flags` name.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be read, or if its content is invalid.
    pub fn open_inputs(flags: &AstraFlags) -> Result<Self, JobLoadOrWriteError> {
        Self::load_inputs_with_optional_hashes(flags, false, &mut |_, _| {})
    }

    /// Reads all files that `flags` name, and hashes them if `hash` is true.
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`Self::open_inputs`].
    pub fn load_inputs_with_optional_hashes(
        flags: &AstraFlags,
        hash: bool,
        progress: &mut LoadProgressFn<'_>,
    ) -> Result<Self, JobLoadOrWriteError> {
        let mut files = Vec::new();
        let inputs = AstraInputs::read_files(flags, &mut |role, path| {
            let file = std::fs::File::open(path)?;
            let text = read_text(&file, file.metadata()?.len())?;
            if hash {
                files.push(describe_input_with_hash(role, path, text.as_bytes()));
            }
            Ok(text)
        })?;
        let mut notes = inputs.notes.clone();
        let mut collectives = AstraCollectiveBackend::new(&inputs);
        for prefix in inputs.custom_algorithm_file_prefixes() {
            let algorithm = read_custom_algorithm(prefix, inputs.network.npu_count())?;
            collectives.add_custom_algorithm(&inputs, prefix, algorithm);
        }
        // Like ASTRA-sim, read one trace per NPU of the network.
        let (ranks, beyond) =
            rank_files_and_files_beyond_npus(&inputs.workload, inputs.network.npu_count());
        if let Some(first) = beyond.first() {
            notes.push(extra_traces_note(flags, &inputs, first, beyond.len()));
        }
        let mut builder = WorkloadBuilder::default();
        builder.declare_groups(inputs.groups.to_declared_groups());
        let reader = AstraTraceGraphReader::new(&inputs, &collectives, flags.lenient);
        let mut lanes = 1;
        let read = |contents: &[u8], file: &RankFile| {
            let path = file.path.display().to_string();
            let read = reader.read_graph(contents, file.rank, &path);
            read.map_err(|e| e.in_file(&file.path))
        };
        let graph_of = |read: AstraRankGraphAndBinding| {
            notes.extend(read.notes);
            lanes = lanes.max(read.lanes);
            (read.graph, read.binding)
        };
        let read = (read, graph_of);
        let hashed = hash.then_some(&mut files);
        read_traces(&ranks, &mut builder, |_| Time::ZERO, hashed, read, progress)?;
        let workload =
            builder.finish_workload(Some(inputs.network.npu_count()), MissingRankPolicy::Refuse)?;
        let tensors = if inputs.system.track_memory {
            Some(read_tensors(&ranks, flags.lenient, &mut notes)?)
        } else {
            None
        };
        let types = if flags.logs && inputs.system.trace {
            Some(read_node_types(&ranks)?)
        } else {
            None
        };
        Ok(Self {
            work: summarize_work_of_each_rank(&workload, &inputs),
            lenient: flags.lenient,
            inputs,
            collectives,
            workload,
            lanes,
            tensors,
            types,
            notes,
            files,
        })
    }

    /// Builds the machine that the inputs describe.
    pub fn build_machine(&self) -> Machine {
        astra_sim::build_machine(&self.inputs, self.lanes)
    }

    /// Compiles the replay for `machine`, which [`Self::build_machine`] must have built.
    ///
    /// # Errors
    ///
    /// Fails if the machine cannot run the job.
    pub fn compile_replay<'a>(
        &'a self,
        machine: &'a Machine,
        options: &ReplayOptions,
    ) -> Result<CompiledReplay<'a>, ReplayError> {
        let options = ReplayOptions {
            allow_unmatched: self.lenient,
            // ASTRA-sim's rules already set the kernels' durations when the traces were read, so use only recorded
            // durations.
            compute: KernelDurationSource::RecordedOnly,
            ..options.clone()
        };
        Ok(CompiledReplay::compile_with_collective_backend(
            &self.workload,
            machine,
            &options,
            &self.collectives,
        )?)
    }

    /// Replays the job as ASTRA-sim does, including each quirk that the flags do not correct.
    /// Returns the report of the replay.
    ///
    /// # Errors
    ///
    /// Fails if the machine cannot run the job, or if the replay deadlocks.
    pub fn replay_for_report(&self, options: &ReplayOptions) -> Result<Report, ReplayError> {
        let machine = self.build_machine();
        let prepared = self.compile_replay(&machine, options)?;
        let mut collectives = self.collectives.clone();
        let (_, report) =
            replay_on_input_network(&prepared, &self.inputs, &mut collectives, true, &mut ())?;
        Ok(report.expect("it was asked for"))
    }
}

/// Replays `prepared` on the network that `inputs` selects. Also collects a report if `full` is true.
///
/// The event loop is compiled here once per network. Observers are called dynamically, because
/// static calls would need another copy of the loop for each observer.
pub fn replay_on_input_network(
    prepared: &CompiledReplay<'_>,
    inputs: &AstraInputs,
    collectives: &mut AstraCollectiveBackend,
    full: bool,
    observer: &mut dyn Observer,
) -> Result<(CompletedReplayTotals, Option<Report>), ReplayError> {
    let (file, quirks) = (&inputs.network, inputs.quirks);
    let shares = !quirks.has_quirk(Quirk::FreePorts);
    let cuts_through = !quirks.has_quirk(Quirk::StoreAndForward);
    let replayed = match inputs.model {
        AnalyticalCongestionModel::Unaware if shares => {
            let network = PortCutThroughNetwork::new(file, quirks);
            replay_over_network(network, prepared, collectives, full, observer)
        }
        AnalyticalCongestionModel::Unaware => {
            let network = CongestionUnawareModel::new(file, quirks);
            replay_over_network(network, prepared, collectives, full, observer)
        }
        AnalyticalCongestionModel::Aware if cuts_through => {
            let network = LinkCutThroughNetwork::new(file, quirks);
            replay_over_network(network, prepared, collectives, full, observer)
        }
        AnalyticalCongestionModel::Aware => {
            let network = CongestionAwareModel::new(file, quirks);
            replay_over_network(network, prepared, collectives, full, observer)
        }
    };
    match collectives.first_undelayed_npu_and_collective() {
        None => replayed,
        Some((npu, node)) => Err(ReplayError::Refused(
            collective_at_start_without_delay_error(inputs, npu, node),
        )),
    }
}

/// Returns the error for a collective that starts at time 0 with a zero endpoint delay. Such a collective makes
/// ASTRA-sim abort.
fn collective_at_start_without_delay_error(
    inputs: &AstraInputs,
    npu: Npu,
    node: u64,
) -> ReplayRefusal {
    let delay = inputs.system.endpoint_delay.unwrap_or(0);
    ReplayRefusal::new(
        format!(
            "key `{}`: makes of an endpoint delay of {delay} ns none, and rank {npu} comes to the collective of its node \
             {node} at time 0, where the original aborts without one",
            "--injection-scale"
        ),
        format!(
            "a scale of at least {}, or \"endpoint-delay\": 0 in the system file, which is none here",
            1.0 / delay as f64
        ),
    )
}

fn replay_over_network<N: NetworkBackend>(
    network: N,
    prepared: &CompiledReplay<'_>,
    collectives: &mut AstraCollectiveBackend,
    full: bool,
    observer: &mut dyn Observer,
) -> Result<(CompletedReplayTotals, Option<Report>), ReplayError> {
    if full {
        let replayed = report::replay_with_network_and_collective_models(
            prepared,
            observer,
            network,
            collectives,
        );
        return replayed.map(|(report, _)| (report.outcome.clone(), Some(report)));
    }
    let outcome = prepared.run_with_network_and_backend(observer, network, collectives)?;
    Ok((outcome, None))
}

/// Returns the work of each instance. Examines a graph that several instances share only once, not once per instance.
fn summarize_work_of_each_rank(
    workload: &Workload,
    inputs: &AstraInputs,
) -> Vec<RankWorkKindsAndKernelTime> {
    let graphs = workload.distinct_graphs().iter();
    let graphs: Vec<RankWorkKindsAndKernelTime> = graphs
        .map(|graph| RankWorkKindsAndKernelTime::sum_work_of_graph(graph, inputs))
        .collect();
    let instances = workload.instances().iter();
    instances.map(|i| graphs[i.graph.index()]).collect()
}

/// Returns the node types of each rank. Reads each file a second time.
fn read_node_types(ranks: &[RankFile]) -> Result<Vec<NodeTypesById>, TraceError> {
    let read = |file: &RankFile| {
        let contents = DecompressedTraceFile::open_verified(file)?;
        NodeTypesById::read_types(contents.as_slice())
            .map_err(|e| contents.locate_error_in_original_file(e))
    };
    ranks.iter().map(read).collect()
}

/// Returns each rank's tensors. Reads each file a second time.
fn read_tensors(
    ranks: &[RankFile],
    lenient: bool,
    notes: &mut Vec<MisleadingValidInputNote>,
) -> Result<Vec<RankTensors>, TraceError> {
    let mut read = |file: &RankFile| {
        let contents = DecompressedTraceFile::open_verified(file)?;
        let path = file.path.display().to_string();
        let tensors = RankTensors::read_tensors(contents.as_slice(), lenient, &path, notes);
        tensors.map_err(|e| contents.locate_error_in_original_file(e))
    };
    ranks.iter().map(&mut read).collect()
}

/// Returns the file of each rank, and the files of ranks that have no NPU in the network. Files may be compressed or in
/// another format.
fn rank_files_and_files_beyond_npus(prefix: &Path, npus: u32) -> (Vec<RankFile>, Vec<PathBuf>) {
    let named = PrefixedTraceFiles::new(prefix);
    let file = |rank| RankFile::new(rank, named.path_of_rank(rank));
    let beyond = named.ranks().filter(|&rank| rank >= npus);
    let beyond = beyond.map(|rank| named.path_of_rank(rank)).collect();
    ((0..npus).map(file).collect(), beyond)
}

/// Returns a note that there are more traces than NPUs.
fn extra_traces_note(
    flags: &AstraFlags,
    inputs: &AstraInputs,
    first: &Path,
    count: usize,
) -> MisleadingValidInputNote {
    let npus = inputs.network.npu_count();
    let first = first.display();
    let traces = if count == 1 {
        format!("1 trace of another rank, {first}, has")
    } else {
        format!("{count} traces of other ranks, from {first} on, have")
    };
    MisleadingValidInputNote {
        file: flags.network.display().to_string(),
        line: None,
        key: "npus_count".to_owned(),
        why: format!(
            "has {npus} NPUs, fewer than there are traces: {traces} no effect, as in the original"
        ),
    }
}

/// Reads the custom algorithm from the files that begin with `prefix`. The algorithm has one file
/// per position, and at most as many files as NPUs.
fn read_custom_algorithm(prefix: &Path, npus: u32) -> Result<ScriptedAlgorithm, TraceError> {
    let named = PrefixedTraceFiles::new(prefix);
    let more = (1..npus).take_while(|&rank| named.has_rank(rank));
    let files: Vec<_> = (0..1)
        .chain(more)
        .map(|rank| named.path_of_rank(rank))
        .collect();
    let contents = files
        .iter()
        .map(|path| DecompressedTraceFile::open_as_current_schema(path));
    let contents: Vec<DecompressedTraceFile> = contents.collect::<Result<_, _>>()?;
    parse_algorithm_from_file_contents(&contents, AstraOrRecordedScriptDurations::AstraSim)
}
