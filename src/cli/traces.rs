//! Inputs and outputs of commands that transform traces.

use super::load::{ProfiledStepArg, SkipJobFileCheckArg};
use super::terminal;
use chakram_jobs::{self as job, JobBeingWritten, JobTraceFilesOrPipe, SavedJob};
use chakram_trace::files::{CompleteUncommittedFileHandle, OutputsAndProtectedInputs};
use chakram_trace::format::file::MaybeCompressedWriter;
use chakram_trace::format::groups::DeclaredGroups;
use chakram_trace::format::job::{ENDING, JobTraceManifest};
use clap::{Args, ValueEnum};
use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Arguments that name the input traces.
#[derive(Debug, Args)]
pub struct InputTraceArgs {
    /// Folder of traces, prefix of files named PREFIX.RANK.et, or files; - is one trace on standard input
    #[arg(required = true, value_name = "TRACES")]
    pub traces: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) verify: SkipJobFileCheckArg,
    #[command(flatten)]
    pub(super) step: ProfiledStepArg,
}

/// Arguments that name the output traces.
#[derive(Debug, Args)]
pub struct OutputTraceArgs {
    /// Write the traces to PREFIX.0.et, …, and PREFIX.job.json; - is standard output, for a single trace
    #[arg(short, long, value_name = "PREFIX")]
    pub output: PathBuf,
    /// Compress the traces (ASTRA-sim reads only uncompressed traces)
    #[arg(short = 'z', long, value_enum, value_name = "FORMAT")]
    pub compress: Option<CompressArg>,
    /// Format of the summary
    #[arg(long, value_enum, default_value_t = SummaryFormatArg::Text, value_name = "FORMAT")]
    pub format: SummaryFormatArg,
}

/// Compression of the traces that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompressArg {
    /// zstd
    Zst,
    /// gzip
    Gz,
}

/// Output format of the summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SummaryFormatArg {
    /// Human-readable text
    Text,
    /// JSON
    Json,
}

/// File name that represents standard input or standard output.
pub const PIPE: &str = "-";

/// Finds the files that `args` names, or reads standard input. If the user chose a step, keeps only
/// this step.
pub fn find_traces_and_select_step(
    args: &InputTraceArgs,
) -> Result<JobTraceFilesOrPipe, Box<dyn Error>> {
    Ok(find_traces_or_read_standard_input(args)?.select_step(args.step.step)?)
}

/// Finds the files that `args` names, or reads standard input. Keeps all steps.
pub fn find_traces_or_read_standard_input(
    args: &InputTraceArgs,
) -> Result<JobTraceFilesOrPipe, Box<dyn Error>> {
    let pipe = |path: &PathBuf| path == Path::new(PIPE);
    if !args.traces.iter().any(pipe) {
        return Ok(JobTraceFilesOrPipe::find_traces(
            &args.traces,
            args.verify.verify_level_for_replay(),
        )?);
    }
    if args.traces.len() > 1 {
        return Err("- is one trace from standard input, but other files are given too\n  try: - alone, or files only".into());
    }
    Ok(JobTraceFilesOrPipe::from_pipe(io::stdin().lock(), PIPE)?)
}

/// Returns the file name extension for this compression; empty without compression.
pub fn compressed_suffix(compress: Option<CompressArg>) -> &'static str {
    match compress {
        None => "",
        Some(CompressArg::Zst) => ".zst",
        Some(CompressArg::Gz) => ".gz",
    }
}

/// Output of a command: the files of a job, or a pipe with one trace.
pub enum OutputPipeOrJobFiles<'o> {
    /// Standard output.
    Pipe(&'o OutputTraceArgs),
    /// The files of a job.
    Files(Box<JobBeingWritten>),
}

