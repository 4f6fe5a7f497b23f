//! The device trace: when operators ran on the host and kernels on the device, and which launched
//! which.

mod raw;
mod reader;
#[cfg(test)]
mod tests;
mod tracks;

use super::{ProcessGroup, Repairs, stream};
use crate::graph::Names;
use crate::trace::TraceError;
use reader::Reader;
use std::path::Path;

pub use super::host::NONE;
pub use tracks::Track;

/// A device trace.
#[derive(Debug, Default)]
pub struct KinetoTrace {
    /// The events that have a duration and matter, in the order of the file.
    pub events: Vec<KinetoEvent>,
    /// What events run on: host threads and streams of devices.
    pub tracks: Vec<Track>,
    /// The texts that events number.
    pub texts: Names,
    /// The arguments of communication events, of kernels that say what they communicate and of
    /// synchronisations: strings as they are, anything else as JSON.
    pub args: Vec<Vec<(String, String)>>,
    /// The rank of the process, if the file says so.
    pub rank: Option<u32>,
    /// How many ranks there were.
    pub world_size: Option<u32>,
    /// What carries messages, such as `nccl`.
    pub backend: Option<String>,
    /// The process groups that the program had set up.
    pub groups: Vec<ProcessGroup>,
    /// The machine it ran on.
    pub host_name: Option<String>,
    /// Both ends of arrows: from forward to backward operators, and from launches to kernels.
    pub flows: Vec<Flow>,
    /// How many events of each category were left out, in the order of their names. Those without a
    /// category go by their phase.
    pub left_out: Vec<(String, u64)>,
    /// How many events have a [`KinetoEvent::rf_id`].
    pub with_rf_id: u64,
    /// What was repaired.
    pub repairs: Repairs,
    /// The length of the JSON, in bytes.
    pub bytes: u64,
    /// The devices of the machine.
    pub device_names: Vec<String>,
}

/// Something that took time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KinetoEvent {
    /// When it began, in nanoseconds since 1970.
    pub start_ns: i64,
    /// How long it took, in nanoseconds.
    pub duration_ns: u64,
    /// The number of its name in [`KinetoTrace::texts`].
    pub name: u32,
    /// What kind of thing it is.
    pub category: Category,
    /// The index in [`KinetoTrace::tracks`] of what it ran on.
    pub track: u32,
    /// The number that ties it to the host trace, 0 if there is none.
    pub rf_id: u64,
    /// The number that a launch shares with its operator or kernel, depending on the version; 0 if
    /// there is none.
    pub external_id: u64,
    /// The number that a launch shares with its kernel, 0 if there is none.
    pub correlation: u64,
    /// The stream of the device, −1 if there is none.
    pub stream: i64,
    /// The device, −1 if there is none.
    pub device: i32,
    /// How many bytes were copied or set.
    pub bytes: u64,
    /// Its index in [`KinetoTrace::args`], or [`NONE`].
    pub args: u32,
    /// Where it stands, in bytes from the start of the decompressed text.
    pub offset: u64,
}

/// What kind of event one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Category {
    /// An operator on the host.
    CpuOp,
    /// A range that the program or a library named.
    Annotation,
    /// A call of the device's runtime or driver.
    Runtime,
    /// A kernel on the device.
    Kernel,
    /// A copy from, to or between devices.
    Copy,
    /// Memory of the device being set.
    Set,
    /// The host or a stream waiting for the device.
    Sync,
}

impl Category {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "cpu_op" => Self::CpuOp,
            "user_annotation" => Self::Annotation,
            "cuda_runtime" | "cuda_driver" | "hip_runtime" | "hip_driver" | "xpu_runtime"
            | "xpu_driver" => Self::Runtime,
            "kernel" => Self::Kernel,
            "gpu_memcpy" => Self::Copy,
            "gpu_memset" => Self::Set,
            "cuda_sync" => Self::Sync,
            _ => return None,
        })
    }
}

/// What an arrow links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowKind {
    /// A forward operator to its backward operator.
    ForwardBackward,
    /// A launch to its kernel.
    Launch,
}

/// One end of an arrow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// What it links.
    pub kind: FlowKind,
    /// What both ends share; that of a launch is its correlation.
    pub id: u64,
    /// Whether it is the beginning.
    pub start: bool,
    /// When, in nanoseconds since 1970.
    pub at_ns: i64,
    /// The index in [`KinetoTrace::tracks`] of where.
    pub track: u32,
}

impl KinetoTrace {
    /// Reads `path`, which may be compressed.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let mut reader = Reader::default();
        reader.trace.bytes = stream::read(path, &mut reader)?;
        reader.finish().map_err(|error| error.in_file(path))
    }

    /// Reads the contents of a file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TraceError> {
        let mut reader = Reader::default();
        reader.trace.bytes = stream::read_bytes(bytes, &mut reader)?;
        reader.finish()
    }
}
