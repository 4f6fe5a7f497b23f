//! The part of a replay to draw: a set of ranks, and a time range.

use chakram_base::ids::Rank;
use chakram_base::units::Time;
use std::ops::RangeInclusive;

/// Ranks and times to draw. By default, everything is drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineSelection {
    /// Ranges of ranks to draw; empty means all ranks.
    pub ranks: Vec<RangeInclusive<u32>>,
    /// Nodes that complete before this time are not drawn.
    pub from: Time,
    /// Nodes that start after this time are not drawn.
    pub to: Time,
}

impl Default for TimelineSelection {
    fn default() -> Self {
        Self {
            ranks: Vec::new(),
            from: Time::ZERO,
            to: Time::END,
        }
    }
}

impl TimelineSelection {
    /// Returns true if `rank` is drawn.
    pub fn has_rank(&self, rank: Rank) -> bool {
        self.ranks.is_empty() || self.ranks.iter().any(|range| range.contains(&rank.0))
    }

    /// Returns true if the interval from `start` to `end` overlaps the drawn time range.
    pub fn overlaps_interval(&self, start: Time, end: Time) -> bool {
        start <= self.to && end >= self.from
    }
}
