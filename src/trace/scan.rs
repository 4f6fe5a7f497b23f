//! The hot reader: one pass over a node's bytes, borrowing, allocating nothing.

use super::attr::Attr;
use super::op::{Facts, GroupName, Op};
use super::wire::{Cursor, Raw, Record, repeated_varints};
use super::{Dtype, TraceError};
use crate::units::Span;

/// Receives a node's dependencies while its record is scanned.
pub trait Dependencies {
    /// The node being scanned consumes what node `id` produces.
    fn data(&mut self, id: u64) -> Result<(), TraceError>;
    /// The node being scanned follows node `id` in program order.
    fn control(&mut self, id: u64) -> Result<(), TraceError>;
}

/// A node as its record says it, without its dependencies.
#[derive(Clone, Copy, Debug)]
pub struct NodeView<'a> {
    /// The id in the file.
    pub id: u64,
    /// The name.
    pub name: &'a str,
    /// What it does.
    pub op: Op<'a>,
    /// The stream or thread that the trace names, if it does.
    pub lane: Option<i64>,
    /// How long it took where it was recorded; zero when the trace does not say.
    pub recorded: Span,
    /// The JSON text of its process groups, when it is the metadata node that declares them.
    pub groups: Option<&'a str>,
}

/// Name part of the metadata node that declares process groups.
const GROUPS_MARK: &str = "process_group:init";

/// Scans one node record, handing its dependencies to `deps` in file order.
///
/// Fails on broken wire data, on text that is not UTF-8 where text is needed, and on a node whose
/// attributes make no sense for its type.
#[inline]
pub fn node<'a>(
    record: Record<'a>,
    deps: &mut impl Dependencies,
) -> Result<NodeView<'a>, TraceError> {
    scan(record, deps).map_err(|e| e.in_record(record.number, record.offset))
}

#[inline]
fn scan<'a>(record: Record<'a>, deps: &mut impl Dependencies) -> Result<NodeView<'a>, TraceError> {
    let mut cursor = Cursor::new(record.bytes, record.offset);
    let (mut id, mut kind, mut micros) = (0_u64, 0_u64, 0_u64);
    let mut name: &[u8] = &[];
    let mut facts = Facts::default();
    while !cursor.is_empty() {
        let at = cursor.offset();
        match cursor.field()? {
            (1, Raw::Varint(v)) => id = v,
            (2, Raw::Bytes(text, _)) => name = text,
            // An enum has 32 bits, whatever the number was written with.
            (3, Raw::Varint(v)) => kind = u64::from(v as u32),
            (4, raw) => repeated_varints(raw, at, |dep| deps.control(dep))?,
            (5, raw) => repeated_varints(raw, at, |dep| deps.data(dep))?,
            (6, Raw::Varint(_)) => {}
            (7, Raw::Varint(v)) => micros = v,
            (8 | 9, Raw::Bytes(..)) => {}
            (10, Raw::Bytes(message, offset)) => attribute(message, offset, &mut facts)?,
            (1..=10, _) => {
                return Err(TraceError::malformed(
                    at,
                    "a field of a node has the wrong wire type",
                ));
            }
            _ => {}
        }
    }
    let name = std::str::from_utf8(name).map_err(|_| {
        TraceError::malformed(record.offset, format!("the name of node {id} is not UTF-8"))
    })?;
    let op = facts.op(id, kind)?;
    let groups = match op {
        Op::Nothing if kind == 1 && name.contains(GROUPS_MARK) => values(record)?,
        _ => None,
    };
    Ok(NodeView {
        id,
        name,
        op,
        lane: facts.lane(),
        recorded: facts.recorded(micros),
        groups,
    })
}

/// Reads the attributes that matter and skips the others.
#[inline]
fn attribute<'a>(
    message: &'a [u8],
    offset: usize,
    facts: &mut Facts<'a>,
) -> Result<(), TraceError> {
    // Two ways to one end, so that the usual one stays in registers.
    match Attr::scan_usual(message, offset) {
        Some(attr) => take(attr, facts),
        None => take_any(Attr::scan(message, offset)?, facts),
    }
}

fn take_any<'a>(attr: Attr<'a>, facts: &mut Facts<'a>) -> Result<(), TraceError> {
    if attr.is_set() {
        take(attr, facts)?;
    }
    Ok(())
}

/// Keeps what the attribute says, if it matters.
#[inline(always)]
fn take<'a>(attr: Attr<'a>, facts: &mut Facts<'a>) -> Result<(), TraceError> {
    match attr.name {
        b"is_cpu_op" => facts.host = attr.as_bool()?,
        b"num_ops" => facts.flops = attr.as_u64()?,
        b"tensor_size" => facts.tensor_size = attr.as_u64()?,
        b"tensor_loc" => facts.tensor_loc = attr.as_u64()?,
        b"dtype" => facts.dtype = attr.as_str()?.and_then(Dtype::from_name),
        b"stream" => facts.stream = Some(attr.as_i64()?),
        b"tid" => facts.tid = Some(attr.as_i64()?),
        b"duration_ns" => facts.duration_ns = Some(attr.as_u64()?),
        b"comm_type" => facts.comm_type = Some(attr.as_u64()?),
        b"comm_size" => facts.comm_size = Some(attr.as_u64()?),
        b"comm_src" => facts.comm_src = Some(attr.as_u64()?),
        b"comm_dst" => facts.comm_dst = Some(attr.as_u64()?),
        b"comm_tag" => facts.comm_tag = attr.as_i64()?,
        b"comm_root" => facts.comm_root = Some(attr.as_u64()?),
        b"involved_dim" | b"involve_dims" => facts.dimensions = attr.as_mask()?,
        b"pg_name" | b"comm_group" => {
            facts.group = match attr.as_str()? {
                Some(text) => GroupName::from_text(text),
                None => GroupName::from_number(attr.as_u64()?),
            }
        }
        _ => {}
    }
    Ok(())
}

/// The `values` text of a node's inputs, if it is not empty. Inputs that come in parts are one.
fn values(record: Record<'_>) -> Result<Option<&str>, TraceError> {
    let mut found = "";
    let mut node = Cursor::new(record.bytes, record.offset);
    while !node.is_empty() {
        let (8, Raw::Bytes(inputs, at)) = node.field()? else {
            continue;
        };
        let mut inputs = Cursor::new(inputs, at);
        while !inputs.is_empty() {
            if let (1, Raw::Bytes(text, at)) = inputs.field()? {
                found = std::str::from_utf8(text).map_err(|_| {
                    TraceError::malformed(at, "the inputs of the metadata node are not UTF-8")
                })?;
            }
        }
    }
    Ok((!found.is_empty()).then_some(found))
}
