//! Oracle for the fast reader of records. The oracle is based on the generated types, and shares no code with the fast
//! reader.

use super::coerce::{
    coerce_list_to_bit_mask, coerce_to_bool, coerce_to_count, coerce_to_group_name,
    coerce_to_integer, parse_dtype_from_value, text_if_value_is_text,
};
use chakram_trace::format::proto::{AttributeProto, Node, attribute_proto::Value};
use chakram_trace::format::scan::{self, DependencyVisitor};
use chakram_trace::format::wire::RawRecord;
use chakram_trace::format::{
    CollectiveKind, GroupName, KernelShape, MemoryLocation, Op, TraceError,
};
use prost::Message;

/// What a reader returns for a node: the fields and the dependencies.
#[derive(Debug, PartialEq)]
pub struct ReadNodeFieldsAndDependencies<'a> {
    pub id: u64,
    pub name: &'a str,
    pub op: Op<'a>,
    pub lane: Option<i64>,
    pub recorded_ps: u64,
    pub delay_ps: u64,
    pub wait_ps: u64,
    pub eager: bool,
    pub groups: Option<&'a str>,
    /// Bytes allocated, then bytes freed. Each list has the order weights, gradients, optimizer, activations, temporary
    /// buffers.
    pub memory: [[u64; 5]; 2],
    /// Bytes that the node allocates in remote memory.
    pub remote: u64,
    pub data: Vec<u64>,
    pub control: Vec<u64>,
}

#[derive(Default)]
struct OneNodeDependencyIds {
    data: Vec<u64>,
    control: Vec<u64>,
}

impl DependencyVisitor for OneNodeDependencyIds {
    fn visit_data_dependency(&mut self, id: u64) -> Result<(), TraceError> {
        self.data.push(id);
        Ok(())
    }
    fn visit_control_dependency(&mut self, id: u64) -> Result<(), TraceError> {
        self.control.push(id);
        Ok(())
    }
}

/// Reads `record` with the fast reader.
pub fn scan_record_with_fast_reader(
    record: RawRecord<'_>,
) -> Result<ReadNodeFieldsAndDependencies<'_>, TraceError> {
    let mut lists = OneNodeDependencyIds::default();
    let node = scan::scan_node(record, &mut lists)?;
    Ok(ReadNodeFieldsAndDependencies {
        id: node.id,
        name: node.name,
        op: node.op,
        lane: node.lane,
        recorded_ps: node.recorded.0,
        delay_ps: node.delay.0,
        wait_ps: node.wait.0,
        eager: node.eager,
        groups: node.groups,
        memory: [node.memory.allocates, node.memory.frees],
        remote: node.memory.remote,
        data: lists.data,
        control: lists.control,
    })
}

/// Checks that the fast reader and the generated types agree on one record. Skips invalid messages: the fast reader may
/// accept them, because it does not read text that replays do not need.
pub fn check_readers_agree(record: RawRecord<'_>) {
    let found = scan_record_with_fast_reader(record);
    let Ok(node) = Node::decode(record.bytes) else {
        return;
    };
    match (build_expected_node(&node), found) {
        (Ok(expected), Ok(found)) => assert_eq!(found, expected),
        (Err(_), Err(error)) => assert!(!error.to_string().is_empty()),
        (expected, found) => panic!("expected {expected:?}, found {found:?} in {node:?}"),
    }
}

/// Reason why every reader must reject a node.
type NodeRejectionReason = &'static str;

