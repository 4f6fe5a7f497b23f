//! Pattern of the messages among the members of a line.

/// Partners of the members of a line, and when they send to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinePattern {
    /// Each sends to the next of the line, and the last to the first.
    Neighbours,
    /// All send at the same instants, as much, over one distance, and again when all have received.
    InStep,
    /// Likewise, and perhaps again before that, to another distance and always as much.
    Staggered,
    /// Anything else.
    Any,
}
