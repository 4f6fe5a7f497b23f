//! `chakram replay`: replays traces on a machine and prints a report, or compares several machines.

use super::compare::{FailedReplays, MachineComparisonJob, replay_on_machines_for_comparison};
use super::launches::RepeatAndExtraJobArgs;
use super::load::{self, TraceReadingArgs};
use super::output::{
    JobWithReportFacts, MachineWithSourceAndEdits, ReplayAndReportArgs,
    ReportDestinationAndOutputs, is_parquet,
};
use chakram_analysis::edit::AbsentRankModelRule;
use chakram_base::setting::SettingKey;
use chakram_base::units::Span;
use chakram_engine::{CompiledReplay, ReplayError, ReplayOptions};
use chakram_hardware::machine::Machine;
use chakram_jobs::{
    self as job, CASE_MACHINE, GivenSetting, Job, JobLoadOptions, ReplaySettings,
    ReplaySettingsError, RunInputsWithoutSetting,
};
use chakram_report::edits::{JobAndMachineEditReport, UncapturedRanksMakespanInterval};
use chakram_trace::files::OutputsAndProtectedInputs;
use chakram_trace::format::file::FoundTraces;
use chakram_trace::workload::{Workload, WorkloadError};
use clap::Args;
use serde_json::Map;
use std::error::Error;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Replay traces on a machine
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  chakram replay traces/data-parallel-8                    a folder with traces and machine.toml
  chakram replay run7/job -m dgx-h100x4                    run7/job.0.et, run7/job.1.et, …
  chakram replay run7/job -m tpu-v4 --compute roofline --efficiency 0.68
  chakram replay run7/job -m dgx-h100 --compute roofline --host scaled:0.5
  chakram replay run7/job -m dgx-a100 -m dgx-h100          compare machines
  chakram replay run7/job -m dgx-h100x4 --comm captured    check a conversion
  chakram replay run7/job -m dgx-h100x4 --comm recorded --delay 3=10ms
  chakram replay job.0.et -m dgx-a100 --absent mirror      one rank represents all
  chakram replay run7/job -m dgx-h100x4 --repeat 3         three steps, which overlap if possible
  chakram replay run7/job -m dgx-h100x4 --with run8/job --on 16-31
  chakram replay traces/data-parallel-8 --format json | jq .makespan_ps
  chakram replay run7/job -m dgx-h100 --table nodes -o nodes.parquet

Exit codes: 0 every node of every rank completed, 1 the replay deadlocked, 2 bad input,
3 with --fit require, a rank needs more memory than its NPU has")]
pub struct ReplayArgs {
    /// Folder of traces, prefix of files named PREFIX.RANK.et, or files
    #[arg(required = true, value_name = "TRACES")]
    traces: Vec<PathBuf>,
    /// Preset (`chakram machine list`) or file; by default machine.toml in the folder of the traces; several are
    /// compared
    #[arg(short, long, value_name = "MACHINE")]
    machine: Vec<String>,
    /// How many machines to replay at the same time; one per core by default
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = crate::parse_number)]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    job: TraceReadingArgs,
    #[command(flatten)]
    launches: RepeatAndExtraJobArgs,
    #[command(flatten)]
    pub(super) run: ReplayAndReportArgs,
    /// Write the report to this file; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
}

impl ReplayArgs {
    /// Returns the replay's settings without the option `left_out`.
    fn settings_without_option(
        &self,
        left_out: Option<SettingKey>,
    ) -> Result<ReplaySettings, ReplaySettingsError> {
        let given = self
            .job
            .given_options()
            .iter()
            .chain(self.run.timing.given_options());
        let given = given.filter(|(key, _)| Some(*key) != left_out);
        ReplaySettings::parse_settings(given.map(|(key, words)| (*key, &words[..])))
    }
}

