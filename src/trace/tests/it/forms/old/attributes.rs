//! Encodes attributes of schema 0.0.2 and of both variants of schema 0.0.3. The attributes distinguish these three
//! generations.

use super::{
    TYPES, build_attribute, build_node_head, decode_trace, encode_file,
    upgrade_and_check_detected_generation,
};
use chakram_trace::format::old_schemas::{SchemaGeneration, upgrade_contents};
use chakram_trace::format::proto::{self, AttributeProto, IoInfo, Node, attribute_proto::Value};
use testkit::wire::WireMessage;

/// Encoding of attributes in one generation.
pub struct SchemaGenerationAttributeEncoding {
    pub generation: SchemaGeneration,
    /// Field numbers of boolean, float, unsigned, signed and text values, in this order. The field numbers of the lists
    /// follow in the same order.
    pub fields: [Option<u64>; 5],
    kinds: u64,
}

pub const ATTRIBUTES: [SchemaGenerationAttributeEncoding; 3] = [
    SchemaGenerationAttributeEncoding {
        generation: SchemaGeneration::V002,
        fields: [None, Some(4), None, Some(5), Some(6)],
        kinds: 3,
    },
    SchemaGenerationAttributeEncoding {
        generation: SchemaGeneration::V003A,
        fields: [Some(4), Some(5), None, Some(6), Some(7)],
        kinds: 4,
    },
    SchemaGenerationAttributeEncoding {
        generation: SchemaGeneration::V003B,
        fields: [Some(4), Some(5), Some(6), Some(7), Some(8)],
        kinds: 5,
    },
];

impl SchemaGenerationAttributeEncoding {
    pub fn build_named_attribute(&self, name: &str, field: u64) -> WireMessage {
        WireMessage::default()
            .with_bytes(1, name)
            .with_number(2, field - 4)
    }

    pub fn build_int_attribute(&self, name: &str, value: u64) -> WireMessage {
        let field = self.fields[3].expect("all have it");
        self.build_named_attribute(name, field)
            .with_number(field, value)
    }

    /// Returns one attribute of every type, each with its expected upgrade.
    fn list_attributes_with_expected_upgrades(&self) -> Vec<(WireMessage, AttributeProto)> {
        let mut all = Vec::new();
        let mut push =
            |name: &str, field, wire: &dyn Fn(WireMessage, u64) -> WireMessage, value| {
                if let Some(field) = field {
                    let wire = wire(
                        self.build_named_attribute(name, field).with_bytes(3, "doc"),
                        field,
                    );
                    let attribute = AttributeProto {
                        doc_string: "doc".to_owned(),
                        ..build_attribute(name, value)
                    };
                    all.push((wire, attribute));
                }
            };
        let [bool, float, uint, int, text] = self.fields;
        push("b", bool, &|w, f| w.with_number(f, 1), Value::BoolVal(true));
        push(
            "f",
            float,
            &|w, f| w.with_float(f, 0.1),
            Value::FloatVal(0.1),
        );
        push(
            "u",
            uint,
            &|w, f| w.with_number(f, u64::MAX),
            Value::Uint64Val(u64::MAX),
        );
        push(
            "i",
            int,
            &|w, f| w.with_number(f, -5_i64 as u64),
            Value::Int64Val(-5),
        );
        push(
            "s",
            text,
            &|w, f| w.with_bytes(f, "é"),
            Value::StringVal("é".to_owned()),
        );
        let bytes = vec![0xff_u8, 0];
        push(
            "x",
            text,
            &|w, f| w.with_bytes(f, [0xff, 0]),
            Value::BytesVal(bytes.clone().into()),
        );
        let list = |field: Option<u64>| field.map(|field| field + self.kinds);
        let bools = proto::BoolList {
            values: vec![true, false],
        };
        push(
            "bs",
            list(bool),
            &|w, f| w.with_repeated_number(f, &[1, 0]),
            Value::BoolList(bools),
        );
        let floats = proto::FloatList {
            values: vec![1.5, -0.0],
        };
        push(
            "fs",
            list(float),
            &|w, f| w.with_float(f, 1.5).with_float(f, -0.0),
            Value::FloatList(floats),
        );
        let uints = proto::Uint64List { values: vec![3, 4] };
        push(
            "us",
            list(uint),
            &|w, f| w.with_repeated_number(f, &[3, 4]),
            Value::Uint64List(uints),
        );
        let ints = proto::Int64List {
            values: vec![-1, 300],
        };
        push(
            "is",
            list(int),
            &|w, f| w.with_repeated_number(f, &[u64::MAX, 300]),
            Value::Int64List(ints),
        );
        let texts = proto::StringList {
            values: vec!["a".to_owned(), String::new()],
        };
        push(
            "ss",
            list(text),
            &|w, f| w.with_bytes(f, "a").with_bytes(f, ""),
            Value::StringList(texts),
        );
        let chunks = proto::BytesList {
            values: vec![bytes.into(), "a".into()],
        };
        push(
            "xs",
            list(text),
            &|w, f| w.with_bytes(f, [0xff, 0]).with_bytes(f, "a"),
            Value::BytesList(chunks),
        );
        all
    }
}

