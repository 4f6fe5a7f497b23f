//! Computes statistics of a run in bounded memory: percentiles, confidence intervals from batch
//! means, and levels over time.

use chakram_base::units::{Span, Time};
use serde::{Deserialize, Serialize};

/// Maximum number of samples stored exactly.
const EXACT: usize = 1 << 16;
/// Each power of two is divided into 2^`FINE` bins. The relative error of a sketch is at most 2^-8
/// = 0.4 %.
const FINE: u32 = 8;
/// At this number of batches, neighbouring batches are merged.
const MOST_BATCHES: usize = 64;
/// Minimum number of batches for a confidence interval.
const LEAST_BATCHES: usize = 16;
/// The percentiles that reports contain.
pub const PERCENTS: [f64; 4] = [50.0, 90.0, 95.0, 99.0];

/// Histogram of durations. Durations below 2^8 ps are exact; longer durations have a relative error
/// of at most 2^-8.
#[derive(Clone, Debug, Default)]
pub(super) struct DurationHistogram {
    /// For each power of two, the number of samples in each of its bins; `None` if all counts are
    /// zero.
    octaves: Vec<Option<Box<[u32; 1 << FINE]>>>,
    count: u64,
}

impl DurationHistogram {
    /// Returns the index of the power of two that a duration falls into, and the index of its bin within this power.
    fn power_of_two_and_bin_of_duration(span: Span) -> (usize, usize) {
        let bits = u64::BITS - span.0.leading_zeros();
        match bits.checked_sub(FINE + 1) {
            None => (0, span.0 as usize & ((1 << FINE) - 1)),
            Some(shift) => {
                let part = (span.0 >> shift) as usize & ((1 << FINE) - 1);
                (shift as usize + 1, part)
            }
        }
    }

    /// Returns the middle of bin `part` in the power of two `octave`.
    fn middle_of_bin(octave: usize, part: usize) -> u64 {
        match octave.checked_sub(1) {
            None => part as u64,
            Some(shift) => {
                let least = ((1 << FINE) + part as u64) << shift;
                least + (1_u64 << shift) / 2
            }
        }
    }

    fn add_sample(&mut self, span: Span) {
        self.add_repeated_sample(span, 1);
    }

    /// Adds `times` samples of the same duration.
    pub fn add_repeated_sample(&mut self, span: Span, times: u32) {
        let (octave, part) = Self::power_of_two_and_bin_of_duration(span);
        if self.octaves.len() <= octave {
            self.octaves.resize_with(octave + 1, || None);
        }
        let counts = self.octaves[octave].get_or_insert_with(|| Box::new([0; 1 << FINE]));
        counts[part] = counts[part].saturating_add(times);
        self.count += u64::from(times);
    }

    fn merge_sketch(&mut self, other: &Self) {
        if self.octaves.len() < other.octaves.len() {
            self.octaves.resize_with(other.octaves.len(), || None);
        }
        for (into, from) in self.octaves.iter_mut().zip(&other.octaves) {
            let Some(from) = from else { continue };
            let into = into.get_or_insert_with(|| Box::new([0; 1 << FINE]));
            for (into, from) in into.iter_mut().zip(from.iter()) {
                *into = into.saturating_add(*from);
            }
        }
        self.count += other.count;
    }

    /// Returns the approximate duration that `percent` percent of all samples do not exceed; `None` without samples.
    pub fn approximate_percentile(&self, percent: f64) -> Option<Span> {
        let rank = (self.count.checked_sub(1)? as f64 * percent / 100.0).round() as u64;
        let mut below = 0;
        for (octave, counts) in self.octaves.iter().enumerate() {
            let Some(counts) = counts else { continue };
            for (part, &count) in counts.iter().enumerate() {
                below += u64::from(count);
                if below > rank {
                    return Some(Span(Self::middle_of_bin(octave, part)));
                }
            }
        }
        None
    }
}

