//! Compares two jobs by their traces (regardless of node ids and record order) or by their replay reports.
//!
//! Traces are compared in three steps. First, [`matching`](mod@matching) finds which nodes of the two traces
//! correspond. Then [`TraceDiff`] lists the differences between corresponding nodes, and [`DiffTally`] sums them over
//! nodes and ranks. A poor matching leads to more reported differences than necessary, but every reported difference is
//! true.

pub mod differences;
mod fields;
mod labels;
pub mod matching;
mod node_labels;
pub mod render;
pub mod reports;
mod side;
pub mod tally;
mod value;

pub use chakram_trace::graph::RawTrace;
pub use differences::{AddedOrRemovedDependency, ChangedNode, TraceDiff, compare_traces};
pub use fields::{NodeField, NodeFieldChange, StructureTimeOrBytesAspect};
pub use tally::{DiffTally, TimeTolerance};
pub use value::NodeFieldValue;

use serde::Serialize;

/// An amount in two jobs, such as before and after a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(into = "render::json::AmountChangeRow")]
pub struct AmountChange {
    /// Amount in the first job.
    pub before: u128,
    /// Amount in the second job.
    pub after: u128,
}

impl AmountChange {
    /// Returns the increase; negative for a decrease.
    pub fn signed_increase(&self) -> i128 {
        self.after as i128 - self.before as i128
    }

    /// Returns the increase as a percentage; `None` for an increase from zero to a nonzero amount.
    pub fn percent_increase(&self) -> Option<f64> {
        match (self.before, self.signed_increase()) {
            (_, 0) => Some(0.0),
            (0, _) => None,
            (before, more) => Some(100.0 * more as f64 / before as f64),
        }
    }

    /// Returns true if the amount increased or decreased by more than `percent`.
    pub fn exceeds_percent(&self, percent: f64) -> bool {
        self.percent_increase()
            .is_none_or(|found| found.abs() > percent)
    }
}
