//! `chakram generate`: writes microbenchmarks and training steps to files, or replays them
//! directly.

mod dry_run;
mod edited;
mod files;
mod patterns;
mod shorter;
mod training;

use super::output::{
    JobWithReportFacts, MemoryOverflowAction, ReplayAndReportArgs, ReportDestinationAndOutputs,
};
use super::progress::ProgressDisplay;
use chakram_base::units::Bytes;
use chakram_report::summary::format_count_with_noun;
use chakram_trace::files::OutputsAndProtectedInputs;
use chakram_trace::workload::MissingRankPolicy;
use chakram_workloads::generate::CheckedWorkloadPattern;
use clap::Args;
use edited::GeneratedJobAndEdits;
use patterns::PatternArgs;
use shorter::StepWithFewerMicroBatches;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use training::TrainingArgs;

/// Generate the traces of a model or a traffic pattern, or replay them directly
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Examples:
  chakram generate gpt3-175b --tensor 8 --pipeline 8 --data 2 --batch 64 --machine dgx-a100x16
  chakram generate llama3-70b --tensor 8 --pipeline 4 --batch 8 --machine dgx-h100x4 --dry-run
  chakram generate collective all-reduce --size 1GB --ranks 512 --machine conv-4d
  chakram generate p2p incast --size 1MiB --ranks 8 --machine dgx-h100
  chakram generate data-parallel --ranks 8 -o dp8    writes dp8.0.et, …, dp8.job.json")]
pub struct GenerateArgs {
    #[command(subcommand)]
    pattern: Option<PatternArgs>,
    #[command(flatten)]
    training: Box<TrainingArgs>,
}

impl GenerateArgs {
    /// Returns the replay arguments, which are part of the pattern's or the model's arguments.
    pub(super) fn replay_args_mut(&mut self) -> &mut ReplayAndReportArgs {
        match &mut self.pattern {
            Some(pattern) => &mut pattern.trace_destination_mut().run,
            None => &mut self.training.run,
        }
    }
}

/// Destination of the traces: files, a replay, or both.
#[derive(Debug, Args)]
struct TraceOutputOrReplayArgs {
    /// Write the traces to PREFIX.0.et, …, and PREFIX.job.json
    #[arg(
        short,
        long,
        value_name = "PREFIX",
        required_unless_present = "machine"
    )]
    output: Option<PathBuf>,
    /// Write one file per rank instead of hard links for identical ranks
    #[arg(long, hide_short_help = true, requires = "output")]
    no_links: bool,
    /// Replay on this machine: preset (`chakram machine list`) or file
    #[arg(short, long, value_name = "MACHINE")]
    machine: Option<String>,
    #[command(flatten)]
    run: ReplayAndReportArgs,
}

