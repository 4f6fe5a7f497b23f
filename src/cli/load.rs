//! Options for the traces of a job, and progress while they are loaded.

use super::given::{OneReplayOptionGroupArgs, ReplayOptionGroup, TRACES};
use super::progress::ProgressDisplay;
use super::terminal;
use chakram_base::setting::SettingKey;
use chakram_jobs::{self as job, Job, JobLoadOptions, JobLoadOrWriteError};
use chakram_report::summary::format_count_with_noun;
use chakram_trace::format::file::{FoundTraces, TraceHashVerificationLevel};
use chakram_trace::workload::MissingRankPolicy;
use clap::Args;
use std::time::Instant;

/// How strictly to check traces against the job file.
#[derive(Clone, Copy, Debug, Args)]
pub struct SkipJobFileCheckArg {
    /// Accept traces that differ from their job's file, PREFIX.job.json
    #[arg(long, help_heading = TRACES, hide_short_help = true)]
    pub no_verify: bool,
}

impl SkipJobFileCheckArg {
    /// Returns the level of checks before a replay: file lengths, and also hashes if the job is small.
    pub fn verify_level_for_replay(self) -> TraceHashVerificationLevel {
        if self.no_verify {
            TraceHashVerificationLevel::Nothing
        } else {
            TraceHashVerificationLevel::Lengths
        }
    }

    /// Returns the level of checks for commands that read every byte anyway: file lengths and hashes.
    pub fn verify_level_for_full_read(self) -> TraceHashVerificationLevel {
        if self.no_verify {
            TraceHashVerificationLevel::Nothing
        } else {
            TraceHashVerificationLevel::Hashes
        }
    }
}

/// Selects a profiled step, for commands that do not replay.
#[derive(Clone, Copy, Debug, Args)]
pub struct ProfiledStepArg {
    /// Use only this profiled step, like `chakram slice`
    #[arg(long, help_heading = TRACES, hide_short_help = true, value_name = "N")]
    pub step: Option<u64>,
}

/// The options that control how a job's traces are read.
#[derive(Clone, Debug)]
pub struct TraceReadingOptions;

impl ReplayOptionGroup for TraceReadingOptions {
    fn option_belongs_to_group(key: SettingKey) -> bool {
        key.affects_trace_reading()
    }
}

/// The options for a job's traces on the command line.
pub type TraceReadingArgs = OneReplayOptionGroupArgs<TraceReadingOptions>;

impl TraceReadingArgs {
    /// Returns the number of ranks in a mirrored job, in which all ranks share one trace. Without `--ranks`, that is
    /// the number of NPUs of each machine. Fails if the machines have different numbers of NPUs.
    pub fn mirrored_job_rank_count(
        &self,
        mut machines: impl Iterator<Item = u32>,
    ) -> Result<u32, String> {
        let first = machines.next().unwrap_or(0);
        let other = machines.find(|&npus| npus != first);
        let job = self.parsed_settings().job_load_options(0);
        match other.filter(|_| job.absent == MissingRankPolicy::Mirror && job.ranks.is_none()) {
            None => Ok(first),
            Some(other) => Err(format!(
                "--absent mirror: the job takes the machine's size, but the machines differ \
                 ({first} and {other} NPUs)\n  try: --ranks {}",
                first.min(other)
            )),
        }
    }
}

/// Loads the job in `found`. On a terminal, shows the progress.
pub fn load_job(
    found: &FoundTraces,
    name: String,
    options: &JobLoadOptions,
) -> Result<Job, JobLoadOrWriteError> {
    let start = Instant::now();
    let job =
        run_with_load_progress(|progress| job::load_found_traces(found, name, options, progress))?;
    let files = format_count_with_noun(found.files.len() as u64, "trace");
    terminal::print_detail_with_elapsed_time(start, format_args!("read {files}"))
        .map_err(JobLoadOrWriteError::Io)?;
    Ok(job)
}

/// Runs `work`. On a terminal, shows the number of files read so far.
pub fn run_with_load_progress<T>(work: impl FnOnce(&mut job::LoadProgressFn<'_>) -> T) -> T {
    let mut progress = None;
    work(&mut |done, total| {
        let progress = progress.get_or_insert_with(|| {
            ProgressDisplay::start_counting("reading", "traces", total as u64)
        });
        progress.set_done(done as u64);
    })
}
