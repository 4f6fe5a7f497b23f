//! `chakram convert nsys`: converts Nsight Systems reports that were exported to SQLite to traces.

use super::{ConvertOutputArgs, SummaryFormatArg, comm_kernels, text};
use crate::traces;
use chakram_base::ids::format_numbers_as_ranges;
use chakram_converters::nsys::{self, NcclOrDeviceRankSource, NsysConversionSummary};
use chakram_converters::pytorch::ConvertOptions;
use chakram_report::document::VersionedDocument;
use chakram_report::summary::format_thousands;
use chakram_trace::files::OutputsAndProtectedInputs;
use chakram_trace::format::job::JobTraceManifest;
use clap::Args;
use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Convert Nsight Systems reports that were exported to SQLite
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nsys profile -t cuda,nvtx -o report python train.py
  nsys export --type sqlite -o report.sqlite report.nsys-rep
  chakram convert nsys report.sqlite -o job
  chakram replay job --machine dgx-h100 --comm recorded

Each process that uses a GPU becomes a rank. Ranks are numbered as in NCCL if NCCL's NVTX ranges state NCCL's ranks.
Kernels and copies keep their times. The sizes of collectives come from these ranges; without the ranges, the sizes
are unknown.")]
pub struct ConvertNsysArgs {
    /// Exports of one run, one per node or process, or folders of them: .sqlite, plain, .gz or .zst
    #[arg(required = true, value_name = "FILE")]
    paths: Vec<PathBuf>,
    /// Treat kernels with PART in their name as collectives of this KIND, such as all-reduce; repeatable
    #[arg(long = "comm-kernel", value_name = "PART=KIND")]
    comm_kernels: Vec<String>,
    #[command(flatten)]
    output: ConvertOutputArgs,
}

/// Converts the reports, and prints a summary to `out`.
///
/// # Errors
///
/// Fails if a file is not an export or has no GPU work, or if output cannot be written.
pub fn run(args: &ConvertNsysArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let options = ConvertOptions {
        comm_kernels: comm_kernels(&args.comm_kernels)?,
        ..ConvertOptions::default()
    };
    let paths = nsys::find_exports(&args.paths)?;
    let mut outputs = OutputsAndProtectedInputs::default();
    paths.iter().for_each(|path| outputs.register_input(path));
    let mut job = args
        .output
        .start_outputs(OutputsAndProtectedInputs::default())?;
    let path = |rank: u32| job.path_of_rank(rank);
    let (summary, written) = nsys::convert_exports(&paths, &options, &path, &mut outputs)?;
    job.files = outputs;
    for (rank, written) in written {
        job.record_written_trace_of_rank(rank, job.path_of_rank(rank), written);
    }
    // The job file needs no groups, because the traces declare them.
    traces::name_job_traces_and_note_others(&job.commit_job(JobTraceManifest::default())?)?;
    match args.output.format {
        SummaryFormatArg::Text => print_summary(&summary, out)?,
        SummaryFormatArg::Json => {
            VersionedDocument::new("chakram.nsys_conversion.1", &summary).print_to(out)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Maximum number of ranks in the list of processes.
const SHOWN: usize = 8;

fn print_summary(summary: &NsysConversionSummary, out: &mut dyn Write) -> io::Result<()> {
    text::write_summary(&summary.conversion, "SQLite", out)?;
    let order = match summary.order {
        NcclOrDeviceRankSource::Nccl => "by their ranks in NCCL's largest communicator",
        NcclOrDeviceRankSource::Devices => {
            "by file, device and process, as NCCL's ranges do not say their ranks"
        }
    };
    writeln!(out, "ranks are numbered {order}:")?;
    for (rank, (file, process, devices)) in summary.processes.iter().take(SHOWN).enumerate() {
        let rank = summary.conversion.ranks.get(rank).map_or(0, |of| of.rank);
        let devices: Vec<u32> = devices
            .iter()
            .map(|device| device.cast_unsigned())
            .collect();
        writeln!(
            out,
            "  rank {rank}: process {process} on device {} in {}",
            format_numbers_as_ranges(&devices),
            file.display()
        )?;
    }
    if let Some(more) = summary.processes.len().checked_sub(SHOWN + 1) {
        writeln!(out, "  … {} more: --format json", more + 1)?;
    }
    if summary.stated > 0 {
        writeln!(
            out,
            "NCCL's ranges state what {} kernels communicate",
            format_thousands(summary.stated)
        )?;
    }
    Ok(())
}
