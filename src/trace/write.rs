//! Writing traces: generated nodes become the generated message types, framed, then renamed into
//! place.

use super::TraceError;
use super::op::{GroupName, MemoryPlace, Op};
use super::proto::{self, AttributeProto, NodeType, attribute_proto::Value};
use super::scan::NodeView;
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

/// Writes one rank's trace into any byte sink.
#[derive(Debug)]
pub struct TraceWriter<W> {
    out: W,
    buffer: Vec<u8>,
}

impl<W: Write> TraceWriter<W> {
    /// Starts a trace by writing its metadata record.
    pub fn new(out: W) -> std::io::Result<Self> {
        let mut this = Self {
            out,
            buffer: Vec::new(),
        };
        this.frame(&proto::GlobalMetadata {
            version: SCHEMA_VERSION.to_owned(),
            attr: Vec::new(),
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

    /// Gives back the byte sink; everything is written, nothing is flushed.
    pub fn into_inner(self) -> W {
        self.out
    }
}

impl<W: Write> Sink for TraceWriter<W> {
    fn node(&mut self, node: &NodeView<'_>, data: &[u64]) -> Result<(), TraceError> {
        self.frame(&message(node, data))
            .map_err(|source| TraceError::io(PathBuf::from("trace"), "write", source))
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

/// The message that says what `node` does.
fn message(node: &NodeView<'_>, data: &[u64]) -> proto::Node {
    let mut attr = Vec::new();
    let mut push = |name: &str, value| {
        attr.push(AttributeProto {
            name: name.to_owned(),
            doc_string: String::new(),
            value: Some(value),
        });
    };
    let host = match node.op {
        Op::Host => true,
        Op::Message { host, .. } | Op::Collective { host, .. } => host,
        _ => false,
    };
    if node.op != Op::Nothing {
        push("is_cpu_op", Value::BoolVal(host));
    }
    if let Some(lane) = node.lane {
        let name = if host { "tid" } else { "stream" };
        push(name, Value::Int64Val(lane));
    }
    if !node.recorded.0.is_multiple_of(1_000_000) {
        push("duration_ns", Value::Uint64Val(node.recorded.0 / 1000));
    }
    let kind = match node.op {
        Op::Nothing => NodeType::InvalidNode,
        Op::Host => NodeType::CompNode,
        Op::Compute {
            flops,
            bytes,
            dtype,
        } => {
            push("num_ops", Value::Int64Val(flops as i64));
            push("tensor_size", Value::Uint64Val(bytes));
            if let Some(dtype) = dtype {
                push("dtype", Value::StringVal(dtype.to_string()));
            }
            NodeType::CompNode
        }
        Op::Memory {
            store,
            place,
            bytes,
        } => {
            push("tensor_size", Value::Uint64Val(bytes));
            let number = match place {
                MemoryPlace::Local => 1,
                MemoryPlace::Remote => 2,
            };
            push("tensor_loc", Value::Uint32Val(number));
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
            push(far, Value::Int32Val(peer as i32));
            if let Some(own) = own {
                push(near, Value::Int32Val(own as i32));
            }
            push("comm_tag", Value::Int32Val(tag));
            push("comm_size", Value::Int64Val(bytes as i64));
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
            push("comm_type", Value::Int64Val(kind.comm_type() as i64));
            push("comm_size", Value::Int64Val(bytes as i64));
            match group {
                GroupName::World => {}
                GroupName::Number(n) => push("pg_name", Value::StringVal(n.to_string())),
                GroupName::Text(text) => push("pg_name", Value::StringVal(text.to_owned())),
            }
            if let Some(root) = root {
                push("comm_root", Value::Int32Val(root as i32));
            }
            if let Some(mask) = dimensions {
                // A list of all ones says "all", so one that is not meant to ends with a zero. Lists
                // have 32 entries at most.
                let highest = 32 - mask.leading_zeros();
                let ones = mask.trailing_ones() == highest && highest < 32;
                let values = (0..highest + u32::from(ones)).map(|i| mask >> i & 1 == 1);
                push(
                    "involved_dim",
                    Value::BoolList(proto::BoolList {
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
        ..proto::Node::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::scan::{self, Dependencies};
    use super::super::wire::Frames;
    use super::super::{CollectiveKind, Dtype};
    use super::*;
    use crate::units::Span;

    #[derive(Default)]
    struct Deps(Vec<u64>);
    impl Dependencies for Deps {
        fn data(&mut self, id: u64) -> Result<(), TraceError> {
            self.0.push(id);
            Ok(())
        }
        fn control(&mut self, _: u64) -> Result<(), TraceError> {
            panic!("none was written")
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
            let node = NodeView {
                id: i as u64,
                name: "node é",
                op,
                lane: Some(7),
                recorded: Span::from_ns(1_234),
                groups: None,
            };
            let mut writer = TraceWriter::new(Vec::new()).unwrap();
            writer.node(&node, &[5, 300, 1 << 40]).unwrap();
            let file = writer.into_inner();
            let mut frames = Frames::new(&file);
            frames.next_record().unwrap().unwrap();
            let record = frames.next_record().unwrap().unwrap();
            let mut deps = Deps::default();
            let back = scan::node(record, &mut deps).unwrap();
            assert_eq!((back.id, back.name, back.op), (node.id, node.name, node.op));
            assert_eq!((back.lane, back.recorded), (node.lane, node.recorded));
            assert_eq!(deps.0, [5, 300, 1 << 40]);
        }
    }
}
