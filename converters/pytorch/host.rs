//! Reads the host trace: operators with their nesting, order and arguments, but without times.

mod raw;
mod reader;
#[cfg(test)]
mod tests;

use super::{JsonRepairs, ProcessGroup, stream};
use chakram_trace::format::TraceError;
use chakram_trace::graph::StringArenaInterner;
use reader::HostTraceBuilder;
use std::path::Path;

/// Index that represents a missing item.
pub const NONE: u32 = u32::MAX;

/// Contents of one host trace, as PyTorch's execution trace observer writes it.
#[derive(Debug, Default)]
pub struct HostTrace {
    /// Id of the process that wrote the trace, if the file states it.
    pub pid: Option<u64>,
    /// True if any tensor is on a device other than the CPU.
    pub on_device: bool,
    /// Schema version in the file, such as `1.1.1-chakra.0.0.4`.
    pub schema: String,
    /// Nodes in file order, which is the order in which operators ended.
    pub nodes: Vec<HostNode>,
    /// For each node, the facts that only an observer records. The list is empty if the trace was
    /// built from Kineto's data.
    pub records: Vec<ObserverOnlyNodeIdsLinksAndStorages>,
    /// Distinct properties of operators. Operators with equal properties share an entry.
    pub forms: Vec<SharedOperatorProperties>,
    /// Interned texts that nodes refer to.
    pub texts: StringArenaInterner,
    /// Storage ids; each node refers to a range of this list.
    pub storages: Vec<u64>,
    /// Arguments of communication operators, to which nodes refer by index.
    pub args: Vec<RawCommOperatorArgs>,
    /// Process groups that the program had created.
    pub groups: Vec<ProcessGroup>,
    /// Repairs made to the text of the file.
    pub repairs: JsonRepairs,
    /// Length of the JSON text, in bytes.
    pub bytes: u64,
}

/// An operator, or a process or thread that ran operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostNode {
    /// Index of the node's name in [`HostTrace::texts`].
    pub name: u32,
    /// Thread number assigned by the observer, counted from 1.
    pub tid: u32,
    /// Index of the node's properties in [`HostTrace::forms`].
    pub form: u32,
    /// Index of the node's communication arguments in [`HostTrace::args`], or [`NONE`].
    pub args: u32,
}

/// A node's ids, links and storages, which only an observer writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObserverOnlyNodeIdsLinksAndStorages {
    /// Id of the node; ids ascend in order of the operators' start times.
    pub id: u64,
    /// Id of the enclosing node; for the process's node, this is its own id.
    pub parent: u64,
    /// Record function id, which is also in the device trace; 0 if there is none.
    pub rf_id: u64,
    /// Sequence number of autograd; −1 if there is none.
    pub seq_id: i64,
    /// For a backward operator, the id of its forward operator; 0 if there is none.
    pub fw_parent: u64,
    /// Range of the input tensors' storage ids in [`HostTrace::storages`].
    pub storages_in: (u32, u32),
    /// Range of the output tensors' storage ids in [`HostTrace::storages`].
    pub storages_out: (u32, u32),
}

/// Properties of operators. Operators with equal properties share one entry, as in successive layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedOperatorProperties {
    /// Scope of the record function: 0 is a function, 1 a backward function, 7 a user range.
    pub scope: u8,
    /// Index of the operator's schema in [`HostTrace::texts`].
    pub op_schema: u32,
    /// Index of the input shapes in [`HostTrace::texts`], in Python's notation, such as `[[4, 3, 64, 64], []]`.
    pub shapes_in: u32,
    /// Index of the input types in [`HostTrace::texts`], in Python's notation, such as `['Tensor(float)', 'Int']`.
    pub types_in: u32,
    /// Index of the output shapes in [`HostTrace::texts`], in Python's notation.
    pub shapes_out: u32,
    /// Index of the output types in [`HostTrace::texts`], in Python's notation.
    pub types_out: u32,
    /// Index of the scalar values in [`HostTrace::texts`], as a JSON list. Values are kept only if they affect how much
    /// the operator computes or moves.
    pub values: u32,
    /// Bytes of the input tensors, each tensor counted once.
    pub bytes_in: u64,
    /// Bytes of the output tensors, each tensor counted once.
    pub bytes_out: u64,
}

/// Raw arguments of a communication operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawCommOperatorArgs {
    /// Input values, as a JSON list.
    pub inputs: String,
    /// Input types, as a JSON list of strings.
    pub input_types: String,
    /// Input shapes, as a JSON list.
    pub input_shapes: String,
    /// Output values, as a JSON list.
    pub outputs: String,
    /// Attributes that only some nodes have, such as `collective_name` and `pg_name`. Strings are
    /// stored unchanged, and other values as JSON.
    pub attrs: Vec<(String, String)>,
}

impl HostTrace {
    /// Returns the shared properties of `node`, which must belong to this trace.
    pub fn shared_properties_of_node(&self, node: &HostNode) -> &SharedOperatorProperties {
        &self.forms[node.form as usize]
    }

    /// Returns true if an observer wrote this trace, and false if it was built from Kineto's data.
    pub fn is_from_observer(&self) -> bool {
        !self.records.is_empty()
    }

    /// Returns the id of the node at `index`, or 0 if there is no such node. Without an observer, ids are counted from
    /// 1.
    pub fn node_id(&self, index: u32) -> u64 {
        let made = || self.nodes.get(index as usize).map(|_| u64::from(index) + 1);
        let record = self.records.get(index as usize);
        record.map(|record| record.id).or_else(made).unwrap_or(0)
    }

    /// Returns the storages of the input tensors and of the output tensors of the node at `index`. Both lists are empty
    /// if unknown.
    pub fn input_and_output_storages_of_node(&self, index: u32) -> [&[u64]; 2] {
        let held = |(from, to): (u32, u32)| self.storages.get(from as usize..to as usize);
        let record = self.records.get(index as usize);
        record.map_or([&[]; 2], |record| {
            [record.storages_in, record.storages_out].map(|range| held(range).unwrap_or(&[]))
        })
    }

    /// Reads the file at `path`, which may be compressed.
    pub fn read_file(path: &Path) -> Result<Self, TraceError> {
        let mut reader = HostTraceBuilder::default();
        reader.trace.bytes = stream::read_json_file_elements(path, &mut reader)?;
        Ok(reader.finish_trace())
    }

    /// Parses the contents of a file, which may be compressed.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TraceError> {
        let mut reader = HostTraceBuilder::default();
        reader.trace.bytes = stream::read_bytes(bytes, &mut reader)?;
        Ok(reader.finish_trace())
    }
}
