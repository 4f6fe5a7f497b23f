//! Compares random jobs with an oracle that sorts the starts and ends of nodes, and adds up their
//! memory.

use super::{BARRIER, KERNEL, TraceNodeWithMemoryChanges, replay_with_node_times};
use chakram::trace::NodeMemoryChanges;
use chakram::units::Time;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

/// Computes the memory of one rank by sorting: at each instant, completions come before issues.
/// Returns the peak by class, the peak's first instant, the memory left at the end, and the missing
/// memory.
fn compute_memory_by_sorting(
    lines: &[TraceNodeWithMemoryChanges],
    ran: &[(Time, Time)],
) -> ([u64; 5], u64, [u64; 5], [u64; 5]) {
    let mut events = Vec::new();
    for (TraceNodeWithMemoryChanges(_, _, _, changes, _), (start, end)) in lines.iter().zip(ran) {
        events.push((end.0, 0, changes.frees));
        events.push((start.0, 1, changes.allocates));
    }
    events.sort_unstable();
    let (mut held, mut best, mut at, mut missing) = ([0; 5], [0; 5], 0, [0; 5]);
    for (now, kind, bytes) in events {
        for i in 0..5 {
            if kind == 1 {
                held[i] += bytes[i];
            } else if held[i] >= bytes[i] {
                held[i] -= bytes[i];
            } else {
                missing[i] += bytes[i] - held[i];
                held[i] = 0;
            }
        }
        if kind == 1 && held.iter().sum::<u64>() > best.iter().sum() {
            (best, at) = (held, now);
        }
    }
    (best, at, held, missing)
}

fn memory_changes_strategy() -> impl Strategy<Value = NodeMemoryChanges> {
    let few = || prop::array::uniform5(prop_oneof![2 => Just(0_u64), 1 => 1_u64..9]);
    let some = (few(), few()).prop_map(|(allocates, frees)| NodeMemoryChanges {
        allocates,
        frees,
        remote: 0,
    });
    prop_oneof![1 => Just(NodeMemoryChanges::default()), 3 => some]
}

/// Generates kernels on three lanes. Kernels take 1 to 4 ns, so that many begin and end together, and each has up to
/// two dependencies. The job has barriers if every rank has one.
fn ranks_strategy() -> impl Strategy<Value = Vec<Vec<TraceNodeWithMemoryChanges>>> {
    let node = (
        0_i64..3,
        1_u64..5,
        memory_changes_strategy(),
        vec(any::<prop::sample::Index>(), 0..3),
    );
    let rank = vec(node, 1..30).prop_map(|nodes| {
        let mut lines = Vec::new();
        for (i, (lane, ns, changes, after)) in nodes.into_iter().enumerate() {
            let (op, lane) = if i % 7 == 6 {
                (BARRIER, 9)
            } else {
                (KERNEL, lane)
            };
            let mut after: Vec<u64> = match i {
                0 => Vec::new(),
                _ => after.iter().map(|at| at.index(i) as u64 + 1).collect(),
            };
            after.sort_unstable();
            after.dedup();
            lines.push(TraceNodeWithMemoryChanges(op, lane, ns, changes, after));
        }
        lines
    });
    vec(rank, 1..4).prop_map(|mut ranks| {
        let calls = |lines: &Vec<TraceNodeWithMemoryChanges>| {
            lines.iter().filter(|line| line.1 == 9).count()
        };
        let fewest = ranks.iter().map(calls).min().unwrap_or(0);
        for lines in &mut ranks {
            let late = lines.iter_mut().filter(|line| line.1 == 9).skip(fewest);
            late.for_each(|line| line.0 = KERNEL);
        }
        ranks
    })
}

proptest! {
    #![proptest_config(Config { cases: 400, failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..Config::default() })]

    #[test]
    fn memory_peaks_equal_those_of_sorted_events(ranks in ranks_strategy()) {
        let (report, ran) = replay_with_node_times(&ranks);
        for (rank, lines) in ranks.iter().enumerate() {
            let row = report.memory.iter().find(|row| row.rank.index() == rank);
            let (best, at, left, missing) = compute_memory_by_sorting(lines, &ran[rank]);
            match row {
                None => prop_assert!(lines.iter().all(|line| line.3 == NodeMemoryChanges::default())),
                Some(row) => {
                    let found = row.missing.as_ref().map_or([0; 5], |missing| missing.classes);
                    prop_assert_eq!((row.left, found), (left, missing));
                    prop_assert_eq!((row.classes, row.peak.0), (best, best.iter().sum()));
                    prop_assert_eq!(row.at.0, at);
                }
            }
        }
    }
}
