//! Computes the times of NCCL's protocols by formulas, for unmeasured numbers of members.
//!
//! A library has several ways to run a collective, each with its own latency and rate: in NCCL the protocols LL, LL128
//! and Simple over rings and trees, and sums in the switch (NVLS). The fastest way is used:
//!
//! `t = min over ways of (start + step x steps + part x bytes / bandwidth)`
//!
//! | collective of `n` members | steps | part |
//! |---|---|---|
//! | all-reduce | `2 (n - 1)` | `2 (n - 1) / n` |
//! | all-gather, reduce-scatter, of the whole buffer | `n - 1` | `(n - 1) / n` |
//! | all-to-all | 1 | `(n - 1) / n` |
//!
//! Between two group sizes with fitted bandwidths, the bandwidth is interpolated linearly; outside this range, the
//! nearest size's bandwidth applies.
//!
//! On [links](super::curve) other than the fitted ones, `bandwidth` scales with the links' bandwidth, and `step` scales
//! with the latency of the links between neighbours.

use super::curve::{
    MeasuredToMachineLinkChange, MeasurementSetupLinkProperties, message_count_and_sent_fraction,
};
use crate::group::GroupPhasesAndMemberPositions;
use crate::topology::Topology;
use chakram_base::collective_kind::CollectiveKind;
use chakram_base::units::Span;

/// Fitted constants of one protocol for one kind of collective.
#[derive(Clone, Debug, PartialEq)]
pub struct FittedCollectiveProtocol {
    /// Kind of collective that the constants apply to.
    pub kind: CollectiveKind,
    /// Duration of the shortest collective, in seconds.
    pub start: f64,
    /// Seconds that each step adds.
    pub step: f64,
    /// Pairs (number of members, bytes per second) in ascending order of members; at least one pair.
    pub rates: Vec<(u32, f64)>,
    /// The links that the constants were fitted for, or `None` if they apply to any links.
    pub measured_at: Option<MeasurementSetupLinkProperties>,
}

impl FittedCollectiveProtocol {
    /// Returns the time, in seconds, of a collective with a buffer of `bytes` among `members`.
    pub fn seconds_for(&self, members: u32, bytes: f64) -> f64 {
        let (steps, part) = message_count_and_sent_fraction(self.kind, members);
        self.start + self.step * steps + part * bytes / self.bandwidth_among(members)
    }

    /// Returns the time, in seconds, of this collective on the target links of `change`.
    fn seconds_on_adjusted_links(
        &self,
        members: u32,
        bytes: f64,
        change: &MeasuredToMachineLinkChange,
    ) -> f64 {
        let (steps, part) = message_count_and_sent_fraction(self.kind, members);
        let step = change.adjust_start_up_seconds(self.step, 1.0);
        self.start
            + step * steps
            + part * bytes / self.bandwidth_among(members) * change.transfer_factor()
    }

    /// Returns the bandwidth among `members`, in bytes per second.
    fn bandwidth_among(&self, members: u32) -> f64 {
        let above = self.rates.partition_point(|rate| rate.0 < members);
        match (
            above.checked_sub(1).map(|i| self.rates[i]),
            self.rates.get(above),
        ) {
            (None, None) => f64::INFINITY,
            (None, Some(nearest)) => nearest.1,
            (Some(nearest), None) => nearest.1,
            (Some((below, low)), Some((above, high))) => {
                let part = f64::from(members - below) / f64::from(above - below);
                low + part * (high - low)
            }
        }
    }
}

/// Returns the time of a collective of `kind` with a buffer of `bytes` on the links of `topology`. Returns `None`
/// unless all members are along one dimension that has a protocol for the kind. `protocols` has one list per dimension.
pub fn fastest_protocol_time(
    protocols: &[Vec<FittedCollectiveProtocol>],
    (kind, bytes): (CollectiveKind, u64),
    (extent, topology): (&GroupPhasesAndMemberPositions, &Topology),
) -> Option<Span> {
    let [phase] = &extent.phases[..] else {
        return None;
    };
    let alike = protocols.get(phase.dimension)?.iter();
    let alike = alike.filter(|protocol| protocol.kind == kind);
    let seconds = alike.map(|protocol| {
        match MeasuredToMachineLinkChange::between_links(protocol.measured_at, phase, topology) {
            None => protocol.seconds_for(phase.size, bytes as f64),
            Some(change) => protocol.seconds_on_adjusted_links(phase.size, bytes as f64, &change),
        }
    });
    seconds
        .min_by(f64::total_cmp)
        .map(Span::from_seconds_saturating)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_time_is_start_plus_steps_plus_bytes_over_bandwidth() {
        let way = |kind| FittedCollectiveProtocol {
            kind,
            start: 10e-6,
            step: 1e-6,
            rates: vec![(2, 100e9), (4, 200e9)],
            measured_at: None,
        };
        let near = |kind, members, bytes, micros: f64| {
            let found = way(kind).seconds_for(members, bytes) * 1e6;
            assert!((found - micros).abs() < 1e-9, "{found} and not {micros}");
        };
        // Start and steps take 10 + 2 x 1 us; 2 x 1/2 x 1 MB at 100 GB/s take 10 us.
        near(CollectiveKind::AllReduce, 2, 1e6, 22.0);
        // Start and steps take 10 + 3 us; 3/4 x 4 MB at 200 GB/s take 15 us.
        near(CollectiveKind::AllGather, 4, 4e6, 28.0);
        // 3 members get 150 GB/s: 10 + 2 us for start and steps, and 40 us for 2/3 x 9 MB.
        near(CollectiveKind::ReduceScatter, 3, 9e6, 52.0);
        // 8 members get the rate of 4 members: 10 + 1 us for start and step, and 70 us for 7/8 x 16 MB at 200 GB/s.
        near(CollectiveKind::AllToAll, 8, 16e6, 81.0);
    }
}
