//! The loop: one function of components, which say themselves how far they go.

use chakram_base::interrupt::Interruption;
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

    /// Checks that the run may go on, every [`ROUNDS_BETWEEN_CHECKS`] rounds.
    fn check(&self) -> Result<(), Interruption>;
}

/// Rounds take from a tenth of a microsecond to milliseconds, and a check a few nanoseconds.
const ROUNDS_BETWEEN_CHECKS: u32 = 256;

/// Runs components to their end.
///
/// # Errors
///
/// Fails if the run is interrupted; its components are then anywhere on their way.
#[inline]
pub(super) fn run(components: &mut impl LoopComponents) -> Result<(), Interruption> {
    let mut rounds_left = 1;
    while let Some(now) = components.next() {
        rounds_left -= 1;
        if rounds_left == 0 {
            components.check()?;
            rounds_left = ROUNDS_BETWEEN_CHECKS;
        }
        components.round(now);
        if components.end_round(now).is_break() {
            break;
        }
    }
    Ok(())
}
