//! The part of a replay that is drawn: some ranks, and a part of the time.

use chakram_base::ids::Rank;
use chakram_base::units::Time;
use std::ops::RangeInclusive;

/// Ranks and times to draw; everything by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineSelection {
    /// Ranges of ranks; none stands for all ranks.
    pub ranks: Vec<RangeInclusive<u32>>,
    /// Nodes that complete before are left out.
    pub from: Time,
    /// Nodes that start later are left out.
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
    /// Whether `rank` is drawn.
    pub fn has(&self, rank: Rank) -> bool {
        self.ranks.is_empty() || self.ranks.iter().any(|range| range.contains(&rank.0))
    }

    /// Whether something that lasts from `start` to `end` is drawn.
    pub fn meets(&self, start: Time, end: Time) -> bool {
        start <= self.to && end >= self.from
    }
}
