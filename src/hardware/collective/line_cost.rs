//! Times of messages between members of one phase, from which `auto.rs` builds the algorithms' formulas.

use crate::group::{GroupPhasesAndMemberPositions, PhaseDimensionSizeAndStride};
use crate::topology::{DimensionShape, PathLatencyAndRates, Topology};
use chakram_base::ids::Position;
use chakram_base::units::{UnroundedBufferShare, UnroundedTimeEstimate};

/// Costs of messages in the lines of a phase, by distance between members.
#[derive(Clone, Copy, Debug)]
pub struct LineMessageCosts<'a> {
    extent: &'a GroupPhasesAndMemberPositions,
    phase: &'a PhaseDimensionSizeAndStride,
    topology: &'a Topology,
    /// The path between any two members, or `None` if paths depend on the members.
    flat: Option<PathLatencyAndRates>,
    /// True if NPUs are wired to their neighbours, so that routes overlap.
    wired: bool,
    /// True if a ring is used in both directions.
    pub(super) round: bool,
}

/// Path and link load of a message over a given distance.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathWithLinkLoad {
    path: PathLatencyAndRates,
    load: u64,
}

impl PathWithLinkLoad {
    pub(super) fn time_under_load(self, amount: UnroundedBufferShare) -> UnroundedTimeEstimate {
        self.path
            .bandwidth
            .estimate_serialization(amount)
            .times(self.load)
    }

    /// Returns the time until the first byte arrives: [`PathLatencyAndRates::time_of_first_byte`] without rounding.
    pub(super) fn time_of_first_byte(self, amount: UnroundedBufferShare) -> UnroundedTimeEstimate {
        let segment = self.path.switching.first_segment(amount);
        UnroundedTimeEstimate::from(self.path.latency)
            + self.path.others.estimate_serialization(segment)
    }

    /// Returns this path as if no other messages used its links.
    pub(super) fn without_load_of_other_messages(self) -> Self {
        Self { load: 1, ..self }
    }
}

impl<'a> LineMessageCosts<'a> {
    /// Creates the model for the lines of `phase`; the first line represents all lines.
    pub fn new(
        extent: &'a GroupPhasesAndMemberPositions,
        phase: &'a PhaseDimensionSizeAndStride,
        topology: &'a Topology,
    ) -> Self {
        let shape = topology.dimensions()[phase.dimension].shape;
        let apart = matches!(
            shape,
            DimensionShape::FullyConnected | DimensionShape::Switch
        );
        let mut line = Self {
            extent,
            phase,
            topology,
            flat: None,
            wired: !apart,
            round: extent.is_evenly_spaced_ring(phase, topology),
        };
        // If a dimension does not wire neighbours, all its paths are equal, so one path serves all distances.
        if apart && extent.regular {
            line.flat = Some(line.path_between(0, 1));
        }
        line
    }

    /// Returns a model in which messages of other members cause no slowdown, as on a contention-free network.
    pub(super) fn to_model_without_load(self) -> Self {
        Self {
            wired: false,
            ..self
        }
    }

    pub(super) fn member_count(&self) -> u32 {
        self.phase.size
    }

    fn path_between(&self, a: u32, b: u32) -> PathLatencyAndRates {
        let npu = |index| {
            self.extent.npus[self
                .phase
                .position_with_index_in_line(Position(0), index)
                .index()]
        };
        let path = self.topology.path_between_npus(npu(a), npu(b));
        path.expect("members sit on NPUs of their own")
    }

    /// Returns the path of a message between two members, and the indices of the sender's and the
    /// receiver's ports.
    pub(super) fn path_and_ports(&self, a: u32, b: u32) -> (PathLatencyAndRates, [u32; 2]) {
        let path = self.flat.unwrap_or_else(|| self.path_between(a, b));
        let npu = |index| {
            self.extent.npus[self
                .phase
                .position_with_index_in_line(Position(0), index)
                .index()]
        };
        // A member has two ports per dimension, one on each side.
        let dimensions = self.topology.dimensions().len() as u32;
        let [out, into] = self.topology.first_and_last_port(npu(a), npu(b));
        let port = |member: u32, (dimension, side): (usize, u32)| {
            2 * (member * dimensions + dimension as u32) + side
        };
        (path, [port(a, out), port(b, into)])
    }

    /// Returns the path between members `k` places apart: the worse of the first member's route and the last member's.
    pub(super) fn path_at_distance(&self, k: u32) -> PathWithLinkLoad {
        let path = self.flat.unwrap_or_else(|| {
            let (a, b) = (
                self.path_between(0, k),
                self.path_between(self.member_count() - 1, k - 1),
            );
            PathLatencyAndRates {
                // For each property, take the worse of the two routes; take the devices of the route with the longer
                // latency.
                latency: a.latency.max(b.latency),
                others: if a.latency < b.latency {
                    b.others
                } else {
                    a.others
                },
                bandwidth: if a.bandwidth < b.bandwidth {
                    a.bandwidth
                } else {
                    b.bandwidth
                },
                ..a
            }
        });
        let load = if self.wired {
            u64::from(k.min(self.member_count() - k))
        } else {
            1
        };
        PathWithLinkLoad { path, load }
    }

    /// Returns the path between members whose indices differ in the bit of weight `k`. Formulas of trees also use this
    /// path for edges of length `k`.
    pub(super) fn path_to_partner(&self, k: u32) -> PathWithLinkLoad {
        let path = self.flat.unwrap_or_else(|| self.path_between(0, k));
        let load = self.path_at_distance(k).load;
        PathWithLinkLoad { path, load }
    }

    /// Returns the sum of `time` over all distances, and the longest time until the first byte of `message` arrives.
    pub(super) fn sum_times_and_longest_first_byte_over_distances(
        &self,
        message: UnroundedBufferShare,
        time: impl Fn(PathWithLinkLoad) -> UnroundedTimeEstimate,
    ) -> (UnroundedTimeEstimate, UnroundedTimeEstimate) {
        let others = self.member_count() - 1;
        match self.flat {
            Some(_) => {
                let way = self.path_at_distance(1);
                (
                    time(way).times(u64::from(others)),
                    way.time_of_first_byte(message),
                )
            }
            None => (1..=others).map(|k| self.path_at_distance(k)).fold(
                (UnroundedTimeEstimate::ZERO, UnroundedTimeEstimate::ZERO),
                |(sum, far), way| (sum + time(way), far.max(way.time_of_first_byte(message))),
            ),
        }
    }

    /// Sums the times of exchanges at distances 1, 2, 4, … below the number of members; `time` is called with (path,
    /// exponent).
    pub(super) fn sum_over_doublings(
        &self,
        time: impl Fn(PathWithLinkLoad, u32) -> UnroundedTimeEstimate,
    ) -> UnroundedTimeEstimate {
        let levels = self.member_count().next_power_of_two().ilog2();
        let spans = (0..levels).map(|j| time(self.path_to_partner(1 << j), j));
        spans.fold(UnroundedTimeEstimate::ZERO, |sum, span| sum + span)
    }
}
