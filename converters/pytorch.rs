//! Converts PyTorch captures. A capture has a host trace from `ExecutionTraceObserver`, a device trace from Kineto, or
//! both.
//!
//! Host and device traces are JSON and may be gigabytes long. Readers therefore move a window over each file
//! ([`stream`](self)) and handle one element at a time. The file may be plain, gzip or zstd. Traces in memory are
//! compact: texts are interned, and arguments that the conversion does not need are dropped. Readers check which keys
//! are present and ignore the file's version, because the version does not say which keys exist.
//!
//! Readers report damage as an error with a byte offset. Profilers and scripts are known to cause some kinds of damage
//! that can mean only one thing ([`JsonRepairKind`]). Readers repair such damage, and report each repair.

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

pub use calls::UserCommKernelRules;
pub use event_links::{HostKinetoMatchMethod, HostThreadKinetoMatchCounts};
pub use host::{HostNode, HostTrace, NONE, RawCommOperatorArgs};
pub(crate) use job::convert_kineto;
pub use job::{
    ConvertOptions, RankAndTraceBytes, RankHostAndKineto, convert_capture_pairs,
    convert_in_memory_captures,
};
pub use kineto::{
    EventCategory, KinetoEvent, KinetoTrace, KinetoTrackIdentity, PythonCallEvent,
    SharedEventProperties,
};
pub use sniff::{CaptureFileKind, HUB_CONFIGURATION, sniff_file};
pub(crate) use sniff::{describe_foreign_file, describe_foreign_magic};
use std::collections::BTreeMap;

/// A process group that a file declares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessGroup {
    /// Name by which operators refer to the group, often a number.
    pub name: String,
    /// Purpose of the group, as the program states it.
    pub desc: String,
    /// Members, as ranks of the job. An empty list means all ranks.
    pub ranks: Vec<u32>,
    /// Number of members, if the file states it.
    pub size: Option<u32>,
    /// Backend that transfers the group's messages, such as `cpu:gloo,cuda:nccl`.
    pub backend: String,
}

/// Kind of damage that was repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JsonRepairKind {
    /// Missing escapes were added to a name.
    Name,
    /// A list of process groups was truncated. The groups before that point were kept.
    Groups,
    /// A number that JSON forbids, such as `NaN`, became a missing value.
    Number,
    /// A superfluous comma after the last element was removed.
    Comma,
}

/// One repair of damaged JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SingleJsonRepairWithOffset {
    /// Byte offset of the repair in the decompressed text.
    pub offset: u64,
    /// Damage that was repaired.
    pub what: JsonRepairKind,
    /// The repaired name, or the end of the truncated list. If a number or a comma was repaired, the original text.
    pub text: String,
}

/// All repairs of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JsonRepairs {
    /// Number of repairs of each kind.
    pub counts: BTreeMap<JsonRepairKind, u64>,
    /// The first [`JsonRepairs::LISTED`] repairs.
    pub listed: Vec<SingleJsonRepairWithOffset>,
}

impl JsonRepairs {
    /// Maximum number of repairs that are listed.
    pub const LISTED: usize = 100;

    /// Returns the number of repairs of all kinds.
    pub fn repair_count(&self) -> u64 {
        self.counts.values().sum()
    }

    fn count_and_list_repair(&mut self, repair: SingleJsonRepairWithOffset) {
        *self.counts.entry(repair.what).or_default() += 1;
        if self.listed.len() < Self::LISTED {
            self.listed.push(repair);
        }
    }
}

/// Returns true if the operator `name` communicates: a collective or message of c10d, its
/// implementation in a backend, or a `record_param_comms` record.
pub fn is_communication_operator(name: &str) -> bool {
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

/// Number of events or operators to process between two checks for an interruption. Processing them takes a few
/// milliseconds.
const ITEMS_BETWEEN_CHECKS: usize = 1 << 14;

/// Name prefixes of the intervals that show communication in flight. The first prefix marks communication that was
/// requested but has no recorded interval. Host backends use the other prefixes for their intervals.
const IN_FLIGHT: [&str; 4] = ["in flight: ", "gloo:", "mpi:", "ucc:"];

/// Returns true if an interval with this name is communication in flight that the host executes.
fn is_host_communication_interval_name(name: &str) -> bool {
    IN_FLIGHT.iter().any(|prefix| name.starts_with(prefix))
}

/// A JSON string, borrowed from the text if it contains no escapes.
#[derive(serde::Deserialize)]
struct DecodedJsonString<'a>(#[serde(borrow)] std::borrow::Cow<'a, str>);
