//! Tests graphs that are read from files: the order of records does not matter, repairs are counted, and errors that
//! cannot be repaired name the node's id.

use super::{build_attribute, build_file_from_nodes, build_kernel};
use chakram_base::ids::NodeIndex;
use chakram_base::units::Span;
use chakram_trace::format::proto::Node;
use chakram_trace::format::proto::attribute_proto::Value;
use chakram_trace::graph::{
    EnforcedDependencyKinds, Graph, GraphRepairCounts, Lane, ProfilerOverheadRemovalPolicy,
    RankBindingsOfGraphSlots,
};
use proptest::prelude::*;

fn read_graph_of_nodes(
    nodes: &[Node],
    policy: EnforcedDependencyKinds,
) -> Result<(Graph, RankBindingsOfGraphSlots), String> {
    Graph::read_graph(&build_file_from_nodes(nodes), 0, policy).map_err(|e| e.to_string())
}

fn read_graph_expecting_no_error(nodes: &[Node], policy: EnforcedDependencyKinds) -> Graph {
    read_graph_of_nodes(nodes, policy)
        .expect("nothing is wrong with it")
        .0
}

fn expect_and_return_graph_error(nodes: &[Node], policy: EnforcedDependencyKinds) -> String {
    read_graph_of_nodes(nodes, policy).expect_err("it makes no sense")
}

/// Returns a graph's edges as sorted pairs of ids.
fn list_edges_by_id(graph: &Graph) -> Vec<(u64, u64)> {
    let mut edges: Vec<_> = graph
        .nodes()
        .flat_map(|n| graph.successors(n).map(move |s| (n, s)))
        .map(|(from, to)| (graph.id(from), graph.id(to)))
        .collect();
    edges.sort_unstable();
    edges
}

/// Returns a node of the type that `choice` selects. `choice` covers every node type that has its own list or lane.
fn build_node_of_chosen_type(id: u64, choice: u32) -> Node {
    let name = format!("n{}", choice % 5);
    let number = |name, value| build_attribute(name, Value::Int64Val(value));
    let (kind, mut attr) = match choice % 6 {
        0 => (4, vec![number("stream", i64::from(choice / 6))]),
        1 => (
            4,
            vec![number("is_cpu_op", 1), number("tid", i64::from(choice / 6))],
        ),
        2 => (
            5,
            vec![
                number("comm_dst", i64::from(choice / 6) + 1),
                number("comm_size", 8),
            ],
        ),
        3 => (
            6,
            vec![
                number("comm_src", i64::from(choice / 6) + 1),
                number("comm_size", 8),
            ],
        ),
        4 => (
            7,
            vec![
                number("comm_type", 0),
                number("comm_size", 8),
                number("pg_name", i64::from(choice / 6)),
            ],
        ),
        _ => (
            2,
            vec![
                number("tensor_size", 8),
                number("tensor_loc", i64::from(choice / 6 % 3)),
            ],
        ),
    };
    if kind == 2 && choice / 6 % 3 == 2 && choice % 4 == 1 {
        attr.push(build_attribute(
            "in_switch",
            Value::StringVal("all_gather".to_owned()),
        ));
    }
    if choice % 4 == 1 {
        attr.push(number("delay_ns", i64::from(choice)));
    }
    if choice % 7 > 4 {
        attr.push(number("wait_ns", i64::from(choice)));
        attr.push(number("eager", 1));
    }
    Node {
        id,
        name,
        r#type: kind,
        attr,
        ..Node::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn record_order_does_not_affect_the_graph(
        ids in prop::collection::btree_set(prop_oneof![0..50_u64, any::<u64>()], 1..25),
        choices in prop::collection::vec(0..30_u32, 25),
        deps in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 60),
        order in any::<proptest::sample::Index>(),
        backward: bool,
    ) {
        let ids: Vec<u64> = ids.into_iter().collect();
        let mut nodes: Vec<Node> = ids.iter().zip(&choices).map(|(&id, &c)| build_node_of_chosen_type(id, c)).collect();
        let mut wanted = Vec::new();
        for (i, (on, control)) in deps.into_iter().enumerate() {
            // All edges of the generated graph go to higher ids (or to lower ids if `backward` is true), so they form
            // no cycle.
            let (a, b) = (i % ids.len(), on.index(ids.len()));
            let (low, high) = (a.min(b), a.max(b));
            let (from, to) = if backward { (high, low) } else { (low, high) };
            if from == to {
                continue;
            }
            let list = if control { &mut nodes[to].ctrl_deps } else { &mut nodes[to].data_deps };
            list.push(ids[from]);
            wanted.push((ids[from], ids[to]));
        }
        let total = wanted.len();
        wanted.sort_unstable();
        wanted.dedup();
        let sorted = read_graph_of_nodes(&nodes, EnforcedDependencyKinds::Auto).unwrap();
        prop_assert_eq!(list_edges_by_id(&sorted.0), &wanted[..]);
        prop_assert_eq!(sorted.0.edge_count(), wanted.len());
        prop_assert_eq!(sorted.0.repair_counts().duplicates, (total - wanted.len()) as u64);
        // The second order of the records is rotated, and then partly reversed.
        let turn = order.index(nodes.len());
        nodes.rotate_left(turn);
        nodes[turn..].reverse();
        let shuffled = read_graph_of_nodes(&nodes, EnforcedDependencyKinds::Auto).unwrap();
        prop_assert_eq!(&sorted, &shuffled);
    }
}

