//! Counts the cases under `traces/` again, with the types generated from the schema.

use super::{
    attribute_value, find_only_row, inspect_json, integer_attribute, integer_field,
    read_trace_records, rows_of_json_list, run_inspect_ok,
};
use crate::commands::has_line_of_words;
use chakram::internals::proto::Node;
use chakram::internals::proto::attribute_proto::Value as Attribute;
use std::collections::BTreeMap;

/// Returns the duration of a node without waiting, in ns.
fn node_duration_ns(node: &Node) -> u64 {
    integer_attribute(node, "duration_ns").unwrap_or(node.duration_micros * 1000)
}

fn node_type_name(node: &Node) -> &'static str {
    match (
        node.r#type,
        integer_attribute(node, "is_cpu_op"),
        integer_attribute(node, "comm_type"),
    ) {
        (1, ..) => "metadata",
        (4, Some(1), _) => "host",
        (4, ..) => "compute",
        (7, _, Some(0)) => "all-reduce",
        (7, _, Some(5)) => "broadcast",
        other => panic!("{other:?} is in none of these cases"),
    }
}

/// Returns the schema's name for an attribute's type.
fn attribute_type_name(value: &Attribute) -> &'static str {
    match value {
        Attribute::Int32Val(_) => "int32",
        Attribute::Int64Val(_) => "int64",
        Attribute::Uint32Val(_) => "uint32",
        Attribute::Uint64Val(_) => "uint64",
        Attribute::BoolVal(_) => "bool",
        Attribute::StringVal(_) => "string",
        other => panic!("{other:?} is in none of these cases"),
    }
}

fn check_inspection_of_case(case: &str, files: &[String]) {
    let path = format!("traces/{case}");
    let document = inspect_json(&[&path]);
    let mut types: BTreeMap<&str, [u64; 5]> = BTreeMap::new();
    let mut attributes: BTreeMap<(String, String), u64> = BTreeMap::new();
    let mut operators: BTreeMap<(String, &str), u64> = BTreeMap::new();
    let (mut all, mut edges) = (0, 0);
    for (rank, file) in files.iter().enumerate() {
        let (_, nodes) = read_trace_records(&format!("{case}/{file}"));
        let facts = &rows_of_json_list(&document, "ranks")[rank];
        assert_eq!(integer_field(facts, "nodes"), nodes.len() as u64);
        let size = std::fs::metadata(
            std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
                .join(&path)
                .join(file),
        );
        assert_eq!(integer_field(facts, "file_bytes"), size.unwrap().len());
        for node in &nodes {
            all += 1;
            edges += node.data_deps.len();
            let of = node_type_name(node);
            let wait = integer_attribute(node, "wait_ns").unwrap_or(0);
            let time = node_duration_ns(node) + wait;
            let bytes = integer_attribute(node, "tensor_size")
                .or(integer_attribute(node, "comm_size"))
                .unwrap_or(0);
            let sums = types.entry(of).or_default();
            let flops = integer_attribute(node, "num_ops").unwrap_or(0);
            for (sum, value) in sums
                .iter_mut()
                .zip([1, time * 1000, wait * 1000, flops, bytes])
            {
                *sum += value;
            }
            *operators.entry((node.name.clone(), of)).or_default() += time * 1000;
            for attr in &node.attr {
                let key = (
                    attr.name.clone(),
                    attribute_type_name(attr.value.as_ref().unwrap()).to_owned(),
                );
                *attributes.entry(key).or_default() += 1;
            }
            let io = |io: &Option<_>| u64::from(io.is_some());
            for (name, there) in [
                ("duration_micros", u64::from(node.duration_micros > 0)),
                ("inputs", io(&node.inputs)),
                ("outputs", io(&node.outputs)),
            ] {
                if there > 0 {
                    *attributes
                        .entry((name.to_owned(), "field".to_owned()))
                        .or_default() += 1;
                }
            }
        }
    }
    let found: BTreeMap<&str, [u64; 5]> = rows_of_json_list(&document, "types")
        .iter()
        .map(|row| {
            let fields = ["nodes", "time_ps", "wait_ps", "flops", "bytes"];
            (
                row["type"].as_str().unwrap(),
                fields.map(|field| integer_field(row, field)),
            )
        })
        .collect();
    assert_eq!(found, types);
    let found: BTreeMap<(String, String), u64> = rows_of_json_list(&document, "attributes")
        .iter()
        .map(|a| {
            let text = |field: &str| a[field].as_str().unwrap().to_owned();
            ((text("name"), text("type")), integer_field(a, "nodes"))
        })
        .collect();
    assert_eq!(found, attributes);
    // A name without step or layer numbers counts as a separate operator.
    let mut compared = 0;
    for ((name, of), time) in operators
        .iter()
        .filter(|((name, _), _)| !name.contains(['/', '.']))
    {
        let all = rows_of_json_list(&document, "operators").iter();
        let mut same = all.filter(|row| row["name"] == **name && row["type"] == **of);
        assert_eq!(
            same.next().map(|row| integer_field(row, "time_ps")),
            Some(*time),
            "{name}"
        );
        compared += 1;
    }
    let text = run_inspect_ok(&[&path]);
    let thousands = |n: usize| match n {
        0..1000 => n.to_string(),
        n => format!("{},{:03}", n / 1000, n % 1000),
    };
    let head = format!(
        "{case}: {} ranks (0-{}), {} nodes, {} data and 0 control dependencies",
        files.len(),
        files.len() - 1,
        thousands(all),
        thousands(edges)
    );
    assert_eq!(text.lines().next(), Some(&head[..]));
    // Output to a pipe has full names.
    let (_, section) = text.split_once("\nOPERATORS").expect("there are some");
    let rows = section
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with("  ") && !line.contains('…'));
    for row in rows {
        let named = |of: &serde_json::Value| {
            of["name"]
                .as_str()
                .is_some_and(|name| row.trim_start().starts_with(name))
        };
        assert!(
            row.contains("(no name)")
                || document["operators"].as_array().unwrap().iter().any(named),
            "{row}"
        );
    }
    println!("{case}: {compared} operators compared");
}

