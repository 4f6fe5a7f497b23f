//! Corrects predictions by measured steps of other jobs. The method is kriging, applied to the logarithm of measured /
//! predicted time.
//!
//! The logarithm is modelled as a sum of independent normal variables. All steps on the same NPU class share one
//! variable. Steps with the same class and the same number format of linear layers share a further variable. Similar
//! jobs also share a variable, and so do jobs with the same matrix products. Each step also has a variable of its own.
//! One more variable of the class counts in proportion to `w`, the logarithm of the model's width divided by 8192: what
//! a prediction leaves out, such as gaps between kernels, matters more in narrower models. Let `d` be the distance
//! between two jobs, whose coordinates are logarithms of sizes divided by their length scales. The covariance of two
//! steps on the same class is
//!
//! ```text
//! NPU^2 + FORMAT^2 [same format] + WIDTH^2 w_1 w_2
//!       + SIMILAR^2 exp(-d^2 / 2) + PRODUCTS^2 [same products] + ALONE^2 [same step]
//! ```
//!
//! and zero for steps on different classes. The standard deviations are priors. They are not fitted, so a few measured
//! steps change predictions only a little. The correction is the conditional mean, given the measured steps. The
//! remaining error is the conditional standard deviation (Rasmussen and Williams, "Gaussian Processes for Machine
//! Learning", 2006, equations 2.25 and 2.26).
//!
//! A job whose products were not measured gets only a fraction of this correction. The fraction minimises the error of
//! predicting steps from steps with other products. It is zero if the correction gains less than one standard error
//! (Breiman et al., "Classification and Regression Trees", 1984, section 3.4.3).

use super::columns::MODEL;
use super::folds::solve_linear;
use super::{MeasuredRun, PredictedStepTimeWithInterval};
use chakram_base::dtype::Dtype;
use chakram_base::units::Span;
use chakram_workloads::model::LayerRole;

/// Standard deviations of the variables that add up to the logarithm of measured / predicted time. Repeated
/// measurements of a plan differ by 3 % (NVIDIA/dgxc-benchmarking, across releases). The other values were chosen after
/// looking at public tables. Eleven of them together make all values of `WIDTH` up to 0.06 about equally likely; the
/// largest of these leads to the smallest errors.
const NPU: f64 = 0.094;
const FORMAT: f64 = 0.05;
const WIDTH: f64 = 0.06;
const SIMILAR: f64 = 0.07;
const PRODUCTS: f64 = 0.06;
const ALONE: f64 = 0.03;
/// Minimum number of groups with different matrix products for choosing a fraction of the correction. With fewer
/// groups, jobs get the whole correction.
const LEAST_GROUPS: usize = 3;
/// First size of [`StepSimilarityProperties`] for a width of 8192, with 12 x 8192^2 multiplications per token and
/// block.
const WIDE: f64 = 28_378.0;
/// Candidate fractions of the correction, in descending order.
const PARTS: [f64; 5] = [1.0, 0.75, 0.5, 0.25, 0.0];
/// 95 % quantile of the normal distribution. A central 90 % interval is twice as wide.
const SIDE: f64 = 1.645;

/// Number of job sizes that determine kernel times.
const SIZES: usize = 7;

/// Length scales for the logarithms of sizes. The sizes are width, tokens per micro-batch, tensor degree, ranks,
/// stages, context degree, and sequence length. Jobs more than one length scale apart are nearly uncorrelated.
const LENGTHS: [f64; SIZES] = [0.7, 1.2, 1.0, 1.5, 1.5, 1.0, 1.2];

/// Properties of a step that determine how similar it is to other steps.
#[derive(Clone, Debug, PartialEq)]
struct StepSimilarityProperties {
    /// Name and memory bandwidth of the NPU class.
    npu: (String, u64),
    /// Number format of linear layers.
    format: Dtype,
    /// Logarithms of the job's sizes, each divided by its length scale.
    sizes: [f64; SIZES],
}

