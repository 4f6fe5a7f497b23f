//! Tests a file of each form that observers write, and the effects of damage.

use super::*;
use crate::pytorch::{JsonRepairKind, SingleJsonRepairWithOffset};

/// Builds a node as PyTorch 2.4 and later write it, including the line breaks.
pub(super) fn build_host_node_json(
    id: u64,
    name: &str,
    input: [&str; 3],
    output: [&str; 3],
) -> String {
    let side = |[values, shapes, types]: [&str; 3]| {
        format!(r#"{{"values": {values}, "shapes": {shapes}, "types": {types}, "strides": []}}"#)
    };
    let (input, output) = (side(input), side(output));
    format!(
        r#"
      {{
        "id": {id}, "name": "{name}", "ctrl_deps": 1,
        "inputs": {input},
        "outputs": {output},
        "attrs": [{{"name": "rf_id", "type": "uint64", "value": 4}},{{"name": "fw_parent", "type": "uint64", "value": 9}},{{"name": "seq_id", "type": "int64", "value": -1}},{{"name": "scope", "type": "uint64", "value": 7}},{{"name": "tid", "type": "uint64", "value": 2}},{{"name": "fw_tid", "type": "uint64", "value": 1}},{{"name": "op_schema", "type": "string", "value": "f(\"x\") -> y"}},{{"name": "kernel_backend", "type": "string", "value": ""}}]
      }}"#
    )
}

const NOTHING: [&str; 3] = ["[]"; 3];

fn build_host_trace_json(schema: &str, nodes: &[String]) -> String {
    format!(
        "{{\n  \"schema\": \"{schema}\", \"pid\": 1, \"time\": \"2026-11-20 10:38:16\", \"start_ts\": 5,\n  \
         \"nodes\": [{}\n  ],\n  \"finish_ts\": 7\n}}\n",
        nodes.join(",")
    )
}

fn parse_host_trace(text: &str) -> HostTrace {
    HostTrace::from_bytes(text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn return_host_trace_error_message(text: &[u8]) -> String {
    let error = HostTrace::from_bytes(text).map(|trace| trace.nodes.len());
    error.expect_err("it is damaged").to_string()
}

#[test]
fn nested_nodes_are_read_in_every_version() {
    let input = [
        r#"[[7,8,0,64,4,"cpu"],[[9,8,0,10,2,"cpu"],[7,8,0,64,4,"cpu"]],"<None>",1.000000,"inf",[2,65]]"#,
        "[[8,8],[[5,2],[8,8]],[],[],[],[[],[]]]",
        r#"["Tensor(float)","GenericList[Tensor(c10::Half),Tensor(float)]","None","Double","Double","GenericList[Int,Int]"]"#,
    ];
    let output = [r#"[[11,0,0,1,8,""]]"#, "[[]]", r#"["Tensor(long int)"]"#];
    for schema in [
        "1.0.2-chakra.0.0.4",
        "1.0.3-chakra.0.0.4",
        "1.1.0-chakra.0.0.4",
        "1.1.1-chakra.0.0.4",
        "1.1.1-chakra.1.0.0",
    ] {
        let trace = parse_host_trace(&build_host_trace_json(
            schema,
            &[build_host_node_json(6, "aten::x", input, output)],
        ));
        assert_eq!(trace.schema, schema);
        assert_eq!(trace.repairs, JsonRepairs::default());
        let [node] = trace.nodes.as_slice() else {
            panic!("{:?}", trace.nodes)
        };
        let record = &trace.records[0];
        assert_eq!((record.id, record.parent, record.rf_id), (6, 1, 4));
        let form = trace.shared_properties_of_node(node);
        assert_eq!((record.seq_id, record.fw_parent, form.scope), (-1, 9, 7));
        assert_eq!((node.tid, node.args), (2, NONE));
        let text = |number| trace.texts.get(number);
        assert_eq!(text(node.name), "aten::x");
        assert_eq!(text(form.op_schema), "f(\"x\") -> y");
        assert_eq!(
            text(form.shapes_in),
            "[[8, 8], [[5, 2], [8, 8]], [], [], [], [[], []]]"
        );
        assert_eq!(
            text(form.types_in),
            "['Tensor(float)', 'GenericList[Tensor(c10::Half),Tensor(float)]', 'None', 'Double', \
             'Double', 'GenericList[Int,Int]']"
        );
        assert_eq!(
            (text(form.shapes_out), text(form.types_out)),
            ("[[]]", "['Tensor(long int)']")
        );
        assert_eq!(
            trace.input_and_output_storages_of_node(0),
            [&[8, 8, 8][..], &[]]
        );
        // Tensor 7 occurs twice but counts once: 64 × 4 + 10 × 2.
        assert_eq!((form.bytes_in, form.bytes_out), (276, 8));
    }
}

#[test]
fn flat_nodes_are_read() {
    let text = r#"{"schema": "1.0.1", "nodes": [
        {
          "name": "aten::slice", "id": 7, "rf_id": 3, "parent": 4, "fw_parent": 0, "seq_id": 440, "scope": 0, "tid": 1, "fw_tid": 0, "op_schema": "s",
          "inputs": [[5,6,0,112,4,"cuda:0"], 0 ,48], "input_shapes": [[112],[],[]], "input_types": ["Tensor(float)","Int","Int"],
          "outputs": [[9,6,0,48,4,"cuda:0"]], "output_shapes": [[48]], "output_types": ["Tensor(float)"]
        },
        {
          "name": "record_param_comms", "id": 606, "rf_id": 447, "parent": 605, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 1, "fw_tid": 0, "op_schema": "",
          "inputs": [141,0,0,"wait",[],[]], "input_shapes": [[],[],[],[],[],[]], "input_types": ["Int","Int","Int","String","GenericList[]","GenericList[]"],
          "outputs": [], "output_shapes": [], "output_types": []
        }]}"#;
    let trace = parse_host_trace(text);
    let [slice, comm] = trace.nodes.as_slice() else {
        panic!("{:?}", trace.nodes)
    };
    let record = &trace.records[0];
    assert_eq!(
        (record.id, record.parent, record.rf_id, record.seq_id),
        (7, 4, 3, 440)
    );
    // The tensors have 112 × 4 and 48 × 4 bytes.
    let form = trace.shared_properties_of_node(slice);
    assert_eq!((form.bytes_in, form.bytes_out), (448, 192));
    assert_eq!(trace.texts.get(form.op_schema), "s");
    assert_eq!(trace.storages, [6, 6]);
    let args = &trace.args[comm.args as usize];
    assert_eq!(args.inputs, r#"[141,0,0,"wait",[],[]]"#);
    assert_eq!(args.outputs, "[]");
}

#[test]
fn communication_keeps_its_arguments() {
    let input = [
        r#"[[[7,8,0,64,4,"cuda:0"]],["0","default_pg"]]"#,
        "[[[8,8]],[[],[]]]",
        r#"["GenericList[Tensor(float)]","Tuple[String,String]"]"#,
    ];
    let text = build_host_node_json(6, "record_param_comms", input, NOTHING).replace(
        r#""attrs": ["#,
        r#""attrs": [{"name": "collective_name", "type": "string", "value": "all\"reduce"},{"name": "pg_size", "type": "uint64", "value": 8},"#,
    );
    let trace = parse_host_trace(&build_host_trace_json("1.1.0-chakra.0.0.4", &[text]));
    assert_eq!(trace.nodes[0].args, 0);
    assert_eq!(
        trace.shared_properties_of_node(&trace.nodes[0]).bytes_in,
        256
    );
    let args = &trace.args[0];
    assert_eq!(
        [&*args.inputs, &args.input_shapes, &args.input_types],
        input
    );
    let attrs: Vec<_> = args.attrs.iter().map(|(k, v)| (&**k, &**v)).collect();
    assert_eq!(
        attrs,
        [("collective_name", "all\"reduce"), ("pg_size", "8")]
    );
}

#[test]
fn process_groups_are_taken_even_when_their_list_was_cut() {
    let groups = r#"[{\"pg_name\": \"0\", \"ranks\": [], \"group_size\": 4}, {\"pg_name\": \"1\", \"ranks\": [0, 2]}]"#;
    let init = |groups: &str| {
        let values = format!("[\"{groups}\"]");
        build_host_node_json(
            3,
            "## process_group:init ##",
            [&values, "[[]]", "[\"String\"]"],
            NOTHING,
        )
    };
    let trace = parse_host_trace(&build_host_trace_json("1.1.1", &[init(groups)]));
    assert_eq!(trace.groups.len(), 2);
    assert_eq!(
        (trace.groups[0].size, &trace.groups[1].ranks[..]),
        (Some(4), &[0, 2][..])
    );
    assert_eq!(trace.repairs.repair_count(), 0);
    let trace = parse_host_trace(&build_host_trace_json(
        "1.1.1",
        &[init(&groups[..groups.len() - 8])],
    ));
    assert_eq!(trace.groups.len(), 1);
    assert_eq!(trace.repairs.listed[0].what, JsonRepairKind::Groups);
    let error = return_host_trace_error_message(
        build_host_trace_json("1.1.1", &[init("nonsense")]).as_bytes(),
    );
    assert!(
        error.contains("the process groups of this node cannot be read"),
        "{error}"
    );
}

#[test]
fn names_that_were_not_escaped_are_repaired() {
    for name in [
        "quote \" backslash \\ tab \t newline \n end",
        "ends with a backslash\\",
        "}],{\"",
        "\"",
        "line\nbreak",
        "\\q",
        "a\", \"b",
        "\"quoted, twice\" and \"again",
    ] {
        let nodes = [
            build_host_node_json(5, "before", NOTHING, NOTHING),
            build_host_node_json(6, name, NOTHING, NOTHING),
            build_host_node_json(7, "after", NOTHING, NOTHING),
        ];
        let text = build_host_trace_json("1.1.1", &nodes);
        let trace = parse_host_trace(&text);
        let names: Vec<_> = trace
            .nodes
            .iter()
            .map(|n| trace.texts.get(n.name))
            .collect();
        assert_eq!(names, ["before", name, "after"]);
        let offset = text.find(name).map_or(0, |at| at as u64);
        let expected = SingleJsonRepairWithOffset {
            offset,
            what: JsonRepairKind::Name,
            text: name.to_owned(),
        };
        assert_eq!(trace.repairs.repair_count(), 1);
        if name.len() > 1 {
            assert_eq!(trace.repairs.listed, [expected]);
        }
        let flat = format!(
            "{{\"nodes\": [{{\"name\": \"{name}\", \"id\": 7, \"rf_id\": 3, \"parent\": 4,\n\"tid\": 1}}]}}"
        );
        let trace = parse_host_trace(&flat);
        assert_eq!(trace.texts.get(trace.nodes[0].name), name);
    }
    // The name becomes invalid UTF-8, which Rust's strings cannot store.
    let text = build_host_trace_json(
        "1.1.1",
        &[build_host_node_json(6, "bad?", NOTHING, NOTHING)],
    );
    let mut bytes = text.into_bytes();
    let at = bytes.iter().position(|b| *b == b'?').unwrap();
    bytes[at] = 0xff;
    let trace = HostTrace::from_bytes(&bytes).unwrap();
    assert_eq!(trace.texts.get(trace.nodes[0].name), "bad\u{fffd}");
}

#[test]
fn damage_after_a_repaired_name_is_reported_at_its_place() {
    // The escaped name is longer than all text before it.
    let name = "\"".repeat(500);
    for (from, to, part) in [
        ("\"value\": 4}", "\"value\": 4]", "record 0"),
        ("\"value\": 4}", "\"value\": -4}", "`rf_id` is -4"),
    ] {
        let text = build_host_trace_json(
            "",
            &[build_host_node_json(6, &name, NOTHING, NOTHING).replacen(from, to, 1)],
        );
        let text = text.trim_start_matches("{\n  \"schema\": \"\",");
        let text = format!("{{{text}");
        let error = return_host_trace_error_message(text.as_bytes());
        let at = text.find(to).unwrap() + "\"value\": ".len();
        let near = (at - 2..at + 4).any(|at| error.contains(&format!("byte {at}:")));
        assert!(error.contains(part) && near, "{at}: {error}");
    }
}

#[test]
fn legal_names_are_left_alone() {
    let escaped = r#"a \" b \\ c \t \u00e9 \", \"ctrl_deps\": 5"#;
    let trace = parse_host_trace(&build_host_trace_json(
        "1.1.1",
        &[build_host_node_json(6, escaped, NOTHING, NOTHING)],
    ));
    let name = trace.texts.get(trace.nodes[0].name);
    assert_eq!(name, "a \" b \\ c \t é \", \"ctrl_deps\": 5");
    assert_eq!(trace.repairs.repair_count(), 0);
    // The name is valid JSON; the damage is elsewhere.
    let text = build_host_trace_json(
        "1.1.1",
        &[build_host_node_json(6, escaped, ["[", "[]", "[]"], NOTHING)],
    );
    assert!(
        return_host_trace_error_message(text.as_bytes()).contains("expected"),
        "{text}"
    );
}

#[test]
fn a_name_without_closing_quote_is_an_error_of_its_own_node() {
    let broken = build_host_node_json(6, "x", NOTHING, NOTHING).replace("\"x\"", "\"x");
    let text = build_host_trace_json(
        "1.1.1",
        &[broken, build_host_node_json(7, "y", NOTHING, NOTHING)],
    );
    let error = return_host_trace_error_message(text.as_bytes());
    assert!(error.contains("record 0"), "{error}");
}

#[test]
fn every_truncation_is_an_error() {
    let nodes = [
        build_host_node_json(
            6,
            "a \" b",
            [r#"[[7,8,0,64,4,"cpu"]]"#, "[[8,8]]", r#"["Tensor(float)"]"#],
            NOTHING,
        ),
        build_host_node_json(7, "plain", NOTHING, NOTHING),
    ];
    let text = build_host_trace_json("1.1.1", &nodes);
    for end in 0..text.trim_end().len() {
        let error = return_host_trace_error_message(&text.as_bytes()[..end]);
        assert!(error.contains("byte"), "{end}: {error}");
        assert!(error.contains("try:"), "{end}: {error}");
    }
    assert_eq!(parse_host_trace(&text).nodes.len(), 2);
    assert_eq!(parse_host_trace(&format!("\u{feff}{text}")).nodes.len(), 2);
}

#[test]
fn damage_is_refused_where_it_stands() {
    let plain = build_host_trace_json("1.1.1", &[build_host_node_json(6, "x", NOTHING, NOTHING)]);
    let with = |from: &str, to: &str| {
        assert!(plain.contains(from), "{from}");
        plain.replacen(from, to, 1)
    };
    for (text, part) in [
        (String::new(), "byte 0: the text ends, expected `{`"),
        (
            "[]".into(),
            "byte 0: found `[]`, expected `{` at the start of a host trace",
        ),
        ("{}".into(), "has no `nodes`"),
        (
            "{\"nodes\": 5}".into(),
            "byte 10: found `5}`, expected the array `nodes`",
        ),
        ("{\"nodes\": [], \"nodes\": []}".into(), "a second `nodes`"),
        (
            "{\"nodes\": []} x".into(),
            "byte 14: found `x` after the end of the JSON text",
        ),
        ("{\"nodes\": [],,}".into(), "expected a key"),
        ("{\"nodes\": [}".into(), "found `}`"),
        ("{nodes: []}".into(), "byte 1: found `nodes: []}`"),
        (
            with("\"id\": 6", "\"id\": -6"),
            "`id` is -6, expected a whole number of 64 bits",
        ),
        (with("\"id\": 6", "\"id\": \"six\""), "`id` is \"six\""),
        (with("\"id\": 6,", ""), "missing field `id`"),
        (with("\"ctrl_deps\": 1,", ""), "neither `ctrl_deps`"),
        (
            with("\"value\": 2}", "\"value\": 4294967296}"),
            "`tid` is 4294967296",
        ),
        (
            with("\"inputs\": {", "\"inputs\": 5, \"x\": {"),
            "invalid type",
        ),
        (
            with("\"values\": []", "\"values\": undefined"),
            "found `undefined",
        ),
        (with("\"types\": []", "\"types\": {}"), "types {}"),
        (
            with(
                "\"values\": [], \"shapes\": [], \"types\": []",
                "\"values\": [1]",
            ),
            "found values without `types`",
        ),
    ] {
        let error = return_host_trace_error_message(text.as_bytes());
        assert!(error.contains(part), "{text}\n{error}\nlacks {part}");
    }
    let at = plain.find("[], \"shapes\"").unwrap();
    let error = return_host_trace_error_message(with("\"values\": []", "\"values\": %").as_bytes());
    assert!(
        error.contains(&format!("byte {at}")) || error.contains(&format!("byte {}", at + 1)),
        "{at} {error}"
    );
}

#[test]
fn depth_and_length_are_bounded() {
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let text = build_host_trace_json(
        "1.1.1",
        &[build_host_node_json(6, "x", [&deep, "[]", "[]"], NOTHING)],
    );
    assert_eq!(parse_host_trace(&text).nodes.len(), 1);
    let types = format!(
        "[\"{}Tensor(float){}\"]",
        "GenericList[".repeat(1000),
        "]".repeat(1000)
    );
    let text = build_host_trace_json(
        "1.1.1",
        &[build_host_node_json(6, "x", [&deep, "[]", &types], NOTHING)],
    );
    assert!(return_host_trace_error_message(text.as_bytes()).contains("types ["));
    // An element of 3 MiB makes the window grow.
    let long = "x".repeat(3 << 20);
    let nodes = [
        build_host_node_json(6, &long, NOTHING, NOTHING),
        build_host_node_json(7, "y", NOTHING, NOTHING),
    ];
    assert_eq!(
        parse_host_trace(&build_host_trace_json("1.1.1", &nodes))
            .nodes
            .len(),
        2
    );
    let endless = format!("{{\"nodes\": [{{\"name\": \"{}", "x".repeat(20 << 20));
    assert!(return_host_trace_error_message(endless.as_bytes()).contains("longer than 16 MiB"));
}

#[test]
fn elements_that_cross_the_windows_end_are_read_once() {
    // Each node has about 800 bytes, so 6,000 nodes take more than three windows.
    let nodes: Vec<_> = (0..6000)
        .map(|i| {
            let name = if i % 3 == 0 { "a \" b" } else { "plain" };
            build_host_node_json(2 + i, name, NOTHING, NOTHING)
        })
        .collect();
    let text = build_host_trace_json("1.1.1", &nodes);
    assert!(text.len() > 3 << 20);
    let trace = parse_host_trace(&text);
    assert!(trace.records.iter().map(|record| record.id).eq(2..6002));
    // Every third of the 6,000 names was repaired, beginning with the first.
    assert_eq!(trace.repairs.repair_count(), 2000);
    assert_eq!(trace.repairs.listed.len(), JsonRepairs::LISTED);
    assert_eq!(trace.bytes, text.len() as u64);
    let packed = zstd_of(&text);
    let unpacked = HostTrace::from_bytes(&packed).unwrap();
    assert_eq!(unpacked.nodes, trace.nodes);
    assert_eq!(unpacked.records, trace.records);
    let cut = return_host_trace_error_message(&packed[..packed.len() / 2]);
    assert!(cut.contains("the file cannot be decompressed"), "{cut}");
}

fn zstd_of(text: &str) -> Vec<u8> {
    zstd::encode_all(text.as_bytes(), 1).expect("it can be packed")
}
