//! `auto`: of all algorithms that carry a primitive, the one that takes least by its formula.
//!
//! The formulas are those in the tables of the algorithms' files, with what distance costs put in. A
//! *line* has n members; α(k) is the time of the first byte of a message and t(x, k) the time to pass x bytes between members k
//! places apart, the worse of the first and the last member's way. With S the buffer and h = ⌈log2 n⌉:
//!
//! | algorithm | primitive | takes |
//! |---|---|---|
//! | ring | reduce-scatter, all-gather, gather, scatter | (n−1)(α(1) + t(S/n, 1)) |
//! | | all-to-all | n(n−1)/2 (α(1) + t(S/n, 1)) |
//! | | broadcast, reduce | (n−1)α(1) + (2n−2) t(S/n, 1) |
//! | direct | reduce-scatter, all-gather, all-to-all | max α(k) + Σ_k c(k) t(S/n, k) |
//! | | broadcast, reduce | max α(k) + Σ_k t(S, k) |
//! | | gather, scatter | max α(k) + Σ_k t(S/n, k) |
//! | pairwise | reduce-scatter, all-gather, all-to-all | Σ_k (α(k) + c(k) t(S/n, k)) |
//! | halving_doubling, recursive_doubling | reduce-scatter, all-gather | Σ_j (α(2^j) + c(2^j) t(S/2^(j+1), 2^j)) |
//! | | broadcast, reduce | Σ_j (α(2^j) + t(S, 2^j)) |
//! | | gather, scatter | Σ_j (α(2^j) + t(min(2^j, n−2^j) S/n, 2^j)) |
//! | recursive_doubling | all-reduce | Σ_j (α(2^j) + c(2^j) t(S, 2^j)) |
//! | tree, double_binary_tree | broadcast, reduce | Σ_j (α(2^j) + 2t(S, 2^j)) − t(S, 2^(h−1)) |
//! | | all-reduce | twice that |
//!
//! where k runs from 1 to n−1 and j from 0 to h−1. Where a ring goes both ways round (`ring.rs`), its messages are
//! half as large. Where a closed form is proved, the formula is the closed form, but for rounding.
//!
//! **The load c(k).** In a dimension whose NPUs are wired to their neighbours, a message over k places
//! occupies k wires. If every member sends to the one k places ahead, then on a ring every wire of the
//! shorter way carries c = min(k, n−k) messages at once; on an open line the k messages across the end
//! come back the other way, over n−k places, and c is the same. If members exchange with the one whose
//! index differs in the bit of weight k, the wire in the middle of each block of 2k carries k each way,
//! and k ≤ n/2. So c(k) = min(k, n−k), and a ring keeps to itself what halving and doubling over n/2
//! places pays n/2 times. Where every two NPUs have a way of their own, fully connected or through a
//! switch, c = 1. Where a root sends or collects, its own port lets one message through at a time, and in
//! the trees the ways of one level do not overlap: c = 1. The contention-free network does not slow
//! messages that share a wire, so there a choice may be slower than another; it is made for networks as
//! they are.
//!
//! An all-reduce takes one stage in the outermost dimension if the best fused algorithm takes less than the
//! best reduce-scatter and the best all-gather together. Of algorithms that take equally long, the first in
//! [`Algorithm::ALL`] is chosen, so the same input makes the same choice.

use super::{Algorithm, Primitive};
use crate::group::{Extent, Phase};
use crate::topology::{Path, Shape, Topology};
use crate::units::{Amount, Span};

/// The lines of a phase: how far apart their members are.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    extent: &'a Extent,
    phase: &'a Phase,
    topology: &'a Topology,
    /// The path between any two members, where it is one by the shape alone.
    flat: Option<Path>,
    /// Whether NPUs are wired to their neighbours, so that ways overlap.
    wired: bool,
    /// Whether a ring goes both ways round.
    round: bool,
}

/// What a message over some places meets.
#[derive(Clone, Copy, Debug)]
struct Way {
    path: Path,
    load: u64,
}

impl Way {
    fn passes(self, amount: Amount) -> Span {
        let passes = self.path.bandwidth.serialization(amount);
        passes.times(self.load)
    }

    /// As if nothing else used its wires.
    fn alone(self) -> Self {
        Self { load: 1, ..self }
    }
}

