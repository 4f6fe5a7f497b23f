//! Computes corrections of a machine's kernel times from measured steps.
//!
//! Steps belong to the same group if their models have the same two most frequent matrix products. They also have the
//! same tokens per micro-batch, width and tensor parallelism. A group's factor is the geometric mean of measured /
//! predicted time. It does not affect some parts of a step (messages, sums over replicas between nodes), so it takes
//! two rounds to compute.
//!
//! Each group's factor differs from the shared factor. Let `t` be the variance of the factors' logarithms between
//! groups, and `s` their variance within a group. A group of `n` steps keeps the fraction `t / (t + s / n)` of its
//! factor's distance from the shared factor (partial pooling). The shared factor's logarithm is shrunk towards zero
//! because of its own variance (James and Stein, 1961). Models outside the groups use the shared factor.

use super::{MeasuredRun, RunTable, ScoreError, map_all_runs, predict_makespan};
use chakram_base::units::Span;
use chakram_engine::ReplayOptions;
use chakram_hardware::machine::PassKernelTimeCorrection;
use chakram_workloads::generate::{CheckedWorkloadPattern, WorkloadPattern};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;

/// Relative error of a correction from a single step, if no group has two steps. It covers two variations: between
/// repetitions of a step, and between the plans of a group.
const ALONE: f64 = 0.05;
/// Standard deviation of factors within a group, if no group has two steps. It was measured in 722 steps of small GPTs
/// on A100: predictions of steps with the same products differ from their mean by 0.024.
const INSIDE: f64 = 0.024;
/// Minimum number of groups for a shared factor.
const LEAST_GROUPS: usize = 3;
/// Number of rounds for computing a factor.
const ROUNDS: usize = 2;

/// Correction of kernel times, computed from a group of measured steps.
#[derive(Clone, Debug, PartialEq)]
pub struct StepGroupKernelTimeCorrection {
    /// Factor that multiplies the times of the group's kernels.
    pub correction: PassKernelTimeCorrection,
    /// Line numbers of the group's steps in the table.
    pub lines: Vec<u64>,
    /// Leave-one-out error of each step: its error with a factor from the group's other steps. Empty for a group with a
    /// single step.
    pub left_out: Vec<f64>,
}

/// All corrections of kernel times on a machine, computed from measured steps.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredStepKernelTimeCorrections {
    /// Corrections of the groups, sorted by matrix products in ascending order.
    pub groups: Vec<StepGroupKernelTimeCorrection>,
    /// Correction for models outside all groups; `None` if there are too few groups.
    pub shared: Option<PassKernelTimeCorrection>,
    /// Mean leave-one-group-out errors of the steps: `[0]`: errors with the shared factor of the
    /// other groups. `[1]`: errors without a correction. `None` if there are too few groups to omit
    /// one.
    pub left_out_groups: Option<[f64; 2]>,
}

/// Two matrix products, each as rows, columns and summed size.
type TwoMostFrequentProductShapes = [[u64; 3]; 2];

/// Returns the two most frequent matrix products of the run's model.
fn two_most_frequent_products_of_run(
    run: &MeasuredRun,
) -> Result<TwoMostFrequentProductShapes, String> {
    let pattern = WorkloadPattern::from(run.training.clone());
    let job = CheckedWorkloadPattern::new(pattern).map_err(|error| error.to_string())?;
    let workload = job.build_workload().map_err(|error| error.to_string())?;
    workload
        .two_most_frequent_matmul_sizes()
        .ok_or_else(|| "the run's model has no matrix multiplication for a correction".to_owned())
}

