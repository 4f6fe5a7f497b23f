//! Fast reader of node records. The reader makes one pass over the bytes, without copies or allocations.

use super::attr::{self, AttrView, NodeAttributesReadByReplays};
use super::groups::{NODE_MARK, NODE_NAME};
use super::op::Op;
use super::origin::{CallStacks, NodeCallerStepAndStack};
use super::profiler_cost::{ProfilerOverheadAttributeCollector, ProfilerOverheadFacts};
use super::roles::{self, GroupRoles};
use super::split_sizes::AllToAllSplitText;
use super::utf8::as_utf8;
use super::wire::{RawRecord, WireCursor, WireValue, visit_repeated_varints};
use super::work_amounts::{self, JobSamplesAndModelFlops};
use super::{KernelShape, NodeMemoryChanges, NodePhaseStageLayerAndShapes, TraceError};
use chakram_base::collective_kind::CollectiveKind;
use chakram_base::units::Span;

/// Receives a node's dependencies while the node's record is scanned.
pub trait DependencyVisitor {
    /// Visits a data dependency: the node consumes results of node `id`.
    fn visit_data_dependency(&mut self, id: u64) -> Result<(), TraceError>;
    /// Visits a control dependency: the node comes after node `id` in program order.
    fn visit_control_dependency(&mut self, id: u64) -> Result<(), TraceError>;
}

/// A node's record without its dependencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeView<'a> {
    /// The node's id in the file.
    pub id: u64,
    /// Name of the node.
    pub name: &'a str,
    /// Operation of the node.
    pub op: Op<'a>,
    /// Class and shape of a kernel, if the trace states them.
    pub kernel: Option<KernelShape>,
    /// Stream or thread, if the trace names one.
    pub lane: Option<i64>,
    /// Recorded duration, or zero if the trace does not state it. For a communication node with a [`wait`](Self::wait),
    /// `recorded` is the duration of the transfer alone.
    pub recorded: Span,
    /// The schema's duration field, in whole microseconds; `recorded` may be more exact.
    pub micros: u64,
    /// Host time (launch overhead) from the completion of the node's last dependency to the time at which the node is
    /// ready. For a node without dependencies, the delay begins at the rank's release.
    pub delay: Span,
    /// Recorded time that a communication node waited for its peers before the transfer. `recorded` does not include
    /// this waiting time.
    pub wait: Span,
    /// Estimated time that the profiler added to `delay` and `recorded` together.
    pub profiler: Span,
    /// True if this node did not wait for its peers; the node is a send or one member's part of a collective.
    pub eager: bool,
    /// True if the size of a collective or message is unknown, regardless of the size in `op`. A
    /// node of unknown size takes its recorded duration.
    pub size_unknown: bool,
    /// True if the FLOPs of a kernel are unknown, regardless of the FLOPs in `op`. The bytes may still be known.
    pub flops_unknown: bool,
    /// Recorded start in microseconds. The clock is unspecified. The start is zero if the file does not state it;
    /// nearly all tools omit this field. Replays ignore this field.
    pub start_micros: u64,
    /// JSON text that declares the process groups, if this is the metadata node that declares them.
    pub groups: Option<&'a str>,
    /// Bytes that the node allocates on its NPU, and bytes that it frees there.
    pub memory: NodeMemoryChanges,
    /// Bytes that this member of an all-to-all exchanges with each member, if the parts are unequal.
    pub splits: AllToAllSplitText<'a>,
    /// Labels that place the node in its job. The writer writes all labels. The reader reads only the phase, because
    /// replays need no other.
    pub labels: NodePhaseStageLayerAndShapes<'a>,
    /// Labels that place the node in the captured program. Callers pass it to the writer as separate
    /// [attributes](super::origin).
    pub origin: NodeCallerStepAndStack,
}

impl<'a> NodeView<'a> {
    /// Creates a node without a lane or a duration.
    pub fn new(id: u64, name: &'a str, op: Op<'a>) -> Self {
        Self {
            id,
            name,
            op,
            kernel: None,
            lane: None,
            recorded: Span::ZERO,
            micros: 0,
            delay: Span::ZERO,
            wait: Span::ZERO,
            profiler: Span::ZERO,
            eager: false,
            size_unknown: false,
            flops_unknown: false,
            start_micros: 0,
            groups: None,
            memory: NodeMemoryChanges::default(),
            splits: AllToAllSplitText::default(),
            labels: NodePhaseStageLayerAndShapes::default(),
            origin: NodeCallerStepAndStack::default(),
        }
    }