/// Returns the expected view of `node`, or the reason why the node is invalid.
pub fn build_expected_node(
    node: &Node,
) -> Result<ReadNodeFieldsAndDependencies<'_>, NodeRejectionReason> {
    let facts = NodeAttributeReader { node };
    facts.check_all_attributes_readable()?;
    let host = facts
        .last_attribute_value(&["is_cpu_op"], coerce_to_bool)?
        .unwrap_or(false);
    let stream = facts.last_attribute_value(&["stream"], coerce_to_integer)?;
    let micros = node.duration_micros.saturating_mul(1_000_000);
    let exact = facts.last_attribute_value(&["duration_ns"], coerce_to_count)?;
    let ps = |name| -> Result<u64, NodeRejectionReason> {
        Ok(facts
            .read_count_attribute(name)?
            .unwrap_or(0)
            .saturating_mul(1000))
    };
    let values = node.inputs.as_ref().map_or("", |io| io.values.as_str());
    let declares = node.r#type == 1 && node.name.contains("process_group:init");
    Ok(ReadNodeFieldsAndDependencies {
        id: node.id,
        name: &node.name,
        op: facts.op(host)?,
        lane: match stream {
            Some(stream) if !host => Some(stream),
            _ => facts.last_attribute_value(&["tid"], coerce_to_integer)?,
        },
        recorded_ps: exact.map_or(micros, |ns| ns.saturating_mul(1000)),
        delay_ps: ps("delay_ns")?,
        wait_ps: ps("wait_ns")?,
        eager: facts
            .last_attribute_value(&["eager"], coerce_to_bool)?
            .unwrap_or(false),
        groups: Some(values).filter(|text| declares && !text.is_empty()),
        memory: facts.read_memory_changes()?,
        remote: facts.read_count_attribute("allocates.remote")?.unwrap_or(0),
        data: node.data_deps.clone(),
        control: node.ctrl_deps.clone(),
    })
}

const COUNTS: [&str; 8] = [
    "num_ops",
    "tensor_size",
    "tensor_loc",
    "comm_type",
    "comm_size",
    "comm_src",
    "comm_dst",
    "comm_root",
];

const MEMORY: [&str; 5] = [
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "temporary",
];

struct NodeAttributeReader<'a> {
    node: &'a Node,
}

