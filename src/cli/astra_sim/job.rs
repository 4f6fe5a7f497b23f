//! Loading of a run of ASTRA-sim's inputs.

use super::AstraSimArgs;
use crate::astra_sim::{
    Collectives, Inputs, NodeTypes, Note, Quirks, Reader, Tensors, Work, custom,
};
use crate::cli::load;
use crate::cli::output::Format;
use crate::collective::Scripts;
use crate::report::json::Input;
use crate::trace::TraceError;
use crate::trace::file::{Contents, Named, RankFile, read_text};
use crate::units::Time;
use crate::workload::{Absent, Workload, WorkloadBuilder};
use std::error::Error;
use std::path::Path;

/// Inputs, traces, and notes about them.
#[derive(Debug)]
pub struct Job {
    /// Everything but the traces.
    pub inputs: Inputs,
    /// Collective backend.
    pub collectives: Collectives,
    /// The traces.
    pub workload: Workload,
    /// Lanes that an NPU needs.
    pub lanes: u32,
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

impl Job {
    /// Reads all inputs that `args` name, for a run with these quirks.
    pub fn load(args: &AstraSimArgs, quirks: Quirks) -> Result<Self, Box<dyn Error>> {
        let hash = args.format == Format::Json;
        let mut files = Vec::new();
        let inputs = Inputs::read(&args.flags(quirks), &mut |role, path| {
            let file = std::fs::File::open(path)?;
            let text = read_text(&file, file.metadata()?.len())?;
            if hash {
                files.push(load::input(role, path, text.as_bytes()));
            }
            Ok(text)
        })?;
        let mut notes = args.ignored.clone();
        notes.extend_from_slice(&inputs.notes);
        let mut collectives = Collectives::new(&inputs);
        for prefix in inputs.custom_prefixes() {
            let algorithm = custom_algorithm(prefix, inputs.network.npus())?;
            collectives.add_custom(&inputs, prefix, algorithm);
        }
        let ranks = rank_files(&inputs.workload, inputs.network.npus());
        let mut builder = WorkloadBuilder::default();
        builder.declare(inputs.groups.declared());
        let reader = Reader::new(&inputs, &collectives, args.lenient);
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
        load::traces(&ranks, &mut builder, |_| Time::ZERO, hashed, read)?;
        // The original has a trace for each NPU of the network.
        let workload = builder.finish(Some(inputs.network.npus()), Absent::Refuse)?;
        let tensors = match inputs.system.track_memory {
            true => Some(tensors(&ranks, args.lenient, &mut notes)?),
            false => None,
        };
        let types = match args.transcribes() && inputs.system.trace {
            true => Some(types(&ranks)?),
            false => None,
        };
        Ok(Self {
            work: work(&workload, &inputs),
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

/// Reads the custom algorithm whose files begin with `prefix`: one for each position, as many as there are up to the
/// number of NPUs.
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
