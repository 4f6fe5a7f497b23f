//! Generates a scenario's random numbers. A mixing function computes each number from a counter, so the numbers are the
//! same on every machine.

use chakram_base::random::{GAMMA, mix_bits, split_mix};

/// Purposes for which random numbers are drawn. Each purpose has its own sequence, so that additional draws for one
/// purpose do not change the numbers for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum RandomPurpose {
    /// Gaps between arrivals.
    Gaps = 1,
    /// Choice of the model that a request asks for.
    Mix = 2,
    /// Random service times, with one sequence per request.
    Service = 3,
    /// Skipped tasks, with one sequence per request.
    Sparsity = 4,
    /// Thinking times of users.
    Think = 5,
    /// Numbers of prompt and answer tokens, with one sequence per request.
    Lengths = 6,
}

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub struct RandomStream(u64);

impl RandomStream {
    /// Creates the sequence for one purpose and a seed.
    pub fn new(seed: u64, purpose: RandomPurpose) -> Self {
        Self(mix_bits(
            mix_bits(seed).wrapping_add((purpose as u64).wrapping_mul(GAMMA)),
        ))
    }

    /// Creates the sequence of a single item, such as a request. Calls with the same item return the same sequence.
    pub fn of_item(seed: u64, purpose: RandomPurpose, item: u64) -> Self {
        let base = Self::new(seed, purpose).0;
        Self(mix_bits(base ^ mix_bits(item.wrapping_mul(GAMMA))))
    }

    /// Returns the next 64 bits.
    pub fn next_bits(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// Returns the next number in [0, 1).
    pub fn next_unit(&mut self) -> f64 {
        (self.next_bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns the next number from an exponential distribution with the mean `mean`.
    pub fn next_exponential(&mut self, mean: f64) -> f64 {
        // libm's logarithm is the same on every machine. Its argument is never 0, because `next_unit` is below 1.
        -mean * libm::log(1.0 - self.next_unit())
    }

    /// Returns the next number from a log-normal distribution with the mean `mean`; `deviation` is the standard
    /// deviation of the logarithm.
    pub fn next_log_normal(&mut self, mean: f64, deviation: f64) -> f64 {
        // Box-Muller transform.
        let (u, v) = (1.0 - self.next_unit(), self.next_unit());
        let turn = libm::cos(2.0 * std::f64::consts::PI * v);
        log_normal_value_at_deviations(mean, deviation, (-2.0 * libm::log(u)).sqrt() * turn)
    }

    /// Draws an index into `sums` at random. `sums` contains the running sums of the indices' weights. An index's
    /// probability is proportional to its weight. The last sum must be above 0.
    pub fn pick_weighted_index(&mut self, sums: &[f64]) -> usize {
        let total = sums.last().copied().unwrap_or(0.0);
        let at = self.next_unit() * total;
        sums.partition_point(|&sum| sum <= at).min(sums.len() - 1)
    }
}

/// Returns the value of a log-normal distribution at `normal` standard deviations above the median. The mean of exp(m +
/// s z) is exp(m + s^2 / 2), which yields the median.
pub fn log_normal_value_at_deviations(mean: f64, deviation: f64, normal: f64) -> f64 {
    let middle = libm::log(mean) - deviation * deviation / 2.0;
    libm::exp(middle + deviation * normal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_numbers_match_splitmix_reference() {
        // These are the first numbers that SplitMix64's reference implementation generates from the
        // state 1234567.
        let mut stream = RandomStream(1_234_567);
        let found: Vec<u64> = (0..3).map(|_| stream.next_bits()).collect();
        assert_eq!(
            found,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn draws_match_requested_mean_and_weights() {
        // The mean of 10^5 draws from an exponential distribution has a relative standard deviation
        // of 0.3 %. A fraction of one third, estimated from 10^5 draws, has a relative standard
        // deviation of 0.4 %.
        let mut stream = RandomStream::new(7, RandomPurpose::Gaps);
        let sum: f64 = (0..100_000).map(|_| stream.next_exponential(2.5)).sum();
        assert!((sum / 100_000.0 / 2.5 - 1.0).abs() < 0.01, "{sum}");
        let mut counts = [0_u32; 3];
        for _ in 0..100_000 {
            counts[stream.pick_weighted_index(&[1.0, 2.0, 3.0])] += 1;
        }
        for count in counts {
            assert!(
                (f64::from(count) / 33_333.3 - 1.0).abs() < 0.01,
                "{counts:?}"
            );
        }
    }

    #[test]
    fn purposes_and_items_have_sequences_of_their_own() {
        let first = |purpose| RandomStream::new(1, purpose).next_bits();
        assert_ne!(first(RandomPurpose::Gaps), first(RandomPurpose::Mix));
        let item = |i| RandomStream::of_item(1, RandomPurpose::Service, i).next_bits();
        assert_ne!(item(0), item(1));
        assert_eq!(item(5), item(5));
    }
}