impl<'a> Line<'a> {
    /// The lines of `phase`, for which the first speaks.
    pub fn new(extent: &'a Extent, phase: &'a Phase, topology: &'a Topology) -> Self {
        let shape = topology.dimensions()[phase.dimension].shape;
        let apart = matches!(shape, Shape::FullyConnected | Shape::Switch);
        let mut line = Self {
            extent,
            phase,
            topology,
            flat: None,
            wired: !apart,
            round: extent.goes_round(phase, topology),
        };
        if apart && extent.regular {
            line.flat = Some(line.path(0, 1));
        }
        line
    }

    /// How many members it has.
    fn size(&self) -> u32 {
        self.phase.size
    }

    fn path(&self, a: u32, b: u32) -> Path {
        let npu = |index| self.extent.npus[self.phase.position(0, index) as usize];
        let path = self.topology.path(npu(a), npu(b));
        path.expect("members sit on NPUs of their own")
    }

    /// Between members `k` places apart: the worse of the ways from the first member and the last.
    fn way(&self, k: u32) -> Way {
        let path = self.flat.unwrap_or_else(|| {
            let (a, b) = (self.path(0, k), self.path(self.size() - 1, k - 1));
            Path {
                latency: a.latency.max(b.latency),
                others: if a.latency < b.latency {
                    b.others
                } else {
                    a.others
                },
                bandwidth: match a.bandwidth < b.bandwidth {
                    true => a.bandwidth,
                    false => b.bandwidth,
                },
                ..a
            }
        });
        let load = match self.wired {
            true => u64::from(k.min(self.size() - k)),
            false => 1,
        };
        Way { path, load }
    }

    /// Between members whose indices differ in the bit of weight `k`, and along the ways of trees.
    fn exchange(&self, k: u32) -> Way {
        let path = self.flat.unwrap_or_else(|| self.path(0, k));
        let load = self.way(k).load;
        Way { path, load }
    }

    /// The sum of `time` over all distances, and the longest time of a first byte of `message`.
    fn over_all(&self, message: Amount, time: impl Fn(Way) -> Span) -> (Span, Span) {
        let others = self.size() - 1;
        match self.flat {
            Some(path) => {
                let all = time(self.way(1)).times(u64::from(others));
                (all, path.first_byte(message))
            }
            None => (1..=others)
                .map(|k| self.way(k))
                .fold((Span::ZERO, Span::ZERO), |(sum, far), way| {
                    (sum + time(way), far.max(way.path.first_byte(message)))
                }),
        }
    }

    /// Exchanges at distances 1, 2, 4, … up to the last below the size, of `amount(j, distance)`.
    fn doubling(&self, time: impl Fn(Way, u32) -> Span) -> Span {
        let levels = self.size().next_power_of_two().ilog2();
        let spans = (0..levels).map(|j| time(self.exchange(1 << j), j));
        spans.fold(Span::ZERO, |sum, span| sum + span)
    }

    /// What `algorithm` takes for `primitive` with a line's buffer of `buffer`, by its formula. `None`
    /// where it does not carry it.
    pub fn cost(&self, algorithm: Algorithm, primitive: Primitive, buffer: Amount) -> Option<Span> {
        use Primitive as P;
        let n = self.size();
        if !algorithm.carries(primitive, n) {
            return None;
        }
        let share = buffer.part(n);
        let whole = |way: Way, _: u32| way.path.first_byte(buffer) + way.alone().passes(buffer);
        Some(match algorithm {
            Algorithm::Ring => {
                let way = self.way(1).alone();
                let share = share.part(1 + u32::from(self.round));
                let (hop, s) = (way.path.first_byte(share), way.passes(share));
                let n = u64::from(n);
                match primitive {
                    P::AllToAll => (hop + s).times(n * (n - 1) / 2),
                    P::Broadcast | P::Reduce => hop.times(n - 1) + s.times(2 * n - 2),
                    _ => (hop + s).times(n - 1),
                }
            }
            Algorithm::Direct => {
                let message = match primitive {
                    P::Broadcast | P::Reduce => buffer,
                    _ => share,
                };
                let (all, far) = self.over_all(message, |way| match primitive {
                    P::Broadcast | P::Reduce => way.alone().passes(buffer),
                    P::Gather | P::Scatter => way.alone().passes(share),
                    _ => way.passes(share),
                });
                far + all
            }
            Algorithm::Pairwise => {
                self.over_all(share, |way| way.path.first_byte(share) + way.passes(share))
                    .0
            }
            Algorithm::HalvingDoubling | Algorithm::RecursiveDoubling => match primitive {
                P::Broadcast | P::Reduce => self.doubling(whole),
                P::Gather | P::Scatter => self.doubling(|way, j| {
                    let part = buffer.parts_of((1 << j).min(n - (1 << j)), n);
                    way.path.first_byte(part) + way.alone().passes(part)
                }),
                P::AllReduce => {
                    self.doubling(|way, _| way.path.first_byte(buffer) + way.passes(buffer))
                }
                _ => self.doubling(|way, j| {
                    let part = buffer.part(2 << j);
                    way.path.first_byte(part) + way.passes(part)
                }),
            },
            Algorithm::DoubleBinaryTree | Algorithm::Tree => {
                let level = |way: Way, j: u32| match 2 << j < n {
                    true => whole(way, j) + way.alone().passes(buffer),
                    false => whole(way, j),
                };
                let once = self.doubling(level);
                match primitive {
                    P::AllReduce => once.times(2),
                    _ => once,
                }
            }
        })
    }

