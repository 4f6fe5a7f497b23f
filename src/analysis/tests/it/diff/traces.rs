//! Generates random traces, reorders traces, and lists the results of comparisons.

use chakram_analysis::diff::{self, TraceDiff};
use chakram_trace::format::proto::{
    AttributeProto, BoolList, BytesList, DoubleList, Fixed32List, Fixed64List, FloatList,
    GlobalMetadata, Int32List, Int64List, Node, Sfixed32List, Sfixed64List, Sint32List, Sint64List,
    StringList, Uint32List, Uint64List, attribute_proto::Value,
};
use chakram_trace::graph::RawTrace;
use prost::Message;

/// Generator of pseudorandom numbers (SplitMix64).
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.below(i + 1));
        }
    }
}

pub fn build_attribute(name: &str, value: Value) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        value: Some(value),
        ..AttributeProto::default()
    }
}

/// Number of kinds of attribute values.
pub const KINDS: usize = 30;

/// Returns a value of the kind with index `kind`. Different seeds below 100 give different values.
pub fn build_attribute_value(kind: usize, seed: u8) -> Value {
    let (real, text) = (f64::from(seed) + 0.5, format!("v{seed}"));
    let (n, u) = (i32::from(seed) - 50, u32::from(seed));
    match kind {
        0 => Value::DoubleVal(real),
        1 => Value::DoubleList(DoubleList {
            values: vec![0.25, real],
        }),
        2 => Value::FloatVal(real as f32),
        3 => Value::FloatList(FloatList {
            values: vec![0.25, real as f32],
        }),
        4 => Value::Int32Val(n),
        5 => Value::Int32List(Int32List { values: vec![1, n] }),
        6 => Value::Int64Val(n.into()),
        7 => Value::Int64List(Int64List {
            values: vec![1, n.into()],
        }),
        8 => Value::Uint32Val(u),
        9 => Value::Uint32List(Uint32List { values: vec![1, u] }),
        10 => Value::Uint64Val(u.into()),
        11 => Value::Uint64List(Uint64List {
            values: vec![1, u.into()],
        }),
        12 => Value::Sint32Val(n),
        13 => Value::Sint32List(Sint32List { values: vec![1, n] }),
        14 => Value::Sint64Val(n.into()),
        15 => Value::Sint64List(Sint64List {
            values: vec![1, n.into()],
        }),
        16 => Value::Fixed32Val(u),
        17 => Value::Fixed32List(Fixed32List { values: vec![1, u] }),
        18 => Value::Fixed64Val(u.into()),
        19 => Value::Fixed64List(Fixed64List {
            values: vec![1, u.into()],
        }),
        20 => Value::Sfixed32Val(n),
        21 => Value::Sfixed32List(Sfixed32List { values: vec![1, n] }),
        22 => Value::Sfixed64Val(n.into()),
        23 => Value::Sfixed64List(Sfixed64List {
            values: vec![1, n.into()],
        }),
        24 => Value::BoolVal(seed % 2 == 1),
        25 => Value::BoolList(BoolList {
            values: vec![seed % 2 == 1; 1 + seed as usize / 2],
        }),
        26 => Value::StringVal(text),
        27 => Value::StringList(StringList {
            values: vec!["a".to_owned(), text],
        }),
        28 => Value::BytesVal(vec![0xff, seed].into()),
        _ => Value::BytesList(BytesList {
            values: vec![vec![0xff].into(), vec![seed].into()],
        }),
    }
}

/// Operations that nodes in random traces run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OperationOfRandomTraceNode {
    Compute,
    Host,
    Load,
    Send,
    Collective,
}

pub const WHATS: [OperationOfRandomTraceNode; 5] = [
    OperationOfRandomTraceNode::Compute,
    OperationOfRandomTraceNode::Host,
    OperationOfRandomTraceNode::Load,
    OperationOfRandomTraceNode::Send,
    OperationOfRandomTraceNode::Collective,
];

pub fn build_uint_attribute(name: &str, value: u64) -> AttributeProto {
    build_attribute(name, Value::Uint64Val(value))
}

/// Builds a node with many random properties, and one of a few names.
pub fn build_random_node(random: &mut Random, id: u64, what: OperationOfRandomTraceNode) -> Node {
    let mut number = |bound: u64| random.next() % bound;
    let mut attr = vec![build_uint_attribute("duration_ns", 1000 + number(1 << 30))];
    attr.push(build_attribute(
        "wait_ns",
        Value::Int64Val(number(1000) as i64),
    ));
    attr.push(build_attribute(
        "delay_ns",
        Value::Int64Val(number(1000) as i64),
    ));
    let kind = match what {
        OperationOfRandomTraceNode::Compute => {
            attr.push(build_uint_attribute("num_ops", number(1 << 40)));
            attr.push(build_uint_attribute("tensor_size", number(1 << 30)));
            attr.push(build_attribute(
                "dtype",
                Value::StringVal("bf16".to_owned()),
            ));
            attr.push(build_attribute("stream", Value::Int64Val(number(2) as i64)));
            4
        }
        OperationOfRandomTraceNode::Host => {
            attr.push(build_attribute("is_cpu_op", Value::BoolVal(true)));
            attr.push(build_attribute("tid", Value::Int64Val(number(2) as i64)));
            4
        }
        OperationOfRandomTraceNode::Load => {
            attr.push(build_uint_attribute("tensor_size", number(1 << 30)));
            attr.push(build_uint_attribute("tensor_loc", 1));
            2
        }
        OperationOfRandomTraceNode::Send => {
            attr.push(build_uint_attribute("comm_size", number(1 << 30)));
            attr.push(build_uint_attribute("comm_dst", number(8)));
            attr.push(build_uint_attribute("comm_tag", number(3)));
            5
        }
        OperationOfRandomTraceNode::Collective => {
            attr.push(build_uint_attribute("comm_type", 5));
            attr.push(build_uint_attribute("comm_size", number(1 << 30)));
            attr.push(build_attribute(
                "pg_name",
                Value::StringVal(format!("g{}", number(2))),
            ));
            attr.push(build_uint_attribute("comm_root", number(4)));
            let values = vec![number(2) == 0, true, false];
            attr.push(build_attribute(
                "involved_dim",
                Value::BoolList(BoolList { values }),
            ));
            7
        }
    };
    attr.push(build_uint_attribute("rf_id", number(1 << 30)));
    Node {
        id,
        name: ["mm", "add", "copy", "softmax"][number(4) as usize].to_owned(),
        r#type: kind,
        attr,
        ..Node::default()
    }
}

