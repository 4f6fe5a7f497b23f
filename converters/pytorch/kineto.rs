//! Reads the device trace: the times of host operators and device kernels, and the launch calls
//! that connect them.

mod merged;
mod operands;
mod raw;
mod reader;
#[cfg(test)]
mod tests;
mod tracks;

use super::{JsonRepairs, ProcessGroup, stream};
use chakram_trace::format::TraceError;
use chakram_trace::graph::StringArenaInterner;
use reader::KinetoReader;
use std::collections::BTreeMap;
use std::path::Path;

pub use super::host::NONE;
pub use tracks::KinetoTrackIdentity;

/// Contents of one device trace, as PyTorch's profiler (Kineto) writes it.
#[derive(Debug, Default)]
pub struct KinetoTrace {
    /// Timed events that the conversion needs, in file order.
    pub events: Vec<KinetoEvent>,
    /// Calls of Python functions and modules, in file order.
    pub python: Vec<PythonCallEvent>,
    /// Distinct details of events. Events with equal details share an entry.
    pub details: Vec<SharedEventProperties>,
    /// Number of arrows (flow events). Arrows are only counted, because the events that they connect state the same
    /// ids.
    pub arrows: u64,
    /// Tracks of events: host threads and device streams.
    pub tracks: Vec<KinetoTrackIdentity>,
    /// Interned texts that events refer to.
    pub texts: StringArenaInterner,
    /// Arguments of synchronizations and communication events, and of kernels whose arguments describe their
    /// communication. Strings are stored unchanged, and other values as JSON.
    pub args: Vec<Vec<(String, String)>>,
    /// Rank of the process, if the file states it.
    pub rank: Option<u32>,
    /// Number of ranks in the job, if the file states it.
    pub world_size: Option<u32>,
    /// Communication backend, such as `nccl`.
    pub backend: Option<String>,
    /// Process groups that the program created.
    pub groups: Vec<ProcessGroup>,
    /// Name of the host.
    pub host_name: Option<String>,
    /// Number of skipped events per category, sorted by category. Events without a category are
    /// counted under their phase.
    pub left_out: Vec<(String, u64)>,
    /// Number of events whose [`KinetoEvent::rf_id`] is known.
    pub with_rf_id: u64,
    /// Repairs made to the text of the file.
    pub repairs: JsonRepairs,
    /// Length of the JSON text, in bytes.
    pub bytes: u64,
    /// Names of all devices of the host.
    pub device_names: Vec<String>,
    /// Software versions that the file states, such as `cuda_runtime 12060`.
    pub versions: Vec<(String, String)>,
    /// Start and end of the recording as the profiler states them, in ns since 1970.
    pub span: Option<(i64, i64)>,
    /// Number of events dropped because they are outside `span` or before 1970.
    pub outside: u64,
    /// Number of events per unknown category, on tracks outside the operators' process. They are probably work on an
    /// unsupported type of device.
    pub unread: Vec<(String, u64)>,
    /// Program that wrote the file, if it is not PyTorch's profiler.
    pub source: Option<&'static str>,
    /// Number of events that were dropped because their duration is missing or negative. For
    /// example, the profiler may have stopped before the event ended.
    pub untimed: u64,
}

/// An event with a duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KinetoEvent {
    /// Start, in nanoseconds since 1970.
    pub start_ns: i64,
    /// Duration, in nanoseconds.
    pub duration_ns: u64,
    /// Index of the event's name in [`KinetoTrace::texts`].
    pub name: u32,
    /// Category of the event.
    pub category: EventCategory,
    /// Index of the event's track in [`KinetoTrace::tracks`].
    pub track: u32,
    /// Index in [`KinetoTrace::details`], or [`NONE`] if the event has no details.
    pub details: u32,
    /// Record function id, which is also in the host trace; 0 if there is none.
    pub rf_id: u64,
    /// External id; 0 if there is none. The profiler's version decides whether a launch has the external id of its
    /// operator or of its kernel.
    pub external_id: u64,
    /// Correlation id, which a launch shares with its kernel; 0 if there is none.
    pub correlation: u64,
    /// Byte offset of the event in the decompressed text.
    pub offset: u64,
}

/// A call of a Python function or module, which the profiler records with `with_stack`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonCallEvent {
    /// Start, in nanoseconds since 1970.
    pub start_ns: i64,
    /// Duration, in nanoseconds.
    pub duration_ns: u64,
    /// Index of the function's name in [`KinetoTrace::texts`].
    pub name: u32,
    /// Index of the call's track in [`KinetoTrace::tracks`].
    pub track: u32,
}

/// Properties that many events share, such as all kernels of one stream, or all operators with equal inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedEventProperties {
    /// Stream of the device; −1 if the event has none. Device work without a recorded stream runs on the stream of
    /// its track.
    pub stream: i64,
    /// Device; −1 if the event has none. Device work without a recorded device runs on the device of its track.
    pub device: i32,
    /// Bytes copied or set.
    pub bytes: u64,
    /// Index in [`KinetoTrace::args`], or [`NONE`].
    pub args: u32,
    /// Index of the input shapes in [`KinetoTrace::texts`], in Python's notation; [`NONE`] if
    /// unknown.
    pub shapes: u32,
    /// Index of the input types in [`KinetoTrace::texts`], in the host trace's notation; [`NONE`]
    /// if unknown.
    pub types: u32,
    /// Index of the operator's scalar values in [`KinetoTrace::texts`], as a JSON list. Values are kept only if they
    /// affect how much the operator computes or moves; otherwise the index is [`NONE`].
    pub values: u32,
    /// Bytes of all input tensors. Tensor lists without a type do not count.
    pub bytes_in: u64,
}

