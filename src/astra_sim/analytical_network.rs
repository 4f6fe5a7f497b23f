//! ASTRA-sim's analytical networks.

use chakram_base::setting::EnumeratedSetting;
use std::fmt;

/// Analytical network of ASTRA-sim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnalyticalCongestionModel {
    /// Congestion-unaware: messages never wait for a link.
    Unaware,
    /// Congestion-aware: a link carries one message at a time, and the network has one dimension.
    Aware,
}

impl EnumeratedSetting for AnalyticalCongestionModel {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Unaware, "unaware", "No contention"),
        (
            Self::Aware,
            "aware",
            "One message per link at a time; one dimension only",
        ),
    ];
}

impl fmt::Display for AnalyticalCongestionModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.choice_name())
    }
}
