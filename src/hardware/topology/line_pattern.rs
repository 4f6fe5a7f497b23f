//! Pattern of the messages among the members of a line.

/// Partners of the members of a line, and the times at which they send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinePattern {
    /// Each member sends to the next member of the line, and the last member sends to the first
    /// member.
    Neighbours,
    /// All members send the same amount over the same distance at the same instants, and send again
    /// when all members have received.
    InStep,
    /// As [`Self::InStep`], but a member may send again before all have received, to another
    /// distance; the amount is always the same.
    Staggered,
    /// Any other pattern.
    Any,
}
