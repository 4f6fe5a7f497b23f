//! Compares filters with a test of every node in the types generated from the schema.

use super::{
    attribute_value, find_only_row, inspect_json, integer_attribute, integer_field,
    read_trace_records, rows_of_json_list, run_inspect_ok,
};
use chakram::internals::proto::Node;
use chakram::internals::proto::attribute_proto::Value as Attribute;
use serde_json::Value;
use std::collections::BTreeMap;

/// A node's facts, found without the filters: its record, its start and its end.
struct UnfilteredNodeRecordAndTimes {
    rank: u64,
    node: Node,
    times: (u64, u64),
}

fn list_nodes_with_times() -> Vec<UnfilteredNodeRecordAndTimes> {
    let list = inspect_json(&["traces/ddp-resnet18", "--list"]);
    let times: BTreeMap<(u64, u64), (u64, u64)> = rows_of_json_list(&list, "nodes")
        .iter()
        .map(|row| {
            let key = (integer_field(row, "rank"), integer_field(row, "id"));
            (
                key,
                (integer_field(row, "start_ps"), integer_field(row, "end_ps")),
            )
        })
        .collect();
    let ranks = (0..2).map(|rank| {
        (
            rank,
            read_trace_records(&format!("ddp-resnet18/job.{rank}.et.zst")).1,
        )
    });
    let known = ranks.flat_map(|(rank, nodes)| {
        let times = &times;
        nodes
            .into_iter()
            .map(move |node| UnfilteredNodeRecordAndTimes {
                rank,
                times: times[&(rank, node.id)],
                node,
            })
    });
    let known: Vec<UnfilteredNodeRecordAndTimes> = known.collect();
    assert_eq!(known.len(), times.len());
    known
}

fn is_host_node(node: &Node) -> bool {
    node.r#type == 4 && integer_attribute(node, "is_cpu_op") == Some(1)
}

