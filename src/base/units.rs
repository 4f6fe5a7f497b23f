//! Quantities with their units. All rounding of quantities happens in this module.
//!
//! Instants and durations are whole picoseconds in 64 bits, which cover at most 213 days. For comparison, sending one
//! byte at 400 GB/s takes 2.5 ps. Rates are `f64`. GB is 10^9 bytes and GiB is 2^30 bytes.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Add, AddAssign, Sub};

mod count;
mod energy;
mod estimate;
mod parse;
mod percent;

pub use count::{format_count_with_noun, format_thousands, format_token_count, parse_token_count};
pub use energy::format_joules;
pub use estimate::UnroundedTimeEstimate;
pub use parse::QuantityError;
pub use percent::{
    format_given_percent_change, format_percent, format_percent_of, format_signed_percent,
    parse_unscaled_percent_number,
};

const PS_PER_US: u64 = 1_000_000;
const PS_PER_S: f64 = 1e12;

/// An instant: picoseconds since the replay began.
///
/// Sums saturate at [`Time::END`], which the engine reports as an error. Absurdly large input therefore cannot wrap
/// around to a plausible result.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct Time(pub u64);

/// A duration in picoseconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct Span(pub u64);

impl Time {
    /// The start of every replay.
    pub const ZERO: Self = Self(0);
    /// The end of time: later than any valid instant.
    pub const END: Self = Self(u64::MAX);

    /// Returns the time since `earlier`, which must not be later than `self`.
    #[inline]
    pub fn since(self, earlier: Self) -> Span {
        debug_assert!(earlier <= self, "time runs forward");
        Span(self.0 - earlier.0)
    }
}

impl Add<Span> for Time {
    type Output = Self;
    #[inline]
    fn add(self, span: Span) -> Self {
        // A sum that is too large stays at END, which the engine reports.
        Self(self.0.saturating_add(span.0))
    }
}

impl Span {
    /// A duration of zero.
    pub const ZERO: Self = Self(0);
    /// Longer than any valid duration.
    pub const MAX: Self = Self(u64::MAX);

    /// Creates a duration of whole nanoseconds. Saturates at [`Self::MAX`].
    #[inline]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns.saturating_mul(1000))
    }

    /// Creates a duration of whole microseconds. Saturates at [`Self::MAX`].
    #[inline]
    pub const fn from_us(us: u64) -> Self {
        Self(us.saturating_mul(PS_PER_US))
    }

    /// Creates a duration of `seconds`, rounded to the nearest picosecond. Negative values become zero, and values that
    /// are too large become `MAX`.
    #[inline]
    pub fn from_seconds_saturating(seconds: f64) -> Self {
        // Rust's cast saturates at both ends and turns NaN into zero, so no checks are needed.
        Self((seconds * PS_PER_S).round() as u64)
    }

    /// Returns the duration in seconds, to compute rates and for display.
    #[inline]
    pub fn as_seconds(self) -> f64 {
        self.0 as f64 / PS_PER_S
    }

    /// Returns the duration times `factor`, rounded to the nearest picosecond.
    #[inline]
    pub fn scale_by(self, factor: f64) -> Self {
        Self((self.0 as f64 * factor).round() as u64)
    }

    /// Returns the duration times `count`. Saturates at [`Self::MAX`].
    #[inline]
    pub const fn times(self, count: u64) -> Self {
        Self(self.0.saturating_mul(count))
    }
}

impl Add for Span {
    type Output = Self;
    #[inline]
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Span {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Span {
    type Output = Self;
    #[inline]
    fn sub(self, other: Self) -> Self {
        debug_assert!(other <= self, "a duration is never negative");
        Self(self.0 - other.0)
    }
}

impl std::iter::Sum for Span {
    fn sum<I: Iterator<Item = Self>>(spans: I) -> Self {
        spans.fold(Self::ZERO, Add::add)
    }
}

/// Prints three or four significant digits with a suitable unit, such as `12.35 us`.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ps = self.0 as f64;
        let (value, unit) = match self.0 {
            0 => return f.pad("0"),
            1..=999 => return f.pad(&format!("{} ps", self.0)),
            1_000..=999_999 => (ps / 1e3, "ns"),
            1_000_000..=999_999_999 => (ps / 1e6, "us"),
            1_000_000_000..=999_999_999_999 => (ps / 1e9, "ms"),
            _ => (ps / 1e12, "s"),
        };
        f.pad(&format!("{value:.3} {unit}"))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Span(self.0), f)
    }
}