/// Statistics of a batch of consecutive samples.
#[derive(Clone, Debug, Default)]
struct SampleSumAndHistogram {
    sum_ps: u128,
    sketch: DurationHistogram,
}

impl SampleSumAndHistogram {
    fn merge_batch(&mut self, other: &Self) {
        self.sum_ps += other.sum_ps;
        self.sketch.merge_sketch(&other.sketch);
    }

    fn mean_of_samples(&self) -> f64 {
        self.sum_ps as f64 / self.sketch.count.max(1) as f64
    }
}

/// A value with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct IntervalEstimate {
    /// The estimate itself, such as a mean or a percentile.
    #[serde(rename = "value_ps")]
    pub value: Span,
    /// Half the width of the 95 % confidence interval, which is computed from batch means. Absent
    /// if the run is too short.
    #[serde(rename = "plus_minus_ps")]
    pub plus_minus: Option<Span>,
}

/// Durations of one kind, such as a model's serve times, in the order in which they became known.
#[derive(Clone, Debug, Default)]
pub struct DurationSamples {
    /// All samples, as long as there are at most [`EXACT`].
    exact: Vec<Span>,
    all: SampleSumAndHistogram,
    batches: Vec<SampleSumAndHistogram>,
    /// Number of samples in a batch; a power of two.
    batch_size: u64,
    current: SampleSumAndHistogram,
}

impl DurationSamples {
    /// Adds a sample.
    pub fn add_sample(&mut self, span: Span) {
        if self.all.sketch.count < EXACT as u64 {
            self.exact.push(span);
        } else if !self.exact.is_empty() {
            self.exact = Vec::new();
        }
        self.batch_size = self.batch_size.max(1);
        for batch in [&mut self.all, &mut self.current] {
            batch.sum_ps += u128::from(span.0);
            batch.sketch.add_sample(span);
        }
        if self.current.sketch.count == self.batch_size {
            self.batches.push(std::mem::take(&mut self.current));
        }
        if self.batches.len() == MOST_BATCHES {
            self.batches = merge_batch_pairs(&self.batches);
            self.batch_size *= 2;
        }
    }

    /// Returns the number of samples.
    pub fn sample_count(&self) -> u64 {
        self.all.sketch.count
    }

    /// Returns the sum of all samples, in picoseconds.
    pub fn sum_ps(&self) -> u128 {
        self.all.sum_ps
    }

    /// Returns the mean with its confidence interval; `None` without samples.
    pub fn mean_estimate(&self) -> Option<IntervalEstimate> {
        let count = u128::from(self.sample_count());
        let value = (self.sum_ps() + count / 2).checked_div(count)?;
        Some(IntervalEstimate {
            value: Span(value as u64),
            plus_minus: self.interval_half_width(SampleSumAndHistogram::mean_of_samples),
        })
    }

    /// Returns a percentile with its confidence interval; `None` without samples. It is interpolated linearly between
    /// two samples (position (n - 1) q). With more than 65,536 samples, it is accurate to one part in 256.
    pub fn percentile_estimate(&self, percent: f64) -> Option<IntervalEstimate> {
        let value = if self.exact.len() as u64 == self.sample_count() {
            interpolate_percentile(&mut self.exact.clone(), percent)?
        } else {
            self.all.sketch.approximate_percentile(percent)?
        };
        let of = |batch: &SampleSumAndHistogram| {
            let value = batch.sketch.approximate_percentile(percent);
            value.unwrap_or_default().0 as f64
        };
        // Batches of few samples cannot determine high percentiles, so compute no interval from them.
        let rare = 1.0 / (1.0 - percent / 100.0);
        let plus_minus = self.interval_half_width(of);
        Some(IntervalEstimate {
            value,
            plus_minus: plus_minus.filter(|_| self.batch_size as f64 >= 2.0 * rare),
        })
    }

