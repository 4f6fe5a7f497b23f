//! Whose turn it is: lanes, collectives of one group, collectives of several.

use super::lines::{Line, call, kernel};
use super::rig::{dim, job, machine, replay, replay_with, stepwise};
use chakram::collective::Algorithm::Ring;
use chakram::generate::{Collective, Job, Pattern};
use chakram::machine::Machine;
use chakram::topology::Shape;
use chakram::trace::CollectiveKind as K;

/// Steps of 500 ns + 20 ns per 1,000 B.
fn ring_of(n: u32) -> Machine {
    machine(&[dim(Shape::Ring, n, Ring)])
}

/// Two members, 20,000 B: reduce-scatter and all-gather of one message of 10,000 B each:
/// T = 2 x (500 + 200) ns.
const T: u64 = 1_400_000;

fn all_reduce() -> Line {
    call(K::AllReduce, 20_000)
}

#[test]
fn collectives_of_one_group_take_turns() {
    for chained in [false, true] {
        let options = Collective {
            count: 3,
            chained,
            ..Collective::new(K::AllReduce, 20_000, 2)
        };
        let workload = Job::new(Pattern::Collective(options))
            .unwrap()
            .workload()
            .unwrap();
        for options in [Default::default(), stepwise()] {
            assert_eq!(replay_with(&workload, &ring_of(2), &options).ps(), 3 * T);
        }
    }
}

/// Groups that share a member overlap on it: without contention between operations, and with lanes
/// of their own, none waits.
#[test]
fn collectives_of_two_groups_overlap() {
    let (a, b) = (all_reduce().group("a"), all_reduce().group("b"));
    let ranks = [vec![a.clone(), b.clone()], vec![a], vec![b]];
    let groups: [(&str, &[u32]); 2] = [("a", &[0, 1]), ("b", &[0, 2])];
    // A ring of 3: everyone is next to everyone.
    let replay = replay(&job(&ranks, &groups), &ring_of(3));
    assert_eq!(replay.ends(), [T, T, T]);
    // On one stream of rank 0 the second starts at T. Rank 2's part is there by then, so rank 0 begins
    // to gather when its own has left, at T + 200, and rank 2 when it has that, at T + 700: rank 2 has
    // all at T + 200 + 700, rank 0 at T + 700 + 700 ns.
    let one_stream = |lines: &Vec<Line>| lines.iter().map(|l| l.clone().on(7)).collect();
    let ranks: Vec<Vec<Line>> = ranks.iter().map(one_stream).collect();
    let replay = super::rig::replay(&job(&ranks, &groups), &ring_of(3));
    assert_eq!(replay.ends(), [2 * T, T, T + 900_000]);
}

/// The first in program order waits for a kernel of 10,000 ns; the second is ready at 0 and goes
/// first: it is over at T, long before the other starts.
#[test]
fn a_collective_that_is_ready_first_goes_first() {
    let rank = vec![kernel(10_000), all_reduce().after(&[1]), all_reduce()];
    let replay = replay(&job(&vec![rank; 2], &[]), &ring_of(2));
    for rank in 0..2 {
        assert_eq!(
            (replay.end(rank, 2), replay.end(rank, 3)),
            (10_000_000 + T, T)
        );
    }
}

/// Rank 0 is ready for the second at 0 and for the first at 10,000 ns; rank 1 for the first at
/// 1,000 and for the second at 2,000 ns. The second was ready first anywhere, so it goes first on
/// both: both arrive by 2,000 ns, one message each way and back. Rank 1 sends its part at 2,000 and
/// rank 0 has it 700 ns later; rank 0's part was there at 700. Rank 1 has sent at 2,200 ns and
/// begins to gather; rank 0 at 2,700. So rank 0 has all at 2,900 (begun to receive at 2,200 + 500,
/// when the first part is in), and rank 1 at 2,700 + 700.
#[test]
fn the_order_of_turns_is_the_same_on_all_members() {
    let ranks = [
        vec![kernel(10_000), all_reduce().after(&[1]), all_reduce()],
        vec![
            kernel(1000),
            all_reduce().after(&[1]),
            kernel(1000).after(&[1]),
            all_reduce().after(&[3]),
        ],
    ];
    let replay = replay(&job(&ranks, &[]), &ring_of(2));
    assert_eq!((replay.end(0, 3), replay.end(1, 4)), (2_900_000, 3_400_000));
    // Rank 1 takes its turn at the first at 3,400 ns, rank 0 at 10,000 ns: rank 1's part is there
    // by then, so rank 0 begins to gather when its own part has left, at 10,200, and rank 1 when it
    // has that part, at 10,700. Rank 1 has all at 10,200 + 700, rank 0 at 10,700 + 700.
    assert_eq!(
        (replay.end(0, 2), replay.end(1, 2)),
        (11_400_000, 10_900_000)
    );
}
