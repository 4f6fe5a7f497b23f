//! `chakram slice`: writes a part of a job as a separate job.

use super::progress::ProgressDisplay;
use super::terminal;
use super::traces::{
    self, InputTraceArgs, OutputPipeOrJobFiles, OutputTraceArgs, SummaryFormatArg,
};
use chakram_analysis::edit::slice::{
    AnnotationStepOrIdSelector, JobCommunication, KeptNodesOfRank, RankSliceSummary,
};
use chakram_jobs::groups_from_file_or_job;
use chakram_report::document::VersionedDocument;
use chakram_report::summary::{format_count_with_noun, format_thousands};
use chakram_report::table::{TextTable, left_aligned_column, right_aligned_column};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::error::Error;
use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Extract a step or another part of a job
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram slice traces/ddp-resnet18 --step 2 -o step2
  chakram slice job --annotation '*.backward' --unmatched cut -o backward/job -z zst
  chakram slice job.0.et --from 100 --to 900 -o - | chakram audit --leaks -

An annotation covers the node with its name, the node's descendants by `parent` and `launch`, and nodes that other
threads start in the meantime. In traces without these attributes, it covers the node's descendants by control
dependencies. Dependencies on removed nodes are rewired to the nearest kept nodes, and every node keeps its start
time.")]
pub struct SliceArgs {
    #[command(flatten)]
    input: InputTraceArgs,
    /// Keep the nodes that annotations of this name cover; * matches any text
    #[arg(long, value_name = "NAME", required_unless_present_any = ["from", "to", "step"], conflicts_with_all = ["from", "to"])]
    annotation: Option<String>,
    /// Keep the nodes whose id is at least this
    #[arg(long, value_name = "ID")]
    from: Option<u64>,
    /// Keep the nodes whose id is at most this
    #[arg(long, value_name = "ID")]
    to: Option<u64>,
    /// What to do with collectives and messages that have a partner outside the slice
    #[arg(long, value_enum, default_value_t = UnmatchedCommunicationArg::Refuse, value_name = "WHAT")]
    unmatched: UnmatchedCommunicationArg,
    /// Process groups as JSON: {"1": [0, 1], …}
    #[arg(long, value_name = "FILE")]
    groups: Option<PathBuf>,
    #[command(flatten)]
    output: OutputTraceArgs,
}

/// JSON summary of a slice.
#[derive(Serialize)]
struct SliceDocument {
    sliced_from_ps: u64,
    unmatched_removed: u64,
    ranks: Vec<SlicedRankDocument>,
}

/// JSON summary of one rank of a slice.
#[derive(Serialize)]
struct SlicedRankDocument {
    rank: u32,
    nodes_before: u64,
    nodes: u64,
    join_nodes: u64,
    rewired: u64,
    control_dropped: bool,
    starts_ps: u64,
    ends_ps: u64,
}

/// What to do with communication whose partner is outside the slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UnmatchedCommunicationArg {
    /// Fail, and write nothing
    Refuse,
    /// Remove the communication as well
    Cut,
}