    /// Returns half the width of the 95 % confidence interval for the mean of `value` over independent batches; `None`
    /// if there are too few.
    fn interval_half_width(&self, value: impl Fn(&SampleSumAndHistogram) -> f64) -> Option<Span> {
        let mut batches = self.batches.clone();
        let mut size = self.batch_size;
        while batches.len() >= LEAST_BATCHES {
            let values: Vec<f64> = batches.iter().map(&value).collect();
            let count = values.len() as f64;
            let mean = values.iter().sum::<f64>() / count;
            let off = |v: &f64| v - mean;
            let squares: f64 = values.iter().map(|v| off(v) * off(v)).sum();
            let neighbours: f64 = values.windows(2).map(|w| off(&w[0]) * off(&w[1])).sum();
            // If neighbouring batches are correlated, they are too short to be independent, so merge them in pairs. For
            // n independent batches, the measured correlation has a standard deviation of 1 / sqrt(n).
            let correlated = squares > 0.0 && neighbours / squares > 1.65 / count.sqrt();
            if !correlated && size >= 8 {
                let error = (squares / (count - 1.0) / count).sqrt();
                return Some(Span(
                    (student_quantile(NORMAL_95, values.len() - 1) * error).round() as u64,
                ));
            }
            batches = merge_batch_pairs(&batches);
            size *= 2;
        }
        None
    }
}

/// Merges neighbouring batches in pairs. If the number of batches is odd, drops the last one.
fn merge_batch_pairs(batches: &[SampleSumAndHistogram]) -> Vec<SampleSumAndHistogram> {
    let pairs = batches.chunks_exact(2);
    let joined = pairs.map(|pair| {
        let mut both = pair[0].clone();
        both.merge_batch(&pair[1]);
        both
    });
    joined.collect()
}

/// Returns the value at position (n - 1) q of the sorted samples, interpolated linearly. Reorders the samples in place.
fn interpolate_percentile(samples: &mut [Span], percent: f64) -> Option<Span> {
    let position = samples.len().checked_sub(1)? as f64 * percent / 100.0;
    let below = position.floor() as usize;
    let (_, a, above) = samples.select_nth_unstable(below);
    let (a, b) = (*a, above.iter().copied().min().unwrap_or(*a));
    let part = position - below as f64;
    Some(Span(a.0 + ((b.0 - a.0) as f64 * part).round() as u64))
}

/// 97.5 % quantile of the normal distribution, for a two-sided interval of 95 %.
pub(super) const NORMAL_95: f64 = 1.959_964;
/// 95 % quantile of the normal distribution, for a two-sided interval of 90 %.
pub(super) const NORMAL_90: f64 = 1.644_854;

/// Returns the quantile of Student's t-distribution that corresponds to the quantile `z` of the normal distribution. It
/// is the sum of `z` and two terms of the expansion in 1 / degrees (Abramowitz and Stegun, 26.7.5). It is accurate to
/// 0.2 % for 15 or more degrees of freedom, and to 6 % for two.
pub(super) fn student_quantile(z: f64, degrees: usize) -> f64 {
    let n = degrees.max(1) as f64;
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    z + first / n + second / (n * n)
}

/// Records an integer over time, summarized in intervals of equal length. When there are too many intervals, their
/// length doubles.
#[derive(Clone, Debug)]
pub struct CountOverTimeRecorder {
    level: u64,
    since: Time,
    /// Integral of the level over time so far, in level × ps.
    area: u128,
    most: u64,
    /// Length of an interval.
    width: Span,
    /// For each interval, the integral of the level and the maximum level.
    intervals: Vec<(u128, u64)>,
    /// Index and end of the interval that contains the last change.
    current: (usize, u64),
}

/// Maximum number of intervals.
const MOST_INTERVALS: u64 = 256;

impl Default for CountOverTimeRecorder {
    fn default() -> Self {
        Self {
            level: 0,
            since: Time::ZERO,
            area: 0,
            most: 0,
            width: Span(1 << 20),
            intervals: Vec::new(),
            current: (0, 0),
        }
    }
}

