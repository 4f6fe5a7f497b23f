//! Assigns each stage the algorithm that the machine's choices call for.

use super::line_cost::LineMessageCosts;
use super::{
    CollectiveAlgorithm, CollectiveStage, CollectiveStagePrimitive, DimensionAlgorithmChoice,
    decompose_collective,
};
use crate::group::GroupPhasesAndMemberPositions;
use crate::topology::Topology;
use chakram_base::collective_kind::CollectiveKind;
use chakram_base::units::UnroundedBufferShare;

/// A stage and the algorithm that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageWithAlgorithm {
    /// The stage: an operation in one phase.
    pub stage: CollectiveStage,
    /// The algorithm used in the phase's dimension.
    pub algorithm: CollectiveAlgorithm,
    /// Index of the custom algorithm whose scripts the members execute instead.
    pub script: Option<u16>,
    /// Index of the table that states the bytes exchanged by each pair of members. `None` if all pairs exchange the
    /// same number of bytes.
    pub splits: Option<u32>,
}

/// The properties that differ between the chunks of a collective.
#[derive(Clone, Copy, Debug)]
pub struct ChunkShareAndPhaseOrder<'a> {
    /// The chunk's share of the collective's buffer.
    pub whole: UnroundedBufferShare,
    /// The order in which the chunk visits the phases on its way outward ([`decompose_collective`]).
    pub order: &'a [usize],
    /// True if the last phase of an all-reduce may be one fused stage.
    pub fuses: bool,
    /// True if the chunk uses the second of the two trees ([`CollectiveStage::mirrored`]).
    pub mirrored: bool,
}

/// Maximum number of phases in a group: the number of members fits in 32 bits, and each phase at least doubles it.
const MOST_PHASES: usize = 32;

/// Returns the phases of `extent`, innermost first.
pub fn outward_phases(extent: &GroupPhasesAndMemberPositions) -> &'static [usize] {
    const IDENTITY: [usize; MOST_PHASES] = {
        let mut identity = [0; MOST_PHASES];
        let mut i = 0;
        while i < MOST_PHASES {
            identity[i] = i;
            i += 1;
        }
        identity
    };
    &IDENTITY[..extent.phases.len()]
}

/// Appends one chunk's stages to `out`, each with its algorithm: the one named for the dimension, its substitute, or
/// the fastest. `choices` has one entry for each of the machine's dimensions.
pub fn append_chunk_stages_with_algorithms(
    kind: CollectiveKind,
    extent: &GroupPhasesAndMemberPositions,
    topology: &Topology,
    choices: &[DimensionAlgorithmChoice],
    chunk: &ChunkShareAndPhaseOrder<'_>,
    out: &mut Vec<StageWithAlgorithm>,
) {
    let line = |d: usize| LineMessageCosts::new(extent, &extent.phases[d], topology);
    let fused = match (kind, chunk.order.split_last()) {
        (CollectiveKind::AllReduce, Some((&last, before))) if chunk.fuses => {
            let phase = &extent.phases[last];
            let primitive = CollectiveStagePrimitive::AllReduce;
            match choices[phase.dimension].requested_algorithm(primitive) {
                Some(algorithm) => algorithm.supports_primitive(primitive, phase.size),
                None => {
                    // The last phase's buffer: the whole divided by the sizes of all earlier phases.
                    let sizes = before.iter().map(|&d| extent.phases[d].size);
                    line(last)
                        .prefers_fused_all_reduce(chunk.whole.one_of_n_equal_parts(sizes.product()))
                }
            }
        }
        _ => false,
    };
    decompose_collective(
        kind,
        extent,
        chunk.whole,
        chunk.order,
        fused,
        |mut stage| {
            stage.mirrored = chunk.mirrored;
            let phase = &extent.phases[stage.phase];
            let algorithm = match choices[phase.dimension].requested_algorithm(stage.primitive) {
                Some(algorithm) => {
                    algorithm.resolve_unsupported_algorithm(stage.primitive, phase.size)
                }
                None => {
                    line(stage.phase)
                        .choose_fastest(stage.primitive, stage.buffer)
                        .0
                }
            };
            // Only the ring sends in both directions, so the algorithm must be chosen first.
            stage.bidirectional = algorithm == CollectiveAlgorithm::Ring
                && extent.is_evenly_spaced_ring(phase, topology);
            out.push(StageWithAlgorithm {
                stage,
                algorithm,
                script: None,
                splits: None,
            });
        },
    );
}

