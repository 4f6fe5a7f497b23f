//! Checks that a file of any older generation is upgraded to the expected result. The old files are written field by
//! field from tables.

use super::decode_trace;
use chakram_trace::format::file::DecompressedTraceFile;
use chakram_trace::format::old_schemas::{SchemaGeneration, upgrade_contents};
use chakram_trace::format::proto::{self, AttributeProto, Node, attribute_proto::Value};
use chakram_trace::graph::{EnforcedDependencyKinds, Graph};
use testkit::wire::{WireMessage, encode_file};

mod attributes;

use attributes::{ATTRIBUTES, build_generation_node};

fn upgrade_and_check_detected_generation(contents: &[u8], generation: SchemaGeneration) -> Vec<u8> {
    let found = upgrade_contents(contents, None).expect("it is sound");
    let found = found.expect("it is old");
    assert_eq!(found.generation, generation);
    // The result must be the same for a given generation and for a detected one.
    let said = upgrade_contents(contents, Some(generation))
        .unwrap()
        .unwrap();
    assert_eq!(said.bytes, found.bytes);
    found.bytes
}

fn build_attribute(name: &str, value: Value) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        value: Some(value),
        ..AttributeProto::default()
    }
}

fn build_node_head(id: u64, name: &str, kind: u64, parents: &[u64]) -> WireMessage {
    WireMessage::default()
        .with_number(1, id)
        .with_bytes(2, name)
        .with_number(3, kind)
        .with_repeated_number(4, parents)
}

/// Since 0.0.3, node types have other numbers. This table is indexed by the numbers before 0.0.3.
const TYPES: [i32; 7] = [0, 2, 3, 4, 5, 6, 7];

#[test]
fn fixed_fields_of_0_0_1_become_fields_and_attributes() {
    // Every field has a distinct value. Each type and each collective occurs once.
    let all = build_node_head(7, "all", 3, &[3, 5])
        .with_repeated_number(5, &[1])
        .with_number(6, 1 << 40)
        .with_number(7, 55)
        .with_number(8, 2)
        .with_number(9, 11)
        .with_number(10, 1)
        .with_number(11, 12)
        .with_number(12, 1 << 33)
        .with_number(13, 0)
        .with_repeated_number(14, &[1, 0, 1])
        .with_number(15, 4)
        .with_number(16, 0)
        .with_number(17, 6)
        .with_number(18, 1 << 34)
        .with_number(19, 9)
        .with_number(20, 2);
    let (metadata, nodes) = decode_trace(&upgrade_and_check_detected_generation(
        &encode_file([all]),
        SchemaGeneration::V001,
    ));
    assert_eq!(
        (metadata.version.as_str(), metadata.attr.len()),
        ("0.0.4", 0)
    );
    let bools = proto::BoolList {
        values: vec![true, false, true],
    };
    let expected = Node {
        id: 7,
        name: "all".to_owned(),
        r#type: 4,
        data_deps: vec![3, 5],
        duration_micros: 55,
        attr: vec![
            build_attribute("tensor_loc", Value::Uint32Val(1)),
            build_attribute("tensor_size", Value::Uint64Val(1 << 40)),
            build_attribute("input_tensor_loc", Value::Uint32Val(2)),
            build_attribute("output_tensor_loc", Value::Uint32Val(1)),
            build_attribute("input_tensor_size", Value::Uint64Val(11)),
            build_attribute("output_tensor_size", Value::Uint64Val(12)),
            build_attribute("num_ops", Value::Int64Val(1 << 33)),
            build_attribute("involved_dim", Value::BoolList(bools)),
            build_attribute("comm_group", Value::Int32Val(4)),
            build_attribute("comm_src", Value::Int32Val(0)),
            build_attribute("comm_dst", Value::Int32Val(6)),
            build_attribute("comm_size", Value::Int64Val(1 << 34)),
            build_attribute("comm_tag", Value::Int32Val(9)),
            build_attribute("comm_priority", Value::Int32Val(2)),
        ],
        ..Node::default()
    };
    assert_eq!(nodes, [expected]);
}

