//! Cross-validation: predicts each run with constants fitted only to other runs.
//!
//! Runs with equal values of the options in `folds` share a fold, and folds have similar numbers of runs. For each
//! fold, the Gauss-Newton method fits constants to the logarithms of the measured times in all other folds. Runs with
//! large errors have less weight (`weight = 1 / sqrt(1 + (error / 0.1)^2)`, from the soft L1 loss):
//!
//! ```text
//! (Jt W J + ridge) step = Jt W ln(measured / predicted)       J by differences of 10 % in each constant
//! ```

use super::constants::{FittedConstant, scale_machine_constants};
use super::{
    MeasuredRun, PredictedStepTimeWithInterval, RunTable, ScoreError, map_all_runs,
    predict_makespan, predict_run,
};
use chakram_base::units::Span;
use chakram_engine::ReplayOptions;
use std::cmp::Reverse;
use std::num::NonZeroUsize;

/// Change of a constant's logarithm for a numerical derivative.
const DIFFERENCE: f64 = 0.1;
/// Relative error above which a run has less weight.
const FAR: f64 = 0.1;
/// Maximum change of a constant's logarithm in one round.
const LARGEST_STEP: f64 = 0.7;
/// Weight of the ridge term, relative to a run with weight 1. It keeps a constant unchanged if no run depends on the
/// constant.
const RIDGE: f64 = 1e-3;
/// Number of iterations of the Gauss-Newton method.
const ROUNDS: usize = 2;

/// Constants fitted to all runs outside a fold.
#[derive(Clone, Debug, PartialEq)]
pub struct ConstantsFittedOutsideFold {
    /// Number of runs in the fold. The fit does not use them.
    pub runs: usize,
    /// Constants, each with the factor that multiplies the machine's value.
    pub constants: Vec<(FittedConstant, f64)>,
}

/// Returns the fold of each run; there are `count` folds. Assigns groups of runs, largest first, to the fold with the
/// fewest runs.
pub fn assign_folds(runs: &[MeasuredRun], count: NonZeroUsize) -> Vec<usize> {
    let groups = runs.iter().map(|run| run.fold + 1).max().unwrap_or(0);
    let mut sizes: Vec<(usize, usize)> = (0..groups).map(|group| (0, group)).collect();
    for run in runs {
        sizes[run.fold].0 += 1;
    }
    sizes.sort_by_key(|&(size, group)| (Reverse(size), group));
    let mut filled = vec![0; count.get().min(groups.max(1))];
    let mut fold_of = vec![0; groups];
    for (size, group) in sizes {
        let smallest = (0..filled.len()).min_by_key(|&fold| (filled[fold], fold));
        let fold = smallest.unwrap_or(0);
        filled[fold] += size;
        fold_of[group] = fold;
    }
    runs.iter().map(|run| fold_of[run.fold]).collect()
}

/// Returns the table with its machines' constants multiplied by `factors`.
fn scale_table_machines(table: &RunTable, factors: &[(FittedConstant, f64)]) -> RunTable {
    let mut table = table.clone();
    for run in &mut table.runs {
        run.machine = scale_machine_constants(&run.machine, factors);
    }
    table
}

/// Predicts each run of `table` with constants fitted to the other folds. Returns the predictions, and the constants of
/// each fold.
///
/// # Errors
///
/// Fails at the first run that cannot be predicted. Also fails if there is only one fold, or if a machine lacks one of
/// the constants.
pub fn predict_runs_by_fitting_other_folds(
    table: &RunTable,
    options: &ReplayOptions,
    constants: &[FittedConstant],
    fold_of: &[usize],
    threads: NonZeroUsize,
) -> Result<
    (
        Vec<PredictedStepTimeWithInterval>,
        Vec<ConstantsFittedOutsideFold>,
    ),
    ScoreError,
> {
    let refuse = |why: String| ScoreError::Table {
        file: table.file.clone(),
        why,
    };
    let folds = fold_of.iter().max().map_or(0, |last| last + 1);
    if folds < 2 {
        let why = "all runs are in one fold, so no run is left to fit constants";
        return Err(refuse(format!(
            "{why}\n  try: other options in `folds` of the file of columns"
        )));
    }
    for constant in constants {
        let silent = |run: &&MeasuredRun| constant.value_in_machine(&run.machine).is_none();
        if let Some(run) = table.runs.iter().find(silent) {
            let (name, machine) = (constant.constant_name(), run.machine.name());
            return Err(refuse(format!(
                "`{name}` cannot be fitted, because machine `{machine}` does not state this key"
            )));
        }
    }
    let mut predicted: Vec<Option<PredictedStepTimeWithInterval>> = vec![None; table.runs.len()];
    let mut fits = Vec::new();
    // All folds start from the machine's own constants, and so share the derivatives of the first round.
    let first =
        compute_predicted_times_and_derivatives(table, options, &unit_factors(constants), threads)?;
    for fold in 0..folds {
        let part = |inside: bool| RunTable {
            file: table.file.clone(),
            refused: Vec::new(),
            runs: (table.runs.iter().zip(fold_of))
                .filter(|&(_, &of)| (of == fold) == inside)
                .map(|(run, _)| run.clone())
                .collect(),
        };
        let others = part(false);
        let of_others = |all: &[f64]| -> Vec<f64> {
            let pairs = all.iter().zip(fold_of);
            pairs
                .filter(|&(_, &of)| of != fold)
                .map(|(&value, _)| value)
                .collect()
        };
        let mut factors = unit_factors(constants);
        let mut known = PredictedTimesAndDerivatives {
            predicted: of_others(&first.predicted),
            derivatives: first.derivatives.iter().map(|one| of_others(one)).collect(),
        };
        for round in 0..ROUNDS {
            if round > 0 {
                known =
                    compute_predicted_times_and_derivatives(&others, options, &factors, threads)?;
            }
            for ((_, factor), step) in factors
                .iter_mut()
                .zip(known.constant_log_changes(&others.runs))
            {
                // Limit the step, because derivatives are valid only near the current constants.
                *factor *= step.clamp(-LARGEST_STEP, LARGEST_STEP).exp();
            }
        }
        let inside = part(true);
        let changed = scale_table_machines(&inside, &factors);
        let mut answers =
            map_all_runs(&changed, threads, |_, run| predict_run(run, options))?.into_iter();
        for (place, _) in (predicted.iter_mut().zip(fold_of)).filter(|&(_, &of)| of == fold) {
            *place = answers.next();
        }
        fits.push(ConstantsFittedOutsideFold {
            runs: inside.runs.len(),
            constants: factors,
        });
    }
    Ok((predicted.into_iter().flatten().collect(), fits))
}

