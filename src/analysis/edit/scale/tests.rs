//! Tests grids, copies, groups and peers in small handwritten jobs.

use super::*;
use chakram_trace::format::CollectiveKind;
use chakram_trace::format::proto::attribute_proto::Value;
use chakram_trace::format::proto::{AttributeProto, GlobalMetadata, IoInfo, Node};
use prost::Message;

fn build_int_attribute(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        value: Some(Value::Int64Val(value)),
        ..AttributeProto::default()
    }
}

fn build_group_attribute(name: &str) -> AttributeProto {
    AttributeProto {
        name: "pg_name".to_owned(),
        value: Some(Value::StringVal(name.to_owned())),
        ..AttributeProto::default()
    }
}

fn build_node(id: u64, kind: i32, attr: Vec<AttributeProto>) -> Node {
    Node {
        id,
        r#type: kind,
        attr,
        ..Node::default()
    }
}

fn build_collective_node(id: u64, kind: CollectiveKind, bytes: i64, name: &str) -> Node {
    let kind = build_int_attribute("comm_type", kind.comm_type() as i64);
    build_node(
        id,
        7,
        vec![
            kind,
            build_int_attribute("comm_size", bytes),
            build_group_attribute(name),
        ],
    )
}

fn encode_trace(nodes: &[Node]) -> Vec<u8> {
    let mut file = GlobalMetadata::default().encode_length_delimited_to_vec();
    for node in nodes {
        file.extend(node.encode_length_delimited_to_vec());
    }
    file
}

fn decode_nodes(mut bytes: &[u8]) -> Vec<Node> {
    GlobalMetadata::decode_length_delimited(&mut bytes).unwrap();
    let mut nodes = Vec::new();
    while !bytes.is_empty() {
        nodes.push(Node::decode_length_delimited(&mut bytes).unwrap());
    }
    nodes
}

fn build_job_scaler(
    grid: &str,
    to: (&str, u32),
    sharded: ShardedBufferKeptSize,
    groups: &[(&str, &[u32])],
) -> JobScaler {
    let along = ScaledDimension::new(RankGridDimensions::parse(grid).unwrap(), to.0, to.1).unwrap();
    let groups = groups.iter().map(|(n, r)| ((*n).to_owned(), r.to_vec()));
    JobScaler::new(along, sharded, groups.collect()).unwrap()
}

