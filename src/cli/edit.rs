//! `chakram edit`: writes a job with changed batches, layers, buckets or replicas.

use super::traces::{
    self, InputTraceArgs, OutputPipeOrJobFiles, OutputTraceArgs, SummaryFormatArg,
};
use chakram_analysis::edit::{AbsentRankModelRule, edit_job};
use chakram_jobs::{groups_from_file_or_job, parse_edit_or_edits_file};
use chakram_report::document::VersionedDocument;
use chakram_report::edits::EditWithEffectCounts;
use chakram_report::summary::{format_count_with_noun, format_thousands};
use chakram_trace::format::file::DecompressedTraceFile;
use clap::Args;
use serde::Serialize;
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Change the batch, layers, buckets or replicas of a job
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram edit run7/job --edit batch=2x -o twice/job
  chakram edit run7/job --edit layers=+4 --edit data=16 -o larger/job
  chakram edit run7/job --edit delay=50ms,rank=1,at=backward -o late/job
  chakram edit run7/job --edit plan.toml -o edited/job

Edits: batch=2x, sequence=2x, hidden=1.5x, layers=+4, accumulate=2, microbatches=2x, schedule=1f1b, data=8,
ranks=64, bucket=25MiB, overlap=off, reshard=off, delay=50ms,rank=1,at=backward; a factor is 2x, 1/2x or both sizes,
8:16. A file contains a list: edits = [\"batch=2x\"]. `chakram replay --edit` does the same without writing files,
and compares the result with the unchanged job.")]
pub struct EditArgs {
    #[command(flatten)]
    input: InputTraceArgs,
    /// An edit, or a file NAME.toml with a list of `edits`; repeatable, applied in order
    #[arg(long, value_name = "EDIT", required = true)]
    edit: Vec<String>,
    /// Process groups as JSON: {"1": [0, 1], …}
    #[arg(long, value_name = "FILE")]
    groups: Option<PathBuf>,
    #[command(flatten)]
    output: OutputTraceArgs,
}

/// JSON summary of the edits to a job.
#[derive(Serialize)]
struct JobEditJsonSummary {
    ranks_before: usize,
    ranks: usize,
    edits: Vec<EditWithEffectCounts>,
}

/// Prints the number of items that each edit changed.
pub(super) fn print_edit_rows(
    rows: &[EditWithEffectCounts],
    out: &mut dyn Write,
) -> std::io::Result<()> {
    for row in rows {
        writeln!(
            out,
            "  {}: {} of {} {} changed, {} nodes added, {} removed",
            row.edit,
            format_thousands(row.changed),
            format_thousands(row.matched),
            row.counts,
            format_thousands(row.added),
            format_thousands(row.removed)
        )?;
        for note in &row.notes {
            writeln!(out, "    {note}")?;
        }
    }
    Ok(())
}

/// Runs the command and prints a summary to `out`.
///
/// # Errors
///
/// Fails if traces cannot be read, if an edit finds nothing to change or has an unknown result, or if output cannot be
/// written.
pub fn run(args: &EditArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let edits = args.edit.iter().map(|text| {
        let edits = parse_edit_or_edits_file(text);
        edits.map_err(|why| format!("--edit {text}: {why}"))
    });
    let edits = edits.collect::<Result<Vec<_>, _>>()?.concat();
    let traces = traces::find_traces_and_select_step(&args.input)?;
    if traces.found.stream.is_some() {
        return Err("a trace from a pipe cannot be edited\n  try: write it to a file first".into());
    }
    let groups = groups_from_file_or_job(args.groups.as_deref(), &traces.found, None)?;
    let edited = edit_job(&traces.found, &edits, &groups, AbsentRankModelRule::Nearest)?;
    let (before, ranks) = (traces.rank_files().len(), edited.found.files.len());
    let mut outputs = OutputPipeOrJobFiles::new(&args.output, ranks, &traces, &[&args.groups])?;
    let mut written = std::collections::BTreeMap::new();
    for file in &edited.found.files {
        let contents = DecompressedTraceFile::open_verified(file)?;
        let hash = *blake3::hash(contents.as_slice()).as_bytes();
        match written.get(&hash) {
            Some(&known) if outputs.share_trace(file.rank, known, true)? => {}
            _ => {
                let known = outputs.write_trace(file.rank, contents.as_slice())?;
                written.insert(hash, known);
            }
        }
    }
    outputs.write_groups(&edited.groups, false)?;
    let piped = outputs.is_pipe();
    let names = outputs.commit_files(traces.job_declarations_with_groups(edited.groups))?;
    match args.output.format {
        _ if piped => {}
        SummaryFormatArg::Text => {
            let ranks = format_count_with_noun(ranks as u64, "rank");
            writeln!(
                out,
                "edited {} into {ranks} in {names}",
                format_count_with_noun(before as u64, "rank")
            )?;
            print_edit_rows(&edited.rows, out)?;
        }
        SummaryFormatArg::Json => {
            let body = JobEditJsonSummary {
                ranks_before: before,
                ranks,
                edits: edited.rows,
            };
            VersionedDocument::new("chakram.edit.1", body).print_to(out)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
