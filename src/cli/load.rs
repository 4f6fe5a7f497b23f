//! Loading what a command names: traces, groups, a machine, placements.

use crate::bounds::{self, TooMuch};
use crate::files::Outputs;
pub use crate::files::identity as link_key;
use crate::graph::{Binding, Dependencies, Graph};
use crate::ids::{GraphId, MAX_NPUS, Npu, Rank};
use crate::report::summary::Input;
use crate::trace::file::{self, Contents, Finder, Found, RankFile, Seal, Verify};
use crate::trace::groups::{self, Declared};
use crate::trace::{TraceError, shown};
use crate::units::{Span, Time};
use crate::workload::{Absent, Workload, WorkloadBuilder};
use clap::{Args, ValueEnum};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Whether traces are held against what their job's file says.
#[derive(Clone, Copy, Debug, Args)]
pub struct VerifyArg {
    /// Read traces though they are not those that the job's file, PREFIX.job.json, names
    #[arg(long)]
    pub no_verify: bool,
}

impl VerifyArg {
    /// What is checked on the way into a replay.
    pub fn policy(self) -> Verify {
        match self.no_verify {
            true => Verify::Nothing,
            false => Verify::Lengths,
        }
    }

    /// What is checked where there is time.
    pub fn thorough(self) -> Verify {
        match self.no_verify {
            true => Verify::Nothing,
            false => Verify::Hashes,
        }
    }
}

/// Options of a job's traces.
#[derive(Debug, Args)]
pub struct JobArgs {
    #[command(flatten)]
    pub(super) verify: VerifyArg,
    /// Groups of ranks in place of those of the job's file: a JSON file {"1": [0, 1], …}
    #[arg(long, value_name = "FILE")]
    pub groups: Option<PathBuf>,
    /// Which dependencies hold
    #[arg(long, value_enum, default_value_t = DepsArg::Auto, value_name = "WHICH")]
    pub deps: DepsArg,
    /// What to do about ranks without a trace
    #[arg(long, value_enum, default_value_t = AbsentArg::Refuse, value_name = "WHAT")]
    pub absent: AbsentArg,
    /// Ranks of the job, if more than the traces show; with --absent mirror all NPUs by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_NPUS)))]
    pub ranks: Option<u32>,
    /// Start a rank later: RANK=TIME, for example 3=10ms; may be given more than once
    #[arg(long, value_name = "RANK=TIME", value_parser = parse_delay)]
    pub delay: Vec<(u32, Span)>,
}

/// Which dependencies hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DepsArg {
    /// Data and control; data alone, with a warning, if control dependencies close a cycle
    Auto,
    /// Data and control
    Both,
    /// Data alone
    Data,
}

/// What to do about ranks without a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AbsentArg {
    /// Refuse the job
    Refuse,
    /// A missing member arrives with the present ones
    Mirror,
}

impl JobArgs {
    /// The size of a mirrored job that does not say its own, on machines of this many NPUs: that of the
    /// machine, which must be one.
    pub fn npus(&self, mut machines: impl Iterator<Item = u32>) -> Result<u32, String> {
        let first = machines.next().unwrap_or(0);
        let other = machines.find(|&npus| npus != first);
        match other.filter(|_| self.absent == AbsentArg::Mirror && self.ranks.is_none()) {
            None => Ok(first),
            Some(other) => Err(format!(
                "--absent mirror: a job as large as the machine is not one job on {first} and on \
                 {other} NPUs\n  try: --ranks {}",
                first.min(other)
            )),
        }
    }
}

impl DepsArg {
    /// For the graph builder.
    pub fn policy(self) -> Dependencies {
        match self {
            Self::Auto => Dependencies::Auto,
            Self::Both => Dependencies::Both,
            Self::Data => Dependencies::Data,
        }
    }
}

impl AbsentArg {
    /// For the engine.
    pub fn policy(self) -> Absent {
        match self {
            Self::Refuse => Absent::Refuse,
            Self::Mirror => Absent::Mirror,
        }
    }
}

fn parse_delay(text: &str) -> Result<(u32, Span), String> {
    let (rank, span) = text
        .split_once('=')
        .ok_or("expected RANK=TIME, for example 3=10ms")?;
    let rank = rank.parse().map_err(|_| format!("`{rank}` is no rank"))?;
    Ok((rank, span.parse::<Span>().map_err(|e| e.to_string())?))
}

