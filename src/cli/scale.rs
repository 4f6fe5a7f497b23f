//! `chakram scale`: writes a job with more or fewer ranks.

use super::flags::parser_of_choices;
use super::progress::ProgressDisplay;
use super::terminal;
use super::traces::{
    self, InputTraceArgs, OutputPipeOrJobFiles, OutputTraceArgs, SummaryFormatArg,
};
use chakram_analysis::edit::scale::{
    JobScaler, RankGridDimensions, ScaledDimension, ShardedBufferKeptSize,
};
use chakram_hardware::machine::scale_machine_name_to_ranks;
use chakram_jobs::groups_from_file_or_job;
use chakram_report::document::VersionedDocument;
use chakram_report::summary::{format_count_with_noun, format_thousands};
use chakram_trace::files::CompleteUncommittedFileHandle;
use chakram_trace::format::job::JobTraceManifest;
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Grow or shrink a job along one dimension of its rank grid
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram scale traces/ddp-resnet18 --grid dp=2 --to dp=64 -o dp64/job
  chakram scale run7/job --grid dp=2,tp=4 --to dp=64 -o dp64/job -z zst
  chakram scale run7/job --grid dp=8 --to dp=1 -o alone/job

With dp=2,tp=4 rank 5 has coordinates dp 1 and tp 1. A new rank copies the old rank at the same coordinate modulo
the old size; process groups and peers follow. Recorded durations keep the values for the old size, so --comm
recorded does not predict the new size. Identical ranks are hard links to one file, so editing one in place edits
all of them.")]
pub struct ScaleArgs {
    #[command(flatten)]
    input: InputTraceArgs,
    /// Dimensions of the ranks and their sizes, outermost first, such as dp=2,tp=4
    #[arg(long, value_name = "GRID")]
    grid: String,
    /// The dimension to change and its new size, such as dp=64
    #[arg(long, value_name = "DIMENSION")]
    to: String,
    /// Size of the sharded buffers, which stays constant
    #[arg(long, value_parser = parser_of_choices::<ShardedBufferKeptSize>(), default_value = "keep-total", value_name = "WHAT")]
    sharded: ShardedBufferKeptSize,
    /// Process groups as JSON, {"1": [0, 1], …}; written scaled to PREFIX.groups.json
    #[arg(long, value_name = "FILE")]
    groups: Option<PathBuf>,
    /// Allow independent copies if no collective and no message runs along the dimension
    #[arg(long)]
    side_by_side: bool,
    /// Write one file per rank instead of hard links for identical ranks
    #[arg(long)]
    no_links: bool,
    #[command(flatten)]
    output: OutputTraceArgs,
}

/// JSON summary of a scaled job.
#[derive(Serialize)]
struct ScaledJobDocument {
    ranks_before: usize,
    ranks: u32,
    different_traces: u64,
    /// True if collectives or messages exchange data along the scaled dimension.
    exchanges_along: bool,
}

/// Returns the machine for the scaled job. If a machine exists in several sizes, it gets enough nodes for `ranks`
/// ranks.
fn machine_name_for_scaled_job(name: &str, ranks: u32) -> io::Result<String> {
    let sized = scale_machine_name_to_ranks(name, ranks);
    match sized.as_deref() {
        Some(sized) if sized == name => {}
        Some(sized) => terminal::print_note(format_args!(
            "the machine of the job is now {sized}, which has enough NPUs for {}",
            format_count_with_noun(ranks.into(), "rank")
        ))?,
        None => terminal::print_note(format_args!(
            "the machine of the job, {name}, is too small for {}, or does not exist: replay the job with --machine",
            format_count_with_noun(ranks.into(), "rank")
        ))?,
    }
    Ok(sized.unwrap_or_else(|| name.to_owned()))
}