/// Describes the algorithms of the stages `all` for each phase of `extent`, innermost first: `ring 8 (nvlink)`,
/// `auto: tree 16 (nodes)`. Names the algorithms that actually run, not the requested ones.
pub(super) fn describe_algorithms_by_phase(
    all: &[StageWithAlgorithm],
    extent: &GroupPhasesAndMemberPositions,
    topology: &Topology,
    choices: &[DimensionAlgorithmChoice],
) -> Vec<String> {
    let describe = |(d, phase): (usize, &crate::group::PhaseDimensionSizeAndStride)| {
        let mut used: Vec<CollectiveAlgorithm> = Vec::new();
        for assignment in all.iter().filter(|assignment| assignment.stage.phase == d) {
            if !used.contains(&assignment.algorithm) {
                used.push(assignment.algorithm);
            }
        }
        let used: Vec<_> = used.iter().map(CollectiveAlgorithm::to_string).collect();
        let how = match choices[phase.dimension] {
            DimensionAlgorithmChoice::Auto => "auto: ",
            DimensionAlgorithmChoice::Named(_) | DimensionAlgorithmChoice::Nccl => "",
        };
        let place = if extent.regular {
            &topology.dimensions()[phase.dimension].name
        } else if topology.tile_grid().is_some() {
            "tiles"
        } else {
            "no sub-grid"
        };
        format!("{how}{} {} ({place})", used.join(" and "), phase.size)
    };
    extent.phases.iter().enumerate().map(describe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{DimensionShape, TopologyDimension};
    use chakram_base::ids::Npu;
    use chakram_base::units::{Bandwidth, Span};

    fn build_ring_topology_and_group(sizes: &[u32]) -> (Topology, GroupPhasesAndMemberPositions) {
        let dimensions = sizes
            .iter()
            .enumerate()
            .map(|(d, &size)| TopologyDimension {
                name: format!("d{d}"),
                shape: DimensionShape::Ring,
                size,
                bandwidth: Bandwidth::new(50e9).unwrap(),
                latency: Span::from_ns(500),
            });
        let topology = Topology::new(dimensions.collect()).unwrap();
        let npus: Vec<_> = (0..topology.npu_count()).map(Npu).collect();
        let extent = GroupPhasesAndMemberPositions::new(&npus, &topology);
        (topology, extent)
    }

    /// Lists the stages in execution order, as (phase, primitive, divisor of the buffer).
    fn list_collective_stages(
        kind: CollectiveKind,
        choices: &[DimensionAlgorithmChoice],
        order: &[usize],
    ) -> Vec<(usize, CollectiveStagePrimitive, u64)> {
        let (topology, extent) = build_ring_topology_and_group(&[4, 2, 3]);
        let chunk = ChunkShareAndPhaseOrder {
            whole: UnroundedBufferShare::from_bytes(1 << 30),
            order,
            fuses: true,
            mirrored: true,
        };
        let mut out = Vec::new();
        append_chunk_stages_with_algorithms(kind, &extent, &topology, choices, &chunk, &mut out);
        assert!(out.iter().all(|assignment| assignment.stage.mirrored));
        out.iter()
            .map(|c| (c.stage.phase, c.stage.primitive, c.stage.buffer.parts))
            .collect()
    }

    #[test]
    fn phases_that_come_earlier_shrink_what_later_ones_carry() {
        use CollectiveKind as K;
        use CollectiveStagePrimitive as P;
        let ring = [DimensionAlgorithmChoice::Named(CollectiveAlgorithm::Ring); 3];
        let order = [2, 0, 1];
        // The phase sizes are 3, 4 and 2 in this order, so the buffers are S, S/3 and S/12.
        let out = [
            (2, P::ReduceScatter, 1),
            (0, P::ReduceScatter, 3),
            (1, P::ReduceScatter, 12),
        ];
        let back = [
            (1, P::AllGather, 12),
            (0, P::AllGather, 3),
            (2, P::AllGather, 1),
        ];
        assert_eq!(list_collective_stages(K::ReduceScatter, &ring, &order), out);
        assert_eq!(list_collective_stages(K::AllGather, &ring, &order), back);
        assert_eq!(
            list_collective_stages(K::AllReduce, &ring, &order),
            [out, back].concat()
        );
        let all = |primitive| order.map(|d| (d, primitive, 1)).to_vec();
        assert_eq!(
            list_collective_stages(K::AllToAll, &ring, &order),
            all(P::AllToAll)
        );
        // Kinds with a root ignore the chunk's order and use the order of dimensions: size 4 innermost, then 2, then 3.
        let scatter = [(2, P::Scatter, 1), (1, P::Scatter, 3), (0, P::Scatter, 6)];
        assert_eq!(list_collective_stages(K::Scatter, &ring, &order), scatter);
        let barrier = [
            (2, P::AllGather, 8),
            (1, P::AllGather, 4),
            (0, P::AllGather, 1),
        ];
        assert_eq!(list_collective_stages(K::Barrier, &ring, &order), barrier);
    }

    #[test]
    fn the_last_phase_carries_an_all_reduce_in_one_stage_if_it_can() {
        use CollectiveStagePrimitive as P;
        let tree = DimensionAlgorithmChoice::Named(CollectiveAlgorithm::MemberMessageTree);
        let ring = DimensionAlgorithmChoice::Named(CollectiveAlgorithm::Ring);
        let fused = [
            (0, P::ReduceScatter, 1),
            (1, P::ReduceScatter, 4),
            (2, P::AllReduce, 8),
            (1, P::AllGather, 4),
            (0, P::AllGather, 1),
        ];
        let list = |choices: &[DimensionAlgorithmChoice], order: &[usize]| {
            list_collective_stages(CollectiveKind::AllReduce, choices, order)
        };
        assert_eq!(list(&[ring, ring, tree], &[0, 1, 2]), fused);
        // Recursive doubling does not support 3 members. Only the last phase of an all-reduce may use a tree.
        let doubling = DimensionAlgorithmChoice::Named(CollectiveAlgorithm::RecursiveDoubling);
        assert_eq!(list(&[ring, ring, doubling], &[0, 1, 2]).len(), 6);
        assert_eq!(list(&[ring, tree, ring], &[0, 1, 2]).len(), 6);
        assert_eq!(list(&[ring, tree, ring], &[0, 2, 1])[2].1, P::AllReduce);
    }

    #[test]
    fn stage_descriptions_name_algorithms_that_run() {
        let (topology, extent) = build_ring_topology_and_group(&[8, 6]);
        let describe = |choices: [DimensionAlgorithmChoice; 2], kind, bytes| {
            let chunk = ChunkShareAndPhaseOrder {
                whole: UnroundedBufferShare::from_bytes(bytes),
                order: outward_phases(&extent),
                fuses: true,
                mirrored: false,
            };
            let mut all = Vec::new();
            append_chunk_stages_with_algorithms(
                kind, &extent, &topology, &choices, &chunk, &mut all,
            );
            describe_algorithms_by_phase(&all, &extent, &topology, &choices).join(", ")
        };
        let doubling = [DimensionAlgorithmChoice::Named(CollectiveAlgorithm::HalvingDoubling); 2];
        assert_eq!(
            describe(doubling, CollectiveKind::AllReduce, 1000),
            "halving_doubling 8 (d0), ring 6 (d1)"
        );
        assert_eq!(
            describe(
                [DimensionAlgorithmChoice::Auto; 2],
                CollectiveKind::AllGather,
                100_000_000
            ),
            "auto: ring 8 (d0), auto: ring 6 (d1)"
        );
    }
}