impl<'o> OutputPipeOrJobFiles<'o> {
    /// Creates the output for the traces of `ranks` ranks. No output may replace one of the inputs
    /// `traces` and `beside`.
    pub fn new(
        args: &'o OutputTraceArgs,
        ranks: usize,
        traces: &JobTraceFilesOrPipe,
        beside: &[&Option<PathBuf>],
    ) -> Result<Self, Box<dyn Error>> {
        if args.output == Path::new(PIPE) {
            return match ranks {
                1 => Ok(Self::Pipe(args)),
                _ => Err(format!(
                    "-o - writes one trace, but there are {ranks}\n  try: -o PREFIX, or the file of one rank"
                )
                .into()),
            };
        }
        let mut files = OutputsAndProtectedInputs::default();
        // The command reads traces again while it writes outputs, so no output may replace a trace.
        job::protect_found_files_as_inputs(&mut files, &traces.found);
        beside
            .iter()
            .copied()
            .flatten()
            .for_each(|path| files.register_input(path));
        let outputs = JobBeingWritten::new(&args.output, compressed_suffix(args.compress), files)?;
        Ok(Self::Files(Box::new(outputs)))
    }

    /// Returns true if the trace goes to standard output, where the command must then print no other text.
    pub fn is_pipe(&self) -> bool {
        matches!(self, Self::Pipe(_))
    }

    /// Writes the trace of a rank. Returns the handle of the file, or `None` for standard output.
    pub fn write_trace(
        &mut self,
        rank: u32,
        trace: &[u8],
    ) -> Result<Option<CompleteUncommittedFileHandle>, Box<dyn Error>> {
        match self {
            Self::Files(outputs) => Ok(Some(outputs.write_trace(rank, trace)?)),
            Self::Pipe(args) => {
                let ending = compressed_suffix(args.compress).trim_start_matches('.');
                let mut packer =
                    MaybeCompressedWriter::new(terminal::open_binary_standard_output(), ending)?;
                packer.write_all(trace)?;
                packer.finish()?.flush()?;
                Ok(None)
            }
        }
    }

    /// Uses the file `written` for `rank` too: as a hard link if `link` is true; otherwise as a copy. Returns false if
    /// `rank` cannot share the file.
    pub fn share_trace(
        &mut self,
        rank: u32,
        written: Option<CompleteUncommittedFileHandle>,
        link: bool,
    ) -> Result<bool, Box<dyn Error>> {
        match (self, written) {
            (Self::Files(outputs), Some(written)) => Ok(outputs
                .share_trace_by_link_or_copy(rank, written, link)?
                .is_some()),
            _ => Ok(false),
        }
    }

    /// Writes the groups, if there are any, to a file next to the traces, and returns its path.
    /// Fails if the output is a pipe and the user `asked` for groups.
    pub fn write_groups(
        &mut self,
        declared: &DeclaredGroups,
        asked: bool,
    ) -> Result<Option<PathBuf>, Box<dyn Error>> {
        match self {
            Self::Pipe(_) if asked => {
                Err("--groups writes a second file, which is not possible with -o -".into())
            }
            Self::Files(outputs) if asked || !declared.is_empty() => {
                Ok(Some(outputs.write_groups(declared)?))
            }
            _ => Ok(None),
        }
    }

    /// Gives all files their final names, the job file last. Stores `about` in the job file. Returns a sentence that
    /// names the files.
    pub fn commit_files(self, about: JobTraceManifest) -> Result<String, Box<dyn Error>> {
        match self {
            Self::Files(outputs) => name_job_traces_and_note_others(&outputs.commit_job(about)?),
            Self::Pipe(_) => Ok(String::new()),
        }
    }
}

/// Prints a note about traces with the job's prefix that do not belong to the job. Returns a sentence that names the
/// job's traces.
pub fn name_job_traces_and_note_others(job: &SavedJob) -> Result<String, Box<dyn Error>> {
    print_other_traces_note(&job.prefix, &job.others)?;
    Ok(format_first_and_last_paths(&job.traces))
}

/// Formats a list of file names as its first and last names.
fn format_first_and_last_paths(names: &[PathBuf]) -> String {
    match names {
        [] => String::new(),
        [only] => only.display().to_string(),
        [first, .., last] => format!("{} to {}", first.display(), last.display()),
    }
}

/// Prints a note about traces with the job's prefix that do not belong to the job.
pub fn print_other_traces_note(prefix: &Path, others: &[PathBuf]) -> io::Result<()> {
    match others.len() {
        0 => Ok(()),
        count => terminal::print_note(format_args!(
            "{} ({count} files) of earlier jobs stay in the folder; {}{} does not name these files, so they are not read with the new job",
            format_first_and_last_paths(others),
            prefix.display(),
            ENDING
        )),
    }
}