/// Builds a trace in which most nodes are unique: each has some property that no other node has.
pub fn build_random_mostly_unique_nodes(random: &mut Random, most: usize) -> Vec<Node> {
    let count = 3 + random.below(most - 2);
    let dense = 1 + random.below(3);
    (0..count as u64)
        .map(|id| {
            let what = WHATS[random.below(WHATS.len())];
            let mut node = build_random_node(random, id, what);
            for _ in 0..random.below(dense + 1) * usize::from(id > 0) {
                let to = random.next() % id.max(1);
                let deps = match random.below(2) {
                    0 => &mut node.data_deps,
                    _ => &mut node.ctrl_deps,
                };
                if !deps.contains(&to) {
                    deps.push(to);
                }
            }
            node
        })
        .collect()
}

/// Builds a trace whose nodes have equal contents and differ only in their dependencies.
pub fn build_alike_nodes(edges: &[(u64, u64)], count: u64) -> Vec<Node> {
    let mut nodes: Vec<Node> = (0..count)
        .map(|id| Node {
            id,
            name: "op".to_owned(),
            r#type: 4,
            ..Node::default()
        })
        .collect();
    for &(from, to) in edges {
        nodes[to as usize].data_deps.push(from);
    }
    nodes
}

/// Returns a copy of a trace with different ids, and with records and dependencies in a different order. Also returns
/// the new id of each original node.
pub fn shuffle_and_renumber_nodes(random: &mut Random, nodes: &[Node]) -> (Vec<Node>, Vec<u64>) {
    let most = nodes
        .iter()
        .map(|node| node.id)
        .max()
        .map_or(0, |id| id + 1);
    let mut ids: Vec<u64> = (0..most).map(|id| 3 * id + 5).collect();
    random.shuffle(&mut ids);
    let mut new: Vec<Node> = nodes.to_vec();
    for node in &mut new {
        node.id = ids[node.id as usize];
        for deps in [&mut node.data_deps, &mut node.ctrl_deps] {
            for dep in deps.iter_mut() {
                *dep = ids.get(*dep as usize).copied().unwrap_or(*dep + 100_000);
            }
            random.shuffle(deps);
        }
        random.shuffle(&mut node.attr);
    }
    random.shuffle(&mut new);
    (new, ids)
}

pub fn encode_trace(nodes: &[Node]) -> Vec<u8> {
    let mut file = GlobalMetadata::default().encode_length_delimited_to_vec();
    for node in nodes {
        file.extend(node.encode_length_delimited_to_vec());
    }
    file
}

/// Result of a comparison, expressed by ids. Nodes and edges are sorted.
#[derive(Debug, Default, PartialEq)]
pub struct FoundDifferences {
    pub removed: Vec<u64>,
    pub added: Vec<u64>,
    /// Changed nodes: each node's id in both traces, and the names of its changed fields.
    pub changed: Vec<(u64, u64, Vec<String>)>,
    /// Changed dependencies: true if added; the node and its predecessor, both as ids in the first trace; true for a
    /// control dependency.
    pub edges: Vec<(bool, u64, Option<u64>, bool)>,
}

pub fn compare_node_lists(first: &[Node], second: &[Node]) -> FoundDifferences {
    let files = [encode_trace(first), encode_trace(second)];
    let outlines = [0, 1].map(|i| RawTrace::read_trace(&files[i]));
    for outline in &outlines {
        assert!(outline.faults.is_empty(), "{:?}", outline.faults);
    }
    let found: TraceDiff = diff::compare_traces(&outlines[0], &outlines[1]);
    let id = |which: usize, node: u32| outlines[which].nodes[node as usize].view.id;
    FoundDifferences {
        removed: found.removed.iter().map(|&node| id(0, node)).collect(),
        added: found.added.iter().map(|&node| id(1, node)).collect(),
        changed: found
            .changed
            .iter()
            .map(|changed| {
                let fields = changed.fields.iter().map(|c| c.field.to_string());
                let [a, b] = changed.nodes;
                (id(0, a), id(1, b), fields.collect())
            })
            .collect(),
        edges: found
            .edges
            .iter()
            .map(|edge| {
                let on = edge.on.map(|on| id(0, on[0]));
                (edge.added, id(0, edge.node[0]), on, edge.control)
            })
            .collect(),
    }
}