    /// Creates the metadata node that declares process groups in `text`, as returned by
    /// [`metadata_text`](super::groups::metadata_text).
    pub fn declare_groups(id: u64, text: &'a str) -> Self {
        Self {
            groups: Some(text),
            ..Self::new(id, NODE_NAME, Op::NoOp)
        }
    }
}

/// Content of a file's first record, the metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceMetadata {
    /// Recorded time at which the rank's last event ended, relative to the start of the job.
    pub captured: Option<Span>,
    /// Names of lanes: (true for a host thread, lane number, name).
    pub lanes: Vec<(bool, i64, String)>,
    /// Roles of groups.
    pub roles: GroupRoles,
    /// True if the trace's kernels are operators that ran on a CPU.
    pub kernels_on_cpu: bool,
    /// Work done by the whole job, if the trace states it.
    pub amounts: Option<JobSamplesAndModelFlops>,
    /// Facts in the trace about the profiler that captured the job.
    pub profiler: ProfilerOverheadFacts,
    /// Coordinates (x, y) of the rank's core on a machine of tiles.
    pub core: Option<[u32; 2]>,
    /// Number of kernels that were launched during the capture but dropped by the profiler.
    pub dropped_kernels: u64,
    /// Number of ranks in the job, if the trace states it.
    pub world_size: Option<u32>,
    /// Device, host and software of the capture, as far as the trace states them.
    pub captured_on: CaptureEnvironment,
    /// Python calls during which the trace's nodes ran.
    pub stacks: CallStacks,
    /// Collective that the trace implements as one member of a custom algorithm, if the trace states it.
    pub algorithm_of: Option<CollectiveKind>,
    /// Size in bytes of the collective's whole buffer for which a custom algorithm was written, if the trace states it.
    pub algorithm_bytes: Option<u64>,
}

/// Device, host and software that a job used when it was captured. A field is `None` if the capture does not state it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct CaptureEnvironment {
    /// Name of the device, such as `Tesla V100-SXM2-32GB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Name of the host on which the job ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Software with versions, such as `cuda_runtime 12060, nccl 2.21.5`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub software: Option<String>,
}

impl CaptureEnvironment {
    /// Names of the metadata attributes that encode this context, in the order of the fields.
    pub const ATTRIBUTES: [&str; 3] = [
        "captured_on_device",
        "captured_on_host",
        "captured_on_software",
    ];

    fn field_mut(&mut self, attribute: &[u8]) -> Option<&mut Option<String>> {
        let place = Self::ATTRIBUTES
            .iter()
            .position(|name| name.as_bytes() == attribute)?;
        let fields = [&mut self.device, &mut self.host, &mut self.software];
        fields.into_iter().nth(place)
    }

    /// Iterates over the attributes that encode this context, with their values.
    pub fn attributes(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let values = [&self.device, &self.host, &self.software];
        let said = Self::ATTRIBUTES.into_iter().zip(values);
        said.filter_map(|(name, value)| Some((name, value.as_deref()?)))
    }
}

/// Metadata attribute that states the number of ranks in the job.
pub const WORLD_SIZE: &str = "world_size";

/// Metadata attribute that states how many kernels the profiler dropped.
pub const DROPPED_KERNELS: &str = "dropped_kernels";

/// Metadata attribute that states the rank's coordinates on a machine of tiles, such as `3,1`.
pub const CORE: &str = "core";

/// Metadata attribute that names the collective that the members of a custom algorithm perform, such as `all-reduce`.
pub const ALGORITHM_OF: &str = "algorithm_of";

/// Metadata attribute that states the size of the collective's buffer for which a custom algorithm was written, in
/// bytes.
pub const ALGORITHM_BYTES: &str = "algorithm_bytes";

/// Metadata attribute that states where a captured job's kernels ran: [`CPU`] or [`DEVICE`].
pub const KERNELS_ON: &str = "kernels_on";
/// Value of [`KERNELS_ON`] if the kernels ran on threads of the host.
pub const CPU: &str = "cpu";
/// Value of [`KERNELS_ON`] if the kernels ran on accelerators.
pub const DEVICE: &str = "device";

/// Parses an attribute name of the form `host_lane.N` or `lane.N`. Returns N, and whether the lane is a host lane.
fn parse_lane_name(name: &[u8]) -> Option<(bool, i64)> {
    let name = std::str::from_utf8(name).ok()?;
    match name.strip_prefix("host_lane.") {
        Some(number) => Some((true, number.parse().ok()?)),
        None => Some((false, name.strip_prefix("lane.")?.parse().ok()?)),
    }
}