fn read_comm_size(node: &Node) -> i64 {
    let found = node.attr.iter().find(|a| a.name == "comm_size").unwrap();
    match found.value {
        Some(Value::Int64Val(bytes)) => bytes,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn scaling_keeps_the_total_or_the_shard_size_of_collectives() {
    use CollectiveKind as K;
    // A group of 2 members becomes a group of 6. If the total size is kept, a shard of 300 bytes shrinks to 100 bytes,
    // and a shard of 100 bytes to 33⅓ bytes, rounded up. If the size of shards is kept, a whole buffer of 600 bytes
    // becomes 1800 bytes.
    let kinds = [
        (K::AllReduce, 600, 600, 600),
        (K::AllGather, 300, 100, 300),
        (K::AllGather, 100, 34, 100),
        (K::Gather, 300, 100, 300),
        (K::ReduceScatter, 600, 600, 1800),
        (K::Scatter, 600, 600, 1800),
        (K::AllToAll, 600, 600, 1800),
        (K::Broadcast, 600, 600, 600),
        (K::Reduce, 600, 600, 600),
    ];
    let nodes: Vec<Node> = (1..)
        .zip(kinds)
        .map(|(id, (kind, bytes, ..))| build_collective_node(id, kind, bytes, "d"))
        .collect();
    let before = encode_trace(&nodes);
    for (sharded, total) in [
        (ShardedBufferKeptSize::KeepTotal, true),
        (ShardedBufferKeptSize::KeepShard, false),
    ] {
        let mut scaling = build_job_scaler("dp=2", ("dp", 6), sharded, &[("d", &[0, 1])]);
        for rank in 0..2 {
            scaling.scan_rank(rank, &before).unwrap();
        }
        scaling.check_ranks_send_equal_messages().unwrap();
        assert!(scaling.has_copies_with_equal_traces(0));
        let after = decode_nodes(&scaling.build_trace_of_new_rank(5, &before).unwrap());
        for (node, (kind, _, keep_total, keep_shard)) in after.iter().zip(kinds) {
            let expected = if total { keep_total } else { keep_shard };
            assert_eq!(read_comm_size(node), expected, "{kind}");
        }
        assert_eq!(scaling.scale_declared_groups()["d"], [0, 1, 2, 3, 4, 5]);
    }
}

#[test]
fn groups_across_the_dimension_are_copied_with_names_and_roots() {
    let mut broadcast = build_collective_node(2, CollectiveKind::Broadcast, 8, "tp");
    broadcast.attr.push(build_int_attribute("comm_root", 3));
    let declares = |name: &str, ranks: &str| Node {
        name: "## process_group:init ##".to_owned(),
        inputs: Some(IoInfo {
            values: format!(r#"[{{"pg_name": "{name}", "pg_desc": "x", "ranks": {ranks}}}]"#),
            ..IoInfo::default()
        }),
        ..build_node(1, 1, vec![])
    };
    let first = encode_trace(&[declares("tp", "[0, 1]")]);
    let second = encode_trace(&[declares("tp", "[2, 3]"), broadcast]);
    let mut scaling = build_job_scaler(
        "dp=2,tp=2",
        ("dp", 5),
        ShardedBufferKeptSize::KeepTotal,
        &[],
    );
    for rank in 0..4 {
        let file = if rank < 2 { &first } else { &second };
        scaling.scan_rank(rank, file).unwrap();
    }
    scaling.check_ranks_send_equal_messages().unwrap();
    assert!(!scaling.has_copies_with_equal_traces(3));
    // New rank 7 = (3, 1) copies rank 3 = (1, 1), and is in block 1. The group of rank 7 consists of ranks 6 and 7,
    // with root 7.
    assert_eq!(scaling.scaled_dimension().source_rank_and_block(7), (3, 1));
    let after = decode_nodes(&scaling.build_trace_of_new_rank(7, &second).unwrap());
    let values = &after[0].inputs.as_ref().unwrap().values;
    assert_eq!(
        values,
        r#"[{"pg_name":"tp.1","pg_desc":"x","ranks":[6,7]}]"#
    );
    assert_eq!(after[1].attr[2], build_group_attribute("tp.1"));
    assert_eq!(after[1].attr[3], build_int_attribute("comm_root", 7));
    // In the first block, scaling could change only rank numbers, and it changes none in this job, so the trace stays
    // the same.
    assert_eq!(
        decode_nodes(&scaling.build_trace_of_new_rank(3, &second).unwrap())[1],
        decode_nodes(&second)[1]
    );
}

fn build_message_node(id: u64, receive: bool, peer: i64) -> Node {
    let far = if receive { "comm_src" } else { "comm_dst" };
    let kind = if receive { 6 } else { 5 };
    build_node(
        id,
        kind,
        vec![
            build_int_attribute(far, peer),
            build_int_attribute("comm_size", 8),
        ],
    )
}

fn read_message_peer(node: &Node) -> i64 {
    match node.attr[0].value {
        Some(Value::Int64Val(peer)) => peer,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn messages_follow_their_ranks() {
    // The grid is pp=2, dp=3, so rank = 3 pp + dp. Along pp, each rank sends to the other stage; along dp, each
    // rank sends in a ring.
    let trace = |rank: i64| {
        let (pp, dp) = (rank / 3, rank % 3);
        let other = (1 - pp) * 3 + dp;
        encode_trace(&[
            build_message_node(1, false, other),
            build_message_node(2, true, other),
            build_message_node(3, false, pp * 3 + (dp + 1) % 3),
            build_message_node(4, true, pp * 3 + (dp + 2) % 3),
        ])
    };
    let mut scaling = build_job_scaler(
        "pp=2,dp=3",
        ("dp", 5),
        ShardedBufferKeptSize::KeepTotal,
        &[],
    );
    for rank in 0..6 {
        scaling.scan_rank(rank, &trace(rank.into())).unwrap();
    }
    scaling.check_ranks_send_equal_messages().unwrap();
    // New rank 9 = (1, 4) copies rank (1, 1). Rank 9 sends to (0, 4); in the ring of five ranks, it sends to (1, 0) and
    // receives from (1, 3).
    let (old, block) = scaling.scaled_dimension().source_rank_and_block(9);
    assert_eq!((old, block), (4, 1));
    let after = decode_nodes(&scaling.build_trace_of_new_rank(9, &trace(4)).unwrap());
    assert_eq!(
        after.iter().map(read_message_peer).collect::<Vec<_>>(),
        [4, 4, 5, 8]
    );
}

#[test]
fn messages_along_the_dimension_that_differ_are_refused() {
    let mut open = build_job_scaler("dp=2", ("dp", 4), ShardedBufferKeptSize::KeepTotal, &[]);
    open.scan_rank(0, &encode_trace(&[build_message_node(1, false, 1)]))
        .unwrap();
    open.scan_rank(1, &encode_trace(&[build_message_node(1, true, 0)]))
        .unwrap();
    let error = open
        .check_ranks_send_equal_messages()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("ranks 0 and 1 send different messages along `dp`"),
        "{error}"
    );
    // In a ring of one rank, a rank would send a message to itself, so the scaling fails.
    let ring = |peer| {
        encode_trace(&[
            build_message_node(1, false, peer),
            build_message_node(2, true, peer),
        ])
    };
    let mut one = build_job_scaler("dp=2", ("dp", 1), ShardedBufferKeptSize::KeepTotal, &[]);
    one.scan_rank(0, &ring(1)).unwrap();
    one.scan_rank(1, &ring(0)).unwrap();
    one.check_ranks_send_equal_messages().unwrap();
    let error = one
        .build_trace_of_new_rank(0, &ring(1))
        .unwrap_err()
        .to_string();
    assert!(error.contains("a message to itself along `dp`"), "{error}");
}

#[test]
fn groups_that_do_not_fit_are_named() {
    let along = ScaledDimension::new(RankGridDimensions::parse("dp=4").unwrap(), "dp", 8).unwrap();
    let half = DeclaredGroups::from([("half".to_owned(), vec![0, 1])]);
    let error = JobScaler::new(along, ShardedBufferKeptSize::KeepTotal, half).unwrap_err();
    assert!(
        error.to_string().contains("group `half`, ranks 0, 1"),
        "{error}"
    );
    let mut none = build_job_scaler("dp=4", ("dp", 8), ShardedBufferKeptSize::KeepTotal, &[]);
    let lost = encode_trace(&[build_collective_node(
        5,
        CollectiveKind::AllReduce,
        8,
        "lost",
    )]);
    let error = none.scan_rank(0, &lost).unwrap_err().to_string();
    assert!(
        error.contains("node 5") && error.contains("`lost`"),
        "{error}"
    );
}
