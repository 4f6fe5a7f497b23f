//! Compares computed times with hand calculations and with an exhaustive search.

use super::*;
use proptest::prelude::*;

fn build_csr(count: usize, edges: &[(u32, u32)]) -> Csr {
    Csr::new(count, |each| edges.iter().for_each(|&(a, b)| each(a, b)))
}

fn build_node_timing(delay: u64, length: u64, lane: u32) -> NodeDelayDurationAndLane {
    NodeDelayDurationAndLane {
        delay: Span(delay),
        length: Span(length),
        lane,
        settles: false,
    }
}

#[test]
fn nodes_start_a_delay_after_their_causes_and_take_turns_on_lanes() {
    // Node 0 has no dependencies, is ready at 2 and runs 2-12 on lane 0. Node 1 is ready at 0 and runs 0-5 on lane
    // 1. Node 2 waits for node 1 and is ready at 5 + 1 = 6, but lane 0 is occupied until 12. It runs 12-15, and its
    //    cause is node 0. Node 3 waits for nodes 0 and 1 and is ready at 12. Node 2 became ready earlier and takes lane
    //    0 first, so node 3 runs 15-16, and its cause is node 2. Node 4 waits for node 2 and has no lane. It is ready
    //    at 15 + 4 = 19 and runs 19-20, and its cause is node 2.
    let steps = [
        build_node_timing(2, 10, 0),
        build_node_timing(0, 5, 1),
        build_node_timing(1, 3, 0),
        build_node_timing(0, 1, 0),
        build_node_timing(4, 1, NONE),
    ];
    let next = build_csr(5, &[(1, 2), (0, 3), (1, 3), (2, 4)]);
    let recorded = NodeStartEndTimesAndCauses::new(&next, 2, |i| steps[i as usize]);
    let starts = [2, 0, 12, 15, 19].map(Time);
    assert_eq!(recorded.start, starts);
    assert_eq!(recorded.end, [12, 5, 15, 16, 20].map(Time));
    assert_eq!(recorded.cause, [NONE, NONE, 0, 2, 2]);
    assert_eq!(recorded.level, [0, 0, 1, 1, 2]);
    assert_eq!((recorded.ran, recorded.last_ending_node()), (5, Some(4)));
    assert_eq!(recorded.dependency_depth_and_largest_level_size(), (3, 2));
}

#[test]
fn what_is_on_a_cycle_or_behind_it_does_not_run() {
    let next = build_csr(4, &[(1, 2), (2, 1), (2, 3)]);
    let recorded = NodeStartEndTimesAndCauses::new(&next, 0, |_| build_node_timing(0, 1, NONE));
    assert_eq!(recorded.ran, 1);
    assert!(recorded.has_node_run(0) && !recorded.has_node_run(1) && !recorded.has_node_run(3));
    assert_eq!(recorded.dependency_depth_and_largest_level_size(), (1, 1));
}

#[test]
fn a_long_chain_does_not_exhaust_the_stack() {
    let n = 100_000;
    let next = Csr::new(n as usize, |each| (1..n).for_each(|i| each(i - 1, i)));
    let recorded = NodeStartEndTimesAndCauses::new(&next, 1, |_| build_node_timing(1, 1, 0));
    assert_eq!(recorded.end[n as usize - 1], Time(2 * u64::from(n)));
}

