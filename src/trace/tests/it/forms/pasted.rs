//! Tests traces that are texts from other tools, as people paste them.

use super::decode_trace;
use chakram_trace::format::file::DecompressedTraceFile;
use chakram_trace::format::proto::{self, AttributeProto, IoInfo, Node, attribute_proto::Value};
use chakram_trace::format::text::{JsonTraceFormat, parse_text_trace};
use std::path::Path;
use testkit::corpus::corpus_path_or_count_skip;

/// Reads a text from a file, as every command does.
fn open_pasted_text(text: &str) -> Result<Vec<u8>, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("any.name");
    std::fs::write(&path, text).unwrap();
    let contents =
        DecompressedTraceFile::open_as_current_schema(&path).map_err(|e| e.to_string())?;
    Ok(contents.as_slice().to_vec())
}

fn build_attribute(name: &str, value: Value) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        value: Some(value),
        ..AttributeProto::default()
    }
}

/// A trace as protobuf's Python runtime prints it, record by record. The runtime prints enums by name, and 64-bit
/// numbers as strings. The runtime omits default values, so node 0 has no id.
const JSONIZER: &str = r#"{
  "version": "0.0.4",
  "attr": [
    {
      "name": "start_ts",
      "uint64Val": "350785410"
    }
  ]
}{
  "name": "root",
  "type": "METADATA_NODE"
}{
  "id": "18446744073709551615",
  "name": "mm \u00e9",
  "type": "COMP_NODE",
  "ctrlDeps": [
    "0"
  ],
  "dataDeps": [
    "0",
    "7"
  ],
  "startTimeMicros": "9",
  "durationMicros": "12",
  "inputs": {
    "values": "[[1, 2, 0, 4, 4, 'cpu']]",
    "types": "['Tensor(float)']"
  },
  "outputs": {},
  "attr": [
    {
      "name": "is_cpu_op",
      "boolVal": false
    },
    {
      "name": "x",
      "docString": "d",
      "doubleVal": "NaN"
    },
    {
      "name": "y",
      "floatVal": 0.1
    },
    {
      "name": "raw",
      "bytesVal": "AP8="
    },
    {
      "name": "involved_dim",
      "boolList": {
        "values": [
          true,
          false
        ]
      }
    },
    {
      "name": "sizes",
      "int64List": {
        "values": [
          "-1",
          "9223372036854775807"
        ]
      }
    },
    {
      "name": "unset"
    }
  ]
}
"#;

fn build_expected_nodes() -> Vec<Node> {
    let root = Node {
        name: "root".to_owned(),
        r#type: 1,
        ..Node::default()
    };
    let mut nan = build_attribute("x", Value::DoubleVal(f64::NAN));
    nan.doc_string = "d".to_owned();
    let bools = proto::BoolList {
        values: vec![true, false],
    };
    let ints = proto::Int64List {
        values: vec![-1, i64::MAX],
    };
    let node = Node {
        id: u64::MAX,
        name: "mm é".to_owned(),
        r#type: 4,
        ctrl_deps: vec![0],
        data_deps: vec![0, 7],
        start_time_micros: 9,
        duration_micros: 12,
        inputs: Some(IoInfo {
            values: "[[1, 2, 0, 4, 4, 'cpu']]".to_owned(),
            shapes: String::new(),
            types: "['Tensor(float)']".to_owned(),
        }),
        outputs: Some(IoInfo::default()),
        attr: vec![
            build_attribute("is_cpu_op", Value::BoolVal(false)),
            nan,
            build_attribute("y", Value::FloatVal(0.1)),
            build_attribute("raw", Value::BytesVal(vec![0, 255].into())),
            build_attribute("involved_dim", Value::BoolList(bools)),
            build_attribute("sizes", Value::Int64List(ints)),
            AttributeProto {
                name: "unset".to_owned(),
                ..AttributeProto::default()
            },
        ],
    };
    vec![root, node]
}

