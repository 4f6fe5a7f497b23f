//! `chakram convert goal`: converts GOAL schedules to traces, and traces of messages to GOAL schedules.

use super::CompressArg;
use crate::traces;
use chakram_converters::goal::{GoalRankProgram, GoalSchedule};
use chakram_converters::sources::TraceSource;
use chakram_jobs::{Job, JobBeingWritten};
use chakram_report::summary::{format_count_with_noun, format_thousands};
use chakram_trace::files::OutputsAndProtectedInputs;
use chakram_trace::format::job::JobTraceManifest;
use clap::Args;
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Convert a GOAL schedule (LogGOPSim) to traces, or traces of messages to GOAL
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram convert goal sweep3d.goal -o sweep     sweep.0.et, …
  chakram convert goal sweep/ -o sweep3d.goal    and back

Calculations become host work, in ns, on the lane of their processor. GOAL has no collectives, so traces with
collectives are rejected.")]
pub struct ConvertToOrFromGoalArgs {
    /// A schedule, or traces: a folder, a prefix, or one file
    #[arg(value_name = "INPUT")]
    input: PathBuf,
    /// Write the schedule to this file, or the traces to PREFIX.0.et, … and PREFIX.job.json
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Compress the traces (ASTRA-sim reads only uncompressed traces)
    #[arg(short = 'z', long, value_enum, value_name = "FORMAT")]
    compress: Option<CompressArg>,
}

/// Converts the inputs, and prints a summary to `out`.
///
/// # Errors
///
/// Fails if the input is neither a schedule nor traces, if GOAL cannot express the traces, or if output
/// cannot be written.
pub fn convert_to_or_from_goal(
    args: &ConvertToOrFromGoalArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    match TraceSource::detect_source(&args.input)? {
        TraceSource::Trace => convert_traces_to_goal_text(args, out),
        _ => convert_goal_to_traces(args, out),
    }
}

fn convert_goal_to_traces(
    args: &ConvertToOrFromGoalArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    let schedule = GoalSchedule::open_file(&args.input)?;
    let mut files = OutputsAndProtectedInputs::default();
    files.register_input(&args.input);
    let mut job = JobBeingWritten::new(
        &args.output,
        traces::compressed_suffix(args.compress),
        files,
    )?;
    let mut nodes = 0;
    for rank in 0..schedule.programs.len() as u32 {
        let written = schedule.write_rank_as_trace(rank, job.start_trace(rank)?);
        let (trace, written) = written.map_err(|error| error.in_file(&args.input))?;
        job.finish_trace(rank, trace)?;
        nodes += written;
    }
    let names =
        traces::name_job_traces_and_note_others(&job.commit_job(JobTraceManifest::default())?)?;
    writeln!(
        out,
        "{}: {} of {}: {} nodes in {names}",
        args.input.display(),
        format_count_with_noun(schedule.operation_count(), "operation"),
        format_count_with_noun(schedule.programs.len() as u64, "rank"),
        format_thousands(nodes),
    )?;
    Ok(ExitCode::SUCCESS)
}

fn convert_traces_to_goal_text(
    args: &ConvertToOrFromGoalArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    if args.compress.is_some() {
        return Err("--compress: schedules are written as text\n  try: without it".into());
    }
    let job = Job::open_job([&args.input])?;
    let workload = job.workload();
    let programs = workload.instances().iter().map(|instance| {
        let peers: Vec<u32> = instance.peers.iter().map(|peer| peer.0).collect();
        GoalRankProgram::from_graph(workload.graph_of(instance), &peers)
            .map_err(|error| format!("rank {}: {}", instance.rank.0, error.in_file(&args.input)))
    });
    let schedule = GoalSchedule {
        programs: programs.collect::<Result<_, _>>()?,
    };
    let mut files = OutputsAndProtectedInputs::default();
    files.register_input(&args.input);
    let mut file = files.create_file(&args.output)?;
    write!(file, "{schedule}")?;
    files.close_file_and_queue_for_commit(file)?;
    files.commit_all()?;
    writeln!(
        out,
        "{}: {} of {} in {}",
        args.input.display(),
        format_count_with_noun(schedule.operation_count(), "operation"),
        format_count_with_noun(schedule.programs.len() as u64, "rank"),
        args.output.display(),
    )?;
    Ok(ExitCode::SUCCESS)
}
