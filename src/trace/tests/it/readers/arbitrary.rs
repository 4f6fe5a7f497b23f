//! Generates nodes with arbitrary content, and unusual encodings of their records.

use super::build_attribute;
use chakram_trace::format::proto::attribute_proto::Value;
use chakram_trace::format::proto::{self, AttributeProto, IoInfo, Node};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

/// Every attribute that a reader uses, except `in_switch`. The list also has some attributes that readers ignore.
const NAMES: [&str; 30] = [
    "is_cpu_op",
    "num_ops",
    "tensor_size",
    "tensor_loc",
    "dtype",
    "stream",
    "tid",
    "duration_ns",
    "delay_ns",
    "wait_ns",
    "eager",
    "comm_type",
    "comm_size",
    "comm_src",
    "comm_dst",
    "comm_tag",
    "comm_root",
    "involved_dim",
    "involve_dims",
    "pg_name",
    "comm_group",
    "allocates.weights",
    "allocates.remote",
    "allocates.activations",
    "frees.activations",
    "frees.temporary",
    "frees.all",
    "op_schema",
    "",
    "comm_siz",
];

fn integer_strategy() -> impl Strategy<Value = i64> {
    prop_oneof![
        6 => 0_i64..10,
        1 => any::<i64>(),
        1 => any::<i32>().prop_map(i64::from),
        1 => prop::sample::select(vec![i64::MAX, i64::MIN, -1, 1 << 32, 1 << 62]),
    ]
}

fn float_strategy() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => (0_u32..10).prop_map(f64::from),
        1 => any::<f64>(),
        1 => prop::sample::select(vec![-0.0, 0.5, 1.8e19, 9.3e18, f64::NAN, f64::INFINITY]),
    ]
}

fn text_strategy() -> impl Strategy<Value = String> {
    const TEXTS: [&str; 24] = [
        "",
        "0",
        "007",
        "+3",
        "-3",
        "-0",
        " 5 ",
        "5.0",
        "5.5",
        "1e3",
        "nan",
        "True",
        "false",
        "fp8",
        "c10::BFloat16",
        "Half",
        "tp_0",
        "18446744073709551615",
        "18446744073709551616",
        "9223372036854775808",
        "-9223372036854775809",
        "inf",
        "é",
        "world",
    ];
    prop_oneof![4 => prop::sample::select(&TEXTS[..]).prop_map(str::to_owned), 1 => any::<String>()]
}

/// Generates values of any type of the schema.
fn any_value() -> BoxedStrategy<Value> {
    use Value as V;
    let scalars = prop_oneof![
        float_strategy().prop_map(V::DoubleVal),
        float_strategy().prop_map(|v| V::FloatVal(v as f32)),
        integer_strategy().prop_map(|v| V::Int32Val(v as i32)),
        integer_strategy().prop_map(V::Int64Val),
        integer_strategy().prop_map(|v| V::Uint32Val(v as u32)),
        integer_strategy().prop_map(|v| V::Uint64Val(v as u64)),
        integer_strategy().prop_map(|v| V::Sint32Val(v as i32)),
        integer_strategy().prop_map(V::Sint64Val),
        integer_strategy().prop_map(|v| V::Fixed32Val(v as u32)),
        integer_strategy().prop_map(|v| V::Fixed64Val(v as u64)),
        integer_strategy().prop_map(|v| V::Sfixed32Val(v as i32)),
        integer_strategy().prop_map(V::Sfixed64Val),
        any::<bool>().prop_map(V::BoolVal),
        text_strategy().prop_map(V::StringVal),
        prop_oneof![
            text_strategy().prop_map(String::into_bytes),
            vec(any::<u8>(), 0..4)
        ]
        .prop_map(|bytes| V::BytesVal(bytes.into())),
    ];
    let bits = || prop_oneof![9 => vec(any::<bool>(), 0..6), 1 => vec(any::<bool>(), 30..35)];
    let numbers = || bits().prop_map(|bits| bits.into_iter().map(i64::from).collect::<Vec<_>>());
    let narrow = |v: Vec<i64>| v.into_iter().map(|v| v as i32).collect::<Vec<_>>();
    let lists = prop_oneof![
        4 => bits().prop_map(|values| V::BoolList(proto::BoolList { values })),
        1 => numbers().prop_map(|values| V::Int64List(proto::Int64List { values })),
        1 => numbers().prop_map(move |v| V::Int32List(proto::Int32List { values: narrow(v) })),
        1 => numbers().prop_map(|v| V::Uint64List(proto::Uint64List {
            values: v.into_iter().map(|v| v as u64).collect(),
        })),
        1 => numbers().prop_map(|v| V::Uint32List(proto::Uint32List {
            values: v.into_iter().map(|v| v as u32).collect(),
        })),
        1 => vec(float_strategy(), 0..3).prop_map(|values| V::DoubleList(proto::DoubleList { values })),
        1 => vec(text_strategy(), 0..3).prop_map(|values| V::StringList(proto::StringList { values })),
        1 => vec(integer_strategy(), 0..3).prop_map(|values| V::Sint64List(proto::Sint64List { values })),
    ];
    prop_oneof![3 => scalars, 1 => lists].boxed()
}

