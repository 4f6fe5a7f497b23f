//! Finds the communication calls of one rank, with their arguments and their times in flight.
//!
//! The arguments come from three sources. `c10d::*` operators state the tensors, the root and the
//! peer. The enclosing `_c10d_functional::*` operators state the group's name.
//! `record_param_comms`, which NCCL's process group writes, states all arguments. The time in
//! flight comes from gloo's intervals or NCCL's kernels.

use super::rank_timeline::{JoinedRankCapture, NONE};
use chakram_trace::format::CollectiveKind;

mod args;
mod device;
mod host;
mod requests;

pub use crate::comm_kernels::UserCommKernelRules;
pub use args::{CommCallArgs, parse_first_tensor_dtype, parse_group_of_record};

/// Operation of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommOp {
    /// One member's part of a collective.
    Collective(CollectiveKind),
    /// Send to a member of the group.
    Send,
    /// Receive from a member of the group.
    Receive,
}

/// A communication call of one rank.
#[derive(Clone, Debug)]
pub struct CommCall {
    /// Index of the host interval that made the call.
    pub item: u32,
    /// Record function id of the call's operator. A rank's calls are sorted by record function id.
    pub rf_id: u64,
    /// The operation: a collective, a send or a receive.
    pub act: CommOp,
    /// Arguments of the call, from its operator or its record.
    pub asked: CommCallArgs,
    /// Index of the call's group in the job's groups; valid once the groups have been determined.
    pub group: u32,
    /// Index in [`JoinedRankCapture::threads`] of the worker thread that executed the call; [`NONE`] if the
    /// caller's thread or a device executed it.
    pub worker: u32,
    /// Stream that executed the call, if the call ran on a device.
    pub stream: Option<i64>,
    /// Index in [`JoinedRankCapture::devices`] of the kernel that executed the call, or [`NONE`].
    pub device: u32,
    /// Time, in ns, at which the launch was complete. The caller's time after the launch does not belong to the call.
    pub launched: i64,
    /// Start of the call, in ns since the epoch, by this rank's clock.
    pub start: i64,
    /// End of the transfer; for a message on the host, the end of the program's wait for the message.
    pub end: i64,
    /// Time at which the result becomes usable, after the worker's final copies.
    pub done: i64,
    /// Kineto event that executed the call, or the last one if there are several.
    pub event: u32,
    /// Number of intervals or kernels that executed the call.
    pub parts: u32,
}

/// Communication calls of a rank, and anomalies among them.
#[derive(Clone, Debug, Default)]
pub struct RankCommCallsAndAnomalies {
    /// Calls in program order.
    pub list: Vec<CommCall>,
    /// Calls whose kernels the profiler dropped. They get no node, but other ranks' calls are still matched with them.
    /// Their launch times replace the missing kernel times.
    pub dropped: Vec<CommCall>,
    /// Calls without a recorded execution, by operator name.
    pub never_ran: Vec<String>,
    /// Number of communication intervals that no operator requested.
    pub orphans: u64,
    /// Pairs (kernel, first kernel of its call), sorted. The list has every kernel except the first one of each call.
    /// Both kernels are indices in [`JoinedRankCapture::devices`].
    pub further: Vec<(u32, u32)>,
    /// Sorted indices in [`JoinedRankCapture::devices`] of communication kernels and copies whose operation
    /// is unknown.
    pub unknown: Vec<u32>,
    /// Number of entries of `unknown` that were launched before the capture began.
    pub before: u64,
}

/// Finds the calls of `rank`; `kernels` identifies communication kernels.
pub fn find_comm_calls(
    rank: &JoinedRankCapture,
    kernels: &UserCommKernelRules,
) -> RankCommCallsAndAnomalies {
    let mut calls = host::find_host_backend_calls(rank);
    device::append_device_calls(rank, kernels, &mut calls);
    calls
        .list
        .sort_by_key(|call| (call.rf_id, call.item, call.start, call.event));
    calls
}

impl CommCall {
    /// Returns true if this call is a send or receive.
    pub fn is_message(&self) -> bool {
        !matches!(self.act, CommOp::Collective(_))
    }

    /// Returns true if the call moves an unknown amount of data.
    pub fn size_unknown(&self) -> bool {
        let barrier = CommOp::Collective(CollectiveKind::Barrier);
        let asked = &self.asked;
        !asked.size_stated && (asked.bytes_in, asked.bytes_out) == (0, 0) && self.act != barrier
    }

    /// Returns true if the profiler dropped all kernels of the call.
    pub fn has_only_dropped_kernels(&self) -> bool {
        self.parts == 0
    }

    /// Returns true if the call ran on a device.
    pub fn on_device(&self) -> bool {
        self.device != NONE
    }
}