/// Parses coordinates such as `3,1`.
fn parse_core_position(text: &str) -> Option<[u32; 2]> {
    let (x, y) = text.split_once(',')?;
    Some([x.trim().parse().ok()?, y.trim().parse().ok()?])
}

/// Reads a file's first record, the metadata.
///
/// Schema versions differ in their metadata, so a wrong type is an error only in the attributes that readers need.
pub fn read_metadata(record: RawRecord<'_>) -> Result<TraceMetadata, TraceError> {
    let mut metadata = TraceMetadata::default();
    let mut profiler = ProfilerOverheadAttributeCollector::default();
    let mut cursor = WireCursor::new(record.bytes, record.offset);
    while !cursor.is_empty() {
        let Ok((number, raw)) = cursor.read_field() else {
            break;
        };
        if let (2, WireValue::Bytes(message, offset)) = (number, raw)
            && let Ok(attr) = AttrView::scan_attribute(message, offset)
            && attr.is_set()
        {
            if attr.name == b"captured_ns" {
                let ns = attr.as_count();
                let ns = ns.map_err(|e| e.in_record(record.number, record.offset))?;
                metadata.captured = Some(Span::from_ns(ns));
            } else if attr.name == WORLD_SIZE.as_bytes() {
                // Other tools write arbitrary text in this attribute, so an invalid number is not an error.
                metadata.world_size = attr.as_count().ok().and_then(|n| u32::try_from(n).ok());
            } else if attr.name == ALGORITHM_OF.as_bytes() {
                let mut all = CollectiveKind::ALL.iter();
                let stated = attr.as_str().ok().flatten();
                let found = all.find(|(_, name, _)| stated == Some(name));
                metadata.algorithm_of = found.map(|(kind, ..)| *kind);
            } else if attr.name == ALGORITHM_BYTES.as_bytes() {
                metadata.algorithm_bytes = attr.as_count().ok();
            } else if let Some(field) = metadata.captured_on.field_mut(attr.name) {
                *field = attr.as_str().ok().flatten().map(str::to_owned);
            } else if attr.name == DROPPED_KERNELS.as_bytes() {
                metadata.dropped_kernels = attr.as_count().unwrap_or(0);
            } else if profiler.store_known_attribute(&attr)
                || metadata.stacks.store_known_attribute(&attr)?
            {
                // The call in the condition has already stored the value.
            } else if let (true, Ok(Some(text))) =
                (attr.name == roles::ATTRIBUTE.as_bytes(), attr.as_str())
            {
                let Ok(found) = text.parse();
                metadata.roles = found;
            } else if let (true, Ok(Some(text))) =
                (attr.name == KERNELS_ON.as_bytes(), attr.as_str())
            {
                metadata.kernels_on_cpu = text == CPU;
            } else if let (true, Ok(Some(text))) = (
                attr.name == work_amounts::ATTRIBUTE.as_bytes(),
                attr.as_str(),
            ) {
                metadata.amounts = JobSamplesAndModelFlops::parse_attribute(text);
            } else if attr.name == CORE.as_bytes() {
                let core = attr.as_str().ok().flatten().and_then(parse_core_position);
                let core = core.ok_or_else(|| {
                    let why = format!("attribute `{CORE}` is not the place of a core, expected x and y such as `3,1`");
                    TraceError::malformed_at(offset, why).in_record(record.number, record.offset)
                })?;
                metadata.core = Some(core);
            } else if let (Some((host, number)), Ok(Some(name))) =
                (parse_lane_name(attr.name), attr.as_str())
            {
                metadata.lanes.push((host, number, name.to_owned()));
            }
        }
    }
    metadata.profiler = profiler.into();
    metadata.stacks = metadata.stacks.drop_unless_all_named();
    Ok(metadata)
}

/// Scans one node record, and passes the node's dependencies to `deps` in file order.
///
/// Fails if the bytes break the wire format, if a text field is not UTF-8, or if an attribute is invalid for the
/// node's type.
#[inline(always)]
pub fn scan_node<'a>(
    record: RawRecord<'a>,
    deps: &mut impl DependencyVisitor,
) -> Result<NodeView<'a>, TraceError> {
    // All steps of the scan except the first are inlined, so that the compiler can skip view fields that a caller does
    // not use.
    let mut fields = UncheckedNodeFields::default();
    fields
        .read_fields(record, deps)
        .and_then(|()| fields.decode_name_op_and_groups(record))
        .map_err(|e| e.in_record(record.number, record.offset))
        .map(|(name, op, groups)| fields.build_view_without_checks(name, op, groups))
}

