//! Writes traces: encodes nodes as framed protobuf messages.
//!
//! A [`NodeView`] contains labels and the fields that a replay needs. [`NodeFieldsBeyondView`] contains everything
//! else, such as the node's location in the source's files. Of these extra fields, replays use only the control
//! dependencies.

use super::TraceError;
use super::attr;
use super::encoder::ProtobufMessageBuilder;
use super::groups::NODE_MARK;
use super::op::Op;
use super::origin::NodeCallerStepAndStack;
use super::proto::NodeType;
use super::scan::{self, NodeView};
use super::wire::RawRecord;
use std::io::Write;

mod frames;

pub use frames::LengthPrefixedRecordWriter;

/// Receives a trace node by node. It builds a graph or writes a file.
pub trait Sink {
    /// Receives `node`; `data` lists the node's data dependencies. Ids must be unique; nodes may come in any order.
    fn receive_node(&mut self, node: &NodeView<'_>, data: &[u64]) -> Result<(), TraceError>;
}

/// Schema version stated in written files.
const SCHEMA_VERSION: &str = "0.0.4";

/// Value of an attribute that a writer adds to a [`NodeView`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeValue<'a> {
    /// A whole number, as the schema's `int32`.
    Int32(i32),
    /// A whole number, as `int64`.
    Int(i64),
    /// A count, as `uint32`.
    Uint32(u32),
    /// A count, as `uint64`.
    Uint(u64),
    /// True or false, as `bool`.
    Bool(bool),
    /// A list of `bool`.
    Bools(&'a [bool]),
    /// Text, as `string`.
    Text(&'a str),
    /// A list of `int64`.
    Ints(&'a [i64]),
    /// A list of `string`.
    Texts(&'a [&'a str]),
}

/// An attribute as (name, value).
pub type NamedAttribute<'a> = (&'a str, AttributeValue<'a>);

/// A node's inputs or outputs; each field is the text of a Python literal, or empty if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeInputsOrOutputs<'a> {
    /// The values, such as `[[5, 6, 0, 1024, 4, 'cuda:0'], 1]`.
    pub values: &'a str,
    /// Shapes of the tensors, such as `[[32, 32], []]`.
    pub shapes: &'a str,
    /// Types of the tensors, such as `['Tensor(float)', 'Int']`.
    pub types: &'a str,
}

/// Fields of a node that are not in its [`NodeView`]. Replays use only `control`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeFieldsBeyondView<'a> {
    /// Ids of the node's control dependencies.
    pub control: &'a [u64],
    /// Inputs of the node.
    pub inputs: NodeInputsOrOutputs<'a>,
    /// Outputs of the node.
    pub outputs: NodeInputsOrOutputs<'a>,
    /// Further attributes, in the order in which they are written. The writer rejects an attribute that replays read if
    /// it would change the node's meaning.
    pub attributes: &'a [NamedAttribute<'a>],
}

/// Writes one rank's trace to any byte sink.
#[derive(Debug)]
pub struct TraceWriter<W> {
    out: LengthPrefixedRecordWriter<W>,
    message: ProtobufMessageBuilder,
}

impl<W: Write> TraceWriter<W> {
    /// Creates a writer, and writes the metadata record.
    pub fn new(out: W) -> std::io::Result<Self> {
        Self::start_with_metadata(out, &[])
    }

