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
//! where k runs from 1 to n−1 and j from 0 to h−1. Where a closed form is proved, the formula is the closed
//! form, but that it is not rounded.
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
//! best reduce-scatter and the best all-gather together.
//!
//! **Ties.** Formulas are not rounded to picoseconds ([`Estimate`]): what is a whole number of them is no reason to
//! choose. Of algorithms that take equally long, to within [`Estimate::MARGIN`], the first in [`Algorithm::ALL`] is
//! chosen, and two stages rather than one. So a machine whose latencies are twice as long and whose bandwidths are
//! half as wide chooses the same.

use super::{Algorithm, Primitive};
use crate::group::{Extent, Phase};
use crate::topology::{Path, Shape, Topology};
use crate::units::{Amount, Estimate};

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
}

/// What a message over some places meets.
#[derive(Clone, Copy, Debug)]
struct Way {
    path: Path,
    load: u64,
}

impl Way {
    fn passes(self, amount: Amount) -> Estimate {
        self.path.bandwidth.estimate(amount).times(self.load)
    }

    /// [`Path::first_byte`], not rounded.
    fn first_byte(self, amount: Amount) -> Estimate {
        let segment = self.path.switching.segment(amount);
        Estimate::from(self.path.latency) + self.path.others.estimate(segment)
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
    fn over_all(&self, message: Amount, time: impl Fn(Way) -> Estimate) -> (Estimate, Estimate) {
        let others = self.size() - 1;
        match self.flat {
            Some(_) => {
                let way = self.way(1);
                (time(way).times(u64::from(others)), way.first_byte(message))
            }
            None => (1..=others)
                .map(|k| self.way(k))
                .fold((Estimate::ZERO, Estimate::ZERO), |(sum, far), way| {
                    (sum + time(way), far.max(way.first_byte(message)))
                }),
        }
    }

    /// Exchanges at distances 1, 2, 4, … up to the last below the size, of `amount(j, distance)`.
    fn doubling(&self, time: impl Fn(Way, u32) -> Estimate) -> Estimate {
        let levels = self.size().next_power_of_two().ilog2();
        let spans = (0..levels).map(|j| time(self.exchange(1 << j), j));
        spans.fold(Estimate::ZERO, |sum, span| sum + span)
    }

    /// What `algorithm` takes for `primitive` with a line's buffer of `buffer`, by its formula. `None`
    /// where it does not carry it.
    pub fn cost(
        &self,
        algorithm: Algorithm,
        primitive: Primitive,
        buffer: Amount,
    ) -> Option<Estimate> {
        use Primitive as P;
        let n = self.size();
        if !algorithm.carries(primitive, n) {
            return None;
        }
        let share = buffer.part(n);
        let whole = |way: Way, _: u32| way.first_byte(buffer) + way.alone().passes(buffer);
        Some(match algorithm {
            Algorithm::Ring => {
                let way = self.way(1).alone();
                let (hop, s) = (way.first_byte(share), way.passes(share));
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
                self.over_all(share, |way| way.first_byte(share) + way.passes(share))
                    .0
            }
            Algorithm::HalvingDoubling | Algorithm::RecursiveDoubling => match primitive {
                P::Broadcast | P::Reduce => self.doubling(whole),
                P::Gather | P::Scatter => self.doubling(|way, j| {
                    let part = buffer.parts_of((1 << j).min(n - (1 << j)), n);
                    way.first_byte(part) + way.alone().passes(part)
                }),
                P::AllReduce => self.doubling(|way, _| way.first_byte(buffer) + way.passes(buffer)),
                _ => self.doubling(|way, j| {
                    let part = buffer.part(2 << j);
                    way.first_byte(part) + way.passes(part)
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
    pub fn choose(&self, primitive: Primitive, buffer: Amount) -> (Algorithm, Estimate) {
        let all = Algorithm::ALL.map(|(a, _)| Some((a, self.cost(a, primitive, buffer)?)));
        let best = Estimate::first_of_least(all.into_iter().flatten());
        best.expect("every primitive is carried by one, of any size")
    }

    /// Whether an all-reduce of `buffer` takes less in one stage than in two.
    pub fn fuses(&self, buffer: Amount) -> bool {
        let of = |primitive| self.choose(primitive, buffer).1;
        let two = of(Primitive::ReduceScatter) + of(Primitive::AllGather);
        of(Primitive::AllReduce).is_less(two)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::{Stage, closed_form};
    use crate::ids::Npu;
    use crate::topology::Dimension;
    use crate::units::{Bandwidth, Span};
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
        lines_of(shape, n, (50e9, Span::from_ns(500)))
    }

    fn lines_of(shape: Shape, n: u32, (rate, latency): (f64, Span)) -> (Topology, Extent) {
        let dimension = Dimension {
            name: String::new(),
            shape,
            size: n,
            bandwidth: Bandwidth::new(rate).unwrap(),
            latency,
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

    /// Whether a formula says `span`.
    fn is(cost: Option<Estimate>, span: Span) -> bool {
        let span = Estimate::from(span);
        cost.is_some_and(|cost| !cost.is_less(span) && !span.is_less(cost))
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
                        // A multiple of 1 to 17 and of 32, so that nothing is rounded.
                        let stage = Stage {
                            phase: 0,
                            primitive,
                            buffer: Amount::whole(2 * 12_252_240),
                            mirrored: false,
                        };
                        let closed = closed_form(algorithm, &stage, n, &path);
                        let cost = line.cost(algorithm, primitive, stage.buffer);
                        proved += usize::from(closed.is_some());
                        assert!(
                            closed.is_none_or(|closed| is(cost, closed)),
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

    /// n = 8 in a ring, S = 80,000 B: t = 1,600 ns, s = 200 ns, α(k) = 500 min(k, 8−k) ns, c = 1, 2, 3, 4,
    /// 3, 2, 1, of which the sum is 16 and that of the latencies 8,000 ns.
    #[test]
    fn distance_costs_latency_and_load_on_a_ring() {
        let table = [
            (A::Ring, P::ReduceScatter, 7 * 700),
            (A::Ring, P::AllToAll, 28 * 700),
            (A::Ring, P::Broadcast, 7 * 500 + 14 * 200),
            (A::Direct, P::ReduceScatter, 2000 + 16 * 200),
            (A::Direct, P::Reduce, 2000 + 7 * 1600),
            (A::Direct, P::Gather, 2000 + 7 * 200),
            (A::Pairwise, P::AllToAll, 8000 + 16 * 200),
            // 500 + 800, 1,000 + 2 x 400, 2,000 + 4 x 200 ns.
            (A::HalvingDoubling, P::AllGather, 1300 + 1800 + 2800),
            // 500 + 1,600, 1,000 + 1,600, 2,000 + 1,600 ns.
            (A::HalvingDoubling, P::Broadcast, 3500 + 3 * 1600),
            // 1, 2 and 4 shares.
            (A::RecursiveDoubling, P::Scatter, 3500 + 7 * 200),
            (A::RecursiveDoubling, P::AllReduce, 3500 + 7 * 1600),
            // Two of S at two levels, one at the root's.
            (A::Tree, P::Reduce, 3500 + 5 * 1600),
            (A::DoubleBinaryTree, P::AllReduce, 7000 + 10 * 1600),
        ];
        for (algorithm, primitive, ns) in table {
            let cost = on(Shape::Ring, 8, |line| {
                line.cost(algorithm, primitive, Amount::whole(80_000))
            });
            assert!(is(cost, Span::from_ns(ns)), "{algorithm} {primitive:?}");
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
                            let (chosen, least) = line.choose(primitive, buffer);
                            assert_eq!(cost(chosen), Some(least));
                            let all = A::ALL.map(|(a, _)| (a, cost(a)));
                            let before = all.iter().take_while(|(a, _)| *a != chosen);
                            let slower = |(_, cost): &(A, Option<Estimate>)| {
                                cost.is_none_or(|cost| least.is_less(cost))
                            };
                            assert!(before.into_iter().all(slower), "{primitive:?} {n} {shape}");
                            let faster = |cost: Estimate| cost.is_less(least);
                            let mut costs = all.iter().filter_map(|(_, cost)| *cost);
                            assert!(!costs.any(faster), "{primitive:?} {n} {shape}");
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
        // 1,000 B among 16 in a ring. Ring: 15 x (500 + 1.25) ns. Halving and doubling: 500 x 15 + 40 ns.
        // Direct: 8 x 500 + 64 x 1.25 ns.
        assert_eq!(choose(Shape::Ring, 16, P::AllGather, 1000), A::Direct);
        // 10 MB: 15 x 12,500 ns against 64 x 12,500 and 4 x 100,000 ns, and latencies.
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
        // 8 in a ring, 800 B: recursive doubling 3,500 + 7 x 16 ns against twice direct, 2 x (2,000 +
        // 16 x 2) ns. 80,000 B: 14,700 against 2 x 4,900 ns of the ring.
        let fuses = |bytes| on(Shape::Ring, 8, |line| line.fuses(Amount::whole(bytes)));
        assert_eq!((fuses(800), fuses(80_000)), (true, false));
    }

    /// The law of scale, on buffers of which hardly anything takes whole picoseconds and with latencies that make
    /// ties and near ties: on a machine whose latencies are `factor` times as long and whose bandwidths are as
    /// many times less, the choices are the same.
    #[test]
    fn choices_do_not_depend_on_the_scale() {
        let mut state = 7_u64;
        let mut dice = |sides: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % sides
        };
        let mut chosen = [0; Algorithm::ALL.len()];
        for case in 0..10_000 {
            let (shape, _) = Shape::ALL[dice(4) as usize];
            let n = 2 + dice(8) as u32;
            let (ps_per_byte, bytes) = (1 + dice(9), dice(400));
            let latency = [0, dice(50), ps_per_byte * bytes / 2 * dice(3)][dice(3) as usize];
            let buffer = Amount::whole(bytes).part(1 + dice(3) as u32);
            let at = |factor: u64| {
                let rate = 1e12 / (ps_per_byte * factor) as f64;
                let (topology, extent) = lines_of(shape, n, (rate, Span(latency * factor)));
                let line = Line::new(&extent, &extent.phases[0], &topology);
                let all = PRIMITIVES.map(|primitive| line.choose(primitive, buffer).0);
                (all, line.fuses(buffer))
            };
            let once = at(1);
            once.0
                .iter()
                .for_each(|algorithm| chosen[*algorithm as usize] += 1);
            for factor in [2, 3, 4, 5040] {
                assert_eq!(
                    at(factor),
                    once,
                    "case {case}: {n} in a {shape}, times {factor}"
                );
            }
        }
        // Double trees are never before plain ones, and recursive doubling never before halving, but in an
        // all-reduce.
        assert!(
            chosen.iter().filter(|&&count| count > 100).count() >= 4,
            "{chosen:?}"
        );
    }

    /// Two in a switch without latency, 1,001 B at a picosecond a byte: a broadcast takes 1,001 ps in one message or
    /// in two of 500.5. These are not 1,002 for being rounded one by one, so it is a tie, and a ring at any scale.
    #[test]
    fn a_tie_is_one_whatever_rounds() {
        for factor in [1, 2] {
            let rate = 1e12 / f64::from(factor);
            let (topology, extent) = lines_of(Shape::Switch, 2, (rate, Span::ZERO));
            let line = Line::new(&extent, &extent.phases[0], &topology);
            assert_eq!(line.choose(P::Broadcast, Amount::whole(1001)).0, A::Ring);
        }
    }
}
