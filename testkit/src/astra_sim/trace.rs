//! Reads and writes nodes in the format of trace files.

use super::config::{CollectiveOperation, NodeWork, TraceNode};
use super::message::{self, BooleanList, NodeAttribute, NodeAttributeValue, TraceFileMetadata};
use prost::Message as _;
use std::collections::BTreeMap;

/// Collectives, each with its number in files.
const KINDS: [(i128, CollectiveOperation); 4] = [
    (0, CollectiveOperation::AllReduce),
    (2, CollectiveOperation::AllGather),
    (6, CollectiveOperation::AllToAll),
    (7, CollectiveOperation::ReduceScatter),
];
const BROADCAST: i128 = 5;

/// Reads the nodes of a file, up to the first incomplete node.
pub fn read_nodes(mut bytes: &[u8]) -> Vec<TraceNode> {
    let mut nodes = Vec::new();
    if TraceFileMetadata::decode_length_delimited(&mut bytes).is_err() {
        return nodes;
    }
    while !bytes.is_empty() {
        match message::TraceNodeMessage::decode_length_delimited(&mut bytes) {
            Ok(message) => nodes.push(decode_node(message)),
            Err(_) => break,
        }
    }
    nodes
}

fn parse_number(value: &NodeAttributeValue) -> Option<i128> {
    Some(match *value {
        NodeAttributeValue::Int32(v)
        | NodeAttributeValue::Sint32(v)
        | NodeAttributeValue::Sfixed32(v) => v.into(),
        NodeAttributeValue::Int64(v)
        | NodeAttributeValue::Sint64(v)
        | NodeAttributeValue::Sfixed64(v) => v.into(),
        NodeAttributeValue::Uint32(v) | NodeAttributeValue::Fixed32(v) => v.into(),
        NodeAttributeValue::Uint64(v) | NodeAttributeValue::Fixed64(v) => v.into(),
        NodeAttributeValue::Bool(v) => v.into(),
        _ => return None,
    })
}

fn decode_node(message: message::TraceNodeMessage) -> TraceNode {
    let values: BTreeMap<&str, &NodeAttributeValue> = message
        .attr
        .iter()
        .filter_map(|a| Some((a.name.as_str(), a.value.as_ref()?)))
        .collect();
    let int = |name: &str| values.get(name).and_then(|v| parse_number(v)).unwrap_or(0);
    let count = |name: &str| int(name) as u64;
    let npu = |name: &str| int(name) as usize;
    let group = match values.get("pg_name") {
        Some(NodeAttributeValue::Text(text)) => text.parse().unwrap_or(0),
        Some(other) => parse_number(other).unwrap_or(0) as u64,
        None => 0,
    };
    let dims = match values.get("involved_dim") {
        Some(NodeAttributeValue::BooleanList(list)) => Some(list.values.clone()),
        _ => None,
    };
    let (bytes, tag) = (count("comm_size"), count("comm_tag"));
    let work = match message.kind {
        2 | 3 => NodeWork::Memory {
            store: message.kind == 3,
            bytes: count("tensor_size"),
        },
        4 => NodeWork::Compute {
            ops: count("num_ops"),
            bytes: count("tensor_size"),
        },
        5 => NodeWork::Send {
            dst: npu("comm_dst"),
            bytes,
            tag,
        },
        6 => NodeWork::Receive {
            src: npu("comm_src"),
            bytes,
            tag,
        },
        7 if int("comm_type") == BROADCAST => NodeWork::Broadcast,
        7 => match KINDS.iter().find(|(n, _)| *n == int("comm_type")) {
            Some(&(_, kind)) => NodeWork::Collective {
                kind,
                bytes,
                group,
                dims,
                priority: int("comm_priority") as i64,
            },
            None => NodeWork::Unsupported,
        },
        _ => NodeWork::Nothing,
    };
    TraceNode {
        id: message.id,
        cpu: int("is_cpu_op") != 0,
        micros: message.duration_micros,
        work,
        deps: [message.ctrl_deps, message.data_deps].concat(),
    }
}

/// Encodes nodes as a trace file.
pub fn encode_nodes_as_trace_file(nodes: &[TraceNode]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let start = TraceFileMetadata {
        version: "0.0.4".to_owned(),
    };
    bytes.extend(start.encode_length_delimited_to_vec());
    for node in nodes {
        bytes.extend(encode_node(node).encode_length_delimited_to_vec());
    }
    bytes
}

fn encode_node(node: &TraceNode) -> message::TraceNodeMessage {
    let mut values = vec![("is_cpu_op", NodeAttributeValue::Bool(node.cpu))];
    let size = |bytes: u64| ("comm_size", NodeAttributeValue::Int64(bytes as i64));
    let rank = |npu: usize| NodeAttributeValue::Int32(npu as i32);
    let kind = match node.work {
        NodeWork::Nothing => 0,
        NodeWork::Memory { store, bytes } => {
            values.push(("tensor_size", NodeAttributeValue::Uint64(bytes)));
            if store { 3 } else { 2 }
        }
        NodeWork::Compute { ops, bytes } => {
            values.push(("num_ops", NodeAttributeValue::Int64(ops as i64)));
            values.push(("tensor_size", NodeAttributeValue::Uint64(bytes)));
            4
        }
        NodeWork::Send { dst, bytes, tag } => {
            values.extend([("comm_dst", rank(dst)), size(bytes)]);
            values.push(("comm_tag", NodeAttributeValue::Int32(tag as i32)));
            5
        }
        NodeWork::Receive { src, bytes, tag } => {
            values.extend([("comm_src", rank(src)), size(bytes)]);
            values.push(("comm_tag", NodeAttributeValue::Int32(tag as i32)));
            6
        }
        NodeWork::Collective {
            kind,
            bytes,
            group,
            ref dims,
            priority,
        } => {
            let code = KINDS.iter().find(|(_, k)| *k == kind).map_or(0, |k| k.0);
            values.extend([
                ("comm_type", NodeAttributeValue::Int64(code as i64)),
                size(bytes),
            ]);
            values.push(("comm_priority", NodeAttributeValue::Int32(priority as i32)));
            if group != 0 {
                values.push(("pg_name", NodeAttributeValue::Text(group.to_string())));
            }
            if let Some(dims) = dims {
                let values_of = BooleanList {
                    values: dims.clone(),
                };
                values.push(("involved_dim", NodeAttributeValue::BooleanList(values_of)));
            }
            7
        }
        NodeWork::Broadcast => {
            values.push(("comm_type", NodeAttributeValue::Int64(BROADCAST as i64)));
            values.push(size(1));
            7
        }
        NodeWork::Unsupported => {
            values.push(("comm_type", NodeAttributeValue::Int64(9)));
            7
        }
    };
    let attribute = |(name, value): (&str, NodeAttributeValue)| NodeAttribute {
        name: name.to_owned(),
        value: Some(value),
    };
    message::TraceNodeMessage {
        id: node.id,
        name: format!("n{}", node.id),
        kind,
        ctrl_deps: Vec::new(),
        data_deps: node.deps.clone(),
        duration_micros: node.micros,
        attr: values.into_iter().map(attribute).collect(),
    }
}
