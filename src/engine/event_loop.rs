//! The event loop, which runs until no events are left or its components decide to end.

use chakram_base::interrupt::StopOrMemoryInterruption;
use chakram_base::units::Time;
use std::ops::ControlFlow;

/// Components whose events are handled round by round: a whole replay, or a single collective.
pub(super) trait EventRoundHandler {
    /// Returns the instant of the next round, or `None` if no event is pending or if the components decide to end.
    fn next_round_time(&mut self) -> Option<Time>;

    /// Takes the events of the round at `now` and handles them.
    fn handle_round(&mut self, now: Time);

    /// Does the work after a round's events. Returns `Break` if the run cannot continue.
    fn finish_round_or_stop(&mut self, now: Time) -> ControlFlow<()>;

    /// Checks for an interruption. Called every [`ROUNDS_BETWEEN_CHECKS`] rounds.
    fn check_interruption(&self) -> Result<(), StopOrMemoryInterruption>;
}

/// Number of rounds between checks for an interruption. A round takes 0.1 µs to milliseconds, and a check takes a few
/// nanoseconds.
const ROUNDS_BETWEEN_CHECKS: u32 = 256;

/// Runs components until no event is pending or they decide to end.
///
/// # Errors
///
/// Fails if the run is interrupted; the state of the components is then unspecified.
#[inline]
pub(super) fn run(components: &mut impl EventRoundHandler) -> Result<(), StopOrMemoryInterruption> {
    let mut rounds_left = 1;
    while let Some(now) = components.next_round_time() {
        rounds_left -= 1;
        if rounds_left == 0 {
            components.check_interruption()?;
            rounds_left = ROUNDS_BETWEEN_CHECKS;
        }
        components.handle_round(now);
        if components.finish_round_or_stop(now).is_break() {
            break;
        }
    }
    Ok(())
}