/// Fields of a node as they were read, before they are checked against each other.
#[derive(Default)]
struct UncheckedNodeFields<'a> {
    id: u64,
    kind: u64,
    micros: u64,
    start_micros: u64,
    name: &'a [u8],
    facts: NodeAttributesReadByReplays<'a>,
}

/// A node's name, its operation, and the text that declares its groups.
type NameOpAndGroupText<'a> = (&'a str, Op<'a>, Option<&'a str>);

impl<'a> UncheckedNodeFields<'a> {
    #[inline(never)]
    fn read_fields(
        &mut self,
        record: RawRecord<'a>,
        deps: &mut impl DependencyVisitor,
    ) -> Result<(), TraceError> {
        let mut cursor = WireCursor::new(record.bytes, record.offset);
        while !cursor.is_empty() {
            // This gives the same result as the general path below, but keeps the state in registers. Speed matters
            // here: a typical node has ten attributes.
            if let Some(attr) = AttrView::scan_attribute_fast(&mut cursor) {
                attr::store_attribute_if_replays_read_it(attr, &mut self.facts)?;
                continue;
            }
            let at = cursor.file_offset();
            match cursor.read_field()? {
                (1, WireValue::Varint(v)) => self.id = v,
                (2, WireValue::Bytes(bytes, _)) => self.name = bytes,
                // Protobuf truncates enums to 32 bits, regardless of the varint's length.
                (3, WireValue::Varint(v)) => self.kind = u64::from(v as u32),
                (4, raw) => {
                    visit_repeated_varints(raw, at, |dep| deps.visit_control_dependency(dep))?
                }
                (5, raw) => visit_repeated_varints(raw, at, |dep| deps.visit_data_dependency(dep))?,
                (6, WireValue::Varint(v)) => self.start_micros = v,
                (7, WireValue::Varint(v)) => self.micros = v,
                (8 | 9, WireValue::Bytes(..)) => {}
                (10, WireValue::Bytes(message, offset)) => {
                    read_and_store_attribute(message, offset, &mut self.facts)?;
                }
                (1..=10, _) => {
                    return Err(TraceError::malformed_at(
                        at,
                        "a field of a node has the wrong wire type",
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn decode_name_op_and_groups(
        &self,
        record: RawRecord<'a>,
    ) -> Result<NameOpAndGroupText<'a>, TraceError> {
        let (id, kind) = (self.id, self.kind);
        let name = as_utf8(self.name).ok_or_else(|| {
            TraceError::malformed_at(record.offset, format!("the name of node {id} is not UTF-8"))
        })?;
        let op = self.facts.decode_op(id, kind)?;
        let groups = match op {
            Op::NoOp if kind == 1 && name.contains(NODE_MARK) => read_input_values(record)?,
            _ => None,
        };
        Ok((name, op, groups))
    }

    #[inline(always)]
    fn build_view_without_checks(
        &self,
        name: &'a str,
        op: Op<'a>,
        groups: Option<&'a str>,
    ) -> NodeView<'a> {
        let facts = &self.facts;
        NodeView {
            id: self.id,
            name,
            op,
            kernel: facts.kernel,
            lane: facts.lane(),
            recorded: facts.recorded_duration(self.micros),
            micros: self.micros,
            delay: Span::from_ns(facts.delay_ns),
            wait: Span::from_ns(facts.wait_ns),
            profiler: Span::from_ns(facts.profiler_ns),
            eager: facts.eager,
            size_unknown: facts.size_unknown,
            flops_unknown: facts.flops_unknown,
            start_micros: self.start_micros,
            groups,
            memory: facts.memory,
            splits: facts.splits,
            labels: NodePhaseStageLayerAndShapes {
                phase: facts.phase,
                ..NodePhaseStageLayerAndShapes::default()
            },
            origin: facts.origin,
        }
    }
}

/// Recovers parts of a record that [`scan_node`] rejects: the id, the name (if it is UTF-8), and the dependencies
/// before the first invalid byte. The operation of the recovered node is [`Op::NoOp`].
pub fn recover_partial_node<'a>(
    record: RawRecord<'a>,
    deps: &mut impl DependencyVisitor,
) -> NodeView<'a> {
    let mut view = NodeView::new(0, "", Op::NoOp);
    let mut cursor = WireCursor::new(record.bytes, record.offset);
    while !cursor.is_empty() {
        let at = cursor.file_offset();
        let read = match cursor.read_field() {
            Ok((1, WireValue::Varint(id))) => {
                view.id = id;
                Ok(())
            }
            Ok((2, WireValue::Bytes(bytes, _))) => {
                view.name = as_utf8(bytes).unwrap_or_default();
                Ok(())
            }
            Ok((4, raw)) => {
                visit_repeated_varints(raw, at, |dep| deps.visit_control_dependency(dep))
            }
            Ok((5, raw)) => visit_repeated_varints(raw, at, |dep| deps.visit_data_dependency(dep)),
            other => other.map(|_| ()),
        };
        if read.is_err() {
            break;
        }
    }
    view
}

/// Visitor that ignores all dependencies.
#[derive(Clone, Copy, Debug)]
pub struct DependencySkippingVisitor;

impl DependencyVisitor for DependencySkippingVisitor {
    fn visit_data_dependency(&mut self, _: u64) -> Result<(), TraceError> {
        Ok(())
    }

    fn visit_control_dependency(&mut self, _: u64) -> Result<(), TraceError> {
        Ok(())
    }
}

/// Returns the name in a record by the rules of [`recover_partial_node`].
pub fn read_node_name(record: RawRecord<'_>) -> &str {
    recover_partial_node(record, &mut DependencySkippingVisitor).name
}

/// Reads an attribute in any encoding, and stores it if replays read it.
#[inline(never)]
pub(super) fn read_and_store_attribute<'a>(
    message: &'a [u8],
    offset: usize,
    facts: &mut NodeAttributesReadByReplays<'a>,
) -> Result<(), TraceError> {
    let attr = AttrView::scan_attribute(message, offset)?;
    if attr.is_set() {
        attr::store_attribute_if_replays_read_it(attr, facts)?;
    }
    Ok(())
}

/// Returns the `values` text of a node's inputs, or `None` if it is empty. The message may be split into several
/// fields; protobuf merges them.
fn read_input_values(record: RawRecord<'_>) -> Result<Option<&str>, TraceError> {
    let mut found = "";
    let mut node = WireCursor::new(record.bytes, record.offset);
    while !node.is_empty() {
        let (8, WireValue::Bytes(inputs, at)) = node.read_field()? else {
            continue;
        };
        let mut inputs = WireCursor::new(inputs, at);
        while !inputs.is_empty() {
            if let (1, WireValue::Bytes(text, at)) = inputs.read_field()? {
                found = std::str::from_utf8(text).map_err(|_| {
                    TraceError::malformed_at(at, "the inputs of the metadata node are not UTF-8")
                })?;
            }
        }
    }
    Ok((!found.is_empty()).then_some(found))
}

#[cfg(test)]
mod tests {
    use super::super::proto::{AttributeProto, GlobalMetadata, attribute_proto::Value};
    use super::*;
    use prost::Message;