/// Runs the command and prints the report to `out`.
///
/// # Errors
///
/// Fails if input is invalid, if the replay deadlocks, or if output cannot be written.
pub fn run(args: &ReplayArgs, out: &mut dyn Write) -> Result<ExitCode, Box<dyn Error>> {
    let several = args.machine.len() > 1;
    args.run
        .reject_options_without_effect(several || args.run.wants_machine_comparison_table())?;
    args.launches
        .check_combinations(several || args.run.wants_machine_comparison_table())?;
    if let (Some(_), false) = (args.threads, several) {
        return Err("--threads is for several machines".into());
    }
    if is_parquet(&args.output) && !args.run.prints_node_table() {
        return Err(format!(
            "-o {}: only the table of nodes is written as Parquet\n  try: --table nodes",
            args.output.display()
        )
        .into());
    }
    let settings = args.settings_without_option(None)?;
    let loading = settings.job_load_options(0);
    let found = job::find_traces(&args.traces, loading.verify)?;
    let named = if args.machine.is_empty() {
        vec![machine_beside_or_of_generated_traces(&args.traces, &found)?]
    } else {
        let names = args.machine.iter();
        names
            .map(|name| {
                args.run
                    .timing
                    .parsed_settings()
                    .machine_name_with_rates(name)
            })
            .collect::<Result<_, _>>()?
    };
    if let Some((_, twice)) = (1..)
        .zip(&named)
        .find(|(i, name)| named[*i..].contains(name))
    {
        return Err(format!("--machine {twice} is given twice").into());
    }
    let mut outputs = OutputsAndProtectedInputs::default();
    job::protect_found_files_as_inputs(&mut outputs, &found);
    let beside = loading.groups.iter().map(PathBuf::as_path);
    let beside = beside.chain(named.iter().map(Path::new));
    beside.for_each(|path| outputs.register_input(path));
    args.run.protect_inputs(&mut outputs);
    let found_beside = args
        .launches
        .find_trace_files_of_concurrent_jobs(loading.verify)?;
    args.launches.protect_inputs(&found_beside, &mut outputs);
    // Claim the output file now, so that an unwritable file is reported before the replay and not after it.
    let mut to = ReportDestinationAndOutputs::create_at_path(out, &args.output, outputs)?;
    let hash = args.run.wants_input_hashes();
    let loaded = named.iter().map(|name| args.run.load_machine(name));
    let machines: Vec<MachineWithSourceAndEdits> = loaded.collect::<Result<_, _>>()?;
    let npus = machines
        .iter()
        .map(|loaded| loaded.machine.max_ranks_without_placement_map());
    let npus = args.job.mirrored_job_rank_count(npus)?;
    let title = job::job_name_from_paths(&args.traces, &found.files);
    let loading = JobLoadOptions {
        hash,
        ..settings.job_load_options(npus)
    };
    let job = load::load_job(&found, title, &loading)?;
    let (title, workload) = (job.name(), job.workload());
    let mut inputs = job.hashed_inputs().to_vec();
    inputs.extend(machines.iter().filter_map(|loaded| loaded.input.clone()));
    let absent = loading.absent;
    let options = args
        .run
        .replay_options(absent, workload, &machines, &mut inputs)?;
    let mut trace_options = Map::new();
    args.job.add_given_options_to_json(&mut trace_options);
    let of_traces = || list_options_with_job_without_each(&found, args, &loading, workload);
    match &machines[..] {
        [loaded] if args.launches.can_cause_several_launches() => {
            let (launches, run) = (&args.launches, &args.run);
            let others = launches.load_concurrent_jobs(&found_beside, &loading, &mut inputs)?;
            let mut given = run.replay_settings(loaded, &options);
            given.extend(of_traces());
            let machine = &loaded.machine;
            launches.replay_launches_and_report(
                run,
                (&job, &others),
                machine,
                &options,
                &inputs,
                &given,
                &mut to,
            )
        }
        [loaded] if !args.run.wants_machine_comparison_table() => {
            let machine = &loaded.machine;
            let profilers = || {
                workload
                    .distinct_graphs()
                    .iter()
                    .map(|graph| graph.facts_about_profiler())
            };
            let charged = profilers().any(|profiler| profiler.charged);
            let both = charged && workload.node_count() <= job::MAX_REPEATED_NODES;
            let other_profiler = both
                .then(|| {
                    predict_makespan(&workload.with_profiler_cost_toggled(), machine, &options)
                })
                .transpose()?;
            let unedited = load_unedited(&found, &job, &loading)?;
            let completed =
                makespan_range_with_added_ranks(&found, &job, &loading, machine, &options)?;
            let edits =
                report_edits_and_unedited_makespan(&job, unedited.as_ref(), loaded, &options)?;
            let edits = edits.map(|edits| JobAndMachineEditReport { completed, ..edits });
            let sensitivities = args.run.find_sensitivities(workload, loaded, &options)?;
            let job = JobWithReportFacts {
                workload,
                name: title,
                other_profiler,
                shorter: None,
                edits: edits.as_ref(),
                sensitivities: sensitivities.as_ref(),
                trace_options: (!trace_options.is_empty()).then_some(&trace_options),
                stack: None,
            };
            let mut given = args.run.replay_settings(loaded, &options);
            given.extend(of_traces());
            args.run
                .replay_and_print(job, machine, &options, &inputs, &given, &mut to)
        }
        _ => {
            args.run.check_memory_known_for_required_fit(workload)?;
            let given = machines.iter().map(|loaded| {
                let mut given = args.run.replay_settings(loaded, &options);
                given.extend(of_traces());
                given
            });
            let given: Vec<_> = given.collect();
            let loaded = &machines;
            let machines = loaded.iter().map(|loaded| &loaded.machine);
            let machines: Vec<&Machine> = machines.collect();
            let page = args.run.create_html_output_file(&mut to)?;
            let of_traces_alone = &job;
            let job = MachineComparisonJob {
                workload,
                title,
                options: &options,
                with_pictures: page.is_some(),
            };
            let mut comparison =
                replay_on_machines_for_comparison(&job, &named, &machines, &given, args.threads);
            let columns = comparison.columns.iter_mut();
            let reports = columns
                .zip(loaded)
                .filter_map(|(column, loaded)| Some((column.result.as_mut().ok()?, loaded)));
            let unedited = load_unedited(&found, of_traces_alone, &loading)?;
            for (report, loaded) in reports {
                args.run.add_cost_to_report(report);
                let machine = &loaded.machine;
                let completed = makespan_range_with_added_ranks(
                    &found,
                    of_traces_alone,
                    &loading,
                    machine,
                    &options,
                )?;
                let edits = report_edits_and_unedited_makespan(
                    of_traces_alone,
                    unedited.as_ref(),
                    loaded,
                    &options,
                )?;
                let edits = edits.map(|edits| JobAndMachineEditReport { completed, ..edits });
                report.add_edits(edits);
            }
            if comparison.reference_machine().is_some() {
                let (run, style) = (&args.run, to.text_style());
                if let Some(mut file) = page {
                    file.write_all(run.render_machine_comparison_page(&comparison).as_bytes())?;
                    file.commit()?;
                }
                to.run_write_and_commit_output(|out| {
                    run.render_comparison(
                        &mut comparison,
                        absent,
                        &trace_options,
                        &inputs,
                        style,
                        out,
                    )
                })?;
            }
            let code = args.run.exit_code_for_memory_fit(
                comparison.replayed_columns().map(|(_, report)| report),
            )?;
            // Check for failures only after the report, because the report also compares the machines that completed.
            FailedReplays::check_all_completed(comparison)?;
            Ok(code)
        }
    }
}

