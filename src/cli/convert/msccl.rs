//! `chakram convert msccl`: converts MSCCL algorithms to traces; the members of a collective then execute the steps in
//! these traces.

use super::CompressArg;
use crate::terminal;
use crate::traces;
use chakram_base::units::Bytes;
use chakram_converters::msccl::{MscclAlgorithm, MscclTraceWriter};
use chakram_jobs::JobBeingWritten;
use chakram_report::summary::{format_count_with_noun, format_thousands};
use chakram_trace::files::OutputsAndProtectedInputs;
use chakram_trace::format::job::JobTraceManifest;
use clap::Args;
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Convert an MSCCL algorithm (XML) for --custom
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  chakram convert msccl ring.xml --size 64MiB -o ring
  chakram replay job --machine dgx-h100 --custom all-reduce=ring

--custom keeps the sizes of messages, so convert an algorithm once for each size of the collective.")]
pub struct ConvertMscclArgs {
    /// The algorithm; plain, gzip or zstd
    #[arg(value_name = "FILE")]
    input: PathBuf,
    /// Buffer size of a rank (for all-gather and gather, the size of its shard)
    #[arg(long, value_name = "SIZE")]
    size: Bytes,
    /// Write the traces to PREFIX.0.et, …, and PREFIX.job.json
    #[arg(short, long, value_name = "PREFIX")]
    output: PathBuf,
    /// Compress the traces (ASTRA-sim reads only uncompressed traces)
    #[arg(short = 'z', long, value_enum, value_name = "FORMAT")]
    compress: Option<CompressArg>,
}

/// Converts the algorithm, and prints a summary to `out`.
///
/// # Errors
///
/// Fails if the file is not an algorithm, if the algorithm does not support the size, or if output cannot be
/// written.
pub fn run(args: &ConvertMscclArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let algorithm = MscclAlgorithm::open_file(&args.input)?;
    for unknown in &algorithm.unknown_attributes {
        terminal::print_note(format_args!("{}: {unknown}", args.input.display()))?;
    }
    if args.size.0 == 0 {
        return Err("--size 0: the messages would have no bytes\n  try: at least 1B".into());
    }
    let gpus = algorithm.gpus.len() as u32;
    let Some(buffer) = algorithm.kind.buffer_bytes(args.size.0, gpus) else {
        return Err("--size is 2^63 bytes or more over all GPUs\n  try: less".into());
    };
    if let Some((least, most)) = algorithm.range
        && !(least..=most).contains(&buffer)
    {
        return Err(format!(
            "{}: the algorithm is for {least} to {most} bytes, but the buffer has {buffer}\n  try: --size \
             within that range, or other minBytes and maxBytes in the file",
            args.input.display()
        )
        .into());
    }
    let scripts = MscclTraceWriter::new(&algorithm, buffer)?;
    let mut files = OutputsAndProtectedInputs::default();
    files.register_input(&args.input);
    let mut job = JobBeingWritten::new(
        &args.output,
        traces::compressed_suffix(args.compress),
        files,
    )?;
    let mut nodes = 0;
    for gpu in 0..gpus {
        let (trace, written) = scripts.write_gpu_trace(gpu, job.start_trace(gpu)?)?;
        job.finish_trace(gpu, trace)?;
        nodes += written;
    }
    let names =
        traces::name_job_traces_and_note_others(&job.commit_job(JobTraceManifest::default())?)?;
    writeln!(
        out,
        "{}: {} of {} among {}: {} nodes in {names}",
        algorithm.name,
        algorithm.kind,
        Bytes(buffer),
        format_count_with_noun(gpus.into(), "GPU"),
        format_thousands(nodes),
    )?;
    if algorithm.kind.has_root() {
        writeln!(out, "GPU 0 is taken for the root")?;
    }
    Ok(ExitCode::SUCCESS)
}
