//! Clock offsets between the hosts of the ranks.
//!
//! A collective that needs every member ends on all of them at about the same moment, so the difference of its ends
//! on two ranks is the difference of their clocks plus the delay of noticing. The median over all collectives that
//! two ranks share is the *estimate*. Causality bounds it: no member can end before the last has started, and no
//! message arrives before it was sent.
//!
//! Ranks on one host have one clock. Their estimate is noise and is not applied: such a clock moves only where zero lies
//! outside the bounds, and then no farther than to them. The same holds where messages alone were observed, which give
//! bounds and no estimate. Of ranks whose hosts are not named, estimates that are as small as noise are not applied.

use super::call_matching::CallMatches;
use super::calls::{CommCall, CommCalls};
use super::rank_timeline::RankTimeline;
use chakram_base::statistics;
use std::collections::BTreeMap;

/// Clock offset of a rank against the reference, which is the first rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ClockOffset {
    /// Offset that is added to the rank's times, ns.
    #[serde(rename = "applied_ns")]
    pub applied: i64,
    /// Median difference of ends, ns; zero without any.
    #[serde(rename = "estimate_ns")]
    pub estimate: i64,
    /// Median absolute deviation from the estimate, ns.
    #[serde(rename = "spread_ns")]
    pub spread: i64,
    /// Bounds by causality, ns.
    #[serde(rename = "bounds_ns")]
    pub bounds: (i64, i64),
    /// Number of collectives and messages observed; zero means that nothing is known.
    pub observed: u32,
    /// Whether the rank is on the host of the rank that it was compared with.
    pub same_host: bool,
}

/// Threshold for ranks on one host, ns: smaller estimates are the noise of threads that are scheduled late.
const NOISE: i64 = 500_000;

/// Observations of two ranks of one another: differences of ends, and bounds on the offset of the second.
#[derive(Clone, Debug)]
struct ClockObservations {
    differences: Vec<i64>,
    bounds: (i64, i64),
    observed: u32,
}

impl Default for ClockObservations {
    fn default() -> Self {
        Self {
            differences: Vec::new(),
            bounds: (i64::MIN / 4, i64::MAX / 4),
            observed: 0,
        }
    }
}

/// Estimates the offset of every rank.
pub fn offsets(
    ranks: &[RankTimeline],
    calls: &[CommCalls],
    matches: &CallMatches,
) -> Vec<ClockOffset> {
    let between = observe(calls, matches);
    let mut offsets = vec![ClockOffset::default(); ranks.len()];
    let mut known = vec![false; ranks.len()];
    // From one known rank to the next, by the pair with the most observations in common.
    loop {
        let next = between
            .iter()
            .filter(|((a, b), _)| known[*a as usize] != known[*b as usize])
            .max_by_key(|((a, b), seen)| (seen.observed, std::cmp::Reverse((*a, *b))));
        let Some((&(a, b), seen)) = next else {
            match known.iter().position(|known| !known) {
                // A rank without collectives in common with a known one starts a set of its own, by its own clock.
                Some(rank) => known[rank] = true,
                None => return offsets,
            }
            continue;
        };
        let (from, to, sign) = if known[a as usize] {
            (a, b, 1)
        } else {
            (b, a, -1)
        };
        let base = offsets[from as usize].applied;
        let hosts = HostRelation::of(&ranks[from as usize], &ranks[to as usize]);
        let mut own = estimate(seen, sign, hosts);
        own.applied = own.applied.saturating_add(base);
        offsets[to as usize] = own;
        known[to as usize] = true;
    }
}

/// Relation of the hosts of two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostRelation {
    Same,
    Different,
    /// The captures do not name their hosts.
    Unknown,
}

impl HostRelation {
    fn of(one: &RankTimeline, other: &RankTimeline) -> Self {
        match (&one.kineto.host_name, &other.kineto.host_name) {
            (Some(one), Some(other)) if one == other => Self::Same,
            (Some(_), Some(_)) => Self::Different,
            _ => Self::Unknown,
        }
    }
}

fn estimate(seen: &ClockObservations, sign: i64, hosts: HostRelation) -> ClockOffset {
    let mut differences: Vec<i64> = seen.differences.iter().map(|d| d * sign).collect();
    let estimate = median(&mut differences);
    let mut distances: Vec<i64> = differences
        .iter()
        .map(|d| d.saturating_sub(estimate).saturating_abs())
        .collect();
    let spread = median(&mut distances);
    let bounds = match sign {
        1 => seen.bounds,
        _ => (-seen.bounds.1, -seen.bounds.0),
    };
    // Drifting clocks can contradict causality; the estimate, or the middle, is used as it is then.
    let possible = bounds.0 <= bounds.1;
    let demanded = |offset: i64| match possible {
        true => offset.clamp(bounds.0, bounds.1),
        false if differences.is_empty() => bounds.1 + (bounds.0 - bounds.1) / 2,
        false => estimate,
    };
    let noise = estimate.saturating_abs() <= NOISE.max(spread.saturating_mul(3));
    let applied = match hosts {
        _ if differences.is_empty() => demanded(0),
        HostRelation::Same => demanded(0),
        HostRelation::Unknown if noise && demanded(0) == 0 => 0,
        HostRelation::Unknown | HostRelation::Different => demanded(estimate),
    };
    ClockOffset {
        applied,
        estimate,
        spread,
        bounds,
        observed: seen.observed,
        same_host: hosts == HostRelation::Same,
    }
}

