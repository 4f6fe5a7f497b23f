//! Compares traces with copies of themselves that have different ids and a different order. The comparison must find no
//! difference.

use super::traces::{
    FoundDifferences, Random, build_alike_nodes, build_random_mostly_unique_nodes,
    compare_node_lists, shuffle_and_renumber_nodes,
};
use proptest::prelude::*;

fn assert_shuffled_graph_is_same(edges: &[(u64, u64)], count: u64) {
    let nodes = build_alike_nodes(edges, count);
    for seed in 0..5 {
        let (other, _) = shuffle_and_renumber_nodes(&mut Random(seed), &nodes);
        assert_eq!(
            compare_node_lists(&nodes, &other),
            FoundDifferences::default(),
            "seed {seed}: {edges:?}"
        );
    }
}

#[test]
fn parallel_chains_equal_their_shuffled_copy() {
    // The graph consists of 7 chains of 9 nodes; in a second graph, the chains also have a common start and a common
    // end.
    let chain = |c: u64| (0..8).map(move |i| (9 * c + i, 9 * c + i + 1));
    let mut edges: Vec<_> = (0..7).flat_map(chain).collect();
    assert_shuffled_graph_is_same(&edges, 63);
    edges.extend((0..7).flat_map(|c| [(63, 9 * c), (9 * c + 8, 64)]));
    assert_shuffled_graph_is_same(&edges, 65);
}

#[test]
fn butterfly_graph_equals_its_shuffled_copy() {
    // Each level consists of 2^k nodes. Node i of level l depends on two nodes of the previous level: node i, and
    // node i with bit l - 1 flipped.
    for k in 1..5_u64 {
        let n = 1 << k;
        let level = |l: u64| {
            (0..n).flat_map(move |i| {
                [(i, i), (i ^ 1 << (l - 1), i)].map(|(a, b)| (n * (l - 1) + a, n * l + b))
            })
        };
        let edges: Vec<_> = (1..=k).flat_map(level).collect();
        assert_shuffled_graph_is_same(&edges, n * (k + 1));
    }
}

#[test]
fn rings_of_neighbours_equal_their_shuffled_copy() {
    // Each level has a ring of n nodes, where node i depends on nodes i - 1, i and i + 1 of the previous level, as in a
    // halo exchange. In a second graph, node i depends only on nodes i and i + 1.
    for n in [3, 4, 5, 6, 8, 11_u64] {
        let three = |l: u64| {
            (0..n).flat_map(move |i| [n - 1, 0, 1].map(|d| (n * l + (i + d) % n, n * (l + 1) + i)))
        };
        assert_shuffled_graph_is_same(&(0..4).flat_map(three).collect::<Vec<_>>(), 5 * n);
        let two = |l: u64| {
            (0..n).flat_map(move |i| [0, 1].map(|d| (n * l + (i + d) % n, n * (l + 1) + i)))
        };
        assert_shuffled_graph_is_same(&(0..4).flat_map(two).collect::<Vec<_>>(), 5 * n);
    }
}

#[test]
fn grids_and_complete_layers_equal_their_shuffled_copy() {
    let grid = (0..36_u64).flat_map(|i| {
        let right = (i % 6 < 5).then_some((i, i + 1));
        let down = (i < 30).then_some((i, i + 6));
        right.into_iter().chain(down)
    });
    assert_shuffled_graph_is_same(&grid.collect::<Vec<_>>(), 36);
    let layers = (0..3_u64).flat_map(|l| (0..36).map(move |i| (6 * l + i / 6, 6 * l + 6 + i % 6)));
    assert_shuffled_graph_is_same(&layers.collect::<Vec<_>>(), 24);
    // The two roots of a pair share a successor, so if one root is matched wrongly, the other one is too.
    let joined = (0..20_u64).flat_map(|i| [(i, 40 + i), (20 + i, 40 + i)]);
    assert_shuffled_graph_is_same(&joined.collect::<Vec<_>>(), 60);
}

#[test]
fn cycles_with_tails_equal_their_shuffled_copy() {
    // The graph has two cycles of 5 nodes with tails, and a cycle of 7 nodes without a tail.
    let circle = |from: u64, n: u64| (0..n).map(move |i| (from + i, from + (i + 1) % n));
    let mut edges: Vec<_> = circle(0, 5)
        .chain(circle(5, 5))
        .chain(circle(10, 7))
        .collect();
    edges.extend([(0, 17), (17, 18), (5, 19), (19, 20), (20, 20)]);
    assert_shuffled_graph_is_same(&edges, 21);
}

#[test]
fn trace_of_distinct_nodes_equals_its_shuffled_copy() {
    for seed in 0..500 {
        let mut random = Random(seed);
        let nodes = build_random_mostly_unique_nodes(&mut random, 60);
        assert_eq!(
            compare_node_lists(&nodes, &nodes),
            FoundDifferences::default(),
            "seed {seed}"
        );
        let (other, _) = shuffle_and_renumber_nodes(&mut random, &nodes);
        assert_eq!(
            compare_node_lists(&nodes, &other),
            FoundDifferences::default(),
            "seed {seed}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Tests sparse and dense random graphs. All nodes of a graph have the same contents, or one of a few contents.
    /// Each graph contains some parts twice.
    #[test]
    fn any_random_graph_equals_its_shuffled_copy(
        count in 1..40_u64,
        pairs in proptest::collection::vec((0..40_u64, 0..40_u64, any::<bool>()), 0..90),
        names in 1..4_u64,
        twice in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut random = Random(seed);
        let mut nodes = build_alike_nodes(&[], count);
        for node in &mut nodes {
            node.name = format!("op{}", random.next() % names);
            node.duration_micros = random.next() % 2;
        }
        for (a, b, control) in pairs {
            let (from, to) = ((a % count).min(b % count), (a % count).max(b % count));
            if from != to {
                let node = &mut nodes[to as usize];
                let deps = if control { &mut node.ctrl_deps } else { &mut node.data_deps };
                deps.push(from);
            }
        }
        if twice {
            let again: Vec<_> = nodes.iter().cloned().map(|mut node| {
                node.id += count;
                node.data_deps.iter_mut().chain(&mut node.ctrl_deps).for_each(|dep| *dep += count);
                node
            }).collect();
            nodes.extend(again);
        }
        let (other, _) = shuffle_and_renumber_nodes(&mut random, &nodes);
        prop_assert_eq!(compare_node_lists(&nodes, &other), FoundDifferences::default());
    }
}
