//! Measured times of collectives along one dimension of a machine, by kind, number of members and bytes.
//!
//! Between two measured sizes, time is linear in bytes: a latency plus bytes divided by a rate. Above the largest size,
//! time grows in proportion to bytes; below the smallest size, time is constant. Between two measured group sizes, time
//! is linear in the number of members. A curve gives the time of an undisturbed collective, counted from the arrival of
//! its last member.
//!
//! **On other links.** A curve was measured on links with bandwidth B and latency α. For links with B' and α', each of
//! the curve's times is split into a start-up time and a transfer time. The curve's points are (x_i, t_i), and L is the
//! last index:
//!
//! ```text
//! asymptote     r = min((t_L - t_{L-1}) / (x_L - x_{L-1}), min over i of t_i / x_i), the former only if above zero
//! start         s_i = min over j >= i of t_j - r x_j, linear between points, constant below the first and above the last
//! transfer      v(x) = t(x) - s(x)
//! t'(x) = s'(x) + v(x) B / B'
//! ```
//!
//! The last points of a curve, where bytes dominate, determine the time per byte. If a curve's time never falls as
//! bytes grow, neither do its start-up and transfer times. A library may use a protocol with less bandwidth at middle
//! sizes. The time beyond the start-up time of larger sizes then counts as transfer time. The start-up time is the
//! collective's launch time, which does not depend on links, plus the latencies of successive messages: `h α` for each
//! of the k [steps](super::protocol), where h is the number of links between neighbours:
//!
//! ```text
//! s' = s + k h (α' - α), or s α' / α if s is less than k h α
//! ```
//!
//! Example: an all-gather on eight H100s has a start-up time of 10.35 us: 4.75 us for the launch, and 0.8 us for each
//! of 7 steps. On two H100s the start-up time is 5.37 us: 4.57 us for the launch, and 0.8 us for one step.

use crate::group::{GroupPhasesAndMemberPositions, PhaseDimensionSizeAndStride};
use crate::topology::{Topology, TopologyDimension};
use chakram_base::collective_kind::CollectiveKind;
use chakram_base::units::{Bandwidth, Span};

/// Bandwidth and latency of the links on which collectives were measured, for one dimension.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasurementSetupLinkProperties {
    /// Bandwidth of an NPU into the dimension.
    pub bandwidth: Bandwidth,
    /// Latency of one link.
    pub latency: Span,
}

impl MeasurementSetupLinkProperties {
    /// Returns the bandwidth and latency of `dimension`'s links.
    pub fn copy_from_topology_dimension(dimension: &TopologyDimension) -> Self {
        Self {
            bandwidth: dimension.bandwidth,
            latency: dimension.latency,
        }
    }
}

/// If the `curves` for `kind` were measured on links other than those of `topology`, returns the dimension and the
/// measured links.
pub fn find_dimension_measured_on_other_links(
    curves: &[Vec<CollectiveCurve>],
    kind: CollectiveKind,
    (extent, topology): (&GroupPhasesAndMemberPositions, &Topology),
) -> Option<(usize, MeasurementSetupLinkProperties)> {
    predict_time_from_one_dimension_curves(curves, (kind, 1), (extent, topology))?;
    let [phase] = &extent.phases[..] else {
        return None;
    };
    let mut curves = curves[phase.dimension].iter();
    let own = MeasurementSetupLinkProperties::copy_from_topology_dimension(
        &topology.dimensions()[phase.dimension],
    );
    let other = |curve: &CollectiveCurve| curve.measured_at.filter(|at| *at != own);
    let at = curves.find_map(|curve| (curve.kind == kind).then(|| other(curve))?)?;
    Some((phase.dimension, at))
}

/// Change from the links on which a collective was measured to the machine's links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredToMachineLinkChange {
    from: MeasurementSetupLinkProperties,
    to: MeasurementSetupLinkProperties,
    /// Number of links between neighbours.
    hops: u32,
}

impl MeasuredToMachineLinkChange {
    /// Returns the change of links that applies to a collective in `phase`. Returns `None` if the phase's links equal
    /// `measured_at`, or if `measured_at` is unknown.
    pub(super) fn between_links(
        measured_at: Option<MeasurementSetupLinkProperties>,
        phase: &PhaseDimensionSizeAndStride,
        topology: &Topology,
    ) -> Option<Self> {
        let dimension = &topology.dimensions()[phase.dimension];
        let (from, to) = (
            measured_at?,
            MeasurementSetupLinkProperties::copy_from_topology_dimension(dimension),
        );
        (from != to).then(|| Self {
            from,
            to,
            hops: dimension.shape.hop_count(dimension.size.max(2), 0, 1),
        })
    }

    /// Returns the factor by which the transfer time changes.
    pub(super) fn transfer_factor(&self) -> f64 {
        self.from.bandwidth.bytes_per_second() / self.to.bandwidth.bytes_per_second()
    }

