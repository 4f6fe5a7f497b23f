//! The host trace: operators with nesting, order and arguments, but without times, which come from the device
//! trace.

mod raw;
mod reader;
#[cfg(test)]
mod tests;

use super::{JsonRepairs, ProcessGroup, stream};
use chakram_trace::format::TraceError;
use chakram_trace::graph::NameTable;
use reader::HostTraceReader;
use std::path::Path;

/// Sentinel index for none.
pub const NONE: u32 = u32::MAX;

/// A host trace.
#[derive(Debug, Default)]
pub struct HostTrace {
    /// Process that wrote it, if the file states it.
    pub pid: Option<u64>,
    /// Whether any tensor is on a device other than the CPU.
    pub on_device: bool,
    /// Schema version stated in the file, such as `1.1.1-chakra.0.0.4`.
    pub schema: String,
    /// Nodes in file order, which is the order in which operators ended.
    pub nodes: Vec<HostNode>,
    /// Per node, facts that only an observer records; empty if the trace was built from Kineto's data.
    pub records: Vec<ObserverRecord>,
    /// Distinct forms of nodes (see [`HostNodeForm`]).
    pub forms: Vec<HostNodeForm>,
    /// Interned texts that nodes refer to.
    pub texts: NameTable,
    /// Storages; nodes refer to ranges of this list.
    pub storages: Vec<u64>,
    /// Arguments of communication operators.
    pub args: Vec<CommArgs>,
    /// Process groups that the program had created.
    pub groups: Vec<ProcessGroup>,
    /// Repairs made to the text of the file.
    pub repairs: JsonRepairs,
    /// Length of the JSON, in bytes.
    pub bytes: u64,
}

/// An operator, or the process or a thread in which operators ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostNode {
    /// Index of its name in [`HostTrace::texts`].
    pub name: u32,
    /// Thread number assigned by the observer, from 1.
    pub tid: u32,
    /// Index in [`HostTrace::forms`].
    pub form: u32,
    /// Index in [`HostTrace::args`], or [`NONE`].
    pub args: u32,
}

/// Ids, links and storages of a node, which only an observer writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObserverRecord {
    /// Id; ids ascend in the order in which operators began.
    pub id: u64,
    /// Id of the node in which it ran; the process refers to itself.
    pub parent: u64,
    /// Record function id, which joins it to the device trace; 0 if there is none.
    pub rf_id: u64,
    /// Sequence number of autograd, −1 if there is none.
    pub seq_id: i64,
    /// Id of its forward operator; 0 if there is none.
    pub fw_parent: u64,
    /// Range in [`HostTrace::storages`] of the storages of its input tensors.
    pub storages_in: (u32, u32),
    /// Range in [`HostTrace::storages`] of the storages of its output tensors.
    pub storages_out: (u32, u32),
}

/// Properties shared by operators with equal operands, for example in successive layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostNodeForm {
    /// Scope of the record function: 0 a function, 1 a backward function, 7 a user range.
    pub scope: u8,
    /// Index of its schema in [`HostTrace::texts`].
    pub op_schema: u32,
    /// Index of the shapes of its inputs, as Python shows them: `[[4, 3, 64, 64], []]`.
    pub shapes_in: u32,
    /// Index of the types of its inputs, as Python shows them: `['Tensor(float)', 'Int']`.
    pub types_in: u32,
    /// Index of the shapes of its outputs.
    pub shapes_out: u32,
    /// Index of the types of its outputs.
    pub types_out: u32,
    /// Index of its scalar values as a JSON list, kept only where they determine how much it computes or
    /// moves.
    pub values: u32,
    /// Bytes of its input tensors, each tensor counted once.
    pub bytes_in: u64,
    /// Bytes of its output tensors, each tensor counted once.
    pub bytes_out: u64,
}

/// Raw arguments of a communication operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommArgs {
    /// Values of its inputs, a JSON list.
    pub inputs: String,
    /// Types of its inputs, a JSON list of strings.
    pub input_types: String,
    /// Shapes of its inputs, a JSON list.
    pub input_shapes: String,
    /// Values of its outputs, a JSON list.
    pub outputs: String,
    /// Attributes that not every node has, such as `collective_name` and `pg_name`: strings unchanged, other
    /// values as JSON.
    pub attrs: Vec<(String, String)>,
}

impl HostTrace {
    /// Returns the form of a node of this trace.
    pub fn form(&self, node: &HostNode) -> &HostNodeForm {
        &self.forms[node.form as usize]
    }

    /// Returns whether an observer wrote this trace.
    pub fn is_observed(&self) -> bool {
        !self.records.is_empty()
    }

    /// Returns the id of the node at `index`. Without an observer ids are counted from 1. Returns 0 if there is
    /// no such node.
    pub fn node_id(&self, index: u32) -> u64 {
        let made = || self.nodes.get(index as usize).map(|_| u64::from(index) + 1);
        let record = self.records.get(index as usize);
        record.map(|record| record.id).or_else(made).unwrap_or(0)
    }

    /// Returns the storages of the input and output tensors of the node at `index`; empty if unknown.
    pub fn storages_of(&self, index: u32) -> [&[u64]; 2] {
        let held = |(from, to): (u32, u32)| self.storages.get(from as usize..to as usize);
        let record = self.records.get(index as usize);
        record.map_or([&[]; 2], |record| {
            [record.storages_in, record.storages_out].map(|range| held(range).unwrap_or(&[]))
        })
    }

    /// Reads `path`, which may be compressed.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let mut reader = HostTraceReader::default();
        reader.trace.bytes = stream::read(path, &mut reader)?;
        Ok(reader.finish())
    }

    /// Reads the contents of a file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TraceError> {
        let mut reader = HostTraceReader::default();
        reader.trace.bytes = stream::read_bytes(bytes, &mut reader)?;
        Ok(reader.finish())
    }
}
