//! `chakram convert simai`: converts text workloads of SimAI to traces.

use crate::output::{ReplayAndReportArgs, ReportDestinationAndOutputs, ReportFormatArg};
use crate::progress::run_showing_elapsed_time;
use crate::terminal;
use crate::traces::{self, CompressArg};
use chakram_base::ids::MAX_NPUS;
use chakram_converters::simai::{RankGroupGrid, RankGroupParallelism, SimaiWorkload};
use chakram_jobs::{self as job, JobBeingWritten, describe_input_with_hash};
use chakram_report::document::VersionedDocument;
use chakram_report::summary::{format_count_with_noun, format_thousands};
use chakram_trace::files::OutputsAndProtectedInputs;
use chakram_trace::format::job::JobTraceManifest;
use chakram_workloads::generate::check_trace_fits_memory;
use clap::Args;
use serde::Serialize;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Convert a SimAI text workload, as AICB writes it, or replay it directly
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram convert simai gpt_7B.txt -o gpt
  chakram convert simai gpt_7B.txt --npus 64 -o gpt      more data parallelism
  chakram convert simai gpt_7B.txt --machine dgx-h100x8  replays it without files

Kinds are HYBRID_TRANSFORMER_FWD_IN_BCKWD and HYBRID_TRANSFORMER. Every pipeline stage has all layers of the file;
messages between stages are omitted, as in SimAI's simulation.")]
pub struct ConvertSimaiArgs {
    /// The workload; plain, gzip or zstd
    #[arg(value_name = "FILE")]
    input: PathBuf,
    /// Number of NPUs, each with one trace; all_gpus in the file by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_NPUS)))]
    npus: Option<u32>,
    /// Number of passes: training steps, one after another
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    passes: u32,
    /// Write the traces to PREFIX.0.et, …, and PREFIX.job.json
    #[arg(
        short,
        long,
        value_name = "PREFIX",
        required_unless_present = "machine"
    )]
    output: Option<PathBuf>,
    /// Compress the traces (ASTRA-sim reads only uncompressed traces)
    #[arg(
        short = 'z',
        long,
        value_enum,
        value_name = "FORMAT",
        requires = "output"
    )]
    compress: Option<CompressArg>,
    /// Replay on this machine: preset (`chakram machine list`) or file
    #[arg(short, long, value_name = "MACHINE")]
    machine: Option<String>,
    #[command(flatten)]
    run: ReplayAndReportArgs,
}

/// JSON summary of a conversion.
#[derive(Debug, Serialize)]
struct SimaiConversionDocument {
    input: String,
    kind: &'static str,
    layers: u64,
    passes: u32,
    npus: u32,
    tensor: u32,
    pipeline: u32,
    data: u32,
    expert: u32,
    nodes_per_rank: u64,
    traces: String,
}

/// Converts the workload to files and prints a summary to `out`, or replays it and prints the report.
///
/// # Errors
///
/// Fails if the file is not a workload, if its degrees do not divide the number of NPUs, if a replay fails, or if
/// output cannot be written.
pub fn convert_or_replay_simai_workload(
    args: &ConvertSimaiArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    args.run.reject_options_without_effect(false)?;
    if args.machine.is_none() {
        args.run.reject_replay_options_for_summary()?;
    }
    let workload = SimaiWorkload::open_file(&args.input)?;
    let input = args.input.display();
    for note in workload.ignored.to_sentences() {
        terminal::print_note(format_args!("{input}: {note}"))?;
    }
    let Some(npus) = args.npus.or(workload.npus) else {
        return Err(format!("{input}: the file has no all_gpus\n  try: --npus N").into());
    };
    let grid = RankGroupGrid::new(&workload, npus)
        .map_err(|error| format!("{input}: {error}\n  try: --npus, or other degrees in line 1"))?;
    if args.passes > 1 {
        let (_, pass) = workload.write_rank(&grid, 0, 1, std::io::sink())?;
        check_trace_fits_memory(pass.saturating_mul(args.passes.into()), "fewer --passes")?;
    }
    let mut files = OutputsAndProtectedInputs::default();
    files.register_input(&args.input);
    args.run.protect_inputs(&mut files);
    if let Some(prefix) = &args.output {
        let summary = args.write_traces(&workload, &grid, prefix, std::mem::take(&mut files))?;
        if args.machine.is_none() {
            match args.run.format {
                ReportFormatArg::Json => {
                    VersionedDocument::new("chakram.simai_conversion.1", &summary).print_to(out)?;
                }
                _ => summary.print_summary(out)?,
            }
        }
    }
    match &args.machine {
        Some(machine) => {
            let name = args
                .run
                .timing
                .parsed_settings()
                .machine_name_with_rates(machine)?;
            let loaded = args.run.load_machine(&name)?;
            let converted = run_showing_elapsed_time("converting", || {
                workload.build_workload(&grid, args.passes)
            })?;
            job::check_replay_state_fits_memory(&converted)?;
            let name = args.input.file_stem().unwrap_or_default().to_string_lossy();
            let mut to = ReportDestinationAndOutputs::create_on_standard_output(out, files);
            let mut inputs = Vec::new();
            if args.run.wants_input_hashes() {
                let contents = std::fs::read(&args.input)?;
                inputs.push(describe_input_with_hash("workload", &args.input, &contents));
            }
            let run = &args.run;
            run.replay_and_print_built_workload(&converted, &name, &loaded, inputs, &mut to)
        }
        None => Ok(ExitCode::SUCCESS),
    }
}

impl ConvertSimaiArgs {
    fn write_traces(
        &self,
        workload: &SimaiWorkload,
        grid: &RankGroupGrid,
        prefix: &Path,
        files: OutputsAndProtectedInputs,
    ) -> Result<SimaiConversionDocument, Box<dyn Error>> {
        let suffix = traces::compressed_suffix(self.compress);
        let mut job = JobBeingWritten::new(prefix, suffix, files)?;
        let mut nodes = 0;
        for rank in 0..grid.npus {
            let (trace, written) =
                workload.write_rank(grid, rank, self.passes, job.start_trace(rank)?)?;
            job.finish_trace(rank, trace)?;
            nodes = written;
        }
        let about = JobTraceManifest {
            roles: grid.group_roles(),
            ..JobTraceManifest::default()
        };
        Ok(SimaiConversionDocument {
            input: self.input.display().to_string(),
            kind: workload.kind,
            layers: workload.layers.len() as u64,
            passes: self.passes,
            npus: grid.npus,
            tensor: grid.tensor,
            pipeline: grid.pipeline,
            data: grid.group_size_and_count(RankGroupParallelism::Data).0,
            expert: grid.expert,
            nodes_per_rank: nodes,
            traces: traces::name_job_traces_and_note_others(&job.commit_job(about)?)?,
        })
    }
}

impl SimaiConversionDocument {
    fn print_summary(&self, out: &mut dyn Write) -> std::io::Result<()> {
        writeln!(
            out,
            "{}: {} in {} for {}, tensor {} x pipeline {} x data {}, expert {}: {} nodes each: {}",
            self.input,
            format_count_with_noun(self.layers, "layer"),
            format_count_with_noun(self.passes.into(), "pass"),
            format_count_with_noun(self.npus.into(), "NPU"),
            self.tensor,
            self.pipeline,
            self.data,
            self.expert,
            format_thousands(self.nodes_per_rank),
            self.traces,
        )?;
        if self.pipeline > 1 {
            writeln!(
                out,
                "messages between the {} pipeline stages are left out, as in SimAI's simulation",
                self.pipeline
            )?;
        }
        Ok(())
    }
}
