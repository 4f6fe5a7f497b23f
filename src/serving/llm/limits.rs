//! Limits on how long requests take, for all requests or for a class.

use chakram_base::units::Span;

/// Describes the limits on all requests if classes have different limits.
pub(super) const LIMITS_OF_CLASSES: &str = "their limits";

/// Limits on the times of requests; `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LlmTimeLimits {
    /// Limit on the time until the first token.
    pub ttft: Option<Span>,
    /// Limit on the time per token after the first.
    pub tpot: Option<Span>,
    /// Limit on the time until the last token.
    pub e2e: Option<Span>,
}

impl LlmTimeLimits {
    /// Returns these limits, with missing limits taken from `other`.
    pub fn with_missing_limits_from(&self, other: &Self) -> Self {
        Self {
            ttft: self.ttft.or(other.ttft),
            tpot: self.tpot.or(other.tpot),
            e2e: self.e2e.or(other.e2e),
        }
    }

    /// Returns true if there is a limit.
    pub fn has_any_limit(&self) -> bool {
        self.ttft.is_some() || self.tpot.is_some() || self.e2e.is_some()
    }

    /// Formats the limits as text.
    pub fn describe_limits(&self) -> String {
        let all = [("TTFT", self.ttft), ("TPOT", self.tpot), ("E2E", self.e2e)];
        let stated = all
            .iter()
            .filter_map(|(name, limit)| limit.map(|limit| format!("{name} {limit}")));
        stated.collect::<Vec<_>>().join(", ")
    }
}