#[test]
fn protobufs_json_is_read_however_it_is_put_together() {
    let snake = JSONIZER
        .replace("ctrlDeps", "ctrl_deps")
        .replace("dataDeps", "data_deps")
        .replace("TimeMicros", "_time_micros")
        .replace("durationMicros", "duration_micros")
        .replace("docString", "doc_string")
        .replace("List\"", "_list\"")
        .replace("Val\"", "_val\"");
    assert!(snake.contains("start_time_micros") && snake.contains("uint64_val"));
    // The variants are: one record per line; an array; records separated by commas; 64-bit numbers and enums as JSON
    // numbers.
    let lines: String = JSONIZER.split("}{").collect::<Vec<_>>().join("}\u{0}{");
    let lines = lines.replace('\n', " ").replace('\u{0}', "\n");
    let array = format!("[{}]", JSONIZER.replace("}{", "},{"));
    let commas = JSONIZER.replace("}{", "},\n{");
    let numbers = JSONIZER
        .replace("\"18446744073709551615\"", "18446744073709551615")
        .replace("\"-1\"", "-1")
        .replace("\"COMP_NODE\"", "4")
        .replace("\"12\"", "12.0");
    let mark = format!("\u{feff}{JSONIZER}");
    for text in [JSONIZER, &snake, &lines, &array, &commas, &numbers, &mark] {
        let (metadata, nodes) = decode_trace(&open_pasted_text(text).unwrap());
        assert_eq!(metadata.version, "0.0.4");
        assert_eq!(
            metadata.attr,
            [build_attribute("start_ts", Value::Uint64Val(350_785_410))]
        );
        // A NaN differs from itself, so compare the debug texts.
        assert_eq!(
            format!("{nodes:?}"),
            format!("{:?}", build_expected_nodes()),
            "{text}"
        );
    }
}

#[test]
fn nodes_without_a_metadata_record_are_all_kept() {
    let (metadata, nodes) =
        decode_trace(&open_pasted_text("[{\"id\": \"1\"}, {\"id\": \"2\"}]").unwrap());
    assert_eq!((metadata.version.as_str(), nodes.len()), ("0.0.4", 2));
    let (_, nodes) =
        decode_trace(&open_pasted_text("{\"name\": \"x\"}{\"id\": 5, \"attr\": null}").unwrap());
    assert_eq!((nodes[0].name.as_str(), nodes[1].id), ("x", 5));
}

#[test]
fn a_workload_graph_has_its_fields_and_keeps_the_rest() {
    let text = r#"{
      "workload_graph": [
        {"Id": 216, "Name": "a", "NodeType": 4, "ctrlDeps": [3], "data_deps": [], "runtime": 318,
         "is_cpu_op": true},
        {"Id": 217, "Name": "b", "NodeType": 7, "data_deps": [216], "runtime": 2.5, "is_cpu_op": false,
         "tensor_size": 8, "comm_type": 6, "comm_priority": 0, "comm_size": 1024, "comm_src": 0,
         "comm_dst": 1, "comm_tag": 2, "note": "kept", "ratio": 0.5, "dims": [true, false], "none": null}
      ],
      "workload_name": "w", "ngpus": 8
    }"#;
    let (metadata, nodes) = decode_trace(&open_pasted_text(text).unwrap());
    let named = build_attribute("workload_name", Value::StringVal("w".to_owned()));
    assert_eq!(
        metadata.attr,
        [named, build_attribute("ngpus", Value::Int64Val(8))]
    );
    let first = Node {
        id: 216,
        name: "a".to_owned(),
        r#type: 4,
        ctrl_deps: vec![3],
        duration_micros: 318,
        attr: vec![build_attribute("is_cpu_op", Value::BoolVal(true))],
        ..Node::default()
    };
    let dims = proto::BoolList {
        values: vec![true, false],
    };
    let second = Node {
        id: 217,
        name: "b".to_owned(),
        r#type: 7,
        data_deps: vec![216],
        duration_micros: 2,
        attr: vec![
            build_attribute("is_cpu_op", Value::BoolVal(false)),
            build_attribute("tensor_size", Value::Uint64Val(8)),
            build_attribute("comm_type", Value::Int64Val(6)),
            build_attribute("comm_priority", Value::Int32Val(0)),
            build_attribute("comm_size", Value::Int64Val(1024)),
            build_attribute("comm_src", Value::Int32Val(0)),
            build_attribute("comm_dst", Value::Int32Val(1)),
            build_attribute("comm_tag", Value::Int32Val(2)),
            build_attribute("note", Value::StringVal("kept".to_owned())),
            build_attribute("ratio", Value::DoubleVal(0.5)),
            build_attribute("dims", Value::BoolList(dims)),
            AttributeProto {
                name: "none".to_owned(),
                ..AttributeProto::default()
            },
            build_attribute("duration_ns", Value::Int64Val(2500)),
        ],
        ..Node::default()
    };
    assert_eq!(nodes, [first, second]);
}

