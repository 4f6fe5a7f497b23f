//! Derives every table of two small ranks by hand.

use super::{
    build_attribute, build_kernel_node, find_only_row, inspect_json, integer_field,
    rows_of_json_list, run_inspect_ok, write_rank_trace,
};
use crate::commands::has_line_of_words;
use chakram::internals::proto::attribute_proto::Value as Attribute;
use chakram::internals::proto::{IoInfo, Node};
use serde_json::Value;

/// Rank r has a declaration of groups, and a host node `prepare` of 5 us on thread 1. On stream 7, it has kernels
/// `step0/layer0/mm` and `step0/layer1/mm` of 10 us each (20 us on rank 1), one after the other, with 100 FLOPs and 40
/// bytes each. Then it has an all-reduce of 64 bytes in group `tp` that takes 4 us after 6 us of waiting (none on rank
/// 1). Finally, it sends 16 bytes to the other rank, receives 16 bytes from it (3 us each), and loads 8 bytes, which
/// takes no time.
fn write_two_rank_job(folder: &std::path::Path) -> String {
    for rank in 0..2_u32 {
        let uint = |name: &str, value| build_attribute(name, Attribute::Uint64Val(value));
        let int = |name: &str, value| build_attribute(name, Attribute::Int64Val(value));
        let compute = |id, name: &str, data: &[u64]| Node {
            attr: vec![
                int("stream", 7),
                int("num_ops", 100),
                uint("tensor_size", 40),
            ],
            ..build_kernel_node(id, name, if rank == 0 { 10 } else { 20 }, data)
        };
        let declared = r#"['[{"pg_name": "tp", "ranks": [0, 1]}]']"#;
        let message = |id, kind, far: &str, near: &str| Node {
            r#type: kind,
            attr: vec![
                build_attribute(far, Attribute::Int32Val(1 - rank as i32)),
                build_attribute(near, Attribute::Int32Val(rank as i32)),
                int("comm_size", 16),
            ],
            ..build_kernel_node(id, "p2p", 3, &[5])
        };
        let nodes = [
            Node {
                id: 1,
                name: "## process_group:init ##".to_owned(),
                r#type: 1,
                inputs: Some(IoInfo {
                    values: declared.to_owned(),
                    ..IoInfo::default()
                }),
                ..Node::default()
            },
            Node {
                attr: vec![
                    build_attribute("is_cpu_op", Attribute::BoolVal(true)),
                    int("tid", 1),
                ],
                ..build_kernel_node(2, "prepare", 5, &[])
            },
            compute(3, "step0/layer0/mm", &[2]),
            Node {
                ctrl_deps: vec![2],
                ..compute(4, "step0/layer1/mm", &[3])
            },
            Node {
                r#type: 7,
                attr: vec![
                    int("comm_type", 0),
                    int("comm_size", 64),
                    build_attribute("pg_name", Attribute::StringVal("tp".to_owned())),
                    uint("wait_ns", if rank == 0 { 6000 } else { 0 }),
                ],
                ..build_kernel_node(5, "sum", 4, &[4])
            },
            message(6, 5, "comm_dst", "comm_src"),
            message(7, 6, "comm_src", "comm_dst"),
            Node {
                r#type: 2,
                attr: vec![uint("tensor_size", 8)],
                ..build_kernel_node(8, "fetch", 0, &[])
            },
        ];
        let metadata = vec![
            build_attribute("schema", Attribute::StringVal("by hand".to_owned())),
            build_attribute("lane.7", Attribute::StringVal("the GPU".to_owned())),
            build_attribute("rank", Attribute::Int64Val(i64::from(rank))),
        ];
        write_rank_trace(folder, rank, metadata, &nodes);
    }
    folder.join("job").to_str().unwrap().to_owned()
}

/// Returns the nodes, the time, the waiting, the FLOPs, the bytes, and the nodes without time of a
/// row.
fn read_number_fields_of_row(row: &Value) -> [u64; 6] {
    [
        "nodes",
        "time_ps",
        "wait_ps",
        "flops",
        "bytes",
        "nodes_without_time",
    ]
    .map(|f| integer_field(row, f))
}