    /// Creates a writer, and writes the metadata record with these attributes. Readers recognise some of them, such as
    /// `captured_ns` (the end of the rank's last event, in nanoseconds after the start of the job) and `group_roles`
    /// (the roles of groups, [`GroupRoles`](super::roles::GroupRoles)).
    pub fn start_with_metadata(out: W, attributes: &[NamedAttribute<'_>]) -> std::io::Result<Self> {
        let mut this = Self {
            out: LengthPrefixedRecordWriter::new(out),
            message: ProtobufMessageBuilder::default(),
        };
        this.message.append_bytes(1, SCHEMA_VERSION.as_bytes());
        for (name, value) in attributes {
            this.message
                .append_nested(2, |put| put_attribute(put, name, *value));
        }
        this.out
            .write_length_prefixed_message(this.message.as_bytes())?;
        Ok(this)
    }

    /// Writes `node` with the fields in `extra`; `data` lists the node's data dependencies.
    ///
    /// Fails if the sink fails, or if an attribute would change the node's meaning. Also fails if a node declares
    /// groups but was not created by [`NodeView::declare_groups`].
    pub fn write_node(
        &mut self,
        node: &NodeView<'_>,
        data: &[u64],
        extra: &NodeFieldsBeyondView<'_>,
    ) -> Result<(), TraceError> {
        let declares = node.op == Op::NoOp && node.name.contains(NODE_MARK);
        if node.groups.is_some() && !declares {
            return Err(TraceError::invalid_node(
                node.id,
                "the node declares process groups, which readers expect only on a metadata node",
                "declare the groups with a separate metadata node",
            ));
        }
        let shapes = node.labels;
        let mut inputs =
            inputs_or_outputs_with_label_shapes(node.id, &extra.inputs, shapes.inputs)?;
        let outputs = inputs_or_outputs_with_label_shapes(node.id, &extra.outputs, shapes.outputs)?;
        if let Some(groups) = node.groups {
            if !inputs.values.is_empty() {
                return Err(TraceError::invalid_node(
                    node.id,
                    "the node has both process groups and input values, but both use the same field",
                    "leave the values of the node's inputs empty",
                ));
            }
            inputs.values = groups;
        }
        let put = &mut self.message;
        put.clear();
        // Protobuf's canonical form has ascending fields and omits default values.
        append_nonzero_varint(put, 1, node.id);
        append_nonempty_text(put, 2, node.name);
        append_nonzero_varint(put, 3, node_type_of(node) as u64);
        put.append_packed(4, extra.control);
        put.append_packed(5, data);
        append_nonzero_varint(put, 6, node.start_micros);
        append_nonzero_varint(put, 7, node.recorded.0 / 1_000_000);
        append_io_info(put, 8, &inputs, node.groups.is_some());
        append_io_info(put, 9, &outputs, false);
        attr::append_attributes_that_replay_reads(put, node);
        let plain = put.as_bytes().len();
        for (name, value) in extra.attributes {
            append_named_attribute(put, name, *value);
        }
        let reads = |(name, _): &&NamedAttribute<'_>| attr::find_replay_attribute(name).is_some();
        if let Some((name, _)) = extra.attributes.iter().find(reads) {
            // If several attributes have the same name, readers use the last one. Only a scan of the written node
            // therefore shows whether the meaning changes.
            let whole = put.as_bytes();
            if !are_equal_for_replay(&whole[..plain], whole) {
                return Err(TraceError::invalid_node(
                    node.id,
                    format!("the additional attribute `{name}` contradicts the node"),
                    "another name; replays read this one (proto/README.md)",
                ));
            }
        }
        self.out.write_record(put.as_bytes())
    }

    /// Returns the byte sink, which has received all data but has not been flushed.
    pub fn into_unflushed_sink(self) -> W {
        self.out.into_inner()
    }
}

impl<W: Write> Sink for TraceWriter<W> {
    fn receive_node(&mut self, node: &NodeView<'_>, data: &[u64]) -> Result<(), TraceError> {
        self.write_node(node, data, &NodeFieldsBeyondView::default())
    }
}

/// Returns true if a replay treats two records of a node identically.
fn are_equal_for_replay(a: &[u8], b: &[u8]) -> bool {
    struct DependencyIgnoringVisitor;
    impl scan::DependencyVisitor for DependencyIgnoringVisitor {
        fn visit_data_dependency(&mut self, _: u64) -> Result<(), TraceError> {
            Ok(())
        }
        fn visit_control_dependency(&mut self, _: u64) -> Result<(), TraceError> {
            Ok(())
        }
    }
    let read = |bytes| {
        let record = RawRecord {
            number: 0,
            offset: 0,
            bytes,
        };
        scan::scan_node(record, &mut DependencyIgnoringVisitor)
    };
    let meaning = |bytes| -> Result<NodeView<'_>, TraceError> {
        let view = read(bytes)?;
        // The node's place in the program does not affect a replay, so the comparison skips it.
        Ok(NodeView {
            origin: NodeCallerStepAndStack::default(),
            ..view
        })
    };
    matches!((meaning(a), meaning(b)), (Ok(a), Ok(b)) if a == b)
}

/// Appends a number, unless it is 0.
fn append_nonzero_varint(put: &mut ProtobufMessageBuilder, number: u32, value: u64) {
    if value != 0 {
        put.append_varint(number, value);
    }
}

