//! Judges from a run whether enough requests meet their limits. Requests that arrive near each other meet the same
//! queue, so they are not independent: the interval of their share is estimated from the shares of batches.

use super::super::statistics::{NORMAL_95, student_quantile};
use serde::{Deserialize, Serialize};

/// Verdict on whether enough requests met their limits. It is based on the 95 % interval of the fraction that did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitAttainmentVerdict {
    /// The whole interval is above the required fraction, so the limits are met.
    Met,
    /// The whole interval is below the required fraction, so the limits are missed.
    Missed,
    /// The interval contains the required fraction, so more requests are needed.
    Open,
}

impl LimitAttainmentVerdict {
    /// Returns the verdict's name.
    pub fn name_of_verdict(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::Open => "open",
        }
    }

    /// Returns the verdict on whether the fraction `attain` of requests meets their limits. Uses Wilson's interval for
    /// as many independent requests as tell as much as these. No interval lies above 1, so with `attain` = 1, all
    /// requests of the run must meet their limits.
    pub fn judge_met_fraction(requests: &MetCountsByArrival, attain: f64) -> Self {
        let [met, all] = requests.sum_met_and_all_requests();
        if all == 0 {
            return Self::Open;
        }
        if attain >= 1.0 {
            return if met == all { Self::Met } else { Self::Missed };
        }
        let (n, z) = (requests.independent_request_count(), NORMAL_95);
        let share = met as f64 / all as f64;
        let middle = share + z * z / (2.0 * n);
        let half = z * (share * (1.0 - share) / n + z * z / (4.0 * n * n)).sqrt();
        let of = |value: f64| value / (1.0 + z * z / n);
        match (of(middle - half) >= attain, of(middle + half) < attain) {
            (true, _) => Self::Met,
            (_, true) => Self::Missed,
            _ => Self::Open,
        }
    }
}

/// Numbers of requests that met their limits, in batches of requests that arrived in succession. The batches become
/// larger as the run continues, so the memory does not grow with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetCountsByArrival {
    /// Number of requests in a batch.
    width: u64,
    /// For each batch, the number of requests that met their limits, and the number of requests.
    batches: Vec<[u64; 2]>,
}

/// Maximum number of batches. There are at least half as many, once there are enough requests.
const MOST_BATCHES: usize = 16;

/// Minimum number of batches from which the variance is estimated.
const LEAST_BATCHES: usize = MOST_BATCHES / 2;

impl Default for MetCountsByArrival {
    fn default() -> Self {
        Self {
            width: 1,
            batches: Vec::new(),
        }
    }
}

impl MetCountsByArrival {
    /// Counts a request. `number` is its index among the counted requests, in order of arrival.
    pub fn count_request(&mut self, number: u64, is_met: bool) {
        while number / self.width >= MOST_BATCHES as u64 {
            self.width *= 2;
            self.batches = self.batches.chunks(2).map(sum_batches).collect();
        }
        let batch = (number / self.width) as usize;
        if self.batches.len() <= batch {
            self.batches.resize(batch + 1, [0, 0]);
        }
        self.batches[batch][0] += u64::from(is_met);
        self.batches[batch][1] += 1;
    }

    /// Returns how many requests met their limits, and how many there are.
    pub fn sum_met_and_all_requests(&self) -> [u64; 2] {
        sum_batches(&self.batches)
    }

    /// Returns how many independent requests would determine their share as precisely as these requests do. If all
    /// requests met their limits, or none did, or if the requests are too few for batches, returns their number.
    ///
    /// The shares of `b` batches of `w` independent requests have the variance `p (1 - p) / w`. If the variance of the
    /// batches is larger by a factor, the mean of all requests is less certain by that factor. Student's quantile
    /// allows for the small number of batches. Source: batch means, for example Law, Simulation Modeling and Analysis,
    /// section 9.5.3.
    pub fn independent_request_count(&self) -> f64 {
        let [met, all] = self.sum_met_and_all_requests();
        let full = self
            .batches
            .iter()
            .filter(|[_, all]| *all == self.width)
            .map(|[met, _]| *met as f64 / self.width as f64);
        let shares: Vec<f64> = full.collect();
        let share = met as f64 / all.max(1) as f64;
        let independent = share * (1.0 - share) / self.width as f64;
        if shares.len() < LEAST_BATCHES || independent == 0.0 {
            return all as f64;
        }
        let mean = shares.iter().sum::<f64>() / shares.len() as f64;
        let squares: f64 = shares.iter().map(|share| (share - mean).powi(2)).sum();
        let quantile = student_quantile(NORMAL_95, shares.len() - 1);
        let found = squares / (shares.len() - 1) as f64 * (quantile / NORMAL_95).powi(2);
        all as f64 / (found / independent).max(1.0)
    }
}