#[test]
fn filters_find_what_a_look_at_every_node_finds() {
    let known = list_nodes_with_times();
    let ps = |ms: u64| ms * 1_000_000_000;
    let named = |node: &Node, lane: &str| {
        attribute_value(node, "stream")
            .or(attribute_value(node, "tid"))
            .is_some_and(|value| matches!(value, Attribute::Int64Val(v) if lane == v.to_string()))
    };
    type Test<'t> = Box<dyn Fn(&UnfilteredNodeRecordAndTimes) -> bool + 't>;
    let tests: Vec<(Vec<&str>, Test<'_>)> = vec![
        (
            vec!["--name", "conv"],
            Box::new(|k| k.node.name.contains("conv")),
        ),
        (
            vec!["--name", "aten::*_"],
            Box::new(|k| k.node.name.starts_with("aten::") && k.node.name.ends_with('_')),
        ),
        (
            vec!["--name", "gloo", "--name", "aten::mm"],
            Box::new(|k| k.node.name.contains("gloo") || k.node.name.contains("aten::mm")),
        ),
        (vec!["--type", "host"], Box::new(|k| is_host_node(&k.node))),
        (
            vec!["--type", "compute", "--rank", "1"],
            Box::new(|k| k.rank == 1 && k.node.r#type == 4 && !is_host_node(&k.node)),
        ),
        (
            vec!["--type", "collective"],
            Box::new(|k| k.node.r#type == 7),
        ),
        (
            vec!["--type", "broadcast,metadata"],
            Box::new(|k| k.node.r#type == 1 || integer_attribute(&k.node, "comm_type") == Some(5)),
        ),
        (vec!["--group", "all"], Box::new(|k| k.node.r#type == 7)),
        (vec!["--group", "tp"], Box::new(|_| false)),
        (
            vec!["--lane", "stream 1000"],
            Box::new(|k| named(&k.node, "1000")),
        ),
        (
            vec!["--lane", "*overhead"],
            Box::new(|k| is_host_node(&k.node)),
        ),
        (
            vec!["--from", "100ms", "--to", "150ms"],
            Box::new(|k| {
                let (start, end) = k.times;
                start < ps(150) && (end > ps(100) || (start == end && start >= ps(100)))
            }),
        ),
        (
            vec![
                "--from", "600ms", "--name", "mul", "--type", "compute", "--rank", "0",
            ],
            Box::new(|k| {
                k.rank == 0
                    && k.times.1 > ps(600)
                    && k.node.name.contains("mul")
                    && k.node.r#type == 4
                    && !is_host_node(&k.node)
            }),
        ),
    ];
    for (args, test) in tests {
        let args: Vec<&str> = ["traces/ddp-resnet18"].into_iter().chain(args).collect();
        let mut expected: Vec<_> = known
            .iter()
            .filter(|k| test(k))
            .map(|k| (k.rank, k.times.0, k.node.id))
            .collect();
        expected.sort_unstable();
        let list = inspect_json(&[&args[..], &["--list"]].concat());
        let found: Vec<_> = rows_of_json_list(&list, "nodes")
            .iter()
            .map(|row| {
                (
                    integer_field(row, "rank"),
                    integer_field(row, "start_ps"),
                    integer_field(row, "id"),
                )
            })
            .collect();
        assert_eq!(found, expected, "{args:?}");
        // The summary counts the same nodes.
        let summary = inspect_json(&args);
        let selected: u64 = rows_of_json_list(&summary, "ranks")
            .iter()
            .map(|rank| integer_field(rank, "selected"))
            .sum();
        assert_eq!(
            (selected, integer_field(&list, "selected")),
            (expected.len() as u64, selected)
        );
        let typed: u64 = rows_of_json_list(&summary, "types")
            .iter()
            .map(|row| integer_field(row, "nodes"))
            .sum();
        assert_eq!(typed, selected, "{args:?}");
        let csv = run_inspect_ok(&[&args[..], &["--list", "--format", "csv"]].concat());
        assert_eq!(csv.lines().count(), expected.len() + 1);
    }
}

#[test]
fn lists_end_at_their_limit() {
    let base = ["traces/ddp-resnet18", "--list", "--limit"];
    let first = |n: &str| -> Vec<Value> {
        let list = inspect_json(&[&base[..], &[n]].concat());
        assert_eq!(integer_field(&list, "selected"), 5316);
        rows_of_json_list(&list, "nodes").clone()
    };
    let (some, more) = (first("3"), first("3000"));
    assert_eq!((some.len(), more.len()), (3, 3000));
    assert_eq!(some, more[..3]);
    // The first rank has 2,658 such nodes.
    assert_eq!(
        (
            integer_field(&more[2657], "rank"),
            integer_field(&more[2658], "rank")
        ),
        (0, 1)
    );
    assert!(first("0").is_empty());
    let text = run_inspect_ok(&[&base[..], &["2"]].concat());
    assert_eq!(text.lines().last(), Some("… 5314 more: --limit 5316"));
    assert_eq!(run_inspect_ok(&base[..2]).lines().count(), 1 + 100 + 1);
}

#[test]
fn the_output_states_the_filter_used() {
    let args = [
        "traces/ddp-resnet18",
        "--type",
        "all-reduce",
        "--rank",
        "0-1",
        "--from",
        "1us",
    ];
    let document = inspect_json(&args);
    let filter = serde_json::json!({"rank": ["0-1"], "type": ["all-reduce"], "from": ["1.000 us"]});
    assert_eq!(document["filter"], filter);
    assert_eq!(
        integer_field(
            find_only_row(&document, "types", "type", "all-reduce"),
            "nodes"
        ),
        6
    );
    let text = run_inspect_ok(&args);
    assert!(
        text.contains("  filter        type all-reduce, from 1.000 us: 6 of 5,316 nodes\n"),
        "{text}"
    );
}