/// Appends a text, unless it is empty.
fn append_nonempty_text(put: &mut ProtobufMessageBuilder, number: u32, text: &str) {
    if !text.is_empty() {
        put.append_bytes(number, text.as_bytes());
    }
}

/// Appends an attribute to a node's message.
#[inline(always)]
pub(super) fn append_named_attribute(
    put: &mut ProtobufMessageBuilder,
    name: &str,
    value: AttributeValue<'_>,
) {
    match value {
        // Nearly all attributes take this fast path. Protobuf omits an empty name, so an unnamed attribute takes the
        // other path.
        AttributeValue::Int(v) if !name.is_empty() => {
            put.append_named_varint(10, name, 9, v.cast_unsigned());
        }
        AttributeValue::Uint(v) if !name.is_empty() => put.append_named_varint(10, name, 13, v),
        AttributeValue::Bool(v) if !name.is_empty() => {
            put.append_named_varint(10, name, 27, u64::from(v));
        }
        _ => put.append_nested(10, |put| put_attribute(put, name, value)),
    }
}

/// Appends an attribute's fields. Writes the value even if it is the default.
#[inline]
pub fn put_attribute(put: &mut ProtobufMessageBuilder, name: &str, value: AttributeValue<'_>) {
    append_nonempty_text(put, 1, name);
    match value {
        AttributeValue::Int32(v) => put.append_varint(7, i64::from(v).cast_unsigned()),
        AttributeValue::Int(v) => put.append_varint(9, v.cast_unsigned()),
        AttributeValue::Ints(list) => {
            put.append_nested(10, |put| {
                put.append_packed_from(1, list.iter().map(|v| v.cast_unsigned()))
            });
        }
        AttributeValue::Uint32(v) => put.append_varint(11, u64::from(v)),
        AttributeValue::Uint(v) => put.append_varint(13, v),
        AttributeValue::Bool(v) => put.append_varint(27, u64::from(v)),
        AttributeValue::Bools(list) => {
            put.append_nested(28, |put| {
                put.append_packed_from(1, list.iter().map(|&v| u64::from(v)))
            });
        }
        AttributeValue::Text(text) => put.append_bytes(29, text.as_bytes()),
        AttributeValue::Texts(list) => put.append_nested(30, |put| {
            for text in list {
                put.append_bytes(1, text.as_bytes());
            }
        }),
    }
}

/// Adds the shapes in the node's labels to its inputs or outputs. Fails if `io` states other shapes than the labels.
fn inputs_or_outputs_with_label_shapes<'a>(
    id: u64,
    io: &NodeInputsOrOutputs<'a>,
    shapes: &'a str,
) -> Result<NodeInputsOrOutputs<'a>, TraceError> {
    if !shapes.is_empty() && !io.shapes.is_empty() && io.shapes != shapes {
        return Err(TraceError::invalid_node(
            id,
            "the node's labels state other shapes than its arguments or results",
            "state the shapes only once",
        ));
    }
    let shapes = if shapes.is_empty() { io.shapes } else { shapes };
    Ok(NodeInputsOrOutputs { shapes, ..*io })
}

/// Appends a node's inputs or outputs. Appends empty inputs or outputs only if `stated` is true, which means that the
/// node is known to have none.
fn append_io_info(
    put: &mut ProtobufMessageBuilder,
    number: u32,
    io: &NodeInputsOrOutputs<'_>,
    stated: bool,
) {
    if stated || *io != NodeInputsOrOutputs::default() {
        put.append_nested(number, |put| {
            append_nonempty_text(put, 1, io.values);
            append_nonempty_text(put, 2, io.shapes);
            append_nonempty_text(put, 3, io.types);
        });
    }
}

fn node_type_of(node: &NodeView<'_>) -> NodeType {
    match node.op {
        Op::NoOp if node.groups.is_some() => NodeType::MetadataNode,
        Op::NoOp => NodeType::InvalidNode,
        Op::Host | Op::Compute { .. } | Op::Communication { .. } => NodeType::CompNode,
        Op::Memory { store: true, .. } => NodeType::MemStoreNode,
        Op::Memory { store: false, .. } => NodeType::MemLoadNode,
        Op::Message { receive: true, .. } => NodeType::CommRecvNode,
        Op::Message { receive: false, .. } => NodeType::CommSendNode,
        Op::Collective { .. } => NodeType::CommCollNode,
    }
}

#[cfg(test)]
mod tests;
