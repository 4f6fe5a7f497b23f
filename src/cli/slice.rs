//! `chakram slice`: a part of a job as a job.

use super::convert::SummaryFormatArg;
use super::terminal;
use super::traces::{self, InputArgs, OutputArgs, TraceTarget};
use crate::edit::slice::{CommunicationMatches, RankSelection, SliceSummary, SliceTarget};
use crate::job::groups_of;
use crate::report::summary::thousands;
use crate::report::table::{TextTable, left, right};
use crate::report::text::TextStyle;
use clap::{Args, ValueEnum};
use serde_json::json;
use std::error::Error;
use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Cut a step, or any part, out of a job
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram slice traces/ddp-resnet18 --annotation 'ProfilerStep#3' -o step3
  chakram slice job --annotation '*.backward' --unmatched cut -o backward/job -z zst
  chakram slice job.0.et --from 100 --to 900 -o - | chakram audit --leaks -

An annotation covers the node of its name, what belongs to it by `parent` and `launch`, and what other
threads begin before its own thread does something else; in traces without these attributes, what belongs
to it by control dependencies.
A dependency on a node that is cut leads on to the nearest kept ones. Delays become such that everything
starts when it did, counted from the start of the slice.

A collective or message whose partner is cut would be waited for in vain, so it is an error, unless
--unmatched cut cuts it too.")]
pub struct SliceArgs {
    #[command(flatten)]
    input: InputArgs,
    /// Keep what annotations of this name cover; * stands for any text
    #[arg(long, value_name = "NAME", required_unless_present_any = ["from", "to"], conflicts_with_all = ["from", "to"])]
    annotation: Option<String>,
    /// Keep nodes from this id on
    #[arg(long, value_name = "ID")]
    from: Option<u64>,
    /// Keep nodes up to this id
    #[arg(long, value_name = "ID")]
    to: Option<u64>,
    /// What to do about collectives and messages whose partner is cut
    #[arg(long, value_enum, default_value_t = UnmatchedArg::Refuse, value_name = "WHAT")]
    unmatched: UnmatchedArg,
    /// Groups of ranks: a JSON file {"1": [0, 1], …}
    #[arg(long, value_name = "FILE")]
    groups: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Treatment of communication whose partner is outside the slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum UnmatchedArg {
    /// Refuse the cut
    Refuse,
    /// Cut them too
    Cut,
}

/// Runs the command and prints a summary to `out`.
///
/// # Errors
///
/// Traces that cannot be read, cuts that keep nothing or part what belongs together, and output that
/// cannot be written.
pub fn run(args: &SliceArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let cut = match &args.annotation {
        Some(name) => SliceTarget::Annotation(name.clone()),
        None => SliceTarget::Ids(args.from.unwrap_or(0)..=args.to.unwrap_or(u64::MAX)),
    };
    let traces = traces::find(&args.input)?;
    let groups = groups_of(args.groups.as_deref(), &traces.found, None)?;
    let ranks = traces.files().len();
    let mut outputs = TraceTarget::new(&args.output, ranks, &traces, &[&args.groups])?;
    let mut matches = CommunicationMatches::default();
    let mut parts = Vec::new();
    for file in traces.files() {
        let opened = traces.open(file)?;
        let part = RankSelection::select(opened.as_slice(), file.rank, &cut, &groups, &mut matches);
        parts.push(part.map_err(|e| opened.blame(e))?);
    }
    // Known only when all ranks were read, so traces are opened twice.
    let unmatched = matches.unmatched();
    if unmatched.count > 0 && args.unmatched == UnmatchedArg::Refuse {
        return Err(format!(
            "the cut parts {} collectives and messages:\n{unmatched}\n  try: --unmatched cut, which cuts \
             them on all ranks, or another cut",
            unmatched.count
        )
        .into());
    }
    // One start for all ranks keeps their times relative to each other.
    let start = parts
        .iter()
        .map(RankSelection::first)
        .min()
        .unwrap_or_default();
    let mut slices = Vec::new();
    for (file, mut part) in traces.files().iter().zip(parts) {
        part.cut(&unmatched);
        let opened = traces.open(file)?;
        let written = part.write(opened.as_slice(), start);
        let (trace, sliced) = written.map_err(|e| opened.blame(e))?;
        outputs.write(file.rank, &trace)?;
        slices.push((file.rank, sliced));
    }
    outputs.groups(&groups, false)?;
    let piped = outputs.is_pipe();
    let names = outputs.commit(traces.about(groups))?;
    match args.output.format {
        _ if piped => {}
        SummaryFormatArg::Text => text(&slices, unmatched.count, &names, out)?,
        SummaryFormatArg::Json => {
            let ranks = slices.iter().map(|(rank, sliced)| {
                json!({
                    "rank": rank, "nodes_before": sliced.of, "nodes": sliced.kept,
                    "joints": sliced.joints, "mended": sliced.mended,
                    "control_dropped": sliced.cyclic,
                    "starts_ps": sliced.starts.0, "ends_ps": sliced.ends.0,
                })
            });
            let document = json!({
                "schema": "chakram.slice.1",
                "tool_version": env!("CARGO_PKG_VERSION"),
                "cut_from_ps": start.0,
                "unmatched_cut": unmatched.count,
                "ranks": ranks.collect::<Vec<_>>(),
            });
            out.write_all(terminal::json(&document).as_bytes())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn text(
    slices: &[(u32, SliceSummary)],
    unmatched: u64,
    names: &str,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    const SHOWN: usize = 16;
    let sum =
        |of: fn(&SliceSummary) -> u64| slices.iter().map(|(_, sliced)| of(sliced)).sum::<u64>();
    writeln!(
        out,
        "{} of {} nodes of {} ranks in {names}",
        thousands(sum(|s| s.kept)),
        thousands(sum(|s| s.of)),
        slices.len(),
    )?;
    let table = TextTable::new([
        left("RANK", 10),
        right("nodes", 12),
        right("of", 12),
        right("mended", 12),
        right("joints", 12),
        right("starts", 14),
        right("ends", 14),
    ]);
    out.write_all(table.headings(TextStyle::default()).as_bytes())?;
    for (rank, sliced) in slices.iter().take(SHOWN) {
        let cells: [&dyn Display; 7] = [
            rank,
            &thousands(sliced.kept),
            &thousands(sliced.of),
            &thousands(sliced.mended),
            &thousands(sliced.joints),
            &sliced.starts,
            &sliced.ends,
        ];
        out.write_all(table.line(&cells, anstyle::Style::new()).as_bytes())?;
    }
    if slices.len() > SHOWN {
        writeln!(out, "  … {} more: --format json", slices.len() - SHOWN)?;
    }
    writeln!(
        out,
        "  mended: wait for others than before, as these were cut; times: every rank by itself"
    )?;
    if unmatched > 0 {
        writeln!(
            out,
            "  {} collectives and messages were cut on all ranks",
            thousands(unmatched)
        )?;
    }
    if slices.iter().any(|(_, sliced)| sliced.cyclic) {
        writeln!(out, "  control dependencies closed a cycle and are gone")?;
    }
    Ok(())
}