    /// The algorithm that takes least for `primitive`, and what it takes.
    pub fn choose(&self, primitive: Primitive, buffer: Amount) -> (Algorithm, Span) {
        let all = Algorithm::ALL.into_iter();
        let all = all.filter_map(|(a, _)| Some((a, self.cost(a, primitive, buffer)?)));
        // The first of those that are equal.
        let best = all.min_by_key(|(_, span)| *span);
        best.expect("every primitive is carried by one, of any size")
    }

    /// Whether an all-reduce of `buffer` takes less in one stage than in two.
    pub fn fuses(&self, buffer: Amount) -> bool {
        let of = |primitive| self.choose(primitive, buffer).1;
        of(Primitive::AllReduce) < of(Primitive::ReduceScatter) + of(Primitive::AllGather)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::{Stage, closed_form};
    use crate::ids::Npu;
    use crate::topology::Dimension;
    use crate::units::Bandwidth;
    use Algorithm as A;
    use Primitive as P;

    const PRIMITIVES: [Primitive; 8] = [
        P::ReduceScatter,
        P::AllGather,
        P::AllReduce,
        P::AllToAll,
        P::Broadcast,
        P::Reduce,
        P::Gather,
        P::Scatter,
    ];

    /// `n` NPUs at 50 GB/s, 20 ps per byte, and 500 ns per link.
    fn lines(shape: Shape, n: u32) -> (Topology, Extent) {
        let dimension = Dimension {
            name: String::new(),
            shape,
            size: n,
            bandwidth: Bandwidth::new(50e9).unwrap(),
            latency: Span::from_ns(500),
        };
        let topology = Topology::new(vec![dimension]).unwrap();
        let npus: Vec<_> = (0..n).map(Npu).collect();
        let extent = Extent::new(&npus, &topology);
        (topology, extent)
    }

    fn on<T>(shape: Shape, n: u32, ask: impl Fn(Line<'_>) -> T) -> T {
        let (topology, extent) = lines(shape, n);
        ask(Line::new(&extent, &extent.phases[0], &topology))
    }

    #[test]
    fn formulas_are_the_closed_forms_where_those_are_proved() {
        let mut proved = 0;
        for (shape, _) in Shape::ALL {
            for n in 2..=17 {
                let (topology, extent) = lines(shape, n);
                let phase = &extent.phases[0];
                let line = Line::new(&extent, phase, &topology);
                for (algorithm, _) in A::ALL {
                    let Some(path) = algorithm.common_path(&extent, phase, &topology) else {
                        continue;
                    };
                    for primitive in PRIMITIVES {
                        let stage = Stage {
                            phase: 0,
                            primitive,
                            buffer: Amount::whole(1_000_003),
                            mirrored: false,
                            both_ways: algorithm == A::Ring && line.round,
                        };
                        let closed = closed_form(algorithm, &stage, n, &path);
                        let cost = line.cost(algorithm, primitive, stage.buffer);
                        proved += usize::from(closed.is_some());
                        assert!(
                            closed.is_none() || closed == cost,
                            "{algorithm} {n} {shape}"
                        );
                    }
                }
            }
        }
        // 32 lines without overlapping ways, one ring of two and one mesh of two: 3 primitives of direct
        // and of pairwise on each; those and the other 15 rings: 3 of the ring; 4 sizes on two shapes, one
        // on the ring and one on the mesh: 2 of halving and doubling, 3 of recursive doubling.
        assert_eq!(proved, 34 * 6 + 49 * 3 + 10 * 5);
    }

    /// n = 8 in a ring, S = 80,000 B, over links of 25 GB/s: t = 3,200 ns, s = 400 ns, α(k) = 500 min(k, 8−k) ns,
    /// c = 1, 2, 3, 4, 3, 2, 1, of which the sum is 16 and that of the latencies 8,000 ns. A ring sends half of s
    /// each way.
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
            // 500 + 1,600, 1,000 + 2 x 800, 2,000 + 4 x 400 ns.
            (A::HalvingDoubling, P::AllGather, 2100 + 2600 + 3600),
            // 500 + 3,200, 1,000 + 3,200, 2,000 + 3,200 ns.
            (A::HalvingDoubling, P::Broadcast, 3500 + 3 * 3200),
            // 1, 2 and 4 shares.
            (A::RecursiveDoubling, P::Scatter, 3500 + 7 * 400),
            (A::RecursiveDoubling, P::AllReduce, 3500 + 7 * 3200),
            // Two of S at two levels, one at the root's.
            (A::Tree, P::Reduce, 3500 + 5 * 3200),
            (A::DoubleBinaryTree, P::AllReduce, 7000 + 10 * 3200),
        ];
        for (algorithm, primitive, ns) in table {
            let cost = on(Shape::Ring, 8, |line| {
                line.cost(algorithm, primitive, Amount::whole(80_000))
            });
            assert_eq!(cost, Some(Span::from_ns(ns)), "{algorithm} {primitive:?}");
        }
    }