#[test]
fn a_generated_job_is_counted_right() {
    let files: Vec<String> = (0..8).map(|rank| format!("job.{rank}.et")).collect();
    check_inspection_of_case("data-parallel-8", &files);
    let text = run_inspect_ok(&["traces/data-parallel-8"]);
    for line in [
        // In these traces, collectives have no duration and nodes have no delay.
        "all-reduce 192 192 0 0.0 % equal on all",
        "stream 1 192 0 0.0 % equal on all",
        "all-reduce, all ranks 192 100.7 MB 0 0 equal on all",
        "times an estimate: the file has durations and no delays, so gaps are missing and starts",
    ] {
        assert!(has_line_of_words(&text, line), "{line:?} in\n{text}");
    }
}

#[test]
fn a_converted_job_is_counted_right() {
    let files: Vec<String> = (0..2).map(|rank| format!("job.{rank}.et.zst")).collect();
    check_inspection_of_case("ddp-resnet18", &files);
    let document = inspect_json(&["traces/ddp-resnet18"]);
    assert_eq!(document["shared_clock"], true);
    for (rank, file) in files.iter().enumerate() {
        let (metadata, nodes) = read_trace_records(&format!("ddp-resnet18/{file}"));
        let captured = metadata
            .attr
            .iter()
            .find(|attr| attr.name == "captured_ns")
            .unwrap();
        let Some(Attribute::Uint64Val(ns)) = captured.value else {
            panic!("{captured:?}");
        };
        let facts = &rows_of_json_list(&document, "ranks")[rank];
        assert_eq!(
            (
                integer_field(facts, "captured_ps"),
                integer_field(facts, "end_ps")
            ),
            (ns * 1000, ns * 1000)
        );
        // The file marks lanes of host work by their names.
        let hosts = nodes
            .iter()
            .filter(|node| node_type_name(node) == "host")
            .count();
        let lane = inspect_json(&["traces/ddp-resnet18", "--rank", &rank.to_string()]);
        assert_eq!(
            integer_field(find_only_row(&lane, "lanes", "lane", "host 1"), "nodes"),
            hosts as u64
        );
    }
    let text = run_inspect_ok(&["traces/ddp-resnet18"]);
    for line in [
        "times durations and delays as captured; ends with the capture, to the picosecond",
        "groups 0: ranks 0-1",
    ] {
        assert!(has_line_of_words(&text, line), "{line:?} in\n{text}");
    }
}