const US: u64 = 1_000_000;

#[test]
fn every_table_is_the_sum_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_two_rank_job(folder.path());
    let document = inspect_json(&[&path]);
    // The longest chain has 5 nodes: 2, 3, 4, 5, and then 6 or 7. Nodes 1, 2 and 8 have no
    // dependencies. Nodes 3, 4, 5, 6 and 7 have data dependencies. Rank 0 ends at 5 + 10 + 10 + 6 +
    // 4 + 3 = 38 us, and rank 1 at 5 + 20 + 20 + 4 + 3 = 52 us.
    for (rank, end) in [(0, 38), (1, 52)] {
        let facts = &rows_of_json_list(&document, "ranks")[rank];
        let found = [
            "nodes",
            "data_dependencies",
            "control_dependencies",
            "depth",
            "width",
            "end_ps",
        ]
        .map(|field| integer_field(facts, field));
        assert_eq!(found, [8, 5, 1, 5, 3, end * US], "rank {rank}");
        // Without recorded delays, the times are estimates.
        assert_eq!(facts["times"], "estimated");
    }
    let types = |name| read_number_fields_of_row(find_only_row(&document, "types", "type", name));
    assert_eq!(types("metadata"), [2, 0, 0, 0, 0, 0]);
    assert_eq!(types("host"), [2, 10 * US, 0, 0, 0, 0]);
    // The sums are 2 x 10 + 2 x 20 us, 4 x 100 FLOPs, and 4 x 40 bytes.
    assert_eq!(types("compute"), [4, 60 * US, 0, 400, 160, 0]);
    // The all-reduces take 6 + 4 us and 4 us.
    assert_eq!(types("all-reduce"), [2, 14 * US, 6 * US, 0, 128, 0]);
    assert_eq!(types("send"), [2, 6 * US, 0, 0, 32, 0]);
    assert_eq!(types("receive"), [2, 6 * US, 0, 0, 32, 0]);
    assert_eq!(types("load"), [2, 0, 0, 0, 16, 2]);
    let compute = find_only_row(&document, "types", "type", "compute");
    assert_eq!(
        compute["min_time"],
        serde_json::json!({"ps": 20 * US, "rank": 0})
    );
    assert_eq!(
        compute["max_time"],
        serde_json::json!({"ps": 40 * US, "rank": 1})
    );

    let stream = find_only_row(&document, "lanes", "lane", "stream 7");
    assert_eq!(
        (
            stream["name"].as_str(),
            read_number_fields_of_row(stream)[0]
        ),
        (Some("the GPU"), 4)
    );
    for (lane, nodes) in [
        ("host 1", 2),
        ("memory", 2),
        ("collectives of tp", 2),
        ("sends to rank 0", 1),
        ("sends to rank 1", 1),
        // Receives and declarations have no lane.
        ("no lane", 4),
    ] {
        assert_eq!(
            read_number_fields_of_row(find_only_row(&document, "lanes", "lane", lane))[0],
            nodes,
            "{lane}"
        );
    }
    let collective = find_only_row(&document, "collectives", "group", "tp");
    assert_eq!(
        (
            collective["kind"].as_str(),
            read_number_fields_of_row(collective)
        ),
        (Some("all-reduce"), types("all-reduce"))
    );
    let messages: Vec<_> = rows_of_json_list(&document, "messages")
        .iter()
        .map(|m| {
            (
                integer_field(m, "from"),
                integer_field(m, "to"),
                read_number_fields_of_row(&m["sent"]),
                read_number_fields_of_row(&m["received"]),
            )
        })
        .collect();
    let one = [1, 3 * US, 0, 0, 16, 0];
    assert_eq!(messages, [(0, 1, one, one), (1, 0, one, one)]);
    // Operators have names without layer numbers, so both kernels are one operator.
    let operator = find_only_row(&document, "operators", "name", "step*/layer*/mm");
    assert_eq!(read_number_fields_of_row(operator), types("compute"));
    let attributes: Vec<_> = rows_of_json_list(&document, "attributes")
        .iter()
        .map(|a| {
            (
                a["name"].as_str().unwrap(),
                a["type"].as_str().unwrap(),
                integer_field(a, "nodes"),
            )
        })
        .collect();
    assert_eq!(
        attributes,
        [
            ("comm_dst", "int32", 4),
            ("comm_size", "int64", 6),
            ("comm_src", "int32", 4),
            ("comm_type", "int64", 2),
            ("duration_micros", "field", 12),
            ("inputs", "field", 2),
            ("is_cpu_op", "bool", 2),
            ("num_ops", "int64", 4),
            ("pg_name", "string", 2),
            ("stream", "int64", 4),
            ("tensor_size", "uint64", 6),
            ("tid", "int64", 2),
            ("wait_ns", "uint64", 2),
        ]
    );
    assert_eq!(
        document["groups"],
        serde_json::json!([
            {"name": "tp", "ranks": [0, 1], "declared_differently": false}
        ])
    );
    assert_eq!(
        document["metadata"]["attributes"],
        serde_json::json!([
            {"name": "rank", "type": "int64", "value": "0", "ranks": 2, "same_on_these": false},
            {"name": "schema", "type": "string", "value": "by hand", "ranks": 2, "same_on_these": true},
        ])
    );
}