#[test]
fn lanes_and_names_follow_ids() {
    let stream = |id, stream| Node {
        attr: vec![build_attribute("stream", Value::Int64Val(stream))],
        ..build_kernel(id, &[], &[])
    };
    let graph =
        read_graph_expecting_no_error(&[stream(9, 7), stream(4, 8)], EnforcedDependencyKinds::Auto);
    assert_eq!(
        graph.lanes_in_order_of_first_use(),
        [Lane::Stream(8), Lane::Stream(7)]
    );
    let names: Vec<_> = graph.nodes().map(|n| graph.name_index(n)).collect();
    assert_eq!(names, [0, 1]);
}

/// The file contains a kernel with a delay, an eager send that waited, and a kernel that cannot wait. The test reads
/// the nodes in the order of their ids, then in another order.
#[test]
fn delays_and_waits_follow_ids() {
    let number = |name, value| build_attribute(name, Value::Int64Val(value));
    let more = |mut node: Node, attr: Vec<_>| {
        node.attr.extend(attr);
        node
    };
    let nodes = [
        build_kernel(1, &[], &[]),
        more(build_kernel(2, &[], &[]), vec![number("delay_ns", 5)]),
        // With `choice` 2, `node_id_of_drawn_event` returns a send.
        more(
            build_node_of_chosen_type(3, 2),
            vec![number("wait_ns", 7), number("eager", 1)],
        ),
        more(build_kernel(4, &[], &[]), vec![number("wait_ns", 9)]),
    ];
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        let nodes = order.map(|i: usize| nodes[i].clone());
        let graph = read_graph_expecting_no_error(&nodes, EnforcedDependencyKinds::Auto);
        let ns = |of: fn(&Graph, NodeIndex) -> Span| -> Vec<u64> {
            graph.nodes().map(|n| of(&graph, n).0 / 1000).collect()
        };
        assert_eq!(ns(Graph::launch_delay_after_dependencies), [0, 5, 0, 0]);
        assert_eq!(ns(Graph::recorded_wait), [0, 0, 7, 0]);
        assert!(graph.messages()[0].eager);
    }
}

/// An optional value must take no memory if no node has it. If any node has a delay, every node takes 8 more bytes.
#[test]
fn delays_take_room_only_where_there_are_any() {
    let plain: Vec<Node> = (0..10).map(|id| build_kernel(id, &[], &[])).collect();
    let with = |names: &[&str], last| {
        let mut nodes = plain.clone();
        nodes[9].r#type = last;
        let needed = [("comm_dst", 1), ("comm_size", 8)];
        let needed = if last == 5 { &needed[..] } else { &[] };
        let named = names.iter().map(|name| (*name, 3));
        for (name, value) in needed.iter().copied().chain(named) {
            nodes[9]
                .attr
                .push(build_attribute(name, Value::Int64Val(value)));
        }
        read_graph_expecting_no_error(&nodes, EnforcedDependencyKinds::Auto)
    };
    let bytes = |names: &[&str], last| with(names, last).heap_bytes();
    assert_eq!(bytes(&["delay_ns"], 4), bytes(&[], 4) + 80);
    assert_eq!(bytes(&["wait_ns"], 4), bytes(&[], 4));
    assert_eq!(bytes(&["delay_ns", "wait_ns"], 5), bytes(&[], 5) + 160);
    let (plain, delayed) = (with(&[], 4), with(&["delay_ns"], 4));
    assert_ne!(plain.fingerprint(), delayed.fingerprint());
}

