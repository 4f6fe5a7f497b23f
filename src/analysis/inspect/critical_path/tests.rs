//! Compares critical paths with handwritten ones, and checks the paths of small random graphs.

use super::*;
use crate::inspect::{InspectedRankTrace, NodeStartTimesSource};
use chakram_trace::format::scan::NodeView;
use chakram_trace::format::write::{AttributeValue, Sink, TraceWriter};
use chakram_trace::format::{CollectiveKind, GroupName, Op};
use proptest::prelude::*;

/// A node: true for a collective; its delay, wait and duration in ns; its lane; its dependencies.
type TestNodeFields = (bool, [u64; 3], i64, Vec<u64>);

/// Builds a rank's trace from `lines`, with one node per line and ids starting at 1.
fn build_rank_times(rank: u32, lines: &[TestNodeFields]) -> RankTimesForCriticalPath {
    let captured = [("captured_ns", AttributeValue::Uint(7))];
    let mut writer = TraceWriter::start_with_metadata(Vec::new(), &captured).unwrap();
    for ((call, [delay, wait, length], lane, after), id) in lines.iter().zip(1..) {
        let op = if *call {
            Op::Collective {
                kind: CollectiveKind::AllReduce,
                bytes: 8,
                group: GroupName::World,
                root: None,
                dimensions: None,
                host: false,
            }
        } else {
            Op::Compute {
                flops: 0,
                bytes: 0,
                dtype: None,
            }
        };
        let node = NodeView {
            lane: Some(*lane),
            recorded: Span::from_ns(*length),
            delay: Span::from_ns(*delay),
            wait: Span::from_ns(*wait),
            ..NodeView::new(id, "n", op)
        };
        writer.receive_node(&node, after).unwrap();
    }
    let contents = writer.into_unflushed_sink();
    let trace = InspectedRankTrace::read_trace(rank, &contents, |e| e).unwrap();
    assert_eq!(trace.faults.count_replay_rejecting_faults(), 0);
    assert_eq!(trace.times.basis, NodeStartTimesSource::Kept);
    RankTimesForCriticalPath::new(trace).unwrap()
}

/// Rank 0 computes until 50 ns, waits for rank 1 until 100 ns, and all-reduces until 120 ns. Rank 1 starts at 10 ns,
/// computes until 100 ns, and also all-reduces until 120 ns.
fn build_two_rank_times() -> [RankTimesForCriticalPath; 2] {
    let rank = |rank, delay, compute, wait| {
        let lines = [
            (false, [delay, 0, compute], 0, vec![]),
            (true, [0, wait, 20], 1, vec![1]),
        ];
        build_rank_times(rank, &lines)
    };
    [rank(0, 0, 50, 50), rank(1, 10, 90, 0)]
}

#[test]
fn the_path_goes_on_from_the_rank_that_came_last() {
    // Both ranks end at 120 ns, so the path ends on rank 0, the lower rank. The all-reduce of rank 0 waited from 50
    // to 100 ns, when rank 1 arrived, so its transfer takes 20 ns. On rank 1, the path contains the rank's own
    // all-reduce (which adds no time), 90 ns of compute and 10 ns of delay. The total is 20 + 90 + 10 = 120 ns.
    let tracks = build_two_rank_times();
    let path = critical_path(&tracks, true).unwrap();
    let ns = |span: Span| span.0 / 1000;
    let pieces: Vec<_> = path
        .pieces
        .iter()
        .map(|p| {
            (
                p.track,
                p.id_of_node(&tracks),
                p.from.0 / 1000,
                [p.delay, p.wait, p.work].map(ns),
            )
        })
        .collect();
    assert_eq!(
        pieces,
        [
            (1, 1, 0, [10, 0, 90]),
            (1, 2, 100, [0, 0, 0]),
            (0, 2, 100, [0, 0, 20]),
        ]
    );
    assert_eq!((path.changes, ns(path.total_time())), (1, 120));
    // Compute comes first, because its 100 ns (including the delay) exceed the all-reduce's time.
    let spent = sum_path_time_by_key(&path, |piece| piece.class_of_node(&tracks));
    let all: Vec<_> = spent
        .iter()
        .map(|(class, s)| (class.to_string(), ns(s.total_time()), s.pieces))
        .collect();
    assert_eq!(
        all,
        [
            ("compute".to_owned(), 100, 1),
            ("all-reduce".to_owned(), 20, 2)
        ]
    );
}

#[test]
fn a_rank_by_itself_keeps_its_waiting() {
    // The path has 50 ns of compute, 50 ns of waiting and 20 ns of transfer.
    let tracks = build_two_rank_times();
    let path = critical_path(&tracks[..1], true).unwrap();
    let last = path.pieces.last().unwrap();
    assert_eq!(
        (last.wait, last.work),
        (Span::from_ns(50), Span::from_ns(20))
    );
    assert_eq!((path.total_time(), path.changes), (Span::from_ns(120), 0));
    // If `joined` is false, the path must not change ranks.
    assert_eq!(critical_path(&tracks, false).unwrap(), path);
}

#[test]
fn a_trace_without_nodes_has_no_path() {
    assert_eq!(critical_path(&[build_rank_times(0, &[])], true), None);
    assert_eq!(critical_path(&[], true), None);
}

/// Generates the nodes of a rank; each node depends only on earlier nodes.
fn rank_nodes_strategy() -> impl Strategy<Value = Vec<TestNodeFields>> {
    let node = (
        any::<bool>(),
        [0_u64..5, 0_u64..9, 0_u64..9],
        0_i64..3,
        any::<u16>(),
    );
    prop::collection::vec(node, 1..9).prop_map(|nodes| {
        let nodes = nodes.into_iter().enumerate();
        let lines = nodes.map(|(i, (call, times, lane, bits))| {
            let after = (0..i as u64)
                .filter(|bit| bits >> bit & 1 == 1)
                .map(|bit| bit + 1);
            (call, times, lane, after.collect())
        });
        lines.collect()
    })
}

proptest! {
    /// For random ranks, the path must have no gaps, and must end on the rank that ends last. If the path stays on
    /// the same rank after a part, the part must be as long as its node.
    #[test]
    fn paths_have_no_gaps(ranks in prop::collection::vec(rank_nodes_strategy(), 1..4)) {
        let tracks: Vec<RankTimesForCriticalPath> = ranks.iter().zip(0..).map(|(lines, rank)| build_rank_times(rank, lines)).collect();
        let path = critical_path(&tracks, true).unwrap();
        let mut at = Time::ZERO;
        for piece in &path.pieces {
            prop_assert_eq!(piece.from, at);
            at = at + piece.duration();
            let times = ranks[piece.track as usize][piece.node as usize].1;
            let node = Span::from_ns(times[1] + times[2]);
            prop_assert!(piece.wait + piece.work <= node);
            prop_assert!(piece.delay == Span::ZERO || piece.delay == Span::from_ns(times[0]));
        }
        let ends = tracks.iter().map(|track| track.end_of_last_node().unwrap());
        prop_assert_eq!(Some(at), ends.max());
        let changes = path.pieces.windows(2).filter(|pair| pair[0].track != pair[1].track);
        prop_assert_eq!(changes.count(), path.changes as usize);
    }
}
