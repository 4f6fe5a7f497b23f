//! Creates small random configurations that ASTRA-sim accepts and nearly always completes.

mod job;
mod machine;
mod overlaps;

use super::config::WholeSimulationInput;

/// Generator of pseudo-random numbers: xorshift with a multiplication.
pub struct RandomGenerator(u64);

impl RandomGenerator {
    pub fn new(seed: u64) -> Self {
        let mut dice = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            dice.draw_53_bit_number();
        }
        dice
    }

    fn draw_53_bit_number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// Returns a number from `low` to `high`, inclusive.
    pub fn draw_between(&mut self, low: u64, high: u64) -> u64 {
        low + self.draw_53_bit_number() % (high - low + 1)
    }

    /// Returns a size from `low` to `high`, drawn so that its logarithm is uniformly distributed.
    pub fn draw_size(&mut self, low: u64, high: u64) -> u64 {
        let bits = self.draw_between(low.ilog2().into(), high.ilog2().into());
        let size = match self.draw_one_in(3) {
            true => 1 << bits,
            false => self.draw_between(1 << bits, (2 << bits) - 1),
        };
        size.clamp(low, high)
    }

    pub fn draw_one_in(&mut self, n: u64) -> bool {
        self.draw_53_bit_number().is_multiple_of(n)
    }

    pub fn pick_from<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.draw_53_bit_number() as usize % from.len()]
    }
}

/// Returns a random configuration as [`create_random_config`] does, but with overlapping groups, and with collectives
/// of only some NPUs of a dimension. NPUs therefore issue different numbers of collectives. In these configurations, a
/// dimension usually has several queues.
pub fn create_config_with_overlapping_groups(seed: u64) -> WholeSimulationInput {
    let mut dice = RandomGenerator::new(seed ^ 0x0e_7a11);
    let mut config = machine::draw_machine(&mut dice);
    config.queues_per_dim = dice.pick_from(&[1, 2, 2, 3, 4]);
    job::add_job_with_collectives_of_some_npus(&mut config, &mut dice);
    config
}

/// Returns a random configuration. The same seed always gives the same configuration.
pub fn create_random_config(seed: u64) -> WholeSimulationInput {
    let mut dice = RandomGenerator::new(seed);
    let mut config = machine::draw_machine(&mut dice);
    job::add_random_job(&mut config, &mut dice);
    config
}