/// Summary of a level over time, for reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CountOverTimeSummary {
    /// Mean level in the window.
    pub mean: f64,
    /// Highest level in the window.
    pub most: u64,
    /// Length of the intervals of `means`.
    pub interval_ps: Span,
    /// Mean level in each interval of the window.
    pub means: Vec<f64>,
}

impl CountOverTimeRecorder {
    /// Returns the current level.
    pub fn current_level(&self) -> u64 {
        self.level
    }

    /// Returns the time of the last change.
    pub fn last_change_time(&self) -> Time {
        self.since
    }

    /// Returns the integral of the level until `now`, in level × ps.
    pub fn level_integral_until(&self, now: Time) -> u128 {
        self.area + u128::from(self.level) * u128::from(now.since(self.since).0)
    }

    /// Changes the level by `up` at `now`; `up` may be negative.
    pub fn change_level(&mut self, now: Time, up: i64) {
        self.advance_curve_to(now);
        self.level = self.level.saturating_add_signed(up);
        self.most = self.most.max(self.level);
    }

    fn advance_curve_to(&mut self, now: Time) {
        let area = u128::from(self.level) * u128::from(now.since(self.since).0);
        self.area += area;
        // Most changes fall into the same interval as the previous change, so checking this interval first avoids the
        // division.
        if now.0 < self.current.1
            && let Some((sum, most)) = self.intervals.get_mut(self.current.0)
        {
            if self.since < now {
                *sum += area;
                *most = (*most).max(self.level);
            }
            self.since = now;
            return;
        }
        while now.0 / self.width.0 >= MOST_INTERVALS {
            self.width = self.width.times(2);
            self.current = (0, 0);
            let pairs = self.intervals.chunks(2);
            self.intervals = pairs
                .map(|pair| {
                    let area = pair.iter().map(|(area, _)| area).sum();
                    let most = pair.iter().map(|(_, most)| *most).max();
                    (area, most.unwrap_or(0))
                })
                .collect();
        }
        let mut at = self.since.0;
        while at < now.0 {
            let interval = at / self.width.0;
            // The last interval may end beyond the largest time.
            let end = (interval + 1).saturating_mul(self.width.0);
            let until = end.min(now.0);
            let interval = interval as usize;
            self.current = (interval, end);
            if self.intervals.len() <= interval {
                self.intervals.resize(interval + 1, (0, 0));
            }
            let (area, most) = &mut self.intervals[interval];
            *area += u128::from(self.level) * u128::from(until - at);
            *most = (*most).max(self.level);
            at = until;
        }
        self.since = now;
    }

