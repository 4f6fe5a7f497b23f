//! Estimated durations, used only to choose between alternatives; no result contains an estimate.

use super::{Bandwidth, PS_PER_S, Span, SummedSecondsPerByte, UnroundedBufferShare};
use std::ops::Add;

/// An estimated duration that is not rounded: picoseconds in `f64`.
///
/// If latencies double and rates halve, each estimate doubles exactly (every operation is homogeneous). A choice among
/// estimates therefore does not depend on the scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnroundedTimeEstimate(f64);

impl UnroundedTimeEstimate {
    /// Zero seconds.
    pub const ZERO: Self = Self(0.0);

    /// Relative difference below which estimates count as equal. The margin exceeds the `f64` rounding errors in a sum
    /// with one term per NPU.
    pub const MARGIN: f64 = 1.0 / (1 << 30) as f64;

    /// Returns true if this is less than `other` by more than the margin.
    pub fn is_less_beyond_margin(self, other: Self) -> bool {
        self.0 < other.0 * (1.0 - Self::MARGIN)
    }

    /// Returns the longer of two estimates.
    pub fn max(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }

    /// Returns the estimate times `count`.
    pub fn times(self, count: u64) -> Self {
        Self(self.0 * count as f64)
    }

    /// Returns the estimate in picoseconds.
    pub fn as_unrounded_picoseconds(self) -> f64 {
        self.0
    }

    /// Returns the first item of `all` whose estimate exceeds the smallest estimate by no more than the margin.
    pub fn first_near_minimum<T>(
        all: impl Iterator<Item = (T, Self)> + Clone,
    ) -> Option<(T, Self)> {
        let least = all.clone().map(|(_, estimate)| estimate.0);
        let least = Self(least.min_by(f64::total_cmp)?);
        // The margin prevents rounding errors from affecting the choice.
        let mut all = all;
        all.find(|(_, estimate)| !least.is_less_beyond_margin(*estimate))
    }
}

impl From<Span> for UnroundedTimeEstimate {
    fn from(span: Span) -> Self {
        Self(span.0 as f64)
    }
}

impl Add for UnroundedTimeEstimate {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl Bandwidth {
    /// Returns the time that [`Self::serialization_time`] returns, but without rounding.
    pub fn estimate_serialization(self, amount: UnroundedBufferShare) -> UnroundedTimeEstimate {
        UnroundedTimeEstimate(amount.bytes as f64 / (amount.parts as f64 * self.0) * PS_PER_S)
    }
}

impl SummedSecondsPerByte {
    /// Returns the time that [`Self::serialization_time`] returns, but without rounding.
    pub fn estimate_serialization(self, amount: UnroundedBufferShare) -> UnroundedTimeEstimate {
        UnroundedTimeEstimate(amount.bytes as f64 / amount.parts as f64 * self.0 * PS_PER_S)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_estimates_are_equal_however_they_are_summed() {
        // A third of a byte at 1 TB/s takes 1/3 ps, which an `f64` cannot represent exactly. Three such estimates must
        // add up to 1 ps.
        let rate = Bandwidth::new(1e12).unwrap();
        let third = rate
            .estimate_serialization(UnroundedBufferShare::from_bytes(1).one_of_n_equal_parts(3));
        let one = UnroundedTimeEstimate::from(Span(1));
        assert!(
            !(third + third + third).is_less_beyond_margin(one)
                && !one.is_less_beyond_margin(third.times(3))
        );
        // A millisecond plus a picosecond differs from a millisecond by 10^-9, which is above the margin. For a second,
        // the difference is below the margin.
        let [less, more] =
            [1_000_000_000, 1_000_000_001].map(|ps| UnroundedTimeEstimate::from(Span(ps)));
        assert!(less.is_less_beyond_margin(more) && !more.is_less_beyond_margin(less));
        let [less, more] =
            [1_000_000_000_000, 1_000_000_000_001].map(|ps| UnroundedTimeEstimate::from(Span(ps)));
        assert!(!less.is_less_beyond_margin(more));
    }

    #[test]
    fn the_first_item_with_a_near_minimal_estimate_is_chosen() {
        let of = |list: &[u64]| {
            let all = list.iter().map(|&ps| UnroundedTimeEstimate::from(Span(ps)));
            UnroundedTimeEstimate::first_near_minimum(all.enumerate()).map(|(i, _)| i)
        };
        assert_eq!(of(&[3, 2, 5, 2]), Some(1));
        assert_eq!(of(&[0, 0]), Some(0));
        assert_eq!(of(&[1_000_000_000_001, 1_000_000_000_000]), Some(0));
        assert_eq!(of(&[]), None);
    }
}
