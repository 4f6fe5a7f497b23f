//! Compares predictions with measured runs. Shows how large the errors are, and whether predictions rank plans in the
//! same order as the measurements.
//!
//! A table of runs ([`RunTable`]) is parsed from CSV. A column file ([`RunColumnRules`]) maps the table's columns to
//! the options for a model and its plan. Every run is generated, replayed, and compared with its measurement
//! ([`predict_runs_in_table_order`]). [`PredictionErrorSummary`] summarizes the errors of the predictions and of a
//! null model that knows only FLOPs.

use chakram_base::interrupt::wrap_with_current_token;
use chakram_base::units::Span;
use chakram_engine::{
    CompiledReplay, CopyRepresentsJobChecker, ReplayError, ReplayOptions, UnusableOptionReason,
    replay_one_copy_or_all_ranks,
};
use chakram_trace::format::TraceError;
use chakram_trace::workload::Workload;
use chakram_workloads::generate::{CheckedWorkloadPattern, PatternOptionError, WorkloadPattern};
use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{OnceLock, mpsc};

mod calibration;
mod columns;
mod constants;
mod folds;
mod gemm_points;
mod kernel_times;
mod nccl_log;
mod null_model;
mod pairs;
mod report;
mod residuals;
mod runs;
mod signs;
mod statistics;
mod without_effect;

pub use calibration::{
    MeasuredStepKernelTimeCorrections, StepGroupKernelTimeCorrection,
    fit_step_corrections_by_product_shapes,
};
pub use chakram_base::prediction_scores::{PredictionErrorSummary, PredictionIntervalSummary};
pub use columns::RunColumnRules;
pub use constants::{FittedConstant, scale_machine_constants};
pub use folds::{ConstantsFittedOutsideFold, assign_folds, predict_runs_by_fitting_other_folds};
pub use gemm_points::{
    MeanGemmTimeByShape, gemm_errors_without_and_with_other_points, parse_mean_gemm_times,
};
pub use kernel_times::{OneKernelRecordedTimesBySize, RecordedKernelTimes};
pub use nccl_log::{mean_leave_one_out_prediction_error, parse_nccl_log};
pub use null_model::predict_times_by_one_flop_rate;
pub use pairs::{
    JobEditsWithMeasuredTimes, MedianAndMeanWhatIfErrors, WhatIfPairPredictionAndErrors,
    WhatIfPairsAndReplaySettings, WhatIfScoresByPredictor,
};
pub use report::{
    PredictionsCorrectedByOtherJobs, RunScoreCsvWriter, ScoreDocument, ScoredRunTable,
};
pub use residuals::{
    CorrectedRunPrediction, correct_by_runs_of_other_option_values,
    correct_predictions_by_measured_steps, option_value_of_measured_run,
};
pub use runs::{MeasuredRun, RefusedRun, RunTable};
pub use signs::{CorrectlyOrderedRunPairCounts, count_rightly_ordered_pairs_by_option};
pub use without_effect::{RunsWithoutOneSetting, settings_without_effect};

