//! Input and output of commands that transform traces.

use super::convert::{CompressArg, FormatArg};
use super::load::{self, VerifyArg};
use super::terminal;
use crate::files::{Outputs, Written};
use crate::trace::TraceError;
use crate::trace::file::{Contents, Found, Packer, RankFile};
use crate::trace::groups::{self, Declared};
use crate::trace::job::JobFile;
use clap::Args;
use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

mod outputs;

pub use outputs::{
    JobOutputs, PIPE, ending, first_to_last, note_others, rename_contents, write_job,
};

/// Where the traces come from.
#[derive(Debug, Args)]
pub struct InputArgs {
    /// A folder of traces, the prefix of files named PREFIX.RANK.et, or files; - is one trace from a pipe,
    /// that of rank 0
    #[arg(required = true, value_name = "TRACES")]
    pub traces: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) verify: VerifyArg,
}

/// Where the traces go.
#[derive(Debug, Args)]
pub struct OutputArgs {
    /// Write the traces to PREFIX.0.et, PREFIX.1.et, … and PREFIX.job.json, which names them; into a folder as
    /// job.0.et, job.1.et, …; - writes a single trace to standard output
    #[arg(short, long, value_name = "PREFIX")]
    pub output: PathBuf,
    /// Compress the traces; ASTRA-sim reads plain ones only
    #[arg(short = 'z', long, value_enum, value_name = "FORMAT")]
    pub compress: Option<CompressArg>,
    /// How the summary is printed
    #[arg(long, value_enum, default_value_t = FormatArg::Text, value_name = "FORMAT")]
    pub format: FormatArg,
}

/// Input traces of a job.
#[derive(Debug)]
pub struct Traces {
    /// Files by rank, with the declarations beside them.
    pub found: Found,
    piped: Option<Contents>,
}

/// Contents of an input trace.
#[derive(Debug)]
pub enum Opened<'t> {
    /// Of a file.
    File(Contents),
    /// Of the pipe.
    Pipe(&'t Contents),
}

impl Opened<'_> {
    fn contents(&self) -> &Contents {
        match self {
            Self::File(contents) => contents,
            Self::Pipe(contents) => contents,
        }
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.contents().as_slice()
    }

    /// Converts an error about the bytes to one about their source.
    pub fn blame(&self, error: TraceError) -> TraceError {
        self.contents().blame(error)
    }
}

impl Traces {
    /// Finds the files, or reads the pipe.
    pub fn find(args: &InputArgs) -> Result<Self, Box<dyn Error>> {
        let pipe = |path: &PathBuf| path == Path::new(PIPE);
        if !args.traces.iter().any(pipe) {
            let found = load::find(&args.traces, args.verify.policy())?;
            return Ok(Self { found, piped: None });
        }
        if args.traces.len() > 1 {
            return Err("- is one trace from a pipe, and no files can stand beside it".into());
        }
        Ok(Self {
            found: Found {
                files: vec![RankFile::new(0, PathBuf::from(PIPE))],
                ..Found::default()
            },
            piped: Some(Contents::from_pipe(io::stdin().lock())?),
        })
    }

    /// Returns the files, by rank.
    pub fn files(&self) -> &[RankFile] {
        &self.found.files
    }

    /// Returns the declarations of the job beside its ranks, with these groups.
    pub fn about(&self, groups: Declared) -> JobFile {
        let mut about = JobFile {
            groups,
            ..JobFile::default()
        };
        for job in self.found.jobs.values() {
            about.roles.extend(&job.roles);
            // Of several jobs the first machine counts.
            about.machine = about.machine.or_else(|| job.machine.clone());
        }
        about
    }

    /// Opens one of the files.
    pub fn open(&self, file: &RankFile) -> Result<Opened<'_>, Box<dyn Error>> {
        Ok(match &self.piped {
            Some(contents) => Opened::Pipe(contents),
            None => Opened::File(Contents::of(file)?),
        })
    }
}

/// Reads the groups that are declared beside the traces: in the file that was named, or by the job.
pub fn declared(path: Option<&PathBuf>, traces: &Traces) -> Result<Declared, Box<dyn Error>> {
    let Some(path) = path else {
        return Ok(load::groups(&traces.found)?);
    };
    let text = load::read_text(path)?;
    Ok(groups::parse_file(&text).map_err(|e| e.in_file(path))?)
}

/// Output of a command: a job of files, or one trace for a pipe.
pub enum Target<'o> {
    /// To standard output.
    Pipe(&'o OutputArgs),
    /// Into files.
    Files(Box<JobOutputs>),
}

impl<'o> Target<'o> {
    /// Creates the output for `ranks` traces; `traces` and `beside` are the inputs.
    pub fn new(
        args: &'o OutputArgs,
        ranks: usize,
        traces: &Traces,
        beside: &[&Option<PathBuf>],
    ) -> Result<Self, Box<dyn Error>> {
        if args.output == Path::new(PIPE) {
            return match ranks {
                1 => Ok(Self::Pipe(args)),
                _ => Err(format!(
                    "-o - writes one trace, and these are {ranks}\n  try: -o PREFIX, or the file of one rank"
                )
                .into()),
            };
        }
        let mut files = Outputs::default();
        // Traces are read again while others are written, so no output may replace one.
        load::reads(&mut files, &traces.found);
        beside
            .iter()
            .copied()
            .flatten()
            .for_each(|path| files.reads(path));
        let outputs = JobOutputs::new(&args.output, args.compress, files)?;
        Ok(Self::Files(Box::new(outputs)))
    }

    /// Returns whether the trace goes to standard output, so that nothing else may.
    pub fn is_pipe(&self) -> bool {
        matches!(self, Self::Pipe(_))
    }

    /// Writes the trace of a rank, and returns a description if it went into a file.
    pub fn write(&mut self, rank: u32, trace: &[u8]) -> Result<Option<Written>, Box<dyn Error>> {
        match self {
            Self::Files(outputs) => outputs.write(rank, trace).map(Some),
            Self::Pipe(args) => {
                let ending = ending(args.compress).trim_start_matches('.');
                let mut packer = Packer::new(terminal::standard_output(), ending)?;
                packer.write_all(trace)?;
                packer.finish()?.flush()?;
                Ok(None)
            }
        }
    }

    /// Reuses the `written` trace for `rank`, as a hard link if `link`; returns whether that was possible.
    pub fn share(
        &mut self,
        rank: u32,
        written: Option<Written>,
        link: bool,
    ) -> Result<bool, Box<dyn Error>> {
        match (self, written) {
            (Self::Files(outputs), Some(written)) => {
                Ok(outputs.share(rank, written, link)?.is_some())
            }
            _ => Ok(false),
        }
    }

    /// Writes groups beside the traces if there are any, and returns the file. A pipe has no place for groups that
    /// were `asked` for.
    pub fn groups(
        &mut self,
        declared: &Declared,
        asked: bool,
    ) -> Result<Option<PathBuf>, Box<dyn Error>> {
        match self {
            Self::Pipe(_) if asked => {
                Err("--groups writes a file beside the traces; -o - has no place for it".into())
            }
            Self::Files(outputs) if asked || !declared.is_empty() => {
                outputs.groups(declared).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Commits all files, the job file with `about` last, and returns their names.
    pub fn commit(self, about: JobFile) -> Result<String, Box<dyn Error>> {
        match self {
            Self::Files(outputs) => outputs.commit(about),
            Self::Pipe(_) => Ok(String::new()),
        }
    }
}
