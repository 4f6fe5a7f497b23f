//! Nodes of traces from and to files.

use super::config::{Kind, Node, Work};
use chakram::trace::proto::attribute_proto::Value;
use chakram::trace::proto::{AttributeProto, BoolList, GlobalMetadata, Node as Message};
use prost::Message as _;
use std::collections::BTreeMap;

/// The collectives by their numbers in files.
const KINDS: [(i128, Kind); 4] = [
    (0, Kind::AllReduce),
    (2, Kind::AllGather),
    (6, Kind::AllToAll),
    (7, Kind::ReduceScatter),
];
const BROADCAST: i128 = 5;

/// Reads the nodes of a file, up to the first that is not whole.
pub fn read(mut bytes: &[u8]) -> Vec<Node> {
    let mut nodes = Vec::new();
    if GlobalMetadata::decode_length_delimited(&mut bytes).is_err() {
        return nodes;
    }
    while !bytes.is_empty() {
        match Message::decode_length_delimited(&mut bytes) {
            Ok(message) => nodes.push(node(message)),
            Err(_) => break,
        }
    }
    nodes
}

fn number(value: &Value) -> Option<i128> {
    Some(match *value {
        Value::Int32Val(v) | Value::Sint32Val(v) | Value::Sfixed32Val(v) => v.into(),
        Value::Int64Val(v) | Value::Sint64Val(v) | Value::Sfixed64Val(v) => v.into(),
        Value::Uint32Val(v) | Value::Fixed32Val(v) => v.into(),
        Value::Uint64Val(v) | Value::Fixed64Val(v) => v.into(),
        Value::BoolVal(v) => v.into(),
        _ => return None,
    })
}

fn node(message: Message) -> Node {
    let values: BTreeMap<&str, &Value> = message
        .attr
        .iter()
        .filter_map(|a| Some((a.name.as_str(), a.value.as_ref()?)))
        .collect();
    let int = |name: &str| values.get(name).and_then(|v| number(v)).unwrap_or(0);
    let count = |name: &str| int(name) as u64;
    let npu = |name: &str| int(name) as usize;
    let group = match values.get("pg_name") {
        Some(Value::StringVal(text)) => text.parse().unwrap_or(0),
        Some(other) => number(other).unwrap_or(0) as u64,
        None => 0,
    };
    let dims = match values.get("involved_dim") {
        Some(Value::BoolList(list)) => Some(list.values.clone()),
        _ => None,
    };
    let (bytes, tag) = (count("comm_size"), count("comm_tag"));
    let work = match message.r#type {
        2 | 3 => Work::Memory {
            store: message.r#type == 3,
            bytes: count("tensor_size"),
        },
        4 => Work::Compute {
            ops: count("num_ops"),
            bytes: count("tensor_size"),
        },
        5 => Work::Send {
            dst: npu("comm_dst"),
            bytes,
            tag,
        },
        6 => Work::Receive {
            src: npu("comm_src"),
            bytes,
            tag,
        },
        7 if int("comm_type") == BROADCAST => Work::Broadcast,
        7 => match KINDS.iter().find(|(n, _)| *n == int("comm_type")) {
            Some(&(_, kind)) => Work::Collective {
                kind,
                bytes,
                group,
                dims,
                priority: int("comm_priority") as i64,
            },
            None => Work::Unsupported,
        },
        _ => Work::Nothing,
    };
    Node {
        id: message.id,
        cpu: int("is_cpu_op") != 0,
        micros: message.duration_micros,
        work,
        deps: [message.ctrl_deps, message.data_deps].concat(),
    }
}

/// Writes a file.
pub fn write(nodes: &[Node]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let start = GlobalMetadata {
        version: "0.0.4".to_owned(),
        attr: Vec::new(),
    };
    bytes.extend(start.encode_length_delimited_to_vec());
    for node in nodes {
        bytes.extend(message(node).encode_length_delimited_to_vec());
    }
    bytes
}

fn message(node: &Node) -> Message {
    let mut values = vec![("is_cpu_op", Value::BoolVal(node.cpu))];
    let size = |bytes: u64| ("comm_size", Value::Int64Val(bytes as i64));
    let rank = |npu: usize| Value::Int32Val(npu as i32);
    let r#type = match node.work {
        Work::Nothing => 0,
        Work::Memory { store, bytes } => {
            values.push(("tensor_size", Value::Uint64Val(bytes)));
            if store { 3 } else { 2 }
        }
        Work::Compute { ops, bytes } => {
            values.push(("num_ops", Value::Int64Val(ops as i64)));
            values.push(("tensor_size", Value::Uint64Val(bytes)));
            4
        }
        Work::Send { dst, bytes, tag } => {
            values.extend([("comm_dst", rank(dst)), size(bytes)]);
            values.push(("comm_tag", Value::Int32Val(tag as i32)));
            5
        }
        Work::Receive { src, bytes, tag } => {
            values.extend([("comm_src", rank(src)), size(bytes)]);
            values.push(("comm_tag", Value::Int32Val(tag as i32)));
            6
        }
        Work::Collective {
            kind,
            bytes,
            group,
            ref dims,
            priority,
        } => {
            let code = KINDS.iter().find(|(_, k)| *k == kind).map_or(0, |k| k.0);
            values.extend([("comm_type", Value::Int64Val(code as i64)), size(bytes)]);
            values.push(("comm_priority", Value::Int32Val(priority as i32)));
            if group != 0 {
                values.push(("pg_name", Value::StringVal(group.to_string())));
            }
            if let Some(dims) = dims {
                let values_of = BoolList {
                    values: dims.clone(),
                };
                values.push(("involved_dim", Value::BoolList(values_of)));
            }
            7
        }
        Work::Broadcast => {
            values.push(("comm_type", Value::Int64Val(BROADCAST as i64)));
            values.push(size(1));
            7
        }
        Work::Unsupported => {
            values.push(("comm_type", Value::Int64Val(9)));
            7
        }
    };
    let attribute = |(name, value): (&str, Value)| AttributeProto {
        name: name.to_owned(),
        value: Some(value),
        ..AttributeProto::default()
    };
    Message {
        id: node.id,
        name: format!("n{}", node.id),
        r#type,
        data_deps: node.deps.clone(),
        duration_micros: node.micros,
        attr: values.into_iter().map(attribute).collect(),
        ..Message::default()
    }
}
