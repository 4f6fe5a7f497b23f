//! `chakram convert text`: converts text workloads of ASTRA-sim 1.0 to traces.

use super::{ConvertOutputArgs, SummaryFormatArg};
use crate::terminal;
use crate::traces;
use chakram_base::ids::MAX_NPUS;
use chakram_converters::text_workload::TextWorkload;
use chakram_report::document::VersionedDocument;
use chakram_report::summary::{format_count_with_noun, format_thousands};
use chakram_trace::files::OutputsAndProtectedInputs;
use chakram_trace::format::job::JobTraceManifest;
use chakram_workloads::generate::check_trace_fits_memory;
use clap::Args;
use serde::Serialize;
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Convert a text workload of ASTRA-sim 1.0
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram convert text Resnet50_DataParallel.txt --npus 8 -o resnet
  chakram convert text dlrm.txt --npus 64 --passes 2 -o dlrm/job
  chakram astra-sim --workload-configuration=resnet …    as ASTRA-sim 2 replays it

Kinds of parallelism are MICRO, DATA, MODEL, HYBRID_DATA_MODEL, HYBRID_MODEL_DATA, HYBRID_DLRM and
HYBRID_DLRM_ENHANCED. The traces equal the output of Chakra's own converter, byte for byte.")]
pub struct ConvertTextArgs {
    /// The workload; plain, gzip or zstd
    #[arg(value_name = "FILE")]
    input: PathBuf,
    /// Number of NPUs, each with one trace
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_NPUS)))]
    npus: u32,
    /// Number of passes: training steps, one after another
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    passes: u32,
    #[command(flatten)]
    output: ConvertOutputArgs,
}

/// JSON summary of a conversion.
#[derive(Debug, Serialize)]
struct TextWorkloadConversionJsonSummary {
    input: String,
    parallelism: &'static str,
    layers: u64,
    passes: u32,
    npus: u32,
    nodes_per_rank: u64,
    traces: String,
}

/// Converts the workload, and prints a summary to `out`.
///
/// # Errors
///
/// Fails if the file is not a workload, or if output cannot be written.
pub fn run(args: &ConvertTextArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let workload = TextWorkload::open_file(&args.input)?;
    for note in workload.omission_notes() {
        terminal::print_note(format_args!("{}: {note}", args.input.display()))?;
    }
    let nodes = workload.nodes_per_pass().checked_mul(args.passes.into());
    let nodes = nodes.filter(|nodes| nodes.checked_mul(args.npus.into()).is_some());
    let Some(nodes) = nodes else {
        return Err(
            "--npus and --passes make more nodes than 32-bit ids can address\n  try: fewer passes"
                .into(),
        );
    };
    check_trace_fits_memory(nodes, "fewer --passes")?;
    let mut files = OutputsAndProtectedInputs::default();
    files.register_input(&args.input);
    let mut job = args.output.start_outputs(files)?;
    for rank in 0..args.npus {
        let mut trace = job.start_trace(rank)?;
        workload.write_rank(rank, args.passes, &mut trace)?;
        job.finish_trace(rank, trace)?;
    }
    let traces =
        traces::name_job_traces_and_note_others(&job.commit_job(JobTraceManifest::default())?)?;
    let summary = TextWorkloadConversionJsonSummary {
        input: args.input.display().to_string(),
        parallelism: workload.parallelism.file_word(),
        layers: workload.layers.len() as u64,
        passes: args.passes,
        npus: args.npus,
        nodes_per_rank: nodes,
        traces,
    };
    match args.output.format {
        SummaryFormatArg::Text => writeln!(
            out,
            "{}: {}, {} in {}: {} nodes for each of {}: {}",
            summary.input,
            summary.parallelism,
            format_count_with_noun(summary.layers, "layer"),
            format_count_with_noun(args.passes.into(), "pass"),
            format_thousands(nodes),
            format_count_with_noun(args.npus.into(), "NPU"),
            summary.traces,
        )?,
        SummaryFormatArg::Json => {
            VersionedDocument::new("chakram.text_conversion.1", &summary).print_to(out)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