impl StepSimilarityProperties {
    fn new(run: &MeasuredRun) -> Self {
        let (model, plan) = (&run.training.model, &run.training.plan);
        let class = &run.machine.npu_classes()[0];
        let blocks = model.layers.iter();
        let blocks = blocks.filter(|layer| layer.role == LayerRole::Block);
        // Omit the attention scores, which depend on the sequence length.
        let products = blocks.map(|layer| {
            (layer.multiplication_count())
                .saturating_sub(2 * layer.causally_skipped_multiplications())
        });
        let block = products.max().unwrap_or(1).max(1) as f64 / model.sequence as f64;
        let tokens = plan.micro_batch as f64 * model.sequence as f64;
        let context = f64::from(plan.context);
        let sizes = [
            block.sqrt(),
            tokens / context,
            f64::from(plan.tensor),
            plan.rank_count() as f64,
            f64::from(plan.pipeline),
            context,
            model.sequence as f64,
        ];
        let mut sizes = sizes.map(libm::log);
        for (size, length) in sizes.iter_mut().zip(LENGTHS) {
            *size /= length;
        }
        Self {
            npu: (
                class.name.clone(),
                (class.memory_bandwidth())
                    .map_or(0, |bandwidth| bandwidth.bytes_per_second().to_bits()),
            ),
            format: plan.linears.unwrap_or(plan.dtype),
            sizes,
        }
    }

    /// Returns true if both jobs have the same matrix products on the same NPU class. The jobs then also have the same
    /// width, tokens and tensor degree.
    fn has_same_products(&self, other: &Self) -> bool {
        self.npu == other.npu && self.sizes[..3] == other.sizes[..3]
    }

    /// Returns the covariance between two different steps' logarithms of measured / predicted time.
    fn covariance_with(&self, other: &Self) -> f64 {
        if self.npu != other.npu {
            return 0.0;
        }
        let format = f64::from(u8::from(self.format == other.format));
        let pairs = self.sizes.iter().zip(&other.sizes);
        let square: f64 = pairs.map(|(a, b)| (a - b) * (a - b)).sum();
        let products = f64::from(u8::from(self.has_same_products(other)));
        let [own, others] = [self, other].map(|step| step.sizes[0] * LENGTHS[0] - libm::log(WIDE));
        NPU * NPU
            + FORMAT * FORMAT * format
            + WIDTH * WIDTH * own * others
            + SIMILAR * SIMILAR * libm::exp(-square / 2.0)
            + PRODUCTS * PRODUCTS * products
    }
}

/// A prediction, corrected by measured steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CorrectedRunPrediction {
    /// Predicted time of a step in seconds, after the correction.
    pub seconds: f64,
    /// 90 % interval of the predicted seconds.
    pub interval: Option<[f64; 2]>,
    /// Number of steps measured on the same NPU class. The prediction is not corrected if there are no such steps, or
    /// if they do not predict each other.
    pub steps: usize,
    /// Time in seconds that the null model predicts: the model's FLOPs, divided by the geometric mean of the measured
    /// steps' rates. The mean is over the measured steps with the same class and format. If there are none, it is over
    /// all steps with the same class.
    pub one_rate: Option<f64>,
}

/// Measured steps that correct the predictions for other jobs.
struct MeasuredStepCorrectionModel {
    steps: Vec<StepSimilarityProperties>,
    /// Lower triangular (Cholesky) factor of the covariance matrix.
    factor: Vec<Vec<f64>>,
    /// Product of the inverse covariance matrix and the vector of the steps' logarithms.
    weights: Vec<f64>,
    /// Logarithms of the steps' model FLOPs per second.
    rates: Vec<f64>,
    /// Fraction of the correction that jobs with unmeasured matrix products get, by NPU class.
    parts: Vec<((String, u64), f64)>,
}

