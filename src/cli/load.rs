//! Options of a job's traces, and progress while they are loaded.

use super::given::{OptionArgs, OptionGroup, TRACES};
use super::progress::Progress;
use super::terminal;
use chakram_base::setting::SettingKey;
use chakram_jobs::{self as job, Job, JobError, JobOptions};
use chakram_report::summary::counted;
use chakram_trace::format::file::{FoundTraces, VerifyLevel};
use chakram_trace::workload::MissingRankPolicy;
use clap::Args;
use std::time::Instant;

/// Whether traces are held against what their job's file says.
#[derive(Clone, Copy, Debug, Args)]
pub struct VerifyArg {
    /// Read traces that differ from what the job's file, PREFIX.job.json, says
    #[arg(long, help_heading = TRACES, hide_short_help = true)]
    pub no_verify: bool,
}

impl VerifyArg {
    /// Returns the checks on the way into a replay.
    pub fn policy(self) -> VerifyLevel {
        if self.no_verify {
            VerifyLevel::Nothing
        } else {
            VerifyLevel::Lengths
        }
    }

    /// Returns the checks where there is time.
    pub fn thorough(self) -> VerifyLevel {
        if self.no_verify {
            VerifyLevel::Nothing
        } else {
            VerifyLevel::Hashes
        }
    }
}

/// Choice of one profiled step, of commands that replay nothing.
#[derive(Clone, Copy, Debug, Args)]
pub struct StepArg {
    /// Only the profiled step with this number, cut out as `chakram slice` does
    #[arg(long, help_heading = TRACES, hide_short_help = true, value_name = "N")]
    pub step: Option<u64>,
}

/// What says how a job's traces are read.
#[derive(Clone, Debug)]
pub struct TraceOptions;

impl OptionGroup for TraceOptions {
    fn has(key: SettingKey) -> bool {
        key.is_of_traces()
    }
}

/// Options of a job's traces.
pub type JobArgs = OptionArgs<TraceOptions>;

impl JobArgs {
    /// The size of a mirrored job that does not say its own, on machines of this many NPUs: that of the
    /// machine, which must be one.
    pub fn npus(&self, mut machines: impl Iterator<Item = u32>) -> Result<u32, String> {
        let first = machines.next().unwrap_or(0);
        let other = machines.find(|&npus| npus != first);
        let job = self.settings().job(0);
        match other.filter(|_| job.absent == MissingRankPolicy::Mirror && job.ranks.is_none()) {
            None => Ok(first),
            Some(other) => Err(format!(
                "--absent mirror: a job as large as the machine is not one job on {first} and on \
                 {other} NPUs\n  try: --ranks {}",
                first.min(other)
            )),
        }
    }
}

/// Loads the job in `found`, with progress on a terminal.
pub fn load(found: &FoundTraces, name: String, options: &JobOptions) -> Result<Job, JobError> {
    let start = Instant::now();
    let job = with_progress(|progress| job::load(found, name, options, progress))?;
    let files = counted(found.files.len() as u64, "trace");
    terminal::detail(start, format_args!("read {files}")).map_err(JobError::Io)?;
    Ok(job)
}

/// Does `work` beside a counter of the files that it reads, on a terminal.
pub fn with_progress<T>(work: impl FnOnce(&mut job::LoadProgress<'_>) -> T) -> T {
    let mut progress = None;
    work(&mut |done, total| {
        let progress =
            progress.get_or_insert_with(|| Progress::start("reading", "traces", total as u64));
        progress.set(done as u64);
    })
}
