//! Writing traces: nodes become the generated message types, framed, then renamed into place.
//!
//! A [`NodeView`] holds what a replay needs. What else a source knows of a node, such as where in its
//! own files it stands, goes beside it as [`Extra`], which replays skip.

use super::TraceError;
use super::groups::NODE_MARK;
use super::op::{GroupName, MemoryPlace, Op};
use super::proto::{self, AttributeProto, NodeType, attribute_proto::Value as Proto};
use super::scan::{self, NodeView};
use super::wire::Record;
use crate::units::Span;
use prost::Message;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Receives a trace node by node: a graph that is being built, or a file that is being written.
pub trait Sink {
    /// Takes `node`, which consumes what the nodes `data` produce. Ids are unique and nodes may
    /// come in any order.
    fn node(&mut self, node: &NodeView<'_>, data: &[u64]) -> Result<(), TraceError>;
}

/// The version that written files claim.
const SCHEMA_VERSION: &str = "0.0.4";

/// The value of an attribute that is written beside those of a [`NodeView`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
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
}

/// An attribute: its name and its value.
pub type Attribute<'a> = (&'a str, Value<'a>);

/// Arguments or results of a node, each as the text of a Python literal; empty when unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Io<'a> {
    /// The values: `[[5, 6, 0, 1024, 4, 'cuda:0'], 1]`.
    pub values: &'a str,
    /// Their shapes: `[[32, 32], []]`.
    pub shapes: &'a str,
    /// Their types: `['Tensor(float)', 'Int']`.
    pub types: &'a str,
}

