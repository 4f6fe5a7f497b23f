//! Finds the calls that several ranks' captures have in common.
//!
//! Profilers of different ranks start and stop at different calls. A group's members execute the same collectives in
//! the same order. So one member's list equals another member's list, moved by a *shift*. A shift is possible if the
//! calls' signatures agree wherever the lists overlap. The difference between two ranks' end times is the offset
//! between their clocks, so it should be constant. The best shift makes this difference most uniform. If two shifts
//! make it equally uniform, the one with the smaller differences is best. If the clocks differ and the lists have equal
//! lengths, shift zero is assumed unless another shift is more uniform.

use chakram_base::statistics;
use chakram_trace::matching::CollectiveSignature;

/// Properties of a call that distinguish it from other calls.
#[derive(Clone, Copy, Debug)]
pub struct CommCallFingerprint {
    /// Properties that all members share.
    pub signature: CollectiveSignature,
    /// Sequence number of the call in its group, if the profiler wrote one.
    pub sequence: Option<u64>,
    /// Start and end of the call, in ns by the rank's own clock. `None` if the call has no time, or
    /// if it may end at different times on different members.
    pub span: Option<(i64, i64)>,
}

/// Maximum shift, in calls, beyond the difference between the lists' lengths.
const FARTHEST: i64 = 256;

/// Resolution, in ns, with which times are compared. The scheduler may delay threads by this much, so smaller
/// differences do not count.
const ALIKE: i64 = 200_000;

/// Returns the position of `other`'s first call within `one`; the position may be negative or past the end.
/// Returns `None` if no shift fits. `one_clock` is true if both lists use the same clock.
pub fn find_call_window_shift(
    one: &[CommCallFingerprint],
    other: &[CommCallFingerprint],
    one_clock: bool,
) -> Option<i64> {
    let (n, m) = (one.len() as i64, other.len() as i64);
    if let Some(shift) = find_shift_by_sequence(one, other) {
        return signatures_agree_at_shift(one, other, shift).then_some(shift);
    }
    if n == m && signatures_agree_at_shift(one, other, 0) {
        let together = match one_clock {
            true => at_least_half_of_pairs_overlap_in_time(one, other),
            false => median_end_difference_and_deviation(one, other, 0).1 < ALIKE,
        };
        if together {
            return Some(0);
        }
    }
    // At least half of the shorter list must overlap the longer one; otherwise almost any shift would fit.
    let least = (n.min(m) + 1) / 2;
    let (low, high) = ((n - m).min(0) - FARTHEST, (n - m).max(0) + FARTHEST);
    let shifts =
        (low..=high).filter(|&shift| count_overlapping_calls_at_shift(n, m, shift) >= least.max(1));
    let fitting = shifts.filter(|&shift| signatures_agree_at_shift(one, other, shift));
    fitting.min_by_key(|&shift| {
        let (offset, spread) = median_end_difference_and_deviation(one, other, shift);
        // If the times are inconclusive, prefer to align the starts, then the ends.
        let end = if shift == 0 {
            0
        } else {
            i64::from(shift != n - m) + 1
        };
        let lost = n.min(m) - count_overlapping_calls_at_shift(n, m, shift);
        let same_calls = n == m && shift == 0 && !one_clock;
        (
            spread / ALIKE,
            !same_calls,
            offset.abs() / ALIKE,
            end,
            lost,
            shift.abs(),
        )
    })
}

/// Returns the shift that makes the sequence numbers agree. Returns `None` unless every call has a sequence number and
/// some numbers agree.
fn find_shift_by_sequence(
    one: &[CommCallFingerprint],
    other: &[CommCallFingerprint],
) -> Option<i64> {
    let place = |list: &[CommCallFingerprint], of: &CommCallFingerprint| {
        let place = list.iter().position(|call| call.sequence == of.sequence)?;
        i64::try_from(place).ok()
    };
    let (first, second) = (one.first()?, other.first()?);
    let shift = place(one, second).or_else(|| place(other, first).map(|place| -place))?;
    let same = |(one, other): (&CommCallFingerprint, &CommCallFingerprint)| {
        one.sequence.is_some() && one.sequence == other.sequence
    };
    pair_calls_at_shift(one, other, shift)
        .all(same)
        .then_some(shift)
}

