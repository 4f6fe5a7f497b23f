//! Options of a job's traces, and progress while they are loaded.

use super::flags::choices;
use super::given::GivenOptions;
use super::progress::Progress;
use super::terminal;
use chakram_base::ids::{MAX_NPUS, Npu};
use chakram_base::setting::SettingKey;
use chakram_base::units::Span;
use chakram_jobs::{self as job, Job, JobError, JobOptions};
use chakram_report::summary::counted;
use chakram_trace::format::file::{FoundTraces, VerifyLevel};
use chakram_trace::graph::{DependencyPolicy, ProfilerPolicy};
use chakram_trace::workload::MissingRankPolicy;
use clap::Args;
use std::path::PathBuf;
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

/// Choice of one profiled step.
#[derive(Clone, Copy, Debug, Args)]
pub struct StepArg {
    /// Only the profiled step with this number, cut out as `chakram slice` does
    #[arg(long, help_heading = TRACES, hide_short_help = true, value_name = "N")]
    pub step: Option<u64>,
}

/// Heading of help.
pub(super) const TRACES: &str = "Traces";

/// Options of a job's traces.
#[derive(Clone, Debug, Args)]
pub struct JobArgs {
    #[command(flatten)]
    pub(super) given: GivenOptions,
    #[command(flatten)]
    pub(super) verify: VerifyArg,
    #[command(flatten)]
    pub(super) step: StepArg,
    /// Process groups, in place of those of the job's file: a JSON file {"1": [0, 1], …}
    #[arg(long, help_heading = TRACES, value_name = "FILE")]
    pub groups: Option<PathBuf>,
    /// Dependencies that hold
    #[arg(long, help_heading = TRACES, hide_short_help = true, value_parser = choices::<DependencyPolicy>(), default_value = "auto", value_name = "WHICH")]
    pub deps: DependencyPolicy,
    /// Treatment of ranks without a trace
    #[arg(long, help_heading = TRACES, value_parser = choices::<MissingRankPolicy>(), default_value = "refuse", value_name = "WHAT")]
    pub absent: MissingRankPolicy,
    /// Number of ranks of the job, if more than the traces show; with --absent mirror all NPUs by default
    #[arg(long, help_heading = TRACES, hide_short_help = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_NPUS)))]
    pub ranks: Option<u32>,
    /// Part of a captured job that is left out; the profiler by default where the capture has steps without it
    #[arg(long, help_heading = TRACES, hide_short_help = true, value_parser = choices::<ProfilerPolicy>(), value_name = "WHAT")]
    pub without: Option<ProfilerPolicy>,
    /// Start a rank late, to see who waits for a straggler: 3=10ms; repeatable
    #[arg(long, help_heading = TRACES, hide_short_help = true, value_name = "RANK=TIME", value_parser = parse_delay)]
    pub delay: Vec<(u32, Span)>,
}

impl JobArgs {
    /// The options of a job beside this one, on so many NPUs: what says how traces are read holds for it, and what is about this
    /// job's ranks and groups does not.
    pub fn options_beside(&self, npus: u32, hash: bool) -> JobOptions {
        JobOptions {
            groups: None,
            ranks: None,
            step: None,
            delays: Vec::new(),
            ..self.options(npus, hash)
        }
    }

    /// Returns the arguments without the option `key` of traces.
    pub(super) fn without(&self, key: SettingKey) -> Self {
        let mut other = self.clone();
        match key {
            SettingKey::Groups => other.groups = None,
            SettingKey::Dependencies => other.deps = DependencyPolicy::default(),
            SettingKey::MissingRanks => other.absent = MissingRankPolicy::default(),
            SettingKey::Without => other.without = None,
            SettingKey::Delays => other.delay.clear(),
            SettingKey::Step => other.step.step = None,
            _ => {}
        }
        other
    }

    /// Returns the options of loading; a mirrored job that does not say its size has that of `npus`.
    pub(super) fn options(&self, npus: u32, hash: bool) -> JobOptions {
        JobOptions {
            verify: self.verify.policy(),
            groups: self.groups.clone(),
            dependencies: self.deps,
            absent: self.absent,
            ranks: self.ranks,
            mirrored: npus,
            step: self.step.step,
            delays: self.delay.clone(),
            profiler: self.without.unwrap_or_default(),
            hash,
        }
    }

    /// The size of a mirrored job that does not say its own, on machines of this many NPUs: that of the
    /// machine, which must be one.
    pub fn npus(&self, mut machines: impl Iterator<Item = u32>) -> Result<u32, String> {
        let first = machines.next().unwrap_or(0);
        let other = machines.find(|&npus| npus != first);
        match other.filter(|_| self.absent == MissingRankPolicy::Mirror && self.ranks.is_none()) {
            None => Ok(first),
            Some(other) => Err(format!(
                "--absent mirror: a job as large as the machine is not one job on {first} and on \
                 {other} NPUs\n  try: --ranks {}",
                first.min(other)
            )),
        }
    }
}

fn parse_delay(text: &str) -> Result<(u32, Span), String> {
    let (rank, span) = text
        .split_once('=')
        .ok_or("expected RANK=TIME, for example 3=10ms")?;
    let rank = rank
        .parse()
        .map_err(|_| format!("`{rank}` is not a rank"))?;
    Ok((rank, span.parse::<Span>().map_err(|e| e.to_string())?))
}

/// Parses `--map`: NPUs for ranks 0, 1, … as numbers and ranges, `0-3,8-11`.
pub fn parse_map(text: &str) -> Result<Vec<Npu>, String> {
    let mut map = Vec::new();
    for part in text.split(',') {
        let number = |t: &str| {
            let wrong = || format!("`{t}` in `{part}` is no NPU; write for example 0-3,8-11");
            t.trim().parse::<u32>().map_err(|_| wrong())
        };
        let (from, to) = match part.split_once('-') {
            Some((from, to)) => (number(from)?, number(to)?),
            None => (number(part)?, number(part)?),
        };
        if from > to || to >= chakram_hardware::topology::Topology::MAX_NPUS {
            return Err(format!("`{part}` is no range of NPUs"));
        }
        map.extend((from..=to).map(Npu));
        if map.len() > chakram_hardware::topology::Topology::MAX_NPUS as usize {
            return Err("more places than a machine can have NPUs".to_owned());
        }
    }
    Ok(map)
}

/// Loads the job in `found`, with progress on a terminal. `npus` is the size of a mirrored job that does not say its
/// own.
pub fn load(
    found: &FoundTraces,
    name: String,
    args: &JobArgs,
    npus: u32,
    hash: bool,
) -> Result<Job, JobError> {
    let options = args.options(npus, hash);
    let start = Instant::now();
    let job = with_progress(|progress| job::load(found, name, &options, progress))?;
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