/// A count of bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let b = self.0 as f64;
        let text = match self.0 {
            0..=9_999 => format!("{} B", self.0),
            10_000..=999_949 => format!("{:.1} kB", b / 1e3),
            999_950..=999_949_999 => format!("{:.1} MB", b / 1e6),
            999_950_000..=999_949_999_999 => format!("{:.1} GB", b / 1e9),
            _ => format!("{:.1} TB", b / 1e12),
        };
        f.pad(&text)
    }
}

/// Bandwidth in bytes per second; always positive and finite.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
pub struct Bandwidth(f64);

impl Bandwidth {
    /// Creates a bandwidth, or `None` if the number is not positive and finite.
    pub fn new(bytes_per_second: f64) -> Option<Self> {
        (bytes_per_second > 0.0 && bytes_per_second.is_finite()).then_some(Self(bytes_per_second))
    }

    /// Returns the rate in bytes per second.
    pub fn bytes_per_second(self) -> f64 {
        self.0
    }

    /// Returns half of the bandwidth, which stays positive.
    pub fn halve(self) -> Self {
        // Half of the smallest positive number would be zero, which is not a valid bandwidth.
        Self((self.0 / 2.0).max(f64::MIN_POSITIVE.min(self.0)))
    }

    /// Returns the time that transferring `amount` takes, rounded to the nearest picosecond.
    #[inline]
    pub fn serialization_time(self, amount: UnroundedBufferShare) -> Span {
        Span::from_seconds_saturating(amount.bytes as f64 / (amount.parts as f64 * self.0))
    }
}

/// Seconds per byte, summed over links that a message passes one after another.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct SummedSecondsPerByte(f64);

impl SummedSecondsPerByte {
    /// The inverse rate of a path without links.
    pub const ZERO: Self = Self(0.0);

    /// Returns the inverse rate with `links` more links of `bandwidth` each.
    #[inline]
    pub fn add_links(self, links: u32, bandwidth: Bandwidth) -> Self {
        Self(self.0 + f64::from(links) / bandwidth.0)
    }

    /// Returns the time that `amount` takes to pass all of these links one after another, rounded to the nearest
    /// picosecond.
    #[inline]
    pub fn serialization_time(self, amount: UnroundedBufferShare) -> Span {
        Span::from_seconds_saturating(amount.bytes as f64 / amount.parts as f64 * self.0)
    }
}

/// Frequency in cycles per second; always positive and finite.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Frequency(f64);

impl Frequency {
    /// Creates a frequency, or `None` if the number is not positive and finite.
    pub fn new(hertz: f64) -> Option<Self> {
        (hertz > 0.0 && hertz.is_finite()).then_some(Self(hertz))
    }

    /// Returns the frequency in cycles per second.
    pub fn as_hertz(self) -> f64 {
        self.0
    }

    /// Returns the duration of `cycles` cycles, rounded to the nearest picosecond.
    #[inline]
    pub fn time_for_cycles(self, cycles: u64) -> Span {
        Span::from_seconds_saturating(cycles as f64 / self.0)
    }
}

/// A share of a buffer; its size is `bytes / parts` bytes.
///
/// The buffer's number of bytes need not be a multiple of the number of parts. A share is an exact fraction, so all
/// shares are equal and together exactly cover the buffer. Rounding happens only once, when a time is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnroundedBufferShare {
    /// Bytes of the whole buffer.
    pub bytes: u64,
    /// Number of equal parts of the buffer, at least 1.
    pub parts: u64,
}

impl UnroundedBufferShare {
    /// Creates the share that is a whole buffer of `bytes` bytes.
    pub const fn from_bytes(bytes: u64) -> Self {
        Self { bytes, parts: 1 }
    }

    /// Returns this share's size in whole bytes, rounded down.
    #[inline]
    pub const fn to_bytes(self) -> u64 {
        self.bytes / self.parts
    }

    /// Returns the same fraction of another buffer of `bytes` bytes.
    #[inline]
    pub const fn same_fraction_of_other_buffer(self, bytes: u64) -> Self {
        Self {
            bytes,
            parts: self.parts,
        }
    }

    /// Returns one of `n` equal parts of this share.
    #[inline]
    pub const fn one_of_n_equal_parts(self, n: u32) -> Self {
        Self {
            bytes: self.bytes,
            parts: self.parts * n as u64,
        }
    }

    /// Returns `k` of `n` equal parts of this share. The result is exact if k times the buffer's bytes fit into 64
    /// bits; otherwise it is rounded down to whole bytes.
    #[inline]
    pub fn k_of_n_equal_parts(self, k: u32, n: u32) -> Self {
        // Reduce k/n by Euclid's algorithm, so that the denominator grows as little as possible.
        let (mut divisor, mut rest) = (n, k);
        while rest > 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        let (k, n) = (k / divisor, n / divisor);
        match self.bytes.checked_mul(u64::from(k)) {
            Some(bytes) => Self { bytes, ..self }.one_of_n_equal_parts(n),
            None => Self {
                bytes: (u128::from(self.bytes) * u128::from(k) / u128::from(n)) as u64,
                ..self
            },
        }
    }
}