impl SharedEventProperties {
    /// Details of events that have no arguments.
    const ABSENT: Self = Self {
        stream: -1,
        device: -1,
        bytes: 0,
        args: NONE,
        shapes: NONE,
        types: NONE,
        values: NONE,
        bytes_in: 0,
    };
}

/// Category of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventCategory {
    /// Operator on the host.
    CpuOp,
    /// Range that the program or a library named.
    Annotation,
    /// Host call of the device's runtime or driver.
    Runtime,
    /// Kernel on the device.
    Kernel,
    /// Copy from, to or between devices.
    Copy,
    /// Operation that fills device memory with a value.
    Set,
    /// The host's or a stream's wait for the device.
    Sync,
}

impl EventCategory {
    /// Returns true if events of this category are device work.
    pub fn is_device_work(self) -> bool {
        matches!(self, Self::Kernel | Self::Copy | Self::Set)
    }

    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            // In 2021, profilers wrote category names with capitals.
            "cpu_op" | "Operator" => Self::CpuOp,
            "user_annotation" => Self::Annotation,
            "cuda_runtime"
            | "cuda_driver"
            | "hip_runtime"
            | "hip_driver"
            | "xpu_runtime"
            | "xpu_driver"
            | "mtia_runtime"
            | "privateuse1_runtime"
            | "privateuse1_driver"
            | "Runtime" => Self::Runtime,
            "kernel" | "Kernel" | "mtia_ccp_events" => Self::Kernel,
            "gpu_memcpy" | "Memcpy" => Self::Copy,
            "gpu_memset" | "Memset" => Self::Set,
            "cuda_sync" => Self::Sync,
            _ => return None,
        })
    }
}

/// Prefixes of the calls of CUDA, HIP, SYCL (unified runtime and its predecessor), Level Zero and CANN that launch
/// kernels.
const LAUNCHES: [&str; 16] = [
    "cudaLaunchKernel",
    "cudaLaunchCooperativeKernel",
    "cudaGraphLaunch",
    "cuLaunchKernel",
    "cuLaunchCooperativeKernel",
    "cuGraphLaunch",
    "hipLaunchKernel",
    "hipLaunchCooperativeKernel",
    "hipExtLaunchKernel",
    "hipExtModuleLaunchKernel",
    "hipModuleLaunchKernel",
    "hipGraphLaunch",
    "urEnqueueKernelLaunch",
    "piEnqueueKernelLaunch",
    "zeCommandListAppendLaunchKernel",
    "aclrtLaunchKernel",
];

/// Returns true if a call with this name launches kernels.
pub(super) fn is_launch(name: &str) -> bool {
    LAUNCHES.iter().any(|launch| name.starts_with(launch))
}

/// Returns true if a call with this name launches a whole graph of kernels.
pub(super) fn is_graph_launch(name: &str) -> bool {
    name.contains("GraphLaunch")
}

impl KinetoTrace {
    /// Returns the process that ran the most operators.
    pub fn process_with_most_operators(&self) -> Option<u64> {
        let counts = self.count_operators_by_process().into_iter();
        let most = counts.max_by_key(|&(pid, count)| (count, pid))?;
        most.0.parse().ok()
    }

    /// Returns, for each process that ran operators, how many it ran.
    pub(super) fn count_operators_by_process(&self) -> BTreeMap<&str, u64> {
        let mut on_track = vec![0_u64; self.tracks.len()];
        let operators = self.events.iter();
        for event in operators.filter(|event| event.category == EventCategory::CpuOp) {
            on_track[event.track as usize] += 1;
        }
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for (track, count) in self
            .tracks
            .iter()
            .zip(on_track)
            .filter(|(_, count)| *count > 0)
        {
            *counts.entry(&track.pid).or_default() += count;
        }
        counts
    }

    /// Returns the details of an event.
    pub fn details_of_event(&self, event: &KinetoEvent) -> &SharedEventProperties {
        self.details_at(event.details)
    }

    /// Returns the details at `index`, or empty details if `index` is [`NONE`].
    pub(super) fn details_at(&self, index: u32) -> &SharedEventProperties {
        let known = self.details.get(index as usize);
        known.unwrap_or(&SharedEventProperties::ABSENT)
    }

    /// Returns the arguments of an event, or `None` if they were not kept.
    pub fn args_of_event(&self, event: &KinetoEvent) -> Option<&[(String, String)]> {
        self.args_at_details_index(event.details)
    }

    /// Returns the `args` of the event whose details are at `index`, or `None` if they were not kept.
    pub(super) fn args_at_details_index(&self, index: u32) -> Option<&[(String, String)]> {
        let args = self.args.get(self.details_at(index).args as usize)?;
        Some(args)
    }

    /// Drops events whose times are impossible, such as times before 1970.
    pub(crate) fn drop_events_with_impossible_times(&mut self) {
        reader::drop_events_with_impossible_times(self);
    }

    /// Reads the file at `path`, which may be compressed.
    pub fn read_file(path: &Path) -> Result<Self, TraceError> {
        let mut reader = KinetoReader::default();
        reader.trace.bytes = stream::read_json_file_elements(path, &mut reader)?;
        reader.finish_trace().map_err(|error| error.in_file(path))
    }

    /// Parses the contents of a file, which may be compressed.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TraceError> {
        let mut reader = KinetoReader::default();
        reader.trace.bytes = stream::read_bytes(bytes, &mut reader)?;
        reader.finish_trace()
    }
}