/// Reason why runs cannot be scored.
#[derive(Debug, thiserror::Error)]
pub enum ScoreError {
    /// The file that maps the table's columns to options is invalid.
    #[error(transparent)]
    Columns(#[from] chakram_base::config::ConfigError),
    /// A row of the table is invalid.
    #[error("{file}:{line}: {why}")]
    Row {
        /// Name of the table with this row.
        file: String,
        /// Line of the row in the table, counted from 1.
        line: u64,
        /// The value found, and the value expected.
        why: String,
    },
    /// An option has no effect on a run.
    #[error("{file}:{line}: {refusal}")]
    Option {
        /// Name of the table with this run.
        file: String,
        /// Line of the run in the table, counted from 1.
        line: u64,
        /// The option, and the reason why it has no effect.
        refusal: UnusableOptionReason,
    },
    /// The table as a whole is invalid.
    #[error("{file}: {why}")]
    Table {
        /// Name of the invalid table.
        file: String,
        /// The text found, and the text expected.
        why: String,
    },
}

/// Reason why a run cannot be predicted.
#[derive(Debug)]
enum UnpredictableRunReason {
    Option(UnusableOptionReason),
    Other(String),
}

impl UnpredictableRunReason {
    /// Converts the reason to an error about `run`.
    fn into_error_for_run(self, run: &MeasuredRun) -> ScoreError {
        let (file, line) = (run.file.clone(), run.line);
        match self {
            Self::Option(refusal) => ScoreError::Option {
                file,
                line,
                refusal,
            },
            Self::Other(why) => ScoreError::Row { file, line, why },
        }
    }
}

impl From<UnusableOptionReason> for UnpredictableRunReason {
    fn from(refusal: UnusableOptionReason) -> Self {
        Self::Option(refusal)
    }
}

impl From<String> for UnpredictableRunReason {
    fn from(why: String) -> Self {
        Self::Other(why)
    }
}

/// Predicted time of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictedStepTimeWithInterval {
    /// Predicted time of a step.
    pub makespan: Span,
    /// 90 % interval of the time; `None` if the kernel times have no error estimates.
    pub interval: Option<[Span; 2]>,
}

/// Predicts the runs of a table. Calls `ended` in the table's order, either with a prediction or with the reason why
/// there is none.
///
/// Runs are generated and replayed independently on `threads` threads. The number of threads does not affect the
/// results. `ended` receives a result as soon as all earlier ones are known.
///
/// # Errors
///
/// If `ended` fails, this function returns the error. No further run then begins.
pub fn predict_runs_in_table_order(
    table: &RunTable,
    options: &ReplayOptions,
    threads: NonZeroUsize,
    ended: impl FnMut(
        &MeasuredRun,
        &Result<PredictedStepTimeWithInterval, ScoreError>,
    ) -> io::Result<()>,
) -> io::Result<Vec<Result<PredictedStepTimeWithInterval, ScoreError>>> {
    let firsts = map_runs_to_first_equal(table);
    let known: Vec<OnceLock<PredictedStepTimeWithInterval>> =
        (table.runs.iter()).map(|_| OnceLock::new()).collect();
    let ask = |i: usize, run: &MeasuredRun| {
        let cell: &OnceLock<PredictedStepTimeWithInterval> = &known[firsts[i]];
        if let Some(predicted) = cell.get() {
            return Ok(*predicted);
        }
        let predicted = predict_run(run, options)?;
        Ok(*cell.get_or_init(|| predicted))
    };
    // Predict repeated measurements of a plan last, because they reuse the first run's prediction.
    let (plans, repeats): (Vec<usize>, Vec<usize>) =
        (0..firsts.len()).partition(|&i| firsts[i] == i);
    map_runs_started_in_given_order(table, &[plans, repeats].concat(), threads, ask, ended)
}

/// Returns, for each run, the index of the first run that has the same model, plan and machine.
fn map_runs_to_first_equal(table: &RunTable) -> Vec<usize> {
    let mut known = BTreeMap::new();
    let runs = table.runs.iter().enumerate();
    runs.map(|(i, run)| {
        let first: usize = *known.entry((&run.file, &run.options)).or_insert(i);
        let other = &table.runs[first];
        // Compare all inputs instead of the options in the table: if two column files score the same table, different
        // runs can have equal options.
        match run.machine == other.machine && run.training == other.training {
            true => first,
            false => i,
        }
    })
    .collect()
}

/// Calls `ask` for each run with its index. Calls `ended` with the results in the table's order.
fn map_all_runs<T: Send>(
    table: &RunTable,
    threads: NonZeroUsize,
    ask: impl Fn(usize, &MeasuredRun) -> Result<T, UnpredictableRunReason> + Sync,
) -> Result<Vec<T>, ScoreError> {
    let answers = map_runs_in_table_order(table, threads, ask, |_, _| Ok(()));
    answers.unwrap_or_default().into_iter().collect()
}

