//! The routes of a collective's chunks: each chunk's order of phases and its algorithms.

use super::inter_dimension::{ChunkOrderAndSize, choose_chunk_routes};
use super::{
    ChunkCountOrderAndOverlap, ChunkShareAndPhaseOrder, ChunkStageSequences, CollectiveAlgorithm,
    DimensionAlgorithmChoice, StageWithAlgorithm, append_chunk_stages_with_algorithms,
};
use crate::group::GroupPhasesAndMemberPositions;
use crate::topology::Topology;
use chakram_base::collective_kind::CollectiveKind;
use chakram_base::units::UnroundedBufferShare;
use std::num::NonZeroU32;

/// Computes the chunk schedule of a collective of `kind` with a buffer of `bytes`, without an admission order. The
/// number of chunks comes from `pipeline`, or is 1 if `pipeline` states none; there are never more chunks than bytes.
/// Themis-flex may divide the chunks further. With two trees, every other chunk uses the second tree.
pub(super) fn build_collective_chunk_schedule(
    (kind, bytes): (CollectiveKind, u64),
    (extent, topology): (&GroupPhasesAndMemberPositions, &Topology),
    choices: &[DimensionAlgorithmChoice],
    pipeline: ChunkCountOrderAndOverlap,
) -> ChunkStageSequences<StageWithAlgorithm> {
    // A chunk has at least one byte, but even an empty collective has one chunk.
    let most = u32::try_from(bytes).unwrap_or(u32::MAX).max(1);
    let chunks = pipeline.chunks.map_or(1, NonZeroU32::get).min(most);
    let whole = UnroundedBufferShare::from_bytes(bytes);
    let (ways, mut route_of) =
        choose_chunk_routes(pipeline.inter, (kind, whole), (extent, topology), chunks);
    let mut all = Vec::new();
    let add = |way: &ChunkOrderAndSize, mirrored, all: &mut Vec<StageWithAlgorithm>| {
        let chunk = ChunkShareAndPhaseOrder {
            whole: way.share_of_buffer(whole, chunks),
            order: &way.order,
            // All routes have the same number of stages, so either all of them fuse an all-reduce or none does.
            fuses: ways.len() == 1,
            mirrored,
        };
        append_chunk_stages_with_algorithms(kind, extent, topology, choices, &chunk, all);
    };
    for way in &ways {
        add(way, false, &mut all);
    }
    let length = all.len() / ways.len();
    let trees = |c: &StageWithAlgorithm| c.algorithm == CollectiveAlgorithm::DoubleBinaryTree;
    if route_of.len() > 1 && all.iter().any(trees) {
        for way in &ways {
            add(way, true, &mut all);
        }
        for route in route_of.iter_mut().skip(1).step_by(2) {
            *route += ways.len() as u32;
        }
        return ChunkStageSequences::from_stages_and_chunk_route_indices(all, length, route_of);
    }
    match &ways[..] {
        [_] => ChunkStageSequences::with_uniform_chunks(all, chunks),
        _ => ChunkStageSequences::from_stages_and_chunk_route_indices(all, length, route_of),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CollectiveStagePrimitive, DimensionVisitOrder};
    use super::*;
    use crate::topology::{DimensionShape, TopologyDimension};
    use chakram_base::ids::{Npu, StageIndex};
    use chakram_base::units::{Bandwidth, Span};

    fn build_chunk_schedule_over_switches(
        sizes: &[(u32, f64)],
        bytes: u64,
        (inter, chunks): (DimensionVisitOrder, u32),
    ) -> ChunkStageSequences<StageWithAlgorithm> {
        let dimensions = sizes.iter().map(|&(size, rate)| TopologyDimension {
            name: String::new(),
            shape: DimensionShape::Switch,
            size,
            bandwidth: Bandwidth::new(rate).unwrap(),
            latency: Span::ZERO,
        });
        let topology = Topology::new(dimensions.collect()).unwrap();
        let npus: Vec<_> = (0..topology.npu_count()).map(Npu).collect();
        let extent = GroupPhasesAndMemberPositions::new(&npus, &topology);
        let trees = vec![
            DimensionAlgorithmChoice::Named(CollectiveAlgorithm::DoubleBinaryTree);
            sizes.len()
        ];
        let pipeline = ChunkCountOrderAndOverlap {
            chunks: NonZeroU32::new(chunks),
            inter,
            ..ChunkCountOrderAndOverlap::default()
        };
        let of = (CollectiveKind::AllReduce, bytes);
        build_collective_chunk_schedule(of, (&extent, &topology), &trees, pipeline)
    }

    /// A chunk's first stage carries all its bytes. Together, the first stages of all chunks carry all of the
    /// collective's bytes, whatever its size.
    #[test]
    fn first_stages_of_all_chunks_carry_all_bytes() {
        let mut unequal = 0;
        for bytes in [1, 3, 1000, 999_983, 1 << 30, (1 << 56) - 1, u64::MAX / 7] {
            for (inter, _) in DimensionVisitOrder::ALL {
                for chunks in [1, 2, 7, 64] {
                    let sizes = [(3, 2e9), (4, 1e9), (2, 3e8)];
                    let chunk_schedule =
                        build_chunk_schedule_over_switches(&sizes, bytes, (inter, chunks));
                    // Count in the smallest fraction of a byte that occurs: each equal chunk has 256 grains.
                    let unit = 256 * u128::from(u64::from(chunks).min(bytes));
                    let mut sum = 0;
                    for chunk in 0..chunk_schedule.chunk_count() {
                        let stage = chunk_schedule
                            .stage_of_chunk(chunk, StageIndex(0))
                            .unwrap()
                            .stage;
                        assert_eq!(stage.primitive, CollectiveStagePrimitive::ReduceScatter);
                        let UnroundedBufferShare { bytes, parts } = stage.buffer;
                        assert_eq!(unit % u128::from(parts), 0);
                        sum += u128::from(bytes) * (unit / u128::from(parts));
                    }
                    assert_eq!(sum, u128::from(bytes) * unit, "{inter:?} {bytes} {chunks}");
                    unequal += u32::from(chunk_schedule.chunk_count() > chunks);
                }
            }
        }
        assert!(unequal > 10, "{unequal}");
    }

    #[test]
    fn several_equal_chunks_alternate_between_two_tree_routes() {
        let all = build_chunk_schedule_over_switches(
            &[(4, 1e9)],
            1000,
            (DimensionVisitOrder::ThemisFlex, 1),
        );
        assert!(all.is_uniform());
        // Chunks alternate between two trees.
        let all = build_chunk_schedule_over_switches(
            &[(4, 1e9)],
            1000,
            (DimensionVisitOrder::ThemisFlex, 5),
        );
        let routes: Vec<_> = (0..5)
            .map(|chunk| all.route_index_of_chunk(chunk))
            .collect();
        assert_eq!(routes, [0, 1, 0, 1, 0]);
    }
}
