//! Failures: NPUs and links that stop working during a replay.

use chakram_base::ids::Npu;
use chakram_base::units::{Span, Time};
use std::fmt;
use std::str::FromStr;

/// A part of a machine that can fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailedNpuOrNamedLinks {
    /// An NPU, and everything that runs on it.
    Npu(Npu),
    /// All links, in both directions, between two vertices of the network, identified by name: `0-1`, `0-nvlink switch
    /// at 0`. [`LinkGraph::links_between_named_ends`](crate::topology::link_graph::LinkGraph::links_between_named_ends)
    /// resolves the names.
    Link(String),
}

/// A part that fails, and the time at which it fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedPartAndTime {
    /// The NPU or the links that fail.
    pub part: FailedNpuOrNamedLinks,
    /// Time at which the part stops working.
    pub at: Time,
}

impl FailedPartAndTime {
    /// Description of the expected text, for error messages.
    pub const EXPECTED: &str =
        "NPU@TIME or VERTEX-VERTEX@TIME, such as 3@2ms, 0-1@500us or `0-nvlink switch at 0@2ms`";
}

impl FailedPartAndTime {
    /// Formats the failure as a sentence: `NPU 3 failed at 2.000 ms`.
    pub fn to_sentence(&self) -> String {
        format!("{} failed at {}", self.part, self.at.since(Time::ZERO))
    }
}

impl FromStr for FailedNpuOrNamedLinks {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let text = text.trim();
        match text.parse() {
            Ok(npu) => Ok(Self::Npu(Npu(npu))),
            Err(_) if text.contains('-') => Ok(Self::Link(text.to_owned())),
            Err(_) => Err(()),
        }
    }
}

impl FromStr for FailedPartAndTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("expected {}", Self::EXPECTED);
        // The last `@` separates the time, because names of vertices may contain an `@`.
        let (part, at) = text.rsplit_once('@').ok_or_else(expected)?;
        let at: Span = at.trim().parse().map_err(|error| format!("{error}"))?;
        Ok(Self {
            part: part.parse().map_err(|()| expected())?,
            at: Time::ZERO + at,
        })
    }
}

impl fmt::Display for FailedNpuOrNamedLinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Npu(npu) => write!(f, "NPU {npu}"),
            Self::Link(ends) => write!(f, "link {ends}"),
        }
    }
}

impl fmt::Display for FailedPartAndTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.part, self.at.since(Time::ZERO))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_parsed_from_their_part_and_time() {
        let at = |text: &str| text.parse::<FailedPartAndTime>();
        let of = |part, us: u64| FailedPartAndTime {
            part,
            at: Time::ZERO + Span::from_ns(1000 * us),
        };
        assert_eq!(
            at("3@2ms"),
            Ok(of(FailedNpuOrNamedLinks::Npu(Npu(3)), 2000))
        );
        let link = |text: &str| FailedNpuOrNamedLinks::Link(text.to_owned());
        assert_eq!(at("0-1@ 500 us"), Ok(of(link("0-1"), 500)));
        let switch = "0-rail@1 switch at 0";
        assert_eq!(at(&format!("{switch}@1 us")), Ok(of(link(switch), 1)));
        assert_eq!(at("3@2ms").unwrap().to_string(), "NPU 3 at 2.000 ms");
        for wrong in ["3", "3@", "3@2", "x@2ms", "@2ms", "3@-2ms"] {
            assert!(at(wrong).is_err(), "{wrong}");
        }
    }
}
