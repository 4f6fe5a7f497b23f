//! Tests that ranks share one graph if their files differ only in peers and groups, which the bindings record.

use super::{build_attribute, build_file_from_nodes, build_kernel};
use chakram_base::ids::Rank;
use chakram_base::units::Time;
use chakram_trace::format::proto::attribute_proto::Value;
use chakram_trace::format::proto::{AttributeProto, Node};
use chakram_trace::graph::EnforcedDependencyKinds;
use chakram_trace::graph::{Graph, RankBindingsOfGraphSlots};
use chakram_trace::workload::{MissingRankPolicy, Workload, WorkloadBuilder, WorkloadError};

/// Contents of a rank's file.
#[derive(Clone)]
struct RankFileContents {
    to: i64,
    from: i64,
    tag: i64,
    bytes: i64,
    /// Group of the rank's second collective; `None` means all ranks.
    group: Option<&'static str>,
    /// The groups that the rank declares.
    declared: &'static str,
}

const BOTH: &str = r#"[{"pg_name": "1", "ranks": [0, 1]}, {"pg_name": "2", "ranks": [2, 3]}]"#;

/// Returns the contents of the file of `rank`, one of four ranks. Each pair of ranks has a group, and each pair sends
/// messages to the next pair.
fn build_rank_file_contents(rank: u32) -> RankFileContents {
    RankFileContents {
        to: (i64::from(rank) + 2) % 4,
        from: (i64::from(rank) + 2) % 4,
        tag: 5,
        bytes: 8,
        group: Some(if rank < 2 { "1" } else { "2" }),
        declared: BOTH,
    }
}

fn build_int_attribute(name: &str, value: i64) -> AttributeProto {
    build_attribute(name, Value::Int64Val(value))
}

fn read_rank_graph(rank: u32, said: &RankFileContents) -> (Graph, RankBindingsOfGraphSlots) {
    let node = |id, r#type, attr| Node {
        r#type,
        attr,
        ..build_kernel(id, &[], &[])
    };
    let declares = Node {
        name: "## process_group:init ##".to_owned(),
        inputs: Some(chakram_trace::format::proto::IoInfo {
            values: said.declared.to_owned(),
            ..Default::default()
        }),
        ..node(1, 1, Vec::new())
    };
    let reduce = |id, group: Option<&str>| {
        let mut attr = vec![
            build_int_attribute("comm_type", 0),
            build_int_attribute("comm_size", said.bytes),
        ];
        let text = |name: &str| build_attribute("pg_name", Value::StringVal(name.to_owned()));
        attr.extend(group.map(text));
        node(id, 7, attr)
    };
    let message = |id, r#type, end, peer| {
        let tag = build_int_attribute("comm_tag", said.tag);
        node(
            id,
            r#type,
            vec![
                build_int_attribute(end, peer),
                build_int_attribute("comm_size", 16),
                tag,
            ],
        )
    };
    let nodes = [
        declares,
        reduce(2, None),
        reduce(3, said.group),
        message(4, 5, "comm_dst", said.to),
        message(5, 6, "comm_src", said.from),
    ];
    Graph::read_graph(
        &build_file_from_nodes(&nodes),
        rank,
        EnforcedDependencyKinds::Both,
    )
    .expect("nothing is wrong with it")
}

fn build_workload(ranks: &[RankFileContents]) -> Result<Workload, WorkloadError> {
    let mut builder = WorkloadBuilder::default();
    for (rank, said) in (0..).zip(ranks) {
        let (graph, binding) = read_rank_graph(rank, said);
        let graph = builder.add_or_reuse_equal_graph(graph);
        builder.add_rank(Rank(rank), graph, binding, Time::ZERO)?;
    }
    builder.finish_workload(Some(4), MissingRankPolicy::Refuse)
}

fn count_workload_graphs(ranks: &[RankFileContents]) -> usize {
    build_workload(ranks).unwrap().distinct_graphs().len()
}

#[test]
fn ranks_that_differ_in_peers_and_groups_share_a_graph_and_keep_both() {
    let ranks = [0, 1, 2, 3].map(build_rank_file_contents);
    let workload = build_workload(&ranks).unwrap();
    assert_eq!(workload.distinct_graphs().len(), 1);
    for (rank, instance) in (0_u32..).zip(workload.instances()) {
        let pair = rank / 2 * 2;
        assert_eq!(instance.peers, [Rank((rank + 2) % 4)]);
        let name = format!("{}", rank / 2 + 1);
        assert_eq!(instance.group_names, [None, Some(name)]);
        let group = &workload.groups()[instance.groups[1].index()];
        assert_eq!(group.members, [Rank(pair), Rank(pair + 1)]);
        assert_eq!(instance.groups[0].0, 0, "all ranks");
    }
}

#[test]
fn groups_that_a_rank_declares_apply_only_to_it() {
    let mut ranks = [0, 1, 2, 3].map(build_rank_file_contents);
    for said in &mut ranks[..2] {
        said.declared = r#"[{"pg_name": "1", "ranks": [0, 1]}]"#;
    }
    for said in &mut ranks[2..] {
        said.group = Some("1");
        said.declared = r#"[{"pg_name": "1", "ranks": [2, 3]}]"#;
    }
    let found = build_workload(&ranks).unwrap();
    assert_eq!(found.distinct_graphs().len(), 1);
    let last = &found.instances()[3];
    let group = &found.groups()[last.groups[1].index()];
    assert_eq!(group.members, [Rank(2), Rank(3)]);
    // On one rank, a slot refers to a named group; on another rank, the same slot refers to all ranks.
    for (rank, said) in ranks.iter_mut().enumerate() {
        said.group = (rank < 2).then_some("1");
    }
    assert_eq!(
        count_workload_graphs(&ranks),
        2,
        "then both of its collectives are one slot"
    );
}

#[test]
fn different_tags_bytes_or_peer_slots_prevent_graph_sharing() {
    let alike = [0, 1, 2, 3].map(build_rank_file_contents);
    let changes: [fn(&mut RankFileContents); 3] = [
        |said| said.tag = 6,
        |said| said.bytes = 9,
        // The rank receives from one peer and sends to another peer, so it has two peer slots where the other ranks
        // have one.
        |said| said.from = 0,
    ];
    for change in changes {
        let mut ranks = alike.clone();
        change(&mut ranks[3]);
        assert_eq!(count_workload_graphs(&ranks), 2);
    }
}

#[test]
fn an_undeclared_group_is_named_by_the_rank_that_uses_it() {
    let mut ranks = [0, 1, 2, 3].map(build_rank_file_contents);
    ranks[3].group = Some("nine");
    let error = build_workload(&ranks).unwrap_err().to_string();
    let expected = "rank 3, node 3: group `nine` is not declared";
    assert!(error.contains(expected), "{error}");
}
