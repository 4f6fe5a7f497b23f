//! Times of NCCL's rings and trees through all members of a group that spans several nodes.
//!
//! NCCL runs an all-gather and a reduce-scatter as one ring through all members, and an all-reduce as such a ring or as
//! trees. Members of a node are neighbours, so with n members on m nodes, m - 1 of a ring's n - 1 steps cross the
//! network. NCCL chooses the fastest of its protocols (LL, LL128 and Simple) by this formula (`ncclTopoTuneModel` in
//! NCCL's `tuning.cc`, releases 2.18 to 2.27):
//!
//! ```text
//! ring    t = start + step (m - 1) k + inner (n - m) k + (n - 1) / n k bytes / (part x rate)
//! tree    t = start + 2 (step ⌈log2 m⌉ + inner (n / m - 1)) + 2 bytes / (part x rate)
//! ```
//!
//! `k` is 2 for an all-reduce, and otherwise 1. Trees run all-reduces only. The members of a node have separate ports
//! to the network. `rate` is the sum of the rates of a node's ports. It is capped at a fraction, stated in the machine
//! file, of the rate of a member's links within the node.

use super::curve::{
    MeasuredToMachineLinkChange, MeasurementSetupLinkProperties, message_count_and_sent_fraction,
};
use crate::group::GroupPhasesAndMemberPositions;
use crate::topology::Topology;
use chakram_base::collective_kind::CollectiveKind;
use chakram_base::units::Span;

/// Rings and trees over several nodes, along a dimension between nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossNodeNcclRingAndTreeModel {
    /// Fraction of the rate of the links within a node that NCCL's fastest protocol reaches.
    pub share: f64,
    /// The links between nodes to which NCCL's latencies apply, or `None` if they apply to any links.
    pub measured_at: Option<MeasurementSetupLinkProperties>,
}

/// A protocol's constants: latencies in microseconds, and the fraction of the rate that the protocol reaches.
struct NcclProtocolTimeConstants {
    is_tree: bool,
    start: f64,
    /// Duration of a step between nodes.
    step: f64,
    /// Duration of a step within a node, over NVLink.
    inner: f64,
    part: f64,
}

/// NCCL's constants. With several nodes, LL within a node takes 1.8 times 0.6 us. LL reaches 35 GB/s of 400 GB/s on
/// four nodes of H100s, and 19 of 200 GB/s on nodes of A100s; LL128 and trees reach 0.92 of the rate.
const PROTOCOLS: [NcclProtocolTimeConstants; 6] = [
    NcclProtocolTimeConstants::over_rings([6.6, 2.7, 1.08], 0.09),
    NcclProtocolTimeConstants::over_rings([14.0, 4.0, 1.9], 0.92),
    NcclProtocolTimeConstants::over_rings([8.4, 14.0, 3.4], 1.0),
    NcclProtocolTimeConstants::over_trees([6.8, 5.0, 1.08], 0.09),
    NcclProtocolTimeConstants::over_trees([14.0, 8.5, 1.25], 0.85),
    NcclProtocolTimeConstants::over_trees([8.4, 14.0, 4.0], 0.92),
];

impl NcclProtocolTimeConstants {
    const fn over_rings([start, step, inner]: [f64; 3], part: f64) -> Self {
        Self {
            is_tree: false,
            start,
            step,
            inner,
            part,
        }
    }

    const fn over_trees(times: [f64; 3], part: f64) -> Self {
        Self {
            is_tree: true,
            ..Self::over_rings(times, part)
        }
    }

    /// Returns the time, in seconds, of a collective of `kind` with `bytes` among `members` on `nodes`, with links of
    /// `rate` bytes per second. `later` is the extra time that a step between nodes takes compared with NCCL's formula.
    fn seconds_for(
        &self,
        kind: CollectiveKind,
        [members, nodes]: [u32; 2],
        transfer: f64,
        later: f64,
    ) -> f64 {
        let step = self.step * 1e-6 + later;
        let (steps, sent) = message_count_and_sent_fraction(kind, members);
        let (between, sent, steps) = match self.is_tree {
            true => {
                let depth = f64::from(nodes.next_power_of_two().ilog2());
                let within = f64::from(members / nodes - 1);
                (2.0 * depth, 2.0, 2.0 * (depth + within))
            }
            false => (message_count_and_sent_fraction(kind, nodes).0, sent, steps),
        };
        let latency = step * between + self.inner * 1e-6 * (steps - between);
        self.start * 1e-6 + latency + sent * transfer / self.part
    }
}