#[test]
fn nodes_of_the_tensor_graph_generator_are_read() {
    let text = r#"{"nodes": [
        {"id": 1, "name": "mm", "node_type": "comp_node", "data_deps": [], "ctrl_deps": [], "num_ops": 64,
         "tensor_size": 96, "op_type": "M", "y_tensor_size": 32},
        {"id": 2, "name": "ar", "node_type": "coll_comm_node", "data_deps": [1], "ctrl_deps": [],
         "comm_size": 32, "comm_type": "REDUCE_SCATTER", "comm_group": 5},
        {"id": 3, "name": "s", "node_type": "comm_send_node", "data_deps": [2], "ctrl_deps": [1],
         "comm_size": 8, "comm_tag": 1, "comm_dst": 4},
        {"id": 4, "name": "r", "node_type": "comm_recv_node", "data_deps": [], "ctrl_deps": []},
        {"id": 5, "name": "l", "node_type": "mem_load_node", "data_deps": [], "ctrl_deps": []},
        {"id": 6, "name": "w", "node_type": "mem_store_node", "data_deps": [], "ctrl_deps": []}]}"#;
    let (_, nodes) = decode_trace(&open_pasted_text(text).unwrap());
    let types: Vec<i32> = nodes.iter().map(|node| node.r#type).collect();
    assert_eq!(types, [4, 7, 5, 6, 2, 3]);
    assert_eq!(
        nodes[0].attr,
        [
            build_attribute("num_ops", Value::Int64Val(64)),
            build_attribute("tensor_size", Value::Uint64Val(96)),
            build_attribute("op_type", Value::StringVal("M".to_owned())),
            build_attribute("y_tensor_size", Value::Int64Val(32)),
        ]
    );
    assert_eq!(
        nodes[1].attr[1],
        build_attribute("comm_type", Value::Int64Val(7))
    );
    assert_eq!(
        nodes[1].attr[2],
        build_attribute("comm_group", Value::Int32Val(5))
    );
    assert_eq!(
        (&nodes[2].data_deps[..], &nodes[2].ctrl_deps[..]),
        (&[2][..], &[1][..])
    );
}

