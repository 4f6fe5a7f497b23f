//! What differs between two jobs: traces, whatever the numbers of their nodes and the order of their
//! records; and reports of replays.
//!
//! Two traces are compared in three steps. [`pairs`](mod@pairs) finds which node of the one is which of the
//! other; [`Differences`] says what differs, given that; [`Tally`] adds up, over nodes and over ranks. A
//! pairing can be poor and what is said still true: it is only more than it had to be.
//!
//! ```
//! use chakram::diff::{Outline, traces};
//! use chakram::trace::Contents;
//!
//! let files = ["traces/data-parallel-8/job.0.et", "traces/data-parallel-8/job.1.et"];
//! let [a, b] = files.map(|file| Contents::open(file.as_ref()).expect("it is there"));
//! let (a, b) = (Outline::read(a.as_slice()), Outline::read(b.as_slice()));
//! assert!(traces(&a, &b).is_empty());
//! ```

mod align;
mod alike;
mod alone;
mod classes;
pub(crate) mod differences;
mod fields;
mod flood;
mod labels;
pub(crate) mod pairs;
pub(crate) mod render;
pub(crate) mod reports;
mod same_ids;
mod side;
pub(crate) mod tally;
mod value;

pub use crate::graph::Outline;
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