#[test]
fn types_and_collectives_of_0_0_1_are_renumbered() {
    let types = (0..7).map(|kind| {
        build_node_head(kind, "n", kind, &[])
            .with_number(13, 1)
            .with_number(6, 1)
    });
    let (_, nodes) = decode_trace(&upgrade_and_check_detected_generation(
        &encode_file(types),
        SchemaGeneration::V001,
    ));
    let found: Vec<i32> = nodes.iter().map(|node| node.r#type).collect();
    assert_eq!(found, TYPES);
    // The collectives are all-reduce, all-to-all, all-gather and reduce-scatter.
    let collectives = (1..5).map(|kind| {
        build_node_head(kind, "c", 6, &[])
            .with_number(13, kind)
            .with_number(18, 8)
    });
    let (_, nodes) = decode_trace(&upgrade_and_check_detected_generation(
        &encode_file(collectives),
        SchemaGeneration::V001,
    ));
    let found: Vec<_> = nodes
        .iter()
        .map(|node| node.attr[0].value.clone())
        .collect();
    let expected = [0, 6, 2, 7].map(|kind| Some(Value::Int64Val(kind)));
    assert_eq!(found, expected);
    let none = encode_file([build_node_head(1, "c", 6, &[])
        .with_number(13, 0)
        .with_number(18, 8)]);
    let error = upgrade_contents(&none, None).unwrap_err().to_string();
    assert!(
        error.contains("record 0, byte 1, node 1: collective 0"),
        "{error}"
    );
}

#[test]
fn memory_nodes_of_0_0_1_read_bytes_from_the_fields_that_state_them() {
    let contents = encode_file([
        build_node_head(1, "load", 1, &[])
            .with_number(8, 2)
            .with_number(9, 100),
        build_node_head(2, "store", 2, &[1])
            .with_number(10, 1)
            .with_number(11, 200),
        build_node_head(3, "load", 1, &[2])
            .with_number(5, 1)
            .with_number(6, 300)
            .with_number(9, 1),
    ]);
    let (_, nodes) = decode_trace(&upgrade_and_check_detected_generation(
        &contents,
        SchemaGeneration::V001,
    ));
    let moved = [(2, 100), (1, 200), (1, 300)];
    for (node, (place, bytes)) in nodes.iter().zip(moved) {
        assert_eq!(
            node.attr[0],
            build_attribute("tensor_loc", Value::Uint32Val(place))
        );
        assert_eq!(
            node.attr[1],
            build_attribute("tensor_size", Value::Uint64Val(bytes))
        );
    }
    let graph = Graph::read_graph(
        &upgrade_and_check_detected_generation(&contents, SchemaGeneration::V001),
        0,
        EnforcedDependencyKinds::Auto,
    );
    assert_eq!(graph.unwrap().0.edge_count(), 2);
}

#[test]
fn metadata_of_0_0_3_and_of_the_first_0_0_4_is_kept() {
    for of in &ATTRIBUTES[1..] {
        let text = of.fields[4].expect("all have it");
        let metadata = WireMessage::default().with_message(
            1,
            of.build_named_attribute("schema", text)
                .with_bytes(text, "1.0.1"),
        );
        let contents = encode_file([metadata, build_generation_node(of, 1, 4)]);
        let (metadata, nodes) = decode_trace(&upgrade_and_check_detected_generation(
            &contents,
            of.generation,
        ));
        let schema = build_attribute("schema", Value::StringVal("1.0.1".to_owned()));
        assert_eq!((metadata.attr, nodes.len()), (vec![schema], 1));
    }
    // The metadata has its attributes in field 1, as in the earliest files of schema 0.0.4.
    let schema = WireMessage::default()
        .with_bytes(1, "schema")
        .with_bytes(29, "x");
    let node = build_node_head(1, "n", 4, &[]).with_message(
        10,
        WireMessage::default()
            .with_bytes(1, "num_ops")
            .with_number(9, 5),
    );
    let contents = encode_file([WireMessage::default().with_message(1, schema), node.clone()]);
    let (metadata, nodes) = decode_trace(&upgrade_and_check_detected_generation(
        &contents,
        SchemaGeneration::V004,
    ));
    assert_eq!(
        metadata.attr,
        [build_attribute("schema", Value::StringVal("x".to_owned()))]
    );
    assert_eq!(
        nodes[0].attr,
        [build_attribute("num_ops", Value::Int64Val(5))]
    );
    // The file has no metadata at all, and the upgrade must not lose its first node.
    let contents = encode_file([node]);
    let (_, nodes) = decode_trace(&upgrade_and_check_detected_generation(
        &contents,
        SchemaGeneration::V004,
    ));
    assert_eq!((nodes.len(), nodes[0].id), (1, 1));
}

#[test]
fn current_schema_files_are_not_upgraded() {
    let metadata = WireMessage::default().with_bytes(1, "0.0.4");
    let attribute = WireMessage::default()
        .with_bytes(1, "schema")
        .with_bytes(29, "x");
    let node = build_node_head(1, "n", 4, &[]);
    for first in [
        metadata.clone(),
        WireMessage::default().with_message(2, attribute.clone()),
        metadata.clone().with_message(2, attribute),
        // The first record has an unknown field, or is empty.
        metadata.with_number(99, 1),
        WireMessage::default(),
    ] {
        let contents = encode_file([first, node.clone()]);
        assert!(upgrade_contents(&contents, None).unwrap().is_none());
        assert!(
            upgrade_contents(&contents, Some(SchemaGeneration::V004))
                .unwrap()
                .is_none()
        );
    }
    for garbage in [&b""[..], b"\x05hello", b"\xff\xff\xff\xff\xff\xff"] {
        assert!(upgrade_contents(garbage, None).unwrap().is_none());
    }
}

#[test]
fn traces_of_ambiguous_generation_are_refused_if_the_readings_differ() {
    // Type 3 was a compute node in old generations, and is a store in the current generation.
    let plain = encode_file([
        build_node_head(1, "n", 0, &[]),
        build_node_head(2, "n", 3, &[]),
    ]);
    let error = upgrade_contents(&plain, None).unwrap_err().to_string();
    assert!(error.contains("record 1, byte "), "{error}");
    assert!(
        error.contains("0.0.1 or 0.0.2 or 0.0.3a or 0.0.3b"),
        "{error}"
    );
    assert!(error.contains("with `generation`"), "{error}");
    let said = |generation| {
        decode_trace(
            &upgrade_contents(&plain, Some(generation))
                .unwrap()
                .unwrap()
                .bytes,
        )
        .1
    };
    assert_eq!(said(SchemaGeneration::V002)[1].r#type, 4);
    assert_eq!(said(SchemaGeneration::V003A)[1].r#type, 3);
    // The reader accepts nodes that have the same form in all generations.
    assert!(
        upgrade_contents(&encode_file([build_node_head(1, "n", 0, &[])]), None)
            .unwrap()
            .is_some()
    );
    // Both generations of 0.0.3 read the attribute in the same way, except that a positive number is signed in one and
    // unsigned in the other.
    let of = &ATTRIBUTES[1];
    let bool = of.fields[0].expect("it has it");
    let node = build_node_head(1, "n", 7, &[])
        .with_message(11, of.build_named_attribute("b", bool).with_number(bool, 1))
        .with_message(11, of.build_int_attribute("comm_size", 8));
    assert!(
        upgrade_contents(&encode_file([node.clone()]), None)
            .unwrap()
            .is_some()
    );
    let negative = node.with_message(11, of.build_int_attribute("comm_tag", u64::MAX));
    let error = upgrade_contents(&encode_file([negative]), None)
        .unwrap_err()
        .to_string();
    assert!(error.contains("0.0.3a or 0.0.3b"), "{error}");
    // Each of the two records is valid in only one generation, which is not the same for both.
    let mixed = encode_file([
        build_generation_node(&ATTRIBUTES[0], 1, 3),
        build_generation_node(&ATTRIBUTES[2], 2, 4),
    ]);
    let error = upgrade_contents(&mixed, None).unwrap_err().to_string();
    assert!(
        error.contains("record 1, byte ")
            && error.contains("before this one are of generation 0.0.2"),
        "{error}"
    );
    // The last record has an unknown field, so it rules out all remaining generations.
    let strange = encode_file([
        build_node_head(1, "n", 3, &[]),
        build_node_head(2, "n", 3, &[]).with_number(40, 1),
    ]);
    let error = upgrade_contents(&strange, None).unwrap_err().to_string();
    assert!(
        error.contains("record 1, byte ") && error.contains("contradict"),
        "{error}"
    );
    assert!(
        error.contains("0.0.2: the record has fields that are not in the schema"),
        "{error}"
    );
}

#[test]
fn an_old_file_is_opened_like_any_other_and_errors_name_its_own_records() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.0.eg");
    let contents = encode_file([
        build_node_head(10, "a", 3, &[])
            .with_number(7, 5)
            .with_number(12, 1),
        build_node_head(11, "b", 3, &[10]).with_number(7, 6),
        build_node_head(12, "c", 6, &[11]).with_number(13, 1),
    ]);
    std::fs::write(&path, zstd::encode_all(&contents[..], 3).unwrap()).unwrap();
    let opened = DecompressedTraceFile::open_as_current_schema(&path).unwrap();
    // The last node is a collective without a size. The node is record 2, and its message starts at byte `start`.
    let error = Graph::read_graph(opened.as_slice(), 0, EnforcedDependencyKinds::Auto).unwrap_err();
    let start = contents.len()
        - build_node_head(12, "c", 6, &[11])
            .with_number(13, 1)
            .0
            .len();
    let error = opened.locate_error_in_original_file(error).to_string();
    let expected = format!("job.0.eg, record 2, byte {start}, node 12");
    assert!(error.contains(&expected), "{error} but {expected}");
    let fine = encode_file([
        build_node_head(10, "a", 3, &[]).with_number(7, 5),
        build_node_head(11, "b", 3, &[10]).with_number(7, 6),
    ]);
    std::fs::write(&path, fine).unwrap();
    let opened = DecompressedTraceFile::open_as_current_schema(&path).unwrap();
    let (graph, _) =
        Graph::read_graph(opened.as_slice(), 0, EnforcedDependencyKinds::Data).unwrap();
    assert_eq!((graph.len(), graph.edge_count()), (2, 1));
}
