//! `chakram generate`: microbenchmarks and training steps, into files or straight into a replay.

mod dry_run;
mod files;
mod patterns;
mod training;

use super::output::{ReportDestination, RunArgs, load_machine};
use crate::files::OutputSet;
use crate::generate::{GeneratedJob, WorkloadPattern};
use crate::workload::MissingRankPolicy;
use clap::Args;
use patterns::PatternArgs;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use training::TrainingArgs;

/// Generate traces, or replay them without a file
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Examples:
  chakram generate gpt3-175b --tensor 8 --pipeline 8 --data 2 --batch 64 --machine dgx-a100x16
  chakram generate collective all-reduce --size 1GB --ranks 512 --machine conv-4d
  chakram generate p2p incast --size 1MiB --ranks 8 --machine dgx-h100
  chakram generate data-parallel --ranks 8 -o /tmp/dp/job    writes /tmp/dp/job.0.et, …, job.job.json
  chakram generate chain --ranks 1 --nodes 1000000 --machine dgx-h100 --format json")]
pub struct GenerateArgs {
    #[command(subcommand)]
    pattern: Option<PatternArgs>,
    #[command(flatten)]
    training: Box<TrainingArgs>,
}

/// Destination of the traces: files, a replay, or both.
#[derive(Debug, Args)]
struct TargetArgs {
    /// Write the traces to PREFIX.0.et, PREFIX.1.et, … and PREFIX.job.json, which names them; into a folder as
    /// job.0.et, job.1.et, …
    #[arg(
        short,
        long,
        value_name = "PREFIX",
        required_unless_present = "machine"
    )]
    output: Option<PathBuf>,
    /// Write every rank as a file of its own; those that do the same are one under several names (hard links)
    /// otherwise, so that who edits one in place edits all
    #[arg(long, requires = "output")]
    no_links: bool,
    /// Replay the traces on this machine: a preset or a file
    #[arg(short, long, value_name = "MACHINE")]
    machine: Option<String>,
    #[command(flatten)]
    run: RunArgs,
}

/// Does what `args` ask for.
///
/// # Errors
///
/// Options that make no sense, a replay that fails, or output that cannot be written.
pub fn run(args: &GenerateArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let (machine, output, given, no_links) = match &args.pattern {
        Some(args) => {
            let target = args.pattern()?.2;
            (
                &target.machine,
                &target.output,
                &target.run,
                target.no_links,
            )
        }
        None => {
            let args = &args.training;
            (&args.machine, &args.output, &args.run, args.no_links)
        }
    };
    let named = machine.as_deref();
    given.check(false)?;
    let dry = args.pattern.is_none() && args.training.dry_run;
    if let (None, Some(option), false) = (machine, given.first_given(), dry) {
        return Err(format!("{option} is for a replay; add --machine MACHINE").into());
    }
    let machine = machine
        .as_ref()
        .map(|machine| load_machine(machine, given.wants_hashes()))
        .transpose()?;
    let (job, name) = match &args.pattern {
        Some(args) => {
            let (pattern, name, _) = args.pattern()?;
            (GeneratedJob::new(pattern)?, name)
        }
        None => {
            let machine = machine.as_ref().map(|(machine, _)| machine);
            let asked = args.training.asked(machine, &patterns::names())?;
            if dry {
                return dry_run::run(asked, machine, given, out);
            }
            let job = GeneratedJob::new(WorkloadPattern::Training(Box::new(asked.training)));
            (
                job.map_err(|error| asked.origin.with_source(error))?,
                asked.name,
            )
        }
    };
    let mut outputs = OutputSet::default();
    let beside = named.map(Path::new);
    let beside = beside.into_iter().chain(args.training.files());
    beside.for_each(|path| outputs.reads(path));
    given.reads(&mut outputs);
    if let Some(prefix) = output {
        let names = files::write(&job, prefix, std::mem::take(&mut outputs), !no_links, named)?;
        if machine.is_none() {
            writeln!(
                out,
                "wrote {} ranks, {} nodes: {names}",
                job.ranks(),
                (0..job.ranks())
                    .map(|rank| job.node_count(rank))
                    .sum::<u64>(),
            )?;
        }
    }
    if let Some((machine, inputs)) = machine {
        let mut inputs: Vec<_> = inputs.into_iter().collect();
        job.check_memory()?;
        let workload = job.workload()?;
        let options = given.options(MissingRankPolicy::Refuse, &workload, &mut inputs)?;
        let mut to = ReportDestination::standard_output(out, outputs);
        return given.replay(&workload, &name, &machine, &options, &inputs, &mut to);
    }
    Ok(ExitCode::SUCCESS)
}