#[test]
fn the_critical_path_is_as_long_as_the_job() {
    let document = inspect_json(&["traces/ddp-resnet18", "--critical-path", "--list"]);
    assert_eq!(document["shared_clock"], true);
    let [path] = &rows_of_json_list(&document, "paths")[..] else {
        panic!("{document:#}");
    };
    // The end is the end of the longer of the two ranks' captures, without a gap.
    let longest = (0..2)
        .map(|rank| read_trace_records(&format!("ddp-resnet18/job.{rank}.et.zst")).0)
        .flat_map(|metadata| metadata.attr)
        .filter(|attr| attr.name == "captured_ns")
        .map(|attr| match attr.value {
            Some(Attribute::Uint64Val(ns)) => ns * 1000,
            other => panic!("{other:?}"),
        })
        .max();
    assert_eq!(Some(integer_field(path, "length_ps")), longest);
    let mut at = 0;
    for piece in rows_of_json_list(path, "nodes") {
        assert_eq!(integer_field(piece, "from_ps"), at);
        at += ["delay_ps", "wait_ps", "work_ps"]
            .map(|field| integer_field(piece, field))
            .iter()
            .sum::<u64>();
    }
    assert_eq!(Some(at), longest);
    // The records show that each node of the path follows one of its dependencies, or a node on its lane.
    let nodes: BTreeMap<u64, Node> = read_trace_records("ddp-resnet18/job.0.et.zst")
        .1
        .into_iter()
        .map(|node| (node.id, node))
        .collect();
    let lane = |node: &Node| {
        let value = attribute_value(node, "stream")
            .or(attribute_value(node, "tid"))
            .cloned();
        (node_type_name(node) == "host", format!("{value:?}"))
    };
    for pair in rows_of_json_list(path, "nodes").windows(2) {
        let (a, b) = (
            &nodes[&integer_field(&pair[0], "id")],
            &nodes[&integer_field(&pair[1], "id")],
        );
        assert!(
            b.data_deps.contains(&a.id) || lane(a) == lane(b),
            "{} and {}",
            a.id,
            b.id
        );
    }
    for table in ["types", "ranks", "operators"] {
        let sum: u64 = rows_of_json_list(path, table)
            .iter()
            .map(|row| integer_field(row, "time_ps"))
            .sum();
        assert_eq!(Some(sum), longest, "{table}");
    }
    // In traces of other tools, ranks have no common start.
    let document = inspect_json(&["traces/data-parallel-8", "--critical-path"]);
    assert_eq!(
        (
            document["shared_clock"].as_bool(),
            rows_of_json_list(&document, "paths").len()
        ),
        (Some(false), 8)
    );
    let csv = run_inspect_ok(&["traces/ddp-resnet18", "--critical-path", "--format", "csv"]);
    assert_eq!(
        csv.lines().count(),
        rows_of_json_list(path, "nodes").len() + 1
    );
}

#[test]
fn inspection_output_is_independent_of_threads_and_file_order() {
    for args in [
        &["--format", "text"][..],
        &["--format", "json"],
        &["--format", "csv", "--table", "operators"],
        &["--list", "--format", "json"],
        &["--list", "--format", "csv", "--limit", "500"],
        &["--critical-path"],
    ] {
        let ask = |threads: &str, first: usize| {
            let files: Vec<String> = (0..8)
                .map(|i| format!("traces/data-parallel-8/job.{}.et", (first + i) % 8))
                .collect();
            let files = files.iter().map(String::as_str);
            let more = args.iter().copied().chain(["--threads", threads]);
            run_inspect_ok(&files.chain(more).collect::<Vec<_>>())
        };
        let once = ask("1", 0);
        assert!(once == ask("3", 5) && once == ask("8", 2), "{args:?}");
    }
}
