//! Checks which names and fields of a record are hashed, kept or removed, and that equal names get equal hashes on all
//! ranks.

use super::*;
use chakram_trace::format::profiler_cost::ProfilerCostBasis;
use chakram_trace::format::proto::attribute_proto::Value;
use chakram_trace::format::proto::{AttributeProto, BoolList, GlobalMetadata, IoInfo, Node};
use prost::Message;

fn build_attribute_from_proto_value(name: &str, value: Value) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        value: Some(value),
        ..AttributeProto::default()
    }
}

fn build_text_attribute(name: &str, value: &str) -> AttributeProto {
    build_attribute_from_proto_value(name, Value::StringVal(value.to_owned()))
}

fn encode_trace(metadata: &GlobalMetadata, nodes: &[Vec<u8>]) -> Vec<u8> {
    let mut file = metadata.encode_length_delimited_to_vec();
    for node in nodes {
        put_frame(&mut file, node);
    }
    file
}

fn put_frame(file: &mut Vec<u8>, message: &[u8]) {
    prost::encoding::encode_varint(message.len() as u64, file);
    file.extend_from_slice(message);
}

fn decode_trace(mut bytes: &[u8]) -> (GlobalMetadata, Vec<Node>) {
    let metadata = GlobalMetadata::decode_length_delimited(&mut bytes).unwrap();
    let mut nodes = Vec::new();
    while !bytes.is_empty() {
        nodes.push(Node::decode_length_delimited(&mut bytes).unwrap());
    }
    (metadata, nodes)
}

fn build_anonymiser() -> TraceAnonymiser {
    TraceAnonymiser::new(b"key", true, vec!["mine.*".to_owned()])
}

#[test]
fn only_what_replays_read_stays() {
    let mut collective = Node {
        id: 3,
        name: "all of bob's gradients".into(),
        r#type: 7,
        ctrl_deps: vec![1],
        data_deps: vec![2],
        start_time_micros: 99,
        duration_micros: 5,
        inputs: Some(IoInfo {
            values: "['/home/bob']".into(),
            ..IoInfo::default()
        }),
        outputs: Some(IoInfo::default()),
        attr: vec![
            build_attribute_from_proto_value("comm_type", Value::Int64Val(0)),
            build_text_attribute("comm_size", " 64.0 "),
            build_text_attribute("pg_name", "bobs_group"),
            build_text_attribute("dtype", "c10::Half"),
            build_attribute_from_proto_value(
                "involved_dim",
                Value::BoolList(BoolList {
                    values: vec![true, false],
                }),
            ),
            build_attribute_from_proto_value("rf_id", Value::Int64Val(4)),
            build_text_attribute("et_id", "bob"),
            build_text_attribute("op_schema", "aten::mm(Tensor self)"),
            build_attribute_from_proto_value("bobs_number", Value::Int64Val(4)),
        ],
    }
    .encode_to_vec();
    collective.extend([0xc2, 0x02, 3, b'b', b'o', b'b']);
    let metadata = GlobalMetadata {
        version: "bob's".into(),
        attr: vec![
            build_attribute_from_proto_value("captured_ns", Value::Uint64Val(7)),
            build_text_attribute("lane.1000", "bob's stream"),
            build_text_attribute(roles::ATTRIBUTE, "tensor 1-2, bobs 3-4"),
            build_text_attribute(
                work_amounts::ATTRIBUTE,
                "steps 1, samples 16, model_flops 5, bob 6",
            ),
            build_attribute_from_proto_value("captured_steps", Value::Uint64Val(3)),
            build_attribute_from_proto_value("unprofiled_step_ns", Value::Uint64Val(1500)),
            build_attribute_from_proto_value("profiler_record_ns", Value::Uint64Val(700)),
            build_attribute_from_proto_value("profiler_record_low_ns", Value::Uint64Val(600)),
            build_attribute_from_proto_value("profiler_record_high_ns", Value::Uint64Val(900)),
            build_text_attribute("profiler_cost_basis", "views"),
            build_text_attribute(scan::CORE, "3,1"),
            build_text_attribute("input_file", "/home/bob/x"),
            build_attribute_from_proto_value("pid", Value::Uint64Val(1)),
        ],
    };
    let before = encode_trace(&metadata, &[collective]);
    let (after, done) = build_anonymiser().anonymise_trace(&before).unwrap();
    let (metadata, nodes) = decode_trace(&after);
    assert_eq!(metadata.version, "0.0.4");
    assert_eq!(
        metadata.attr[0],
        build_attribute_from_proto_value("captured_ns", Value::Uint64Val(7))
    );
    let told = scan::read_metadata(RawRecord {
        number: 0,
        offset: 0,
        bytes: &metadata.encode_to_vec(),
    });
    let told = told.unwrap();
    assert_eq!(told.roles.role_of_group("2"), Some("tensor"));
    let hashed = told.roles.role_of_group("3").unwrap();
    assert!(
        hashed.starts_with("role-") && hashed.len() == 21,
        "{hashed}"
    );
    let amounts = work_amounts::JobSamplesAndModelFlops {
        steps: 1,
        samples: 16,
        tokens: None,
        model_flops: 5,
        attention: None,
        experts: false,
    };
    assert_eq!(told.amounts, Some(amounts));
    let cost = told.profiler.cost.unwrap();
    assert_eq!((cost.record_ns, cost.interval_ns), (700, [600, 900]));
    assert_eq!(cost.basis, ProfilerCostBasis::Views);
    let steps = told.profiler.unprofiled.unwrap();
    assert_eq!((steps.captured, steps.step.0), (3, 1_500_000));
    assert_eq!(told.core, Some([3, 1]));
    assert_eq!(metadata.attr.last().unwrap().name, "lane.1000");
    assert_eq!(metadata.attr.len(), 11);
    let [node] = &nodes[..] else {
        panic!("{nodes:?}")
    };
    let names: Vec<&str> = node.attr.iter().map(|a| &*a.name).collect();
    let kept = [
        "comm_type",
        "comm_size",
        "pg_name",
        "dtype",
        "involved_dim",
        "rf_id",
    ];
    assert_eq!(names, kept);
    assert_eq!(node.attr[1], build_text_attribute("comm_size", "64.0"));
    assert_eq!(
        node.attr[2],
        build_text_attribute("pg_name", &build_anonymiser().replace_group("bobs_group"))
    );
    assert_eq!(node.attr[3], build_text_attribute("dtype", "fp16"));
    assert_eq!(
        (&node.ctrl_deps[..], &node.data_deps[..]),
        (&[1][..], &[2][..])
    );
    assert_eq!((node.start_time_micros, node.duration_micros), (0, 5));
    assert_eq!((&node.inputs, &node.outputs), (&None, &None));
    assert!(
        node.name.starts_with("n-") && node.name.len() == 18,
        "{}",
        node.name
    );
    assert!(!after.windows(3).any(|bytes| bytes == b"bob"));
    // Five attributes are removed: two from the metadata record and three from the node. Four other fields are
    // removed: the start, the inputs, the outputs and the unknown field.
    assert_eq!((done.attributes, done.fields), (5, 4));
}