#[test]
fn errors_name_line_column_and_node() {
    for (text, expected) in [
        (
            "{\"version\":\"x\"}\n{\"id\": \"5\",\n \"type\": \"COMP\"}",
            "line 3, column 10, node 5: expected one of",
        ),
        (
            "[{\"id\": 1},\n {\"id\": 2, \"dataDeps\": [\"x\"]}]",
            "line 2, column 25, node 2: expected a number",
        ),
        (
            "[{\"id\": 1} {}]",
            "line 1, column 12: found `{`, expected `,` or `]`",
        ),
        ("[{\"id\": 1}] x", "found text after the end of the array"),
        (
            "{\"id\": 1}\n5",
            "line 2, column 1: found `5`, expected an object",
        ),
        (
            "{\"workload_graph\": [\n{\"Id\": 4, \"NodeType\": 9}]}",
            "line 2, column 23, node 4: expected a node type",
        ),
        (
            "{\"workload_graph\": [\n{\"Name\": \"x\"}]}",
            "line 2, column 1: a node without an id",
        ),
        (
            "{\"nodes\": [{\"id\": 4, \"comm_type\": \"SUM\"}]}",
            "node 4: expected one of ALL_REDUCE",
        ),
        (
            "{\"nodes\": [{\"id\": 4, \"x\": {}}]}",
            "node 4: expected a number, text, a boolean or a list of these as the attribute's value",
        ),
        ("{\"nodes\": [], \"nodes\": []}", "a second `nodes`"),
        ("{\"nodes\": [", "the end of the text"),
        (
            "{\"schema\": \"1.0.1\", \"nodes\": []}",
            "a host trace of PyTorch",
        ),
        ("{\"traceEvents\": []}", "a Kineto trace of PyTorch"),
        ("{\"1\": [0, 1]}", "the JSON is not an execution trace"),
        ("[[]]", "is not an execution trace"),
    ] {
        let result = open_pasted_text(text).and_then(|bytes| {
            let mut frames = chakram_trace::format::wire::FrameCursor::new(&bytes);
            frames.next_record().map(drop).map_err(|e| e.to_string())
        });
        let error = result.unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

/// The two forms of one real trace must agree on their common fields. The names in the text were changed by hand, so
/// the test compares only their lengths.
#[test]
fn et_and_json_of_a_real_trace_agree() {
    let Some(et) = corpus_path_or_count_skip("captures/gpu/chakra_json/chakra.0.et.zst") else {
        return;
    };
    let json =
        corpus_path_or_count_skip("captures/gpu/chakra_json/chakra.0.json.zst").expect("beside it");
    let (_, et) = decode_trace(
        DecompressedTraceFile::open_as_current_schema(&et)
            .unwrap()
            .as_slice(),
    );
    let (_, json) = decode_trace(
        DecompressedTraceFile::open_as_current_schema(&json)
            .unwrap()
            .as_slice(),
    );
    assert_eq!((et.len(), json.len()), (3664, 3664));
    let mut edges = 0;
    for (a, b) in et.iter().zip(&json) {
        assert_eq!(
            (a.id, a.r#type, a.name.len()),
            (b.id, b.r#type, b.name.len())
        );
        assert_eq!(a.data_deps, b.data_deps, "node {}", a.id);
        assert_eq!(a.duration_micros, b.duration_micros, "node {}", a.id);
        let host = |node: &Node| node.attr.iter().find(|a| a.name == "is_cpu_op").cloned();
        assert_eq!(host(a), host(b), "node {}", a.id);
        edges += b.data_deps.len();
    }
    assert_eq!(edges, 181_878);
    let small = corpus_path_or_count_skip("captures/gpu/chakra_json/small_chakra.0.json.zst")
        .expect("beside it");
    let (metadata, nodes) = decode_trace(
        DecompressedTraceFile::open_as_current_schema(&small)
            .unwrap()
            .as_slice(),
    );
    assert_eq!((metadata.attr.len(), nodes.len()), (3, 7));
    let host = corpus_path_or_count_skip("captures/gpu/chakra_json/1.0.2-chakra.0.0.4.json.zst")
        .expect("beside it");
    let error = DecompressedTraceFile::open_as_current_schema(&host)
        .unwrap_err()
        .to_string();
    assert!(error.contains("a host trace of PyTorch"), "{error}");
}

#[test]
fn no_capture_is_taken_for_a_trace() {
    let Some(captures) = corpus_path_or_count_skip("captures/pytorch") else {
        return;
    };
    let mut seen = 0;
    for folder in std::fs::read_dir(&captures).unwrap() {
        let folder = folder.unwrap().path();
        let found = chakram_trace::format::file::discover_traces(&folder);
        if folder.is_dir() && !has_et_file(&folder) {
            let error = found.unwrap_err().to_string();
            assert!(
                error.contains("no usable traces"),
                "{}: {error}",
                folder.display()
            );
            seen += 1;
        }
    }
    assert!(seen > 5, "{seen} folders");
}

fn has_et_file(folder: &Path) -> bool {
    let names = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().file_name());
    names
        .into_iter()
        .any(|name| name.to_string_lossy().contains(".et"))
}

#[test]
fn deep_nesting_and_long_numbers_end_with_an_error() {
    for text in [
        format!("{{\"id\": 1, \"x\": {}", "[".repeat(100_000)),
        format!("{{\"workload_graph\": {}", "[".repeat(100_000)),
        format!("{{\"id\": {}}}", "9".repeat(100_000)),
        format!(
            "{{\"nodes\": [{{\"id\": 1, \"x\": {}}}]}}",
            "[".repeat(100_000)
        ),
    ] {
        assert!(open_pasted_text(&text).is_err());
    }
    let read = parse_text_trace(b"{\"nodes\": []}", JsonTraceFormat::Nodes).unwrap();
    assert_eq!(decode_trace(&read.bytes).1.len(), 0);
}