    /// Returns how much longer, in seconds, a message takes to arrive on the new links.
    pub(super) fn added_latency_seconds(&self) -> f64 {
        let [from, to] = [&self.from, &self.to].map(|rates| rates.latency.as_seconds());
        f64::from(self.hops) * (to - from)
    }

    /// Converts a start-up time of `seconds` to the new links. The start-up time includes the latency of `steps`
    /// successive messages.
    pub(super) fn adjust_start_up_seconds(&self, seconds: f64, steps: f64) -> f64 {
        let latency = |rates: &MeasurementSetupLinkProperties| {
            steps * f64::from(self.hops) * rates.latency.as_seconds()
        };
        let (from, to) = (latency(&self.from), latency(&self.to));
        if from <= seconds {
            seconds - from + to
        } else {
            seconds * to / from
        }
    }
}

/// Returns the number of successive messages in a collective of `kind` among `members`, and the fraction of the buffer
/// that an NPU sends.
pub(super) fn message_count_and_sent_fraction(kind: CollectiveKind, members: u32) -> (f64, f64) {
    let n = f64::from(members.max(1));
    match kind {
        CollectiveKind::AllReduce => (2.0 * (n - 1.0), 2.0 * (n - 1.0) / n),
        CollectiveKind::AllToAll => (1.0, (n - 1.0) / n),
        _ => (n - 1.0, (n - 1.0) / n),
    }
}

/// Times of one kind of collective for one number of members.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectiveCurve {
    /// Kind of the collectives.
    pub kind: CollectiveKind,
    /// Number of members in each collective.
    pub members: u32,
    /// Points (bytes of the whole buffer, seconds), in ascending order of bytes. There is at least one point, and all
    /// numbers are above zero.
    pub points: Vec<(f64, f64)>,
    /// The links used for the measurement, or `None` if the curve applies to any links.
    pub measured_at: Option<MeasurementSetupLinkProperties>,
}

impl CollectiveCurve {
    /// Returns the time, in seconds, for a buffer of `bytes` on the target links of `change`.
    fn seconds_on_changed_links(&self, bytes: f64, change: &MeasuredToMachineLinkChange) -> f64 {
        let start = self.start_up_seconds(bytes);
        let transfer = self.predict_seconds(bytes) - start;
        let (steps, _) = message_count_and_sent_fraction(self.kind, self.members);
        change.adjust_start_up_seconds(start, steps) + transfer * change.transfer_factor()
    }

    /// Returns the start-up time, in seconds, of a collective with a buffer of `bytes`: the part of the time that does
    /// not depend on bandwidth.
    fn start_up_seconds(&self, bytes: f64) -> f64 {
        let points = &self.points[..];
        let rates = points.iter().map(|(bytes, seconds)| seconds / bytes);
        let mut byte = rates.fold(f64::INFINITY, f64::min);
        if let [.., before, last] = points
            && last.1 > before.1
        {
            byte = byte.min((last.1 - before.1) / (last.0 - before.0));
        }
        // A point's start-up time must not exceed the start-up time of any later point.
        let least = |from: usize| {
            let starts = points[from..].iter().map(|point| point.1 - byte * point.0);
            starts.fold(f64::INFINITY, f64::min).max(0.0)
        };
        let above = points.partition_point(|point| point.0 < bytes);
        match (above, points.get(above)) {
            (_, None) => least(points.len() - 1),
            (0, Some(_)) => least(0),
            (i, Some(next)) => {
                let before = points[i - 1];
                let part = (bytes - before.0) / (next.0 - before.0);
                least(i - 1) + part * (least(i) - least(i - 1))
            }
        }
    }

