//! Links that differ from the others of their dimension.

use super::{Bandwidth, LinkGraph, Npu, Span};

/// A change of links: those of an NPU along a dimension, or those between two NPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkChange {
    /// Ends that are NPUs: of links that have one of them at one end, or one at either.
    pub npus: Vec<Npu>,
    /// Whether both ends are among them.
    pub between: bool,
    /// Only those of this dimension.
    pub dimension: Option<u32>,
    /// New rate.
    pub bandwidth: Option<Bandwidth>,
    /// New latency.
    pub latency: Option<Span>,
}

/// A change that touches no link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkChangeFault {
    /// Index of the change.
    pub change: usize,
}

impl LinkGraph {
    /// The same with some links changed, in turn.
    ///
    /// # Errors
    ///
    /// The first change that touches no link.
    pub fn with_changes(mut self, changes: &[LinkChange]) -> Result<Self, LinkChangeFault> {
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
                return Err(LinkChangeFault { change: number });
            }
        }
        Ok(self)
    }
}
