//! Compares visiting orders and chunk sizes with results computed by hand, and with an independent implementation of
//! the rule.

use super::*;
use crate::topology::{DimensionShape, TopologyDimension};
use chakram_base::ids::Npu;
use chakram_base::units::{Bandwidth, Span};

fn build_switch_group(dimensions: &[(u32, f64)]) -> (GroupPhasesAndMemberPositions, Topology) {
    let dimensions = dimensions.iter().map(|&(size, rate)| TopologyDimension {
        name: String::new(),
        shape: DimensionShape::Switch,
        size,
        bandwidth: Bandwidth::new(rate).unwrap(),
        latency: Span::ZERO,
    });
    let topology = Topology::new(dimensions.collect()).unwrap();
    let npus: Vec<_> = (0..topology.npu_count()).map(Npu).collect();
    (
        GroupPhasesAndMemberPositions::new(&npus, &topology),
        topology,
    )
}

/// Returns the size in grains and the visiting order of every chunk.
fn list_chunk_routes(
    (inter, kind, bytes): (DimensionVisitOrder, CollectiveKind, u64),
    dimensions: &[(u32, f64)],
    chunks: u32,
) -> Vec<(u32, Vec<usize>)> {
    let (extent, topology) = build_switch_group(dimensions);
    let of = (kind, UnroundedBufferShare::from_bytes(bytes));
    let (ways, way_of) = choose_chunk_routes(inter, of, (&extent, &topology), chunks);
    let way = |number: &u32| &ways[*number as usize];
    let chunks = way_of.iter().map(way);
    chunks.map(|way| (way.grains, way.order.clone())).collect()
}

fn list_visiting_orders(
    inter: DimensionVisitOrder,
    kind: CollectiveKind,
    chunks: u32,
) -> Vec<Vec<usize>> {
    let all = list_chunk_routes((inter, kind, 1000), &[(4, 1e9), (2, 1e9)], chunks);
    assert!(all.iter().all(|(grains, _)| *grains == EQUAL));
    all.into_iter().map(|(_, order)| order).collect()
}

const FLEX: (DimensionVisitOrder, CollectiveKind, u64) = (
    DimensionVisitOrder::ThemisFlex,
    CollectiveKind::ReduceScatter,
    1000,
);