    /// Returns the time, in seconds, for a buffer of `bytes` on the measured links.
    pub fn predict_seconds(&self, bytes: f64) -> f64 {
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

/// Returns the time of a collective of `kind` with a buffer of `bytes` on the links of `topology`. Returns `None`
/// unless all members are along one dimension whose curves cover the number of members. `curves` has one list per
/// dimension.
pub fn predict_time_from_one_dimension_curves(
    curves: &[Vec<CollectiveCurve>],
    (kind, bytes): (CollectiveKind, u64),
    (extent, topology): (&GroupPhasesAndMemberPositions, &Topology),
) -> Option<Span> {
    let [phase] = &extent.phases[..] else {
        return None;
    };
    let seconds = |curve: &CollectiveCurve| {
        let bytes = bytes as f64;
        match MeasuredToMachineLinkChange::between_links(curve.measured_at, phase, topology) {
            None => curve.predict_seconds(bytes),
            Some(change) => curve.seconds_on_changed_links(bytes, &change),
        }
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
    let [low, high] = [below, above].map(seconds);
    let gap = f64::from(above.members - below.members);
    let part = if gap > 0.0 {
        f64::from(phase.size - below.members) / gap
    } else {
        0.0
    };
    Some(Span::from_seconds_saturating(low + part * (high - low)))
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
            measured_at: None,
        };
        // Halfway between 1e3 and 1e5 bytes is 50,500 bytes; halfway between 1e-5 and 1e-3 s is 5.05e-4 s.
        assert!((curve.predict_seconds(50_500.0) / 5.05e-4 - 1.0).abs() < 1e-12);
        assert_eq!(curve.predict_seconds(1.0), 1e-5);
        assert_eq!(curve.predict_seconds(1e3), 1e-5);
        // Ten times as many bytes as at the last point take ten times as long: 10 x 1e-3 s.
        assert!((curve.predict_seconds(1e6) / 1e-2 - 1.0).abs() < 1e-12);
    }

    fn build_measurement_links(gb: f64, ns: u64) -> MeasurementSetupLinkProperties {
        MeasurementSetupLinkProperties {
            bandwidth: Bandwidth::new(gb * 1e9).unwrap(),
            latency: Span::from_ns(ns),
        }
    }

    /// Returns a curve of all-gathers among 8 members, with 7 steps over two links each. The start-up time is 10 us;
    /// the times are 20 us for 1 MB, 110 us for 10 MB and 210 us for 20 MB.
    fn build_all_gather_curve() -> CollectiveCurve {
        CollectiveCurve {
            kind: CollectiveKind::AllGather,
            members: 8,
            points: vec![(1e3, 10e-6), (1e6, 20e-6), (10e6, 110e-6), (20e6, 210e-6)],
            measured_at: None,
        }
    }

    fn all_gather_micros_on_changed_links(
        bytes: f64,
        from: MeasurementSetupLinkProperties,
        to: MeasurementSetupLinkProperties,
    ) -> f64 {
        let change = MeasuredToMachineLinkChange { from, to, hops: 2 };
        1e6 * build_all_gather_curve().seconds_on_changed_links(bytes, &change)
    }

    #[test]
    fn bandwidth_scales_only_the_transfer_time() {
        // From 10 MB to 20 MB, the time grows by 100 us: 10 us per MB. Without the transfer time, a start-up time of 10
        // us remains at 20 MB, 10 MB and 1 MB, and 9.99 us at 1 kB.
        let near = |bytes, gb, expected: f64| {
            let found = all_gather_micros_on_changed_links(
                bytes,
                build_measurement_links(100.0, 500),
                build_measurement_links(gb, 500),
            );
            assert!(
                (found - expected).abs() < 1e-9,
                "{found} and not {expected}"
            );
        };
        near(20e6, 200.0, 10.0 + 100.0);
        near(20e6, 50.0, 10.0 + 400.0);
        near(1e6, 50.0, 10.0 + 20.0);
        near(1e3, 10.0, 9.99 + 0.1);
        // The time for 5 MB is between two points: 60 us, including a start-up time of 10 us. Beyond the last point,
        // all additional time is transfer: 420 us - 10 us.
        near(5e6, 200.0, 10.0 + 25.0);
        near(40e6, 200.0, 10.0 + 205.0);
        // Below the first point, the start-up time of the first point applies.
        near(10.0, 10.0, 9.99 + 0.1);
    }

    #[test]
    fn latency_changes_the_start_up_time_by_its_steps() {
        // 7 steps over 2 links of 500 ns take 7 us of the start-up time. Ten times the latency adds 63 us; zero latency
        // removes 7 us.
        let near = |from, to, expected: f64| {
            let found = all_gather_micros_on_changed_links(
                20e6,
                build_measurement_links(100.0, from),
                build_measurement_links(100.0, to),
            );
            assert!(
                (found - expected).abs() < 1e-9,
                "{found} and not {expected}"
            );
        };
        near(500, 5000, 210.0 + 63.0);
        near(500, 0, 210.0 - 7.0);
        // Steps of 1 us over 2 links take 14 us. The start-up time of 10 us is shorter, so all of it counts as latency.
        near(1000, 2000, 210.0 + 10.0);
        near(1000, 0, 200.0);
        near(0, 1000, 210.0 + 14.0);
    }

    #[test]
    fn start_up_and_transfer_times_never_fall_as_bytes_grow() {
        // A slower protocol takes 100 us for 1 MB, almost the 110 us for 10 MB. The start-up time remains 10 us.
        let mut curve = build_all_gather_curve();
        curve.points[1].1 = 100e-6;
        assert!((curve.start_up_seconds(1e6) - 10e-6).abs() < 1e-15);
        let change = MeasuredToMachineLinkChange {
            from: build_measurement_links(100.0, 0),
            to: build_measurement_links(1e6, 0),
            hops: 2,
        };
        let sizes = (0..400).map(|i| 1e5 * f64::from(i));
        let times: Vec<f64> = sizes
            .map(|bytes| curve.seconds_on_changed_links(bytes, &change))
            .collect();
        assert!(
            times.windows(2).all(|pair| pair[0] <= pair[1] + 1e-15),
            "{times:?}"
        );
    }
}
