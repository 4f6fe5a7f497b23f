//! Replays one job on several machines, in parallel.

use super::progress::ProgressDisplay;
use chakram_base::interrupt::wrap_with_current_token;
use chakram_engine::{CompiledReplay, ReplayError, ReplayOptions};
use chakram_hardware::machine::Machine;
use chakram_jobs::{GivenSetting, note_settings_without_effect};
use chakram_report::{self as report, ComparedMachineResult, MachineComparison, PictureRecorder};
use chakram_trace::workload::Workload;
use std::error::Error;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// A job to replay on several machines.
#[derive(Clone, Copy)]
pub struct MachineComparisonJob<'a> {
    /// Workload that every machine replays.
    pub workload: &'a Workload,
    /// Name of the job.
    pub title: &'a str,
    /// Options of all replays.
    pub options: &'a ReplayOptions,
    /// True if the replays record the data that pictures need.
    pub with_pictures: bool,
}

/// Replays `job` on each of `machines`, `threads` at a time. `named` holds the machines' names as given on the command
/// line. Each report lists the settings in `given` that have no effect on the report's machine. Replays share no state,
/// so the number of threads does not affect the result.
pub fn replay_on_machines_for_comparison<'a>(
    job: &MachineComparisonJob<'a>,
    named: &[String],
    machines: &[&'a Machine],
    given: &[Vec<GivenSetting<'_>>],
    threads: Option<NonZeroUsize>,
) -> MachineComparison<'a> {
    let replaying = ("replaying", "machines");
    let &MachineComparisonJob {
        workload,
        title,
        options,
        with_pictures,
    } = job;
    let results = parallel_map(replaying, machines.len(), threads, |index| {
        let prepared = CompiledReplay::new(workload, machines[index], options)?;
        let pictures = with_pictures.then(|| PictureRecorder::new(&prepared));
        let (mut report, pictures) = report::replay_to_report(&prepared, pictures)?;
        note_settings_without_effect(&mut report, &prepared, options, &given[index]);
        report.pictures = pictures.map(|pictures| pictures.into_pictures(&report));
        Ok(report)
    });
    let names = machine_names_or_given_names_if_equal(named, machines);
    let columns = machines.iter().zip(names).zip(results);
    MachineComparison {
        workload,
        title,
        options,
        columns: columns
            .map(|((machine, name), result)| ComparedMachineResult {
                name,
                machine,
                result,
            })
            .collect(),
    }
}

/// Calls `work` with each index below `count` on `threads` threads, by default one per core. On a terminal, shows
/// progress; `doing` names the work and the items being counted.
pub fn parallel_map<T: Send + Sync>(
    doing: (&'static str, &'static str),
    count: usize,
    threads: Option<NonZeroUsize>,
    work: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let threads = threads.or_else(|| thread::available_parallelism().ok());
    let threads = threads.map_or(1, NonZeroUsize::get).min(count);
    let results: Vec<OnceLock<T>> = (0..count).map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let progress = ProgressDisplay::start_counting(doing.0, doing.1, count as u64);
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(result) = results.get(index) else {
                return;
            };
            let set = result.set(work(index));
            assert!(set.is_ok(), "each index is taken once");
            progress.count_one();
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(wrap_with_current_token(work));
        }
        work();
    });
    let results = results.into_iter().map(OnceLock::into_inner);
    results.map(|r| r.expect("every index was taken")).collect()
}

/// Returns the names in the machines' files. If several machines have the same name there, returns their names on the
/// command line instead.
fn machine_names_or_given_names_if_equal(named: &[String], machines: &[&Machine]) -> Vec<String> {
    let own = |machine: &&Machine| machine.name().to_owned();
    let mut sorted: Vec<_> = machines.iter().map(own).collect();
    sorted.sort_unstable();
    let unique = sorted.windows(2).all(|pair| pair[0] != pair[1]);
    if unique {
        machines.iter().map(own).collect()
    } else {
        named.to_vec()
    }
}

/// The failed replays of a comparison; never empty.
#[derive(Debug)]
pub struct FailedReplays(Vec<(String, ReplayError)>);

impl FailedReplays {
    /// Fails if one of the replays in `comparison` failed.
    pub fn check_all_completed(comparison: MachineComparison<'_>) -> Result<(), Self> {
        let columns = comparison.columns.into_iter();
        let failed = columns.filter_map(|column| Some((column.name, column.result.err()?)));
        match failed.collect::<Vec<_>>() {
            none if none.is_empty() => Ok(()),
            some => Err(Self(some)),
        }
    }

    /// Returns the error of the machine that is the first on the command line to fail; this error sets the exit code.
    pub fn first_failure(&self) -> Option<&ReplayError> {
        self.0.first().map(|(_, error)| error)
    }
}

impl fmt::Display for FailedReplays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, error)) in self.0.iter().enumerate() {
            let line = if i > 0 { "\n" } else { "" };
            write!(f, "{line}on {name}: {error}")?;
        }
        Ok(())
    }
}

impl Error for FailedReplays {}
