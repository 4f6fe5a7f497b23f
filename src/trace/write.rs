//! Writer of traces: nodes become the generated message types, framed.
//!
//! A [`NodeView`] holds what a replay needs, and labels. Other facts that a source knows of a node, such as its
//! location in the source's files, are passed beside it as [`NodeExtras`], which replays skip.

use super::TraceError;
use super::groups::NODE_MARK;
use super::op::{GroupName, MemoryLocation, NodeAttributes, Op};
use super::proto::{self, AttributeProto, NodeType, attribute_proto::Value as Proto};
use super::scan::{self, NodeView};
use super::wire::RawRecord;
use crate::units::Span;
use prost::Message;
use std::io::Write;

mod frames;

pub use frames::FrameWriter;

/// Receiver of a trace, node by node: a graph builder, or a file that is being written.
pub trait Sink {
    /// Takes `node`, which consumes results of the nodes `data`. Ids are unique, and nodes may come in any
    /// order.
    fn node(&mut self, node: &NodeView<'_>, data: &[u64]) -> Result<(), TraceError>;
}

/// Schema version of written files.
const SCHEMA_VERSION: &str = "0.0.4";

/// Value of an attribute that is written beside those of a [`NodeView`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeValue<'a> {
    /// A whole number, as the schema's `int64`.
    Int(i64),
    /// A count, as `uint64`.
    Uint(u64),
    /// Yes or no, as `bool`.
    Bool(bool),
    /// Text, as `string`.
    Text(&'a str),
    /// Whole numbers, as a list of `int64`.
    Ints(&'a [i64]),
    /// Texts, as a list of `string`.
    Texts(&'a [&'a str]),
}

/// Attribute: its name and its value.
pub type NamedAttribute<'a> = (&'a str, AttributeValue<'a>);

/// Inputs or outputs of a node, each as the text of a Python literal; empty if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeIo<'a> {
    /// The values: `[[5, 6, 0, 1024, 4, 'cuda:0'], 1]`.
    pub values: &'a str,
    /// Their shapes: `[[32, 32], []]`.
    pub shapes: &'a str,
    /// Their types: `['Tensor(float)', 'Int']`.
    pub types: &'a str,
}

/// Fields of a node beside its [`NodeView`]; replays skip all of them but `control`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeExtras<'a> {
    /// Ids of its control dependencies.
    pub control: &'a [u64],
    /// Its inputs.
    pub inputs: NodeIo<'a>,
    /// Its outputs.
    pub outputs: NodeIo<'a>,
    /// Further attributes, in this order. One with the name of an attribute that replays read is
    /// refused unless the node means the same with it.
    pub attributes: &'a [NamedAttribute<'a>],
}

/// Writes one rank's trace into any byte sink.
#[derive(Debug)]
pub struct TraceWriter<W> {
    out: W,
    buffer: Vec<u8>,
}

impl<W: Write> TraceWriter<W> {
    /// Starts a trace by writing its metadata record.
    pub fn new(out: W) -> std::io::Result<Self> {
        Self::with_metadata(out, &[])
    }

