//! Tests the nodes and dependencies of slices on small handwritten graphs.

use super::*;
use chakram_trace::format::proto::attribute_proto::Value;
use chakram_trace::format::proto::{AttributeProto, GlobalMetadata, Node};
use prost::Message;

fn build_uint_attribute(name: &str, value: u64) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        value: Some(Value::Uint64Val(value)),
        ..AttributeProto::default()
    }
}

/// Builds a kernel of `us` microseconds, with dependencies on `data` and `control`.
fn build_kernel_node(id: u64, us: u64, data: &[u64], control: &[u64]) -> Node {
    Node {
        id,
        name: format!("n{id}"),
        r#type: 4,
        data_deps: data.to_vec(),
        ctrl_deps: control.to_vec(),
        duration_micros: us,
        ..Node::default()
    }
}

fn set_node_attributes(mut node: Node, attributes: &[(&str, u64)]) -> Node {
    node.attr = attributes
        .iter()
        .map(|&(n, v)| build_uint_attribute(n, v))
        .collect();
    node
}

fn encode_trace(nodes: &[Node]) -> Vec<u8> {
    let metadata = GlobalMetadata {
        attr: vec![build_uint_attribute("captured_ns", 1)],
        ..GlobalMetadata::default()
    };
    let mut file = metadata.encode_length_delimited_to_vec();
    for node in nodes {
        file.extend(node.encode_length_delimited_to_vec());
    }
    file
}

fn decode_trace(mut bytes: &[u8]) -> (u64, Vec<Node>) {
    let metadata = GlobalMetadata::decode_length_delimited(&mut bytes).unwrap();
    let mut nodes = Vec::new();
    while !bytes.is_empty() {
        nodes.push(Node::decode_length_delimited(&mut bytes).unwrap());
    }
    let captured = match metadata.attr[0].value {
        Some(Value::Uint64Val(ns)) => ns,
        ref other => panic!("{other:?}"),
    };
    (captured, nodes)
}

fn slice_nodes(
    nodes: &[Node],
    cut: &AnnotationStepOrIdSelector,
) -> (u64, Vec<Node>, RankSliceSummary) {
    let before = encode_trace(nodes);
    let mut matches = JobCommunication::default();
    let part = KeptNodesOfRank::select_nodes_and_collect_communication(
        &before,
        0,
        cut,
        &DeclaredGroups::new(),
        &mut matches,
    )
    .unwrap();
    let (after, sliced) = part
        .encode_slice_of_trace(&before, part.earliest_start())
        .unwrap();
    let (captured, nodes) = decode_trace(&after);
    (captured, nodes, sliced)
}

fn list_node_ids(nodes: &[Node]) -> Vec<u64> {
    nodes.iter().map(|node| node.id).collect()
}

fn read_delay_ns(node: &Node) -> u64 {
    let found = node.attr.iter().find(|a| a.name == "delay_ns");
    match found.and_then(|a| a.value.clone()) {
        None => 0,
        Some(Value::Uint64Val(ns)) => ns,
        other => panic!("{other:?}"),
    }
}

#[test]
fn dependencies_lead_on_through_what_is_cut() {
    // The graph is 10 → 20 → (30 and 40, both cut) → 50. In addition, 40 has a control dependency on 10, and 50 depends
    // on 20 directly.
    let nodes = [
        build_kernel_node(10, 5, &[], &[]),
        build_kernel_node(20, 7, &[10], &[]),
        build_kernel_node(1030, 11, &[20], &[]),
        build_kernel_node(1040, 13, &[1030], &[10]),
        build_kernel_node(50, 1, &[1040], &[20]),
        build_kernel_node(60, 1, &[], &[1040]),
    ];
    let (captured, after, sliced) = slice_nodes(&nodes, &AnnotationStepOrIdSelector::Ids(0..=100));
    assert_eq!(list_node_ids(&after), [10, 20, 50, 60]);
    // A control dependency on a cut node becomes control dependencies on its replacements.
    assert_eq!(
        (&*after[3].data_deps, &*after[3].ctrl_deps),
        (&[][..], &[10, 20][..])
    );
    // Node 40 has a data dependency on 20 and a control dependency on 10. Node 50 depends on node 20 in both ways, and
    // the data dependency replaces the control dependency.
    assert_eq!(
        (&*after[2].data_deps, &*after[2].ctrl_deps),
        (&[20][..], &[10][..])
    );
    // Node 50 started at 5 + 7 + 11 + 13 = 36 µs, and node 20 ends at 12 µs, so the delay is 24 µs.
    assert_eq!(read_delay_ns(&after[2]), 24_000);
    assert_eq!((captured, sliced.ends), (37_000, Span::from_us(37)));
    assert_eq!((sliced.kept, sliced.mended, sliced.joints), (4, 2, 0));
    // All records except the changed one are identical.
    assert_eq!(after[..2], nodes[..2]);
}

