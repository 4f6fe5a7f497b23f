//! What differs between two jobs: traces, whatever the numbers of their nodes and the order of their
//! records; and reports of replays.
//!
//! Two traces are compared in three steps. [`pairs`](mod@pairs) finds which node of the one is which of the
//! other; [`Differences`] says what differs, given that; [`Tally`] adds up, over nodes and over ranks. A
//! pairing can be poor and what is said still true: it is only more than it had to be.

mod align;
mod alike;
mod alone;
mod classes;
pub mod differences;
mod fields;
mod flood;
mod labels;
pub mod pairs;
pub mod render;
pub mod reports;
mod same_ids;
mod side;
pub mod tally;
mod value;

pub use differences::{Changed, Differences, Edge, traces};
pub use fields::{Aspect, Field, FieldChange};
pub use tally::{Tally, Tolerance};
pub use value::Value;

/// A difference in absolute terms and relative to what was there before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shift {
    /// Before.
    pub before: u128,
    /// After.
    pub after: u128,
}

impl Shift {
    /// By how much it is more.
    pub fn more(&self) -> i128 {
        self.after as i128 - self.before as i128
    }

    /// By how many percent it is more; `None` from nothing to something.
    pub fn percent(&self) -> Option<f64> {
        match (self.before, self.more()) {
            (_, 0) => Some(0.0),
            (0, _) => None,
            (before, more) => Some(100.0 * more as f64 / before as f64),
        }
    }

    /// Whether it changed by more than `percent`, either way.
    pub fn exceeds(&self, percent: f64) -> bool {
        self.percent().is_none_or(|found| found.abs() > percent)
    }
}