    /// Starts a trace by writing its metadata record with these attributes. Readers know `captured_ns`, the end
    /// of the rank's last event in nanoseconds from the start of the job, and `group_roles`, the roles of
    /// groups ([`GroupRoles`](super::roles::GroupRoles)).
    pub fn with_metadata(out: W, attributes: &[NamedAttribute<'_>]) -> std::io::Result<Self> {
        let mut this = Self {
            out,
            buffer: Vec::new(),
        };
        this.frame(&proto::GlobalMetadata {
            version: SCHEMA_VERSION.to_owned(),
            attr: attributes.iter().map(attribute).collect(),
        })?;
        Ok(this)
    }

    fn frame(&mut self, message: &impl Message) -> std::io::Result<()> {
        self.buffer.clear();
        message
            .encode_length_delimited(&mut self.buffer)
            .expect("a vector grows as needed");
        self.out.write_all(&self.buffer)
    }

    /// Writes `node`, which consumes results of the nodes `data`, and the fields in `extra`.
    ///
    /// Fails if the sink does, on attributes that would change the node's meaning, and on groups declared by
    /// another node than [`NodeView::declaring`] makes.
    pub fn write(
        &mut self,
        node: &NodeView<'_>,
        data: &[u64],
        extra: &NodeExtras<'_>,
    ) -> Result<(), TraceError> {
        let declares = node.op == Op::NoOp && node.name.contains(NODE_MARK);
        if node.groups.is_some() && !declares {
            return Err(TraceError::refused(
                node.id,
                "it declares process groups, which readers expect of a metadata node only",
                "declare them with a node of their own",
            ));
        }
        let mut message = message(node, data);
        message.ctrl_deps = extra.control.to_vec();
        let values = message.inputs.take().map(|io| io.values);
        let shapes = node.labels;
        message.inputs = io_info(&labelled(node.id, &extra.inputs, shapes.inputs)?);
        if let Some(values) = values {
            if !extra.inputs.values.is_empty() {
                return Err(TraceError::refused(
                    node.id,
                    "both its process groups and its inputs have values, which share one field",
                    "leave the values of its inputs empty",
                ));
            }
            message.inputs.get_or_insert_default().values = values;
        }
        message.outputs = io_info(&labelled(node.id, &extra.outputs, shapes.outputs)?);
        let reads = |(name, _): &&NamedAttribute<'_>| scan::REPLAY_ATTRIBUTES.contains(name);
        if let Some((name, _)) = extra.attributes.iter().find(reads) {
            // Of two attributes with one name the later holds, so the scan decides whether the meaning changes.
            let plain = message.encode_to_vec();
            message.attr.extend(extra.attributes.iter().map(attribute));
            let whole = message.encode_to_vec();
            if !same_node(&plain, &whole) {
                return Err(TraceError::refused(
                    node.id,
                    format!("an attribute `{name}` is to be written that contradicts the node"),
                    "replays read this name (proto/README.md); choose another",
                ));
            }
        } else {
            message.attr.extend(extra.attributes.iter().map(attribute));
        }
        self.frame(&message)
            .map_err(|source| TraceError::io("", "write", source))
    }

    /// Returns the byte sink; everything is written, nothing is flushed.
    pub fn into_inner(self) -> W {
        self.out
    }
}

impl<W: Write> Sink for TraceWriter<W> {
    fn node(&mut self, node: &NodeView<'_>, data: &[u64]) -> Result<(), TraceError> {
        self.write(node, data, &NodeExtras::default())
    }
}

/// Returns whether two records of a node mean the same to a replay.
fn same_node(a: &[u8], b: &[u8]) -> bool {
    struct DiscardDependencies;
    impl scan::DependencyVisitor for DiscardDependencies {
        fn data(&mut self, _: u64) -> Result<(), TraceError> {
            Ok(())
        }
        fn control(&mut self, _: u64) -> Result<(), TraceError> {
            Ok(())
        }
    }
    let read = |bytes| {
        let record = RawRecord {
            number: 0,
            offset: 0,
            bytes,
        };
        scan::node(record, &mut DiscardDependencies)
    };
    matches!((read(a), read(b)), (Ok(a), Ok(b)) if a == b)
}

fn attribute((name, value): &NamedAttribute<'_>) -> AttributeProto {
    proto_attribute(
        name,
        match *value {
            AttributeValue::Int(v) => Proto::Int64Val(v),
            AttributeValue::Uint(v) => Proto::Uint64Val(v),
            AttributeValue::Bool(v) => Proto::BoolVal(v),
            AttributeValue::Text(text) => Proto::StringVal(text.to_owned()),
            AttributeValue::Ints(values) => Proto::Int64List(proto::Int64List {
                values: values.to_vec(),
            }),
            AttributeValue::Texts(values) => Proto::StringList(proto::StringList {
                values: values.iter().map(|text| (*text).to_owned()).collect(),
            }),
        },
    )
}

fn proto_attribute(name: &str, value: Proto) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        doc_string: String::new(),
        value: Some(value),
    }
}

/// Returns inputs or outputs with the shapes of the node's labels; fails if both state shapes that differ.
fn labelled<'a>(id: u64, io: &NodeIo<'a>, shapes: &'a str) -> Result<NodeIo<'a>, TraceError> {
    if !shapes.is_empty() && !io.shapes.is_empty() && io.shapes != shapes {
        return Err(TraceError::refused(
            id,
            "its labels say other shapes than its arguments or results",
            "say them once",
        ));
    }
    let shapes = if shapes.is_empty() { io.shapes } else { shapes };
    Ok(NodeIo { shapes, ..*io })
}

/// Returns `None` for empty inputs or outputs.
fn io_info(io: &NodeIo<'_>) -> Option<proto::IoInfo> {
    (*io != NodeIo::default()).then(|| proto::IoInfo {
        values: io.values.to_owned(),
        shapes: io.shapes.to_owned(),
        types: io.types.to_owned(),
    })
}

