//! Estimates the offsets between the clocks of the ranks' hosts.
//!
//! If a collective needs every member, it ends on all members at about the same moment. So its recorded end times on
//! two ranks differ for two reasons: their clocks differ, and each rank notices the end with some delay. The *estimate*
//! is the median of these differences over all collectives that the two ranks share. Causality puts bounds on the
//! offset: no member can end before the last member has started, and no message can arrive before it was sent.
//!
//! Clocks of different hosts also run at different rates. If the differences grow with time by more
//! than their scatter explains, the rank's times are corrected with a line:
//!
//! ```text
//! corrected = t + offset + drift × (t − from)
//! ```
//!
//! Ranks on the same host share a clock, so an estimate of their offset is only noise. Their clocks are corrected only
//! if an offset of zero is outside the bounds, and then only to the nearer bound. Messages provide bounds but no
//! estimate. So the same rule applies if only messages were observed. If the captures do not name their hosts, an
//! estimate no larger than the scatter is ignored.

use super::call_matching::MatchedAndUnmatchedCallsOfJob;
use super::calls::RankCommCallsAndAnomalies;
use super::rank_timeline::JoinedRankCapture;
use chakram_base::statistics;
use std::collections::BTreeMap;

/// Correction of a rank's clock relative to the first rank's clock, the reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ClockCorrection {
    /// Offset that was added to the rank's times, in ns.
    #[serde(rename = "applied_ns")]
    pub applied: i64,
    /// Drift correction per unit of time since `drift_from`, in parts per 10^12.
    #[serde(rename = "drift_ppt")]
    pub drift: i64,
    /// Time at which the drift correction is zero, in ns by the rank's clock.
    #[serde(rename = "drift_from_ns")]
    pub drift_from: i64,
    /// Median difference between end times, in ns; zero if no collective was observed.
    #[serde(rename = "estimate_ns")]
    pub estimate: i64,
    /// Median absolute deviation of the differences from the estimate, in ns.
    #[serde(rename = "spread_ns")]
    pub spread: i64,
    /// Lower and upper bounds that causality puts on the offset, in ns.
    #[serde(rename = "bounds_ns")]
    pub bounds: (i64, i64),
    /// Number of collectives and messages observed; zero means that the offset is unknown.
    pub observed: u32,
    /// True if this rank is on the same host as the rank that it was compared with.
    pub same_host: bool,
}

impl ClockCorrection {
    /// Converts a time on the rank's clock to the reference clock, both in ns.
    pub fn to_reference_time(self, time: i64) -> i64 {
        let drift = compute_clock_gain_from_drift(self.drift, time.saturating_sub(self.drift_from));
        time.saturating_add(self.applied).saturating_add(drift)
    }

    /// Converts a corrected time back to the rank's clock, both in ns. The inverse of [`Self::to_reference_time`].
    pub fn own_clock_time_at(&self, time: i64) -> i64 {
        let start = time.saturating_sub(self.applied);
        // Drift is below 1/1000, so every pass reduces the error by a factor of more than 1000.
        (0..4).fold(start, |own, _| {
            own.saturating_sub(self.to_reference_time(own).saturating_sub(time))
        })
    }
}

/// Returns how much, in ns, a clock with this drift gains in `passed` ns.
fn compute_clock_gain_from_drift(drift: i64, passed: i64) -> i64 {
    let gained = i128::from(drift) * i128::from(passed) / i128::from(WHOLE);
    i64::try_from(gained).unwrap_or(i64::MAX)
}

/// Unit of drift: a drift of 1 means one part in 10^12.
const WHOLE: i64 = 1_000_000_000_000;
/// Largest drift that a real clock can have, in parts per 10^12. Quartz clocks are off by at most 200 parts per
/// million, and NTP corrects at most 500 parts per million.
const LARGEST_DRIFT: i64 = WHOLE / 1000;
/// Minimum number of collectives for a drift estimate, because fewer collectives cannot separate
/// drift from noise.
const FEWEST_FOR_DRIFT: usize = 8;
/// Minimum growth of the differences over the window, in ns, that counts as drift.
const LEAST_GROWTH: i64 = 1_000;

