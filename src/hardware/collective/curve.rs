//! Measured collectives: time by kind, number of members and bytes, along one dimension of a machine.
//!
//! Between two measured sizes time is linear in bytes, as a latency and a rate make it; above the last one time grows with
//! bytes, and below the first it stays. Between two measured numbers of members time is linear in their number. A
//! curve is the time of a collective that nothing else disturbs, from the arrival of its last member.

use crate::group::GroupExtent;
use chakram_base::collective_kind::CollectiveKind;
use chakram_base::units::Span;

/// Times of one kind of collective among one number of members.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectiveCurve {
    /// The kind.
    pub kind: CollectiveKind,
    /// Number of members.
    pub members: u32,
    /// Bytes of the whole buffer and seconds, bytes ascending; at least one point, no number is zero.
    pub points: Vec<(f64, f64)>,
}

impl CollectiveCurve {
    /// Seconds with a buffer of `bytes`.
    pub fn seconds(&self, bytes: f64) -> f64 {
        let above = self.points.partition_point(|point| point.0 < bytes);
        let (Some(first), Some(last)) = (self.points.first(), self.points.last()) else {
            return 0.0;
        };
        match (above, self.points.get(above)) {
            (0, _) => first.1,
            (_, None) => last.1 * bytes / last.0,
            (i, Some(next)) => {
                let before = self.points[i - 1];
                let part = (bytes - before.0) / (next.0 - before.0);
                before.1 + part * (next.1 - before.1)
            }
        }
    }
}

/// Returns the time of a collective of `kind` with a buffer of `bytes`, if its members lie along one dimension and the
/// `curves` of that dimension, one list for each, have their number between them.
pub fn measured(
    curves: &[Vec<CollectiveCurve>],
    (kind, bytes): (CollectiveKind, u64),
    extent: &GroupExtent,
) -> Option<Span> {
    let [phase] = &extent.phases[..] else {
        return None;
    };
    let alike = curves
        .get(phase.dimension)?
        .iter()
        .filter(|curve| curve.kind == kind);
    let (mut below, mut above): (Option<&CollectiveCurve>, Option<&CollectiveCurve>) = (None, None);
    for curve in alike {
        if curve.members <= phase.size && below.is_none_or(|b| b.members < curve.members) {
            below = Some(curve);
        }
        if curve.members >= phase.size && above.is_none_or(|a| a.members > curve.members) {
            above = Some(curve);
        }
    }
    let (below, above) = (below?, above?);
    let [low, high] = [below, above].map(|curve| curve.seconds(bytes as f64));
    let gap = f64::from(above.members - below.members);
    let part = if gap > 0.0 {
        f64::from(phase.size - below.members) / gap
    } else {
        0.0
    };
    Some(Span::from_seconds(low + part * (high - low)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_interpolated_between_sizes() {
        let curve = CollectiveCurve {
            kind: CollectiveKind::AllReduce,
            members: 8,
            points: vec![(1e3, 1e-5), (1e5, 1e-3)],
        };
        // Half way from 1e3 to 1e5 is 50,500, and from 1e-5 to 1e-3 it is 5.05e-4.
        assert!((curve.seconds(50_500.0) / 5.05e-4 - 1.0).abs() < 1e-12);
        assert_eq!(curve.seconds(1.0), 1e-5);
        assert_eq!(curve.seconds(1e3), 1e-5);
        // Ten times the bytes of the last point.
        assert!((curve.seconds(1e6) / 1e-2 - 1.0).abs() < 1e-12);
    }
}