#[test]
fn flexible_chunk_sizes_close_the_load_gap() {
    let (out, back) = (vec![0, 1], vec![1, 0]);
    // The machine has two dimensions with 2 members each, at one byte per second. A chunk of size s adds a load of s/2
    // to the dimension that it visits first, and s/4 to the other. Chunk 0 adds 1/2 and 1/4. Chunk 1 must add 1/4 to
    // dimension 1, so its size is 1/2; the loads become 1/2 + 1/8 and 1/2. Chunk 2 must add 1/8 to dimension 1, so its
    // size is 1/4; the loads become 11/16 and 5/8. Chunk 3 must add 1/16, so its size is 1/8; the loads become 23/32
    // and 11/16. Chunk 4 must add 1/32, so its size is 1/16, the minimum; the loads become 47/64 and 23/32. To close
    // the remaining gap of 1/64, chunk 5 would need a size of 1/32, which is below the minimum, so it visits the
    // dimensions in ascending order. Its size is the 1/16 that remains of the two whole chunks.
    assert_eq!(
        list_chunk_routes(FLEX, &[(2, 1.0), (2, 1.0)], 2),
        [
            (256, out.clone()),
            (128, back.clone()),
            (64, back.clone()),
            (32, back.clone()),
            (16, back.clone()),
            (16, out.clone()),
        ]
    );
    // The machine has two dimensions with 2 members each, and the second is 1.5 times as fast. A chunk of size s adds a
    // load of s/2 to dimension 0 or s/3 to dimension 1 if it visits that dimension first. Chunk 0 adds 1/2 and 1/6.
    // Chunk 1 must add 1/3 to dimension 1, so its size is 1: 1/6 + 1/3 = 1/2 in dimension 1, and 1/2 + 1/4 = 3/4 in
    // dimension 0. Chunk 2 must add 1/4 to dimension 1, so its size is 3/4; the loads become 3/4 in dimension 1 and 3/4
    // + 3/16 = 15/16 in dimension 0. Chunk 3 must add 3/16, so its size would be 9/16, but only 1/4 of the three whole
    // chunks remains.
    assert_eq!(
        list_chunk_routes(FLEX, &[(2, 2e9), (2, 3e9)], 3),
        [
            (256, out.clone()),
            (256, back.clone()),
            (192, back.clone()),
            (64, back.clone()),
        ]
    );
    // The dimensions have 4 and 2 members, and the second is twice as fast. A chunk of size s adds a load of 3/4 s to
    // dimension 0 or s/4 to dimension 1 if it visits that dimension first. Chunk 0 adds 3/4 and 1/16. Chunk 1 would
    // need a size of 11/4 to add 11/16 to dimension 1, so it has the maximum size of 1.
    assert_eq!(
        list_chunk_routes(FLEX, &[(4, 1e9), (2, 2e9)], 2),
        [(256, out.clone()), (256, back.clone())]
    );
    // The dimensions have 8 and 4 members, and the second is 8 times as fast. A chunk of size s adds a load of 7/8 s to
    // dimension 0 or 3/32 s to dimension 1 if it visits that dimension first. The first chunk adds 7/8 to dimension 0
    // and 3/256 to dimension 1; each later chunk adds 7/32 and 3/32. The gap never closes, so all chunks have the
    // maximum size of 1.
    let whole = list_chunk_routes(FLEX, &[(8, 1e9), (4, 8e9)], 4);
    assert!(whole.iter().all(|(grains, _)| *grains == EQUAL));
}

#[test]
fn chunks_stay_equal_where_no_load_gap_can_be_closed() {
    let equal = |all: &[(u32, Vec<usize>)]| all.iter().all(|(grains, _)| *grains == EQUAL);
    let themis = |(_, kind, bytes)| (DimensionVisitOrder::Themis, kind, bytes);
    let three = [(4, 1e9), (2, 1e9), (3, 1e9)];
    // A machine with one dimension has no gap between dimensions to close.
    let all = list_chunk_routes(FLEX, &three[..1], 5);
    assert_eq!(all, list_chunk_routes(themis(FLEX), &three[..1], 5));
    assert!(equal(&all) && all.len() == 5);
    // A group of one member has no gap to close either.
    let (_, topology) = build_switch_group(&three);
    let alone = GroupPhasesAndMemberPositions::new(&[Npu(3)], &topology);
    let of = (FLEX.1, UnroundedBufferShare::from_bytes(1000));
    let (ways, way_of) = choose_chunk_routes(FLEX.0, of, (&alone, &topology), 5);
    assert_eq!((ways[0].grains, ways.len(), way_of), (EQUAL, 1, vec![0; 5]));
    // Chunks are equal if the data does not shrink, or is too large to be divided into exact grains.
    let all_to_all = (
        DimensionVisitOrder::ThemisFlex,
        CollectiveKind::AllToAll,
        1000,
    );
    let huge = (
        DimensionVisitOrder::ThemisFlex,
        CollectiveKind::AllGather,
        1 << 56,
    );
    for of in [all_to_all, huge] {
        let all = list_chunk_routes(of, &three, 5);
        assert_eq!(all, list_chunk_routes(themis(of), &three, 5));
        assert!(equal(&all));
    }
    let large = (
        DimensionVisitOrder::ThemisFlex,
        CollectiveKind::AllGather,
        (1 << 56) - 1,
    );
    assert!(!equal(&list_chunk_routes(large, &three, 5)));
}

