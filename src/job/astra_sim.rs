//! Jobs of ASTRA-sim's inputs, which bring their machine along.

use super::JobError;
use super::input::hashed_input;
use super::load::{Progress, read_traces};
use crate::astra_sim::{
    self, Aware, Collectives, Flags, Inputs, Links, NetworkModel, NodeTypes, Note, Ported, Quirk,
    Reader, Tensors, Unaware, Work, custom,
};
use crate::collective::Scripts;
use crate::engine::{Options, Outcome, Prepared, ReplayError};
use crate::machine::Machine;
use crate::network::Network;
use crate::report::summary::Input;
use crate::report::{self, Observer, Report};
use crate::trace::TraceError;
use crate::trace::file::{Contents, Named, RankFile, read_text};
use crate::units::Time;
use crate::workload::{Absent, Workload, WorkloadBuilder};
use std::path::Path;

/// A job of ASTRA-sim's inputs: inputs, traces, and notes about them.
///
/// ```
/// use chakram::astra_sim::Flags;
/// use chakram::engine::Options;
/// use chakram::job::AstraSimJob;
///
/// let case = |name: &str| format!("traces/astra-sim-8/{name}").into();
/// let flags = Flags::new(case("all_reduce"), case("system.json"), case("network.yml"), case("memory.json"));
/// let report = AstraSimJob::open(&flags)?.replay(&Options::default())?;
/// assert_eq!(report.ranks, 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct AstraSimJob {
    /// Everything but the traces.
    pub inputs: Inputs,
    /// Collective backend.
    pub collectives: Collectives,
    /// The traces.
    pub workload: Workload,
    /// Lanes that an NPU needs.
    pub lanes: u32,
    /// Whether sends and receives may have no other half.
    pub lenient: bool,
    /// Statistics of each instance that are known before it runs.
    pub work: Vec<Work>,
    /// Tensors of each instance, if memory is tracked.
    pub tensors: Option<Vec<Tensors>>,
    /// Node types of each instance, if nodes are logged.
    pub types: Option<Vec<NodeTypes>>,
    /// Notes about the inputs.
    pub notes: Vec<Note>,
    /// Files with their hashes, if those are requested.
    pub files: Vec<Input>,
}

impl AstraSimJob {
    /// Reads everything that `flags` name.
    ///
    /// # Errors
    ///
    /// When a file cannot be read or is refused.
    pub fn open(flags: &Flags) -> Result<Self, JobError> {
        Self::load(flags, false, &mut |_, _| {})
    }

    /// Reads everything that `flags` name; inputs are hashed if `hash` is set.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn load(flags: &Flags, hash: bool, progress: &mut Progress<'_>) -> Result<Self, JobError> {
        let mut files = Vec::new();
        let inputs = Inputs::read(flags, &mut |role, path| {
            let file = std::fs::File::open(path)?;
            let text = read_text(&file, file.metadata()?.len())?;
            if hash {
                files.push(hashed_input(role, path, text.as_bytes()));
            }
            Ok(text)
        })?;
        let mut notes = inputs.notes.clone();
        let mut collectives = Collectives::new(&inputs);
        for prefix in inputs.custom_prefixes() {
            let algorithm = custom_algorithm(prefix, inputs.network.npus())?;
            collectives.add_custom(&inputs, prefix, algorithm);
        }
        // The original has a trace for each NPU of the network.
        let ranks = rank_files(&inputs.workload, inputs.network.npus());
        let mut builder = WorkloadBuilder::default();
        builder.declare(inputs.groups.declared());
        let reader = Reader::new(&inputs, &collectives, flags.lenient);
        let mut lanes = 1;
        let read = |contents: &[u8], file: &RankFile| {
            let path = file.path.display().to_string();
            let read = reader.read(contents, file.rank, &path);
            let read = read.map_err(|e| e.in_file(&file.path))?;
            notes.extend(read.notes);
            lanes = lanes.max(read.lanes);
            Ok((read.graph, read.binding))
        };
        let hashed = hash.then_some(&mut files);
        read_traces(&ranks, &mut builder, |_| Time::ZERO, hashed, read, progress)?;
        let workload = builder.finish(Some(inputs.network.npus()), Absent::Refuse)?;
        let tensors = if inputs.system.track_memory {
            Some(tensors(&ranks, flags.lenient, &mut notes)?)
        } else {
            None
        };
        let types = if flags.logs && inputs.system.trace {
            Some(types(&ranks)?)
        } else {
            None
        };
        Ok(Self {
            work: work(&workload, &inputs),
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
    pub fn machine(&self) -> Machine {
        astra_sim::machine(&self.inputs, self.lanes)
    }

    /// Settles everything before a run on `machine`, which is [`Self::machine`].
    ///
    /// # Errors
    ///
    /// When the machine cannot run the job.
    pub fn prepare<'a>(
        &'a self,
        machine: &'a Machine,
        options: &Options,
    ) -> Result<Prepared<'a>, ReplayError> {
        let options = Options {
            lonely_messages: self.lenient,
            ..options.clone()
        };
        Ok(Prepared::in_manner(
            &self.workload,
            machine,
            &options,
            &self.collectives,
        )?)
    }