/// Generates values that are usually valid for the attribute `name`, so that most nodes are accepted.
fn attribute_value_strategy(name: &'static str) -> BoxedStrategy<Value> {
    let usual = match name {
        "involved_dim" | "involve_dims" => vec(any::<bool>(), 0..5)
            .prop_map(|values| Value::BoolList(proto::BoolList { values }))
            .boxed(),
        "is_cpu_op" | "eager" => any::<bool>().prop_map(Value::BoolVal).boxed(),
        "in_switch" => prop::sample::select(vec!["all_gather", "reduce_scatter", "all_reduce"])
            .prop_map(|text| Value::StringVal(text.to_owned()))
            .boxed(),
        "dtype" | "pg_name" => text_strategy().prop_map(Value::StringVal).boxed(),
        _ => (0_u64..12).prop_map(Value::Uint64Val).boxed(),
    };
    prop_oneof![9 => usual, 1 => any_value()].boxed()
}

fn any_attribute() -> impl Strategy<Value = AttributeProto> {
    // The readers reject most nodes with `in_switch`, so generate this attribute rarely.
    let named = prop_oneof![99 => prop::sample::select(&NAMES[..]), 1 => Just("in_switch")];
    let valued = named.prop_flat_map(|name| {
        (
            Just(name),
            option::weighted(0.95, attribute_value_strategy(name)),
        )
    });
    (valued, "[a-z]{0,3}").prop_map(|((name, value), doc_string)| AttributeProto {
        doc_string,
        value,
        ..build_attribute(name, Value::BoolVal(false))
    })
}

fn id_list_strategy() -> impl Strategy<Value = Vec<u64>> {
    vec(prop_oneof![3 => 0_u64..300, 1 => any::<u64>()], 0..5)
}

fn io_info_strategy() -> impl Strategy<Value = Option<IoInfo>> {
    let io = (text_strategy(), "[a-z]{0,3}").prop_map(|(values, shapes)| IoInfo {
        values,
        shapes,
        types: String::new(),
    });
    option::of(io)
}

/// Generates nodes of any type, with any attributes and dependencies.
pub fn node_strategy() -> impl Strategy<Value = Node> {
    let kind = prop_oneof![12 => 0..8_i32, 1 => any::<i32>()];
    let name = prop_oneof![Just("## process_group:init ##".to_owned()), any::<String>()];
    let ids = (
        prop_oneof![0..300_u64, any::<u64>()],
        id_list_strategy(),
        id_list_strategy(),
    );
    let times = (any::<u64>(), prop_oneof![0..1000_u64, any::<u64>()]);
    let fields = (
        ids,
        name,
        kind,
        times,
        io_info_strategy(),
        io_info_strategy(),
        vec(any_attribute(), 0..8),
    );
    fields.prop_map(
        |((id, ctrl_deps, data_deps), name, kind, times, inputs, outputs, attr)| Node {
            id,
            name,
            r#type: kind,
            ctrl_deps,
            data_deps,
            start_time_micros: times.0,
            duration_micros: times.1,
            inputs,
            outputs,
            attr,
        },
    )
}

/// Generates fields that are in no version of the schema, with any wire type, including groups.
pub fn unknown_field_strategy() -> impl Strategy<Value = Vec<u8>> {
    (33_u32..60, any::<u64>(), vec(any::<u8>(), 0..5), 0..5).prop_map(
        |(tag, number, bytes, kind)| {
            let mut out = Vec::new();
            match kind {
                0 => prost::encoding::uint64::encode(tag, &number, &mut out),
                1 => prost::encoding::fixed64::encode(tag, &number, &mut out),
                2 => prost::encoding::bytes::encode(tag, &bytes, &mut out),
                3 => prost::encoding::fixed32::encode(tag, &(number as u32), &mut out),
                _ => {
                    encode_key(tag, WireType::StartGroup, &mut out);
                    prost::encoding::bytes::encode(1, &bytes, &mut out);
                    encode_key(tag, WireType::EndGroup, &mut out);
                }
            }
            out
        },
    )
}

/// Encodes `node` with its parts in the order `order`. Some parts follow an unknown field, which is given as (index in
/// the order, field).
pub fn encode_reordered_fields(
    node: &Node,
    unpacked: bool,
    order: &[usize],
    unknown: &[(usize, Vec<u8>)],
) -> Vec<u8> {
    let pieces = split_node_fields(node, unpacked);
    let mut bytes = Vec::new();
    for (place, &piece) in order.iter().enumerate() {
        for (_, field) in unknown.iter().filter(|(at, _)| *at == place) {
            bytes.extend_from_slice(field);
        }
        bytes.extend_from_slice(&pieces[piece]);
    }
    bytes
}

/// Splits `node` into its fields. Two fields may change places if their field numbers differ. Attributes and the
/// unknown fields after them must keep their order.
fn split_node_fields(node: &Node, unpacked: bool) -> Vec<Vec<u8>> {
    let only = |keep: &dyn Fn(&mut Node)| {
        let mut piece = Node::default();
        keep(&mut piece);
        piece.encode_to_vec()
    };
    let list = |tag: u32, ids: &[u64]| {
        let mut out = Vec::new();
        for id in ids.iter().take(if unpacked { usize::MAX } else { 0 }) {
            encode_key(tag, WireType::Varint, &mut out);
            encode_varint(*id, &mut out);
        }
        if !unpacked {
            prost::encoding::uint64::encode_packed(tag, ids, &mut out);
        }
        out
    };
    vec![
        only(&|n| n.id = node.id),
        only(&|n| n.name.clone_from(&node.name)),
        only(&|n| n.r#type = node.r#type),
        list(4, &node.ctrl_deps),
        list(5, &node.data_deps),
        only(&|n| n.start_time_micros = node.start_time_micros),
        only(&|n| n.duration_micros = node.duration_micros),
        only(&|n| n.inputs.clone_from(&node.inputs)),
        only(&|n| n.outputs.clone_from(&node.outputs)),
        only(&|n| n.attr.clone_from(&node.attr)),
    ]
}