/// Observation of one call by two ranks.
#[derive(Clone, Copy, Debug)]
struct TwoRankCallObservation {
    /// For each rank, the call's start and end, in ns by the rank's own clock.
    spans: [(i64, i64); 2],
    kind: RankPairCommCallKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RankPairCommCallKind {
    Collective,
    /// Message that the first rank sent.
    Sent,
    /// Message that the second rank sent.
    Received,
}

impl TwoRankCallObservation {
    /// Swaps the two ranks.
    fn with_ranks_swapped(self) -> Self {
        let kind = match self.kind {
            RankPairCommCallKind::Collective => RankPairCommCallKind::Collective,
            RankPairCommCallKind::Sent => RankPairCommCallKind::Received,
            RankPairCommCallKind::Received => RankPairCommCallKind::Sent,
        };
        let [one, other] = self.spans;
        Self {
            spans: [other, one],
            kind,
        }
    }
}

/// Estimates the clock offset of every rank.
pub fn estimate_offsets(
    ranks: &[JoinedRankCapture],
    calls: &[RankCommCallsAndAnomalies],
    matches: &MatchedAndUnmatchedCallsOfJob,
) -> Vec<ClockCorrection> {
    let between = collect_observations(calls, matches);
    let mut offsets = vec![ClockCorrection::default(); ranks.len()];
    let mut known = vec![false; ranks.len()];
    let hosts = |a: u32, b: u32| {
        RankHostRelation::compare_host_names(&ranks[a as usize], &ranks[b as usize])
    };
    // Proceed from ranks whose offsets are known to ranks whose offsets are not. Ranks on the same host come first,
    // because they share a clock. The rank that shares the most observations with a known rank comes next.
    loop {
        let next = between
            .iter()
            .filter(|((a, b), _)| known[*a as usize] != known[*b as usize])
            .max_by_key(|((a, b), seen)| {
                let one_clock = hosts(*a, *b) == RankHostRelation::Same;
                (one_clock, seen.len(), std::cmp::Reverse((*a, *b)))
            });
        let Some((&(a, b), seen)) = next else {
            match known.iter().position(|known| !known) {
                // No remaining rank shares a collective with a known rank, so one of them starts a new set of known
                // ranks, with its own clock as the reference.
                Some(rank) => known[rank] = true,
                None => return offsets,
            }
            continue;
        };
        let (from, to) = if known[a as usize] { (a, b) } else { (b, a) };
        let turned = from != a;
        let seen = seen.iter().map(|&seen| {
            if turned {
                seen.with_ranks_swapped()
            } else {
                seen
            }
        });
        offsets[to as usize] = estimate_clock_offset_of_second_rank(
            seen.collect(),
            &offsets[from as usize],
            hosts(a, b),
        );
        known[to as usize] = true;
    }
}

/// Relation between the hosts of two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RankHostRelation {
    Same,
    Different,
    /// The captures do not name their hosts.
    Unknown,
}

impl RankHostRelation {
    fn compare_host_names(one: &JoinedRankCapture, other: &JoinedRankCapture) -> Self {
        match (&one.kineto.host_name, &other.kineto.host_name) {
            (Some(one), Some(other)) if one == other => Self::Same,
            (Some(_), Some(_)) => Self::Different,
            _ => Self::Unknown,
        }
    }
}

/// Estimates the offset of the second of two ranks; `base` corrects the first rank's clock.
fn estimate_clock_offset_of_second_rank(
    mut seen: Vec<TwoRankCallObservation>,
    base: &ClockCorrection,
    hosts: RankHostRelation,
) -> ClockCorrection {
    let own_base = base.applied;
    for seen in &mut seen {
        let (start, end) = seen.spans[0];
        // The result is relative to the first rank's clock, so subtract that rank's own offset.
        let time = |time: i64| base.to_reference_time(time).saturating_sub(own_base);
        seen.spans[0] = (time(start), time(end));
    }
    let (drift, drift_from) = match hosts {
        // Ranks on the same host share a clock, so use the first rank's drift and its origin.
        RankHostRelation::Same => (base.drift, base.drift_from),
        RankHostRelation::Different | RankHostRelation::Unknown => {
            fit_clock_drift_and_origin(&seen)
        }
    };
    for seen in &mut seen {
        let (start, end) = seen.spans[1];
        let time = |time: i64| {
            time.saturating_add(compute_clock_gain_from_drift(
                drift,
                time.saturating_sub(drift_from),
            ))
        };
        seen.spans[1] = (time(start), time(end));
    }
    let mut differences = end_differences_of_collectives(&seen);
    let estimate = median_of(&mut differences);
    let spread = median_distance_from_middle(&differences, estimate);
    let bounds = find_offset_bounds(&seen);
    // Errors in the two clocks can push the lower bound above the upper bound. In this case, use the estimate
    // unchanged, or the middle of the bounds if there is no estimate.
    let possible = bounds.0 <= bounds.1;
    let demanded = |offset: i64| match possible {
        true => offset.clamp(bounds.0, bounds.1),
        false if differences.is_empty() => bounds.1 + (bounds.0 - bounds.1) / 2,
        false => estimate,
    };
    let noise = drift == 0 && estimate.saturating_abs() <= spread.saturating_mul(3);
    let applied = match hosts {
        _ if differences.is_empty() => demanded(0),
        RankHostRelation::Same => demanded(0),
        RankHostRelation::Unknown if noise && demanded(0) == 0 => 0,
        RankHostRelation::Unknown | RankHostRelation::Different => demanded(estimate),
    };
    ClockCorrection {
        applied: applied.saturating_add(own_base),
        drift,
        drift_from,
        estimate,
        spread,
        bounds,
        observed: u32::try_from(seen.len()).unwrap_or(u32::MAX),
        same_host: hosts == RankHostRelation::Same,
    }
}

