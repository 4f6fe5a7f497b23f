//! Predictions against measured runs: how far off they are, and whether they put plans in the right order.
//!
//! A table of runs ([`RunTable`]) is read from CSV; a file of columns ([`RunColumns`]) says which of its columns are
//! which options of a model and its plan. Every run is generated, replayed and compared ([`score`]). Statistics are in
//! [`ScoreSummary`]; beside them stands a null model that knows FLOPs and nothing else.

use crate::engine::{CompiledReplay, ReplayError, ReplayOptions};
use crate::generate::{GenerateError, GeneratedJob, WorkloadPattern};
use crate::report;
use crate::trace::TraceError;
use crate::units::Span;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

mod calibration;
mod columns;
mod constants;
mod folds;
mod null_model;
mod runs;
mod statistics;

pub use calibration::{StepCorrection, calibrate};
pub use columns::RunColumns;
pub use constants::{FittedConstant, with_factors};
pub use folds::{FoldFit, fit_in_folds, folds};
pub use null_model::one_rate;
pub use runs::{MeasuredRun, RunTable};
pub use statistics::{IntervalSummary, ScoreSummary};

/// Reason why runs cannot be scored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScoreError {
    /// The file of columns is refused.
    #[error(transparent)]
    Columns(#[from] crate::config::ConfigError),
    /// A row of the table is refused.
    #[error("{file}:{line}: {why}")]
    Row {
        /// The table.
        file: String,
        /// Line, from 1.
        line: u64,
        /// Found, and expected.
        why: String,
    },
    /// The table as a whole is refused.
    #[error("{file}: {why}")]
    Table {
        /// The table.
        file: String,
        /// Found, and expected.
        why: String,
    },
}

/// Prediction of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictedRun {
    /// Time of a step.
    pub makespan: Span,
    /// The 90 % interval, if its prices carry errors.
    pub interval: Option<[Span; 2]>,
}

/// Predictions of runs, in their order.
///
/// Each run is generated and replayed by itself; several at once, one for each of `threads`. The answers do not depend
/// on their number.
///
/// # Errors
///
/// The first run that cannot be generated or replayed, with its line.
pub fn score(
    table: &RunTable,
    options: &ReplayOptions,
    threads: NonZeroUsize,
) -> Result<Vec<PredictedRun>, ScoreError> {
    score_by(table, threads, |_, run| predict(run, options))
}

/// Answers of `ask` for each run and its number, in their order.
fn score_by<T: Send>(
    table: &RunTable,
    threads: NonZeroUsize,
    ask: impl Fn(usize, &MeasuredRun) -> Result<T, String> + Sync,
) -> Result<Vec<T>, ScoreError> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads.get() {
            scope.spawn(|| {
                while let Some((i, run)) = {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    table.runs.get(i).map(|run| (i, run))
                } {
                    let span = ask(i, run).map_err(|why| ScoreError::Row {
                        file: run.file.clone(),
                        line: run.line,
                        why,
                    });
                    let mut found = found
                        .lock()
                        .unwrap_or_else(|poisoned| poisoned.into_inner());
                    found.push((i, span));
                }
            });
        }
    });
    let mut found = found
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    found.sort_by_key(|(i, _)| *i);
    found.into_iter().map(|(_, run)| run).collect()
}

/// Prediction of a run, with its interval.
fn predict(run: &MeasuredRun, options: &ReplayOptions) -> Result<PredictedRun, String> {
    replayed(run, options, |compiled| {
        let (report, ()) = report::replay(compiled, ())?;
        Ok(PredictedRun {
            makespan: report.outcome.makespan,
            interval: report
                .interval
                .map(|interval| [interval.low, interval.high]),
        })
    })
}

/// Makespan of a run, without an interval, which takes a report.
fn makespan(run: &MeasuredRun, options: &ReplayOptions) -> Result<Span, String> {
    replayed(run, options, |compiled| Ok(compiled.run(())?.0.makespan))
}

fn replayed<T>(
    run: &MeasuredRun,
    options: &ReplayOptions,
    answer: impl FnOnce(&CompiledReplay<'_>) -> Result<T, ReplayError>,
) -> Result<T, String> {
    let pattern = WorkloadPattern::Training(Box::new(run.training.clone()));
    let refused = |error: GenerateError| error.to_string();
    let job = GeneratedJob::new(pattern).map_err(refused)?;
    job.check_memory().map_err(|error| error.to_string())?;
    let workload = job
        .workload()
        .map_err(|error: TraceError| error.to_string())?;
    let compiled = CompiledReplay::new(&workload, &run.machine, options)
        .map_err(|refusal| ReplayError::from(refusal).to_string())?;
    answer(&compiled).map_err(|error| error.to_string())
}
