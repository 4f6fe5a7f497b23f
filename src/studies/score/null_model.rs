//! The null model predicts a step's time from its FLOPs and a rate that is fitted to the runs in the other folds.

use super::MeasuredRun;
use chakram_workloads::generate::plan::RecomputePolicy;

/// Returns the FLOPs of a step per NPU: two per multiplication in the forward pass, and twice as many in the backward
/// pass. With recomputed blocks, the forward pass counts twice.
fn flops_per_npu(run: &MeasuredRun) -> f64 {
    let plan = &run.training.plan;
    let passes = match (plan.has_training(), plan.recompute) {
        (false, _) => 1.0,
        (true, RecomputePolicy::Full) => 4.0,
        (true, _) => 3.0,
    };
    let multiplications = run.training.model.multiplication_count() as f64;
    2.0 * passes * multiplications * plan.batch as f64 / plan.rank_count() as f64
}

/// Returns the time in seconds that the null model predicts for each run. The rate is the median over the other folds.
/// With only one fold, it is the median over all other runs.
pub fn predict_times_by_one_flop_rate(runs: &[MeasuredRun]) -> Vec<f64> {
    let rates: Vec<f64> = runs
        .iter()
        .map(|run| flops_per_npu(run) / run.measured)
        .collect();
    let folds = runs
        .iter()
        .map(|run| run.fold)
        .max()
        .map_or(0, |last| last + 1);
    let rate_without = |skip: &dyn Fn(usize) -> bool| {
        let mut others: Vec<f64> = (0..runs.len())
            .filter(|&i| !skip(i))
            .map(|i| rates[i])
            .collect();
        others.sort_by(f64::total_cmp);
        others.get(others.len() / 2).copied()
    };
    let by_fold: Vec<Option<f64>> = (0..folds)
        .map(|fold| rate_without(&|i| runs[i].fold == fold))
        .collect();
    let seconds = runs.iter().enumerate().map(|(i, run)| {
        let rate = by_fold[run.fold].or_else(|| rate_without(&|other| other == i));
        flops_per_npu(run) / rate.unwrap_or(rates[i])
    });
    seconds.collect()
}
