//! Scaled: every kernel lasts a constant factor of its recorded duration.

use chakram_base::units::Span;

/// `factor` below 1 is faster hardware. Rounded to the nearest picosecond.
pub(super) fn duration(recorded: Span, factor: f64) -> Span {
    recorded.scaled(factor)
}