#[test]
fn attributes_of_0_0_2_and_0_0_3_keep_their_types() {
    for of in &ATTRIBUTES {
        let pairs = of.list_attributes_with_expected_upgrades();
        let texts = [(5, "v"), (6, "s"), (7, "t"), (8, "w"), (10, "u")];
        let node = texts
            .iter()
            .fold(build_node_head(9, "n", 3, &[8, 8]), |w, (f, t)| {
                w.with_bytes(*f, t)
            });
        let unset = WireMessage::default()
            .with_bytes(1, "unset")
            .with_number(2, 0);
        let attributes = pairs.iter().map(|(wire, _)| wire.clone()).chain([unset]);
        let node = attributes.fold(node, |node, wire| node.with_message(11, wire));
        let (_, nodes) = decode_trace(&upgrade_and_check_detected_generation(
            &encode_file([node]),
            of.generation,
        ));
        let io = |values: &str, shapes: &str, types: &str| {
            Some(IoInfo {
                values: values.to_owned(),
                shapes: shapes.to_owned(),
                types: types.to_owned(),
            })
        };
        let unset = AttributeProto {
            name: "unset".to_owned(),
            ..AttributeProto::default()
        };
        let expected = Node {
            id: 9,
            name: "n".to_owned(),
            r#type: if of.generation == SchemaGeneration::V002 {
                4
            } else {
                3
            },
            data_deps: vec![8, 8],
            inputs: io("v", "s", "t"),
            outputs: io("w", "", "u"),
            attr: pairs.into_iter().map(|(_, a)| a).chain([unset]).collect(),
            ..Node::default()
        };
        assert_eq!(nodes, [expected], "{}", of.generation);
    }
}

/// Returns a node that is valid only in the generation of `of`.
pub fn build_generation_node(
    of: &SchemaGenerationAttributeEncoding,
    id: u64,
    kind: u64,
) -> WireMessage {
    let float = of.fields[1].expect("all have it");
    let text = of.fields[4].expect("all have it");
    build_node_head(id, "n", kind, &[])
        .with_message(
            11,
            of.build_named_attribute("x", float).with_float(float, 1.0),
        )
        .with_message(
            11,
            of.build_named_attribute("y", text).with_bytes(text, "z"),
        )
}

#[test]
fn types_and_collectives_of_0_0_2_and_0_0_3_are_renumbered() {
    for of in &ATTRIBUTES {
        let types: &[i32] = match of.generation {
            SchemaGeneration::V002 => &TYPES,
            _ => &[0, 1, 2, 3, 4, 5, 6, 7],
        };
        let contents =
            encode_file((0..types.len() as u64).map(|kind| build_generation_node(of, kind, kind)));
        let (_, nodes) = decode_trace(&upgrade_and_check_detected_generation(
            &contents,
            of.generation,
        ));
        let found: Vec<i32> = nodes.iter().map(|node| node.r#type).collect();
        assert_eq!(found, types, "{}", of.generation);

        let collective = types.len() as u64 - 1;
        let call = |kind| {
            build_generation_node(of, kind, collective)
                .with_message(11, of.build_int_attribute("comm_type", kind))
        };
        let (_, nodes) = decode_trace(&upgrade_and_check_detected_generation(
            &encode_file((0..5).map(call)),
            of.generation,
        ));
        // The kinds are all-reduce, all-to-all, all-gather, reduce-scatter and broadcast.
        for (node, kind) in nodes.iter().zip([0, 6, 2, 7, 5]) {
            assert_eq!(
                node.attr[2],
                build_attribute("comm_type", Value::Int64Val(kind))
            );
        }
        let error = upgrade_contents(&encode_file([call(0), call(5)]), None)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("record 1") && error.contains("collective 5"),
            "{error}"
        );
    }
}

#[test]
fn attribute_names_of_old_schemas_become_current_ones() {
    for of in &ATTRIBUTES {
        let node = build_generation_node(of, 1, 4)
            .with_message(11, of.build_int_attribute("runtime", 318))
            .with_message(11, of.build_int_attribute("is_host_op", 1));
        let (_, nodes) = decode_trace(&upgrade_and_check_detected_generation(
            &encode_file([node]),
            of.generation,
        ));
        assert_eq!(nodes[0].duration_micros, 318);
        let names: Vec<_> = nodes[0].attr.iter().map(|a| a.name.as_str()).collect();
        assert_eq!(names, ["x", "y", "is_cpu_op"]);
    }
}