fn map_runs_in_table_order<T: Send>(
    table: &RunTable,
    threads: NonZeroUsize,
    ask: impl Fn(usize, &MeasuredRun) -> Result<T, UnpredictableRunReason> + Sync,
    ended: impl FnMut(&MeasuredRun, &Result<T, ScoreError>) -> io::Result<()>,
) -> io::Result<Vec<Result<T, ScoreError>>> {
    let order: Vec<usize> = (0..table.runs.len()).collect();
    map_runs_started_in_given_order(table, &order, threads, ask, ended)
}

/// Calls `ask` for each run, on several threads at once. Runs begin in the given `order` of
/// indices. `ended` receives results in the table's order.
fn map_runs_started_in_given_order<T: Send>(
    table: &RunTable,
    order: &[usize],
    threads: NonZeroUsize,
    ask: impl Fn(usize, &MeasuredRun) -> Result<T, UnpredictableRunReason> + Sync,
    mut ended: impl FnMut(&MeasuredRun, &Result<T, ScoreError>) -> io::Result<()>,
) -> io::Result<Vec<Result<T, ScoreError>>> {
    let (next, ask) = (AtomicUsize::new(0), &ask);
    let (answers, mut found) = (mpsc::channel(), BTreeMap::new());
    let mut in_order = Vec::with_capacity(table.runs.len());
    std::thread::scope(|scope| {
        let (answer, answers) = answers;
        for _ in 0..threads.get() {
            let (answer, next) = (answer.clone(), &next);
            scope.spawn(wrap_with_current_token(move || {
                while let Some((i, run)) = {
                    let i = order.get(next.fetch_add(1, Ordering::Relaxed));
                    i.map(|&i| (i, &table.runs[i]))
                } {
                    let found = ask(i, run).map_err(|fault| fault.into_error_for_run(run));
                    if answer.send((i, found)).is_err() {
                        return;
                    }
                }
            }));
        }
        // Drop this sender, so that the channel closes when the last thread ends.
        drop(answer);
        for (i, answer) in &answers {
            found.insert(i, answer);
            while let Some(answer) = found.remove(&in_order.len()) {
                let told = ended(&table.runs[in_order.len()], &answer);
                if told.is_err() {
                    // From now on, no thread starts another run.
                    next.store(table.runs.len(), Ordering::Relaxed);
                    return told;
                }
                in_order.push(answer);
            }
        }
        Ok(())
    })?;
    Ok(in_order)
}

fn predict_run(
    run: &MeasuredRun,
    options: &ReplayOptions,
) -> Result<PredictedStepTimeWithInterval, UnpredictableRunReason> {
    replay_run_and_compute_answer(run, options, |compiled| {
        let (report, check) =
            chakram_report::replay_to_report(compiled, CopyRepresentsJobChecker::new(compiled))?;
        let makespan = report.outcome.makespan;
        let interval = report.interval;
        let interval = interval.map(|interval| [interval.low, interval.high]);
        let predicted = PredictedStepTimeWithInterval { makespan, interval };
        Ok((predicted, check.represents_all()))
    })
}

/// Predicts the makespan of a run. Builds no report, because the makespan does not need one.
fn predict_makespan(
    run: &MeasuredRun,
    options: &ReplayOptions,
) -> Result<Span, UnpredictableRunReason> {
    replay_run_and_compute_answer(run, options, |compiled| {
        let (outcome, check) = compiled.run(CopyRepresentsJobChecker::new(compiled))?;
        Ok((outcome.makespan, check.represents_all()))
    })
}

