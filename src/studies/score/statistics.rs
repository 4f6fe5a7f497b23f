//! Summarizes the prediction errors of runs.

use super::MeasuredRun;
use chakram_base::prediction_scores::{PredictionErrorSummary, PredictionIntervalSummary};
use std::collections::BTreeMap;

/// Compares `predicted` seconds with the measured times of `runs`. `predicted` and `runs` are equally long, and not
/// empty.
pub(super) fn summarize_errors(runs: &[&MeasuredRun], predicted: &[f64]) -> PredictionErrorSummary {
    let measured: Vec<f64> = runs.iter().map(|run| run.measured).collect();
    PredictionErrorSummary::of_groups(
        &measured,
        predicted,
        &mean_plan_times_by_group(runs, predicted),
    )
}

/// Compares `predicted` seconds and `intervals` with the measured times of `runs`. All lists are equally long, and not
/// empty.
pub(super) fn summarize_intervals(
    runs: &[&MeasuredRun],
    predicted: &[f64],
    intervals: &[[f64; 2]],
) -> PredictionIntervalSummary {
    let measured: Vec<f64> = runs.iter().map(|run| run.measured).collect();
    PredictionIntervalSummary::of_times(&measured, predicted, intervals)
}

/// Returns, for each group with several plans, each plan's mean measured and mean predicted time. Runs with equal
/// options are repeated measurements of one plan, so ranking them is meaningless.
fn mean_plan_times_by_group(runs: &[&MeasuredRun], predicted: &[f64]) -> Vec<Vec<(f64, f64)>> {
    let mut groups: BTreeMap<usize, BTreeMap<_, Vec<(f64, f64)>>> = BTreeMap::new();
    for (run, &predicted) in runs.iter().zip(predicted) {
        let plans = groups.entry(run.group).or_default();
        let repeats = plans.entry((&run.file, &run.options)).or_default();
        repeats.push((run.measured, predicted));
    }
    let mean = |repeats: Vec<(f64, f64)>| {
        let count = repeats.len() as f64;
        let sum = (repeats.iter()).fold((0.0, 0.0), |sum, own| (sum.0 + own.0, sum.1 + own.1));
        (sum.0 / count, sum.1 / count)
    };
    let groups = groups.into_values().filter(|plans| plans.len() > 1);
    groups
        .map(|plans| plans.into_values().map(mean).collect())
        .collect()
}