/// Returns the bounds of the second rank's offset. They follow from causality: no member of a collective can end before
/// another member starts, and nothing is received before it is sent.
fn find_offset_bounds(seen: &[TwoRankCallObservation]) -> (i64, i64) {
    let mut bounds = (i64::MIN / 4, i64::MAX / 4);
    for TwoRankCallObservation {
        spans: [one, other],
        kind,
    } in seen
    {
        if *kind != RankPairCommCallKind::Received {
            bounds.0 = bounds.0.max(one.0.saturating_sub(other.1));
        }
        if *kind != RankPairCommCallKind::Sent {
            bounds.1 = bounds.1.min(one.1.saturating_sub(other.0));
        }
    }
    bounds
}

/// Returns, for each collective, the end on the first rank's clock minus the end on the second rank's clock.
fn end_differences_of_collectives(seen: &[TwoRankCallObservation]) -> Vec<i64> {
    let collectives = seen
        .iter()
        .filter(|seen| seen.kind == RankPairCommCallKind::Collective);
    collectives
        .map(|seen| seen.spans[0].1.saturating_sub(seen.spans[1].1))
        .collect()
}

/// Returns the drift of the second rank's clock relative to the first rank's clock, and the time in ns at which the
/// drift correction is zero. The drift is the median slope between collectives that are half the window apart. The
/// median is robust against stragglers. The drift is zero if the scatter of the differences is enough to explain the
/// growth.
fn fit_clock_drift_and_origin(seen: &[TwoRankCallObservation]) -> (i64, i64) {
    let collectives = seen
        .iter()
        .filter(|seen| seen.kind == RankPairCommCallKind::Collective);
    let ends = collectives.map(|seen| {
        (
            seen.spans[1].1,
            seen.spans[0].1.saturating_sub(seen.spans[1].1),
        )
    });
    let mut ends: Vec<(i64, i64)> = ends.collect();
    ends.sort_unstable();
    let (Some(&(from, _)), Some(&(to, _))) = (ends.first(), ends.last()) else {
        return (0, 0);
    };
    if ends.len() < FEWEST_FOR_DRIFT {
        return (0, 0);
    }
    let half = ends.len() / 2;
    let slopes = ends
        .iter()
        .zip(&ends[half..])
        .filter(|(early, late)| late.0 > early.0);
    let slope = |((from, early), (to, late)): (&(i64, i64), &(i64, i64))| {
        let grown = i128::from(late.saturating_sub(*early)) * i128::from(WHOLE);
        i64::try_from(grown / i128::from(to - from)).unwrap_or(i64::MAX)
    };
    let mut slopes: Vec<i64> = slopes.map(slope).collect();
    let drift = median_of(&mut slopes);
    if drift.saturating_abs() > LARGEST_DRIFT {
        return (0, 0);
    }
    let mut left: Vec<i64> = ends
        .iter()
        .map(|&(end, apart)| apart.saturating_sub(compute_clock_gain_from_drift(drift, end - from)))
        .collect();
    let middle = median_of(&mut left);
    let spread = median_distance_from_middle(&left, middle) as f64;
    let growth = compute_clock_gain_from_drift(drift, to.saturating_sub(from)).saturating_abs();
    // A slope fitted to n differences of standard deviation s = 1.48 × spread has a standard error of s √12 / √n per
    // window. The error of a slope from medians is 1.25 times as large: 6.4 × spread / √n. A growth of four standard
    // errors counts as significant.
    let chance = 4.0 * 6.4 * spread / (ends.len() as f64).sqrt();
    if growth >= LEAST_GROWTH && growth as f64 > chance {
        (drift, from)
    } else {
        (0, 0)
    }
}

