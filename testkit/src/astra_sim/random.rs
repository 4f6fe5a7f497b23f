//! Small random configurations that ASTRA-sim accepts and, nearly always, finishes.

mod job;
mod machine;
mod overlaps;

use super::config::Config;

/// Pseudo-random numbers: xorshift with a multiplication.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        let mut dice = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            dice.roll();
        }
        dice
    }

    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// Returns a number from `low` to `high`, inclusive.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.roll() % (high - low + 1)
    }

    /// Returns a size from `low` to `high` whose logarithm is uniformly distributed.
    pub fn size(&mut self, low: u64, high: u64) -> u64 {
        let bits = self.between(low.ilog2().into(), high.ilog2().into());
        let size = match self.one_in(3) {
            true => 1 << bits,
            false => self.between(1 << bits, (2 << bits) - 1),
        };
        size.clamp(low, high)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.roll().is_multiple_of(n)
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.roll() as usize % from.len()]
    }
}

/// Returns a random configuration like [`random`], but with overlapping groups, usually with several queues in a
/// dimension, and with collectives that only some NPUs of a dimension run. NPUs have therefore issued different
/// numbers of collectives.
pub fn overlapping(seed: u64) -> Config {
    let mut dice = Dice::new(seed ^ 0x0e_7a11);
    let mut config = machine::machine(&mut dice);
    config.queues_per_dim = dice.pick(&[1, 2, 2, 3, 4]);
    job::overlaps(&mut config, &mut dice);
    config
}

/// Returns a random configuration. The same seed always gives the same configuration.
pub fn random(seed: u64) -> Config {
    let mut dice = Dice::new(seed);
    let mut config = machine::machine(&mut dice);
    job::job(&mut config, &mut dice);
    config
}