/// Rate in operations per second; always positive and finite.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct FlopRate(f64);

impl FlopRate {
    /// Creates a rate, or `None` if the number is not positive and finite.
    pub fn new(per_second: f64) -> Option<Self> {
        (per_second > 0.0 && per_second.is_finite()).then_some(Self(per_second))
    }

    /// Returns the rate in operations per second.
    pub fn per_second(self) -> f64 {
        self.0
    }

    /// Returns the duration of `flops` operations, rounded to the nearest picosecond.
    #[inline]
    pub fn time_for_flops(self, flops: u64) -> Span {
        Span::from_seconds_saturating(flops as f64 / self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serialization_is_bytes_over_bandwidth() {
        // 1 B / 400e9 B/s = 2.5e-12 s = 2.5 ps, which rounds away from zero to 3 ps.
        let b = Bandwidth::new(400e9).unwrap();
        assert_eq!(
            b.serialization_time(UnroundedBufferShare::from_bytes(1)),
            Span(3)
        );
        // 1 MiB / 8 parts = 131,072 B, and 131,072 B / 50e9 B/s = 2.62144 us.
        let b = Bandwidth::new(50e9).unwrap();
        assert_eq!(
            b.serialization_time(UnroundedBufferShare::from_bytes(1 << 20).one_of_n_equal_parts(8)),
            Span(2_621_440)
        );
    }

    #[test]
    fn links_one_after_another_are_rounded_once() {
        // 1 B over three links of 400 GB/s takes 3 x 2.5 = 7.5 ps, which rounds to 8 ps. Over one link of 50 GB/s, 1 B
        // takes 20 ps.
        let links = SummedSecondsPerByte::ZERO.add_links(3, Bandwidth::new(400e9).unwrap());
        assert_eq!(
            links.serialization_time(UnroundedBufferShare::from_bytes(1)),
            Span(8)
        );
        let links = links.add_links(1, Bandwidth::new(50e9).unwrap());
        assert_eq!(
            links.serialization_time(UnroundedBufferShare::from_bytes(3).one_of_n_equal_parts(3)),
            Span(28)
        );
    }

    #[test]
    fn shares_that_do_not_divide_are_rounded_once() {
        // 10 B in 3 parts at 1 B/s: 3.333… s = 3,333,333,333,333.3 ps.
        let b = Bandwidth::new(1.0).unwrap();
        assert_eq!(
            b.serialization_time(UnroundedBufferShare::from_bytes(10).one_of_n_equal_parts(3)),
            Span(3_333_333_333_333)
        );
    }

    #[test]
    fn parts_of_a_share_are_one_reduced_fraction() {
        let amount = |bytes, parts| UnroundedBufferShare { bytes, parts };
        // 4 of 10 parts of 7/3 B are 2 of 5 parts: 14/15 B. All 5 of 5 parts are the whole buffer.
        assert_eq!(amount(7, 3).k_of_n_equal_parts(4, 10), amount(14, 15));
        assert_eq!(amount(7, 3).k_of_n_equal_parts(5, 5), amount(7, 3));
        // 3 x (2^64 - 1) exceeds 64 bits. A quarter of this product, 3 x 2^62 - 3/4, is rounded down.
        assert_eq!(
            amount(u64::MAX, 2).k_of_n_equal_parts(3, 4),
            amount(13_835_058_055_282_163_711, 2)
        );
    }

    #[test]
    fn absurd_durations_saturate() {
        assert_eq!(Span::from_seconds_saturating(1e30), Span::MAX);
        assert_eq!(Span::from_seconds_saturating(-1.0), Span::ZERO);
        assert_eq!(Time(5) + Span::MAX, Time::END);
        assert_eq!(Span::from_us(u64::MAX), Span::MAX);
    }

    #[test]
    fn rates_are_positive_and_finite() {
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Bandwidth::new(bad).is_none());
            assert!(FlopRate::new(bad).is_none());
        }
    }

    #[test]
    fn durations_print_for_people() {
        assert_eq!(Span(999).to_string(), "999 ps");
        assert_eq!(Span(12_345_678).to_string(), "12.346 us");
        assert_eq!(Span::from_seconds_saturating(1.5).to_string(), "1.500 s");
        assert_eq!(Bytes(25_000_000).to_string(), "25.0 MB");
        assert_eq!(Bytes(999_960_000).to_string(), "1.0 GB");
    }
}