/// Two ranks must not share a graph if only the ends of their captures differ.
#[test]
fn the_end_of_the_capture_tells_graphs_apart() {
    use chakram_trace::format::write::{AttributeValue, TraceWriter};
    let at = |ns| {
        let writer = TraceWriter::start_with_metadata(
            Vec::new(),
            &[("captured_ns", AttributeValue::Uint(ns))],
        );
        let file = writer.expect("a vector takes it").into_unflushed_sink();
        let (graph, _) =
            Graph::read_graph(&file, 0, EnforcedDependencyKinds::Auto).expect("it is right");
        graph
    };
    assert_eq!(at(7).captured_end(), Some(Span::from_ns(7)));
    assert_eq!((at(7).fingerprint(), at(7)), (at(7).fingerprint(), at(7)));
    assert_ne!((at(7).fingerprint(), at(7)), (at(8).fingerprint(), at(8)));
    assert_eq!(
        read_graph_expecting_no_error(&[], EnforcedDependencyKinds::Auto).captured_end(),
        None
    );
}

#[test]
fn dropped_dependencies_are_counted_as_repairs() {
    let nodes = [
        build_kernel(5, &[], &[0, 5]),
        build_kernel(6, &[5, 5, 5], &[5, 99, 6]),
    ];
    let graph = read_graph_expecting_no_error(&nodes, EnforcedDependencyKinds::Auto);
    assert_eq!(list_edges_by_id(&graph), [(5, 6)]);
    let expected = GraphRepairCounts {
        dangling_control: 2,
        self_control: 2,
        duplicates: 3,
        ..GraphRepairCounts::default()
    };
    assert_eq!(graph.repair_counts(), expected);
}

#[test]
fn data_that_nobody_produces_is_refused() {
    let why = expect_and_return_graph_error(
        &[build_kernel(3, &[], &[]), build_kernel(8, &[3, 44], &[])],
        EnforcedDependencyKinds::Auto,
    );
    assert!(
        why.contains("node 8") && why.contains("data of node 44"),
        "{why}"
    );
    let why =
        expect_and_return_graph_error(&[build_kernel(8, &[8], &[])], EnforcedDependencyKinds::Auto);
    assert!(
        why.contains("node 8") && why.contains("its own data"),
        "{why}"
    );
}

#[test]
fn duplicate_ids_are_refused() {
    let why = expect_and_return_graph_error(
        &[build_kernel(8, &[], &[]), build_kernel(8, &[], &[])],
        EnforcedDependencyKinds::Auto,
    );
    assert!(
        why.contains("record 2, byte") && why.contains("node 8"),
        "{why}"
    );
    assert!(why.contains("a second node with this id"), "{why}");
}

#[test]
fn cycles_are_named() {
    let data = [
        build_kernel(1, &[7], &[]),
        build_kernel(4, &[1], &[]),
        build_kernel(7, &[4], &[]),
    ];
    for policy in [
        EnforcedDependencyKinds::Auto,
        EnforcedDependencyKinds::Both,
        EnforcedDependencyKinds::Data,
    ] {
        let why = expect_and_return_graph_error(&data, policy);
        assert!(why.contains("1 (k1) → 4 (k4) → 7 (k7) → 1"), "{why}");
    }
    // Data dependencies in one direction and control dependencies in the other form a cycle only if control
    // dependencies are enforced.
    let mixed = [build_kernel(1, &[], &[2]), build_kernel(2, &[1], &[])];
    let why = expect_and_return_graph_error(&mixed, EnforcedDependencyKinds::Both);
    assert!(why.contains("1 (k1) → 2 (k2) → 1"), "{why}");
    let auto = read_graph_expecting_no_error(&mixed, EnforcedDependencyKinds::Auto);
    assert_eq!(
        (list_edges_by_id(&auto), auto.repair_counts().cyclic_control),
        (vec![(1, 2)], 1)
    );
    let data = read_graph_expecting_no_error(&mixed, EnforcedDependencyKinds::Data);
    assert_eq!(
        (list_edges_by_id(&data), data.repair_counts().cyclic_control),
        (vec![(1, 2)], 0)
    );
    // The graph keeps control dependencies that do not close a cycle.
    let straight = [build_kernel(1, &[], &[]), build_kernel(2, &[], &[1])];
    assert_eq!(
        list_edges_by_id(&read_graph_expecting_no_error(
            &straight,
            EnforcedDependencyKinds::Auto
        )),
        [(1, 2)]
    );
    assert_eq!(
        list_edges_by_id(&read_graph_expecting_no_error(
            &straight,
            EnforcedDependencyKinds::Data
        )),
        []
    );
}

