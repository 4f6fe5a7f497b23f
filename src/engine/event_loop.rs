//! The loop: one function of components, which say themselves how far they go.

use chakram_base::units::Time;
use std::ops::ControlFlow;

/// Components whose events are handled round by round: all of a replay, or a collective by itself.
pub(super) trait LoopComponents {
    /// Returns the instant of the next round, `None` when nothing is pending or the end is reached.
    fn next(&mut self) -> Option<Time>;

    /// Takes the events of the round and handles them.
    fn round(&mut self, now: Time);

    /// Carries out what comes after them. Breaks where the run cannot go on.
    fn end_round(&mut self, now: Time) -> ControlFlow<()>;
}

/// Runs components to their end.
#[inline]
pub(super) fn run(components: &mut impl LoopComponents) {
    while let Some(now) = components.next() {
        components.round(now);
        if components.end_round(now).is_break() {
            return;
        }
    }
}