/// Returns how many calls two lists of `n` and `m` calls have in common when one is moved by `shift`.
fn count_overlapping_calls_at_shift(n: i64, m: i64, shift: i64) -> i64 {
    n.min(m + shift) - shift.max(0)
}

/// Returns the pairs of calls that belong to the same collective under a shift.
fn pair_calls_at_shift<'c>(
    one: &'c [CommCallFingerprint],
    other: &'c [CommCallFingerprint],
    shift: i64,
) -> impl Iterator<Item = (&'c CommCallFingerprint, &'c CommCallFingerprint)> {
    let skipped = |number: i64| usize::try_from(number).unwrap_or(0);
    let ones = one.iter().skip(skipped(shift));
    ones.zip(other.iter().skip(skipped(-shift)))
}

fn signatures_agree_at_shift(
    one: &[CommCallFingerprint],
    other: &[CommCallFingerprint],
    shift: i64,
) -> bool {
    pair_calls_at_shift(one, other, shift).all(|(one, other)| one.signature == other.signature)
}

/// Returns the median difference between end times, and the median deviation from this difference.
fn median_end_difference_and_deviation(
    one: &[CommCallFingerprint],
    other: &[CommCallFingerprint],
    shift: i64,
) -> (i64, i64) {
    let ends = pair_calls_at_shift(one, other, shift)
        .map(|(one, other)| Some(one.span?.1 - other.span?.1));
    let mut ends: Vec<i64> = ends.flatten().collect();
    let middle = upper_median_of(&mut ends);
    let mut apart: Vec<i64> = ends.iter().map(|end| (end - middle).abs()).collect();
    (middle, upper_median_of(&mut apart))
}

/// Returns true if at least half of the pairs overlap in time. Both lists must use the same clock.
fn at_least_half_of_pairs_overlap_in_time(
    one: &[CommCallFingerprint],
    other: &[CommCallFingerprint],
) -> bool {
    let spans =
        pair_calls_at_shift(one, other, 0).filter_map(|(one, other)| one.span.zip(other.span));
    let spans: Vec<_> = spans.collect();
    let apart = |&&(one, other): &&((i64, i64), (i64, i64))| {
        one.0 > other.1 + ALIKE || other.0 > one.1 + ALIKE
    };
    spans.iter().filter(apart).count() * 2 <= spans.len()
}