#[test]
fn huge_ids_cost_no_memory_for_those_below() {
    let graph = read_graph_expecting_no_error(
        &[
            build_kernel(u64::MAX, &[1 << 60], &[]),
            build_kernel(1 << 60, &[], &[]),
        ],
        EnforcedDependencyKinds::Auto,
    );
    assert_eq!(list_edges_by_id(&graph), [(1 << 60, u64::MAX)]);
}

#[test]
fn a_peer_that_is_no_rank_costs_no_memory_for_those_below() {
    use chakram_base::ids::Rank;
    use chakram_base::units::Time;
    use chakram_trace::workload::{MissingRankPolicy, WorkloadBuilder, WorkloadError};
    for absent in [MissingRankPolicy::Mirror, MissingRankPolicy::Refuse] {
        let nodes = [Node {
            r#type: 5,
            attr: vec![
                build_attribute("comm_dst", Value::Uint32Val(u32::MAX)),
                build_attribute("comm_size", Value::Int64Val(8)),
            ],
            ..build_kernel(1, &[], &[])
        }];
        let (graph, binding) = read_graph_of_nodes(&nodes, EnforcedDependencyKinds::Auto).unwrap();
        let mut builder = WorkloadBuilder::default();
        let graph = builder.add_or_reuse_equal_graph(graph);
        builder
            .add_rank(Rank(0), graph, binding, Time::ZERO)
            .unwrap();
        let error = builder.finish_workload(None, absent).unwrap_err();
        assert_eq!(error, WorkloadError::TooMany(Rank(u32::MAX - 1)));
        assert!(
            error.to_string().contains("at most 4194304 ranks"),
            "{error}"
        );
    }
}

/// The profiler's cost must be subtracted first from a node's delay, and then from its duration. The cost never exceeds
/// the sum of delay and duration. Adding the cost back restores the recorded graph.
#[test]
fn profiler_cost_is_subtracted_and_restored() {
    let node = |id, delay, profiler| {
        let number = |name, value| build_attribute(name, Value::Uint64Val(value));
        let mut node = build_kernel(id, &[], &[]);
        node.attr.push(number("delay_ns", delay));
        node.attr.push(number("profiler_ns", profiler));
        node
    };
    // The costs of the four nodes are: 300 ns of a 500 ns delay; a 500 ns delay and 200 ns of a 1,000 ns duration;
    // 2,000 ns, limited to a 500 ns delay and a 1,000 ns duration; and nothing.
    let nodes = [
        node(1, 500, 300),
        node(2, 500, 700),
        node(3, 500, 2000),
        build_kernel(4, &[], &[]),
    ];
    let read = |policy| {
        let read = Graph::read_with_or_without_profiler_cost(
            &build_file_from_nodes(&nodes),
            0,
            EnforcedDependencyKinds::default(),
            policy,
        );
        read.expect("nothing is wrong with it").0
    };
    let (kept, left_out) = (
        read(ProfilerOverheadRemovalPolicy::Keep),
        read(ProfilerOverheadRemovalPolicy::Remove),
    );
    let times = |graph: &Graph| {
        let of = |node| {
            [
                graph.launch_delay_after_dependencies(node),
                graph.recorded_duration(node),
            ]
            .map(|span| span.0 / 1000)
        };
        graph.nodes().map(of).collect::<Vec<_>>()
    };
    assert_eq!(
        times(&kept),
        [[500, 1000], [500, 1000], [500, 1000], [0, 1000]]
    );
    assert_eq!(times(&left_out), [[200, 1000], [0, 800], [0, 0], [0, 1000]]);
    assert_eq!(kept.with_profiler_toggled(), left_out);
    assert_eq!(left_out.with_profiler_toggled(), kept);
    // If the only delay is removed, the graph has no column of delays.
    let only = build_file_from_nodes(&[node(1, 500, 500)]);
    let policy = EnforcedDependencyKinds::default();
    let (only, _) = Graph::read_with_or_without_profiler_cost(
        &only,
        0,
        policy,
        ProfilerOverheadRemovalPolicy::Remove,
    )
    .unwrap();
    assert!(!only.has_delays() && only.facts_about_profiler().removed);
}