fn observe(calls: &[CommCalls], matches: &CallMatches) -> BTreeMap<(u32, u32), ClockObservations> {
    let mut between: BTreeMap<(u32, u32), ClockObservations> = BTreeMap::new();
    let call = |at: (u32, u32)| -> &CommCall { &calls[at.0 as usize].list[at.1 as usize] };
    for matched in &matches.collectives {
        if matched.kind.has_root() {
            continue;
        }
        // Against the first member and the neighbour: all pairs would be quadratic in large groups, and a chain of
        // neighbours reaches every member.
        let first = matched.members[0];
        let neighbours = matched.members.windows(2).map(|pair| (pair[0], pair[1]));
        let firsts = matched.members.iter().skip(2).map(|&other| (first, other));
        for (a, b) in neighbours.chain(firsts) {
            // Pairs are kept once, with the lower rank first, which fixes the sign.
            let (a, b) = if a.0 < b.0 { (a, b) } else { (b, a) };
            let seen = between.entry((a.0, b.0)).or_default();
            let (one, other) = (call(a), call(b));
            seen.differences.push(one.end - other.end);
            // Neither member can have ended before the other started.
            seen.bounds.0 = seen.bounds.0.max(one.start - other.end);
            seen.bounds.1 = seen.bounds.1.min(one.end - other.start);
            seen.observed += 1;
        }
    }
    for message in &matches.messages {
        let (send, receive) = (call(message.send), call(message.receive));
        let (from, to) = (message.send.0, message.receive.0);
        let seen = between.entry((from.min(to), from.max(to))).or_default();
        seen.observed += 1;
        // The receive ended after the send started, once the receiver's clock is corrected.
        let least = send.start - receive.end;
        if from < to {
            seen.bounds.0 = seen.bounds.0.max(least)
        } else {
            seen.bounds.1 = seen.bounds.1.min(-least)
        }
    }
    between
}

fn median(values: &mut [i64]) -> i64 {
    let [lower, upper] = statistics::middle(values).unwrap_or_default();
    lower.saturating_add(upper.saturating_sub(lower) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(differences: &[i64], bounds: (i64, i64)) -> ClockObservations {
        ClockObservations {
            differences: differences.to_vec(),
            bounds,
            observed: differences.len() as u32,
        }
    }

    #[test]
    fn the_estimate_is_the_median_within_what_causality_allows() {
        // Ends differ by 3 ms give or take; one straggler of 9 ms does not move the median.
        let ms = 1_000_000;
        let seen = seen(
            &[3 * ms, 3 * ms + 40, 9 * ms, 3 * ms - 20, 3 * ms + 5],
            (ms, 4 * ms),
        );
        let offset = estimate(&seen, 1, HostRelation::Different);
        assert_eq!((offset.applied, offset.estimate), (3 * ms + 5, 3 * ms + 5));
        // Distances 5, 35, 6 ms − 5, 25, 0: the median is 25.
        assert_eq!(offset.spread, 25);
        // Seen from the other side everything is turned round.
        assert_eq!(
            estimate(&seen, -1, HostRelation::Different).applied,
            -3 * ms - 5
        );
    }

    #[test]
    fn one_host_has_one_clock_unless_causality_says_no() {
        let noise = seen(&[200_000, -300_000, 250_000], (-1_000_000, 1_000_000));
        assert_eq!(estimate(&noise, 1, HostRelation::Same).applied, 0);
        assert_eq!(estimate(&noise, 1, HostRelation::Unknown).applied, 0);
        let different = estimate(&noise, 1, HostRelation::Different);
        assert_eq!(different.applied, 200_000);
        // Zero is impossible: the clock moves to the nearer bound.
        let apart = seen(&[200_000, -300_000, 250_000], (150_000, 1_000_000));
        assert_eq!(estimate(&apart, 1, HostRelation::Same).applied, 150_000);
        // However large the estimate, zero is possible.
        let late = seen(&[9_000_000, 9_100_000], (-1, 20_000_000));
        assert_eq!(estimate(&late, 1, HostRelation::Same).applied, 0);
    }

    #[test]
    fn messages_alone_move_no_clock_but_where_they_must() {
        for hosts in [
            HostRelation::Same,
            HostRelation::Different,
            HostRelation::Unknown,
        ] {
            let loose = seen(&[], (-3_000_000, 50_000_000));
            assert_eq!(estimate(&loose, 1, hosts).applied, 0);
            let tight = seen(&[], (2_000_000, 50_000_000));
            assert_eq!(estimate(&tight, 1, hosts).applied, 2_000_000);
            assert_eq!(estimate(&tight, -1, hosts).applied, -2_000_000);
        }
    }
}