/// On random machines the grains add up to the whole, and only the last chunk is smaller than 1/16. Each chunk except
/// the last follows the rule of `themis.rs` to within a millionth. The test sums the loads independently.
#[test]
fn random_flexible_chunks_add_up_and_close_the_load_gap() {
    let mut seed = 1_u64;
    let mut below = |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % n
    };
    let mut sizes = 0;
    for _ in 0..300 {
        let dimensions: Vec<(u32, f64)> = (0..2 + below(3))
            .map(|_| (2 + below(7) as u32, (1 + below(40)) as f64 * 1e9))
            .collect();
        let chunks = 1 + below(70) as u32;
        let all = list_chunk_routes(FLEX, &dimensions, chunks);
        assert_eq!(all.iter().map(|c| c.0).sum::<u32>(), 256 * chunks);
        assert!((chunks as usize..=16 * chunks as usize).contains(&all.len()));
        let mut loads = vec![0.0; dimensions.len()];
        let time = |d: usize, s: f64| {
            let (n, rate) = dimensions[d];
            s * f64::from(n - 1) / f64::from(n) / rate
        };
        for (i, (grains, order)) in all.iter().enumerate() {
            let (size, last) = (f64::from(*grains) / 256.0, i + 1 == all.len());
            let (first, most) = (order[0], loads.iter().copied().fold(0.0, f64::max));
            let least = loads.iter().copied().fold(f64::INFINITY, f64::min);
            let alike = |load: f64| load <= least + 1e-6 * most;
            let equal = order.is_sorted() && (*grains == 256 || last);
            let by_load = |w: &[usize]| loads[w[0]] <= loads[w[1]] + 1e-6 * most;
            let sorted = alike(loads[first]) && order.windows(2).all(by_load);
            // If several dimensions have the least load, any of them may come first.
            let right = (0..loads.len()).filter(|d| alike(loads[*d])).any(|d| {
                let want = (most - least) / time(d, 1.0);
                let fits = (size - want.min(1.0)).abs() < 0.501 / 256.0;
                let closes = d == first && sorted && (fits || (last && size < want));
                (want < 0.062_501 && equal) || (want > 0.062_499 && closes)
            });
            assert!(right, "{dimensions:?}: chunk {i} of {all:?} at {loads:?}");
            sizes += u32::from(*grains != 256);
            let mut left = size;
            for &d in order {
                loads[d] += time(d, left);
                left /= f64::from(dimensions[d].0);
            }
        }
    }
    assert!(sizes > 1000, "{sizes} chunks are not equal");
}

#[test]
fn chunks_first_visit_the_dimension_with_the_least_load() {
    // The dimensions have 4 and 2 members and equal rates. Chunk 0 visits the dimensions in ascending order, and adds
    // 3/4 and 1/4 · 1/2 = 1/8. Chunk 1 visits dimension 1 first, because the gap of 5/8 exceeds 1/16 of 1/2. The loads
    // become 1/8 + 1/2 = 5/8 in dimension 1, and 3/4 + 1/2 · 3/4 = 9/8 in dimension 0. Chunk 2 also visits dimension 1
    // first; the loads become 9/8 in dimension 1 and 12/8 in dimension 0. Chunk 3 also visits dimension 1 first,
    // because that dimension still has the lower load.
    let ascending = vec![0, 1];
    let other = vec![1, 0];
    let themis = list_visiting_orders(DimensionVisitOrder::Themis, CollectiveKind::AllReduce, 4);
    assert_eq!(
        themis,
        [&ascending, &other, &other, &other].map(Clone::clone)
    );
    let robin = list_visiting_orders(DimensionVisitOrder::RoundRobin, CollectiveKind::AllToAll, 3);
    assert_eq!(robin, [&ascending, &other, &ascending].map(Clone::clone));
}

#[test]
fn collectives_whose_data_do_not_shrink_keep_ascending_order() {
    let orders = list_visiting_orders(DimensionVisitOrder::Themis, CollectiveKind::AllToAll, 5);
    assert!(orders.iter().all(|order| *order == [0, 1]));
    let orders = list_visiting_orders(
        DimensionVisitOrder::RoundRobin,
        CollectiveKind::Broadcast,
        5,
    );
    assert!(orders.iter().all(|order| *order == [0, 1]));
}