/// Collects the observations of each pair of ranks that share calls; the lower rank comes first.
fn collect_observations(
    calls: &[RankCommCallsAndAnomalies],
    matches: &MatchedAndUnmatchedCallsOfJob,
) -> BTreeMap<(u32, u32), Vec<TwoRankCallObservation>> {
    let mut between: BTreeMap<(u32, u32), Vec<TwoRankCallObservation>> = BTreeMap::new();
    let span = |at: (u32, u32)| {
        let call = &calls[at.0 as usize].list[at.1 as usize];
        (call.start, call.end)
    };
    let mut note = |one: (u32, u32), other: (u32, u32), kind: RankPairCommCallKind| {
        let seen = TwoRankCallObservation {
            spans: [span(one), span(other)],
            kind,
        };
        let seen = if one.0 < other.0 {
            seen
        } else {
            seen.with_ranks_swapped()
        };
        let pair = (one.0.min(other.0), one.0.max(other.0));
        between.entry(pair).or_default().push(seen);
    };
    for matched in &matches.collectives {
        if matched.kind.has_root() {
            continue;
        }
        // Compare each member of a collective with the first member and with the next member.
        // Comparing all pairs would take quadratic time in large groups, and the chain of
        // neighbours still reaches every member.
        let first = matched.members[0];
        let neighbours = matched.members.windows(2).map(|pair| (pair[0], pair[1]));
        let firsts = matched.members.iter().skip(2).map(|&other| (first, other));
        for (one, other) in neighbours.chain(firsts) {
            note(one, other, RankPairCommCallKind::Collective);
        }
    }
    for message in &matches.messages {
        note(message.send, message.receive, RankPairCommCallKind::Sent);
    }
    between
}

/// Returns the median absolute distance of `values` from `middle`.
fn median_distance_from_middle(values: &[i64], middle: i64) -> i64 {
    let distance = |value: &i64| value.saturating_sub(middle).saturating_abs();
    median_of(&mut values.iter().map(distance).collect::<Vec<i64>>())
}

