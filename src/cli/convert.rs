//! `chakram convert`: converts captures to traces, and traces from one format to another.

use super::progress::ProgressDisplay;
use super::traces::{self, CompressArg, SummaryFormatArg};
use chakram_converters::pytorch::{
    self as converter, ConvertOptions, UserCommKernelRules, files, summary::ConversionSummary,
};
use chakram_converters::sources::TraceSource;
use chakram_jobs::{JobBeingWritten, JobLoadOrWriteError};
use chakram_report::document::VersionedDocument;
use chakram_trace::files::OutputsAndProtectedInputs;
use chakram_trace::format::TraceError;
use chakram_trace::format::file::read_bytes_within_memory_limit;
use chakram_trace::format::job::JobTraceManifest;
use clap::{Args, Subcommand};
use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

mod door;
mod goal;
mod msccl;
mod nsys;
mod simai;
mod text;
mod text_workload;
mod trace;
mod xplane;

/// Convert captures and workloads of other tools to traces, and traces between formats
#[derive(Debug, Args)]
#[command(arg_required_else_help = true, args_conflicts_with_subcommands = true)]
#[command(subcommand_negates_reqs = true)]
#[command(after_help = "\
Examples:
  chakram convert capture/ -o job
  chakram convert pytorch capture/ -o job --step 3
  chakram convert --list

Without a source, the command detects it from the files, as `auto` does.")]
pub struct ConvertArgs {
    /// List the sources, their files, and the information that is kept
    #[arg(long, exclusive = true)]
    list: bool,
    #[command(flatten)]
    auto: Option<door::ConvertAutoArgs>,
    #[command(subcommand)]
    source: Option<ConvertCommand>,
}

#[derive(Debug, Subcommand)]
enum ConvertCommand {
    Auto(door::ConvertAutoArgs),
    Goal(goal::ConvertToOrFromGoalArgs),
    Msccl(msccl::ConvertMscclArgs),
    Nsys(nsys::ConvertNsysArgs),
    Pytorch(ConvertPytorchArgs),
    Simai(simai::ConvertSimaiArgs),
    Text(text_workload::ConvertTextArgs),
    Trace(trace::ConvertTraceArgs),
    Xplane(xplane::ConvertXplaneArgs),
}

/// Convert PyTorch execution traces, Kineto traces, or both from one run
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram convert pytorch capture/ -o job    host.0.json, kineto.0.json, host.1.json, …
  chakram convert pytorch host.*.json.zst kineto.*.json.zst -o out/job --step 3
  chakram replay job --machine dgx-h100 --comm recorded

  chakram convert pytorch trace.json.gz -o job     a Kineto trace alone
  ssh node cat trace.json.gz | chakram convert pytorch - -o job

The command recognises files by their contents, and ranks by the numbers in the file names. Both files of a rank
must come from the same run: they are linked by record function id, or by order if the profiler wrote no ids. A
Kineto trace alone lacks the operators' outputs; a host trace alone lacks times.")]
pub struct ConvertPytorchArgs {
    /// Captures: folders, files or glob patterns of .json, .json.gz, .json.zst; - is standard input
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Write the traces to PREFIX.0.et, …, and PREFIX.job.json
    #[arg(short, long, value_name = "PREFIX")]
    output: PathBuf,
    /// Convert only this step, which is ProfilerStep#N in the capture
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// Total number of ranks; copy each rank without a capture from captured ranks of the same role
    #[arg(long, value_name = "N")]
    infer_ranks: Option<u32>,
    /// Compress the traces (ASTRA-sim reads only uncompressed traces)
    #[arg(short = 'z', long, value_enum, value_name = "FORMAT")]
    compress: Option<CompressArg>,
    /// Treat kernels with PART in their name as collectives of this KIND, such as all-reduce; repeatable
    #[arg(long = "comm-kernel", value_name = "PART=KIND")]
    comm_kernels: Vec<String>,
    /// Number of ranks that are read at the same time; one per core by default
    #[arg(
        long,
        hide_short_help = true,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true
    )]
    threads: usize,
    /// Format of the summary
    #[arg(long, value_enum, default_value_t = SummaryFormatArg::Text, value_name = "FORMAT")]
    format: SummaryFormatArg,
}

/// Output options for converting a whole source, and the format of the summary.
#[derive(Debug, Args)]
struct ConvertOutputArgs {
    /// Write the traces to PREFIX.0.et, …, and PREFIX.job.json
    #[arg(short, long, value_name = "PREFIX")]
    output: PathBuf,
    /// Compress the traces (ASTRA-sim reads only uncompressed traces)
    #[arg(short = 'z', long, value_enum, value_name = "FORMAT")]
    compress: Option<CompressArg>,
    /// Format of the summary
    #[arg(long, value_enum, default_value_t = SummaryFormatArg::Text, value_name = "FORMAT")]
    format: SummaryFormatArg,
}

