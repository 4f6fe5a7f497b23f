//! Compares formulas with closed forms and with results computed by hand, and tests which algorithms are chosen.

use super::*;
use crate::collective::CollectiveStage;
use crate::group::GroupPhasesAndMemberPositions;
use crate::topology::{DimensionShape, Topology, TopologyDimension};
use CollectiveAlgorithm as A;
use CollectiveStagePrimitive as P;
use chakram_base::ids::Npu;
use chakram_base::units::{Bandwidth, Span};

const PRIMITIVES: [CollectiveStagePrimitive; 8] = [
    P::ReduceScatter,
    P::AllGather,
    P::AllReduce,
    P::AllToAll,
    P::Broadcast,
    P::Reduce,
    P::Gather,
    P::Scatter,
];

/// Returns `n` NPUs and their group; links have 50 GB/s (20 ps per byte) and a latency of 500 ns.
fn build_line_topology_and_group(
    shape: DimensionShape,
    n: u32,
) -> (Topology, GroupPhasesAndMemberPositions) {
    build_single_dimension_group(shape, n, (50e9, Span::from_ns(500)))
}

fn build_single_dimension_group(
    shape: DimensionShape,
    n: u32,
    (rate, latency): (f64, Span),
) -> (Topology, GroupPhasesAndMemberPositions) {
    let dimension = TopologyDimension {
        name: String::new(),
        shape,
        size: n,
        bandwidth: Bandwidth::new(rate).unwrap(),
        latency,
    };
    let topology = Topology::new(vec![dimension]).unwrap();
    let npus: Vec<_> = (0..n).map(Npu).collect();
    let extent = GroupPhasesAndMemberPositions::new(&npus, &topology);
    (topology, extent)
}