/// Returns the time of a collective of `kind` with a buffer of `bytes` in a ring or in trees through all members.
/// Returns `None` for collectives other than all-reduce, all-gather and reduce-scatter, for groups that do not fill a
/// sub-grid of the machine, and if the group's outermost dimension has no `across`. `across` has one entry per
/// dimension.
pub fn time_across_nodes(
    across: &[Option<CrossNodeNcclRingAndTreeModel>],
    (kind, bytes): (CollectiveKind, u64),
    (extent, topology): (&GroupPhasesAndMemberPositions, &Topology),
) -> Option<Span> {
    let (outermost, within) = extent.phases.split_last()?;
    let own = (*across.get(outermost.dimension)?)?;
    let runs_trees = kind == CollectiveKind::AllReduce;
    let runs_rings = matches!(
        kind,
        CollectiveKind::AllGather | CollectiveKind::ReduceScatter
    );
    if !extent.regular || !(runs_trees || runs_rings) {
        return None;
    }
    let (members, nodes) = (extent.member_count(), outermost.size);
    let bandwidth = |dimension: usize| {
        let dimension = &topology.dimensions()[dimension];
        dimension.bandwidth.bytes_per_second()
    };
    let outer = f64::from(members / nodes) * bandwidth(outermost.dimension);
    let inner = within
        .iter()
        .map(|phase| own.share * bandwidth(phase.dimension));
    let transfer = bytes as f64 / inner.fold(outer, f64::min);
    let change = MeasuredToMachineLinkChange::between_links(own.measured_at, outermost, topology);
    // A step of 1 ms includes the latency of its link, so the added time is the difference between the links'
    // latencies.
    let later = change.map_or(0.0, |change| change.added_latency_seconds());
    let ways = PROTOCOLS.iter().filter(|way| runs_trees || !way.is_tree);
    let seconds = ways.map(|way| way.seconds_for(kind, [members, nodes], transfer, later));
    seconds
        .min_by(f64::total_cmp)
        .map(|seconds| Span::from_seconds_saturating(seconds.max(0.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{DimensionShape, TopologyDimension};
    use chakram_base::ids::Npu;
    use chakram_base::units::Bandwidth;

    /// Nodes have four NPUs with 100 GB/s within the node, of which a fraction of 0.5 is reached, and 20 GB/s from each
    /// NPU to other nodes.
    fn predict_us_across_four_npu_nodes(
        kind: CollectiveKind,
        bytes: u64,
        npus: impl Iterator<Item = u32>,
    ) -> Option<f64> {
        let dimension = |size, rate, latency| TopologyDimension {
            name: String::new(),
            shape: DimensionShape::Switch,
            size,
            bandwidth: Bandwidth::new(rate).unwrap(),
            latency: Span::from_ns(latency),
        };
        let topology = vec![dimension(4, 100e9, 400), dimension(8, 20e9, 1000)];
        let topology = Topology::new(topology).unwrap();
        let npus: Vec<Npu> = npus.map(Npu).collect();
        let extent = GroupPhasesAndMemberPositions::new(&npus, &topology);
        let across = [
            None,
            Some(CrossNodeNcclRingAndTreeModel {
                share: 0.5,
                measured_at: None,
            }),
        ];
        let found = time_across_nodes(&across, (kind, bytes), (&extent, &topology));
        found.map(|span| span.as_seconds() * 1e6)
    }

    fn assert_near(found: Option<f64>, expected: f64) {
        let found = found.unwrap();
        assert!(
            (found - expected).abs() < 1e-4,
            "{found} and not {expected}"
        );
    }

    #[test]
    fn ring_time_counts_steps_within_and_between_nodes() {
        // 32 members on 8 nodes: 7 steps between nodes and 24 within. LL is fastest for few bytes: 6.6 + 7 x 2.7 + 24 x
        // 1.08 = 51.42 us.
        let few = 31.0 / 50e9 / 0.09 * 1e6;
        assert_near(
            predict_us_across_four_npu_nodes(CollectiveKind::AllGather, 32, 0..32),
            51.42 + few,
        );
        // A node's four ports together have 80 GB/s, but its internal links reach only 50: 31/32 of 3.2 GB take 62,000
        // us with Simple, whose steps take 8.4 + 7 x 14 + 24 x 3.4 us. With LL128, the transfer takes longer by a
        // fraction of 0.09.
        let many =
            predict_us_across_four_npu_nodes(CollectiveKind::ReduceScatter, 3_200_000_000, 0..32);
        assert_near(many, 188.0 + 62_000.0);
        // A group with one member on each node has no steps within nodes, and one port of 20 GB/s.
        let apart = predict_us_across_four_npu_nodes(
            CollectiveKind::AllGather,
            8_000_000_000,
            (0..32).step_by(4),
        );
        assert_near(apart, 8.4 + 98.0 + 350_000.0);
    }

    #[test]
    fn an_all_reduce_goes_through_trees_if_bytes_are_few() {
        // LL runs over a tree of 8 nodes with depth 3, and each node has 3 further members: 6.8 + 2 (3 x 5 + 3 x 1.08)
        // us.
        let few = 2.0 * 32.0 / 50e9 / 0.09 * 1e6;
        assert_near(
            predict_us_across_four_npu_nodes(CollectiveKind::AllReduce, 32, 0..32),
            43.28 + few,
        );
        // A ring sends 2 x 31/32 of the buffer, with steps of 8.4 + 14 x 14 + 48 x 3.4 us.
        let many =
            predict_us_across_four_npu_nodes(CollectiveKind::AllReduce, 6_400_000_000, 0..32);
        assert_near(many, 367.6 + 248_000.0);
    }

    #[test]
    fn other_collectives_and_uneven_groups_have_no_cross_node_time() {
        assert_eq!(
            predict_us_across_four_npu_nodes(CollectiveKind::AllToAll, 32, 0..32),
            None
        );
        assert_eq!(
            predict_us_across_four_npu_nodes(CollectiveKind::AllGather, 32, 0..4),
            None
        );
        let uneven = [0, 1, 5].into_iter();
        assert_eq!(
            predict_us_across_four_npu_nodes(CollectiveKind::AllGather, 32, uneven),
            None
        );
    }
}