    fn read_metadata_of_attributes(attr: Vec<AttributeProto>) -> Result<TraceMetadata, TraceError> {
        let message = GlobalMetadata {
            version: "0.0.4".to_owned(),
            attr,
        };
        read_metadata(RawRecord {
            number: 0,
            offset: 1,
            bytes: &message.encode_to_vec(),
        })
    }

    fn build_attribute(name: &str, value: Value) -> AttributeProto {
        AttributeProto {
            name: name.to_owned(),
            value: Some(value),
            ..AttributeProto::default()
        }
    }

    #[test]
    fn the_end_of_the_capture_is_read_from_the_first_record() {
        let captured = |attr| read_metadata_of_attributes(attr).map(|metadata| metadata.captured);
        assert_eq!(captured(vec![]).unwrap(), None);
        let other = build_attribute("schema", Value::StringVal("1.1.1".to_owned()));
        let own = |value| build_attribute("captured_ns", value);
        // 695,426,000 ns × 1,000 ps/ns = 695,426,000,000 ps.
        for value in [
            Value::Uint64Val(695_426_000),
            Value::Int64Val(695_426_000),
            Value::StringVal("695426000".to_owned()),
        ] {
            let found = captured(vec![other.clone(), own(value)]).unwrap();
            assert_eq!(found, Some(Span(695_426_000_000)));
        }
        let error = captured(vec![own(Value::Int64Val(-1))]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("record 0"), "{text}");
        assert!(text.contains("`captured_ns`"), "{text}");
        // The first record of an older version has other fields, which the reader ignores.
        let old = RawRecord {
            number: 0,
            offset: 1,
            bytes: b"\x12\x08aten::mm\x18\x04",
        };
        assert_eq!(read_metadata(old).unwrap(), TraceMetadata::default());
    }
}