fn median_of(values: &mut [i64]) -> i64 {
    let [lower, upper] = statistics::middle_values(values).unwrap_or_default();
    lower.saturating_add(upper.saturating_sub(lower) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    /// Builds collectives one second apart. On the first rank, each ends later by the amount of its entry in
    /// `differences`. On both ranks, each lasts `before` ns.
    fn build_two_rank_collectives(differences: &[i64], before: i64) -> Vec<TwoRankCallObservation> {
        let seen = (1..).zip(differences).map(|(second, difference)| {
            let end = second * 1000 * MS;
            TwoRankCallObservation {
                spans: [
                    (end + difference - before, end + difference),
                    (end - before, end),
                ],
                kind: RankPairCommCallKind::Collective,
            }
        });
        seen.collect()
    }

    fn swap_ranks_in_observations(seen: &[TwoRankCallObservation]) -> Vec<TwoRankCallObservation> {
        seen.iter().map(|seen| seen.with_ranks_swapped()).collect()
    }

    fn estimate_rank_clock_offset(
        seen: &[TwoRankCallObservation],
        hosts: RankHostRelation,
    ) -> ClockCorrection {
        estimate_clock_offset_of_second_rank(seen.to_vec(), &ClockCorrection::default(), hosts)
    }

    #[test]
    fn clock_offset_estimate_is_median_of_end_differences() {
        // The ends differ by about 3 ms; one late end of 9 ms does not move the median.
        let seen = build_two_rank_collectives(
            &[3 * MS, 3 * MS + 40, 9 * MS, 3 * MS - 20, 3 * MS + 5],
            8 * MS,
        );
        let offset = estimate_rank_clock_offset(&seen, RankHostRelation::Different);
        assert_eq!((offset.applied, offset.estimate), (3 * MS + 5, 3 * MS + 5));
        // The distances from the median are 5, 35, 6 ms − 5, 25 and 0 ns; their median is 25 ns.
        assert_eq!(offset.spread, 25);
        // If the two ranks are swapped, all signs are reversed. The first rank's own offset is included in the second
        // rank's offset.
        assert_eq!(
            estimate_rank_clock_offset(
                &swap_ranks_in_observations(&seen),
                RankHostRelation::Different
            )
            .applied,
            -3 * MS - 5
        );
        let base = ClockCorrection {
            applied: 7 * MS,
            ..ClockCorrection::default()
        };
        assert_eq!(
            estimate_clock_offset_of_second_rank(seen, &base, RankHostRelation::Different).applied,
            10 * MS + 5
        );
    }

    #[test]
    fn one_host_has_one_clock_unless_causality_says_no() {
        let noise = [200_000, -300_000, 250_000];
        let seen = build_two_rank_collectives(&noise, MS);
        assert_eq!(
            estimate_rank_clock_offset(&seen, RankHostRelation::Same).applied,
            0
        );
        assert_eq!(
            estimate_rank_clock_offset(&seen, RankHostRelation::Different).applied,
            200_000
        );
        // The scatter of the differences is 50 us. An offset of 200 us exceeds three times the scatter; 100 us does
        // not.
        assert_eq!(
            estimate_rank_clock_offset(&seen, RankHostRelation::Unknown).applied,
            200_000
        );
        let seen = build_two_rank_collectives(&[100_000, -300_000, 150_000], MS);
        assert_eq!(
            estimate_rank_clock_offset(&seen, RankHostRelation::Unknown).applied,
            0
        );
        // Ends differ by 300 us and the collectives last 20 us, so an offset of zero is impossible,
        // and the clock is moved to the nearer bound.
        let seen = build_two_rank_collectives(&[300_000, 300_010], 20_000);
        assert_eq!(
            estimate_rank_clock_offset(&seen, RankHostRelation::Same).applied,
            280_010
        );
        // An offset of zero is possible, so the large estimate is not applied.
        let late = build_two_rank_collectives(&[9 * MS, 9 * MS + 100_000], 20 * MS);
        assert_eq!(
            estimate_rank_clock_offset(&late, RankHostRelation::Same).applied,
            0
        );
    }

    #[test]
    fn messages_alone_move_a_clock_only_where_causality_requires() {
        // The message is sent at 0 and received before 1 ms on the receiver's clock, so the
        // receiver's clock is at most 1 ms behind.
        let message = |sent: i64, received: i64| TwoRankCallObservation {
            spans: [(sent, sent + 10), (received - 10, received)],
            kind: RankPairCommCallKind::Sent,
        };
        for hosts in [
            RankHostRelation::Same,
            RankHostRelation::Different,
            RankHostRelation::Unknown,
        ] {
            assert_eq!(
                estimate_rank_clock_offset(&[message(0, MS)], hosts).applied,
                0
            );
            assert_eq!(
                estimate_rank_clock_offset(&[message(2 * MS, 0)], hosts).applied,
                2 * MS
            );
            assert_eq!(
                estimate_rank_clock_offset(
                    &swap_ranks_in_observations(&[message(2 * MS, 0)]),
                    hosts
                )
                .applied,
                -2 * MS
            );
        }
    }

    /// The second clock runs 20 parts per million too fast and starts 3 ms ahead. 60 collectives are one second apart.
    #[test]
    fn line_fit_of_end_differences_follows_clock_drift() {
        let noise = |k: i64| k * 7919 % 21 * 100 - 1000;
        let drifting: Vec<i64> = (0..60).map(|k| -3 * MS - k * 20_000 + noise(k)).collect();
        let seen = build_two_rank_collectives(&drifting, 300_000);
        for hosts in [RankHostRelation::Different, RankHostRelation::Unknown] {
            let offset = estimate_rank_clock_offset(&seen, hosts);
            // A noise of 1 us over half a minute changes the drift by 0.03 parts per million.
            assert!((offset.drift + 20_000_000).abs() < 100_000, "{offset:?}");
            for seen in &seen {
                let apart = seen.spans[0].1 - offset.to_reference_time(seen.spans[1].1);
                assert!(apart.abs() < 3_000, "{apart}");
                let end = offset.to_reference_time(seen.spans[1].1);
                assert!((offset.own_clock_time_at(end) - seen.spans[1].1).abs() <= 1);
            }
            assert!(offset.spread <= 1_000);
        }
        // Ranks on one host share a clock; a scatter of 2 ms hides a growth of 1.2 ms.
        assert_eq!(
            estimate_rank_clock_offset(&seen, RankHostRelation::Same).drift,
            0
        );
        let scattered: Vec<i64> = drifting
            .iter()
            .zip(0..)
            .map(|(d, k): (_, i64)| d + k * 7919 % 41 * 100_000)
            .collect();
        assert_eq!(
            estimate_rank_clock_offset(
                &build_two_rank_collectives(&scattered, 9 * MS),
                RankHostRelation::Different
            )
            .drift,
            0
        );
    }
}