/// What a file says of a node beside its [`NodeView`]; replays skip all of it but `control`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extra<'a> {
    /// The nodes that it follows in program order.
    pub control: &'a [u64],
    /// Its arguments.
    pub inputs: Io<'a>,
    /// Its results.
    pub outputs: Io<'a>,
    /// Further attributes, in this order. One with the name of an attribute that replays read is
    /// refused unless the node means the same with it.
    pub attributes: &'a [Attribute<'a>],
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

    /// Starts a trace by writing its metadata record with these attributes. Readers know
    /// `captured_ns`, when the rank's last event ended, in nanoseconds from the start of the job.
    pub fn with_metadata(out: W, attributes: &[Attribute<'_>]) -> std::io::Result<Self> {
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

    /// Writes `node`, which consumes what the nodes `data` produce, and what is known beside.
    ///
    /// Fails when the sink does, on attributes that would make another node of it, and on groups
    /// that are declared by another node than [`NodeView::declaring`] makes.
    pub fn write(
        &mut self,
        node: &NodeView<'_>,
        data: &[u64],
        extra: &Extra<'_>,
    ) -> Result<(), TraceError> {
        let declares = node.op == Op::Nothing && node.name.contains(NODE_MARK);
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
        message.inputs = io_info(&extra.inputs);
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
        message.outputs = io_info(&extra.outputs);
        let reads = |(name, _): &&Attribute<'_>| scan::READ.contains(name);
        if let Some((name, _)) = extra.attributes.iter().find(reads) {
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
            .map_err(|source| TraceError::io(PathBuf::from("trace"), "write", source))
    }

    /// Gives back the byte sink; everything is written, nothing is flushed.
    pub fn into_inner(self) -> W {
        self.out
    }
}

impl<W: Write> Sink for TraceWriter<W> {
    fn node(&mut self, node: &NodeView<'_>, data: &[u64]) -> Result<(), TraceError> {
        self.write(node, data, &Extra::default())
    }
}

/// A file that appears under its name only when it is complete.
#[derive(Debug)]
pub struct NewFile {
    temporary: tempfile::NamedTempFile,
    path: PathBuf,
}

impl NewFile {
    /// Starts a file that will be called `path`, in the same folder.
    pub fn create(path: &Path) -> Result<Self, TraceError> {
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let io = |source| TraceError::io(path.to_owned(), "create", source);
        std::fs::create_dir_all(folder).map_err(io)?;
        let mut builder = tempfile::Builder::new();
        // The default of temporary files, 0600, would hide the result from everybody else.
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            builder.permissions(std::fs::Permissions::from_mode(0o644));
        }
        let temporary = builder.tempfile_in(folder).map_err(io)?;
        Ok(Self {
            temporary,
            path: path.to_owned(),
        })
    }

    /// Gives the file its name, replacing what was there.
    pub fn commit(self) -> Result<(), TraceError> {
        let Self { temporary, path } = self;
        match temporary.persist(&path) {
            Ok(_) => Ok(()),
            Err(e) => Err(TraceError::io(path, "rename into place", e.error)),
        }
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.temporary.write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        self.temporary.flush()
    }
}

/// Whether two records of a node mean the same to a replay.
fn same_node(a: &[u8], b: &[u8]) -> bool {
    struct Nobody;
    impl scan::Dependencies for Nobody {
        fn data(&mut self, _: u64) -> Result<(), TraceError> {
            Ok(())
        }
        fn control(&mut self, _: u64) -> Result<(), TraceError> {
            Ok(())
        }
    }
    let read = |bytes| {
        let record = Record {
            number: 0,
            offset: 0,
            bytes,
        };
        scan::node(record, &mut Nobody)
    };
    matches!((read(a), read(b)), (Ok(a), Ok(b)) if a == b)
}

fn attribute((name, value): &Attribute<'_>) -> AttributeProto {
    proto_attribute(
        name,
        match *value {
            Value::Int(v) => Proto::Int64Val(v),
            Value::Uint(v) => Proto::Uint64Val(v),
            Value::Bool(v) => Proto::BoolVal(v),
            Value::Text(text) => Proto::StringVal(text.to_owned()),
            Value::Ints(values) => Proto::Int64List(proto::Int64List {
                values: values.to_vec(),
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

/// `None` when nothing is known.
fn io_info(io: &Io<'_>) -> Option<proto::IoInfo> {
    (*io != Io::default()).then(|| proto::IoInfo {
        values: io.values.to_owned(),
        shapes: io.shapes.to_owned(),
        types: io.types.to_owned(),
    })
}

/// The message that says what `node` does.
fn message(node: &NodeView<'_>, data: &[u64]) -> proto::Node {
    let mut attr = Vec::new();
    let mut push = |name: &str, value| attr.push(proto_attribute(name, value));
    let host = match node.op {
        Op::Host => true,
        Op::Message { host, .. } | Op::Collective { host, .. } => host,
        _ => false,
    };
    if node.op != Op::Nothing {
        push("is_cpu_op", Proto::BoolVal(host));
    }
    if let Some(lane) = node.lane {
        let name = if host { "tid" } else { "stream" };
        push(name, Proto::Int64Val(lane));
    }
    if !node.recorded.0.is_multiple_of(1_000_000) {
        push("duration_ns", Proto::Uint64Val(node.recorded.0 / 1000));
    }
    for (name, span) in [("delay_ns", node.delay), ("wait_ns", node.wait)] {
        if span > Span::ZERO {
            push(name, Proto::Uint64Val(span.0 / 1000));
        }
    }
    if node.eager {
        push("eager", Proto::BoolVal(true));
    }
    let kind = match node.op {
        Op::Nothing if node.groups.is_some() => NodeType::MetadataNode,
        Op::Nothing => NodeType::InvalidNode,
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
            NodeType::CompNode
        }
        Op::Memory {
            store,
            place,
            bytes,
        } => {
            push("tensor_size", Proto::Uint64Val(bytes));
            let number = match place {
                MemoryPlace::Local => 1,
                MemoryPlace::Remote => 2,
            };
            push("tensor_loc", Proto::Uint32Val(number));
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
                // A list of all ones says "all", so one that is not meant to ends with a zero. Lists
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
    proto::Node {
        id: node.id,
        name: node.name.to_owned(),
        r#type: kind as i32,
        data_deps: data.to_vec(),
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
mod tests {
    use super::super::scan::{self, Dependencies};
    use super::super::wire::Frames;
    use super::super::{CollectiveKind, Dtype};
    use super::*;

    #[derive(Default)]
    struct Deps {
        data: Vec<u64>,
        control: Vec<u64>,
    }
    impl Dependencies for Deps {
        fn data(&mut self, id: u64) -> Result<(), TraceError> {
            self.data.push(id);
            Ok(())
        }
        fn control(&mut self, id: u64) -> Result<(), TraceError> {
            self.control.push(id);
            Ok(())
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let ops = [
            Op::Nothing,
            Op::Host,
            Op::Compute {
                flops: 7,
                bytes: 9,
                dtype: Some(Dtype::Fp8),
            },
            Op::Memory {
                store: true,
                place: MemoryPlace::Local,
                bytes: 64,
            },
            Op::Message {
                receive: true,
                peer: 3,
                tag: -2,
                bytes: 11,
                own: Some(1),
                host: false,
            },
            Op::Collective {
                kind: CollectiveKind::Broadcast,
                bytes: 1 << 40,
                group: GroupName::Text("tp_0"),
                root: Some(2),
                dimensions: Some(0b01),
                host: true,
            },
        ];
        for (i, op) in ops.into_iter().enumerate() {
            // No time at all, whole microseconds, and what they cannot say.
            for ns in [0, 5_000, 1_234] {
                let node = NodeView {
                    lane: Some(7),
                    recorded: Span::from_ns(ns),
                    delay: Span::from_ns(ns / 2),
                    wait: Span::from_ns(ns * 3),
                    eager: ns > 0,
                    ..NodeView::new(i as u64, "node é", op)
                };
                let mut writer = TraceWriter::new(Vec::new()).unwrap();
                writer.node(&node, &[5, 300, 1 << 40]).unwrap();
                let file = writer.into_inner();
                let mut deps = Deps::default();
                assert_eq!(scan::node(second(&file), &mut deps).unwrap(), node);
                assert_eq!((deps.data, deps.control), (vec![5, 300, 1 << 40], vec![]));
            }
        }
    }

    fn second(file: &[u8]) -> Record<'_> {
        let mut frames = Frames::new(file);
        frames.next_record().unwrap().unwrap();
        frames.next_record().unwrap().unwrap()
    }

    const KERNEL: Op<'_> = Op::Compute {
        flops: 0,
        bytes: 0,
        dtype: None,
    };

    #[test]
    fn what_replays_skip_is_in_the_file_all_the_same() {
        let mut writer = TraceWriter::with_metadata(
            Vec::new(),
            &[
                ("schema", Value::Text("1.1.1")),
                ("captured_ns", Value::Uint(9)),
            ],
        )
        .unwrap();
        let extra = Extra {
            control: &[3, 1 << 33],
            inputs: Io {
                values: "[1]",
                shapes: "[[]]",
                types: "['Int']",
            },
            outputs: Io::default(),
            attributes: &[
                ("rf_id", Value::Int(-1)),
                ("ts", Value::Uint(u64::MAX)),
                ("is_async", Value::Bool(true)),
                ("op_schema", Value::Text("f(int a) -> int")),
                ("splits", Value::Ints(&[4, -4])),
            ],
        };
        let node = NodeView {
            recorded: Span::from_ns(7),
            ..NodeView::new(8, "f", KERNEL)
        };
        writer.write(&node, &[2], &extra).unwrap();
        let file = writer.into_inner();
        let mut deps = Deps::default();
        assert_eq!(scan::node(second(&file), &mut deps).unwrap(), node);
        assert_eq!((deps.data, deps.control), (vec![2], vec![3, 1 << 33]));
        let first = Frames::new(&file).next_record().unwrap().unwrap();
        let captured = scan::metadata(first).unwrap().captured;
        assert_eq!(captured, Some(Span::from_ns(9)));
        let metadata = proto::GlobalMetadata::decode(first.bytes).unwrap();
        let schema = Some(Proto::StringVal("1.1.1".to_owned()));
        assert_eq!(
            (&*metadata.attr[0].name, &metadata.attr[0].value),
            ("schema", &schema)
        );

        let written = proto::Node::decode(second(&file).bytes).unwrap();
        let inputs = written.inputs.unwrap();
        let texts = (&*inputs.values, &*inputs.shapes, &*inputs.types);
        assert_eq!((texts, written.outputs), (("[1]", "[[]]", "['Int']"), None));
        let list = proto::Int64List {
            values: vec![4, -4],
        };
        let wanted = [
            ("rf_id", Proto::Int64Val(-1)),
            ("ts", Proto::Uint64Val(u64::MAX)),
            ("is_async", Proto::BoolVal(true)),
            ("op_schema", Proto::StringVal("f(int a) -> int".to_owned())),
            ("splits", Proto::Int64List(list)),
        ];
        let found = &written.attr[written.attr.len() - wanted.len()..];
        for (found, (name, value)) in found.iter().zip(wanted) {
            assert_eq!((&*found.name, &found.value), (name, &Some(value)));
        }
    }

    #[test]
    fn attributes_may_not_contradict_the_node() {
        let write = |node: &NodeView<'_>, attribute: Attribute<'_>| {
            let mut writer = TraceWriter::new(Vec::new()).unwrap();
            let extra = Extra {
                attributes: &[attribute],
                ..Extra::default()
            };
            writer.write(node, &[], &extra).map_err(|e| e.to_string())
        };
        let kernel = NodeView {
            lane: Some(7),
            ..NodeView::new(5, "mm", KERNEL)
        };
        // The stream of a kernel goes before its thread, which may therefore stand beside it.
        write(&kernel, ("tid", Value::Int(3))).unwrap();
        write(&kernel, ("stream", Value::Int(7))).unwrap();
        let error = write(&kernel, ("stream", Value::Int(8))).unwrap_err();
        assert!(
            error.contains("node 5") && error.contains("`stream`"),
            "{error}"
        );
        assert!(write(&kernel, ("duration_ns", Value::Uint(5))).is_err());
        assert!(write(&kernel, ("delay_ns", Value::Bool(true))).is_err());
        let bare = NodeView::new(5, "mm", KERNEL);
        assert!(write(&bare, ("tid", Value::Int(3))).is_err());
    }

    #[test]
    fn declared_groups_are_read_back() {
        let text = r#"[{"pg_name": "1", "ranks": [0, 2]}]"#;
        let declaring = NodeView::declaring(4, text);
        let mut writer = TraceWriter::new(Vec::new()).unwrap();
        writer.node(&declaring, &[]).unwrap();
        let file = writer.into_inner();
        let back = scan::node(second(&file), &mut Deps::default()).unwrap();
        assert_eq!(back, declaring);
        let written = proto::Node::decode(second(&file).bytes).unwrap();
        assert_eq!(written.r#type, NodeType::MetadataNode as i32);
        // Another node would lose them.
        let mut writer = TraceWriter::new(Vec::new()).unwrap();
        let kernel = NodeView {
            groups: Some(text),
            ..NodeView::new(4, "mm", KERNEL)
        };
        assert!(writer.node(&kernel, &[]).is_err());
        let twice = Extra {
            inputs: Io {
                values: "[]",
                ..Io::default()
            },
            ..Extra::default()
        };
        assert!(writer.write(&declaring, &[], &twice).is_err());
    }
}