    /// Replays the job as ASTRA-sim does, but for the quirks that its flags correct, and reports.
    ///
    /// # Errors
    ///
    /// When the machine cannot run the job, or the replay gets stuck.
    pub fn replay(&self, options: &Options) -> Result<Report, ReplayError> {
        let machine = self.machine();
        let prepared = self.prepare(&machine, options)?;
        let mut collectives = self.collectives.clone();
        let (_, report, ()) = run_inputs(&prepared, &self.inputs, &mut collectives, true, ())?;
        Ok(report.expect("it was asked for"))
    }
}

/// Outcome of a replay, a report if one was requested, and the observer.
pub type Replayed<O> = Result<(Outcome, Option<Report>, O), ReplayError>;

/// Replays `prepared` over the network that `inputs` choose, with a report if `full`.
pub fn run_inputs<O: Observer>(
    prepared: &Prepared<'_>,
    inputs: &Inputs,
    collectives: &mut Collectives,
    full: bool,
    observer: O,
) -> Replayed<O> {
    let (file, quirks) = (&inputs.network, inputs.quirks);
    let shares = !quirks.has(Quirk::FreePorts);
    let cuts_through = !quirks.has(Quirk::StoreAndForward);
    match inputs.model {
        NetworkModel::Unaware if shares => {
            let network = Ported::new(file, quirks);
            replay_over(network, prepared, collectives, full, observer)
        }
        NetworkModel::Unaware => {
            let network = Unaware::new(file, quirks);
            replay_over(network, prepared, collectives, full, observer)
        }
        NetworkModel::Aware if cuts_through => {
            let network = Links::new(file, quirks);
            replay_over(network, prepared, collectives, full, observer)
        }
        NetworkModel::Aware => {
            let network = Aware::new(file, quirks);
            replay_over(network, prepared, collectives, full, observer)
        }
    }
}

fn replay_over<N: Network, O: Observer>(
    network: N,
    prepared: &Prepared<'_>,
    collectives: &mut Collectives,
    full: bool,
    mut observer: O,
) -> Replayed<O> {
    if full {
        let replayed = report::replay_in(prepared, observer, network, collectives);
        return replayed.map(|(report, observer)| (report.outcome.clone(), Some(report), observer));
    }
    let outcome = prepared.run_in::<dyn Observer, _, _>(&mut observer, network, collectives)?;
    Ok((outcome, None, observer))
}

/// Returns the work of each instance; graphs that ranks share are examined once.
fn work(workload: &Workload, inputs: &Inputs) -> Vec<Work> {
    let graphs = workload.graphs().iter();
    let graphs: Vec<Work> = graphs.map(|graph| Work::of(graph, inputs)).collect();
    let instances = workload.instances().iter();
    instances.map(|i| graphs[i.graph.index()]).collect()
}

/// Returns the node types of each rank, in a separate pass over its file.
fn types(ranks: &[RankFile]) -> Result<Vec<NodeTypes>, TraceError> {
    let read = |file: &RankFile| {
        let contents = Contents::open(&file.path)?;
        NodeTypes::read(contents.as_slice()).map_err(|e| contents.blame(e))
    };
    ranks.iter().map(read).collect()
}

/// Returns the tensors of each rank, in a second pass over its file.
fn tensors(
    ranks: &[RankFile],
    lenient: bool,
    notes: &mut Vec<Note>,
) -> Result<Vec<Tensors>, TraceError> {
    let mut read = |file: &RankFile| {
        let contents = Contents::open(&file.path)?;
        let path = file.path.display().to_string();
        let tensors = Tensors::read(contents.as_slice(), lenient, &path, notes);
        tensors.map_err(|e| contents.blame(e))
    };
    ranks.iter().map(&mut read).collect()
}

/// Returns the file of each rank; a compressed one, or one of another form, may take its place.
fn rank_files(prefix: &Path, npus: u32) -> Vec<RankFile> {
    let named = Named::new(prefix);
    let file = |rank| RankFile::new(rank, named.path(rank));
    (0..npus).map(file).collect()
}

/// Reads the custom algorithm whose files begin with `prefix`: one for each position, as many as there are up to
/// the number of NPUs.
fn custom_algorithm(prefix: &Path, npus: u32) -> Result<Scripts, TraceError> {
    let named = Named::new(prefix);
    let more = (1..npus).take_while(|&rank| named.has(rank));
    let files: Vec<_> = (0..1).chain(more).map(|rank| named.path(rank)).collect();
    let contents = files.iter().map(|path| Contents::open(path));
    let contents: Vec<Contents> = contents.collect::<Result<_, _>>()?;
    let bytes: Vec<&[u8]> = contents.iter().map(Contents::as_slice).collect();
    let algorithm = custom::read(&bytes, custom::Lasting::AstraSim);
    algorithm.map_err(|(position, error)| contents[position as usize].blame(error))
}