/// Returns the options for traces on the command line as settings. Each setting comes with the job that results from
/// `found` without that option.
fn list_options_with_job_without_each<'a>(
    found: &'a FoundTraces,
    args: &'a ReplayArgs,
    loading: &'a JobLoadOptions,
    workload: &'a Workload,
) -> Vec<GivenSetting<'a>> {
    let settings = args
        .job
        .given_options()
        .iter()
        .map(|(key, words)| GivenSetting {
            key: key.display_key_in_files().to_string(),
            value: words.join(" "),
            option: Some(*key),
            without: Box::new(move || {
                let other = args.settings_without_option(Some(*key)).ok()?;
                let other = JobLoadOptions {
                    hash: loading.hash,
                    ..other.job_load_options(loading.mirrored)
                };
                if other == *loading {
                    return Some(RunInputsWithoutSetting::default());
                }
                // Without the option, the job must be loaded again. Loading takes as long as a replay, so do not load
                // large jobs again.
                if workload.node_count() > job::MAX_REPEATED_NODES {
                    return Some(RunInputsWithoutSetting {
                        is_too_large: true,
                        ..RunInputsWithoutSetting::default()
                    });
                }
                let other = JobLoadOptions {
                    hash: false,
                    ..other
                };
                let job = job::load_found_traces(found, String::new(), &other, &mut |_, _| {});
                Some(RunInputsWithoutSetting {
                    workload: Some(job.ok()?.into_workload()),
                    ..RunInputsWithoutSetting::default()
                })
            }),
        });
    settings.collect()
}