/// Parses `--map`: NPUs for ranks 0, 1, … as numbers and ranges, `0-3,8-11`.
pub fn parse_map(text: &str) -> Result<Vec<Npu>, String> {
    let mut map = Vec::new();
    for part in text.split(',') {
        let number = |t: &str| {
            let wrong = || format!("`{t}` in `{part}` is no NPU; write for example 0-3,8-11");
            t.trim().parse::<u32>().map_err(|_| wrong())
        };
        let (from, to) = match part.split_once('-') {
            Some((from, to)) => (number(from)?, number(to)?),
            None => (number(part)?, number(part)?),
        };
        if from > to || to >= crate::topology::Topology::MAX_NPUS {
            return Err(format!("`{part}` is no range of NPUs"));
        }
        map.extend((from..=to).map(Npu));
        if map.len() > crate::topology::Topology::MAX_NPUS as usize {
            return Err("more places than a machine can have NPUs".to_owned());
        }
    }
    Ok(map)
}

/// A job that was loaded, and what it was loaded from.
#[derive(Debug)]
pub struct Job {
    /// The workload.
    pub workload: Workload,
    /// The files, if their hashes are wanted.
    pub inputs: Vec<Input>,
}

/// Finds the files of a job. Several paths are files or folders of one job.
pub fn find(paths: &[PathBuf], verify: Verify) -> Result<Found, TraceError> {
    let mut finder = Finder::new(verify);
    paths.iter().try_for_each(|path| finder.add(path))?;
    Ok(finder.finish())
}

/// Tells `outputs` that the command reads what was found.
pub fn reads(outputs: &mut Outputs, found: &Found) {
    let traces = found.files.iter().map(|file| &file.path);
    traces
        .chain(found.jobs.keys())
        .for_each(|path| outputs.reads(path));
}

/// The groups that the files of jobs declare.
pub fn groups(found: &Found) -> Result<Declared, String> {
    let mut all = Declared::new();
    for (path, job) in &found.jobs {
        for (name, ranks) in &job.groups {
            let before = all.insert(name.clone(), ranks.clone());
            if before.is_some_and(|before| before != *ranks) {
                return Err(format!(
                    "{}: group `{}` has other ranks than in the job beside it\n  try: one job, or --groups",
                    path.display(),
                    shown(name)
                ));
            }
        }
    }
    Ok(all)
}

/// Loads the job in `files`. `npus` is the size of a mirrored job that does not say its own. Hashes
/// inputs only if `hash` is set, because that reads every byte once more.
pub fn job(found: &Found, args: &JobArgs, npus: u32, hash: bool) -> Result<Job, Box<dyn Error>> {
    let files = &found.files[..];
    let mut builder = WorkloadBuilder::default();
    let mut inputs = Vec::new();
    if let Some(path) = &args.groups {
        let text = read_text(path)?;
        if hash {
            inputs.push(input("groups", path, text.as_bytes()));
        }
        builder.declare(groups::parse_file(&text).map_err(|e| e.in_file(path))?);
    } else {
        builder.declare(groups(found)?);
    }
    let read = |contents: &[u8], file: &RankFile| {
        Graph::read(contents, file.rank, args.deps.policy()).map_err(|e| e.in_file(&file.path))
    };
    let release = |rank: u32| {
        let release = args.delay.iter().filter(|(delayed, _)| *delayed == rank);
        release.fold(Time::ZERO, |at, (_, span)| at + *span)
    };
    traces(
        files,
        &mut builder,
        release,
        hash.then_some(&mut inputs),
        read,
    )?;
    if let Some((rank, _)) = args
        .delay
        .iter()
        .find(|(rank, _)| !files.iter().any(|file| file.rank == *rank))
    {
        return Err(format!("--delay {rank}=…: rank {rank} has no trace").into());
    }
    for (path, job) in &found.jobs {
        builder.roles(&job.roles);
        if hash {
            inputs.push(input("job", path, read_text(path)?.as_bytes()));
        }
    }
    let ranks = match (args.ranks, args.absent) {
        (None, AbsentArg::Mirror) => Some(builder.ranks_seen().max(npus)),
        (ranks, _) => ranks,
    };
    let workload = builder.finish(ranks, args.absent.policy())?;
    check_memory(&workload)?;
    Ok(Job { workload, inputs })
}

