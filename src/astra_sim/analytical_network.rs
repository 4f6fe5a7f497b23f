//! The analytical networks of ASTRA-sim.

use chakram_base::setting::SettingChoice;
use std::fmt;

/// The analytical networks of ASTRA-sim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnalyticalNetwork {
    /// No link is ever busy.
    Unaware,
    /// A link carries one message at a time. The network has one dimension.
    Aware,
}

impl SettingChoice for AnalyticalNetwork {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Unaware, "unaware", "No contention"),
        (
            Self::Aware,
            "aware",
            "One message per link at a time; one dimension only",
        ),
    ];
}

impl fmt::Display for AnalyticalNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}