impl MeasuredStepCorrectionModel {
    /// Creates the statistics from measured steps and their predicted times in seconds.
    fn of_runs<'r>(runs: impl Iterator<Item = (&'r MeasuredRun, f64)> + Clone) -> Self {
        let keys = runs
            .clone()
            .map(|(run, _)| StepSimilarityProperties::new(run))
            .collect();
        let ratios = runs
            .clone()
            .map(|(run, seconds)| libm::log(run.measured / seconds));
        let ratios: Vec<f64> = ratios.collect();
        Self {
            rates: runs
                .map(|(run, _)| libm::log(model_flops(run) / run.measured))
                .collect(),
            ..Self::new(keys, &ratios)
        }
    }

    /// Creates the statistics from steps and their logarithms of measured / predicted time.
    fn new(steps: Vec<StepSimilarityProperties>, ratios: &[f64]) -> Self {
        let mut factor: Vec<Vec<f64>> = Vec::with_capacity(steps.len());
        for (i, step) in steps.iter().enumerate() {
            let mut row: Vec<f64> = steps[..=i]
                .iter()
                .map(|o| step.covariance_with(o))
                .collect();
            row[i] += ALONE * ALONE;
            for j in 0..=i {
                let known: f64 = match j == i {
                    true => row[..j].iter().map(|a| a * a).sum(),
                    false => dot_product(&row[..j], &factor[j][..j]),
                };
                row[j] = match j == i {
                    true => (row[j] - known).max(ALONE * ALONE * 1e-3).sqrt(),
                    false => (row[j] - known) / factor[j][j],
                };
            }
            factor.push(row);
        }
        let mut weights = solve_lower_triangular(&factor, ratios);
        for i in (0..weights.len()).rev() {
            weights[i] /= factor[i][i];
            let (rest, own) = weights.split_at_mut(i);
            for (weight, cell) in rest.iter_mut().zip(&factor[i]) {
                *weight -= own[0] * cell;
            }
        }
        let mut known = Self {
            steps,
            factor,
            weights,
            rates: Vec::new(),
            parts: Vec::new(),
        };
        known.parts = known.choose_correction_fractions_by_npu(ratios);
        known
    }

    /// For each NPU class, chooses the fraction of the correction that jobs with unmeasured matrix products get.
    fn choose_correction_fractions_by_npu(&self, ratios: &[f64]) -> Vec<((String, u64), f64)> {
        let inverse = invert_lower_triangular(&self.factor);
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (i, step) in self.steps.iter().enumerate() {
            let same = |group: &&mut Vec<usize>| self.steps[group[0]].has_same_products(step);
            match groups.iter_mut().find(same) {
                Some(group) => group.push(i),
                None => groups.push(vec![i]),
            }
        }
        let mut parts = Vec::new();
        while let Some(first) = groups.first() {
            let npu = self.steps[first[0]].npu.clone();
            let (own, others) = groups
                .into_iter()
                .partition(|group: &Vec<usize>| self.steps[group[0]].npu == npu);
            groups = others;
            let own: Vec<Vec<[f64; 2]>> = own
                .iter()
                .map(|group| self.leave_out(group, &inverse, ratios))
                .collect();
            parts.push((npu, best_correction_fraction(&own)));
        }
        parts
    }

    /// Returns two values for each step of `group`: the logarithm predicted from the steps outside
    /// the group, and the step's own logarithm.
    fn leave_out(&self, group: &[usize], inverse: &[Vec<f64>], ratios: &[f64]) -> Vec<[f64; 2]> {
        // With the covariance K and a = K^-1 y, the prediction of group g is y_g - ((K^-1)_gg)^-1
        // a_g.
        let cell = |i: usize, j: usize| -> f64 { inverse.iter().map(|row| row[i] * row[j]).sum() };
        let rows = group.iter().map(|&i| {
            let cells = group.iter().map(|&j| cell(i, j));
            cells.chain([self.weights[i]]).collect()
        });
        let differences = solve_linear(rows.collect());
        let pairs = group.iter().zip(differences);
        pairs
            .map(|(&i, difference)| [ratios[i] - difference, ratios[i]])
            .collect()
    }

    /// Returns the mean logarithm of the rates of the steps that `wanted` selects; `None` if there are none.
    fn mean_log_rate_of_steps(
        &self,
        wanted: impl Fn(&StepSimilarityProperties) -> bool,
    ) -> Option<f64> {
        let steps = self.steps.iter().zip(&self.rates);
        let picked = steps.filter(|(step, _)| wanted(step));
        let picked: Vec<f64> = picked.map(|(_, rate)| *rate).collect();
        (!picked.is_empty()).then(|| picked.iter().sum::<f64>() / picked.len() as f64)
    }

    /// Corrects the predicted time and interval of `run`.
    fn correct_prediction(
        &self,
        run: &MeasuredRun,
        predicted: &PredictedStepTimeWithInterval,
    ) -> CorrectedRunPrediction {
        let seconds = predicted.makespan.as_seconds();
        let interval = predicted.interval.map(|ends| ends.map(Span::as_seconds));
        let job = StepSimilarityProperties::new(run);
        let is_near =
            |step: &StepSimilarityProperties| step.npu == job.npu && step.format == job.format;
        let rate = self.mean_log_rate_of_steps(is_near);
        let rate = rate.or_else(|| self.mean_log_rate_of_steps(|step| step.npu == job.npu));
        CorrectedRunPrediction {
            one_rate: rate.map(|rate| model_flops(run) / libm::exp(rate)),
            ..self.correct_predicted_time(&job, seconds, interval)
        }
    }

    /// Returns the mean and standard deviation of the logarithm of measured / predicted time for `job`. Also returns
    /// how many steps were measured on its NPU class.
    fn predict_log_ratio(&self, job: &StepSimilarityProperties) -> (f64, f64, usize) {
        let steps = self.steps.iter();
        let covariances: Vec<f64> = steps.map(|step| step.covariance_with(job)).collect();
        let known = solve_lower_triangular(&self.factor, &covariances);
        let variance = job.covariance_with(job) + ALONE * ALONE - dot_product(&known, &known);
        let steps = self.steps.iter().filter(|step| step.npu == job.npu);
        (
            dot_product(&covariances, &self.weights),
            variance.max(ALONE * ALONE).sqrt(),
            steps.count(),
        )
    }

    /// Corrects a predicted time and interval of `job`.
    fn correct_predicted_time(
        &self,
        job: &StepSimilarityProperties,
        seconds: f64,
        interval: Option<[f64; 2]>,
    ) -> CorrectedRunPrediction {
        let (mean, deviation, steps) = self.predict_log_ratio(job);
        let part = match self.steps.iter().any(|step| step.has_same_products(job)) {
            true => 1.0,
            false => {
                let known = self.parts.iter().find(|(npu, _)| *npu == job.npu);
                known.map_or(0.0, |(_, part)| *part)
            }
        };
        if part == 0.0 {
            return CorrectedRunPrediction {
                seconds,
                interval,
                steps,
                one_rate: None,
            };
        }
        let seconds = seconds * libm::exp(part * mean);
        let side = libm::exp(SIDE * deviation);
        CorrectedRunPrediction {
            seconds,
            interval: Some([seconds / side, seconds * side]),
            steps,
            one_rate: None,
        }
    }
}

