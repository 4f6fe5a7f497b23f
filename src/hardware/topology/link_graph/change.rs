//! Changes of individual links. A changed link differs from the other links of its dimension.

use super::{Bandwidth, LinkGraph, Npu, Span};

/// A change to the rate or latency of links: all links of an NPU along a dimension, or the links between two NPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkRateAndLatencyChange {
    /// NPUs at the ends of the links. With `between`, both ends must be in the list; otherwise one suffices.
    pub npus: Vec<Npu>,
    /// True if both ends must be among `npus`, false if one suffices.
    pub between: bool,
    /// Index of the dimension whose links change, or `None` for all dimensions.
    pub dimension: Option<u32>,
    /// New rate, or `None` to keep the current rate.
    pub bandwidth: Option<Bandwidth>,
    /// New latency, or `None` to keep the current latency.
    pub latency: Option<Span>,
}

/// The error for a change that applies to no link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnmatchedLinkChangeError {
    /// Index of the change in the list of changes.
    pub change: usize,
}

impl LinkGraph {
    /// Returns the graph with `changes` applied to its links, one after another.
    ///
    /// # Errors
    ///
    /// Fails if a change applies to no link. The error names the first such change.
    pub fn with_changes(
        mut self,
        changes: &[LinkRateAndLatencyChange],
    ) -> Result<Self, UnmatchedLinkChangeError> {
        for (number, change) in changes.iter().enumerate() {
            let mut any = false;
            for link in &mut self.links {
                let named = [link.from, link.to].map(|end| change.npus.contains(&Npu(end)));
                let ends = if change.between {
                    named == [true, true]
                } else {
                    named.contains(&true)
                };
                if ends && change.dimension.is_none_or(|d| d == link.dimension) {
                    link.bandwidth = change.bandwidth.unwrap_or(link.bandwidth);
                    link.latency = change.latency.unwrap_or(link.latency);
                    any = true;
                }
            }
            if !any {
                return Err(UnmatchedLinkChangeError { change: number });
            }
        }
        Ok(self)
    }
}