fn upper_median_of(values: &mut [i64]) -> i64 {
    statistics::middle_values(values).map_or(0, |[_, upper]| upper)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chakram_trace::format::CollectiveKind;

    fn build_all_reduce_fingerprint(bytes: u64, end: i64) -> CommCallFingerprint {
        CommCallFingerprint {
            signature: CollectiveSignature {
                kind: CollectiveKind::AllReduce,
                bytes,
                root: None,
            },
            sequence: None,
            span: Some((end - 1_000, end)),
        }
    }

    /// Builds a job whose steps have three collectives each. The collectives have the given sizes and take 2, 3 and 5
    /// ms.
    fn build_steps_of_three_all_reduces(steps: i64, sizes: [u64; 3]) -> Vec<CommCallFingerprint> {
        let ends = (0..steps).flat_map(|step| {
            // Each step is 80 µs longer than the previous step.
            let start = step * 10_000_000 + step * step * 40_000;
            [2, 5, 10].map(|ms| start + ms * 1_000_000)
        });
        let sizes = sizes.into_iter().cycle();
        ends.zip(sizes)
            .map(|(end, bytes)| build_all_reduce_fingerprint(bytes, end))
            .collect()
    }

    fn copy_calls_with_shifted_clock(
        calls: &[CommCallFingerprint],
        range: std::ops::Range<usize>,
        clock: i64,
    ) -> Vec<CommCallFingerprint> {
        let moved = calls[range].iter().map(|call| CommCallFingerprint {
            span: call.span.map(|(start, end)| (start + clock, end + clock)),
            ..*call
        });
        moved.collect()
    }

    #[test]
    fn window_shift_is_found_from_sizes_and_end_times_despite_clock_offset() {
        for sizes in [[1, 2, 3], [7, 7, 7]] {
            let all = build_steps_of_three_all_reduces(8, sizes);
            for clock in [0, 300_000, -4_000_000] {
                for (one, other) in [
                    (0..24, 0..24),
                    // The lists start and end at different calls.
                    (0..20, 3..24),
                    (2..24, 0..21),
                    // The lists have equal lengths but different calls.
                    (0..20, 4..24),
                    (0..24, 5..19),
                ] {
                    let expected = other.start as i64 - one.start as i64;
                    let (a, b) = (
                        copy_calls_with_shifted_clock(&all, one, 0),
                        copy_calls_with_shifted_clock(&all, other, clock),
                    );
                    for one_clock in [false, clock == 0] {
                        assert_eq!(
                            find_call_window_shift(&a, &b, one_clock),
                            Some(expected),
                            "{sizes:?} {clock}"
                        );
                        assert_eq!(
                            find_call_window_shift(&b, &a, one_clock),
                            Some(-expected),
                            "{sizes:?} {clock}"
                        );
                    }
                }
            }
        }
    }

    /// Collectives start 10 ms apart. Unless the clocks are shared, a clock that is 10 ms late looks like a missing
    /// call.
    #[test]
    fn agreeing_lists_of_equal_length_shift_only_on_a_shared_clock() {
        let calls = |first: i64| -> Vec<CommCallFingerprint> {
            (first..first + 9)
                .map(|k| build_all_reduce_fingerprint(7, k * 10_000_000))
                .collect()
        };
        assert_eq!(find_call_window_shift(&calls(1), &calls(0), true), Some(-1));
        assert_eq!(find_call_window_shift(&calls(1), &calls(0), false), Some(0));
        // If the lengths differ, some calls are assumed to be missing.
        assert_eq!(
            find_call_window_shift(&calls(1), &calls(0)[..8], false),
            Some(-1)
        );
    }

    #[test]
    fn sequence_numbers_outweigh_times_in_finding_the_window_shift() {
        let numbered = |first: u64, count: u64| -> Vec<CommCallFingerprint> {
            let calls = (0..count).map(|k| CommCallFingerprint {
                sequence: Some(first + k),
                ..build_all_reduce_fingerprint(7, k as i64 * 10_000_000)
            });
            calls.collect()
        };
        assert_eq!(
            find_call_window_shift(&numbered(5, 9), &numbered(5, 9), true),
            Some(0)
        );
        assert_eq!(
            find_call_window_shift(&numbered(5, 9), &numbered(7, 9), true),
            Some(2)
        );
        assert_eq!(
            find_call_window_shift(&numbered(7, 9), &numbered(5, 3), true),
            Some(-2)
        );
    }

    #[test]
    fn untimed_lists_align_at_their_first_or_last_calls() {
        let untimed = |range: std::ops::Range<usize>| -> Vec<CommCallFingerprint> {
            let all = build_steps_of_three_all_reduces(8, [1, 2, 3]);
            let calls = all[range].iter();
            calls
                .map(|call| CommCallFingerprint {
                    span: None,
                    ..*call
                })
                .collect()
        };
        assert_eq!(
            find_call_window_shift(&untimed(0..24), &untimed(0..18), false),
            Some(0)
        );
        assert_eq!(
            find_call_window_shift(&untimed(0..24), &untimed(4..24), false),
            Some(4)
        );
        assert_eq!(
            find_call_window_shift(&untimed(1..24), &untimed(0..24), false),
            Some(-1)
        );
        // Without times, a shift by whole steps cannot be detected, so the lists are aligned at
        // their first calls.
        assert_eq!(
            find_call_window_shift(&untimed(0..24), &untimed(3..21), false),
            Some(0)
        );
        assert_eq!(
            find_call_window_shift(
                &untimed(0..6),
                &[build_all_reduce_fingerprint(9, 0); 6],
                false
            ),
            None
        );
        assert_eq!(find_call_window_shift(&[], &untimed(0..3), false), None);
    }
}
