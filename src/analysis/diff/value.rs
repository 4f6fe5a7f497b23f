//! Field values in differences.

use chakram_base::units::Span;
use serde::Serialize;
use std::fmt;

/// Value of a field of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(untagged)]
pub enum NodeFieldValue {
    /// The field has no value.
    Absent,
    /// A count of bytes or operations.
    Count(u64),
    /// A time.
    Time(Span),
    /// Any other value.
    Text(String),
}

impl NodeFieldValue {
    /// Returns a count, or a time in picoseconds; `None` for other values.
    pub fn as_number(&self) -> Option<u64> {
        match self {
            Self::Count(count) => Some(*count),
            Self::Time(span) => Some(span.0),
            Self::Absent | Self::Text(_) => None,
        }
    }
}

impl fmt::Display for NodeFieldValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.pad("nothing"),
            Self::Count(count) => f.pad(&chakram_report::summary::format_thousands(*count)),
            Self::Time(span) => fmt::Display::fmt(span, f),
            Self::Text(text) => f.pad(text),
        }
    }
}
