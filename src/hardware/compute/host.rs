//! Durations of host work, on the recorded host or on another host.

use super::scaled;
use chakram_base::units::Span;

/// Where the durations of host work come from: host nodes, and delays before nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum HostDurationSource {
    /// Host work takes its recorded duration.
    #[default]
    Recorded,
    /// Host work takes its recorded duration times a factor; a factor below 1 means a faster host.
    Scaled(f64),
}

impl HostDurationSource {
    /// Returns the duration of host work whose recorded duration is `span`, rounded to the nearest picosecond.
    pub fn scale_duration(self, span: Span) -> Span {
        match self {
            Self::Recorded => span,
            Self::Scaled(factor) => scaled::scale_recorded_duration(span, factor),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaled_host_duration_is_factor_times_recorded_duration() {
        // 0.25 x 10 ps = 2.5 ps, rounded half away from zero.
        let quarter = HostDurationSource::Scaled(0.25);
        assert_eq!(quarter.scale_duration(Span(10)), Span(3));
        assert_eq!(
            HostDurationSource::Recorded.scale_duration(Span(10)),
            Span(10)
        );
    }
}
