//! Statistics of prediction errors, which score replays and serving.

use serde::Serialize;
use std::collections::BTreeMap;

/// Statistics of prediction errors. The error of a run is predicted / measured - 1, as a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PredictionErrorSummary {
    /// Number of scored runs.
    pub runs: usize,
    /// Mean absolute error (MAPE).
    pub mean: f64,
    /// Median absolute error.
    pub median: f64,
    /// 90th percentile of absolute errors.
    pub p90: f64,
    /// Largest absolute error.
    pub max: f64,
    /// Mean of the signed errors.
    pub bias: f64,
    /// Kendall's tau over all pairs of plans within a group: 1 if every pair is in the right order, and -1 if every
    /// pair is in the wrong order. `None` if no two plans of the same group differ in their measured time.
    pub tau: Option<f64>,
    /// Relative loss from choosing the plan with the shortest predicted time: the measured time of this plan, divided
    /// by the shortest measured time in its group, minus 1. The loss is averaged over all groups with at least two
    /// plans. `None` if no group has two plans.
    pub regret: Option<f64>,
}

/// Returns the value below which a fraction `part` of `values` falls; interpolates between neighbouring values.
/// `values` must be ascending and not empty.
pub fn interpolate_percentile(values: &[f64], part: f64) -> f64 {
    let place = part * (values.len() - 1) as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    values[low] + (values[high] - values[low]) * (place - low as f64)
}

impl PredictionErrorSummary {
    /// Compares `predicted` with the measured values in `runs`, which pairs each value with the index of its group.
    /// `runs` and `predicted` must have the same length, at least 1.
    pub fn of_grouped_times(
        runs: impl Iterator<Item = (usize, f64)> + Clone,
        predicted: &[f64],
    ) -> Self {
        let measured: Vec<f64> = runs.clone().map(|(_, measured)| measured).collect();
        let mut groups: BTreeMap<usize, Vec<(f64, f64)>> = BTreeMap::new();
        for ((group, measured), &predicted) in runs.zip(predicted) {
            groups.entry(group).or_default().push((measured, predicted));
        }
        let groups = groups.into_values().filter(|group| group.len() > 1);
        Self::of_groups(&measured, predicted, &groups.collect::<Vec<_>>())
    }

    /// Compares `predicted` with the `measured` values. Both slices must have the same length, at least 1.
    /// [`Self::tau`] and [`Self::regret`] are computed from `groups`, which are lists of (measured, predicted) pairs.
    pub fn of_groups(measured: &[f64], predicted: &[f64], groups: &[Vec<(f64, f64)>]) -> Self {
        let errors = measured.iter().zip(predicted);
        let errors: Vec<f64> = errors
            .map(|(measured, predicted)| predicted / measured - 1.0)
            .collect();
        let mut sizes: Vec<f64> = errors.iter().map(|e| e.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let count = errors.len() as f64;
        Self {
            runs: errors.len(),
            mean: sizes.iter().sum::<f64>() / count,
            median: interpolate_percentile(&sizes, 0.5),
            p90: interpolate_percentile(&sizes, 0.9),
            max: sizes[sizes.len() - 1],
            bias: errors.iter().sum::<f64>() / count,
            tau: kendall_tau(groups),
            regret: selection_regret(groups),
        }
    }
}

/// Coverage and width of 90 % intervals.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PredictionIntervalSummary {
    /// Fraction of runs whose measured time is inside the interval.
    pub coverage: f64,
    /// Mean half-width of the intervals on a logarithmic scale, divided by the 90th percentile of the absolute
    /// logarithmic error.
    pub width: f64,
}

impl PredictionIntervalSummary {
    /// Compares `predicted` and `intervals` with `measured` values. `measured`, `predicted` and `intervals` must have
    /// the same length, at least 1.
    pub fn of_times(measured: &[f64], predicted: &[f64], intervals: &[[f64; 2]]) -> Self {
        let count = measured.len() as f64;
        let inside =
            |(measured, [low, high]): &(&f64, &[f64; 2])| (*low..=*high).contains(*measured);
        let covered = measured.iter().zip(intervals).filter(inside).count();
        let half = intervals.iter().map(|[low, high]| (high / low).ln() / 2.0);
        let errors = measured.iter().zip(predicted);
        let mut errors: Vec<f64> = errors
            .map(|(measured, predicted)| (predicted / measured).ln().abs())
            .collect();
        errors.sort_by(f64::total_cmp);
        Self {
            coverage: covered as f64 / count,
            width: half.sum::<f64>() / count / interpolate_percentile(&errors, 0.9),
        }
    }
}

fn kendall_tau(groups: &[Vec<(f64, f64)>]) -> Option<f64> {
    let (mut agreement, mut pairs) = (0_i64, 0_i64);
    for group in groups {
        for (i, a) in group.iter().enumerate() {
            for b in &group[i + 1..] {
                let signs = [a.0 - b.0, a.1 - b.1].map(|d| i64::from(d > 0.0) - i64::from(d < 0.0));
                // Runs with equal measured times have no order, so a pair of such runs is skipped.
                if signs[0] != 0 {
                    pairs += 1;
                    agreement += signs[0] * signs[1];
                }
            }
        }
    }
    (pairs > 0).then(|| agreement as f64 / pairs as f64)
}

fn selection_regret(groups: &[Vec<(f64, f64)>]) -> Option<f64> {
    let lost = groups.iter().filter_map(|group| {
        let best = group.iter().map(|run| run.0).min_by(f64::total_cmp)?;
        let chosen = group.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
        Some(chosen.0 / best - 1.0)
    });
    let lost: Vec<f64> = lost.collect();
    (!lost.is_empty()).then(|| lost.iter().sum::<f64>() / lost.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_interpolated() {
        // Indices are 0 to 3. 0.9 x 3 = 2.7 is between the values 3 and 10: 3 + 0.7 x 7 = 7.9.
        let values = [1.0, 2.0, 3.0, 10.0];
        assert_eq!(interpolate_percentile(&values, 0.5), 2.5);
        assert!((interpolate_percentile(&values, 0.9) - 7.9).abs() < 1e-12);
        assert_eq!(interpolate_percentile(&[4.0], 0.9), 4.0);
    }

    #[test]
    fn order_and_choice_are_judged_within_groups() {
        // The times 1, 2, 3 are predicted as 2, 1, 3. Two of three pairs are in the right order and one is not, so tau
        // = (2 - 1) / 3. The second run is predicted to be the fastest, but takes twice as long as the first, so the
        // regret is 1.
        let group = vec![(1.0, 2.0), (2.0, 1.0), (3.0, 3.0)];
        assert_eq!(kendall_tau(std::slice::from_ref(&group)), Some(1.0 / 3.0));
        assert_eq!(selection_regret(std::slice::from_ref(&group)), Some(1.0));
        // A second group, which is in the right order, halves the regret and adds a pair: tau = (2 - 1 + 1) / 4.
        let both = [group, vec![(5.0, 50.0), (6.0, 51.0)]];
        assert_eq!(kendall_tau(&both), Some(0.5));
        assert_eq!(selection_regret(&both), Some(0.5));
        assert_eq!((kendall_tau(&[]), selection_regret(&[])), (None, None));
    }
}