    #[test]
    fn the_choice_is_the_least_of_all() {
        for (shape, _) in Shape::ALL {
            for n in 2..=33 {
                for bytes in [0, 1, 1000, 100_000, 100_000_000] {
                    for primitive in PRIMITIVES {
                        on(shape, n, |line| {
                            let buffer = Amount::whole(bytes);
                            let cost = |a| line.cost(a, primitive, buffer);
                            let (chosen, span) = line.choose(primitive, buffer);
                            assert_eq!(cost(chosen), Some(span));
                            let all = A::ALL.into_iter().filter_map(|(a, _)| cost(a));
                            assert_eq!(all.min(), Some(span), "{primitive:?} {n} {shape}");
                        });
                    }
                }
            }
        }
    }

    #[test]
    fn size_decides() {
        let choose = |shape, n, primitive, bytes| {
            on(shape, n, |line| {
                line.choose(primitive, Amount::whole(bytes)).0
            })
        };
        // 1,000 B among 16 in a ring. Ring: 15 x (500 + 1.25) ns. Halving and doubling: 500 x 15 + 80 ns.
        // Direct: 8 x 500 + 64 x 2.5 ns.
        assert_eq!(choose(Shape::Ring, 16, P::AllGather, 1000), A::Direct);
        // 10 MB: 15 x 12,500 ns against 64 x 25,000 and 4 x 400,000 ns, and latencies.
        assert_eq!(choose(Shape::Ring, 16, P::AllGather, 10_000_000), A::Ring);
        // On a switch: 1,000 x log2 16 + 4 x 20 ns against 1,000 + 15 x 20 and 15 x 1,000 + 30 x 1.25 ns.
        let broadcast = |bytes| choose(Shape::Switch, 16, P::Broadcast, bytes);
        assert_eq!(broadcast(1000), A::Direct);
        // 4 x (1,000 + 2,000) against 1,000 + 15 x 2,000 and 15 x 1,000 + 30 x 125 ns.
        assert_eq!(broadcast(100_000), A::HalvingDoubling);
        // 4 x 201,000 against 30 x 12,500 + 15,000 ns.
        assert_eq!(broadcast(10_000_000), A::Ring);
    }

    #[test]
    fn a_small_all_reduce_of_a_ring_is_fused() {
        // 8 in a ring, 800 B: recursive doubling 3,500 + 7 x 32 ns against twice direct, 2 x (2,000 +
        // 16 x 4) ns. 80,000 B: 25,900 against 2 x 4,900 ns of the ring.
        let fuses = |bytes| on(Shape::Ring, 8, |line| line.fuses(Amount::whole(bytes)));
        assert_eq!((fuses(800), fuses(80_000)), (true, false));
    }
}