#[test]
fn the_text_report_states_the_sums_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_two_rank_job(folder.path());
    let text = run_inspect_ok(&[&path]);
    for line in [
        "job: 2 ranks (0-1), 16 nodes, 10 data and 2 control dependencies",
        "recorded run 52.000 us",
        "groups tp: ranks 0-1",
        "metadata version 0.0.4; rank differs; schema by hand",
        "0 8 5 1 5 3 0 38.000 us",
        "1 8 5 1 5 3 0 52.000 us",
        // The row has means over two ranks. The total over both is 10 + 60 + 14 + 6 + 6 = 96 us,
        // and 60 us are 62.5 % of it.
        "compute 4 - 30.000 us 62.5 % 20.000 us (rank 0) 40.000 us (rank 1)",
        "load 2 2 0 0.0 % equal on all",
        "all 16 2 48.000 us",
        "including 3.000 us waiting for other ranks",
        "stream 7: the GPU 4 30.000 us 62.5 % 40.000 us (rank 1)",
        "sends to rank 1 1 1.500 us 3.1 % 3.000 us (rank 0)",
        "all-reduce, tp 2 64 B 4.000 us 3.000 us 10.000 us (rank 0)",
        "0 to 1 1 16 B 3.000 us 1 3.000 us 0",
        "step*/layer*/mm compute 4 60.000 us 15.000 us 62.5 % 400 160",
    ] {
        assert!(has_line_of_words(&text, line), "{line:?} in\n{text}");
    }
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    // A single rank has no columns for differences. Of 5 + 40 + 4 + 3 + 3 = 55 us, 40 us are 72.7
    // %.
    let text = run_inspect_ok(&[&path, "--rank", "1"]);
    assert!(
        has_line_of_words(&text, "compute 2 - 40.000 us 72.7 %"),
        "{text}"
    );
    assert!(!text.contains("RANKS"), "{text}");
    assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
}