/// Runs the command and prints a summary to `out`.
///
/// # Errors
///
/// Fails if traces cannot be read or do not fit the grid, or if output cannot be written.
pub fn run(args: &ScaleArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let grid =
        RankGridDimensions::parse(&args.grid).map_err(|e| format!("--grid {}: {e}", args.grid))?;
    let to = RankGridDimensions::parse_dimension(&args.to)
        .map_err(|e| format!("--to {}: {e}", args.to))?;
    let along =
        ScaledDimension::new(grid, &to.0, to.1).map_err(|e| format!("--to {}: {e}", args.to))?;
    let sharded = args.sharded;
    let traces = traces::find_traces_and_select_step(&args.input)?;
    let fits = traces
        .rank_files()
        .iter()
        .map(|file| file.rank)
        .eq(0..along.original_rank_count());
    if !fits {
        let ranks: Vec<u32> = traces.rank_files().iter().map(|file| file.rank).collect();
        return Err(format!(
            "--grid {} has ranks 0 to {}, but the traces are of ranks {}\n  try: a --grid of all ranks, \
             outermost dimension first",
            args.grid,
            along.original_rank_count() - 1,
            chakram_trace::workload::format_shortened_list(ranks.iter().copied())
        )
        .into());
    }
    let new_ranks = along.scaled_rank_count();
    let mut outputs =
        OutputPipeOrJobFiles::new(&args.output, new_ranks as usize, &traces, &[&args.groups])?;
    let mut scaling = JobScaler::new(
        along,
        sharded,
        groups_from_file_or_job(args.groups.as_deref(), &traces.found, None)?,
    )?;
    let progress =
        ProgressDisplay::start_counting("reading", "traces", traces.rank_files().len() as u64);
    for file in traces.rank_files() {
        progress.count_one();
        let opened = traces.open_file(file)?;
        let learnt = scaling.scan_rank(file.rank, opened.as_slice());
        learnt.map_err(|e| opened.locate_error(e))?;
    }
    // Read all traces before writing the first trace, so that an error leaves no output.
    scaling.check_ranks_send_equal_messages()?;
    if !scaling.exchanges_along() && !args.side_by_side {
        let along = scaling.scaled_dimension();
        return Err(format!(
            "no collective and no message goes along `{name}`: its {size} ranks would repeat the job and exchange \
             nothing, so the scaled job would lack, for example, the reduction of gradients among replicas\n  try: \
             chakram edit --edit data={size}, which inserts the reductions of gradients, or --side-by-side for \
             independent copies",
            name = along.dimension_name(),
            size = along.scaled_dimension_size()
        )
        .into());
    }
    // Written files, by the hash of their contents. If all copies of an original rank have identical traces, `of_old`
    // maps it to the first copy's file.
    let mut written: BTreeMap<[u8; 32], Option<CompleteUncommittedFileHandle>> = BTreeMap::new();
    let mut of_old: BTreeMap<u32, Option<CompleteUncommittedFileHandle>> = BTreeMap::new();
    let link = !args.no_links;
    for rank in 0..new_ranks {
        let (old, _) = scaling.scaled_dimension().source_rank_and_block(rank);
        // All copies of the rank have the same contents, so they share the file and the trace is not generated again.
        if let Some(&known) = of_old.get(&old)
            && outputs.share_trace(rank, known, link)?
        {
            continue;
        }
        let file = &traces.rank_files()[old as usize];
        let opened = traces.open_file(file)?;
        let trace = scaling.build_trace_of_new_rank(rank, opened.as_slice());
        let trace = trace.map_err(|e| opened.locate_error(e))?;
        // Compare contents by their hash, so that only one trace is in memory at a time.
        let hash = *blake3::hash(&trace).as_bytes();
        let known = match written.get(&hash) {
            Some(&known) if outputs.share_trace(rank, known, link)? => known,
            _ => {
                let known = outputs.write_trace(rank, &trace)?;
                written.insert(hash, known);
                known
            }
        };
        if scaling.has_copies_with_equal_traces(old) {
            of_old.insert(old, known);
        }
    }
    let groups = scaling.scale_declared_groups();
    let beside = outputs.write_groups(&groups, args.groups.is_some())?;
    let piped = outputs.is_pipe();
    let told = traces.job_declarations_with_groups(groups);
    let machine = told.machine.as_deref();
    let about = JobTraceManifest {
        roles: scaling.add_roles_of_copied_groups(&told.roles),
        machine: machine
            .map(|name| machine_name_for_scaled_job(name, new_ranks))
            .transpose()?,
        ..told
    };
    let names = outputs.commit_files(about)?;
    let (old, files) = (traces.rank_files().len(), written.len() as u64);
    match args.output.format {
        _ if piped => {}
        SummaryFormatArg::Text => {
            writeln!(
                out,
                "scaled {} to {}, {}, in {names}",
                format_count_with_noun(old as u64, "rank"),
                format_thousands(new_ranks.into()),
                format_count_with_noun(files, "different trace")
            )?;
            if let Some(path) = beside {
                writeln!(out, "groups in {}", path.display())?;
            }
        }
        SummaryFormatArg::Json => {
            let body = ScaledJobDocument {
                ranks_before: old,
                ranks: new_ranks,
                different_traces: files,
                exchanges_along: scaling.exchanges_along(),
            };
            VersionedDocument::new("chakram.scale.1", body).print_to(out)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