/// Returns the sums of the batches' counts.
fn sum_batches(batches: &[[u64; 2]]) -> [u64; 2] {
    batches
        .iter()
        .fold([0, 0], |sum, batch| [sum[0] + batch[0], sum[1] + batch[1]])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the counts of `all` requests, of which those met their limits for which `is_met` returns true.
    fn count_requests(all: u64, is_met: impl Fn(u64) -> bool) -> MetCountsByArrival {
        let mut counts = MetCountsByArrival::default();
        (0..all).for_each(|number| counts.count_request(number, is_met(number)));
        counts
    }

    #[test]
    fn all_requests_can_be_required() {
        let judge = |met: u64| {
            let counts = count_requests(1000, |number| number < met);
            LimitAttainmentVerdict::judge_met_fraction(&counts, 1.0)
        };
        assert_eq!(judge(1000), LimitAttainmentVerdict::Met);
        assert_eq!(judge(999), LimitAttainmentVerdict::Missed);
    }

    /// If 995 of 1,000 independent requests met their limits, the interval is 98.8 to 99.8 %. If all 1,000 did, the
    /// interval starts at 99.6 %. The requests that miss their limits are spread evenly.
    #[test]
    fn verdicts_follow_intervals() {
        for (missed, attain, expected) in [
            (5, 0.99, LimitAttainmentVerdict::Open),
            (0, 0.99, LimitAttainmentVerdict::Met),
            (0, 0.997, LimitAttainmentVerdict::Open),
            (100, 0.99, LimitAttainmentVerdict::Missed),
        ] {
            let counts = count_requests(1000, |number| {
                (number + 1) * missed / 1000 == number * missed / 1000
            });
            assert_eq!(counts.sum_met_and_all_requests(), [1000 - missed, 1000]);
            let found = LimitAttainmentVerdict::judge_met_fraction(&counts, attain);
            assert_eq!(found, expected, "{missed} missed, {attain} required");
        }
        let none = MetCountsByArrival::default();
        let found = LimitAttainmentVerdict::judge_met_fraction(&none, 0.5);
        assert_eq!(found, LimitAttainmentVerdict::Open);
    }

    /// 1,024 requests are in 16 batches of 64. All 64 requests of the first batch miss their limits, so the batches'
    /// shares are 0 once and 1 fifteen times. Their mean is 15/16, the sum of squares (15/16)^2 + 15 (1/16)^2 = 15/16,
    /// and the variance 1/16. Batches of independent requests would have the variance 15/16 x 1/16 / 64. The factor is
    /// 64 x 16/15, times the square of the ratio of both quantiles (2.131 / 1.96).
    #[test]
    fn requests_that_miss_their_limits_together_tell_less() {
        let together = count_requests(1024, |number| number >= 64);
        let factor = 64.0 * 16.0 / 15.0 * (student_quantile(NORMAL_95, 15) / NORMAL_95).powi(2);
        let found = together.independent_request_count();
        assert!((found / (1024.0 / factor) - 1.0).abs() < 1e-12, "{found}");
        assert_eq!(
            LimitAttainmentVerdict::judge_met_fraction(&together, 0.9),
            LimitAttainmentVerdict::Open
        );
        // The same number of requests, spread evenly: the batches agree, and the requests count as independent.
        let spread = count_requests(1024, |number| number % 16 != 0);
        assert_eq!(
            spread.sum_met_and_all_requests(),
            together.sum_met_and_all_requests()
        );
        assert_eq!(spread.independent_request_count(), 1024.0);
        assert_eq!(
            LimitAttainmentVerdict::judge_met_fraction(&spread, 0.9),
            LimitAttainmentVerdict::Met
        );
    }
}
