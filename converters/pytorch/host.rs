//! The host trace: what operators ran, in which order and in which other operator, with their
//! arguments. It has no times; those come from the device trace.

mod raw;
mod reader;
#[cfg(test)]
mod tests;

use super::{ProcessGroup, Repairs, stream};
use crate::graph::Names;
use crate::trace::TraceError;
use reader::Reader;
use std::path::Path;

/// Where there is no index.
pub const NONE: u32 = u32::MAX;

/// A host trace.
#[derive(Debug, Default)]
pub struct HostTrace {
    /// The version that the file states, such as `1.1.1-chakra.0.0.4`.
    pub schema: String,
    /// The nodes in the order of the file: that in which operators ended.
    pub nodes: Vec<HostNode>,
    /// The texts that nodes number.
    pub texts: Names,
    /// The storages that ranges of nodes lie in.
    pub storages: Vec<u64>,
    /// The arguments of communication operators.
    pub args: Vec<CommArgs>,
    /// The process groups that the program had set up.
    pub groups: Vec<ProcessGroup>,
    /// What was repaired.
    pub repairs: Repairs,
    /// The length of the JSON, in bytes.
    pub bytes: u64,
}

/// An operator, or the process or a thread that operators ran in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostNode {
    /// Its id. Ids ascend in the order in which operators began.
    pub id: u64,
    /// The id of the node it ran in; the process has its own.
    pub parent: u64,
    /// The number that ties it to the device trace, 0 if there is none.
    pub rf_id: u64,
    /// The sequence number of autograd, −1 if there is none.
    pub seq_id: i64,
    /// The id of the forward operator that it belongs to, 0 if there is none.
    pub fw_parent: u64,
    /// The number of its name in [`HostTrace::texts`].
    pub name: u32,
    /// Its thread, numbered from 1 by the observer.
    pub tid: u32,
    /// The thread of the forward operator, 0 if there is none.
    pub fw_tid: u32,
    /// The kind of range: 0 a function, 1 a backward function, 7 one of the user.
    pub scope: u8,
    /// The number of its signature in [`HostTrace::texts`].
    pub op_schema: u32,
    /// The number of the shapes of its inputs, as Python shows them: `[[4, 3, 64, 64], []]`.
    pub shapes_in: u32,
    /// The number of the types of its inputs, as Python shows them: `['Tensor(float)', 'Int']`.
    pub types_in: u32,
    /// The number of the shapes of its outputs.
    pub shapes_out: u32,
    /// The number of the types of its outputs.
    pub types_out: u32,
    /// The range in [`HostTrace::storages`] of the storages of its input tensors.
    pub storages_in: (u32, u32),
    /// The range in [`HostTrace::storages`] of the storages of its output tensors.
    pub storages_out: (u32, u32),
    /// The bytes of its input tensors, each tensor counted once.
    pub bytes_in: u64,
    /// The bytes of its output tensors, each tensor counted once.
    pub bytes_out: u64,
    /// Its index in [`HostTrace::args`], or [`NONE`].
    pub args: u32,
}

/// The arguments of a communication operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommArgs {
    /// The values of its inputs, a JSON list.
    pub inputs: String,
    /// Their types, a JSON list of strings.
    pub input_types: String,
    /// Their shapes, a JSON list.
    pub input_shapes: String,
    /// The values of its outputs, a JSON list.
    pub outputs: String,
    /// Attributes that not every node has, such as `collective_name` and `pg_name`: strings as they
    /// are, anything else as JSON.
    pub attrs: Vec<(String, String)>,
}

impl HostTrace {
    /// Reads `path`, which may be compressed.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let mut reader = Reader::default();
        reader.trace.bytes = stream::read(path, &mut reader)?;
        Ok(reader.trace)
    }

    /// Reads the contents of a file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TraceError> {
        let mut reader = Reader::default();
        reader.trace.bytes = stream::read_bytes(bytes, &mut reader)?;
        Ok(reader.trace)
    }
}
