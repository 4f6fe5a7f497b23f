//! `--repeat`, `--starts` and `--with`: launch a job several times, or several jobs on one machine.

use super::load;
use super::output::{
    RankToNpuMapArg, ReplayAndReportArgs, ReportDestinationAndOutputs, parse_placement,
};
use super::progress::ProgressDisplay;
use chakram_base::ids::Npu;
use chakram_base::units::{Span, Time};
use chakram_engine::{CompiledReplay, LaunchFeed, RepeatedLaunchFeed, ReplayError, ReplayOptions};
use chakram_hardware::machine::Machine;
use chakram_jobs::{self as job, GivenSetting, Job, JobLoadOptions};
use chakram_report as report;
use chakram_report::summary::{HashedInput, Provenance};
use chakram_trace::files::OutputsAndProtectedInputs;
use chakram_trace::format::TraceError;
use chakram_trace::format::file::{FoundTraces, TraceHashVerificationLevel};
use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Help heading for options about launches (runs of a job).
const LAUNCHES: &str = "Launches";

/// Maximum number of launches of one job, limited because the report has a row for each.
const MOST: usize = 1_000_000;

/// Options for several launches of a job, and for several jobs.
#[derive(Debug, Args)]
pub struct RepeatAndExtraJobArgs {
    /// Replay the traces N times in a row; each rank begins a step when its previous step ends
    #[arg(long, help_heading = LAUNCHES, hide_short_help = true, value_name = "N", conflicts_with = "starts", value_parser = clap::value_parser!(u32).range(1..=MOST as i64))]
    repeat: Option<u32>,
    /// Replay the traces at each time in this file, which has one time per line, such as 10 ms; a rank that is still
    /// busy begins when its previous launch ends
    #[arg(long, help_heading = LAUNCHES, hide_short_help = true, value_name = "FILE")]
    starts: Option<PathBuf>,
    /// Also replay this job once on the same machine; repeatable
    #[arg(long, help_heading = LAUNCHES, hide_short_help = true, value_name = "TRACES", requires = "on")]
    with: Vec<PathBuf>,
    /// NPUs of ranks 0, 1, … of the --with job, such as 4-7; once per --with
    #[arg(long, help_heading = LAUNCHES, hide_short_help = true, value_name = "NPUS", requires = "with", value_parser = parse_placement)]
    on: Vec<RankToNpuMapArg>,
}

/// JSON object for a job that `--with` adds.
#[derive(Serialize)]
struct ConcurrentJobNpusDocument<'a> {
    job: &'a str,
    npus: Vec<u32>,
}

impl RepeatAndExtraJobArgs {
    /// Returns true if the options can cause more than one launch.
    pub fn can_cause_several_launches(&self) -> bool {
        self.repeat.is_some() || self.starts.is_some() || !self.with.is_empty()
    }

