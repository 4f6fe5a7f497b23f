//! Finds repeated parts of passes by the structure of their operators.

use std::collections::BTreeMap;

/// Maximum number of candidate layer lengths, which are distances between equal nodes.
const MAX_PERIODS: usize = 64;

/// A repeated part of a node list: its start, the length of one repetition, and how often it repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeRepetitionPeriodAndCount {
    pub start: usize,
    pub period: usize,
    pub times: usize,
}

impl NodeRepetitionPeriodAndCount {
    pub fn covered_count(&self) -> usize {
        self.period * self.times
    }
}

/// Returns the repetition that covers the largest part of `signatures`. If `times` is given, considers only parts with
/// exactly this number of repetitions. If several repetitions cover the same length, returns the one with the shortest
/// period.
pub(super) fn longest_repetition(
    signatures: &[u64],
    times: Option<usize>,
) -> Option<NodeRepetitionPeriodAndCount> {
    let mut best: Option<NodeRepetitionPeriodAndCount> = None;
    for period in find_candidate_periods(signatures) {
        let mut run = 0;
        for at in period..=signatures.len() {
            if at < signatures.len() && signatures[at] == signatures[at - period] {
                run += 1;
                continue;
            }
            let found = NodeRepetitionPeriodAndCount {
                start: at - run - period,
                period,
                times: run / period + 1,
            };
            run = 0;
            let fits = found.times >= 2 && times.is_none_or(|times| times == found.times);
            let more = best.is_none_or(|best| found.covered_count() > best.covered_count());
            if fits && more {
                best = Some(found);
            }
        }
    }
    best
}

/// Returns the most promising distances between equal signatures, shortest first.
fn find_candidate_periods(signatures: &[u64]) -> Vec<usize> {
    let mut last: BTreeMap<u64, usize> = BTreeMap::new();
    let mut distances: BTreeMap<usize, usize> = BTreeMap::new();
    for (at, &signature) in signatures.iter().enumerate() {
        if let Some(before) = last.insert(signature, at) {
            *distances.entry(at - before).or_default() += 1;
        }
    }
    let mut all: Vec<(usize, usize)> = distances.into_iter().collect();
    // The score of a distance is its frequency times its length. Rare long distances can therefore compete with
    // frequent short ones.
    all.sort_by_key(|&(distance, count)| {
        (std::cmp::Reverse(distance.saturating_mul(count)), distance)
    });
    let mut periods: Vec<usize> = all
        .into_iter()
        .take(MAX_PERIODS)
        .map(|(distance, _)| distance)
        .collect();
    periods.sort_unstable();
    periods
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list x a b c a b c a b c y contains three repetitions of length three, starting at index
    /// 1.
    #[test]
    fn the_longest_repetition_is_found_with_its_shortest_period() {
        let found = longest_repetition(&[9, 1, 2, 3, 1, 2, 3, 1, 2, 3, 8], None);
        let expected = NodeRepetitionPeriodAndCount {
            start: 1,
            period: 3,
            times: 3,
        };
        assert_eq!(found, Some(expected));
        // In `a a b a a b`, the repetition of `a` covers two nodes, and the repetition of `a a b` covers all six.
        let found = longest_repetition(&[1, 1, 2, 1, 1, 2], None);
        assert_eq!(
            found,
            Some(NodeRepetitionPeriodAndCount {
                start: 0,
                period: 3,
                times: 2
            })
        );
        assert_eq!(longest_repetition(&[1, 2, 3], None), None);
        let twice = longest_repetition(&[1, 2, 1, 2, 5, 7, 7, 7], Some(3));
        assert_eq!(
            twice,
            Some(NodeRepetitionPeriodAndCount {
                start: 5,
                period: 1,
                times: 3
            })
        );
    }
}