/// Encodes `node` as a message.
fn message(node: &NodeView<'_>, data: &[u64]) -> proto::Node {
    let mut attr = Vec::new();
    let mut push = |name: &str, value| attr.push(proto_attribute(name, value));
    let host = match node.op {
        Op::Host => true,
        Op::Message { host, .. } | Op::Collective { host, .. } => host,
        _ => false,
    };
    if node.op != Op::NoOp {
        push("is_cpu_op", Proto::BoolVal(host));
    }
    if let Some(lane) = node.lane {
        let name = if host { "tid" } else { "stream" };
        push(name, Proto::Int64Val(lane));
    }
    // Whole microseconds have a field in the schema; spans are in picoseconds.
    if !node.recorded.0.is_multiple_of(1_000_000) {
        push("duration_ns", Proto::Uint64Val(node.recorded.0 / 1000));
    }
    for (name, span) in [
        ("delay_ns", node.delay),
        ("wait_ns", node.wait),
        ("profiler_ns", node.profiler),
    ] {
        if span > Span::ZERO {
            push(name, Proto::Uint64Val(span.0 / 1000));
        }
    }
    if node.eager {
        push("eager", Proto::BoolVal(true));
    }
    let kind = match node.op {
        Op::NoOp if node.groups.is_some() => NodeType::MetadataNode,
        Op::NoOp => NodeType::InvalidNode,
        Op::Host => NodeType::CompNode,
        Op::Compute {
            flops,
            bytes,
            dtype,
        } => {
            push("num_ops", Proto::Int64Val(flops as i64));
            push("tensor_size", Proto::Uint64Val(bytes));
            if let Some(dtype) = dtype {
                push("dtype", Proto::StringVal(dtype.to_string()));
            }
            if let Some(kernel) = node.kernel {
                push("kernel_shape", Proto::StringVal(kernel.to_string()));
            }
            NodeType::CompNode
        }
        Op::Memory {
            store,
            place,
            bytes,
            in_switch,
        } => {
            push("tensor_size", Proto::Uint64Val(bytes));
            let number = match place {
                MemoryLocation::Local => 1,
                MemoryLocation::Remote | MemoryLocation::Named(_) => 2,
            };
            push("tensor_loc", Proto::Uint32Val(number));
            if let MemoryLocation::Named(name) = place {
                push("remote_memory", Proto::StringVal(name.to_owned()));
            }
            if in_switch {
                let text = NodeAttributes::gathering(store).to_owned();
                push("in_switch", Proto::StringVal(text));
            }
            if store {
                NodeType::MemStoreNode
            } else {
                NodeType::MemLoadNode
            }
        }
        Op::Message {
            receive,
            peer,
            tag,
            bytes,
            own,
            ..
        } => {
            let (far, near) = if receive {
                ("comm_src", "comm_dst")
            } else {
                ("comm_dst", "comm_src")
            };
            push(far, Proto::Int32Val(peer as i32));
            if let Some(own) = own {
                push(near, Proto::Int32Val(own as i32));
            }
            push("comm_tag", Proto::Int32Val(tag));
            push("comm_size", Proto::Int64Val(bytes as i64));
            if receive {
                NodeType::CommRecvNode
            } else {
                NodeType::CommSendNode
            }
        }
        Op::Collective {
            kind,
            bytes,
            group,
            root,
            dimensions,
            ..
        } => {
            push("comm_type", Proto::Int64Val(kind.comm_type() as i64));
            push("comm_size", Proto::Int64Val(bytes as i64));
            match group {
                GroupName::World => {}
                GroupName::Number(n) => push("pg_name", Proto::StringVal(n.to_string())),
                GroupName::Text(text) => push("pg_name", Proto::StringVal(text.to_owned())),
            }
            if let Some(root) = root {
                push("comm_root", Proto::Int32Val(root as i32));
            }
            if let Some(mask) = dimensions {
                // A list of all ones means "all", so a mask of consecutive ones gets a zero at its end. Lists
                // have 32 entries at most.
                let highest = 32 - mask.leading_zeros();
                let ones = mask.trailing_ones() == highest && highest < 32;
                let values = (0..highest + u32::from(ones)).map(|i| mask >> i & 1 == 1);
                push(
                    "involved_dim",
                    Proto::BoolList(proto::BoolList {
                        values: values.collect(),
                    }),
                );
            }
            NodeType::CommCollNode
        }
    };
    for (name, bytes) in node.memory.named() {
        push(name, Proto::Uint64Val(bytes));
    }
    let labels = &node.labels;
    if let Some(phase) = labels.phase {
        push("phase", Proto::StringVal(phase.to_string()));
    }
    for (name, number) in [
        ("stage", labels.stage),
        ("micro_batch", labels.micro_batch),
        ("layer", labels.layer),
    ] {
        if let Some(number) = number {
            push(name, Proto::Uint32Val(number));
        }
    }
    proto::Node {
        id: node.id,
        name: node.name.to_owned(),
        r#type: kind as i32,
        data_deps: data.to_vec(),
        start_time_micros: node.start_micros,
        duration_micros: node.recorded.0 / 1_000_000,
        attr,
        inputs: node.groups.map(|text| proto::IoInfo {
            values: text.to_owned(),
            ..proto::IoInfo::default()
        }),
        ..proto::Node::default()
    }
}

#[cfg(test)]
mod tests;
