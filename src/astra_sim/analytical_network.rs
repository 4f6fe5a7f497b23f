//! The analytical networks of ASTRA-sim.

use std::fmt;

/// The analytical networks of ASTRA-sim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnalyticalNetwork {
    /// No link is ever busy.
    Unaware,
    /// A link carries one message at a time. One dimension only.
    Aware,
}

impl AnalyticalNetwork {
    /// Both with their names.
    pub const ALL: [(Self, &'static str); 2] = [(Self::Unaware, "unaware"), (Self::Aware, "aware")];
}

impl fmt::Display for AnalyticalNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL[*self as usize].1)
    }
}
