//! Corrections of a machine's prices from measured steps.
//!
//! Steps whose models have the same most frequent products belong together: tokens of a micro-batch, width and tensor
//! parallelism are the same. Of each such group, the factor is the geometric mean of measured over predicted, found in two rounds,
//! since what is not corrected (messages, sums over replicas between nodes) does not grow with it.

use super::{MeasuredRun, RunTable, ScoreError, makespan, score_all};
use chakram_base::units::Span;
use chakram_engine::ReplayOptions;
use chakram_hardware::machine::PriceCorrection;
use chakram_workloads::generate::{GeneratedJob, WorkloadPattern};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;

/// Relative error of a correction from one step, where no group has two: what repeats of a step differ by, and what corrections
/// leave between plans of one group.
const ALONE: f64 = 0.05;
/// Rounds.
const ROUNDS: usize = 2;

/// Correction from a group of measured steps.
#[derive(Clone, Debug, PartialEq)]
pub struct StepCorrection {
    /// The correction.
    pub correction: PriceCorrection,
    /// Lines of the steps.
    pub lines: Vec<u64>,
    /// Errors of each step by the factor of the others of its group; none of a group of one.
    pub left_out: Vec<f64>,
}

/// Rows, columns and summed-over size of two products.
type ProductPair = [[u64; 3]; 2];

/// The products that a run's model has most often.
fn signature(run: &MeasuredRun) -> Result<ProductPair, String> {
    let pattern = WorkloadPattern::Training(Box::new(run.training.clone()));
    let job = GeneratedJob::new(pattern).map_err(|error| error.to_string())?;
    let workload = job.workload().map_err(|error| error.to_string())?;
    workload.main_products().ok_or_else(|| {
        "its model has no product of matrices, which a correction could name".to_owned()
    })
}

/// Returns the corrections that the steps of `table` ask for, products ascending.
///
/// # Errors
///
/// The first run that cannot be generated or replayed, or has no product of matrices.
pub fn calibrate(
    table: &RunTable,
    options: &ReplayOptions,
    threads: NonZeroUsize,
) -> Result<Vec<StepCorrection>, ScoreError> {
    let products: Vec<ProductPair> = score_all(table, threads, |_, run| Ok(signature(run)?))?;
    let mut factors: BTreeMap<ProductPair, f64> =
        products.iter().map(|gemms| (*gemms, 1.0)).collect();
    let mut ratios = vec![0.0; products.len()];
    for _ in 0..ROUNDS {
        let answers: Vec<Span> = score_all(table, threads, |i, run| {
            let correction = Some(factors[&products[i]]);
            let options = ReplayOptions {
                correction,
                ..options.clone()
            };
            makespan(run, &options)
        })?;
        for (i, (run, answer)) in table.runs.iter().zip(&answers).enumerate() {
            let ratio = (run.measured / answer.seconds()).ln();
            ratios[i] = factors[&products[i]].ln() + ratio;
        }
        for (gemms, factor) in &mut factors {
            let own = products.iter().zip(&ratios).filter(|(of, _)| *of == gemms);
            *factor = mean(own.map(|(_, ratio)| *ratio)).exp();
        }
    }
    let mut found = Vec::new();
    for (gemms, factor) in factors {
        let own: Vec<usize> = (0..products.len())
            .filter(|&i| products[i] == gemms)
            .collect();
        let left_out = |i: &usize| {
            let others = own.iter().filter(|other| *other != i);
            mean(others.map(|&other| ratios[other])) - ratios[*i]
        };
        let left_out: Vec<f64> = match own.len() {
            1 => Vec::new(),
            _ => own.iter().map(left_out).collect(),
        };
        found.push(StepCorrection {
            correction: PriceCorrection {
                gemms,
                factor,
                error: ALONE,
            },
            lines: own.iter().map(|&i| table.runs[i].line).collect(),
            left_out,
        });
    }
    let squares: Vec<f64> = (found.iter())
        .flat_map(|step| &step.left_out)
        .map(|error| error * error)
        .collect();
    if !squares.is_empty() {
        let error = mean(squares.into_iter()).sqrt().max(0.01);
        found
            .iter_mut()
            .for_each(|step| step.correction.error = error);
    }
    Ok(found)
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count.max(1))
}
