//! Differences for people, for programs, and for spreadsheets.

pub mod csv;
pub mod json;
pub mod text;
pub(super) mod words;

use super::tally::Tally;
use crate::report::text::Style;

/// What two jobs are called, and how much is shown of how they differ.
#[derive(Clone, Copy, Debug)]
pub struct Titles<'t> {
    /// What the two are called.
    pub names: [&'t str; 2],
    /// How many lines of each list are shown; all if not said.
    pub show: Option<usize>,
    /// How headings and warnings stand out.
    pub style: Style,
}

impl Titles<'_> {
    /// How many of `count` lines are shown.
    pub(super) fn shown(&self, count: usize) -> usize {
        self.show.map_or(count, |show| show.min(count))
    }
}

/// The verdict on what was asked to be held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// What exceeds its threshold, one sentence each.
    pub exceeded: Vec<String>,
}

/// What shall be held.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// By how many percent totals may change, either way.
    pub threshold: Option<f64>,
    /// Respects in which nothing may differ.
    pub aspects: Vec<super::Aspect>,
}

impl Limits {
    /// Whether any of `totals`, or a respect in which something `differs`, is beyond the limits.
    pub(super) fn judge(
        &self,
        totals: &[(&str, super::Shift)],
        differs: impl Fn(super::Aspect) -> bool,
    ) -> Verdict {
        let mut exceeded = Vec::new();
        if let Some(threshold) = self.threshold {
            for (what, shift) in totals.iter().filter(|(_, shift)| shift.exceeds(threshold)) {
                let by = words::percent(shift).unwrap_or_else(|| "from nothing".to_owned());
                exceeded.push(format!("{what} changed by {by}, more than {threshold} %"));
            }
        }
        for &aspect in &self.aspects {
            if differs(aspect) {
                exceeded.push(format!("{} differs", words::aspect(aspect)));
            }
        }
        Verdict { exceeded }
    }

    /// Holds the differences of traces.
    pub fn hold(&self, tally: &Tally) -> Verdict {
        let totals = [("time", tally.total.time()), ("bytes", tally.total.bytes)];
        self.judge(&totals, |aspect| tally.differs(aspect))
    }
}