/// Replays `run`, and returns the value that `answer` computes from the replay. Also returns true if the replayed ranks
/// may represent all ranks.
fn replay_run_and_compute_answer<T>(
    run: &MeasuredRun,
    options: &ReplayOptions,
    answer: impl Fn(&CompiledReplay<'_>) -> Result<(T, bool), ReplayError>,
) -> Result<T, UnpredictableRunReason> {
    let pattern = WorkloadPattern::from(run.training.clone());
    let refused = |error: PatternOptionError| error.to_string();
    let job = CheckedWorkloadPattern::new(pattern).map_err(refused)?;
    job.check_workload_fits_memory()
        .map_err(|error| error.to_string())?;
    let workload = job
        .build_workload()
        .map_err(|error: TraceError| error.to_string())?;
    options.check_options_have_effect(&run.machine, &workload)?;
    let of = |workload: &Workload| {
        let compiled = CompiledReplay::new(workload, &run.machine, options)
            .map_err(|refusal| ReplayError::from(refusal).to_string())?;
        answer(&compiled).map_err(|error| error.to_string())
    };
    Ok(replay_one_copy_or_all_ranks(
        &workload,
        &run.machine,
        options,
        &job.find_independent_copies(),
        of,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const COLUMNS: &str = "measured = \"seconds\"\nmachine = \"dgx-a100\"\nunit = \"s\"\n[columns]\ntensor = \"tp\"\n\
        data = \"dp\"\npipeline = \"pp\"\norder = \"order\"\n[fixed]\nhidden = \"256\"\nlayers = \"6\"\n\
        heads = \"8\"\nsequence = \"128\"\nvocabulary = \"1024\"\nbatch = \"16\"\noverlap = \"false\"\n\
        schedule = \"1f1b\"\n";

    /// Replays each row twice: with representative ranks, and with all ranks. For each row, returns whether
    /// representatives were enough, the makespan that they gave, and the makespan of all ranks.
    fn compare_representative_and_full_makespans(rows: &str) -> Vec<(bool, Span, Span)> {
        let columns = RunColumnRules::parse(COLUMNS, "columns").unwrap();
        let csv = format!("tp,dp,pp,order,seconds\n{rows}");
        let table = RunTable::parse(&csv, "runs", &columns).unwrap();
        let options = ReplayOptions::default();
        let runs = table.runs.iter().map(|run| {
            let pattern = WorkloadPattern::from(run.training.clone());
            let job = CheckedWorkloadPattern::new(pattern).unwrap();
            let workload = job.build_workload().unwrap();
            let sizes = RefCell::new(Vec::new());
            let replay = |workload: &Workload| {
                sizes.borrow_mut().push(workload.instances().len());
                let compiled = CompiledReplay::new(workload, &run.machine, &options)?;
                let (outcome, check) = compiled.run(CopyRepresentsJobChecker::new(&compiled))?;
                Ok::<_, ReplayError>((outcome.makespan, check.represents_all()))
            };
            let one = replay_one_copy_or_all_ranks(
                &workload,
                &run.machine,
                &options,
                &job.find_independent_copies(),
                replay,
            );
            let whole = CompiledReplay::new(&workload, &run.machine, &options).unwrap();
            let whole = whole.run(()).unwrap().0.makespan;
            let all = workload.instances().len();
            (!sizes.borrow().contains(&all), one.unwrap(), whole)
        });
        runs.collect()
    }

    #[test]
    fn rows_end_in_order_and_one_refused_row_ends_nothing() {
        let columns = RunColumnRules::parse(COLUMNS, "columns").unwrap();
        // Rows 2 and 4 cannot be predicted: 3 replicas cannot share 16 samples evenly, and tensor
        // groups of 3 ranks cannot share 8 heads.
        let csv = "tp,dp,pp,order,seconds\n1,1,1,,1\n1,3,1,,1\n2,2,1,,1\n3,1,1,,1\n1,2,2,,1\n";
        let table = RunTable::parse(csv, "runs", &columns).unwrap();
        assert_eq!((table.runs.len(), table.refused.len()), (5, 0));
        let options = ReplayOptions::default();
        for threads in [1, 4] {
            let threads = NonZeroUsize::new(threads).unwrap();
            let mut lines = Vec::new();
            let answers = predict_runs_in_table_order(&table, &options, threads, |run, answer| {
                lines.push((run.line, answer.is_ok()));
                Ok(())
            });
            let answers = answers.unwrap();
            let expected = [(2, true), (3, false), (4, true), (5, false), (6, true)];
            assert_eq!(lines, expected);
            let mut kept = table.clone();
            assert_eq!(
                kept.keep_predicted_runs(answers, |error| error.to_string())
                    .len(),
                3
            );
            let of = |run: &MeasuredRun| run.line;
            assert_eq!(kept.runs.iter().map(of).collect::<Vec<_>>(), [2, 4, 6]);
            let refused: Vec<String> = kept.refused.iter().map(ToString::to_string).collect();
            assert!(
                refused[0].starts_with("runs:3: `batch` is 16"),
                "{refused:?}"
            );
            assert!(
                refused[1].starts_with("runs:5: `tensor` is 3"),
                "{refused:?}"
            );
            // An error from the callback ends the scoring.
            let mut count = 0;
            let stopped = predict_runs_in_table_order(&table, &options, threads, |_, _| {
                count += 1;
                Err(io::Error::other("no room"))
            });
            assert!(stopped.is_err() && count == 1);
        }
    }

    #[test]
    fn one_replayed_copy_represents_equally_placed_copies() {
        // In these rows, pipelines are within a node or across nodes, and tensor groups and replicas are on one or
        // several nodes. Without replicas, the first and the last stage begin to sum their tied weights at different
        // times.
        let rows = "2,2,2,\"tp,dp,pp\",1\n2,8,1,\"tp,dp,pp\",1\n4,2,3,\"tp,dp,pp\",1\n\
            1,16,2,\"tp,dp,pp\",1\n8,2,2,\"tp,pp,dp\",1\n\
            4,1,3,\"tp,dp,pp\",1\n8,1,2,\"tp,dp,pp\",1\n";
        for (i, (stands, one, all)) in compare_representative_and_full_makespans(rows)
            .into_iter()
            .enumerate()
        {
            assert!(stands, "row {i}");
            assert_eq!(one, all, "row {i}");
        }
    }

    #[test]
    fn differently_placed_copies_are_all_replayed() {
        // With six consecutive stages on nodes with eight NPUs, the first pipeline is within a node, but the second
        // spans two nodes.
        let found = compare_representative_and_full_makespans(
            "1,4,6,\"pp,dp,tp\",1\n1,1,6,\"tp,dp,pp\",1\n",
        );
        for (stands, one, all) in found {
            assert!(!stands);
            assert_eq!(one, all);
        }
    }

    #[test]
    fn kernels_take_longer_beside_collectives_and_nowhere_else() {
        let preset = chakram_hardware::machine::find_machine_text("dgx-a100")
            .unwrap()
            .text;
        let stated = "beside_collectives = 1.19";
        assert!(preset.contains(stated));
        let options = ReplayOptions::default_with_changes(|options| {
            options.launch = chakram_engine::HostLaunchMode::None
        });
        let seconds = |overlap: &str, stating: &str| {
            let early = format!("bucket = \"64 kB\"\noverlap = \"{overlap}\"");
            let text = COLUMNS.replace("overlap = \"false\"", &early);
            let columns = RunColumnRules::parse(&text, "columns").unwrap();
            let csv = "tp,dp,pp,order,seconds\n1,8,1,\"tp,dp,pp\",1\n";
            let mut table = RunTable::parse(csv, "runs", &columns).unwrap();
            let machine = preset.replace(stated, stating);
            table.runs[0].machine =
                chakram_hardware::machine::Machine::parse(&machine, "machine").unwrap();
            predict_makespan(&table.runs[0], &options)
                .unwrap()
                .as_seconds()
        };
        // If gradients are reduced during the backward pass, some kernels are slower by a factor of 1.19. If they are
        // reduced afterwards, no kernel is slower.
        let slower = seconds("true", stated) / seconds("true", "");
        assert!(slower > 1.001 && slower < 1.19, "{slower}");
        let [with, without] = [stated, "beside_collectives = 1"].map(|text| seconds("false", text));
        assert_eq!(with, without);
    }
}
