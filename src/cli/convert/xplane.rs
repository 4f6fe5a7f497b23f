//! `chakram convert xplane`: converts profiles of JAX and TensorFlow to traces.

use super::{ConvertOutputArgs, SummaryFormatArg};
use crate::progress::ProgressDisplay;
use crate::terminal::plain_style;
use crate::traces;
use chakram_converters::xplane::{
    DecompressedXplaneFile, XplaneConversionSummary, XplaneJob, find_profiles,
};
use chakram_report::document::VersionedDocument;
use chakram_report::summary::{format_count_with_noun, format_thousands};
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use chakram_trace::files::OutputsAndProtectedInputs;
use chakram_trace::format::job::JobTraceManifest;
use clap::Args;
use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Convert profiles of JAX or TensorFlow (xplane.pb)
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram convert xplane profile/ -o job    the folder given to jax.profiler.start_trace
  chakram convert xplane host0.xplane.pb host1.xplane.pb -o job
  chakram replay job --machine mi300x --comm recorded

Each GPU or TPU becomes a rank; ranks are numbered host by host, in the order of the files. Kernels keep their
times; the groups and sizes of collectives come from the programs in the profile.")]
pub struct ConvertXplaneArgs {
    /// Profiles of a run's hosts, or folders of them: .xplane.pb, plain, .gz or .zst
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    output: ConvertOutputArgs,
}

/// Converts the profiles, and prints a summary to `out`.
///
/// # Errors
///
/// Fails if a file is not a profile, or if output cannot be written.
pub fn run(args: &ConvertXplaneArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let paths = find_profiles(&args.paths)?;
    let mut outputs = OutputsAndProtectedInputs::default();
    paths.iter().for_each(|path| outputs.register_input(path));
    let profiles = paths
        .iter()
        .map(|path| DecompressedXplaneFile::open_file(path));
    let profiles = profiles.collect::<Result<Vec<_>, _>>()?;
    let mut job = XplaneJob::new(&profiles)?;
    let mut written = args.output.start_outputs(outputs)?;
    let shown = ProgressDisplay::start_counting("converting", "ranks", job.rank_count().into());
    for rank in 0..job.rank_count() {
        let trace = job.write_rank(rank, written.start_trace(rank)?)?;
        written.finish_trace(rank, trace)?;
        shown.set_done(u64::from(rank) + 1);
    }
    drop(shown);
    let traces =
        traces::name_job_traces_and_note_others(&written.commit_job(JobTraceManifest::default())?)?;
    match args.output.format {
        SummaryFormatArg::Text => write_text(job.summary(), &traces, out)?,
        SummaryFormatArg::Json => {
            VersionedDocument::new("chakram.xplane_conversion.1", job.summary()).print_to(out)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Maximum number of ranks in the summary's table.
const SHOWN: usize = 16;

fn format_ns_as_ms(ns: u64) -> String {
    format!("{:.3} ms", ns as f64 / 1e6)
}

fn write_text(
    summary: &XplaneConversionSummary,
    traces: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    let devices = &summary.devices;
    let nodes = devices.iter().map(|device| device.nodes).sum();
    writeln!(
        out,
        "{} over {}: {} nodes in {traces}",
        format_count_with_noun(devices.len() as u64, "device"),
        format_ns_as_ms(summary.span_ns),
        format_thousands(nodes),
    )?;
    let mut table = TextTable::new([
        left_aligned_column("RANK", 0),
        left_aligned_column("DEVICE", 0),
        right_aligned_column("EVENTS", 0),
        right_aligned_column("LAUNCHED BY", 0),
        right_aligned_column("BUSY", 0),
        right_aligned_column("KEPT", 0),
        right_aligned_column("COLLECTIVES", 0),
    ])
    .with_indent(0);
    for device in devices.iter().take(SHOWN) {
        let kept = match device.busy_ns {
            0 => "-".to_owned(),
            busy => format!("{:.2} %", device.kept_ns as f64 / busy as f64 * 100.0),
        };
        table.add_row(&[
            &device.rank,
            &device.device,
            &format_thousands(device.events),
            &format_thousands(device.linked),
            &format_ns_as_ms(device.busy_ns),
            &kept,
            &device.collectives,
        ]);
    }
    out.write_all(table.to_text(plain_style()).as_bytes())?;
    if let Some(more) = devices.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        writeln!(out, "… {more} more: --format json")?;
    }
    let sum = |of: fn(&chakram_converters::xplane::DeviceConversionSummary) -> u64| -> u64 {
        devices.iter().map(of).sum()
    };
    let unlinked = sum(|device| device.events) - sum(|device| device.linked);
    for (count, what) in [
        (
            unlinked,
            "events have no call that launched them; each follows the one before it on its stream",
        ),
        (
            sum(|device| device.early),
            "events begin before the call that launched them and do not wait for it",
        ),
        (
            sum(|device| device.unmatched),
            "communication kernels are not matched across devices and remain kernels as recorded",
        ),
    ] {
        if count > 0 {
            writeln!(out, "{} {what}", format_thousands(count))?;
        }
    }
    if !summary.left_out.is_empty() {
        let events = summary.left_out.iter().map(|(_, events)| events).sum();
        writeln!(
            out,
            "left out, as no streams: {} with {} events, such as {}",
            format_count_with_noun(summary.left_out.len() as u64, "line"),
            format_thousands(events),
            summary.left_out[0].0,
        )?;
    }
    Ok(())
}