#[test]
fn tables_are_comma_separated_values() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_two_rank_job(folder.path());
    let table = |name| run_inspect_ok(&[&path, "--format", "csv", "--table", name]);
    let types = run_inspect_ok(&[&path, "--format", "csv"]);
    assert_eq!(types, table("types"));
    assert!(types.starts_with("type,ranks,nodes,time_ps,wait_ps,flops,bytes,nodes_without_time,"));
    assert!(
        types.contains("\ncompute,2,4,60000000,0,400,160,0,20000000,0,40000000,1\n"),
        "{types}"
    );
    let lanes = table("lanes");
    assert!(lanes.contains("\nstream 7,the GPU,2,4,"), "{lanes}");
    assert!(table("messages").contains("\n1,0,1,16,3000000,0,1,16,3000000,0\n"));
    assert!(table("collectives").contains("\ntp,all-reduce,2,2,14000000,6000000,0,128,0,"));
    assert!(table("operators").contains("\nstep*/layer*/mm,compute,2,4,60000000,"));
    assert!(table("attributes").contains("\npg_name,string,2\n"));
    for name in [
        "ranks",
        "types",
        "lanes",
        "collectives",
        "messages",
        "operators",
        "attributes",
    ] {
        let text = table(name);
        let columns: Vec<usize> = text.lines().map(|line| line.split(',').count()).collect();
        assert!(
            columns.len() > 1 && columns.windows(2).all(|pair| pair[0] == pair[1]),
            "{text}"
        );
    }
}

#[test]
fn a_node_is_shown_with_what_is_near_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_two_rank_job(folder.path());
    let near = |more: &[&str]| {
        run_inspect_ok(&[&[&path[..], "--rank", "0", "--node", "4"], more].concat())
    };
    let text = near(&["--depth", "2"]);
    for line in [
        "rank 0 node 4 step0/layer1/mm",
        "type compute on stream 7: the GPU",
        // The kernel runs after 5 us of host time, and after the 10 us of the previous kernel.
        "ran 15.000 us to 25.000 us",
        "num_ops int64 100",
        "data 3 5.000 us 15.000 us 10.000 us compute step0/layer0/mm",
        "control 2 0 5.000 us 5.000 us host prepare",
        "data 5 25.000 us 35.000 us 10.000 us all-reduce sum, tp",
        "2 away 6 35.000 us 38.000 us 3.000 us send p2p, rank 1",
        "2 away 7 35.000 us 38.000 us 3.000 us receive p2p, rank 1",
    ] {
        assert!(has_line_of_words(&text, line), "{line:?} in\n{text}");
    }
    let document: Value = serde_json::from_str(&near(&["--format", "json"])).unwrap();
    let ids = |side: &str| -> Vec<u64> {
        rows_of_json_list(&document[side], "nodes")
            .iter()
            .map(|n| integer_field(n, "id"))
            .collect()
    };
    assert_eq!(
        (ids("dependencies"), ids("dependents")),
        (vec![2, 3], vec![5])
    );
    let edges = &document["edges"];
    assert_eq!(
        edges.as_array().map(Vec::len),
        Some(4),
        "2-3, 2-4, 3-4 and 4-5: {edges}"
    );
    let drawn = near(&["--format", "dot"]);
    assert!(
        drawn.contains("label=\"4: step0/layer1/mm\\ncompute, 10.000 us\", shape=box, style=bold"),
        "{drawn}"
    );
    assert_eq!(drawn.matches("->").count(), 4, "{drawn}");
    assert_eq!(drawn.matches("style=dashed").count(), 1, "{drawn}");
}

#[test]
fn a_time_window_lists_the_nodes_that_run_within_it() {
    // On rank 0, kernels run from 5 to 15 us and from 15 to 25 us, and the all-reduce follows. A
    // node is outside a window if it ends when the window begins, or starts when the window ends. A
    // node without duration is inside if it starts inside.
    let folder = tempfile::tempdir().unwrap();
    let path = write_two_rank_job(folder.path());
    let within = |from: &str, to: &str| -> Vec<u64> {
        let window = ["--rank", "0", "--list", "--from", from, "--to", to];
        let list = inspect_json(&[&[&path[..]], &window[..]].concat());
        rows_of_json_list(&list, "nodes")
            .iter()
            .map(|row| integer_field(row, "id"))
            .collect()
    };
    assert_eq!(within("15us", "25us"), [4]);
    assert_eq!(within("14999ns", "25001ns"), [3, 4, 5]);
    // The declaration, the host's work and the load start at 0, and the load and the declaration
    // take no time.
    assert_eq!(within("0ns", "1ns"), [1, 2, 8]);
    assert_eq!(within("1ns", "2ns"), [2]);
}