fn call_with_line_costs<T>(
    shape: DimensionShape,
    n: u32,
    ask: impl Fn(LineMessageCosts<'_>) -> T,
) -> T {
    let (topology, extent) = build_line_topology_and_group(shape, n);
    ask(LineMessageCosts::new(&extent, &extent.phases[0], &topology))
}

/// Returns true if a formula's time equals `span`.
fn estimate_equals_span(cost: Option<UnroundedTimeEstimate>, span: Span) -> bool {
    let span = UnroundedTimeEstimate::from(span);
    cost.is_some_and(|cost| !cost.is_less_beyond_margin(span) && !span.is_less_beyond_margin(cost))
}

#[test]
fn formulas_are_the_closed_forms_where_those_are_proved() {
    let mut proved = 0;
    for (shape, _) in DimensionShape::ALL {
        for n in 2..=17 {
            let (topology, extent) = build_line_topology_and_group(shape, n);
            let phase = &extent.phases[0];
            let line = LineMessageCosts::new(&extent, phase, &topology);
            for (algorithm, _) in A::ALL {
                // The path of every message, if all messages have the same path.
                let path = match algorithm {
                    A::Ring => extent.common_path_to_neighbour(phase, &topology),
                    _ => extent.common_path_between_any(phase, &topology),
                };
                let Some(path) = path else {
                    continue;
                };
                for primitive in PRIMITIVES {
                    // The buffer's size is a multiple of every number from 1 to 17 and of 32 bytes, so that no share is
                    // rounded.
                    let stage = CollectiveStage {
                        phase: 0,
                        primitive,
                        buffer: UnroundedBufferShare::from_bytes(2 * 12_252_240),
                        mirrored: false,
                        bidirectional: algorithm == A::Ring && line.round,
                    };
                    let closed = algorithm.closed_form(&stage, n, &path);
                    let cost = algorithm.estimate_cost(&line, primitive, stage.buffer);
                    proved += usize::from(closed.is_some());
                    assert!(
                        closed.is_none_or(|closed| estimate_equals_span(cost, closed)),
                        "{algorithm} {n} {shape}"
                    );
                }
            }
        }
    }
    // Number of cases with a closed form. Direct and pairwise each have closed forms for 3 primitives on 34 lines: 32
    // lines without overlapping routes, one ring of two and one mesh of two. The ring has closed forms for 3 primitives
    // on 49 lines: the 34 lines above and the other 15 rings. Halving and doubling has closed forms for 2 primitives,
    // and recursive doubling for 3, on 10 lines of 2^L members: 4 sizes on two shapes, one size on the ring and one on
    // the mesh.
    assert_eq!(proved, 34 * 6 + 49 * 3 + 10 * 5);
}

/// A ring has n = 8 members and links of 25 GB/s, and the buffer has S = 80,000 B. Sending S takes t = 3,200 ns, and
/// sending S/n takes s = 400 ns. Latencies are α(k) = 500 min(k, 8−k) ns. For k = 1 to 7, the loads are c(k) = 1, 2, 3,
/// 4, 3, 2, 1. The values of c sum to 16, the latencies to 8,000 ns. A ring sends half of each share in each direction.
#[test]
fn distance_costs_latency_and_load_on_a_ring() {
    let table = [
        (A::Ring, P::ReduceScatter, 7 * 700),
        (A::Ring, P::AllToAll, 28 * 700),
        (A::Ring, P::Broadcast, 7 * 500 + 14 * 200),
        (A::Direct, P::ReduceScatter, 2000 + 16 * 400),
        (A::Direct, P::Reduce, 2000 + 7 * 3200),
        (A::Direct, P::Gather, 2000 + 7 * 400),
        (A::Pairwise, P::AllToAll, 8000 + 16 * 400),
        // Three exchanges take 500 + 1,600, 1,000 + 2 x 800 and 2,000 + 4 x 400 ns.
        (A::HalvingDoubling, P::AllGather, 2100 + 2600 + 3600),
        // Three messages take 500 + 3,200, 1,000 + 3,200 and 2,000 + 3,200 ns.
        (A::HalvingDoubling, P::Broadcast, 3500 + 3 * 3200),
        // The messages have 1, 2 and 4 shares of 400 ns each, and latencies of 500, 1,000 and 2,000 ns.
        (A::RecursiveDoubling, P::Scatter, 3500 + 7 * 400),
        (A::RecursiveDoubling, P::AllReduce, 3500 + 7 * 3200),
        // At each of two levels, two messages of size S pass; at the root's level, one message passes: 5 x 3,200 ns.
        (A::MemberMessageTree, P::Reduce, 3500 + 5 * 3200),
        (A::DoubleBinaryTree, P::AllReduce, 7000 + 10 * 3200),
    ];
    for (algorithm, primitive, ns) in table {
        let cost = call_with_line_costs(DimensionShape::Ring, 8, |line| {
            algorithm.estimate_cost(&line, primitive, UnroundedBufferShare::from_bytes(80_000))
        });
        assert!(
            estimate_equals_span(cost, Span::from_ns(ns)),
            "{algorithm} {primitive:?}"
        );
    }
}

#[test]
fn the_chosen_algorithm_has_the_least_cost() {
    for (shape, _) in DimensionShape::ALL {
        for n in 2..=33 {
            for bytes in [0, 1, 1000, 100_000, 100_000_000] {
                for primitive in PRIMITIVES {
                    call_with_line_costs(shape, n, |line| {
                        let buffer = UnroundedBufferShare::from_bytes(bytes);
                        let cost =
                            |a: CollectiveAlgorithm| a.estimate_cost(&line, primitive, buffer);
                        let (chosen, least) = line.choose_fastest(primitive, buffer);
                        assert_eq!(cost(chosen), Some(least));
                        let all = A::ALL.map(|(a, _)| (a, cost(a)));
                        let before = all.iter().take_while(|(a, _)| *a != chosen);
                        let slower = |(_, cost): &(A, Option<UnroundedTimeEstimate>)| {
                            cost.is_none_or(|cost| least.is_less_beyond_margin(cost))
                        };
                        assert!(before.into_iter().all(slower), "{primitive:?} {n} {shape}");
                        let faster =
                            |cost: UnroundedTimeEstimate| cost.is_less_beyond_margin(least);
                        let mut costs = all.iter().filter_map(|(_, cost)| *cost);
                        assert!(!costs.any(faster), "{primitive:?} {n} {shape}");
                    });
                }
            }
        }
    }
}

#[test]
fn buffer_size_decides_the_algorithm() {
    let choose = |shape, n, primitive, bytes| {
        call_with_line_costs(shape, n, |line| {
            line.choose_fastest(primitive, UnroundedBufferShare::from_bytes(bytes))
                .0
        })
    };
    // The 16 members on a ring have a buffer of 1,000 B. The ring takes 15 x (500 + 1.25) ns. Halving and doubling
    // takes 500 x 15 + 80 ns. Direct takes 8 x 500 + 64 x 2.5 ns.
    assert_eq!(
        choose(DimensionShape::Ring, 16, P::AllGather, 1000),
        A::Direct
    );
    // With 10 MB, the same three algorithms take 15 x 12,500 ns, 4 x 400,000 ns and 64 x 25,000 ns; latencies come on
    // top.
    assert_eq!(
        choose(DimensionShape::Ring, 16, P::AllGather, 10_000_000),
        A::Ring
    );
    // The 16 members on a switch have a buffer of 1 kB. Halving and doubling takes 1,000 x log2 16 + 4 x 20 ns. Direct
    // takes 1,000 + 15 x 20 ns. The ring takes 15 x 1,000 + 30 x 1.25 ns.
    let broadcast = |bytes| choose(DimensionShape::Switch, 16, P::Broadcast, bytes);
    assert_eq!(broadcast(1000), A::Direct);
    // With 100 kB, the same three algorithms take 4 x (1,000 + 2,000) ns, 1,000 + 15 x 2,000 ns, and 15 x 1,000 + 30 x
    // 125 ns.
    assert_eq!(broadcast(100_000), A::HalvingDoubling);
    // With 10 MB, halving and doubling takes 4 x 201,000 ns. With 10 MB, the ring takes 30 x 12,500 + 15,000 ns.
    assert_eq!(broadcast(10_000_000), A::Ring);
}

#[test]
fn a_small_all_reduce_of_a_ring_is_fused() {
    // The line has 8 members on a ring. With 800 B, recursive doubling takes 3,500 + 7 x 32 ns, and two stages with
    // direct take 2 x (2,000 + 16 x 4) ns. With 80,000 B, recursive doubling takes 25,900 ns, and two stages with the
    // ring take 2 x 4,900 ns.
    let fuses = |bytes| {
        call_with_line_costs(DimensionShape::Ring, 8, |line| {
            line.prefers_fused_all_reduce(UnroundedBufferShare::from_bytes(bytes))
        })
    };
    assert_eq!((fuses(800), fuses(80_000)), (true, false));
}

/// A machine with `factor` times the latencies and 1 / `factor` of the bandwidths gets the same algorithms. Few of
/// these buffers take a whole number of picoseconds to send, and the latencies create ties and near ties.
#[test]
fn algorithm_choices_do_not_depend_on_the_time_scale() {
    let mut state = 7_u64;
    let mut dice = |sides: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % sides
    };
    let mut chosen = [0; CollectiveAlgorithm::ALL.len()];
    for case in 0..10_000 {
        let (shape, _) = DimensionShape::ALL[dice(4) as usize];
        let n = 2 + dice(8) as u32;
        let (ps_per_byte, bytes) = (1 + dice(9), dice(400));
        let latency = [0, dice(50), ps_per_byte * bytes / 2 * dice(3)][dice(3) as usize];
        let buffer =
            UnroundedBufferShare::from_bytes(bytes).one_of_n_equal_parts(1 + dice(3) as u32);
        let at = |factor: u64| {
            let rate = 1e12 / (ps_per_byte * factor) as f64;
            let (topology, extent) =
                build_single_dimension_group(shape, n, (rate, Span(latency * factor)));
            let line = LineMessageCosts::new(&extent, &extent.phases[0], &topology);
            let all = PRIMITIVES.map(|primitive| line.choose_fastest(primitive, buffer).0);
            (all, line.prefers_fused_all_reduce(buffer))
        };
        let once = at(1);
        once.0.iter().for_each(|algorithm| {
            let mut all = CollectiveAlgorithm::ALL.iter();
            chosen[all.position(|(known, _)| known == algorithm).unwrap()] += 1;
        });
        for factor in [2, 3, 4, 5040] {
            assert_eq!(
                at(factor),
                once,
                "case {case}: {n} in a {shape}, times {factor}"
            );
        }
    }
    // A single tree takes as long as a double tree and comes later in the list of algorithms, so it is never chosen.
    // Recursive doubling comes after halving and doubling, so it is chosen only for an all-reduce, which halving and
    // doubling do not support.
    assert!(
        chosen.iter().filter(|&&count| count > 100).count() >= 4,
        "{chosen:?}"
    );
}

/// Two members exchange 1,001 B over a switch without latency, at 1 ps per byte. A broadcast takes 1,001 ps, either as
/// one message of 1,001 ps or as two messages of 500.5 ps. Two rounded messages would take 1,002 ps. Formulas are not
/// rounded, so the times tie at any scale, and the ring is chosen because it comes first.
#[test]
fn ties_in_cost_are_unaffected_by_rounding() {
    for factor in [1, 2] {
        let rate = 1e12 / f64::from(factor);
        let (topology, extent) =
            build_single_dimension_group(DimensionShape::Switch, 2, (rate, Span::ZERO));
        let line = LineMessageCosts::new(&extent, &extent.phases[0], &topology);
        assert_eq!(
            line.choose_fastest(P::Broadcast, UnroundedBufferShare::from_bytes(1001))
                .0,
            A::Ring
        );
    }
}
