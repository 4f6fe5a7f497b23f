//! Scaled durations: every kernel takes its recorded duration times a constant factor.

use chakram_base::units::Span;

/// Returns `recorded` times `factor`, rounded to the nearest picosecond. A `factor` below 1 means
/// faster hardware.
pub(super) fn scale_recorded_duration(recorded: Span, factor: f64) -> Span {
    recorded.scale_by(factor)
}