    /// Returns the summary of the level from 0 until `end`.
    pub fn summarize_level_until(mut self, end: Time) -> CountOverTimeSummary {
        self.advance_curve_to(end);
        let (width, intervals) = (self.width.0, self.intervals.len() as u64);
        let length = |i: u64| (end.0 - i * width).min(width).max(1);
        let means = (0..intervals).zip(&self.intervals);
        CountOverTimeSummary {
            mean: self.area as f64 / end.0.max(1) as f64,
            most: self.most,
            interval_ps: self.width,
            means: means
                .map(|(i, (area, _))| *area as f64 / length(i) as f64)
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{RandomPurpose, RandomStream};

    #[test]
    fn percentiles_are_those_of_sorted_samples() {
        let mut samples = DurationSamples::default();
        for n in (1..=101).rev() {
            samples.add_sample(Span(n * 1000));
        }
        // With 101 samples, the position is 100 q, so p95 is the 96th sample.
        let at = |percent| samples.percentile_estimate(percent).unwrap().value.0;
        assert_eq!([50.0, 95.0, 99.0].map(at), [51_000, 96_000, 100_000]);
        assert_eq!(at(99.5), 100_500);
        assert_eq!(samples.mean_estimate().unwrap().value, Span(51_000));
        assert_eq!(DurationSamples::default().percentile_estimate(50.0), None);
    }

    #[test]
    fn approximate_percentiles_are_near_exact_ones() {
        let mut samples = DurationSamples::default();
        let mut sorted = Vec::new();
        let mut random = RandomStream::new(3, RandomPurpose::Service);
        for _ in 0..100_000 {
            let span = Span(random.next_exponential(1e9) as u64);
            samples.add_sample(span);
            sorted.push(span);
        }
        sorted.sort_unstable();
        for percent in PERCENTS {
            let exact = interpolate_percentile(&mut sorted, percent).unwrap().0 as f64;
            let found = samples.percentile_estimate(percent).unwrap();
            assert!(
                (found.value.0 as f64 / exact - 1.0).abs() < 1.0 / 256.0,
                "{percent}"
            );
            // The confidence interval of independent samples contains the true percentile, which is
            // -ln(1 - q) times the mean.
            let truth = -(1.0 - percent / 100.0_f64).ln() * 1e9;
            let off = (found.value.0 as f64 - truth).abs();
            assert!(off < 2.0 * found.plus_minus.unwrap().0 as f64, "{percent}");
        }
        assert_eq!(samples.exact.len(), 0);
    }

    #[test]
    fn confidence_intervals_hold_the_mean_and_need_enough_samples() {
        // 4096 uniform samples from 0 to 2e6 have a standard deviation of 2e6 / sqrt(12). Half the width of the mean's
        // confidence interval is 2.0 times this / sqrt(4096) = 18,000. Nineteen of twenty such intervals contain the
        // true mean.
        let mut holds = 0;
        for seed in 0..40 {
            let mut random = RandomStream::new(seed, RandomPurpose::Service);
            let mut samples = DurationSamples::default();
            for _ in 0..4096 {
                samples.add_sample(Span((random.next_unit() * 2e6) as u64));
            }
            let mean = samples.mean_estimate().unwrap();
            let half = mean.plus_minus.unwrap().0;
            assert!((12_000..27_000).contains(&half), "{half}");
            holds += u32::from(mean.value.0.abs_diff(1_000_000) <= half);
        }
        assert!((34..=40).contains(&holds), "{holds} of 40");
        let mut few = DurationSamples::default();
        (0..50).for_each(|n| few.add_sample(Span(n)));
        assert_eq!(few.mean_estimate().unwrap().plus_minus, None);
        // Growing values have no steady state, so there is no confidence interval.
        let mut growing = DurationSamples::default();
        (0..100_000).for_each(|n| growing.add_sample(Span(n)));
        assert_eq!(growing.mean_estimate().unwrap().plus_minus, None);
    }

    #[test]
    fn student_quantiles_match_published_tables() {
        for (degrees, quantile) in [(15, 2.1314), (20, 2.0860), (31, 2.0395), (63, 1.9983)] {
            assert!(
                (student_quantile(NORMAL_95, degrees) / quantile - 1.0).abs() < 0.002,
                "{degrees}"
            );
        }
    }

    #[test]
    fn levels_may_last_until_the_largest_time() {
        let mut curve = CountOverTimeRecorder::default();
        curve.change_level(Time(0), 1);
        curve.change_level(Time(u64::MAX), -1);
        assert_eq!(
            curve.level_integral_until(Time(u64::MAX)),
            u128::from(u64::MAX)
        );
    }

    #[test]
    fn level_summary_keeps_the_integral() {
        let mut curve = CountOverTimeRecorder::default();
        // The level is 2 from 10 to 30 us, then 1 until 2 s, then 0 until 4 s. The integrals over both intervals are
        // therefore 40 us and 1,999,970 us.
        curve.change_level(Time(10_000_000), 2);
        curve.change_level(Time(30_000_000), -1);
        curve.change_level(Time(2_000_000_000_000), -1);
        assert_eq!(
            curve.level_integral_until(Time(4_000_000_000_000)),
            2_000_010_000_000
        );
        let summary = curve.summarize_level_until(Time(4_000_000_000_000));
        assert_eq!(summary.most, 2);
        assert!((summary.mean - 2_000_010.0 / 4_000_000.0).abs() < 1e-9);
        assert!(summary.means.len() <= 256 && summary.means.len() >= 100);
    }
}