/// Describes the edits of `job` and its machine, and gives the makespan before the edits. Returns `None` if there are
/// no edits.
fn report_edits_and_unedited_makespan(
    job: &Job,
    unedited: Option<&Job>,
    loaded: &MachineWithSourceAndEdits,
    options: &ReplayOptions,
) -> Result<Option<JobAndMachineEditReport>, Box<dyn Error>> {
    let rows = [&loaded.changes[..], job.edit_effect_counts()].concat();
    if rows.is_empty() && !options.changes_durations_or_has_failures() {
        return Ok(None);
    }
    let workload = match job.edit_effect_counts() {
        [] => Some(job.workload()),
        _ => unedited.map(Job::workload),
    };
    let unedited = workload.map(|workload| loaded.makespan_on_unchanged_machine(workload, options));
    Ok(Some(JobAndMachineEditReport {
        unedited: unedited.transpose()?,
        completed: None,
        rows,
    }))
}

/// Returns a range of makespans for `job`, if an edit added ranks without a trace. The range covers the makespans of
/// `job` itself and of two variants, in which the added ranks copy the fastest and the slowest captured ranks of their
/// roles.
fn makespan_range_with_added_ranks(
    found: &FoundTraces,
    job: &Job,
    loading: &JobLoadOptions,
    machine: &Machine,
    options: &ReplayOptions,
) -> Result<Option<UncapturedRanksMakespanInterval>, Box<dyn Error>> {
    if job.count_ranks_copying_captured_ranks() == 0 {
        return Ok(None);
    }
    let mut makespans = vec![predict_makespan(job.workload(), machine, options)?];
    for role_model in [AbsentRankModelRule::Fastest, AbsentRankModelRule::Slowest] {
        let loading = JobLoadOptions {
            role_model,
            hash: false,
            ..loading.clone()
        };
        let other = job::load_found_traces(found, String::new(), &loading, &mut |_, _| {})?;
        makespans.push(predict_makespan(other.workload(), machine, options)?);
    }
    // If the captured ranks of each role are equal, there is no range.
    let interval = UncapturedRanksMakespanInterval::from_makespans(&makespans);
    Ok(interval.filter(|interval| interval.low < interval.high))
}

/// Loads the original `job`, without its edits. Returns `None` if the job has no edits, if ranks are missing, or if the
/// job was read from a pipe, which can be read only once.
fn load_unedited(
    found: &FoundTraces,
    job: &Job,
    loading: &JobLoadOptions,
) -> Result<Option<Job>, job::JobLoadOrWriteError> {
    if job.edit_effect_counts().is_empty() || found.stream.is_some() {
        return Ok(None);
    }
    let loading = JobLoadOptions {
        edits: Vec::new(),
        hash: false,
        ..loading.clone()
    };
    match job::load_found_traces(found, String::new(), &loading, &mut |_, _| {}) {
        // An edit added the missing ranks, so the job cannot run without edits.
        Err(job::JobLoadOrWriteError::Workload(WorkloadError::Missing { .. })) => Ok(None),
        loaded => loaded.map(Some),
    }
}

fn predict_makespan(
    workload: &Workload,
    machine: &Machine,
    options: &ReplayOptions,
) -> Result<Span, Box<dyn Error>> {
    let compiled = CompiledReplay::new(workload, machine, options).map_err(ReplayError::from)?;
    Ok(compiled.find_makespan_folding_large_jobs()?)
}

/// Returns the machine file in the traces' folder or, if there is none, the machine for which the job was generated.
fn machine_beside_or_of_generated_traces(
    paths: &[PathBuf],
    found: &FoundTraces,
) -> Result<String, String> {
    let machine = job::find_machine_beside_traces_or_in_job(paths, found);
    machine.ok_or_else(|| format!(
        "no machine is given, and the folder of the traces has no {CASE_MACHINE}\n  try: --machine NAME, one of {}, \
         or a file",
        chakram_hardware::machine::PRESETS
            .iter()
            .map(|preset| preset.name)
            .collect::<Vec<_>>()
            .join(", ")
    ))
}