impl<'a> NodeAttributeReader<'a> {
    /// Reads the values of all attributes with one of these names, and returns the last value.
    fn last_attribute_value<T>(
        &self,
        names: &[&str],
        read: fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, NodeRejectionReason> {
        let named = |a: &&AttributeProto| names.contains(&a.name.as_str());
        let values = self.node.attr.iter().filter(named);
        let mut read = values.filter_map(|a| a.value.as_ref()).map(read);
        read.try_fold(None, |_, value| value.map(Some))
            .ok_or("an attribute that cannot be read")
    }

    /// Readers decode known attributes on nodes of every type, so an invalid one is always an error.
    fn check_all_attributes_readable(&self) -> Result<(), NodeRejectionReason> {
        for name in COUNTS {
            self.last_attribute_value(&[name], coerce_to_count)?;
        }
        self.last_attribute_value(&["tid"], coerce_to_integer)?;
        self.last_attribute_value(&["comm_tag"], coerce_to_integer)?;
        self.last_attribute_value(&["dtype"], parse_dtype_from_value)?;
        self.last_attribute_value(&["in_switch"], text_if_value_is_text)?;
        self.last_attribute_value(&["kernel_shape"], |value| {
            text_if_value_is_text(value)?.parse::<KernelShape>().ok()
        })?;
        self.last_attribute_value(&["involved_dim", "involve_dims"], coerce_list_to_bit_mask)?;
        self.last_attribute_value(&["pg_name", "comm_group"], coerce_to_group_name)
            .map(drop)
    }

    fn read_memory_changes(&self) -> Result<[[u64; 5]; 2], NodeRejectionReason> {
        let mut memory = [[0; 5]; 2];
        for (verb, bytes) in ["allocates", "frees"].into_iter().zip(&mut memory) {
            for (class, bytes) in MEMORY.into_iter().zip(bytes) {
                *bytes = self
                    .read_count_attribute(&format!("{verb}.{class}"))?
                    .unwrap_or(0);
            }
        }
        Ok(memory)
    }

    fn read_count_attribute(&self, name: &str) -> Result<Option<u64>, NodeRejectionReason> {
        self.last_attribute_value(&[name], coerce_to_count)
    }

    fn read_rank_attribute(&self, name: &str) -> Result<Option<u32>, NodeRejectionReason> {
        match self.read_count_attribute(name)?.map(u32::try_from) {
            None => Ok(None),
            Some(Ok(rank)) => Ok(Some(rank)),
            Some(Err(_)) => Err("no rank"),
        }
    }

    fn op(&self, host: bool) -> Result<Op<'a>, NodeRejectionReason> {
        let size = self.read_count_attribute("comm_size")?;
        let launch = host && size.is_none();
        let bounded = |size: u64| {
            i64::try_from(size)
                .map(|_| size)
                .map_err(|_| "negative size")
        };
        let in_switch = self.last_attribute_value(&["in_switch"], text_if_value_is_text)?;
        if in_switch.is_some() && ![2, 3].contains(&self.node.r#type) {
            return Err("a switch, and no memory");
        }
        Ok(match self.node.r#type {
            0 | 1 => Op::NoOp,
            kind @ (2 | 3) => Op::Memory {
                store: kind == 3,
                place: match self.read_count_attribute("tensor_loc")? {
                    None | Some(0 | 2) => MemoryLocation::Remote,
                    Some(1) => MemoryLocation::Local,
                    Some(_) => return Err("no memory"),
                },
                bytes: self.read_count_attribute("tensor_size")?.unwrap_or(0),
                in_switch: match (in_switch, kind, self.read_count_attribute("tensor_loc")?) {
                    (None, ..) => false,
                    (Some("all_gather"), 2, place) if place != Some(1) => true,
                    (Some("reduce_scatter"), 3, place) if place != Some(1) => true,
                    _ => return Err("nothing that switches do"),
                },
            },
            4 if host => Op::Host,
            4 if self
                .last_attribute_value(&["comm_unknown"], coerce_to_bool)?
                .unwrap_or(false) =>
            {
                Op::Communication {
                    bytes: self.read_count_attribute("tensor_size")?.unwrap_or(0),
                }
            }
            4 => Op::Compute {
                flops: self.read_count_attribute("num_ops")?.unwrap_or(0),
                bytes: self.read_count_attribute("tensor_size")?.unwrap_or(0),
                dtype: self
                    .last_attribute_value(&["dtype"], parse_dtype_from_value)?
                    .flatten(),
            },
            5..=7 if launch => Op::Host,
            kind @ (5 | 6) => {
                let (far, near) = match kind {
                    5 => ("comm_dst", "comm_src"),
                    _ => ("comm_src", "comm_dst"),
                };
                let tag = self
                    .last_attribute_value(&["comm_tag"], coerce_to_integer)?
                    .unwrap_or(0);
                Op::Message {
                    receive: kind == 6,
                    peer: self
                        .read_rank_attribute(far)?
                        .ok_or("nobody at the other end")?,
                    tag: i32::try_from(tag).map_err(|_| "a long tag")?,
                    bytes: bounded(size.ok_or("no size")?)?,
                    own: self.read_rank_attribute(near)?,
                    host,
                }
            }
            7 => {
                let kind = self
                    .read_count_attribute("comm_type")?
                    .ok_or("no collective")?;
                let kind = collective_kind_from_number(kind).ok_or("an unknown collective")?;
                let size = match (size, kind) {
                    (None, CollectiveKind::Barrier) => 0,
                    (size, _) => size.ok_or("no size")?,
                };
                Op::Collective {
                    kind,
                    bytes: bounded(size)?,
                    group: self
                        .last_attribute_value(&["pg_name", "comm_group"], coerce_to_group_name)?
                        .unwrap_or(GroupName::World),
                    root: self.read_rank_attribute("comm_root")?,
                    dimensions: self
                        .last_attribute_value(
                            &["involved_dim", "involve_dims"],
                            coerce_list_to_bit_mask,
                        )?
                        .flatten(),
                    host,
                }
            }
            _ => return Err("no such type"),
        })
    }
}

fn collective_kind_from_number(number: u64) -> Option<CollectiveKind> {
    use CollectiveKind as C;
    Some(match number {
        0 => C::AllReduce,
        1 => C::Reduce,
        2 => C::AllGather,
        3 => C::Gather,
        4 => C::Scatter,
        5 => C::Broadcast,
        6 => C::AllToAll,
        7 | 8 => C::ReduceScatter,
        9 => C::Barrier,
        _ => return None,
    })
}