/// Computes corrections from the steps in `table`, and sorts them by matrix products.
///
/// # Errors
///
/// Fails at the first run that cannot be generated or replayed, or that has no matrix product.
pub fn fit_step_corrections_by_product_shapes(
    table: &RunTable,
    options: &ReplayOptions,
    threads: NonZeroUsize,
) -> Result<MeasuredStepKernelTimeCorrections, ScoreError> {
    let products: Vec<TwoMostFrequentProductShapes> = map_all_runs(table, threads, |_, run| {
        Ok(two_most_frequent_products_of_run(run)?)
    })?;
    let mut factors: BTreeMap<TwoMostFrequentProductShapes, f64> =
        products.iter().map(|gemms| (*gemms, 1.0)).collect();
    let mut ratios = vec![0.0; products.len()];
    for _ in 0..ROUNDS {
        let answers: Vec<Span> = map_all_runs(table, threads, |i, run| {
            let correction = Some(factors[&products[i]]);
            let options = ReplayOptions {
                correction,
                ..options.clone()
            };
            predict_makespan(run, &options)
        })?;
        for (i, (run, answer)) in table.runs.iter().zip(&answers).enumerate() {
            let ratio = (run.measured / answer.as_seconds()).ln();
            ratios[i] = factors[&products[i]].ln() + ratio;
        }
        for (gemms, factor) in &mut factors {
            let own = products.iter().zip(&ratios).filter(|(of, _)| *of == gemms);
            *factor = mean_value(own.map(|(_, ratio)| *ratio)).exp();
        }
    }
    let groups: Vec<Vec<f64>> = (factors.keys())
        .map(|gemms| {
            let own = products.iter().zip(&ratios).filter(|(of, _)| *of == gemms);
            own.map(|(_, ratio)| *ratio).collect()
        })
        .collect();
    let pooled = PooledLogFactorStatistics::new(&groups);
    let left_out_groups = mean_errors_with_and_without_shared_factor(&groups);
    let mut found = Vec::new();
    for (gemms, own) in factors.into_keys().zip(&groups) {
        let factor = pooled.factor_of_group(own).exp();
        let own: Vec<usize> = (0..products.len())
            .filter(|&i| products[i] == gemms)
            .collect();
        let left_out = |i: &usize| {
            let others = own.iter().filter(|other| *other != i);
            mean_value(others.map(|&other| ratios[other])) - ratios[*i]
        };
        let left_out: Vec<f64> = match own.len() {
            1 => Vec::new(),
            _ => own.iter().map(left_out).collect(),
        };
        found.push(StepGroupKernelTimeCorrection {
            correction: PassKernelTimeCorrection {
                gemms: Some(gemms),
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
        let error = mean_value(squares.into_iter()).sqrt().max(0.01);
        found
            .iter_mut()
            .for_each(|step| step.correction.error = error);
    }
    let shared = (pooled.shared != 0.0).then(|| PassKernelTimeCorrection {
        gemms: None,
        factor: pooled.shared.exp(),
        error: (pooled.between + pooled.inside).sqrt().max(0.01),
    });
    Ok(MeasuredStepKernelTimeCorrections {
        groups: found,
        shared,
        left_out_groups,
    })
}

/// Statistics of the logarithms of the steps' factors, over all groups.
struct PooledLogFactorStatistics {
    /// Logarithm of the groups' common factor.
    shared: f64,
    /// Variance of the factors' logarithms between groups.
    between: f64,
    /// Variance of the factors' logarithms within a group.
    inside: f64,
}

impl PooledLogFactorStatistics {
    /// Computes the statistics from the logarithms of the steps' factors; `groups` has one list of
    /// logarithms per group.
    fn new(groups: &[Vec<f64>]) -> Self {
        let count = groups.len() as f64;
        let means: Vec<f64> = groups
            .iter()
            .map(|own| mean_value(own.iter().copied()))
            .collect();
        let squares = groups
            .iter()
            .zip(&means)
            .flat_map(|(own, mean)| own.iter().map(move |ratio| (ratio - mean) * (ratio - mean)));
        let freedom: usize = groups.iter().map(|own| own.len() - 1).sum();
        let inside = match freedom {
            0 => INSIDE * INSIDE,
            _ => squares.sum::<f64>() / freedom as f64,
        };
        // Variation between a group's steps adds to the spread of the group means, so subtract its contribution.
        let of_steps = inside * mean_value(groups.iter().map(|own| 1.0 / own.len() as f64));
        let all = mean_value(means.iter().copied());
        let spread = means
            .iter()
            .map(|mean| (mean - all) * (mean - all))
            .sum::<f64>();
        // With fewer groups than `LEAST_GROUPS`, the variance between groups is unknown, so each group keeps its own
        // factor.
        let between = match groups.len() < LEAST_GROUPS {
            true => f64::INFINITY,
            false => (spread / (count - 1.0) - of_steps).max(0.0),
        };
        let of_shared = (between + of_steps) / count;
        let kept = (1.0 - of_shared / (all * all)).max(0.0);
        let shared = match between.is_finite() && kept.is_finite() {
            true => kept * all,
            false => 0.0,
        };
        Self {
            shared,
            between,
            inside,
        }
    }

    /// Returns the factor of a group. `own` contains the logarithms of the factors of the group's steps.
    fn factor_of_group(&self, own: &[f64]) -> f64 {
        let distance = mean_value(own.iter().copied()) - self.shared;
        let of_steps = self.inside / own.len() as f64;
        let kept = match self.between.is_finite() {
            true if self.between + of_steps > 0.0 => self.between / (self.between + of_steps),
            _ => 1.0,
        };
        self.shared + kept * distance
    }
}

/// Returns the mean error of all steps, first with the shared factor of the other groups, then without a correction.
fn mean_errors_with_and_without_shared_factor(groups: &[Vec<f64>]) -> Option<[f64; 2]> {
    if groups.len() <= LEAST_GROUPS {
        return None;
    }
    let (mut by_others, mut without) = (Vec::new(), Vec::new());
    for (i, own) in groups.iter().enumerate() {
        let others: Vec<_> = (groups.iter().enumerate())
            .filter(|(other, _)| *other != i)
            .map(|(_, group)| group.clone())
            .collect();
        let shared = PooledLogFactorStatistics::new(&others).shared;
        for ratio in own {
            by_others.push(((shared - ratio).exp() - 1.0).abs());
            without.push(((-ratio).exp() - 1.0).abs());
        }
    }
    Some([
        mean_value(by_others.into_iter()),
        mean_value(without.into_iter()),
    ])
}

fn mean_value(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_differ_little_share_their_factor() {
        // The logarithms of five groups' factors are about 0.2. Factors vary equally within groups
        // and between groups.
        let groups: Vec<Vec<f64>> = [
            [0.18, 0.22],
            [0.21, 0.19],
            [0.17, 0.21],
            [0.22, 0.20],
            [0.19, 0.21],
        ]
        .map(|own| own.to_vec())
        .to_vec();
        let pooled = PooledLogFactorStatistics::new(&groups);
        assert!((pooled.shared - 0.2).abs() < 0.01, "{}", pooled.shared);
        assert_eq!(pooled.between, 0.0);
        assert!((pooled.factor_of_group(&groups[2]) - pooled.shared).abs() < 1e-12);
        let [by_others, without] = mean_errors_with_and_without_shared_factor(&groups).unwrap();
        assert!(by_others < 0.03 && without > 0.15, "{by_others} {without}");
    }

    #[test]
    fn groups_that_contradict_one_another_share_nothing() {
        let groups: Vec<Vec<f64>> = [[0.3, 0.31], [-0.3, -0.29], [0.28, 0.29], [-0.31, -0.3]]
            .map(|own| own.to_vec())
            .to_vec();
        let pooled = PooledLogFactorStatistics::new(&groups);
        assert_eq!(pooled.shared, 0.0);
        // Steps vary little within each group, so groups keep nearly all of their factor.
        assert!((pooled.factor_of_group(&groups[0]) - 0.305).abs() < 0.001);
        let [by_others, without] = mean_errors_with_and_without_shared_factor(&groups).unwrap();
        assert!((by_others - without).abs() < 0.12);
    }

    #[test]
    fn one_group_keeps_its_factor() {
        let groups = vec![vec![0.4]];
        let pooled = PooledLogFactorStatistics::new(&groups);
        assert_eq!(pooled.factor_of_group(&groups[0]), 0.4);
        assert_eq!(mean_errors_with_and_without_shared_factor(&groups), None);
    }
}