/// Generates the job, then writes or replays it.
///
/// # Errors
///
/// Fails if options contradict one another, if a replay fails, or if output cannot be written.
pub fn run(args: &GenerateArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let (machine, output, given, no_links) = match &args.pattern {
        Some(args) => {
            let target = args.requested_pattern_name_and_destination()?.2;
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
    given.reject_options_without_effect(false)?;
    let named = machine
        .as_deref()
        .map(|name| given.timing.parsed_settings().machine_name_with_rates(name));
    let named = named.transpose()?;
    let named = named.as_deref();
    let dry = args.pattern.is_none() && args.training.dry_run;
    if let (None, Some(option), false) = (machine, given.first_replay_only_option(), dry) {
        return Err(format!("{option} is for a replay; add --machine MACHINE").into());
    }
    let mut machine = named.map(|name| given.load_machine(name)).transpose()?;
    let (mut unstacked, mut stack) = (None, None);
    let asked = match &args.pattern {
        Some(_) => None,
        None => args.training.load_software_stack()?,
    };
    if let Some(asked) = asked {
        stack = Some(asked.empty_stack_report());
        if let Some(loaded) = &mut machine {
            let (priced, report) = asked.apply_durations_to_machine(&loaded.machine)?;
            unstacked = Some(std::mem::replace(&mut loaded.machine, priced));
            loaded.apply_stack_times_to_compared_machines(asked)?;
            stack = Some(report);
        }
    }
    let edits = match &args.pattern {
        Some(_) => Vec::new(),
        None => edited::parse_edits_rejecting_plan_options(&args.training.edit)?,
    };
    let (mut shortened, mut training, mut capacity) = (None, None, None);
    let (job, name) = match &args.pattern {
        Some(args) => {
            let (pattern, name, _) = args.requested_pattern_name_and_destination()?;
            (CheckedWorkloadPattern::new(pattern)?, name)
        }
        None => {
            let machine = machine.as_ref().map(|loaded| &loaded.machine);
            let asked = args
                .training
                .resolve_request(machine, &patterns::pattern_names())?;
            if let (Some(stack), Some(plan)) = (&mut stack, &asked.stack) {
                stack.add_plan_decisions(plan);
            }
            if dry {
                return dry_run::run(asked, machine, given, out);
            }
            // Check the output only after the model is resolved, so that an error about a
            // misspelled model comes first.
            if output.is_none() && machine.is_none() {
                return Err(format!(
                    "{}: no action is given\n  try: --dry-run, --machine MACHINE to replay it, \
                     or -o PREFIX to write its traces",
                    asked.name
                )
                .into());
            }
            training = Some(asked.training.clone());
            capacity = asked.capacity.map(Bytes);
            let job = match args.training.extrapolate {
                Some(simulated) => {
                    let step = StepWithFewerMicroBatches::new(asked.training, simulated)?;
                    if given.fit == MemoryOverflowAction::Require {
                        step.check_peak_memory_matches_whole_step()?;
                    }
                    shortened.insert(step).job_with_fewer_turns(0)
                }
                None => CheckedWorkloadPattern::new(asked.training),
            };
            (
                job.map_err(|error| asked.origin.locate_error_in_plan_file(error))?,
                asked.name,
            )
        }
    };
    // The plan's own capacity overrides that of the machine.
    let machines = machine.iter_mut().map(|loaded| &mut loaded.machine);
    machines
        .chain(&mut unstacked)
        .for_each(|machine| machine.set_npu_memory_capacity(capacity));
    let edited = (!edits.is_empty()).then(|| GeneratedJobAndEdits::new(&job, &name, edits));
    let edited = edited.transpose()?;
    let mut outputs = OutputsAndProtectedInputs::default();
    let beside = named.map(Path::new);
    let beside = beside.into_iter().chain(args.training.input_files());
    beside.for_each(|path| outputs.register_input(path));
    given.protect_inputs(&mut outputs);
    if let Some(prefix) = output {
        let sharing = files::RankFileSharingRules {
            link: !no_links,
            members: given
                .timing
                .parsed_settings()
                .options_without_files_and_efficiency()
                .aggregate,
        };
        let outputs = std::mem::take(&mut outputs);
        if let Some(edited) = &edited {
            let (names, edited) =
                edited.write_edited(&job, prefix, outputs, sharing.link, named)?;
            if machine.is_none() {
                let ranks = format_count_with_noun(edited.found.files.len() as u64, "rank");
                writeln!(out, "wrote {ranks}, edited: {names}")?;
                crate::edit::print_edit_rows(&edited.rows, out)?;
            }
        } else {
            let names = files::write_traces(&job, prefix, outputs, sharing, named)?;
            if machine.is_none() {
                writeln!(
                    out,
                    "wrote {}, {}: {names}",
                    format_count_with_noun(job.rank_count().into(), "rank"),
                    format_count_with_noun(
                        (0..job.rank_count()).map(|rank| job.node_count(rank)).sum(),
                        "node"
                    ),
                )?;
            }
        }
    }
    if let Some(loaded) = machine {
        let mut inputs: Vec<_> = loaded.input.clone().into_iter().collect();
        job.check_workload_fits_memory()?;
        let progress = ProgressDisplay::start_counting(
            "generating",
            "nodes",
            job.lower_bound_of_shared_graph_nodes(),
        );
        let generated = job.build_workload_with_progress(&|more| progress.count_more(more))?;
        drop(progress);
        let edited = edited.map(|edited| edited.load_edited()).transpose()?;
        let workload = edited
            .as_ref()
            .map_or(&generated, |edited| edited.workload());
        let machines = std::slice::from_ref(&loaded);
        let machine = &loaded.machine;
        let absent = MissingRankPolicy::Refuse;
        let options = given.replay_options(absent, workload, machines, &mut inputs)?;
        let shorter = shortened.map(|step| step.replay_shortened_step_twice(machine, &options));
        let shorter = shorter.transpose()?;
        let mut to = ReportDestinationAndOutputs::create_on_standard_output(out, outputs);
        let rows = edited
            .as_ref()
            .map_or(&[][..], |edited| edited.edit_effect_counts());
        let edits = loaded.describe_job_and_machine_edits(&generated, rows, &options)?;
        let sensitivities = given.find_sensitivities(workload, &loaded, &options)?;
        let job = JobWithReportFacts {
            workload,
            name: &name,
            other_profiler: None,
            edits: edits.as_ref(),
            sensitivities: sensitivities.as_ref(),
            trace_options: None,
            stack: stack.as_ref(),
            shorter,
        };
        let mut settings = given.replay_settings(&loaded, &options);
        if let Some(training) = &training {
            args.training
                .rebind_jobs_of_machine_settings(&mut settings, machine, workload);
            settings.extend(
                args.training
                    .plan_options_as_settings(machine, training, workload),
            );
            if let Some(unstacked) = &unstacked {
                let own = args
                    .training
                    .software_stack_setting(unstacked, training, workload);
                settings.extend(own);
            }
        }
        return given.replay_and_print(job, machine, &options, &inputs, &settings, &mut to);
    }
    Ok(ExitCode::SUCCESS)
}
