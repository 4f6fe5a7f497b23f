//! Patterns in which the members of a line send messages to one another.

/// The partners of a line's members, and when the members send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineSendPattern {
    /// Each member sends to the next member of the line, and the last member sends to the first.
    Neighbours,
    /// All members send the same amount over the same distance at the same time. They send again only when all members
    /// have received.
    InStep,
    /// Like [`Self::InStep`], but a member may send the same amount over a different distance before all members have
    /// received.
    Staggered,
    /// Messages in any other pattern, or in an unknown pattern.
    Any,
}
