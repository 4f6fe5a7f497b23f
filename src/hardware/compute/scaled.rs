//! Scaled: every kernel takes a constant factor of its recorded duration.

use chakram_base::units::Span;

/// A `factor` below 1 means faster hardware. Rounded to the nearest picosecond.
pub(super) fn duration(recorded: Span, factor: f64) -> Span {
    recorded.scaled(factor)
}