#[test]
fn a_slice_starts_where_its_first_node_did() {
    let nodes = [
        build_kernel_node(1, 5, &[], &[]),
        set_node_attributes(build_kernel_node(2, 7, &[1], &[]), &[("delay_ns", 300)]),
        build_kernel_node(3, 2, &[2], &[]),
        build_kernel_node(4, 2, &[1], &[]),
    ];
    // Node 4 starts at 5 µs, node 2 at 5.3 µs and node 3 at 12.3 µs. A slice of nodes 2 to 4 therefore starts at 5 µs.
    let (captured, after, sliced) = slice_nodes(&nodes, &AnnotationStepOrIdSelector::Ids(2..=4));
    assert_eq!(
        after.iter().map(read_delay_ns).collect::<Vec<_>>(),
        [300, 0, 0]
    );
    assert_eq!((captured, sliced.starts), (9300, Span::ZERO));
    // In a slice of node 3 alone, node 3 starts immediately.
    let (captured, after, _) = slice_nodes(&nodes, &AnnotationStepOrIdSelector::Ids(3..=3));
    assert_eq!(
        (captured, read_delay_ns(&after[0]), &*after[0].data_deps),
        (2000, 0, &[][..])
    );
}

#[test]
fn wide_fans_become_joints() {
    // The graph has 20 sources, a hub that is cut, and 30 nodes that depend on it. With a joint, it needs 20 + 30
    // dependencies instead of 600.
    let mut nodes: Vec<Node> = (1..=20)
        .map(|id| build_kernel_node(id, id, &[], &[]))
        .collect();
    let sources: Vec<u64> = (1..=20).collect();
    nodes.push(build_kernel_node(1000, 4, &sources, &[]));
    nodes.extend((21..=50).map(|id| build_kernel_node(id, 1, &[1000], &[])));
    let (captured, after, sliced) = slice_nodes(&nodes, &AnnotationStepOrIdSelector::Ids(1..=50));
    assert_eq!((sliced.kept, sliced.joints), (50, 1));
    let hub = after.iter().find(|node| node.id == 1000).unwrap();
    assert_eq!(
        (&*hub.name, hub.r#type, &*hub.data_deps),
        ("joint", 0, &sources[..])
    );
    let edges: usize = after.iter().map(|node| node.data_deps.len()).sum();
    assert_eq!(edges, 50);
    // The longest source took 20 µs, then the hub took 4 µs, and the last node took 1 µs.
    assert!(
        after
            .iter()
            .filter(|n| n.id > 20 && n.id < 1000)
            .all(|n| read_delay_ns(n) == 4000)
    );
    assert_eq!(captured, 25_000);
}

#[test]
fn annotations_cover_what_belongs_to_them_and_other_threads_meanwhile() {
    let on = |lane: u64, attributes: &[(&'static str, u64)]| {
        let mut list = vec![("is_cpu_op", 1), ("tid", lane)];
        list.extend_from_slice(attributes);
        list
    };
    let mut step = set_node_attributes(build_kernel_node(2, 1, &[1], &[]), &on(1, &[]));
    step.name = "ProfilerStep#3".to_owned();
    let nodes = [
        // Node 1 runs from 0 to 10 µs, before the step. The step lasts from 10 to 16 µs and contains nodes 3 and 4.
        // Node 4 launches node 5 on a stream.
        set_node_attributes(build_kernel_node(1, 10, &[], &[]), &on(1, &[])),
        step,
        set_node_attributes(build_kernel_node(3, 2, &[2], &[]), &on(1, &[("parent", 2)])),
        set_node_attributes(build_kernel_node(4, 3, &[3], &[]), &on(1, &[("parent", 3)])),
        set_node_attributes(
            build_kernel_node(5, 9, &[4], &[]),
            &[("stream", 7), ("launch", 4)],
        ),
        // The remaining nodes are on another thread. Node 6 starts at 13 µs, within the step, and node 8 belongs to
        // node 6. Node 10 starts at 16 µs, which is after the step but before its thread starts its next node. Node 7
        // starts at 18 µs, when the thread has already started that node.
        set_node_attributes(build_kernel_node(6, 1, &[3], &[]), &on(2, &[])),
        set_node_attributes(build_kernel_node(8, 1, &[6], &[]), &on(2, &[("parent", 6)])),
        set_node_attributes(build_kernel_node(10, 1, &[4], &[]), &on(2, &[])),
        set_node_attributes(
            build_kernel_node(7, 1, &[4], &[]),
            &on(2, &[("delay_ns", 2000)]),
        ),
        // Node 9 is on the step's thread and starts at 17 µs, so it is not part of the step.
        set_node_attributes(
            build_kernel_node(9, 1, &[4], &[]),
            &on(1, &[("delay_ns", 1000)]),
        ),
        set_node_attributes(build_kernel_node(11, 1, &[3], &[]), &on(1, &[])),
    ];
    let cut = AnnotationStepOrIdSelector::Annotation("ProfilerStep#3".to_owned());
    let (_, after, _) = slice_nodes(&nodes, &cut);
    assert_eq!(list_node_ids(&after), [2, 3, 4, 5, 6, 8, 10]);
    let error = KeptNodesOfRank::select_nodes_and_collect_communication(
        &encode_trace(&nodes),
        0,
        &AnnotationStepOrIdSelector::Annotation("ProfilerStep#9".to_owned()),
        &DeclaredGroups::new(),
        &mut JobCommunication::default(),
    );
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("`ProfilerStep#9`") && error.contains("ProfilerStep#3"),
        "{error}"
    );
}

#[test]
fn without_attributes_control_dependencies_say_who_called() {
    let mut step = set_node_attributes(build_kernel_node(2, 1, &[], &[]), &[("is_cpu_op", 1)]);
    step.name = "ProfilerStep#3".to_owned();
    let nodes = [
        step,
        set_node_attributes(build_kernel_node(3, 2, &[2], &[2]), &[("is_cpu_op", 1)]),
        set_node_attributes(build_kernel_node(4, 3, &[3], &[3]), &[("is_cpu_op", 1)]),
        build_kernel_node(5, 9, &[4], &[]),
        set_node_attributes(build_kernel_node(6, 1, &[4], &[]), &[("is_cpu_op", 1)]),
    ];
    let (_, after, _) = slice_nodes(
        &nodes,
        &AnnotationStepOrIdSelector::Annotation("ProfilerStep#*".to_owned()),
    );
    assert_eq!(list_node_ids(&after), [2, 3, 4, 5]);
}

#[test]
fn communication_with_cut_partners_is_reported_and_cut_on_demand() {
    let collective = |id, deps: &[u64]| Node {
        r#type: 7,
        attr: vec![
            build_uint_attribute("comm_type", 0),
            build_uint_attribute("comm_size", 8),
        ],
        ..build_kernel_node(id, 0, deps, &[])
    };
    let ranks = [
        encode_trace(&[
            collective(1, &[]),
            collective(2, &[1]),
            build_kernel_node(3, 1, &[2], &[]),
        ]),
        // On the second rank, all ids are larger by one.
        encode_trace(&[collective(2, &[]), collective(3, &[2])]),
    ];
    let mut matches = JobCommunication::default();
    let cut = AnnotationStepOrIdSelector::Ids(2..=3);
    let parts: Vec<KeptNodesOfRank> = (0..2)
        .map(|rank| {
            let groups = DeclaredGroups::new();
            KeptNodesOfRank::select_nodes_and_collect_communication(
                &ranks[rank as usize],
                rank,
                &cut,
                &groups,
                &mut matches,
            )
            .unwrap()
        })
        .collect();
    let unmatched = matches.find_kept_with_cut_partners();
    assert_eq!(unmatched.count, 1);
    let text = unmatched.to_string();
    let expected =
        "collective 0 of all ranks is kept on rank 1 (node 2) and removed on rank 0 (node 1)";
    assert!(text.contains(expected), "{text}");
    let mut left = Vec::new();
    for (rank, mut part) in parts.into_iter().enumerate() {
        part.cut_unmatched_communication(&unmatched);
        let (after, _) = part
            .encode_slice_of_trace(&ranks[rank], Span::ZERO)
            .unwrap();
        left.push(list_node_ids(&decode_trace(&after).1));
    }
    assert_eq!(left, [vec![2, 3], vec![3]]);
}

/// Builds a chain of kernels that take 1 µs each. The first and the last kernel have their own names.
fn build_kernel_chain(count: u64, attr: &[AttributeProto]) -> Vec<Node> {
    let name = |id| if id == 1 || id == count { "end" } else { "" };
    let link = |id| Node {
        id,
        name: name(id).to_owned(),
        r#type: 4,
        duration_micros: 1,
        data_deps: if id > 1 { vec![id - 1] } else { vec![] },
        attr: attr.to_vec(),
        ..Node::default()
    };
    (1..=count).map(link).collect()
}

#[test]
fn long_chains_take_no_stack_and_linear_time() {
    let ends = AnnotationStepOrIdSelector::Annotation("end".to_owned());
    // Without attributes, each kernel belongs to the kernel on which it depends, so the annotation covers all kernels.
    let (captured, after, _) = slice_nodes(&build_kernel_chain(1000, &[]), &ends);
    assert_eq!((after.len(), captured), (1000, 1_000_000));
    // With attributes, these kernels belong to no other node, so the middle of the chain is cut.
    let count = 100_000;
    let (captured, after, _) = slice_nodes(
        &build_kernel_chain(count, &[build_uint_attribute("parent", 0)]),
        &ends,
    );
    assert_eq!(
        (list_node_ids(&after), captured),
        (vec![1, count], count * 1000)
    );
    assert_eq!(
        (&*after[1].data_deps, read_delay_ns(&after[1])),
        (&[1][..], (count - 2) * 1000)
    );
}

#[test]
fn what_cannot_be_replayed_is_refused() {
    let refuse = |nodes: &[Node]| {
        let groups = DeclaredGroups::new();
        let cut = AnnotationStepOrIdSelector::Ids(0..=9);
        let part = KeptNodesOfRank::select_nodes_and_collect_communication(
            &encode_trace(nodes),
            0,
            &cut,
            &groups,
            &mut JobCommunication::default(),
        );
        part.unwrap_err().to_string()
    };
    assert!(refuse(&[build_kernel_node(1, 0, &[7], &[])]).contains("node 7, which does not exist"));
    assert!(
        refuse(&[
            build_kernel_node(1, 0, &[], &[]),
            build_kernel_node(1, 0, &[], &[])
        ])
        .contains("second node")
    );
    let cycle = refuse(&[
        build_kernel_node(1, 0, &[2], &[]),
        build_kernel_node(2, 0, &[1], &[]),
    ]);
    assert!(cycle.contains("cycle of 2 nodes: 1, 2"), "{cycle}");
    assert!(refuse(&[]).contains("no nodes"));
    assert!(refuse(&[build_kernel_node(20, 0, &[], &[])]).contains("20 to 20"));
    // As in a replay, control dependencies on missing nodes or on a cycle are ignored.
    let (_, after, sliced) = slice_nodes(
        &[
            build_kernel_node(1, 1, &[], &[2, 77]),
            build_kernel_node(2, 1, &[1], &[]),
        ],
        &AnnotationStepOrIdSelector::Ids(1..=2),
    );
    assert!(sliced.cyclic && after.iter().all(|node| node.ctrl_deps.is_empty()));
}