/// Generates graphs of a few nodes, possibly with cycles. Each graph consists of its nodes' timings and its edges.
fn small_graph_strategy() -> impl Strategy<Value = (Vec<NodeDelayDurationAndLane>, Vec<(u32, u32)>)>
{
    let steps = prop::collection::vec((0_u64..4, 0_u64..4, 0_u32..4, any::<bool>()), 1..9);
    steps.prop_flat_map(|steps| {
        let n = steps.len() as u32;
        let steps: Vec<NodeDelayDurationAndLane> = steps
            .into_iter()
            .map(|(delay, length, lane, settles)| NodeDelayDurationAndLane {
                settles,
                ..build_node_timing(delay, length, if lane == 3 { NONE } else { lane })
            })
            .collect();
        let order = Just((0..n).collect::<Vec<_>>()).prop_shuffle();
        let edges = prop::collection::vec((0..n, 0..n), 0..14);
        (Just(steps), order, edges).prop_map(|(steps, order, edges)| {
            // Each edge goes from an earlier to a later node in a shuffled order.
            let place = |i: u32| order.iter().position(|&o| o == i);
            let edges = edges.into_iter().filter(|(a, b)| a != b);
            let forward = |(a, b)| if place(a) < place(b) { (a, b) } else { (b, a) };
            (steps, edges.map(forward).collect())
        })
    })
}

/// Returns the length of the longest path that ends with `node`, by recursion over all its predecessors.
fn longest_path_length_to_node(
    node: u32,
    steps: &[NodeDelayDurationAndLane],
    edges: &[(u32, u32)],
    turns: &[(u32, u32)],
) -> u64 {
    let own = steps[node as usize];
    let mut ways = vec![own.delay.0];
    let to = |list: &[(u32, u32)]| -> Vec<u32> {
        list.iter().filter(|e| e.1 == node).map(|e| e.0).collect()
    };
    for before in to(edges) {
        ways.push(longest_path_length_to_node(before, steps, edges, turns) + own.delay.0);
    }
    for before in to(turns) {
        ways.push(longest_path_length_to_node(before, steps, edges, turns));
    }
    ways.into_iter().max().unwrap() + own.length.0
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// The end of each node must equal the length of the longest path through dependencies and lane order. Lanes must
    /// serve nodes in order of readiness. The times on a chain of causes must add up to the end of its last node.
    #[test]
    fn node_ends_equal_the_longest_paths((steps, edges) in small_graph_strategy()) {
        let lanes = 3;
        let next = build_csr(steps.len(), &edges);
        let recorded = NodeStartEndTimesAndCauses::new(&next, lanes, |i| steps[i as usize]);
        prop_assert_eq!(recorded.ran, steps.len());
        let end = |i: u32| recorded.end[i as usize].0;
        let ready = |i: u32| {
            let before = edges.iter().filter(|e| e.1 == i).map(|e| end(e.0)).max();
            before.unwrap_or(0) + steps[i as usize].delay.0
        };
        let mut turns = Vec::new();
        for lane in 0..lanes as u32 {
            let of = |i: &u32| steps[*i as usize].lane == lane;
            let mut users: Vec<u32> = (0..steps.len() as u32).filter(of).collect();
            users.sort_by_key(|&i| (recorded.start[i as usize], end(i), ready(i), i));
            for pair in users.windows(2) {
                prop_assert!(end(pair[0]) <= recorded.start[pair[1] as usize].0);
                let together = recorded.start[pair[0] as usize] == recorded.start[pair[1] as usize];
                prop_assert!(ready(pair[0]) <= ready(pair[1]) || together);
                // If a node became ready only after the previous node on its lane had ended, it did not wait for that
                // node.
                if end(pair[0]) > ready(pair[1]) {
                    turns.push((pair[0], pair[1]));
                }
            }
        }
        for node in 0..steps.len() as u32 {
            prop_assert_eq!(end(node), longest_path_length_to_node(node, &steps, &edges, &turns), "node {}", node);
            let mut sum = 0;
            let mut at = node;
            loop {
                let before = recorded.cause[at as usize];
                let from = if before == NONE { 0 } else { end(before) };
                let gap = recorded.start[at as usize].0 - from;
                prop_assert!(gap == 0 || gap == steps[at as usize].delay.0);
                sum += gap + steps[at as usize].length.0;
                if before == NONE {
                    break;
                }
                at = before;
            }
            prop_assert_eq!(sum, end(node));
        }
    }
}