/// Whether the state of a run fits, of which each node has 4 bytes on each rank; ranks can share a file and still
/// be many.
fn check_memory(workload: &Workload) -> Result<(), TooMuch> {
    let graphs = workload.graphs();
    let nodes = workload.instances().iter();
    let nodes = nodes.map(|instance| graphs[instance.graph.index()].len() as u64);
    let nodes = nodes.fold(0, u64::saturating_add);
    bounds::check(
        format!("a replay of {nodes} nodes"),
        nodes,
        4,
        "fewer ranks",
    )
}

/// Reads `files` into `builder`, one file at a time, with `read`; a file under several names is read once,
/// unless it names its rank. The files join `inputs`, if their hashes are wanted.
pub fn traces(
    files: &[RankFile],
    builder: &mut WorkloadBuilder,
    release: impl Fn(u32) -> Time,
    mut inputs: Option<&mut Vec<Input>>,
    mut read: impl FnMut(&[u8], &RankFile) -> Result<(Graph, Binding), TraceError>,
) -> Result<(), Box<dyn Error>> {
    let mut progress = Progress::new(files.len());
    let mut linked = LinkedFiles::default();
    for file in files {
        let key = link_key(&file.path).map(|key| (key, file.seal));
        let (graph, binding) = match key.and_then(|key| linked.0.get(&key)) {
            // One file under several names says the same of every rank, unless it names its rank.
            Some((graph, binding, index)) if binding.peers.is_empty() => {
                if let (Some(inputs), Some(index)) = (&mut inputs, index) {
                    let known: &Input = &inputs[*index];
                    let again = Input {
                        name: file.path.display().to_string(),
                        ..known.clone()
                    };
                    inputs.push(again);
                }
                (*graph, binding.clone())
            }
            _ => {
                let contents = Contents::of(file)?;
                let read = read(contents.as_slice(), file);
                let (graph, binding) = read.map_err(|e| contents.blame(e))?;
                let index = inputs.as_mut().map(|inputs| {
                    inputs.push(input("trace", &file.path, contents.as_slice()));
                    inputs.len() - 1
                });
                let graph = builder.graph(graph);
                if let Some(key) = key {
                    linked.0.insert(key, (graph, binding.clone(), index));
                }
                (graph, binding)
            }
        };
        builder.rank(Rank(file.rank), graph, binding, release(file.rank))?;
        progress.step();
    }
    Ok(())
}

/// Files that are one file under several names, by device and inode.
#[derive(Default)]
struct LinkedFiles(BTreeMap<LinkKey, (GraphId, Binding, Option<usize>)>);

/// The file, and what it should hold.
type LinkKey = ((u64, u64), Option<Seal>);

/// Describes an input with the hash of its bytes.
pub fn input(role: &'static str, path: &Path, bytes: &[u8]) -> Input {
    Input {
        role: role.into(),
        name: path.display().to_string(),
        blake3: blake3::hash(bytes).to_hex().to_string(),
    }
}

/// Reads a text file.
pub fn read_text(path: &Path) -> Result<String, TraceError> {
    let read = || {
        let file = std::fs::File::open(path)?;
        file::read_text(&file, file.metadata()?.len())
    };
    read().map_err(|source| TraceError::io(path.to_owned(), "read", source))
}

/// A counter of files on a terminal, for jobs that take a while.
struct Progress {
    total: usize,
    done: usize,
    started: std::time::Instant,
    shown: bool,
}

impl Progress {
    fn new(total: usize) -> Self {
        Self {
            total,
            done: 0,
            started: std::time::Instant::now(),
            shown: false,
        }
    }

    fn step(&mut self) {
        self.done += 1;
        let late = self.started.elapsed().as_millis() > 500;
        if late && io::stderr().is_terminal() && (self.done.is_multiple_of(16) || self.shown) {
            self.shown = true;
            let _ = write!(
                io::stderr(),
                "\rloading traces: {} of {}",
                self.done,
                self.total
            );
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r{:40}\r", "");
        }
    }
}