/// Returns the fraction of the correction whose mean error is smallest. Each entry of `groups` has the predicted and
/// the actual logarithm of each step. Zero if this gains less than one standard error.
fn best_correction_fraction(groups: &[Vec<[f64; 2]>]) -> f64 {
    if groups.len() < LEAST_GROUPS {
        return 1.0;
    }
    let error =
        |part: f64, [predicted, own]: &[f64; 2]| (libm::exp(part * predicted - own) - 1.0).abs();
    let total = |part: f64| -> f64 { groups.iter().flatten().map(|pair| error(part, pair)).sum() };
    let best = PARTS
        .into_iter()
        .min_by(|a, b| total(*a).total_cmp(&total(*b)));
    let best = best.unwrap_or_default();
    let gains: Vec<f64> = (groups.iter())
        .map(|group| {
            let gains = group
                .iter()
                .map(|pair| error(0.0, pair) - error(best, pair));
            gains.sum::<f64>() / group.len() as f64
        })
        .collect();
    let count = gains.len() as f64;
    let gain = gains.iter().sum::<f64>() / count;
    let squares: f64 = gains.iter().map(|own| (own - gain) * (own - gain)).sum();
    match gain < (squares / (count - 1.0) / count).sqrt() {
        true => 0.0,
        false => best,
    }
}

fn dot_product(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Solves equations with a lower triangular matrix.
fn solve_lower_triangular(factor: &[Vec<f64>], right: &[f64]) -> Vec<f64> {
    let mut solution: Vec<f64> = Vec::with_capacity(right.len());
    for (row, value) in factor.iter().zip(right) {
        let known = dot_product(&row[..solution.len()], &solution);
        solution.push((value - known) / row[solution.len()]);
    }
    solution
}

/// Returns the rows of the inverse of a lower triangular matrix.
fn invert_lower_triangular(factor: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let n = factor.len();
    let mut inverse = vec![vec![0.0; n]; n];
    for column in 0..n {
        let mut unit = vec![0.0; n];
        unit[column] = 1.0;
        for (row, value) in inverse
            .iter_mut()
            .zip(solve_lower_triangular(factor, &unit))
        {
            row[column] = value;
        }
    }
    inverse
}

/// Corrects the predictions for `runs` with the measured `steps`. Each step comes with its predicted time in seconds.
pub fn correct_predictions_by_measured_steps(
    runs: &[MeasuredRun],
    predicted: &[PredictedStepTimeWithInterval],
    steps: &[MeasuredRun],
    seconds: &[PredictedStepTimeWithInterval],
) -> Vec<CorrectedRunPrediction> {
    let seconds = seconds.iter().map(|run| run.makespan.as_seconds());
    let known = MeasuredStepCorrectionModel::of_runs(steps.iter().zip(seconds));
    let runs = runs.iter().zip(predicted);
    runs.map(|(run, predicted)| known.correct_prediction(run, predicted))
        .collect()
}

/// Corrects each run's prediction with the runs that have another value of the option `key` (`model`, or an option of
/// the table).
pub fn correct_by_runs_of_other_option_values(
    runs: &[MeasuredRun],
    predicted: &[PredictedStepTimeWithInterval],
    key: &str,
) -> Vec<CorrectedRunPrediction> {
    let values: Vec<&str> = runs
        .iter()
        .map(|run| option_value_of_measured_run(run, key))
        .collect();
    let mut distinct = values.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let mut corrected = vec![None; runs.len()];
    for value in distinct {
        let others = (0..runs.len()).filter(|&i| values[i] != value);
        let known = MeasuredStepCorrectionModel::of_runs(
            others.map(|i| (&runs[i], predicted[i].makespan.as_seconds())),
        );
        for i in (0..runs.len()).filter(|&i| values[i] == value) {
            corrected[i] = Some(known.correct_prediction(&runs[i], &predicted[i]));
        }
    }
    corrected.into_iter().flatten().collect()
}

/// Returns the value of the option `key` for `run`. For a model reduced to fewer layers, returns the name of the whole
/// model.
pub fn option_value_of_measured_run<'r>(run: &'r MeasuredRun, key: &str) -> &'r str {
    match key {
        MODEL => &run.training.model.name,
        key => run.options.get(key).map_or("", String::as_str),
    }
}