/// Runs the command and prints a summary to `out`.
///
/// # Errors
///
/// Fails if traces cannot be read, if the slice is empty or separates communication partners, or if output
/// cannot be written.
pub fn run(args: &SliceArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let ids = args.from.is_some() || args.to.is_some();
    let (cut, traces) = match (&args.annotation, args.input.step.step) {
        (None, Some(step)) if !ids => (
            AnnotationStepOrIdSelector::Step(step),
            traces::find_traces_or_read_standard_input(&args.input)?,
        ),
        (Some(name), _) => (
            AnnotationStepOrIdSelector::Annotation(name.clone()),
            traces::find_traces_and_select_step(&args.input)?,
        ),
        _ => (
            AnnotationStepOrIdSelector::Ids(args.from.unwrap_or(0)..=args.to.unwrap_or(u64::MAX)),
            traces::find_traces_and_select_step(&args.input)?,
        ),
    };
    let groups = groups_from_file_or_job(args.groups.as_deref(), &traces.found, None)?;
    let ranks = traces.rank_files().len();
    let mut outputs = OutputPipeOrJobFiles::new(&args.output, ranks, &traces, &[&args.groups])?;
    let mut matches = JobCommunication::default();
    let mut parts = Vec::new();
    let progress =
        ProgressDisplay::start_counting("reading", "traces", traces.rank_files().len() as u64);
    for file in traces.rank_files() {
        progress.count_one();
        let opened = traces.open_file(file)?;
        let part = KeptNodesOfRank::select_nodes_and_collect_communication(
            opened.as_slice(),
            file.rank,
            &cut,
            &groups,
            &mut matches,
        );
        parts.push(part.map_err(|e| opened.locate_error(e))?);
    }
    // The missing partners are known only after all ranks have been read, so read the traces a second time to write the
    // slice.
    let unmatched = matches.find_kept_with_cut_partners();
    if unmatched.count > 0 && args.unmatched == UnmatchedCommunicationArg::Refuse {
        return Err(format!(
            "the slice separates {} from partners outside the slice:\n{unmatched}\n  try: \
             --unmatched cut, which removes them on all ranks, or another slice",
            match unmatched.count {
                1 => "1 collective or message".to_owned(),
                n => format!("{} collectives and messages", format_thousands(n)),
            }
        )
        .into());
    }
    // Use the same start time for all ranks, so that their times stay aligned.
    let start = parts
        .iter()
        .map(KeptNodesOfRank::earliest_start)
        .min()
        .unwrap_or_default();
    let mut slices = Vec::new();
    for (file, mut part) in traces.rank_files().iter().zip(parts) {
        part.cut_unmatched_communication(&unmatched);
        let opened = traces.open_file(file)?;
        let written = part.encode_slice_of_trace(opened.as_slice(), start);
        let (trace, sliced) = written.map_err(|e| opened.locate_error(e))?;
        outputs.write_trace(file.rank, &trace)?;
        slices.push((file.rank, sliced));
    }
    outputs.write_groups(&groups, false)?;
    let piped = outputs.is_pipe();
    let names = outputs.commit_files(traces.job_declarations_with_groups(groups))?;
    match args.output.format {
        _ if piped => {}
        SummaryFormatArg::Text => write_text(&slices, unmatched.count, &names, out)?,
        SummaryFormatArg::Json => {
            let ranks = slices.iter().map(|(rank, sliced)| SlicedRankDocument {
                rank: *rank,
                nodes_before: sliced.of,
                nodes: sliced.kept,
                join_nodes: sliced.joints,
                rewired: sliced.mended,
                control_dropped: sliced.cyclic,
                starts_ps: sliced.starts.0,
                ends_ps: sliced.ends.0,
            });
            let body = SliceDocument {
                sliced_from_ps: start.0,
                unmatched_removed: unmatched.count,
                ranks: ranks.collect(),
            };
            VersionedDocument::new("chakram.slice.1", body).print_to(out)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn write_text(
    slices: &[(u32, RankSliceSummary)],
    unmatched: u64,
    names: &str,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    const SHOWN: usize = 16;
    let sum =
        |of: fn(&RankSliceSummary) -> u64| slices.iter().map(|(_, sliced)| of(sliced)).sum::<u64>();
    writeln!(
        out,
        "kept {} of {} on {} in {names}",
        format_thousands(sum(|s| s.kept)),
        format_count_with_noun(sum(|s| s.of), "node"),
        format_count_with_noun(slices.len() as u64, "rank"),
    )?;
    let table = TextTable::new([
        left_aligned_column("RANK", 10),
        right_aligned_column("nodes", 12),
        right_aligned_column("of", 12),
        right_aligned_column("rewired", 12),
        right_aligned_column("join nodes", 12),
        right_aligned_column("starts", 14),
        right_aligned_column("ends", 14),
    ]);
    writeln!(out)?;
    terminal::print_plain_table_heading(&table, out)?;
    for (rank, sliced) in slices.iter().take(SHOWN) {
        let cells: [&dyn Display; 7] = [
            rank,
            &format_thousands(sliced.kept),
            &format_thousands(sliced.of),
            &format_thousands(sliced.mended),
            &format_thousands(sliced.joints),
            &sliced.starts,
            &sliced.ends,
        ];
        terminal::print_table_row(&table, &cells, out)?;
    }
    if slices.len() > SHOWN {
        writeln!(out, "  … {} more: --format json", slices.len() - SHOWN)?;
    }
    writeln!(
        out,
        "  rewired: nodes with new dependencies in place of removed nodes; times: of each rank"
    )?;
    if unmatched > 0 {
        writeln!(
            out,
            "  {} collectives and messages were removed on all ranks",
            format_thousands(unmatched)
        )?;
    }
    if slices.iter().any(|(_, sliced)| sliced.cyclic) {
        writeln!(
            out,
            "  control dependencies closed a cycle and were dropped"
        )?;
    }
    Ok(())
}