#[test]
fn names_are_alike_with_one_key_and_differ_with_another() {
    let one = build_anonymiser();
    assert_eq!(
        one.replace_name("secret_op"),
        build_anonymiser().replace_name("secret_op")
    );
    assert_ne!(one.replace_name("secret_op"), one.replace_name("secret_oq"));
    let other = TraceAnonymiser::new(b"other", true, vec![]);
    assert_ne!(
        one.replace_name("secret_op"),
        other.replace_name("secret_op")
    );
    // A group and a node with the same name have different hashes.
    assert_ne!(
        one.replace_name("x").unwrap()[2..],
        one.replace_group("x")[2..]
    );
    for kept in [
        "",
        "aten::mm",
        "nccl:all_reduce",
        "ProfilerStep#12",
        "mine.x/y",
    ] {
        assert_eq!(one.replace_name(kept), None, "{kept}");
    }
    for hashed in [
        "aten::/home/bob",
        "aten::",
        "xaten::mm",
        "aten::AKIAIOSFODNN7EXAMPLE",
    ] {
        assert!(one.replace_name(hashed).is_some(), "{hashed}");
    }
    let all = TraceAnonymiser::new(b"key", false, vec![]);
    assert!(all.replace_name("aten::mm").is_some());
    assert_eq!(
        (
            &*one.replace_group("0"),
            &*one.replace_group("12"),
            &*one.replace_group("")
        ),
        ("0", "12", "")
    );
}

#[test]
fn groups_have_one_name_in_nodes_and_declarations() {
    let groups = Node {
        id: 1,
        name: "bob: ## process_group:init ##".into(),
        r#type: 1,
        inputs: Some(IoInfo {
            values: r#"['[{"pg_name": "bobs", "pg_desc": "bob", "ranks": [1, 0]}, {"pg_name": "7", "ranks": []}]']"#.into(),
            ..IoInfo::default()
        }),
        ..Node::default()
    };
    let before = encode_trace(&GlobalMetadata::default(), &[groups.encode_to_vec()]);
    let (after, _) = build_anonymiser().anonymise_trace(&before).unwrap();
    let (_, nodes) = decode_trace(&after);
    assert_eq!(nodes[0].name, NODE_NAME);
    let values = &nodes[0].inputs.as_ref().unwrap().values;
    assert!(
        values.starts_with("['[") && values.ends_with("]']"),
        "{values}"
    );
    let read = parse_group_metadata(1, values).unwrap();
    let own = build_anonymiser().replace_group("bobs");
    let expected = DeclaredGroups::from([(own, vec![1, 0]), ("7".to_owned(), vec![])]);
    assert_eq!(read, expected);
}

#[test]
fn what_cannot_be_read_is_refused() {
    let odd = Node {
        id: 1,
        r#type: 99,
        ..Node::default()
    };
    let before = encode_trace(&GlobalMetadata::default(), &[odd.encode_to_vec()]);
    let error = build_anonymiser()
        .anonymise_trace(&before)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("record 1") && error.contains("node type 99"),
        "{error}"
    );
    assert!(build_anonymiser().anonymise_trace(&[]).is_err());
    assert!(
        build_anonymiser()
            .anonymise_trace(&before[..before.len() - 1])
            .is_err()
    );
}
