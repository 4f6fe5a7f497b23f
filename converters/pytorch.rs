//! PyTorch: the host trace of `ExecutionTraceObserver` and the device trace of Kineto, together or either alone.
//!
//! Both are JSON and may be gigabytes long, so they are read through a window ([`stream`](self)), one element at a
//! time, from plain, gzip or zstd files. The in-memory form is compact: texts are interned, and only arguments that a
//! conversion needs are kept. Readers go by the keys that are present and not by the version a file states, since
//! versions do not determine the keys.
//!
//! Damage is an error with its byte. Damage that profilers and scripts are known to write is repaired where it can mean
//! one thing only ([`JsonRepairKind`]). Each such repair is reported.

mod activities;
mod alike_kernels;
mod call_matching;
mod call_names;
mod call_windows;
mod calls;
mod clock;
mod elements;
mod emit;
mod event_links;
pub mod files;
mod group_inference;
mod groups;
pub mod host;
mod host_alone;
mod inferred_ranks;
mod job;
pub mod kineto;
mod kineto_alone;
mod name_repair;
mod nccl_times;
mod number;
mod op_cost;
mod op_work;
mod operator_order;
mod output_shapes;
mod profiler_cost;
mod python_repr;
mod rank_timeline;
mod sniff;
mod steps;
mod stream;
pub mod summary;
pub(crate) mod tar;
mod tensor_lists;
mod tensors;
mod timeline_events;
mod token_repair;
mod transfer_times;
mod view_operators;

pub use calls::CommKernels;
pub use event_links::{LinkMethod, ThreadLinks};
pub use host::{CommArgs, HostNode, HostTrace, NONE};
pub(crate) use job::convert_kineto;
pub use job::{ConvertOptions, RankFiles, RankTrace, convert, convert_bytes};
pub use kineto::{EventCategory, EventDetails, KinetoEvent, KinetoTrace, KinetoTrack, PythonEvent};
pub use sniff::{CaptureFileKind, sniff};
pub(crate) use sniff::{foreign, foreign_magic};
use std::collections::BTreeMap;

/// A process group that a file declares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessGroup {
    /// Name by which operators refer to it, often a number.
    pub name: String,
    /// Purpose, in words of the program.
    pub desc: String,
    /// Members; empty for all ranks.
    pub ranks: Vec<u32>,
    /// Number of members, if the file says so.
    pub size: Option<u32>,
    /// Backend that carries its messages, such as `cpu:gloo,cuda:nccl`.
    pub backend: String,
}

/// Kind of damage that was repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JsonRepairKind {
    /// A name was not escaped.
    Name,
    /// A list of process groups was truncated; the groups before that were taken.
    Groups,
    /// A number that JSON does not have, such as `NaN`, was taken for none.
    Number,
    /// A comma stood behind the last element.
    Comma,
}

/// One repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonRepair {
    /// Offset in bytes of the decompressed text.
    pub offset: u64,
    /// Damage that was repaired.
    pub what: JsonRepairKind,
    /// Replacement: the name, or the end of the list; of a number or comma, what stood there.
    pub text: String,
}

/// Repairs of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JsonRepairs {
    /// Number of repairs of each kind.
    pub counts: BTreeMap<JsonRepairKind, u64>,
    /// First of them, [`JsonRepairs::LISTED`] at most.
    pub listed: Vec<JsonRepair>,
}

impl JsonRepairs {
    /// Maximum number of repairs that are listed.
    pub const LISTED: usize = 100;

    /// Returns the number of repairs.
    pub fn count(&self) -> u64 {
        self.counts.values().sum()
    }

    fn push(&mut self, repair: JsonRepair) {
        *self.counts.entry(repair.what).or_default() += 1;
        if self.listed.len() < Self::LISTED {
            self.listed.push(repair);
        }
    }
}

/// Returns whether the operator of this name communicates: a collective or message of c10d, its implementation in a
/// backend, or its `record_param_comms` record.
pub fn communicates(name: &str) -> bool {
    const BEGINNINGS: [&str; 8] = [
        "c10d::",
        "_c10d_functional::",
        "c10d_functional::",
        "nccl:",
        "gloo:",
        "mpi:",
        "ucc:",
        "record_param_comms",
    ];
    BEGINNINGS.iter().any(|start| name.starts_with(start))
}

/// Events or operators of a file between two checks for an interruption: some milliseconds.
const ITEMS_BETWEEN_CHECKS: usize = 1 << 14;

/// Beginnings of the names of intervals in flight: one that is only known to have been requested, and those that host
/// backends write.
const IN_FLIGHT: [&str; 4] = ["in flight: ", "gloo:", "mpi:", "ucc:"];

/// Returns whether an interval of this name is communication in flight, which the host carries out.
fn in_flight(name: &str) -> bool {
    IN_FLIGHT.iter().any(|prefix| name.starts_with(prefix))
}

/// A JSON string, borrowed where nothing in it is escaped.
#[derive(serde::Deserialize)]
struct JsonString<'a>(#[serde(borrow)] std::borrow::Cow<'a, str>);