fn unit_factors(constants: &[FittedConstant]) -> Vec<(FittedConstant, f64)> {
    constants.iter().map(|&constant| (constant, 1.0)).collect()
}

/// Predicted times, and the derivatives of their logarithms with respect to the constants' logarithms.
struct PredictedTimesAndDerivatives {
    /// Predicted time of each run, in seconds.
    predicted: Vec<f64>,
    /// Derivatives of the runs' times, in one list per constant.
    derivatives: Vec<Vec<f64>>,
}

fn compute_predicted_times_and_derivatives(
    table: &RunTable,
    options: &ReplayOptions,
    factors: &[(FittedConstant, f64)],
    threads: NonZeroUsize,
) -> Result<PredictedTimesAndDerivatives, ScoreError> {
    let seconds = |factors: &[(FittedConstant, f64)]| -> Result<Vec<f64>, ScoreError> {
        let table = scale_table_machines(table, factors);
        let answers = map_all_runs(&table, threads, |_, run| predict_makespan(run, options))?;
        Ok(answers.into_iter().map(Span::as_seconds).collect())
    };
    let predicted = seconds(factors)?;
    let mut derivatives = Vec::new();
    for i in 0..factors.len() {
        let mut changed = factors.to_vec();
        changed[i].1 *= DIFFERENCE.exp();
        let other = seconds(&changed)?;
        let pairs = other.iter().zip(&predicted);
        derivatives.push(pairs.map(|(b, a)| (b / a).ln() / DIFFERENCE).collect());
    }
    Ok(PredictedTimesAndDerivatives {
        predicted,
        derivatives,
    })
}

impl PredictedTimesAndDerivatives {
    /// Returns the changes of the constants' logarithms that bring the predictions of `runs` closer to the
    /// measurements.
    fn constant_log_changes(&self, runs: &[MeasuredRun]) -> Vec<f64> {
        let n = self.derivatives.len();
        let mut matrix = vec![vec![0.0; n + 1]; n];
        for (i, (run, predicted)) in runs.iter().zip(&self.predicted).enumerate() {
            let error = (run.measured / predicted).ln();
            let weight = 1.0 / (1.0 + (error / FAR).powi(2)).sqrt();
            for (equation, own) in matrix.iter_mut().zip(&self.derivatives) {
                let row = weight * own[i];
                for (cell, other) in equation.iter_mut().zip(&self.derivatives) {
                    *cell += row * other[i];
                }
                equation[n] += row * error;
            }
        }
        for (a, row) in matrix.iter_mut().enumerate() {
            row[a] += RIDGE * runs.len() as f64;
        }
        solve_linear(matrix)
    }
}

/// Solves linear equations with a symmetric, positive definite matrix. The last entry of each row
/// is its right-hand side.
pub(super) fn solve_linear(mut rows: Vec<Vec<f64>>) -> Vec<f64> {
    let n = rows.len();
    for a in 0..n {
        for b in a + 1..n {
            // The matrix is positive definite, so elimination needs no pivoting.
            let factor = rows[b][a] / rows[a][a];
            let (above, below) = rows.split_at_mut(b);
            for (cell, upper) in below[0][a..].iter_mut().zip(&above[a][a..]) {
                *cell -= factor * upper;
            }
        }
    }
    let mut solution = vec![0.0; n];
    for a in (0..n).rev() {
        let known: f64 = (a + 1..n).map(|b| rows[a][b] * solution[b]).sum();
        solution[a] = (rows[a][n] - known) / rows[a][a];
    }
    solution
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equations_are_solved() {
        // 2x + y = 5 and x + 3y = 10 have the solution x = 1, y = 3.
        let found = solve_linear(vec![vec![2.0, 1.0, 5.0], vec![1.0, 3.0, 10.0]]);
        assert!(
            (found[0] - 1.0).abs() < 1e-12 && (found[1] - 3.0).abs() < 1e-12,
            "{found:?}"
        );
    }
}
