//! Bytes in are bytes out: counted from the programs themselves.

use super::rig::cases;
use chakram::extend::{CollectivePrimitive, CollectiveStage, LinePosition};
use chakram::machine::CollectiveAlgorithm;
use chakram::units::BufferShare;
use proptest::prelude::*;

const PRIMITIVES: [CollectivePrimitive; 8] = [
    CollectivePrimitive::ReduceScatter,
    CollectivePrimitive::AllGather,
    CollectivePrimitive::AllReduce,
    CollectivePrimitive::AllToAll,
    CollectivePrimitive::Broadcast,
    CollectivePrimitive::Reduce,
    CollectivePrimitive::Gather,
    CollectivePrimitive::Scatter,
];

/// State of the members of a line when all had done all they could.
struct Line {
    /// Messages that reached each member, and those it expects.
    received: Vec<u32>,
    expected: Vec<u32>,
    /// Bytes sent and received by each, times n, since shares are n-ths.
    sent_n: Vec<u64>,
    received_n: Vec<u64>,
    /// Whether every program came to its end.
    ended: bool,
}

/// Runs the programs of all members without time, in rounds, as far as they go.
fn line(
    algorithm: CollectiveAlgorithm,
    primitive: CollectivePrimitive,
    n: u32,
    root: u32,
    bytes: u64,
) -> Line {
    let stage = CollectiveStage {
        phase: 0,
        primitive,
        buffer: BufferShare::whole(bytes),
        mirrored: false,
        bidirectional: false,
    };
    let algorithm = algorithm.resolve(primitive, n);
    let seat = |index| LinePosition {
        size: n,
        index,
        root,
        position: index,
    };
    let size = n as usize;
    let mut line = Line {
        received: vec![0; size],
        expected: (0..n)
            .map(|i| algorithm.receives(&stage, seat(i)))
            .collect(),
        sent_n: vec![0; size],
        received_n: vec![0; size],
        ended: false,
    };
    let mut next = vec![0; size];
    loop {
        let mut idle = true;
        for index in 0..n {
            let me = index as usize;
            while let Some(step) = algorithm.step(&stage, seat(index), next[me]) {
                assert!(step.to < n && step.to != index, "members send to others");
                if step.after > line.received[me] {
                    break;
                }
                let share = step.amount.bytes * u64::from(n) / step.amount.parts;
                assert_eq!(share * step.amount.parts, step.amount.bytes * u64::from(n));
                line.received[step.to as usize] += 1;
                line.sent_n[me] += share;
                line.received_n[step.to as usize] += share;
                next[me] += 1;
                idle = false;
            }
        }
        if idle {
            let done = |index: u32| algorithm.step(&stage, seat(index), next[index as usize]);
            line.ended = (0..n).all(|index| done(index).is_none());
            return line;
        }
    }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn every_message_sent_is_expected_and_no_program_waits_for_ever(
        n in 2_u32..40,
        root in any::<u32>(),
        bytes in 0_u64..1 << 40,
        primitive in prop::sample::select(PRIMITIVES.to_vec()),
        algorithm in prop::sample::select(CollectiveAlgorithm::ALL.map(|(a, _)| a).to_vec()),
    ) {
        let line = line(algorithm, primitive, n, root % n, bytes);
        prop_assert!(line.ended);
        prop_assert_eq!(line.received, line.expected);
        let sum = |bytes: &[u64]| bytes.iter().map(|&b| u128::from(b)).sum::<u128>();
        prop_assert_eq!(sum(&line.sent_n), sum(&line.received_n));
    }

    /// With a buffer of S, of which S/n is a member's share:
    #[test]
    fn volumes_are_those_of_the_literature(n in 2_u32..40, root in any::<u32>(), s in 0_u64..1 << 40) {
        use CollectivePrimitive as P;
        let root = root % n;
        let m = u64::from(n);
        for (algorithm, _) in CollectiveAlgorithm::ALL {
            let of = |primitive| line(algorithm, primitive, n, root, s);
            // Reduce-scatter and all-gather, an all-reduce: 2 (n - 1) / n S out of and into each.
            let (scatter, gather) = (of(P::ReduceScatter), of(P::AllGather));
            for i in 0..n as usize {
                prop_assert_eq!(scatter.sent_n[i] + gather.sent_n[i], 2 * (m - 1) * s);
                prop_assert_eq!(scatter.received_n[i] + gather.received_n[i], 2 * (m - 1) * s);
            }
            // All-to-all: n - 1 shares from each, which a ring passes on 1, 2, … n - 1 times.
            let shares = if algorithm == CollectiveAlgorithm::Ring { m * (m - 1) / 2 } else { m - 1 };
            prop_assert!(of(P::AllToAll).sent_n.iter().all(|&sent| sent == shares * s));
            // Everyone but the root gets all of S in a broadcast; everyone but the root gives all of
            // it in a reduce.
            let (spread, sum) = (of(P::Broadcast), of(P::Reduce));
            for i in 0..n as usize {
                let all = if i == root as usize { 0 } else { m * s };
                prop_assert_eq!(spread.received_n[i], all);
                prop_assert_eq!(sum.sent_n[i], all);
            }
            // The root gets or gives the n - 1 shares of the others.
            prop_assert_eq!(of(P::Gather).received_n[root as usize], (m - 1) * s);
            prop_assert_eq!(of(P::Scatter).sent_n[root as usize], (m - 1) * s);
            // Bytes that enter a member in a scatter and do not leave it are its share.
            let scatter = of(P::Scatter);
            for i in (0..n as usize).filter(|&i| i != root as usize) {
                prop_assert_eq!(scatter.received_n[i] - scatter.sent_n[i], s);
            }
        }
    }
}