impl ConvertArgs {
    /// Returns the source that the command names, or `None` if it is detected from the files.
    pub(super) fn named_source(&self) -> Option<TraceSource> {
        match self.source.as_ref()? {
            ConvertCommand::Auto(_) => None,
            ConvertCommand::Goal(_) => Some(TraceSource::Goal),
            ConvertCommand::Msccl(_) => Some(TraceSource::Msccl),
            ConvertCommand::Nsys(_) => Some(TraceSource::Nsys),
            ConvertCommand::Pytorch(_) => Some(TraceSource::Pytorch),
            ConvertCommand::Simai(_) => Some(TraceSource::Simai),
            ConvertCommand::Text(_) => Some(TraceSource::Text),
            ConvertCommand::Trace(_) => Some(TraceSource::Trace),
            ConvertCommand::Xplane(_) => Some(TraceSource::Xplane),
        }
    }
}

impl ConvertOutputArgs {
    /// Starts to write the traces of a job, which must not replace `inputs`.
    fn start_outputs(
        &self,
        inputs: OutputsAndProtectedInputs,
    ) -> Result<JobBeingWritten, JobLoadOrWriteError> {
        JobBeingWritten::new(
            &self.output,
            traces::compressed_suffix(self.compress),
            inputs,
        )
    }
}

/// Runs the command and prints a summary to `out`.
///
/// # Errors
///
/// Fails if captures cannot be read or do not belong together, or if output cannot be written.
pub fn run(args: &ConvertArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    match &args.source {
        None => match &args.auto {
            None => Ok(door::print_source_table(out).map(|()| ExitCode::SUCCESS)?),
            Some(auto) => {
                door::refuse_first_word_if_no_file_or_source(auto)?;
                door::convert_detected(auto, out)
            }
        },
        Some(ConvertCommand::Auto(args)) => door::convert_detected(args, out),
        Some(ConvertCommand::Goal(args)) => goal::convert_to_or_from_goal(args, out),
        Some(ConvertCommand::Msccl(args)) => msccl::run(args, out),
        Some(ConvertCommand::Nsys(args)) => nsys::run(args, out),
        Some(ConvertCommand::Pytorch(args)) => convert_pytorch(args, out),
        Some(ConvertCommand::Simai(args)) => simai::convert_or_replay_simai_workload(args, out),
        Some(ConvertCommand::Text(args)) => text_workload::run(args, out),
        Some(ConvertCommand::Trace(args)) => trace::run(args, out),
        Some(ConvertCommand::Xplane(args)) => xplane::run(args, out),
    }
}

/// Reads all of standard input.
fn read_standard_input() -> Result<Arc<[u8]>, TraceError> {
    let bytes = read_bytes_within_memory_limit(io::stdin().lock(), 0);
    let io = |source| TraceError::from_io(Path::new("standard input"), "read", source);
    Ok(bytes.map_err(io)?.into())
}

/// Returns the known communication kernels, and those that the user added (`added`).
fn comm_kernels(added: &[String]) -> Result<UserCommKernelRules, String> {
    let mut kernels = UserCommKernelRules::default();
    for text in added {
        let added = kernels.add_rule_from_text(text);
        added.map_err(|wrong| format!("--comm-kernel: {wrong}"))?;
    }
    Ok(kernels)
}

fn convert_pytorch(
    args: &ConvertPytorchArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    let has_pipe = args.paths.iter().any(|path| path == Path::new(files::PIPE));
    let pipe = if has_pipe {
        Some(read_standard_input()?)
    } else {
        None
    };
    let found = files::find_capture_pairs_with_piped(&args.paths, pipe)?;
    let pairs = &found.pairs;
    let comm_kernels = comm_kernels(&args.comm_kernels)?;
    let options = ConvertOptions {
        step: args.step,
        infer_ranks: args.infer_ranks,
        threads: args.threads,
        comm_kernels,
    };
    let mut outputs = OutputsAndProtectedInputs::default();
    let archives = found.archives.iter().map(PathBuf::as_path);
    for file in pairs
        .iter()
        .flat_map(|pair| pair.files_on_disk())
        .chain(archives)
    {
        outputs.register_input(file);
    }
    let mut job = JobBeingWritten::new(
        &args.output,
        traces::compressed_suffix(args.compress),
        OutputsAndProtectedInputs::default(),
    )?;
    let shown = ProgressDisplay::start_counting("converting", "ranks", pairs.len() as u64);
    let progress = |done: usize, _: usize| shown.set_done(done as u64);
    let path = |rank: u32| job.path_of_rank(rank);
    let converted =
        converter::convert_capture_pairs(pairs, &options, &path, &mut outputs, &progress);
    drop(shown);
    let (mut summary, written): (ConversionSummary, _) = converted?;
    summary.left_aside = found.left_aside;
    job.files = outputs;
    for (rank, written) in written {
        job.record_written_trace_of_rank(rank, job.path_of_rank(rank), written);
    }
    // The job file needs no groups, because the traces declare them.
    traces::name_job_traces_and_note_others(&job.commit_job(JobTraceManifest::default())?)?;
    match args.format {
        SummaryFormatArg::Text => text::write_summary(&summary, "JSON", out)?,
        SummaryFormatArg::Json => {
            VersionedDocument::new("chakram.conversion.1", &summary).print_to(out)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
