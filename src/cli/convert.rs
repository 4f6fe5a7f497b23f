//! `chakram convert`: captures to traces, and traces from one form to another.

use super::terminal;
use super::traces::JobOutputs;
use crate::converters::pytorch::{self as converter, Options, files, summary::Summary};
use crate::files::Outputs;
use crate::trace::job::JobFile;
use clap::{Args, Subcommand, ValueEnum};
use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

mod text;
mod trace;

/// Convert captured framework traces, and traces between forms
#[derive(Debug, Args)]
pub struct ConvertArgs {
    #[command(subcommand)]
    source: Source,
}

#[derive(Debug, Subcommand)]
enum Source {
    Pytorch(PytorchArgs),
    Trace(trace::TraceArgs),
}

/// PyTorch host execution traces with the Kineto traces of the same run
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram convert pytorch capture/ -o job             host.0.json, kineto.0.json, host.1.json, …
  chakram convert pytorch host.*.json.zst kineto.*.json.zst -o out/job --step 3
  chakram replay job --machine dgx-h100 --comm recorded

The files of a rank are recognised by their contents, the rank by the number in the name. Both files
must come from one run: they are joined by record function id, which PyTorch 2.5 and later write.")]
pub struct PytorchArgs {
    /// Folders with captures, their files, or patterns: .json, .json.gz, .json.zst
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Write the traces to PREFIX.0.et, PREFIX.1.et, … and PREFIX.job.json, which names them; into a folder as
    /// job.0.et, job.1.et, …
    #[arg(short, long, value_name = "PREFIX")]
    output: PathBuf,
    /// Convert only the step of this number, ProfilerStep#N in the capture
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// Compress the traces; ASTRA-sim reads plain ones only
    #[arg(short = 'z', long, value_enum, value_name = "FORMAT")]
    compress: Option<CompressArg>,
    /// Read this many ranks at once; all processors by default
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    threads: usize,
    /// How the summary is printed
    #[arg(long, value_enum, default_value_t = FormatArg::Text, value_name = "FORMAT")]
    format: FormatArg,
}

/// Compression of the traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompressArg {
    /// zstd
    Zst,
    /// gzip
    Gz,
}

/// Format of the summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    /// For reading
    Text,
    /// For programs
    Json,
}

/// Runs the command and prints a summary to `out`.
///
/// # Errors
///
/// Captures that cannot be read or do not belong together, and output that cannot be written.
pub fn run(args: &ConvertArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    match &args.source {
        Source::Pytorch(args) => pytorch(args, out),
        Source::Trace(args) => trace::run(args, out),
    }
}

fn pytorch(args: &PytorchArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let pairs = files::pairs(&args.paths)?;
    let options = Options {
        step: args.step,
        threads: args.threads,
    };
    let mut outputs = Outputs::default();
    for pair in &pairs {
        outputs.reads(&pair.host);
        outputs.reads(&pair.kineto);
    }
    let mut job = JobOutputs::new(&args.output, args.compress, Outputs::default())?;
    let show = io::stderr().is_terminal();
    let progress = |done: usize, of: usize| {
        if show {
            let _ = write!(io::stderr(), "\rreading captures: {done} of {of} ranks");
        }
    };
    let path = |rank: u32| job.path(rank);
    let converted = converter::convert(&pairs, &options, &path, &mut outputs, &progress);
    if show {
        let _ = write!(io::stderr(), "\r{:40}\r", "");
    }
    let (summary, written): (Summary, _) = converted?;
    job.files = outputs;
    for (rank, written) in written {
        job.add(rank, job.path(rank), written);
    }
    // The traces declare their groups themselves.
    job.commit(JobFile::default())?;
    match args.format {
        FormatArg::Text => text::write(&summary, out)?,
        FormatArg::Json => {
            out.write_all(terminal::json(&Versioned::of(&summary)).as_bytes())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A summary as JSON, with its schema.
#[derive(serde::Serialize)]
struct Versioned<'a> {
    schema: &'static str,
    tool_version: &'static str,
    #[serde(flatten)]
    summary: &'a Summary,
}

impl<'a> Versioned<'a> {
    fn of(summary: &'a Summary) -> Self {
        Self {
            schema: "chakram.conversion.1",
            tool_version: env!("CARGO_PKG_VERSION"),
            summary,
        }
    }
}
