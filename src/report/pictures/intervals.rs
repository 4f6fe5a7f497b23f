//! A sequence of intervals with keys (such as categories). It stores at most as many intervals as a picture can show.

use chakram_base::units::{Span, Time};
use std::cmp::Reverse;

/// An interval with its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyedInterval<K> {
    pub from: Time,
    pub to: Time,
    pub key: K,
}

/// Contiguous intervals in order of time.
#[derive(Clone, Debug)]
pub struct ContiguousIntervals<K> {
    kept: Vec<KeyedInterval<K>>,
    /// Maximum number of intervals stored during a replay.
    limit: usize,
}

impl<K: Copy + Ord> ContiguousIntervals<K> {
    /// Creates an empty sequence that stores at most `limit` intervals.
    pub const fn new(limit: usize) -> Self {
        Self {
            kept: Vec::new(),
            limit,
        }
    }

    /// Appends an interval with `key` that lasts from the end of the last interval to `to`.
    pub fn append_interval_until(&mut self, to: Time, key: K) {
        let from = self.kept.last().map_or(Time::ZERO, |last| last.to);
        if to <= from {
            return;
        }
        match self.kept.last_mut() {
            Some(last) if last.key == key => last.to = to,
            _ => self.kept.push(KeyedInterval { from, to, key }),
        }
        if self.kept.len() > self.limit {
            self.kept = merge_short_intervals(&self.kept, Span(to.0 / (self.limit as u64 / 4)));
        }
    }

    /// Returns the `count` longest of the stored intervals.
    pub fn longest_intervals(&self, count: usize) -> Vec<KeyedInterval<K>> {
        let mut all = self.kept.clone();
        all.sort_by_key(|one| (Reverse(one.to.since(one.from)), one.from));
        all.truncate(count);
        all
    }

    /// Returns the intervals. Adjacent intervals are merged if their total length is at most `resolution`.
    pub fn merge_intervals_up_to_resolution(&self, resolution: Span) -> Vec<KeyedInterval<K>> {
        merge_short_intervals(&self.kept, resolution)
    }
}

/// Merges adjacent intervals if their total length is at most `resolution`. A merged interval gets the key that takes
/// most of its time.
fn merge_short_intervals<K: Copy + Ord>(
    all: &[KeyedInterval<K>],
    resolution: Span,
) -> Vec<KeyedInterval<K>> {
    let mut out: Vec<KeyedInterval<K>> = Vec::new();
    let mut push = |interval: KeyedInterval<K>| match out.last_mut() {
        Some(last) if last.key == interval.key => last.to = interval.to,
        _ => out.push(interval),
    };
    let length = |interval: &KeyedInterval<K>| interval.to.since(interval.from);
    let mut rest = all;
    while let Some(first) = rest.first() {
        let until = first.from + resolution;
        let short = rest.iter().take_while(|one| one.to <= until).count().max(1);
        let (group, others) = rest.split_at(short);
        rest = others;
        let mut keys: Vec<(K, Span)> = group.iter().map(|one| (one.key, length(one))).collect();
        keys.sort_unstable();
        let mut sums: Vec<(K, Span)> = Vec::new();
        for (key, time) in keys {
            match sums.last_mut() {
                Some(last) if last.0 == key => last.1 += time,
                _ => sums.push((key, time)),
            }
        }
        let longest = sums.into_iter().max_by_key(|(_, time)| *time);
        push(KeyedInterval {
            from: first.from,
            to: group[group.len() - 1].to,
            key: longest.map_or(first.key, |(key, _)| key),
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_intervals_are_drawn_as_the_longest_among_them() {
        let mut all = ContiguousIntervals::new(1 << 15);
        for (to, key) in [
            (100, 'a'),
            (103, 'b'),
            (104, 'c'),
            (108, 'b'),
            (200, 'a'),
            (300, 'a'),
        ] {
            all.append_interval_until(Time(to), key);
        }
        let exact: Vec<_> = all
            .clone()
            .merge_intervals_up_to_resolution(Span(0))
            .iter()
            .map(|one| (one.to.0, one.key))
            .collect();
        assert_eq!(
            exact,
            [(100, 'a'), (103, 'b'), (104, 'c'), (108, 'b'), (300, 'a')]
        );
        // In the interval from 100 to 108, `b` takes 7 and `c` takes 1.
        let coarse: Vec<_> = all
            .merge_intervals_up_to_resolution(Span(10))
            .iter()
            .map(|one| (one.to.0, one.key))
            .collect();
        assert_eq!(coarse, [(100, 'a'), (108, 'b'), (300, 'a')]);
    }

    #[test]
    fn endless_runs_keep_a_bounded_number() {
        let mut all = ContiguousIntervals::new(1 << 15);
        for to in 1..1_000_000_u64 {
            all.append_interval_until(Time(to * 10), to % 3);
        }
        assert!(all.kept.len() <= all.limit);
        let drawn = all.merge_intervals_up_to_resolution(Span(10_000_000 / 1200));
        assert!(drawn.len() <= 2400, "{}", drawn.len());
        assert_eq!(drawn[drawn.len() - 1].to, Time(9_999_990));
    }
}