    /// Rejects contradictory combinations of options. `several` is true if the command replays on several machines.
    pub fn check_combinations(&self, several: bool) -> Result<(), String> {
        if self.with.len() != self.on.len() {
            return Err(format!(
                "found --with {} times and --on {} times\n  try: one --on for each --with",
                self.with.len(),
                self.on.len()
            ));
        }
        if several && self.can_cause_several_launches() {
            return Err(
                "--repeat, --starts and --with are for one machine\n  try: one --machine at a time"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Finds the files of the `--with` jobs.
    pub fn find_trace_files_of_concurrent_jobs(
        &self,
        verify: TraceHashVerificationLevel,
    ) -> Result<Vec<FoundTraces>, TraceError> {
        let found = self.with.iter();
        found.map(|path| job::find_traces([path], verify)).collect()
    }

    /// Registers the files that these options read as inputs, so that `outputs` cannot overwrite them. `found` are the
    /// files of the `--with` jobs.
    pub fn protect_inputs(&self, found: &[FoundTraces], outputs: &mut OutputsAndProtectedInputs) {
        self.starts
            .iter()
            .for_each(|path| outputs.register_input(path));
        found
            .iter()
            .for_each(|of| job::protect_found_files_as_inputs(outputs, of));
    }

    /// Returns these options as JSON. `names` are the names of the `--with` jobs.
    fn options_json(&self, names: &[String]) -> Map<String, Value> {
        let mut options = Map::new();
        if let Some(times) = self.repeat {
            options.insert("repeat".to_owned(), times.into());
        }
        if let Some(path) = &self.starts {
            options.insert("starts".to_owned(), path.display().to_string().into());
        }
        let beside = names
            .iter()
            .zip(&self.on)
            .map(|(name, on)| ConcurrentJobNpusDocument {
                job: name,
                npus: on.npus_of_ranks().iter().map(|npu| npu.0).collect(),
            });
        let beside: Vec<ConcurrentJobNpusDocument<'_>> = beside.collect();
        if !beside.is_empty() {
            let beside = serde_json::to_value(beside).expect("its keys are texts");
            options.insert("with".to_owned(), beside);
        }
        options
    }

    /// Returns the times at which the job is launched.
    fn launch_start_times(&self) -> Result<Vec<Time>, Box<dyn Error>> {
        match &self.starts {
            None => Ok(vec![Time::ZERO; self.repeat.unwrap_or(1) as usize]),
            Some(path) => read_launch_start_times(path),
        }
    }

    /// Loads the `--with` jobs. If inputs are hashed, adds the files to `inputs`.
    pub fn load_concurrent_jobs(
        &self,
        found: &[FoundTraces],
        options: &JobLoadOptions,
        inputs: &mut Vec<HashedInput>,
    ) -> Result<Vec<Job>, Box<dyn Error>> {
        let mut jobs = Vec::new();
        for ((path, on), found) in self.with.iter().zip(&self.on).zip(found) {
            // Options for reading traces apply to all jobs, but options for ranks and groups apply only to the main
            // job.
            let loading = JobLoadOptions {
                groups: None,
                ranks: None,
                step: None,
                delays: Vec::new(),
                mirrored: on.npus_of_ranks().len() as u32,
                ..options.clone()
            };
            let name = job::job_name_from_paths(std::slice::from_ref(path), &found.files);
            let job = load::run_with_load_progress(|progress| {
                job::load_found_traces(found, name, &loading, progress)
            })?;
            inputs.extend_from_slice(job.hashed_inputs());
            jobs.push(job);
        }
        Ok(jobs)
    }

    /// Replays all launches of `job` together with `others` on `machine`, and prints the report.
    #[allow(
        clippy::too_many_arguments,
        reason = "each is one thing that a report says"
    )]
    pub fn replay_launches_and_report(
        &self,
        run: &ReplayAndReportArgs,
        (job, others): (&Job, &[Job]),
        machine: &Machine,
        options: &ReplayOptions,
        inputs: &[HashedInput],
        given: &[GivenSetting<'_>],
        to: &mut ReportDestinationAndOutputs<'_>,
    ) -> Result<ExitCode, Box<dyn Error>> {
        run.check_memory_known_for_required_fit(job.workload())?;
        run.check_single_launch_options(!self.with.is_empty())?;
        let starts = self.launch_start_times()?;
        let mut programs = Vec::with_capacity(1 + others.len());
        let compile = |job, options: &ReplayOptions| {
            CompiledReplay::new(job, machine, options).map_err(ReplayError::from)
        };
        programs.push(compile(job.workload(), options)?);
        for (other, on) in others.iter().zip(&self.on) {
            let options = ReplayOptions {
                map: Some(on.npus_of_ranks().to_vec()),
                ..options.clone()
            };
            let program = compile(other.workload(), &options);
            programs.push(program.map_err(|error| format!("--with {}: {error}", other.name()))?);
        }
        check_jobs_share_no_npu(&programs)?;
        let count = starts.len() as u64;
        let nodes = programs
            .iter()
            .map(|program| program.workload_with_added_launches().node_count());
        let nodes: Vec<u64> = nodes.collect();
        let all = nodes[0].saturating_mul(count) + nodes[1..].iter().sum::<u64>();
        let mut feeds: Vec<Box<dyn LaunchFeed>> =
            vec![Box::new(RepeatedLaunchFeed::at_times(0, starts))];
        for program in 1..programs.len() as u32 {
            feeds.push(Box::new(RepeatedLaunchFeed::new(program, 1)));
        }
        let progress = ProgressDisplay::start_counting("replaying", "nodes", all);
        let mut observer = progress.node_observer();
        let reports = report::replay_launched_programs(&programs, &mut feeds, &mut observer)?;
        drop(progress);
        let names: Vec<String> = others.iter().map(|job| job.name().to_owned()).collect();
        match report::attach_neighbour_reports(reports, &names) {
            Some(mut report) => {
                run.add_cost_to_report(&mut report);
                for other in &mut report.beside {
                    run.add_cost_to_report(&mut other.report);
                }
                report.provenance = Some(Provenance::new(self.options_json(&names), &[]));
                let keys = given.iter().map(|setting| setting.key.clone());
                report.settings.unchecked = keys.collect();
                run.print_report(report, job.name(), options.missing_ranks, inputs, to)
            }
            None => Ok(ExitCode::SUCCESS),
        }
    }
}

/// Rejects jobs that share an NPU, because each would use the NPU as if it were alone.
fn check_jobs_share_no_npu(programs: &[CompiledReplay<'_>]) -> Result<(), String> {
    let mut taken: Vec<(Npu, usize)> = Vec::new();
    for (number, program) in programs.iter().enumerate() {
        let ranks = program.workload_with_added_launches().instances().iter();
        taken.extend(ranks.map(|instance| (program.npu_of_rank(instance.rank), number)));
    }
    taken.sort_unstable();
    let twice = taken.windows(2).find(|pair| pair[0].0 == pair[1].0);
    match twice {
        None => Ok(()),
        Some(pair) => Err(format!(
            "NPU {} has ranks of two jobs, but jobs cannot share an NPU\n  \
             try: other NPUs for --on, or --map for the traces",
            pair[0].0
        )),
    }
}

/// Parses start times from a file, one per line. Ignores empty lines, and everything after `#`.
fn read_launch_start_times(path: &Path) -> Result<Vec<Time>, Box<dyn Error>> {
    let shown = path.display();
    let text = job::read_text(path)?;
    let mut starts = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let wrong = |error| format!("{shown}:{number}: {error}");
        let span = match line {
            "0" => Span::ZERO,
            _ => line.parse::<Span>().map_err(wrong)?,
        };
        starts.push(Time::ZERO + span);
        if starts.len() > MOST {
            return Err(format!("{shown}:{number}: more than {MOST} times").into());
        }
    }
    if starts.is_empty() {
        return Err(format!(
            "{shown}: the file has no start time\n  try: one time per line, such as 0 s, 10 ms"
        )
        .into());
    }
    Ok(starts)
}