/// Returns the FLOPs of a step per NPU, without recomputation. The forward pass has two FLOPs for each multiplication
/// that the causal mask does not remove. The backward pass has twice as many.
fn model_flops(run: &MeasuredRun) -> f64 {
    let (model, plan) = (&run.training.model, &run.training.plan);
    let passes = if plan.has_training() { 3.0 } else { 1.0 };
    let products = model.multiplication_count() - model.causally_skipped_multiplications();
    2.0 * passes * products as f64 * plan.batch as f64 / plan.rank_count() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Variance of the logarithm of a step's measured / predicted time.
    const ALL: f64 =
        NPU * NPU + FORMAT * FORMAT + SIMILAR * SIMILAR + PRODUCTS * PRODUCTS + ALONE * ALONE;

    /// Returns a step whose sizes differ by `sizes` length scales from those of a step with a width of 8192, where the
    /// variable of the width has no effect.
    fn build_step_properties(
        npu: &str,
        format: Dtype,
        mut sizes: [f64; SIZES],
    ) -> StepSimilarityProperties {
        sizes[0] += WIDE.ln() / LENGTHS[0];
        StepSimilarityProperties {
            npu: (npu.to_owned(), 0),
            format,
            sizes,
        }
    }

    #[test]
    fn one_measured_step_corrects_by_covariance_over_variance() {
        // For two variables with variance v and covariance c, the conditional mean is c / v times the given value. The
        // conditional variance is v - c^2 / v.
        let step = build_step_properties("a", Dtype::Bf16, [0.0; SIZES]);
        let known = MeasuredStepCorrectionModel::new(vec![step.clone()], &[0.2]);
        let mut sizes = [100.0; SIZES];
        sizes[0] = 0.0;
        let far = build_step_properties("a", Dtype::Fp8, sizes);
        let (common, all) = (NPU * NPU, ALL);
        let (mean, deviation, steps) = known.predict_log_ratio(&far);
        assert!((mean - 0.2 * common / all).abs() < 1e-12, "{mean}");
        assert!((deviation * deviation - (all - common * common / all)).abs() < 1e-12);
        assert_eq!(steps, 1);
        // Two steps of the same job share all variables except each step's own.
        let (mean, _, _) = known.predict_log_ratio(&step);
        let common = all - ALONE * ALONE;
        assert!((mean - 0.2 * common / all).abs() < 1e-12, "{mean}");
    }

    #[test]
    fn two_measured_steps_give_the_conditional_mean_between_them() {
        // Two steps differ in one size by one length scale, and the predicted job is halfway between them.
        let at = |x: f64| {
            let mut sizes = [0.0; SIZES];
            (sizes[0], sizes[1]) = (-1.0, x);
            build_step_properties("a", Dtype::Bf16, sizes)
        };
        let known = MeasuredStepCorrectionModel::new(vec![at(0.0), at(1.0)], &[0.1, -0.05]);
        // All three models are narrower than 8192 by one length scale, a factor of e^0.7.
        let width = (WIDTH * LENGTHS[0]).powi(2);
        let same = NPU * NPU + FORMAT * FORMAT + width;
        let c = |d: f64| same + SIMILAR * SIMILAR * (-d * d / 2.0_f64).exp();
        let v = ALL + width;
        // Cramer's rule solves [v, c1; c1, v] w = [0.1, -0.05].
        let determinant = v * v - c(1.0) * c(1.0);
        let weights = [
            (0.1 * v + 0.05 * c(1.0)) / determinant,
            (-0.05 * v - 0.1 * c(1.0)) / determinant,
        ];
        let expected = c(0.25) * weights[0] + c(0.75) * weights[1];
        let (mean, _, _) = known.predict_log_ratio(&at(0.25));
        assert!((mean - expected).abs() < 1e-12, "{mean} {expected}");
    }

    #[test]
    fn errors_grow_with_the_distance_from_a_width_of_8192() {
        // The two steps are narrower by a factor of e, and narrower by a factor of e^2; nothing else of them is alike.
        let at = |narrower: f64, other: f64| {
            let mut sizes = [other; SIZES];
            sizes[0] = -narrower / LENGTHS[0];
            build_step_properties(
                "a",
                if other == 0.0 {
                    Dtype::Bf16
                } else {
                    Dtype::Fp8
                },
                sizes,
            )
        };
        let known = MeasuredStepCorrectionModel::new(vec![at(1.0, 0.0)], &[0.2]);
        let (mean, _, _) = known.predict_log_ratio(&at(2.0, 100.0));
        let covariance = NPU * NPU + WIDTH * WIDTH * 2.0;
        let variance = ALL + WIDTH * WIDTH;
        assert!((mean - 0.2 * covariance / variance).abs() < 1e-12, "{mean}");
    }

    #[test]
    fn steps_on_other_npus_correct_nothing() {
        let known = MeasuredStepCorrectionModel::new(
            vec![build_step_properties("a", Dtype::Bf16, [0.0; SIZES])],
            &[0.3],
        );
        let other = build_step_properties("b", Dtype::Bf16, [0.0; SIZES]);
        let corrected = known.correct_predicted_time(&other, 2.0, Some([1.0, 3.0]));
        let same = CorrectedRunPrediction {
            seconds: 2.0,
            interval: Some([1.0, 3.0]),
            steps: 0,
            one_rate: None,
        };
        assert_eq!(corrected, same);
    }

    #[test]
    fn groups_that_are_left_out_are_predicted_as_by_the_others_alone() {
        let at = |x: f64| {
            let mut sizes = [0.0; SIZES];
            (sizes[0], sizes[3]) = (x.floor(), x);
            build_step_properties("a", Dtype::Bf16, sizes)
        };
        let steps = [0.0, 0.5, 1.0, 1.25, 2.0].map(at);
        let ratios = [0.1, 0.12, -0.03, 0.0, 0.2];
        let known = MeasuredStepCorrectionModel::new(steps.to_vec(), &ratios);
        let inverse = invert_lower_triangular(&known.factor);
        let found = known.leave_out(&[2, 3], &inverse, &ratios);
        let others = [0, 1, 4].map(|i| steps[i].clone()).to_vec();
        let others = MeasuredStepCorrectionModel::new(others, &[0.1, 0.12, 0.2]);
        for (i, [predicted, own]) in [2, 3].into_iter().zip(found) {
            let (mean, _, _) = others.predict_log_ratio(&steps[i]);
            assert!((predicted - mean).abs() < 1e-9, "{predicted} {mean}");
            assert_eq!(own, ratios[i]);
        }
    }

    #[test]
    fn groups_that_do_not_predict_one_another_are_not_used() {
        let same = vec![vec![[0.1, 0.11]], vec![[0.1, 0.1]], vec![[0.1, 0.09]]];
        assert_eq!(best_correction_fraction(&same), 1.0);
        let contrary = vec![vec![[0.1, -0.1]], vec![[-0.1, 0.1]], vec![[0.1, -0.12]]];
        assert_eq!(best_correction_fraction(&contrary), 0.0);
        // Three quarters of 0.12 are 0.09, the mean of the actual logarithms.
        let less = vec![vec![[0.12, 0.09]], vec![[0.12, 0.09]], vec![[0.12, 0.09]]];
        assert_eq!(best_correction_fraction(&less), 0.75);
        // A gain in a single group does not show that other groups would gain, so the chosen fraction is zero.
        let one = vec![
            vec![[0.1, 0.3]],
            vec![[0.01, 0.0]],
            vec![[0.01, 0.0]],
            vec![[0.01, 0.0]],
        ];
        assert_eq!(best_correction_fraction(&one), 0.0);
    }
}
