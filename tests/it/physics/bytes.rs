//! Tests that the sent bytes equal the received bytes, counted from the programs themselves.

use super::rig::make_proptest_config;
use chakram::extend::{CollectiveStage, CollectiveStagePrimitive, MemberLinePosition};
use chakram::machine::CollectiveAlgorithm;
use chakram::units::UnroundedBufferShare;
use proptest::prelude::*;

const PRIMITIVES: [CollectiveStagePrimitive; 8] = [
    CollectiveStagePrimitive::ReduceScatter,
    CollectiveStagePrimitive::AllGather,
    CollectiveStagePrimitive::AllReduce,
    CollectiveStagePrimitive::AllToAll,
    CollectiveStagePrimitive::Broadcast,
    CollectiveStagePrimitive::Reduce,
    CollectiveStagePrimitive::Gather,
    CollectiveStagePrimitive::Scatter,
];

/// State of a line's members when no member can continue.
struct LineStateWhenNoMemberCanContinue {
    /// Number of messages that reached each member; the next field has the expected numbers.
    received: Vec<u32>,
    expected: Vec<u32>,
    /// Bytes that each member sends and receives, multiplied by n, because a share is an n-th of
    /// the buffer.
    sent_n: Vec<u64>,
    received_n: Vec<u64>,
    /// `true` if every program ended.
    ended: bool,
}

/// Runs the programs of all members without a clock, in rounds, until no program can continue.
fn run_collective_programs_without_clock(
    algorithm: CollectiveAlgorithm,
    primitive: CollectiveStagePrimitive,
    n: u32,
    root: u32,
    bytes: u64,
) -> LineStateWhenNoMemberCanContinue {
    let stage = CollectiveStage {
        phase: 0,
        primitive,
        buffer: UnroundedBufferShare::from_bytes(bytes),
        mirrored: false,
        bidirectional: false,
    };
    let algorithm = algorithm.resolve_unsupported_algorithm(primitive, n);
    let seat = |index| MemberLinePosition {
        size: n,
        index,
        root,
        position: index,
    };
    let size = n as usize;
    let mut line = LineStateWhenNoMemberCanContinue {
        received: vec![0; size],
        expected: (0..n)
            .map(|i| algorithm.receive_count(&stage, seat(i)))
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
            while let Some(step) = algorithm.nth_send(&stage, seat(index), next[me]) {
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
            let done = |index: u32| algorithm.nth_send(&stage, seat(index), next[index as usize]);
            line.ended = (0..n).all(|index| done(index).is_none());
            return line;
        }
    }
}

proptest! {
    #![proptest_config(make_proptest_config(300))]

    #[test]
    fn every_message_sent_is_expected_and_no_program_waits_for_ever(
        n in 2_u32..40,
        root in any::<u32>(),
        bytes in 0_u64..1 << 40,
        primitive in prop::sample::select(PRIMITIVES.to_vec()),
        algorithm in prop::sample::select(CollectiveAlgorithm::ALL.map(|(a, _)| a).to_vec()),
    ) {
        let line = run_collective_programs_without_clock(algorithm, primitive, n, root % n, bytes);
        prop_assert!(line.ended);
        prop_assert_eq!(line.received, line.expected);
        let sum = |bytes: &[u64]| bytes.iter().map(|&b| u128::from(b)).sum::<u128>();
        prop_assert_eq!(sum(&line.sent_n), sum(&line.received_n));
    }

    /// Volumes for a buffer of size S; a member's share is S/n.
    #[test]
    fn collective_volumes_match_the_literature(n in 2_u32..40, root in any::<u32>(), s in 0_u64..1 << 40) {
        use CollectiveStagePrimitive as P;
        let root = root % n;
        let m = u64::from(n);
        for (algorithm, _) in CollectiveAlgorithm::ALL {
            let of = |primitive| run_collective_programs_without_clock(algorithm, primitive, n, root, s);
            // Reduce-scatter and all-gather, or an all-reduce: each member sends and receives 2 (n -
            // 1) / n S.
            let (scatter, gather) = (of(P::ReduceScatter), of(P::AllGather));
            for i in 0..n as usize {
                prop_assert_eq!(scatter.sent_n[i] + gather.sent_n[i], 2 * (m - 1) * s);
                prop_assert_eq!(scatter.received_n[i] + gather.received_n[i], 2 * (m - 1) * s);
            }
            // In an all-to-all, each member has n - 1 shares for other members, which a ring
            // forwards 1, 2, … n - 1 times.
            let shares = if algorithm == CollectiveAlgorithm::Ring { m * (m - 1) / 2 } else { m - 1 };
            prop_assert!(of(P::AllToAll).sent_n.iter().all(|&sent| sent == shares * s));
            // In a broadcast, every member except the root receives all of S. In a reduce, every
            // member except the root sends all of S.
            let (spread, sum) = (of(P::Broadcast), of(P::Reduce));
            for i in 0..n as usize {
                let all = if i == root as usize { 0 } else { m * s };
                prop_assert_eq!(spread.received_n[i], all);
                prop_assert_eq!(sum.sent_n[i], all);
            }
            // The root receives or sends the n - 1 shares of the other members.
            prop_assert_eq!(of(P::Gather).received_n[root as usize], (m - 1) * s);
            prop_assert_eq!(of(P::Scatter).sent_n[root as usize], (m - 1) * s);
            // In a scatter, a member keeps the bytes of its share and forwards the rest.
            let scatter = of(P::Scatter);
            for i in (0..n as usize).filter(|&i| i != root as usize) {
                prop_assert_eq!(scatter.received_n[i] - scatter.sent_n[i], s);
            }
        }
    }
}
